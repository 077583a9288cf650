"""Goal wrappers in an environment: found, or put around it."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorWrapper
from gymnasium.wrappers import NormalizeObservation, NormalizeReward
from gymnasium.wrappers import vector as vector_wrappers
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    EvalCallback,
    EventCallback,
)
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecEnv,
    VecEnvWrapper,
    unwrap_vec_normalize,
    unwrap_vec_wrapper,
)

from sb3_manygoals.goals.buffer import GoalBuffer
from sb3_manygoals.goals.tracker import GoalTracker
from sb3_manygoals.goals.wrapper import (
    GoalBufferWrapper,
    VecGoalBufferWrapper,
    goal_observation_space,
)
from sb3_manygoals.validation import check_action_space, check_kwargs
from sb3_manygoals.vec_env import GymnasiumVecEnv

# What these make of observations and rewards drifts.
_NORMALIZERS = (NormalizeObservation, NormalizeReward)
_VECTOR_NORMALIZERS = (vector_wrappers.NormalizeObservation, vector_wrappers.NormalizeReward)
# Goal wrappers around the environments of one learner must agree in these.
_SHARED_SETTINGS = ("goal_reward", "step_reward", "selector_class", "selector_kwargs")


def find_trackers(env: VecEnv) -> list[GoalTracker]:
    """
    Return the trackers of all goal wrappers in this process.

    :param env: a VecEnv, wrapped or not
    :return: one for a VecGoalBufferWrapper, else one for each environment. Empty if there are none
    """
    wrapper = unwrap_vec_wrapper(env, VecGoalBufferWrapper)
    if isinstance(wrapper, VecGoalBufferWrapper):
        return [wrapper.goal_tracker]
    if not isinstance(env.unwrapped, DummyVecEnv) or not all(env.env_is_wrapped(GoalBufferWrapper)):
        return []
    found: list[GoalTracker] = env.get_attr("goal_tracker")
    return found


def goal_trackers(env: VecEnv) -> list[GoalTracker]:
    """
    Return the trackers of the goal wrappers of a learner's environments.

    :param env: a VecEnv with goal wrappers
    :return: one for a VecGoalBufferWrapper, else one for each environment
    :raises ValueError: if there are none, or they do not share one goal buffer, the same rewards
        and the same kind of selector
    """
    trackers = find_trackers(env)
    if not trackers:
        raise ValueError(
            "env has no goal buffer that can be shared: put a VecGoalBufferWrapper around the "
            "VecEnv, or a GoalBufferWrapper with the same goal_buffer around each environment of a "
            "DummyVecEnv"
        )
    first = trackers[0]
    for tracker in trackers[1:]:
        # Arguments of selectors may be arrays.
        agree = all(
            data_equivalence(getattr(tracker, name), getattr(first, name), exact=True)
            for name in _SHARED_SETTINGS
        )
        if tracker.goal_buffer is not first.goal_buffer or not agree:
            raise ValueError(
                "the GoalBufferWrappers of env must be given the same goal_buffer, "
                f"{', '.join(_SHARED_SETTINGS)}"
            )
    return trackers


def warn_of_unknown_evaluations(callbacks: Iterable[BaseCallback], goal_buffer: GoalBuffer) -> None:
    """
    Warn of each EvalCallback whose environment has a goal wrapper that knows no goals. Its only
    goal would be what it shows, so each episode would succeed at once.

    :param callbacks: callbacks of a training
    :param goal_buffer: the learner's goal buffer, which may still be empty
    """
    for callback in callbacks:
        if isinstance(callback, CallbackList):
            warn_of_unknown_evaluations(callback.callbacks, goal_buffer)
        if isinstance(callback, EventCallback) and callback.callback is not None:
            warn_of_unknown_evaluations([callback.callback], goal_buffer)
        if not isinstance(callback, EvalCallback):
            continue
        for tracker in find_trackers(callback.eval_env):
            is_new = len(tracker.goal_buffer) == 0 and tracker.goal_buffer is not goal_buffer
            if is_new and not tracker.env_sets_goals:
                warnings.warn(
                    "the goal wrapper of an EvalCallback knows no goals, so its episodes would "
                    "succeed at once. Give it those of the model: "
                    "GoalBufferWrapper(env, model.goal_buffer, training=False)",
                    stacklevel=6,
                )
                break


def is_goal_wrapped(env: GymEnv) -> bool:
    """
    Return whether an environment has a goal wrapper, or each environment of a VecEnv has one.

    :param env: an environment or a VecEnv
    :raises TypeError: if it is something else
    """
    given: Any = env
    if not isinstance(given, (gym.Env, VecEnv)):
        advice = ": gymnasium.make makes one" if isinstance(given, str) else ""
        raise TypeError(
            f"env must be a Gymnasium environment or an SB3 VecEnv, got {given!r}{advice}"
        )
    if not isinstance(env, VecEnv):
        return is_wrapped(env, GoalBufferWrapper)
    if unwrap_vec_wrapper(env, VecGoalBufferWrapper) is not None:
        return True
    return all(env.env_is_wrapped(GoalBufferWrapper))


def wrap_goal_env(env: GymEnv, goal_wrapper_kwargs: dict[str, Any] | None = None) -> GymEnv:
    """
    Put a goal wrapper around an environment that has none.

    :param env: an environment or a VecEnv, with a goal wrapper or without
    :param goal_wrapper_kwargs: arguments of the wrapper
    :return: ``env`` with a goal wrapper
    :raises TypeError: if actions are not discrete or observations cannot be goals
    :raises ValueError: if there are arguments, and ``env`` has a wrapper already
    """
    settings = check_kwargs("goal_wrapper_kwargs", goal_wrapper_kwargs)
    has_goals = is_goal_wrapped(env)
    check_action_space(env.action_space)
    if not has_goals:
        if isinstance(env, VecEnv):
            return VecGoalBufferWrapper(env, **settings)
        return GoalBufferWrapper(env, **settings)
    if settings:
        raise ValueError(
            f"goal_wrapper_kwargs {sorted(settings)} given, but env pursues goals already"
        )
    return env


def as_goal_vec_env(env: GymEnv, monitor_wrapper: bool = True) -> VecEnv:
    """
    Return a VecEnv that pursues goals, as SB3's ``_wrap_env`` does without goals. It does not
    transpose images, because networks put the channels first by themselves.

    :param env: an environment or a VecEnv, with a goal wrapper or without
    :param monitor_wrapper: whether to put a Monitor around a single environment that has none
        around its goal wrapper
    :raises TypeError: if actions are not discrete or observations cannot be goals
    :raises ValueError: if a wrapper around the goal wrapper changes observations
    """
    env = wrap_goal_env(env)
    if isinstance(env, VecEnv):
        check_around(env)
        return env
    # A Monitor below the goal wrapper sees the environment's episodes, not the goal episodes.
    layer = env
    while isinstance(layer, gym.Wrapper) and not isinstance(layer, (GoalBufferWrapper, Monitor)):
        layer = layer.env
    if monitor_wrapper and not isinstance(layer, Monitor):
        env = Monitor(env)
    made = DummyVecEnv([lambda: env])
    check_around(made)
    return made


def check_around(env: VecEnv) -> None:
    """
    Raise an error for wrappers under which goals are no longer what is observed.

    :param env: with a goal wrapper
    :raises ValueError: if it has a VecNormalize or a wrapper of Gymnasium that normalizes by a
        running mean, or a wrapper around the goal wrapper that changes
        observations
    """
    normalizer = unwrap_vec_normalize(env)
    if normalizer is not None and normalizer.norm_obs:
        raise ValueError(
            "VecNormalize is not supported: a goal is one exact observation, and what it makes of "
            "an observation drifts. Leave it out: policies standardize observations by themselves"
        )
    if normalizer is not None:
        raise ValueError(
            "VecNormalize is not supported, also with norm_obs=False. It does not change the "
            "rewards of goals, from which a model learns, and the rewards of the environment, "
            "which a model remembers for tasks, must not drift. Leave it out"
        )
    name = _running_normalizer(env.unwrapped)
    if name is not None:
        raise ValueError(
            f"{name} is not supported: what it makes of an observation or a reward drifts, and a "
            "goal is one exact observation. Leave it out, as policies standardize observations by "
            "themselves, or set its update_running_mean to False"
        )
    trackers = find_trackers(env)
    if not trackers:
        return
    goal_buffer = trackers[0].goal_buffer
    expected = goal_observation_space(goal_buffer.observation_space, goal_buffer.goal_space)
    if env.observation_space == expected:
        return
    raise ValueError(
        "a wrapper around the goal wrapper changes observations, "
        f"{', '.join(_wrappers_around(env))}: it showed {expected}, the environment shows "
        f"{env.observation_space}. Put it below, GoalBufferWrapper(Wrapper(env)) or "
        "VecGoalBufferWrapper(VecFrameStack(venv, n))"
    )


def _running_normalizer(env: VecEnv) -> str | None:
    """Return the name of a wrapper of Gymnasium that normalizes by a running mean, if any."""
    for layer in _gymnasium_wrappers(env):
        if isinstance(layer, _NORMALIZERS + _VECTOR_NORMALIZERS) and layer.update_running_mean:
            return type(layer).__name__
    # In other processes, the outermost wrapper that has this attribute answers for all.
    attribute = "update_running_mean"
    if isinstance(env, SubprocVecEnv):
        for kind in _NORMALIZERS:
            rows = np.flatnonzero(env.env_is_wrapped(kind)).tolist()
            if rows and any(env.get_attr(attribute, rows)):
                return kind.__name__
    elif isinstance(env, GymnasiumVecEnv) and isinstance(env.vector_env.unwrapped, AsyncVectorEnv):
        workers = env.vector_env.unwrapped
        have = workers.call("has_wrapper_attr", attribute)
        if any(have) and not all(have):
            raise ValueError(
                f"in an AsyncVectorEnv, all environments or none must have {attribute}: where some "
                "do not have it, nobody can ask the others whether their normalization is frozen"
            )
        if all(have) and any(workers.get_attr(attribute)):
            return f"a wrapper with {attribute}"
    return None


def _gymnasium_wrappers(env: VecEnv) -> Iterator[Any]:
    """Yield Gymnasium's wrappers in an environment, except those in other processes."""
    envs: Iterable[Any] = ()
    if isinstance(env, DummyVecEnv):
        envs = env.envs
    elif isinstance(env, GymnasiumVecEnv):
        vector: Any = env.vector_env
        while isinstance(vector, VectorWrapper):
            yield vector
            vector = vector.env
        if isinstance(vector, SyncVectorEnv):
            envs = vector.envs
    for layer in envs:
        while isinstance(layer, gym.Wrapper):
            yield layer
            layer = layer.env


def _wrappers_around(env: VecEnv) -> list[str]:
    """Return the names of the wrappers outside of the goal wrapper."""
    names = []
    layer: Any = env
    while isinstance(layer, VecEnvWrapper) and not isinstance(layer, VecGoalBufferWrapper):
        names.append(type(layer).__name__)
        layer = layer.venv
    layer = layer.envs[0] if isinstance(layer, DummyVecEnv) else None
    while isinstance(layer, gym.Wrapper) and not isinstance(layer, GoalBufferWrapper):
        names.append(type(layer).__name__)
        layer = layer.env
    return [name for name in names if name != "Monitor"]
