"""
Figures.

Inside of a page they are SVG and take their colours from it: they are legible in light and in dark.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from itertools import count

import matplotlib as mpl

mpl.use("Agg")  # No screen is needed.
import matplotlib.pyplot as plt
import pandas as pd
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, PercentFormatter

COLOURS = (
    "#1b6ca8",
    "#d1722b",
    "#3a8f4d",
    "#a83279",
    "#7a5cc4",
    "#b39b1f",
    "#2aa6a6",
    "#8a5a3c",
    "#6b6b6b",
    "#d0485a",
)
"""Colours of lines and bars."""
STYLES = {"-": "solid", "--": "dashed", ":": "dotted"}
"""Styles of lines, for labels beyond the colours, and their names in CSS."""
INK = "#1d2430"
"""Colour of text."""
SOFT = "#5b6675"
"""Colour of axes and what is written at them."""
LINE = "#d9dee5"
"""Colour of the grid."""

ON_PAGE = {INK: "--ink", SOFT: "--soft", LINE: "--line", "#222222": "--ink"}
ON_PAGE |= {colour: f"--line-{number}" for number, colour in enumerate(COLOURS)}
"""Variables of the style sheet by colours of figures."""

LOOK = {
    "svg.fonttype": "none",
    "svg.hashsalt": "report",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.titlesize": 9,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "text.color": INK,
    "axes.labelcolor": SOFT,
    "axes.edgecolor": SOFT,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "grid.color": LINE,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "axes.grid": True,
}
"""Settings of matplotlib while figures are drawn."""

SMALL = (3.0, 2.2)
"""Inches of a chart of which a page has many."""
MEDIUM = (4.3, 2.9)
"""Inches of a chart of which a page has few."""

_numbers = count(1)


def key(number: int) -> str:
    """
    Return the CSS of a border that looks like a line.

    :param number: number of the line
    :return: style and colour
    """
    colour, drawn = _style(number)
    return f"{STYLES[drawn]} var({ON_PAGE[colour]})"


def _style(number: int) -> tuple[str, str]:
    """Return the colour and the style of a line."""
    return COLOURS[number % len(COLOURS)], list(STYLES)[number // len(COLOURS) % len(STYLES)]


def _chart(width: float, height: float) -> tuple[Figure, Axes]:
    """
    Make a chart of a size in inches.

    A chart as wide as a phone has letters as large as the page's small ones.
    """
    return plt.subplots(figsize=(width, height), layout="constrained")


@mpl.rc_context(LOOK)  # type: ignore[arg-type]
def curves(
    lines: pd.DataFrame,
    agents: Sequence[str],
    size: tuple[float, float] = SMALL,
    **axes_options: object,
) -> Figure:
    """
    Draw a line for each agent with a band for its interval, or thin lines for its few seeds.

    :param lines: lines as :func:`benchmarks.report.tables.bands` returns them
    :param agents: names of the agents, in the order of their colours
    :param size: width and height in inches
    :param axes_options: arguments of matplotlib's ``Axes.set``
    :return: the figure
    """
    figure, axes = _chart(*size)
    for number, agent in enumerate(agents):
        line = lines[lines["agent"] == agent]
        colour, drawn = _style(number)
        label = agent
        for seed, run in line.groupby("seed", dropna=False):
            width = 2.0 if pd.isna(seed) else 1.0
            axes.plot(run["step"], run["value"], drawn, color=colour, linewidth=width, label=label)
            label = "_"  # One entry of the legend is enough for all seeds.
        if line["low"].notna().any():
            low = line["low"].astype(float)
            high = line["high"].astype(float)
            axes.fill_between(line["step"], low, high, color=colour, alpha=0.2, linewidth=0)
    axes.set(xlim=(0, None), **axes_options)
    if lines["step"].max() >= 1000:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    return figure


@mpl.rc_context(LOOK)  # type: ignore[arg-type]
def histogram(bins: pd.DataFrame) -> Figure:
    """
    Draw the paper's histogram of how often each goal was in an update.

    :param bins: columns "low", "high" and "share", of :func:`benchmarks.report.tables.updates`
    :return: the figure
    """
    figure, axes = _chart(3.4, 2.2)
    axes.bar(bins["low"], bins["share"], bins["high"] - bins["low"], align="edge", color=COLOURS[0])
    axes.set(xlabel="updates", ylabel="share of goals")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    return figure


@mpl.rc_context(LOOK)  # type: ignore[arg-type]
def bars(improvements: pd.DataFrame) -> Figure:
    """
    Draw a bar for each game, on a scale that is linear near zero and logarithmic beyond.

    :param improvements: columns "game" and "improvement"
    :return: the figure
    """
    values = improvements.set_index("game")["improvement"].sort_values()
    figure, axes = _chart(4.3, 1.0 + 0.17 * len(values))
    colours = [COLOURS[0] if value > 0 else COLOURS[1] for value in values]
    axes.barh(values.index, values, color=colours)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.tick_params(axis="y", labelsize=7)
    axes.grid(visible=False, axis="y")
    axes.margins(y=0.01)
    axes.set_xscale("symlog", linthresh=0.1)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    return figure


@mpl.rc_context(LOOK)  # type: ignore[arg-type]
def svg(figure: Figure, alt: str) -> tuple[str, Markup]:
    """
    Turn a figure into SVG, and close it.

    :param figure: the figure
    :param alt: words that say what is to be seen, for those who do not see it
    :return: the text of a file, with a legend if the figure has labels; and an element for a page
        that has its own legend, whose identifiers are found nowhere else on the page
    """
    _, size, body = re.split(r'<svg [^>]*(viewBox="[^"]*")[^>]*>', _saved(figure), maxsplit=1)
    if figure.axes[0].get_legend_handles_labels()[1]:
        figure.axes[0].legend(fontsize=7)
    text = _saved(figure)
    plt.close(figure)
    # A style sheet within the figure would be one of the whole page.
    body = re.sub(
        r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>|font-family: [^;]*;",
        "",
        body,
        flags=re.S,
    )
    own = f"figure{next(_numbers)}-"
    body = body.replace("xlink:href", "href")
    body = re.sub(r'(\bid="|url\(#|href="#)', lambda match: match[1] + own, body)
    for colour, variable in ON_PAGE.items():
        body = body.replace(colour, f"var({variable})")
    element = Markup('<svg role="img" aria-label="{}" {}>{}')
    return text, element.format(alt, Markup(size), Markup(body))


def _saved(figure: Figure) -> str:
    """Return the figure as SVG, without what changes from call to call."""
    buffer = io.StringIO()
    metadata = {"Date": None, "Creator": None, "Format": None, "Type": None}
    figure.savefig(buffer, format="svg", metadata=metadata)
    return buffer.getvalue()
