"""What the learner promises as a whole: SB3's DQN, few arguments, updates at the rate asked for, the paper's recipe."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from torch import nn

from sb3_manygoals import ManyGoalsDQN
from sb3_manygoals.many_goals_dqn import PAPER, TDTargets
from sb3_manygoals.many_goals_dqn.many_goals_dqn import update_rhythm
from sb3_manygoals.networks import PaddedCNN, UniversalQNetwork
from tests.sb3_manygoals.many_goals_dqn.models import make_model
from tests.sb3_manygoals.worlds import Corridor


def test_it_is_sb3s_dqn():
    model = make_model()
    assert isinstance(model, DQN)
    assert model.learn(60) is model
    assert model.get_parameters().keys() == {"policy", "policy.optimizer"}
    for name in ("q_net", "q_net_target", "exploration_rate", "replay_buffer"):
        assert getattr(model, name) is not None


@given(st.floats(1e-4, 1000.0), st.integers(1, 64))
def test_updates_are_as_many_as_asked_for(updates_per_step, n_envs):
    train_freq, gradient_steps = update_rhythm(updates_per_step, n_envs)
    assert train_freq >= 1
    assert gradient_steps >= 1
    made = Fraction(gradient_steps, train_freq * n_envs)
    assert float(made) == pytest.approx(updates_per_step, rel=0.02)


@pytest.mark.parametrize(("updates_per_step", "n_envs"), [(1.0, 1), (0.25, 1), (0.5, 2), (2.0, 3), (0.1, 8), (1 / 3, 1)])
def test_updates_that_are_made(updates_per_step, n_envs):
    model = make_model(make_vec_env(Corridor, n_envs), updates_per_step=updates_per_step, learning_starts=0, batch_size=4)
    model.learn(240)
    assert model._n_updates == pytest.approx(240 * updates_per_step, abs=2 * max(1, updates_per_step * n_envs))


def test_the_recipe_builds_the_papers_agent():
    model = ManyGoalsDQN("CnnPolicy", Corridor(image=True), **PAPER)
    assert (model.buffer_size, model.learning_starts) == (10_000, 10_000)
    assert (model.batch_size, model.goal_batch_size) == (32, 16)
    assert (model.gamma, model.goal_reward, model.step_reward) == (0.99, 0.0, -0.1)
    assert (model.train_freq.frequency, model.gradient_steps) == (1, 1)
    assert model.learning_rate == 1e-4
    assert type(model.targets) is TDTargets
    assert (model.targets.goal_sampling, model.targets.update_interval, model.targets.tau) == ("uniform", 250, 1.0)
    assert model.targets.initial_value == pytest.approx(-10.0)
    (episodes,) = model.env.get_attr("goal_tracker")
    assert (episodes.max_episode_steps, episodes.reset_worlds) == (50, True)
    policy = model.policy
    assert type(policy.q_net) is UniversalQNetwork  # a product of embeddings
    assert policy.q_net_ema is None
    trunk = list(policy.q_net.trunk)
    assert trunk[0].standardize
    assert isinstance(trunk[1], PaddedCNN)
    assert len(trunk) == 2
    assert any(isinstance(layer, nn.ReLU) for layer in trunk[1].net)
    shapes = [tuple(weights.shape) for name, weights in policy.q_net.named_parameters() if name.endswith("weight")]
    assert shapes[0] == (16, 3, 2, 2)
    assert shapes[-3:] == [(1024, 512), (1024, 512), (3, 1024)]
    assert type(policy.optimizer) is RMSpropTFLike
    (group,) = policy.optimizer.param_groups
    assert (group["alpha"], group["eps"], group["lr"]) == (0.99, 1e-12, 1e-4)
    # epsilon from 1 to 0.1 over the first million of three million steps
    rates = [model.exploration_schedule(1 - steps / 3e6) for steps in (0, 250_000, 1_000_000, 3_000_000)]
    np.testing.assert_allclose(rates, [1.0, 0.775, 0.1, 0.1])
