"""A goal in the picture of the world that pursues it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

GAP = 20
"""World and goal are about one in this many of the frame's height apart: an even number, as video encoders want widths."""
GAP_COLOUR = (238, 238, 238)


def goal_picture(env: gym.Env[Any, Any], goal: NDArray[Any]) -> NDArray[np.uint8] | None:
    """
    What a goal looks like. If the environment, or a wrapper of it, has a method ``render_observation(observation)`` that
    returns an RGB frame, and no wrapper around that changes the observation space, it is asked; else the goal is its own
    picture.

    :param env: the environment that the goal is an observation of
    :param goal: the goal
    :return: an RGB picture, (H, W, 3) uint8, of any size; None if the goal is no image
    """
    layer = env
    while layer.observation_space == env.observation_space:
        render_observation = getattr(layer, "render_observation", None)
        if render_observation is not None:
            return np.asarray(render_observation(goal))
        if not isinstance(layer, gym.Wrapper):
            break
        layer = layer.env
    return as_rgb(env.observation_space, goal)


def as_rgb(space: spaces.Space[Any], observation: NDArray[Any]) -> NDArray[np.uint8] | None:
    """
    An observation as a picture. Images are uint8 boxes from 0 to 255 of shape (H, W), (H, W, C) or (C, H, W). With 3 channels
    they are in colour, else grey: of a stack of grey frames, the last is taken.

    :param space: the observation space
    :param observation: an observation
    :return: (H, W, 3) uint8, or None if it is no image
    """
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or len(space.shape) not in (2, 3):
        return None
    if (space.low != 0).any() or (space.high != 255).any():
        return None
    image = observation[:, :, None] if observation.ndim == 2 else observation
    if image.shape[2] not in (1, 3) and image.shape[0] == min(image.shape):  # channels first
        image = np.moveaxis(image, 0, 2)
    return image if image.shape[2] == 3 else image[:, :, -1:].repeat(3, axis=2)


def beside(frame: NDArray[np.uint8], picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """
    :param frame: (H, W, 3) uint8
    :param picture: (h, w, 3) uint8, enlarged or shrunk to the height of the frame by taking the nearest pixels
    :return: a new array: the frame on the left, the picture on the right, (H, about W + H/20 + w H/h, 3) uint8
    """
    height = frame.shape[0]
    width = max(1, round(picture.shape[1] * height / picture.shape[0]))
    rows = np.arange(height) * picture.shape[0] // height
    columns = np.arange(width) * picture.shape[1] // width
    gap = np.full((height, 2 * max(1, height // (2 * GAP)), 3), GAP_COLOUR, np.uint8)
    return np.concatenate([frame, gap, picture[rows[:, None], columns]], axis=1)
