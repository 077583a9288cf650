"""Pixel control as an auxiliary task."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch as th

from sb3_manygoals.auxiliary.callback import AuxiliaryCallback, Update
from sb3_manygoals.auxiliary.episode_buffer import EpisodeBuffer
from sb3_manygoals.auxiliary.losses import mean_of_real, pixel_changes, pixel_control_losses
from sb3_manygoals.auxiliary.policies import AuxiliaryActorCriticPolicy
from sb3_manygoals.validation import check_number


class PixelControlCallback(AuxiliaryCallback):
    """
    Pixel control (Jaderberg et al. 2017): learn to change the pixels in each cell of the picture.

    The policy's ``crop`` and ``cell`` determine the cells. In a stack of frames, as ``episodes``
    knows it, the newest one counts. Jaderberg et al. add the loss to A3C's, so the update is joint
    by default. For Atari, they take one trajectory in an update and draw the weight log-uniformly
    from 0.0001 to 0.01. The default is the middle of that range on the logarithmic scale.

    :param weight: weight of the loss, at least 0. The loss is a mean over transitions; that of a
        transition is a sum over all cells
    :param n_steps: n, number of transitions in a trajectory
    :param gamma: discount factor of the changes, in [0, 1]
    :param update: "joint" or "two_steps", see :class:`AuxiliaryCallback`
    :param kwargs: ``episodes``, ``batch_size``, ``seed`` and ``verbose`` of
        :class:`AuxiliaryCallback`, with its defaults
    :raises ValueError: if a number is out of its range, ``batch_size`` is not a multiple of
        ``n_steps``, or ``update`` is unknown
    """

    task = "pixel_control"

    def __init__(
        self,
        weight: float = 0.001,
        n_steps: int = 20,
        gamma: float = 0.9,
        update: Update = "joint",
        **kwargs: Any,
    ) -> None:
        super().__init__(weight, n_steps=n_steps, update=update, **kwargs)
        self.gamma = check_number("gamma", gamma, at_least=0, at_most=1)

    def loss(
        self, policy: AuxiliaryActorCriticPolicy, episodes: EpisodeBuffer, rng: np.random.Generator
    ) -> th.Tensor:
        """
        Compute the mean loss of n-step Q-learning. The rewards are the changes of the cells.

        :param policy: the policy whose head learns
        :param episodes: the buffer to sample from. At least one episode has ended
        :param rng: generator of the batch
        :return: the loss, shape ()
        """
        batch, observations, actions, is_real = self._sample(episodes, rng, policy.device)
        newest = np.ascontiguousarray(episodes.frames.split(batch.observations)[:, :, -1])
        images = th.as_tensor(newest, device=policy.device).float() / 255.0
        losses = pixel_control_losses(
            policy.cell_values(observations),
            actions,
            pixel_changes(images, policy.crop, policy.cell),
            th.as_tensor(batch.terminated, device=policy.device),
            is_real,
            self.gamma,
        )
        return mean_of_real(losses, is_real)
