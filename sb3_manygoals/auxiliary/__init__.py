"""Auxiliary tasks for SB3's A2C: many goals, pixel control and reward prediction, on features that policy and value share."""

from sb3_manygoals.auxiliary.callbacks import (
    AuxiliaryCallback,
    ManyGoalsCallback,
    PixelControlCallback,
    RewardPredictionCallback,
)
from sb3_manygoals.auxiliary.episode_buffer import EpisodeBuffer, RewardExamples, Trajectories
from sb3_manygoals.auxiliary.policies import AuxiliaryActorCriticPolicy
from sb3_manygoals.auxiliary.rollout_reuse import RolloutReusePolicy

__all__ = [
    "AuxiliaryActorCriticPolicy",
    "AuxiliaryCallback",
    "EpisodeBuffer",
    "ManyGoalsCallback",
    "PixelControlCallback",
    "RewardExamples",
    "RewardPredictionCallback",
    "RolloutReusePolicy",
    "Trajectories",
]
