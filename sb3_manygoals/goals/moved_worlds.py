"""Whether somebody moves the environments that a model learns in, as evaluation in them does."""

from __future__ import annotations

from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium.vector import SyncVectorEnv
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from sb3_manygoals.goals.wrapping import find_trackers
from sb3_manygoals.inner_callbacks import inner_callbacks


def marks_of(env: VecEnv) -> tuple[Any, ...]:
    """
    Return what tells whether environments have moved without their goal wrappers: counts of steps,
    and the states of random generators. It differs if somebody evaluated in an environment that was
    given to a model.

    :param env: of a learner. Nothing is seen of environments in other processes, or of native
        vector environments
    :return: marks that are equal if no environment has moved
    """
    inner = getattr(env.unwrapped, "vector_env", env)
    base = inner.unwrapped
    if not isinstance(base, (DummyVecEnv, SyncVectorEnv)):
        return ()
    marks: list[Any] = []
    for layer in base.envs:
        while isinstance(layer, gym.Wrapper):
            if isinstance(layer, gym.wrappers.TimeLimit):
                marks.append(layer._elapsed_steps)
            elif isinstance(layer, Monitor):
                marks.append(layer.total_steps)
            layer = layer.env
        random = getattr(layer, "_np_random", None)
        if isinstance(random, np.random.Generator):
            marks.append(str(random.bit_generator.state))
    return tuple(marks)


def worlds_of(env: Any) -> set[int]:
    """
    Return the ids of the innermost environments that can be seen.

    :param env: an environment, a VecEnv or a Gymnasium vector environment
    """
    base = env.unwrapped
    if isinstance(base, (DummyVecEnv, SyncVectorEnv)):
        return {number for one in base.envs for number in worlds_of(one)}
    inner = getattr(base, "vector_env", None)
    return {id(base)} if inner is None else {id(base)} | worlds_of(inner)


def check_evaluators(callback: BaseCallback, training_env: VecEnv, notices: bool) -> None:
    """
    Raise an error if an EvalCallback moves the environments of training, and the model would not
    notice.

    :param callback: of ``learn()``. Callbacks inside of it are checked too
    :param training_env: of the model
    :param notices: whether the model notices when its goal wrappers are moved
    :raises ValueError: if the callback's environment has one of these environments
    """
    worlds = worlds_of(training_env)
    for one in inner_callbacks(callback):
        if not isinstance(one, EvalCallback) or not worlds_of(one.eval_env) & worlds:
            continue
        theirs = {id(tracker) for tracker in find_trackers(one.eval_env)}
        ours = {id(tracker) for tracker in find_trackers(training_env)}
        if not (notices and theirs & ours):
            refuse_evaluation(one)


def refuse_evaluation(callback: BaseCallback) -> NoReturn:
    """
    Raise an error that says why a callback must not evaluate in the environments of training.

    :param callback: which would do so
    :raises ValueError: always
    """
    raise ValueError(
        f"{type(callback).__name__} evaluates in the environment that the model learns in: the "
        "model would learn from transitions that never happened. Give it an environment of its own"
    )
