"""Tables of known goals, and of the states that achieve them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_manygoals.checkpoint.tree import CheckpointError
from sb3_manygoals.goals.achievement import Achievement, ranges
from sb3_manygoals.world import UNKNOWN, ExactStates


class KnownGoals(ABC):
    """
    The goals that a goal buffer knows, in the order of their ids, and which states achieve them.

    :param states: the states that were met, S of them
    :param held_out: what must not become a goal
    :param capacity: greatest number of goals
    :param achievement: what observations achieve, and which goals are reached by that
    """

    def __init__(
        self, states: ExactStates, held_out: ExactStates, capacity: int, achievement: Achievement
    ) -> None:
        self.states = states
        self.held_out = held_out
        self.capacity = capacity
        self.achievement = achievement
        self.goal_of_state: NDArray[np.int64] = np.full(states.capacity + 1, UNKNOWN)
        """The goal id of each state, by its id. The last entry is for ``UNKNOWN``, which is -1."""
        self._state_of_goal: NDArray[np.int64] = np.full(capacity, UNKNOWN)

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of goals."""

    @abstractmethod
    def __getitem__(self, ids: NDArray[np.integer[Any]] | int | slice) -> NDArray[Any]:
        """
        Return goals.

        :param ids: ids of goals, of any shape
        :return: shape ``(*ids.shape, *goal_space.shape)``
        """

    @property
    @abstractmethod
    def observations(self) -> NDArray[Any]:
        """All goals in the order of their ids, read-only, shape ``(len(self), *shape)``."""

    @abstractmethod
    def sample(self, ids: NDArray[np.int64], rng: np.random.Generator) -> NDArray[Any]:
        """
        Return goals. If they are states with several observations, one of them is drawn.

        :param ids: ids of goals, int64, shape ``(n,)``
        :param rng: random generator
        :return: shape ``(n, *goal_space.shape)``
        """

    @abstractmethod
    def ids(self, goals: NDArray[Any]) -> NDArray[np.int64]:
        """
        Return the ids of goals. New ones are not added.

        :param goals: shape ``(n, *goal_space.shape)``, the dtype of the space
        :return: shape ``(n,)``. ``UNKNOWN`` for those that are not known
        """

    @abstractmethod
    def ids_achieved(
        self, state_ids: NDArray[np.int64], observations: NDArray[Any]
    ) -> NDArray[np.int64]:
        """
        Return the ids of the goals that observations achieve.

        :param state_ids: ids of the states of the observations, shape ``(n,)``
        :param observations: shape ``(n, *observation_space.shape)``
        :return: shape ``(n,)``. ``UNKNOWN`` where no known goal is achieved
        """

    @abstractmethod
    def have_met(self, goals: NDArray[Any]) -> NDArray[np.bool_]:
        """
        Return which goals were met before.

        :param goals: shape ``(n, *goal_space.shape)``, the dtype of the space
        :return: shape ``(n,)``
        """

    @abstractmethod
    def add(self, state_ids: NDArray[np.int64], observations: NDArray[Any]) -> NDArray[np.int64]:
        """
        Let states become goals, or what they achieve, while there is room, unless it is held out.

        :param state_ids: ids of states that are known by now, shape ``(n,)``
        :param observations: what was observed of them, shape ``(n, *observation_space.shape)``
        :return: the ids of the goals that the observations achieve, shape ``(n,)``
        """

    @property
    @abstractmethod
    def is_full(self) -> bool:
        """Whether there is no room for another goal."""

    @abstractmethod
    def without_room(
        self,
        state_ids: NDArray[np.int64],
        goal_ids: NDArray[np.int64],
        observations: NDArray[Any],
    ) -> NDArray[Any]:
        """
        Return goals for which there was no room when the table was full, held-out ones too.

        :param state_ids: ids of the states of observations, shape ``(n,)``
        :param goal_ids: ids of the goals that they achieve, shape ``(n,)``
        :param observations: shape ``(n, *observation_space.shape)``
        :return: shape ``(m, *goal_space.shape)``
        """

    @abstractmethod
    def check(
        self, observations: NDArray[Any], state_ids: NDArray[np.int64], held_out: NDArray[Any]
    ) -> None:
        """
        Raise an error if these cannot be restored.

        :param observations: those of all states, shape ``(S, *observation_space.shape)``
        :param state_ids: the first state that achieves each goal, shape ``(number of goals,)``
        :param held_out: what must not become a goal, shape ``(n, *goal_space.shape)``
        :raises CheckpointError: if goals have no such states, or states achieve other goals
        """

    @abstractmethod
    def restore(self, state_ids: NDArray[np.int64]) -> None:
        """
        Fill the table, which must be empty, once the states have been restored.

        :param state_ids: the first state that achieves each goal, shape ``(number of goals,)``
        """

    @property
    def state_ids(self) -> NDArray[np.int64]:
        """The first state that achieves each goal, ``UNKNOWN`` for none, shape ``(len(self),)``."""
        return self._state_of_goal[: len(self)]

    def achieving_states(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """
        Return which known states achieve each goal.

        :return: where the states of each goal begin in the second array, with its length as the
            last entry, int64, shape ``(len(self) + 1,)``; and ids of states, those of one goal
            after those of the other, int64
        """
        goal_of_state = self.goal_of_state[: len(self.states)]
        # States in the order of what they achieve. States that achieve no known goal are first.
        in_order = np.argsort(goal_of_state, kind="stable")
        begin = np.searchsorted(goal_of_state[in_order], np.arange(len(self) + 1))
        if self.achievement.reached is None:
            return begin - begin[0], in_order[begin[0] :]
        # Within a tolerance, also what is held out may reach a goal.
        unlabeled = in_order[: begin[0]]
        achieved = self.achievement.of(self.states[unlabeled])
        achievements = np.concatenate([self[:], achieved])
        places, goal_ids = self.achievement.pairs(achievements, self[:])
        first_state = np.concatenate([begin[:-1], np.arange(len(unlabeled))])
        n_of_achievement = np.concatenate([np.diff(begin), np.ones(len(unlabeled), np.int64)])
        n_of_pair = n_of_achievement[places]
        state_ids = in_order[ranges(first_state[places], n_of_pair)]
        n_of_goal = np.bincount(goal_ids, weights=n_of_pair, minlength=len(self))
        return np.concatenate([[0], np.cumsum(n_of_goal.astype(np.int64))]), state_ids

    def _is_held_out(self, goals: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which goals are held out."""
        return np.not_equal(self.held_out.ids(goals), UNKNOWN)

    def _check_states(self, state_ids: NDArray[np.int64], least: int, n_states: int) -> None:
        """Raise an error if ids of states are not from ``least`` to the last one."""
        if not np.isin(state_ids, np.arange(least, n_states)).all():
            raise CheckpointError(f"the goals must be among the {n_states} states")


class StatesAsGoals(KnownGoals):
    """
    A table in which each goal is a state: its first observation.

    :param states: the states that were met, S of them
    :param held_out: what must not become a goal
    :param capacity: greatest number of goals
    :param achievement: which goals are reached by an observation
    """

    def __init__(
        self, states: ExactStates, held_out: ExactStates, capacity: int, achievement: Achievement
    ) -> None:
        super().__init__(states, held_out, capacity, achievement)
        self._n_goals = 0

    def __len__(self) -> int:
        return self._n_goals

    def __getitem__(self, ids: NDArray[np.integer[Any]] | int | slice) -> NDArray[Any]:
        return self.states[self.state_ids[ids]]

    @property
    def observations(self) -> NDArray[Any]:
        """All goals in the order of their ids, read-only, shape ``(len(self), *shape)``."""
        in_order = np.array_equal(self.state_ids, np.arange(len(self.states)))
        # Some states may be no goals, or may have become goals in another order.
        found = self.states.observations if in_order else self.states[self.state_ids]
        found.flags.writeable = False
        return found

    def sample(self, ids: NDArray[np.int64], rng: np.random.Generator) -> NDArray[Any]:
        """
        Return an observation of each of n goals, drawn among those that are kept of its state.

        :param ids: ids of goals, int64, shape ``(n,)``
        :param rng: random generator
        :return: shape ``(n, *observation_space.shape)``
        """
        return self.states.sample(self.state_ids[ids], rng)

    def ids(self, goals: NDArray[Any]) -> NDArray[np.int64]:
        """
        Return the ids of goals. New ones are not added.

        :param goals: shape ``(n, *observation_space.shape)``, the dtype of the space
        :return: shape ``(n,)``. ``UNKNOWN`` for those that are not known
        """
        return self.ids_achieved(self.states.ids(goals), goals)

    def ids_achieved(
        self, state_ids: NDArray[np.int64], observations: NDArray[Any]
    ) -> NDArray[np.int64]:
        """
        Return the ids of the goals that states are.

        :param state_ids: ids of states, shape ``(n,)``
        :param observations: not used
        :return: shape ``(n,)``. ``UNKNOWN`` for states that are no goals
        """
        goal_ids: NDArray[np.int64] = self.goal_of_state[state_ids]
        return goal_ids

    def have_met(self, goals: NDArray[Any]) -> NDArray[np.bool_]:
        """
        Return which goals are known states. Held-out ones may be.

        :param goals: shape ``(n, *observation_space.shape)``, the dtype of the space
        :return: shape ``(n,)``
        """
        return np.not_equal(self.states.ids(goals), UNKNOWN)

    def add(self, state_ids: NDArray[np.int64], observations: NDArray[Any]) -> NDArray[np.int64]:
        """
        Let states become goals, in the order of their ids, while there is room.

        :param state_ids: ids of states that are known by now, shape ``(n,)``
        :param observations: what was observed of them, shape ``(n, *observation_space.shape)``
        :return: the ids of the goals that they are, shape ``(n,)``
        """
        goal_ids = self.ids_achieved(state_ids, observations)
        is_no_goal = goal_ids == UNKNOWN
        if self.is_full or not is_no_goal.any():
            return goal_ids
        new_ids = set(state_ids[is_no_goal].tolist()) - {UNKNOWN}
        new = np.array(sorted(new_ids), dtype=np.int64)
        if len(self.held_out):
            new = new[~self._are_states_held_out(new)]
        new = new[: self.capacity - self._n_goals]
        n_before = self._n_goals
        self._n_goals += len(new)
        self.goal_of_state[new] = np.arange(n_before, self._n_goals)
        self._state_of_goal[n_before : self._n_goals] = new
        return self.ids_achieved(state_ids, observations)

    def _are_states_held_out(self, state_ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which states are held out. Learned states are, however they look."""
        found = self._is_held_out(self.states[state_ids])
        if not self.states.is_exact:
            found |= np.isin(state_ids, self.states.ids(self.held_out.observations))
        return found

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another goal."""
        return self._n_goals == self.capacity

    def without_room(
        self,
        state_ids: NDArray[np.int64],
        goal_ids: NDArray[np.int64],
        observations: NDArray[Any],
    ) -> NDArray[Any]:
        """
        Return observations that are no goals, held-out ones too.

        :param state_ids: not used
        :param goal_ids: ids of the goals that observations achieve, shape ``(n,)``
        :param observations: shape ``(n, *observation_space.shape)``
        :return: shape ``(m, *observation_space.shape)``
        """
        left_out: NDArray[Any] = observations[goal_ids == UNKNOWN]
        return left_out

    def achieving_states(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """
        Return which known states achieve each goal.

        :return: where the states of each goal begin in the second array, with its length as the
            last entry, int64, shape ``(len(self) + 1,)``; and ids of states, those of one goal
            after those of the other, int64
        """
        if self.achievement.reached is None:
            return np.arange(len(self) + 1), self.state_ids.copy()
        return super().achieving_states()

    def check(
        self, observations: NDArray[Any], state_ids: NDArray[np.int64], held_out: NDArray[Any]
    ) -> None:
        """
        Raise an error if goals are no states.

        :param observations: those of all states, shape ``(S, *observation_space.shape)``
        :param state_ids: the state that each goal is, shape ``(number of goals,)``
        :param held_out: not used
        :raises CheckpointError: if there is no such state
        """
        self._check_states(state_ids, 0, len(observations))

    def restore(self, state_ids: NDArray[np.int64]) -> None:
        """
        Fill the table, which must be empty.

        :param state_ids: the state that each goal is, shape ``(number of goals,)``
        """
        self._n_goals = len(state_ids)
        self._state_of_goal[: self._n_goals] = state_ids
        self.goal_of_state[state_ids] = np.arange(self._n_goals)


class AchievedGoals(KnownGoals):
    """
    A table in which a goal is what observations achieve, and so a set of states.

    :param states: the states that were met, S of them
    :param held_out: what must not become a goal
    :param capacity: greatest number of goals
    :param achievement: what observations achieve, and which goals are reached by that
    :param goal_list: the only goals, shape ``(m, *goal_space.shape)``. None: all that is achieved
    """

    def __init__(
        self,
        states: ExactStates,
        held_out: ExactStates,
        capacity: int,
        achievement: Achievement,
        goal_list: NDArray[Any] | None = None,
    ) -> None:
        super().__init__(states, held_out, capacity, achievement)
        self._goals = ExactStates(achievement.goal_space, capacity)
        # Of so many states it is known whether they achieve a goal.
        self._n_labeled = 0
        self._takes_all = goal_list is None
        if goal_list is not None:
            self._goals.add(goal_list)

    def __len__(self) -> int:
        return len(self._goals)

    def __getitem__(self, ids: NDArray[np.integer[Any]] | int | slice) -> NDArray[Any]:
        return self._goals[ids]

    @property
    def observations(self) -> NDArray[Any]:
        """All goals in the order of their ids, read-only, shape ``(len(self), *shape)``."""
        return self._goals.observations

    def sample(self, ids: NDArray[np.int64], rng: np.random.Generator) -> NDArray[Any]:
        """
        Return goals.

        :param ids: ids of goals, int64, shape ``(n,)``
        :param rng: not used
        :return: shape ``(n, *goal_space.shape)``
        """
        return self[ids]

    def ids(self, goals: NDArray[Any]) -> NDArray[np.int64]:
        """
        Return the ids of goals. New ones are not added.

        :param goals: shape ``(n, *goal_space.shape)``, the dtype of the space
        :return: shape ``(n,)``. ``UNKNOWN`` for those that are not known
        """
        return self._goals.ids(goals)

    def ids_achieved(
        self, state_ids: NDArray[np.int64], observations: NDArray[Any]
    ) -> NDArray[np.int64]:
        """
        Return the ids of the goals that observations achieve.

        :param state_ids: ids of the states of the observations, shape ``(n,)``
        :param observations: shape ``(n, *observation_space.shape)``
        :return: shape ``(n,)``. ``UNKNOWN`` where no known goal is achieved
        """
        if not self.states.is_exact:
            # Observations of one state may achieve different goals.
            return self._goals.ids(self.achievement.of(observations))
        goal_ids: NDArray[np.int64] = self.goal_of_state[state_ids]
        # Also what is no known state may achieve a known goal.
        is_unknown = state_ids == UNKNOWN
        if is_unknown.any():
            goal_ids[is_unknown] = self._goals.ids(self.achievement.of(observations[is_unknown]))
        return goal_ids

    def have_met(self, goals: NDArray[Any]) -> NDArray[np.bool_]:
        """
        Return which goals are known. Held-out ones are not.

        :param goals: shape ``(n, *goal_space.shape)``, the dtype of the space
        :return: shape ``(n,)``
        """
        return np.not_equal(self._goals.ids(goals), UNKNOWN)

    def add(self, state_ids: NDArray[np.int64], observations: NDArray[Any]) -> NDArray[np.int64]:
        """
        Let what new states achieve become goals, while there is room, unless it is held out.

        :param state_ids: ids of states that are known by now, shape ``(n,)``
        :param observations: what was observed of them, shape ``(n, *observation_space.shape)``
        :return: the ids of the goals that the observations achieve, shape ``(n,)``
        """
        self._label_new_states()
        return self.ids_achieved(state_ids, observations)

    def _label_new_states(self) -> None:
        """Find out what the states achieve that were met since this was called last."""
        n_states = len(self.states)
        if n_states == self._n_labeled:
            return
        new = np.arange(self._n_labeled, n_states)
        achieved = self.achievement.of(self.states[new])
        # Only now, because the user's function may raise an error.
        self._n_labeled = n_states
        if len(self.held_out):
            may_be_goals = ~self._is_held_out(achieved)
            new = new[may_be_goals]
            achieved = achieved[may_be_goals]
        goal_ids = self._goals.add(achieved) if self._takes_all else self._goals.ids(achieved)
        self.goal_of_state[new] = goal_ids
        is_first = (goal_ids != UNKNOWN) & (self._state_of_goal[goal_ids] == UNKNOWN)
        # Of several states, the one that is written last remains.
        self._state_of_goal[goal_ids[is_first][::-1]] = new[is_first][::-1]

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another state, and so for what it may achieve."""
        return len(self.states) == self.states.capacity

    def without_room(
        self,
        state_ids: NDArray[np.int64],
        goal_ids: NDArray[np.int64],
        observations: NDArray[Any],
    ) -> NDArray[Any]:
        """
        Return what observations without a state achieve, held-out goals too.

        :param state_ids: ids of the states of observations, shape ``(n,)``
        :param goal_ids: not used
        :param observations: shape ``(n, *observation_space.shape)``
        :return: shape ``(m, *goal_space.shape)``
        """
        return self.achievement.of(observations[state_ids == UNKNOWN])

    def check(
        self, observations: NDArray[Any], state_ids: NDArray[np.int64], held_out: NDArray[Any]
    ) -> None:
        """
        Raise an error if states achieve other goals than when they were saved.

        :param observations: those of all states, shape ``(S, *observation_space.shape)``
        :param state_ids: the first state that achieves each goal, shape ``(number of goals,)``
        :param held_out: what must not become a goal, shape ``(n, *goal_space.shape)``
        :raises CheckpointError: if goals have no such states, or states achieve other goals
        """
        # A goal of goal_list need not have a state that achieves it.
        self._check_states(state_ids, 0 if self._takes_all else UNKNOWN, len(observations))
        if not self._takes_all:
            return
        achieved = self.achievement.of(observations)
        n_held_out = len(held_out)
        goals = ExactStates(self.achievement.goal_space, n_held_out + len(achieved) + 1)
        goals.add(held_out)
        ids = goals.add(achieved)
        is_goal = ids >= n_held_out
        _, first = np.unique(ids[is_goal], return_index=True)
        found = np.flatnonzero(is_goal)[first]
        if not np.array_equal(found[: len(state_ids)], state_ids):
            raise CheckpointError(
                "goal returns other goals for the states than it did when they were saved: the "
                "function must be the same"
            )

    def restore(self, state_ids: NDArray[np.int64]) -> None:
        """
        Fill the table. What states achieve follows from their first observations.

        :param state_ids: not used
        """
        self._label_new_states()
