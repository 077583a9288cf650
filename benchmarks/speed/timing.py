"""
The timing core.

Contenders are measured in turn, round after round, and ratios are taken within each round.
"""

from __future__ import annotations

import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pandas as pd
import torch as th
from rich.console import Console
from rich.table import Table

from benchmarks import recording
from benchmarks.worlds import SettingError

Contenders = Mapping[str, Callable[[], float]]
"""What is measured, by names: each call gives one value."""


@dataclass(frozen=True)
class Ratio:
    """
    The ratio of two contenders.

    A side may also be the best of several in each round, after each is multiplied by its weight.
    """

    title: str
    """What the ratio is called."""
    of: str | Mapping[str, float]
    """Dividend: the name of a contender, or the weights of several."""
    by: str | Mapping[str, float]
    """Divisor: the name of a contender, or the weights of several."""

    def is_measured(self, measured: pd.DataFrame) -> bool:
        """
        Return whether all contenders of both sides were measured.

        :param measured: values as :func:`measure` returns them
        :return: whether :meth:`values` can be computed
        """
        return {*self._weights(self.of), *self._weights(self.by)} <= set(measured.columns)

    def values(self, measured: pd.DataFrame) -> pd.Series:
        """
        Compute the ratio in each round.

        :param measured: values as :func:`measure` returns them
        :return: a value for each round
        """
        dividend = self._best(measured, self.of)
        return dividend / self._best(measured, self.by)

    @staticmethod
    def _weights(side: str | Mapping[str, float]) -> dict[str, float]:
        """Return the weights of the contenders of a side."""
        return {side: 1.0} if isinstance(side, str) else dict(side)

    @classmethod
    def _best(cls, measured: pd.DataFrame, side: str | Mapping[str, float]) -> pd.Series:
        """Return the best weighted value of a side in each round."""
        weights = pd.Series(cls._weights(side))
        return (measured[weights.index] * weights).max(axis=1)


@dataclass(frozen=True)
class SpeedConfig(ABC):
    """What all measurements of speed have in common."""

    what: ClassVar[str]
    """What is measured, for the names of files."""
    unit: ClassVar[str] = "steps/s"
    """Unit of what is measured."""
    ratios: ClassVar[Sequence[Ratio]]
    """Ratios that are printed."""

    rounds: int = 7
    """Times that each contender is measured. Medians are reported; ratios are taken within a
    round."""
    output: Path = Path("runs")
    """Folder in which the run's own folder is made."""
    threads: tuple[int, ...] = tuple(dict.fromkeys((1, os.cpu_count() or 1)))
    """Numbers of torch threads to measure with, one after the other."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, tuple) and not value:
                raise SettingError(f"{name} must have at least one value, got none")
            for each in value if isinstance(value, tuple) else (value,):
                if isinstance(each, int) and not isinstance(each, bool) and each < 1:
                    raise SettingError(f"{name} must be at least 1, got {each}")
                if isinstance(each, float) and not 0 <= each < math.inf:
                    raise SettingError(f"{name} must be finite and not negative, got {each}")

    @abstractmethod
    def contenders(self) -> Contenders:
        """
        Make what takes turns.

        :return: for each name a function that measures
        """

    def run(self) -> Path:
        """
        Measure, print, and write ``config.json`` and each value to ``<what>-<n>-threads.csv``.

        :return: the folder of the run
        """
        folder = recording.create(self.output, f"speed-{self.what}")
        record = recording.write_config(folder, self)
        versions = (f"{name} {version}" for name, version in record["versions"].items())
        print(", ".join([record["machine"]["processor"], *versions]))
        contenders = self.contenders()
        for threads in self.threads:
            th.set_num_threads(threads)
            print(f"\n{threads} torch thread(s)")
            file = folder / f"{self.what}-{threads}-threads.csv"
            compare(file, contenders, self.unit, self.ratios, self.rounds)
        print(f"written to {folder}")
        return folder


def rate(
    step: Callable[[], object],
    seconds: float = 0.0,
    steps: int = 1,
    wait: Callable[[], object] | None = None,
) -> float:
    """
    Measure how often a step is done a second.

    :param step: function that is measured
    :param seconds: least time for which it is repeated
    :param steps: least number of repetitions
    :param wait: function that waits until a GPU has done all steps; by default nothing is waited
        for
    :return: steps a second
    """
    count = 0
    begin = time.perf_counter()
    while count < steps or time.perf_counter() - begin < seconds:
        step()
        count += 1
    if wait is not None:
        wait()
    return count / (time.perf_counter() - begin)


def measure(contenders: Contenders, rounds: int) -> Iterator[pd.DataFrame]:
    """
    Measure each contender in turn, once a round, so that a slow while slows all.

    One more round before the others warms up.

    :param contenders: what is measured
    :param rounds: number of rounds
    :return: after each round, a column for each contender, and a row for each round so far
    """
    found = []
    for number in range(rounds + 1):
        values = {name: value() for name, value in contenders.items()}
        if number > 0:
            found.append(values)
            yield pd.DataFrame(found)


def compare(
    file: Path, contenders: Contenders, unit: str, ratios: Sequence[Ratio], rounds: int
) -> None:
    """
    Measure, write the raw values to a CSV file, one a line, and print a summary.

    The file is written after each round, so that a stop leaves the rounds before it.

    :param file: the CSV file
    :param contenders: what is measured
    :param unit: unit of the values
    :param ratios: are printed if all of their contenders are measured
    :param rounds: number of rounds
    """
    measured = pd.DataFrame()
    for measured in measure(contenders, rounds):
        named = measured.rename_axis(index="round", columns="contender")
        raw = named.stack().rename("value").reset_index()
        raw.assign(unit=unit).to_csv(file, index=False)
    shown = Table(unit, "median [lowest, highest]")
    compared = Table("ratio", "median [lowest, highest]")
    for name, values in measured.items():
        shown.add_row(name, spread(values))
    for ratio in ratios:
        if ratio.is_measured(measured):
            compared.add_row(ratio.title, spread(ratio.values(measured)))
    # Markup would swallow brackets, and without a width the output of a pipe has 80 columns.
    console = Console(width=127, markup=False)
    console.print(shown)
    console.print(compared)


def spread(values: pd.Series) -> str:
    """
    Sum up values in words.

    :param values: values of all rounds
    :return: the median, and the lowest and highest in brackets
    """
    median, low, high = (
        f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
        for value in values.quantile([0.5, 0, 1])
    )
    return f"{median} [{low}, {high}]"
