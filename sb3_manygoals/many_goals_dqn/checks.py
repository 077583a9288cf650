"""What the settings of ManyGoalsDQN must be."""

from __future__ import annotations

from typing import Any

import numpy as np

from sb3_manygoals.many_goals_dqn.replay_buffer import ManyGoalsReplayBuffer
from sb3_manygoals.many_goals_dqn.targets import Targets


def whole(name: str, value: Any, least: int) -> int:
    """
    :param name: of a setting
    :param value: what it was given
    :param least: the least it may be
    :return: the same, as an int
    :raises ValueError: if it is no whole number or too small
    """
    if not isinstance(value, (int, float, np.number)) or not float(value).is_integer() or value < least:
        raise ValueError(f"{name} must be a whole number, at least {least}, got {value!r}")
    return int(value)


def check_share(name: str, value: Any) -> None:
    """
    :param name: of a setting
    :param value: what it was given
    :raises ValueError: if it is no number in [0, 1]
    """
    if not isinstance(value, (int, float, np.number)) or not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} must be a number in [0, 1], got {value!r}")


def check_gamma(gamma: Any) -> None:
    """
    :param gamma: the discount factor
    :raises ValueError: if it is no number in [0, 1)
    """
    check_share("gamma", gamma)
    if gamma == 1.0:
        raise ValueError("gamma must be less than 1: a goal that is never reached would be worth minus infinity")


def check_updates_per_step(value: Any) -> None:
    """
    :param value: updates for each environment step
    :raises ValueError: if it is no number more than 0, or more than 1000
    """
    if not isinstance(value, (int, float, np.number)) or isinstance(value, bool) or not 0.0 < value <= 1000.0:
        raise ValueError(f"updates_per_step must be a number, more than 0 and at most 1000, got {value!r}")


def check_classes(
    replay_buffer_class: Any, target_class: Any, target_kwargs: dict[str, Any] | None, goals_in_replay: bool
) -> None:
    """
    :param replay_buffer_class: a ManyGoalsReplayBuffer or None
    :param target_class: a class of Targets or None
    :param target_kwargs: its arguments, or None
    :param goals_in_replay: whether goals are in the replay memory
    :raises TypeError: if a class is of another kind
    :raises ValueError: if arguments are given for no class
    """
    if replay_buffer_class is not None and not _is_subclass(replay_buffer_class, ManyGoalsReplayBuffer):
        raise TypeError(f"replay_buffer_class must be a ManyGoalsReplayBuffer, got {replay_buffer_class!r}")
    if target_class is not None and not _is_subclass(target_class, Targets):
        raise TypeError(f"target_class must be TDTargets, PlannedTargets or another subclass of Targets, got {target_class!r}")
    if target_class is None and target_kwargs:
        raise ValueError(f"target_kwargs {sorted(target_kwargs)} need a target_class: its arguments are no other's")
    if goals_in_replay and (target_kwargs or {}).get("goal_sampling") == "behavior":
        raise ValueError('goals_in_replay needs goal_sampling "uniform" or "batch", got "behavior"')


def _is_subclass(value: Any, parent: type) -> bool:
    return isinstance(value, type) and issubclass(value, parent)
