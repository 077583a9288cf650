"""The world as a replay memory knows it: where each action tried in each state has led to, and how often."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from scipy.sparse import csr_array

from sb3_manygoals.goals import UNKNOWN
from sb3_manygoals.many_goals_dqn.replay_buffer import ManyGoalsReplayBuffer


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
        tried, row, times = np.unique(states[known] * n_actions + actions, return_inverse=True, return_counts=True)
        shares = (1.0 / times[row]).astype(np.float32)
        led = [
            csr_array((shares[some], (row[some], next_states[known][some])), shape=(len(tried), n_states))
            for some in (~ended, ended)
        ]
        return cls(n_actions, n_states, tried, *led)

    @cached_property
    def left(self) -> NDArray[np.int64]:
        """The states in which something was tried, ascending."""
        return np.unique(self.tried // self.n_actions)

    @cached_property
    def padded_on(self) -> csr_array:
        """The rows :attr:`padded` of ``on``."""
        return self.on[self.padded]

    @cached_property
    def padded_ends(self) -> csr_array:
        """The rows :attr:`padded` of ``ends``."""
        return self.ends[self.padded]

    @cached_property
    def padded(self) -> NDArray[np.int64]:
        """
        For each action in turn, a row for each state of ``left``, shape (A * len(left),). In the place of an action that was
        not tried stands the first one that was, so that a maximum over actions is not changed.
        """
        states, first = np.unique(self.tried // self.n_actions, return_index=True)
        rows = np.tile(first, self.n_actions)
        place = np.searchsorted(states, self.tried // self.n_actions)
        rows[self.tried % self.n_actions * len(states) + place] = np.arange(len(self.tried))
        return rows

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
