"""
What functions remember: the variables of closures, the arguments of ``functools.partial``, the object of a bound method.

:func:`function_state` collects what of that can change, and :func:`set_function_state` puts it into a function that was made
in the same way. What is plain data is saved. Objects with ``get_checkpoint_state()`` are asked for theirs. What never changes,
or is saved elsewhere, is left alone. Anything else is refused with its name.
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
from typing import Any

import numpy as np
import torch as th
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Space

from sb3_manygoals.checkpoint.tree import CheckpointError, attributes, check_tree, is_key, refusal

Elsewhere = Callable[[Any], bool]
"""Whether an object is saved by itself, and restored in place."""

FUNCTIONS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    functools.partial,
    functools._lru_cache_wrapper,
)
CONSTANTS = (
    type,
    types.ModuleType,
    np.ufunc,
    type(np.mean),  # most functions of NumPy
    np.dtype,
    th.dtype,
    th.device,
    logging.Logger,
    EnvSpec,
    Space,  # but for its random numbers, which only environments draw
    pathlib.PurePath,
    re.Pattern,
    range,
    slice,
)
"""Objects that do not change."""

_CONTAINERS = (list, tuple, dict)


def function_state(function: Any, name: str, elsewhere: Elsewhere) -> dict[str, Any]:
    """
    Collect what a function remembers and what can change.

    :param function: one of ``FUNCTIONS``
    :param name: of the function, for errors
    :param elsewhere: tells which objects are saved by themselves
    :return: a plain tree
    :raises CheckpointError: if something in it can change and cannot be saved
    """
    return {"is": _identity(function), "has": _Collector(elsewhere).function(function, name)}


def set_function_state(function: Any, state: dict[str, Any], name: str) -> None:
    """
    Put into a function what another one of its kind remembered.

    :param function: made as the one that the state is of
    :param state: of :func:`function_state`; its parts become those of the function
    :param name: of the function, for errors
    :raises CheckpointError: if it is another function
    """
    if state["is"] != (found := _identity(function)):
        raise CheckpointError(
            f"{name} was built otherwise, or has changed since: the checkpoint has "
            f"{state['is'][0]}, this is {found[0]}"
        )
    _set_in(function, state["has"], CheckpointError(f"{name} was built otherwise"))


def _identity(function: Any) -> list[Any]:
    """Which function it is: its name, and what tells lambdas apart."""
    if isinstance(function, functools.partial):
        return [f"a partial of {_identity(function.func)[0]}", _identity(function.func)]
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"
    code = getattr(function, "__code__", None)
    if code is None:
        return [name]
    constants = [one for one in code.co_consts if is_key(one)]
    return [name, list(code.co_freevars), list(code.co_names), constants]


def _set_in(function: Any, state: dict[str, Any], unknown: CheckpointError) -> None:
    """Put a state into a function of any kind."""
    if isinstance(function, types.FunctionType):
        _set_in_function(function, state, unknown)
    elif isinstance(function, functools.partial):
        _set_in_partial(function, state, unknown)
    elif isinstance(function, FUNCTIONS):
        for part, inner in state.items():
            _restored(getattr(function, part, None), inner, unknown)
    elif state:
        raise unknown


def never_changes(value: Any) -> bool:
    """:return: whether a value is the same for ever: an immutable one, or an object without any state"""
    if is_key(value) or isinstance(value, CONSTANTS):
        return True
    if isinstance(value, (tuple, frozenset)):
        return all(never_changes(one) for one in value)
    if "__dataclass_params__" in vars(type(value)):
        parameters: Any = vars(type(value))["__dataclass_params__"]
        return parameters.frozen and all(never_changes(one) for one in attributes(value).values())
    return _has_no_state(value)


def _has_no_state(value: Any) -> bool:
    """Whether pickle, asked by the rules for ordinary objects, would write nothing but the class."""
    if attributes(value):
        return False
    nothing = (copyreg.__newobj__, (type(value),), None, None, None)  # type: ignore[attr-defined]
    try:
        return bool(object.__reduce_ex__(value, 2) == nothing)
    except Exception:  # it cannot be pickled, so that nobody knows
        return False


class _Collector:
    """Visits what a function refers to, each function once."""

    def __init__(self, elsewhere: Elsewhere) -> None:
        self._elsewhere = elsewhere
        self._visited: set[int] = set()

    def function(self, function: Any, name: str) -> dict[str, Any]:
        if id(function) in self._visited:  # it refers to itself
            return {}
        self._visited.add(id(function))
        parts: dict[str, tuple[Any, str]] = {}
        if isinstance(function, types.FunctionType):
            parts = _parts_of_function(function, name)
        elif isinstance(function, functools.partial):
            parts["func"] = function.func, f"{name}.func"
            for index, value in enumerate(function.args):
                parts[f"args {index}"] = value, f"{name}.args[{index}]"
            for key, value in function.keywords.items():
                parts[f"keywords {key}"] = value, f"{name}.keywords[{key!r}]"
        elif isinstance(function, functools._lru_cache_wrapper):
            parts["__wrapped__"] = function.__wrapped__, f"{name}.__wrapped__"
        elif isinstance(function, types.MethodType):
            parts["__self__"] = function.__self__, f"{name}.__self__"
            if not _is_of_class(function):
                parts["__func__"] = function.__func__, f"{name}.__func__"
        else:
            parts["__self__"] = function.__self__, f"{name}.__self__"
        states = {part: self._reference(value, named) for part, (value, named) in parts.items()}
        if "plain" in states.get("__self__", {}):
            owner = function.__self__
            raise CheckpointError(
                f"{name} is a method of plain data, a {type(owner).__qualname__}, of which a checkpoint "
                "makes another one: keep that as an attribute, and call its method where it is needed"
            )
        return {part: state for part, state in states.items() if state}

    def _reference(self, value: Any, name: str) -> dict[str, Any]:
        """The state of what a function refers to, empty if it has none."""
        if isinstance(value, _Assigned):
            value = value.value
            if is_key(value):
                return {"plain": value}
        if self._is_fixed(value):
            return {}
        if isinstance(value, FUNCTIONS):
            state = self.function(value, name)
            return {"function": state} if state else {}
        if has_methods(value):
            state = value.get_checkpoint_state()
            check_tree(state, f"{name}.get_checkpoint_state()")
            return {"own": state}
        try:
            check_tree(value, name)
        except CheckpointError:
            if not isinstance(value, _CONTAINERS):
                raise
            return self._container(value, name)
        return {"plain": value}

    def _container(self, value: Any, name: str) -> dict[str, Any]:
        """The states of functions and objects in a container, which itself is left as it is."""
        states = {
            key: self._reference(one, f"{name}[{key!r}]") for key, one in _items(value).items()
        }
        for key, state in states.items():
            if "plain" in state:
                raise refusal(f"{name}[{key!r}], beside functions or objects,", _items(value)[key])
        states = {key: state for key, state in states.items() if state}
        return {"items": states} if states else {}

    def _is_fixed(self, value: Any) -> bool:
        """Whether nothing of it needs to be saved with the function."""
        return never_changes(value) or self._elsewhere(value)


@dataclasses.dataclass
class _Assigned:
    """The value of a variable that the function assigns to, so that even a number is a state."""

    value: Any


def _parts_of_function(function: types.FunctionType, name: str) -> dict[str, tuple[Any, str]]:
    """By its place, each value that a function of Python carries with it, and how to call it."""
    parts: dict[str, tuple[Any, str]] = {}
    for variable, cell in _cells(function).items():
        try:
            value = cell.cell_contents
        except ValueError:  # nothing is in it yet
            continue
        if _assigns(function.__code__, variable):
            value = _Assigned(value)
        parts[f"variable {variable}"] = value, f"the variable {variable!r} of {name}"
    for index, value in enumerate(function.__defaults__ or ()):
        parts[f"defaults {index}"] = value, f"{name}.__defaults__[{index}]"
    for key, value in (function.__kwdefaults__ or {}).items():
        parts[f"kwdefaults {key}"] = value, f"{name}.__kwdefaults__[{key!r}]"
    for key, value in vars(function).items():
        parts[f"attribute {key}"] = _Assigned(value), f"{name}.{key}"
    return parts


def _set_in_function(
    function: types.FunctionType, state: dict[str, Any], unknown: CheckpointError
) -> None:
    """Put a state into a function of Python."""
    cells = _cells(function)
    for place, inner in state.items():
        kind, _, key = place.partition(" ")
        if kind == "variable" and key in cells:
            cells[key].cell_contents = _restored(cells[key].cell_contents, inner, unknown)
        elif kind == "defaults" and int(key) < len(function.__defaults__ or ()):
            values = list(function.__defaults__ or ())
            values[int(key)] = _restored(values[int(key)], inner, unknown)
            function.__defaults__ = tuple(values)
        elif kind == "kwdefaults" and key in (function.__kwdefaults__ or {}):
            assert function.__kwdefaults__ is not None
            present = function.__kwdefaults__[key]
            function.__kwdefaults__[key] = _restored(present, inner, unknown)
        elif kind == "attribute":
            vars(function)[key] = _restored(vars(function).get(key), inner, unknown)
        else:
            raise unknown


def _set_in_partial(
    partial: functools.partial[Any], state: dict[str, Any], unknown: CheckpointError
) -> None:
    """Put a state into a partial, whose arguments are its own."""
    args = list(partial.args)
    keywords = dict(partial.keywords)
    for place, inner in state.items():
        kind, _, key = place.partition(" ")
        if kind == "func":
            _restored(partial.func, inner, unknown)
        elif kind == "args" and int(key) < len(args):
            args[int(key)] = _restored(args[int(key)], inner, unknown)
        elif kind == "keywords" and key in keywords:
            keywords[key] = _restored(keywords[key], inner, unknown)
        else:
            raise unknown
    partial.__setstate__((partial.func, tuple(args), keywords, vars(partial)))  # type: ignore[attr-defined]


def _restored(present: Any, state: dict[str, Any], unknown: CheckpointError) -> Any:
    """What stands where ``present`` stood: plain data anew, anything else as it is, its state restored."""
    if "plain" in state:
        return state["plain"]
    if "own" in state:
        if not has_methods(present):
            raise unknown
        try:
            present.set_checkpoint_state(state["own"])
        except (TypeError, ValueError, KeyError) as error:
            raise CheckpointError(
                f"the state does not fit {type(present).__name__}: {error}"
            ) from error
    elif "function" in state:
        _set_in(present, state["function"], unknown)
    else:
        items = _items(present) if isinstance(present, _CONTAINERS) else {}
        for key, inner in state["items"].items():
            if key not in items:
                raise unknown
            _restored(items[key], inner, unknown)
    return present


def has_methods(thing: Any) -> bool:
    """Whether its class has a checkpoint state; wrappers forward what they have not, so they are not asked themselves."""
    return hasattr(type(thing), "get_checkpoint_state")


def _items(container: Any) -> dict[Any, Any]:
    return dict(container) if isinstance(container, dict) else dict(enumerate(container))


def _cells(function: types.FunctionType) -> dict[str, types.CellType]:
    """The variables of a closure, by name."""
    return dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))


def _assigns(code: types.CodeType, variable: str) -> bool:
    """Whether code, or a function within it, assigns to a variable of the closure, as ``nonlocal`` allows."""
    if variable not in code.co_freevars:
        return False
    if any(
        step.opname in ("STORE_DEREF", "DELETE_DEREF") and step.argval == variable
        for step in dis.get_instructions(code)
    ):
        return True
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    return any(_assigns(one, variable) for one in inner)


def _is_of_class(method: types.MethodType) -> bool:
    """Whether the function of a bound method is one of the class, and not bound by hand."""
    owner = method.__self__
    classes = owner.__mro__ if isinstance(owner, type) else type(owner).__mro__
    name = getattr(method.__func__, "__name__", "")
    found = [vars(one).get(name) for one in classes]
    return any(getattr(one, "__func__", one) is method.__func__ for one in found if one is not None)
