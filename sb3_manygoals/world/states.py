"""Which observations are one state."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

# Up to so many observations, a loop over single ones is faster than NumPy on all of them.
_MOST_ONE_BY_ONE = 8

UNKNOWN = -1
"""The id of an observation that is no known state, and of one that is no known goal."""


class ExactStates:
    """
    States by the bytes of their observations: two observations are one state if and only if their
    bytes are equal. The id of a state is its place in the order in which states were first met.

    States are found by a hash, and compared with the bytes that are kept. Where two states share a
    hash, the second one is found by its bytes.

    :param observation_space: space of the observations: Box, Discrete, MultiDiscrete or MultiBinary
    :param capacity: greatest number of states. Memory is used only as states come in
    """

    is_exact: ClassVar[bool] = True
    """Whether a state has one observation."""

    @property
    def is_known(self) -> bool:
        """Whether observations can be told apart. Learned states cannot at first."""
        return True

    def __init__(self, observation_space: spaces.Space[Any], capacity: int) -> None:
        self.observation_space = observation_space
        self.n_added = 0
        """Observations that were given to :meth:`observe`."""
        self.n_recurred = 0
        """How many of them were met before, or by another environment in the same step."""
        self.n_shared = 0
        """How many of these were only met by another environment in the same step."""
        self._make_room(capacity)

    def _make_room(self, capacity: int) -> None:
        """Allocate memory for so many states, and forget all that are known."""
        self.capacity = capacity
        shape = (capacity, *(self.observation_space.shape or ()))
        self._observations: NDArray[Any] = np.empty(shape, dtype=self.observation_space.dtype)
        self._bytes = _as_bytes(self._observations)
        self._id_of_key: dict[int | bytes, int] = {}

    def __len__(self) -> int:
        return len(self._id_of_key)

    def __getitem__(self, ids: NDArray[np.integer[Any]] | int | slice) -> NDArray[Any]:
        """
        Return the observations of states.

        :param ids: ids of states, of any shape. ``UNKNOWN`` gives any observation
        :return: shape ``(*ids.shape, *observation_space.shape)``
        :raises IndexError: if there is no such state
        """
        return self.observations[ids]

    @property
    def observations(self) -> NDArray[Any]:
        """The observations of all states in the order of their ids, as a read-only view."""
        view = self._observations[: len(self)]
        view.flags.writeable = False
        return view

    def sample(self, ids: NDArray[np.integer[Any]], rng: np.random.Generator) -> NDArray[Any]:
        """
        Return an observation of each of n states. If a state has several, one of them is drawn.

        :param ids: ids of states, int64, shape ``(n,)``. ``UNKNOWN`` gives any observation
        :param rng: random generator
        :return: shape ``(n, *observation_space.shape)``
        """
        return self[ids]

    def ids(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        """
        Find the states of observations.

        :param observations: shape ``(n, *observation_space.shape)``, the dtype of the space
        :return: their ids, shape ``(n,)``. ``UNKNOWN`` for those that are no known state
        """
        return self._look_up(observations, take_in=False)

    def add(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        """
        Find the states of observations, and take in new ones while there is room.

        :param observations: shape ``(n, *observation_space.shape)``, the dtype of the space
        :return: their ids, shape ``(n,)``. ``UNKNOWN`` for those for which there was no room
        """
        return self._look_up(observations, take_in=True)

    def observe(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        """
        Do as :meth:`add` for observations that environments show, and count how many of them recur.
        Observations for which there was no room count as new ones.

        :param observations: shape ``(n, *observation_space.shape)``, the dtype of the space
        :return: their ids, shape ``(n,)``. ``UNKNOWN`` for those for which there was no room
        """
        n_before = len(self)
        ids = self.add(observations)
        n_with_room = int(np.count_nonzero(ids != UNKNOWN))
        n_new = len(self) - n_before
        self.n_added += len(ids)
        self.n_recurred += n_with_room - n_new
        self.n_shared += int(np.count_nonzero(ids >= n_before)) - n_new
        return ids

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another state."""
        return len(self) >= self.capacity

    def _look_up(self, observations: NDArray[Any], take_in: bool) -> NDArray[np.int64]:
        """Return the ids of observations. Those that are new get one if they are to be taken in."""
        array = np.ascontiguousarray(observations, dtype=self._observations.dtype)
        if len(array) <= _MOST_ONE_BY_ONE:
            one_by_one = [self._id_of(row.tobytes(), take_in) for row in array]
            return np.array(one_by_one, dtype=np.int64)
        rows = _as_bytes(array)
        keys = map(hash, rows.view(f"V{rows.shape[1]}")[:, 0].tolist())
        found = [self._id_of_key.get(key, UNKNOWN) for key in keys]
        ids = self._confirmed(np.array(found, dtype=np.int64), rows)
        for row in np.flatnonzero(ids == UNKNOWN).tolist():
            ids[row] = self._id_of(array[row].tobytes(), take_in)
        return ids

    def _confirmed(self, ids: NDArray[np.int64], rows: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Return the ids that were found by hash, ``UNKNOWN`` where the bytes kept are others."""
        known = ids >= 0
        differs = (self._bytes.take(np.where(known, ids, 0), axis=0) != rows).any(axis=1)
        return np.where(known & ~differs, ids, UNKNOWN)

    def _id_of(self, content: bytes, take_in: bool) -> int:
        """Return the id of one observation. A new one gets an id if it is to be taken in."""
        key: int | bytes = hash(content)
        state_id = self._id_of_key.get(key, UNKNOWN)
        if state_id != UNKNOWN and self._observations[state_id].tobytes() != content:
            # Another state has this hash, so this one is kept by its bytes.
            key = content
            state_id = self._id_of_key.get(content, UNKNOWN)
        if state_id == UNKNOWN and take_in and len(self) < self.capacity:
            state_id = len(self)
            self._bytes[state_id] = np.frombuffer(content, dtype=np.uint8)
            self._id_of_key[key] = state_id
        return state_id

    def get_checkpoint_state(self) -> dict[str, Any]:
        """
        Return all that is known, for :meth:`set_checkpoint_state`.

        :return: a dictionary of plain data and copies of arrays
        """
        return {
            "capacity": self.capacity,
            "observations": self.observations.copy(),
            "n_added": self.n_added,
            "n_recurred": self.n_recurred,
            "n_shared": self.n_shared,
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Replace all that is known, in place, so that it holds for all who use these states.

        :param state: what :meth:`get_checkpoint_state` returned, of states of the same space
        :raises ValueError: if its observations are not distinct, or more than its capacity. Then
            nothing has changed
        """
        observations = state["observations"]
        restored = ExactStates(self.observation_space, int(state["capacity"]))
        restored.add(observations)
        if len(restored) != len(observations):
            raise ValueError(
                f"the file has {len(observations)} states, {len(restored)} of them distinct, "
                f"of at most {restored.capacity}"
            )
        self.capacity = restored.capacity
        self._observations = restored._observations
        self._bytes = restored._bytes
        self._id_of_key = restored._id_of_key
        self.n_added = int(state["n_added"])
        self.n_recurred = int(state["n_recurred"])
        # Files of earlier versions do not have it.
        self.n_shared = int(state.get("n_shared", 0))

    def __getstate__(self) -> dict[str, Any]:
        # Hashes differ between processes, so they are computed anew from the observations.
        return {"observation_space": self.observation_space, **self.get_checkpoint_state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.observation_space = state["observation_space"]
        self.set_checkpoint_state(state)


def _as_bytes(rows: NDArray[Any]) -> NDArray[np.uint8]:
    """Return a contiguous array of n rows as bytes, shape (n, bytes of a row)."""
    return rows.reshape(len(rows), math.prod(rows.shape[1:])).view(np.uint8)
