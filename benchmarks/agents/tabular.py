"""The paper's tabular baseline: all-goals learning in a lookup table over the states of a world."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from benchmarks.tables import Tables
from benchmarks.worlds import World
from sb3_manygoals import GymnasiumVecEnv, TabularAllGoals
from sb3_manygoals.evaluation import GoalReacher


class StateNumbers(gym.vector.VectorObservationWrapper[Any, Any, Any]):
    """
    Worlds that are observed as state numbers.

    :param env: the worlds
    :param tables: which number the states
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
        """:return: nothing: it has no state"""
        return {}

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """:param state: not used"""


class ByNumbers:
    """
    A table that acts on observations.

    :param table: acts on state numbers
    :param tables: which number the states
    """

    def __init__(self, table: GoalReacher, tables: Tables) -> None:
        self.table, self.tables = table, tables

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
    :param tables: of the world
    :param n_envs: worlds side by side; the table learns from each in turn
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
