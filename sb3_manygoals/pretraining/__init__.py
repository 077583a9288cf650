"""
Pre-training without a task (section 4 of Veeriah et al. 2018), and how an actor-critic begins with what was learned::

    def make():  # any environment will do
        return ImgObsWrapper(RGBImgObsWrapper(gym.make("MiniGrid-DoorKey-5x5-v0")))

    pretrained = ManyGoalsDQN("CnnPolicy", make(), batch_size=16, goal_batch_size=5, learning_rate=7e-4, goals_in_replay=True,
                              replay_buffer_class=ManyGoalsFrameReplayBuffer, exploration_steps=20_000,
                              policy_kwargs={"ortho_init": True})
    pretrained.learn(20_000)
    policy_kwargs = {"features_extractor_class": PaddedCNN, "net_arch": []}
    model = A2C("CnnPolicy", make_vec_env(make, 16), policy_kwargs=policy_kwargs)
    transfer_trunk(pretrained, model)
    model.learn(180_000)

A game's observations are stacks of four frames: ``replay_buffer_kwargs={"n_stack": 4}``. ``ortho_init`` lets the trunk begin
as SB3's actor-critics do; in this world A2C learned far less from torch's smaller weights.

What a step of pre-training takes besides that of the environment, with the paper's numbers. Many goals: 21 observations (16
of transitions, 5 goals) pass the trunk forth and back, and 21 the target network's forth; one more pair passes to choose an
action. Reward prediction: 80 observations pass the trunk forth and back. Memory of 10,000 transitions of a game, pictures of
84 x 84: 71 MB of frames in either case, where stacks kept whole would take 564 MB; each start of a game adds a frame. Goals
take none: they are in the replay memory.
"""

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
