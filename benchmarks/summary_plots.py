"""Figures over many runs, from the CSV files of a summary."""

from __future__ import annotations

import csv
import textwrap
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # no screen is needed
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import EngFormatter, MaxNLocator, NullLocator, PercentFormatter, StrMethodFormatter

from benchmarks.plotting import GREEDY, NOISY
from benchmarks.summary_tables import interval
from gym_twoRooms.layout import DOORS, FLOOR, SLIPPERY, SWITCHES, WALL, Layout

COLOURS = ("#1b6ca8", "#d1722b", "#3a8f4d", "#a83279", "#7a5cc4", "#b39b1f", "#2aa6a6", "#8a5a3c", "#6b6b6b", "#d0485a")
STYLES = ("-", "--", ":")
"""Of lines, for labels beyond the colours."""
GROUND, STONE, DOOR = "#f2f2ee", "#48484e", "#925426"
"""Of cells that a map says nothing about, of walls, and of outlines of doors."""
COLUMNS = 4
"""Of small figures beside each other."""


def mastery(table: Path, picture: Path, epsilon: float, ceiling: float, held_out: bool = False) -> None:
    """
    Mastery against environment steps, a line a label: means over seeds, with 95% bands. Faint where seeds are missing.

    :param table: ``curves.csv``
    :param picture: the PNG to write, if there is something to show
    :param epsilon: of the second measurement
    :param ceiling: mastery of the best policy
    :param held_out: of goals held out, instead of all
    """
    prefix = "held_out_" if held_out else ""
    looks = dict(_looks(_read(table)))  # of all, so that a label looks the same here and there
    rows = [row for row in _read(table) if row[f"{prefix}greedy"]]
    if not _has(rows, picture):
        return
    last = {(row["label"], row["seed"]): float(row[f"{prefix}epsilon"]) for row in rows}
    means = {label: np.mean([value for (name, _), value in last.items() if name == label]) for label, _ in last}
    best_first = sorted(means, key=lambda label: -means[label])
    band = 0.15 / max(1.0, len(means) / 6)
    figure, panels = plt.subplots(1, 2, figsize=(11, 4.2), dpi=150, layout="constrained", sharey=True)
    for axes, measure, title in zip(panels, ("greedy", "epsilon"), ("greedy", f"epsilon {epsilon:g}"), strict=True):
        for label in best_first:
            _curve(axes, [row for row in rows if row["label"] == label], prefix + measure, label, looks[label], band)
        best = axes.axhline(ceiling, color="#222222", linewidth=1, linestyle=(0, (6, 4)), zorder=1)
        axes.set(xlabel="environment steps", title=title, ylim=(0, 1.03), xlim=(0, None))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        _open(axes)
    panels[0].set_ylabel("mastery of held-out goals" if held_out else "mastery")
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend([*handles, best], [*names, "best policy"], loc="outside right upper", frameon=False, fontsize=8)
    _save(figure, picture)


def _curve(axes: Axes, rows: Sequence[dict[str, str]], column: str, label: str, look: tuple[str, str], band: float) -> None:
    colour, style = look
    seeds = len({row["seed"] for row in rows})
    at: dict[float, list[float]] = {}
    for row in rows:
        at.setdefault(float(row["step"]), []).append(float(row[column]))
    steps = sorted(at)
    means = [float(np.mean(at[step])) for step in steps]
    complete = [step for step in steps if len(at[step]) == seeds]
    said = f"{_lines(label)} ({seeds} seed{'s' if seeds > 1 else ''})"
    axes.plot(steps, means, style, color=colour, linewidth=1.8, alpha=0.35)
    axes.plot(complete, [float(np.mean(at[step])) for step in complete], style, color=colour, linewidth=1.8, label=said)
    bands = [(step, *found) for step in steps if (found := interval(at[step])) is not None]
    if bands:
        axes.fill_between(*np.array(bands).T, color=colour, alpha=band, linewidth=0)


