"""Goal wrappers in an environment: found, or put around it; and what all learners have that need one."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any, ClassVar, NoReturn, TypeVar

import gymnasium as gym
import numpy as np
from gymnasium.vector import SyncVectorEnv
from numpy.typing import NDArray
from stable_baselines3.common.callbacks import BaseCallback, ConvertCallback, EvalCallback
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecEnv,
    VecEnvWrapper,
    unwrap_vec_normalize,
    unwrap_vec_wrapper,
)

from sb3_manygoals.goals.tracker import GoalTracker
from sb3_manygoals.goals.wrapper import (
    GoalBufferWrapper,
    VecGoalBufferWrapper,
    copy_vec_env,
    goal_observation_space,
)
from sb3_manygoals.random_streams import Stream, generator
from sb3_manygoals.validation import check_action_space, check_number

SelfGoalAlgorithm = TypeVar("SelfGoalAlgorithm", bound="GoalAlgorithm")


_OF_TRAINING = (
    "_n_moves",
    "_n_moves_of_step",
    "_marks",
    "_marks_of_step",
    "_has_callbacks",
    "_warned",
)
"""Attributes that are not saved with a model."""


class GoalAlgorithm(OffPolicyAlgorithm):
    """A learner with a random generator of its own, whose ``set_env`` puts a goal wrapper around an environment without."""

    stream: ClassVar[Stream]
    rng: np.random.Generator
    _n_moves: int | None = None  # of the environments, after the last transition
    _n_moves_of_step: int | None = None  # just after the last step, before any callback
    _marks: tuple[Any, ...] | None = None  # of the worlds, after the last training
    _marks_of_step: tuple[Any, ...] | None = None  # after the last step, where callbacks follow
    _has_callbacks: bool = False  # of the user, in this training
    _warned: frozenset[str] = frozenset()  # what was warned of, once for each model

    def set_random_seed(self, seed: int | None = None) -> None:
        """As SB3's, and of the learner's own generator."""
        super().set_random_seed(seed)
        self.rng = generator(seed, self.stream)

    def __deepcopy__(self: SelfGoalAlgorithm, memo: dict[int, Any]) -> SelfGoalAlgorithm:
        """A learner with environments and goals of its own; ``learn`` gives it a log of its own."""
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        if self.env is not None:
            copy_vec_env(self.env, memo)
        if hasattr(self, "_logger"):
            memo[id(self._logger)] = self._logger  # files that are open cannot be copied
        vars(copied).update(copy.deepcopy(vars(self), memo))
        return copied

    def _require_env(self) -> VecEnv:
        """The environment. A ValueError if there is none, as in a model that was loaded without."""
        if self.env is None:
            raise ValueError(
                "the model has no environment: give it one, load(path, env) or set_env(env)"
            )
        return self.env

    @property
    def _moves(self) -> int:
        return sum(tracker.n_moves for tracker in goal_trackers(self._require_env()))

    def _setup_learn(
        self, total_timesteps: float, *args: Any, **kwargs: Any
    ) -> tuple[int, BaseCallback]:
        self._require_env()
        total = int(check_number("total_timesteps", total_timesteps, "[1, inf)"))
        moved = self._n_moves not in (None, self._moves)  # or an exception ended a rollout
        if moved or self._marks not in (None, marks_of(self._require_env())):
            self._last_obs = None  # so that SB3 resets
        self._marks = None
        prepared = super()._setup_learn(total, *args, **kwargs)
        self._marks_of_step = marks_of(self._require_env()) if self._has_callbacks else None
        self._n_moves = self._moves
        self._n_moves_of_step = self._n_moves
        return prepared

    def _init_callback(self, callback: MaybeCallback, progress_bar: bool = False) -> BaseCallback:
        """
        As SB3's, with one before all others that sees each step while no callback has moved the
        environments.
        """
        assert self.env is not None
        given: list[Any] = callback if isinstance(callback, list) else [callback]
        self._has_callbacks = any(one is not None for one in given)
        convert = ConvertCallback  # as SB3 does with functions and None
        each = [one if isinstance(one, BaseCallback) else convert(one) for one in given]
        prepared = super()._init_callback([_Watch(self), *each], progress_bar)
        check_evaluators(prepared, self.env, notices=True)
        return prepared

    def _sample_action(self, *args: Any, **kwargs: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        self._go_on_from_what_is_shown()
        return super()._sample_action(*args, **kwargs)

    def _go_on_from_what_is_shown(self) -> None:
        """
        Begin new episodes if a callback has moved the environments, so that no transition is made
        up.
        """
        assert self.env is not None
        still = self._n_moves in (None, self._moves)
        if still and (self._marks_of_step is None or self._marks_of_step == marks_of(self.env)):
            return
        what = "a callback has moved the environments that the model learns in"
        who = "as EvalCallback and evaluate_policy do"
        advice = "all their episodes begin anew. Give it an environment of its own"
        self._warn_once("moved", f"{what}, {who}: {advice}")
        self._last_obs = self.env.reset()  # type: ignore[assignment]  # as SB3 does
        self._n_moves = self._moves
        self._n_moves_of_step = self._n_moves
        self._marks_of_step = None

    def _note_transition(self) -> None:
        """To be called where a transition was learned from or stored."""
        self._n_moves = self._n_moves_of_step

    def _warn_once(self, kind: str, message: str) -> None:
        if kind not in self._warned:
            self._warned |= {kind}
            warnings.warn(message, stacklevel=4)

    def _warn_of_unknown_goal(self, desired: NDArray[Any]) -> None:
        """
        Once, if the one goal that the model is asked for was never met and is not held out; not of
        a batch.
        """
        goals = getattr(self, "goal_buffer", None)
        if "unknown" in self._warned or goals is None or len(goals) == 0:
            return
        if desired.shape != goals.shape or desired.dtype.kind not in "iubf":
            return
        found = goals.describe_unknown(desired[None].astype(goals.dtype))
        if found is not None:
            self._warn_once("unknown", found)

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), *_OF_TRAINING]

    @staticmethod
    def _wrap_env(env: GymEnv, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        return as_goal_vec_env(env, monitor_wrapper)

    @classmethod
    def load(
        cls: type[SelfGoalAlgorithm],
        path: Any,
        env: GymEnv | None = None,
        device: Any = "auto",
        custom_objects: dict[str, Any] | None = None,
        print_system_info: bool = False,
        force_reset: bool = True,
        **kwargs: Any,
    ) -> SelfGoalAlgorithm:
        """As SB3's. An ``env`` without goals is wrapped as before. To learn on, load goals and transitions, or it unlearns."""
        if env is not None:
            kwargs["n_envs"] = env.num_envs if isinstance(env, VecEnv) else 1
        model = super().load(
            path, None, device, custom_objects, print_system_info, force_reset, **kwargs
        )
        if env is not None:
            model.set_env(env, force_reset)
            if model.env is not None and model.seed is not None:
                model.env.seed(model.seed)
        return model


