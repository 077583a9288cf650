"""Pictures of states for people, in pure NumPy, and the same in characters."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gym_twoRooms.layout import BLOCK, DOORS, FLOOR, SWITCHES, Layout
from gym_twoRooms.mdp import COLOURS, TwoRoomsMDP

Colour = Sequence[float] | NDArray[np.float64]

DARKER, LIGHTER = 0.72, 0.22
"""Factor by which outlines are darkened, and share of white in highlights."""
SMALLEST_GRID = 8
"""Cells narrower than this many pixels have no grid lines: they would hide the rest."""

AGENT, OPEN_DOOR = "@/"
"""What :func:`write` adds to the symbols of layouts."""


def draw(mdp: TwoRoomsMDP, state: int, cell_size: int = 32) -> NDArray[np.uint8]:
    """
    Draw a state.

    :param mdp: The compiled layout
    :param state: The number of the state
    :param cell_size: Width and height of a cell, in pixels
    :return: A new array, (H * cell_size, W * cell_size, 3) uint8
    """
    layout = mdp.layout
    canvas = _ground(layout, cell_size).copy()

    def cell(index: int) -> NDArray[np.float64]:
        row, column = divmod(index, layout.width)
        return canvas[row * cell_size : (row + 1) * cell_size, column * cell_size : (column + 1) * cell_size]

    for cells, is_open in zip(layout.doors, mdp.doors_open[state], strict=True):
        for row, column in cells:
            switch = SWITCHES[DOORS.index(layout.rows[row][column])]
            (_draw_open_door if is_open else _draw_shut_door)(cell(row * layout.width + column), switch)
    for block in mdp.blocks[state].tolist():
        _draw_block(cell(block))
    _draw_agent(cell(int(mdp.agent[state])))
    return np.round(canvas).astype(np.uint8)


def write(mdp: TwoRoomsMDP, state: int) -> str:
    """
    Write a state as a map. The symbols are those of layouts, ``.`` floor, ``#`` wall, ``W`` slippery floor, letters of
    switches, and

    - ``@`` the agent and ``B`` a block, which hide what is under them;
    - the letter of a door when it is shut, ``/`` when it is open.

    :param mdp: The compiled layout
    :param state: The number of the state
    :return: H lines of W characters, with a line break between two
    """
    layout = mdp.layout
    symbols = list("".join(layout.rows).replace(BLOCK, FLOOR))
    for cells, is_open in zip(layout.doors, mdp.doors_open[state], strict=True):
        for row, column in cells if is_open else ():
            symbols[row * layout.width + column] = OPEN_DOOR
    for block in mdp.blocks[state]:
        symbols[block] = BLOCK
    symbols[mdp.agent[state]] = AGENT
    rows = range(0, len(symbols), layout.width)
    return "\n".join("".join(symbols[start : start + layout.width]) for start in rows)


@lru_cache(maxsize=16)
def _ground(layout: Layout, cell_size: int) -> NDArray[np.float64]:
    """All that never changes, as a read-only canvas."""
    canvas = np.empty((layout.height * cell_size, layout.width * cell_size, 3))
    for row, symbols in enumerate(layout.rows):
        for column, symbol in enumerate(symbols):
            tile = canvas[row * cell_size : (row + 1) * cell_size, column * cell_size : (column + 1) * cell_size]
            tile[:] = COLOURS["wall" if symbol == "#" else "floor"]
            if symbol == "W":
                _draw_slippery(tile)
            elif symbol in SWITCHES:
                _draw_switch(tile, symbol)
            if symbol not in "#" + DOORS and cell_size >= SMALLEST_GRID:
                # One line between two cells: each draws its upper and left ones.
                tile[0] = tile[:, 0] = tile[-1, -1] * 0.86
    canvas.flags.writeable = False
    return canvas


def _draw_slippery(tile: NDArray[np.float64]) -> None:
    tile[:] = COLOURS["slippery"]
    for height, left, right in ((0.34, 0.2, 0.6), (0.66, 0.4, 0.8)):
        _box(tile, height - 0.03, left, height + 0.03, right, _lighter("slippery"))


def _draw_switch(tile: NDArray[np.float64], switch: str) -> None:
    _box(tile, 0.12, 0.12, 0.88, 0.88, _darker(f"switch {switch}"))
    _box(tile, 0.18, 0.18, 0.82, 0.82, COLOURS[f"switch {switch}"])
    _box(tile, 0.30, 0.46, 0.70, 0.54, _darker(f"switch {switch}"))


def _draw_shut_door(tile: NDArray[np.float64], switch: str) -> None:
    tile[:] = _darker("door shut")
    _box(tile, 0.1, 0.1, 0.9, 0.9, COLOURS["door shut"])
    _draw_knob(tile, switch)


def _draw_open_door(tile: NDArray[np.float64], switch: str) -> None:
    tile[:] = COLOURS["door shut"]
    _box(tile, 0.1, 0.1, 0.9, 0.9, COLOURS["door open"])
    _draw_knob(tile, switch)


def _draw_knob(tile: NDArray[np.float64], switch: str) -> None:
    """A knob in the colour of the switch that operates the door."""
    _disc(tile, 0.5, 0.74, 0.07, COLOURS[f"switch {switch}"])


def _draw_block(tile: NDArray[np.float64]) -> None:
    _box(tile, 0.12, 0.12, 0.88, 0.88, _darker("block"))
    _box(tile, 0.2, 0.2, 0.8, 0.8, COLOURS["block"])


def _draw_agent(tile: NDArray[np.float64]) -> None:
    _disc(tile, 0.5, 0.5, 0.36, _darker("agent"))
    _disc(tile, 0.5, 0.5, 0.30, COLOURS["agent"])


def _darker(thing: str) -> Colour:
    return np.array(COLOURS[thing]) * DARKER


def _lighter(thing: str) -> Colour:
    return np.array(COLOURS[thing]) * (1 - LIGHTER) + 255 * LIGHTER


def _box(tile: NDArray[np.float64], top: float, left: float, bottom: float, right: float, colour: Colour) -> None:
    """Fill a rectangle; its sides are given as shares of the tile."""
    size = len(tile)
    tile[round(top * size) : round(bottom * size), round(left * size) : round(right * size)] = colour


def _disc(tile: NDArray[np.float64], row: float, column: float, radius: float, colour: Colour) -> None:
    """Fill a circle with a smooth rim; centre and radius are given as shares of the tile."""
    size = len(tile)
    centres = np.arange(size) + 0.5
    distance = np.hypot(centres[:, np.newaxis] - row * size, centres - column * size)
    cover = np.clip(radius * size - distance + 0.5, 0, 1)[:, :, np.newaxis]
    tile[:] = tile * (1 - cover) + np.asarray(colour) * cover
