"""SB3's agents that learn one task from its reward, beside ManyGoalsDQN and DQN with hindsight."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from gymnasium.wrappers import TransformObservation
from numpy.typing import NDArray
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from benchmarks.agents.hindsight import HindsightDQN
from benchmarks.worlds import WholeGrid
from sb3_manygoals.checkpoint.learner import get_algorithm_state, set_algorithm_state

SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {"n_steps": 128, "batch_size": 64, "ent_coef": 0.01, "learning_rate": 2.5e-4},
    "a2c": {"ent_coef": 0.01},
    "dqn": {
        "learning_rate": 5e-4,
        "buffer_size": 100_000,
        "learning_starts": 1_000,
        "exploration_fraction": 0.3,
    },
}
"""PPO's are rl_zoo3's for MiniGrid-DoorKey-5x5, but for the entropy bonus, which is 0 there. It has none for A2C and DQN:
SB3's, but for what is here."""

N_ENVS = {"ppo": 8, "a2c": 8, "dqn": 1}

_ARRAYS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")


class ResumableDQN(DQN):
    """SB3's, with exact checkpoints."""

    def get_checkpoint_state(self) -> dict[str, Any]:
        memory = self.replay_buffer
        assert memory is not None
        arrays = {name: getattr(memory, name)[: memory.size()] for name in _ARRAYS}
        counts = {"exploration_rate": self.exploration_rate, "_n_calls": self._n_calls}
        place = {"pos": memory.pos, "full": memory.full}
        return {
            "algorithm": get_algorithm_state(self),
            "arrays": arrays,
            "place": place,
            "counts": counts,
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        set_algorithm_state(self, state["algorithm"])
        for name, array in state["arrays"].items():
            getattr(self.replay_buffer, name)[: len(array)] = array
        vars(self.replay_buffer).update(state["place"])
        vars(self).update(state["counts"])


CLASSES: dict[str, type[BaseAlgorithm]] = {"ppo": PPO, "a2c": A2C, "dqn": ResumableDQN}


def as_vectors(observations: NDArray[Any], is_grid: bool) -> NDArray[Any]:
    """Observations, shape (B, ...), as vectors, shape (B, n): MiniGrid's one-hot."""
    return (
        WholeGrid.one_hot(observations) if is_grid else observations.reshape(len(observations), -1)
    )


def make(
    name: str,
    world: Callable[[], gym.Env[Any, Any]],
    seed: int,
    device: str,
    given: Mapping[str, Any],
) -> BaseAlgorithm:
    """
    An untrained agent on vectors. MiniGrid's are one-hot: PPO solves none of its worlds with the numbers of objects. Others
    are normalized, and rewards too, as in rl_zoo3; for DQN not rewards.
    """

    def flat() -> gym.Env[Any, Any]:
        env = world()
        is_grid = isinstance(env, WholeGrid)
        size = as_vectors(np.array(env.observation_space.sample())[None], is_grid).shape[1:]
        # floats, also of bytes: SB3 keeps what is normalized in the dtype of the space
        space = spaces.Box(
            0.0 if is_grid else -np.inf, 1.0 if is_grid else np.inf, size, np.float32
        )
        return TransformObservation(
            env, lambda seen: as_vectors(np.asarray(seen)[None], is_grid)[0], space
        )

    given = dict(given)
    worlds = make_vec_env(flat, given.pop("n_envs", N_ENVS[name]), seed)
    env = VecNormalize(
        worlds, norm_obs=not worlds.env_is_wrapped(WholeGrid)[0], norm_reward=name != "dqn"
    )
    return CLASSES[name]("MlpPolicy", env, seed=seed, device=device, **{**SETTINGS[name], **given})


class RivalPolicy:
    """How an agent of :func:`make` acts: greedily, or as it does while it learns, DQN with some random actions."""

    def __init__(self, model: BaseAlgorithm) -> None:
        self.model, self.env = model, model.get_vec_normalize_env()
        self._random = th.get_rng_state()

    def predict(
        self, observation: NDArray[Any], *, deterministic: bool = True
    ) -> tuple[NDArray[Any], Any]:
        assert self.env is not None
        flat = as_vectors(observation, not self.env.norm_obs)
        with th.random.fork_rng():  # measuring does not change training
            th.set_rng_state(
                self._random
            )  # not that of the step before: its actions would be drawn by the same numbers
            chosen = self.model.predict(self.env.normalize_obs(flat), deterministic=deterministic)
            self._random = th.get_rng_state()
        return chosen


class HindsightPolicy:
    """Acts towards the rewarded goal of the highest value, of at most ``most`` rewarded ones that were met most often."""

    def __init__(self, model: HindsightDQN, most: int = 50) -> None:
        goals = model.goal_buffer
        rewarded = np.flatnonzero(goals.rewards > 0.0)
        often = np.argsort(-goals.labels[rewarded, 0], kind="stable")
        self.model, self.goals = model, goals[rewarded[often[:most]]]

    @th.no_grad()
    def predict(
        self, observation: NDArray[Any], *, deterministic: bool = True
    ) -> tuple[NDArray[Any], Any]:
        n, many = len(observation), len(self.goals)
        seen, goals = (
            np.repeat(observation, many, axis=0),
            np.tile(self.goals, (n, *[1] * (self.goals.ndim - 1))),
        )
        tensors, _ = self.model.policy.obs_to_tensor(
            {"observation": seen, "achieved_goal": seen, "desired_goal": goals}
        )
        q = self.model.q_net(tensors).view(n, many, -1)
        return q.amax(dim=1).argmax(dim=1).cpu().numpy(), None
