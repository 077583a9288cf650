"""The CSV files beside a page. Whatever number the page shows is a cell of one of them, and says which."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from markupsafe import Markup

from benchmarks.summary_tables import write

Form: TypeAlias = Literal["share", "percent", "percent1", "percent2", "count", "short", "score", "plain"]
"""How a number is shown; see :data:`FORMS`."""

FORMS: Mapping[Form, Callable[[float], str]] = {
    "share": lambda value: f"{value:.3f}",
    "percent": lambda value: f"{100 * value:.3g}%",
    "percent1": lambda value: f"{100 * value:.1f}%",
    "percent2": lambda value: f"{100 * value:.2f}%",
    "count": lambda value: f"{value:,.0f}",
    "short": lambda value: f"{value:,.2f}",
    "score": lambda value: f"{value:,.1f}",
    "plain": lambda value: f"{value:g}",
}


class Sheet:
    """
    A CSV file in the page's folder of data, as it was written.

    :param path: of the file
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            self.rows: list[dict[str, str]] = list(reader)
            self.columns = list(reader.fieldnames or ())

    def number(self, row: int, column: str, form: Form = "plain") -> Markup:
        """
        :param row: of the cell, counted from 0
        :param column: of the cell
        :param form: to be shown in
        :return: an element that shows the number and has it as it is in the file, with the file, the row (counted from 1,
            below the names) and the column in ``data-cell``. Nothing, of an empty cell; words, of infinity
        """
        text = self.rows[row][column]
        if text == "":
            return Markup("")
        value = float(text)
        if math.isinf(value):
            return Markup("not reached")
        where = f"{self.path.name}#{row + 1}/{column}"
        shown = FORMS[form](value)
        return Markup('<data value="{}" data-cell="{}">{}</data>').format(text, where, shown)

    def interval(self, row: int, column: str, form: Form = "share") -> Markup:
        """
        :param row: counted from 0
        :param column: of a value, whose interval is in the columns named so and ``_low``, ``_high``, if there is one
        :param form: to be shown in
        :return: the three numbers, or those there are
        """
        value = self.number(row, column, form)
        low, high = (self.number(row, f"{column}_{end}", form) for end in ("low", "high"))
        return Markup('{} <span class="soft">[{}, {}]</span>').format(value, low, high) if low and high else value

    def text(self, row: int, column: str) -> Markup:
        """
        :param row: counted from 0
        :param column: of a cell with words
        :return: them, marked as a name, in which digits are no numbers
        """
        return name(self.rows[row][column])


class Book:
    """
    All CSV files of a page, in a folder beside it.

    :param page: the page; the folder has its name without the ending, and ``-data``
    """

    def __init__(self, page: Path) -> None:
        self.page = page
        self.folder = page.with_name(f"{page.stem}-data")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._facts: list[dict[str, Any]] = []

    def add(self, file: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Sheet:
        """
        :param file: its name, without the ending
        :param columns: of it
        :param rows: values by column; those that are missing or None stay empty
        :return: what was written
        """
        write(self.folder / f"{file}.csv", columns, rows)
        return self.read(file)

    def read(self, file: str) -> Sheet:
        """
        :param file: the name of one that is there, without the ending
        :return: it
        """
        return Sheet(self.folder / f"{file}.csv")

    def fact(self, what: str, value: float, form: Form = "count") -> Markup:
        """
        A number that is in no table, for ``facts.csv``, which :meth:`close` writes.

        :param what: it is the number of
        :param value: of it
        :param form: to be shown in
        :return: as of :meth:`Sheet.number`
        """
        self._facts.append({"what": what, "value": value})
        where = f"facts.csv#{len(self._facts)}/value"
        return Markup('<data value="{}" data-cell="{}">{}</data>').format(value, where, FORMS[form](value))

    def close(self) -> None:
        """Write ``facts.csv``."""
        write(self.folder / "facts.csv", ["what", "value"], self._facts)


def name(text: object) -> Markup:
    """
    :param text: a name, a date, a version: digits in it are no numbers
    :return: it, marked as such
    """
    return Markup('<span class="name">{}</span>').format(text)
