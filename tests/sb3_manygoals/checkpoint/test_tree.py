"""Trees come back as they were; what is no tree is refused, when written and when read."""

import collections
import copy
import enum
import io
import pickle
import zipfile

import numpy as np
import pytest
import torch as th
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sb3_manygoals.checkpoint import CheckpointError, copy_tree, tree
from tests.sb3_manygoals.checkpoint.trees import Call, assert_same, sample

DTYPES = [
    "?",
    "u1",
    "i1",
    "<u2",
    ">i4",
    "<u8",
    "<f2",
    ">f4",
    "<f8",
    "<c8",
    ">c16",
    "<U3",
    "S4",
    "<M8[ns]",
    "<m8[25s]",
]
TENSORS = [
    th.bool,
    th.uint8,
    th.uint16,
    th.int64,
    th.float16,
    th.bfloat16,
    th.float32,
    th.float64,
    th.complex64,
]
GENERATORS = [np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64]

shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
arrays = st.sampled_from(DTYPES).flatmap(lambda dtype: hnp.arrays(dtype, shapes))
# Arrays in other orders of memory, with gaps, and with one memory for several elements.
views = st.sampled_from(
    [
        np.transpose,
        np.asfortranarray,
        lambda array: array[..., ::-2],
        lambda array: array[None, ::-1],
        lambda array: np.broadcast_to(array, (2, *array.shape)),
    ]
)
# All characters, also halves of surrogate pairs.
texts = st.text(st.characters(exclude_categories=()), max_size=5)
numbers = (
    st.integers() | st.integers(-(2**1000), 2**1000) | st.floats(allow_nan=False) | st.booleans()
)
keys = st.recursive(
    st.none()
    | numbers
    | texts
    | st.binary(max_size=3)
    | st.sampled_from([np.float32(1.5), np.uint8(3), np.str_("a")]),
    lambda inner: st.lists(inner, max_size=2).map(tuple) | st.frozensets(inner, max_size=2),
    max_leaves=3,
)
leaves = (
    keys
    | st.floats()
    | arrays
    | st.tuples(views, arrays.filter(np.ndim)).map(lambda pair: pair[0](pair[1]))
    | st.sampled_from(DTYPES).flatmap(
        lambda dtype: hnp.arrays(dtype, ()).map(lambda array: array[()])
    )
    | st.tuples(st.sampled_from(TENSORS), hnp.arrays("i1", shapes)).map(
        lambda pair: th.from_numpy(pair[1]).to(pair[0])
    )
    | st.tuples(st.sampled_from(GENERATORS), st.integers(0, 99)).map(
        lambda pair: np.random.Generator(pair[0](pair[1]))
    )
)
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(texts, inner, max_size=3).map(collections.OrderedDict)
        | st.sets(keys, max_size=4)
        | st.tuples(st.lists(inner, max_size=4), st.none() | st.integers(0, 4)).map(
            lambda pair: collections.deque(*pair)
        )
    ),
    max_leaves=8,
)


@settings(max_examples=150)
@given(trees)
def test_trees_come_back_the_same_to_the_bit(value):
    assert_same(copy_tree(value), value)


def test_a_copy_is_writable_and_shares_nothing():
    value = sample()
    again = copy_tree(value)
    for array in (*again["arrays"].values(), again["tensor"]):
        array[...] = 0
    assert_same(value, sample())


def test_what_is_shared_is_shared_again():
    body = np.zeros(6)
    weights = th.arange(6.0)
    loop = [1]
    loop.append(loop)
    bag = {"loop": loop}
    views = [body[:2], body[::-2], body]
    again = copy_tree(
        copy_tree({"views": views, "bags": [bag, (bag,)], "weights": [weights, weights[2:]]})
    )
    head, tail, whole = again["views"]
    head += 1
    tail += 2
    assert whole.tolist() == [1, 3, 0, 2, 0, 2]
    assert again["bags"][0] is again["bags"][1][0]
    assert again["bags"][0]["loop"][1] is again["bags"][0]["loop"]
    again["weights"][0] += 1
    assert again["weights"][1].tolist() == [3, 4, 5, 6]
    # Memory that the tree does not need is not written.
    assert len(tree.tree_bytes(np.zeros((1000, 2))[:, 0])) < 10_000


