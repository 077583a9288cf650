"""Writes the files of one checkpoint, block by block, and links those that are already on the disk."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from sb3_manygoals.checkpoint import blocks
from sb3_manygoals.checkpoint.kinds import CheckpointError
from sb3_manygoals.checkpoint.manifest import read_manifest

STATE = "state.json"
"""The file of the skeleton of the tree."""

ARRAYS = "arrays.npz"
"""The file of all small arrays."""

_BLOCKS = "blocks"
_OLDEST = (1980, 1, 1, 0, 0, 0)  # of zip's times: equal arrays give equal files
_CHUNK = 1 << 20  # bytes read at a time


class FolderWriter:
    """
    Writes trees taken apart into a folder and notes what the manifest says about the files.

    :param folder: an empty folder
    :param previous: a checkpoint beside it whose unchanged blocks are linked, or None
    """

    def __init__(self, folder: Path, previous: Path | None = None) -> None:
        self.folder = folder
        self.files: dict[str, dict[str, Any]] = {}
        """By path relative to the folder: the "size" in bytes and the "sha256" of each file."""
        self.arrays: dict[str, dict[str, Any]] = {}
        """By name: the "dtype", the "shape" and the "blocks", paths in order, of each array cut into blocks."""
        self._previous = previous
        self._known: dict[str, dict[str, Any]] = {}
        if previous is not None:
            try:
                self._known = read_manifest(previous)["files"]
            except CheckpointError:  # a damaged checkpoint has nothing to link
                self._previous = None

    def write(self, skeleton: Any, arrays: Mapping[str, NDArray[Any]]) -> None:
        """
        :param skeleton: of ``encode``
        :param arrays: of ``encode``
        :raises OSError: if it cannot be written, names the file
        """
        small = {name: array for name, array in arrays.items() if array.nbytes <= blocks.SMALL}
        large = {name: array for name, array in arrays.items() if array.nbytes > blocks.SMALL}
        state = json.dumps(skeleton, allow_nan=False, separators=(",", ":")).encode()
        write_file(self.folder / STATE, state)
        self.files[STATE] = _record(state)
        self._write_small(small)
        if large:
            os.mkdir(self.folder / _BLOCKS)
            for name, array in large.items():
                self._write_large(name, array)
            sync_folder(self.folder / _BLOCKS)

    def _write_small(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        with _opened(self.folder / ARRAYS) as file:
            stream = _HashedStream(file)
            with zipfile.ZipFile(stream, "w") as archive:  # type: ignore[call-overload]  # a stream that only writes will do
                for name, array in arrays.items():
                    archive.writestr(zipfile.ZipInfo(f"{name}.npy", _OLDEST), blocks.npy_bytes(array))
        self.files[ARRAYS] = {"size": stream.size, "sha256": stream.hash.hexdigest()}

    def _write_large(self, name: str, array: NDArray[Any]) -> None:
        paths = []
        for index, pieces in enumerate(blocks.cut(array)):
            path = f"{_BLOCKS}/{name.replace('/', '.')}-{index:05d}.npy"  # names have no dots, so these stay distinct
            self.files[path] = _record(*pieces)
            paths.append(path)
            if not self._link(path, *pieces):
                write_file(self.folder / path, *pieces)
        self.arrays[name] = {"dtype": array.dtype.str, "shape": list(array.shape), "blocks": paths}

    def _link(self, path: str, *pieces: bytes | memoryview) -> bool:
        """Whether the previous checkpoint has the same file and it is now here too."""
        if self._previous is None or self._known.get(path) != self.files[path]:
            return False
        try:
            if not _holds(self._previous / path, *pieces):  # damaged since: a link would pass the damage on for ever
                return False
            os.link(self._previous / path, self.folder / path)
        except OSError:  # no links on this file system, or too many to one file: a copy will do
            return False
        return True


def write_file(path: Path, *pieces: bytes | memoryview) -> None:
    """
    :param path: where no file is yet
    :param pieces: its content, which is on the disk when the function returns
    :raises OSError: if it cannot be written, names the file
    """
    with _opened(path) as file:
        for piece in pieces:
            _write(file, piece)


def sync_folder(folder: Path) -> None:
    """
    Wait until the names in a folder are on the disk.

    :param folder: the folder
    :raises OSError: if that fails, names the folder
    """
    if os.name == "nt":  # Windows does not open folders; its file systems keep names in a journal
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with _named(folder):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _HashedStream:
    """What ``zipfile`` needs of a file to write to, with the hash of all that went through."""

    def __init__(self, file: io.FileIO) -> None:
        self._file = file
        self.hash = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        _write(self._file, data)
        self.hash.update(data)
        self.size += len(data)
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""


@contextmanager
def _opened(path: Path) -> Iterator[io.FileIO]:
    with _named(path), open(path, "xb", buffering=0) as file:
        yield file
        os.fsync(file.fileno())


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Errors of open files come without the file's name."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def _write(file: io.FileIO, data: bytes | memoryview) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def _record(*pieces: bytes | memoryview) -> dict[str, Any]:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return {"size": sum(map(len, pieces)), "sha256": digest.hexdigest()}


def _holds(path: Path, *pieces: bytes | memoryview) -> bool:
    """Whether a file is just these bytes."""
    if path.is_symlink():
        return False
    with open(path, "rb", buffering=0) as file:
        for piece in pieces:
            for start in range(0, len(piece), _CHUNK):
                part = bytes(piece[start : start + _CHUNK])  # bytes are compared many times faster than memoryviews
                if file.read(len(part)) != part:
                    return False
        return file.read(1) == b""
