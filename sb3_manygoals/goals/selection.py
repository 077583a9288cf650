"""Rules that choose the next goal to pursue: uniform, or by learning progress."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch as th
from numpy.typing import NDArray

from sb3_manygoals.checkpoint.tree import attributes, set_attributes
from sb3_manygoals.goals.buffer import GoalBuffer
from sb3_manygoals.validation import check_count
from sb3_manygoals.world.states import UNKNOWN

# The share of goals that are drawn uniformly, so that each goal keeps a chance.
_UNIFORM_SHARE = 0.1


class GoalSelector(ABC):
    """
    A rule for choosing behavior goals among the known goals. Only :meth:`select` must be
    overridden.

    Give the class to :class:`~sb3_manygoals.GoalBufferWrapper` as ``selector_class``, and the
    arguments of its constructor as ``selector_kwargs``.
    """

    @abstractmethod
    def select(
        self, goal_buffer: GoalBuffer, current_ids: NDArray[np.int64], rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """
        Choose a goal for each of n environments.

        :param goal_buffer: the known goals, at least one
        :param current_ids: the goal that each environment shows now, ``UNKNOWN`` for none, shape
            ``(n,)``
        :param rng: the source of all randomness
        :return: ids of the chosen goals, int64, shape ``(n,)``
        """

    def observe_losses(self, ids: th.Tensor, losses: th.Tensor) -> None:  # noqa: B027
        """
        Take in an update of ManyGoalsDQN. Both tensors are on the learner's device: reading them
        makes the update wait for it.

        :param ids: goals of the update, with repetitions and ``UNKNOWN``, int64, shape ``(G,)``
        :param losses: the paper's L(g) of each of them, shape ``(G,)``. With segments, it is a mean
            over pairs that have weights, see :class:`~sb3_manygoals.many_goals_dqn.TDTargets`
        """

    def forget(self) -> None:  # noqa: B027
        """Drop everything learned about single goals, because their ids have changed."""

    def get_checkpoint_state(self) -> dict[str, Any]:
        """
        Return the attributes. Override this method if they are more than plain data and arrays.

        :return: a dictionary of copies
        """
        return copy.deepcopy(attributes(self))

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Replace the attributes.

        :param state: what :meth:`get_checkpoint_state` returned
        """
        vars(self).clear()
        set_attributes(self, copy.deepcopy(state))


class UniformSelector(GoalSelector):
    """
    Chooses every known goal with equal probability. The goal that an environment shows is chosen
    only if it is the only goal.
    """

    def select(
        self, goal_buffer: GoalBuffer, current_ids: NDArray[np.int64], rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """
        Choose a goal for each of n environments.

        :param goal_buffer: the known goals, at least one
        :param current_ids: the goal that each environment shows now, ``UNKNOWN`` for none, shape
            ``(n,)``
        :param rng: the source of all randomness
        :return: ids of the chosen goals, int64, shape ``(n,)``
        """
        return goal_buffer.sample_others(current_ids, rng)


class LearningProgressSelector(GoalSelector):
    r"""
    Chooses goals in proportion to the paper's learning progress (equation 1 of Veeriah et al.
    2018), where i is the last measurement of the goal's error:

    .. math:: p(g) = \sum_{k=i-m}^{i} \mathcal{L}_{k-m}(g) - \mathcal{L}_k(g)

    An error L(g) is measured whenever the goal is in an update. In the paper, all pairs of a state
    and the goal weigh the same. With the segments of
    :class:`~sb3_manygoals.many_goals_dqn.TDTargets`, near pairs weigh more, so the errors of a goal
    also depend on how near the states of the update are to it. The paper leaves some cases open.
    Here, negative progress counts as zero. Goals with fewer than 2m + 1 measurements count as the
    mean of the others. A tenth of the goals is drawn uniformly, so that each goal keeps a chance.
    The goal that an environment shows is chosen only if it is the only goal.

    :param m: the paper's m, which is 5 there
    :raises ValueError: if ``m`` is not a positive whole number
    """

    def __init__(self, m: int = 5) -> None:
        self.m = check_count("m", m)
        self.forget()

    def forget(self) -> None:
        """Drop all measurements, because the ids of goals have changed."""
        # The last 2m + 1 errors of each goal, the newest last.
        self._errors: NDArray[np.float64] = np.zeros((0, 2 * self.m + 1))

    def observe_losses(self, ids: th.Tensor, losses: th.Tensor) -> None:
        """
        Take in the errors of an update. A goal that occurs twice in it counts once, by its mean.

        :param ids: goals of the update, with repetitions and ``UNKNOWN``, int64, shape ``(G,)``
        :param losses: the paper's L(g) of each of them, shape ``(G,)``
        """
        goals, place = np.unique(ids.cpu().numpy(), return_inverse=True)
        sums = np.bincount(place, weights=losses.double().cpu().numpy())
        means = sums / np.bincount(place)
        known = goals != UNKNOWN
        errors = self._errors_of(int(goals[-1]) + 1)
        errors[goals[known]] = np.column_stack([errors[goals[known], 1:], means[known]])

    def _errors_of(self, n_goals: int) -> NDArray[np.float64]:
        """
        Return the errors of so many goals, shape ``(n_goals, 2m + 1)``, to be changed in place. NaN
        stands for errors that were not measured.
        """
        n = len(self._errors)
        if n < n_goals:
            more = ((0, max(n_goals - n, n)), (0, 0))
            self._errors = np.pad(self._errors, more, constant_values=np.nan)
        return self._errors[:n_goals]

    def progress(self, n_goals: int) -> NDArray[np.float64]:
        """
        Return by how much the error of each goal has fallen.

        :param n_goals: number of known goals
        :return: shape ``(n_goals,)``. NaN for goals with too few measurements
        """
        errors = self._errors_of(n_goals)
        return np.asarray(errors[:, : self.m + 1].sum(axis=1) - errors[:, self.m :].sum(axis=1))

    def probabilities(self, n_goals: int) -> NDArray[np.float64]:
        """
        Return the probability of each goal for an environment that shows none of them.

        :param n_goals: number of known goals
        :return: shape ``(n_goals,)``
        """
        weights = np.maximum(self.progress(n_goals), 0.0)
        known = ~np.isnan(weights)
        uniform = np.full(n_goals, 1.0 / n_goals)
        if not weights[known].any():
            return uniform
        # The largest weight becomes 1, so that no sum overflows.
        weights /= weights[known].max()
        weights = np.where(known, weights, weights[known].mean())
        by_progress = weights / weights.sum()
        return np.asarray((1.0 - _UNIFORM_SHARE) * by_progress + _UNIFORM_SHARE * uniform)

    def select(
        self, goal_buffer: GoalBuffer, current_ids: NDArray[np.int64], rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """
        Choose a goal for each of n environments.

        :param goal_buffer: the known goals, at least one
        :param current_ids: the goal that each environment shows now, ``UNKNOWN`` for none, shape
            ``(n,)``
        :param rng: the source of all randomness
        :return: ids of the chosen goals, int64, shape ``(n,)``
        """
        everywhere = self.probabilities(len(goal_buffer))
        ids = np.empty(len(current_ids), dtype=np.int64)
        for row, current in enumerate(current_ids.tolist()):
            here = everywhere.copy()
            if current != UNKNOWN and len(here) > 1:
                here[current] = 0.0
            ids[row] = rng.choice(len(here), p=here / here.sum())
        return ids
