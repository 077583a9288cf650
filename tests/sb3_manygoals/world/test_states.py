"""Which observations are one state."""

import builtins
import copy
import pickle

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from sb3_manygoals.world import UNKNOWN, ExactStates, states

PAIRS = spaces.MultiDiscrete([3, 3])
batches = st.lists(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=8), max_size=5
)


def array_of(pairs):
    """Return a batch of observations."""
    return np.array(pairs, dtype=PAIRS.dtype).reshape(-1, 2)


@pytest.mark.parametrize("most_one_by_one", [0, 8])
@pytest.mark.parametrize("hash_of", [builtins.hash, lambda row: row[0] % 2, lambda row: 7])
@given(batches, st.integers(1, 9))
def test_ids_are_those_of_a_dict_of_bytes_whatever_the_hash(
    most_one_by_one, hash_of, additions, capacity
):
    known = ExactStates(PAIRS, capacity)
    expected = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(states, "hash", hash_of, raising=False)
        patch.setattr(states, "_MOST_ONE_BY_ONE", most_one_by_one)
        for pairs in additions:
            batch = array_of(pairs)
            before = [expected.get(pair, UNKNOWN) for pair in pairs]
            np.testing.assert_array_equal(known.ids(batch), before)
            ids = known.add(batch)
            for pair in pairs:
                if len(expected) < capacity:
                    expected.setdefault(pair, len(expected))
            np.testing.assert_array_equal(ids, [expected.get(pair, UNKNOWN) for pair in pairs])
        assert known.observations.tolist() == [list(pair) for pair in expected]
        np.testing.assert_array_equal(known[known.ids(known.observations)], known.observations)
        for other in (copy.deepcopy(known), pickle.loads(pickle.dumps(known))):
            np.testing.assert_array_equal(other.ids(known.observations), np.arange(len(known)))
            assert len(other) == len(known)
            assert other.capacity == capacity


@given(batches, st.integers(1, 9))
def test_observing_counts_what_recurs_and_adding_does_not(batches_observed, capacity):
    observed = ExactStates(PAIRS, capacity)
    added = ExactStates(PAIRS, capacity)
    known = set()
    n_added = 0
    n_recurred = 0
    n_shared = 0
    for pairs in batches_observed:
        ids = observed.observe(array_of(pairs))
        np.testing.assert_array_equal(ids, added.add(array_of(pairs)))
        before = set(known)
        for pair in pairs:
            n_recurred += pair in known
            # Another environment has just shown it, too.
            n_shared += pair in known - before
            if len(known) < capacity:
                known.add(pair)
            # Observations for which there was no room count as new ones.
            n_added += 1
    assert observed.n_added == n_added
    assert observed.n_recurred == n_recurred
    assert observed.n_shared == n_shared
    assert pickle.loads(pickle.dumps(observed)).n_shared == n_shared
    assert added.n_added == 0
    assert added.n_recurred == 0


@given(batches, batches)
def test_states_are_restored_in_place(before, after):
    saved = ExactStates(PAIRS, 7)
    for pairs in before:
        saved.observe(array_of(pairs))
    other = ExactStates(PAIRS, 3)
    for pairs in after:
        other.observe(array_of(pairs))
    other.set_checkpoint_state(saved.get_checkpoint_state())
    np.testing.assert_equal(other.get_checkpoint_state(), saved.get_checkpoint_state())
    np.testing.assert_array_equal(other.ids(saved.observations), np.arange(len(saved)))


@pytest.mark.parametrize(
    ("pairs", "capacity"), [([[0, 1], [0, 1]], 5), ([[0, 1], [1, 1], [2, 1]], 2)]
)
def test_states_that_are_not_distinct_or_too_many_are_refused(pairs, capacity):
    state = ExactStates(PAIRS, capacity).get_checkpoint_state()
    state["observations"] = array_of(pairs)
    with pytest.raises(
        ValueError,
        match=rf"the file has {len(pairs)} states, \d of them distinct, of at most {capacity}",
    ):
        ExactStates(PAIRS, capacity).set_checkpoint_state(state)


def test_floats_are_compared_by_their_bytes():
    known = ExactStates(spaces.Box(-1, 1, (1,), np.float32), 9)
    values = np.array([[0.0], [-0.0], [np.nan], [0.0], [np.nan]], dtype=np.float32)
    assert known.add(values).tolist() == [0, 1, 2, 0, 2]


def test_the_observations_cannot_be_changed_from_outside():
    known = ExactStates(PAIRS, 9)
    known.add(array_of([(0, 1)]))
    with pytest.raises(ValueError, match="read-only"):
        known.observations[0] = 2
