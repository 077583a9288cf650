"""
The state of environments.

:func:`get_env_state` captures a state. :func:`set_env_state` restores it into an environment that
was built in the same way, which need not have been reset before. From then on, this one does what
the first would have done: the same actions lead to the same observations, rewards, ends and infos,
bit for bit, through all later resets and random draws.

The state of each wrapper, and of the environment in it, is taken separately, in one of two ways.

1. **By its methods** ``get_checkpoint_state()`` and ``set_checkpoint_state(state)``, if its class
   has them. The state is a tree of plain data and random number generators. It leaves out inner
   environments and spaces, which are asked separately. It may refer to live arrays, which are
   copied. The object owns what ``set_checkpoint_state`` gets, and may raise a ValueError if it was
   built otherwise. A class that inherits the methods and adds attributes must extend them.
2. **By its attributes** otherwise, those in ``__slots__`` too. These must be plain: None, numbers,
   strings, bytes, enumerations, NumPy arrays and torch tensors, random number generators, spaces,
   and lists, tuples, dicts, sets and deques of these; or objects with the methods above. Classes,
   modules and specs are taken not to change. Anything else is refused with its name.

An object that environments share with the learner, which saves it, says so by an attribute
``checkpoint_shared = True`` of its class, as the goal buffer does. It is left out.

Functions are attributes of their own kind. A closure, a ``functools.partial`` or a bound method may
refer to the environment and its wrappers, to what never changes, to plain data, which is saved with
it, and to objects with the methods above. A function that refers to another object is refused,
because nobody could say what that object remembers.

Some classes have rules of their own, which stand in :mod:`sb3_manygoals.checkpoint.packages`.

- Monitor and VecMonitor go on with their statistics. Their results file is not part of the state:
  rows go to the file of the new wrapper. Monitor overwrites that file unless it is given
  ``override_existing=False``; VecMonitor always does. Times, there and in
  RecordEpisodeStatistics, include the pause.
- DummyVecEnv and SyncVectorEnv are captured whole. Around each environment of a SubprocVecEnv there
  must be a :class:`StatefulEnv`, outermost; the ``reset_infos`` are restored only for episodes that
  begin after the capture. AsyncVectorEnv is refused.
- AtariEnv is refused, because ALE does not save the screen. Games of AtariVecEnv are played again,
  if actions are not sticky.
- Worlds of MiniGrid are captured with the objects in them; those of BabyAI are refused.
- Pictures that Gymnasium's environments draw are left out, and drawn anew when they are asked for.

What is kept elsewhere, in classes, modules or NumPy's global generator, is not seen.
"""

import io
import signal
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
from stable_baselines3.common.vec_env import SubprocVecEnv

from sb3_manygoals.checkpoint import packages
from sb3_manygoals.checkpoint.functions import (
    CONSTANTS,
    FUNCTIONS,
    function_state,
    has_checkpoint_methods,
    set_function_state,
)
from sb3_manygoals.checkpoint.packages import is_environment, is_space
from sb3_manygoals.checkpoint.subproc_vec_env import MARK, get_worker_states, set_worker_states
from sb3_manygoals.checkpoint.tree import (
    CheckpointError,
    attributes,
    check_tree,
    copy_tree,
    load_tree,
    plain_part,
    set_attributes,
    tree_bytes,
)


def get_env_state(env: Any) -> Any:
    """
    Capture the state of an environment, and leave it as it is.

    :param env: a gymnasium.Env, an SB3 VecEnv or a gymnasium VectorEnv, wrapped or not
    :return: a plain tree that shares nothing with ``env``
    :raises CheckpointError: if something in it cannot be saved; the message names it
    """
    if not is_environment(env):
        raise CheckpointError(f"env must be an environment, got {type(env).__name__}")
    state = _StateReader(env).state_of(env)
    return copy_tree({"built": _construction(env, {id(env)}), **state})


def set_env_state(env: Any, state: Any) -> None:
    """
    Restore the state of an environment.

    After an error, the environment must not be used any more unless it is reset.

    :param env: built in the same way as the environment that the state is of
    :param state: from :func:`get_env_state`; it is not changed, and may be used again
    :raises CheckpointError: if ``env`` was built otherwise; the message says where
    """
    found = _construction(env, {id(env)})
    if state["built"] != found:
        raise CheckpointError(
            f"the environment was built otherwise: the state is of {state['built']}, and this is "
            f"{found}"
        )
    _StateWriter(env).restore(env, copy_tree(state))


class StatefulEnv(gym.Wrapper[Any, Any, Any, Any]):
    """
    Let checkpoints reach an environment in a worker of a SubprocVecEnv.

    It must be the outermost wrapper of each of the environments. It changes nothing else.

    :param env: the environment, wrapped or not
    """

    def __str__(self) -> str:
        return f"{MARK}{self.env}>"

    def checkpoint_in_worker(self, state: bytes | None = None) -> tuple[bytes, str]:
        """
        Return the state of the environment, or restore it.

        An error is returned, because a worker ends if one is raised. From the first call on, the
        worker ignores Ctrl-C, which a terminal sends to all processes: the process that trains
        still needs the worker for a last checkpoint.

        :param state: the state to restore; default: None, which restores nothing
        :return: the state, and the error message; "" if there was no error
        """
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            if state is None:
                return tree_bytes(get_env_state(self.env)), ""
            set_env_state(self.env, load_tree(io.BytesIO(state)))
        except Exception as error:
            return b"", str(error) if isinstance(error, CheckpointError) else repr(error)
        return state, ""


