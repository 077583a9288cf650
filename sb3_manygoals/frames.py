"""Observations kept as frames, each of which is kept once: for episode buffers and replay memories."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

try:
    import lz4.block as lz4_block
except ImportError:
    lz4_block = None

_BLOCK_BYTES, _BLOCK_FRAMES = 2**20, 2**10
"""At most so much memory is taken at a time, if frames are not compressed."""

_TOGETHER = 8
"""Frames compressed as one block: more of them take less room each, and take longer to get."""

_BLANK = 0
"""The id of a frame of zeros, with which many stacks begin."""


class FrameStore:
    """
    Observations of one shape and dtype, as stacks of frames under ids. Each frame is kept once.

    A frame is looked up by its bytes in the previous observation of the same stream. Nothing is assumed of how stacks follow
    each other: a frame that is not found is kept as a new one, so what comes out is what was put in. Zeros are always found.

    The store counts who holds a frame. :meth:`hold` what is to stay, and :meth:`release` it afterwards: a frame that nobody
    holds is dropped. The store itself holds the latest observation of each stream.

    With ``compress``, consecutive frames of a stream are compressed together by LZ4, without loss. Their memory is freed when
    all of them are dropped. Without, the memory of dropped frames is used again and never freed.

    :param shape: of an observation
    :param dtype: of its elements
    :param n_stack: frames in an observation, the newest last
    :param stack_axis: along which they are stacked, 0 (images with channels first) or -1
    :param compress: whether to compress frames; needs lz4
    :raises ValueError: if observations cannot be cut into that many frames
    :raises ImportError: if lz4 is needed and not installed
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: Any,
        n_stack: int = 1,
        stack_axis: Literal[0, -1] = 0,
        compress: bool = False,
    ) -> None:
        if not isinstance(n_stack, (int, np.integer)) or isinstance(n_stack, bool) or n_stack < 1:
            raise ValueError(f"n_stack must be a whole number, at least 1, got {n_stack!r}")
        if stack_axis not in (0, -1):
            raise ValueError(f"stack_axis must be 0 or -1, got {stack_axis!r}")
        if n_stack > 1 and (shape == () or shape[stack_axis] % n_stack):
            raise ValueError(f"n_stack must divide axis {stack_axis} of observations of shape {shape}, got {n_stack}")
        if compress and lz4_block is None:
            raise ImportError('compressed frames need lz4: pip install "sb3-manygoals[atari]"')
        self.shape = tuple(shape)
        self.dtype = np.dtype(dtype)
        self.n_stack = int(n_stack)
        self.stack_axis: int = stack_axis
        self.compress = compress
        frame_shape = list(shape)
        if n_stack > 1:
            frame_shape[stack_axis] //= self.n_stack
        self.frame_shape = tuple(frame_shape)
        frame_bytes = math.prod(self.frame_shape) * self.dtype.itemsize
        self._zeros = bytes(frame_bytes)
        self._per_block = _TOGETHER if compress else max(1, min(_BLOCK_FRAMES, _BLOCK_BYTES // max(1, frame_bytes)))
        self._blocks: dict[int, NDArray[Any] | bytes] = {}
        """By number, as bytes where compressed. A frame's id is its block's number times ``_per_block``, plus its row."""
        self._numbers: list[int] = []
        """Numbers that no block has."""
        self._uses: NDArray[np.int32] = np.zeros(0, np.int32)
        """How often each frame is held, by id."""
        self._room: dict[int, list[int]] = {}
        """Ids for the next frames of each stream, or of all streams, the next one last."""
        self._latest: dict[int, dict[bytes, int]] = {}
        """The frames of the latest observation of each stream."""
        self._append(np.zeros(self.frame_shape, self.dtype), 0)  # held for ever

    def __len__(self) -> int:
        """The number of frames, the blank one included."""
        return int(np.count_nonzero(self._uses))

    @property
    def nbytes(self) -> int:
        """Bytes of memory, with what Python needs for each block."""
        blocks = sum(sys.getsizeof(block) + sys.getsizeof(number) for number, block in self._blocks.items())
        return blocks + sys.getsizeof(self._blocks) + self._uses.nbytes

    def put(self, observations: NDArray[Any], streams: Iterable[int] | None = None) -> NDArray[np.int32]:
        """
        Take in the next observation of some streams.

        :param observations: shape (n, *shape), the dtype of the store
        :param streams: the number of each one's stream, such as its environment, n different ones; None: 0 to n - 1
        :return: ids of their frames, shape (n, n_stack); the store holds them until the next observation of the stream
        :raises ValueError: if shape or dtype differ from the store's
        """
        if (
            observations.shape[1:] != self.shape
            or observations.ndim != len(self.shape) + 1
            or observations.dtype != self.dtype
        ):
            raise ValueError(
                f"observations must have shape (n, *{self.shape}) and dtype {self.dtype}, got {observations.shape} and "
                f"{observations.dtype}"
            )
        ids = np.empty((len(observations), self.n_stack), np.int32)
        streams = range(len(observations)) if streams is None else streams
        for row, (stack, stream) in enumerate(zip(self._split(observations), streams, strict=True)):
            known, latest = self._latest.get(stream, {}), dict[bytes, int]()
            for depth, frame in enumerate(stack):
                content = frame.tobytes()
                if content not in latest:
                    place = _BLANK if content == self._zeros else known.get(content)
                    if place is None:
                        place = self._append(frame, stream)
                    else:
                        self._uses[place] += 1
                    latest[content] = place
                ids[row, depth] = latest[content]
            self._latest[stream] = latest
            self.release(list(known.values()))
        return ids

    def get(self, ids: NDArray[np.integer[Any]]) -> NDArray[Any]:
        """
        :param ids: of the frames of observations, shape (*batch, n_stack)
        :return: copies of the observations, shape (*batch, *shape)
        :raises IndexError: if there is no such frame
        """
        frames = self._frames(ids.reshape(-1)).reshape(-1, self.n_stack, *self.frame_shape)
        if self.n_stack > 1:
            frames = np.moveaxis(frames, 1, self.stack_axis % len(self.shape) + 1)
        return frames.reshape(*ids.shape[:-1], *self.shape)

    def newest(self, observations: NDArray[Any]) -> NDArray[Any]:
        """
        :param observations: shape (*batch, *shape)
        :return: the newest frame of each, a view of shape (*batch, *frame_shape)
        """
        if self.n_stack == 1:
            return observations
        axis = observations.ndim - len(self.shape) + self.stack_axis % len(self.shape)
        return observations[(*(slice(None),) * axis, slice(-self.frame_shape[self.stack_axis], None))]

    def hold(self, ids: ArrayLike) -> None:
        """
        :param ids: of frames that are to stay until they are released as often, any shape
        :raises IndexError: if there is no such frame
        """
        places = np.asarray(ids, np.int64).reshape(-1)
        self._check(places)
        np.add.at(self._uses, places, 1)

    def release(self, ids: ArrayLike) -> None:
        """
        :param ids: of frames that were held, each as often as it is to be released, any shape
        :raises IndexError: if there is no such frame
        """
        places = np.asarray(ids, np.int64).reshape(-1)
        self._check(places)
        np.subtract.at(self._uses, places, 1)
        dropped = np.unique(places[self._uses[places] == 0])
        if not self.compress:
            self._room[0].extend(dropped.tolist())
            return
        for number in np.unique(dropped // self._per_block).tolist():
            if isinstance(self._blocks[number], bytes) and not self._uses_of(number).any():
                del self._blocks[number]
                self._numbers.append(number)

    def get_checkpoint_state(self) -> dict[str, Any]:
        """:return: a plain tree, some of whose arrays are the store's own: to be written at once"""
        packed = {number: block for number, block in sorted(self._blocks.items()) if isinstance(block, bytes)}
        return {
            "built": self._built(),
            "numbers": np.array(self._numbers, np.int64),
            "uses": self._uses,
            "room": {stream: np.array(ids, np.int64) for stream, ids in self._room.items()},
            "latest": {stream: np.array(list(ids.values()), np.int64) for stream, ids in self._latest.items()},
            "blocks": {number: block for number, block in self._blocks.items() if number not in packed},
            "packed_numbers": np.array(list(packed), np.int64),
            "packed_ends": np.cumsum([len(block) for block in packed.values()], dtype=np.int64),
            "packed": np.frombuffer(bytearray().join(packed.values()), np.uint8),
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        :param state: of :meth:`get_checkpoint_state`; frames have the ids that they had
        :raises ValueError: if it is of a store that was built in another way; nothing has changed then
        """
        for name, value in self._built().items():
            if state["built"][name] != value:
                raise ValueError(f"the frames were saved with {name}={state['built'][name]!r}, this store has {value!r}")
        self._numbers, self._uses = state["numbers"].tolist(), state["uses"].copy()
        self._room = {stream: ids.tolist() for stream, ids in state["room"].items()}
        self._blocks = {number: block.copy() for number, block in state["blocks"].items()}
        packed = np.split(state["packed"], state["packed_ends"])
        for number, block in zip(state["packed_numbers"].tolist(), packed, strict=False):
            self._blocks[number] = block.tobytes()
        self._latest = {
            stream: {frame.tobytes(): place for frame, place in zip(self._frames(ids), ids.tolist(), strict=True)}
            for stream, ids in state["latest"].items()
        }

    def _built(self) -> dict[str, Any]:
        names = ("n_stack", "stack_axis", "compress")
        return {"shape": list(self.shape), "dtype": self.dtype.str, **{name: getattr(self, name) for name in names}}

    def _split(self, observations: NDArray[Any]) -> NDArray[Any]:
        """:return: their frames, oldest first, a view of shape (n, n_stack, *frame_shape)"""
        if self.n_stack == 1:
            return observations[:, None]
        axis, shape = self.stack_axis % len(self.shape) + 1, observations.shape
        parts = observations.reshape(*shape[:axis], self.n_stack, self.frame_shape[axis - 1], *shape[axis + 1 :])
        return np.moveaxis(parts, axis, 1)

    def _append(self, frame: NDArray[Any], stream: int) -> int:
        """:return: the id of a new frame, which is held once"""
        room = self._room.setdefault(stream if self.compress else 0, [])
        if not room:
            if not self._numbers:
                n_blocks = len(self._uses) // self._per_block
                self._uses = np.concatenate([self._uses, np.zeros(max(1, n_blocks) * self._per_block, np.int32)])
                self._numbers.extend(reversed(range(n_blocks, len(self._uses) // self._per_block)))
            number = self._numbers.pop()
            self._blocks[number] = np.zeros((self._per_block, *self.frame_shape), self.dtype)
            room.extend(reversed(range(number * self._per_block, (number + 1) * self._per_block)))
        place = room.pop()
        self._uses[place] = 1
        number, row = divmod(place, self._per_block)
        block = self._blocks[number]
        assert isinstance(block, np.ndarray)
        block[row] = frame
        if self.compress and not room:
            block[self._uses_of(number) == 0] = 0  # dropped already, compresses to nothing
            self._blocks[number] = lz4_block.compress(block, store_size=False)
        return place

    def _frames(self, places: NDArray[np.integer[Any]]) -> NDArray[Any]:
        """:return: copies of frames, shape (n, *frame_shape)"""
        self._check(places)
        frames = np.empty((len(places), *self.frame_shape), self.dtype)
        last, block = -1, np.empty(0, self.dtype)
        order = np.argsort(places, kind="stable")  # so that each block is decompressed once
        for where, place in zip(order.tolist(), places[order].tolist(), strict=True):
            number, row = divmod(place, self._per_block)
            if number != last:
                last, block = number, self._unpacked(number)
            frames[where] = block[row]
        return frames

    def _unpacked(self, number: int) -> NDArray[Any]:
        block = self._blocks[number]
        if not isinstance(block, bytes):
            return block
        unpacked = lz4_block.decompress(block, uncompressed_size=self._per_block * len(self._zeros))
        return np.frombuffer(unpacked, self.dtype).reshape(self._per_block, *self.frame_shape)

    def _uses_of(self, number: int) -> NDArray[np.int32]:
        return self._uses[number * self._per_block : (number + 1) * self._per_block]

    def _check(self, places: NDArray[np.integer[Any]]) -> None:
        missing = (places < 0) | (places >= len(self._uses))
        missing[~missing] = self._uses[places[~missing]] < 1
        if missing.any():
            raise IndexError(f"there is no frame with the id {places[missing][0]}")


class FrameArray:
    """
    An array of observations, shape (rows, n_envs, *shape), whose frames are in a store: what replay memories use of an array.

    :param store: of the frames; those of each environment are a stream
    :param rows: the length of the array
    :param n_envs: number of environments
    """

    def __init__(self, store: FrameStore, rows: int, n_envs: int) -> None:
        self.store = store
        self.shape = (rows, n_envs, *store.shape)
        self.dtype = store.dtype
        self.ids = np.full((rows, n_envs, store.n_stack), _BLANK, np.int32)
        store.hold(self.ids)

    def __getitem__(self, index: Any) -> NDArray[Any]:
        """
        :param index: of an array of shape (rows, n_envs)
        :return: observations, shape (*of what the index gives, *shape)
        """
        return self.store.get(self.ids[index])

    def __setitem__(self, row: int, observations: NDArray[Any]) -> None:
        """
        :param row: whose observations give way
        :param observations: what the environments show next, shape (n_envs, *shape)
        """
        ids = self.store.put(np.asarray(observations, self.dtype))
        self.store.hold(ids)
        self.store.release(self.ids[row])
        self.ids[row] = ids


def frame_bytes(rows: int, n_envs: int, shape: tuple[int, ...], dtype: Any, n_stack: int) -> int:
    """
    :param rows: transitions, of all environments together
    :param n_envs: number of environments
    :param shape: of an observation
    :param dtype: of its elements
    :param n_stack: frames in an observation
    :return: bytes of the observations and next observations of a replay memory, if no episode starts in it. Each start adds
        a frame, or up to ``n_stack`` if it shares none
    """
    frame: int = math.prod(shape) * np.dtype(dtype).itemsize // n_stack
    return (1 + n_envs * n_stack + rows) * frame + 2 * rows * n_stack * 4  # and the ids of the frames
