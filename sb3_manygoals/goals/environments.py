"""Goal wrappers in an environment: found, or put around it; and what all learners have that need one."""

import copy
from typing import Any, ClassVar, TypeVar

import gymnasium as gym
import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, unwrap_vec_wrapper

from sb3_manygoals.checks import check_action_space, check_number
from sb3_manygoals.goals.tracker import GoalTracker
from sb3_manygoals.goals.wrapper import (
    GoalBufferWrapper,
    VecGoalBufferWrapper,
    copy_vec_env,
)
from sb3_manygoals.random_streams import Stream, generator

SelfGoalAlgorithm = TypeVar("SelfGoalAlgorithm", bound="GoalAlgorithm")


class GoalAlgorithm(OffPolicyAlgorithm):
    """A learner with a random generator of its own, whose ``set_env`` puts a goal wrapper around an environment without."""

    stream: ClassVar[Stream]
    rng: np.random.Generator
    _n_moves: int | None = None  # of the environments, at the last transition

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
        if self._n_moves not in (
            None,
            self._moves,
        ):  # an evaluation, or an exception within a rollout
            self._last_obs = None  # so that SB3 resets
        return super()._setup_learn(total, *args, **kwargs)

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


def goal_trackers(env: VecEnv) -> list[GoalTracker]:
    """
    :return: the trackers of its goal wrappers: one for a VecGoalBufferWrapper, else one an environment
    :raises ValueError: if it has none, or they do not share one goal buffer and the same rewards
    """
    wrapper = unwrap_vec_wrapper(env, VecGoalBufferWrapper)
    if isinstance(wrapper, VecGoalBufferWrapper):
        return [wrapper.goal_tracker]
    if not isinstance(env.unwrapped, DummyVecEnv) or not all(env.env_is_wrapped(GoalBufferWrapper)):
        around = (
            "a GoalBufferWrapper with the same goal_buffer around each environment of a DummyVecEnv"
        )
        advice = f"put a VecGoalBufferWrapper around the VecEnv, or {around}"
        raise ValueError(f"env has no goal buffer that can be shared: {advice}")
    trackers: list[GoalTracker] = env.get_attr("goal_tracker")
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


def pursue_goals(env: GymEnv, goal_wrapper_kwargs: dict[str, Any] | None = None) -> GymEnv:
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
    env = pursue_goals(env)
    if isinstance(env, VecEnv):
        return env
    layer = env  # a Monitor below the goal wrapper sees the environment's episodes
    while isinstance(layer, gym.Wrapper) and not isinstance(layer, (GoalBufferWrapper, Monitor)):
        layer = layer.env
    if monitor_wrapper and not isinstance(layer, Monitor):
        env = Monitor(env)
    return DummyVecEnv([lambda: env])
