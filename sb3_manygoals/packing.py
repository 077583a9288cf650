"""Observations of several arrays as one array of bytes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_manygoals.validation import is_held, why_no_array_space


class _Place(NamedTuple):
    """Where the bytes of a part are, and what they are."""

    bytes: slice
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    torch_dtype: th.dtype
    greatest: NDArray[Any] | int | None
    """The greatest values of a part that becomes one-hot, None for others."""


class PackedSpace(spaces.Box):
    """
    Space of observations that consist of several arrays, each packed into one array of bytes.

    The bytes of all parts follow each other, so equal observations have equal bytes, and no number
    changes. The learner keeps and compares such arrays; policies unpack them.

    :param parts: the spaces of the arrays: Box, Discrete, MultiDiscrete or MultiBinary
    :raises TypeError: if a part is of another kind, or has no elements, or there is none
    """

    def __init__(self, parts: spaces.Dict) -> None:
        self.parts = parts
        self._places: dict[str, _Place] = {}
        """Where the bytes of each part are."""
        size = 0
        for name, part in parts.items():
            reason = why_no_array_space(part)
            if reason is not None:
                how = ""
                # A GoalEnv would be none any more.
                if parts.is_np_flattenable and "achieved_goal" not in parts:
                    how = ". gymnasium.wrappers.FlattenObservation makes one array of all parts"
                raise TypeError(
                    f"{name!r} of the observation cannot be packed: {reason}, got {part}{how}"
                )
            dtype = np.dtype(part.dtype)
            shape = part.shape or ()
            n_bytes = math.prod(shape) * dtype.itemsize
            torch_dtype = th.from_numpy(np.empty(0, dtype)).dtype
            place = slice(size, size + n_bytes)
            self._places[name] = _Place(place, shape, dtype, torch_dtype, _greatest(part))
            size += n_bytes
        if size == 0:
            raise TypeError(f"an observation must have a part with elements, got {parts}")
        super().__init__(0, 255, (size,), np.uint8)

    def pack(self, observation: Mapping[str, Any]) -> NDArray[np.uint8]:
        """
        Pack one observation, or a batch of n.

        :param observation: the parts by their names, each of the shape of its space, or with n rows
            of it. Other entries are ignored
        :return: bytes, shape ``(size,)`` or ``(n, size)``
        :raises ValueError: if a part is missing, has another shape or kind of dtype or whole
            numbers that its dtype does not hold, is not finite, or is out of the range of its
            Discrete, MultiDiscrete or MultiBinary space
        """
        rows = []
        for name, place in self._places.items():
            if name not in observation:
                raise ValueError(f"the observation must have {list(self._places)}, got no {name!r}")
            array = np.asarray(observation[name])
            n_axes = array.ndim - len(place.shape)
            fits = n_axes in (0, 1) and array.shape[n_axes:] == place.shape
            if not fits or not np.can_cast(array.dtype, place.dtype, "same_kind"):
                raise ValueError(
                    f"{name!r} of the observation must be {place.dtype} of shape {place.shape}, "
                    f"got {array.dtype} of {array.shape}"
                )
            batch = array.shape[:n_axes]
            given = array
            # What is too great for the dtype becomes infinite.
            with np.errstate(over="ignore"):
                array = np.ascontiguousarray(given, dtype=place.dtype)
            if not is_held(given, array):
                raise ValueError(
                    f"{name!r} of the observation must be of {self.parts[name]}, got {given}"
                )
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise ValueError(f"{name!r} of the observation must be finite, got {array}")
            if place.greatest is not None and ((array < 0) | (array > place.greatest)).any():
                raise ValueError(
                    f"{name!r} of the observation must be of {self.parts[name]}, got {array}"
                )
            size = math.prod(place.shape)
            rows.append(array.reshape(*batch, size).view(np.uint8))
        if len({row.shape[:-1] for row in rows}) > 1:
            raise ValueError(
                f"all parts of a batch must have as many rows, got {[row.shape[0] for row in rows]}"
            )
        return np.concatenate(rows, axis=-1)

    def unpack(self, packed: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        """
        Unpack observations.

        :param packed: bytes, uint8, shape ``(*batch, size)``
        :return: the parts by their names, each of shape ``(*batch, *shape of the part)``
        :raises ValueError: if they have another dtype or size
        """
        if packed.dtype != np.uint8 or packed.shape[-1:] != self.shape:
            raise ValueError(
                f"packed must be uint8 of shape (*batch, {self.shape[0]}), got {packed.dtype} of "
                f"{packed.shape}"
            )
        batch = packed.shape[:-1]
        return {
            name: np.ascontiguousarray(packed[..., place.bytes])
            .view(place.dtype)
            .reshape((*batch, *place.shape))
            for name, place in self._places.items()
        }

    def unpack_tensor(self, packed: th.Tensor) -> dict[str, th.Tensor]:
        """
        Unpack observations.

        :param packed: bytes, uint8, shape ``(B, size)``
        :return: the parts by their names, each of shape ``(B, *shape of the part)``
        """
        found = {}
        for name, place in self._places.items():
            # A single row would count as contiguous where it is, between other parts.
            part = packed[:, place.bytes].clone(memory_format=th.contiguous_format)
            found[name] = part.view(place.torch_dtype).reshape(len(packed), *place.shape)
        return found

    def sample(self, mask: Any = None, probability: Any = None) -> NDArray[Any]:
        """
        Return a random observation, packed.

        :param mask: must be None
        :param probability: must be None
        :return: bytes, shape ``(size,)``
        :raises ValueError: if a mask or probabilities are given
        """
        if mask is not None or probability is not None:
            given = "mask" if mask is not None else "probability"
            raise ValueError(f"{given} must be None: {self} samples all of its parts freely")
        return self.pack(self.parts.sample())

    def seed(self, seed: Any = None) -> Any:
        """
        Seed the random numbers of all parts.

        :param seed: a seed, or None
        """
        return self.parts.seed(seed)

    def __eq__(self, other: object) -> bool:
        # Dicts of spaces are equal in any order, but bytes are in the order of the parts.
        return (
            isinstance(other, PackedSpace)
            and list(self._places) == list(other._places)
            and self.parts == other.parts
        )

    def __repr__(self) -> str:
        return f"PackedSpace({self.parts})"


def are_floats(space: spaces.Space[Any]) -> bool:
    """
    Return whether all numbers of observations may have fractions.

    :param space: their space, packed or not
    """
    parts = space.parts.values() if isinstance(space, PackedSpace) else [space]
    return all(np.issubdtype(part.dtype, np.floating) for part in parts)


def packed_parts(observation_space: spaces.Dict, leave_out: tuple[str, ...] = ()) -> PackedSpace:
    """
    Return the space of packed observations, without texts. A warning says which are left out.

    :param observation_space: space of an environment's observations
    :param leave_out: names of parts that are to be left out too, without a warning
    :return: the space
    :raises TypeError: if a part cannot be packed
    """
    texts = [name for name, part in observation_space.items() if _is_text(part)]
    if texts:
        warnings.warn(
            "a text, which no network here reads, is left out of the observations: "
            f"{', '.join(map(repr, texts))}",
            stacklevel=4,
        )
    dropped = {*texts, *leave_out}
    kept = {name: part for name, part in observation_space.items() if name not in dropped}
    return PackedSpace(spaces.Dict(kept))


def as_packed(given: Any, space: spaces.Space[Any]) -> Any:
    """
    Pack what is a dict of arrays.

    :param given: one element of a space, or a batch: a dict of arrays, or an array
    :param space: the space
    :return: bytes, if ``given`` is a dict and the space is one of packed observations. Else
        ``given`` itself
    :raises ValueError: if parts are missing, or do not fit their spaces
    """
    if isinstance(space, PackedSpace) and isinstance(given, Mapping):
        return space.pack(given)
    return given


def unpacked(given: NDArray[Any], space: spaces.Space[Any]) -> Any:
    """
    Unpack elements of a space, for a function of the user's.

    :param given: elements of the space, shape ``(*batch, *space.shape)``
    :param space: the space
    :return: a dict of arrays if the space is one of packed observations. Else ``given`` itself
    """
    return space.unpack(given) if isinstance(space, PackedSpace) else given


def packed_observation(observation: Mapping[str, Any], space: spaces.Space[Any]) -> NDArray[Any]:
    """
    Return the observation of a goal observation as policies take it.

    :param observation: with ``"observation"``: one array, packed or not, a dict of arrays, or, of
        a GoalEnv, its own array, beside ``"achieved_goal"``
    :param space: space of the observations of goal observations
    :return: an array of ``space``, or a batch of them
    :raises ValueError: if parts of the observation are missing, or do not fit their spaces
    """
    seen = observation["observation"]
    if not isinstance(space, PackedSpace):
        return np.asarray(seen)
    array = np.asarray(as_packed(seen, space))
    if array.dtype == np.uint8 and array.shape[-1:] == space.shape:
        return array
    return space.pack(observation)


def _is_text(space: spaces.Space[Any]) -> bool:
    """Return whether a space is one of texts, as MiniGrid's missions are."""
    if isinstance(space, spaces.Text):
        return True
    return space.dtype is not None and np.dtype(space.dtype).kind in "US"


def _greatest(space: spaces.Space[Any]) -> NDArray[Any] | int | None:
    """Return the greatest values of a space whose elements become one-hot, None of others."""
    if isinstance(space, spaces.Discrete):
        return int(space.n) - 1
    if isinstance(space, spaces.MultiDiscrete):
        return space.nvec - 1
    return 1 if isinstance(space, spaces.MultiBinary) else None
