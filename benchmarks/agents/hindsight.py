"""
SB3's DQN with HerReplayBuffer.

Its settings were tried on the small map: see docs/results/hindsight-search.csv.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3 import DQN, HerReplayBuffer
from stable_baselines3.common.preprocessing import get_flattened_obs_dim, is_image_space
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecEnv
from torch import nn

from sb3_manygoals import GoalBuffer, VecGoalBufferWrapper
from sb3_manygoals.checkpoint import CheckpointError
from sb3_manygoals.checkpoint.learner import get_algorithm_state, set_algorithm_state
from sb3_manygoals.goals.selection import UniformSelector
from sb3_manygoals.goals.wrapping import as_goal_vec_env, goal_trackers
from sb3_manygoals.many_goals_dqn.pacing import update_rhythm
from sb3_manygoals.networks import PaddedCNN, Preprocess
from sb3_manygoals.world import WorldModel

UPDATES_PER_STEP = 0.25
"""Updates a step of an environment, for any number of environments."""

_DICTS = ("observations", "next_observations")
"""Arrays of the replay memory that are held in dictionaries."""

_ARRAYS = ("actions", "rewards", "dones", "timeouts", "ep_start", "ep_length")
"""All other arrays of the replay memory."""


class GoalProduct(BaseFeaturesExtractor):
    """
    The paper's network up to its head, for SB3's algorithms.

    It has one trunk for observation and goal, an embedding for each, and their product.

    :param observation_space: space with "observation" and "desired_goal", both of the same space
    :param features_dim: width of the embeddings
    :param trunk_dim: width of the trunk's end
    :param layer_norm: whether the trunk ends with layer normalization
    :param standardize: whether the trunk begins by standardizing images, see ``trunk[0].fit``
    """

    def __init__(
        self,
        observation_space: spaces.Dict,
        features_dim: int = 1024,
        trunk_dim: int = 512,
        layer_norm: bool = False,
        standardize: bool = False,
    ) -> None:
        super().__init__(observation_space, features_dim)
        seen = observation_space["observation"]
        first: list[nn.Module]
        if isinstance(seen, spaces.Box) and is_image_space(seen):
            # SB3 has scaled images already.
            preprocess = Preprocess(seen, normalize_images=False, standardize=standardize)
            assert isinstance(preprocess.space, spaces.Box)
            first = [preprocess, PaddedCNN(preprocess.space, trunk_dim)]
        else:
            first = [nn.Flatten(), nn.Linear(get_flattened_obs_dim(seen), trunk_dim), nn.ReLU()]
            first += [nn.Linear(trunk_dim, trunk_dim), nn.ReLU()]
        self.trunk = nn.Sequential(*first, *([nn.LayerNorm(trunk_dim)] if layer_norm else []))
        self.state_embedding = nn.Linear(trunk_dim, features_dim)
        self.goal_embedding = nn.Linear(trunk_dim, features_dim)

    def forward(self, observations: dict[str, th.Tensor]) -> th.Tensor:
        """
        Compute the product of the embeddings.

        :param observations: "observation" and "desired_goal", each of shape (B, ...)
        :return: shape (B, features_dim)
        """
        both = self.trunk(th.cat([observations["observation"], observations["desired_goal"]]))
        states, goals = both.chunk(2)
        product: th.Tensor = self.state_embedding(states) * self.goal_embedding(goals)
        return product


class Rewarded(UniformSelector):
    """
    Draws half of the goals to pursue among the rewarded ones, once there are some.

    Rewards are those that a :class:`HindsightDQN` has counted, which sets ``world``.
    """

    world: WorldModel | None = None
    """What the agent has counted. While it is None, all goals are drawn uniformly."""

    def select(
        self, goal_buffer: GoalBuffer, current_ids: NDArray[np.int64], rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """
        Draw a goal for each environment.

        :param goal_buffer: the known goals
        :param current_ids: the goal in which each environment is, shape (n_envs,)
        :param rng: random numbers
        :return: ids of the goals to pursue, shape (n_envs,)
        """
        ids = super().select(goal_buffer, current_ids, rng)
        rewarded = np.zeros(0, dtype=np.int64)
        if self.world is not None:
            rewarded = np.flatnonzero(self.world.mean_rewards[goal_buffer.state_ids] > 0.0)
        chosen = rng.choice(rewarded, len(ids)) if len(rewarded) else ids
        return np.where((rng.random(len(ids)) < 0.5) & (chosen != current_ids), chosen, ids)

    def get_checkpoint_state(self) -> dict[str, Any]:
        """
        Return the state that a checkpoint keeps.

        :return: an empty dictionary, because the agent keeps what it has counted
        """
        return {}

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Go on from a checkpoint.

        :param state: a state from :meth:`get_checkpoint_state`
        """


