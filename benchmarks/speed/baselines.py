"""What a user would run instead of ManyGoalsDQN: every pair a row of the networks, or SB3's DQN with the paper's network."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from gymnasium.wrappers import TransformObservation
from stable_baselines3 import DQN, HerReplayBuffer
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike

from benchmarks.agents.hindsight import GoalProduct
from sb3_manygoals import GoalBufferWrapper, ManyGoalsDQN
from sb3_manygoals.losses import pairwise_td_loss, pairwise_td_targets
from sb3_manygoals.many_goals_dqn import ManyGoalsSamples


def tiled_update(model: ManyGoalsDQN, n_transitions: int, n_goals: int) -> None:
    """
    :param model: to make an update of, with every pair a row of the networks
    :param n_transitions: S
    :param n_goals: G
    """
    draw = model.targets.draw(n_transitions, n_goals, model.rng)
    model.policy.optimizer.zero_grad()
    tiled_losses(model, draw.batch, draw.goals, draw.goal_ids).mean().backward()  # type: ignore[no-untyped-call]
    model.policy.optimizer.step()


def tiled_losses(model: ManyGoalsDQN, batch: ManyGoalsSamples, goals: th.Tensor, goal_ids: th.Tensor) -> th.Tensor:
    """
    The losses of TDTargets by S x G rows in the networks.

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


def sb3_dqn(world: str, batch_size: int, relabel: bool) -> DQN:
    """
    :param world: id of a world of images
    :param batch_size: transitions in an update, each with one goal
    :param relabel: whether with HerReplayBuffer, SB3's own way to learn of several goals; else with the goal pursued
    :return: SB3's DQN with the paper's network, on the wrapped world
    """
    # Channels first from the start: SB3 would transpose observations only, and HerReplayBuffer then ask for rewards of goals
    # that the wrapper has never seen.
    env = gym.make(world)
    height, width, channels = env.observation_space.shape  # type: ignore[misc]
    space = spaces.Box(0, 255, (channels, height, width), np.uint8)
    env = TransformObservation(env, lambda picture: picture.transpose(2, 0, 1), space)
    settings: dict[str, Any] = {"replay_buffer_class": HerReplayBuffer} if relabel else {}
    return DQN(
        "MultiInputPolicy",
        GoalBufferWrapper(env, reset_worlds=True),
        learning_rate=1e-3,
        buffer_size=10_000,
        learning_starts=11_000,  # nothing is learned while the replay memory is filled
        batch_size=batch_size,
        train_freq=1,
        policy_kwargs={"features_extractor_class": GoalProduct, "net_arch": [], "optimizer_class": RMSpropTFLike},
        seed=0,
        device="cpu",
        **settings,
    )
