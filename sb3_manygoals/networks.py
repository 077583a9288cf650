"""Networks: observations to features, and universal value functions on top of them."""

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.preprocessing import is_image_space, preprocess_obs
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn
from torch.nn import functional

from sb3_manygoals.validation import check_count

MASTERY_LAYERS = ((16, 2, 2), (32, 2, 2))
"""Convolutions (channels, kernel, stride) for the paper's 10x10 gridworld (its appendix)."""
ATARI_LAYERS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Convolutions of the Nature DQN, which the paper uses for Atari."""
CNN_FROM = 36  # pixels a side, from which images use ATARI_LAYERS by default


def channels_are_last(image_space: spaces.Box) -> bool:
    """
    Whether images are (height, width, channels) and not (channels, height, width): so they are if the last axis has 1, 3 or 4
    entries; otherwise the smallest axis holds the channels. A ValueError if the shape does not tell, as (10, 10, 10).
    """
    first, middle, last = image_space.shape
    if last in (1, 3, 4) or last < min(first, middle):
        return True
    if first < min(middle, last):
        return False
    told = 'policy_kwargs={"channels_last": True} for (height, width, channels), or False for (channels, height, width)'
    raise ValueError(
        f"images of shape {image_space.shape} do not tell which axis holds the channels: give {told}"
    )


def count_distinct(rows: NDArray[Any]) -> int:
    """
    :param rows: shape (n, ...)
    :return: how many of them differ in their bytes
    """
    flat = np.ascontiguousarray(rows.reshape(len(rows), -1))
    return len(np.unique(flat.view(f"V{flat.itemsize * flat.shape[1]}")))


class Preprocess(nn.Module):
    """
    Prepares observations for a network: channels first, images scaled to [0, 1], discrete values one-hot, and each element
    standardized by the observations given to :meth:`fit`. ``space`` is the observation space with image channels first.

    :param observation_space: of single observations, as the environment has it
    :param normalize_images: whether to divide images by 255
    :param standardize: whether to standardize, once :meth:`fit` was called
    :param channels_last: whether the last axis of images holds the channels; None: :func:`channels_are_last` decides
    """

    mean: th.Tensor
    scale: th.Tensor
    offset: th.Tensor

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        normalize_images: bool = True,
        standardize: bool = False,
        channels_last: bool | None = None,
    ) -> None:
        super().__init__()
        self.normalize_images, self.standardize, self.channels_last = (
            normalize_images,
            standardize,
            False,
        )
        # a copy, as SB3's extractors draw samples of the space they are given
        self.space = copy.deepcopy(observation_space)
        if isinstance(observation_space, spaces.Box) and is_image_space(observation_space):
            self.channels_last = (
                channels_are_last(observation_space) if channels_last is None else channels_last
            )
            if self.channels_last:
                low, high = (
                    observation_space.low.transpose(2, 0, 1),
                    observation_space.high.transpose(2, 0, 1),
                )
                self.space = spaces.Box(low, high, dtype=np.uint8)
        if standardize:
            some = np.zeros(observation_space.shape or (), observation_space.dtype)
            shape = self._scaled(th.as_tensor(some)[None]).shape[1:]
            self.register_buffer("mean", th.zeros(shape))
            self.register_buffer("scale", th.ones(shape))
            if self._is_wide:
                self.register_buffer("offset", th.zeros(shape, dtype=th.float64))

    @property
    def _is_vector(self) -> bool:
        """Whether observations are numbers of any size, and neither images nor one-hot."""
        return isinstance(self.space, spaces.Box) and not is_image_space(self.space)

    @property
    def _is_wide(self) -> bool:
        """Whether casting to float32 could make different observations equal, unless their mean is subtracted before."""
        dtype = np.dtype(self.space.dtype)
        return self._is_vector and dtype.itemsize >= 4 and dtype != np.float32

    def fit(self, observations: th.Tensor) -> None:
        """
        Standardize by these observations, shape (B, *observation_space.shape). What has hardly varied may vary later:
        a deviation counts as at least half the median of those that vary, and a constant element's as the median.
        """
        least: float | th.Tensor = 1e-4
        if self._is_vector:  # of any unit, so that only rounding errors are no deviations
            mean = observations.double().mean(dim=0)
            least = (1e-13 if self._is_wide else 1e-6) * mean.abs().float()
            if self._is_wide:
                self.offset.copy_(mean)
        scaled = self._scaled(observations)
        deviation = scaled.std(dim=0, correction=0)
        varied = deviation > least
        typical = deviation[varied].median() if varied.any() else deviation.new_ones(())
        self.mean.copy_(scaled.mean(dim=0))
        self.scale.copy_(1.0 / th.where(varied, deviation.clamp(min=float(typical) / 2), typical))

    @th.no_grad()
    def count_distinct(self, observations: th.Tensor) -> int:
        """
        :param observations: shape (B, *observation_space.shape)
        :return: how many of them differ in the numbers that the network gets
        """
        prepared = self(observations) + 0.0  # -0.0 is no other number than 0.0
        return count_distinct(prepared.cpu().numpy())

    def forward(self, observations: th.Tensor) -> th.Tensor:
        """From shape (B, *observation_space.shape) to float32, shape (B, *space.shape); discrete values one-hot."""
        scaled = self._scaled(observations)
        return (scaled - self.mean) * self.scale if self.standardize else scaled

    def _scaled(self, observations: th.Tensor) -> th.Tensor:
        if self.channels_last:
            observations = observations.permute(0, 3, 1, 2)
        if self.standardize and self._is_wide and hasattr(self, "offset"):
            observations = observations.double() - self.offset
        return preprocess_obs(observations, self.space, self.normalize_images)  # type: ignore[return-value]  # it is no Dict


def check_image_space(observation_space: spaces.Space[Any]) -> None:
    """:raises ValueError: if these observations are not images, channels first or last"""
    if not is_image_space(observation_space):
        needed = "a uint8 Box of three axes with values 0 to 255"
        raise ValueError(
            f'CnnPolicy needs images: {needed}, got {observation_space}. Use "MlpPolicy" for vectors.'
        )


class PaddedCNN(BaseFeaturesExtractor):
    """
    Convolutions that see every pixel, then one fully connected layer, each followed by ReLU. Zeros are added at the bottom and
    at the right where a window would not fit. 84x84 images and ``ATARI_LAYERS`` need none: that is the Nature CNN.

    :param observation_space: image space, channels first
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
            layers = ATARI_LAYERS if min(height, width) >= CNN_FROM else MASTERY_LAYERS
        modules: list[nn.Module] = []
        for out_channels, kernel, stride in layers:
            down, right = _padding(height, kernel, stride), _padding(width, kernel, stride)
            if down or right:
                modules.append(nn.ZeroPad2d((0, right, 0, down)))
            modules += [nn.Conv2d(channels, out_channels, kernel, stride), nn.ReLU(inplace=True)]
            channels = out_channels
            height = (height + down - kernel) // stride + 1
            width = (width + right - kernel) // stride + 1
        self.net = nn.Sequential(
            *modules, nn.Flatten(), nn.Linear(channels * height * width, features_dim), nn.ReLU()
        )

    def forward(self, observations: th.Tensor) -> th.Tensor:
        """From images, float32, shape (B, C, H, W), to features, shape (B, features_dim)."""
        if observations.device.type == "cpu" and th.is_grad_enabled():
            observations = observations.contiguous(
                memory_format=th.channels_last
            )  # the backward pass is faster
        return self.net(observations)  # type: ignore[no-any-return]


