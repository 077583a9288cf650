"""Checkpoints as files: found by number, written whole or not at all, verified when read, the older ones removed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import socket
import threading
import warnings
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from filelock import FileLock, Timeout
from stable_baselines3.common.utils import get_system_info

from sb3_manygoals.checkpoint.tree import CheckpointError, check_tree, load_tree, save_tree
from sb3_manygoals.validation import check_count

FORMAT = "sb3-manygoals checkpoint 6"

_STAGING = ".staging"  # what is being written
_LOCK = ".lock"  # an empty file, which stays: the system knows whether it is locked
_HOLDER = ".lock-holder"  # which process has the lock
_NAME = re.compile(
    r"(?P<number>[0-9]{6,})-step[0-9]+(-(?P<sha256>[0-9a-f]{64})\.pt)?"
)  # up to format 3 they were folders
_CHUNK = 1 << 20  # bytes


def write_checkpoint(
    root: str | os.PathLike[str], tree: Any, *, step: int, keep: int | None = 3
) -> Path:
    """
    Write a tree as the newest checkpoint of a folder of checkpoints.

    After the return the checkpoint survives a loss of power. If the process ends before, the older checkpoints are as they
    were, and the new one is there whole or not at all. Only one process may write to ``root`` at a time: a :class:`Lock`
    refuses a second one. The next call overwrites what a killed one has left behind.

    :param root: the folder of the checkpoints, made if it is missing
    :param tree: what to store, see ``checkpoint.tree``; it must not change meanwhile
    :param step: how far the training is, for the name of the checkpoint
    :param keep: how many of the newest checkpoints remain, this one included, or None for all
    :return: the new checkpoint, ``root/<number>-step<step>-<sha256>.pt``, its number one above the highest there
    :raises CheckpointError: if a part of the tree cannot be stored, or another process writes there; then nothing is written
    :raises ValueError: if ``step`` is negative, or ``keep`` less than 1
    :raises OSError: if the disk is full, writing is not permitted and so on. Then nothing has changed, unless the error comes
        after all is written: the new checkpoint is there, and older ones may have remained
    """
    check_count("step", step, at_least=0)
    if keep is not None:
        check_count("keep", keep)
    check_tree(tree)
    root = Path(root)
    with Lock(root):
        return _write(root, tree, step, keep)


def _write(root: Path, tree: Any, step: int, keep: int | None) -> Path:
    """Write where no other process does."""
    staging, older = root / _STAGING, checkpoints(root)
    try:
        with open(staging, "w+b") as file:
            save_tree(
                {"format": FORMAT, "versions": get_system_info(print_info=False)[1], "tree": tree},
                file,
            )
            file.flush()
            os.fsync(file.fileno())
            digest = _sha256(file)
        final = root / f"{_number(older[0]) + 1 if older else 1:06d}-step{step}-{digest}.pt"
        os.rename(staging, final)
    except BaseException as error:
        if isinstance(error, OSError):
            error.filename = error.filename or str(staging)
        with contextlib.suppress(OSError):
            os.unlink(staging)
        raise
    _sync_folder(root)
    for path in reversed(older[keep - 1 :] if keep is not None else []):
        if path.is_file():
            os.unlink(path)
    return final


class Lock:
    """
    The right to write to a folder of checkpoints, for one process and one thread of it at a time. This thread may take it
    again and again; the system takes it from a process that ends, however it does. A process that was forked does not have
    it. Use it as a context manager, or by its methods.

    :param root: the folder of the checkpoints, made if it is missing
    """

    _held: ClassVar[dict[str, tuple[FileLock, int]]] = {}
    _owners: ClassVar[dict[str, tuple[int, int]]] = {}  # process and thread
    _inherited: ClassVar[list[FileLock | None]] = []  # of the process that this one was forked from

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        self._key = os.path.realpath(root)

    def acquire(self) -> None:
        """
        Take it.

        :raises CheckpointError: if another process has it; the message names that process
        :raises OSError: if the folder cannot be made or written to
        """
        _make_folder(self.root)
        self._forget_what_others_hold()
        lock, times = self._held.get(self._key, (None, 0))
        if lock is None:
            lock = FileLock(self.root / _LOCK, timeout=0, thread_local=False)
            try:
                lock.acquire()
            except Timeout:
                raise CheckpointError(
                    f"{self.root}: another process writes its checkpoints here, {self._holder()}. Give each run a folder "
                    "of its own, or end that process first"
                ) from None
            except NotImplementedError:
                warnings.warn(
                    f"{self.root}: this file system knows no locks: nothing guards against a second process",
                    stacklevel=3,
                )
            else:
                me = {"pid": os.getpid(), "host": socket.gethostname()}
                with contextlib.suppress(OSError):  # on a full disk the lock counts all the same
                    (self.root / _HOLDER).write_text(json.dumps(me), encoding="utf-8")
        self._held[self._key] = lock, times + 1
        self._owners[self._key] = os.getpid(), threading.get_ident()

    def _forget_what_others_hold(self) -> None:
        """
        A process that was forked has a copy of what its parent held, and no right to it. Another thread that lives is
        refused; what a thread has left is taken over.

        :raises CheckpointError: if another thread writes here
        """
        process, thread = self._owners.get(self._key, (os.getpid(), threading.get_ident()))
        if process != os.getpid():
            inherited, _ = self._held.pop(self._key, (None, 0))
            self._inherited.append(inherited)  # to release it would take it from the parent
            del self._owners[self._key]
            return
        lives = any(one.ident == thread for one in threading.enumerate())
        if self._key in self._held and thread != threading.get_ident() and lives:
            raise CheckpointError(
                f"{self.root}: another thread of this process writes its checkpoints here. Give each run a folder of its own"
            )

    def release(self) -> None:
        """Give it back as often as it was taken; nothing happens where it was not."""
        lock, times = self._held.pop(self._key, (None, 0))
        if lock is not None and times > 1:
            self._held[self._key] = lock, times - 1
        elif lock is not None:
            lock.release()

    def __enter__(self) -> Lock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _holder(self) -> str:
        """The process that has the lock, in words."""
        try:
            found = json.loads((self.root / _HOLDER).read_text(encoding="utf-8"))
            return f"process {found['pid']} on {found['host']}"
        except (OSError, ValueError, KeyError, TypeError):  # it has only just taken it
            return "of an unknown number"


def _make_folder(root: Path) -> None:
    """Make a folder that survives a loss of power, if it is missing."""
    missing = [folder for folder in (root, *root.parents) if not folder.exists()]
    if missing:
        root.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        _sync_folder(folder.parent)


def read_checkpoint(path: str | os.PathLike[str]) -> Any:
    """
    Read a checkpoint after a check of its sha256, which its name says. Nothing from the file is executed. The hash guards
    against accidents; it does not tell who wrote the file.

    :return: the tree it was written from
    :raises CheckpointError: if it is missing, damaged or of another format; names the file and the reason
    """
    name = _NAME.fullmatch(Path(path).name)
    if name is None or name["sha256"] is None:
        raise CheckpointError(
            f"{path}: of another format: this version reads files <number>-step<steps>-<sha256>.pt"
        )
    try:
        with open(path, "rb") as file:
            if _sha256(file) != name["sha256"]:
                raise CheckpointError("damaged: its sha256 is not that of its name")
            found = load_tree(file)
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise CheckpointError(f"of another format: this version reads {FORMAT!r}")
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error
    return found["tree"]


def checkpoints(root: str | os.PathLike[str]) -> list[Path]:
    """
    :param root: a folder of checkpoints; it may be missing
    :return: the checkpoints there, newest first; they may be damaged, or folders of an earlier format
    """
    names = os.listdir(root) if os.path.exists(root) else []
    return sorted(
        (Path(root, name) for name in names if _NAME.fullmatch(name)), key=_number, reverse=True
    )


def read_newest(root: str | os.PathLike[str], *, fallback: bool = False) -> tuple[Path, Any] | None:
    """
    :param root: a folder of checkpoints
    :param fallback: whether to go on to the next older one, with a warning, where one is damaged
    :return: the newest checkpoint and its tree, or None if there is no checkpoint at all
    :raises CheckpointError: if the newest checkpoint, with ``fallback`` every checkpoint, is damaged
    """
    found = checkpoints(root)
    for path in found:
        try:
            return path, read_checkpoint(path)
        except CheckpointError as error:
            if not fallback:
                raise
            warnings.warn(f"skipped a damaged checkpoint: {error}", stacklevel=2)
    if found:
        raise CheckpointError(f"{root}: each of the {len(found)} checkpoints is damaged")
    return None


def _number(path: Path) -> int:
    return int(path.name.partition("-")[0])


def _sha256(file: BinaryIO) -> str:
    digest = hashlib.sha256()
    file.seek(0)
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest()


def _sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    if os.name == "nt":  # Windows does not open folders; its file systems keep names in a journal
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
