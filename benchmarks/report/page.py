"""What a page is made of. Each number that it shows is a cell of a CSV file beside it, and says which."""

from __future__ import annotations

import base64
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import quote

import jinja2
import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure

from benchmarks.report import figures

Form: TypeAlias = Literal["share", "share4", "percent", "percent1", "percent2", "count", "short", "score", "plain"]
"""How a number is shown; see :data:`FORMS`."""
Cell: TypeAlias = Markup | str
Column: TypeAlias = tuple[Cell, str | Callable[[int], Cell], Form | Literal["text"]]
"""Of a table: its head, the column of the sheet or a function of the row, how it is shown."""

FORMS: Mapping[str, Callable[[float], str]] = {
    "share": lambda value: f"{value:.3f}",
    "share4": lambda value: f"{value:.4f}",
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
    A CSV file, as it was written.

    :param path: of the file
    :ivar frame: its cells, as text
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.frame = pd.read_csv(path, dtype=str, keep_default_na=False)

    def __len__(self) -> int:
        return len(self.frame)

    def number(self, row: int, column: str, form: Form = "plain") -> Markup:
        """
        :param row: of the cell, counted from 0
        :param column: of the cell
        :param form: to be shown in
        :return: an element with the number, and in ``data-cell`` the file, the row (counted from 1, below the names) and the
            column. Nothing, of an empty cell; words, of infinity
        """
        text = self.frame[column][row]
        if text == "":
            return Markup("")
        value = float(text)
        if math.isinf(value):
            return Markup("not reached")
        return _data(text, f"{self.path.name}#{row + 1}/{column}", FORMS[form](value))

    def interval(self, row: int, column: str, form: Form = "share") -> Markup:
        """
        :param row: counted from 0
        :param column: of a value, whose interval is in the columns named so and ``_low``, ``_high``
        :param form: to be shown in
        :return: the three numbers, or those there are
        """
        value, low, high = (self.number(row, f"{column}{end}", form) for end in ("", "_low", "_high"))
        return Markup('{} <span class="soft">[{}, {}]</span>').format(value, low, high) if low and high else value

    def text(self, row: int, column: str) -> Markup:
        """
        :param row: counted from 0
        :param column: of a cell with words
        :return: them, marked as a name, in which digits are no numbers
        """
        return name(self.frame[column][row])

    def table(self, columns: Sequence[Column], title: Cell = "", folded: bool = False, most: int | None = None) -> Markup:
        """
        :param columns: the first names the rows
        :param title: said above it, or what is clicked on to see it
        :param folded: whether it is out of sight at first
        :param most: rows to show; None: all
        :return: rows of the file as a table; intervals where there are some
        """
        rows = []
        for row in range(len(self))[:most]:
            cells = []
            for _, column, form in columns:
                if not isinstance(column, str):
                    cells.append(column(row))
                elif form == "text":
                    cells.append(self.text(row, column))
                else:
                    has_ends = f"{column}_low" in self.frame
                    cells.append((self.interval if has_ends else self.number)(row, column, form))
            rows.append(cells)
        return table([head for head, _, _ in columns], rows, title, folded, self)


class Book:
    """
    A page and the CSV files beside it.

    :param page: the HTML file
    :param folder: of the CSV files; None: a new one, named as the page without the ending, and ``-data``
    :param facts: name of the file, without ending, with numbers that are in no table
    """

    def __init__(self, page: Path, folder: Path | None = None, facts: str = "facts") -> None:
        self.page, self._name = page, facts
        self.folder = page.with_name(f"{page.stem}-data") if folder is None else folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self._facts: list[tuple[str, float]] = []

    def add(self, file: str, frame: pd.DataFrame) -> Sheet:
        """
        :param file: its name, without the ending
        :param frame: what to write
        :return: what was written
        """
        frame.to_csv(self.folder / f"{file}.csv", index=False, float_format="%.10g")
        return Sheet(self.folder / f"{file}.csv")

    def fact(self, what: str, value: float, form: Form = "count") -> Markup:
        """
        A number that is in no table, for a file that :meth:`write` writes.

        :param what: it is the number of
        :param value: of it
        :param form: to be shown in
        :return: as of :meth:`Sheet.number`
        """
        self._facts.append((what, value))
        return _data(str(value), f"{self._name}.csv#{len(self._facts)}/value", FORMS[form](value))

    def chart(self, title: Cell, figure: Figure, alt: str, source: Sheet) -> Markup:
        """
        :param title: said above it
        :param figure: drawn within :func:`benchmarks.report.figures.drawing`; it is closed
        :param alt: what is to be seen, for those who do not see it
        :param source: of what it shows
        :return: the figure, which is also written as an SVG file named as ``alt``
        """
        whole, inside = figures.svg(figure, alt)
        file = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in alt)
        (self.folder / f"{source.path.stem}-{file[:120]}.svg").write_text(whole, encoding="utf-8")
        element = '<figure data-source="{}"><figcaption>{}</figcaption>{}</figure>'
        return Markup(element).format(source.path.name, title, inside)

    def link(self, path: Path) -> str:
        """
        :param path: of a file
        :return: its address, relative to the page
        """
        return quote(Path(os.path.relpath(path, self.page.absolute().parent)).as_posix())

    def files(self, owner: Cell, paths: Iterable[tuple[Path, str]]) -> Markup:
        """
        :param owner: of files
        :param paths: of these files, with names
        :return: an item of a list, with links to them
        """
        links = [Markup('<a href="{}">{}</a>').format(self.link(path), words) for path, words in paths]
        return Markup("<li>{}: {}</li>").format(owner, Markup(", ").join(links))

    def write(self, title: str, lead: Cell, sections: Iterable[Section]) -> None:
        """
        :param title: of the page
        :param lead: said below it
        :param sections: of the page
        """
        facts = pd.DataFrame([(what, str(value)) for what, value in self._facts], columns=["what", "value"])
        facts.to_csv(self.folder / f"{self._name}.csv", index=False)
        loader = jinja2.FileSystemLoader(Path(__file__).parent)
        templates = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
        html = templates.get_template("page.html.j2").render(title=title, lead=lead, sections=list(sections))
        self.page.write_text(html, encoding="utf-8")


