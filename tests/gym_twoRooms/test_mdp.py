import copy
import pickle

import numpy as np
import pytest

import gym_twoRooms.mdp as mdp_module
from gym_twoRooms import states as states_module
from gym_twoRooms.layout import Layout, LayoutError
from gym_twoRooms.mdp import COLOURS, TwoRoomsMDP, compile_layout
from gym_twoRooms.states import stranded_state

PAPER = compile_layout(Layout.named("paper"))
SMALL = compile_layout(Layout.named("small"))
PUZZLES = [  # several blocks that meet and that do not, several doors, and a door of two cells
    "......\n.BB...\n....B.\n......\n......",
    ".....#....\n.B.B.#..B.\nS....D...S\n.....#....\n.....#....",
    "S...U\nDD#F#\n.ES..\nTW..U",
]
THREE_BLOCKS = TwoRoomsMDP(Layout.parse(PUZZLES[1]))
CLOSET = "S....\n.....\n.....\n.....\n##D##\nS...S"


def search(mdp: TwoRoomsMDP, start: int) -> set[int]:
    """Follow the tables from one state."""
    found, frontier = {start}, [start]
    while frontier:
        arrived = mdp.next_state[frontier].ravel()
        frontier = list(set(mdp.closed_state[arrived].ravel().tolist()) - found)
        found |= set(frontier)
    return found


COUNTS = {"paper": 5_728, "small": 220, "locks": 8_316, "warehouse": 20_710}


@pytest.mark.parametrize(("mdp", "count"), [(compile_layout(Layout.named(name)), COUNTS[name]) for name in COUNTS], ids=COUNTS)
def test_a_search_of_the_tables_finds_every_state(mdp, count):
    assert search(mdp, 0) == set(range(count))
    assert search(mdp, count - 1) == set(range(count))
    assert mdp.n_states == count


def test_tables_have_the_promised_types_and_are_read_only():
    shapes = {
        "next_state": ((220, 5), np.int64),
        "closed_state": ((220, 2), np.int32),
        "closing_probability": ((2,), np.float64),
        "slips": ((220,), np.bool_),
        "on_switch": ((220,), np.bool_),
        "chance": ((220,), np.bool_),
        "agent": ((220,), np.int32),
        "blocks": ((220, 1), np.int32),
        "doors_open": ((220, 1), np.bool_),
        "observations": ((220, 8, 4, 3), np.uint8),
    }
    for name, (shape, dtype) in shapes.items():
        table = getattr(SMALL, name)
        assert (table.shape, table.dtype) == (shape, dtype), name
        with pytest.raises(ValueError, match="read-only"):
            table[0] = 0


def test_tables_agree_with_the_map():
    switches = [row * 10 + column for row, column in PAPER.layout.switches[0]]
    assert np.array_equal(PAPER.on_switch, np.isin(PAPER.agent, switches))
    masks = PAPER.action_masks(np.arange(5728))
    assert (masks.shape, masks.dtype) == ((5728, 5), np.int8)
    assert np.array_equal(masks[:, 4], PAPER.on_switch)
    assert masks[:, :4].all()
    assert np.array_equal(PAPER.slips, np.isin(PAPER.agent, [14, 15, 64, 65, 74, 75]))
    in_door = PAPER.agent == 37
    assert np.array_equal(PAPER.closed_state[:, 0], np.arange(5728))
    assert np.array_equal(PAPER.closed_state[:, 1] == np.arange(5728), ~PAPER.doors_open[:, 0] | in_door)
    assert PAPER.closing_probability.tolist() == [0.99, 0.01]


@pytest.mark.parametrize("text", [str(PAPER.layout), "..W", "S.D.S", "......\n.B....\n......\n......", CLOSET, *PUZZLES])
def test_parts_and_pictures_identify_a_state(text):
    mdp = compile_layout(Layout.parse(text))
    states = np.arange(mdp.n_states)
    assert np.array_equal(mdp.encode(mdp.agent, mdp.blocks[:, ::-1], mdp.doors_open), states)
    assert np.array_equal(mdp.states_of(mdp.render(states)), states)
    assert mdp.state_of(mdp.observe(int(states[-1]))) == states[-1]


