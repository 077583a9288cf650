"""
The agents of the paper's sections 4 and 5 in MinAtar's five games.

One part is the search for the weights of auxiliary tasks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pandas as pd

from benchmarks.auxiliary import WORLDS
from benchmarks.scores import read_table
from benchmarks.studies.study import Options, Study, StudyConfig, carry_out, compared
from benchmarks.suite import Result

__all__ = ["carry_out"]

Part = Literal["agents", "search", "two-steps"]

GAMES = tuple(read_table("minatar").index)
"""MinAtar's games."""

TUNING = ("asterix", "breakout")
"""Games of the search, named before it."""

WEIGHTS = {
    "many_goals": (0.02, 0.1, 0.5, 2.0),
    "pixel_control": (1e-4, 1e-3, 1e-2, 1e-1),
    "reward_prediction": (0.003, 0.01, 0.03, 0.1),
}
"""
Weights to try, around the published ones.

Those for rewards are smaller, as the 1 of Jaderberg et al. (2017) ruins A2C in Asterix.
"""

MINATAR: Options = {"world": "minatar"}
"""Options of all agents."""
JOINT: Options = {**MINATAR, "update": "joint"}
"""Options of agents with an auxiliary task, whose loss is added to A2C's."""
PRETRAINED: Options = {**MINATAR, "command": "pretraining"}
"""Options of agents with pre-training."""

AGENTS: dict[str, Options] = {
    "a2c": {**MINATAR, "agent": "a2c"},
    "many-goals": {**JOINT, "agent": "many_goals", "weight": 0.5},
    # This has the paper's beta.
    "many-goals-beta-0.02": {**JOINT, "agent": "many_goals", "weight": 0.02},
    "pixel-control": {**JOINT, "agent": "pixel_control", "weight": 1e-4},
    "reward-prediction": {**JOINT, "agent": "reward_prediction", "weight": 0.003},
    "many-goals-pretraining": {**PRETRAINED, "agent": "many_goals"},
    "reward-prediction-pretraining": {**PRETRAINED, "agent": "reward_prediction"},
}
"""Agents with the weights that the search found, or the paper's beta. All losses are joint."""

TWO_STEPS: Options = {
    **MINATAR,
    "agent": "many_goals",
    "update": "two_steps",
    "checkpoint_minutes": 2.0,
}
"""Options of many goals in two steps."""

PRINTED: dict[str, Options] = {
    "a2c": {**AGENTS["a2c"], "checkpoint_minutes": 2.0},
    "many-goals-two-steps-0.02": {**TWO_STEPS, "weight": 0.02},
    "many-goals-two-steps-0.1": {**TWO_STEPS, "weight": 0.1},
}
"""
Many goals by the paper's Algorithm 2, with its beta and a larger one, beside A2C.

Checkpoints are frequent, as runs take minutes.
"""

STEPS = WORLDS["minatar"].steps
"""Environment steps of a run."""
ROWS = STEPS // WORLDS["minatar"].eval_freq
"""Rows of ``curve.csv`` of a run."""

SEARCH = {
    f"{task}-{weight:g}": {**JOINT, "agent": task, "weight": weight}
    for task, tried in WEIGHTS.items()
    for weight in tried
}
"""Agents of the search."""

PARTS: dict[Part, Study] = {
    "agents": Study("minatar", "auxiliary", AGENTS, GAMES, STEPS, ROWS),
    "search": Study(
        "minatar", "auxiliary", {"a2c": AGENTS["a2c"], **SEARCH}, TUNING, STEPS // 4, ROWS // 4
    ),
    "two-steps": Study(
        "minatar",
        "auxiliary",
        PRINTED,
        GAMES,
        STEPS,
        ROWS,
        most_seeds={"many-goals-two-steps-0.02": 5},
    ),
}
"""The parts of the study."""


@dataclass(frozen=True)
class MinAtarStudyConfig(StudyConfig):
    """
    A part of the study in MinAtar: carry out what has not finished.

    What has finished is compared in comparison.csv; other parts than the first have the name of the
    part before that.
    """

    root: Path = Path("runs/minatar-study")
    part: Part = "agents"
    """All agents in all games; or the search for the weights, in two games and a quarter of the
    steps; or many goals in two steps, beside A2C, where the paper's beta has at most five seeds.
    Give the last part a root of its own, as its runs of A2C have the names of the first part's."""
    seeds: int = 5

    @property
    def study(self) -> Study:
        """The part that was chosen."""
        return PARTS[self.part]

    def compare(self, finished: Iterable[Result]) -> pd.DataFrame:
        """
        Compare each agent with A2C, see :func:`compared`.

        :param finished: results of runs
        :return: interquartile means of normalized scores, and how often an agent is better
        """
        return compared(finished, "a2c")