@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_the_order_of_memory_is_kept(axes):
    array = np.arange(24).reshape(2, 3, 4).transpose(axes)
    # NumPy calls both orders contiguous, but oneDNN tells them apart.
    picture = np.zeros((2, 5, 5, 1)).transpose(0, 3, 1, 2)
    again, tensor, same_picture = copy_tree((array.copy(order="K"), th.from_numpy(array), picture))
    assert (again.strides, same_picture.strides) == (array.strides, picture.strides)
    assert tensor.stride() == th.from_numpy(array).stride()


@pytest.mark.parametrize("kind", GENERATORS)
def test_generators_continue(kind):
    rng = np.random.Generator(kind(np.random.SeedSequence(5, spawn_key=(2,))))
    rng.spawn(2)
    # Half of a random word is left.
    rng.integers(9, size=7, dtype=np.uint8)
    again = copy_tree(rng)
    for _ in range(2):
        assert rng.random(700).tolist() == again.random(700).tolist()
        rng = rng.spawn(1)[0]
        again = again.spawn(1)[0]
    old = np.random.RandomState(3)
    # Normal numbers are drawn in pairs, and the second one is left.
    old.normal()
    assert copy_tree(old).normal(size=700).tolist() == old.normal(size=700).tolist()


def test_tensors_keep_what_belongs_to_them():
    weight = th.nn.Linear(2, 3).weight.detach().requires_grad_()
    again = copy_tree(
        {"w": weight, "conj": th.tensor([1 + 2j]).conj(), "expanded": th.ones(1).expand(3)}
    )
    assert (again["w"].requires_grad, again["w"].is_leaf) == (True, True)
    assert (again["conj"].tolist(), again["expanded"].tolist()) == ([1 - 2j], [1, 1, 1])
    # It can be written to.
    again["w"].detach().add_(1)


Point = collections.namedtuple("Point", "x y")
endless = collections.deque()
endless.append(endless)


class Buttons(enum.Flag):
    """Two of them, both of which may be pressed."""

    A = 1
    B = 2


def local_member():
    """Return a member of an enumeration that no module has."""
    return enum.Enum("Local", "ONE").ONE


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "object"),
        (collections.defaultdict(list), "collections.defaultdict"),
        (Point(1, 2), "Point"),
        (th.nn.Parameter(th.ones(2)), "torch.nn.parameter.Parameter"),
        (np.ma.masked_array([1]), "MaskedArray"),
        (np.array([None]), "dtype object"),
        (np.zeros(2, "i4,f4")[0], "numpy.void"),
        (th.ones(2, 2).to_sparse(), "torch.Tensor"),
        (th.ones(2, device="meta"), "torch.Tensor"),
        (np.random.Generator(np.random.PCG64DXSM()), "Generator of PCG64DXSM"),
        (np.random.RandomState(np.random.PCG64()), "RandomState"),
        (2**3000, "int"),
        # When they are read, nothing would have their name.
        (Buttons.A | Buttons.B, r"the state\['agent'\]\[0\] is a .*Buttons, which cannot be saved"),
        (local_member(), r"the state\['agent'\]\[0\] is a .*Local, which cannot be saved"),
        ({object(): 1}, r"a key of the state\['agent'\]\[0\] is a builtins.object"),
        ({th.ones(1)}, r"an element of the state\['agent'\]\[0\] is a torch.Tensor"),
        (endless, "too many levels|recursion"),
        ((ones := th.ones(2), ones.view(th.int32)), "different types"),
        ((ones, ones.numpy()), "different types"),
    ],
)
def test_other_things_are_refused_with_their_place_and_type(value, words):
    with pytest.raises(CheckpointError, match=words):
        copy_tree({"agent": [value]})


MEMORY = th.zeros(16, dtype=th.uint8)


