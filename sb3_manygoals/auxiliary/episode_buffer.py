"""The best episodes of an agent, and trajectories sampled from them."""

from __future__ import annotations

import heapq
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_manygoals.checkpoint.tree import check_same
from sb3_manygoals.errors import check_finite, own_observation, own_rewards
from sb3_manygoals.frames import Frames, FrameStore
from sb3_manygoals.goals.spaces import check_goal_space
from sb3_manygoals.validation import as_held, check_count

HISTORY = 3
"""Number of observations from which a reward is predicted (Jaderberg et al. 2017)."""
# No game has so many lives. After so many ends in a row without a return, the buffer warns.
_MOST_LIVES = 100
# An episode counts as endless if it is so many times as long as any episode that ended.
_ENDLESS = 10


class Trajectories(NamedTuple):
    """
    B trajectories of n transitions each, or fewer if the episode is shorter.

    :param observations: the dtype of the space, shape (B, n + 1, *observation_space.shape). The
        last observation of a shorter trajectory is repeated
    :param actions: int64, shape (B, n), zeros after a shorter trajectory
    :param rewards: rewards as the learner saw them, float32, shape (B, n), zeros after a shorter
        trajectory
    :param lengths: number of transitions, int64, shape (B,)
    :param terminated: whether the last transition ended the episode, and no time limit did, bool,
        shape (B,)
    """

    observations: NDArray[Any]
    actions: NDArray[np.int64]
    rewards: NDArray[np.float32]
    lengths: NDArray[np.int64]
    terminated: NDArray[np.bool_]


class _Segment(NamedTuple):
    """Consecutive transitions: an episode, or one life of a game that has several."""

    frames: Frames
    """All frames of the first observation, then the newest frame of each other observation."""
    actions: NDArray[np.int64]
    rewards: NDArray[np.float32]
    terminated: bool


class _Index(NamedTuple):
    """All kept segments joined, so that many transitions are found at once."""

    segments: list[_Segment]
    actions: NDArray[np.int64]
    rewards: NDArray[np.float32]
    lengths: NDArray[np.int64]
    terminated: NDArray[np.bool_]
    unrewarded: NDArray[np.intp]
    """Places in ``rewards`` without a reward."""
    rewarded: NDArray[np.intp]
    """Places in ``rewards`` with a reward."""


@dataclass
class _Ongoing:
    """An episode of one environment that has not ended."""

    frames: list[bytes]
    segments: list[_Segment]
    """Lives of the episode that are over."""
    returns: list[float] = field(default_factory=list)
    """For each of these lives, the sum of its rewards as the environment gave them."""
    actions: list[int] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    gained: float = 0.0
    """Sum of the rewards of the life that goes on, as the environment gave them."""
    n_cut: int = 0
    """
    Transitions of the same episode that are in pieces, which were cut off. 1 also stands for an
    unknown number of transitions that were not seen.
    """

    @property
    def total(self) -> float:
        """Sum of the rewards of all lives, as the environment gave them."""
        return math.fsum([*self.returns, self.gained])

    @property
    def n_steps(self) -> int:
        """Number of transitions that are not in pieces."""
        return len(self.actions) + sum(len(life.actions) for life in self.segments)


