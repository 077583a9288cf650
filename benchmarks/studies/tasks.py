"""
Tasks whose reward is rare.

ManyGoalsDQN learns beside agents that learn from the reward, in six worlds of MiniGrid. PPO learns
each task of TwoRoomsSwitch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from benchmarks.studies.study import Options, Study, StudyConfig, carry_out
from benchmarks.suite import Result
from benchmarks.tasks import POLICIES
from benchmarks.told_tasks import TASKS, WORLD

__all__ = ["carry_out"]

GRIDS = (
    "MiniGrid-DoorKey-8x8-v0",
    "MiniGrid-FourRooms-v0",
    "MiniGrid-MultiRoom-N4-S5-v0",
    "MiniGrid-KeyCorridorS3R1-v0",
    "MiniGrid-UnlockPickup-v0",
    "MiniGrid-LavaCrossingS9N1-v0",
)
"""Worlds of MiniGrid."""

COMMON: Options = {"eval_episodes": 20, "patience": 5}
"""Options of all agents."""

AGENTS: dict[str, Options] = {
    "many_goals": COMMON,
    **{name: {**COMMON, "agent": name} for name in ("ppo", "a2c", "dqn")},
    "hindsight": {**COMMON, "agent": "hindsight", "agent_kwargs": {"max_episode_steps": 200}},
}
"""Agents in MiniGrid."""

SCRATCH: dict[str, Options] = {
    f"ppo-{number}": {**COMMON, "eval_episodes": 100, "agent": "ppo", "task": task}
    for number, task in enumerate(TASKS, 1)
}
"""Each task of told-tasks learned by itself."""

PARTS = {
    "grids": Study("tasks", "tasks", AGENTS, GRIDS, 500_000, rows=50),
    "scratch": Study("tasks", "tasks", SCRATCH, (WORLD,), 500_000, rows=50),
}
"""The parts of the study."""


@dataclass(frozen=True)
class TasksStudyConfig(StudyConfig):
    """
    All agents in six worlds of MiniGrid, or PPO on each task of TwoRoomsSwitch.

    What has not finished is carried out, and what has finished is compared in comparison.csv, or in
    scratch-comparison.csv.
    """

    root: Path = Path("runs/tasks-study")
    part: Literal["grids", "scratch"] = "grids"
    """Six worlds of MiniGrid; or each task of TwoRoomsSwitch, learned from nothing."""
    seeds: int = 5

    @property
    def study(self) -> Study:
        """The part that was chosen."""
        return PARTS[self.part]

    def compare(self, finished: Iterable[Result]) -> pd.DataFrame:
        """
        Sum up each agent in each world.

        :param finished: results of runs
        :return: medians over seeds; a step that was never reached counts as infinity. Columns that
            end in "_kept" are of the seeds that solved the task. Columns of a policy that an agent
            does not have are empty
        """
        runs = pd.DataFrame(
            [{"world": run.spec.game, "agent": run.spec.agent, **run.values} for run in finished]
        )
        if runs.empty:
            return runs
        steps = ["first_reward", *(f"{policy}_solved" for policy in POLICIES)]
        shares = [f"{policy}_{what}" for policy in POLICIES for what in ("kept", "final")]
        runs = runs.reindex(columns=["world", "agent", *steps, *shares])
        runs["first_reward"] = runs["first_reward"].fillna(np.inf)
        for policy in POLICIES:
            never = runs[f"{policy}_solved"].isna() & runs[f"{policy}_final"].notna()
            runs.loc[never, f"{policy}_solved"] = np.inf
        groups = runs.groupby(["world", "agent"], sort=False)
        return groups.median().assign(runs=groups.size()).reset_index()
