"""The states of a layout: their numbers, and whether all can reach each other."""

import math
from collections.abc import Iterable
from itertools import chain, combinations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gym_twoRooms.layout import Cell, Layout, LayoutError

MAX_STATES = 4_000_000
"""The most states that a layout may have. Compiling them takes about 420 bytes a state."""


def flat(layout: Layout, cells: Iterable[Cell]) -> NDArray[np.intp]:
    """
    Return cells as flat indexes ``row * width + column``.

    :param layout: The map that the cells belong to
    :param cells: n (row, column) pairs
    :return: Their flat indexes, (n,) intp, in the same order
    """
    return np.array([row * layout.width + column for row, column in cells], dtype=np.intp)


class StateNumbering:
    """
    Numbers the states of a layout: first by where the blocks are, then by which doors are open,
    then by where the agent is.

    Cells are flat indexes ``row * width + column``. A set of doors is an integer, in which bit d
    stands for door d. An arrangement is a set of cells for the blocks; arrangements are numbered
    from 0. S is the number of states, B that of blocks and D that of doors.

    :param layout: The map
    :raises LayoutError: If there are more than :data:`MAX_STATES` states
    :ivar n_states: S
    :ivar doors: The cells of each door, D arrays of intp
    :ivar bits: The set of doors with only door d in it, 2**d, for each door, (D,) int64
    :ivar arrangement: The number of each state's arrangement of blocks, (S,) int64
    :ivar opened: The set of open doors in each state, (S,) int64
    :ivar agent: The cell of the agent in each state, (S,) int32
    :ivar blocks: The cells of the blocks in each state, (S, B) int32, region by region and
        ascending in each region
    """

    def __init__(self, layout: Layout) -> None:
        self.doors = [flat(layout, cells) for cells in layout.doors]
        self.bits = 1 << np.arange(len(self.doors))
        door_sets = np.arange(2 ** len(self.doors))
        blocks_in_region = {
            region: layout.block_regions.count(region) for region in sorted(layout.block_regions)
        }

        # Find where the agent may stand for each set of open doors.
        places = np.sort(np.concatenate([flat(layout, layout.free), *self.doors]))
        standing = np.ones((len(door_sets), len(places)), dtype=np.bool_)
        for bit, cells in zip(self.bits, self.doors, strict=True):
            standing[np.ix_((door_sets & bit) == 0, np.isin(places, cells))] = False

        # Count the states before listing them. A block takes one place from the agent, whichever
        # doors are open.
        n_arrangements = math.prod(
            math.comb(len(region), n_blocks) for region, n_blocks in blocks_in_region.items()
        )
        n_places = int(standing.sum()) - len(layout.blocks) * len(door_sets)
        self.n_states = n_arrangements * n_places
        if self.n_states > MAX_STATES:
            raise LayoutError(
                f"The layout has {self.n_states} states; at most {MAX_STATES} are supported."
            )

        # List the arrangements. In each region, the block in the last cell counts most.
        choices = [
            sorted(
                combinations(flat(layout, region).tolist(), n_blocks),
                key=lambda cells: cells[::-1],
            )
            for region, n_blocks in blocks_in_region.items()
        ]
        arrangements = [tuple(chain.from_iterable(parts)) for parts in product(*choices)]
        self._arrangements = {
            tuple(sorted(cells)): number for number, cells in enumerate(arrangements)
        }
        blocks_of_arrangement = np.array(arrangements, dtype=np.int32)

        # The place of each cell, -1 where the agent can never stand. Two more entries serve cells
        # off the map.
        self._place = np.full(layout.height * layout.width + 2, -1)
        self._place[places] = np.arange(len(places))

        # Number what remains when the agent cannot stand where a block is.
        possible = np.tile(standing, (n_arrangements, 1, 1))
        rows = np.arange(n_arrangements)[:, np.newaxis]
        possible[rows, :, self._place[blocks_of_arrangement]] = False
        self.arrangement, self.opened, place = np.nonzero(possible)
        self.agent = places[place].astype(np.int32)
        self.blocks = blocks_of_arrangement[self.arrangement]
        self._states = np.full(possible.shape, -1)
        self._states[possible] = np.arange(self.n_states)

    def arrange(self, blocks: NDArray[Any]) -> NDArray[np.int64]:
        """
        Return the numbers of the arrangements in which blocks stand in given cells.

        :param blocks: Flat indexes of the cells of the B blocks, (..., B) int, in any order
        :return: Numbers of the arrangements, (...) int64; -1 where the B blocks cannot stand in
            these cells
        """
        shape = blocks.shape[:-1]
        rows = blocks.reshape(math.prod(shape), blocks.shape[-1]).tolist()
        numbers = [self._arrangements.get(tuple(sorted(row)), -1) for row in rows]
        return np.array(numbers, dtype=np.int64).reshape(shape)

    def encode(
        self, agent: NDArray[Any], arrangement: NDArray[np.int64], opened: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """
        Return the numbers of the states with these parts. The arguments are broadcast together.

        :param agent: Flat indexes of the agent's cells, (...) int; they may be off the map
        :param arrangement: Numbers of arrangements from :meth:`arrange`, (...) int64
        :param opened: Sets of open doors, (...) int64
        :return: State numbers, (...) int64; -1 where there is no such state
        """
        place = self._place[np.clip(agent, -1, len(self._place) - 2)]
        return np.where(
            (place >= 0) & (arrangement >= 0), self._states[arrangement, opened, place], -1
        )


def stranded_state(
    acted: NDArray[np.integer[Any]], settled: NDArray[np.integer[Any]]
) -> int | None:
    """
    Return a state that some other state cannot reach, or that cannot reach some other state.

    A step first leads from a state to the outcome of an action. From there the world may settle in
    one of several states, because doors may close.

    :param acted: The outcome of each of A actions in each of S states, (S, A) int
    :param settled: The K states in which the world may settle from each state, (S, K) int
    :return: The first state outside the largest set of states that can all reach each other; None
        if that set has all states
    """
    # Importing scipy takes longer than compiling a layout.
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    n_states = len(acted)

    def edges(targets: NDArray[np.integer[Any]]) -> csr_array:
        row_starts = np.arange(n_states + 1) * targets.shape[1]
        return csr_array(
            (np.ones(targets.size, dtype=np.bool_), targets.flatten(), row_starts),
            shape=(n_states, n_states),
        )

    graph = csr_array(edges(acted) @ edges(settled))
    # connected_components may never return on a graph that lists an edge twice.
    graph.sum_duplicates()
    _, labels = connected_components(graph, directed=True, connection="strong")
    stranded = np.flatnonzero(labels != np.bincount(labels).argmax())
    return int(stranded[0]) if len(stranded) else None
