"""
Trees: what a checkpoint can hold.

A tree is one of these:

- None, bool, int, float, str, bytes, or a member of an enumeration;
- a NumPy array or scalar without objects and structures, or a dense torch tensor;
- a ``numpy.random.Generator`` of PCG64, MT19937, Philox or SFC64, or a ``RandomState`` of MT19937;
- a list, tuple, dict, OrderedDict, set, frozenset or deque of trees. Keys of dicts and elements of
  sets are plain immutable values, or tuples and frozensets of these;
- an object whose state is nothing but its attributes, which are trees. Only the packages in
  :mod:`sb3_manygoals.checkpoint.packages` say of which objects this is true.

A tree comes back with the same types and bits. Two references to one object refer to one object
again. Arrays that overlap share their memory again. Arrays without gaps and tensors keep their
strides. Tensors come back on the CPU.

Subclasses, such as namedtuples, defaultdicts and ``nn.Parameter``, are refused, because what they
add may need their code. Trees are written by ``torch.save``, and read by
``torch.load(weights_only=True)``, which calls only the functions in :data:`REBUILDERS`.
"""

from __future__ import annotations

import io
import pickle
import re
import sys
import types
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable
from enum import Enum
from typing import Any, BinaryIO

import numpy as np
import torch as th
from numpy.typing import NDArray

from sb3_manygoals.checkpoint.arrays import ArrayMemory, array_memories, copied_memory
from sb3_manygoals.checkpoint.packages import is_plain_module, is_plain_object

_SCALAR_TYPES = frozenset({type(None), bool, float, str, bytes})
# Numbers, truth values, times and texts; neither Python objects nor structures.
_DTYPE_KINDS = "biufcSUmM"
# The weights-only unpickler reads no longer integers.
_MAX_INT_BITS = 2039
_BIT_GENERATORS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64)
}
_SEED_SEQUENCE_ARGUMENTS = ("entropy", "spawn_key", "pool_size", "n_children_spawned")


class CheckpointError(RuntimeError, ValueError):
    """
    Raised when a state cannot be saved or restored, or a checkpoint cannot be read.

    The message names the part and the reason.
    """


def check_same(what: str, saved: dict[str, Any], now: dict[str, Any]) -> None:
    """
    Check that an object has the settings with which a state was saved.

    :param what: what the settings belong to, for the error, such as "a goal buffer"
    :param saved: the settings in the saved state, by name; further entries are ignored
    :param now: the settings of the object that is to be restored, by name
    :raises CheckpointError: if one of the settings is another one now
    """
    for name, value in now.items():
        if saved[name] != value:
            raise CheckpointError(
                f"the state is of {what} with {name}={saved[name]!r}, not {value!r}"
            )


def check_tree(tree: Any, name: str = "the state") -> None:
    """
    Check that a value is a tree.

    :param tree: any value
    :param name: what to call it in the error; default: "the state"
    :raises CheckpointError: if a part of it is none; the message names the part and its type
    """
    arrays_and_tensors(tree, name)


def arrays_and_tensors(tree: Any, name: str = "the state") -> list[Any]:
    """
    Return the NumPy arrays and the tensors in a tree.

    :param tree: any value
    :param name: what to call it in the error; default: "the state"
    :return: each of them once
    :raises CheckpointError: if ``tree`` is no tree; the message names the part and its type
    """
    contents = _Contents(tree, name)
    return [*contents.arrays, *contents.tensors]


def plain_part(info: dict[str, Any]) -> dict[str, Any]:
    """
    Return the entries of an info that can be saved. A warning names each of the others.

    :param info: the info of an environment
    :return: a new dict of the entries that are trees
    """
    kept = {}
    for key, value in info.items():
        try:
            check_tree(value, f"info[{key!r}]")
            kept[key] = value
        except CheckpointError as error:
            warnings.warn(f"left out of checkpoints: {error}", stacklevel=2)
    return kept


