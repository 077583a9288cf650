"""Distinct observations, each kept once under a number."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

UNKNOWN = -1
"""The number of an observation that is not in the table, and the id of one that is no known goal."""


class ObservationTable:
    """
    Distinct observations in one array, numbered in the order in which they came. Two are the same if their bytes are.

    They are found by a hash of 64 bits and compared with the bytes kept; where two share a hash, the second is found by its
    bytes.

    :param observation_space: a space whose elements are single arrays
    :param capacity: the greatest number of observations; memory is touched only as they come in
    """

    def __init__(self, observation_space: spaces.Space[Any], capacity: int) -> None:
        assert observation_space.shape is not None
        self.observation_space, self.capacity = observation_space, capacity
        self._rows: NDArray[Any] = np.empty((capacity, *observation_space.shape), dtype=observation_space.dtype)
        self._bytes = _as_bytes(self._rows, observation_space)
        self._numbers: dict[int | bytes, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, numbers: NDArray[np.integer[Any]] | int | slice) -> NDArray[Any]:
        """:return: the observations of these numbers; an IndexError if there are none, but UNKNOWN gives any"""
        return self.observations[numbers]

    @property
    def observations(self) -> NDArray[Any]:
        """All in order of their numbers, a read-only view."""
        view = self._rows[: len(self)]
        view.flags.writeable = False
        return view

    def ids(self, observations: NDArray[Any], guess: NDArray[np.integer[Any]] | None = None) -> NDArray[np.int64]:
        """
        :param observations: shape ``(n, *observation_space.shape)``, the dtype of the space
        :param guess: the numbers that they are likely to have, which saves time, shape ``(n,)``
        :return: their numbers, ``UNKNOWN`` for those that are not in the table, shape ``(n,)``
        """
        return self._find(_as_bytes(observations, self.observation_space), guess)[0]

    def add(self, observations: NDArray[Any], guess: NDArray[np.integer[Any]] | None = None) -> NDArray[np.int64]:
        """As :meth:`ids`, taking in those that are new while there is room."""
        rows = _as_bytes(observations, self.observation_space)
        numbers, left, keys = self._find(rows, guess)
        for place in np.flatnonzero(numbers[left] == UNKNOWN).tolist():
            row = left[place]
            numbers[row] = self._find(rows[row : row + 1])[0][0]  # it may have come in this batch
            if numbers[row] == UNKNOWN and len(self) < self.capacity:
                numbers[row] = number = len(self)
                self._bytes[number] = rows[row]
                self._numbers[rows[row].tobytes() if keys[place] in self._numbers else keys[place]] = number
        return numbers

    def _find(
        self, rows: NDArray[np.uint8], guess: NDArray[np.integer[Any]] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], list[int | bytes]]:
        """Numbers of observations, which were not guessed, and the keys of these."""
        numbers = np.full(len(rows), UNKNOWN)
        if guess is None:
            left = np.arange(len(rows))
        else:
            known = (guess >= 0) & (guess < len(self))
            known[known] = (self._bytes[guess[known]] == rows[known]).all(axis=1)
            numbers[known] = guess[known]
            left = np.flatnonzero(~known)
            rows = rows[left]
        whole = rows.view(f"V{rows.shape[1]}")[:, 0].tolist()
        keys: list[int | bytes] = list(map(hash, whole))
        found = np.array([self._numbers.get(key, UNKNOWN) for key in keys], dtype=np.int64)
        taken = np.flatnonzero(found != UNKNOWN)
        for row in taken[(self._bytes[found[taken]] != rows[taken]).any(axis=1)].tolist():  # another one has this hash
            found[row] = self._numbers.get(whole[row], UNKNOWN)
        numbers[left] = found
        return numbers, left, keys

    def __reduce__(self) -> tuple[Any, ...]:
        return _table, (self.observation_space, self.capacity, self.observations)  # hashes differ between processes


def _table(observation_space: spaces.Space[Any], capacity: int, observations: NDArray[Any]) -> ObservationTable:
    table = ObservationTable(observation_space, capacity)
    table.add(observations)
    return table


def _as_bytes(observations: NDArray[Any], observation_space: spaces.Space[Any]) -> NDArray[np.uint8]:
    """Shape (n, bytes of an observation)."""
    assert observation_space.shape is not None
    rows = np.ascontiguousarray(observations, dtype=observation_space.dtype)
    return rows.reshape(len(rows), math.prod(observation_space.shape)).view(np.uint8)
