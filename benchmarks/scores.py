"""
Scores of many games made comparable, summarized, and with the intervals that a few seeds allow.

Scores are arrays of shape (..., n_runs, n_games): a row a seed, a column a game. A published table is one row. What is said
about several runs follows Agarwal et al. (2021), Deep Reinforcement Learning at the Edge of the Statistical Precipice.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Scores: TypeAlias = NDArray[np.float64]
Statistic: TypeAlias = Callable[..., Scores]

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class ScoreTable:
    """
    A score for each game and column.

    :ivar games: their names
    :ivar columns: by name, scores, each of shape (n_games,)
    """

    games: tuple[str, ...]
    columns: Mapping[str, Scores]

    def select(self, games: Sequence[str]) -> ScoreTable:
        """
        :param games: names of some
        :return: the table of those, in that order
        :raises ValueError: if one is not there
        """
        missing = [game for game in games if game not in self.games]
        if missing:
            raise ValueError(f"no scores of {', '.join(missing)}; there are those of {', '.join(self.games)}")
        rows = [self.games.index(game) for game in games]
        return ScoreTable(tuple(games), {name: column[rows] for name, column in self.columns.items()})


def read_table(path: Path) -> ScoreTable:
    """
    :param path: of a CSV with the column ``game`` and others of numbers
    :return: what is in it
    :raises ValueError: if a cell is no number, or a game is there twice
    """
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    games = tuple(row.pop("game") for row in rows)
    if len(set(games)) < len(games):
        raise ValueError(f"{path} has a game twice: {', '.join(sorted(game for game in set(games) if games.count(game) > 1))}")
    try:
        return ScoreTable(games, {name: np.array([float(row[name]) for row in rows]) for name in rows[0]})
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} has a cell that is no number: {error}") from error


def references(games: Sequence[str]) -> tuple[Scores, Scores]:
    """
    :param games: names of some of the 49
    :return: scores of random play and of a human, each of shape (n_games,)
    :raises ValueError: if one is none of the 49
    """
    table = read_table(DATA / "atari_human_random_49.csv").select(games)
    return table.columns["random"], table.columns["human"]


def human_normalized(scores: ArrayLike, games: Sequence[str]) -> Scores:
    """
    Mnih et al. (2015): 0 is random play, 1 a human.

    :param scores: raw, shape (..., n_games)
    :param games: their names
    :return: (score - random) / (human - random), of the same shape
    :raises ValueError: if a game is none of the 49, or there are not as many scores
    """
    raw = np.asarray(scores, dtype=np.float64)
    if raw.shape[-1:] != (len(games),):
        raise ValueError(f"scores must be of shape (..., {len(games)}), one for each game, got {raw.shape}")
    random, human = references(games)
    return (raw - random) / (human - random)


def median(scores: Scores) -> Scores:
    """
    :param scores: shape (..., n_runs, n_games)
    :return: the median over games of their means over runs, shape (...)
    """
    return np.asarray(np.median(scores.mean(axis=-2), axis=-1))


def count_above(scores: Scores, threshold: float = 0.5) -> Scores:
    """
    :param scores: shape (..., n_runs, n_games)
    :param threshold: which a game must exceed
    :return: number of games whose mean over runs does, shape (...)
    """
    means = np.round(scores.mean(axis=-2), 12)  # one that is 0.5 by its digits must not be above it by its last bit
    return np.asarray((means > threshold).sum(axis=-1), dtype=np.float64)


def interquartile_mean(scores: Scores) -> Scores:
    """
    :param scores: shape (..., n_runs, n_games)
    :return: the mean of all runs of all games without the lowest and the highest quarter, shape (...)
    """
    from scipy import stats  # importing it takes a second

    pooled = scores.reshape(*scores.shape[:-2], -1)
    return np.asarray(stats.trim_mean(pooled, 0.25, axis=-1))


def optimality_gap(scores: Scores, target: float = 1.0) -> Scores:
    """
    :param scores: shape (..., n_runs, n_games)
    :param target: beyond which nothing is gained, 1 for as good as a human
    :return: by how much they fall short of it on average, shape (...); less is better
    """
    return np.asarray(target - np.minimum(scores, target).mean(axis=(-2, -1)))


def probability_of_improvement(scores: Scores, others: Scores) -> Scores:
    """
    :param scores: shape (..., n_runs, n_games)
    :param others: of another agent, in the same games, shape (..., n_other_runs, n_games)
    :return: the mean over games of the probability that a run is better than one of the other agent's, where a tie is half of
        it (the statistic of Mann and Whitney by its largest value), shape (...)
    """
    difference = np.sign(scores[..., :, None, :] - others[..., None, :, :])
    return np.asarray((0.5 + difference / 2).mean(axis=(-3, -2, -1)))


def relative_improvement(scores: ArrayLike, others: ArrayLike, games: Sequence[str]) -> Scores:
    """
    A bar for each game, as of Wang et al. (2016), Dueling Network Architectures: what is gained, by what the better of a human
    and the other agent has over random play. The paper has such bars and does not say how they are computed. This is the
    formula that was in use for these games: it does not explode where the other agent plays no better than random, and is
    not undefined in the games in which it scores 0.

    :param scores: raw, shape (n_runs, n_games) or (n_games,); means over runs are compared
    :param others: raw, of another agent, likewise
    :param games: their names
    :return: (score - other) / (max(human, other) - random), shape (n_games,)
    :raises ValueError: if a game is none of the 49
    """
    ours, theirs = (np.atleast_2d(np.asarray(each, dtype=np.float64)).mean(axis=0) for each in (scores, others))
    random, human = references(games)
    return np.asarray((ours - theirs) / (np.maximum(human, theirs) - random))


@dataclass(frozen=True)
class Estimate:
    """
    A statistic and its interval.

    :ivar value: of all runs
    :ivar low: lower end
    :ivar high: upper end
    """

    value: float
    low: float
    high: float


def interval(statistic: Statistic, *scores: Scores, level: float = 0.95, resamples: int = 2000, seed: int = 0) -> Estimate:
    """
    A percentile bootstrap, stratified: runs are drawn with replacement within each game of each agent by itself. It speaks of
    other seeds in the same games, and not of other games.

    :param statistic: a function of this module, or one that takes arrays as they do
    :param scores: its arguments, each of shape (n_runs, n_games)
    :param level: of confidence
    :param resamples: how many
    :param seed: of the draws
    :return: the estimate
    :raises ValueError: if there are fewer than two runs: then nothing can be said
    """
    for each in scores:
        if each.ndim != 2 or len(each) < 2 or not np.isfinite(each).all():
            raise ValueError(f"scores must be finite and of shape (n_runs >= 2, n_games), got shape {each.shape}")
    ends = np.cumsum([each.shape[1] for each in scores])[:-1]

    def of_columns(*columns: Scores, axis: int) -> Scores:
        assert axis == -1  # where scipy puts runs; games come after them here, agent by agent
        parts = [columns[start:end] for start, end in zip([0, *ends], [*ends, len(columns)], strict=True)]
        return statistic(*(np.stack(part, axis=-1) for part in parts))

    from scipy import stats  # importing it takes a second

    found = stats.bootstrap(
        [column for each in scores for column in each.T],  # each game of each agent is a sample of its own
        of_columns,
        vectorized=True,
        n_resamples=resamples,
        batch=500,
        confidence_level=level,
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    low, high = found.confidence_interval
    return Estimate(float(statistic(*scores)), float(low), float(high))
