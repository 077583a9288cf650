"""State that a subclass of the user's adds to a class of this package."""

from __future__ import annotations

import itertools
import types
import warnings
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import numpy as np
import torch as th

from sb3_manygoals.checkpoint.functions import FUNCTIONS, function_state
from sb3_manygoals.checkpoint.tree import (
    CheckpointError,
    arrays_and_tensors,
    attributes,
    set_attributes,
)

_PACKAGE = __name__.partition(".")[0]
_WITHOUT_STATE = (type, types.ModuleType, th.device, th.dtype, np.dtype)


def begin_attributes(owner: Any) -> None:
    """
    Note the attributes that a subclass has set before the first constructor of this package began.

    :param owner: the object that is constructed
    """
    owner._names_added_early = frozenset(attributes(owner))


def note_attributes(owner: Any) -> None:
    """
    Note the attributes that an object has now. Those that come later are a subclass's.

    :param owner: an object of which a constructor of this package has just set all attributes
    """
    early: frozenset[str] = getattr(owner, "_names_added_early", frozenset())
    owner._names_of_package = frozenset({*attributes(owner), "_names_of_package"}) - early


def added_attributes(owner: Any, elsewhere: Collection[Any] = ()) -> dict[str, Any]:
    """
    Return the attributes that a subclass of the user's has added, unless it saves its state by a
    ``get_checkpoint_state`` of its own.

    Those without a state are left out: classes, and functions that refer to nothing that changes.
    So are those that are nothing but objects that others save, or arrays and tensors in the memory
    of these. The constructor of the subclass makes them again. A warning names each of the others
    that cannot be saved. Tensors that are trained cannot: an optimizer may have them.

    :param owner: an object of which :func:`note_attributes` was told
    :param elsewhere: objects that others save and restore
    :return: the attributes by name. The values are the object's own
    """
    kind = type(owner)
    if kind.get_checkpoint_state.__module__.partition(".")[0] != _PACKAGE:
        return {}
    names = _of_package(owner)
    others = _Others([owner, *elsewhere])
    found = {}
    for name, value in attributes(owner).items():
        if name in names or others.save_all_of(value):
            continue
        try:
            others.check(value, f"the attribute {name} of {kind.__name__}")
        except CheckpointError as error:
            warnings.warn(
                f"left out of checkpoints: {error}. If it changes in training, write the methods "
                f"get_checkpoint_state and set_checkpoint_state of {kind.__name__}",
                stacklevel=2,
            )
            continue
        found[name] = value
    return found


def restore_added(owner: Any, saved: dict[str, Any], device: th.device | str) -> None:
    """
    Restore what :func:`added_attributes` returned.

    :param owner: an object of the same class
    :param saved: the attributes, with tensors on the CPU. They belong to the owner from now on
    :param device: where tensors go, unless the owner has a tensor in their place, on its device
    """
    own = attributes(owner)
    moved: dict[int, tuple[Any, Any]] = {}
    values = {name: _moved(value, own.get(name), device, moved) for name, value in saved.items()}
    set_attributes(owner, values)


class _Others:
    """
    Tells what others save.

    :param objects: the objects that others save
    """

    def __init__(self, objects: Iterable[Any]) -> None:
        self._ids: set[int] = set()
        self._memories: list[tuple[int, int]] = []
        for one in objects:
            self._ids.add(id(one))
            parts = [one] if isinstance(one, th.Tensor) else _of_package(one).values()
            self._memories += [_memory(part) for part in parts if _has_memory(part)]

    def save_all_of(self, value: Any) -> bool:
        """Return whether there is nothing in a value but what others save, or has no state."""
        parts = list(_parts(value))
        return bool(parts) and all(self._save(part) or self._is_function(part) for part in parts)

    def share_memory_with(self, value: Any) -> bool:
        """Return whether an array or a tensor is in the memory of what others save."""
        start, end = _memory(value)
        return any(low < end and start < high for low, high in self._memories)

    def check(self, value: Any, name: str) -> None:
        """Raise an error if a value cannot be saved, or would come back as something else."""
        if isinstance(value, FUNCTIONS):
            function_state(value, name, self._save)
            raise CheckpointError(f"{name} is a function that refers to what can change")
        for part in arrays_and_tensors(value, name):
            if isinstance(part, th.Tensor) and part.requires_grad:
                raise CheckpointError(f"{name} is or has a tensor that requires a gradient")
            if self.share_memory_with(part):
                raise CheckpointError(f"{name} has a part of the model beside parts of its own")

    def _save(self, value: Any) -> bool:
        """Return whether others save a value that is no container, or it has no state."""
        if id(value) in self._ids or isinstance(value, _WITHOUT_STATE):
            return True
        return _has_memory(value) and self.share_memory_with(value)

    def _is_function(self, value: Any) -> bool:
        """Return whether a value is a function that refers to nothing that changes."""
        if not isinstance(value, FUNCTIONS):
            return False
        try:
            return not function_state(value, "", self._save)["has"]
        except CheckpointError:
            return False


def _of_package(owner: Any) -> dict[str, Any]:
    """Return the attributes of an object that no subclass of the user's has added."""
    found = attributes(owner)
    # Objects that an earlier version pickled have no such note, and neither have others.
    names = getattr(owner, "_names_of_package", found)
    return {name: value for name, value in found.items() if name in names}


def _parts(value: Any) -> Iterator[Any]:
    """Iterate over what is in containers in a value. Empty containers count, each one once."""
    visited = set()
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if not isinstance(one, (list, tuple, dict, deque)) or not one:
            yield one
        elif id(one) not in visited:
            visited.add(id(one))
            waiting += one.values() if isinstance(one, dict) else one


def _has_memory(value: Any) -> bool:
    """Return whether a value is an array or a dense tensor."""
    is_dense = isinstance(value, th.Tensor) and value.layout is th.strided
    return is_dense or isinstance(value, np.ndarray)


def _memory(value: Any) -> tuple[int, int]:
    """Return the first address of the memory that an array or a tensor is in, and its end."""
    if isinstance(value, th.Tensor):
        storage = value.untyped_storage()
        return storage.data_ptr(), storage.data_ptr() + storage.nbytes()
    while isinstance(value.base, np.ndarray):
        value = value.base
    start = value.__array_interface__["data"][0]
    return start, start + value.nbytes


def _moved(saved: Any, own: Any, device: th.device | str, moved: dict[int, tuple[Any, Any]]) -> Any:
    """
    Return a saved value with its tensors moved to where they belong.

    :param saved: the value
    :param own: what the owner has in its place
    :param device: where tensors belong, unless ``own`` is one
    :param moved: saved values, and what was returned for them, by the ids of the former
    """
    if id(saved) in moved:
        return moved[id(saved)][1]
    # A container may have itself as a part.
    result = saved
    moved[id(saved)] = (saved, result)
    if isinstance(saved, th.Tensor):
        result = saved.to(own.device if isinstance(own, th.Tensor) else device)
    elif isinstance(saved, dict):
        by_key = own if isinstance(own, dict) else {}
        for key, value in saved.items():
            saved[key] = _moved(value, by_key.get(key), device, moved)
    elif isinstance(saved, (list, tuple, deque)):
        in_order = own if isinstance(own, (list, tuple, deque)) else ()
        places = itertools.chain(in_order, itertools.repeat(None))
        parts = [_moved(*pair, device, moved) for pair in zip(saved, places, strict=False)]
        if isinstance(saved, tuple):
            result = tuple(parts)
        else:
            saved.clear()
            saved.extend(parts)
    moved[id(saved)] = (saved, result)
    return result
