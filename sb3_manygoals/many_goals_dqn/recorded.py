"""Transitions that somebody has recorded, to learn from without an environment."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_manygoals.goals import UNKNOWN
from sb3_manygoals.goals.sources import ObservationSource
from sb3_manygoals.goals.spaces import check_finite, check_numbers
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
    :param actions: the actions that were taken, whole numbers, shape ``(N,)`` or ``(N, 1)``
    :param next_observations: what was observed then, as ``observations``
    :param rewards: the environment's rewards, shape ``(N,)`` or ``(N, 1)``. None: all 0
    :param terminated: whether the environment terminated, bool, or 0 and 1, shape ``(N,)`` or
        ``(N, 1)``. Truncations are no terminations. None: it never did
    :raises ValueError: if arrays have different lengths, there is no transition, or actions,
        rewards or terminations are something else
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
        self.actions = _column(actions, "actions", "iu", "whole numbers")
        self.next_observations = next_observations
        n = len(self.actions)
        if rewards is None:
            rewards = np.zeros(n)
        self.rewards = _column(rewards, "rewards", "biuf", "numbers").astype(np.float64)
        if terminated is None:
            terminated = np.zeros(n, np.bool_)
        ends = _column(terminated, "terminated", "biuf", "booleans")
        self.terminated = ends.astype(np.bool_)
        if not np.array_equal(self.terminated, ends):
            raise ValueError(f"terminated must be booleans, or 0 and 1, got {np.unique(ends)}")
        lengths = {
            **_lengths(observations, "observations"),
            "actions": n,
            **_lengths(next_observations, "next_observations"),
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

        With ``optimize_memory_usage``, SB3 overwrites the observations in which episodes ended.
        These transitions are left out, with a warning. With ``handle_timeout_termination=False``,
        the memory does not tell truncations from terminations. Then all ends count as terminations,
        with a warning.

        :param replay_buffer: a memory of single arrays as observations, with discrete actions
        :return: the transitions
        :raises TypeError: if it is another kind of memory, or actions are not discrete
        :raises ValueError: if it has no transition
        """
        if type(replay_buffer) is not ReplayBuffer:
            raise TypeError(
                "replay_buffer must be SB3's ReplayBuffer, of single arrays as observations, got "
                f"{type(replay_buffer).__name__}"
            )
        if not isinstance(replay_buffer.action_space, spaces.Discrete):
            raise TypeError(
                "replay_buffer must have discrete actions, got those of "
                f"{replay_buffer.action_space}"
            )
        places = np.arange(replay_buffer.size())
        if replay_buffer.full:
            # The oldest come first.
            places = np.roll(places, -replay_buffer.pos)
        is_kept = np.ones((len(places), replay_buffer.n_envs), dtype=np.bool_)
        if replay_buffer.optimize_memory_usage:
            if replay_buffer.full:
                # The next observation of the newest transition has overwritten the oldest one.
                places = places[places != replay_buffer.pos]
            next_places = (places + 1) % replay_buffer.buffer_size
            next_observations = replay_buffer.observations[next_places]
            # The next episode has overwritten where others ended, but not where the newest did.
            is_newest = next_places == replay_buffer.pos
            is_kept = (replay_buffer.dones[places] == 0) | is_newest[:, None]
        else:
            next_observations = replay_buffer.next_observations[places]
        dones = replay_buffer.dones[places]
        _warn_of_ends(replay_buffer, dones[is_kept], int(np.count_nonzero(~is_kept)))
        ended = dones * (1 - replay_buffer.timeouts[places])
        # SB3 keeps a Discrete observation as an array of one number.
        shape = replay_buffer.observation_space.shape or ()

        def of_each_env(columns: NDArray[Any]) -> NDArray[Any]:
            """Return what is kept of one environment after the other, each in order of time."""
            kept: NDArray[Any] = columns.swapaxes(0, 1)[is_kept.T]
            return kept

        return cls(
            of_each_env(replay_buffer.observations[places]).reshape(-1, *shape),
            of_each_env(replay_buffer.actions[places]).reshape(-1).astype(np.int64),
            of_each_env(next_observations).reshape(-1, *shape),
            of_each_env(replay_buffer.rewards[places]),
            of_each_env(ended) > 0,
        )

    @classmethod
    def of_minari(cls, dataset: Any) -> Transitions:
        """
        Return the transitions in a Minari data set.

        :param dataset: a ``minari.MinariDataset`` with discrete actions
        :return: the transitions of all its episodes
        :raises ValueError: if actions are not discrete, or there is no episode
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
        if not parts:
            raise ValueError(f"dataset must have at least one episode, got {dataset!r} without any")
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
    :raises TypeError: if they are no Transitions
    :raises ValueError: if observations do not fit the model's space, an action is none of its
        actions, or a reward is not finite. Then nothing has been recorded
    """
    if not isinstance(transitions, Transitions):
        raise TypeError(
            f"transitions must be Transitions, got {type(transitions).__name__}: make them by "
            "Transitions(...), Transitions.of_replay_buffer(...) or Transitions.of_minari(...)"
        )
    assert model.goal_buffer is not None
    assert model.world is not None
    n_actions = int(model.action_space.n)
    wrong = (transitions.actions < 0) | (transitions.actions >= n_actions)
    if wrong.any():
        raise ValueError(
            f"actions must be from 0 to {n_actions - 1}, got {transitions.actions[wrong][0]}"
        )
    check_finite(transitions.rewards, "rewards")
    # All is checked before anything is recorded.
    all_observations = _arrays(model, transitions.observations, "observations")
    all_after = _arrays(model, transitions.next_observations, "next_observations")
    if model._stores_transitions and len(transitions) > model.replay_buffer.buffer_size:
        warnings.warn(
            f"the replay memory has room for the last {model.replay_buffer.buffer_size} of "
            f"{len(transitions)} transitions: raise buffer_size to learn from all of them by "
            "bootstrapping",
            stacklevel=3,
        )
    parts = [slice(first, first + _AT_A_TIME) for first in range(0, len(transitions), _AT_A_TIME)]
    # Most observations are in the arrays twice: where an action led, and where the next one was
    # taken. The first of these counts, or each would seem to recur.
    states = model.goal_buffer.states
    n_shared = states.n_shared
    found = [model.goal_buffer.observe(all_after[rows]) for rows in parts]
    # One environment showed them, one after the other, and not many at the same time.
    states.n_shared = n_shared
    for rows, (next_state_ids, next_goal_ids) in zip(parts, found, strict=True):
        observations = all_observations[rows]
        after = all_after[rows]
        model.goal_buffer.add(observations)
        state_ids = model.goal_buffer.states.ids(observations)
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
    check_numbers(space, array, name)
    return array


