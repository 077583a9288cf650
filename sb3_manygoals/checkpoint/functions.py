"""
What functions remember.

A closure remembers its variables, a ``functools.partial`` its arguments, a bound method its object.
:func:`function_state` collects what of that can change. :func:`set_function_state` puts it into a
function that was made in the same way.

- Plain data is saved.
- Objects with ``get_checkpoint_state()`` are asked for their state.
- What never changes, or is saved elsewhere, is left alone.
- Anything else is refused with its name.

The state of a function is a dict: for each part that can change, such as "variable counts" or
"args 0", the state of the value there. The state of a value has one key, which says what the value
is: "plain" data, an object with its "own" methods, a "function", or a container of "items".
"""

from __future__ import annotations

import copyreg
import dataclasses
import dis
import functools
import logging
import pathlib
import re
import types
from collections.abc import Callable
from enum import Enum
from typing import Any

import cloudpickle
import numpy as np
import torch as th

from sb3_manygoals.checkpoint import packages
from sb3_manygoals.checkpoint.tree import (
    CheckpointError,
    attributes,
    check_tree,
    is_immutable,
    refusal,
)

IsSavedElsewhere = Callable[[Any], bool]
"""Return whether an object is saved by itself, and restored in place."""

FUNCTIONS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    functools.partial,
    functools._lru_cache_wrapper,
)
"""Types of functions."""
CONSTANTS = (
    type,
    types.ModuleType,
    np.ufunc,
    # Most functions of NumPy are of this type, which has no public name.
    type(np.mean),
    np.dtype,
    th.dtype,
    th.device,
    logging.Logger,
    pathlib.PurePath,
    re.Pattern,
    range,
    slice,
    *packages.CONSTANTS,
)
"""Types of objects that do not change."""

_CONTAINERS = (list, tuple, dict)

_COPIED = {*functools.WRAPPER_ASSIGNMENTS, "__annotations__", "__wrapped__", "cache_parameters"}
"""Attributes that ``functools`` copies from one function to what wraps it, or sets on that."""


def function_state(
    function: Any, name: str, is_saved_elsewhere: IsSavedElsewhere
) -> dict[str, Any]:
    """
    Collect what a function remembers and what can change.

    :param function: an object of one of the types in ``FUNCTIONS``
    :param name: what to call the function in errors
    :param is_saved_elsewhere: tells of an object whether it is saved by itself
    :return: a plain tree
    :raises CheckpointError: if something in it can change and cannot be saved
    """
    collector = _Collector(is_saved_elsewhere)
    return {"is": identity_of(function), "has": collector.state_of_function(function, name)}


def set_function_state(function: Any, state: dict[str, Any], name: str) -> None:
    """
    Put into a function what another one of its kind remembered.

    :param function: made in the same way as the function that the state is of
    :param state: from :func:`function_state`; its parts become those of the function
    :param name: what to call the function in errors
    :raises CheckpointError: if it is another function
    """
    found = identity_of(function)
    if state["is"] != found:
        raise CheckpointError(
            f"{name} was built otherwise, or has changed since: the checkpoint has "
            f"{state['is'][0]}, this is {found[0]}"
        )
    _restore_function(function, state["has"], CheckpointError(f"{name} was built otherwise"))


def has_checkpoint_methods(thing: Any) -> bool:
    """
    Return whether the class of an object gives it a checkpoint state.

    The class is asked, because wrappers forward the attributes that they do not have themselves.

    :param thing: any object
    :return: True if its class has ``get_checkpoint_state``
    """
    return hasattr(type(thing), "get_checkpoint_state")


def never_changes(value: Any) -> bool:
    """
    Return whether a value is the same for ever.

    :param value: any value
    :return: True for an immutable one, and for an object without any state
    """
    # The random numbers of a space do change, but only environments draw them.
    if is_immutable(value) or isinstance(value, (Enum, *CONSTANTS)) or packages.is_space(value):
        return True
    if isinstance(value, (tuple, frozenset)):
        return all(never_changes(one) for one in value)
    if "__dataclass_params__" in vars(type(value)):
        parameters: Any = vars(type(value))["__dataclass_params__"]
        return parameters.frozen and all(never_changes(one) for one in attributes(value).values())
    return _has_no_state(value)


def _has_no_state(value: Any) -> bool:
    """Return whether pickle, by its rules for ordinary objects, would write only the class."""
    if attributes(value):
        return False
    nothing = (copyreg.__newobj__, (type(value),), None, None, None)  # type: ignore[attr-defined]
    try:
        return bool(object.__reduce_ex__(value, 2) == nothing)
    except Exception:
        # An object that cannot be pickled may have a state that nobody can see.
        return False


