"""Worlds whose states and goals are what the user says: keys, parts, tolerances, GoalEnvs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorObservationWrapper
from numpy.typing import NDArray
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.type_aliases import GymEnv

import gym_twoRooms  # noqa: F401 - registers its worlds
from benchmarks.goal_sets import RandomSets
from benchmarks.puzzles import (
    LayoutPictures,
    NewLayouts,
    RandomGoalBits,
    SlidingPuzzle,
    WiredBits,
)
from benchmarks.sensors import NearObservations, NoisyRoom, random_observations
from gym_twoRooms.goals import agent_cell, agent_cell_and_doors, agent_surroundings
from gym_twoRooms.mdp import TwoRoomsMDP
from sb3_manygoals import DiscreteActions, GymnasiumVecEnv, NoEnv, RepeatAction, Transitions
from sb3_manygoals.networks import MultiInputExtractor
from sb3_manygoals.validation import check_action_space

_PAPER_MAP = "TwoRoomsSwitch-v0"
_NOISE = 20
# Each force in a maze is held for so many steps.
_STEPS_OF_FORCE = 10
# The search for what a car can reach goes on from so many states of each cell.
_STATES_OF_CELL = 512
# Seven settings of DQN with HER were tried with 12 bits and 4,000 steps, and this is the best one.
_HER_FOR_BITS = {"train_freq": 4}
_MAZE_NAMES = {
    "maze-umaze": "PointMaze_UMaze-v3",
    "maze-medium": "PointMaze_Medium-v3",
    "maze-large": "PointMaze_Large-v3",
}


class Noisy(VectorObservationWrapper):
    """
    Pictures with uniform noise in every channel of every pixel.

    :param env: vector environment of pictures
    :param noise: greatest noise, of 255
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], noise: int = _NOISE) -> None:
        super().__init__(env)
        self.noise = noise
        self._rng = np.random.default_rng(0)

    def observations(self, observations: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """
        Add noise.

        :param observations: pictures, uint8
        """
        noise = self._rng.integers(-self.noise, self.noise + 1, observations.shape)
        noisy: NDArray[np.int64] = np.clip(observations.astype(np.int64) + noise, 0, 255)
        return noisy.astype(np.uint8)


class Clock(VectorObservationWrapper):
    """
    Pictures whose first pixel counts up, from 0 to 255 and again.

    :param env: vector environment of pictures
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        super().__init__(env)
        self._time = 0

    def observations(self, observations: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """
        Let the clock go on.

        :param observations: pictures, uint8
        """
        self._time = (self._time + 1) % 256
        seen = observations.copy()
        seen[:, 0, 0] = self._time
        return seen


def without_clock(observation: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """
    Return a picture without its first pixel.

    :param observation: picture, uint8, shape (height, width, 3)
    """
    return observation.reshape(-1)[3:]


class NearestColors:
    """
    The colors of a noisy picture, each as the number of the nearest color without noise.

    :param colors: the colors that occur, uint8, shape (n, 3)
    """

    def __init__(self, colors: NDArray[np.uint8]) -> None:
        self.colors = colors.astype(np.int64)

    def __call__(self, observation: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """
        Return the numbers of the nearest colors.

        :param observation: picture, uint8, shape (height, width, 3)
        :return: uint8, shape (height, width)
        """
        distances = np.abs(observation[:, :, None].astype(np.int64) - self.colors).sum(axis=3)
        nearest: NDArray[np.int64] = distances.argmin(axis=2)
        return nearest.astype(np.uint8)


def grid_cell(size: NDArray[np.float64], observation: NDArray[Any]) -> NDArray[np.int16]:
    """
    Return the cell of a grid in which an observation is.

    :param size: sides of a cell, in the units of the observation
    :param observation: numbers, the same shape
    """
    return np.floor(observation / size).astype(np.int16)


@dataclass(frozen=True)
class GoalWorld:
    """A world, what a state and a goal are in it, and how success is measured."""

    make: Callable[[], GymEnv]
    """Makes the environment to learn in."""
    steps: int
    """Environment steps of a training."""
    policy: str = "MlpPolicy"
    """The policy of ManyGoalsDQN."""
    goals: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the goal wrapper."""
    max_steps: int = 200
    """Steps within which a goal must be reached when success is measured."""
    goal_env: Callable[[], gym.Env[Any, Any]] | None = None
    """
    Makes a GoalEnv, of which episodes with its own goals are measured. None: all known goals are
    measured, each from a start of the world.
    """
    episodes: int = 500
    """Episodes of a GoalEnv that are measured."""
    continuous: Callable[[], gym.Env[Any, Any]] | None = None
    """Makes the same world as it is, with continuous actions and without repeated ones."""
    steps_of_action: int = 1
    """The number of steps for which ``make`` holds an action."""
    is_recorded: bool = False
    """Whether the agent learns from recorded random steps, without an environment."""
    to_reach: Callable[[], NDArray[Any]] | None = None
    """Returns the goals that are measured, shape (n, ...). None: those that the agent knows."""
    is_near: bool = False
    """Whether the GoalEnv has numbered goals, each of which is pursued once."""
    her: Mapping[str, Any] = field(default_factory=dict)
    """Settings of DQN with HER for this world, in place of those for all worlds."""
    kinds: tuple[str, ...] = ()
    """
    The kinds of goals whose success is reported apart. The GoalEnv sets one of them after another,
    by the number of the goal.
    """
    measure: Callable[[Any], NDArray[Any]] | None = None
    """
    Measures an agent: a number from 0 to 1 for each goal. None: whether each goal is reached.
    """


def _two_rooms(wrap: Callable[[Any], Any] | None = None, n_envs: int = 64) -> GymnasiumVecEnv:
    """Return worlds with the paper's map."""
    env: Any = gym.make_vec(_PAPER_MAP, num_envs=n_envs, autoreset_mode=AutoresetMode.DISABLED)
    return GymnasiumVecEnv(env if wrap is None else wrap(env))


def record(n_steps: int, seed: int, reset_every: int = 50) -> tuple[Transitions, NoEnv]:
    """
    Record random steps in 64 worlds with the paper's map.

    :param n_steps: number of steps, of all worlds together
    :param seed: seed of worlds and actions
    :param reset_every: steps of each world between resets
    :return: the transitions, and the spaces of the world
    """
    env = gym.make_vec(_PAPER_MAP, num_envs=64, autoreset_mode=AutoresetMode.DISABLED)
    n_actions = check_action_space(env.single_action_space)
    rng = np.random.default_rng(seed)
    observations, _ = env.reset(seed=seed)
    found = []
    for step in range(n_steps // env.num_envs):
        if step and step % reset_every == 0:
            observations, _ = env.reset()
        actions = rng.integers(n_actions, size=env.num_envs)
        after, *_ = env.step(actions)
        found.append((observations.copy(), actions, after.copy()))
        observations = after
    parts = [np.concatenate(each) for each in zip(*found, strict=True)]
    return Transitions(*parts), NoEnv(env.single_observation_space, env.single_action_space)


def _colors() -> NDArray[np.uint8]:
    """Return the colors of the paper's map."""
    mdp: TwoRoomsMDP = gym.make(_PAPER_MAP).unwrapped.mdp  # type: ignore[attr-defined]
    return np.unique(mdp.observations.reshape(-1, 3), axis=0)


def _continuous_maze(name: str) -> gym.Env[Any, Any]:
    """Return a maze as it is."""
    import gymnasium_robotics

    gym.register_envs(gymnasium_robotics)
    return gym.make(_MAZE_NAMES[name])


def _maze(name: str) -> gym.Env[Any, Any]:
    """Return a maze with nine forces, each of which is held for some steps."""
    return RepeatAction(DiscreteActions.grid(_continuous_maze(name), 3), _STEPS_OF_FORCE)


def _in_maze(observation: NDArray[np.float64]) -> NDArray[np.int16]:
    """Return the cell of place and velocity of a point in a maze: left, right or nearly still."""
    return grid_cell(np.array([0.5, 0.5, 4.0, 4.0]), observation + np.array([0, 0, 2.0, 2.0]))


def _in_car(observation: NDArray[np.float32]) -> NDArray[np.int16]:
    """Return the cell of a car, of 40 x 40 cells."""
    return grid_cell(np.array([1.8 / 40, 0.14 / 40]), observation)


def car_cells() -> NDArray[np.int16]:
    """
    Search for the cells that a car can reach.

    It is a search breadth first from where episodes begin. Of each cell, up to 512 of the places
    and velocities that were found in it are tried with every action.

    :return: the cells, shape (n, 2)
    """
    car: Any = gym.make("MountainCar-v0").unwrapped
    found: dict[bytes, int] = {}
    waiting = np.stack([np.linspace(-0.6, -0.4, 50), np.zeros(50)], axis=1)
    while len(waiting):
        after = []
        for action in (-1, 0, 1):
            velocity = waiting[:, 1] + action * car.force - np.cos(3 * waiting[:, 0]) * car.gravity
            velocity = np.clip(velocity, -car.max_speed, car.max_speed)
            place = np.clip(waiting[:, 0] + velocity, car.min_position, car.max_position)
            # The car stops at the left end.
            velocity[(place == car.min_position) & (velocity < 0)] = 0.0
            after.append(np.stack([place, velocity], axis=1))
        states = np.concatenate(after)
        is_new = np.zeros(len(states), np.bool_)
        for row, cell in enumerate(_in_car(states)):
            n_found = found.get(cell.tobytes(), 0)
            is_new[row] = n_found < _STATES_OF_CELL
            found[cell.tobytes()] = n_found + 1
        # At the flag an episode ends.
        waiting = states[is_new & (states[:, 0] < car.goal_position)]
    return np.stack([np.frombuffer(cell, np.int16) for cell in found])


def _in_room(observation: NDArray[np.float32]) -> NDArray[np.int16]:
    """Return the cell of a point in a room."""
    return grid_cell(np.array([0.05, 0.05]), observation)


def worlds() -> dict[str, Callable[[], GoalWorld]]:
    """Return a function for each name that makes the world."""

    def bits(n: int) -> GoalWorld:
        return GoalWorld(
            lambda: BitFlippingEnv(n_bits=n, continuous=False, max_steps=n),
            30_000,
            "MultiInputPolicy",
            {"goals_from": "achieved"},
            goal_env=lambda: RandomGoalBits(n),
        )

    def paper(steps: int, wrap: Any = None, **goals: Any) -> GoalWorld:
        return GoalWorld(lambda: _two_rooms(wrap), steps, "CnnPolicy", goals)

    def maze(name: str) -> GoalWorld:
        make = functools.partial(_maze, name)
        return GoalWorld(
            make,
            300_000 // _STEPS_OF_FORCE,
            "MultiInputPolicy",
            {"state_key": _in_maze},
            goal_env=make,
            continuous=functools.partial(_continuous_maze, name),
            steps_of_action=_STEPS_OF_FORCE,
            episodes=200,
        )

    def random_bits(n: int) -> GoalWorld:
        make = functools.partial(RandomGoalBits, n)
        return GoalWorld(make, 25_000, "MultiInputPolicy", goal_env=make, her=_HER_FOR_BITS)

    def wired_bits(n: int) -> GoalWorld:
        make = functools.partial(WiredBits, n)
        return GoalWorld(make, 25_000, "MultiInputPolicy", goal_env=make, her=_HER_FOR_BITS)

    def puzzle(side: int, walks: tuple[int, ...]) -> GoalWorld:
        make = functools.partial(SlidingPuzzle, side, walks)
        kinds = tuple(f"{walk}_moves" if walk else "anywhere" for walk in walks)
        return GoalWorld(
            make, 200_000, "MultiInputPolicy", goal_env=make, her=_HER_FOR_BITS, kinds=kinds
        )

    def layouts(name: str) -> GoalWorld:
        make = functools.partial(NewLayouts, name)
        return GoalWorld(make, 200_000, "MultiInputPolicy", goal_env=make, her=_HER_FOR_BITS)

    def pictures(name: str) -> GoalWorld:
        make = functools.partial(LayoutPictures, name)
        # SB3's own extractor takes no images as small as these.
        network = {"net_arch": [256, 256, 256], "features_extractor_class": MultiInputExtractor}
        her = {**_HER_FOR_BITS, "policy_kwargs": network}
        return GoalWorld(make, 200_000, "MultiInputPolicy", goal_env=make, her=her)

    def room(distance: float) -> GoalWorld:
        make = functools.partial(NoisyRoom, distance)
        return GoalWorld(make, 60_000, "MultiInputPolicy", goal_env=make)

    def room_of_cells(distance: float) -> GoalWorld:
        return replace(room(distance), goals={"state_key": _in_room})

    def sets() -> GoalWorld:
        drawn = RandomSets(seed=0)
        return GoalWorld(
            _two_rooms, 150_000, "CnnPolicy", drawn.goals, measure=drawn.shares_of_optimum
        )

    def car() -> GoalWorld:
        return GoalWorld(
            lambda: gym.make("MountainCar-v0"),
            200_000,
            "MlpPolicy",
            {"state_key": _in_car, "goal": _in_car},
            to_reach=car_cells,
        )

    def near(name: str) -> GoalWorld:
        goals = random_observations(name, 200, seed=1_000_000)
        return GoalWorld(
            lambda: gym.make(name),
            200_000,
            goal_env=lambda: NearObservations(gym.make(name), goals),
            episodes=len(goals),
            is_near=True,
        )

    return {
        "bits-8": lambda: bits(8),
        "bits-10": lambda: bits(10),
        "clock": lambda: paper(150_000, Clock, state_key=without_clock),
        "noise": lambda: paper(150_000, Noisy, state_key=NearestColors(_colors())),
        "recorded": lambda: GoalWorld(_two_rooms, 300_000, "CnnPolicy", is_recorded=True),
        "agent-cell": lambda: paper(20_000, goal=agent_cell),
        "agent-cell-keyed": lambda: paper(20_000, goal=agent_cell, state_key=agent_surroundings),
        "agent-cell-and-doors-keyed": lambda: paper(
            20_000, goal=agent_cell_and_doors, state_key=agent_surroundings
        ),
        "near-cell-keyed": lambda: paper(
            20_000, goal=agent_cell, reached=1.0, state_key=agent_surroundings
        ),
        "sets": sets,
        "maze-umaze": lambda: maze("maze-umaze"),
        "maze-medium": lambda: maze("maze-medium"),
        "maze-large": lambda: maze("maze-large"),
        "car": car,
        "near-pole": lambda: near("CartPole-v1"),
        "near-acrobot": lambda: near("Acrobot-v1"),
        "near-car": lambda: near("MountainCar-v0"),
        "near-lander": lambda: near("LunarLander-v3"),
        "room-.05": lambda: room(0.05),
        "room-.1": lambda: room(0.1),
        "room-.05-keyed": lambda: room_of_cells(0.05),
        "random-bits-15": lambda: random_bits(15),
        "random-bits-20": lambda: random_bits(20),
        "random-bits-30": lambda: random_bits(30),
        "random-bits-40": lambda: random_bits(40),
        "wired-bits-12": lambda: wired_bits(12),
        "wired-bits-20": lambda: wired_bits(20),
        "puzzle-8": lambda: puzzle(3, (5, 10, 20, 0)),
        "puzzle-15": lambda: puzzle(4, (5, 10, 20)),
        "layouts-four-rooms": lambda: layouts("MiniGrid-FourRooms-v0"),
        "layouts-two-rooms": lambda: layouts("MiniGrid-MultiRoom-N2-S4-v0"),
        "pictures-four-rooms": lambda: pictures("MiniGrid-FourRooms-v0"),
        "pictures-two-rooms": lambda: pictures("MiniGrid-MultiRoom-N2-S4-v0"),
    }
