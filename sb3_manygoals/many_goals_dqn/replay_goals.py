"""Goals that are the observations in a replay memory, for worlds with too many to keep them all."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_manygoals.checkpoint.tree import check_same
from sb3_manygoals.goals import GoalBuffer, UniformSelector
from sb3_manygoals.goals.spaces import check_inside
from sb3_manygoals.goals.tracker import GoalTracker
from sb3_manygoals.many_goals_dqn.replay_buffer import ManyGoalsReplayBuffer
from sb3_manygoals.world import UNKNOWN

# While there are no transitions, so many of the last observations are goals.
_MOST_FIRST_OBSERVATIONS = 100


class ReplayGoals(GoalBuffer):
    """
    A goal buffer that keeps no goals itself. Its goals are the next observations in the replay
    memory, each as often as it is there. They are forgotten with their transitions, as in section 4
    of Veeriah et al. (2018) for Atari. While there are no transitions yet, the goals are the last
    observations that were met.

    The id of a goal is a hash of its bytes, of 63 bits. Among four million different goals, two
    share an id with a probability of one in a million. Observations have no states.

    :param observation_space: space of the observations: Box, Discrete, MultiDiscrete or MultiBinary
    :raises TypeError: if the observations cannot be goals
    """

    def __init__(self, observation_space: spaces.Space[Any]) -> None:
        super().__init__(observation_space, 1)
        # For whoever makes an array with an entry for each goal.
        self.capacity = 0
        self.replay_buffer: ManyGoalsReplayBuffer | None = None
        """The replay memory whose next observations are the goals."""
        # The goals while there are no transitions, by their ids.
        self._first_observations: dict[int, NDArray[Any]] = {}
        # The ids of the last draw, and their places in the replay memory, which saves a search.
        self._place_of_drawn: dict[int, int] = {}
        self._hash_key = f"{self.dtype.str}{self.shape}".encode()[:64]

    def __len__(self) -> int:
        return len(self._ids_by_place)

    def __getitem__(self, ids: NDArray[np.integer[Any]] | int | slice) -> NDArray[Any]:
        """
        Return the observations of goals.

        :param ids: ids of goals, of any shape
        :return: shape ``(*ids.shape, *observation_space.shape)``
        :raises IndexError: if there is no such goal now, or ``ids`` is a slice
        """
        if isinstance(ids, slice):
            raise IndexError("goals in a replay memory have no order: ask for them by their ids")
        wanted = np.asarray(ids)
        known = self._ids_by_place
        found = [self._observation_of(goal_id, known) for goal_id in wanted.reshape(-1).tolist()]
        return np.array(found, dtype=self.dtype).reshape(*wanted.shape, *self.shape)

    def _observation_of(self, goal_id: int, known: NDArray[np.integer[Any]]) -> NDArray[Any]:
        """Return the observation of a goal, whose id is one of those known."""
        place = self._place_of_drawn.get(goal_id, -1)
        if not (0 <= place < len(known) and known[place] == goal_id):
            places = np.flatnonzero(known == goal_id)
            if len(places) == 0:
                raise IndexError(f"there is no goal with the id {goal_id} in the replay memory")
            place = int(places[0])
        replay = self._filled_replay_buffer
        if replay is None:
            return self._first_observations[goal_id]
        time, env = divmod(place, replay.n_envs)
        observation: NDArray[Any] = replay.next_observations[time, env]
        return observation

    @property
    def remembers_goals(self) -> bool:
        """Whether a goal stays known. It does not: it is forgotten with its transitions."""
        return False

    @property
    def observations(self) -> NDArray[Any]:
        """All goals, each as often as it is there, shape ``(len(self), *shape)``."""
        replay = self._filled_replay_buffer
        if replay is None:
            found = np.array(list(self._first_observations.values()))
        else:
            found = replay.next_observations[: replay.size()]
        return found.astype(self.dtype, copy=False).reshape(-1, *self.shape)

    def evenly_chosen(self, n: int) -> NDArray[Any]:
        """
        Return some goals, evenly chosen from the replay memory.

        :param n: greatest number of goals
        :return: shape ``(min(n, len(self)), *shape)``
        """
        replay = self._filled_replay_buffer
        if replay is not None:
            return replay.evenly_chosen(n).astype(self.dtype, copy=False)
        # While there are no transitions, there are few goals.
        places = np.linspace(0, len(self) - 1, min(n, len(self)), dtype=np.int64)
        return self.observations[places]

    def add(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        """
        Return the ids of observations, which are goals once they are in the replay memory.

        :param observations: shape ``(n, *observation_space.shape)``, the dtype of the space
        :return: shape ``(n,)``
        :raises ValueError: if the observations do not fit the space, or a number is out of the
            range of a Discrete, MultiDiscrete or MultiBinary space
        """
        observations = self.check(observations, "observations")
        if self._is_discrete:
            check_inside(self.observation_space, observations, "observations")
        ids = self.ids(observations)
        if self._filled_replay_buffer is not None:
            self._first_observations.clear()
            return ids
        for goal_id, observation in zip(ids.tolist(), observations.copy(), strict=True):
            self._first_observations[goal_id] = observation
        while len(self._first_observations) > _MOST_FIRST_OBSERVATIONS:
            oldest = next(iter(self._first_observations))
            del self._first_observations[oldest]
        return ids

    def observe(self, observations: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """
        Return the ids of observations that environments show.

        :param observations: shape ``(n, *observation_space.shape)``, the dtype of the space
        :return: ``UNKNOWN`` for their states, and the ids of their goals, both of shape ``(n,)``
        :raises ValueError: if the observations do not fit the space, or a number is out of the
            range of a Discrete, MultiDiscrete or MultiBinary space
        """
        ids = self.add(observations)
        return np.full_like(ids, UNKNOWN), ids

    def ids(self, goals: NDArray[Any]) -> NDArray[np.int64]:
        """
        Return the ids of goals, whether they are goals now or not.

        :param goals: shape ``(n, *observation_space.shape)``, the dtype of the space
        :return: shape ``(n,)``
        :raises ValueError: if the goals do not fit the space
        """
        return self.look_up(goals)[1]

    def sample_shown(self, ids: NDArray[np.int64], rng: np.random.Generator) -> NDArray[Any]:
        """
        Return the observations of goals.

        :param ids: ids of goals, int64, shape ``(n,)``
        :param rng: not used
        :return: shape ``(n, *observation_space.shape)``
        """
        return self[ids]

    def look_up(self, observations: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """
        Return the ids of observations, whether they are goals now or not.

        :param observations: shape ``(n, *observation_space.shape)``, the dtype of the space
        :return: ``UNKNOWN`` for their states, and the ids of their goals, both of shape ``(n,)``
        :raises ValueError: if the observations do not fit the space
        """
        rows = np.ascontiguousarray(self.check(observations, "observations"))
        digests = b"".join(
            hashlib.blake2b(row.tobytes(), digest_size=8, key=self._hash_key).digest()
            for row in rows
        )
        ids = (np.frombuffer(digests, dtype="<u8") >> np.uint64(1)).astype(np.int64)
        return np.full_like(ids, UNKNOWN), ids

    def have_met(self, observations: NDArray[Any]) -> NDArray[np.bool_]:
        """
        Return whether observations are in the replay memory now.

        :param observations: shape ``(n, *observation_space.shape)``, the dtype of the space
        :return: shape ``(n,)``
        :raises ValueError: if the observations do not fit the space
        """
        if len(self) == 0:
            return np.zeros(len(observations), np.bool_)
        return np.isin(self.ids(observations), self._ids_by_place)

    def sample_ids(self, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """
        Draw goals uniformly, with replacement.

        :param n: how many
        :param rng: random generator
        :return: ids of goals, shape ``(n,)``
        :raises ValueError: if there is no goal or ``n`` is not positive
        """
        places = super().sample_ids(n, rng)
        ids = self._ids_by_place[places]
        self._place_of_drawn = dict(zip(ids.tolist(), places.tolist(), strict=True))
        return ids

    def sample_others(
        self, current_ids: NDArray[np.int64], rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """
        Draw a goal for each environment, uniformly among those that it does not show.

        :param current_ids: the goal that each environment shows, shape ``(n,)``. It is drawn only
            if there is no other goal
        :param rng: random generator
        :return: ids of goals, shape ``(n,)``
        """
        known = self._ids_by_place
        chosen = np.empty(len(current_ids), dtype=np.int64)
        for row, current in enumerate(current_ids.tolist()):
            others = known[known != current]
            chosen[row] = rng.choice(others if len(others) else known)
        return chosen

    def save(self, path: str | os.PathLike[str]) -> None:
        """
        Raise an error, because the replay memory is what can be saved.

        :param path: not used
        :raises TypeError: always
        """
        raise TypeError("these goals are in the replay memory: use save_replay_buffer")

    def get_checkpoint_state(self) -> dict[str, Any]:
        """Return the goals while there are no transitions. The replay memory is saved by itself."""
        return {**self._kind(), "first_observations": dict(self._first_observations)}

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Replace the goals that are there while there are no transitions.

        :param state: what :meth:`get_checkpoint_state` returned
        :raises CheckpointError: if it is of another kind of goal buffer
        """
        check_same("a goal buffer", state, self._kind())
        self._first_observations = dict(state["first_observations"])

    @property
    def _filled_replay_buffer(self) -> ManyGoalsReplayBuffer | None:
        """The replay memory, once it has transitions."""
        if self.replay_buffer is None or self.replay_buffer.size() == 0:
            return None
        return self.replay_buffer

    @property
    def _ids_by_place(self) -> NDArray[np.int64]:
        """The ids of all goals, each as often as it is there."""
        replay = self._filled_replay_buffer
        if replay is None:
            return np.array(list(self._first_observations), np.int64)
        return replay.next_goal_ids[: replay.size()].reshape(-1).astype(np.int64, copy=False)


