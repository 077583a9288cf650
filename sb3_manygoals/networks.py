"""Networks: the shared trunk, and the universal value function on top of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first, preprocess_obs
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

from sb3_manygoals.linear import Linear, linear

MASTERY_LAYERS = ((16, 2, 2), (32, 2, 2))
"""Convolutions (channels, kernel, stride) for the paper's 10x10 gridworld (its appendix)."""

ATARI_LAYERS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Convolutions of the Nature DQN, the paper's for Atari; used for images of at least 36 pixels a side."""


class Preprocess(nn.Module):
    """
    Observations as networks want them: channels first, images scaled to [0, 1], discrete values one-hot; on request also
    standardized, by mean and deviation of each element over observations given to :meth:`fit`. Two pictures of a gridworld
    differ in few pixels, whose differences are small beside what all pictures share.

    :param observation_space: of a batch's rows, as the environment has it
    :param normalize_images: whether to divide images by 255
    :param standardize: whether to standardize; nothing is changed until :meth:`fit` is called

    ``space`` is the space of what comes before scaling: the same, with image channels first.
    """

    mean: th.Tensor
    scale: th.Tensor

    def __init__(self, observation_space: spaces.Space[Any], normalize_images: bool = True, standardize: bool = False) -> None:
        super().__init__()
        self.normalize_images = normalize_images
        self.channels_last = False
        self.space = observation_space
        if isinstance(observation_space, spaces.Box) and is_image_space(observation_space):
            # SB3 takes the smallest axis for the channels, and so a map of two rows for one of ten channels.
            self.channels_last = observation_space.shape[2] in (1, 3, 4) or not is_image_space_channels_first(
                observation_space
            )
            if self.channels_last:
                low, high = observation_space.low.transpose(2, 0, 1), observation_space.high.transpose(2, 0, 1)
                self.space = spaces.Box(low, high, dtype=np.uint8)
        self.standardize = standardize
        if standardize:
            shape = self._scaled(th.as_tensor(np.array(observation_space.sample()))[None]).shape[1:]
            self.register_buffer("mean", th.zeros(shape))
            self.register_buffer("scale", th.ones(shape))

    def fit(self, observations: th.Tensor) -> None:
        """
        Standardize by these from now on. Elements that have hardly varied may vary later: a deviation counts as no less than
        half the median one of those that vary, and that of an element that is the same in all as the median.

        :param observations: shape (B, *observation_space.shape)
        """
        scaled = self._scaled(observations)
        deviation = scaled.std(dim=0, correction=0)
        varied = deviation > 1e-4
        typical = deviation[varied].median() if varied.any() else deviation.new_ones(())
        self.mean.copy_(scaled.mean(dim=0))
        self.scale.copy_(1.0 / th.where(varied, deviation.clamp(min=float(typical) / 2), typical))

    def forward(self, observations: th.Tensor) -> th.Tensor:
        """
        :param observations: shape (B, *observation_space.shape)
        :return: float32, shape (B, *space.shape), or one-hot for discrete spaces
        """
        scaled = self._scaled(observations)
        return (scaled - self.mean) * self.scale if self.standardize else scaled

    def _scaled(self, observations: th.Tensor) -> th.Tensor:
        if self.channels_last:
            observations = observations.permute(0, 3, 1, 2)
        prepared = preprocess_obs(observations, self.space, self.normalize_images)
        assert isinstance(prepared, th.Tensor)  # for mypy: only Dict spaces give anything else
        return prepared


def check_image_space(observation_space: spaces.Space[Any]) -> None:
    """
    :param observation_space: of observations, channels first or last
    :raises ValueError: if they are not images
    """
    if not is_image_space(observation_space):
        raise ValueError(
            f"CnnPolicy needs images: a uint8 Box of three axes with values 0 to 255, got {observation_space}. "
            'Use "MlpPolicy" for vectors.'
        )


