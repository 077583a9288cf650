"""What goes on by itself over the resets of a world: clocks and distractors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_manygoals.world.contrastive import ContrastiveEncoder, train_encoder

# What goes on is predicted over so many steps.
_LAGS = (1, 4, 16, 64)
# The encoder of what goes on is small, and makes at most so many updates.
_N_FEATURES = 16
_N_HIDDEN = 128
_MOST_UPDATES = 1_000
# One of so many parts of all times is not learned from. It tells what was learned. A part is some
# steps in a row, so that there are parts of all of training.
_PARTS = 5
_STEPS_OF_PART = 100
_N_TESTS = 50
# There are so many pairs in a group, to learn from and to test with, or it is left out.
_FEWEST_PAIRS = 100
_FEWEST_TEST_PAIRS = 16
# What changes within an environment is told from so many pairs of it.
_FEWEST_OF_ENV = 8
# If more of the transitions than this seem to begin an episode, they are not in order of time.
_MOST_RESETS = 0.5
# If what is before a reset tells less than this about what is after it, in nats, nothing goes on.
_LEAST_GAIN = 0.1
# A batch of transitions that share what goes on is chosen from so many.
_CANDIDATES = 16_384

Draw = Callable[[np.random.Generator], NDArray[np.int64]]
"""A function that draws the rows of a batch."""


class Pairs(NamedTuple):
    """
    Pairs of observations, the first before a reset of the world and the second after it.

    Groups of pairs have one lag and one number of steps since the reset. Within a group, only what
    goes on over resets tells which observations are a pair.
    """

    places: NDArray[np.int64]
    """The observations before resets, by their rows, shape (n,)."""
    lags: NDArray[np.int64]
    """The lag of each pair, by its number, shape (n,)."""
    next_places: NDArray[np.int64]
    """The observations after resets, by their rows, shape (n,)."""
    envs: NDArray[np.int64]
    """The environment of each pair, by its number, shape (n,)."""
    groups: list[list[slice]]
    """The pairs of each group, by lags. Lags without groups are left out."""

    def draw(self, batch_size: int) -> Draw:
        """
        Return a function that draws pairs of one group.

        :param batch_size: number of pairs
        """

        def rows(rng: np.random.Generator) -> NDArray[np.int64]:
            """Draw a lag, then one of its groups, then pairs."""
            groups = self.groups[rng.integers(len(self.groups))]
            group = groups[rng.integers(len(groups))]
            drawn: NDArray[np.int64] = rng.integers(group.start, group.stop, size=batch_size)
            return drawn

        return rows


def steps_since_reset(
    places: NDArray[np.integer[Any]], next_places: NDArray[np.integer[Any]], n_envs: int
) -> NDArray[np.int64]:
    """
    Return how many steps each transition is after a reset of its environment.

    :param places: the observations in which actions were taken, by their rows, in order of time,
        of all environments in turn, shape (n,)
    :param next_places: the observations that they led to, by their rows, shape (n,)
    :param n_envs: number of environments
    :return: 0 for the first transition of an episode, shape (n / n_envs, n_envs)
    """
    begins = places.reshape(-1, n_envs)
    ends = next_places.reshape(-1, n_envs)
    is_first = np.ones(begins.shape, np.bool_)
    is_first[1:] = begins[1:] != ends[:-1]
    times = np.arange(len(begins))[:, None]
    firsts = np.maximum.accumulate(np.where(is_first, times, 0), axis=0)
    since: NDArray[np.int64] = times - firsts
    return since


def pairs_over_resets(
    places: NDArray[np.integer[Any]],
    next_places: NDArray[np.integer[Any]],
    n_envs: int,
    fewest: int,
    times: NDArray[np.bool_] | None = None,
) -> Pairs:
    """
    Find pairs of observations before and after resets.

    :param places: the observations in which actions were taken, by their rows, in order of time,
        of all environments in turn, shape (n,)
    :param next_places: the observations that they led to, by their rows, shape (n,)
    :param n_envs: number of environments
    :param fewest: groups of fewer pairs are left out
    :param times: at which times the second observations may be, shape (n / n_envs,). None: at all
    :return: the pairs
    """
    since = steps_since_reset(places, next_places, n_envs)
    begins = places.reshape(-1, n_envs).astype(np.int64)
    ends = next_places.reshape(-1, n_envs).astype(np.int64)
    is_used = np.ones(len(since), np.bool_) if times is None else times
    # A transition whose episode began with the memory is after no reset.
    unknown = np.arange(len(since))[:, None] - since == 0
    found: list[tuple[NDArray[np.int64], ...]] = []
    groups: list[list[slice]] = []
    n_pairs = 0
    for number, lag in enumerate(_LAGS):
        of_lag = []
        for steps in range(lag):
            is_pair = (since == steps) & is_used[:, None] & ~unknown
            is_pair[:lag] = False
            when, envs = np.nonzero(is_pair)
            if len(when) < fewest:
                continue
            before = begins[when - lag, envs]
            found.append((before, np.full(len(when), number), ends[when, envs], envs))
            of_lag.append(slice(n_pairs, n_pairs + len(when)))
            n_pairs += len(when)
        if of_lag:
            groups.append(of_lag)
    if not found:
        nothing = np.zeros(0, np.int64)
        return Pairs(nothing, nothing, nothing, nothing, [])
    before, lags, after, of_envs = map(np.concatenate, zip(*found, strict=True))
    return Pairs(before, lags, after, of_envs, groups)


class Autonomous(NamedTuple):
    """What was found to go on by itself."""

    gain: float
    """
    How much an observation before a reset tells about one after it, in nats. At most that of the
    best lag, 0 if nothing goes on, and NaN if there are too few resets to tell.
    """
    codes: NDArray[np.float32] | None
    """What goes on, as codes of all observations, shape (m, features). None if nothing does."""


def find_autonomous(
    observation_space: spaces.Space[Any],
    observations: NDArray[Any],
    places: NDArray[np.integer[Any]],
    next_places: NDArray[np.integer[Any]],
    n_envs: int,
    n_updates: int,
    batch_size: int,
    learning_rate: float,
    rng: np.random.Generator,
) -> Autonomous:
    """
    Find what goes on by itself, such as a clock or a distractor.

    A reset ends all that the agent has done. So what is seen before a reset tells something about
    what is seen after it only if something goes on. An encoder learns to tell it, as
    :class:`~sb3_manygoals.world.contrastive.ContrastiveEncoder` does, with lags in place of
    actions. Each batch has pairs of one lag and one number of steps since the reset, because time
    since the reset tells much about what is seen, too.

    :param observation_space: space of the observations
    :param observations: all that was seen, shape ``(m, *observation_space.shape)``
    :param places: the observations in which actions were taken, by their rows, in order of time,
        of all environments in turn, shape ``(n,)``
    :param next_places: the observations that they led to, by their rows, shape ``(n,)``
    :param n_envs: number of environments
    :param n_updates: greatest number of updates
    :param batch_size: pairs in an update
    :param learning_rate: greatest step size
    :param rng: chooses pairs
    :return: what was found
    """
    since = steps_since_reset(places, next_places, n_envs)
    if (since == 0).mean() > _MOST_RESETS:
        return Autonomous(np.nan, None)
    is_test = np.arange(len(since)) // _STEPS_OF_PART % _PARTS == _PARTS - 1
    streams = (places, next_places, n_envs)
    train = pairs_over_resets(*streams, _FEWEST_PAIRS, ~is_test)
    test = pairs_over_resets(*streams, _FEWEST_TEST_PAIRS, is_test)
    if not train.groups or not test.groups:
        return Autonomous(np.nan, None)
    encoder = ContrastiveEncoder(
        observation_space, len(_LAGS), _N_FEATURES, _N_HIDDEN, int(rng.integers(2**31))
    )
    encoder.fit_inputs(observations)
    train_encoder(
        encoder,
        observations,
        train[:3],
        min(n_updates, _MOST_UPDATES),
        batch_size,
        learning_rate,
        rng,
        train.draw(batch_size),
    )
    gain = _gain(encoder, observations, test, batch_size, rng)
    if not gain >= _LEAST_GAIN:
        return Autonomous(gain if np.isnan(gain) else 0.0, None)
    codes = encoder.encode(observations)
    return Autonomous(gain, codes / max(float(codes.std(axis=0).mean()), 1e-6))


@th.no_grad()
def _gain(
    encoder: ContrastiveEncoder,
    observations: NDArray[Any],
    pairs: Pairs,
    batch_size: int,
    rng: np.random.Generator,
) -> float:
    """
    Return how much better than chance pairs are found, for the lag with which this is best.

    They are found among pairs of one group. And they must be found among pairs of one environment,
    too: what never changes in an environment, such as its layout, does not go on, it stays.
    """

    def gain_of(rows: NDArray[np.int64]) -> float:
        """Return how much better than chance these pairs are found among each other."""
        loss = encoder.loss(
            observations[pairs.places[rows]],
            pairs.lags[rows],
            observations[pairs.next_places[rows]],
        )
        return float(np.log(len(rows)) - loss)

    gains: dict[int, list[float]] = {}
    for _ in range(_N_TESTS):
        of_lag = pairs.groups[rng.integers(len(pairs.groups))]
        group = of_lag[rng.integers(len(of_lag))]
        rows = group.start + rng.permutation(group.stop - group.start)[:batch_size]
        gains.setdefault(int(pairs.lags[group.start]), []).append(gain_of(rows))
    means = {lag: float(np.mean(each)) for lag, each in gains.items()}
    lag = max(means, key=lambda each: means[each])
    within = []
    for env in rng.permutation(np.unique(pairs.envs))[:_N_TESTS]:
        rows = np.flatnonzero((pairs.lags == lag) & (pairs.envs == env))
        if len(rows) >= _FEWEST_OF_ENV:
            within.append(gain_of(rng.permutation(rows)[:batch_size]))
    return min(means[lag], float(np.mean(within))) if within else np.nan


def draw_alike(codes: NDArray[np.float32], batch_size: int) -> Draw:
    """
    Return a function that draws transitions which share what goes on. So it does not help to tell
    them apart, and drops out of what is learned from them.

    :param codes: what goes on, of the observation that each transition led to, shape
        (n, features)
    :param batch_size: number of transitions
    """
    all_codes = th.from_numpy(codes)

    def rows(rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw a transition, and those of many others that are nearest to it."""
        center = all_codes[int(rng.integers(len(codes)))]
        # One transition twice would be taken for a wrong one.
        some = np.unique(rng.integers(len(codes), size=max(_CANDIDATES, batch_size)))
        distances = (all_codes[some] - center).square().sum(1)
        n_drawn = min(batch_size, len(some))
        places = distances.topk(n_drawn, largest=False, sorted=False).indices.numpy()
        nearest: NDArray[np.int64] = some[places]
        return nearest

    return rows
