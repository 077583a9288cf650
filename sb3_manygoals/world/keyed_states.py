"""States by a function of the user's: observations with equal keys are one state."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_manygoals.world.examples import EXAMPLES_PER_STATE, ExampleStates
from sb3_manygoals.world.states import UNKNOWN, ExactStates

StateKey = Callable[[NDArray[Any]], Any]
"""
A function of one observation, shape ``observation_space.shape``. It returns a number, a sequence of
numbers or an array, always of the same shape.
"""

# A key is judged when so many observations were made.
_JUDGED_AFTER = 1_000
# It warns if less than this share of the observations had a state that was met before.
_FEW_RECUR = 0.05


class KeyedStates(ExampleStates):
    """
    States by keys: two observations are one state if and only if their keys are equal.

    Of each state, some of its observations are kept, as examples of how it looks: the first one,
    and a random sample of all others.

    :param observation_space: space of the observations: Box, Discrete, MultiDiscrete or MultiBinary
    :param capacity: greatest number of states. Memory is used only as states come in
    :param state_key: returns the key of an observation
    :param examples_per_state: greatest number of observations that are kept of a state
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        capacity: int,
        state_key: StateKey,
        examples_per_state: int = EXAMPLES_PER_STATE,
    ) -> None:
        self.state_key = state_key
        super().__init__(observation_space, capacity, examples_per_state)

    def _make_room(self, capacity: int) -> None:
        """Allocate memory for so many states, and forget all that are known."""
        self.capacity = capacity
        # The states of keys, once the first key has shown their shape and dtype.
        self._states_of_keys: ExactStates | None = None
        self._make_room_for_examples()
        self._was_judged = False

    def __len__(self) -> int:
        return 0 if self._states_of_keys is None else len(self._states_of_keys)

    def keys(self, observations: NDArray[Any]) -> NDArray[Any]:
        """
        Return the keys of observations.

        :param observations: shape ``(n, *observation_space.shape)``
        :return: keys, shape ``(n, *shape of a key)``
        :raises TypeError: if a key is no number, sequence of numbers or array of numbers
        :raises ValueError: if a key has another shape than the first one, floats where that had
            integers, or a number that is not finite or beyond 64 bits with a sign
        """
        known = self._states_of_keys
        like = None
        if known is not None:
            like = np.empty(known.observation_space.shape or (), known.observation_space.dtype)
        found = []
        for observation in observations:
            key = self._key_of(observation, like)
            like = key
            found.append(key)
        if not found:
            shape = (1,) if like is None else like.shape
            return np.empty((0, *shape), np.int64 if like is None else like.dtype)
        return np.stack(found)

    def _key_of(self, observation: NDArray[Any], like: NDArray[Any] | None) -> NDArray[Any]:
        """Return the key of one observation, as an array with an axis, like an earlier key."""
        # The function may write into what it gets.
        given = self.state_key(observation.copy())
        try:
            key = np.atleast_1d(np.asarray(given))
        except ValueError:
            # A sequence of sequences of different lengths is no array.
            key = np.empty(0)
        if key.dtype.kind not in "iubf" or key.size == 0:
            raise TypeError(
                "state_key must return a number, a sequence of numbers or an array of numbers, got "
                f"{given!r}"
            )
        key = self._widened(key, given)
        if like is None:
            return key
        is_other_kind = key.dtype.kind == "f" and like.dtype.kind != "f"
        if key.shape != like.shape or is_other_kind:
            raise ValueError(
                "state_key must always return the same shape and kind of number, first it was "
                f"{like.dtype} of {like.shape}, now {key.dtype} of {key.shape}: {given!r}"
            )
        return key.astype(like.dtype)

    def _widened(self, key: NDArray[Any], given: Any) -> NDArray[Any]:
        """Return a key in 64 bits, so that equal numbers of different dtypes are equal bytes."""
        if key.dtype.kind != "f":
            if key.dtype == np.uint64 and key.max() > np.iinfo(np.int64).max:
                raise ValueError(f"state_key must return integers below 2**63, got {given!r}")
            return key.astype(np.int64)
        key = key.astype(np.float64)
        if not np.isfinite(key).all():
            raise ValueError(f"state_key must return finite numbers, got {given!r}")
        # Rounding may give -0.0, whose bytes are not those of 0.0.
        return key + 0.0

    def _look_up(self, observations: NDArray[Any], take_in: bool) -> NDArray[np.int64]:
        """Return the ids of observations. Those that are new get one if they are to be taken in."""
        if len(observations) == 0:
            return np.zeros(0, dtype=np.int64)
        keys = self.keys(observations)
        if self._states_of_keys is None:
            if not take_in:
                return np.full(len(keys), UNKNOWN)
            self._use_keys_like(keys)
        assert self._states_of_keys is not None
        ids = self._states_of_keys._look_up(keys, take_in)
        if take_in:
            self._keep_examples(ids, observations)
        return ids

    def _use_keys_like(self, keys: NDArray[Any]) -> None:
        """Let keys have this shape and dtype from now on."""
        space: spaces.Space[Any] = spaces.Space(keys.shape[1:], keys.dtype)
        self._states_of_keys = ExactStates(space, self.capacity)

    def observe(self, observations: NDArray[Any]) -> NDArray[np.int64]:
        """
        Do as :meth:`ExactStates.add <sb3_manygoals.world.ExactStates.add>` does for observations
        that an environment shows, and count how many of them recur. After 1,000 observations it
        warns if the key separates nearly all of them, or none.

        :param observations: shape ``(n, *observation_space.shape)``, the dtype of the space
        :return: their ids, shape ``(n,)``. ``UNKNOWN`` for those for which there was no room
        """
        ids = super().observe(observations)
        # Once there is no more room, the numbers of states and of recurrences do not tell.
        if self.n_added >= _JUDGED_AFTER and not self._was_judged and not self.is_full:
            self._was_judged = True
            if len(self) == 1:
                warnings.warn(
                    f"state_key gave one key to all of {self.n_added} observations: they are one "
                    "state, in which nothing can be learned",
                    stacklevel=4,
                )
            elif self.n_recurred < _FEW_RECUR * self.n_added:
                warnings.warn(
                    f"state_key gave {len(self)} different keys to {self.n_added} observations: "
                    "hardly any state recurs, so nothing can be planned. Let it leave out or round "
                    "what makes them different",
                    stacklevel=4,
                )
        return ids

    def get_checkpoint_state(self) -> dict[str, Any]:
        """
        Return all that is known, for :meth:`set_checkpoint_state`.

        :return: a dictionary of plain data and copies of arrays
        """
        return {
            "capacity": self.capacity,
            "observations": self.observations.copy(),
            "examples": self._examples[: len(self)].copy(),
            "n_seen": self._n_seen[: len(self)].copy(),
            "was_judged": self._was_judged,
            "rng": self._rng.bit_generator.state,
            "n_added": self.n_added,
            "n_recurred": self.n_recurred,
            "n_shared": self.n_shared,
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Replace all that is known, in place, so that it holds for all who use these states.

        :param state: what :meth:`get_checkpoint_state` returned, of states with the same key. If
            examples are missing, the first observation of each state is its example
        :raises ValueError: if its observations do not have distinct keys, or are more than its
            capacity. Then nothing has changed
        """
        observations = state["observations"]
        restored = KeyedStates(
            self.observation_space, int(state["capacity"]), self.state_key, self.examples_per_state
        )
        restored.add(observations)
        if len(restored) != len(observations):
            raise ValueError(
                f"the file has {len(observations)} states, {len(restored)} of them with keys of "
                f"their own, of at most {restored.capacity}"
            )
        if "examples" in state:
            examples = state["examples"][:, : self.examples_per_state]
            restored._examples[: len(examples), : examples.shape[1]] = examples
            # If fewer were kept than these states keep, no more can be drawn from.
            was_full = examples.shape[1] < self.examples_per_state
            most = examples.shape[1] if was_full else np.iinfo(np.int64).max
            restored._n_seen[: len(examples)] = np.minimum(state["n_seen"], most)
        self.capacity = restored.capacity
        self._states_of_keys = restored._states_of_keys
        self._examples = restored._examples
        self._n_seen = restored._n_seen
        self._was_judged = bool(state.get("was_judged", True))
        if "rng" in state:
            self._rng.bit_generator.state = state["rng"]
        self.n_added = int(state["n_added"])
        self.n_recurred = int(state["n_recurred"])
        # Files of earlier versions do not have it.
        self.n_shared = int(state.get("n_shared", 0))

    def __getstate__(self) -> dict[str, Any]:
        return {
            "observation_space": self.observation_space,
            "state_key": self.state_key,
            "examples_per_state": self.examples_per_state,
            **self.get_checkpoint_state(),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.state_key = state["state_key"]
        self.examples_per_state = state["examples_per_state"]
        self._rng = np.random.default_rng(0)
        super().__setstate__(state)
