"""Reward prediction as an auxiliary task."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch as th

from sb3_manygoals.auxiliary.callback import AuxiliaryCallback, Update
from sb3_manygoals.auxiliary.episode_buffer import EpisodeBuffer
from sb3_manygoals.auxiliary.losses import reward_prediction_losses
from sb3_manygoals.auxiliary.policies import AuxiliaryActorCriticPolicy


class RewardPredictionCallback(AuxiliaryCallback):
    """
    Reward prediction (Jaderberg et al. 2017): predict whether the next reward is zero, positive or
    negative.

    The head predicts it from the last three observations. In an update, half of the transitions
    have a reward other than 0, if there are any. Jaderberg et al. add the loss to A3C's, so the
    update is joint by default.

    :param weight: weight of the loss, at least 0. The default of 1.0 is that of Jaderberg et al.
        The loss is the mean cross-entropy over transitions
    :param update: "joint" or "two_steps", see :class:`AuxiliaryCallback`
    :param kwargs: ``episodes``, ``batch_size``, ``seed`` and ``verbose`` of
        :class:`AuxiliaryCallback`, with its defaults
    :raises ValueError: if a number is out of its range, or ``update`` is unknown
    """

    task = "reward_prediction"

    def __init__(self, weight: float = 1.0, update: Update = "joint", **kwargs: Any) -> None:
        super().__init__(weight, update=update, **kwargs)

    def loss(
        self, policy: AuxiliaryActorCriticPolicy, episodes: EpisodeBuffer, rng: np.random.Generator
    ) -> th.Tensor:
        """
        Compute the mean cross-entropy of the predicted sign of the next reward.

        :param policy: the policy whose head learns
        :param episodes: the buffer to sample from. At least one episode has ended
        :param rng: generator of the batch
        :return: the loss, shape ()
        """
        observations, rewards = episodes.sample_rewards(self.batch_size, rng)
        logits = policy.reward_logits(th.as_tensor(observations, device=policy.device))
        rewards_on_device = th.as_tensor(rewards, device=policy.device)
        return reward_prediction_losses(logits, rewards_on_device).mean()
