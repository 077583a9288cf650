"""One HTML page about many runs, complete in itself: what was run and what not, what came out, beside the paper's numbers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

import tyro

from benchmarks import report, run_folder
from benchmarks.study_report import findings, games, mastery, overview
from benchmarks.study_report.sheets import Book, name


@dataclass(frozen=True)
class ReportConfig:
    """Write one HTML page about runs and suites, finished or not; it opens without a network."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of runs or suites, or folders below which they are."""
    output: Path
    """The page. Its numbers are written beside it, to a folder of its name and -data."""
    goals: int = 256
    """Most goals of a world for which exact plans are made, drawn at random from all."""
    title: str = "Many-goals reinforcement learning"
    """Of the page."""

    def run(self) -> Path:
        """:return: the page"""
        return run(self)


def run(config: ReportConfig) -> Path:
    """
    Write the page, and the CSV files of its numbers beside it.

    :param config: what to report on
    :return: the page
    :raises PastRunError: if a folder does not exist, or no run is in any
    :raises SuiteError: if a result is damaged
    :raises ValueError: if the page would not be a page
    """
    if config.output.suffix != ".html":
        raise ValueError(f"output must end in .html, got {config.output}")
    found = findings.look(config.runs)
    book = Book(config.output)
    sections = [
        overview.coverage(found, book),
        *mastery.sections(found, book, config.goals),
        *games.sections(found, book),
        overview.videos(found, book),
        overview.cost(found, book),
        overview.making(found),
    ]
    book.close()
    sections.append(overview.files(found, book))
    html = (
        report.templates()
        .get_template("study_report/page.html.j2")
        .render(
            title=config.title,
            date=name(datetime.now().astimezone().isoformat(timespec="minutes")),
            revision=name(run_folder.git_revision()),
            sections=[section for section in sections if section is not None],
            data=quote(f"{book.folder.name}/"),
        )
    )
    config.output.write_text(html, encoding="utf-8")
    print(f"written to {config.output}")
    return config.output
