"""One page about many runs of any study: what was run and what not, what came out, beside the paper's numbers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import tyro
from markupsafe import Markup

from benchmarks import recording
from benchmarks.report import games, mastery, page, tables
from benchmarks.report import runs as reader
from benchmarks.report.page import Book, Cell, Column, Section, name

VIDEOS = {".mp4": "video/mp4", ".webm": "video/webm"}
MOST_VIDEO_BYTES = 4 * 2**20
"""Videos up to this size are in the page; larger ones are only linked to."""
STATUS = {"finished": "finished", "unfinished": "unfinished", "not begun": "missing"}
"""Columns of ``coverage.csv`` by what they count."""


@dataclass(frozen=True)
class ReportConfig:
    """Sum up runs and suites, finished or not: one HTML page that opens without a network, and its numbers as CSV files."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of runs or suites, or folders below which they are."""
    output: Path
    """The page. Its numbers and figures are written beside it, to a folder of its name and -data."""
    goals: int = 256
    """Most goals of a world for which exact plans are made, drawn at random from all."""
    base: str | None = None
    """The agent whose time for a step of mastery is 1."""
    title: str = "Many-goals reinforcement learning"
    """Of the page."""

    def run(self) -> Path:
        """:return: the page"""
        return run(self)


def run(config: ReportConfig) -> Path:
    """
    Write the page, and its numbers and figures beside it.

    :param config: what to report on
    :return: the page
    :raises PastRunError: if there are no runs, or runs that do not go together
    :raises SuiteError: if a result is damaged
    :raises ValueError: if the page would not be a page
    """
    if config.output.suffix != ".html":
        raise ValueError(f"output must end in .html, got {config.output}")
    runs = reader.read(config.runs)
    book = Book(config.output)
    sections = [
        _coverage(runs, book),
        *mastery.sections(runs, book, config.goals, config.base),
        *games.sections(runs, book),
        *_videos(runs, book),
        _cost(runs, book),
        *_making(runs),
        _files(runs, book),
    ]
    date = name(datetime.now().astimezone().isoformat(timespec="minutes"))
    lead = Markup("Written {} by code {}. Every number is a cell of a CSV file: point at it to see which.")
    book.write(config.title, lead.format(date, name(recording.git_revision())), sections)
    print(f"written to {config.output}")
    return config.output


def _coverage(runs: pd.DataFrame, book: Book) -> Section:
    columns = [*reader.KEY, "status", "step", "attempts", "training_seconds", "wall_seconds"]
    linked = ["" if pd.isna(path) else book.link(path) for path in runs["path"]]
    every = book.add("runs", runs[columns].assign(folder=linked))
    by = ["study", "agent", "steps"]
    counts = pd.crosstab([runs[column] for column in by], runs["status"]).reindex(columns=list(STATUS), fill_value=0)
    counts = counts.rename(columns=STATUS).assign(planned=counts.sum(axis=1), games=runs.groupby(by)["game"].nunique())
    sheet = book.add("coverage", counts.reset_index())
    groups = [alike for _, alike in runs.groupby(by)]

    def gaps(row: int) -> Cell:
        alike = groups[row]
        open_ = alike[alike["status"] != "finished"]
        several = alike["game"].nunique() > 1
        said = [
            Markup("{} ({})").format(name(f"{run.game}, seed {run.seed}" if several else f"seed {run.seed}"), run.status)
            for run in open_.head(6).itertuples()
        ]
        more = "; and more, in the list of every run" if len(open_) > len(said) else ""
        return Markup('<div class="wide">{}{}</div>').format(Markup("; ").join(said), more) if said else ""

    shown: list[Column] = [("agent", "agent", "text")]
    shown += [(each, each, "count") for each in ("steps", "games")] + [("runs wanted", "planned", "count")]
    shown += [(status, column, "count") for status, column in STATUS.items()]
    totals = {status: int((runs["status"] == status).sum()) for status in STATUS}
    words = Markup("Runs: {} finished, {} unfinished, {} not begun.").format(
        *(book.fact(f"runs {status}", total) for status, total in totals.items())
    )
    if len(runs) > totals["finished"]:
        words += Markup(" <strong>This is not the whole study:</strong> what is shown below lacks what is missing here.")

    def agent(row: int) -> Cell:
        said = every.text(row, "agent")
        return Markup('<a href="{}">{}</a>').format(linked[row], said) if linked[row] else said

    def progress(row: int) -> Cell:
        return Markup("{} of {}").format(every.number(row, "step", "count") or "-", every.number(row, "steps", "count"))

    each: list[Column] = [("agent", agent, "text"), ("game", "game", "text"), ("seed", "seed", "count")]
    each += [("status", "status", "text"), ("steps", progress, "text"), ("attempts", "attempts", "count")]
    content = page.words(words) + sheet.table([*shown, ("which are not there", gaps, "text")])
    return "runs", "What was run, and what was not", content + every.table(each, "Every run", folded=True)


