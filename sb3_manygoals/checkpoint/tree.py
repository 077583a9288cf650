"""Trees of plain values as JSON and named arrays, and back, exactly; nothing but data, so reading one executes nothing."""

from __future__ import annotations

import collections
import hashlib
import json
import re
import struct
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import numpy as np
import torch as th
from numpy.typing import NDArray

PLAIN_KINDS = "biufcSUmM"
"""The kinds of NumPy dtypes that are stored: no objects, whose bytes are pointers, and no structures."""

_DEEPEST = 100  # levels; JSON has its own limit of about a thousand, and a list that contains itself has no end
_LONGEST_NAME = 150  # characters: names become file names, of which most file systems take 255 bytes
_LONG_BYTES = 1024  # bytes objects longer than this are stored as arrays
_SAFE_INT = 2**53  # beyond this other readers of JSON round; Python's refuses numbers of more than 4300 digits

_BIT_GENERATORS: dict[str, Any] = {
    "PCG64": np.random.PCG64,
    "MT19937": np.random.MT19937,
    "Philox": np.random.Philox,
    "SFC64": np.random.SFC64,
}
_SEQUENCES: dict[type, str] = {tuple: "tuple", set: "set", frozenset: "frozenset"}
_DICTS: dict[type, str] = {dict: "dict", collections.OrderedDict: "ordered dict"}
_KEYS = (type(None), bool, int, float, str, bytes)
_TENSORS: dict[str, tuple[th.dtype, th.dtype]] = {  # by name: the dtype, and the one of the same size that NumPy knows too
    name: (getattr(th, name), getattr(th, stored))
    for name, stored in [
        *((name, name) for name in ("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")),
        *((name, name) for name in ("float16", "float32", "float64", "complex64", "complex128")),
        ("bfloat16", "int16"),
    ]
}


class CheckpointError(RuntimeError):
    """A tree that cannot be stored, or a checkpoint that cannot be trusted: says which part or file, and why."""


def encode(tree: Any) -> tuple[Any, dict[str, NDArray[Any]]]:
    """
    Take a tree apart into what JSON can hold and its arrays.

    A tree is None, bool, int, float, str, bytes, a NumPy array or scalar, a torch tensor, a ``numpy.random.Generator`` (of
    PCG64, MT19937, Philox or SFC64) or ``RandomState`` (of MT19937), or a list, tuple, dict, OrderedDict, set, frozenset or
    deque of trees. Keys of dicts and elements of sets are None, bool, int, float, str, bytes, NumPy scalars, and tuples and
    frozensets of these. ``decode`` gives back equal values of the same types, with the same bits, in arrays and dense tensors
    in the same order of memory too. Not kept are: that two parts of the tree are the same object or share memory; the order of
    sets; attributes set on an OrderedDict; the device of a tensor (it comes back on the CPU) and its graph (``requires_grad``
    is kept). Only these very types are taken: a subclass, such as an IntEnum, a defaultdict, a named tuple or a
    torch Parameter, is refused, as what it adds could not be restored without running code.

    :param tree: the tree; it is not changed
    :return: the skeleton, for ``json.dumps``, and the arrays by name, which is their path in the tree, such as
        "replay/observations"; these are views of the tree's wherever possible, not copies
    :raises CheckpointError: if a part is of another type, names its path and type; or if the tree has more than 100 levels
    """
    encoder = _Encoder()
    return encoder.encode(tree, ()), encoder.arrays


