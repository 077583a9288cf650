"""Sections of a page about runs whose episodes have returns: summaries beside the paper's, scores and curves by game."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from benchmarks import paper_scores, scores
from benchmarks.report import figures, page, tables
from benchmarks.report import runs as reader
from benchmarks.report.page import Book, Column, Form, Section, heading, name
from benchmarks.report.tables import BASELINE
from benchmarks.scores import DATA, Scores, ScoreTable

OURS = "many-goals"
"""How the names of the agents begin whose improvement over the others is drawn, as in the paper."""
PRETRAINED = "-pretraining"
"""How the names of agents end whose rivals are each other and the baseline."""
MOST_GAMES = 12
"""With more of them the tables by game are folded."""

STATISTICS: dict[str, tuple[str, Callable[..., Scores], Form]] = {
    "median": ("median", scores.median, "percent2"),
    "above_half": ("games above half of a human", scores.count_above, "count"),
    "interquartile_mean": ("interquartile mean", scores.interquartile_mean, "percent2"),
    "optimality_gap": ("optimality gap", scores.optimality_gap, "share"),
}
"""Of human-normalized scores: what the table calls each, and how it is computed and shown."""


def sections(runs: pd.DataFrame, book: Book) -> list[Section]:
    """
    :param runs: of :func:`benchmarks.report.runs.read`
    :param book: to write to
    :return: one for each study and length of runs that have a score or returns
    """
    found: list[Section] = []
    others = runs[runs["group"].isna() & (runs["status"] != "not begun")]
    for (study, steps), alike in others.groupby(["study", "steps"]):
        curves = reader.returns(alike)
        if len(curves) or alike["score"].notna().any():
            found.append(_section(study, steps, alike, curves, book, f"games{len(found) + 1}"))
    return found


def _section(study: str, steps: int, runs: pd.DataFrame, curves: pd.DataFrame, book: Book, prefix: str) -> Section:
    scored = runs.dropna(subset=["score"])
    agents, games = (list(dict.fromkeys(runs[column])) for column in ("agent", "game"))
    atari = scored[scored["game"].isin(scores.read_table(DATA / "atari_human_random_49.csv").games)]
    said = Markup("{} agents, {} games, {} finished runs. A score is the mean return that a run came to.").format(
        book.fact(f"{prefix}: agents", len(agents)),
        book.fact(f"{prefix}: games", len(games)),
        book.fact(f"{prefix}: finished runs", int((runs["status"] == "finished").sum())),
    )
    content = page.words(said)
    if len(scored):
        content += _summary(atari, book, prefix) + _by_game(scored, book, prefix) + _improvements(atari, book, prefix)
    if len(curves):
        content += _returns(runs, curves, agents, book, prefix)
    length = book.fact(f"{prefix}: environment steps of a run", steps)
    where = name(study.split(":")[0].split(".")[-1] or "single runs")
    return prefix, Markup("Scores: {}, {} steps").format(where, length), content


def _complete(runs: pd.DataFrame) -> tuple[list[str], dict[str, Scores]]:
    """Games in which each agent has all its seeds, and the scores there, of each agent, shape (n_seeds, n_games)."""
    table = runs.pivot_table("score", ["agent", "seed"], "game").dropna(axis=1)
    return table.columns.tolist(), {agent: rows.to_numpy() for agent, rows in table.groupby("agent") if table.shape[1]}


def _summary(runs: pd.DataFrame, book: Book, prefix: str) -> Markup:
    if runs.empty:
        return Markup("")
    games, raw = _complete(runs)
    left_out, content = sorted(set(runs["game"]) - set(games)), Markup("")
    if left_out:
        content += page.words("Without the games in which an agent lacks a seed: ", name(", ".join(left_out)), ".")
    if not games:
        return content + page.words("There is no game in which all agents have all their seeds, and so no summary.")
    normalized = {agent: scores.human_normalized(each, games) for agent, each in raw.items()}
    base = next((agent for agent in raw if agent.endswith(BASELINE)), next(iter(raw)))
    rows = []
    for agent, each in normalized.items():
        row: dict[str, Any] = {"agent": agent, "seeds": len(each), "games": len(games)}
        for column, (_, statistic, _) in STATISTICS.items():
            row |= tables.estimated(column, statistic, each)
        if agent != base:
            row |= tables.estimated("better", scores.probability_of_improvement, each, normalized[base])
        papers = _of_paper(agent)
        if papers is not None:
            known = scores.human_normalized(papers.select(games).columns[_column(agent)], games)[None]
            row |= {"paper_median": float(scores.median(known)), "paper_above_half": int(scores.count_above(known))}
        rows.append(row)
    ends = [f"{column}{end}" for column in (*STATISTICS, "better") for end in ("", "_low", "_high")]
    columns = ["agent", "seeds", "games", *ends, "paper_median", "paper_above_half"]
    sheet = book.add(f"{prefix}-summary", pd.DataFrame(rows, columns=columns))
    shown: list[Column] = [("agent", "agent", "text"), ("seeds", "seeds", "count")]
    shown += [(words, column, form) for column, (words, _, form) in STATISTICS.items()]
    shown += [(Markup("better than {}").format(name(base)), "better", "share")]
    shown += [("the paper's median", "paper_median", "percent2"), ("its games", "paper_above_half", "count")]
    title = Markup(
        "Human-normalized scores of {} games, with stratified bootstrap intervals ({}) over seeds where there are several. "
        "The paper's are computed from its table, of the same games."
    ).format(book.fact(f"{prefix}: games summarized", len(games)), book.fact(f"{prefix}: confidence", 0.95, "percent"))
    return content + sheet.table(shown, title) + _printed(book)


def _printed(book: Book) -> Markup:
    """What the paper's own summaries say, beside what follows from its tables."""
    columns: list[Column] = [("", "summary", "text"), ("median printed", "median_printed", "percent1")]
    columns += [("from its table", "median", "percent2"), ("follows?", "median_follows", "text")]
    columns += [("games above half printed", "above_half_printed", "count"), ("from its table", "above_half", "count")]
    columns += [("follows?", "above_half_follows", "text")]
    title = "The paper's own summaries, as printed and as they follow from its tables"
    return book.add("paper-summaries", paper_scores.summaries()).table(columns, title, folded=True)


