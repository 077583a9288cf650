"""How the observations of an environment become the arrays by which goals are told apart."""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv

from sb3_manygoals.errors import WorkerDied, workers
from sb3_manygoals.packing import PackedSpace, packed_parts
from sb3_manygoals.validation import is_held

_GOAL_ENV_KEYS = ("observation", "achieved_goal", "desired_goal")
# The methods of a GoalEnv that may say which goals are reached.
_METHODS = ("compute_reward", "compute_terminated")
# So many random goals are compared with each other to learn how a GoalEnv says success.
_GOALS_TO_TRY = 6
# Points that lie at these shares of the way from one random goal to the next are compared, too.
# Random goals are far from each other, where a dense reward may have reached its lowest value.
_SHARES_OF_WAYS = np.geomspace(1e-6, 0.3, 12)
# There may be so many different rewards of these points: some sparse rewards have several levels.
_MOST_LEVELS = 5

CallEnv = Callable[..., Any]
"""Calls a method of an environment: its name, then its arguments."""
GoalsFrom = Literal["auto", "env", "achieved"]
"""Whether goals are those that a GoalEnv sets, or those that were achieved."""


class ObservationSource:
    """
    The arrays that a goal wrapper makes of an environment's observations.

    Single arrays stay as they are. Dicts of arrays are packed into one array of bytes
    (:class:`~sb3_manygoals.packing.PackedSpace`). Of the observations of a GoalEnv, ``observation``
    and ``achieved_goal`` are packed, and ``desired_goal`` is the goal that the environment sets.

    :param observation_space: space of the environment's observations
    :raises TypeError: if a part of a Dict cannot be packed
    """

    def __init__(self, observation_space: spaces.Space[Any]) -> None:
        self.observation_space = observation_space
        self.is_goal_env = self.sets_goals(observation_space)
        """Whether the environment sets goals, as Gymnasium-Robotics' GoalEnv does."""
        self.packed: PackedSpace | None = None
        """Space of packed observations. None: they are single arrays."""
        if self.is_goal_env:
            assert isinstance(observation_space, spaces.Dict)
            self.packed = packed_parts(observation_space, leave_out=("desired_goal",))
        elif isinstance(observation_space, spaces.Dict):
            self.packed = packed_parts(observation_space)

    @staticmethod
    def sets_goals(observation_space: spaces.Space[Any]) -> bool:
        """
        Return whether observations are those of a GoalEnv.

        :param observation_space: space of an environment's observations
        """
        if not isinstance(observation_space, spaces.Dict):
            return False
        return set(_GOAL_ENV_KEYS) <= set(observation_space)

    @property
    def space(self) -> spaces.Space[Any]:
        """Space of the arrays."""
        return self.observation_space if self.packed is None else self.packed

    def array(self, observation: Any) -> Any:
        """
        Return what is kept of one observation, or of a batch.

        :param observation: what the environment showed
        :return: an array of :attr:`space`, or n rows of it. A single array stays as it is
        :raises ValueError: if a part is missing, or does not fit its space
        """
        if self.packed is None:
            return observation
        if not isinstance(observation, Mapping):
            raise ValueError(f"the observation must be a dict, got {type(observation).__name__}")
        return self.packed.pack(observation)

    def desired(self, observation: Any) -> NDArray[Any] | None:
        """
        Return the goal that the environment has set.

        :param observation: what the environment showed, one or a batch
        :return: a copy of the goal or the goals, of the space of achieved goals. None if it is no
            GoalEnv
        :raises ValueError: if they do not fit this space
        """
        if not self.is_goal_env:
            return None
        assert isinstance(self.observation_space, spaces.Dict)
        if "desired_goal" not in observation:
            raise ValueError(
                f"the observation must have {list(_GOAL_ENV_KEYS)}, got no 'desired_goal'"
            )
        # Goals are compared with what was achieved, so they have its dtype.
        space = self.observation_space["achieved_goal"]
        # A copy, because environments may move their goal.
        goals = np.array(observation["desired_goal"])
        shape = space.shape or ()
        n_axes = goals.ndim - len(shape)
        fits = n_axes in (0, 1) and goals.shape[n_axes:] == shape
        if not fits or not np.can_cast(goals.dtype, np.dtype(space.dtype), "same_kind"):
            raise ValueError(
                f"'desired_goal' of the observation must be {space.dtype} of shape {shape}, got "
                f"{goals.dtype} of {goals.shape}"
            )
        given = goals
        with np.errstate(over="ignore"):
            goals = given.astype(space.dtype)
        if not is_held(given, goals):
            raise ValueError(
                f"'desired_goal' of the observation must be {space.dtype}, got {given}"
            )
        if goals.dtype.kind == "f" and not np.isfinite(goals).all():
            raise ValueError(f"'desired_goal' of the observation must be finite, got {goals}")
        return goals

    def kinds_of_goals(
        self, kinds: dict[str, Any], call_env: CallEnv | None = None
    ) -> dict[str, Any]:
        """
        Return the arguments of a goal buffer for these observations.

        :param kinds: what the user gave: ``state_key``, ``goal``, ``goal_space`` and ``reached``
        :param call_env: calls a method of the environment. A GoalEnv needs it
        :return: the same arguments, for functions of packed observations
        :raises TypeError: if ``state_key`` or ``goal`` is no function
        :raises ValueError: if ``goal`` is given for a GoalEnv, a GoalEnv's success cannot be found
            out, or ``reached`` is given without ``goal`` for other observations of several parts
        """
        if self.packed is None:
            return kinds
        found = dict(kinds)
        for name in ("state_key", "goal"):
            if kinds[name] is not None and not callable(kinds[name]):
                raise TypeError(f"{name} must be a function, got {kinds[name]!r}")
        part = "observation" if self.is_goal_env else None
        if kinds["state_key"] is not None:
            found["state_key"] = self._of_unpacked(kinds["state_key"], part)
        if not self.is_goal_env:
            if kinds["reached"] is not None and kinds["goal"] is None:
                raise ValueError(
                    "reached needs goal for observations of several parts: give as goal a function "
                    "that returns the part that counts"
                )
            if kinds["goal"] is not None:
                found["goal"] = self._of_unpacked(kinds["goal"], None)
            return found
        if kinds["goal"] is not None or kinds["goal_space"] is not None:
            raise ValueError(
                "goal must not be given: the environment is a GoalEnv, whose observations say what "
                "is achieved"
            )
        assert isinstance(self.observation_space, spaces.Dict)
        space = self.observation_space["achieved_goal"]
        desired = self.observation_space["desired_goal"]
        fits = np.can_cast(np.dtype(desired.dtype), np.dtype(space.dtype), "same_kind")
        if space.shape != desired.shape or not fits:
            raise ValueError(
                "achieved_goal and desired_goal must be of one shape and kind of dtype, got "
                f"{space} and {desired}"
            )
        found["goal"] = self._of_unpacked(_itself, "achieved_goal")
        found["goal_space"] = space
        if kinds["reached"] is None:
            assert call_env is not None
            found["reached"] = EnvReached(space, call_env)
        return found

    def _of_unpacked(self, function: Callable[[Any], Any], part: str | None) -> OfUnpacked:
        """Return a user's function for packed observations, unless it is one already."""
        if isinstance(function, OfUnpacked):
            return function
        assert self.packed is not None
        return OfUnpacked(function, self.packed, part)


