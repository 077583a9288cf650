"""Pictures of states for people: in NumPy and in characters."""

from functools import lru_cache
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from gym_twoRooms.layout import BLOCK, DOORS, FLOOR, SWITCHES, WALL, Layout
from gym_twoRooms.mdp import COLOURS, THINGS, TwoRoomsMDP

RENDER_MODES = ["rgb_array", "ansi"]
"""The modes of the environments' ``render``: a picture, or a map in characters."""
DARKER = 0.72
"""Factor by which outlines are darker than what they surround."""
LIGHTER = 0.22
"""Share of white in highlights."""
SMALLEST_GRID = 8
"""Cells narrower than this many pixels have no grid lines, which would hide the rest."""
AGENT = "@"
"""The agent's symbol in the maps of :func:`write`. Layouts do not have it."""
OPEN_DOOR = "/"
"""The symbol of an open door in the maps of :func:`write`. Layouts do not have it."""


def draw(mdp: TwoRoomsMDP, state: int, cell_size: int = 32) -> NDArray[np.uint8]:
    """
    Draw a state.

    :param mdp: The compiled world
    :param state: The number of the state
    :param cell_size: Width and height of a cell, in pixels
    :return: A new array, (H * cell_size, W * cell_size, 3) uint8
    """
    layout = mdp.layout
    canvas = _ground(layout, cell_size).copy()
    for cells, is_open in zip(layout.doors, mdp.doors_open[state], strict=True):
        for row, column in cells:
            switch = SWITCHES[DOORS.index(layout.rows[row][column])]
            _paint(
                _tile(canvas, row, column, cell_size),
                f"door {'open' if is_open else 'shut'}",
                f"switch {switch}",
            )
    for block in mdp.blocks[state].tolist():
        row, column = divmod(block, layout.width)
        _paint(_tile(canvas, row, column, cell_size), "block")
    row, column = divmod(int(mdp.agent[state]), layout.width)
    _paint(_tile(canvas, row, column, cell_size), "agent")
    return np.round(canvas).astype(np.uint8)


def write(mdp: TwoRoomsMDP, state: int) -> str:
    """
    Write a state as a map in characters.

    The symbols are those of layouts: ``.`` floor, ``#`` wall, ``W`` slippery floor, letters of
    switches and of shut doors. ``/`` is an open door. ``@`` the agent and ``B`` a block hide what
    is under them.

    :param mdp: The compiled world
    :param state: The number of the state
    :return: H lines of W characters, with a line break between two lines
    """
    layout = mdp.layout
    symbols = list("".join(layout.rows).replace(BLOCK, FLOOR))
    for cells, is_open in zip(layout.doors, mdp.doors_open[state], strict=True):
        for row, column in cells if is_open else ():
            symbols[row * layout.width + column] = OPEN_DOOR
    for block in mdp.blocks[state]:
        symbols[block] = BLOCK
    symbols[mdp.agent[state]] = AGENT
    lines = [
        "".join(symbols[start : start + layout.width])
        for start in range(0, len(symbols), layout.width)
    ]
    return "\n".join(lines)


@lru_cache(maxsize=16)
def _ground(layout: Layout, cell_size: int) -> NDArray[np.float64]:
    """Draw all that never changes, in a read-only array."""
    canvas = np.empty((layout.height * cell_size, layout.width * cell_size, 3))
    for row, symbols in enumerate(layout.rows):
        for column, symbol in enumerate(symbols):
            tile = _tile(canvas, row, column, cell_size)
            tile[:] = COLOURS["floor"]
            if symbol not in DOORS:
                _paint(tile, THINGS[symbol])
            if symbol not in WALL + DOORS and cell_size >= SMALLEST_GRID:
                # Each cell draws its upper and left grid lines.
                line_colour = tile[-1, -1] * 0.86
                tile[0] = line_colour
                tile[:, 0] = line_colour
    canvas.flags.writeable = False
    return canvas


