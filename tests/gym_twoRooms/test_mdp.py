import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gym_twoRooms.mdp as mdp_module
from gym_twoRooms.connectivity import stranded_state
from gym_twoRooms.layout import Layout, LayoutError
from gym_twoRooms.mdp import COLOURS, TwoRoomsMDP, compile_layout

PAPER = compile_layout(Layout.named("paper"))
SMALL = compile_layout(Layout.named("small"))
CLOSET = "S....\n.....\n.....\n.....\n##D##\nS...S"


def search(mdp: TwoRoomsMDP, start: int) -> set[int]:
    """Follow the tables from one state."""
    found, frontier = {start}, [start]
    while frontier:
        arrived = mdp.next_state[frontier].ravel()
        frontier = list(set(arrived.tolist() + mdp.closed_state[arrived].tolist()) - found)
        found |= set(frontier)
    return found


@pytest.mark.parametrize(("mdp", "count"), [(PAPER, 5728), (SMALL, 220)], ids=["paper", "small"])
def test_a_search_of_the_tables_finds_every_state(mdp, count):
    assert search(mdp, 0) == set(range(count))
    assert search(mdp, count - 1) == set(range(count))
    assert mdp.n_states == count


def test_tables_have_the_promised_types_and_are_read_only():
    shapes = {
        "next_state": ((220, 5), np.int32),
        "closed_state": ((220,), np.int32),
        "slips": ((220,), np.bool_),
        "action_mask": ((220, 5), np.int8),
        "agent": ((220,), np.int32),
        "block": ((220,), np.int32),
        "door_open": ((220,), np.bool_),
        "observations": ((220, 8, 4, 3), np.uint8),
    }
    for name, (shape, dtype) in shapes.items():
        table = getattr(SMALL, name)
        assert (table.shape, table.dtype) == (shape, dtype), name
        with pytest.raises(ValueError, match="read-only"):
            table[0] = 0


def test_tables_agree_with_the_map():
    switches = [row * 10 + column for row, column in PAPER.layout.switches]
    assert np.array_equal(PAPER.action_mask[:, 4], np.isin(PAPER.agent, switches))
    assert PAPER.action_mask[:, :4].all()
    assert np.array_equal(PAPER.slips, np.isin(PAPER.agent, [14, 15, 64, 65, 74, 75]))
    in_door = PAPER.agent == 37
    assert np.array_equal(PAPER.closed_state == np.arange(5728), ~PAPER.door_open | in_door)


@given(state=st.integers(0, 5727))
def test_parts_and_pictures_identify_a_state(state):
    assert PAPER.encode(PAPER.agent[state], PAPER.block[state], PAPER.door_open[state]) == state
    assert PAPER.state_of(PAPER.observations[state]) == state


@pytest.mark.parametrize("text", ["..W", "S.D.S", "......\n.B....\n......\n......", CLOSET])
def test_maps_with_things_missing_round_trip(text):
    mdp = TwoRoomsMDP(Layout.parse(text))
    states = np.arange(mdp.n_states)
    assert np.array_equal(mdp.encode(mdp.agent, mdp.block, mdp.door_open), states)
    assert [mdp.state_of(picture) for picture in mdp.render(states)] == states.tolist()


def test_encode_broadcasts():
    assert PAPER.encode(np.arange(3), 62, [[False], [True]]).shape == (2, 3)


@pytest.mark.parametrize(
    ("agent", "block", "door_open"),
    [(62, 62, False), (37, 62, False), (30, 62, True), (0, 51 - 10, False), (0, -1, False), (100, 62, False), (-1, 62, True)],
    ids=[
        "on the block",
        "in the closed door",
        "in the wall",
        "block by the wall",
        "no block",
        "off the map",
        "before the map",
    ],
)
def test_encode_refuses_what_cannot_be(agent, block, door_open):
    with pytest.raises(ValueError, match=f"no state with the agent in cell {agent}, block in {block}"):
        PAPER.encode([0, agent], [62, block], [False, door_open])


def test_encode_refuses_an_open_door_where_there_is_none():
    with pytest.raises(ValueError, match="door open"):
        compile_layout(Layout.parse("...")).encode(0, -1, True)


