"""Rules that choose the next goal to pursue: uniform, or in proportion to what was learned about each goal."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch as th
from numpy.typing import NDArray

from sb3_manygoals.checks import check_count
from sb3_manygoals.goals.buffer import UNKNOWN, GoalBuffer

Values = Callable[[NDArray[Any], NDArray[Any]], NDArray[np.float32]]
"""Takes n observations and n goals. Returns several estimates of the value of each pair, shape (estimates, n)."""

_MOST_PENDING = 256
"""Updates after which losses are fetched from the device although no goal is being chosen."""


class GoalSelector(ABC):
    """
    A rule for choosing behavior goals among the known goals.

    The methods ``observe_*`` and ``use_values`` inform a rule and do nothing unless overridden. Goal wrappers report
    visits and episodes, ManyGoalsDQN losses and values.
    """

    @abstractmethod
    def select(self, goal_buffer: GoalBuffer, current_ids: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """
        :param goal_buffer: the known goals, at least one
        :param current_ids: id of each environment's current observation, ``UNKNOWN`` if it is no goal, shape ``(n,)``
        :param rng: the source of all randomness
        :return: id of the goal chosen for each environment, shape ``(n,)`` int64
        """

    def observe_visits(self, ids: NDArray[np.int64]) -> None:  # noqa: B027 - optional, as are those below
        """:param ids: goals that a step led to, shape ``(n,)``"""

    def observe_episodes(self, ids: NDArray[np.int64], reached: NDArray[np.bool_]) -> None:  # noqa: B027
        """Take in the goals of episodes that have ended, and whether each was reached, both of shape ``(n,)``."""

    def observe_losses(self, ids: th.Tensor, losses: th.Tensor) -> None:  # noqa: B027
        """
        Take in an update: its goals, ``(G,)`` int64, with repetitions and ``UNKNOWN``, and the paper's L(g) of each, ``(G,)``.
        Both must be copied. They are on the learner's device: reading them makes the update wait for it.
        """

    def use_values(self, values: Values) -> None:  # noqa: B027
        """:param values: the learner's; may be called at any time, and must be neither copied nor saved"""

    def forget(self) -> None:  # noqa: B027
        """Drop everything learned about single goals: their ids have changed."""

    def get_checkpoint_state(self) -> dict[str, Any]:
        """:return: a copy of the attributes. Override this if they are more than plain data and arrays"""
        return copy.deepcopy(vars(self))

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """:param state: from :meth:`get_checkpoint_state`"""
        vars(self).clear()
        vars(self).update(copy.deepcopy(state))


