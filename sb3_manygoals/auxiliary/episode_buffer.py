"""The best episodes of an agent, and trajectories drawn from them."""

from __future__ import annotations

import heapq
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_manygoals.checkpoint.tree import check_same
from sb3_manygoals.errors import check_finite, own_observation, own_rewards
from sb3_manygoals.frames import Frames, FrameStore
from sb3_manygoals.goals.buffer import check_goal_space
from sb3_manygoals.validation import check_count

HISTORY = 3
"""Observations from which a reward is predicted (Jaderberg et al. 2017)."""
_MOST_LIVES = 100  # ends in a row without a return: no game has as many lives
_ENDLESS = 10  # an episode that is as many times as long as any that ended is taken to be endless


class Trajectories(NamedTuple):
    """
    B trajectories of n transitions, or fewer where the episode has not as many.

    :param observations: shape (B, n + 1, *observation_space.shape); after a shorter trajectory, its last one again
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


class _Segment(NamedTuple):
    """Consecutive transitions: an episode, or one life of a game that has several."""

    frames: Frames
    """Those of the first observation, then the newest one of each other."""
    actions: NDArray[np.int64]
    rewards: NDArray[np.float32]
    terminated: bool


@dataclass
class _Ongoing:
    """An episode of one environment that has not ended."""

    frames: list[bytes]
    segments: list[_Segment]  # lives that are over
    actions: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    n_cut: int = 0
    """Transitions of the same episode that are in pieces, which were cut off."""

    @property
    def n_steps(self) -> int:
        """Transitions that are not in pieces."""
        return len(self.actions) + sum(len(life.actions) for life in self.segments)


class EpisodeBuffer:
    """
    The K episodes with the highest returns (of equal ones the later), complete. Trajectories are drawn uniformly, as Veeriah
    et al. (2018) do with K = 2000.

    A Monitor tells the return of an episode (``infos[i]["episode"]``), before rewards are clipped. What ends without a return,
    as at a lost life, is part of the next episode that has one. Without a Monitor, or where a time limit around it ends the
    episode, the return is the sum of the rewards.

    Endless episodes are cut into pieces. A piece ends when it has ``cut_after`` steps and is ten times as long as any episode
    that ended so far. It is kept as an episode that a time limit has ended, with the sum of its rewards as return, and the
    world goes on. Pieces take only the room that complete episodes leave.

    A frame that several observations share is kept once. Consecutive observations must be stacks of ``n_stack`` frames that
    overlap, which is checked.

    :param observation_space: of the learner: Box, Discrete, MultiDiscrete or MultiBinary
    :param capacity: K
    :param n_stack: frames in an observation along its first axis (that of channels, in a learner's images), the newest last
    :param compress: whether frames are compressed without loss; needs lz4. See :class:`~sb3_manygoals.frames.FrameStore`
    :param normalized: whether observations are float32 whatever the space says, as VecNormalize makes them
    :param cut_after: least number of steps in a piece of an endless episode. None: no episode is cut
    :raises TypeError: if observations are not single arrays of fixed shape
    :raises ValueError: if ``capacity``, ``n_stack`` or ``cut_after`` is no positive whole number, or observations cannot be
        cut into that many frames
    :raises ImportError: if lz4 is needed and not installed
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        capacity: int = 2000,
        n_stack: int = 1,
        compress: bool = False,
        normalized: bool = False,
        cut_after: int | None = 100,
    ) -> None:
        shape, dtype = check_goal_space(observation_space)
        self.observation_space = observation_space
        self.capacity = check_count("capacity", capacity, of="episodes")
        self.cut_after = None if cut_after is None else check_count("cut_after", cut_after)
        self.frames = FrameStore(
            shape, np.dtype(np.float32) if normalized else dtype, n_stack, compress
        )
        self.monitored = False
        """Whether only a Monitor says when an episode is complete."""
        self.recorder: object = None
        """The callback that fills the buffer, one of those that share it."""
        # a heap: (whether it is complete, return, number, segments)
        self._best: list[tuple[bool, float, int, list[_Segment]]] = []
        self._ended = 0
        self._longest = 0  # steps of the longest episode that ended
        self._ongoing: list[_Ongoing] = []
        self._goes_on = False  # for the first transition after a start that kept episodes
        self._index: dict[str, Any] | None = None

    def __len__(self) -> int:
        return len(self._best)

    @property
    def returns(self) -> NDArray[np.float64]:
        """Of the episodes and pieces that are kept, in ascending order."""
        return np.sort(np.array([score for _, score, *_ in self._best], dtype=np.float64))

    def start(self, observations: NDArray[Any], keep_ongoing: bool = False) -> None:
        """
        Drop unfinished episodes and begin new ones.

        :param observations: what the environments show now, shape (n_envs, *observation_space.shape)
        :param keep_ongoing: whether to go on with the episodes of environments that show what was added last
        :raises ValueError: if shape or dtype are not the space's
        """
        stacks, self._goes_on = self.frames.put(observations).tolist(), keep_ongoing
        del self._ongoing[len(stacks) :]
        for env, first in enumerate(stacks):
            if not (
                keep_ongoing
                and env < len(self._ongoing)
                and self._ongoing[env].frames[-len(first) :] == first
            ):
                self._ongoing[env : env + 1] = [_Ongoing(first, [])]

    def add(
        self,
        actions: NDArray[Any],
        rewards: NDArray[Any],
        dones: NDArray[Any],
        observations: NDArray[Any],
        infos: Sequence[dict[str, Any]],
    ) -> None:
        """
        Take in one transition of each environment. An environment that is done goes on from ``observations``.

        :param actions: shape (n_envs,)
        :param rewards: as the learner sees them, shape (n_envs,)
        :param dones: whether the learner's episode ended, shape (n_envs,)
        :param observations: after the transition, of the next episode where one was done, shape (n_envs,
            *observation_space.shape)
        :param infos: as SB3's VecEnvs give them; read are "terminal_observation", "TimeLimit.truncated" and "episode"
        :raises ValueError: if the number of environments is not that of :meth:`start`, a shape or dtype is not the space's,
            observations are not overlapping stacks, a terminal observation is missing, a reward is not one finite number, or a
            return is not finite
        """
        if len(observations) != len(self._ongoing):
            wanted = f"observations must be of {len(self._ongoing)} environments, as at start()"
            raise ValueError(f"{wanted}, got {len(observations)}")
        # the learner's own memory makes NaN of None
        rewards = own_rewards(rewards, len(observations), self, none_counts=False)
        reached, frames = observations.copy(), self.frames
        for env in np.flatnonzero(dones).tolist():
            last = infos[env].get("terminal_observation")
            reached[env] = own_observation(
                last, frames.shape, frames.dtype, "a terminal_observation", self, env
            )
        stacks = frames.put(reached).tolist()
        went_on, self._goes_on = self._goes_on, False
        for env, (ongoing, (*older, newest)) in enumerate(zip(self._ongoing, stacks, strict=True)):
            if older != ongoing.frames[len(ongoing.frames) - len(older) :]:
                if went_on:  # the environment was used since, by an evaluation: what follows is another episode
                    self._ongoing[env] = _Ongoing(
                        frames.put(observations[env : env + 1], [env])[0].tolist(), []
                    )
                    continue
                stated = f"n_stack={frames.n_stack} along the first axis, but an observation of environment {env}"
                raise ValueError(
                    f"{stated} does not begin with the newest frames of the one before"
                )
            ongoing.frames.append(newest)
            ongoing.actions.append(int(actions[env]))
            ongoing.rewards.append(float(rewards[env]))
            if dones[env]:
                self._end(env, observations[env], infos[env])
            elif self._is_endless(ongoing):
                self._cut(env)
        check_finite(rewards, "a reward", self)

    def sample(self, batch_size: int, n_steps: int, rng: np.random.Generator) -> Trajectories:
        """
        Draw trajectories uniformly, with replacement: each transition that ``n_steps`` - 1 others follow is equally likely to
        be the first. A life or episode that is shorter counts as one trajectory.

        :param batch_size: B, the number of trajectories
        :param n_steps: n, their length
        :raises ValueError: if no episode has ended yet
        """
        index = self._indexed()
        ends = np.cumsum(np.maximum(index["lengths"] - n_steps + 1, 1))
        segments, starts = _place(rng.integers(ends[-1], size=batch_size), ends)
        left = index["lengths"][segments] - starts
        lengths, firsts = np.minimum(left, n_steps), np.cumsum(index["lengths"])[segments] - left
        real = np.arange(n_steps) < lengths[:, None]
        places = np.where(real, firsts[:, None] + np.arange(n_steps), 0)
        actions, rewards = (
            np.where(real, index[name][places], 0) for name in ("actions", "rewards")
        )
        rows = starts[:, None] + np.minimum(
            np.arange(n_steps + 1), lengths[:, None]
        )  # the last observation is repeated
        terminated = index["terminated"][segments] & (left <= n_steps)
        return Trajectories(
            self._observations(segments, rows), actions, rewards, lengths, terminated
        )

    def sample_rewards(
        self, batch_size: int, rng: np.random.Generator
    ) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """
        Draw transitions, half of them with a reward and half without (Jaderberg et al. 2017), or all of one kind while there
        is no other.

        :param batch_size: B, their number; of an odd number, one more is without
        :return: the last three observations before each, oldest first, shape (B, 3, *observation_space.shape), near the start
            of an episode its first one repeatedly; and the rewards, float32, shape (B,)
        :raises ValueError: if no episode has ended yet
        """
        index = self._indexed()
        kinds = index["kinds"]
        n_rewarded = batch_size // 2 if all(map(len, kinds)) else batch_size * bool(len(kinds[1]))
        counts = batch_size - n_rewarded, n_rewarded
        places = np.concatenate(
            [one[rng.integers(len(one), size=n)] for one, n in zip(kinds, counts, strict=True) if n]
        )
        segments, steps = _place(places, np.cumsum(index["lengths"]))
        rows = np.maximum(steps[:, None] + np.arange(1 - HISTORY, 1), 0)
        return self._observations(segments, rows), index["rewards"][places]

    def get_checkpoint_state(self) -> dict[str, Any]:
        """:return: all of it, as a plain tree"""
        episodes = [[*kept, len(lives)] for *kept, lives in self._best]
        going_on = [
            [len(one.segments), one.actions, one.rewards, one.n_cut] for one in self._ongoing
        ]
        segments = [
            *self._segments,
            *(segment for one in self._ongoing for segment in one.segments),
        ]
        ended = np.concatenate([np.empty(0, object), *(segment.frames for segment in segments)])
        ongoing = [np.array(one.frames, object) for one in self._ongoing]
        return {
            "capacity": self.capacity,
            "cut_after": self.cut_after,
            "monitored": self.monitored,
            "frames": self.frames.get_checkpoint_state(ended, *ongoing),
            "episodes": episodes,
            "segments": _pack(segments),
            "ended": self._ended,
            "longest": self._longest,
            "ongoing": going_on,
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """:raises CheckpointError: if ``state`` is not of a buffer built in the same way; nothing has changed then"""
        built = {"capacity": self.capacity, "cut_after": self.cut_after}
        check_same("an episode buffer", state, built)
        ended, *ongoing = self.frames.set_checkpoint_state(state["frames"])
        packed = state["segments"]
        sizes = packed["lengths"] + self.frames.n_stack, packed["lengths"], packed["lengths"]
        joined = zip((ended, packed["actions"], packed["rewards"]), sizes, strict=True)
        parts = [
            [part.copy() for part in np.split(whole, np.cumsum(size)[:-1])]
            for whole, size in joined
        ]
        segments = (
            _Segment(*one) for one in zip(*parts, packed["terminated"].tolist(), strict=False)
        )
        self._best = [
            (complete, score, number, list(islice(segments, n)))
            for complete, score, number, n in state["episodes"]
        ]
        self._ongoing = [
            _Ongoing(
                frames.tolist(), list(islice(segments, n)), list(actions), list(rewards), n_cut
            )
            for frames, (n, actions, rewards, n_cut) in zip(ongoing, state["ongoing"], strict=True)
        ]
        self.monitored, self._ended, self._index = state["monitored"], state["ended"], None
        self._longest = state["longest"]

    @property
    def _segments(self) -> list[_Segment]:
        return [segment for *_, segments in self._best for segment in segments]

    def _is_endless(self, ongoing: _Ongoing) -> bool:
        """Whether an episode that goes on is so long that it may never end."""
        if self.cut_after is None:
            return False
        return ongoing.n_steps >= max(self.cut_after, _ENDLESS * self._longest)

    def _cut(self, env: int) -> None:
        """Keep what an environment did so far as a piece. Its episode goes on from where it is."""
        ongoing = self._ongoing[env]
        lives = [*ongoing.segments, _segment(ongoing, terminated=False)]
        self._keep(env, _sum_of_rewards(lives), lives, complete=False)
        shown = ongoing.frames[-self.frames.n_stack :]
        self._ongoing[env] = _Ongoing(shown, [], n_cut=ongoing.n_cut + ongoing.n_steps)

    def _end(self, env: int, observation: NDArray[Any], info: dict[str, Any]) -> None:
        """End the episode of an environment, or only a life of it. ``observation`` is the first of what follows."""
        ongoing = self._ongoing[env]
        self._longest = max(self._longest, ongoing.n_cut + ongoing.n_steps)
        terminated = not info.get("TimeLimit.truncated", False)
        lives = [*ongoing.segments, _segment(ongoing, terminated)]
        score = None if self.monitored else math.fsum(ongoing.rewards)
        if "episode" in info:
            self.monitored = True
            score = float(info["episode"]["r"])
        if score is None and not terminated:
            # a time limit around the Monitor, which does not see it
            score = _sum_of_rewards(lives)
        elif score is None and len(lives) == _MOST_LIVES:
            what = f"environment {env} ended {_MOST_LIVES} times without a return of its Monitor"
            warnings.warn(
                f"{what}: its episodes are never complete. Put the Monitor outermost", stacklevel=2
            )
        following = self.frames.put(observation[None], [env])[0].tolist()
        if score is None:
            self._ongoing[env] = _Ongoing(following, lives, n_cut=ongoing.n_cut)
            return
        if ongoing.n_cut:  # the Monitor's return is also of the pieces before
            score = _sum_of_rewards(lives)
        self._keep(env, score, lives, complete=ongoing.n_cut == 0)
        self._ongoing[env] = _Ongoing(following, [])

    def _keep(self, env: int, score: float, lives: list[_Segment], complete: bool) -> None:
        """Take in an episode or a piece, and let go of the least if there are too many."""
        if not math.isfinite(score):
            raise ValueError(f"the return of an episode of environment {env} is {score}")
        heapq.heappush(self._best, (complete, score, self._ended, lives))
        self._ended += 1
        self._index = None
        if len(self._best) > self.capacity:
            heapq.heappop(self._best)

    def _indexed(self) -> dict[str, Any]:
        """All segments in few arrays, and the numbers of transitions without and with a reward, counted over all of them."""
        if not self._best:
            raise ValueError(
                "cannot sample from an episode buffer before the first episode has ended"
            )
        if self._index is None:
            self._index = {"segments": self._segments, **_pack(self._segments)}
            rewarded = self._index["rewards"] != 0
            self._index["kinds"] = [np.flatnonzero(~rewarded), np.flatnonzero(rewarded)]
        return self._index

    def _observations(self, segments: NDArray[np.intp], rows: NDArray[Any]) -> NDArray[Any]:
        """:param rows: of each segment the observations wanted, by their places in it, shape (B, m)"""
        stacks, kept = rows[..., None] + np.arange(self.frames.n_stack), self._indexed()["segments"]
        chosen = [
            kept[number].frames[places]
            for number, places in zip(segments.tolist(), stacks, strict=True)
        ]
        return self.frames.get(np.stack(chosen))


def _segment(ongoing: _Ongoing, terminated: bool) -> _Segment:
    """What went on since the last life was lost, as arrays."""
    frames = np.array(ongoing.frames, object)
    actions = np.array(ongoing.actions, np.int64)
    rewards = np.array(ongoing.rewards, np.float32)
    return _Segment(frames, actions, rewards, terminated)


def _sum_of_rewards(segments: Sequence[_Segment]) -> float:
    return math.fsum(float(reward) for segment in segments for reward in segment.rewards)


def _place(
    numbers: NDArray[np.int64], ends: NDArray[np.int64]
) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """The part each number falls into, and the place there; parts are given by where they end."""
    parts = np.searchsorted(ends, numbers, side="right")
    return parts, numbers - np.concatenate([[0], ends[:-1]])[parts]


def _pack(segments: Sequence[_Segment]) -> dict[str, Any]:
    """Few arrays in place of many, to index at once, and as each array of a checkpoint takes time. Frames are left out."""
    return {
        "actions": np.concatenate(
            [np.empty(0, np.int64), *(segment.actions for segment in segments)]
        ),
        "rewards": np.concatenate(
            [np.empty(0, np.float32), *(segment.rewards for segment in segments)]
        ),
        "lengths": np.array([len(segment.actions) for segment in segments], np.int64),
        "terminated": np.array([segment.terminated for segment in segments], np.bool_),
    }
