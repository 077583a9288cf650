"""Observations that are one state because a function of the user's says so."""

import copy
import pickle
import re
import warnings

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from sb3_manygoals.world import UNKNOWN, KeyedStates

PAIRS = spaces.Box(-100, 100, (2,), np.int64)
NUMBERS = spaces.Box(-1e6, 1e6, (1,), np.float64)
batches = st.lists(
    st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 5)), max_size=12), max_size=5
)


def first(observation):
    """Return the first number, so that all others are noise."""
    return int(observation[0])


def array_of(pairs):
    """Return a batch of observations."""
    return np.array(pairs, dtype=PAIRS.dtype).reshape(-1, 2)


def numbers(*values):
    """Return a batch of observations of one number."""
    return np.array(values, dtype=np.float64)[:, None]


@given(batches, st.integers(1, 8))
def test_ids_are_those_of_a_dict_of_keys_and_the_first_observation_stands_for_the_state(
    additions, capacity
):
    known = KeyedStates(PAIRS, capacity, first)
    expected = {}
    for pairs in additions:
        before = [expected.get(pair[0], (UNKNOWN,))[0] for pair in pairs]
        np.testing.assert_array_equal(known.ids(array_of(pairs)), before)
        ids = known.add(array_of(pairs))
        assert ids.dtype == np.int64
        for pair in pairs:
            if len(expected) < capacity:
                expected.setdefault(pair[0], (len(expected), pair))
        wanted = [expected.get(pair[0], (UNKNOWN,))[0] for pair in pairs]
        np.testing.assert_array_equal(ids, wanted)
    assert len(known) == len(expected)
    assert known.observations.tolist() == [list(pair) for _, pair in expected.values()]
    np.testing.assert_array_equal(known[np.arange(len(known))], known.observations)
    assert not KeyedStates.is_exact


@pytest.mark.parametrize(
    ("state_key", "groups"),
    [
        (lambda seen: float(np.round(seen[0])), [(0.2, -0.3, -0.0, 0.0), (0.9, 1.4), (-1.2,)]),
        (lambda seen: int(seen[0] // 2), [(0.5, 1.5), (2.0, 3.9), (-0.1,)]),
        (lambda seen: (int(seen[0]), 7), [(0.5, 0.9), (1.5,)]),
        (lambda seen: [seen[0] > 2, seen[0] < 5], [(0.0, 1.0), (3.0, 4.0), (9.0, 5.0)]),
        (lambda seen: bool(seen[0] > 2), [(0.0, 1.0), (3.0, 4.0, 9.0)]),
        (lambda seen: np.int8(seen[0]) if seen[0] < 100 else int(seen[0]), [(44.0,), (300.0,)]),
        (lambda seen: np.float32(seen[0]) if seen[0] < 1 else seen[0], [(0.5,), (1.1,), (1.2,)]),
        (lambda seen: np.full((2, 3), np.round(seen[0])), [(0.1, 0.2), (7.0,)]),
        (lambda seen: np.uint8(seen[0]) if seen[0] < 9 else int(-seen[0]), [(3.0,), (10.0,)]),
    ],
)
def test_numbers_of_all_kinds_are_keys(state_key, groups):
    known = KeyedStates(NUMBERS, 10, state_key)
    wanted = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    ids = known.add(numbers(*[value for group in groups for value in group]))
    np.testing.assert_array_equal(ids, wanted)
    assert len(known) == len(groups)


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        (["door"], TypeError, "state_key must return a number, a sequence of numbers or an array"),
        ([None], TypeError, "state_key must return a number.*got None"),
        ([{}], TypeError, "state_key must return a number.*got {}"),
        ([[]], TypeError, "state_key must return a number"),
        ([[[1], [2, 3]]], TypeError, r"state_key must return a number.*got \[\[1\], \[2, 3\]\]"),
        ([1.0, np.nan], ValueError, "state_key must return finite numbers, got nan"),
        ([[1.0, np.inf]], ValueError, "state_key must return finite numbers"),
        ([2**63], ValueError, r"state_key must return integers below 2\*\*63, got 9223"),
        (
            [(1, 2), (1, 2, 3)],
            ValueError,
            r"the same shape and kind of number, first it was int64 of \(2,\), now int64 of \(3,\)",
        ),
        (
            [1, 1.5],
            ValueError,
            r"first it was int64 of \(1,\), now float64 of \(1,\): 1.5",
        ),
    ],
)
def test_other_keys_are_refused_and_nothing_is_taken_in(keys, error, message, at_once):
    known = KeyedStates(NUMBERS, 10, lambda seen: keys[int(seen[0])])
    batch = numbers(*range(len(keys)))
    n_before = 0
    if not at_once and len(keys) > 1:
        known.add(batch[:1])
        n_before = 1
        batch = batch[1:]
    with pytest.raises(error, match=message):
        known.add(batch)
    assert len(known) == n_before


