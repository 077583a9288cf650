"""Checks of numbers and names that users give."""

import difflib
from collections.abc import Iterable
from typing import Any

import numpy as np


def check_count(name: str, value: Any, least: int = 1, of: str = "", floats: bool = False) -> int:
    """The argument ``name``, a count ``of`` something (``floats``: or 1e3). A ValueError if below ``least`` or not whole."""
    value = int(value) if floats and isinstance(value, float) and value.is_integer() else value
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < least:
        raise ValueError(
            f"{name} must be a whole number{of and f' of {of}'}, at least {least}, got {value!r}"
        )
    return int(value)


def check_number(name: str, value: Any, interval: str) -> float:
    """The value of the argument ``name``. A ValueError if it is not in an interval such as "[0, 1)" or "(0, inf)"."""
    low, high = (float(end) for end in interval[1:-1].split(","))
    if isinstance(value, (int, float, np.number)) and not isinstance(value, bool):
        above = value >= low if interval[0] == "[" else value > low
        if above and (value <= high if interval[-1] == "]" else value < high):
            return float(value)
    raise ValueError(f"{name} must be a number in {interval}, got {value!r}")


def check_rewards(goal_reward: Any, step_reward: Any) -> tuple[float, float]:
    """The rewards of transitions that reach their goal, and of others. A ValueError if the first is not the greater one."""
    rewards = (
        check_number("goal_reward", goal_reward, "(-inf, inf)"),
        check_number("step_reward", step_reward, "(-inf, inf)"),
    )
    if not rewards[0] > rewards[1]:
        raise ValueError(
            f"goal_reward must be greater than step_reward, got {goal_reward} and {step_reward}"
        )
    return rewards


def check_game(value: str, games: Iterable[str]) -> str:
    """That of ``games`` which is meant by "MsPacman", "ms_pacman" or "ms pacman". A ValueError names those near."""
    known = {name.replace("_", ""): name for name in games}
    wanted = value.lower().replace("_", "").replace(" ", "")
    if wanted not in known:
        near = [known[name] for name in difflib.get_close_matches(wanted, known)]
        raise ValueError(
            f"there is no game {value!r}" + (f"; did you mean {' or '.join(near)}?" if near else "")
        )
    return known[wanted]
