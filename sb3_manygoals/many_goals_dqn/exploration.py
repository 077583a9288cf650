"""Exploration where observations recur: towards what has been tried least, near or far."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_manygoals.many_goals_dqn.replay_buffer import ManyGoalsReplayBuffer
from sb3_manygoals.many_goals_dqn.replay_model import ReplayModel

_DISCOUNT = 0.99
_SWEEPS = 20
_TOLERANCE = 0.01
_SOLVE_EVERY = 100
"""Environment steps between value iterations, at least; as many again for each 50,000 taken."""
_MODEL_EVERY = 1_000
"""Environment steps between looks at the replay memory, at least; and 5% of those taken."""


class CountBonus:
    r"""
    Explores by counts: value iteration with a bonus for pairs of state and action that were rarely tried, in the world as the
    replay memory knows it (MBIE-EB, Strehl and Littman 2008),

    .. math:: Q(s, a) = \frac{1}{\sqrt{1 + n_{sa}}} + \gamma \sum_{s'} p_{sas'} \max_{a'} Q(s', a')

    with :math:`1 / (1 - \gamma)` for what follows an action never tried. So an agent tries what is at hand, and travels where
    there is more to learn, however far that is from where its episodes start. The discount is 0.99, whatever the learner's.

    :param n_actions: number of actions, A
    """

    def __init__(self, n_actions: int) -> None:
        self.n_actions = n_actions
        self.values: NDArray[np.float64] = np.zeros(0)
        self.led: NDArray[np.float64] = np.zeros((0, n_actions))
        """What follows each action, discounted, when it was last solved; shape (S, A)."""
        self._model: ReplayModel | None = None
        self._solve_at = 0
        self._model_at = 0

    def refresh(self, replay: ManyGoalsReplayBuffer, step: int) -> None:
        """
        Solve again, where it is time to.

        :param replay: a memory that keeps the states of its transitions
        :param step: environment steps so far
        """
        if step >= self._model_at:
            self._model = ReplayModel.of(replay)
            self._model_at = step + max(_MODEL_EVERY, step // 20)
            self._solve_at = step
        if step >= self._solve_at:
            self._solve(replay)
            self._solve_at = step + max(_SOLVE_EVERY + step // 500, 4 * replay.n_envs)

    def _solve(self, replay: ManyGoalsReplayBuffer) -> None:
        assert self._model is not None
        assert replay.states is not None
        n, most = len(replay.states), 1.0 / (1.0 - _DISCOUNT)
        tried = replay.tried[:n]
        bonus = 1.0 / np.sqrt(1.0 + tried)
        values = np.full(n, most / 2)
        values[: len(self.values)] = self.values
        known = np.zeros((n, self.n_actions), dtype=np.bool_)
        known.reshape(-1)[self._model.tried] = True
        on = self._model.on
        # what was tried since the model was made may lead anywhere: back, say
        new = (tried > 0) & ~known
        for _ in range(_SWEEPS):
            led = np.where(new, values[:, None], most)
            led.reshape(-1)[self._model.tried] = on @ values[: self._model.n_states]
            led *= _DISCOUNT
            better = (bonus + led).max(axis=1)
            change = np.abs(better - values).max(initial=0.0)
            values = better
            if change <= _TOLERANCE:
                break
        self.values, self.led = values, led

    def actions(
        self,
        states: NDArray[np.int64],
        replay: ManyGoalsReplayBuffer,
        rng: np.random.Generator,
        action_masks: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.int64]:
        """
        :param states: numbers of states, -1 where it has none, shape (n,)
        :param replay: which counts what was tried
        :param rng: decides between equals
        :param action_masks: actions allowed, shape (n, A), None for all
        :return: the most promising actions, shape (n,); where there is no state, or none has been solved, any
        """
        worth = rng.random((len(states), self.n_actions)) * 1e-6
        counted = states >= 0
        worth[counted] += 1.0 / np.sqrt(1.0 + replay.tried[states[counted]])
        solved = counted & (states < len(self.led))
        worth[solved] += self.led[states[solved]]
        if action_masks is not None:
            worth[~action_masks] = -np.inf
        actions: NDArray[np.int64] = worth.argmax(axis=1)
        return actions

    def get_checkpoint_state(self) -> dict[str, Any]:
        """:return: a plain tree, whose arrays are its own"""
        return {
            "values": self.values,
            "led": self.led,
            "model": None if self._model is None else self._model.get_checkpoint_state(),
            "solve_at": self._solve_at,
            "model_at": self._model_at,
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """:param state: of :meth:`get_checkpoint_state`"""
        self.values, self.led = state["values"], state["led"]
        self._model = None if state["model"] is None else ReplayModel.from_checkpoint_state(state["model"])
        self._solve_at, self._model_at = state["solve_at"], state["model_at"]