class _Watch(BaseCallback):
    """
    Sees how far the environments have come, before other callbacks; and what was not met, at the
    end of training.
    """

    def __init__(self, learner: GoalAlgorithm) -> None:
        super().__init__()
        self.learner = learner

    def _on_step(self) -> bool:
        self.learner._n_moves_of_step = self.learner._moves
        if self.learner._has_callbacks:
            self.learner._marks_of_step = marks_of(self.training_env)
        return True

    def _on_training_end(self) -> None:
        self.learner._marks = marks_of(self.training_env)
        goals = getattr(self.learner, "goal_buffer", None)
        unmet = goals.describe_unmet() if goals is not None and goals.has_held_out else None
        if unmet is not None:
            self.learner._warn_once(unmet, unmet)


def marks_of(env: VecEnv) -> tuple[Any, ...]:
    """
    What tells whether worlds have moved without their goal wrappers, as where somebody evaluates in the environment that a
    model was given: counts of steps, and the states of their random generators.

    :param env: of a learner; in other processes, and in native vector environments, nothing is seen
    :return: marks that are equal if no world has moved
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
    The ids of the innermost environments that can be seen.

    :param env: an environment, a VecEnv or a Gymnasium vector environment
    """
    base = env.unwrapped
    if isinstance(base, (DummyVecEnv, SyncVectorEnv)):
        return {number for one in base.envs for number in worlds_of(one)}
    inner = getattr(base, "vector_env", None)
    return {id(base)} if inner is None else {id(base)} | worlds_of(inner)


def check_evaluators(callback: BaseCallback, training_env: VecEnv, notices: bool) -> None:
    """
    Refuse an EvalCallback that moves the worlds of training, where the model does not notice it.

    :param callback: of ``learn()``; those inside are looked at too
    :param training_env: of the model
    :param notices: whether the model notices when its goal wrappers are moved
    :raises ValueError: if its environment has one of these worlds
    """
    for one in inner_callbacks(callback):
        if not isinstance(one, EvalCallback) or not worlds_of(one.eval_env) & worlds_of(
            training_env
        ):
            continue
        wrappers = ({id(each) for each in _trackers(env)} for env in (one.eval_env, training_env))
        if not (notices and set.intersection(*wrappers)):
            refuse_evaluation(one)


def inner_callbacks(callback: BaseCallback) -> Iterator[BaseCallback]:
    """A callback and all those inside of it."""
    yield callback
    inside = list(getattr(callback, "callbacks", ()))
    inside += [getattr(callback, name, None) for name in ("callback", "callback_on_new_best")]
    for one in inside:
        if isinstance(one, BaseCallback):
            yield from inner_callbacks(one)