Section: TypeAlias = tuple[str, Cell, Markup]
"""Of a page: anchor, title, content."""


def _data(exact: str, cell: str, shown: str) -> Markup:
    return Markup('<data value="{}" data-cell="{}">{}</data>').format(exact, cell, shown)


def name(text: object) -> Markup:
    """
    :param text: a name, a date, a version: digits in it are no numbers
    :return: it, marked as such
    """
    return Markup('<span class="name">{}</span>').format(text)


def words(*parts: Cell) -> Markup:
    """
    :param parts: of a paragraph
    :return: the paragraph
    """
    return Markup("<p>{}</p>").format(Markup("").join(parts))


def heading(text: Cell) -> Markup:
    """
    :param text: of a heading within a section
    :return: the heading
    """
    return Markup("<h3>{}</h3>").format(text)


def fold(title: Cell, content: Cell) -> Markup:
    """
    :param title: what is clicked on
    :param content: seen then
    :return: both
    """
    return Markup("<details><summary>{}</summary>{}</details>").format(title, content)


def table(
    head: Sequence[Cell], rows: Iterable[Sequence[Cell]], title: Cell = "", folded: bool = False, source: Sheet | None = None
) -> Markup:
    """
    :param head: names of columns
    :param rows: cells, the first of which names its row
    :param title: said above it, or what is clicked on to see it
    :param folded: whether it is out of sight at first
    :param source: of its numbers
    :return: the table
    """
    join = Markup("").join
    lines = [
        join([Markup('<th scope="row">{}</th>').format(first), *(Markup("<td>{}</td>").format(cell) for cell in rest)])
        for first, *rest in rows
    ]
    content = Markup(
        '<div class="scroll" tabindex="0"><table><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>'
    ).format(
        join(Markup('<th scope="col">{}</th>').format(cell) for cell in head),
        join(Markup("<tr>{}</tr>\n").format(line) for line in lines),
    )
    if source is not None:
        content += _source(source)
    if folded:
        return fold(title, content)
    return (Markup('<p class="soft">{}</p>').format(title) if title else Markup("")) + content


def charts(drawn: Sequence[Markup], source: Sheet, legend: Sequence[str] = (), size: str = "medium") -> Markup:
    """
    :param drawn: of :meth:`Book.chart`
    :param source: of what they show
    :param legend: names of lines, in the order of their numbers
    :param size: "small" or "medium"
    :return: the figures beside each other, as many as there is room for
    """
    item = '<li><span class="key" style="border-top: 3px {}"></span>{}</li>'
    keys = Markup("").join(Markup(item).format(figures.key(number), name(each)) for number, each in enumerate(legend))
    said = Markup('<ul class="legend">{}</ul>').format(keys) if legend else Markup("")
    return said + Markup('<div class="charts {}">{}</div>').format(size, Markup("\n").join(drawn)) + _source(source)


def gallery(pictures: Iterable[tuple[Markup, Cell]], size: str = "medium") -> Markup:
    """
    :param pictures: elements with what is said below them
    :param size: "icons" are shown as large as they are, "medium" as wide as charts
    :return: the pictures beside each other
    """
    shown = [Markup("<figure>{}<figcaption>{}</figcaption></figure>").format(*each) for each in pictures]
    return Markup('<div class="gallery {}">{}</div>').format(size, Markup("\n").join(shown))


def image(kind: str, content: bytes, alt: str) -> Markup:
    """
    :param kind: MIME type
    :param content: of the file
    :param alt: what is on it
    :return: a picture or video that needs no file
    """
    source = f"data:{kind};base64,{base64.b64encode(content).decode()}"
    if kind.startswith("video/"):
        return Markup('<video controls muted playsinline preload="metadata" src="{}" aria-label="{}"></video>').format(
            source, alt
        )
    return Markup('<img src="{}" alt="{}">').format(source, alt)


def _source(sheet: Sheet) -> Markup:
    return Markup('<p class="source">Numbers: {}</p>').format(name(sheet.path.name))
