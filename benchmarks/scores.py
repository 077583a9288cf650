"""
Scores of many games made comparable, summarized, and with the intervals that a few seeds allow.

Scores are arrays of shape (..., n_runs, n_games): a row a seed, a column a game. A published table is one row. A statistic
has the shape (...). What is said about several runs follows Agarwal et al. (2021), Deep Reinforcement Learning at the Edge of
the Statistical Precipice.
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
"""Tables in ``data`` of the scores that count as 0 and as 1, in this order of columns. Other games need one more table."""


def read_table(name: str) -> pd.DataFrame:
    """Scores of a CSV file in ``data``, named without its ending: a row a game."""
    return pd.read_csv(DATA / f"{name}.csv", index_col="game", float_precision="round_trip")


def references(games: Sequence[str]) -> pd.DataFrame:
    """A row a game: the scores that count as 0 and as 1: of random play, and of a human or a published agent."""
    tables = [read_table(name) for name in REFERENCES]
    table = next((each for each in tables if each.index.isin(games).any()), tables[0])
    missing = [game for game in games if game not in table.index]
    if missing:
        raise ValueError(
            f"no scores of {', '.join(missing)}; there are those of {', '.join(table.index)}"
        )
    return table.loc[list(games)]


def normalized(scores: ArrayLike, games: Sequence[str]) -> Scores:
    """Raw scores, shape (..., n_games), so that 0 is random play and 1 a human (Mnih et al. 2015)."""
    raw = np.asarray(scores, dtype=np.float64)
    if raw.shape[-1:] != (len(games),):
        raise ValueError(
            f"scores must be of shape (..., {len(games)}), one for each game, got {raw.shape}"
        )
    zero, one = references(games).to_numpy().T
    return np.asarray((raw - zero) / (one - zero))


def mean(scores: Scores) -> Scores:
    """Over all runs of all games."""
    return np.asarray(scores.mean(axis=(-2, -1)))


def median(scores: Scores) -> Scores:
    """Over games, of their means over runs."""
    return np.asarray(np.median(scores.mean(axis=-2), axis=-1))


def count_above(scores: Scores, threshold: float = 0.5) -> Scores:
    """The number of games whose mean over runs exceeds the threshold."""
    means = np.round(
        scores.mean(axis=-2), 12
    )  # one that is 0.5 by its digits must not be above it by its last bit
    return np.asarray((means > threshold).sum(axis=-1), dtype=np.float64)


def interquartile_mean(scores: Scores) -> Scores:
    """The mean of all runs of all games without the lowest and the highest quarter."""
    from scipy import stats  # importing it takes a second

    pooled = scores.reshape(*scores.shape[:-2], -1)
    return np.asarray(stats.trim_mean(pooled, 0.25, axis=-1))


def optimality_gap(scores: Scores) -> Scores:
    """By how much scores fall short of a human's on average; beyond them nothing is gained."""
    return np.asarray(1.0 - np.minimum(scores, 1.0).mean(axis=(-2, -1)))


def probability_of_improvement(scores: Scores, others: Scores) -> Scores:
    """Mean over games of the chance that a run beats one of ``others``, (..., n_other_runs, n_games); a tie counts half."""
    difference = np.sign(scores[..., :, None, :] - others[..., None, :, :])
    return np.asarray((0.5 + difference / 2).mean(axis=(-3, -2, -1)))


def relative_improvement(scores: ArrayLike, others: ArrayLike, games: Sequence[str]) -> Scores:
    """
    A bar for each game: (score - other) / (max(human, other) - random), of means over runs, as in Wang et al. (2016), Dueling
    Network Architectures. The paper has such bars and does not give their formula. This one stays finite where the other agent
    plays no better than random. Scores are raw, shape ([n_runs,] n_games).
    """
    ours, theirs = (
        np.atleast_2d(np.asarray(each, dtype=np.float64)).mean(axis=0) for each in (scores, others)
    )
    random, human = references(games).to_numpy().T
    return np.asarray((ours - theirs) / (np.maximum(human, theirs) - random))


def interval(statistic: Statistic, *scores: Scores, resamples: int = 2000) -> tuple[Any, Any, Any]:
    """
    A statistic of scores, and the low and the high end of its 95% interval, each of shape (...): a percentile bootstrap in
    which runs are drawn with replacement within each game of each agent. It speaks of other seeds, and not of other games.
    """
    for each in scores:
        if each.ndim < 2 or each.shape[-2] < 2 or not np.isfinite(each).all():
            raise ValueError(
                f"scores must be finite and of shape (..., n_runs >= 2, n_games), got shape {each.shape}"
            )
    ends = np.cumsum([each.shape[-1] for each in scores])[:-1]

    def of_columns(*columns: Scores, axis: int) -> Scores:
        assert axis == -1  # where scipy puts runs; games come after them here, agent by agent
        parts = [
            columns[start:end] for start, end in zip([0, *ends], [*ends, len(columns)], strict=True)
        ]
        return statistic(*(np.stack(part, axis=-1) for part in parts))

    from scipy import stats  # importing it takes a second

    found = stats.bootstrap(
        [
            column for each in scores for column in np.moveaxis(each, -1, 0)
        ],  # each game of each agent is a sample of its own
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
    """Columns ``name``, and if each agent has two runs or more ``name_low`` and ``name_high``: see :func:`interval`."""
    if min(len(each) for each in scores) < 2:
        return {name: float(statistic(*scores))}
    return dict(
        zip(
            (name, f"{name}_low", f"{name}_high"),
            map(float, interval(statistic, *scores)),
            strict=True,
        )
    )
