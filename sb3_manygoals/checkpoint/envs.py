"""
The state of environments: captured, and restored into others that are built in the same way.

    state = get_env_state(env)
    ...
    env = make_the_same_environment()
    set_env_state(env, state)

From then on ``env`` does what the first would have: the same actions lead to the same observations, rewards, ends and infos,
bit for bit, through all later resets and random draws. It need not have been reset.

An environment is taken apart into its wrappers, down to the innermost. Each of these objects is asked in one of two ways.

1. By its own methods ``get_checkpoint_state()`` and ``set_checkpoint_state(state)``, where it has them. What they pass is a
   tree of plain data and random number generators, of the object's own state only: what it wraps is asked by itself, and so
   are its spaces, whose random numbers are part of the state. The tree may refer to live arrays, which are copied; what
   ``set_checkpoint_state`` gets belongs to it. It may raise a ValueError if the object was built otherwise. A class that
   inherits the methods and adds attributes must extend them.
2. Else by its attributes, which must be plain: None, numbers, strings, bytes, enumerations, NumPy arrays and torch tensors,
   random number generators, spaces, and lists, tuples, dicts, sets and deques of these; or objects with the methods above.
   Functions, classes and specs are taken not to change. Anything else is refused with its name.

Known to be special:

- Monitor and VecMonitor go on with their statistics. Their results file is not part of the state: rows go to the file that
  the new wrapper was built with, which Monitor overwrites unless it is given ``override_existing=False``, and VecMonitor
  always does. Times, there and in RecordEpisodeStatistics, include the pause.
- DummyVecEnv and SyncVectorEnv are captured whole. Around each environment of a SubprocVecEnv or an AsyncVectorEnv there must
  be a :class:`StatefulEnv`, outermost. An AsyncVectorEnv must share its memory and not be in mode NEXT_STEP. The
  ``reset_infos`` of a SubprocVecEnv are those of the first only for episodes that begin after the capture.
- AtariEnv is captured by ALE with its random numbers, if its own actions are not sticky. ALE does not save the screen: a game
  that leaves some of it undrawn may show other remains in the first frames.
- Those of AtariVecEnv are played again from their beginnings, if their actions are not sticky.
- Worlds of MiniGrid are captured with the objects in them; those of BabyAI are refused.
- The goal buffer is left out: environments and learner share it, and it is to be saved once, by its own methods.
- Pictures that Gymnasium's environments draw are left out, and drawn anew when they are asked for.

What an environment keeps elsewhere, in ``__slots__``, closures, class attributes, modules or NumPy's global generator, is not
seen.
"""

from __future__ import annotations

import functools
import io
import logging
import signal
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Space
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv
from gymnasium.vector.async_vector_env import AsyncState
from gymnasium.wrappers.utils import RunningMeanStd as GymnasiumRunningMeanStd
from stable_baselines3.common.monitor import ResultsWriter
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv
from stable_baselines3.common.vec_env.stacked_observations import StackedObservations

from sb3_manygoals.checkpoint.tree import CheckpointError, check_tree, copy_tree, load_tree, tree_bytes
from sb3_manygoals.goals.buffer import GoalBuffer

