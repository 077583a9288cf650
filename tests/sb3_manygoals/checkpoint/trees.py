"""Trees to store, and what it means that two are the same."""

import collections
import enum
import struct

import gymnasium as gym
import numpy as np
import torch as th

TIMES = {
    "t_start",
    "episode_times",
    "time_queue",
    "episode_start_time",
    "episode_start_times",
    "t",
    "_t",
}
"""Keys of wall-clock times."""
Color = enum.Enum("Color", "RED")


def assert_same(left, right, where="", ignore=TIMES, seen=None, in_order=True):
    """Equal to the bit, with types and orders; but for some keys, strides of arrays, the order of sets, if told of keys."""
    seen = {} if seen is None else seen
    if (id(left), id(right)) in seen:
        return
    seen[id(left), id(right)] = left, right
    assert type(left) is type(right) or (
        not in_order and (type(left), type(right)) == (dict, collections.OrderedDict)
    ), where
    if isinstance(left, dict):
        assert_same(
            *(list(each) if in_order else sorted(each) for each in (left, right)), f"{where}: keys"
        )
        for key in left:
            if key not in ignore:
                assert_same(left[key], right[key], f"{where}[{key!r}]", ignore, seen, in_order)
    elif isinstance(left, (list, tuple, collections.deque)):
        assert getattr(left, "maxlen", None) == getattr(right, "maxlen", None), where
        assert len(left) == len(right), where
        for index, (one, other) in enumerate(zip(left, right, strict=True)):
            assert_same(one, other, f"{where}[{index}]", ignore, seen, in_order)
    elif isinstance(left, th.Tensor):
        assert (left.dtype, left.requires_grad, left.stride()) == (
            right.dtype,
            right.requires_grad,
            right.stride(),
        ), where
        bits = [one.detach().resolve_conj().contiguous() for one in (left, right)]
        assert_same(
            *[
                one.view(th.int16 if one.dtype == th.bfloat16 else one.dtype).numpy()
                for one in bits
            ],
            where,
        )
    elif isinstance(left, np.ndarray) and left.dtype.hasobject:
        assert left.dtype == right.dtype, where
        assert_same(left.tolist(), right.tolist(), where, ignore, seen, in_order)
    elif isinstance(left, (np.str_, np.bytes_)):
        assert left[:] == right[:], where
    elif isinstance(left, (np.ndarray, np.generic)):
        assert (left.dtype, left.shape, left.tobytes()) == (
            right.dtype,
            right.shape,
            right.tobytes(),
        ), where
    elif isinstance(left, np.random.Generator):
        assert_same(left.bit_generator.state, right.bit_generator.state, where)
    elif isinstance(left, np.random.RandomState):
        assert_same(left.get_state(legacy=False), right.get_state(legacy=False), where)
    elif type(left).__module__.startswith("minigrid.") and not isinstance(left, gym.Env):
        assert_same(vars(left), vars(right), where, ignore, seen)
    elif isinstance(left, float):
        assert struct.pack("d", left) == struct.pack("d", right), where
    else:
        assert left == right, where


class Call:
    """When it is unpickled, something is called."""

    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call


def sample(seed=0):
    """A small tree; of another seed, with other numbers."""
    rng = np.random.default_rng(seed)
    return {
        "plain": [
            None,
            True,
            7 + seed,
            2**127 + seed,
            float("nan"),
            -0.0,
            "\ud83d\ude00",
            b"\x00\xff",
            ((), (1, (2,))),
        ],
        1: {b"key": frozenset({1, "a", (2, b"b")}), ("a", 1): set()},
        "deque": collections.deque([seed, 2], maxlen=5),
        "enum": Color.RED,
        "numpy": [np.float32(0.1), np.datetime64("2020-01-01"), np.str_("a"), np.bytes_(b"a")],
        "arrays": {
            "large": rng.random((40, 5)),
            "gaps": rng.integers(256, size=(30, 60), dtype=np.uint8)[:, ::2],
        },
        "tensor": th.from_numpy(rng.random((3, 4))).to(th.bfloat16),
        "random": [rng, np.random.RandomState(seed)],
    }
