"""
Auxiliary tasks for SB3's A2C: many goals, pixel control and reward prediction.

They learn the features that actor and critic share.
"""

from sb3_manygoals.auxiliary.callbacks import (
    AuxiliaryCallback,
    ManyGoalsCallback,
    PixelControlCallback,
    RewardPredictionCallback,
)
from sb3_manygoals.auxiliary.episode_buffer import EpisodeBuffer, Trajectories
from sb3_manygoals.auxiliary.policies import AuxiliaryActorCriticPolicy

__all__ = [
    "AuxiliaryActorCriticPolicy",
    "AuxiliaryCallback",
    "EpisodeBuffer",
    "ManyGoalsCallback",
    "PixelControlCallback",
    "RewardPredictionCallback",
    "Trajectories",
]
