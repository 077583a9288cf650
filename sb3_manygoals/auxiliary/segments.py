"""Transitions in a row, and how pieces of them are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Segment(NamedTuple):
    """
    Transitions in a row, with nothing but the world's own steps between them: an episode, or a life of a game that has
    several.

    :param frames: ids of the frames, those of the first observation, then one a transition, int64
    :param actions: int64, shape (T,)
    :param rewards: as the learner saw them, float32, shape (T,)
    :param terminated: whether the world ended it, and not a time limit
    """

    frames: NDArray[np.int64]
    actions: NDArray[np.int64]
    rewards: NDArray[np.float32]
    terminated: bool


class SegmentIndex:
    """
    All transitions of some segments, to draw from uniformly.

    :param segments: at least one
    """

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = segments
        self.lengths = np.array([len(segment.actions) for segment in segments])
        self._ends = np.cumsum(self.lengths)
        self._window_ends: dict[int, NDArray[np.int64]] = {}
        rewards = np.concatenate([segment.rewards for segment in segments])
        self._kinds = (np.flatnonzero(rewards == 0), np.flatnonzero(rewards != 0))

    def draw_windows(self, n: int, n_steps: int, rng: np.random.Generator) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
        """
        :param n: how many to draw
        :param n_steps: transitions of each; a segment that has fewer counts as one whole window
        :param rng: for the draws
        :return: for each the number of its segment, and of its first transition there
        """
        ends = self._window_ends.get(n_steps)
        if ends is None:
            ends = self._window_ends[n_steps] = np.cumsum(np.maximum(self.lengths - n_steps + 1, 1))
        return _place(rng.integers(ends[-1], size=n), ends)

    def draw_rewards(self, n: int, rng: np.random.Generator) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
        """
        :param n: how many to draw, half of them with a reward and half without, or all of the only kind there is
        :param rng: for the draws
        :return: for each the number of its segment, and of the transition there
        """
        counts = [n - n // 2, n // 2] if all(map(len, self._kinds)) else [n if len(kind) else 0 for kind in self._kinds]
        drawn = [kind[rng.integers(len(kind), size=count)] for kind, count in zip(self._kinds, counts, strict=True) if count]
        return _place(np.concatenate(drawn), self._ends)


def _place(numbers: NDArray[np.int64], ends: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """Which part each number falls into, and where in it; parts are given by where they end."""
    parts = np.searchsorted(ends, numbers, side="right")
    begins = np.concatenate([[0], ends[:-1]])
    return parts, numbers - begins[parts]


def frame_ids(segments: Sequence[Segment]) -> NDArray[np.int64]:
    """
    :param segments: any number
    :return: ids of all their frames, each once
    """
    return np.unique(np.concatenate([np.empty(0, np.int64), *(segment.frames for segment in segments)]))


def pack(segments: Sequence[Segment]) -> dict[str, Any]:
    """
    :param segments: any number
    :return: the same as few arrays, for :func:`unpack`
    """
    return {
        "frames": np.concatenate([np.empty(0, np.int64), *(segment.frames for segment in segments)]),
        "frame_counts": np.array([len(segment.frames) for segment in segments], np.int64),
        "actions": np.concatenate([np.empty(0, np.int64), *(segment.actions for segment in segments)]),
        "rewards": np.concatenate([np.empty(0, np.float32), *(segment.rewards for segment in segments)]),
        "lengths": np.array([len(segment.actions) for segment in segments], np.int64),
        "terminated": np.array([segment.terminated for segment in segments], np.bool_),
    }


def unpack(packed: dict[str, Any]) -> list[Segment]:
    """
    :param packed: of :func:`pack`
    :return: the segments
    """
    frames = _cut(packed["frames"], packed["frame_counts"])
    actions, rewards = _cut(packed["actions"], packed["lengths"]), _cut(packed["rewards"], packed["lengths"])
    return [Segment(*parts) for parts in zip(frames, actions, rewards, packed["terminated"].tolist(), strict=True)]


def _cut(array: NDArray[Any], lengths: NDArray[np.int64]) -> list[NDArray[Any]]:
    ends = np.cumsum(lengths)
    return [array[end - length : end].copy() for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)]