class EpisodeBuffer:
    """
    The K complete episodes with the highest returns. Of equal returns, the later episode counts.

    Trajectories are sampled uniformly, as Veeriah et al. (2018) do with K = 2000.

    A Monitor gives the return of an episode (``infos[i]["episode"]``), before rewards are clipped.
    If an episode of the learner ends without a return, as at a lost life, it is part of the next
    episode that has one, unless the Monitor's length (``infos[i]["episode"]["l"]``) shows that the
    world was reset between them. Without a Monitor, or if a wrapper around the Monitor ends the
    episode, the return is the sum of the rewards.

    Endless episodes are cut into pieces. A piece ends when it has ``cut_after`` steps and is ten
    times as long as any episode that ended so far. It is kept as an episode that a time limit has
    ended, with the sum of its rewards as return, and the world goes on. Pieces take only the room
    that complete episodes leave.

    A frame that several observations share is kept once. Consecutive observations must be stacks of
    ``n_stack`` frames that overlap, which is checked.

    :param observation_space: the learner's space: Box, Discrete, MultiDiscrete or MultiBinary
    :param capacity: K, the largest number of episodes and pieces
    :param n_stack: frames in an observation along its first axis, the newest last. That is the axis
        of channels in a learner's images
    :param compress: whether frames are compressed without loss; this needs lz4. See
        :class:`~sb3_manygoals.frames.FrameStore`
    :param normalized: whether VecNormalize makes the observations. They are float32 then, also if
        the space has another dtype
    :param cut_after: the least number of steps in a piece of an endless episode; None: no episode
        is cut
    :raises TypeError: if observations are not single arrays of fixed shape
    :raises ValueError: if ``capacity``, ``n_stack`` or ``cut_after`` is not a positive whole
        number, or observations cannot be cut into that many frames
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
        self.monitor_is_silent = False
        """Whether so many ends had no return of their Monitor that each is that of an episode."""
        self.recorder: object = None
        """The callback that fills the buffer. Others may share it."""
        # A heap of episodes and pieces: whether it is complete, return, number, segments.
        self._best: list[tuple[bool, float, int, list[_Segment]]] = []
        self._n_ended = 0
        # Number of steps of the longest episode that ended.
        self._longest = 0
        self._ongoing: list[_Ongoing] = []
        # Whether the next transition is the first after a start that kept ongoing episodes, or
        # after somebody moved the environments.
        self._goes_on = False
        self._have_moved = False
        # None if episodes were added since it was made.
        self._index: _Index | None = None

    def __len__(self) -> int:
        """Return the number of episodes and pieces that are kept."""
        return len(self._best)

    @property
    def returns(self) -> NDArray[np.float64]:
        """Returns of the episodes and pieces that are kept, in ascending order."""
        return np.sort(np.array([score for _, score, *_ in self._best], dtype=np.float64))

    @property
    def n_transitions(self) -> int:
        """Number of transitions in the episodes and pieces that are kept."""
        return sum(len(segment.actions) for segment in self._segments)

    @property
    def n_frames(self) -> int:
        """Number of frames in memory, of ongoing episodes too. A shared frame counts once."""
        parts: list[Iterable[bytes]] = [segment.frames for segment in self._segments]
        for one in self._ongoing:
            parts += [one.frames, *(life.frames for life in one.segments)]
        return len({id(frame) for part in parts for frame in part})

    def start(
        self,
        observations: NDArray[Any],
        keep_ongoing: bool = False,
        are_new: NDArray[np.bool_] | None = None,
        have_moved: bool = False,
    ) -> None:
        """
        Drop unfinished episodes and begin new ones.

        An episode whose begin was not seen counts as a piece, with the sum of its rewards. Only the
        learner's episode is known. If it is a life of a game, earlier lives may not have been seen,
        and the Monitor's return counts them.

        :param observations: what the environments show now, shape
            (n_envs, *observation_space.shape)
        :param keep_ongoing: whether to go on with the episode of an environment that shows the
            observation that was added last
        :param are_new: whether each environment's episode has just begun, bool, shape (n_envs,).
            None: all have
        :param have_moved: whether somebody else acted in the environments, so that they do not show
            ``observations`` any more. Then no episode goes on, and the first transition is left out
        :raises ValueError: if the shape is not the space's, or the dtype cannot be converted to the
            space's, see :meth:`add`
        """
        stacks = self.frames.put(self._in_dtype(observations)).tolist()
        self._goes_on = keep_ongoing
        self._have_moved = have_moved
        kept = self._ongoing[: len(stacks)] if keep_ongoing and not have_moved else []
        if are_new is None:
            are_new = np.ones(len(stacks), np.bool_)
        self._ongoing = [
            _Ongoing(stack, [], n_cut=int(not is_new))
            for stack, is_new in zip(stacks, are_new, strict=True)
        ]
        for env, ongoing in enumerate(kept):
            stack = stacks[env]
            if ongoing.frames[-len(stack) :] == stack:
                self._ongoing[env] = ongoing

    def add(
        self,
        actions: NDArray[Any],
        rewards: NDArray[Any],
        dones: NDArray[Any],
        observations: NDArray[Any],
        infos: Sequence[dict[str, Any]],
        original_rewards: NDArray[Any] | None = None,
    ) -> None:
        """
        Add one transition of each environment.

        An environment that is done goes on from ``observations``.

        SB3's SubprocVecEnv passes on the dtype that the environments give. It is converted to the
        space's where NumPy's rule "same_kind" allows it, as from float64 to float32.

        :param actions: actions taken, integers, shape (n_envs,)
        :param rewards: rewards as the learner sees them, shape (n_envs,)
        :param dones: whether the learner's episode ended, bool, shape (n_envs,)
        :param observations: observations after the transition, or the first ones of the next
            episode where the episode ended, shape (n_envs, *observation_space.shape)
        :param infos: infos of SB3's VecEnv, one for each environment. "terminal_observation",
            "TimeLimit.truncated" and "episode" are read
        :param original_rewards: rewards as the environments gave them, of which returns are sums,
            shape (n_envs,). None: ``rewards``
        :raises ValueError: if the number of environments is not that of :meth:`start`, a shape is
            not the space's, a dtype cannot be converted to the space's, observations are not
            overlapping stacks, a terminal observation is missing, a reward is not one finite
            number, or a return is not finite
        """
        if len(observations) != len(self._ongoing):
            raise ValueError(
                f"observations must be of {len(self._ongoing)} environments, as at start(),"
                f" got {len(observations)}"
            )
        # None counts as no number, because the learner's own memory makes NaN of it.
        rewards = own_rewards(rewards, len(observations), self, none_counts=False)
        check_finite(rewards, "a reward", self)
        gained = rewards
        if original_rewards is not None:
            gained = own_rewards(original_rewards, len(observations), self, none_counts=False)
        frames = self.frames
        observations = self._in_dtype(observations)
        reached = observations.copy()
        for env in np.flatnonzero(dones).tolist():
            terminal = infos[env].get("terminal_observation")
            reached[env] = own_observation(
                terminal, frames.shape, frames.dtype, "a terminal_observation", self, env
            )
        stacks = frames.put(reached).tolist()
        may_have_moved = self._goes_on
        have_moved = self._have_moved
        self._goes_on = False
        self._have_moved = False
        for env, (ongoing, (*older, newest)) in enumerate(zip(self._ongoing, stacks, strict=True)):
            overlaps = older == ongoing.frames[len(ongoing.frames) - len(older) :]
            if have_moved or (not overlaps and may_have_moved):
                # An evaluation has used the environment since, so another episode follows. This
                # transition, which may be its first, is not known.
                [stack] = frames.put(observations[env : env + 1], [env]).tolist()
                self._ongoing[env] = _Ongoing(stack, [], n_cut=int(not dones[env]))
                continue
            if not overlaps:
                raise ValueError(
                    f"n_stack={frames.n_stack} along the first axis, but an observation of"
                    f" environment {env} does not begin with the newest frames of the one before"
                )
            ongoing.frames.append(newest)
            ongoing.actions.append(int(actions[env]))
            ongoing.rewards.append(float(rewards[env]))
            ongoing.gained += float(gained[env])
            if dones[env]:
                self._end(env, observations[env], infos[env])
            elif self._is_endless(ongoing):
                self._cut(env)

    def sample(self, batch_size: int, n_steps: int, rng: np.random.Generator) -> Trajectories:
        """
        Sample trajectories uniformly, with replacement.

        Each transition that ``n_steps`` - 1 others follow is equally likely to be the first of a
        trajectory. A life or episode that is shorter counts as one trajectory.

        :param batch_size: B, the number of trajectories
        :param n_steps: n, the length of a trajectory
        :param rng: generator of the sample
        :return: the trajectories
        :raises ValueError: if no episode has ended yet
        """
        index = self._indexed()
        n_starts = np.maximum(index.lengths - n_steps + 1, 1)
        ends = np.cumsum(n_starts)
        segments, starts = _place(rng.integers(ends[-1], size=batch_size), ends)
        n_left = index.lengths[segments] - starts
        lengths = np.minimum(n_left, n_steps)
        is_real = np.arange(n_steps) < lengths[:, None]
        # Places of the transitions in the joined arrays.
        firsts = np.cumsum(index.lengths)[segments] - n_left
        places = np.where(is_real, firsts[:, None] + np.arange(n_steps), 0)
        # The last observation is repeated.
        rows = starts[:, None] + np.minimum(np.arange(n_steps + 1), lengths[:, None])
        return Trajectories(
            observations=self._observations(segments, rows),
            actions=np.where(is_real, index.actions[places], 0),
            rewards=np.where(is_real, index.rewards[places], 0),
            lengths=lengths,
            terminated=index.terminated[segments] & (n_left <= n_steps),
        )

    def sample_rewards(
        self, batch_size: int, rng: np.random.Generator
    ) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """
        Sample transitions, half of them with a reward (Jaderberg et al. 2017).

        If all transitions are of one kind, all of the sample are.

        :param batch_size: B, the number of transitions. If it is odd, one more is without a reward
        :param rng: generator of the sample
        :return: the last three observations before each transition, oldest first, shape
            (B, 3, *observation_space.shape); and the rewards, float32, shape (B,). Near the start
            of an episode, its first observation is repeated
        :raises ValueError: if no episode has ended yet
        """
        index = self._indexed()
        n_rewarded = batch_size // 2
        if len(index.rewarded) == 0:
            n_rewarded = 0
        elif len(index.unrewarded) == 0:
            n_rewarded = batch_size
        sampled = [
            kind[rng.integers(len(kind), size=n)]
            for kind, n in (
                (index.unrewarded, batch_size - n_rewarded),
                (index.rewarded, n_rewarded),
            )
            if n > 0
        ]
        places = np.concatenate(sampled)
        segments, steps = _place(places, np.cumsum(index.lengths))
        rows = np.maximum(steps[:, None] + np.arange(1 - HISTORY, 1), 0)
        return self._observations(segments, rows), index.rewards[places]

    def _in_dtype(self, observations: NDArray[Any]) -> NDArray[Any]:
        """
        Return observations in the dtype of the space.

        Raise a ValueError if numbers would become others in another dtype of whole numbers. Floats
        are rounded. A dtype of another kind is returned as it is: the store of frames refuses it.
        """
        if not np.can_cast(observations.dtype, self.frames.dtype, "same_kind"):
            return observations
        return as_held(observations, self.frames.dtype, "observations")

    def get_checkpoint_state(self) -> dict[str, Any]:
        """
        Return the state for a checkpoint.

        :return: a plain tree of all that the buffer holds
        """
        episodes = [[*kept, len(lives)] for *kept, lives in self._best]
        ongoing = [
            [len(one.segments), one.actions, one.rewards, one.n_cut, one.returns, one.gained]
            for one in self._ongoing
        ]
        segments = self._segments
        for one in self._ongoing:
            segments += one.segments
        frames_of_segments = np.concatenate(
            [np.empty(0, object), *(segment.frames for segment in segments)]
        )
        frames_of_ongoing = [np.array(one.frames, object) for one in self._ongoing]
        return {
            "capacity": self.capacity,
            "cut_after": self.cut_after,
            "monitored": self.monitored,
            "monitor_is_silent": self.monitor_is_silent,
            "frames": self.frames.get_checkpoint_state(frames_of_segments, *frames_of_ongoing),
            "episodes": episodes,
            "segments": _pack(segments),
            "ended": self._n_ended,
            "longest": self._longest,
            "ongoing": ongoing,
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Restore the state of a checkpoint.

        :param state: what :meth:`get_checkpoint_state` returned
        :raises CheckpointError: if ``state`` is of a buffer that was built in another way. Then
            nothing has changed
        """
        built = {"capacity": self.capacity, "cut_after": self.cut_after}
        check_same("an episode buffer", state, built)
        frames_of_segments, *frames_of_ongoing = self.frames.set_checkpoint_state(state["frames"])
        segments = _unpack(state["segments"], frames_of_segments, self.frames.n_stack)
        self._best = [
            (complete, score, number, list(islice(segments, n)))
            for complete, score, number, n in state["episodes"]
        ]
        self._ongoing = []
        for frames, saved in zip(frames_of_ongoing, state["ongoing"], strict=True):
            n, actions, rewards, n_cut, *sums = saved
            lives = list(islice(segments, n))
            # States of earlier versions have no sums. Then they are those of the learner's rewards.
            returns, gained = sums or ([_sum_of_rewards([life]) for life in lives], sum(rewards))
            self._ongoing.append(
                _Ongoing(
                    frames.tolist(),
                    lives,
                    list(returns),
                    list(actions),
                    list(rewards),
                    gained,
                    n_cut,
                )
            )
        self.monitored = state["monitored"]
        # Earlier versions had no such thing.
        self.monitor_is_silent = state.get("monitor_is_silent", False)
        self._n_ended = state["ended"]
        self._longest = state["longest"]
        self._index = None

    @property
    def _segments(self) -> list[_Segment]:
        """All segments of the episodes and pieces that are kept, a new list."""
        return [segment for *_, segments in self._best for segment in segments]

    def _is_endless(self, ongoing: _Ongoing) -> bool:
        """Whether an ongoing episode is so long that it may never end."""
        if self.cut_after is None:
            return False
        return ongoing.n_steps >= max(self.cut_after, _ENDLESS * self._longest)

    def _cut(self, env: int) -> None:
        """Keep what an environment did so far as a piece. Its episode goes on from there."""
        ongoing = self._ongoing[env]
        lives = [*ongoing.segments, _segment(ongoing, terminated=False)]
        self._keep(env, ongoing.total, lives, complete=False)
        shown = ongoing.frames[-self.frames.n_stack :]
        self._ongoing[env] = _Ongoing(shown, [], n_cut=ongoing.n_cut + ongoing.n_steps)

    def _end(self, env: int, observation: NDArray[Any], info: dict[str, Any]) -> None:
        """
        End the episode of an environment, or only a life of it.

        ``observation`` is the first one of what follows.
        """
        ongoing = self._ongoing[env]
        terminated = not info.get("TimeLimit.truncated", False)
        if ongoing.segments and (not self.monitored or _began_anew(info, ongoing)):
            # A wrapper around the Monitor has ended the episodes before, and not only lives.
            self._keep_each(env)
            self._longest = self._longest_known()
        self._longest = max(self._longest, ongoing.n_cut + ongoing.n_steps)
        lives = [*ongoing.segments, _segment(ongoing, terminated)]
        score = None if self.monitored else ongoing.gained
        if "episode" in info:
            self.monitored = True
            self.monitor_is_silent = False
            score = float(info["episode"]["r"])
        if score is None and not terminated:
            # A time limit around the Monitor has ended the episode. The Monitor does not see that.
            score = ongoing.total
        [following] = self.frames.put(observation[None], [env]).tolist()
        if score is None:
            returns = [*ongoing.returns, ongoing.gained]
            self._ongoing[env] = _Ongoing(following, lives, returns, n_cut=ongoing.n_cut)
            if len(lives) >= _MOST_LIVES:
                self._warn_of_monitor(env)
            return
        if ongoing.n_cut:
            # The Monitor's return also counts the pieces before.
            score = ongoing.total
        self._keep(env, score, lives, complete=ongoing.n_cut == 0)
        self._ongoing[env] = _Ongoing(following, [])

    def _warn_of_monitor(self, env: int) -> None:
        """Warn that an environment ends without its Monitor, and go on as if there were none."""
        warnings.warn(
            f"environment {env} ended {_MOST_LIVES} times without a return of its Monitor: from "
            "now on, each end is that of an episode, and its return is the sum of its rewards. Put "
            "the Monitor outermost",
            stacklevel=2,
        )
        self.monitored = False
        self.monitor_is_silent = True
        for each in range(len(self._ongoing)):
            self._keep_each(each)
        self._longest = self._longest_known()

    def _keep_each(self, env: int) -> None:
        """Keep what counted as lives of the episode of an environment as episodes."""
        ongoing = self._ongoing[env]
        for life, gained in zip(ongoing.segments, ongoing.returns, strict=True):
            self._keep(env, gained, [life], complete=ongoing.n_cut == 0)
            ongoing.n_cut = 0
        ongoing.segments = []
        ongoing.returns = []

    def _longest_known(self) -> int:
        """Return the steps of the longest episode that is kept, or goes on after lost lives."""
        ended = [sum(len(life.actions) for life in lives) for *_, lives in self._best]
        ended += [one.n_cut + one.n_steps - len(one.actions) for one in self._ongoing]
        return max(ended, default=0)

    def _keep(self, env: int, score: float, lives: list[_Segment], complete: bool) -> None:
        """Keep an episode or a piece, and drop the worst one if there are too many."""
        if not math.isfinite(score):
            raise ValueError(f"the return of an episode of environment {env} is {score}")
        heapq.heappush(self._best, (complete, score, self._n_ended, lives))
        self._n_ended += 1
        self._index = None
        if len(self._best) > self.capacity:
            heapq.heappop(self._best)

    def _indexed(self) -> _Index:
        """Return the index of all kept segments. Make it if episodes were added since."""
        if not self._best:
            raise ValueError(
                "cannot sample from an episode buffer before the first episode has ended"
            )
        if self._index is None:
            packed = _pack(self._segments)
            has_reward = packed["rewards"] != 0
            self._index = _Index(
                segments=self._segments,
                unrewarded=np.flatnonzero(~has_reward),
                rewarded=np.flatnonzero(has_reward),
                **packed,
            )
        return self._index

    def _observations(self, segments: NDArray[np.intp], rows: NDArray[Any]) -> NDArray[Any]:
        """
        Return m observations of each of B segments, shape (B, m, *observation_space.shape).

        ``rows`` has their places in the segment, shape (B, m).
        """
        kept = self._indexed().segments
        places_of_frames = rows[..., None] + np.arange(self.frames.n_stack)
        chosen = [
            kept[number].frames[places]
            for number, places in zip(segments.tolist(), places_of_frames, strict=True)
        ]
        return self.frames.get(np.stack(chosen))


