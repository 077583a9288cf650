"""The updates that are measured: ours, and what a user would run instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from gymnasium.wrappers import TransformObservation
from stable_baselines3 import DQN, HerReplayBuffer
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import FakeImageEnv
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike

from benchmarks.agents.hindsight import GoalProduct
from benchmarks.speed.timing import rate
from benchmarks.worlds import World
from sb3_manygoals import PAPER, GoalBufferWrapper, ManyGoalsDQN
from sb3_manygoals.goals import GoalBuffer
from sb3_manygoals.losses import pairwise_td_loss, pairwise_td_targets
from sb3_manygoals.many_goals_dqn import UpdateBatch

WORLD = "TwoRoomsSwitch-v0"
"""World of all updates with pictures of a world."""
WARM_UP = 1_100
"""Environment steps before anything is measured, to fill replay memories."""
FRAMES = partial(FakeImageEnv, action_dim=18, n_channels=4, channel_first=True)
"""
An environment of Atari's shapes without a game: random pixels.

What the pictures show does not change the time of an update.
"""
FRAMES_KEPT = 200
"""Transitions of Atari's shapes in the replay memory, 56 KiB each."""

Kind = Literal["pairwise", "tiled", "SB3 DQN", "SB3 DQN + HER"]


@dataclass(frozen=True)
class Scenario:
    """An update to measure."""

    kind: Kind
    """Ours; the same loss tiled; SB3's DQN with the goal pursued, or with relabelled goals."""
    transitions: int
    """Transitions in an update."""
    goals: int = 1
    """Goals in an update; 1 for SB3's, each of whose transitions has its own."""
    goal_sampling: Literal["uniform", "segments"] = "uniform"
    """How TDTargets draws goals."""
    world: str = WORLD
    """Id of a TwoRoomsSwitch world, or "frames" for Atari's shapes."""
    device: str = "cpu"
    """Where the networks live."""

    @property
    def name(self) -> str:
        """Name in tables."""
        if self.kind.startswith("SB3"):
            return f"{self.kind}, {self.transitions}"
        atari = ", Atari" if self.world == "frames" else ""
        device = "" if self.device == "cpu" else f", {self.device}"
        return f"{self.kind} {self.transitions} x {self.goals}{atari}{device}"

    def update(self) -> tuple[BaseAlgorithm, Callable[[], object]]:
        """
        Make a learner, and a function that makes one of its updates.

        To sample transitions and goals is part of an update.

        :return: the learner and the function
        """
        if self.kind.startswith("SB3"):
            dqn = sb3_dqn(self.world, self.transitions, relabel=self.kind == "SB3 DQN + HER")
            dqn.learn(WARM_UP)
            return dqn, partial(dqn.train, 1, self.transitions)
        model = self.learner()
        model.policy.set_training_mode(True)
        if self.kind == "tiled":
            return model, partial(tiled_update, model)
        return model, partial(model.train, 1, self.transitions)

    def speed(self, seconds: float) -> Callable[[], float]:
        """
        Return a function that measures updates a second.

        :param seconds: least duration of a measurement
        :return: the function
        """
        model, update = self.update()
        wait = partial(th.cuda.synchronize, model.device) if model.device.type == "cuda" else None
        return lambda: rate(update, seconds, wait=wait)

    def learner(self, n_envs: int = 8) -> ManyGoalsDQN:
        """
        Make our learner with the paper's network and some replay memory.

        It knows all goals of the world, or the frames that it has met.

        :param n_envs: number of environments
        :return: the learner
        """
        frames = self.world == "frames"
        env = make_vec_env(FRAMES if frames else self.world, n_envs, seed=0)
        states = None if frames else World(self.world).tables.observations
        n_goals = 2 * FRAMES_KEPT if states is None else len(states)
        goals = GoalBuffer(env.observation_space, n_goals)
        settings: dict[str, Any] = PAPER | {
            "buffer_size": FRAMES_KEPT if frames else 10_000,
            "batch_size": self.transitions,
            "goal_batch_size": self.goals,
            "target_kwargs": {
                "goal_sampling": self.goal_sampling,
                # A loss over tiled pairs, which is measured beside it, is the paper's.
                "near_decay": 1.0,
                "action_gap": 0.0,
            },
            "learning_starts": 10 * WARM_UP,
            "updates_per_step": 1.0 / n_envs,
            "goal_wrapper_kwargs": {"goal_buffer": goals, "reset_worlds": True},
            "policy_kwargs": PAPER["policy_kwargs"] | {"standardize": False},
        }
        model = ManyGoalsDQN("CnnPolicy", env, seed=0, device=self.device, **settings)
        model.learn(FRAMES_KEPT if frames else WARM_UP)
        if states is not None:
            goals.add(states)
        return model


def tiled_update(model: ManyGoalsDQN) -> None:
    """
    Make an update in which every pair of a transition and a goal is a row of the networks.

    :param model: the learner, with TDTargets
    """
    batch = model.targets.sample(model.batch_size, model.goal_batch_size, model.rng)
    model.policy.optimizer.zero_grad()
    losses = tiled_losses(model, batch)
    losses.mean().backward()  # type: ignore[no-untyped-call]
    model.policy.optimizer.step()


def tiled_losses(model: ManyGoalsDQN, batch: UpdateBatch) -> th.Tensor:
    """
    Compute the losses of TDTargets by S x G rows in the networks.

    :param model: the learner, with TDTargets
    :param batch: S transitions and G goals
    :return: a loss for each goal, shape (G,)
    """
    samples = batch.samples
    assert samples is not None
    target = model.q_net_target
    assert target is not None
    n_transitions = len(samples.actions)
    n_goals = len(batch.goals)
    tiled_goals = batch.goals.repeat(n_transitions, *[1] * (batch.goals.ndim - 1))
    with th.no_grad():
        next_q = target(samples.next_observations.repeat_interleave(n_goals, dim=0), tiled_goals)
    q = model.q_net(batch.observations.repeat_interleave(n_goals, dim=0), tiled_goals)
    taken = q.gather(1, samples.actions.repeat_interleave(n_goals)[:, None])
    reached = samples.next_goal_ids[:, None] == batch.goal_ids
    targets = pairwise_td_targets(
        next_q.view(n_transitions, n_goals, -1).amax(dim=2),
        reached,
        samples.terminated,
        model.gamma,
        model.goal_reward,
        model.step_reward,
    )
    return pairwise_td_loss(taken.view(n_transitions, n_goals), targets)


def sb3_dqn(world: str, batch_size: int, relabel: bool) -> DQN:
    """
    Make SB3's DQN with the paper's network on images.

    :param world: id of a world
    :param batch_size: transitions in an update
    :param relabel: whether it has HerReplayBuffer; else it learns of the goal pursued alone
    :return: the agent
    """
    # Channels are first from the start. SB3 would transpose observations only, and HerReplayBuffer
    # would then ask for rewards of goals that the wrapper has never seen.
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
        # Nothing is learned while the replay memory is filled.
        learning_starts=11_000,
        batch_size=batch_size,
        train_freq=1,
        policy_kwargs={
            "features_extractor_class": GoalProduct,
            "net_arch": [],
            "optimizer_class": RMSpropTFLike,
        },
        seed=0,
        device="cpu",
        **settings,
    )
