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
    Any Gymnasium :class:`~gymnasium.vector.VectorEnv`, native, sync or async, as a
    Stable-Baselines3 VecEnv.

    When an episode ends, SB3 expects the environment to show the next episode already. It expects
    the last observation in ``infos[i]["terminal_observation"]``, and
    ``infos[i]["TimeLimit.truncated"]`` at every step. So the autoreset mode must be one of two:

    - ``SAME_STEP``: the environment resets itself in the step that ends an episode.
    - ``DISABLED``: this class resets environments that have ended, with a ``reset_mask``. Only in
      this mode, other code can reset single environments, by ``env_method("reset", indices=...)``
      with ``seed`` and ``options`` by name.

    ``NEXT_STEP``, Gymnasium's default, is refused. It spends a step on each reset, and SB3 would
    learn from that step. The error says how to make the environment with another mode.

    ``get_attr``, ``set_attr`` and ``env_method`` reach the single environments of a SyncVectorEnv.
    For other vector environments they reach the vector environment itself. If an attribute or a
    result is an array, list or tuple of length N, each environment gets its entry. To change only
    some of the environments is refused. If a SAME_STEP environment gives no ``final_info``, its
    other infos are taken instead. For the statistics of episodes use SB3's VecMonitor. Gymnasium's
    RecordEpisodeStatistics around a SyncVectorEnv begins to count anew in all environments when a
    mask resets one of them.

    :param vector_env: the environment, which steps N environments at once
    :raises TypeError: if it is no VectorEnv
    :raises ValueError: if its metadata has the autoreset mode ``NEXT_STEP``, or none
    :ivar vector_env: the Gymnasium environment
    :ivar autoreset_mode: the autoreset mode of the Gymnasium environment
    :ivar terminal_watch: warns if terminal observations are lost
    """

    def __init__(self, vector_env: VectorEnv[Any, Any, Any]) -> None:
        if not isinstance(vector_env, VectorEnv):
            raise TypeError(
                f"vector_env must be a gymnasium.vector.VectorEnv, got {type(vector_env).__name__}"
            )
        mode = vector_env.metadata.get("autoreset_mode")
        if mode not in (AutoresetMode.SAME_STEP, AutoresetMode.DISABLED):
            raise ValueError(
                f"the autoreset mode of {vector_env} must be SAME_STEP or DISABLED, got {mode}: "
                'make it with gym.make_vec(..., vectorization_mode="sync", '
                'vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP}), or with '
                "autoreset_mode=AutoresetMode.SAME_STEP if it is a native vector environment that "
                "has the argument"
            )
        self.vector_env = vector_env
        self.autoreset_mode: AutoresetMode = mode
        super().__init__(
            vector_env.num_envs, vector_env.single_observation_space, vector_env.single_action_space
        )
        self.metadata = dict(vector_env.metadata)
        # SB3 still needs observations after the next step. An environment may have overwritten them
        # by then, unless its attribute says that it copies.
        self._must_copy = not getattr(vector_env.unwrapped, "copy", False)
        self.terminal_watch = TerminalWatch()

    @property
    def can_reset_single_envs(self) -> bool:
        """Whether ``env_method("reset", indices=...)`` can reset some of the environments."""
        return self.autoreset_mode is AutoresetMode.DISABLED

    def reset(self) -> VecEnvObs:
        """
        Reset all environments, with the seeds and options that ``seed`` and ``set_options`` were
        given.

        :return: the first observations of all environments, (N, ...)
        :raises ValueError: if the options are not the same for all environments
        """
        options = (self._options or [{}])[0]
        if len(self._options) != self.num_envs or not all(
            data_equivalence(options, other) for other in self._options
        ):
            # The next reset must not fail, too.
            self._reset_options()
            raise ValueError(
                f"options must be one dict, or the same for each of the {self.num_envs} "
                "environments: give other ones to "
                'env_method("reset", indices=..., options=...)'
            )
        # Not all vector environments take a list of seeds. All count up from one integer, as seed()
        # has done.
        try:
            with errors.stepping(self):
                obs, infos = self.vector_env.reset(seed=self._seeds[0], options=options or None)
        finally:
            # Options that the environment refuses must not make the next reset fail, too.
            self._reset_options()
        self.reset_infos = info_list(infos, self.num_envs)
        self._reset_seeds()
        return self._owned(obs)  # type: ignore[no-any-return]

    def step_async(self, actions: NDArray[Any]) -> None:
        """
        Keep the actions for :meth:`step_wait`.

        :param actions: one action for each environment, (N, ...)
        :raises ValueError: if there are fewer or more actions
        """
        # Actions of Dict and Tuple spaces are no arrays.
        is_array = isinstance(actions, (np.ndarray, list))
        if is_array and (np.ndim(actions) == 0 or len(actions) != self.num_envs):
            raise ValueError(
                f"actions must have one action for each of {self.num_envs} environments, got "
                f"{actions!r}"
            )
        self._actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        """
        Act in all environments with the actions of :meth:`step_async`. Reset those that end.

        :return: observations (N, ...), rewards (N,) float32, dones (N,) bool, N infos
        :raises EnvironmentFault: if a reward is not one number, which is a ValueError. In a list or
            array of objects, None counts as 0
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
        """
        Render the environments. SB3's ``render`` puts the pictures side by side.

        :return: a picture of each environment, (height, width, 3) uint8
        """
        pictures = self.vector_env.render()
        return [] if pictures is None else list(pictures)  # type: ignore[arg-type]

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """
        Return an attribute of some environments. The class says which object has it.

        :param attr_name: name of the attribute
        :param indices: number of an environment, or several numbers; None for all
        :return: a value for each of these environments
        :raises AttributeError: if there is no such attribute
        :raises IndexError: if there is no such environment
        """
        rows = self._rows(indices)
        base = self.vector_env.unwrapped
        # SyncVectorEnv's own get_attr calls what is callable, even reset.
        if isinstance(base, SyncVectorEnv):
            return [base.envs[row].get_wrapper_attr(attr_name) for row in rows]
        if attr_name in ("observation_space", "action_space"):
            attr_name = f"single_{attr_name}"
        return self._apart(getattr(self._owner(attr_name), attr_name), rows)

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """
        Set an attribute of some environments. The class says which object has it.

        :param attr_name: name of the attribute
        :param value: the new value, the same for each of these environments
        :param indices: number of an environment, or several numbers; None for all
        :raises AttributeError: if there is no such attribute
        :raises IndexError: if there is no such environment
        :raises ValueError: if the attribute is one for all environments, and ``indices`` leaves
            some out
        """
        rows = self._rows(indices)
        base = self.vector_env.unwrapped
        if isinstance(base, SyncVectorEnv):
            for row in rows:
                # Raise an AttributeError where there is no such attribute, before any is set.
                base.envs[row].get_wrapper_attr(attr_name)
            for row in rows:
                base.envs[row].set_wrapper_attr(attr_name, value)
            return
        self._check_all(rows, f"set_attr({attr_name!r})")
        # Raise an AttributeError where there is no such attribute.
        getattr(self._owner(attr_name), attr_name)
        setattr(self._owner(attr_name), attr_name, value)

    def env_method(
        self,
        method_name: str,
        *method_args: Any,
        indices: VecEnvIndices = None,
        **method_kwargs: Any,
    ) -> list[Any]:
        """
        Call a method of some environments. The class says which object has it.

        :param method_name: name of the method
        :param method_args: arguments of the method by position
        :param indices: number of an environment, or several numbers; None for all
        :param method_kwargs: arguments of the method by name
        :return: what the method returns for each of these environments; for ``"reset"``, a pair of
            observation and info
        :raises AttributeError: if there is no such method
        :raises IndexError: if there is no such environment
        :raises ValueError: if the method is for all environments at once, and ``indices`` leaves
            some out; or if ``"reset"`` is called in mode ``SAME_STEP``
        """
        rows = self._rows(indices)
        base = self.vector_env.unwrapped
        if method_name == "reset":
            obs, infos = self._reset(rows, *method_args, **method_kwargs)
            return [(_row(obs, row), infos[row]) for row in rows]
        if isinstance(base, SyncVectorEnv):
            methods = [base.envs[row].get_wrapper_attr(method_name) for row in rows]
            return [method(*method_args, **method_kwargs) for method in methods]
        self._check_all(rows, f"env_method({method_name!r})")
        method = getattr(self._owner(method_name), method_name)
        return self._apart(method(*method_args, **method_kwargs), rows)

    def env_is_wrapped(
        self, wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]], indices: VecEnvIndices = None
    ) -> list[bool]:
        """
        Return which environments are wrapped in a class.

        :param wrapper_class: the class of the wrapper
        :param indices: number of an environment, or several numbers; None for all
        :return: whether each of these environments is wrapped. It is always False if the vector
            environment is no SyncVectorEnv, because wrappers cannot be seen then
        :raises IndexError: if there is no such environment
        """
        base = self.vector_env.unwrapped
        return [
            isinstance(base, SyncVectorEnv) and is_wrapped(base.envs[row], wrapper_class)
            for row in self._rows(indices)
        ]

    def _owner(self, name: str) -> VectorEnv[Any, Any, Any]:
        """Return the outermost wrapper with such an attribute, or the vector environment itself."""
        owner = self.vector_env
        while isinstance(owner, VectorWrapper) and not hasattr(owner, name):
            owner = owner.env
        return owner

    def _apart(self, values: Any, rows: list[int]) -> list[Any]:
        """Return the rows of N values, or the same value for each row."""
        is_array = isinstance(values, np.ndarray) and values.ndim > 0
        if (is_array or isinstance(values, (list, tuple))) and len(values) == self.num_envs:
            return [values[row] for row in rows]
        return [values for _ in rows]

    def _split_same_step(
        self, vector_infos: dict[str, Any], ended: NDArray[np.intp]
    ) -> list[dict[str, Any]]:
        """
        Return the infos of the step, and keep those of new episodes in ``reset_infos``.

        Where an episode has ended, Gymnasium's infos are those of the new episode, and
        ``final_info`` has those of the step.
        """
        final = {
            key: vector_infos.pop(key, None)
            for key in ("final_obs", "final_info", "_final_obs", "_final_info")
        }
        infos = info_list(vector_infos, self.num_envs)
        if not len(ended):
            return infos
        if final["final_obs"] is None:
            raise ValueError(
                f"{self.vector_env} ended episodes and resets in the same step, but gave no "
                "infos['final_obs']"
            )
        final_infos = infos
        if final["final_info"] is not None:
            # The infos of all environments are joined, so nobody knows which gave another thing.
            errors.check_info(final["final_info"], "step", self, -1)
            final_infos = info_list(final["final_info"], self.num_envs)
        for row in ended.tolist():
            reset_info = infos[row]
            info = dict(final_infos[row])
            info["TimeLimit.truncated"] = reset_info.pop("TimeLimit.truncated")
            # RecordEpisodeStatistics writes the statistics of the ended episode among the infos of
            # the new one.
            if "episode" in reset_info:
                info["episode"] = reset_info.pop("episode")
            info["terminal_observation"] = _row(final["final_obs"], row)
            infos[row] = info
            self.reset_infos[row] = reset_info
        return infos

    def _reset(
        self,
        rows: Sequence[int] | NDArray[np.intp],
        seed: int | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, list[dict[str, Any]]]:
        """
        Reset some environments.

        Return the observations and the infos of all environments. Infos are empty for environments
        that were not reset.
        """
        if not self.can_reset_single_envs:
            raise ValueError(
                'env_method("reset") needs autoreset_mode DISABLED: in SAME_STEP only reset() of '
                "all is possible"
            )
        mask = np.zeros(self.num_envs, dtype=np.bool_)
        mask[rows] = True
        # Only the seeds of environments in the mask are used.
        seeds: Any = None if seed is None else [seed] * self.num_envs
        with errors.stepping(self):
            obs, infos = self.vector_env.reset(
                seed=seeds, options={**(options or {}), "reset_mask": mask}
            )
        return obs, info_list(infos, self.num_envs)

    def _owned(self, obs: Any) -> Any:
        return deepcopy(obs) if self._must_copy else obs

    def _rows(self, indices: VecEnvIndices) -> list[int]:
        """Return the numbers of the environments as non-negative integers."""
        every = range(self.num_envs)
        if indices is None:
            return list(every)
        chosen = indices if isinstance(indices, Iterable) else [indices]
        return [every[index] for index in chosen]

    def _check_all(self, rows: list[int], what: str) -> None:
        """Raise a ValueError if these are not all environments."""
        if sorted(rows) != list(range(self.num_envs)):
            name = type(self.vector_env.unwrapped).__name__
            raise ValueError(
                f"{what} is for all environments of {name} at once, got indices {rows}"
            )


