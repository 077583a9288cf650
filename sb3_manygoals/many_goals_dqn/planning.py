"""Planning for all goals in a model of the world."""

from __future__ import annotations

import copy
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch as th
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack
from scipy.sparse.csgraph import breadth_first_order

from sb3_manygoals.goals import GoalBuffer
from sb3_manygoals.goals.achievement import ranges
from sb3_manygoals.many_goals_dqn.transition_model import TransitionModel, UsefulActions
from sb3_manygoals.memory_limits import check_memory
from sb3_manygoals.random_streams import Stream, generator
from sb3_manygoals.world import WorldModel

# So many goals are exchanged together, and planned together if there are many states. Their values
# of some thousand states fit into a processor's cache.
_GOALS_AT_A_TIME = 32
# So many are planned together if there are fewer states than this. Threads then change over less
# often.
_MORE_GOALS_AT_A_TIME = 128
_FEW_STATES = 2**14
# Value iteration makes at most so many sweeps. The first plan goes on until values converge. A plan
# of few pairs of state and goal makes as many as a goal may have steps to it.
_MOST_SWEEPS = 100
# A goal that is so many times 1 / (1 - gamma) steps away, or more, counts as unreachable.
_DISCOUNTS_TO_FARTHEST = 3.0
# After every so many sweeps, value iteration checks whether values still change.
_CHECK_EVERY = 4
# Value iteration stops once no value changes by more than this share of the cost of a step.
_TOLERANCE = 1e-3
# In a plan of at least so many pairs of state and goal, a search gives the first values if at least
# this share of the tried actions has one outcome. It is right but for chance, and later sweeps
# change hardly any best action. So there are at most so many sweeps, with this tolerance.
_MANY_PAIRS = 2**20
_CERTAIN_SHARE = 0.75
_SWEEPS_AFTER_SEARCH = 32
_TOLERANCE_AFTER_SEARCH = 0.05
# In a plan of at least so many pairs, there are none. They would take several times as long as the
# search.
_TOO_MANY_PAIRS_TO_SWEEP = 2**27
# So many floats on either side are tried for the value of a goal that is reached.
_FLOATS_TO_TRY = 4


def _sweeps_of_few_pairs(n_states: int, gamma: float) -> int:
    """Return the greatest number of sweeps in a plan of few pairs: the longest way has as many."""
    farthest = math.ceil(_DISCOUNTS_TO_FARTHEST / (1.0 - gamma))
    return max(_MOST_SWEEPS, min(n_states, farthest))


class _Prepared(NamedTuple):
    """What is computed once for all goals of a plan."""

    order: NDArray[np.int64]
    place: NDArray[np.int64]
    useful: list[UsefulActions]
    arrivals: tuple[csr_array, csr_array] | None


class _Achieved(NamedTuple):
    """The pairs of a state and a goal in which the state achieves the goal, as arrays."""

    states: NDArray[np.int64]
    columns: NDArray[np.int64]

    def indicators(self, n_states: int, n_goals: int) -> csr_array:
        """Return a matrix that is 1 for these pairs, float32, shape (S, G)."""
        ones = np.ones(len(self.states), dtype=np.float32)
        return csr_array((ones, (self.states, self.columns)), shape=(n_states, n_goals))


