"""What is done to learners and to what they saved, and what became of it."""

from __future__ import annotations

import json
import os
import pickle
import resource
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.faults.children import Child, in_child
from benchmarks.faults.subjects import Subject


@dataclass(frozen=True)
class Trial:
    """One thing done, and what became of it."""

    fault: str
    subject: str
    outcome: str
    detail: str = ""


GOOD = "as it should be"
MIXED = "parts of two saves mixed"
NOBODY = 65534
"""The user who owns nothing."""


def prepare(subject: Subject, work: Path) -> None:
    """
    Let a learner train undisturbed, in ``work/whole``, and note what came out and how long its saves and what is between them
    took.

    :param subject: the learner
    :param work: folder of all its trials
    """
    moments: list[tuple[str, float]] = []

    def note(word: str) -> None:
        moments.append((word, time.monotonic()))
        if len(moments) == 2:  # the end of the first save
            shutil.copytree(work / "whole", work / "early")

    def train() -> dict[str, Any]:
        digests = subject.train(work / "whole", note)
        begins, ends = ([moment for word, moment in moments if word == kind] for kind in ("begin", "end"))
        save = float(np.median([end - start for start, end in zip(begins, ends, strict=True)]))
        gap = float(np.median(np.diff(begins)))
        loaded = subject.load(work / "whole")
        return {"digests": digests, "loaded": loaded, "saves": len(begins), "save_seconds": save, "gap_seconds": gap}

    found = in_child(train, work / "whole.json")
    if "value" not in found:
        raise RuntimeError(f"{subject.name} cannot even train undisturbed: {found}")


def kill_training(subject: Subject, work: Path, seed: int) -> Trial:
    """
    Kill training at a random moment after a random save of its own and before its last, go on to the end, and compare with
    the run that nobody disturbed.

    :param subject: the learner
    :param work: folder of all its trials
    :param seed: of the moment
    :return: what became of it
    """
    whole, folder = _undisturbed(work), work / f"kill-{seed}"
    rng = np.random.default_rng((seed, 0))
    running = False
    while not running:
        child, save = _train_until(subject, folder, int(rng.integers(1, whole["saves"])), "end")
        time.sleep(rng.random() * whole["gap_seconds"])
        running = not child.ended()
        child.kill()
    outcome, detail = _go_on(subject, folder, whole)
    detail = f"killed after save {save}. {detail}".strip()
    return Trial("kill -9 at a random moment of training", subject.name, outcome, detail)


def kill_saving(subject: Subject, work: Path, seed: int) -> Trial:
    """
    As :func:`kill_training`, at a random moment of a random save but the first, before which there is nothing to lose.

    :param subject: the learner
    :param work: folder of all its trials
    :param seed: of the moment
    :return: what became of it
    """
    whole, folder = _undisturbed(work), work / f"kill-save-{seed}"
    rng = np.random.default_rng((seed, 1))
    inside = False
    while not inside:
        child, save = _train_until(subject, folder, int(rng.integers(2, whole["saves"] + 1)), "begin")
        time.sleep(rng.random() * whole["save_seconds"])
        os.kill(child.pid, signal.SIGSTOP)  # so that it cannot end its save before it is looked at
        inside = child.next_word(timeout=0.0) is None
        child.kill()
    outcome, detail = _go_on(subject, folder, whole)
    return Trial("kill -9 inside a save", subject.name, outcome, f"killed in save {save}. {detail}".strip())


def truncate(subject: Subject, work: Path, seed: int) -> Trial:
    """
    Cut a file of the newest save short at a random length, and load it.

    :param subject: the learner
    :param work: folder of all its trials
    :param seed: of file and length
    :return: what became of it
    """

    def cut(data: bytes, rng: np.random.Generator) -> bytes:
        return data[: int(rng.integers(len(data)))]

    return _damage("a file cut short", subject, work, seed, cut)


def flip_bit(subject: Subject, work: Path, seed: int) -> Trial:
    """
    Flip a random bit in a file of the newest save, and load it.

    :param subject: the learner
    :param work: folder of all its trials
    :param seed: of file and bit
    :return: what became of it
    """

    def flip(data: bytes, rng: np.random.Generator) -> bytes:
        place = int(rng.integers(len(data)))
        return data[:place] + bytes([data[place] ^ (1 << int(rng.integers(8)))]) + data[place + 1 :]

    return _damage("a bit flipped", subject, work, seed, flip)


def mix(subject: Subject, work: Path, seed: int) -> Trial:
    """
    Put a file of an early save in the place of the same file of the newest, and load it.

    :param subject: the learner
    :param work: folder of all its trials
    :param seed: of the file
    :return: what became of it
    """
    early = {path.name: path.read_bytes() for path in subject.files(work / "early")}
    files = [path for path in subject.files(work / "whole") if early.get(path.name, b"") not in (b"", path.read_bytes())]
    path = files[seed % len(files)]
    return _damage(MIXED, subject, work, seed, lambda data, rng: early[path.name], path)


