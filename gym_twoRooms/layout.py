"""The map of a world: an ASCII drawing, parsed and validated."""

import os
import textwrap
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

Cell = tuple[int, int]
"""A (row, column) pair, both counted from 0 at the top left."""

FLOOR = "."
WALL = "#"
SLIPPERY = "W"
BLOCK = "B"
DOORS = "DEFG"
"""The symbols of doors."""
SWITCHES = "STUV"
"""The symbols of the switches that operate the doors, in the order of :data:`DOORS`."""
SYMBOLS = FLOOR + WALL + DOORS + SWITCHES + SLIPPERY + BLOCK
"""All symbols that a map may have."""

DIRECTIONS: tuple[Cell, ...] = ((-1, 0), (1, 0), (0, -1), (0, 1))
"""What each move adds to a cell, in the order of the actions."""


class LayoutError(ValueError):
    """Raised when a map cannot be a world. The message says where and why."""


@dataclass(frozen=True)
class Layout:
    """
    A validated map. Two layouts are equal when their maps are, whatever their names.

    ``.`` is floor, ``#`` wall, ``W`` slippery floor, and ``B`` floor on which a block is drawn.
    ``D`` is a door and ``S`` a switch that flips it. Three more doors are ``E``, ``F`` and ``G``,
    with the switches ``T``, ``U`` and ``V``. A door may have several cells, which open and shut
    together, and several switches. Cells are (row, column) pairs counted from 0 at the top left,
    sorted row by row.

    Only rules that can be seen on the map are checked here. Whether every state can be reached from
    every other is checked when the layout is compiled.

    :param rows: The map, one string of symbols per row; use :meth:`parse` for a map in one string
    :param name: A name for people, by default ``"custom"``
    :raises LayoutError: If the map breaks a rule
    """

    rows: tuple[str, ...]
    name: str = field(default="custom", compare=False)

    def __post_init__(self) -> None:
        """Check the map."""
        given: Any = self.rows
        is_sequence = isinstance(given, Iterable) and not isinstance(given, str)
        # An iterator can be read only once.
        rows = tuple(given) if is_sequence else (given,)
        if not is_sequence or not all(isinstance(row, str) for row in rows):
            raise LayoutError(
                f"rows must be strings, one for each row of the map, got {given!r}. Layout.parse "
                "takes a map in one string."
            )
        object.__setattr__(self, "rows", rows)
        self._check_shape_and_symbols()
        if len(self.free) < 2:
            raise LayoutError(
                f"The map has {len(self.free)} free cells; the agent needs at least 2 to have "
                "somewhere to go."
            )
        for door, switch in zip(DOORS, SWITCHES, strict=True):
            door_cells = self._cells(door)
            switch_cells = self._cells(switch)
            if door_cells and not switch_cells:
                raise LayoutError(
                    f"The door {door} at {_at(door_cells[0])} can never open: the map has no "
                    f"switch {switch}."
                )
            if switch_cells and not door_cells:
                raise LayoutError(
                    f"The switch {switch} at {_at(switch_cells[0])} has nothing to do: the map "
                    f"has no door {door}."
                )
        for block in self.blocks:
            if block not in self._roomy:
                raise LayoutError(
                    f"The block at {_at(block)} touches a wall, a door or the edge and could "
                    "never be pushed."
                )

    def _check_shape_and_symbols(self) -> None:
        """Raise a LayoutError unless the map is a rectangle of known symbols."""
        if not self.rows or not self.rows[0]:
            raise LayoutError("The map is empty.")
        for row, line in enumerate(self.rows):
            if len(line) != self.width:
                raise LayoutError(
                    f"Row {row} (counted from 0) has {len(line)} cells where row 0 has "
                    f"{self.width}."
                )
            for column, symbol in enumerate(line):
                if symbol not in SYMBOLS:
                    raise LayoutError(
                        f"Unknown symbol {symbol!r} at {_at((row, column))}; known are "
                        f"{' '.join(SYMBOLS)}."
                    )

    @classmethod
    def parse(cls, text: str, name: str = "custom") -> "Layout":
        """
        Read a map from a string.

        Blank lines before and after it, common indentation and trailing spaces are ignored.

        :param text: The map, one line per row
        :param name: A name for people, by default ``"custom"``
        :return: The layout, for which ``parse(str(layout)) == layout``
        :raises LayoutError: If ``text`` is not a string or not a valid map; rows and columns in
            messages count from 0
        """
        if not isinstance(text, str):
            raise LayoutError(f"A map must be a string, got {type(text).__name__}.")
        lines = [line.rstrip() for line in textwrap.dedent(text.expandtabs()).splitlines()]
        drawn = [number for number, line in enumerate(lines) if line]
        return cls(tuple(lines[drawn[0] : drawn[-1] + 1]) if drawn else (), name)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Layout":
        """
        Read a map from a text file.

        :param path: The file
        :return: The layout, named after the file
        :raises OSError: If the file cannot be read
        :raises LayoutError: If its content is not a valid map
        """
        path = Path(path)
        try:
            return cls.parse(path.read_text(encoding="utf-8-sig"), path.stem)
        except (LayoutError, UnicodeDecodeError) as error:
            raise LayoutError(f"{path}: {error}") from None

    def __str__(self) -> str:
        return "\n".join(self.rows)

    @property
    def height(self) -> int:
        """Number of rows."""
        return len(self.rows)

    @property
    def width(self) -> int:
        """Number of columns."""
        return len(self.rows[0])

    @cached_property
    def doors(self) -> tuple[tuple[Cell, ...], ...]:
        """The cells of each door, in the order of ``DOORS``."""
        return tuple(cells for symbol in DOORS if (cells := self._cells(symbol)))

    @cached_property
    def switches(self) -> tuple[tuple[Cell, ...], ...]:
        """The cells of each door's switches, in the order of :attr:`doors`."""
        return tuple(cells for symbol in SWITCHES if (cells := self._cells(symbol)))

    @cached_property
    def blocks(self) -> tuple[Cell, ...]:
        """The cells on which blocks are drawn."""
        return self._cells(BLOCK)

    @cached_property
    def slippery(self) -> tuple[Cell, ...]:
        """The cells on which the agent may slip."""
        return self._cells(SLIPPERY)

    @cached_property
    def free(self) -> tuple[Cell, ...]:
        """The cells on which the agent can always stand: all but walls and doors."""
        return self._cells(FLOOR + SWITCHES + SLIPPERY + BLOCK)

    @cached_property
    def block_regions(self) -> tuple[tuple[Cell, ...], ...]:
        """For each block, the cells it can be pushed to. Blocks that could meet share a region."""
        return tuple(tuple(sorted(_flood(block, self._roomy))) for block in self.blocks)

    @cached_property
    def _roomy(self) -> set[Cell]:
        """The cells where a block may be, because they touch no wall, door or edge."""
        free = set(self.free)
        return {
            (row, column)
            for row, column in free
            if all((row + down, column + right) in free for down, right in DIRECTIONS)
        }

    def _cells(self, symbols: str) -> tuple[Cell, ...]:
        """Return the cells that have one of these symbols, row by row."""
        return tuple(
            (row, column)
            for row, line in enumerate(self.rows)
            for column, symbol in enumerate(line)
            if symbol in symbols
        )


