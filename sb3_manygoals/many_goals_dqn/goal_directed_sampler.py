"""States on the ways to planned goals, for worlds in which random states are rarely near goals."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_manygoals.many_goals_dqn.planning import AllGoalsPlan, TransitionModel

# The share of random actions, so that states beside the ways are met too.
_RANDOM_SHARE = 0.15
# Walkers make so many steps between two samples, because neighbouring states teach much the same.
_STEPS_BETWEEN_SAMPLES = 3
# The walkers to a goal begin so many steps apart, all together.
_STEPS_APART = 128
# Actions whose values differ by less than this share of a step are chosen about equally often.
_TIE = 0.5


class GoalDirectedSampler:
    """
    Samples states on the ways to planned goals. Some walkers for each goal move in the plan's model
    of the world. They follow the plan, except for some random actions. A walker begins anew, in a
    random state, when it reaches its goal, when the environment terminates, and when the plan knows
    no way.

    :param plan: plan to follow
    """

    def __init__(self, plan: AllGoalsPlan) -> None:
        self.plan = plan
        self.states: NDArray[np.int64] = np.zeros((0, 0), dtype=np.int64)
        """Where the walkers are, shape (n, G). Columns are in the order of ``plan.goal_ids``."""
        # The goal of each column, which tells where the plan has exchanged goals.
        self._goal_ids: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._model: TransitionModel | None = None
        # The most frequent outcome of each action in each state, -1 for none, and whether the
        # environment terminates with it.
        self._likeliest_next: NDArray[np.int64] = np.zeros((0, 0), dtype=np.int64)
        self._likeliest_terminates: NDArray[np.bool_] = np.zeros((0, 0), dtype=np.bool_)

    def sample(
        self, columns: NDArray[np.int64], n: int, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """
        Sample n states on the ways to each of G goals.

        :param columns: different columns of the plan, those of the goals, shape (G,)
        :param n: number of states for each goal
        :param rng: random generator
        :return: ids of states, shape (n, G)
        """
        plan = self.plan
        if self._model is not plan.model or len(self.states) != n:
            self._use_model()
            self._goal_ids = np.full(len(plan.goal_ids), -1)
            self.states = np.zeros((n, len(plan.goal_ids)), dtype=np.int64)
        ids = plan.goal_ids[columns]
        fresh = columns[self._goal_ids[columns] != ids]
        self._goal_ids[columns] = ids
        self.states[:, fresh] = self._random_states(n * len(fresh), rng).reshape(n, -1)
        for first in range(1, n):
            self._walk(first, fresh, _STEPS_APART // n, rng)
        self._walk(0, columns, _STEPS_BETWEEN_SAMPLES, rng)
        return self.states[:, columns]

    def _walk(
        self, first: int, columns: NDArray[np.int64], n_steps: int, rng: np.random.Generator
    ) -> None:
        """Move the walkers to the goals in these columns, from the one with this number on."""
        states = self.states[first:, columns]
        goal_ids = np.tile(self.plan.goal_ids[columns], len(states))
        for _ in range(n_steps):
            states = self._step(states.ravel(), goal_ids, rng).reshape(states.shape)
        self.states[first:, columns] = states

    def _use_model(self) -> None:
        """Read the plan's model."""
        self._model = self.plan.model
        assert self._model is not None
        likeliest = self._model.likeliest()
        self._likeliest_next = np.full(likeliest.tried.shape, -1)
        together = likeliest.transitions + likeliest.terminal_transitions
        self._likeliest_next[likeliest.tried] = together.indices
        n_terminal = np.diff(likeliest.terminal_transitions.indptr)
        self._likeliest_terminates = (n_terminal > 0).reshape(likeliest.tried.shape)

    def _random_states(self, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return random states in which an action was tried."""
        assert self._model is not None
        tried_states = self._model.tried_states
        return tried_states[rng.integers(len(tried_states), size=n)]

    def _choose(
        self, states: NDArray[np.int64], goal_ids: NDArray[np.int64], rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """
        Return one of the actions that are about the best, -1 where no way is known. The plan's own
        choice among equal actions would always lead the same way.
        """
        plan = self.plan
        best = plan.best_actions(states, goal_ids)
        after = self._likeliest_next[states]
        values = plan.values[after, plan.columns_of(goal_ids)[:, None]]
        returns = plan.step_reward + plan.gamma * values
        returns[(after < 0) | self._likeliest_terminates[states]] = -np.inf
        returns[after == plan.states_of(goal_ids)[:, None]] = plan.goal_reward
        here = returns.max(axis=1, keepdims=True)
        cost_of_step = (1.0 - plan.gamma) * here - plan.step_reward
        noise = _TIE * cost_of_step * rng.random(returns.shape)
        chosen = (returns + noise).argmax(axis=1)
        return np.where((best < 0) | ~np.isfinite(here[:, 0]), best, chosen)

    def _step(
        self, states: NDArray[np.int64], goal_ids: NDArray[np.int64], rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Return where walkers in these states, with these goals, get by a step."""
        model = self._model
        assert model is not None
        actions = self._choose(states, goal_ids, rng)
        is_lost = actions < 0
        is_random = is_lost | (rng.random(len(states)) < _RANDOM_SHARE)
        actions[is_random] = rng.integers(model.n_actions, size=is_random.sum())
        after = model.sample_next(states, actions, rng)
        begins_anew = is_lost | (after < 0) | (after == self.plan.states_of(goal_ids))
        after[begins_anew] = self._random_states(int(begins_anew.sum()), rng)
        return after

    def get_checkpoint_state(self) -> dict[str, Any] | None:
        """Return the walkers, or None if they begin anew with the next sample."""
        if self._model is None or self._model is not self.plan.model:
            return None
        return {"states": self.states, "goal_ids": self._goal_ids}

    def set_checkpoint_state(self, state: dict[str, Any] | None) -> None:
        """
        Replace the walkers. The plan must have been restored before.

        :param state: what :meth:`get_checkpoint_state` returned
        """
        if state is not None:
            self.states = state["states"]
            self._goal_ids = state["goal_ids"]
            self._use_model()
