"""Goals that are the observations in a replay memory, for worlds with too many observations to keep."""

import hashlib
import os
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_manygoals.checkpoint.tree import check_same
from sb3_manygoals.goals import GoalBuffer, UniformSelector
from sb3_manygoals.goals.buffer import check_inside
from sb3_manygoals.goals.tracker import GoalTracker
from sb3_manygoals.many_goals_dqn.replay_buffer import ManyGoalsReplayBuffer

_MOST_FIRST = 100  # observations kept while there is no transition


class ReplayGoals(GoalBuffer):
    """
    A goal buffer that keeps nothing itself. Its goals are the next observations in the replay memory, each as often as it is
    there, and are forgotten with their transitions, as in section 4 of Veeriah et al. (2018) for Atari. While there are no
    transitions yet, the goals are the last observations met. The id of a goal is a hash of its bytes, of 63 bits: two of four
    million different ones share one with a probability of one in a million.

    :param observation_space: of the observations: Box, Discrete, MultiDiscrete or MultiBinary
    """

    def __init__(self, observation_space: spaces.Space[Any]) -> None:
        super().__init__(observation_space, 1)
        self.capacity = 0  # for whoever makes an array with an entry for each id
        self.replay_buffer: ManyGoalsReplayBuffer | None = (
            None  # whose next observations are the goals
        )
        self._first: dict[int, NDArray[Any]] = {}
        self._drawn: dict[
            int, int
        ] = {}  # ids and rows of the last draw, which need not be searched for
        self._salt = f"{self.dtype.str}{self.shape}".encode()[:64]

    def __len__(self) -> int:
        return len(self._ids_by_row)

    def __getitem__(self, ids: NDArray[np.integer[Any]] | int | slice) -> NDArray[Any]:
        """As of a GoalBuffer. An IndexError if there is no such goal now, or ``ids`` is a slice."""
        if isinstance(ids, slice):
            raise IndexError("goals in a replay memory have no order: ask for them by their ids")
        replay, known, wanted, found = self._filled, self._ids_by_row, np.asarray(ids), []
        for number in wanted.reshape(-1).tolist():
            row = self._drawn.get(number, -1)
            rows = (
                [row]
                if 0 <= row < len(known) and known[row] == number
                else np.flatnonzero(known == number)
            )
            if len(rows) == 0:
                raise IndexError(f"there is no goal with the id {number} in the replay memory")
            found.append(
                self._first[number]
                if replay is None
                else replay.next_observations[divmod(rows[0], replay.n_envs)]
            )
        return np.array(found, dtype=self.dtype).reshape(*wanted.shape, *self.shape)

    @property
    def observations(self) -> NDArray[Any]:
        replay = self._filled
        rows = (
            np.array(list(self._first.values()))
            if replay is None
            else replay.next_observations[: replay.size()]
        )
        return rows.astype(self.dtype, copy=False).reshape(-1, *self.shape)

    def add(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        """The ids of observations, which are goals once they are in the replay memory."""
        if self._is_discrete:
            check_inside(
                self.observation_space, self.check(observations, "observations"), "observations"
            )
        ids = self.ids(observations)
        if self._filled is None:
            self._first.update(zip(ids.tolist(), np.array(observations), strict=True))
            while len(self._first) > _MOST_FIRST:
                del self._first[next(iter(self._first))]
        else:
            self._first.clear()
        return ids

    def have_met(self, observations: NDArray[Any]) -> NDArray[np.bool_]:
        """Whether each of these is in the replay memory now, shape ``(n,)``."""
        if len(self) == 0:
            return np.zeros(len(observations), np.bool_)
        return np.isin(self.ids(observations), self._ids_by_row)

    def ids(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        """The ids of observations, whether they are goals now or not."""
        rows = np.ascontiguousarray(self.check(observations, "observations"))
        digests = b"".join(
            hashlib.blake2b(row.tobytes(), digest_size=8, key=self._salt).digest() for row in rows
        )
        return (np.frombuffer(digests, dtype="<u8") >> np.uint64(1)).astype(np.int64)

    def record(
        self, ids: NDArray[np.int64], rewards: NDArray[Any], ended: NDArray[np.bool_]
    ) -> None:
        """Nothing: rewards would be forgotten with the goals."""

    def sample_ids(self, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        rows = super().sample_ids(n, rng)
        ids = self._ids_by_row[rows]
        self._drawn = dict(zip(ids.tolist(), rows.tolist(), strict=True))
        return ids

    def sample_others(
        self, current_ids: NDArray[np.int64], rng: np.random.Generator
    ) -> NDArray[np.int64]:
        known = self._ids_by_row
        chosen = np.empty(len(current_ids), dtype=np.int64)
        for row, current in enumerate(current_ids.tolist()):
            others = known[known != current]
            chosen[row] = rng.choice(others if len(others) else known)
        return chosen

    def save(self, path: str | os.PathLike[str]) -> None:
        """A TypeError: the replay memory is what can be saved."""
        raise TypeError("these goals are in the replay memory: use save_replay_buffer")

    def get_checkpoint_state(self) -> dict[str, Any]:
        """:return: the goals while there are no transitions; the replay memory is saved by itself"""
        return {**self._kind(), "first": dict(self._first)}

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """A CheckpointError if the state is of a buffer for other observations, or of one that keeps its goals itself."""
        check_same("a goal buffer", state, self._kind())
        self._first = dict(state["first"])

    @property
    def _filled(self) -> ManyGoalsReplayBuffer | None:
        """The replay memory, once it has transitions."""
        return (
            None
            if self.replay_buffer is None or self.replay_buffer.size() == 0
            else self.replay_buffer
        )

    @property
    def _ids_by_row(self) -> NDArray[np.int64]:
        replay = self._filled
        return (
            np.array(list(self._first), np.int64)
            if replay is None
            else replay.next_ids[: replay.size()].reshape(-1)
        )


def replay_goals(
    trackers: list[GoalTracker], known: GoalBuffer | None, replay_buffer: ManyGoalsReplayBuffer
) -> ReplayGoals:
    """The goals in a learner's replay memory. A ValueError if the environments have others, or select not uniformly."""
    theirs = trackers[0].goal_buffer
    if not isinstance(theirs, ReplayGoals) and (len(theirs) > 0 or theirs.has_held_out):
        raise ValueError(
            "goals_in_replay: env's goal buffer has goals or held-out observations, which would be ignored"
        )
    for selector in (tracker.selector for tracker in trackers):
        if not isinstance(selector, UniformSelector):
            raise ValueError(
                f"goals_in_replay needs the UniformSelector, as goals are forgotten, got {selector!r}"
            )
    goals = next(
        (each for each in (known, theirs) if isinstance(each, ReplayGoals)),
        ReplayGoals(theirs.observation_space),
    )
    goals.replay_buffer = replay_buffer
    return goals
