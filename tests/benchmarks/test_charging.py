"""The warehouse with a battery, against moves computed by hand and a search of its own."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from benchmarks.charging import Action
from benchmarks.worlds import World
from sb3_manygoals import GymnasiumVecEnv

NAME = "benchmarks.charging:Charging-v0"
CHARGER = (1, 1)
UP, DOWN, LEFT, RIGHT, PULL_UP, PULL_DOWN, PULL_LEFT, PULL_RIGHT = Action


def seen(observation):
    """Return the cell of the robot, those of the boxes, and the battery."""
    assert (observation[:4, :, 2].nonzero()[0], observation[:4, :, 2].nonzero()[1]) == ([1], [1])
    assert len(np.unique(observation[4])) == 1
    (robot,) = np.argwhere(observation[:4, :, 0]).tolist()
    boxes = [tuple(box) for box in np.argwhere(observation[:4, :, 1]).tolist()]
    return tuple(robot), boxes, int(observation[4, 0, 0]) / 51


def walk(*actions):
    """Return what is seen after the start and these actions."""
    env = gym.make(NAME)
    observation, _ = env.reset()
    for action in actions:
        observation, reward, terminated, truncated, _ = env.step(action)
        assert (reward, terminated, truncated) == (0.0, False, False)
    return seen(observation)


def test_the_robot_begins_on_the_charger_between_two_boxes():
    assert walk() == (CHARGER, [(1, 2), (2, 1)], 5)
    check_env(gym.make(NAME).unwrapped, skip_render_check=True)


@pytest.mark.parametrize(
    ("actions", "robot", "boxes", "battery"),
    [
        # A step into a free cell, and back to the charger.
        ([UP], (0, 1), [(1, 2), (2, 1)], 4),
        ([UP, DOWN], CHARGER, [(1, 2), (2, 1)], 5),
        # The edge stops the robot, and the step still takes a part of the battery.
        ([UP, UP], (0, 1), [(1, 2), (2, 1)], 3),
        # A box is pushed to the right, and stays at the edge.
        ([RIGHT], (1, 2), [(1, 3), (2, 1)], 4),
        ([RIGHT, RIGHT], (1, 2), [(1, 3), (2, 1)], 3),
        # On the charger a step that changes nothing leaves the battery full.
        ([RIGHT, LEFT, PULL_DOWN], CHARGER, [(1, 3), (2, 1)], 5),
        # A box that is pulled follows, also onto the charger.
        ([RIGHT, PULL_LEFT], CHARGER, [(1, 2), (2, 1)], 5),
        ([PULL_LEFT], (1, 0), [(1, 1), (2, 1)], 4),
        ([PULL_UP], (0, 1), [(1, 1), (1, 2)], 4),
        # A pull does not push.
        ([PULL_RIGHT], CHARGER, [(1, 2), (2, 1)], 5),
        # With nothing behind it, a pull is a step.
        ([UP, PULL_LEFT], (0, 0), [(1, 2), (2, 1)], 3),
        # Two boxes in a row do not move.
        ([PULL_UP, LEFT, DOWN, RIGHT], (1, 0), [(1, 1), (1, 2)], 1),
    ],
)
def test_moves_computed_by_hand(actions, robot, boxes, battery):
    assert walk(*actions) == (robot, boxes, battery)


def test_an_empty_robot_is_towed_to_the_charger_and_the_boxes_stay():
    away = [RIGHT, UP, UP, UP, UP]
    assert walk(*away) == ((0, 2), [(1, 3), (2, 1)], 0)
    for action in Action:
        assert walk(*away, action) == (CHARGER, [(1, 3), (2, 1)], 5)


def test_the_world_begins_anew_if_a_box_blocks_the_charger_when_the_battery_is_empty():
    away = [PULL_UP, UP, UP, UP, UP]
    assert walk(*away) == ((0, 1), [(1, 1), (1, 2)], 0)
    for action in Action:
        assert walk(*away, action) == walk()


START = (1 + 1j, frozenset({1 + 2j, 2 + 1j}), 5)
"""The start as a robot, boxes and battery, where cells are complex numbers."""


def rule(robot, boxes, battery, action):
    """Return the next state, by rules that are written otherwise than those of the world."""
    if battery == 0:
        return START if 1 + 1j in boxes else (1 + 1j, boxes, 5)
    step = (-1, 1, -1j, 1j)[action % 4]
    cells = {row + column * 1j for row in range(4) for column in range(4)}
    target = robot + step
    pulls = action >= 4
    if pulls:
        moved = {robot if box == robot - step else box for box in boxes}
    else:
        moved = {target + step if box == target else box for box in boxes}
    # Nothing may leave the warehouse, and the robot and the boxes stand on three cells.
    if {target, *moved} <= cells and len({target, *moved}) == 3:
        robot = target
        boxes = frozenset(moved)
    return robot, boxes, 5 if robot == 1 + 1j else battery - 1


def test_the_tables_have_the_states_that_a_search_finds_and_its_steps():
    numbers = {START: 0}
    found = [START]
    for state in found:
        for action in range(8):
            after = rule(*state, action)
            if after not in numbers:
                numbers[after] = len(found)
                found.append(after)
    pictures = np.zeros((len(found), 5, 4, 3), dtype=np.uint8)
    pictures[:, 1, 1, 2] = 255
    for picture, (robot, boxes, battery) in zip(pictures, found, strict=True):
        picture[int(robot.real), int(robot.imag), 0] = 255
        picture[4] = 51 * battery
        for box in boxes:
            picture[int(box.real), int(box.imag), 1] = 255
    tables = World(NAME).tables
    states = tables.states_of(pictures)
    assert len(tables) == len(found) == len(set(states.tolist()) - {-1}) == 6_050
    after = [[numbers[rule(*state, action)] for action in range(8)] for state in found]
    expected = states[np.array(after)]
    np.testing.assert_array_equal(tables.next_states.reshape(-1, 8)[states], expected)
    # Every state leads back to the start, from which all were found.
    back = tables.ceiling(200)(tables.observations, pictures[:1].repeat(6_050, axis=0))
    assert (back == 1.0).all()


def test_many_worlds_step_as_one_and_as_single_ones_do():
    many = World(NAME).make_many(3, seed=0)
    assert isinstance(many, GymnasiumVecEnv)
    envs = [gym.make(NAME) for _ in range(3)]
    np.testing.assert_array_equal(many.reset(), [env.reset()[0] for env in envs])
    rng = np.random.default_rng(0)
    for _ in range(200):
        actions = rng.integers(8, size=3)
        observations, rewards, dones, _ = many.step(actions)
        expected = [env.step(action)[0] for env, action in zip(envs, actions, strict=True)]
        np.testing.assert_array_equal(observations, expected)
        assert not np.any([rewards, dones])
    # One of them can be reset alone.
    many.env_method("reset", indices=[1])
    observations = many.step(np.full(3, UP))[0]
    assert seen(observations[1]) == walk(UP)
    np.testing.assert_array_equal(observations[0], envs[0].step(UP)[0])
