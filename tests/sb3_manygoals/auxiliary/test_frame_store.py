"""FrameStore against a dict of copies."""

import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_manygoals.checkpoint import CheckpointError

pytest.importorskip("lz4")

from sb3_manygoals.auxiliary.frame_store import FrameStore

SHAPE = (4, 3)
TOGETHER = 8


def random_frames(n, seed=0):
    return np.random.default_rng(seed).integers(256, size=(n, *SHAPE), dtype=np.uint8)


def moving(n):
    """A picture of 84 x 84 in which something moves, as in a game."""
    frames = np.zeros((n, 84, 84), np.uint8)
    frames[:, 10:14] = 200
    for step, frame in enumerate(frames):
        frame[40:44, step % 80 : step % 80 + 4] = 140
    return frames


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(st.integers(-1, 3), max_size=20), st.booleans()),
        st.tuples(st.just("free"), st.integers(0, 2**32 - 1), st.floats(0, 1)),
        st.tuples(st.just("get"), st.integers(0, 2**32 - 1), st.integers(0, 30)),
        st.tuples(st.just("save")),
    ),
    max_size=25,
)


@settings(max_examples=150)
@given(OPERATIONS, st.sampled_from([1, 3, 8]))
def test_it_is_a_dict_of_frames(operations, together):
    store, model, given_out = FrameStore(SHAPE, together=together), {}, set()
    for number, (kind, *arguments) in enumerate(operations):
        if kind == "append":
            streams, named = arguments
            frames = random_frames(len(streams), number)
            ids = store.append(frames, streams if named else None)
            assert ids.dtype == np.int64
            assert not given_out & set(ids.tolist())
            given_out |= set(ids.tolist())
            model.update(zip(ids.tolist(), frames.copy(), strict=True))
            frames[:] = 0  # they were copied
        elif kind == "free":
            seed, share = arguments
            rng = np.random.default_rng(seed)
            ids = rng.permutation(np.array(sorted(model), np.int64))[: round(share * len(model))]
            store.free(ids)
            for one in ids.tolist():
                del model[one]
        elif kind == "get" and model:
            seed, n = arguments
            ids = np.random.default_rng(seed).choice(sorted(model), size=n)
            found = store.get(ids)
            expected = np.array([model[one] for one in ids.tolist()], np.uint8).reshape(-1, *SHAPE)
            np.testing.assert_array_equal(found, expected, strict=True)
            found[:] = 0  # copies too
        elif kind == "save":
            state = store.get_checkpoint_state()
            store.append(random_frames(9), [0] * 9)  # the state is a copy
            store = FrameStore(SHAPE, together=together)
            store.set_checkpoint_state(state)
        assert len(store) == len(model)
        for missing in list(given_out - model.keys())[:3]:
            with pytest.raises(IndexError, match=f"no frame with the id {missing}$"):
                store.get(np.array([missing]))
    everything = np.array(sorted(model), np.int64)
    expected = np.array([model[one] for one in everything.tolist()], np.uint8).reshape(-1, *SHAPE)
    np.testing.assert_array_equal(store.get(everything), expected)
    store.free(everything)
    assert len(store) == 0
    assert store._packed == {}


def test_frames_of_a_stream_are_compressed_together():
    frames = moving(800)
    store = FrameStore((84, 84))
    ids = store.append(frames)
    assert store.nbytes < frames.nbytes / 30
    # Two in turns: told apart, they take about as much as one after the other.
    turns, mixed = FrameStore((84, 84)), FrameStore((84, 84))
    noise = np.random.default_rng(0).integers(256, size=(84, 84), dtype=np.uint8)
    for frame in frames:
        pair = np.array([frame, frame ^ noise])
        turns.append(pair, [0, 1])
        mixed.append(pair)
    assert turns.nbytes < 0.6 * mixed.nbytes
    np.testing.assert_array_equal(store.get(ids[::-7]), frames[::-7])