def _itself(achieved: NDArray[Any]) -> NDArray[Any]:
    """Return the achieved goal."""
    return achieved


class OfUnpacked:
    """
    A user's function of an observation, as a function of the packed observation.

    :param function: the user's function
    :param packed: space of packed observations
    :param part: the name of the part that the function takes. None: it takes the dict of all parts
    """

    def __init__(self, function: Callable[[Any], Any], packed: PackedSpace, part: str | None):
        self.__wrapped__ = function
        self.packed = packed
        self.part = part

    def __call__(self, observation: NDArray[Any]) -> Any:
        """
        Return what the user's function returns.

        :param observation: a packed observation, uint8, shape ``(size,)``
        """
        parts = self.packed.unpack(observation)
        return self.__wrapped__(parts if self.part is None else parts[self.part])


class EnvReached:
    """
    Whether achievements reach goals, as a GoalEnv says: by ``compute_reward``, if it has two values
    and one of them is that of each goal for itself, or by ``compute_terminated``.

    It finds out which by random goals and, in spaces of floats, by points near them. If the
    environment raises an error for them, it is reset, because some environments know what is a
    success only after a reset. An environment in another process is always reset before, because an
    error would end the process. If a Monitor allows no early resets, nothing is reset. It also
    finds out whether a batch of pairs gives what single pairs give. If not, pairs are asked for one
    by one, with a warning. It is not saved with its environment: a saved one is bound again by the
    goal wrapper of the next environment.

    :param goal_space: space of achieved and desired goals
    :param call_env: calls a method of the environment
    :raises ValueError: if rewards are dense or do not tell, and ``compute_terminated`` neither; or
        if batches of goals end the process of the environment
    """

    def __init__(self, goal_space: spaces.Space[Any], call_env: CallEnv) -> None:
        self._call_env = call_env
        # Sampling would change the random numbers of the user's space.
        space = copy.deepcopy(goal_space)
        space.seed(0)
        goals = np.stack([np.asarray(space.sample()) for _ in range(_GOALS_TO_TRY)])
        goals = np.unique(goals, axis=0)
        left = np.repeat(goals, len(goals), axis=0)
        right = np.tile(goals, (len(goals), *[1] * (goals.ndim - 1)))
        is_same = np.eye(len(goals), dtype=np.bool_).ravel()
        if isinstance(call_env, _EnvCaller) and call_env.may_be_reset:
            methods = () if isinstance(call_env, _WorkerCaller) else _METHODS
            errors = [self._tried(name, left[:1], right[:1])[1] for name in methods]
            if not methods or any(error is not None for error in errors):
                call_env("reset")
        self.method, self.success_value = self._find_method(left, right, is_same)
        self._is_batched = self._agrees_in_batches(left, right)

    def _one_by_one(
        self, method: str, achieved: NDArray[Any], desired: NDArray[Any]
    ) -> NDArray[np.float64]:
        """Return what a method of the environment says of single pairs, shape ``(n,)``."""
        pairs = zip(achieved, desired, strict=True)
        found = [self._call_env(method, one, other, {}) for one, other in pairs]
        return np.array(found, dtype=np.float64).reshape(len(achieved))

    def _find_method(
        self, left: NDArray[Any], right: NDArray[Any], is_same: NDArray[np.bool_]
    ) -> tuple[str, float]:
        """Return the method that tells success, and what it returns then."""
        rewards, why_none = self._tried("compute_reward", left, right)
        is_dense = False
        if rewards is not None:
            is_dense = len(np.unique(rewards)) > 2
            of_success = rewards[is_same][0]
            # Different goals may be near enough to each other.
            tells = (rewards[is_same] == of_success).all() and (rewards != of_success).any()
            if tells and not is_dense:
                # Random goals are far from each other, where a dense reward may be cut off.
                near, _ = self._tried("compute_reward", *_on_the_way(np.unique(left, axis=0)))
                if near is None or len(np.unique(near)) <= _MOST_LEVELS:
                    return "compute_reward", float(of_success)
                is_dense = True
                rewards = near
        terminated, _ = self._tried("compute_terminated", left, right)
        if terminated is not None and terminated[is_same].all() and not terminated.all():
            return "compute_terminated", 1.0
        if is_dense:
            assert rewards is not None
            raise ValueError(
                "the environment has dense rewards, which do not say when a goal is reached: "
                f"compute_reward gave {len(np.unique(rewards))} different ones for {len(rewards)} "
                "pairs. Make it with sparse rewards, or give reached, a distance or a function"
            )
        if why_none is not None:
            raise ValueError(
                "the environment does not say when a goal is reached: its compute_reward raised "
                f"{why_none!r}. Give reached, a distance or a function"
            ) from why_none
        raise ValueError(
            "the environment does not say when a goal is reached: compute_reward does not tell a "
            "goal that is reached from others, and compute_terminated neither. Give reached, a "
            "distance or a function"
        )

    def _tried(
        self, method: str, left: NDArray[Any], right: NDArray[Any]
    ) -> tuple[NDArray[np.float64] | None, Exception | None]:
        """Return what a method says of pairs, None if there is no such method, and its error."""
        try:
            return self._one_by_one(method, left, right), None
        except (_NoMethodError, NotImplementedError):
            return None, None
        except WorkerDied:
            raise
        except Exception as error:
            # Methods of environments may raise anything for goals that they have not set.
            return None, error

    def _agrees_in_batches(self, left: NDArray[Any], right: NDArray[Any]) -> bool:
        """Return whether the method takes batches. It warns if not."""
        expected = self._one_by_one(self.method, left, right)
        try:
            found = np.asarray(self._in_batch(left, right))
        except WorkerDied as error:
            raise ValueError(
                f"{self.method} of the environment raised an error for a batch of goals, which "
                "ended its process: let it reduce over the last axis, axis=-1, use a DummyVecEnv, "
                "or give reached"
            ) from error
        except Exception:
            # Methods that were written for single goals may raise anything.
            found = np.zeros(0)
        if found.shape == expected.shape and np.array_equal(found.astype(np.float64), expected):
            return True
        warnings.warn(
            f"{self.method} of the environment does not take batches of goals: it is called for "
            "each pair alone, which is slow. Let it reduce over the last axis, axis=-1",
            stacklevel=7,
        )
        return False

    def _in_batch(self, achieved: NDArray[Any], desired: NDArray[Any]) -> Any:
        """Return what the method says of a batch."""
        # Thousands of dictionaries would take as long as the distances.
        return self._call_env(self.method, achieved, desired, [{}] * len(achieved))

    @property
    def is_bound(self) -> bool:
        """Whether there is an environment to ask."""
        return self._call_env is not _no_env

    def bind(self, call_env: CallEnv) -> None:
        """
        Ask another environment of the same kind from now on.

        :param call_env: calls a method of the environment
        """
        self._call_env = call_env

    def __getstate__(self) -> dict[str, Any]:
        # A saved model is bound to the next environment that it gets.
        return {**vars(self), "_call_env": _no_env}

    def __deepcopy__(self, memo: dict[int, Any]) -> EnvReached:
        # A copy would ask the same environment.
        return self

    def __call__(self, achieved: NDArray[Any], desired: NDArray[Any]) -> NDArray[np.bool_]:
        """
        Return which achievements reach the goals beside them.

        :param achieved: shape ``(n, *goal_space.shape)``
        :param desired: the same shape
        :return: shape ``(n,)``
        """
        if self._is_batched and len(achieved):
            found = np.asarray(self._in_batch(achieved, desired), dtype=np.float64)
        else:
            found = self._one_by_one(self.method, achieved, desired)
        return np.asarray(found == self.success_value)


