import numpy as np
import pytest

from gym_twoRooms import TwoRoomsSwitchEnv
from gym_twoRooms.layout import Layout
from gym_twoRooms.mdp import COLOURS, compile_layout
from gym_twoRooms.rendering import draw

SMALL = compile_layout(Layout.named("small"))


@pytest.mark.parametrize("cell_size", [1, 2, 3, 8, 13, 32])
def test_every_state_has_its_own_picture(cell_size):
    pictures = [draw(SMALL, state, cell_size) for state in range(SMALL.n_states)]
    assert {picture.shape for picture in pictures} == {(8 * cell_size, 4 * cell_size, 3)}
    assert {picture.dtype for picture in pictures} == {np.dtype(np.uint8)}
    assert len({picture.tobytes() for picture in pictures}) == SMALL.n_states


def test_things_are_drawn_where_they_are():
    state = int(SMALL.encode(2, 21, False))
    picture = draw(SMALL, state, 32).reshape(8, 32, 4, 32, 3).swapaxes(1, 2)
    centre = picture[:, :, 16, 8]
    for (row, column), thing in {(0, 2): "agent", (5, 1): "block", (3, 2): "door shut", (3, 0): "wall"}.items():
        assert tuple(centre[row, column]) == COLOURS[thing]
    opened = draw(SMALL, int(SMALL.encode(2, 21, True)), 32).reshape(8, 32, 4, 32, 3).swapaxes(1, 2)
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
