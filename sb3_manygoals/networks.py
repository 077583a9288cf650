"""Networks: observations to features, and universal value functions on top of them."""

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeGuard

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.preprocessing import is_image_space, preprocess_obs
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, CombinedExtractor
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from sb3_manygoals.packing import PackedSpace
from sb3_manygoals.validation import check_count

MASTERY_LAYERS = ((16, 2, 2), (32, 2, 2))
"""Convolutions (channels, kernel, stride) for the paper's 10x10 gridworld (its appendix)."""
ATARI_LAYERS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Convolutions of the Nature DQN, which the paper uses for Atari."""
CNN_FROM = 36
"""Images with at least so many pixels on each side go through ``ATARI_LAYERS`` by default."""
_SMALL_IMAGE_CHANNELS = 16
# About so many rows tell the median of an element.
_ROWS_FOR_MEDIAN = 1_000


def channels_are_last(image_space: spaces.Box) -> bool:
    """
    Return whether images are (height, width, channels) and not (channels, height, width).

    Channels are last if the last axis has 1, 3 or 4 entries. Otherwise the smallest axis holds
    them.

    :param image_space: the space of the images, with three axes
    :return: whether channels are last
    :raises ValueError: if the shape does not tell, as (10, 10, 10) does not
    """
    first, middle, last = image_space.shape
    if last in (1, 3, 4) or last < min(first, middle):
        return True
    if first < min(middle, last):
        return False
    raise ValueError(
        f"images of shape {image_space.shape} do not tell which axis holds the channels: give"
        ' policy_kwargs={"channels_last": True} for (height, width, channels), or False for'
        " (channels, height, width)"
    )


def count_distinct(rows: NDArray[Any]) -> int:
    """
    Count the rows that differ in their bytes.

    :param rows: any dtype, shape (n, ...)
    :return: the number of distinct rows
    """
    flat = np.ascontiguousarray(rows.reshape(len(rows), -1))
    return len(np.unique(flat.view(f"V{flat.itemsize * flat.shape[1]}")))


class Preprocess(nn.Module):
    """
    Prepares observations for a network.

    Image channels come first, images are scaled to [0, 1], and discrete values become one-hot. Each
    element can be standardized by the observations given to :meth:`fit`, or each channel of images,
    after :meth:`standardize_by_channel`. ``space`` is the observation space with image channels
    first.

    :param observation_space: space of single observations, as the environment has it
    :param normalize_images: whether to divide images by 255
    :param standardize: whether to standardize, once :meth:`fit` was called
    :param channels_last: whether the last axis of images holds the channels; None:
        :func:`channels_are_last` decides
    :raises ValueError: if ``channels_last`` is None and the shape of images does not tell
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
        self.normalize_images = normalize_images
        self.standardize = standardize
        self.channels_last = False
        # SB3's extractors draw samples of the space they are given, so give them a copy.
        self.space = copy.deepcopy(observation_space)
        if isinstance(observation_space, spaces.Box) and is_image_space(observation_space):
            if channels_last is None:
                channels_last = channels_are_last(observation_space)
            self.channels_last = channels_last
            if self.channels_last:
                low = observation_space.low.transpose(2, 0, 1)
                high = observation_space.high.transpose(2, 0, 1)
                self.space = spaces.Box(low, high, dtype=np.uint8)
        # Axes over which mean and deviation are taken: observations, and with channels also pixels.
        self._axes: tuple[int, ...] = (0,)
        if standardize:
            example = np.zeros(observation_space.shape or (), observation_space.dtype)
            shape = self._scaled(th.as_tensor(example)[None]).shape[1:]
            self.register_buffer("mean", th.zeros(shape))
            self.register_buffer("scale", th.ones(shape))
            if self._is_wide:
                self.register_buffer("offset", th.zeros(shape, dtype=th.float64))

    @property
    def _is_vector(self) -> bool:
        """Whether observations are numbers of any size, and not images or one-hot."""
        return isinstance(self.space, spaces.Box) and not is_image_space(self.space)

    @property
    def _is_wide(self) -> bool:
        """
        Whether float32 cannot tell all observations apart.

        Their mean is then subtracted before they are cast to float32.
        """
        dtype = np.dtype(self.space.dtype)
        return self._is_vector and dtype.itemsize >= 4 and dtype != np.float32

    def standardize_by_channel(self) -> None:
        """
        Let :meth:`fit` standardize all pixels of a channel of images alike. Then the same thing is
        the same number in all places, as convolutions need it. Vectors, and images with at least
        36 pixels on each side, are still standardized element by element.
        """
        if is_small_image_space(self.space):
            self._axes = (0, 2, 3)

    def fit(self, observations: th.Tensor) -> None:
        """
        Standardize by these observations from now on.

        Elements that have hardly varied may vary later. A deviation therefore counts as at least
        half the median deviation of the elements that vary. The deviation of a constant element
        counts as this median. The same holds for channels, if images are standardized by channel.

        Elements of a vector may have different units. So an element of a vector that differs from
        its own median by far less than that counts as one of a smaller unit: its deviation counts
        as at least a quarter of the root mean square of these differences, where there are any.

        :param observations: the dtype of the space, shape (B, *observation_space.shape)
        """
        least: float | th.Tensor = 1e-4
        if self._is_vector:
            # Vectors may have any unit, so only rounding errors do not count as deviations.
            mean = observations.double().mean(dim=0)
            least = (1e-13 if self._is_wide else 1e-6) * mean.abs().float()
            if self._is_wide:
                self.offset.copy_(mean)
        scaled = self._scaled(observations)
        deviation = scaled.std(dim=self._axes, correction=0, keepdim=True)[0]
        if self._axes == (0,):
            varied = deviation > least
        else:
            # If few pixels of a channel ever differ, its deviation may be as small as the rounding
            # error of that of a constant channel.
            highest = scaled.amax(dim=self._axes, keepdim=True)[0]
            varied = highest > scaled.amin(dim=self._axes, keepdim=True)[0]
        typical = deviation[varied].median() if varied.any() else deviation.new_ones(())
        floor = (typical / 2).expand_as(deviation)
        if self._is_vector:
            floor = th.minimum(floor, _size_of_differences(scaled) / 4)
        self.mean.copy_(scaled.mean(dim=self._axes, keepdim=True)[0])
        self.scale.copy_(1.0 / th.where(varied, th.maximum(deviation, floor), typical))

    @th.no_grad()
    def count_distinct(self, observations: th.Tensor) -> int:
        """
        Count the observations that differ in the numbers that the network gets.

        :param observations: the dtype of the space, shape (B, *observation_space.shape)
        :return: the number of distinct observations
        """
        # Adding 0.0 turns -0.0, which is the same number, into 0.0.
        prepared = self(observations) + 0.0
        return count_distinct(prepared.cpu().numpy())

    def forward(self, observations: th.Tensor) -> th.Tensor:
        """
        Prepare observations.

        :param observations: the dtype of the space, shape (B, *observation_space.shape)
        :return: float32, shape (B, *space.shape), or one-hot rows for discrete values
        """
        scaled = self._scaled(observations)
        return (scaled - self.mean) * self.scale if self.standardize else scaled

    def _scaled(self, observations: th.Tensor) -> th.Tensor:
        """Return observations prepared in all ways but standardization."""
        if self.channels_last:
            observations = observations.permute(0, 3, 1, 2)
        if self.standardize and self._is_wide and hasattr(self, "offset"):
            observations = observations.double() - self.offset
        prepared = preprocess_obs(observations, self.space, self.normalize_images)
        assert isinstance(prepared, th.Tensor)
        return prepared


