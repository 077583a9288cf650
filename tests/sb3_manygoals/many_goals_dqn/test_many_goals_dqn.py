"""ManyGoalsDQN as a whole: which environments it takes, how it acts and logs, and its settings."""

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
)
from sb3_manygoals.many_goals_dqn import PAPER, PlannedTargets, TDTargets
from sb3_manygoals.many_goals_dqn.pacing import update_rhythm
from sb3_manygoals.many_goals_dqn.targets import Targets, UpdateBatch
from sb3_manygoals.networks import PaddedCNN, UniversalQNetwork
from sb3_manygoals.world import ExactStates
from tests.sb3_manygoals.many_goals_dqn.models import (
    goal_obs,
    make_model,
    parameters,
    reloaded,
    steps_of_updates,
)
from tests.sb3_manygoals.worlds import Corridor, NumberedCorridor


def test_it_is_a_dqn_of_sb3():
    model = make_model()
    assert isinstance(model, DQN)
    assert model.learn(60) is model
    assert model.get_parameters().keys() == {"policy", "policy.optimizer"}


def test_a_run_is_reproducible():
    first, again, other = (parameters(make_model(seed=seed).learn(150)) for seed in (1, 1, 2))
    assert th.equal(first, again)
    assert not th.equal(first, other)


def test_it_takes_the_id_of_an_environment():
    assert make_model("CartPole-v1", updates_per_step=1.0).learn(30).num_timesteps == 30


def test_it_wraps_an_environment_and_leaves_the_axes_of_images_as_they_are():
    model = make_model(Corridor(image=True), "CnnPolicy").learn(60)
    assert all(model.env.env_is_wrapped(GoalBufferWrapper))
    assert model.observation_space["observation"].shape == (4, 6, 3)


def test_it_takes_goals_and_rewards_from_a_goal_wrapper():
    wrapped = GoalBufferWrapper(Corridor(), max_episode_steps=9, step_reward=-1.0)
    model = make_model(wrapped).learn(40)
    assert model.goal_buffer is wrapped.goal_buffer
    assert model.step_reward == -1.0


def test_it_takes_several_environments_that_share_a_goal_buffer():
    buffer = GoalBuffer(Corridor().observation_space)
    model = make_model(DummyVecEnv([lambda: GoalBufferWrapper(Corridor(), buffer)] * 3)).learn(60)
    assert model.goal_buffer is buffer
    assert model.world.identity is buffer.states


def test_it_wraps_a_vec_env_as_goal_wrapper_kwargs_say():
    settings = {"goal_wrapper_kwargs": {"max_episode_steps": 4}}
    model = make_model(make_vec_env(Corridor, 3), **settings).learn(90)
    assert model.env.goal_tracker.max_episode_steps == 4
    assert max(episode["l"] for episode in model.ep_info_buffer) == 4


def test_environments_that_cannot_share_a_goal_buffer_are_refused():
    message = "must be given the same goal_buffer, goal_reward, step_reward, selector_class"
    with pytest.raises(ValueError, match=message):
        make_model(DummyVecEnv([lambda: GoalBufferWrapper(Corridor()) for _ in range(2)]))
    apart = SubprocVecEnv([lambda: GoalBufferWrapper(Corridor())])
    message = "env has no goal buffer that can be shared: put a VecGoalBufferWrapper around"
    with pytest.raises(ValueError, match=message):
        make_model(apart)
    apart.close()


def environment(name):
    """Return an environment, with pictures as observations if it is one of MiniGrid's."""
    if not name.startswith("MiniGrid"):
        return gym.make(name)
    # MiniGrid needs Python 3.11.
    wrappers = pytest.importorskip("minigrid.wrappers")
    return wrappers.ImgObsWrapper(wrappers.RGBImgObsWrapper(gym.make(name)))


@pytest.mark.parametrize("name", ["MiniGrid-Empty-5x5-v0", "CartPole-v1", "FrozenLake-v1"])
def test_it_learns_saves_loads_and_is_measured_in_environments_of_others(name, tmp_path):
    policy = "CnnPolicy" if name.startswith("MiniGrid") else "MlpPolicy"
    settings = {"updates_per_step": 0.25, "seed": 0, "policy_kwargs": {"embedding_dim": 64}}
    model = ManyGoalsDQN(policy, environment(name), **settings)
    assert len(steps_of_updates(model, 1_200)) == 50
    assert parameters(model).isfinite().all()
    loaded = reloaded(model, tmp_path, environment(name))
    obs = model.get_env().reset()
    actions = [one.predict(obs, deterministic=True)[0] for one in (model, loaded)]
    np.testing.assert_array_equal(*actions)
    loaded.learn(50)
    venv = gym.vector.SyncVectorEnv([lambda: environment(name)] * 4)
    goals = model.goal_buffer.observations[:6]
    assert evaluate_mastery(loaded, venv, goals, max_steps=10).steps.shape == (6, 1)
    venv.close()


def test_each_environment_explores_by_itself():
    model = make_model(make_vec_env(Corridor, 2))
    model.exploration_rate = 0.5
    one = goal_obs(Corridor(), 1, 4)
    obs = {key: np.repeat(value[None], 4_000, axis=0) for key, value in one.items()}
    greedy = model.predict(obs, deterministic=True)[0]
    assert len(np.unique(greedy)) == 1
    # If all explored together, the share would be 0 or 2/3. The limit is 6 standard deviations.
    share = (model.predict(obs)[0] != greedy).mean()
    assert share == pytest.approx(0.5 * 2 / 3, abs=0.05)


def test_steps_of_all_environments_are_counted_and_logged(tmp_path):
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


