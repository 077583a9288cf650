"""Checkpoints as folders: found by number, written whole or not at all, the older ones removed."""

from __future__ import annotations

import operator
import os
import re
import shutil
import uuid
import warnings
from pathlib import Path
from typing import Any

from sb3_manygoals.checkpoint.manifest import MANIFEST, render_manifest
from sb3_manygoals.checkpoint.reader import read_checkpoint
from sb3_manygoals.checkpoint.tree import CheckpointError, encode
from sb3_manygoals.checkpoint.writer import FolderWriter, sync_folder, write_file

__all__ = ["checkpoints", "read_checkpoint", "read_newest", "write_checkpoint"]

_STAGING = ".staging-"
_NAME = re.compile(r"([0-9]{6,})-step[0-9]+")


def write_checkpoint(root: str | os.PathLike[str], tree: Any, *, step: int, keep: int | None = 3) -> Path:
    """
    Write a tree as the newest checkpoint of a folder of checkpoints.

    After the return the checkpoint survives a loss of power; whenever the process ends before, the older checkpoints are as
    they were and the new one is there whole or not at all. Only one process may write to ``root`` at a time: what a killed
    one has left behind is removed here. Others may read meanwhile, but not a checkpoint that is just being removed.

    A file of a large array whose bytes have not changed since the previous checkpoint is not written again but becomes a hard
    link to the old one, after a comparison of all bytes. The checkpoints then share these bytes on the disk: damage to them
    later is damage to both. Copy a checkpoint elsewhere to have it twice.

    :param root: the folder of the checkpoints, made if it is missing
    :param tree: what to store, see ``encode``; it must not change meanwhile
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
    skeleton, arrays = encode(tree)
    root = Path(root)
    _make(root)
    _sweep(root)
    older = checkpoints(root)
    final = root / f"{_next_number(root):06d}-step{step}"
    staging = _staging(root)
    try:
        os.mkdir(staging)
        writer = FolderWriter(staging, previous=older[0] if older else None)
        writer.write(skeleton, arrays)
        write_file(staging / MANIFEST, render_manifest(step, writer.files, writer.arrays))
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


def _next_number(root: Path) -> int:
    return max((number for number, _ in _numbered(root)), default=0) + 1


def _make(root: Path) -> None:
    missing = [folder for folder in (root, *root.parents) if not folder.exists()]
    if missing:
        root.mkdir(parents=True)
    for folder in missing:
        sync_folder(folder.parent)


def _staging(root: Path) -> Path:
    return root / f"{_STAGING}{uuid.uuid4().hex}"


def _sweep(root: Path) -> None:
    for name in os.listdir(root):
        if name.startswith(_STAGING) and (root / name).is_dir():
            shutil.rmtree(root / name)


def _remove(folder: Path) -> None:
    """Under another name first: a folder half removed must not look like a checkpoint."""
    staging = _staging(folder.parent)
    os.rename(folder, staging)
    sync_folder(folder.parent)
    shutil.rmtree(staging)
