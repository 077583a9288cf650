"""Figures, from the CSV files that runs leave behind."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")  # no screen is needed
import matplotlib.pyplot as plt
import numpy as np

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
    The time of an update against its rows, S + G, and the line nearest to it.

    :param table: ``scaling.csv``
    :param picture: the PNG to write
    """
    rows = np.atleast_1d(np.genfromtxt(table, delimiter=",", names=True))
    sizes, times = rows["transitions"] + rows["goals"], rows["milliseconds"]
    figure, axes = plt.subplots(figsize=(5, 3.5), dpi=150, layout="constrained")
    axes.plot(sizes, np.polyval(np.polyfit(sizes, times, 1), sizes), color="#999999", linewidth=1)
    axes.plot(sizes, times, "o", color=GREEDY)
    axes.set(xlabel="transitions + goals, S + G", ylabel="time of an update (ms)", xlim=(0, None), ylim=(0, None))
    figure.savefig(picture)
    plt.close(figure)