class PaddedCNN(BaseFeaturesExtractor):
    """
    Convolutions that look at every pixel, then one fully connected layer; ReLU after each.

    Without padding, a stride that does not divide the image leaves its last rows and columns unseen: two 2x2/2
    convolutions turn 10 into 5 into 2, and rows 8 and 9 go nowhere. Zeros are added at the bottom and right wherever a
    window would not fit; none are where all fit (84x84 with the Atari layers is exactly the Nature CNN).

    :param observation_space: image space, channels first
    :param features_dim: width of the fully connected layer
    :param layers: (channels, kernel, stride) of each convolution; None: ``ATARI_LAYERS`` if both sides have at least 36
        pixels, else ``MASTERY_LAYERS``
    :raises ValueError: if the observations are not images
    """

    def __init__(
        self,
        observation_space: spaces.Box,
        features_dim: int = 512,
        layers: Sequence[tuple[int, int, int]] | None = None,
    ) -> None:
        check_image_space(observation_space)
        super().__init__(observation_space, features_dim)
        channels, height, width = observation_space.shape
        if layers is None:
            layers = ATARI_LAYERS if min(height, width) >= 36 else MASTERY_LAYERS
        modules: list[nn.Module] = []
        for out_channels, kernel, stride in layers:
            down, right = _missing(height, kernel, stride), _missing(width, kernel, stride)
            if down or right:
                modules.append(nn.ZeroPad2d((0, right, 0, down)))
            modules += [nn.Conv2d(channels, out_channels, kernel, stride), nn.ReLU(inplace=True)]
            channels = out_channels
            height = (height + down - kernel) // stride + 1
            width = (width + right - kernel) // stride + 1
        connected = [nn.Flatten(), Linear(channels * height * width, features_dim), nn.ReLU()]
        self._connected = len(connected)
        self.net = nn.Sequential(*modules, *connected)

    def forward(self, observations: th.Tensor) -> th.Tensor:
        """
        :param observations: float32, shape (B, C, H, W)
        :return: features, shape (B, features_dim)
        """
        features: th.Tensor = self.net(_laid_out(observations))
        return features

    def convolve(self, observations: th.Tensor) -> th.Tensor:
        """
        The first part of :meth:`forward`.

        :param observations: float32, shape (B, C, H, W)
        :return: what the convolutions make of them, shape (B, C', H', W')
        """
        maps = _laid_out(observations)
        for part in list(self.net)[: -self._connected]:
            maps = part(maps)
        return maps

    def connect(self, maps: th.Tensor) -> th.Tensor:
        """
        The rest of it.

        :param maps: of :meth:`convolve`
        :return: features, shape (B, features_dim)
        """
        features: th.Tensor = maps
        for part in list(self.net)[-self._connected :]:
            features = part(features)
        return features


def _laid_out(observations: th.Tensor) -> th.Tensor:
    if observations.device.type == "cpu" and th.is_grad_enabled():
        # as pictures come from TwoRoomsSwitch: the way back is faster with all channels of a pixel side by side
        return observations.contiguous(memory_format=th.channels_last)
    return observations


def _missing(size: int, kernel: int, stride: int) -> int:
    """How many cells must be added to ``size`` for windows to cover it exactly."""
    return kernel - size if size < kernel else -(size - kernel) % stride


def make_trunk(
    preprocess: Preprocess,
    features_extractor: BaseFeaturesExtractor,
    net_arch: Sequence[int],
    activation_fn: type[nn.Module],
    layer_norm: bool = False,
    ortho_init: bool = False,
) -> tuple[nn.Sequential, int]:
    """
    What observations and goals share, or whoever else learns features.

    :param preprocess: the first part
    :param features_extractor: the second, made for ``preprocess.space``
    :param net_arch: widths of the fully connected layers that follow
    :param activation_fn: after each of them
    :param layer_norm: whether layer normalization is the end
    :param ortho_init: whether weights begin orthogonal, scaled by the square root of 2, and biases with 0, as those of SB3's
        actor-critics; else as torch has them, much smaller
    :return: from observations, shape (B, *observation_space.shape), to features, shape (B, features_dim); and ``features_dim``
    """
    layers: list[nn.Module] = []
    features_dim = features_extractor.features_dim
    for width in net_arch:
        layers += [Linear(features_dim, width), activation_fn()]
        features_dim = width
    if layer_norm:
        layers.append(nn.LayerNorm(features_dim))
    trunk = nn.Sequential(preprocess, features_extractor, *layers)
    if ortho_init:
        trunk.apply(partial(BasePolicy.init_weights, gain=np.sqrt(2)))
    return trunk, features_dim


