"""Values planned in what the replay memory holds, for targets that do not depend on what the networks have learned so far."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from sb3_manygoals.goals import UNKNOWN, GoalBuffer
from sb3_manygoals.many_goals_dqn.replay_buffer import ManyGoalsReplayBuffer, ManyGoalsSamples
from sb3_manygoals.memory import check_memory

_BLOCK = 256  # goals planned together: their values of some thousand states stay in a processor's cache
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
        self.order: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        """Places in the memory (row by row, environment by environment) of the transitions then, those of one action tried in
        one state together."""
        self.counts: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        """How many these are, of each such action."""

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
        model = _Model(replay, self.never)
        self.order, self.counts = model.order, model.counts
        goal_states = replay.states.ids(goals.observations)
        for begin in range(0, len(goals), _BLOCK):
            block = slice(begin, begin + _BLOCK)
            values = np.ascontiguousarray(self.values[:, block])
            self._iterate(model, values, goal_states[block], sweeps)
            self.values[:, block] = values

    def _iterate(self, model: _Model, values: NDArray[np.float32], goal_states: NDArray[np.int64], sweeps: int) -> None:
        columns = np.flatnonzero(goal_states != UNKNOWN)
        rows = goal_states[columns]
        of_ends = model.worth_of_ends(rows, columns, values.shape[1], self.goal_reward)
        for _ in range(sweeps):
            arriving = self.step_reward + self.gamma * values
            arriving[rows, columns] = self.goal_reward
            best = model.best(arriving, of_ends)
            change = np.abs(best - values[model.left_from]).max(initial=0.0)
            values[model.left_from] = best
            if change <= _TOLERANCE:
                return

    def _grow(self, n_states: int, n_goals: int) -> None:
        before = self.values
        if before.shape == (n_states, n_goals):
            return
        needed = {"planned values": n_states * n_goals * before.itemsize}
        check_memory("planning", needed, "plan_interval is for worlds of fewer observations; 0 plans nothing")
        self.values = np.full((n_states, n_goals), self.never, dtype=np.float32)
        self.values[: len(before), : before.shape[1]] = before

    def look_up(self, states: NDArray[np.int64], goal_ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """
        :param states: numbers of states, -1 where it has none, shape (S,)
        :param goal_ids: ids of goals, -1 where it is none, shape (G,)
        :return: what a state is worth for a goal, shape (S, G); NaN where that is not known: where it was not planned, or no
            way was found within the 1 / (1 - gamma) steps that the discount looks ahead. There may be one all the same, that
            nobody has gone yet
        """
        n_states, n_goals = self.values.shape
        known_states, known_goals = (states >= 0) & (states < n_states), (goal_ids >= 0) & (goal_ids < n_goals)
        found = np.full((len(states), len(goal_ids)), np.nan, dtype=np.float32)
        values = self.values[np.ix_(states[known_states], goal_ids[known_goals])]
        horizon = self.never + (self.goal_reward - self.never) / np.e
        found[np.ix_(known_states, known_goals)] = np.where(values < horizon, np.float32(np.nan), values)
        return found

    def draw(self, n: int, replay: ManyGoalsReplayBuffer, rng: np.random.Generator) -> ManyGoalsSamples:
        """
        Draw transitions evenly over what had been tried when it was planned, however often: an action in a state, then one of
        the times.

        :param n: how many, with replacement
        :param replay: the memory that was planned in
        :param rng: for the draws
        :return: the batch
        """
        pairs = rng.integers(len(self.counts), size=n)
        within = rng.integers(self.counts[pairs])
        places = self.order[np.cumsum(self.counts)[pairs] - self.counts[pairs] + within]
        return replay.at(places // replay.n_envs, places % replay.n_envs)

    def get_checkpoint_state(self) -> dict[str, Any]:
        """:return: a plain tree, whose arrays are the plan's own"""
        return {"values": self.values, "planned_at": self.planned_at, "order": self.order, "counts": self.counts}

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """:param state: of :meth:`get_checkpoint_state`"""
        self.values, self.planned_at = state["values"], state["planned_at"]
        self.order, self.counts = state["order"], state["counts"]


class _Model:
    """
    Where actions led to, in the transitions of a memory.

    :param replay: the memory
    :param never: what it is worth never to get to a goal
    :ivar left_from: states from which something was tried, ascending
    :ivar order: places of its transitions, see :class:`ReplayPlan`
    :ivar counts: of each action tried in a state, by state and action
    """

    def __init__(self, replay: ManyGoalsReplayBuffer, never: float) -> None:
        assert replay.states is not None
        used = slice(replay.size())
        states, next_states = replay.state_ids[used].ravel(), replay.next_state_ids[used].ravel()
        known = (states != UNKNOWN) & (next_states != UNKNOWN)
        states, next_states = states[known], next_states[known]
        actions = replay.actions[used].reshape(-1)[known].astype(np.int64)
        ended = replay.dones[used].ravel()[known].astype(np.bool_)
        tried, row, counts = np.unique(
            states * (actions.max(initial=0) + 1) + actions, return_inverse=True, return_counts=True
        )
        owners = tried // (actions.max(initial=0) + 1)
        self.counts, self.order = counts, np.flatnonzero(known)[np.argsort(row, kind="stable")]
        self._starts = np.flatnonzero(np.diff(owners, prepend=-1))
        self.left_from = owners[self._starts]
        shares = (1.0 / counts[row]).astype(np.float32)
        shape = (len(tried), len(replay.states))
        self._on = csr_array((shares[~ended], (row[~ended], next_states[~ended])), shape=shape)
        self._ends = csr_array((shares[ended], (row[ended], next_states[ended])), shape=shape)
        self._never = np.float32(never)

    def worth_of_ends(
        self, rows: NDArray[np.int64], columns: NDArray[np.int64], n_goals: int, goal_reward: float
    ) -> NDArray[np.float32] | None:
        """
        What the ends of the environment add to the worth of actions: those at the goal reach it, all others never will.

        :param rows: states that are goals
        :param columns: of these goals
        :param n_goals: of all columns
        :param goal_reward: of reaching one
        :return: shape (n_tried, n_goals), None if there are no ends
        """
        if self._ends.nnz == 0:
            return None
        worth = np.repeat(self._never * self._ends.sum(axis=1)[:, None], n_goals, axis=1).astype(np.float32)
        worth[:, columns] += np.float32(goal_reward - self._never) * self._ends[:, rows].toarray()
        return worth

    def best(self, arriving: NDArray[np.float32], of_ends: NDArray[np.float32] | None) -> NDArray[np.float32]:
        """
        :param arriving: what it is worth to come to each state, shape (n_states, n_goals)
        :param of_ends: of :meth:`worth_of_ends`
        :return: what the best action tried in each of ``left_from`` is worth, shape (len(left_from), n_goals)
        """
        worth = self._on @ arriving
        if of_ends is not None:
            worth += of_ends
        best: NDArray[np.float32] = np.maximum.reduceat(worth, self._starts, axis=0)
        return best