def test_memory_is_counted_and_given_back():
    frames = random_frames(2000).repeat(8, axis=1).repeat(8, axis=2)
    store = FrameStore(frames.shape[1:])
    store.append(frames[:TOGETHER])  # what lz4 keeps for itself
    tracemalloc.start()
    try:
        before, counted_before = tracemalloc.get_traced_memory()[0], store.nbytes
        ids = store.append(frames[:1999])
        taken, counted = tracemalloc.get_traced_memory()[0] - before, store.nbytes - counted_before
        assert 0.8 * taken < counted < 1.25 * taken
        store.free(ids[: len(ids) // 2])
        assert tracemalloc.get_traced_memory()[0] - before < 0.6 * taken
        assert store.nbytes - counted_before < 0.6 * counted
        store.free(ids[len(ids) // 2 :])
        del ids
        left = tracemalloc.get_traced_memory()[0] - before
        # One block that is not full, and tables of Python that do not shrink.
        assert left < 0.15 * taken
        assert store.nbytes - counted_before < 0.15 * counted
    finally:
        tracemalloc.stop()


def test_a_block_is_given_back_with_its_last_frame():
    store = FrameStore(SHAPE)
    ids = store.append(random_frames(3 * TOGETHER))
    full = store.nbytes
    store.free(ids[1 : 2 * TOGETHER])
    assert full > store.nbytes  # the second block
    once = store.nbytes
    store.free(ids[:1])
    assert once > store.nbytes
    np.testing.assert_array_equal(store.get(ids[-1:])[0], random_frames(3 * TOGETHER)[-1])


def test_what_is_freed_before_its_block_is_full_takes_no_room_in_it():
    frames = np.random.default_rng(0).integers(256, size=(TOGETHER, 50, 50), dtype=np.uint8)  # LZ4 makes nothing of noise
    kept, freed = FrameStore(frames.shape[1:]), FrameStore(frames.shape[1:])
    kept.append(frames)
    freed.free(freed.append(frames[:-1]))
    last = freed.append(frames[-1:])
    assert freed.nbytes < 0.5 * kept.nbytes
    np.testing.assert_array_equal(freed.get(last), frames[-1:])


def test_a_state_can_be_used_again():
    store, frames = FrameStore(SHAPE), random_frames(TOGETHER + 2)
    ids = store.append(frames)
    state = store.get_checkpoint_state()
    for _ in range(2):
        other = FrameStore(SHAPE)
        other.set_checkpoint_state(state)
        np.testing.assert_array_equal(other.get(ids), frames)
        other.free(ids)
        other.append(random_frames(3, 1))


def test_ids_that_there_are_not():
    store = FrameStore(SHAPE)
    ids = store.append(random_frames(11))
    for wrong in (-1, 11, 4_000):
        with pytest.raises(IndexError, match=f"no frame with the id {wrong}$"):
            store.get(np.array([0, wrong]))
        with pytest.raises(IndexError, match=f"no frame with the id {wrong}$"):
            store.free(np.array([0, wrong]))
    with pytest.raises(IndexError, match=r"once each, got \[3, 3, 5\]"):
        store.free(np.array([9, 3, 5, 3]))
    np.testing.assert_array_equal(store.get(ids), random_frames(11))  # nothing was freed
    assert store.get(np.empty(0, np.int64)).shape == (0, *SHAPE)
    store.free(np.empty(0, np.int64))


def test_frames_that_do_not_fit():
    store = FrameStore(SHAPE)
    for wrong in (random_frames(2)[0], random_frames(2)[:, :2], random_frames(2).astype(np.float32)):
        with pytest.raises(ValueError, match=r"shape \(n, \*\(4, 3\)\) and dtype uint8, got"):
            store.append(wrong)
    with pytest.raises(ValueError, match="one stream for each of the 2 frames, got 3"):
        store.append(random_frames(2), [0, 1, 2])
    assert len(store) == 0
    with pytest.raises(
        CheckpointError, match=r"shape \(4, 3\) and dtype \|u1, 8 together, this store is for \(4, 3\) and <f4"
    ):
        FrameStore(SHAPE, np.float32).set_checkpoint_state(store.get_checkpoint_state())
    with pytest.raises(CheckpointError, match=r"8 together, this store is for .* 4 together"):
        FrameStore(SHAPE, together=4).set_checkpoint_state(store.get_checkpoint_state())
    with pytest.raises(ValueError, match="together must be at least 1, got 0"):
        FrameStore(SHAPE, together=0)
    floats = FrameStore((2,), np.float32)
    ids = floats.append(np.array([[1.5, -0.0], [np.inf, 1e-40]], np.float32))
    assert floats.get(ids).tobytes() == np.array([[1.5, -0.0], [np.inf, 1e-40]], np.float32).tobytes()


def test_a_state_is_a_few_arrays_that_are_stored_as_they_are(tmp_path):
    store = FrameStore(SHAPE)
    store.append(random_frames(100), [number % 3 for number in range(100)])
    state = store.get_checkpoint_state()
    arrays = [value for value in state.values() if isinstance(value, np.ndarray)]
    assert len(arrays) == 9
    assert all(array.dtype.kind in "iu" for array in arrays)
    assert {type(value) for value in state.values()} <= {np.ndarray, int, str, list}


def test_without_lz4_it_says_what_to_install(monkeypatch):
    for name in ("lz4", "lz4.block"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r'needs lz4: pip install "sb3-manygoals\[atari\]"'):
        FrameStore(SHAPE)