def identity_of(function: Any, variables: bool = False) -> list[Any]:
    """
    Return which function it is: its name, and what tells lambdas and partials apart. Of the
    arguments of a partial, those that may change count by their type only. The attributes of an
    object do not count.

    :param function: a function of any kind, or an object that can be called
    :param variables: whether the variables of a closure count, as the arguments of a partial do.
        False where a state of the function is saved beside its identity
    :return: plain data that equals that of the same function in another process
    """
    if isinstance(function, UnsavedFunction):
        return function.identity
    if isinstance(function, functools.partial):
        named = sorted(function.keywords.items())
        return [
            f"a partial of {identity_of(function.func)[0]}",
            identity_of(function.func, variables),
            [_identity_of_argument(value) for value in function.args],
            [[name, _identity_of_argument(value)] for name, value in named],
        ]
    code = getattr(function, "__code__", None)
    if code is None and hasattr(function, "__wrapped__"):
        # An object that stands for another function.
        return [type(function).__qualname__, identity_of(function.__wrapped__, variables)]
    if code is None and not hasattr(function, "__name__"):
        return [f"an object of {_name_of(type(function))}"]
    if code is None:
        return [_name_of(function)]
    name = _name_of(function)
    constants = [one for one in code.co_consts if is_immutable(one)]
    found = [name, list(code.co_freevars), list(code.co_names), constants]
    if variables and getattr(function, "__closure__", None):
        found.append(_identity_of_variables(function))
    return found


def _identity_of_variables(function: Any) -> list[Any]:
    """Return what tells the variables of a closure from those of others, as plain data."""
    found: list[Any] = []
    for name, cell in zip(function.__code__.co_freevars, function.__closure__, strict=True):
        try:
            value = cell.cell_contents
        except ValueError:
            # Nothing was assigned to the variable yet.
            continue
        if not _assigns(function.__code__, name):
            found.append([name, _identity_of_argument(value)])
    return found


def _name_of(function: Any) -> str:
    """Return the module and the name of a function or a class."""
    name = getattr(function, "__qualname__", None) or function.__name__
    return f"{getattr(function, '__module__', None) or ''}.{name}"


def _identity_of_argument(value: Any) -> list[Any]:
    """Return what tells an argument of a partial from others, as plain data."""
    if is_immutable(value):
        return ["is", value]
    if callable(value):
        return ["calls", identity_of(value)]
    return ["is of", _name_of(type(value))]


class UnsavedFunction:
    """
    Stands for a function that could not be saved with its model.

    :param function: the function
    :param argument: the name of the argument that it was, for the message
    """

    def __init__(self, function: Any, argument: str) -> None:
        self.argument = argument
        self.identity = identity_of(function, variables=True)
        """What :func:`identity_of` returns for the function."""

    def __call__(self, *args: Any) -> Any:
        """
        Raise an error.

        :param args: not used
        :raises ValueError: always
        """
        raise ValueError(
            f"{self.argument} was not saved with the model, because {self.identity[0]} cannot be "
            "pickled: load the model with an environment whose goal wrapper has this "
            f"{self.argument}"
        )


def can_be_pickled(function: Any) -> bool:
    """
    Return whether a function can be saved, as SB3 does it: lambdas and closures can.

    :param function: any object
    """
    try:
        cloudpickle.dumps(function)
    except Exception:
        # What is in a closure may raise anything.
        return False
    return True


@dataclasses.dataclass
class _Assigned:
    """The value of a variable that the function assigns to, so that even a number is a state."""

    value: Any


