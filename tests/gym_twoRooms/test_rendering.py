"""
What people see: pictures, some compared pixel by pixel with stored ones, and maps in characters.

After a wanted change, write the stored pictures anew with
``python tests/gym_twoRooms/test_rendering.py`` and look at them.
"""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gym_twoRooms import TwoRoomsSwitchEnv
from gym_twoRooms.layout import NAMED_LAYOUTS, Layout
from gym_twoRooms.mdp import compile_layout
from gym_twoRooms.rendering import draw, write

SMALL = compile_layout("small")
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
    assert env.render().splitlines() == [
        "S..W",
        "....",
        "....",
        "##/#",
        "....",
        "....",
        ".B..",
        "...@",
    ]
    assert len({write(SMALL, state) for state in range(SMALL.n_states)}) == SMALL.n_states
    several = compile_layout(Layout.parse("S...U\nDD#F#\n..S.U\n.....\n.B.B.\n....."))
    state = int(several.encode(0, [16, 23], [True, False]))
    assert write(several, state).splitlines() == [
        "@...U",
        "//#F#",
        "..S.U",
        ".B...",
        "...B.",
        ".....",
    ]


def test_rendering_leaves_observations_as_they_are():
    plain = TwoRoomsSwitchEnv()
    env = TwoRoomsSwitchEnv(render_mode="rgb_array", cell_size=7)
    assert np.array_equal(env.reset(seed=0)[0], plain.reset(seed=0)[0])
    for action in (1, 2, 4, 3, 0):
        # The picture belongs to the caller.
        env.render()[:] = 0
        assert np.array_equal(env.render(), draw(env.mdp, env.state, 7))
        assert np.array_equal(env.step(action)[0], plain.step(action)[0])
    with pytest.warns(UserWarning, match="without a render mode"):
        assert plain.render() is None


def test_any_observation_can_be_drawn():
    env = TwoRoomsSwitchEnv("small", cell_size=6)
    for state in (0, 17, 219):
        assert np.array_equal(
            env.render_observation(env.observation_of(state)), draw(SMALL, state, 6)
        )
    impossible = np.random.default_rng(0).integers(256, size=(8, 4, 3), dtype=np.uint8)
    assert np.array_equal(env.render_observation(impossible)[::6, 5::6], impossible)
    with pytest.raises(
        ValueError, match=r"An observation has shape \(8, 4, 3\), got \(10, 10, 3\)"
    ):
        env.render_observation(np.zeros((10, 10, 3), np.uint8))


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in PICTURES:
        Image.fromarray(picture(name)).save(FOLDER / f"{name}.png", optimize=True)
