"""The rules: by hand-written situations, by a slow independent reference, and by frequencies."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_twoRooms.layout import Layout
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
}


def scene(mdp: TwoRoomsMDP, agent: tuple[int, int], block: tuple[int, int], door_open: bool) -> int:
    width = mdp.layout.width
    return int(mdp.encode(agent[0] * width + agent[1], block[0] * width + block[1], door_open))


def step(mdp: TwoRoomsMDP, state: int, action: int, slip: float = NEVER, close: float = NEVER) -> int:
    return int(mdp.step(np.array([state]), np.array([action]), np.array([[slip, close]]))[0])


AWAY = (6, 2)  # a place for the block where it is not in the way
# name: (agent, block, door open), action, (agent, block, door open)
SITUATIONS = {
    "walk up": (((5, 4), AWAY, False), UP, ((4, 4), AWAY, False)),
    "walk down": (((4, 4), AWAY, False), DOWN, ((5, 4), AWAY, False)),
    "walk left": (((4, 4), AWAY, False), LEFT, ((4, 3), AWAY, False)),
    "walk right": (((4, 4), AWAY, False), RIGHT, ((4, 5), AWAY, False)),
    "wall from above": (((2, 4), AWAY, True), DOWN, ((2, 4), AWAY, True)),
    "top edge": (((0, 4), AWAY, False), UP, ((0, 4), AWAY, False)),
    "bottom edge": (((9, 4), AWAY, False), DOWN, ((9, 4), AWAY, False)),
    "left edge": (((5, 0), AWAY, False), LEFT, ((5, 0), AWAY, False)),
    "right edge": (((5, 9), AWAY, False), RIGHT, ((5, 9), AWAY, False)),
    "closed door from above": (((2, 7), AWAY, False), DOWN, ((2, 7), AWAY, False)),
    "closed door from below": (((4, 7), AWAY, False), UP, ((4, 7), AWAY, False)),
    "into the open door": (((2, 7), AWAY, True), DOWN, ((3, 7), AWAY, True)),
    "out of the door": (((3, 7), AWAY, True), DOWN, ((4, 7), AWAY, True)),
    "wall beside the door": (((3, 7), AWAY, True), LEFT, ((3, 7), AWAY, True)),
    "push down": (((5, 2), (6, 2), False), DOWN, ((6, 2), (7, 2), False)),
    "push up": (((7, 2), (6, 2), False), UP, ((6, 2), (5, 2), False)),
    "push right": (((6, 1), (6, 2), True), RIGHT, ((6, 2), (6, 3), True)),
    "push left": (((6, 4), (6, 3), False), LEFT, ((6, 3), (6, 2), False)),
    "push onto a switch": (((8, 6), (8, 7), False), RIGHT, ((8, 7), (8, 8), False)),
    "blocked push, wall": (((6, 2), (5, 2), False), UP, ((6, 2), (5, 2), False)),
    "blocked push, edge below": (((7, 2), (8, 2), False), DOWN, ((7, 2), (8, 2), False)),
    "blocked push, edge left": (((6, 2), (6, 1), False), LEFT, ((6, 2), (6, 1), False)),
    "blocked push, door": (((6, 7), (5, 7), True), UP, ((6, 7), (5, 7), True)),
    "toggle opens": (((1, 1), AWAY, False), TOGGLE, ((1, 1), AWAY, True)),
    "toggle shuts": (((8, 8), AWAY, True), TOGGLE, ((8, 8), AWAY, False)),
    "toggle off a switch": (((1, 2), AWAY, False), TOGGLE, ((1, 2), AWAY, False)),
    "toggle in the door": (((3, 7), AWAY, True), TOGGLE, ((3, 7), AWAY, True)),
}


@pytest.mark.parametrize(("before", "action", "after"), SITUATIONS.values(), ids=SITUATIONS.keys())
def test_situations(before, action, after):
    mdp = MDPS["paper"]
    assert step(mdp, scene(mdp, *before), action) == scene(mdp, *after)


def test_the_door_closes_after_the_action():
    mdp = MDPS["paper"]
    opened = scene(mdp, (1, 1), AWAY, False)
    assert step(mdp, opened, TOGGLE, close=0.0099) == opened  # opened and closed again at once
    assert step(mdp, scene(mdp, (4, 7), AWAY, True), LEFT, close=0.0) == scene(mdp, (4, 6), AWAY, False)
    # It may close behind the agent, stays open under it, and stops it only when it was shut before the action.
    assert step(mdp, scene(mdp, (3, 7), AWAY, True), UP, close=0.0) == scene(mdp, (2, 7), AWAY, False)
    assert step(mdp, scene(mdp, (2, 7), AWAY, True), DOWN, close=0.0) == scene(mdp, (3, 7), AWAY, True)
    assert step(mdp, scene(mdp, (3, 7), AWAY, True), LEFT, close=0.0) == scene(mdp, (3, 7), AWAY, True)
    # 0.01 itself is not below 0.01, and a shut door stays shut.
    assert step(mdp, scene(mdp, (4, 7), AWAY, True), LEFT, close=0.01) == scene(mdp, (4, 6), AWAY, True)
    assert step(mdp, scene(mdp, (4, 7), AWAY, False), LEFT, close=0.0) == scene(mdp, (4, 6), AWAY, False)


@pytest.mark.parametrize("action", range(5))
def test_slipping_picks_a_move_by_the_first_number(action):
    mdp = MDPS["paper"]
    state = scene(mdp, (1, 4), AWAY, False)
    for slip, move in ((0.0, UP), (0.124, UP), (0.125, DOWN), (0.249, DOWN), (0.25, LEFT), (0.375, RIGHT), (0.4999, RIGHT)):
        assert step(mdp, state, action, slip=slip) == step(mdp, state, move)
    assert step(mdp, state, action, slip=0.5) == step(mdp, state, action)
    dry = scene(mdp, (1, 3), AWAY, False)
    assert step(mdp, dry, action, slip=0.0) == step(mdp, dry, action)


@pytest.mark.parametrize("probability", [5e-324, 1e-300, 0.1, 1 / 3, np.nextafter(0.7, 1), 1.0])
def test_the_largest_number_that_slips_makes_the_last_move(probability):
    mdp = TwoRoomsMDP(Layout.parse(".W.\n..."), slip_probability=probability)
    highest = float(np.nextafter(probability, 0))
    state = int(mdp.encode(1, -1, False))
    assert step(mdp, state, UP, slip=highest) == step(mdp, state, UP if highest == 0 else RIGHT)


def test_frequencies():
    mdp, n = MDPS["paper"], 200_000
    uniforms = np.random.default_rng(0).random((n, 2))
    slippery = scene(mdp, (1, 4), AWAY, False)
    after, counts = np.unique(mdp.step(np.full(n, slippery), np.full(n, RIGHT), uniforms), return_counts=True)
    shares = dict(zip(after.tolist(), (counts / n).tolist(), strict=True))
    # Half the time the action happens, and the slips are shared by four moves; five standard deviations are 0.006.
    expected = {(1, 5): 0.625, (0, 4): 0.125, (2, 4): 0.125, (1, 3): 0.125}
    assert shares == pytest.approx({scene(mdp, cell, AWAY, False): share for cell, share in expected.items()}, abs=0.006)

    ajar = scene(mdp, (5, 5), AWAY, True)
    after = mdp.step(np.full(n, ajar), np.full(n, TOGGLE), uniforms)
    closed = (after == scene(mdp, (5, 5), AWAY, False)).mean()
    assert closed == pytest.approx(0.01, abs=5 * np.sqrt(0.01 * 0.99 / n))


class Reference:
    """The rules again, on the ASCII map, with none of the tables."""

    def __init__(self, mdp: TwoRoomsMDP) -> None:
        self.mdp = mdp
        self.rows = str(mdp.layout).split("\n")

    def symbol(self, row: int, column: int) -> str:
        inside = 0 <= row < len(self.rows) and 0 <= column < len(self.rows[0])
        return self.rows[row][column] if inside else "#"

    def parts(self, state: int) -> tuple[tuple[int, int], tuple[int, int] | None, bool]:
        width = len(self.rows[0])
        agent, block = int(self.mdp.agent[state]), int(self.mdp.block[state])
        return divmod(agent, width), None if block < 0 else divmod(block, width), bool(self.mdp.door_open[state])

    def step(self, state: int, action: int, slip: float, close: float) -> tuple:
        agent, block, is_open = self.parts(state)
        if self.symbol(*agent) == "W" and slip < self.mdp.slip_probability:
            action = min(int(slip / self.mdp.slip_probability * 4), 3)
        if action == TOGGLE:
            if self.symbol(*agent) == "S":
                is_open = not is_open
        else:
            down, right = MOVES[action]
            target = (agent[0] + down, agent[1] + right)
            symbol = self.symbol(*target)
            if target == block:
                behind = (target[0] + down, target[1] + right)
                beside = [self.symbol(behind[0] + d, behind[1] + r) for d, r in MOVES.values()]
                if self.symbol(*behind) not in "#D" and not {"#", "D"} & set(beside):
                    agent, block = target, behind
            elif symbol != "#" and (symbol != "D" or is_open):
                agent = target
        if is_open and self.symbol(*agent) != "D" and close < self.mdp.close_probability:
            is_open = False
        return agent, block, is_open


uniform = st.floats(0, 1, exclude_max=True)


@pytest.mark.parametrize("name", MDPS)
@settings(max_examples=300, deadline=None)
@given(data=st.data(), action=st.sampled_from(Action), slip=uniform, close=uniform | st.floats(0, 0.01))
def test_step_equals_the_reference(name, data, action, slip, close):
    mdp = MDPS[name]
    state = data.draw(st.integers(0, mdp.n_states - 1))
    reference = Reference(mdp)
    assert reference.parts(step(mdp, state, action, slip, close)) == reference.step(state, action, slip, close)


@pytest.mark.parametrize("name", ["small", "no block", "no door", "nothing"])
def test_every_state_and_action_equals_the_reference(name):
    mdp = MDPS[name]
    reference = Reference(mdp)
    for state in range(mdp.n_states):
        for action in range(5):
            assert reference.parts(step(mdp, state, action)) == reference.step(state, action, NEVER, NEVER)


@pytest.mark.parametrize("name", MDPS)
def test_step_treats_each_row_alone_and_leaves_its_arguments_as_they_are(name):
    mdp = MDPS[name]
    rng = np.random.default_rng(1)
    states, actions, uniforms = rng.integers(mdp.n_states, size=500), rng.integers(5, size=500), rng.random((500, 2))
    before = states.copy(), actions.copy(), uniforms.copy()
    together = mdp.step(states, actions, uniforms)
    assert all(np.array_equal(a, b) for a, b in zip(before, (states, actions, uniforms), strict=True))
    assert together.dtype == np.int32
    assert together.tolist() == [step(mdp, s, a, *u) for s, a, u in zip(states, actions, uniforms, strict=True)]
