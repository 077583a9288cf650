"""The auxiliary tasks: many goals, pixel control, reward prediction."""

from __future__ import annotations

import numpy as np
import torch as th
from numpy.typing import NDArray

from sb3_manygoals.auxiliary.episode_buffer import EpisodeBuffer
from sb3_manygoals.auxiliary.losses import (
    Reduction,
    many_goals_losses,
    pixel_changes,
    pixel_control_losses,
    reduce,
    reward_prediction_losses,
)
from sb3_manygoals.auxiliary.policies import AuxiliaryActorCriticPolicy
from sb3_manygoals.auxiliary.task_callback import AuxiliaryCallback, check_positive
from sb3_manygoals.goals.buffer import identical


class ManyGoalsCallback(AuxiliaryCallback):
    """
    Many goals as an auxiliary task (section 5 and Algorithm 2 of Veeriah et al. 2018): of trajectories from the best
    episodes, each ends at its goal, which all its transitions are taught.

    The paper gives beta, K and 80 transitions. It does not say how long trajectories are, beyond the n that its actor-critic
    has too (5, of 16 environments, are 80), nor how often the target network is copied: here as often as in its gridworld by
    our defaults.

    :param beta: weight of the loss
    :param reduction: "mean", the expectation in the paper's equation, or "sum"
    :param episodes: see :class:`~sb3_manygoals.auxiliary.task_callback.AuxiliaryCallback`, also for what follows where it is
        not said here
    :param n_steps: n, transitions of a trajectory
    :param batch_size: transitions of an update, a multiple of ``n_steps``
    :param gamma: discount factor of the goals
    :param goal_reward: reward of a transition that reaches its goal
    :param step_reward: reward of every other transition
    :param target_update_interval: updates from one copy of the target network to the next
    :param seed: of the draws
    :param verbose: as SB3 has it
    :raises ValueError: if a number is out of its range, or ``batch_size`` no multiple of ``n_steps``
    """

    task = "many_goals"

    def __init__(
        self,
        beta: float = 0.02,
        reduction: Reduction = "mean",
        episodes: EpisodeBuffer | None = None,
        n_steps: int = 5,
        batch_size: int = 80,
        gamma: float = 0.99,
        goal_reward: float = 0.0,
        step_reward: float = -0.1,
        target_update_interval: int = 250,
        seed: int | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(beta, reduction, episodes, batch_size, seed, verbose)
        _check_trajectories(batch_size, n_steps)
        check_positive(target_update_interval=target_update_interval)
        if not 0.0 <= gamma < 1.0:
            raise ValueError(f"gamma must be in [0, 1), got {gamma!r}")
        self.n_steps = n_steps
        self.gamma = gamma
        self.goal_reward = goal_reward
        self.step_reward = step_reward
        self.target_update_interval = target_update_interval

    def loss(self, policy: AuxiliaryActorCriticPolicy, episodes: EpisodeBuffer, rng: np.random.Generator) -> th.Tensor:
        """See :class:`~sb3_manygoals.auxiliary.task_callback.AuxiliaryCallback`."""
        if self.n_updates % self.target_update_interval == 0:
            policy.update_goal_target()
        batch = episodes.sample(self.batch_size // self.n_steps, self.n_steps, rng)
        goals = np.broadcast_to(batch.observations[:, -1:], batch.observations[:, 1:].shape)
        achieved = identical(batch.observations[:, 1:], goals, len(episodes.shape))
        observations = th.as_tensor(batch.observations, device=policy.device)
        with th.no_grad():
            next_q = policy.goal_values(observations, target=True)
        losses = many_goals_losses(
            policy.goal_values(observations),
            next_q,
            th.as_tensor(batch.actions, device=policy.device),
            th.as_tensor(achieved, device=policy.device),
            self.gamma,
            self.goal_reward,
            self.step_reward,
        )
        return reduce(losses, self.reduction, _valid(batch.lengths, self.n_steps, policy.device))


class PixelControlCallback(AuxiliaryCallback):
    """
    Pixel control (Jaderberg et al. 2017): learn how to change each part of the picture. Which part of the picture, and in
    which cells, is the policy's ``crop`` and ``cell``; of a stack of frames it is the newest that changes.

    The source sums over the cells, takes one trajectory an update, and drew its weight from 0.0001 to 0.01 for Atari, evenly
    on a logarithmic scale; the default is the middle of that.

    :param weight: of the loss
    :param reduction: "mean" or "sum" of the transitions' losses, each the sum over all cells
    :param episodes: see :class:`~sb3_manygoals.auxiliary.task_callback.AuxiliaryCallback`, also for what follows where it is
        not said here
    :param n_steps: n, transitions of a trajectory
    :param batch_size: transitions of an update, a multiple of ``n_steps``
    :param gamma: discount factor of the changes
    :param seed: of the draws
    :param verbose: as SB3 has it
    :raises ValueError: if a number is out of its range, or ``batch_size`` no multiple of ``n_steps``
    """

    task = "pixel_control"

    def __init__(
        self,
        weight: float = 0.001,
        reduction: Reduction = "mean",
        episodes: EpisodeBuffer | None = None,
        n_steps: int = 20,
        batch_size: int = 80,
        gamma: float = 0.9,
        seed: int | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(weight, reduction, episodes, batch_size, seed, verbose)
        _check_trajectories(batch_size, n_steps)
        if not 0.0 <= gamma <= 1.0:
            raise ValueError(f"gamma must be in [0, 1], got {gamma!r}")
        self.n_steps = n_steps
        self.gamma = gamma

    def loss(self, policy: AuxiliaryActorCriticPolicy, episodes: EpisodeBuffer, rng: np.random.Generator) -> th.Tensor:
        """See :class:`~sb3_manygoals.auxiliary.task_callback.AuxiliaryCallback`."""
        batch = episodes.sample(self.batch_size // self.n_steps, self.n_steps, rng)
        newest = np.ascontiguousarray(episodes.stacks.newest(batch.observations))
        images = th.as_tensor(newest, device=policy.device).float() / 255.0
        valid = _valid(batch.lengths, self.n_steps, policy.device)
        losses = pixel_control_losses(
            policy.cell_values(th.as_tensor(batch.observations, device=policy.device)),
            th.as_tensor(batch.actions, device=policy.device),
            pixel_changes(images, policy.crop, policy.cell),
            th.as_tensor(batch.terminated, device=policy.device),
            valid,
            self.gamma,
        )
        return reduce(losses, self.reduction, valid)


class RewardPredictionCallback(AuxiliaryCallback):
    """
    Reward prediction (Jaderberg et al. 2017): which kind of reward comes next, zero, positive or negative, from three
    observations. Half of the transitions have a reward.

    :param weight: of the loss, 1 in the source
    :param reduction: "mean" or "sum" of the transitions' losses
    :param episodes: see :class:`~sb3_manygoals.auxiliary.task_callback.AuxiliaryCallback`, also for what follows where it is
        not said here
    :param batch_size: transitions of an update
    :param seed: of the draws
    :param verbose: as SB3 has it
    :raises ValueError: if a number is out of its range
    """

    task = "reward_prediction"

    def __init__(
        self,
        weight: float = 1.0,
        reduction: Reduction = "mean",
        episodes: EpisodeBuffer | None = None,
        batch_size: int = 80,
        seed: int | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(weight, reduction, episodes, batch_size, seed, verbose)

    def loss(self, policy: AuxiliaryActorCriticPolicy, episodes: EpisodeBuffer, rng: np.random.Generator) -> th.Tensor:
        """See :class:`~sb3_manygoals.auxiliary.task_callback.AuxiliaryCallback`."""
        batch = episodes.sample_rewards(self.batch_size, rng)
        logits = policy.reward_logits(th.as_tensor(batch.observations, device=policy.device))
        return reduce(reward_prediction_losses(logits, th.as_tensor(batch.rewards, device=policy.device)), self.reduction)


def _valid(lengths: NDArray[np.int64], n_steps: int, device: th.device) -> th.Tensor:
    return th.as_tensor(np.arange(n_steps) < lengths[:, None], device=device)


def _check_trajectories(batch_size: int, n_steps: int) -> None:
    check_positive(n_steps=n_steps)
    if batch_size % n_steps:
        raise ValueError(f"batch_size must be a multiple of n_steps, {n_steps}, got {batch_size}")
