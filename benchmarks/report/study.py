"""
One page about runs of any kind.

It says what was run and what not, and what came out, beside the paper's numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import tyro

from benchmarks import recording
from benchmarks.report import PastRunError, games, mastery, tables
from benchmarks.report import runs as reader
from benchmarks.report.page import Book


@dataclass(frozen=True)
class ReportConfig:
    """
    Sum up runs and suites, finished or not.

    One HTML page that opens without a network is written, and its numbers as CSV files.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of runs or suites, or folders below which they are."""
    output: Path
    """The page. Its numbers and figures are written to a folder of its name and -data beside it."""
    title: str = "Many-goals reinforcement learning"
    """Title of the page."""

    def run(self) -> Path:
        """
        Write the page.

        :return: the page
        :raises PastRunError: if ``output`` is no page, or the runs cannot be summed up
        """
        if self.output.suffix != ".html":
            raise PastRunError(f"output must end in .html, got {self.output}")
        print(f"written to {write(self.runs, self.output, self.title)}")
        return self.output


def write(folders: Iterable[Path], output: Path, title: str) -> Path:
    """
    Write a page, and its numbers and figures beside it.

    :param folders: folders of runs or suites, or folders below which they are
    :param output: the page
    :param title: title of the page
    :return: the page
    :raises PastRunError: if the runs cannot be summed up
    """
    runs = reader.read(folders)
    book = Book(output)
    begun = runs[runs["status"] != "not begun"]
    statuses = ("finished", "unfinished", "not begun")
    columns = [*reader.KEY, "status", "step", "attempts", "training_seconds", "wall_seconds"]
    book.write(
        title=title,
        date=datetime.now().astimezone().isoformat(timespec="minutes"),
        revision=recording.git_revision(),
        runs=book.add("runs", runs[columns].assign(folder=runs["path"].map(book.link))),
        coverage=book.add("coverage", tables.coverage(runs)),
        counts={status: int((runs["status"] == status).sum()) for status in statuses},
        sections=[*mastery.sections(begun, book), *games.sections(begun, book)],
        making=_making([record for record in runs["record"] if isinstance(record, dict)]),
        own_files=[(path.name, book.link(path)) for path in book.files()],
        files=[
            (
                f"{run.agent}, {run.game}, seed {run.seed}",
                [(path.name, book.link(path)) for path in reader.files(run.path)],
            )
            for run in begun.itertuples()
        ],
    )
    return output


def _making(records: list[dict[str, Any]]) -> dict[str, list[str]]:
    """
    Return how the runs that noted it were made, each value once.

    These are commands, code, first and last date, versions, machines, and the settings of all runs.
    """
    found = {}
    parts = [part for record in records for part in (record, *record.get("resumed", []))]
    for key in ("command", "git_revision", "date", "versions", "machine"):
        texts = [_text(part[key]) for part in parts if key in part]
        found[key] = list(dict.fromkeys(texts))
    dates = found["date"]
    found["date"] = list(dict.fromkeys([min(dates), max(dates)])) if dates else []
    settings = pd.DataFrame(
        [
            {key: str(value) for key, value in record.get("settings", {}).items()}
            for record in records
        ]
    )
    alike = [key for key in settings if settings[key].nunique(dropna=False) == 1]
    return found | {"settings": [f"{key} = {settings[key].iloc[0]}" for key in alike]}


def _text(value: Any) -> Any:
    """Return an entry of ``config.json`` in words."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {each}" for name, each in value.items())
    return value
