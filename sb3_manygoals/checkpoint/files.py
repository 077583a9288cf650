"""Files that are on the disk when they are said to be, and one stream in many files, of which unchanged ones are linked."""

from __future__ import annotations

import bisect
import hashlib
import io
import itertools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SMALL = 1 << 20
"""Bytes of an array from which on it begins a piece of its own, so that it is cut in the same places each time."""

PIECE = 16 << 20
"""The most bytes of a piece."""

STATE = "state.pt."
"""What names of pieces begin with; their number follows."""


class PieceWriter:
    """
    Cuts a stream into the files ``state.pt.00000`` and so on; concatenated, they are the stream. A piece that is already on
    the disk becomes a hard link, after a comparison of all bytes.

    :param folder: of the files
    :param known: files that were written before, by sha256
    """

    def __init__(self, folder: Path, known: Mapping[str, Path]) -> None:
        self.files: dict[str, dict[str, Any]] = {}
        """By name: the "size" in bytes and the "sha256"."""
        self._folder = folder
        self._known = known
        self._small = bytearray()

    def write(self, data: memoryview) -> int:
        """
        :param data: the next bytes: torch writes each array at once
        :return: how many they are
        :raises OSError: if they cannot be written; names the file
        """
        if len(data) < SMALL:
            self._small += data
            if len(self._small) >= PIECE:
                self.flush()
        else:
            self.flush()
            for start in range(0, len(data), PIECE):
                self._put(data[start : start + PIECE])
        return len(data)

    def flush(self) -> None:
        """Write what is held back as a piece of its own."""
        if self._small:
            self._put(self._small)
            self._small = bytearray()

    def _put(self, data: bytearray | memoryview) -> None:
        name, digest = f"{STATE}{len(self.files):05d}", hashlib.sha256(data).hexdigest()
        self.files[name] = {"size": len(data), "sha256": digest}
        if not _linked(self._known.get(digest), self._folder / name, data):
            write_file(self._folder / name, data)


class JoinedFiles(io.RawIOBase):
    """
    Several files to be read as if they were one.

    :param paths: the files
    """

    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths
        self._starts = list(itertools.accumulate((path.stat().st_size for path in paths), initial=0))
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(0, offset + (0, self._at, self._starts[-1])[whence])
        return self._at

    def readinto(self, buffer: Any) -> int:
        index = bisect.bisect_right(self._starts, self._at) - 1
        if index == len(self._paths):
            return 0
        with open(self._paths[index], "rb", buffering=0) as file:
            file.seek(self._at - self._starts[index])
            length = file.readinto(buffer) or 0
        self._at += length
        return length


def write_file(path: Path, data: bytes | bytearray | memoryview) -> None:
    """
    :param path: where no file is yet
    :param data: its content, which is on the disk when the function returns
    :raises OSError: if it cannot be written; names the file
    """
    with _named(path), open(path, "xb", buffering=0) as file:
        _write(file, data)
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """
    Wait until the names in a folder are on the disk.

    :param folder: the folder
    :raises OSError: if that fails; names the folder
    """
    if os.name == "nt":  # Windows does not open folders; its file systems keep names in a journal
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with _named(folder):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_digest(path: Path) -> str:
    """
    :param path: a file
    :return: the sha256 of its content, in hexadecimal
    :raises OSError: if it cannot be read
    """
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(SMALL):
            digest.update(chunk)
    return digest.hexdigest()


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Errors of open files come without the file's name."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def _write(file: io.FileIO, data: bytes | bytearray | memoryview) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def _linked(known: Path | None, path: Path, data: bytearray | memoryview) -> bool:
    """Whether there is such a file already, and it is now here too."""
    try:
        if known is None or known.is_symlink() or known.read_bytes() != bytes(data):  # damaged since: not to be passed on
            return False
        os.link(known, path)
    except OSError:  # no links on this file system, or too many to one file: a copy will do
        return False
    return True
