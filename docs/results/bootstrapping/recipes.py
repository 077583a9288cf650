"""
Train by a recipe of bootstrapping, in a GoalEnv or on the small map, and add a row to a file.

OMP_NUM_THREADS=1 PYTHONPATH=. python docs/results/bootstrapping/recipes.py random-bits-20 5000
    '{"segment_length": 8, "tau": 0.01}' runs/recipes.csv
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

import gym_twoRooms  # noqa: F401 - registers its worlds
import sb3_manygoals.many_goals_dqn.targets as targets_module
from benchmarks import goals, recording
from benchmarks.goal_worlds import worlds
from benchmarks.rows import add_row
from benchmarks.worlds import World
from sb3_manygoals import GymnasiumVecEnv, ManyGoalsDQN, TDTargets, evaluate_mastery
from sb3_manygoals.many_goals_dqn.fixed_parts import FixedParts

SMALL_MAP = "TwoRoomsSwitchSmall-v0"


def train(
    world: str,
    steps: int,
    recipe: dict[str, Any],
    learner_class: type[ManyGoalsDQN] = ManyGoalsDQN,
    goal_arguments: dict[str, Any] | None = None,
) -> ManyGoalsDQN:
    """
    Train by a recipe: arguments of ManyGoalsDQN, with ``seed`` 0 by default, and of TDTargets,
    ``segment_length``, and ``segments_per_episode``, how many segments of an update are of one
    episode in any world. ``goal_arguments`` are those of the goal wrapper, by default the world's.
    """
    settings = {"seed": 0, **recipe}
    targets_module._SEGMENT_LENGTH = settings.pop("segment_length", targets_module._SEGMENT_LENGTH)
    if "segments_per_episode" in settings:
        targets_module._SEGMENTS_PER_EPISODE = settings.pop("segments_per_episode")
        FixedParts.are_in_the_way = lambda *_: True  # type: ignore[method-assign]
    names = ("near_decay", "near_floor", "goal_sampling", "pursued_share", "action_gap")
    target_kwargs = {name: settings.pop(name) for name in names if name in settings}
    env: Any
    goals_of_world: dict[str, Any] = {}
    if world == "small":
        vector_env = gym.make_vec(SMALL_MAP, num_envs=64, autoreset_mode=AutoresetMode.DISABLED)
        env = GymnasiumVecEnv(vector_env)
    else:
        env = worlds()[world]().make()
        goals_of_world = dict(worlds()[world]().goals)
    if goal_arguments is not None:
        goals_of_world = goal_arguments
    policy = "CnnPolicy" if world == "small" else "MultiInputPolicy"
    model = learner_class(
        policy,
        env,
        target_class=TDTargets,
        target_kwargs=target_kwargs,
        goal_wrapper_kwargs=goals_of_world,
        **settings,
    )
    return model.learn(steps)


def success(model: ManyGoalsDQN, world: str) -> dict[str, float]:
    """
    Return success greedily. On the small map, there is also success with 10% random actions, and in
    a room that of goals behind the wall.
    """
    if world != "small":
        reached = goals._reach_own(model, worlds()[world]())
        found = {"greedy": float(reached.mean())}
        if world.startswith("room"):
            found["behind_the_wall"] = float(reached[_are_behind_the_wall(world)].mean())
        return found
    tables = World(SMALL_MAP).tables
    env = World(SMALL_MAP).vector(len(tables))
    rates = {
        name: evaluate_mastery(model, env, tables.observations, epsilon=epsilon, seed=1_000).rate
        for name, epsilon in (("greedy", 0.0), ("epsilon", 0.1))
    }
    return {name: float(np.round(rate, 4)) for name, rate in rates.items()}


def _are_behind_the_wall(world: str) -> NDArray[np.bool_]:
    """Return which goals that are measured lie on the other side of the wall."""
    make = worlds()[world]().goal_env
    assert make is not None
    env: Any = make()
    found = []
    for episode in range(worlds()[world]().episodes):
        seen, _ = env.reset(seed=10_000 + episode)
        found.append((env._place[0] < 0.5) != (seen["desired_goal"][0] < 0.5))
    return np.array(found)


if __name__ == "__main__":
    th.set_num_threads(1)
    name, n_steps, text, file = sys.argv[1:]
    began = time.perf_counter()
    learner = train(name, int(n_steps), json.loads(text))
    row = {
        "commit": recording.git_revision(),
        "world": name,
        "recipe": text,
        "steps": int(n_steps),
        "updates": learner._n_updates,
        "seconds": round(time.perf_counter() - began, 1),
        "greedy": None,
        "epsilon": None,
        "behind_the_wall": None,
        **success(learner, name),
    }
    print(row)
    add_row(Path(file), row)
