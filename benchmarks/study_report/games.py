"""Sections about suites whose runs are scored, as those of games: summaries beside the paper's, scores and curves by game."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.ticker import EngFormatter, PercentFormatter

from benchmarks import paper_scores, scores
from benchmarks.paper_scores import PRINTED
from benchmarks.past_runs import read_table
from benchmarks.scores import DATA, Scores, ScoreTable
from benchmarks.study_report import figures
from benchmarks.study_report.blocks import Block, Cell, Chart, Charts, Section, Table, Words
from benchmarks.study_report.findings import Findings, Run
from benchmarks.study_report.sheets import Book, Form, Sheet, name
from benchmarks.suite import SuiteError

BASELINE = "a2c"
"""The agent that others are compared with, if it is there; else the first of them."""
OURS = "many-goals"
"""How the names of the agents begin whose improvement over the others is drawn, as in the paper."""
PRETRAINED = "-pretraining"
"""How the names of agents end whose rivals are each other and the baseline."""
BINS = 50
"""Points of a learning curve, each the mean of the episodes that ended since the point before."""
MOST_GAMES = 12
"""With more of them the table by game is folded."""

CURVES = {"curve.csv": ("step", "episode_return"), "progress.csv": ("timetotal_timesteps", "rolloutep_rew_mean")}
"""Files in which returns of episodes are looked for, and the columns of steps and returns, as NumPy reads their names: those
that runs write for this, and what Stable-Baselines3 logs."""

STATISTICS: dict[str, tuple[str, Callable[..., Scores], Form]] = {
    "median": ("median", scores.median, "percent2"),
    "above_half": ("games above half of a human", scores.count_above, "count"),
    "interquartile_mean": ("interquartile mean", scores.interquartile_mean, "percent2"),
    "optimality_gap": ("optimality gap", scores.optimality_gap, "share"),
}
"""Of human-normalized scores: what the table calls each, and how it is computed and shown."""


def sections(found: Findings, book: Book) -> list[Section]:
    """
    :param found: runs
    :param book: to write to
    :return: one for each study of which a run has finished with a "score" among its values, and each length of its runs
    :raises SuiteError: if there are two runs of one agent in one game with one seed
    """
    studies: dict[tuple[str, int], list[Run]] = {}
    for run in found.runs:
        if run.finished and isinstance(run.values.get("score"), int | float):
            alike = studies.setdefault((run.study, run.steps), [])
            for other in alike:
                if (other.agent, other.game, other.seed) == (run.agent, run.game, run.seed):
                    what = f"two runs of {run.agent} in {run.game}, seed {run.seed}, {run.steps} steps"
                    raise SuiteError(f"{what}, in {other.folder} and {run.folder}: report on them apart")
            alike.append(run)
    return [_section(study, runs, book, f"games{number}") for number, ((study, _), runs) in enumerate(studies.items(), 1)]


def _section(study: str, runs: Sequence[Run], book: Book, prefix: str) -> Section:
    agents, games = (list(dict.fromkeys(getattr(run, what) for run in runs)) for what in ("agent", "game"))
    words = Markup("{} agents, {} games, {} finished runs. A score is the mean return that a run came to.").format(
        book.fact(f"{prefix}: agents", len(agents)),
        book.fact(f"{prefix}: games", len(games)),
        book.fact(f"{prefix}: finished runs", len(runs)),
    )
    atari = scores.read_table(DATA / "atari_human_random_49.csv").games
    blocks: list[Block] = [Words(words)]
    blocks += _summary([run for run in runs if run.game in atari], agents, book, prefix)
    blocks.append(_by_game(runs, agents, games, atari, book, prefix))
    blocks += _improvements([run for run in runs if run.game in atari], agents, book, prefix)
    blocks += _curves(runs, agents, games, book, prefix)
    steps = book.fact(f"{prefix}: environment steps of a run", runs[0].steps)
    return Section(prefix, Markup("Scores: {}, {} steps").format(name(study.split(":")[0].split(".")[-1]), steps), blocks)


def _complete(runs: Sequence[Run], agents: Sequence[str]) -> tuple[list[str], dict[str, Scores]]:
    """Games in which each agent has all its seeds, and the scores there, of each agent, shape (n_seeds, n_games)."""
    score = {(run.agent, run.game, run.seed): float(run.values["score"]) for run in runs}
    seeds = {agent: sorted({run.seed for run in runs if run.agent == agent}) for agent in agents}
    games = [
        game
        for game in sorted({run.game for run in runs})
        if all(seeds[agent] and all((agent, game, seed) in score for seed in seeds[agent]) for agent in agents)
    ]
    return games, {
        agent: np.array([[score[agent, game, seed] for game in games] for seed in seeds[agent]]) for agent in agents if games
    }


def _summary(runs: Sequence[Run], agents: Sequence[str], book: Book, prefix: str) -> list[Block]:
    if not runs:
        return []
    games, raw = _complete(runs, agents)
    left_out = sorted({run.game for run in runs} - set(games))
    blocks: list[Block] = []
    if left_out:
        words = Markup("Without the games in which an agent lacks a seed: {}.").format(name(", ".join(left_out)))
        blocks.append(Words(words))
    if not games:
        return [*blocks, Words("There is no game in which all agents have all their seeds, and so no summary.")]
    normalized = {agent: scores.human_normalized(each, games) for agent, each in raw.items()}
    base = BASELINE if BASELINE in agents else agents[0]
    rows = []
    for agent in agents:
        row: dict[str, Any] = {"agent": agent, "seeds": len(raw[agent]), "games": len(games)}
        for column, (_, statistic, _) in STATISTICS.items():
            row |= _estimated(column, statistic, normalized[agent])
        if agent != base:
            row |= _estimated("better", scores.probability_of_improvement, normalized[agent], normalized[base])
        papers = _of_paper(agent)
        if papers is not None:
            known = scores.human_normalized(papers.select(games).columns[_column(agent)], games)[None]
            row |= {"paper_median": float(scores.median(known)), "paper_above_half": int(scores.count_above(known))}
        rows.append(row)
    ends = [f"{column}{end}" for column in (*STATISTICS, "better") for end in ("", "_low", "_high")]
    columns = ["agent", "seeds", "games", *ends, "paper_median", "paper_above_half"]
    sheet = book.add(f"{prefix}-summary", columns, rows)
    cells: list[list[Cell]] = [
        [
            sheet.text(i, "agent"),
            sheet.number(i, "seeds"),
            *(sheet.interval(i, column, form) for column, (_, _, form) in STATISTICS.items()),
            sheet.interval(i, "better", "share"),
            sheet.number(i, "paper_median", "percent2"),
            sheet.number(i, "paper_above_half", "count"),
        ]
        for i in range(len(rows))
    ]
    over = Markup("better than {}").format(name(base))
    head: list[Cell] = [
        "agent",
        "seeds",
        *(words for words, _, _ in STATISTICS.values()),
        over,
        "the paper's median",
        "its games",
    ]
    title = Markup(
        "Human-normalized scores of {} games, with stratified bootstrap intervals ({}) over seeds where there are several. "
        "The paper's are computed from its table, of the same games."
    ).format(book.fact(f"{prefix}: games summarized", len(games)), book.fact(f"{prefix}: confidence", 0.95, "percent"))
    return [*blocks, Table(head, cells, [sheet], title), _printed(book)]


def _estimated(column: str, statistic: Callable[..., Scores], *arguments: Scores) -> dict[str, float]:
    if min(len(each) for each in arguments) < 2:
        return {column: float(statistic(*arguments))}
    found = scores.interval(statistic, *arguments)
    return {column: found.value, f"{column}_low": found.low, f"{column}_high": found.high}


def _printed(book: Book) -> Table:
    """What the paper's own summaries say, beside what follows from its tables."""
    compared = [paper_scores.compare(printed) for printed in PRINTED]
    columns = ["summary", "agent", "median_printed", "median", "above_half_printed", "above_half", "follows"]
    rows = [
        {
            "summary": each.printed.table.removeprefix("paper_").removesuffix("_scores"),
            "agent": each.printed.title,
            "median_printed": round(each.printed.median / 100, 6),
            "median": round(each.median / 100, 6),
            "above_half_printed": each.printed.above_half,
            "above_half": each.above_half,
            "follows": "yes" if each.median_follows and each.count_follows else "no",
        }
        for each in compared
    ]
    sheet = book.add("paper-summaries", columns, rows)
    cells = [
        [
            Markup("{}, {}").format(sheet.text(i, "summary"), sheet.text(i, "agent")),
            sheet.number(i, "median_printed", "percent1"),
            sheet.number(i, "median", "percent2"),
            sheet.number(i, "above_half_printed", "count"),
            sheet.number(i, "above_half", "count"),
            sheet.text(i, "follows"),
        ]
        for i in range(len(rows))
    ]
    head = ["", "median printed", "from its table", "games above half printed", "from its table", "follows?"]
    title = "The paper's own summaries, as printed and as they follow from its tables"
    return Table(head, cells, [sheet], title, folded=True)


