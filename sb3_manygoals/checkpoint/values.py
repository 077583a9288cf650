"""
Attributes of environments as plain trees, and back.

Everything is copied. What several attributes share, a random number generator say, or an array of which another is a view,
they share again afterwards: it is written once, in a table, and marks in the tree refer to it.
"""

from __future__ import annotations

import copy
import sys
from collections import OrderedDict, deque
from enum import Enum
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th

from sb3_manygoals.checkpoint.tree import CheckpointError

_SCALARS = frozenset({type(None), bool, int, float, str, bytes})
_CONTAINERS = (list, tuple, dict, OrderedDict, set, deque)
_GENERATORS = (np.random.Generator, np.random.RandomState)

_SHARED, _VIEW, _ENUM, _OBJECT, _PAIRS, _ORDERED = "<shared>", "<view>", "<enum>", "<object>", "<pairs>", "<ordered>"
_MARKS = frozenset({_SHARED, _VIEW, _ENUM, _OBJECT, _PAIRS, _ORDERED})


def _is_scalar(value: Any) -> bool:
    return type(value) in _SCALARS or (isinstance(value, np.generic) and value.dtype.kind not in "OV")


def _is_key(value: Any) -> bool:
    return all(_is_key(one) for one in value) if type(value) is tuple else _is_scalar(value)


def _is_array(value: Any) -> bool:
    return type(value) is np.ndarray and not value.dtype.hasobject


def _is_object(value: Any) -> bool:
    # The things in a MiniGrid world: no state but their attributes, and references to each other.
    return type(value).__module__.startswith("minigrid.") and not isinstance(value, (gym.Env, gym.Space))


