"""Trees to store, and what it means that two are the same."""

import collections
import enum
import io
import struct

import gymnasium as gym
import numpy as np
import torch as th

from sb3_manygoals.checkpoint.tree import load_tree

ZIP = b"PK"
"""How saved trees begin."""
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
    """
    Assert that two trees are equal to the bit, with types and orders.

    Strides of arrays and the order of sets are not compared.

    :param left: a tree
    :param right: another tree
    :param where: what to call the trees in an error; default: ""
    :param ignore: keys of dicts whose values are not compared; default: those of wall-clock times
    :param seen: the pairs of objects that were compared already, by their ids; default: None, none
    :param in_order: whether dicts must have their keys in the same order; if not, a dict and an
        OrderedDict may be the same; default: True
    """
    seen = {} if seen is None else seen
    if (id(left), id(right)) in seen:
        return
    seen[id(left), id(right)] = (left, right)
    types = (type(left), type(right))
    is_dict_again = not in_order and types == (dict, collections.OrderedDict)
    assert type(left) is type(right) or is_dict_again, where
    if isinstance(left, dict):
        keys = [list(left), list(right)] if in_order else [sorted(left), sorted(right)]
        assert_same(*keys, f"{where}: keys")
        for key in left:
            if key not in ignore:
                assert_same(left[key], right[key], f"{where}[{key!r}]", ignore, seen, in_order)
    elif isinstance(left, (list, tuple, collections.deque)):
        assert getattr(left, "maxlen", None) == getattr(right, "maxlen", None), where
        assert len(left) == len(right), where
        for index, (one, other) in enumerate(zip(left, right, strict=True)):
            assert_same(one, other, f"{where}[{index}]", ignore, seen, in_order)
    elif type(left).__module__.startswith("minigrid.") and not isinstance(left, gym.Env):
        assert_same(vars(left), vars(right), where, ignore, seen)
    elif isinstance(left, th.Tensor):
        _assert_same_tensors(left, right, where)
    elif isinstance(left, np.ndarray) and left.dtype.hasobject:
        assert left.dtype == right.dtype, where
        assert_same(left.tolist(), right.tolist(), where, ignore, seen, in_order)
    else:
        _assert_same_values(left, right, where)


def _assert_same_tensors(left, right, where):
    assert left.dtype == right.dtype, where
    assert left.requires_grad == right.requires_grad, where
    assert left.stride() == right.stride(), where
    arrays = []
    for tensor in (left, right):
        bits = tensor.detach().resolve_conj().contiguous()
        # NumPy does not know bfloat16.
        arrays.append(bits.view(th.int16 if bits.dtype == th.bfloat16 else bits.dtype).numpy())
    assert_same(*arrays, where)


def _assert_same_values(left, right, where):
    """Assert that two values are equal to the bit, of which none holds other trees."""
    if isinstance(left, (np.str_, np.bytes_)):
        assert left[:] == right[:], where
    elif isinstance(left, (np.ndarray, np.generic)):
        assert left.dtype == right.dtype, where
        assert left.shape == right.shape, where
        assert left.tobytes() == right.tobytes(), where
    elif isinstance(left, np.random.Generator):
        assert_same(left.bit_generator.state, right.bit_generator.state, where)
    elif isinstance(left, np.random.RandomState):
        assert_same(left.get_state(legacy=False), right.get_state(legacy=False), where)
    elif isinstance(left, float):
        assert struct.pack("d", left) == struct.pack("d", right), where
    elif isinstance(left, bytes) and left.startswith(ZIP) and isinstance(right, bytes):
        # Saved trees, as workers send them: their bytes depend on which texts are one object.
        assert_same(*(load_tree(io.BytesIO(one)) for one in (left, right)), where)
    else:
        assert left == right, where


class Call:
    """
    Calls something when it is unpickled.

    :param function: what is called
    :param args: a tuple of the arguments
    """

    def __init__(self, function, args):
        self.function = function
        self.args = args

    def __reduce__(self):
        return self.function, self.args


def sample(seed=0):
    """
    Return a small tree with something of each kind.

    :param seed: of the numbers in it, which are others for another seed; default: 0
    :return: a dict
    """
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
