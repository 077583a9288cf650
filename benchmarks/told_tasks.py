"""
Twenty tasks of TwoRoomsSwitch, told to one agent after it has learned.

Its returns are compared with those of the best possible policy of each task.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pandas as pd
import torch as th
from numpy.typing import NDArray

import gym_twoRooms  # noqa: F401 - registers its worlds
from benchmarks.agents.mastery import make
from benchmarks.mastery import MasteryConfig
from benchmarks.suite.spec import write_whole
from benchmarks.worlds import SettingError
from gym_twoRooms.mdp import TwoRoomsMDP
from gym_twoRooms.oracle import transition_matrices
from sb3_manygoals import ManyGoalsDQN, PlannedTargets
from sb3_manygoals.checkpoint import read_newest
from sb3_manygoals.pretrained import load_pretrained

WORLD = "TwoRoomsSwitch-v0"
"""The world of all tasks, with the paper's map."""

GAMMA = 0.99
"""Discount factor of all tasks."""

Mask = NDArray[np.bool_]

_UPPER_SWITCH = (1, 1)
_LOWER_SWITCH = (8, 8)


def _at(cells: NDArray[Any], *places: tuple[int, int]) -> Mask:
    """Return which cells are one of these places, given as row and column."""
    return np.isin(cells, [10 * row + column for row, column in places])


PREDICATES: dict[str, Callable[[TwoRoomsMDP, NDArray[Any], NDArray[Any]], Mask]] = {
    "agent above": lambda mdp, agent, block: agent < 30,
    "agent below": lambda mdp, agent, block: agent >= 40,
    "agent in the door": lambda mdp, agent, block: _at(agent, (3, 7)),
    "agent at the upper switch": lambda mdp, agent, block: _at(agent, _UPPER_SWITCH),
    "agent in a corner": lambda mdp, agent, block: _at(agent, (0, 0), (0, 9), (9, 0), (9, 9)),
    "agent slipping": lambda mdp, agent, block: mdp.slips,
    "agent beside the block": lambda mdp, agent, block: np.isin(np.abs(agent - block), (1, 10)),
    "block at the lower switch": lambda mdp, agent, block: _at(block, _LOWER_SWITCH),
    "block left": lambda mdp, agent, block: block % 10 == 1,
    "block right": lambda mdp, agent, block: block % 10 == 8,
    "block up": lambda mdp, agent, block: block // 10 == 5,
    "block down": lambda mdp, agent, block: block // 10 == 8,
    "block in a corner": lambda mdp, agent, block: _at(block, (5, 1), (5, 8), (8, 1), (8, 8)),
    "block on slippery floor": lambda mdp, agent, block: _at(block, (6, 4), (6, 5), (7, 4), (7, 5)),
    "door open": lambda mdp, agent, block: mdp.doors_open[:, 0],
    "door shut": lambda mdp, agent, block: ~mdp.doors_open[:, 0],
}
"""
Conditions of the states of the paper's map.

Each takes the model, and the cells of the agent and of the block in all states. Cells are numbered
row by row, ten in a row.
"""

TASKS = (
    "agent above",
    "agent at the upper switch",
    "agent in the door",
    "agent at the upper switch, door shut",
    "agent above, door shut",
    "agent below, door open",
    "block at the lower switch",
    "block at the lower switch, agent above",
    "block at the lower switch, agent at the upper switch",
    "block left, agent above",
    "block right, agent in the door",
    "block up, agent in a corner",
    "block down, door open",
    "block on slippery floor",
    "block on slippery floor, agent above, door shut",
    "block in a corner, agent beside the block",
    "block in a corner, agent at the upper switch",
    "agent slipping, door open",
    "agent in a corner, agent above, door shut",
    "agent beside the block, door shut, block right",
)
"""Tasks: all conditions of one must hold for a reward of 1, at which the task ends."""


def rewarded_states(mdp: TwoRoomsMDP, task: str) -> Mask:
    """
    Return which states are rewarded.

    :param mdp: the model of the paper's map
    :param task: one of :data:`TASKS`
    :return: shape (S,)
    """
    parts = [PREDICATES[name](mdp, mdp.agent, mdp.blocks[:, 0]) for name in task.split(", ")]
    return np.asarray(np.logical_and.reduce(parts))


