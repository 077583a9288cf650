"""Replay memory of transitions without goals: these are chosen when a batch is used."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.vec_env import VecNormalize

from sb3_manygoals.action_masks import read_action_masks
from sb3_manygoals.checkpoint.tree import CheckpointError
from sb3_manygoals.goals import UNKNOWN, GoalBuffer

_ARRAYS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
_OUR_ARRAYS = ("next_ids", "behavior_goal_ids", "next_action_masks")


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
    """The goal pursued, -1 for unknown ones, shape (S,) int64; None if it does not matter."""
    states: th.Tensor | None = None
    """The number of s, -1 for unknown ones, shape (S,) int64; None if it does not matter."""


class ManyGoalsReplayBuffer(ReplayBuffer):
    """
    Transitions (s, a, s') and the goal id of s'. Reward and end of the goal that was pursued are not used: every transition
    teaches the goals it is paired with. ``dones`` are the environment's own ends. States are numbered for
    :class:`~sb3_manygoals.many_goals_dqn.planning.ReplayModel` once :meth:`keep_states` was called.

    :param buffer_size: transitions kept, all environments together
    :param observation_space: goal observation space, Dict with "observation"
    :param action_space: Discrete
    :param device: device of batches
    :param n_envs: number of parallel environments
    :param optimize_memory_usage: must be False; part of SB3's interface
    :param action_masks: whether to keep which actions are allowed in s', A bytes a transition
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
    ) -> None:
        super().__init__(buffer_size, observation_space["observation"], action_space, device, n_envs, optimize_memory_usage)
        shape, n_actions = (self.buffer_size, n_envs), int(action_space.n)
        self.next_ids = np.zeros(shape, dtype=np.int64)
        self.behavior_goal_ids = np.zeros(shape, dtype=np.int64)
        self.next_action_masks = np.zeros((*shape, n_actions), dtype=np.bool_) if action_masks else None
        self.states: GoalBuffer | None = None  # the distinct observations met, by their numbers
        # how often each action was taken in each state, shape (max_states, A), and each (s, a, s', environment ended)
        # occurred; both include transitions no longer kept
        self.tried: NDArray[np.int32] = np.zeros((0, n_actions), dtype=np.int32)
        self._outcomes: Counter[tuple[int, ...]] = Counter()

    @classmethod
    def memory_needed(
        cls, buffer_size: int, observation_space: spaces.Dict, action_space: spaces.Discrete, n_envs: int, action_masks: bool
    ) -> dict[str, int]:
        """:return: bytes of the arrays of a memory with these arguments, by what they are for; states are not counted"""
        one = cls(n_envs, observation_space, action_space, "cpu", n_envs, action_masks=action_masks)
        sizes = {name: array.nbytes for name, array in one._arrays.items() if array is not None}
        return {f"replay {name.replace('_', ' ')}": size * max(buffer_size // n_envs, 1) for name, size in sizes.items()}

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
        As SB3's, one transition of each environment. ``infos`` are from the goal wrappers, with ``achieved_goal_id``,
        ``desired_goal_id`` (if a goal was pursued) and ``env_terminated``; also ``action_mask`` if masks are kept.

        :raises ValueError: if masks are kept, and one is missing or allows nothing though the environment has not ended
        """
        self.next_ids[self.pos] = [info["achieved_goal_id"] for info in infos]
        self.behavior_goal_ids[self.pos] = [info.get("desired_goal_id", UNKNOWN) for info in infos]
        ended = np.array([info["env_terminated"] for info in infos])
        if self.next_action_masks is not None:
            self.next_action_masks[self.pos] = read_action_masks(infos, self.next_action_masks.shape[2], ended)
        here, there = obs["observation"], next_obs["observation"]
        self._count(here, action, there, ended)
        super().add(here, there, action, reward, ended, infos)

    def keep_states(self, max_states: int) -> None:
        """Number states from now on, those of the transitions already kept included; with a warning beyond ``max_states``."""
        self.forget_states()
        self.states = GoalBuffer(self.observation_space, max_states, what="states", limit="capacity, of the goal buffer")
        self.tried = np.zeros((max_states, self.tried.shape[1]), dtype=np.int32)
        for time in range(self.size()):
            here, there = (self._shaped(array[time]) for array in (self.observations, self.next_observations))
            self._count(here, self.actions[time], there, self.dones[time])

    def forget_states(self) -> None:
        self.states = None
        self.tried = np.zeros((0, self.tried.shape[1]), dtype=np.int32)
        self._outcomes = Counter()

    def _count(self, here: NDArray[Any], actions: NDArray[Any], there: NDArray[Any], ended: NDArray[Any]) -> None:
        if self.states is None:
            return
        ids, next_ids = self.states.add(here), self.states.add(there)
        actions = np.asarray(actions, dtype=np.int64).reshape(-1)
        known = ids != UNKNOWN
        np.add.at(self.tried, (ids[known], actions[known]), 1)
        known &= next_ids != UNKNOWN
        rows = np.stack([ids, actions, next_ids, np.asarray(ended, dtype=np.int64)], axis=1)[known]
        self._outcomes.update(map(tuple, rows.tolist()))

    def outcomes(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """
        :return: columns s, a, s' and whether the environment ended, by numbers of states, shape (K, 4), of all transitions
            since states are numbered; how often each row occurred, shape (K,)
        """
        rows = np.array(list(self._outcomes), dtype=np.int64).reshape(-1, 4)
        return rows, np.array(list(self._outcomes.values()), dtype=np.int64)

    def _shaped(self, observations: NDArray[Any]) -> NDArray[Any]:
        """SB3 keeps discrete observations with an extra axis."""
        return observations.reshape(len(observations), *(self.observation_space.shape or ()))

    def get_checkpoint_state(self) -> dict[str, Any]:
        states = None
        if self.states is not None:
            tried = self.tried[: len(self.states)]
            states = {"buffer": self.states.get_checkpoint_state(), "tried": tried, "outcomes": self.outcomes()}
        numbers = {name: getattr(self, name) for name in ("n_envs", "buffer_size", "pos", "full")}
        arrays = {name: None if array is None else array[: self.size()] for name, array in self._arrays.items()}
        return {**numbers, **arrays, "states": states}

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """A CheckpointError if the state is of a memory of another size, or keeps masks where this one does not."""
        for name in ("buffer_size", "n_envs"):
            saved, own = state[name], getattr(self, name)
            if saved != own:
                raise CheckpointError(f"the replay memory was saved with {name} {saved}, this one has {own}")
        for name, array in self._arrays.items():
            saved = state.get(name)
            if (array is None) != (saved is None):
                raise CheckpointError(f"the replay memory was saved {'without' if saved is None else 'with'} {name}")
            if array is not None and saved is not None:
                array[: len(saved)] = saved
        self.reset()
        self.forget_states()
        if state["states"] is not None:
            states, tried, (rows, counts) = (state["states"][name] for name in ("buffer", "tried", "outcomes"))
            self.keep_states(states["capacity"])
            assert self.states is not None
            self.states.set_checkpoint_state(states)
            self.tried[: len(tried)] = tried
            self._outcomes = Counter(dict(zip(map(tuple, rows.tolist()), counts.tolist(), strict=True)))
        self.pos, self.full = state["pos"], state["full"]

    @property
    def _arrays(self) -> dict[str, NDArray[Any] | None]:
        return {name: getattr(self, name) for name in _ARRAYS + _OUR_ARRAYS}

    def identify(self, goal_buffer: GoalBuffer) -> None:
        """Add all next observations to another goal buffer, for their ids. The goals pursued are forgotten."""
        counted = goal_buffer.n_added, goal_buffer.n_recurred
        for time in range(self.size()):
            self.next_ids[time] = goal_buffer.add(self._shaped(self.next_observations[time]))
        goal_buffer.n_added, goal_buffer.n_recurred = counted  # the observations were not met again
        self.behavior_goal_ids[: self.size()] = UNKNOWN

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> ManyGoalsSamples:  # type: ignore[override]
        """As SB3's: S transitions drawn uniformly, with replacement."""
        return super().sample(batch_size, env)  # type: ignore[return-value]

    def _get_samples(  # type: ignore[override]
        self, batch_inds: NDArray[np.integer[Any]], env: VecNormalize | None = None
    ) -> ManyGoalsSamples:
        envs = np.random.randint(self.n_envs, size=len(batch_inds))  # noqa: NPY002 - the generator that SB3 seeds

        def rows(array: NDArray[Any]) -> th.Tensor:
            return self.to_torch(array[batch_inds, envs], copy=False)

        return ManyGoalsSamples(
            self.to_torch(self._shaped(self.observations[batch_inds, envs]), copy=False),
            rows(self.actions).view(-1),
            self.to_torch(self._shaped(self.next_observations[batch_inds, envs]), copy=False),
            rows(self.next_ids),
            rows(self.dones).bool(),
            None if self.next_action_masks is None else rows(self.next_action_masks),
            rows(self.behavior_goal_ids),
        )
