"""The replay memory: transitions as ids of states, or with their observations."""

import copy
import pickle
from collections import Counter

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from sb3_manygoals import GoalBuffer
from sb3_manygoals.many_goals_dqn import ManyGoalsReplayBuffer
from sb3_manygoals.world import ExactStates, WorldModel
from tests.sb3_manygoals.many_goals_dqn.memories import (
    CELLS,
    GOAL_SPACE,
    add,
    goals_of,
    kept,
    memory_of_states,
)

cells = st.integers(0, 5)


def add_numbered(buffer, time):
    """Add a transition of each environment, from which all can be told."""
    there = np.arange(buffer.n_envs) + 10 * time + 1
    add(buffer, there - 1, time % 3, there, there % 2 == 0, 100 + there, reward=there)


def memory_of_observations(buffer_size, n_envs=1):
    return ManyGoalsReplayBuffer(buffer_size, GOAL_SPACE, spaces.Discrete(3), "cpu", n_envs)


def test_the_newest_transitions_are_sampled_whole():
    buffer = memory_of_observations(6, n_envs=2)
    for time in range(5):
        add_numbered(buffer, time)
    batch = buffer.sample(500)
    here = batch.observations.numpy()
    assert set(here) == {20, 21, 30, 31, 40, 41}
    np.testing.assert_array_equal(batch.next_observations.numpy(), here + 1)
    np.testing.assert_array_equal(batch.next_goal_ids.numpy(), here + 101)
    np.testing.assert_array_equal(batch.actions.numpy(), (here // 10) % 3)
    np.testing.assert_array_equal(batch.terminated.numpy(), here % 2 == 1)
    assert batch.actions.shape == (500,)


@given(
    st.integers(1, 13),
    st.integers(1, 3),
    st.integers(1, 20),
    st.integers(1, 8),
    st.integers(0, 2**32 - 1),
)
def test_segments_are_consecutive_transitions_of_one_environment(
    n_times, n_envs, batch_size, length, seed
):
    buffer = memory_of_observations(6 * n_envs, n_envs)
    for time in range(n_times):
        add_numbered(buffer, time)
    batch = buffer.sample_segments(batch_size, length, np.random.default_rng(seed))
    here = batch.observations.numpy()
    assert here.shape == (batch_size,)
    times = here // 10
    assert times.min() >= max(0, n_times - 6)
    assert times.max() < n_times
    length = min(length, n_times, 6)
    for begin in range(0, batch_size, length):
        segment = here[begin : begin + length]
        # An environment's next transition has a number that is greater by 10.
        np.testing.assert_array_equal(np.diff(segment), 10)
    np.testing.assert_array_equal(batch.next_observations.numpy(), here + 1)
    np.testing.assert_array_equal(batch.actions.numpy(), times % 3)


def test_all_segments_of_a_full_memory_are_drawn():
    buffer = memory_of_observations(6)
    for time in range(8):
        add_numbered(buffer, time)
    here = buffer.sample_segments(900, 3, np.random.default_rng(0)).observations.numpy()
    assert set(here[::3] // 10) == {2, 3, 4, 5}


def test_segments_of_nothing_are_refused():
    with pytest.raises(ValueError, match="cannot sample from an empty replay memory"):
        memory_of_observations(6).sample_segments(4, 2, np.random.default_rng(0))


@given(
    st.lists(st.tuples(cells, st.integers(0, 2), cells), min_size=1, max_size=30),
    st.integers(1, 3),
    st.booleans(),
)
def test_the_transitions_that_are_kept_can_be_recorded_in_a_model_of_the_world(
    moves, n_envs, stores_observations
):
    if stores_observations:
        buffer = memory_of_observations(4 * n_envs, n_envs)
    else:
        buffer = memory_of_states(4 * n_envs, n_envs)
    made = []
    for number, (here, action, there) in enumerate(moves):
        from_cells = here + 10 * np.arange(n_envs)
        to_cells = there + 10 * np.arange(n_envs)
        ended = number % 3 == 0
        add(buffer, from_cells, action, to_cells, ended, reward=number % 2)
        made += [
            (before, action, after, ended, number % 2)
            for before, after in zip(from_cells.tolist(), to_cells.tolist(), strict=True)
        ]
    assert buffer.stores_observations == stores_observations
    kept_transitions = made[-4 * n_envs :]
    world = WorldModel(ExactStates(CELLS, 100), 3)
    buffer.record_in(world)

    outcomes = world.outcomes()
    columns = [
        world.identity[outcomes.state_ids],
        outcomes.actions,
        world.identity[outcomes.next_state_ids],
        outcomes.terminated,
    ]
    keys = list(zip(*(column.tolist() for column in columns), strict=True))
    expected = Counter(tuple(one[:4]) for one in kept_transitions)
    assert dict(zip(keys, outcomes.counts.tolist(), strict=True)) == expected
    rewards = dict.fromkeys(expected, 0)
    visits = Counter()
    for *key, reward in kept_transitions:
        rewards[tuple(key)] += reward
        visits[key[0], key[1]] += 1
    assert dict(zip(keys, outcomes.reward_sums.tolist(), strict=True)) == rewards
    assert world.n_counted == len(kept_transitions)
    cells_of_states = world.identity.observations
    tried = np.argwhere(world.visit_counts)
    found = {(cells_of_states[state], a): world.visit_counts[state, a] for state, a in tried}
    assert found == visits


@given(st.integers(1, 12), st.integers(1, 12))
def test_a_memory_with_states_is_restored_as_it_was(n_before, n_after):
    goals = GoalBuffer(CELLS, 100)
    states = ExactStates(CELLS, 100)
    buffer = memory_of_states(6, 2)
    other = memory_of_states(6, 2)
    for each in (buffer, other):
        each.move_to(goals, states)
    for time in range(n_before):
        add_numbered(buffer, time % 4)
    other.set_checkpoint_state(copy.deepcopy(buffer.get_checkpoint_state()))
    for time in range(n_before, n_before + n_after):
        for each in (buffer, other):
            add_numbered(each, time % 4)
    np.testing.assert_equal(other.get_checkpoint_state(), buffer.get_checkpoint_state())
    assert not other.stores_observations
    np.testing.assert_array_equal(kept(other), kept(buffer))
    for name in ("next_goal_ids", "behavior_goal_ids", "actions", "dones", "env_rewards"):
        np.testing.assert_array_equal(getattr(other, name), getattr(buffer, name))
    other.set_checkpoint_state(memory_of_states(6, 2).get_checkpoint_state())
    assert other.size() == 0
    assert other.env_rewards is None


def test_a_memory_that_stores_observations_is_restored_too():
    buffer = memory_of_observations(6, 2)
    for time in range(5):
        add_numbered(buffer, time)
    other = memory_of_states(6, 2)
    other.set_checkpoint_state(copy.deepcopy(buffer.get_checkpoint_state()))
    assert other.stores_observations
    np.testing.assert_array_equal(kept(other), kept(buffer))


@given(
    st.lists(st.lists(st.tuples(cells, cells), min_size=2, max_size=2), min_size=1, max_size=12),
    st.integers(1, 8),
)
def test_ids_stand_for_observations_until_there_is_no_room_for_states(moves, capacity):
    buffer = memory_of_states(16, n_envs=2, max_states=capacity)
    made = []
    for step in moves:
        here, there = np.array(step).T
        add(buffer, here, 1, there, goal_id=there)
        made.append((here, there))
    assert buffer.stores_observations == (len(np.unique(moves)) > capacity)
    # The oldest transitions are replaced in a ring of eight steps.
    rows = np.argsort(np.arange(len(made))[-8:] % 8)
    expected = np.array(made)[-8:].swapaxes(0, 1)[:, rows]
    np.testing.assert_array_equal(kept(buffer), expected)
    batch = buffer.sample(200)
    pairs = zip(batch.observations.tolist(), batch.next_observations.tolist(), strict=True)
    assert set(pairs) <= {pair for step in moves for pair in step}
    np.testing.assert_array_equal(batch.next_goal_ids, batch.next_observations)


@given(st.lists(st.tuples(cells, cells), min_size=1, max_size=12), st.integers(1, 8))
def test_a_memory_moves_to_other_goals_and_states(moves, capacity):
    buffer = memory_of_states(8, max_states=capacity)
    for here, there in moves:
        add(buffer, here, 1, there)
    before = kept(buffer)
    stored = buffer.stores_observations
    goals = goals_of(np.arange(5, -1, -1), capacity=100)
    for states in (goals.states, ExactStates(CELLS, 2), None):
        buffer.move_to(goals, states)
        assert buffer.states is states
        np.testing.assert_array_equal(kept(buffer), before)
        next_goal_ids = buffer.next_goal_ids[: buffer.size()]
        np.testing.assert_array_equal(goals[next_goal_ids], before[1])
        # Once observations are stored, they stay stored.
        stored = stored or states is None or len(np.unique(before)) > states.capacity
        assert buffer.stores_observations == stored


def test_next_observations_become_goals_where_a_memory_moves():
    buffer = memory_of_states(8)
    for here, there in ((0, 3), (3, 1), (1, 3)):
        add(buffer, here, 1, there)
    goals = GoalBuffer(CELLS, 100, held_out=np.array([1]))
    buffer.move_to(goals, goals.states)
    assert goals.observations.tolist() == [3]
    assert buffer.next_goal_ids[:3, 0].tolist() == [0, -1, 0]


def test_ten_million_transitions_between_known_states_take_less_than_250_megabytes():
    images = spaces.Box(0, 255, (24, 24, 3), np.uint8)
    space = spaces.Dict({key: images for key in GOAL_SPACE})
    needed = ManyGoalsReplayBuffer.memory_needed(10_000_000, space, spaces.Discrete(5), 64)
    of_observations = needed.pop("replay observations")
    assert sum(needed.values()) < 250e6
    assert of_observations == 2 * 10_000_000 // 64 * 64 * 24 * 24 * 3


def test_only_the_filled_part_is_pickled_and_there_is_room_again():
    buffer = memory_of_states(1_000_000)
    for time in range(3):
        add_numbered(buffer, time)
    pickled = pickle.dumps(buffer)
    assert len(pickled) < 100_000
    restored = pickle.loads(pickled)
    assert restored.size() == 3
    assert restored.buffer_size == 1_000_000
    add_numbered(restored, 3)
    add_numbered(buffer, 3)
    for name in ("state_ids", "actions", "dones", "next_goal_ids", "env_rewards"):
        np.testing.assert_array_equal(getattr(restored, name), getattr(buffer, name))
