"""The first layer of a network: observations become numbers of like size."""

import copy
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.preprocessing import is_image_space, preprocess_obs
from torch import nn

from sb3_manygoals.networks.images import (
    channels_are_last,
    extractor_space,
    is_small_image_space,
)
from sb3_manygoals.packing import PackedSpace

# About so many rows tell the median of an element.
_ROWS_FOR_MEDIAN = 1_000


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

    @property
    def is_fitted(self) -> bool:
        """Whether observations are standardized, by those of :meth:`fit` or by loaded numbers."""
        if not self.standardize:
            return False
        return bool((self.mean != 0.0).any() or (self.scale != 1.0).any())

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
                name: extractor_space(part.space)  # type: ignore[arg-type]
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

    @property
    def is_fitted(self) -> bool:
        """Whether a part is standardized, by observations of :meth:`fit` or by loaded numbers."""
        return any(part.is_fitted for part in self.parts.values())

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
