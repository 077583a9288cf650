"""Learners for many goals at once, on Stable-Baselines3."""

from sb3_manygoals.auxiliary import (
    AuxiliaryActorCriticPolicy,
    EpisodeBuffer,
    ManyGoalsCallback,
    PixelControlCallback,
    RewardPredictionCallback,
)
from sb3_manygoals.checkpoint.callback import ExactCheckpointCallback
from sb3_manygoals.discrete_actions import DiscreteActions
from sb3_manygoals.evaluation import MasteryCallback, MasteryResult, evaluate_mastery
from sb3_manygoals.film import FilmedGoals, record_goals
from sb3_manygoals.goals import GoalBuffer, GoalBufferWrapper, VecGoalBufferWrapper
from sb3_manygoals.many_goals_dqn import (
    PAPER,
    ManyGoalsDQN,
    NoEnv,
    PlannedTargets,
    TDTargets,
    Transitions,
)
from sb3_manygoals.pretraining import ManyGoalsFrameReplayBuffer, RewardPredictor, transfer_trunk
from sb3_manygoals.repeat_action import RepeatAction
from sb3_manygoals.tabular import TabularAllGoals
from sb3_manygoals.vec_env import GymnasiumVecEnv

__version__ = "0.1.0"

__all__ = [
    "PAPER",
    "AuxiliaryActorCriticPolicy",
    "DiscreteActions",
    "EpisodeBuffer",
    "ExactCheckpointCallback",
    "FilmedGoals",
    "GoalBuffer",
    "GoalBufferWrapper",
    "GymnasiumVecEnv",
    "ManyGoalsCallback",
    "ManyGoalsDQN",
    "ManyGoalsFrameReplayBuffer",
    "MasteryCallback",
    "MasteryResult",
    "NoEnv",
    "PixelControlCallback",
    "PlannedTargets",
    "RepeatAction",
    "RewardPredictionCallback",
    "RewardPredictor",
    "TDTargets",
    "TabularAllGoals",
    "Transitions",
    "VecGoalBufferWrapper",
    "evaluate_mastery",
    "record_goals",
    "transfer_trunk",
]
