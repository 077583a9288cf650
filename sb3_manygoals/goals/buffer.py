"""The set of goals an agent knows: every distinct observation it has met."""

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
from sb3_manygoals.goals.table import UNKNOWN, ObservationTable
from sb3_manygoals.memory_limits import check_memory, share_of_memory
from sb3_manygoals.validation import check_count

GOAL_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
"""The observation spaces whose elements can be goals: each is one NumPy array of fixed shape and dtype."""

_CAPACITY = 100_000  # goals, where nothing else is said and the memory is there
_SAVED = ("capacity", "observations", "numbers", "held_out", "n_added", "n_recurred", "labels")
_MOST_LOOK = 2**26  # numbers of known goals among which the nearest is looked for
_LOOK_AT_ONCE = 2**20
_MOST_SHOWN = 16  # numbers of an observation that a message shows
_INDEX_SIZE = 184  # bytes of a hash, three numbers and their places in a dict, just after it has grown; and of labels


class GoalBuffer:
    """
    The goals among the observations of a table, each with a stable integer id.

    Two observations are the same goal when they are identical byte for byte (section 3 of Veeriah et al. 2018).
    An id is the row of the goal in :attr:`observations` and never changes, so "is this the goal?" is an integer comparison.
    Once ``capacity`` goals are in, new observations have the id ``UNKNOWN`` (-1), as have held-out ones; a warning says so
    once. :attr:`table` has the held-out ones that were met too.

    :param observation_space: of the observations: Box, Discrete, MultiDiscrete or MultiBinary; else a TypeError
    :param capacity: the greatest number of goals; memory is touched only as goals come in. None: 100,000, or as many as half
        of the available memory holds, if that is less
    :param held_out: observations of shape ``(n, *observation_space.shape)`` that must never become goals, or None
    :raises ValueError: if ``capacity`` is not a positive whole number, or ``held_out`` does not fit the space
    :raises MemoryError: if ``capacity`` goals do not fit into the memory that is available

    ``n_added`` counts observations given to :meth:`add`, and ``n_recurred`` those that were met before, held-out ones too;
    neither those that there was no room for. ``labels``, shape ``(capacity + 1, 3)``, has the number of arrivals at each goal,
    the sum of the environment's rewards on arriving, and the number of arrivals at which it ended; the last row is for all
    observations that are no goals.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        capacity: int | None = None,
        held_out: NDArray[Any] | None = None,
    ) -> None:
        self.shape, self.dtype = check_goal_space(observation_space)
        self.observation_space = observation_space
        self._chosen_capacity = capacity is None
        if capacity is None:
            size_of_one = math.prod(self.shape) * self.dtype.itemsize + _INDEX_SIZE
            capacity = max(min(_CAPACITY, share_of_memory(0.5) // size_of_one), 1)
        self._is_discrete = not isinstance(observation_space, spaces.Box)
        self.capacity = check_count("capacity", capacity, of="goals")
        self.n_added, self.n_recurred = 0, 0
        self._n, self._warned = 0, False
        check_memory(
            f"a goal buffer of capacity {self.capacity}",
            self.memory_to_come,
            "choose a smaller capacity",
        )
        self.labels: NDArray[np.float64] = np.zeros((self.capacity + 1, 3))
        self._hold_out(np.zeros((0, *self.shape), self.dtype))
        if held_out is not None:
            self._hold_out(self.check_goals(held_out, "held_out"))

    def _hold_out(self, observations: NDArray[Any]) -> None:
        """Only of an empty buffer."""
        self._held_out = ObservationTable(self.observation_space, len(observations) + 1)
        self._held_out.add(observations)
        self.table = ObservationTable(self.observation_space, self.capacity + len(self._held_out))
        # of each observation in the table, and the last of the unknown one; and the numbers of the goals in the table
        self._goal_ids = np.full(self.table.capacity + 1, UNKNOWN)
        self._numbers = np.empty(self.capacity, dtype=np.int64)

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, ids: NDArray[np.integer[Any]] | int | slice) -> NDArray[Any]:
        """The observations of goals, shape ``(*ids.shape, *observation_space.shape)``. An IndexError if there is none."""
        if not isinstance(ids, slice) and np.any(np.asarray(ids) < 0):
            raise IndexError(
                f"there is no goal with the id {int(np.min(ids))}: that is the id of an unknown observation"
            )
        return self.table[self._numbers[: len(self)][ids]]

    @property
    def memory_to_come(self) -> dict[str, int]:
        """Bytes that it will take besides what it has taken, once it is full."""
        room = self.capacity - self._n
        return {
            "goals": room * math.prod(self.shape) * self.dtype.itemsize,
            "index of goals": room * _INDEX_SIZE,
        }

    @property
    def has_held_out(self) -> bool:
        """Whether some observations may never become goals."""
        return len(self._held_out) > 0

    @property
    def observations(self) -> NDArray[Any]:
        """All goals in order of their ids, a read-only view of shape ``(len(self), *observation_space.shape)``."""
        numbers = self._numbers[
            : len(self)
        ]  # in another order where observations became goals later than others
        alike = len(self) == len(self.table) and (numbers == np.arange(len(self))).all()
        view = self.table.observations if alike else self.table[numbers]
        view.flags.writeable = False
        return view

    def add(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        """
        Take in the observations that are new, not held out, and for which there is room.

        :param observations: shape ``(n, *observation_space.shape)``, the dtype of the space; else a
            ValueError, as if a number is out of the range of a Discrete, MultiDiscrete or
            MultiBinary space. Bounds of a Box are not checked
        :return: the id of each, shape ``(n,)`` int64; ``UNKNOWN`` for the held out and those there was no room for
        """
        observations = self.check(observations, "observations")
        n_before, n_met = len(self), len(self.table)
        numbers = self._take_in(observations)
        ids = self._goal_ids[numbers]
        unknown = ids == UNKNOWN
        if unknown.any() and n_before < self.capacity:
            fresh = np.unique(
                numbers[unknown & (numbers != UNKNOWN)]
            )  # some may be in the table, and no goals yet
            if self.has_held_out:
                fresh = fresh[~self.is_held_out(self.table[fresh])]
            fresh = fresh[: self.capacity - n_before]
            self._n += len(fresh)
            self._goal_ids[fresh] = np.arange(n_before, self._n)
            self._numbers[n_before : self._n] = fresh
            ids = self._goal_ids[numbers]
            unknown = ids == UNKNOWN
        n_with_room = int(np.count_nonzero(numbers != UNKNOWN))
        self.n_added += n_with_room
        self.n_recurred += n_with_room - (len(self.table) - n_met)
        if (
            len(self) == self.capacity
            and not self._warned
            and not self.is_held_out(observations[unknown]).all()
        ):
            self._warned = True
            limit = f"{self.capacity} goals are known, no more are kept: observations met from now on are none"
            warnings.warn(
                f"{limit}. To keep more, raise capacity, of the goal buffer.",
                RuntimeWarning,
                stacklevel=2,
            )
        return ids

    def _take_in(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        """
        The numbers of observations in the table. What is new must be in range, or no network could
        make a one-hot vector of it.
        """
        if not self._is_discrete:
            return self.table.add(observations)
        numbers = self.table.ids(observations)
        new = np.flatnonzero(numbers == UNKNOWN)
        if len(new) == 0:
            return numbers
        try:
            check_inside(self.observation_space, observations[new], "observations")
        except OutsideSpaceError as error:
            error.row = int(new[error.row])
            raise
        return self.table.add(observations)

    def ids(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        """As :meth:`add`, without storing any; ``UNKNOWN`` where an observation is not a goal of this buffer."""
        return self._goal_ids[self.table.ids(self.check(observations, "observations"))]

    def record(
        self, ids: NDArray[np.int64], rewards: NDArray[Any], ended: NDArray[np.bool_]
    ) -> None:
        """
        Count arrivals.

        :param ids: of the observations, ``UNKNOWN`` for those that are no goals, shape ``(n,)``
        :param rewards: the environment's on arriving there, and ``ended``, whether that ended its episode; both ``(n,)``
        """
        np.add.at(self.labels[:, 0], ids, 1.0)
        if rewards.any():  # most steps have neither a reward nor an end
            np.add.at(self.labels[:, 1], ids, rewards)
        if ended.any():
            np.add.at(self.labels[:, 2], ids, ended)

    @property
    def rewards(self) -> NDArray[np.float64]:
        """The mean reward on arriving at each goal, NaN where no arrival was recorded, shape ``(len(self),)``."""
        arrivals, sums, _ = self.labels[: len(self)].T
        means: NDArray[np.float64] = np.divide(
            sums, arrivals, out=np.full(len(self), np.nan), where=arrivals > 0
        )
        return means

    def sample_ids(self, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """
        Draw goals uniformly, with replacement.

        :return: ids, shape ``(n,)`` int64; a ValueError if the buffer is empty or ``n`` is not positive
        """
        if len(self) == 0:
            raise ValueError("cannot sample from an empty goal buffer: add observations first")
        return rng.integers(len(self), size=check_count("n", n))

    def sample_others(
        self, current_ids: NDArray[np.int64], rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """As :meth:`sample_ids`, one for each environment. The current one is drawn only if no other goal can be."""
        avoid = (current_ids != UNKNOWN) & (len(self) > 1)
        ids: NDArray[np.int64] = rng.integers(len(self) - avoid, size=len(current_ids))
        ids += avoid & (
            ids >= current_ids
        )  # a draw from one goal fewer, moved up past the current one
        return ids

    def is_held_out(self, observations: NDArray[Any]) -> NDArray[np.bool_]:
        """Whether each observation of a batch may never become a goal, shape ``(n,)``."""
        return np.not_equal(self._held_out.ids(self.check(observations, "observations")), UNKNOWN)

    def check(self, observations: NDArray[Any], name: str, axes: int | None = 1) -> NDArray[Any]:
        """The observations as an array. A ValueError if they do not fit the space, with ``axes`` more axes (None: any)."""
        array = np.asarray(observations)
        before = max(array.ndim - len(self.shape), 0)
        if (
            array.shape[before:] != self.shape
            or axes not in (None, before)
            or array.dtype != self.dtype
        ):
            expected = {0: self.shape, 1: f"(n, *{self.shape})", None: f"(*batch, *{self.shape})"}[
                axes
            ]
            raise ValueError(
                f"{name} must be {self.dtype} of shape {expected}, got {array.dtype} of {array.shape}"
            )
        return array

    def check_goals(self, goals: NDArray[Any], name: str, axes: int | None = 1) -> NDArray[Any]:
        """
        As :meth:`check`, for goals that a user gives. An OutsideSpaceError, a ValueError, if one is
        outside of the space.

        What an environment has shown may lie outside of its Box, and can be a goal nevertheless.
        """
        array = self.check(goals, name, axes)
        rows = array.reshape(-1, *self.shape)
        known = self.have_met(rows) if isinstance(self.observation_space, spaces.Box) else None
        check_inside(self.observation_space, rows, name, known, numbered=axes != 0)
        return array

    def have_met(self, observations: NDArray[Any]) -> NDArray[np.bool_]:
        """
        Whether each of these was met, held-out ones included, shape ``(n,)``. A ValueError if they
        do not fit the space.
        """
        observations = self.check(observations, "observations")
        return np.not_equal(self.table.ids(observations), UNKNOWN)

    def nearest(self, observation: NDArray[Any]) -> int | None:
        """
        The known goal whose numbers differ least from those of an observation, by the sum of
        absolute differences.

        :param observation: shape ``observation_space.shape``, the dtype of the space
        :return: its id. None if no goal is known, numbers are only names, as those of a Discrete
            space, or there are too many to look
        """
        goals = self.observations
        if isinstance(self.observation_space, spaces.Discrete) or not 0 < goals.size <= _MOST_LOOK:
            return None
        wanted = np.asarray(observation, np.float64).reshape(-1)
        rows = max(1, _LOOK_AT_ONCE // max(wanted.size, 1))
        distances = [
            np.abs(goals[row : row + rows].reshape(-1, wanted.size) - wanted).sum(axis=1)
            for row in range(0, len(goals), rows)
        ]
        return int(np.concatenate(distances).argmin())

    def describe_nearest(self, observation: NDArray[Any]) -> str:
        """What can be said of :meth:`nearest`, for a message; empty if nothing can."""
        number = self.nearest(observation)
        if number is None:
            return ""
        found = self[number]
        differ = int((found != observation).sum())
        text = f", the nearest known goal has the id {number}"
        if found.size <= _MOST_SHOWN:
            text += f" and is {found.tolist()}"
        if differ == 0:
            return f"{text} (its numbers are equal, its bytes are not, as those of -0.0 and 0.0)"
        return f"{text} ({differ} of {found.size} numbers differ)"

    def describe_unknown(self, desired: NDArray[Any]) -> str | None:
        """
        For a warning: which goals are neither known nor held out.

        :param desired: shape ``(n, *observation_space.shape)``, the dtype of the space
        :return: None if each is one of these
        """
        unknown = self.ids(desired) == UNKNOWN
        if unknown.any():
            unknown &= ~self.is_held_out(desired)
        if not unknown.any():
            return None
        first = desired[unknown][0]
        text = f"{int(unknown.sum())} of {len(desired)} goals are not known to the model"
        text += ": it cannot be expected to reach what it never met"
        return f"{text}. Of the first, {_shown(first)}{self.describe_nearest(first)}"

    def describe_unmet(self) -> str | None:
        """
        For a warning: how many of the held-out observations were never met.

        :return: None if all were met, or there was no room to keep them
        """
        held_out = self._held_out.observations
        unmet = held_out[~self.have_met(held_out)]
        if len(unmet) == 0 or len(self.table) == self.table.capacity:
            return None
        text = f"{len(unmet)} of {len(held_out)} held-out observations were never met"
        text += f", the first is {_shown(unmet[0])}{self.describe_nearest(unmet[0])}"
        return f"{text}; do they equal observations byte for byte, after any rounding and casting?"

    @property
    def rules(self) -> dict[str, Any]:
        """Capacity and held-out observations."""
        return {"capacity": self.capacity, "held_out": self._held_out.observations.copy()}

    def check_held_out(self, observations: NDArray[Any]) -> None:
        """A ValueError if some of these, shape ``(n, *observation_space.shape)``, are not held out here."""
        missing = int((self._held_out.ids(observations) == UNKNOWN).sum())
        if missing:
            what = f"{missing} of {len(observations)} observations that the model held out are not in env's goal buffer"
            raise ValueError(f"{what}: give it held_out=model.goal_rules['held_out']")

    def save(self, path: str | os.PathLike[str]) -> None:
        """
        Write goals, their labels and held-out observations to an ``.npz`` file (no pickle), whose ending may be left out. A
        file already there is replaced only once the new one is whole.
        """
        target = _npz(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        staged = target.with_name(target.name + ".tmp.npz")
        np.savez_compressed(staged, **self.get_checkpoint_state())
        staged.replace(target)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], observation_space: spaces.Space[Any], capacity: int = 1
    ) -> GoalBuffer:
        """
        :return: the buffer that :meth:`save` wrote to a file, with its capacity or the one given, if that is greater. A
            ValueError if it is no such file, or its observations do not fit the space
        """
        target = Path(path) if Path(path).is_file() else _npz(path)
        try:
            with target.open("rb") as file:
                state = dict(np.load(file, allow_pickle=False))
            missing = [name for name in _SAVED if name not in state]
            if missing:
                raise KeyError(*missing)
        except OSError:
            raise
        except Exception as error:  # a file of something else may raise anything
            raise ValueError(f"{path} is no whole file of a goal buffer: {error!r}") from error
        buffer = cls(observation_space, max(int(state["capacity"]), capacity))
        buffer.set_checkpoint_state({**state, **buffer._kind()})
        buffer.n_added = buffer.n_recurred = 0  # whoever loads has met nothing
        return buffer

    def _kind(self) -> dict[str, Any]:
        """What a state must share with the buffer that takes it over. A capacity that was not given may differ."""
        kind = {"shape": self.shape, "dtype": self.dtype.str}
        return kind if self._chosen_capacity else {**kind, "capacity": self.capacity}

    def get_checkpoint_state(self) -> dict[str, Any]:
        """:return: all but the observation space as plain data, copied"""
        return {
            **self._kind(),
            "capacity": self.capacity,
            "observations": self.table.observations.copy(),
            "numbers": self._numbers[: len(self)].copy(),
            "held_out": self._held_out.observations.copy(),
            "n_added": self.n_added,
            "n_recurred": self.n_recurred,
            "labels": self.labels[np.r_[: len(self), -1]],
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """Take over the goals with their ids, in place. A CheckpointError if the state is of another kind of buffer."""
        check_same("a goal buffer", state, self._kind())
        met, numbers = self.check(state["observations"], "the goals of the state"), state["numbers"]
        held_out = self.check(state["held_out"], "what is held out in the state")
        if self.capacity != state["capacity"]:
            self.capacity = int(state["capacity"])
            self.labels = np.zeros((self.capacity + 1, 3))
        table = ObservationTable(self.observation_space, self.capacity + len(held_out))
        table.add(met)
        if len(table) != len(met) or len(numbers) > self.capacity:
            raise CheckpointError(
                f"the state has {len(met)} goals, {len(table)} of them distinct, of at most {self.capacity}"
            )
        known = self.table
        self._hold_out(held_out)
        vars(known).update(vars(table))  # in place, for those that use it
        self.table, self._n = known, len(numbers)
        self._numbers[: len(numbers)] = numbers
        self._goal_ids[numbers] = np.arange(len(numbers))
        self.n_added, self.n_recurred = state["n_added"], state["n_recurred"]
        self.labels[:] = 0.0
        self.labels[np.r_[: len(self), -1]] = state["labels"]


class OutsideSpaceError(ValueError):
    """
    An observation is outside of its space.

    :param message: says which and why
    :param row: its place in the batch
    """

    def __init__(self, message: str, row: int = 0) -> None:
        super().__init__(message)
        self.row = row


def check_inside(
    space: spaces.Space[Any],
    observations: NDArray[Any],
    name: str,
    exempt: NDArray[np.bool_] | None = None,
    numbered: bool = True,
) -> None:
    """
    Refuse observations outside of their space.

    :param space: Box, Discrete, MultiDiscrete or MultiBinary
    :param observations: shape ``(n, *space.shape)``, the dtype of the space
    :param name: what they are, for the message
    :param exempt: observations that may be anything, shape ``(n,)`` bool, or None
    :param numbered: whether the message says which of the n it is
    :raises OutsideSpaceError: if a number is out of its range. Floats may miss the bounds of a Box
        by a hundredth of their distance, as environments do that round
    """
    low: Any
    high: Any
    slack: Any = 0
    if isinstance(space, spaces.Box):
        low, high = space.low, space.high
        if space.dtype is not None and space.dtype.kind == "f":
            with np.errstate(over="ignore", invalid="ignore"):
                width = np.subtract(high, low, dtype=np.float64)
            slack = np.where(np.isfinite(width), 0.01 * width, 0.0)
    elif isinstance(space, spaces.MultiDiscrete):
        low, high = 0, space.nvec - 1
    else:
        low, high = 0, int(space.n) - 1 if isinstance(space, spaces.Discrete) else 1
    inside = (observations >= low - slack) & (observations <= high + slack)  # NaN is not
    if inside.all():
        return
    wrong = ~inside.reshape(len(observations), -1).all(axis=1)
    if exempt is not None:
        wrong &= ~exempt
    if not wrong.any():
        return
    row = int(wrong.argmax())
    place = tuple(np.argwhere(~inside[row])[0].tolist())
    least, most = (np.broadcast_to(bound, inside[row].shape)[place] for bound in (low, high))
    which = f"{name}[{row}]" if numbered else name
    at = f" at {place}" if place else ""
    wrong_one = f"{observations[row][place]}{at} is not in [{least}, {most}]"
    got = f"{which} is {_shown(observations[row])}: {wrong_one}"
    raise OutsideSpaceError(f"{name} must be of the observation space, {got}", row)


def check_one_hot(space: spaces.Space[Any], values: NDArray[Any], name: str) -> None:
    """
    Refuse a number of which no one-hot vector can be made. A Box is not looked at, nor is an array
    that does not fit.

    :param space: Box, Discrete, MultiDiscrete or MultiBinary
    :param values: observations, shape ``(*batch, *space.shape)``
    :param name: what they are, for the message
    :raises OutsideSpaceError: if one is out of its range
    """
    if isinstance(space, spaces.Box) or values.dtype.kind not in "iubf":
        return
    shape = space.shape or ()
    before = values.ndim - len(shape)
    if before in (0, 1) and values.shape[before:] == shape:
        check_inside(space, values.reshape(-1, *shape), name, numbered=before == 1)


def _shown(observation: NDArray[Any]) -> str:
    """A small observation, or what kind of array a large one is."""
    if observation.size <= _MOST_SHOWN:
        return str(observation.tolist())
    return f"an array of {observation.dtype} of shape {observation.shape}"


def _npz(path: str | os.PathLike[str]) -> Path:
    path = Path(path)
    return path if path.suffix == ".npz" else path.with_name(path.name + ".npz")


def check_goal_space(observation_space: spaces.Space[Any]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype of observations. A TypeError if they cannot be goals: they must be single arrays of fixed shape."""
    reason = None
    if not isinstance(observation_space, GOAL_SPACES):
        reason = f"expected one of {', '.join(space.__name__ for space in GOAL_SPACES)}"
    elif isinstance(observation_space, spaces.Box) and (
        observation_space.shape == () or 0 in observation_space.shape
    ):
        reason = "expected an array with elements"
    elif isinstance(observation_space, (spaces.Discrete, spaces.MultiDiscrete)) and np.any(
        observation_space.start != 0
    ):
        reason = "expected values that start at 0"
    elif isinstance(observation_space, spaces.MultiDiscrete) and len(observation_space.shape) > 1:
        reason = "expected a MultiDiscrete of one axis"
    if reason is not None:
        raise TypeError(
            f"observation_space cannot be treated as a space of goals: {reason}, got "
            f"{observation_space}. Wrap each environment so that its observation is one such "
            f"array: {_how_to_wrap(observation_space)}"
        )
    return observation_space.shape or (), np.dtype(observation_space.dtype)


