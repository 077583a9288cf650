"""Features of observations: convolutions for images, and the shared layers of a network."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, CombinedExtractor
from torch import nn

from sb3_manygoals.networks.images import CNN_FROM, check_image_space, is_small_image_space
from sb3_manygoals.networks.preprocess import PackedPreprocess, Preprocess

MASTERY_LAYERS = ((16, 2, 2), (32, 2, 2))
"""Convolutions (channels, kernel, stride) for the paper's 10x10 gridworld (its appendix)."""
ATARI_LAYERS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Convolutions of the Nature DQN, which the paper uses for Atari."""
_SMALL_IMAGE_CHANNELS = 16


class _ImageExtractor(BaseFeaturesExtractor):
    """Turns images into features by the layers of ``net``, which a subclass makes."""

    net: nn.Sequential

    def forward(self, observations: th.Tensor) -> th.Tensor:
        """
        Compute the features of images.

        :param observations: float32, shape (B, C, H, W)
        :return: features, shape (B, features_dim)
        """
        if observations.device.type == "cpu" and th.is_grad_enabled():
            # The backward pass is faster with channels last in memory.
            observations = observations.contiguous(memory_format=th.channels_last)
        return self.net(observations)  # type: ignore[no-any-return]


class PaddedCNN(_ImageExtractor):
    """
    Convolutions that see every pixel, and one fully connected layer, each followed by ReLU.

    Zeros are added at the bottom and at the right where a window would not fit. Images of 84x84
    pixels need none with ``ATARI_LAYERS``, so for them it is the Nature CNN.

    :param observation_space: image space, channels first
    :param features_dim: number of features, the width of the fully connected layer
    :param layers: (channels, kernel, stride) of each convolution; None: ``ATARI_LAYERS`` if both
        sides have at least 36 pixels, else ``MASTERY_LAYERS``
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
            down = _padding(height, kernel, stride)
            right = _padding(width, kernel, stride)
            if down or right:
                modules.append(nn.ZeroPad2d((0, right, 0, down)))
            modules += [nn.Conv2d(channels, out_channels, kernel, stride), nn.ReLU(inplace=True)]
            channels = out_channels
            height = (height + down - kernel) // stride + 1
            width = (width + right - kernel) // stride + 1
        self.net = nn.Sequential(
            *modules, nn.Flatten(), nn.Linear(channels * height * width, features_dim), nn.ReLU()
        )


class SmallImageCNN(_ImageExtractor):
    """
    Two convolutions of 3x3 for small images, such as grids, each followed by GELU. The second one
    halves both sides. The same weights see all places, so what was learned of neighbors in one
    place can help in others, as where walls are drawn anew for each episode.

    Channels that are hardly ever other than 0 should be standardized, as
    :meth:`Preprocess.standardize_by_channel` does. :func:`make_trunk` sees to that.

    :param observation_space: images of any size, channels first, shape (C, H, W)
    """

    def __init__(self, observation_space: spaces.Box) -> None:
        channels, height, width = observation_space.shape
        n_features = _SMALL_IMAGE_CHANNELS * ((height + 1) // 2) * ((width + 1) // 2)
        super().__init__(observation_space, n_features)
        self.net = nn.Sequential(
            nn.Conv2d(channels, _SMALL_IMAGE_CHANNELS, 3, padding=1),
            nn.GELU(),
            nn.Conv2d(_SMALL_IMAGE_CHANNELS, _SMALL_IMAGE_CHANNELS, 3, stride=2, padding=1),
            nn.GELU(),
            nn.Flatten(),
        )


class MultiInputExtractor(CombinedExtractor):
    """
    SB3's ``CombinedExtractor``, with :class:`SmallImageCNN` for images with fewer than 36 pixels on
    at least one side. SB3's policies can use it, too.

    :param observation_space: the parts of observations, images with channels first
    :param cnn_output_dim: number of features of each larger image
    :param normalized_image: whether larger images are numbers from 0 to 1
    """

    def __init__(
        self,
        observation_space: spaces.Dict,
        cnn_output_dim: int = 256,
        normalized_image: bool = False,
    ) -> None:
        parts = dict(observation_space.spaces)
        small_images = {name: part for name, part in parts.items() if is_small_image_space(part)}
        for name, part in small_images.items():
            # SB3 never takes vectors for images.
            parts[name] = spaces.Box(0.0, 1.0, (int(np.prod(part.shape)),), np.float32)
        super().__init__(spaces.Dict(parts), cnn_output_dim, normalized_image)
        self._observation_space = observation_space
        for name, part in small_images.items():
            cnn = SmallImageCNN(part)
            self.extractors[name] = cnn
            self._features_dim += cnn.features_dim - int(np.prod(part.shape))


def _padding(size: int, kernel: int, stride: int) -> int:
    """Return how many cells must be added to ``size`` so that windows cover it exactly."""
    if size < kernel:
        return kernel - size
    return -(size - kernel) % stride


def make_trunk(
    preprocess: Preprocess | PackedPreprocess,
    features_extractor: BaseFeaturesExtractor,
    net_arch: Sequence[int],
    activation_fn: type[nn.Module],
    ortho_init: bool = False,
) -> tuple[nn.Sequential, int]:
    """
    Make the shared layers that turn an observation into features.

    If the extractor has a :class:`SmallImageCNN`, small images are standardized by channel.

    :param preprocess: the first layer
    :param features_extractor: the second layer, made for ``preprocess.space``
    :param net_arch: widths of the fully connected layers that follow
    :param activation_fn: activation after each of these fully connected layers
    :param ortho_init: whether weights begin as in SB3's actor-critics, orthogonal and scaled by the
        square root of 2
    :return: the layers, and the number of features
    """
    if any(isinstance(module, SmallImageCNN) for module in features_extractor.modules()):
        preprocess.standardize_by_channel()
    layers: list[nn.Module] = []
    features_dim = features_extractor.features_dim
    for width in net_arch:
        layers += [nn.Linear(features_dim, width), activation_fn()]
        features_dim = width
    trunk = nn.Sequential(preprocess, features_extractor, *layers)
    if ortho_init:
        trunk.apply(partial(BasePolicy.init_weights, gain=np.sqrt(2)))
    return trunk, features_dim
