"""ManyGoalsDQN as a whole: which environments it takes, how it acts, updates and logs; and the paper's recipe."""

from fractions import Fraction

import gymnasium as gym
import numpy as np
import pandas as pd
import pytest
import torch as th
from hypothesis import given
from hypothesis import strategies as st
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import configure
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from sb3_manygoals import (
    GoalBuffer,
    GoalBufferWrapper,
    ManyGoalsDQN,
    evaluate_mastery,
    large_world,
)
from sb3_manygoals.many_goals_dqn import LARGE_WORLD, PAPER, PlannedTargets, TDTargets
from sb3_manygoals.many_goals_dqn.many_goals_dqn import update_rhythm
from sb3_manygoals.networks import PaddedCNN, UniversalQNetwork
from tests.sb3_manygoals.many_goals_dqn.models import goal_obs, make_model, parameters, reloaded
from tests.sb3_manygoals.worlds import Corridor


def test_it_is_sb3s_dqn_and_a_run_is_reproducible():
    model = make_model(seed=1)
    assert isinstance(model, DQN)
    assert model.learn(150) is model
    assert model.get_parameters().keys() == {"policy", "policy.optimizer"}
    again, other = (parameters(make_model(seed=seed).learn(150)) for seed in (1, 2))
    assert th.equal(parameters(model), again)
    assert not th.equal(parameters(model), other)


def test_an_id_and_a_wrapped_environment_and_a_vector_of_them():
    assert isinstance(make_model("CartPole-v1").learn(30), ManyGoalsDQN)
    model = make_model(Corridor(image=True), "CnnPolicy").learn(60)
    assert all(model.env.env_is_wrapped(GoalBufferWrapper))
    assert model.observation_space["observation"].shape == (
        4,
        6,
        3,
    )  # channels stay where they were
    wrapped = GoalBufferWrapper(Corridor(), max_episode_steps=9, step_reward=-1.0)
    model = make_model(wrapped).learn(40)
    assert model.goal_buffer is wrapped.goal_buffer
    assert model.step_reward == -1.0
    buffer = GoalBuffer(Corridor().observation_space)
    model = make_model(
        DummyVecEnv([lambda: GoalBufferWrapper(Corridor(), buffer) for _ in range(3)])
    ).learn(60)
    assert model.goal_buffer is buffer
    model = make_model(
        make_vec_env(Corridor, 3), goal_wrapper_kwargs={"max_episode_steps": 4}
    ).learn(90)
    assert model.env.goal_tracker.max_episode_steps == 4
    assert max(episode["l"] for episode in model.ep_info_buffer) == 4


def test_environments_that_cannot_share_a_goal_buffer_are_refused():
    with pytest.raises(
        ValueError, match="must be given the same goal_buffer, goal_reward and step_reward"
    ):
        make_model(DummyVecEnv([lambda: GoalBufferWrapper(Corridor()) for _ in range(2)]))
    apart = SubprocVecEnv([lambda: GoalBufferWrapper(Corridor())])
    with pytest.raises(
        ValueError,
        match="env has no goal buffer that can be shared: put a VecGoalBufferWrapper around",
    ):
        make_model(apart)
    apart.close()


@pytest.mark.parametrize("name", ["MiniGrid-Empty-5x5-v0", "CartPole-v1", "FrozenLake-v1"])
def test_it_learns_saves_loads_and_is_measured_in_other_peoples_environments(name, tmp_path):
    def make_env():
        if not name.startswith("MiniGrid"):
            return gym.make(name)
        wrappers = pytest.importorskip("minigrid.wrappers")  # from Python 3.11
        return wrappers.ImgObsWrapper(wrappers.RGBImgObsWrapper(gym.make(name)))

    policy = "CnnPolicy" if name.startswith("MiniGrid") else "MlpPolicy"
    model = ManyGoalsDQN(
        policy, make_env(), updates_per_step=0.25, seed=0, policy_kwargs={"embedding_dim": 64}
    )
    model.learn(1_200)
    assert model._n_updates == 50
    assert np.isfinite(model._loss.item())
    loaded = reloaded(model, tmp_path, make_env())
    obs = model.get_env().reset()
    np.testing.assert_array_equal(
        model.predict(obs, deterministic=True)[0], loaded.predict(obs, deterministic=True)[0]
    )
    loaded.learn(50)
    venv = gym.vector.SyncVectorEnv([make_env] * 4)
    assert evaluate_mastery(
        loaded, venv, model.goal_buffer.observations[:6], max_steps=10
    ).steps.shape == (6, 1)
    venv.close()


def test_each_environment_explores_by_itself():
    model = make_model(make_vec_env(Corridor, 2))
    model.exploration_rate = 0.5
    obs = {
        key: np.repeat(value[None], 4_000, axis=0)
        for key, value in goal_obs(Corridor(), 1, 4).items()
    }
    greedy = model.predict(obs, deterministic=True)[0]
    assert len(np.unique(greedy)) == 1
    share = (model.predict(obs)[0] != greedy).mean()
    assert share == pytest.approx(
        0.5 * 2 / 3, abs=0.05
    )  # 6 standard deviations; all or none would be 0 or 2/3


