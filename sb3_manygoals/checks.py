"""Checks of numbers and names that users give."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
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
    """As :func:`check_count`, but a float such as ``1e6`` will do. :return: the value as an int"""
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


def check_game(value: str, games: Iterable[str]) -> str:
    """
    :param value: a game's name in any spelling, as ``"MsPacman"``, ``"ms_pacman"`` or ``"ms pacman"``
    :param games: the names of the games, as ``"ms_pacman"``
    :return: that of them which is meant
    :raises ValueError: if there is no such game; with the names that are near
    """
    known = {name.replace("_", ""): name for name in games}
    wanted = value.lower().replace("_", "").replace(" ", "")
    if wanted not in known:
        near = [known[name] for name in difflib.get_close_matches(wanted, known)]
        raise ValueError(f"there is no game {value!r}" + (f"; did you mean {' or '.join(near)}?" if near else ""))
    return known[wanted]
