"""How states look, so that what was never seen is not taken for a state that is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.spatial.distance import pdist

# Noise is measured in at most so many states, of which at least so many examples are kept. With
# fewer states, or fewer numbers in an observation, nothing is told by looks.
_STATES_TO_MEASURE = 256
_EXAMPLES_TO_MEASURE = 8
_FEWEST_STATES = 5
_FEWEST_INPUTS = 30
# Inputs are independent if their mean difference deviates so many times as much as if they were.
_LEAST_INDEPENDENT = 0.7
_MOST_INDEPENDENT = 1.5
# An observation differs from a state by the mean of so many inputs, those that differ most: what
# tells two states apart is a small part of a picture.
_INPUTS_TO_COMPARE = 8
# The states whose inputs vary least are taken to be pure. A state is impure if its inputs vary by
# this multiple of what is the most in these.
_SHARE_PURE = 0.25
_IMPURE = 1.5
# An observation is strange if it differs by this multiple of what few examples of pure states do.
_STRANGE = 1.75
_SHARE_USUAL = 0.99
# If a typical example is strange in more than this share of the states, some states have far more
# noise than others.
_MOST_NOISY = 0.25
# An input varies less than it is taken to do in this share of the states.
_SHARE_VARYING_LESS = 0.75
# An input that does not vary within states is known no better than to this share of its variance.
_LEAST_VARIANCE = 1e-3
# The look of a state that was founded is the mean of at most so many observations.
_MOST_AVERAGED = 32
# Examples are compared so many numbers at a time, to bound memory.
_NUMBERS_AT_A_TIME = 4_000_000

Flatten = Callable[[NDArray[Any]], NDArray[np.float32]]


class Looks:
    """
    The mean observation of each state, and how far observations of one state are from it.

    An encoder tells apart what it has seen often. It cannot tell that a door is open if all doors
    were shut while it learned: then its code ignores the door. But an observation with an open door
    differs from the mean of its state by more than noise does. The difference is the mean of
    squares, each divided by its variance within states, of the eight inputs that differ most.

    This holds only if the noise of each input is independent of the others, which is measured. With
    changes of the brightness, or if one of many things is seen at a time, it does not hold. Then no
    observation is strange.

    :param n_inputs: numbers in an observation
    """

    def __init__(self, n_inputs: int) -> None:
        self.limit = np.inf
        """An observation that differs more than this is of another state. Infinite if inputs are
        not independent."""
        self._widest = np.inf
        self._excess_of_one = 0.0
        self._variances: NDArray[np.float32] = np.ones(n_inputs, np.float32)
        self._means: NDArray[np.float32] = np.zeros((0, n_inputs), np.float32)
        self._counts: NDArray[np.int64] = np.zeros(0, np.int64)
        self._n = 0

    def __len__(self) -> int:
        return self._n

    @property
    def n_inputs(self) -> int:
        """Numbers in an observation."""
        return len(self._variances)

    @property
    def can_tell(self) -> bool:
        """Whether states are told apart by looks. Otherwise nothing else is known."""
        return bool(np.isfinite(self.limit))

    def give_up(self) -> None:
        """Tell nothing by looks from now on, and forget them."""
        n_inputs = self._means.shape[1]
        self.limit = np.inf
        self._means = np.zeros((0, n_inputs), np.float32)
        self._counts = np.zeros(0, np.int64)
        self._n = 0

    def fit(self, examples: NDArray[Any], n_kept: NDArray[np.int64], flat: Flatten) -> None:
        """
        Learn how states look, from examples.

        :param examples: observations of S states, K of each, shape ``(S, K, *shape)``
        :param n_kept: how many of them are examples, from the first on, shape ``(S,)``
        :param flat: returns n observations as numbers, shape ``(n, n_inputs)``
        """
        n_inputs = self._means.shape[1]
        self._n = len(examples)
        self._counts = n_kept.copy()
        self._means = np.zeros((self._n, n_inputs), np.float32)
        for states, rows, is_kept in _parts(examples, n_kept, flat):
            n = np.maximum(n_kept[states], 1)
            self._means[states] = (rows * is_kept[..., None]).sum(axis=1) / n[:, None]
        told = np.flatnonzero(n_kept >= _EXAMPLES_TO_MEASURE)
        if len(told) >= _FEWEST_STATES and n_inputs >= _FEWEST_INPUTS:
            places = np.linspace(0, len(told) - 1, _STATES_TO_MEASURE, dtype=np.int64)
            told = told[np.unique(places)]
            # Numbers that are too large for squares are not independent.
            with np.errstate(over="ignore", invalid="ignore"):
                self._measure_noise(examples[told], n_kept[told], flat)
        if not self.can_tell:
            self.give_up()

    def _measure_noise(
        self, examples: NDArray[Any], n_kept: NDArray[np.int64], flat: Flatten
    ) -> None:
        """Find the variances of inputs within states, and beyond what a difference is strange."""
        # This does not heed the few states in which an input varies because they are impure. But it
        # heeds a lamp that is on in a hundredth of all observations, in all states alike.
        within = np.stack([rows.var(axis=0, ddof=1) for rows in _each(examples, n_kept, flat)])
        variances = np.quantile(within, _SHARE_VARYING_LESS, axis=0)
        among = np.stack([rows.mean(axis=0) for rows in _each(examples, n_kept, flat)]).var(axis=0)
        total = among + variances
        # If all numbers were ever the same, any other number is strange.
        least = np.maximum(_LEAST_VARIANCE * np.maximum(total, total.mean()), 1e-12)
        self._variances = np.maximum(variances, least).astype(np.float32)
        typical = []
        spreads = []
        deviations = []
        alone = []
        for rows in _each(examples, n_kept, flat):
            spreads.append(self._spread(rows))
            squares = self._squares_of_examples(rows)
            typical.append(np.median(_mean_of_most(squares)))
            deviations.append(squares.mean(axis=1).std(ddof=1))
            # So much a mean of independent numbers deviates.
            alone.append(np.sqrt(squares.var(axis=0, ddof=1).sum()) / rows.shape[1])
        ratio = np.median(deviations) / max(float(np.median(alone)), 1e-12)
        if not _LEAST_INDEPENDENT <= ratio <= _MOST_INDEPENDENT:
            return
        widest = np.quantile(spreads, _SHARE_PURE)
        pure = np.flatnonzero(spreads <= widest)
        from_mean = []
        from_one = []
        for rows in _each(examples[pure], n_kept[pure], flat):
            from_mean.append(_mean_of_most(self._squares_of_examples(rows)))
            n_pairs = len(rows) // 2
            offsets = rows[:n_pairs] - rows[n_pairs : 2 * n_pairs]
            from_one.append(_mean_of_most(np.square(offsets) / self._variances) / 2.0)
        usual = float(np.quantile(np.concatenate(from_mean), _SHARE_USUAL))
        of_one = float(np.quantile(np.concatenate(from_one), _SHARE_USUAL))
        # Where there is no noise, observations recur.
        if not 0.0 < usual < np.inf:
            return
        limit = _STRANGE * usual
        if np.mean(np.array(typical) > limit) > _MOST_NOISY:
            return
        self.limit = limit
        self._widest = _IMPURE * float(widest)
        # Noise that has bounds hardly has them in the difference of two observations.
        self._excess_of_one = max(of_one / usual - 1.0, 0.0)

    def _squares_of_examples(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the squares of all inputs, divided by their variances, of a state's examples."""
        squares: NDArray[np.float32] = np.square(rows - rows.mean(axis=0)) / self._variances
        # Each example is a part of the mean that it is compared with.
        squares *= len(rows) / (len(rows) - 1)
        return squares

    def _spread(self, rows: NDArray[np.float32]) -> float:
        """Return how much the inputs vary that vary most, among examples of a state."""
        return float(_mean_of_most(rows.var(axis=0, ddof=1)[None] / self._variances)[0])

    def groups(
        self, examples: NDArray[Any], n_kept: NDArray[np.int64], flat: Flatten
    ) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """
        Find states whose examples are of several states.

        :param examples: observations of S states, K of each, shape ``(S, K, *shape)``
        :param n_kept: how many of them are examples, from the first on, shape ``(S,)``
        :param flat: returns n observations as numbers, shape ``(n, n_inputs)``
        :return: such a state, and the group of each of its examples, from 0 on, shape ``(k,)``
        """
        if not self.can_tell:
            return
        for state, rows in enumerate(_each(examples, n_kept, flat)):
            labels = np.zeros(len(rows), np.int64)
            waiting = [np.arange(len(rows))]
            while waiting:
                members = waiting.pop()
                if len(members) < _EXAMPLES_TO_MEASURE:
                    continue
                is_second = self._second_group(rows[members])
                if is_second is not None:
                    labels[members[is_second]] = labels.max() + 1
                    waiting += [members[is_second], members[~is_second]]
            if labels.any():
                yield state, labels

    def _second_group(self, rows: NDArray[np.float32]) -> NDArray[np.bool_] | None:
        """Return which examples of a state are of another one than the rest. None: none are."""
        if self._spread(rows) <= self._widest:
            return None
        most = np.argsort(rows.var(axis=0) / self._variances)[-_INPUTS_TO_COMPARE:]
        tree = linkage(pdist(rows[:, most] / np.sqrt(self._variances[most])), "ward")
        is_second = cut_tree(tree, 2)[:, 0] == 1
        # Some states have more noise than others. But the means of two groups of one state differ
        # little.
        groups = rows[is_second], rows[~is_second]
        offsets = groups[0].mean(axis=0) - groups[1].mean(axis=0)
        difference = _mean_of_most(np.square(offsets)[None] / self._variances)[0]
        n = min(len(group) for group in groups)
        return is_second if difference > self.limit * (1.0 + 1.0 / n) else None

    def _squares(
        self, rows: NDArray[np.float32], ids: NDArray[np.integer[Any]]
    ) -> NDArray[np.float32]:
        """Return the squares of all inputs, divided by their variances, shape (n, n_inputs)."""
        squares: NDArray[np.float32] = np.square(rows - self._means[ids])
        squares /= self._variances
        return squares

    def differences(
        self, rows: NDArray[np.float32], ids: NDArray[np.integer[Any]]
    ) -> NDArray[np.float64]:
        """
        Return how far observations are from the means of states.

        :param rows: numbers of n observations, shape ``(n, n_inputs)``, or of one, which is
            compared with n states, shape ``(n_inputs,)``
        :param ids: the state of each, shape ``(n,)``
        :return: about 1 for an observation of the state, shape ``(n,)``
        """
        squares = _mean_of_most(self._squares(rows, ids))
        # A mean of few observations has noise of its own.
        n = np.maximum(self._counts[ids], 1)
        found: NDArray[np.float64] = squares / ((1.0 + 1.0 / n) * (1.0 + self._excess_of_one / n))
        return found

    def set(self, state: int, rows: NDArray[np.float32]) -> None:
        """
        Set how a state looks.

        :param state: its id
        :param rows: numbers of all of n observations that are known of it, shape ``(n, n_inputs)``
        """
        if self.can_tell:
            self._means[state] = rows.mean(axis=0)
            self._counts[state] = len(rows)

    def add(self, row: NDArray[np.float32]) -> None:
        """
        Take in the first observation of a new state, which has the next id.

        :param row: its numbers, shape ``(n_inputs,)``
        """
        if not self.can_tell:
            return
        if self._n == len(self._means):
            n_rows = max(2 * self._n, 16)
            means = np.zeros((n_rows, len(row)), np.float32)
            means[: self._n] = self._means[: self._n]
            counts = np.zeros(n_rows, np.int64)
            counts[: self._n] = self._counts[: self._n]
            self._means = means
            self._counts = counts
        self._means[self._n] = row
        self._counts[self._n] = 1
        self._n += 1

    def keep(self, ids: NDArray[np.int64]) -> None:
        """
        Keep some states, and forget all others.

        :param ids: the states to keep, in the order of their new ids
        """
        if self.can_tell:
            self._means = self._means[ids]
            self._counts = self._counts[ids]
            self._n = len(ids)

    def update(self, rows: NDArray[np.float32], ids: NDArray[np.integer[Any]]) -> None:
        """
        Learn from further observations of states of which few were seen.

        :param rows: numbers of n observations, shape ``(n, n_inputs)``
        :param ids: the state of each, shape ``(n,)``
        """
        for place in np.flatnonzero(self._counts[ids] < _MOST_AVERAGED).tolist():
            state = ids[place]
            if self._counts[state] < _MOST_AVERAGED:
                self._counts[state] += 1
                self._means[state] += (rows[place] - self._means[state]) / self._counts[state]

    def n_seen_once(self, first: int) -> int:
        """
        Return how many states were seen once.

        :param first: only states with ids from this one on are counted
        """
        return int((self._counts[first : self._n] == 1).sum())

    def get_state(self) -> dict[str, Any]:
        """
        Return all that is known, for :meth:`of_state`.

        :return: numbers and copies of arrays, by their names
        """
        return {
            "limit": self.limit,
            "widest": self._widest,
            "excess_of_one": self._excess_of_one,
            "variances": self._variances.copy(),
            "means": self._means[: self._n].copy(),
            "counts": self._counts[: self._n].copy(),
        }

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Looks:
        """
        Return what :meth:`get_state` was called of.

        :param state: what it returned
        :return: an object that knows the same
        :raises ValueError: if the arrays do not fit each other
        """
        means = np.asarray(state["means"], np.float32)
        counts = np.asarray(state["counts"], np.int64)
        variances = np.asarray(state["variances"], np.float32)
        if means.shape != (len(counts), len(variances)) or (counts < 0).any():
            raise ValueError(
                f"looks of {len(counts)} states and {len(variances)} inputs must have as many "
                f"means, got {means.shape}"
            )
        looks = cls(len(variances))
        looks.limit = float(state["limit"])
        looks._widest = float(state["widest"])
        looks._excess_of_one = float(state["excess_of_one"])
        looks._variances = variances.copy()
        looks._means = means.copy()
        looks._counts = counts.copy()
        looks._n = len(counts)
        return looks