class _Collector:
    """Visits what a function refers to, each function once."""

    def __init__(self, is_saved_elsewhere: IsSavedElsewhere) -> None:
        self._is_saved_elsewhere = is_saved_elsewhere
        self._visited: set[int] = set()

    def state_of_function(self, function: Any, name: str) -> dict[str, Any]:
        """Return the states of the parts of a function, without those that have none."""
        if id(function) in self._visited:
            # The function refers to itself.
            return {}
        self._visited.add(id(function))
        states = {
            part: self._state_of_value(value, part_name)
            for part, (value, part_name) in _parts(function, name).items()
        }
        if "plain" in states.get("__self__", {}):
            owner = function.__self__
            raise CheckpointError(
                f"{name} is a method of plain data, a {type(owner).__qualname__}, of which a "
                "checkpoint makes another one: keep that as an attribute, and call its method "
                "where it is needed"
            )
        return {part: state for part, state in states.items() if state}

    def _state_of_value(self, value: Any, name: str) -> dict[str, Any]:
        """Return the state of what a function refers to; empty if it has none."""
        if isinstance(value, _Assigned):
            value = value.value
            if is_immutable(value):
                return {"plain": value}
            if isinstance(value, Enum):
                raise refusal(name, value)
        if never_changes(value) or self._is_saved_elsewhere(value):
            return {}
        if isinstance(value, FUNCTIONS):
            state = self.state_of_function(value, name)
            return {"function": state} if state else {}
        if has_checkpoint_methods(value):
            state = value.get_checkpoint_state()
            check_tree(state, f"{name}.get_checkpoint_state()")
            return {"own": state}
        try:
            check_tree(value, name)
        except CheckpointError:
            if not isinstance(value, _CONTAINERS):
                raise
            return self._state_of_container(value, name)
        return {"plain": value}

    def _state_of_container(self, value: Any, name: str) -> dict[str, Any]:
        """Return the states of functions and objects in a container, which itself stays."""
        items = _items(value)
        states = {key: self._state_of_value(one, f"{name}[{key!r}]") for key, one in items.items()}
        for key, state in states.items():
            if "plain" in state:
                raise refusal(f"{name}[{key!r}], beside functions or objects,", items[key])
        states = {key: state for key, state in states.items() if state}
        return {"items": states} if states else {}


def _parts(function: Any, name: str) -> dict[str, tuple[Any, str]]:
    """Return by its key each part of a function of any type, and what to call it in errors."""
    if isinstance(function, types.FunctionType):
        return _parts_of_python_function(function, name)
    if isinstance(function, functools.partial):
        return _parts_of_partial(function, name)
    if isinstance(function, functools._lru_cache_wrapper):
        wrapped = {"__wrapped__": (function.__wrapped__, f"{name}.__wrapped__")}
        return wrapped | _attributes_of_wrapper(function, name)
    parts = {"__self__": (function.__self__, f"{name}.__self__")}
    if isinstance(function, types.MethodType) and not _is_of_class(function):
        parts["__func__"] = (function.__func__, f"{name}.__func__")
    return parts


def _parts_of_python_function(
    function: types.FunctionType, name: str
) -> dict[str, tuple[Any, str]]:
    """Return variables of the closure, defaults and attributes, as :func:`_parts` does."""
    parts: dict[str, tuple[Any, str]] = {}
    for variable, cell in _cells(function).items():
        try:
            value = cell.cell_contents
        except ValueError:
            # Nothing was assigned to the variable yet.
            continue
        if _assigns(function.__code__, variable):
            value = _Assigned(value)
        parts[f"variable {variable}"] = (value, f"the variable {variable!r} of {name}")
    for index, value in enumerate(function.__defaults__ or ()):
        parts[f"defaults {index}"] = (value, f"{name}.__defaults__[{index}]")
    for key, value in (function.__kwdefaults__ or {}).items():
        parts[f"kwdefaults {key}"] = (value, f"{name}.__kwdefaults__[{key!r}]")
    for key, value in vars(function).items():
        parts[f"attribute {key}"] = (_Assigned(value), f"{name}.{key}")
    return parts


def _attributes_of_wrapper(function: Any, name: str) -> dict[str, tuple[Any, str]]:
    """Return attributes that were set on a partial or a cached function, as :func:`_parts` does."""
    return {
        f"attribute {key}": (_Assigned(value), f"{name}.{key}")
        for key, value in vars(function).items()
        if key not in _COPIED
    }


def _parts_of_partial(partial: functools.partial[Any], name: str) -> dict[str, tuple[Any, str]]:
    """Return the function and the arguments of a partial, as :func:`_parts` does."""
    parts: dict[str, tuple[Any, str]] = {"func": (partial.func, f"{name}.func")}
    for index, value in enumerate(partial.args):
        parts[f"args {index}"] = (value, f"{name}.args[{index}]")
    for key, value in partial.keywords.items():
        parts[f"keywords {key}"] = (value, f"{name}.keywords[{key!r}]")
    return parts | _attributes_of_wrapper(partial, name)


def _restore_function(function: Any, state: dict[str, Any], mismatch: CheckpointError) -> None:
    """Restore the parts of a function of any type. ``mismatch`` is raised if one is missing."""
    if isinstance(function, types.FunctionType):
        _restore_python_function(function, state, mismatch)
    elif isinstance(function, functools.partial):
        _restore_partial(function, state, mismatch)
    elif isinstance(function, FUNCTIONS):
        for part, part_state in state.items():
            kind, _, key = part.partition(" ")
            if kind == "attribute":
                present = vars(function).get(key)
                vars(function)[key] = _restored_value(present, part_state, mismatch)
            else:
                _restored_value(getattr(function, part, None), part_state, mismatch)
    elif state:
        raise mismatch


