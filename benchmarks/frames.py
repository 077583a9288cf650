"""A world of Atari's shapes without a game: how long an update takes does not depend on what the pictures show."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

N_ACTIONS = 18
"""All that an Atari joystick can do."""


class RandomFrames(gym.Env[NDArray[np.uint8], np.int64]):
    """Four stacked frames of 84 x 84 random pixels, new ones at each step; no reward, no end."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 255, (4, 84, 84), np.uint8)
        self.action_space = spaces.Discrete(N_ACTIONS)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """
        :param seed: of the pixels
        :param options: not used
        :return: frames, shape (4, 84, 84) uint8, and an empty dict
        """
        super().reset(seed=seed)
        return self._frames(), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """
        :param action: changes nothing
        :return: frames, no reward, no end, and an empty dict
        """
        return self._frames(), 0.0, False, False, {}

    def _frames(self) -> NDArray[np.uint8]:
        return self.np_random.integers(256, size=(4, 84, 84), dtype=np.uint8)
