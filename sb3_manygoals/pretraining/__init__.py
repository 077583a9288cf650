"""
Pre-training without a task (section 4 of Veeriah et al. 2018), and transfer to an actor-critic.

In this example, pictures hardly recur::

    alike = {"features_extractor_class": PaddedCNN, "net_arch": []}
    pretrained = ManyGoalsDQN(
        "CnnPolicy",
        make(),
        goals_in_replay=True,
        replay_buffer_class=ManyGoalsFrameReplayBuffer,
        policy_kwargs={**alike, "standardize": False, "ortho_init": True},
    ).learn(20_000)
    model = A2C("CnnPolicy", make_vec_env(make, 16), policy_kwargs=alike)
    transfer_trunk(pretrained, model)
    model.learn(180_000)

With ``ortho_init`` the trunk begins as SB3's actor-critics do, which learn less from torch's
smaller weights. For stacks of four frames of a game, add ``replay_buffer_kwargs={"n_stack": 4}``.
Then 10,000 transitions take 72 MB instead of 564 MB.
"""

from sb3_manygoals.pretraining.replay_buffers import FrameReplayBuffer, ManyGoalsFrameReplayBuffer
from sb3_manygoals.pretraining.reward_prediction import RewardPredictionPolicy, RewardPredictor
from sb3_manygoals.pretraining.transfer import TransferError, transfer_trunk

__all__ = [
    "FrameReplayBuffer",
    "ManyGoalsFrameReplayBuffer",
    "RewardPredictionPolicy",
    "RewardPredictor",
    "TransferError",
    "transfer_trunk",
]
