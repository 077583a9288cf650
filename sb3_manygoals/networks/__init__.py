"""Networks: observations to features, and universal value functions on top of them."""

from sb3_manygoals.networks.extractors import (
    ATARI_LAYERS,
    MASTERY_LAYERS,
    MultiInputExtractor,
    PaddedCNN,
    SmallImageCNN,
    make_trunk,
)
from sb3_manygoals.networks.images import (
    CNN_FROM,
    channels_are_last,
    check_image_space,
    is_small_image_space,
)
from sb3_manygoals.networks.preprocess import (
    PackedPreprocess,
    Preprocess,
    count_distinct,
    make_preprocess,
)
from sb3_manygoals.networks.q_networks import DistanceQNetwork, UniversalQNetwork

__all__ = [
    "ATARI_LAYERS",
    "CNN_FROM",
    "MASTERY_LAYERS",
    "DistanceQNetwork",
    "MultiInputExtractor",
    "PackedPreprocess",
    "PaddedCNN",
    "Preprocess",
    "SmallImageCNN",
    "UniversalQNetwork",
    "channels_are_last",
    "check_image_space",
    "count_distinct",
    "is_small_image_space",
    "make_preprocess",
    "make_trunk",
]
