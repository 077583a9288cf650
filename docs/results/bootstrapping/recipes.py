"""
Measure recipes of bootstrapping with 20 bits, or on the small map, while they are trained.

OMP_NUM_THREADS=1 PYTHONPATH=. python docs/results/bootstrapping/recipes.py random-bits-20 5000
    '{"segment_length": 8, "tau": 0.01}'
"""

import json
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium.vector import AutoresetMode

import gym_twoRooms  # noqa: F401 - registers its worlds
import sb3_manygoals.many_goals_dqn.targets as targets_module
from benchmarks import goals
from benchmarks.goal_worlds import worlds
from benchmarks.worlds import World
from sb3_manygoals import GymnasiumVecEnv, ManyGoalsDQN, TDTargets, evaluate_mastery

SMALL_MAP = "TwoRoomsSwitchSmall-v0"


def train(world: str, steps: int, recipe: dict[str, Any], seed: int = 0) -> ManyGoalsDQN:
    """Train by a recipe: arguments of ManyGoalsDQN and of TDTargets, and ``segment_length``."""
    settings = dict(recipe)
    targets_module._SEGMENT_LENGTH = settings.pop("segment_length", targets_module._SEGMENT_LENGTH)
    names = ("near_decay", "near_floor", "goal_sampling")
    target_kwargs = {name: settings.pop(name) for name in names if name in settings}
    env: Any
    goals_of_world: dict[str, Any] = {}
    if world == "small":
        vector_env = gym.make_vec(SMALL_MAP, num_envs=64, autoreset_mode=AutoresetMode.DISABLED)
        env = GymnasiumVecEnv(vector_env)
    else:
        env = worlds()[world]().make()
        goals_of_world = dict(worlds()[world]().goals)
    policy = "CnnPolicy" if world == "small" else "MultiInputPolicy"
    model = ManyGoalsDQN(
        policy,
        env,
        seed=seed,
        target_class=TDTargets,
        target_kwargs=target_kwargs,
        goal_wrapper_kwargs=goals_of_world,
        **settings,
    )
    return model.learn(steps)


def success(model: ManyGoalsDQN, world: str) -> list[float]:
    """Return success greedily, and with 10% random actions on the small map."""
    if world != "small":
        return [float(goals._reach_own(model, worlds()[world]()).mean())]
    tables = World(SMALL_MAP).tables
    env = World(SMALL_MAP).vector(len(tables))
    found = [
        evaluate_mastery(model, env, tables.observations, epsilon=epsilon, seed=1_000).rate
        for epsilon in (0.0, 0.1)
    ]
    return [float(np.round(rate, 4)) for rate in found]


if __name__ == "__main__":
    th.set_num_threads(1)
    name, n_steps, text = sys.argv[1:]
    learner = train(name, int(n_steps), json.loads(text))
    print(name, n_steps, text, learner._n_updates, success(learner, name))
