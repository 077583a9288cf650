"""Pre-training, transfer and fine-tuning, on a game and on MiniGrid."""

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
    kwargs = {
        "buffer_size": 40,
        "learning_starts": 20,
        "seed": 1,
        "device": "cpu",
        "policy_kwargs": NARROW,
    }
    return RewardPredictor("CnnPolicy", env, n_stack=n_stack, **kwargs)


def fine_tuned(pretrained, env):
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
    assert th.equal(
        given, pretrained.policy.trunk[1].net[0].weight
    )  # nothing is shared between the two


@pytest.mark.parametrize("pretraining", [many_goals, reward_predictor])
def test_on_a_game(pretraining):
    pytest.importorskip("ale_py")
    from sb3_manygoals.atari import AtariVecEnv

    model = pretraining(AtariVecEnv("Breakout", 1, seed=0, num_threads=1), 4)
    model.learn(45)
    assert model._n_updates == 25
    memory = model.replay_buffer
    assert (
        len(
            {
                id(one)
                for array in (memory.observations, memory.next_observations)
                for one in array.frames.flat
            }
        )
        <= 45
    )
    fine_tuned(model, AtariVecEnv("Breakout", 2, seed=0, num_threads=1))


def test_the_example_in_the_documentation():
    wrappers = pytest.importorskip("minigrid.wrappers")
    example = textwrap.dedent(
        sb3_manygoals.pretraining.__doc__.partition("::\n")[2].partition("\nWith ")[0]
    )

    def make():
        world = gym.make("MiniGrid-DoorKey-5x5-v0")
        return wrappers.ImgObsWrapper(wrappers.RGBImgObsWrapper(world))

    names = {**globals(), "make_vec_env": make_vec_env, "make": make}
    for steps, fewer in (("20_000", "1_010"), ("180_000", "80")):
        assert example.count(f"learn({steps})") == 1
        example = example.replace(f"learn({steps})", f"learn({fewer})")
    exec(example, names)
    assert names["pretrained"]._n_updates > 0
    assert names["model"].num_timesteps == 80


def test_frames_change_nothing_but_memory():
    whole = {"replay_buffer_class": None, "replay_buffer_kwargs": None}
    frames, stacks = (
        many_goals(VecTransposeImage(stories(2, 4, limit=9)), 4, **kwargs).learn(80)
        for kwargs in ({}, whole)
    )
    for ours, theirs in zip(frames.policy.parameters(), stacks.policy.parameters(), strict=True):
        assert th.equal(ours, theirs)
