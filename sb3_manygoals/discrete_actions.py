"""A wrapper that offers some actions of an environment, such as a few of continuous ones."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterable
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_manygoals.validation import check_count, one_action

SelfDiscreteActions = TypeVar("SelfDiscreteActions", bound="DiscreteActions")

# Actions of these spaces are arrays, or numbers, of one shape and dtype.
_ARRAY_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
# A grid has at most so many actions. Each of them must be tried in each state.
_MOST_IN_GRID = 10_000


class DiscreteActions(gym.ActionWrapper[Any, Any, Any], gym.utils.RecordConstructorArgs):
    """
    Offers n actions of an environment, numbered from 0, to learners that need few actions. The
    environment's own actions may be of any space: Box, MultiDiscrete, MultiBinary, a Discrete that
    does not start at 0, or others. If those are Discrete, ``info["action_mask"]`` and
    ``action_masks()`` become those of the actions that are offered. Else ``info["action_mask"]`` is
    left out of infos, since it is for other actions.

    :param env: an environment. In a VecEnv, wrap each one:
        ``make_vec_env(id, n_envs, wrapper_class=DiscreteActions, wrapper_kwargs={"actions": ...})``
    :param actions: the n actions to offer, an array of shape ``(n, *env.action_space.shape)``, or
        any sequence of n actions of ``env.action_space``. Their numbers must be of its dtype, or
        equal after a cast; floats may be rounded to its precision
    :raises TypeError: if ``actions`` is no sequence
    :raises ValueError: if there are no actions, or one of them is not in ``env.action_space``
    """

    action_space: spaces.Discrete  # type: ignore[override]
    actions: NDArray[Any] | list[Any]
    """
    The actions that are offered, by their numbers: an array of shape
    ``(n, *env.action_space.shape)`` with the dtype of this space, or a list if it is a space of
    other things than arrays.
    """

    def __init__(self, env: gym.Env[Any, Any], actions: Iterable[Any]) -> None:
        if not isinstance(actions, Iterable):
            raise TypeError(f"actions must be a sequence of actions, got {actions!r}")
        actions = list(actions)
        gym.utils.RecordConstructorArgs.__init__(self, actions=actions)
        super().__init__(env)
        space = env.action_space
        if not actions:
            raise ValueError(f"actions must have at least one action of {space}, got none")
        own = [_own_action(action, number, space) for number, action in enumerate(actions)]
        self.actions = np.stack(own) if isinstance(space, _ARRAY_SPACES) else own
        self.action_space = spaces.Discrete(len(actions))
        if isinstance(space, spaces.Discrete) and env.has_wrapper_attr("action_masks"):
            # Only then, because sb3-contrib takes the method as a sign that there are masks.
            self.action_masks = self._action_masks

    def _action_masks(self) -> NDArray[Any]:
        """Return which of the actions that are offered are allowed, shape ``(n,)``."""
        return self._masks_of_offered(self.env.get_wrapper_attr("action_masks")())

    def _masks_of_offered(self, masks: Any) -> NDArray[Any]:
        """Return the masks of the actions that are offered, given those of the environment."""
        space = self.env.action_space
        assert isinstance(space, spaces.Discrete)
        assert isinstance(self.actions, np.ndarray)
        own = np.asarray(masks)
        if own.shape != (space.n,):
            raise ValueError(
                f"an action mask of env must be of shape ({space.n},), one entry for each of its "
                f"actions, got {own.shape}"
            )
        return np.asarray(own[self.actions - space.start])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """
        Reset the environment.

        :param seed: seed of the environment
        :param options: options of the environment
        :return: the first observation, and its info
        :raises ValueError: if the info has an action mask of another shape than the environment's
            Discrete actions
        """
        observation, info = self.env.reset(seed=seed, options=options)
        return observation, self._with_masks(info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """
        Make a step of the environment.

        :param action: the number of an action, an integer of shape () or (1,)
        :return: the observation, the reward, whether the episode has terminated, whether it was
            truncated, and the info
        :raises ValueError: if there is no such number, or the info has an action mask of another
            shape than the environment's Discrete actions
        """
        observation, reward, terminated, truncated, info = self.env.step(self.action(action))
        return observation, reward, terminated, truncated, self._with_masks(info)

    def _with_masks(self, info: dict[str, Any]) -> dict[str, Any]:
        """Return an info whose action mask, if there is one, is that of the actions offered."""
        if "action_mask" not in info:
            return info
        if not isinstance(self.env.action_space, spaces.Discrete):
            return {key: value for key, value in info.items() if key != "action_mask"}
        return {**info, "action_mask": self._masks_of_offered(info["action_mask"])}

    @classmethod
    def grid(
        cls: type[SelfDiscreteActions], env: gym.Env[Any, Any], n_per_axis: int = 3
    ) -> SelfDiscreteActions:
        """
        Offer all combinations of evenly spaced numbers on each axis, both bounds included: 9 forces
        for a point that two motors move. The last axis changes first. Integers are rounded.

        :param env: an environment with bounded Box actions of k axes
        :param n_per_axis: how many numbers each axis has, at least 2. An odd count has the middle
        :return: the environment with ``n_per_axis**k`` actions. They are fewer if an axis has one
            possible number only, or fewer integers
        :raises TypeError: if actions are not of a Box
        :raises ValueError: if the Box has no bounds, ``n_per_axis`` is below 2, or there would be
            more than 10,000 actions
        """
        check_count("n_per_axis", n_per_axis, at_least=2)
        box = env.action_space
        if not isinstance(box, spaces.Box):
            raise TypeError(
                f"a grid needs a Box action space, got {box}: give the actions themselves, "
                "DiscreteActions(env, actions)"
            )
        if not box.is_bounded():
            raise ValueError(
                f"a grid needs bounds of the action space, got {box}: give the actions themselves, "
                "DiscreteActions(env, actions)"
            )
        axes = [
            _evenly_spaced(low, high, n_per_axis, box)
            for low, high in zip(box.low.ravel(), box.high.ravel(), strict=True)
        ]
        n_actions = math.prod(len(numbers) for numbers in axes)
        if n_actions > _MOST_IN_GRID:
            raise ValueError(
                f"a grid must have at most {_MOST_IN_GRID:,} actions, got {n_actions:,} from "
                f"n_per_axis={n_per_axis} and {len(axes)} axes: give some actions yourself, "
                "DiscreteActions(env, actions)"
            )
        combined = np.array(list(itertools.product(*axes)), dtype=box.dtype)
        return cls(env, combined.reshape(n_actions, *box.shape))

    def action(self, action: Any) -> Any:
        """
        Return the environment's action.

        :param action: its number, an integer of shape () or (1,)
        :return: the action, a copy
        :raises ValueError: if there is no such number
        """
        chosen = self.actions[one_action(action, self.action_space)]
        # Some environments use the actions of a Discrete space as keys, or write into an array.
        if isinstance(self.env.action_space, spaces.Discrete):
            return int(chosen)
        return copy.deepcopy(chosen)


def _own_action(action: Any, number: int, space: spaces.Space[Any]) -> Any:
    """Return an action as its space has it, or raise a ValueError that names it."""
    is_array = isinstance(space, _ARRAY_SPACES)
    own = _as_array(action, np.dtype(space.dtype)) if is_array else copy.deepcopy(action)
    if own is None or not space.contains(own):
        raise ValueError(
            f"actions must be in the action space of env, {space}, got actions[{number}] = "
            f"{action!r}"
        )
    return own


def _as_array(action: Any, dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Return finite numbers in a dtype. None if it is something else, or has no such numbers."""
    try:
        given = np.asarray(action)
        with np.errstate(invalid="ignore", over="ignore"):
            own = given.astype(dtype)
    except (TypeError, ValueError):
        # Words and ragged lists are no arrays of numbers.
        return None
    is_rounded = dtype.kind == "f" and given.dtype.kind in "iuf"
    is_same = is_rounded or np.array_equal(own, given)
    return own if is_same and np.isfinite(own).all() else None


def _evenly_spaced(low: Any, high: Any, n: int, box: spaces.Box) -> NDArray[Any]:
    """Return evenly spaced numbers of the dtype of a Box, each once, in ascending order."""
    numbers = np.linspace(float(low), float(high), n)
    if box.dtype.kind != "f":
        numbers = np.rint(numbers)
    return np.unique(numbers.astype(box.dtype))