def attributes(owner: Any) -> dict[str, Any]:
    """
    Return the attributes of an object, also those in ``__slots__``.

    :param owner: any object
    :return: its attributes by name; the dict is new, the values are the object's own
    """
    found = dict(getattr(owner, "__dict__", {}))
    for name in _slots(type(owner)):
        if hasattr(owner, name):
            found[name] = getattr(owner, name)
    return found


def set_attributes(owner: Any, values: dict[str, Any]) -> None:
    """
    Set attributes of an object, also those in ``__slots__``. No code of its class is called.

    :param owner: the object
    :param values: values by name, as :func:`attributes` returned them
    """
    slots = _slots(type(owner))
    for name, value in values.items():
        if name in slots:
            object.__setattr__(owner, name, value)
        else:
            vars(owner)[name] = value


def _slots(kind: type) -> set[str]:
    """Return the names of the members that ``__slots__`` of a class and its bases declare."""
    names = set()
    for base in kind.__mro__:
        if "__slots__" in vars(base):
            for name, member in vars(base).items():
                if isinstance(member, types.MemberDescriptorType):
                    names.add(name)
    return names


def save_tree(tree: Any, file: Any) -> None:
    """
    Write a tree into a file.

    Arrays are written from their own memory, those with gaps from a copy.

    :param tree: the tree; it must not change meanwhile
    :param file: an object with ``write`` and ``flush``
    :raises CheckpointError: if a part of it is no tree, or tensors that share memory have different
        dtypes
    :raises OSError: if the file cannot be written
    """
    contents = _Contents(tree, "the state")
    objects = [(one, vars(one)) for one in contents.objects]
    try:
        th.save({"tree": tree, "objects": objects}, file, pickle_module=_pickle_module(contents))
    except (RuntimeError, pickle.PicklingError) as error:
        # After an error, torch fails once more when it closes the archive. The first error counts.
        cause = error.__context__
        if isinstance(cause, OSError) or not isinstance(cause, (Exception, type(None))):
            raise cause from None
        raise CheckpointError(f"the state cannot be saved: {error}") from error


def load_tree(file: BinaryIO) -> Any:
    """
    Read what :func:`save_tree` has written.

    :param file: the file, which is read from its beginning
    :return: the tree; its arrays can be written to
    :raises CheckpointError: if the file does not hold a tree that this version can read
    """
    try:
        file.seek(0)
        rebuilders: list[Any] = list(REBUILDERS.values())
        with th.serialization.safe_globals(rebuilders):
            found = th.load(file, map_location="cpu", weights_only=True)
        for one, values in found["objects"]:
            vars(one).update(values)
        return found["tree"]
    except Exception as error:
        # Torch explains at length how to load files that are not safe. Only the reason is kept.
        reason = str(error).rpartition("WeightsUnpickler error: ")[2].partition("\n")[0]
        raise CheckpointError(f"not a tree of this version: {reason or repr(error)}") from error


def copy_tree(tree: Any) -> Any:
    """
    Copy a tree.

    :param tree: the tree
    :return: a tree that shares nothing with it
    :raises CheckpointError: if a part of it is no tree
    """
    return load_tree(io.BytesIO(tree_bytes(tree)))


def tree_bytes(tree: Any) -> bytes:
    """
    Return a tree as bytes.

    :param tree: the tree
    :return: what :func:`save_tree` writes into a file
    :raises CheckpointError: if a part of it is no tree
    """
    file = io.BytesIO()
    save_tree(tree, file)
    return file.getvalue()


def is_immutable(value: Any) -> bool:
    """
    Return whether a value is a tree that never changes, and so can be a key of a dict.

    :param value: any value
    :return: True for plain scalars and members of enumerations, and for tuples and frozensets of
        these
    """
    kind = type(value)
    if kind in (tuple, frozenset):
        return all(is_immutable(one) for one in value)
    if isinstance(value, np.generic):
        return kind is value.dtype.type and value.dtype.kind in _DTYPE_KINDS
    if kind is int:
        return bool(value.bit_length() <= _MAX_INT_BITS)
    return kind in _SCALAR_TYPES or (isinstance(value, Enum) and _is_named_member(value))


