"""The timing core: contenders measured in turn, round after round, and ratios taken within each round."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd
from rich.console import Console
from rich.table import Table
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.type_aliases import MaybeCallback

from benchmarks import recording

Side: TypeAlias = str | Mapping[str, float]
"""Of a ratio: a contender, or the best of several in each round, whose values are first multiplied by these weights."""


@dataclass(frozen=True)
class Contender:
    """
    Something to measure.

    :ivar name: in tables
    :ivar unit: of the values
    :ivar measure: gives one value
    """

    name: str
    unit: str
    measure: Callable[[], float]


@dataclass(frozen=True)
class Ratio:
    """
    How many times one contender's value is that of another.

    :ivar title: in tables
    :ivar of: the dividend
    :ivar by: the divisor; None for the dividend's value itself
    :ivar at_least: bar that the median should meet, or None
    :ivar at_most: likewise
    """

    title: str
    of: Side
    by: Side | None = None
    at_least: float | None = None
    at_most: float | None = None

    def is_measured(self, measured: pd.DataFrame) -> bool:
        """
        :param measured: of :func:`measure`
        :return: whether the ratio can be computed from it
        """
        sides = [self.of, *([] if self.by is None else [self.by])]
        names = {name for side in sides for name in ([side] if isinstance(side, str) else side)}
        return names <= set(measured.columns)

    def values(self, measured: pd.DataFrame) -> pd.Series:
        """
        :param measured: of :func:`measure`
        :return: the ratio in each round
        """
        return _best(measured, self.of) / (1.0 if self.by is None else _best(measured, self.by))

    def verdict(self, measured: pd.DataFrame) -> tuple[str, str]:
        """
        :param measured: of :func:`measure`
        :return: the bar, and whether the median meets it ("yes" or "no"); both empty without a bar
        """
        median = self.values(measured).median()
        if self.at_least is not None:
            return f">= {self.at_least:g}", "yes" if median >= self.at_least else "no"
        if self.at_most is not None:
            return f"<= {self.at_most:g}", "yes" if median <= self.at_most else "no"
        return "", ""


def _best(measured: pd.DataFrame, side: Side) -> pd.Series:
    weights = {side: 1.0} if isinstance(side, str) else dict(side)
    return (measured[list(weights)] * pd.Series(weights)).max(axis=1)


@dataclass(frozen=True)
class SpeedConfig:
    """What all measurements of speed have in common."""

    rounds: int = 7
    """Times that each contender is measured. Medians are reported; ratios are taken within a round."""
    output: Path = Path("runs")
    """Folder in which the run's own folder is made."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, int) and not isinstance(value, bool) and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")


@dataclass(frozen=True)
class TorchSpeedConfig(SpeedConfig):
    """The same, where torch works."""

    threads: tuple[int, ...] = tuple(dict.fromkeys((1, os.cpu_count() or 1)))
    """Numbers of torch threads to measure with, one after the other."""


def open_folder(config: SpeedConfig, name: str, packages: Sequence[str] = ()) -> tuple[Path, dict[str, Any]]:
    """
    :param config: what to measure
    :param name: of the run
    :param packages: whose versions matter beside :data:`benchmarks.recording.PACKAGES`
    :return: a new folder with ``config.json``, and what that says
    """
    folder = recording.create(config.output, name)
    record = recording.write_config(folder, config, (*recording.PACKAGES, *packages))
    print(", ".join([record["machine"]["processor"], *(f"{name} {version}" for name, version in record["versions"].items())]))
    return folder, record


def training(model: BaseAlgorithm, steps: int, callback: MaybeCallback = None) -> Callable[[], float]:
    """
    :param model: a learner
    :param steps: in each measurement, of all its environments together, at least
    :param callback: of its ``learn``
    :return: measures steps a second of its ``learn``
    """

    def measure() -> float:
        before, begin = model.num_timesteps, time.perf_counter()
        model.learn(steps, callback, reset_num_timesteps=False)
        return (model.num_timesteps - before) / (time.perf_counter() - begin)

    return measure


def measure(contenders: Sequence[Contender], rounds: int) -> pd.DataFrame:
    """
    Measure each in turn, once a round, so that a machine that slows down for a while slows all of them. A first round warms up
    and does not count.

    :param contenders: what to measure
    :param rounds: how many
    :return: a column a contender, a row a round
    """
    found = [{contender.name: contender.measure() for contender in contenders} for _ in range(rounds + 1)]
    return pd.DataFrame(found[1:])


def compare(file: Path, contenders: Sequence[Contender], ratios: Sequence[Ratio], rounds: int) -> pd.DataFrame:
    """
    Measure, write the raw values, one a line, and print them and the ratios that can be computed.

    :param file: the CSV to write, with columns "round", "contender", "value" and "unit"
    :param contenders: what to measure
    :param ratios: between them
    :param rounds: how often
    :return: of :func:`measure`
    """
    measured = measure(contenders, rounds)
    units = {contender.name: contender.unit for contender in contenders}
    raw = measured.rename_axis(index="round", columns="contender").stack().rename("value").reset_index()
    raw.assign(unit=raw["contender"].map(units)).to_csv(file, index=False)
    shown = Table("measured", "median [lowest, highest]", "unit")
    for name, values in measured.items():
        shown.add_row(name, spread(values), units[name])
    compared = Table("ratio", "median [lowest, highest]", "bar", "met")
    for ratio in ratios:
        if ratio.is_measured(measured):
            compared.add_row(ratio.title, spread(ratio.values(measured)), *ratio.verdict(measured))
    # Markup would swallow brackets, and without a width a pipe gets 80 columns.
    console = Console(width=127, markup=False)
    console.print(shown)
    console.print(compared)
    return measured


def spread(values: pd.Series) -> str:
    """
    :param values: one a round
    :return: their median, and the lowest and highest in brackets
    """
    median, low, high = (f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in values.quantile([0.5, 0, 1]))
    return f"{median} [{low}, {high}]"
