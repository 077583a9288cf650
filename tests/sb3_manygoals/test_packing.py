"""Observations of several arrays as one array of bytes, and back."""

import copy
import pickle
import re

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from stable_baselines3.common.save_util import load_from_zip_file, save_to_zip_file

from sb3_manygoals.packing import PackedSpace, are_floats, packed_observation, packed_parts

DTYPES = [
    np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64"),
    )
]
PARTS = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (2, 3), np.uint8),
        "place": spaces.Box(-9.0, 9.0, (2,), np.float64),
        "heading": spaces.Discrete(4),
        "dials": spaces.MultiDiscrete([3, 5]),
        "lamps": spaces.MultiBinary(3),
    }
)
SEEN = {
    "camera": np.arange(6, dtype=np.uint8).reshape(2, 3),
    "place": np.array([0.1, -2.5]),
    "heading": 3,
    "dials": np.array([2, 4]),
    "lamps": np.array([1, 0, 1], np.int8),
}


@st.composite
def batches(draw):
    """Draw a space of parts, the shape of a batch, and the parts of its observations."""
    batch = draw(st.sampled_from([(), (0,), (1,), (3,)]))
    parts = {}
    observations = {}
    for name in draw(st.lists(st.sampled_from("abcde"), min_size=1, max_size=3, unique=True)):
        dtype = draw(st.sampled_from(DTYPES))
        shape = draw(hnp.array_shapes(max_dims=3, max_side=3))
        limits = (0, 1) if dtype.kind == "b" else (-np.inf, np.inf)
        if dtype.kind in "iu":
            limits = (np.iinfo(dtype).min, np.iinfo(dtype).max)
        parts[name] = spaces.Box(*limits, shape, dtype.type)
        finite = {"allow_nan": False, "allow_infinity": False} if dtype.kind == "f" else None
        elements = hnp.from_dtype(dtype, **(finite or {}))
        observations[name] = draw(hnp.arrays(dtype, batch + shape, elements=elements))
    return PackedSpace(spaces.Dict(parts)), batch, observations


@given(batches())
def test_what_is_packed_is_unpacked_to_the_last_bit(drawn):
    space, batch, observations = drawn
    packed = space.pack(observations)
    assert (packed.dtype, packed.shape) == (np.uint8, batch + space.shape)
    found = space.unpack(packed)
    assert found.keys() == observations.keys()
    for name, part in observations.items():
        assert (found[name].dtype, found[name].shape) == (part.dtype, part.shape)
        # Bytes tell -0.0 from 0.0.
        assert found[name].tobytes() == part.tobytes()
    np.testing.assert_array_equal(space.pack(found), packed)


@given(batches())
def test_tensors_are_unpacked_as_arrays_are(drawn):
    space, _, observations = drawn
    packed = space.pack(observations).reshape(-1, *space.shape)
    tensors = space.unpack_tensor(th.as_tensor(packed))
    for name, part in space.unpack(packed).items():
        assert str(tensors[name].dtype) == f"torch.{part.dtype}"
        np.testing.assert_array_equal(tensors[name].numpy(), part)


def test_the_bytes_of_parts_follow_each_other_in_the_order_of_the_space():
    space = PackedSpace(
        spaces.Dict([("b", spaces.Discrete(300)), ("a", spaces.Box(0, 255, (2,), np.uint8))])
    )
    packed = space.pack({"a": np.array([7, 8], np.uint8), "b": 258, "ignored": "text"})
    # 258 is 2 + 1 * 256, in eight bytes.
    assert packed.tolist() == [2, 1, 0, 0, 0, 0, 0, 0, 7, 8]
    assert space.unpack(np.stack([[packed, packed]]))["a"].tolist() == [[[7, 8], [7, 8]]]


