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
"""
Arguments of each agent's class.

PPO's are rl_zoo3's for MiniGrid-DoorKey-5x5, except for the entropy bonus, which is 0 there.
rl_zoo3 has none for A2C and DQN: theirs are SB3's, except for what is here.
"""

N_ENVS = {"ppo": 8, "a2c": 8, "dqn": 1}
"""Default number of environments of each agent."""

_ARRAYS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
"""Arrays of DQN's replay memory."""


class ResumableDQN(DQN):
    """SB3's DQN, with exact checkpoints."""

    def get_checkpoint_state(self) -> dict[str, Any]:
        """
        Return the state that a checkpoint keeps.

        :return: the state of the algorithm, the used part of the replay memory, and counters
        """
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
        """
        Go on from a checkpoint.

        :param state: a state from :meth:`get_checkpoint_state`
        """
        set_algorithm_state(self, state["algorithm"])
        for name, array in state["arrays"].items():
            getattr(self.replay_buffer, name)[: len(array)] = array
        vars(self.replay_buffer).update(state["place"])
        vars(self).update(state["counts"])


CLASSES: dict[str, type[BaseAlgorithm]] = {"ppo": PPO, "a2c": A2C, "dqn": ResumableDQN}
"""The class of each agent."""


def as_vectors(observations: NDArray[Any], is_grid: bool, n_states: int) -> NDArray[Any]:
    """
    Turn observations into vectors.

    :param observations: shape (B, ...). Those of shape (B,) are numbers of states, which become
        one-hot
    :param is_grid: whether they are those of :class:`WholeGrid`, which become one-hot
    :param n_states: how many numbers of states there are, if they are such
    :return: shape (B, n)
    """
    if observations.ndim == 1:
        one_hot: NDArray[Any] = np.eye(n_states, dtype=np.float32)[observations]
        return one_hot
    if is_grid:
        return WholeGrid.one_hot(observations)
    return observations.reshape(len(observations), -1)


def make(
    name: str,
    world: Callable[[], gym.Env[Any, Any]],
    seed: int,
    device: str,
    given: Mapping[str, Any],
) -> BaseAlgorithm:
    """
    Make an untrained agent that observes vectors.

    MiniGrid's are one-hot: PPO solves none of its worlds with the numbers of objects. Numbers of
    states are one-hot, too, as SB3 has them. Others are normalized, and so are rewards, as in
    rl_zoo3; rewards of DQN are not.

    :param name: "ppo", "a2c" or "dqn"
    :param world: function that makes an environment
    :param seed: seed of the agent and of its first environment
    :param device: device of the networks
    :param given: further arguments of the agent's class, or ``n_envs``
    :return: the agent, whose environment is a VecNormalize
    """

    def flat() -> gym.Env[Any, Any]:
        """Make an environment whose observations are vectors."""
        env = world()
        is_grid = isinstance(env, WholeGrid)
        is_discrete = isinstance(env.observation_space, spaces.Discrete)
        n_states = int(env.observation_space.n) if is_discrete else 0  # type: ignore[attr-defined]

        def vector(seen: Any) -> NDArray[Any]:
            """Return an observation as a vector."""
            rows = as_vectors(np.asarray(seen)[None], is_grid, n_states)
            return rows.reshape(-1)

        # Bytes become floats, too: SB3 keeps normalized observations in the dtype of the space.
        low = 0.0 if is_grid or is_discrete else -np.inf
        high = 1.0 if is_grid or is_discrete else np.inf
        size = vector(env.observation_space.sample()).shape
        return TransformObservation(env, vector, spaces.Box(low, high, size, np.float32))

    given = dict(given)
    worlds = make_vec_env(flat, given.pop("n_envs", N_ENVS[name]), seed)
    is_one_hot = float(worlds.observation_space.high.max()) == 1.0  # type: ignore[attr-defined]
    env = VecNormalize(worlds, norm_obs=not is_one_hot, norm_reward=name != "dqn")
    return CLASSES[name]("MlpPolicy", env, seed=seed, device=device, **{**SETTINGS[name], **given})


class RivalPolicy:
    """
    The policy of an agent of :func:`make`.

    It acts greedily, or as the agent does while it learns: DQN then takes some random actions.

    :param model: the agent
    """

    def __init__(self, model: BaseAlgorithm) -> None:
        self.model = model
        self.env = model.get_vec_normalize_env()
        self._random = th.get_rng_state()

    def predict(
        self, observation: NDArray[Any], *, deterministic: bool = True
    ) -> tuple[NDArray[Any], Any]:
        """
        Choose actions, without a change of the random numbers of training.

        :param observation: as the world shows them, shape (n, ...)
        :param deterministic: whether to act greedily
        :return: actions, shape (n,); None in place of a recurrent state
        """
        assert self.env is not None
        (size,) = self.env.observation_space.shape or ()
        flat = as_vectors(observation, not self.env.norm_obs, size)
        with th.random.fork_rng():
            # The numbers go on from the last call: else all calls would draw by the same numbers.
            th.set_rng_state(self._random)
            chosen = self.model.predict(self.env.normalize_obs(flat), deterministic=deterministic)
            self._random = th.get_rng_state()
        return chosen


class HindsightPolicy:
    """
    Acts towards the rewarded goal of the highest value.

    :param model: the agent
    :param most: at most so many rewarded goals are considered, those that were met most often
    """

    def __init__(self, model: HindsightDQN, most: int = 50) -> None:
        goals = model.goal_buffer
        rewarded = np.flatnonzero(model.goal_rewards > 0.0)
        arrivals = model.world.arrivals[goals.state_ids[rewarded]]
        often = np.argsort(-arrivals, kind="stable")
        self.model = model
        self.goals = goals[rewarded[often[:most]]]

    @th.no_grad()
    def predict(
        self, observation: NDArray[Any], *, deterministic: bool = True
    ) -> tuple[NDArray[Any], Any]:
        """
        Choose actions.

        :param observation: as the world shows them, shape (n, ...)
        :param deterministic: has no effect, as it acts greedily
        :return: actions, shape (n,); None in place of a recurrent state
        """
        n = len(observation)
        many = len(self.goals)
        seen = np.repeat(observation, many, axis=0)
        goals = np.tile(self.goals, (n, *[1] * (self.goals.ndim - 1)))
        tensors, _ = self.model.policy.obs_to_tensor(
            {"observation": seen, "achieved_goal": seen, "desired_goal": goals}
        )
        q = self.model.q_net(tensors).view(n, many, -1)
        return q.amax(dim=1).argmax(dim=1).cpu().numpy(), None