def returns(
    matrices: list[Any], rewarded: Mask, gamma: float, actions: NDArray[np.int64] | None = None
) -> NDArray[np.float64]:
    """
    Compute the expected discounted return from each state.

    :param matrices: for each action the probabilities of next states, shape (S, S)
    :param rewarded: which states are rewarded, shape (S,)
    :param gamma: discount factor
    :param actions: those of a policy, shape (S,); by default the best possible ones
    :return: shape (S,)
    """
    values = np.zeros(len(rewarded))
    while True:
        worth = np.where(rewarded, 1.0, gamma * values)
        after = np.stack([matrix @ worth for matrix in matrices])
        found = after.max(axis=0) if actions is None else after[actions, np.arange(len(actions))]
        if np.abs(found - values).max() <= 1e-9:
            return found
        values = found


@dataclass(frozen=True)
class ToldTasksConfig:
    """Tell one agent of the paper's map twenty tasks, and compare its returns with the best."""

    agent: Path | None = None
    """Folder of a run of mastery in TwoRoomsSwitch-v0; by default the agent that comes with the
    package, which has met no transitions."""
    output: Path = Path("runs/told-tasks.csv")
    """Where the table is written."""

    def run(self) -> Path:
        """
        Write a row for each task and way to act: by the network alone, or by a plan.

        The row has the exact mean of the discounted return over all states where the task is not
        done. The plan is made in the model of the world.

        :return: the table
        :raises SettingError: if the folder is not that of such a run
        """
        th.set_num_threads(1)
        model = load_pretrained(WORLD) if self.agent is None else _load(self.agent)
        mdp: TwoRoomsMDP = gym.make(WORLD).unwrapped.mdp  # type: ignore[attr-defined]
        matrices = transition_matrices(mdp)
        assert model.goal_buffer is not None
        known = mdp.states_of(model.goal_buffer.observations)
        rows = []
        plans = isinstance(model.targets, PlannedTargets) and self.agent is not None
        ways = ("network", "plan") if plans else ("network",)
        for task, way in itertools.product(TASKS, ways):
            rewarded = rewarded_states(mdp, task)
            told = rewarded[known]
            policy = model.task_policy(told, gamma=GAMMA, planned=way == "plan")
            parts = np.array_split(np.arange(mdp.n_states), 20)
            actions = np.concatenate([policy.predict(mdp.observe(states))[0] for states in parts])
            best = returns(matrices, rewarded, GAMMA)[~rewarded].mean()
            ours = returns(matrices, rewarded, GAMMA, actions)[~rewarded].mean()
            rows.append((task, rewarded.sum(), way, ours, best, ours / best))
            print(f"{task}, {way}: {ours:.4f} of {best:.4f}, {ours / best:.4f}")
        self.output.parent.mkdir(parents=True, exist_ok=True)
        table = pd.DataFrame(
            rows, columns=["task", "rewarded", "policy", "return", "best", "ratio"]
        )
        write_whole(self.output, table.to_csv(index=False, float_format="%.4f"))
        for way, ratios in table.groupby("policy")["ratio"]:
            done = (ratios >= 0.95).sum()
            print(f"{way}: {done} of {len(ratios)} tasks at .95 of the best or more")
        print(f"written to {self.output}")
        return self.output


def _load(folder: Path) -> ManyGoalsDQN:
    """Load the newest checkpoint of a run of mastery."""
    newest = read_newest(folder / "checkpoints")
    if newest is not None and (folder / "world.npz").exists():
        config = MasteryConfig.saved(folder)
        if config.agent == "heads":
            raise SettingError(
                "agent must act for tasks, but a run of heads has no values of tasks: give a run of"
                " another agent"
            )
        model, _ = make(config, config.world, None)
        if (config.env_id, config.map) == (WORLD, None) and isinstance(model, ManyGoalsDQN):
            model.set_checkpoint_state(newest[1]["learner"])
            return model
    raise SettingError(
        f"agent must be the folder of a finished run of mastery in {WORLD} by ManyGoalsDQN, "
        f"got {folder}"
    )