def decode(skeleton: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    """
    Put together what ``encode`` took apart.

    :param skeleton: the skeleton, as it was or after JSON
    :param arrays: the arrays by name; the tree consists of these, not of copies
    :return: the tree
    :raises CheckpointError: if the skeleton is not of ``encode``, or an array is missing, left over, or of another dtype or
        shape than it was
    """
    decoder = _Decoder(arrays)
    tree = decoder.decode(skeleton, ())
    if decoder.unused:
        raise CheckpointError(f"arrays that belong to nothing in the tree: {', '.join(sorted(decoder.unused))}")
    return tree


class _Encoder:
    """Collects the arrays of one tree."""

    def __init__(self) -> None:
        self.arrays: dict[str, NDArray[Any]] = {}
        self._taken: set[str] = set()

    def encode(self, value: Any, path: tuple[str, ...]) -> Any:
        if len(path) > _DEEPEST:
            raise CheckpointError(f"{_where(path)}: more than {_DEEPEST} levels deep; does the tree contain itself?")
        kind = type(value)
        if value is None or kind is bool or (kind is int and abs(value) < _SAFE_INT):
            return value
        if kind is int:
            return {"int": hex(value)}
        if kind is float:
            return value if np.isfinite(value) else {"float": struct.pack(">d", value).hex()}
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
            return {_SEQUENCES[kind]: sorted((self._key(item, path) for item in value), key=json.dumps)}
        if kind is collections.deque:
            return {"deque": [value.maxlen, self._items(value, path)]}
        if kind in _DICTS:
            return {
                _DICTS[kind]: [[self._key(key, path), self.encode(item, _below(path, key))] for key, item in value.items()]
            }
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
                    f"{_where(path)}: cannot store a RandomState of {state['bit_generator']}, only of MT19937"
                )
            return {"random state": self.encode(state, path)}
        raise CheckpointError(f"{_where(path)}: cannot store a {_name_of(kind)}{_hint(value)}")

    def _items(self, values: Iterable[Any], path: tuple[str, ...]) -> list[Any]:
        return [self.encode(item, (*path, str(index))) for index, item in enumerate(values)]

    def _key(self, key: Hashable, path: tuple[str, ...]) -> Any:
        _check_key(key, path)
        return self.encode(key, _below(path, key))

    def _array(self, array: NDArray[Any], path: tuple[str, ...]) -> list[Any]:
        if array.dtype.kind not in PLAIN_KINDS:
            raise CheckpointError(f"{_where(path)}: cannot store an array of dtype {array.dtype}")
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
            return {"np.str_": self.encode(str(value), path)}
        if type(value) is np.bytes_:
            return {"np.bytes_": self.encode(bytes(value), path)}
        if value.dtype.kind not in PLAIN_KINDS or type(value) is not value.dtype.type:
            raise CheckpointError(f"{_where(path)}: cannot store a {_name_of(type(value))}{_hint(value)}")
        return {"scalar": [value.dtype.str, value.tobytes().hex()]}

    def _tensor(self, tensor: th.Tensor, path: tuple[str, ...]) -> Any:
        name = str(tensor.dtype).removeprefix("torch.")
        if tensor.layout != th.strided or name not in _TENSORS or tensor.is_meta:
            raise CheckpointError(
                f"{_where(path)}: cannot store a torch tensor of {tensor.dtype}, {tensor.layout}, {tensor.device}"
            )
        plain = tensor.detach().cpu().resolve_conj().resolve_neg()
        return {"tensor": [name, tensor.requires_grad, self._array(plain.view(_TENSORS[name][1]).numpy(), path)]}

    def _generator(self, generator: np.random.Generator, path: tuple[str, ...]) -> Any:
        bits: Any = generator.bit_generator
        name = type(bits).__name__
        if type(bits) is not _BIT_GENERATORS.get(name):
            raise CheckpointError(f"{_where(path)}: cannot store a Generator of {_name_of(type(bits))}")
        sequence = getattr(bits, "seed_seq", None)  # where spawn() continues; NumPy before 1.25 does not tell
        spawn = None
        if type(sequence) is np.random.SeedSequence:
            spawn = self.encode([sequence.entropy, *(getattr(sequence, key) for key in _SEED_SEQUENCE)], (*path, "seed_seq"))
        return {"generator": [name, self.encode(bits.state, path), spawn]}


_SEED_SEQUENCE = ("spawn_key", "pool_size", "n_children_spawned")


