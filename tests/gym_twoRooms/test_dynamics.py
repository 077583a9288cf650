"""The rules: by hand-written situations, by a slow independent reference, and by frequencies."""

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from gym_twoRooms.layout import Layout, LayoutError
from gym_twoRooms.mdp import Action, TwoRoomsMDP, compile_layout

UP, DOWN, LEFT, RIGHT, TOGGLE = range(5)
MOVES = {UP: (-1, 0), DOWN: (1, 0), LEFT: (0, -1), RIGHT: (0, 1)}
NEVER = 0.999
MDPS = {
    "paper": compile_layout(Layout.named("paper")),
    "small": compile_layout(Layout.named("small")),
    "no block": compile_layout(Layout.parse("SW.\n#D#\n.WS"), 1.0, 0.25),
    "no door": compile_layout(Layout.parse("......\n.B.W..\n......\n..W...\n....#."), 0.2, 1.0),
    "nothing": compile_layout(Layout.parse("..W"), 0.0, 0.0),
    "two blocks": compile_layout(Layout.parse("......\n.BB.W.\n......\n......\n..W...")),
    "blocks apart": compile_layout(Layout.parse("....#....\n.B..#..B.\nS...D...S\n....#....\n....#.W..")),
    "two doors": compile_layout(Layout.parse("SW.\n#D#\nT.S\n.W.\n#E#\nT.U\n##F\n..U"), 0.5, 0.3),
    "wide door": compile_layout(Layout.parse("S..\nDD#\n.FS\nUW.\n"), 0.5, 0.4),
    "locks": compile_layout(Layout.named("locks")),
    "warehouse": compile_layout(Layout.named("warehouse")),
}


def scene(mdp: TwoRoomsMDP, agent: tuple[int, int], block: tuple[int, int], door_open: bool) -> int:
    width = mdp.layout.width
    return int(mdp.encode(agent[0] * width + agent[1], [block[0] * width + block[1]], [door_open]))


def step(mdp: TwoRoomsMDP, state: int, action: int, uniform: float = NEVER) -> int:
    return int(mdp.step(np.array([state]), np.array([action]), lambda rows: np.array([uniform])[rows])[0])


AWAY = (6, 2)  # a place for the block where it is not in the way
# name: (agent, block, door open), action, (agent, block, door open)
SITUATIONS = {
    "walk up": (((5, 4), AWAY, False), UP, ((4, 4), AWAY, False)),
    "wall from above": (((2, 4), AWAY, True), DOWN, ((2, 4), AWAY, True)),
    "top edge": (((0, 4), AWAY, False), UP, ((0, 4), AWAY, False)),
    "right edge": (((5, 9), AWAY, False), RIGHT, ((5, 9), AWAY, False)),
    "closed door from above": (((2, 7), AWAY, False), DOWN, ((2, 7), AWAY, False)),
    "into the open door": (((2, 7), AWAY, True), DOWN, ((3, 7), AWAY, True)),
    "out of the door": (((3, 7), AWAY, True), DOWN, ((4, 7), AWAY, True)),
    "push down": (((5, 2), (6, 2), False), DOWN, ((6, 2), (7, 2), False)),
    "push up": (((7, 2), (6, 2), False), UP, ((6, 2), (5, 2), False)),
    "blocked push, wall": (((6, 2), (5, 2), False), UP, ((6, 2), (5, 2), False)),
    "blocked push, edge below": (((7, 2), (8, 2), False), DOWN, ((7, 2), (8, 2), False)),
    "blocked push, door": (((6, 7), (5, 7), True), UP, ((6, 7), (5, 7), True)),
    "toggle opens": (((1, 1), AWAY, False), TOGGLE, ((1, 1), AWAY, True)),
    "toggle shuts": (((8, 8), AWAY, True), TOGGLE, ((8, 8), AWAY, False)),
    "toggle off a switch": (((1, 2), AWAY, False), TOGGLE, ((1, 2), AWAY, False)),
}


