import copy
import pickle
import subprocess
import sys
import time

import gymnasium as gym
import numpy as np
import pygame
import pytest
from gymnasium.error import DependencyNotInstalled
from gymnasium.wrappers import HumanRendering, RenderCollection

from gym_twoRooms import TwoRoomsSwitchEnv
from gym_twoRooms.rendering import Window


@pytest.fixture(autouse=True)
def headless(monkeypatch):
    pygame.display.quit()
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    yield
    pygame.display.quit()


@pytest.fixture
def env(monkeypatch):
    monkeypatch.setitem(TwoRoomsSwitchEnv.metadata, "render_fps", 1000)
    env = gym.make("TwoRoomsSwitchSmall-v0", render_mode="human", cell_size=8).unwrapped
    yield env
    env.close()


def on_screen():
    return pygame.surfarray.array3d(pygame.display.get_surface()).swapaxes(0, 1)


def test_reset_and_step_show_the_world(env):
    assert pygame.display.get_surface() is None
    seen = TwoRoomsSwitchEnv("small", cell_size=8)
    for act in (lambda: env.reset(seed=3), lambda: env.step(1), lambda: env.step(2)):
        observation = act()[0]
        assert np.array_equal(on_screen(), seen.render_observation(observation))
    assert env.render() is None
    assert pygame.display.get_caption()[0] == "TwoRoomsSwitch"


def test_render_shows_a_state_that_was_set(env):
    env.reset(seed=0)
    observation = env.set_state(7)
    assert not np.array_equal(on_screen(), env.render_observation(observation))
    env.render()
    assert np.array_equal(on_screen(), env.render_observation(observation))


def test_closing_twice_and_opening_again(env):
    env.close()
    env.reset(seed=0)
    assert pygame.display.get_surface() is not None
    env.close()
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
    observation, _ = other.reset(seed=0)
    env.close()
    assert np.array_equal(on_screen(), other.render_observation(observation))
    observation, _ = env.reset(seed=0)
    assert np.array_equal(on_screen(), env.render_observation(observation))
    other.close()
    assert pygame.display.get_surface() is not None


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_an_environment_with_an_open_window_can_be_copied(env, duplicate):
    env.reset(seed=0)
    other = duplicate(env)
    other.close()
    assert pygame.display.get_surface() is not None
    assert np.array_equal(other.step(1)[0], env.step(1)[0])


def test_the_frame_rate_is_kept():
    window, picture = Window("a"), np.zeros((4, 4, 3), np.uint8)
    window.show(picture, 20)
    start = time.perf_counter()
    for _ in range(4):
        window.show(picture, 20)
    assert time.perf_counter() - start > 0.15


def test_without_pygame_it_says_what_to_install(env, monkeypatch):
    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(DependencyNotInstalled, match=r'pip install "sb3-manygoals\[render\]"'):
        env.reset(seed=0)
    env.close()
    TwoRoomsSwitchEnv(render_mode="rgb_array").reset()


def test_pygame_is_imported_when_the_first_picture_is_shown():
    code = (
        "import sys, gymnasium as gym, gym_twoRooms\n"
        "for mode in ('rgb_array', 'ansi', 'human'):\n"
        "    env = gym.make('TwoRoomsSwitchSmall-v0', render_mode=mode).unwrapped\n"
        "    if mode != 'human':\n"
        "        env.reset()\n"
        "        env.render()\n"
        "    env.close()\n"
        "assert 'pygame' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_gymnasiums_wrappers_record_and_show_it(monkeypatch):
    monkeypatch.setitem(TwoRoomsSwitchEnv.metadata, "render_fps", 1000)
    env = RenderCollection(gym.make("TwoRoomsSwitchSmall-v0", render_mode="rgb_array", cell_size=4))
    env.reset(seed=0)
    env.step(0)
    frames = env.render()
    assert [frame.shape for frame in frames] == [(32, 16, 3)] * 2
    shown = HumanRendering(gym.make("TwoRoomsSwitchSmall-v0", render_mode="rgb_array", cell_size=4))
    shown.reset(seed=0)
    assert np.array_equal(on_screen(), frames[0])
    shown.close()


def test_videos_are_recorded(tmp_path):
    pytest.importorskip("moviepy", reason="Gymnasium's RecordVideo needs it")
    env = gym.make("TwoRoomsSwitchSmall-v0", render_mode="rgb_array", max_episode_steps=3)
    env = gym.wrappers.RecordVideo(env, str(tmp_path / "videos"), episode_trigger=lambda episode: episode == 0)
    env.reset(seed=0)
    while not env.step(0)[3]:
        pass
    env.close()
    assert (tmp_path / "videos/rl-video-episode-0.mp4").stat().st_size > 0