def _row(batch: Any, row: int) -> Any:
    """Return a copy of one of a batch of observations."""
    if isinstance(batch, dict):
        return {key: _row(values, row) for key, values in batch.items()}
    if isinstance(batch, tuple):
        return tuple(_row(values, row) for values in batch)
    return deepcopy(batch[row])


def info_list(infos: dict[str, Any], n: int) -> list[dict[str, Any]]:
    """
    Split the infos that a Gymnasium VectorEnv joins, into one dict for each environment.

    Joined infos have an array of N values for each ``key``, or again such a dict. Under ``_key``
    they have a mask, which is True for environments that gave a value. Values without a mask belong
    to all environments. If there are not N values, each environment gets all of them.

    :param infos: the joined infos
    :param n: number of environments, N
    :return: N dicts. They share no arrays with ``infos``, but may share other objects
    """
    listed: list[dict[str, Any]] = [{} for _ in range(n)]
    for key, values in infos.items():
        is_mask = key.startswith("_") and key[1:] in infos
        if is_mask:
            continue
        column = _column(values, n)
        mask = infos.get(f"_{key}")
        if mask is None or np.all(mask):
            for info, value in zip(listed, column, strict=True):
                info[key] = value
        else:
            for row in np.flatnonzero(mask).tolist():
                listed[row][key] = column[row]
    return listed


