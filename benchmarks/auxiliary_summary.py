"""Runs of A2C, with auxiliary tasks or pre-training, over their seeds: interquartile means against steps, with intervals."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import auxiliary_plots
from benchmarks.past_runs import PastRunError
from benchmarks.scores import Estimate, interquartile_mean, interval

CURVES = ["world", "agent", "step", "seeds", "iqm", "low", "high", "mean"]
TABLE = [
    *("world", "agent", "seeds", "step"),
    *(f"{what}{end}" for what in ("final", "area") for end in ("", "_low", "_high")),
    *("training_seconds", "time_ratio"),
]
"""Columns: the interquartile mean of returns at the last step, that of their means over all steps, seconds of a step."""


@dataclass(frozen=True)
class Run:
    """What a run left behind."""

    folder: Path
    world: str
    """Game and environment, by which runs go together."""
    agent: str
    seed: int
    steps: NDArray[np.int64]
    """Of the rows of ``curve.csv``."""
    returns: NDArray[np.float64]
    """Mean returns of the last 100 episodes there."""
    seconds: float
    """Of training, until the last row."""


@dataclass(frozen=True)
class AuxiliarySummaryConfig:
    """Sum up runs of auxiliary, or of pretraining, over their seeds, those that have not finished as far as all of them have
    come. Steps of pre-training, at which some have no return, are in no mean.
    """

    runs: tuple[Path, ...]
    """Folders of runs, or folders below which they are."""
    output: Path
    """Folder to write to; what an earlier summary left there is replaced."""

    def run(self) -> Path:
        """:return: the folder written to"""
        return run(self)


def run(config: AuxiliarySummaryConfig) -> Path:
    """
    Write ``curves.csv``, ``table.csv``, ``table.md`` and a figure for each world.

    :param config: what to sum up
    :return: the folder
    :raises PastRunError: if there are no runs, or two of the same agent and seed
    """
    runs = collect(config.runs)
    folder = config.output
    folder.mkdir(parents=True, exist_ok=True)
    points, rows = [], []
    for world in dict.fromkeys(one.world for one in runs):
        alike = [one for one in runs if one.world == world]
        points += curves(alike)
        rows += table(alike)
        _write(folder / "curves.csv", CURVES, curves(alike))
        name = "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in world)
        auxiliary_plots.comparison(folder / "curves.csv", folder / f"{name}.png", world)
    _write(folder / "curves.csv", CURVES, points)
    _write(folder / "table.csv", TABLE, rows)
    text = markdown(rows)
    (folder / "table.md").write_text(text, encoding="utf-8")
    print(text)
    print(f"written to {folder}")
    return folder


def collect(roots: Iterable[Path]) -> list[Run]:
    """
    :param roots: folders of runs, or folders below which they are
    :return: the runs that have a curve, by world, agent and seed
    :raises PastRunError: if there are none, or two of the same agent and seed in a world
    """
    found = [_read(path.parent) for root in roots for path in sorted(root.rglob("curve.csv"))]
    if not found:
        raise PastRunError(f"no curve.csv below {', '.join(map(str, roots)) or 'nothing'}")
    found.sort(key=lambda one: (one.world, one.agent, one.seed))
    for one, other in itertools.pairwise(found):
        if (one.world, one.agent, one.seed) == (other.world, other.agent, other.seed):
            raise PastRunError(f"{one.folder} and {other.folder} are both {one.agent} in {one.world}, seed {one.seed}")
    return found


def _read(folder: Path) -> Run:
    try:
        settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))["settings"]
        with (folder / "curve.csv").open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        steps = np.array([int(row["step"]) for row in rows])
        returns = np.array([float(row["episode_return"]) for row in rows])
        return Run(
            folder, settings["game"], settings["agent"], settings["seed"], steps, returns, float(rows[-1]["training_seconds"])
        )
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise PastRunError(f"{folder} is not the folder of a run of auxiliary or pretraining: {error!r}") from error


def common_steps(runs: Sequence[Run]) -> NDArray[np.int64]:
    """
    :param runs: of one world
    :return: steps at which all of them have a row, ascending
    :raises PastRunError: if there are none
    """
    steps = runs[0].steps
    for one in runs[1:]:
        steps = np.intersect1d(steps, one.steps)
    if not len(steps):
        raise PastRunError(f"the runs in {runs[0].world} have no step in common at which returns were noted")
    return steps


def returns_at(runs: Sequence[Run], steps: NDArray[np.int64]) -> NDArray[np.float64]:
    """
    :param runs: each with a row at all of these steps
    :param steps: ascending, shape (T,)
    :return: their returns, shape (n_runs, T)
    """
    return np.array([one.returns[np.searchsorted(one.steps, steps)] for one in runs])


def curves(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """
    :param runs: of one world
    :return: rows of ``curves.csv``: of each agent, at each step that all runs have, the interquartile mean over its seeds,
        its 95% bootstrap interval if there are at least two, and the mean
    """
    steps = common_steps(runs)
    rows = []
    for agent, alike in _by_agent(runs).items():
        values = returns_at(alike, steps)
        for step, column in zip(steps.tolist(), values.T, strict=True):
            found = _estimate(column)
            row = {"world": alike[0].world, "agent": agent, "step": step, "seeds": len(alike), "iqm": f"{found.value:.6g}"}
            if len(alike) > 1:
                row |= {"low": f"{found.low:.6g}", "high": f"{found.high:.6g}"}
            rows.append(row | {"mean": f"{column.mean():.6g}"})
    return rows


def table(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """
    :param runs: of one world
    :return: rows of ``table.csv``, one an agent: ``final``, the interquartile mean of returns at the last step that all runs
        have; ``area``, that of each run's mean over all steps; of both the interval; the median of "training_seconds", of
        runs of different lengths not comparable; "time_ratio", the median seconds of a step by those of A2C alone
    """
    steps = common_steps(runs)
    agents = _by_agent(runs)
    speeds = {agent: float(np.median([one.seconds / one.steps[-1] for one in alike])) for agent, alike in agents.items()}
    rows = []
    for agent, alike in agents.items():
        values = returns_at(alike, steps)
        row: dict[str, Any] = {"world": alike[0].world, "agent": agent, "seeds": len(alike), "step": int(steps[-1])}
        for what, column in (("final", values[:, -1]), ("area", values.mean(axis=1))):
            found = _estimate(column)
            row[what] = found.value
            if len(alike) > 1:
                row |= {f"{what}_low": found.low, f"{what}_high": found.high}
        row["training_seconds"] = float(np.median([one.seconds for one in alike]))
        if speeds.get("a2c"):
            row["time_ratio"] = speeds[agent] / speeds["a2c"]
        rows.append(row)
    return rows


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """
    :param rows: of :func:`table`, of any number of worlds
    :return: the same for people
    """
    heads = ["world", "agent", "seeds", "step", "return at the end", "mean return over all steps", "time / A2C"]
    lines = [heads, ["---", "---", *["--:"] * (len(heads) - 2)]]
    for row in rows:
        ratio = row.get("time_ratio")
        lines.append(
            [
                row["world"],
                row["agent"],
                str(row["seeds"]),
                f"{row['step']:,}",
                *(_with_interval(row, what) for what in ("final", "area")),
                "" if ratio is None else f"{ratio:.2f}",
            ]
        )
    caption = (
        "Returns of episodes while training: interquartile means over seeds, with 95% bootstrap intervals. The time is that "
        "of a step of the runs as they were, beside whatever else the machine did."
    )
    return f"{caption}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _with_interval(row: Mapping[str, Any], what: str) -> str:
    ends = (row.get(f"{what}_low"), row.get(f"{what}_high"))
    return f"{row[what]:.3g}" + ("" if ends[0] is None else f" [{ends[0]:.3g}, {ends[1]:.3g}]")


def _by_agent(runs: Sequence[Run]) -> dict[str, list[Run]]:
    return {agent: [one for one in runs if one.agent == agent] for agent in dict.fromkeys(one.agent for one in runs)}


def _estimate(column: NDArray[np.float64]) -> Estimate:
    """Of one number a seed; the interval is not a number where there is one seed."""
    scores = column[:, None]
    if len(column) > 1:
        return interval(interquartile_mean, scores)
    return Estimate(float(interquartile_mean(scores)), np.nan, np.nan)


def _write(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