def test_no_observations_have_no_keys():
    known = KeyedStates(NUMBERS, 10, lambda seen: (1, 2))
    assert known.keys(numbers()).shape[0] == 0
    assert known.add(numbers()).shape == (0,)
    known.add(numbers(1.0))
    assert known.keys(numbers()).shape == (0, 2)


@given(batches, st.integers(1, 6), st.integers(1, 5))
def test_samples_are_own_observations_and_the_first_one_stays(additions, capacity, n_examples):
    known = KeyedStates(PAIRS, capacity, first, n_examples)
    seen = {}
    for pairs in additions:
        ids = known.add(array_of(pairs))
        for state_id, pair in zip(ids.tolist(), pairs, strict=True):
            seen.setdefault(state_id, []).append(pair)
    seen.pop(UNKNOWN, None)
    rng = np.random.default_rng(0)
    for state_id, pairs in seen.items():
        drawn = known.sample(np.full(60, state_id), rng)
        assert {tuple(row) for row in drawn.tolist()} <= set(pairs)
        assert tuple(known[state_id].tolist()) == pairs[0]
        if len(pairs) <= n_examples:
            # None of so few was dropped. A chance of less than 1e-4 is missed with 60 draws of 5.
            assert len({tuple(row) for row in drawn.tolist()}) >= min(len(set(pairs)), 2)
    # An unknown state has no observation, but a row.
    assert known.sample(np.array([UNKNOWN]), rng).shape == (1, 2)


def test_of_many_observations_a_uniform_sample_is_kept():
    kept = np.zeros(20)
    n_runs = 3_000
    known = KeyedStates(PAIRS, n_runs, first, 5)
    for run in range(n_runs):
        known.add(array_of([(run, number) for number in range(20)]))
    examples = known.get_checkpoint_state()["examples"]
    assert examples.shape == (n_runs, 5, 2)
    np.testing.assert_array_equal(examples[:, :, 0], np.arange(n_runs)[:, None].repeat(5, 1))
    assert (examples[:, 0, 1] == 0).all()
    kept = np.bincount(examples[:, 1:, 1].ravel(), minlength=20) / n_runs
    assert kept[0] == 0.0
    # Four of the other 19 are kept. Five standard errors of 3,000 runs are 0.037.
    np.testing.assert_allclose(kept[1:], 4 / 19, atol=0.037)
    # Each is as likely in each place.
    assert len(np.unique(examples[:, 1:, 1])) == 19


def test_all_that_are_kept_are_drawn_equally_often():
    known = KeyedStates(PAIRS, 5, first, 4)
    known.add(array_of([(7, 0), (7, 1), (7, 2), (8, 9)]))
    drawn = known.sample(np.zeros(6_000, np.int64), np.random.default_rng(0))[:, 1]
    shares = np.bincount(drawn, minlength=4) / 6_000
    # Five standard errors are 0.03.
    np.testing.assert_allclose(shares, [1 / 3, 1 / 3, 1 / 3, 0.0], atol=0.03)


