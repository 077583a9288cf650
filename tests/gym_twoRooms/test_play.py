import os
import re
import subprocess
import sys

import numpy as np
import pytest

from gym_twoRooms import TwoRoomsSwitchEnv
from gym_twoRooms.mdp import Action
from gym_twoRooms.play import REACHED_COLOUR, WAIT, Player, main

DRIVER = """
import pygame
from gym_twoRooms.env import TwoRoomsSwitchEnv
from gym_twoRooms.play import main

def frames():
    for key in {keys!r}:
        for kind in (pygame.KEYDOWN, pygame.KEYUP):
            yield [pygame.event.Event(kind, key=pygame.key.key_code(key))]
    yield [pygame.event.Event(pygame.KEYDOWN, key=pygame.K_ESCAPE)]

def step(self, action, real=TwoRoomsSwitchEnv.step):
    print("action", int(action), flush=True)
    return real(self, action)

events = frames()
pygame.event.get, TwoRoomsSwitchEnv.step = lambda: next(events), step
main({arguments!r})
assert not pygame.display.get_init()
"""


def test_each_key_does_what_it_says(tmp_path):
    (tmp_path / "map.txt").write_text("S..W\n....\n##D#\n...S")
    keys = ["up", "w", "down", "s", "left", "a", "right", "d", "space"]
    arguments = ["--map", str(tmp_path / "map.txt"), "--goal", "--seed", "3", "--cell-size", "4"]
    code = DRIVER.format(keys=keys, arguments=arguments)
    # Another process, since gymnasium.utils.play changes the backend of matplotlib.
    environment = {**os.environ, "SDL_VIDEODRIVER": "dummy"}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert "Warning" not in result.stderr
    assert re.findall("action (.)", result.stdout) == list("001122334")


def test_what_cannot_be_played_is_refused(capsys, tmp_path, monkeypatch):
    (tmp_path / "bad.txt").write_text("..\n.x")
    monkeypatch.chdir(tmp_path)
    for arguments, message in (
        (["--map", "none.txt"], "No such file"),
        (["--map", "bad.txt"], "bad.txt: Unknown symbol 'x' at row 1, column 1"),
        (["--cell-size", "0"], "cell_size must be"),
    ):
        with pytest.raises(SystemExit):
            main(arguments)
        assert message in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(SystemExit, match="pip install"):
        main(["--layout", "small"])


@pytest.fixture
def player():
    player = Player(TwoRoomsSwitchEnv("small", render_mode="rgb_array", cell_size=8, slip_probability=0.0), goals=False)
    player.reset(seed=0)
    return player


def test_waiting_takes_no_time_and_a_key_held_down_acts_once(player):
    player.world.set_state(int(player.world.mdp.encode(31, [21], [False])))
    numbers, cells = player.world.np_random.bit_generator.state, []
    player.step(WAIT)
    assert player.world.np_random.bit_generator.state == numbers
    for action in (WAIT, Action.UP, Action.UP, Action.LEFT, WAIT, Action.LEFT, Action.LEFT):
        player.step(action)
        cells.append(int(player.world.mdp.agent[player.world.state]))
    assert cells == [31, 27, 27, 26, 26, 25, 25]


def test_the_frame_turns_green_at_the_goal_and_the_next_key_brings_the_next(player, capsys):
    world = player.world
    player.goals, shape = True, (8 * 8 + 6, 2 * (4 * 8 + 6), 3)
    assert np.array_equal(player.render(), world.render())
    player.reset(seed=0)
    assert player.render().shape == shape
    np.testing.assert_array_equal(player.render()[3:-3, -35:-3], world.render_observation(player.goal))
    player.goal = world.observation_of(int(world.mdp.encode(5, [21], [False])))
    world.set_state(int(world.mdp.encode(4, [21], [False])))
    assert tuple(player.render()[0, 0]) != REACHED_COLOUR
    player.step(Action.RIGHT)
    assert capsys.readouterr().out == "Goal reached in 1 step.\n"
    player.step(WAIT)
    assert tuple(player.render()[0, 0]) == REACHED_COLOUR
    player.step(Action.UP)
    assert tuple(player.render()[0, 0]) != REACHED_COLOUR
