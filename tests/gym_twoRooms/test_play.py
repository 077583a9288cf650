import sys

import numpy as np
import pytest

from gym_twoRooms import NAMED_LAYOUTS, Layout, TwoRoomsSwitchEnv, play
from gym_twoRooms.mdp import Action
from gym_twoRooms.play import PURSUED_COLOUR, REACHED_COLOUR, Game, main

CELL = 8
BORDER = 3


def run(monkeypatch, frames, arguments):
    """Play with the events of each frame, then press Escape. Return the actions of the world."""
    pygame = pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    events = iter([*frames, [(pygame.KEYDOWN, {"key": pygame.K_ESCAPE})]])
    actions = []
    original_step = TwoRoomsSwitchEnv.step

    def get():
        return [pygame.event.Event(kind, values) for kind, values in next(events)]

    def step(self, action):
        actions.append(int(action))
        return original_step(self, action)

    monkeypatch.setattr(pygame.event, "get", get)
    monkeypatch.setattr(TwoRoomsSwitchEnv, "step", step)
    # Zero frames a second means no limit.
    monkeypatch.setattr(play, "FPS", 0)
    main(arguments)
    assert not pygame.display.get_init()
    return actions


@pytest.mark.filterwarnings("ignore:no fast renderer")
def test_each_key_does_what_it_says(monkeypatch, tmp_path):
    pygame = pytest.importorskip("pygame")
    (tmp_path / "map.txt").write_text("S..W\n....\n##D#\n...S")
    keys = ["UP", "w", "DOWN", "s", "LEFT", "a", "RIGHT", "d", "SPACE"]
    frames = [
        [(kind, {"key": getattr(pygame, f"K_{key}")}) for kind in (pygame.KEYDOWN, pygame.KEYUP)]
        for key in keys
    ]
    arguments = ["--map", str(tmp_path / "map.txt"), "--goal", "--seed", "3", "--cell-size", "4"]
    assert run(monkeypatch, frames, arguments) == [0, 0, 1, 1, 2, 2, 3, 3, 4]


@pytest.mark.filterwarnings("ignore:no fast renderer")
@pytest.mark.parametrize("driver", ["offscreen", "dummy"])
def test_without_a_display_it_ends_and_says_what_to_do(monkeypatch, driver):
    pygame = pytest.importorskip("pygame")
    original_init = pygame.display.init

    def init():
        """Choose a driver as SDL does by itself, also on a machine that has a display."""
        original_init()
        monkeypatch.delenv("SDL_VIDEODRIVER")

    monkeypatch.setattr(pygame.display, "init", init)
    monkeypatch.setattr(pygame.display, "get_driver", lambda: driver)
    with pytest.raises(SystemExit, match=r"there is none: .*screen.*`ssh -X`.*\"ansi\""):
        run(monkeypatch, [], ["--map", "small"])
    assert not pygame.display.get_init()


@pytest.mark.filterwarnings("ignore:no fast renderer")
def test_a_map_is_a_file_or_a_name_that_nothing_of_its_name_hides(monkeypatch, tmp_path):
    layouts = []

    def make(world, *arguments):
        layouts.append(world.mdp.layout)
        return Game(world, *arguments)

    monkeypatch.setattr(play, "Game", make)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small").mkdir()
    (tmp_path / "locks").write_text("...")
    run(monkeypatch, [], [])
    for name in ("warehouse", "small", "locks", "./locks"):
        run(monkeypatch, [], ["--map", name])
    named = [NAMED_LAYOUTS[name] for name in ("paper", "warehouse", "small", "locks")]
    assert layouts == [*named, Layout.parse("...")]


