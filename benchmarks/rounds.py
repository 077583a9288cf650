"""Contenders measured in turn, round after round, and figures about them with the bars that they should meet."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.type_aliases import MaybeCallback


@dataclass(frozen=True)
class Contender:
    """
    Something to measure.

    :ivar name: in the table of raw values
    :ivar title: for people
    :ivar unit: of the values
    :ivar measure: gives one value
    """

    name: str
    title: str
    unit: str
    measure: Callable[[], float]


@dataclass(frozen=True)
class Best:
    """
    The best of several contenders, in each round by itself.

    :ivar weights: what their values are multiplied by before they are compared, by name: pairs, where values are updates/s
        and the best in goal updates/s is meant
    """

    weights: Mapping[str, float]


@dataclass(frozen=True)
class Figure:
    """
    A contender's value, or how many times that of another it is.

    :ivar title: for people
    :ivar contender: its name, or the best of several
    :ivar divisor: the name of the other, or the best of several others; None for the value itself
    :ivar sense: on which side of the bar the median should be
    :ivar bar: None where there is nothing to meet
    """

    title: str
    contender: str | Best
    divisor: str | Best | None = None
    sense: Literal[">=", "<="] = ">="
    bar: float | None = None

    def is_measured(self, measured: Mapping[str, Sequence[float]]) -> bool:
        """
        :param measured: values of all contenders
        :return: whether the figure can be computed from them
        """
        return all(name in measured for side in (self.contender, self.divisor) for name in _names(side))

    def values(self, measured: Mapping[str, Sequence[float]]) -> NDArray[np.float64]:
        """
        :param measured: values of all contenders, one a round
        :return: the figure's, one a round
        """
        values = _values(self.contender, measured)
        return values if self.divisor is None else values / _values(self.divisor, measured)

    def verdict(self, values: NDArray[np.float64]) -> str:
        """
        :param values: the figure's, one a round
        :return: "yes" or "no": whether their median meets the bar; "" without one
        """
        if self.bar is None:
            return ""
        median = np.median(values)
        return "yes" if (median >= self.bar if self.sense == ">=" else median <= self.bar) else "no"


def _names(side: str | Best | None) -> list[str]:
    if isinstance(side, Best):
        return list(side.weights)
    return [] if side is None else [side]


def _values(side: str | Best, measured: Mapping[str, Sequence[float]]) -> NDArray[np.float64]:
    if isinstance(side, Best):
        values = np.array([weight * np.array(measured[name]) for name, weight in side.weights.items()])
        best: NDArray[np.float64] = values.max(axis=0)
        return best
    return np.array(measured[side])


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


def measure(contenders: Sequence[Contender], rounds: int, warm_up: bool = True) -> dict[str, list[float]]:
    """
    Measure each in turn, once a round, so that a machine that slows down for a while slows all of them.

    :param contenders: what to measure
    :param rounds: how many
    :param warm_up: whether one more comes first, which does not count
    :return: each one's values, one a round
    """
    measured: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for round_ in range(-warm_up, rounds):
        for contender in contenders:
            value = contender.measure()
            if round_ >= 0:
                measured[contender.name].append(value)
    return measured


def write(file: Path, contenders: Sequence[Contender], measured: Mapping[str, Sequence[float]]) -> None:
    """
    Write the raw values, one a line.

    :param file: the CSV to write
    :param contenders: what was measured
    :param measured: each one's values, one a round
    """
    with file.open("w", newline="", encoding="utf-8") as lines:
        writer = csv.writer(lines)
        writer.writerow(["round", "contender", "value", "unit"])
        for round_, values in enumerate(zip(*(measured[contender.name] for contender in contenders), strict=True)):
            for contender, value in zip(contenders, values, strict=True):
                writer.writerow([round_, contender.name, value, contender.unit])


def show(contenders: Sequence[Contender], figures: Sequence[Figure], measured: Mapping[str, Sequence[float]]) -> None:
    """
    Print what was measured, and how the figures stand to their bars; those about what was not measured are left out.

    :param contenders: what was measured
    :param figures: about them
    :param measured: each one's values, one a round
    """
    raw = Table("measured", "median [lowest, highest]", "unit")
    for contender in contenders:
        raw.add_row(contender.title, spread(measured[contender.name]), contender.unit)
    compared = Table("figure", "median [lowest, highest]", "bar", "met")
    for figure in figures:
        if figure.is_measured(measured):
            values = figure.values(measured)
            bar = "" if figure.bar is None else f"{figure.sense} {figure.bar:g}"
            compared.add_row(figure.title, spread(values), bar, figure.verdict(values))
    # Without markup, as brackets are meant; with a width, as the 80 columns that a pipe would be given break the lines.
    console = Console(width=127, markup=False)
    console.print(raw)
    console.print(compared)


def spread(values: Sequence[float] | NDArray[np.float64]) -> str:
    """
    :param values: one a round
    :return: their median, and the lowest and highest in brackets
    """
    median, low, high = (f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in np.quantile(values, [0.5, 0, 1]))
    return f"{median} [{low}, {high}]"
