"""The model of the world, against a dictionary of all transitions."""

import copy
from itertools import chain

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from sb3_manygoals.world import UNKNOWN, ExactStates, WorldModel, model

N_STATES = 5
N_ACTIONS = 3
# UNKNOWN is the id of an observation that is no known state.
state_ids = st.integers(UNKNOWN, N_STATES - 1)
rewards = st.sampled_from([0.0, 0.0, 1.0, -0.5, 2.25])
transitions = st.tuples(state_ids, st.integers(0, N_ACTIONS - 1), state_ids, rewards, st.booleans())
batches = st.lists(st.lists(transitions, min_size=1, max_size=12), max_size=12)
merges = st.sampled_from([1, 4, 2**16])


def known_states(n_states=N_STATES, capacity=8):
    """Return so many states of a larger capacity."""
    states = ExactStates(spaces.Discrete(capacity), capacity)
    states.add(np.arange(n_states))
    return states


def record(world, batch):
    """Record transitions (state, action, next state, reward, terminated) in a model."""
    here, actions, there, paid, ended = zip(*batch, strict=True)
    world.record(
        np.array(here), np.array(actions), np.array(there), np.array(paid), np.array(ended)
    )


def counted(batches_of_transitions):
    """Return by brute force what a model knows: counts by pairs, outcomes and next states."""
    visits = {}
    outcomes = {}
    arrivals = {}
    for here, action, there, reward, ended in chain(*batches_of_transitions):
        if here != UNKNOWN:
            visits[here, action] = visits.get((here, action), 0) + 1
        if here != UNKNOWN and there != UNKNOWN:
            count, total = outcomes.get((here, action, there, ended), (0, 0.0))
            outcomes[here, action, there, ended] = (count + 1, total + reward)
        count, total, ends = arrivals.get(there, (0, 0.0, 0))
        arrivals[there] = (count + 1, total + reward, ends + ended)
    return visits, outcomes, arrivals


def check(world, batches_of_transitions):
    """Assert that a model knows what was recorded in it."""
    visits, outcomes, arrivals = counted(batches_of_transitions)
    assert world.n_counted == sum(visits.values())
    pairs = [tuple(pair) for pair in np.argwhere(world.visit_counts).tolist()]
    assert {pair: world.visit_counts[pair] for pair in pairs} == visits

    found = world.outcomes()
    keys = list(zip(*(column.tolist() for column in found[:4]), strict=True))
    assert keys == sorted(outcomes)
    assert found.counts.tolist() == [outcomes[key][0] for key in keys]
    np.testing.assert_allclose(found.reward_sums, [outcomes[key][1] for key in keys])

    # The last entry is of observations that are no known state.
    for state in range(UNKNOWN, world.identity.capacity):
        count, total, ends = arrivals.get(state, (0, 0.0, 0))
        assert world.arrivals[state] == count
        assert world.arrival_rewards[state] == pytest.approx(total)
        assert world.arrival_ends[state] == ends

    after = {}
    for here, action, there, _ in outcomes:
        after.setdefault((here, action), set()).add(there)
    assert world.has_chance() == any(len(states) > 1 for states in after.values())

    means = world.mean_rewards
    assert means.shape == (len(world.identity),)
    for state, mean in enumerate(means):
        if state in arrivals:
            assert mean == pytest.approx(arrivals[state][1] / arrivals[state][0])
        else:
            assert np.isnan(mean)


@given(batches, merges)
def test_what_is_recorded_is_counted_as_by_a_dictionary(recorded, merge_every):
    world = WorldModel(known_states(), N_ACTIONS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "_MERGE_EVERY", merge_every)
        for batch in recorded:
            record(world, batch)
        check(world, recorded)
        # Reading outcomes changes nothing.
        check(world, recorded)


@given(batches, batches, batches)
def test_a_model_goes_on_from_a_checkpoint(before, after, others):
    world = WorldModel(known_states(), N_ACTIONS)
    for batch in before:
        record(world, batch)
    other = WorldModel(known_states(), N_ACTIONS)
    for batch in others:
        record(other, batch)
    other.set_checkpoint_state(copy.deepcopy(world.get_checkpoint_state()))
    check(other, before)
    for batch in after:
        record(world, batch)
        record(other, batch)
    check(world, before + after)
    check(other, before + after)
    np.testing.assert_equal(other.get_checkpoint_state(), world.get_checkpoint_state())


@given(batches)
def test_a_model_learns_of_states_that_come_in_later(recorded):
    world = WorldModel(known_states(n_states=0), N_ACTIONS)
    assert world.mean_rewards.shape == (0,)
    assert len(world.outcomes().counts) == 0
    world.identity.add(np.arange(N_STATES))
    for batch in recorded:
        record(world, batch)
    check(world, recorded)


@pytest.mark.parametrize(("n_states", "n_actions"), [(N_STATES - 1, N_ACTIONS), (N_STATES, 2)])
def test_a_checkpoint_of_other_states_or_actions_is_refused(n_states, n_actions):
    state = WorldModel(known_states(), N_ACTIONS).get_checkpoint_state()
    world = WorldModel(known_states(n_states), n_actions)
    record(world, [(0, 1, 2, 1.0, False)])
    expected = rf"visit_counts must be of shape \({n_states}, {n_actions}\).* got \(5, 3\)"
    with pytest.raises(ValueError, match=expected):
        world.set_checkpoint_state(state)
    check(world, [[(0, 1, 2, 1.0, False)]])


def test_arrays_of_other_integer_types_are_counted_too():
    world = WorldModel(known_states(), N_ACTIONS)
    world.record(
        np.array([4], dtype=np.int32),
        np.array([2], dtype=np.int8),
        np.array([3], dtype=np.int32),
        np.array([0.5], dtype=np.float32),
        np.array([True]),
    )
    check(world, [[(4, 2, 3, 0.5, True)]])
