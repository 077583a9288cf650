"""A layout compiled into a finite Markov decision process: numbered states, dynamics as tables, states as pictures."""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gym_twoRooms.connectivity import stranded_state
from gym_twoRooms.layout import DIRECTIONS, Cell, Layout, LayoutError

MAX_STATES = 4_000_000
"""Most states that are compiled; the tables and the check of them take about 350 bytes a state."""
MAX_TABLE_BYTES = 64 * 2**20
"""Up to this size the pictures of all states are kept as a table."""

COLOURS: Mapping[str, tuple[int, int, int]] = MappingProxyType(
    {
        "floor": (236, 236, 228),
        "wall": (72, 72, 78),
        "slippery": (22, 36, 122),
        "switch": (242, 192, 46),
        "door shut": (146, 84, 38),
        "door open": (168, 214, 150),
        "block": (126, 62, 158),
        "agent": (214, 48, 42),
    }
)
"""RGB colour of each thing, all distinct, so that no two states look the same."""


class Action(IntEnum):
    """What the agent can do."""

    UP = 0
    DOWN = 1
    LEFT = 2
    RIGHT = 3
    TOGGLE = 4


class TwoRoomsMDP:
    """
    All states of a layout, numbered by arithmetic, with their dynamics and pictures. Immutable: its arrays are read-only.

    A state is where the block is, whether the door is open, and where the agent is, numbered in that order of significance.
    Cells are flat indexes ``row * width + column``. S is the number of states, H x W the size of the map.

    :ivar layout: The map
    :ivar slip_probability: Probability that an action on slippery floor becomes a random move
    :ivar close_probability: Probability that an open, empty door closes after an action
    :ivar n_states: S
    :ivar n_actions: 5, see :class:`Action`
    :ivar agent: Cell of the agent, (S,) int32
    :ivar block: Cell of the block, -1 on a map without one, (S,) int32
    :ivar door_open: Whether the door is open, False on a map without one, (S,) bool
    :ivar slips: Whether the agent stands on slippery floor, (S,) bool
    :ivar action_mask: 1 where the action may do something: toggling only on a switch, (S, 5) int8
    :ivar next_state: State after each action, before the door may close and without slipping, (S, 5) int32
    :ivar closed_state: The state with the door shut; the state itself where it is shut or the agent is in it, (S,) int32

    :param layout: The map
    :param slip_probability: In [0, 1]
    :param close_probability: In [0, 1]
    :raises ValueError: If a probability is not in [0, 1]
    :raises LayoutError: If there are more than :data:`MAX_STATES` states, or one that cannot be reached or left
    """

    n_actions = len(Action)

    def __init__(self, layout: Layout, slip_probability: float = 0.5, close_probability: float = 0.01) -> None:
        for name, value in (("slip_probability", slip_probability), ("close_probability", close_probability)):
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"{name} must be in [0, 1], got {value}.")
        self.layout = layout
        self.slip_probability = float(slip_probability)
        self.close_probability = float(close_probability)
        self._number_states()
        self._compile_dynamics()
        for table in vars(self).values():
            if isinstance(table, np.ndarray):
                table.flags.writeable = False
        self._check_connected()

    def __reduce__(self) -> tuple[Any, ...]:
        # Copies and processes share or rebuild the compiled tables instead of carrying megabytes.
        return compile_layout, (self.layout, self.slip_probability, self.close_probability)

    def encode(self, agent: ArrayLike, block: ArrayLike, door_open: ArrayLike) -> NDArray[np.int64]:
        """
        Number the states with these parts; the three arguments are broadcast together.

        :param agent: Cells of the agent, int
        :param block: Cells of the block, int; -1 on a map without one
        :param door_open: Whether the door is open, bool
        :return: State numbers, int64, of the broadcast shape
        :raises ValueError: If no state is like that
        """
        agent, block, is_open = np.broadcast_arrays(agent, block, np.asarray(door_open, dtype=np.bool_))
        n_cells = self.layout.height * self.layout.width
        inside = (agent >= 0) & (agent < n_cells) & (block >= -1) & (block < n_cells)
        states = self._encode(np.where(inside, agent, 0), np.where(inside, block, 0), is_open)
        wrong = ~inside | (states < 0)
        if wrong.any():
            first = np.unravel_index(int(wrong.argmax()), wrong.shape)
            door = "open" if is_open[first] else "closed"
            raise ValueError(f"There is no state with the agent in cell {agent[first]}, block in {block[first]}, door {door}.")
        return states

    def check_states(self, states: ArrayLike) -> NDArray[np.int64]:
        """
        Validate state numbers that come from a user.

        :param states: State numbers, any shape
        :return: The same, int64
        :raises TypeError: If they are not integers
        :raises ValueError: If one is not in [0, S)
        """
        array = np.asarray(states)
        if array.dtype.kind not in "iu":
            raise TypeError(f"A state must be an integer, got {states!r}.")
        outside = (array < 0) | (array >= self.n_states)
        if outside.any():
            raise ValueError(f"A state must be in [0, {self.n_states}), got {array[outside].flat[0]}.")
        return array.astype(np.int64)

    def initial_states(self, uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
        """
        Draw states uniformly from all of them.

        :param uniforms: Uniform draws from [0, 1), any shape
        :return: State numbers, int64, of that shape
        """
        return (uniforms * self.n_states).astype(np.int64)

    def step(
        self, states: NDArray[np.integer[Any]], actions: NDArray[np.integer[Any]], uniforms: NDArray[np.float64]
    ) -> NDArray[np.int32]:
        """
        Make one step from each state. This is the whole of the dynamics; nothing is validated, for speed.

        :param states: State numbers, (N,)
        :param actions: Actions, (N,)
        :param uniforms: Uniform draws from [0, 1), (N, 2): the first decides whether and where to the agent slips,
            the second whether the door closes
        :return: Next states, (N,) int32
        """
        slipping = self.slips[states] & (uniforms[:, 0] < self.slip_probability)
        if slipping.any():
            # Given a slip, u / p is uniform in [0, 1) again and picks one of four moves. Rounding cannot make it 1: u < p.
            moves = uniforms[slipping, 0] / self.slip_probability * 4
            actions = actions.copy()
            actions[slipping] = moves.astype(actions.dtype)
        arrived = self.next_state[states, actions]
        reached: NDArray[np.int32] = np.where(uniforms[:, 1] < self.close_probability, self.closed_state[arrived], arrived)
        return reached

    def step_one(self, state: int, action: int, slip: float, close: float) -> int:
        """
        :meth:`step` for a single state, without the cost of arrays.

        :param state: State number
        :param action: Action
        :param slip: Uniform draw from [0, 1) that decides whether and where to the agent slips
        :param close: Uniform draw from [0, 1) that decides whether the door closes
        :return: Next state
        """
        if slip < self.slip_probability and self.slips.item(state):
            action = int(slip / self.slip_probability * 4)
        arrived: int = self.next_state.item(state, action)
        return self.closed_state.item(arrived) if close < self.close_probability else arrived

    @cached_property
    def has_table(self) -> bool:
        """Whether the pictures of all states are few enough to be kept as a table."""
        return self.n_states * self._ground.nbytes <= MAX_TABLE_BYTES

    @cached_property
    def observations(self) -> NDArray[np.uint8]:
        """
        The pictures of all states, (S, H, W, 3) uint8, read-only, drawn on first use.

        :raises ValueError: If they would take more than :data:`MAX_TABLE_BYTES`; use :meth:`render` or :meth:`observe` then
        """
        if not self.has_table:
            size = self.n_states * self._ground.nbytes / 2**20
            limit = MAX_TABLE_BYTES / 2**20
            raise ValueError(f"A table of all observations would take {size:.0f} MiB (limit {limit:.0f}); use render(states).")
        table = self.render(np.arange(self.n_states))
        table.flags.writeable = False
        return table

    def observe(self, states: NDArray[np.integer[Any]]) -> NDArray[np.uint8]:
        """
        Look up the pictures of states, or draw them where there is no table.

        :param states: State numbers, (N,)
        :return: A new array, (N, H, W, 3) uint8
        """
        return self.observations[states] if self.has_table else self.render(states)

    def observe_one(self, state: int) -> NDArray[np.uint8]:
        """
        :meth:`observe` for a single state.

        :param state: State number
        :return: A new array, (H, W, 3) uint8
        """
        picture: NDArray[np.uint8] = self.observations[state] if self.has_table else self.render(np.array([state]))[0]
        return picture.copy()

    def render(self, states: NDArray[np.integer[Any]]) -> NDArray[np.uint8]:
        """
        Draw the pictures of states, one pixel per cell, without using the table.

        :param states: State numbers, (N,)
        :return: A new array, (N, H, W, 3) uint8
        """
        states = np.asarray(states)
        pictures = np.tile(self._ground, (len(states), 1, 1))
        rows = np.arange(len(states))
        if self._door >= 0:
            pictures[self.door_open[states], self._door] = COLOURS["door open"]
        if self._has_block:
            pictures[rows, self.block[states]] = COLOURS["block"]
        pictures[rows, self.agent[states]] = COLOURS["agent"]
        return pictures.reshape(-1, self.layout.height, self.layout.width, 3)

    def state_of(self, observation: ArrayLike) -> int:
        """
        Recognise a state by its picture.

        :param observation: A picture, (H, W, 3)
        :return: The state that looks so
        :raises ValueError: If no state does
        """
        picture = np.asarray(observation)
        expected = (self.layout.height, self.layout.width, 3)
        if picture.shape != expected:
            raise ValueError(f"An observation has shape {expected}, got {picture.shape}.")
        flat = picture.reshape(-1, 3)
        agent = np.flatnonzero((flat == COLOURS["agent"]).all(axis=1))
        block = np.flatnonzero((flat == COLOURS["block"]).all(axis=1)) if self._has_block else np.array([-1])
        if len(agent) != 1 or len(block) != 1:
            raise ValueError(f"No state looks like this observation: it shows {len(agent)} agents and {len(block)} blocks.")
        # The agent hides the door only when it stands in it, and then the door is open.
        door_open = self._door >= 0 and not np.array_equal(flat[self._door], COLOURS["door shut"])
        state = self._encode(agent, block, np.array([door_open]))
        if state[0] < 0 or not np.array_equal(self.render(state)[0], picture):
            raise ValueError("No state looks like this observation.")
        return int(state[0])

    def _number_states(self) -> None:
        """Set up the numbering, the arrays that hold the parts of each state, and the picture without agent and block."""
        layout = self.layout
        n_cells = layout.height * layout.width
        self._has_block = layout.block is not None
        self._door = -1 if layout.door is None else self._flat([layout.door])[0]
        closed_cells = self._flat(layout.free)
        open_cells = closed_cells if self._door < 0 else np.sort(np.append(closed_cells, self._door))
        block_cells = self._flat(layout.block_region) if self._has_block else np.array([-1])

        # Where each cell comes among those the agent may stand on, with the door closed (0) and open (1), and among those
        # of the block; -1 where it may not. The additional last entry is for the cell -1: "no block".
        self._agent_rank = np.full((2, n_cells + 1), -1)
        self._agent_rank[0, closed_cells] = np.arange(len(closed_cells))
        self._agent_rank[1, open_cells] = np.arange(len(open_cells))
        self._block_rank = np.full(n_cells + 1, -1)
        self._block_rank[block_cells] = np.arange(len(block_cells))

        self._n_closed = len(closed_cells) - self._has_block
        self._n_open = len(open_cells) - self._has_block if self._door >= 0 else 0
        self._per_block = self._n_closed + self._n_open
        self.n_states = len(block_cells) * self._per_block
        if self.n_states > MAX_STATES:
            raise LayoutError(f"The layout has {self.n_states} states; at most {MAX_STATES} are supported.")

        place, rest = np.divmod(np.arange(self.n_states), self._per_block)
        is_open = rest >= self._n_closed
        rank = rest - self._n_closed * is_open
        if self._has_block:  # the cell of the block is left out of the agent's
            rank += rank >= self._agent_rank[is_open.astype(np.intp), block_cells[place]]
        # Ranks of an open door may lie past the end of the shorter closed list, and are not used there.
        agent = np.where(is_open, open_cells[rank], closed_cells[np.minimum(rank, len(closed_cells) - 1)])
        self.agent = agent.astype(np.int32)
        self.block = block_cells[place].astype(np.int32)
        self.door_open = is_open

        self._ground = np.full((n_cells, 3), COLOURS["floor"], dtype=np.uint8)
        self._ground[self._flat(layout.switches)] = COLOURS["switch"]
        self._ground[self._flat(layout.slippery)] = COLOURS["slippery"]
        self._ground[np.setdiff1d(np.arange(n_cells), open_cells)] = COLOURS["wall"]
        if self._door >= 0:
            self._ground[self._door] = COLOURS["door shut"]

    def _encode(self, agent: NDArray[Any], block: NDArray[Any], is_open: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Number states by arithmetic; -1 for impossible ones. Cells must be on the map, or -1."""
        agent_rank = self._agent_rank[is_open.astype(np.intp), agent]
        block_rank = self._block_rank[block]
        possible = (agent_rank >= 0) & (block_rank >= 0) & (agent != block)
        if self._door < 0:
            possible &= ~is_open
        if self._has_block:
            agent_rank = agent_rank - (agent_rank > self._agent_rank[is_open.astype(np.intp), block])
        states = block_rank * self._per_block + self._n_closed * is_open + agent_rank
        return np.asarray(np.where(possible, states, -1), dtype=np.int64)

    def _compile_dynamics(self) -> None:
        """Fill the tables of what each action does, for all states at once."""
        layout = self.layout
        n_cells = layout.height * layout.width
        on_slippery, on_switch = np.zeros((2, n_cells), dtype=np.bool_)
        on_slippery[self._flat(layout.slippery)] = True
        on_switch[self._flat(layout.switches)] = True
        self.slips = on_slippery[self.agent]
        self.action_mask = np.ones((self.n_states, self.n_actions), dtype=np.int8)
        self.action_mask[:, Action.TOGGLE] = on_switch[self.agent]

        self.next_state = np.empty((self.n_states, self.n_actions), dtype=np.int32)
        unchanged = np.arange(self.n_states)
        row, column = np.divmod(np.arange(n_cells), layout.width)
        for move, (down, right) in enumerate(DIRECTIONS.values()):
            to_row, to_column = row + down, column + right
            on_map = (to_row >= 0) & (to_row < layout.height) & (to_column >= 0) & (to_column < layout.width)
            beside = np.where(on_map, to_row * layout.width + to_column, -1)
            agent = beside[self.agent]
            pushes = (agent == self.block) & (agent >= 0)
            block = np.where(pushes, beside[self.block], self.block)
            # Whatever is in the way - wall, edge, closed door, or one of them behind the block - makes the state impossible.
            moved = self._encode(agent, block, self.door_open)
            self.next_state[:, move] = np.where(moved >= 0, moved, unchanged)
        toggled = self._encode(self.agent, self.block, ~self.door_open)
        self.next_state[:, Action.TOGGLE] = np.where(on_switch[self.agent], toggled, unchanged)
        closed = self._encode(self.agent, self.block, np.zeros_like(self.door_open))
        self.closed_state = np.where(closed >= 0, closed, unchanged).astype(np.int32)

    def _check_connected(self) -> None:
        """Raise LayoutError unless every state can be reached from every other."""
        # Slipping adds nothing: it makes moves that the agent could choose there, and toggling is a no-op on slippery floor.
        outcomes = []
        if self.close_probability < 1:
            outcomes.append(self.next_state)
        if self.close_probability > 0:
            outcomes.append(self.closed_state[self.next_state])
        stranded = stranded_state(np.concatenate(outcomes, axis=1))
        if stranded is not None:
            state, is_trap = stranded
            verb = "left: no way leads from it back to the others" if is_trap else "reached from the others"
            note = f"rows and columns count from 0; close_probability is {self.close_probability}"
            raise LayoutError(f"The state ({self._describe(state)}) cannot be {verb} ({note}).")

    def _describe(self, state: int) -> str:
        cells = {"agent": self.agent[state]} | ({"block": self.block[state]} if self._has_block else {})
        width = self.layout.width
        places = [f"the {thing} at row {cell // width}, column {cell % width}" for thing, cell in cells.items()]
        return ", ".join([*places, f"the door {'open' if self.door_open[state] else 'closed'}"])

    def _flat(self, cells: Sequence[Cell]) -> NDArray[np.intp]:
        return np.array([row * self.layout.width + column for row, column in cells], dtype=np.intp)


def compile_layout(layout: Layout, slip_probability: float = 0.5, close_probability: float = 0.01) -> TwoRoomsMDP:
    """
    Compile a layout, or return the result of having done so before: it is immutable and can be shared.

    :param layout: The map
    :param slip_probability: In [0, 1]
    :param close_probability: In [0, 1]
    :return: The compiled layout
    :raises ValueError: As :class:`TwoRoomsMDP`
    """
    return _compile(layout, float(slip_probability), float(close_probability))


# Apart from its wrapper because the cache tells arguments left out from the same ones given.
_compile = lru_cache(maxsize=16)(TwoRoomsMDP)
