"""Replay memories that keep each frame once: next observations share frames with observations, and stacks with each other."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_manygoals.auxiliary.frames import ArrayFrames
from sb3_manygoals.auxiliary.stacks import FrameStacks
from sb3_manygoals.checkpoint.tree import CheckpointError
from sb3_manygoals.many_goals_dqn import ManyGoalsReplayBuffer

_BLANK = 0
"""The id of a frame of zeros, with which many a stack begins. It is never freed."""


class FrameMemory:
    """
    The observations s and s' of a replay memory, each a stack of frames, as numbers of frames that are kept once each.

    Nothing is taken for granted of how stacks follow each other. A frame that is to be kept is looked for among those of the
    observation before in the same environment, and zeros; if it is there, byte for byte, it is that one, else it is kept as
    a new one. So whatever is rebuilt is what was put in: at the start of an episode, whatever its stack begins with; after a
    lost life, where a stack of zeros and the frame seen last costs no frame at all; after a jump. A frame is given up when no
    transition has it any more.

    A transition within an episode costs one frame, the start of one up to as many as a stack has: one where it begins with
    zeros or repeats.

    :param buffer_size: rows, each a transition of every environment
    :param n_envs: number of environments
    :param shape: of an observation
    :param dtype: of its elements
    :param n_stack: how many frames it consists of; 1: it is one frame
    :param axis: along which they are stacked
    :raises ValueError: if observations cannot be cut into so many frames
    """

    def __init__(
        self, buffer_size: int, n_envs: int, shape: tuple[int, ...], dtype: Any, n_stack: int = 1, axis: Literal[0, -1] = 0
    ) -> None:
        self.stacks = FrameStacks(shape, n_stack, axis)
        self.frames = ArrayFrames(self.stacks.frame_shape, dtype)
        # Of s and s', by id. Ids are small numbers, as those of frames given up are used again.
        self.places: NDArray[np.int32] = np.zeros((2, buffer_size, n_envs, n_stack), dtype=np.int32)
        self.uses: NDArray[np.int32] = np.zeros(1, dtype=np.int32)
        """How often each frame is in ``places``, by id."""
        self.before: NDArray[np.int32] = np.zeros((n_envs, n_stack), dtype=np.int32)
        """The frames of the latest observation of each environment."""
        blank = self.frames.append(np.zeros((1, *self.stacks.frame_shape), dtype=self.frames.dtype))
        assert blank[0] == _BLANK
        self._hold(blank.astype(np.int32))
        self._hold(self.places)
        self._hold(self.before)

    def put(self, which: Literal[0, 1], row: int, observations: NDArray[Any]) -> None:
        """
        Of a row, s has to be put before s', as what is looked at first is what the environment showed before.

        :param which: 0 for s, 1 for s'
        :param row: in place of what was there
        :param observations: shape (n_envs, *shape)
        """
        split = self.stacks.split(observations)
        new = np.empty_like(self.before)
        for env, (stack, known) in enumerate(zip(split, self.before, strict=True)):
            candidates = [_BLANK, *known.tolist()]
            images = self.frames.get(np.array(candidates))
            contents = {image.tobytes(): place for image, place in zip(images, candidates, strict=True)}
            for depth, frame in enumerate(stack):
                content = frame.tobytes()
                if content not in contents:
                    contents[content] = int(self.frames.append(frame[None])[0])
                new[env, depth] = contents[content]
        self._hold(new)
        self._hold(new)  # as the latest, and in its row
        self._give_up(self.before)
        self._give_up(self.places[which, row])
        self.before = new
        self.places[which, row] = new

    def get(self, which: Literal[0, 1], index: Any) -> NDArray[Any]:
        """
        :param which: 0 for s, 1 for s'
        :param index: of an array of shape (buffer_size, n_envs)
        :return: observations, shape (*of what the index gives, *shape)
        """
        places = self.places[which][index]
        frames = self.frames.get(places.reshape(-1))
        observations = self.stacks.join(frames.reshape(-1, *places.shape[-1:], *self.stacks.frame_shape))
        return observations.reshape(*places.shape[:-1], *self.stacks.shape)

    @property
    def n_frames(self) -> int:
        """How many frames are kept now, the blank one included."""
        return int(np.count_nonzero(self.uses))

    def get_checkpoint_state(self) -> dict[str, Any]:
        """:return: a plain tree, whose arrays are the memory's own: to be written at once"""
        return {
            "n_stack": self.stacks.n_stack,
            "axis": self.stacks.axis,
            "frames": self.frames.get_checkpoint_state(),
            "places": self.places,
            "uses": self.uses,
            "before": self.before,
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        :param state: of :meth:`get_checkpoint_state`
        :raises CheckpointError: if it is of a memory for other frames
        """
        theirs, ours = (state["n_stack"], state["axis"]), (self.stacks.n_stack, self.stacks.axis)
        if theirs != ours:
            raise CheckpointError(f"the frames were saved with (n_stack, axis) {theirs}, this memory has {ours}")
        try:
            self.frames.set_checkpoint_state(state["frames"])
        except ValueError as error:
            raise CheckpointError(str(error)) from error
        self.places, self.uses, self.before = (state[name].copy() for name in ("places", "uses", "before"))

    def _hold(self, places: NDArray[np.int32]) -> None:
        highest = int(places.max())
        if highest >= len(self.uses):
            self.uses = np.concatenate([self.uses, np.zeros(max(highest + 1 - len(self.uses), len(self.uses)), np.int32)])
        np.add.at(self.uses, places.reshape(-1), 1)

    def _give_up(self, places: NDArray[np.int32]) -> None:
        np.subtract.at(self.uses, places.reshape(-1), 1)
        held = np.unique(places)
        self.frames.free(held[self.uses[held] == 0])


class _Observations:
    """The part of an array (buffer_size, n_envs, *shape) that replay memories use, made of a :class:`FrameMemory`."""

    def __init__(self, memory: FrameMemory, which: Literal[0, 1]) -> None:
        self.memory, self.which = memory, which
        self.shape = (*memory.places.shape[1:3], *memory.stacks.shape)
        self.dtype = memory.frames.dtype

    def __getitem__(self, index: Any) -> NDArray[Any]:
        return self.memory.get(self.which, index)

    def __setitem__(self, row: int, observations: NDArray[Any]) -> None:
        self.memory.put(self.which, row, observations)


def frame_bytes(rows: int, n_envs: int, shape: tuple[int, ...], dtype: Any, n_stack: int) -> int:
    """
    :param rows: transitions, of all environments together
    :param n_envs: number of environments
    :param shape: of an observation
    :param dtype: of its elements
    :param n_stack: frames of an observation
    :return: bytes that :class:`FrameMemory` takes if no episode starts in them; each start adds a frame, or up to ``n_stack``
        if it shares none
    """
    frame: int = math.prod(shape) * np.dtype(dtype).itemsize // n_stack
    return (1 + n_envs * n_stack + rows) * frame + 2 * rows * n_stack * 4  # and the ids of the frames


def _frames_of(buffer: ReplayBuffer, n_stack: int, stack_axis: Literal[0, -1]) -> FrameMemory:
    """Put a memory of frames in place of a buffer's arrays of observations, which have taken no memory yet."""
    shape = buffer.obs_shape  # of discrete observations (1,)
    assert isinstance(shape, tuple)  # for mypy: no Dict
    memory = FrameMemory(buffer.buffer_size, buffer.n_envs, shape, buffer.observation_space.dtype, n_stack, stack_axis)
    buffer.observations = _Observations(memory, 0)  # type: ignore[assignment]
    buffer.next_observations = _Observations(memory, 1)  # type: ignore[assignment]
    return memory


class FrameReplayBuffer(ReplayBuffer):
    """
    SB3's replay memory, with observations as frames, see :class:`FrameMemory`.

    :param buffer_size: transitions kept, in all environments together
    :param observation_space: Box
    :param action_space: of the actions
    :param device: where batches go
    :param n_envs: number of parallel environments
    :param optimize_memory_usage: must be False; part of SB3's interface
    :param n_stack: how many frames an observation consists of
    :param stack_axis: along which they are stacked, 0 or -1
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: th.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        n_stack: int = 1,
        stack_axis: Literal[0, -1] = 0,
    ) -> None:
        super().__init__(buffer_size, observation_space, action_space, device, n_envs, optimize_memory_usage)
        self.memory = _frames_of(self, n_stack, stack_axis)

    def get_checkpoint_state(self) -> dict[str, Any]:
        """:return: a plain tree; its arrays are views of the memory, to be written before anything is added"""
        return {
            "n_envs": self.n_envs,
            "buffer_size": self.buffer_size,
            "pos": self.pos,
            "full": self.full,
            "frames": self.memory.get_checkpoint_state(),
            **{name: getattr(self, name)[: self.size()] for name in ("actions", "rewards", "dones", "timeouts")},
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        :param state: of :meth:`get_checkpoint_state`
        :raises CheckpointError: if it is of a memory of another size or for other frames
        """
        for name in ("buffer_size", "n_envs"):
            if state[name] != getattr(self, name):
                raise CheckpointError(
                    f"the replay memory was saved with {name} {state[name]}, this one has {getattr(self, name)}"
                )
        self.memory.set_checkpoint_state(state["frames"])
        for name in ("actions", "rewards", "dones", "timeouts"):
            getattr(self, name)[: len(state[name])] = state[name]
        self.pos, self.full = state["pos"], state["full"]


class ManyGoalsFrameReplayBuffer(ManyGoalsReplayBuffer):
    """
    ManyGoalsDQN's replay memory, with observations as frames, see :class:`FrameMemory`: for Atari a quarter of what the stacks
    of next observations alone would take, an eighth of both. For ``ManyGoalsDQN(replay_buffer_class=...)``.

    :param n_stack: how many frames an observation consists of
    :param stack_axis: along which they are stacked, 0 or -1
    :param kwargs: further arguments of :class:`~sb3_manygoals.many_goals_dqn.ManyGoalsReplayBuffer`, as are all before
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Dict,
        action_space: spaces.Discrete,
        device: th.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        n_stack: int = 1,
        stack_axis: Literal[0, -1] = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(buffer_size, observation_space, action_space, device, n_envs, optimize_memory_usage, **kwargs)
        self.memory = _frames_of(self, n_stack, stack_axis)

    @staticmethod
    def memory_needed(  # type: ignore[override]
        buffer_size: int,
        observation_space: spaces.Dict,
        action_space: spaces.Discrete,
        n_envs: int,
        n_stack: int = 1,
        stack_axis: Literal[0, -1] = 0,
        **kwargs: Any,
    ) -> dict[str, int]:
        """
        :param buffer_size: see the class, as are the others
        :param observation_space: goal observation space
        :param action_space: Discrete
        :param n_envs: number of parallel environments
        :param n_stack: see the class
        :param stack_axis: takes no memory
        :param kwargs: see the class
        :return: bytes of its arrays, by what they are of; a frame more for each start of an episode, see ``frame_bytes``
        """
        needed = ManyGoalsReplayBuffer.memory_needed(buffer_size, observation_space, action_space, n_envs, **kwargs)
        space = observation_space["observation"]
        assert space.shape is not None
        for name in ("replay observations", "replay next observations"):
            del needed[name]
        rows = max(buffer_size // n_envs, 1) * n_envs
        return {"replay frames": frame_bytes(rows, n_envs, space.shape, space.dtype, n_stack), **needed}

    def get_checkpoint_state(self) -> dict[str, Any]:
        """:return: a plain tree; its arrays are views of the memory, to be written before anything is added"""
        return {**super().get_checkpoint_state(), "frames": self.memory.get_checkpoint_state()}

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        :param state: of :meth:`get_checkpoint_state`
        :raises CheckpointError: if it is of a memory of another size, or for other frames
        """
        if "frames" not in state:
            raise CheckpointError("the replay memory was saved with whole observations, this one keeps frames")
        self.memory.set_checkpoint_state(state["frames"])
        super().set_checkpoint_state(state)

    @property
    def _arrays(self) -> dict[str, NDArray[Any] | None]:
        return {name: array for name, array in super()._arrays.items() if not name.endswith("observations")}
