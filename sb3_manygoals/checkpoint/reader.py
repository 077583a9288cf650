"""Reads a checkpoint, after a check of every byte of it."""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_manygoals.checkpoint.blocks import parse_npy
from sb3_manygoals.checkpoint.kinds import CheckpointError, plain_dtype
from sb3_manygoals.checkpoint.manifest import MANIFEST, read_manifest
from sb3_manygoals.checkpoint.tree import decode
from sb3_manygoals.checkpoint.writer import ARRAYS, STATE

_CHUNK = 1 << 20  # bytes read at a time where a file need not be in memory


def read_checkpoint(path: str | os.PathLike[str]) -> Any:
    """
    Read a checkpoint after a check of all of it: which files there are, their sizes and the sha256 of each.

    Nothing from a file is executed. The hashes tell chance damage and mixed up files; they are no signature of who wrote them.

    :param path: the checkpoint's folder
    :return: the tree it was written from
    :raises CheckpointError: if the checkpoint is incomplete, damaged or of a newer format; names the file and the reason
    """
    folder = Path(path)
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: there is no such checkpoint")
    manifest = read_manifest(folder)
    files: dict[str, dict[str, Any]] = manifest["files"]
    with _trouble(folder):
        present = dict(_scan(folder))
    for name in sorted(files.keys() - present):
        raise CheckpointError(f"{folder / name}: missing")
    for name in sorted(present.keys() - files.keys() - {MANIFEST}):
        raise CheckpointError(f"{folder / name}: not a file of this checkpoint")
    for name, size in sorted(present.items()):
        if name != MANIFEST and size != files[name]["size"]:
            raise CheckpointError(f"{folder / name}: {size} bytes, expected {files[name]['size']}")
    return _READERS[manifest["version"]](folder, manifest)


def _read_format_1(folder: Path, manifest: dict[str, Any]) -> Any:
    files = manifest["files"]
    for name in (STATE, ARRAYS):
        if name not in files:
            raise CheckpointError(f"{folder / MANIFEST}: does not list {name}")
    known = {STATE, ARRAYS}.union(*(array["blocks"] for array in manifest["arrays"].values()))
    for name in sorted(files.keys() - known):
        raise CheckpointError(f"{folder / name}: belongs to no array")
    with _trouble(folder / STATE):
        skeleton = json.loads(_checked(folder, STATE, files))
    arrays = _read_small(folder, files)
    for name, entry in manifest["arrays"].items():
        if name in arrays:
            raise CheckpointError(f"{folder / MANIFEST}: the array {name!r} is in {ARRAYS} too")
        arrays[name] = _read_large(folder, files, name, entry)
    try:
        return decode(skeleton, arrays)
    except CheckpointError as error:
        raise CheckpointError(f"{folder / STATE}: {error}") from error


_READERS: dict[int, Callable[[Path, dict[str, Any]], Any]] = {1: _read_format_1}
"""By version of the format: formats of the past stay readable, each by its function."""


def _read_small(folder: Path, files: dict[str, dict[str, Any]]) -> dict[str, NDArray[Any]]:
    path, arrays = folder / ARRAYS, {}
    with _trouble(path), open(path, "rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
        _compare(path, digest.hexdigest(), files[ARRAYS]["sha256"])
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                if member.compress_type != zipfile.ZIP_STORED or not member.filename.endswith(".npy"):
                    raise ValueError(f"{member.filename!r} is not an array of a checkpoint")
                name = member.filename.removesuffix(".npy")
                if name in arrays:
                    raise ValueError(f"the array {name!r} is there twice")
                arrays[name] = parse_npy(archive.read(member)).copy()
    return arrays


def _read_large(folder: Path, files: dict[str, dict[str, Any]], name: str, entry: dict[str, Any]) -> NDArray[Any]:
    dtype, shape = plain_dtype(entry["dtype"]), tuple(entry["shape"])
    if math.prod(shape) * dtype.itemsize > sum(files[path]["size"] for path in entry["blocks"]):
        raise CheckpointError(
            f"{folder / MANIFEST}: too few blocks for the array {name!r} of {dtype.str}, shape {list(shape)}"
        )
    array = np.empty(shape, dtype)
    flat, start = array.reshape(-1), 0
    for path in entry["blocks"]:
        start += _read_block(folder, path, files, flat[start:])
    if start != flat.size:
        raise CheckpointError(f"{folder / MANIFEST}: {start} of {flat.size} elements of the array {name!r}")
    return array


def _read_block(folder: Path, name: str, files: dict[str, dict[str, Any]], target: NDArray[Any]) -> int:
    """The elements of one block go to the beginning of the target; returns how many they are."""
    data = _checked(folder, name, files)
    with _trouble(folder / name):
        block = parse_npy(data)
        if block.dtype.str != target.dtype.str or block.size > target.size:
            raise ValueError(
                f"{block.size} elements of {block.dtype.str}, at most {target.size} of {target.dtype.str} expected"
            )
        target[: block.size] = block.reshape(-1)
        return block.size


def _checked(folder: Path, name: str, files: dict[str, dict[str, Any]]) -> bytes:
    """The content of a file whose size is known to be right."""
    path = folder / name
    with _trouble(path):
        data = path.read_bytes()
    _compare(path, hashlib.sha256(data).hexdigest(), files[name]["sha256"])
    return data


def _compare(path: Path, found: str, expected: str) -> None:
    if found != expected:
        raise CheckpointError(
            f"{path}: damaged, or of another checkpoint: sha256 {found[:16]}..., expected {expected[:16]}..."
        )


def _scan(folder: Path, prefix: str = "") -> Iterator[tuple[str, int]]:
    """The files below a folder, with their sizes; links to elsewhere are not followed."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _scan(folder / entry.name, f"{prefix}{entry.name}/")
            elif entry.is_file(follow_symlinks=False):
                yield prefix + entry.name, entry.stat(follow_symlinks=False).st_size
            else:
                raise CheckpointError(f"{folder / entry.name}: neither a file nor a folder")


@contextmanager
def _trouble(path: Path) -> Iterator[None]:
    """Whatever goes wrong with a file, the message begins with its name."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{error.filename or path}: cannot be read: {error.strerror}") from error
    except CheckpointError:
        raise
    except (
        ValueError,
        TypeError,
        LookupError,
        ArithmeticError,
        EOFError,
        RuntimeError,
        struct.error,
        zipfile.BadZipFile,
    ) as error:
        raise CheckpointError(f"{path}: damaged: {error}") from error
