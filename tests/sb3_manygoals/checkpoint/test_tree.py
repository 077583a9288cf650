import collections
import enum
import json
import pickle
import re

import numpy as np
import pytest
import torch as th
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sb3_manygoals.checkpoint import CheckpointError, decode, encode
from tests.sb3_manygoals.checkpoint.trees import same, sample

DTYPES = ["?", "u1", "i1", "<u2", ">i4", "<i8", "<f2", ">f4", "<f8", "<c8", ">c16", "<U3", "S4", "<M8[ns]", "<m8[25s]"]
TENSORS = [th.bool, th.uint8, th.int16, th.int64, th.float16, th.bfloat16, th.float32, th.float64, th.complex64]
GENERATORS = [np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64]

shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
arrays = st.sampled_from(DTYPES).flatmap(lambda dtype: hnp.arrays(dtype, shapes))
# the same in other orders of memory, and with gaps
views = st.tuples(
    arrays, st.sampled_from([np.transpose, np.asfortranarray, lambda array: array[..., ::-2] if array.ndim else array])
)
texts = st.text(st.characters(exclude_categories=()), max_size=5)  # half surrogate pairs too
numbers = st.integers() | st.integers(-(2**130), 2**130) | st.floats() | st.booleans()
keys = st.recursive(
    st.none() | numbers | texts | st.binary(max_size=3) | st.sampled_from([np.float32(1.5), np.uint8(3), np.str_("a\0")]),
    lambda inner: st.lists(inner, max_size=2).map(tuple) | st.frozensets(inner, max_size=2),
    max_leaves=3,
)
leaves = (
    keys
    | st.binary(min_size=1000, max_size=1100)
    | arrays
    | views.map(lambda pair: pair[1](pair[0]))
    | st.sampled_from(DTYPES).flatmap(lambda dtype: hnp.arrays(dtype, ()).map(lambda array: array[()]))
    | st.tuples(st.sampled_from(TENSORS), hnp.arrays("f4", shapes)).map(lambda pair: th.from_numpy(pair[1]).to(pair[0]))
    | st.tuples(st.sampled_from(GENERATORS), st.integers(0, 99)).map(lambda pair: np.random.Generator(pair[0](pair[1])))
    | st.integers(0, 99).map(np.random.RandomState)
)
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(texts, inner, max_size=3).map(collections.OrderedDict)
        | st.sets(keys, max_size=4)
        | st.tuples(st.lists(inner, max_size=4), st.none() | st.integers(0, 4)).map(lambda pair: collections.deque(*pair))
    ),
    max_leaves=8,
)


@settings(max_examples=150)
@given(trees)
def test_trees_come_back_the_same_to_the_bit(tree):
    skeleton, stored = encode(tree)
    again = json.loads(json.dumps(skeleton, allow_nan=False))
    assert same(tree, decode(again, {name: array.copy() for name, array in stored.items()}))
    assert json.dumps(encode(tree)[0]) == json.dumps(skeleton)


def test_the_sample_comes_back_the_same_to_the_bit():
    tree = sample()
    assert same(decode(*encode(tree)), tree)
    assert not same(tree, sample(1))


def test_arrays_are_named_by_their_path_and_not_copied():
    observations, other = np.zeros((3, 2)), np.ones(4)
    tree = {
        "replay": {"observations": observations, "Observations": other},
        "a/b": other,
        "a": {"b": other},
        1: other,
        "1": other,
    }
    skeleton, stored = encode([tree, other])
    assert np.shares_memory(stored["0/replay/observations"], observations)
    assert list(stored) == [
        *("0/replay/observations", "0/replay/Observations+2", "0/a_b", "0/a/b", "0/1", "0/1+2", "1"),
    ]
    assert same(decode(skeleton, stored), [tree, other])
    (name,) = encode({"x" * 1000: {"../..": other}})[1]
    assert len(name) <= 150
    assert list(encode(other)[1]) == ["tree"]
    assert list(encode({"..": other, "": other})[1]) == ["__", "_"]


@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_the_order_of_memory_is_kept(axes):
    array = np.arange(24).reshape(2, 3, 4).transpose(axes)
    again, tensor = decode(*encode((array.copy(order="K"), th.from_numpy(array))))
    assert again.strides == array.strides
    assert tensor.stride() == th.from_numpy(array).stride()


@pytest.mark.parametrize("kind", GENERATORS)
def test_generators_continue(kind):
    rng = np.random.Generator(kind(np.random.SeedSequence(5, spawn_key=(2,))))
    rng.spawn(2)
    rng.integers(9, size=7, dtype=np.uint8)  # leaves half of a random word
    again = decode(*encode(rng))
    for _ in range(2):
        assert rng.random(700).tolist() == again.random(700).tolist()
        rng, again = rng.spawn(1)[0], again.spawn(1)[0]


def test_random_states_continue():
    random = np.random.RandomState(3)
    random.normal()  # leaves the second of two normal numbers
    again = decode(*encode(random))
    assert random.normal(size=700).tolist() == again.normal(size=700).tolist()


