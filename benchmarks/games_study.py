"""The paper's 49 Atari games: all agents of its sections 4 and 5 in one suite."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from benchmarks import auxiliary, pretraining, run_folder
from benchmarks.auxiliary import AuxiliaryConfig
from benchmarks.pretraining import PretrainingConfig
from benchmarks.scores import DATA, read_table
from benchmarks.suite import Spec
from benchmarks.suite.run import Outcome, SuiteConfig

AGENTS: dict[str, AuxiliaryConfig | PretrainingConfig] = {
    "a2c": AuxiliaryConfig(agent="a2c"),  # of both sections
    "pixel-control": AuxiliaryConfig(agent="pixel_control"),
    "reward-prediction": AuxiliaryConfig(agent="reward_prediction"),
    "many-goals": AuxiliaryConfig(agent="many_goals"),
    "reward-prediction-pretraining": PretrainingConfig(agent="reward_prediction"),
    "many-goals-pretraining": PretrainingConfig(agent="many_goals"),
}
"""By the names that they have in the paper's tables of scores, with the paper's settings."""

STEPS = 10_000_000
"""The paper's. Of these a tenth are those of pre-training."""

ROWS = 100
"""Of ``curve.csv`` of a run."""


def games() -> tuple[str, ...]:
    """:return: the paper's 49, Pitfall among them, Hero not"""
    return read_table(DATA / "atari_human_random_49.csv").games


def chosen(only: Sequence[str], known: Sequence[str], what: str) -> list[str]:
    """
    :param only: names, none for all
    :param known: that there are
    :param what: they name
    :return: those chosen, in the order of ``known``
    :raises ValueError: if one is not known
    """
    if not set(known).issuperset(only):
        unknown = " ".join(each for each in only if each not in known)
        raise ValueError(f"{what} must be of {', '.join(known)}, got {unknown}")
    return [each for each in known if not only or each in only]


def specs(seeds: int, steps: int = STEPS, only_games: Sequence[str] = (), only: Sequence[str] = ()) -> list[Spec]:
    """
    :param seeds: how many, from 0 on
    :param steps: environment steps of a run altogether
    :param only_games: in which; none for all 49
    :param only: agents to run; none for all six
    :return: the runs, all agents in all games with one seed before the next seed
    :raises ValueError: if there are no seeds, steps too few for any pre-training, or no such agent or game
    """
    if seeds < 1:
        raise ValueError(f"seeds must be at least 1, got {seeds}")
    if steps < 10:
        raise ValueError(f"steps must be at least 10, of which one is pre-training's, got {steps}")
    return [
        Spec("benchmarks.games_study:carry_out", agent, game, seed, steps)
        for seed in range(seeds)
        for game in chosen(only_games, games(), "games")
        for agent in chosen(only, list(AGENTS), "only")
    ]


def configuration(spec: Spec) -> AuxiliaryConfig | PretrainingConfig:
    """
    :param spec: of a run
    :return: its settings, epsilon falling over all steps of pre-training
    """
    config = AGENTS[spec.agent]
    if isinstance(config, PretrainingConfig):
        pretrain_steps = spec.steps // 10
        starts = min(config.learning_starts, pretrain_steps // 2)
        config = replace(config, pretrain_steps=pretrain_steps, learning_starts=starts, steps=spec.steps)
    return replace(
        config, game=spec.game, seed=spec.seed, steps=spec.steps, eval_freq=max(1, spec.steps // ROWS), progress_bar=False
    )


def carry_out(spec: Spec, folder: Path) -> Mapping[str, Any]:
    """
    Do a run, or go on with it.

    :param spec: the run
    :param folder: of the run
    :return: what is in ``score.json``: the score after training, and what the run took
    """
    return carry_out_config(configuration(spec), folder / spec.agent / "run")


def carry_out_config(config: AuxiliaryConfig | PretrainingConfig, own: Path) -> Mapping[str, Any]:
    """
    Do a run in Atari games, or go on with it.

    :param config: its settings
    :param own: folder for it
    :return: what is in ``score.json``
    """
    needed = auxiliary.PACKAGES["atari"] if isinstance(config, AuxiliaryConfig) else pretraining.PACKAGES["atari"]
    run_folder.carry_out(config, own, (*run_folder.PACKAGES, *needed))
    found: dict[str, Any] = json.loads((own / "score.json").read_text(encoding="utf-8"))
    return found


@dataclass(frozen=True)
class GamesStudyConfig:
    """Six agents in 49 games: carry out what has not finished. Then: ``report ROOT --output FILE.html``."""

    suite: Annotated[SuiteConfig, tyro.conf.arg(name="")] = field(
        default_factory=lambda: SuiteConfig(root=Path("runs/games-study"))
    )
    seeds: int = 3
    """Runs of each agent in each game, with the seeds from 0 on."""
    steps: int = STEPS
    """Environment steps of a run, of which a tenth are those of pre-training, where there is any."""
    games: tuple[str, ...] = ()
    """In which; by default all of the paper's."""
    only: tuple[str, ...] = ()
    """Agents to run; by default all six."""

    def run(self) -> Outcome | None:
        """
        :return: what became of the runs; None where they are only listed
        :raises ValueError: if an option makes no sense
        """
        return self.suite.run(specs(self.seeds, self.steps, self.games, self.only))
