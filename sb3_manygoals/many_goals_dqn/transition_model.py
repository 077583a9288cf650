"""What actions lead to, as probabilities that are counted: the model in which plans are made."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, hstack

from sb3_manygoals.world import WorldModel


class UsefulActions(NamedTuple):
    """
    The k-th useful action of each state that has at least k of them, for one number k.

    The S states are sorted by their number of useful actions, most first. So the first L of them
    have a k-th one.
    """

    actions: NDArray[np.int64]
    """The k-th useful actions, int64, shape (L,)."""
    transitions: csr_array
    """
    Probabilities of next states without a termination, float32, shape (L, S). Columns are places in
    the sorted order.
    """
    terminal_transitions: csr_array
    """
    Probabilities of next states with a termination, float32, shape (L, S). Columns are ids of
    states.
    """
    lost: NDArray[np.float32] | None = None
    """Probabilities of next states that are not known, shape (L,). None: there are none."""


class TransitionModel:
    """
    Transition probabilities of all (state, action) pairs that were tried.

    Each outcome of a pair counts one less than it was seen, except the most frequent one. So a plan
    does not rely on luck that was seen once. If there was no room for some states, what led to them
    may count as one outcome, after which no goal is reached.

    :param transitions: probabilities of next states without a termination, float32, shape (S A, S).
        The row of a state and an action is ``state * A + action``
    :param terminal_transitions: probabilities of next states with which the environment terminates,
        float32, shape (S A, S), with the same rows
    :param lost: probabilities of next states that are not known, because there was no room for
        them, float32, shape (S A,). None: there are none
    """

    def __init__(
        self,
        transitions: csr_array,
        terminal_transitions: csr_array,
        lost: NDArray[np.float32] | None = None,
    ) -> None:
        self.transitions = transitions
        self.terminal_transitions = terminal_transitions
        self.lost = lost
        self.n_states = transitions.shape[1]
        self.n_actions = transitions.shape[0] // max(self.n_states, 1)
        n_outcomes = np.diff(transitions.indptr) + np.diff(terminal_transitions.indptr)
        if lost is not None:
            n_outcomes = n_outcomes + (lost > 0.0)
        self.tried: NDArray[np.bool_] = (n_outcomes > 0).reshape(self.n_states, self.n_actions)
        """Which actions were tried in which states, shape (S, A)."""
        self.tried_states: NDArray[np.int64] = np.flatnonzero(self.tried.any(axis=1))
        """The states in which an action was tried."""
        n_certain = int(np.count_nonzero(n_outcomes == 1))
        self.certain_share = n_certain / max(int(self.tried.sum()), 1)
        """The share of tried actions that have one outcome."""
        self.certain_next: NDArray[np.int64] = np.full(n_outcomes.shape, -1)
        """
        Where actions lead that have one outcome without a termination, shape (S, A). -1 for all
        others.
        """
        is_certain = (n_outcomes == 1) & (np.diff(transitions.indptr) == 1)
        self.certain_next[is_certain] = transitions.indices[transitions.indptr[:-1][is_certain]]
        self.certain_next = self.certain_next.reshape(self.tried.shape)
        # Sums of the probabilities before each entry.
        self._cumulated = np.concatenate([[0.0], np.cumsum(transitions.data, dtype=np.float64)])

    def sample_next(
        self,
        states: NDArray[np.int64],
        actions: NDArray[np.int64],
        rng: np.random.Generator,
    ) -> NDArray[np.int64]:
        """
        Sample where actions lead.

        :param states: ids of states, shape (n,)
        :param actions: an action in each state, shape (n,). One that was not tried leads nowhere
        :param rng: random generator
        :return: ids of the next states, shape (n,). -1 where the environment terminates
        """
        rows = states * self.n_actions + actions
        low = self.transitions.indptr[rows]
        high = self.transitions.indptr[rows + 1]
        # The probabilities of an action's outcomes are an interval, in which a random number picks
        # one. Beyond the interval the environment terminates.
        numbers = self._cumulated[low] + rng.random(len(states))
        picked = np.searchsorted(self._cumulated, numbers, side="right") - 1
        after = np.where(self.tried[states, actions], -1, states)
        is_inside = picked < high
        after[is_inside] = self.transitions.indices[picked[is_inside]]
        return after

    @classmethod
    def of(cls, world: WorldModel, with_lost: bool = False) -> TransitionModel:
        """
        Make the transition model of a world.

        :param world: the model of the world, which has counts of S states and A actions
        :param with_lost: whether what led to states for which there was no room is an outcome.
            False: it is left out, and so are states that are learned or told by keys
        :return: a new transition model
        """
        n_states = len(world.identity)
        n_pairs = n_states * world.n_actions
        outcomes = world.outcomes()
        pairs = outcomes.state_ids * world.n_actions + outcomes.actions
        # The same next state with and without a termination are two outcomes.
        columns = outcomes.next_state_ids + n_states * outcomes.terminated
        counts = outcomes.counts.astype(np.float32)
        chances = csr_array((counts, (pairs, columns)), shape=(n_pairs, 2 * n_states))
        is_some_lost = world.n_counted > int(outcomes.counts.sum())
        if with_lost and is_some_lost and world.identity.is_exact:
            return cls._with_lost(chances, world)
        _make_probabilities(chances)
        return cls(chances[:, :n_states], chances[:, n_states:])

    @classmethod
    def _with_lost(cls, counts: csr_array, world: WorldModel) -> TransitionModel:
        """
        Make the model of a world in which there was no room for some states. What led to them
        counts as one outcome of an action.

        :param counts: how often the outcomes of each pair of a state and an action were seen, shape
            (S A, 2 S)
        :param world: the model of the world
        """
        n_states = len(world.identity)
        visits = world.visit_counts[:n_states].reshape(-1)
        # A last column is of what led to unknown states.
        lost = csr_array((visits - counts.sum(axis=1))[:, None].astype(np.float32))
        chances = hstack([counts, lost], format="csr")
        chances.eliminate_zeros()
        _make_probabilities(chances)
        on = chances[:, :n_states]
        terminal = chances[:, n_states : 2 * n_states]
        is_lost: NDArray[np.float32] = chances[:, [2 * n_states]].toarray()[:, 0]
        return cls(on, terminal, is_lost if is_lost.any() else None)

    def useful_actions(
        self,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], list[UsefulActions]]:
        """
        Return the useful actions of all states. Actions that always led back to the same state are
        not useful.

        :return: the states in the order of their number of useful actions, most first, shape (S,);
            the place of each state in this order, shape (S,); and a list of the first, second, ...
            useful actions
        """
        has_one_outcome = np.diff(self.transitions.indptr) == 1
        has_one_outcome &= np.diff(self.terminal_transitions.indptr) == 0
        if self.lost is not None:
            has_one_outcome &= self.lost == 0.0
        certain = np.flatnonzero(has_one_outcome)
        after = self.transitions.indices[self.transitions.indptr[certain]]
        is_useful = self.tried.copy()
        is_useful.reshape(-1)[certain[after == certain // self.n_actions]] = False
        order = np.argsort(-is_useful.sum(axis=1), kind="stable")
        place = np.argsort(order)
        is_useful = is_useful[order]
        rank = np.where(is_useful, is_useful.cumsum(axis=1), 0)
        found = []
        for number in range(1, int(rank.max(initial=0)) + 1):
            places, actions = np.nonzero(rank == number)
            rows = order[places] * self.n_actions + actions
            on = self.transitions[rows]
            on = csr_array((on.data, place[on.indices], on.indptr), shape=on.shape)
            lost = None if self.lost is None else self.lost[rows]
            found.append(UsefulActions(actions, on, self.terminal_transitions[rows], lost))
        return order, place, found

    def likeliest(self) -> TransitionModel:
        """Return the model in which each action always has its most frequent outcome."""
        chances = hstack([self.transitions, self.terminal_transitions], format="csr")
        lost = None
        if self.lost is not None:
            highest = chances.max(axis=1).toarray().reshape(-1)
            lost = (self.lost > highest).astype(np.float32)
            keeps = np.repeat(lost == 0.0, np.diff(chances.indptr))
            chances.data = np.where(keeps, chances.data, 0.0)
            chances.eliminate_zeros()
        ascending = np.argsort(chances.data, kind="stable")
        rows = np.repeat(np.arange(chances.shape[0]), np.diff(chances.indptr))
        column = np.full(chances.shape[0], -1)
        # Later outcomes overwrite earlier ones, so the most frequent outcome remains.
        column[rows[ascending]] = chances.indices[ascending]
        rows = np.flatnonzero(column >= 0)
        ones = np.ones(len(rows), dtype=np.float32)
        chances = csr_array((ones, (rows, column[rows])), shape=chances.shape)
        return TransitionModel(chances[:, : self.n_states], chances[:, self.n_states :], lost)

    def arrivals(self) -> tuple[csr_array, csr_array]:
        """
        Return two graphs for breadth-first search backwards from goals, both of shape (S, S).

        If the most frequent outcome of an action leads from one state to another, a graph has an
        edge from the second to the first.

        :return: the graph of transitions without a termination; and that of all transitions, which
            lead to a goal too if they terminate
        """
        likeliest = self.likeliest()
        found = []
        for edges in (likeliest.transitions, likeliest.terminal_transitions):
            edges = edges.tocoo()
            place = (edges.col, edges.row // self.n_actions)
            shape = (self.n_states, self.n_states)
            found.append(csr_array((np.ones(len(edges.col)), place), shape=shape))
        on, terminal = found
        return on, on + terminal if terminal.nnz > 0 else on

    def get_checkpoint_state(self) -> dict[str, Any]:
        """
        Return the probabilities.

        :return: a dictionary of plain data and arrays, which are not copied
        """
        on = self.transitions
        terminal = self.terminal_transitions
        return {
            "shape": on.shape,
            "transitions": [on.data, on.indices, on.indptr],
            "terminal_transitions": [terminal.data, terminal.indices, terminal.indptr],
            "lost": self.lost,
        }

    @classmethod
    def from_checkpoint_state(cls, state: dict[str, Any]) -> TransitionModel:
        """
        Make the transition model that was saved.

        :param state: what :meth:`get_checkpoint_state` returned
        :return: a new transition model
        """
        names = ("transitions", "terminal_transitions")
        on, terminal = (csr_array(tuple(state[name]), shape=state["shape"]) for name in names)
        # Checkpoints of earlier versions do not have it.
        return cls(on, terminal, state.get("lost"))


def _make_probabilities(counts: csr_array) -> None:
    """
    Replace counts of outcomes by probabilities.

    Each outcome counts one less than it was seen, except the most frequent ones of its row.

    :param counts: counts above 0, float32, a row for each state and action. It is changed in place
    """
    lengths = np.diff(counts.indptr)
    is_tried = lengths > 0
    if not is_tried.any():
        return
    first = counts.indptr[:-1][is_tried]
    lengths = lengths[is_tried]
    most_frequent = np.repeat(np.maximum.reduceat(counts.data, first), lengths)
    counts.data[counts.data < most_frequent] -= 1.0
    counts.data /= np.repeat(np.add.reduceat(counts.data, first), lengths)
    counts.eliminate_zeros()
