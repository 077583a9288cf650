"""Goals that are what observations achieve, and sets of states that achieve them."""

import copy
import functools
import math
import pickle
import re
import warnings

import cloudpickle
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_manygoals.checkpoint import CheckpointError
from sb3_manygoals.goals import UNKNOWN, GoalBuffer
from sb3_manygoals.goals.achievement import Achievement, ranges

GRID = spaces.Box(-20, 20, (3,), np.int64)
PLANE = spaces.Box(-10, 10, (2,), np.float64)
PIXELS = spaces.Box(0, 255, (4, 4, 3), np.uint8)
rows = st.lists(st.tuples(st.integers(-2, 2), st.integers(-2, 2), st.integers(0, 2)), max_size=12)


def place(observation):
    """Return the first two of three numbers."""
    return observation[:2]


def column(observation):
    """Return the first number."""
    return int(observation[0])


def corner(observation):
    """Return a part of a picture."""
    return observation[:2, :2]


def near(achieved, desired):
    """Return which first numbers differ by at most one, at a place right of -1."""
    return (np.abs(achieved[:, 0] - desired[:, 0]) <= 1) & (achieved[:, 1] >= desired[:, 1])


def array_of(pairs, space=GRID):
    """Return a batch of observations."""
    return np.array(pairs, dtype=space.dtype).reshape(-1, *space.shape)


def cell_of(observation):
    """Return the numbers without the sign of the last one."""
    return observation[0], observation[1] // 2


KINDS = [
    {"goal": place},
    {"goal": column, "goal_space": spaces.Box(-20, 20, (1,), np.int64)},
    {"reached": 1.0},
    {"reached": math.sqrt(3)},
    {"reached": near},
    {"goal": place, "reached": 0},
    {"goal": place, "reached": math.sqrt(2)},
    {"goal": place, "reached": near},
    {"state_key": cell_of},
    {"state_key": cell_of, "goal": place},
    {"state_key": cell_of, "reached": 1.5},
    {"state_key": cell_of, "goal": column, "reached": 1},
]

# Most of the code is the same for all kinds, so all of them together have 360 examples.
EXAMPLES_OF_A_KIND = 30


def achieved_by(kind, observation):
    """Return what an observation achieves."""
    return np.atleast_1d(kind.get("goal", lambda seen: seen)(observation))


def reaches(kind, left, right):
    """Return whether one observation's achievement reaches that of another, or a goal."""
    tolerance = kind.get("reached")
    if callable(tolerance):
        return bool(tolerance(left[None], right[None])[0])
    if tolerance is None and "goal" not in kind and "state_key" in kind:
        return kind["state_key"](left) == kind["state_key"](right)
    if tolerance is None:
        return left.tolist() == right.tolist()
    distance = math.sqrt(sum((float(a) - float(b)) ** 2 for a, b in zip(left, right, strict=True)))
    return distance <= tolerance


def held_out_of(kind, observations):
    """Return goals to hold out, made of observations."""
    if not observations:
        return None
    return np.stack([achieved_by(kind, observation) for observation in array_of(observations)])


def same_goal(kind, left, right):
    """Return whether two goals are one."""
    if "goal" in kind or "state_key" not in kind:
        return left.tolist() == right.tolist()
    return kind["state_key"](left) == kind["state_key"](right)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=EXAMPLES_OF_A_KIND)
