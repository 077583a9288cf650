"""Noise of observations whose numbers have noise of their own, each independent of the others."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.spatial.distance import pdist
from scipy.special import chdtri

from sb3_manygoals.world.inputs import places_of_units

INPUTS_TO_COMPARE = (2, 8)
"""
An observation differs from a state by the mean of so many inputs, those that differ most. What
tells two states apart is a small part of a picture. It may be a few inputs that differ much, or
more of them that differ less.
"""

# With fewer inputs than this, it cannot be tested whether they are independent.
FEWEST_INPUTS = 30
# Most steps leave an input as it is. So this quantile of the differences between observations that
# follow each other is due to noise, in each input.
_SHARE_UNCHANGED = 0.5
_QUANTILE_OF_NORMAL = float(chdtri(1, 1.0 - _SHARE_UNCHANGED))
# To test whether inputs are independent, squares count as at most this multiple of the variance, so
# that what a step changes hardly counts. Their mean over all inputs may vary so many times as much
# as if inputs were independent.
_MOST_OF_A_SQUARE = 2.0
_MOST_DEPENDENT = 1.5
# Among differences between observations that follow each other, the least ones are of steps that
# change nothing. At first, an observation is strange if it differs by this multiple of them.
_SHARE_SURELY_UNCHANGED = 0.05
_STRANGE_AT_FIRST = 1.75
# Later, an observation is strange if it differs by this multiple of what nearly all of a state do.
_STRANGE = 1.5
_SHARE_USUAL = 0.99
# The states whose inputs vary least are taken to be pure. A state may be impure if its inputs vary
# by this multiple of what is the most in these.
_SHARE_PURE = 0.25
_IMPURE = 1.5
# Two groups of the observations of a state are states of their own if the means of an input differ
# by so many variances. Groups into which noise alone is cut differ by about three at most.
_LEAST_DIFFERENCE = 9.0
_FEWEST_OF_GROUP = 2
# Of each state, so many observations tell how much inputs vary in all.
_FEW = 8
# An input varies less than it is taken to do in this share of the states.
_SHARE_VARYING_LESS = 0.75
# Pixels have one unit. The noise of those that are nearly black or white is cut off, so they vary
# less than when they show something else. Therefore each is taken to vary at least as much as this
# share of all of them do.
_SHARE_OF_PIXELS = 0.9
# An input that hardly varies within states, in relation to its variance in all, is taken to vary by
# this share of it. The most extreme numbers do not count in that. Numbers that are larger in units
# of noise than this allows could not be compared in single precision.
_NO_VARIANCE = 1e-8
_LEAST_VARIANCE = 1e-3
_SHARES_OF_RANGE = (0.05, 0.95)
_RANGE_OF_NORMAL = 3.29
_TINY = 1e-12
# What varies less, in relation to its greatest number, may be constant but for errors of rounding.
_ROUNDING = 1e-6


class Noise(NamedTuple):
    """How much observations of one state differ."""

    variances: NDArray[np.float32]
    """The variance of each input within a state, shape ``(n_inputs,)``."""
    limits: NDArray[np.float64]
    """
    An observation that differs more than this from a state is of another one, shape ``(2,)``: one
    limit for each of :data:`INPUTS_TO_COMPARE`.
    """
    widest: NDArray[np.float64]
    """A state whose inputs vary more than this may be several states, shape ``(2,)``."""


def means_of_most(squares: NDArray[np.floating]) -> NDArray[np.float64]:
    """
    Return the means of the greatest numbers of each row.

    :param squares: shape ``(n, n_inputs)``
    :return: one mean for each of :data:`INPUTS_TO_COMPARE`, shape ``(n, 2)``
    """
    n_most = min(INPUTS_TO_COMPARE[-1], squares.shape[1])
    most = np.partition(squares, -n_most, axis=1)[:, -n_most:]
    most = np.sort(most, axis=1)[:, ::-1]
    return np.stack([most[:, :n].mean(axis=1, dtype=np.float64) for n in INPUTS_TO_COMPARE], axis=1)


def noise_of_steps(
    rows: NDArray[np.float32],
    next_rows: NDArray[np.float32],
    units: NDArray[np.integer[Any]],
    rng: np.random.Generator,
) -> Noise | None:
    """
    Measure noise before any state is known, from observations that follow each other.

    :param rows: numbers of n observations, shape ``(n, n_inputs)``
    :param next_rows: numbers of the observations that followed, shape ``(n, n_inputs)``
    :param units: the unit of each input, shape ``(n_inputs,)``. ``NO_UNIT`` for its own
    :param rng: random generator
    :return: the noise. None if the noise of inputs is not independent, or that cannot be tested
    """
    n_inputs = rows.shape[1]
    if n_inputs < FEWEST_INPUTS or len(rows) < 2:
        return None
    # Numbers that are too large for squares are not independent.
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.square(next_rows - rows) / 2.0
        variances = np.quantile(squares, _SHARE_UNCHANGED, axis=0) / _QUANTILE_OF_NORMAL
        variances = _at_least(variances, rows, units)
        squares /= variances
    if not np.isfinite(squares).all():
        return None
    if not _are_independent(squares, rng):
        return None
    differences = means_of_most(squares)
    limits = _STRANGE_AT_FIRST * np.quantile(differences, _SHARE_SURELY_UNCHANGED, axis=0)
    # Where there is no noise, observations recur.
    return Noise(variances, limits, limits) if (limits > 0.0).all() else None


def _are_independent(squares: NDArray[np.float32], rng: np.random.Generator) -> bool:
    """Return whether the mean of a row varies as it does if columns are independent."""
    cut = np.minimum(squares, _MOST_OF_A_SQUARE)
    shuffled = np.stack([rng.permutation(column) for column in cut.T], axis=1)
    alone = float(shuffled.mean(axis=1).std())
    return bool(cut.mean(axis=1).std() <= _MOST_DEPENDENT * max(alone, _TINY))


def noise_of_states(groups: list[NDArray[np.float32]], units: NDArray[np.integer[Any]]) -> Noise:
    """
    Measure noise within states.

    :param groups: numbers of k observations of each state, shape ``(k, n_inputs)``, at least two
    :param units: the unit of each input, shape ``(n_inputs,)``. ``NO_UNIT`` for its own
    :return: the noise
    """
    within = np.stack([rows.var(axis=0, ddof=1) for rows in groups])
    # This does not heed the few states in which an input varies because they are impure.
    variances = np.quantile(within, _SHARE_VARYING_LESS, axis=0)
    variances = _at_least(variances, np.concatenate([rows[:_FEW] for rows in groups]), units)
    spreads = means_of_most(within / variances)
    pure = np.quantile(spreads, _SHARE_PURE, axis=0)
    differences = np.concatenate(
        [
            differences_from_mean(rows, variances)
            for rows, spread in zip(groups, spreads, strict=True)
            if (spread <= pure).any()
        ]
    )
    limits = _STRANGE * np.quantile(differences, _SHARE_USUAL, axis=0)
    return Noise(variances, np.maximum(limits, _TINY), _IMPURE * pure)


def _at_least(
    variances: NDArray[np.floating], seen: NDArray[np.float32], units: NDArray[np.integer[Any]]
) -> NDArray[np.float32]:
    """
    Return variances that are not too small.

    :param variances: as they were measured, shape (n_inputs,)
    :param seen: what was seen, shape (n, n_inputs)
    """
    low, high = np.quantile(seen, _SHARES_OF_RANGE, axis=0)
    total = np.square((high - low) / _RANGE_OF_NORMAL)
    total = np.where(total > 0.0, total, seen.var(axis=0))
    result = np.where(variances <= _NO_VARIANCE * total, _LEAST_VARIANCE * total, variances)
    for places in places_of_units(units):
        least = max(
            float(np.quantile(variances[places], _SHARE_OF_PIXELS)),
            _LEAST_VARIANCE * float(total[places].mean()),
        )
        result[places] = np.maximum(result[places], least)
    # What never varied is taken to vary as others do. An input of a small unit does vary.
    rounding = np.square(_ROUNDING * np.abs(seen).max(axis=0))
    varies = result > np.minimum(rounding, _TINY)
    if not varies.all():
        result[~varies] = np.median(result[varies]) if varies.any() else 1.0
    return result.astype(np.float32)


def differences_from_mean(
    rows: NDArray[np.float32], variances: NDArray[np.float32]
) -> NDArray[np.float64]:
    """
    Return how far observations of a state are from their mean.

    :param rows: numbers of n observations, shape ``(n, n_inputs)``, at least two
    :param variances: variance of each input, shape ``(n_inputs,)``
    :return: shape ``(n, 2)``
    """
    n = len(rows)
    # Each observation is a part of the mean that it is compared with.
    squares = np.square(rows - rows.mean(axis=0)) / variances * (n / (n - 1))
    return means_of_most(squares)


def second_group(rows: NDArray[np.float32], noise: Noise) -> NDArray[np.bool_] | None:
    """
    Find out whether observations that are taken for one state are of two.

    :param rows: numbers of n observations, shape ``(n, n_inputs)``, at least two
    :param noise: how much observations of one state differ
    :return: which of them are of a second state, shape ``(n,)``. None if they are of one
    """
    spread = rows.var(axis=0, ddof=1) / noise.variances
    if (means_of_most(spread[None])[0] <= noise.widest).all():
        return None
    most = np.argsort(spread)[-INPUTS_TO_COMPARE[-1] :]
    tree = linkage(pdist(rows[:, most] / np.sqrt(noise.variances[most])), "ward")
    is_second: NDArray[np.bool_] = cut_tree(tree, 2)[:, 0] == 1
    n_least = min(int(is_second.sum()), int((~is_second).sum()))
    if n_least < _FEWEST_OF_GROUP:
        return None
    offsets = rows[is_second].mean(axis=0) - rows[~is_second].mean(axis=0)
    greatest = float((np.square(offsets) / noise.variances).max())
    return is_second if greatest > _LEAST_DIFFERENCE * (1.0 + 1.0 / n_least) else None