def _is_named_member(member: Enum) -> bool:
    """Return whether a member of an enumeration is found again by its names."""
    kind = type(member)
    try:
        return _enum_member(kind.__module__, kind.__qualname__, member.name) is member
    except (KeyError, ValueError):
        # Flags that are combined have no name, and local classes cannot be found.
        return False


def refusal(name: str, value: Any) -> CheckpointError:
    """
    Return the error for a value that is no tree.

    :param name: where the value is, such as "the state['rng']"
    :param value: the value
    :return: an error that names the place and the type
    """
    kind = type(value)
    detail = ""
    if isinstance(value, (np.ndarray, np.generic)):
        detail = f" of dtype {value.dtype}"
    elif isinstance(value, np.random.Generator):
        detail = f" of {type(value.bit_generator).__name__}"
    return CheckpointError(
        f"{name} is a {kind.__module__}.{kind.__qualname__}{detail}, which cannot be saved: make "
        "it plain data, or give the class that has it the methods get_checkpoint_state() and "
        "set_checkpoint_state(state)"
    )


class _Contents:
    """Checks that a value is a tree, and collects the arrays, tensors and objects in it."""

    def __init__(self, tree: Any, name: str) -> None:
        self.arrays: list[NDArray[Any]] = []
        self.tensors: list[th.Tensor] = []
        self.objects: list[Any] = []
        self._visited: dict[int, Any] = {}
        try:
            self._visit(tree, name)
        except RecursionError as error:
            raise CheckpointError(f"{name} has too many levels") from error

    def _visit(self, value: Any, name: str) -> None:
        """Visit a value and what is in it, each object once."""
        if is_immutable(value) or id(value) in self._visited:
            return
        self._visited[id(value)] = value
        kind = type(value)
        if kind in (dict, OrderedDict):
            self._visit_dict(value, name)
        elif kind in (list, tuple, deque):
            for index, inner in enumerate(value):
                self._visit(inner, f"{name}[{index}]")
        elif kind in (set, frozenset):
            for inner in value:
                if not is_immutable(inner):
                    raise refusal(f"an element of {name}", inner)
        elif is_plain_object(value):
            self.objects.append(value)
            for attribute, inner in vars(value).items():
                self._visit(inner, f"{name}.{attribute}")
        elif kind is np.ndarray and value.dtype.kind in _DTYPE_KINDS:
            self.arrays.append(value)
        elif _is_dense_tensor(value):
            self.tensors.append(value)
        elif not _is_generator(value):
            raise refusal(name, value)

    def _visit_dict(self, value: dict[Any, Any], name: str) -> None:
        """Visit the keys and values of a dict."""
        for key, inner in value.items():
            if not is_immutable(key):
                raise refusal(f"a key of {name}", key)
            self._visit(inner, f"{name}[{key!r}]")


def _is_dense_tensor(value: Any) -> bool:
    return type(value) is th.Tensor and value.layout is th.strided and not value.is_meta


def _is_generator(value: Any) -> bool:
    """Return whether a value is a random number generator of a kind that can be saved."""
    if type(value) is np.random.Generator:
        bits = type(value.bit_generator)
        return bits is _BIT_GENERATORS.get(bits.__name__)
    if type(value) is np.random.RandomState:
        return bool(value.get_state(legacy=False)["bit_generator"] == "MT19937")
    return False


# Writing: each object that torch does not write by itself becomes a call of one of REBUILDERS.


def _pickle_module(contents: _Contents) -> Any:
    """Return what ``torch.save`` takes as its ``pickle_module``, for one tree."""
    memories = array_memories(contents.arrays)

    class Pickler(pickle.Pickler):
        def reducer_override(self, value: Any) -> Any:
            return _rebuilding_call(value, memories)

    return types.SimpleNamespace(__name__="pickle", Pickler=Pickler)


