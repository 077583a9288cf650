"""What checkpoints know of other packages."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecMonitor

from sb3_manygoals.checkpoint import packages
from tests.sb3_manygoals.checkpoint.kinds import cartpole, dummy


def test_things_in_a_grid_are_plain_objects_but_worlds_and_spaces_are_not():
    world_object = pytest.importorskip("minigrid.core.world_object")
    assert packages.is_plain_object(world_object.Ball())
    assert not packages.is_plain_object(gym.make("MiniGrid-DoorKey-5x5-v0").unwrapped)
    assert not packages.is_plain_object(spaces.Discrete(2))
    assert not packages.is_plain_object(np.zeros(2))


def test_attributes_of_wrappers_are_left_out_with_those_of_their_bases():
    limited = gym.wrappers.TimeLimit(cartpole(), 3)
    assert packages.left_out_attributes(limited) == {"_saved_kwargs"}
    assert packages.left_out_attributes(VecMonitor(dummy(cartpole, 1))) == {"class_attributes"}
    assert packages.left_out_attributes(spaces.Discrete(2)) == set()