@cache
def _of_paper(agent: str) -> ScoreTable | None:
    for file in (paper_scores.AUXILIARY, paper_scores.PRETRAINING):
        table = scores.read_table(DATA / f"{file}.csv")
        if _column(agent) in table.columns:
            return table
    return None


def _column(agent: str) -> str:
    return agent.lower().replace("-", "_").replace(" ", "_")


def _by_game(runs: pd.DataFrame, book: Book, prefix: str) -> Markup:
    """Means over finished runs, beside the paper's, random play and a human."""
    atari = scores.read_table(DATA / "atari_human_random_49.csv")
    found = runs.groupby(["game", "agent"])["score"].agg(seeds="size", score="mean").reset_index()
    known = ["normalized", "paper", "random", "human"]
    for i, game, agent, score in found[["game", "agent", "score"]].itertuples(name=None):
        if game in atari.games:
            random, human = (float(column[0]) for column in scores.references([game]))
            papers = _of_paper(agent)
            paper = np.nan if papers is None else float(papers.select([game]).columns[_column(agent)][0])
            found.loc[i, known] = [(score - random) / (human - random), paper, random, human]
    found = found.reindex(columns=["game", "agent", "seeds", "score", *known])
    columns: list[Column] = [("game", "game", "text"), ("agent", "agent", "text"), ("seeds", "seeds", "count")]
    words = {"normalized": "human-normalized", "paper": "the paper's", "random": "random play", "human": "human"}
    columns.append(("score", "score", "score"))
    columns += [
        (words[column], column, "percent1" if column == "normalized" else "score") for column in known if found[column].any()
    ]
    title, folded = "Scores by game, means over finished runs", found["game"].nunique() > MOST_GAMES
    return book.add(f"{prefix}-scores", found).table(columns, title, folded)


def _improvements(runs: pd.DataFrame, book: Book, prefix: str) -> Markup:
    rows: list[dict[str, Any]] = []
    for ours, other in rivals(list(dict.fromkeys(runs["agent"]))):
        games, raw = _complete(runs[runs["agent"].isin([ours, other])])
        if games:
            gained = scores.relative_improvement(raw[ours], raw[other], games)
            rows += [
                {"agent": ours, "over": other, "game": game, "improvement": bar}
                for game, bar in zip(games, gained, strict=True)
            ]
    if not rows:
        return Markup("")
    found, drawn = pd.DataFrame(rows), []
    sheet = book.add(f"{prefix}-improvements", found)
    with figures.drawing():
        for (ours, other), alike in found.groupby(["agent", "over"]):
            figure = figures.bars(alike.set_index("game")["improvement"].sort_values())
            alt = f"Relative improvement of {ours} over {other} by game"
            drawn.append(book.chart(Markup("{} over {}").format(name(ours), name(other)), figure, alt, sheet))
    said = (
        "What is gained, by what the better of a human and the other agent has over random play. The scale is linear near "
        "zero and logarithmic beyond. Of each pair of agents, games in which one lacks a seed are left out."
    )
    return heading("Relative improvement") + page.words(said) + page.charts(drawn, sheet)


def rivals(agents: Sequence[str]) -> list[tuple[str, str]]:
    """
    :param agents: that there are
    :return: pairs of one of ours and who it is compared with: the baseline, and others of its kind
    """
    return [
        (ours, other)
        for ours in agents
        for other in agents
        if ours.startswith(OURS)
        and not other.startswith(OURS)
        and (other == BASELINE or other.endswith(PRETRAINED) == ours.endswith(PRETRAINED))
    ]


def _returns(runs: pd.DataFrame, curves: pd.DataFrame, agents: list[str], book: Book, prefix: str) -> Markup:
    """Returns while training: a table, and a figure a game."""
    summed = book.add(f"{prefix}-returns", tables.returns(curves, runs))
    columns: list[Column] = [(each, each, "text") for each in ("game", "agent")]
    columns += [("seeds", "seeds", "count"), ("step", "step", "count"), ("return at the end", "final", "short")]
    columns += [
        ("mean return over all steps", "area", "short"),
        (Markup("time of a step by that of {}").format(name(BASELINE)), "time_ratio", "short"),
    ]
    said = Markup("Returns of episodes while training: interquartile means over seeds, with bootstrap intervals ({})").format(
        book.fact(f"{prefix}: confidence of returns", 0.95, "percent")
    )
    games = sorted(set(curves["game"]))
    sheet = book.add(f"{prefix}-curves", curves)
    with figures.drawing():
        drawn = [
            book.chart(
                name(game),
                figures.curves(curves[curves["game"] == game], "episode_return", "agent", agents),
                f"Episode returns against steps in {game}",
                sheet,
            )
            for game in games
        ]
    folded = len(games) > MOST_GAMES
    size = "small" if len(drawn) > 4 else "medium"
    return summed.table(columns, said, folded) + heading("Learning curves") + page.charts(drawn, sheet, agents, size)