@given(st.lists(rows, max_size=4), rows)
def test_goals_and_the_states_that_achieve_them_are_those_of_a_loop(kind, batches, held_out):
    forbidden = held_out_of(kind, held_out[:3])
    buffer = GoalBuffer(GRID, 200, forbidden, **kind)
    states = []
    goals = []
    key = kind.get("state_key", lambda seen: tuple(seen.tolist()))
    for batch in map(array_of, batches):
        state_ids, goal_ids = buffer.observe(batch)
        for observation in batch:
            if not any(key(observation) == key(state) for state in states):
                states.append(observation)
                achieved = achieved_by(kind, observation)
                is_known = any(same_goal(kind, achieved, goal) for goal in goals)
                is_forbidden = forbidden is not None and any(
                    same_goal(kind, achieved, goal) for goal in forbidden
                )
                if not is_known and not is_forbidden:
                    goals.append(achieved)
        for observation, state_id, goal_id in zip(batch, state_ids, goal_ids, strict=True):
            assert key(states[state_id]) == key(observation)
            achieved = achieved_by(kind, observation)
            wanted = [i for i, goal in enumerate(goals) if same_goal(kind, achieved, goal)]
            assert goal_id == (wanted[0] if wanted else UNKNOWN)
        np.testing.assert_array_equal(buffer.look_up(batch), (state_ids, goal_ids))
    np.testing.assert_array_equal(buffer.states.observations.tolist(), [s.tolist() for s in states])
    assert buffer.observations.tolist() == [goal.tolist() for goal in goals]
    assert len(buffer) == len(goals)
    firsts = [
        next(
            state_id
            for state_id, state in enumerate(states)
            if same_goal(kind, achieved_by(kind, state), goal)
        )
        for goal in goals
    ]
    assert buffer.state_ids.tolist() == firsts
    begin, found = buffer.achieving_states()
    assert begin.shape == (len(goals) + 1,)
    assert begin[0] == 0
    assert begin[-1] == len(found)
    for goal_id, goal in enumerate(goals):
        wanted = {
            state_id
            for state_id, state in enumerate(states)
            if reaches(kind, achieved_by(kind, state), goal)
        }
        achieving = found[begin[goal_id] : begin[goal_id + 1]].tolist()
        assert len(set(achieving)) == len(achieving)
        assert set(achieving) == wanted
        np.testing.assert_array_equal(buffer[goal_id], goal)
    if forbidden is not None:
        assert buffer.is_held_out(forbidden).all()
        assert (buffer.ids(forbidden) == UNKNOWN).all()


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=EXAMPLES_OF_A_KIND)
@given(st.lists(rows.filter(len), min_size=1, max_size=3), rows)
def test_what_was_saved_is_restored(kind, batches, held_out):
    buffer = GoalBuffer(GRID, 60, held_out_of(kind, held_out[:2]), **kind)
    for batch in batches:
        buffer.observe(array_of(batch))
    others = [GoalBuffer(GRID, 60, **kind) for _ in range(2)]
    others[0].set_checkpoint_state(buffer.get_checkpoint_state())
    others[1].observe(array_of(batches[-1][:1]))
    others[1].restore(buffer.arrays())
    others += [copy.deepcopy(buffer), pickle.loads(pickle.dumps(buffer))]
    for other in others:
        for left, right in (
            (other.observations, buffer.observations),
            (other.state_ids, buffer.state_ids),
            (other.states.observations, buffer.states.observations),
            (other.config["held_out"], buffer.config["held_out"]),
            *zip(other.achieving_states(), buffer.achieving_states(), strict=True),
        ):
            np.testing.assert_array_equal(left, right)
        assert other.capacity == buffer.capacity
        np.testing.assert_array_equal(
            other.observe(array_of(batches[0])), buffer.look_up(array_of(batches[0]))
        )


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_has_goals_states_and_what_was_held_out(kind, tmp_path):
    seen = array_of([(1, 1, 0), (1, 1, 1), (2, -2, 0), (0, 0, 0)])
    held_out = np.stack([achieved_by(kind, observation) for observation in seen[2:3]])
    buffer = GoalBuffer(GRID, 10, held_out, **kind)
    buffer.observe(seen)
    buffer.save(tmp_path / "goals")
    loaded = GoalBuffer.load(tmp_path / "goals", GRID, **kind)
    assert len(loaded) > 0
    np.testing.assert_array_equal(loaded.observations, buffer.observations)
    np.testing.assert_array_equal(loaded.look_up(seen), buffer.look_up(seen))
    np.testing.assert_equal(loaded.arrays(), buffer.arrays())
    assert loaded.is_held_out(held_out).all()


def test_a_file_is_refused_if_goals_are_others_now_and_nothing_changes(tmp_path):
    buffer = GoalBuffer(GRID, 10, goal=place)
    buffer.observe(array_of([(1, 1, 0), (1, 2, 0), (1, 1, 1)]))
    buffer.save(tmp_path / "goals")
    with pytest.raises(ValueError, match="goal returns other goals for the states than it did"):
        GoalBuffer.load(tmp_path / "goals", GRID, goal=lambda seen: seen[[0, 0]])
    other = GoalBuffer(GRID, 10, goal=lambda seen: seen[[0, 2]])
    other.observe(array_of([(5, 5, 5)]))
    with pytest.raises(ValueError, match="goal returns other goals"):
        other.restore(buffer.arrays())
    assert other.observations.tolist() == [[5, 5]]
    assert other.states.observations.tolist() == [[5, 5, 5]]


