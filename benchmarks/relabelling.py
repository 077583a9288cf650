"""SB3's own way to learn of several goals, its DQN with HerReplayBuffer, made fit for the studies and otherwise as it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3 import DQN, HerReplayBuffer
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, GymEnv
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from sb3_manygoals import GoalBuffer
from sb3_manygoals.checkpoint import CheckpointError
from sb3_manygoals.checkpoint.learner import get_algorithm_state, set_algorithm_state
from sb3_manygoals.goals import UNKNOWN
from sb3_manygoals.goals.environments import as_goal_vec_env, goal_trackers
from sb3_manygoals.networks import Preprocess

REDRAWS = 8
"""How often a goal that must not be taught is drawn again. Were half of an episode held out, one draw in 512 would be left."""

_PICTURES = ("observations", "next_observations")
_ARRAYS = ("actions", "rewards", "dones", "timeouts", "ep_start", "ep_length")


class KnownGoalsHerReplayBuffer(HerReplayBuffer):
    """
    SB3's HerReplayBuffer, which relabels with goals that the goal buffer knows only: held-out ones have no place there.

    SB3's relabels with whatever an episode has met. A goal drawn by it that is not known is drawn again, by the same rule for
    the same transition; so goals are distributed as SB3's are, given that they are known. Where that does not help (the
    episode may have met nothing else, and "final" has no choice), the transition keeps the goal that was pursued, which is
    known.

    ``goal_updates`` counts how often each goal was in a batch, by id, shape (capacity of the goal buffer,).

    :param buffer_size: transitions of all environments together
    :param observation_space: of the goal wrapper
    :param action_space: of the environment
    :param env: a VecEnv with a goal wrapper
    :param kwargs: further ones of HerReplayBuffer
    """

    def __init__(
        self, buffer_size: int, observation_space: spaces.Dict, action_space: spaces.Space[Any], env: VecEnv, **kwargs: Any
    ) -> None:
        super().__init__(buffer_size, observation_space, action_space, env, **kwargs)
        self.goal_buffer: GoalBuffer = goal_trackers(env)[0].goal_buffer
        self.goal_updates: NDArray[np.int64] = np.zeros(self.goal_buffer.capacity, dtype=np.int64)

    def _sample_goals(self, batch_indices: NDArray[Any], env_indices: NDArray[Any]) -> NDArray[Any]:
        goals = super()._sample_goals(batch_indices, env_indices)
        ids = self._ids(goals)
        for _ in range(REDRAWS):
            rows = np.flatnonzero(ids == UNKNOWN)
            if len(rows) == 0:
                break
            goals[rows] = super()._sample_goals(batch_indices[rows], env_indices[rows])
            ids[rows] = self._ids(goals[rows])
        rows = np.flatnonzero(ids == UNKNOWN)
        goals[rows] = self.observations["desired_goal"][batch_indices[rows], env_indices[rows]]
        ids[rows] = self._ids(goals[rows])
        self._count(ids)
        return goals

    def _get_real_samples(
        self, batch_indices: NDArray[Any], env_indices: NDArray[Any], env: VecNormalize | None = None
    ) -> DictReplayBufferSamples:
        self._count(self._ids(self.observations["desired_goal"][batch_indices, env_indices]))
        return super()._get_real_samples(batch_indices, env_indices, env)

    def _ids(self, goals: NDArray[Any]) -> NDArray[np.int64]:
        return self.goal_buffer.ids(goals.reshape(-1, *self.goal_buffer.shape))  # SB3 keeps numbers as vectors of one

    def _count(self, ids: NDArray[np.int64]) -> None:
        np.add.at(self.goal_updates, ids[ids != UNKNOWN], 1)

    def get_checkpoint_state(self) -> dict[str, Any]:
        """:return: a plain tree; its arrays are views of the memory, to be written before anything is added"""
        used = slice(self.size())
        return {
            "buffer_size": self.buffer_size,
            "pos": self.pos,
            "full": self.full,
            "current_ep_start": self._current_ep_start,
            "goal_updates": self.goal_updates,
            **{name: {key: array[used] for key, array in getattr(self, name).items()} for name in _PICTURES},
            **{name: getattr(self, name)[used] for name in _ARRAYS},
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        :param state: of :meth:`get_checkpoint_state`
        :raises CheckpointError: if it is of a memory of another size
        """
        if state["buffer_size"] != self.buffer_size:
            raise CheckpointError(
                f"the replay memory was saved with buffer_size {state['buffer_size']}, this one has {self.buffer_size}"
            )
        for name in _PICTURES:
            for key, array in getattr(self, name).items():
                array[: len(state[name][key])] = state[name][key]
        for name in _ARRAYS:
            getattr(self, name)[: len(state[name])] = state[name]
        self.pos, self.full = state["pos"], state["full"]
        self._current_ep_start, self.goal_updates = state["current_ep_start"], state["goal_updates"]


