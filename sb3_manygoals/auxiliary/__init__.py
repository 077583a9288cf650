"""Auxiliary tasks for SB3's A2C: many goals, pixel control and reward prediction, on features that policy and value share."""

from sb3_manygoals.auxiliary.callbacks import ManyGoalsCallback, PixelControlCallback, RewardPredictionCallback
from sb3_manygoals.auxiliary.episode_buffer import EpisodeBuffer, RewardExamples, Trajectories
from sb3_manygoals.auxiliary.frames import ArrayFrames, FrameStorage
from sb3_manygoals.auxiliary.policies import AuxiliaryActorCriticPolicy
from sb3_manygoals.auxiliary.rollout_reuse import RolloutReusePolicy
from sb3_manygoals.auxiliary.task_callback import AuxiliaryCallback

__all__ = [
    "ArrayFrames",
    "AuxiliaryActorCriticPolicy",
    "AuxiliaryCallback",
    "EpisodeBuffer",
    "FrameStorage",
    "ManyGoalsCallback",
    "PixelControlCallback",
    "RewardExamples",
    "RewardPredictionCallback",
    "RolloutReusePolicy",
    "Trajectories",
]