@pytest.mark.parametrize(
    ("other", "name"),
    [
        ({"goal": lambda seen: seen[1:]}, "goal"),
        ({"goal": place, "reached": 2.0}, "reached"),
        ({"goal": place, "reached": near}, "reached"),
        ({"goal": place, "reached": 1.0, "state_key": column}, "state_key"),
        ({}, "shape"),
    ],
)
def test_the_state_of_another_kind_of_goals_is_refused(other, name):
    buffer = GoalBuffer(GRID, 10, goal=place, reached=1.0)
    buffer.observe(array_of([(1, 1, 0)]))
    changed = GoalBuffer(GRID, 10, **other)
    with pytest.raises(ValueError, match=f"{name}="):
        changed.set_checkpoint_state(buffer.get_checkpoint_state())


@pytest.mark.parametrize(
    ("space", "goal", "expected", "example"),
    [
        (
            PLANE,
            lambda seen: seen * 0.5,
            spaces.Box(-np.inf, np.inf, (2,), np.float64),
            [0.5, 1.0],
        ),
        (PLANE, lambda seen: float(seen[0]), spaces.Box(-np.inf, np.inf, (1,), np.float64), [1.0]),
        (
            PLANE,
            lambda seen: np.float32(seen[0]),
            spaces.Box(-np.inf, np.inf, (1,), np.float32),
            [1.0],
        ),
        (
            PLANE,
            lambda seen: (int(seen[0]), 7),
            spaces.Box(-(2**63), 2**63 - 1, (2,), np.int64),
            [1, 7],
        ),
        (PLANE, lambda seen: bool(seen[0] > 0), spaces.MultiBinary((1,)), [1]),
        (PLANE, lambda seen: seen > 1.5, spaces.MultiBinary((2,)), [0, 1]),
        (PIXELS, corner, spaces.Box(0, 255, (2, 2, 3), np.uint8), np.ones((2, 2, 3)).tolist()),
        (spaces.Discrete(9), lambda seen: seen // 2, None, [0]),
    ],
)
def test_the_space_of_goals_is_that_of_what_the_function_returns(space, goal, expected, example):
    before = copy.deepcopy(space)
    buffer = GoalBuffer(space, 10, goal=goal)
    # The random numbers of the user's space are as they were.
    assert space.sample().tolist() == before.sample().tolist() or space._np_random is not None
    if expected is None:
        expected = spaces.Box(-(2**63), 2**63 - 1, (1,), np.int64)
    assert buffer.goal_space == expected
    assert buffer.dtype == expected.dtype
    observation = np.ones(space.shape, space.dtype)
    if space is PLANE:
        observation = np.array([1.0, 2.0])
    assert buffer.add(observation[None]).tolist() == [0]
    assert buffer.observations.tolist() == [example]
    assert buffer.achieved(observation[None]).dtype == expected.dtype


def shifted(observation, by=0, sizes=None, before=None):
    """Return the first number, and what was added to it."""
    return observation[0] + by


class Halved:
    """The first number, halved."""

    def __call__(self, observation):
        return observation[0] // 2


class Doubled:
    """The first number, doubled."""

    def __call__(self, observation):
        return observation[0] * 2


def partial(*args, **kwargs):
    return functools.partial(shifted, *args, **kwargs)


def divided_by(size):
    """Return a closure, as users make one for each size of cells."""
    return lambda seen: seen[0] // size


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (divided_by(2), divided_by(3)),
        (functools.partial(divided_by(2)), functools.partial(divided_by(3))),
        (partial(by=1), partial(by=2)),
        (partial(by=1), partial()),
        (partial(by=1), shifted),
        (partial(sizes=(1, 2)), partial(sizes=(1, 3))),
        (partial(before=abs), partial(before=round)),
        (partial(before=partial(by=1)), partial(before=partial(by=2))),
        (partial(sizes=np.ones(2)), partial(sizes=None)),
        (Halved(), Doubled()),
        (np.max, np.min),
    ],
)
def test_other_arguments_variables_and_objects_make_other_functions(left, right):
    space = spaces.Box(-50, 50, (1,), np.int64)
    buffer = GoalBuffer(GRID, 10, goal=left, goal_space=space)
    other = GoalBuffer(GRID, 10, goal=right, goal_space=space)
    with pytest.raises(CheckpointError, match="goal"):
        other.set_checkpoint_state(buffer.get_checkpoint_state())
    same = GoalBuffer(GRID, 10, goal=pickle.loads(cloudpickle.dumps(left)), goal_space=space)
    same.set_checkpoint_state(buffer.get_checkpoint_state())


