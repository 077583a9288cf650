"""How states look is found from observations alone."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sb3_manygoals.world.inputs import Inputs
from sb3_manygoals.world.looks import MOST_AVERAGED, Looks
from sb3_manygoals.world.noise import (
    Noise,
    means_of_most,
    noise_of_states,
    noise_of_steps,
    second_group,
)
from sb3_manygoals.world.states import UNKNOWN

MOST_STATES = 0.5
"""States do not recur if there are more of them than this share of what was seen."""

# Each observation is compared with all numbers of all states. With more numbers than this, an
# encoder costs less.
_MOST_INPUTS = 10_000
_MOST_NUMBERS = 60_000_000
# Noise is measured in so many steps, and then in so many states of which so many observations are
# known. States are found in so many rounds, in at most so many observations.
_STEPS_TO_MEASURE = 4_000
_STATES_TO_MEASURE = 256
_EXAMPLES_TO_MEASURE = 8
_ROUNDS = 3
_OBSERVATIONS_TO_FIT = 60_000
# It is measured in at most so many numbers, to bound memory.
_NUMBERS_TO_MEASURE = 20_000_000
# A state is split by so many of its observations at most.
_MOST_EXAMPLES = 200
# States of which fewer observations are known are found anew in each round.
_FEWEST_EXAMPLES = 4
# Two states are one if their means differ by less than this many variances, besides noise.
_SAME = 1.0
# States are compared with each other so many at a time, to bound memory.
_STATES_AT_A_TIME = 512


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
    :return: the states. None if the noise of inputs is not independent, if observations are too
        small to test that, if there is too much to compare, or if looks hardly recur
    """
    if len(inputs) > _MOST_INPUTS:
        return None
    chosen = _evenly(len(steps[0]), min(_STEPS_TO_MEASURE, _NUMBERS_TO_MEASURE // len(inputs)))
    rows = inputs.flat(observations[steps[0][chosen]])
    noise = noise_of_steps(rows, inputs.flat(observations[steps[1][chosen]]), inputs.units, rng)
    if noise is None:
        return None
    usual = np.median(rows, axis=0).astype(np.float32)
    places = _evenly(len(observations), _OBSERVATIONS_TO_FIT)
    ids = None
    if known is not None:
        looks = known.with_noise(noise, usual)
        ids = _add_all(looks, observations, places, inputs)
    # States that are not seen any more may have taken all the room.
    if ids is None or (ids == UNKNOWN).any():
        looks = Looks(noise, usual, capacity)
        ids = _add_all(looks, observations, places, inputs)
    for _ in range(_ROUNDS):
        if ids is None:
            return None
        groups = [places[group] for group in _groups(ids, len(looks))]
        better = _round(looks, observations, groups, inputs)
        if better is None:
            break
        looks = better
        ids = _add_all(looks, observations, places, inputs)
    if len(places) < len(observations) and ids is not None:
        ids = _add_all(looks, observations, np.arange(len(observations)), inputs)
    if ids is None or (ids == UNKNOWN).all():
        return None
    ids = _merge(looks, ids)
    distances = np.zeros(len(ids))
    told = np.flatnonzero(ids != UNKNOWN)
    for part in looks.parts(len(told)):
        some = told[part]
        distances[some] = looks.distances(inputs.flat(observations[some]), ids[some])
    return FoundLooks(looks, ids, distances)


def _evenly(n: int, most: int) -> NDArray[np.int64]:
    """Return at most so many of n places, evenly."""
    return np.unique(np.linspace(0, n - 1, min(n, most), dtype=np.int64))


def _add_all(
    looks: Looks, observations: NDArray[Any], places: NDArray[np.int64], inputs: Inputs
) -> NDArray[np.int64] | None:
    """
    Return the states of the observations at these places, and learn from them. None if there are
    too many states.
    """
    most = min(MOST_STATES * len(observations), _MOST_NUMBERS / len(inputs))
    ids = np.zeros(len(places), np.int64)
    for part in looks.parts(len(places)):
        ids[part] = looks.add(inputs.flat(observations[places[part]]))
        if len(looks) > most:
            return None
    return ids


def _groups(ids: NDArray[np.int64], n_states: int) -> list[NDArray[np.int64]]:
    """Return the places at which each state is, those of state 0 first."""
    order = np.argsort(ids, kind="stable")
    begins = np.searchsorted(ids[order], np.arange(n_states + 1))
    return [order[begin:end] for begin, end in itertools.pairwise(begins)]


def _round(
    looks: Looks, observations: NDArray[Any], groups: list[NDArray[np.int64]], inputs: Inputs
) -> Looks | None:
    """
    Measure noise in states, split and merge them, and return how they look.

    :param groups: the observations of each state, by their rows
    :return: None if no state is known well enough to measure noise
    """
    told = [group for group in groups if len(group) >= _EXAMPLES_TO_MEASURE]
    if not told:
        return None
    chosen = _evenly(len(told), _STATES_TO_MEASURE)
    n_examples = max(_NUMBERS_TO_MEASURE // (len(inputs) * len(chosen)), _EXAMPLES_TO_MEASURE)
    n_examples = min(n_examples, _MOST_EXAMPLES)
    measured = [_examples(observations, told[place], n_examples, inputs) for place in chosen]
    better = Looks(noise_of_states(measured, inputs.units), looks.usual, looks.capacity)
    pure = _split(better, observations, groups, inputs)
    # The states that are known best come first, so that others are merged into them.
    pure.sort(key=lambda state: (-len(state[0]), state[0][0]))
    sizes = np.array([min(len(group), MOST_AVERAGED) for group, _ in pure], np.float32)
    means = better.scaled(np.stack([mean for _, mean in pure]))
    is_left = _same_as(means, sizes, better.noise) == np.arange(len(means))
    for state in np.flatnonzero(is_left):
        nearest = int(better.nearest(pure[state][1][None])[0])
        better.begin_state(means[state], float(sizes[state]), nearest)
    return better


def _examples(
    observations: NDArray[Any], group: NDArray[np.int64], most: int, inputs: Inputs
) -> NDArray[np.float32]:
    """Return the numbers of at most so many observations of a group."""
    return inputs.flat(observations[group[_evenly(len(group), most)]])


def _split(
    looks: Looks, observations: NDArray[Any], groups: list[NDArray[np.int64]], inputs: Inputs
) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """
    Split groups of observations until each one seems to be of one state.

    :return: groups that are not too small, and the mean of each one
    """
    waiting = [group for group in groups if len(group) >= _FEWEST_EXAMPLES]
    pure = []
    while waiting:
        group = waiting.pop()
        rows = _examples(observations, group, _MOST_EXAMPLES, inputs)
        is_second = None
        if len(group) >= _EXAMPLES_TO_MEASURE:
            is_second = second_group(rows, looks.noise)
        if is_second is not None:
            is_second = np.concatenate(
                [
                    _is_nearer_to_second(
                        inputs.flat(observations[group[part]]), rows, is_second, looks.noise
                    )
                    for part in looks.parts(len(group))
                ]
            )
            halves = [group[is_second], group[~is_second]]
            if all(len(half) for half in halves):
                # A half of few observations is found anew, with all that was seen.
                waiting += [half for half in halves if len(half) >= _FEWEST_EXAMPLES]
                continue
        pure.append((group, rows.mean(axis=0)))
    return pure


def _is_nearer_to_second(
    rows: NDArray[np.float32],
    examples: NDArray[np.float32],
    is_second: NDArray[np.bool_],
    noise: Noise,
) -> NDArray[np.bool_]:
    """Return which observations are nearer to the mean of the second group of examples."""
    first = examples[~is_second].mean(axis=0)
    second = examples[is_second].mean(axis=0)
    nearer: NDArray[np.bool_] = (rows - (first + second) / 2.0) @ (
        (second - first) / noise.variances
    ) > 0.0
    return nearer


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
    for at in range(0, len(means), _STATES_AT_A_TIME):
        part = np.arange(at, min(at + _STATES_AT_A_TIME, len(means)))
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
    sizes = np.minimum(n_seen[order], MOST_AVERAGED).astype(np.float32)
    same_as = np.zeros(len(looks), np.int64)
    same_as[order] = order[_same_as(looks.scaled(looks.means[order]), sizes, looks.noise)]
    kept = order[same_as[order] == order]
    kept.sort()
    looks.keep(kept)
    place = np.zeros(len(n_seen), np.int64)
    place[kept] = np.arange(len(kept))
    return np.where(is_known, place[same_as[ids]], UNKNOWN)
