"""What an update costs: ours, the same loss tiled, SB3's DQN, and a head for each goal; and how that grows with the goals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch as th
from rich.console import Console
from rich.table import Table

from benchmarks.speed import memory, roofline, timing
from benchmarks.speed.scenarios import Scenario
from benchmarks.speed.timing import Contender, Ratio, TorchSpeedConfig

GOALS = (16, 64, 256, 1024, 5_728)
"""Against which time and memory of ours are drawn, with 32 transitions."""
TILED_GOALS = (16, 64, 256)
"""Likewise of the tiled loss, which takes seconds with more."""
HER_BATCHES = (32, 512, 4_096, 16_384)

SCENARIOS = (
    *(Scenario("pairwise", 32, goals) for goals in GOALS),
    *(Scenario("tiled", 32, goals) for goals in TILED_GOALS),
    Scenario("pairwise", 64, 64, "batch"),
    Scenario("pairwise", 128, 128, "batch"),
    Scenario("tiled", 128, 128, "batch"),
    Scenario("head", 32, 5_728),
    Scenario("SB3 DQN", 32),
    *(Scenario("SB3 DQN + HER", pairs) for pairs in HER_BATCHES),
    # Pre-training, and the auxiliary task beside A2C: 5 steps of each of 16 environments, their last observations the goals.
    Scenario("pairwise", 16, 5, world="frames"),
    Scenario("tiled", 16, 5, world="frames"),
    Scenario("pairwise", 80, 16, "batch", world="frames"),
    Scenario("tiled", 80, 16, "batch", world="frames"),
)
"""The updates that are measured on the CPU."""

_SIZES = ("32 x 16", "128 x 128", "16 x 5, Atari", "80 x 16, Atari")
_OURS = {f"pairwise {n} x {m}": float(n * m) for n, m in ((32, 16), (64, 64), (128, 128))}
_HER = {f"SB3 DQN + HER, {pairs}": float(pairs) for pairs in HER_BATCHES}

RATIOS = (
    *(
        Ratio(f"updates/s: pairwise / tiled, {size}", f"pairwise {size}", f"tiled {size}", bar)
        for size, bar in zip(_SIZES, (10.0, 30.0, None, None), strict=True)
    ),
    *(
        Ratio(f"share of the roofline, {size}", f"pairwise {size}", f"roofline {size}", bar)
        for size, bar in zip(_SIZES, (0.6, 0.6, None, None), strict=True)
    ),
    Ratio("updates/s: pairwise 32 x 16 / SB3 DQN + HER, 512 pairs each", "pairwise 32 x 16", "SB3 DQN + HER, 512", 8.0),
    Ratio("goal updates/s: pairwise / SB3 DQN + HER, each at its best batch size", _OURS, _HER, 20.0),
    Ratio("updates/s: pairwise 32 x 16 / SB3 DQN of one goal, 32", "pairwise 32 x 16", "SB3 DQN, 32"),
)


@dataclass(frozen=True)
class UpdateConfig(TorchSpeedConfig):
    """Time updates with the paper's networks, ours and others, in turn in every round; measure their memory."""

    seconds: float = 0.5
    """How long each measurement takes, at least."""

    def run(self) -> Path:
        """:return: the run's folder"""
        return run(self)


def run(config: UpdateConfig) -> Path:
    """
    Measure, print, and write ``update-table.csv``, each value of each round to ``update-<n>-threads.csv``, ``goals.png`` (time
    and memory against the number of goals) and ``config.json``.

    :param config: what to run
    :return: the folder
    """
    folder, _ = timing.open_folder(config, "speed-update")
    scenarios = list(SCENARIOS)
    if th.cuda.is_available():
        scenarios += [replace(scenario, device="cuda") for scenario in SCENARIOS if scenario.kind == "pairwise"]
    else:
        print("CUDA is not measured: this machine has no such device, or torch none of its code")
    entrants = contenders(scenarios, config.seconds)
    tables = []
    for threads in config.threads:
        th.set_num_threads(threads)
        print(f"\n{threads} thread(s)")
        measured = timing.compare(folder / f"update-{threads}-threads.csv", entrants, RATIOS, config.rounds)
        tables.append(table(scenarios, measured, memory.of_updates(scenarios, threads), threads))
    found = pd.concat(tables)
    found.to_csv(folder / "update-table.csv", index=False, float_format="%.4g")
    _show(found)
    draw_goals(tables[0], folder / "goals.png")
    print(f"written to {folder}")
    return folder


