"""The right to write to a folder of checkpoints."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import warnings
from pathlib import Path
from typing import ClassVar

from filelock import FileLock, Timeout

from sb3_manygoals.checkpoint.tree import CheckpointError

# An empty file, which is never removed: the operating system knows whether it is locked.
_LOCK_FILE = ".lock"
# Says which process has the lock, for the error that another process gets.
_HOLDER_FILE = ".lock-holder"


class Lock:
    """
    The right to write to a folder of checkpoints, for one thread of one process at a time.

    The thread that has the lock may take it again, and must release it as often. When a process
    ends, however it ends, the operating system releases its locks. A forked process does not have
    the lock of its parent. Use a lock as a context manager, or call its methods.

    :param root: the folder of the checkpoints. If it is missing, :meth:`acquire` makes it
    """

    # The keys are real paths of folders. The first dict has the lock and how often it was taken,
    # the second one the process and the thread that took it. Locks of a parent process are kept
    # and never released: that would take them from the parent.
    _held: ClassVar[dict[str, tuple[FileLock, int]]] = {}
    _owners: ClassVar[dict[str, tuple[int, int]]] = {}
    _inherited: ClassVar[list[FileLock | None]] = []

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        self._key = os.path.realpath(root)

    def acquire(self) -> None:
        """
        Take the lock.

        If the file system has no locks, it warns that nothing guards against a second process.

        :raises CheckpointError: if another process or thread has it; the message names the process
        :raises OSError: if the folder cannot be made or written to
        """
        make_folder(self.root)
        self._forget_lock_of_parent()
        self._check_other_threads()
        lock, times = self._held.get(self._key, (None, 0))
        if lock is None:
            lock = self._lock_file()
        self._held[self._key] = (lock, times + 1)
        self._owners[self._key] = (os.getpid(), threading.get_ident())

    def release(self) -> None:
        """Release the lock once. If this process does not have it, nothing happens."""
        lock, times = self._held.pop(self._key, (None, 0))
        if lock is None:
            return
        if times > 1:
            self._held[self._key] = (lock, times - 1)
        else:
            lock.release()

    def __enter__(self) -> Lock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _lock_file(self) -> FileLock:
        """Lock the file, and write which process has done so."""
        lock = FileLock(self.root / _LOCK_FILE, timeout=0, thread_local=False)
        try:
            lock.acquire()
        except Timeout:
            raise CheckpointError(
                f"{self.root}: another process writes its checkpoints here, {self._holder()}. Give "
                "each run a folder of its own, or end that process first"
            ) from None
        except NotImplementedError:
            warnings.warn(
                f"{self.root}: this file system knows no locks: nothing guards against a second "
                "process",
                stacklevel=4,
            )
        else:
            holder = {"pid": os.getpid(), "host": socket.gethostname()}
            # The lock counts even where a full disk leaves no room for the name of its holder.
            with contextlib.suppress(OSError):
                (self.root / _HOLDER_FILE).write_text(json.dumps(holder), encoding="utf-8")
        return lock

    def _holder(self) -> str:
        """Return in words which process has the lock."""
        try:
            found = json.loads((self.root / _HOLDER_FILE).read_text(encoding="utf-8"))
            return f"process {found['pid']} on {found['host']}"
        except (OSError, ValueError, KeyError, TypeError):
            # The other process has the lock, and has not written yet who it is.
            return "of an unknown number"

    def _forget_lock_of_parent(self) -> None:
        """Forget a lock that a forked process knows from its parent."""
        process, _ = self._owners.get(self._key, (os.getpid(), 0))
        if process != os.getpid():
            inherited, _ = self._held.pop(self._key, (None, 0))
            self._inherited.append(inherited)
            del self._owners[self._key]

    def _check_other_threads(self) -> None:
        """
        Check that no other thread of this process has the lock.

        A thread that has ended cannot release its lock any more: the next one takes it over.
        """
        if self._key not in self._held:
            return
        _, thread = self._owners[self._key]
        is_alive = any(one.ident == thread for one in threading.enumerate())
        if thread != threading.get_ident() and is_alive:
            raise CheckpointError(
                f"{self.root}: another thread of this process writes its checkpoints here. Give "
                "each run a folder of its own"
            )


def make_folder(root: Path) -> None:
    """
    Make a folder and the folders above it, where they are missing.

    The function returns when the new names are on the disk, so the folders survive a loss of power.

    :param root: the folder
    :raises OSError: if a folder cannot be made
    """
    missing = [folder for folder in (root, *root.parents) if not folder.exists()]
    if missing:
        root.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """
    Wait until the names of the files and folders in a folder are on the disk.

    On Windows this does nothing.

    :param folder: the folder, which must exist
    :raises OSError: if it cannot be opened
    """
    # Windows does not open folders. Its file systems keep names in a journal.
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
