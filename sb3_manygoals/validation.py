"""Checks of arguments that users give: numbers, rewards, spaces, actions, and names."""

import difflib
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray

ARRAY_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
"""Spaces whose elements are single NumPy arrays of fixed shape and dtype."""


# No network reads numbers of more bytes.
_MOST_BYTES = 8


def why_no_array_space(space: spaces.Space[Any]) -> str | None:
    """
    Return why elements of a space cannot be compared, and read by a network, as single arrays.

    :param space: any space
    :return: what was expected of the space. None if there is nothing wrong with it
    """
    if not isinstance(space, ARRAY_SPACES):
        return f"expected one of {', '.join(kind.__name__ for kind in ARRAY_SPACES)}"
    if isinstance(space, spaces.Box) and (space.shape == () or 0 in space.shape):
        return "expected an array with elements"
    if space.dtype is not None and space.dtype.itemsize > _MOST_BYTES:
        return "expected a dtype of at most 64 bits"
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)) and np.any(space.start != 0):
        return "expected values that start at 0"
    if isinstance(space, spaces.MultiDiscrete) and len(space.shape) > 1:
        return "expected a MultiDiscrete of one axis"
    return None


def check_count(
    name: str, value: Any, at_least: int = 1, of: str = "", floats: bool = False
) -> int:
    """
    Return the value of an argument that counts something.

    :param name: name of the argument, for the error message
    :param value: what the user gave
    :param at_least: the smallest allowed value
    :param of: what is counted, for the error message; by default the message does not say it
    :param floats: whether floats without a fraction, such as 1e3, are allowed too
    :return: the value as an int
    :raises ValueError: if the value is not a whole number, or less than ``at_least``
    """
    if floats and isinstance(value, float) and value.is_integer():
        value = int(value)
    is_whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_whole or value < at_least:
        counted = f" of {of}" if of else ""
        raise ValueError(
            f"{name} must be a whole number{counted}, at least {at_least}, got {value!r}"
        )
    return int(value)


def check_number(
    name: str,
    value: Any,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
) -> float:
    """
    Return the value of an argument that is a number.

    The number must be finite, unless ``at_most`` is infinity. NaN is never allowed.

    :param name: name of the argument, for the error message
    :param value: what the user gave
    :param at_least: the smallest allowed number; None: there is no such bound
    :param above: the number must be greater than this; None: there is no such bound
    :param at_most: the greatest allowed number; None: there is no such bound
    :param below: the number must be smaller than this; None: there is no such bound
    :return: the value as a float
    :raises ValueError: if the value is not a number, or is out of bounds
    """
    if isinstance(value, (int, float, np.number)) and not isinstance(value, bool):
        is_high_enough = value > -math.inf
        if at_least is not None:
            is_high_enough &= value >= at_least
        if above is not None:
            is_high_enough &= value > above
        is_low_enough = value <= at_most if at_most is not None else value < math.inf
        if below is not None:
            is_low_enough &= value < below
        if is_high_enough and is_low_enough:
            return float(value)
    left = f"[{at_least}" if at_least is not None else f"({-math.inf if above is None else above}"
    right = f"{at_most}]" if at_most is not None else f"{math.inf if below is None else below})"
    raise ValueError(f"{name} must be a number in {left}, {right}, got {value!r}")


def check_schedule(name: str, value: Any, at_most: float | None = None) -> Any:
    """
    Return the value of an argument that is a number, or a function of the share of training that is
    left.

    :param name: name of the argument, for the error message
    :param value: what the user gave
    :param at_most: the greatest allowed number. None: there is no such bound
    :return: the function, or the number as a float
    :raises ValueError: if the value is no function, and no number of at least 0 and ``at_most``
    """
    return value if callable(value) else check_number(name, value, at_least=0, at_most=at_most)


