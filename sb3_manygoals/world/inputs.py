"""Observations as vectors of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_manygoals.packing import PackedSpace

NO_UNIT = -1
"""The unit of numbers that have none in common with others."""

# The mean of a number is found by at most so many observations, and so many numbers.
_OBSERVATIONS_TO_FIT = 5_000
_NUMBERS_TO_FIT = 2**25
# It is subtracted if it is more than so many deviations. Otherwise float32 is exact enough.
_FAR = 1e3
# If it is more than so many, the number is constant but for errors of rounding.
_CONSTANT = 1e10


class Inputs:
    """
    Turns observations of a space into vectors of numbers, as they are, without any scale.

    Only from numbers that float32 does not hold, such as seconds since 1970 in float64, their mean
    may be subtracted, see :meth:`fit_offset`.

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
        is_wide = [
            np.dtype(part.dtype).itemsize >= 4 and part.dtype != np.float32 for part in parts
        ]
        self._is_wide: NDArray[np.bool_] = np.repeat(np.array(is_wide, np.bool_), sizes)
        self.offset: NDArray[np.float64] = np.zeros(len(self.units))
        """What is subtracted from each number, shape ``(n_inputs,)``. 0 for most."""

    def __len__(self) -> int:
        return len(self.units)

    def fit_offset(self, observations: NDArray[Any]) -> None:
        """
        Subtract from now on the means of numbers that would lose too much in float32.

        :param observations: shape ``(n, *observation_space.shape)``
        """
        self.offset = np.zeros(len(self.units))
        if not self._is_wide.any():
            return
        n = min(len(observations), _OBSERVATIONS_TO_FIT, max(1, _NUMBERS_TO_FIT // len(self)))
        places = np.linspace(0, len(observations) - 1, n, dtype=np.int64)
        first = 0
        for part in self._parts(observations[places]):
            here = slice(first, first + part.shape[1])
            first = here.stop
            if self._is_wide[here].any():
                means = part.mean(axis=0, dtype=np.float64)
                sizes = np.abs(means)
                deviations = part.std(axis=0, dtype=np.float64)
                is_far = (sizes > _FAR * deviations) & (sizes < _CONSTANT * deviations)
                self.offset[here] = np.where(is_far, means, 0.0)

    def flat(self, observations: NDArray[Any]) -> NDArray[np.float32]:
        """
        Return observations as vectors of numbers.

        :param observations: shape ``(n, *observation_space.shape)``
        :return: shape ``(n, n_inputs)``
        """
        rows = []
        first = 0
        for part in self._parts(observations):
            offset = self.offset[first : first + part.shape[1]]
            first += part.shape[1]
            moved = part - offset if offset.any() else part
            rows.append(moved.astype(np.float32))
        return rows[0] if len(rows) == 1 else np.concatenate(rows, axis=1)

    def _parts(self, observations: NDArray[Any]) -> list[NDArray[Any]]:
        """Return the parts of n observations, each of shape ``(n, numbers of the part)``."""
        if isinstance(self._space, PackedSpace):
            parts = self._space.unpack(observations)
            return [part.reshape(len(part), -1) for part in parts.values()]
        return [observations.reshape(len(observations), len(self))]


def places_of_units(units: NDArray[np.integer[Any]]) -> list[NDArray[np.int64]]:
    """
    Return the places of the numbers of each unit.

    :param units: the unit of each number, shape ``(n_inputs,)``
    :return: for each unit but ``NO_UNIT``, the places of its numbers
    """
    return [np.flatnonzero(units == unit) for unit in np.unique(units[units != NO_UNIT])]
