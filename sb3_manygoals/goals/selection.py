"""How the goal that drives behaviour is chosen at the start of an episode."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_manygoals.goals.buffer import UNKNOWN, GoalBuffer


class GoalSelector(ABC):
    """A rule for choosing behaviour goals among the goals known so far."""

    @abstractmethod
    def select(self, goal_buffer: GoalBuffer, current_ids: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """
        Choose one goal for each environment that starts an episode.

        :param goal_buffer: the known goals, at least one
        :param current_ids: the id of what each environment shows now, ``UNKNOWN`` if that is no goal, shape ``(n,)``
        :param rng: the source of all randomness
        :return: ids of the chosen goals, shape ``(n,)`` int64
        """

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
        n_goals = len(goal_buffer)
        avoid = (current_ids != UNKNOWN) & (n_goals > 1)
        # a draw from one goal fewer, moved up past the goal to be avoided
        ids: NDArray[np.int64] = rng.integers(n_goals - avoid, size=len(current_ids))
        ids += avoid & (ids >= current_ids)
        return ids
