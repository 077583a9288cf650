"""The set of goals an agent knows: every distinct observation, or achievement, that it has met."""

from __future__ import annotations

import copy
import math
import os
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_manygoals.checkpoint.functions import identity_of
from sb3_manygoals.checkpoint.tree import CheckpointError, check_same
from sb3_manygoals.goals.achievement import Achievement, GoalFunction, Reached
from sb3_manygoals.goals.files import read_npz, write_npz
from sb3_manygoals.goals.known_goals import AchievedGoals, KnownGoals, StatesAsGoals
from sb3_manygoals.goals.sources import ObservationSource
from sb3_manygoals.goals.spaces import (
    check_batch,
    check_goal_space,
    check_inside,
    converted,
    identical,
    shown,
)
from sb3_manygoals.memory_limits import check_memory, share_of_memory
from sb3_manygoals.packing import are_floats, as_packed
from sb3_manygoals.validation import batch_shape, check_count, check_kwargs
from sb3_manygoals.world import UNKNOWN, ExactStates, KeyedStates, LearnedStates, StateKey
from sb3_manygoals.world.examples import EXAMPLES_PER_STATE
from sb3_manygoals.world.inputs import Inputs

KINDS_OF_GOALS = ("state_key", "goal", "goal_space", "reached", "goal_list")
"""Arguments of a goal buffer that say what a state is, and what a goal."""

# The capacity of a goal buffer by default, where there is the memory for it.
_DEFAULT_CAPACITY = 100_000
# The bytes that a state takes besides its observation: its hash and ids, their places in a dict
# that has just grown, and its counts.
_INDEX_SIZE = 184
# Of each number of a learned state, the mean is kept, and of how many observations it is.
_SIZE_OF_MEAN = 8
# The nearest goal is searched for only if all goals together have at most so many numbers.
_MOST_NUMBERS_TO_SEARCH = 2**26
# For a warning, the user's functions are asked about at most so many states and goals of a list.
_MOST_PAIRS_TO_ASK = 20_000
# The search compares so many numbers at a time.
_NUMBERS_AT_A_TIME = 2**20
# The examples of states that have several observations.
_OF_EXAMPLES = ("examples", "n_seen")
_FILE_FORMAT = 2
_IN_FILE = ("format", "capacity", "states", "state_ids", "held_out")