def _began_anew(info: dict[str, Any], ongoing: _Ongoing) -> bool:
    """Return whether the Monitor saw no transition before those of the last life."""
    return "episode" in info and info["episode"].get("l") == len(ongoing.actions)


def _segment(ongoing: _Ongoing, terminated: bool) -> _Segment:
    """Return what happened since the last life was lost, as arrays."""
    frames = np.array(ongoing.frames, object)
    actions = np.array(ongoing.actions, np.int64)
    rewards = np.array(ongoing.rewards, np.float32)
    return _Segment(frames, actions, rewards, terminated)


def _sum_of_rewards(segments: Sequence[_Segment]) -> float:
    return math.fsum(float(reward) for segment in segments for reward in segment.rewards)


def _place(
    numbers: NDArray[np.int64], ends: NDArray[np.int64]
) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """
    Find the part to which each number belongs, and its place there.

    Parts follow each other. ``ends`` has the first number after each part.
    """
    parts = np.searchsorted(ends, numbers, side="right")
    return parts, numbers - np.concatenate([[0], ends[:-1]])[parts]


def _pack(segments: Sequence[_Segment]) -> dict[str, Any]:
    """
    Join segments, without their frames, to few arrays.

    Few arrays are indexed at once, and a checkpoint takes time for each array.
    """
    actions = [segment.actions for segment in segments]
    rewards = [segment.rewards for segment in segments]
    return {
        "actions": np.concatenate([np.empty(0, np.int64), *actions]),
        "rewards": np.concatenate([np.empty(0, np.float32), *rewards]),
        "lengths": np.array([len(segment.actions) for segment in segments], np.int64),
        "terminated": np.array([segment.terminated for segment in segments], np.bool_),
    }


def _unpack(packed: dict[str, Any], frames: Frames, n_stack: int) -> Iterator[_Segment]:
    """Yield the segments that :func:`_pack` joined, with their frames."""
    frame = 0
    step = 0
    for length, terminated in zip(
        packed["lengths"].tolist(), packed["terminated"].tolist(), strict=True
    ):
        steps = slice(step, step + length)
        yield _Segment(
            frames[frame : frame + length + n_stack].copy(),
            packed["actions"][steps].copy(),
            packed["rewards"][steps].copy(),
            terminated,
        )
        frame += length + n_stack
        step += length
