"""Figures. Inside of a page they are SVG and take their colours from it: legible in light and in dark."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")  # no screen is needed
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import EngFormatter, PercentFormatter

from gym_twoRooms.layout import DOORS, SLIPPERY, SWITCHES, WALL, Layout

COLOURS = ("#1b6ca8", "#d1722b", "#3a8f4d", "#a83279", "#7a5cc4", "#b39b1f", "#2aa6a6", "#8a5a3c", "#6b6b6b", "#d0485a")
STYLES = {"-": "solid", "--": "dashed", ":": "dotted"}
"""Of lines, for labels beyond the colours, and in CSS."""
INK, SOFT, LINE = "#1d2430", "#5b6675", "#d9dee5"

ON_PAGE = {INK: "--ink", SOFT: "--soft", LINE: "--line", "#222222": "--ink"}
ON_PAGE |= {colour: f"--line-{number}" for number, colour in enumerate(COLOURS)}
"""Variables of the style sheet by colours of figures."""

LOOK = {
    **{"svg.fonttype": "none", "svg.hashsalt": "report", "font.family": "sans-serif", "font.size": 9, "axes.titlesize": 9},
    **{f"{part}.facecolor": "none" for part in ("figure", "axes", "savefig")},
    **{"text.color": INK, "axes.labelcolor": SOFT, "axes.edgecolor": SOFT, "xtick.color": SOFT, "ytick.color": SOFT},
    **{"grid.color": LINE, "axes.axisbelow": True, "axes.spines.top": False, "axes.spines.right": False},
    **{"legend.frameon": False},
}
"""Of matplotlib while figures are drawn."""

_numbers = count(1)


@contextmanager
def drawing(grid: bool = True, options: Mapping[str, str] | None = None) -> Iterator[None]:
    """
    Figures that are made and saved within look as the page does.

    :param grid: whether charts have lines at their ticks
    :param options: of matplotlib besides
    """
    with mpl.rc_context(LOOK | {"axes.grid": grid} | dict(options or {})):  # type: ignore[arg-type]
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
    return COLOURS[number % len(COLOURS)], list(STYLES)[number // len(COLOURS) % len(STYLES)]


def key(number: int) -> str:
    """
    :param number: of a line
    :return: CSS of a border that looks like it
    """
    colour, drawn = style(number)
    return f"{STYLES[drawn]} var({ON_PAGE[colour]})"


def curves(frame: pd.DataFrame, value: str, by: str, labels: Sequence[str], **axes_options: object) -> Figure:
    """
    A thin line a seed, and a thick one of their mean, where all of them are.

    :param frame: with "step", "seed", and the columns ``value`` and ``by``
    :param value: of the y-axis
    :param by: whose values are labels
    :param labels: in the order of their lines' numbers
    :param axes_options: of matplotlib's ``Axes.set``
    :return: a chart
    """
    figure, axes = chart() if axes_options else chart(3.0, 2.2)
    for number, label in enumerate(labels):
        table = frame[frame[by] == label].pivot_table(value, "step", "seed")
        colour, drawn = style(number)
        for seed in table:
            line = table[seed].dropna()
            axes.plot(line.index, line, drawn, color=colour, linewidth=0.8, alpha=0.4)
        mean = table.dropna().mean(axis=1)
        axes.plot(mean.index, mean, drawn, color=colour, linewidth=2.0)
    axes.set(xlim=(0, None), **axes_options)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    if not axes_options:
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    return figure


def histogram(bins: pd.DataFrame) -> Figure:
    """
    :param bins: "low", "high" and "share"
    :return: the paper's histogram of how often each goal was in an update
    """
    figure, axes = chart(3.4, 2.2)
    axes.bar(bins["low"], bins["share"], bins["high"] - bins["low"], align="edge", color=COLOURS[0])
    axes.set(xlabel="updates", ylabel="share of goals")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    return figure


def against_best(points: pd.DataFrame) -> Figure:
    """
    :param points: "optimal" and "epsilon", steps to goals
    :return: one against the other
    """
    figure, axes = chart(3.4, 2.6)
    most = points["optimal"].max()
    axes.plot([0, most], [0, most], color=INK, linewidth=1, linestyle=(0, (6, 4)))
    axes.plot(points["optimal"], points["epsilon"], ".", color=COLOURS[0], markersize=3, alpha=0.6)
    axes.set(xlabel="steps of the best policy", ylabel="steps, some random actions", xlim=(0, None), ylim=(0, None))
    return figure


def bars(values: pd.Series) -> Figure:
    """
    :param values: by name, shares
    :return: a bar for each, on a scale that is linear near zero and logarithmic beyond
    """
    figure, axes = chart(height=1.0 + 0.17 * len(values))
    axes.barh(values.index, values, color=[COLOURS[0] if value > 0 else COLOURS[1] for value in values])
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.tick_params(axis="y", labelsize=7)
    axes.grid(visible=False, axis="y")
    axes.margins(y=0.01)
    axes.set_xscale("symlog", linthresh=0.1)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    return figure


def failure_map(rows: pd.DataFrame, layout: Layout) -> Figure:
    """
    :param rows: of :func:`benchmarks.report.tables.failures`, of one label, measure and kind of goals
    :param layout: of the world
    :return: where goals fail, by the cell of the agent and of a block in the goal, and by its doors
    """
    figure = plt.figure(figsize=(4.6, 2.3))
    agent, block, scale, doors = figure.subplots(1, 4, width_ratios=[1, 1, 0.05, 0.7])
    figure.subplots_adjust(left=0.03, right=0.97, bottom=0.16, top=0.88, wspace=0.25)
    most = max(rows["failures"].max(), 0.01)
    image = None
    for axes, part in ((agent, "agent"), (block, "block")):
        cells = np.full((layout.height, layout.width), np.nan)
        here = rows[rows["part"] == part]
        cells[here["row"].astype(int), here["column"].astype(int)] = here["failures"]
        image = axes.imshow(np.ma.masked_invalid(cells), cmap="YlOrRd", vmin=0, vmax=most)
        _draw_layout(axes, layout)
        axes.set_xlabel(f"{part} in the goal", fontsize=8)
    assert image is not None
    colours = figure.colorbar(image, cax=scale, format=PercentFormatter(1.0, decimals=0 if most >= 0.05 else 1))
    colours.ax.tick_params(labelsize=7)
    states = rows[rows["part"] == "doors"]
    if states.empty:
        doors.set_axis_off()
        return figure
    few, heights = len(states) < 3, states["failures"].to_numpy()
    names = [said.replace(" ", "\n") if few else said for said in states["doors"]]
    drawn = doors.bar(range(len(states)), heights, color=plt.get_cmap("YlOrRd")(heights / most), width=0.6)
    doors.bar_label(drawn, [f"{height:.1%}" for height in heights], fontsize=7)
    doors.set_xticks(range(len(states)), names, fontsize=7, rotation=0 if few else 60)
    doors.set_yticks([])
    doors.set(ylim=(0, most * 1.15), xlim=(-0.7, len(states) - 0.3))
    doors.spines["left"].set_visible(False)
    return figure


def _draw_layout(axes: Axes, layout: Layout) -> None:
    axes.set_facecolor("#f2f2ee")
    for row, symbols in enumerate(layout.rows):
        for column, symbol in enumerate(symbols):
            corner = (column - 0.5, row - 0.5)
            if symbol == WALL:
                axes.add_patch(Rectangle(corner, 1, 1, facecolor="#48484e", edgecolor="none"))
            elif symbol in DOORS:
                axes.add_patch(Rectangle(corner, 1, 1, facecolor="none", edgecolor="#925426", linewidth=1.8, zorder=3))
            elif symbol == SLIPPERY:
                axes.plot(column, row, ".", color="#16247a", markersize=2.5)
            if symbol in DOORS + SWITCHES:
                letter = axes.text(column, row, symbol, ha="center", va="center", fontsize=6, color="#333333", zorder=4)
                letter.set_path_effects([withStroke(linewidth=1.5, foreground="white")])
    axes.set_xticks(np.arange(0.5, layout.width - 1), [])
    axes.set_yticks(np.arange(0.5, layout.height - 1), [])
    axes.grid(color="white", linewidth=0.4)
    axes.tick_params(length=0)


def svg(figure: Figure, alt: str) -> tuple[str, Markup]:
    """
    :param figure: drawn within :func:`drawing`; it is closed
    :param alt: what is to be seen, for those who do not see it
    :return: an SVG file, and an element for a page, without a size of its own and with identifiers found nowhere else on it
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
    return text, Markup('<svg role="img" aria-label="{}" {}>{}').format(alt, Markup(size), Markup(body))