_PARTS = (Space, RunningMeanStd, GymnasiumRunningMeanStd, StackedObservations)  # restored in place, as environments are
_CONSTANT = (
    *(type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType),
    *(functools.partial, functools._lru_cache_wrapper, np.ufunc, np.dtype, th.dtype, th.device, logging.Logger, EnvSpec),
    ResultsWriter,
    GoalBuffer,  # shared between environments and learner, who saves it once
)
_LEFT_OUT: dict[type, set[str]] = {
    # arguments of constructors, and members of classes that SB3 looks up
    object: {"_saved_kwargs", "_ezpickle_args", "_ezpickle_kwargs", "class_attributes"},
    DummyVecEnv: {"buf_infos"},  # written by each step before they are read
    SubprocVecEnv: {"remotes", "work_remotes", "processes"},
    AsyncVectorEnv: {"parent_pipes", "processes", "error_queue"},
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
    return copy_tree({"built": _built(env, {id(env)}), **_capture(env, {id(env)})})


def set_env_state(env: Any, state: Any) -> None:
    """
    Restore a state. If it does not fit, which is found out before anything is changed where that is possible, an environment
    must not be used any more unless it is reset.

    :param env: built as the environment that the state is of
    :param state: from :func:`get_env_state`; it is not changed, and may be used again
    :raises CheckpointError: if ``env`` was built otherwise; the message says where
    """
    found = _built(env, {id(env)})
    if state["built"] != found:
        raise CheckpointError(f"the environment was built otherwise: the state is of {state['built']}, and this is {found}")
    _restore(env, copy_tree(state), {id(env)})


class StatefulEnv(gym.Wrapper[Any, Any, Any, Any]):
    """
    To be put around each environment of a SubprocVecEnv or AsyncVectorEnv, outermost, so that :func:`get_env_state` and
    :func:`set_env_state` reach it in its worker. It changes nothing else.

    :param env: the environment
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


def _capture(thing: Any, seen: set[int]) -> dict[str, Any]:
    """The state of an environment or a part of one, some of it its own memory."""
    name, methods = type(thing).__name__, _methods(thing)
    node: dict[str, Any] = {"inner": [_capture(one, seen) for one in _inner(thing, seen)]}
    in_workers = isinstance(thing, (SubprocVecEnv, AsyncVectorEnv))
    node["workers"] = _ask_workers(thing, [()] * thing.num_envs) if in_workers else None
    node["state"] = None if methods is None else methods[0]()
    check_tree(node["state"], f"{name}.get_checkpoint_state()")
    node |= {"parts": {}, "values": {}}
    for attribute, value in _attributes(thing).items():
        if parts := _inside(value, _is_part if methods is None else _is_space):
            node["parts"][attribute] = {key: _capture(part, seen) for key, part in parts.items()}
        elif methods is None and not _inside(value, _is_environment):
            check_tree(value, f"{name}.{attribute}")
            node["values"][attribute] = value
    return node


def _restore(thing: Any, node: dict[str, Any], seen: set[int]) -> None:
    name, methods, values = type(thing).__name__, _methods(thing), node["values"]
    for one, inner in zip(_inner(thing, seen), node["inner"], strict=True):
        _restore(one, inner, seen)
    if node["workers"] is not None:
        _ask_workers(thing, [(state,) for state in node["workers"]])
    present = _attributes(thing)
    for attribute, parts in node["parts"].items():
        mine = _inside(present.get(attribute), _is_part)
        if mine.keys() != parts.keys():
            raise CheckpointError(f"{name}.{attribute} was built otherwise: expected {[*parts]} in it, found {[*mine]}")
        for key, part in parts.items():
            _restore(mine[key], part, seen)
    if methods is not None:
        try:
            methods[1](node["state"])
        except (TypeError, ValueError, KeyError) as error:
            raise CheckpointError(f"the state does not fit {name}: {error}") from error
        return
    if isinstance(thing, AsyncVectorEnv):
        _fill(thing.observations, values.pop("observations"))  # shared with the workers
        del present["observations"]
    vars(thing).update(values)
    # what the environment came to have since it was built, and the other did not
    for attribute in present.keys() - values.keys() - node["parts"].keys():
        if present[attribute] is not None and not _inside(present[attribute], _is_environment):
            del vars(thing)[attribute]


def _built(env: Any, seen: set[int]) -> str:
    """How an environment is built: its classes from the outermost, and how many there are."""
    number = getattr(env, "num_envs", None)
    inner = [_built(one, seen) for one in _inner(env, seen)]
    if len(set(inner)) == 1:
        inner = inner[:1]  # the number of environments says how often
    name = f"{type(env).__module__}.{type(env).__qualname__}"
    return f"{name}{'' if number is None else f' of {number}'}{''.join(f' ({one})' for one in inner)}"


def _inner(env: Any, seen: set[int]) -> Iterator[Any]:
    """The environments in the attributes of one; none twice, though wrappers may refer to one further in."""
    for value in _attributes(env).values():
        for one in _inside(value, _is_environment).values():
            if id(one) not in seen:
                seen.add(id(one))
                yield one


def _attributes(owner: Any) -> dict[str, Any]:
    """The attributes that may be part of the state of an environment, a wrapper or a part of one."""
    found: dict[str, Any] = getattr(owner, "__dict__", {})
    if isinstance(owner, Space):
        return {name: value for name, value in found.items() if name == "_np_random" or _inside(value, _is_space)}
    left_out = set().union(*(_LEFT_OUT.get(base, ()) for base in type(owner).__mro__))
    draws = type(owner).__module__.startswith("gymnasium.envs.")  # which use pygame for nothing but drawing their state

    def is_constant(value: Any) -> bool:
        return isinstance(value, _CONSTANT) or (draws and type(value).__module__.startswith("pygame"))

    return {name: value for name, value in found.items() if name not in left_out and not _inside(value, is_constant)}


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
    return isinstance(value, _PARTS) or (_methods(value) is not None and not _is_environment(value))


def _methods(thing: Any) -> tuple[Callable[[], Any], Callable[[Any], None]] | None:
    """How the state of an object is got and set, if not by its attributes."""
    kind = type(thing)
    if kind.__name__ == "ALEInterface" and kind.__module__.startswith("ale_py"):
        return functools.partial(_read_ale, thing), functools.partial(_write_ale, thing)
    if not hasattr(kind, "get_checkpoint_state"):  # of its class: wrappers forward what they have not
        return None
    return thing.get_checkpoint_state, thing.set_checkpoint_state


def _read_ale(ale: Any) -> bytes:
    if ale.getFloat("repeat_action_probability") > 0.0:
        raise CheckpointError(
            "AtariEnv: ALE does not tell which action it would repeat: make the game with repeat_action_probability=0, and if "
            "actions are to be sticky, put SB3's StickyActionEnv around it"
        )
    serialized: bytes = ale.cloneState(include_rng=True).serialize()
    return serialized


def _write_ale(ale: Any, serialized: bytes) -> None:
    state = sys.modules["ale_py"].ALEState(serialized)
    # The state does not hold the screen, which shows where the next frame does not fill it. So draw a similar frame first,
    # and then undo all but the screen.
    ale.restoreState(state)
    if ale.getEpisodeFrameNumber() == 0:
        ale.reset_game()
    else:
        ale.act(ale.getLegalActionSet()[0])
    ale.restoreState(state)


def _fill(target: Any, source: Any) -> None:
    if isinstance(target, np.ndarray):
        np.copyto(target, source)
    else:
        for key in target if isinstance(target, dict) else range(len(target)):
            _fill(target[key], source[key])


def _ask_workers(env: Any, arguments: list[Any]) -> list[bytes]:
    """Call ``checkpoint_in_worker`` with the arguments given for each environment, () for none."""
    name = type(env).__name__
    subproc = isinstance(env, SubprocVecEnv)
    if env.waiting if subproc else env._state is not AsyncState.DEFAULT:
        raise CheckpointError(f"{name} is in the middle of a step: wait for it first")
    if not subproc and (not env.shared_memory or env.autoreset_mode is AutoresetMode.NEXT_STEP):
        raise CheckpointError(f"{name} must have shared_memory=True and autoreset_mode SAME_STEP or DISABLED")
    # Any object can tell this; what its worker does not find, it dies of.
    outermost = env.env_method("__str__") if subproc else env.call("__str__")
    if not all(str(one).startswith("<StatefulEnv ") for one in outermost):
        raise CheckpointError(
            f"the environments of {name} cannot be reached in their workers: put a StatefulEnv around each, outermost, as in "
            f"{name}([lambda: StatefulEnv(make_env())] * n)"
        )
    pipes, command = (env.remotes, "env_method") if subproc else (env.parent_pipes, "_call")
    for pipe, given in zip(pipes, arguments, strict=True):
        pipe.send((command, ("checkpoint_in_worker", given, {})))
    received = [pipe.recv() for pipe in pipes]
    answers = received if subproc else [answer for answer, _ in received]
    for row, (_, error) in enumerate(answers):
        if error:
            raise CheckpointError(f"environment {row} of {name}: {error}")
    return [state for state, _ in answers]