def _cost(runs: pd.DataFrame, book: Book) -> Section:
    columns: list[Column] = [("agent", "agent", "text"), ("runs begun", "runs", "count"), ("steps", "steps", "count")]
    columns += [("hours of training", "training_hours", "short"), ("hours of runs", "wall_hours", "short")]
    columns += [("steps/s", "steps_per_second", "count")]
    title = (
        "Hours of training are without measurements. Hours of runs are of finished runs of suites, all included, but of their "
        "last attempt only. Runs that shared a machine were slowed down by each other. Steps/s are the median over runs, of "
        "training where it was timed, of whole runs else."
    )
    return "cost", "Cost", book.add("cost", tables.cost(runs)).table(columns, title)


def _videos(runs: pd.DataFrame, book: Book) -> list[Section]:
    shown, linked = [], Markup("")
    for run in runs.dropna(subset=["path"]).itertuples():
        for path in reader.files(run.path):
            if path.suffix in VIDEOS:
                link = Markup('<a href="{}">{}</a>').format(book.link(path), path.name)
                caption = Markup("{}, {}, seed {}: {}").format(name(run.agent), name(run.game), name(run.seed), link)
                if path.stat().st_size > MOST_VIDEO_BYTES:
                    linked += page.words("Too large for the page: ", caption)
                else:
                    alt = f"{run.agent} in {run.game}"
                    shown.append((page.image(VIDEOS[path.suffix], path.read_bytes(), alt), caption))
    return [("videos", "Videos", page.gallery(shown) + linked)] if shown or linked else []


def _making(runs: pd.DataFrame) -> list[Section]:
    """Commands, code, versions and machines of runs that noted them, the same ones once."""
    records = [record for record in runs["record"] if isinstance(record, dict) and len(record) > 1]
    if not records:
        return []
    content = making(records)
    commands = dict.fromkeys(record["command"] for record in records if "command" in record)
    rows = [[Markup("<code>{}</code>").format(command)] for command in commands]
    return [("making", "How it was made", content + page.table(["command"], rows, "Commands", folded=True))]


def making(records: list[dict[str, Any]]) -> Markup:
    """
    :param records: of ``config.json`` of runs
    :return: a table of code, dates, versions and machines, each said once
    """
    dates = sorted(str(record["date"]) for record in records if "date" in record)

    def said(key: str) -> list[str]:
        found = [record.get(key) for record in records]
        texts = [", ".join(f"{k} {v}" for k, v in each.items()) if isinstance(each, dict) else each for each in found]
        return [text for text in dict.fromkeys(texts) if text]

    facts = {"code": said("git_revision"), "dates": list(dict.fromkeys([*dates[:1], *dates[-1:]]))}
    facts |= {"versions": said("versions"), "machine": said("machine")}
    rows = [[what, Markup("<br>").join(map(name, each))] for what, each in facts.items()]
    return page.table(["", "of all runs that noted it"], rows)


def _files(runs: pd.DataFrame, book: Book) -> Section:
    own = [(path, path.name) for path in sorted({*book.folder.iterdir(), book.folder / "facts.csv"})]
    items = [book.files("The numbers of this page", own)]
    for run in runs.dropna(subset=["path"]).itertuples():
        owner = Markup("{}, {}, seed {}").format(name(run.agent), name(run.game), name(run.seed))
        items.append(book.files(owner, [(path, path.relative_to(run.path).as_posix()) for path in reader.files(run.path)]))
    content = Markup('<ul class="files">{}</ul>')
    both = page.fold("Of this page", content.format(items[0])) + page.fold(
        "Of each run", content.format(Markup("").join(items[1:]))
    )
    return "files", "Raw files", both
