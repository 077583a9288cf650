"""Observations kept as frames, each kept once, for episode buffers and replay memories."""

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
"""
An array of bytes objects, one for each frame. Arrays may share them: Python frees a frame when the
last array that holds it is freed.
"""


class FrameStore:
    """
    Cuts observations of one shape and dtype, which are stacks of frames, into :data:`Frames`, and
    joins them again.

    A frame is looked up by its bytes in the previous observation of the same stream. A frame that
    is not found is kept as a new one, so the store returns exactly what was put in. Zeros, with
    which many stacks begin, are always found.

    With ``compress``, each frame is compressed by LZ4 without loss. The first frame serves as its
    dictionary, so frames of a game that differ little take little memory.

    :param shape: shape of an observation
    :param dtype: dtype of an observation
    :param n_stack: number of frames in an observation along its first axis (images with channels
        first), the newest last; 1 keeps an observation as one frame
    :param compress: whether to compress frames; needs lz4
    :raises ValueError: if observations cannot be cut into that many frames
    :raises ImportError: if lz4 is needed and not installed
    :ivar frame_shape: shape of a frame
    :ivar blank: the frame of zeros, bytes
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: Any, n_stack: int = 1, compress: bool = False
    ) -> None:
        check_count("n_stack", n_stack)
        if n_stack > 1:
            _check_stack(shape, n_stack)
        if compress and lz4_block is None:
            raise ImportError('compressed frames need lz4: pip install "sb3-manygoals[atari]"')
        self.shape = tuple(shape)
        self.dtype = np.dtype(dtype)
        self.n_stack = int(n_stack)
        self.compress = compress
        self.frame_shape = (shape[0] // n_stack, *shape[1:]) if n_stack > 1 else self.shape
        self._zeros = bytes(math.prod(self.frame_shape) * self.dtype.itemsize)
        # The first frame that is not blank, the dictionary of the compression.
        self._first = b""
        self.blank = self._pack(self._zeros)
        # For each stream, the frames of its latest observation by their content.
        self._latest: dict[int, dict[bytes, bytes]] = {}

    def put(self, observations: NDArray[Any], streams: Iterable[int] | None = None) -> Frames:
        """
        Take in the next observation of some streams.

        :param observations: n observations, shape (n, *shape), the dtype of the store
        :param streams: for each observation the number of its stream, such as its environment; n
            different numbers; None: 0 to n - 1
        :return: the frames of the observations, shape (n, n_stack)
        :raises ValueError: if shape or dtype differ from the store's
        """
        expected_shape = (*observations.shape[:1], *self.shape)
        if observations.shape != expected_shape or observations.dtype != self.dtype:
            raise ValueError(
                f"observations must have shape (n, *{self.shape}) and dtype {self.dtype}, got "
                f"{observations.shape} and {observations.dtype}"
            )
        frames = np.empty((len(observations), self.n_stack), object)
        streams = range(len(observations)) if streams is None else streams
        for row, (stack, stream) in enumerate(zip(self.split(observations), streams, strict=True)):
            known = {self._zeros: self.blank, **self._latest.get(stream, {})}
            latest: dict[bytes, bytes] = {}
            for depth, frame in enumerate(stack):
                content = frame.tobytes()
                if content not in latest:
                    latest[content] = known[content] if content in known else self._pack(content)
                frames[row, depth] = latest[content]
            self._latest[stream] = latest
        return frames

    def get(self, frames: Frames) -> NDArray[Any]:
        """
        Join frames to observations.

        :param frames: frames of observations, shape (*batch, n_stack)
        :return: copies of the observations, shape (*batch, *shape)
        """
        contents = frames.reshape(-1).tolist()
        if self.compress:
            unpacked = {frame: self._unpack(frame) for frame in set(contents)}
            contents = [unpacked[frame] for frame in contents]
        return np.ndarray((*frames.shape[:-1], *self.shape), self.dtype, bytearray().join(contents))

    def split(self, observations: NDArray[Any]) -> NDArray[Any]:
        """
        Cut observations into frames, as arrays.

        :param observations: shape (*batch, *shape)
        :return: their frames, oldest first, a view of shape (*batch, n_stack, *frame_shape)
        """
        batch = observations.shape[: observations.ndim - len(self.shape)]
        return observations.reshape(*batch, self.n_stack, *self.frame_shape)

    def get_checkpoint_state(self, *arrays: Frames) -> dict[str, Any]:
        """
        Return arrays of frames, and what the store needs to continue, with each frame once.

        :param arrays: arrays of this store's frames, of any shapes
        :return: a tree of plain data and arrays for :meth:`set_checkpoint_state`
        """
        latest = {
            stream: np.array(list(frames.values()), object)
            for stream, frames in self._latest.items()
        }
        # A dict keeps the order of the frames, which a set would not.
        frames = dict.fromkeys(
            chain([self.blank], *(array.flat for array in (*arrays, *latest.values())))
        )
        number_of_frame = {frame: number for number, frame in enumerate(frames)}

        def numbers(array: Frames) -> NDArray[np.int32]:
            found = (number_of_frame[frame] for frame in array.flat)
            return np.fromiter(found, np.int32, array.size).reshape(array.shape)

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
        Continue from a saved state.

        :param state: what :meth:`get_checkpoint_state` returned
        :return: the arrays of frames that were given to it
        :raises CheckpointError: if the state is of a store that was built in another way; nothing
            has changed then
        """
        check_same("frames", state["built"], self._built())
        parts = np.split(state["frames"], state["ends"][:-1])
        frames = np.array([part.tobytes() for part in parts], object)
        self._first = state["first"].tobytes()
        self.blank = frames[0]
        self._latest = {
            stream: {self._unpack(frame): frame for frame in frames[numbers].tolist()}
            for stream, numbers in state["latest"].items()
        }
        return [frames[numbers] for numbers in state["arrays"]]

    def _built(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {
            "shape": list(self.shape),
            "dtype": self.dtype.str,
            "n_stack": self.n_stack,
            "compress": self.compress,
        }

    def _pack(self, content: bytes) -> bytes:
        """Return the frame with this content, compressed or not."""
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


def _check_stack(shape: tuple[int, ...], n_stack: int) -> None:
    """Raise a ValueError if observations of this shape are not stacked along the first axis."""
    if shape == () or shape[0] % n_stack:
        raise ValueError(
            f"n_stack must divide the first axis of observations of shape {shape}, got {n_stack}"
        )
    # A stack of gray or coloured pictures has this many channels.
    n_channels = (n_stack, 3 * n_stack)
    if len(shape) == 3 and shape[0] not in n_channels and shape[-1] in n_channels:
        raise ValueError(
            f"frames must be stacked along the first axis, got observations of shape {shape}: "
            "stack channels that come first, by SB3's VecTransposeImage, or take n_stack=1"
        )


class FrameArray:
    """
    An array of observations, shape (rows, n_envs, *shape), kept as frames.

    An index gives copies. A row is set to what the environments show next, shape (n_envs, *shape).

    :param store: the store that cuts and joins observations; each environment is a stream of it
    :param rows: number of rows
    :param n_envs: number of environments
    :ivar frames: the frames, shape (rows, n_envs, n_stack)
    :ivar dtype: dtype of the observations
    """

    def __init__(self, store: FrameStore, rows: int, n_envs: int) -> None:
        self.store = store
        self.dtype = store.dtype
        self.frames: Frames = np.empty((rows, n_envs, store.n_stack), object)
        self.frames.fill(store.blank)

    def __getitem__(self, index: Any) -> NDArray[Any]:
        return self.store.get(self.frames[index])

    def keep_rows(self, kept: NDArray[np.integer[Any]], rows: int) -> None:
        """
        Keep only some rows, as the first rows of a smaller array.

        :param kept: the rows to keep, in their new order, shape (n,) with n at most ``rows``
        :param rows: number of rows of the smaller array
        """
        frames: Frames = np.empty((rows, *self.frames.shape[1:]), object)
        frames.fill(self.store.blank)
        frames[: len(kept)] = self.frames[kept]
        self.frames = frames

    def __setitem__(self, row: int, observations: NDArray[Any]) -> None:
        self.frames[row] = self.store.put(np.asarray(observations, self.dtype))


def frame_bytes(rows: int, n_envs: int, shape: tuple[int, ...], dtype: Any, n_stack: int) -> int:
    """
    Return the memory that the observations of a replay memory take as frames.

    This counts observations and next observations if no episode starts in the memory. A start adds
    a frame, or up to ``n_stack`` frames.

    :param rows: number of transitions, of all environments together
    :param n_envs: number of environments
    :param shape: shape of an observation
    :param dtype: dtype of an observation
    :param n_stack: number of frames in an observation
    :return: the memory, in bytes
    :raises ValueError: if ``n_stack`` is not a positive integer
    """
    observation_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    one_frame: int = sys.getsizeof(b"") + observation_bytes // check_count("n_stack", n_stack)
    # The blank frame, the first observation of each environment, and a new frame per transition.
    n_frames = 1 + n_envs * n_stack + rows
    reference_bytes = 2 * rows * n_stack * 8
    return n_frames * one_frame + reference_bytes
