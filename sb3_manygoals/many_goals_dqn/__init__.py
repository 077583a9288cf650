"""ManyGoalsDQN: deep Q-learning of a universal value function, every transition teaching many goals."""

from sb3_manygoals.many_goals_dqn.many_goals_dqn import (
    LARGE_WORLD,
    PAPER,
    ManyGoalsDQN,
    large_world,
)
from sb3_manygoals.many_goals_dqn.policies import CnnPolicy, ManyGoalsPolicy, MlpPolicy
from sb3_manygoals.many_goals_dqn.replay_buffer import ManyGoalsReplayBuffer, ManyGoalsSamples
from sb3_manygoals.many_goals_dqn.replay_goals import ReplayGoals
from sb3_manygoals.many_goals_dqn.targets import PlannedTargets, Targets, TDTargets
from sb3_manygoals.many_goals_dqn.task_policy import TaskPolicy

__all__ = [
    "LARGE_WORLD",
    "PAPER",
    "CnnPolicy",
    "ManyGoalsDQN",
    "ManyGoalsPolicy",
    "ManyGoalsReplayBuffer",
    "ManyGoalsSamples",
    "MlpPolicy",
    "PlannedTargets",
    "ReplayGoals",
    "TDTargets",
    "Targets",
    "TaskPolicy",
    "large_world",
]
