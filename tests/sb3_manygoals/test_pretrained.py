"""Trained agents that come with the package."""

import gymnasium as gym
import pytest

import gym_twoRooms  # noqa: F401
from sb3_manygoals import evaluate_mastery
from sb3_manygoals.pretrained import load_pretrained


def test_the_agent_of_the_papers_map_reaches_its_goals():
    model = load_pretrained("TwoRoomsSwitch-v0", device="cpu")
    # The model knows the goals, but no environment has shown one to it.
    assert len(model.goal_buffer) == 5728
    assert model.goal_buffer.states.n_added == 0
    assert model.world.n_counted == 0
    # With a rate of 1, predict() without deterministic=True would be random.
    assert model.exploration_rate == 0.1
    goals = model.goal_buffer.observations[::57]
    worlds = gym.make_vec("TwoRoomsSwitch-v0", num_envs=len(goals))
    assert evaluate_mastery(model, worlds, goals, seed=0).rate > 0.98
    # Training does not change how inputs are standardized, because the weights know it.
    fitted = model.policy.q_net.trunk[0].mean.clone()
    model.learn(1_010)
    assert (model.policy.q_net.trunk[0].mean == fitted).all()


def test_there_is_no_agent_for_other_environments():
    with pytest.raises(
        ValueError, match=r"env_id must be one of TwoRoomsSwitch-v0.*got 'CartPole-v1'"
    ):
        load_pretrained("CartPole-v1")
