"""What all off-policy learners with goals have: a goal wrapper, and eyes for who moves it."""

from __future__ import annotations

import copy
import inspect
import io
import pathlib
import warnings
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable
from typing import Any, ClassVar, TypeVar

import cloudpickle
import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.callbacks import BaseCallback, ConvertCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback
from stable_baselines3.common.vec_env import VecEnv

from sb3_manygoals.checkpoint.functions import can_be_pickled
from sb3_manygoals.goals.buffer import KINDS_OF_GOALS
from sb3_manygoals.goals.moved_worlds import check_evaluators, marks_of
from sb3_manygoals.goals.tracker import GoalTracker
from sb3_manygoals.goals.wrapper import DEFAULTS_OF_EPISODES, copy_vec_env
from sb3_manygoals.goals.wrapping import as_goal_vec_env, goal_trackers, is_goal_wrapped
from sb3_manygoals.inner_callbacks import inner_callbacks
from sb3_manygoals.random_streams import Stream, generator
from sb3_manygoals.validation import (
    check_count,
    check_kwargs,
    check_number,
    check_seed,
    is_held,
)

SelfGoalAlgorithm = TypeVar("SelfGoalAlgorithm", bound="GoalAlgorithm")


class GoalAlgorithm(OffPolicyAlgorithm):
    """
    A learner with a random generator of its own, whose ``set_env`` puts a goal wrapper around an
    environment that has none. It notices if a callback moves the environments that it learns in,
    and then begins new episodes, so that it learns from no transition that never happened.
    """

    stream: ClassVar[Stream]
    """Its stream of random numbers."""
    rng: np.random.Generator
    """Its own random generator."""
    goal_reward: float
    """The goal wrapper's reward of a transition that reaches its goal."""
    step_reward: float
    """The goal wrapper's reward of every other transition."""
    goal_wrapper_kwargs: dict[str, Any]
    """
    What the user gave for the goal wrapper that is put around an environment without one. Some
    arguments say how episodes are. Those that the last environment's goal wrapper was given take
    their place, and only those are saved.
    """

    # What the goal wrapper of the last environment was given. It takes the place of those arguments
    # that say how episodes are. None before the first environment. In a model that was loaded it is
    # pickled until it is needed, because the user's classes may not be at hand to predict only.
    _asked_of_wrapper: dict[str, Any] | bytes | None = None
    # Moves of the environments after the last transition that was learned from or stored.
    _n_moves: int | None = None
    # The same just after the last step, before any callback was called.
    _n_moves_of_step: int | None = None
    # Marks of the environments after the last training.
    _marks: tuple[Any, ...] | None = None
    # Marks of the environments after the last step, if the user has given callbacks.
    _marks_of_step: tuple[Any, ...] | None = None
    # Whether the user has given callbacks to this training.
    _has_callbacks: bool = False
    # What was warned of, once for each model.
    _warned: frozenset[str] = frozenset()

    _NOT_SAVED_OF_TRAINING: ClassVar[tuple[str, ...]] = (
        "_n_moves",
        "_n_moves_of_step",
        "_marks",
        "_marks_of_step",
        "_has_callbacks",
        "_warned",
    )

    def set_random_seed(self, seed: int | None = None) -> None:
        """
        Seed all random generators, the learner's own too.

        :param seed: None for other random numbers in every run
        :raises ValueError: if NumPy takes no such seed
        """
        seed = check_seed(seed)
        super().set_random_seed(seed)
        self.rng = generator(seed, self.stream)

    def __deepcopy__(self: SelfGoalAlgorithm, memo: dict[int, Any]) -> SelfGoalAlgorithm:
        """Copy environments and goals too. The next ``learn`` gives the copy a log of its own."""
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        if self.env is not None:
            copy_vec_env(self.env, memo)
        if hasattr(self, "_logger"):
            # Open files cannot be copied.
            memo[id(self._logger)] = self._logger
        for name, value in vars(self).items():
            vars(copied)[name] = copy.deepcopy(value, memo)
        return copied

    def _require_env(self) -> VecEnv:
        """Return the environment. A model that was loaded without one raises a ValueError."""
        if self.env is None:
            raise ValueError(
                "the model has no environment: give it one, load(path, env) or set_env(env)"
            )
        return self.env

    def _note_wrapper(self) -> None:
        """Note what the goal wrapper was given, for environments that come without one."""
        self._asked_of_wrapper = dict(goal_trackers(self._require_env())[0].asked)

    def _kwargs_of_wrapper(self) -> dict[str, Any]:
        """
        Return arguments of the goal wrapper to put around an environment that has none, without
        those that the goal buffer has.
        """
        asked = self._asked_of_wrapper
        if isinstance(asked, bytes):
            asked = cloudpickle.loads(asked)
            self._asked_of_wrapper = asked
        settings = {**self._kwargs_that_still_count(), **(asked or {})}
        return {
            name: copy.deepcopy(value)
            for name, value in settings.items()
            if name not in KINDS_OF_GOALS
        }

    @property
    @abstractmethod
    def _is_trained(self) -> bool:
        """Whether the model has learned with its rewards."""

    def _keep_rewards(self, settings: dict[str, Any]) -> dict[str, Any]:
        """
        Return arguments of a goal wrapper with the rewards that the model was trained with.

        :param settings: the arguments, which may leave the rewards out
        :raises ValueError: if they have other rewards
        """
        for name in ("goal_reward", "step_reward"):
            learned = getattr(self, name)
            if settings.setdefault(name, learned) != learned:
                raise ValueError(
                    f"goal_wrapper_kwargs must have {name}={learned}, with which the model was "
                    f"trained, got {settings[name]}"
                )
        return settings

    def _check_rewards(self, tracker: GoalTracker) -> None:
        """
        Raise a ValueError if a goal wrapper has other rewards than the model was trained with.

        :param tracker: the goal wrapper's, or its first one
        """
        learned = (self.goal_reward, self.step_reward)
        theirs = (tracker.goal_reward, tracker.step_reward)
        if theirs != learned:
            raise ValueError(
                "env's goal wrapper must have the model's goal_reward and step_reward, "
                f"{learned}, got {theirs}"
            )

    def _kwargs_that_still_count(self) -> dict[str, Any]:
        """Return the user's arguments of goal wrappers, but those that the last wrapper says."""
        if self._asked_of_wrapper is None:
            return self.goal_wrapper_kwargs
        return {
            name: value
            for name, value in self.goal_wrapper_kwargs.items()
            if name not in DEFAULTS_OF_EPISODES
        }

    def save(
        self,
        path: str | pathlib.Path | io.BufferedIOBase,
        exclude: Iterable[str] | None = None,
        include: Iterable[str] | None = None,
    ) -> None:
        """
        Save the learner and its settings, as SB3 does.

        :param path: path of the file, or an open file
        :param exclude: names of attributes that are not saved besides those that never are
        :param include: names of attributes that are saved although they are not by default
        """
        asked = self._asked_of_wrapper
        settings = self.goal_wrapper_kwargs
        self.goal_wrapper_kwargs = self._kwargs_that_still_count()
        if isinstance(asked, dict):
            unsaved = [name for name, value in asked.items() if not can_be_pickled(value)]
            if unsaved:
                warnings.warn(
                    f"{' and '.join(unsaved)} of the goal wrapper cannot be pickled, and so not be "
                    "saved: load the model with an environment whose goal wrapper has them",
                    stacklevel=3,
                )
            kept = {name: value for name, value in asked.items() if name not in unsaved}
            self._asked_of_wrapper = cloudpickle.dumps(kept)
        try:
            super().save(path, exclude, include)
        finally:
            self._asked_of_wrapper = asked
            self.goal_wrapper_kwargs = settings

    @property
    def _moves(self) -> int:
        """How often the goal wrappers have moved so far."""
        return sum(tracker.n_moves for tracker in goal_trackers(self._require_env()))

    def _setup_learn(
        self, total_timesteps: float, *args: Any, **kwargs: Any
    ) -> tuple[int, BaseCallback]:
        """Prepare training. If the environments were moved since the last one, reset them."""
        env = self._require_env()
        total = int(check_number("total_timesteps", total_timesteps, at_least=1))
        # The wrappers have also moved if an exception ended a rollout.
        wrappers_moved = self._n_moves not in (None, self._moves)
        if wrappers_moved or self._marks not in (None, marks_of(env)):
            self._last_obs = None
        self._marks = None
        trackers = goal_trackers(env)
        for tracker in trackers:
            tracker.has_learned = True
        if not all(tracker.training for tracker in trackers):
            self._warn_once(
                "training",
                "the goal wrapper of the environment has training=False, so nothing that is met "
                "becomes a goal or a state: to learn, wrap the environment with training=True",
            )
        prepared = super()._setup_learn(total, *args, **kwargs)
        self._marks_of_step = marks_of(env) if self._has_callbacks else None
        self._n_moves = self._moves
        self._n_moves_of_step = self._n_moves
        return prepared

    def _init_callback(self, callback: MaybeCallback, progress_bar: bool = False) -> BaseCallback:
        """Put a callback before all others that sees each step before they move environments."""
        assert self.env is not None
        given: list[Any] = callback if isinstance(callback, list) else [callback]
        self._has_callbacks = any(one is not None for one in given)
        # SB3 converts functions and None likewise.
        callbacks = [
            one if isinstance(one, BaseCallback) else ConvertCallback(one) for one in given
        ]
        prepared = super()._init_callback([_WatchCallback(self), *callbacks], progress_bar)
        check_evaluators(prepared, self.env, notices=True)
        return prepared

    def _sample_action(self, *args: Any, **kwargs: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        """Choose actions for what the environments really show."""
        self._begin_anew_if_moved()
        return super()._sample_action(*args, **kwargs)

    def _begin_anew_if_moved(self) -> None:
        """Reset the environments if a callback has moved them, so that no transition is made up."""
        assert self.env is not None
        wrappers_moved = self._n_moves not in (None, self._moves)
        marks = self._marks_of_step
        worlds_moved = marks is not None and marks != marks_of(self.env)
        if not wrappers_moved and not worlds_moved:
            return
        self._warn_once(
            "moved",
            "a callback has moved the environments that the model learns in, as EvalCallback and "
            "evaluate_policy do: all their episodes begin anew. Give it an environment of its own",
        )
        self._last_obs = self.env.reset()  # type: ignore[assignment]  # as SB3 does
        self._n_moves = self._moves
        self._n_moves_of_step = self._n_moves
        self._marks_of_step = None

    def _note_transition(self) -> None:
        """Note that a transition was learned from or stored. Subclasses call it."""
        self._n_moves = self._n_moves_of_step

    def _warn_once(self, kind: str, message: str) -> None:
        """Warn if this model has not warned of this kind before."""
        if kind not in self._warned:
            self._warned |= {kind}
            warnings.warn(message, stacklevel=4)

    def _warn_of_unknown_goal(self, desired: NDArray[Any]) -> None:
        """
        Warn once if the model is asked for a goal that was never met and is not held out. Batches
        of goals are not looked at.
        """
        goals = getattr(self, "goal_buffer", None)
        if "unknown" in self._warned or goals is None or len(goals) == 0:
            return
        if desired.shape != goals.shape or desired.dtype.kind not in "iubf":
            return
        with np.errstate(invalid="ignore", over="ignore"):
            own = desired[None].astype(goals.dtype)
        if not is_held(desired[None], own):
            return
        message = goals.describe_unknown(own)
        if message is not None:
            self._warn_once("unknown", message)

    def _excluded_save_params(self) -> list[str]:
        """Return the names of attributes that are not saved with a model."""
        return [*super()._excluded_save_params(), *self._NOT_SAVED_OF_TRAINING]

    @staticmethod
    def _wrap_env(env: GymEnv, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        """Return the environment as a VecEnv that pursues goals."""
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
        """
        Load a model that ``save`` saved. To learn on, it needs what it knew of the world and its
        transitions too, or it unlearns: see :meth:`ManyGoalsDQN.load_all
        <sb3_manygoals.ManyGoalsDQN.load_all>`.

        :param path: path of the file, or an open file
        :param env: environment to learn on in. One without goals is wrapped as it was before. None
            to predict only
        :param device: device of the networks
        :param custom_objects: by name, attributes to replace by others
        :param print_system_info: whether to print information on the systems that saved and load
        :param force_reset: whether to reset the environment before training goes on
        :param kwargs: arguments of the constructor to change, but not ``policy``.
            ``goal_wrapper_kwargs`` take the place of all that goal wrappers were given before, but
            a trained model keeps its rewards
        :return: the model
        :raises ValueError: if an argument is out of its range, or ``policy`` is given. Or if
            ``goal_wrapper_kwargs`` are given beside an ``env`` with a goal wrapper, say of which
            kind goals are, which the model knows, or have other rewards than a trained model
        """
        if "policy" in kwargs:
            raise ValueError(
                f"policy must be left out, got {kwargs['policy']!r}: the model goes on with the "
                "policy that was saved"
            )
        _warn_of_unknown(cls, kwargs)
        if "goal_wrapper_kwargs" in kwargs:
            settings = _checked_wrapper_kwargs(kwargs["goal_wrapper_kwargs"], env)
            kwargs = {**kwargs, "goal_wrapper_kwargs": settings, "_asked_of_wrapper": None}
        window = None
        if "stats_window_size" in kwargs:
            window = check_count("stats_window_size", kwargs.pop("stats_window_size"))
            # SB3 keeps it by another name.
            kwargs["_stats_window_size"] = window
        if env is not None:
            kwargs["n_envs"] = env.num_envs if isinstance(env, VecEnv) else 1
        model = super().load(
            path, None, device, custom_objects, print_system_info, force_reset, **kwargs
        )
        if model._asked_of_wrapper == {}:
            # An earlier version wrote this where goal_wrapper_kwargs say all.
            model._asked_of_wrapper = None
        if window is not None:
            for name in ("ep_info_buffer", "ep_success_buffer"):
                episodes = getattr(model, name)
                if episodes is not None:
                    setattr(model, name, deque(episodes, maxlen=window))
        if "goal_wrapper_kwargs" in kwargs and model._is_trained:
            # With an environment, set_env would find it out. Without one, nothing else would.
            model._keep_rewards(dict(model.goal_wrapper_kwargs))
        if env is not None:
            model.set_env(env, force_reset)
            if model.env is not None and model.seed is not None:
                model.env.seed(model.seed)
        return model


def _warn_of_unknown(cls: type[GoalAlgorithm], kwargs: dict[str, Any]) -> None:
    """Warn of arguments of ``load`` that the constructor does not take."""
    known: set[str] = {"num_timesteps"}
    for kind in cls.__mro__[:-1]:
        parameters = inspect.signature(kind.__init__).parameters  # type: ignore[misc]
        known |= parameters.keys()
        kinds = [parameter.kind for parameter in parameters.values()]
        is_own = kind.__module__.partition(".")[0] == __name__.partition(".")[0]
        if is_own and inspect.Parameter.VAR_KEYWORD not in kinds:
            # The classes above it are SB3's, and have arguments that it does not take. A user's
            # subclass may take fewer arguments, but loading changes them all the same.
            break
    unknown = [name for name in kwargs if name not in known and not name.startswith("_")]
    if unknown:
        warnings.warn(
            f"load was given {' and '.join(unknown)}, which {cls.__name__} does not take: it only "
            "becomes an attribute of the model",
            stacklevel=4,
        )


def _checked_wrapper_kwargs(value: Any, env: GymEnv | None) -> dict[str, Any]:
    """Return ``goal_wrapper_kwargs`` of ``load``. An error if they would not be used."""
    settings = check_kwargs("goal_wrapper_kwargs", value)
    if settings and env is not None and is_goal_wrapped(env):
        raise ValueError(
            f"goal_wrapper_kwargs {sorted(settings)} given, but env pursues goals already"
        )
    names = ("goal_buffer", *KINDS_OF_GOALS)
    known = [name for name in names if settings.get(name) is not None]
    if known:
        raise ValueError(
            f"goal_wrapper_kwargs must leave out {' and '.join(known)}: the model knows of which "
            "kind its goals are. Other goals need a model of their own"
        )
    return copy.deepcopy(settings)


class _WatchCallback(BaseCallback):
    """
    Sees how far the environments have come, before other callbacks. At the end of training it says
    which held-out observations were never met, and which goals of a list were never achieved. It
    makes callbacks forget each other.
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
        if goals is not None:
            unmet = goals.describe_unmet() if goals.has_held_out else None
            if unmet is not None:
                self.learner._warn_once(unmet, unmet)
            if "unachieved" not in self.learner._warned:
                unachieved = goals.describe_unachieved()
                if unachieved is not None:
                    self.learner._warn_once("unachieved", unachieved)
        # The local variables that SB3 gives to callbacks refer to all of them, and to the model. In
        # this circle, a model of gigabytes would stay after nothing else refers to it.
        for one in inner_callbacks(self.locals["callback"]):
            one.locals.pop("callback", None)
