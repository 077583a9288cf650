"""Replay memory of transitions without goals: these are chosen when a batch is used."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.preprocessing import get_obs_shape
from stable_baselines3.common.vec_env import VecNormalize

from sb3_manygoals.action_masks import read_action_masks
from sb3_manygoals.checkpoint.tree import CheckpointError
from sb3_manygoals.goals import UNKNOWN, GoalBuffer
from sb3_manygoals.goals.buffer import identical
from sb3_manygoals.goals.selection import grown

_ARRAYS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts", "next_ids")
_OPTIONAL_ARRAYS = ("next_action_masks", "behavior_goal_ids")
_STATE_ARRAYS = ("state_ids", "next_state_ids")


class ManyGoalsSamples(NamedTuple):
    """A batch of S transitions (s, a, s')."""

    observations: th.Tensor
    """Shape (S, *observation_space.shape), dtype of the space."""
    actions: th.Tensor
    """Shape (S,) int64."""
    next_observations: th.Tensor
    """Shape (S, *observation_space.shape), dtype of the space."""
    next_ids: th.Tensor
    """The goal that s' is, -1 if it is none; shape (S,) int64."""
    terminated: th.Tensor
    """Whether the environment itself ended with s', shape (S,) bool."""
    next_action_mask: th.Tensor | None = None
    """The actions allowed in s', shape (S, A) bool; None: all."""
    behavior_goal_ids: th.Tensor | None = None
    """The goal pursued, -1 for unknown ones, shape (S,) int64; None if the memory does not keep it."""
    states: th.Tensor | None = None
    """The number of s, -1 for unknown ones, shape (S,) int64; None if the memory does not number states."""


class ManyGoalsReplayBuffer(ReplayBuffer):
    """
    Transitions (s, a, s') and the goal id of s'. Reward and end of the goal that was pursued are not used: every transition
    teaches the goals it is paired with. ``dones`` are the environment's own ends.

    :param buffer_size: transitions kept, all environments together
    :param observation_space: goal observation space, Dict with "observation"
    :param action_space: Discrete
    :param device: device of batches
    :param n_envs: number of parallel environments
    :param optimize_memory_usage: must be False; part of SB3's interface
    :param action_masks: whether to keep which actions are allowed in s', A bytes a transition
    :param behavior_goals: whether to keep the id of the goal that was pursued
    :param max_states: maximal number of distinct observations that are numbered as states, for
        :class:`~sb3_manygoals.many_goals_dqn.planning.ReplayModel`; 0: states are not numbered
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Dict,
        action_space: spaces.Discrete,
        device: th.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        action_masks: bool = False,
        behavior_goals: bool = False,
        max_states: int = 0,
    ) -> None:
        super().__init__(buffer_size, observation_space["observation"], action_space, device, n_envs, optimize_memory_usage)
        shape, n_actions = (self.buffer_size, n_envs), int(action_space.n)
        self.next_ids = np.zeros(shape, dtype=np.int64)
        self.next_action_masks = np.zeros((*shape, n_actions), dtype=np.bool_) if action_masks else None
        self.behavior_goal_ids = np.full(shape, UNKNOWN, dtype=np.int64) if behavior_goals else None
        self.states: GoalBuffer | None = None
        """The distinct observations met, by their numbers."""
        self.tried: NDArray[np.int32] = np.zeros((0, n_actions), dtype=np.int32)
        """How often each action was taken in each state, including transitions no longer kept; at least (S, A)."""
        self._replaced: Counter[tuple[int, ...]] = Counter()
        """How often each (s, a, s', environment ended) occurred among transitions no longer kept, by numbers of states."""
        self._last: tuple[NDArray[Any], NDArray[np.int64]] | None = None
        """The observations after the last step, and their numbers."""
        self.forget_states()
        if max_states:
            self.keep_states(max_states)

    @staticmethod
    def memory_needed(
        buffer_size: int,
        observation_space: spaces.Dict,
        action_space: spaces.Discrete,
        n_envs: int,
        action_masks: bool,
        behavior_goals: bool = False,
        max_states: int = 0,
    ) -> dict[str, int]:
        """
        :param buffer_size: see the class, as for the others
        :param observation_space: goal observation space
        :param action_space: Discrete
        :param n_envs: number of parallel environments
        :param action_masks: whether they are kept
        :param behavior_goals: whether their ids are kept
        :param max_states: see the class; observations of states are not counted
        :return: bytes of its arrays, by name
        """
        rows = max(buffer_size // n_envs, 1) * n_envs
        space = observation_space["observation"]
        shape = get_obs_shape(space)
        assert isinstance(shape, tuple)  # for mypy: no Dict
        observations = math.prod(shape) * np.dtype(space.dtype).itemsize
        row = {
            "replay observations": observations,
            "replay next observations": observations,
            "replay actions": 8,
            "replay rewards and ends": 12,
            "replay goal ids": 8,
            "replay action masks": int(action_space.n) if action_masks else 0,
            "replay pursued goal ids": 8 if behavior_goals else 0,
            "replay states": 16 if max_states else 0,
        }
        return {name: size * rows for name, size in row.items() if size}

    def add(  # type: ignore[override]
        self,
        obs: dict[str, NDArray[Any]],
        next_obs: dict[str, NDArray[Any]],
        action: NDArray[Any],
        reward: NDArray[Any],
        done: NDArray[Any],
        infos: list[dict[str, Any]],
    ) -> None:
        """
        Keep one transition of each environment, in place of the oldest if the memory is full.

        :param obs: goal observations s, arrays of shape (n_envs, *observation_space.shape)
        :param next_obs: goal observations s', including terminal ones
        :param action: shape (n_envs,)
        :param reward: of the goal pursued
        :param done: of the goal pursued
        :param infos: from the goal wrappers, with ``achieved_goal_id`` and ``env_terminated``; also ``action_mask`` if masks
            are kept, and ``desired_goal_id`` if the goals pursued are
        :raises ValueError: if masks are kept, and one is missing or allows nothing though the environment has not ended
        """
        self.next_ids[self.pos] = [info["achieved_goal_id"] for info in infos]
        ended = np.array([info["env_terminated"] for info in infos])
        if self.next_action_masks is not None:
            self.next_action_masks[self.pos] = read_action_masks(infos, self.next_action_masks.shape[2], ended)
        if self.behavior_goal_ids is not None:
            self.behavior_goal_ids[self.pos] = [info["desired_goal_id"] for info in infos]
        here, there = obs["observation"], next_obs["observation"]
        if self.states is not None:
            ids, next_ids = self.numbers_of(here), self.states.add(there)
            if self.full:
                self._replaced.update(map(tuple, self._outcomes(self.pos).tolist()))
            self.state_ids[self.pos], self.next_state_ids[self.pos] = ids, next_ids
            self._last = there.copy(), next_ids
            self._count(ids, action)
        super().add(here, there, action, reward, ended, infos)

    def keep_states(self, max_states: int) -> None:
        """
        Number states from now on, those of the transitions already kept included.

        :param max_states: maximal number of states; a warning says when there are more
        """
        self.forget_states()
        self.states = GoalBuffer(self.observation_space, max_states, what="states", limit="max_states, of target_kwargs")
        self.state_ids = np.full((self.buffer_size, self.n_envs), UNKNOWN, dtype=np.int64)
        self.next_state_ids = self.state_ids.copy()
        for time in range(self.size()):
            self.state_ids[time] = self.states.add(self._shaped(self.observations[time]))
            self.next_state_ids[time] = self.states.add(self._shaped(self.next_observations[time]))
            self._count(self.state_ids[time], self.actions[time])

    def forget_states(self) -> None:
        """Number states no longer."""
        self.states = None
        self.state_ids = self.next_state_ids = np.zeros((0, self.n_envs), dtype=np.int64)
        self.tried = np.zeros((0, self.tried.shape[1]), dtype=np.int32)
        self._replaced = Counter()
        self._last = None

    def _outcomes(self, times: int | slice) -> NDArray[np.int64]:
        arrays = self.state_ids, self.actions, self.next_state_ids, self.dones
        return np.stack([array[times].reshape(-1).astype(np.int64) for array in arrays], axis=1)

    def outcomes(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """
        All transitions since states are numbered, but those from or to a state beyond the limit. What was learned of the world
        outlives the transitions that are kept.

        :return: columns s, a, s' and whether the environment ended, by numbers of states, shape (K, 4); how often each row
            occurred, which may be in several rows, shape (K,)
        """
        kept, (replaced, times) = self._outcomes(slice(self.size())), self._replaced_arrays()
        rows, counts = np.concatenate([kept, replaced]), np.concatenate([np.ones(len(kept), dtype=np.int64), times])
        known = (rows[:, 0] != UNKNOWN) & (rows[:, 2] != UNKNOWN)
        return rows[known], counts[known]

    def _replaced_arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        outcomes, counts = list(self._replaced), list(self._replaced.values())
        return np.array(outcomes, dtype=np.int64).reshape(-1, 4), np.array(counts, dtype=np.int64)

    def numbers_of(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        """
        :param observations: what the environments show, shape (n_envs, *observation_space.shape)
        :return: the number of each, new ones included; -1 where the limit is reached, shape (n_envs,)
        """
        assert self.states is not None
        if self._last is None or self._last[0].shape != observations.shape:
            ids = self.states.add(observations)
        else:
            last, ids = self._last
            other = ~identical(observations, last, observations.ndim - 1)
            if other.any():
                ids = ids.copy()
                ids[other] = self.states.add(observations[other])
        self.tried = grown(self.tried, len(self.states))
        self._last = observations.copy(), ids
        return ids

    def _count(self, ids: NDArray[np.int64], actions: NDArray[Any]) -> None:
        assert self.states is not None
        self.tried = grown(self.tried, len(self.states))
        known = ids != UNKNOWN
        np.add.at(self.tried, (ids[known], np.asarray(actions).reshape(-1)[known].astype(np.int64)), 1)

    def _shaped(self, observations: NDArray[Any]) -> NDArray[Any]:
        """SB3 keeps discrete observations with an extra axis."""
        return observations.reshape(len(observations), *(self.observation_space.shape or ()))

    def get_checkpoint_state(self) -> dict[str, Any]:
        """:return: a plain tree; its arrays are in use, so write it before anything is added"""
        used = slice(self.size())
        return {
            "n_envs": self.n_envs,
            "buffer_size": self.buffer_size,
            "pos": self.pos,
            "full": self.full,
            "states": None if self.states is None else self.states.get_checkpoint_state(),
            "tried": None if self.states is None else self.tried[: len(self.states)],
            "replaced": self._replaced_arrays(),
            "last_next": self._last,
            **{name: None if array is None else array[used] for name, array in self._arrays.items()},
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        :param state: from :meth:`get_checkpoint_state`
        :raises CheckpointError: if it is of a memory of another size, or with masks or pursued goals where this one keeps
            none, or the reverse
        """
        for name in ("buffer_size", "n_envs"):
            if state[name] != getattr(self, name):
                raise CheckpointError(
                    f"the replay memory was saved with {name} {state[name]}, this one has {getattr(self, name)}"
                )
        if state["states"] is None:
            self.forget_states()
        elif self.states is None:
            self.keep_states(state["states"]["capacity"])
        for name, array in self._arrays.items():
            saved = state.get(name)  # an earlier version has no behavior_goal_ids
            if (array is None) != (saved is None):
                raise CheckpointError(f"the replay memory was saved {'without' if saved is None else 'with'} {name}")
            if array is not None and saved is not None:
                array[: len(saved)] = saved
        if self.states is not None:
            try:
                self.states.set_checkpoint_state(state["states"])
            except ValueError as error:
                raise CheckpointError(f"the states of the replay memory: {error}") from error
            self.tried, self._last = state["tried"], state["last_next"]
            outcomes, counts = state["replaced"]
            self._replaced = Counter(dict(zip(map(tuple, outcomes.tolist()), counts.tolist(), strict=True)))
        self.pos, self.full = state["pos"], state["full"]

    @property
    def _arrays(self) -> dict[str, NDArray[Any] | None]:
        arrays = {name: getattr(self, name) for name in _ARRAYS + _OPTIONAL_ARRAYS}
        return {**arrays, **{name: None if self.states is None else getattr(self, name) for name in _STATE_ARRAYS}}

    def identify(self, goal_buffer: GoalBuffer) -> None:
        """
        Look up the goal ids of all transitions again, in another goal buffer than the one they were added with. The goals
        pursued are forgotten, as only their ids were kept.

        :param goal_buffer: it takes in observations that it does not know
        """
        counted = goal_buffer.n_added, goal_buffer.n_recurred
        for time in range(self.size()):
            self.next_ids[time] = goal_buffer.add(self._shaped(self.next_observations[time]))
        goal_buffer.n_added, goal_buffer.n_recurred = counted  # the observations were not met again
        if self.behavior_goal_ids is not None:
            self.behavior_goal_ids[:] = UNKNOWN

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> ManyGoalsSamples:  # type: ignore[override]
        """
        :param batch_size: S, transitions drawn uniformly, with replacement
        :param env: must be None; part of SB3's interface
        :return: the batch
        """
        return super().sample(batch_size, env)  # type: ignore[return-value]

    def _get_samples(  # type: ignore[override]
        self, batch_inds: NDArray[np.integer[Any]], env: VecNormalize | None = None
    ) -> ManyGoalsSamples:
        envs = np.random.randint(self.n_envs, size=len(batch_inds))  # noqa: NPY002 - the generator that SB3 seeds

        def rows(array: NDArray[Any] | None) -> Any:
            return None if array is None else self.to_torch(array[batch_inds, envs], copy=False)

        return ManyGoalsSamples(
            self.to_torch(self._shaped(self.observations[batch_inds, envs]), copy=False),
            rows(self.actions).view(-1),
            self.to_torch(self._shaped(self.next_observations[batch_inds, envs]), copy=False),
            rows(self.next_ids),
            rows(self.dones).bool(),
            rows(self.next_action_masks),
            rows(self.behavior_goal_ids),
            rows(None if self.states is None else self.state_ids),
        )
