"""
Plain trees, written by ``torch.save`` and read by ``torch.load(weights_only=True)``, which executes nothing.

A tree is None, bool, int, float, str, bytes, an enumeration member, a NumPy array or scalar, a dense torch tensor, a
``numpy.random.Generator`` (of PCG64, MT19937, Philox or SFC64) or ``RandomState`` (of MT19937), or a list, tuple, dict,
OrderedDict, set, frozenset or deque of trees. Keys and elements of sets are plain values, or tuples and frozensets of these.
A tree comes back with the same types and bits. Two references to one object refer to one object again; arrays that overlap
share their memory again; arrays without gaps and tensors keep their strides. Tensors come back on the CPU.

Subclasses (namedtuple, defaultdict, ``nn.Parameter``) are refused: what they add may need their code. But objects of MiniGrid
are made anew with their attributes.
"""

from __future__ import annotations

import ctypes
import io
import pickle
import re
import sys
import types
import warnings
from collections import OrderedDict, deque
from enum import Enum
from typing import Any, BinaryIO

import gymnasium as gym
import numpy as np
import torch as th
from numpy.typing import NDArray

_PLAIN = "biufcSUmM"  # kinds of NumPy dtypes: neither objects nor structures
_SCALARS = frozenset({type(None), bool, float, str, bytes})
_LARGEST_INT = 2039  # bits: the weights-only unpickler reads no longer ones
_BIT_GENERATORS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64)
}
_SEED_SEQUENCE = ("entropy", "spawn_key", "pool_size", "n_children_spawned")


class CheckpointError(RuntimeError, ValueError):
    """A state that cannot be saved or does not fit, or a checkpoint that cannot be trusted; says which part and why."""


