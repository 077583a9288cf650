"""The timing core: contenders measured in turn, round after round, and ratios taken within each round."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pandas as pd
import torch as th
from rich.console import Console
from rich.table import Table

from benchmarks import recording

Contenders = Mapping[str, Callable[[], float]]
"""What is measured, by names: each call gives one value."""


@dataclass(frozen=True)
class Ratio:
    """The ratio of two contenders, or of the best of several in each round, first multiplied by weights."""

    title: str
    of: str | Mapping[str, float]
    by: str | Mapping[str, float]

    def is_measured(self, measured: pd.DataFrame) -> bool:
        names = {
            name
            for side in (self.of, self.by)
            for name in ([side] if isinstance(side, str) else side)
        }
        return names <= set(measured.columns)

    def values(self, measured: pd.DataFrame) -> pd.Series:
        """The ratio in each round of :func:`measure`."""
        sides = [
            pd.Series({side: 1.0} if isinstance(side, str) else dict(side))
            for side in (self.of, self.by)
        ]
        best = [(measured[weights.index] * weights).max(axis=1) for weights in sides]
        return best[0] / best[1]


@dataclass(frozen=True)
class SpeedConfig(ABC):
    """What all measurements of speed have in common."""

    what: ClassVar[str]
    """Of the names of files."""
    unit: ClassVar[str] = "steps/s"
    ratios: ClassVar[Sequence[Ratio]]

    rounds: int = 7
    """Times that each contender is measured. Medians are reported; ratios are taken within a round."""
    output: Path = Path("runs")
    """Folder in which the run's own folder is made."""
    threads: tuple[int, ...] = tuple(dict.fromkeys((1, os.cpu_count() or 1)))
    """Numbers of torch threads to measure with, one after the other."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, int) and not isinstance(value, bool) and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")

    @abstractmethod
    def contenders(self) -> Contenders:
        """What takes turns."""

    def run(self) -> Path:
        """Measure, print, and write ``config.json``, and each value to ``<what>-<n>-threads.csv``. Returns the folder."""
        folder = recording.create(self.output, f"speed-{self.what}")
        record = recording.write_config(folder, self)
        print(
            ", ".join([record["machine"]["processor"], *map(" ".join, record["versions"].items())])
        )
        contenders = self.contenders()
        for threads in self.threads:
            th.set_num_threads(threads)
            print(f"\n{threads} torch thread(s)")
            compare(
                folder / f"{self.what}-{threads}-threads.csv",
                contenders,
                self.unit,
                self.ratios,
                self.rounds,
            )
        print(f"written to {folder}")
        return folder


def rate(
    step: Callable[[], object],
    seconds: float = 0.0,
    steps: int = 1,
    wait: Callable[[], object] | None = None,
) -> float:
    """How often ``step`` is done a second, in so many seconds and so many steps at least; ``wait`` for a GPU to end them."""
    count, begin = 0, time.perf_counter()
    while count < steps or time.perf_counter() - begin < seconds:
        step()
        count += 1
    if wait is not None:
        wait()
    return count / (time.perf_counter() - begin)


def measure(contenders: Contenders, rounds: int) -> pd.DataFrame:
    """Each in turn, once a round, so that a slow while slows all; a first round warms up. A column each, a row a round."""
    found = [{name: value() for name, value in contenders.items()} for _ in range(rounds + 1)]
    return pd.DataFrame(found[1:])


def compare(
    file: Path, contenders: Contenders, unit: str, ratios: Sequence[Ratio], rounds: int
) -> None:
    """Measure, write the raw values to a CSV file, one a line, and print them and the ratios that can be computed."""
    measured = measure(contenders, rounds)
    raw = (
        measured.rename_axis(index="round", columns="contender")
        .stack()
        .rename("value")
        .reset_index()
    )
    raw.assign(unit=unit).to_csv(file, index=False)
    shown, compared = (
        Table(unit, "median [lowest, highest]"),
        Table("ratio", "median [lowest, highest]"),
    )
    for name, values in measured.items():
        shown.add_row(name, spread(values))
    for ratio in ratios:
        if ratio.is_measured(measured):
            compared.add_row(ratio.title, spread(ratio.values(measured)))
    # Markup would swallow brackets, and without a width a pipe gets 80 columns.
    console = Console(width=127, markup=False)
    console.print(shown)
    console.print(compared)


def spread(values: pd.Series) -> str:
    """The median, and the lowest and highest in brackets."""
    median, low, high = (
        f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
        for value in values.quantile([0.5, 0, 1])
    )
    return f"{median} [{low}, {high}]"
