"""A layout compiled into a finite Markov decision process: states, dynamics and pictures."""

from bisect import bisect_right
from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gym_twoRooms.layout import (
    BLOCK,
    DIRECTIONS,
    DOORS,
    FLOOR,
    SLIPPERY,
    SWITCHES,
    WALL,
    Layout,
    LayoutError,
    as_layout,
)
from gym_twoRooms.states import StateNumbering, flat, stranded_state

MAX_TABLE_BYTES = 64 * 2**20
"""The pictures of all states are kept as a table up to this size, in bytes."""

COLOURS: Mapping[str, tuple[int, int, int]] = {
    "floor": (236, 236, 228),
    "wall": (72, 72, 78),
    "slippery": (22, 36, 122),
    "switch S": (242, 192, 46),
    "switch T": (64, 172, 214),
    "switch U": (236, 120, 44),
    "switch V": (120, 200, 90),
    "door shut": (146, 84, 38),
    "door open": (168, 214, 150),
    "block": (126, 62, 158),
    "agent": (214, 48, 42),
}
"""The RGB colour of each thing. All are distinct, so that no two states look the same."""
THINGS: Mapping[str, str] = {
    **{FLOOR: "floor", WALL: "wall", SLIPPERY: "slippery", BLOCK: "floor"},
    **dict.fromkeys(DOORS, "door shut"),
    **{switch: f"switch {switch}" for switch in SWITCHES},
}
"""How each symbol looks where neither agent nor block is: a key of :data:`COLOURS`."""


class Action(IntEnum):
    """The actions of the agent."""

    UP = 0
    DOWN = 1
    LEFT = 2
    RIGHT = 3
    TOGGLE = 4


