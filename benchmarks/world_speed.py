"""How fast the world steps, compiles and is imported, against its peers, measured in turn in one run."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from numpy.typing import NDArray

import gym_twoRooms
from benchmarks import rounds, run_folder
from benchmarks.rounds import Contender, Figure

WORLD_ID = "TwoRoomsSwitch-v0"
MINIGRID_ID = "MiniGrid-DoorKey-8x8-v0"
TILE_SIZE = 2
"""Pixels a side of MiniGrid's cells: the least at which the four directions of its agent look different."""
ACTION_SETS = 16
"""Prepared arrays of random actions that a vector environment is given in turn."""

COMPILE = """
from time import perf_counter
import scipy.sparse.csgraph
from gym_twoRooms import Layout, TwoRoomsMDP
begin = perf_counter()
TwoRoomsMDP(Layout.named("paper"))
print(perf_counter() - begin)
"""
# From the import of the world on, and not of scipy: so it does not matter where the world imports scipy, or whether.
COMPILE_WITH_IMPORTS = """
from time import perf_counter
import gymnasium
begin = perf_counter()
from gym_twoRooms import Layout, TwoRoomsMDP
TwoRoomsMDP(Layout.named("paper"))
print(perf_counter() - begin)
"""


@dataclass(frozen=True)
class WorldSpeedConfig:
    """Time the world against its peers, each in turn in every round, on one thread."""

    rounds: int = 15
    """Times that each contender is measured; medians are reported, of ratios those of the ratios within a round."""
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
    """The named layout that stands for large maps; left out where the world has none of that name."""
    output: Path = Path("runs")
    """Folder in which the run's own folder is made."""

    def run(self) -> Path:
        """:return: the run's folder"""
        return run(self)


FIGURES = (
    Figure("steps/s: vector / CartPole vector", "vector", "cartpole_vector", ">=", 1.5),
    # Both are rates, and so the ratio of the times is the other way round.
    Figure("time: vector step / copy of its observations", "copy", "vector", "<=", 3.0),
    Figure("steps/s: vector / MiniGrid", "vector", "minigrid", ">=", 100.0),
    Figure("steps/s: vector / MiniGrid, as few of each", "vector_few", "minigrid"),
    Figure("steps/s: scalar / CliffWalking", "scalar", "cliff_walking", ">=", 2.0),
    Figure("seconds: compile", "compile", None, "<=", 0.5),
    Figure("seconds: compile, with imports", "compile_with_imports"),
    Figure("time: import gym_twoRooms / import gymnasium", "import_world", "import_gymnasium", "<=", 1.3),
)


def vector_speed(env: gym.vector.VectorEnv[Any, Any, Any], steps: int) -> Callable[[], float]:
    """
    :param env: a vector environment with discrete actions
    :param steps: of all its environments, in each measurement
    :return: measures environment steps a second under random actions
    """
    assert isinstance(env.single_action_space, gym.spaces.Discrete)
    rng = np.random.default_rng(0)
    actions = cycle(rng.integers(env.single_action_space.n, size=(ACTION_SETS, env.num_envs)))
    env.reset(seed=0)

    def measure() -> float:
        begin = time.perf_counter()
        for action in islice(actions, steps):
            env.step(action)
        return steps * env.num_envs / (time.perf_counter() - begin)

    return measure


def scalar_speed(env: gym.Env[Any, Any], steps: int) -> Callable[[], float]:
    """
    :param env: an environment with discrete actions
    :param steps: in each measurement
    :return: measures steps a second under random actions, resets at the ends of episodes included
    """
    assert isinstance(env.action_space, gym.spaces.Discrete)
    actions = np.random.default_rng(0).integers(env.action_space.n, size=steps).tolist()
    env.reset(seed=0)

    def measure() -> float:
        begin = time.perf_counter()
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        return steps / (time.perf_counter() - begin)

    return measure


def copy_speed(observations: NDArray[np.uint8], copies: int) -> float:
    """
    :param observations: shape (N, H, W, 3)
    :param copies: how many to make, each a new array as those of a step are
    :return: observations copied a second
    """
    begin = time.perf_counter()
    for _ in range(copies):
        observations.copy()
    return copies * len(observations) / (time.perf_counter() - begin)


def in_fresh_process(code: str) -> str:
    """
    :param code: a program
    :return: what it prints
    """
    root = Path(gym_twoRooms.__file__).parents[1]  # where the current folder is, Python looks first: it is the same package
    return subprocess.run([sys.executable, "-c", code], cwd=root, check=True, stdout=subprocess.PIPE, text=True).stdout


def seconds_stated_by(code: str) -> float:
    """
    :param code: a program that prints the seconds which some part of it took
    :return: these, from a fresh process
    """
    return float(in_fresh_process(code))