def _size_of_differences(rows: th.Tensor) -> th.Tensor:
    """
    Return by how much elements differ from their median, where they do: the root mean square.

    An element that is seldom other than its median has a small deviation, but not small
    differences. They tell its unit.

    :param rows: shape (B, *shape)
    :return: shape ``shape``, 0 for constant elements
    """
    # Some rows are enough for a median. On CUDA, torch's own is not deterministic over an axis.
    some = rows[:: max(len(rows) // _ROWS_FOR_MEDIAN, 1)]
    differences = rows - some.sort(dim=0).values[(len(some) - 1) // 2]
    n_differing = (differences != 0).sum(dim=0).clamp(min=1)
    return (differences.square().sum(dim=0) / n_differing).sqrt()


class PackedPreprocess(nn.Module):
    """
    Prepares observations of several arrays, each part as :class:`Preprocess` does.

    ``space`` is the space of the prepared parts, for SB3's ``CombinedExtractor`` or
    :class:`MultiInputExtractor`.

    :param observation_space: space of the packed observations
    :param normalize_images: whether to divide images by 255
    :param standardize: whether to standardize, once :meth:`fit` was called
    :param channels_last: whether the last axis of images holds the channels; None:
        :func:`channels_are_last` decides
    :raises ValueError: if ``channels_last`` is None and the shape of images does not tell, or torch
        allows no module to have the name of a part
    """

    def __init__(
        self,
        observation_space: PackedSpace,
        normalize_images: bool = True,
        standardize: bool = False,
        channels_last: bool | None = None,
    ) -> None:
        super().__init__()
        self.packed = observation_space
        parts: dict[str, nn.Module] = {
            name: Preprocess(part, normalize_images, standardize, channels_last)
            for name, part in observation_space.parts.items()
        }
        try:
            self.parts = nn.ModuleDict(parts)
        except KeyError as error:
            # CombinedExtractor names its modules by the parts, too.
            raise ValueError(
                "the parts of an observation must have names that torch allows modules to have: "
                f"{error.args[0]}. Rename them in a wrapper, got {list(parts)}"
            ) from error
        self.space = spaces.Dict(
            {
                name: _extractor_space(part.space)  # type: ignore[arg-type]
                for name, part in self.parts.items()
            }
        )

    def standardize_by_channel(self) -> None:
        """
        Let :meth:`fit` standardize parts that are small images by channel, as
        :meth:`Preprocess.standardize_by_channel` says.
        """
        for part in self.parts.values():
            part.standardize_by_channel()  # type: ignore[operator]

    def fit(self, observations: th.Tensor) -> None:
        """
        Standardize by these observations from now on.

        :param observations: packed observations, uint8, shape (B, size)
        """
        for name, part in self.packed.unpack_tensor(observations).items():
            self.parts[name].fit(part)  # type: ignore[operator]

    @th.no_grad()
    def count_distinct(self, observations: th.Tensor) -> int:
        """
        Count the observations that differ in the numbers that the network gets.

        :param observations: packed observations, uint8, shape (B, size)
        :return: the number of distinct observations
        """
        # Adding 0.0 turns -0.0, which is the same number, into 0.0.
        prepared = [part.flatten(1) + 0.0 for part in self(observations).values()]
        return count_distinct(th.cat(prepared, dim=1).cpu().numpy())

    def forward(self, observations: th.Tensor) -> dict[str, th.Tensor]:
        """
        Prepare observations.

        :param observations: packed observations, uint8, shape (B, size)
        :return: by its name each part, float32, shape (B, *space of the part.shape)
        """
        parts = self.packed.unpack_tensor(observations)
        return {name: self.parts[name](part) for name, part in parts.items()}


class _SmallImages(spaces.Box):
    """
    Images, channels first, that are too small for SB3's CNN. SB3 does not take them for images, so
    its ``CombinedExtractor`` flattens them.

    :param shape: shape of the images, (C, H, W)
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(0.0, 1.0, shape, np.float32)


def is_small_image_space(space: spaces.Space[Any]) -> TypeGuard[spaces.Box]:
    """
    Return whether observations are images with fewer than ``CNN_FROM`` pixels on a side.

    :param space: a space of prepared observations, so that channels of images come first
    """
    if isinstance(space, _SmallImages):
        return True
    if not isinstance(space, spaces.Box) or not is_image_space(space):
        return False
    return min(space.shape[1:]) < CNN_FROM


def _extractor_space(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """Return the space of a part as extractors shall see it: small images are marked."""
    if is_small_image_space(space):
        assert space.shape is not None
        return _SmallImages(space.shape)
    return space


def make_preprocess(
    observation_space: spaces.Space[Any],
    normalize_images: bool = True,
    standardize: bool = False,
    channels_last: bool | None = None,
) -> Preprocess | PackedPreprocess:
    """
    Return the first layer of a trunk.

    :param observation_space: space of single observations, packed or not
    :param normalize_images: whether to divide images by 255
    :param standardize: whether to standardize, once ``fit`` was called
    :param channels_last: whether the last axis of images holds the channels; None:
        :func:`channels_are_last` decides
    """
    if isinstance(observation_space, PackedSpace):
        return PackedPreprocess(observation_space, normalize_images, standardize, channels_last)
    return Preprocess(observation_space, normalize_images, standardize, channels_last)


def check_image_space(observation_space: spaces.Space[Any]) -> None:
    """
    Raise an error if observations are not images.

    :param observation_space: the observation space; its channels may be first or last
    :raises ValueError: if the space is not a uint8 Box of three axes with values 0 to 255
    """
    if not is_image_space(observation_space):
        raise ValueError(
            "CnnPolicy needs images: a uint8 Box of three axes with values 0 to 255, got"
            f' {observation_space}. Use "MlpPolicy" for vectors. A gray image needs an axis of '
            "one channel, and an image of floats needs uint8."
        )


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


class UniversalQNetwork(nn.Module):
    r"""
    A universal value function (Schaul et al. 2015): the values of all actions for any goal.

    .. math:: Q(s, \cdot, g) = W \,(A\,h(s) \odot B\,h(g)) + b

    States and goals share the trunk :math:`h`, but not the embeddings :math:`A` and :math:`B`. If
    they did, :math:`Q(s, a, g)` would equal :math:`Q(g, a, s)`. Goals that are no observations have
    a trunk of their own in place of the shared one. The values of S states for G goals cost S + G
    passes of the trunk and one matrix product.

    :param trunk: layers from observations to features, shape (B, features_dim)
    :param features_dim: number of features
    :param n_actions: A, the number of actions
    :param embedding_dim: D, width of the embeddings (1024 in the paper)
    :param goal_trunk: layers from goals to features, shape (B, goal_features_dim). None: goals are
        observations and go through ``trunk``
    :param goal_features_dim: number of features of goals. None: ``features_dim``
    :raises ValueError: if ``embedding_dim`` is not a positive whole number
    """

    def __init__(
        self,
        trunk: nn.Module,
        features_dim: int,
        n_actions: int,
        embedding_dim: int = 1024,
        goal_trunk: nn.Module | None = None,
        goal_features_dim: int | None = None,
    ) -> None:
        super().__init__()
        check_count("embedding_dim", embedding_dim)
        if goal_features_dim is None:
            goal_features_dim = features_dim
        self.trunk = trunk
        self.n_actions = n_actions
        self.state_embedding = nn.Linear(features_dim, embedding_dim)
        self.goal_embedding = nn.Linear(goal_features_dim, embedding_dim)
        self.head = nn.Linear(embedding_dim, n_actions)
        self.goal_trunk = goal_trunk

    def forward(self, observations: th.Tensor, goals: th.Tensor) -> th.Tensor:
        """
        Compute the values of all actions for observations, each with a goal of its own.

        :param observations: shape (B, *observation_space.shape)
        :param goals: the goal of each observation, shape (B, *goal_space.shape)
        :return: values, shape (B, A)
        """
        embedded_states, embedded_goals = self.embed(observations, goals)
        return self.head(embedded_states * embedded_goals)  # type: ignore[no-any-return]

    def embed(self, observations: th.Tensor, goals: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """
        Compute the embeddings of observations and goals, by one pass of the trunk if they share it.

        :param observations: shape (S, *observation_space.shape)
        :param goals: shape (G, *goal_space.shape)
        :return: embeddings of the observations and of the goals, one row each
        """
        of_states, of_goals = self._features(observations, goals)
        return self.state_embedding(of_states), self.goal_embedding(of_goals)

    def _features(self, observations: th.Tensor, goals: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """Return the features of observations and of goals, one row each."""
        if self.goal_trunk is not None:
            return self.trunk(observations), self.goal_trunk(goals)
        features = self.trunk(th.cat([observations, goals]))
        of_states, of_goals = features.split([len(observations), len(goals)])
        return of_states, of_goals

    def pairwise(self, states: th.Tensor, goals: th.Tensor) -> th.Tensor:
        """
        Compute the values of all actions for every pair of a state and a goal.

        :param states: embeddings of S states, see :meth:`embed`
        :param goals: embeddings of G goals, see :meth:`embed`
        :return: values, shape (S, G, A)
        """
        # In mixed precision, embeddings are bfloat16.
        states = states.to(self.head.weight.dtype)
        # Multiply the goals into the weights of the head: shape (G, A, D).
        weighted = goals[:, None, :] * self.head.weight
        values = functional.linear(
            states, weighted.flatten(0, 1), self.head.bias.repeat(len(goals))
        )
        return values.view(len(states), len(goals), -1)

    def pairwise_best(
        self, states: th.Tensor, goals: th.Tensor, action_mask: th.Tensor | None = None
    ) -> th.Tensor:
        """
        Compute the value of the best action of each state for every goal.

        :param states: embeddings of S states, see :meth:`embed`
        :param goals: embeddings of G goals, see :meth:`embed`
        :param action_mask: whether each action is allowed, bool, shape (S, A). None: all are
        :return: values, shape (S, G). -inf where no action is allowed
        """
        values = self.pairwise(states, goals)
        if action_mask is not None:
            values = values.masked_fill(~action_mask[:, None, :], -th.inf)
        return values.amax(dim=2)

    def pairwise_taken(self, states: th.Tensor, goals: th.Tensor, actions: th.Tensor) -> th.Tensor:
        """
        Compute the value of one action of each state for every goal.

        This takes A times less work than :meth:`pairwise`.

        :param states: embeddings of S states, see :meth:`embed`
        :param goals: embeddings of G goals, see :meth:`embed`
        :param actions: an action for each state, int64, shape (S,)
        :return: values, shape (S, G)
        """
        return functional.linear(
            goals, states * self.head.weight[actions], self.head.bias[actions]
        ).T

    def values_of_taken(
        self, observations: th.Tensor, actions: th.Tensor, goals: th.Tensor
    ) -> th.Tensor:
        """
        Compute the value of one action in each observation for every goal.

        It is :meth:`pairwise_taken` of what :meth:`embed` returns, and may take less work.

        :param observations: shape (S, *observation_space.shape)
        :param actions: an action for each observation, int64, shape (S,)
        :param goals: shape (G, *goal_space.shape)
        :return: values, shape (S, G)
        """
        return self.pairwise_taken(*self.embed(observations, goals), actions)

    @th.no_grad()
    def shift_values(self, by: float) -> None:
        """
        Add a number to all values.

        :param by: the number
        """
        self.head.bias.add_(by)


class DistanceQNetwork(UniversalQNetwork):
    r"""
    A universal value function of the distance from a state and an action to a goal.

    .. math:: Q(s, a, g) = o - c \log(1 + \lVert A_a h(s) - B h(g) \rVert^2)

    Each action has its own embedding of the state, :math:`A_a`. The scale :math:`c > 0` and the
    offset :math:`o` are learned numbers.

    :param trunk: layers from observations to features, shape (B, features_dim)
    :param features_dim: number of features
    :param n_actions: A, the number of actions
    :param embedding_dim: D, width of the embeddings
    :param goal_trunk: layers from goals to features, shape (B, goal_features_dim). None: goals are
        observations and go through ``trunk``
    :param goal_features_dim: number of features of goals. None: ``features_dim``
    :raises ValueError: if ``embedding_dim`` is not a positive whole number
    """

    def __init__(
        self,
        trunk: nn.Module,
        features_dim: int,
        n_actions: int,
        embedding_dim: int = 128,
        goal_trunk: nn.Module | None = None,
        goal_features_dim: int | None = None,
    ) -> None:
        super().__init__(
            trunk, features_dim, n_actions, embedding_dim, goal_trunk, goal_features_dim
        )
        del self.head
        self.state_embedding = nn.Linear(features_dim, n_actions * embedding_dim)
        self.log_scale = nn.Parameter(th.zeros(()))
        self.offset = nn.Parameter(th.zeros(()))

    def forward(self, observations: th.Tensor, goals: th.Tensor) -> th.Tensor:
        """
        Compute the values of all actions for observations, each with a goal of its own.

        :param observations: shape (B, *observation_space.shape)
        :param goals: the goal of each observation, shape (B, *goal_space.shape)
        :return: values, shape (B, A)
        """
        embedded_states, embedded_goals = self.embed(observations, goals)
        differences = self._points(embedded_states) - embedded_goals[:, None]
        return self._values(differences.square().sum(dim=2))

    def pairwise(self, states: th.Tensor, goals: th.Tensor) -> th.Tensor:
        """
        Compute the values of all actions for every pair of a state and a goal.

        :param states: embeddings of S states, see :meth:`embed`
        :param goals: embeddings of G goals, see :meth:`embed`
        :return: values, shape (S, G, A)
        """
        values = self._pairwise_values(self._points(states).flatten(0, 1), goals)
        return values.view(len(states), self.n_actions, len(goals)).transpose(1, 2)

    def pairwise_taken(self, states: th.Tensor, goals: th.Tensor, actions: th.Tensor) -> th.Tensor:
        """
        Compute the value of one action of each state for every goal.

        This takes A times less work than :meth:`pairwise`.

        :param states: embeddings of S states, see :meth:`embed`
        :param goals: embeddings of G goals, see :meth:`embed`
        :param actions: an action for each state, int64, shape (S,)
        :return: values, shape (S, G)
        """
        points = self._points(states)[th.arange(len(states), device=states.device), actions]
        return self._pairwise_values(points, goals)

    def pairwise_best(
        self, states: th.Tensor, goals: th.Tensor, action_mask: th.Tensor | None = None
    ) -> th.Tensor:
        """
        Compute the value of the best action of each state for every goal, that of the nearest one.

        :param states: embeddings of S states, see :meth:`embed`
        :param goals: embeddings of G goals, see :meth:`embed`
        :param action_mask: whether each action is allowed, bool, shape (S, A). None: all are
        :return: values, shape (S, G). -inf where no action is allowed
        """
        squared = _squared_distances(self._points(states).flatten(0, 1), goals, self.offset.dtype)
        squared = squared.view(len(states), self.n_actions, len(goals))
        if action_mask is not None:
            squared = squared.masked_fill(~action_mask[:, :, None], th.inf)
        return self._values(squared.amin(dim=1))

    def values_of_taken(
        self, observations: th.Tensor, actions: th.Tensor, goals: th.Tensor
    ) -> th.Tensor:
        """
        Compute the value of one action in each observation for every goal.

        Only the embeddings of these actions are computed, which is A times less work than
        :meth:`embed`.

        :param observations: shape (S, *observation_space.shape)
        :param actions: an action for each observation, int64, shape (S,)
        :param goals: shape (G, *goal_space.shape)
        :return: values, shape (S, G)
        """
        of_states, of_goals = self._features(observations, goals)
        layer = self.state_embedding
        # Splitting the weights once keeps autograd from making a full gradient for each action.
        weights = layer.weight.view(self.n_actions, -1, layer.in_features).unbind()
        biases = layer.bias.view(self.n_actions, -1).unbind()
        order = actions.argsort()
        numbers = th.bincount(actions, minlength=self.n_actions).tolist()
        rows_of_actions = th.split(of_states[order], numbers)
        points = [
            functional.linear(rows, weight, bias)
            for rows, weight, bias in zip(rows_of_actions, weights, biases, strict=True)
            if len(rows)
        ]
        ordered = th.cat(points)
        return self._pairwise_values(ordered[order.argsort()], self.goal_embedding(of_goals))

    @th.no_grad()
    def shift_values(self, by: float) -> None:
        """
        Add a number to all values.

        :param by: the number
        """
        self.offset.add_(by)

    def _points(self, states: th.Tensor) -> th.Tensor:
        """Return the embeddings of states by action, shape (S, A, D)."""
        return states.view(len(states), self.n_actions, -1)

    def _pairwise_values(self, points: th.Tensor, goals: th.Tensor) -> th.Tensor:
        """Return the values of all pairs of points, shape (L, D), and goals, shape (G, D)."""
        arguments = (points, goals, self.log_scale, self.offset)
        values: th.Tensor = _DistanceValues.apply(*arguments)  # type: ignore[no-untyped-call]
        return values

    def _values(self, squared_distances: th.Tensor) -> th.Tensor:
        """Return the values that follow from squared distances, of the same shape."""
        return self.offset - self.log_scale.exp() * squared_distances.log1p()


def _squared_distances(points: th.Tensor, goals: th.Tensor, dtype: th.dtype) -> th.Tensor:
    """
    Return the squared distances of all pairs of points, shape (L, D), and goals, shape (G, D).

    :param points: points, float32 or bfloat16
    :param goals: goals, likewise
    :param dtype: dtype of the distances
    """
    left = points.to(dtype)
    right = goals.to(dtype)
    lengths = left.square().sum(dim=1)[:, None] + right.square().sum(dim=1)
    # Rounding may make squared distances negative.
    return th.addmm(lengths, left, right.T, alpha=-2.0).clamp_(min=0.0)


class _DistanceValues(th.autograd.Function):
    """
    The values of all pairs of a point and a goal by their distance, and their gradient. Autograd
    would keep and read several tensors with a number for each pair.
    """

    @staticmethod
    def forward(
        ctx: Any, points: th.Tensor, goals: th.Tensor, log_scale: th.Tensor, offset: th.Tensor
    ) -> th.Tensor:
        """
        Compute values, shape (L, G), of points, shape (L, D), and goals, shape (G, D).

        The numbers are float32, or bfloat16 that were computed in mixed precision.
        """
        plus_one = _squared_distances(points, goals, log_scale.dtype).add_(1.0)
        logarithms = plus_one.log()
        ctx.save_for_backward(points, goals, log_scale, plus_one, logarithms)
        return offset - log_scale.exp() * logarithms

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: th.Tensor) -> tuple[th.Tensor, ...]:
        """Return the gradients with respect to all four arguments."""
        points, goals, log_scale, plus_one, logarithms = ctx.saved_tensors
        scale = log_scale.exp()
        of_log_scale = -scale * (grad_output * logarithms).sum()
        of_distances = (grad_output / plus_one).mul_(-2.0 * scale)
        of_points = of_distances.sum(dim=1)[:, None] * points
        of_goals = of_distances.sum(dim=0)[:, None] * goals
        of_distances = of_distances.to(points.dtype)
        of_points -= of_distances @ goals
        of_goals -= of_distances.T @ points
        return of_points.to(points.dtype), of_goals.to(goals.dtype), of_log_scale, grad_output.sum()
