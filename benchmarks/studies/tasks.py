"""Tasks whose reward is rare: ManyGoalsDQN beside agents that learn from the reward, in six worlds; and TwoRoomsSwitch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro

from benchmarks.studies.study import Options, Study, StudyConfig, carry_out
from benchmarks.suite import Result, Spec
from benchmarks.suite.run import SuiteConfig
from benchmarks.tasks import POLICIES
from benchmarks.told_tasks import TASKS, WORLD

__all__ = ["carry_out"]

SUITE = SuiteConfig(root=Path("runs/tasks-study"))

GRIDS = tuple(
    f"MiniGrid-{name}-v0"
    for name in ("DoorKey-8x8", "FourRooms", "MultiRoom-N4-S5", "KeyCorridorS3R1", "UnlockPickup", "LavaCrossingS9N1")
)

COMMON: Options = {"eval_episodes": 20, "patience": 5}

AGENTS: dict[str, Options] = {
    "many_goals": COMMON,
    "many_goals-favored": {**COMMON, "favored": 0.25},
    **{name: {**COMMON, "agent": name} for name in ("ppo", "a2c", "dqn")},
    "hindsight": {**COMMON, "agent": "hindsight", "favored": 0.5, "agent_kwargs": {"max_episode_steps": 200}},
}

SCRATCH: dict[str, Options] = {
    f"ppo-{number}": {**COMMON, "eval_episodes": 100, "agent": "ppo", "task": task} for number, task in enumerate(TASKS, 1)
}
"""Each task of told-tasks learned by itself."""

PARTS = {
    "grids": Study("tasks", "tasks", AGENTS, GRIDS, 500_000, rows=50),
    "scratch": Study("tasks", "tasks", SCRATCH, (WORLD,), 500_000, rows=50),
}


@dataclass(frozen=True)
class TasksStudyConfig(StudyConfig):
    """All agents in six worlds of MiniGrid, or PPO on each task of TwoRoomsSwitch: carry out, and compare."""

    suite: Annotated[SuiteConfig, tyro.conf.arg(name="")] = SUITE
    part: Literal["grids", "scratch"] = "grids"
    seeds: int = 5
    """Runs of each agent in each world, with the seeds from 0 on."""

    def specs(self) -> list[Spec]:
        """The runs of the part."""
        return PARTS[self.part].specs(self.seeds, self.steps, only=self.only)

    def compare(self, finished: Iterable[Result]) -> list[dict[str, Any]]:
        """A row for each agent in each world: medians over seeds, of steps; never is infinity."""
        groups: dict[tuple[str, str], list[Result]] = {}
        for result in finished:
            groups.setdefault((result.spec.game, result.spec.agent), []).append(result)
        rows = []
        for (game, agent), results in groups.items():
            row: dict[str, Any] = {"world": game, "agent": agent, "runs": len(results)}
            for name in ("first_reward", *(f"{policy}_{what}" for policy in POLICIES for what in ("solved", "kept", "final"))):
                never = np.inf if name.endswith(("reward", "solved")) else np.nan
                row[name] = float(np.median([result.values.get(name, never) for result in results]))
            rows.append(row)
        return rows