def test_tensors_keep_what_belongs_to_them():
    weight = th.nn.Linear(2, 3).weight.detach().requires_grad_()
    again = decode(
        *encode({"w": weight, "conj": th.tensor([1 + 2j]).conj(), "expanded": th.ones(1).expand(3), "scalar": th.tensor(3)})
    )
    assert again["w"].requires_grad
    assert again["w"].is_leaf
    assert again["conj"].tolist() == [1 - 2j]
    assert again["expanded"].tolist() == [1, 1, 1]
    assert again["scalar"].shape == ()
    again["w"].detach().add_(1)  # writable


class Color(enum.IntEnum):
    RED = 1


Point = collections.namedtuple("Point", "x y")
cycle: list[object] = []
cycle.append(cycle)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "builtins.object|object"),
        (Color.RED, "Color, a subclass of int"),
        (collections.defaultdict(list), "collections.defaultdict, a subclass of dict"),
        (Point(1, 2), "Point, a subclass of tuple"),
        (th.nn.Parameter(th.ones(2)), "torch.nn.parameter.Parameter, a subclass of torch.Tensor"),
        (np.ma.masked_array([1]), "MaskedArray, a subclass of numpy.ndarray"),
        (np.array([None]), "dtype object"),
        (np.zeros(2, "i4,f4"), "dtype"),
        (np.zeros(2, "i4,f4")[0], "numpy.void"),
        (th.ones(2, 2).to_sparse(), "sparse"),
        (th.ones(2, device="meta"), "meta"),
        (np.random.Generator(np.random.PCG64DXSM()), "Generator of numpy.random._pcg64.PCG64DXSM"),
        (np.random.RandomState(np.random.PCG64()), "RandomState of PCG64"),
        ({object(): 1}, "object as a key"),
        ({Color.RED: 1}, "Color as a key"),
        ({th.ones(1)}, "torch.Tensor as a key or in a set"),
        (1j, "complex"),
        (len, "builtin_function_or_method"),
        (np.dtype("f4"), "dtype"),
        (cycle, "more than 100 levels deep"),
    ],
)
def test_other_things_are_refused_with_their_path_and_type(value, words):
    with pytest.raises(CheckpointError, match=rf"agent/0.*({words})"):
        encode({"agent": [value]})


def test_arrays_must_fit_the_skeleton():
    skeleton, stored = encode({"a": np.zeros(3), "b": [np.ones(2, np.uint8)]})
    with pytest.raises(CheckpointError, match="b/0: the array 'b/0' is missing"):
        decode(skeleton, {"a": stored["a"]})
    with pytest.raises(CheckpointError, match="belong to nothing in the tree: c"):
        decode(skeleton, {**stored, "c": np.zeros(1)})
    with pytest.raises(CheckpointError, match=r"a: the array 'a' should be <f8 of shape \[3\], it is <f8 of shape \[4\]"):
        decode(skeleton, {**stored, "a": np.zeros(4)})
    with pytest.raises(CheckpointError, match=r"it is <f4 of shape \[3\]"):
        decode(skeleton, {**stored, "a": np.zeros(3, np.float32)})
    with pytest.raises(CheckpointError, match="used twice"):
        decode([skeleton, skeleton], stored)


@pytest.mark.parametrize(
    "skeleton",
    [
        {},
        {"a": 1, "b": 2},
        {"unknown": []},
        {"__reduce__": ["os.system", "true"]},
        object(),
        {"int": "x"},
        {"float": "00"},
        {"bytes": 3},
        {"tuple": 3},
        {"tuple": "ab"},
        {"dict": {"a": 1}},
        {"dict": [[1]]},
        {"dict": [[1, 2], [1, 3]]},
        {"dict": [[[], 2]]},
        {"set": [[]]},
        {"deque": [1, [1, 2]]},
        {"deque": [-1, []]},
        {"scalar": ["|O8", "00" * 8]},
        {"scalar": ["i4,f4", "00" * 8]},
        {"scalar": ["<f8", "00"]},
        {"array": []},
        {"array": [["x"], "<f8", [], None]},
        {"tensor": ["float32", False, []]},
        {"tensor": ["system", False, []]},
        {"generator": ["system", {}, None]},
        {"generator": ["PCG64", {"dict": []}, None]},
        {"generator": ["PCG64", 3, [1]]},
        {"random state": None},
    ],
)
def test_what_is_no_skeleton_is_refused(skeleton):
    with pytest.raises(CheckpointError, match="here"):
        decode({"dict": [["here", skeleton]]}, {})


def test_skeletons_without_end_are_refused():
    skeleton: list[object] = []
    for _ in range(200):
        skeleton = [skeleton]
    with pytest.raises(CheckpointError, match="levels deep"):
        decode(skeleton, {})


@pytest.mark.parametrize(("make", "key"), [(np.random.MT19937, "pos"), (np.random.Philox, "buffer_pos")])
@pytest.mark.parametrize("position", [-1, 10**6])
def test_generators_do_not_read_outside_of_their_tables(make, key, position):
    skeleton, stored = encode(np.random.Generator(make(1)))
    changed, count = re.subn(rf'\["{key}", [0-9]+\]', f'["{key}", {position}]', json.dumps(skeleton))
    assert count == 1
    with pytest.raises(CheckpointError, match="outside"):
        decode(json.loads(changed), stored)


def test_encoding_changes_nothing():
    tree = sample()
    before = pickle.dumps(tree["arrays"])
    encode(tree)
    assert pickle.dumps(tree["arrays"]) == before
