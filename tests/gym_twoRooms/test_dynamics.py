"""The rules, by a slow independent reference."""

import numpy as np
import pytest

from gym_twoRooms.layout import Layout
from gym_twoRooms.mdp import TwoRoomsMDP, compile_layout

UP, DOWN, LEFT, RIGHT, TOGGLE = range(5)
MOVES = {UP: (-1, 0), DOWN: (1, 0), LEFT: (0, -1), RIGHT: (0, 1)}
NEVER = 0.999
MDPS = {
    "paper": compile_layout("paper"),
    "small": compile_layout("small"),
    "no block": compile_layout(Layout.parse("SW.\n#D#\n.WS"), 1.0, 0.25),
    "no door": compile_layout(Layout.parse("......\n.B.W..\n......\n..W...\n....#."), 0.2, 1.0),
    "nothing": compile_layout(Layout.parse("..W"), 0.0, 0.0),
    "two blocks": compile_layout(Layout.parse("......\n.BB.W.\n......\n......\n..W...")),
    "blocks apart": compile_layout(
        Layout.parse("....#....\n.B..#..B.\nS...D...S\n....#....\n....#.W..")
    ),
    "three blocks": compile_layout(
        Layout.parse(".....#....\n.B.B.#W.B.\nS....D...S\n..W..#....\n.....#....")
    ),
    "two doors": compile_layout(Layout.parse("SW.\n#D#\nT.S\n.W.\n#E#\nT.U\n##F\n..U"), 0.5, 0.3),
    "wide door": compile_layout(Layout.parse("S..\nDD#\n.FS\nUW.\n"), 0.5, 0.4),
    "locks": compile_layout("locks"),
    "warehouse": compile_layout("warehouse"),
}


def step(mdp: TwoRoomsMDP, state: int, action: int, uniform: float = NEVER) -> int:
    return int(
        mdp.step(np.array([state]), np.array([action]), lambda rows: np.full(len(rows), uniform))[0]
    )


@pytest.mark.parametrize("probability", [5e-324, 1e-300, 0.1, 1 / 3, np.nextafter(0.7, 1), 1.0])
def test_the_largest_number_that_slips_makes_the_last_move(probability):
    mdp = TwoRoomsMDP(Layout.parse(".W.\n..."), slip_probability=probability)
    highest = float(np.nextafter(probability, 0))
    state = int(mdp.encode(1))
    assert step(mdp, state, UP, highest) == step(mdp, state, UP if highest == 0 else RIGHT)


class Reference:
    """The rules again, on the ASCII map, with none of the tables."""

    def __init__(self, mdp: TwoRoomsMDP) -> None:
        self.mdp = mdp
        self.rows = str(mdp.layout).split("\n")

    def symbol(self, row: int, column: int) -> str:
        inside = 0 <= row < len(self.rows) and 0 <= column < len(self.rows[0])
        return self.rows[row][column] if inside else "#"

    def parts(self, state: int) -> tuple[tuple[int, int], set[tuple[int, int]], set[str]]:
        width = len(self.rows[0])
        doors = sorted(set("".join(self.rows)) & set("DEFG"))
        return (
            divmod(int(self.mdp.agent[state]), width),
            {divmod(block, width) for block in self.mdp.blocks[state].tolist()},
            {
                door
                for door, is_open in zip(doors, self.mdp.doors_open[state], strict=True)
                if is_open
            },
        )

    def step(self, state: int, action: int, number: float) -> tuple:
        agent, blocks, opened = self.parts(state)
        if self.symbol(*agent) == "W":
            slip = self.mdp.slip_probability
            if number < slip:
                action = int(number / slip * 4)
                number = number / slip * 4 - action
            else:
                number = (number - slip) / (1 - slip)
        if action == TOGGLE:
            if self.symbol(*agent) in "STUV":
                opened ^= {"DEFG"["STUV".index(self.symbol(*agent))]}
        else:
            down, right = MOVES[action]
            target = (agent[0] + down, agent[1] + right)
            symbol = self.symbol(*target)
            if target in blocks:
                behind = (target[0] + down, target[1] + right)
                around = {self.symbol(behind[0] + d, behind[1] + r) for d, r in MOVES.values()}
                if behind not in blocks and not set("#DEFG") & {self.symbol(*behind), *around}:
                    agent = target
                    blocks = blocks - {target} | {behind}
            elif symbol != "#" and (symbol not in "DEFG" or symbol in opened):
                agent = target
        # Find which doors have their chance to close. All sets of doors share the interval from 0
        # to 1. The empty set is at its end.
        doors = sorted(set("".join(self.rows)) & set("DEFG"))
        bound = 0.0
        for bits in range(1, 2 ** len(doors)):
            closing = {door for place, door in enumerate(doors) if bits >> place & 1}
            close = self.mdp.close_probability
            bound += close ** len(closing) * (1.0 - close) ** (len(doors) - len(closing))
            if number < bound:
                opened -= closing - {self.symbol(*agent)}
                break
        return agent, blocks, opened


@pytest.mark.parametrize("name", MDPS)
def test_steps_equal_the_reference_and_draw_where_there_is_chance(name):
    mdp = MDPS[name]
    rng = np.random.default_rng(0)
    reference = Reference(mdp)
    for state in range(0, mdp.n_states, 7):
        agent, _, opened = reference.parts(state)
        slips = reference.symbol(*agent) == "W"
        closes = reference.symbol(*agent) in "STUV" or opened
        assert mdp.chance[state] == bool(
            (slips and mdp.slip_probability) or (closes and mdp.close_probability)
        )
    states = rng.integers(mdp.n_states, size=20_000)
    actions = rng.integers(5, size=20_000)
    # Half of the numbers are small, so that doors close often enough to be seen.
    uniforms = rng.random(20_000) * np.where(rng.random(20_000) < 0.5, 1.0, 0.03)
    before = (states.copy(), actions.copy(), uniforms.copy())
    drawn = []

    def draw(rows):
        drawn.extend(rows)
        return uniforms.take(rows)

    arrived = mdp.step(states, actions, draw)
    assert arrived.dtype == np.int64
    for copied, array in zip(before, (states, actions, uniforms), strict=True):
        np.testing.assert_array_equal(copied, array)
    for after, *row in zip(*(array.tolist() for array in (arrived, *before)), strict=True):
        assert reference.parts(after) == reference.step(*row)
    assert drawn == np.flatnonzero(mdp.chance[states]).tolist()
