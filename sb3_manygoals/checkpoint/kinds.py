"""What a checkpoint can hold, and how it is called in messages."""

from __future__ import annotations

import collections
import re
from typing import Any

import numpy as np
import torch as th

PLAIN_KINDS = "biufcSUmM"
"""The kinds of NumPy dtypes that are stored: no objects, whose bytes are pointers, and no structures."""

DEEPEST = 100
"""The most levels of a tree: JSON has a limit of about a thousand, and a list that contains itself has no end."""

BIT_GENERATORS: dict[str, Any] = {
    "PCG64": np.random.PCG64,
    "MT19937": np.random.MT19937,
    "Philox": np.random.Philox,
    "SFC64": np.random.SFC64,
}
"""The generators of random bits that are stored, by name."""

SEED_SEQUENCE = ("spawn_key", "pool_size", "n_children_spawned")
"""What a SeedSequence consists of besides its entropy."""

TENSORS: dict[str, tuple[th.dtype, th.dtype]] = {
    name: (getattr(th, name), getattr(th, stored))
    for name, stored in [
        *((name, name) for name in ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")),
        *((name, name) for name in ("float16", "float32", "float64", "complex64", "complex128")),
        ("bfloat16", "int16"),
    ]
}
"""By name of the dtype of a tensor: that dtype, and one of the same size that NumPy knows too."""

_KEYS = (type(None), bool, int, float, str, bytes)


class CheckpointError(RuntimeError):
    """A tree that cannot be stored, or a checkpoint that cannot be trusted: says which part or file, and why."""


def plain_dtype(text: str) -> np.dtype[Any]:
    """
    :param text: the ``str`` of a dtype, such as "<f4"
    :return: the dtype
    :raises ValueError: if it is not one that is stored
    """
    if not isinstance(text, str) or re.fullmatch(rf"[<>|][{PLAIN_KINDS}]\d+(\[\w+\])?", text) is None:
        raise ValueError(f"not a plain dtype: {text!r}")
    try:
        return np.dtype(text)
    except TypeError as error:
        raise ValueError(f"not a dtype: {text!r}") from error


def check_key(key: Any, path: tuple[str, ...]) -> None:
    """
    :param key: a key of a dict or an element of a set
    :param path: where in the tree
    :raises CheckpointError: if it is of a kind that is not stored there, such as one that is known by its identity only
    """
    if type(key) in (tuple, frozenset):
        for part in key:
            check_key(part, path)
    elif type(key) not in _KEYS and not isinstance(key, np.generic):
        raise CheckpointError(f"{where(path)}: cannot store a {name_of(type(key))} as a key or in a set{hint(key)}")


def below(path: tuple[str, ...], key: Any) -> tuple[str, ...]:
    """
    :param path: where a dict is in the tree
    :param key: one of its keys
    :return: where the value of the key is
    """
    return (*path, key if type(key) is str else repr(key))


def where(path: tuple[str, ...]) -> str:
    """
    :param path: where in the tree
    :return: the same for a message
    """
    if len(path) > 12:
        path = (*path[:8], "...", *path[-2:])
    return "/".join(part[:60] for part in path) or "the tree"


def name_of(kind: type) -> str:
    """
    :param kind: a type
    :return: its name for a message, with the module
    """
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def hint(value: Any) -> str:
    """
    :param value: something that cannot be stored
    :return: what to add to the message: what could be stored instead, if that is plain
    """
    for base in (dict, list, tuple, set, frozenset, str, bytes, int, float, collections.deque, np.ndarray, th.Tensor):
        if isinstance(value, base) and type(value) is not base:
            return f", a subclass of {name_of(base)}: make it one first"
    return ""
