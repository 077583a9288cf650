"""ManyGoalsDQN: deep Q-learning of a universal value function, on every transition many goals."""

from sb3_manygoals.many_goals_dqn.goal_policy import GoalPolicy
from sb3_manygoals.many_goals_dqn.many_goals_dqn import ManyGoalsDQN
from sb3_manygoals.many_goals_dqn.planned_targets import PlannedTargets
from sb3_manygoals.many_goals_dqn.policies import (
    CnnPolicy,
    ManyGoalsPolicy,
    MlpPolicy,
    MultiInputPolicy,
)
from sb3_manygoals.many_goals_dqn.recorded import NoEnv, Transitions
from sb3_manygoals.many_goals_dqn.replay_buffer import (
    OWN_GOAL,
    ManyGoalsReplayBuffer,
    ManyGoalsSamples,
)
from sb3_manygoals.many_goals_dqn.replay_goals import ReplayGoals
from sb3_manygoals.many_goals_dqn.settings import PAPER
from sb3_manygoals.many_goals_dqn.targets import TargetContext, Targets, TDTargets, UpdateBatch
from sb3_manygoals.many_goals_dqn.task_policy import TaskPolicy

__all__ = [
    "OWN_GOAL",
    "PAPER",
    "CnnPolicy",
    "GoalPolicy",
    "ManyGoalsDQN",
    "ManyGoalsPolicy",
    "ManyGoalsReplayBuffer",
    "ManyGoalsSamples",
    "MlpPolicy",
    "MultiInputPolicy",
    "NoEnv",
    "PlannedTargets",
    "ReplayGoals",
    "TDTargets",
    "TargetContext",
    "Targets",
    "TaskPolicy",
    "Transitions",
    "UpdateBatch",
]
