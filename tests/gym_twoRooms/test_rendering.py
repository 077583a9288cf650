"""
What people see: pictures, some compared pixel by pixel with stored ones, maps in characters, and the window. After a wanted
change, write the stored pictures anew with ``python tests/gym_twoRooms/test_rendering.py`` and look at them.
"""

import copy
import pickle
import subprocess
import sys
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import pygame
import pytest
from gymnasium.error import DependencyNotInstalled
from gymnasium.wrappers import HumanRendering, RenderCollection
from PIL import Image

from gym_twoRooms import TwoRoomsSwitchEnv
from gym_twoRooms.layout import NAMED_LAYOUTS, Layout
from gym_twoRooms.mdp import compile_layout
from gym_twoRooms.rendering import Window, draw, write

ID = "TwoRoomsSwitchSmall-v0"
SMALL = compile_layout(Layout.named("small"))
FOLDER = Path(__file__).parent / "pictures"
FOUR_DOORS = "SV.TU\nDG#EF\nSV.TU"
PICTURES = {
    "paper-shut": (NAMED_LAYOUTS["paper"], (11, [52], [False]), 32),
    "paper-open-coarse": (NAMED_LAYOUTS["paper"], (37, [55], [True]), 5),
    "small-open": (NAMED_LAYOUTS["small"], (3, [21], [True]), 16),
    "one-pixel-per-cell": (NAMED_LAYOUTS["small"], (31, [21], [False]), 1),
    "no-door-no-block": (Layout.parse("..W\n.#."), (2, [], []), 24),
    "locks": (NAMED_LAYOUTS["locks"], (13, [48], [True, False]), 24),
    "four-doors": (Layout.parse(FOUR_DOORS), (2, [], [True, False, True, False]), 24),
}


def picture(name):
    layout, parts, cell_size = PICTURES[name]
    mdp = compile_layout(layout)
    return draw(mdp, int(mdp.encode(*parts)), cell_size)


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_as_they_were(name):
    with Image.open(FOLDER / f"{name}.png") as stored:
        np.testing.assert_array_equal(picture(name), np.asarray(stored.convert("RGB")))
    assert {path.stem for path in FOLDER.iterdir()} == set(PICTURES)


@pytest.mark.parametrize("cell_size", [1, 2, 3, 8, 13])
def test_every_state_has_its_own_picture(cell_size):
    pictures = [draw(SMALL, state, cell_size) for state in range(SMALL.n_states)]
    shape = (8 * cell_size, 4 * cell_size, 3)
    assert {(picture.shape, picture.dtype) for picture in pictures} == {(shape, np.dtype(np.uint8))}
    assert len({picture.tobytes() for picture in pictures}) == SMALL.n_states


def test_maps_in_characters():
    shut = write(SMALL, int(SMALL.encode(2, [21], [False])))
    assert shut.splitlines() == ["S.@W", "....", "....", "##D#", "....", ".B..", ".W..", "...S"]
    env = TwoRoomsSwitchEnv("small", render_mode="ansi")
    # The block is elsewhere than on the map, on slippery floor; the agent hides the switch.
    env.set_state(int(SMALL.encode(31, [25], [True])))
    assert env.render().splitlines() == ["S..W", "....", "....", "##/#", "....", "....", ".B..", "...@"]
    assert len({write(SMALL, state) for state in range(SMALL.n_states)}) == SMALL.n_states
    assert write(compile_layout(Layout.parse("..W")), 2) == "..@"
    several = compile_layout(Layout.parse("S...U\nDD#F#\n..S.U\n.....\n.B.B.\n....."))
    state = int(several.encode(0, [16, 23], [True, False]))
    assert write(several, state).splitlines() == ["@...U", "//#F#", "..S.U", ".B...", "...B.", "....."]


@pytest.mark.parametrize("render_mode", [None, "rgb_array", "ansi"])
def test_rendering_leaves_observations_as_they_are(render_mode):
    plain, env = TwoRoomsSwitchEnv(), TwoRoomsSwitchEnv(render_mode=render_mode, cell_size=7)
    assert env.observation_space == plain.observation_space
    assert np.array_equal(env.reset(seed=0)[0], plain.reset(seed=0)[0])
    for action in (1, 2, 4, 3, 0):
        if render_mode is None:
            with pytest.warns(UserWarning, match="without a render mode"):
                assert env.render() is None
        elif render_mode == "rgb_array":
            env.render()[:] = 0  # the caller's own
            assert np.array_equal(env.render(), draw(env.mdp, env.state, 7))
        assert np.array_equal(env.step(action)[0], plain.step(action)[0])


