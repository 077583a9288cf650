"""A page and the CSV files beside it. Each number that the page shows is a cell of one of them, and says which."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure

from benchmarks.report import figures


class Sheet:
    """A CSV file as it was written; ``frame`` has its cells as text."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.frame = pd.read_csv(path, dtype=str, keep_default_na=False)

    def __len__(self) -> int:
        return len(self.frame)

    def has(self, column: str) -> bool:
        """Whether any cell of a column is filled."""
        return column in self.frame and any(self.frame[column])

    def cell(self, row: int, column: str, form: str = "") -> Markup:
        """
        An element with a number in this format, or without a format with words, in which digits are no numbers. It says in
        ``data-cell`` which file, row (counted from 1, below the names) and column it is; columns ``_low`` and ``_high`` give
        an interval.
        """
        text = self.frame[column][row]
        if not form or text in ("", "inf"):
            return name("not reached" if text == "inf" else text) if text else Markup("")
        shown = _data(text, f"{self.path.name}#{row + 1}/{column}", form)
        if self.frame.get(f"{column}_low", {}).get(row):
            low, high = (self.cell(row, f"{column}_{end}", form) for end in ("low", "high"))
            shown += Markup(' <span class="soft">[{}, {}]</span>').format(low, high)
        return shown


class Book:
    """An HTML page, and a folder of CSV files beside it, named as the page without the ending, and ``-data``."""

    def __init__(self, page: Path) -> None:
        self.page, self.folder = page, page.with_name(f"{page.stem}-data")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._facts: list[tuple[str, str]] = []

    def add(self, file: str, frame: pd.DataFrame) -> Sheet:
        """Write a table to a CSV file of that name, which goes without its ending."""
        path = self.folder / f"{file}.csv"
        frame.to_csv(path, index=False, float_format="%.10g")
        return Sheet(path)

    def fact(self, what: str, value: float, form: str = ",.0f") -> Markup:
        """A number that is in no table, in words what it is, and its format; it goes to ``facts.csv``."""
        self._facts.append((what, str(value)))
        return _data(str(value), f"facts.csv#{len(self._facts)}/value", form)

    def charts(
        self,
        file: str,
        table: pd.DataFrame,
        by: str,
        alt: str,
        draw: Callable[[pd.DataFrame], Figure],
    ) -> dict[str, Any]:
        """Add a table, and draw each group of its rows; ``alt`` and the group's name say what is to be seen."""
        sheet, charts = self.add(file, table), []
        for title, here in table.groupby(by, sort=False):
            whole, inside = figures.svg(draw(here), f"{alt} {title}")
            name_of_file = "".join(
                letter if letter.isalnum() or letter in "-_" else "-" for letter in f"{alt} {title}"
            )
            (self.folder / f"{file}-{name_of_file[:120]}.svg").write_text(whole, encoding="utf-8")
            element = Markup('<figure data-source="{}"><figcaption>{}</figcaption>{}</figure>')
            charts.append(element.format(sheet.path.name, name(title), inside))
        return {"sheet": sheet, "charts": charts}

    def link(self, path: Path) -> str:
        """The address of a file, relative to the page."""
        return quote(Path(os.path.relpath(path, self.page.absolute().parent)).as_posix())

    def write(self, **content: Any) -> None:
        """Write the page, whose template gets ``content``, and ``facts.csv``."""
        loader = jinja2.FileSystemLoader(Path(__file__).parent)
        templates = jinja2.Environment(
            loader=loader,
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        html = templates.get_template("page.html.j2").render(
            book=self, name=name, key=figures.key, **content
        )
        self.page.write_text(html, encoding="utf-8")
        pd.DataFrame(self._facts, columns=["what", "value"]).to_csv(
            self.folder / "facts.csv", index=False
        )


def name(text: object) -> Markup:
    """A name, a date, a version: digits in it are no numbers."""
    return Markup('<span class="name">{}</span>').format(text)


def image(kind: str, content: bytes, alt: str) -> Markup:
    """A picture of a MIME type that needs no file."""
    return Markup('<img src="{}" alt="{}">').format(address(kind, content), alt)


def address(kind: str, content: bytes) -> str:
    """A file as an address that needs no file."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _data(exact: str, cell: str, form: str) -> Markup:
    shown = f"{float(exact):{form}}"
    return Markup('<data value="{}" data-cell="{}">{}</data>').format(exact, cell, shown)
