"""
What becomes of runs that are killed, of saves that are damaged, and of training with bad data.

The same is done to ManyGoalsDQN with exact checkpoints, and to SB3's DQN with its own files.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import torch as th

from benchmarks import recording
from benchmarks.faults import trials
from benchmarks.faults.bad_data import BAD_STEPS, WORKER_KILLED, bad_data
from benchmarks.faults.learners import LEARNERS, Learner
from benchmarks.faults.trials import SURVIVED, Result, Trial, undisturbed
from benchmarks.suite.spec import write_whole
from benchmarks.worlds import SettingError

LONGEST_EXAMPLE = 300
"""Characters of an example in ``faults.csv``."""

Row = tuple[str, str, str, int, str]
"""Fault, learner, outcome, number of trials that ended so, and what was seen in the first one."""


@dataclass(frozen=True)
class FaultsConfig:
    """
    Kill training, damage what it saved, and count what comes of it; the same for SB3's DQN.

    A killed run survives if a second process ends bit-equal to an undisturbed run. A damaged file
    survives if the error names it and an older save remains. A save that fails survives if the
    error names the file and the older save is as it was. A run survives bad data if training stops
    before it learns from them, and the error says where.
    """

    kills: int = 100
    """Kills at random moments of training, and as many inside of saves."""
    damages: int = 100
    """Files cut short, and as many bits flipped."""
    full_disks: int = 20
    """Runs for which the disk is full."""
    others: int = 10
    """Trials of each other fault."""
    seed: int = 0
    """Seed of moments and places."""
    output: Path = Path("runs")
    """Folder in which the folder of this call is made."""

    def __post_init__(self) -> None:
        for name in ("kills", "damages", "full_disks", "others", "seed"):
            if getattr(self, name) < 0:
                raise SettingError(f"{name} must be at least 0, got {getattr(self, name)}")

    def run(self) -> Path:
        """
        Make all trials one after the other, print them, and write ``faults.csv``.

        The file has a row for each outcome of each fault.

        :return: the folder of this call
        :raises SettingError: if the operating system cannot fork processes
        """
        if not hasattr(os, "fork"):
            raise SettingError("faults needs an operating system that forks processes")
        folder = recording.create(self.output, "faults")
        recording.write_config(folder, self)
        _prepare_forks()
        rows: list[Row] = []
        found = _table_of(rows, "")
        # A trial that has given up its rights must still find its folder.
        mask = os.umask(0o022)
        try:
            with TemporaryDirectory(prefix="faults-") as temporary:
                os.chmod(temporary, 0o755)
                for of_fault in self._faults(Path(temporary)):
                    rows += of_fault
                    found = _table_of(rows, temporary)
                    # A stop leaves the faults before it.
                    write_whole(folder / "faults.csv", found.to_csv(index=False))
        finally:
            os.umask(mask)
        print(f"\n{table(found)}\n\nwritten to {folder}")
        return folder

    def _faults(self, work: Path) -> Iterator[list[Row]]:
        """Do everything to all learners; yield the rows of one fault after the other."""
        for number, (name, learners) in enumerate(LEARNERS.items()):
            yield from self._faults_of_saves(name, learners, work / str(number))
            yield from self._faults_of_data(name)

    def _faults_of_saves(
        self, name: str, learners: tuple[Learner, ...], work: Path
    ) -> Iterator[list[Row]]:
        """Kill, damage and hinder runs of learners, which take turns."""
        wholes = [
            undisturbed(learner, work / f"undisturbed-{number}")
            for number, learner in enumerate(learners)
        ]
        faults: dict[str, tuple[Callable[[Trial], Result], int]] = {
            "`kill -9` at a random moment of training": (trials.kill_training, self.kills),
            "`kill -9` inside a save": (trials.kill_saving, self.kills),
            "file cut short": (trials.cut_short, self.damages),
            "bit flipped": (trials.flip_bit, self.damages),
            "parts of two saves mixed": (trials.mix, self.others),
            "hostile pickle": (trials.plant_pickle, self.others),
            "disk full": (trials.fill_disk, self.full_disks),
            "no write permission": (trials.forbid_writing, self.others),
        }
        for fault, (function, n_trials) in faults.items():
            results = []
            for number in range(n_trials):
                turn = number % len(learners)
                rng = self._generator(fault, number)
                # Each learner has its own numbers, so that it meets even and odd ones.
                of_learner = number // len(learners)
                trial = Trial(learners[turn], wholes[turn], work / "trial", rng, of_learner)
                results.append(function(trial))
                shutil.rmtree(work / "trial")
            yield _summed_up(fault, name, results)

    def _faults_of_data(self, name: str) -> Iterator[list[Row]]:
        """Train a learner in environments that misbehave."""
        for fault in (*BAD_STEPS, WORKER_KILLED):
            results = [
                bad_data(fault, name, self._generator(fault, number))
                for number in range(self.others)
            ]
            yield _summed_up(fault, name, results)

    def _generator(self, fault: str, number: int) -> np.random.Generator:
        """Return the generator of a trial, which is the same for all learners."""
        return np.random.default_rng([self.seed, number, *fault.encode()])


def table(found: pd.DataFrame) -> str:
    """
    Return the results as a table in Markdown.

    :param found: a row for each outcome of each fault, as ``faults.csv`` has them
    :return: for each fault and learner, how many trials it survived, and how the others ended
    """
    names = found["learner"].unique()
    lines = [f"| fault | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for fault, rows in found.groupby("fault", sort=False):
        cells = [_cell(rows[rows["learner"] == name]) for name in names]
        lines.append(f"| {fault} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _table_of(rows: list[Row], temporary: str) -> pd.DataFrame:
    """Return what ``faults.csv`` has, without names of temporary folders."""
    found = pd.DataFrame(rows, columns=["fault", "learner", "outcome", "trials", "example"])
    examples = found["example"].astype(str)
    found["example"] = examples.str.replace(f"{temporary}/", "").str[:LONGEST_EXAMPLE]
    return found


def _cell(rows: pd.DataFrame) -> str:
    """Return what a fault did to a learner: how often it survived, and how else trials ended."""
    counts = dict(zip(rows["outcome"], rows["trials"], strict=True))
    survived = f"{counts.pop(SURVIVED, 0)}/{rows['trials'].sum()}"
    others = ", ".join(f"{n_trials} {outcome}" for outcome, n_trials in counts.items())
    return f"{survived}: {others}" if others else survived


def _summed_up(fault: str, name: str, results: list[Result]) -> list[Row]:
    """Return a row for each outcome of a fault, with what was seen the first time."""
    counts = Counter(outcome for outcome, _ in results)
    # The first of equal keys shall stay.
    examples = dict(reversed(results))
    print(f"{fault}, {name}: {counts[SURVIVED]}/{len(results)}", flush=True)
    return [
        (fault, name, outcome, n_trials, examples[outcome])
        for outcome, n_trials in counts.most_common()
    ]


def _prepare_forks() -> None:
    """Import and start what each forked process would have to import or start."""
    # Forked processes do not have the threads of this one.
    th.set_num_threads(1)
    # Torch imports hundreds of modules for the first optimizer.
    th.optim.Adam([th.zeros(1)])
    multiprocessing.set_forkserver_preload([bad_data.__module__])
