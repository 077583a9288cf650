"""Replay memory of transitions without goals: these are chosen when a batch is used."""

from __future__ import annotations

import array as arrays
import math
import warnings
from typing import Any, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.vec_env import VecNormalize

from sb3_manygoals.action_masks import read_action_masks
from sb3_manygoals.checkpoint.tree import CheckpointError, check_same
from sb3_manygoals.frames import FrameArray
from sb3_manygoals.goals import UNKNOWN, GoalBuffer, ObservationTable
from sb3_manygoals.memory_limits import readable, share_of_memory

_WHOLE = ("observations", "next_observations")
_ARRAYS = ("actions", "dones", "next_ids", "behavior_goal_ids", "next_action_masks")
# Outcomes are counted after so many transitions, or half the number of different outcomes, if that is more.
_COUNT_EVERY = 2**16
# The share of the available memory that whole observations may take, and the fewest transitions that are of use.
_SHARE_OF_MEMORY = 0.9
_FEWEST_TRANSITIONS = 1_000


class ManyGoalsSamples(NamedTuple):
    """A batch of S transitions (s, a, s')."""

    observations: th.Tensor
    """Shape (S, *observation_space.shape), dtype of the space."""
    actions: th.Tensor
    """Shape (S,) int64."""
    next_observations: th.Tensor
    """Shape (S, *observation_space.shape), dtype of the space."""
    next_ids: th.Tensor
    """The goal that s' is, -1 if it is none; shape (S,) int64."""
    terminated: th.Tensor
    """Whether the environment itself ended with s', shape (S,) bool."""
    next_action_mask: th.Tensor | None = None
    """The actions allowed in s', shape (S, A) bool; None: all."""
    behavior_goal_ids: th.Tensor | None = None
    """The goal pursued, -1 for unknown ones, shape (S,) int64; None if it does not matter."""
    states: th.Tensor | None = None
    """The number of s, -1 for unknown ones, shape (S,) int64; None if it does not matter."""