def _column(values: Any, n: int) -> list[Any]:
    """Return one key's values as a list with an entry for each environment."""
    if isinstance(values, dict):
        return info_list(values, n)
    if isinstance(values, np.ndarray) and values.ndim > 0 and len(values) == n:
        return values.tolist() if values.ndim == 1 else list(values.copy())
    if isinstance(values, (list, tuple)) and len(values) == n:
        return list(values)
    return [values] * n


def current_reset_infos(venv: VecEnv) -> list[dict[str, Any]]:
    """
    Return the infos of the first observation of each current episode.

    SB3's VecEnvWrappers leave their own ``reset_infos`` empty, so this looks inside of them.

    :param venv: an SB3 vector environment of N environments
    :return: N dicts, not copied: ``reset_infos`` of the outermost wrapper in which one of them is
        not empty, else those of the environment inside of all wrappers
    """
    while isinstance(venv, VecEnvWrapper) and not any(venv.reset_infos):
        venv = venv.venv
    return venv.reset_infos


def can_reset_single_envs(venv: VecEnv) -> bool:
    """
    Return whether ``venv.env_method("reset", indices=...)`` resets single environments properly.

    SB3's DummyVecEnv and SubprocVecEnv do. Other VecEnvs have an attribute
    ``can_reset_single_envs`` if they do. Wrapped VecEnvs do not, because a stack of frames, for
    example, would not notice the reset.

    :param venv: an SB3 vector environment
    :return: whether it does
    """
    # A wrapper passes on the attribute of what it wraps.
    if isinstance(venv, VecEnvWrapper):
        return False
    if isinstance(venv, (DummyVecEnv, SubprocVecEnv)):
        return True
    return bool(getattr(venv, "can_reset_single_envs", False))
