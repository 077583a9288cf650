"""Transitions that somebody has recorded, to learn from without an environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_manygoals.errors import check_finite
from sb3_manygoals.goals import UNKNOWN
from sb3_manygoals.goals.sources import ObservationSource
from sb3_manygoals.validation import check_action_space

if TYPE_CHECKING:
    from sb3_manygoals.many_goals_dqn.many_goals_dqn import ManyGoalsDQN

# So many transitions are taken in at a time.
_AT_A_TIME = 1_000


class Transitions:
    """
    N recorded transitions, for :meth:`ManyGoalsDQN.learn_from
    <sb3_manygoals.ManyGoalsDQN.learn_from>`.

    :param observations: what was observed, shape ``(N, *observation_space.shape)``; of a Dict
        space, a dict of such arrays
    :param actions: the actions that were taken, whole numbers, shape ``(N,)``
    :param next_observations: what was observed then, as ``observations``
    :param rewards: the environment's rewards, shape ``(N,)``. None: all 0
    :param terminated: whether the environment terminated, bool, shape ``(N,)``. Truncations are no
        terminations. None: it never did
    :raises ValueError: if arrays have different lengths, or there is no transition
    """

    def __init__(
        self,
        observations: Any,
        actions: NDArray[Any],
        next_observations: Any,
        rewards: NDArray[Any] | None = None,
        terminated: NDArray[Any] | None = None,
    ) -> None:
        self.observations = observations
        self.actions = np.asarray(actions).reshape(-1)
        self.next_observations = next_observations
        n = len(self.actions)
        self.rewards = np.zeros(n) if rewards is None else np.asarray(rewards, np.float64)
        self.terminated = np.zeros(n, np.bool_) if terminated is None else np.asarray(terminated)
        self.terminated = self.terminated.astype(np.bool_)
        if self.actions.dtype.kind not in "iu":
            raise ValueError(f"actions must be whole numbers, got {self.actions.dtype}")
        lengths = {
            "observations": _length(observations),
            "actions": n,
            "next_observations": _length(next_observations),
            "rewards": len(self.rewards),
            "terminated": len(self.terminated),
        }
        if n == 0 or len(set(lengths.values())) > 1:
            raise ValueError(f"all arrays must have one length of at least 1, got {lengths}")

    def __len__(self) -> int:
        return len(self.actions)

    @classmethod
    def of_replay_buffer(cls, replay_buffer: ReplayBuffer) -> Transitions:
        """
        Return the transitions in an SB3 replay memory, those of all environments.

        :param replay_buffer: a memory of single arrays as observations, with discrete actions
        :raises TypeError: if it is another kind of memory
        """
        if type(replay_buffer) is not ReplayBuffer:
            raise TypeError(
                "replay_buffer must be SB3's ReplayBuffer, of single arrays as observations, got "
                f"{type(replay_buffer).__name__}"
            )
        places = np.arange(replay_buffer.size())
        if replay_buffer.optimize_memory_usage:
            if replay_buffer.full:
                # The next observation of the newest transition has overwritten the oldest one.
                places = places[places != replay_buffer.pos]
            next_places = (places + 1) % replay_buffer.buffer_size
            next_observations = replay_buffer.observations[next_places]
        else:
            next_observations = replay_buffer.next_observations[places]
        ended = replay_buffer.dones[places] * (1 - replay_buffer.timeouts[places])
        # SB3 keeps a Discrete observation as an array of one number.
        shape = replay_buffer.observation_space.shape or ()
        return cls(
            replay_buffer.observations[places].reshape(-1, *shape),
            replay_buffer.actions[places].reshape(-1).astype(np.int64),
            next_observations.reshape(-1, *shape),
            replay_buffer.rewards[places].reshape(-1),
            ended.reshape(-1) > 0,
        )

    @classmethod
    def of_minari(cls, dataset: Any) -> Transitions:
        """
        Return the transitions in a Minari data set.

        :param dataset: a ``minari.MinariDataset`` with discrete actions
        """
        parts: list[Transitions] = []
        for episode in dataset.iterate_episodes():
            seen = episode.observations
            last = slice(None, -1)
            parts.append(
                cls(
                    _sliced(seen, last),
                    episode.actions,
                    _sliced(seen, slice(1, None)),
                    episode.rewards,
                    episode.terminations,
                )
            )
        return cls(
            _joined([part.observations for part in parts]),
            np.concatenate([part.actions for part in parts]),
            _joined([part.next_observations for part in parts]),
            np.concatenate([part.rewards for part in parts]),
            np.concatenate([part.terminated for part in parts]),
        )


class NoEnv(gym.Env[Any, Any]):
    """
    Spaces in place of an environment, for a model that learns from recorded transitions only.

    :param observation_space: space of the recorded observations
    :param action_space: Discrete, the actions
    :raises TypeError: if actions are not Discrete from 0
    """

    def __init__(
        self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]
    ) -> None:
        check_action_space(action_space)
        self.observation_space = observation_space
        self.action_space = action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """
        Raise an error.

        :param seed: not used
        :param options: not used
        :raises RuntimeError: always
        """
        raise RuntimeError("NoEnv has no world to step in: call learn_from, or set_env before")

    def step(self, action: Any) -> Any:
        """
        Raise an error.

        :param action: not used
        :raises RuntimeError: always
        """
        raise RuntimeError("NoEnv has no world to step in: call learn_from, or set_env before")


def take_in(model: ManyGoalsDQN, transitions: Transitions) -> None:
    """
    Record transitions in a model's world and, if its targets read them, in its replay memory.

    :param model: the model
    :param transitions: the transitions
    :raises ValueError: if observations do not fit the model's space, or an action is none of its
        actions
    """
    assert model.goal_buffer is not None
    assert model.world is not None
    n_actions = int(model.action_space.n)
    wrong = (transitions.actions < 0) | (transitions.actions >= n_actions)
    if wrong.any():
        raise ValueError(
            f"actions must be from 0 to {n_actions - 1}, got {transitions.actions[wrong][0]}"
        )
    check_finite(transitions.rewards, "a reward", model)
    for first in range(0, len(transitions), _AT_A_TIME):
        rows = slice(first, first + _AT_A_TIME)
        observations = _arrays(model, _sliced(transitions.observations, rows), "observations")
        after = _arrays(model, _sliced(transitions.next_observations, rows), "next_observations")
        state_ids, _ = model.goal_buffer.observe(observations)
        next_state_ids, next_goal_ids = model.goal_buffer.observe(after)
        actions = transitions.actions[rows].astype(np.int64)
        rewards = transitions.rewards[rows]
        terminated = transitions.terminated[rows]
        model.world.record(state_ids, actions, next_state_ids, rewards, terminated)
        if model._stores_transitions:
            for row in range(len(actions)):
                info = {
                    "env_terminated": bool(terminated[row]),
                    "env_reward": float(rewards[row]),
                    "achieved_goal_id": int(next_goal_ids[row]),
                    "desired_goal_id": UNKNOWN,
                    "state_id": int(state_ids[row]),
                    "next_state_id": int(next_state_ids[row]),
                }
                model.replay_buffer.add(
                    {"observation": observations[row : row + 1]},
                    {"observation": after[row : row + 1]},
                    actions[row : row + 1],
                    rewards[row : row + 1],
                    terminated[row : row + 1],
                    [info],
                )


def _arrays(model: ManyGoalsDQN, observations: Any, name: str) -> NDArray[Any]:
    """Return observations as the model keeps them, after a check."""
    assert model.goal_buffer is not None
    space = model.observation_space["observation"]
    parts = getattr(space, "parts", None)
    if parts is not None:
        observations = ObservationSource(parts).array(observations)
    array = model.goal_buffer.check(np.asarray(observations), name)
    if array.dtype.kind == "f":
        check_finite(array, name, model)
    return array


def _length(observations: Any) -> int:
    """Return the number of observations, which may be a dict of arrays."""
    if isinstance(observations, dict):
        return len(next(iter(observations.values()))) if observations else 0
    return len(observations)


def _sliced(observations: Any, rows: slice) -> Any:
    """Return some of the observations."""
    if isinstance(observations, dict):
        return {name: values[rows] for name, values in observations.items()}
    return observations[rows]


def _joined(parts: list[Any]) -> Any:
    """Return the observations of several episodes together."""
    if isinstance(parts[0], dict):
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return np.concatenate(parts)
