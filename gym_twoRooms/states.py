"""The states of a layout: their numbers, and whether all can reach each other."""

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gym_twoRooms.layout import Cell, Layout, LayoutError

MAX_STATES = 4_000_000
"""Most states that a layout may have; compiling them takes about 420 bytes a state."""


def flat(layout: Layout, cells: Sequence[Cell]) -> NDArray[np.intp]:
    """
    :param layout: The map
    :param cells: (row, column) pairs
    :return: The same as flat indexes ``row * width + column``
    """
    return np.array([row * layout.width + column for row, column in cells], dtype=np.intp)


class StateNumbering:
    """
    Numbers the states of a layout: by where the blocks are, then by which doors are open, then by where the agent is. Cells
    are flat indexes. Bit d of a set of doors stands for door d.

    :ivar n_states: S
    :ivar doors: Cells of each door, D arrays
    :ivar bits: Bit of each door, (D,) int64
    :ivar agent: Cell of the agent in each state, (S,) int32
    :ivar blocks: Cells of the blocks in each state, (S, B) int32, region by region and ascending in each
    :ivar opened: The set of open doors in each state, (S,) int64

    :param layout: The map
    :raises LayoutError: If there are more than :data:`MAX_STATES` states
    """

    def __init__(self, layout: Layout) -> None:
        self.doors = [flat(layout, cells) for cells in layout.doors]
        self.bits = 1 << np.arange(len(self.doors))
        sets = np.arange(2 ** len(self.doors))
        n_blocks, n_cells = len(layout.blocks), layout.height * layout.width
        regions = sorted(set(layout.block_regions))
        sizes = [layout.block_regions.count(region) for region in regions]
        radices = [math.comb(len(region), size) for region, size in zip(regions, sizes, strict=True)]

        # Where the agent may stand, for each set of open doors.
        places = np.sort(np.concatenate([flat(layout, layout.free), *self.doors]))
        standing = np.ones((len(sets), len(places)), dtype=np.bool_)
        for bit, cells in zip(self.bits, self.doors, strict=True):
            standing[np.ix_((sets & bit) == 0, np.isin(places, cells))] = False
        self.n_states = math.prod(radices) * (int(standing.sum()) - n_blocks * len(sets))
        if self.n_states > MAX_STATES:
            raise LayoutError(f"The layout has {self.n_states} states; at most {MAX_STATES} are supported.")

        # A cell's rank counts the cells of all regions. The weights of the blocks' ranks add up to the number of their
        # arrangement ("combinatorial number system"). Tables by cell end with entries for cells off the map.
        self._rank = np.full(n_cells + 2, -1)
        self._region_of_rank = np.append(np.repeat(np.arange(len(regions)), [len(region) for region in regions]), -1)
        self._region_of_column = np.repeat(np.arange(len(regions)), sizes)
        self._weights = np.zeros((len(self._region_of_rank), n_blocks), dtype=np.int64)
        arrangements = np.empty((1, 0), dtype=np.int32)
        rank = column = 0
        for number, (region, size) in enumerate(zip(regions, sizes, strict=True)):
            cells, later = flat(layout, region), math.prod(radices[number + 1 :])
            self._rank[cells] = np.arange(rank, rank + len(cells))
            for k in range(size):
                chosen = [min(math.comb(place, k + 1), MAX_STATES) for place in range(len(cells))]
                self._weights[rank : rank + len(cells), column + k] = later * np.array(chosen)
            subsets = np.array(list(combinations(range(len(cells)), size)))
            subsets = cells[subsets[np.lexsort(subsets.T)]].astype(np.int32)
            repeated = np.repeat(arrangements, len(subsets), axis=0)
            arrangements = np.hstack([repeated, np.tile(subsets, (len(arrangements), 1))])
            rank, column = rank + len(cells), column + size

        possible = np.tile(standing, (len(arrangements), 1, 1))
        self._place = np.full(n_cells + 2, -1)
        self._place[places] = np.arange(len(places))
        possible[np.arange(len(arrangements))[:, np.newaxis], :, self._place[arrangements]] = False
        arrangement, self.opened, place = np.nonzero(possible)
        self.agent, self.blocks = places[place].astype(np.int32), arrangements[arrangement]
        self._states = np.full(possible.shape, -1, dtype=np.int32)
        self._states[possible] = np.arange(self.n_states)

    def encode(self, agent: NDArray[Any], blocks: NDArray[Any], opened: NDArray[np.int64]) -> NDArray[np.int64]:
        """
        Number states.

        :param agent: Cells of the agent, (N,) int; they need not be on the map
        :param blocks: Cells of the blocks, (N, B) int, in any order; likewise
        :param opened: Sets of open doors, (N,)
        :return: State numbers, (N,), -1 for impossible ones
        """
        off = len(self._rank) - 2
        ranks = np.sort(self._rank[np.clip(blocks, -1, off)], axis=1)
        place = self._place[np.clip(agent, -1, off)]
        possible = (place >= 0) & (np.diff(ranks, axis=1) > 0).all(axis=1)
        possible &= (self._region_of_rank[ranks] == self._region_of_column).all(axis=1)
        arrangement = self._weights[ranks, np.arange(ranks.shape[1])].sum(axis=1)
        states = np.full(len(place), -1, dtype=np.int64)
        states[possible] = self._states[arrangement[possible], opened[possible], place[possible]]
        return states


def stranded_state(acted: NDArray[np.integer[Any]], settled: NDArray[np.integer[Any]]) -> tuple[int, bool] | None:
    """
    Look for a state outside the largest set of states that can all reach each other. A step has two phases: an action, and
    what the world does by itself after it.

    :param acted: The states to which actions may lead from each state, (S, A) int; repetitions are fine
    :param settled: The states in which the world may settle after an action has led to each state, (S, K) int, likewise
    :return: None if there is no such state, else the first one, and whether the others can reach it
    """
    from scipy.sparse import csr_array  # importing scipy takes longer than compiling a layout
    from scipy.sparse.csgraph import breadth_first_order, connected_components

    n_states = len(acted)

    def edges(targets: NDArray[np.integer[Any]]) -> csr_array:
        row_starts = np.arange(n_states + 1) * targets.shape[1]
        return csr_array((np.ones(targets.size, dtype=np.bool_), targets.flatten(), row_starts), shape=(n_states, n_states))

    graph = csr_array(edges(acted) @ edges(settled))
    graph.sum_duplicates()  # connected_components may never return on a graph that lists an edge twice
    _, labels = connected_components(graph, directed=True, connection="strong")
    largest = labels == np.bincount(labels).argmax()
    if largest.all():
        return None
    state = int(np.flatnonzero(~largest)[0])
    return state, state in breadth_first_order(graph, int(largest.argmax()), return_predecessors=False)
