"""Sections about all runs alike: what was run and what was not, its cost, its videos, how it was made, its files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from benchmarks import report
from benchmarks.study_report.blocks import Block, Cell, Gallery, Links, Picture, Section, Table, Words
from benchmarks.study_report.findings import Findings, Run
from benchmarks.study_report.sheets import Book, name

VIDEOS = {".mp4": "video/mp4", ".webm": "video/webm"}
MOST_VIDEO_BYTES = 4 * 2**20
"""Videos up to this size are in the page; larger ones are only linked to."""

RUNS = ["study", "agent", "game", "seed", "status", "step", "steps", "attempts", "training_seconds", "wall_seconds", "folder"]
COVERAGE = ["study", "agent", "steps", "games", "finished", "unfinished", "missing", "planned"]
COST = ["study", "agent", "runs", "steps", "training_hours", "wall_hours", "steps_per_second"]


def link(book: Book, path: Path) -> str:
    """
    :param book: of the page
    :param path: of a file
    :return: its address, relative to the page
    """
    return quote(Path(os.path.relpath(path, book.page.absolute().parent)).as_posix())


def coverage(found: Findings, book: Book) -> Section:
    """
    :param found: runs
    :param book: to write to
    :return: what was run and what was not; ``runs.csv`` has all runs, ``coverage.csv`` their numbers
    """
    runs = book.add("runs", RUNS, [_row(run, book) for run in found.runs])
    groups = _groups(found.runs)
    counted = [
        {
            "study": study,
            "agent": agent,
            "steps": steps,
            "games": len({run.game for run in alike}),
            "planned": len(alike),
            **{column: sum(run.status == status for run in alike) for column, status in STATUS.items()},
        }
        for (study, agent, steps), alike in groups.items()
    ]
    sheet = book.add("coverage", COVERAGE, counted)
    rows: list[list[Cell]] = []
    for i, alike in enumerate(groups.values()):
        numbers = [sheet.number(i, column, "count") for column in ("steps", "games", "planned", *STATUS)]
        gaps = [run for run in alike if not run.finished]
        rows.append([sheet.text(i, "agent"), *numbers, _gaps(gaps, len({run.game for run in alike}))])
    totals = {status: sum(run.status == status for run in found.runs) for status in STATUS.values()}
    unfinished, not_begun = (book.fact(f"runs {status}", totals[status]) for status in ("unfinished", "not begun"))
    finished = book.fact("runs finished", totals["finished"])
    words = Markup("Runs: {} finished, {} unfinished, {} not begun.").format(finished, unfinished, not_begun)
    if len(found.runs) > totals["finished"]:
        words += Markup(" <strong>This is not the whole study:</strong> what is shown below lacks what is missing here.")
    head = ["agent", "steps", "games", "runs wanted", "finished", "unfinished", "not begun", "which are not there"]
    each: list[list[Cell]] = []
    for i, run in enumerate(found.runs):
        where = (
            name(run.agent) if run.folder is None else Markup('<a href="{}">{}</a>').format(link(book, run.folder), run.agent)
        )
        step = Markup("{} of {}").format(runs.number(i, "step", "count") or "-", runs.number(i, "steps", "count"))
        each.append([where, name(run.game), runs.number(i, "seed"), run.status, step, runs.number(i, "attempts")])
    every = Table(["agent", "game", "seed", "status", "steps", "attempts"], each, [runs], "Every run", folded=True)
    return Section("runs", "What was run, and what was not", [Words(words), Table(head, rows, [sheet]), every])


STATUS = {"finished": "finished", "unfinished": "unfinished", "missing": "not begun"}
"""Columns of ``coverage.csv`` by what they count."""


def _gaps(gaps: Sequence[Run], games: int) -> Cell:
    if not gaps:
        return ""
    shown = 6
    parts = []
    for run in gaps[:shown]:
        which = f"{run.game}, seed {run.seed}" if games > 1 else f"seed {run.seed}"
        parts.append(Markup("{} ({})").format(name(which), run.status))
    more = Markup("; and more, in the list of every run") if len(gaps) > shown else Markup("")
    return Markup('<div class="wide">{}</div>').format(Markup("; ").join(parts) + more)


def _groups(runs: Iterable[Run]) -> dict[tuple[str, str, int], list[Run]]:
    groups: dict[tuple[str, str, int], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.study, run.agent, run.steps), []).append(run)
    return groups


def _row(run: Run, book: Book) -> dict[str, Any]:
    return {
        **{column: getattr(run, column) for column in RUNS if column not in ("step", "folder")},
        "step": run.at,
        "folder": "" if run.folder is None else link(book, run.folder),
    }


def cost(found: Findings, book: Book) -> Section:
    """
    :param found: runs
    :param book: to write to
    :return: hours and steps/s of each agent, of ``cost.csv``; those of unfinished runs count as far as they were measured
    """
    rows: list[dict[str, Any]] = []
    for (study, agent, _), alike in _groups(found.runs).items():
        timed = [run for run in alike if run.training_seconds and run.at]
        walls = [run for run in alike if run.wall_seconds is not None]
        rates = [(run.at or 0) / run.training_seconds for run in timed if run.training_seconds]
        # where training is not timed by itself, whole runs that took one attempt say how fast it is at least
        rates = rates or [run.steps / run.wall_seconds for run in walls if run.wall_seconds and run.attempts == 1]
        rows.append(
            {
                "study": study,
                "agent": agent,
                "runs": len([run for run in alike if run.folder is not None]),
                "steps": sum(run.at or 0 for run in alike),
                "training_hours": sum(run.training_seconds or 0.0 for run in timed) / 3600 if timed else None,
                "wall_hours": sum(run.wall_seconds or 0.0 for run in walls) / 3600 if walls else None,
                "steps_per_second": median(rates) if rates else None,
            }
        )
    totals = {column: sum(row[column] or 0 for row in rows) for column in ("runs", "steps", "training_hours", "wall_hours")}
    rows.append({"agent": "all"} | totals)
    sheet = book.add("cost", COST, rows)
    cells = [
        [
            sheet.text(i, "agent"),
            *(sheet.number(i, column, "count") for column in ("runs", "steps")),
            *(sheet.number(i, column, "short") for column in ("training_hours", "wall_hours")),
            sheet.number(i, "steps_per_second", "count"),
        ]
        for i in range(len(rows))
    ]
    head = ["agent", "runs begun", "steps", "hours of training", "hours of runs", "steps/s"]
    title = (
        "Hours of training are without measurements. Hours of runs are of finished runs of suites, all included, but of their "
        "last attempt only. Runs that shared a machine were slowed down by each other. Steps/s are the median over runs, of "
        "training where it was timed, of whole runs else."
    )
    return Section("cost", "Cost", [Table(head, cells, [sheet], title)])


def videos(found: Findings, book: Book) -> Section | None:
    """
    :param found: runs
    :param book: of the page
    :return: videos that runs left, those small enough in the page itself; None if there are none
    """
    shown, linked = [], []
    for run in found.runs:
        for path in run.files():
            if path.suffix in VIDEOS:
                caption = Markup('{}, {}, seed {}: <a href="{}">{}</a>').format(
                    name(run.agent), name(run.game), name(run.seed), link(book, path), path.name
                )
                if path.stat().st_size > MOST_VIDEO_BYTES:
                    linked.append(caption)
                    continue
                source = report.data_uri(VIDEOS[path.suffix], path.read_bytes())
                shown.append(Picture(source, f"{run.agent} in {run.game}", caption, is_video=True))
    blocks: list[Block] = [Gallery(shown)] if shown else []
    blocks += [Words(Markup("Too large for the page: {}").format(caption)) for caption in linked]
    return Section("videos", "Videos", blocks) if blocks else None


def making(found: Findings) -> Section | None:
    """
    :param found: runs
    :return: commands, code, versions and machines of runs that noted them, the same ones once; None if none did
    """
    records = [run.record for run in found.runs if run.record]
    if not records:
        return None
    rows: list[list[Cell]] = []
    for what, values in (
        ("code", [record.get("git_revision") for record in records]),
        ("dates", [min(dates), max(dates)] if (dates := sorted(str(record.get("date", "")) for record in records)) else []),
        ("versions", [_said(record.get("versions", {})) for record in records]),
        ("machine", [_said(record.get("machine", {})) for record in records]),
    ):
        different = [name(value) for value in dict.fromkeys(values) if value]
        rows.append([what, Markup("<br>").join(different)])
    commands = [[Markup("<code>{}</code>").format(record["command"])] for record in records if "command" in record]
    blocks: list[Block] = [Table(["", "of all runs that noted it"], rows)]
    if commands:
        blocks.append(Table(["command"], list({str(row): row for row in commands}.values()), (), "Commands", folded=True))
    return Section("making", "How it was made", blocks)


def _said(values: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items())


def files(found: Findings, book: Book) -> Section:
    """
    :param found: runs
    :param book: of the page, all of whose files are written
    :return: a link to each file that runs left, and to each of the page
    """
    own = [(link(book, path), path.name) for path in sorted(book.folder.glob("*.csv"))]
    groups: list[tuple[Cell, list[tuple[str, str]]]] = [(Markup("The numbers of this page"), own)]
    for run in found.runs:
        if run.folder is not None:
            names = [(link(book, path), path.relative_to(run.folder).as_posix()) for path in run.files()]
            groups.append((Markup("{}, {}, seed {}").format(name(run.agent), name(run.game), name(run.seed)), names))
    return Section("files", "Raw files", [Links(groups[:1], "Of this page"), Links(groups[1:], "Of each run")])
