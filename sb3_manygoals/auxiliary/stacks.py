"""Observations as stacks of frames, of which the next one has all but the oldest."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray


class FrameStacks:
    """
    :param shape: of an observation
    :param n_stack: how many frames it consists of, the newest last; 1: it is one frame
    :param axis: along which they are stacked, 0 (as images of a learner are, which have their channels first) or -1
    :raises ValueError: if ``n_stack`` is no positive whole number, or the axis cannot be cut into so many frames
    """

    def __init__(self, shape: tuple[int, ...], n_stack: int, axis: Literal[0, -1]) -> None:
        if not isinstance(n_stack, (int, np.integer)) or isinstance(n_stack, bool) or n_stack < 1:
            raise ValueError(f"n_stack must be a whole number, at least 1, got {n_stack!r}")
        if axis not in (0, -1):
            raise ValueError(f"stack_axis must be 0 or -1, got {axis!r}")
        if n_stack > 1 and (shape == () or shape[axis] % n_stack):
            raise ValueError(f"n_stack must divide axis {axis} of observations of shape {shape}, got {n_stack}")
        self.shape = shape
        self.n_stack = int(n_stack)
        self.axis: int = axis
        frame_shape = list(shape)
        if n_stack > 1:
            frame_shape[axis] //= self.n_stack
        self.frame_shape = tuple(frame_shape)

    def split(self, observations: NDArray[Any]) -> NDArray[Any]:
        """
        :param observations: shape (n, *shape)
        :return: their frames, oldest first, a view where possible, shape (n, n_stack, *frame_shape)
        """
        if self.n_stack == 1:
            return observations[:, None]
        axis = self.axis % len(self.shape) + 1
        shape = observations.shape
        parts = observations.reshape(*shape[:axis], self.n_stack, shape[axis] // self.n_stack, *shape[axis + 1 :])
        return np.moveaxis(parts, axis, 1)

    def join(self, frames: NDArray[Any]) -> NDArray[Any]:
        """
        :param frames: shape (n, n_stack, *frame_shape)
        :return: the observations, shape (n, *shape)
        """
        if self.n_stack > 1:
            frames = np.moveaxis(frames, 1, self.axis % len(self.shape) + 1)
        return frames.reshape(len(frames), *self.shape)

    def newest(self, observations: NDArray[Any]) -> NDArray[Any]:
        """
        :param observations: shape (..., *shape)
        :return: the newest frame of each, a view of shape (..., *frame_shape)
        """
        if self.n_stack == 1:
            return observations
        axis = observations.ndim - len(self.shape) + self.axis % len(self.shape)
        return observations[(*(slice(None),) * axis, slice(-self.frame_shape[self.axis], None))]

    def check_follows(self, before: NDArray[Any], after: NDArray[Any], env: int) -> None:
        """
        :param before: an observation
        :param after: the one that follows it
        :param env: index of the environment, for the message
        :raises ValueError: if the second does not begin with the newest frames of the first
        """
        older, newer = self.split(before[None])[0], self.split(after[None])[0]
        if older[1:].tobytes() != newer[:-1].tobytes():
            raise ValueError(
                f"n_stack={self.n_stack} along axis {self.axis}, but an observation of environment {env} does not begin with "
                "the newest frames of the one before"
            )