def test_an_environments_step_count_and_log(tmp_path):
    model = make_model(make_vec_env(Corridor, 2))
    model.set_logger(configure(str(tmp_path), ["csv", "tensorboard"]))
    model.learn(3e2, log_interval=1)
    model.logger.close()
    assert model.num_timesteps == 300
    rows = pd.read_csv(tmp_path / "progress.csv")
    assert {"rollout/ep_rew_mean", "rollout/success_rate", "rollout/exploration_rate"} <= set(rows)
    assert rows["goals/known"].iloc[-1] == 6
    assert rows["train/loss"].iloc[-1] > 0
    assert any(path.name.startswith("events.out.tfevents") for path in tmp_path.iterdir())


@given(st.floats(1e-4, 1000.0), st.integers(1, 64))
def test_updates_are_as_many_as_asked_for(updates_per_step, n_envs):
    train_freq, gradient_steps = update_rhythm(updates_per_step, n_envs)
    assert train_freq >= 1
    assert gradient_steps >= 1
    made = Fraction(gradient_steps, train_freq * n_envs)
    assert float(made) == pytest.approx(updates_per_step, rel=0.02)


@pytest.mark.parametrize("max_plan_bytes", [100, 10_000])
def test_the_settings_for_large_worlds_follow_ways_to_goals_after_random_steps(max_plan_bytes):
    few = {
        "learning_starts": 500,
        "target_kwargs": {**LARGE_WORLD["target_kwargs"], "max_plan_bytes": max_plan_bytes},
    }
    model, used = (
        ManyGoalsDQN("CnnPolicy", Corridor(image=True), seed=0, **{**LARGE_WORLD, **few}),
        [],
    )
    model.learn(600, lambda *_: used.append(model.policy.optimizer.param_groups[0]["lr"]) or True)
    assert model.targets.routes.states.size
    assert (model.targets.plan.is_draw, model._n_updates) == (max_plan_bytes == 100, 4)
    assert used[526::25] == pytest.approx(
        [0.75e-3, 0.5e-3, 0.25e-3]
    )  # of the updates after steps 525, 550 and 575


def test_settings_for_a_large_world_fit_the_length_of_a_run():
    assert large_world(32_250_000) == LARGE_WORLD
    targets = {"sweeps": 0, "max_plan_bytes": 6_500_000_000, "fresh_goals": 0.3}
    targets |= {"near_floor": 0.1, "best_weight": 1e4}
    assert {
        "buffer_size": 33_000_000,
        "learning_starts": 30_000_000,
        "batch_size": 256,
        "goal_batch_size": 16,
        "target_class": PlannedTargets,
        "target_kwargs": targets,
    } == LARGE_WORLD
    short = large_world(2e6, max_plan_bytes=1e9)
    assert short["buffer_size"] == 2_000_000
    assert short["learning_starts"] == pytest.approx(0.93 * 2e6, rel=1e-3)
    assert short["target_kwargs"]["max_plan_bytes"] == 10**9
    short["target_kwargs"]["sweeps"] = 7
    assert large_world(2e6)["target_kwargs"]["sweeps"] == 0  # a dictionary of its own
    model = ManyGoalsDQN("CnnPolicy", Corridor(image=True), seed=0, **large_world(1_000, 10_000))
    model.learn(1_000)
    assert model._n_updates == 3  # after steps 950, 975 and 1,000
    with pytest.raises(ValueError, match="steps must be a whole number, at least 1, got 0"):
        large_world(0)


def test_the_recipe_builds_the_papers_agent():
    model = ManyGoalsDQN("CnnPolicy", Corridor(image=True), **PAPER)
    assert (model.goal_reward, model.step_reward) == (0.0, -0.1)
    assert (model.train_freq.frequency, model.gradient_steps) == (1, 1)
    policy = model.policy
    assert type(model.targets) is TDTargets
    assert model.targets.initial_value == pytest.approx(-10.0)
    assert type(policy.q_net) is UniversalQNetwork  # a product of embeddings
    assert isinstance(policy.q_net.trunk[1], PaddedCNN)
    shapes = [
        tuple(weights.shape)
        for name, weights in policy.q_net.named_parameters()
        if name.endswith("weight")
    ]
    assert shapes[0] == (16, 3, 2, 2)
    assert shapes[-3:] == [(1024, 512), (1024, 512), (3, 1024)]
    assert type(policy.optimizer) is RMSpropTFLike
    (group,) = policy.optimizer.param_groups
    assert (group["alpha"], group["eps"], group["lr"]) == (0.99, 1e-12, 1e-4)
    # epsilon from 1 to 0.1 over the first million of three million steps
    rates = [
        model.exploration_schedule(1 - steps / 3e6) for steps in (0, 250_000, 1_000_000, 3_000_000)
    ]
    np.testing.assert_allclose(rates, [1.0, 0.775, 0.1, 0.1])