def test_random_numbers_of_the_users_space_are_not_drawn():
    space = spaces.Box(0, 1, (2,))
    same = spaces.Box(0, 1, (2,))
    for each in (space, same):
        each.seed(5)
    GoalBuffer(space, 10, goal=lambda seen: seen[:1])
    np.testing.assert_array_equal(space.sample(), same.sample())


def test_minus_zero_is_zero_and_goals_of_other_dtypes_are_cast():
    buffer = GoalBuffer(PLANE, 10, goal=lambda seen: np.round(seen))
    buffer.observe(np.array([[-0.2, 0.3], [0.1, -0.0]]))
    assert buffer.observations.tobytes() == np.zeros((1, 2)).tobytes()
    space = spaces.Box(0, 9, (1,), np.float32)
    buffer = GoalBuffer(PLANE, 10, goal=lambda seen: int(seen[0]), goal_space=space)
    buffer.observe(np.array([[3.4, 0.0]]))
    assert buffer.observations.dtype == np.float32
    assert buffer.observations.tolist() == [[3.0]]
    small = spaces.Box(0, 255, (2,), np.uint8)
    buffer = GoalBuffer(PLANE, 10, goal=lambda seen: (int(seen[0]), 200), goal_space=small)
    buffer.observe(np.array([[3.4, 0.0]]))
    assert buffer.observations.tolist() == [[3, 200]]


@pytest.mark.parametrize(
    ("space", "given", "message"),
    [
        (
            spaces.Box(0, 9, (2,), np.int64),
            [1, 2, 3],
            r"goal must return int64 of shape \(2,\), got int64 of \(3,\)",
        ),
        (spaces.Box(0, 9, (2,), np.int64), [1.0, 2.0], r"goal must return int64 .* got float64"),
        (spaces.Box(0, 9, (2,), np.int64), ["a", "b"], r"goal must return int64 .* got <U1"),
        (spaces.Box(0, 9, (2,)), [np.nan, 0.0], "goal must return finite numbers"),
        (spaces.Box(0, 9, (2,)), [1e300, 0.0], "goal must return finite numbers of float32"),
        (
            spaces.Box(0, 255, (1,), np.uint8),
            256,
            "goal must return numbers that uint8 holds, got 256",
        ),
        (
            spaces.Box(0, 255, (1,), np.uint8),
            -1,
            "goal must return numbers that uint8 holds, got -1",
        ),
        (spaces.Discrete(3), 3, "what goal returns must be of the goal space"),
        (spaces.MultiDiscrete([3, 2]), (0, 2), r"2 at \(1,\) is not in \[0, 1\]"),
        (spaces.MultiBinary(2), (0, 2), "what goal returns must be of the goal space"),
    ],
)
def test_a_function_that_returns_no_goal_is_refused(space, given, message):
    buffer = GoalBuffer(PLANE, 10, goal=lambda seen: given, goal_space=space)
    with pytest.raises(ValueError, match=message):
        buffer.observe(np.zeros((1, 2)))


def broken(observation):
    raise KeyError("door")


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"state_key": 3}, TypeError, "state_key must be a function, got 3"),
        ({"goal": "place"}, TypeError, "goal must be a function, got 'place'"),
        ({"reached": "near"}, TypeError, "reached must be a number or a function, got 'near'"),
        ({"reached": -0.5}, ValueError, r"reached must be a number in \[0, inf\), got -0.5"),
        ({"reached": math.nan}, ValueError, "reached must be a number in .*, got nan"),
        ({"reached": True}, ValueError, "reached must be a number in .*, got True"),
        ({"goal_space": GRID}, ValueError, r"goal_space=Box\(.*\) is given without goal"),
        (
            {"goal": place, "goal_space": spaces.Text(4)},
            TypeError,
            "goal_space cannot be a space of goals: expected one of Box, Discrete, MultiDiscrete",
        ),
        ({"goal": place, "goal_space": 4}, TypeError, "goal_space cannot be a space of goals"),
        (
            {"goal": place, "goal_space": spaces.Discrete(3, start=1)},
            TypeError,
            "goal_space cannot .*: expected values that start at 0, got Discrete",
        ),
        (
            {"goal": broken},
            ValueError,
            r"goal fails for a random observation, KeyError\('door'\): give goal_space, the space",
        ),
        ({"goal": lambda seen: "door"}, TypeError, "goal must return numbers, got <U4.*'door'"),
        ({"goal": lambda seen: None}, TypeError, "goal must return numbers, got object"),
        ({"goal": lambda seen: []}, TypeError, "goal_space cannot .* an array with elements"),
        (
            {"goal": lambda seen: [[1], [1, 2]]},
            ValueError,
            "goal fails for a random observation.*give goal_space",
        ),
        (
            {"goal": place, "held_out": np.zeros((1, 3), np.int64)},
            ValueError,
            r"held_out must be int64 of shape \(n, 2\), got int64 of \(1, 3\)",
        ),
        (
            {"goal": column, "goal_space": spaces.Discrete(3), "held_out": np.array([3])},
            ValueError,
            r"held_out must be of the goal space, held_out\[0\] is 3",
        ),
    ],
)
def test_bad_arguments_are_refused(kwargs, error, message):
    with pytest.raises(error, match=message):
        GoalBuffer(GRID, 10, **kwargs)


