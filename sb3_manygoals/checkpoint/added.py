"""
State that a subclass of the user's adds to a class of this package.

Checkpoints have the attributes that a subclass adds, if they are trees that come back as they were
(:mod:`sb3_manygoals.checkpoint.tree`). What the constructor has made, and makes again, is left out
in silence, if it has no state: parts of the model, classes, and functions that refer to nothing
that changes. A warning names all others.
"""

from __future__ import annotations

import itertools
import warnings
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.buffers import BaseBuffer

from sb3_manygoals.checkpoint.arrays import address_range
from sb3_manygoals.checkpoint.functions import (
    FUNCTIONS,
    function_state,
    has_checkpoint_methods,
    never_changes,
)
from sb3_manygoals.checkpoint.tree import (
    CheckpointError,
    arrays_and_tensors,
    attributes,
    is_immutable,
    set_attributes,
)

_PACKAGE = __name__.partition(".")[0]


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
    own_notes = {"_names_of_package", "_made_without_state"}
    owner._names_of_package = frozenset({*attributes(owner), *own_notes}) - early


def note_construction(owner: Any, elsewhere: Collection[Any]) -> None:
    """
    Note what the constructor of a subclass has made and need not be saved. What replaces it later
    is something else. Only the first call has an effect.

    :param owner: an object that has just been constructed
    :param elsewhere: objects that others save and restore
    """
    if hasattr(owner, "_made_without_state"):
        return
    others = _Others([owner, *elsewhere])
    owner._made_without_state = {
        name: _structure(value)
        for name, value in _added(owner).items()
        if others.save_all_of(value)
    }


def added_attributes(owner: Any, elsewhere: Collection[Any] = ()) -> dict[str, Any]:
    """
    Return the attributes that a subclass of the user's has added, unless it saves its state by a
    ``get_checkpoint_state`` of its own. A warning names those that are neither returned nor made by
    the constructor as they are. Tensors that are trained are named, too: an optimizer may have
    them.

    :param owner: an object of which :func:`note_attributes` and :func:`note_construction` were told
    :param elsewhere: objects that others save and restore
    :return: the attributes by name. The values are the object's own
    """
    if _saves_itself(owner):
        return {}
    kind = type(owner).__name__
    others = _Others([owner, *elsewhere])
    made: dict[str, Any] = getattr(owner, "_made_without_state", {})
    found: dict[str, Any] = {}
    for name, value in _added(owner).items():
        is_as_made = name in made and _are_the_same(made[name], _structure(value))
        # An object may have got a state since.
        if is_as_made and others.save_all_of(value):
            continue
        try:
            others.check(value, f"the attribute {name} of {kind}")
            _check_memory(value, f"the attribute {name} of {kind}", found)
        except CheckpointError as error:
            warnings.warn(
                f"left out of checkpoints: {error}. If it changes in training, write the methods "
                f"get_checkpoint_state and set_checkpoint_state of {kind}",
                stacklevel=2,
            )
            continue
        found[name] = value
    return found


def restore_added(saved: Iterable[tuple[Any, dict[str, Any]]], device: th.device | str) -> None:
    """
    Restore what :func:`added_attributes` returned.

    :param saved: pairs of an object of the same class and its attributes, with tensors on the CPU.
        They belong to the object from now on
    :param device: where tensors go, unless the object has a tensor in their place, on its device
    """
    moving = _Moving(device)
    for owner, values in saved:
        own = attributes(owner)
        moved = {name: moving.moved(value, own.get(name)) for name, value in values.items()}
        set_attributes(owner, moved)