def _rebuilding_call(value: Any, memories: dict[int, ArrayMemory]) -> Any:
    """Return the function and the arguments that rebuild a value, or NotImplemented."""
    kind = type(value)
    if kind is np.ndarray:
        return _array, memories.get(id(value)) or copied_memory(value)
    if isinstance(value, np.generic):
        return _scalar, (value.dtype.str, value.tobytes())
    if kind is deque:
        return deque, (list(value), value.maxlen)
    if kind is np.random.Generator:
        bits = value.bit_generator
        return _generator, (type(bits).__name__, bits.state, _seed_sequence(bits))
    if kind is np.random.RandomState:
        return _random_state, (value.get_state(legacy=False),)
    if isinstance(value, Enum):
        return _enum_member, (kind.__module__, kind.__qualname__, value.name)
    if is_plain_object(value):
        return _object, (kind.__module__, kind.__qualname__)
    return NotImplemented


def _seed_sequence(bits: np.random.BitGenerator) -> tuple[Any, ...] | None:
    """Return the arguments of the seed sequence, which decides what ``spawn()`` returns."""
    # Before NumPy 1.25, a bit generator does not show its seed sequence.
    seeds = getattr(bits, "seed_seq", None)
    if seeds is None:
        return None
    return tuple(getattr(seeds, name) for name in _SEED_SEQUENCE_ARGUMENTS)


# Reading: the arguments of these functions may come from someone who means harm. Their names stand
# in every file, so that another name would be another format.


def _array(
    memory: th.Tensor, offset: int, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...]
) -> NDArray[Any]:
    # NumPy refuses shapes and strides that leave the memory.
    return np.ndarray(shape, _plain_dtype(dtype), memory.numpy(), offset, strides)


def _plain_dtype(text: str) -> np.dtype[Any]:
    """Return a dtype without objects and structures."""
    if re.fullmatch(rf"[<>|][{_DTYPE_KINDS}]\d+(\[\w+\])?", text) is None:
        raise ValueError(f"not a plain dtype: {text!r}")
    return np.dtype(text)


def _scalar(dtype: str, data: bytes) -> Any:
    return np.ndarray((), _plain_dtype(dtype), data)[()]


def _generator(
    name: str, state: dict[str, Any], sequence: tuple[Any, ...] | None
) -> np.random.Generator:
    """Rebuild a random number generator from the name of its kind, its state and its seeds."""
    seeds = None
    if sequence is not None:
        arguments = dict(zip(_SEED_SEQUENCE_ARGUMENTS, sequence, strict=True))
        seeds = np.random.SeedSequence(**arguments)
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
    """Refuse positions outside a table of random words, where NumPy would read foreign memory."""
    if state["bit_generator"] == "MT19937" and not 0 <= state["state"]["pos"] <= 624:
        raise ValueError("a position outside the table of MT19937")
    if state["bit_generator"] == "Philox" and not 0 <= state["buffer_pos"] <= 4:
        raise ValueError("a position outside the buffer of Philox")


def _enum_member(module: str, name: str, member: str) -> Enum:
    known: type[Enum] = _known_class(module, name, Enum)
    return known[member]


def _object(module: str, name: str) -> Any:
    if not is_plain_module(module):
        raise ValueError(f"{module}.{name} is not a class whose objects are their attributes")
    known = _known_class(module, name, object)
    return known.__new__(known)


def _known_class(module: str, name: str, base: type) -> Any:
    """Return a class of a module that is loaded: a checkpoint must not make Python import one."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type) or not issubclass(found, base):
        raise ValueError(f"{module}.{name} is not known here: was the environment built otherwise?")
    return found


REBUILDERS: dict[str, Callable[..., Any]] = {
    "array": _array,
    "scalar": _scalar,
    "deque": deque,
    "generator": _generator,
    "random state": _random_state,
    "enum member": _enum_member,
    "object": _object,
    # Protocol 2 of pickle calls these two for its own purposes.
    "frozenset": frozenset,
    "bytes": bytes,
}
"""All functions that reading a tree may call, by what they rebuild."""
