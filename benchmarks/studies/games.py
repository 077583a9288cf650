"""The paper's Atari games: all agents of its sections 4 and 5, and the search for beta before section 5."""

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
"""The paper's 49, Pitfall among them, Hero not."""

STEPS = 10_000_000
"""The paper's. With pre-training, a tenth of them."""

ROWS = 100
"""Of ``curve.csv`` of a run."""

BETA_GAMES = ("Atlantis", "Boxing", "DoubleDunk", "Gravitar", "Qbert", "TimePilot", "UpNDown")
"""The paper's tuning games, of its section 5."""

BETAS = (1e-4, 5e-4, 1e-3, 5e-3, 0.01, 0.02, 0.05, 0.1)
"""The paper's range as its appendix prints it, and the value that it found, 0.02, which is not in that range."""


@dataclass(frozen=True)
class GamesStudyConfig(StudyConfig):
    """Six agents in 49 games: carry out what has not finished. Then: ``report ROOT --output FILE.html``."""

    root: Path = Path("runs/games-study")
    seeds: int = 3
    steps: int = STEPS
    """Environment steps of a run, of which pre-training, if there is any, has a tenth."""

    @property
    def study(self) -> Study:
        """Agents have the names of the paper's tables of scores."""
        if self.steps < 10:
            raise SuiteError(
                f"steps must be at least 10, of which one is pre-training's, got {self.steps}"
            )
        before = self.steps // 10
        trained = {
            "pretrain_steps": before,
            "learning_starts": min(PretrainingConfig.learning_starts, before // 2),
        }
        agents: dict[str, Options] = {
            "a2c": {"agent": "a2c"},  # of both sections
            "pixel-control": {"agent": "pixel_control"},
            "reward-prediction": {"agent": "reward_prediction"},
            "many-goals": {"agent": "many_goals"},
            "reward-prediction-pretraining": {
                "command": "pretraining",
                "agent": "reward_prediction",
                **trained,
            },
            "many-goals-pretraining": {"command": "pretraining", "agent": "many_goals", **trained},
        }
        return Study("games", "auxiliary", agents, GAMES, self.steps, ROWS)


BETA_AGENTS: dict[str, Options] = {
    f"beta-{beta:g}": {"agent": "many_goals", "weight": beta} for beta in BETAS
}


@dataclass(frozen=True)
class BetaStudyConfig(StudyConfig):
    """The search for beta on seven games: carry out what has not finished, and compare what has in comparison.csv."""

    root: Path = Path("runs/beta-study")
    seeds: int = 3

    @property
    def study(self) -> Study:
        return Study("games", "auxiliary", BETA_AGENTS, BETA_GAMES, STEPS, ROWS)

    def compare(self, finished: Iterable[Result]) -> pd.DataFrame:
        """Medians, by which the paper sums up games, and how often a beta is better than the paper's, see :func:`compared`."""
        return compared(finished, "beta-0.02", median)
