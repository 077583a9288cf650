import json
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch as th

from benchmarks.exact_targets import ExactTargetsDQN, exact_values
from benchmarks.mastery import PRESETS, MasteryConfig, saved_config
from gym_twoRooms.layout import Layout
from gym_twoRooms.mdp import compile_layout
from gym_twoRooms.oracle import optimal_values

WORLD = "TwoRoomsSwitchSmall-v0"
AGENT = replace(
    PRESETS["small"].agent,
    learning_starts=200,
    batch_size=12,
    goal_batch_size=20,
    features_dim=32,
    embedding_dim=32,
    goal_sampling="uniform",
)


@pytest.fixture(scope="module")
def model():
    model = AGENT.make(WORLD, 8_000, 0, "cpu", algorithm=ExactTargetsDQN)
    model.learn(8_000)
    return model


def loss_by_hand(model, batch, goals):
    """Pair by pair, states found by comparing pictures."""
    mdp = gym.make(WORLD).unwrapped.mdp
    exact = optimal_values(mdp, np.arange(mdp.n_states))
    number = {picture.tobytes(): state for state, picture in enumerate(mdp.observations)}
    losses = []
    for goal in goals:
        errors = []
        for observation, action in zip(batch.observations, batch.actions, strict=True):
            with th.no_grad():
                q = model.q_net(observation[None], goal[None])[0, action].item()
            errors.append(q - exact[number[observation.numpy().tobytes()], action, number[goal.numpy().tobytes()]])
        losses.append(np.mean(np.square(errors)))
    return losses


def test_the_loss_is_the_squared_distance_from_exact_values(model):
    batch = model.replay_buffer.sample(6)
    goals = th.cat([batch.next_observations[:2], th.as_tensor(model.goal_buffer[np.array([3, 0, 7])])])
    losses = model.goal_losses(batch, goals, th.arange(5))  # ids that are wrong: they do not matter
    assert losses.tolist() == pytest.approx(loss_by_hand(model, batch, goals), rel=1e-3)


def test_near_pairs_can_count_more(model):
    batch = model.replay_buffer.sample(6)
    goals = batch.next_observations[:2]
    model.near_decay = 0.5
    near = model.goal_losses(batch, goals, th.arange(2))
    model.near_decay = 1.0
    assert not th.allclose(near, model.goal_losses(batch, goals, th.arange(2)), rtol=0.05)


def test_what_the_target_network_says_does_not_matter(model):
    batch = model.replay_buffer.sample(6)
    goals = batch.next_observations[:2]
    losses = model.goal_losses(batch, goals, th.arange(2))
    with th.no_grad():
        model.q_net_target.head.bias.add_(3.0)
    assert th.equal(model.goal_losses(batch, goals, th.arange(2)), losses)


def test_values_come_near_the_exact_ones(model):
    mdp = gym.make(WORLD).unwrapped.mdp
    pictures = th.as_tensor(mdp.observations.copy())
    best = exact_values(mdp, 0.99, 0.0, -0.1, tolerance=1e-4).max(axis=1)
    with th.no_grad():
        features = model.q_net.trunk(pictures)
        q = model.q_net.pairwise(model.q_net.state_embedding(features), model.q_net.goal_embedding(features)).amax(dim=2)
    # the best constant would leave all of it
    assert np.square(q.numpy() - best).mean() < best.var() / 2


def test_exact_values_are_those_of_planning_whatever_the_world_and_the_rewards():
    mdp = compile_layout(Layout.named("small"))
    values = exact_values(mdp, 0.9, 1.0, -0.5, tolerance=5e-4)
    assert values.shape == (mdp.n_states, mdp.n_actions, mdp.n_states)
    assert values.dtype == np.float32
    goals = np.array([0, 17, mdp.n_states - 1])
    np.testing.assert_allclose(values[:, :, goals], optimal_values(mdp, goals, 0.9, -0.5, 1.0), atol=5e-4)


@pytest.mark.parametrize(
    "option",
    [{"double_q": True}, {"action_gap": 0.5}, {"n_steps": 3}, {"plan_interval": 100}, {"goal_sampling": "pursued"}],
)
def test_options_about_targets_are_refused(option):
    with pytest.raises(ValueError, match=next(iter(option))):
        replace(AGENT, **option).make(WORLD, 1_000, 0, "cpu", algorithm=ExactTargetsDQN)


def test_a_run_is_told_and_says_so(tmp_path, monkeypatch):
    subjects = []
    monkeypatch.setattr("benchmarks.mastery.carry_out", lambda config, folder, subject: subjects.append(subject))
    folder = MasteryConfig(env_id=WORLD, agent=AGENT, output=tmp_path, exact_targets=True).run()
    assert isinstance(subjects[0].model, ExactTargetsDQN)
    assert json.loads((folder / "config.json").read_text())["settings"]["exact_targets"] is True
    assert saved_config(folder).exact_targets
