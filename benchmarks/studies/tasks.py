"""Tasks whose reward is rare: ManyGoalsDQN beside agents that learn from the reward, in six worlds; and TwoRoomsSwitch."""

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

GRIDS = tuple(
    f"MiniGrid-{name}-v0"
    for name in (
        "DoorKey-8x8",
        "FourRooms",
        "MultiRoom-N4-S5",
        "KeyCorridorS3R1",
        "UnlockPickup",
        "LavaCrossingS9N1",
    )
)

COMMON: Options = {"eval_episodes": 20, "patience": 5}

AGENTS: dict[str, Options] = {
    "many_goals": COMMON,
    **{name: {**COMMON, "agent": name} for name in ("ppo", "a2c", "dqn")},
    "hindsight": {**COMMON, "agent": "hindsight", "agent_kwargs": {"max_episode_steps": 200}},
}

SCRATCH: dict[str, Options] = {
    f"ppo-{number}": {**COMMON, "eval_episodes": 100, "agent": "ppo", "task": task}
    for number, task in enumerate(TASKS, 1)
}
"""Each task of told-tasks learned by itself."""

PARTS = {
    "grids": Study("tasks", "tasks", AGENTS, GRIDS, 500_000, rows=50),
    "scratch": Study("tasks", "tasks", SCRATCH, (WORLD,), 500_000, rows=50),
}


@dataclass(frozen=True)
class TasksStudyConfig(StudyConfig):
    """All agents in six worlds of MiniGrid, or PPO on each task of TwoRoomsSwitch: carry out, and compare."""

    root: Path = Path("runs/tasks-study")
    part: Literal["grids", "scratch"] = "grids"
    seeds: int = 5

    @property
    def study(self) -> Study:
        return PARTS[self.part]

    def compare(self, finished: Iterable[Result]) -> pd.DataFrame:
        """A row for each agent in each world: medians over seeds, of steps; never is infinity."""
        runs = pd.DataFrame(
            [{"world": run.spec.game, "agent": run.spec.agent, **run.values} for run in finished]
        )
        if runs.empty:
            return runs
        steps = ["first_reward", *(f"{policy}_solved" for policy in POLICIES)]
        shares = [f"{policy}_{what}" for policy in POLICIES for what in ("kept", "final")]
        runs = runs.reindex(columns=["world", "agent", *steps, *shares]).fillna(
            dict.fromkeys(steps, np.inf)
        )
        groups = runs.groupby(["world", "agent"], sort=False)
        return groups.median().assign(runs=groups.size()).reset_index()