def replay_goals(
    trackers: list[GoalTracker], known: GoalBuffer | None, replay_buffer: ManyGoalsReplayBuffer
) -> ReplayGoals:
    """
    Return the goals in a learner's replay memory.

    :param trackers: of the goal wrappers around its environments
    :param known: the goals that the learner has had so far, or None
    :param replay_buffer: its replay memory
    :raises ValueError: if the environments have other goals or another kind of goals, or do not
        choose goals uniformly
    """
    theirs = trackers[0].goal_buffer
    if not isinstance(theirs, ReplayGoals) and (len(theirs) > 0 or theirs.has_held_out):
        raise ValueError(
            "goals_in_replay: env's goal buffer has goals or held-out observations, which would be "
            "ignored"
        )
    kinds = [name for name, value in theirs.identity.items() if value is not None]
    if kinds:
        raise ValueError(
            f"goals_in_replay: goals are whole observations, but env's goal buffer has "
            f"{' and '.join(kinds)}"
        )
    if not issubclass(trackers[0].selector_class, UniformSelector):
        raise ValueError(
            "goals_in_replay needs the UniformSelector, because goals are forgotten, got "
            f"{trackers[0].selector_class!r}"
        )
    goals = next(
        (each for each in (known, theirs) if isinstance(each, ReplayGoals)),
        ReplayGoals(theirs.observation_space),
    )
    goals.replay_buffer = replay_buffer
    return goals
