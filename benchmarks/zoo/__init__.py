"""ManyGoalsDQN on the command line of rl_zoo3, which the extra ``zoo`` brings."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray


class ChannelsFirst(gym.ObservationWrapper[NDArray[np.uint8], Any, NDArray[np.uint8]]):
    """
    Images with channels first.

    The zoo transposes other images itself, around the goal wrapper: goals would not follow.

    :param env: an environment of images with channels last
    """

    def __init__(self, env: gym.Env[NDArray[np.uint8], Any]) -> None:
        super().__init__(env)
        height, width, channels = env.observation_space.shape or ()
        self.observation_space = spaces.Box(0, 255, (channels, height, width), np.uint8)

    def observation(self, observation: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """
        Transpose an image.

        :param observation: shape (height, width, channels), uint8
        :return: shape (channels, height, width), uint8
        """
        return observation.transpose(2, 0, 1)
