"""A model of the world, counted from transitions: what planning, exploration and tasks read."""

from __future__ import annotations

import array as arrays
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sb3_manygoals.world.states import UNKNOWN, ExactStates

# New transitions are merged into the sorted outcomes once there are so many of them, or half as
# many as there are different outcomes, if that is more.
_MERGE_EVERY = 2**16
# Up to so many transitions, a loop over single ones is faster than NumPy on all of them.
_MOST_ONE_BY_ONE = 8


class Outcomes(NamedTuple):
    """
    What followed on actions: each different (state, action, next state, terminated) that occurred
    between known states, K of them, as arrays of shape ``(K,)``.
    """

    state_ids: NDArray[np.int64]
    """The state in which the action was taken."""
    actions: NDArray[np.int64]
    """The action."""
    next_state_ids: NDArray[np.int64]
    """The state that it led to."""
    terminated: NDArray[np.bool_]
    """Whether the environment terminated with that."""
    counts: NDArray[np.int64]
    """How often this outcome occurred."""
    reward_sums: NDArray[np.float64]
    """The sum of the environment's rewards for it."""


class WorldModel:
    """
    What is known of the world: which observations are one state, how often actions were tried in
    each state, where they led, and what the environment paid.

    A learner owns one, and records each transition in it once, when it is made. Planning,
    exploration by counts, goal-directed sampling and task policies read it. It grows with the
    number of different transitions, not with their number.

    :param identity: which observations are one state
    :param n_actions: number of actions, A
    """

    def __init__(self, identity: ExactStates, n_actions: int) -> None:
        self.identity = identity
        self.n_actions = n_actions
        self._clear()

    def _clear(self) -> None:
        """Forget all transitions."""
        capacity = self.identity.capacity
        self.visit_counts: NDArray[np.int32] = np.zeros((capacity, self.n_actions), dtype=np.int32)
        """How often each action was taken in each state, shape ``(capacity, A)``."""
        self.n_counted = 0
        """The sum of the visit counts: the number of transitions out of known states."""
        self.arrivals: NDArray[np.float64] = np.zeros(capacity + 1)
        """
        How often a transition led to each state, shape ``(capacity + 1,)``. The last entry, also of
        the two arrays that follow, is of all observations that are no known state.
        """
        self.arrival_rewards: NDArray[np.float64] = np.zeros(capacity + 1)
        """The sum of the environment's rewards on arriving at each state."""
        self.arrival_ends: NDArray[np.float64] = np.zeros(capacity + 1)
        """How often the environment terminated on arriving at each state."""
        # The outcomes counted so far: their keys in ascending order, counts and sums of rewards.
        self._keys: NDArray[np.int64] = np.zeros(0, np.int64)
        self._counts: NDArray[np.int64] = np.zeros(0, np.int64)
        self._reward_sums: NDArray[np.float64] = np.zeros(0, np.float64)
        # The keys of transitions that were not merged yet. Those with a reward are listed again.
        self._new_keys = arrays.array("q")
        self._rewarded_keys = arrays.array("q")
        self._new_rewards = arrays.array("d")

    def record(
        self,
        state_ids: NDArray[np.integer[Any]],
        actions: NDArray[np.integer[Any]],
        next_state_ids: NDArray[np.integer[Any]],
        rewards: NDArray[np.floating[Any]],
        terminated: NDArray[np.bool_],
    ) -> None:
        """
        Count n transitions.

        :param state_ids: the states in which the actions were taken, ``UNKNOWN`` for observations
            that are no known state, shape ``(n,)``
        :param actions: the actions, shape ``(n,)``
        :param next_state_ids: the states that they led to, ``UNKNOWN`` likewise, shape ``(n,)``
        :param rewards: the environment's rewards, shape ``(n,)``
        :param terminated: whether the environment terminated, shape ``(n,)``
        """
        if len(state_ids) <= _MOST_ONE_BY_ONE:
            columns = (state_ids, actions, next_state_ids, rewards, terminated)
            for transition in zip(*(column.tolist() for column in columns), strict=True):
                self._record_one(*transition)
        else:
            self._record_many(state_ids, actions, next_state_ids, rewards, terminated)
        if len(self._new_keys) >= max(_MERGE_EVERY, len(self._keys) // 2):
            self._merge_outcomes()

    def _record_one(
        self, state_id: int, action: int, next_state_id: int, reward: float, terminated: bool
    ) -> None:
        """Count one transition. ``UNKNOWN``, -1, is the last entry of the arrays of arrivals."""
        self.arrivals[next_state_id] += 1.0
        if reward:
            self.arrival_rewards[next_state_id] += reward
        if terminated:
            self.arrival_ends[next_state_id] += 1.0
        if state_id == UNKNOWN:
            return
        self.n_counted += 1
        self.visit_counts[state_id, action] += 1
        if next_state_id == UNKNOWN:
            return
        pair = state_id * self.n_actions + int(action)
        key = pair << 32 | next_state_id << 1 | terminated
        self._new_keys.append(key)
        if reward:
            self._rewarded_keys.append(key)
            self._new_rewards.append(reward)

    def _record_many(
        self,
        state_ids: NDArray[np.integer[Any]],
        actions: NDArray[np.integer[Any]],
        next_state_ids: NDArray[np.integer[Any]],
        rewards: NDArray[np.floating[Any]],
        terminated: NDArray[np.bool_],
    ) -> None:
        """Count many transitions."""
        self._record_arrivals(next_state_ids, rewards, terminated)
        state_ids = state_ids.astype(np.int64)
        known = state_ids != UNKNOWN
        self.n_counted += int(np.count_nonzero(known))
        pairs = state_ids * self.n_actions + actions.astype(np.int64)
        np.add.at(self.visit_counts.reshape(-1), pairs[known], 1)
        known &= next_state_ids != UNKNOWN
        keys = outcome_keys(pairs, next_state_ids, terminated)
        self._new_keys.frombytes(keys[known].tobytes())
        if rewards.any():
            rewarded = known & (rewards != 0.0)
            self._rewarded_keys.frombytes(keys[rewarded].tobytes())
            self._new_rewards.frombytes(rewards[rewarded].astype(np.float64).tobytes())

    def _record_arrivals(
        self,
        next_state_ids: NDArray[np.integer[Any]],
        rewards: NDArray[np.floating[Any]],
        terminated: NDArray[np.bool_],
    ) -> None:
        """Count arrivals. ``UNKNOWN``, -1, is the last entry of the arrays."""
        np.add.at(self.arrivals, next_state_ids, 1.0)
        # Most steps have neither a reward nor an end.
        if rewards.any():
            np.add.at(self.arrival_rewards, next_state_ids, rewards)
        if terminated.any():
            np.add.at(self.arrival_ends, next_state_ids, terminated)

    def _merge_outcomes(self) -> None:
        """Merge new transitions into the outcomes."""
        new_keys = np.frombuffer(self._new_keys, dtype=np.int64)
        rewarded_keys = np.frombuffer(self._rewarded_keys, dtype=np.int64)
        new_rewards = np.frombuffer(self._new_rewards, dtype=np.float64)
        self._new_keys = arrays.array("q")
        self._rewarded_keys = arrays.array("q")
        self._new_rewards = arrays.array("d")
        n_before = len(self._keys)
        keys, place = np.unique(np.concatenate([self._keys, new_keys]), return_inverse=True)
        weights = np.concatenate([self._counts, np.ones(len(new_keys))])
        reward_sums = np.zeros(len(keys))
        reward_sums[place[:n_before]] = self._reward_sums
        np.add.at(reward_sums, np.searchsorted(keys, rewarded_keys), new_rewards)
        self._counts = np.bincount(place, weights=weights).astype(np.int64)
        self._keys = keys
        self._reward_sums = reward_sums

    def outcomes(self) -> Outcomes:
        """
        Return what followed on actions.

        :return: each different outcome with its count, in ascending order of state, action, next
            state and termination
        """
        self._merge_outcomes()
        pairs = self._keys >> 32
        return Outcomes(
            state_ids=pairs // self.n_actions,
            actions=pairs % self.n_actions,
            next_state_ids=(self._keys & 0xFFFFFFFF) >> 1,
            terminated=(self._keys & 1).astype(np.bool_),
            counts=self._counts,
            reward_sums=self._reward_sums,
        )

    def has_chance(self) -> bool:
        """
        Return whether an action has led from one state to different states.

        :return: False if no action was taken twice in one state
        """
        self._merge_outcomes()
        # Outcomes of the same action in the same state stand beside each other.
        is_same_pair = self._keys[1:] >> 32 == self._keys[:-1] >> 32
        next_state_ids = (self._keys & 0xFFFFFFFF) >> 1
        differs = next_state_ids[1:] != next_state_ids[:-1]
        return bool((is_same_pair & differs).any())

    def forget(self) -> None:
        """Forget all transitions, because states have got other ids."""
        self._clear()

    def add_outcomes(self, outcomes: Outcomes) -> None:
        """
        Count transitions of which only the outcomes are known.

        :param outcomes: what followed on actions, by ids of this world. An outcome may be there
            several times. Those of ``UNKNOWN`` states are left out
        """
        known = (outcomes.state_ids != UNKNOWN) & (outcomes.next_state_ids != UNKNOWN)
        state_ids = outcomes.state_ids[known]
        actions = outcomes.actions[known]
        next_state_ids = outcomes.next_state_ids[known]
        terminated = outcomes.terminated[known]
        counts = outcomes.counts[known]
        reward_sums = outcomes.reward_sums[known]
        self._merge_outcomes()
        np.add.at(self.visit_counts, (state_ids, actions), counts.astype(np.int32))
        self.n_counted += int(counts.sum())
        np.add.at(self.arrivals, next_state_ids, counts)
        np.add.at(self.arrival_rewards, next_state_ids, reward_sums)
        np.add.at(self.arrival_ends, next_state_ids, counts * terminated)
        new_keys = outcome_keys(state_ids * self.n_actions + actions, next_state_ids, terminated)
        keys, place = np.unique(np.concatenate([self._keys, new_keys]), return_inverse=True)
        all_counts = np.zeros(len(keys), np.int64)
        np.add.at(all_counts, place, np.concatenate([self._counts, counts]))
        all_rewards = np.zeros(len(keys))
        np.add.at(all_rewards, place, np.concatenate([self._reward_sums, reward_sums]))
        self._keys = keys
        self._counts = all_counts
        self._reward_sums = all_rewards

    @property
    def mean_rewards(self) -> NDArray[np.float64]:
        """
        The mean reward on arriving at each known state, shape ``(number of states,)``. NaN for a
        state at which no transition arrived.
        """
        n_states = len(self.identity)
        arrivals = self.arrivals[:n_states]
        means = np.full(n_states, np.nan)
        np.divide(self.arrival_rewards[:n_states], arrivals, out=means, where=arrivals > 0)
        return means

    def get_checkpoint_state(self) -> dict[str, Any]:
        """
        Return all that was counted, without the states themselves.

        :return: a dictionary of plain data and arrays, some of which are in use: write it at once
        """
        self._merge_outcomes()
        n_states = len(self.identity)
        known_and_last = np.r_[:n_states, -1]
        return {
            "visit_counts": self.visit_counts[:n_states],
            "arrivals": self.arrivals[known_and_last],
            "arrival_rewards": self.arrival_rewards[known_and_last],
            "arrival_ends": self.arrival_ends[known_and_last],
            "outcome_keys": self._keys,
            "outcome_counts": self._counts,
            "outcome_reward_sums": self._reward_sums,
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Replace all that was counted. The states must have been restored before.

        :param state: what :meth:`get_checkpoint_state` returned, of as many states and actions
        :raises ValueError: if it is of another number of states or actions
        """
        visit_counts = state["visit_counts"]
        expected = (len(self.identity), self.n_actions)
        if visit_counts.shape != expected:
            raise ValueError(
                f"visit_counts must be of shape {expected}, (states, actions), "
                f"got {visit_counts.shape}"
            )
        self._clear()
        self.visit_counts[: len(visit_counts)] = visit_counts
        self.n_counted = int(visit_counts.sum())
        known_and_last = np.r_[: len(visit_counts), -1]
        for name in ("arrivals", "arrival_rewards", "arrival_ends"):
            getattr(self, name)[known_and_last] = state[name]
        self._keys = state["outcome_keys"]
        self._counts = state["outcome_counts"]
        self._reward_sums = state["outcome_reward_sums"]


def outcome_keys(
    pairs: NDArray[np.integer[Any]],
    next_state_ids: NDArray[np.integer[Any]],
    terminated: NDArray[np.bool_],
) -> NDArray[np.int64]:
    """
    Return a number for each outcome, in ascending order of pair, next state and termination.

    :param pairs: ``state_id * n_actions + action``, shape ``(n,)``
    :param next_state_ids: the states that the actions led to, shape ``(n,)``
    :param terminated: whether the environment terminated, shape ``(n,)``
    :return: shape ``(n,)``
    """
    after = next_state_ids.astype(np.int64) << 1 | terminated.astype(np.int64)
    return pairs.astype(np.int64) << 32 | after
