"""Which observations are images, and where their channels are."""

from typing import Any, TypeGuard

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space

CNN_FROM = 36
"""Images with at least so many pixels on each side go through ``ATARI_LAYERS`` by default."""


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


def extractor_space(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """
    Return a space as extractors shall see it: small images are marked.

    :param space: the space of a prepared part of observations
    :return: the space, or one of the same shape that is marked
    """
    if is_small_image_space(space):
        assert space.shape is not None
        return _SmallImages(space.shape)
    return space


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
