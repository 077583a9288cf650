"""
What people see, compared pixel by pixel with stored pictures. After a wanted change, write them anew and look at them:

    python tests/gym_twoRooms/test_pictures.py
"""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gym_twoRooms.layout import NAMED_LAYOUTS, Layout
from gym_twoRooms.mdp import compile_layout
from gym_twoRooms.rendering import draw

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


def test_all_stored_pictures_are_compared():
    assert {path.stem for path in FOLDER.iterdir()} == set(PICTURES)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in PICTURES:
        Image.fromarray(picture(name)).save(FOLDER / f"{name}.png", optimize=True)
