"""What checkpoints know of other packages, and that they know nothing of goals and learners."""

import ast
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecMonitor

from sb3_manygoals import checkpoint
from sb3_manygoals.checkpoint import packages
from tests.sb3_manygoals.checkpoint.kinds import cartpole, dummy

FOLDER = Path(checkpoint.__file__).parent


def imported_modules(path):
    """
    Return the modules that a file imports.

    :param path: of the file
    :return: a set of names
    """
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            names.add(node.module)
        elif isinstance(node, ast.Import):
            names |= {one.name for one in node.names}
    return names


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_checkpoints_import_nothing_of_this_project_but_checks_of_arguments(path):
    ours = {name for name in imported_modules(path) if name.startswith("sb3_manygoals")}
    others = {name for name in ours if not name.startswith("sb3_manygoals.checkpoint")}
    assert others <= {"sb3_manygoals.validation"}


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
