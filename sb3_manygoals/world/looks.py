"""States by how they look, where the noise of each number is independent of the others."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch as th
from numpy.typing import NDArray

from sb3_manygoals.world.inputs import Inputs
from sb3_manygoals.world.noise import (
    Noise,
    means_of_most,
    noise_of_states,
    noise_of_steps,
    second_group,
)
from sb3_manygoals.world.states import UNKNOWN

# Of larger observations than this, an encoder costs less than to compare all numbers.
_MOST_INPUTS = 10_000
# Observations are compared with states so many at a time, to bound memory.
_ROWS_AT_A_TIME = 512
# An observation that looks unlike the nearest state is compared with so many of the nearest ones.
_SHORT_LIST = 8
# A mean is that of so many observations at most, so that it follows slow changes.
_MOST_AVERAGED = 64.0
# A new state inherits the mean of the nearest one in those inputs that differ by at most so many
# variances. Some of that is wrong. So a mean begins anew if an observation differs from it by more
# than so many variances, as long as not many observations of the state were seen.
_INHERITED = 3.0
_SURPRISE = 6.0
_YOUNG = 16
# Noise is measured in so many steps, and then in so many states of which so many observations are
# known. States are found in so many rounds, in at most so many observations.
_STEPS_TO_MEASURE = 4_000
_STATES_TO_MEASURE = 256
_EXAMPLES_TO_MEASURE = 8
# It is measured in at most so many numbers, to bound memory.
_NUMBERS_TO_MEASURE = 20_000_000
# A state is split by so many of its observations at most.
_MOST_EXAMPLES = 200
_ROUNDS = 3
_OBSERVATIONS_TO_FIT = 60_000
# States of which fewer observations are known are found anew in each round.
_FEWEST_EXAMPLES = 4
# Two states are one if their means differ by less than this many variances, besides noise.
_SAME = 1.0


class Looks:
    """
    How states look: the mean of the numbers of their observations.

    An observation is of the state that is nearest, by the sum of all squares, each divided by its
    variance within states. If the noise of numbers is independent, no rule errs less often. But if
    the few inputs that differ most differ by more than noise does, the observation is of a new
    state. A new state mostly differs from the nearest one in few inputs. So it inherits the means
    of all others, and is known well from its first observation on.

    :param noise: how much observations of one state differ
    :param usual: what inputs mostly are, shape ``(n_inputs,)``
    :param capacity: greatest number of states
    """

    def __init__(self, noise: Noise, usual: NDArray[np.float32], capacity: int) -> None:
        self.noise = noise
        """How much observations of one state differ."""
        self.capacity = capacity
        """Greatest number of states."""
        self._usual = usual
        self._deviations: NDArray[np.float32] = np.sqrt(noise.variances)
        n_inputs = len(usual)
        # All numbers are in units of their deviations.
        self._means: NDArray[np.float32] = np.zeros((0, n_inputs), np.float32)
        self._squares: NDArray[np.float32] = np.zeros(0, np.float32)
        # How many observations the mean of each input is of.
        self._counts: NDArray[np.float32] = np.zeros((0, n_inputs), np.float32)
        # How many observations of each state were seen.
        self._n_seen: NDArray[np.float32] = np.zeros(0, np.float32)
        self._n = 0

    def __len__(self) -> int:
        return self._n

    @property
    def n_inputs(self) -> int:
        """Numbers in an observation."""
        return len(self._usual)

    @property
    def means(self) -> NDArray[np.float32]:
        """The mean of the observations of each state, shape ``(len(self), n_inputs)``."""
        return self._means[: self._n] * self._deviations

    def ids(self, rows: NDArray[np.float32]) -> NDArray[np.int64]:
        """
        Return the states of observations.

        :param rows: numbers of n observations, shape ``(n, n_inputs)``
        :return: ``UNKNOWN`` for those that look like no state, shape ``(n,)``
        """
        found = np.full(len(rows), UNKNOWN, np.int64)
        if self._n == 0:
            return found
        for at in range(0, len(rows), _ROWS_AT_A_TIME):
            part = rows[at : at + _ROWS_AT_A_TIME] / self._deviations
            nearest, is_like = self._match(part)
            found[at : at + _ROWS_AT_A_TIME] = np.where(is_like, nearest, UNKNOWN)
        return found

    def add(self, rows: NDArray[np.float32]) -> NDArray[np.int64]:
        """
        Return the states of observations, and learn from them how these look. Those that look like
        no state found one.

        :param rows: numbers of n observations, shape ``(n, n_inputs)``
        :return: ``UNKNOWN`` for those for which there is no room, shape ``(n,)``
        """
        found = np.full(len(rows), UNKNOWN, np.int64)
        for at in range(0, len(rows), _ROWS_AT_A_TIME):
            part = rows[at : at + _ROWS_AT_A_TIME] / self._deviations
            found[at : at + _ROWS_AT_A_TIME] = self._add_part(part)
        return found

    def _add_part(self, rows: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return the states of a few observations in units of deviations, and learn from them."""
        first_new = self._n
        if self._n == 0:
            found = np.full(len(rows), UNKNOWN, np.int64)
            is_like = np.zeros(len(rows), np.bool_)
        else:
            found, is_like = self._match(rows)
        for place in np.flatnonzero(~is_like).tolist():
            row = rows[place]
            new = np.arange(first_new, self._n)
            if len(new):
                excess = self._excess(row, new)
                best = int(excess.argmin())
                if excess[best] <= 1.0:
                    found[place] = new[best]
                    self._learn(row, int(new[best]))
                    continue
            found[place] = self._found(row, 1.0, int(found[place]))
        for place in np.flatnonzero(is_like).tolist():
            self._learn(rows[place], int(found[place]))
        return found

    def _match(self, rows: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """
        Return the states of observations in units of deviations.

        :return: the state that each observation looks most like, and whether it is of that state
        """
        found = self._nearest(rows, 1)[:, 0]
        is_like = self._excess(rows, found) <= 1.0
        strange = np.flatnonzero(~is_like)
        if len(strange):
            # Errors of many inputs add up in the sum of squares. They may hide the right state, if
            # less is known of it. But it is among the nearest ones.
            for place, others in zip(
                strange.tolist(), self._nearest(rows[strange], _SHORT_LIST), strict=True
            ):
                excess = self._excess(rows[place], others)
                best = int(excess.argmin())
                found[place] = others[best]
                is_like[place] = excess[best] <= 1.0
        return found, is_like

    def _nearest(self, rows: NDArray[np.float32], n: int) -> NDArray[np.int64]:
        """Return the n nearest states of observations in units of deviations, nearest first."""
        means = th.from_numpy(self._means[: self._n])
        squares = th.from_numpy(self._squares[: self._n])
        distances = th.addmm(squares[None], th.from_numpy(rows), means.T, alpha=-2.0)
        if n == 1:
            nearest = distances.min(1, keepdim=True)[1]
        else:
            nearest = distances.topk(min(n, self._n), largest=False)[1]
        places: NDArray[np.int64] = nearest.numpy()
        return places

    def _excess(
        self, rows: NDArray[np.float32], ids: NDArray[np.integer[Any]]
    ) -> NDArray[np.float64]:
        """
        Return how far observations are from states, in units of the limits.

        :param rows: numbers of n observations in units of deviations, shape ``(n, n_inputs)``, or
            of one that is compared with n states, shape ``(n_inputs,)``
        :param ids: the state of each, shape ``(n,)``
        """
        squares = np.square(rows - self._means[ids])
        # A mean of few observations has noise of its own.
        squares /= 1.0 + 1.0 / self._counts[ids]
        excess: NDArray[np.float64] = (means_of_most(squares) / self.noise.limits).max(axis=1)
        # Some of what a young state has inherited is wrong. That is put right by what is seen next.
        excess /= 1.0 + 1.0 / self._n_seen[ids]
        return excess

    def _found(self, mean: NDArray[np.float32], n_seen: float, nearest: int) -> int:
        """
        Return a new state, or ``UNKNOWN`` if there is no room.

        :param mean: the mean of its observations in units of deviations, shape (n_inputs,)
        :param n_seen: of how many observations it is
        :param nearest: the state from which it inherits. ``UNKNOWN``: from what is usual
        """
        if self._n == self.capacity:
            return UNKNOWN
        if nearest == UNKNOWN:
            others = self._usual / self._deviations
            counts = np.full(len(mean), _MOST_AVERAGED, np.float32)
        else:
            others = self._means[nearest]
            counts = self._counts[nearest]
        is_alike = np.square(mean - others) / (1.0 / n_seen + 1.0 / counts) <= _INHERITED
        both = counts + n_seen
        merged = others + (mean - others) * (n_seen / both)
        self._append(
            np.where(is_alike, merged, mean),
            np.where(is_alike, np.minimum(both, _MOST_AVERAGED), n_seen),
            n_seen,
        )
        return self._n - 1

    def _append(
        self, means: NDArray[np.float32], counts: NDArray[np.floating], n_seen: float
    ) -> None:
        """Take in a state."""
        if self._n == len(self._means):
            n_rows = min(max(2 * self._n, 16), self.capacity)
            for name in ("_means", "_counts", "_squares", "_n_seen"):
                old = getattr(self, name)
                room = np.zeros((n_rows, *old.shape[1:]), np.float32)
                room[: self._n] = old[: self._n]
                setattr(self, name, room)
        self._means[self._n] = means
        self._counts[self._n] = counts
        self._n_seen[self._n] = n_seen
        self._squares[self._n] = np.square(self._means[self._n]).sum()
        self._n += 1

    def _learn(self, row: NDArray[np.float32], state: int) -> None:
        """Learn from an observation of a state."""
        self._n_seen[state] += 1.0
        counts = self._counts[state]
        means = self._means[state]
        offsets = row - means
        if self._n_seen[state] <= _YOUNG:
            counts[np.square(offsets) > _SURPRISE * (1.0 + 1.0 / counts)] = 1.0
        np.minimum(counts + 1.0, _MOST_AVERAGED, out=counts)
        means += offsets / counts
        self._squares[state] = np.square(means).sum()

    def keep(self, ids: NDArray[np.int64]) -> None:
        """
        Keep some states, and forget all others.

        :param ids: the states to keep, in the order of their new ids
        """
        self._means = self._means[ids]
        self._counts = self._counts[ids]
        self._n_seen = self._n_seen[ids]
        self._squares = self._squares[ids]
        self._n = len(ids)

    def distances(
        self, rows: NDArray[np.float32], ids: NDArray[np.integer[Any]]
    ) -> NDArray[np.float64]:
        """
        Return how far observations are from states. 1 is the limit.

        :param rows: numbers of n observations, shape ``(n, n_inputs)``
        :param ids: the state of each, shape ``(n,)``
        :return: shape ``(n,)``
        """
        return self._excess(rows / self._deviations, ids)

    def get_state(self) -> dict[str, Any]:
        """
        Return all that is known, for :meth:`of_state`.

        :return: numbers and copies of arrays, by their names
        """
        return {
            "capacity": self.capacity,
            "usual": self._usual.copy(),
            "variances": self.noise.variances.copy(),
            "limits": self.noise.limits.copy(),
            "widest": self.noise.widest.copy(),
            "means": self._means[: self._n].copy(),
            "counts": self._counts[: self._n].copy(),
            "n_seen": self._n_seen[: self._n].copy(),
        }

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Looks:
        """
        Return looks that know what others knew.

        :param state: what :meth:`get_state` returned
        :return: an object that knows the same
        :raises ValueError: if the arrays do not fit each other
        """
        usual = np.asarray(state["usual"], np.float32)
        means = np.asarray(state["means"], np.float32)
        counts = np.asarray(state["counts"], np.float32)
        n_seen = np.asarray(state["n_seen"], np.float32)
        noise = Noise(
            np.asarray(state["variances"], np.float32),
            np.asarray(state["limits"], np.float64),
            np.asarray(state["widest"], np.float64),
        )
        fit = means.shape == counts.shape == (len(n_seen), len(usual))
        if (
            not fit
            or len(noise.variances) != len(usual)
            or (counts < 1.0).any()
            or (n_seen < 1.0).any()
        ):
            raise ValueError(
                f"looks of states with {len(usual)} inputs must have as many variances, means and "
                f"counts, got {len(noise.variances)}, {means.shape} and {counts.shape}"
            )
        looks = cls(noise, usual.copy(), int(state["capacity"]))
        looks._means = means.copy()
        looks._counts = counts.copy()
        looks._n_seen = n_seen.copy()
        # The sums are the same to the last bit only if they are made one by one.
        looks._squares = np.array([np.square(mean).sum() for mean in looks._means], np.float32)
        looks._n = len(means)
        return looks


class FoundLooks(NamedTuple):
    """States that were found by how they look."""

    looks: Looks
    """How they look."""
    ids: NDArray[np.int64]
    """The states of all observations, ``UNKNOWN`` where there was no room, shape ``(m,)``."""
    distances: NDArray[np.float64]
    """How far each observation is from its state. 1 is the limit, shape ``(m,)``."""


def find_looks(
    observations: NDArray[Any],
    steps: tuple[NDArray[np.integer[Any]], NDArray[np.integer[Any]]],
    inputs: Inputs,
    capacity: int,
    rng: np.random.Generator,
    known: Looks | None = None,
) -> FoundLooks | None:
    """
    Find states by how they look.

    Noise is measured first from observations that follow each other, because a step changes few
    inputs. With that, states are found, one observation after the other. Within these states, noise
    is measured better. States whose observations are of two groups are split, and states that look
    the same are merged. Then all observations are told apart anew. This is repeated.

    :param observations: all that was seen, shape ``(m, *shape)``
    :param steps: the observations in which actions were taken, and those that they led to, by their
        rows, each of shape ``(n,)``
    :param inputs: turns observations into numbers
    :param capacity: greatest number of states
    :param rng: random generator
    :param known: how states looked that were found before
    :return: the states. None if the noise of inputs is not independent, or observations are too
        small to test that, or too large to compare all numbers
    """
    if len(inputs) > _MOST_INPUTS:
        return None
    n_steps = min(_STEPS_TO_MEASURE, _NUMBERS_TO_MEASURE // len(inputs))
    chosen = _evenly(len(steps[0]), n_steps)
    rows = inputs.flat(observations[steps[0][chosen]])
    next_rows = inputs.flat(observations[steps[1][chosen]])
    noise = noise_of_steps(rows, next_rows, inputs.is_integer, rng)
    if noise is None:
        return None
    usual = np.median(rows, axis=0).astype(np.float32)
    places = _evenly(len(observations), _OBSERVATIONS_TO_FIT)
    looks = Looks(noise, usual, capacity) if known is None else Looks.of_state(known.get_state())
    looks.capacity = capacity
    ids = _add_all(looks, observations, places, inputs)
    for _ in range(_ROUNDS):
        groups = [places[group] for group in _groups(ids, len(looks))]
        found = _round(looks, observations, groups, inputs)
        if found is None:
            break
        looks = found
        ids = _add_all(looks, observations, places, inputs)
    if len(places) < len(observations):
        ids = _add_all(looks, observations, np.arange(len(observations)), inputs)
    ids = _merge(looks, ids)
    distances = np.zeros(len(ids))
    told = np.flatnonzero(ids != UNKNOWN)
    for part in np.array_split(told, len(told) // _ROWS_AT_A_TIME + 1):
        distances[part] = looks.distances(inputs.flat(observations[part]), ids[part])
    return FoundLooks(looks, ids, distances)


def _evenly(n: int, most: int) -> NDArray[np.int64]:
    """Return at most so many of n places, evenly."""
    return np.unique(np.linspace(0, n - 1, min(n, most), dtype=np.int64))


def _add_all(
    looks: Looks, observations: NDArray[Any], places: NDArray[np.int64], inputs: Inputs
) -> NDArray[np.int64]:
    """Return the states of the observations at these places, and learn from them."""
    ids = np.zeros(len(places), np.int64)
    for at in range(0, len(places), _ROWS_AT_A_TIME):
        part = slice(at, at + _ROWS_AT_A_TIME)
        ids[part] = looks.add(inputs.flat(observations[places[part]]))
    return ids


def _groups(ids: NDArray[np.int64], n_states: int) -> list[NDArray[np.int64]]:
    """Return the places at which each state is, those of state 0 first."""
    order = np.argsort(ids, kind="stable")
    begins = np.searchsorted(ids[order], np.arange(n_states + 1))
    return [order[begin:end] for begin, end in itertools.pairwise(begins)]


def _round(
    looks: Looks,
    observations: NDArray[Any],
    groups: list[NDArray[np.int64]],
    inputs: Inputs,
) -> Looks | None:
    """
    Measure noise in states, split and merge them, and return how they look.

    :param groups: the observations of each state, by their rows
    :return: None if no state is known well enough to measure noise
    """
    told = [group for group in groups if len(group) >= _EXAMPLES_TO_MEASURE]
    if not told:
        return None

    def rows_of(group: NDArray[np.int64], most: int) -> NDArray[np.float32]:
        """Return the numbers of some observations of a group."""
        return inputs.flat(observations[group[_evenly(len(group), most)]])

    chosen = _evenly(len(told), _STATES_TO_MEASURE)
    n_examples = max(_NUMBERS_TO_MEASURE // (len(inputs) * len(chosen)), _EXAMPLES_TO_MEASURE)
    n_examples = min(n_examples, _MOST_EXAMPLES)
    measured = [rows_of(told[place], n_examples) for place in chosen]
    noise = noise_of_states(measured, inputs.is_integer)
    waiting = [group for group in groups if len(group) >= _FEWEST_EXAMPLES]
    pure = []
    while waiting:
        group = waiting.pop()
        rows = rows_of(group, _MOST_EXAMPLES)
        is_second = second_group(rows, noise) if len(group) >= _EXAMPLES_TO_MEASURE else None
        if is_second is None:
            pure.append((group, rows.mean(axis=0)))
            continue
        # The other observations of the group are of the one whose mean is nearer.
        halves = Looks(noise, looks._usual, 2)
        for half in (is_second, ~is_second):
            mean = rows[half].mean(axis=0) / halves._deviations
            halves._append(mean, np.ones(halves.n_inputs), 1)
        nearer = np.concatenate(
            [
                halves._nearest(inputs.flat(observations[part]) / halves._deviations, 1)[:, 0]
                for part in np.array_split(group, len(group) // _ROWS_AT_A_TIME + 1)
            ]
        )
        parts = [group[nearer == half] for half in range(2)]
        # Groups of few observations are found anew, with all that was seen.
        waiting += [part for part in parts if _FEWEST_EXAMPLES <= len(part) < len(group)]
    found = Looks(noise, looks._usual, looks.capacity)
    # The states that are known best come first, so that others are merged into them.
    pure.sort(key=lambda state: (-len(state[0]), state[0][0]))
    sizes = np.array([min(len(group), _MOST_AVERAGED) for group, _ in pure], np.float32)
    means = np.asarray(np.stack([mean for _, mean in pure]) / found._deviations, np.float32)
    is_left = _same_as(means, sizes, noise) == np.arange(len(means))
    for state in np.flatnonzero(is_left):
        nearest = int(found._nearest(means[state : state + 1], 1)[0, 0]) if len(found) else UNKNOWN
        found._found(means[state], float(sizes[state]), nearest)
    return found


def _same_as(
    means: NDArray[np.float32], sizes: NDArray[np.float32], noise: Noise
) -> NDArray[np.int64]:
    """
    Return the state before each one that looks the same, or its own place if there is none.

    :param means: means in units of deviations, shape ``(S, n_inputs)``
    :param sizes: of how many observations they are, shape ``(S,)``
    :return: shape ``(S,)``
    """
    same_as = np.arange(len(means))
    squares = np.square(means).sum(axis=1)
    for at in range(0, len(means), _ROWS_AT_A_TIME):
        part = np.arange(at, min(at + _ROWS_AT_A_TIME, len(means)))
        n_before = int(part[-1]) + 1
        distances = squares[:n_before] - 2.0 * means[part] @ means[:n_before].T
        distances[np.arange(n_before) >= part[:, None]] = np.inf
        for state, row in zip(part.tolist(), distances, strict=True):
            # Of those before it, only those that are left are compared.
            row[same_as[:n_before] != np.arange(n_before)] = np.inf
            other = int(row.argmin())
            if not np.isfinite(row[other]):
                continue
            offsets = np.square(means[state] - means[other])
            most = _SAME + noise.limits * (1.0 / sizes[state] + 1.0 / sizes[other])
            if (means_of_most(offsets[None])[0] <= most).all():
                same_as[state] = other
    return same_as


def _merge(looks: Looks, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Merge states that look the same, drop those unseen, and return the ids of observations."""
    is_known = ids != UNKNOWN
    n_seen = np.bincount(ids[is_known], minlength=len(looks))
    # The states that are known best come first, so that others are merged into them.
    order = np.argsort(-n_seen, kind="stable")[: np.count_nonzero(n_seen)]
    sizes = np.minimum(n_seen[order], _MOST_AVERAGED).astype(np.float32)
    same_as = np.zeros(len(looks), np.int64)
    same_as[order] = order[_same_as(looks._means[order], sizes, looks.noise)]
    kept = order[same_as[order] == order]
    kept.sort()
    looks.keep(kept)
    place = np.zeros(len(n_seen), np.int64)
    place[kept] = np.arange(len(kept))
    return np.where(is_known, place[same_as[ids]], UNKNOWN)
