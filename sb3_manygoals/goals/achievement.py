"""What an observation achieves, and which goals are reached by that."""

from __future__ import annotations

import copy
import math
import numbers
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from sb3_manygoals.checkpoint.functions import UnsavedFunction, identity_of
from sb3_manygoals.goals.sources import EnvReached
from sb3_manygoals.goals.spaces import check_goal_space, check_inside, identical
from sb3_manygoals.memory_limits import share_of_memory
from sb3_manygoals.validation import check_number

GoalFunction = Callable[[NDArray[Any]], Any]
"""
A function of one observation, shape ``observation_space.shape``. It returns what this observation
achieves: an array of the goal space, a number, or a sequence of numbers.
"""
Reached = Callable[[NDArray[Any], NDArray[Any]], Any]
"""
A function of achievements and of goals, both of shape ``(n, *goal_space.shape)``. It returns
whether each achievement reaches the goal beside it, shape ``(n,)``.
"""

# So many pairs of an achievement and a goal are compared at a time.
_PAIRS_AT_A_TIME = 2**18
# All achievements that are compared at a time have at most so many numbers together.
_NUMBERS_AT_A_TIME = 2**22
# If all achievements and goals together take more of the available memory, no tree is made of them.
_SHARE_OF_TREE = 0.25
# Two computations of a distance differ by less than this share of it.
_ROUNDING = 1e-9