class TwoRoomsMDP:
    """
    All states of a layout with their numbers, dynamics and pictures. Immutable: its arrays are
    read-only.

    A state is where the blocks are, which doors are open and where the agent is, numbered in that
    order of significance. Blocks look alike: exchanging two gives the same state. Cells are flat
    indexes ``row * width + column``. S is the number of states, B that of blocks, D that of doors,
    H x W the size of the map.

    :param layout: The map
    :param slip_probability: Probability, in [0, 1], that an action on slippery floor becomes a
        random move
    :param close_probability: Probability, in [0, 1], that an open, empty door closes after an
        action, for each door
    :raises ValueError: If a probability is not in [0, 1]
    :raises LayoutError: If there are too many states, or not all can reach each other
    :ivar layout: The map
    :ivar slip_probability: Probability that an action on slippery floor becomes a random move
    :ivar close_probability: Probability that an open, empty door closes after an action
    :ivar n_states: S
    :ivar n_actions: 5, see :class:`Action`
    :ivar agent: Cell of the agent, (S,) int32
    :ivar blocks: Cells of the blocks, (S, B) int32; those of blocks that could meet are in
        ascending order
    :ivar doors_open: Whether each door is open, in the order of ``layout.doors``, (S, D) bool
    :ivar slips: Whether the agent stands on slippery floor, (S,) bool
    :ivar on_switch: Whether the agent stands on a switch, (S,) bool
    :ivar chance: Whether a step is random, (S,) bool: on slippery floor, on a switch or with a door
        open, unless the probabilities are 0
    :ivar next_state: State after each action, without slipping and before doors may close, (S, 5)
        int64
    :ivar closed_state: State after a set of doors tried to close; a door in which the agent stands
        stays open. Bit d of a set stands for door d; (S, 2**D) int32
    :ivar closing_probability: Probability that exactly this set of doors tries to close after an
        action, (2**D,) float64
    :ivar has_table: Whether the pictures of all states are few enough to be kept as a table
    """

    n_actions = len(Action)

    def __init__(
        self, layout: Layout, slip_probability: float = 0.5, close_probability: float = 0.01
    ) -> None:
        self.layout = layout
        self.slip_probability = _probability("slip_probability", slip_probability)
        self.close_probability = _probability("close_probability", close_probability)
        self._numbering = StateNumbering(layout)
        self.n_states = self._numbering.n_states
        self.agent = self._numbering.agent
        self.blocks = self._numbering.blocks
        self.doors_open = (self._numbering.opened[:, np.newaxis] & self._numbering.bits) > 0
        self._ground = np.array(
            [COLOURS[THINGS[symbol]] for row in layout.rows for symbol in row], dtype=np.uint8
        )
        self.has_table = self.n_states * self._ground.nbytes <= MAX_TABLE_BYTES
        self._compile_actions()
        self._compile_closing()
        for table in vars(self).values():
            if isinstance(table, np.ndarray):
                table.flags.writeable = False
        # Single steps look these functions up often enough for a second name to pay.
        self._chance_at = self.chance.item
        self._next_state_at = self.next_state.item
        self._check_connected()

    def __reduce__(self) -> tuple[Any, ...]:
        # Copies and processes share or rebuild the compiled tables instead of carrying megabytes.
        return compile_layout, (self.layout, self.slip_probability, self.close_probability)

    def encode(
        self, agent: ArrayLike, blocks: ArrayLike = (), doors_open: ArrayLike = ()
    ) -> NDArray[np.int64]:
        """
        Return the numbers of the states with these parts.

        The shapes ``...`` of the three arguments are broadcast together.

        :param agent: Cells of the agent, (...) int
        :param blocks: Cells of the blocks, (..., B) int, in any order; none by default
        :param doors_open: Whether each door is open, (..., D) bool; no doors by default
        :return: State numbers, (...) int64
        :raises ValueError: If no state is like that
        """
        agent = np.asarray(agent)
        blocks = np.asarray(blocks)
        doors_open = np.asarray(doors_open, dtype=np.bool_)
        for name, array, size in (
            ("blocks", blocks, self.blocks.shape[1]),
            ("doors_open", doors_open, self.doors_open.shape[1]),
        ):
            if array.shape[-1:] != (size,):
                raise ValueError(f"{name} must have shape (..., {size}), got {array.shape}.")
        states = self._numbering.encode(
            agent, self._numbering.arrange(blocks), doors_open @ self._numbering.bits
        )
        if (states < 0).any():
            parts = f"agent in cell {agent}, blocks in {blocks}, doors open {doors_open}"
            raise ValueError(f"There is no state with the {parts}.")
        return states

    def check_states(self, states: ArrayLike) -> NDArray[np.int64]:
        """
        Return a user's state numbers as an array, or raise an error if they are none.

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
            raise ValueError(
                f"A state must be in [0, {self.n_states}), got {array[outside].flat[0]}."
            )
        return array.astype(np.int64)

    def initial_states(self, uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
        """
        Return initial states. All states are equally likely.

        :param uniforms: Uniform random numbers from [0, 1), any shape
        :return: A state number for each of them, int64
        """
        return (uniforms * self.n_states).astype(np.int64)

    def step(
        self,
        states: NDArray[np.int64],
        actions: NDArray[np.integer[Any]],
        draw: Callable[[NDArray[np.intp]], NDArray[np.float64]],
    ) -> NDArray[np.int64]:
        """
        Take one step from each state. Nothing is validated, for speed.

        :param states: State numbers, (N,)
        :param actions: Actions, (N,)
        :param draw: Function that gets the rows, (k,) ascending, in which the step is random, and
            draws a uniform number from [0, 1) for each. The number decides whether and where the
            agent slips; its remainder decides which doors close
        :return: Next states, (N,) int64
        """
        rows = np.flatnonzero(self.chance.take(states))
        if len(rows) == 0:
            return self.next_state.take(states * self.n_actions + actions)
        uniforms = draw(rows)
        slippery = self.slips.take(states[rows])
        if slippery.any():
            slips = slippery & (uniforms < self.slip_probability)
            # Given a slip, u / p is uniform again. It picks one of four moves, and its fraction is
            # uniform once more. It is below 1 after rounding too, as u < p.
            scaled = uniforms[slips] / self.slip_probability * 4
            moves = scaled.astype(actions.dtype)
            actions = actions.copy()
            actions[rows[slips]] = moves
            stays = slippery & ~slips
            uniforms[stays] = (uniforms[stays] - self.slip_probability) / (
                1.0 - self.slip_probability
            )
            uniforms[slips] = scaled - moves
        arrived: NDArray[np.int64] = self.next_state.take(states * self.n_actions + actions)
        closing = np.flatnonzero(uniforms < self._closing_bounds[-1])
        if len(closing):
            doors = np.searchsorted(self._closing_bounds, uniforms[closing], side="right")
            arrived[rows[closing]] = self.closed_state[arrived[rows[closing]], doors]
        return arrived

    def step_one(self, state: int, action: int, draw: Callable[[], float]) -> int:
        """
        Take a step from a single state, as :meth:`step` does, without the cost of arrays.

        :param state: The number of the state
        :param action: The action
        :param draw: Function that draws a uniform number from [0, 1); called only if the step is
            random
        :return: The number of the next state
        """
        if not self._chance_at(state):
            return self._next_state_at(state * 5 + action)
        uniform = draw()
        if self.slips.item(state):
            slip = self.slip_probability
            if uniform < slip:
                scaled = uniform / slip * 4
                action = int(scaled)
                uniform = scaled - action
            else:
                uniform = (uniform - slip) / (1.0 - slip)
        arrived: int = self._next_state_at(state * 5 + action)
        if uniform < self._closing_bounds_list[-1]:
            doors = bisect_right(self._closing_bounds_list, uniform)
            arrived = self.closed_state.item(arrived, doors)
        return arrived

    @cached_property
    def observations(self) -> NDArray[np.uint8]:
        """
        The pictures of all states, (S, H, W, 3) uint8, read-only, drawn on first use.

        :raises ValueError: If they would take more than :data:`MAX_TABLE_BYTES`; use :meth:`render`
            or :meth:`observe` then
        """
        if not self.has_table:
            size = self.n_states * self._ground.nbytes / 2**20
            limit = MAX_TABLE_BYTES / 2**20
            raise ValueError(
                f"A table of all observations would take {size:.0f} MiB (limit {limit:.0f}); "
                "use render(states)."
            )
        table = self.render(np.arange(self.n_states))
        table.flags.writeable = False
        return table

    def observe(self, states: NDArray[np.integer[Any]] | int) -> NDArray[np.uint8]:
        """
        Return the pictures of states, looked up or drawn.

        :param states: State numbers, any shape
        :return: A new array, (..., H, W, 3) uint8
        """
        if not self.has_table:
            return self.render(states)
        # With mode "clip", take() does not check the range and is twice as fast.
        return self.observations.take(states, axis=0, mode="clip")

    def action_masks(self, states: NDArray[np.integer[Any]] | int) -> NDArray[np.int8]:
        """
        Return which actions may do something. Only toggling may not: it needs a switch.

        :param states: State numbers, any shape
        :return: A new array, 1 where an action may do something, else 0, (..., 5) int8
        """
        masks = np.ones((*np.shape(states), self.n_actions), dtype=np.int8)
        masks[..., Action.TOGGLE] = self.on_switch.take(states)
        return masks

    def render(self, states: NDArray[np.integer[Any]] | int) -> NDArray[np.uint8]:
        """
        Draw the pictures of states anew, one pixel per cell.

        :param states: State numbers, any shape
        :return: A new array, (..., H, W, 3) uint8
        """
        numbers = np.ravel(states)
        pictures = np.tile(self._ground, (len(numbers), 1, 1))
        rows = np.arange(len(numbers))
        for door, cells in enumerate(self._numbering.doors):
            pictures[np.ix_(self.doors_open[numbers, door], cells)] = COLOURS["door open"]
        for blocks in self.blocks[numbers].T:
            pictures[rows, blocks] = COLOURS["block"]
        pictures[rows, self.agent[numbers]] = COLOURS["agent"]
        return pictures.reshape(*np.shape(states), self.layout.height, self.layout.width, 3)

    def states_of(self, observations: ArrayLike) -> NDArray[np.int64]:
        """
        Return the states that look like observations.

        :param observations: Pictures, (N, H, W, 3)
        :return: State numbers, (N,) int64
        :raises ValueError: If no state looks like one of them
        """
        pictures = np.asarray(observations)
        expected = (self.layout.height, self.layout.width, 3)
        if pictures.shape[1:] != expected:
            raise ValueError(f"An observation has shape {expected}, got {pictures.shape[1:]}.")
        pixels = pictures.reshape(len(pictures), len(self._ground), 3)
        is_agent, is_block, is_shut = (
            (pixels == COLOURS[thing]).all(axis=2) for thing in ("agent", "block", "door shut")
        )
        fits = (is_agent.sum(axis=1) == 1) & (is_block.sum(axis=1) == self.blocks.shape[1])
        if fits.all():
            blocks = np.nonzero(is_block)[1].reshape(len(pixels), self.blocks.shape[1])
            opened = np.zeros(len(pixels), dtype=np.int64)
            for bit, cells in zip(
                self._numbering.bits.tolist(), self._numbering.doors, strict=True
            ):
                # The agent hides a door only when it stands in it, and then the door is open.
                opened += bit * ~is_shut[:, cells].any(axis=1)
            states = self._numbering.encode(
                is_agent.argmax(axis=1), self._numbering.arrange(blocks), opened
            )
            fits = (states >= 0) & (self.observe(states) == pictures).all(axis=(1, 2, 3))
            if fits.all():
                return states
        raise ValueError(f"No state looks like this observation (row {int(fits.argmin())}).")

    def _compile_actions(self) -> None:
        """Make the tables of what each action does."""
        layout = self.layout
        numbering = self._numbering
        n_cells = layout.height * layout.width
        # The bit of the door that toggling flips in each cell, 0 where there is no switch.
        flips_in_cell = np.zeros(n_cells, dtype=np.int64)
        for bit, switches in zip(numbering.bits, layout.switches, strict=True):
            flips_in_cell[flat(layout, switches)] = bit
        flips = flips_in_cell[self.agent]
        self.slips = np.isin(self.agent, flat(layout, layout.slippery))
        self.on_switch = flips > 0
        self.chance = self.slips & (self.slip_probability > 0)
        if self.close_probability > 0:
            self.chance |= self.on_switch | self.doors_open.any(axis=1)

        self.next_state = np.empty((self.n_states, self.n_actions), dtype=np.int64)
        unchanged = np.arange(self.n_states)
        # The numbers of the cells with a rim of -1 around them.
        cells = np.pad(
            np.arange(n_cells).reshape(layout.height, layout.width), 1, constant_values=-1
        )
        for move, (down, right) in enumerate(DIRECTIONS):
            rows = slice(1 + down, layout.height + 1 + down)
            columns = slice(1 + right, layout.width + 1 + right)
            beside = cells[rows, columns].ravel()
            agent = beside[self.agent]
            pushed = self.blocks == agent[:, np.newaxis]
            pushes = pushed.any(axis=1)
            arrangement = numbering.arrangement.copy()
            arrangement[pushes] = numbering.arrange(
                np.where(pushed, beside[self.blocks], self.blocks)[pushes]
            )
            # A move is impossible if a wall, shut door, edge or block is in the way.
            moved = numbering.encode(agent, arrangement, numbering.opened)
            self.next_state[:, move] = np.where(moved >= 0, moved, unchanged)
        self.next_state[:, Action.TOGGLE] = numbering.encode(
            self.agent, numbering.arrangement, numbering.opened ^ flips
        )

    def _compile_closing(self) -> None:
        """Make the tables of how doors close."""
        numbering = self._numbering
        door_sets = np.arange(2 ** len(numbering.doors))
        unchanged = np.arange(self.n_states)
        self.closed_state = np.empty((self.n_states, len(door_sets)), dtype=np.int32)
        self.closed_state[:, 0] = unchanged
        for bit in numbering.bits.tolist():
            shut = numbering.encode(self.agent, numbering.arrangement, numbering.opened & ~bit)
            shut = np.where(shut >= 0, shut, unchanged)
            # Add this door to each set of the earlier doors.
            self.closed_state[:, bit : 2 * bit] = shut[self.closed_state[:, :bit]]
        n_closing = (door_sets[:, np.newaxis] & numbering.bits > 0).sum(axis=1)
        n_staying = len(numbering.doors) - n_closing
        close = self.close_probability
        self.closing_probability = close**n_closing * (1.0 - close) ** n_staying
        # A draw closes the doors of the first set whose bound is above it. Above the last bound no
        # door closes.
        self._closing_bounds = np.append(0.0, np.cumsum(self.closing_probability[1:]))
        self._closing_bounds_list = self._closing_bounds.tolist()

    def _check_connected(self) -> None:
        """Raise a LayoutError unless all states can reach each other."""
        # Slipping adds nothing: it makes moves that the agent could choose there, and toggling does
        # nothing on slippery floor.
        state = stranded_state(self.next_state, self.closed_state[:, self.closing_probability > 0])
        if state is None:
            return
        parts = [
            ("the agent", self.agent[state]),
            *(("a block", block) for block in self.blocks[state]),
        ]
        for cells, is_open in zip(self._numbering.doors, self.doors_open[state], strict=True):
            parts.append((f"the {'open' if is_open else 'shut'} door", cells[0]))
        width = self.layout.width
        found = ", ".join(
            f"{name} at row {cell // width}, column {cell % width}" for name, cell in parts
        )
        raise LayoutError(
            "All states must be reachable from each other; this one is cut off from most: "
            f"{found} (rows and columns count from 0; close_probability is "
            f"{self.close_probability})."
        )


def compile_layout(
    layout: Layout | str, slip_probability: float = 0.5, close_probability: float = 0.01
) -> TwoRoomsMDP:
    """
    Compile a layout into a Markov decision process, which is immutable.

    :param layout: A layout, the name of one, or an ASCII map
    :param slip_probability: Probability, in [0, 1], that an action on slippery floor becomes a
        random move
    :param close_probability: Probability, in [0, 1], that an open, empty door closes after an
        action, for each door
    :return: The process; the same object if the same arguments were compiled lately
    :raises ValueError: If a probability is not in [0, 1]
    :raises LayoutError: If the map is not valid, there are too many states, or not all can reach
        each other
    """
    slip = _probability("slip_probability", slip_probability)
    close = _probability("close_probability", close_probability)
    return _compile(as_layout(layout), slip, close)


def _probability(name: str, value: float) -> float:
    if not isinstance(value, (int, float, np.number)) or not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} must be a number in [0, 1], got {value!r}.")
    return float(value)


# A cache on compile_layout itself would compile twice if defaults are given once and left out once.
_compile = lru_cache(maxsize=16)(TwoRoomsMDP)
