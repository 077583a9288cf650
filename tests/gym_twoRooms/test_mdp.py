import copy
import pickle

import numpy as np
import pytest

import gym_twoRooms.mdp as mdp_module
from gym_twoRooms import states as states_module
from gym_twoRooms.layout import NAMED_LAYOUTS, Layout, LayoutError
from gym_twoRooms.mdp import COLOURS, TwoRoomsMDP, compile_layout

PAPER = compile_layout("paper")
SMALL = compile_layout("small")
# Several blocks that can meet and blocks that cannot, several doors, and a door of two cells.
PUZZLES = [
    "......\n.BB...\n....B.\n......\n......",
    ".....#....\n.B.B.#..B.\nS....D...S\n.....#....\n.....#....",
    "S...U\nDD#F#\n.ES..\nTW..U",
]
THREE_BLOCKS = TwoRoomsMDP(Layout.parse(PUZZLES[1]))
CLOSET = "S....\n.....\n.....\n.....\n##D##\nS...S"


def test_tables_are_read_only():
    tables = {name: table for name, table in vars(SMALL).items() if isinstance(table, np.ndarray)}
    assert len(tables) > 8
    for table in (SMALL.observations, *tables.values()):
        assert not table.flags.writeable


@pytest.mark.parametrize(
    "text", [str(PAPER.layout), "..W", "S.D.S", "......\n.B....\n......\n......", CLOSET, *PUZZLES]
)
def test_parts_and_pictures_identify_a_state(text):
    mdp = compile_layout(Layout.parse(text))
    states = np.arange(mdp.n_states)
    assert np.array_equal(mdp.encode(mdp.agent, mdp.blocks[:, ::-1], mdp.doors_open), states)
    assert np.array_equal(mdp.states_of(mdp.render(states)), states)
    assert np.array_equal([mdp.observe(state) for state in range(3)], mdp.observe(states[:3]))
    if text == PUZZLES[0]:
        # The block in the last cell counts most.
        assert (np.diff(mdp.blocks @ [1, 100, 10_000]) >= 0).all()


@pytest.mark.parametrize(
    ("mdp", "parts", "message"),
    [
        (
            PAPER,
            ([0, 62], [62], [False]),
            r"no state with the agent in cell \[ 0 62\], blocks in \[62\]",
        ),
        # The agent is in the shut door.
        (PAPER, ([0, 37], [62], [False]), "no state"),
        (PAPER, ([0, 100], [62], [True]), "no state"),
        # A block is beside the wall.
        (PAPER, (0, [[62], [41]], [True]), "no state"),
        (THREE_BLOCKS, (0, [11, 11, 18], [False]), "no state"),
        (THREE_BLOCKS, (0, [11, 12, 13], [False]), "no state"),
        (PAPER, (0, [62], []), r"doors_open must have shape \(\.\.\., 1\), got \(0,\)"),
        (PAPER, (0, 62, [True]), r"blocks must have shape \(\.\.\., 1\), got \(\)"),
    ],
)
def test_encode_refuses_what_cannot_be(mdp, parts, message):
    with pytest.raises(ValueError, match=message):
        mdp.encode(*parts)


def test_observations_show_each_thing_in_its_colour():
    # The agent and the block are broadcast to both states of the door.
    pictures = PAPER.render(PAPER.encode(0, [62], [[True], [False]]))
    legend = {
        ".": "floor",
        "#": "wall",
        "W": "slippery",
        "S": "switch S",
        "D": "door open",
        "B": "floor",
    }
    expected = np.array([[COLOURS[legend[symbol]] for symbol in row] for row in PAPER.layout.rows])
    expected[0, 0] = COLOURS["agent"]
    expected[6, 2] = COLOURS["block"]
    assert np.array_equal(pictures[0], expected)
    expected[3, 7] = COLOURS["door shut"]
    assert np.array_equal(pictures[1], expected)


def test_pictures_that_show_no_state_are_refused():
    with pytest.raises(
        ValueError, match=r"An observation has shape \(10, 10, 3\), got \(8, 4, 3\)"
    ):
        PAPER.states_of(SMALL.observations)
    black, off, in_wall = (
        PAPER.observe(np.array([1, 2, 3, int(PAPER.encode(0, [62], [False]))])) for _ in range(3)
    )
    assert PAPER.states_of(black[:0]).shape == (0,)
    black[2] = 0
    off[1, 9, 9] += 1
    in_wall[3, 0, 0] = COLOURS["floor"]
    in_wall[3, 3, 0] = COLOURS["agent"]
    for pictures, row in ((black, 2), (off, 1), (in_wall, 3)):
        with pytest.raises(
            ValueError, match=rf"No state looks like this observation \(row {row}\)"
        ):
            PAPER.states_of(pictures)


def test_without_room_for_the_table_pictures_are_drawn(monkeypatch):
    monkeypatch.setattr(mdp_module, "MAX_TABLE_BYTES", SMALL.observations.nbytes - 1)
    mdp = TwoRoomsMDP(NAMED_LAYOUTS["small"])
    with pytest.raises(ValueError, match="table of all observations would take 0 MiB"):
        _ = mdp.observations
    states = np.array([3, 200, 3])
    assert np.array_equal(mdp.observe(states), SMALL.observations[states])
    assert mdp.states_of(SMALL.observations[17:19]).tolist() == [17, 18]


@pytest.mark.parametrize("name", ["slip_probability", "close_probability"])
def test_probabilities_must_be_in_range(name):
    for value in (-0.1, 1.1, float("nan"), "0.5", None, [0.5]):
        with pytest.raises(ValueError, match=rf"{name} must be a number in \[0, 1\], got "):
            compile_layout("small", **{name: value})


def test_too_many_states_are_refused(monkeypatch):
    monkeypatch.setattr(states_module, "MAX_STATES", 219)
    with pytest.raises(LayoutError, match="220 states; at most 219"):
        TwoRoomsMDP(NAMED_LAYOUTS["small"])


@pytest.mark.parametrize(
    ("rows", "close", "message"),
    [
        # A door that closes at once lets nobody through.
        ("S.D.S", 1.0, r"agent at row 0, column 3, the shut door at row 0, column 2 \(.* is 1\.0"),
        # The block has one place and always bars the way.
        ("#.#\n.B.\n#.#", 0.01, "agent at row 1, column 0, a block at row 1, column 1"),
        ("S.D.S\n#####\n..###", 0.01, "agent at row 2, column 0"),
        ("S..#\n..#D", 0.01, "agent at row 1, column 3, the open door at row 1, column 3"),
        ("S.D..", 0.01, "agent at row 0, column 3, the shut door at row 0, column 2"),
    ],
)
def test_a_state_that_cannot_be_reached_is_named(rows, close, message):
    with pytest.raises(LayoutError, match=message):
        TwoRoomsMDP(Layout.parse(rows), close_probability=close)


def test_compiled_layouts_are_shared():
    paper = compile_layout(NAMED_LAYOUTS["paper"])
    assert compile_layout("paper") is paper
    assert compile_layout(str(NAMED_LAYOUTS["paper"]), np.float64(0.5)) is paper
    assert copy.deepcopy(paper) is paper
    assert pickle.loads(pickle.dumps(paper)) is paper
    assert len(pickle.dumps(paper)) < 2000
