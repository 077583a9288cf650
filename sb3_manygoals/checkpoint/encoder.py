"""Takes a tree apart into what JSON can hold and its arrays."""

from __future__ import annotations

import collections
import hashlib
import json
import math
import re
import struct
from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np
import torch as th
from numpy.typing import NDArray

from sb3_manygoals.checkpoint.kinds import (
    BIT_GENERATORS,
    DEEPEST,
    PLAIN_KINDS,
    SEED_SEQUENCE,
    TENSORS,
    CheckpointError,
    below,
    check_key,
    hint,
    name_of,
    where,
)

_LONGEST_NAME = 150  # characters: names become file names, of which most file systems take 255 bytes
_LONG_BYTES = 1024  # bytes objects longer than this are stored as arrays
_SAFE_INT = 2**53  # beyond this other readers of JSON round; Python's refuses numbers of more than 4300 digits
_SETS: dict[type, str] = {set: "set", frozenset: "frozenset"}
_DICTS: dict[type, str] = {dict: "dict", collections.OrderedDict: "ordered dict"}


class Encoder:
    """Takes one tree apart and collects its arrays."""

    def __init__(self) -> None:
        self.arrays: dict[str, NDArray[Any]] = {}
        """The arrays so far, by name."""
        self._taken: set[str] = set()

    def encode(self, value: Any, path: tuple[str, ...]) -> Any:
        """
        :param value: a tree
        :param path: where it is in the whole tree
        :return: its skeleton
        :raises CheckpointError: if it cannot be stored
        """
        if len(path) > DEEPEST:
            raise CheckpointError(f"{where(path)}: more than {DEEPEST} levels deep; does the tree contain itself?")
        kind = type(value)
        if value is None or kind is bool or (kind is int and abs(value) < _SAFE_INT):
            return value
        if kind is int:
            return {"int": hex(value)}
        if kind is float:
            return value if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}
        if kind is str:  # JSON would join two halves of a surrogate pair
            return {"str": value.encode("utf-8", "surrogatepass").hex()} if re.search("[\ud800-\udfff]", value) else value
        if kind is bytes:
            if len(value) <= _LONG_BYTES:
                return {"bytes": value.hex()}
            return {"long bytes": self._array(np.frombuffer(value, np.uint8), path)}
        if kind is list:
            return self._items(value, path)
        if kind is tuple:
            return {"tuple": self._items(value, path)}
        if kind is set or kind is frozenset:  # sorted, so that equal sets give equal files
            return {_SETS[kind]: sorted((self._key(item, path) for item in value), key=json.dumps)}
        if kind is collections.deque:
            return {"deque": [value.maxlen, self._items(value, path)]}
        if kind in _DICTS:
            return {_DICTS[kind]: [[self._key(key, path), self.encode(item, below(path, key))] for key, item in value.items()]}
        if kind is np.ndarray:
            return {"array": self._array(value, path)}
        if isinstance(value, np.generic):
            return self._scalar(value, path)
        if kind is th.Tensor:
            return self._tensor(value, path)
        if kind is np.random.Generator:
            return self._generator(value, path)
        if kind is np.random.RandomState:
            state = value.get_state(legacy=False)
            if state["bit_generator"] != "MT19937":
                raise CheckpointError(
                    f"{where(path)}: cannot store a RandomState of {state['bit_generator']}, only of MT19937"
                )
            return {"random state": self.encode(state, path)}
        raise CheckpointError(f"{where(path)}: cannot store a {name_of(kind)}{hint(value)}")

    def _items(self, values: Iterable[Any], path: tuple[str, ...]) -> list[Any]:
        return [self.encode(item, (*path, str(index))) for index, item in enumerate(values)]

    def _key(self, key: Hashable, path: tuple[str, ...]) -> Any:
        check_key(key, path)
        return self.encode(key, below(path, key))

    def _array(self, array: NDArray[Any], path: tuple[str, ...]) -> list[Any]:
        if array.dtype.kind not in PLAIN_KINDS:
            raise CheckpointError(f"{where(path)}: cannot store an array of dtype {array.dtype}")
        axes = None
        if not array.flags.c_contiguous:  # an order of axes in which it is: Fortran's, or the channels last
            order = np.argsort([-stride for stride in array.strides], kind="stable").tolist()
            if array.transpose(order).flags.c_contiguous:
                array, axes = array.transpose(order), order
        name = self._name(path)
        self.arrays[name] = array
        return [name, array.dtype.str, list(array.shape), axes]

    def _name(self, path: tuple[str, ...]) -> str:
        name = "/".join(re.sub("[^A-Za-z0-9_+-]", "_", part) or "_" for part in path) or "tree"
        if len(name) > _LONGEST_NAME:
            name = f"{name[: _LONGEST_NAME - 20]}+{hashlib.sha256(name.encode()).hexdigest()[:16]}"
        unique, count = name, 1
        while (
            unique.casefold() in self._taken
        ):  # the paths of 1 and "1", of "a/b" and "a" -> "b", of "a" and "A" on some disks
            count += 1
            unique = f"{name}+{count}"
        self._taken.add(unique.casefold())
        return unique

    def _scalar(self, value: np.generic, path: tuple[str, ...]) -> Any:
        if type(value) is np.str_:
            return {"np.str_": self.encode(str.__str__(value), path)}  # str(value) drops zeros at its end
        if type(value) is np.bytes_:
            return {"np.bytes_": self.encode(bytes(value), path)}
        if value.dtype.kind not in PLAIN_KINDS or type(value) is not value.dtype.type:
            raise CheckpointError(f"{where(path)}: cannot store a {name_of(type(value))}{hint(value)}")
        return {"scalar": [value.dtype.str, value.tobytes().hex()]}

    def _tensor(self, tensor: th.Tensor, path: tuple[str, ...]) -> Any:
        name = str(tensor.dtype).removeprefix("torch.")
        if tensor.layout != th.strided or name not in TENSORS or tensor.is_meta:
            raise CheckpointError(
                f"{where(path)}: cannot store a torch tensor of {tensor.dtype}, {tensor.layout}, {tensor.device}"
            )
        plain = tensor.detach().cpu().resolve_conj().resolve_neg()
        return {"tensor": [name, tensor.requires_grad, self._array(plain.view(TENSORS[name][1]).numpy(), path)]}

    def _generator(self, generator: np.random.Generator, path: tuple[str, ...]) -> Any:
        bits: Any = generator.bit_generator
        name = type(bits).__name__
        if type(bits) is not BIT_GENERATORS.get(name):
            raise CheckpointError(f"{where(path)}: cannot store a Generator of {name_of(type(bits))}")
        sequence = getattr(bits, "seed_seq", None)  # where spawn() continues; NumPy before 1.25 does not tell
        spawn = None
        if type(sequence) is np.random.SeedSequence:
            spawn = self.encode([sequence.entropy, *(getattr(sequence, key) for key in SEED_SEQUENCE)], (*path, "seed_seq"))
        return {"generator": [name, self.encode(bits.state, path), spawn]}