def _on_the_way(goals: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return points on the ways between goals, and the goals from which they lead; none of ints."""
    if goals.dtype.kind != "f":
        return goals[:0], goals[:0]
    starts = goals[:-1]
    points = [(1.0 - share) * starts + share * goals[1:] for share in _SHARES_OF_WAYS]
    near = np.concatenate(points).astype(goals.dtype)
    return near, np.tile(starts, (len(points), *[1] * (goals.ndim - 1)))


def env_sets_goals(goals_from: GoalsFrom, source: ObservationSource) -> bool:
    """
    Return whether the environment's own goals are pursued.

    :param goals_from: what the user asked for
    :param source: the environment's observations
    :raises ValueError: if ``goals_from`` is none of its values, or asks for the goals of an
        environment that sets none
    """
    if goals_from not in get_args(GoalsFrom):
        kinds = ", ".join(map(repr, get_args(GoalsFrom)))
        raise ValueError(f"goals_from must be one of {kinds}, got {goals_from!r}")
    if goals_from == "env" and not source.is_goal_env:
        raise ValueError(
            'goals_from="env" needs a GoalEnv, whose observations are a Dict of '
            f"{', '.join(_GOAL_ENV_KEYS)}, got {source.observation_space}"
        )
    return source.is_goal_env and goals_from != "achieved"


def _no_env(name: str, *args: Any) -> Any:
    """Stand for the environment that a loaded model does not have yet."""
    raise ValueError(
        f"{name} of the environment says which goals are reached, and there is no environment: "
        "load the model with one, load(path, env)"
    )


def caller_of(env: gym.Env[Any, Any] | VecEnv) -> CallEnv:
    """
    Return a function that calls a method of an environment.

    :param env: an environment, or a VecEnv, whose first environment answers
    """
    if not isinstance(env, VecEnv):
        return _Caller(env)
    if isinstance(env.unwrapped, SubprocVecEnv):
        return _WorkerCaller(env)
    return _VecCaller(env)


class _EnvCaller(ABC):
    """Calls methods of an environment."""

    @abstractmethod
    def __call__(self, name: str, *args: Any) -> Any:
        """
        Call a method.

        :param name: of the method
        :param args: its arguments
        :return: what it returns
        :raises _NoMethodError: if there is no such method
        """

    @property
    @abstractmethod
    def may_be_reset(self) -> bool:
        """Whether a reset does no harm. To some Monitors, a second one is an error."""


class _Caller(_EnvCaller):
    """
    Calls methods of an environment.

    :param env: the environment
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        self.env = env

    def __call__(self, name: str, *args: Any) -> Any:
        if not self.env.has_wrapper_attr(name):
            raise _NoMethodError(name)
        return self.env.get_wrapper_attr(name)(*args)

    @property
    def may_be_reset(self) -> bool:
        name = "allow_early_resets"
        return not self.env.has_wrapper_attr(name) or bool(self.env.get_wrapper_attr(name))


class _VecCaller(_EnvCaller):
    """
    Calls methods of the first environment of a VecEnv.

    :param env: the VecEnv
    """

    def __init__(self, env: VecEnv) -> None:
        self.env = env

    def __call__(self, name: str, *args: Any) -> Any:
        try:
            return self.env.env_method(name, *args, indices=[0])[0]
        except AttributeError as error:
            # The method itself may have raised it.
            if self.env.has_attr(name):
                raise
            raise _NoMethodError(name) from error

    @property
    def may_be_reset(self) -> bool:
        name = "allow_early_resets"
        return not self.env.has_attr(name) or bool(self.env.get_attr(name, [0])[0])


class _WorkerCaller(_VecCaller):
    """
    Calls methods of the first environment of a SubprocVecEnv, in its process.

    :param env: the SubprocVecEnv, wrapped or not
    """

    def __call__(self, name: str, *args: Any) -> Any:
        # An error would end the process.
        if not self.env.has_attr(name):
            raise _NoMethodError(name)
        with workers(self.env):
            return self.env.env_method(name, *args, indices=[0])[0]


class _NoMethodError(AttributeError):
    """Raised if an environment does not have a method."""
