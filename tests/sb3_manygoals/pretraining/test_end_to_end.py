"""Tests of pre-training, transfer and fine-tuning, on a game and on MiniGrid."""

import textwrap

import gymnasium as gym
import pytest
import torch as th
from stable_baselines3 import A2C
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecTransposeImage

import sb3_manygoals.pretraining
from sb3_manygoals import ManyGoalsDQN
from sb3_manygoals.networks import PaddedCNN
from sb3_manygoals.pretraining import ManyGoalsFrameReplayBuffer, RewardPredictor, transfer_trunk
from tests.sb3_manygoals.auxiliary.story import stories
from tests.sb3_manygoals.updates import count_updates

EVERY_STEP = {"updates_per_step": 1.0, "learning_rate": 1e-3}
NARROW = {"features_extractor_kwargs": {"features_dim": 32}}
TRUNK = {
    "embedding_dim": 16,
    "features_extractor_class": PaddedCNN,
    "net_arch": [],
    "standardize": False,
    **NARROW,
}


def many_goals(env, n_stack, **kwargs):
    """Make a learner of many goals whose memory keeps single frames of stacked ones."""
    defaults = {
        "buffer_size": 40,
        "learning_starts": 20,
        "batch_size": 16,
        "goal_batch_size": 5,
        "seed": 1,
        "device": "cpu",
    }
    defaults |= {"replay_buffer_class": ManyGoalsFrameReplayBuffer, **EVERY_STEP}
    defaults |= {"replay_buffer_kwargs": {"n_stack": n_stack}}
    return ManyGoalsDQN(
        "CnnPolicy", env, goals_in_replay=True, policy_kwargs=TRUNK, **defaults | kwargs
    )


def reward_predictor(env, n_stack):
    """Make a predictor of rewards that keeps single frames of stacked ones."""
    kwargs = {
        "buffer_size": 40,
        "learning_starts": 20,
        "seed": 1,
        "device": "cpu",
        "policy_kwargs": NARROW,
    }
    return RewardPredictor("CnnPolicy", env, n_stack=n_stack, **kwargs)


def fine_tuned(pretrained, env):
    """Check that A2C begins with the trunk of a pre-trained model, and trains it on."""
    target = A2C(
        "CnnPolicy",
        env,
        policy_kwargs={"features_extractor_class": PaddedCNN, **NARROW},
        seed=1,
        device="cpu",
    )
    assert len(transfer_trunk(pretrained, target)) == 4
    extractor = target.policy.features_extractor
    for ours, theirs in zip(
        pretrained.policy.trunk[1].parameters(), extractor.parameters(), strict=True
    ):
        assert ours.numpy(force=True).tobytes() == theirs.numpy(force=True).tobytes()
    given = extractor.net[0].weight.clone()
    target.learn(40)
    assert target.num_timesteps >= 40
    assert not th.equal(given, extractor.net[0].weight)
    # The two networks share no weights.
    assert th.equal(given, pretrained.policy.trunk[1].net[0].weight)


@pytest.mark.parametrize("pretraining", [many_goals, reward_predictor])
def test_on_a_game(pretraining):
    pytest.importorskip("ale_py")
    from sb3_manygoals.atari import AtariVecEnv

    model = pretraining(AtariVecEnv("Breakout", 1, seed=0, num_threads=1), 4)
    updates = count_updates(model)
    model.learn(45)
    assert len(updates) == 25
    memory = model.replay_buffer
    frames = [*memory.observations.frames.flat, *memory.next_observations.frames.flat]
    assert len({id(frame) for frame in frames}) <= 45
    fine_tuned(model, AtariVecEnv("Breakout", 2, seed=0, num_threads=1))


def test_the_example_in_the_documentation():
    wrappers = pytest.importorskip("minigrid.wrappers")
    after_colons = sb3_manygoals.pretraining.__doc__.partition("::\n")[2]
    example = textwrap.dedent(after_colons.partition("\nWith ")[0])

    def make():
        world = gym.make("MiniGrid-DoorKey-5x5-v0")
        return wrappers.ImgObsWrapper(wrappers.RGBImgObsWrapper(world))

    names = {**globals(), "make_vec_env": make_vec_env, "make": make}
    for steps, fewer in (("20_000", "1_010"), ("180_000", "80")):
        assert example.count(f"learn({steps})") == 1
        example = example.replace(f"learn({steps})", f"learn({fewer})")
    exec(example, names)
    # The optimizer of a network has a state after its first update.
    assert names["pretrained"].policy.optimizer.state
    assert names["model"].num_timesteps == 80


def test_frames_do_not_change_what_is_learned():
    whole = {"replay_buffer_class": None, "replay_buffer_kwargs": None}
    with_frames, with_stacks = (
        many_goals(VecTransposeImage(stories(2, 4, limit=9)), 4, **kwargs).learn(80)
        for kwargs in ({}, whole)
    )
    for ours, theirs in zip(
        with_frames.policy.parameters(), with_stacks.policy.parameters(), strict=True
    ):
        assert th.equal(ours, theirs)
