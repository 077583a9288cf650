"""
A page and the CSV files beside it.

Each number that the page shows is a cell of one of them, and says which.
"""

from __future__ import annotations

import base64
import io
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure

from benchmarks.report import figures
from benchmarks.suite.spec import write_whole

OWN_FILES = re.compile(r"(facts|runs|coverage|(mastery|games)\d+-.*)\.(csv|svg)")
"""Names of the files beside a page. Those of an earlier page are removed."""


class Sheet:
    """
    A CSV file of a page.

    :param name: name of the file
    :param text: its content; ``frame`` has its cells as text
    """

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.frame = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)

    def __len__(self) -> int:
        return len(self.frame)

    def has(self, column: str) -> bool:
        """
        Return whether any cell of a column is filled.

        :param column: name of the column, which need not be there
        :return: whether a cell has text
        """
        return column in self.frame and any(self.frame[column])

    def cell(self, row: int, column: str, form: str = "") -> Markup:
        """
        Return an element that shows a cell.

        It says in ``data-cell`` which file, row (counted from 1, below the names) and column it is.
        Columns ``_low`` and ``_high`` of the same name give an interval.

        :param row: counted from 0
        :param column: name of the column
        :param form: format of a number; by default the cell has words, whose digits are no numbers
        :return: HTML, empty for an empty cell
        """
        text = self.frame[column][row]
        if not form or text in ("", "inf"):
            return name("not reached" if text == "inf" else text) if text else Markup("")
        shown = _data(text, f"{self.name}#{row + 1}/{column}", form)
        if self.frame.get(f"{column}_low", {}).get(row):
            low, high = (self.cell(row, f"{column}_{end}", form) for end in ("low", "high"))
            shown += Markup(' <span class="soft">[{}, {}]</span>').format(low, high)
        return shown


class Book:
    """
    An HTML page, and a folder of CSV files beside it.

    Nothing is written before :meth:`write`, so that a page and its files are of one call.

    :param page: the page; the folder has its name without the ending, and ``-data``
    """

    def __init__(self, page: Path) -> None:
        self.page = page
        self.folder = page.with_name(f"{page.stem}-data")
        self._facts: list[tuple[str, str]] = []
        self._texts = {"facts.csv": ""}

    def files(self) -> list[Path]:
        """
        Return the files that will be in the folder.

        :return: paths, sorted
        """
        return sorted(self.folder / file for file in self._texts)

    def add(self, file: str, frame: pd.DataFrame) -> Sheet:
        """
        Add a table, which will be a CSV file.

        :param file: name of the file, without its ending
        :param frame: the table
        :return: the file as it will be written
        """
        text = frame.to_csv(index=False, float_format="%.10g")
        self._texts[f"{file}.csv"] = text
        return Sheet(f"{file}.csv", text)

    def fact(self, what: str, value: float, form: str = ",.0f") -> Markup:
        """
        Show a number that is in no table. It goes to ``facts.csv``.

        :param what: what the number is, in words
        :param value: the number
        :param form: its format; by default a whole number
        :return: HTML
        """
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
        """
        Add a table, and draw each group of its rows.

        :param file: name of the CSV file, without its ending
        :param table: the table
        :param by: column whose values tell the groups apart
        :param alt: words that say with the group's name what is to be seen
        :param draw: function that makes a figure of the rows of a group
        :return: "sheet", the table, and "charts", a list of HTML elements
        """
        sheet = self.add(file, table)
        charts = []
        for number, (title, here) in enumerate(table.groupby(by, sort=False), start=1):
            text = f"{alt} {title}"
            whole, inside = figures.svg(draw(here), text)
            name_of_file = "".join(
                letter if letter.isalnum() or letter in "-_" else "-" for letter in text
            )
            # Names are cut, so that only their numbers tell some of them apart.
            self._texts[f"{file}-{number}-{name_of_file[:120]}.svg"] = whole
            element = Markup('<figure data-source="{}"><figcaption>{}</figcaption>{}</figure>')
            charts.append(element.format(sheet.name, name(title), inside))
        return {"sheet": sheet, "charts": charts}

    def link(self, path: Path) -> str:
        """
        Return the address of a file, relative to the page.

        :param path: the file
        :return: a URL
        """
        return quote(Path(os.path.relpath(path, self.page.absolute().parent)).as_posix())

    def write(self, **content: Any) -> None:
        """
        Write the page and its files, and remove those of an earlier page.

        :param content: variables that the template of the page needs
        """
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
        facts = pd.DataFrame(self._facts, columns=["what", "value"])
        self._texts["facts.csv"] = facts.to_csv(index=False)
        self.folder.mkdir(parents=True, exist_ok=True)
        for file, text in self._texts.items():
            write_whole(self.folder / file, text)
        write_whole(self.page, html)
        for path in self.folder.iterdir():
            if path.name not in self._texts and OWN_FILES.fullmatch(path.name):
                path.unlink()


def name(text: object) -> Markup:
    """
    Show a name, a date or a version: digits in it are no numbers.

    :param text: what is shown
    :return: HTML
    """
    return Markup('<span class="name">{}</span>').format(text)


def image(kind: str, content: bytes, alt: str) -> Markup:
    """
    Show a picture that needs no file.

    :param kind: MIME type
    :param content: content of a file with the picture
    :param alt: what is to be seen, for those who do not see it
    :return: HTML
    """
    return Markup('<img src="{}" alt="{}">').format(address(kind, content), alt)


def address(kind: str, content: bytes) -> str:
    """
    Return the content of a file as an address that needs no file.

    :param kind: MIME type
    :param content: content of the file
    :return: a URL
    """
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _data(exact: str, cell: str, form: str) -> Markup:
    shown = f"{float(exact):{form}}"
    return Markup('<data value="{}" data-cell="{}">{}</data>').format(exact, cell, shown)
