"""Checkpoints as folders: found by number, written whole or not at all, verified when read, the older ones removed."""

from __future__ import annotations

import hashlib
import io
import json
import operator
import os
import platform
import re
import shutil
import uuid
import warnings
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
import torch as th

from sb3_manygoals.checkpoint.files import STATE, JoinedFiles, PieceWriter, file_digest, sync_folder, write_file
from sb3_manygoals.checkpoint.tree import CheckpointError, check_tree, load_tree, save_tree

MANIFEST = "manifest.json"
FORMAT = "sb3-manygoals checkpoint"
VERSION = 2

_STAGING = ".staging-"
_NAME = re.compile(r"([0-9]{6,})-step[0-9]+")
_LARGEST_MANIFEST = 64 << 20  # bytes


def write_checkpoint(root: str | os.PathLike[str], tree: Any, *, step: int, keep: int | None = 3) -> Path:
    """
    Write a tree as the newest checkpoint of a folder of checkpoints.

    After the return the checkpoint survives a loss of power; whenever the process ends before, the older checkpoints are as
    they were and the new one is there whole or not at all. Only one process may write to ``root`` at a time: what a killed
    one has left behind is removed here. Others may read meanwhile, but not a checkpoint that is just being removed.

    A piece of a large array that has not changed since the previous checkpoint becomes a hard link to it. Both checkpoints
    then share these bytes on the disk: damage to them later is damage to both. Copy a checkpoint to have it twice.

    :param root: the folder of the checkpoints, made if it is missing
    :param tree: what to store, see ``checkpoint.tree``; it must not change meanwhile
    :param step: how far the training is, for the name of the checkpoint
    :param keep: how many of the newest checkpoints remain, this one included, or None for all
    :return: the new checkpoint, ``root/<sequence>-step<step>``, whose sequence number is one above the highest there
    :raises CheckpointError: if a part of the tree cannot be stored; then nothing is written
    :raises ValueError: if ``step`` is negative, or ``keep`` less than 1
    :raises OSError: if the disk is full, writing is not permitted and so on; then nothing has changed. Only if the error
        comes after all is written, of the last sync or of removing older checkpoints, the new one is there.
    """
    step = operator.index(step)
    if step < 0:
        raise ValueError(f"step must be at least 0, got {step}")
    if keep is not None and keep < 1:
        raise ValueError(f"keep must be at least 1 or None, got {keep}")
    check_tree(tree)
    root = Path(root)
    _prepare(root)
    older = checkpoints(root)
    final = root / f"{max((number for number, _ in _numbered(root)), default=0) + 1:06d}-step{step}"
    staging = _staging(root)
    try:
        os.mkdir(staging)
        pieces = PieceWriter(staging, _known_pieces(older[0]) if older else {})
        save_tree(tree, pieces)
        pieces.flush()
        write_file(staging / MANIFEST, _manifest(step, pieces.files))
        sync_folder(staging)
        os.rename(staging, final)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    sync_folder(root)
    if keep is not None:
        for folder in reversed(older[keep - 1 :]):
            _remove(folder)
    return final


def read_checkpoint(path: str | os.PathLike[str]) -> Any:
    """
    Read a checkpoint after a check of all of it: which files there are, their sizes and the sha256 of each.

    Nothing from a file is executed. The hashes tell accidents from what was written; they do not tell who wrote it.

    :param path: the checkpoint's folder
    :return: the tree it was written from
    :raises CheckpointError: if the checkpoint is incomplete, damaged or of another format; names the file and the reason
    """
    folder = Path(path)
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: there is no such checkpoint")
    files: dict[str, dict[str, Any]] = _read_manifest(folder)["files"]
    try:
        with os.scandir(folder) as entries:
            present = {entry.name: entry for entry in entries}
        for name in sorted(files.keys() | present.keys() - {MANIFEST}):
            if name not in files:
                raise CheckpointError(f"{folder / name}: not a file of this checkpoint")
            if name not in present or not present[name].is_file(follow_symlinks=False):
                raise CheckpointError(f"{folder / name}: missing")
            size, expected = present[name].stat().st_size, files[name]["size"]
            if size != expected:
                raise CheckpointError(f"{folder / name}: {size} bytes, expected {expected}")
        for name, file in files.items():
            found, expected = file_digest(folder / name), file["sha256"]
            if found != expected:
                raise CheckpointError(
                    f"{folder / name}: damaged, or of another checkpoint: sha256 {found[:16]}..., expected {expected[:16]}..."
                )
        joined = JoinedFiles([folder / name for name in sorted(files)])
    except OSError as error:
        raise CheckpointError(f"{error.filename or folder}: cannot be read: {error.strerror}") from error
    try:
        return load_tree(io.BufferedReader(joined, 1 << 20))
    except CheckpointError as error:
        raise CheckpointError(f"{folder / STATE}*: {error}") from error