def test_any_observation_can_be_drawn():
    env = TwoRoomsSwitchEnv("small", cell_size=6)
    for state in (0, 17, 219):
        assert np.array_equal(env.render_observation(env.observation_of(state)), draw(SMALL, state, 6))
    impossible = np.zeros((8, 4, 3), np.uint8)
    impossible[2, 3] = 200
    picture = env.render_observation(impossible)
    assert picture.shape == (48, 24, 3)
    assert (picture[12:18, 18:24] == 200).all()
    assert picture.sum() == 200 * 3 * 36
    with pytest.raises(ValueError, match=r"An observation has shape \(8, 4, 3\), got \(10, 10, 3\)"):
        env.render_observation(np.zeros((10, 10, 3), np.uint8))


# --- the window ------------------------------------------------------------------------------------------------------


@pytest.fixture
def env(monkeypatch):
    pygame.display.quit()
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setitem(TwoRoomsSwitchEnv.metadata, "render_fps", 1000)
    env = gym.make(ID, render_mode="human", cell_size=8).unwrapped
    yield env
    env.close()
    pygame.display.quit()


def on_screen():
    return pygame.surfarray.array3d(pygame.display.get_surface()).swapaxes(0, 1)


def test_reset_step_and_render_show_the_world(env):
    assert pygame.display.get_surface() is None
    for act in (lambda: env.reset(seed=3), lambda: env.step(1), lambda: env.step(2)):
        act()
        assert np.array_equal(on_screen(), draw(env.mdp, env.state, 8))
    env.set_state((env.state + 1) % 220)
    assert not np.array_equal(on_screen(), draw(env.mdp, env.state, 8))
    assert env.render() is None
    assert np.array_equal(on_screen(), draw(env.mdp, env.state, 8))
    assert pygame.display.get_caption()[0] == "TwoRoomsSwitch"
    for _ in range(2):
        env.close()
    assert not pygame.display.get_init()
    env.reset(seed=0)
    assert pygame.display.get_surface() is not None


def test_when_a_person_closes_the_window_the_world_goes_on_without(env):
    env.reset(seed=0)
    pygame.event.post(pygame.event.Event(pygame.KEYDOWN, key=pygame.K_a))
    pygame.event.post(pygame.event.Event(pygame.MOUSEMOTION))
    env.step(0)
    # Keys are left for others to read, and all else does not pile up.
    assert [event.type for event in pygame.event.get()] == [pygame.KEYDOWN]
    pygame.event.post(pygame.event.Event(pygame.QUIT))
    env.step(0)
    assert not pygame.display.get_init()
    env.step(0)
    env.reset()
    assert not pygame.display.get_init()
    env.close()
    env.reset()
    assert pygame.display.get_surface() is not None


def test_two_environments_share_the_window(env):
    other = TwoRoomsSwitchEnv("paper", render_mode="human", cell_size=4)
    env.reset(seed=0)
    other.reset(seed=0)
    env.close()
    assert np.array_equal(on_screen(), draw(other.mdp, other.state, 4))
    env.reset(seed=0)
    assert np.array_equal(on_screen(), draw(env.mdp, env.state, 8))
    other.close()
    assert pygame.display.get_surface() is not None


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_an_environment_with_an_open_window_can_be_copied(env, duplicate):
    env.reset(seed=0)
    other = duplicate(env)
    other.close()
    assert pygame.display.get_surface() is not None
    assert np.array_equal(other.step(1)[0], env.step(1)[0])


def test_the_frame_rate_is_kept(env):
    window, picture = Window("a"), np.zeros((4, 4, 3), np.uint8)
    window.show(picture, 20)
    start = time.perf_counter()
    for _ in range(4):
        window.show(picture, 20)
    assert time.perf_counter() - start > 0.15


def test_pygame_is_imported_when_the_first_picture_is_shown(env, monkeypatch):
    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(DependencyNotInstalled, match=r'pip install "sb3-manygoals\[render\]"'):
        env.reset(seed=0)
    code = (
        "import sys, gymnasium as gym, gym_twoRooms\n"
        "for mode in ('rgb_array', 'ansi', 'human'):\n"
        "    env = gym.make('TwoRoomsSwitchSmall-v0', render_mode=mode).unwrapped\n"
        "    mode == 'human' or (env.reset(), env.render())\n"
        "    env.close()\n"
        "assert 'pygame' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_gymnasiums_wrappers_record_and_show_it(env):
    recorded = RenderCollection(gym.make(ID, render_mode="rgb_array", cell_size=4))
    recorded.reset(seed=0)
    recorded.step(0)
    frames = recorded.render()
    assert [frame.shape for frame in frames] == [(32, 16, 3)] * 2
    shown = HumanRendering(gym.make(ID, render_mode="rgb_array", cell_size=4))
    shown.reset(seed=0)
    assert np.array_equal(on_screen(), frames[0])
    shown.close()


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in PICTURES:
        Image.fromarray(picture(name)).save(FOLDER / f"{name}.png", optimize=True)
