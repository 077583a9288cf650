"""Checkpoints as folders: found by number, written whole or not at all, verified when read, the older ones removed."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, BinaryIO

import gymnasium
import numpy as np
import stable_baselines3
import torch as th

from sb3_manygoals.checkpoint.tree import CheckpointError, check_tree, load_tree, save_tree
from sb3_manygoals.checks import check_count

MANIFEST, STATE = "manifest.json", "state.pt"
FORMAT = "sb3-manygoals checkpoint"
VERSION = 3

_STAGING = ".staging"  # what is being written or removed
_NAME = re.compile(r"([0-9]{6,})-step[0-9]+")
_CHUNK = 1 << 20  # bytes


def write_checkpoint(root: str | os.PathLike[str], tree: Any, *, step: int, keep: int | None = 3) -> Path:
    """
    Write a tree as the newest checkpoint of a folder of checkpoints.

    After the return the checkpoint survives a loss of power. If the process ends before, the older checkpoints are as they
    were, and the new one is there whole or not at all. Only one process may write to ``root`` at a time: the next call removes
    what a killed one has left behind.

    :param root: the folder of the checkpoints, made if it is missing
    :param tree: what to store, see ``checkpoint.tree``; it must not change meanwhile
    :param step: how far the training is, for the name of the checkpoint
    :param keep: how many of the newest checkpoints remain, this one included, or None for all
    :return: the new checkpoint, ``root/<number>-step<step>``, its number one above the highest there
    :raises CheckpointError: if a part of the tree cannot be stored; then nothing is written
    :raises ValueError: if ``step`` is negative, or ``keep`` less than 1
    :raises OSError: if the disk is full, writing is not permitted and so on. Then nothing has changed, unless the error comes
        after all is written: the new checkpoint is there, and older ones may have remained
    """
    check_count("step", step, least=0)
    if keep is not None:
        check_count("keep", keep)
    check_tree(tree)
    root = Path(root)
    staging = root / _STAGING
    missing = [folder for folder in (root, *root.parents) if not folder.exists()]
    if missing:
        root.mkdir(parents=True)
    for folder in missing:
        _sync_folder(folder.parent)
    if staging.exists():
        shutil.rmtree(staging)
    older = checkpoints(root)
    final = root / f"{_number(older[0]) + 1 if older else 1:06d}-step{step}"
    try:
        os.mkdir(staging)
        with _new_file(staging / STATE) as file:
            save_tree(tree, file)
        manifest = _manifest(step, file.size, file.digest.hexdigest())
        with _new_file(staging / MANIFEST) as file:
            file.write(manifest)
        _sync_folder(staging)
        os.rename(staging, final)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    _sync_folder(root)
    for folder in reversed(older[keep - 1 :] if keep is not None else []):
        os.rename(folder, staging)  # a folder half removed must not look like a checkpoint
        _sync_folder(root)
        shutil.rmtree(staging)
    return final


def read_checkpoint(path: str | os.PathLike[str]) -> Any:
    """
    Read a checkpoint after a check of its files, their sizes and the sha256 of each. Nothing from a file is executed. The
    hashes guard against accidents; they do not tell who wrote it.

    :param path: the checkpoint's folder
    :return: the tree it was written from
    :raises CheckpointError: if it is incomplete, damaged or of another format; names the file and the reason
    """
    folder = Path(path)
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: there is no such checkpoint")
    manifest, state = _read_manifest(folder / MANIFEST), folder / STATE
    try:
        if others := {*os.listdir(folder)} - {MANIFEST, STATE}:
            raise CheckpointError(f"{folder / min(others)}: not a file of this checkpoint")
        if not state.is_file():
            raise CheckpointError(f"{state}: missing")
        with open(state, "rb") as file:
            size, digest = state.stat().st_size, hashlib.sha256()
            if size != manifest.get("size"):
                raise CheckpointError(f"{state}: {size} bytes, expected {manifest.get('size')}")
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
            if digest.hexdigest() != manifest.get("sha256"):
                raise CheckpointError(f"{state}: damaged, or of another checkpoint: not the sha256 that {MANIFEST} says")
            try:
                return load_tree(file)
            except CheckpointError as error:
                raise CheckpointError(f"{state}: {error}") from error
    except OSError as error:
        raise CheckpointError(f"{error.filename or state}: cannot be read: {error.strerror}") from error


def checkpoints(root: str | os.PathLike[str]) -> list[Path]:
    """
    :param root: a folder of checkpoints; it may be missing
    :return: the checkpoints there, newest first; they may be damaged
    """
    names = os.listdir(root) if os.path.exists(root) else []
    found = [Path(root, name) for name in names if _NAME.fullmatch(name)]
    return sorted((path for path in found if path.is_dir()), key=_number, reverse=True)


def read_newest(root: str | os.PathLike[str], *, fallback: bool = False) -> tuple[Path, Any] | None:
    """
    :param root: a folder of checkpoints
    :param fallback: whether to go on to the next older one, with a warning, where one is damaged
    :return: the newest checkpoint and its tree, or None if there is no checkpoint at all
    :raises CheckpointError: if the newest checkpoint, with ``fallback`` every checkpoint, is damaged
    """
    found = checkpoints(root)
    for folder in found:
        try:
            return folder, read_checkpoint(folder)
        except CheckpointError as error:
            if not fallback:
                raise
            warnings.warn(f"skipped a damaged checkpoint: {error}", stacklevel=2)
    if found:
        raise CheckpointError(f"{root}: each of the {len(found)} checkpoints is damaged")
    return None


def _number(path: Path) -> int:
    return int(path.name.partition("-")[0])


def _sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    if os.name == "nt":  # Windows does not open folders; its file systems keep names in a journal
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _HashedFile:
    """Counts and hashes what is written."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.size, self.digest = file, 0, hashlib.sha256()

    def write(self, data: bytes | memoryview) -> int:
        self.size += len(data)
        self.digest.update(data)
        return self.file.write(data)

    def flush(self) -> None:
        self.file.flush()


@contextmanager
def _new_file(path: Path) -> Iterator[_HashedFile]:
    """A file that is on the disk in the end; errors name it."""
    try:
        with open(path, "xb") as file:
            yield _HashedFile(file)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def _manifest(step: int, size: int, digest: str) -> bytes:
    import sb3_manygoals  # here, as the package imports this module

    packages = (gymnasium, np, sb3_manygoals, stable_baselines3, th)
    versions = {"python": platform.python_version(), **{package.__name__: package.__version__ for package in packages}}
    content = {"format": FORMAT, "version": VERSION, "step": step, "created": datetime.now(timezone.utc).isoformat()}
    return _signed({**content, "versions": versions, "platform": platform.platform(), "size": size, "sha256": digest})


def _signed(content: dict[str, Any]) -> bytes:
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return json.dumps({**content, "manifest_sha256": digest}, indent=1).encode() + b"\n"


def _read_manifest(path: Path) -> dict[str, Any]:
    """A manifest whose own hash is right."""
    if not path.is_file():
        raise CheckpointError(f"{path}: missing; the checkpoint is incomplete")
    try:
        data = path.read_bytes()
        content: dict[str, Any] = json.loads(data)
        found = content.get("format"), content.get("version")
        same = _signed({key: value for key, value in content.items() if key != "manifest_sha256"}) == data
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path}: damaged: not a manifest: {error}") from error
    if found != (FORMAT, VERSION):
        raise CheckpointError(f"{path}: of format {str(found)[:60]}, this version reads {(FORMAT, VERSION)}")
    if not same:
        raise CheckpointError(f"{path}: damaged: its content does not have the sha256 it says")
    return content
