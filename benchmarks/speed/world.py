"""How fast the world steps, compiles and is imported, beside its peers."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th

import gym_twoRooms
from benchmarks.speed import timing
from benchmarks.speed.timing import Contender, Ratio, SpeedConfig

WORLD = "TwoRoomsSwitch-v0"

# From the import of the world on, and not of scipy: so it does not matter where the world imports scipy.
COMPILE = """
from time import perf_counter
import scipy.sparse.csgraph
from gym_twoRooms import Layout, TwoRoomsMDP
begin = perf_counter()
TwoRoomsMDP(Layout.named("paper"))
print(perf_counter() - begin)
"""

RATIOS = (
    Ratio("steps/s: vector / CartPole vector", "vector", "cartpole_vector", at_least=1.5),
    # Both are rates, and so the ratio of the times is the other way round.
    Ratio("time: vector step / copy of its observations", "copy", "vector", at_most=3.0),
    Ratio("steps/s: vector / MiniGrid", "vector", "minigrid", at_least=100.0),
    Ratio("steps/s: vector / MiniGrid, as few of each", "vector_few", "minigrid"),
    Ratio("steps/s: scalar / CliffWalking", "scalar", "cliff_walking", at_least=2.0),
    Ratio("seconds: compile", "compile", at_most=0.5),
    Ratio("time: import gym_twoRooms / import gymnasium", "import_world", "import_gymnasium", at_most=1.3),
)


@dataclass(frozen=True)
class WorldConfig(SpeedConfig):
    """Time the world against its peers, each in turn in every round."""

    rounds: int = 15
    """Times that each contender is measured. Medians are reported; ratios are taken within a round."""
    num_envs: int = 4096
    """Worlds in the vector environments."""
    steps: int = 512
    """Steps of all these worlds in each measurement; many, as the world draws random numbers ahead for many steps at once."""
    minigrid_envs: int = 16
    """Environments in MiniGrid's SyncVectorEnv, which steps them one by one."""
    minigrid_steps: int = 50
    """Steps of all of MiniGrid's in each measurement."""
    scalar_steps: int = 10_000
    """Steps of a single environment in each measurement."""
    large_layout: str = "mansion"
    """The named layout that stands for large maps."""

    def run(self) -> Path:
        """:return: the run's folder"""
        return run(self)


def run(config: WorldConfig) -> Path:
    """
    Measure, print, and write ``world.csv`` and ``config.json``.

    :param config: what to run
    :return: the folder
    """
    th.set_num_threads(1)
    entrants = contenders(config)
    has_minigrid = any(entrant.name == "minigrid" for entrant in entrants)
    folder, _ = timing.open_folder(config, "speed-world", ["minigrid"] if has_minigrid else [])
    if not has_minigrid:
        print("MiniGrid is not installed: left out")
    timing.compare(folder / "world.csv", entrants, RATIOS, config.rounds)
    loads_pygame = in_fresh_process("import sys, gym_twoRooms; print('pygame' in sys.modules)").strip() == "True"
    print(f"import gym_twoRooms loads pygame: {'yes' if loads_pygame else 'no'}")
    print(f"written to {folder}")
    return folder


def contenders(config: WorldConfig) -> list[Contender]:
    """
    :param config: what to run
    :return: all that can be measured here
    """
    n, few = config.num_envs, config.minigrid_envs
    world = gym.make_vec(WORLD, num_envs=n)
    pictures = world.reset(seed=0)[0]
    vectors: dict[str, tuple[gym.vector.VectorEnv[Any, Any, Any], int]] = {
        "vector": (world, config.steps),
        "cartpole_vector": (gym.make_vec("CartPole-v1", n, vectorization_mode="vector_entry_point"), config.steps),
        "vector_few": (gym.make_vec(WORLD, num_envs=few), config.steps),
        "vector_large": (gym.make_vec(WORLD, num_envs=n, layout=config.large_layout), config.steps),
    }
    if importlib.util.find_spec("minigrid") is not None:
        vectors["minigrid"] = (minigrid(few), config.minigrid_steps)
    found = [Contender(name, "steps/s", vector_speed(env, steps)) for name, (env, steps) in vectors.items()]
    found.append(Contender("copy", "observations/s", rate(lambda _: pictures.copy(), config.steps, n)))
    for name, env_id in (("scalar", WORLD), ("cliff_walking", "CliffWalking-v1")):
        found.append(Contender(name, "steps/s", scalar_speed(gym.make(env_id), config.scalar_steps)))
    found.append(Contender("compile", "s", lambda: float(in_fresh_process(COMPILE))))
    for name, module in (("import_world", "gym_twoRooms"), ("import_gymnasium", "gymnasium")):
        found.append(Contender(name, "s", partial(seconds_of_process, f"import {module}")))
    return found


def minigrid(num_envs: int) -> gym.vector.VectorEnv[Any, Any, Any]:
    """
    :param num_envs: how many
    :return: MiniGrid's room with a locked door, seen as the world is: from above, all of it, as an image
    """
    wrappers = importlib.import_module("minigrid.wrappers")  # it is not there on Python 3.10
    # Two pixels a side are the least at which the four directions of the agent look different.
    seen = [partial(wrappers.RGBImgObsWrapper, tile_size=2), wrappers.ImgObsWrapper]
    return gym.make_vec("MiniGrid-DoorKey-8x8-v0", num_envs=num_envs, vectorization_mode="sync", wrappers=seen)


def rate(step: Callable[[int], object], steps: int, each: int = 1) -> Callable[[], float]:
    """
    :param step: does the step of that number
    :param steps: in each measurement
    :param each: how much each is
    :return: measures how much is done a second
    """

    def measure() -> float:
        begin = time.perf_counter()
        for number in range(steps):
            step(number)
        return steps * each / (time.perf_counter() - begin)

    return measure


def vector_speed(env: gym.vector.VectorEnv[Any, Any, Any], steps: int) -> Callable[[], float]:
    """
    :param env: a vector environment with discrete actions
    :param steps: of all its environments, in each measurement
    :return: measures environment steps a second under random actions
    """
    assert isinstance(env.single_action_space, gym.spaces.Discrete)
    actions = np.random.default_rng(0).integers(env.single_action_space.n, size=(16, env.num_envs))
    env.reset(seed=0)
    return rate(lambda number: env.step(actions[number % 16]), steps, env.num_envs)


def scalar_speed(env: gym.Env[Any, Any], steps: int) -> Callable[[], float]:
    """
    :param env: an environment with discrete actions
    :param steps: in each measurement
    :return: measures steps a second under random actions, resets at the ends of episodes included
    """
    assert isinstance(env.action_space, gym.spaces.Discrete)
    actions = np.random.default_rng(0).integers(env.action_space.n, size=steps).tolist()
    env.reset(seed=0)

    def step(number: int) -> None:
        _, _, terminated, truncated, _ = env.step(actions[number])
        if terminated or truncated:
            env.reset()

    return rate(step, steps)


def in_fresh_process(code: str) -> str:
    """
    :param code: a program
    :return: what it prints
    """
    root = Path(gym_twoRooms.__file__).parents[1]  # Python looks first in the current folder: there is the same package
    return subprocess.run([sys.executable, "-c", code], cwd=root, check=True, stdout=subprocess.PIPE, text=True).stdout


def seconds_of_process(code: str) -> float:
    """
    :param code: a program
    :return: the seconds that its process takes, Python's own start included
    """
    return 1 / rate(lambda _: in_fresh_process(code), 1)()
