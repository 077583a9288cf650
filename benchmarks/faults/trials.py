"""What is done to runs and to what they saved, and what becomes of it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.faults.learners import Digests, Learner
from benchmarks.faults.processes import Child, Outcome, Tell, call

SURVIVED = "survived"
"""The outcome that a user hopes for."""
NOBODY = 65534
"""A user who owns nothing. Root, who may write anywhere, becomes this user."""


@dataclass(frozen=True)
class Undisturbed:
    """A run that nobody disturbed, and what is needed to judge one that somebody did."""

    folder: Path
    """Where it saved."""
    early: Path
    """A copy of that folder, made after the first save."""
    result: Digests
    """What came out."""
    newest: Digests
    """What its newest save holds."""
    first: Digests
    """What its first save holds."""
    n_saves: int
    """The number of its saves."""
    save_seconds: float
    """How long a save took to write, in seconds: the median."""
    gap_seconds: float
    """How long it was from the begin of a save to that of the next, in seconds: the median."""


@dataclass(frozen=True)
class Trial:
    """
    One fault that is done to one learner.

    :param learner: the learner
    :param whole: its undisturbed run
    :param folder: where the run is that the fault is done to. It is missing before
    :param rng: draws moments and places
    :param number: the number of the trial among those of this fault and learner
    """

    learner: Learner
    whole: Undisturbed
    folder: Path
    rng: np.random.Generator
    number: int


Result = tuple[str, str]
"""The outcome of a trial, such as :data:`SURVIVED`, and what was seen."""


def undisturbed(learner: Learner, work: Path) -> Undisturbed:
    """
    Let a learner train without a disturbance.

    :param learner: the learner
    :param work: where folders for it are made
    :return: the run
    :raises RuntimeError: if that fails
    """
    folder = work / "whole"
    early = work / "early"

    def train(tell: Tell) -> Digests:
        def tell_and_copy(word: str) -> None:
            tell(word)
            if word == "end" and not early.exists():
                shutil.copytree(folder, early)

        return learner.train(folder, tell_and_copy)

    child = Child(train)
    said = child.hear()
    moments: dict[str, list[float]] = {"begin": [], "end": []}
    while isinstance(said, str):
        moments[said].append(time.monotonic())
        said = child.hear()
    loaded = [call(partial(learner.load, one)) for one in (folder, early)]
    for outcome in (said, *loaded):
        if outcome.error:
            raise RuntimeError(f"training fails undisturbed: {outcome.error}")
    durations = np.array(moments["end"]) - np.array(moments["begin"])
    return Undisturbed(
        folder=folder,
        early=early,
        result=said.value,
        newest=loaded[0].value,
        first=loaded[1].value,
        n_saves=len(durations),
        save_seconds=float(np.median(durations)),
        gap_seconds=float(np.median(np.diff(moments["begin"]))),
    )


def kill_training(trial: Trial) -> Result:
    """
    Kill a run at a random moment, and let a second process go on with it.

    The moment is after the first save and before the end. Before the first save there is nothing
    to go on from.

    :param trial: the learner and the run
    :return: what became of it
    """
    said: list[str | Outcome] = [Outcome()]
    while said and isinstance(said[-1], Outcome):
        # The run ended before it was killed, or this is the first attempt.
        save = int(trial.rng.integers(1, trial.whole.n_saves))
        child = _train_until(trial, ["begin", "end"] * save)
        time.sleep(trial.rng.random() * trial.whole.gap_seconds)
        said = child.kill()
    return _go_on(trial, f"killed after save {save}")


def kill_saving(trial: Trial) -> Result:
    """
    Kill a run at a random moment while it writes a save, and let a second process go on with it.

    Before the first save there is nothing to go on from, so it is not the first.

    :param trial: the learner and the run
    :return: what became of it
    """
    said: list[str | Outcome] = ["end"]
    while said:
        # The save had ended before the run was killed, or this is the first attempt.
        save = int(trial.rng.integers(2, trial.whole.n_saves + 1))
        child = _train_until(trial, ["begin", "end"] * (save - 1) + ["begin"])
        time.sleep(trial.rng.random() * trial.whole.save_seconds)
        said = child.kill()
    return _go_on(trial, f"killed in save {save}")


def cut_short(trial: Trial) -> Result:
    """
    Cut a file of the newest save at a random length.

    :param trial: the learner and the run
    :return: what became of it
    """
    path = _copy_and_choose(trial)
    os.truncate(path, int(trial.rng.integers(path.stat().st_size)))
    return _judge_damage(trial, [path])


def flip_bit(trial: Trial) -> Result:
    """
    Flip a random bit in a file of the newest save.

    :param trial: the learner and the run
    :return: what became of it
    """
    path = _copy_and_choose(trial)
    data = bytearray(path.read_bytes())
    data[trial.rng.integers(len(data))] ^= 1 << int(trial.rng.integers(8))
    path.write_bytes(data)
    return _judge_damage(trial, [path])


def mix(trial: Trial) -> Result:
    """
    Put a part of the first save into the newest.

    A part is one of the files. If there is only one file, a part is all from a random byte on.

    :param trial: the learner and the run
    :return: what became of it
    """
    path = _copy_and_choose(trial)
    files = trial.learner.files(trial.folder)
    older = trial.learner.files(trial.whole.early)[files.index(path)].read_bytes()
    cut = int(trial.rng.integers(len(older))) if len(files) == 1 else 0
    path.write_bytes(path.read_bytes()[:cut] + older[cut:])
    return _judge_damage(trial, files)


class Hostile:
    """
    Makes a folder when it is unpickled, as it could do anything else.

    :param marker: the folder
    """

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.marker),)


def plant_pickle(trial: Trial) -> Result:
    """
    Put a pickle that executes code into the newest save.

    :param trial: the learner and the run
    :return: what became of it
    """
    marker = trial.folder.with_name("executed")
    shutil.copytree(trial.whole.folder, trial.folder)
    trial.learner.plant(trial.folder, Hostile(marker), trial.number)
    outcome, detail = _judge_damage(trial, trial.learner.files(trial.folder))
    if marker.exists():
        marker.rmdir()
        outcome = "executed"
    return outcome, detail


def fill_disk(trial: Trial) -> Result:
    """
    Let a run go on from its first save while no file can grow beyond a random size.

    The limit (RLIMIT_FSIZE) is below the size of the largest file of a save. A write beyond it
    fails as on a full disk, with another error number. It needs no rights.

    :param trial: the learner and the run
    :return: what became of it
    """
    # Windows has no such module.
    import resource

    files = trial.learner.files(trial.whole.early)
    size = int(trial.rng.integers(64, max(path.stat().st_size for path in files)))

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return _train_under(trial, limit)


def forbid_writing(trial: Trial) -> Result:
    """
    Let a run go on from its first save where nothing may be written.

    :param trial: the learner and the run
    :return: what became of it
    """

    def limit() -> None:
        for path in trial.folder.iterdir():
            path.chmod(0o444)
        trial.folder.chmod(0o555)
        if os.getuid() == 0:
            os.setuid(NOBODY)

    return _train_under(trial, limit)


def _train_until(trial: Trial, words: list[str]) -> Child:
    """Begin a run, and wait until it has said some words."""
    shutil.rmtree(trial.folder, ignore_errors=True)
    child = Child(partial(trial.learner.train, trial.folder))
    for word in words:
        said = child.hear()
        if said != word:
            raise RuntimeError(f"{word!r} was expected of a run, got {said!r}")
    return child


def _go_on(trial: Trial, detail: str) -> Result:
    """Go on with a run that was killed, and compare its result with that of the undisturbed run."""
    found = call(lambda: trial.learner.train(trial.folder, _say_nothing))
    if found.error:
        return "could not resume", f"{detail}. {found.error}"
    whole = trial.whole.result
    different = [name for name in whole if found.value[name] != whole[name]]
    if different:
        return "ended differently", f"{detail}. {', '.join(different)}"
    return SURVIVED, detail


def _copy_and_choose(trial: Trial) -> Path:
    """Copy the undisturbed run, and return a random file of its newest save."""
    shutil.copytree(trial.whole.folder, trial.folder)
    files = trial.learner.files(trial.folder)
    return files[trial.rng.integers(len(files))]


def _judge_damage(trial: Trial, damaged: list[Path]) -> Result:
    """Load the newest save, of which some files are damaged."""
    found = call(partial(trial.learner.load, trial.folder))
    if not found.error:
        is_same = found.value == trial.whole.newest
        outcome = "accepted, the same by luck" if is_same else "accepted and different"
    elif not any(str(path) in found.error for path in damaged):
        outcome = "refused without naming the file"
    elif call(partial(trial.learner.load_older, trial.folder)).error:
        outcome = "refused with no older save"
    else:
        outcome = SURVIVED
    names = ", ".join(path.name for path in damaged)
    return outcome, f"{names}: {found.error}"


def _train_under(trial: Trial, limit: Callable[[], None]) -> Result:
    """Go on from the first save under a limit, and look what is left of that save."""
    shutil.copytree(trial.whole.early, trial.folder)

    def train() -> None:
        limit()
        trial.learner.train(trial.folder, _say_nothing)

    found = call(train)
    for path in (trial.folder, *trial.folder.iterdir()):
        path.chmod(0o755)
    left = call(partial(trial.learner.load, trial.folder))
    if left.value != trial.whole.first:
        outcome = "the older save is lost"
    elif not found.error:
        outcome = "went on without an error"
    elif str(trial.folder) not in found.said:
        outcome = "stopped without naming the file"
    else:
        outcome = SURVIVED
    return outcome, found.said.strip()


def _say_nothing(word: str) -> None:
    """Stand in for a :data:`Tell` where nobody waits."""
