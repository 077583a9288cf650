"""
Sections of a page about runs whose episodes have returns.

They have summaries beside the paper's, and scores and curves by game.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from benchmarks import paper_scores, scores
from benchmarks.report import figures, tables
from benchmarks.report import runs as reader
from benchmarks.report.page import Book
from benchmarks.report.tables import BASELINE
from benchmarks.scores import Scores

OURS = "many-goals"
"""How the names of the agents begin whose improvement over the others is drawn, as in the paper."""
CONTROL = "shuffled-"
"""How the names of controls begin. They have few games, to which a summary must not shrink."""
PRETRAINED = "-pretraining"
"""How the names of pre-trained agents end. They are compared with each other and the baseline."""

CURVE = ["agent", "game", "seed", "step", "episode_return"]
"""Columns of curves that are drawn."""
TIME = "training_seconds"
"""Column with the time of a point of a curve, which runs of old versions lack."""

STATISTICS: dict[str, Callable[..., Scores]] = {
    "median": scores.median,
    "above_half": scores.count_above,
    "interquartile_mean": scores.interquartile_mean,
    "optimality_gap": scores.optimality_gap,
}
"""Statistics of normalized scores, by columns of the summary."""


def sections(runs: pd.DataFrame, book: Book) -> Iterator[dict[str, Any]]:
    """
    Return what the template needs of runs that have a score or returns.

    :param runs: runs as :func:`benchmarks.report.runs.read` returns them
    :param book: book to which tables and figures are added
    :return: a section for each study and length of runs
    """
    number = 0
    for (study, steps), alike in runs[runs["group"].isna()].groupby(["study", "steps"]):
        shown = reader.settled(alike)
        curves = reader.gather(shown, "curve.csv").reindex(columns=[*CURVE, TIME])
        curves = curves.dropna(subset=CURVE)
        scored = alike.dropna(subset=["score"])
        where = study.split(":")[0].split(".")[-1] or "single runs"
        if curves.empty and scored.empty:
            print(
                f"left out: results of {where}, {steps:,} steps, whose runs have no scores or "
                "returns of episodes; a study may have comparison.csv"
            )
        else:
            number += 1
            prefix = f"games{number}"
            agents = list(dict.fromkeys(alike["agent"]))
            section = {
                "kind": "games",
                "id": prefix,
                "title": f"Scores: {where}, {steps:,} steps",
                "agents": agents,
                "without_episodes": int((scored["has_ended"] == False).sum()),  # noqa: E712
                "games": sorted(set(alike["game"])),
            }
            section |= _scores(scored, book, prefix)
            yield section | _returns(shown, curves, agents, book, prefix)


def _scores(runs: pd.DataFrame, book: Book, prefix: str) -> dict[str, Any]:
    """Return what the template needs of scores: a summary, a table by game, and improvements."""
    references = [scores.read_table(name).index for name in scores.REFERENCES]
    with_reference = (each for each in references if each.isin(runs["game"]).any())
    known = runs[runs["game"].isin(next(with_reference, []))]
    is_control = known["agent"].str.startswith(CONTROL)
    summed_up = known[~is_control]
    games, raw = _complete(summed_up)
    base = next((agent for agent in raw if agent.endswith(BASELINE)), next(iter(raw), ""))
    by_game = _by_game(runs, known)
    return {
        "summarized": games,
        "left_out": sorted(set(summed_up["game"]) - set(games)),
        "seeds_left_out": sorted(_seeds_left_out(summed_up, raw)),
        "controls": sorted(set(known["agent"][is_control])),
        "base": base,
        "summary": book.add(f"{prefix}-summary", _summary(games, raw, base)),
        "scores": book.add(f"{prefix}-scores", by_game),
        "references": by_game.columns[-2:].tolist(),
        "improvements": book.charts(
            f"{prefix}-improvements",
            _improvements(known),
            "panel",
            "Relative improvement by game of",
            figures.bars,
        ),
    }


def _complete(runs: pd.DataFrame) -> tuple[list[str], dict[str, Scores]]:
    """
    Return games in which each agent has its first n seeds, or all that it has, and its scores.

    Of all numbers n, the one with the most scores is taken. So a study that has just begun with its
    second seeds does not lose the games that its first seeds have.
    """
    scored = runs.pivot_table("score", ["agent", "seed"], "game")
    order = scored.groupby(level="agent").cumcount()
    table = scored.iloc[:0, :0]
    for most in range(1, order.max() + 2 if len(order) else 1):
        complete = scored[order < most].dropna(axis=1)
        if complete.size > table.size:
            table = complete
    return table.columns.tolist(), {
        agent: rows.to_numpy() for agent, rows in table.groupby("agent") if table.shape[1]
    }


def _seeds_left_out(runs: pd.DataFrame, raw: dict[str, Scores]) -> Iterator[str]:
    """Say of each agent that has more seeds than its scores how many are left out."""
    for agent, alike in runs.groupby("agent"):
        n_seeds = alike["seed"].nunique()
        n_taken = len(raw.get(str(agent), ()))
        if 0 < n_taken < n_seeds:
            yield f"{agent} ({n_seeds - n_taken} of {n_seeds})"


def _summary(games: list[str], raw: dict[str, Scores], base: str) -> pd.DataFrame:
    """
    Return a row an agent, with the statistics of its normalized scores.

    It says how often the agent is better than the base, and what the paper has of it.
    """
    normalized = {agent: scores.normalized(each, games) for agent, each in raw.items()}
    rows = []
    for agent, each in normalized.items():
        row: dict[str, Any] = {"agent": agent, "seeds": len(each), "games": len(games)}
        for column, statistic in STATISTICS.items():
            row |= scores.estimated(column, statistic, each)
        if agent != base:
            row |= scores.estimated(
                "better", scores.probability_of_improvement, each, normalized[base]
            )
        papers = _of_paper(agent).reindex(games).to_numpy()
        if np.isfinite(papers).all():
            known = scores.normalized(papers, games)[None]
            row |= {
                "paper_median": float(scores.median(known)),
                "paper_above_half": int(scores.count_above(known)),
            }
        rows.append(row)
    ends = [f"{column}{end}" for column in (*STATISTICS, "better") for end in ("", "_low", "_high")]
    return pd.DataFrame(
        rows, columns=["agent", "seeds", "games", *ends, "paper_median", "paper_above_half"]
    )


def _of_paper(agent: str) -> pd.Series:
    """Return the paper's scores of an agent, by game; none, if it has no such agent."""
    column = agent.lower().replace("-", "_")
    tables_with = (
        scores.read_table(file) for file in (paper_scores.AUXILIARY, paper_scores.PRETRAINING)
    )
    return next((table[column] for table in tables_with if column in table), pd.Series(dtype=float))


