"""The set of goals an agent knows: every distinct observation that it has met."""

from __future__ import annotations

import math
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_manygoals.checkpoint.tree import CheckpointError, check_same
from sb3_manygoals.goals.spaces import check_goal_space, check_inside, shown
from sb3_manygoals.memory_limits import check_memory, share_of_memory
from sb3_manygoals.validation import check_count
from sb3_manygoals.world import UNKNOWN, ExactStates

# The capacity of a goal buffer by default, where there is the memory for it.
_DEFAULT_CAPACITY = 100_000
# The bytes that a state takes besides its observation: its hash and ids, their places in a dict
# that has just grown, and its counts.
_INDEX_SIZE = 184
# The nearest goal is searched for only if all goals together have at most so many numbers.
_MOST_NUMBERS_TO_SEARCH = 2**26
# The search compares so many numbers at a time.
_NUMBERS_AT_A_TIME = 2**20
_FILE_FORMAT = 2
_IN_FILE = ("format", "capacity", "states", "state_ids", "held_out")


class GoalBuffer:
    """
    The states that may be goals, each with a stable integer id.

    Two observations are the same goal if they are equal byte for byte, that is, if they are one
    state (section 3 of Veeriah et al. 2018). The id of a goal is its row in :attr:`observations`.
    It never changes, so "is this the goal?" is a comparison of integers. Held-out observations have
    the id ``UNKNOWN`` (-1). If the buffer is full, new observations have it too. Then the buffer
    warns once.

    :param observation_space: space of the observations: Box, Discrete, MultiDiscrete or MultiBinary
    :param capacity: greatest number of goals. Memory is taken only as goals are added. None:
        100,000, or as many as half of the available memory holds, if that is less
    :param held_out: observations that must never become goals, shape
        ``(n, *observation_space.shape)``, or None
    :raises TypeError: if the observations cannot be goals
    :raises ValueError: if ``capacity`` is not a positive whole number, or ``held_out`` does not fit
        the space
    :raises MemoryError: if ``capacity`` goals do not fit into the memory that is available
    """

    checkpoint_shared = True
    """Checkpoints of environments leave the buffer out, because the learner saves it."""

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        capacity: int | None = None,
        held_out: NDArray[Any] | None = None,
    ) -> None:
        self.shape, self.dtype = check_goal_space(observation_space)
        self.observation_space = observation_space
        self._capacity_was_given = capacity is not None
        if capacity is None:
            capacity = max(min(_DEFAULT_CAPACITY, share_of_memory(0.5) // self._size_of_goal), 1)
        self.capacity = check_count("capacity", capacity, of="goals")
        self._is_discrete = not isinstance(observation_space, spaces.Box)
        self._warned_that_full = False
        check_memory(
            f"a goal buffer of capacity {self.capacity}",
            {"goals": self.capacity * self._size_of_goal},
            "choose a smaller capacity",
        )
        self._held_out = ExactStates(observation_space, 1)
        self.states = ExactStates(observation_space, self.capacity)
        """The states that were met, held-out ones too."""
        if held_out is not None:
            held_out = self.check_goals(held_out, "held_out")
            self._held_out = ExactStates(observation_space, len(held_out) + 1)
            self._held_out.add(held_out)
            self.states = ExactStates(observation_space, self.capacity + len(self._held_out))
        self._forget_goals()

    @property
    def _size_of_goal(self) -> int:
        """Bytes of a goal's observation and of its entries in the indexes."""
        return math.prod(self.shape) * self.dtype.itemsize + _INDEX_SIZE

    def _forget_goals(self) -> None:
        """Make arrays in which no state is a goal."""
        self._n_goals = 0
        # The goal id of each state. The last entry is for UNKNOWN, which is -1.
        self._goal_of_state = np.full(self.states.capacity + 1, UNKNOWN)
        self._state_of_goal = np.empty(self.capacity, dtype=np.int64)

    def __len__(self) -> int:
        return self._n_goals

    def __getitem__(self, ids: NDArray[np.integer[Any]] | int | slice) -> NDArray[Any]:
        """
        Return the observations of goals.

        :param ids: ids of goals, of any shape
        :return: shape ``(*ids.shape, *observation_space.shape)``
        :raises IndexError: if there is no such goal
        """
        if not isinstance(ids, slice) and np.any(np.asarray(ids) < 0):
            raise IndexError(
                f"there is no goal with the id {int(np.min(ids))}: that is the id of an unknown "
                "observation"
            )
        return self.states[self.state_ids[ids]]

    @property
    def memory_to_come(self) -> dict[str, int]:
        """Bytes that the buffer will use when it is full, besides those that it uses now."""
        return {"goals": (self.capacity - self._n_goals) * self._size_of_goal}

    @property
    def has_held_out(self) -> bool:
        """Whether some observations may never become goals."""
        return len(self._held_out) > 0

    @property
    def state_ids(self) -> NDArray[np.int64]:
        """The state id of each goal, in the order of the goals' ids, shape ``(len(self),)``."""
        return self._state_of_goal[: self._n_goals]

    @property
    def observations(self) -> NDArray[Any]:
        """
        All goals in the order of their ids, as a read-only array of shape
        ``(len(self), *observation_space.shape)``.
        """
        in_order = np.array_equal(self.state_ids, np.arange(len(self.states)))
        # Some states may be no goals, or may have become goals in another order.
        found = self.states.observations if in_order else self.states[self.state_ids]
        found.flags.writeable = False
        return found

    def add(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        """
        Add observations as goals if they are new and not held out, while there is room.

        :param observations: shape ``(n, *observation_space.shape)``, the dtype of the space. Bounds
            of a Box are not checked
        :return: the goal id of each observation, shape ``(n,)``. It is ``UNKNOWN`` if the
            observation is held out, or if there was no room for it
        :raises ValueError: if the observations do not fit the space, or a number is out of the
            range of a Discrete, MultiDiscrete or MultiBinary space
        """
        observations = self.check(observations, "observations")
        self._check_range(observations)
        state_ids = self.states.add(observations)
        return self._become_goals(state_ids, observations)

    def observe(self, observations: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """
        Add observations that environments show, as :meth:`add` does, and return state ids too.

        :meth:`ExactStates.observe <sb3_manygoals.world.ExactStates.observe>` counts how many of
        them recur.

        :param observations: shape ``(n, *observation_space.shape)``, the dtype of the space
        :return: the state id and the goal id of each observation, both of shape ``(n,)``.
            ``UNKNOWN`` where it is no known state or no goal
        :raises ValueError: if the observations do not fit the space, or a number is out of the
            range of a Discrete, MultiDiscrete or MultiBinary space
        """
        observations = self.check(observations, "observations")
        self._check_range(observations)
        state_ids = self.states.observe(observations)
        return state_ids, self._become_goals(state_ids, observations)

    def _check_range(self, observations: NDArray[Any]) -> None:
        """Refuse numbers out of range, of which no network can make one-hot vectors."""
        if self._is_discrete:
            check_inside(self.observation_space, observations, "observations")

    def _become_goals(
        self, state_ids: NDArray[np.int64], observations: NDArray[Any]
    ) -> NDArray[np.int64]:
        """Return the goal ids of states. States that are no goals yet become goals."""
        goal_ids = self.goals_of_states(state_ids)
        is_no_goal = goal_ids == UNKNOWN
        if not is_no_goal.any():
            return goal_ids
        if self._n_goals < self.capacity:
            new_ids = set(state_ids[is_no_goal].tolist()) - {UNKNOWN}
            new = np.array(sorted(new_ids), dtype=np.int64)
            if self.has_held_out:
                new = new[~self.is_held_out(self.states[new])]
            new = new[: self.capacity - self._n_goals]
            n_before = self._n_goals
            self._n_goals += len(new)
            self._goal_of_state[new] = np.arange(n_before, self._n_goals)
            self._state_of_goal[n_before : self._n_goals] = new
            goal_ids = self.goals_of_states(state_ids)
            is_no_goal = goal_ids == UNKNOWN
        if self._n_goals == self.capacity and not self._warned_that_full:
            self._warn_if_no_room(observations[is_no_goal])
        return goal_ids

    def _warn_if_no_room(self, observations: NDArray[Any]) -> None:
        """Warn if one of these observations is not held out. Then there was no room for it."""
        if self.is_held_out(observations).all():
            return
        self._warned_that_full = True
        warnings.warn(
            f"the goal buffer is full with {self.capacity} goals: new observations will not become "
            "goals. To keep more, raise capacity, of the goal buffer",
            RuntimeWarning,
            stacklevel=4,
        )

    def ids(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        """
        Return the goal ids of observations. New observations do not become goals.

        :param observations: shape ``(n, *observation_space.shape)``, the dtype of the space
        :return: the goal id of each, shape ``(n,)``. ``UNKNOWN`` for observations that are no goals
        :raises ValueError: if the observations do not fit the space
        """
        return self.look_up(observations)[1]

    def look_up(self, observations: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """
        Return the state ids and the goal ids of observations. New observations are not added.

        :param observations: shape ``(n, *observation_space.shape)``, the dtype of the space
        :return: the state id and the goal id of each observation, both of shape ``(n,)``.
            ``UNKNOWN`` where it is no known state or no goal
        :raises ValueError: if the observations do not fit the space
        """
        state_ids = self.states.ids(self.check(observations, "observations"))
        return state_ids, self.goals_of_states(state_ids)

    def goals_of_states(self, state_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """
        Return the goal ids of states.

        :param state_ids: ids of states, int64, of any shape. ``UNKNOWN`` is allowed
        :return: the goal id of each state, int64, of the same shape. ``UNKNOWN`` for states that
            are no goals, and for ``UNKNOWN``
        """
        goal_ids: NDArray[np.int64] = self._goal_of_state[state_ids]
        return goal_ids

    def achieving_states(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """
        Return which known states achieve each goal.

        :return: where the states of each goal begin in the second array, with its length as the
            last entry, int64, shape ``(len(self) + 1,)``; and ids of states, those of one goal
            after those of the other, int64
        """
        return np.arange(len(self) + 1), self.state_ids.copy()

    def sample_ids(self, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """
        Draw goals uniformly, with replacement.

        :param n: number of goals to draw
        :param rng: random generator
        :return: ids of goals, int64, shape ``(n,)``
        :raises ValueError: if the buffer is empty or ``n`` is not positive
        """
        if len(self) == 0:
            raise ValueError("cannot sample from an empty goal buffer: add observations first")
        return rng.integers(len(self), size=check_count("n", n))

    def sample_others(
        self, current_ids: NDArray[np.int64], rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """
        Draw a goal for each environment, uniformly among all goals except the one that it shows.

        :param current_ids: the id of the goal that each environment shows now, ``UNKNOWN`` if it
            shows none, int64, shape ``(n,)``. This goal is drawn only if there is no other goal
        :param rng: random generator
        :return: ids of goals, int64, shape ``(n,)``
        :raises ValueError: if the buffer is empty
        """
        avoids = (current_ids != UNKNOWN) & (len(self) > 1)
        ids: NDArray[np.int64] = rng.integers(len(self) - avoids, size=len(current_ids))
        # The draw is from one goal fewer. Numbers from the current goal on are raised by one.
        ids += avoids & (ids >= current_ids)
        return ids

    def is_held_out(self, observations: NDArray[Any]) -> NDArray[np.bool_]:
        """
        Return whether observations are held out, so that they never become goals.

        :param observations: shape ``(n, *observation_space.shape)``, the dtype of the space
        :return: whether each is held out, shape ``(n,)``
        :raises ValueError: if the observations do not fit the space
        """
        observations = self.check(observations, "observations")
        return np.not_equal(self._held_out.ids(observations), UNKNOWN)

    def check(self, observations: NDArray[Any], name: str, axes: int | None = 1) -> NDArray[Any]:
        """
        Raise an error if observations do not have the shape and dtype of the space.

        :param observations: shape ``(*batch, *observation_space.shape)``, the dtype of the space
        :param name: name of the argument, for the message
        :param axes: number of axes in ``batch``: 1 for n observations, 0 for a single one. None:
            any number
        :return: the observations as an array
        :raises ValueError: if shape or dtype are not those of the space
        """
        array = np.asarray(observations)
        n_before = max(array.ndim - len(self.shape), 0)
        fits = array.shape[n_before:] == self.shape and array.dtype == self.dtype
        if not fits or axes not in (None, n_before):
            batch = {0: [], 1: ["n"], None: ["*batch"]}[axes]
            sizes = [*batch, *map(str, self.shape)]
            expected = f"({sizes[0]},)" if len(sizes) == 1 else f"({', '.join(sizes)})"
            raise ValueError(
                f"{name} must be {self.dtype} of shape {expected}, got {array.dtype} of "
                f"{array.shape}"
            )
        return array

    def check_goals(self, goals: NDArray[Any], name: str, axes: int | None = 1) -> NDArray[Any]:
        """
        Raise an error if a user's goals are outside of the space.

        A goal may be outside of the bounds of a Box if it was met as an observation.

        :param goals: shape ``(*batch, *observation_space.shape)``, the dtype of the space
        :param name: name of the argument, for the message
        :param axes: number of axes in ``batch``: 1 for n goals, 0 for a single one. None: any
            number
        :return: the goals as an array
        :raises ValueError: if shape or dtype are not those of the space
        :raises OutsideSpaceError: if a goal is outside of the space, which is a ValueError too
        """
        array = self.check(goals, name, axes)
        rows = array.reshape(-1, *self.shape)
        met = None
        if isinstance(self.observation_space, spaces.Box):
            met = self.have_met(rows)
        check_inside(self.observation_space, rows, name, met, numbered=axes != 0)
        return array

    def have_met(self, observations: NDArray[Any]) -> NDArray[np.bool_]:
        """
        Return whether observations were met before. Held-out observations count too.

        :param observations: shape ``(n, *observation_space.shape)``, the dtype of the space
        :return: whether each was met, shape ``(n,)``
        :raises ValueError: if the observations do not fit the space
        """
        observations = self.check(observations, "observations")
        return np.not_equal(self.states.ids(observations), UNKNOWN)

    def nearest(self, observation: NDArray[Any]) -> int | None:
        """
        Find the known goal that differs least from an observation, by the sum of the absolute
        differences of their numbers.

        :param observation: shape ``observation_space.shape``, the dtype of the space
        :return: its id. None if no goal is known, if the space is Discrete, in which differences
            mean nothing, or if there are too many goals to search
        """
        goals = self.observations
        if isinstance(self.observation_space, spaces.Discrete):
            return None
        if not 0 < goals.size <= _MOST_NUMBERS_TO_SEARCH:
            return None
        wanted = np.asarray(observation, np.float64).reshape(-1)
        n_rows = max(1, _NUMBERS_AT_A_TIME // max(wanted.size, 1))
        distances = [
            np.abs(goals[row : row + n_rows].reshape(-1, wanted.size) - wanted).sum(axis=1)
            for row in range(0, len(goals), n_rows)
        ]
        return int(np.concatenate(distances).argmin())

    def describe_nearest(self, observation: NDArray[Any]) -> str:
        """
        Say which known goal is nearest to an observation, for the end of a message.

        :param observation: shape ``observation_space.shape``, the dtype of the space
        :return: a clause that begins with a comma. Empty if there is nothing to say
        """
        goal_id = self.nearest(observation)
        if goal_id is None:
            return ""
        found = self[goal_id]
        n_different = int((found != observation).sum())
        text = f", the nearest known goal has the id {goal_id}"
        if shown(found) == str(found.tolist()):
            text += f" and is {shown(found)}"
        if n_different == 0:
            return f"{text} (its numbers are equal, its bytes are not, as those of -0.0 and 0.0)"
        return f"{text} ({n_different} of {found.size} numbers differ)"

    def describe_unknown(self, desired: NDArray[Any]) -> str | None:
        """
        Say which goals are neither known nor held out, for a warning.

        :param desired: shape ``(n, *observation_space.shape)``, the dtype of the space
        :return: a sentence. None if each is known or held out
        """
        unknown = self.ids(desired) == UNKNOWN
        if unknown.any():
            unknown &= ~self.is_held_out(desired)
        if not unknown.any():
            return None
        first = desired[unknown][0]
        return (
            f"{int(unknown.sum())} of {len(desired)} goals are not known to the model: it cannot "
            "be expected to reach what it never met. "
            f"The first is {shown(first)}{self.describe_nearest(first)}"
        )

    def describe_unmet(self) -> str | None:
        """
        Say how many of the held-out observations were never met, for a warning.

        :return: a sentence. None if all were met, or if there is no room for more states
        """
        held_out = self._held_out.observations
        unmet = held_out[~self.have_met(held_out)]
        if len(unmet) == 0 or len(self.states) == self.states.capacity:
            return None
        return (
            f"{len(unmet)} of {len(held_out)} held-out observations were never met, the first is "
            f"{shown(unmet[0])}{self.describe_nearest(unmet[0])}; do they equal observations byte "
            "for byte, after any rounding and casting?"
        )

    @property
    def config(self) -> dict[str, Any]:
        """The arguments ``capacity`` and ``held_out`` of a buffer like this one."""
        return {"capacity": self.capacity, "held_out": self._held_out.observations.copy()}

    def check_held_out(self, observations: NDArray[Any]) -> None:
        """
        Raise an error if observations that a model held out are not held out in this buffer.

        :param observations: shape ``(n, *observation_space.shape)``, the dtype of the space
        :raises ValueError: if one of them may become a goal
        """
        n_missing = int((self._held_out.ids(observations) == UNKNOWN).sum())
        if n_missing:
            raise ValueError(
                f"{n_missing} of {len(observations)} observations that the model held out are not "
                "held out in env's goal buffer: give it held_out=model.goal_config['held_out']"
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        """
        Write the goals, all other states, and held-out observations to a file without pickle. If
        there is such a file, it is replaced only when the new one is complete.

        :param path: path of an ``.npz`` file. The ending may be left out
        :raises OSError: if the file cannot be written
        """
        state = self.get_checkpoint_state()
        arrays = {
            "format": _FILE_FORMAT,
            "capacity": self.capacity,
            "states": state["states"]["observations"],
            "state_ids": state["state_ids"],
            "held_out": state["held_out"],
        }
        write_npz(path, arrays)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], observation_space: spaces.Space[Any], capacity: int = 1
    ) -> GoalBuffer:
        """
        Read a goal buffer that :meth:`save` wrote.

        :param path: path of the file. The ending ``.npz`` may be left out
        :param observation_space: space of the observations
        :param capacity: least capacity of the new buffer. If the file has a greater one, the buffer
            gets that
        :return: a new goal buffer
        :raises OSError: if the file cannot be read
        :raises ValueError: if the file is no complete goal buffer, an earlier version wrote it, or
            its observations do not fit the space
        """
        arrays = read_npz(path, _IN_FILE, "a goal buffer")
        capacity = max(int(arrays["capacity"]), capacity)
        buffer = cls(observation_space, capacity)
        states = buffer.check(arrays["states"], "the states of the file")
        buffer.restore(states, arrays["state_ids"], arrays["held_out"], capacity)
        return buffer

    def restore(
        self,
        states: NDArray[Any],
        state_ids: NDArray[np.int64],
        held_out: NDArray[Any],
        capacity: int,
    ) -> None:
        """
        Replace states, goals and held-out observations, in place.

        :param states: distinct observations, shape ``(n, *observation_space.shape)``
        :param state_ids: the rows of ``states`` that are goals, in the order of the goals' ids,
            shape ``(number of goals,)``
        :param held_out: observations that must never become goals, shape
            ``(m, *observation_space.shape)``
        :param capacity: greatest number of goals
        :raises ValueError: if the states are not distinct, or something does not fit. Then nothing
            has changed
        """
        observed = {
            "capacity": capacity + len(held_out),
            "observations": states,
            "n_added": 0,
            "n_recurred": 0,
        }
        self._restore(observed, state_ids, held_out, capacity)

    def _restore(
        self,
        states: dict[str, Any],
        state_ids: NDArray[np.int64],
        held_out: NDArray[Any],
        capacity: int,
    ) -> None:
        """Replace states, goals and held-out observations, in place."""
        self.check(states["observations"], "the states")
        self.check(held_out, "what is held out")
        if len(state_ids) > capacity:
            raise CheckpointError(f"there are {len(state_ids)} goals, of at most {capacity}")
        n_states = len(states["observations"])
        if not np.isin(state_ids, np.arange(n_states)).all():
            raise CheckpointError(f"the goals must be among the {n_states} states")
        try:
            self.states.set_checkpoint_state(states)
        except ValueError as error:
            raise CheckpointError(str(error)) from error
        self.capacity = capacity
        self._held_out = ExactStates(self.observation_space, len(held_out) + 1)
        self._held_out.add(held_out)
        self._forget_goals()
        self._n_goals = len(state_ids)
        self._state_of_goal[: self._n_goals] = state_ids
        self._goal_of_state[state_ids] = np.arange(self._n_goals)

    def _kind(self) -> dict[str, Any]:
        """Return what must be the same in a buffer and in a state that is restored into it."""
        kind: dict[str, Any] = {"shape": self.shape, "dtype": self.dtype.str}
        if self._capacity_was_given:
            kind["capacity"] = self.capacity
        return kind

    def get_checkpoint_state(self) -> dict[str, Any]:
        """
        Return states, goals and held-out observations.

        :return: a dictionary of plain data and copies of arrays
        """
        return {
            **self._kind(),
            "capacity": self.capacity,
            "states": self.states.get_checkpoint_state(),
            "state_ids": self.state_ids.copy(),
            "held_out": self._held_out.observations.copy(),
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Replace states, goals and held-out observations, in place.

        :param state: what :meth:`get_checkpoint_state` returned
        :raises CheckpointError: if the state is of a goal buffer for another space or of another
            given capacity, or if it is damaged
        """
        check_same("a goal buffer", state, self._kind())
        self._restore(
            state["states"], state["state_ids"], state["held_out"], int(state["capacity"])
        )


def write_npz(path: str | os.PathLike[str], arrays: dict[str, Any]) -> None:
    """
    Write arrays to a compressed file. If there is such a file, it is replaced only when the new one
    is complete.

    :param path: path of the file. The ending ``.npz`` may be left out
    :param arrays: the arrays by their names
    :raises OSError: if the file cannot be written
    """
    target = _with_ending(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    staged = target.with_name(target.name + ".tmp.npz")
    np.savez_compressed(staged, **arrays)
    staged.replace(target)


def read_npz(
    path: str | os.PathLike[str], names: tuple[str, ...], what: str
) -> dict[str, NDArray[Any]]:
    """
    Read arrays that :func:`write_npz` wrote.

    :param path: path of the file. The ending ``.npz`` may be left out
    :param names: names of the arrays that the file must have
    :param what: what the file holds, for the message, such as "a goal buffer"
    :return: all arrays by their names
    :raises OSError: if the file cannot be read
    :raises ValueError: if the file is not complete, is another kind of file, or was written by an
        earlier version
    """
    target = Path(path) if Path(path).is_file() else _with_ending(path)
    try:
        with target.open("rb") as file:
            arrays = dict(np.load(file, allow_pickle=False))
    except OSError:
        raise
    except Exception as error:
        # NumPy may raise any error if the file is of another kind.
        raise ValueError(f"{path} is no whole file of {what}: {error!r}") from error
    if "labels" in arrays and "format" not in arrays:
        raise ValueError(
            f"{path} is a goal buffer that an earlier version wrote, which this version cannot "
            "read: train anew, or load it with the version that wrote it"
        )
    missing = [name for name in names if name not in arrays]
    if missing:
        raise ValueError(f"{path} is no whole file of {what}: {', '.join(missing)} missing")
    return arrays


def _with_ending(path: str | os.PathLike[str]) -> Path:
    """Return the path with the ending of NumPy's files."""
    path = Path(path)
    return path if path.suffix == ".npz" else path.with_name(path.name + ".npz")
