"""Gymnasium's vector environments with observations of several arrays, as learners see them."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv, VectorWrapper
from numpy.typing import NDArray

from sb3_manygoals.goals.sources import ObservationSource


class PackedVectorEnv(VectorWrapper):
    """
    Packs the parts of observations into one array of bytes, as the goal wrappers do it.

    :param env: vector environment whose observations are Dicts of arrays
    :raises TypeError: if a part of the observations cannot be packed
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        super().__init__(env)
        self._source = ObservationSource(env.single_observation_space)
        self._single_observation_space = self._source.space

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """
        Reset all environments.

        :param seed: one seed to count up from, or a list of one for each environment
        :param options: options of the environments
        :return: packed observations, shape ``(num_envs, size)``, and infos
        :raises ValueError: if a part of an observation is missing, or does not fit its space
        """
        observations, infos = self.env.reset(seed=seed, options=options)
        return self._source.array(observations), infos

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """
        Step all environments.

        :param actions: an action for each environment
        :return: packed observations, rewards, terminations, truncations and infos, in which
            ``"final_obs"`` is packed, too
        :raises ValueError: if a part of an observation is missing, or does not fit its space
        """
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        if "final_obs" in infos:
            # Where no episode ended, there is nothing.
            final = [None if one is None else self._source.array(one) for one in infos["final_obs"]]
            infos = {**infos, "final_obs": final}
        return self._source.array(observations), rewards, terminated, truncated, infos


def as_arrays(env: Any) -> Any:
    """
    Return a vector environment whose observations are single arrays.

    :param env: a vector environment. Anything else stays as it is
    :return: ``env`` itself, or a wrapper around it if its observations are Dicts of arrays
    :raises TypeError: if it is one of GoalEnvs, or a part of the observations cannot be packed
    """
    if not isinstance(env, VectorEnv):
        return env
    space = env.single_observation_space
    if not isinstance(space, spaces.Dict):
        return env
    if ObservationSource.sets_goals(space):
        raise TypeError(
            "env must be a vector environment without goals, got GoalEnvs, which set goals of "
            "their own. To measure how many of these are reached, use SB3's "
            "evaluate_policy(model, env), and is_success of its infos"
        )
    return PackedVectorEnv(env)
