"""
A row to compare with: SB3's own DQN with HerReplayBuffer, in the same world, with the same network. Its settings are the best
of the few that were tried on the small map of TwoRoomsSwitch, ``docs/results/hindsight-search.csv``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch as th
from gymnasium import spaces
from stable_baselines3.common.preprocessing import get_flattened_obs_dim, is_image_space
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.utils import LinearSchedule
from torch import nn

from benchmarks.relabelling import HindsightDQN, KnownGoalsHerReplayBuffer
from sb3_manygoals import VecGoalBufferWrapper
from sb3_manygoals.many_goals_dqn.goal_dqn import update_rhythm
from sb3_manygoals.networks import PaddedCNN, Preprocess

UPDATES_PER_STEP = 0.25
"""As many with any number of environments."""


def make(worlds: Any, pursuit: Mapping[str, Any], seed: int, device: str, given: Mapping[str, Any]) -> HindsightDQN:
    """
    :param worlds: an SB3 vector of environments without goals
    :param pursuit: of the goal wrapper
    :param seed: of everything
    :param device: for the network
    :param given: arguments of the learner instead of those here, ``max_episode_steps`` of the goal wrapper among them
    :return: an untrained agent
    :raises ValueError: if the replay memory cannot hold an episode, or learning would start before one has ended
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
        "gamma": 0.99,
        "tau": 0.05,
        "target_update_interval": 8,
        "train_freq": train_freq,
        "gradient_steps": gradient_steps,
        "exploration_fraction": 0.3,
        "exploration_final_eps": 0.1,
        "replay_buffer_kwargs": {"n_sampled_goal": 4, "goal_selection_strategy": "future"},
        "policy_kwargs": {
            "features_extractor_class": GoalProduct,
            "features_extractor_kwargs": {"features_dim": 256, "trunk_dim": 256, "layer_norm": True, "standardize": True},
            "net_arch": [],
            "optimizer_class": th.optim.Adam,
            "optimizer_kwargs": {"fused": True},
        },
        **given,
    }
    for name in ("buffer_size", "learning_starts"):
        if settings[name] <= longest:
            raise ValueError(
                f"{name} must be more than n_envs x max_episode_steps = {longest}, as only whole episodes are relabelled, "
                f"got {settings[name]}"
            )
    return HindsightDQN(
        "MultiInputPolicy",
        VecGoalBufferWrapper(worlds, **{"max_episode_steps": steps, "reset_worlds": True, **pursuit}),
        replay_buffer_class=KnownGoalsHerReplayBuffer,
        seed=seed,
        device=device,
        **settings,
    )


class GoalProduct(BaseFeaturesExtractor):
    """
    The paper's network up to its head, as a features extractor for SB3's algorithms: one trunk for observation and goal, an
    embedding for each, and their product.

    :param observation_space: Dict of "observation" and "desired_goal", images with channels first or last, or vectors
    :param features_dim: width of the embeddings
    :param trunk_dim: width of the trunk's fully connected layer
    :param layer_norm: whether to end the trunk with layer normalization
    :param standardize: whether to standardize images, element by element, by those given to ``trunk[0].fit``
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
            preprocess = Preprocess(seen, normalize_images=False, standardize=standardize)  # SB3 has scaled them already
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
        :param observations: as SB3 prepares them, B of each
        :return: features, (B, features_dim)
        """
        both = self.trunk(th.cat([observations["observation"], observations["desired_goal"]]))
        states, goals = both.chunk(2)
        product: th.Tensor = self.state_embedding(states) * self.goal_embedding(goals)
        return product
