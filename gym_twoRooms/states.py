"""The states of a layout: their numbers, and whether all can reach each other."""

import math
from collections.abc import Iterable
from itertools import chain, combinations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gym_twoRooms.layout import Cell, Layout, LayoutError

MAX_STATES = 4_000_000
"""Most states that a layout may have; compiling them takes about 420 bytes a state."""


def flat(layout: Layout, cells: Iterable[Cell]) -> NDArray[np.intp]:
    """(row, column) pairs as flat indexes ``row * width + column``."""
    return np.array([row * layout.width + column for row, column in cells], dtype=np.intp)


class StateNumbering:
    """
    Numbers the states of a layout: by where the blocks are, then by which doors are open, then by where the agent is. Cells
    are flat indexes. Bit d of a set of doors stands for door d. Blocks are region by region, and ascending in each.
    """

    def __init__(self, layout: Layout) -> None:
        self.doors = [flat(layout, cells) for cells in layout.doors]
        self.bits = 1 << np.arange(len(self.doors))
        sets = np.arange(2 ** len(self.doors))
        regions = {
            region: layout.block_regions.count(region) for region in sorted(layout.block_regions)
        }

        # Where the agent may stand, for each set of open doors.
        places = np.sort(np.concatenate([flat(layout, layout.free), *self.doors]))
        standing = np.ones((len(sets), len(places)), dtype=np.bool_)
        for bit, cells in zip(self.bits, self.doors, strict=True):
            standing[np.ix_((sets & bit) == 0, np.isin(places, cells))] = False
        n_arrangements = math.prod(math.comb(len(region), size) for region, size in regions.items())
        self.n_states = n_arrangements * (int(standing.sum()) - len(layout.blocks) * len(sets))
        if self.n_states > MAX_STATES:
            raise LayoutError(
                f"The layout has {self.n_states} states; at most {MAX_STATES} are supported."
            )

        # In each region, the block in the last cell counts most.
        choices = [
            sorted(combinations(flat(layout, region).tolist(), size), key=lambda cells: cells[::-1])
            for region, size in regions.items()
        ]
        arrangements = [tuple(chain.from_iterable(parts)) for parts in product(*choices)]
        self._arrangements = {
            tuple(sorted(cells)): number for number, cells in enumerate(arrangements)
        }
        cells_of = np.array(arrangements, dtype=np.int32)

        possible = np.tile(standing, (n_arrangements, 1, 1))
        self._place = np.full(
            layout.height * layout.width + 2, -1
        )  # with entries for cells off the map
        self._place[places] = np.arange(len(places))
        possible[np.arange(n_arrangements)[:, np.newaxis], :, self._place[cells_of]] = False
        self.arrangement, self.opened, place = np.nonzero(possible)
        self.agent, self.blocks = places[place].astype(np.int32), cells_of[self.arrangement]
        self._states = np.full(possible.shape, -1)
        self._states[possible] = np.arange(self.n_states)

    def arrange(self, blocks: NDArray[Any]) -> NDArray[np.int64]:
        """Number arrangements of blocks, (..., B) cells in any order: (...), -1 for impossible ones."""
        shape = blocks.shape[:-1]
        rows = blocks.reshape(math.prod(shape), blocks.shape[-1]).tolist()
        return np.array(
            [self._arrangements.get(tuple(sorted(row)), -1) for row in rows], dtype=np.int64
        ).reshape(shape)

    def encode(
        self, agent: NDArray[Any], arrangement: NDArray[np.int64], opened: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Number states, -1 for impossible ones. Arguments are broadcast; the agent's cell may be off the map."""
        place = self._place[np.clip(agent, -1, len(self._place) - 2)]
        return np.where(
            (place >= 0) & (arrangement >= 0), self._states[arrangement, opened, place], -1
        )


def stranded_state(
    acted: NDArray[np.integer[Any]], settled: NDArray[np.integer[Any]]
) -> int | None:
    """
    The first state outside the largest set of states that can all reach each other, or None. Actions lead from each state to
    ``acted``, (S, A), and in each of these the world may settle in ``settled``, (S, K).
    """
    from scipy.sparse import csr_array  # importing scipy takes longer than compiling a layout
    from scipy.sparse.csgraph import connected_components

    n_states = len(acted)

    def edges(targets: NDArray[np.integer[Any]]) -> csr_array:
        row_starts = np.arange(n_states + 1) * targets.shape[1]
        return csr_array(
            (np.ones(targets.size, dtype=np.bool_), targets.flatten(), row_starts),
            shape=(n_states, n_states),
        )

    graph = csr_array(edges(acted) @ edges(settled))
    graph.sum_duplicates()  # connected_components may never return on a graph that lists an edge twice
    _, labels = connected_components(graph, directed=True, connection="strong")
    stranded = np.flatnonzero(labels != np.bincount(labels).argmax())
    return int(stranded[0]) if len(stranded) else None