def test_parts_of_all_kinds_are_packed():
    space = PackedSpace(PARTS)
    assert space.shape == (6 + 16 + 8 + 16 + 3,)
    found = space.unpack(space.pack(SEEN))
    for name, part in SEEN.items():
        np.testing.assert_array_equal(found[name], part)
        assert found[name].dtype == PARTS[name].dtype
    # A dtype of the same kind is converted, as environments may compute in another one.
    as_float32 = space.pack(SEEN | {"place": np.array([0.5, 0.25], np.float32)})
    np.testing.assert_array_equal(space.unpack(as_float32)["place"], [0.5, 0.25])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"place": np.zeros(3)}, r"'place' .* must be float64 of shape \(2,\), got float64 of \(3"),
        ({"place": np.zeros((1, 1, 2))}, r"'place' .* got float64 of \(1, 1, 2\)"),
        ({"camera": np.zeros((2, 3))}, r"'camera' .* must be uint8 .*, got float64"),
        ({"place": np.array([0, np.nan])}, r"'place' of the observation must be finite, got \[ 0."),
        ({"place": np.array([np.inf, 0])}, "'place' of the observation must be finite"),
        ({"heading": 4}, r"'heading' of the observation must be of Discrete\(4\), got \[?4"),
        ({"heading": -1}, "'heading' of the observation must be of Discrete"),
        ({"dials": [3, 0]}, r"'dials' of the observation must be of MultiDiscrete\(\[3 5\]\)"),
        ({"lamps": [2, 0, 0]}, r"'lamps' of the observation must be of MultiBinary\(3\)"),
        # In the dtypes of their parts, these would be 1 and numbers from 0 on.
        ({"lamps": np.array([257, 0, 0])}, "'lamps' .* must be of MultiBinary.*, got .*257"),
        (
            {"camera": np.full((2, 3), 300, np.uint16)},
            r"'camera' of the observation must be of Box\(0, 255, .*, got .*300",
        ),
        ({"place": np.zeros((4, 2))}, r"all parts .* must have as many rows, got .*4"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_name_of_the_part(changed, message):
    with pytest.raises(ValueError, match=message):
        PackedSpace(PARTS).pack(SEEN | changed)


def test_a_missing_part_and_too_great_a_number_are_refused():
    missing = {name: part for name, part in SEEN.items() if name != "dials"}
    with pytest.raises(ValueError, match=r"must have .*'camera', 'dials'.*, got no 'dials'"):
        PackedSpace(PARTS).pack(missing)
    small = PackedSpace(spaces.Dict({"x": spaces.Box(-1, 1, (1,), np.float32)}))
    # It is finite, but not in float32.
    with pytest.raises(ValueError, match=r"'x' of the observation must be finite, got .*inf"):
        small.pack({"x": np.array([1e300])})
    rows = {name: np.stack([part] * 2) for name, part in SEEN.items()}
    with pytest.raises(ValueError, match=r"must have as many rows, got \[2, 2, 1, 2, 2\]"):
        PackedSpace(PARTS).pack(rows | {"heading": [1]})


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        (
            spaces.Dict({"inner": spaces.Discrete(2)}),
            "expected one of Box, Discrete.* got Dict.*FlattenObservation makes one array of all",
        ),
        (spaces.Text(3), "expected one of Box, Discrete"),
        (spaces.Sequence(spaces.Discrete(2)), "expected one of Box, Discrete"),
        (spaces.Box(0, 1, ()), "expected an array with elements"),
        (spaces.Box(0, 1, (0,)), "expected an array with elements"),
        (spaces.Discrete(3, start=1), "expected values that start at 0"),
        (spaces.MultiDiscrete([[2, 2]]), "expected a MultiDiscrete of one axis"),
    ],
)
def test_parts_that_no_network_reads_are_refused(part, reason):
    with pytest.raises(TypeError, match=f"'x' of the observation cannot be packed: {reason}"):
        PackedSpace(spaces.Dict({"x": part, "y": spaces.Discrete(2)}))


def test_an_observation_without_parts_is_refused():
    with pytest.raises(TypeError, match="must have a part with elements"):
        PackedSpace(spaces.Dict({}))


def test_spaces_are_equal_if_the_same_bytes_mean_the_same():
    space = PackedSpace(PARTS)
    assert space == PackedSpace(copy.deepcopy(PARTS))
    assert space != PackedSpace(spaces.Dict({**PARTS, "heading": spaces.Discrete(5)}))
    assert space != spaces.Box(0, 255, space.shape, np.uint8)
    assert spaces.Box(0, 255, space.shape, np.uint8) != space
    pairs = [("a", spaces.Discrete(2)), ("b", spaces.MultiBinary(2))]
    assert PackedSpace(spaces.Dict(pairs)) != PackedSpace(spaces.Dict(pairs[::-1]))
    assert repr(PackedSpace(spaces.Dict(pairs))) == (
        "PackedSpace(Dict('a': Discrete(2), 'b': MultiBinary(2)))"
    )


@pytest.mark.parametrize(
    ("change", "got"),
    [
        (lambda packed: packed.astype(np.float32), r"float32 of \(\d+,\)"),
        (lambda packed: np.append(packed, np.uint8(0)), r"uint8 of \(\d+,\)"),
        (lambda packed: packed[:-1], r"uint8 of \(\d+,\)"),
        (lambda packed: packed[0], r"uint8 of \(\)"),
    ],
)
def test_what_is_not_packed_cannot_be_unpacked(change, got):
    space = PackedSpace(PARTS)
    message = rf"packed must be uint8 of shape \(\*batch, {space.shape[0]}\), got {got}"
    with pytest.raises(ValueError, match=message):
        space.unpack(change(space.pack(SEEN)))


