"""Rules that choose the next goal to pursue: uniform, or by learning progress."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch as th
from numpy.typing import NDArray

from sb3_manygoals.checkpoint.tree import attributes, set_attributes
from sb3_manygoals.goals.buffer import GoalBuffer
from sb3_manygoals.goals.table import UNKNOWN
from sb3_manygoals.validation import check_count


class GoalSelector(ABC):
    """A rule for choosing behavior goals among the known goals. All methods but ``select`` may be left as they are."""

    @abstractmethod
    def select(
        self, goal_buffer: GoalBuffer, current_ids: NDArray[np.int64], rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """
        :param goal_buffer: the known goals, at least one
        :param current_ids: id of each environment's current observation, ``UNKNOWN`` if it is no goal, shape ``(n,)``
        :param rng: the source of all randomness
        :return: id of the goal chosen for each environment, shape ``(n,)`` int64
        """

    def observe_losses(self, ids: th.Tensor, losses: th.Tensor) -> None:  # noqa: B027 - optional
        """
        Take in an update of ManyGoalsDQN: its goals, ``(G,)`` int64, with repetitions and ``UNKNOWN``, and the paper's L(g) of
        each, ``(G,)``. They are on the learner's device: reading them makes the update wait for it.
        """

    def forget(self) -> None:  # noqa: B027
        """Drop everything learned about single goals: their ids have changed."""

    def get_checkpoint_state(self) -> dict[str, Any]:
        """:return: a copy of the attributes. Override this if they are more than plain data and arrays"""
        return copy.deepcopy(attributes(self))

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        vars(self).clear()
        set_attributes(self, copy.deepcopy(state))


_TAKEN: WeakValueDictionary[int, GoalSelector] = WeakValueDictionary()


def taken(selector: GoalSelector) -> GoalSelector:
    """
    The selector for a model that begins to use it: what it learns is of the goals and losses of one
    model.

    :param selector: as a user gave it
    :return: the same the first time; later a copy that has forgotten all, and the first model keeps
        its own
    """
    if _TAKEN.get(id(selector)) is not selector:
        _TAKEN[id(selector)] = selector
        return selector
    own = copy.deepcopy(selector)
    own.forget()
    _TAKEN[id(own)] = own
    return own


class UniformSelector(GoalSelector):
    """Every known goal with equal probability, except the current observation, which is chosen only if it is the only goal."""

    def select(
        self, goal_buffer: GoalBuffer, current_ids: NDArray[np.int64], rng: np.random.Generator
    ) -> NDArray[np.int64]:
        return goal_buffer.sample_others(current_ids, rng)


class LearningProgressSelector(GoalSelector):
    r"""
    Goals in proportion to the paper's learning progress (its equation 1), with i the last measurement of the goal's error:

    .. math:: p(g) = \sum_{k=i-m}^{i} \mathcal{L}_{k-m}(g) - \mathcal{L}_k(g)

    An error L(g) is measured whenever the goal is in an update. Where the paper leaves it open, negative values count as zero,
    goals with fewer than 2m + 1 measurements as the mean of the others, and a tenth is drawn uniformly, so that each keeps a
    chance. The current observation is chosen only if it is the only goal.

    :param m: the paper's m, 5 there
    :raises ValueError: if a number is out of range
    """

    def __init__(self, m: int = 5) -> None:
        self.m = check_count("m", m)
        self.forget()

    def forget(self) -> None:
        self._errors: NDArray[np.float64] = np.zeros(
            (0, 2 * self.m + 1)
        )  # of each goal, the newest last

    def observe_losses(self, ids: th.Tensor, losses: th.Tensor) -> None:
        goals, place = np.unique(ids.cpu().numpy(), return_inverse=True)
        means = np.bincount(place, weights=losses.double().cpu().numpy()) / np.bincount(
            place
        )  # of goals drawn twice
        known = goals != UNKNOWN
        errors = self._errors_of(int(goals[-1]) + 1)
        errors[goals[known]] = np.column_stack([errors[goals[known], 1:], means[known]])

    def _errors_of(self, n_goals: int) -> NDArray[np.float64]:
        """Those of all goals, to be changed in place, shape ``(n_goals, 2m + 1)``; NaN where none was measured."""
        n = len(self._errors)
        if n < n_goals:
            self._errors = np.pad(
                self._errors, ((0, max(n_goals - n, n)), (0, 0)), constant_values=np.nan
            )
        return self._errors[:n_goals]

    def progress(self, n_goals: int) -> NDArray[np.float64]:
        """:return: by how much the error of each goal has fallen, ``(n_goals,)``; NaN where too little was measured"""
        errors = self._errors_of(n_goals)
        return np.asarray(errors[:, : self.m + 1].sum(axis=1) - errors[:, self.m :].sum(axis=1))

    def probabilities(self, n_goals: int) -> NDArray[np.float64]:
        """:return: the probability of each goal if none of them is the current observation, shape ``(n_goals,)``"""
        weights = np.maximum(self.progress(n_goals), 0.0)
        known = ~np.isnan(weights)
        uniform = np.full(n_goals, 1.0 / n_goals)
        if not weights[known].any():
            return uniform
        weights /= weights[known].max()  # for no sum to overflow
        weights = np.where(known, weights, weights[known].mean())
        return np.asarray(0.9 * weights / weights.sum() + 0.1 * uniform)

    def select(
        self, goal_buffer: GoalBuffer, current_ids: NDArray[np.int64], rng: np.random.Generator
    ) -> NDArray[np.int64]:
        everywhere = self.probabilities(len(goal_buffer))
        ids = np.empty(len(current_ids), dtype=np.int64)
        for row, current in enumerate(current_ids.tolist()):
            here = everywhere.copy()
            if current != UNKNOWN and len(here) > 1:
                here[current] = 0.0
            ids[row] = rng.choice(len(here), p=here / here.sum())
        return ids