class _StateReader:
    """
    Captures the states of an environment, the environments in it, and their parts.

    The state of each of them, its owner, is a dict of these:

    - ``inner``: the states of the environments in its attributes;
    - ``workers``: the states of environments in other processes, or None;
    - ``state``: what its own method returned, or None;
    - ``parts``: by attribute, the states of objects that are restored as environments are;
    - ``methods``: by attribute, the name of the owner's method that is its value;
    - ``functions``: by attribute, the states of the functions in it;
    - ``values``: by attribute, plain data.
    """

    def __init__(self, env: Any) -> None:
        self._visited = {id(env)}
        self._restored_in_place = _ids_of_environments_and_parts(env)

    def state_of(self, owner: Any) -> dict[str, Any]:
        """Return the state of an owner; arrays in it are the owner's own."""
        name = type(owner).__name__
        advice = packages.refusal_of_environment(owner)
        if advice:
            raise CheckpointError(f"{name} cannot be saved: {advice}")
        inner = [self.state_of(one) for one in _inner_environments(owner, self._visited)]
        workers = get_worker_states(owner) if isinstance(owner, SubprocVecEnv) else None
        own_state = owner.get_checkpoint_state() if has_checkpoint_methods(owner) else None
        check_tree(own_state, f"{name}.get_checkpoint_state()")
        state: dict[str, Any] = {
            "inner": inner,
            "parts": {},
            "methods": {},
            "functions": {},
            "values": {},
            "workers": workers,
            "state": own_state,
        }
        for attribute, value in _state_attributes(owner).items():
            self._add_attribute(state, owner, attribute, value)
        return state

    def _add_attribute(self, state: dict[str, Any], owner: Any, attribute: str, value: Any) -> None:
        """Add the value of an attribute to the state of its owner, if it is not there already."""
        place = f"{type(owner).__name__}.{attribute}"
        has_own_state = has_checkpoint_methods(owner)
        parts = _members_if_all(value, is_space if has_own_state else _is_part)
        if parts:
            state["parts"][attribute] = {key: self.state_of(part) for key, part in parts.items()}
            return
        if has_own_state or _members_if_all(value, is_environment):
            return
        if _is_own_method(value, owner):
            state["methods"][attribute] = value.__name__
            return
        functions = _functions(value)
        if functions:
            state["functions"][attribute] = {
                key: function_state(one, _member_name(place, key), self._is_saved_elsewhere)
                for key, one in functions.items()
            }
            return
        if packages.is_info_list(attribute):
            value = [plain_part(info) for info in value]
        check_tree(value, place)
        state["values"][attribute] = value

    def _is_saved_elsewhere(self, value: Any) -> bool:
        """Return whether a function may refer to an object without saving it."""
        return id(value) in self._restored_in_place or _is_left_alone(value)


class _StateWriter:
    """Restores the states that a :class:`_StateReader` captured."""

    def __init__(self, env: Any) -> None:
        self._visited = {id(env)}

    def restore(self, owner: Any, state: dict[str, Any]) -> None:
        """Restore the state of an owner, whose arrays belong to it from now on."""
        inner = _inner_environments(owner, self._visited)
        for one, inner_state in zip(inner, state["inner"], strict=True):
            self.restore(one, inner_state)
        if state["workers"] is not None:
            set_worker_states(owner, state["workers"])
        present = _state_attributes(owner)
        self._restore_parts(owner, present, state["parts"])
        if has_checkpoint_methods(owner):
            _restore_by_method(owner, state["state"])
            return
        _restore_functions(owner, present, state["functions"])
        methods = {name: getattr(owner, method) for name, method in state["methods"].items()}
        set_attributes(owner, {**state["values"], **methods})
        _remove_new_attributes(owner, present, known=state["values"].keys() | state["parts"].keys())

    def _restore_parts(
        self, owner: Any, present: dict[str, Any], parts_by_attribute: dict[str, Any]
    ) -> None:
        """Restore the parts in the attributes of an owner."""
        for attribute, states in parts_by_attribute.items():
            parts = _members_if_all(present.get(attribute), _is_part)
            if parts.keys() != states.keys():
                raise CheckpointError(
                    f"{type(owner).__name__}.{attribute} was built otherwise: expected "
                    f"{[*states]} in it, found {[*parts]}"
                )
            for key, part_state in states.items():
                self.restore(parts[key], part_state)


def _restore_by_method(owner: Any, state: Any) -> None:
    """Restore an object by its own method."""
    try:
        owner.set_checkpoint_state(state)
    except (TypeError, ValueError, KeyError) as error:
        name = type(owner).__name__
        raise CheckpointError(f"the state does not fit {name}: {error}") from error