def _by_game(runs: pd.DataFrame, known: pd.DataFrame) -> pd.DataFrame:
    """
    Return means over finished runs, beside other scores of the game, if there are any.

    These are the paper's, and those that count as 0 and as 1.
    """
    found = runs.groupby(["game", "agent"])["score"].agg(seeds="size", score="mean").reset_index()
    found["paper"] = [
        _of_paper(agent).get(game, np.nan)
        for game, agent in zip(found["game"], found["agent"], strict=True)
    ]
    games = sorted(set(known["game"]))
    found = found.merge(scores.references(games), "left", left_on="game", right_index=True)
    zero, one = found.columns[-2:]
    found.insert(4, "normalized", (found["score"] - found[zero]) / (found[one] - found[zero]))
    return found


def _improvements(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the relative improvement of each pair of agents in each game."""
    found = [pd.DataFrame(columns=["panel", "game", "improvement"])]
    for ours, other in rivals(list(dict.fromkeys(runs["agent"]))):
        games, raw = _complete(runs[runs["agent"].isin([ours, other])])
        if games:
            gained = scores.relative_improvement(raw[ours], raw[other], games)
            bars = {"panel": f"{ours} over {other}", "game": games, "improvement": gained}
            found.append(pd.DataFrame(bars))
    return pd.concat(found[1:] or found, ignore_index=True)


def rivals(agents: Sequence[str]) -> list[tuple[str, str]]:
    """
    Pair agents of many goals with those that they are compared with.

    :param agents: names of all agents
    :return: pairs of one of ours and the baseline, or another agent that is pre-trained or not as
        ours is
    """
    theirs = [agent for agent in agents if not agent.startswith(OURS)]
    return [
        (ours, other)
        for ours in agents
        for other in theirs
        if ours.startswith(OURS)
        and (other == BASELINE or other.endswith(PRETRAINED) == ours.endswith(PRETRAINED))
    ]


def _returns(
    runs: pd.DataFrame, curves: pd.DataFrame, agents: list[str], book: Book, prefix: str
) -> dict[str, Any]:
    """Return what the template needs of returns while training: a table, and figures by game."""
    names = {"game": "panel", "episode_return": "value"}
    named = curves.rename(columns=names)
    draw = partial(figures.curves, agents=agents, ylabel="episode return")
    return {
        "returns": book.add(f"{prefix}-returns", tables.returns(curves, runs)),
        "curves": book.charts(
            f"{prefix}-curves",
            tables.bands(named),
            "panel",
            "Episode returns against steps in",
            partial(draw, xlabel="environment steps"),
        ),
        "curves_by_hours": book.charts(
            f"{prefix}-hours",
            tables.bands(tables.against_hours(named)),
            "panel",
            "Episode returns against hours of training in",
            partial(draw, xlabel="hours of training"),
        ),
    }
