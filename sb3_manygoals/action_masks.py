"""Masks of allowed actions, which environments give as ``info["action_mask"]``, as Taxi does."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray
from stable_baselines3.common.vec_env import VecEnv

from sb3_manygoals.vec_env import current_reset_infos


def read_action_masks(
    infos: Sequence[Mapping[str, Any]], n_actions: int, ended: NDArray[np.bool_] | None = None
) -> NDArray[np.bool_]:
    """
    Return the action masks that infos contain.

    :param infos: the infos of n environments
    :param n_actions: A, the number of actions
    :param ended: environments whose episode has ended, bool, shape (n,). Their masks may forbid
        every action. None: no episode has ended
    :return: whether each action is allowed, bool, shape (n, A)
    :raises ValueError: if an info has no mask, a mask has another shape, or a mask forbids every
        action of an episode that goes on
    """
    if not all("action_mask" in info for info in infos):
        raise ValueError(
            'action_masks=True needs an environment that gives info["action_mask"] at each reset'
            " and step, and this one does not (DiscreteActions leaves out masks for actions that"
            " are not Discrete): leave action_masks=False"
        )
    return check_action_masks([info["action_mask"] for info in infos], len(infos), n_actions, ended)


def own_action_mask(info: Mapping[str, Any], space: spaces.Space[Any]) -> NDArray[np.bool_] | None:
    """
    Return the action mask of an info, if it is one of these actions.

    :param info: the info of one environment
    :param space: the space of the actions
    :return: whether each action is allowed, bool, shape (A,). None if there is no mask, the space
        is not Discrete, or the mask is for other actions, as below a wrapper that changes them
    """
    if "action_mask" not in info or not isinstance(space, spaces.Discrete):
        return None
    try:
        mask = np.asarray(info["action_mask"])
    except ValueError:
        # The masks of a MultiDiscrete space have different lengths.
        return None
    return mask.astype(np.bool_) if mask.shape == (int(space.n),) else None


def next_action_masks(
    env: VecEnv, n_actions: int, infos: Sequence[Mapping[str, Any]], dones: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """
    Return the action masks for the next step.

    :param env: n environments that have just made a step. Where an episode has ended, the
        environment shows the next one already
    :param n_actions: A, the number of actions
    :param infos: the infos that the step returned, one for each environment
    :param dones: whether the step ended the episode, bool, shape (n,)
    :return: whether each action is allowed, bool, shape (n, A)
    :raises ValueError: if an info has no mask, a mask has another shape, or a mask forbids every
        action
    """
    if dones.any():
        infos = [
            reset_info if done else info
            for reset_info, done, info in zip(current_reset_infos(env), dones, infos, strict=True)
        ]
    return read_action_masks(infos, n_actions)


def check_action_masks(
    masks: ArrayLike, n: int, n_actions: int, ended: NDArray[np.bool_] | None = None
) -> NDArray[np.bool_]:
    """
    Return action masks as an array of bool.

    :param masks: nonzero where an action is allowed, shape (n, A), or (A,) if n is 1
    :param n: the number of observations
    :param n_actions: A, the number of actions
    :param ended: environments whose episode has ended, bool, shape (n,). Their masks may forbid
        every action. None: no episode has ended
    :return: whether each action is allowed, bool, shape (n, A)
    :raises ValueError: if the masks have another shape, or a mask forbids every action of an
        episode that goes on
    """
    array = np.asarray(masks)
    if array.ndim == 1:
        array = array[None]
    if array.shape != (n, n_actions):
        raise ValueError(
            f"action masks must have {n_actions} entries for each of {n} observations,"
            f" got shape {array.shape}"
        )
    allowed: NDArray[np.bool_] = array.astype(np.bool_)
    stuck = ~allowed.any(axis=1)
    if ended is not None:
        stuck &= ~ended
    if stuck.any():
        raise ValueError(
            f"the action mask of environment {int(stuck.argmax())} allows nothing, though its"
            " episode goes on"
        )
    return allowed


def random_allowed(masks: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.int64]:
    """
    Draw a random allowed action for each row of masks, all with equal probability.

    :param masks: whether each action is allowed, bool, shape (n, A)
    :param rng: draws n x A numbers
    :return: actions, int64, shape (n,)
    """
    return np.asarray(np.where(masks, rng.random(masks.shape), -1.0).argmax(axis=1))
