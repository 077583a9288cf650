import copy
from collections import Counter

import numpy as np
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from sb3_manygoals.many_goals_dqn import ManyGoalsReplayBuffer
from tests.sb3_manygoals.many_goals_dqn.memories import GOAL_SPACE


def _add(buffer, time):
    n = buffer.n_envs
    here, there = np.arange(n) + 10 * time, np.arange(n) + 10 * time + 1
    infos = [{"achieved_goal_id": 100 + cell, "env_terminated": cell % 2 == 0} for cell in there]
    buffer.add({"observation": here}, {"observation": there}, np.full(n, time % 3), np.zeros(n), np.zeros(n, bool), infos)


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


@given(st.lists(st.tuples(cells, st.integers(0, 2), cells), min_size=1, max_size=30), st.integers(1, 3), st.booleans())
def test_states_and_counts_are_those_of_what_was_added(moves, n_envs, later):
    """Also where the oldest transitions have given way; and whether they are told apart from the beginning or later on."""
    buffer = ManyGoalsReplayBuffer(4 * n_envs, GOAL_SPACE, spaces.Discrete(3), "cpu", n_envs)
    if not later:
        buffer.keep_states(50)
    expected = []
    for here, action, there in moves:
        where, to = here + 10 * np.arange(n_envs), there + 10 * np.arange(n_envs)
        infos, nothing = [{"achieved_goal_id": 0, "env_terminated": False}] * n_envs, np.zeros(n_envs)
        buffer.add({"observation": where}, {"observation": to}, np.full(n_envs, action), nothing, nothing, infos)
        expected += [(cell, action, after, 0) for cell, after in zip(where.tolist(), to.tolist(), strict=True)]
    if later:
        buffer.keep_states(50)
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

    buffer, other = new(), new()
    buffer.keep_states(50)
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