class _Others:
    """
    Tells what others save.

    :param objects: the objects that others save
    """

    def __init__(self, objects: Iterable[Any]) -> None:
        self._ids: set[int] = set()
        # Where arrays and tensors are that others restore in place, and those that they replace.
        self._kept: list[tuple[int, int]] = []
        self._replaced: list[tuple[int, int]] = []
        for one in objects:
            parts = [one] if isinstance(one, th.Tensor) else _restored_with(one)
            memories = self._kept if isinstance(one, (th.Tensor, BaseBuffer)) else self._replaced
            memories += [_memory(part) for part in parts if _has_memory(part)]
            self._ids |= {id(one), *(id(part) for part in parts if has_checkpoint_methods(part))}

    def save_all_of(self, value: Any) -> bool:
        """Return whether there is nothing in a value but what others save, or has no state."""
        parts = _parts(value)
        if all(is_immutable(part) for part in parts):
            # It is saved, unless it is something like a named tuple, which checkpoints do not have.
            return never_changes(value) and not is_immutable(value)
        return all(self._save(part) or self._is_function(part) for part in parts)

    def check(self, value: Any, name: str) -> None:
        """Raise an error if a value cannot be saved, or would come back as something else."""
        if isinstance(value, FUNCTIONS):
            changes = function_state(value, name, self._save)["has"]
            reason = "refers to what can change" if changes else "was set after the constructor"
            raise CheckpointError(f"{name} is a function that {reason}")
        for part in arrays_and_tensors(value, name):
            if isinstance(part, th.Tensor) and part.requires_grad:
                raise CheckpointError(f"{name} is or has a tensor that requires a gradient")
            if _overlap(_memory(part), [*self._kept, *self._replaced]):
                raise CheckpointError(f"{name} shares memory with a part of the model")

    def _save(self, value: Any) -> bool:
        """Return whether others save a value that is no container, or it has no state."""
        if id(value) in self._ids or never_changes(value):
            return True
        return _has_memory(value) and _overlap(_memory(value), self._kept)

    def _is_function(self, value: Any) -> bool:
        """Return whether a value is a function that refers to nothing that changes."""
        if not isinstance(value, FUNCTIONS):
            return False
        try:
            return not function_state(value, "", self._save)["has"]
        except CheckpointError:
            return False


class _Moving:
    """
    Moves tensors in saved values to where they belong. Those that shared memory share it again.

    :param device: where they belong, unless there is a tensor in their place
    """

    def __init__(self, device: th.device | str) -> None:
        self._device = device
        # Saved objects, so that their ids stay theirs, and what was made of them, by the ids.
        self._done: dict[int, tuple[Any, Any]] = {}
        self._memories: dict[tuple[int, th.device], th.Tensor] = {}

    def moved(self, saved: Any, own: Any) -> Any:
        """
        Return a saved value with its tensors moved.

        :param saved: the value
        :param own: what the object has in its place
        """
        if id(saved) in self._done:
            return self._done[id(saved)][1]
        # A container may have itself as a part.
        result = saved
        self._done[id(saved)] = (saved, result)
        if isinstance(saved, th.Tensor):
            result = self._moved_tensor(
                saved, own.device if isinstance(own, th.Tensor) else th.device(self._device)
            )
        elif isinstance(saved, dict):
            by_key = own if isinstance(own, dict) else {}
            for key, value in saved.items():
                saved[key] = self.moved(value, by_key.get(key))
        elif isinstance(saved, (list, tuple, deque)):
            in_order = own if isinstance(own, (list, tuple, deque)) else ()
            places = itertools.chain(in_order, itertools.repeat(None))
            parts = [self.moved(*pair) for pair in zip(saved, places, strict=False)]
            if isinstance(saved, tuple):
                result = tuple(parts)
            else:
                saved.clear()
                saved.extend(parts)
        self._done[id(saved)] = (saved, result)
        return result

    def _moved_tensor(self, saved: th.Tensor, device: th.device) -> th.Tensor:
        """Return a tensor on a device, in the memory of those that it shared memory with."""
        if saved.device == device:
            return saved
        storage = saved.untyped_storage()
        key = (storage.data_ptr(), device)
        if key not in self._memories:
            whole = th.empty(0, dtype=saved.dtype).set_(storage)
            self._memories[key] = whole.to(device)
        return self._memories[key].as_strided(saved.shape, saved.stride(), saved.storage_offset())


