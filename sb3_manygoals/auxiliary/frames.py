"""Where the frames of an episode buffer are kept: as they came, in arrays. Another store of the same methods can compress."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

_BLOCK_BYTES = 2**22
"""About how many bytes are taken at a time."""


class FrameStorage(Protocol):
    """Keeps arrays of one shape and dtype under ids."""

    @property
    def nbytes(self) -> int:
        """Bytes taken."""

    def append(self, frames: NDArray[Any], streams: Sequence[int]) -> NDArray[np.int64]:
        """
        :param frames: shape (n, *shape)
        :param streams: numbers of the sequences that they go on with, shape (n,): frames of one follow each other, look alike,
            and are mostly freed together
        :return: the id of each, shape (n,) int64, from which on nobody else has it until it is freed
        """

    def get(self, ids: NDArray[np.int64]) -> NDArray[Any]:
        """
        :param ids: of frames that are kept, any number of times each, shape (n,)
        :return: copies of the frames, shape (n, *shape)
        """

    def free(self, ids: NDArray[np.int64]) -> None:
        """:param ids: of frames that are wanted no more, each once, shape (n,)"""

    def get_checkpoint_state(self) -> Any:
        """:return: a plain tree, whose arrays may be the store's own: to be written at once"""

    def set_checkpoint_state(self, state: Any) -> None:
        """:param state: of :meth:`get_checkpoint_state`; the frames have the same ids as there"""


class ArrayFrames:
    """
    Frames in blocks of arrays, uncompressed. Room of freed frames is used again, and never given back.

    :param shape: of a frame
    :param dtype: of its elements
    """

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        self.shape = tuple(shape)
        self.dtype = np.dtype(dtype)
        self._per_block = max(1, _BLOCK_BYTES // max(1, math.prod(self.shape) * self.dtype.itemsize))
        self._blocks: list[NDArray[Any]] = []
        self._free: list[int] = []
        self._used = 0  # ids below this have been given out at least once

    @property
    def nbytes(self) -> int:
        """Bytes taken, also for frames to come."""
        return sum(block.nbytes for block in self._blocks)

    def append(self, frames: NDArray[Any], streams: Sequence[int] | None = None) -> NDArray[np.int64]:
        """
        :param frames: shape (n, *shape), the dtype of the store
        :param streams: makes no difference here
        :return: their ids, shape (n,) int64
        :raises ValueError: if shape or dtype are others
        """
        if frames.shape[1:] != self.shape or frames.ndim != len(self.shape) + 1 or frames.dtype != self.dtype:
            raise ValueError(
                f"frames must have shape (n, *{self.shape}) and dtype {self.dtype}, got {frames.shape} and {frames.dtype}"
            )
        again = [self._free.pop() for _ in range(min(len(frames), len(self._free)))]
        new = len(frames) - len(again)
        ids = np.array([*again, *range(self._used, self._used + new)], dtype=np.int64)
        self._used += new
        self._make_room()
        for frame, place in zip(frames, ids.tolist(), strict=True):
            self._blocks[place // self._per_block][place % self._per_block] = frame
        return ids

    def get(self, ids: NDArray[np.int64]) -> NDArray[Any]:
        """
        :param ids: shape (n,)
        :return: copies, shape (n, *shape)
        """
        frames = np.empty((len(ids), *self.shape), self.dtype)
        for row, place in enumerate(ids.tolist()):
            frames[row] = self._blocks[place // self._per_block][place % self._per_block]
        return frames

    def free(self, ids: NDArray[np.int64]) -> None:
        """:param ids: shape (n,)"""
        self._free.extend(ids.tolist())

    def get_checkpoint_state(self) -> dict[str, Any]:
        """:return: a plain tree; of its arrays some are the store's own"""
        return {"shape": self.shape, "dtype": self.dtype.str, "used": self._used, "free": self._free, "blocks": self._blocks}

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        :param state: of :meth:`get_checkpoint_state`
        :raises ValueError: if it is of a store for other frames
        """
        if (tuple(state["shape"]), state["dtype"]) != (self.shape, self.dtype.str):
            raise ValueError(
                f"the state is of a store of frames of shape {tuple(state['shape'])} and dtype {state['dtype']}, this one is "
                f"of {self.shape} and {self.dtype.str}"
            )
        self._blocks = [block.copy() for block in state["blocks"]]
        self._free = list(state["free"])
        self._used = state["used"]

    def _make_room(self) -> None:
        while len(self._blocks) * self._per_block < self._used:
            self._blocks.append(np.zeros((self._per_block, *self.shape), self.dtype))