@pytest.mark.parametrize(("before", "action", "after"), SITUATIONS.values(), ids=SITUATIONS.keys())
def test_situations(before, action, after):
    mdp = MDPS["paper"]
    assert step(mdp, scene(mdp, *before), action) == scene(mdp, *after)


def test_the_door_closes_after_the_action():
    mdp = MDPS["paper"]
    opened = scene(mdp, (1, 1), AWAY, False)
    assert step(mdp, opened, TOGGLE, 0.0099) == opened  # opened and closed again at once
    assert step(mdp, scene(mdp, (4, 7), AWAY, True), LEFT, 0.0) == scene(mdp, (4, 6), AWAY, False)
    # It may close behind the agent, stays open under it, and stops it only when it was shut before the action.
    assert step(mdp, scene(mdp, (3, 7), AWAY, True), UP, 0.0) == scene(mdp, (2, 7), AWAY, False)
    assert step(mdp, scene(mdp, (2, 7), AWAY, True), DOWN, 0.0) == scene(mdp, (3, 7), AWAY, True)
    assert step(mdp, scene(mdp, (3, 7), AWAY, True), LEFT, 0.0) == scene(mdp, (3, 7), AWAY, True)
    # 0.01 itself is not below 0.01, and a shut door stays shut.
    assert step(mdp, scene(mdp, (4, 7), AWAY, True), LEFT, 0.01) == scene(mdp, (4, 6), AWAY, True)
    assert step(mdp, scene(mdp, (4, 7), AWAY, False), LEFT, 0.0) == scene(mdp, (4, 6), AWAY, False)


@pytest.mark.parametrize("action", range(5))
def test_slipping_picks_a_move_by_the_number(action):
    mdp = MDPS["paper"]
    state = scene(mdp, (1, 4), AWAY, False)
    for slip, move in ((0.0, UP), (0.124, UP), (0.125, DOWN), (0.249, DOWN), (0.25, LEFT), (0.375, RIGHT), (0.4999, RIGHT)):
        assert step(mdp, state, action, slip) == step(mdp, state, move)
    assert step(mdp, state, action, 0.5) == step(mdp, state, action)
    dry = scene(mdp, (1, 3), AWAY, False)
    assert step(mdp, dry, action, 0.0) == step(mdp, dry, action)


def test_what_slipping_leaves_of_the_number_closes_the_door():
    mdp = MDPS["paper"]
    ajar = scene(mdp, (1, 4), AWAY, True)
    # 0.5 is one of 8 parts of [0, 1) for each of four slips, and half of it for none: the door closes in the first 1% of each.
    for first, length, arrived in ((0.0, 0.125, (0, 4)), (0.25, 0.125, (1, 3)), (0.375, 0.125, (1, 5)), (0.5, 0.5, (2, 4))):
        assert step(mdp, ajar, DOWN, first) == scene(mdp, arrived, AWAY, False)
        assert step(mdp, ajar, DOWN, first + 0.00999 * length) == scene(mdp, arrived, AWAY, False)
        assert step(mdp, ajar, DOWN, first + 0.01001 * length) == scene(mdp, arrived, AWAY, True)
        assert step(mdp, ajar, DOWN, first + 0.999 * length) == scene(mdp, arrived, AWAY, True)


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
            {door for door, is_open in zip(doors, self.mdp.doors_open[state], strict=True) if is_open},
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
                    agent, blocks = target, blocks - {target} | {behind}
            elif symbol != "#" and (symbol not in "DEFG" or symbol in opened):
                agent = target
        # Which doors have their chance to close: all sets of them share the interval from 0 to 1, that of no door at its end.
        doors, bound = sorted(set("".join(self.rows)) & set("DEFG")), 0.0
        for bits in range(1, 2 ** len(doors)):
            closing = {door for place, door in enumerate(doors) if bits >> place & 1}
            close, leave = self.mdp.close_probability, 1.0 - self.mdp.close_probability
            bound += close ** len(closing) * leave ** (len(doors) - len(closing))
            if number < bound:
                opened -= closing - {self.symbol(*agent)}
                break
        return agent, blocks, opened


uniform = st.floats(0, 1, exclude_max=True)


