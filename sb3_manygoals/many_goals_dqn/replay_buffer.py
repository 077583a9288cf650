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

_Indices: TypeAlias = NDArray[np.integer[Any]]


class ManyGoalsSamples(NamedTuple):
    """A batch of S transitions (s, a, s'); with n steps, s' is where the world came to some steps later."""

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
    pursued_ids: th.Tensor | None = None
    """The goal that was pursued, -1 if it is none of the known ones; shape (S,) int64; None: not kept."""
    path_ids: th.Tensor | None = None
    """With n steps: the goals that the world was on its way from s to s', this included, then -1; shape (S, n) int64."""
    path_lengths: th.Tensor | None = None
    """With n steps: how many they are, from 1 to n; shape (S,) int64."""
    goes_on: th.Tensor | None = None
    """With segments: whether the next row is the transition that followed this one in the world; shape (S,) bool."""
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
    :param pursued_goals: whether to keep the id of the goal that was pursued
    :param n_steps: that lie between s and s' in a batch; fewer where the world ended, was reset, or went on only after the
        newest transition
    :param segment_length: transitions that follow each other in a part of a batch, the world having gone on between them
    :param segment_share: that part; what is left, and too little for a segment, is drawn one by one
    :param n_states: how many different observations are told apart as states, as s and s' of each transition; 0: none

    For copies of it elsewhere, ``added`` counts the calls of :meth:`add`, and ``rewrites`` how often what was there became
    something else.
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
        pursued_goals: bool = False,
        n_steps: int = 1,
        segment_length: int = 1,
        segment_share: float = 0.5,
        n_states: int = 0,
    ) -> None:
        super().__init__(buffer_size, observation_space["observation"], action_space, device, n_envs, optimize_memory_usage)
        self.n_steps = n_steps
        self.segment_length = segment_length
        self.segment_share = segment_share
        self.added, self.rewrites = 0, 0
        self.next_ids = np.zeros((self.buffer_size, n_envs), dtype=np.int64)
        self.next_action_masks: NDArray[np.bool_] | None = None
        if action_masks:
            self.next_action_masks = np.zeros((self.buffer_size, n_envs, int(action_space.n)), dtype=np.bool_)
        self.pursued_ids: NDArray[np.int64] | None = None
        if pursued_goals:
            self.pursued_ids = np.full((self.buffer_size, n_envs), UNKNOWN, dtype=np.int64)
        self.states: GoalBuffer | None = None
        if n_states:
            self.states = GoalBuffer(self.observation_space, n_states)
            self.state_ids = np.full((self.buffer_size, n_envs), UNKNOWN, dtype=np.int64)
            self.next_state_ids = self.state_ids.copy()

    @staticmethod
    def memory_needed(
        buffer_size: int,
        observation_space: spaces.Dict,
        action_space: spaces.Discrete,
        n_envs: int,
        action_masks: bool,
        pursued_goals: bool = False,
        n_steps: int = 1,
        segment_length: int = 1,
        segment_share: float = 0.5,
        n_states: int = 0,
    ) -> dict[str, int]:
        """
        :param buffer_size: see the class, as are the others
        :param observation_space: goal observation space
        :param action_space: Discrete
        :param n_envs: number of parallel environments
        :param action_masks: whether they are kept
        :param pursued_goals: whether their ids are kept
        :param n_steps: takes no memory, as does what follows
        :param segment_length: see the class
        :param segment_share: see the class
        :param n_states: see the class; their observations are not counted
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
        if pursued_goals:
            needed["replay pursued goal ids"] = rows * np.dtype(np.int64).itemsize
        if n_states:
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
        if self.pursued_ids is not None:
            self.pursued_ids[self.pos] = [info["desired_goal_id"] for info in infos]
        if self.states is not None:
            self.state_ids[self.pos] = self.states.add(obs["observation"])
            self.next_state_ids[self.pos] = self.states.add(next_obs["observation"])
        super().add(obs["observation"], next_obs["observation"], action, reward, ended, infos)
        self.added += 1

    def get_checkpoint_state(self) -> dict[str, Any]:
        """:return: a plain tree; its arrays are views of the memory, to be written before anything is added"""
        used = slice(self.size())
        return {
            "n_envs": self.n_envs,
            "buffer_size": self.buffer_size,
            "pos": self.pos,
            "full": self.full,
            "states": None if self.states is None else self.states.get_checkpoint_state(),
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
        self.rewrites += 1
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
            "pursued_ids",
            "state_ids",
            "next_state_ids",
        )
        return {name: getattr(self, name, None) for name in names}

    def identify(self, goal_buffer: GoalBuffer) -> None:
        """
        Give every transition its goal id anew, for another goal buffer than the one it was added with. Which goals were
        pursued is forgotten: of them there is nothing but an id.

        :param goal_buffer: takes in what it does not know yet
        """
        self.rewrites += 1
        for time in range(self.size()):
            shape = (self.n_envs, *(self.observation_space.shape or ()))
            self.next_ids[time] = goal_buffer.add(self.next_observations[time].reshape(shape))
        if self.pursued_ids is not None:
            self.pursued_ids[:] = UNKNOWN

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
        :return: the transitions there, in part in segments where the memory has such
        """
        rows: tuple[_Indices, _Indices] = (times, envs)
        way: dict[str, NDArray[Any]] = {}
        if self.segment_length > 1:
            rows, way["goes_on"] = self._in_segments(*rows)
        last = rows
        if self.n_steps > 1:
            last, way = self._follow(*rows)
        # SB3 keeps discrete observations with a last axis of one
        shape = (len(times), *(self.observation_space.shape or ()))
        return ManyGoalsSamples(
            self.to_torch(self.observations[rows].reshape(shape), copy=False),
            self.to_torch(self.actions[rows].reshape(-1), copy=False),
            self.to_torch(self.next_observations[last].reshape(shape), copy=False),
            self.to_torch(self.next_ids[last], copy=False),
            self.to_torch(self.dones[last].astype(np.bool_), copy=False),
            None if self.next_action_masks is None else self.to_torch(self.next_action_masks[last], copy=False),
            None if self.pursued_ids is None else self.to_torch(self.pursued_ids[rows], copy=False),
            **{name: self.to_torch(array, copy=False) for name, array in way.items()},
            states=None if self.states is None else self.to_torch(self.state_ids[rows], copy=False),
        )

    def _follow(self, times: _Indices, envs: _Indices) -> tuple[tuple[_Indices, _Indices], dict[str, NDArray[Any]]]:
        """
        :param times: rows of transitions
        :param envs: their environments
        :return: where the last of up to ``n_steps`` transitions from there on lies, and the way there
        """
        last, going = times, np.ones(len(times), dtype=np.bool_)
        ids = np.full((len(times), self.n_steps), UNKNOWN, dtype=np.int64)
        ids[:, 0], lengths = self.next_ids[times, envs], np.ones(len(times), dtype=np.int64)
        for step in range(1, self.n_steps):
            going = going & self._world_went_on(last, envs)
            last = np.where(going, (last + 1) % self.buffer_size, last)
            ids[going, step] = self.next_ids[last, envs][going]
            lengths += going
        return (last, envs), {"path_ids": ids, "path_lengths": lengths}

    def _in_segments(self, times: _Indices, envs: _Indices) -> tuple[tuple[_Indices, _Indices], NDArray[np.bool_]]:
        """
        :param times: rows drawn one by one
        :param envs: their environments
        :return: rows of which the first lie in segments, and whether each goes on in the next. Where the world did not go on,
            a segment begins anew with what was drawn in that place
        """
        length = self.segment_length
        n_segments = int(self.segment_share * len(times)) // length
        within = slice(n_segments * length)
        times, envs = times.copy(), envs.copy()
        goes_on = np.zeros(len(times), dtype=np.bool_)
        in_time, in_env = (array[within].reshape(n_segments, length) for array in (times, envs))
        linked = goes_on[within].reshape(n_segments, length)
        for place in range(1, length):
            before = in_time[:, place - 1], in_env[:, place - 1]
            went_on = self._world_went_on(*before)
            in_time[went_on, place] = (before[0][went_on] + 1) % self.buffer_size
            in_env[went_on, place] = before[1][went_on]
            linked[:, place - 1] = went_on
        return (times, envs), goes_on

    def _world_went_on(self, times: _Indices, envs: _Indices) -> NDArray[np.bool_]:
        """Whether the next transition is kept, and begins where this one led to. Goals make no difference."""
        following = (times + 1) % self.buffer_size
        equal: NDArray[np.bool_] = self.observations[following, envs] == self.next_observations[times, envs]
        same = equal.all(axis=tuple(range(1, equal.ndim)))
        on: NDArray[np.bool_] = (following != self.pos) & ~self.dones[times, envs].astype(np.bool_) & same
        return on
