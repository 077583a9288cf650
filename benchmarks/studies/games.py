"""
The paper's Atari games.

One study has all agents of the paper's sections 4 and 5, another is the search for beta before
section 5.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from benchmarks.pretraining import PretrainingConfig
from benchmarks.scores import median, read_table
from benchmarks.studies.study import Options, Study, StudyConfig, carry_out, compared
from benchmarks.suite import Result, SuiteError

__all__ = ["carry_out"]

GAMES = tuple(read_table("atari_human_random_49").index)
"""The paper's 49 games, Pitfall among them, Hero not."""

STEPS = 10_000_000
"""The paper's steps. A tenth of them is pre-training, if there is any."""

ROWS = 100
"""Rows of ``curve.csv`` of a run."""

BETA_GAMES = ("Atlantis", "Boxing", "DoubleDunk", "Gravitar", "Qbert", "TimePilot", "UpNDown")
"""The paper's tuning games, of its section 5."""

BETAS = (1e-4, 5e-4, 1e-3, 5e-3, 0.01, 0.02, 0.05, 0.1)
"""
The paper's range as its appendix prints it, and the value that it found.

That value, 0.02, is not in the range.
"""


@dataclass(frozen=True)
class GamesStudyConfig(StudyConfig):
    """
    Six agents in 49 games: carry out what has not finished.

    A seventh, shuffled-goals, is a control for many-goals. It is run only if ``only`` names it.
    Then: ``report ROOT --output FILE.html``.
    """

    root: Path = Path("runs/games-study")
    seeds: int = 3
    steps: int = STEPS
    """Environment steps of a run, of which pre-training, if there is any, has a tenth."""

    @property
    def study(self) -> Study:
        """All agents in all games. Agents have the names of the paper's tables of scores."""
        if self.steps < 10:
            raise SuiteError(
                f"steps must be at least 10, of which one is pre-training's, got {self.steps}"
            )
        before = self.steps // 10
        trained = {
            "pretrain_steps": before,
            "learning_starts": min(PretrainingConfig.learning_starts, before // 2),
        }
        pretrained: Options = {"command": "pretraining", **trained}
        agents: dict[str, Options] = {
            # The agent without an auxiliary task is also the one without pre-training.
            "a2c": {"agent": "a2c"},
            "pixel-control": {"agent": "pixel_control"},
            "reward-prediction": {"agent": "reward_prediction"},
            "many-goals": {"agent": "many_goals"},
            "reward-prediction-pretraining": {**pretrained, "agent": "reward_prediction"},
            "many-goals-pretraining": {**pretrained, "agent": "many_goals"},
            "shuffled-goals": {"agent": "shuffled_goals"},
        }
        return Study(
            "games", "auxiliary", agents, GAMES, self.steps, ROWS, on_request=("shuffled-goals",)
        )


BETA_AGENTS: dict[str, Options] = {
    f"beta-{beta:g}": {"agent": "many_goals", "weight": beta} for beta in BETAS
}
"""Options of A2C with many goals for each beta."""


@dataclass(frozen=True)
class BetaStudyConfig(StudyConfig):
    """
    The search for beta on seven games: carry out what has not finished.

    What has finished is compared in comparison.csv.
    """

    root: Path = Path("runs/beta-study")
    seeds: int = 3

    @property
    def study(self) -> Study:
        """All betas in the tuning games."""
        return Study("games", "auxiliary", BETA_AGENTS, BETA_GAMES, STEPS, ROWS)

    def compare(self, finished: Iterable[Result]) -> pd.DataFrame:
        """
        Compare each beta with the paper's, see :func:`compared`.

        :param finished: results of runs
        :return: medians, by which the paper sums up games, and how often a beta is better
        """
        return compared(finished, "beta-0.02", median)
