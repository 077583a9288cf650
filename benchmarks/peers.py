"""What a user would run instead of ManyGoalsDQN: SB3's DQN on the wrapped world, with the paper's network."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from gymnasium.wrappers import TransformObservation
from stable_baselines3 import DQN, HerReplayBuffer
from stable_baselines3.common.preprocessing import get_flattened_obs_dim, is_image_space
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

from benchmarks.updates import WARM_UP, WORLD, Update
from sb3_manygoals import GoalBufferWrapper
from sb3_manygoals.networks import PaddedCNN, Preprocess


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


def sb3_dqn(batch_size: int, relabel: bool) -> Update:
    """
    :param batch_size: transitions in an update, each with one goal
    :param relabel: whether with HerReplayBuffer, as SB3's own way to learn of several goals; else with the goal pursued
    :return: the update of SB3's DQN with the paper's network, on the wrapped world
    """
    model = sb3_learner(batch_size, relabel)

    def make(n_transitions: int, n_goals: int) -> None:
        model.train(1, n_transitions)

    return Update(batch_size, 1, make, model.policy.optimizer, model.device)


def sb3_learner(batch_size: int, relabel: bool) -> DQN:
    """
    :param batch_size: as :func:`sb3_dqn`
    :param relabel: as there
    :return: the learner
    """
    settings: dict[str, Any] = {"replay_buffer_class": HerReplayBuffer} if relabel else {}
    # Channels first from the start: SB3 would put them first in the observations only, and HerReplayBuffer ask for the rewards
    # of goals that the wrapper has never seen.
    world = gym.make(WORLD)
    height, width, channels = world.observation_space.shape  # type: ignore[misc]
    space = spaces.Box(0, 255, (channels, height, width), np.uint8)
    world = TransformObservation(world, lambda picture: picture.transpose(2, 0, 1), space)
    model = DQN(
        "MultiInputPolicy",
        GoalBufferWrapper(world, reset_worlds=True),
        learning_rate=1e-3,
        buffer_size=10_000,
        learning_starts=10 * WARM_UP,
        batch_size=batch_size,
        train_freq=1,
        policy_kwargs={"features_extractor_class": GoalProduct, "net_arch": [], "optimizer_class": RMSpropTFLike},
        seed=0,
        device="cpu",
        **settings,
    )
    model.learn(WARM_UP)
    return model
