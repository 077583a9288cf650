"""What is special about the environments and wrappers of Gymnasium, Stable-Baselines3 and others."""

from __future__ import annotations

import functools
import logging
import sys
import time
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv, VectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics
from gymnasium.wrappers.utils import RunningMeanStd as GymnasiumRunningMeanStd
from gymnasium.wrappers.vector import RecordEpisodeStatistics as VectorRecordEpisodeStatistics
from stable_baselines3.common.monitor import Monitor, ResultsWriter
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecMonitor
from stable_baselines3.common.vec_env.stacked_observations import StackedObservations

from sb3_manygoals.checkpoint.tree import CheckpointError
from sb3_manygoals.goals.buffer import GoalBuffer

PARTS = (RunningMeanStd, GymnasiumRunningMeanStd, StackedObservations)
"""Classes of attributes that are restored where they are, attribute by attribute, as environments are."""

_CONSTANT = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    functools.partial,
    functools._lru_cache_wrapper,
    np.ufunc,
    np.dtype,
    th.dtype,
    th.device,
    logging.Logger,
    EnvSpec,
    ResultsWriter,  # see the docstring of sb3_manygoals.checkpoint.envs
    GoalBuffer,  # shared between environments and learner, who saves it once
)

_CONSTANT_NAMES = frozenset(
    # the last three: what gymnasium.utils remembers of constructors
    {
        "spec",
        "metadata",
        "_metadata",
        "_cached_spec",
        "class_attributes",
        "_saved_kwargs",
        "_ezpickle_args",
        "_ezpickle_kwargs",
    }
)

_LEFT_OUT: dict[type, frozenset[str]] = {
    # written by each step before they are read
    DummyVecEnv: frozenset({"actions", "buf_infos", "_save_obs"}),
    # what holds the workers, whose environments are asked
    SubprocVecEnv: frozenset({"remotes", "work_remotes", "processes", "waiting", "closed"}),
    AsyncVectorEnv: frozenset({"parent_pipes", "processes", "error_queue", "_state", "shared_memory", "worker"}),
}


class Special(NamedTuple):
    """An attribute with a way of its own to be read, as plain data, and restored."""

    read: Callable[[Any], Any]
    write: Callable[[Any, Any], None]


def _clock(name: str, clock: str) -> Special:
    """A time at which something began. The time that has passed is kept: clocks differ from process to process."""

    def passed(env: Any) -> Any:
        return getattr(time, clock)() - getattr(env, name)

    def go_on(env: Any, passed: Any) -> None:
        setattr(env, name, getattr(time, clock)() - passed)

    return Special(passed, go_on)


def _write_in_place(target: Any, source: Any) -> None:
    if isinstance(target, np.ndarray):
        np.copyto(target, source)
    else:
        for key in target if isinstance(target, dict) else range(len(target)):
            _write_in_place(target[key], source[key])


def _read_ale(env: Any) -> bytes:
    if env.ale.getFloat("repeat_action_probability") > 0.0:
        raise CheckpointError(
            "AtariEnv: ALE does not tell which action it would repeat: make the game with repeat_action_probability=0, and if "
            "actions are to be sticky, put SB3's StickyActionEnv around it"
        )
    serialized: bytes = env.ale.cloneState(include_rng=True).serialize()
    return serialized


def _write_ale(env: Any, serialized: bytes) -> None:
    state = sys.modules["ale_py"].ALEState(serialized)
    # What is on the screen is no part of it, and is seen where the next frame does not fill the screen. So a like frame is
    # drawn first, and then undone but for the screen.
    env.ale.restoreState(state)
    if env.ale.getEpisodeFrameNumber() == 0:
        env.ale.reset_game()
    else:
        env.ale.act(env.ale.getLegalActionSet()[0])
    env.ale.restoreState(state)


_SPECIAL: dict[type, dict[str, Special]] = {
    Monitor: {"t_start": _clock("t_start", "time")},
    VecMonitor: {"t_start": _clock("t_start", "time")},
    RecordEpisodeStatistics: {"episode_start_time": _clock("episode_start_time", "perf_counter")},
    VectorRecordEpisodeStatistics: {"episode_start_times": _clock("episode_start_times", "perf_counter")},
    # memory shared with the workers
    AsyncVectorEnv: {
        "observations": Special(lambda env: env.observations, lambda env, kept: _write_in_place(env.observations, kept))
    },
}


def _tables(kind: type) -> tuple[frozenset[str], dict[str, Special]]:
    left_out, special = _CONSTANT_NAMES, {}
    for base in kind.__mro__:
        left_out |= _LEFT_OUT.get(base, frozenset())
        special.update(_SPECIAL.get(base, {}))
        if base.__module__ == "ale_py.env" and base.__name__ == "AtariEnv":  # which may not be installed
            left_out |= {"_action_set"}
            special["ale"] = Special(_read_ale, _write_ale)
    return left_out, special


def attributes(owner: Any) -> Iterator[tuple[str, Any, Special | None]]:
    """
    :param owner: an environment, a wrapper or a part of one
    :return: name and value of each of its attributes that may be part of its state, and what is special about it
    """
    left_out, special = _tables(type(owner))
    draws = type(owner).__module__.startswith("gymnasium.envs.")
    for name, value in list(vars(owner).items()):
        if name in left_out or _all_in(value, _is_constant) or (draws and _all_in(value, _is_picture)):
            continue
        yield name, value, special.get(name)


def is_environment(value: Any) -> bool:
    """:return: whether this is an environment or a vector of them, wrapped or not"""
    return isinstance(value, (gym.Env, VecEnv, VectorEnv))


def _all_in(value: Any, wanted: Callable[[Any], bool]) -> bool:
    """Whether something is a certain thing, or a container of nothing else."""
    if isinstance(value, (list, tuple, dict)):
        return len(value) > 0 and all(wanted(one) for one in (value.values() if isinstance(value, dict) else value))
    return wanted(value)


def inside(value: Any, wanted: Callable[[Any], bool]) -> dict[str, Any] | None:
    """
    :param value: of an attribute
    :param wanted: tells the things that are looked for
    :return: them by place in ``value``, "" if it is one itself; None if it is none and no container of nothing else
    """
    if not _all_in(value, wanted):
        return None
    if isinstance(value, dict):
        return {str(key): one for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return {str(index): one for index, one in enumerate(value)}
    return {"": value}


def _is_constant(value: Any) -> bool:
    return isinstance(value, _CONSTANT)


def _is_picture(value: Any) -> bool:
    # Gymnasium's own environments use pygame for nothing but drawing their state.
    return "pygame" in sys.modules and type(value).__module__.partition(".")[0] == "pygame"
