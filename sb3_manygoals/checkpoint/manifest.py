"""The manifest of a checkpoint: which files it consists of, and what wrote it."""

from __future__ import annotations

import hashlib
import json
import platform
import re
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
import torch as th

from sb3_manygoals.checkpoint.kinds import CheckpointError, plain_dtype

MANIFEST = "manifest.json"
"""The name of the manifest in the checkpoint's folder."""

FORMAT = "sb3-manygoals checkpoint"
"""The name of the format, in every manifest."""

VERSION = 1
"""The version of the format that is written, and the highest that is read."""

_LARGEST = 64 << 20  # bytes: no manifest is as long; a file put in its place may be


def render_manifest(step: int, files: dict[str, dict[str, Any]], arrays: dict[str, dict[str, Any]]) -> bytes:
    """
    :param step: the step of the checkpoint
    :param files: by path relative to the checkpoint, with slashes: the "size" in bytes and the "sha256" of each file
    :param arrays: by name: the "dtype", the "shape" and the "blocks", paths in order, of each array that is cut into blocks
    :return: the content of the manifest's file
    """
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
        "arrays": arrays,
    }
    return _signed(content)


def read_manifest(folder: Path) -> dict[str, Any]:
    """
    :param folder: a checkpoint
    :return: its manifest, whose own hash and whose structure are right
    :raises CheckpointError: if there is none, it is damaged, or it is of another or a newer format
    """
    path = folder / MANIFEST
    if not path.is_file() or path.is_symlink():
        raise CheckpointError(f"{path}: missing; the checkpoint is incomplete")
    try:
        if path.stat().st_size > _LARGEST:
            raise CheckpointError(f"{path}: damaged: too long for a manifest")
        data = path.read_bytes()
        content = json.loads(data)
        # compares the hash, and also those bytes that do not matter to JSON
        same = isinstance(content, dict) and _signed({key: content[key] for key in content if key != "sha256"}) == data
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: damaged: not JSON: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        name = content.get("format") if isinstance(content, dict) else None
        raise CheckpointError(f"{path}: of format {str(name)[:60]!r}, expected {FORMAT!r}")
    version = content.get("version")
    if type(version) is not int or version < 1:
        raise CheckpointError(f"{path}: damaged: format version {str(version)[:60]!r}")
    if version > VERSION:
        raise CheckpointError(f"{path}: written by format {version}, this version reads up to {VERSION}")
    if not same:
        raise CheckpointError(f"{path}: damaged: its content does not have the sha256 it says")
    problem = _problem(content)
    if problem is not None:
        raise CheckpointError(f"{path}: {problem}")
    return content


def _signed(content: dict[str, Any]) -> bytes:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    content = {**content, "sha256": hashlib.sha256(canonical).hexdigest()}
    return json.dumps(content, sort_keys=True, indent=1).encode() + b"\n"


def _problem(content: dict[str, Any]) -> str | None:
    """What is wrong with the structure of a manifest; its hash protects against chance, not against intent."""
    files, arrays = content.get("files"), content.get("arrays")
    if not isinstance(files, dict) or not isinstance(arrays, dict):
        return "no list of files or arrays"
    for name, file in files.items():
        if not name or name.startswith("/") or re.search(r"[\\:\0]", name) or {"", ".", ".."} & set(name.split("/")):
            return f"the path {name!r} leads out of the checkpoint"
        if not isinstance(file, dict) or type(file.get("size")) is not int or type(file.get("sha256")) is not str:
            return f"no size or no sha256 of {name!r}"
    for name, array in arrays.items():
        try:
            plain_dtype(array["dtype"])
            lengths = all(type(length) is int and length >= 0 for length in array["shape"])
            if not lengths or not all(path in files for path in array["blocks"]):
                return f"a wrong shape or an unknown file of the array {name!r}"
        except (KeyError, TypeError, ValueError) as error:
            return f"the array {name!r}: {error!r}"
    return None