def _padding(size: int, kernel: int, stride: int) -> int:
    """How many cells must be added to ``size`` for windows to cover it exactly."""
    return kernel - size if size < kernel else -(size - kernel) % stride


def make_trunk(
    preprocess: Preprocess,
    features_extractor: BaseFeaturesExtractor,
    net_arch: Sequence[int],
    activation_fn: type[nn.Module],
    ortho_init: bool = False,
) -> tuple[nn.Sequential, int]:
    """
    The layers from observations to features, and the width of these.

    :param features_extractor: made for ``preprocess.space``
    :param net_arch: widths of the fully connected layers that follow it
    :param ortho_init: whether weights begin as in SB3's actor-critics, orthogonal and scaled by the square root of 2
    """
    layers: list[nn.Module] = []
    features_dim = features_extractor.features_dim
    for width in net_arch:
        layers += [nn.Linear(features_dim, width), activation_fn()]
        features_dim = width
    trunk = nn.Sequential(preprocess, features_extractor, *layers)
    if ortho_init:
        trunk.apply(partial(BasePolicy.init_weights, gain=np.sqrt(2)))
    return trunk, features_dim


class UniversalQNetwork(nn.Module):
    r"""
    A universal value function (Schaul et al. 2015): the values of all actions for any goal,

    .. math:: Q(s, \cdot, g) = W \,(A\,h(s) \odot B\,h(g)) + b

    States and goals share the trunk :math:`h` but not the embeddings :math:`A` and :math:`B`; else
    :math:`Q(s, a, g) = Q(g, a, s)`. The values of S states for G goals cost S + G passes of the trunk and one matrix product.

    :param trunk: from observations to features, shape (B, features_dim)
    :param embedding_dim: width of the embeddings (the paper's 1024)
    """

    def __init__(
        self, trunk: nn.Module, features_dim: int, n_actions: int, embedding_dim: int = 1024
    ) -> None:
        super().__init__()
        check_count("embedding_dim", embedding_dim)
        self.trunk = trunk
        self.n_actions = n_actions
        self.state_embedding = nn.Linear(features_dim, embedding_dim)
        self.goal_embedding = nn.Linear(features_dim, embedding_dim)
        self.head = nn.Linear(embedding_dim, n_actions)

    def forward(self, observations: th.Tensor, goals: th.Tensor) -> th.Tensor:
        """Values of all actions, shape (B, A), for observations and the goal of each, shape (B, *observation_space.shape)."""
        states, goals = self.embed(observations, goals)
        return self.head(states * goals)  # type: ignore[no-any-return]

    def embed(self, observations: th.Tensor, goals: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """The embeddings of S observations and of G goals, by one pass of the trunk."""
        states, goals = self.trunk(th.cat([observations, goals])).split(
            [len(observations), len(goals)]
        )
        return self.state_embedding(states), self.goal_embedding(goals)

    def pairwise(self, states: th.Tensor, goals: th.Tensor) -> th.Tensor:
        """Values of every state for every goal, shape (S, G, A), from the embeddings of both, see :meth:`embed`."""
        weighted = goals[:, None, :] * self.head.weight  # (G, A, D)
        return functional.linear(
            states, weighted.flatten(0, 1), self.head.bias.repeat(len(goals))
        ).view(len(states), len(goals), -1)

    def pairwise_taken(self, states: th.Tensor, goals: th.Tensor, actions: th.Tensor) -> th.Tensor:
        """As :meth:`pairwise` for one action of each state, int64, shape (S,): A times less work. Values of shape (S, G)."""
        return functional.linear(
            goals, states * self.head.weight[actions], self.head.bias[actions]
        ).T

    @th.no_grad()
    def shift_values(self, by: float) -> None:
        """Add a number to all values."""
        self.head.bias.add_(by)


class DistanceQNetwork(UniversalQNetwork):
    r"""
    A universal value function of the distance from a state and an action to a goal,

    .. math:: Q(s, a, g) = o - c \log(1 + \lVert A_a h(s) - B h(g) \rVert^2)

    with one embedding of the state for each action, :math:`A_a`, and two learned numbers, the scale :math:`c > 0` and the
    offset :math:`o`. Arguments as of :class:`UniversalQNetwork`.
    """

    def __init__(
        self, trunk: nn.Module, features_dim: int, n_actions: int, embedding_dim: int = 128
    ) -> None:
        super().__init__(trunk, features_dim, n_actions, embedding_dim)
        del self.head
        self.state_embedding = nn.Linear(features_dim, n_actions * embedding_dim)
        self.log_scale = nn.Parameter(th.zeros(()))
        self.offset = nn.Parameter(th.zeros(()))

    def forward(self, observations: th.Tensor, goals: th.Tensor) -> th.Tensor:
        states, goals = self.embed(observations, goals)
        return self._values((self._points(states) - goals[:, None]).square().sum(dim=2))

    def pairwise(self, states: th.Tensor, goals: th.Tensor) -> th.Tensor:
        values = self._values(_squared_distances(self._points(states).flatten(0, 1), goals))
        return values.view(len(states), self.n_actions, len(goals)).transpose(1, 2)

    def pairwise_taken(self, states: th.Tensor, goals: th.Tensor, actions: th.Tensor) -> th.Tensor:
        points = self._points(states)[th.arange(len(states), device=states.device), actions]
        return self._values(_squared_distances(points, goals))

    @th.no_grad()
    def shift_values(self, by: float) -> None:
        self.offset.add_(by)

    def _points(self, states: th.Tensor) -> th.Tensor:
        return states.view(len(states), self.n_actions, -1)

    def _values(self, squared_distances: th.Tensor) -> th.Tensor:
        return self.offset - self.log_scale.exp() * squared_distances.log1p()


def _squared_distances(left: th.Tensor, right: th.Tensor) -> th.Tensor:
    """From every row to every row, shape (L, R), by one matrix product."""
    lengths = left.square().sum(dim=1)[:, None] + right.square().sum(dim=1)
    # Rounding may make a square negative.
    return (lengths - 2.0 * functional.linear(left, right)).clamp(min=0.0)