class Achievement:
    """
    What observations achieve, and which goals are reached by that.

    :param observation_space: space of the observations: Box, Discrete, MultiDiscrete or MultiBinary
    :param goal: returns what an observation achieves. None: the observation itself
    :param goal_space: space of achievements and goals. None: that of the observations, or one for
        arrays like that which ``goal`` returns for a random observation
    :param reached: greatest Euclidean distance at which an achievement reaches a goal, or a
        function that says so. None: they must be equal byte for byte
    :raises TypeError: if the observations or the achievements cannot be goals, or a function is
        none
    :raises ValueError: if a number is out of range, or ``goal`` fails for a random observation and
        ``goal_space`` is not given
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        goal: GoalFunction | None = None,
        goal_space: spaces.Space[Any] | None = None,
        reached: float | Reached | None = None,
    ) -> None:
        check_goal_space(observation_space)
        for name, value in (("goal", goal), ("reached", reached)):
            is_number = name == "reached" and isinstance(value, numbers.Real)
            if value is not None and not is_number and not callable(value):
                kind = "a number or a function" if name == "reached" else "a function"
                raise TypeError(f"{name} must be {kind}, got {value!r}")
        if goal is None and goal_space is not None:
            raise ValueError(f"goal_space={goal_space} is given without goal")
        if reached is not None and not callable(reached):
            reached = check_number("reached", reached, at_least=0)
        self.goal = goal
        self.reached = reached
        if goal is None:
            goal_space = observation_space
        elif goal_space is None:
            goal_space = _space_of(goal, observation_space)
        self.goal_space = goal_space
        name = "observation_space" if goal is None else "goal_space"
        self.shape, self.dtype = check_goal_space(self.goal_space, name)

    @property
    def config(self) -> dict[str, Any]:
        """The arguments for another one like this, besides the observation space."""
        return {
            "goal": self.goal,
            "goal_space": None if self.goal is None else self.goal_space,
            "reached": self.reached,
        }

    @property
    def asks_env(self) -> bool:
        """Whether a GoalEnv says which goals are reached."""
        return isinstance(self.reached, EnvReached)

    @property
    def is_bound(self) -> bool:
        """
        Whether it can say which goals are reached. Not if it was loaded without the GoalEnv that it
        asks, or without its function, which could not be saved.
        """
        if isinstance(self.reached, UnsavedFunction):
            return False
        return not isinstance(self.reached, EnvReached) or self.reached.is_bound

    def ask(self, reached: float | Reached | None) -> None:
        """
        Let another GoalEnv say which goals are reached, unless the user has said it.

        :param reached: the function of the GoalEnv. If it is no such function, nothing changes
        """
        if self.asks_env and isinstance(reached, EnvReached):
            self.reached = reached

    @property
    def identity(self) -> dict[str, Any]:
        """What tells this from others, as plain data."""
        is_number = self.reached is None or isinstance(self.reached, float)
        reached = self.reached if is_number else identity_of(self.reached, variables=True)
        return {
            "goal": None if self.goal is None else identity_of(self.goal, variables=True),
            "reached": "env" if self.asks_env else reached,
        }

    def of(self, observations: NDArray[Any]) -> NDArray[Any]:
        """
        Return what observations achieve.

        :param observations: shape ``(n, *observation_space.shape)``
        :return: achievements, shape ``(n, *goal_space.shape)``, the dtype of the goal space. They
            are the observations themselves if there is no function
        :raises ValueError: if the function returns something else than an element of the goal space
        """
        if self.goal is None:
            return observations
        achieved = np.empty((len(observations), *self.shape), dtype=self.dtype)
        for row, observation in enumerate(observations):
            # The function may write into what it gets.
            achieved[row] = self.as_goal(self.goal(observation.copy()), "goal must return")
        if not isinstance(self.goal_space, spaces.Box):
            # No one-hot vector can be made of a number out of range.
            check_inside(
                self.goal_space, achieved, "what goal returns", numbered=False, of="goal space"
            )
        return achieved

    def as_goal(self, given: Any, what: str) -> NDArray[Any]:
        """
        Return what a user gives as a goal, as an array of the goal space.

        :param given: an array, a number, or a sequence of numbers
        :param what: the beginning of messages, such as "goal must return"
        :return: the goal, shape ``goal_space.shape``, the dtype of the goal space. A float -0.0 is
            0.0
        :raises ValueError: if it has another shape or kind of dtype, or the dtype of the goal space
            does not hold its numbers. Their range is not checked
        """
        array = np.asarray(given)
        if array.shape == () and self.shape == (1,):
            array = array[None]
        is_number = array.dtype.kind in "iubf"
        fits = is_number and (array.dtype.kind != "f" or self.dtype.kind == "f")
        if array.shape != self.shape or not fits:
            raise ValueError(
                f"{what} {self.dtype} of shape {self.shape}, got {array.dtype} of {array.shape}"
            )
        with np.errstate(over="ignore"):
            goal = array.astype(self.dtype)
        if self.dtype.kind == "f":
            if not np.isfinite(goal).all():
                raise ValueError(f"{what} finite numbers of {self.dtype}, got {given!r}")
            # Rounding may give -0.0, whose bytes are not those of 0.0.
            return np.asarray(goal + 0.0, dtype=self.dtype)
        if not np.array_equal(goal, array):
            raise ValueError(f"{what} numbers that {self.dtype} holds, got {given!r}")
        return goal

    def reaches(self, achieved: NDArray[Any], desired: NDArray[Any]) -> NDArray[np.bool_]:
        """
        Return which achievements reach the goals beside them.

        :param achieved: achievements, shape ``(*batch, *goal_space.shape)``
        :param desired: goals, the same shape
        :return: whether each achievement reaches its goal, shape ``batch``
        :raises ValueError: if the user's function returns an array of another shape
        """
        n_axes = len(self.shape)
        if self.reached is None:
            return identical(achieved, desired, n_axes)
        batch = achieved.shape[: achieved.ndim - n_axes]
        if not callable(self.reached):
            distance = _distances(achieved, desired, n_axes)
            return np.asarray(distance <= self.reached)
        rows = [array.reshape(-1, *self.shape).copy() for array in (achieved, desired)]
        found = np.asarray(self.reached(*rows))
        if found.shape != (len(rows[0]),) or found.dtype.kind not in "bi":
            raise ValueError(
                f"reached must return booleans of shape {(len(rows[0]),)}, one for each pair, got "
                f"{found.dtype} of {found.shape}"
            )
        return found.astype(np.bool_).reshape(batch)

    @property
    def _pairs_at_a_time(self) -> int:
        """So many pairs of an achievement and a goal are in memory at the same time."""
        n_numbers = max(math.prod(self.shape), 1)
        return max(min(_PAIRS_AT_A_TIME, _NUMBERS_AT_A_TIME // n_numbers), 1)

    def reaches_each(self, achieved: NDArray[Any], desired: NDArray[Any]) -> NDArray[np.bool_]:
        """
        Return for each achievement which of all goals it reaches.

        :param achieved: achievements, shape ``(n, *goal_space.shape)``
        :param desired: goals, shape ``(m, *goal_space.shape)``
        :return: whether each achievement reaches each goal, shape ``(n, m)``
        :raises ValueError: if the user's function returns an array of another shape
        """
        found = np.zeros((len(achieved), len(desired)), np.bool_)
        n_goals = min(self._pairs_at_a_time, max(len(desired), 1))
        n_achieved = max(self._pairs_at_a_time // n_goals, 1)
        for row in range(0, len(achieved), n_achieved):
            some = achieved[row : row + n_achieved]
            for column in range(0, len(desired), n_goals):
                goals = desired[column : column + n_goals]
                reached = self.reaches(
                    np.repeat(some, len(goals), axis=0),
                    np.tile(goals, (len(some), *[1] * len(self.shape))),
                )
                block = np.s_[row : row + n_achieved, column : column + n_goals]
                found[block] = reached.reshape(len(some), len(goals))
        return found

    def pairs(
        self, achieved: NDArray[Any], desired: NDArray[Any]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """
        Return all pairs of an achievement and a goal that it reaches.

        :param achieved: achievements, shape ``(n, *goal_space.shape)``
        :param desired: goals, shape ``(m, *goal_space.shape)``
        :return: places of achievements and of goals, in ascending order of the goals, both of shape
            ``(number of pairs,)``
        """
        if len(achieved) == 0 or len(desired) == 0:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        # A tree of all achievements does not pay for one goal.
        if self.reached is not None and not callable(self.reached) and len(desired) > 1:
            # The tree needs all of them in double precision at once, some of them twice.
            n_numbers = (len(achieved) + len(desired)) * math.prod(self.shape)
            if 2 * n_numbers * np.dtype(np.float64).itemsize <= share_of_memory(_SHARE_OF_TREE):
                return self._pairs_within(self.reached, achieved, desired)
        parts: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        at_a_time = max(1, _PAIRS_AT_A_TIME // len(achieved))
        for first in range(0, len(desired), at_a_time):
            is_reached = self.reaches_each(achieved, desired[first : first + at_a_time])
            rows, places = np.nonzero(is_reached.T)
            parts.append((places, rows + first))
        found_places, found_goals = zip(*parts, strict=True)
        return np.concatenate(found_places), np.concatenate(found_goals)

    def _pairs_within(
        self, distance: float, achieved: NDArray[Any], desired: NDArray[Any]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the pairs of :meth:`pairs` for a greatest distance, without comparing all."""
        points = achieved.reshape(len(achieved), -1).astype(np.float64)
        centers = desired.reshape(len(desired), -1).astype(np.float64)
        # The tree rounds otherwise than distances do, so it looks a little farther than asked.
        radius = distance * (1.0 + _ROUNDING) + np.finfo(np.float64).tiny
        found = cKDTree(points).query_ball_point(centers, radius, return_sorted=True)
        n_found = np.array([len(places) for places in found], dtype=np.int64)
        places = np.concatenate([np.asarray(each, dtype=np.int64) for each in found])
        goals = np.repeat(np.arange(len(desired)), n_found)
        n_at_a_time = self._pairs_at_a_time
        parts = [slice(first, first + n_at_a_time) for first in range(0, len(places), n_at_a_time)]
        is_reached = [self.reaches(achieved[places[part]], desired[goals[part]]) for part in parts]
        keep = np.concatenate([np.zeros(0, dtype=np.bool_), *is_reached])
        return places[keep], goals[keep]


