"""Behaviour goals by learning progress: those whose Bellman error has been falling."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import torch as th
from numpy.typing import NDArray

from sb3_manygoals.goals.selection import WeightedSelector, grown

_MOST_PENDING = 256
"""Updates after which their losses are fetched from the device even though no goal is being chosen."""


class LossSelector(WeightedSelector):
    """
    A rule that follows each goal's squared Bellman error L(g).

    The error of a goal is measured whenever the goal is among those of an update, and that is when its time goes on by one:
    to measure all goals at each episode, as the paper's notation has it, would cost more than learning does. Losses stay on
    the device until a goal is to be chosen; then the learner waits for the device anyway, for its next action.
    """

    def observe_losses(self, ids: th.Tensor, losses: th.Tensor) -> None:
        self._pending.append((ids.detach().clone(), losses.detach().clone()))
        if len(self._pending) >= _MOST_PENDING:
            self.catch_up()

    def catch_up(self) -> None:
        """Take in the losses that have not been looked at yet."""
        if not self._pending:
            return
        sizes = [len(ids) for ids, _ in self._pending]
        ids = th.cat([ids for ids, _ in self._pending]).cpu().numpy()
        losses = th.cat([losses for _, losses in self._pending]).double().cpu().numpy()
        self._pending.clear()
        ends = np.cumsum(sizes)[:-1]
        for goals, errors in zip(np.split(ids, ends), np.split(losses, ends), strict=True):
            distinct, place = np.unique(goals, return_inverse=True)
            means = np.bincount(place, weights=errors) / np.bincount(place)
            is_goal = distinct >= 0
            if is_goal.any():
                self.measure(distinct[is_goal], means[is_goal])

    @abstractmethod
    def measure(self, ids: NDArray[np.int64], losses: NDArray[np.float64]) -> None:
        """
        Take in one update.

        :param ids: distinct goals, ascending, shape ``(n,)``, n > 0
        :param losses: L(g) of each, shape ``(n,)``
        """

    @abstractmethod
    def progress(self, n_goals: int) -> NDArray[np.float64]:
        """
        :param n_goals: number of known goals
        :return: how much each error has fallen, negative where it has risen, NaN where too little was measured, ``(n_goals,)``
        """

    def weights(self, n_goals: int) -> NDArray[np.float64]:
        """
        The progress, and zero for goals whose error rises: they keep the uniform share only. A rising error is nothing that
        was learned; targets that move make it rise.
        """
        self.catch_up()
        return np.maximum(self.progress(n_goals), 0.0)

    def forget(self) -> None:
        self._pending: list[tuple[th.Tensor, th.Tensor]] = []

    def get_checkpoint_state(self) -> dict[str, Any]:
        self.catch_up()
        return super().get_checkpoint_state()


class LearningProgressSelector(LossSelector):
    r"""
    The paper's learning progress (its equation 1), with i the last measurement of the goal's error:

    .. math:: p(g) = \sum_{k=i-m}^{i} \mathcal{L}_{k-m}(g) - \mathcal{L}_k(g)

    The paper does not say how a negative p(g) becomes a probability, nor what a goal has that was met less than 2m + 1 times.
    Here the former counts as zero and the latter as the average of the others, and some goals are drawn uniformly.

    :param m: the paper's m, 5 there
    :param uniform_share: of goals that are drawn uniformly, above 0
    :raises ValueError: if ``m`` is no positive whole number or ``uniform_share`` not in (0, 1]
    """

    def __init__(self, m: int = 5, uniform_share: float = 0.1) -> None:
        if not isinstance(m, (int, np.integer)) or isinstance(m, bool) or m < 1:
            raise ValueError(f"m must be a whole number, at least 1, got {m!r}")
        self.m = int(m)
        super().__init__(uniform_share)

    def forget(self) -> None:
        super().forget()
        self._history: NDArray[np.float64] = np.zeros((0, 2 * self.m + 1))  # of each goal, the newest last
        self._counts: NDArray[np.int64] = np.zeros(0, dtype=np.int64)

    def measure(self, ids: NDArray[np.int64], losses: NDArray[np.float64]) -> None:
        self._history, self._counts = grown(self._history, int(ids[-1]) + 1), grown(self._counts, int(ids[-1]) + 1)
        self._history[ids, :-1] = self._history[ids, 1:]
        self._history[ids, -1] = losses
        self._counts[ids] += 1

    def progress(self, n_goals: int) -> NDArray[np.float64]:
        self._history, self._counts = grown(self._history, n_goals), grown(self._counts, n_goals)
        history, counts = self._history[:n_goals], self._counts[:n_goals]
        fallen = history[:, : self.m + 1].sum(axis=1) - history[:, self.m :].sum(axis=1)
        return np.where(counts >= history.shape[1], fallen, np.nan)


class SmoothedProgressSelector(LossSelector):
    """
    Learning progress as the difference of two running averages of L(g), the slow one less the fast one: less at the mercy of
    single batches than equation 1, whose sums are of a few measurements.

    :param fast: share of a new measurement in the fast average
    :param slow: share of a new measurement in the slow average, less than ``fast``
    :param uniform_share: of goals that are drawn uniformly, above 0
    :raises ValueError: unless 0 < ``slow`` < ``fast`` <= 1 and ``uniform_share`` is in (0, 1]
    """

    def __init__(self, fast: float = 0.3, slow: float = 0.05, uniform_share: float = 0.1) -> None:
        if not 0.0 < slow < fast <= 1.0:
            raise ValueError(f"slow and fast must be 0 < slow < fast <= 1, got slow={slow!r} and fast={fast!r}")
        self.fast, self.slow = float(fast), float(slow)
        super().__init__(uniform_share)

    def forget(self) -> None:
        super().forget()
        self._averages: NDArray[np.float64] = np.zeros((0, 2))  # of each goal, fast and slow
        self._counts: NDArray[np.int64] = np.zeros(0, dtype=np.int64)

    def measure(self, ids: NDArray[np.int64], losses: NDArray[np.float64]) -> None:
        self._averages, self._counts = grown(self._averages, int(ids[-1]) + 1), grown(self._counts, int(ids[-1]) + 1)
        share = np.where(self._counts[ids, None] == 0, 1.0, [self.fast, self.slow])  # both begin at the first
        self._averages[ids] += share * (losses[:, None] - self._averages[ids])
        self._counts[ids] += 1

    def progress(self, n_goals: int) -> NDArray[np.float64]:
        self._averages, self._counts = grown(self._averages, n_goals), grown(self._counts, n_goals)
        fast, slow = self._averages[:n_goals].T
        return np.where(self._counts[:n_goals] >= 2, slow - fast, np.nan)
