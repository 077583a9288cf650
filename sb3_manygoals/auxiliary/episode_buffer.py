"""The best episodes of an agent, and trajectories drawn from them."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_manygoals.auxiliary.frames import ArrayFrames, FrameStorage
from sb3_manygoals.auxiliary.segments import Segment, SegmentIndex, frame_ids, pack, unpack
from sb3_manygoals.auxiliary.stacks import FrameStacks
from sb3_manygoals.goals.buffer import check_goal_space

HISTORY = 3
"""Observations from which a reward is predicted (Jaderberg et al. 2017)."""


class Trajectories(NamedTuple):
    """
    B pieces of episodes, each of n transitions in a row, or fewer where the episode had not as many.

    :param observations: shape (B, n + 1, *observation_space.shape). What comes after a shorter piece is its last observation
        again, so that the last one is at the end in any case
    :param actions: int64, shape (B, n), zeros after a shorter piece
    :param rewards: as the learner saw them, float32, shape (B, n), zeros after a shorter piece
    :param lengths: number of transitions, int64, shape (B,)
    :param terminated: whether the episode ended with the last transition, and not because its time was over, bool, shape (B,)
    """

    observations: NDArray[Any]
    actions: NDArray[np.int64]
    rewards: NDArray[np.float32]
    lengths: NDArray[np.int64]
    terminated: NDArray[np.bool_]


class RewardExamples(NamedTuple):
    """
    :param observations: the last three before a transition, oldest first, shape (B, 3, *observation_space.shape); before an
        episode's beginning, its first observation
    :param rewards: of the transitions, float32, shape (B,)
    """

    observations: NDArray[Any]
    rewards: NDArray[np.float32]


class _Ongoing:
    """An episode of one environment that has not ended."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []  # lives that are over
        self.frames: list[int] = []
        self.actions: list[int] = []
        self.rewards: list[float] = []
        self.last: NDArray[Any] | None = None  # the newest observation

    def cut(self, terminated: bool) -> Segment:
        """:return: what came since the last cut"""
        frames, actions = np.array(self.frames, np.int64), np.array(self.actions, np.int64)
        segment = Segment(frames, actions, np.array(self.rewards, np.float32), terminated)
        self.frames, self.actions, self.rewards, self.last = [], [], [], None
        return segment

    @property
    def frame_ids(self) -> NDArray[np.int64]:
        """Of all frames, each once."""
        return np.union1d(frame_ids(self.segments), np.array(self.frames, np.int64))


