import os
import subprocess
import sys

import numpy as np
import pytest

from gym_twoRooms import TwoRoomsSwitchEnv
from gym_twoRooms.mdp import Action
from gym_twoRooms.play import REACHED_COLOUR, REPEAT_AFTER, REPEAT_EVERY, WAIT, Player, main

DRIVER = """
import sys
import numpy as np
import pygame
from gym_twoRooms.env import TwoRoomsSwitchEnv
from gym_twoRooms.play import main

frames = [line.split() for line in {frames!r}]  # keys down in each frame; in the end the window is closed
real_get, real_step, down = pygame.event.get, TwoRoomsSwitchEnv.step, set()

def get():
    keys = set(frames.pop(0)) if frames else None
    if keys is None:
        pygame.event.post(pygame.event.Event({end}))
    else:
        for key in keys ^ down:
            kind = pygame.KEYDOWN if key in keys else pygame.KEYUP
            pygame.event.post(pygame.event.Event(kind, key=pygame.key.key_code(key)))
        down.symmetric_difference_update(keys ^ down)
    return real_get()

def step(self, action):
    print("action", int(action), flush=True)
    return real_step(self, action)

pygame.event.get, TwoRoomsSwitchEnv.step = get, step
main({arguments!r})
assert not pygame.display.get_init()
"""


def play(*arguments, frames=(), end="pygame.QUIT"):
    """What is printed when the world is played without a screen, the keys given being down in each frame."""
    code = DRIVER.format(frames=list(frames), arguments=list(arguments), end=end)
    # Another process, since gymnasium.utils.play changes the backend of matplotlib.
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "SDL_VIDEODRIVER": "dummy"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    assert "Warning" not in result.stderr
    return [line for line in result.stdout.splitlines() if line.startswith(("action", "Goal"))]


def refusal(capsys, *arguments):
    with pytest.raises(SystemExit):
        main(arguments)
    return capsys.readouterr().err


def test_each_key_does_what_it_says():
    keys = ["up", "w", "down", "s", "left", "a", "right", "d", "space"]
    frames = [line for key in keys for line in (key, "")]
    assert play("--layout", "small", "--cell-size", "4", frames=frames) == [f"action {n}" for n in (0, 0, 1, 1, 2, 2, 3, 3, 4)]


def test_a_goal_is_reached_on_the_keyboard(tmp_path):
    file = tmp_path / "two-cells.txt"
    file.write_text("..\n")
    # Both cells once, whichever is the first: one is the goal, and then the other.
    frames = ["right", "", "left", "", "right", ""]
    lines = play("--map", str(file), "--goal", "--seed", "3", frames=frames, end="pygame.KEYDOWN, key=pygame.K_ESCAPE")
    assert [line for line in lines if line.startswith("action")] == ["action 3", "action 2", "action 3"]
    assert lines[-1] == "Goal reached in 1 step."
    assert 2 <= sum(line.startswith("Goal") for line in lines) <= 3


def test_what_cannot_be_played_is_refused(capsys, tmp_path):
    assert "No such file" in refusal(capsys, "--map", str(tmp_path / "none.txt"))
    (tmp_path / "bad.txt").write_text("..\n.x")
    assert "bad.txt: Unknown symbol 'x' at row 1, column 1" in refusal(capsys, "--map", str(tmp_path / "bad.txt"))
    assert "invalid choice: 'none'" in refusal(capsys, "--layout", "none")
    assert "not allowed with" in refusal(capsys, "--layout", "small", "--map", "a.txt")
    assert "cell_size must be" in refusal(capsys, "--cell-size", "0")


def test_without_pygame_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(SystemExit, match="pip install"):
        main(["--layout", "small"])


@pytest.fixture
def player():
    player = Player(TwoRoomsSwitchEnv("small", render_mode="rgb_array", cell_size=8, slip_probability=0.0), goals=True)
    player.reset(seed=0)
    return player


def test_waiting_takes_no_time_and_a_key_held_down_repeats(player, monkeypatch):
    acted = []
    monkeypatch.setattr(player.world, "step", lambda action, real=player.world.step: acted.append(action) or real(action))
    state = player.world.np_random.bit_generator.state

    def frames(action, count):
        """The frames in which the world acts while a key is down."""
        before, found = len(acted), []
        for frame in range(count):
            player.step(action)
            if len(acted) > before:
                found.append(frame)
                before = len(acted)
        return found

    assert frames(WAIT, 5) == []
    assert player.world.np_random.bit_generator.state == state
    assert frames(Action.UP, REPEAT_AFTER + 2 * REPEAT_EVERY) == [0, REPEAT_AFTER, REPEAT_AFTER + REPEAT_EVERY]
    assert frames(Action.DOWN, 2) == [0]
    assert frames(WAIT, 1) == []
    assert frames(Action.DOWN, 2) == [0]


def test_the_frame_turns_green_at_the_goal_and_the_next_key_brings_the_next(player, capsys):
    world = player.world
    shape = player.render().shape
    assert shape == (8 * 8 + 6, 2 * (4 * 8 + 6), 3)
    np.testing.assert_array_equal(player.render()[3:-3, -35:-3], world.render_observation(player.goal))
    player.goal = world.observation_of(int(world.mdp.encode(5, [21], [False])))
    world.set_state(int(world.mdp.encode(4, [21], [False])))
    assert tuple(player.render()[0, 0]) != REACHED_COLOUR
    player.step(Action.RIGHT)
    assert capsys.readouterr().out == "Goal reached in 1 step.\n"
    player.step(WAIT)
    assert tuple(player.render()[0, 0]) == REACHED_COLOUR
    assert player.render().shape == shape
    old = player.goal
    player.step(Action.UP)
    assert tuple(player.render()[0, 0]) != REACHED_COLOUR
    assert not np.array_equal(player.goal, old)


def test_without_goals_the_world_is_all_there_is_to_see():
    world = TwoRoomsSwitchEnv("small", render_mode="rgb_array", cell_size=8)
    player = Player(world, goals=False)
    player.reset(seed=0)
    assert np.array_equal(player.render(), world.render())
