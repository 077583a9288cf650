"""Many goals as an auxiliary task."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch as th

from sb3_manygoals.auxiliary.callback import AuxiliaryCallback, Update
from sb3_manygoals.auxiliary.episode_buffer import EpisodeBuffer
from sb3_manygoals.auxiliary.losses import many_goals_losses, mean_of_real
from sb3_manygoals.auxiliary.policies import AuxiliaryActorCriticPolicy
from sb3_manygoals.goals.spaces import identical
from sb3_manygoals.validation import check_count, check_number, check_rewards


class ManyGoalsCallback(AuxiliaryCallback):
    r"""
    Many goals as an auxiliary task (section 5 and Algorithm 2 of Veeriah et al. 2018).

    Trajectories are sampled from the best episodes. The last observation of a trajectory is the
    goal of all its transitions.

    The paper gives beta, the capacity K of the episode buffer, and 80 transitions in an update. It
    does not give two other settings. Here trajectories are as long as the actor-critic's rollouts
    (5 steps of 16 environments are 80), and the target network's period is that of
    :data:`~sb3_manygoals.many_goals_dqn.settings.PAPER`.

    By default each update takes the two steps of Algorithm 2:
    :math:`\theta - \alpha \nabla \mathcal{L}^{AC}`, then
    :math:`\theta - \alpha \beta \nabla \mathcal{L}^Q`. With ``update="joint"`` it takes one step on
    the sum of both losses, which section 5 prints. :class:`AuxiliaryCallback` describes both.

    :param beta: weight of the loss, at least 0. The loss is a mean over transitions
    :param n_steps: n, number of transitions in a trajectory
    :param gamma: discount factor of the goals, in [0, 1)
    :param goal_reward: reward of a transition that reaches its goal
    :param step_reward: reward of every other transition
    :param target_update_interval: number of updates between two copies to the target network
    :param update: "two_steps" (Algorithm 2) or "joint" (section 5)
    :param kwargs: ``episodes``, ``batch_size``, ``seed`` and ``verbose`` of
        :class:`AuxiliaryCallback`, with its defaults
    :raises ValueError: if a number is out of its range, ``batch_size`` is not a multiple of
        ``n_steps``, ``goal_reward`` is not greater than ``step_reward``, or ``update`` is unknown
    """

    task = "many_goals"
    name_of_weight = "beta"

    def __init__(
        self,
        beta: float = 0.02,
        n_steps: int = 5,
        gamma: float = 0.99,
        goal_reward: float = 0.0,
        step_reward: float = -0.1,
        target_update_interval: int = 250,
        update: Update = "two_steps",
        **kwargs: Any,
    ) -> None:
        super().__init__(beta, n_steps=n_steps, update=update, **kwargs)
        self.gamma = check_number("gamma", gamma, at_least=0, below=1)
        self.goal_reward, self.step_reward = check_rewards(goal_reward, step_reward)
        self.target_update_interval = check_count("target_update_interval", target_update_interval)

    def _init_callback(self) -> None:
        """Refuse a normalization that drifts, under which no goal is ever shown again."""
        normalizer = self.model.get_vec_normalize_env()
        if normalizer is not None and normalizer.norm_obs and normalizer.training:
            raise ValueError(
                f"{type(self).__name__} needs observations that come again, and what VecNormalize "
                "makes of an observation drifts: use VecNormalize(venv, norm_obs=False), or set "
                "its attribute training to False once its statistics are good"
            )
        super()._init_callback()

    def loss(
        self, policy: AuxiliaryActorCriticPolicy, episodes: EpisodeBuffer, rng: np.random.Generator
    ) -> th.Tensor:
        """
        Compute the mean squared Bellman error of trajectories, each for the goal at its end.

        If the target network is due, the weights are copied to it before.

        :param policy: the policy whose head learns
        :param episodes: the buffer to sample from. At least one episode has ended
        :param rng: generator of the batch
        :return: the loss, shape ()
        """
        if self.n_updates % self.target_update_interval == 0:
            policy.update_goal_target()
        batch, observations, actions, is_real = self._sample(episodes, rng, policy.device)
        next_observations = batch.observations[:, 1:]
        goals = np.broadcast_to(batch.observations[:, -1:], next_observations.shape)
        achieved = identical(next_observations, goals, len(episodes.frames.shape))
        with th.no_grad():
            next_q = policy.goal_values(observations, target=True)
        losses = many_goals_losses(
            policy.goal_values(observations),
            next_q,
            actions,
            th.as_tensor(achieved, device=policy.device),
            self.gamma,
            self.goal_reward,
            self.step_reward,
        )
        return mean_of_real(losses, is_real)
