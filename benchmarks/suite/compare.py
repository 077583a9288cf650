"""Whether suites that were carried out more than once, by other engines or with interruptions, came to the same."""

from __future__ import annotations

import csv
import itertools
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch as th
import tyro
from stable_baselines3.common.save_util import load_from_zip_file

from benchmarks.suite.spec import SuiteError, read_result

TABLES = ("curve.csv", "mastery.csv", "goals.csv")
"""Files of a run that say what it came to at which step."""

INCIDENTAL = ("seconds", "bytes")
"""How names of values and of columns end that may differ: how long it took, and how well it was compressed."""


@dataclass(frozen=True)
class CompareConfig:
    """Say whether runs of the same names in two or more folders came to the same, to the last bit of their weights."""

    roots: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of suites: ROOT of the studies."""

    def __post_init__(self) -> None:
        if len(self.roots) < 2:
            raise ValueError(f"roots must be at least two folders, got {len(self.roots)}")

    def run(self) -> None:
        """
        :raises SystemExit: if anything differs, which is printed
        :raises SuiteError: if there are no runs, or a result is damaged
        """
        first, *others = self.roots
        found = [line for other in others for line in differences(first, other)]
        for line in found:
            print(line)
        if found:
            sys.exit(f"{len(found)} differences")
        print(f"{len(list(first.glob('*/result.json')))} runs are the same in {len(self.roots)} folders")


def differences(one: Path, other: Path) -> Iterator[str]:
    """
    :param one: folder of a suite
    :param other: the same, carried out once more
    :return: a line for each result, row of a table or weight that is not the same
    :raises SuiteError: if no run has finished in ``one``, or a result is damaged
    """
    ours, theirs = ({path.parent.name: path.parent for path in root.glob("*/result.json")} for root in (one, other))
    if not ours:
        raise SuiteError(f"no run has finished in {one}")
    for name in sorted(ours.keys() ^ theirs.keys()):
        yield f"{name}: has finished only in {one if name in ours else other}"
    for name in sorted(ours.keys() & theirs.keys()):
        values = [_lasting(read_result(root[name]).values) for root in (ours, theirs)]
        if values[0] != values[1]:
            yield f"{name}: {values[0]} and {values[1]}"
        yield from (f"{name}: {line}" for line in _files(ours[name], theirs[name]))


def _files(one: Path, other: Path) -> Iterator[str]:
    files, theirs = (
        {path.relative_to(root) for path in root.rglob("*") if path.name in (*TABLES, "model.zip")} for root in (one, other)
    )
    for file in sorted(files ^ theirs):
        yield f"{file} is only in {one if file in files else other}"
    for file in sorted(files & theirs):
        if file.name == "model.zip":
            if not same(_weights(one / file), _weights(other / file)):
                yield f"{file}: other weights, or moments of the optimizer"
            continue
        for number, rows in enumerate(itertools.zip_longest(_rows(one / file), _rows(other / file)), start=2):
            if rows[0] != rows[1]:
                yield f"{file}, line {number}: {rows[0]} and {rows[1]}"


def _lasting(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if not name.endswith(INCIDENTAL)}


def _rows(path: Path) -> list[dict[str, Any]]:
    with path.open(newline="", encoding="utf-8") as file:
        return [_lasting(row) for row in csv.DictReader(file)]


def _weights(path: Path) -> Any:
    _, parameters, variables = load_from_zip_file(path, device="cpu")
    return [parameters, variables]


def same(one: Any, other: Any) -> bool:
    """
    :param one: tensors in lists and dicts
    :param other: likewise
    :return: whether they are equal, to the last bit
    """
    if isinstance(one, th.Tensor):
        return isinstance(other, th.Tensor) and one.dtype == other.dtype and th.equal(one, other)
    if isinstance(one, Mapping):
        return isinstance(other, Mapping) and one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)):
        return isinstance(other, (list, tuple)) and len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)
