"""The world as a replay memory knows it: where each action tried in each state has led to, and how often."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from scipy.sparse import csr_array

from sb3_manygoals.goals import UNKNOWN
from sb3_manygoals.many_goals_dqn.replay_buffer import ManyGoalsReplayBuffer


def _doubt(led: csr_array) -> None:
    """
    Turn counts of where actions led to into shares. All but the most frequent are taken for one less than they were: of rare
    events that a plan would wait for, one seen by luck looks the best of all.

    :param led: counts, of which no row is empty; changed in place
    """
    lengths = np.diff(led.indptr)
    most = np.repeat(np.maximum.reduceat(led.data, led.indptr[:-1]), lengths) if len(lengths) else led.data
    led.data[led.data < most] -= 1.0
    led.data /= np.repeat(np.add.reduceat(led.data, led.indptr[:-1]), lengths) if len(lengths) else 1.0
    led.eliminate_zeros()


class Slot(NamedTuple):
    """One option of each of the first L states of an order."""

    on: csr_array
    """How often it led to each state, by places in the order, shape (L, S)."""
    ends: csr_array
    """How often it led to each with an end of the environment, by numbers of states, shape (L, S)."""
    actions: NDArray[np.int64]
    """The actions, shape (L,)."""


class ReplayModel:
    """
    Transition frequencies of the (state, action) pairs in a replay memory. States are distinct observations.

    :param n_actions: number of actions, A
    :param n_states: number of states, S
    :param tried: ``state * A + action`` of each pair that was tried, ascending, shape (R,) int64: the rows of what follows
    :param on: how often each pair led to each state, as a share, shape (R, S) float32
    :param ends: how often it led there with an end of the environment, as a share, shape (R, S) float32
    """

    def __init__(self, n_actions: int, n_states: int, tried: NDArray[np.int64], on: csr_array, ends: csr_array) -> None:
        self.n_actions = n_actions
        self.n_states = n_states
        self.tried = tried
        self.on = on
        self.ends = ends

    @classmethod
    def of(cls, replay: ManyGoalsReplayBuffer) -> ReplayModel:
        """
        :param replay: a memory that keeps the states of its transitions
        :return: of all transitions in it
        """
        assert replay.states is not None
        assert isinstance(replay.action_space, spaces.Discrete)
        n_actions, n_states = int(replay.action_space.n), len(replay.states)
        used = slice(replay.size())
        states, next_states = replay.state_ids[used].ravel(), replay.next_state_ids[used].ravel()
        known = (states != UNKNOWN) & (next_states != UNKNOWN)
        actions = replay.actions[used].reshape(-1)[known].astype(np.int64)
        ended = replay.dones[used].ravel()[known].astype(np.bool_)
        tried, row = np.unique(states[known] * n_actions + actions, return_inverse=True)
        # an end is another place to come to than the same state without one
        led = csr_array(
            (np.ones(len(row), dtype=np.float32), (row, next_states[known] + n_states * ended)),
            shape=(len(tried), 2 * n_states),
        )
        led.sum_duplicates()
        _doubt(led)
        return cls(n_actions, n_states, tried, led[:, :n_states], led[:, n_states:])

    @cached_property
    def left(self) -> NDArray[np.int64]:
        """The states in which something was tried, ascending."""
        return np.unique(self.tried // self.n_actions)

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """All states, those first in which the most is to be chosen from, shape (S,)."""
        return np.argsort(-self._n_options, kind="stable")

    @cached_property
    def place(self) -> NDArray[np.int64]:
        """Where in ``order`` each state is, shape (S,)."""
        place = np.empty(self.n_states, dtype=np.int64)
        place[self.order] = np.arange(self.n_states)
        return place

    @cached_property
    def slots(self) -> list[Slot]:
        """
        The pairs in another form, for going through all of them: the first option of each state, the second, and so on. An
        action that only ever led back to its own state is no option: it is never better than others.
        """
        rows = self._options
        states = self.tried[rows] // self.n_actions
        rank = np.arange(len(rows)) - (np.cumsum(self._n_options) - self._n_options)[states]
        found = []
        for number in range(int(self._n_options.max(initial=0))):
            of_slot = rows[rank == number]
            of_slot = of_slot[np.argsort(self.place[self.tried[of_slot] // self.n_actions])]
            on = self.on[of_slot]
            on = csr_array((on.data, self.place[on.indices], on.indptr), shape=on.shape)
            found.append(Slot(on, self.ends[of_slot], self.tried[of_slot] % self.n_actions))
        return found

    @cached_property
    def _options(self) -> NDArray[np.int64]:
        on, states = self.on, self.tried // self.n_actions
        single = np.flatnonzero((np.diff(on.indptr) == 1) & (np.diff(self.ends.indptr) == 0))
        idle = single[on.indices[on.indptr[single]] == states[single]]
        return np.setdiff1d(np.arange(len(self.tried)), idle)

    @cached_property
    def _n_options(self) -> NDArray[np.int64]:
        return np.bincount(self.tried[self._options] // self.n_actions, minlength=self.n_states)

    def rows(self, states: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """
        :param states: numbers of states, -1 where it has none, shape (n,)
        :return: the rows of what was tried in them, and its places among all n * A actions, state by state
        """
        wanted = (states[:, None] * self.n_actions + np.arange(self.n_actions)).ravel()
        rows = np.minimum(np.searchsorted(self.tried, wanted), max(len(self.tried) - 1, 0))
        places = np.flatnonzero(self.tried[rows] == wanted) if len(self.tried) else rows[:0]
        return rows[places], places

    def get_checkpoint_state(self) -> dict[str, Any]:
        """:return: a plain tree"""
        matrices = {
            name: [matrix.data, matrix.indices, matrix.indptr] for name, matrix in (("on", self.on), ("ends", self.ends))
        }
        return {"n_actions": self.n_actions, "n_states": self.n_states, "tried": self.tried, **matrices}

    @classmethod
    def from_checkpoint_state(cls, state: dict[str, Any]) -> ReplayModel:
        """
        :param state: of :meth:`get_checkpoint_state`
        :return: an equal one
        """
        shape = (len(state["tried"]), state["n_states"])
        on, ends = (csr_array(tuple(state[name]), shape=shape) for name in ("on", "ends"))
        return cls(state["n_actions"], state["n_states"], state["tried"], on, ends)
