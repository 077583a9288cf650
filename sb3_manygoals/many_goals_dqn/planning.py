"""Values planned in what the replay memory holds, for targets that do not depend on what the networks have learned so far."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from scipy.sparse import csr_array

from sb3_manygoals.goals import UNKNOWN, GoalBuffer
from sb3_manygoals.many_goals_dqn.replay_buffer import ManyGoalsReplayBuffer, ManyGoalsSamples
from sb3_manygoals.memory import check_memory

_BLOCK = 64  # goals planned together: their values of some thousand states stay in a processor's cache
_TOLERANCE = 1e-4
"""No further sweep where the last one changed no value by more."""


class ReplayPlan:
    r"""
    Value iteration for all goals at once in the world as the replay memory knows it: observations that are equal byte for byte
    are one state, and an action leads on from it as it did, each time counting the same,

    .. math:: V(s, g) \leftarrow \max_{a\ \text{tried in}\ s} \frac{1}{n_{sa}} \sum_{(s, a, s') \in D}
        \begin{cases} r_g & s' = g \\ r + \gamma V(s', g) & \text{otherwise} \end{cases}

    as Kaelbling's (1993) all-goals table, with each transition used over and over, as in prioritized sweeping (Moore and
    Atkeson 1993) or search on the replay buffer (Eysenbach et al. 2019). What the world does by chance is averaged, not
    maximized over. It needs worlds whose observations come again and tell their states apart, a few thousand of them: the
    values take 4 bytes for each pair of state and goal.

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
        self.planned_at: int | None = None
        """Environment steps then; None: not planned yet."""
        self._model: _Model | None = None
        self._goal_states: NDArray[np.int64] = np.zeros(0, dtype=np.int64)

    def is_due(self, step: int, interval: int) -> bool:
        """
        :param step: environment steps so far
        :param interval: of them, between plans
        :return: whether it is time to plan; also where steps are counted anew, as by a second call of ``learn``
        """
        return self.planned_at is None or not 0 <= step - self.planned_at < interval

    @property
    def never(self) -> float:
        """What it is worth never to get there."""
        return self.step_reward / (1.0 - self.gamma)

    def refresh(self, replay: ManyGoalsReplayBuffer, goals: GoalBuffer, sweeps: int, step: int) -> None:
        """
        Plan, from the values that there are.

        :param replay: a memory that keeps the states of its transitions
        :param goals: to be reached
        :param sweeps: the most updates of all values
        :param step: environment steps so far
        :raises MemoryError: if the values do not fit into the memory that is available
        """
        assert replay.states is not None
        self._grow(len(replay.states), len(goals))
        self.planned_at = step
        self._model = _Model.of(replay)
        self._goal_states = replay.states.ids(goals.observations)
        for begin in range(0, len(goals), _BLOCK):
            block = slice(begin, begin + _BLOCK)
            values = np.ascontiguousarray(self.values[:, block])
            self._iterate(self._model, values, self._goal_states[block], sweeps)
            self.values[:, block] = values

    def _iterate(self, model: _Model, values: NDArray[np.float32], goal_states: NDArray[np.int64], sweeps: int) -> None:
        # of each state as many rows as there are actions, each time the first in the place of those not tried
        left_from, padded = model.left_from, model.padded_rows
        on = model.on[padded]
        columns = np.flatnonzero(goal_states != UNKNOWN)
        arrived = goal_states[columns], columns
        from_ends = self._worth_of_ends(model.ends[padded], goal_states)
        for _ in range(sweeps):
            worth = on @ self._arriving(values, arrived)
            if from_ends is not None:
                worth += from_ends
            best = functools.reduce(np.maximum, (worth[action :: model.n_actions] for action in range(model.n_actions)))
            change = np.abs(best - values[left_from]).max(initial=0.0)
            values[left_from] = best
            if change <= _TOLERANCE:
                return

    def _arriving(self, values: NDArray[np.float32], arrived: tuple[NDArray[Any], ...]) -> NDArray[np.float32]:
        """What it is worth to come to states, whose own values these are, where (state, goal) is arrived."""
        worth: NDArray[np.float32] = self.step_reward + self.gamma * values
        worth[arrived] = self.goal_reward
        return worth

    def _worth_of_ends(self, ends: csr_array, goal_states: NDArray[np.int64]) -> NDArray[np.float32] | None:
        """What ends of the environment add to the worth of actions: those at the goal reach it, all others never will."""
        if ends.nnz == 0:
            return None
        worth = np.repeat(np.float32(self.never) * ends.sum(axis=1)[:, None], len(goal_states), axis=1)
        known = np.flatnonzero(goal_states != UNKNOWN)
        worth[:, known] += np.float32(self.goal_reward - self.never) * ends[:, goal_states[known]].toarray()
        return worth.astype(np.float32)

    def _grow(self, n_states: int, n_goals: int) -> None:
        before = self.values
        if before.shape == (n_states, n_goals):
            return
        needed = {"planned values": n_states * n_goals * before.itemsize}
        check_memory("planning", needed, "plan_interval is for worlds of fewer observations; 0 plans nothing")
        self.values = np.full((n_states, n_goals), self.never, dtype=np.float32)
        self.values[: len(before), : before.shape[1]] = before

    def action_values(self, states: NDArray[np.int64], goal_ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """
        :param states: numbers of states, -1 where it has none, shape (S,)
        :param goal_ids: ids of goals, -1 where it is none, shape (G,)
        :return: what each action is worth in each state for each goal, shape (S, G, A); NaN where that is not known: where it
            had not been tried when it was planned, or no way was found within the 1 / (1 - gamma) steps that the discount
            looks ahead. There may be one all the same, that nobody has gone yet
        """
        model = self._model
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
        horizon = self.never + (self.goal_reward - self.never) / np.e
        worth[worth < horizon] = np.nan
        found.reshape(-1, len(goal_ids))[np.ix_(tried, goals)] = worth
        return found.swapaxes(1, 2)

    def draw(self, n: int, replay: ManyGoalsReplayBuffer, rng: np.random.Generator) -> ManyGoalsSamples:
        """
        Draw transitions evenly over the states that it was planned in, however often something was tried there. Where the
        memory has been written over since, they are those that have come to the places of the ones before.

        :param n: how many, with replacement
        :param replay: the memory that was planned in
        :param rng: for the draws
        :return: the batch
        """
        assert self._model is not None
        counts = self._model.counts
        states = rng.integers(len(counts), size=n)
        places = self._model.order[np.cumsum(counts)[states] - counts[states] + rng.integers(counts[states])]
        return replay.at(places // replay.n_envs, places % replay.n_envs)

    def get_checkpoint_state(self) -> dict[str, Any]:
        """:return: a plain tree, whose arrays are the plan's own"""
        return {
            "values": self.values,
            "planned_at": self.planned_at,
            "goal_states": self._goal_states,
            "model": None if self._model is None else self._model.get_checkpoint_state(),
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """:param state: of :meth:`get_checkpoint_state`"""
        self.values, self.planned_at, self._goal_states = state["values"], state["planned_at"], state["goal_states"]
        self._model = None if state["model"] is None else _Model.from_checkpoint_state(state["model"])


@dataclass
class _Model:
    """Where actions led to, in the transitions of a memory."""

    n_actions: int
    tried: NDArray[np.int64]
    """State * n_actions + action of each action tried, ascending: the rows of what follows."""
    on: csr_array
    """How often it led on to each state, as a share, shape (n_tried, n_states)."""
    ends: csr_array
    """How often it led to each with an end of the environment."""
    order: NDArray[np.int64]
    """Places in the memory (row by row, environment by environment) of its transitions, those from one state together."""
    counts: NDArray[np.int64]
    """How many these are, of each state that was left."""

    @classmethod
    def of(cls, replay: ManyGoalsReplayBuffer) -> _Model:
        """
        :param replay: a memory that keeps the states of its transitions
        :return: of all that is in it
        """
        assert replay.states is not None
        assert isinstance(replay.action_space, spaces.Discrete)
        n_actions = int(replay.action_space.n)
        used = slice(replay.size())
        states, next_states = replay.state_ids[used].ravel(), replay.next_state_ids[used].ravel()
        known = (states != UNKNOWN) & (next_states != UNKNOWN)
        states, next_states = states[known], next_states[known]
        actions = replay.actions[used].reshape(-1)[known].astype(np.int64)
        ended = replay.dones[used].ravel()[known].astype(np.bool_)
        tried, row, times = np.unique(states * n_actions + actions, return_inverse=True, return_counts=True)
        shares = (1.0 / times[row]).astype(np.float32)
        shape = (len(tried), len(replay.states))
        on = csr_array((shares[~ended], (row[~ended], next_states[~ended])), shape=shape)
        ends = csr_array((shares[ended], (row[ended], next_states[ended])), shape=shape)
        order = np.flatnonzero(known)[np.argsort(row, kind="stable")]
        return cls(n_actions, tried, on, ends, order, np.unique(states, return_counts=True)[1])

    @property
    def left_from(self) -> NDArray[np.int64]:
        """The states that were left, ascending."""
        return np.unique(self.tried // self.n_actions)

    @property
    def padded_rows(self) -> NDArray[np.int64]:
        """The rows of all actions in each of these, state by state; in the place of actions not tried, the first that was."""
        states, first = np.unique(self.tried // self.n_actions, return_index=True)
        padded = np.repeat(first, self.n_actions)
        rows, places = self.rows(states)
        padded[places] = rows
        return padded

    def rows(self, states: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """
        :param states: numbers of states, -1 where it has none, shape (S,)
        :return: the rows of what was tried in them, and its places among all S * A actions, state by state
        """
        wanted = (states[:, None] * self.n_actions + np.arange(self.n_actions)).ravel()
        rows = np.minimum(np.searchsorted(self.tried, wanted), max(len(self.tried) - 1, 0))
        places = np.flatnonzero(self.tried[rows] == wanted) if len(self.tried) else rows[:0]
        return rows[places], places

    def get_checkpoint_state(self) -> dict[str, Any]:
        """:return: a plain tree"""
        arrays = {name: getattr(self, name) for name in ("n_actions", "tried", "order", "counts")}
        matrices = {
            name: [matrix.data, matrix.indices, matrix.indptr] for name, matrix in (("on", self.on), ("ends", self.ends))
        }
        return {**arrays, **matrices, "n_states": self.on.shape[1]}

    @classmethod
    def from_checkpoint_state(cls, state: dict[str, Any]) -> _Model:
        """
        :param state: of :meth:`get_checkpoint_state`
        :return: an equal one
        """
        shape = (len(state["tried"]), state["n_states"])
        matrices = {name: csr_array(tuple(state[name]), shape=shape) for name in ("on", "ends")}
        return cls(**{name: state[name] for name in ("n_actions", "tried", "order", "counts")}, **matrices)