def _column(values: Any, name: str, kinds: str, what: str) -> NDArray[Any]:
    """Return one number for each transition. A ValueError if it is something else."""
    array = np.asarray(values)
    if array.dtype.kind not in kinds:
        raise ValueError(f"{name} must be {what}, got {array.dtype}")
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise ValueError(f"{name} must be of shape (N,) or (N, 1), got {array.shape}")
    return array


def _warn_of_ends(replay_buffer: ReplayBuffer, dones: NDArray[Any], n_left_out: int) -> None:
    """Warn of ends of episodes that a replay memory does not know, or not exactly."""
    if n_left_out:
        warnings.warn(
            f"{n_left_out} transitions that ended an episode are left out: with "
            "optimize_memory_usage, SB3 overwrites the observation in which the episode ended",
            stacklevel=3,
        )
    if not replay_buffer.handle_timeout_termination and dones.any():
        warnings.warn(
            "all ends of episodes count as terminations: the memory was made with "
            "handle_timeout_termination=False, so it does not tell truncations from them",
            stacklevel=3,
        )


def _lengths(observations: Any, name: str) -> dict[str, int]:
    """Return the number of observations, of each part if they are a dict of arrays."""
    if not isinstance(observations, dict):
        if np.ndim(observations) == 0:
            raise ValueError(
                f"{name} must be an array with a row for each transition, or a dict of such "
                f"arrays, got {observations!r}"
            )
        return {name: len(observations)}
    if not observations:
        return {name: 0}
    return {f"{name}[{part!r}]": len(values) for part, values in observations.items()}


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