def is_high(observation):
    """Return whether the second number is 2 or more."""
    return observation[1] >= 2


def test_only_the_goals_of_the_list_are_goals(tmp_path):
    """As the guide has it: a condition is the one goal."""
    buffer = GoalBuffer(GRID, 10, goal=is_high, goal_list=[[1]])
    assert buffer.observations.tolist() == [[1]]
    assert buffer.state_ids.tolist() == [UNKNOWN]
    found = buffer.add(array_of([(0, 0, 0), (0, 2, 0), (0, 1, 0), (0, 5, 0)]))
    assert found.tolist() == [UNKNOWN, 0, UNKNOWN, 0]
    assert len(buffer) == 1
    assert buffer.state_ids.tolist() == [1]
    begin, states = buffer.achieving_states()
    assert (begin.tolist(), states.tolist()) == ([0, 2], [1, 3])
    buffer.save(tmp_path / "goals")
    loaded = GoalBuffer.load(tmp_path / "goals", GRID, goal=is_high, goal_list=[[1]])
    other = GoalBuffer(GRID, 10, goal=is_high, goal_list=[[1]])
    other.set_checkpoint_state(buffer.get_checkpoint_state())
    for each in (loaded, other, GoalBuffer(GRID, **buffer.config)):
        each.add(array_of([(3, 3, 0), (3, 0, 0)]))
        assert each.observations.tolist() == [[1]]
        assert (each.achieving_states()[1] >= 0).all()
    assert loaded.achieving_states()[1].tolist() == [1, 3, 4]


def test_the_list_of_goals_is_the_buffers_own():
    goals = np.array([[1, 2], [3, 4]])
    buffer = GoalBuffer(GRID, 10, goal=place, goal_list=goals)
    goals[:] = 0
    assert buffer.config["goal_list"].tolist() == [[1, 2], [3, 4]]
    # Numbers that the space rounds or writes otherwise are what goal would return.
    floats = GoalBuffer(
        PLANE, 10, goal=lambda seen: seen, goal_space=PLANE, goal_list=[[-0.0, 1], (2, 3)]
    )
    assert floats.add(np.array([[0.0, 1.0]])).tolist() == [0]


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({}, ValueError, "goal_list needs goal, the function that says what is achieved"),
        ({"goal": place, "goal_list": 5}, TypeError, "goal_list must be a sequence of goals"),
        ({"goal": place, "goal_list": []}, ValueError, "from 1 to 10 goals, got 0"),
        ({"goal": column, "goal_list": range(11)}, ValueError, "from 1 to 10 goals, got 11"),
        (
            {"goal": place, "goal_list": [[1, 2, 3]]},
            ValueError,
            r"goal_list must have int64 of shape \(2,\), got int64 of \(3,\)",
        ),
        (
            {"goal": column, "goal_space": spaces.Discrete(3), "goal_list": [0, 3]},
            ValueError,
            r"goal_list must be of the goal space, goal_list\[1\] is 3",
        ),
        (
            {"goal": column, "goal_space": spaces.Box(0, 9, (1,), np.int64), "goal_list": [0, 10]},
            ValueError,
            r"goal_list must be of the goal space, goal_list\[1\] is \[10\]",
        ),
        (
            {"goal": place, "goal_list": [[1, 2], [3, 4]], "held_out": np.array([[3, 4]])},
            ValueError,
            r"goal_list and held_out must have no goal in common, got \[3, 4\] in both",
        ),
    ],
)
def test_lists_that_have_no_goals_are_refused(kwargs, error, message):
    with pytest.raises(error, match=message):
        GoalBuffer(GRID, 10, **{"goal_list": [[1, 2]], **kwargs})


