"""States by how they look, where the noise of each number is independent of the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch as th
from numpy.typing import NDArray

from sb3_manygoals.world.noise import Noise, means_of_most
from sb3_manygoals.world.states import UNKNOWN

# Observations are compared with states so many at a time, and so many of their numbers, to bound
# memory and time.
_MOST_ROWS = 512
_NUMBERS_AT_A_TIME = 2_000_000
# An observation that looks unlike the nearest state is compared with so many of the nearest ones.
_SHORT_LIST = 8
MOST_AVERAGED = 64.0
"""A mean is that of so many observations at most, so that it follows slow changes."""
# A new state inherits the mean of the nearest one in those inputs that differ by at most so many
# variances: more of them are noise than real differences, even of normal noise. Some of what is
# inherited is wrong. So a mean counts as that of one observation only, if another one differs from
# it by more than so many variances, which noise hardly does. That ends once so many observations of
# the state were seen.
_INHERITED = 3.0
_SURPRISE = 6.0
_YOUNG = 16


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
        self.usual = usual
        """What inputs mostly are, shape ``(n_inputs,)``."""
        self._deviations: NDArray[np.float32] = np.sqrt(noise.variances)
        n_inputs = len(usual)
        # All numbers are differences from what is usual, in units of their deviations. Differences
        # are small, so that their squares have no rounding errors that matter.
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
        return len(self.usual)

    @property
    def means(self) -> NDArray[np.float32]:
        """The mean of the observations of each state, shape ``(len(self), n_inputs)``."""
        return self._means[: self._n] * self._deviations + self.usual

    def ids(self, rows: NDArray[np.float32]) -> NDArray[np.int64]:
        """
        Return the states of observations.

        :param rows: numbers of n observations, shape ``(n, n_inputs)``
        :return: ``UNKNOWN`` for those that look like no state, shape ``(n,)``
        """
        found = np.full(len(rows), UNKNOWN, np.int64)
        if self._n == 0:
            return found
        for part in self.parts(len(rows)):
            nearest, is_like = self._match(self.scaled(rows[part]))
            found[part] = np.where(is_like, nearest, UNKNOWN)
        return found

    def parts(self, n: int) -> Iterator[slice]:
        """
        Return which of n observations to look at, some at a time.

        :param n: number of observations
        """
        at_a_time = min(max(_NUMBERS_AT_A_TIME // max(self.n_inputs, 1), 1), _MOST_ROWS)
        for at in range(0, n, at_a_time):
            yield slice(at, min(at + at_a_time, n))

    def scaled(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """
        Return observations as differences from what is usual, in units of deviations.

        :param rows: numbers of n observations, shape ``(n, n_inputs)``
        :return: shape ``(n, n_inputs)``
        """
        result: NDArray[np.float32] = (rows - self.usual) / self._deviations
        return result

    def add(self, rows: NDArray[np.float32]) -> NDArray[np.int64]:
        """
        Return the states of observations, and learn from them how these look. Those that look like
        no state found one.

        :param rows: numbers of n observations, shape ``(n, n_inputs)``
        :return: ``UNKNOWN`` for those for which there is no room, shape ``(n,)``
        """
        found = np.full(len(rows), UNKNOWN, np.int64)
        for part in self.parts(len(rows)):
            found[part] = self._add_part(self.scaled(rows[part]))
        return found

    def _add_part(self, rows: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return the states of a few observations in units of deviations, and learn from them."""
        first_new = self._n
        ids = np.full(len(rows), UNKNOWN, np.int64)
        is_like = np.zeros(len(rows), np.bool_)
        if first_new:
            ids, is_like = self._match(rows)
        for place in np.flatnonzero(~is_like).tolist():
            row = rows[place]
            # It may be like one that was found since.
            if self._n > first_new:
                new = first_new + self._nearest(row[None], _SHORT_LIST, first_new)[0]
                excess = self._excess(row, new)
                best = int(excess.argmin())
                if excess[best] <= 1.0:
                    ids[place] = new[best]
                    self._learn(row, int(new[best]))
                    continue
            ids[place] = self.begin_state(row, 1.0, int(ids[place]))
        for place in np.flatnonzero(is_like).tolist():
            self._learn(rows[place], int(ids[place]))
        return ids

    def _match(self, rows: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """
        Return the states of observations in units of deviations.

        :return: the state that each observation looks most like, and whether it is of that state
        """
        ids = self._nearest(rows, 1)[:, 0]
        is_like = self._excess(rows, ids) <= 1.0
        strange = np.flatnonzero(~is_like)
        if len(strange):
            # Errors of many inputs add up in the sum of squares. They may hide the right state, if
            # less is known of it. But it is among the nearest ones.
            nearest = self._nearest(rows[strange], _SHORT_LIST)
            for place, others in zip(strange.tolist(), nearest, strict=True):
                excess = self._excess(rows[place], others)
                best = int(excess.argmin())
                ids[place] = others[best]
                is_like[place] = excess[best] <= 1.0
        return ids, is_like

    def _nearest(self, rows: NDArray[np.float32], n: int, first: int = 0) -> NDArray[np.int64]:
        """
        Return the nearest states of observations in units of deviations, nearest first.

        :param n: greatest number of states
        :param first: only states from this one on are compared, and counted from it
        :return: shape ``(len(rows), n)``, or less if there are fewer states
        """
        means = th.from_numpy(self._means[first : self._n])
        squares = th.from_numpy(self._squares[first : self._n])
        distances = th.addmm(squares[None], th.from_numpy(rows), means.T, alpha=-2.0)
        if n == 1:
            nearest = distances.min(1, keepdim=True)[1]
        else:
            nearest = distances.topk(min(n, len(means)), largest=False)[1]
        places: NDArray[np.int64] = nearest.numpy()
        return places

    def nearest(self, rows: NDArray[np.float32]) -> NDArray[np.int64]:
        """
        Return the nearest state of observations, even if they look unlike it.

        :param rows: numbers of n observations, shape ``(n, n_inputs)``
        :return: shape ``(n,)``. ``UNKNOWN`` if there is no state
        """
        ids = np.full(len(rows), UNKNOWN, np.int64)
        if self._n:
            for part in self.parts(len(rows)):
                ids[part] = self._nearest(self.scaled(rows[part]), 1)[:, 0]
        return ids

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

    def begin_state(self, mean: NDArray[np.float32], n_seen: float, nearest: int) -> int:
        """
        Return a new state, or ``UNKNOWN`` if there is no room.

        :param mean: the mean of its observations in units of deviations, shape ``(n_inputs,)``
        :param n_seen: of how many observations it is
        :param nearest: the state from which it inherits. ``UNKNOWN``: from what is usual
        """
        if self._n == self.capacity:
            return UNKNOWN
        if nearest == UNKNOWN:
            others = np.zeros(len(mean), np.float32)
            counts = np.full(len(mean), MOST_AVERAGED, np.float32)
        else:
            others = self._means[nearest]
            counts = self._counts[nearest]
        is_alike = np.square(mean - others) / (1.0 / n_seen + 1.0 / counts) <= _INHERITED
        both = counts + n_seen
        merged = others + (mean - others) * (n_seen / both)
        self._append(
            np.where(is_alike, merged, mean),
            np.where(is_alike, np.minimum(both, MOST_AVERAGED), n_seen),
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
        np.minimum(counts + 1.0, MOST_AVERAGED, out=counts)
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
        Return how far observations are from states, by the inputs that differ most. What is farther
        away than 1 does not look like the state.

        :param rows: numbers of n observations, shape ``(n, n_inputs)``
        :param ids: the state of each, shape ``(n,)``
        :return: shape ``(n,)``
        """
        found = np.zeros(len(rows))
        for part in self.parts(len(rows)):
            found[part] = self._excess(self.scaled(rows[part]), ids[part])
        return found

    def with_noise(self, noise: Noise, usual: NDArray[np.float32]) -> Looks:
        """
        Return the same states in a world in which noise has been measured anew.

        :param noise: how much observations of one state differ
        :param usual: what inputs mostly are, shape ``(n_inputs,)``
        """
        looks = Looks(noise, usual, self.capacity)
        pairs = zip(looks.scaled(self.means), self._counts, self._n_seen, strict=False)
        for mean, counts, n_seen in pairs:
            looks._append(mean, counts, float(n_seen))
        return looks

    def get_state(self) -> dict[str, Any]:
        """
        Return all that is known, for :meth:`of_state`.

        :return: numbers and copies of arrays, by their names
        """
        return {
            "capacity": self.capacity,
            "usual": self.usual.copy(),
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
        usual = np.array(state["usual"], np.float32)
        means = np.array(state["means"], np.float32)
        counts = np.array(state["counts"], np.float32)
        n_seen = np.array(state["n_seen"], np.float32)
        noise = Noise(
            np.array(state["variances"], np.float32),
            np.array(state["limits"], np.float64),
            np.array(state["widest"], np.float64),
        )
        capacity = int(state["capacity"])
        fit = means.shape == counts.shape == (len(n_seen), len(usual))
        if not fit or noise.variances.shape != usual.shape or len(n_seen) > capacity:
            raise ValueError(
                f"looks of at most {capacity} states with {len(usual)} inputs must have as many "
                f"variances, means and counts, got {noise.variances.shape}, {means.shape} and "
                f"{counts.shape}"
            )
        above_zero = np.concatenate([noise.variances, noise.limits, counts.ravel(), n_seen])
        is_valid = bool(np.isfinite(means).all() and np.isfinite(usual).all())
        if not is_valid or not (above_zero > 0.0).all() or noise.limits.shape != (2,):
            raise ValueError(
                "looks must have finite means, two limits, and variances, limits and counts above 0"
            )
        looks = cls(noise, usual, capacity)
        looks._means = means
        looks._counts = counts
        looks._n_seen = n_seen
        # The sums are the same to the last bit only if they are made one by one.
        looks._squares = np.array([np.square(mean).sum() for mean in means], np.float32)
        looks._n = len(means)
        return looks
