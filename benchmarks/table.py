"""The one table of updates: how fast, how much of it is learning, how much memory, how far from the floor."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.cases import Case


@dataclass(frozen=True)
class Row:
    """
    An update, in medians over rounds; None is what was not measured, or does not exist.

    :ivar threads: of torch
    :ivar update: its name
    :ivar pairs: (transition, goal) pairs that it teaches
    :ivar updates_per_second: how fast it is
    :ivar goal_updates_per_second: pairs taught
    :ivar env_steps_per_second: of whole training, one update a step
    :ivar peak_megabytes: that it needs beyond the learner at rest
    :ivar share_of_floor: its speed by that of its floor, within each round
    """

    threads: int
    update: str
    pairs: int
    updates_per_second: float
    goal_updates_per_second: float
    env_steps_per_second: float | None
    peak_megabytes: float | None
    share_of_floor: float | None


def rows(
    cases: Sequence[Case],
    measured: Mapping[str, Sequence[float]],
    megabytes: Mapping[Case, float],
    training: Mapping[str, str],
    threads: int,
) -> list[Row]:
    """
    :param cases: the updates
    :param measured: updates/s of them and of floors, steps/s of training; one value a round
    :param megabytes: of those whose memory was measured
    :param training: the name of the training by that of its update
    :param threads: of torch
    :return: a row an update
    """
    found = []
    for case in cases:
        speeds = np.array(measured[case.name])
        steps = measured.get(training.get(case.name, ""))
        floors = measured.get(case.floor_name or "")
        found.append(
            Row(
                threads,
                case.name,
                case.pairs,
                float(np.median(speeds)),
                float(np.median(speeds)) * case.pairs,
                None if steps is None else float(np.median(steps)),
                megabytes.get(case),
                None if floors is None else float(np.median(speeds / np.array(floors))),
            )
        )
    return found


def write(file: Path, found: Sequence[Row]) -> None:
    """
    :param file: the CSV to write
    :param found: what was measured
    """
    with file.open("w", newline="", encoding="utf-8") as lines:
        writer = csv.writer(lines)
        writer.writerow([field.name for field in fields(Row)])
        writer.writerows(cells(row, "") for row in found)


def cells(row: Row, comma: str = ",") -> list[str]:
    """
    :param row: of the table
    :param comma: between thousands
    :return: its numbers with as many digits as mean something, "" where there is none
    """
    text = []
    for value in asdict(row).values():
        if isinstance(value, float):
            digits = max(0, 2 - int(np.floor(np.log10(value)))) if value > 0 else 0
            text.append(f"{value:{comma}.{digits}f}")
        else:
            text.append("" if value is None else f"{value:{comma}}" if isinstance(value, int) else str(value))
    return text


def show(found: Sequence[Row]) -> None:
    """
    Print the table.

    :param found: what was measured
    """
    printed = Table(*(field.name.replace("_", " ").replace("per second", "/ s") for field in fields(Row)))
    for row in found:
        printed.add_row(*cells(row))
    Console(width=127, markup=False).print(printed)
