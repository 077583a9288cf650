"""Updates to compare: ours, the same loss tiled, and what a user would run instead."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from gymnasium.wrappers import TransformObservation
from stable_baselines3 import DQN, HerReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

import gym_twoRooms  # noqa: F401 - registers the world
from sb3_manygoals import GoalBufferWrapper, ManyGoalsDQN
from sb3_manygoals.losses import pairwise_td_loss, pairwise_td_targets
from sb3_manygoals.many_goals_dqn import ManyGoalsSamples
from sb3_manygoals.networks import PaddedCNN

WORLD = "TwoRoomsSwitch-v0"
WARM_UP = 1_100
"""Environment steps before anything is measured, to fill replay memories."""


@dataclass(frozen=True)
class Update:
    """
    One kind of update.

    :ivar name: in tables
    :ivar pairs: (transition, goal) pairs that one update teaches
    :ivar run: makes one
    """

    name: str
    pairs: int
    run: Callable[[], Any]

    def speed(self, at_least: float) -> float:
        """
        :param at_least: seconds to measure for
        :return: updates a second
        """
        count, begin = 0, time.perf_counter()
        while (spent := time.perf_counter() - begin) < at_least or count == 0:
            self.run()
            count += 1
        return count / spent


def learner(n_transitions: int, n_goals: int, goal_sampling: Any = "uniform", n_envs: int = 8) -> ManyGoalsDQN:
    """
    :param n_transitions: S
    :param n_goals: G
    :param goal_sampling: as ManyGoalsDQN's
    :param n_envs: environments that it acts in
    :return: ManyGoalsDQN with the paper's network on the paper's map, its replay memory partly filled, all goals known
    """
    env = make_vec_env(WORLD, n_envs, seed=0)
    model = ManyGoalsDQN(
        "CnnPolicy",
        env,
        batch_size=n_transitions,
        goal_batch_size=n_goals,
        goal_sampling=goal_sampling,
        learning_starts=10 * WARM_UP,
        seed=0,
        device="cpu",
    )
    model.learn(WARM_UP)
    assert model.goal_buffer is not None
    model.goal_buffer.add(gym.make(WORLD).unwrapped.mdp.observations)  # type: ignore[attr-defined]
    return model


def ours(model: ManyGoalsDQN, name: str = "pairwise") -> Update:
    """
    :param model: of :func:`learner`
    :param name: in tables
    :return: its update, sampling of transitions and goals included
    """
    size = f"{model.batch_size} x {model.goal_batch_size}"
    model.policy.set_training_mode(True)
    return Update(f"{name} {size}", model.batch_size * model.goal_batch_size, lambda: model.train(1, model.batch_size))


def tiled(model: ManyGoalsDQN) -> Update:
    """
    :param model: of :func:`learner`
    :return: the same update the way it is mostly done, every pair a row of the networks
    """

    def run() -> None:
        batch = model.replay_buffer.sample(model.batch_size)
        goals, goal_ids, _ = model._sample_goals(batch)
        model.policy.optimizer.zero_grad()
        tiled_losses(model, batch, goals, goal_ids).mean().backward()  # type: ignore[no-untyped-call]
        model.policy.optimizer.step()

    return Update(f"tiled {model.batch_size} x {model.goal_batch_size}", model.batch_size * model.goal_batch_size, run)


def tiled_losses(model: ManyGoalsDQN, batch: ManyGoalsSamples, goals: th.Tensor, goal_ids: th.Tensor) -> th.Tensor:
    """
    What :meth:`ManyGoalsDQN.goal_losses` computes, the way it is mostly done: every pair a row, S x G rows in the networks.

    :param model: whose networks and settings are used
    :param batch: S transitions
    :param goals: observations, shape (G, *observation_space.shape)
    :param goal_ids: their ids, shape (G,) int64
    :return: one loss a goal, shape (G,)
    """
    n_transitions, n_goals = len(batch.actions), len(goals)
    tiled_goals = goals.repeat(n_transitions, *[1] * (goals.ndim - 1))
    with th.no_grad():
        next_q = model.q_net_target(batch.next_observations.repeat_interleave(n_goals, dim=0), tiled_goals)
    q = model.q_net(batch.observations.repeat_interleave(n_goals, dim=0), tiled_goals)
    taken = q.gather(1, batch.actions.repeat_interleave(n_goals)[:, None])
    targets = pairwise_td_targets(
        next_q.view(n_transitions, n_goals, -1),
        batch.next_ids[:, None] == goal_ids,
        batch.terminated,
        model.gamma,
        model.goal_reward,
        model.step_reward,
    )
    return pairwise_td_loss(taken.view(n_transitions, n_goals), targets)


class GoalProduct(BaseFeaturesExtractor):
    """
    The paper's network up to its head, as a features extractor for SB3's algorithms: one trunk for observation and goal, an
    embedding for each, and their product.

    :param observation_space: Dict of images "observation" and "desired_goal"
    :param features_dim: width of the embeddings
    """

    def __init__(self, observation_space: spaces.Dict, features_dim: int = 1024) -> None:
        super().__init__(observation_space, features_dim)
        image = observation_space["observation"]
        assert isinstance(image, spaces.Box)
        self.trunk = PaddedCNN(image)
        self.state_embedding = nn.Linear(self.trunk.features_dim, features_dim)
        self.goal_embedding = nn.Linear(self.trunk.features_dim, features_dim)

    def forward(self, observations: dict[str, th.Tensor]) -> th.Tensor:
        """
        :param observations: images, scaled, channels first, B of each
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
    name = "SB3 DQN + HER" if relabel else "SB3 DQN, one goal"
    return Update(f"{name}, {batch_size}", batch_size, lambda: model.train(1, batch_size))


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
        GoalBufferWrapper(world),
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


