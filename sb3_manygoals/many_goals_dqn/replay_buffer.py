"""Replay memory of transitions without goals: these are chosen when a batch is used."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.vec_env import VecNormalize

from sb3_manygoals.action_masks import read_action_masks
from sb3_manygoals.checkpoint.added import begin_attributes, note_attributes
from sb3_manygoals.checkpoint.tree import CheckpointError, check_same
from sb3_manygoals.frames import FrameArray
from sb3_manygoals.goals import GoalBuffer
from sb3_manygoals.memory_limits import readable, share_of_memory
from sb3_manygoals.validation import check_count
from sb3_manygoals.world import UNKNOWN, ExactStates, WorldModel

# Arrays with a row for each step of the environments. Some may be None.
_OBSERVATION_ARRAYS = ("observations", "next_observations")
_OTHER_ARRAYS = (
    "actions",
    "dones",
    "env_rewards",
    "next_goal_ids",
    "behavior_goal_ids",
    "behavior_goals",
    "next_action_masks",
)
OWN_GOAL = -2
"""In place of the id of a goal that was pursued: it is no known goal, but kept itself."""
# The share of the available memory that observations may take, and goals that are kept.
_SHARE_OF_MEMORY = 0.9
# Transitions of at most so many steps, and so many bytes of observations, are read at a time.
_TIMES_AT_A_TIME = 1_000
_BYTES_AT_A_TIME = 2**27
# Of an episode, at most so many transitions before and after a given one are looked at.
_REACH = 50
# With fewer transitions nothing can be learned.
_FEWEST_TRANSITIONS = 1_000


class ManyGoalsSamples(NamedTuple):
    """A batch of S transitions (s, a, s')."""

    observations: th.Tensor
    """Observations of s, shape (S, *observation_space.shape), dtype of the space."""
    actions: th.Tensor
    """Actions a, shape (S,), int64."""
    next_observations: th.Tensor
    """Observations of s', shape (S, *observation_space.shape), dtype of the space."""
    next_goal_ids: th.Tensor
    """The goal that s' is, -1 if it is none, shape (S,), int64."""
    terminated: th.Tensor
    """Whether the environment itself terminated with s', shape (S,), bool."""
    behavior_goal_ids: th.Tensor
    """
    The goal that was pursued, shape (S,), int64. -1 for unknown ones, and ``OWN_GOAL`` for those in
    ``behavior_goals``.
    """
    next_action_mask: th.Tensor | None = None
    """The actions allowed in s', shape (S, A), bool. None: all."""
    behavior_goals: th.Tensor | None = None
    """
    The goals that were pursued and had no id, shape (S, *goal_space.shape). None: there are none.
    """


class RecordedSteps(NamedTuple):
    """N transitions between M observations."""

    observations: NDArray[Any]
    """All that was seen, shape (M, *observation_space.shape)."""
    places: NDArray[np.int64]
    """The observations in which actions were taken, by their rows, shape (N,)."""
    actions: NDArray[np.int64]
    """The actions, shape (N,)."""
    next_places: NDArray[np.int64]
    """The observations that they led to, by their rows, shape (N,)."""
    rewards: NDArray[np.float64]
    """The environment's rewards, shape (N,)."""
    terminated: NDArray[np.bool_]
    """Whether the environment terminated, shape (N,)."""


class ManyGoalsReplayBuffer(ReplayBuffer):
    """
    Replay memory of transitions (s, a, s') and the goal that s' is. Reward and end of the goal that
    was pursued are not kept, because every transition teaches the goals that it is paired with.
    ``dones`` are the environment's own terminations.

    While all observations are known states, a transition is the ids of s and s', 8 bytes, and
    observations are read from the states. From the first observation on that is no known state,
    all observations are kept. If ``keeps_behavior_goals`` is set, goals that were pursued and have
    no id are kept, too. If all this does not fit into the available memory, the replay memory
    becomes smaller, with a warning (see :meth:`shrink`).

    :param buffer_size: number of transitions kept, of all environments together
    :param observation_space: Dict of observation, achieved_goal and desired_goal
    :param action_space: Discrete, A actions
    :param device: device of the batches
    :param n_envs: number of environments
    :param optimize_memory_usage: not supported, as in SB3 with Dict observations
    :param action_masks: whether to keep which actions are allowed in s', A bytes a transition
    :param wide_goal_ids: whether ids of goals have 63 bits, as those of
        :class:`~sb3_manygoals.many_goals_dqn.ReplayGoals` have; else 31
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Dict,
        action_space: spaces.Discrete,
        device: th.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        action_masks: bool = False,
        wide_goal_ids: bool = False,
    ) -> None:
        begin_attributes(self)
        space = observation_space["observation"]
        # SB3 makes arrays of one step. Those that are needed follow.
        super().__init__(n_envs, space, action_space, device, n_envs, optimize_memory_usage)
        del self.rewards, self.timeouts
        self._shape = space.shape or ()
        self.buffer_size = max(buffer_size // n_envs, 1)
        self.requested_size = self.buffer_size
        """Steps of the environments that were asked for. ``buffer_size`` may shrink."""
        shape = (self.buffer_size, n_envs)
        n_actions = int(action_space.n)
        self.actions = np.zeros((*shape, 1), dtype=np.min_scalar_type(-n_actions))
        self.dones = np.zeros(shape, dtype=np.bool_)
        id_dtype = np.int64 if wide_goal_ids else np.int32
        self.next_goal_ids: NDArray[np.integer[Any]] = np.zeros(shape, dtype=id_dtype)
        """The goal that s' is, -1 if it is none, shape (time, n_envs)."""
        self.behavior_goal_ids: NDArray[np.integer[Any]] = np.zeros(shape, dtype=id_dtype)
        """
        The goal that was pursued, shape (time, n_envs). -1 for unknown ones, and ``OWN_GOAL`` for
        those in ``behavior_goals``.
        """
        self.next_action_masks: NDArray[np.bool_] | None = None
        """The actions allowed in s', shape (time, n_envs, A). None: all."""
        if action_masks:
            self.next_action_masks = np.zeros((*shape, n_actions), dtype=np.bool_)
        self.state_ids: NDArray[np.int32] = np.zeros((*shape, 2), dtype=np.int32)
        """The states s and s', while no observations are stored, shape (time, n_envs, 2)."""
        self.env_rewards: NDArray[np.float32] | None = None
        """The environment's rewards, shape (time, n_envs). None until one of them is not 0."""
        self.behavior_goals: NDArray[Any] | None = None
        """
        The goals that were pursued and had no id, shape (time, n_envs, *goal_space.shape). None
        until there is one.
        """
        self.keeps_behavior_goals = False
        """Whether to keep goals that are pursued and have no id. Targets that read them set it."""
        self.states: ExactStates | None = None
        """The states that ids refer to. None: observations are stored."""
        self.stores_observations = False
        """Whether observations are stored, not only the ids of states."""
        note_attributes(self)

    def add(  # type: ignore[override]
        self,
        obs: dict[str, NDArray[Any]],
        next_obs: dict[str, NDArray[Any]],
        action: NDArray[Any],
        reward: NDArray[Any],
        done: NDArray[Any],
        infos: list[dict[str, Any]],
    ) -> None:
        """
        Add one transition of each environment.

        :param obs: goal observations in which the actions were taken. Recorded transitions have no
            ``desired_goal``
        :param next_obs: goal observations that they led to
        :param action: the actions, shape ``(n_envs,)``
        :param reward: rewards of the goal episodes, which are not kept
        :param done: ends of the goal episodes, which are not kept
        :param infos: infos of the goal wrappers, with ``env_terminated`` and ``achieved_goal_id``.
            If they are there, ``desired_goal_id``, ``env_reward``, and the ids of states are kept.
            If ``keeps_behavior_goals`` is set, the desired goal itself is kept where
            ``desired_goal_is_known`` is False. ``action_mask`` is needed if masks are kept
        :raises ValueError: if masks are kept, and one is missing or allows no action though the
            environment has not ended
        """
        terminated = np.array([info["env_terminated"] for info in infos])
        masks = None
        if self.next_action_masks is not None:
            masks = read_action_masks(infos, self.next_action_masks.shape[2], terminated)
        state_ids = np.array(
            [(info.get("state_id", UNKNOWN), info.get("next_state_id", UNKNOWN)) for info in infos]
        )
        if self.states is None or (state_ids == UNKNOWN).any():
            self.store_observations()
        # Recorded transitions have no goal.
        goals = obs.get("desired_goal") if self.keeps_behavior_goals else None
        without_id: list[int] = []
        if goals is not None:
            without_id = [row for row, info in enumerate(infos) if _has_goal_without_id(info)]
        if without_id and self.behavior_goals is None:
            assert goals is not None
            self._store_behavior_goals(goals)
        # Only now, because the memory may just have become smaller.
        at = self.pos
        if self.stores_observations:
            self.observations[at] = obs["observation"]
            self.next_observations[at] = next_obs["observation"]
        else:
            self.state_ids[at] = state_ids
        self.actions[at, :, 0] = action.reshape(-1)
        self.dones[at] = terminated
        self.next_goal_ids[at] = [info["achieved_goal_id"] for info in infos]
        self.behavior_goal_ids[at] = [info.get("desired_goal_id", UNKNOWN) for info in infos]
        if without_id:
            assert goals is not None
            assert self.behavior_goals is not None
            self.behavior_goal_ids[at, without_id] = OWN_GOAL
            self.behavior_goals[at, without_id] = goals[without_id]
        if self.next_action_masks is not None:
            self.next_action_masks[at] = masks
        self._add_rewards(at, [info.get("env_reward", 0.0) for info in infos])
        self.pos = (at + 1) % self.buffer_size
        self.full |= self.pos == 0

    def _add_rewards(self, at: int, env_rewards: list[float]) -> None:
        """Keep the environment's rewards. A world without rewards needs no array of zeros."""
        if self.env_rewards is None and any(env_rewards):
            self.env_rewards = np.zeros((self.buffer_size, self.n_envs), dtype=np.float32)
        if self.env_rewards is not None:
            self.env_rewards[at] = env_rewards

    def observations_at(self, *place: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        """
        Return the observations of s and s'.

        :param place: index of times, or of times and environments
        :return: both of shape ``(*shape of the index, *observation_space.shape)``
        """
        if self.stores_observations or self.states is None:
            return self.observations[place], self.next_observations[place]
        ids = self.state_ids[place]
        return self.states[ids[..., 0]], self.states[ids[..., 1]]

    def store_observations(self) -> None:
        """
        Store observations from now on, those of the transitions already kept too.

        :raises MemoryError: if so few transitions fit that nothing could be learned from them
        """
        if self.stores_observations:
            return
        self._fit_observations()
        shape = (self.buffer_size, self.n_envs, *self._shape)
        observations = np.zeros(shape, self.observation_space.dtype)
        next_observations = np.zeros(shape, self.observation_space.dtype)
        for times in self._blocks():
            observations[times], next_observations[times] = self.observations_at(times)
        self.observations = observations
        self.next_observations = next_observations
        self.state_ids = np.zeros((0, self.n_envs, 2), dtype=np.int32)
        self.stores_observations = True

    def _store_behavior_goals(self, goals: NDArray[Any]) -> None:
        """
        Make room for goals that are pursued and have no id, and shrink if there is too little.

        :param goals: goals of all environments, shape (n_envs, *goal_space.shape)
        :raises MemoryError: if so few transitions fit that nothing could be learned from them
        """
        available = share_of_memory(_SHARE_OF_MEMORY)
        of_later_steps = goals.nbytes
        if self.stores_observations:
            # Their arrays are there, but take memory only once they are filled.
            of_later_steps += 2 * self.n_envs * self.size_of_observation
        elif self.states is not None:
            available -= (self.states.capacity - len(self.states)) * self.size_of_observation
        available -= self.size() * goals.nbytes
        rows = self.size() + max(available, 0) // of_later_steps
        if rows < self.buffer_size:
            self.shrink(rows * self.n_envs)
        self.behavior_goals = np.zeros((self.buffer_size, *goals.shape), goals.dtype)

    def _store_ids(self) -> None:
        """Store ids of states, not observations, from now on. There must be no transitions."""
        self.observations = self.observations[:1].copy()
        self.next_observations = self.next_observations[:1].copy()
        self.state_ids = np.zeros((self.buffer_size, self.n_envs, 2), dtype=np.int32)
        self.stores_observations = False

    def _fit_observations(self) -> None:
        """Shrink if observations of all transitions would not fit into the available memory."""
        available = share_of_memory(_SHARE_OF_MEMORY)
        if self.states is not None:
            # The states that are still to come need memory too.
            room = self.states.capacity - len(self.states)
            available -= room * self.size_of_observation
        of_step = 2 * self.n_envs * self.size_of_observation
        if self.behavior_goals is not None:
            of_step += self.behavior_goals[0].nbytes
        rows = max(available, 0) // of_step
        if rows < self.buffer_size:
            self.shrink(rows * self.n_envs)

    @property
    def size_of_observation(self) -> int:
        """Bytes of an observation."""
        return math.prod(self._shape) * np.dtype(self.observation_space.dtype).itemsize

    def shrink(self, buffer_size: int) -> None:
        """
        Keep fewer transitions from now on, the newest ones, and warn.

        :param buffer_size: number of transitions to keep, of all environments together
        :raises MemoryError: if these are so few that nothing could be learned from them
        """
        rows = buffer_size // self.n_envs
        if rows >= self.buffer_size:
            return
        asked = self.buffer_size * self.n_envs
        what = (
            f"a replay memory of {asked} transitions would take "
            f"{readable(2 * asked * self.size_of_observation)} if observations do not recur, "
            f"{readable(share_of_memory(1.0))} are available"
        )
        if rows * self.n_envs < min(_FEWEST_TRANSITIONS, asked):
            raise MemoryError(f"{what}: choose a smaller buffer_size, or smaller observations")
        warnings.warn(
            f"{what}: it keeps the newest {rows * self.n_envs}. "
            f"buffer_size={rows * self.n_envs} asks for no more than that",
            stacklevel=2,
        )
        self._keep_newest(rows)

    def _keep_newest(self, rows: int) -> None:
        """Make room for fewer steps of the environments than now."""
        oldest_first = (self.pos - self.size() + np.arange(self.size())) % self.buffer_size
        newest = oldest_first[-rows:]
        for name in (*_OBSERVATION_ARRAYS, *_OTHER_ARRAYS, "state_ids"):
            array = getattr(self, name)
            if isinstance(array, FrameArray):
                array.keep_rows(newest, rows)
            elif array is not None and len(array) == self.buffer_size:
                smaller = np.zeros((rows, *array.shape[1:]), array.dtype)
                smaller[: len(newest)] = array[newest]
                setattr(self, name, smaller)
        self.buffer_size = rows
        self.full = len(newest) == rows
        self.pos = len(newest) % rows

    @classmethod
    def memory_needed(
        cls,
        buffer_size: int,
        observation_space: spaces.Dict,
        action_space: spaces.Discrete,
        n_envs: int,
        **kwargs: Any,
    ) -> dict[str, int]:
        """
        Return how many bytes a memory with these arguments would take.

        :param buffer_size: number of transitions, of all environments together
        :param observation_space: Dict of observation, achieved_goal and desired_goal
        :param action_space: Discrete
        :param n_envs: number of environments
        :param kwargs: further arguments of the constructor
        :return: bytes by what they are for. ``"replay observations"`` is what observations take if
            they are stored
        """
        one_step = cls(n_envs, observation_space, action_space, "cpu", n_envs, **kwargs)
        arrays = {name: getattr(one_step, name) for name in (*_OTHER_ARRAYS, "state_ids")}
        sizes = {name: array.nbytes for name, array in arrays.items() if array is not None}
        sizes["observations"] = 2 * n_envs * one_step.size_of_observation
        rows = max(buffer_size // n_envs, 1)
        return {f"replay {name.replace('_', ' ')}": size * rows for name, size in sizes.items()}

    def move_to(
        self,
        goal_buffer: GoalBuffer,
        states: ExactStates | None,
        are_restored: bool = False,
    ) -> None:
        """
        Let ids refer to another goal buffer and its states from now on. Next observations become
        goals in it. Which goals were pursued is forgotten, unless the goals are restored ones.

        :param goal_buffer: the goals that ids refer to
        :param states: the states that ids refer to, those of the goal buffer. None to store
            observations
        :param are_restored: whether the goals are those that ids refer to now, because both were
            loaded. If a next observation gets another id nevertheless, they are not
        """
        ids_before = self.next_goal_ids[: self.size()].copy()
        if states is None:
            # The ids of goals may be hashes then, of 63 bits.
            self.next_goal_ids = self.next_goal_ids.astype(np.int64, copy=False)
            self.behavior_goal_ids = self.behavior_goal_ids.astype(np.int64, copy=False)
        moved = self.state_ids.copy()
        all_known = states is not None
        for times in self._blocks():
            n_times = times.stop - times.start
            observations, next_observations = self._rows_at(times)
            next_goal_ids = goal_buffer.add(next_observations)
            self.next_goal_ids[times] = next_goal_ids.reshape(n_times, self.n_envs)
            if states is not None and not self.stores_observations:
                ids = [states.add(observations), states.add(next_observations)]
                moved[times] = np.stack(ids, axis=1).reshape(n_times, self.n_envs, 2)
                all_known &= bool((moved[times] != UNKNOWN).all())
        if not all_known and self.size() > 0:
            self.store_observations()
        elif not self.stores_observations:
            self.state_ids = moved
        self.states = states
        pursued = self.behavior_goal_ids[: self.size()]
        if are_restored and np.array_equal(ids_before, self.next_goal_ids[: self.size()]):
            if goal_buffer.remembers_goals:
                # These were found after the goals had been saved.
                pursued[pursued >= len(goal_buffer)] = UNKNOWN
            return
        pursued[:] = UNKNOWN
        self.behavior_goals = None

    def record_in(self, world: WorldModel) -> None:
        """
        Record all transitions in a model of the world.

        :param world: with the states that ids refer to
        """
        for times in self._blocks():
            observations, next_observations = self._rows_at(times)
            rewards = np.zeros(len(observations))
            if self.env_rewards is not None:
                rewards += self.env_rewards[times].reshape(-1)
            world.record(
                world.identity.add(observations),
                self.actions[times].reshape(-1),
                world.identity.add(next_observations),
                rewards,
                self.dones[times].reshape(-1),
            )

    def newest_states(
        self, n: int, states: ExactStates
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """
        Return the states of the newest transitions.

        :param n: greatest number of transitions, of all environments together
        :param states: the states that ids refer to
        :return: the ids of s and of s', oldest first, both of shape (T, n_envs). ``UNKNOWN`` for
            observations that are no known states
        """
        n_times = min(self.size(), max(n // self.n_envs, 1))
        times = (self.pos - n_times + np.arange(n_times)) % self.buffer_size
        if not self.stores_observations:
            ids = self.state_ids[times].astype(np.int64)
            return ids[..., 0], ids[..., 1]
        found = np.empty((2, n_times, self.n_envs), np.int64)
        # All observations at once might not fit into memory.
        at_a_time = self._times_at_a_time
        for begin in range(0, n_times, at_a_time):
            block = slice(begin, begin + at_a_time)
            for ids, seen in zip(found, self._rows_at(times[block]), strict=True):
                ids[block] = states.ids(seen).reshape(-1, self.n_envs)
        return found[0], found[1]

    def recorded(self, times: slice = slice(None)) -> RecordedSteps:
        """
        Return transitions, oldest first. What is shown twice, as the end of one transition and the
        beginning of the next one, is there once.

        :param times: which of the steps of all environments together to return, counted from the
            oldest one in memory, without a stride. By default all
        :return: the observations and the transitions between them
        """
        oldest_first = (self.pos - self.size() + np.arange(self.size())[times]) % self.buffer_size
        n_times = len(oldest_first)
        shape = (n_times, self.n_envs, *self._shape)
        seen = np.empty(shape, self.observation_space.dtype)
        places = np.arange(n_times * self.n_envs).reshape(n_times, self.n_envs)
        next_places = np.full_like(places, -1)
        ends = []
        n_seen = places.size
        at_a_time = self._times_at_a_time
        for begin in range(0, n_times, at_a_time):
            block = oldest_first[begin : begin + at_a_time]
            seen[begin : begin + len(block)] = self.observations_at(block)[0]
        for begin in range(0, n_times, at_a_time):
            block = oldest_first[begin : begin + at_a_time]
            after = self.observations_at(block)[1]
            goes_on = np.zeros(after.shape[:2], np.bool_)
            following = seen[begin + 1 : begin + 1 + len(block)]
            axes = tuple(range(2, after.ndim))
            goes_on[: len(following)] = (following == after[: len(following)]).all(axis=axes)
            rows = next_places[begin : begin + len(block)]
            rows[goes_on] = (places[begin : begin + len(block)] + self.n_envs)[goes_on]
            n_ends = int(np.count_nonzero(~goes_on))
            rows[~goes_on] = np.arange(n_seen, n_seen + n_ends)
            n_seen += n_ends
            ends.append(after[~goes_on])
        rewards = np.zeros(places.size)
        if self.env_rewards is not None:
            rewards += self.env_rewards[oldest_first].reshape(-1)
        return RecordedSteps(
            observations=np.concatenate([seen.reshape(-1, *self._shape), *ends]),
            places=places.reshape(-1),
            actions=self.actions[oldest_first].reshape(-1).astype(np.int64),
            next_places=next_places.reshape(-1),
            rewards=rewards,
            terminated=self.dones[oldest_first].reshape(-1),
        )

    def evenly_chosen(self, n: int) -> NDArray[Any]:
        """
        Return next observations, evenly chosen from all transitions.

        :param n: greatest number of observations
        :return: shape ``(min(n, number of transitions), *observation_space.shape)``
        """
        n_transitions = self.size() * self.n_envs
        places = np.arange(n_transitions)
        if n_transitions > n:
            places = np.linspace(0, n_transitions - 1, n, dtype=np.int64)
        return self.observations_at(*np.divmod(places, self.n_envs))[1]

    @property
    def _times_at_a_time(self) -> int:
        """Of so many steps the observations are in memory at the same time."""
        size = 2 * self.n_envs * self.size_of_observation
        return max(1, min(_TIMES_AT_A_TIME, _BYTES_AT_A_TIME // size))

    def _blocks(self) -> Iterator[slice]:
        """Yield slices of the times at which there are transitions."""
        at_a_time = self._times_at_a_time
        for begin in range(0, self.size(), at_a_time):
            yield slice(begin, min(begin + at_a_time, self.size()))

    def _rows_at(self, times: slice | NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return observations of s and s' of all environments, shape (n, *shape)."""
        observations, next_observations = self.observations_at(times)
        shape = (-1, *self._shape)
        return observations.reshape(shape), next_observations.reshape(shape)

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes. Of arrays that are not full, only the filled part is pickled."""
        attributes = vars(self).copy()
        # A model notes this anew. It may have what a subclass leaves out here.
        attributes.pop("_made_without_state", None)
        filled = {}
        for name in (*_OBSERVATION_ARRAYS, *_OTHER_ARRAYS, "state_ids"):
            array = attributes[name]
            if isinstance(array, np.ndarray) and len(array) == self.buffer_size:
                filled[name] = array[: self.size()]
                del attributes[name]
        return {"attributes": attributes, "filled": filled}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the attributes, with room for more transitions."""
        # Memories of earlier versions kept no goals.
        self.behavior_goals = None
        self.keeps_behavior_goals = False
        # They have their attributes as they are.
        for name, value in state.get("attributes", state).items():
            setattr(self, name, value)
        for name, filled in state.get("filled", {}).items():
            array = np.zeros((self.buffer_size, *filled.shape[1:]), filled.dtype)
            array[: len(filled)] = filled
            setattr(self, name, array)

    def get_checkpoint_state(self) -> dict[str, Any]:
        """
        Return the transitions, without the states that ids refer to.

        :return: a dictionary of plain data and arrays that are in use: write it at once
        """
        names = (
            "n_envs",
            "requested_size",
            "buffer_size",
            "pos",
            "full",
            "stores_observations",
        )
        arrays = {name: getattr(self, name) for name in self._arrays_to_save}
        filled = {
            name: None if array is None else array[: self.size()] for name, array in arrays.items()
        }
        return {**{name: getattr(self, name) for name in names}, **filled}

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Replace the transitions.

        :param state: what :meth:`get_checkpoint_state` returned
        :raises CheckpointError: if it is of a memory of another size, keeps masks where this one
            does not, or keeps frames where this one does not; if this memory has become smaller
            since; or if too little memory is available
        """
        asked = {"buffer_size": state["requested_size"], "n_envs": state["n_envs"]}
        built = {"buffer_size": self.requested_size, "n_envs": self.n_envs}
        check_same("a replay memory", asked, built)
        if (self.next_action_masks is None) != (state["next_action_masks"] is None):
            how = "without" if state["next_action_masks"] is None else "with"
            raise CheckpointError(f"the replay memory was saved {how} next_action_masks")
        if ("frames" in state) != hasattr(self, "frames"):
            raise CheckpointError(
                "the replay memory was saved by another replay_buffer_class, with frames or without"
            )
        if state["buffer_size"] > self.buffer_size:
            raise CheckpointError(
                f"the replay memory keeps {self.buffer_size} steps since it became smaller, the "
                f"checkpoint has {state['buffer_size']}: restore it in a new model"
            )
        self.reset()
        if state["buffer_size"] < self.buffer_size:
            # The memory had to become smaller before it was saved.
            self._keep_newest(state["buffer_size"])
        self.env_rewards = None
        if state["env_rewards"] is not None:
            self.env_rewards = np.zeros((self.buffer_size, self.n_envs), dtype=np.float32)
        if state["stores_observations"]:
            self.store_observations()
            n_saved = len(state["actions"])
            if n_saved > self.buffer_size:
                size = 2 * n_saved * self.n_envs * self.size_of_observation
                raise CheckpointError(
                    f"the observations of the checkpoint's replay memory take {readable(size)}, "
                    f"{readable(share_of_memory(1.0))} are available: free some memory, or restore "
                    "the checkpoint on a machine with more"
                )
        elif self.stores_observations:
            self._store_ids()
        self.behavior_goals = None
        # Checkpoints of earlier versions have no such goals.
        goals = state.get("behavior_goals")
        if goals is not None:
            self.behavior_goals = np.zeros((self.buffer_size, *goals.shape[1:]), goals.dtype)
        for name in self._arrays_to_save:
            if state.get(name) is not None:
                getattr(self, name)[: len(state[name])] = state[name]
        self.pos = state["pos"]
        self.full = state["full"]

    @property
    def _arrays_to_save(self) -> tuple[str, ...]:
        """The names of the arrays that a checkpoint has."""
        if self.stores_observations:
            return (*_OTHER_ARRAYS, *_OBSERVATION_ARRAYS)
        return (*_OTHER_ARRAYS, "state_ids")

    def sample_segments(
        self, batch_size: int, length: int, rng: np.random.Generator, per_episode: int = 1
    ) -> ManyGoalsSamples:
        """
        Draw segments of consecutive transitions, each of one environment. A segment may have the
        end of an episode in it: its transitions are true one by one.

        :param batch_size: number of transitions, S. The last segment is cut where S is no multiple
            of ``length``
        :param length: number of transitions in a segment. If there are fewer in memory, it is their
            number
        :param rng: random generator
        :param per_episode: so many segments in a row are of one episode. They may overlap. 1: all
            segments are drawn independently
        :return: the transitions, segment by segment, oldest first in each
        :raises ValueError: if the memory is empty, or a number is not positive
        """
        check_count("batch_size", batch_size)
        check_count("length", length)
        check_count("per_episode", per_episode)
        if self.size() == 0:
            raise ValueError("cannot sample from an empty replay memory: add transitions first")
        length = min(length, self.size())
        n_segments = math.ceil(batch_size / length)
        n_episodes = math.ceil(n_segments / per_episode)
        begins = rng.integers(self.size() - length + 1, size=n_episodes)
        envs = rng.integers(self.n_envs, size=n_episodes)
        if per_episode > 1:
            begins, envs = self._more_of_the_episodes(begins, envs, length, per_episode, rng)
            begins = begins[:n_segments]
            envs = envs[:n_segments]
        times = self._oldest + begins[:, None] + np.arange(length)
        times = times.reshape(-1)[:batch_size] % self.buffer_size
        return self._samples_at(times, np.repeat(envs, length)[:batch_size])

    @property
    def _oldest(self) -> int:
        """The time of the oldest transition in memory."""
        return self.pos if self.full else 0

    def _more_of_the_episodes(
        self,
        begins: NDArray[np.int64],
        envs: NDArray[np.int64],
        length: int,
        n: int,
        rng: np.random.Generator,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """
        Draw segments from the episodes of given transitions.

        :param begins: a transition of each episode, counted from the oldest one in memory, shape
            (E,)
        :param envs: their environments, shape (E,)
        :param length: number of transitions in a segment
        :param n: number of segments for each episode
        :param rng: random generator
        :return: the first transition of each segment and its environment, shape (E * n,)
        """
        extents = [
            self._episode_around(begin, env)
            for begin, env in zip(begins.tolist(), envs.tolist(), strict=True)
        ]
        first, last = np.array(extents).T[:, :, None]
        # Segments begin before the episode, too, and are then moved into it. So its ends are drawn
        # about as often as its other transitions.
        shares = rng.random((len(begins), n))
        drawn = first - (length - 1) + (shares * (last - first + length)).astype(np.int64)
        # In an episode that is too short, a segment runs into the next one.
        drawn = np.clip(drawn, first, np.maximum(last - length + 1, first))
        return np.minimum(drawn, self.size() - length).reshape(-1), np.repeat(envs, n)

    def _episode_around(self, place: int, env: int) -> tuple[int, int]:
        """
        Return the first and the last transition of the episode of a transition. An episode goes on
        as long as the next action is taken where the last one led. Of a long episode only the
        nearest transitions are looked at.

        :param place: the transition, counted from the oldest one in memory
        :param env: its environment
        :return: transitions, counted likewise
        """
        begin = max(place - _REACH, 0)
        end = min(place + _REACH + 1, self.size())
        times = (self._oldest + np.arange(begin, end)) % self.buffer_size
        seen: NDArray[Any]
        led_to: NDArray[Any]
        if self.stores_observations or self.states is None:
            seen, led_to = self.observations_at(times, env)
        else:
            seen, led_to = self.state_ids[times, env].T
        goes_on = (seen[1:] == led_to[:-1]).all(axis=tuple(range(1, seen.ndim)))
        goes_on &= ~self.dones[times[:-1], env]
        n_before = np.cumprod(goes_on[: place - begin][::-1]).sum()
        n_after = np.cumprod(goes_on[place - begin :]).sum()
        return int(place - n_before), int(place + n_after)

    def _get_samples(  # type: ignore[override]
        self, batch_inds: NDArray[np.integer[Any]], env: VecNormalize | None = None
    ) -> ManyGoalsSamples:
        """Return the transitions of these times, each of an environment drawn at random."""
        # NumPy's global generator is the one that SB3 seeds.
        envs = np.random.randint(self.n_envs, size=len(batch_inds))  # noqa: NPY002
        return self._samples_at(batch_inds, envs)

    def _samples_at(
        self, times: NDArray[np.integer[Any]], envs: NDArray[np.integer[Any]]
    ) -> ManyGoalsSamples:
        """Return the transitions of these times and environments, both of shape (S,)."""
        observations, next_observations = self.observations_at(times, envs)

        def rows_of(array: NDArray[Any]) -> th.Tensor:
            return self.to_torch(array[times, envs], copy=False)

        masks = self.next_action_masks
        goals = self.behavior_goals
        return ManyGoalsSamples(
            observations=self.to_torch(observations, copy=False),
            actions=rows_of(self.actions).view(-1).long(),
            next_observations=self.to_torch(next_observations, copy=False),
            next_goal_ids=rows_of(self.next_goal_ids).long(),
            terminated=rows_of(self.dones),
            behavior_goal_ids=rows_of(self.behavior_goal_ids).long(),
            next_action_mask=None if masks is None else rows_of(masks),
            behavior_goals=None if goals is None else rows_of(goals),
        )


def _has_goal_without_id(info: dict[str, Any]) -> bool:
    """Return whether a goal was pursued that is no known goal."""
    return info.get("desired_goal_is_known") is False
