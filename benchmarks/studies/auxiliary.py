"""A2C with each auxiliary task and without, in small worlds; ``games.py`` has it in Atari games."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

import tyro

from benchmarks.agents.a2c import WorldName
from benchmarks.auxiliary import WORLDS, Agent
from benchmarks.studies.study import Study, StudyConfig, carry_out
from benchmarks.suite import Spec
from benchmarks.suite.run import SuiteConfig

__all__ = ["carry_out"]

SUITE = SuiteConfig(root=Path("runs/auxiliary-study"))

Part = Literal["two-rooms", "minigrid"]


def _part(name: str, world: WorldName) -> Study:
    agents = {agent: {"world": world, "agent": agent} for agent in get_args(Agent)}
    config = WORLDS[world]
    return Study("auxiliary", "auxiliary", agents, (config.game,), config.steps, prefix=f"{name}-", any_game=True)


PARTS: dict[Part, Study] = {"two-rooms": _part("two-rooms", "two_rooms"), "minigrid": _part("minigrid", "minigrid")}


@dataclass(frozen=True)
class AuxiliaryStudyConfig(StudyConfig):
    """A part of the study of auxiliary tasks: carry out what has not finished. Then: ``report ROOT --output FILE.html``."""

    suite: Annotated[SuiteConfig, tyro.conf.arg(name="")] = SUITE
    part: Part = "two-rooms"
    """The small map with one state to reach; MiniGrid."""
    games: tuple[str, ...] = ()
    """Ids of environments; by default that of the part."""

    def specs(self) -> list[Spec]:
        """The runs of the part."""
        return PARTS[self.part].specs(self.seeds, self.steps, self.games, self.only)
