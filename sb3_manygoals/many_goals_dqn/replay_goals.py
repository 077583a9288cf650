"""Goals that are the observations in a replay memory: where there are too many different ones to keep them all."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_manygoals.goals.buffer import GoalBuffer
from sb3_manygoals.many_goals_dqn.replay_buffer import ManyGoalsReplayBuffer

_MOST_FIRST = 100
"""Observations kept while there is no transition."""


class ReplayGoals(GoalBuffer):
    """
    In place of a :class:`~sb3_manygoals.goals.GoalBuffer` that keeps every different observation: the known goals are the next
    observations in the replay memory, each as often as it is there, and are forgotten with their transitions. Nothing is kept
    twice: they take no memory. So it is in section 4 of Veeriah et al. (2018), where games show too many pictures to keep.

    The id of an observation is a number made of its bytes, of 63 bits: equal observations have equal ids at all times, as "is
    this the goal?" needs, and different ones different ids, but for a chance of one in a million among four million
    observations. An id is no row of anything: rules that keep something of each goal in arrays have no meaning here. Goals
    are looked up by their ids among the transitions.

    While there are no transitions yet, the goals are the observations met last.

    :param observation_space: of the observations: Box, Discrete, MultiDiscrete or MultiBinary
    """

    def __init__(self, observation_space: spaces.Space[Any]) -> None:
        super().__init__(observation_space, 1)
        self.capacity = 0  # nothing can be counted by id
        self._replay: ManyGoalsReplayBuffer | None = None
        self._first: dict[int, NDArray[Any]] = {}

    def use(self, replay_buffer: ManyGoalsReplayBuffer) -> None:
        """:param replay_buffer: whose next observations are the goals from now on"""
        self._replay = replay_buffer

    def __len__(self) -> int:
        return self._n_transitions or len(self._first)

    def __getitem__(self, ids: NDArray[np.integer[Any]] | int | slice) -> NDArray[Any]:
        """
        :param ids: ids of known goals
        :return: their observations, shape ``(*ids.shape, *observation_space.shape)``
        :raises IndexError: if there is no such goal now, or they are asked for by a slice
        """
        if isinstance(ids, slice):
            raise IndexError("goals in a replay memory have no order: ask for them by their ids")
        wanted = np.asarray(ids)
        found = [self._find(number) for number in wanted.reshape(-1).tolist()]
        return np.array(found, dtype=self.dtype).reshape(*wanted.shape, *self.shape)

    @property
    def full(self) -> bool:
        """Never: new goals are always taken in."""
        return False

    @property
    def memory_to_come(self) -> dict[str, int]:
        """Nothing beside the replay memory."""
        return {}

    @property
    def observations(self) -> NDArray[Any]:
        """All goals, a copy of shape ``(len(self), *observation_space.shape)``."""
        if not self._n_transitions:
            return np.array(list(self._first.values()), dtype=self.dtype).reshape(-1, *self.shape)
        assert self._replay is not None
        rows: NDArray[Any] = self._replay.next_observations[: self._replay.size()]
        return rows.reshape(-1, *self.shape)

    def add(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        """
        :param observations: shape ``(n, *observation_space.shape)``, the dtype of the space
        :return: the id of each, shape ``(n,)`` int64; they are goals as soon as they are in the replay memory
        :raises ValueError: if shape or dtype differ from the space's
        """
        ids = self.ids(observations)
        if self._n_transitions:
            self._first.clear()
            return ids
        self._first.update(zip(ids.tolist(), np.array(observations), strict=True))
        while len(self._first) > _MOST_FIRST:
            del self._first[next(iter(self._first))]
        return ids

    def ids(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        """
        :param observations: shape ``(n, *observation_space.shape)``, the dtype of the space
        :return: the id of each, shape ``(n,)`` int64, whether it is a goal now or not
        """
        rows = np.ascontiguousarray(self.check(observations, "observations"))
        digests = b"".join(hashlib.blake2b(row.tobytes(), digest_size=8, key=self._salt).digest() for row in rows)
        return (np.frombuffer(digests, dtype="<u8") >> np.uint64(1)).astype(np.int64)

    def sample_ids(self, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """
        The next observations of transitions drawn uniformly, with replacement.

        :param n: how many, at least 1
        :return: ids, shape ``(n,)`` int64
        :raises ValueError: if there is no goal or ``n`` is not positive
        """
        drawn = super().sample_ids(n, rng)
        return self._ids_by_row[drawn]

    def sample_others(self, current_ids: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """See :meth:`~sb3_manygoals.goals.GoalBuffer.sample_others`; uniform over transitions."""
        known = self._ids_by_row
        chosen = np.empty(len(current_ids), dtype=np.int64)
        for row, current in enumerate(current_ids.tolist()):
            others = known[known != current]
            chosen[row] = rng.choice(others if len(others) else known)
        return chosen

    def is_held_out(self, observations: NDArray[Any]) -> NDArray[np.bool_]:
        """:return: of none of the observations, shape ``(n,)``"""
        return np.zeros(len(self.check(observations, "observations")), dtype=np.bool_)

    @property
    def rules(self) -> dict[str, Any]:
        """Of an empty buffer, in place of which a loaded model puts its own."""
        return {"capacity": 1, "held_out": []}

    def save(self, path: str | os.PathLike[str]) -> None:
        """
        :param path: not used
        :raises TypeError: always: the replay memory is to be saved instead
        """
        raise TypeError("these goals are in the replay memory: use save_replay_buffer")

    def get_checkpoint_state(self) -> dict[str, Any]:
        """:return: what is a goal while there are no transitions; the replay memory is saved by itself"""
        first = np.array(list(self._first.values()), dtype=self.dtype).reshape(-1, *self.shape)
        return {"capacity": 0, "shape": self.shape, "dtype": self.dtype.str, "first": first}

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        :param state: from :meth:`get_checkpoint_state`
        :raises ValueError: if it is of a buffer for other observations, or of one that keeps its goals itself
        """
        for name, value in (("capacity", 0), ("shape", self.shape), ("dtype", self.dtype.str)):
            stored = tuple(state[name]) if name == "shape" else state[name]
            if stored != value:
                raise ValueError(f"the state is of a goal buffer with {name}={stored!r}, not {value!r}")
        self._first = dict(zip(self.ids(state["first"]).tolist(), state["first"], strict=True))

    @property
    def _n_transitions(self) -> int:
        return 0 if self._replay is None else self._replay.size() * self._replay.n_envs

    @property
    def _ids_by_row(self) -> NDArray[np.int64]:
        if not self._n_transitions:
            return np.array(list(self._first), dtype=np.int64)
        assert self._replay is not None
        return self._replay.next_ids[: self._replay.size()].reshape(-1)

    def _find(self, number: int) -> NDArray[Any]:
        if not self._n_transitions:
            if number not in self._first:
                raise IndexError(f"there is no goal with the id {number}")
            return self._first[number]
        assert self._replay is not None
        rows = np.flatnonzero(self._ids_by_row == number)
        if len(rows) == 0:
            raise IndexError(f"there is no goal with the id {number} in the replay memory")
        found: NDArray[Any] = self._replay.next_observations[divmod(int(rows[0]), self._replay.n_envs)]
        return found
