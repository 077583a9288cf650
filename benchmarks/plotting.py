"""Figures, from the CSV files that runs leave behind."""

from __future__ import annotations

import csv
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")  # no screen is needed
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.transforms import Bbox

GREEDY, NOISY = "#1b6ca8", "#d1722b"


def mastery_curve(table: Path, picture: Path, epsilon: float) -> None:
    """
    Mastery against environment steps, with the bootstrap intervals over goals; dashed: of goals held out, if there are any.

    :param table: ``mastery.csv`` of a run
    :param picture: the PNG to write
    :param epsilon: of the second measurement
    """
    rows = np.atleast_1d(np.genfromtxt(table, delimiter=",", names=True))
    figure, axes = plt.subplots(figsize=(7, 4), dpi=150, layout="constrained")
    lines = [("greedy", "greedy", GREEDY, "-"), ("epsilon", f"epsilon {epsilon:g}", NOISY, "-")]
    assert rows.dtype.names is not None
    if "held_out_greedy" in rows.dtype.names:
        lines += [(f"held_out_{name}", f"{label}, held-out goals", colour, "--") for name, label, colour, _ in lines]
    for name, label, colour, style in lines:
        axes.plot(rows["step"], rows[name], style, label=label, color=colour, linewidth=2)
        axes.fill_between(rows["step"], rows[f"{name}_low"], rows[f"{name}_high"], color=colour, alpha=0.2, linewidth=0)
    axes.set(xlabel="environment steps", ylabel="mastery", ylim=(0, 1.02), xlim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", frameon=False)
    axes.spines[["right", "top"]].set_visible(False)
    figure.savefig(picture)
    plt.close(figure)


def scaling(table: Path, picture: Path) -> None:
    """
    Time and memory of an update against its goals where they were measured, and the lines nearest to them: in S + G for ours,
    in S x G for the tiled one.

    :param table: ``scaling.csv``
    :param picture: the PNG to write
    """
    rows = _read(table)
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.5), dpi=150, layout="constrained")
    for axes, name, label in zip(
        panels, ("milliseconds", "megabytes"), ("time of an update (ms)", "peak memory (MB)"), strict=True
    ):
        for update, colour, law in (("pairwise", GREEDY, "S + G"), ("tiled", NOISY, "S x G")):
            points = [(float(row["goals"]), float(row[name])) for row in rows if row["update"] == update and row[name]]
            if not points:
                continue
            goals, values = np.array(points).T
            axes.plot(goals, values, "o", color=colour, label=f"{update}; line in {law}")
            if len(goals) > 1:
                # for a given S both laws are lines, though not on this scale
                between = np.geomspace(goals.min(), goals.max(), 50)
                axes.plot(between, np.polyval(np.polyfit(goals, values, 1), between), color=colour, linewidth=1)
        axes.set(xlabel=f"goals, G, with {rows[0]['transitions']} transitions", ylabel=label)
        axes.set_xscale("log", base=2)
        measured = sorted({int(row["goals"]) for row in rows})
        axes.set_xticks(measured, [str(goals) for goals in measured])
        if axes.lines:
            axes.set_yscale("log")
        else:
            axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center")
        axes.grid(alpha=0.3)
        axes.spines[["right", "top"]].set_visible(False)
    panels[0].legend(frameon=False)
    figure.savefig(picture)
    plt.close(figure)


def throughput_table(table: Path, picture: Path, threads: int, caption: str) -> None:
    """
    The rows of one number of threads, as a picture.

    :param table: ``throughput-table.csv``
    :param picture: the PNG to write
    :param threads: which rows
    :param caption: below the table
    """
    rows = [row for row in _read(table) if int(row["threads"]) == threads]
    heads = {
        "update": "update",
        "pairs": "pairs",
        "updates_per_second": "updates/s",
        "goal_updates_per_second": "goal updates/s",
        "env_steps_per_second": "training,\nenv steps/s",
        "peak_megabytes": "peak memory\n(MB)",
        "share_of_floor": "share of the\nfloor's speed",
    }
    text = [[row["update"], *(_with_commas(row[name]) for name in list(heads)[1:])] for row in rows]
    figure, axes = plt.subplots(figsize=(9, 0.9 + 0.28 * len(rows)), dpi=150)
    figure.subplots_adjust(left=0.02, right=0.98, top=0.98, bottom=0.35 / figure.get_figheight())
    axes.set_axis_off()
    widths = [0.30, 0.09, 0.11, 0.15, 0.12, 0.12, 0.12]
    cells = axes.table(text, colLabels=list(heads.values()), colWidths=widths, cellLoc="right", bbox=Bbox.unit())
    cells.auto_set_font_size(False)
    cells.set_fontsize(8)
    for (row, column), cell in cells.get_celld().items():
        cell.set_linewidth(0)
        cell.PAD = 0.04
        if column == 0:
            cell.set_text_props(ha="left")
        if row == 0:
            cell.set_height(2 * cell.get_height())
            cell.set_text_props(weight="bold")
        elif text[row - 1][0].startswith("pairwise"):
            cell.set_facecolor("#e3eef6")
    figure.text(0.02, 0.1 / figure.get_figheight(), caption, fontsize=7, color="#555555")
    figure.savefig(picture)
    plt.close(figure)


def _with_commas(number: str) -> str:
    whole, point, rest = number.partition(".")
    return f"{int(whole):,}{point}{rest}" if whole else ""


def _read(table: Path) -> list[dict[str, str]]:
    with table.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