def updates(table: Path, picture: Path) -> None:
    """
    The paper's histogram of how often each goal was in an update, a panel a label.

    :param table: ``updates.csv``
    :param picture: the PNG to write, if there is something to show
    """
    rows = _read(table)
    if not _has(rows, picture):
        return
    figure, panels = _grid(list(dict.fromkeys(row["label"] for row in rows)))
    for label, axes in panels:
        bins = [row for row in rows if row["label"] == label]
        low, high, share, goals = (np.array([float(row[name]) for row in bins]) for name in ("low", "high", "share", "goals"))
        axes.bar(low, share, high - low, align="edge", color=GREEDY, edgecolor="white", linewidth=0.3)
        mean = float(((low + high) / 2 * share).sum())
        axes.axvline(mean, color=NOISY, linewidth=1.2)
        side, align = (0.97, "right") if mean < (low[0] + high[-1]) / 2 else (0.03, "left")
        text = f"mean {_short(mean)}\n{goals.sum():,.0f} goals"
        axes.text(side, 0.95, text, transform=axes.transAxes, ha=align, va="top", fontsize=8, color="#555555")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    _name_axes(figure, "updates that a goal was in", "share of goals")
    _save(figure, picture)


def steps(table: Path, picture: Path, epsilon: float) -> None:
    """
    Steps to each goal against those of the best policy, a panel a label.

    :param table: ``steps.csv``
    :param picture: the PNG to write, if there is something to show
    :param epsilon: of the second measurement
    """
    rows = _read(table)
    if not _has(rows, picture):
        return
    optima = [float(row["optimal"]) for row in rows]
    ends = [0.9 * max(1.0, min(optima)), 1.1 * max(optima)]
    figure, panels = _grid(list(dict.fromkeys(row["label"] for row in rows)), height=2.6, shared=True)
    for label, axes in panels:
        said = []
        for measure, colour, name in (("epsilon", NOISY, f"epsilon {epsilon:g}"), ("greedy", GREEDY, "greedy")):
            points = [row for row in rows if row["label"] == label and row[measure]]
            if points:
                columns = ("optimal", measure, f"{measure}_reached")
                optimal, taken, reached = (np.array([float(row[column]) for row in points]) for column in columns)
                axes.scatter(optimal, np.maximum(taken, 1), s=6, color=colour, alpha=0.5, linewidths=0, label=name)
                said.append(f"{(taken * reached).sum() / (optimal * reached).sum():.2f} ({name})")
        axes.set_title(f"{_lines(label)}\n{', '.join(said)} times the best", fontsize=7)
        axes.plot(ends, ends, color="#222222", linewidth=1, linestyle=(0, (6, 4)), label="best policy")
    panels[0][1].set(xscale="log", yscale="log", xlim=ends)  # shared by all
    for _, axes in panels:
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.tick_params(labelbottom=True)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    handles, names = panels[0][1].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right upper", frameon=False, fontsize=8, markerscale=2)
    _name_axes(figure, "expected steps of the best policy, mean over starts", "mean steps where reached")
    _save(figure, picture)


def values(table: Path, picture: Path) -> None:
    """
    Errors of learnt values, and how often the greedy action is a best one, against the distance from the goal; a line a label,
    dashed for goals held out.

    :param table: ``values.csv``
    :param picture: the PNG to write, if there is something to show
    """
    rows = [row for row in _read(table) if (float(row["steps_from"]), float(row["steps_to"])) != (0.0, np.inf)]
    if not _has(rows, picture):
        return
    bounds = sorted({(float(row["steps_from"]), float(row["steps_to"])) for row in rows})
    place = {bound: number for number, bound in enumerate(bounds)}
    columns = {"rms": "error of values (rms)", "bias": "bias of values", "greedy_optimal": "share of best greedy actions"}
    figure, panels = plt.subplots(1, 3, figsize=(12.5, 3.8), dpi=150, layout="constrained")
    for axes, (column, title) in zip(panels, columns.items(), strict=True):
        for label, (colour, _) in _looks(rows):
            for kind, style, marker in (("taught", "-", "o"), ("held-out", "--", "s")):
                points = [row for row in rows if (row["label"], row["goals"]) == (label, kind)]
                if points:
                    where = [place[float(row["steps_from"]), float(row["steps_to"])] for row in points]
                    name = _lines(label if kind == "taught" else f"{label}, held-out goals")
                    found = [float(row[column]) for row in points]
                    axes.plot(where, found, style, marker=marker, markersize=3.5, color=colour, linewidth=1.6, label=name)
        axes.set(title=title, xlabel="expected steps to the goal")
        axes.set_xticks(range(len(bounds)), [_between(*bound) for bound in bounds], fontsize=8)
        _open(axes)
    panels[0].set_ylim(0, None)
    panels[1].axhline(0, color="#222222", linewidth=1)
    panels[2].set_ylim(0, 1.03)
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right upper", frameon=False, fontsize=8)
    _save(figure, picture)