def _saves_itself(owner: Any) -> bool:
    """Return whether a class of the user's says what the state of an object is."""
    module = type(owner).get_checkpoint_state.__module__
    return bool(module.partition(".")[0] != _PACKAGE)


def _added(owner: Any) -> dict[str, Any]:
    """Return the attributes that subclasses of the user's have added to an object."""
    found = attributes(owner)
    # Objects that an earlier version pickled have no such note, and neither have others.
    names = getattr(owner, "_names_of_package", found)
    return {name: value for name, value in found.items() if name not in names}


def _restored_with(owner: Any) -> list[Any]:
    """Return the values of those attributes of an object that are restored with it."""
    found = attributes(owner)
    if has_checkpoint_methods(owner) and _saves_itself(owner):
        return list(found.values())
    added = _added(owner)
    return [value for name, value in found.items() if name not in added]


@dataclass(frozen=True)
class _Container:
    """A container that is not empty, as an entry of :func:`_structure`."""

    kind: type
    length: int
    maxlen: int | None
    """The most elements of a deque. None of another container."""
    number: int
    """How many other containers were met before this one was met first."""


def _structure(value: Any) -> list[Any]:
    """
    Return all objects in a value in an order that tells how they are nested.

    Keys and values follow their container, unless it was met before. Empty containers are objects.
    """
    numbers: dict[int, int] = {}
    found: list[Any] = []
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if not isinstance(one, (list, tuple, dict, deque)) or not one:
            found.append(one)
            continue
        if id(one) not in numbers:
            numbers[id(one)] = len(numbers)
            waiting += [*one.keys(), *one.values()] if isinstance(one, dict) else one
        maxlen = one.maxlen if isinstance(one, deque) else None
        found.append(_Container(type(one), len(one), maxlen, numbers[id(one)]))
    return found


def _parts(value: Any) -> list[Any]:
    """Return the objects in a value that are no containers, or empty ones."""
    return [one for one in _structure(value) if not isinstance(one, _Container)]


def _are_the_same(structure: list[Any], other: list[Any]) -> bool:
    """Return whether two structures have the same objects in the same places."""
    return len(structure) == len(other) and all(
        mine == its if isinstance(mine, _Container) else mine is its
        for mine, its in zip(structure, other, strict=True)
    )


def _check_memory(value: Any, name: str, found: dict[str, Any]) -> None:
    """Raise an error if an array and a tensor share memory, or tensors of two dtypes do."""
    memories = [
        (*_memory(part), str(part.dtype) if isinstance(part, th.Tensor) else "array")
        for part in arrays_and_tensors([value, *found.values()])
    ]
    last_end = 0
    last_kind = ""
    for start, end, kind in sorted(memories):
        if start < last_end and kind != last_kind:
            raise CheckpointError(f"{name} shares memory with an array or tensor of another kind")
        last_end = max(end, last_end)
        last_kind = kind


def _has_memory(value: Any) -> bool:
    """Return whether a value is an array or a dense tensor."""
    is_dense = isinstance(value, th.Tensor) and value.layout is th.strided
    return is_dense or isinstance(value, np.ndarray)


def _memory(value: Any) -> tuple[int, int]:
    """Return the first address of the elements of an array or a tensor, and the last one plus 1."""
    if isinstance(value, np.ndarray):
        return address_range(value) if value.size else (0, 0)
    strides = value.stride()
    reach = sum((length - 1) * stride for length, stride in zip(value.shape, strides, strict=True))
    start = value.data_ptr()
    return (start, start + (reach + 1) * value.element_size()) if value.numel() else (0, 0)


def _overlap(memory: tuple[int, int], others: Iterable[tuple[int, int]]) -> bool:
    """Return whether a range of addresses overlaps with one of some others."""
    start, end = memory
    return any(low < end and start < high for low, high in others)
