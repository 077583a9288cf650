"""A2C in MiniGrid with each way of pre-training and without, at equal total steps; ``games.py`` has it in Atari games."""

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
    """The study of pre-training: carry out what has not finished, and compare what has in comparison.csv."""

    root: Path = Path("runs/pretraining-study")
    pretrain_steps: int = WORLDS["minigrid"].pretrain_steps
    """Of all steps, those of pre-training."""
    ortho_init: bool = True
    """Orthogonal initial weights, as SB3's A2C has them, in pre-training too; else torch's. A root is for one of both."""

    @property
    def study(self) -> Study:
        config = WORLDS["minigrid"]
        before = self.pretrain_steps
        trained = {
            "pretrain_steps": before,
            "learning_starts": min(config.learning_starts, before // 2),
        }
        scratch = {
            "pretrain_steps": 1,
            "learning_starts": 0,
        }  # not used: the run is the same however long others pre-train
        common: Options = (
            {"world": config.world}
            if self.ortho_init
            else {"world": config.world, "ortho_init": False}
        )
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
        """Means, and how often an agent is better than mastery for pre-training, see :func:`compared`."""
        return compared(finished, "pretraining-many_goals", mean, normalize=False)