@pytest.mark.filterwarnings("ignore:no fast renderer")
def test_the_trained_agent_reaches_the_goal_that_is_clicked(monkeypatch, capsys):
    pygame = pytest.importorskip("pygame")
    games = []

    def make(*arguments):
        games.append(Game(*arguments))
        return games[-1]

    monkeypatch.setattr(play, "Game", make)

    def click(column, button):
        place = {"pos": (BORDER + CELL // 2 + CELL * column, BORDER + CELL // 2), "button": button}
        return [(pygame.MOUSEBUTTONDOWN, place), (pygame.MOUSEBUTTONUP, place)]

    # The other buttons, of which the wheel has two, set no goal.
    clicks = [click(0, pygame.BUTTON_LEFT), *(click(2, button) for button in (2, 3, 4, 5))]
    arguments = ["--agent", "--seed", "0", "--cell-size", str(CELL)]
    run(monkeypatch, [[], *clicks, *[[]] * 400], arguments)
    (game,) = games
    assert int(game.world.mdp.agent[game.goal]) == 0
    assert game.reached
    assert "Goal reached in " in capsys.readouterr().out


def test_what_cannot_be_played_is_refused(capsys, tmp_path, monkeypatch):
    (tmp_path / "bad.txt").write_text("..\n.x")
    (tmp_path / "maps").mkdir()
    monkeypatch.chdir(tmp_path)
    for arguments, message in (
        (
            ["--map", "none.txt"],
            "mansion, or a file with a map, got none.txt, which cannot be read: No such file",
        ),
        (["--map", "maps"], "a file with a map, got maps, which cannot be read: "),
        (["--map", "bad.txt"], "bad.txt: Unknown symbol 'x' at row 1, column 1"),
        (["--cell-size", "0"], "cell_size must be"),
        (["--seed", "-1"], "argument --seed: must be at least 0, got -1"),
        (["--agent", "--map", "small"], "not allowed with argument --agent"),
    ):
        with pytest.raises(SystemExit):
            main(arguments)
        assert message in capsys.readouterr().err
    for missing, arguments in (
        ("sb3_manygoals.pretrained", ["--agent"]),
        ("pygame", ["--map", "small"]),
    ):
        monkeypatch.setitem(sys.modules, missing, None)
        with pytest.raises(SystemExit, match="pip install"):
            main(arguments)


@pytest.fixture
def game():
    return Game(
        TwoRoomsSwitchEnv("small", cell_size=CELL, slip_probability=0.0), goals=True, seed=0
    )


def state(game, agent, block=21, is_open=False):
    return int(game.world.mdp.encode(agent, [block], [is_open]))


def test_the_frames_turn_green_at_the_goal_and_the_next_key_brings_the_next(game, capsys):
    game.goal = state(game, 5)
    game.world.set_state(state(game, 4))
    shown = game.render()
    assert shown.shape == (8 * CELL + 2 * BORDER, 2 * (4 * CELL + 2 * BORDER), 3)
    assert tuple(shown[0, 0]) == PURSUED_COLOUR
    goal = game.world.render_observation(game.world.observation_of(game.goal))
    np.testing.assert_array_equal(shown[BORDER:-BORDER, -BORDER - 4 * CELL : -BORDER], goal)
    game.press(Action.RIGHT)
    assert capsys.readouterr().out == "Goal reached in 1 step.\n"
    assert tuple(game.render()[0, 0]) == REACHED_COLOUR
    game.press(Action.UP)
    assert tuple(game.render()[0, 0]) == PURSUED_COLOUR


def test_an_agent_keeps_its_goal_and_returns_to_it(game):
    game.agent = lambda observation, goal: Action.RIGHT
    game.goal = state(game, 5)
    game.world.set_state(state(game, 4))
    game.follow()
    # At the goal the agent stays.
    game.follow()
    assert game.reached
    game.press(Action.LEFT)
    assert not game.reached
    game.follow()
    assert game.reached


def test_the_mouse_moves_one_thing_of_either_picture(game, capsys):
    def drag(picture, start, end):
        left = picture * (4 * CELL + 2 * BORDER) + BORDER
        game.drag(
            *((left + CELL * (cell % 4), BORDER + CELL * (cell // 4)) for cell in (start, end))
        )
        return game.goal

    game.world.set_state(state(game, 4))
    door = 14
    assert drag(0, 6, 6) == state(game, 6)
    assert drag(1, door, door) == state(game, 6, is_open=True)
    assert drag(1, 5, door) == state(game, door, is_open=True)
    assert drag(1, 21, 22) == state(game, door, 22, True)
    assert drag(0, 21, 25) == state(game, 4, 25)
    # Cell 12 is a wall, so the goal stays as it is.
    assert drag(1, 9, 12) == state(game, 4, 25)
    assert "There is no state with the agent in cell 12" in capsys.readouterr().out
    assert drag(0, 4, 4) == game.world.state
    # If the mouse is released beside the pictures, the nearest cell counts.
    game.drag((BORDER, BORDER), (-3, BORDER))
    assert game.goal == state(game, 0)
    game.drag((4 * CELL + 3 * BORDER, BORDER), (99 * CELL, BORDER))
    assert game.goal == state(game, 3)
