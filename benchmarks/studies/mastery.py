"""
Section 3 of the paper, and what goes beyond it.

The parts say which agents are compared, where, and for how long.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from benchmarks.agents.mastery import SELECTORS, Agent
from benchmarks.studies.study import Options, Study, StudyConfig, carry_out

__all__ = ["carry_out"]

PAPERS_MAP = "TwoRoomsSwitch-v0"
"""The paper's world."""
SMALL_MAP = "TwoRoomsSwitchSmall-v0"
"""A world like the paper's, with 220 states."""

AGENTS: dict[str, Options] = {name: {"agent": name} for name in get_args(Agent)}
"""All agents as they are."""

RULES: dict[str, Options] = {
    name.replace("_", "-"): {"selection": name} for name in SELECTORS if name != "uniform"
}
"""The default with each rule to select behavior goals, except the uniform one."""


def _targets(name: str) -> Options:
    """Return options of the default with targets of :mod:`benchmarks.agents.ablations`."""
    return {"agent_kwargs": {"target_class": {"class": f"benchmarks.agents.ablations:{name}"}}}


ABLATIONS: dict[str, Options] = {
    "no-best-action-loss": _targets("NoBestActionLoss"),
    "no-near-weights": _targets("EqualWeights"),
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
"""
Arguments for updates of the behavior goal alone.

They have 16 transitions from the same replay memory, each teaching its own goal, and there are as
many as of the other agents.
"""

PAPER: dict[str, Options] = {
    "uniform": {"agent": "paper"},
    "learning-progress": {"agent": "paper", "selection": "learning_progress"},
    "on-policy": {"agent": "paper", "agent_kwargs": ON_POLICY},
}
"""The paper's agents, with its settings."""

HELD_OUT: Options = {"held_out": 0.2}
"""The share of goals that are held out in the paper's second experiment."""

Part = Literal["agents", "map", "held-out", "ablations", "paper", "generalization"]


def _part(name: str, world: str, steps: int, agents: dict[str, Options]) -> Study:
    """Make a part of the study, by default in one world."""
    return Study(
        "mastery",
        "mastery",
        agents,
        (world,),
        steps,
        rows=12,
        prefix=f"{name}-",
        any_game=True,
    )


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
"""The parts of the study."""


@dataclass(frozen=True)
class MasteryStudyConfig(StudyConfig):
    """
    A part of the study of mastery: carry out what has not finished.

    Then: ``report ROOT --output FILE.html``.
    """

    root: Path = Path("runs/mastery-study")
    part: Part = "agents"
    """All agents, and the default with every rule to select goals, on the small map; all agents on
    the paper's map; with goals held out; with one thing changed; the paper's two experiments with
    its settings."""
    seeds: int = 6
    eval_goals: Path | None = None
    """File of NumPy (.npy) with the observations by which all agents are measured, see ``mastery``.
    Runs on other machines need it at the same place there. Do not change it between runs."""

    @property
    def study(self) -> Study:
        """The part that was chosen."""
        part = PARTS[self.part]
        if self.eval_goals is None:
            return part
        # Runs may have another working directory.
        goals = {"eval_goals": str(self.eval_goals.absolute())}
        return replace(part, agents={name: own | goals for name, own in part.agents.items()})
