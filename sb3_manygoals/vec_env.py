"""Gymnasium's vector environments as Stable-Baselines3's."""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from numpy.typing import NDArray
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

from sb3_manygoals import errors
from sb3_manygoals.terminal_watch import TerminalWatch


class GymnasiumVecEnv(VecEnv):
    """
    Any Gymnasium :class:`~gymnasium.vector.VectorEnv`, native, sync or async, as a Stable-Baselines3 VecEnv.

    SB3 expects an environment that has ended to show its next episode already, with what it saw last in
    ``infos[i]["terminal_observation"]``, and ``infos[i]["TimeLimit.truncated"]`` everywhere. So the autoreset mode must be

    - ``SAME_STEP``, which does just that; or
    - ``DISABLED``: this class resets what has ended, with a ``reset_mask``. Only here can single environments be reset from
      outside, by ``env_method("reset", indices=...)``, with ``seed`` and ``options`` by name.

    ``NEXT_STEP``, Gymnasium's default, is refused: SB3 would learn from the step that it spends on each reset. The error says
    how to make the environment with another mode.

    Methods and attributes are those of the environments in a SyncVectorEnv, and else of the vector environment: an array, list
    or tuple of N is taken apart, and what would change only some of the environments is refused. Where a SAME_STEP environment
    gives no ``final_info``, its other infos stand for it. For the statistics of episodes use SB3's VecMonitor: Gymnasium's
    RecordEpisodeStatistics around a SyncVectorEnv starts to count anew everywhere when one environment is reset by a mask.

    :param vector_env: the environment, N environments in one
    :raises TypeError: if it is no VectorEnv
    :raises ValueError: if its autoreset mode is ``NEXT_STEP``, or it does not say which it is
    """

    def __init__(self, vector_env: VectorEnv[Any, Any, Any]) -> None:
        if not isinstance(vector_env, VectorEnv):
            raise TypeError(
                f"vector_env must be a gymnasium.vector.VectorEnv, got {type(vector_env).__name__}"
            )
        mode = vector_env.metadata.get("autoreset_mode")
        if mode not in (AutoresetMode.SAME_STEP, AutoresetMode.DISABLED):
            raise ValueError(
                f"the autoreset mode of {vector_env} must be SAME_STEP or DISABLED, got {mode}: make it with "
                'gym.make_vec(..., vectorization_mode="sync", vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP}), or '
                "with autoreset_mode=AutoresetMode.SAME_STEP if it is a native vector environment that has the argument"
            )
        self.vector_env = vector_env
        self.autoreset_mode: AutoresetMode = mode
        super().__init__(
            vector_env.num_envs, vector_env.single_observation_space, vector_env.single_action_space
        )
        self.metadata = dict(vector_env.metadata)
        # SB3 keeps observations over the next step; environments may overwrite them, unless they say that they copy
        self._must_copy = not getattr(vector_env.unwrapped, "copy", False)
        self.terminal_watch = TerminalWatch()
        """Warns if terminal observations are lost."""

    @property
    def can_reset_single_envs(self) -> bool:
        """Whether ``env_method("reset", indices=...)`` can reset some of the environments."""
        return self.autoreset_mode is AutoresetMode.DISABLED

    def reset(self) -> VecEnvObs:
        """
        :return: the first observations of all environments, (N, ...)
        :raises ValueError: if ``set_options`` was not given the same options for all of them
        """
        first, n = (self._options or [{}])[0], self.num_envs
        if len(self._options) != n or not all(
            data_equivalence(first, other) for other in self._options
        ):
            advice = 'give other ones to env_method("reset", indices=..., options=...)'
            raise ValueError(
                f"options must be one dict, or the same for each of the {n} environments: {advice}"
            )
        # an integer is counted up from, as seed() does; not all take a list
        obs, infos = self.vector_env.reset(seed=self._seeds[0], options=first or None)
        self.reset_infos = info_list(infos, n)
        self._reset_seeds()
        self._reset_options()
        return self._owned(obs)  # type: ignore[no-any-return]

    def step_async(self, actions: NDArray[Any]) -> None:
        """:param actions: one for each environment, (N, ...), for :meth:`step_wait`"""
        self._actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        """
        :return: observations (N, ...), rewards (N,) float32, dones (N,) bool, N infos
        :raises EnvironmentFault: (a ValueError) if a reward is not one number; None counts as 0 where it comes as such
        """
        with errors.stepping(self):
            obs, rewards, terminated, truncated, vector_infos = self.vector_env.step(self._actions)
        rewards = errors.own_rewards(rewards, self.num_envs, self).astype(np.float32)
        dones = np.logical_or(terminated, truncated)
        ended = np.flatnonzero(dones)
        vector_infos = {
            **vector_infos,
            "TimeLimit.truncated": np.logical_and(truncated, np.logical_not(terminated)),
        }
        vector_infos.pop("_TimeLimit.truncated", None)
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            if not len(ended) or "final_obs" in vector_infos:
                self.terminal_watch.look_at_vector(self.vector_env, obs, dones, vector_infos)
            infos = self._split_same_step(vector_infos, ended)
        else:
            infos = info_list(vector_infos, self.num_envs)
            for row in ended.tolist():
                infos[row]["terminal_observation"] = _row(obs, row)
            if len(ended):
                obs, reset_infos = self._reset(ended)
                for row in ended.tolist():
                    self.reset_infos[row] = reset_infos[row]
        return self._owned(obs), rewards, dones, infos

    def close(self) -> None:
        """Close the vector environment."""
        self.vector_env.close()

    def get_images(self) -> Sequence[NDArray[Any] | None]:
        """:return: a picture of each environment, for ``render``, which puts them side by side"""
        return list(self.vector_env.render() or ())  # type: ignore[arg-type]  # these frames are arrays

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """As SB3's, of the objects that the class names. :raises AttributeError: if there is no such attribute"""
        rows, base = self._rows(indices), self.vector_env.unwrapped
        if isinstance(base, SyncVectorEnv):  # whose own get_attr calls what is callable, even reset
            return [base.envs[row].get_wrapper_attr(attr_name) for row in rows]
        if attr_name in ("observation_space", "action_space"):
            attr_name = f"single_{attr_name}"
        return self._apart(getattr(self._owner(attr_name), attr_name), rows)

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """As SB3's, of the objects that the class names. :raises ValueError: if only all can be changed"""
        rows, base = self._rows(indices), self.vector_env.unwrapped
        if isinstance(base, SyncVectorEnv):
            for row in rows:
                base.envs[row].set_wrapper_attr(attr_name, value)
            return
        self._check_all(rows, f"set_attr({attr_name!r})")
        getattr(self._owner(attr_name), attr_name)  # an AttributeError where there is none
        setattr(self._owner(attr_name), attr_name, value)

    def env_method(
        self,
        method_name: str,
        *method_args: Any,
        indices: VecEnvIndices = None,
        **method_kwargs: Any,
    ) -> list[Any]:
        """As SB3's, of the objects that the class names. :raises ValueError: if only all can be called, or reset"""
        rows, base = self._rows(indices), self.vector_env.unwrapped
        if method_name == "reset":
            obs, infos = self._reset(rows, *method_args, **method_kwargs)
            return [(_row(obs, row), infos[row]) for row in rows]
        if isinstance(base, SyncVectorEnv):
            return [
                base.envs[row].get_wrapper_attr(method_name)(*method_args, **method_kwargs)
                for row in rows
            ]
        self._check_all(rows, f"env_method({method_name!r})")
        return self._apart(
            getattr(self._owner(method_name), method_name)(*method_args, **method_kwargs), rows
        )

    def env_is_wrapped(
        self, wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]], indices: VecEnvIndices = None
    ) -> list[bool]:
        """As SB3's; False where it cannot be seen, in all but a SyncVectorEnv."""
        base = self.vector_env.unwrapped
        return [
            isinstance(base, SyncVectorEnv) and is_wrapped(base.envs[row], wrapper_class)
            for row in self._rows(indices)
        ]

    def _owner(self, name: str) -> VectorEnv[Any, Any, Any]:
        """The outermost wrapper with such an attribute, or the vector environment itself."""
        owner = self.vector_env
        while isinstance(owner, VectorWrapper) and not hasattr(owner, name):
            owner = owner.env
        return owner

    def _apart(self, values: Any, rows: list[int]) -> list[Any]:
        sequence = isinstance(values, (list, tuple)) or (
            isinstance(values, np.ndarray) and values.ndim > 0
        )
        return [
            values[row] if sequence and len(values) == self.num_envs else values for row in rows
        ]

    def _split_same_step(
        self, vector_infos: dict[str, Any], ended: NDArray[np.intp]
    ) -> list[dict[str, Any]]:
        """The infos of the step; those of the new episodes, which Gymnasium has in their place, go to ``reset_infos``."""
        final = {
            key: vector_infos.pop(key, None)
            for key in ("final_obs", "final_info", "_final_obs", "_final_info")
        }
        infos = info_list(vector_infos, self.num_envs)
        if not len(ended):
            return infos
        if final["final_obs"] is None:
            raise ValueError(
                f"{self.vector_env} ended episodes and resets in the same step, but gave no infos['final_obs']"
            )
        final_infos = (
            infos if final["final_info"] is None else info_list(final["final_info"], self.num_envs)
        )
        for row in ended.tolist():
            reset_info = infos[row]
            infos[row] = info = dict(final_infos[row])
            info["TimeLimit.truncated"] = reset_info.pop("TimeLimit.truncated")
            if (
                "episode" in reset_info
            ):  # RecordEpisodeStatistics writes of the episode that ended, and not in final_info
                info["episode"] = reset_info.pop("episode")
            info["terminal_observation"] = _row(final["final_obs"], row)
            self.reset_infos[row] = reset_info
        return infos

    def _reset(
        self,
        rows: Sequence[int] | NDArray[np.intp],
        seed: int | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, list[dict[str, Any]]]:
        """Reset some environments; with the others, their observations come too, and empty infos."""
        if not self.can_reset_single_envs:
            raise ValueError(
                'env_method("reset") needs autoreset_mode DISABLED: in SAME_STEP only reset() of all is possible'
            )
        mask = np.zeros(self.num_envs, dtype=np.bool_)
        mask[rows] = True
        seeds: Any = (
            None if seed is None else [seed] * self.num_envs
        )  # only those of the mask are used
        obs, infos = self.vector_env.reset(
            seed=seeds, options={**(options or {}), "reset_mask": mask}
        )
        return obs, info_list(infos, self.num_envs)

    def _owned(self, obs: Any) -> Any:
        return deepcopy(obs) if self._must_copy else obs

    def _rows(self, indices: VecEnvIndices) -> list[int]:
        every = range(self.num_envs)
        chosen = (
            every if indices is None else indices if isinstance(indices, Iterable) else [indices]
        )
        return [every[index] for index in chosen]

    def _check_all(self, rows: list[int], what: str) -> None:
        if sorted(rows) != list(range(self.num_envs)):
            name = type(self.vector_env.unwrapped).__name__
            raise ValueError(
                f"{what} is for all environments of {name} at once, got indices {rows}"
            )


