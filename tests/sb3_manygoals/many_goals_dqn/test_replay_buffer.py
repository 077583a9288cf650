import copy
from collections import Counter

import numpy as np
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from sb3_manygoals.goals import UNKNOWN, ObservationTable
from sb3_manygoals.many_goals_dqn import ManyGoalsReplayBuffer
from tests.sb3_manygoals.many_goals_dqn.memories import CELLS, GOAL_SPACE, add, kept


def _add(buffer, time):
    there = np.arange(buffer.n_envs) + 10 * time + 1
    add(buffer, there - 1, time % 3, there, there % 2 == 0, 100 + there)


def test_the_newest_transitions_stay_whole():
    buffer = ManyGoalsReplayBuffer(6, GOAL_SPACE, spaces.Discrete(3), device="cpu", n_envs=2)
    for time in range(5):
        _add(buffer, time)
    batch = buffer.sample(500)
    here = batch.observations.numpy()
    assert set(here) == {20, 21, 30, 31, 40, 41}
    np.testing.assert_array_equal(batch.next_observations.numpy(), here + 1)
    np.testing.assert_array_equal(batch.next_ids.numpy(), here + 101)
    np.testing.assert_array_equal(batch.actions.numpy(), (here // 10) % 3)
    np.testing.assert_array_equal(batch.terminated.numpy(), here % 2 == 1)
    assert batch.actions.shape == (500,)


cells = st.integers(0, 5)


@given(
    st.lists(st.tuples(cells, st.integers(0, 2), cells), min_size=1, max_size=30),
    st.integers(1, 3),
    st.booleans(),
)
def test_states_and_counts_are_those_of_what_was_added(moves, n_envs, later):
    """Also where the oldest transitions have given way; and whether they are told apart from the beginning or later on."""
    buffer = ManyGoalsReplayBuffer(4 * n_envs, GOAL_SPACE, spaces.Discrete(3), "cpu", n_envs)
    if not later:
        buffer.keep_states(ObservationTable(CELLS, 50))
    expected = []
    for here, action, there in moves:
        where, to = here + 10 * np.arange(n_envs), there + 10 * np.arange(n_envs)
        add(buffer, where, action, to)
        expected += [
            (cell, action, after, 0)
            for cell, after in zip(where.tolist(), to.tolist(), strict=True)
        ]
    if later:
        buffer.keep_states(ObservationTable(CELLS, 50))
    expected = Counter(expected[-4 * n_envs :] if later else expected)
    rows, counts = buffer.outcomes()
    rows[:, [0, 2]] = buffer.states[rows[:, [0, 2]]]
    assert dict(zip(map(tuple, rows.tolist()), counts.tolist(), strict=True)) == expected
    known, tried = buffer.states.observations, Counter()
    for (cell, action, *_), n in expected.items():
        tried[cell, action] += n
    assert {(known[s], a): buffer.tried[s, a] for s, a in np.argwhere(buffer.tried)} == tried


@given(st.integers(1, 12), st.integers(1, 12))
def test_a_memory_with_states_is_restored_as_it_was(n_before, n_after):
    def new():
        return ManyGoalsReplayBuffer(6, GOAL_SPACE, spaces.Discrete(3), "cpu", 2)

    buffer, other, table = new(), new(), ObservationTable(CELLS, 50)
    for each in (buffer, other):
        each.keep_states(table)
    for time in range(n_before + n_after):
        if time == n_before:
            other.set_checkpoint_state(copy.deepcopy(buffer.get_checkpoint_state()))
        for each in (buffer, other)[: 1 + (time >= n_before)]:
            _add(each, time % 4)
    np.testing.assert_equal(other.get_checkpoint_state(), buffer.get_checkpoint_state())
    for name in ("observations", "next_observations", "next_ids", "actions", "dones"):
        np.testing.assert_array_equal(getattr(other, name), getattr(buffer, name))
    assert buffer.outcomes()[1].sum() == 2 * (n_before + n_after)
    other.set_checkpoint_state(new().get_checkpoint_state())
    assert other.states is None


@given(
    st.lists(st.lists(st.tuples(cells, cells), min_size=2, max_size=2), min_size=1, max_size=12),
    st.integers(1, 8),
)
def test_numbers_stand_for_whole_observations_until_the_table_has_no_room(moves, capacity):
    """And those who keep numbers only never sample what they lack."""
    buffers = [
        ManyGoalsReplayBuffer(16, GOAL_SPACE, spaces.Discrete(3), "cpu", 2, as_numbers=numbers)
        for numbers in (0, 1)
    ]
    for buffer in buffers:
        buffer.keep_states(ObservationTable(CELLS, capacity))
    expected = []
    for step in moves:
        here, there = np.array(step).T
        for buffer in buffers:
            add(buffer, here, 1, there, goal_id=there)
        expected.append((here, there))
    buffer, numbered = buffers
    n_cells = len(np.unique(moves))
    assert (buffer.whole, numbered.whole) == (n_cells > capacity, False)
    rows = np.argsort(np.arange(len(expected))[-8:] % 8)
    np.testing.assert_array_equal(kept(buffer), np.array(expected)[-8:].swapaxes(0, 1)[:, rows])
    batch = buffer.sample(200)
    drawn = set(zip(batch.observations.tolist(), batch.next_observations.tolist(), strict=True))
    assert drawn <= {pair for step in moves for pair in step}
    np.testing.assert_array_equal(batch.next_ids, batch.next_observations)
    if (numbered.numbers[: numbered.size()] != UNKNOWN).all(axis=2).any():
        assert set(numbered.sample(200).next_observations.tolist()) <= set(
            numbered.states.observations.tolist()
        )
    # other numbers, more room; and no numbers
    before = kept(buffer)
    other = ObservationTable(CELLS, 6)
    other.add(np.arange(5, -1, -1))
    buffer.keep_states(other)
    assert not buffer.whole
    np.testing.assert_array_equal(kept(buffer), before)
    buffer.forget_states()
    assert buffer.whole
    np.testing.assert_array_equal(kept(buffer), before)


def test_ten_million_transitions_as_numbers_take_less_than_250_megabytes():
    images = spaces.Box(0, 255, (24, 24, 3), np.uint8)
    space = spaces.Dict({key: images for key in GOAL_SPACE})
    arguments = 10_000_000, space, spaces.Discrete(5), 64
    assert sum(ManyGoalsReplayBuffer.memory_needed(*arguments, as_numbers=True).values()) < 250e6
    whole = ManyGoalsReplayBuffer.memory_needed(*arguments)
    assert (
        whole["replay observations"]
        == whole["replay next observations"]
        == 10_000_000 // 64 * 64 * 24 * 24 * 3
    )