class ManyGoalsReplayBuffer(ReplayBuffer):
    """
    Transitions (s, a, s') and the goal id of s'. Reward and end of the goal that was pursued are not kept: every transition
    teaches the goals it is paired with. ``dones`` are the environment's own ends.

    Once :meth:`keep_states` was called, a transition is the numbers of s and s' in a table of observations, until the table
    has no room for one: then whole observations are kept again. Outcomes of actions are counted for
    :class:`~sb3_manygoals.many_goals_dqn.planning.ReplayModel`.

    :param buffer_size: transitions kept, all environments together; what follows is as of SB3's ``ReplayBuffer``
    :param action_masks: whether to keep which actions are allowed in s', A bytes a transition
    :param as_numbers: whether to keep numbers only, 18 bytes a transition beside the table: observations without a number are
        lost, and their transitions never sampled

    Whole observations may not fit into the memory that is available when they are first kept. Then the memory becomes
    smaller, with a warning (see :meth:`shrink`). A MemoryError is raised if not even a thousand transitions fit.
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
        as_numbers: bool = False,
    ) -> None:
        space = observation_space["observation"]
        # SB3's arrays of one step: those that are needed follow
        super().__init__(n_envs, space, action_space, device, n_envs, optimize_memory_usage)
        del self.rewards, self.timeouts
        self._shape, self._n_actions = space.shape or (), int(action_space.n)
        self.buffer_size = max(buffer_size // n_envs, 1)
        self.requested_size = self.buffer_size
        """Steps of the environments for which room was asked; ``buffer_size`` is less after :meth:`shrink`."""
        self.as_numbers = as_numbers
        shape = (self.buffer_size, n_envs)
        of_ids = np.int32 if as_numbers else np.int64  # ids of goals in the memory have 63 bits
        self.actions = np.zeros((*shape, 1), dtype=np.min_scalar_type(-self._n_actions))
        self.dones = np.zeros(shape, dtype=np.bool_)
        self.next_ids = np.zeros(shape, dtype=of_ids)
        self.behavior_goal_ids = np.zeros(shape, dtype=of_ids)
        self.next_action_masks = (
            np.zeros((*shape, self._n_actions), dtype=np.bool_) if action_masks else None
        )
        self.numbers: NDArray[np.int32] = np.zeros((*shape, 2), dtype=np.int32)
        """Of s and s', where states are kept, -1 for unknown ones; shape (time, n_envs, 2)."""
        self.env_rewards: NDArray[np.float32] | None = None
        """The environment's rewards, shape (time, n_envs); None until the first one that is not 0."""
        self.whole = False
        """Whether whole observations are kept."""
        self._last: NDArray[np.int64] | None = None  # the states that the last transitions led to
        self._set_states(None)

    def _at(self, *place: Any) -> list[NDArray[Any]]:
        """Observations and next observations of times, or of times and environments; any for those that have no number."""
        if self.whole or self.states is None:
            return [getattr(self, name)[place] for name in _WHOLE]
        return [self.states[self.numbers[place][..., which]] for which in (0, 1)]

    def _keep(self, whole: bool) -> None:
        """Keep whole observations from now on, those kept as numbers included; or numbers only."""
        if whole and self.whole:
            return
        if whole and isinstance(self.observations, np.ndarray):
            self._fit_whole_observations()
        for which, name in enumerate(_WHOLE):
            array = getattr(self, name)
            if isinstance(array, np.ndarray):  # otherwise it keeps frames, and has room
                array = np.zeros(
                    (self.buffer_size if whole else 0, self.n_envs, *self._shape),
                    self.observation_space.dtype,
                )
            for time in range(self.size() if whole else 0):
                array[time] = self._at(time)[which]
            setattr(self, name, array)
        self.whole = whole

    def _fit_whole_observations(self) -> None:
        """Shrink if whole observations of all transitions would not fit into the memory that is left."""
        size_of_one = math.prod(self._shape) * np.dtype(self.observation_space.dtype).itemsize
        available = share_of_memory(_SHARE_OF_MEMORY)
        if self.states is not None:  # the table of states will grow too
            available -= (self.states.capacity - len(self.states)) * size_of_one
        rows = max(available, 0) // (2 * self.n_envs * size_of_one)
        if rows < self.buffer_size:
            self.shrink(rows * self.n_envs)

    def shrink(self, buffer_size: int) -> None:
        """
        Keep fewer transitions from now on, the newest ones, and warn.

        :param buffer_size: transitions to keep, of all environments together
        :raises MemoryError: if these are so few that nothing could be learned from them
        """
        rows = buffer_size // self.n_envs
        if rows >= self.buffer_size:
            return
        asked = self.buffer_size * self.n_envs
        size_of_one = 2 * math.prod(self._shape) * np.dtype(self.observation_space.dtype).itemsize
        what = (
            f"a replay memory of {asked} transitions would take {readable(asked * size_of_one)} "
            f"if observations do not recur, {readable(share_of_memory(1.0))} are available"
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
        for name in self._names_of_arrays():
            array = getattr(self, name)
            if isinstance(array, FrameArray):
                array.keep_rows(newest, rows)
            elif array is not None and len(array):
                smaller = np.zeros((rows, *array.shape[1:]), array.dtype)
                smaller[: len(newest)] = array[newest]
                setattr(self, name, smaller)
        self.buffer_size = rows
        self.full = len(newest) == rows
        self.pos = len(newest) % rows

    def _names_of_arrays(self) -> tuple[str, ...]:
        """Attributes with a row for each step of the environments, or None."""
        return (*_WHOLE, *_ARRAYS, "numbers", "env_rewards")

    @classmethod
    def memory_needed(
        cls,
        buffer_size: int,
        observation_space: spaces.Dict,
        action_space: spaces.Discrete,
        n_envs: int,
        **kwargs: Any,
    ) -> dict[str, int]:
        """:return: bytes of the arrays of a memory with these arguments, by what they are for; without the table of states"""
        one = cls(n_envs, observation_space, action_space, "cpu", n_envs, **kwargs)
        sizes = {
            name: array.nbytes
            for name, array in (one._arrays | {"numbers": one.numbers}).items()
            if array is not None
        }
        if not one.as_numbers:
            space = observation_space["observation"]
            size = n_envs * math.prod(space.shape or ()) * np.dtype(space.dtype).itemsize
            sizes |= dict.fromkeys(_WHOLE, size)
        return {
            f"replay {name.replace('_', ' ')}": size * max(buffer_size // n_envs, 1)
            for name, size in sizes.items()
        }

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
        As SB3's, one transition of each environment. ``infos`` are from the goal wrappers, with ``achieved_goal_id``,
        ``desired_goal_id`` (if a goal was pursued) and ``env_terminated``; also ``action_mask`` if masks are kept.

        :raises ValueError: if masks are kept, and one is missing or allows nothing though the environment has not ended
        """
        at = self.pos
        ended = np.array([info["env_terminated"] for info in infos])
        self.next_ids[at] = ids = np.array([info["achieved_goal_id"] for info in infos])
        self.behavior_goal_ids[at] = [info.get("desired_goal_id", UNKNOWN) for info in infos]
        self.actions[at, :, 0], self.dones[at] = action.reshape(-1), ended
        if self.next_action_masks is not None:
            self.next_action_masks[at] = read_action_masks(
                infos, self.next_action_masks.shape[2], ended
            )
        env_rewards = np.array([info.get("env_reward", 0.0) for info in infos], dtype=np.float64)
        self._keep_rewards(env_rewards)
        here, there = obs["observation"], next_obs["observation"]
        if self.states is not None:
            self.numbers[at, :, 0] = self.states.add(here, self._last)
            self.numbers[at, :, 1] = self._last = self.states.add(there, ids)
            self._count(self.numbers[at], self.actions[at], ended, env_rewards)
        if self.states is None or not (self.as_numbers or (self.numbers[at] != UNKNOWN).all()):
            self._keep(whole=True)
            at = self.pos  # an earlier one, if the memory had to become smaller
        if self.whole:
            self.observations[at] = here
            self.next_observations[at] = there
        self.pos = (at + 1) % self.buffer_size
        self.full |= self.pos == 0

    def _keep_rewards(self, env_rewards: NDArray[np.float64]) -> None:
        """Of the step that is being added. Worlds without rewards need no array of zeros."""
        if self.env_rewards is None and env_rewards.any():
            self.env_rewards = np.zeros((self.buffer_size, self.n_envs), dtype=np.float32)
        if self.env_rewards is not None:
            self.env_rewards[self.pos] = env_rewards

    def keep_states(self, states: ObservationTable) -> None:
        """Number states from now on as this table does, those of the transitions already kept included."""
        before = self.states
        tried = self.tried
        rows, counts = self.outcomes()
        sums = self.reward_sums()
        numbers = None if before is None else states.add(before.observations)
        if numbers is not None and (numbers == UNKNOWN).any() and not self.as_numbers:
            self._keep(whole=True)  # the new table has no room for some states
        kept = self.numbers[: self.size()]
        if self.whole or numbers is None:
            for time in range(self.size()):
                kept[time] = np.stack(
                    [states.add(observations) for observations in self._at(time)], axis=1
                )
        else:
            known = kept != UNKNOWN
            kept[known] = numbers[kept[known]]
        self._set_states(states)
        if numbers is None:
            n = len(kept)
            rewards = np.zeros(kept.shape[:2])
            if self.env_rewards is not None:
                rewards += self.env_rewards[:n]
            self._count(kept.reshape(-1, 2), self.actions[:n], self.dones[:n], rewards)
        else:  # what was counted is of other numbers
            found = numbers != UNKNOWN
            self.tried[numbers[found]] = tried[: len(numbers)][found]
            self.n_tried = int(self.tried.sum())
            rows[:, [0, 2]] = numbers[rows[:, [0, 2]]]
            known_rows = (rows != UNKNOWN).all(axis=1)
            keys = self._keys(*rows[known_rows].T)
            order = np.argsort(keys)
            self._counted = keys[order], counts[known_rows][order], sums[known_rows][order]
        if self.as_numbers or (kept != UNKNOWN).all():
            self._keep(whole=False)

    def forget_states(self) -> None:
        """Number states no longer, and keep whole observations. A ValueError if some were lost."""
        if not self.whole and (self.numbers[: self.size()] == UNKNOWN).any():
            raise ValueError(
                "observations for which the goal buffer had no room were not kept: only PlannedTargets can go on"
            )
        self._keep(whole=True)
        self._set_states(None)

    def _set_states(self, states: ObservationTable | None) -> None:
        self.states = states  # the observations met, by their numbers
        # how often each action was taken in each state, shape (capacity of the table, A), and each (s, a, s', environment
        # ended) occurred, by keys in ascending order, with the sums of their rewards, those of new transitions apart; both
        # include transitions no longer kept
        self.tried = np.zeros(
            (0 if states is None else states.capacity, self._n_actions), dtype=np.int32
        )
        self.n_tried = 0  # its sum: the transitions that a plan can be made of
        self._counted = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float64)
        self._fresh = arrays.array("q")
        # the keys of those new transitions that were rewarded, and their rewards
        self._fresh_paid = arrays.array("q")
        self._fresh_rewards = arrays.array("d")
        self._last = None

    def _count(
        self,
        numbers: NDArray[np.integer[Any]],
        actions: NDArray[Any],
        ended: NDArray[np.bool_],
        env_rewards: NDArray[np.float64],
    ) -> None:
        """Count transitions between states of these numbers, shape (n, 2)."""
        rows = (*numbers.T, actions.reshape(-1), ended.reshape(-1))
        ids, next_ids, actions, ends = (column.astype(np.int64) for column in rows)
        known = ids != UNKNOWN
        self.n_tried += int(np.count_nonzero(known))
        np.add.at(self.tried.reshape(-1), (ids * self._n_actions + actions)[known], 1)
        known &= next_ids != UNKNOWN
        keys = self._keys(ids, actions, next_ids, ends)
        self._fresh.frombytes(keys[known].tobytes())
        if env_rewards.any():
            paid = known & (env_rewards.reshape(-1) != 0.0)
            self._fresh_paid.frombytes(keys[paid].tobytes())
            self._fresh_rewards.frombytes(env_rewards.reshape(-1)[paid].tobytes())
        if len(self._fresh) >= max(_COUNT_EVERY, len(self._counted[0]) // 2):
            self._count_outcomes()

    def _keys(self, *columns: NDArray[np.int64]) -> NDArray[np.int64]:
        states, actions, next_states, ended = columns
        return (states * self._n_actions + actions) << 32 | next_states << 1 | ended

    def _count_outcomes(self) -> None:
        old_keys, old_counts, old_sums = self._counted
        new = np.frombuffer(self._fresh, dtype=np.int64)
        paid = np.frombuffer(self._fresh_paid, dtype=np.int64)
        rewards = np.frombuffer(self._fresh_rewards, dtype=np.float64)
        self._fresh = arrays.array("q")
        self._fresh_paid = arrays.array("q")
        self._fresh_rewards = arrays.array("d")
        keys, place = np.unique(np.concatenate([old_keys, new]), return_inverse=True)
        counts = np.bincount(place, weights=np.concatenate([old_counts, np.ones(len(new))]))
        sums = np.zeros(len(keys))
        sums[place[: len(old_keys)]] = old_sums
        np.add.at(sums, np.searchsorted(keys, paid), rewards)
        self._counted = keys, counts.astype(np.int64), sums

    def outcomes(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """
        Columns s, a, s' and whether the environment ended, by numbers of states, shape (K, 4), of all transitions since states
        are numbered; how often each row occurred, shape (K,).
        """
        self._count_outcomes()
        keys, counts, _ = self._counted
        pairs = keys >> 32
        columns = (
            pairs // self._n_actions,
            pairs % self._n_actions,
            (keys & 0xFFFFFFFF) >> 1,
            keys & 1,
        )
        return np.stack(columns, axis=1), counts

    def reward_sums(self) -> NDArray[np.float64]:
        """:return: the sum of the environment's rewards of each row of :meth:`outcomes`, shape (K,)"""
        self._count_outcomes()
        sums: NDArray[np.float64] = self._counted[2]
        return sums

    def get_checkpoint_state(self) -> dict[str, Any]:
        states = None
        if self.states is not None:
            states = {
                "tried": self.tried[: len(self.states)],
                "outcomes": self.outcomes(),
                "reward_sums": self.reward_sums(),
                "last": self._last,
            }
        numbers = {
            name: getattr(self, name)
            for name in ("n_envs", "requested_size", "buffer_size", "pos", "full", "whole")
        }
        arrays = {
            name: None if array is None else array[: self.size()]
            for name, array in self._arrays.items()
        }
        return {**numbers, **arrays, "states": states}

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """A CheckpointError if the state is of a memory of another size, or keeps masks where this one does not."""
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
        self.reset()
        if state["buffer_size"] < self.buffer_size:  # it had to become smaller
            self._keep_newest(state["buffer_size"])
        self.env_rewards = None
        if state["env_rewards"] is not None:
            self.env_rewards = np.zeros((self.buffer_size, self.n_envs), dtype=np.float32)
        self._set_states(None if state["states"] is None else self.states)
        if state["states"] is not None:
            tried = state["states"]["tried"]
            rows, counts = state["states"]["outcomes"]
            self.tried[: len(tried)] = tried
            self.n_tried = int(tried.sum())
            self._counted = self._keys(*rows.T), counts, state["states"]["reward_sums"]
            self._last = state["states"]["last"]
        self._keep(state["whole"])
        for name, array in self._arrays.items():
            if array is not None:
                array[: len(state[name])] = state[name]
        self.pos, self.full = state["pos"], state["full"]

    @property
    def _arrays(self) -> dict[str, NDArray[Any] | None]:
        names = (
            (_WHOLE if self.whole else ())
            + _ARRAYS
            + ("env_rewards",)
            + (() if self.states is None else ("numbers",))
        )
        return {name: getattr(self, name) for name in names}

    def identify(self, goal_buffer: GoalBuffer) -> None:
        """Add all next observations to another goal buffer, for their ids. The goals pursued are forgotten."""
        counted = goal_buffer.n_added, goal_buffer.n_recurred
        for time in range(self.size()):
            self.next_ids[time] = goal_buffer.add(self._at(time)[1])
        if not self.whole:
            self.next_ids[self.numbers[:, :, 1] == UNKNOWN] = UNKNOWN
        goal_buffer.n_added, goal_buffer.n_recurred = counted  # the observations were not met again
        self.behavior_goal_ids[: self.size()] = UNKNOWN

    def _get_samples(  # type: ignore[override]
        self, batch_inds: NDArray[np.integer[Any]], env: VecNormalize | None = None
    ) -> ManyGoalsSamples:
        envs = np.random.randint(self.n_envs, size=len(batch_inds))  # noqa: NPY002 - the generator that SB3 seeds
        lost = (self.numbers[batch_inds, envs] == UNKNOWN).any(axis=1)
        if not self.whole and lost.any():
            known = np.argwhere((self.numbers[: self.size()] != UNKNOWN).all(axis=2))
            others = known[np.random.randint(len(known), size=int(lost.sum()))]  # noqa: NPY002
            batch_inds[lost], envs[lost] = others.T
        here, there = self._at(batch_inds, envs)

        def rows(array: NDArray[Any]) -> th.Tensor:
            return self.to_torch(array[batch_inds, envs], copy=False)

        return ManyGoalsSamples(
            self.to_torch(here, copy=False),
            rows(self.actions).view(-1).long(),
            self.to_torch(there, copy=False),
            rows(self.next_ids).long(),
            rows(self.dones),
            None if self.next_action_masks is None else rows(self.next_action_masks),
            rows(self.behavior_goal_ids).long(),
        )