@cache
def _of_paper(agent: str) -> ScoreTable | None:
    for file in (paper_scores.AUXILIARY, paper_scores.PRETRAINING):
        table = scores.read_table(DATA / f"{file}.csv")
        if _column(agent) in table.columns:
            return table
    return None


def _column(agent: str) -> str:
    return agent.lower().replace("-", "_").replace(" ", "_")


def _by_game(
    runs: Sequence[Run], agents: Sequence[str], games: Sequence[str], atari: Sequence[str], book: Book, prefix: str
) -> Table:
    columns = ["game", "agent", "seeds", "score", "normalized", "paper", "random", "human"]
    rows = []
    known_games = [game for game in games if game in atari]
    references = dict(zip(known_games, zip(*scores.references(known_games), strict=True), strict=True))
    for game in sorted(games):
        for agent in agents:
            found = [float(run.values["score"]) for run in runs if (run.game, run.agent) == (game, agent)]
            row: dict[str, Any] = {"game": game, "agent": agent, "seeds": len(found)}
            if found:
                row["score"] = float(np.mean(found))
            if game in atari:
                row["random"], row["human"] = map(float, references[game])
                papers = _of_paper(agent)
                if papers is not None:
                    row["paper"] = float(papers.select([game]).columns[_column(agent)][0])
                if found:
                    row["normalized"] = float(scores.human_normalized([row["score"]], [game])[0])
            rows.append(row)
    sheet = book.add(f"{prefix}-scores", columns, rows)
    known = [column for column in ("normalized", "paper", "random", "human") if any(row[column] for row in sheet.rows)]
    cells = []
    for i in range(len(rows)):
        shown = [sheet.number(i, column, "percent1" if column == "normalized" else "score") for column in known]
        cells.append(
            [
                sheet.text(i, "game"),
                sheet.text(i, "agent"),
                sheet.number(i, "seeds"),
                sheet.number(i, "score", "score"),
                *shown,
            ]
        )
    words = {"normalized": "human-normalized", "paper": "the paper's", "random": "random play", "human": "human"}
    head = ["game", "agent", "seeds", "score", *(words[column] for column in known)]
    return Table(head, cells, [sheet], "Scores by game, means over finished runs", folded=len(games) > MOST_GAMES)