def check_same(what: str, saved: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise a CheckpointError if one of the settings of a saved state is not what it is now."""
    for name, value in now.items():
        if saved[name] != value:
            raise CheckpointError(
                f"the state is of {what} with {name}={saved[name]!r}, not {value!r}"
            )


def check_tree(tree: Any, name: str = "the state") -> None:
    """Raise a CheckpointError that names the part and its type if one is not plain."""
    _Contents(tree, name)


def plain_part(info: dict[str, Any]) -> dict[str, Any]:
    """What can be saved of an environment's info. A warning names what cannot."""
    kept = {}
    for key, value in info.items():
        try:
            check_tree(value, f"info[{key!r}]")
            kept[key] = value
        except CheckpointError as refusal:
            warnings.warn(f"left out of checkpoints: {refusal}", stacklevel=2)
    return kept


def attributes(owner: Any) -> dict[str, Any]:
    """
    :param owner: any object
    :return: its attributes by name, those in ``__slots__`` too
    """
    found = dict(getattr(owner, "__dict__", {}))
    for name in _slots(type(owner)):
        if hasattr(owner, name):
            found[name] = getattr(owner, name)
    return found


def set_attributes(owner: Any, values: dict[str, Any]) -> None:
    """
    :param owner: the object whose attributes are set, by no code of its class
    :param values: by name, as :func:`attributes` gave them
    """
    slots = _slots(type(owner))
    for name, value in values.items():
        if name in slots:
            object.__setattr__(owner, name, value)
        else:
            vars(owner)[name] = value


def _slots(kind: type) -> set[str]:
    """The names of the members that ``__slots__`` of a class and its bases declare."""
    return {
        name
        for base in kind.__mro__
        if "__slots__" in vars(base)
        for name, member in vars(base).items()
        if isinstance(member, types.MemberDescriptorType)
    }


def save_tree(tree: Any, file: Any) -> None:
    """Write a tree into what has ``write`` and ``flush``. Arrays are written from their own memory; with gaps, from a copy."""
    contents = _Contents(tree, "the state")
    try:
        objects = [(one, vars(one)) for one in contents.objects]
        th.save({"tree": tree, "objects": objects}, file, pickle_module=_pickle_module(contents))
    except (
        RuntimeError,
        pickle.PicklingError,
    ) as error:  # tensors of different dtypes share memory, say
        cause = error.__context__  # after an error, torch fails again to close the archive
        if isinstance(cause, OSError) or not isinstance(cause, (Exception, type(None))):
            raise cause from None
        raise CheckpointError(f"the state cannot be saved: {error}") from error


def load_tree(file: BinaryIO) -> Any:
    """Read what :func:`save_tree` has written; arrays are writable. Anything else is a CheckpointError."""
    try:
        file.seek(0)
        with th.serialization.safe_globals(_REBUILD):
            found = th.load(file, map_location="cpu", weights_only=True)
        for one, attributes in found["objects"]:
            vars(one).update(attributes)
        return found["tree"]
    except Exception as error:
        reason = str(error).rpartition("WeightsUnpickler error: ")[2].partition("\n")[0]
        raise CheckpointError(f"damaged: {reason or repr(error)}") from error


def copy_tree(tree: Any) -> Any:
    """A copy that shares nothing with a tree. A CheckpointError if a part of it is not plain."""
    return load_tree(io.BytesIO(tree_bytes(tree)))


def tree_bytes(tree: Any) -> bytes:
    """What :func:`save_tree` writes."""
    file = io.BytesIO()
    save_tree(tree, file)
    return file.getvalue()


class _Contents:
    """Checks a tree, and collects its arrays and MiniGrid objects."""

    def __init__(self, tree: Any, name: str) -> None:
        self.arrays: list[NDArray[Any]] = []
        self.objects: list[Any] = []
        self._seen: dict[int, Any] = {}
        try:
            self._visit(tree, name)
        except RecursionError as error:
            raise CheckpointError(f"{name} has too many levels") from error

    def _visit(self, value: Any, name: str) -> None:
        if is_key(value) or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        kind = type(value)
        if kind in (dict, OrderedDict):
            for key, inner in value.items():
                if not is_key(key):
                    raise refusal(f"a key of {name}", key)
                self._visit(inner, f"{name}[{key!r}]")
        elif kind in (list, tuple, deque):
            for index, inner in enumerate(value):
                self._visit(inner, f"{name}[{index}]")
        elif kind in (set, frozenset):
            for inner in value:
                if not is_key(inner):
                    raise refusal(f"an element of {name}", inner)
        elif _is_object(value):
            self.objects.append(value)
            for attribute, inner in vars(value).items():
                self._visit(inner, f"{name}.{attribute}")
        elif kind is np.ndarray and value.dtype.kind in _PLAIN:
            self.arrays.append(value)
        elif not _is_generator(value) and not (
            kind is th.Tensor and value.layout is th.strided and not value.is_meta
        ):
            raise refusal(name, value)

    def memories(self) -> dict[int, _Memory]:
        """Arguments of :func:`_array` by id of the array; arrays that overlap share a tensor."""
        groups: list[tuple[int, int, list[NDArray[Any]]]] = []
        for low, high, array in sorted(
            (_span(array) for array in self.arrays if array.size), key=lambda span: span[:2]
        ):
            start, end, members = groups.pop() if groups and low < groups[-1][1] else (low, low, [])
            groups.append((start, max(end, high), [*members, array]))
        found = {}
        for start, end, arrays in groups:
            if len(arrays) == 1 and end - start != arrays[0].nbytes:
                found[id(arrays[0])] = _copied(arrays[0])
                continue
            memory = th.from_numpy(
                np.ctypeslib.as_array((ctypes.c_uint8 * (end - start)).from_address(start))
            )
            for array in arrays:
                found[id(array)] = (
                    memory,
                    array.ctypes.data - start,
                    array.dtype.str,
                    array.shape,
                    array.strides,
                )
        return found


_Memory = tuple[th.Tensor, int, str, tuple[int, ...], tuple[int, ...]]


def _copied(array: NDArray[Any]) -> _Memory:
    copy = np.array(array, order="C")
    return (
        th.from_numpy(copy.reshape(-1).view(np.uint8)),
        0,
        copy.dtype.str,
        copy.shape,
        copy.strides,
    )


def _span(array: NDArray[Any]) -> tuple[int, int, NDArray[Any]]:
    """Where its memory starts and ends."""
    reach = [
        (length - 1) * stride for length, stride in zip(array.shape, array.strides, strict=True)
    ]
    low, high = (array.ctypes.data + sum(limit(one, 0) for one in reach) for limit in (min, max))
    return low, high + array.itemsize, array


def is_key(value: Any) -> bool:
    """Whether it can be a key of a dict, and never changes."""
    kind = type(value)
    if kind in (tuple, frozenset):
        return all(is_key(one) for one in value)
    if isinstance(value, np.generic):
        return kind is value.dtype.type and value.dtype.kind in _PLAIN
    return (
        kind in _SCALARS
        or (kind is int and value.bit_length() <= _LARGEST_INT)
        or isinstance(value, Enum)
    )


def _is_object(value: Any) -> bool:
    """Whether it is a thing in a world of MiniGrid: no state but its attributes."""
    return type(value).__module__.startswith("minigrid.") and not isinstance(
        value, (gym.Env, gym.Space)
    )


def _is_generator(value: Any) -> bool:
    if type(value) is np.random.Generator:
        bits = type(value.bit_generator)
        return bits is _BIT_GENERATORS.get(bits.__name__)
    return (
        type(value) is np.random.RandomState
        and value.get_state(legacy=False)["bit_generator"] == "MT19937"
    )


def refusal(name: str, value: Any) -> CheckpointError:
    kind, of = type(value), ""
    if isinstance(value, (np.ndarray, np.generic)):
        of = f" of dtype {value.dtype}"
    elif isinstance(value, np.random.Generator):
        of = f" of {type(value.bit_generator).__name__}"
    return CheckpointError(
        f"{name} is a {kind.__module__}.{kind.__qualname__}{of}, which cannot be saved: make it plain data, or give the class "
        "that has it the methods get_checkpoint_state() and set_checkpoint_state(state)"
    )


def _pickle_module(contents: _Contents) -> Any:
    """What ``torch.save`` wants as ``pickle_module``."""
    memories = contents.memories()

    class Pickler(pickle.Pickler):
        def reducer_override(self, value: Any) -> Any:
            kind = type(value)
            if kind is np.ndarray:
                return _array, memories.get(id(value)) or _copied(value)
            if isinstance(value, np.generic):
                return _scalar, (value.dtype.str, value.tobytes())
            if kind is deque:
                return deque, (list(value), value.maxlen)
            if kind is np.random.Generator:
                bits = value.bit_generator
                seeds = getattr(
                    bits, "seed_seq", None
                )  # where spawn() goes on; unknown to NumPy before 1.25
                sequence = (
                    tuple(getattr(seeds, key) for key in _SEED_SEQUENCE)
                    if seeds is not None
                    else None
                )
                return _generator, (type(bits).__name__, bits.state, sequence)
            if kind is np.random.RandomState:
                return _random_state, (value.get_state(legacy=False),)
            if isinstance(value, Enum):
                return _enum_member, (kind.__module__, kind.__qualname__, value.name)
            if _is_object(value):
                return _object, (kind.__module__, kind.__qualname__)
            return NotImplemented

    return types.SimpleNamespace(__name__="pickle", Pickler=Pickler)


# All that reading calls. The arguments may come from someone who means harm.


def _array(
    memory: th.Tensor, offset: int, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...]
) -> NDArray[Any]:
    return np.ndarray(
        shape, _plain_dtype(dtype), memory.numpy(), offset, strides
    )  # refuses to leave the memory


