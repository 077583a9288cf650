"""Frames kept once, against a record of the observations that were put in."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_manygoals import frames
from sb3_manygoals.checkpoint import copy_tree
from sb3_manygoals.frames import FrameArray, FrameStore

KINDS = [((4, 2), 1), ((4, 2), 2), ((6, 2), 3), ((4, 2, 1), 4), ((), 1)]
COMPRESS = [
    False,
    pytest.param(
        True, marks=pytest.mark.skipif(frames.lz4_block is None, reason="lz4 is not installed")
    ),
]


def cut(observation, n_stack):
    return [observation] if n_stack == 1 else np.split(observation, n_stack)


def count(*arrays):
    """The number of frames in memory."""
    return len({id(frame) for array in arrays for frame in array.flat})


@pytest.mark.parametrize("compress", COMPRESS)
@settings(max_examples=60)
@given(st.sampled_from(KINDS), st.integers(0, 2**31), st.integers(1, 60))
def test_what_comes_out_is_what_was_put_in(compress, kind, seed, steps):
    """Few different frames, in streams that go on, begin again or jump."""
    shape, n_stack = kind
    rng = np.random.default_rng(seed)
    store = FrameStore(shape, np.int16, n_stack, compress)
    known = []
    latest = {}
    kept = np.empty((0, n_stack), object)
    for _ in range(steps):
        streams = rng.permutation(4)[: rng.integers(1, 5)].tolist()
        observations = np.zeros((len(streams), *shape), np.int16)
        for row, stream in enumerate(streams):
            new = rng.integers(0, 4, size=shape).astype(np.int16)
            if n_stack > 1 and stream in latest and rng.random() < 0.7:
                new = np.concatenate([*cut(latest[stream], n_stack)[1:], cut(new, n_stack)[-1]])
            observations[row] = latest[stream] = new
        known += list(observations.copy())
        kept = np.concatenate([kept, store.put(observations, streams)])
        # The store has copied the observations.
        observations[:] = 9
        if rng.random() < 0.1:
            before = count(kept)
            state = copy_tree(store.get_checkpoint_state(kept))
            store = FrameStore(shape, np.int16, n_stack, compress)
            (kept,) = store.set_checkpoint_state(state)
            assert count(kept) <= before
        found = store.get(kept)
        np.testing.assert_array_equal(found, known, strict=False)
        assert found.dtype == np.int16
        # These are copies too.
        found[...] = 9
    parts = store.split(store.get(kept[None]))
    np.testing.assert_array_equal(parts[0], [cut(one, n_stack) for one in known])


def stacks(*rows):
    return np.array(rows, np.uint8).reshape(len(rows), -1, 1, 1)


def test_a_transition_costs_a_frame_and_so_does_the_first_of_an_episode():
    """
    Count the frames of a replay memory of four rows by hand.

    Each picture is one number. Each step has an observation, the next one, and the number of frames
    that are kept then.
    """
    store = FrameStore((4, 1, 1), np.uint8, 4)
    here = FrameArray(store, 4, 1)
    there = FrameArray(store, 4, 1)
    steps = [
        # The frames are zeros, 1 and 2.
        ((0, 0, 0, 1), (0, 0, 1, 2), 3),
        ((0, 0, 1, 2), (0, 1, 2, 3), 4),
        # A life was lost. Frame 3 is kept already.
        ((0, 0, 0, 3), (0, 0, 3, 4), 5),
        # Another game has begun.
        ((0, 0, 0, 5), (0, 0, 5, 6), 7),
        # The first transition is overwritten, and the second still has 1 and 2.
        ((0, 0, 5, 6), (0, 5, 6, 7), 8),
        # The second transition is overwritten, so 1 and 2 are freed.
        ((0, 5, 6, 7), (5, 6, 7, 8), 7),
    ]
    for number, (observation, following, kept) in enumerate(steps):
        here[number % 4] = stacks(observation)
        there[number % 4] = stacks(following)
        assert count(here.frames, there.frames) == kept, number
    np.testing.assert_array_equal(here[np.array([[2]])][0, 0].reshape(-1), [0, 0, 0, 3])
    np.testing.assert_array_equal(there[:2, 0].reshape(2, 4), [[0, 5, 6, 7], [5, 6, 7, 8]])


@pytest.mark.parametrize("compress", COMPRESS)
def test_memory_is_small_and_freed(compress):
    background = np.random.default_rng(0).integers(256, size=(1, 84, 84), dtype=np.uint8)
    pictures = background.repeat(400, axis=0)
    # Something moves before a detailed background, as in a game.
    for step, picture in enumerate(pictures):
        picture[40:44, step % 80 : step % 80 + 4] = step % 255
    # At its first call, lz4 allocates what it keeps for itself.
    FrameStore((84, 84), np.uint8, compress=compress).put(pictures[:1])
    tracemalloc.start()
    try:
        store = FrameStore((84, 84), np.uint8, compress=compress)
        array = FrameArray(store, 400, 1)
        for row, picture in enumerate(pictures):
            array[row] = picture[None]
        assert tracemalloc.get_traced_memory()[0] < pictures.nbytes * (1 / 15 if compress else 1.02)
        np.testing.assert_array_equal(array[::-7, 0], pictures[::-7])
        array.frames.fill(store.blank)
        # The latest frame and the references remain.
        assert tracemalloc.get_traced_memory()[0] < 50_000
    finally:
        tracemalloc.stop()


def test_floats_keep_their_bits():
    exact = np.array([[1.5, -0.0], [np.inf, 1e-40]], np.float32)
    store = FrameStore((2,), np.float32)
    assert store.get(store.put(exact)).tobytes() == exact.tobytes()
    assert store.get(np.empty((0, 1), object)).shape == (0, 2)


def test_observations_that_do_not_fit():
    store = FrameStore((4, 3), np.uint8)
    for wrong in (
        np.zeros((4, 3), np.uint8),
        np.zeros((2, 4, 2), np.uint8),
        np.zeros((2, 4, 3), np.float32),
    ):
        with pytest.raises(ValueError, match=r"shape \(n, \*\(4, 3\)\) and dtype uint8, got"):
            store.put(wrong)
    for other, message in (
        (FrameStore((4, 3), np.float32), r"dtype='\|u1', not '<f4'"),
        (FrameStore((4, 3), np.uint8, 2), "n_stack=1, not 2"),
    ):
        with pytest.raises(ValueError, match=f"the state is of frames with {message}"):
            other.set_checkpoint_state(store.get_checkpoint_state())


def test_bad_arguments(monkeypatch):
    for shape, n_stack, message in (
        ((4, 3), 0, "n_stack must be a whole number, at least 1, got 0"),
        ((4, 3), 3, r"n_stack must divide the first axis of observations of shape \(4, 3\), got 3"),
        (
            (84, 84, 4),
            4,
            r"along the first axis, got observations of shape \(84, 84, 4\): .*VecTransposeImage",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            FrameStore(shape, np.uint8, n_stack)
    monkeypatch.setattr(frames, "lz4_block", None)
    with pytest.raises(ImportError, match=r'need lz4: pip install "sb3-manygoals\[atari\]"'):
        FrameStore((4, 3), np.uint8, compress=True)