def _improvements(runs: Sequence[Run], agents: Sequence[str], book: Book, prefix: str) -> list[Block]:
    rows: list[dict[str, Any]] = []
    for ours, other in rivals(agents):
        games, raw = _complete([run for run in runs if run.agent in (ours, other)], (ours, other))
        if not games:
            continue
        bars = scores.relative_improvement(raw[ours], raw[other], games).tolist()
        rows += [
            {"agent": ours, "over": other, "game": game, "improvement": bar} for game, bar in zip(games, bars, strict=True)
        ]
    if not rows:
        return []
    sheet = book.add(f"{prefix}-improvements", ["agent", "over", "game", "improvement"], rows)
    charts = []
    with figures.drawing():
        for ours, other in dict.fromkeys((row["agent"], row["over"]) for row in sheet.rows):
            alike = [row for row in sheet.rows if (row["agent"], row["over"]) == (ours, other)]
            bars = sorted((float(row["improvement"]), row["game"]) for row in alike)
            figure, axes = figures.chart(height=1.0 + 0.17 * len(bars))
            colours = [figures.style(0)[0] if value > 0 else figures.style(1)[0] for value, _ in bars]
            axes.barh([game for _, game in bars], [value for value, _ in bars], color=colours)
            axes.axvline(0, color=figures.INK, linewidth=0.8)
            axes.tick_params(axis="y", labelsize=7)
            axes.grid(visible=False, axis="y")
            axes.margins(y=0.01)
            axes.set_xscale("symlog", linthresh=0.1)
            axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
            alt = f"Relative improvement of {ours} over {other} by game"
            charts.append(Chart(Markup("{} over {}").format(name(ours), name(other)), figures.svg(figure, alt)))
    words = (
        "What is gained, by what the better of a human and the other agent has over random play. The scale is linear near "
        "zero and logarithmic beyond. Of each pair of agents, games in which one lacks a seed are left out."
    )
    return [Words(Markup("<h3>Relative improvement</h3>")), Words(words), Charts(charts, sheet)]


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


