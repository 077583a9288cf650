"""Observations as vectors of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_manygoals.packing import PackedSpace

NO_UNIT = -1
"""The unit of numbers that have none in common with others."""


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
        sizes = [int(np.prod(part.shape or ())) for part in parts]
        units = [
            place if np.issubdtype(part.dtype, np.integer) else NO_UNIT
            for place, part in enumerate(parts)
        ]
        self.units: NDArray[np.int64] = np.repeat(np.array(units, np.int64), sizes)
        """
        The unit of each number, shape ``(n_inputs,)``. Integers of one part of an observation, such
        as the pixels of a picture, have one unit. Floats may all have different ones: ``NO_UNIT``.
        """

    def __len__(self) -> int:
        return len(self.units)

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
        return observations.reshape(len(observations), len(self)).astype(np.float32)


def places_of_units(units: NDArray[np.integer[Any]]) -> list[NDArray[np.int64]]:
    """
    Return the places of the numbers of each unit.

    :param units: the unit of each number, shape ``(n_inputs,)``
    :return: for each unit but ``NO_UNIT``, the places of its numbers
    """
    return [np.flatnonzero(units == unit) for unit in np.unique(units[units != NO_UNIT])]