def _tile(canvas: NDArray[np.float64], row: int, column: int, size: int) -> NDArray[np.float64]:
    return canvas[row * size : (row + 1) * size, column * size : (column + 1) * size]


def _paint(tile: NDArray[np.float64], thing: str, switch: str = "") -> None:
    """Draw a thing on its cell. A door has a knob in the colour of its switch."""
    colour = np.array(COLOURS[thing], dtype=np.float64)
    dark = colour * DARKER
    light = colour * (1 - LIGHTER) + 255 * LIGHTER
    if thing == "agent":
        _disc(tile, 0.5, 0.5, 0.36, dark)
        _disc(tile, 0.5, 0.5, 0.30, colour)
    elif thing == "block":
        _box(tile, 0.12, 0.12, 0.88, 0.88, dark)
        _box(tile, 0.2, 0.2, 0.8, 0.8, colour)
    elif thing.startswith("switch"):
        _box(tile, 0.12, 0.12, 0.88, 0.88, dark)
        _box(tile, 0.18, 0.18, 0.82, 0.82, colour)
        _box(tile, 0.30, 0.46, 0.70, 0.54, dark)
    elif thing.startswith("door"):
        tile[:] = dark if thing == "door shut" else COLOURS["door shut"]
        _box(tile, 0.1, 0.1, 0.9, 0.9, colour)
        _disc(tile, 0.5, 0.74, 0.07, np.array(COLOURS[switch]))
    else:
        tile[:] = colour
        if thing == "slippery":
            _box(tile, 0.31, 0.2, 0.37, 0.6, light)
            _box(tile, 0.63, 0.4, 0.69, 0.8, light)


def _box(
    tile: NDArray[Any], top: float, left: float, bottom: float, right: float, colour: NDArray[Any]
) -> None:
    """Fill a rectangle, given in shares of the tile."""
    size = len(tile)
    rows = slice(round(top * size), round(bottom * size))
    columns = slice(round(left * size), round(right * size))
    tile[rows, columns] = colour


def _disc(
    tile: NDArray[Any], row: float, column: float, radius: float, colour: NDArray[Any]
) -> None:
    """Fill a circle with a smooth rim, given in shares of the tile."""
    size = len(tile)
    centres = np.arange(size) + 0.5
    distance = np.hypot(centres[:, np.newaxis] - row * size, centres - column * size)
    cover = np.clip(radius * size - distance + 0.5, 0, 1)[:, :, np.newaxis]
    tile[:] = tile * (1 - cover) + colour * cover


def check_rendering(render_mode: str | None, cell_size: int) -> None:
    """
    Raise an error if the arguments of an environment for rendering are wrong.

    :param render_mode: One of :data:`RENDER_MODES`; None renders nothing
    :param cell_size: Width and height of a cell, in pixels
    :raises ValueError: If there is no such mode, or ``cell_size`` is not a positive integer
    """
    if render_mode is not None and render_mode not in RENDER_MODES:
        raise ValueError(f"render_mode must be None or one of {RENDER_MODES}, got {render_mode!r}.")
    if not isinstance(cell_size, (int, np.integer)) or cell_size < 1:
        raise ValueError(f"cell_size must be an integer of at least 1, got {cell_size!r}.")


def warn_about_rendering() -> None:
    """Warn that ``render`` does nothing because the environment has no render mode."""
    gym.logger.warn(
        "render() does nothing without a render mode: "
        f"make the environment with one of {RENDER_MODES}."
    )


def show(mdp: TwoRoomsMDP, state: int, render_mode: str, cell_size: int) -> NDArray[np.uint8] | str:
    """
    Return a state in the form that a render mode asks for.

    :param mdp: The compiled world
    :param state: The number of the state
    :param render_mode: One of :data:`RENDER_MODES`
    :param cell_size: Width and height of a cell in pictures, in pixels
    :return: For ``"rgb_array"`` the picture of :func:`draw`, for ``"ansi"`` the map of
        :func:`write`
    """
    return draw(mdp, state, cell_size) if render_mode == "rgb_array" else write(mdp, state)