def contenders(scenarios: Sequence[Scenario], seconds: float) -> list[Contender]:
    """
    :param scenarios: the updates
    :param seconds: of each measurement, at least
    :return: these, and a roofline for each size of them
    """
    found, rooflines = [], {}
    for scenario in scenarios:
        found.append(Contender(scenario.name, "updates/s", partial(scenario.update().speed, seconds)))
        if scenario.roofline_name is not None and scenario.roofline_name not in rooflines:
            shared = min(scenario.transitions, scenario.goals) if scenario.goal_sampling == "batch" else 0
            learner = replace(scenario, kind="pairwise").learner()
            rooflines[scenario.roofline_name] = roofline.work(learner, scenario.transitions, scenario.goals, shared)
    return found + [Contender(name, "updates/s", work.speed) for name, work in rooflines.items()]


def table(scenarios: Sequence[Scenario], measured: pd.DataFrame, megabytes: Mapping[str, float], threads: int) -> pd.DataFrame:
    """
    :param scenarios: the updates
    :param measured: updates/s of them and of rooflines, a row a round
    :param megabytes: of those whose memory was measured
    :param threads: of torch
    :return: medians, a row an update: its transitions and goals, updates/s, pairs taught a second ("goal_updates_per_second"),
        megabytes that it needs beyond the learner at rest, and its speed by that of its roofline, within each round
    """
    rows = []
    for scenario in scenarios:
        speeds = measured[scenario.name]
        ceiling = measured.get(scenario.roofline_name)
        rows.append(
            {
                "threads": threads,
                "update": scenario.name,
                "transitions": scenario.transitions,
                "goals": scenario.goals,
                "updates_per_second": speeds.median(),
                "goal_updates_per_second": speeds.median() * scenario.pairs,
                "peak_megabytes": megabytes.get(scenario.name),
                "share_of_roofline": None if ceiling is None else (speeds / ceiling).median(),
            }
        )
    return pd.DataFrame(rows)


def draw_goals(found: pd.DataFrame, picture: Path) -> None:
    """
    Time and memory of an update against its goals, and the lines nearest to them: in S + G for ours, S x G for the tiled one.

    :param found: of :func:`table`
    :param picture: the PNG to write
    """
    import matplotlib.pyplot as plt  # it takes a second

    figure, panels = plt.subplots(1, 2, figsize=(9, 3.5), dpi=150, layout="constrained")
    scaled = found.assign(milliseconds=1e3 / found["updates_per_second"])
    for axes, column, label in zip(
        panels, ("milliseconds", "peak_megabytes"), ("time of an update (ms)", "peak memory (MB)"), strict=True
    ):
        for kind, law, number in (("pairwise", "S + G", 0), ("tiled", "S x G", 1)):
            names = [f"{kind} 32 x {goals}" for goals in GOALS]
            points = scaled[scaled["update"].isin(names)].dropna(subset=[column])
            if points.empty:
                continue
            x, y = (points[name].to_numpy(dtype=float) for name in ("goals", column))
            axes.loglog(x, y, "o", color=f"C{number}", base=2, label=f"{kind}; line in {law}")
            if len(points) > 1:  # for a given S both laws are lines, though not on this scale
                line = np.poly1d(np.polyfit(x, y, 1))
                between = np.geomspace(x.min(), x.max(), 50)
                axes.loglog(between, line(between), color=f"C{number}", linewidth=1, base=2)
                off = np.abs(y / line(x) - 1).max()
                print(f"{column} of {kind} 32 x {x.min():g} to {x.max():g}: {off:.0%} off a line at most")
        axes.set(xlabel="goals, G, with 32 transitions", ylabel=label)
        axes.grid(alpha=0.3)
    panels[0].legend(frameon=False)
    figure.savefig(picture)
    plt.close(figure)


def _show(found: pd.DataFrame) -> None:
    printed = Table(*(name.replace("_per_second", "/s").replace("_", " ") for name in found))
    for row in found.itertuples(index=False):
        printed.add_row(*("" if pd.isna(cell) else f"{cell:,.3g}" if isinstance(cell, float) else str(cell) for cell in row))
    Console(width=127, markup=False).print(printed)
