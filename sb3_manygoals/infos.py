"""Infos of a Gymnasium vector environment, taken apart."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def info_list(infos: dict[str, Any], n: int, rows: NDArray[np.intp] | None = None) -> list[dict[str, Any]]:
    """
    The infos of each environment. Inverts what Gymnasium's VectorEnv does: for each ``key`` an array of N values, or again
    such a dict, and under ``_key`` a mask of the environments that gave one. Values without a mask are taken to be of all
    environments, and those that are not N in number to be common to them.

    :param infos: of a vector environment
    :param n: number of its environments, N
    :param rows: those wanted, int; all if None
    :return: a dict for each of ``rows``, which shares no memory with ``infos`` but for objects that are no arrays
    """
    if rows is None:
        rows = np.arange(n)
    names: list[str] = []
    columns: list[list[Any]] = []
    partial: list[tuple[str, list[Any], NDArray[np.bool_]]] = []
    for key, values in infos.items():
        if key.startswith("_") and key[1:] in infos:
            continue  # a mask
        column = _column(values, n, rows)
        mask = np.asarray(infos[f"_{key}"])[rows] if f"_{key}" in infos else None
        if mask is None or mask.all():
            names.append(key)
            columns.append(column)
        else:
            partial.append((key, column, mask))
    # Whole columns are put together without a Python loop over keys: with thousands of environments it would be what takes
    # the time.
    listed = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)] if names else [{} for _ in rows]
    for key, column, mask in partial:
        for row in np.flatnonzero(mask).tolist():
            listed[row][key] = column[row]
    return listed


def _column(values: Any, n: int, rows: NDArray[np.intp]) -> list[Any]:
    if isinstance(values, dict):
        return info_list(values, n, rows)
    if isinstance(values, np.ndarray) and values.ndim > 0 and len(values) == n:
        chosen = values[rows]
        return chosen.tolist() if chosen.ndim == 1 else list(chosen)
    if isinstance(values, (list, tuple)) and len(values) == n:
        return [values[row] for row in rows]
    return [values] * len(rows)
