"""The states of a layout, numbered by arithmetic."""

import math
from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gym_twoRooms.layout import Cell, Layout, LayoutError

MAX_STATES = 4_000_000
"""Most states that are numbered; compiling them takes about 420 bytes a state."""


class StateNumbering:
    """
    Numbers for all states of a layout: where the blocks are, which doors are open and where the agent is, in that order of
    significance. Cells are flat indexes ``row * width + column``; sets of open doors are numbered by their bits, 1 for the
    first door, 2 for the second.

    :ivar n_states: S
    :ivar doors: The cells of each door, D arrays
    :ivar bits: The bit of each door, (D,) int64
    :ivar agent: Cell of the agent in each state, (S,) int32
    :ivar blocks: Cells of the blocks in each state, (S, B) int32, region by region, and ascending in each
    :ivar opened: Number of the set of open doors in each state, (S,) int64

    :param layout: The map
    :raises LayoutError: If there are more than :data:`MAX_STATES` states
    """

    def __init__(self, layout: Layout) -> None:
        self._width = layout.width
        n_cells = layout.height * layout.width
        self.doors = [self.flat(cells) for cells in layout.doors]
        self.bits = 1 << np.arange(len(self.doors))
        n_blocks = len(layout.blocks)
        regions = sorted(set(layout.block_regions))
        region_cells = [self.flat(region) for region in regions]
        sizes = [layout.block_regions.count(region) for region in regions]
        # The columns of each region's blocks, and where each cell comes in the region; -1 where it does not. The additional
        # last entry, here and below, is for the cell -1: off the map.
        starts = np.cumsum([0, *sizes])
        self._columns = [slice(start, stop) for start, stop in pairwise(starts.tolist())]
        self._region_rank = np.full((len(regions), n_cells + 1), -1)
        self._region_of = np.full(n_cells + 1, -1)
        for number, cells in enumerate(region_cells):
            self._region_rank[number, cells] = np.arange(len(cells))
            self._region_of[cells] = number
        self._radices = [math.comb(len(cells), size) for cells, size in zip(region_cells, sizes, strict=True)]

        # The cells on which the agent may stand depend on which doors are open: for each set of them a list of the cells, and
        # a table of where each cell comes in it. Blocks stand on cells of all these lists, which are left out of the agent's.
        standing = [self._standing(layout, number) for number in range(2 ** len(self.doors))]
        self._agent_rank = np.full((len(standing), n_cells + 1), -1)
        for number, cells in enumerate(standing):
            self._agent_rank[number, cells] = np.arange(len(cells))
        places = np.array([len(cells) - n_blocks for cells in standing])
        self._offsets = np.cumsum(places) - places
        self._per_arrangement = int(places.sum())
        self.n_states = math.prod(self._radices) * self._per_arrangement
        if self.n_states > MAX_STATES:
            raise LayoutError(f"The layout has {self.n_states} states; at most {MAX_STATES} are supported.")

        arrangement, rest = np.divmod(np.arange(self.n_states), self._per_arrangement)
        self.opened = np.searchsorted(self._offsets, rest, side="right") - 1
        self.blocks = np.empty((self.n_states, n_blocks), dtype=np.int32)
        for number in reversed(range(len(regions))):
            arrangement, index = np.divmod(arrangement, self._radices[number])
            cells = region_cells[number]
            self.blocks[:, self._columns[number]] = cells[_subsets(len(cells), sizes[number])[index]]
        rank = rest - self._offsets[self.opened]
        for block in np.sort(self.blocks, axis=1).T:
            rank += rank >= self._agent_rank[self.opened, block]
        self.agent = np.empty(self.n_states, dtype=np.int32)
        for number, cells in enumerate(standing):
            rows = self.opened == number
            self.agent[rows] = cells[rank[rows]]

    def encode(self, agent: NDArray[Any], blocks: NDArray[Any], opened: NDArray[np.int64]) -> NDArray[np.int64]:
        """
        Number states.

        :param agent: Cells of the agent, (N,); a cell is on the map or -1
        :param blocks: Cells of the blocks, (N, B), region by region, see :meth:`by_region`
        :param opened: Numbers of the sets of open doors, (N,)
        :return: State numbers, (N,), -1 for impossible ones
        """
        rank = self._agent_rank[opened, agent]
        possible = rank >= 0
        arrangement = np.zeros(len(agent), dtype=np.int64)
        for radix, columns, ranks in zip(self._radices, self._columns, self._region_rank, strict=True):
            places = np.sort(ranks[blocks[:, columns]], axis=1)
            possible &= (places[:, 0] >= 0) & (np.diff(places, axis=1) > 0).all(axis=1)
            arrangement = arrangement * radix + _subset_number(places)
        before = np.zeros(len(agent), dtype=np.int64)
        for block in blocks.T:
            possible &= agent != block
            before += self._agent_rank[opened, block] < rank
        states = arrangement * self._per_arrangement + self._offsets[opened] + rank - before
        return np.asarray(np.where(possible, states, -1), dtype=np.int64)

    def by_region(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """
        Put blocks into the order of regions.

        :param blocks: Cells, on the map or -1, (N, B)
        :return: The same cells, (N, B)
        """
        return np.take_along_axis(blocks, np.argsort(self._region_of[blocks], axis=1, kind="stable"), axis=1)

    def flat(self, cells: Sequence[Cell]) -> NDArray[np.intp]:
        """
        :param cells: (row, column) pairs
        :return: The same as flat indexes
        """
        return np.array([row * self._width + column for row, column in cells], dtype=np.intp)

    def _standing(self, layout: Layout, opened: int) -> NDArray[np.intp]:
        """The cells on which the agent may stand."""
        open_doors = [cells for bit, cells in zip(self.bits.tolist(), self.doors, strict=True) if opened & bit]
        return np.sort(np.concatenate([self.flat(layout.free), *open_doors]))


def _subsets(n: int, size: int) -> NDArray[np.int64]:
    """All sets of ``size`` of the numbers below ``n``, in the order of :func:`_subset_number`, as ascending rows."""
    subsets = np.array(list(combinations(range(n), size)))
    return subsets[np.lexsort(subsets.T)]


def _subset_number(subsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number ascending rows, (N, k): the sum of the binomials C(k-th, k), counted from 1 ("combinatorial number system")."""
    number = np.zeros(len(subsets), dtype=np.int64)
    for size, members in enumerate(subsets.T, start=1):
        binomial = np.ones_like(number)
        for factor in range(size):
            binomial = binomial * (members - factor) // (factor + 1)
        number += binomial
    return number