class _Decoder:
    """Knows the arrays and which of them are still without a place."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._arrays = arrays
        self.unused = set(arrays)
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
        if len(path) > _DEEPEST:
            raise CheckpointError(f"{_where(path)}: more than {_DEEPEST} levels deep")
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
                    raise CheckpointError(f"{_where(path)}: not a {tag}: {error}") from error
        raise CheckpointError(f"{_where(path)}: expected a value, got {str(node)[:60]}")

    def _items(self, nodes: list[Any], path: tuple[str, ...]) -> list[Any]:
        return [self.decode(node, (*path, str(index))) for index, node in enumerate(_list(nodes))]

    def _distinct(self, nodes: list[Any], path: tuple[str, ...]) -> list[Any]:
        items = self._items(nodes, path)
        for item in items:
            _check_key(item, path)
        if len(set(items)) != len(items):
            raise ValueError("an element or key comes twice")
        return items

    def _pairs(self, content: list[Any], path: tuple[str, ...]) -> list[tuple[Any, Any]]:
        keys = self._distinct([key for key, _ in _list(content)], path)
        return [(key, self.decode(node, _below(path, key))) for key, (_, node) in zip(keys, content, strict=True)]

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
                f"{_where(path)}: the array {name!r} is {'used twice' if name in self._arrays else 'missing'}"
            )
        array = self._arrays[name]
        if array.dtype.str != dtype or list(array.shape) != shape or array.dtype.kind not in PLAIN_KINDS:
            raise CheckpointError(
                f"{_where(path)}: the array {name!r} should be {dtype} of shape {shape}, "
                f"it is {array.dtype.str} of shape {list(array.shape)}"
            )
        self.unused.remove(name)
        return array if axes is None else array.transpose(np.argsort(axes))

    def _tensor(self, content: list[Any], path: tuple[str, ...]) -> th.Tensor:
        name, requires_grad, stored = content
        dtype, plain = _TENSORS[name]
        tensor = th.from_numpy(self._array(stored, path))
        if tensor.dtype != plain or type(requires_grad) is not bool:
            raise ValueError(f"{name} stored as {tensor.dtype}")
        return tensor.view(dtype).requires_grad_(requires_grad)

    def _generator(self, content: list[Any], path: tuple[str, ...]) -> np.random.Generator:
        name, stored, spawn = content
        state, sequence = self.decode(stored, path), None
        if spawn is not None:
            entropy, *rest = self.decode(spawn, (*path, "seed_seq"))
            sequence = np.random.SeedSequence(entropy, **dict(zip(_SEED_SEQUENCE, rest, strict=True)))
        bits = _BIT_GENERATORS[name](sequence)
        _check_state(state)
        bits.state = state
        return np.random.Generator(bits)

    def _random_state(self, content: Any, path: tuple[str, ...]) -> np.random.RandomState:
        state = self.decode(content, path)
        _check_state(state)
        random = np.random.RandomState(np.random.MT19937())
        random.set_state(state)
        return random


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


def _check_state(state: dict[str, Any]) -> None:
    """NumPy takes any position in a generator's table of random words; one outside would read foreign memory."""
    if state["bit_generator"] == "MT19937" and not 0 <= state["state"]["pos"] <= 624:
        raise ValueError("a position outside the table of MT19937")
    if state["bit_generator"] == "Philox" and not 0 <= state["buffer_pos"] <= 4:
        raise ValueError("a position outside the buffer of Philox")


def _check_key(key: Any, path: tuple[str, ...]) -> None:
    if type(key) in (tuple, frozenset):
        for part in key:
            _check_key(part, path)
    elif type(key) not in _KEYS and not isinstance(key, np.generic):
        raise CheckpointError(f"{_where(path)}: cannot store a {_name_of(type(key))} as a key or in a set{_hint(key)}")


def _list(content: Any) -> list[Any]:
    if type(content) is not list:
        raise ValueError(f"a list expected, got {str(content)[:60]}")
    return content


def _below(path: tuple[str, ...], key: Any) -> tuple[str, ...]:
    return (*path, key if type(key) is str else repr(key))


def _where(path: tuple[str, ...]) -> str:
    if len(path) > 12:
        path = (*path[:8], "...", *path[-2:])
    return "/".join(path) or "the tree"


def _name_of(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _hint(value: Any) -> str:
    plain = (dict, list, tuple, set, frozenset, str, bytes, int, float, collections.deque, np.ndarray, np.generic, th.Tensor)
    for base in plain:
        if isinstance(value, base) and type(value) is not base:
            return f", a subclass of {_name_of(base)}: make it one first"
    return ""
