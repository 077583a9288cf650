"""States on the ways to planned goals, for worlds in which random states are rarely near goals."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_manygoals.many_goals_dqn.planning import AllGoalsPlan
from sb3_manygoals.many_goals_dqn.transition_model import TransitionModel

# The share of random actions, so that states beside the ways are met too.
_RANDOM_SHARE = 0.15
# So many goals are walked to together, and each walker makes so many steps.
_GOALS_TOGETHER = 512
_N_STEPS = 128
# After so many samples, walkers set out anew.
_SAMPLES = 64
# Actions whose values differ by less than this share of a step are chosen about equally often.
_TIE = 0.5


class GoalDirectedSampler:
    """
    Samples states on the ways to planned goals.

    A walker for each of 512 goals makes 128 steps in the plan's model of the world. It follows the
    plan, except for some random actions. It begins in a random state. It begins anew, in another
    one, when it reaches its goal, when the environment terminates, and when the plan knows no way.
    Samples are drawn from all states that were met. After 64 samples, walkers set out to other
    goals.

    :param plan: plan to follow
    """

    def __init__(self, plan: AllGoalsPlan) -> None:
        self.plan = plan
        self.columns: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        """The columns of the plan that were walked to, shape (W,)."""
        self.states: NDArray[np.int64] = np.zeros((0, 0), dtype=np.int64)
        """The states that each walker met, shape (steps, W)."""
        # The samples since walkers set out, and the place of the next goal to sample for.
        self._n_samples = 0
        self._next = 0
        self._model: TransitionModel | None = None
        # The most frequent outcome of each action in each state, -1 for none, and whether the
        # environment terminates with it.
        self._likeliest_next: NDArray[np.int64] = np.zeros((0, 0), dtype=np.int64)
        self._likeliest_terminates: NDArray[np.bool_] = np.zeros((0, 0), dtype=np.bool_)

    @property
    def is_used_up(self) -> bool:
        """Whether walkers set out anew before the next sample. Until then, goals must stay."""
        has_walked = self._model is not None and self._model is self.plan.model
        return not has_walked or self._n_samples >= _SAMPLES

    def sample(
        self, n_goals: int, n: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """
        Sample goals, and states on the ways to each of them.

        :param n_goals: number of different goals, G, at most those that are planned
        :param n: number of states for each goal
        :param rng: random generator
        :return: the goals' columns of the plan, shape (G,); and ids of states, shape (n, G)
        """
        if self.is_used_up or len(self.columns) < n_goals:
            self._walk(max(_GOALS_TOGETHER, n_goals), rng)
        elif self._next + n_goals > len(self.columns):
            order = rng.permutation(len(self.columns))
            self.columns = self.columns[order]
            self.states = self.states[:, order]
            self._next = 0
        walkers = np.arange(self._next, self._next + n_goals)
        self._next += n_goals
        self._n_samples += 1
        steps = rng.integers(len(self.states), size=(n, n_goals))
        return self.columns[walkers], self.states[steps, walkers]

    def _walk(self, n_walkers: int, rng: np.random.Generator) -> None:
        """Let walkers set out to so many goals, or to all of them if there are not more."""
        if self._model is not self.plan.model:
            self._use_model()
        goal_ids = self.plan.goal_ids
        self.columns = rng.permutation(len(goal_ids))[:n_walkers]
        self._n_samples = 0
        self._next = 0
        states = self._random_states(len(self.columns), rng)
        met = []
        for _ in range(_N_STEPS):
            states = self._step(states, goal_ids[self.columns], rng)
            met.append(states)
        self.states = np.stack(met)

    def _use_model(self) -> None:
        """Read the plan's model."""
        self._model = self.plan.model
        assert self._model is not None
        likeliest = self._model.likeliest()
        self._likeliest_next = np.full(likeliest.tried.shape, -1)
        together = likeliest.transitions + likeliest.terminal_transitions
        # An action that most often led to a state that was not kept has no entry.
        has_entry = np.diff(together.indptr).reshape(likeliest.tried.shape) > 0
        self._likeliest_next[has_entry] = together.indices
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
        returns[plan.is_achieved(after, goal_ids[:, None])] = plan.goal_reward
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
        begins_anew = is_lost | (after < 0) | self.plan.is_achieved(after, goal_ids)
        after[begins_anew] = self._random_states(int(begins_anew.sum()), rng)
        return after

    def get_checkpoint_state(self) -> dict[str, Any] | None:
        """Return what the walkers have met, or None if they set out anew with the next sample."""
        if self.is_used_up:
            return None
        return {
            "columns": self.columns,
            "states": self.states,
            "n_samples": self._n_samples,
            "next": self._next,
        }

    def set_checkpoint_state(self, state: dict[str, Any] | None) -> None:
        """
        Replace what the walkers have met. The plan must have been restored before.

        :param state: what :meth:`get_checkpoint_state` returned
        """
        self._model = None
        if state is not None:
            self.columns = state["columns"]
            self.states = state["states"]
            self._n_samples = state["n_samples"]
            self._next = state["next"]
            self._use_model()