def episodes(folder: Path) -> list[tuple[float, float]]:
    """
    :param folder: of a run
    :return: steps and returns of its episodes, or of means over some of them, as the run logged them
    """
    for file, (step, value) in CURVES.items():
        for path in sorted(folder.rglob(file)):
            table = read_table(path)
            if {step, value} <= set(table.dtype.names or ()):
                kept = table[np.isfinite(table[step]) & np.isfinite(table[value])]
                return list(zip(kept[step].tolist(), kept[value].tolist(), strict=True))
    return []


def binned(curve: Sequence[tuple[float, float]], steps: int) -> list[tuple[int, float]]:
    """
    :param curve: steps and returns of episodes
    :param steps: of the whole run
    :return: steps at the ends of :data:`BINS` bins of equal width, and the mean return of the episodes that ended in each;
        bins in which none did are left out
    """
    width = steps / BINS
    found: dict[int, list[float]] = {}
    for step, value in curve:
        found.setdefault(min(BINS, max(1, int(np.ceil(step / width)))), []).append(value)
    return [(round(number * width), float(np.mean(found[number]))) for number in sorted(found)]


def _curves(runs: Sequence[Run], agents: Sequence[str], games: Sequence[str], book: Book, prefix: str) -> list[Block]:
    columns = ["agent", "game", "seed", "step", "episode_return"]
    rows = []
    for run in runs:
        assert run.folder is not None
        for step, value in binned(episodes(run.folder), run.steps):
            point = {"step": step, "episode_return": f"{value:.6g}"}
            rows.append({"agent": run.agent, "game": run.game, "seed": run.seed} | point)
    if not rows:
        return []
    sheet = book.add(f"{prefix}-curves", columns, rows)
    charts = [chart for game in sorted(games) for chart in _curve(sheet, agents, game)]
    legend = figures.legend([name(agent) for agent in agents])
    return [Words(Markup("<h3>Learning curves</h3>")), Charts(charts, sheet, legend, "small" if len(charts) > 4 else "medium")]


def _curve(sheet: Sheet, agents: Sequence[str], game: str) -> list[Chart]:
    here = [row for row in sheet.rows if row["game"] == game]
    if not here:
        return []
    with figures.drawing():
        figure, axes = figures.chart(3.0, 2.2)
        for number, agent in enumerate(agents):
            of_seed: dict[str, list[tuple[float, float]]] = {}
            for row in here:
                if row["agent"] == agent:
                    of_seed.setdefault(row["seed"], []).append((float(row["step"]), float(row["episode_return"])))
            if of_seed:
                figures.seeds(axes, number, list(of_seed.values()))
        figures.steps_axis(axes)
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
        return [Chart(name(game), figures.svg(figure, f"Episode returns against steps in {game}"))]