class UniversalQNetwork(nn.Module):
    r"""
    A universal value function (Schaul et al. 2015): the values of all actions for any goal,

    .. math:: Q(s, \cdot, g) = W \,(A\,h(s) \odot B\,h(g)) + b

    with :math:`h` the trunk that states and goals share, and two embeddings of their own, :math:`A` and :math:`B`. Were
    these shared too, :math:`Q(s, a, g) = Q(g, a, s)` for whatever follows the product, and "go right" would be as good from
    the left as from the right.

    Because the head is linear, the values of S states for G goals cost S + G passes of the trunk and one matrix product.

    :param trunk: from observations to features, shape (B, features_dim)
    :param features_dim: width of the features
    :param n_actions: number of actions
    :param embedding_dim: width of the embeddings (the paper's 1024)
    :raises ValueError: if ``embedding_dim`` is not positive
    """

    def __init__(self, trunk: nn.Module, features_dim: int, n_actions: int, embedding_dim: int = 1024) -> None:
        super().__init__()
        if embedding_dim < 1:
            raise ValueError(f"embedding_dim must be at least 1, got {embedding_dim}")
        self.trunk = trunk
        self.n_actions = n_actions
        self.state_embedding = Linear(features_dim, embedding_dim)
        self.goal_embedding = Linear(features_dim, embedding_dim)
        self.head = nn.Linear(embedding_dim, n_actions)

    def forward(self, observations: th.Tensor, goals: th.Tensor) -> th.Tensor:
        """
        Each observation with its own goal.

        :param observations: shape (B, *observation_space.shape)
        :param goals: the same shape
        :return: values of all actions, shape (B, A)
        """
        features = self.trunk(th.cat([observations, goals]))
        states, goals = features.split([len(observations), len(goals)])
        q: th.Tensor = self.head(self.state_embedding(states) * self.goal_embedding(goals))
        return q

    def pairwise(self, states: th.Tensor, goals: th.Tensor) -> th.Tensor:
        """
        Every state with every goal, all actions.

        :param states: state embeddings, shape (S, D)
        :param goals: goal embeddings, shape (G, D)
        :return: values, shape (S, G, A)
        """
        weighted = goals[:, None, :] * self.head.weight  # (G, A, D)
        q = linear(states, weighted.flatten(0, 1), self.head.bias.repeat(len(goals)))
        return q.view(len(states), len(goals), -1)

    def pairwise_taken(self, states: th.Tensor, goals: th.Tensor, actions: th.Tensor) -> th.Tensor:
        """
        Every state with every goal, one action a state: A times less work than :meth:`pairwise`.

        :param states: state embeddings, shape (S, D)
        :param goals: goal embeddings, shape (G, D)
        :param actions: int64, shape (S,)
        :return: values of those actions, shape (S, G)
        """
        return linear(goals, states * self.head.weight[actions], self.head.bias[actions]).T

    @th.no_grad()
    def shift_values(self, by: float) -> None:
        """
        :param by: what is added to all values
        """
        self.head.bias.add_(by)


class DistanceQNetwork(UniversalQNetwork):
    r"""
    A universal value function that measures how far a state and an action are from a goal,

    .. math:: Q(s, a, g) = o - c \log(1 + \lVert A_a h(s) - B h(g) \rVert^2)

    with an embedding of the state for each action, :math:`A_a`, and two learnt numbers, the scale :math:`c > 0` and the offset
    :math:`o`. The value at the goal is where two points meet, which a product of embeddings reaches only by many directions
    that cancel out. The values of S states for G goals are one matrix product too.

    :param trunk: from observations to features, shape (B, features_dim)
    :param features_dim: width of the features
    :param n_actions: number of actions
    :param embedding_dim: width of each embedding
    :raises ValueError: if ``embedding_dim`` is not positive
    """

    def __init__(self, trunk: nn.Module, features_dim: int, n_actions: int, embedding_dim: int = 128) -> None:
        super().__init__(trunk, features_dim, n_actions, embedding_dim)
        del self.head
        self.state_embedding = Linear(features_dim, n_actions * embedding_dim)
        self.log_scale = nn.Parameter(th.zeros(()))
        self.offset = nn.Parameter(th.zeros(()))

    def forward(self, observations: th.Tensor, goals: th.Tensor) -> th.Tensor:
        """See :class:`UniversalQNetwork`."""
        features = self.trunk(th.cat([observations, goals]))
        states, goals = features.split([len(observations), len(goals)])
        points = self._points(self.state_embedding(states))
        return self._values((points - self.goal_embedding(goals)[:, None]).square().sum(dim=2))

    def pairwise(self, states: th.Tensor, goals: th.Tensor) -> th.Tensor:
        """
        See :class:`UniversalQNetwork`.

        :param states: state embeddings, shape (S, A D)
        :param goals: goal embeddings, shape (G, D)
        :return: values, shape (S, G, A)
        """
        values = self._values(_squared_distances(self._points(states).flatten(0, 1), goals))
        return values.view(len(states), self.n_actions, len(goals)).transpose(1, 2)

    def pairwise_taken(self, states: th.Tensor, goals: th.Tensor, actions: th.Tensor) -> th.Tensor:
        """
        See :class:`UniversalQNetwork`.

        :param states: state embeddings, shape (S, A D)
        :param goals: goal embeddings, shape (G, D)
        :param actions: int64, shape (S,)
        :return: values of those actions, shape (S, G)
        """
        points = self._points(states)[th.arange(len(states), device=states.device), actions]
        return self._values(_squared_distances(points, goals))

    @th.no_grad()
    def shift_values(self, by: float) -> None:
        """See :class:`UniversalQNetwork`."""
        self.offset.add_(by)

    def _points(self, states: th.Tensor) -> th.Tensor:
        return states.view(len(states), self.n_actions, -1)

    def _values(self, squared_distances: th.Tensor) -> th.Tensor:
        return self.offset - self.log_scale.exp() * squared_distances.log1p()


def _squared_distances(left: th.Tensor, right: th.Tensor) -> th.Tensor:
    """Of every row to every row, shape (L, R), by one matrix product; of equal rows it may come out a little less than 0."""
    lengths = left.square().sum(dim=1)[:, None] + right.square().sum(dim=1)
    return (lengths - 2.0 * linear(left, right)).clamp(min=0.0)