def _plain_dtype(text: str) -> np.dtype[Any]:
    if re.fullmatch(rf"[<>|][{_PLAIN}]\d+(\[\w+\])?", text) is None:
        raise ValueError(f"not a plain dtype: {text!r}")
    return np.dtype(text)


def _scalar(dtype: str, data: bytes) -> Any:
    return np.ndarray((), _plain_dtype(dtype), data)[()]


def _generator(
    name: str, state: dict[str, Any], sequence: tuple[Any, ...] | None
) -> np.random.Generator:
    seeds = (
        None
        if sequence is None
        else np.random.SeedSequence(**dict(zip(_SEED_SEQUENCE, sequence, strict=True)))
    )
    bits = _BIT_GENERATORS[name](seeds)
    _check_positions(state)
    bits.state = state
    return np.random.Generator(bits)


def _random_state(state: dict[str, Any]) -> np.random.RandomState:
    _check_positions(state)
    random = np.random.RandomState(np.random.MT19937())
    random.set_state(state)
    return random


def _check_positions(state: dict[str, Any]) -> None:
    """NumPy takes any position in a table of random words; one outside would read foreign memory."""
    if state["bit_generator"] == "MT19937" and not 0 <= state["state"]["pos"] <= 624:
        raise ValueError("a position outside the table of MT19937")
    if state["bit_generator"] == "Philox" and not 0 <= state["buffer_pos"] <= 4:
        raise ValueError("a position outside the buffer of Philox")


def _enum_member(module: str, name: str, member: str) -> Enum:
    known: type[Enum] = _known_class(module, name, Enum)
    return known[member]


def _object(module: str, name: str) -> Any:
    if not module.startswith("minigrid."):
        raise ValueError(f"{module}.{name} is not of MiniGrid")
    known = _known_class(module, name, object)
    return known.__new__(known)


def _known_class(module: str, name: str, base: type) -> Any:
    """A class of a module that is loaded: a checkpoint must not make Python import anything."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type) or not issubclass(found, base):
        raise ValueError(f"{module}.{name} is not known here: was the environment built otherwise?")
    return found


_REBUILD: list[Any] = [
    *(_array, _scalar, deque, _generator, _random_state, _enum_member, _object),
    *(frozenset, bytes),  # pickle's protocol 2 calls them
]
