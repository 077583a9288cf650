"""Small worlds with one rare reward, as pictures: TwoRoomsSwitch with a state to reach, and MiniGrid."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

import gym_twoRooms  # noqa: F401

TILE = 4
"""Pixels a side of a cell of MiniGrid's pictures: as many as pixel control has in one of its own."""


class FixedGoal(gym.Wrapper[NDArray[np.uint8], np.int64, NDArray[np.uint8], np.int64]):
    """
    TwoRoomsSwitch with one observation that is worth 1 and ends the episode. Episodes begin in states drawn uniformly from
    all others in which the blocks stand as they do at the goal: with a block elsewhere it is out of reach for all that A2C
    finds out in minutes.

    :param env: a TwoRoomsSwitch world
    :param state: number of the state that looks like the goal
    :raises ValueError: if there is no such state
    """

    def __init__(self, env: gym.Env[NDArray[np.uint8], np.int64], state: int) -> None:
        super().__init__(env)
        world: Any = env.unwrapped
        self.goal: NDArray[np.uint8] = world.observation_of(state)
        alike = (world.mdp.blocks == world.mdp.blocks[state]).all(axis=1)
        self.starts = np.setdiff1d(np.flatnonzero(alike), [state])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """As the environment's, but for where it begins if no state is given."""
        if seed is not None:
            self.env.reset(seed=seed)
        return self.env.reset(options=options or {"state": int(self.np_random.choice(self.starts))})

    def step(self, action: np.int64) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """As the environment's, but for reward and end."""
        observation, _, _, truncated, info = self.env.step(action)
        reached = np.array_equal(observation, self.goal)
        return observation, float(reached), reached, truncated, info


class SquarePicture(gym.ObservationWrapper[NDArray[np.uint8], np.int64, NDArray[np.uint8]]):
    """
    Pictures made square by black pixels at the right and below, so that pixel control, which looks at a square, sees all.

    :param env: whose observations are pictures, (H, W, C) uint8
    """

    def __init__(self, env: gym.Env[NDArray[np.uint8], np.int64]) -> None:
        super().__init__(env)
        assert env.observation_space.shape is not None
        height, width, channels = env.observation_space.shape
        side = max(height, width)
        self.margins = ((0, side - height), (0, side - width), (0, 0))
        self.observation_space = spaces.Box(0, 255, (side, side, channels), np.uint8)

    def observation(self, observation: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """
        :param observation: (H, W, C) uint8
        :return: (max(H, W), max(H, W), C) uint8
        """
        return np.pad(observation, self.margins)


def two_rooms(game: str, goal: int, max_episode_steps: int) -> gym.Env[Any, Any]:
    """
    :param game: id of a TwoRoomsSwitch world
    :param goal: number of the state to reach
    :param max_episode_steps: after which an episode is over
    :return: a world with the reward 1 where that state is reached, see :class:`FixedGoal`, in square pictures
    :raises ValueError: if there is no such state
    """
    env = gym.make(game)
    return gym.wrappers.TimeLimit(SquarePicture(FixedGoal(env, goal)), max_episode_steps)


def minigrid(game: str, max_episode_steps: int) -> gym.Env[Any, Any]:
    """
    :param game: id of a MiniGrid world
    :param max_episode_steps: after which an episode is over, by which MiniGrid's reward depends on steps, too
    :return: the world, seen whole, in pictures of 4 x 4 pixels a cell
    :raises ImportError: if minigrid is not installed
    """
    from minigrid.wrappers import ImgObsWrapper, RGBImgObsWrapper  # here, as the command line works without it

    # Without what the agent would see if it did not see all, which takes more time than all else to find out.
    env = gym.make(game, max_steps=max_episode_steps, highlight=False, agent_view_size=3)
    pictures: gym.Env[Any, Any] = ImgObsWrapper(RGBImgObsWrapper(env, tile_size=TILE))  # type: ignore[no-untyped-call]
    return pictures