class HindsightDQN(DQN):
    """
    SB3's DQN with a :class:`KnownGoalsHerReplayBuffer`: acting, targets, loss, optimizer and schedules are SB3's. Added is
    what the studies ask for: exact checkpoints, and images standardized by the goals that are known at the first update, as
    ManyGoalsDQN's are. SB3's VecTransposeImage is left out: goals would be turned, too, and the goal wrapper not know them.
    The network must put the channels first itself.

    What SB3 does and ManyGoalsDQN does not: relabelled transitions keep the ``done`` of the goal that was pursued. Where a
    transition reaches the goal it is relabelled with, its reward is that of the goal, but the target goes on beyond it, as if
    the agent had to stay there; and the transition that ended an episode by reaching its goal is an end for whatever goal it
    is relabelled with (with "future" and "final" that is the goal reached). No option of SB3's changes that. Its
    ``handle_timeout_termination``, on by default, only sees to it that episodes out of time are no ends.
    """

    replay_buffer: KnownGoalsHerReplayBuffer

    @property
    def goal_buffer(self) -> GoalBuffer:
        """The known goals."""
        return self.replay_buffer.goal_buffer

    @property
    def goal_updates(self) -> NDArray[np.int64]:
        """How often each goal was in a batch, by id, shape (capacity of the goal buffer,)."""
        return self.replay_buffer.goal_updates

    @staticmethod
    def _wrap_env(env: GymEnv, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        return as_goal_vec_env(env, monitor_wrapper)

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """
        :param gradient_steps: number of updates
        :param batch_size: transitions in each
        """
        if self._n_updates == 0:
            for network in (self.q_net, self.q_net_target):
                preprocess = network.features_extractor.trunk[0]  # type: ignore[index]
                if isinstance(preprocess, Preprocess) and preprocess.standardize:
                    preprocess.fit(th.as_tensor(self.goal_buffer.observations.copy(), device=self.device) / 255.0)
        super().train(gradient_steps, batch_size)

    def get_checkpoint_state(self) -> dict[str, Any]:
        """
        As :meth:`ManyGoalsDQN.get_checkpoint_state`.

        :return: a plain tree, some of whose arrays are the model's own: to be written before training goes on
        """
        return {
            "algorithm": get_algorithm_state(self),
            "replay_buffer": self.replay_buffer.get_checkpoint_state(),
            "goal_buffer": self.goal_buffer.get_checkpoint_state(),
            "exploration_rate": self.exploration_rate,
            "n_calls": self._n_calls,
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        :param state: of :meth:`get_checkpoint_state`, of a model that was built in the same way
        :raises CheckpointError: if it was built in another way; this one may then be in part what the other was
        """
        set_algorithm_state(self, state["algorithm"])
        self.replay_buffer.set_checkpoint_state(state["replay_buffer"])
        try:
            self.goal_buffer.set_checkpoint_state(state["goal_buffer"])
        except ValueError as error:
            raise CheckpointError(str(error)) from error
        self.exploration_rate, self._n_calls = state["exploration_rate"], state["n_calls"]
