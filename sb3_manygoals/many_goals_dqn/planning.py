"""Planning for all goals in a model of the world made of the transitions in the replay memory."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, hstack, vstack
from scipy.sparse.csgraph import breadth_first_order

from sb3_manygoals.goals import UNKNOWN, GoalBuffer
from sb3_manygoals.many_goals_dqn.replay_buffer import ManyGoalsReplayBuffer
from sb3_manygoals.memory_limits import check_memory
from sb3_manygoals.random_streams import Stream, generator

_BLOCK = (
    32  # goals planned together: their values of some thousand states fit into a processor's cache
)
_CHECK_EVERY = 4  # sweeps
_TOLERANCE = 1e-3  # of the cost of a step: value iteration stops once no value changes by more


class Option(NamedTuple):
    """
    The k-th action worth considering in each of the first L states of an order of all S states, shape (L,), and probabilities
    as in the model, shape (L, S): in ``on`` next states have their places in the order, in ``ends`` their numbers.
    """

    actions: NDArray[np.int64]
    on: csr_array
    ends: csr_array


class ReplayModel:
    """
    Transition frequencies of all (state, action) pairs that were ever in a replay memory that numbers states. Row
    ``state * A + action`` of ``on`` has the probability of each next state, of ``ends`` of each in which the environment ends;
    both of shape (S A, S). Each outcome of a pair, except the most frequent, counts one less than it was seen: a plan must not
    rely on luck seen once.
    """

    def __init__(self, on: csr_array, ends: csr_array) -> None:
        self.on, self.ends = on, ends
        self.n_states = on.shape[1]
        self.n_actions = on.shape[0] // max(self.n_states, 1)
        self.tried = (np.diff(on.indptr) + np.diff(ends.indptr) > 0).reshape(
            self.n_states, self.n_actions
        )
        self.left = np.flatnonzero(self.tried.any(axis=1))
        """The states in which an action was tried."""

    @classmethod
    def of(cls, replay: ManyGoalsReplayBuffer) -> ReplayModel:
        assert replay.states is not None
        n_actions, n_states = replay.tried.shape[1], len(replay.states)
        outcomes, counts = replay.outcomes()
        states, actions, next_states, ended = outcomes.T
        # the same next state with and without an end are two outcomes
        place = states * n_actions + actions, next_states + n_states * ended
        led = csr_array(
            (counts.astype(np.float32), place), shape=(n_states * n_actions, 2 * n_states)
        )
        lengths = np.diff(led.indptr)
        first, lengths = led.indptr[:-1][lengths > 0], lengths[lengths > 0]
        if len(first):
            led.data[led.data < np.repeat(np.maximum.reduceat(led.data, first), lengths)] -= 1.0
            led.data /= np.repeat(np.add.reduceat(led.data, first), lengths)
            led.eliminate_zeros()
        return cls(led[:, :n_states], led[:, n_states:])

    def options(self) -> tuple[NDArray[np.int64], NDArray[np.int64], list[Option]]:
        """
        An order of the states, those with the most options first; the place of each in it; and the first option of all states
        that have one, the second one, and so on. Actions that always led back to the same state are none.
        """
        certain = np.flatnonzero((np.diff(self.on.indptr) == 1) & (np.diff(self.ends.indptr) == 0))
        idle = certain[self.on.indices[self.on.indptr[certain]] == certain // self.n_actions]
        options = self.tried.copy()
        options.reshape(-1)[idle] = False
        order = np.argsort(-options.sum(axis=1), kind="stable")
        place = np.argsort(order)
        options = options[order]
        rank = np.where(options, options.cumsum(axis=1), 0)
        found = []
        for number in range(1, int(rank.max(initial=0)) + 1):
            places, actions = np.nonzero(rank == number)
            rows = order[places] * self.n_actions + actions
            on = self.on[rows]
            on = csr_array((on.data, place[on.indices], on.indptr), shape=on.shape)
            found.append(Option(actions, on, self.ends[rows]))
        return order, place, found

    def likeliest(self) -> ReplayModel:
        """The model in which each action always has its most frequent outcome."""
        led = hstack([self.on, self.ends], format="csr")
        order, rows = (
            np.argsort(led.data, kind="stable"),
            np.repeat(np.arange(led.shape[0]), np.diff(led.indptr)),
        )
        column = np.full(led.shape[0], -1)
        column[rows[order]] = led.indices[
            order
        ]  # the last one that is written is the most frequent
        rows = np.flatnonzero(column >= 0)
        led = csr_array(
            (np.ones(len(rows), dtype=np.float32), (rows, column[rows])), shape=led.shape
        )
        return ReplayModel(led[:, : self.n_states], led[:, self.n_states :])

    def arrivals(self) -> csr_array:
        """
        An edge to each state from every state that the most frequent outcome of an action leads to, shape (S, S). If some of
        them are ends, that is for a search to go on; a search from state s begins in row S + s of 2 S, which has the ends too.
        """
        led = self.likeliest()
        found = []
        for edges in (led.on, led.on + led.ends)[: 1 + (led.ends.nnz > 0)]:
            edges = edges.tocoo()
            place = edges.col, edges.row // self.n_actions
            found.append(
                csr_array((np.ones(len(edges.col)), place), shape=(self.n_states, self.n_states))
            )
        together = vstack(found, format="csr")
        together.resize((together.shape[0],) * 2)
        return together

    def get_checkpoint_state(self) -> dict[str, Any]:
        on, ends = ([matrix.data, matrix.indices, matrix.indptr] for matrix in (self.on, self.ends))
        return {"shape": self.on.shape, "on": on, "ends": ends}

    @classmethod
    def from_checkpoint_state(cls, state: dict[str, Any]) -> ReplayModel:
        return cls(
            *(csr_array(tuple(state[name]), shape=state["shape"]) for name in ("on", "ends"))
        )


class ReplayPlan:
    r"""
    Value iteration for many goals at once in the model of the replay memory,

    .. math:: V(s, g) \leftarrow \max_{a\ \text{tried in}\ s} \sum_{s'} p_{sas'}
        \begin{cases} \text{goal_reward} & s' = g \\ \text{step_reward} + \gamma V(s', g) & \text{otherwise} \end{cases}

    This is the all-goals table of Kaelbling (1993), with every transition used again and again, as in search on the replay
    buffer (Eysenbach et al. 2019). Actions that always led back to the same state are left out, so V(g, g) does not follow the
    equation; nothing uses it.

    All goals are planned, from the values of the last plan, while they fit into ``max_bytes``. Beyond, each plan is of a fresh
    draw of as many goals as fit, and :meth:`rotate` exchanges some of them. Their values begin with the numbers of steps that
    breadth-first search finds as if each action had its most frequent outcome; sweeps settle chance. With none the model
    itself has these outcomes only. Values begin so, too, where the last plan and a larger one would not fit together.

    :param gamma: discount factor
    :param goal_reward: reward of a transition that reaches its goal
    :param step_reward: reward of every other transition
    :param sweeps: of value iteration, at most; 0 for a model without chance
    :param max_bytes: that values and actions may take, those of the last plan included while the next one is made
    :param seed: of the draws of goals; None for others in every run
    """

    def __init__(
        self,
        gamma: float,
        goal_reward: float,
        step_reward: float,
        sweeps: int = 100,
        max_bytes: float = np.inf,
        seed: int | None = None,
    ) -> None:
        self.gamma = gamma
        self.goal_reward = goal_reward
        self.step_reward = step_reward
        self.sweeps = sweeps
        self.max_bytes = max_bytes
        self.unreachable_value = step_reward / (1.0 - gamma)
        # By so much one step more lowers a value near the goal.
        self.step_cost = (1.0 - gamma) * goal_reward - step_reward
        self.horizon = self.unreachable_value + (goal_reward - self.unreachable_value) * np.exp(
            -3.0
        )
        """Of a goal 3 / (1 - gamma) steps away, or reached at once with probability 0.05. Values below count as unknown."""
        self.goal_ids: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        """The goals that are planned."""
        # V of the states known at the last refresh and these goals, and their best actions, -1 where no way is known
        self.values: NDArray[np.float32] = np.zeros((0, 0), dtype=np.float32)
        self.best: NDArray[np.signedinteger[Any]] = np.zeros((0, 0), dtype=np.int8)
        self.model: ReplayModel | None = None
        # of all goals known at the last refresh: their states, and their columns in the values, -1 if they are not planned
        self._goal_states: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._columns: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._rng = generator(seed, Stream.PLAN)
        self._oldest = 0  # the column of the draw to be given up first
        self._prepared: tuple[Any, ...] = ()  # of a draw: options, arrivals
        self._most_sweeps = sweeps  # of this plan

    @property
    def is_draw(self) -> bool:
        """Whether there were more goals than fit when this was planned."""
        return len(self.goal_ids) < len(self._columns)

    @property
    def nbytes(self) -> int:
        """Bytes that values and actions take now."""
        return self.values.nbytes + self.best.nbytes

    def refresh(
        self, replay: ManyGoalsReplayBuffer, goals: GoalBuffer, settle: bool = False
    ) -> None:
        """
        Plan for the goals in a new model; ``settle``: with as many sweeps as it takes, where no earlier plan is gone on from.
        A MemoryError if the values would not fit into memory.
        """
        assert replay.states is not None
        of_actions = np.min_scalar_type(-replay.tried.shape[1])
        n_states = len(replay.states)
        size_of_pair = 4 + of_actions.itemsize
        n_goals = int(min(len(goals), max(self.max_bytes // (n_states * size_of_pair), 1)))
        search = n_goals < len(goals) or self.sweeps == 0
        if self.is_draw or self.values.shape != (n_states, n_goals):
            search |= self._make_room(n_states, n_goals, of_actions, goes_on=not search)
        model = ReplayModel.of(replay)
        self.model = model if self.sweeps else model.likeliest()
        self._goal_states = replay.states.ids(goals.observations)
        self._columns = np.full(len(goals), -1)
        self.goal_ids = self._draw(n_goals, len(goals))
        self._oldest = 0
        self._columns[self.goal_ids] = np.arange(n_goals)
        self._most_sweeps = (
            max(self.sweeps, n_states)
            if settle and self.sweeps and not self.is_draw
            else self.sweeps
        )
        self._prepared = self._prepare(search)
        self._plan_all()

    def _make_room(
        self, n_states: int, n_goals: int, of_actions: np.dtype[Any], goes_on: bool
    ) -> bool:
        """
        Make arrays for values and actions of so many states and goals. Values of the last plan stay in their places if this
        one goes on from it. They are given up first if not both fit into ``max_bytes``: returns whether they were.
        """
        before = self.values
        n_pairs = n_states * n_goals
        needed = {"planned values": 4 * n_pairs, "planned actions": of_actions.itemsize * n_pairs}
        goes_on = goes_on and not self.is_draw
        given_up = goes_on and before.nbytes + sum(needed.values()) > self.max_bytes
        if given_up or not goes_on:
            before = np.zeros((0, 0), dtype=np.float32)
        self.values = before
        self.best = np.zeros((0, 0), dtype=of_actions)
        advice = "choose fewer max_plan_bytes in target_kwargs, or target_class=TDTargets"
        check_memory("planning", needed, advice)
        self.values = np.full((n_states, n_goals), self.unreachable_value, dtype=np.float32)
        self.values[: len(before), : before.shape[1]] = before
        self.best = np.full((n_states, n_goals), -1, dtype=of_actions)
        return given_up

    def rotate(self) -> int:
        """Plan some fresh goals of a draw, in place of those planned longest ago. :return: how many"""
        begin, others = self._oldest, np.flatnonzero(self._columns < 0)
        chosen = slice(begin, min(begin + _BLOCK, begin + len(others), len(self.goal_ids)))
        self._columns[self.goal_ids[chosen]] = -1
        self.goal_ids[chosen] = others[self._draw(chosen.stop - begin, len(others))]
        self._columns[self.goal_ids[chosen]] = np.arange(begin, chosen.stop)
        self._oldest = chosen.stop % len(self.goal_ids)
        self._plan(chosen)
        return chosen.stop - begin

    def _prepare(self, search: bool) -> tuple[Any, ...]:
        assert self.model is not None
        return (*self.model.options(), self.model.arrivals() if search else None)

    def _draw(self, n: int, of: int) -> NDArray[np.int64]:
        """Some numbers below another; in order if they are all."""
        if n == of:
            return np.arange(n)
        return self._rng.choice(of, n, replace=False)

    def _plan_all(self) -> None:
        for begin in range(0, len(self.goal_ids), _BLOCK):
            self._plan(slice(begin, begin + _BLOCK))

    def _plan(self, columns: slice) -> None:
        """Values and best actions of the goals in these columns."""
        order, place, options, arrivals = self._prepared
        goal_states = self._goal_states[self.goal_ids[columns]]
        if arrivals is not None:
            for column, state in enumerate(goal_states, columns.start):
                self.values[:, column] = self._shortest(arrivals, state)
        values = self.values[order, columns]
        self.best[order, columns] = self._iterate(options, place, values, goal_states)
        self.values[order, columns] = values

    def _shortest(self, arrivals: csr_array, goal_state: int) -> NDArray[np.float32]:
        """The values of all states for a goal if every action had its most frequent outcome."""
        values = np.full(arrivals.shape[0], self.unreachable_value, dtype=np.float32)
        if goal_state == UNKNOWN:
            return values[: self.best.shape[0]]
        order, after = breadth_first_order(arrivals, goal_state + len(values) - self.best.shape[0])
        place = np.empty(len(values), dtype=np.int64)
        place[order] = np.arange(len(order))
        after = place[
            after[order[1:]]
        ]  # the places in the search from which the others were found, ascending
        begin, end, value = 1, 1 + int(np.searchsorted(after, 1)), self.goal_reward
        while begin < end:  # the states that are as many steps away as this was done
            values[order[begin:end]] = value
            begin, end, value = (
                end,
                1 + int(np.searchsorted(after, end)),
                self.step_reward + self.gamma * value,
            )
        values[goal_state] = self.unreachable_value  # where the goal led back to itself
        return values[: self.best.shape[0]]

    def _iterate(
        self,
        options: list[Option],
        place: NDArray[np.int64],
        values: NDArray[np.float32],
        goal_states: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Change the values of some goals in place and return their best actions, both in the order of the options."""
        actions = np.full(values.shape, -1)
        if not options:
            return actions
        columns = np.flatnonzero(goal_states != UNKNOWN)
        achieved = place[goal_states[columns]], columns
        from_ends = [self._returns_of_ends(option.ends, goal_states) for option in options]

        def action_values(number: int) -> NDArray[np.float32]:
            found: NDArray[np.float32] = options[number].on @ returns
            ends = from_ends[number]
            return found if ends is None else found + ends

        n_first = len(options[0].actions)
        values[n_first:] = self.unreachable_value  # where no option is left
        returns = self._returns(values, achieved)
        for sweep in range(1, self._most_sweeps + 1):
            best = action_values(0)
            for number in range(1, len(options)):
                found = action_values(number)
                np.maximum(best[: len(found)], found, out=best[: len(found)])
            change = np.abs(best - values[:n_first]).max() if sweep % _CHECK_EVERY == 0 else np.inf
            values[:n_first] = best
            returns = self._returns(values, achieved)
            if change <= _TOLERANCE * self.step_cost:
                break
        best = action_values(0)
        actions[:n_first] = options[0].actions[:, None]
        for number, option in enumerate(options[1:], 1):
            found, n = action_values(number), len(option.actions)
            better = found > best[:n]
            best[:n][better] = found[better]
            actions[:n] = np.where(better, option.actions[:, None], actions[:n])
        actions[:n_first][best < self.horizon] = -1
        return actions

    def _returns(
        self, values: NDArray[np.float32], achieved: tuple[NDArray[Any], ...]
    ) -> NDArray[np.float32]:
        """The return of a transition into each state, given the values of the states and the pairs (state, its own goal)."""
        returns: NDArray[np.float32] = self.gamma * values
        returns += self.step_reward
        returns[achieved] = self.goal_reward
        return returns

    def _returns_of_ends(
        self, ends: csr_array, goal_states: NDArray[np.int64]
    ) -> NDArray[np.float32] | None:
        """The part of action values that comes from ends of the environment, after which no other goal is ever reached."""
        if ends.nnz == 0:
            return None
        returns = np.repeat(
            np.float32(self.unreachable_value) * ends.sum(axis=1)[:, None], len(goal_states), axis=1
        )
        known = np.flatnonzero(goal_states != UNKNOWN)
        returns[:, known] += (
            np.float32(self.goal_reward - self.unreachable_value)
            * ends[:, goal_states[known]].toarray()
        )
        return returns.astype(np.float32)

    def action_values(
        self, states: NDArray[np.int64], goal_ids: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Of all actions for S states and G goals (-1: unknown), (S, G, A); NaN for those not tried or below ``horizon``."""
        model = self.model
        assert model is not None, "nothing is planned yet"
        found = np.full((len(states), model.n_actions, len(goal_ids)), np.nan, dtype=np.float32)
        columns_of_all = self.columns_of(goal_ids)
        goals = np.flatnonzero(columns_of_all >= 0)
        goal_states = self._goal_states[goal_ids[goals]]
        known = np.flatnonzero((states >= 0) & (states < model.n_states))
        places, actions = np.nonzero(model.tried[states[known]])
        rows = states[known][places] * model.n_actions + actions
        on = model.on[rows]
        met, columns = np.unique(on.indices, return_inverse=True)
        on = csr_array((on.data, columns, on.indptr), shape=(len(rows), len(met)))
        achieved = np.nonzero(met[:, None] == goal_states)
        values = on @ self._returns(self.values[np.ix_(met, columns_of_all[goals])], achieved)
        from_ends = self._returns_of_ends(model.ends[rows], goal_states)
        if from_ends is not None:
            values += from_ends
        values[values < self.horizon] = np.nan
        found[known[places][:, None], actions[:, None], goals] = values
        return found.swapaxes(1, 2)

    def best_actions(
        self, states: NDArray[np.int64], goal_ids: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The best action of each pair of state and goal (-1: unknown), -1 where no way was known when this was planned."""
        columns = self.columns_of(goal_ids)
        planned = (states >= 0) & (states < len(self.best)) & (columns >= 0)
        actions = np.full(len(states), -1, dtype=np.int64)
        actions[planned] = self.best[states[planned], columns[planned]]
        return actions

    def states_of(self, goal_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """The states that known goals are, -1 for a goal that was not met."""
        return self._goal_states[goal_ids]

    def columns_of(self, goal_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Columns of goals in the values, -1 for goals that are not planned."""
        known = (goal_ids >= 0) & (goal_ids < len(self._columns))
        columns = np.full(len(goal_ids), -1)
        columns[known] = self._columns[goal_ids[known]]
        return columns

    def get_checkpoint_state(self) -> dict[str, Any]:
        model = None if self.model is None else self.model.get_checkpoint_state()
        search = bool(self._prepared) and self._prepared[-1] is not None
        kept = {name: getattr(self, name) for name in _KEPT}
        kept["rng"] = copy.deepcopy(self._rng.bit_generator.state)
        if self.sweeps == 0:  # gigabytes that the model gives again, to the last bit
            kept |= {"values": self.values[:0], "best": self.best[:0]}
        return {**kept, "model": model, "search": search}

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        for name in _KEPT:
            setattr(self, name, state[name])
        self._rng.bit_generator.state = state["rng"]
        self.model = (
            None if state["model"] is None else ReplayModel.from_checkpoint_state(state["model"])
        )
        self._prepared = self._prepare(search=True) if state["search"] else ()
        if self.model is not None and len(self.values) == 0:
            shape = self.model.n_states, len(self.goal_ids)
            self.values, self.best = (
                np.empty(shape, self.values.dtype),
                np.full(shape, -1, dtype=self.best.dtype),
            )
            self._plan_all()


_KEPT = ("values", "best", "goal_ids", "_goal_states", "_columns", "_oldest")
