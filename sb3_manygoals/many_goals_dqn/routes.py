"""States on the ways to planned goals, for worlds in which two states drawn at random are hardly ever near each other."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_manygoals.many_goals_dqn.planning import ReplayModel, ReplayPlan

_RANDOM = 0.15  # share of random actions, so that states beside the ways are met, too
_STRIDE = 3  # steps between two draws of a walker, as neighbouring states say much the same
_SPREAD = 128  # steps by which the walkers to a goal are apart at first, all together
_TIE = 0.5  # actions whose values differ by less than this share of a step are taken alike often


class Routes:
    """
    Walkers in a plan's model of the world, some for each planned goal: they follow the plan, but for some random actions, and
    begin anew, in a state drawn uniformly, where their goal is reached, the environment ends, or the plan knows no way.

    :param plan: to follow, a draw of goals
    """

    def __init__(self, plan: ReplayPlan) -> None:
        self.plan = plan
        self.states: NDArray[np.int64] = np.zeros((0, 0), dtype=np.int64)
        """Where the walkers are, in the order of ``plan.goal_ids``, shape (n, G)."""
        self._goal_ids: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._model: ReplayModel | None = None
        self._sums: NDArray[np.float64] = np.zeros(1)
        self._after: NDArray[np.int64] = np.zeros(
            (0, 0), dtype=np.int64
        )  # the most frequent outcome of each action, or -1
        self._ends: NDArray[np.bool_] = np.zeros(
            (0, 0), dtype=np.bool_
        )  # whether the environment ends there

    def draw(
        self, columns: NDArray[np.int64], n: int, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """
        :param columns: of planned goals in the plan, distinct, shape (G,)
        :param n: states on the way to each of them
        :return: these states, shape (n, G)
        """
        plan = self.plan
        if self._model is not plan.model or len(self.states) != n:
            self._follow()
            self._goal_ids = np.full(len(plan.goal_ids), -1)
            self.states = np.zeros((n, len(plan.goal_ids)), dtype=np.int64)
        ids = plan.goal_ids[columns]
        fresh = columns[self._goal_ids[columns] != ids]
        self._goal_ids[columns] = ids
        self.states[:, fresh] = self._begin(n * len(fresh), rng).reshape(n, -1)
        for first in range(1, n):
            self._walk(first, fresh, _SPREAD // n, rng)
        self._walk(0, columns, _STRIDE, rng)
        return self.states[:, columns]

    def _walk(
        self, first: int, columns: NDArray[np.int64], steps: int, rng: np.random.Generator
    ) -> None:
        """Of the walkers to the goals in these columns, all but the first ones."""
        states = self.states[first:, columns]
        goal_ids = np.tile(self.plan.goal_ids[columns], len(states))
        for _ in range(steps):
            states = self._step(states.ravel(), goal_ids, rng).reshape(states.shape)
        self.states[first:, columns] = states

    def _follow(self) -> None:
        self._model = self.plan.model
        assert self._model is not None
        self._sums = np.concatenate([[0.0], np.cumsum(self._model.on.data, dtype=np.float64)])
        led = self._model.likeliest()
        self._after = np.full(led.tried.shape, -1)
        self._after[led.tried] = (led.on + led.ends).indices
        self._ends = (np.diff(led.ends.indptr) > 0).reshape(led.tried.shape)

    def get_checkpoint_state(self) -> dict[str, Any] | None:
        """None if the walkers begin anew at the next draw."""
        if self._model is None or self._model is not self.plan.model:
            return None
        return {"states": self.states, "goal_ids": self._goal_ids}

    def set_checkpoint_state(self, state: dict[str, Any] | None) -> None:
        """The plan has its own state already."""
        if state is not None:
            self.states, self._goal_ids = state["states"], state["goal_ids"]
            self._follow()

    def _begin(self, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        assert self._model is not None
        return self._model.left[rng.integers(len(self._model.left), size=n)]

    def _choose(
        self, states: NDArray[np.int64], goal_ids: NDArray[np.int64], rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """One of the actions that are about the best, as a plan's own choice would always lead the same way; -1: no way."""
        plan = self.plan
        best, after = plan.best_actions(states, goal_ids), self._after[states]
        returns = (
            plan.step_reward + plan.gamma * plan.values[after, plan.columns_of(goal_ids)[:, None]]
        )
        returns[(after < 0) | self._ends[states]] = -np.inf
        returns[after == plan.states_of(goal_ids)[:, None]] = plan.goal_reward
        here = returns.max(axis=1, keepdims=True)
        step = (1.0 - plan.gamma) * here - plan.step_reward  # what one more would cost
        chosen = (returns + _TIE * step * rng.random(returns.shape)).argmax(axis=1)
        return np.where((best < 0) | ~np.isfinite(here[:, 0]), best, chosen)

    def _step(
        self, states: NDArray[np.int64], goal_ids: NDArray[np.int64], rng: np.random.Generator
    ) -> NDArray[np.int64]:
        model = self._model
        assert model is not None
        actions = self._choose(states, goal_ids, rng)
        random = (lost := actions < 0) | (rng.random(len(states)) < _RANDOM)
        actions[random] = rng.integers(model.n_actions, size=random.sum())
        rows = states * model.n_actions + actions
        low, high = model.on.indptr[rows], model.on.indptr[rows + 1]
        # The summed chances of an action's outcomes are an interval, from which a number picks one; beyond, the world ends.
        picked = (
            np.searchsorted(self._sums, self._sums[low] + rng.random(len(states)), side="right") - 1
        )
        after = np.where(
            model.tried[states, actions], -1, states
        )  # what was not tried leads nowhere
        inside = picked < high
        after[inside] = model.on.indices[picked[inside]]
        anew = lost | (after < 0) | (after == self.plan.states_of(goal_ids))
        after[anew] = self._begin(int(anew.sum()), rng)
        return after
