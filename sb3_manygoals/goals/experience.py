"""Behaviour goals by what was experienced: how often a goal was met, and how often it was reached when pursued."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sb3_manygoals.goals.selection import WeightedSelector, grown


class LeastVisitedSelector(WeightedSelector):
    """
    Goals in inverse proportion to one more than the steps that have led to them: the frontier of what is known.

    :param uniform_share: of goals that are drawn uniformly, above 0
    :raises ValueError: if it is not in (0, 1]
    """

    def forget(self) -> None:
        self._visits: NDArray[np.int64] = np.zeros(0, dtype=np.int64)

    def observe_visits(self, ids: NDArray[np.int64]) -> None:
        if len(ids):
            self._visits = grown(self._visits, int(ids.max()) + 1)
            np.add.at(self._visits, ids, 1)

    def weights(self, n_goals: int) -> NDArray[np.float64]:
        self._visits = grown(self._visits, n_goals)
        visits = self._visits[:n_goals].astype(np.float64)
        return np.reciprocal(1.0 + visits)


class IntermediateDifficultySelector(WeightedSelector):
    """
    Goals in proportion to p (1 - p), p being an estimate of how often the goal is reached when pursued: neither too easy nor
    too hard. (As Florensa et al. 2018 and others, who select by thresholds.)

    p is the mean of a Beta distribution. It begins with one success and one failure, so that a new goal counts as one of
    the most promising; what was seen of a goal loses weight with each of its later episodes, as the agent changes.

    :param memory: what the earlier episodes of a goal count for when another one ends, in [0, 1]; 1: they never fade
    :param uniform_share: of goals that are drawn uniformly, above 0
    :raises ValueError: if ``memory`` is not in [0, 1] or ``uniform_share`` not in (0, 1]
    """

    def __init__(self, memory: float = 0.9, uniform_share: float = 0.1) -> None:
        if not 0.0 <= memory <= 1.0:
            raise ValueError(f"memory must be in [0, 1], got {memory!r}")
        self.memory = float(memory)
        super().__init__(uniform_share)

    def forget(self) -> None:
        self._outcomes: NDArray[np.float64] = np.zeros((0, 2))  # of each goal, failures and successes

    def observe_episodes(self, ids: NDArray[np.int64], reached: NDArray[np.bool_]) -> None:
        for goal, success in zip(ids.tolist(), reached.tolist(), strict=True):
            self._outcomes = grown(self._outcomes, goal + 1)
            self._outcomes[goal] *= self.memory
            self._outcomes[goal, int(success)] += 1.0

    def success_rates(self, n_goals: int) -> NDArray[np.float64]:
        """
        :param n_goals: number of known goals
        :return: the estimated probability of reaching each, shape ``(n_goals,)``
        """
        self._outcomes = grown(self._outcomes, n_goals)
        failures, successes = self._outcomes[:n_goals].T
        rates: NDArray[np.float64] = (successes + 1.0) / (failures + successes + 2.0)
        return rates

    def weights(self, n_goals: int) -> NDArray[np.float64]:
        rates = self.success_rates(n_goals)
        return rates * (1.0 - rates)