def failures(table: Path, picture: Path, measure: str, layout: Layout, epsilon: float) -> None:
    """
    Maps of where goals fail: by the cell of the agent and of a block in the goal, and by its doors. Each kind of run has its
    own scale.

    :param table: ``failures.csv``
    :param picture: the PNG to write, if there is something to show
    :param measure: "greedy" or "epsilon"
    :param layout: of the world
    :param epsilon: of that measure
    """
    rows = [row for row in _read(table) if row["measure"] == measure]
    if not _has(rows, picture):
        return
    groups = list(dict.fromkeys((row["label"], row["goals"]) for row in rows))
    columns = 1 if len(groups) < 4 else 2
    height = -(-len(groups) // columns)
    # laid out by hand: among so many panels a constrained layout takes longer than all the rest
    figure = plt.figure(figsize=(6.5 * columns, 0.4 + 2.5 * height), dpi=120)
    top, rest = np.ravel(figure.subfigures(2, 1, height_ratios=[0.4, 2.5 * height], squeeze=False))
    policy = "the greedy policy" if measure == "greedy" else f"epsilon {epsilon:g}"
    top.text(0.5, 0.4, f"Share of starts from which goals were not reached, {policy}", fontsize=11, ha="center", va="center")
    parts = np.ravel(rest.subfigures(height, columns, squeeze=False))
    for part, (label, kind) in zip(parts, groups, strict=False):
        found = [row for row in rows if (row["label"], row["goals"]) == (label, kind)]
        agents = [row for row in found if row["part"] == "agent"]
        counts, shares = (np.array([float(row[name]) for row in agents]) for name in ("count", "failures"))
        overall = float((counts * shares).sum() / counts.sum())
        part.suptitle(f"{label}, {kind} goals: {overall:.1%} fail", fontsize=9)
        failure_map(part, found, layout)
    _save(figure, picture)


def failure_map(figure: Any, rows: Sequence[dict[str, str]], layout: Layout) -> None:
    """
    :param figure: an empty figure, or a part of one, to draw in: where goals fail, by the cell of the agent and of a block in
        the goal, and by its doors
    :param rows: of ``failures.csv``, of one label, measure and kind of goals
    :param layout: of the world
    """
    agent, block, scale, doors = figure.subplots(1, 4, width_ratios=[1, 1, 0.05, 0.7])
    figure.subplots_adjust(left=0.03, right=0.97, bottom=0.16, top=0.88, wspace=0.25)
    most = max([float(row["failures"]) for row in rows] + [0.01])
    image = None
    for axes, part in ((agent, "agent"), (block, "block")):
        cells = np.full((layout.height, layout.width), np.nan)
        for row in rows:
            if row["part"] == part:
                cells[int(row["row"]), int(row["column"])] = float(row["failures"])
        image = axes.imshow(np.ma.masked_invalid(cells), cmap="YlOrRd", vmin=0, vmax=most)
        _draw_layout(axes, layout)
        axes.set_xlabel(f"{part} in the goal", fontsize=8)
    percent = PercentFormatter(1.0, decimals=0 if most >= 0.05 else 1)
    bar = figure.colorbar(image, cax=scale, format=percent)
    bar.ax.tick_params(labelsize=7)
    states = [row for row in rows if row["part"] == "doors"]
    if not states:
        doors.set_axis_off()
        return
    heights = [float(row["failures"]) for row in states]
    names = [row["doors"].replace(" ", "\n") if len(states) < 3 else row["doors"] for row in states]
    drawn = doors.bar(range(len(states)), heights, color=plt.get_cmap("YlOrRd")(np.array(heights) / most), width=0.6)
    for rectangle in drawn:
        rectangle.set(edgecolor="#999999", linewidth=0.5)
    doors.bar_label(drawn, [f"{height:.1%}" for height in heights], fontsize=7)
    doors.set_xticks(range(len(states)), names, fontsize=7, rotation=0 if len(states) < 3 else 60)
    doors.set_yticks([])
    doors.set_ylim(0, most * 1.15)
    doors.set_xlim(-0.7, len(states) - 0.3)
    doors.spines[["right", "top", "left"]].set_visible(False)
    doors.set_facecolor("none")  # it would hide numbers of the scale


def _draw_layout(axes: Axes, layout: Layout) -> None:
    axes.set_facecolor(GROUND)
    for row, symbols in enumerate(layout.rows):
        for column, symbol in enumerate(symbols):
            corner = (column - 0.5, row - 0.5)
            if symbol == WALL:
                axes.add_patch(Rectangle(corner, 1, 1, facecolor=STONE, edgecolor="none"))
            elif symbol in DOORS:
                axes.add_patch(Rectangle(corner, 1, 1, facecolor="none", edgecolor=DOOR, linewidth=1.8, zorder=3))
            elif symbol == SLIPPERY:
                axes.plot(column, row, ".", color="#16247a", markersize=2.5)
            if symbol not in WALL + FLOOR + SLIPPERY and symbol in DOORS + SWITCHES:
                letter = axes.text(column, row, symbol, ha="center", va="center", fontsize=6, color="#333333", zorder=4)
                letter.set_path_effects([withStroke(linewidth=1.5, foreground="white")])
    axes.set_xticks(np.arange(0.5, layout.width - 1), [])
    axes.set_yticks(np.arange(0.5, layout.height - 1), [])
    axes.grid(color="white", linewidth=0.4)
    axes.tick_params(length=0)


def _between(low: float, high: float) -> str:
    """Whole steps in a bin."""
    first, last = int(low + 1), high - 0.5
    if not np.isfinite(high):
        return f"> {first - 1}"
    return f"{first}" if first >= last else f"{first}-{last:.0f}"


def _short(number: float) -> str:
    return str(EngFormatter(sep="", places=1)(number)) if number >= 1_000 else f"{number:.0f}"


def _looks(rows: Sequence[dict[str, str]]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Labels, each with a colour and a style of line."""
    looks = cycle((colour, style) for style in STYLES for colour in COLOURS)
    return zip(dict.fromkeys(row["label"] for row in rows), looks, strict=False)


def _grid(labels: Sequence[str], height: float = 2.2, shared: bool = False) -> tuple[Figure, list[tuple[str, Axes]]]:
    """A panel a label, at most COLUMNS in a row."""
    columns = min(COLUMNS, len(labels))
    lines = -(-len(labels) // columns)
    size = (max(4.5, 3.0 * columns), 0.6 + height * lines)
    figure, panels = plt.subplots(
        lines, columns, figsize=size, dpi=150, layout="constrained", squeeze=False, sharex=shared, sharey=shared
    )
    for spare in panels.ravel()[len(labels) :]:
        spare.set_axis_off()
    pairs = list(zip(labels, panels.ravel().tolist(), strict=False))
    for label, axes in pairs:
        axes.set_title(_lines(label), fontsize=8)
        axes.tick_params(labelsize=8)
        _open(axes)
    return figure, pairs


def _lines(label: str) -> str:
    return textwrap.fill(label, 34)


def _name_axes(figure: Figure, x: str, y: str) -> None:
    figure.supxlabel(x, fontsize=9)
    figure.supylabel(y, fontsize=9)


def _open(axes: Axes) -> None:
    axes.grid(alpha=0.3)
    axes.spines[["right", "top"]].set_visible(False)


def _has(rows: Sequence[Any], picture: Path) -> bool:
    """Whether there is something to show; if not, an earlier picture does not stay."""
    if not rows:
        picture.unlink(missing_ok=True)
    return bool(rows)


def _save(figure: Figure, picture: Path) -> None:
    figure.savefig(picture)
    plt.close(figure)


def _read(table: Path) -> list[dict[str, str]]:
    with table.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