def test_the_model_of_the_world_counts_transitions_that_the_replay_memory_has_forgotten():
    model = make_model(buffer_size=10).learn(100)
    assert model.replay_buffer.size() == 10
    assert model.world.n_counted == 100
    assert model.world.outcomes().counts.sum() == 100
    assert model.world.arrivals.sum() == 100


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("world", [Corridor, NumberedCorridor])
@pytest.mark.parametrize("settings", [{}, {"target_class": TDTargets}])
def test_each_observation_is_looked_up_once(n_envs, world, settings, monkeypatch):
    """A step shows one observation. Worlds are not reset, which would show more of them."""
    model = make_model(
        make_vec_env(world, n_envs),
        goal_wrapper_kwargs={"reset_worlds": False},
        **settings,
    )
    model.learn(30)
    n_looked_up = {"ids": 0, "add": 0, "observe": 0}

    def count(name):
        method = getattr(ExactStates, name)

        def counting(states, observations):
            n_looked_up[name] += len(observations)
            return method(states, observations)

        monkeypatch.setattr(ExactStates, name, counting)

    for name in n_looked_up:
        count(name)
    model.learn(60, reset_num_timesteps=False)
    # The method observe calls add.
    assert n_looked_up == {"ids": 0, "add": 60, "observe": 60}


@given(st.floats(1e-4, 1000.0), st.integers(1, 64))
def test_updates_are_as_many_as_asked_for(updates_per_step, n_envs):
    train_freq, gradient_steps = update_rhythm(updates_per_step, n_envs)
    assert train_freq >= 1
    assert gradient_steps >= 1
    made = Fraction(gradient_steps, train_freq * n_envs)
    assert float(made) == pytest.approx(updates_per_step, rel=0.02)


@pytest.mark.filterwarnings("ignore:.* goals fit into max_plan_bytes")
@pytest.mark.parametrize("max_plan_bytes", [100, 10_000])
def test_the_step_size_of_steady_updates_falls_from_when_learning_starts(max_plan_bytes):
    model = ManyGoalsDQN(
        "CnnPolicy",
        Corridor(image=True),
        seed=0,
        learning_starts=500,
        batch_size=256,
        goal_batch_size=16,
        updates_as_needed=False,
        target_class=PlannedTargets,
        target_kwargs={"max_plan_bytes": max_plan_bytes},
    )
    rates = []

    def note_rate(*_):
        rates.append(model.policy.optimizer.param_groups[0]["lr"])
        return True

    assert steps_of_updates(model, 600, callback=note_rate) == [525, 550, 575, 600]
    assert model.targets.plan.is_partial == (max_plan_bytes == 100)
    # The rates of the updates after steps 525, 550 and 575.
    assert rates[526::25] == pytest.approx([0.75e-3, 0.5e-3, 0.25e-3])
    # Nothing reads transitions, so none are stored.
    assert model.replay_buffer.size() == 0


def test_the_recipe_builds_the_papers_agent():
    model = ManyGoalsDQN("CnnPolicy", Corridor(image=True), **PAPER)
    assert model.goal_reward == 0.0
    assert model.step_reward == -0.1
    assert model.train_freq.frequency == 1
    assert model.gradient_steps == 1
    assert model.tau == 1.0
    assert model.target_update_interval == 250
    assert type(model.targets) is TDTargets
    assert model.targets.initial_value == pytest.approx(-10.0)
    policy = model.policy
    # A UniversalQNetwork has a product of embeddings.
    assert type(policy.q_net) is UniversalQNetwork
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
    assert group["alpha"] == 0.99
    assert group["eps"] == 1e-12
    assert group["lr"] == 1e-4
    # Epsilon falls from 1 to 0.1 over the first million of three million steps.
    steps = (0, 250_000, 1_000_000, 3_000_000)
    rates = [model.exploration_schedule(1 - n / 3e6) for n in steps]
    np.testing.assert_allclose(rates, [1.0, 0.775, 0.1, 0.1])


def test_values_are_those_by_which_it_acts():
    model = make_model().learn(100)
    cells = model.goal_buffer.observations[:3]
    batch = {"observation": cells, "desired_goal": cells[::-1].copy()}
    values = model.q_values(batch)
    assert values.shape == (3, 3)
    actions, _ = model.predict(batch, deterministic=True)
    np.testing.assert_array_equal(values.argmax(axis=1), actions)
    one = model.q_values({key: rows[0] for key, rows in batch.items()})
    np.testing.assert_allclose(one, values[0], rtol=1e-5)
    with pytest.raises(ValueError, match="desired_goal"):
        model.q_values({"observation": cells})


class OneLoss(TDTargets):
    """Has one loss in place of one for each goal."""

    def losses(self, batch, target_values):
        return super().losses(batch, target_values).mean()


def test_targets_need_a_loss_for_each_goal():
    with pytest.raises(ValueError, match=r"losses of OneLoss must have shape \(16,\), .* got \(\)"):
        make_model(target_class=OneLoss).learn(100)


def test_targets_need_only_what_is_abstract():
    class Constant(Targets):
        def sample(self, batch_size, goal_batch_size, rng):
            samples = self.context.replay_buffer.sample(batch_size)
            ids = self.context.goal_buffer.sample_ids(goal_batch_size, rng)
            goals = th.as_tensor(self.context.goal_buffer[ids])
            return UpdateBatch(samples.observations, goals, th.as_tensor(ids), samples)

        def target_values(self, batch):
            return th.ones(len(batch.goals))

        def losses(self, batch, target_values):
            states = batch.observations[:1].expand(len(batch.goals), -1)
            return (self.context.policy.q_net(states, batch.goals).mean(1) - target_values) ** 2

    model = make_model(target_class=Constant, learning_rate=0.01).learn(2_000)
    cells = model.goal_buffer.observations[:1]
    assert model.q_values({"observation": cells, "desired_goal": cells}).mean() > 0.3
