"""Replay memory of transitions without goals: the goals are chosen when a batch is used."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeAlias

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

_Indices: TypeAlias = NDArray[np.integer[Any]]


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
    """The goal that was pursued, -1 if it is none of the known ones; shape (S,) int64; None: not kept."""
    states: th.Tensor | None = None
    """Where states are kept: the number of s, -1 if it has none; shape (S,) int64."""


class ManyGoalsReplayBuffer(ReplayBuffer):
    """
    Transitions (s, a, s') and the goal id of s'. The reward and end of the goal that was pursued are not kept, nor which it
    was unless asked for: every transition teaches whatever goals it is paired with. ``dones`` are the environment's own ends.

    :param buffer_size: transitions kept, in all environments together
    :param observation_space: goal observation space, Dict with "observation"
    :param action_space: Discrete
    :param device: where batches go
    :param n_envs: number of parallel environments
    :param optimize_memory_usage: must be False; part of SB3's interface
    :param action_masks: whether to keep which actions are allowed in s', A bytes a transition
    :param behavior_goals: whether to keep the id of the goal that was pursued
    :param max_states: how many distinct observations are told apart as states, for :class:`ReplayModel`; 0: none
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
        self.next_ids = np.zeros((self.buffer_size, n_envs), dtype=np.int64)
        self.next_action_masks: NDArray[np.bool_] | None = None
        if action_masks:
            self.next_action_masks = np.zeros((self.buffer_size, n_envs, int(action_space.n)), dtype=np.bool_)
        self.behavior_goal_ids: NDArray[np.int64] | None = None
        if behavior_goals:
            self.behavior_goal_ids = np.full((self.buffer_size, n_envs), UNKNOWN, dtype=np.int64)
        self.states: GoalBuffer | None = None
        self.tried: NDArray[np.int32] = np.zeros((0, int(action_space.n)), dtype=np.int32)
        """How often each action was taken in each state, also in transitions that have given way; (at least S, A)."""
        self._last_next: tuple[NDArray[Any], NDArray[np.int64]] | None = None
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
        :param buffer_size: see the class, as are the others
        :param observation_space: goal observation space
        :param action_space: Discrete
        :param n_envs: number of parallel environments
        :param action_masks: whether they are kept
        :param behavior_goals: whether their ids are kept
        :param max_states: see the class; their observations are not counted
        :return: bytes of its arrays, by what they are of
        """
        rows = max(buffer_size // n_envs, 1) * n_envs
        space = observation_space["observation"]
        shape = get_obs_shape(space)
        assert isinstance(shape, tuple)  # for mypy: no Dict
        observations = rows * math.prod(shape) * np.dtype(space.dtype).itemsize
        needed = {
            "replay observations": observations,
            "replay next observations": observations,
            "replay actions": rows * np.dtype(np.int64).itemsize,
            "replay rewards and ends": rows * 3 * np.dtype(np.float32).itemsize,
            "replay goal ids": rows * np.dtype(np.int64).itemsize,
        }
        if action_masks:
            needed["replay action masks"] = rows * int(action_space.n)
        if behavior_goals:
            needed["replay pursued goal ids"] = rows * np.dtype(np.int64).itemsize
        if max_states:
            needed["replay states"] = rows * 2 * np.dtype(np.int64).itemsize
        return needed

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
        Keep one transition of each environment; the oldest give way.

        :param obs: goal observations s, arrays of shape (n_envs, *observation_space.shape)
        :param next_obs: goal observations s', terminal ones included
        :param action: shape (n_envs,)
        :param reward: the pursued goal's
        :param done: the pursued goal's
        :param infos: as the goal wrappers give them; ``achieved_goal_id`` and ``env_terminated`` are kept, ``action_mask`` if
            masks are, and ``desired_goal_id`` if pursued goals are
        :raises ValueError: if masks are kept, and one is missing or allows nothing though the environment has not ended
        """
        self.next_ids[self.pos] = [info["achieved_goal_id"] for info in infos]
        ended = np.array([info["env_terminated"] for info in infos])
        if self.next_action_masks is not None:
            self.next_action_masks[self.pos] = read_action_masks(infos, self.next_action_masks.shape[2], ended)
        if self.behavior_goal_ids is not None:
            self.behavior_goal_ids[self.pos] = [info["desired_goal_id"] for info in infos]
        if self.states is not None:
            self._count(obs["observation"], action, next_obs["observation"])
        super().add(obs["observation"], next_obs["observation"], action, reward, ended, infos)

    def keep_states(self, max_states: int) -> None:
        """
        Tell distinct observations apart as states from now on, also in the transitions that there are.

        :param max_states: how many, at most; a warning says when there are more
        """
        n_actions = self.tried.shape[1]
        self.states = GoalBuffer(self.observation_space, max_states, what="states", limit="max_states, of target_kwargs")
        self.state_ids = np.full((self.buffer_size, self.n_envs), UNKNOWN, dtype=np.int64)
        self.next_state_ids = self.state_ids.copy()
        self.tried = np.zeros((0, n_actions), dtype=np.int32)
        self._last_next = None
        shape = (self.n_envs, *(self.observation_space.shape or ()))
        for time in range(self.size()):
            self.state_ids[time] = self.states.add(self.observations[time].reshape(shape))
            self.next_state_ids[time] = self.states.add(self.next_observations[time].reshape(shape))
            self._add_tried(self.state_ids[time], self.actions[time].reshape(-1))

    def forget_states(self) -> None:
        """No longer tell states apart."""
        self.states = None
        self.tried, self._last_next = self.tried[:0], None

    def numbers_of(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        """
        :param observations: what the environments show, shape (n_envs, *observation_space.shape)
        :return: the state of each, taken in if it is new; -1 where there is no room, shape (n_envs,)
        """
        assert self.states is not None
        if self._last_next is None or self._last_next[0].shape != observations.shape:
            ids = self.states.add(observations)
        else:
            # most are where the last transition led to, whose number is known
            before, ids = self._last_next
            other = ~identical(observations, before, observations.ndim - 1)
            if other.any():
                ids = ids.copy()
                ids[other] = self.states.add(observations[other])
        self.tried = grown(self.tried, len(self.states))  # what is new has its counts before anything is tried there
        self._last_next = observations.copy(), ids
        return ids

    def _count(self, observations: NDArray[Any], actions: NDArray[Any], next_observations: NDArray[Any]) -> None:
        assert self.states is not None
        ids = self.numbers_of(observations)
        next_ids = self.states.add(next_observations)
        self.state_ids[self.pos], self.next_state_ids[self.pos] = ids, next_ids
        self._last_next = next_observations.copy(), next_ids
        self._add_tried(ids, np.asarray(actions).reshape(-1))

    def _add_tried(self, ids: NDArray[np.int64], actions: NDArray[Any]) -> None:
        assert self.states is not None
        self.tried = grown(self.tried, len(self.states))
        np.add.at(self.tried, (ids[ids != UNKNOWN], actions[ids != UNKNOWN].astype(np.int64)), 1)

    def get_checkpoint_state(self) -> dict[str, Any]:
        """:return: a plain tree; its arrays are views of the memory, to be written before anything is added"""
        used = slice(self.size())
        return {
            "n_envs": self.n_envs,
            "buffer_size": self.buffer_size,
            "pos": self.pos,
            "full": self.full,
            "states": None if self.states is None else self.states.get_checkpoint_state(),
            "tried": None if self.states is None else self.tried[: len(self.states)],
            "last_next": self._last_next,
            **{name: None if array is None else array[used] for name, array in self._arrays.items()},
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        :param state: of :meth:`get_checkpoint_state`
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
            saved = state.get(name)  # of an earlier version, which kept no pursued goals
            if (array is None) != (saved is None):
                raise CheckpointError(f"the replay memory was saved {'without' if saved is None else 'with'} {name}")
            if array is not None and saved is not None:
                array[: len(saved)] = saved
        if self.states is not None:
            try:
                self.states.set_checkpoint_state(state["states"])
            except ValueError as error:
                raise CheckpointError(f"the states of the replay memory: {error}") from error
            self.tried = state["tried"]
            self._last_next = state["last_next"]
        self.pos, self.full = state["pos"], state["full"]

    @property
    def _arrays(self) -> dict[str, NDArray[Any] | None]:
        names = (
            "observations",
            "next_observations",
            "actions",
            "rewards",
            "dones",
            "timeouts",
            "next_ids",
            "next_action_masks",
            "behavior_goal_ids",
        )
        arrays = {name: getattr(self, name, None) for name in names}
        of_states = self.states is not None
        return {
            **arrays,
            "state_ids": self.state_ids if of_states else None,
            "next_state_ids": self.next_state_ids if of_states else None,
        }

    def identify(self, goal_buffer: GoalBuffer) -> None:
        """
        Give every transition its goal id anew, for another goal buffer than the one it was added with. Which goals were
        pursued is forgotten: of them there is nothing but an id.

        :param goal_buffer: takes in what it does not know yet
        """
        counted = goal_buffer.n_added, goal_buffer.n_recurred
        for time in range(self.size()):
            shape = (self.n_envs, *(self.observation_space.shape or ()))
            self.next_ids[time] = goal_buffer.add(self.next_observations[time].reshape(shape))
        goal_buffer.n_added, goal_buffer.n_recurred = counted  # they were not met again
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
        return self.at(batch_inds, np.random.randint(self.n_envs, size=len(batch_inds)))  # noqa: NPY002 - that SB3 seeds

    def at(self, times: _Indices, envs: _Indices) -> ManyGoalsSamples:
        """
        :param times: rows of the memory, shape (S,)
        :param envs: environments, shape (S,)
        :return: the transitions there
        """
        rows = (times, envs)
        # SB3 keeps discrete observations with a last axis of one
        shape = (len(times), *(self.observation_space.shape or ()))
        return ManyGoalsSamples(
            self.to_torch(self.observations[rows].reshape(shape), copy=False),
            self.to_torch(self.actions[rows].reshape(-1), copy=False),
            self.to_torch(self.next_observations[rows].reshape(shape), copy=False),
            self.to_torch(self.next_ids[rows], copy=False),
            self.to_torch(self.dones[rows].astype(np.bool_), copy=False),
            None if self.next_action_masks is None else self.to_torch(self.next_action_masks[rows], copy=False),
            None if self.behavior_goal_ids is None else self.to_torch(self.behavior_goal_ids[rows], copy=False),
            states=None if self.states is None else self.to_torch(self.state_ids[rows], copy=False),
        )
