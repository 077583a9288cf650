"""States on the ways to planned goals, for worlds in which two states drawn at random are hardly ever near each other."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_manygoals.many_goals_dqn.planning import ReplayModel, ReplayPlan

_RANDOM = 0.15  # share of random actions, so that states beside the ways are met, too
_STRIDE = 3  # steps between two draws of a walker, as neighbouring states say much the same
_LOST = 0.01  # chance that a walker begins anew anywhere


class Routes:
    """
    Walkers in a plan's model of the world, one for each planned goal: they follow the plan, but for some random actions, and
    begin anew, in a state drawn uniformly, where their goal is reached, the environment ends, or the plan knows no way.

    :param plan: to follow, a draw of goals
    """

    def __init__(self, plan: ReplayPlan) -> None:
        self.plan = plan
        self.states: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        """Where the walkers are, in the order of ``plan.goal_ids``, shape (G,)."""
        self._goal_ids: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._model: ReplayModel | None = None
        self._sums: NDArray[np.float64] = np.zeros(1)

    def draw(self, columns: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """
        :param columns: of planned goals in the plan, distinct, shape (n,)
        :param rng: generator of random numbers
        :return: a state on the way to each of them, shape (n,)
        """
        plan = self.plan
        if self._model is not plan.model:
            self._follow()
            self._goal_ids = np.full(len(plan.goal_ids), -1)
            self.states = np.zeros(len(plan.goal_ids), dtype=np.int64)
        ids = plan.goal_ids[columns]
        fresh = columns[self._goal_ids[columns] != ids]
        self.states[fresh], self._goal_ids[columns] = self._begin(len(fresh), rng), ids
        states = self.states[columns]
        for _ in range(_STRIDE):
            states = self._step(states, ids, rng)
        self.states[columns] = states
        return states

    def _follow(self) -> None:
        self._model = self.plan.model
        assert self._model is not None
        self._sums = np.concatenate([[0.0], np.cumsum(self._model.on.data, dtype=np.float64)])

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

    def _step(self, states: NDArray[np.int64], goal_ids: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        model = self._model
        assert model is not None
        actions = self.plan.best_actions(states, goal_ids)
        lost = actions < 0
        random = lost | (rng.random(len(states)) < _RANDOM)
        actions[random] = rng.integers(model.n_actions, size=random.sum())
        rows = states * model.n_actions + actions
        low, high = model.on.indptr[rows], model.on.indptr[rows + 1]
        # The summed chances of an action's outcomes are an interval, from which a number picks one; beyond, the world ends.
        drawn = self._sums[low] + rng.random(len(states))
        picked = np.searchsorted(self._sums, drawn, side="right") - 1
        after = np.where(model.tried[states, actions], -1, states)  # what was not tried leads nowhere
        inside = picked < high
        after[inside] = model.on.indices[picked[inside]]
        anew = lost | (after < 0) | (after == self.plan.states_of(goal_ids)) | (rng.random(len(states)) < _LOST)
        after[anew] = self._begin(int(anew.sum()), rng)
        return after
