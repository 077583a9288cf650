"""Small worlds in which every move can be followed by hand."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.env_util import make_vec_env


class Corridor(gym.Env[NDArray[Any], np.int64]):
    """
    Cells in a row, numbered from 0 to ``length`` - 1.

    Action 0 goes left, 1 goes right, 2 stays. The observation is a one-hot vector, or a picture of
    height 4. The reward is the number of the cell.

    :param length: number of cells
    :param image: whether the observation is a picture
    :param deadly: whether stepping off the right end terminates
    :param start: the cell in which episodes start; None: a random one
    """

    def __init__(
        self, length: int = 6, image: bool = False, deadly: bool = False, start: int | None = None
    ) -> None:
        self.length = length
        self.image = image
        self.deadly = deadly
        self.start = start
        shape = (4, length, 3) if image else (length,)
        self.observation_space = spaces.Box(0, 255 if image else 1, shape, np.uint8)
        self.action_space = spaces.Discrete(3)
        self.cell = 0

    def observation_of(self, cell: int) -> NDArray[np.uint8]:
        observation = np.zeros(self.observation_space.shape, np.uint8)  # type: ignore[arg-type]
        observation[(slice(None), cell) if self.image else cell] = 255 if self.image else 1
        return observation

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(self.length))
        self.cell = drawn if self.start is None else self.start
        self.cell = (options or {}).get("cell", self.cell)
        return self.observation_of(self.cell), {"cell": self.cell}

    def step(self, action: Any) -> Any:
        cell = self.cell + (-1, 1, 0)[int(action)]
        dead = self.deadly and cell == self.length
        self.cell = min(max(cell, 0), self.length - 1)
        return self.observation_of(self.cell), float(self.cell), dead, False, {"cell": self.cell}


class NumberedCorridor(Corridor):
    """
    A corridor with the number of the cell as observation.

    :param length: number of cells
    :param deadly: whether stepping off the right end terminates
    :param start: the cell in which episodes start; None: a random one
    """

    def __init__(self, length: int = 6, deadly: bool = False, start: int | None = None) -> None:
        super().__init__(length, deadly=deadly, start=start)
        self.observation_space = spaces.Discrete(length)  # type: ignore[assignment]

    def observation_of(self, cell: int) -> Any:
        return np.int64(cell)


class Dusty(Corridor):
    """
    A corridor with the number of the cell and a random number as observation, so that hardly any
    observation recurs.

    :param length: number of cells
    :param deadly: whether stepping off the right end terminates
    :param start: the cell in which episodes start; None: a random one
    """

    def __init__(self, length: int = 6, deadly: bool = False, start: int | None = None) -> None:
        super().__init__(length, deadly=deadly, start=start)
        low = np.array([0.0, -1.0], np.float32)
        high = np.array([length - 1, 1.0], np.float32)
        self.observation_space = spaces.Box(low, high, dtype=np.float32)

    def observation_of(self, cell: int) -> NDArray[Any]:
        return np.array([cell, self.np_random.uniform(-1.0, 1.0)], np.float32)


def cell_of(observation: NDArray[Any]) -> int:
    """Return the cell of an observation of a dusty corridor, as a key or as a goal."""
    return int(observation[0])


def pair_of(observation: NDArray[Any]) -> int:
    """Return which of two neighbouring cells an observation of a dusty corridor shows."""
    return int(observation[0]) // 2


class Paid(Corridor):
    """
    A corridor with rewards for arriving in some cells.

    :param rewards: rewards by the number of the cell
    :param ends: cells that end the episode
    :param cost: reward for arriving in other cells
    :param length: number of cells
    :param start: the cell in which episodes start
    """

    def __init__(
        self,
        rewards: dict[int, float],
        ends: tuple[int, ...],
        cost: float = 0.0,
        length: int = 9,
        start: int = 4,
    ):
        super().__init__(length, start=start)
        self.rewards = rewards
        self.ends = ends
        self.cost = cost

    def step(self, action: Any) -> Any:
        observation, _, _, truncated, info = super().step(action)
        reward = self.rewards.get(self.cell, self.cost)
        return observation, reward, self.cell in self.ends, truncated, info


def numbered_from_one(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """Return the same world with actions that are counted from 1."""
    actions = env.action_space
    assert isinstance(actions, spaces.Discrete)
    shifted = spaces.Discrete(int(actions.n), start=1)
    return gym.wrappers.TransformAction(env, lambda action: action - 1, shifted)


def cart_poles(n_envs: int = 2) -> Any:
    return make_vec_env("CartPole-v1", n_envs, seed=1)


class Always:
    """
    A policy that always takes the same action.

    :param action: the action
    """

    def __init__(self, action: int) -> None:
        self.action = action

    def predict(self, observation: Any, **_: Any) -> Any:
        seen = observation["observation"] if isinstance(observation, dict) else observation
        return np.full(len(seen), self.action), None
