"""What an update costs: ours, the same loss tiled, and SB3's DQN; and how that grows with the goals."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch as th

from benchmarks.speed.scenarios import Scenario
from benchmarks.speed.timing import Contenders, Ratio, SpeedConfig

HER_BATCHES = (32, 512, 4_096, 16_384)

SCENARIOS = (
    *(Scenario("pairwise", 32, goals) for goals in (16, 64, 256, 1024, 5_728)),
    *(Scenario("tiled", 32, goals) for goals in (16, 64, 256)),  # with more it takes seconds
    Scenario("pairwise", 64, 64, "batch"),
    Scenario("pairwise", 128, 128, "batch"),
    Scenario("tiled", 128, 128, "batch"),
    Scenario("SB3 DQN", 32),
    *(Scenario("SB3 DQN + HER", pairs) for pairs in HER_BATCHES),
    # Pre-training, and the auxiliary task beside A2C: 5 steps of each of 16 environments, their last observations the goals.
    Scenario("pairwise", 16, 5, world="frames"),
    Scenario("tiled", 16, 5, world="frames"),
    Scenario("pairwise", 80, 16, "batch", world="frames"),
    Scenario("tiled", 80, 16, "batch", world="frames"),
)
"""The updates that are measured on the CPU."""

_OURS = {f"pairwise {n} x {m}": float(n * m) for n, m in ((32, 16), (64, 64), (128, 128))}
_HER = {f"SB3 DQN + HER, {pairs}": float(pairs) for pairs in HER_BATCHES}

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


@dataclass(frozen=True)
class UpdateConfig(SpeedConfig):
    """Time updates with the paper's networks, ours and others, in turn in every round."""

    what, unit, ratios = "update", "updates/s", RATIOS

    seconds: float = 0.5
    """How long each measurement takes, at least."""

    def contenders(self) -> Contenders:
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