class EpisodeBuffer:
    """
    The K episodes of highest return (section 5 of Veeriah et al. 2018); of those of equal return the oldest goes first.
    Episodes enter whole, when they end, with the observation they ended with; those that go on are kept aside.

    Each frame is kept once: an observation that is a stack of four frames shares three with the one before. That the
    observations of an episode are such stacks is checked as they come.

    :param observation_space: of the learner: Box, Discrete, MultiDiscrete or MultiBinary
    :param capacity: K
    :param n_stack: how many frames an observation consists of, the newest last
    :param stack_axis: along which they are stacked, 0 (as images of a learner are, which have their channels first) or -1
    :param frame_store: where frames are kept, a store of its own for frames of this shape and dtype; None:
        :class:`~sb3_manygoals.auxiliary.frames.ArrayFrames`
    :raises TypeError: if observations are not single arrays of fixed shape
    :raises ValueError: if ``capacity`` or ``n_stack`` is no positive whole number, or observations cannot be cut into so many
        frames
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        capacity: int = 2000,
        n_stack: int = 1,
        stack_axis: Literal[0, -1] = 0,
        frame_store: FrameStorage | None = None,
    ) -> None:
        check_goal_space(observation_space)
        if not isinstance(capacity, (int, np.integer)) or isinstance(capacity, bool) or capacity < 1:
            raise ValueError(f"capacity must be a whole number of episodes, at least 1, got {capacity!r}")
        assert observation_space.shape is not None  # for mypy: see check_goal_space
        self.observation_space = observation_space
        self.shape: tuple[int, ...] = observation_space.shape
        self.dtype = np.dtype(observation_space.dtype)
        self.capacity = int(capacity)
        self.stacks = FrameStacks(self.shape, n_stack, stack_axis)
        self.frames: FrameStorage = ArrayFrames(self.stacks.frame_shape, self.dtype) if frame_store is None else frame_store
        self.recorder: tuple[float | None, int] | None = None
        """Which training fills the buffer, and which of its callbacks: the only one of those that share it."""
        self._best: list[tuple[float, int, list[Segment]]] = []  # a heap: (return, number, segments)
        self._ended = 0
        self._ongoing: list[_Ongoing] = []
        self._index: SegmentIndex | None = None

    def __len__(self) -> int:
        return len(self._best)

    @property
    def returns(self) -> NDArray[np.float64]:
        """Of the episodes that are kept, in ascending order."""
        return np.sort(np.array([score for score, *_ in self._best], dtype=np.float64))

    @property
    def n_transitions(self) -> int:
        """In the episodes that are kept, those that go on left out."""
        return sum(len(segment.actions) for *_, segments in self._best for segment in segments)

    @property
    def nbytes(self) -> int:
        """Bytes taken by frames, and by ids, actions and rewards of the episodes that are kept."""
        segments = [segment for *_, kept in self._best for segment in kept]
        return self.frames.nbytes + sum(part.nbytes for segment in segments for part in segment[:3])

    def start(self, observations: NDArray[Any], keep_ongoing: bool = False) -> None:
        """
        Say from where the environments go on. Episodes that had not ended are forgotten.

        :param observations: the current ones, shape (n_envs, *observation_space.shape)
        :param keep_ongoing: whether to go on with the episodes of those environments whose observation is the last that was
            added
        :raises ValueError: if shape or dtype are not the space's
        """
        observations = self._checked(observations, "observations")
        while len(self._ongoing) > len(observations):
            self.frames.free(self._ongoing.pop().frame_ids)
        self._ongoing += [_Ongoing() for _ in range(len(observations) - len(self._ongoing))]
        for env, (ongoing, observation) in enumerate(zip(self._ongoing, observations, strict=True)):
            if not keep_ongoing or ongoing.last is None or not np.array_equal(ongoing.last, observation):
                self.frames.free(ongoing.frame_ids)
                self._ongoing[env] = _Ongoing()
                self._begin(env, observation)

    def add(
        self,
        actions: NDArray[Any],
        rewards: NDArray[Any],
        dones: NDArray[Any],
        observations: NDArray[Any],
        terminal_observations: Sequence[NDArray[Any] | None],
        truncated: Sequence[bool],
        returns: Sequence[float | None],
    ) -> None:
        """
        Take in one transition of each environment. An environment that is done goes on from ``observations``; its episode is
        whole if it has a return, and is otherwise only cut there, as a game is where a life is lost.

        :param actions: shape (n_envs,)
        :param rewards: as the learner sees them, shape (n_envs,)
        :param dones: whether the episode of the learner ended, shape (n_envs,)
        :param observations: after the transition, of the next episode where one was done, shape (n_envs,
            *observation_space.shape)
        :param terminal_observations: with which episodes ended; None where nothing was done
        :param truncated: whether an episode that is done was ended by a time limit
        :param returns: by which to rank the episodes that are whole, None for the others
        :raises ValueError: if this is not the number of environments of :meth:`start`, something has another shape or dtype
            than the space, observations are no stacks of frames, a terminal observation is missing, or a return is not finite
        """
        observations = self._checked(observations, "observations")
        if len(observations) != len(self._ongoing):
            raise ValueError(
                f"observations must be of {len(self._ongoing)} environments, as at start(), got {len(observations)}"
            )
        reached = observations.copy()
        for env in np.flatnonzero(dones).tolist():
            terminal = terminal_observations[env]
            if terminal is None:
                raise ValueError(f"environment {env} is done, and its VecEnv gave no infos[{env}]['terminal_observation']")
            reached[env] = self._checked(np.asarray(terminal)[None], "terminal_observations")[0]
        if self.stacks.n_stack > 1:
            for env, ongoing in enumerate(self._ongoing):
                assert ongoing.last is not None
                self.stacks.check_follows(ongoing.last, reached[env], env)
        newest = np.ascontiguousarray(self.stacks.newest(reached))
        places = self.frames.append(newest, range(len(newest))).tolist()
        for env, (ongoing, place) in enumerate(zip(self._ongoing, places, strict=True)):
            ongoing.frames.append(place)
            ongoing.actions.append(int(actions[env]))
            ongoing.rewards.append(float(rewards[env]))
            ongoing.last = reached[env]
            if dones[env]:
                ongoing.segments.append(ongoing.cut(terminated=not truncated[env]))
                score = returns[env]
                if score is not None:
                    self._end(ongoing, float(score), env)
                self._begin(env, observations[env])

    def rewards_so_far(self, env: int) -> float:
        """
        :param env: index of an environment
        :return: sum of the rewards of its episode that goes on
        """
        ongoing = self._ongoing[env]
        return sum(float(segment.rewards.sum()) for segment in ongoing.segments) + math.fsum(ongoing.rewards)

    def sample(self, batch_size: int, n_steps: int, rng: np.random.Generator) -> Trajectories:
        """
        Draw pieces of episodes uniformly, with replacement: any transition from which on there are ``n_steps`` is as likely
        to be the first. Where there are not as many, as between two lost lives, all of them are drawn, as one piece.

        :param batch_size: B, how many pieces
        :param n_steps: n, their length
        :param rng: for the draws
        :return: the pieces
        :raises ValueError: if no episode has ended yet
        """
        index = self._indexed()
        numbers, starts = index.draw_windows(batch_size, n_steps, rng)
        lengths = np.minimum(index.lengths[numbers] - starts, n_steps)
        rows = starts[:, None] + np.minimum(np.arange(n_steps + 1), lengths[:, None])  # the last observation is repeated
        actions, rewards = np.zeros((batch_size, n_steps), np.int64), np.zeros((batch_size, n_steps), np.float32)
        terminated = np.zeros(batch_size, np.bool_)
        for row, (number, start, length) in enumerate(zip(numbers, starts, lengths, strict=True)):
            segment = index.segments[number]
            actions[row, :length] = segment.actions[start : start + length]
            rewards[row, :length] = segment.rewards[start : start + length]
            terminated[row] = segment.terminated and start + length == len(segment.actions)
        return Trajectories(self._observations(index, numbers, rows), actions, rewards, lengths, terminated)

    def sample_rewards(self, batch_size: int, rng: np.random.Generator) -> RewardExamples:
        """
        Draw transitions whose reward is to be predicted, half of them with a reward and half without (Jaderberg et al. 2017),
        or all of one kind while there is no other.

        :param batch_size: B, how many; of an odd number, one more is without
        :param rng: for the draws
        :return: what was seen before each, and the reward
        :raises ValueError: if no episode has ended yet
        """
        index = self._indexed()
        numbers, steps = index.draw_rewards(batch_size, rng)
        rows = np.maximum(steps[:, None] + np.arange(1 - HISTORY, 1), 0)
        rewards = [index.segments[number].rewards[step] for number, step in zip(numbers, steps, strict=True)]
        return RewardExamples(self._observations(index, numbers, rows), np.array(rewards, np.float32))

    def get_checkpoint_state(self) -> dict[str, Any]:
        """:return: all of it, as a plain tree; some arrays are the buffer's own, to be written before anything is added"""
        ongoing = [
            {
                "segments": pack(one.segments),
                "frames": list(one.frames),
                "actions": list(one.actions),
                "rewards": list(one.rewards),
                "last": one.last,
            }
            for one in self._ongoing
        ]
        return {
            "built": self._built(),
            "frames": self.frames.get_checkpoint_state(),
            "episodes": [[score, number, len(segments)] for score, number, segments in self._best],
            "segments": pack([segment for *_, segments in self._best for segment in segments]),
            "ended": self._ended,
            "ongoing": ongoing,
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        :param state: of :meth:`get_checkpoint_state`, of a buffer built in the same way
        :raises ValueError: if it was built in another way; nothing has changed then
        """
        for name, value in self._built().items():
            if state["built"][name] != value:
                raise ValueError(f"the state is of an episode buffer with {name}={state['built'][name]!r}, not {value!r}")
        self.frames.set_checkpoint_state(state["frames"])
        segments = iter(unpack(state["segments"]))
        self._best = [(score, number, [next(segments) for _ in range(n)]) for score, number, n in state["episodes"]]
        self._ended = state["ended"]
        self._ongoing = []
        for one in state["ongoing"]:
            ongoing = _Ongoing()
            ongoing.segments = unpack(one["segments"])
            ongoing.frames, ongoing.actions, ongoing.rewards = (list(one[name]) for name in ("frames", "actions", "rewards"))
            ongoing.last = one["last"]
            self._ongoing.append(ongoing)
        self._index = None

    def _built(self) -> dict[str, Any]:
        return {
            "shape": list(self.shape),
            "dtype": self.dtype.str,
            "capacity": self.capacity,
            "n_stack": self.stacks.n_stack,
            "stack_axis": self.stacks.axis,
        }

    def _checked(self, observations: NDArray[Any], name: str) -> NDArray[Any]:
        array = np.asarray(observations)
        if array.shape[1:] != self.shape or array.ndim != len(self.shape) + 1 or array.dtype != self.dtype:
            raise ValueError(
                f"{name} must have shape (n, *{self.shape}) and dtype {self.dtype}, as the observation space has, got "
                f"{array.shape} and {array.dtype}"
            )
        return array

    def _begin(self, env: int, observation: NDArray[Any]) -> None:
        """Of the frames of a first observation many are often the same, black or repeated: those are kept once."""
        ongoing = self._ongoing[env]
        ongoing.last = observation.copy()
        stack = self.stacks.split(observation[None])[0]
        new = [row for row in range(len(stack)) if row == 0 or stack[row].tobytes() != stack[row - 1].tobytes()]
        ids = self.frames.append(np.ascontiguousarray(stack[new]), [env] * len(new))
        ongoing.frames = ids[np.searchsorted(new, np.arange(len(stack)), side="right") - 1].tolist()

    def _end(self, ongoing: _Ongoing, score: float, env: int) -> None:
        if not math.isfinite(score):
            raise ValueError(f"the return of an episode of environment {env} is {score}")
        segments, ongoing.segments = ongoing.segments, []
        episode = (score, self._ended, segments)
        self._ended += 1
        if len(self._best) < self.capacity:
            heapq.heappush(self._best, episode)
        else:
            worst = heapq.heappushpop(self._best, episode)
            self.frames.free(frame_ids(worst[2]))
        self._index = None

    def _indexed(self) -> SegmentIndex:
        if not self._best:
            raise ValueError("cannot sample from an episode buffer before the first episode has ended")
        if self._index is None:
            self._index = SegmentIndex([segment for *_, segments in self._best for segment in segments])
        return self._index

    def _observations(self, index: SegmentIndex, numbers: NDArray[np.intp], rows: NDArray[Any]) -> NDArray[Any]:
        """:param rows: of each segment in ``numbers`` the observations wanted, by their places in it, shape (B, m)"""
        window = np.arange(self.stacks.n_stack)
        ids = np.stack(
            [index.segments[number].frames[row[:, None] + window] for number, row in zip(numbers, rows, strict=True)]
        )
        # a frame that several observations share is fetched, and where it must be decompressed, once
        unique, inverse = np.unique(ids, return_inverse=True)
        frames = self.frames.get(unique)[inverse.reshape(-1, self.stacks.n_stack)]
        return self.stacks.join(frames).reshape(*rows.shape, *self.shape)
