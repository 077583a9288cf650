"""A2C in MiniGrid with each way of pre-training and without, at equal total steps; ``games.py`` has it in Atari games."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

import numpy as np
import tyro
from numpy.typing import NDArray

from benchmarks.pretraining import WORLDS, Agent
from benchmarks.scores import estimated, mean, probability_of_improvement
from benchmarks.studies.study import Options, Study, StudyConfig, carry_out
from benchmarks.suite import Result, Spec
from benchmarks.suite.run import SuiteConfig

__all__ = ["carry_out"]

SUITE = SuiteConfig(root=Path("runs/pretraining-study"))

MEASURES = ("score", "mean_return")
"""What runs are compared by: the score after training, and the mean return on the way there."""


def study(pretrain_steps: int | None = None, ortho_init: bool = True) -> Study:
    """The study with so many steps of pre-training, None for 20,000, and with orthogonal initial weights or torch's."""
    config = WORLDS["minigrid"]
    before = config.pretrain_steps if pretrain_steps is None else pretrain_steps
    trained = {"pretrain_steps": before, "learning_starts": min(config.learning_starts, before // 2)}
    scratch = {"pretrain_steps": 1, "learning_starts": 0}  # not used: however long the others pre-train, the run is the same
    common: Options = {"world": config.world} if ortho_init else {"world": config.world, "ortho_init": False}
    agents = {name: common | {"agent": name} | (scratch if name == "none" else trained) for name in get_args(Agent)}
    return Study("pretraining", "pretraining", agents, (config.game,), config.steps, prefix="pretraining-", any_game=True)


def _column(runs: Sequence[Mapping[str, Any]], measure: str) -> NDArray[np.float64]:
    # a run in which no episode has ended has no score
    return np.array([[0.0 if run[measure] is None else run[measure]] for run in runs], dtype=np.float64).reshape(-1, 1)


@dataclass(frozen=True)
class PretrainingStudyConfig(StudyConfig):
    """The study of pre-training: carry out what has not finished, and compare what has in comparison.csv."""

    suite: Annotated[SuiteConfig, tyro.conf.arg(name="")] = SUITE
    pretrain_steps: int | None = None
    """Of all steps, those of pre-training; by default 20,000."""
    games: tuple[str, ...] = ()
    """Ids of environments of MiniGrid; by default one."""
    ortho_init: bool = True
    """Orthogonal initial weights, as SB3's A2C has them, in pre-training too; else torch's. A root is for one of both."""

    def specs(self) -> list[Spec]:
        """The runs."""
        return study(self.pretrain_steps, self.ortho_init).specs(self.seeds, self.steps, self.games, self.only)

    def compare(self, finished: Iterable[Result]) -> list[dict[str, Any]]:
        """
        A row for each agent in each game: means over seeds, and the probability that a run with mastery for pre-training is
        better than one of this agent, with bootstrap intervals (95%) over seeds if there are two or more.
        """
        runs: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        for result in finished:
            runs.setdefault((result.spec.game, result.spec.settings["agent"]), []).append(result.values)
        rows = []
        for (game, agent), ours in sorted(runs.items()):
            row: dict[str, Any] = {"game": game, "agent": agent, "seeds": len(ours)}
            comparisons: dict[str, float] = {}
            for measure in MEASURES:
                scores, best = _column(ours, measure), _column(runs.get((game, "many_goals"), []), measure)
                row |= estimated(measure, mean, scores)
                if agent != "many_goals" and min(len(best), len(scores)) > 1:
                    comparisons |= estimated(f"{measure}_better", probability_of_improvement, best, scores)
            rows.append(row | comparisons)
        return rows
