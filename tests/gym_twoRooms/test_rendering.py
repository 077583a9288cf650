import numpy as np
import pytest

from gym_twoRooms import TwoRoomsSwitchEnv
from gym_twoRooms.layout import Layout
from gym_twoRooms.mdp import COLOURS, compile_layout
from gym_twoRooms.rendering import draw, write

SMALL = compile_layout(Layout.named("small"))


@pytest.mark.parametrize("cell_size", [1, 2, 3, 8, 13, 32])
def test_every_state_has_its_own_picture(cell_size):
    pictures = [draw(SMALL, state, cell_size) for state in range(SMALL.n_states)]
    assert {picture.shape for picture in pictures} == {(8 * cell_size, 4 * cell_size, 3)}
    assert {picture.dtype for picture in pictures} == {np.dtype(np.uint8)}
    assert len({picture.tobytes() for picture in pictures}) == SMALL.n_states


def test_things_are_drawn_where_they_are():
    state = int(SMALL.encode(2, [21], [False]))
    picture = draw(SMALL, state, 32).reshape(8, 32, 4, 32, 3).swapaxes(1, 2)
    centre = picture[:, :, 16, 8]
    for (row, column), thing in {(0, 2): "agent", (5, 1): "block", (3, 2): "door shut", (3, 0): "wall"}.items():
        assert tuple(centre[row, column]) == COLOURS[thing]
    opened = draw(SMALL, int(SMALL.encode(2, [21], [True])), 32).reshape(8, 32, 4, 32, 3).swapaxes(1, 2)
    assert tuple(opened[3, 2, 16, 16]) == COLOURS["door open"]
    changed = np.argwhere((opened != picture).any(axis=(2, 3, 4)))
    assert changed.tolist() == [[3, 2]]


def test_a_map_without_door_and_block_can_be_drawn():
    mdp = compile_layout(Layout.parse("..W"))
    assert draw(mdp, 0, 10).shape == (10, 30, 3)


def test_the_env_draws_its_state_and_pictures_belong_to_the_caller():
    env = TwoRoomsSwitchEnv("small", render_mode="rgb_array", cell_size=20)
    env.reset(seed=0)
    before = env.render()
    assert np.array_equal(before, draw(env.mdp, env.state, 20))
    before[:] = 0
    assert np.array_equal(env.render(), draw(env.mdp, env.state, 20))
    env.set_state((env.state + 1) % 220)
    assert env.render().any()


def test_maps_in_characters():
    shut = write(SMALL, int(SMALL.encode(2, [21], [False])))
    assert shut.splitlines() == ["S.@W", "....", "....", "##D#", "....", ".B..", ".W..", "...S"]
    env = TwoRoomsSwitchEnv("small", render_mode="ansi")
    env.reset(seed=0)
    assert env.render() == write(SMALL, env.state)
    # The block is elsewhere than on the map, on slippery floor; the agent hides the switch.
    env.set_state(int(SMALL.encode(31, [25], [True])))
    assert env.render().splitlines() == ["S..W", "....", "....", "##/#", "....", "....", ".B..", "...@"]
    assert len({write(SMALL, state) for state in range(SMALL.n_states)}) == SMALL.n_states
    assert write(compile_layout(Layout.parse("..W")), 2) == "..@"
    several = compile_layout(Layout.parse("S...U\nDD#F#\n..S.U\n.....\n.B.B.\n....."))
    state = int(several.encode(0, [16, 23], [True, False]))
    assert write(several, state).splitlines() == ["@...U", "//#F#", "..S.U", ".B...", "...B.", "....."]


@pytest.mark.parametrize("cell_size", [1, 7, 32])
@pytest.mark.parametrize("render_mode", [None, "rgb_array", "ansi"])
def test_observations_stay_as_they_are(cell_size, render_mode):
    plain = TwoRoomsSwitchEnv()
    env = TwoRoomsSwitchEnv(render_mode=render_mode, cell_size=cell_size)
    assert env.observation_space == plain.observation_space
    assert np.array_equal(env.reset(seed=0)[0], plain.reset(seed=0)[0])
    for action in (1, 2, 4, 3, 0):
        if render_mode is not None:
            env.render()
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
