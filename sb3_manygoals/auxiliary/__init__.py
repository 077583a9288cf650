"""
Auxiliary tasks for SB3's A2C: many goals, pixel control and reward prediction.

They learn the features that actor and critic share.
"""

from sb3_manygoals.auxiliary.callback import AuxiliaryCallback
from sb3_manygoals.auxiliary.episode_buffer import EpisodeBuffer, Trajectories
from sb3_manygoals.auxiliary.many_goals import ManyGoalsCallback
from sb3_manygoals.auxiliary.pixel_control import PixelControlCallback
from sb3_manygoals.auxiliary.policies import AuxiliaryActorCriticPolicy
from sb3_manygoals.auxiliary.reward_prediction import RewardPredictionCallback

__all__ = [
    "AuxiliaryActorCriticPolicy",
    "AuxiliaryCallback",
    "EpisodeBuffer",
    "ManyGoalsCallback",
    "PixelControlCallback",
    "RewardPredictionCallback",
    "Trajectories",
]