class GoalBuffer:
    """
    The goals that are known, each with a stable integer id, and the states that achieve them.

    By default a goal is an observation, and it is reached by the same observation: two observations
    are the same goal if they are equal byte for byte, that is, if they are one state (section 3 of
    Veeriah et al. 2018). With ``state_key``, they are one state if their keys are equal. With
    ``goal``, goals are what observations achieve, such as the place of the agent, and a goal is the
    set of all states that achieve it.

    The id of a goal is its row in :attr:`observations`. It never changes. Held-out goals have the
    id ``UNKNOWN`` (-1). If the buffer is full, new observations have it too. Then the buffer warns
    once.

    :param observation_space: space of the observations: Box, Discrete, MultiDiscrete, MultiBinary,
        or a Dict of these, whose observations become arrays of bytes. Functions get them as dicts
    :param capacity: greatest number of goals, and of states. Memory is taken only as they are
        added. None: 100,000, or as many as half of the available memory holds, if that is less
    :param held_out: goals that must never be pursued nor taught, shape
        ``(n, *goal_space.shape)``, or None
    :param state_key: a function of an observation. Observations for which it returns equal numbers
        are one state. None: observations are one state if they are equal byte for byte
    :param goal: a function of an observation that returns what it achieves: an array, a number or a
        sequence of numbers. None: the observation itself
    :param goal_space: space of what ``goal`` returns. None: one for arrays like that which it
        returns for a random observation
    :param reached: greatest Euclidean distance at which an achievement reaches a goal, or a
        function of n achievements and n goals that returns for each pair whether it does. None:
        they must be equal, or of one state if there is no ``goal``
    :param goal_list: the only goals, shape ``(m, *goal_space.shape)``, or a sequence of m things
        that ``goal`` may return. None: all that is achieved becomes a goal
    :param state_class: :class:`~sb3_manygoals.world.LearnedStates`, states that a learner learns
        from transitions, or :class:`~sb3_manygoals.world.ExactStates`. None: the latter, or states
        by ``state_key`` if it is given
    :param state_kwargs: further arguments of the ``state_class``. None: its defaults
    :raises TypeError: if observations or achievements cannot be goals, a function is none,
        ``goal_list`` is no sequence, or the space is that of a GoalEnv
    :raises ValueError: if ``capacity`` is not a positive whole number, ``held_out`` or
        ``goal_list`` does not fit the space of goals, they have a goal in common, ``goal`` fails
        for a random observation and there is no ``goal_space``, or there are ``state_kwargs``
        without ``state_class``
    :raises MemoryError: if ``capacity`` goals do not fit into the memory that is available
    """

    checkpoint_shared = True
    """Checkpoints of environments leave the buffer out, because the learner saves it."""

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        capacity: int | None = None,
        held_out: NDArray[Any] | None = None,
        state_key: StateKey | None = None,
        goal: GoalFunction | None = None,
        goal_space: spaces.Space[Any] | None = None,
        reached: float | Reached | None = None,
        goal_list: NDArray[Any] | None = None,
        state_class: type[ExactStates] | None = None,
        state_kwargs: dict[str, Any] | None = None,
    ) -> None:
        if not isinstance(observation_space, spaces.Space):
            raise TypeError(
                f"observation_space must be a space of Gymnasium, got {observation_space!r}"
            )
        source = ObservationSource(observation_space)
        if source.is_goal_env:
            raise TypeError(
                "observation_space is that of a GoalEnv, which has to be asked what is reached: put"
                " GoalBufferWrapper(env) around it, and take its goal_buffer, or its"
                " goal_buffer.config as arguments of another"
            )
        if source.packed is not None:
            # Functions get dicts, as those that are given to a goal wrapper do.
            given: dict[str, Any] = {"state_key": state_key, "goal": goal, "reached": reached}
            kinds = source.kinds_of_goals({**given, "goal_space": goal_space})
            state_key = kinds["state_key"]
            # What other goal buffers hold out is packed already.
            if goal is None:
                held_out = as_packed(held_out, source.packed)
            goal = kinds["goal"]
            observation_space = source.packed
        self.observation_shape, self.observation_dtype = check_goal_space(observation_space)
        self.observation_space = observation_space
        if state_key is not None and not callable(state_key):
            raise TypeError(f"state_key must be a function, got {state_key!r}")
        check_state_class(state_class, state_key)
        state_kwargs = check_kwargs("state_kwargs", state_kwargs)
        if state_kwargs and state_class is None:
            raise ValueError(
                f"state_kwargs are arguments of state_class, which was not given, got"
                f" {sorted(state_kwargs)}"
            )
        self.state_key = state_key
        self.state_class = state_class
        """What the user or a learner has chosen. None: nothing was chosen."""
        self.state_kwargs = state_kwargs
        """Further arguments of the states."""
        self.achievement = Achievement(observation_space, goal, goal_space, reached)
        """What observations achieve, and which goals are reached by that."""
        self.goal_space = self.achievement.goal_space
        """Space of the goals."""
        self.shape = self.achievement.shape
        """Shape of a goal."""
        self.dtype = self.achievement.dtype
        """Dtype of the goals."""
        self._capacity_was_given = capacity is not None
        if capacity is None:
            capacity = max(min(_DEFAULT_CAPACITY, share_of_memory(0.5) // self._size_of_goal), 1)
        self.capacity = check_count("capacity", capacity, of="goals")
        self._is_discrete = not isinstance(observation_space, spaces.Box)
        self._warned_that_full = False
        check_memory(
            f"a goal buffer of capacity {self.capacity}",
            {"goals": self.capacity * self._size_of_goal},
            "choose a smaller capacity",
        )
        self._goal_list: NDArray[Any] | None = None
        if goal_list is not None:
            self._goal_list = self._checked_list(goal_list)
        if held_out is None:
            held_out = np.zeros((0, *self.shape), dtype=self.dtype)
        self._held_out = self._states_of_goals(1)
        self.states = self._new_states(self.capacity)
        """The states that were met, held-out ones too."""
        self._known = self._no_goals()
        try:
            n_held_out = len(np.asarray(held_out))
        except (TypeError, ValueError) as error:
            # It is a number, or a list of lists of different lengths.
            raise ValueError(
                f"held_out must have shape {batch_shape(self.shape)}, got {held_out!r}"
            ) from error
        if n_held_out:
            held_out = self.check_goals(converted(held_out, self.goal_space), "held_out")
            self._held_out = self._states_of_goals(len(held_out) + 1)
            self._held_out.add(held_out)
            if goal is None:
                self.states = self._new_states(self.capacity + len(self._held_out))
            self._known = self._no_goals()
        if self._goal_list is not None and self.is_held_out(self._goal_list).any():
            raise ValueError(
                "goal_list and held_out must have no goal in common, got "
                f"{shown(self._goal_list[self.is_held_out(self._goal_list)][0])} in both"
            )

    def _checked_list(self, goal_list: Any) -> NDArray[Any]:
        """Return a list of goals as an array of the goal space."""
        if self.goals_are_observations:
            raise ValueError("goal_list needs goal, the function that says what is achieved")
        if not isinstance(goal_list, (Sequence, np.ndarray)) or np.shape(goal_list) == ():
            raise TypeError(f"goal_list must be a sequence of goals, got {goal_list!r}")
        if not 0 < len(goal_list) <= self.capacity:
            raise ValueError(
                f"goal_list must have from 1 to {self.capacity} goals, got {len(goal_list)}"
            )
        goals = [self.achievement.as_goal(one, "goal_list must have") for one in goal_list]
        array = np.stack(goals)
        check_inside(self.goal_space, array, "goal_list", of="goal space")
        return array

    def _new_states(self, capacity: int) -> ExactStates:
        """Return states of observations, none of which is known."""
        if self.state_class is not None:
            return self.state_class(self.observation_space, capacity, **self.state_kwargs)
        if self.state_key is None:
            return ExactStates(self.observation_space, capacity)
        return KeyedStates(self.observation_space, capacity, self.state_key)

    def use_states(
        self, state_class: type[ExactStates], state_kwargs: dict[str, Any] | None = None
    ) -> None:
        """
        Tell states apart in another way from now on. States and goals that were met are forgotten,
        apart from those that are held out.

        :param state_class: :class:`~sb3_manygoals.world.LearnedStates` or
            :class:`~sb3_manygoals.world.ExactStates`
        :param state_kwargs: further arguments of the class. None: its defaults
        :raises TypeError: if it is no such class
        :raises ValueError: if there is a ``state_key``
        :raises MemoryError: if as many states as ``capacity``, if it was given, do not fit into the
            memory that is available. Then nothing has changed
        """
        check_state_class(state_class, self.state_key)
        before = (self.state_class, self.state_kwargs, self.capacity)
        n_held_out = self.states.capacity - self.capacity
        self.state_class = state_class
        self.state_kwargs = dict(state_kwargs or {})
        if not self._capacity_was_given:
            # Of learned states more observations are kept, so fewer states fit into memory.
            most = max(share_of_memory(0.5) // self._size_of_goal, 1)
            self.capacity = min(_DEFAULT_CAPACITY, most)
        try:
            # Exact states take less than any others, and what there is now is given back.
            if state_class is not ExactStates:
                check_memory(
                    f"a goal buffer of capacity {self.capacity}",
                    {"goals": self.capacity * self._size_of_goal},
                    "choose a smaller capacity",
                )
            states = self._new_states(self.capacity + n_held_out)
        except BaseException:
            self.state_class, self.state_kwargs, self.capacity = before
            raise
        self.states = states
        self._known = self._no_goals()

    def begin_anew(self) -> None:
        """Let all states become goals again, because states were learned and have other ids."""
        self._known = self._no_goals()
        self._become_goals(np.arange(len(self.states)), self.states.observations)

    def _states_of_goals(self, capacity: int) -> ExactStates:
        """Return a table of goals that tells them apart as states are told apart."""
        if self.achievement.goal is None and self.state_key is not None:
            return KeyedStates(self.observation_space, capacity, self.state_key, 1)
        return ExactStates(self.goal_space, capacity)

    @property
    def goals_are_observations(self) -> bool:
        """Whether a goal is an observation, and not what observations achieve."""
        return self.achievement.goal is None

    @property
    def goals_are_states(self) -> bool:
        """Whether each goal is achieved by one state, and each state achieves one goal."""
        return self.goals_are_observations and self.achievement.reached is None

    @property
    def remembers_goals(self) -> bool:
        """Whether a goal stays known once it was met."""
        return True

    @property
    def takes_all_goals(self) -> bool:
        """Whether all that is achieved becomes a goal: there is no ``goal_list``."""
        return self._goal_list is None

    @property
    def goals_are_places(self) -> bool:
        """Whether goals are floats, and a distance or a function says which are reached."""
        return self.achievement.reached is not None and are_floats(self.goal_space)

    @property
    def tells_goals_by_ids(self) -> bool:
        """Whether an observation reaches a goal if and only if it has the goal's id."""
        return self.achievement.reached is None and (
            self.goals_are_observations or self.states.is_exact
        )

    @property
    def _size_of_goal(self) -> int:
        """Bytes of a goal, of an observation, and of their entries in the indexes."""
        is_exact = self.state_key is None and self.state_class in (None, ExactStates)
        n_examples = 1 if is_exact else EXAMPLES_PER_STATE
        size_of_observation = math.prod(self.observation_shape) * self.observation_dtype.itemsize
        size = n_examples * size_of_observation + _INDEX_SIZE
        if self.state_class is not None and issubclass(self.state_class, LearnedStates):
            size += _SIZE_OF_MEAN * len(Inputs(self.observation_space))
        if not self.goals_are_observations:
            size += math.prod(self.shape) * self.dtype.itemsize + _INDEX_SIZE
        return size

    def _no_goals(self) -> KnownGoals:
        """Return a table of goals, which has those of ``goal_list`` only."""
        if self.goals_are_observations:
            return StatesAsGoals(self.states, self._held_out, self.capacity, self.achievement)
        return AchievedGoals(
            self.states, self._held_out, self.capacity, self.achievement, self._goal_list
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> GoalBuffer:
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        for function in (self.state_key, self.achievement.goal, self.achievement.reached):
            # Copies share functions, which may refer to what cannot be copied.
            memo[id(function)] = function
        for name, value in vars(self).items():
            vars(copied)[name] = copy.deepcopy(value, memo)
        return copied

    def __len__(self) -> int:
        return len(self._known)

    def __getitem__(self, ids: NDArray[np.integer[Any]] | int | slice) -> NDArray[Any]:
        """
        Return goals.

        :param ids: ids of goals, of any shape
        :return: shape ``(*ids.shape, *goal_space.shape)``
        :raises IndexError: if there is no such goal
        """
        if not isinstance(ids, slice) and np.any(np.asarray(ids) < 0):
            raise IndexError(
                f"there is no goal with the id {int(np.min(ids))}: that is the id of an unknown "
                "observation"
            )
        return self._known[ids]

    def sample_shown(self, ids: NDArray[np.int64], rng: np.random.Generator) -> NDArray[Any]:
        """
        Return goals as a learner shows them to its network. If goals are states with several
        observations, one of them is drawn.

        :param ids: ids of goals, int64, shape ``(n,)``
        :param rng: random generator
        :return: shape ``(n, *goal_space.shape)``
        """
        return self._known.sample(ids, rng)

    @property
    def memory_to_come(self) -> dict[str, int]:
        """Bytes that the buffer will use when it is full, besides those that it uses now."""
        return {"goals": (self.capacity - len(self._known)) * self._size_of_goal}

    @property
    def has_held_out(self) -> bool:
        """Whether some observations may never become goals."""
        return len(self._held_out) > 0

    @property
    def state_ids(self) -> NDArray[np.int64]:
        """
        The first known state that achieves each goal, in the order of the goals' ids, shape
        ``(len(self),)``. ``UNKNOWN`` for a goal of ``goal_list`` that no state achieved.
        """
        return self._known.state_ids

    @property
    def observations(self) -> NDArray[Any]:
        """
        All goals in the order of their ids, as a read-only array of shape
        ``(len(self), *goal_space.shape)``.
        """
        return self._known.observations

    def add(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        """
        Add observations as goals if they are new and not held out, while there is room.

        :param observations: shape ``(n, *observation_space.shape)``, the dtype of the space. Bounds
            of a Box are not checked
        :return: the goal id of each observation, shape ``(n,)``. It is ``UNKNOWN`` if the
            observation is held out, or if there was no room for it
        :raises ValueError: if the observations do not fit the space, or a number is out of the
            range of a Discrete, MultiDiscrete or MultiBinary space
        """
        observations = self.check(observations, "observations")
        self._check_range(observations)
        state_ids = self.states.add(observations)
        return self._become_goals(state_ids, observations)

    def observe(self, observations: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """
        Add observations that environments show, as :meth:`add` does, and return state ids too.

        :meth:`ExactStates.observe <sb3_manygoals.world.ExactStates.observe>` counts how many of
        them recur.

        :param observations: shape ``(n, *observation_space.shape)``, the dtype of the space
        :return: the state id and the goal id of each observation, both of shape ``(n,)``.
            ``UNKNOWN`` where it is no known state or no goal
        :raises ValueError: if the observations do not fit the space, or a number is out of the
            range of a Discrete, MultiDiscrete or MultiBinary space
        """
        observations = self.check(observations, "observations")
        self._check_range(observations)
        state_ids = self.states.observe(observations)
        return state_ids, self._become_goals(state_ids, observations)

    def _check_range(self, observations: NDArray[Any]) -> None:
        """Refuse numbers out of range, of which no network can make one-hot vectors."""
        if self._is_discrete:
            check_inside(self.observation_space, observations, "observations")

    def _become_goals(
        self, state_ids: NDArray[np.int64], observations: NDArray[Any]
    ) -> NDArray[np.int64]:
        """Return the goal ids of states. States that are no goals yet become goals."""
        goal_ids = self._known.add(state_ids, observations)
        if self._known.is_full and not self._warned_that_full:
            self._warn_if_no_room(self._known.without_room(state_ids, goal_ids, observations))
        return goal_ids

    def achieved(
        self, observations: NDArray[Any], goal_ids: NDArray[np.int64] | None = None
    ) -> NDArray[Any]:
        """
        Return what observations achieve.

        :param observations: shape ``(n, *observation_space.shape)``, the dtype of the space
        :param goal_ids: the ids of these goals as far as they are known, ``UNKNOWN`` for others,
            int64, shape ``(n,)``, or None
        :return: goals, shape ``(n, *goal_space.shape)``. They are the observations themselves if
            there is no ``goal``
        :raises ValueError: if ``goal`` returns something else than an element of the goal space
        """
        if self.goals_are_observations:
            return observations
        if goal_ids is None:
            return self.achievement.of(observations)
        is_known = goal_ids != UNKNOWN
        found = np.empty((len(observations), *self.shape), dtype=self.dtype)
        found[is_known] = self[goal_ids[is_known]]
        found[~is_known] = self.achievement.of(observations[~is_known])
        return found

    def is_reached(
        self,
        achieved: NDArray[Any],
        desired: NDArray[Any],
        achieved_ids: NDArray[np.int64] | None = None,
        desired_ids: NDArray[np.int64] | None = None,
    ) -> NDArray[np.bool_]:
        """
        Return which achievements reach the goals beside them.

        :param achieved: what was achieved, shape ``(*batch, *goal_space.shape)``
        :param desired: goals, the same shape
        :param achieved_ids: the ids of what was achieved, ``UNKNOWN`` for unknown ones, int64,
            shape ``batch``. None: nobody knows them
        :param desired_ids: the ids of the goals, likewise
        :return: whether each goal is reached, shape ``batch``
        """
        if self.achievement.reached is not None:
            return self.achievement.reaches(achieved, desired)
        if achieved_ids is None or desired_ids is None:
            return self._are_equal(achieved, desired)
        reached: NDArray[np.bool_] = achieved_ids == desired_ids
        without_id = (achieved_ids == UNKNOWN) | (desired_ids == UNKNOWN)
        if without_id.any():
            reached[without_id] = self._are_equal(achieved[without_id], desired[without_id])
        return reached

    def _are_equal(self, achieved: NDArray[Any], desired: NDArray[Any]) -> NDArray[np.bool_]:
        """Return which achievements are the goals beside them."""
        if self.goals_are_observations and isinstance(self.states, LearnedStates):
            ids = [self.states.ids(array.reshape(-1, *self.shape)) for array in (achieved, desired)]
            same = (ids[0] == ids[1]) & (ids[0] != UNKNOWN)
            batch = achieved.shape[: achieved.ndim - len(self.shape)]
            equal = identical(achieved, desired, len(self.shape))
            equal |= same.reshape(batch)
            return equal
        if not self.goals_are_observations or not isinstance(self.states, KeyedStates):
            return identical(achieved, desired, len(self.shape))
        keys = [self.states.keys(array.reshape(-1, *self.shape)) for array in (achieved, desired)]
        batch = achieved.shape[: achieved.ndim - len(self.shape)]
        return identical(keys[0], keys[1], keys[0].ndim - 1).reshape(batch)

    def number(self, goals: NDArray[Any]) -> NDArray[np.int64]:
        """
        Number goals, so that two of them have the same number if and only if they are the same
        goal. Whether a goal is known does not matter.

        :param goals: shape ``(n, *goal_space.shape)``, the dtype of the space
        :return: a number for each goal from 0 on, int64, shape ``(n,)``
        """
        states = self.states
        if self.goals_are_observations and isinstance(states, KeyedStates):
            goals = states.keys(goals)
        flat = np.ascontiguousarray(goals).reshape(len(goals), -1)
        # Goals are the same if all of their bytes are.
        rows = flat.view(f"V{flat.itemsize * flat.shape[1]}").reshape(-1)
        numbers: NDArray[np.int64] = np.unique(rows, return_inverse=True)[1].reshape(-1)
        if self.goals_are_observations and isinstance(states, LearnedStates):
            ids = states.ids(goals)
            numbers = np.where(ids == UNKNOWN, numbers, len(goals) + ids)
        return numbers

    def _warn_if_no_room(self, observations: NDArray[Any]) -> None:
        """Warn if one of these goals is not held out. Then there was no room for it."""
        if self.is_held_out(observations).all():
            return
        self._warned_that_full = True
        warnings.warn(
            f"the goal buffer is full with {self.capacity} goals: new observations will not become "
            "goals, and plans leave them out. To keep more, raise capacity, of the goal buffer",
            RuntimeWarning,
            stacklevel=4,
        )

    def ids(self, goals: NDArray[Any]) -> NDArray[np.int64]:
        """
        Return the ids of goals. New ones are not added.

        :param goals: shape ``(n, *goal_space.shape)``, the dtype of the space
        :return: the id of each, shape ``(n,)``. ``UNKNOWN`` for those that are not known
        :raises ValueError: if the goals do not fit the space
        """
        return self._known.ids(self.check_shape(goals, "goals"))

    def stand_ins(self, goals: NDArray[Any]) -> NDArray[np.int64]:
        """
        Return the ids of goals, or of known goals that stand for them: with a tolerance, a goal
        that was not met itself has that of the nearest known goal that reaches it. A buffer that
        was loaded without the GoalEnv that it asks knows of no such goals.

        :param goals: shape ``(n, *goal_space.shape)``, the dtype of the space
        :return: ids, shape ``(n,)``. ``UNKNOWN`` for goals that no known goal reaches
        :raises ValueError: if the goals do not fit the space
        """
        ids = self.ids(goals)
        achievement = self.achievement
        if achievement.reached is None or not achievement.is_bound or len(self) == 0:
            return ids
        for row in np.flatnonzero(ids == UNKNOWN).tolist():
            places = achievement.pairs(self[:], goals[row : row + 1])[0]
            if len(places):
                nearby = self[places].reshape(len(places), -1)
                differences = np.subtract(nearby, goals[row].reshape(-1), dtype=np.float64)
                ids[row] = places[np.square(differences).sum(axis=1).argmin()]
        return ids

    def look_up(self, observations: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """
        Return the states of observations, and the goals that they achieve. New ones are not added.

        :param observations: shape ``(n, *observation_space.shape)``, the dtype of the space
        :return: the state id and the goal id of each observation, both of shape ``(n,)``.
            ``UNKNOWN`` where it is no known state, or achieves no known goal
        :raises ValueError: if the observations do not fit the space
        """
        observations = self.check(observations, "observations")
        state_ids = self.states.ids(observations)
        return state_ids, self._known.ids_achieved(state_ids, observations)

    def goals_of_states(self, state_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """
        Return the goals that states achieve, those that their first observations achieve.

        :param state_ids: ids of states, int64, of any shape. ``UNKNOWN`` is allowed
        :return: the goal id of each state, int64, of the same shape. ``UNKNOWN`` for states that
            achieve no known goal, and for ``UNKNOWN``
        """
        goal_ids: NDArray[np.int64] = self._known.goal_of_state[state_ids]
        return goal_ids

    def achieving_states(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """
        Return which known states achieve each goal.

        :return: where the states of each goal begin in the second array, with its length as the
            last entry, int64, shape ``(len(self) + 1,)``; and ids of states, those of one goal
            after those of the other, int64
        """
        return self._known.achieving_states()

    def sample_ids(self, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """
        Draw goals uniformly, with replacement.

        :param n: number of goals to draw
        :param rng: random generator
        :return: ids of goals, int64, shape ``(n,)``
        :raises ValueError: if the buffer is empty or ``n`` is not positive
        """
        if len(self) == 0:
            raise ValueError("cannot sample from an empty goal buffer: add observations first")
        return rng.integers(len(self), size=check_count("n", n))

    def sample_others(
        self, current_ids: NDArray[np.int64], rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """
        Draw a goal for each environment, uniformly among all goals except the one that it shows.

        :param current_ids: the id of the goal that each environment shows now, ``UNKNOWN`` if it
            shows none, int64, shape ``(n,)``. This goal is drawn only if there is no other goal
        :param rng: random generator
        :return: ids of goals, int64, shape ``(n,)``
        :raises ValueError: if the buffer is empty
        """
        avoids = (current_ids != UNKNOWN) & (len(self) > 1)
        ids: NDArray[np.int64] = rng.integers(len(self) - avoids, size=len(current_ids))
        # The draw is from one goal fewer. Numbers from the current goal on are raised by one.
        ids += avoids & (ids >= current_ids)
        return ids

    def is_held_out(self, observations: NDArray[Any]) -> NDArray[np.bool_]:
        """
        Return which goals are held out, so that they are neither pursued nor taught.

        :param observations: goals, shape ``(n, *goal_space.shape)``, the dtype of the space
        :return: whether each is held out, shape ``(n,)``
        :raises ValueError: if the goals do not fit the space
        """
        observations = self.check_shape(observations, "observations")
        found: NDArray[np.bool_] = np.not_equal(self._held_out.ids(observations), UNKNOWN)
        if self.goals_are_observations and not self.states.is_exact and self.has_held_out:
            # The whole state is held out, however it looks.
            held_out = self.states.ids(self._held_out.observations)
            found |= np.isin(self.states.ids(observations), held_out[held_out != UNKNOWN])
        return found

    def check(self, observations: NDArray[Any], name: str, axes: int | None = 1) -> NDArray[Any]:
        """
        Raise an error if observations do not have the shape and dtype of the space.

        :param observations: shape ``(*batch, *observation_space.shape)``, the dtype of the space
        :param name: name of the argument, for the message
        :param axes: number of axes in ``batch``: 1 for n observations, 0 for a single one. None:
            any number
        :return: the observations as an array
        :raises ValueError: if shape or dtype are not those of the space
        """
        return check_batch(observations, self.observation_shape, self.observation_dtype, name, axes)

    def check_shape(self, goals: NDArray[Any], name: str, axes: int | None = 1) -> NDArray[Any]:
        """
        Raise an error if goals do not have the shape and dtype of the space of goals.

        :param goals: shape ``(*batch, *goal_space.shape)``, the dtype of the space
        :param name: name of the argument, for the message
        :param axes: number of axes in ``batch``: 1 for n goals, 0 for a single one. None: any
            number
        :return: the goals as an array
        :raises ValueError: if shape or dtype are not those of the space
        """
        return check_batch(goals, self.shape, self.dtype, name, axes)

    def check_goals(self, goals: NDArray[Any], name: str, axes: int | None = 1) -> NDArray[Any]:
        """
        Raise an error if a user's goals are outside of the space.

        A goal may be outside of the bounds of a Box if it was met.

        :param goals: shape ``(*batch, *goal_space.shape)``, the dtype of the space
        :param name: name of the argument, for the message
        :param axes: number of axes in ``batch``: 1 for n goals, 0 for a single one. None: any
            number
        :return: the goals as an array
        :raises ValueError: if shape or dtype are not those of the space
        :raises OutsideSpaceError: if a goal is outside of the space, which is a ValueError too
        """
        array = self.check_shape(goals, name, axes)
        rows = array.reshape(-1, *self.shape)
        met = None
        if isinstance(self.goal_space, spaces.Box):
            met = self.have_met(rows)
        of = "observation space" if self.goals_are_observations else "goal space"
        check_inside(self.goal_space, rows, name, met, numbered=axes != 0, of=of)
        return array

    def have_met(self, observations: NDArray[Any]) -> NDArray[np.bool_]:
        """
        Return which goals were met before. Held-out observations count too.

        :param observations: goals, shape ``(n, *goal_space.shape)``, the dtype of the space
        :return: whether each was met, shape ``(n,)``
        :raises ValueError: if the goals do not fit the space
        """
        return self._known.have_met(self.check_shape(observations, "observations"))

    def nearest(self, observation: NDArray[Any]) -> int | None:
        """
        Find the known goal that differs least from another one, by the sum of the absolute
        differences of their numbers.

        :param observation: a goal, shape ``goal_space.shape``, the dtype of the space
        :return: its id. None if no goal is known, if the space is Discrete, in which differences
            mean nothing, or if there are too many goals to search
        """
        goals = self.observations
        if isinstance(self.goal_space, spaces.Discrete):
            return None
        if not 0 < goals.size <= _MOST_NUMBERS_TO_SEARCH:
            return None
        wanted = np.asarray(observation, np.float64).reshape(-1)
        n_rows = max(1, _NUMBERS_AT_A_TIME // max(wanted.size, 1))
        distances = [
            np.abs(goals[row : row + n_rows].reshape(-1, wanted.size) - wanted).sum(axis=1)
            for row in range(0, len(goals), n_rows)
        ]
        return int(np.concatenate(distances).argmin())

    def describe_nearest(self, observation: NDArray[Any]) -> str:
        """
        Say which known goal is nearest to another one, for the end of a message.

        :param observation: a goal, shape ``goal_space.shape``, the dtype of the space
        :return: a clause that begins with a comma. Empty if there is nothing to say
        """
        goal_id = self.nearest(observation)
        if goal_id is None:
            return ""
        found = self[goal_id]
        n_different = int((found != observation).sum())
        text = f", the nearest known goal has the id {goal_id}"
        if shown(found) == str(found.tolist()):
            text += f" and is {shown(found)}"
        if n_different == 0:
            return f"{text} (its numbers are equal, its bytes are not, as those of -0.0 and 0.0)"
        return f"{text} ({n_different} of {found.size} numbers differ)"

    def describe_unknown(self, desired: NDArray[Any]) -> str | None:
        """
        Say which goals are neither known, nor reached by known ones, nor held out, for a warning.

        :param desired: shape ``(n, *goal_space.shape)``, the dtype of the space
        :return: a sentence. None if each is known or held out
        """
        unknown = self.ids(desired) == UNKNOWN
        if unknown.any():
            unknown &= ~self.is_held_out(desired)
        if not self.achievement.is_bound:
            # Nobody can tell which of them are reached by known ones.
            return None
        if unknown.any() and self.achievement.reached is not None and len(self):
            rows = self.achievement.pairs(self[:], desired[unknown])[1]
            unknown[np.flatnonzero(unknown)[rows]] = False
        if not unknown.any():
            return None
        first = desired[unknown][0]
        return (
            f"{int(unknown.sum())} of {len(desired)} goals are not known to the model: it cannot "
            "be expected to reach what it never met. "
            f"The first is {shown(first)}{self.describe_nearest(first)}"
        )

    def describe_unmet(self) -> str | None:
        """
        Say how many of the held-out observations were never met, for a warning.

        :return: a sentence. None if all were met, or if there is no room for more states
        """
        held_out = self._held_out.observations
        met = self.have_met(held_out)
        if not self.goals_are_observations:
            # What is held out is no known goal, so it is looked for in what states achieve.
            achieved = ExactStates(self.goal_space, max(len(self.states), 1))
            achieved.add(self.achieved(self.states.observations))
            met = np.not_equal(achieved.ids(held_out), UNKNOWN)
        unmet = held_out[~met]
        if len(unmet) == 0 or len(self.states) == self.states.capacity:
            return None
        return (
            f"{len(unmet)} of {len(held_out)} held-out observations were never met, the first is "
            f"{shown(unmet[0])}{self.describe_nearest(unmet[0])}; do they equal observations byte "
            "for byte, after any rounding and casting?"
        )

    def describe_unachieved(self) -> str | None:
        """
        Say how many goals of ``goal_list`` were never achieved, for a warning.

        :return: a sentence. None if there is no such list, all of its goals were achieved, or
            nobody can tell
        """
        n_states = len(self.states)
        if self._goal_list is None or n_states == 0 or n_states == self.states.capacity:
            return None
        if not self.achievement.is_bound:
            return None
        goals = self.observations[self.state_ids == UNKNOWN]
        achieved = self.achieved(self.states.observations[:1])
        if self.achievement.reached is not None:
            if n_states * len(goals) > _MOST_PAIRS_TO_ASK:
                return None
            achieved = np.unique(self.achieved(self.states.observations), axis=0)
            are_met = [
                self.is_reached(achieved, np.repeat(goal[None], len(achieved), axis=0)).any()
                for goal in goals
            ]
            goals = goals[~np.array(are_met, np.bool_)]
        # The observations of one state may achieve several goals, of which it knows one.
        if len(goals) == 0 or (not self.states.is_exact and len(goals) < len(self)):
            return None
        return (
            f"{len(goals)} of {len(self)} goals in goal_list were never achieved. The first is "
            f"{shown(goals[0])}, and one thing that was achieved is {shown(achieved[0])}: does "
            "goal return such numbers, or was training too short?"
        )

    @property
    def config(self) -> dict[str, Any]:
        """The arguments of a buffer like this one, besides the observation space."""
        return {
            "capacity": self.capacity,
            "held_out": self._held_out.observations.copy(),
            "state_key": self.state_key,
            "state_class": self.state_class,
            "state_kwargs": self.state_kwargs,
            "goal_list": self._goal_list,
            **self.achievement.config,
        }

    def check_held_out(self, observations: NDArray[Any]) -> None:
        """
        Raise an error if observations that a model held out are not held out in this buffer.

        :param observations: goals, shape ``(n, *goal_space.shape)``, the dtype of the space
        :raises ValueError: if one of them may become a goal
        """
        n_missing = int((self._held_out.ids(observations) == UNKNOWN).sum())
        if n_missing:
            raise ValueError(
                f"{n_missing} of {len(observations)} observations that the model held out are not "
                "held out in env's goal buffer: give it held_out=model.goal_config['held_out']"
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        """
        Write the goals, all other states, and held-out observations to a file without pickle. If
        there is such a file, it is replaced only when the new one is complete.

        :param path: path of an ``.npz`` file. The ending may be left out
        :raises OSError: if the file cannot be written
        """
        write_npz(path, {"format": _FILE_FORMAT, **self.arrays()})

    def arrays(self) -> dict[str, Any]:
        """Return goals, states and held-out observations, as :meth:`restore` takes them."""
        states = self.states.get_checkpoint_state()
        examples = {name: states[name] for name in states if _is_of_examples(name)}
        return {
            "states": states["observations"],
            "state_ids": self.state_ids.copy(),
            "held_out": self._held_out.observations.copy(),
            "capacity": self.capacity,
            **examples,
        }

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        observation_space: spaces.Space[Any],
        capacity: int = 1,
        **kwargs: Any,
    ) -> GoalBuffer:
        """
        Read a goal buffer that :meth:`save` wrote.

        :param path: path of the file. The ending ``.npz`` may be left out
        :param observation_space: space of the observations
        :param capacity: least capacity of the new buffer. If the file has a greater one, the buffer
            gets that
        :param kwargs: ``state_key``, ``goal``, ``goal_space``, ``reached``, ``goal_list``,
            ``state_class`` and ``state_kwargs``, as of the buffer that was saved. They are not in
            the file
        :return: a new goal buffer
        :raises OSError: if the file cannot be read
        :raises ValueError: if the file is no complete goal buffer, an earlier version wrote it, or
            its observations do not fit the space
        """
        arrays = read_npz(path, _IN_FILE, "a goal buffer")
        capacity = max(int(arrays["capacity"]), capacity)
        buffer = cls(observation_space, capacity, **kwargs)
        buffer.restore({**arrays, "capacity": capacity})
        return buffer

    def restore(self, arrays: dict[str, Any]) -> None:
        """
        Replace states, goals and held-out observations, in place.

        :param arrays: what :meth:`arrays` returned, of a buffer with the same arguments
        :raises ValueError: if the states are not distinct, or something does not fit. Then nothing
            has changed
        """
        states = self.check(arrays["states"], "the states of the file")
        held_out = arrays["held_out"]
        capacity = int(arrays["capacity"])
        # Held-out observations need room of their own. What states achieve does not.
        extra = len(held_out) if self.goals_are_observations else 0
        observed = {
            "capacity": capacity + extra,
            "observations": states,
            "n_added": 0,
            "n_recurred": 0,
            **{name: arrays[name] for name in arrays if _is_of_examples(name)},
        }
        self._restore(observed, arrays["state_ids"], held_out, capacity)

    def _restore(
        self,
        states: dict[str, Any],
        state_ids: NDArray[np.int64],
        held_out: NDArray[Any],
        capacity: int,
    ) -> None:
        """Replace states, goals and held-out observations, in place."""
        self.check(states["observations"], "the states")
        self.check_shape(held_out, "what is held out")
        if len(state_ids) > capacity:
            raise CheckpointError(f"there are {len(state_ids)} goals, of at most {capacity}")
        self._known.check(states["observations"], state_ids, held_out)
        try:
            self.states.set_checkpoint_state(states)
        except ValueError as error:
            raise CheckpointError(str(error)) from error
        self.capacity = capacity
        self._held_out = self._states_of_goals(len(held_out) + 1)
        self._held_out.add(held_out)
        self._known = self._no_goals()
        self._known.restore(state_ids)

    @property
    def identity(self) -> dict[str, Any]:
        """What tells these kinds of states and goals from others, as plain data."""
        key = None if self.state_key is None else identity_of(self.state_key, variables=True)
        return {"state_key": key, **self.achievement.identity}

    def _kind(self) -> dict[str, Any]:
        """Return what must be the same in a buffer and in a state that is restored into it."""
        kind: dict[str, Any] = {"shape": self.shape, "dtype": self.dtype.str, **self.identity}
        if self._capacity_was_given:
            kind["capacity"] = self.capacity
        return kind

    def get_checkpoint_state(self) -> dict[str, Any]:
        """
        Return states, goals and held-out observations.

        :return: a dictionary of plain data and copies of arrays
        """
        return {
            **self._kind(),
            "capacity": self.capacity,
            "state_class": type(self.states).__name__,
            "state_kwargs": self.state_kwargs,
            "states": self.states.get_checkpoint_state(),
            "state_ids": self.state_ids.copy(),
            "held_out": self._held_out.observations.copy(),
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Replace states, goals and held-out observations, in place.

        :param state: what :meth:`get_checkpoint_state` returned
        :raises CheckpointError: if the state is of a goal buffer for another space or of another
            given capacity, if it lacks what is held out here, or if it is damaged
        """
        check_same("a goal buffer", state, self._kind())
        n_held_out = len(self._held_out)
        saved_held_out = self.check_shape(state["held_out"], "what is held out")
        # They are compared as goals are, for example by the keys of their states.
        found = self._held_out.ids(saved_held_out)
        if len(np.setdiff1d(np.arange(n_held_out), found)):
            raise CheckpointError(
                "the checkpoint is of a goal buffer that does not hold out what this one does: give"
                " the same held_out"
            )
        saved = state.get("state_class", type(self.states).__name__)
        if saved != type(self.states).__name__:
            # The learner has chosen states by what it saw.
            kinds = {kind.__name__: kind for kind in (ExactStates, LearnedStates)}
            if saved not in kinds or self.state_key is not None:
                raise CheckpointError(
                    f"the checkpoint is of states of class {saved}, got "
                    f"{type(self.states).__name__}"
                )
            self.use_states(kinds[saved], state["state_kwargs"])
        self._restore(
            state["states"], state["state_ids"], state["held_out"], int(state["capacity"])
        )


def _is_of_examples(name: str) -> bool:
    """Return whether this array of the states is saved beside their observations."""
    return name in _OF_EXAMPLES or name.startswith("learned_")


def check_state_class(state_class: Any, state_key: StateKey | None) -> None:
    """
    Raise an error if states cannot be of this class.

    :param state_class: what the user gave, a class or None
    :param state_key: the user's key of states, or None
    :raises TypeError: if it is neither ExactStates nor LearnedStates nor a subclass of them
    :raises ValueError: if both are given
    """
    if state_class is None:
        return
    is_class = isinstance(state_class, type) and issubclass(state_class, ExactStates)
    if not is_class or issubclass(state_class, KeyedStates):
        raise TypeError(
            f"state_class must be LearnedStates or ExactStates, got {state_class!r}; states by a "
            "key need state_key"
        )
    if state_key is not None:
        raise ValueError("state_class and state_key both say what a state is: give one of them")
