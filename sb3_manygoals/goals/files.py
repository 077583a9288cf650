"""Files of arrays without pickle, for goals and for what a model knows of its world."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def write_npz(path: str | os.PathLike[str], arrays: dict[str, Any]) -> None:
    """
    Write arrays to a compressed file. If there is such a file, it is replaced only when the new one
    is complete.

    :param path: path of the file. The ending ``.npz`` may be left out
    :param arrays: the arrays by their names
    :raises OSError: if the file cannot be written
    """
    target = _with_ending(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    staged = target.with_name(target.name + ".tmp.npz")
    np.savez_compressed(staged, **arrays)
    staged.replace(target)


def read_npz(
    path: str | os.PathLike[str], names: tuple[str, ...], what: str
) -> dict[str, NDArray[Any]]:
    """
    Read arrays that :func:`write_npz` wrote.

    :param path: path of the file. The ending ``.npz`` may be left out
    :param names: names of the arrays that the file must have
    :param what: what the file holds, for the message, such as "a goal buffer"
    :return: all arrays by their names
    :raises OSError: if the file cannot be read
    :raises ValueError: if the file is not complete, is another kind of file, or was written by an
        earlier version
    """
    target = Path(path) if Path(path).is_file() else _with_ending(path)
    try:
        with target.open("rb") as file:
            arrays = dict(np.load(file, allow_pickle=False))
    except OSError:
        raise
    except Exception as error:
        # NumPy may raise any error if the file is of another kind.
        raise ValueError(f"{path} is no whole file of {what}: {error!r}") from error
    if "labels" in arrays and "format" not in arrays:
        raise ValueError(
            f"{path} is a goal buffer that an earlier version wrote, which this version cannot "
            "read: train anew, or load it with the version that wrote it"
        )
    missing = [name for name in names if name not in arrays]
    if missing:
        raise ValueError(f"{path} is no whole file of {what}: {', '.join(missing)} missing")
    return arrays


def _with_ending(path: str | os.PathLike[str]) -> Path:
    """Return the path with the ending of NumPy's files."""
    path = Path(path)
    return path if path.suffix == ".npz" else path.with_name(path.name + ".npz")