def test_states_become_goals_later_if_the_function_fails_first():
    has_failed = []

    def once_broken(observation):
        if not has_failed:
            has_failed.append(True)
            raise RuntimeError("not now")
        return observation[:2]

    space = spaces.Box(-20, 20, (2,), np.int64)
    buffer = GoalBuffer(GRID, 10, goal=once_broken, goal_space=space)
    with pytest.raises(RuntimeError, match="not now"):
        buffer.add(array_of([(1, 2, 3)]))
    assert buffer.add(array_of([(4, 5, 6)])).tolist() == [1]
    assert buffer.observations.tolist() == [[1, 2], [4, 5]]


def test_a_function_that_fails_for_random_observations_needs_a_space():
    buffer = GoalBuffer(
        GRID, 10, goal=lambda seen: {0: 4, 1: 5}[int(seen[0])], goal_space=spaces.Discrete(6)
    )
    assert buffer.add(array_of([(1, 0, 0), (0, 3, 3)])).tolist() == [0, 1]
    assert buffer.observations.tolist() == [5, 4]


@pytest.mark.parametrize(
    ("returned", "got"),
    [
        (lambda achieved: True, r"bool of \(\)"),
        (lambda achieved: np.ones((len(achieved), 2), bool), r"bool of \(2, 2\)"),
        (lambda achieved: np.ones(len(achieved)), r"float64 of \(2,\)"),
        (lambda achieved: np.ones(len(achieved) + 1, bool), r"bool of \(3,\)"),
        (lambda achieved: None, r"object of \(\)"),
    ],
)
def test_a_function_of_pairs_must_return_a_boolean_for_each(returned, got):
    buffer = GoalBuffer(GRID, 10, reached=lambda achieved, desired: returned(achieved))
    pair = array_of([(0, 0, 0), (1, 1, 1)])
    message = rf"reached must return booleans of shape \(2,\), one for each pair, got {got}"
    with pytest.raises(ValueError, match=message):
        buffer.is_reached(pair, pair)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=EXAMPLES_OF_A_KIND)
@given(rows.filter(len), st.randoms(use_true_random=False))
def test_what_reaches_what_is_the_same_for_single_goals_and_batches(kind, pairs, random):
    buffer = GoalBuffer(GRID, 50, **kind)
    observations = array_of(pairs)
    others = array_of(random.sample(pairs, len(pairs)))
    achieved, desired = buffer.achieved(observations), buffer.achieved(others)
    wanted = [reaches(kind, left, right) for left, right in zip(achieved, desired, strict=True)]
    np.testing.assert_array_equal(buffer.is_reached(achieved, desired), wanted)
    deep = [array.reshape(1, len(pairs), *buffer.shape) for array in (achieved, desired)]
    np.testing.assert_array_equal(buffer.is_reached(*deep), [wanted])
    assert buffer.is_reached(achieved[0], desired[0]).shape == ()
    assert buffer.is_reached(achieved[:0], desired[:0]).shape == (0,)
    # With their ids, the answer is the same.
    buffer.observe(observations[::2])
    ids = [buffer.look_up(array)[1] for array in (observations, others)]
    np.testing.assert_array_equal(buffer.is_reached(achieved, desired, *ids), wanted)


points = st.tuples(*[st.floats(-3, 3, width=32)] * 2)


@given(st.lists(points, min_size=1, max_size=8), st.floats(0, 4), st.data())
def test_nearby_pairs_are_exactly_those_of_all_pairs(centers, radius, data):
    """Some points are just as far from a goal as the tolerance, but for rounding."""
    angles = data.draw(st.lists(st.floats(0, 7), min_size=1, max_size=8))
    center = np.array(centers[0])
    around = [center + radius * np.array([math.cos(angle), math.sin(angle)]) for angle in angles]
    achieved = np.array([*around, *centers])
    desired = np.array(centers)
    achievement = Achievement(PLANE, reached=radius)
    places, goals = achievement.pairs(achieved, desired)
    wanted = [
        (goal, place)
        for goal in range(len(desired))
        for place in range(len(achieved))
        if achievement.reaches(achieved[place], desired[goal])
    ]
    assert sorted(zip(goals.tolist(), places.tolist(), strict=True)) == wanted
    assert (np.diff(goals) >= 0).all()