def observe_all(known, values):
    """Let states observe numbers, and return the messages of warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for value in values:
            known.observe(numbers(float(value)))
    return [str(warning.message) for warning in caught]


def test_a_key_that_separates_everything_or_nothing_is_warned_of_once():
    nothing = observe_all(KeyedStates(NUMBERS, 10, lambda seen: 0), range(2_500))
    assert len(nothing) == 1
    assert "state_key gave one key to all of 1000 observations" in nothing[0]
    everything = observe_all(KeyedStates(NUMBERS, 5_000, lambda seen: seen), range(2_500))
    assert len(everything) == 1
    assert "state_key gave 1000 different keys to 1000 observations" in everything[0]
    assert observe_all(KeyedStates(NUMBERS, 5_000, lambda seen: 0), range(999)) == []
    # Of 1,000 observations, 60 recur.
    few = [*range(940), *range(60), *range(5_000, 6_000)]
    assert observe_all(KeyedStates(NUMBERS, 5_000, lambda seen: seen), few) == []
    assert observe_all(KeyedStates(NUMBERS, 10, lambda seen: seen > 3), range(2_000)) == []


def test_when_it_is_full_nothing_more_is_taken_in():
    known = KeyedStates(PAIRS, 2, first)
    ids = known.observe(array_of([(1, 0), (2, 0), (3, 0), (1, 1), (3, 1)]))
    assert ids.tolist() == [0, 1, UNKNOWN, 0, UNKNOWN]
    assert known.observations.tolist() == [[1, 0], [2, 0]]
    # Those for which there was no room count as new ones.
    assert (known.n_added, known.n_recurred, known.n_shared) == (5, 1, 1)
    assert copy.deepcopy(known).n_shared == 1
    drawn = known.sample(np.array([0] * 30 + [1] * 30), np.random.default_rng(0))
    assert {tuple(row) for row in drawn.tolist()} == {(1, 0), (1, 1), (2, 0)}


@given(batches, batches)
def test_states_are_restored_in_place_and_go_on_alike(before, after):
    saved = KeyedStates(PAIRS, 6, first, 3)
    for pairs in before:
        saved.observe(array_of(pairs))
    other = KeyedStates(PAIRS, 3, first, 3)
    other.observe(array_of([(1, 1)] * 7))
    state = saved.get_checkpoint_state()
    other.set_checkpoint_state(state)
    copies = [other, copy.deepcopy(saved), pickle.loads(pickle.dumps(saved))]
    for known in (saved, *copies):
        for pairs in after:
            known.observe(array_of(pairs))
    for known in copies:
        np.testing.assert_equal(known.get_checkpoint_state(), saved.get_checkpoint_state())
        np.testing.assert_array_equal(known.ids(saved.observations), np.arange(len(saved)))
        drawn = [
            each.sample(np.arange(len(saved)), np.random.default_rng(1)) for each in (known, saved)
        ]
        np.testing.assert_array_equal(*drawn)
    # What was returned is a copy.
    assert len(state["observations"]) <= len(saved)


@pytest.mark.parametrize(("n_saved", "n_kept"), [(2, 5), (5, 2), (1, 4)])
def test_states_that_keep_another_number_of_observations_can_be_restored(n_saved, n_kept):
    saved = KeyedStates(PAIRS, 6, first, n_saved)
    saved.observe(array_of([(7, number) for number in range(1, 9)]))
    other = KeyedStates(PAIRS, 6, first, n_kept)
    other.set_checkpoint_state(saved.get_checkpoint_state())
    drawn = other.sample(np.zeros(200, np.int64), np.random.default_rng(0))
    kept = saved.get_checkpoint_state()["examples"][0, :n_kept]
    assert {tuple(row) for row in drawn.tolist()} == {tuple(row) for row in kept.tolist()}


def test_without_examples_the_first_observation_is_the_example():
    saved = KeyedStates(PAIRS, 6, first)
    saved.observe(array_of([(7, 1), (7, 2), (8, 3)]))
    state = saved.get_checkpoint_state()
    few = {name: state[name] for name in ("capacity", "observations", "n_added", "n_recurred")}
    other = KeyedStates(PAIRS, 6, first)
    other.set_checkpoint_state(few)
    drawn = other.sample(np.array([0] * 20 + [1]), np.random.default_rng(0))
    assert np.unique(drawn, axis=0).tolist() == [[7, 1], [8, 3]]


@pytest.mark.parametrize(
    ("pairs", "capacity", "n_distinct"),
    [([[0, 1], [0, 2]], 5, 1), ([[0, 1], [1, 1], [2, 1]], 2, 2)],
)
def test_states_that_are_not_distinct_or_too_many_are_refused(pairs, capacity, n_distinct):
    state = KeyedStates(PAIRS, capacity, first).get_checkpoint_state()
    state["observations"] = array_of(pairs)
    known = KeyedStates(PAIRS, capacity, first)
    known.add(array_of([(5, 5)]))
    message = (
        f"the file has {len(pairs)} states, {n_distinct} of them with keys of their own, "
        f"of at most {capacity}"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        known.set_checkpoint_state(state)
    assert known.observations.tolist() == [[5, 5]]


def test_the_observations_cannot_be_changed_from_outside():
    known = KeyedStates(PAIRS, 9, first)
    known.add(array_of([(0, 1)]))
    with pytest.raises(ValueError, match="read-only"):
        known.observations[0] = 2