class UniformSelector(GoalSelector):
    """Every known goal with equal probability, except the current observation, which is chosen only if it is the only goal."""

    def select(self, goal_buffer: GoalBuffer, current_ids: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        return goal_buffer.sample_others(current_ids, rng)


class WeightedSelector(GoalSelector):
    """
    Goals with probabilities in proportion to weights, mixed with uniform ones so that every goal keeps a chance. The current
    observation is chosen only if it is the only goal.

    :param uniform_share: share of the uniform distribution in the mixture
    :raises ValueError: if ``uniform_share`` is not in (0, 1]
    """

    width = 1  # numbers remembered of each goal
    initial = 0.0  # their value for a new one

    def __init__(self, uniform_share: float = 0.1) -> None:
        if not 0.0 < uniform_share <= 1.0:
            raise ValueError(f"uniform_share must be in (0, 1], for every goal to keep a chance, got {uniform_share!r}")
        self.uniform_share = float(uniform_share)
        self.forget()

    def forget(self) -> None:
        self._memory: NDArray[np.float64] = np.zeros((0, self.width))

    def remembered(self, n_goals: int) -> NDArray[np.float64]:
        """:return: what is remembered of each goal, to be changed in place, shape ``(n_goals, width)``"""
        self._memory = grown(self._memory, n_goals, self.initial)
        return self._memory[:n_goals]

    @abstractmethod
    def weights(self, n_goals: int) -> NDArray[np.float64]:
        """:return: the weight of each goal, >= 0, shape ``(n_goals,)``; NaN where too little is known about it"""

    def probabilities(self, n_goals: int) -> NDArray[np.float64]:
        """:return: the probability of each goal if none of them is the current observation, shape ``(n_goals,)``"""
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


class LeastVisitedSelector(WeightedSelector):
    """
    Goals in proportion to 1 / (1 + number of steps that led to them).

    :param uniform_share: share of goals drawn uniformly, in (0, 1]
    """

    def observe_visits(self, ids: NDArray[np.int64]) -> None:
        np.add.at(self.remembered(int(ids.max(initial=UNKNOWN)) + 1), ids, 1.0)

    def weights(self, n_goals: int) -> NDArray[np.float64]:
        return np.reciprocal(1.0 + self.remembered(n_goals)[:, 0])


class IntermediateDifficultySelector(WeightedSelector):
    """
    Goals in proportion to p (1 - p), where p estimates how often the goal is reached when pursued (after Florensa et al. 2018,
    who use thresholds). p is the mean of a Beta distribution that begins with one success and one failure.

    :param memory: factor in [0, 1] by which earlier episodes of a goal lose weight when another one ends; 1: never
    :param uniform_share: share of goals drawn uniformly, in (0, 1]
    :raises ValueError: if a number is out of range
    """

    width = 2  # failures and successes

    def __init__(self, memory: float = 0.9, uniform_share: float = 0.1) -> None:
        if not 0.0 <= memory <= 1.0:
            raise ValueError(f"memory must be in [0, 1], got {memory!r}")
        self.memory = float(memory)
        super().__init__(uniform_share)

    def observe_episodes(self, ids: NDArray[np.int64], reached: NDArray[np.bool_]) -> None:
        outcomes = self.remembered(int(ids.max(initial=UNKNOWN)) + 1)
        for goal, success in zip(ids.tolist(), reached.tolist(), strict=True):
            outcomes[goal] *= self.memory
            outcomes[goal, int(success)] += 1.0

    def weights(self, n_goals: int) -> NDArray[np.float64]:
        failures, successes = self.remembered(n_goals).T
        rates: NDArray[np.float64] = (successes + 1.0) / (failures + successes + 2.0)
        return rates * (1.0 - rates)


class LossSelector(WeightedSelector):
    """
    A rule that follows each goal's squared Bellman error L(g), measured whenever the goal is in an update. Goals whose error
    rises have weight 0. Losses stay on the device until a goal is chosen, when the learner waits for the device anyway.
    """

    def observe_losses(self, ids: th.Tensor, losses: th.Tensor) -> None:
        self._pending.append((ids.detach().clone(), losses.detach().clone()))
        if len(self._pending) >= _MOST_PENDING:
            self.catch_up()

    def catch_up(self) -> None:
        """Take in pending losses, update by update. A goal that is twice in an update has their mean."""
        for ids, losses in self._pending:
            goals, place = np.unique(ids.cpu().numpy(), return_inverse=True)
            means = np.bincount(place, weights=losses.double().cpu().numpy()) / np.bincount(place)
            known = goals != UNKNOWN
            if known.any():
                self.measure(goals[known], means[known])
        self._pending.clear()

    @abstractmethod
    def measure(self, ids: NDArray[np.int64], losses: NDArray[np.float64]) -> None:
        """Take in the losses L(g) of an update's distinct goals, both of shape ``(n,)``, ids ascending, n > 0."""

    @abstractmethod
    def progress(self, n_goals: int) -> NDArray[np.float64]:
        """:return: by how much the error of each goal has fallen, ``(n_goals,)``; NaN where too little was measured"""

    def weights(self, n_goals: int) -> NDArray[np.float64]:
        self.catch_up()
        return np.maximum(self.progress(n_goals), 0.0)

    def forget(self) -> None:
        super().forget()
        self._pending: list[tuple[th.Tensor, th.Tensor]] = []

    def get_checkpoint_state(self) -> dict[str, Any]:
        self.catch_up()
        return super().get_checkpoint_state()


class LearningProgressSelector(LossSelector):
    r"""
    The paper's learning progress (its equation 1), with i the last measurement of the goal's error:

    .. math:: p(g) = \sum_{k=i-m}^{i} \mathcal{L}_{k-m}(g) - \mathcal{L}_k(g)

    The paper leaves open how negative values become probabilities, and what goals with fewer than 2m + 1 measurements have.
    Here the former count as zero, the latter as the mean of the others.

    :param m: the paper's m, 5 there
    :param uniform_share: share of goals drawn uniformly, in (0, 1]
    :raises ValueError: if a number is out of range
    """

    initial = np.nan

    def __init__(self, m: int = 5, uniform_share: float = 0.1) -> None:
        self.m = check_count("m", m)
        self.width = 2 * self.m + 1  # errors, the newest last
        super().__init__(uniform_share)

    def measure(self, ids: NDArray[np.int64], losses: NDArray[np.float64]) -> None:
        history = self.remembered(int(ids[-1]) + 1)
        history[ids, :-1] = history[ids, 1:]
        history[ids, -1] = losses

    def progress(self, n_goals: int) -> NDArray[np.float64]:
        history = self.remembered(n_goals)
        fallen: NDArray[np.float64] = history[:, : self.m + 1].sum(axis=1) - history[:, self.m :].sum(axis=1)
        return fallen


class SmoothedProgressSelector(LossSelector):
    """
    Learning progress as the slow running average of L(g) less the fast one: less noisy than equation 1.

    :param fast: share of a new measurement in the fast average
    :param slow: share of a new measurement in the slow average
    :param uniform_share: share of goals drawn uniformly, in (0, 1]
    :raises ValueError: unless 0 < ``slow`` < ``fast`` <= 1 and ``uniform_share`` is in (0, 1]
    """

    width = 3  # fast average, slow average, number of measurements

    def __init__(self, fast: float = 0.3, slow: float = 0.05, uniform_share: float = 0.1) -> None:
        if not 0.0 < slow < fast <= 1.0:
            raise ValueError(f"slow and fast must be 0 < slow < fast <= 1, got slow={slow!r} and fast={fast!r}")
        self.fast, self.slow = float(fast), float(slow)
        super().__init__(uniform_share)

    def measure(self, ids: NDArray[np.int64], losses: NDArray[np.float64]) -> None:
        averages = self.remembered(int(ids[-1]) + 1)
        share = np.where(averages[ids, 2:] == 0, 1.0, [self.fast, self.slow])  # both begin at the first
        averages[ids, :2] += share * (losses[:, None] - averages[ids, :2])
        averages[ids, 2] += 1

    def progress(self, n_goals: int) -> NDArray[np.float64]:
        fast, slow, count = self.remembered(n_goals).T
        return np.where(count >= 2, slow - fast, np.nan)


class ValueDisagreementSelector(GoalSelector):
    """
    One of some uniformly drawn goals g, in proportion to how much estimates of V(s, g) differ at the current observation s.

    After Zhang, Abbeel and Pinto 2020, who train an ensemble. Here the estimates are those of the learning network and its
    target network, so they show how much a value has changed since the target network was updated. The choice is uniform
    where estimates agree, and where s is held out.

    :param n_candidates: goals drawn for each choice
    :param uniform_share: share of candidates chosen uniformly, in [0, 1]
    :raises ValueError: if a number is out of range
    """

    def __init__(self, n_candidates: int = 32, uniform_share: float = 0.1) -> None:
        if not 0.0 <= uniform_share <= 1.0:
            raise ValueError(f"uniform_share must be in [0, 1], got {uniform_share!r}")
        self.n_candidates, self.uniform_share = check_count("n_candidates", n_candidates), float(uniform_share)
        self._values: Values | None = None

    def use_values(self, values: Values) -> None:
        self._values = values

    def select(self, goal_buffer: GoalBuffer, current_ids: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """As :meth:`GoalSelector.select`. :raises RuntimeError: if no learner has given values"""
        if self._values is None:
            raise RuntimeError("ValueDisagreementSelector needs a learner that gives values, as ManyGoalsDQN.learn() does")
        n, k = len(current_ids), self.n_candidates
        candidates = goal_buffer.sample_others(np.repeat(current_ids, k), rng).reshape(n, k)
        weights = np.zeros((n, k))
        known = current_ids != UNKNOWN
        if known.any():
            values = self._values(goal_buffer[np.repeat(current_ids[known], k)], goal_buffer[candidates[known].ravel()])
            weights[known] = values.astype(np.float64).std(axis=0).reshape(-1, k)
        chosen = [rng.choice(row, p=mixture(w, self.uniform_share)) for row, w in zip(candidates, weights, strict=True)]
        return np.array(chosen, dtype=np.int64)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_values": None}  # a copy must not bring a copy of the learner along

    def get_checkpoint_state(self) -> dict[str, Any]:
        return {"n_candidates": self.n_candidates, "uniform_share": self.uniform_share}

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


def mixture(weights: NDArray[np.float64], uniform_share: float) -> NDArray[np.float64]:
    """Probabilities in proportion to weights >= 0, NaN counting as the mean, mixed with uniform ones, shape ``(n,)``."""
    known = ~np.isnan(weights)
    uniform = np.full(len(weights), 1.0 / len(weights))
    if not weights[known].any():
        return uniform
    scaled = weights / weights[known].max()  # for no sum to overflow
    scaled = np.where(known, scaled, scaled[known].mean())
    mixed: NDArray[np.float64] = (1.0 - uniform_share) * scaled / scaled.sum() + uniform_share * uniform
    return np.asarray(mixed / mixed.sum())


def grown(rows: NDArray[Any], n: int, fill: float = 0) -> NDArray[Any]:
    """The same array if it has n rows, else a copy with at least n and twice as many, the new ones filled."""
    if len(rows) >= n:
        return rows
    larger = np.full((max(n, 2 * len(rows)), *rows.shape[1:]), fill, dtype=rows.dtype)
    larger[: len(rows)] = rows
    return larger