class ResumableHerReplayBuffer(HerReplayBuffer):
    """SB3's HerReplayBuffer, with exact checkpoints."""

    def get_checkpoint_state(self) -> dict[str, Any]:
        """
        Return the state that a checkpoint keeps.

        :return: the used part of all arrays, and the place where writing goes on
        """
        used = slice(self.size())
        return {
            "buffer_size": self.buffer_size,
            "pos": self.pos,
            "full": self.full,
            "current_ep_start": self._current_ep_start,
            **{
                name: {key: array[used] for key, array in getattr(self, name).items()}
                for name in _DICTS
            },
            **{name: getattr(self, name)[used] for name in _ARRAYS},
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Go on from a checkpoint.

        :param state: a state from :meth:`get_checkpoint_state`
        :raises CheckpointError: if it is of a memory of another size
        """
        if state["buffer_size"] != self.buffer_size:
            raise CheckpointError(
                f"buffer_size of the saved memory is {state['buffer_size']}, "
                f"of this one {self.buffer_size}"
            )
        for name in _DICTS:
            for key, array in getattr(self, name).items():
                array[: len(state[name][key])] = state[name][key]
        for name in _ARRAYS:
            getattr(self, name)[: len(state[name])] = state[name]
        self.pos = state["pos"]
        self.full = state["full"]
        self._current_ep_start = state["current_ep_start"]


class HindsightDQN(DQN):
    """
    SB3's DQN with HerReplayBuffer and exact checkpoints.

    Images are standardized by the goals that are known at the first update. The agent needs no
    VecTransposeImage: the network permutes images itself. SB3 does not relabel ``done``: the target
    of a transition that reaches its new goal goes on beyond it.

    It counts the environment's rewards, which it does not learn from: :class:`Rewarded` and
    :class:`~benchmarks.agents.rivals.HindsightPolicy` go for goals that were rewarded.
    """

    replay_buffer: ResumableHerReplayBuffer
    world: WorldModel
    """What followed on actions, with the environment's rewards."""

    def _setup_model(self) -> None:
        """Build networks and replay memory, and the counts that the selector reads."""
        super()._setup_model()
        assert self.env is not None
        assert isinstance(self.action_space, spaces.Discrete)
        self.world = WorldModel(self.goal_buffer.states, int(self.action_space.n))
        for tracker in goal_trackers(self.env):
            if isinstance(tracker.selector, Rewarded):
                tracker.selector.world = self.world

    @property
    def goal_buffer(self) -> GoalBuffer:
        """The known goals, which the goal wrapper collects."""
        assert self.env is not None
        return goal_trackers(self.env)[0].goal_buffer

    @property
    def goal_rewards(self) -> NDArray[np.float64]:
        """The mean reward on arriving at each known goal, shape (n_goals,). NaN for none."""
        return self.world.mean_rewards[self.goal_buffer.state_ids]

    def _store_transition(
        self,
        replay_buffer: Any,
        buffer_action: NDArray[Any],
        new_obs: Any,
        reward: NDArray[Any],
        dones: NDArray[np.bool_],
        infos: list[dict[str, Any]],
    ) -> None:
        """Store transitions in the replay memory, and count the environment's rewards."""
        self.world.record(
            np.array([info["state_id"] for info in infos]),
            buffer_action.reshape(-1),
            np.array([info["next_state_id"] for info in infos]),
            np.array([info["env_reward"] for info in infos], dtype=np.float64),
            np.array([info["env_terminated"] for info in infos]),
        )
        super()._store_transition(replay_buffer, buffer_action, new_obs, reward, dones, infos)

    @staticmethod
    def _wrap_env(env: GymEnv, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        return as_goal_vec_env(env, monitor_wrapper)

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """
        Make updates.

        :param gradient_steps: number of updates
        :param batch_size: transitions in an update
        """
        if self._n_updates == 0:
            for network in (self.q_net, self.q_net_target):
                preprocess = network.features_extractor.trunk[0]  # type: ignore[index]
                if isinstance(preprocess, Preprocess) and preprocess.standardize:
                    pictures = self.goal_buffer.observations.copy()
                    preprocess.fit(th.as_tensor(pictures, device=self.device) / 255.0)
        super().train(gradient_steps, batch_size)

    def get_checkpoint_state(self) -> dict[str, Any]:
        """
        Return the state that a checkpoint keeps.

        :return: states of the algorithm, the replay memory, the goals and the world, and counters
        """
        return {
            "algorithm": get_algorithm_state(self),
            "replay_buffer": self.replay_buffer.get_checkpoint_state(),
            "goal_buffer": self.goal_buffer.get_checkpoint_state(),
            "world": self.world.get_checkpoint_state(),
            "exploration_rate": self.exploration_rate,
            "n_calls": self._n_calls,
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Go on from a checkpoint.

        :param state: a state from :meth:`get_checkpoint_state`
        :raises CheckpointError: if it does not fit this agent
        """
        set_algorithm_state(self, state["algorithm"])
        self.replay_buffer.set_checkpoint_state(state["replay_buffer"])
        try:
            self.goal_buffer.set_checkpoint_state(state["goal_buffer"])
            self.world.set_checkpoint_state(state["world"])
        except ValueError as error:
            raise CheckpointError(str(error)) from error
        self.exploration_rate = state["exploration_rate"]
        self._n_calls = state["n_calls"]


def make(
    worlds: Any, pursuit: Mapping[str, Any], seed: int, device: str, given: Mapping[str, Any]
) -> HindsightDQN:
    """
    Make an untrained agent.

    :param worlds: environments without goals
    :param pursuit: arguments of the goal wrapper
    :param seed: seed of the agent
    :param device: device of the networks
    :param given: further arguments of the agent's class, or ``max_episode_steps`` of the wrapper
    :return: the agent
    :raises ValueError: if the replay memory, or the steps before the first update, are too few
    """
    given = dict(given)
    steps = given.pop("max_episode_steps", 50)
    longest = worlds.num_envs * steps
    train_freq, gradient_steps = update_rhythm(UPDATES_PER_STEP, worlds.num_envs)
    settings: dict[str, Any] = {
        "learning_rate": LinearSchedule(1e-3, 0.0, 1.0),
        "buffer_size": 50_000,
        "learning_starts": max(1_000, longest + 1),
        "batch_size": 128,
        "tau": 0.05,
        "target_update_interval": 8,
        "train_freq": train_freq,
        "gradient_steps": gradient_steps,
        "exploration_fraction": 0.3,
        "exploration_final_eps": 0.1,
        "policy_kwargs": {
            "features_extractor_class": GoalProduct,
            "features_extractor_kwargs": {
                "features_dim": 256,
                "trunk_dim": 256,
                "layer_norm": True,
                "standardize": True,
            },
            "net_arch": [],
            "optimizer_class": th.optim.Adam,
            "optimizer_kwargs": {"fused": True},
        },
        **given,
    }
    for name in ("buffer_size", "learning_starts"):
        if settings[name] <= longest:
            raise ValueError(
                f"{name} must be more than n_envs x max_episode_steps = {longest}, "
                f"as only whole episodes are relabelled, got {settings[name]}"
            )
    env = VecGoalBufferWrapper(
        worlds, **{"max_episode_steps": steps, "reset_worlds": True, **pursuit}
    )
    return HindsightDQN(
        "MultiInputPolicy",
        env,
        replay_buffer_class=ResumableHerReplayBuffer,
        seed=seed,
        device=device,
        **settings,
    )
