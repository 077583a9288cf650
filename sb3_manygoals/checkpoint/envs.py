"""
The state of environments: captured by :func:`get_env_state`, and restored by :func:`set_env_state` into others that are built
in the same way. From then on these do what the first would have: the same actions lead to the same observations, rewards, ends
and infos, bit for bit, through all later resets and random draws. They need not have been reset before.

The states of each wrapper and of the environment in them are taken one by one, in one of two ways.

1. By its own methods ``get_checkpoint_state()`` and ``set_checkpoint_state(state)``, where it has them. The state is a tree of
   plain data and random number generators, without that of inner environments and spaces, which are asked by themselves. The
   tree may refer to live arrays, which are copied; what ``set_checkpoint_state`` gets belongs to it. It may raise a ValueError
   if the object was built otherwise. A class that inherits the methods and adds attributes must extend them.
2. Else by its attributes, those in ``__slots__`` too, which must be plain: None, numbers, strings, bytes, enumerations, NumPy
   arrays and torch tensors, random number generators, spaces, and lists, tuples, dicts, sets and deques of these; or objects
   with the methods above. Classes, modules and specs are taken not to change. Anything else is refused with its name.

Functions are attributes of their own kind. A closure, a ``functools.partial`` or a bound method may refer to the environment
and its wrappers, to what never changes, to plain data, which is saved with it, and to objects with the methods above. Where it
refers to another object, it is refused: nobody could say what that object remembers.

Known to be special:

- Monitor and VecMonitor go on with their statistics. Their results file is not part of the state: rows go to the file that
  the new wrapper was built with, which Monitor overwrites unless it is given ``override_existing=False``, and VecMonitor
  always does. Times, there and in RecordEpisodeStatistics, include the pause.
- DummyVecEnv and SyncVectorEnv are captured whole. Around each environment of a SubprocVecEnv there must be a
  :class:`StatefulEnv`, outermost; the ``reset_infos`` are restored only for episodes that begin after the capture.
  AsyncVectorEnv is refused.
- AtariEnv is refused, as ALE does not save the screen. Games of AtariVecEnv are played again, if actions are not sticky.
- Worlds of MiniGrid are captured with the objects in them; those of BabyAI are refused.
- The goal buffer, which environments and learner share, is left out: it is saved once, by its own methods.
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
from gymnasium.spaces import Space
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv
from gymnasium.wrappers.utils import RunningMeanStd as GymnasiumRunningMeanStd
from stable_baselines3.common.monitor import ResultsWriter
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv
from stable_baselines3.common.vec_env.stacked_observations import StackedObservations

from sb3_manygoals.checkpoint.functions import (
    CONSTANTS,
    FUNCTIONS,
    function_state,
    has_methods,
    set_function_state,
)
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
from sb3_manygoals.goals.buffer import GoalBuffer

_PARTS = (
    Space,
    RunningMeanStd,
    GymnasiumRunningMeanStd,
    StackedObservations,
)  # restored in place, as environments are
_CONSTANT = (
    *(kind for kind in CONSTANTS if kind is not Space),  # here a space has its random numbers
    ResultsWriter,
    GoalBuffer,  # shared between environments and learner, who saves it once
)
_LEFT_OUT: dict[type, set[str]] = {
    # arguments of constructors, and members of classes that SB3 looks up
    object: {"_saved_kwargs", "_ezpickle_args", "_ezpickle_kwargs", "class_attributes"},
    DummyVecEnv: {"buf_infos"},  # written by each step before they are read
    SubprocVecEnv: {"remotes", "work_remotes", "processes"},
    SyncVectorEnv: {"env_fns"},  # which are never called again
}


def get_env_state(env: Any) -> Any:
    """
    Capture the state of an environment, and leave it as it is.

    :param env: a gymnasium.Env, an SB3 VecEnv or a gymnasium VectorEnv, wrapped or not
    :return: a plain tree that shares nothing with ``env``
    :raises CheckpointError: if something in it cannot be saved; the message names it
    """
    if not _is_environment(env):
        raise CheckpointError(f"env must be an environment, got {type(env).__name__}")
    state = _capture(env, {id(env)}, _restored_in_place(env))
    return copy_tree({"built": _built(env, {id(env)}), **state})


def set_env_state(env: Any, state: Any) -> None:
    """
    Restore a state. After an error, an environment must not be used any more unless it is reset.

    :param env: built as the environment that the state is of
    :param state: from :func:`get_env_state`; it is not changed, and may be used again
    :raises CheckpointError: if ``env`` was built otherwise; the message says where
    """
    found = _built(env, {id(env)})
    if state["built"] != found:
        raise CheckpointError(
            f"the environment was built otherwise: the state is of {state['built']}, and this is {found}"
        )
    _restore(env, copy_tree(state), {id(env)})


class StatefulEnv(gym.Wrapper[Any, Any, Any, Any]):
    """
    To be put around each environment of a SubprocVecEnv, outermost, so that :func:`get_env_state` and :func:`set_env_state`
    reach it in its worker. It changes nothing else.
    """

    def __str__(self) -> str:
        return f"<StatefulEnv {self.env}>"

    def checkpoint_in_worker(self, state: bytes | None = None) -> tuple[bytes, str]:
        """
        Get the state, or set it, in a worker; an error is returned, since to raise one would end the worker. From then on the
        worker leaves Ctrl-C to the process that trains, which still needs it for a last checkpoint.

        :param state: to be set; None to get it
        :return: the state, and what went wrong, "" if nothing did
        """
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal tells all processes
        try:
            if state is None:
                return tree_bytes(get_env_state(self.env)), ""
            set_env_state(self.env, load_tree(io.BytesIO(state)))
        except Exception as error:
            return b"", str(error) if isinstance(error, CheckpointError) else repr(error)
        return state, ""


def _capture(thing: Any, seen: set[int], in_place: set[int]) -> dict[str, Any]:
    """The state of an environment or a part of one, some of it its own memory."""
    name = type(thing).__name__
    is_asked = has_methods(thing)
    if isinstance(thing, AsyncVectorEnv):
        raise CheckpointError(
            f"{name} cannot be saved: use a SyncVectorEnv, or SB3's SubprocVecEnv of StatefulEnvs"
        )
    node: dict[str, Any] = {
        "inner": [_capture(one, seen, in_place) for one in _inner(thing, seen)],
        "parts": {},
        "methods": {},
        "functions": {},
        "values": {},
    }
    node["workers"] = (
        _ask_workers(thing, [()] * thing.num_envs) if isinstance(thing, SubprocVecEnv) else None
    )
    node["state"] = thing.get_checkpoint_state() if is_asked else None
    check_tree(node["state"], f"{name}.get_checkpoint_state()")

    def is_elsewhere(value: Any) -> bool:
        return id(value) in in_place or isinstance(value, _CONSTANT)

    for attribute, value in _attributes(thing).items():
        place = f"{name}.{attribute}"
        if parts := _inside(value, _is_space if is_asked else _is_part):
            node["parts"][attribute] = {
                key: _capture(part, seen, in_place) for key, part in parts.items()
            }
        elif is_asked or _inside(value, _is_environment):
            pass
        elif _is_own_method(value, thing):
            node["methods"][attribute] = value.__name__
        elif functions := _functions(value):
            node["functions"][attribute] = {
                key: function_state(one, _place(place, key), is_elsewhere)
                for key, one in functions.items()
            }
        else:
            value = [plain_part(info) for info in value] if attribute == "reset_infos" else value
            check_tree(value, place)
            node["values"][attribute] = value
    return node


def _restore(thing: Any, node: dict[str, Any], seen: set[int]) -> None:
    name, values = type(thing).__name__, node["values"]
    for one, inner in zip(_inner(thing, seen), node["inner"], strict=True):
        _restore(one, inner, seen)
    if node["workers"] is not None:
        _ask_workers(thing, [(state,) for state in node["workers"]])
    present = _attributes(thing)
    for attribute, parts in node["parts"].items():
        mine = _inside(present.get(attribute), _is_part)
        if mine.keys() != parts.keys():
            raise CheckpointError(
                f"{name}.{attribute} was built otherwise: expected {[*parts]} in it, found {[*mine]}"
            )
        for key, part in parts.items():
            _restore(mine[key], part, seen)
    if has_methods(thing):
        try:
            thing.set_checkpoint_state(node["state"])
        except (TypeError, ValueError, KeyError) as error:
            raise CheckpointError(f"the state does not fit {name}: {error}") from error
        return
    for attribute, states in node["functions"].items():
        functions = _functions(present.get(attribute))
        if functions.keys() != states.keys():
            raise CheckpointError(
                f"{name}.{attribute} was built otherwise: expected {len(states)} functions, "
                f"found {present.get(attribute)!r}"
            )
        for key, state in states.items():
            set_function_state(functions[key], state, _place(f"{name}.{attribute}", key))
    methods = {attribute: getattr(thing, method) for attribute, method in node["methods"].items()}
    set_attributes(thing, {**values, **methods})
    # what the environment came to have since it was built, and the other did not
    for attribute in present.keys() - values.keys() - node["parts"].keys():
        value = present[attribute]
        if value is not None and not _inside(value, _is_environment) and not _functions(value):
            warnings.warn(
                f"{name}.{attribute} is not in the checkpoint and is removed: was it built otherwise?",
                stacklevel=2,
            )
            delattr(thing, attribute)


def _restored_in_place(env: Any) -> set[int]:
    """The ids of an environment, of those in it, and of their parts: functions may refer to these."""
    found = {id(env)}
    queue = [env]
    while queue:
        for value in _attributes(queue.pop()).values():
            wanted = {**_inside(value, _is_environment), **_inside(value, _is_part)}
            new = [one for one in wanted.values() if id(one) not in found]
            found.update(map(id, new))
            queue += new
    return found


def _functions(value: Any) -> dict[str, Any]:
    """The functions in an attribute, by place as in :func:`_inside`; classes and the like may stand between them."""
    found = _inside(value, lambda one: isinstance(one, (*FUNCTIONS, *_CONSTANT)))
    return {key: one for key, one in found.items() if isinstance(one, FUNCTIONS)}


def _is_own_method(value: Any, owner: Any) -> bool:
    """Whether it is a method of the object whose attribute it is, found again by its name."""
    if not isinstance(value, types.MethodType) or value.__self__ is not owner:
        return False
    return bool(getattr(owner, value.__name__, None) == value)


def _place(name: str, key: str) -> str:
    return f"{name}[{key!r}]" if key else name


def _built(env: Any, seen: set[int]) -> str:
    """How an environment is built: its classes from the outermost, and how many there are."""
    number = getattr(env, "num_envs", None)
    inner = [_built(one, seen) for one in _inner(env, seen)]
    if len(set(inner)) == 1:
        inner = inner[:1]  # the number of environments says how often
    name = f"{type(env).__module__}.{type(env).__qualname__}"
    return (
        f"{name}{'' if number is None else f' of {number}'}{''.join(f' ({one})' for one in inner)}"
    )


def _inner(env: Any, seen: set[int]) -> Iterator[Any]:
    """The environments in the attributes of one; none twice, though wrappers may refer to one further in."""
    for value in _attributes(env).values():
        for one in _inside(value, _is_environment).values():
            if id(one) not in seen:
                seen.add(id(one))
                yield one


def _attributes(owner: Any) -> dict[str, Any]:
    """The attributes that may be part of the state of an environment, a wrapper or a part of one."""
    found = attributes(owner)
    if isinstance(owner, Space):
        return {
            name: value
            for name, value in found.items()
            if name == "_np_random" or _inside(value, _is_space)
        }
    left_out = set().union(*(_LEFT_OUT.get(base, ()) for base in type(owner).__mro__))
    draws = type(owner).__module__.startswith(
        "gymnasium.envs."
    )  # which use pygame for nothing but drawing their state

    def is_constant(value: Any) -> bool:
        return isinstance(value, _CONSTANT) or (
            draws and type(value).__module__.startswith("pygame")
        )

    return {
        name: value
        for name, value in found.items()
        if name not in left_out and not _inside(value, is_constant)
    }


def _inside(value: Any, wanted: Callable[[Any], bool]) -> dict[str, Any]:
    """What is wanted, by its place in a value, "" if it is one itself; empty if it is neither one nor a container of these."""
    found = {"": value}
    if isinstance(value, dict):
        found = {str(key): one for key, one in value.items()}
    elif isinstance(value, (list, tuple)):
        found = {str(index): one for index, one in enumerate(value)}
    return found if all(wanted(one) for one in found.values()) else {}


def _is_environment(value: Any) -> bool:
    return isinstance(value, (gym.Env, VecEnv, VectorEnv))


def _is_space(value: Any) -> bool:
    return isinstance(value, Space)


def _is_part(value: Any) -> bool:
    return isinstance(value, _PARTS) or (has_methods(value) and not _is_environment(value))


def _ask_workers(env: SubprocVecEnv, arguments: list[Any]) -> list[bytes]:
    """Call ``checkpoint_in_worker`` with the arguments given for each environment, () for none."""
    if env.waiting:
        raise CheckpointError("SubprocVecEnv is in the middle of a step: wait for it first")
    # Any object can tell this; what its worker does not find, it dies of.
    if not all(one.startswith("<StatefulEnv ") for one in env.env_method("__str__")):
        advice = "put a StatefulEnv around each, outermost, as in SubprocVecEnv([lambda: StatefulEnv(make_env())] * n)"
        raise CheckpointError(
            f"the environments of SubprocVecEnv cannot be reached in their workers: {advice}"
        )
    for remote, given in zip(env.remotes, arguments, strict=True):
        remote.send(("env_method", ("checkpoint_in_worker", given, {})))
    answers = [remote.recv() for remote in env.remotes]
    for row, (_, error) in enumerate(answers):
        if error:
            raise CheckpointError(f"environment {row} of SubprocVecEnv: {error}")
    return [state for state, _ in answers]
