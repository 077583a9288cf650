"""The paper's tabular baseline: all-goals learning in a lookup table over the states of a world."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium import spaces
from gymnasium.wrappers.vector import TransformObservation

from benchmarks.tables import Tables
from benchmarks.worlds import World
from sb3_manygoals import GymnasiumVecEnv, TabularAllGoals


def make(world: World, tables: Tables, n_envs: int, total_steps: int, seed: int, given: Mapping[str, Any]) -> TabularAllGoals:
    """An untrained table, which observes state numbers; epsilon falls over the first third of all steps."""
    numbers = spaces.Discrete(len(tables))
    env: Any = TransformObservation(world.vector(n_envs), tables.states_of, single_observation_space=numbers)
    settings = {"exploration_steps": max(1, total_steps // 3), **given}
    return TabularAllGoals("TablePolicy", GymnasiumVecEnv(env), seed=seed, **settings)