def test_too_many_numbers_for_a_tree_are_compared_in_parts(monkeypatch):
    rng = np.random.default_rng(0)
    achieved = rng.integers(9, size=(40, 2)).astype(np.float64)
    desired = rng.integers(9, size=(30, 2)).astype(np.float64)
    achievement = Achievement(PLANE, reached=2.0)
    by_tree = achievement.pairs(achieved, desired)
    monkeypatch.setattr(Achievement, "_pairs_within", None)
    # The 70 points have two numbers each.
    n_bytes = 2 * 70 * 2 * 8
    monkeypatch.setattr("sb3_manygoals.goals.achievement.share_of_memory", lambda _: n_bytes - 1)
    for found, expected in zip(achievement.pairs(achieved, desired), by_tree, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("reached", [None, 0.5, near])
def test_pairs_of_nothing_are_none(reached):
    achievement = Achievement(PLANE, reached=reached)
    some, none = np.zeros((3, 2)), np.zeros((0, 2))
    for pair in ((none, some), (some, none), (none, none)):
        assert [len(found) for found in achievement.pairs(*pair)] == [0, 0]


def test_pairs_of_many_are_compared_in_parts(monkeypatch):
    monkeypatch.setattr("sb3_manygoals.goals.achievement._PAIRS_AT_A_TIME", 3)
    line = np.arange(8.0)[:, None].repeat(2, axis=1)
    for reached in (None, 1.5, lambda left, right: np.abs(left - right).sum(axis=1) <= 2.0):
        places, goals = Achievement(PLANE, reached=reached).pairs(line, line)
        apart = 0 if reached is None else 1
        wanted = [(goal, place) for goal, place in np.ndindex(8, 8) if abs(goal - place) <= apart]
        assert list(zip(goals.tolist(), places.tolist(), strict=True)) == wanted


@pytest.mark.parametrize("n_numbers", [1, 7, 40, 2**22])
@pytest.mark.parametrize("reached", [None, 1.5, near])
def test_each_achievement_is_compared_with_each_goal_in_parts(monkeypatch, reached, n_numbers):
    most = []

    def reaches_and_counts(left, right):
        most.append(left.size)
        return near(left, right)

    monkeypatch.setattr("sb3_manygoals.goals.achievement._NUMBERS_AT_A_TIME", n_numbers)
    rng = np.random.default_rng(0)
    achieved = rng.integers(3, size=(9, 2)).astype(np.float64)
    desired = rng.integers(3, size=(5, 2)).astype(np.float64)
    achievement = Achievement(PLANE, reached=reaches_and_counts if reached is near else reached)
    found = achievement.reaches_each(achieved, desired)
    wanted = [[bool(achievement.reaches(left, right)) for right in desired] for left in achieved]
    assert found.tolist() == wanted
    assert max(most, default=0) <= max(n_numbers, 2)
    for none in (achievement.reaches_each(achieved[:0], desired), found[:0]):
        assert none.shape == (0, 5)
    assert achievement.reaches_each(achieved, desired[:0]).shape == (9, 0)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=EXAMPLES_OF_A_KIND)
@given(rows.filter(len))
def test_goals_have_the_same_number_if_they_are_the_same_goal(kind, pairs):
    buffer = GoalBuffer(GRID, 50, **{**kind, "reached": None})
    goals = buffer.achieved(array_of(pairs))
    numbers = buffer.number(goals)
    assert numbers.shape == (len(pairs),)
    assert (numbers >= 0).all()
    for left, right in np.ndindex(len(pairs), len(pairs)):
        same = bool(buffer.is_reached(goals[left], goals[right]))
        assert (numbers[left] == numbers[right]) == same


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4))))
def test_ranges_follow_each_other(pairs):
    first, lengths = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    wanted = [number for start, n in pairs for number in range(start, start + n)]
    assert ranges(first, lengths).tolist() == wanted


def test_a_full_buffer_still_knows_what_new_states_achieve():
    buffer = GoalBuffer(GRID, 2, goal=place)
    with pytest.warns(RuntimeWarning, match="the goal buffer is full with 2 goals"):
        state_ids, goal_ids = buffer.observe(array_of([(0, 0, 0), (1, 1, 0), (1, 1, 1), (2, 2, 0)]))
    assert state_ids.tolist() == [0, 1, UNKNOWN, UNKNOWN]
    assert goal_ids.tolist() == [0, 1, 1, UNKNOWN]
    assert buffer.look_up(array_of([(0, 0, 9)]))[1].tolist() == [0]


def test_achievements_that_were_held_out_and_never_met_are_named():
    held_out = np.array([[1, 1], [7, 7]])
    buffer = GoalBuffer(GRID, 10, held_out, goal=place)
    assert "2 of 2 held-out observations were never met" in buffer.describe_unmet()
    buffer.observe(array_of([(0, 0, 0), (1, 1, 0)]))
    assert buffer.observations.tolist() == [[0, 0]]
    assert "1 of 2 held-out observations were never met, the first is [7, 7]" in (
        buffer.describe_unmet()
    )
    buffer.observe(array_of([(7, 7, 0)]))
    assert buffer.describe_unmet() is None


