"""Small GoalEnvs and worlds with Dict observations, in which every move can be followed by hand."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

TOLERANCE = 0.25
"""A goal on a track is reached at no greater distance."""
LEFT, RIGHT, STAY = range(3)


def near(achieved: Any, desired: Any) -> Any:
    """
    Return whether places on a track are near enough to goals.

    :param achieved: shape ``(*batch, 1)``
    :param desired: the same shape
    :return: shape ``batch``
    """
    return np.abs(achieved - desired)[..., 0] <= TOLERANCE


class Track(gym.Env[Any, Any]):
    """
    A GoalEnv: cells in a row, and a goal near one of them, at which the episode ends.

    Action 0 goes left, 1 goes right, 2 stays. What is observed is the cell and its double. The
    options ``"cell"`` and ``"own"`` of a reset set the start and the environment's own goal. It has
    neither ``compute_reward`` nor ``compute_terminated``.

    :param length: number of cells
    :param trap: a cell in which the episode ends, without success
    :param ends: whether the episode ends at the goal
    :param offset: how far the goals are from the cells
    """

    def __init__(
        self, length: int = 5, trap: int | None = None, ends: bool = True, offset: float = 0.125
    ) -> None:
        self.length = length
        self.trap = trap
        self.ends = ends
        self.offset = offset
        place = spaces.Box(-1.0, length, (1,), np.float64)
        self.observation_space = spaces.Dict(
            {
                "observation": spaces.Box(0.0, 2.0 * length, (2,), np.float64),
                "achieved_goal": place,
                "desired_goal": place,
            }
        )
        self.action_space = spaces.Discrete(3)
        self.cell = 0
        # One array, which moves, as in environments that are not careful.
        self.own_goal = np.zeros(1)

    def observation(self) -> Any:
        return {
            "observation": np.array([self.cell, 2.0 * self.cell]),
            "achieved_goal": np.array([float(self.cell)]),
            "desired_goal": self.own_goal,
        }

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        cell, goal = self.np_random.integers(self.length, size=2).tolist()
        options = options or {}
        self.cell = options.get("cell", cell)
        self.own_goal[:] = options.get("own", goal + self.offset)
        return self.observation(), {}

    def step(self, action: Any) -> Any:
        self.cell = min(max(self.cell + (-1, 1, 0)[int(action)], 0), self.length - 1)
        is_there = bool(near(np.array([float(self.cell)]), self.own_goal))
        ended = (self.ends and is_there) or self.cell == self.trap
        return self.observation(), float(is_there) - 1.0, ended, False, {"is_success": is_there}


class Sparse(Track):
    """A track with rewards as in Gymnasium-Robotics' Fetch: 0 at the goal, else -1."""

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return near(achieved, desired).astype(np.float32) - 1.0


class Maze(Track):
    """A track as Gymnasium-Robotics' mazes with ``continuing_task`` are: 1 at the goal, else 0."""

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return near(achieved, desired).astype(np.float64)

    def compute_terminated(self, achieved: Any, desired: Any, info: Any) -> bool:
        return False


class Singles(Track):
    """A track with rewards of single goals only: it sums over all axes."""

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return -float(np.linalg.norm(achieved - desired) > TOLERANCE)


class Raises(Track):
    """A track that raises an error for batches of goals."""

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return 0.0 if abs(achieved - desired) <= TOLERANCE else -1.0


class Terminates(Track):
    """A track that says only by ``compute_terminated`` which goals are reached."""

    def compute_terminated(self, achieved: Any, desired: Any, info: Any) -> Any:
        return near(achieved, desired)


class Dense(Track):
    """A track with dense rewards."""

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return -np.linalg.norm(achieved - desired, axis=-1)


class DenseTerminates(Dense, Terminates):
    """A track with dense rewards that says by ``compute_terminated`` which goals are reached."""


class Clipped(Track):
    """A track with dense rewards that are as low as they can be from some distance on."""

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return -np.minimum(np.linalg.norm(achieved - desired, axis=-1), TOLERANCE)


class ClippedTerminates(Clipped, Terminates):
    """Such a track that says by ``compute_terminated`` which goals are reached."""


class Constant(Track):
    """A track whose rewards say nothing."""

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return np.zeros(np.shape(achieved)[:-1])


class Broken(Track):
    """A track whose rewards need what only its own steps give."""

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return info["reward"]


class Room(gym.Env[Any, Any]):
    """
    A Dict world: a wheel with four directions and a lamp on one of some places.

    Action 0 turns the wheel, 1 moves the lamp to the next place. The picture shows the lamp.

    :param n_places: number of places
    :param side: height and width of the picture, in pixels
    :param clock: whether there is a part that counts steps
    """

    def __init__(self, n_places: int = 3, side: int = 7, clock: bool = False) -> None:
        self.n_places = n_places
        self.side = side
        parts: dict[str, spaces.Space[Any]] = {
            "picture": spaces.Box(0, 255, (side, side, 3), np.uint8),
            "wheel": spaces.Discrete(4),
        }
        if clock:
            parts["clock"] = spaces.Box(0.0, np.inf, (1,), np.float32)
        self.observation_space = spaces.Dict(parts)
        self.action_space = spaces.Discrete(2)
        self.place = 0
        self.wheel = 0
        self.time = 0

    def observation_of(self, place: int, wheel: int, time: int = 0) -> dict[str, Any]:
        picture = np.zeros((self.side, self.side, 3), np.uint8)
        picture[place, place] = 255
        found = {"picture": picture, "wheel": np.int64(wheel)}
        if "clock" in self.observation_space.spaces:  # type: ignore[attr-defined]
            found["clock"] = np.array([time], np.float32)
        return found

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        self.place = int(self.np_random.integers(self.n_places))
        self.wheel = int(self.np_random.integers(4))
        return self.observation_of(self.place, self.wheel, self.time), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        if action == 0:
            self.wheel = (self.wheel + 1) % 4
        else:
            self.place = (self.place + 1) % self.n_places
        reward = float(self.place == 0 and self.wheel == 0)
        return self.observation_of(self.place, self.wheel, self.time), reward, False, False, {}
