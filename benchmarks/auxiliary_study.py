"""A2C with each auxiliary task and without in small worlds, over seeds, as a suite: who is compared with whom, where."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args

import tyro

from benchmarks import run_folder
from benchmarks.a2c import World
from benchmarks.auxiliary import PACKAGES, WORLDS, Agent, AuxiliaryConfig
from benchmarks.suite import Spec
from benchmarks.suite.run import Outcome, SuiteConfig

AGENTS: tuple[Agent, ...] = get_args(Agent)

Part = Literal["two-rooms", "minigrid"]

PARTS: dict[Part, World] = {"two-rooms": "two_rooms", "minigrid": "minigrid"}
"""Worlds by the names that parts of the study have. Games have a study of their own, ``games_study``."""

ROWS = 40
"""Of ``curve.csv`` of a run."""


def specs(
    part: Part, seeds: int, steps: int | None = None, games: Sequence[str] = (), only: Sequence[Agent] = ()
) -> list[Spec]:
    """
    :param part: of the study
    :param seeds: how many, from 0 on
    :param steps: environment steps of a run, None for those of the part
    :param games: ids of environments; none for that of the part
    :param only: agents to run; none for all
    :return: the runs, all agents in all environments with one seed before the next seed
    :raises ValueError: if there are no seeds, or there is no such agent
    """
    if seeds < 1:
        raise ValueError(f"seeds must be at least 1, got {seeds}")
    if not set(AGENTS).issuperset(only):
        raise ValueError(f"only must name agents of {', '.join(AGENTS)}, got {' '.join(only)}")
    world = WORLDS[PARTS[part]]
    return [
        Spec(
            "benchmarks.auxiliary_study:carry_out",
            f"{part}-{agent}",
            game,
            seed,
            world.steps if steps is None else steps,
            {"world": world.world, "agent": agent},
        )
        for seed in range(seeds)
        for game in games or (world.game,)
        for agent in AGENTS
        if not only or agent in only
    ]


def configuration(spec: Spec) -> AuxiliaryConfig:
    """
    :param spec: of a run
    :return: its settings
    """
    world = cast(World, spec.settings["world"])
    return replace(
        WORLDS[world],
        agent=spec.settings["agent"],
        game=spec.game,
        seed=spec.seed,
        steps=spec.steps,
        eval_freq=max(1, spec.steps // ROWS),
        progress_bar=False,
    )


def carry_out(spec: Spec, folder: Path) -> Mapping[str, Any]:
    """
    Do a run, or go on with it, in a folder whose parents have the agent's and the world's name.

    :param spec: the run
    :param folder: of the run
    :return: what is in ``score.json``: the score after training, and what the run took
    """
    own = folder / spec.agent / "run"
    config = configuration(spec)
    run_folder.carry_out(config, own, (*run_folder.PACKAGES, *PACKAGES[config.world]))
    found: dict[str, Any] = json.loads((own / "score.json").read_text(encoding="utf-8"))
    return found


@dataclass(frozen=True)
class AuxiliaryStudyConfig:
    """A part of the study of auxiliary tasks: carry out what has not finished. Then: ``auxiliary-summary``."""

    suite: Annotated[SuiteConfig, tyro.conf.arg(name="")] = field(
        default_factory=lambda: SuiteConfig(root=Path("runs/auxiliary-study"))
    )
    part: Part = "two-rooms"
    """The small map with one state to reach; MiniGrid."""
    seeds: int = 10
    """Runs of each agent in each environment, with the seeds from 0 on."""
    steps: int | None = None
    """Environment steps of a run; by default those of the part."""
    games: tuple[str, ...] = ()
    """Ids of environments; by default that of the part."""
    only: tuple[Agent, ...] = ()
    """Agents to run; by default all."""

    def run(self) -> Outcome | None:
        """
        :return: what became of the runs; None where they are only listed
        :raises ValueError: if an option makes no sense
        """
        return self.suite.run(specs(self.part, self.seeds, self.steps, self.games, self.only))
