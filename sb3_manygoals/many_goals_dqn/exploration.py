"""Exploration by counts, where observations recur."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_manygoals.many_goals_dqn.planning import ReplayModel
from sb3_manygoals.many_goals_dqn.replay_buffer import ManyGoalsReplayBuffer

_DISCOUNT = 0.99
_SWEEPS = 20
_TOLERANCE = 0.01
_SOLVE_EVERY = 100  # transitions between value iterations with the bonus, and one more for every 500 that were met
_COUNT_EVERY = (
    1_000  # transitions between two models of the replay memory, or 5% of those met if that is more
)


class CountBonus:
    r"""
    Value iteration in the model of the replay memory, with a bonus for (state, action) pairs that were rarely tried (MBIE-EB,
    Strehl and Littman 2008),

    .. math:: Q(s, a) = \frac{1}{\sqrt{1 + n_{sa}}} + \gamma \sum_{s'} p_{sas'} \max_{a'} Q(s', a')

    with the largest possible value, :math:`1 / (1 - \gamma)`, after an action that was never tried. The discount is 0.99.
    Actions that no mask has allowed in a state are left out.
    """

    def __init__(self, n_actions: int) -> None:
        self.n_actions = n_actions
        self.values: NDArray[np.float64] = np.zeros(0)
        self.led: NDArray[np.float64] = np.zeros(
            (0, n_actions)
        )  # the second term of the equation, as last solved
        self._model: ReplayModel | None = None
        self._allowed: NDArray[np.bool_] = np.zeros(
            (0, n_actions), np.bool_
        )  # by any mask met in a state; none: no mask met
        self._solved, self._modeled = 0, 0  # after so many transitions

    def refresh(self, replay: ManyGoalsReplayBuffer) -> None:
        """Solve again if it is due, as enough transitions were met."""
        met = replay.n_tried
        due = self._model is None or met - self._modeled >= max(_COUNT_EVERY, self._modeled // 20)
        if due:
            self._model, self._modeled = ReplayModel.of(replay), met
        if due or met - self._solved >= max(_SOLVE_EVERY + self._solved // 500, 4 * replay.n_envs):
            self._solve(replay)
            self._solved = met

    def _solve(self, replay: ManyGoalsReplayBuffer) -> None:
        assert self._model is not None
        assert replay.states is not None
        n, largest = len(replay.states), 1.0 / (1.0 - _DISCOUNT)
        n_modeled, modeled = self._model.n_states, self._model.tried
        bonus = 1.0 / np.sqrt(1.0 + replay.tried[:n])
        allowed = self._allowed[:n]
        bonus[: len(allowed)][~allowed & allowed.any(axis=1, keepdims=True)] = -np.inf
        values = np.full(n, largest / 2)
        values[: len(self.values)] = self.values
        for _ in range(_SWEEPS):
            led = np.where(
                replay.tried[:n] > 0, values[:, None], largest
            )  # tried since the model was made: as if it led back
            led[:n_modeled][modeled] = (self._model.on @ values[:n_modeled]).reshape(modeled.shape)[
                modeled
            ]
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
        """The most promising actions, shape (n,); random ones in unknown states. ``rng`` breaks ties."""
        values = rng.random((len(states), self.n_actions)) * 1e-6
        known = states >= 0
        values[known] += 1.0 / np.sqrt(1.0 + replay.tried[states[known]])
        solved = known & (states < len(self.led))
        values[solved] += self.led[states[solved]]
        if action_masks is not None:
            values[~action_masks] = -np.inf
            if len(self._allowed) < len(replay.tried):
                self._allowed = np.zeros(replay.tried.shape, np.bool_)
            np.logical_or.at(self._allowed, states[known], action_masks[known])
        return np.asarray(values.argmax(axis=1))

    def get_checkpoint_state(self) -> dict[str, Any]:
        model = None if self._model is None else self._model.get_checkpoint_state()
        at = self._solved, self._modeled
        return {
            "values": self.values,
            "led": self.led,
            "model": model,
            "at": at,
            "allowed": self._allowed,
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        self.values, self.led = state["values"], state["led"]
        self._model = (
            None if state["model"] is None else ReplayModel.from_checkpoint_state(state["model"])
        )
        (self._solved, self._modeled), self._allowed = state["at"], state["allowed"]