def _distances(left: NDArray[Any], right: NDArray[Any], n_axes: int) -> NDArray[np.float64]:
    """Return Euclidean distances over the last axes."""
    differences = np.subtract(left, right, dtype=np.float64)
    batch = differences.shape[: differences.ndim - n_axes]
    size = math.prod(differences.shape[differences.ndim - n_axes :])
    distances: NDArray[np.float64] = np.linalg.norm(differences.reshape(*batch, size), axis=-1)
    return distances


def _space_of(goal: GoalFunction, observation_space: spaces.Space[Any]) -> spaces.Space[Any]:
    """Return a space for what a function returns for a random observation."""
    # Sampling would change the random numbers of the user's space.
    space = copy.deepcopy(observation_space)
    space.seed(0)
    observation = space.sample()
    advice = "give goal_space, the space of what it returns"
    try:
        array = np.asarray(goal(observation))
    except Exception as error:
        raise ValueError(f"goal fails for a random observation, {error!r}: {advice}") from error
    if array.dtype.kind not in "iubf":
        raise TypeError(f"goal must return numbers, got {array.dtype}: {array!r}")
    shape = array.shape or (1,)
    if array.dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, shape, array.dtype.type)
    if array.dtype.kind == "b":
        return spaces.MultiBinary(shape)
    limits = np.iinfo(array.dtype)
    return spaces.Box(limits.min, limits.max, shape, array.dtype.type)


def ranges(first: NDArray[np.integer[Any]], lengths: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """
    Return the numbers of several ranges, one range after the other.

    :param first: the first number of each range, shape ``(n,)``
    :param lengths: how many numbers each range has, shape ``(n,)``
    :return: all numbers, int64, shape ``(sum of lengths,)``
    """
    ends = np.cumsum(lengths)
    numbers_from_zero = np.arange(ends[-1] if len(ends) else 0)
    found: NDArray[np.int64] = numbers_from_zero + np.repeat(first - ends + lengths, lengths)
    return found
