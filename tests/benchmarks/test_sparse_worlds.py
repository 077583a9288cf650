"""The small worlds with a rare reward."""

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.env_checker import check_env

from benchmarks.worlds import FixedGoal, SquarePicture, minigrid, two_rooms

SMALL = "TwoRoomsSwitchSmall-v0"
DOWN, RIGHT = 1, 3


def test_the_goal_is_worth_one_and_ends_the_episode():
    """The second cell of the upper room is one step to the right of the first."""
    world = gym.make(SMALL).unwrapped
    _, info = world.reset(options={"state": 0})
    goal = world.step(RIGHT)[4]["state"]
    env = FixedGoal(gym.make(SMALL), goal)
    env.reset(seed=0, options={"state": 0})
    assert env.step(DOWN)[1:4] == (0.0, False, False)
    env.reset(options={"state": 0})
    observation, reward, terminated, truncated, info = env.step(RIGHT)
    assert (reward, terminated, truncated, info["state"]) == (1.0, True, False, goal)
    np.testing.assert_array_equal(observation, world.observation_of(goal))


@pytest.mark.parametrize("goal", [0, 130])
def test_episodes_begin_wherever_the_block_is_as_at_the_goal(goal):
    """The map has 55 states for each of the four cells of its block, which is the only thing of its colour."""
    env = FixedGoal(gym.make(SMALL), goal)
    colour = gym.make(SMALL).unwrapped.observation_of(0)[5, 1]
    observation, info = env.reset(seed=0)
    again = FixedGoal(gym.make(SMALL), goal).reset(seed=0)[1]
    assert info["state"] == again["state"]
    begun = [env.reset() for _ in range(1000)]
    assert len({info["state"] for _, info in begun}) == 54
    assert goal not in {info["state"] for _, info in begun}
    for observation, _ in begun:
        np.testing.assert_array_equal((observation == colour).all(-1), (env.goal == colour).all(-1))


def test_pictures_are_made_square():
    env = SquarePicture(gym.make(SMALL))
    observation, _ = env.reset(seed=1)
    assert env.observation_space.shape == observation.shape == (8, 8, 3)
    np.testing.assert_array_equal(observation[:, :4], env.unwrapped.observation_of(env.unwrapped.state))
    assert not observation[:, 4:].any()


def test_time_is_over():
    env = two_rooms(SMALL, 0, max_episode_steps=3)
    env.reset(seed=0, options={"state": 219})
    ends = [env.step(DOWN)[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]
    with pytest.raises(ValueError, match="220"):
        two_rooms(SMALL, 220, 3)


def test_minigrid_is_seen_whole():
    pytest.importorskip("minigrid")
    env = minigrid("MiniGrid-DoorKey-5x5-v0", max_episode_steps=40)
    observation, _ = env.reset(seed=0)
    assert env.observation_space.shape == observation.shape == (20, 20, 3)
    assert env.unwrapped.max_steps == 40
    grid = env.unwrapped.grid
    wall = observation[:4, :4]
    for column in range(5):
        for row in range(5):
            cell = observation[4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
            is_wall = grid.get(column, row) is not None and grid.get(column, row).type == "wall"
            assert np.array_equal(cell, wall) == is_wall
    pictures = [env.step(action)[0] for action in (0, 0, 0, 0)]  # the agent turns around
    assert len({picture.tobytes() for picture in pictures}) == 4


def test_they_are_environments():
    check_env(two_rooms(SMALL, 7, 20), warn=False)