def test_encode_broadcasts():
    assert PAPER.encode(np.arange(3), [62], [[[False]], [[True]]]).shape == (2, 3)
    assert PAPER.encode(np.zeros((0, 4), dtype=int), [62], [True]).shape == (0, 4)


@pytest.mark.parametrize(
    ("mdp", "parts", "message"),
    [
        (PAPER, ([0, 62], [62], [False]), r"no state with the agent in cell 62, blocks in \[62\]"),
        (PAPER, ([0, 37], [62], [False]), "agent in cell 37"),  # in the shut door
        (PAPER, ([0, 30], [62], [True]), "agent in cell 30"),  # in the wall
        (PAPER, ([0, 100], [62], [True]), "agent in cell 100"),
        (PAPER, ([0, -1], [62], [True]), "agent in cell -1"),
        (PAPER, (0, [[62], [41]], [True]), r"blocks in \[41\]"),  # by the wall
        (PAPER, (0, [[62], [-1]], [True]), r"blocks in \[-1\]"),
        (THREE_BLOCKS, (0, [11, 11, 18], [False]), "no state"),
        (THREE_BLOCKS, (0, [11, 17, 18], [False]), "no state"),
        (THREE_BLOCKS, (0, [11, 12, 13], [False]), "no state"),
        (PAPER, (0, [62], []), r"doors_open must have shape \(\.\.\., 1\), got \(0,\)"),
        (PAPER, (0, 62, [True]), r"blocks must have shape \(\.\.\., 1\), got \(\)"),
        (PAPER, (0, [62, 63], [True]), r"blocks must have shape \(\.\.\., 1\), got \(2,\)"),
    ],
)
def test_encode_refuses_what_cannot_be(mdp, parts, message):
    with pytest.raises(ValueError, match=message):
        mdp.encode(*parts)


def test_observations_show_each_thing_in_its_colour():
    state = int(PAPER.encode(0, [62], [True]))
    picture = PAPER.render(np.array([state]))[0]
    legend = {".": "floor", "#": "wall", "W": "slippery", "S": "switch S", "D": "door open", "B": "floor"}
    for row, symbols in enumerate(PAPER.layout.rows):
        for column, symbol in enumerate(symbols):
            thing = {(0, 0): "agent", (6, 2): "block"}.get((row, column), legend[symbol])
            assert tuple(picture[row, column]) == COLOURS[thing]
    shut = PAPER.render(PAPER.closed_state[[state], 1])[0]
    assert tuple(shut[3, 7]) == COLOURS["door shut"]
    assert np.count_nonzero((shut != picture).any(axis=2)) == 1


def test_pictures_that_show_no_state_are_refused():
    with pytest.raises(ValueError, match=r"An observation has shape \(10, 10, 3\), got \(8, 4, 3\)"):
        PAPER.state_of(SMALL.observations[0])
    with pytest.raises(ValueError, match=r"has shape \(10, 10, 3\), got \(10, 3\)"):
        PAPER.states_of(PAPER.observations[0])
    pictures = PAPER.observe(np.arange(5))
    assert PAPER.states_of(pictures[:0]).shape == (0,)
    pictures[3] = 0
    with pytest.raises(ValueError, match=r"\(row 3\): it shows 0 agents and 0 blocks"):
        PAPER.states_of(pictures)
    pictures[2, 9, 9] += 1
    pictures[3] = pictures[1]
    with pytest.raises(ValueError, match=r"No state looks like this observation \(row 2\)"):
        PAPER.states_of(pictures)
    in_wall = PAPER.observe(int(PAPER.encode(0, [62], [False])))
    in_wall[0, 0], in_wall[3, 0] = COLOURS["floor"], COLOURS["agent"]
    with pytest.raises(ValueError, match="No state looks like this"):
        PAPER.state_of(in_wall)


