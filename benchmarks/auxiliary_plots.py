"""Figures of returns against steps: of one run, and of the agents of a study."""

from __future__ import annotations

import csv
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")  # no screen is needed
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from benchmarks.plotting import GREEDY, NOISY
from benchmarks.summary_plots import COLOURS


def curve(table: Path, picture: Path, game: str, agent: str, paper: float | None) -> None:
    """
    Return against environment steps of one run, and the paper's final score.

    :param table: ``curve.csv`` of the run, at least one row
    :param picture: the PNG to write
    :param game: its name, for the title
    :param agent: its name, for the title
    :param paper: the paper's score after 10M steps, if it has one
    """
    rows = np.atleast_1d(np.genfromtxt(table, delimiter=",", names=True))
    figure, axes = plt.subplots(figsize=(7, 4), dpi=150, layout="constrained")
    axes.plot(rows["step"], rows["episode_return"], color=GREEDY, linewidth=2, label="mean of the last 100 episodes")
    if paper is not None:
        axes.axhline(paper, color=NOISY, linewidth=1.2, linestyle=(0, (6, 4)), label="the paper's, after 10M steps")
    axes.set(title=f"{game}, {agent}")
    _finish(figure, axes, picture)


def comparison(table: Path, picture: Path, world: str) -> None:
    """
    Interquartile mean return against environment steps, a line an agent, with the intervals where there are some.

    :param table: ``curves.csv`` of a summary
    :param picture: the PNG to write
    :param world: its name, for the title
    """
    with table.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    figure, axes = plt.subplots(figsize=(7, 4.2), dpi=150, layout="constrained")
    for agent, colour in zip(dict.fromkeys(row["agent"] for row in rows), COLOURS, strict=False):
        ours = [row for row in rows if row["agent"] == agent]
        steps = [float(row["step"]) for row in ours]
        axes.plot(steps, [float(row["iqm"]) for row in ours], color=colour, linewidth=2, label=agent.replace("_", " "))
        ends = [(float(row["step"]), float(row["low"]), float(row["high"])) for row in ours if row["low"]]
        if ends:
            axes.fill_between(*np.array(ends).T, color=colour, alpha=0.15, linewidth=0)
    seeds = max(int(row["seeds"]) for row in rows)
    axes.set(title=f"{world}: interquartile means of {seeds} seed{'s' if seeds > 1 else ''}")
    _finish(figure, axes, picture)


def _finish(figure: Figure, axes: Axes, picture: Path) -> None:
    axes.set(xlabel="environment steps", ylabel="return of an episode", xlim=(0, None))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    axes.spines[["right", "top"]].set_visible(False)
    figure.savefig(picture)
    plt.close(figure)