def refuse_evaluation(callback: BaseCallback) -> NoReturn:
    """Raise a ValueError that says why a callback must not evaluate in the worlds of training."""
    what = f"{type(callback).__name__} evaluates in the environment that the model learns in"
    why = "the model would learn from transitions that never happened"
    raise ValueError(f"{what}: {why}. Give it an environment of its own")


def _trackers(env: VecEnv) -> list[GoalTracker]:
    """Of all goal wrappers in this process."""
    wrapper = unwrap_vec_wrapper(env, VecGoalBufferWrapper)
    if isinstance(wrapper, VecGoalBufferWrapper):
        return [wrapper.goal_tracker]
    if not isinstance(env.unwrapped, DummyVecEnv) or not all(env.env_is_wrapped(GoalBufferWrapper)):
        return []
    found: list[GoalTracker] = env.get_attr("goal_tracker")
    return found


def goal_trackers(env: VecEnv) -> list[GoalTracker]:
    """
    :return: the trackers of its goal wrappers: one for a VecGoalBufferWrapper, else one an
        environment
    :raises ValueError: if it has none, or they do not share one goal buffer and the same rewards
    """
    trackers = _trackers(env)
    if not trackers:
        around = (
            "a GoalBufferWrapper with the same goal_buffer around each environment of a DummyVecEnv"
        )
        advice = f"put a VecGoalBufferWrapper around the VecEnv, or {around}"
        raise ValueError(f"env has no goal buffer that can be shared: {advice}")
    if len({(id(one.goal_buffer), one.goal_reward, one.step_reward) for one in trackers}) > 1:
        raise ValueError(
            "the GoalBufferWrappers of env must be given the same goal_buffer, goal_reward and step_reward"
        )
    return trackers


def is_goal_wrapped(env: GymEnv) -> bool:
    """:return: whether ``env`` has a goal wrapper, or each of its environments has"""
    if isinstance(env, VecEnv):
        return unwrap_vec_wrapper(env, VecGoalBufferWrapper) is not None or all(
            env.env_is_wrapped(GoalBufferWrapper)
        )
    return is_wrapped(env, GoalBufferWrapper)


def wrap_goal_env(env: GymEnv, goal_wrapper_kwargs: dict[str, Any] | None = None) -> GymEnv:
    """
    :param env: an environment or VecEnv, with a goal wrapper or without
    :param goal_wrapper_kwargs: arguments of the wrapper that is put around it
    :return: ``env`` with a goal wrapper
    :raises TypeError: if actions are not discrete or observations cannot be goals
    :raises ValueError: if there are arguments, and it has a wrapper already
    """
    check_action_space(env.action_space)
    settings = goal_wrapper_kwargs or {}
    if is_goal_wrapped(env):
        if settings:
            raise ValueError(
                f"goal_wrapper_kwargs {sorted(settings)} given, but env pursues goals already"
            )
        return env
    return (
        VecGoalBufferWrapper(env, **settings)
        if isinstance(env, VecEnv)
        else GoalBufferWrapper(env, **settings)
    )


def as_goal_vec_env(env: GymEnv, monitor_wrapper: bool = True) -> VecEnv:
    """
    As SB3's ``_wrap_env``, with goals and without VecTransposeImage, as networks put the channels first. ``monitor_wrapper``:
    whether to put a Monitor around a single environment whose goal episodes none monitors.
    """
    env = wrap_goal_env(env)
    if isinstance(env, VecEnv):
        check_around(env)
        return env
    layer = env  # a Monitor below the goal wrapper sees the environment's episodes
    while isinstance(layer, gym.Wrapper) and not isinstance(layer, (GoalBufferWrapper, Monitor)):
        layer = layer.env
    if monitor_wrapper and not isinstance(layer, Monitor):
        env = Monitor(env)
    made = DummyVecEnv([lambda: env])
    check_around(made)
    return made


def check_around(env: VecEnv) -> None:
    """
    Refuse wrappers under which goals are no longer what is observed.

    :param env: with a goal wrapper
    :raises ValueError: if it has a VecNormalize, or a wrapper around the goal wrapper that changes
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
            "VecNormalize is not supported, also with norm_obs=False: a model learns from the "
            "rewards of its goals, which it does not change, and those of the environment, which the model "
            "remembers for tasks, must not drift. Leave it out"
        )
    trackers = _trackers(env)
    if not trackers:
        return
    goal_space = trackers[0].goal_buffer.observation_space
    if env.observation_space == goal_observation_space(goal_space):
        return
    around = ", ".join(_wrappers_around(env))
    differ = f"goals are of {goal_space}, the environment shows {env.observation_space}"
    single = "GoalBufferWrapper(Wrapper(env))"
    advice = f"Put it below, {single} or VecGoalBufferWrapper(VecFrameStack(venv, n))"
    raise ValueError(
        f"a wrapper around the goal wrapper changes observations, {around}: {differ}. {advice}"
    )


def _wrappers_around(env: VecEnv) -> list[str]:
    """The names of the wrappers outside of the goal wrapper."""
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
