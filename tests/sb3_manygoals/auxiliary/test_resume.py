"""Going on from a checkpoint is as if training had never stopped: A2C and PPO of SB3, and A2C with auxiliary tasks."""

import contextlib

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.env_util import make_vec_env

from sb3_manygoals import ExactCheckpointCallback
from sb3_manygoals.auxiliary import (
    AuxiliaryActorCriticPolicy,
    EpisodeBuffer,
    ManyGoalsCallback,
    PixelControlCallback,
    RewardPredictionCallback,
)
from sb3_manygoals.checkpoint import CheckpointError, checkpoints, read_checkpoint
from tests.sb3_manygoals.auxiliary.story import stories
from tests.sb3_manygoals.checkpoint.test_resume import Stop, same

SMALL = {"embedding_dim": 8, "crop": 20, "cell": 10}


def cart_poles():
    return make_vec_env("CartPole-v1", 2, seed=1)


def own(model):
    return {"many goals": ManyGoalsCallback(batch_size=10, target_update_interval=7)}


def common(model):
    episodes = EpisodeBuffer(model.observation_space, capacity=4, n_stack=2)
    return {
        "many goals": ManyGoalsCallback(batch_size=10, episodes=episodes),
        "pixels": PixelControlCallback(batch_size=6, n_steps=3, episodes=episodes),
        "rewards": RewardPredictionCallback(batch_size=6, episodes=episodes),
    }


ALL = ("many_goals", "pixel_control", "reward_prediction")
BUILDS = {
    # pictures that SB3 transposed lie in memory with channels last: the last bits of convolutions depend on it
    "A2C": lambda: (A2C("CnnPolicy", stories(limit=9), seed=2, device="cpu"), lambda model: {}),
    "PPO": lambda: (PPO("MlpPolicy", cart_poles(), n_steps=16, batch_size=8, seed=2, device="cpu"), lambda model: {}),
    "vectors": lambda: (A2C(AuxiliaryActorCriticPolicy, cart_poles(), policy_kwargs=SMALL, seed=2, device="cpu"), own),
    "three tasks": lambda: (
        A2C(
            AuxiliaryActorCriticPolicy,
            stories(2, 2, limit=9, lives=True),
            policy_kwargs=SMALL | {"tasks": ALL},
            seed=2,
            device="cpu",
            learning_rate=lambda p: 1e-3 * p,
        ),
        common,
    ),
}


def learn(name, folder, stop=None, steps=160):
    model, make = BUILDS[name]()
    extras = make(model)
    checkpointing = ExactCheckpointCallback(folder, every_steps=20, extras=extras)
    resumed = checkpointing.resume(model)
    callbacks = [*extras.values(), checkpointing, *([Stop(stop)] if stop else [])]
    with contextlib.suppress(KeyboardInterrupt):
        model.learn(steps - model.num_timesteps, callbacks, reset_num_timesteps=not resumed)
    return resumed, extras


@pytest.mark.usefixtures("no_sync")
@pytest.mark.parametrize("name", BUILDS)
@pytest.mark.parametrize("stop", [35, 101])
def test_the_end_is_the_same(name, stop, tmp_path):
    assert learn(name, tmp_path / "whole")[0] is False
    assert learn(name, tmp_path / "stopped", stop)[0] is False
    np.random.rand(5), th.rand(3)  # noqa: NPY002 - the generators are elsewhere than they were
    resumed, extras = learn(name, tmp_path / "stopped")
    assert resumed is True
    whole, ends = [read_checkpoint(checkpoints(tmp_path / run)[0]) for run in ("whole", "stopped")]
    same(whole, ends)
    assert whole["learner"]["algorithm"]["counters"]["num_timesteps"] >= 160
    for callback in extras.values():
        assert callback.n_updates > 5
    saved = [extra["episodes"]["episodes"] for extra in whole["extras"].values() if extra["episodes"] is not None]
    assert [len(episodes) > 2 for episodes in saved] == ([True] if extras else [])  # once, also of a common buffer


@pytest.mark.usefixtures("no_sync")
def test_episodes_of_another_buffer_are_refused(tmp_path):
    learn("three tasks", tmp_path)
    model, _ = BUILDS["three tasks"]()
    other = EpisodeBuffer(model.observation_space, capacity=5, n_stack=2)
    extras = common(model) | {"rewards": RewardPredictionCallback(episodes=other)}
    with pytest.raises(CheckpointError, match=r"does not fit extras.*episode buffer with capacity=4, not 5"):
        ExactCheckpointCallback(tmp_path, extras=extras).resume(model)


def test_noise_that_cannot_be_saved_is_refused(tmp_path):
    model = A2C("MlpPolicy", gym.make("Pendulum-v1"), use_sde=True, device="cpu")
    with pytest.raises(CheckpointError, match="use_sde: the noise of generalized state-dependent exploration cannot be saved"):
        model.learn(10, ExactCheckpointCallback(tmp_path))
    assert model.num_timesteps == 0
