"""Section 3 of the paper, and what goes beyond it: who is compared with whom, where, for how long, how often."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from benchmarks.agents.mastery import SELECTORS, Agent
from benchmarks.studies.study import Options, Study, StudyConfig, carry_out

__all__ = ["carry_out"]

PAPERS_MAP, SMALL_MAP = "TwoRoomsSwitch-v0", "TwoRoomsSwitchSmall-v0"

AGENTS: dict[str, Options] = {name: {"agent": name} for name in get_args(Agent)}

RULES: dict[str, Options] = {
    name.replace("_", "-"): {"selection": name} for name in SELECTORS if name != "uniform"
}
"""The default with each rule to select behavior goals, but for the uniform one."""

PLANNED: Options = {"target_class": {"class": "sb3_manygoals:PlannedTargets"}}

ABLATIONS: dict[str, Options] = {
    "no-best-action-loss": {"agent_kwargs": PLANNED | {"target_kwargs": {"best_weight": 0.0}}},
    "no-near-weights": {"agent_kwargs": PLANNED | {"target_kwargs": {"near_decay": 1.0}}},
    "relu": {"agent_kwargs": {"policy_kwargs": {"activation_fn": {"class": "torch.nn:ReLU"}}}},
    "bilinear-head": {"agent_kwargs": {"policy_kwargs": {"head": "bilinear"}}},
    "no-ema_decay": {"agent_kwargs": {"policy_kwargs": {"ema_decay": 0.0}}},
    "no-standardization": {"agent_kwargs": {"policy_kwargs": {"standardize": False}}},
    "worlds-reset": {"agent_kwargs": {"goal_wrapper_kwargs": {"reset_worlds": True}}},
    "worlds-not-reset": {"agent_kwargs": {"goal_wrapper_kwargs": {"reset_worlds": False}}},
    "td-targets": {"agent": "td"},
}
"""The default with one thing changed."""

ON_POLICY: Options = {"batch_size": 16, "target_kwargs": {"goal_sampling": "behavior"}}
"""16 transitions from the same replay memory, each teaching its own goal; as many updates as the others make."""

PAPER: dict[str, Options] = {
    "uniform": {"agent": "paper"},
    "learning-progress": {"agent": "paper", "selection": "learning_progress"},
    "on-policy": {"agent": "paper", "agent_kwargs": ON_POLICY},
}
"""The paper's agents, with its settings."""

HELD_OUT: Options = {"held_out": 0.2}
"""As many goals as in the paper's second experiment."""

Part = Literal["agents", "map", "held-out", "ablations", "paper", "generalization"]


def _part(name: str, world: str, steps: int, agents: dict[str, Options]) -> Study:
    return Study("mastery", "mastery", agents, (world,), steps, rows=12, prefix=f"{name}-")


PARTS: dict[Part, Study] = {
    "agents": _part("agents", SMALL_MAP, 120_000, AGENTS | RULES),
    "map": _part("map", PAPERS_MAP, 500_000, AGENTS),
    "held-out": _part(
        "held-out",
        PAPERS_MAP,
        500_000,
        {name: AGENTS[name] | HELD_OUT for name in ("default", "td")},
    ),
    "ablations": _part("ablations", PAPERS_MAP, 500_000, {"default": {}} | ABLATIONS),
    "paper": _part("paper", PAPERS_MAP, 3_000_000, PAPER | {"table": AGENTS["table"]}),
    "generalization": _part(
        "generalization",
        PAPERS_MAP,
        3_000_000,
        {name: own | HELD_OUT for name, own in PAPER.items()},
    ),
}


@dataclass(frozen=True)
class MasteryStudyConfig(StudyConfig):
    """A part of the study of mastery: carry out what has not finished. Then: ``report ROOT --output FILE.html``."""

    root: Path = Path("runs/mastery-study")
    part: Part = "agents"
    """All agents, and the default with every rule to select goals, on the small map; all agents on the paper's map; with
    goals held out; with one thing changed; the paper's two experiments with its settings."""
    seeds: int = 6

    @property
    def study(self) -> Study:
        return PARTS[self.part]
