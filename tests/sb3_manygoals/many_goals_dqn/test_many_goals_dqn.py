"""ManyGoalsDQN in its environments: which it takes, how it acts, logs and comes back the same."""

import csv

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from sb3_manygoals import GoalBuffer, GoalBufferWrapper, ManyGoalsDQN, VecGoalBufferWrapper
from tests.sb3_manygoals.many_goals_dqn.models import goal_obs, make_model, parameters
from tests.sb3_manygoals.worlds import Corridor


def test_a_plain_image_environment_is_wrapped():
    model = make_model(Corridor(image=True), "CnnPolicy").learn(60)
    assert all(model.env.env_is_wrapped(GoalBufferWrapper))
    assert model.observation_space["observation"].shape == (4, 6, 3)  # channels stay where they were
    assert model._n_updates == 40


def test_an_id_and_a_wrapped_environment_and_a_vector_of_them():
    assert isinstance(make_model("CartPole-v1").learn(30), ManyGoalsDQN)
    wrapped = GoalBufferWrapper(Corridor(), max_episode_steps=9, step_reward=-1.0)
    model = make_model(wrapped).learn(40)
    assert model.goal_buffer is wrapped.goal_buffer
    assert model.step_reward == -1.0
    buffer = GoalBuffer(Corridor().observation_space)
    model = make_model(DummyVecEnv([lambda: GoalBufferWrapper(Corridor(), buffer) for _ in range(3)])).learn(60)
    assert model.goal_buffer is buffer
    model = make_model(make_vec_env(Corridor, 3), goal_wrapper_kwargs={"max_episode_steps": 4}).learn(90)
    assert model.env.goal_tracker.max_episode_steps == 4
    assert max(episode["l"] for episode in model.ep_info_buffer) == 4
    model = make_model(VecGoalBufferWrapper(make_vec_env(Corridor, 2)), updates_per_step=0.5).learn(60)
    assert model._n_updates == 20


def test_environments_that_cannot_share_a_goal_buffer_are_refused():
    with pytest.raises(ValueError, match="must be given the same goal_buffer, goal_reward and step_reward"):
        make_model(DummyVecEnv([lambda: GoalBufferWrapper(Corridor()) for _ in range(2)]))
    apart = SubprocVecEnv([lambda: GoalBufferWrapper(Corridor())])
    with pytest.raises(ValueError, match="env has no goal buffer that can be shared: put a VecGoalBufferWrapper around"):
        make_model(apart)
    apart.close()


def test_each_environment_explores_by_itself():
    model = make_model(make_vec_env(Corridor, 2))
    model.exploration_rate = 0.5
    obs = {key: np.repeat(value[None], 4_000, axis=0) for key, value in goal_obs(Corridor(), 1, 4).items()}
    greedy = model.predict(obs, deterministic=True)[0]
    assert len(np.unique(greedy)) == 1
    share = (model.predict(obs)[0] != greedy).mean()
    assert share == pytest.approx(0.5 * 2 / 3, abs=0.05)  # 6 standard deviations; all or none would be 0 or 2/3


def test_an_environments_step_count_and_log(tmp_path):
    model = make_model(make_vec_env(Corridor, 2))
    model.set_logger(configure(str(tmp_path), ["csv", "tensorboard"]))
    model.learn(3e2, log_interval=1)
    model.logger.close()
    assert model.num_timesteps == 300
    with open(tmp_path / "progress.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    rollout = {"rollout/ep_rew_mean", "rollout/success_rate", "rollout/exploration_rate"}
    assert rollout | {"goals/known", "train/loss"} <= set(rows[0])
    assert float(rows[-1]["goals/known"]) == 6
    assert float(rows[-1]["train/loss"]) > 0
    assert any(path.name.startswith("events.out.tfevents") for path in tmp_path.iterdir())


def test_a_run_is_reproducible():
    first, second, other = (parameters(make_model(seed=seed).learn(150)) for seed in (1, 1, 2))
    assert th.equal(first, second)
    assert not th.equal(first, other)