@pytest.mark.parametrize("name", MDPS)
@settings(max_examples=100)
@given(data=st.data(), action=st.sampled_from(Action), number=uniform | st.floats(0, 0.01))
def test_step_equals_the_reference(name, data, action, number):
    mdp = MDPS[name]
    state = data.draw(st.integers(0, mdp.n_states - 1))
    reference = Reference(mdp)
    assert reference.parts(step(mdp, state, action, number)) == reference.step(state, action, number)


@pytest.mark.parametrize("name", [name for name, mdp in MDPS.items() if mdp.n_states < 5_000])
def test_every_state_and_action_equals_the_reference(name):
    mdp = MDPS[name]
    reference = Reference(mdp)
    for state in range(mdp.n_states):
        for action in range(5):
            assert reference.parts(step(mdp, state, action)) == reference.step(state, action, NEVER)


@st.composite
def open_maps(draw):
    """Maps of floor, slippery floor, some walls and one to three blocks; not all of them can be worlds."""
    height, width = draw(st.integers(3, 7)), draw(st.integers(3, 7))
    rows = [draw(st.lists(st.sampled_from("......W"), min_size=width, max_size=width)) for _ in range(height)]
    inside = st.tuples(st.integers(1, height - 2), st.integers(1, width - 2))
    for row, column in draw(st.lists(st.tuples(st.integers(0, height - 1), st.integers(0, width - 1)), max_size=2)):
        rows[row][column] = "#"
    for row, column in draw(st.sets(inside, min_size=1, max_size=3)):
        rows[row][column] = "B"
    return "\n".join(map("".join, rows))


@settings(max_examples=40, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(text=open_maps(), seed=st.integers(0, 1000))
def test_any_map_equals_the_reference(text, seed):
    try:
        mdp = TwoRoomsMDP(Layout.parse(text))
    except LayoutError:
        assume(False)
    reference, rng = Reference(mdp), np.random.default_rng(seed)
    states = np.arange(mdp.n_states)
    assert np.array_equal(mdp.encode(mdp.agent, mdp.blocks, mdp.doors_open), states)
    for state in rng.integers(mdp.n_states, size=30).tolist():
        action, number = int(rng.integers(5)), rng.random()
        assert reference.parts(step(mdp, state, action, number)) == reference.step(state, action, number)
        assert mdp.state_of(mdp.observe(state)) == state


@pytest.mark.parametrize("name", MDPS)
def test_step_treats_each_row_alone_and_leaves_its_arguments_as_they_are(name):
    mdp = MDPS[name]
    rng = np.random.default_rng(1)
    states, actions, uniforms = rng.integers(mdp.n_states, size=500), rng.integers(5, size=500), rng.random(500)
    before = states.copy(), actions.copy(), uniforms.copy()
    together = mdp.step(states, actions, uniforms.take)
    assert all(np.array_equal(a, b) for a, b in zip(before, (states, actions, uniforms), strict=True))
    assert together.dtype == np.int64
    assert together.tolist() == [step(mdp, *row) for row in zip(states, actions, uniforms, strict=True)]


@pytest.mark.parametrize("name", MDPS)
def test_numbers_are_drawn_where_a_step_is_random_and_nowhere_else(name):
    mdp = MDPS[name]
    states = np.arange(mdp.n_states)
    several = np.zeros(mdp.n_states, dtype=bool)  # whether some action has several outcomes
    for action in range(5):
        actions, found, drawn = np.full_like(states, action), [], []
        for number in (NEVER, 0.0, 0.012, 0.2, 0.3, 0.45):
            found.append(
                mdp.step(states, actions, lambda rows, u=number, to=drawn: (to.append(rows), np.full(len(rows), u))[1])
            )
        assert all(np.array_equal(rows, np.flatnonzero(mdp.chance)) for rows in drawn)
        assert len(drawn) == 6 * mdp.chance.any()
        several |= (found[0] != found[1:]).any(axis=0)
    assert not several[~mdp.chance].any()
    assert several.sum() >= 0.9 * mdp.chance.sum()  # all but slips between walls