def _restore_python_function(
    function: types.FunctionType, state: dict[str, Any], mismatch: CheckpointError
) -> None:
    """Restore variables of the closure, defaults and attributes."""
    cells = _cells(function)
    defaults = list(function.__defaults__ or ())
    keyword_defaults = function.__kwdefaults__ or {}
    for part, part_state in state.items():
        kind, _, key = part.partition(" ")
        if kind == "variable" and key in cells:
            present = cells[key].cell_contents
            cells[key].cell_contents = _restored_value(present, part_state, mismatch)
        elif kind == "defaults" and int(key) < len(defaults):
            defaults[int(key)] = _restored_value(defaults[int(key)], part_state, mismatch)
            function.__defaults__ = tuple(defaults)
        elif kind == "kwdefaults" and key in keyword_defaults:
            present = keyword_defaults[key]
            keyword_defaults[key] = _restored_value(present, part_state, mismatch)
        elif kind == "attribute":
            present = vars(function).get(key)
            vars(function)[key] = _restored_value(present, part_state, mismatch)
        else:
            raise mismatch


def _restore_partial(
    partial: functools.partial[Any], state: dict[str, Any], mismatch: CheckpointError
) -> None:
    """Restore the function of a partial, and give it new arguments."""
    args = list(partial.args)
    keywords = dict(partial.keywords)
    own = dict(vars(partial))
    for part, part_state in state.items():
        kind, _, key = part.partition(" ")
        if kind == "func":
            _restored_value(partial.func, part_state, mismatch)
        elif kind == "args" and int(key) < len(args):
            args[int(key)] = _restored_value(args[int(key)], part_state, mismatch)
        elif kind == "keywords" and key in keywords:
            keywords[key] = _restored_value(keywords[key], part_state, mismatch)
        elif kind == "attribute":
            own[key] = _restored_value(own.get(key), part_state, mismatch)
        else:
            raise mismatch
    new_state = (partial.func, tuple(args), keywords, own)
    partial.__setstate__(new_state)  # type: ignore[attr-defined]


def _restored_value(present: Any, state: dict[str, Any], mismatch: CheckpointError) -> Any:
    """Return what replaces a value: other plain data, or the same object, restored."""
    if "plain" in state:
        return state["plain"]
    if "own" in state:
        _restore_object(present, state["own"], mismatch)
    elif "function" in state:
        _restore_function(present, state["function"], mismatch)
    else:
        items = _items(present) if isinstance(present, _CONTAINERS) else {}
        for key, item_state in state["items"].items():
            if key not in items:
                raise mismatch
            _restored_value(items[key], item_state, mismatch)
    return present


def _restore_object(present: Any, state: Any, mismatch: CheckpointError) -> None:
    """Restore an object by its own method."""
    if not has_checkpoint_methods(present):
        raise mismatch
    try:
        present.set_checkpoint_state(state)
    except (TypeError, ValueError, KeyError) as error:
        name = type(present).__name__
        raise CheckpointError(f"the state does not fit {name}: {error}") from error


def _items(container: Any) -> dict[Any, Any]:
    return dict(container) if isinstance(container, dict) else dict(enumerate(container))


def _cells(function: types.FunctionType) -> dict[str, types.CellType]:
    """Return the cells of a closure by the names of their variables."""
    return dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))


def _assigns(code: types.CodeType, variable: str) -> bool:
    """
    Return whether code assigns to a variable of its closure, as ``nonlocal`` allows.

    The code of functions within it counts too.
    """
    if variable not in code.co_freevars:
        return False
    for step in dis.get_instructions(code):
        if step.opname in ("STORE_DEREF", "DELETE_DEREF") and step.argval == variable:
            return True
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    return any(_assigns(one, variable) for one in inner)


def _is_of_class(method: types.MethodType) -> bool:
    """Return whether a bound method is one of its object's class, and not bound by hand."""
    owner = method.__self__
    classes = owner.__mro__ if isinstance(owner, type) else type(owner).__mro__
    name = getattr(method.__func__, "__name__", "")
    for kind in classes:
        member = vars(kind).get(name)
        if member is not None and getattr(member, "__func__", member) is method.__func__:
            return True
    return False
