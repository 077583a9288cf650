"""What becomes of a run that is killed, and of what it saved when that is damaged: ours beside plain SB3."""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch as th
from rich.progress import track

from benchmarks import run_folder
from benchmarks.faults import cost, trials
from benchmarks.faults.hostile import hostile_trials
from benchmarks.faults.subjects import SUBJECTS, Subject
from benchmarks.faults.trials import GOOD, Trial


@dataclass(frozen=True)
class FaultsConfig:
    """Kill training, damage what it saved, fill the disk, and count what comes of it; the same for plain SB3."""

    kills: int = 200
    """Kills at random moments of training, and as many inside saves."""
    truncations: int = 500
    """Files cut short."""
    flips: int = 1_000
    """Bits flipped."""
    others: int = 20
    """Trials of each other fault: files of two saves mixed, hostile pickles, a full disk, no permission."""
    memory_steps: int = 1_000_000
    """Environment steps over which the memory of the process is watched; 0 to leave it out."""
    workers: int = os.cpu_count() or 1
    """Processes that make trials at the same time."""
    output: Path = Path("runs")
    """Folder in which the run's own folder is made."""

    def run(self) -> Path:
        """:return: the run's folder"""
        return run(self)


def run(config: FaultsConfig) -> Path:
    """
    Make all trials, print, and write ``faults.md``, ``faults.csv`` (a row a trial), ``outcomes.csv`` (a row an outcome),
    ``cost.json`` and ``config.json``.

    :param config: how many of each
    :return: the folder
    """
    folder = run_folder.create(config.output, "faults")
    run_folder.write_config(folder, config)
    counts: dict[Callable[[Subject, Path, int], Trial], int] = {
        trials.kill_training: config.kills,
        trials.kill_saving: config.kills,
        trials.truncate: config.truncations,
        trials.flip_bit: config.flips,
        trials.mix: config.others,
        trials.plant_pickle: config.others,
        trials.disk_full: config.others,
        trials.no_permission: config.others,
    }
    th.set_num_threads(1)
    th.optim.SGD([th.zeros(1)], lr=1.0)  # for the first optimizer torch imports hundreds of modules: before all forks
    with TemporaryDirectory(prefix="faults-") as temporary:
        # Others must be able to write here once a trial has given up its rights.
        os.chmod(temporary, 0o777)
        jobs = []
        for number, subject in enumerate(SUBJECTS):
            work = Path(temporary) / str(number)
            work.mkdir(mode=0o777)
            work.chmod(0o777)
            trials.prepare(subject, work)
            jobs += [partial(trial, subject, work, seed) for trial, n in counts.items() for seed in range(n)]
        # Forked, so that nothing is imported for a trial; and its processes are single-threaded.
        with ProcessPoolExecutor(config.workers, multiprocessing.get_context("fork")) as pool:
            found = list(track(pool.map(_call, jobs, chunksize=4), total=len(jobs), description="trials"))
    found += hostile_trials()
    _write_trials(folder / "faults.csv", found)
    _write_outcomes(folder / "outcomes.csv", found)
    spent = cost.measure(config.memory_steps)
    (folder / "cost.json").write_text(json.dumps(spent, indent=2) + "\n", encoding="utf-8")
    text = table(found) + "\n" + cost.describe(spent)
    (folder / "faults.md").write_text(text, encoding="utf-8")
    print(text)
    print(f"written to {folder}")
    return folder


def table(found: list[Trial]) -> str:
    """
    :param found: all trials
    :return: a table in Markdown: for each fault, how many trials ended as they should, and how the others ended
    """
    subjects = list(dict.fromkeys(trial.subject for trial in found))
    lines = ["| | " + " | ".join(subjects) + " |", "|---" * (len(subjects) + 1) + "|"]
    for fault in dict.fromkeys(trial.fault for trial in found):
        cells = []
        for subject in subjects:
            outcomes = Counter(trial.outcome for trial in found if (trial.fault, trial.subject) == (fault, subject))
            others = "; ".join(f"{n} {outcome}" for outcome, n in outcomes.most_common() if outcome != GOOD)
            cells.append(f"{outcomes[GOOD]}/{outcomes.total()}" + (f": {others}" if others else ""))
        lines.append(f"| {fault} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _call(job: partial[Trial]) -> Trial:
    return job()


def _write_trials(path: Path, found: list[Trial]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["fault", "subject", "outcome", "detail"])
        writer.writerows([trial.fault, trial.subject, trial.outcome, trial.detail] for trial in found)


def _write_outcomes(path: Path, found: list[Trial]) -> None:
    """How often each came, and what was found the first time."""
    counts = Counter((trial.fault, trial.subject, trial.outcome) for trial in found)
    details: dict[tuple[str, str, str], str] = {}
    for trial in found:
        details.setdefault((trial.fault, trial.subject, trial.outcome), trial.detail)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["fault", "subject", "outcome", "trials", "example"])
        writer.writerows([*key, count, details[key]] for key, count in counts.items())
