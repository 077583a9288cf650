"""Values planned in what the replay memory holds, for targets that do not depend on what the networks have learned so far."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from sb3_manygoals.goals import UNKNOWN, GoalBuffer
from sb3_manygoals.many_goals_dqn.replay_buffer import ManyGoalsReplayBuffer
from sb3_manygoals.many_goals_dqn.replay_model import ReplayModel
from sb3_manygoals.memory import check_memory

_BLOCK = 32  # goals planned together: their values of some thousand states stay in a processor's cache
_LOOK_EVERY = 4
"""Sweeps between looks at how much they change."""
_TOLERANCE = 1e-3
"""No further sweep where one changed no value by more, in units of a step's cost."""


class ReplayPlan:
    r"""
    Value iteration for all goals at once in the world as the replay memory knows it: observations that are equal byte for byte
    are one state, and an action leads on from it as it did, each time counting the same,

    .. math:: V(s, g) \leftarrow \max_{a\ \text{tried in}\ s} \frac{1}{n_{sa}} \sum_{(s, a, s') \in D}
        \begin{cases} r_g & s' = g \\ r + \gamma V(s', g) & \text{otherwise} \end{cases}

    as Kaelbling's (1993) all-goals table, with each transition used over and over, as in prioritized sweeping (Moore and
    Atkeson 1993) or search on the replay buffer (Eysenbach et al. 2019). What the world does by chance is averaged, not
    maximized over. Values take 4 bytes and best actions 1 byte for each pair of state and goal.

    :param gamma: discount factor
    :param goal_reward: of the transition that reaches the goal
    :param step_reward: of every other one
    """

    def __init__(self, gamma: float, goal_reward: float, step_reward: float) -> None:
        self.gamma = gamma
        self.goal_reward = goal_reward
        self.step_reward = step_reward
        self.values: NDArray[np.float32] = np.zeros((0, 0), dtype=np.float32)
        """Of the states by the goals known when it was last planned."""
        self.best: NDArray[np.signedinteger[Any]] = np.zeros((0, 0), dtype=np.int8)
        """The best action in each of these states for each of these goals, -1 where no way is known."""
        self.model: ReplayModel | None = None
        self._goal_states: NDArray[np.int64] = np.zeros(0, dtype=np.int64)

    @property
    def unreachable_value(self) -> float:
        """What it is worth never to get there."""
        return self.step_reward / (1.0 - self.gamma)

    @property
    def horizon(self) -> float:
        """The value of a goal 3 / (1 - gamma) steps away, or of one that is reached at once with probability 0.05."""
        return self.unreachable_value + (self.goal_reward - self.unreachable_value) * np.exp(-3.0)

    def refresh(self, replay: ManyGoalsReplayBuffer, goals: GoalBuffer, sweeps: int) -> None:
        """
        Plan, from the values that there are.

        :param replay: a memory that keeps the states of its transitions
        :param goals: to be reached
        :param sweeps: the most updates of all values
        :raises MemoryError: if the values do not fit into the memory that is available
        """
        assert replay.states is not None
        self._grow(len(replay.states), len(goals), replay.tried.shape[1])
        self.model = ReplayModel.of(replay)
        self._goal_states = replay.states.ids(goals.observations)
        for begin in range(0, len(goals), _BLOCK):
            block = slice(begin, begin + _BLOCK)
            values = self.values[self.model.order, block]
            actions = self._iterate(self.model, values, self._goal_states[block], sweeps)
            self.values[self.model.order, block] = values
            self.best[self.model.order, block] = actions

    def _iterate(
        self, model: ReplayModel, values: NDArray[np.float32], goal_states: NDArray[np.int64], sweeps: int
    ) -> NDArray[np.signedinteger[Any]]:
        """
        :param values: states in the order of the model, changed in place
        :return: the best actions by the values left behind
        """
        actions = np.full(values.shape, -1, dtype=self.best.dtype)
        if not model.slots:
            return actions
        columns = np.flatnonzero(goal_states != UNKNOWN)
        arrived = model.place[goal_states[columns]], columns
        from_ends = [self._worth_of_ends(slot.ends, goal_states) for slot in model.slots]
        n_first = len(model.slots[0].actions)
        tolerance = _TOLERANCE * (self.goal_reward - self.step_reward)
        worth = self._arriving(values, arrived)
        for sweep in range(1, sweeps + 1):
            best = self._options(model, 0, worth, from_ends)
            for number in range(1, len(model.slots)):
                found = self._options(model, number, worth, from_ends)
                np.maximum(best[: len(found)], found, out=best[: len(found)])
            looked_at = sweep % _LOOK_EVERY == 0
            change = np.abs(best - values[:n_first]).max() if looked_at else np.inf
            values[:n_first] = best
            worth[:n_first] = self._arriving(best, None)
            worth[arrived] = self.goal_reward
            if change <= tolerance:
                break
        for number, slot in enumerate(model.slots):
            found, n = self._options(model, number, worth, from_ends), len(slot.actions)
            if number == 0:
                best = found
                actions[:n] = slot.actions[:, None]
            else:
                better = found > best[:n]
                best[:n][better] = found[better]
                actions[:n] = np.where(better, slot.actions[:, None], actions[:n])
        actions[:n_first][best < self.horizon] = -1
        return actions

    @staticmethod
    def _options(
        model: ReplayModel, number: int, worth: NDArray[np.float32], from_ends: list[NDArray[np.float32] | None]
    ) -> NDArray[np.float32]:
        found: NDArray[np.float32] = model.slots[number].on @ worth
        ends = from_ends[number]
        if ends is not None:
            found += ends
        return found

    def _arriving(self, values: NDArray[np.float32], arrived: tuple[NDArray[Any], ...] | None) -> NDArray[np.float32]:
        """What it is worth to come to states, whose own values these are, where (state, goal) is arrived."""
        worth: NDArray[np.float32] = self.gamma * values
        worth += self.step_reward
        if arrived is not None:
            worth[arrived] = self.goal_reward
        return worth

    def _worth_of_ends(self, ends: csr_array, goal_states: NDArray[np.int64]) -> NDArray[np.float32] | None:
        """What ends of the environment add to the worth of actions: those at the goal reach it, all others never will."""
        if ends.nnz == 0:
            return None
        worth = np.repeat(np.float32(self.unreachable_value) * ends.sum(axis=1)[:, None], len(goal_states), axis=1)
        known = np.flatnonzero(goal_states != UNKNOWN)
        worth[:, known] += np.float32(self.goal_reward - self.unreachable_value) * ends[:, goal_states[known]].toarray()
        return worth.astype(np.float32)

    def _grow(self, n_states: int, n_goals: int, n_actions: int) -> None:
        before = self.values
        if before.shape == (n_states, n_goals):
            return
        of_actions = np.min_scalar_type(-n_actions)
        needed = {"planned values": n_states * n_goals * 4, "planned actions": n_states * n_goals * of_actions.itemsize}
        check_memory("planning", needed, "choose fewer max_states in target_kwargs, or target_class=TDTargets")
        self.values = np.full((n_states, n_goals), self.unreachable_value, dtype=np.float32)
        self.values[: len(before), : before.shape[1]] = before
        self.best = np.full((n_states, n_goals), -1, dtype=of_actions)

    def action_values(self, states: NDArray[np.int64], goal_ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """
        :param states: numbers of states, -1 where it has none, shape (S,)
        :param goal_ids: ids of goals, -1 where it is none, shape (G,)
        :return: what each action is worth in each state for each goal, shape (S, G, A); NaN where that is not known: where it
            had not been tried when it was planned, or is worth less than :attr:`horizon`
        """
        model = self.model
        if model is None:
            return np.full((len(states), len(goal_ids), 1), np.nan, dtype=np.float32)
        found = np.full((len(states), model.n_actions, len(goal_ids)), np.nan, dtype=np.float32)
        goals = np.flatnonzero((goal_ids >= 0) & (goal_ids < self.values.shape[1]))
        goal_states = self._goal_states[goal_ids[goals]]
        rows, tried = model.rows(states)
        on = model.on[rows]
        met, columns = np.unique(on.indices, return_inverse=True)
        on = csr_array((on.data, columns, on.indptr), shape=(len(rows), len(met)))
        arrived = np.nonzero(met[:, None] == goal_states)
        worth = on @ self._arriving(self.values[np.ix_(met, goal_ids[goals])], arrived)
        from_ends = self._worth_of_ends(model.ends[rows], goal_states)
        if from_ends is not None:
            worth += from_ends
        worth[worth < self.horizon] = np.nan
        found.reshape(-1, len(goal_ids))[np.ix_(tried, goals)] = worth
        return found.swapaxes(1, 2)

    def best_actions(self, states: NDArray[np.int64], goal_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """
        :param states: numbers of states, -1 where it has none, shape (n,)
        :param goal_ids: the goal of each, -1 where it is none, shape (n,)
        :return: the best action of each, -1 where no way was known when it was planned, shape (n,)
        """
        n_states, n_goals = self.best.shape
        planned = (states >= 0) & (states < n_states) & (goal_ids >= 0) & (goal_ids < n_goals)
        actions = np.full(len(states), -1, dtype=np.int64)
        actions[planned] = self.best[states[planned], goal_ids[planned]]
        return actions

    def get_checkpoint_state(self) -> dict[str, Any]:
        """:return: a plain tree, whose arrays are the plan's own"""
        return {
            "values": self.values,
            "best": self.best,
            "goal_states": self._goal_states,
            "model": None if self.model is None else self.model.get_checkpoint_state(),
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """:param state: of :meth:`get_checkpoint_state`"""
        self.values, self.best, self._goal_states = state["values"], state["best"], state["goal_states"]
        self.model = None if state["model"] is None else ReplayModel.from_checkpoint_state(state["model"])
