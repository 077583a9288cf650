"""The best episodes of an agent, and trajectories drawn from them."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_manygoals.frames import FrameStore
from sb3_manygoals.goals.buffer import check_goal_space

HISTORY = 3
"""Observations from which a reward is predicted (Jaderberg et al. 2017)."""


class Trajectories(NamedTuple):
    """
    B trajectories of n transitions, or fewer where the episode has not as many.

    :param observations: shape (B, n + 1, *observation_space.shape). The last observation of a shorter trajectory is repeated,
        so that ``observations[:, -1]`` is always the last one
    :param actions: int64, shape (B, n), zeros after a shorter trajectory
    :param rewards: as the learner saw them, float32, shape (B, n), zeros after a shorter trajectory
    :param lengths: number of transitions, int64, shape (B,)
    :param terminated: whether the last transition ended the episode, and no time limit did, bool, shape (B,)
    """

    observations: NDArray[Any]
    actions: NDArray[np.int64]
    rewards: NDArray[np.float32]
    lengths: NDArray[np.int64]
    terminated: NDArray[np.bool_]


class RewardExamples(NamedTuple):
    """
    :param observations: the last three before a transition, oldest first, shape (B, 3, *observation_space.shape). Before the
        start of an episode, its first observation is repeated
    :param rewards: of the transitions, float32, shape (B,)
    """

    observations: NDArray[Any]
    rewards: NDArray[np.float32]


class _Segment(NamedTuple):
    """Consecutive transitions: an episode, or one life of a game that has several."""

    frames: NDArray[np.int32]
    """Ids of the frames of the first observation, then of the newest one of each other."""
    actions: NDArray[np.int64]
    rewards: NDArray[np.float32]
    terminated: bool


class _Ongoing:
    """An episode of one environment that has not ended."""

    def __init__(self, frames: list[int]) -> None:
        self.segments: list[_Segment] = []  # lives that are over
        self.frames = frames
        self.actions: list[int] = []
        self.rewards: list[float] = []

    def cut(self, terminated: bool) -> _Segment:
        """:return: the transitions since the last cut"""
        frames, actions = np.array(self.frames, np.int32), np.array(self.actions, np.int64)
        self.frames, self.actions, rewards, self.rewards = [], [], self.rewards, []
        return _Segment(frames, actions, np.array(rewards, np.float32), terminated)


class _Index(NamedTuple):
    """All segments that are kept, to draw from."""

    segments: list[_Segment]
    lengths: NDArray[np.int64]
    kinds: tuple[NDArray[np.intp], NDArray[np.intp]]
    """The numbers of transitions without and with a reward, counted over all segments."""


class EpisodeBuffer:
    """
    The K episodes with the highest returns (of equal ones the later), complete. Once full, an episode is kept if it is among
    the best K, and the worst is dropped. Trajectories are drawn uniformly, as Veeriah et al. (2018) do with K = 2000.

    A frame that several observations of an episode share is kept once: 2,000 episodes of a game would not fit into memory
    otherwise. Consecutive observations must be stacks of ``n_stack`` frames that overlap, which is checked.

    :param observation_space: of the learner: Box, Discrete, MultiDiscrete or MultiBinary
    :param capacity: K
    :param n_stack: frames in an observation, the newest last
    :param stack_axis: along which they are stacked, 0 (as in the images of a learner, channels first) or -1
    :param compress: whether frames are compressed without loss; needs lz4. See :class:`~sb3_manygoals.frames.FrameStore`
    :raises TypeError: if observations are not single arrays of fixed shape
    :raises ValueError: if ``capacity`` or ``n_stack`` is no positive whole number, or observations cannot be cut into that
        many frames
    :raises ImportError: if lz4 is needed and not installed
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        capacity: int = 2000,
        n_stack: int = 1,
        stack_axis: Literal[0, -1] = 0,
        compress: bool = False,
    ) -> None:
        check_goal_space(observation_space)
        if not isinstance(capacity, (int, np.integer)) or isinstance(capacity, bool) or capacity < 1:
            raise ValueError(f"capacity must be a whole number of episodes, at least 1, got {capacity!r}")
        assert observation_space.shape is not None  # for mypy: see check_goal_space
        self.observation_space = observation_space
        self.shape: tuple[int, ...] = observation_space.shape
        self.dtype = np.dtype(observation_space.dtype)
        self.capacity = int(capacity)
        self.frames = FrameStore(self.shape, self.dtype, n_stack, stack_axis, compress)
        self.recorder: tuple[float | None, int] | None = None
        """The training and the callback that fill the buffer: one of those that share it."""
        self._best: list[tuple[float, int, list[_Segment]]] = []  # a heap: (return, number, segments)
        self._ended = 0
        self._ongoing: list[_Ongoing] = []
        self._index: _Index | None = None

    def __len__(self) -> int:
        return len(self._best)

    @property
    def returns(self) -> NDArray[np.float64]:
        """Of the episodes that are kept, in ascending order."""
        return np.sort(np.array([score for score, *_ in self._best], dtype=np.float64))

    @property
    def n_transitions(self) -> int:
        """In the episodes that are kept; unfinished ones do not count."""
        return sum(len(segment.actions) for segment in self._segments)

    @property
    def nbytes(self) -> int:
        """Bytes of all frames, and of ids, actions and rewards of the episodes that are kept."""
        return self.frames.nbytes + sum(part.nbytes for segment in self._segments for part in segment[:3])

    def start(self, observations: NDArray[Any], keep_ongoing: bool = False) -> None:
        """
        Say what the environments show now. Unfinished episodes are dropped.

        :param observations: shape (n_envs, *observation_space.shape)
        :param keep_ongoing: whether to go on with the episodes of environments that show what was added last
        :raises ValueError: if shape or dtype are not the space's
        """
        ids = self.frames.put(self._checked(observations, "observations"))
        while len(self._ongoing) > len(ids):
            self._drop(self._ongoing.pop())
        for env, first in enumerate(ids):
            if env < len(self._ongoing):
                if keep_ongoing and self._ongoing[env].frames[-len(first) :] == first.tolist():
                    continue
                self._drop(self._ongoing[env])
            self._begin(env, first)

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
        Take in one transition of each environment. An environment that is done goes on from ``observations``. Its episode is
        complete if it has a return; otherwise it is only cut there, as a game is at a lost life.

        :param actions: shape (n_envs,)
        :param rewards: as the learner sees them, shape (n_envs,)
        :param dones: whether the learner's episode ended, shape (n_envs,)
        :param observations: after the transition, of the next episode where one was done, shape (n_envs,
            *observation_space.shape)
        :param terminal_observations: the last ones of episodes that are done, None elsewhere
        :param truncated: whether an episode that is done was ended by a time limit
        :param returns: of complete episodes, which are ranked by them, None elsewhere
        :raises ValueError: if the number of environments is not that of :meth:`start`, a shape or dtype is not the space's,
            observations are not overlapping stacks, a terminal observation is missing, or a return is not finite
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
        ids = self.frames.put(reached)
        self.frames.hold(ids[:, -1])
        for env, (ongoing, (*older, newest)) in enumerate(zip(self._ongoing, ids.tolist(), strict=True)):
            if older != ongoing.frames[len(ongoing.frames) - len(older) :]:
                raise ValueError(
                    f"n_stack={self.frames.n_stack} along axis {self.frames.stack_axis}, but an observation of environment "
                    f"{env} does not begin with the newest frames of the one before"
                )
            ongoing.frames.append(newest)
            ongoing.actions.append(int(actions[env]))
            ongoing.rewards.append(float(rewards[env]))
            if dones[env]:
                ongoing.segments.append(ongoing.cut(terminated=not truncated[env]))
                score, first = returns[env], self.frames.put(observations[env][None], [env])[0]
                if score is None:
                    self._begin(env, first, ongoing.segments)
                else:
                    self._end(ongoing.segments, float(score), env)
                    self._begin(env, first)

    def rewards_so_far(self, env: int) -> float:
        """
        :param env: index of an environment
        :return: sum of the rewards of its unfinished episode
        """
        ongoing = self._ongoing[env]
        return sum(float(segment.rewards.sum()) for segment in ongoing.segments) + math.fsum(ongoing.rewards)

    def sample(self, batch_size: int, n_steps: int, rng: np.random.Generator) -> Trajectories:
        """
        Draw trajectories uniformly, with replacement: each transition that ``n_steps`` - 1 others follow is equally likely to
        be the first. A life or episode that is shorter counts as one trajectory.

        :param batch_size: B, the number of trajectories
        :param n_steps: n, their length
        :param rng: for the draws
        :return: the trajectories
        :raises ValueError: if no episode has ended yet
        """
        index = self._indexed()
        ends = np.cumsum(np.maximum(index.lengths - n_steps + 1, 1))
        numbers, starts = _place(rng.integers(ends[-1], size=batch_size), ends)
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

        :param batch_size: B, their number; of an odd number, one more is without
        :param rng: for the draws
        :return: what was seen before each, and the reward
        :raises ValueError: if no episode has ended yet
        """
        index, n = self._indexed(), batch_size
        counts = [n - n // 2, n // 2] if all(map(len, index.kinds)) else [n if len(kind) else 0 for kind in index.kinds]
        drawn = [kind[rng.integers(len(kind), size=size)] for kind, size in zip(index.kinds, counts, strict=True) if size]
        numbers, steps = _place(np.concatenate(drawn), np.cumsum(index.lengths))
        rows = np.maximum(steps[:, None] + np.arange(1 - HISTORY, 1), 0)
        rewards = [index.segments[number].rewards[step] for number, step in zip(numbers, steps, strict=True)]
        return RewardExamples(self._observations(index, numbers, rows), np.array(rewards, np.float32))

    def get_checkpoint_state(self) -> dict[str, Any]:
        """:return: all of it, as a plain tree; some arrays are the buffer's own, to be written before anything is added"""
        ongoing = []
        for one in self._ongoing:
            unfinished = _Segment(np.array(one.frames), np.array(one.actions), np.array(one.rewards), False)
            ongoing.append(_pack([*one.segments, unfinished], np.float64))
        return {
            "capacity": self.capacity,
            "frames": self.frames.get_checkpoint_state(),
            "episodes": [[score, number, len(segments)] for score, number, segments in self._best],
            "segments": _pack(self._segments),
            "ended": self._ended,
            "ongoing": ongoing,
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        :param state: of :meth:`get_checkpoint_state`, of a buffer built in the same way
        :raises ValueError: if it was built in another way; nothing has changed then
        """
        if state["capacity"] != self.capacity:
            raise ValueError(f"the state is of an episode buffer with capacity={state['capacity']!r}, not {self.capacity!r}")
        self.frames.set_checkpoint_state(state["frames"])
        segments = iter(_unpack(state["segments"]))
        self._best = [(score, number, [next(segments) for _ in range(n)]) for score, number, n in state["episodes"]]
        self._ended = state["ended"]
        self._ongoing = []
        for packed in state["ongoing"]:
            *lives, unfinished = _unpack(packed)
            ongoing = _Ongoing(unfinished.frames.tolist())
            ongoing.segments = [life._replace(rewards=life.rewards.astype(np.float32)) for life in lives]
            ongoing.actions, ongoing.rewards = unfinished.actions.tolist(), unfinished.rewards.tolist()
            self._ongoing.append(ongoing)
        self._index = None

    @property
    def _segments(self) -> list[_Segment]:
        return [segment for *_, segments in self._best for segment in segments]

    def _checked(self, observations: NDArray[Any], name: str) -> NDArray[Any]:
        array = np.asarray(observations)
        if array.shape[1:] != self.shape or array.ndim != len(self.shape) + 1 or array.dtype != self.dtype:
            raise ValueError(
                f"{name} must have shape (n, *{self.shape}) and dtype {self.dtype}, as the observation space has, got "
                f"{array.shape} and {array.dtype}"
            )
        return array

    def _begin(self, env: int, first: NDArray[np.int32], lives: list[_Segment] | None = None) -> None:
        """Begin a life: of a new episode, or after those that are over."""
        self.frames.hold(first)
        ongoing = _Ongoing(first.tolist())
        ongoing.segments = lives or []
        self._ongoing[env : env + 1] = [ongoing]

    def _end(self, segments: list[_Segment], score: float, env: int) -> None:
        if not math.isfinite(score):
            raise ValueError(f"the return of an episode of environment {env} is {score}")
        episode = (score, self._ended, segments)
        self._ended += 1
        if len(self._best) < self.capacity:
            heapq.heappush(self._best, episode)
        else:
            for segment in heapq.heappushpop(self._best, episode)[2]:
                self.frames.release(segment.frames)
        self._index = None

    def _drop(self, ongoing: _Ongoing) -> None:
        self.frames.release(ongoing.frames)
        for segment in ongoing.segments:
            self.frames.release(segment.frames)

    def _indexed(self) -> _Index:
        if not self._best:
            raise ValueError("cannot sample from an episode buffer before the first episode has ended")
        if self._index is None:
            segments = self._segments
            rewards = np.concatenate([segment.rewards for segment in segments])
            lengths = np.array([len(segment.actions) for segment in segments])
            self._index = _Index(segments, lengths, (np.flatnonzero(rewards == 0), np.flatnonzero(rewards != 0)))
        return self._index

    def _observations(self, index: _Index, numbers: NDArray[np.intp], rows: NDArray[Any]) -> NDArray[Any]:
        """:param rows: of each segment in ``numbers`` the observations wanted, by their places in it, shape (B, m)"""
        places = rows[..., None] + np.arange(self.frames.n_stack)
        ids = [index.segments[number].frames[wanted] for number, wanted in zip(numbers, places, strict=True)]
        return self.frames.get(np.stack(ids))


def _place(numbers: NDArray[np.int64], ends: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """The part each number falls into, and the place there; parts are given by where they end."""
    parts = np.searchsorted(ends, numbers, side="right")
    begins = np.concatenate([[0], ends[:-1]])
    return parts, numbers - begins[parts]


def _pack(segments: Sequence[_Segment], rewards: Any = np.float32) -> dict[str, NDArray[Any]]:
    """:return: the same as few arrays, for :func:`_unpack`"""

    def joined(place: int, dtype: Any) -> NDArray[Any]:
        return np.concatenate([np.empty(0), *(segment[place] for segment in segments)]).astype(dtype)

    return {
        "frames": joined(0, np.int32),
        "actions": joined(1, np.int64),
        "rewards": joined(2, rewards),
        "frame_ends": np.cumsum([len(segment.frames) for segment in segments], dtype=np.int64),
        "ends": np.cumsum([len(segment.actions) for segment in segments], dtype=np.int64),
        "terminated": np.array([segment.terminated for segment in segments], np.bool_),
    }


def _unpack(packed: dict[str, NDArray[Any]]) -> list[_Segment]:
    cuts = {"frames": packed["frame_ends"], "actions": packed["ends"], "rewards": packed["ends"]}
    parts = [[part.copy() for part in np.split(packed[name], ends)[:-1]] for name, ends in cuts.items()]
    return [_Segment(*one) for one in zip(*parts, packed["terminated"].tolist(), strict=True)]
