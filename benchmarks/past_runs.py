"""Runs of the studies of mastery, read back from the folders they left."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

INCIDENTAL = {"seed", "output", "resume", "preset", "progress_bar", "checkpoint_minutes"}
"""Settings in which runs of the same kind may differ. A preset is only where the defaults of others come from."""
SHARED = ("env_id", "map", "eval_steps", "eval_epsilon")
"""Settings without which mastery is not the same thing: one summary takes runs that agree in them."""


class PastRunError(ValueError):
    """Folders that cannot be summarised. The message says which and why."""


@dataclass(frozen=True)
class GoalOutcomes:
    """What ``goals.csv`` says, in order of the world's states; each array has the shape (n_goals,)."""

    held_out: NDArray[np.bool_]
    """Which goals were held out from training."""
    updates: NDArray[np.int64] | None
    """How often each was in an update; None where that was not counted."""
    reached: dict[str, NDArray[np.float64]]
    """Share of starts from which each was reached, "greedy" and at "epsilon"."""
    steps: dict[str, NDArray[np.float64]]
    """Mean steps of those; NaN where there are none."""


@dataclass(frozen=True)
class PastRun:
    """One run, finished or not."""

    folder: Path
    """Where it is."""
    settings: dict[str, Any]
    """Its settings, those of the agent as ``agent.name``."""
    curve: NDArray[Any]
    """The rows of ``mastery.csv``, a structured array; at least one."""
    label: str = ""
    """What it is a run of."""

    @property
    def seed(self) -> int:
        """Of everything random in it."""
        return int(self.settings["seed"])

    @property
    def last_step(self) -> int:
        """Environment steps at the newest measurement."""
        return int(self.curve["step"][-1])

    @property
    def seconds(self) -> float:
        """Of training, until then."""
        return float(self.curve["training_seconds"][-1])

    @property
    def is_finished(self) -> bool:
        """Whether it took all its steps, and was measured after that."""
        return self.last_step >= self.settings["total_steps"] and (self.folder / "goals.csv").is_file()

    @property
    def has_held_out(self) -> bool:
        """Whether some goals were held out."""
        return "held_out_greedy" in (self.curve.dtype.names or ())

    @cached_property
    def outcomes(self) -> GoalOutcomes:
        """
        How each goal fared after training.

        :raises FileNotFoundError: if the run is not finished
        """
        table = read_table(self.folder / "goals.csv")
        names = table.dtype.names or ()
        return GoalOutcomes(
            held_out=table["held_out"] > 0 if "held_out" in names else np.zeros(len(table), dtype=np.bool_),
            updates=table["updates"].astype(np.int64) if "updates" in names else None,
            reached={name: table[f"{name}_reached"] for name in ("greedy", "epsilon")},
            steps={name: table[f"{name}_mean_steps"] for name in ("greedy", "epsilon")},
        )


def read_table(path: Path) -> NDArray[Any]:
    """
    :param path: a CSV file of numbers, with names in its first line
    :return: its rows as a structured array of float64, NaN where nothing is written
    """
    return np.atleast_1d(np.genfromtxt(path, delimiter=",", names=True, dtype=np.float64))


def collect(folders: Sequence[Path]) -> list[PastRun]:
    """
    Read runs, and label them by what they are runs of: the folder they lie in, and, should runs in folders of that name differ
    in settings, those settings. Of runs with one label and seed the one that came furthest counts, of equals the newest; of
    others, and of folders without a measurement, it is printed that they are left out.

    :param folders: of runs, or folders somewhere below which runs are
    :return: the runs, by label and seed
    :raises PastRunError: if a folder does not exist, there is no run, or they differ in what makes mastery comparable
    """
    found = read(find(folders))
    if not found:
        raise PastRunError("runs must have at least one folder with config.json and mastery.csv, got none")
    for name in SHARED:
        values = sorted({str(run.settings.get(name)) for run in found})
        if len(values) > 1:
            raise PastRunError(f"runs must agree in {name}, got {', '.join(values)}: summarise them apart")
    return labelled(found)


def labelled(found: Iterable[PastRun]) -> list[PastRun]:
    """
    :param found: runs that agree in what makes mastery comparable
    :return: those that count, with their labels, by label and seed, as :func:`collect` says
    """
    runs = _labelled(found)
    kept: dict[tuple[str, int], PastRun] = {}
    for run in sorted(runs, key=lambda run: (run.is_finished, run.last_step, run.folder.name)):
        beaten = kept.get((run.label, run.seed))
        if beaten is not None:
            print(f"left out: {beaten.folder}, seed {run.seed} of {run.label} like {run.folder}")
        kept[run.label, run.seed] = run
    return sorted(kept.values(), key=lambda run: (run.label, run.seed))


def find(folders: Iterable[Path]) -> list[Path]:
    """
    :param folders: of runs, or folders somewhere below which runs are
    :return: folders with a ``config.json``, each once
    :raises PastRunError: if a folder does not exist
    """
    found: dict[Path, None] = {}
    for folder in folders:
        if not folder.is_dir():
            raise PastRunError(f"runs must be folders, got {folder}")
        if (folder / "config.json").is_file():
            found[Path(os.path.abspath(folder))] = None
        else:
            found.update(dict.fromkeys(Path(os.path.abspath(path.parent)) for path in sorted(folder.rglob("config.json"))))
    return list(found)


def read(folders: Iterable[Path]) -> list[PastRun]:
    """
    :param folders: those of :func:`find`
    :return: the runs that have a measurement, without labels; of others it is printed that they are left out
    """
    runs = []
    for folder in folders:
        if not (folder / "mastery.csv").is_file():
            print(f"left out: {folder}, which has no mastery.csv")
            continue
        settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))["settings"]
        runs.append(PastRun(folder, _flat(settings), read_table(folder / "mastery.csv")))
    return runs


def _labelled(runs: Iterable[PastRun]) -> list[PastRun]:
    by_name: dict[str, list[PastRun]] = {}
    for run in runs:
        by_name.setdefault(run.folder.parent.name, []).append(run)
    labelled = []
    for name, alike in by_name.items():
        settings = [{key: value for key, value in run.settings.items() if key not in INCIDENTAL} for run in alike]
        # A setting that a run does not have is one that there was not yet: no difference.
        differing = [
            key
            for key in dict.fromkeys(key for each in settings for key in each)
            if len({str(each[key]) for each in settings if key in each}) > 1
        ]
        for run, each in zip(alike, settings, strict=True):
            said = [f"{key.removeprefix('agent.')}={each[key]}" for key in differing if key in each]
            labelled.append(dataclasses.replace(run, label=", ".join([name, *said])))
    return labelled


def _flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat
