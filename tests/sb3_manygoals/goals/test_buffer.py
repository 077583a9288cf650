"""The goals that are known."""

import re
import warnings

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sb3_manygoals.checkpoint import CheckpointError
from sb3_manygoals.goals import UNKNOWN, GoalBuffer
from sb3_manygoals.world import ExactStates, LearnedStates
from tests.sb3_manygoals.many_goals_dqn.memories import goals_of
from tests.sb3_manygoals.worlds import Corridor

PIXELS = spaces.Box(0, 255, (2, 2), np.uint8)
# Few values, so that batches repeat themselves.
pictures = st.lists(arrays(np.uint8, (2, 2), elements=st.integers(0, 1)), max_size=30)
batches = pictures.map(lambda rows: np.array(rows, np.uint8).reshape(-1, 2, 2))


@given(st.lists(batches, max_size=4), st.integers(1, 20))
def test_goals_are_unique_bounded_and_keep_their_ids(additions, capacity):
    buffer = GoalBuffer(PIXELS, capacity)
    seen: dict[bytes, int] = {}
    met = []
    warned = 0
    for batch in additions:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ids = buffer.add(batch)
        warned += len(caught)
        met += [row.tobytes() for row in batch]
        assert ids.shape == (len(batch),)
        assert ids.dtype == np.int64
        for row, goal_id in zip(batch, ids, strict=True):
            known = seen.get(row.tobytes())
            if known is None and len(seen) < capacity:
                known = seen[row.tobytes()] = len(seen)
            assert goal_id == (UNKNOWN if known is None else known)
        assert len(buffer) == len(seen) <= capacity
        # It warns once, as soon as one is dropped.
        assert warned == (len(set(met)) > capacity)
    for key, goal_id in seen.items():
        assert buffer[goal_id].tobytes() == key
    assert len({goal.tobytes() for goal in buffer.observations}) == len(buffer)


@given(st.lists(batches, max_size=4), st.integers(1, 20), st.booleans())
@pytest.mark.filterwarnings("ignore:the goal buffer is full")
def test_observations_of_environments_are_counted_and_others_are_not(shown, capacity, looks_up):
    buffer = GoalBuffer(PIXELS, capacity)
    n_shown = 0
    n_with_room = 0
    for batch in shown:
        state_ids, goal_ids = buffer.observe(batch)
        np.testing.assert_array_equal(goal_ids, buffer.ids(batch))
        np.testing.assert_array_equal(state_ids, buffer.states.ids(batch))
        n_shown += len(batch)
        n_with_room += int((state_ids != UNKNOWN).sum())
        if looks_up:
            buffer.add(batch)
            found = buffer.look_up(batch)
            np.testing.assert_array_equal(found, (state_ids, goal_ids))
        states = buffer.states
        # Those for which there was no room count as new ones.
        assert states.n_added == n_shown
        assert states.is_full == (len(states) == capacity)
        assert states.n_recurred == n_with_room - len(states)


def test_a_known_state_becomes_a_goal_when_it_is_added(tmp_path):
    """As the first observations of transitions that were loaded are."""
    buffer = GoalBuffer(spaces.Discrete(9), capacity=4, held_out=np.array([8]))
    buffer.states.add(np.array([5, 8, 3]))
    shown = np.array([8, 3, 7, 5, 3])
    state_ids, goal_ids = buffer.observe(shown)
    np.testing.assert_array_equal(state_ids, [1, 2, 3, 0, 2])
    np.testing.assert_array_equal(goal_ids, [UNKNOWN, 1, 2, 0, 1])
    np.testing.assert_array_equal(buffer.goals_of_states(state_ids), goal_ids)
    np.testing.assert_array_equal(buffer.observations, [5, 3, 7])
    np.testing.assert_array_equal(buffer.state_ids, [0, 2, 3])
    # Held-out observations were met too.
    assert buffer.states.n_added == 5
    assert buffer.states.n_recurred == 4
    late = GoalBuffer(spaces.Discrete(9))
    late.states.add(np.array([5, 3]))
    for cell in (3, 5):
        late.add(np.array([cell]))
    # Goals are in the order of their ids, though all states are goals.
    np.testing.assert_array_equal(late.observations, [3, 5])
    late.save(tmp_path / "goals")
    for capacity, expected in ((7, 100_000), (200_000, 200_000)):
        loaded = GoalBuffer.load(tmp_path / "goals", spaces.Discrete(9), capacity)
        assert loaded.capacity == expected
        np.testing.assert_array_equal(loaded.observations, [3, 5])
        np.testing.assert_array_equal(loaded.states.observations, [5, 3])


@given(batches, batches)
def test_held_out_observations_never_become_goals(batch, held_out):
    buffer = GoalBuffer(PIXELS, held_out=held_out)
    ids = buffer.add(batch)
    forbidden = {row.tobytes() for row in held_out}
    assert {goal.tobytes() for goal in buffer.observations} == {
        row.tobytes() for row in batch
    } - forbidden
    np.testing.assert_array_equal(ids == UNKNOWN, [row.tobytes() in forbidden for row in batch])
    np.testing.assert_array_equal(buffer.is_held_out(batch), ids == UNKNOWN)


def test_a_full_buffer_says_once_which_limit_to_raise():
    buffer = GoalBuffer(spaces.Discrete(9), capacity=2, held_out=np.array([8]))
    # Nothing is dropped yet.
    buffer.add(np.array([0, 1, 8, 1]))
    message = (
        "the goal buffer is full with 2 goals: new observations will not become goals.*"
        "raise capacity, of the goal buffer"
    )
    with pytest.warns(RuntimeWarning, match=message) as warned:
        buffer.add(np.array([2, 3]))
    # The warning points to who asked.
    assert warned[0].filename == __file__
    buffer.add(np.array([4]))
    assert len(warned) == 1


def test_looking_up_stores_nothing_and_what_is_stored_is_a_read_only_copy():
    known = np.zeros((1, 2, 2), np.uint8)
    buffer = goals_of(known, PIXELS)
    np.testing.assert_array_equal(buffer.ids(np.array([known[0], known[0] + 1])), [0, UNKNOWN])
    assert len(buffer) == 1
    known += 7
    assert buffer.observations.max() == 0
    with pytest.raises(ValueError, match="read-only"):
        buffer.observations[0] = 1


def test_every_space_of_single_arrays_can_hold_goals_and_floats_are_compared_byte_for_byte():
    for space in (
        spaces.Discrete(5),
        spaces.MultiDiscrete([3, 4]),
        spaces.MultiBinary(3),
        spaces.Box(-1.0, 1.0, (3,)),
    ):
        buffer = GoalBuffer(space)
        space.seed(0)
        batch = np.array([space.sample() for _ in range(50)], dtype=space.dtype)
        np.testing.assert_array_equal(buffer[buffer.add(batch)], batch)
    buffer = GoalBuffer(spaces.Box(-1.0, 1.0, (1,), np.float32))
    np.testing.assert_array_equal(
        buffer.add(np.array([[0.0], [-0.0], [0.0]], np.float32)), [0, 1, 0]
    )


def test_save_and_load_round_trip(tmp_path):
    held_out = np.full((1, 2, 2), 9, np.uint8)
    buffer = GoalBuffer(PIXELS, capacity=3, held_out=held_out)
    batch = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
    ids = buffer.add(batch)
    buffer.save(tmp_path / "deep" / "goals")
    loaded = GoalBuffer.load(tmp_path / "deep" / "goals", PIXELS)
    np.testing.assert_array_equal(loaded.ids(batch), ids)
    assert loaded.capacity == 3
    assert loaded.is_held_out(held_out).all()
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["goals.npz"]
    message = r"the states of the file must be uint8 of shape \(n, 3\), got uint8 of \(3, 2, 2\)"
    with pytest.raises(ValueError, match=message):
        GoalBuffer.load(tmp_path / "deep" / "goals", spaces.Box(0, 255, (3,), np.uint8))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "deep" / "goals.npz").read_bytes()[:300])
    np.savez(tmp_path / "foreign.npz", something=batch)
    for name in ("cut", "foreign"):
        with pytest.raises(ValueError, match=f"{name} is no whole file of a goal buffer"):
            GoalBuffer.load(tmp_path / name, PIXELS)
    # Earlier versions kept counts of each goal.
    np.savez(tmp_path / "earlier.npz", labels=np.zeros((4, 3)), goals=batch)
    with pytest.raises(ValueError, match="earlier is a goal buffer that an earlier version wrote"):
        GoalBuffer.load(tmp_path / "earlier", PIXELS)


@pytest.mark.parametrize(
    ("space", "reason"),
    [
        (
            spaces.Tuple([PIXELS]),
            "expected one of Box, Discrete, MultiDiscrete, MultiBinary, got Tuple",
        ),
        (spaces.Text(5), "expected one of Box"),
        (spaces.Box(0, 1, ()), "expected an array with elements"),
        (spaces.Box(0, 1, (0,)), "expected an array with elements"),
        (spaces.Discrete(4, start=1), "expected values that start at 0"),
        (spaces.MultiDiscrete([3, 3], start=[0, 1]), "expected values that start at 0"),
        (spaces.MultiDiscrete([[3, 3]]), "expected a MultiDiscrete of one axis"),
    ],
)
def test_a_space_that_cannot_hold_goals_is_refused(space, reason):
    with pytest.raises(
        TypeError, match=f"observation_space cannot be treated as a space of goals: {reason}"
    ):
        GoalBuffer(space)


def test_what_makes_no_sense_is_refused_and_nothing_stored():
    for capacity in (0, -3, 2.5, True):
        with pytest.raises(
            ValueError, match="capacity must be a whole number of goals, at least 1, got"
        ):
            GoalBuffer(PIXELS, capacity)
    buffer = GoalBuffer(PIXELS)
    for wrong in (np.zeros((2, 2), np.uint8), np.zeros((1, 2, 2))):
        got = f"{wrong.dtype} of {re.escape(str(wrong.shape))}"
        message = rf"must be uint8 of shape \(n, 2, 2\), got {got}"
        with pytest.raises(ValueError, match=f"observations {message}"):
            buffer.add(wrong)
        with pytest.raises(ValueError, match=f"held_out {message}"):
            GoalBuffer(PIXELS, held_out=wrong)
    assert len(buffer) == 0
    buffer = GoalBuffer(spaces.Discrete(4))
    message = r"observations must be int64 of shape \(n,\), got float64 of \(1,\)"
    with pytest.raises(ValueError, match=message):
        buffer.add(np.zeros(1))
    with pytest.raises(ValueError, match="cannot sample from an empty goal buffer"):
        buffer.sample_ids(1, np.random.default_rng(0))
    buffer.add(np.arange(3))
    with pytest.raises(ValueError, match="n must be a whole number, at least 1, got 0"):
        buffer.sample_ids(0, np.random.default_rng(0))
    for ids in (UNKNOWN, np.array([0, UNKNOWN])):
        with pytest.raises(IndexError, match="there is no goal with the id -1"):
            buffer[ids]


def test_a_state_restores_goals_ids_and_settings_in_place():
    space = spaces.MultiDiscrete([9, 9])
    rows = np.stack([np.arange(8), np.arange(8)], axis=1).astype(space.dtype)
    buffer = goals_of(rows[:5], space, capacity=6, held_out=rows[2:4])
    buffer.observe(rows[:4])
    state = buffer.get_checkpoint_state()
    other = goals_of(rows[:1:-1], space, capacity=6)
    other.set_checkpoint_state(state)
    state["states"]["observations"][:] = 0
    assert len(other) == 3
    assert np.array_equal(other.observations, buffer.observations)
    assert np.array_equal(other.ids(rows), buffer.ids(rows))
    np.testing.assert_equal(other.config, buffer.config)
    np.testing.assert_array_equal(other.observe(rows), buffer.observe(rows))
    assert other.states.n_added == buffer.states.n_added == 12
    assert other.states.n_recurred == buffer.states.n_recurred


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (GoalBuffer(spaces.MultiBinary(3), capacity=7), "capacity=7, not 6"),
        (GoalBuffer(spaces.MultiBinary(4), capacity=6), r"shape=\(4,\), not \(3,\)"),
        (GoalBuffer(spaces.Box(0, 1, (3,)), capacity=6), r"dtype='<f4', not '\|i1'"),
    ],
)
def test_the_state_of_another_buffer_is_refused(other, message):
    buffer = goals_of(np.ones((1, 3), np.int8), spaces.MultiBinary(3), capacity=6)
    with pytest.raises(ValueError, match=message):
        buffer.set_checkpoint_state(other.get_checkpoint_state())
    state = buffer.get_checkpoint_state()
    twice = {**state["states"], "observations": np.zeros((2, 3), np.int8)}
    with pytest.raises(ValueError, match="2 states, 1 of them distinct, of at most 6"):
        buffer.set_checkpoint_state({**state, "states": twice})
    too_many = {**state, "state_ids": np.arange(7)}
    with pytest.raises(ValueError, match="there are 7 goals, of at most 6"):
        buffer.set_checkpoint_state(too_many)
    # It is as it was.
    np.testing.assert_array_equal(buffer.observations, [[1, 1, 1]])
    assert buffer.ids(buffer.observations) == [0]


def test_what_is_held_out_by_another_look_is_the_same():
    def cell(observation):
        return observation[0]

    space = spaces.Box(0, 9, (2,), np.uint8)
    buffers = [
        GoalBuffer(space, held_out=np.array([[3, look]], np.uint8), state_key=cell)
        for look in (1, 2)
    ]
    buffers[0].set_checkpoint_state(buffers[1].get_checkpoint_state())
    assert buffers[0].is_held_out(np.array([[3, 7]], np.uint8)).all()


def test_arguments_of_states_need_their_class():
    with pytest.raises(ValueError, match=r"state_kwargs are arguments of state_class, .*n_updates"):
        GoalBuffer(PIXELS, state_kwargs={"n_updates": 5})


def test_a_state_that_does_not_hold_out_what_a_buffer_does_is_refused():
    space = spaces.Discrete(6)
    state = GoalBuffer(space, held_out=np.array([2])).get_checkpoint_state()
    for held_out in ([3], [2, 3]):
        buffer = GoalBuffer(space, held_out=np.array(held_out))
        with pytest.raises(CheckpointError, match="does not hold out what this one does"):
            buffer.set_checkpoint_state(state)
        assert buffer.is_held_out(np.array(held_out)).all()
    for buffer in (GoalBuffer(space), GoalBuffer(space, held_out=np.array([2]))):
        buffer.set_checkpoint_state(state)
        assert buffer.is_held_out(np.array([2, 3])).tolist() == [True, False]


def test_fewer_learned_states_than_exact_ones_fit_into_memory(monkeypatch):
    pictures = spaces.Box(0, 255, (84, 84, 3), np.uint8)
    monkeypatch.setattr("sb3_manygoals.goals.buffer.share_of_memory", lambda share: 2**28)
    buffer = GoalBuffer(pictures)
    n_exact = buffer.capacity
    buffer.use_states(LearnedStates)
    # Of each learned state, 32 observations are kept, and 8 bytes for each number.
    assert n_exact / 41 < buffer.capacity < n_exact / 39
    assert buffer.states.capacity == buffer.capacity
    # If learned states are given up, there is room again.
    buffer.use_states(ExactStates)
    assert (buffer.capacity, buffer.states.capacity) == (n_exact, n_exact)
    # A capacity that was given stays, or is refused before anything changes.
    fixed = GoalBuffer(pictures, capacity=1_000)
    monkeypatch.setattr("sb3_manygoals.memory_limits.available_memory", lambda: 2**28)
    with pytest.raises(MemoryError, match="a goal buffer of capacity 1000"):
        fixed.use_states(LearnedStates)
    assert type(fixed.states) is ExactStates
    assert fixed.state_class is None
    assert fixed.capacity == 1_000


def test_what_is_no_space_is_refused():
    with pytest.raises(TypeError, match="observation_space must be a space of Gymnasium, got <"):
        GoalBuffer(Corridor())
