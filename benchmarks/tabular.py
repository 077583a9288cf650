"""The paper's tabular baseline: all-goals learning in a lookup table, on the true states of a world that is written out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from benchmarks.worlds import Tables, World
from sb3_manygoals import GymnasiumVecEnv, TabularAllGoals
from sb3_manygoals.evaluation import GoalReacher


class StateNumbers(gym.vector.VectorObservationWrapper[Any, Any, Any]):
    """
    Worlds that show the numbers of their states.

    :param env: the worlds
    :param tables: which number them
    """

    def __init__(self, env: gym.vector.VectorEnv[Any, Any, Any], tables: Tables) -> None:
        super().__init__(env)
        self.tables = tables
        self.single_observation_space = spaces.Discrete(len(tables))
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)

    def observations(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        """
        :param observations: of all worlds
        :return: their states
        """
        return self.tables.states_of(observations)

    def get_checkpoint_state(self) -> dict[str, Any]:
        """:return: nothing: the tables do not change"""
        return {}

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """:param state: of :meth:`get_checkpoint_state`"""


class ByNumbers:
    """
    A table that acts on observations: it recognises the states.

    :param table: acts on the numbers of states
    :param tables: which number them
    """

    def __init__(self, table: GoalReacher, tables: Tables) -> None:
        self.table = table
        self.tables = tables

    def predict(self, observation: dict[str, NDArray[Any]], *, deterministic: bool = False) -> tuple[NDArray[Any], Any]:
        """
        :param observation: "observation" and "desired_goal", of n worlds and goals
        :param deterministic: True for the greedy actions
        :return: actions, shape (n,), and None
        """
        states = {key: self.tables.states_of(observation[key]) for key in ("observation", "desired_goal")}
        return self.table.predict(states, deterministic=deterministic)


def make(world: World, tables: Tables, n_envs: int, total_steps: int, seed: int, given: Mapping[str, Any]) -> TabularAllGoals:
    """
    :param world: to learn in
    :param tables: it written out
    :param n_envs: worlds that run side by side; the table learns from each in turn
    :param total_steps: of the run; epsilon falls over the first third
    :param seed: of everything
    :param given: further arguments of the table
    :return: an untrained table
    """
    return TabularAllGoals(
        "TablePolicy",
        GymnasiumVecEnv(StateNumbers(world.vector(n_envs), tables)),
        seed=seed,
        **{"exploration_steps": max(1, total_steps // 3), **given},
    )