def seconds_of_process(code: str) -> float:
    """
    :param code: a program
    :return: the seconds that its process takes, Python's own start included
    """
    begin = time.perf_counter()
    in_fresh_process(code)
    return time.perf_counter() - begin


def minigrid(num_envs: int) -> gym.vector.VectorEnv[Any, Any, Any]:
    """
    :param num_envs: how many
    :return: MiniGrid's room with a locked door, seen as the world is: from above, all of it, as an image
    """
    wrappers = importlib.import_module("minigrid.wrappers")  # it is not there on Python 3.10
    seen = [partial(wrappers.RGBImgObsWrapper, tile_size=TILE_SIZE), wrappers.ImgObsWrapper]
    return gym.make_vec(MINIGRID_ID, num_envs=num_envs, vectorization_mode="sync", wrappers=seen)


def contenders(config: WorldSpeedConfig) -> list[Contender]:
    """
    :param config: what to run
    :return: all that can be measured here, in the order in which each round does
    """
    n, few = config.num_envs, config.minigrid_envs
    world, world_few = gym.make_vec(WORLD_ID, num_envs=n), gym.make_vec(WORLD_ID, num_envs=few)
    cartpole = gym.make_vec("CartPole-v1", num_envs=n, vectorization_mode="vector_entry_point")
    pictures = world.reset(seed=0)[0]
    rate = "steps/s"
    found = [
        Contender("vector", f"{WORLD_ID}, vector, {n} worlds", rate, vector_speed(world, config.steps)),
        Contender("copy", "copy of these observations", "observations/s", partial(copy_speed, pictures, config.steps)),
        Contender("cartpole_vector", f"CartPole-v1, vector, {n} environments", rate, vector_speed(cartpole, config.steps)),
        Contender("vector_few", f"{WORLD_ID}, vector, {few} worlds", rate, vector_speed(world_few, config.steps)),
    ]
    if importlib.util.find_spec("minigrid") is not None:
        title = f"{MINIGRID_ID}, SyncVectorEnv of {few}, {TILE_SIZE} x {TILE_SIZE} pixels a cell"
        found.append(Contender("minigrid", title, rate, vector_speed(minigrid(few), config.minigrid_steps)))
    found += [
        Contender(name, f"{env_id}, as gym.make gives it", rate, scalar_speed(gym.make(env_id), config.scalar_steps))
        for name, env_id in (("scalar", WORLD_ID), ("cliff_walking", "CliffWalking-v1"))
    ]
    if config.large_layout in gym_twoRooms.NAMED_LAYOUTS:
        large = gym.make_vec(WORLD_ID, num_envs=n, layout=config.large_layout)
        n_states = gym_twoRooms.compile_layout(gym_twoRooms.Layout.named(config.large_layout)).n_states
        title = f'{WORLD_ID}, layout "{config.large_layout}" ({n_states:,} states), vector, {n} worlds'
        found.append(Contender("vector_large", title, rate, vector_speed(large, config.steps)))
    found += [
        Contender(name, title, "s", partial(seconds_stated_by, program))
        for name, title, program in (
            ("compile", "compile the default map, all imported", COMPILE),
            (
                "compile_with_imports",
                "import gym_twoRooms, compile the default map; with scipy's import",
                COMPILE_WITH_IMPORTS,
            ),
        )
    ]
    found += [
        Contender(name, f'python -c "import {module}"', "s", partial(seconds_of_process, f"import {module}"))
        for name, module in (("import_world", "gym_twoRooms"), ("import_gymnasium", "gymnasium"))
    ]
    return found


def run(config: WorldSpeedConfig) -> Path:
    """
    Measure, print, and write ``world.csv`` and ``config.json``.

    :param config: what to run
    :return: the folder
    """
    th.set_num_threads(1)  # nothing here computes with torch; but the record states its threads
    folder = run_folder.create(config.output, "world")
    entrants = contenders(config)
    names = [entrant.name for entrant in entrants]
    packages = (*run_folder.PACKAGES, *(["minigrid"] if "minigrid" in names else []))
    record = run_folder.write_config(folder, config, packages)
    print(", ".join([record["machine"]["processor"], *(f"{name} {version}" for name, version in record["versions"].items())]))
    if "minigrid" not in names:
        print("MiniGrid is not installed: left out")
    if "vector_large" not in names:
        print(f'no layout is named "{config.large_layout}": left out')

    measured = rounds.measure(entrants, config.rounds)
    rounds.write(folder / "world.csv", entrants, measured)
    rounds.show(entrants, FIGURES, measured)
    loads_pygame = in_fresh_process("import sys, gym_twoRooms; print('pygame' in sys.modules)").strip() == "True"
    print(f"import gym_twoRooms loads pygame: {'yes' if loads_pygame else 'no'}")
    print(f"written to {folder / 'world.csv'}")
    return folder