def as_layout(layout: Layout | str) -> Layout:
    """
    Return the layout that a user means.

    :param layout: A layout, the name of one, or an ASCII map, which is recognised by its line
        break, or by having nothing but symbols
    :return: The layout; a layout is returned as it is
    :raises LayoutError: If there is no layout of that name or the map is not valid
    """
    if isinstance(layout, Layout):
        return layout
    if not isinstance(layout, str) or "\n" in layout or set(layout.strip()) <= set(SYMBOLS):
        return Layout.parse(layout)
    if layout not in NAMED_LAYOUTS:
        raise LayoutError(
            f"There is no layout named {layout!r}; the named ones are {', '.join(NAMED_LAYOUTS)}. "
            f"A map has line breaks, or only the symbols {' '.join(SYMBOLS)}; Layout.read(path) "
            "reads one from a file."
        )
    return NAMED_LAYOUTS[layout]


def _at(cell: Cell) -> str:
    return f"row {cell[0]}, column {cell[1]} (counted from 0)"


def _flood(start: Cell, allowed: Collection[Cell]) -> set[Cell]:
    """Return all cells of ``allowed`` that orthogonal steps within it reach from ``start``."""
    unreached = set(allowed) - {start}
    reached = [start]
    # The list grows while the loop goes through it.
    for row, column in reached:
        for down, right in DIRECTIONS:
            cell = (row + down, column + right)
            if cell in unreached:
                unreached.remove(cell)
                reached.append(cell)
    return set(reached)


_MAPS = {
    "paper": """
..........
.S..WW....
..........
#######D##
..........
..B.......
....WW....
....WW....
........S.
..........
""",
    "small": """
S..W
....
....
##D#
....
.B..
.W..
...S
""",
    "locks": """
S........
...WWW...
.........
####D####
T.......S
.........
....B....
.........
.........
####E####
.........
...WWW...
........T
""",
    "warehouse": """
..S....
.......
###D###
.......
..B.B..
.......
..W.W..
.......
S......
""",
    "mansion": """
...........#............
.S.........#............
...........#..WWWWWWW...
...........#..WWWWWWW...
...........#..WWWWWWW...
...........D..WWWWWWW...
...........#..WWWWWWW...
...........#..WWWWWWW...
...........#............
...........#..........S.
...........#............
###################.####
...........#............
...........#............
.T.........#............
....WW.....#............
....WW.....#............
....WW.....#............
....WW.....E............
....WW.....#............
....WW.....#............
....WW..B..#............
...........#..........T.
...........#............
""",
}
NAMED_LAYOUTS: Mapping[str, Layout] = {
    name: Layout.parse(text, name) for name, text in _MAPS.items()
}
"""
The maps that come with the package.

``"paper"`` is the paper's world. ``"small"`` is the same on fewer cells, for quick starts.
``"locks"`` has three rooms in a row and two doors. ``"warehouse"`` has two blocks in one room.
``"mansion"`` has 24 x 24 cells.
"""
