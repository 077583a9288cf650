"""How well and how fast each kind of run came to mastery, over its seeds, as tables."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from benchmarks.past_runs import PastRun, PastRunError

MEASURES = ("greedy", "epsilon", "held_out_greedy", "held_out_epsilon")
LEVELS = (0.5, 0.9, 0.95)
"""Of mastery at epsilon, how soon each is reached."""
CURVES = ["label", "seed", "step", *MEASURES, "training_seconds"]
FINALS = ["label", "seed", "folder", "finished", "step", "training_seconds", *MEASURES]


def interval(values: ArrayLike, confidence: float = 0.95) -> tuple[float, float] | None:
    """
    :param values: of independent runs, shares in [0, 1], shape (n,)
    :param confidence: of the interval
    :return: Student's t interval of their mean, clipped to [0, 1]; None of fewer than two
    """
    values = np.asarray(values, dtype=np.float64)
    if len(values) < 2:
        return None
    from scipy import stats  # importing it takes a second

    half = stats.t.ppf(0.5 + confidence / 2, len(values) - 1) * stats.sem(values)
    return max(0.0, float(values.mean() - half)), min(1.0, float(values.mean() + half))


def write(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """
    :param path: the CSV file to write
    :param columns: of it
    :param rows: values by column; those that are missing or None stay empty
    """
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def curves(runs: Iterable[PastRun]) -> list[dict[str, Any]]:
    """
    :param runs: finished or not
    :return: rows of ``curves.csv``: each measurement of each
    """
    rows = []
    for run in runs:
        names = [name for name in MEASURES if name in (run.curve.dtype.names or ())]
        for point in run.curve:
            measured = {name: f"{point[name]:.4f}" for name in names}
            seconds = f"{point['training_seconds']:.1f}"
            rows.append(
                {"label": run.label, "seed": run.seed, "step": int(point["step"]), **measured, "training_seconds": seconds}
            )
    return rows


def finals(runs: Iterable[PastRun]) -> list[dict[str, Any]]:
    """
    :param runs: finished or not
    :return: rows of ``finals.csv``: mastery after training of each, as all starts of ``goals.csv`` have it; None for runs that
        are not finished, and for goals held out where there are none
    """
    rows = []
    for run in runs:
        row: dict[str, Any] = {
            "label": run.label,
            "seed": run.seed,
            "folder": run.folder.name,
            "finished": int(run.is_finished),
            "step": run.last_step,
            "training_seconds": run.seconds,
        }
        if run.is_finished:
            held_out = run.outcomes.held_out
            for name, reached in run.outcomes.reached.items():
                row[name] = round(float(reached.mean()), 6)
                row[f"held_out_{name}"] = round(float(reached[held_out].mean()), 6) if held_out.any() else None
        rows.append(row)
    return rows


def first_step(run: PastRun, level: float) -> float:
    """
    :param run: finished or not
    :param level: of mastery at epsilon
    :return: the step at which so much was first measured, infinity if it never was
    """
    there = run.curve["step"][run.curve["epsilon"] >= level]
    return float(there[0]) if len(there) else np.inf


def table(runs: Sequence[PastRun], base: str | None) -> list[dict[str, Any]]:
    """
    Rows of ``table.csv``, one for each label. All but the numbers of runs, and the steps that they took, is of finished runs.

    :param runs: finished or not
    :param base: the label whose time for a step is 1, or None
    :return: "label", "runs", "finished", "step", the median of the last measured ones; for each of ``MEASURES`` its mean, and
        ``_low`` and ``_high`` of :func:`interval`; for each of ``LEVELS`` ``steps_to_``, the median of :func:`first_step`;
        the median of "training_seconds"; "time_ratio", seconds a step by those of ``base``, medians. What is not known is None
    :raises PastRunError: if no finished run has the label ``base``
    """
    labels = list(dict.fromkeys(run.label for run in runs))
    final = {(row["label"], row["seed"]): row for row in finals(runs)}
    speeds: dict[str, float] = {}
    rows = []
    for label in labels:
        alike = [run for run in runs if run.label == label]
        done = [run for run in alike if run.is_finished]
        row: dict[str, Any] = {"label": label, "runs": len(alike), "finished": len(done)}
        row["step"] = float(np.median([run.last_step for run in alike]))
        for name in MEASURES:
            known = [final[label, run.seed].get(name) for run in done]
            values = [value for value in known if value is not None]
            if values:
                row[name] = float(np.mean(values))
                row[f"{name}_low"], row[f"{name}_high"] = interval(values) or (None, None)
        if done:
            for level in LEVELS:
                row[f"steps_to_{level:g}"] = float(np.median([first_step(run, level) for run in done]))
            row["training_seconds"] = float(np.median([run.seconds for run in done]))
            speeds[label] = float(np.median([run.seconds / run.last_step for run in done]))
        rows.append(row)
    if base is not None:
        if base not in speeds:
            raise PastRunError(f"base must be the label of a finished run, one of {', '.join(speeds) or 'none'}; got {base!r}")
        for row in rows:
            if row["label"] in speeds and speeds[base] > 0.0:  # the shortest runs take no time that is measured
                row["time_ratio"] = speeds[row["label"]] / speeds[base]
    return rows


TABLE = [
    *("label", "runs", "finished", "step"),
    *(f"{name}{end}" for name in MEASURES for end in ("", "_low", "_high")),
    *(f"steps_to_{level:g}" for level in LEVELS),
    *("training_seconds", "time_ratio"),
]
"""Columns of ``table.csv``."""


def markdown(rows: Sequence[Mapping[str, Any]], epsilon: float, base: str | None) -> str:
    """
    :param rows: of :func:`table`
    :param epsilon: share of random actions in the second measurement
    :param base: as for :func:`table`
    :return: the same as a table in Markdown, without the columns in which there is nothing
    """
    noisy = f"epsilon {epsilon:g}"
    names = dict(zip(MEASURES, ("greedy", noisy, "held-out, greedy", f"held-out, {noisy}"), strict=True))
    cells: dict[str, list[str]] = {"runs of": [row["label"] for row in rows], "seeds": [_seeds(row) for row in rows]}
    for measure, name in names.items():
        cells[name] = [_share(row, measure) for row in rows]
    for level in LEVELS:
        cells[f"steps to {level:g}"] = [_steps(row.get(f"steps_to_{level:g}")) for row in rows]
    cells["seconds"] = [_number(row.get("training_seconds"), ",.0f") for row in rows]
    cells[f"time / {base}"] = [_number(row.get("time_ratio"), ".2f") for row in rows]
    shown = {name: column for name, column in cells.items() if any(column)}
    lines = [list(shown), ["---"] + ["--:"] * (len(shown) - 1), *map(list, zip(*shown.values(), strict=True))]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _seeds(row: Mapping[str, Any]) -> str:
    if row["finished"] == row["runs"]:
        return str(row["runs"])
    return f"{row['finished']} of {row['runs']}, at step {row['step']:,.0f}"


def _share(row: Mapping[str, Any], measure: str) -> str:
    if row.get(measure) is None:
        return ""
    low, high = row[f"{measure}_low"], row[f"{measure}_high"]
    return f"{row[measure]:.3f}" + ("" if low is None else f" [{low:.3f}, {high:.3f}]")


def _steps(value: float | None) -> str:
    return "not reached" if value == np.inf else _number(value, ",.0f")


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
