"""
A folder of checkpoints.

Each checkpoint is one file, written whole or not at all, and verified when it is read. The files
are numbered; older ones are removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import warnings
from pathlib import Path
from typing import Any, BinaryIO

from stable_baselines3.common.utils import get_system_info

from sb3_manygoals.checkpoint.lock import Lock, sync_folder
from sb3_manygoals.checkpoint.tree import CheckpointError, check_tree, load_tree, save_tree
from sb3_manygoals.validation import check_count

FORMAT = "sb3-manygoals checkpoint 11"

# The file that is being written.
_STAGING_FILE = ".staging"
# Up to format 3, a checkpoint was a folder without a hash in its name.
_CHECKPOINT_NAME = re.compile(r"(?P<number>[0-9]{6,})-step[0-9]+(-(?P<sha256>[0-9a-f]{64})\.pt)?")
_BYTES_AT_ONCE = 1 << 20


def write_checkpoint(
    root: str | os.PathLike[str], tree: Any, *, step: int, keep: int | None = 3
) -> Path:
    """
    Write a tree as the newest checkpoint of a folder of checkpoints.

    After the return, the checkpoint survives a loss of power. If the process ends before, the older
    checkpoints are as they were, and the new one is there whole or not at all. The next call
    overwrites what a killed one has left behind. Only one process may write to a folder at a time:
    a :class:`~sb3_manygoals.checkpoint.lock.Lock` refuses a second one.

    :param root: the folder of the checkpoints, made if it is missing
    :param tree: what to store, see :mod:`sb3_manygoals.checkpoint.tree`; it must not change
        meanwhile
    :param step: number of environment steps so far, for the name of the checkpoint
    :param keep: how many of the newest checkpoints remain, this one included; None keeps all;
        default: 3
    :return: the new checkpoint, ``root/<number>-step<step>-<sha256>.pt``. Its number is one above
        the highest there
    :raises CheckpointError: if a part of the tree cannot be stored, or another process or thread
        writes there. Then nothing is written
    :raises ValueError: if ``step`` is negative, or ``keep`` less than 1
    :raises OSError: if the disk is full, writing is not permitted and so on. Then nothing has
        changed, unless the error comes after all is written: then the new checkpoint is there, and
        older ones may have remained
    """
    check_count("step", step, at_least=0)
    if keep is not None:
        check_count("keep", keep)
    check_tree(tree)
    root = Path(root)
    with Lock(root):
        older = checkpoints(root)
        path = _write_file(root, tree, step, _number(older[0]) + 1 if older else 1)
        sync_folder(root)
        if keep is not None:
            _remove(older[keep - 1 :])
    return path


def read_checkpoint(path: str | os.PathLike[str]) -> Any:
    """
    Read a checkpoint, after a check of its sha256, which is in its name.

    Nothing from the file is executed. The hash guards against accidents; it does not tell who wrote
    the file.

    :param path: the file of the checkpoint
    :return: the tree it was written from
    :raises CheckpointError: if it is missing, damaged, or written by another version of the
        library. The message names the file and the reason
    """
    name = _CHECKPOINT_NAME.fullmatch(Path(path).name)
    if name is None or name["sha256"] is None:
        raise CheckpointError(
            f"{path}: written by another version, or no checkpoint: this version reads files "
            "<number>-step<steps>-<sha256>.pt"
        )
    try:
        with open(path, "rb") as file:
            if _sha256(file) != name["sha256"]:
                raise CheckpointError("damaged: its sha256 is not that of its name")
            return _load(file)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


def checkpoints(root: str | os.PathLike[str]) -> list[Path]:
    """
    List the checkpoints in a folder.

    :param root: a folder of checkpoints; it may be missing
    :return: the checkpoints, newest first. They may be damaged, or folders of an earlier format
    """
    names = os.listdir(root) if os.path.exists(root) else []
    found = [Path(root, name) for name in names if _CHECKPOINT_NAME.fullmatch(name)]
    return sorted(found, key=_number, reverse=True)


def read_newest(root: str | os.PathLike[str], *, fallback: bool = False) -> tuple[Path, Any] | None:
    """
    Read the newest checkpoint in a folder.

    :param root: a folder of checkpoints; it may be missing
    :param fallback: whether to take the next older checkpoint, with a warning, where one cannot be
        read; default: False
    :return: the newest checkpoint and its tree; None if there is no checkpoint at all
    :raises CheckpointError: if the newest checkpoint cannot be read; with ``fallback``, if none can
    """
    found = checkpoints(root)
    for path in found:
        try:
            return path, read_checkpoint(path)
        except CheckpointError as error:
            if not fallback:
                raise
            warnings.warn(f"skipped a checkpoint that cannot be read: {error}", stacklevel=2)
    if found:
        raise CheckpointError(f"{root}: none of the {len(found)} checkpoints can be read")
    return None


def _write_file(root: Path, tree: Any, step: int, number: int) -> Path:
    """Write a checkpoint under another name, and give it its own name when it is on the disk."""
    staging = root / _STAGING_FILE
    versions = get_system_info(print_info=False)[1]
    try:
        with open(staging, "w+b") as file:
            save_tree({"format": FORMAT, "versions": versions, "tree": tree}, file)
            file.flush()
            os.fsync(file.fileno())
            sha256 = _sha256(file)
        path = root / f"{number:06d}-step{step}-{sha256}.pt"
        os.rename(staging, path)
    except BaseException as error:
        if isinstance(error, OSError):
            error.filename = error.filename or str(staging)
        with contextlib.suppress(OSError):
            os.unlink(staging)
        raise
    return path


def _remove(paths: list[Path]) -> None:
    """Remove checkpoints, the oldest first. Folders of earlier formats stay."""
    for path in reversed(paths):
        if path.is_file():
            os.unlink(path)


def _load(file: BinaryIO) -> Any:
    """Load the tree of a file that is as it was written: what cannot be read is not damaged."""
    try:
        found = load_tree(file)
    except CheckpointError as error:
        raise CheckpointError(
            f"written by another version, or no checkpoint: {error}. This version reads {FORMAT!r}"
        ) from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise CheckpointError(f"written by another version: this version reads {FORMAT!r}")
    return found["tree"]


def _number(path: Path) -> int:
    return int(path.name.partition("-")[0])


def _sha256(file: BinaryIO) -> str:
    """Return the sha256 of a whole file in hexadecimal digits."""
    digest = hashlib.sha256()
    file.seek(0)
    while chunk := file.read(_BYTES_AT_ONCE):
        digest.update(chunk)
    return digest.hexdigest()
