"""What the settings of ManyGoalsDQN must be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from stable_baselines3.common.type_aliases import TrainFreq

from sb3_manygoals.many_goals_dqn.replay_buffer import ManyGoalsReplayBuffer

if TYPE_CHECKING:
    from sb3_manygoals.many_goals_dqn.many_goals_dqn import ManyGoalsDQN

GoalSampling = Literal["uniform", "batch", "all", "pursued"]


def check_settings(model: ManyGoalsDQN) -> None:
    """
    Look at the numbers and choices that it was given, and make counts whole numbers.

    :param model: whose settings
    :raises TypeError: if the replay memory cannot be one
    :raises ValueError: if a count, rate or choice makes no sense
    """
    counts = ("n_steps", "segment_length", "target_update_interval", "exploration_steps", "plan_sweeps", "plan_states")
    for name in ("buffer_size", "batch_size", "goal_batch_size", *counts):
        setattr(model, name, _whole(name, getattr(model, name), 1))
    model.learning_starts = _whole("learning_starts", model.learning_starts, 0)
    model.plan_interval = _whole("plan_interval", model.plan_interval, 0)
    model.gradient_steps = _whole("gradient_steps", model.gradient_steps, -1)
    if not isinstance(model.train_freq, TrainFreq):
        _whole("train_freq", model.train_freq[0] if isinstance(model.train_freq, tuple) else model.train_freq, 1)
    shares = ("tau", "batch_goal_share", "segment_share", "exploration_initial_eps", "exploration_final_eps")
    for name in ("gamma", "action_gap", "near_decay", *shares):
        value = getattr(model, name)
        if not isinstance(value, (int, float, np.number)) or not 0.0 <= value <= 1.0:
            raise ValueError(f"{name} must be a number in [0, 1], got {value!r}")
    if model.gamma == 1.0:
        raise ValueError("gamma must be less than 1: a goal that is never reached would be worth minus infinity")
    if model.action_gap == 1.0:
        raise ValueError("action_gap must be less than 1: the gap would grow without end")
    for name in ("near_floor", "margin"):
        _number(name, getattr(model, name), more_than=0.0)
    _number("margin_weight", model.margin_weight)
    value = model.initial_value
    if value is not None and not (isinstance(value, (int, float, np.number)) and np.isfinite(value)):
        raise ValueError(f"initial_value must be a finite number, or None, got {value!r}")
    if model.margin_weight and not model.plan_interval:
        raise ValueError(f"margin_weight needs a plan_interval: a plan tells which actions lead, got {model.margin_weight!r}")
    if model.near_decay == 0.0 or (model.near_decay < 1.0 and model.gamma == 0.0):
        raise ValueError("near_decay must be more than 0, and 1 where gamma is 0: values say nothing of distance then")
    if model.goal_sampling == "pursued" and (model.action_gap or model.near_decay < 1.0):
        raise ValueError('goal_sampling="pursued" has neither action_gap nor near_decay: both are about many goals')
    for name in ("n_steps", "segment_length"):
        if model.goal_sampling == "pursued" and getattr(model, name) > 1:
            raise ValueError(f'goal_sampling="pursued" has no {name}, which is about many goals, got {getattr(model, name)}')
    if model.n_steps > 1 and model.segment_length > 1:
        raise ValueError(f"n_steps and segment_length go apart, got {model.n_steps} and {model.segment_length}")
    if model.plan_interval:
        others = {"n_steps": 1, "segment_length": 1, "action_gap": 0.0, "double_q": False, "goals_in_replay": False}
        for name, none in others.items():
            if getattr(model, name) != none:
                raise ValueError(f"plan_interval and {name} go apart, got {model.plan_interval} and {getattr(model, name)}")
        if model.goal_sampling == "pursued":
            raise ValueError('goal_sampling="pursued" has no plan_interval, which is about many goals')
    if model.goal_sampling not in get_args(GoalSampling):
        known = ", ".join(f'"{name}"' for name in get_args(GoalSampling))
        raise ValueError(f"goal_sampling must be one of {known}, got {model.goal_sampling!r}")
    if model.goals_in_replay and model.goal_sampling not in ("uniform", "batch"):
        raise ValueError(f'goals_in_replay needs goal_sampling "uniform" or "batch", got {model.goal_sampling!r}')
    if not issubclass(model.replay_buffer_class or ManyGoalsReplayBuffer, ManyGoalsReplayBuffer):
        raise TypeError(f"replay_buffer_class must be a ManyGoalsReplayBuffer, got {model.replay_buffer_class!r}")


def _number(name: str, value: Any, more_than: float | None = None) -> None:
    within = "at least 0" if more_than is None else f"more than {more_than:g}"
    enough = isinstance(value, (int, float, np.number)) and 0.0 <= value < np.inf and value != more_than
    if not enough:
        raise ValueError(f"{name} must be a number, {within}, got {value!r}")


def _whole(name: str, value: Any, least: int) -> int:
    if not isinstance(value, (int, float, np.number)) or not float(value).is_integer() or value < least:
        raise ValueError(f"{name} must be a whole number, at least {least}, got {value!r}")
    return int(value)
