"""Which observation spaces can be spaces of goals, and whether observations are inside of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_manygoals.packing import as_packed, packed_observation
from sb3_manygoals.validation import ARRAY_SPACES, batch_shape, why_no_array_space

# Messages show the numbers of an observation if it has no more than these.
_MOST_SHOWN = 16
# Floats may miss the bounds of a Box by this share of their distance, as some environments round.
_SLACK = 0.01


class OutsideSpaceError(ValueError):
    """
    Raised when an observation is outside of its space.

    :param message: says which observation it is and why it is outside
    :param row: its place in the batch
    """

    def __init__(self, message: str, row: int = 0) -> None:
        super().__init__(message)
        self.row = row


def check_goal_space(
    observation_space: spaces.Space[Any], name: str = "observation_space"
) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """
    Raise an error if observations of a space cannot be goals.

    :param observation_space: any space
    :param name: name of the argument, for the message. "goal_space": it is the space of goals that
        are no observations
    :return: shape and dtype of its observations
    :raises TypeError: if they are not single arrays of fixed shape. It says how to wrap the
        environment
    """
    reason = why_no_array_space(observation_space)
    if reason is not None and name != "observation_space":
        raise TypeError(f"{name} cannot be a space of goals: {reason}, got {observation_space}")
    if reason is not None:
        raise TypeError(
            f"observation_space cannot be treated as a space of goals: {reason}, got "
            f"{observation_space}. Wrap each environment so that its observation is one such "
            f"array: {_how_to_wrap(observation_space)}"
        )
    return observation_space.shape or (), np.dtype(observation_space.dtype)


def _how_to_wrap(space: spaces.Space[Any]) -> str:
    """Return the wrappers of Gymnasium, as code, that turn observations into single arrays."""
    wrappers = "gymnasium.wrappers"
    flatten = f"{wrappers}.FlattenObservation"
    own = f"{wrappers}.TransformObservation, with a function and a space of your own"
    if not isinstance(space, spaces.Dict):
        return f"{flatten}(env)" if _can_be_flattened(space) else own
    ways = []
    single = [key for key, part in space.items() if isinstance(part, ARRAY_SPACES)]
    if single:
        key = "image" if "image" in single else single[0]
        take = f"lambda seen: seen[{key!r}], env.observation_space[{key!r}]"
        ways.append(f"one of its parts, {wrappers}.TransformObservation(env, {take})")
    if {"image", "mission"} <= set(space):
        ways.append("in MiniGrid the picture, minigrid.wrappers.ImgObsWrapper(env)")
    flattenable = [key for key, part in space.items() if _can_be_flattened(part)]
    if len(flattenable) == len(space):
        ways.append(f"all of it, {flatten}(env)")
    elif len(flattenable) > 1:
        ways.append(f"several parts, {flatten}({wrappers}.FilterObservation(env, {flattenable}))")
    return "; or ".join(ways) if ways else own


def _can_be_flattened(space: spaces.Space[Any]) -> bool:
    """Return whether FlattenObservation can make an array of it."""
    try:
        return bool(space.is_np_flattenable)
    except (AttributeError, NotImplementedError):
        # Spaces of other packages may not say, and what the user gave may be no space.
        return False


def check_batch(
    arrays: Any, shape: tuple[int, ...], dtype: np.dtype[Any], name: str, axes: int | None
) -> NDArray[Any]:
    """
    Raise an error if elements of a batch have another shape or dtype.

    :param arrays: what should be a batch
    :param shape: shape of an element
    :param dtype: dtype of the elements
    :param name: name of the argument, for the message
    :param axes: number of axes before those of an element. None: any number
    :return: the batch as an array
    :raises ValueError: if it is no such batch
    """
    array = np.asarray(arrays)
    n_before = max(array.ndim - len(shape), 0)
    fits = array.shape[n_before:] == shape and array.dtype == dtype
    if not fits or axes not in (None, n_before):
        batch = {0: [], 1: ["n"], None: ["*batch"]}[axes]
        sizes = [*batch, *map(str, shape)]
        expected = f"({sizes[0]},)" if len(sizes) == 1 else f"({', '.join(sizes)})"
        raise ValueError(
            f"{name} must be {dtype} of shape {expected}, got {array.dtype} of {array.shape}"
        )
    return array


def converted(goals: Any, space: spaces.Space[Any]) -> NDArray[Any]:
    """
    Return a user's goals with the dtype of their space, where it holds their numbers: lists, and
    arrays of other dtypes. Floats are rounded.

    :param goals: one goal or a batch
    :param space: the space of the goals
    :return: the goals with the dtype of the space; as they are if it does not hold their numbers
    """
    array = np.asarray(goals)
    dtype = np.dtype(space.dtype)
    is_number = array.dtype.kind in "iubf"
    if not is_number or array.dtype == dtype or (array.dtype.kind == "f" and dtype.kind != "f"):
        return array
    with np.errstate(over="ignore"):
        # Rounding may give -0.0, whose bytes are not those of 0.0.
        found: NDArray[Any] = array.astype(dtype) + dtype.type(0)
    if dtype.kind == "f":
        return found if np.isfinite(found).all() else array
    return found if np.array_equal(found, array) else array


def check_inside(
    space: spaces.Space[Any],
    observations: NDArray[Any],
    name: str,
    exempt: NDArray[np.bool_] | None = None,
    numbered: bool = True,
    of: str = "observation space",
) -> None:
    """
    Raise an error if observations are outside of their space. Floats may miss the bounds of a Box
    by a hundredth of their distance, as some environments round.

    :param space: a space of goals
    :param observations: shape ``(n, *space.shape)``, the dtype of the space
    :param name: name of the argument, for the message
    :param exempt: which observations need not be inside, shape ``(n,)``, or None
    :param numbered: whether the message says which of the n observations it is
    :param of: which space it is, for the message
    :raises OutsideSpaceError: if a number is out of its range
    """
    low, high, slack = _bounds(space)
    # NaN is not inside.
    inside = (observations >= low - slack) & (observations <= high + slack)
    if inside.all():
        return
    wrong = ~inside.reshape(len(observations), -1).all(axis=1)
    if exempt is not None:
        wrong &= ~exempt
    if not wrong.any():
        return
    row = int(wrong.argmax())
    place = tuple(np.argwhere(~inside[row])[0].tolist())
    least = np.broadcast_to(low, inside[row].shape)[place]
    most = np.broadcast_to(high, inside[row].shape)[place]
    which = f"{name}[{row}]" if numbered else name
    at = f" at {place}" if place else ""
    raise OutsideSpaceError(
        f"{name} must be of the {of}, {which} is {shown(observations[row])}: "
        f"{observations[row][place]}{at} is not in [{least}, {most}]",
        row,
    )


def _bounds(space: spaces.Space[Any]) -> tuple[Any, Any, Any]:
    """Return the least and greatest values of a space, and by how much they may be missed."""
    if isinstance(space, spaces.Discrete):
        return 0, int(space.n) - 1, 0
    if isinstance(space, spaces.MultiDiscrete):
        return 0, space.nvec - 1, 0
    if not isinstance(space, spaces.Box):
        return 0, 1, 0
    if space.dtype is None or space.dtype.kind != "f":
        return space.low, space.high, 0
    with np.errstate(over="ignore", invalid="ignore"):
        width = np.subtract(space.high, space.low, dtype=np.float64)
    return space.low, space.high, np.where(np.isfinite(width), _SLACK * width, 0.0)


def check_numbers(space: spaces.Space[Any], values: NDArray[Any], name: str) -> None:
    """
    Raise an error if a network can make nothing of observations: a float is not finite, or a number
    is out of the range of which one-hot vectors can be made. Ranges of a Box are not checked, nor
    are arrays that do not fit the space.

    :param space: a space of goals
    :param values: observations, shape ``(*batch, *space.shape)``
    :param name: name of the argument, for the message
    :raises ValueError: if a float is NaN or infinite
    :raises OutsideSpaceError: if a number is out of its range
    """
    check_finite(values, name)
    if isinstance(space, spaces.Box) or values.dtype.kind not in "iubf":
        return
    shape = space.shape or ()
    n_batch_axes = values.ndim - len(shape)
    if n_batch_axes in (0, 1) and values.shape[n_batch_axes:] == shape:
        check_inside(space, values.reshape(-1, *shape), name, numbered=n_batch_axes == 1)


def check_finite(values: NDArray[Any], name: str) -> None:
    """
    Raise an error if a float is not finite.

    :param values: any array
    :param name: name of the argument, for the message
    :raises ValueError: if a float is NaN or infinite
    """
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return
    place = tuple(np.argwhere(~np.isfinite(values))[0].tolist())
    at = f"{name}[{', '.join(map(str, place))}]" if place else name
    raise ValueError(f"{name} must be finite, {at} is {values[place]}")


def check_goal_obs(space: spaces.Dict, observation: Any, advice: str) -> dict[str, NDArray[Any]]:
    """
    Return observation and desired goal as arrays.

    :param space: space of goal observations
    :param observation: what should be a dict with "observation" and "desired_goal", one of each or
        a batch of n. Where they are packed, both may be dicts of arrays, and the observation may be
        that of a GoalEnv
    :param advice: what the user can do if it is none, for the message
    :return: a dict with these two
    :raises ValueError: if it is no such dict, the shapes of both do not fit together, or a float is
        NaN or infinite
    :raises OutsideSpaceError: if a number is out of the range of which one-hot vectors can be made
    """
    keys = ("observation", "desired_goal")
    if not isinstance(observation, dict) or not set(keys) <= observation.keys():
        got = list(observation) if isinstance(observation, dict) else type(observation).__name__
        raise ValueError(
            f'observation must be a dict with "observation" and "desired_goal", got {got}: {advice}'
        )
    goal_obs = {
        "observation": packed_observation(observation, space["observation"]),
        "desired_goal": np.asarray(as_packed(observation["desired_goal"], space["desired_goal"])),
    }
    shapes = [goal_obs[key].shape for key in keys]
    wanted = [space[key].shape or () for key in keys]
    batches = [
        shape[: max(len(shape) - len(of_one), 0)]
        for shape, of_one in zip(shapes, wanted, strict=True)
    ]
    for key, shape, of_one in zip(keys, shapes, wanted, strict=True):
        last = shape[max(len(shape) - len(of_one), 0) :]
        # The channels of pictures may be on either side.
        fits = sorted(last) == sorted(of_one) if len(of_one) == 3 else last == of_one
        # SB3 checks observations and goals of one shape.
        if wanted[0] != wanted[1] and not fits:
            raise ValueError(
                f"{key} must have shape {of_one}, or {batch_shape(of_one)} for a batch, got {shape}"
            )
    differ = shapes[0] != shapes[1] if wanted[0] == wanted[1] else batches[0] != batches[1]
    if differ:
        same = "one shape" if wanted[0] == wanted[1] else f"shapes {wanted[0]} and {wanted[1]}"
        raise ValueError(
            f"observation and desired_goal must have {same}, as many of one as of the other, "
            f"got {shapes[0]} and {shapes[1]}"
        )
    for key in keys:
        check_numbers(space[key], goal_obs[key], key)
    return goal_obs


def shown(observation: NDArray[Any]) -> str:
    """
    Return an observation as a message shows it.

    :param observation: any array
    :return: its numbers if there are few, else its dtype and shape
    """
    if observation.size <= _MOST_SHOWN:
        return str(observation.tolist())
    return f"an array of {observation.dtype} of shape {observation.shape}"


def identical(left: NDArray[Any], right: NDArray[Any], dims: int) -> NDArray[np.bool_]:
    """
    Compare observations byte for byte, as states are compared. By value -0.0 and 0.0 would be
    equal, though they are two states.

    :param left: shape ``(*batch, *shape)``
    :param right: the same shape and dtype
    :param dims: number of axes in ``shape``
    :return: whether they are identical, shape ``batch``
    """
    batch = left.shape[: left.ndim - dims]
    size = math.prod(left.shape[left.ndim - dims :])
    left_bytes, right_bytes = (
        np.ascontiguousarray(array).reshape(*batch, size).view(np.uint8) for array in (left, right)
    )
    return np.asarray((left_bytes == right_bytes).all(axis=-1))