def _row(batch: Any, row: int) -> Any:
    """A copy of one of a batch of observations."""
    if isinstance(batch, dict):
        return {key: _row(values, row) for key, values in batch.items()}
    if isinstance(batch, tuple):
        return tuple(_row(values, row) for values in batch)
    return deepcopy(batch[row])


def info_list(infos: dict[str, Any], n: int) -> list[dict[str, Any]]:
    """
    The infos of each environment, which Gymnasium's VectorEnv joins: for each ``key`` an array of N values, or again such a
    dict, and under ``_key`` a mask of the environments that gave one. Values without a mask are taken to be of all
    environments, and those that are not N in number to be common to them.

    :param n: number of its environments, N
    :return: a dict for each of them, which shares no memory with ``infos`` but for objects that are no arrays
    """
    listed: list[dict[str, Any]] = [{} for _ in range(n)]
    for key, values in infos.items():
        if key.startswith("_") and key[1:] in infos:
            continue  # a mask
        column, mask = _column(values, n), infos.get(f"_{key}")
        if mask is None or np.all(mask):
            for info, value in zip(listed, column, strict=True):
                info[key] = value
        else:
            for row in np.flatnonzero(mask).tolist():
                listed[row][key] = column[row]
    return listed


def _column(values: Any, n: int) -> list[Any]:
    if isinstance(values, dict):
        return info_list(values, n)
    if isinstance(values, np.ndarray) and values.ndim > 0 and len(values) == n:
        return values.tolist() if values.ndim == 1 else list(values.copy())
    return list(values) if isinstance(values, (list, tuple)) and len(values) == n else [values] * n


def current_reset_infos(venv: VecEnv) -> list[dict[str, Any]]:
    """The infos of the first observation of each episode, of the outermost that fills them: SB3's VecEnvWrappers do not."""
    while isinstance(venv, VecEnvWrapper) and not any(venv.reset_infos):
        venv = venv.venv
    return venv.reset_infos


def can_reset_single_envs(venv: VecEnv) -> bool:
    """
    :return: whether ``venv.env_method("reset", indices=...)`` can be relied upon. SB3's own VecEnvs can do that, others say so
        in an attribute ``can_reset_single_envs``. Wrappers cannot: a stack of frames would not notice the reset
    """
    able = isinstance(venv, (DummyVecEnv, SubprocVecEnv)) or bool(
        getattr(venv, "can_reset_single_envs", False)
    )
    return able and not isinstance(
        venv, VecEnvWrapper
    )  # which gives the attribute of what it wraps
