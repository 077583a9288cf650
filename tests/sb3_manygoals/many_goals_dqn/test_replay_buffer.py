import copy

import numpy as np
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from sb3_manygoals.many_goals_dqn import ManyGoalsReplayBuffer

CELLS = spaces.Discrete(100)
SPACE = spaces.Dict({key: CELLS for key in ("observation", "achieved_goal", "desired_goal")})


def _add(buffer, time):
    n = buffer.n_envs
    here, there = np.arange(n) + 10 * time, np.arange(n) + 10 * time + 1
    infos = [{"achieved_goal_id": 100 + cell, "env_terminated": cell % 2 == 0} for cell in there]
    buffer.add({"observation": here}, {"observation": there}, np.full(n, time % 3), np.zeros(n), np.zeros(n, bool), infos)


def test_the_newest_transitions_stay_whole():
    buffer = ManyGoalsReplayBuffer(6, SPACE, spaces.Discrete(3), device="cpu", n_envs=2)
    for time in range(5):
        _add(buffer, time)
    assert buffer.full
    assert buffer.size() == 3
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
    buffer = ManyGoalsReplayBuffer(4 * n_envs, SPACE, spaces.Discrete(3), "cpu", n_envs, max_states=0 if later else 50)
    tried, rows = {}, []
    for here, action, there in moves:
        where, to = here + 10 * np.arange(n_envs), there + 10 * np.arange(n_envs)
        infos = [{"achieved_goal_id": 0, "env_terminated": False}] * n_envs
        if not later:
            shown = buffer.numbers_of(where)  # as a learner asks before it acts
            assert buffer.states[shown].tolist() == where.tolist()
        nothing = np.zeros(n_envs)
        buffer.add({"observation": where}, {"observation": to}, np.full(n_envs, action), nothing, nothing, infos)
        rows.append((where.tolist(), action, to.tolist()))
    if later:
        buffer.keep_states(50)
        rows = rows[-4:]
    for where, action, _ in rows:
        for cell in where:
            tried[cell, action] = tried.get((cell, action), 0) + 1
    known = buffer.states.observations.tolist()
    counts = {(cell, action): int(buffer.tried[state, action]) for state, cell in enumerate(known) for action in range(3)}
    assert {pair: n for pair, n in counts.items() if n} == tried
    for time in range(buffer.size()):
        np.testing.assert_array_equal(buffer.states[buffer.state_ids[time]], buffer.observations[time].reshape(-1))
        np.testing.assert_array_equal(buffer.states[buffer.next_state_ids[time]], buffer.next_observations[time].reshape(-1))
    batch = buffer.sample(20)
    np.testing.assert_array_equal(buffer.states[batch.states.numpy()], batch.observations.numpy())
    buffer.forget_states()
    assert buffer.sample(5).states is None


@given(st.integers(1, 12), st.integers(1, 12))
def test_a_memory_with_states_is_restored_as_it_was(n_before, n_after):
    def played(n, buffer=None, first=0):
        buffer = buffer or ManyGoalsReplayBuffer(6, SPACE, spaces.Discrete(3), "cpu", 2, max_states=50)
        for time in range(first, first + n):
            _add(buffer, time % 4)
        return buffer

    buffer, other = played(n_before), ManyGoalsReplayBuffer(6, SPACE, spaces.Discrete(3), "cpu", 2)
    other.set_checkpoint_state(copy.deepcopy(buffer.get_checkpoint_state()))
    played(n_after, buffer, n_before), played(n_after, other, n_before)
    for name in ("state_ids", "next_state_ids", "observations", "actions"):
        np.testing.assert_array_equal(getattr(buffer, name)[: buffer.size()], getattr(other, name)[: other.size()])
    n = len(buffer.states)
    np.testing.assert_array_equal(buffer.states.observations, other.states.observations)
    np.testing.assert_array_equal(buffer.tried[:n], other.tried[:n])
    for left, right in zip(buffer.outcomes(), other.outcomes(), strict=True):
        np.testing.assert_array_equal(left, right)
    assert buffer.outcomes()[1].sum() == 2 * (n_before + n_after)
    without = ManyGoalsReplayBuffer(6, SPACE, spaces.Discrete(3), "cpu", 2)
    other.set_checkpoint_state(without.get_checkpoint_state())
    assert other.states is None