def _how_to_wrap(space: spaces.Space[Any]) -> str:
    """The wrappers of Gymnasium, as code, that make one array of observations."""
    wrappers, flat = "gymnasium.wrappers", "gymnasium.wrappers.FlattenObservation"
    if not isinstance(space, spaces.Dict):
        if _flattens(space):
            return f"{flat}(env)"
        return f"{wrappers}.TransformObservation, with a function and a space of your own"
    ways = []
    single = [key for key, part in space.items() if isinstance(part, GOAL_SPACES)]
    if single:
        key = "image" if "image" in single else single[0]
        take = f"lambda seen: seen[{key!r}], env.observation_space[{key!r}]"
        ways.append(f"one of its parts, {wrappers}.TransformObservation(env, {take})")
    if {"image", "mission"} <= set(space):
        ways.append("in MiniGrid the picture, minigrid.wrappers.ImgObsWrapper(env)")
    flattenable = [key for key, part in space.items() if _flattens(part)]
    if len(flattenable) == len(space):
        ways.append(f"all of it, {flat}(env)")
    elif len(flattenable) > 1:
        ways.append(f"several parts, {flat}({wrappers}.FilterObservation(env, {flattenable}))")
    if not ways:
        return f"{wrappers}.TransformObservation, with a function and a space of your own"
    return "; or ".join(ways)


def _flattens(space: spaces.Space[Any]) -> bool:
    """Whether FlattenObservation can make an array of it. Spaces of other packages may not say."""
    try:
        return bool(space.is_np_flattenable)
    except NotImplementedError:
        return False


def identical(left: NDArray[Any], right: NDArray[Any], dims: int) -> NDArray[np.bool_]:
    """
    Compare observations byte for byte, not by value: -0.0 and 0.0 are two goals to the buffer, and must be two everywhere.

    :param left: shape ``(*batch, *shape)``; ``right`` has the same shape and dtype
    :param dims: number of axes in ``shape``
    :return: shape ``batch``
    """
    batch, size = left.shape[: left.ndim - dims], math.prod(left.shape[left.ndim - dims :])
    ours, theirs = (
        np.ascontiguousarray(array).reshape(*batch, size).view(np.uint8) for array in (left, right)
    )
    return np.asarray((ours == theirs).all(axis=-1))
