"""Observations kept as frames, each of which is kept once: for episode buffers and replay memories."""

import math
import sys
from collections.abc import Iterable
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_manygoals.checkpoint.tree import check_same
from sb3_manygoals.validation import check_count

try:
    import lz4.block as lz4_block
except ImportError:
    lz4_block = None

Frames = NDArray[np.object_]
"""An array of bytes objects, one a frame. Arrays may share them: Python frees a frame with the last that has it."""


class FrameStore:
    """
    Cuts observations of one shape and dtype, which are stacks of frames, into :data:`Frames`, and joins them again.

    A frame is looked up by its bytes in the previous observation of the same stream. One that is not found is kept as a new
    one, so what comes out is what was put in. Zeros, with which many stacks begin, are always found.

    With ``compress``, each frame is compressed by LZ4 without loss, with the first frame as its dictionary, so that frames of
    a game that differ little take little.

    :param shape: of an observation, ``dtype`` of its elements
    :param n_stack: frames in an observation along its first axis (images with channels first), the newest last
    :param compress: whether to compress frames; needs lz4
    :raises ValueError: if observations cannot be cut into that many frames
    :raises ImportError: if lz4 is needed and not installed
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: Any, n_stack: int = 1, compress: bool = False
    ) -> None:
        check_count("n_stack", n_stack)
        if n_stack > 1 and (shape == () or shape[0] % n_stack):
            raise ValueError(
                f"n_stack must divide the first axis of observations of shape {shape}, got {n_stack}"
            )
        of_channels = (n_stack, 3 * n_stack)  # axes of gray or coloured pictures
        if (
            n_stack > 1
            and len(shape) == 3
            and shape[0] not in of_channels
            and shape[-1] in of_channels
        ):
            advice = "stack channels that come first, by SB3's VecTransposeImage, or take n_stack=1"
            raise ValueError(
                f"frames must be stacked along the first axis, got observations of shape {shape}: {advice}"
            )
        if compress and lz4_block is None:
            raise ImportError('compressed frames need lz4: pip install "sb3-manygoals[atari]"')
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        self.n_stack, self.compress = int(n_stack), compress
        self.frame_shape = (shape[0] // n_stack, *shape[1:]) if n_stack > 1 else self.shape
        self._zeros = bytes(math.prod(self.frame_shape) * self.dtype.itemsize)
        self._first = b""  # the first frame that is not blank
        self.blank = self._pack(self._zeros)
        self._latest: dict[
            int, dict[bytes, bytes]
        ] = {}  # by content, the frames of the latest observation of each stream

    def put(self, observations: NDArray[Any], streams: Iterable[int] | None = None) -> Frames:
        """
        Take in the next observation of some streams.

        :param observations: shape (n, *shape), the dtype of the store
        :param streams: the number of each one's stream, such as its environment, n different ones; None: 0 to n - 1
        :return: their frames, shape (n, n_stack)
        :raises ValueError: if shape or dtype differ from the store's
        """
        shape, dtype = observations.shape, observations.dtype
        if (shape, dtype) != ((*shape[:1], *self.shape), self.dtype):
            expected = f"shape (n, *{self.shape}) and dtype {self.dtype}"
            raise ValueError(f"observations must have {expected}, got {shape} and {dtype}")
        frames = np.empty((len(observations), self.n_stack), object)
        streams = range(len(observations)) if streams is None else streams
        for row, (stack, stream) in enumerate(zip(self.split(observations), streams, strict=True)):
            known, latest = (
                {self._zeros: self.blank, **self._latest.get(stream, {})},
                dict[bytes, bytes](),
            )
            for depth, frame in enumerate(stack):
                content = frame.tobytes()
                if content not in latest:
                    latest[content] = known[content] if content in known else self._pack(content)
                frames[row, depth] = latest[content]
            self._latest[stream] = latest
        return frames

    def get(self, frames: Frames) -> NDArray[Any]:
        """
        :param frames: of observations, shape (*batch, n_stack)
        :return: copies of the observations, shape (*batch, *shape)
        """
        contents = frames.reshape(-1).tolist()
        if self.compress:
            unpacked = {frame: self._unpack(frame) for frame in set(contents)}
            contents = [unpacked[frame] for frame in contents]
        return np.ndarray((*frames.shape[:-1], *self.shape), self.dtype, bytearray().join(contents))

    def split(self, observations: NDArray[Any]) -> NDArray[Any]:
        """
        :param observations: shape (*batch, *shape)
        :return: their frames as arrays, oldest first, a view of shape (*batch, n_stack, *frame_shape)
        """
        batch = observations.shape[: observations.ndim - len(self.shape)]
        return observations.reshape(*batch, self.n_stack, *self.frame_shape)

    def get_checkpoint_state(self, *arrays: Frames) -> dict[str, Any]:
        """:return: a plain tree of these arrays of frames and what the store needs to go on, with each frame once"""
        latest = {
            stream: np.array(list(frames.values()), object)
            for stream, frames in self._latest.items()
        }
        frames = dict.fromkeys(
            chain([self.blank], *(array.flat for array in (*arrays, *latest.values())))
        )
        number = {frame: index for index, frame in enumerate(frames)}

        def numbers(array: Frames) -> NDArray[np.int32]:
            return np.fromiter(map(number.__getitem__, array.flat), np.int32, array.size).reshape(
                array.shape
            )

        return {
            "built": self._built(),
            "first": np.frombuffer(self._first, np.uint8),
            "frames": np.frombuffer(bytearray().join(frames), np.uint8),
            "ends": np.cumsum([len(frame) for frame in frames], dtype=np.int64),
            "latest": {stream: numbers(array) for stream, array in latest.items()},
            "arrays": [numbers(array) for array in arrays],
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> list[Frames]:
        """
        :param state: of :meth:`get_checkpoint_state`
        :return: its arrays
        :raises CheckpointError: if it is of a store that was built in another way; nothing has changed then
        """
        check_same("frames", state["built"], self._built())
        frames = np.array(
            [part.tobytes() for part in np.split(state["frames"], state["ends"][:-1])], object
        )
        self._first, self.blank = state["first"].tobytes(), frames[0]
        self._latest = {
            stream: {self._unpack(frame): frame for frame in frames[numbers].tolist()}
            for stream, numbers in state["latest"].items()
        }
        return [frames[numbers] for numbers in state["arrays"]]

    def _built(self) -> dict[str, Any]:
        return {
            "shape": list(self.shape),
            "dtype": self.dtype.str,
            "n_stack": self.n_stack,
            "compress": self.compress,
        }

    def _pack(self, content: bytes) -> bytes:
        if not self.compress:
            return content
        if content != self._zeros:
            self._first = self._first or content
        return bytes(lz4_block.compress(content, store_size=False, dict=self._first))

    def _unpack(self, frame: bytes) -> bytes:
        if not self.compress:
            return frame
        return bytes(
            lz4_block.decompress(frame, uncompressed_size=len(self._zeros), dict=self._first)
        )


class FrameArray:
    """
    An array of observations, shape (rows, n_envs, *shape), kept as frames. An index gives copies; a row is set to what the
    environments show next, shape (n_envs, *shape).

    :param store: that cuts and joins them; those of each environment are a stream
    """

    def __init__(self, store: FrameStore, rows: int, n_envs: int) -> None:
        self.store, self.dtype = store, store.dtype
        self.frames: Frames = np.empty((rows, n_envs, store.n_stack), object)
        self.frames.fill(store.blank)

    def __getitem__(self, index: Any) -> NDArray[Any]:
        return self.store.get(self.frames[index])

    def keep_rows(self, kept: NDArray[np.integer[Any]], rows: int) -> None:
        """
        Keep some rows only, as the first ones of a smaller array.

        :param kept: the rows to keep, in their new order, shape (n,) with n at most ``rows``
        :param rows: of the smaller array
        """
        frames: Frames = np.empty((rows, *self.frames.shape[1:]), object)
        frames.fill(self.store.blank)
        frames[: len(kept)] = self.frames[kept]
        self.frames = frames

    def __setitem__(self, row: int, observations: NDArray[Any]) -> None:
        self.frames[row] = self.store.put(np.asarray(observations, self.dtype))


def frame_bytes(rows: int, n_envs: int, shape: tuple[int, ...], dtype: Any, n_stack: int) -> int:
    """
    :param rows: transitions, of all environments together
    :param shape: of an observation, ``dtype`` of its elements
    :param n_stack: frames in an observation
    :return: bytes of the observations and next observations of a replay memory, if no episode starts in it. A start adds a
        frame, or up to ``n_stack``
    """
    frame: int = sys.getsizeof(b"") + math.prod(shape) * np.dtype(dtype).itemsize // check_count(
        "n_stack", n_stack
    )
    return (
        1 + n_envs * n_stack + rows
    ) * frame + 2 * rows * n_stack * 8  # and the references to them