def _parts(
    examples: NDArray[Any], n_kept: NDArray[np.int64], flat: Flatten
) -> Iterator[tuple[slice, NDArray[np.float32], NDArray[np.bool_]]]:
    """Return some states at a time, the numbers of their examples, and which of those are there."""
    n_states, n_examples = examples.shape[:2]
    n_inputs = max(flat(examples[:1, 0]).shape[1], 1) if n_states else 1
    at_a_time = max(_NUMBERS_AT_A_TIME // (n_examples * n_inputs), 1)
    for begin in range(0, n_states, at_a_time):
        states = slice(begin, min(begin + at_a_time, n_states))
        part = examples[states]
        rows = flat(part.reshape(-1, *part.shape[2:])).reshape(len(part), n_examples, -1)
        yield states, rows, np.arange(n_examples) < n_kept[states, None]


def _each(
    examples: NDArray[Any], n_kept: NDArray[np.int64], flat: Flatten
) -> Iterator[NDArray[np.float32]]:
    """Return the numbers of the examples of each state, shape (k, n_inputs)."""
    for states, rows, _ in _parts(examples, n_kept, flat):
        for of_state, n in zip(rows, n_kept[states], strict=True):
            yield of_state[:n]


def _mean_of_most(squares: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the mean of the greatest numbers of each row, shape (n,)."""
    n = min(_INPUTS_TO_COMPARE, squares.shape[1])
    most = np.partition(squares, -n, axis=1)[:, -n:]
    return np.asarray(most.mean(axis=1, dtype=np.float64))
