"""
A2C in MiniGrid with each way of pre-training and without, at equal total steps.

``games.py`` has it in Atari games.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import pandas as pd

from benchmarks.pretraining import WORLDS, Agent
from benchmarks.scores import mean
from benchmarks.studies.study import Options, Study, StudyConfig, carry_out, compared
from benchmarks.suite import Result

__all__ = ["carry_out"]


@dataclass(frozen=True)
class PretrainingStudyConfig(StudyConfig):
    """
    The study of pre-training: carry out what has not finished.

    What has finished is compared in comparison.csv.
    """

    root: Path = Path("runs/pretraining-study")
    pretrain_steps: int = WORLDS["minigrid"].pretrain_steps
    """Steps of pre-training, of all steps of a run."""
    ortho_init: bool = True
    """Orthogonal initial weights, as SB3's A2C has them, in pre-training too; else PyTorch's. All
    runs below a root have the same."""

    @property
    def study(self) -> Study:
        """All agents in MiniGrid."""
        config = WORLDS["minigrid"]
        before = self.pretrain_steps
        trained = {
            "pretrain_steps": before,
            "learning_starts": min(config.learning_starts, before // 2),
        }
        # These are not used: the run without pre-training is the same however long others have it.
        scratch = {"pretrain_steps": 1, "learning_starts": 0}
        common: Options = {"world": config.world}
        if not self.ortho_init:
            common["ortho_init"] = False
        agents = {
            name: common | {"agent": name} | (scratch if name == "none" else trained)
            for name in get_args(Agent)
        }
        return Study(
            "pretraining",
            "pretraining",
            agents,
            (config.game,),
            config.steps,
            prefix="pretraining-",
            any_game=True,
        )

    def compare(self, finished: Iterable[Result]) -> pd.DataFrame:
        """
        Compare each agent with pre-training by mastery, see :func:`compared`.

        :param finished: results of runs
        :return: means, and how often an agent is better
        """
        return compared(finished, "pretraining-many_goals", mean, normalize=False)
