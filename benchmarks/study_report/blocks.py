"""What sections of a page are made of; the template knows how each looks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from markupsafe import Markup

from benchmarks.study_report.sheets import Sheet

Cell: TypeAlias = Markup | str


@dataclass(frozen=True)
class Words:
    """A paragraph."""

    kind: ClassVar[str] = "words"
    text: Cell


@dataclass(frozen=True)
class Table:
    """
    A table, whose first column names its rows.

    :ivar head: names of its columns
    :ivar rows: cells
    :ivar sources: the files in which its numbers are
    :ivar title: said above it, and what is clicked on to see it where it is folded; may be empty
    :ivar folded: whether it is out of sight at first
    """

    kind: ClassVar[str] = "table"
    head: Sequence[Cell]
    rows: Sequence[Sequence[Cell]]
    sources: Sequence[Sheet] = ()
    title: Cell = ""
    folded: bool = False


@dataclass(frozen=True)
class Chart:
    """
    A figure.

    :ivar title: said above it
    :ivar svg: of :func:`benchmarks.study_report.figures.svg`
    """

    title: Cell
    svg: Markup


@dataclass(frozen=True)
class Charts:
    """
    Figures beside each other, as many as there is room for.

    :ivar charts: those
    :ivar source: the file in which what they show is
    :ivar legend: names of lines, each with the CSS of a piece of it
    :ivar size: "small" or "medium"
    :ivar folded: what to click on to see them; empty if they are in sight
    """

    kind: ClassVar[str] = "charts"
    charts: Sequence[Chart]
    source: Sheet
    legend: Sequence[tuple[Cell, str]] = ()
    size: str = "medium"
    folded: Cell = ""


@dataclass(frozen=True)
class Picture:
    """
    A picture, an animation or a video.

    :ivar src: its data URI
    :ivar alt: what is on it
    :ivar caption: said below it
    :ivar still: of an animation, for those who want nothing to move; empty of others
    :ivar is_video: whether it is a video
    """

    src: str
    alt: str
    caption: Cell = ""
    still: str = ""
    is_video: bool = False


@dataclass(frozen=True)
class Gallery:
    """
    Pictures beside each other.

    :ivar pictures: those
    :ivar title: said above them; may be empty
    :ivar size: "icons" are shown as large as they are, "medium" as wide as charts
    :ivar folded: whether they are out of sight at first, below the title
    """

    kind: ClassVar[str] = "gallery"
    pictures: Sequence[Picture]
    title: Cell = ""
    size: str = "medium"
    folded: bool = False


@dataclass(frozen=True)
class Links:
    """
    Files by what they belong to, out of sight at first.

    :ivar groups: what they belong to, and addresses with names
    :ivar title: what to click on to see them
    """

    kind: ClassVar[str] = "links"
    groups: Sequence[tuple[Cell, Sequence[tuple[str, str]]]]
    title: Cell


Block: TypeAlias = Words | Table | Charts | Gallery | Links


@dataclass(frozen=True)
class Section:
    """
    A part of the page.

    :ivar anchor: by which it is linked to
    :ivar title: of it
    :ivar blocks: what it is made of
    """

    anchor: str
    title: Cell
    blocks: Sequence[Block] = field(default_factory=list)
