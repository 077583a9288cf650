"""Puts a tree together again; makes only what it knows how to make, and executes nothing."""

from __future__ import annotations

import collections
import struct
from collections.abc import Callable, Mapping
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
    plain_dtype,
    where,
)


class Decoder:
    """
    Puts one tree together.

    :param arrays: the arrays by name
    """

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._arrays = arrays
        self.unused = set(arrays)
        """The names of the arrays that have no place in the tree so far."""
        self._readers: dict[str, Callable[[Any, tuple[str, ...]], Any]] = {
            "int": lambda content, path: int(content, 16),
            "float": lambda content, path: struct.unpack(">d", bytes.fromhex(content))[0],
            "str": lambda content, path: bytes.fromhex(content).decode("utf-8", "surrogatepass"),
            "bytes": lambda content, path: bytes.fromhex(content),
            "long bytes": lambda content, path: self._array(content, path).tobytes(),
            "tuple": lambda content, path: tuple(self._items(content, path)),
            "set": lambda content, path: set(self._distinct(content, path)),
            "frozenset": lambda content, path: frozenset(self._distinct(content, path)),
            "deque": lambda content, path: self._deque(content, path),
            "dict": lambda content, path: dict(self._pairs(content, path)),
            "ordered dict": lambda content, path: collections.OrderedDict(self._pairs(content, path)),
            "array": lambda content, path: self._array(content, path),
            "scalar": lambda content, path: np.ndarray((), plain_dtype(content[0]), bytes.fromhex(content[1]))[()],
            "np.str_": lambda content, path: np.str_(self.decode(content, path)),
            "np.bytes_": lambda content, path: np.bytes_(self.decode(content, path)),
            "tensor": lambda content, path: self._tensor(content, path),
            "generator": lambda content, path: self._generator(content, path),
            "random state": lambda content, path: self._random_state(content, path),
        }

    def decode(self, node: Any, path: tuple[str, ...]) -> Any:
        """
        :param node: a skeleton
        :param path: where it is in the whole tree
        :return: its tree
        :raises CheckpointError: if it is no skeleton, or its arrays are not there
        """
        if len(path) > DEEPEST:
            raise CheckpointError(f"{where(path)}: more than {DEEPEST} levels deep")
        if node is None or type(node) in (bool, int, float, str):
            return node
        if type(node) is list:
            return self._items(node, path)
        if type(node) is dict and len(node) == 1:
            ((tag, content),) = node.items()
            if tag in self._readers:
                try:
                    return self._readers[tag](content, path)
                except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, struct.error) as error:
                    raise CheckpointError(f"{where(path)}: not a {tag}: {error}") from error
        raise CheckpointError(f"{where(path)}: expected a value, got {str(node)[:60]}")

    def _items(self, nodes: list[Any], path: tuple[str, ...]) -> list[Any]:
        return [self.decode(node, (*path, str(index))) for index, node in enumerate(_list(nodes))]

    def _distinct(self, nodes: list[Any], path: tuple[str, ...]) -> list[Any]:
        items = self._items(nodes, path)
        for item in items:
            check_key(item, path)
        if len(set(items)) != len(items):
            raise ValueError("an element or key comes twice")
        return items

    def _pairs(self, content: list[Any], path: tuple[str, ...]) -> list[tuple[Any, Any]]:
        keys = self._distinct([key for key, _ in _list(content)], path)
        return [(key, self.decode(node, below(path, key))) for key, (_, node) in zip(keys, content, strict=True)]

    def _deque(self, content: list[Any], path: tuple[str, ...]) -> collections.deque[Any]:
        longest, nodes = content
        items = self._items(nodes, path)
        if longest is not None and (type(longest) is not int or longest < len(items)):
            raise ValueError(f"{len(items)} items in a deque of at most {longest}")
        return collections.deque(items, longest)

    def _array(self, content: list[Any], path: tuple[str, ...]) -> NDArray[Any]:
        name, dtype, shape, axes = content
        if name not in self.unused:
            raise CheckpointError(
                f"{where(path)}: the array {name!r} is {'used twice' if name in self._arrays else 'missing'}"
            )
        array = self._arrays[name]
        if array.dtype.str != dtype or list(array.shape) != shape or array.dtype.kind not in PLAIN_KINDS:
            raise CheckpointError(
                f"{where(path)}: the array {name!r} should be {dtype} of shape {shape}, "
                f"it is {array.dtype.str} of shape {list(array.shape)}"
            )
        self.unused.remove(name)
        return array if axes is None else array.transpose(np.argsort(axes))

    def _tensor(self, content: list[Any], path: tuple[str, ...]) -> th.Tensor:
        name, requires_grad, stored = content
        dtype, plain = TENSORS[name]
        tensor = th.from_numpy(self._array(stored, path))
        if tensor.dtype != plain or type(requires_grad) is not bool:
            raise ValueError(f"{name} stored as {tensor.dtype}")
        return tensor.view(dtype).requires_grad_(requires_grad)

    def _generator(self, content: list[Any], path: tuple[str, ...]) -> np.random.Generator:
        name, stored, spawn = content
        state, sequence = self.decode(stored, path), None
        if spawn is not None:
            entropy, *rest = self.decode(spawn, (*path, "seed_seq"))
            sequence = np.random.SeedSequence(entropy, **dict(zip(SEED_SEQUENCE, rest, strict=True)))
        bits = BIT_GENERATORS[name](sequence)
        _check_state(state)
        bits.state = state
        return np.random.Generator(bits)

    def _random_state(self, content: Any, path: tuple[str, ...]) -> np.random.RandomState:
        state = self.decode(content, path)
        _check_state(state)
        random = np.random.RandomState(np.random.MT19937())
        random.set_state(state)
        return random


def _check_state(state: dict[str, Any]) -> None:
    """NumPy takes any position in a generator's table of random words; one outside would read foreign memory."""
    if state["bit_generator"] == "MT19937" and not 0 <= state["state"]["pos"] <= 624:
        raise ValueError("a position outside the table of MT19937")
    if state["bit_generator"] == "Philox" and not 0 <= state["buffer_pos"] <= 4:
        raise ValueError("a position outside the buffer of Philox")


def _list(content: Any) -> list[Any]:
    if type(content) is not list:
        raise ValueError(f"a list expected, got {str(content)[:60]}")
    return content
