"""
Scores of many games made comparable, summarized, and with intervals of a few seeds.

Scores are arrays of shape (..., n_runs, n_games): a row a seed, a column a game. A published table
is one row. A statistic has the shape (...). The statistics of several runs follow Agarwal et al.
(2021), Deep Reinforcement Learning at the Edge of the Statistical Precipice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

Scores: TypeAlias = NDArray[np.float64]
Statistic: TypeAlias = Callable[..., Scores]

DATA = Path(__file__).parent / "data"

REFERENCES = ("atari_human_random_49", "minatar")
"""
Tables in ``data`` with the scores that count as 0 and as 1, in this order of columns.

Other games need one more table.
"""


def read_table(name: str) -> pd.DataFrame:
    """
    Read a table of scores.

    :param name: name of a CSV file in ``data``, without its ending
    :return: a row a game
    """
    return pd.read_csv(DATA / f"{name}.csv", index_col="game", float_precision="round_trip")


def references(games: Sequence[str]) -> pd.DataFrame:
    """
    Return the scores that count as 0 and as 1.

    :param games: names of games, all of one table
    :return: a row a game: the score of random play, and that of a human or a published agent
    :raises ValueError: if a game is in no table
    """
    tables = [read_table(name) for name in REFERENCES]
    table = next((each for each in tables if each.index.isin(games).any()), tables[0])
    missing = [game for game in games if game not in table.index]
    if missing:
        raise ValueError(
            f"no scores of {', '.join(missing)}; there are those of {', '.join(table.index)}"
        )
    return table.loc[list(games)]


def normalized(scores: ArrayLike, games: Sequence[str]) -> Scores:
    """
    Normalize raw scores: 0 is random play and 1 a human (Mnih et al. 2015).

    :param scores: raw scores, shape (..., n_games)
    :param games: names of the games, in the order of the last axis
    :return: normalized scores of the same shape
    :raises ValueError: if the last axis has another length, or a game is unknown
    """
    raw = np.asarray(scores, dtype=np.float64)
    if raw.shape[-1:] != (len(games),):
        raise ValueError(
            f"scores must be of shape (..., {len(games)}), one for each game, got {raw.shape}"
        )
    zero, one = references(games).to_numpy().T
    return np.asarray((raw - zero) / (one - zero))


def mean(scores: Scores) -> Scores:
    """
    Return the mean over all runs of all games.

    :param scores: shape (..., n_runs, n_games)
    :return: shape (...)
    """
    return np.asarray(scores.mean(axis=(-2, -1)))


def median(scores: Scores) -> Scores:
    """
    Return the median over games of their means over runs.

    :param scores: shape (..., n_runs, n_games)
    :return: shape (...)
    """
    return np.asarray(np.median(scores.mean(axis=-2), axis=-1))


def count_above(scores: Scores, threshold: float = 0.5) -> Scores:
    """
    Count the games whose mean over runs exceeds a threshold.

    :param scores: shape (..., n_runs, n_games)
    :param threshold: normalized score; by default half of a human's
    :return: shape (...)
    """
    # A mean that is 0.5 by its digits must not exceed 0.5 by its last bit.
    means = np.round(scores.mean(axis=-2), 12)
    return np.asarray((means > threshold).sum(axis=-1), dtype=np.float64)


def interquartile_mean(scores: Scores) -> Scores:
    """
    Return the mean of all runs of all games without the lowest and the highest quarter.

    :param scores: shape (..., n_runs, n_games)
    :return: shape (...)
    """
    from scipy import stats  # Importing it takes a second.

    pooled = scores.reshape(*scores.shape[:-2], -1)
    return np.asarray(stats.trim_mean(pooled, 0.25, axis=-1))


def optimality_gap(scores: Scores) -> Scores:
    """
    Return by how much scores fall short of a human's on average.

    Scores above a human's count as one.

    :param scores: shape (..., n_runs, n_games)
    :return: shape (...)
    """
    return np.asarray(1.0 - np.minimum(scores, 1.0).mean(axis=(-2, -1)))


def probability_of_improvement(scores: Scores, others: Scores) -> Scores:
    """
    Return the chance that a run beats one of another agent, as a mean over games.

    A tie counts half.

    :param scores: shape (..., n_runs, n_games)
    :param others: those of the other agent, shape (..., n_other_runs, n_games)
    :return: shape (...)
    """
    difference = np.sign(scores[..., :, None, :] - others[..., None, :, :])
    return np.asarray((0.5 + difference / 2).mean(axis=(-3, -2, -1)))


def relative_improvement(scores: ArrayLike, others: ArrayLike, games: Sequence[str]) -> Scores:
    """
    Return a bar for each game: (score - other) / (max(human, other) - random), of means over runs.

    The formula is that of Wang et al. (2016), Dueling Network Architectures. The paper has such
    bars and does not give their formula. This one stays finite where the other agent plays no
    better than random.

    :param scores: raw scores, shape ([n_runs,] n_games)
    :param others: raw scores of the other agent, shape ([n_other_runs,] n_games)
    :param games: names of the games, in the order of the last axis
    :return: shape (n_games,)
    """
    ours = np.atleast_2d(np.asarray(scores, dtype=np.float64)).mean(axis=0)
    theirs = np.atleast_2d(np.asarray(others, dtype=np.float64)).mean(axis=0)
    random, human = references(games).to_numpy().T
    return np.asarray((ours - theirs) / (np.maximum(human, theirs) - random))


def interval(statistic: Statistic, *scores: Scores, resamples: int = 2000) -> tuple[Any, Any, Any]:
    """
    Return a statistic of scores, and the low and the high end of its 95% interval.

    The interval is a percentile bootstrap in which runs are drawn with replacement within each game
    of each agent. It speaks of other seeds, and not of other games.

    :param statistic: function of as many arrays of scores as are given
    :param scores: scores of each agent, shape (..., n_runs, n_games) with at least two runs
    :param resamples: number of draws
    :return: three arrays of shape (...)
    :raises ValueError: if scores have another shape, or are not finite
    """
    for each in scores:
        if each.ndim < 2 or each.shape[-2] < 2 or not np.isfinite(each).all():
            raise ValueError(
                "scores must be finite and of shape (..., n_runs >= 2, n_games), "
                f"got shape {each.shape}"
            )
    ends = np.cumsum([each.shape[-1] for each in scores])[:-1]

    def of_columns(*columns: Scores, axis: int) -> Scores:
        """Compute the statistic of samples that scipy has drawn."""
        # scipy has runs on the last axis; games come after them here, agent by agent.
        assert axis == -1
        bounds = zip([0, *ends], [*ends, len(columns)], strict=True)
        parts = [columns[start:end] for start, end in bounds]
        return statistic(*(np.stack(part, axis=-1) for part in parts))

    from scipy import stats  # Importing it takes a second.

    # Each game of each agent is a sample of its own.
    samples = [column for each in scores for column in np.moveaxis(each, -1, 0)]
    found = stats.bootstrap(
        samples,
        of_columns,
        axis=-1,
        vectorized=True,
        n_resamples=resamples,
        batch=500,
        method="percentile",
        rng=np.random.default_rng(0),
    )
    return (
        statistic(*scores)[()],
        found.confidence_interval.low[()],
        found.confidence_interval.high[()],
    )


def estimated(name: str, statistic: Statistic, *scores: Scores) -> dict[str, float]:
    """
    Return the columns of a table with a statistic and its interval, see :func:`interval`.

    :param name: name of the column with the statistic
    :param statistic: function of as many arrays of scores as are given
    :param scores: scores of each agent, shape (n_runs, n_games)
    :return: ``name``, and ``name_low`` and ``name_high`` if each agent has two runs or more
    """
    if min(len(each) for each in scores) < 2:
        return {name: float(statistic(*scores))}
    columns = (name, f"{name}_low", f"{name}_high")
    return dict(zip(columns, map(float, interval(statistic, *scores)), strict=True))


def random_score(game: str) -> float:
    """
    Return the score of random play.

    :param game: a game, or the id of an environment
    :return: the score; 0, if there is none in the tables of scores
    """
    tables = [read_table(name) for name in REFERENCES]
    return next((float(each["random"][game]) for each in tables if game in each.index), 0.0)