def test_observations_show_each_thing_in_its_colour():
    state = int(PAPER.encode(0, 62, True))
    picture = PAPER.render(np.array([state]))[0]
    legend = {".": "floor", "#": "wall", "W": "slippery", "S": "switch", "D": "door open", "B": "floor"}
    for row, symbols in enumerate(PAPER.layout.rows):
        for column, symbol in enumerate(symbols):
            thing = {(0, 0): "agent", (6, 2): "block"}.get((row, column), legend[symbol])
            assert tuple(picture[row, column]) == COLOURS[thing]
    shut = PAPER.render(PAPER.closed_state[[state]])[0]
    assert tuple(shut[3, 7]) == COLOURS["door shut"]
    assert np.count_nonzero((shut != picture).any(axis=2)) == 1


def test_state_of_refuses_other_pictures():
    picture = PAPER.observations[7].copy()
    with pytest.raises(ValueError, match=r"has shape \(10, 10, 3\), got \(8, 4, 3\)"):
        PAPER.state_of(SMALL.observations[0])
    with pytest.raises(ValueError, match="shows 0 agents and 0 blocks"):
        PAPER.state_of(np.zeros((10, 10, 3), dtype=np.uint8))
    picture[9, 9] += 1
    with pytest.raises(ValueError, match="No state looks like this"):
        PAPER.state_of(picture)
    in_wall = PAPER._ground.reshape(10, 10, 3).copy()
    in_wall[3, 0], in_wall[6, 2] = COLOURS["agent"], COLOURS["block"]
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


@pytest.mark.parametrize("mdp", [PAPER, SMALL, TwoRoomsMDP(Layout.named("small"), 0.0, 1e-3)])
def test_one_at_a_time_is_the_same(mdp):
    rng = np.random.default_rng(0)
    states, actions = rng.integers(mdp.n_states, size=5_000), rng.integers(5, size=5_000)
    uniforms = rng.random((5_000, 2)) * [1.0, 0.03]  # doors close often enough to be seen
    expected = mdp.step(states, actions, uniforms)
    arguments = zip(states.tolist(), actions.tolist(), *uniforms.T.tolist(), strict=True)
    assert [mdp.step_one(*row) for row in arguments] == expected.tolist()
    assert np.array_equal([mdp.observe_one(state) for state in states[:50]], mdp.observe(states[:50]))


def test_observe_and_render_return_new_arrays():
    for look in (SMALL.observe, SMALL.render):
        look(np.array([5]))[:] = 0
    SMALL.observe_one(5)[:] = 0
    assert SMALL.state_of(SMALL.observations[5]) == 5


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
@pytest.mark.parametrize("name", ["slip_probability", "close_probability"])
def test_probabilities_must_be_in_range(name, value):
    with pytest.raises(ValueError, match=f"{name} must be in"):
        compile_layout(Layout.named("small"), **{name: value})


def test_too_many_states_are_refused(monkeypatch):
    monkeypatch.setattr(mdp_module, "MAX_STATES", 219)
    with pytest.raises(LayoutError, match="220 states; at most 219"):
        TwoRoomsMDP(Layout.named("small"))


def test_a_state_that_cannot_be_reached_is_named():
    # A door that closes at once lets nobody through.
    with pytest.raises(LayoutError, match=r"agent at row 0, column 3, the door closed\) cannot be reached from .* is 1\.0"):
        TwoRoomsMDP(Layout.parse("S.D.S"), close_probability=1.0)
    # The block has one place and always bars the way.
    with pytest.raises(LayoutError, match="agent at row 1, column 0, the block at row 1, column 1, the door closed"):
        TwoRoomsMDP(Layout.parse("#.#\n.B.\n#.#"))


def test_stranded_state_tells_traps_from_sources():
    assert stranded_state(np.array([[1, 1], [0, 0]])) is None
    assert stranded_state(np.array([[1, 2], [0, 0], [2, 2]])) == (2, True)
    assert stranded_state(np.array([[1, 1], [0, 0], [2, 0]])) == (2, False)


def test_compiled_layouts_are_shared():
    again = compile_layout(Layout.parse(str(Layout.named("paper"))))
    assert again is PAPER
    assert copy.deepcopy(PAPER) is PAPER
    assert pickle.loads(pickle.dumps(PAPER)) is PAPER
    assert len(pickle.dumps(PAPER)) < 2000