def check_kwargs(name: str, value: Any) -> dict[str, Any]:
    """
    Return a copy of the value of an argument that has further arguments.

    :param name: name of the argument, for the error message
    :param value: what the user gave. None counts as no arguments
    :return: a dict
    :raises TypeError: if the value is no dict
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a dict of arguments, got {value!r}")
    return dict(value)


def check_seed(value: Any) -> int | None:
    """
    Return the seed of an algorithm of SB3.

    :param value: what the user gave
    :return: the seed as an int, or None
    :raises ValueError: if NumPy takes no such seed: it is no whole number, negative, or too large
    """
    if value is None:
        return None
    seed = check_count("seed", value, at_least=0)
    if seed >= 2**32:
        raise ValueError(f"seed must be below 2**32, got {value!r}")
    return seed


def check_rewards(goal_reward: Any, step_reward: Any) -> tuple[float, float]:
    """
    Return both rewards of a goal.

    :param goal_reward: reward of a transition that reaches its goal
    :param step_reward: reward of every other transition
    :return: both as floats
    :raises ValueError: if one of them is not a finite number, or ``goal_reward`` is not the
        greater one
    """
    goal = check_number("goal_reward", goal_reward)
    step = check_number("step_reward", step_reward)
    if goal <= step:
        raise ValueError(
            f"goal_reward must be greater than step_reward, got {goal_reward} and {step_reward}"
        )
    return goal, step


def check_action_space(space: Any) -> int:
    """
    Return the number of actions.

    :param space: the action space
    :return: the number of actions
    :raises TypeError: if the space is not Discrete, or does not start at 0
    """
    if not isinstance(space, spaces.Discrete) or space.start != 0:
        raise TypeError(
            f"a Discrete action space that starts at 0 is needed, got {space}. "
            f"{how_to_offer_actions(space)}"
        )
    return int(space.n)


def how_to_offer_actions(space: Any) -> str:
    """
    Say how to wrap an environment whose actions are not numbered from 0, for the end of a message.

    :param space: its action space
    :return: a sentence without a full stop
    """
    if isinstance(space, spaces.Discrete):
        numbers = f"range({space.start}, {space.start + space.n})"
        return f"To renumber the actions, wrap it: DiscreteActions(env, {numbers})"
    return "To offer some of the actions, wrap it: DiscreteActions(env, actions)"


def check_chosen(actions: ArrayLike, space: spaces.Space[Any]) -> None:
    """
    Raise an error if a learner that counts from 0 chose actions of a space that does not.

    :param actions: actions of one environment or of several, integers of shape () or (n,)
    :param space: action space of one environment. Only a Discrete space that does not start at 0
        is checked
    :raises ValueError: if one of the actions is not in the space
    """
    if not isinstance(space, spaces.Discrete) or space.start == 0:
        return
    first = int(space.start)
    last = first + int(space.n) - 1
    for action in np.ravel(actions).tolist():
        if not first <= action <= last:
            raise ValueError(
                f"action {action} is not in {space}, whose actions are {first} to {last}: SB3's"
                f" learners count from 0. {how_to_offer_actions(space)}"
            )


def check_game(value: str, games: Iterable[str]) -> str:
    """
    Return the name of a game that may be written in another way, as "MsPacman" or "ms pacman".

    :param value: what the user gave. Upper case, spaces and underscores do not matter
    :param games: the names of all games, in lower case with underscores
    :return: one of ``games``
    :raises ValueError: if there is no such game; the message names similar ones
    """
    names = {name.replace("_", ""): name for name in games}
    wanted = value.lower().replace("_", "").replace(" ", "")
    if wanted in names:
        return names[wanted]
    similar = [names[name] for name in difflib.get_close_matches(wanted, names)]
    question = f"; did you mean {' or '.join(similar)}?" if similar else ""
    raise ValueError(f"there is no game {value!r}{question}")


def one_action(action: Any, space: spaces.Discrete) -> int:
    """
    Return a single action as an int.

    :param action: a whole number, or an array, a list or a tensor that holds one
    :param space: the action space
    :return: the action
    :raises ValueError: if ``action`` holds several numbers, or none of the space
    """
    array = np.asarray(action)
    if array.size != 1 or array.dtype.kind not in "iub":
        raise ValueError(f"action must be one whole number, one of {space}, got {action!r}")
    value = int(array.reshape(-1)[0])
    if not space.start <= value < space.start + space.n:
        raise ValueError(f"action must be one of {space}, got {value}")
    return value


def as_held(array: NDArray[Any], dtype: Any, name: str) -> NDArray[Any]:
    """
    Return an array in another dtype.

    :param array: the array
    :param dtype: the dtype
    :param name: what it is, for the error message
    :return: the array in this dtype
    :raises ValueError: if whole numbers of the array would become others
    """
    own = array.astype(dtype, copy=False)
    if not is_held(array, own):
        raise ValueError(
            f"{name} must have numbers that {np.dtype(dtype)} holds, got numbers from"
            f" {array.min()} to {array.max()}"
        )
    return own


def is_held(given: NDArray[Any], converted: NDArray[Any]) -> bool:
    """
    Return whether a conversion to whole numbers kept all of them. Floats may be rounded.

    :param given: the array before it was converted
    :param converted: the array after that
    :return: False if whole numbers became others, as 257 becomes 1 in uint8
    """
    if converted.dtype.kind not in "iu" or given.dtype == converted.dtype:
        return True
    return np.array_equal(given, converted)


def batch_shape(shape: tuple[int, ...]) -> str:
    """
    Return the shape of n arrays in words, for messages.

    :param shape: shape of one of them
    :return: such as "(n, 84, 84)"
    """
    return f"({', '.join(['n', *map(str, shape)])}{'' if shape else ','})"


def writable(array: Any) -> NDArray[Any]:
    """
    Return an array that may be written to. PyTorch warns of others.

    :param array: an array, or what becomes one
    :return: the same array. A copy, if it is read-only
    """
    found = np.asarray(array)
    return found if found.flags.writeable else found.copy()