def plant_pickle(subject: Subject, work: Path, seed: int) -> Trial:
    """
    Put a pickle that runs code in the place of one file of the newest save (chosen by ``seed``), and load it.

    :param subject: the learner
    :param work: folder of all its trials
    :param seed: number of the file
    :return: what became of it
    """
    marker = work / f"executed-{seed}"
    hostile = pickle.dumps(_Hostile(str(marker)))
    files = subject.files(work / "whole")
    trial = _damage("a hostile pickle planted", subject, work, seed, lambda data, rng: hostile, files[seed % len(files)])
    return Trial(trial.fault, trial.subject, "code executed", trial.detail) if marker.exists() else trial


def disk_full(subject: Subject, work: Path, seed: int) -> Trial:
    """
    Let no file grow beyond a random size, as if the disk were full, while a save is made over an older one.

    :param subject: the learner
    :param work: folder of all its trials
    :param seed: of the size
    :return: what became of it
    """
    largest = max(path.stat().st_size for path in subject.files(work / "whole"))
    size = int(np.random.default_rng((seed, 2)).integers(64, largest))

    def limit(folder: Path) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return _save_under("disk full", subject, work, seed, limit)


def no_permission(subject: Subject, work: Path, seed: int) -> Trial:
    """
    Save where nothing may be written.

    :param subject: the learner
    :param work: folder of all its trials
    :param seed: number of the trial
    :return: what became of it
    """

    def drop(folder: Path) -> None:
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o555 if path.is_dir() else 0o444)
        if os.getuid() == 0:  # who may write everywhere
            os.setuid(NOBODY)

    return _save_under("no permission to write", subject, work, seed, drop)


class _Hostile:
    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (self.marker,)


def _undisturbed(work: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((work / "whole.json").read_text(encoding="utf-8"))["value"]
    return found


def _train_until(subject: Subject, folder: Path, save: int, word: str) -> tuple[Child, int]:
    """Start training afresh, and wait for the begin or the end of a save, counted from 1."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    child = Child(partial(subject.train, folder / "run"), folder / "first.json")
    words = ["begin", "end"] * save
    for expected in words if word == "end" else words[:-1]:
        heard = child.next_word()
        if heard != expected:
            raise RuntimeError(f"{subject.name}, save {save}: {expected!r} was expected, it said {heard!r}")
    return child, save


def _go_on(subject: Subject, folder: Path, whole: dict[str, Any]) -> tuple[str, str]:
    found = in_child(lambda: subject.train(folder / "run", lambda word: None), folder / "second.json")
    shutil.rmtree(folder, ignore_errors=True)
    if "value" not in found:
        return "could not go on", str(found)
    different = [name for name, digest in found["value"].items() if digest != whole["digests"][name]]
    return ("went on, but ended differently", ", ".join(different)) if different else (GOOD, "")


def _damage(
    fault: str,
    subject: Subject,
    work: Path,
    seed: int,
    change: Callable[[bytes, np.random.Generator], bytes],
    path: Path | None = None,
) -> Trial:
    rng = np.random.default_rng((seed, 3))
    folder = work / f"{fault}-{seed}"
    shutil.copytree(work / "whole", folder)
    files = subject.files(folder)
    damaged = files[int(rng.integers(len(files)))] if path is None else folder / path.relative_to(work / "whole")
    damaged.write_bytes(change(damaged.read_bytes(), rng))
    found = in_child(lambda: subject.load(folder), work / f"{fault}-{seed}.json")
    if "value" in found:
        same = found["value"] == _undisturbed(work)["loaded"]
        outcome = "accepted, and by luck the same" if same else "accepted, and different"
    elif "error" not in found:
        outcome = "the process died"
    elif not any(file.name in found["error"] for file in ([damaged] if fault != MIXED else files)):
        outcome = "refused, but the file was not named"
    elif not subject.has_older(folder):
        outcome = "refused, with nothing older to go on from"
    else:
        outcome = GOOD
    shutil.rmtree(folder)
    return Trial(fault, subject.name, outcome, f"{damaged.name}: {found.get('error', '')}"[:300])


def _save_under(fault: str, subject: Subject, work: Path, seed: int, limit: Callable[[Path], None]) -> Trial:
    """Save again, over what is there, under a limit; then see what is left of what was there."""
    folder = work / f"{fault}-{seed}"
    shutil.copytree(work / "whole", folder)

    found = in_child(lambda: subject.save_again(folder, limit), work / f"{fault}-{seed}.json")
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    left = in_child(lambda: subject.load(folder), work / f"{fault}-{seed}-left.json")
    if "value" in found:
        outcome = "no error"
    elif "value" not in left or left["value"] != _undisturbed(work)["loaded"]:
        outcome = "the older save is lost"
    elif found.get("type") not in ("OSError", "PermissionError") or folder.name not in found["error"]:
        outcome = "no clear error"
    else:
        outcome = GOOD
    shutil.rmtree(folder)
    return Trial(fault, subject.name, outcome, str(found)[:300])
