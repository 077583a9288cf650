"""Frames kept compressed, a few in a row together. Needs the extra ``atari``."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sb3_manygoals.checkpoint.tree import CheckpointError

_OVERHEAD = sys.getsizeof(b"") + sys.getsizeof(2**30)
"""Bytes of an object of bytes besides its content, and of its number."""


class FrameStore:
    """
    Arrays of one shape and dtype under ids, losslessly compressed by LZ4.

    A frame of a game differs little from the one before, so a few that follow each other are compressed as one block; they
    are decompressed together too, once in each :meth:`get`. Frames of several environments come in turns: say which follow
    which by ``streams``. Those whose block is not full are held as they are, fewer than a block for each stream.

    A block's memory is given back when all its frames are freed. So streams should be such that what is appended to one in a
    row is freed together, such as an episode.

    :param shape: of a frame
    :param dtype: of its elements
    :param together: frames of a block: the more there are, the less room each takes, and the longer it takes to get one;
        ``python -m benchmarks throughput --atari`` measures both
    :raises ValueError: if there is to be no frame in a block
    :raises ImportError: if lz4 is not installed
    """

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike = np.uint8, together: int = 8) -> None:
        if together < 1:
            raise ValueError(f"together must be at least 1, got {together}")
        try:
            import lz4.block
        except ImportError as error:
            raise ImportError('a FrameStore needs lz4: pip install "sb3-manygoals[atari]"') from error
        self.shape = tuple(shape)
        self.dtype = np.dtype(dtype)
        self.together = together
        self._compress, self._decompress = lz4.block.compress, lz4.block.decompress
        self._block_bytes = self.together * math.prod(self.shape) * self.dtype.itemsize
        # A frame's id is the number of its block times `together`, plus its row there.
        self._blocks = 0
        self._packed: dict[int, bytes] = {}
        self._packed_bytes = 0
        self._open: dict[int, NDArray[Any]] = {}
        """Blocks that are not full, by number; full ones are in ``_packed``."""
        self._last: dict[int, tuple[int, int]] = {}
        """Of each stream with an open block: its number, and how many frames it has."""
        self._alive: dict[int, int] = {}
        """Which rows of a block hold frames that were not freed, as bits."""

    def __len__(self) -> int:
        return sum(rows.bit_count() for rows in self._alive.values())

    @property
    def nbytes(self) -> int:
        """Bytes taken: compressed frames, those that wait to be, and what Python needs to keep them."""
        tables = sum(sys.getsizeof(table) for table in (self._packed, self._open, self._last, self._alive))
        return self._packed_bytes + len(self._packed) * _OVERHEAD + len(self._open) * self._block_bytes + tables

    def append(self, frames: NDArray[Any], streams: Sequence[int] | None = None) -> NDArray[np.int64]:
        """
        :param frames: shape (n, *shape), the dtype of the store
        :param streams: which sequence each goes on with, any n integers, such as the numbers of environments; None: one and
            the same, 0
        :return: the id of each, shape (n,) int64; never given again
        :raises ValueError: if shape or dtype are others, or the number of streams
        """
        if frames.ndim != len(self.shape) + 1 or frames.shape[1:] != self.shape or frames.dtype != self.dtype:
            raise ValueError(
                f"frames must have shape (n, *{self.shape}) and dtype {self.dtype}, got {frames.shape} and {frames.dtype}"
            )
        if streams is None:
            streams = [0] * len(frames)
        if len(streams) != len(frames):
            raise ValueError(f"there must be one stream for each of the {len(frames)} frames, got {len(streams)}")
        ids = np.empty(len(frames), dtype=np.int64)
        for index, (frame, stream) in enumerate(zip(frames, streams, strict=True)):
            if stream not in self._last:
                self._last[stream] = (self._blocks, 0)
                self._open[self._blocks] = np.zeros((self.together, *self.shape), self.dtype)
                self._alive[self._blocks] = 0
                self._blocks += 1
            number, row = self._last[stream]
            self._open[number][row] = frame
            self._alive[number] |= 1 << row
            ids[index] = number * self.together + row
            self._last[stream] = (number, row + 1)
            if row + 1 == self.together:
                self._pack(stream)
        return ids

    def get(self, ids: NDArray[np.int64]) -> NDArray[Any]:
        """
        :param ids: of frames that were not freed, any number of times each, shape (n,)
        :return: copies of the frames, shape (n, *shape)
        :raises IndexError: if there is no such frame
        """
        numbers, rows = np.divmod(np.asarray(ids, dtype=np.int64), self.together)
        frames = np.empty((len(numbers), *self.shape), self.dtype)
        for number, where in _groups(numbers):
            self._check_alive(number, rows[where])
            block = self._open.get(number)
            if block is None:
                unpacked = self._decompress(self._packed[number], uncompressed_size=self._block_bytes)
                block = np.frombuffer(unpacked, self.dtype).reshape(self.together, *self.shape)
            frames[where] = block[rows[where]]
        return frames

    def free(self, ids: NDArray[np.int64]) -> None:
        """
        :param ids: of frames that are wanted no more, each once, shape (n,)
        :raises IndexError: if there is no such frame, or it comes twice; then nothing is freed
        """
        numbers, rows = np.divmod(np.asarray(ids, dtype=np.int64), self.together)
        groups = _groups(numbers)
        for number, where in groups:
            self._check_alive(number, rows[where])
            if len(set(rows[where].tolist())) < len(where):
                given = sorted(np.asarray(ids)[where].tolist())
                raise IndexError(f"ids of frames to free must be given once each, got {given}")
        for number, where in groups:
            for row in rows[where].tolist():
                self._alive[number] &= ~(1 << row)
                if number in self._open:
                    self._open[number][row] = 0  # compresses to nothing
            if self._alive[number] == 0 and number in self._packed:
                self._packed_bytes -= len(self._packed.pop(number))
                del self._alive[number]

    def get_checkpoint_state(self) -> dict[str, Any]:
        """:return: a plain tree of copies, in few arrays"""
        numbers = list(self._packed)
        packed = b"".join(self._packed.values())
        streams = list(self._last)
        opened = [self._last[stream] for stream in streams]
        shape = (len(streams), self.together, *self.shape)
        return {
            "shape": list(self.shape),
            "dtype": self.dtype.str,
            "together": self.together,
            "blocks": self._blocks,
            "numbers": np.array(numbers, dtype=np.int64),
            "alive": np.array([self._alive[number] for number in numbers], dtype=np.int64),
            "lengths": np.array([len(block) for block in self._packed.values()], dtype=np.int64),
            "packed": np.frombuffer(packed, dtype=np.uint8),
            "streams": np.array(streams, dtype=np.int64),
            "open_numbers": np.array([number for number, _ in opened], dtype=np.int64),
            "open_rows": np.array([rows for _, rows in opened], dtype=np.int64),
            "open_alive": np.array([self._alive[number] for number, _ in opened], dtype=np.int64),
            "open": np.array([self._open[number] for number, _ in opened], dtype=self.dtype).reshape(shape),
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        :param state: of :meth:`get_checkpoint_state`; the frames have the ids that they had
        :raises CheckpointError: if it is of a store for other frames, or other blocks of them
        """
        saved = (tuple(state["shape"]), state["dtype"], state["together"])
        if saved != (self.shape, self.dtype.str, self.together):
            raise CheckpointError(
                f"the frames were saved with shape {saved[0]} and dtype {saved[1]}, {saved[2]} together, this store is for "
                f"{self.shape} and {self.dtype.str}, {self.together} together"
            )
        self._blocks = state["blocks"]
        numbers, lengths = state["numbers"].tolist(), state["lengths"]
        packed = memoryview(state["packed"])
        ends = np.cumsum(lengths)
        places = zip((ends - lengths).tolist(), ends.tolist(), strict=True)
        self._packed = {number: bytes(packed[begin:end]) for number, (begin, end) in zip(numbers, places, strict=True)}
        self._packed_bytes = len(packed)
        self._alive = dict(zip(numbers, state["alive"].tolist(), strict=True))
        opened = state["open_numbers"].tolist()
        self._alive.update(zip(opened, state["open_alive"].tolist(), strict=True))
        self._open = {number: block.copy() for number, block in zip(opened, state["open"], strict=True)}
        self._last = dict(zip(state["streams"].tolist(), zip(opened, state["open_rows"].tolist(), strict=True), strict=True))

    def _pack(self, stream: int) -> None:
        """Compress a stream's block, which is full, unless all of it has been freed already."""
        number, _ = self._last.pop(stream)
        block = self._open.pop(number)
        if self._alive[number] == 0:
            del self._alive[number]
            return
        packed = self._compress(block, store_size=False)
        self._packed[number] = packed
        self._packed_bytes += len(packed)

    def _check_alive(self, number: int, rows: NDArray[np.int64]) -> None:
        alive = self._alive.get(number, 0)
        for row in rows.tolist():
            if not alive >> row & 1:
                raise IndexError(f"there is no frame with the id {number * self.together + row}")


def _groups(numbers: NDArray[np.int64]) -> list[tuple[int, NDArray[np.intp]]]:
    """:return: each number that there is, and where"""
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    begins = np.flatnonzero(np.diff(ordered)) + 1
    return [(int(numbers[where[0]]), where) for where in np.split(order, begins) if len(where)]
