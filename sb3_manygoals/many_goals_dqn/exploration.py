"""Exploration by visit counts, for worlds whose observations recur."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_manygoals.many_goals_dqn.transition_model import TransitionModel
from sb3_manygoals.world import WorldModel

_DISCOUNT = 0.99
_MOST_SWEEPS = 20
# Value iteration stops once no value changes by more than this.
_TOLERANCE = 0.01
# Values are computed again after at least so many transitions.
_SOLVE_EVERY = 100
# For so many transitions that were made before, they are computed one transition later.
_MORE_EVERY = 500
# In large worlds, they are computed again after one transition for so many states at the earliest,
# because that takes as long as there are states.
_STATES_A_TRANSITION = 20
# Transition probabilities are computed again after so many transitions, or a twentieth of those
# that were made, if that is more.
_MODEL_EVERY = 1_000
_MODEL_SHARE = 20


class CountBonus:
    r"""
    Exploration by value iteration in a model of the world, with a bonus for (state, action) pairs
    that were rarely tried (MBIE-EB, Strehl and Littman 2008),

    .. math:: Q(s, a) = \frac{1}{\sqrt{1 + n_{sa}}} + \gamma \sum_{s'} p_{sas'} \max_{a'} Q(s', a')

    For an action that was never tried, the next value is the largest possible one,
    :math:`1 / (1 - \gamma)`. The discount is 0.99. If masks are used, actions that no mask has
    allowed in a state are left out.

    :param n_actions: number of actions, A
    """

    def __init__(self, n_actions: int) -> None:
        self.n_actions = n_actions
        self.values: NDArray[np.float64] = np.zeros(0)
        """The value of each state as last solved, shape (S,)."""
        self.next_values: NDArray[np.float64] = np.zeros((0, n_actions))
        """The second term of the equation as last solved, shape (S, A)."""
        self._model: TransitionModel | None = None
        # Whether any mask has allowed an action in a state. False for all if no mask was met there.
        self._allowed: NDArray[np.bool_] = np.zeros((0, n_actions), np.bool_)
        # The number of transitions when values, and when the model, were computed last.
        self._solved_at = 0
        self._modeled_at = 0

    def refresh(self, world: WorldModel, n_envs: int) -> None:
        """
        Compute values again, if enough transitions were made since the last time.

        :param world: the model of the world
        :param n_envs: number of environments. Values are computed at most once in four steps of all
            of them, except when transition probabilities are computed again
        """
        n_made = world.n_counted
        since_model = n_made - self._modeled_at
        model_is_due = since_model >= max(_MODEL_EVERY, self._modeled_at // _MODEL_SHARE)
        if self._model is None or model_is_due:
            self._model = TransitionModel.of(world)
            self._modeled_at = n_made
            model_is_due = True
        n_states = len(world.identity)
        wait = max(
            _SOLVE_EVERY + self._solved_at // _MORE_EVERY,
            4 * n_envs,
            n_states // _STATES_A_TRANSITION,
        )
        if model_is_due or n_made - self._solved_at >= wait:
            self._solve(world)
            self._solved_at = n_made

    def _solve(self, world: WorldModel) -> None:
        """Iterate the equation, beginning with the last values."""
        model = self._model
        assert model is not None
        n_states = len(world.identity)
        largest = 1.0 / (1.0 - _DISCOUNT)
        # Rows are actions here. NumPy finds the largest of a few rows ten times as fast as that of
        # a few columns.
        visit_counts = world.visit_counts[:n_states].T
        never_tried = np.ascontiguousarray(visit_counts == 0)
        bonus = np.ascontiguousarray(1.0 / np.sqrt(1.0 + visit_counts))
        allowed = self._allowed[:n_states]
        is_masked = ~allowed & allowed.any(axis=1, keepdims=True)
        bonus[:, : len(allowed)][is_masked.T] = -np.inf
        values = np.full(n_states, largest / 2)
        values[: len(self.values)] = self.values
        tried = np.ascontiguousarray(model.tried.T)
        for _ in range(_MOST_SWEEPS):
            # Actions that were first tried after the model was made count as if they led back.
            next_values = np.where(never_tried, largest, values)
            means = (model.transitions @ values[: model.n_states]).reshape(model.tried.shape)
            np.copyto(next_values[:, : model.n_states], means.T, where=tried)
            next_values *= _DISCOUNT
            better = (bonus + next_values).max(axis=0)
            change = np.abs(better - values).max(initial=0.0)
            values = better
            if change <= _TOLERANCE:
                break
        self.values = values
        self.next_values = np.ascontiguousarray(next_values.T)

    def actions(
        self,
        states: NDArray[np.int64],
        world: WorldModel,
        rng: np.random.Generator,
        action_masks: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.int64]:
        """
        Return the action with the highest value Q(s, a) in each state.

        In unknown states, actions are random. Masks are remembered for the next values.

        :param states: ids of states, -1 for unknown ones, int64, shape (n,)
        :param world: the model of the world, which has the visit counts
        :param rng: random generator, which breaks ties
        :param action_masks: whether each action is allowed, bool, shape (n, A). None: all are
        :return: actions, int64, shape (n,)
        """
        values = rng.random((len(states), self.n_actions)) * 1e-6
        known = states >= 0
        values[known] += 1.0 / np.sqrt(1.0 + world.visit_counts[states[known]])
        solved = known & (states < len(self.next_values))
        values[solved] += self.next_values[states[solved]]
        if action_masks is not None:
            values[~action_masks] = -np.inf
            self._note_masks(states[known], action_masks[known], world)
        return np.asarray(values.argmax(axis=1))

    def _note_masks(
        self, states: NDArray[np.int64], action_masks: NDArray[np.bool_], world: WorldModel
    ) -> None:
        """Remember which actions the masks allow in these states."""
        if len(self._allowed) < len(world.visit_counts):
            self._allowed = np.zeros(world.visit_counts.shape, np.bool_)
        np.logical_or.at(self._allowed, states, action_masks)

    def get_checkpoint_state(self) -> dict[str, Any]:
        """
        Return values, model and remembered masks.

        :return: a dictionary of plain data and arrays. Arrays are not copied, so write it before
            exploration goes on
        """
        return {
            "values": self.values,
            "next_values": self.next_values,
            "model": None if self._model is None else self._model.get_checkpoint_state(),
            "solved_at": self._solved_at,
            "modeled_at": self._modeled_at,
            "allowed": self._allowed,
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Replace values, model and remembered masks.

        :param state: what :meth:`get_checkpoint_state` returned
        """
        self.values = state["values"]
        self.next_values = state["next_values"]
        self._model = None
        if state["model"] is not None:
            self._model = TransitionModel.from_checkpoint_state(state["model"])
        self._solved_at = state["solved_at"]
        self._modeled_at = state["modeled_at"]
        self._allowed = state["allowed"]
