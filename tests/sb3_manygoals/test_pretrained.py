import gymnasium as gym
import pytest

import gym_twoRooms  # noqa: F401
from sb3_manygoals import evaluate_mastery
from sb3_manygoals.pretrained import load_pretrained


def test_the_agent_of_the_papers_map_reaches_its_goals():
    model = load_pretrained("TwoRoomsSwitch-v0", device="cpu")
    assert (len(model.goal_buffer), model.goal_buffer.n_added) == (
        5728,
        0,
    )  # it has met none itself
    assert model.exploration_rate == 0.1  # not 1: predict() without deterministic=True
    goals = model.goal_buffer.observations[::57]
    worlds = gym.make_vec("TwoRoomsSwitch-v0", num_envs=len(goals))
    assert evaluate_mastery(model, worlds, goals, seed=0).rate > 0.98
    fitted = model.policy.q_net.trunk[0].mean.clone()
    assert (
        model.learn(1_010).policy.q_net.trunk[0].mean == fitted
    ).all()  # inputs stay as the weights know them


def test_there_is_no_agent_for_other_environments():
    with pytest.raises(
        ValueError, match=r"env_id must be one of TwoRoomsSwitch-v0.*got 'CartPole-v1'"
    ):
        load_pretrained("CartPole-v1")
