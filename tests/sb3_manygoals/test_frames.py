"""Frames kept once, against a record of the observations that were put in."""

import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_manygoals import frames
from sb3_manygoals.checkpoint import copy_tree
from sb3_manygoals.frames import FrameArray, FrameStore

KINDS = [((4, 2), 1, 0), ((4, 2), 2, 0), ((2, 6), 3, -1), ((4, 2, 1), 4, 0), ((), 1, 0)]
COMPRESS = [False, pytest.param(True, marks=pytest.mark.skipif(frames.lz4_block is None, reason="lz4 is not installed"))]


def cut(observation, n_stack, axis):
    return [observation] if n_stack == 1 else np.split(observation, n_stack, axis)


@pytest.mark.parametrize("compress", COMPRESS)
@settings(max_examples=60)
@given(st.sampled_from(KINDS), st.integers(0, 2**31), st.integers(1, 60))
def test_what_comes_out_is_what_was_put_in(compress, kind, seed, steps):
    """Few different frames, in streams that go on, begin again or jump; observations are held, some twice, and released."""
    shape, n_stack, axis = kind
    rng = np.random.default_rng(seed)
    store = FrameStore(shape, np.int16, n_stack, axis, compress)
    kept, latest = [], {}
    for _ in range(steps):
        streams = rng.permutation(4)[: rng.integers(1, 5)].tolist()
        observations = np.zeros((len(streams), *shape), np.int16)
        for row, stream in enumerate(streams):
            new = rng.integers(0, 4, size=shape).astype(np.int16)
            if n_stack > 1 and stream in latest and rng.random() < 0.7:
                new = np.concatenate([*cut(latest[stream][0], n_stack, axis)[1:], cut(new, n_stack, axis)[-1]], axis)
            observations[row] = new
        ids = store.put(observations, streams)
        given_out = observations.copy()
        observations[:] = 9  # they were copied
        for stream, observation, places in zip(streams, given_out, ids, strict=True):
            latest[stream] = observation, places
            if rng.random() < 0.6:
                times = rng.integers(1, 3)
                kept += [(observation, places)] * times
                store.hold(np.tile(places, times))
        while kept and rng.random() < 0.45:
            _, places = kept.pop(rng.integers(len(kept)))
            store.release(places)
        if rng.random() < 0.1:
            state = copy_tree(store.get_checkpoint_state())
            store = FrameStore(shape, np.int16, n_stack, axis, compress)
            store.set_checkpoint_state(state)
        holders = Counter(place for _, places in kept for place in places.tolist())
        for _, places in latest.values():
            holders.update(set(places.tolist()))
        holders[0] += 1  # zeros
        assert {place: int(store._uses[place]) for place in np.flatnonzero(store._uses)} == holders
        assert len(store) == len(holders)
        known = [*kept, *latest.values()]
        found = store.get(np.array([places for _, places in known]))
        np.testing.assert_array_equal(found, [observation for observation, _ in known], strict=False)
        assert found.dtype == np.int16
        found[...] = 9  # copies too


def stacks(*rows):
    return np.array(rows, np.uint8).reshape(len(rows), -1, 1, 1)


def test_a_transition_costs_a_frame_and_so_does_the_first_of_an_episode():
    """Counted by hand, in a replay memory of four rows: pictures of one number each."""
    store = FrameStore((4, 1, 1), np.uint8, 4)
    here, there = FrameArray(store, 4, 1), FrameArray(store, 4, 1)
    assert len(store) == 1  # zeros
    steps = [
        ((0, 0, 0, 1), (0, 0, 1, 2), 3),  # zeros, 1, 2
        ((0, 0, 1, 2), (0, 1, 2, 3), 4),
        ((0, 0, 0, 3), (0, 0, 3, 4), 5),  # after a lost life: 3 is there already
        ((0, 0, 0, 5), (0, 0, 5, 6), 7),  # another game
        ((0, 0, 5, 6), (0, 5, 6, 7), 8),  # the first transition gives way, and the second still has 1 and 2
        ((0, 5, 6, 7), (5, 6, 7, 8), 7),  # the second gives way: 1 and 2 go
    ]
    for number, (observation, following, kept) in enumerate(steps):
        here[number % 4], there[number % 4] = stacks(observation), stacks(following)
        assert len(store) == kept, number
    np.testing.assert_array_equal(here[np.array([[2]])][0, 0].reshape(-1), [0, 0, 0, 3])
    np.testing.assert_array_equal(there[:2, 0].reshape(2, 4), [[0, 5, 6, 7], [5, 6, 7, 8]])