def state_of(bit_generator, **position):
    """
    Return a state in which lists stand for arrays, so that torch can write it alone.

    :param bit_generator: a bit generator of NumPy
    :param position: what to change in the state, or in the inner state if there is one
    :return: a dict
    """
    state = copy.deepcopy(bit_generator.state)
    inner = state["state"]
    for name, value in inner.items():
        inner[name] = value.tolist() if isinstance(value, np.ndarray) else value
    if "buffer" in state:
        state["buffer"] = state["buffer"].tolist()
    for name, value in position.items():
        (inner if name in inner else state)[name] = value
    return state


MT19937 = np.random.MT19937(1)
PHILOX = np.random.Philox(1)


@pytest.mark.parametrize(
    ("kind", "args", "message"),
    [
        ("array", (MEMORY, 0, "|O8", (2,), (8,)), "not a plain dtype"),
        ("array", (MEMORY, 0, "<f8", (3,), (8,)), "strides"),
        ("array", (MEMORY, 8, "<f8", (2,), (8,)), "strides"),
        ("array", (MEMORY, -8, "<f8", (2,), (8,)), "strides"),
        ("array", (MEMORY, 0, "<f8", (2,), (-8,)), "strides"),
        ("scalar", ("|O8", b"01234567"), "not a plain dtype"),
        ("scalar", ("<f8", b"0"), "buffer is too small"),
        ("generator", ("system", state_of(PHILOX), None), "system"),
        ("generator", ("PCG64", state_of(PHILOX), None), "PCG64"),
        ("generator", ("MT19937", state_of(MT19937, pos=10**6), None), "table of MT19937"),
        ("generator", ("MT19937", state_of(MT19937, pos=-1), None), "table of MT19937"),
        ("generator", ("Philox", state_of(PHILOX, buffer_pos=10**6), None), "buffer of Philox"),
        ("random state", (state_of(MT19937, pos=10**6),), "table of MT19937"),
        ("enum member", ("os", "path", "x"), "os.path is not known here"),
        ("enum member", ("this", "Enum", "x"), "this.Enum is not known here"),
        ("object", ("os", "_wrap_close"), "os._wrap_close is not a class whose objects"),
    ],
)
def test_reading_stays_in_its_memory_and_finds_only_plain_classes(kind, args, message):
    with pytest.raises(CheckpointError, match=rf"not a tree of this version: .*{message}"):
        tree.load_tree(file_of(Call(tree.REBUILDERS[kind], args)))


def test_reading_calls_nothing_else(capsys):
    with pytest.raises(CheckpointError, match="not a tree of this version"):
        tree.load_tree(file_of(Call(print, ("executed",))))
    assert capsys.readouterr().out == ""


def test_what_is_rebuilt_is_as_it_was():
    """Show that the calls above are refused for their arguments, and not for their form."""
    calls = [
        Call(tree.REBUILDERS["array"], (MEMORY, 0, "<f8", (2,), (8,))),
        Call(tree.REBUILDERS["generator"], ("MT19937", state_of(MT19937), None)),
        Call(tree.REBUILDERS["generator"], ("Philox", state_of(PHILOX), None)),
    ]
    array, mt19937, philox = tree.load_tree(file_of(calls))
    assert array.tolist() == [0.0, 0.0]
    assert_same(mt19937, np.random.Generator(np.random.MT19937(1)))
    assert_same(philox, np.random.Generator(np.random.Philox(1)))


def file_of(value):
    """
    Write into a file in memory what need not be a tree.

    :param value: anything that torch can write
    :return: the file
    """
    file = io.BytesIO()
    th.save({"tree": value, "objects": []}, file)
    return file


@pytest.mark.parametrize(
    "data",
    [b"", b"no archive", pickle.dumps(Call(print, ("executed",))), pickle.dumps({"tree": 1})],
)
def test_files_of_another_kind_are_refused(data, capsys):
    archive = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(tree.tree_bytes(1))) as old,
        zipfile.ZipFile(archive, "w") as new,
    ):
        # The archive gets another pickle.
        for name in old.namelist():
            new.writestr(name, data if name.endswith("data.pkl") else old.read(name))
    for file in (io.BytesIO(data), archive):
        with pytest.raises(CheckpointError, match="not a tree of this version"):
            tree.load_tree(file)
    assert capsys.readouterr().out == ""
