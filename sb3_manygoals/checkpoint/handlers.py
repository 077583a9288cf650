"""What is special about the environments and wrappers of Gymnasium, Stable-Baselines3 and others."""

from __future__ import annotations

import functools
import logging
import sys
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

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
"""Classes of attributes that are restored in place, attribute by attribute, as environments are."""

Special = tuple[Callable[[Any], Any], Callable[[Any, Any], None]]
"""How the state of an attribute is read from an environment, and written into it."""

_CONSTANT = (
    *(type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType),
    *(functools.partial, functools._lru_cache_wrapper, np.ufunc, np.dtype, th.dtype, th.device, logging.Logger, EnvSpec),
    ResultsWriter,  # see the docstring of sb3_manygoals.checkpoint.envs
    GoalBuffer,  # shared between environments and learner, who saves it once
)
_CONSTANT_NAMES = frozenset(
    {
        *("spec", "metadata", "_metadata", "_cached_spec", "class_attributes"),
        *("_saved_kwargs", "_ezpickle_args", "_ezpickle_kwargs"),  # what gymnasium.utils remembers of constructors
    }
)
_LEFT_OUT: dict[type, frozenset[str]] = {
    # written by each step before they are read
    DummyVecEnv: frozenset({"actions", "buf_infos"}),
    # what holds the workers, whose environments are asked
    SubprocVecEnv: frozenset({"remotes", "work_remotes", "processes", "waiting", "closed"}),
    AsyncVectorEnv: frozenset({"parent_pipes", "processes", "error_queue", "_state", "shared_memory", "worker"}),
}


def _clock(name: str, clock: str) -> dict[str, Special]:
    """A time at which something began. What is saved is how long ago: clocks differ between processes."""

    def passed(env: Any) -> Any:
        return getattr(time, clock)() - getattr(env, name)

    def go_on(env: Any, passed: Any) -> None:
        setattr(env, name, getattr(time, clock)() - passed)

    return {name: (passed, go_on)}


def _fill(target: Any, source: Any) -> None:
    if isinstance(target, np.ndarray):
        np.copyto(target, source)
    else:
        for key in target if isinstance(target, dict) else range(len(target)):
            _fill(target[key], source[key])


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
    # The state does not hold the screen, which shows where the next frame does not fill it. So draw a similar frame first,
    # and then undo all but the screen.
    env.ale.restoreState(state)
    if env.ale.getEpisodeFrameNumber() == 0:
        env.ale.reset_game()
    else:
        env.ale.act(env.ale.getLegalActionSet()[0])
    env.ale.restoreState(state)


_SPECIAL: dict[type, dict[str, Special]] = {
    Monitor: _clock("t_start", "time"),
    VecMonitor: _clock("t_start", "time"),
    RecordEpisodeStatistics: _clock("episode_start_time", "perf_counter"),
    VectorRecordEpisodeStatistics: _clock("episode_start_times", "perf_counter"),
    # memory shared with the workers
    AsyncVectorEnv: {"observations": (lambda env: env.observations, lambda env, kept: _fill(env.observations, kept))},
}


def attributes(owner: Any) -> Iterator[tuple[str, Any, Special | None]]:
    """
    :param owner: an environment, a wrapper or a part of one
    :return: name and value of each attribute that may be part of its state, and what is special about it
    """
    left_out, special = _CONSTANT_NAMES, {}
    for base in type(owner).__mro__:
        left_out |= _LEFT_OUT.get(base, frozenset())
        special.update(_SPECIAL.get(base, {}))
        if base.__module__ == "ale_py.env" and base.__name__ == "AtariEnv":  # which may not be installed
            left_out |= {"_action_set"}
            special["ale"] = _read_ale, _write_ale
    draws = type(owner).__module__.startswith("gymnasium.envs.")
    for name, value in list(vars(owner).items()):
        constant = inside(value, _is_constant) or (draws and inside(value, _is_picture))
        if name not in left_out and not constant:
            yield name, value, special.get(name)


def is_environment(value: Any) -> bool:
    """:return: whether this is an environment or a vector of them, wrapped or not"""
    return isinstance(value, (gym.Env, VecEnv, VectorEnv))


def inside(value: Any, wanted: Callable[[Any], bool]) -> dict[str, Any]:
    """
    :param value: of an attribute
    :param wanted: tells the things that are looked for
    :return: the things by place in ``value``, "" if it is one itself; empty unless it is one or a container of nothing else
    """
    found = {"": value}
    if isinstance(value, dict):
        found = {str(key): one for key, one in value.items()}
    elif isinstance(value, (list, tuple)):
        found = {str(index): one for index, one in enumerate(value)}
    return found if all(wanted(one) for one in found.values()) else {}


def _is_constant(value: Any) -> bool:
    return isinstance(value, _CONSTANT)


def _is_picture(value: Any) -> bool:
    # Gymnasium's own environments use pygame for nothing but drawing their state.
    return "pygame" in sys.modules and type(value).__module__.partition(".")[0] == "pygame"
