"""Figures as SVG inside of the page, which take their colours from it: legible in light and in dark."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count

import matplotlib as mpl

mpl.use("Agg")  # no screen is needed
import matplotlib.pyplot as plt
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from benchmarks.summary_plots import COLOURS, STYLES

INK, SOFT, LINE = "#010101", "#020202", "#030303"
"""Stand for colours of the page while a figure is drawn."""

ON_PAGE = {INK: "--ink", SOFT: "--soft", LINE: "--line", "#222222": "--ink"}
ON_PAGE |= {colour: f"--line-{number}" for number, colour in enumerate(COLOURS)}
"""Variables of the style sheet by colours of figures."""

LOOK = {
    **{"svg.fonttype": "none", "svg.hashsalt": "report", "font.family": "sans-serif", "font.size": 9, "axes.titlesize": 9},
    **{f"{part}.facecolor": "none" for part in ("figure", "axes", "savefig")},
    **{"text.color": INK, "axes.labelcolor": SOFT, "axes.edgecolor": SOFT, "xtick.color": SOFT, "ytick.color": SOFT},
    **{"grid.color": LINE, "axes.grid": True, "axes.axisbelow": True, "axes.spines.top": False, "axes.spines.right": False},
}
"""Of matplotlib while figures for the page are drawn."""

_numbers = count(1)


@contextmanager
def drawing(grid: bool = True) -> Iterator[None]:
    """
    Figures that are made and saved within look as the page does.

    :param grid: whether charts have lines at their ticks
    """
    with mpl.rc_context(LOOK | {"axes.grid": grid}):  # type: ignore[arg-type]
        yield


def chart(width: float = 4.3, height: float = 2.9) -> tuple[Figure, Axes]:
    """
    :param width: inches; a chart as wide as a phone has letters as large as the page's small ones
    :param height: inches
    :return: an empty chart of one panel
    """
    return plt.subplots(figsize=(width, height), layout="constrained")


def style(number: int) -> tuple[str, str]:
    """
    :param number: of a line
    :return: its colour and style, different for the first of them
    """
    return COLOURS[number % len(COLOURS)], STYLES[number // len(COLOURS) % len(STYLES)]


def key(number: int) -> str:
    """
    :param number: of a line
    :return: CSS of a border that looks like it
    """
    colour, drawn = style(number)
    return f"{dict(zip(STYLES, ('solid', 'dashed', 'dotted'), strict=True))[drawn]} var({ON_PAGE[colour]})"


def seeds(axes: Axes, number: int, curves: Sequence[Sequence[tuple[float, float]]]) -> None:
    """
    Draw the curves of an agent: a thin line a seed, and a thick one of their mean, where all of them are.

    :param axes: to draw in
    :param number: of the agent's line
    :param curves: of each seed, points (step, value)
    """
    colour, drawn = style(number)
    at: dict[float, list[float]] = {}
    for curve in curves:
        axes.plot(*zip(*curve, strict=True), drawn, color=colour, linewidth=0.8, alpha=0.4)
        for step, value in curve:
            at.setdefault(step, []).append(value)
    steps = sorted(step for step, values in at.items() if len(values) == len(curves))
    axes.plot(steps, [sum(at[step]) / len(curves) for step in steps], drawn, color=colour, linewidth=2.0)


def steps_axis(axes: Axes) -> None:
    """:param axes: whose x-axis counts environment steps from 0"""
    axes.set_xlim(0, None)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def svg(figure: Figure, alt: str) -> Markup:
    """
    :param figure: drawn within :func:`drawing`; it is closed
    :param alt: what is to be seen, for those who do not see it
    :return: an SVG element without a size of its own; identifiers in it are found nowhere else on the page
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    plt.close(figure)
    text = buffer.getvalue()
    _, size, body = re.split(r'<svg [^>]*(viewBox="[^"]*")[^>]*>', text, maxsplit=1)
    # a style sheet within would be one of the whole page
    body = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>|font-family: [^;]*;", "", body, flags=re.S)
    own = f"figure{next(_numbers)}-"
    body = re.sub(r'(\bid="|url\(#|href="#)', lambda match: match[1] + own, body.replace("xlink:href", "href"))
    for colour, variable in ON_PAGE.items():
        body = body.replace(colour, f"var({variable})")
    return Markup('<svg role="img" aria-label="{}" {}>{}').format(alt, Markup(size), Markup(body))


def legend(names: Iterable[Markup | str]) -> list[tuple[Markup | str, str]]:
    """
    :param names: of lines, in the order of their numbers
    :return: each with its key
    """
    return [(each, key(number)) for number, each in enumerate(names)]
