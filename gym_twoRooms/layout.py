"""The map of a world: an ASCII drawing, parsed and validated."""

import os
import textwrap
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

Cell = tuple[int, int]
"""A (row, column) pair, both counted from 0 at the top left."""

FLOOR, WALL, SLIPPERY, BLOCK = ".#WB"
DOORS, SWITCHES = "DEFG", "STUV"
"""The symbols of doors, and of the switches that operate them, in the same order."""
SYMBOLS = FLOOR + WALL + DOORS + SWITCHES + SLIPPERY + BLOCK

DIRECTIONS: tuple[Cell, ...] = ((-1, 0), (1, 0), (0, -1), (0, 1))
"""What each move adds to a cell, in the order of the actions."""


class LayoutError(ValueError):
    """A map that cannot be a world. The message says where and why."""


@dataclass(frozen=True)
class Layout:
    """
    A validated map. Two layouts are equal when their maps are, whatever their names.

    ``.`` is floor, ``#`` wall, ``W`` slippery floor, and ``B`` floor on which a block is drawn. ``D`` is a door and ``S`` a
    switch that flips it; three more doors are ``E``, ``F`` and ``G``, with the switches ``T``, ``U`` and ``V``. A door may
    have several cells, which open and shut together, and several switches. Cells are (row, column) pairs counted from 0 at
    the top left, sorted row by row.

    :param rows: The map, one string of symbols per row; use :meth:`parse` for a map in one string
    :param name: A name for people
    :raises LayoutError: If the map breaks a rule that can be seen on it; whether every state can be reached from every other
        is checked when the layout is compiled
    """

    rows: tuple[str, ...]
    name: str = field(default="custom", compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", tuple(self.rows))
        if not self.rows or not self.rows[0]:
            raise LayoutError("The map is empty.")
        for row, line in enumerate(self.rows):
            if len(line) != self.width:
                raise LayoutError(
                    f"Row {row} (counted from 0) has {len(line)} cells where row 0 has {self.width}."
                )
            for column, symbol in enumerate(line):
                if symbol not in SYMBOLS:
                    raise LayoutError(
                        f"Unknown symbol {symbol!r} at {_at((row, column))}; known are {' '.join(SYMBOLS)}."
                    )
        if len(self.free) < 2:
            raise LayoutError(
                f"The map has {len(self.free)} free cells; the agent needs at least 2 to have somewhere to go."
            )
        for door, switch in zip(DOORS, SWITCHES, strict=True):
            doors, switches = self._cells(door), self._cells(switch)
            if doors and not switches:
                raise LayoutError(
                    f"The door {door} at {_at(doors[0])} can never open: the map has no switch {switch}."
                )
            if switches and not doors:
                raise LayoutError(
                    f"The switch {switch} at {_at(switches[0])} has nothing to do: the map has no door {door}."
                )
        for block in self.blocks:
            if block not in self._roomy:
                raise LayoutError(
                    f"The block at {_at(block)} touches a wall, a door or the edge and could never be pushed."
                )

    @classmethod
    def parse(cls, text: str, name: str = "custom") -> "Layout":
        """
        Read a map. Blank lines before and after it, common indentation and trailing spaces are ignored.

        :param text: The map, one line per row
        :return: The layout, for which ``parse(str(layout)) == layout``
        :raises LayoutError: If ``text`` is not a string or not a valid map; rows and columns in messages count from 0
        """
        if not isinstance(text, str):
            raise LayoutError(f"A map must be a string, got {type(text).__name__}.")
        lines = [line.rstrip() for line in textwrap.dedent(text.expandtabs()).splitlines()]
        drawn = [number for number, line in enumerate(lines) if line]
        return cls(tuple(lines[drawn[0] : drawn[-1] + 1]) if drawn else (), name)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "Layout":
        """
        :param path: A text file with a map
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
        """For each of :attr:`doors`, the cells on which toggling flips it."""
        return tuple(cells for symbol in SWITCHES if (cells := self._cells(symbol)))

    @cached_property
    def blocks(self) -> tuple[Cell, ...]:
        """Where the blocks are drawn."""
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
        """For each block, the cells to which it can be pushed. Blocks that could meet have the same region."""
        return tuple(tuple(sorted(_flood(block, self._roomy))) for block in self.blocks)

    @cached_property
    def _roomy(self) -> set[Cell]:
        """The cells where a block may be: those that touch no wall, door or edge."""
        free = set(self.free)
        return {
            (row, column)
            for row, column in free
            if all((row + d, column + r) in free for d, r in DIRECTIONS)
        }

    def _cells(self, symbols: str) -> tuple[Cell, ...]:
        return tuple(
            (r, c)
            for r, row in enumerate(self.rows)
            for c, symbol in enumerate(row)
            if symbol in symbols
        )


def as_layout(layout: Layout | str) -> Layout:
    """
    :param layout: A layout, the name of one, or an ASCII map (recognised by its line break)
    :raises LayoutError: If there is no layout of that name or the map is not valid
    """
    if isinstance(layout, Layout):
        return layout
    if not isinstance(layout, str) or "\n" in layout:
        return Layout.parse(layout)
    if layout not in NAMED_LAYOUTS:
        hint = "A map has line breaks; Layout.read(path) reads one from a file."
        raise LayoutError(
            f"There is no layout named {layout!r}; the named ones are {', '.join(NAMED_LAYOUTS)}. {hint}"
        )
    return NAMED_LAYOUTS[layout]


def _at(cell: Cell) -> str:
    return f"row {cell[0]}, column {cell[1]} (counted from 0)"


def _flood(start: Cell, allowed: Collection[Cell]) -> set[Cell]:
    """All cells of ``allowed`` that orthogonal steps within it reach from ``start``."""
    left, reached = set(allowed) - {start}, [start]
    for row, column in reached:  # which grows
        for down, right in DIRECTIONS:
            if (cell := (row + down, column + right)) in left:
                left.remove(cell)
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
The maps that come with the package: ``"paper"``, the paper's world; ``"small"``, the same on fewer cells, for quick starts;
``"locks"``, three rooms in a row and two doors; ``"warehouse"``, two blocks in one room; ``"mansion"``, 24 x 24 cells.
"""
