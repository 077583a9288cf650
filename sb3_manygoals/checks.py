"""Checks of numbers that users give."""

from __future__ import annotations

from typing import Any

import numpy as np


def check_count(name: str, value: Any, least: int = 1, of: str = "") -> int:
    """
    :param name: of the argument
    :param value: what was given for it
    :param least: the smallest number allowed
    :param of: what is counted, for the message
    :return: ``value``
    :raises ValueError: if it is not a whole number, or smaller than ``least``
    """
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number{of and f' of {of}'}, at least {least}, got {value!r}")
    return int(value)


def check_whole(name: str, value: Any, least: int = 1) -> int:
    """
    As :func:`check_count`, but a float such as ``1e6`` will do.

    :param name: of the argument
    :param value: what was given for it
    :param least: the smallest number allowed
    :return: the value as an int
    :raises ValueError: if it is not a whole number, or smaller than ``least``
    """
    return check_count(name, int(value) if isinstance(value, float) and value.is_integer() else value, least)


def check_number(name: str, value: Any, interval: str) -> float:
    """
    :param name: of the argument
    :param value: what was given for it
    :param interval: the numbers allowed, for example "[0, 1)" or "(0, inf)"
    :return: the value
    :raises ValueError: if it is not a number in ``interval``
    """
    low, high = (float(end) for end in interval[1:-1].split(","))
    if isinstance(value, (int, float, np.number)) and not isinstance(value, bool):
        above = value >= low if interval[0] == "[" else value > low
        if above and (value <= high if interval[-1] == "]" else value < high):
            return float(value)
    raise ValueError(f"{name} must be a number in {interval}, got {value!r}")
