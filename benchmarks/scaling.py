"""How time and memory of an update grow with its goals: pairwise with S + G, tiled with S x G."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import peak_memory, plotting, rounds
from benchmarks.cases import Case
from benchmarks.rounds import Contender

TRANSITIONS = 64
GOALS = (64, 128, 256, 512, 1024)
TILED_GOALS = (64, 128, 256)
"""Fewer: at 256 one update takes seconds."""


def run(folder: Path, n_rounds: int, seconds: float) -> None:
    """
    Measure on one thread, print, and write ``scaling.csv`` and ``scaling.png``.

    :param folder: of the run
    :param n_rounds: times that each is measured
    :param seconds: that each measurement takes, at least
    """
    cases = [Case("pairwise", TRANSITIONS, goals) for goals in GOALS]
    cases += [Case("tiled", TRANSITIONS, goals) for goals in TILED_GOALS]
    contenders = [Contender(case.name, case.name, "updates/s", partial(case.update().speed, seconds)) for case in cases]
    speeds = rounds.measure(contenders, n_rounds)
    milliseconds = {case: 1e3 / float(np.median(speeds[case.name])) for case in cases}
    megabytes = peak_memory.of_updates(cases, threads=1)
    with (folder / "scaling.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["update", "transitions", "goals", "milliseconds", "megabytes"])
        for case in cases:
            memory = f"{megabytes[case]:.1f}" if case in megabytes else ""
            writer.writerow([case.kind, case.transitions, case.goals, f"{milliseconds[case]:.3f}", memory])
    plotting.scaling(folder / "scaling.csv", folder / "scaling.png")
    for what, values in (("time", milliseconds), ("memory", megabytes)):
        ours = [case for case in cases if case.kind == "pairwise" and case in values]
        if len(ours) > 1:
            off = _off_a_line([TRANSITIONS + case.goals for case in ours], [values[case] for case in ours])
            span = f"{ours[0].goals} to {ours[-1].goals} goals"
            print(f"{what} of pairwise {TRANSITIONS} x {span}: at most {off:.0%} off a line in S + G")


def _off_a_line(sizes: Sequence[int], values: Sequence[float]) -> float:
    slope, offset = np.polyfit(sizes, values, 1)
    return float(np.abs(np.array(values) / (offset + slope * np.array(sizes)) - 1).max())
