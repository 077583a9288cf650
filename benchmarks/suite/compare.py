"""Whether a suite gave the same results when it was carried out again, by another engine or with interruptions."""

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

FILES = ("curve.csv", "mastery.csv", "goals.csv", "model.zip")
"""Files of a run that are compared."""

INCIDENTAL = ("seconds", "bytes")
"""Values and columns whose names end so may differ."""


@dataclass(frozen=True)
class CompareConfig:
    """Say whether runs of the same names in two or more folders have equal results, to the last bit of their weights."""

    roots: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of suites: ROOT of the studies."""

    def run(self) -> None:
        """Print what differs, and exit with an error if anything does."""
        if len(self.roots) < 2:
            raise SuiteError(f"roots must be at least two folders, got {len(self.roots)}")
        first, *others = self.roots
        found = [line for other in others for line in differences(first, other)]
        for line in found:
            print(line)
        if found:
            sys.exit(f"{len(found)} differences")
        print(f"{len(list(first.glob('*/result.json')))} runs are the same in {len(self.roots)} folders")


def differences(one: Path, other: Path) -> Iterator[str]:
    """A line for each result, row of a table or file of weights that differs between two folders of a suite."""
    ours, theirs = ({path.parent.name: path.parent for path in root.glob("*/result.json")} for root in (one, other))
    if not ours:
        raise SuiteError(f"no run has finished in {one}")
    for name in sorted(ours.keys() ^ theirs.keys()):
        yield f"{name}: has finished only in {one if name in ours else other}"
    for name in sorted(ours.keys() & theirs.keys()):
        folders = ours[name], theirs[name]
        values = [_lasting(read_result(folder).values) for folder in folders]
        if values[0] != values[1]:
            yield f"{name}: {values[0]} and {values[1]}"
        files = [{path.relative_to(folder) for path in folder.rglob("*") if path.name in FILES} for folder in folders]
        for file in sorted(files[0] ^ files[1]):
            yield f"{name}: {file} is only in {folders[file in files[1]]}"
        for file in sorted(files[0] & files[1]):
            pair = [folder / file for folder in folders]
            if file.suffix == ".zip":
                if not same(*(load_from_zip_file(path, device="cpu")[1:] for path in pair)):
                    yield f"{name}: {file}: other weights, or moments of the optimizer"
                continue
            for number, rows in enumerate(itertools.zip_longest(*map(_rows, pair)), start=2):
                if rows[0] != rows[1]:
                    yield f"{name}: {file}, line {number}: {rows[0]} and {rows[1]}"


def _lasting(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if not name.endswith(INCIDENTAL)}


def _rows(path: Path) -> list[dict[str, Any]]:
    with path.open(newline="", encoding="utf-8") as file:
        return [_lasting(row) for row in csv.DictReader(file)]


def same(one: Any, other: Any) -> bool:
    """Whether two trees of lists, tuples, dicts and tensors are equal bit by bit."""
    if isinstance(one, th.Tensor):
        return isinstance(other, th.Tensor) and one.dtype == other.dtype and th.equal(one, other)
    if isinstance(one, Mapping):
        return isinstance(other, Mapping) and one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)):
        return isinstance(other, (list, tuple)) and len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)
