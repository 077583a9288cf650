"""
What an update costs: ours, the same loss tiled, and SB3's DQN.

It also shows how the cost grows with the number of goals.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch as th

from benchmarks.speed.scenarios import Scenario
from benchmarks.speed.timing import Contenders, Ratio, SpeedConfig

HER_BATCHES = (32, 512, 4_096, 16_384)
"""Transitions in updates of SB3's DQN with HerReplayBuffer."""

SCENARIOS = (
    *(Scenario("pairwise", 32, goals) for goals in (16, 64, 256, 1024, 5_728)),
    # With more goals a tiled update takes seconds.
    *(Scenario("tiled", 32, goals) for goals in (16, 64, 256)),
    Scenario("pairwise", 64, 64, "segments"),
    Scenario("pairwise", 128, 128, "segments"),
    Scenario("tiled", 128, 128, "segments"),
    Scenario("SB3 DQN", 32),
    *(Scenario("SB3 DQN + HER", pairs) for pairs in HER_BATCHES),
    # These are pre-training, and the auxiliary task beside A2C: 5 steps of each of 16 environments,
    # whose last observations are the goals.
    Scenario("pairwise", 16, 5, world="frames"),
    Scenario("tiled", 16, 5, world="frames"),
    Scenario("pairwise", 80, 16, "segments", world="frames"),
    Scenario("tiled", 80, 16, "segments", world="frames"),
)
"""The updates that are measured on the CPU."""

_OURS = {f"pairwise {n} x {m}": float(n * m) for n, m in ((32, 16), (64, 64), (128, 128))}
"""Pairs of a transition and a goal in an update of ours, by scenario."""

_HER = {f"SB3 DQN + HER, {pairs}": float(pairs) for pairs in HER_BATCHES}
"""Pairs of a transition and a goal in an update of SB3's, by scenario."""

RATIOS = (
    *(
        Ratio(f"updates/s: pairwise / tiled, {size}", f"pairwise {size}", f"tiled {size}")
        for size in ("32 x 16", "128 x 128", "16 x 5, Atari", "80 x 16, Atari")
    ),
    Ratio(
        "updates/s: pairwise 32 x 16 / SB3 DQN + HER, 512 pairs each",
        "pairwise 32 x 16",
        "SB3 DQN + HER, 512",
    ),
    Ratio("goal updates/s: pairwise / SB3 DQN + HER, each at its best batch size", _OURS, _HER),
    Ratio(
        "updates/s: pairwise 32 x 16 / SB3 DQN of one goal, 32", "pairwise 32 x 16", "SB3 DQN, 32"
    ),
)
"""Ratios that are printed."""


@dataclass(frozen=True)
class UpdateConfig(SpeedConfig):
    """Time updates with the paper's networks, ours and others, in turn in every round."""

    what = "update"
    unit = "updates/s"
    ratios = RATIOS

    seconds: float = 0.5
    """Seconds for which each measurement goes on at least."""

    def contenders(self) -> Contenders:
        """
        Make what takes turns; on a machine with a GPU, our updates there, too.

        :return: for each name a function that measures updates a second
        """
        scenarios = list(SCENARIOS)
        if th.cuda.is_available():
            scenarios += [
                replace(scenario, device="cuda")
                for scenario in SCENARIOS
                if scenario.kind == "pairwise"
            ]
        else:
            print(
                "CUDA is not measured: this machine has no such device, or torch none of its code"
            )
        return {scenario.name: scenario.speed(self.seconds) for scenario in scenarios}
