"""Which actions an environment allows: ``info["action_mask"]``, as Gymnasium's Taxi has it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from stable_baselines3.common.vec_env import VecEnv

from sb3_manygoals.vec_env import current_reset_infos


def read_action_masks(
    infos: Sequence[Mapping[str, Any]], n_actions: int, ended: NDArray[np.bool_] | None = None
) -> NDArray[np.bool_]:
    """As :func:`check_action_masks`, of one info for each environment. A ValueError also if one has no mask."""
    if not all("action_mask" in info for info in infos):
        needed = 'an environment that gives info["action_mask"] at each reset and step'
        raise ValueError(
            f"action_masks=True needs {needed}, and this one does not: leave action_masks=False"
        )
    return check_action_masks([info["action_mask"] for info in infos], len(infos), n_actions, ended)


def next_action_masks(
    env: VecEnv, n_actions: int, infos: Sequence[Mapping[str, Any]], dones: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """
    :param env: has just made a step; where an episode has ended, it shows the next one already
    :param infos: that the step returned, with ``dones``
    :return: the masks to act by, shape (n, A). A ValueError as of :func:`read_action_masks`
    """
    if dones.any():
        infos = [
            start if done else info
            for start, done, info in zip(current_reset_infos(env), dones, infos, strict=True)
        ]
    return read_action_masks(infos, n_actions)


def check_action_masks(
    masks: ArrayLike, n: int, n_actions: int, ended: NDArray[np.bool_] | None = None
) -> NDArray[np.bool_]:
    """
    :param masks: not 0 where an action is allowed, shape (n, A), or (A,) where n is 1
    :param ended: environments that have ended, shape (n,), where nothing need be allowed any more
    :return: the same, bool, shape (n, A)
    :raises ValueError: if they have another shape or allow nothing
    """
    array = np.asarray(masks)
    array = array[None] if array.ndim == 1 else array
    if array.shape != (n, n_actions):
        raise ValueError(
            f"action masks must have {n_actions} entries for each of {n} observations, got shape {array.shape}"
        )
    allowed: NDArray[np.bool_] = array.astype(np.bool_)
    stuck = ~allowed.any(axis=1) & ~(np.zeros(n, np.bool_) if ended is None else ended)
    if stuck.any():
        raise ValueError(
            f"the action mask of environment {int(stuck.argmax())} allows nothing, though its episode goes on"
        )
    return allowed


def random_allowed(masks: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.int64]:
    """An action for each row of masks, shape (n, A), uniform among those allowed; ``rng`` draws n x A numbers."""
    return np.asarray(np.where(masks, rng.random(masks.shape), -1.0).argmax(axis=1))
