"""How fast the world steps, beside its peers."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any

import gymnasium as gym
import numpy as np

import gym_twoRooms  # noqa: F401 - it registers its worlds
from benchmarks.speed.timing import Contenders, Ratio, SpeedConfig, rate

WORLD = "TwoRoomsSwitch-v0"
"""The world that is measured."""
FEW = 16
"""Environments in MiniGrid's SyncVectorEnv, which steps them one by one."""

RATIOS = (
    Ratio("steps/s: vector / CartPole vector", "vector", "cartpole_vector"),
    # Both are rates, so the ratio of the times is the other way round.
    Ratio("time: vector step / copy of its observations", "copy", "vector"),
    Ratio("steps/s: vector / MiniGrid", "vector", "minigrid"),
    Ratio("steps/s: vector / MiniGrid, as few of each", "vector_few", "minigrid"),
    Ratio("steps/s: scalar / CliffWalking", "scalar", "cliff_walking"),
)
"""Ratios that are printed."""


@dataclass(frozen=True)
class WorldConfig(SpeedConfig):
    """Time the world against its peers, each in turn in every round."""

    what = "world"
    ratios = RATIOS

    rounds: int = 15
    threads: tuple[int, ...] = (1,)
    num_envs: int = 4096
    """Worlds in the vector environments."""
    steps: int = 512
    """Steps of all these worlds in each measurement. They are many, as the world draws random
    numbers ahead for many steps at once."""

    def contenders(self) -> Contenders:
        """
        Make what takes turns.

        :return: for each name a function that measures steps a second, or copies a second
        """
        world = gym.make_vec(WORLD, num_envs=self.num_envs)
        pictures = world.reset(seed=0)[0]
        cartpole = gym.make_vec("CartPole-v1", self.num_envs, "vector_entry_point")
        few = gym.make_vec(WORLD, num_envs=FEW)
        vectors = {"vector": world, "cartpole_vector": cartpole, "vector_few": few}
        found = {name: vector_speed(env, self.steps) for name, env in vectors.items()}
        if importlib.util.find_spec("minigrid") is None:
            print("MiniGrid is not installed: left out")
        else:
            found["minigrid"] = vector_speed(minigrid(), max(1, self.steps // 10))
        found["copy"] = lambda: rate(pictures.copy, steps=self.steps) * self.num_envs
        for name, env_id in (("scalar", WORLD), ("cliff_walking", "CliffWalking-v1")):
            found[name] = scalar_speed(gym.make(env_id), 20 * self.steps)
        return found


def minigrid() -> gym.vector.VectorEnv[Any, Any, Any]:
    """
    Make MiniGrid's room with a locked door, seen as the world is: all of it from above.

    :return: a vector environment
    """
    # It is imported by name, as there is no minigrid for Python 3.10.
    wrappers = importlib.import_module("minigrid.wrappers")
    # Two pixels a side are the least at which the four directions of the agent look different.
    seen = [partial(wrappers.RGBImgObsWrapper, tile_size=2), wrappers.ImgObsWrapper]
    return gym.make_vec(
        "MiniGrid-DoorKey-8x8-v0", num_envs=FEW, vectorization_mode="sync", wrappers=seen
    )


def vector_speed(env: gym.vector.VectorEnv[Any, Any, Any], steps: int) -> Callable[[], float]:
    """
    Return a function that measures environment steps a second under random actions.

    :param env: the environments
    :param steps: steps of each in a measurement
    :return: the function
    """
    assert isinstance(env.single_action_space, gym.spaces.Discrete)
    rng = np.random.default_rng(0)
    actions = cycle(rng.integers(env.single_action_space.n, size=(16, env.num_envs)))
    env.reset(seed=0)
    return lambda: rate(lambda: env.step(next(actions)), steps=steps) * env.num_envs


def scalar_speed(env: gym.Env[Any, Any], steps: int) -> Callable[[], float]:
    """
    Return a function that measures steps a second under random actions.

    Resets at the ends of episodes are included.

    :param env: the environment
    :param steps: steps in a measurement
    :return: the function
    """
    assert isinstance(env.action_space, gym.spaces.Discrete)
    actions = cycle(np.random.default_rng(0).integers(env.action_space.n, size=1_000).tolist())
    env.reset(seed=0)

    def step() -> None:
        _, _, terminated, truncated, _ = env.step(next(actions))
        if terminated or truncated:
            env.reset()

    return lambda: rate(step, steps=steps)