def test_random_observations_are_of_the_parts_and_follow_from_the_seed():
    space = PackedSpace(PARTS)
    space.seed(3)
    drawn = [space.sample() for _ in range(20)]
    assert all(one in space and PARTS.contains(space.unpack(one)) for one in drawn)
    assert len({one.tobytes() for one in drawn}) == 20
    for name in ("mask", "probability"):
        with pytest.raises(ValueError, match=f"{name} must be None"):
            space.sample(**{name: np.ones(3, np.int8)})
    other = PackedSpace(copy.deepcopy(PARTS))
    other.seed(3)
    np.testing.assert_array_equal([other.sample() for _ in range(20)], drawn)


def _saved_by_sb3(space, folder):
    save_to_zip_file(folder / "model", data={"observation_space": space})
    return load_from_zip_file(folder / "model")[0]["observation_space"]


@pytest.mark.parametrize(
    "again",
    [
        lambda space, _: copy.deepcopy(space),
        lambda space, _: pickle.loads(pickle.dumps(space)),
        _saved_by_sb3,
    ],
)
def test_copies_and_saved_ones_are_the_same_space(again, tmp_path):
    space = PackedSpace(PARTS)
    found = again(space, tmp_path)
    assert found == space
    packed = space.pack(SEEN)
    np.testing.assert_array_equal(found.pack(SEEN), packed)
    np.testing.assert_array_equal(found.unpack(packed)["place"], SEEN["place"])
    tensor = found.unpack_tensor(th.as_tensor(packed[None]))["place"]
    assert tensor.tolist() == [[0.1, -2.5]]
    found.sample()


def test_texts_are_left_out_with_a_warning_and_other_parts_without():
    texts = spaces.Dict({**PARTS, "mission": spaces.Text(9), "hint": spaces.Text(9)})
    with pytest.warns(UserWarning, match="a text, .*, is left out of the .*: 'hint', 'mission'"):
        space = packed_parts(texts)
    assert space == PackedSpace(PARTS)
    kept = packed_parts(PARTS, leave_out=("place", "lamps"))
    assert list(kept.parts) == ["camera", "dials", "heading"]


def test_the_mission_of_minigrid_is_left_out():
    pytest.importorskip("minigrid")
    from minigrid.core.mission import MissionSpace

    grid = {"image": spaces.Box(0, 255, (7, 7, 3), np.uint8), "direction": spaces.Discrete(4)}
    mission = MissionSpace(mission_func=lambda: "get to the green goal square")
    with pytest.warns(UserWarning, match=r"is left out of the observations: 'mission'$"):
        space = packed_parts(spaces.Dict({**grid, "mission": mission}))
    assert space == PackedSpace(spaces.Dict(grid))


def test_observations_of_goal_observations_are_packed_once():
    space = PackedSpace(PARTS)
    packed = space.pack(SEEN)
    rows = {name: np.stack([part] * 3) for name, part in SEEN.items()}
    for seen in (packed, SEEN):
        np.testing.assert_array_equal(packed_observation({"observation": seen}, space), packed)
    np.testing.assert_array_equal(packed_observation({"observation": rows}, space), [packed] * 3)
    # A GoalEnv has the parts beside each other.
    of_goal_env = PackedSpace(
        spaces.Dict({"observation": spaces.Discrete(3), "achieved_goal": spaces.MultiBinary(2)})
    )
    raw = {"observation": 2, "achieved_goal": np.array([0, 1], np.int8), "desired_goal": None}
    assert packed_observation(raw, of_goal_env).tolist() == [0, 1, 2, 0, 0, 0, 0, 0, 0, 0]
    # Where nothing is packed, single arrays stay as they are.
    array = np.arange(3.0)
    found = packed_observation({"observation": array}, spaces.Box(0, 9, (3,), np.float64))
    assert found is array
    with pytest.raises(ValueError, match=re.escape("got no 'achieved_goal'")):
        packed_observation({"observation": 2}, of_goal_env)


def test_it_is_told_which_spaces_have_fractions_only():
    whole = spaces.Box(0, 255, (2, 2), np.uint8)
    floats = spaces.Box(0.0, 1.0, (2,), np.float32)
    assert are_floats(floats)
    assert are_floats(PackedSpace(spaces.Dict({"place": floats, "speed": floats})))
    assert not are_floats(PackedSpace(spaces.Dict({"picture": whole, "place": floats})))
    assert not any(are_floats(one) for one in (whole, spaces.Discrete(3), spaces.MultiBinary(4)))
