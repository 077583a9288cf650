"""Observations kept as frames, each of which is kept once: for episode buffers and replay memories."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sb3_manygoals.checks import check_count

try:
    import lz4.block as lz4_block
except ImportError:
    lz4_block = None

_BLOCK_BYTES, _BLOCK_FRAMES = 2**20, 2**10  # at most so much memory is taken at a time, if frames are not compressed
_BLANK = 0  # id of a frame of zeros, with which many stacks begin


class FrameStore:
    """
    Observations of one shape and dtype, as stacks of frames under ids. Each frame is kept once.

    A frame is looked up by its bytes in the previous observation of the same stream. One that is not found is kept as a new
    one, so what comes out is what was put in. Zeros are always found.

    The store counts who holds a frame: :meth:`hold` what is to stay, and :meth:`release` it afterwards. A frame that nobody
    holds is dropped. The store itself holds the latest observation of each stream.

    With ``compress``, each frame is compressed by LZ4 without loss, with the first frame as its dictionary, so that frames of
    a game that differ little take little. The memory of dropped frames is then freed; without it, it is used for new ones.

    :param shape: of an observation
    :param dtype: of its elements
    :param n_stack: frames in an observation, the newest last
    :param stack_axis: along which they are stacked, 0 (images with channels first) or -1
    :param compress: whether to compress frames; needs lz4
    :raises ValueError: if observations cannot be cut into that many frames
    :raises ImportError: if lz4 is needed and not installed
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: Any, n_stack: int = 1, stack_axis: Literal[0, -1] = 0, compress: bool = False
    ) -> None:
        check_count("n_stack", n_stack)
        if stack_axis not in (0, -1):
            raise ValueError(f"stack_axis must be 0 or -1, got {stack_axis!r}")
        if n_stack > 1 and (shape == () or shape[stack_axis] % n_stack):
            raise ValueError(f"n_stack must divide axis {stack_axis} of observations of shape {shape}, got {n_stack}")
        if compress and lz4_block is None:
            raise ImportError('compressed frames need lz4: pip install "sb3-manygoals[atari]"')
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        self.n_stack, self.compress = int(n_stack), compress
        self.stack_axis: int = stack_axis
        frame_shape = list(shape)
        if n_stack > 1:
            frame_shape[stack_axis] //= n_stack
        self.frame_shape = tuple(frame_shape)
        self._zeros = bytes(math.prod(self.frame_shape) * self.dtype.itemsize)
        self._first = b""  # the first frame that is not blank
        self._per_block = 1 if compress else max(1, min(_BLOCK_FRAMES, _BLOCK_BYTES // len(self._zeros)))
        # arrays of _per_block frames, or compressed frames; a frame's id is the block's number * _per_block + row
        self._blocks: dict[int, Any] = {}
        self._uses: NDArray[np.int32] = np.zeros(0, np.int32)  # how often each frame is held, by id
        self._free: list[int] = []  # ids for the next frames, the next one last
        self._latest: dict[int, dict[bytes, int]] = {}  # the frames of the latest observation of each stream
        self._append(self._zeros)  # held for ever

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
        shape, dtype = observations.shape, observations.dtype
        if (shape, dtype) != ((*shape[:1], *self.shape), self.dtype):
            expected = f"shape (n, *{self.shape}) and dtype {self.dtype}"
            raise ValueError(f"observations must have {expected}, got {shape} and {dtype}")
        ids = np.empty((len(observations), self.n_stack), np.int32)
        streams = range(len(observations)) if streams is None else streams
        for row, (stack, stream) in enumerate(zip(self._split(observations), streams, strict=True)):
            known, latest = self._latest.get(stream, {}), dict[bytes, int]()
            for depth, frame in enumerate(stack):
                content = frame.tobytes()
                if content not in latest:
                    place = _BLANK if content == self._zeros else known.get(content)
                    if place is None:
                        place = self._append(content)
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
        frames = self._frames(ids).view(self.dtype).reshape(-1, self.n_stack, *self.frame_shape)
        if self.n_stack > 1:
            frames = np.moveaxis(frames, 1, self.stack_axis % len(self.shape) + 1)
        observations: NDArray[Any] = frames.reshape(*ids.shape[:-1], *self.shape)
        return observations

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
        np.add.at(self._uses, self._checked(ids), 1)

    def release(self, ids: ArrayLike) -> None:
        """
        :param ids: of frames that were held, each as often as it is to be released, any shape
        :raises IndexError: if there is no such frame
        """
        places = self._checked(ids)
        np.subtract.at(self._uses, places, 1)
        dropped = np.unique(places[self._uses[places] == 0]).tolist()
        self._free.extend(dropped)
        if self.compress:
            for place in dropped:
                del self._blocks[place]

    def get_checkpoint_state(self) -> dict[str, Any]:
        """:return: a plain tree, some of whose arrays are the store's own: to be written at once"""
        packed = dict(sorted(self._blocks.items())) if self.compress else {}
        return {
            "built": self._built(),
            "first": np.frombuffer(self._first, np.uint8),
            "uses": self._uses,
            "free": np.array(self._free, np.int64),
            "latest": {stream: np.array(list(ids.values()), np.int64) for stream, ids in self._latest.items()},
            "blocks": {} if self.compress else dict(self._blocks),
            "packed_ids": np.array(list(packed), np.int64),
            "packed_ends": np.cumsum([len(frame) for frame in packed.values()], dtype=np.int64),
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
        self._first, self._uses, self._free = state["first"].tobytes(), state["uses"].copy(), state["free"].tolist()
        self._blocks = {number: block.copy() for number, block in state["blocks"].items()}
        packed = np.split(state["packed"], state["packed_ends"])
        self._blocks.update(zip(state["packed_ids"].tolist(), map(np.ndarray.tobytes, packed), strict=False))
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

    def _append(self, content: bytes) -> int:
        """:return: the id of a new frame, which is held once"""
        if not self._free:
            n = len(self._uses)
            self._uses = np.concatenate([self._uses, np.zeros(max(n, self._per_block), np.int32)])
            self._free.extend(reversed(range(n, len(self._uses))))
        place = self._free.pop()
        self._uses[place] = 1
        number, row = divmod(place, self._per_block)
        if self.compress:
            if place != _BLANK:
                self._first = self._first or content
            self._blocks[number] = lz4_block.compress(content, store_size=False, dict=self._first)
            return place
        if number not in self._blocks:
            self._blocks[number] = np.zeros((self._per_block, len(content)), np.uint8)
        self._blocks[number][row] = np.frombuffer(content, np.uint8)
        return place

    def _frames(self, ids: NDArray[np.integer[Any]]) -> NDArray[np.uint8]:
        """:return: the bytes of frames, shape (n, bytes of a frame)"""
        places, inverse = np.unique(self._checked(ids), return_inverse=True)
        frames = np.empty((len(places), len(self._zeros)), np.uint8)
        for frame, place in zip(frames, places.tolist(), strict=True):
            number, row = divmod(place, self._per_block)
            if self.compress:
                content = lz4_block.decompress(self._blocks[number], uncompressed_size=len(frame), dict=self._first)
                frame[:] = np.frombuffer(content, np.uint8)
            else:
                frame[:] = self._blocks[number][row]
        return frames[inverse]

    def _checked(self, ids: ArrayLike) -> NDArray[np.int64]:
        places = np.asarray(ids, np.int64).reshape(-1)
        missing = (places < 0) | (places >= len(self._uses))
        missing[~missing] = self._uses[places[~missing]] < 1
        if missing.any():
            raise IndexError(f"there is no frame with the id {places[missing][0]}")
        return places


class FrameArray:
    """
    An array of observations, shape (rows, n_envs, *shape), whose frames are in a store. An index gives copies; a row is set to
    what the environments show next, shape (n_envs, *shape).

    :param store: of the frames; those of each environment are a stream
    :param rows: the length of the array
    :param n_envs: number of environments
    """

    def __init__(self, store: FrameStore, rows: int, n_envs: int) -> None:
        self.store, self.dtype = store, store.dtype
        self.shape = (rows, n_envs, *store.shape)
        self.ids = np.full((rows, n_envs, store.n_stack), _BLANK, np.int32)
        store.hold(self.ids)

    def __getitem__(self, index: Any) -> NDArray[Any]:
        return self.store.get(self.ids[index])

    def __setitem__(self, row: int, observations: NDArray[Any]) -> None:
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
    :return: bytes of the observations and next observations of a replay memory, if no episode starts in it. A start adds a
        frame, or up to ``n_stack``
    """
    frame: int = math.prod(shape) * np.dtype(dtype).itemsize // n_stack
    return (1 + n_envs * n_stack + rows) * frame + 2 * rows * n_stack * 4  # and the ids of the frames
