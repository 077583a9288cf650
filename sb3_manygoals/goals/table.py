"""Distinct observations, each kept once under a number."""

import math
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

_FEW = 8  # observations that are looked up one by one

UNKNOWN = -1
"""The number of an observation that is not in the table, and the id of one that is no known goal."""


class ObservationTable:
    """
    Distinct observations in one array, numbered in the order in which they came. Two are the same if their bytes are. They
    are found by a hash and compared with the bytes kept; where two share a hash, the second is found by its bytes.

    :param capacity: the greatest number of observations; memory is touched only as they come in
    """

    def __init__(self, observation_space: spaces.Space[Any], capacity: int) -> None:
        self.observation_space, self.capacity = observation_space, capacity
        self._rows: NDArray[Any] = np.empty(
            (capacity, *(observation_space.shape or ())), dtype=observation_space.dtype
        )
        self._bytes = _as_bytes(self._rows)
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

    def ids(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        """The numbers of observations, ``UNKNOWN`` for those that are not in the table, shape ``(n,)``."""
        return self._look_up(observations, None, False)

    def add(
        self, observations: NDArray[Any], guess: NDArray[np.integer[Any]] | None = None
    ) -> NDArray[np.int64]:
        """As :meth:`ids`, taking in what is new while there is room. To guess their numbers, shape ``(n,)``, saves time."""
        return self._look_up(observations, guess, True)

    def _look_up(
        self, observations: NDArray[Any], guess: NDArray[np.integer[Any]] | None, take_in: bool
    ) -> NDArray[np.int64]:
        array = np.ascontiguousarray(observations, dtype=self._rows.dtype)
        if len(array) <= _FEW:
            return np.array([self._number(row.tobytes(), take_in) for row in array], dtype=np.int64)
        rows = _as_bytes(array)
        numbers = np.full(len(rows), UNKNOWN) if guess is None else self._right(guess, rows)
        left = np.flatnonzero(numbers == UNKNOWN)
        rows = rows[left]
        keys = map(hash, rows.view(f"V{rows.shape[1]}")[:, 0].tolist())
        numbers[left] = self._right(
            np.array([self._numbers.get(key, UNKNOWN) for key in keys], dtype=np.int64), rows
        )
        for row in np.flatnonzero(numbers == UNKNOWN).tolist():
            numbers[row] = self._number(array[row].tobytes(), take_in)
        return numbers

    def _right(self, guess: NDArray[np.integer[Any]], rows: NDArray[np.uint8]) -> NDArray[np.int64]:
        """The numbers guessed, ``UNKNOWN`` where they are wrong."""
        possible = (guess >= 0) & (guess < len(self))
        others = (self._bytes.take(np.where(possible, guess, 0), axis=0) != rows).any(axis=1)
        return np.where(possible & ~others, guess, UNKNOWN)

    def _number(self, whole: bytes, take_in: bool) -> int:
        """Of one observation, which is taken in if there is room."""
        key: int | bytes = hash(whole)
        number = self._numbers.get(key, UNKNOWN)
        if number != UNKNOWN and self._rows[number].tobytes() != whole:  # another one has this hash
            key, number = whole, self._numbers.get(whole, UNKNOWN)
        if number == UNKNOWN and take_in and len(self) < self.capacity:
            self._numbers[key] = number = len(self)
            self._bytes[number] = np.frombuffer(whole, dtype=np.uint8)
        return number

    def __reduce__(self) -> tuple[Any, ...]:
        return _table, (
            self.observation_space,
            self.capacity,
            self.observations,
        )  # hashes differ between processes


def _table(
    observation_space: spaces.Space[Any], capacity: int, observations: NDArray[Any]
) -> ObservationTable:
    table = ObservationTable(observation_space, capacity)
    table.add(observations)
    return table


def _as_bytes(rows: NDArray[Any]) -> NDArray[np.uint8]:
    """Shape (n, bytes of an observation), of a contiguous array of n rows."""
    return rows.reshape(len(rows), math.prod(rows.shape[1:])).view(np.uint8)