def checkpoints(root: str | os.PathLike[str]) -> list[Path]:
    """
    :param root: a folder of checkpoints; it may be missing
    :return: the checkpoints there, newest first; they may be damaged
    """
    found = [(number, path) for number, path in _numbered(Path(root)) if path.is_dir() and not path.is_symlink()]
    return [path for _, path in sorted(found, reverse=True)]


def read_newest(root: str | os.PathLike[str], *, fallback: bool = False) -> tuple[Path, Any] | None:
    """
    Read the newest checkpoint of a folder of checkpoints.

    :param root: the folder of the checkpoints
    :param fallback: whether to go on to the next older one, with a warning, where one is damaged
    :return: the checkpoint that was read and its tree, or None if there is no checkpoint at all
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


def _numbered(root: Path) -> list[tuple[int, Path]]:
    if not root.exists():
        return []
    matches = [(_NAME.fullmatch(name), name) for name in os.listdir(root)]
    return [(int(match[1]), root / name) for match, name in matches if match is not None]


def _prepare(root: Path) -> None:
    """Make the folder, and remove what a killed process has left in it."""
    missing = [folder for folder in (root, *root.parents) if not folder.exists()]
    if missing:
        root.mkdir(parents=True)
    for folder in missing:
        sync_folder(folder.parent)
    for name in os.listdir(root):
        if name.startswith(_STAGING) and (root / name).is_dir():
            shutil.rmtree(root / name)


def _staging(root: Path) -> Path:
    return root / f"{_STAGING}{uuid.uuid4().hex}"


def _remove(folder: Path) -> None:
    """Under another name first: a folder half removed must not look like a checkpoint."""
    staging = _staging(folder.parent)
    os.rename(folder, staging)
    sync_folder(folder.parent)
    shutil.rmtree(staging)


def _known_pieces(folder: Path) -> dict[str, Path]:
    try:
        return {file["sha256"]: folder / name for name, file in _read_manifest(folder)["files"].items()}
    except CheckpointError:  # a damaged checkpoint has nothing to link
        return {}


def _manifest(step: int, files: dict[str, dict[str, Any]]) -> bytes:
    import sb3_manygoals  # here, as the package imports this module

    versions = {
        "python": platform.python_version(),
        "torch": str(th.__version__),
        "numpy": np.__version__,
        "stable-baselines3": stable_baselines3.__version__,
        "gymnasium": gymnasium.__version__,
        "sb3-manygoals": sb3_manygoals.__version__,
    }
    content = {
        "format": FORMAT,
        "version": VERSION,
        "step": step,
        "created": datetime.now(timezone.utc).isoformat(),
        "versions": versions,
        "platform": platform.platform(),
        "files": files,
    }
    return _signed(content)


def _signed(content: dict[str, Any]) -> bytes:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    content = {**content, "sha256": hashlib.sha256(canonical).hexdigest()}
    return json.dumps(content, sort_keys=True, indent=1).encode() + b"\n"


def _read_manifest(folder: Path) -> dict[str, Any]:
    """A manifest whose own hash and whose structure are right."""
    path = folder / MANIFEST
    if not path.is_file() or path.is_symlink():
        raise CheckpointError(f"{path}: missing; the checkpoint is incomplete")
    try:
        if path.stat().st_size > _LARGEST_MANIFEST:
            raise CheckpointError(f"{path}: damaged: too long for a manifest")
        data = path.read_bytes()
        content: dict[str, Any] = json.loads(data)
        found = content.get("format"), content.get("version")
        same = _signed({key: content[key] for key in content if key != "sha256"}) == data
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path}: damaged: not a manifest: {error}") from error
    if found != (FORMAT, VERSION):
        raise CheckpointError(f"{path}: of format {str(found)[:60]}, this version reads {(FORMAT, VERSION)}")
    if not same:
        raise CheckpointError(f"{path}: damaged: its content does not have the sha256 it says")
    files = content.get("files")
    for name, file in files.items() if isinstance(files, dict) and files else [("", None)]:
        if not re.fullmatch(rf"{re.escape(STATE)}[0-9]+", name) or not isinstance(file, dict):
            raise CheckpointError(f"{path}: damaged: lists the file {name!r}")
        if type(file.get("size")) is not int or type(file.get("sha256")) is not str:
            raise CheckpointError(f"{path}: damaged: no size or no sha256 of {name!r}")
    return content