def _restore_functions(
    owner: Any, present: dict[str, Any], functions_by_attribute: dict[str, Any]
) -> None:
    """Restore what the functions in the attributes of an owner remember."""
    for attribute, states in functions_by_attribute.items():
        place = f"{type(owner).__name__}.{attribute}"
        functions = _functions(present.get(attribute))
        if functions.keys() != states.keys():
            raise CheckpointError(
                f"{place} was built otherwise: expected {len(states)} functions, found "
                f"{present.get(attribute)!r}"
            )
        for key, state in states.items():
            set_function_state(functions[key], state, _member_name(place, key))


def _remove_new_attributes(owner: Any, present: dict[str, Any], known: set[str]) -> None:
    """Remove, with a warning, what an owner has come to have and the captured one did not have."""
    for attribute in present.keys() - known:
        value = present[attribute]
        if value is None or _members_if_all(value, is_environment) or _functions(value):
            continue
        warnings.warn(
            f"{type(owner).__name__}.{attribute} is not in the checkpoint and is removed: was it "
            "built otherwise?",
            stacklevel=2,
        )
        delattr(owner, attribute)


def _construction(env: Any, visited: set[int]) -> str:
    """Describe how an environment is built: its classes from the outermost, and their numbers."""
    inner = [_construction(one, visited) for one in _inner_environments(env, visited)]
    if len(set(inner)) == 1:
        # The number of environments says how often.
        inner = inner[:1]
    name = f"{type(env).__module__}.{type(env).__qualname__}"
    number = getattr(env, "num_envs", None)
    if number is not None:
        name += f" of {number}"
    return name + "".join(f" ({one})" for one in inner)


def _ids_of_environments_and_parts(env: Any) -> set[int]:
    """Return the ids of an environment, of those in it, and of the parts of all of these."""
    found = {id(env)}
    queue = [env]
    while queue:
        for value in _state_attributes(queue.pop()).values():
            inner = _members_if_all(value, is_environment)
            for one in (inner or _members_if_all(value, _is_part)).values():
                if id(one) not in found:
                    found.add(id(one))
                    queue.append(one)
    return found


def _inner_environments(owner: Any, visited: set[int]) -> Iterator[Any]:
    """
    Iterate over the environments in the attributes of an owner.

    Wrappers may refer to an environment further in, so none is visited twice.
    """
    for value in _state_attributes(owner).values():
        for one in _members_if_all(value, is_environment).values():
            if id(one) not in visited:
                visited.add(id(one))
                yield one


def _state_attributes(owner: Any) -> dict[str, Any]:
    """Return the attributes that may be part of the state of an owner."""
    found = attributes(owner)
    if is_space(owner):
        return {
            name: value
            for name, value in found.items()
            if name == "_np_random" or _members_if_all(value, is_space)
        }
    left_out = packages.left_out_attributes(owner)

    def has_no_state(value: Any) -> bool:
        return _is_left_alone(value) or packages.is_picture_object(value, owner)

    return {
        name: value
        for name, value in found.items()
        if name not in left_out and not _members_if_all(value, has_no_state)
    }


def _members_if_all(value: Any, is_wanted: Callable[[Any], bool]) -> dict[str, Any]:
    """
    Return the members of a value, if all of them are wanted.

    :param value: a dict, list or tuple of members; any other value is its own only member
    :param is_wanted: tells of a member whether it is wanted
    :return: the members by key or index as a string, "" for the value itself; empty if one of
        them is not wanted
    """
    members = {"": value}
    if isinstance(value, dict):
        members = {str(key): one for key, one in value.items()}
    elif isinstance(value, (list, tuple)):
        members = {str(index): one for index, one in enumerate(value)}
    return members if all(is_wanted(one) for one in members.values()) else {}


def _member_name(place: str, key: str) -> str:
    """Return what to call a member in errors."""
    return f"{place}[{key!r}]" if key else place


def _functions(value: Any) -> dict[str, Any]:
    """Return the functions in an attribute by key. Classes and the like may stand between them."""
    found = _members_if_all(value, lambda one: isinstance(one, FUNCTIONS) or _is_left_alone(one))
    return {key: one for key, one in found.items() if isinstance(one, FUNCTIONS)}


def _is_own_method(value: Any, owner: Any) -> bool:
    """Return whether a value is a method of its owner that can be found again by its name."""
    if not isinstance(value, types.MethodType) or value.__self__ is not owner:
        return False
    return bool(getattr(owner, value.__name__, None) == value)


def _is_part(value: Any) -> bool:
    """Return whether an object in an attribute is kept, and restored as environments are."""
    if is_environment(value):
        return False
    return isinstance(value, packages.PARTS) or has_checkpoint_methods(value)


def _is_left_alone(value: Any) -> bool:
    """Return whether an object never changes, or is shared with the learner, which saves it."""
    return isinstance(value, CONSTANTS) or getattr(type(value), "checkpoint_shared", False)
