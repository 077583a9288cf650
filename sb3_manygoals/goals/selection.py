"""How the goal that drives behaviour is chosen at the start of an episode."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sb3_manygoals.goals.buffer import UNKNOWN, GoalBuffer

if TYPE_CHECKING:
    import torch as th

Values = Callable[[NDArray[Any], NDArray[Any]], NDArray[np.float32]]
"""Takes n observations and n goals, and gives what several estimates think that each pair is worth, shape (estimates, n)."""


class GoalSelector(ABC):
    """
    A rule for choosing behaviour goals among the goals known so far.

    What a rule may want to know about, it is told by the methods ``observe_*`` and ``use_values``, which do nothing unless
    overridden: by the goal wrappers about visits and episodes, by ManyGoalsDQN about losses and values.
    """

    @abstractmethod
    def select(self, goal_buffer: GoalBuffer, current_ids: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """
        Choose one goal for each environment that starts an episode.

        :param goal_buffer: the known goals, at least one
        :param current_ids: the id of what each environment shows now, ``UNKNOWN`` if that is no goal, shape ``(n,)``
        :param rng: the source of all randomness
        :return: ids of the chosen goals, shape ``(n,)`` int64
        """

    def observe_visits(self, ids: NDArray[np.int64]) -> None:  # noqa: B027 - need not be overridden, as those below
        """:param ids: the goals that environments show after a step, shape ``(n,)``"""

    def observe_episodes(self, ids: NDArray[np.int64], reached: NDArray[np.bool_]) -> None:  # noqa: B027
        """
        :param ids: the goals of episodes that have ended, shape ``(n,)``
        :param reached: whether they were reached, shape ``(n,)``
        """

    def observe_losses(self, ids: th.Tensor, losses: th.Tensor) -> None:  # noqa: B027
        """
        What an update found. It is on the learner's device: to look at it at once would make each update wait for the device.

        :param ids: the goals of the update, shape ``(G,)`` int64; a goal may be there twice, ``UNKNOWN`` is none. To be copied
        :param losses: the paper's L(g) of each, shape ``(G,)``. To be copied
        """

    def use_values(self, values: Values) -> None:  # noqa: B027
        """:param values: of the learner, from now on; to be asked at any time, and neither copied nor saved with the rule"""

    def forget(self) -> None:  # noqa: B027
        """Drop all that was learned about single goals: ids mean other goals from now on."""

    def get_checkpoint_state(self) -> dict[str, Any]:
        """
        What a rule has learned so far. To be overridden where attributes are more than plain data and arrays.

        :return: the attributes, copied; for :meth:`set_checkpoint_state`
        """
        return copy.deepcopy(vars(self))

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """:param state: from :meth:`get_checkpoint_state`"""
        vars(self).clear()
        vars(self).update(copy.deepcopy(state))


class UniformSelector(GoalSelector):
    """
    Every known goal with equal probability, except the one that is on show already: it would ask for nothing.
    Only when it is the single known goal is it chosen.
    """

    def select(self, goal_buffer: GoalBuffer, current_ids: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        return goal_buffer.sample_others(current_ids, rng)


class WeightedSelector(GoalSelector):
    """
    Goals with probabilities in proportion to weights, mixed with the uniform ones, so that each goal keeps a chance. The one
    that is on show already is not chosen, unless there is no other.

    :param uniform_share: of the uniform probabilities in the mixture, above 0
    :raises ValueError: if it is not in (0, 1]
    """

    def __init__(self, uniform_share: float = 0.1) -> None:
        if not 0.0 < uniform_share <= 1.0:
            raise ValueError(f"uniform_share must be in (0, 1], for every goal to keep a chance, got {uniform_share!r}")
        self.uniform_share = float(uniform_share)
        self.forget()

    @abstractmethod
    def weights(self, n_goals: int) -> NDArray[np.float64]:
        """
        :param n_goals: number of known goals
        :return: of each goal, not negative, shape ``(n_goals,)``; NaN where too little is known about it
        """

    def probabilities(self, n_goals: int) -> NDArray[np.float64]:
        """
        :param n_goals: number of known goals, at least 1
        :return: of choosing each goal where none of them is on show, shape ``(n_goals,)``
        """
        return mixture(self.weights(n_goals), self.uniform_share)

    def select(self, goal_buffer: GoalBuffer, current_ids: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        everywhere = self.probabilities(len(goal_buffer))
        ids = np.empty(len(current_ids), dtype=np.int64)
        for row, current in enumerate(current_ids.tolist()):
            here = everywhere
            if current != UNKNOWN and len(goal_buffer) > 1:
                here = everywhere.copy()
                here[current] = 0.0
                here /= here.sum()
            ids[row] = rng.choice(len(here), p=here)
        return ids


def mixture(weights: NDArray[np.float64], uniform_share: float) -> NDArray[np.float64]:
    """
    :param weights: not negative; NaN, which counts as the mean of all others, where nothing is known. Shape ``(n,)``, n > 0
    :param uniform_share: of the uniform probabilities
    :return: probabilities: the weights', mixed with the uniform ones; uniform if no weight is positive. Shape ``(n,)``
    """
    known = ~np.isnan(weights)
    uniform = np.full(len(weights), 1.0 / len(weights))
    if not weights[known].any():
        return uniform
    scaled = weights / weights[known].max()  # for no sum to overflow
    scaled = np.where(known, scaled, scaled[known].mean())
    mixed = (1.0 - uniform_share) * scaled / scaled.sum() + uniform_share * uniform
    probabilities: NDArray[np.float64] = mixed / mixed.sum()
    return probabilities


def grown(rows: NDArray[Any], n: int) -> NDArray[Any]:
    """
    :param rows: one row a goal
    :param n: number of rows needed
    :return: the same array if it has them, else a copy with zeros below and at least twice as many rows
    """
    if len(rows) >= n:
        return rows
    larger = np.zeros((max(n, 2 * len(rows)), *rows.shape[1:]), dtype=rows.dtype)
    larger[: len(rows)] = rows
    return larger