class AllGoalsHead:
    """
    A comparison learner in the style of LEO ("Goal-Conditioned Agents that Learn Everything All at Once", 2026): the network
    sees the state alone and has an output for each goal and action, so that every transition teaches all goals.

    :param model: of :func:`learner`, for its transitions and goals
    """

    def __init__(self, model: ManyGoalsDQN) -> None:
        self.model = model
        assert model.goal_buffer is not None
        self.n_goals, self.n_actions = len(model.goal_buffer), model.q_net.head.out_features
        self.net, self.target = (self._network() for _ in range(2))
        self.target.load_state_dict(self.net.state_dict())
        self.optimizer = RMSpropTFLike(self.net.parameters(), lr=1e-3)

    def _network(self) -> nn.Module:
        network = self.model.policy.make_q_net()
        return nn.Sequential(network.trunk, nn.Linear(network.state_embedding.in_features, self.n_goals * self.n_actions))

    def update(self) -> None:
        """Teach all goals a batch of transitions."""
        model = self.model
        batch = model.replay_buffer.sample(model.batch_size)
        rows = th.arange(len(batch.actions))
        ids = th.arange(self.n_goals)
        with th.no_grad():
            next_q = self.target(batch.next_observations).view(len(rows), self.n_goals, self.n_actions)
        q = self.net(batch.observations).view(len(rows), self.n_goals, self.n_actions)[rows, :, batch.actions]
        achieved = batch.next_ids[:, None] == ids
        targets = pairwise_td_targets(next_q, achieved, batch.terminated, model.gamma, 0.0, -0.1)
        self.optimizer.zero_grad()
        pairwise_td_loss(q, targets).mean().backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()


def all_goals_head(model: ManyGoalsDQN) -> Update:
    """
    :param model: of :func:`learner`
    :return: the update of an :class:`AllGoalsHead`
    """
    head = AllGoalsHead(model)
    return Update(f"a head for each goal {model.batch_size} x {head.n_goals}", model.batch_size * head.n_goals, head.update)