def test_states_with_several_observations_do_not_tell_which_goals_of_a_list_were_achieved():
    columns = GoalBuffer(
        GRID, 10, goal=place, goal_list=[[1, 0], [1, 1]], state_key=lambda seen: seen[0]
    )
    columns.observe(array_of([(1, 0, 0)]))
    columns.observe(array_of([(1, 1, 0)]))
    assert columns.describe_unachieved() is None


def test_goals_of_a_list_that_nothing_achieves_are_named():
    listed = GoalBuffer(GRID, 10, goal=place, goal_list=[[7, 7], [8, 8]])
    assert listed.describe_unachieved() is None
    listed.observe(array_of([(0, 0, 0), (1, 1, 0)]))
    assert listed.describe_unachieved().startswith(
        "2 of 2 goals in goal_list were never achieved. The first is [7, 7], and one thing that "
        "was achieved is [0, 0]"
    )
    listed.observe(array_of([(7, 7, 1)]))
    assert listed.describe_unachieved().startswith(
        "1 of 2 goals in goal_list were never achieved. The first is [8, 8]"
    )
    listed.observe(array_of([(8, 8, 1)]))
    assert listed.describe_unachieved() is None
    spots = [[9.0, 9.0], [0.0, 0.5]]
    near = GoalBuffer(PLANE, 10, goal=lambda spot: spot, goal_list=spots, reached=1.0)
    near.observe(np.array([[7.0, 9.0]]))
    assert near.describe_unachieved().startswith("2 of 2 goals")
    near.observe(np.array([[0.0, 0.0]]))
    assert near.describe_unachieved().startswith("1 of 2 goals in goal_list were never achieved")
    near.observe(np.array([[8.5, 9.0]]))
    assert near.describe_unachieved() is None
    assert GoalBuffer(GRID, 10, goal=place).describe_unachieved() is None


def test_goals_that_known_ones_reach_are_not_unknown():
    buffer = GoalBuffer(PLANE, 10, np.array([[9.0, 9.0]]), reached=1.0)
    buffer.observe(np.array([[0.0, 0.0], [3.0, 3.0]]))
    assert buffer.describe_unknown(np.array([[0.5, 0.5], [3.0, 4.0], [9.0, 9.0]])) is None
    text = buffer.describe_unknown(np.array([[0.5, 0.5], [2.0, 2.0]]))
    assert text.startswith("1 of 2 goals are not known")
    assert "The first is [2.0, 2.0]" in text


def test_memory_counts_all_observations_that_are_kept_of_a_state():
    plain = GoalBuffer(PIXELS, 10).memory_to_come["goals"]
    keyed = GoalBuffer(PIXELS, 10, state_key=lambda seen: seen.sum()).memory_to_come["goals"]
    # 31 more pictures of 48 bytes for each state.
    assert keyed - plain == 10 * 31 * 48


def test_a_goal_of_the_space_may_be_asked_for_and_others_not():
    buffer = GoalBuffer(GRID, 10, goal=place, goal_space=spaces.Box(-2, 2, (2,), np.int64))
    buffer.observe(array_of([(9, 9, 0)]))
    # What was met may be outside.
    for goal in ([1, 1], [9, 9]):
        buffer.check_goals(np.array(goal), "goal", axes=0)
    message = r"goal must be of the goal space, goal is [5, 5]: 5 at (0,) is not in [-2, 2]"
    with pytest.raises(ValueError, match=re.escape(message)):
        buffer.check_goals(np.array([5, 5]), "goal", axes=0)


def test_a_state_shows_any_of_its_observations_as_a_goal():
    buffer = GoalBuffer(GRID, 10, state_key=column)
    buffer.observe(array_of([(1, 0, 0), (2, 0, 0), (1, 5, 5), (1, 7, 0)]))
    rng = np.random.default_rng(0)
    shown = buffer.sample_shown(np.zeros(100, np.int64), rng)
    assert np.unique(shown, axis=0).tolist() == [[1, 0, 0], [1, 5, 5], [1, 7, 0]]
    # The id stands for the first one.
    assert buffer[0].tolist() == [1, 0, 0]
    assert buffer.ids(array_of([(2, 9, 9)])).tolist() == [1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert buffer.is_reached(*array_of([(1, 1, 1), (1, 2, 2)]))
