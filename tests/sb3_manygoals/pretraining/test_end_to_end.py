"""Pre-training, transfer and fine-tuning, on a game and on MiniGrid; and pre-training stopped and gone on with."""

import contextlib

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from stable_baselines3 import A2C
from stable_baselines3.common.env_util import make_vec_env
from torch import nn

from sb3_manygoals import ExactCheckpointCallback, ManyGoalsDQN
from sb3_manygoals.checkpoint import checkpoints, read_checkpoint
from sb3_manygoals.networks import PaddedCNN
from sb3_manygoals.pretraining import ManyGoalsFrameReplayBuffer, RewardPredictor, transfer_trunk
from tests.sb3_manygoals.auxiliary.story import stories
from tests.sb3_manygoals.checkpoint.test_resume import Stop, same
from tests.sb3_manygoals.worlds import NumberedCorridor

EVERY_STEP = {"updates_per_step": 1.0, "learning_rate": 1e-3}
NARROW = {"features_extractor_kwargs": {"features_dim": 32}}
TRUNK = {"embedding_dim": 16, "features_extractor_class": PaddedCNN, "net_arch": [], "standardize": False, **NARROW}


def many_goals(env, n_stack, stack_axis=0, **kwargs):
    defaults = {"buffer_size": 40, "learning_starts": 20, "batch_size": 16, "goal_batch_size": 5, "seed": 1, "device": "cpu"}
    defaults |= {"replay_buffer_class": ManyGoalsFrameReplayBuffer, **EVERY_STEP}
    defaults |= {"replay_buffer_kwargs": {"n_stack": n_stack, "stack_axis": stack_axis}}
    return ManyGoalsDQN(
        "CnnPolicy",
        env,
        goals_in_replay=True,
        policy_kwargs=TRUNK,
        **defaults | kwargs,
    )


def reward_predictor(env, n_stack, stack_axis=0):
    kwargs = {"buffer_size": 40, "learning_starts": 20, "seed": 1, "device": "cpu", "policy_kwargs": NARROW}
    return RewardPredictor("CnnPolicy", env, n_stack=n_stack, stack_axis=stack_axis, **kwargs)


def fine_tuned(pretrained, env):
    target = A2C("CnnPolicy", env, policy_kwargs={"features_extractor_class": PaddedCNN, **NARROW}, seed=1, device="cpu")
    assert len(transfer_trunk(pretrained, target)) == 4
    extractor = target.policy.features_extractor
    for ours, theirs in zip(pretrained.policy.trunk[1].parameters(), extractor.parameters(), strict=True):
        assert ours.numpy(force=True).tobytes() == theirs.numpy(force=True).tobytes()
    given = extractor.net[0].weight.clone()
    target.learn(40)
    assert target.num_timesteps >= 40
    assert not th.equal(given, extractor.net[0].weight)
    assert th.equal(given, pretrained.policy.trunk[1].net[0].weight)  # nothing is shared between the two


@pytest.mark.parametrize("pretraining", [many_goals, reward_predictor])
def test_on_a_game(pretraining):
    pytest.importorskip("ale_py")
    from sb3_manygoals.atari import AtariVecEnv

    model = pretraining(AtariVecEnv("Breakout", 1, seed=0, num_threads=1), 4)
    model.learn(45)
    assert model._n_updates == 25
    assert len(model.replay_buffer.frames) <= 45
    fine_tuned(model, AtariVecEnv("Breakout", 2, seed=0, num_threads=1))


@pytest.mark.parametrize("pretraining", [many_goals, reward_predictor])
def test_on_minigrid(pretraining):
    wrappers = pytest.importorskip("minigrid.wrappers")

    def make():
        return wrappers.ImgObsWrapper(wrappers.RGBImgObsWrapper(gym.make("MiniGrid-DoorKey-5x5-v0"), tile_size=8))

    model = pretraining(make_vec_env(make, 1, seed=0), 1)
    model.learn(45)
    assert model._n_updates == 25
    fine_tuned(model, make_vec_env(make, 2, seed=0))


def test_on_observations_that_are_numbers():
    settings = {"buffer_size": 40, "learning_starts": 20, "batch_size": 8, "seed": 1, "device": "cpu"}
    policy = {"net_arch": [64]}
    pretrained = [
        ManyGoalsDQN(
            "MlpPolicy",
            NumberedCorridor(),
            goals_in_replay=True,
            replay_buffer_class=ManyGoalsFrameReplayBuffer,
            policy_kwargs=policy | {"embedding_dim": 8, "activation_fn": nn.ReLU, "standardize": False},
            **settings,
            **EVERY_STEP,
        ),
        RewardPredictor("MlpPolicy", NumberedCorridor(), policy_kwargs=policy, **settings),
    ]
    for model in pretrained:
        model.learn(60)
        towers = {"net_arch": [64], "activation_fn": nn.ReLU}
        assert len(transfer_trunk(model, A2C("MlpPolicy", NumberedCorridor(), policy_kwargs=towers, device="cpu"))) == 2


def learn(pretraining, folder, stop=None):
    kwargs = (
        {"goal_wrapper_kwargs": {"max_episode_steps": 6}, "exploration_fraction": 0.5} if pretraining is many_goals else {}
    )
    # SB3's frame stacks of pictures have their channels last
    model = pretraining(stories(2, 4, limit=9), 4, -1 if pretraining is many_goals else 0, **kwargs)
    checkpointing = ExactCheckpointCallback(folder, every_steps=20)
    resumed = checkpointing.resume(model)
    with contextlib.suppress(KeyboardInterrupt):
        steps = 100 - model.num_timesteps
        model.learn(steps, [checkpointing, *([Stop(stop)] if stop else [])], reset_num_timesteps=not resumed)
    return resumed


@pytest.mark.usefixtures("no_sync")
@pytest.mark.parametrize(("pretraining", "stop"), [(many_goals, 35), (many_goals, 81), (reward_predictor, 71)])
def test_the_end_is_the_same_when_it_was_stopped(pretraining, stop, tmp_path):
    assert learn(pretraining, tmp_path / "whole") is False
    assert learn(pretraining, tmp_path / "stopped", stop) is False
    np.random.rand(5), th.rand(3)  # noqa: NPY002 - the generators are elsewhere than they were
    assert learn(pretraining, tmp_path / "stopped") is True
    whole, ends = (read_checkpoint(checkpoints(tmp_path / run)[0]) for run in ("whole", "stopped"))
    same(whole, ends)
    assert whole["learner"]["algorithm"]["counters"]["_n_updates"] > 20


@pytest.mark.usefixtures("no_sync")
def test_frames_change_nothing_but_memory(tmp_path):
    """The same learner with stacks kept whole ends with the same weights."""
    trained = []
    for kwargs in ({}, {"replay_buffer_class": None, "replay_buffer_kwargs": None}):
        model = many_goals(stories(2, 4, limit=9), 4, -1, **kwargs)
        trained.append(model.learn(80).policy.state_dict())
    for name, tensor in trained[0].items():
        assert th.equal(tensor, trained[1][name]), name