def test_without_room_for_the_table_pictures_are_drawn(monkeypatch):
    mdp = TwoRoomsMDP(Layout.named("small"))
    monkeypatch.setattr(mdp_module, "MAX_TABLE_BYTES", SMALL.observations.nbytes - 1)
    with pytest.raises(ValueError, match="table of all observations would take 0 MiB"):
        _ = mdp.observations
    states = np.array([3, 200, 3])
    assert np.array_equal(mdp.observe(states), SMALL.observations[states])
    assert mdp.state_of(SMALL.observations[17]) == 17


@pytest.mark.parametrize(
    "mdp", [PAPER, SMALL, TwoRoomsMDP(Layout.named("small"), 0.0, 1e-3), TwoRoomsMDP(Layout.named("locks"), 1.0, 0.2)]
)
def test_one_at_a_time_is_the_same(mdp):
    rng = np.random.default_rng(0)
    states, actions = rng.integers(mdp.n_states, size=5_000), rng.integers(5, size=5_000)
    uniforms = rng.random(5_000) * np.where(rng.random(5_000) < 0.5, 1.0, 0.03)  # doors close often enough to be seen
    expected = mdp.step(states, actions, uniforms.take)
    rows = zip(states.tolist(), actions.tolist(), uniforms.tolist(), strict=True)
    assert [mdp.step_one(state, action, [number].pop) for state, action, number in rows] == expected.tolist()
    assert np.array_equal([mdp.observe(state) for state in states[:50]], mdp.observe(states[:50]))
    assert np.array_equal([mdp.action_masks(state) for state in states[:50]], mdp.action_masks(states[:50]))


def test_observe_and_render_return_new_arrays():
    for look in (SMALL.observe, SMALL.render):
        look(np.array([5]))[:] = 0
    SMALL.observe(5)[:] = 0
    assert SMALL.state_of(SMALL.observations[5]) == 5


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
@pytest.mark.parametrize("name", ["slip_probability", "close_probability"])
def test_probabilities_must_be_in_range(name, value):
    with pytest.raises(ValueError, match=f"{name} must be in"):
        compile_layout(Layout.named("small"), **{name: value})


def test_too_many_states_are_refused(monkeypatch):
    monkeypatch.setattr(states_module, "MAX_STATES", 219)
    with pytest.raises(LayoutError, match="220 states; at most 219"):
        TwoRoomsMDP(Layout.named("small"))


def test_a_state_that_cannot_be_reached_is_named():
    # A door that closes at once lets nobody through.
    with pytest.raises(
        LayoutError, match=r"agent at row 0, column 3, the door at row 0, column 2 shut\) cannot be reached from .* is 1\.0"
    ):
        TwoRoomsMDP(Layout.parse("S.D.S"), close_probability=1.0)
    # The block has one place and always bars the way.
    with pytest.raises(LayoutError, match="agent at row 1, column 0, a block at row 1, column 1"):
        TwoRoomsMDP(Layout.parse("#.#\n.B.\n#.#"))


def test_stranded_state_tells_traps_from_sources():
    settled = np.arange(3)[:, np.newaxis]
    assert stranded_state(np.array([[1, 1], [0, 0]]), settled[:2]) is None
    assert stranded_state(np.array([[1, 2], [0, 0], [2, 2]]), settled) == (2, True)
    assert stranded_state(np.array([[1, 1], [0, 0], [2, 0]]), settled) == (2, False)
    # No action leads to 2, but the world settles there.
    assert stranded_state(np.array([[1, 1], [0, 0], [2, 0]]), np.array([[0, 0], [1, 2], [2, 2]])) is None
    # An action leads to 2, but the world never stays there.
    assert stranded_state(np.array([[1, 2], [0, 0], [0, 0]]), np.array([[0], [1], [1]])) == (2, False)


def test_compiled_layouts_are_shared():
    paper = compile_layout(Layout.named("paper"))
    again = compile_layout(Layout.parse(str(Layout.named("paper"))))
    assert again is paper
    assert copy.deepcopy(paper) is paper
    assert pickle.loads(pickle.dumps(paper)) is paper
    assert len(pickle.dumps(paper)) < 2000