def test_each_stream_goes_on_with_its_own_frames_and_memory_is_used_again():
    store = FrameStore((2, 1, 1), np.uint8, 2)
    for number in range(1, 4):
        ids = store.put(stacks((number, number + 1), (100 + number, 101 + number)))
        store.hold(ids)
    assert len(store) == 1 + 2 * 4  # zeros, and of each the two first frames and one for each step
    np.testing.assert_array_equal(store.newest(store.get(ids)).reshape(-1), [4, 104])
    store = FrameStore((1000,), np.uint8)
    for number in range(5_000):
        store.put(np.full((1, 1000), number % 255 + 1, np.uint8))
    assert store.nbytes < 2 * frames._BLOCK_BYTES


@pytest.mark.skipif(frames.lz4_block is None, reason="lz4 is not installed")
def test_compressed_memory_is_small_counted_and_freed():
    pictures = np.random.default_rng(0).integers(256, size=(1, 84, 84), dtype=np.uint8).repeat(400, axis=0)
    for step, picture in enumerate(pictures):  # something moves before a detailed background, as in a game
        picture[40:44, step % 80 : step % 80 + 4] = step % 255
    FrameStore((84, 84), np.uint8, compress=True).put(pictures[:1])  # what lz4 keeps for itself
    tracemalloc.start()
    try:
        store, held = FrameStore((84, 84), np.uint8, compress=True), np.empty((400, 1), np.int32)
        before, counted_before = tracemalloc.get_traced_memory()[0], store.nbytes
        for row, picture in enumerate(pictures):
            held[row] = store.put(picture[None])[0]
            store.hold(held[row])
        taken, counted = tracemalloc.get_traced_memory()[0] - before, store.nbytes - counted_before
        assert counted < pictures.nbytes / 15
        assert 0.5 * taken < counted < 1.25 * taken
        np.testing.assert_array_equal(store.get(held[::-7]), pictures[::-7])
        store.release(held)
        assert store.nbytes - counted_before < 0.5 * counted
        assert len(store) == 2  # zeros and the latest
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("compress", COMPRESS)
def test_ids_that_there_are_not(compress):
    store = FrameStore((2,), np.float32, compress=compress)
    exact = np.array([[1.5, -0.0], [np.inf, 1e-40]], np.float32)
    ids = store.put(exact)
    for wrong in (-1, 10_000_000, int(ids.max()) + 1):
        for method in (store.get, store.hold, store.release):
            with pytest.raises(IndexError, match=f"there is no frame with the id {wrong}$"):
                method(np.array([[ids[0, 0]], [wrong]]))
    assert store.get(ids).tobytes() == exact.tobytes()
    assert store.get(np.empty((0, 1), np.int32)).shape == (0, 2)


def test_observations_that_do_not_fit():
    store = FrameStore((4, 3), np.uint8)
    for wrong in (np.zeros((4, 3), np.uint8), np.zeros((2, 4, 2), np.uint8), np.zeros((2, 4, 3), np.float32)):
        with pytest.raises(ValueError, match=r"shape \(n, \*\(4, 3\)\) and dtype uint8, got"):
            store.put(wrong)
    for other, message in (
        (FrameStore((4, 3), np.float32), r"dtype='\|u1', this store has '<f4'"),
        (FrameStore((4, 3), np.uint8, 2), "n_stack=1, this store has 2"),
    ):
        with pytest.raises(ValueError, match=f"the frames were saved with {message}"):
            other.set_checkpoint_state(store.get_checkpoint_state())


def test_bad_arguments(monkeypatch):
    for kwargs, message in (
        ({"n_stack": 0}, "n_stack must be a whole number, at least 1, got 0"),
        ({"n_stack": 3}, r"n_stack must divide axis 0 of observations of shape \(4, 3\), got 3"),
        ({"stack_axis": 1}, "stack_axis must be 0 or -1, got 1"),
    ):
        with pytest.raises(ValueError, match=message):
            FrameStore((4, 3), np.uint8, **kwargs)
    monkeypatch.setattr(frames, "lz4_block", None)
    with pytest.raises(ImportError, match=r'need lz4: pip install "sb3-manygoals\[atari\]"'):
        FrameStore((4, 3), np.uint8, compress=True)
