"""Pre-training without a task (section 4 of Veeriah et al. 2018), and how an actor-critic begins with what was learned."""

from sb3_manygoals.pretraining.frame_memory import FrameMemory, FrameReplayBuffer, ManyGoalsFrameReplayBuffer
from sb3_manygoals.pretraining.reward_prediction import RewardPredictionPolicy, RewardPredictor
from sb3_manygoals.pretraining.transfer import CopiedLayer, TransferError, transfer_trunk

__all__ = [
    "CopiedLayer",
    "FrameMemory",
    "FrameReplayBuffer",
    "ManyGoalsFrameReplayBuffer",
    "RewardPredictionPolicy",
    "RewardPredictor",
    "TransferError",
    "transfer_trunk",
]