def mastery_curve(table: Path, picture: Path, epsilon: float) -> None:
    """
    Mastery of one run against environment steps, with the bootstrap intervals over goals; dashed: of goals held out, if any.

    :param table: ``mastery.csv`` of a run
    :param picture: the PNG to write
    :param epsilon: of the second measurement
    """
    rows = pd.read_csv(table)
    with _one(picture, ylabel="mastery", ylim=(0, 1.02)) as axes:
        for prefix, words, line in (("", "", "-"), ("held_out_", ", held-out goals", "--")):
            for name, label, colour in zip(("greedy", "epsilon"), ("greedy", f"epsilon {epsilon:g}"), COLOURS, strict=False):
                if (column := prefix + name) in rows:
                    axes.plot(rows["step"], rows[column], line, label=label + words, color=colour, linewidth=2)
                    ends = (rows[f"{column}_{end}"] for end in ("low", "high"))
                    axes.fill_between(rows["step"], *ends, color=colour, alpha=0.2, linewidth=0)


def return_curve(table: Path, picture: Path, title: str, paper: float | None) -> None:
    """
    Return of one run against environment steps, and the paper's final score.

    :param table: ``curve.csv`` of the run
    :param picture: the PNG to write
    :param title: of the figure
    :param paper: the paper's score after 10M steps, if it has one
    """
    rows = pd.read_csv(table)
    with _one(picture, ylabel="return of an episode", title=title) as axes:
        axes.plot(rows["step"], rows["episode_return"], color=COLOURS[0], linewidth=2, label="mean of the last 100 episodes")
        if paper is not None:
            axes.axhline(paper, color=COLOURS[1], linewidth=1.2, linestyle=(0, (6, 4)), label="the paper's, after 10M steps")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))


@contextmanager
def _one(picture: Path, **options: object) -> Iterator[Axes]:
    """A figure of one run, on white."""
    with drawing(options={"figure.facecolor": "white", "savefig.facecolor": "white", "font.size": "10"}):
        figure, axes = chart(7, 4)
        yield axes
        axes.set(xlabel="environment steps", xlim=(0, None), **options)
        axes.legend()
        figure.savefig(picture, dpi=150)
        plt.close(figure)