class AllGoalsPlan:
    r"""
    Value iteration for many goals at once in a model of the world,

    .. math:: V(s, g) \leftarrow \max_{a\ \text{tried in}\ s} \sum_{s'} p_{sas'}
        \begin{cases} \text{goal_reward} & s' \in g \\
        \text{step_reward} + \gamma V(s', g) & \text{otherwise} \end{cases}

    A goal is a set of states, and :math:`s' \in g` says that s' achieves it.

    This is the all-goals table of Kaelbling (1993). Every transition is used again and again, as in
    search on the replay buffer (Eysenbach et al. 2019). Actions that always led back to the same
    state are left out.

    If the values of all goals fit into ``max_bytes``, all goals are planned. Otherwise a plan is
    partial: it is for a sample of as many goals as fit, and :meth:`exchange_goals` replaces some of
    them by others.

    Values begin with those of the last plan. They begin with breadth-first search, which gives each
    action its most frequent outcome, if the plan is partial, if the last plan and the next one
    would not fit into ``max_bytes`` together, or if there are at least a million pairs of state and
    goal and three quarters of the tried actions have one outcome. At most 32 sweeps of value
    iteration then account for chance. If there are more than 2^27 pairs (134 million), there are no
    sweeps, and each action has its most frequent outcome.

    :param gamma: discount factor, in (0, 1)
    :param goal_reward: reward of a transition that reaches its goal
    :param step_reward: reward of every other transition
    :param max_bytes: memory that values and best actions may take, in bytes. While the next plan is
        made, the values of the last one count too. The default is no limit
    :param seed: seed of the samples of goals. None: other samples in every run
    """

    def __init__(
        self,
        gamma: float,
        goal_reward: float,
        step_reward: float,
        max_bytes: float = np.inf,
        seed: int | None = None,
    ) -> None:
        self.gamma = gamma
        self.goal_reward = goal_reward
        self.step_reward = step_reward
        self.max_bytes = max_bytes
        self.unreachable_value = step_reward / (1.0 - gamma)
        """Value of a goal that is never reached."""
        self.step_cost = (1.0 - gamma) * goal_reward - step_reward
        """The difference that one more step makes to a value near the goal."""
        farthest = (goal_reward - self.unreachable_value) * np.exp(-_DISCOUNTS_TO_FARTHEST)
        self.least_value = self.unreachable_value + farthest
        """Value of a goal 3 / (1 - gamma) steps away. Smaller values count as unreachable."""
        self.arrival_value = _arrival_value(gamma, goal_reward, step_reward)
        """The value of states that achieve the goal. It is greater than all other values."""
        self.goal_ids: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        """The goals that are planned, G of them."""
        self.values: NDArray[np.float32] = np.zeros((0, 0), dtype=np.float32)
        """
        V of the S states known at the last refresh, for the planned goals, shape (S, G).
        ``arrival_value`` where a state achieves the goal.
        """
        self.best: NDArray[np.signedinteger[Any]] = np.zeros((0, 0), dtype=np.int8)
        """The best actions, shape (S, G). -1 where no way to the goal is known."""
        self.model: TransitionModel | None = None
        """
        The transition model of the last plan, without chance if there are too many pairs for value
        iteration. None before the first plan.
        """
        # The states that achieve the goals known at the last refresh, those of one goal after those
        # of the other, and where those of each goal begin. The last entry is the end.
        self._achieving: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._first_achieving: NDArray[np.int64] = np.zeros(1, dtype=np.int64)
        # The column of each goal known at the last refresh, -1 for goals that are not planned.
        self._column_of_goal: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._rng = generator(seed, Stream.PLAN)
        # The next column of a partial plan in which the goal is exchanged.
        self._oldest_column = 0
        self._prepared: _Prepared | None = None
        self._sweeps_of_this_plan = _MOST_SWEEPS
        self._tolerance = _TOLERANCE

    @property
    def is_partial(self) -> bool:
        """Whether there were more goals than fit at the last refresh."""
        return len(self.goal_ids) < len(self._column_of_goal)

    @property
    def nbytes(self) -> int:
        """The number of bytes that planned values and best actions take now."""
        return self.values.nbytes + self.best.nbytes

    def refresh(self, world: WorldModel, goals: GoalBuffer, converge: bool = False) -> None:
        """
        Plan for the goals in a new model of the world.

        :param world: the model of the world, which has the counts of transitions
        :param goals: the known goals
        :param converge: whether value iteration goes on until values converge, if the plan is not
            partial. Use it when there is no earlier plan to start from. If False, there are at most
            100 sweeps, or 3 / (1 - gamma) if there are fewer than a million pairs of state and goal
        :raises MemoryError: if the values do not fit into the available memory
        """
        n_states = len(world.identity)
        action_dtype = np.min_scalar_type(-world.n_actions)
        bytes_of_pair = 4 + action_dtype.itemsize
        most_goals = max(self.max_bytes // (n_states * bytes_of_pair), 1)
        n_goals = int(min(len(goals), most_goals))
        # What is no known state may still achieve a goal that is a set of states.
        model = TransitionModel.of(world, with_lost=goals.goals_are_states)
        is_many = n_states * n_goals >= _MANY_PAIRS
        is_certain = is_many and model.certain_share >= _CERTAIN_SHARE
        search = is_certain or n_goals < len(goals)
        if self.is_partial or self.values.shape != (n_states, n_goals):
            search |= self._make_room(n_states, n_goals, action_dtype, start_from_last=not search)
        self.model = model
        self._first_achieving, self._achieving = goals.achieving_states()
        self._column_of_goal = np.full(len(goals), -1)
        self.goal_ids = self._sample(n_goals, len(goals))
        self._oldest_column = 0
        self._column_of_goal[self.goal_ids] = np.arange(n_goals)
        self._sweeps_of_this_plan = _MOST_SWEEPS
        self._tolerance = _TOLERANCE
        if is_certain:
            self._sweeps_of_this_plan = _SWEEPS_AFTER_SEARCH
            self._tolerance = _TOLERANCE_AFTER_SEARCH
            if n_states * n_goals >= _TOO_MANY_PAIRS_TO_SWEEP:
                self._sweeps_of_this_plan = 0
                # These values are distances without chance. So are the values of all actions, then.
                self.model = model.likeliest()
        elif converge and not self.is_partial:
            self._sweeps_of_this_plan = max(_MOST_SWEEPS, n_states)
        elif not is_many:
            self._sweeps_of_this_plan = _sweeps_of_few_pairs(n_states, self.gamma)
        self._prepared = self._prepare(search)
        self._plan_all()

    def _make_room(
        self, n_states: int, n_goals: int, action_dtype: np.dtype[Any], start_from_last: bool
    ) -> bool:
        """
        Make arrays for the values and actions of so many states and goals. If this plan starts from
        the values of the last plan, they are copied, unless both together are too large.

        :return: whether the values of the last plan were dropped because both were too large
        """
        last_values = self.values
        n_pairs = n_states * n_goals
        needed = {"planned values": 4 * n_pairs, "planned actions": action_dtype.itemsize * n_pairs}
        start_from_last = start_from_last and not self.is_partial
        too_large = last_values.nbytes + sum(needed.values()) > self.max_bytes
        gives_up = start_from_last and too_large
        if gives_up or not start_from_last:
            last_values = np.zeros((0, 0), dtype=np.float32)
        self.values = last_values
        self.best = np.zeros((0, 0), dtype=action_dtype)
        advice = "choose fewer max_plan_bytes in target_kwargs, or target_class=TDTargets"
        check_memory("planning", needed, advice)
        self.values = np.full((n_states, n_goals), self.unreachable_value, dtype=np.float32)
        self.values[: len(last_values), : last_values.shape[1]] = last_values
        self.best = np.full((n_states, n_goals), -1, dtype=action_dtype)
        return gives_up

    def exchange_goals(self) -> int:
        """
        Replace the goals of a partial plan that were planned longest ago by other goals.

        :return: the number of goals that were replaced
        """
        begin = self._oldest_column
        others = np.flatnonzero(self._column_of_goal < 0)
        end = min(begin + _GOALS_AT_A_TIME, begin + len(others), len(self.goal_ids))
        columns = slice(begin, end)
        self._column_of_goal[self.goal_ids[columns]] = -1
        self.goal_ids[columns] = others[self._sample(end - begin, len(others))]
        self._column_of_goal[self.goal_ids[columns]] = np.arange(begin, end)
        self._oldest_column = end % len(self.goal_ids)
        self._plan(columns)
        return end - begin

    def _prepare(self, search: bool) -> _Prepared:
        """Compute what all goals of this plan share."""
        assert self.model is not None
        return _Prepared(*self.model.useful_actions(), self.model.arrivals() if search else None)

    def _sample(self, n: int, n_all: int) -> NDArray[np.int64]:
        """Return n different numbers below ``n_all``: all in order, or a random sample."""
        if n == n_all:
            return np.arange(n)
        return self._rng.choice(n_all, n, replace=False)

    def _plan_all(self) -> None:
        """Compute values and best actions of all planned goals, in as many threads as torch has."""
        is_small = self.best.shape[0] < _FEW_STATES
        at_a_time = _MORE_GOALS_AT_A_TIME if is_small else _GOALS_AT_A_TIME
        firsts = range(0, len(self.goal_ids), at_a_time)
        parts = [slice(first, first + at_a_time) for first in firsts]
        # Parts do not depend on each other, so the plan does not depend on the number of threads.
        with ThreadPoolExecutor(th.get_num_threads()) as pool:
            for _ in pool.map(self._plan, parts):
                pass

    def _plan(self, columns: slice) -> None:
        """Compute values and best actions of the goals in these columns."""
        assert self._prepared is not None
        order = self._prepared.order
        achieved = self._achieved(columns)
        if self._prepared.arrivals is not None:
            self._search(*self._prepared.arrivals, columns, achieved)
        values = self.values[order, columns]
        self.best[order, columns] = self._iterate(values, achieved)
        values[self._prepared.place[achieved.states], achieved.columns] = self.arrival_value
        self.values[order, columns] = values

    def _achieved(self, columns: slice | NDArray[np.int64]) -> _Achieved:
        """Return which states achieve the goals of some columns."""
        goal_ids = self.goal_ids[columns]
        first = self._first_achieving[goal_ids]
        n_states = self._first_achieving[goal_ids + 1] - first
        places = ranges(first, n_states)
        return _Achieved(self._achieving[places], np.repeat(np.arange(len(goal_ids)), n_states))

    def _search(
        self, on: csr_array, to_goals: csr_array, columns: slice, achieved: _Achieved
    ) -> None:
        """
        Set values as if actions had their likeliest outcomes, by a search for each goal.

        :param on: the graph of transitions without a termination, from
            :meth:`TransitionModel.arrivals`
        :param to_goals: the graph of all transitions
        :param columns: the columns of the goals
        :param achieved: which states achieve them
        """
        n_states = len(self.values)
        n_goals = len(self.goal_ids[columns])
        goals = achieved.indicators(n_states, n_goals)
        # A search begins in a row of its own, from which it finds what leads to the goal.
        graph = vstack([on, (to_goals.T @ goals).T], format="csr")
        graph.resize((graph.shape[0], graph.shape[0]))
        for number in range(n_goals):
            found = self._values_by_search(graph, n_states + number)
            self.values[:, columns.start + number] = found[:n_states]

    def _values_by_search(self, graph: csr_array, begin_in: int) -> NDArray[np.float32]:
        """Return the values of all nodes of a graph, for a goal that the search begins in."""
        values = np.full(graph.shape[0], self.unreachable_value, dtype=np.float32)
        order, predecessors = breadth_first_order(graph, begin_in)
        place = np.empty(len(values), dtype=np.int64)
        place[order] = np.arange(len(order))
        # The place in the search from which each other node was found, in ascending order.
        found_from = place[predecessors[order[1:]]]
        begin = 1
        end = 1 + int(np.searchsorted(found_from, 1))
        value = self.goal_reward
        # Each round sets the value of the states that are one step farther away than before.
        while begin < end:
            values[order[begin:end]] = value
            begin = end
            end = 1 + int(np.searchsorted(found_from, end))
            value = self.step_reward + self.gamma * value
        return values

    def _iterate(
        self, values: NDArray[np.float32], achieved: _Achieved
    ) -> NDArray[np.signedinteger[Any]]:
        """
        Iterate the values of some goals in place.

        :param values: values of all states, in the order of useful actions, for these G goals,
            shape (S, G)
        :param achieved: which states achieve these goals
        :return: the best actions, in the same order, shape (S, G)
        """
        assert self._prepared is not None
        useful = self._prepared.useful
        best_actions = np.full(values.shape, -1, dtype=self.best.dtype)
        if not useful:
            return best_actions
        arrivals = (self._prepared.place[achieved.states], achieved.columns)
        goals = achieved.indicators(*values.shape)
        terminal_returns = [
            self._terminal_returns(each.terminal_transitions, goals, each.lost) for each in useful
        ]

        def action_values(number: int) -> NDArray[np.float32]:
            found: NDArray[np.float32] = useful[number].transitions @ returns
            terminal = terminal_returns[number]
            return found if terminal is None else found + terminal

        n_first = len(useful[0].actions)
        # The states after these have no useful action.
        values[n_first:] = self.unreachable_value
        returns = self._returns(values, arrivals)
        for sweep in range(1, self._sweeps_of_this_plan + 1):
            best = action_values(0)
            for number in range(1, len(useful)):
                found = action_values(number)
                np.maximum(best[: len(found)], found, out=best[: len(found)])
            has_converged = False
            if sweep % _CHECK_EVERY == 0:
                change = np.abs(best - values[:n_first]).max()
                has_converged = change <= self._tolerance * self.step_cost
            values[:n_first] = best
            returns = self._returns(values, arrivals)
            if has_converged:
                break
        best = action_values(0)
        best_actions[:n_first] = useful[0].actions.astype(self.best.dtype)[:, None]
        for number, each in enumerate(useful[1:], 1):
            found = action_values(number)
            n = len(each.actions)
            is_better = found > best[:n]
            np.maximum(best[:n], found, out=best[:n])
            actions = each.actions.astype(self.best.dtype)[:, None]
            np.copyto(best_actions[:n], actions, where=is_better)
        best_actions[:n_first][best < self.least_value] = -1
        return best_actions

    def _returns(
        self, values: NDArray[np.float32], arrivals: tuple[NDArray[Any], ...] | None = None
    ) -> NDArray[np.float32]:
        """
        Return the return of a transition into each state for each goal.

        :param values: values of states for goals, shape (n, G)
        :param arrivals: index of the pairs in which the state achieves the goal. None: their
            values are ``arrival_value`` already
        """
        returns: NDArray[np.float32] = self.gamma * values
        returns += self.step_reward
        if arrivals is not None:
            returns[arrivals] = self.goal_reward
        return returns

    def _terminal_returns(
        self, terminal: csr_array, goals: csr_array, lost: NDArray[np.float32] | None
    ) -> NDArray[np.float32] | None:
        """
        Return the part of action values that comes from terminal transitions, and from those to
        unknown states. A terminal transition reaches the goals that its next state achieves. After
        it, and after one to an unknown state, no other goal is ever reached.

        :param terminal: probabilities of L terminal transitions, shape (L, S)
        :param goals: 1 where a state achieves a goal, shape (S, G)
        :param lost: probabilities of unknown states, shape (L,). None: there are none
        :return: the part, shape (L, G). None if there are no such transitions
        """
        if terminal.nnz == 0 and lost is None:
            return None
        ends = terminal.sum(axis=1)
        if lost is not None:
            ends = ends + lost
        unreachable = np.float32(self.unreachable_value) * ends[:, None]
        returns = np.repeat(unreachable, goals.shape[1], axis=1)
        gain = np.float32(self.goal_reward - self.unreachable_value)
        returns += gain * (terminal @ goals).toarray()
        return returns.astype(np.float32)

    def action_values(
        self, states: NDArray[np.int64], goal_ids: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """
        Return the values of all A actions for all pairs of states and goals.

        :param states: ids of n states, -1 for unknown ones, int64, shape (n,)
        :param goal_ids: ids of m goals, -1 for unknown ones, int64, shape (m,)
        :return: values, float32, shape (n, m, A). NaN for actions that were not tried, for unknown
            states, for goals that are not planned, and for values below ``least_value``
        """
        model = self.model
        assert model is not None, "nothing is planned yet"
        found = np.full((len(states), model.n_actions, len(goal_ids)), np.nan, dtype=np.float32)
        columns_of_all = self.columns_of(goal_ids)
        goals = np.flatnonzero(columns_of_all >= 0)
        columns = columns_of_all[goals]
        known = np.flatnonzero((states >= 0) & (states < model.n_states))
        next_states = model.certain_next[states[known]]
        is_certain = next_states >= 0
        places, actions = np.nonzero(is_certain)
        values = self._returns_of(next_states[is_certain], columns)
        _put(found, known[places], actions, goals, values)
        places, actions = np.nonzero(model.tried[states[known]] & ~is_certain)
        rows = states[known][places] * model.n_actions + actions
        values = self._mean_returns_of(rows, columns)
        _put(found, known[places], actions, goals, values)
        found[found < self.least_value] = np.nan
        return found.swapaxes(1, 2)

    def _returns_of(
        self, states: NDArray[np.int64], columns: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """
        Return the returns of transitions into some states.

        :param states: ids of the next states, shape (n,)
        :param columns: the columns of goals in the values, shape (m,)
        :return: returns, shape (n, m)
        """
        # Taking from one axis is faster than from two.
        places = states[:, None] * self.values.shape[1] + columns
        return self._returns(self.values.reshape(-1).take(places))

    def _mean_returns_of(
        self, rows: NDArray[np.int64], columns: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """
        Return the mean returns of actions.

        :param rows: rows of actions in the transition model, shape (n,)
        :param columns: the columns of goals in the values, shape (m,)
        :return: means over the outcomes of each action, shape (n, m)
        """
        assert self.model is not None
        on = self.model.transitions
        means = np.zeros((len(rows), len(columns)), dtype=np.float32)
        n_outcomes = on.indptr[rows + 1] - on.indptr[rows]
        # All outcomes in one row after the other. SciPy takes several times as long for this.
        ends = np.cumsum(n_outcomes)
        outcomes = ranges(on.indptr[rows], n_outcomes)
        returns = self._returns_of(on.indices[outcomes], columns)
        returns *= on.data[outcomes, None]
        has_any = n_outcomes > 0
        if has_any.any():
            means[has_any] = np.add.reduceat(returns, (ends - n_outcomes)[has_any], axis=0)
        terminal = self.model.terminal_transitions
        lost = None if self.model.lost is None else self.model.lost[rows]
        if terminal.nnz > 0 or lost is not None:
            goals = self._achieved(columns).indicators(len(self.values), len(columns))
            returns_of_terminal = self._terminal_returns(terminal[rows], goals, lost)
            if returns_of_terminal is not None:
                means += returns_of_terminal
        return means

    def best_actions(
        self, states: NDArray[np.int64], goal_ids: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """
        Return the best action in each of n states, each with a goal of its own.

        :param states: ids of states, -1 for unknown ones, shape (n,)
        :param goal_ids: the goal of each state, -1 for unknown ones, shape (n,)
        :return: actions, shape (n,). -1 where the plan knows no way to the goal
        """
        columns = self.columns_of(goal_ids)
        is_planned = (states >= 0) & (states < len(self.best)) & (columns >= 0)
        actions = np.full(len(states), -1, dtype=np.int64)
        actions[is_planned] = self.best[states[is_planned], columns[is_planned]]
        return actions

    def is_achieved(
        self, states: NDArray[np.int64], goal_ids: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """
        Return whether states achieve goals.

        :param states: ids of states that were known at the last refresh, -1 for unknown ones
        :param goal_ids: ids of planned goals. Both arrays are broadcast against each other
        :return: whether each state achieves each goal
        """
        # Rounding lifts the values of other states by less than what is between the two.
        found = self.values[states, self._column_of_goal[goal_ids]] == self.arrival_value
        return np.asarray(found & (states >= 0))

    def columns_of(self, goal_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """
        Return the columns of goals in the values.

        :param goal_ids: ids of goals, -1 for unknown ones, shape (n,)
        :return: columns, -1 for goals that are not planned, shape (n,)
        """
        known = (goal_ids >= 0) & (goal_ids < len(self._column_of_goal))
        columns = np.full(len(goal_ids), -1)
        columns[known] = self._column_of_goal[goal_ids[known]]
        return columns

    def get_checkpoint_state(self) -> dict[str, Any]:
        """
        Return the plan.

        :return: a dictionary of plain data and arrays. Arrays are not copied, so write it before
            training goes on
        """
        saved = {name: getattr(self, name) for name in _IN_CHECKPOINTS}
        saved["rng"] = copy.deepcopy(self._rng.bit_generator.state)
        saved["model"] = None if self.model is None else self.model.get_checkpoint_state()
        saved["search"] = self._prepared is not None and self._prepared.arrivals is not None
        return saved

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Replace the plan by a saved one.

        :param state: what :meth:`get_checkpoint_state` returned
        """
        for name in _IN_CHECKPOINTS:
            setattr(self, name, state[name])
        self._rng.bit_generator.state = state["rng"]
        self.model = None
        if state["model"] is not None:
            self.model = TransitionModel.from_checkpoint_state(state["model"])
        self._prepared = self._prepare(search=True) if state["search"] else None


def _arrival_value(gamma: float, goal_reward: float, step_reward: float) -> np.float32:
    """
    Return the value of which ``step_reward + gamma * value`` is the reward of reaching a goal.

    So a return needs no case for goals. Of the neighbouring floats, it is the one that rounding
    suits best.
    """
    middle = np.float32((goal_reward - step_reward) / gamma)
    nearby = [middle]
    for _ in range(_FLOATS_TO_TRY):
        nearby.insert(0, np.nextafter(nearby[0], np.float32(-np.inf)))
        nearby.append(np.nextafter(nearby[-1], np.float32(np.inf)))
    candidates = np.array(nearby)
    # If steps hardly cost anything, rounding could take the value down to that of other states.
    candidates = candidates[candidates > np.float32(goal_reward)]
    returns = gamma * candidates
    returns += step_reward
    best: np.float32 = candidates[np.abs(returns - np.float32(goal_reward)).argmin()]
    return best


def _put(
    found: NDArray[np.float32],
    places: NDArray[np.int64],
    actions: NDArray[np.int64],
    goals: NDArray[np.int64],
    values: NDArray[np.float32],
) -> None:
    """Write the values of n actions for m goals, shape (n, m), into an array (S, A, G)."""
    if len(goals) == found.shape[2]:
        found[places, actions] = values
    else:
        found[places[:, None], actions[:, None], goals] = values


_IN_CHECKPOINTS = (
    "values",
    "best",
    "goal_ids",
    "_achieving",
    "_first_achieving",
    "_column_of_goal",
    "_oldest_column",
    "_sweeps_of_this_plan",
    "_tolerance",
)
