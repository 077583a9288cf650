"""A2C with each auxiliary task and without, in small worlds; ``games.py`` has it in Atari games."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from benchmarks.agents.a2c import WorldName
from benchmarks.auxiliary import WORLDS, Agent
from benchmarks.studies.study import Study, StudyConfig, carry_out

__all__ = ["carry_out"]

Part = Literal["two-rooms", "minigrid", "minigrid-view"]


def _part(name: str, world: WorldName) -> Study:
    """Make the study of all agents in a world."""
    # What was measured in these worlds was joint.
    options = {"world": world, "update": "joint"}
    agents = {agent: {**options, "agent": agent} for agent in get_args(Agent)}
    config = WORLDS[world]
    return Study(
        "auxiliary",
        "auxiliary",
        agents,
        (config.game,),
        config.steps,
        prefix=f"{name}-",
        any_game=True,
    )


PARTS: dict[Part, Study] = {
    "two-rooms": _part("two-rooms", "two_rooms"),
    "minigrid": _part("minigrid", "minigrid"),
    "minigrid-view": _part("minigrid-view", "minigrid_view"),
}
"""The parts of the study."""


@dataclass(frozen=True)
class AuxiliaryStudyConfig(StudyConfig):
    """
    A part of the study of auxiliary tasks: carry out what has not finished.

    Then: ``report ROOT --output FILE.html``.
    """

    root: Path = Path("runs/auxiliary-study")
    part: Part = "two-rooms"
    """The small map with one state to reach; MiniGrid seen whole; MiniGrid seen by its agent."""

    @property
    def study(self) -> Study:
        """The part that was chosen."""
        return PARTS[self.part]