def _root(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array whose memory a view looks at."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


class Encoder:
    """Makes plain trees. All values must have been shown to :meth:`scan` before the first is encoded."""

    def __init__(self) -> None:
        self._met: dict[int, Any] = {}  # which also keeps temporary objects alive, so that no id is used again
        self._repeated: set[int] = set()
        self._places: dict[int, int] = {}
        self._table: list[Any] = []

    def scan(self, value: Any, name: str) -> None:
        """
        Check a value, and note what it shares with others.

        :param value: to be encoded later
        :param name: what to call it in messages
        :raises CheckpointError: if it is not plain
        """
        if isinstance(value, Enum) or _is_key(value):  # nothing in it can change, so sharing makes no difference
            return
        if id(value) in self._met:
            self._repeated.add(id(value))
            return
        self._met[id(value)] = value
        if type(value) in (dict, OrderedDict):
            for key, inner in value.items():
                if not _is_key(key):
                    raise CheckpointError(f"{name} has a key of type {type(key).__name__}, {key!r}, that cannot be saved")
                self.scan(inner, f"{name}[{key!r}]")
        elif type(value) is set:
            for inner in value:
                if not _is_key(inner):
                    raise _not_plain(inner, f"an element of {name}")
        elif type(value) in _CONTAINERS:
            for index, inner in enumerate(value):
                self.scan(inner, f"{name}[{index}]")
        elif _is_object(value):
            for attribute, inner in vars(value).items():
                self.scan(inner, f"{name}.{attribute}")
        elif not (_is_array(value) or isinstance(value, (*_GENERATORS, th.Tensor))):
            raise _not_plain(value, name)

    def state(self, tree: Any) -> dict[str, Any]:
        """
        :param tree: whose leaves have been scanned
        :return: a plain tree that shares nothing with it, for :func:`decode`
        """
        for array in list(self._met.values()):
            if _is_array(array) and _root(array) is not array and id(_root(array)) in self._met:
                self._repeated.add(id(_root(array)))
        return {"tree": self._encode(tree), "shared": self._table}

    def _encode(self, value: Any) -> Any:
        if id(value) not in self._repeated:
            return self._encode_here(value)
        place = self._places.get(id(value))
        if place is None:
            place = self._places[id(value)] = len(self._table)
            self._table.append(None)  # a place, before what is in it: that may refer to itself
            self._table[place] = self._encode_here(value)
        return {_SHARED: place}

    def _encode_here(self, value: Any) -> Any:
        if isinstance(value, Enum):
            return {_ENUM: [type(value).__module__, type(value).__qualname__, value.name]}
        if _is_array(value):
            root = _root(value)
            return self._encode_view(value, root) if root is not value and id(root) in self._repeated else value.copy()
        if isinstance(value, th.Tensor):
            return value.detach().clone()
        if type(value) is OrderedDict or (type(value) is dict and not _MARKS.isdisjoint(value)):
            # with marks in it: the state of another environment, with a table of its own
            pairs = [[key, self._encode(inner)] for key, inner in value.items()]
            return {_PAIRS if type(value) is dict else _ORDERED: pairs}
        if type(value) is dict:
            return {key: self._encode(inner) for key, inner in value.items()}
        if type(value) in (list, tuple):
            return type(value)(self._encode(inner) for inner in value)
        if type(value) is deque:
            return deque((self._encode(inner) for inner in value), maxlen=value.maxlen)
        if _is_object(value):
            attributes = {name: self._encode(inner) for name, inner in vars(value).items()}
            return {_OBJECT: [type(value).__module__, type(value).__qualname__], "attributes": attributes}
        return copy.deepcopy(value)

    def _encode_view(self, view: np.ndarray[Any, Any], root: np.ndarray[Any, Any]) -> Any:
        if not root.flags.c_contiguous:
            raise CheckpointError(
                f"an array of shape {view.shape} is a view of another in Fortran order: that cannot be saved"
            )
        offset = view.__array_interface__["data"][0] - root.__array_interface__["data"][0]
        return {_VIEW: self._encode(root), "as": [offset, view.dtype.str, view.shape, view.strides]}


def _not_plain(value: Any, name: str) -> CheckpointError:
    kind = type(value)
    return CheckpointError(
        f"{name} is a {kind.__module__}.{kind.__qualname__}, which cannot be saved: give the class of the environment or "
        "wrapper the methods get_checkpoint_state() and set_checkpoint_state(state)"
    )


def decode(state: dict[str, Any]) -> Any:
    """
    :param state: from :meth:`Encoder.state`
    :return: the tree, which shares nothing with ``state``
    :raises CheckpointError: if a class in it is not known here
    """
    return _Decoder(state["shared"]).decode(state["tree"])


class _Decoder:
    def __init__(self, table: list[Any]) -> None:
        self._table = table
        self._made: dict[int, Any] = {}

    def decode(self, value: Any, place: int | None = None) -> Any:
        kind = type(value)
        if kind is dict and _SHARED in value:
            place = value[_SHARED]
            return self._made[place] if place in self._made else self.decode(self._table[place], place)
        if kind is dict and _VIEW in value:
            offset, dtype, shape, strides = value["as"]
            root = self.decode(value[_VIEW])
            return self._keep(place, np.ndarray(tuple(shape), np.dtype(dtype), root, offset, tuple(strides)))
        if kind is dict and _ENUM in value:
            module, name, member = value[_ENUM]
            return _known_class(module, name, Enum)[member]
        if kind is dict and _OBJECT in value:
            module, name = value[_OBJECT]
            known = _known_class(module, name, object)
            new = self._keep(place, known.__new__(known))
            vars(new).update((name, self.decode(inner)) for name, inner in value["attributes"].items())
            return new
        if kind is dict and (_PAIRS in value or _ORDERED in value):
            pairs = self._keep(place, {} if _PAIRS in value else OrderedDict())
            pairs.update((key, self.decode(inner)) for key, inner in next(iter(value.values())))
            return pairs
        if kind is dict:
            plain = self._keep(place, {})
            plain.update((key, self.decode(inner)) for key, inner in value.items())
            return plain
        if kind in (list, deque):
            sequence = self._keep(place, [] if kind is list else deque(maxlen=value.maxlen))
            sequence.extend(self.decode(inner) for inner in value)
            return sequence
        if kind is tuple:
            return self._keep(place, tuple(self.decode(inner) for inner in value))
        if kind is np.ndarray:
            return self._keep(place, value.copy())
        return self._keep(place, copy.deepcopy(value))

    def _keep(self, place: int | None, value: Any) -> Any:
        # Before it is filled: its parts may refer to it.
        if place is not None:
            self._made[place] = value
        return value


def _known_class(module: str, name: str, base: type) -> Any:
    """A class of a module that is loaded: a checkpoint must not make Python import anything."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type) or not issubclass(found, base) or (base is object and not module.startswith("minigrid.")):
        raise CheckpointError(
            f"the state has a {module}.{name}, which is not known here: was the environment built otherwise?"
        )
    return found
