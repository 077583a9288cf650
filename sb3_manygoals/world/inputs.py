"""Observations as vectors of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_manygoals.packing import PackedSpace


class Inputs:
    """
    Turns observations of a space into vectors of numbers, as they are, without any scale.

    :param observation_space: space of the observations: Box, Discrete, MultiDiscrete or MultiBinary
    """

    def __init__(self, observation_space: spaces.Space[Any]) -> None:
        self._space = observation_space
        parts = [observation_space]
        if isinstance(observation_space, PackedSpace):
            parts = list(observation_space.parts.values())
        kinds = [
            np.full(int(np.prod(part.shape or ())), np.issubdtype(part.dtype, np.integer))
            for part in parts
        ]
        self.is_integer: NDArray[np.bool_] = np.concatenate(kinds)
        """Which numbers are integers, shape ``(n_inputs,)``."""

    def __len__(self) -> int:
        return len(self.is_integer)

    def flat(self, observations: NDArray[Any]) -> NDArray[np.float32]:
        """
        Return observations as vectors of numbers.

        :param observations: shape ``(n, *observation_space.shape)``
        :return: shape ``(n, n_inputs)``
        """
        if isinstance(self._space, PackedSpace):
            parts = self._space.unpack(observations)
            rows = [part.reshape(len(part), -1).astype(np.float32) for part in parts.values()]
            return np.concatenate(rows, axis=1)
        return observations.reshape(len(observations), -1).astype(np.float32)
