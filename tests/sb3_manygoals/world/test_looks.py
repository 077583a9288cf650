"""States that are told apart by how they look."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_manygoals import GoalBuffer
from sb3_manygoals.packing import PackedSpace
from sb3_manygoals.world import UNKNOWN, LearnedStates
from sb3_manygoals.world import learned_states as learning
from sb3_manygoals.world.find_looks import find_looks
from sb3_manygoals.world.inputs import Inputs
from sb3_manygoals.world.looks import Looks
from sb3_manygoals.world.noise import Noise

_INPUTS = 40


def looks_of(capacity: int = 100) -> Looks:
    """Return looks of no state yet, with noise of variance 4 in all inputs."""
    noise = Noise(np.full(_INPUTS, 4.0, np.float32), np.array([6.0, 5.0]), np.ones(2))
    return Looks(noise, np.zeros(_INPUTS, np.float32), capacity)


def one_hot(states: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.float32]:
    """Return observations of states: 50 in one input, 0 in all others, with noise."""
    noise = rng.uniform(-2.0, 2.0, (len(states), _INPUTS)) * np.sqrt(3.0)
    seen: NDArray[np.float32] = (50.0 * np.eye(_INPUTS)[states] + noise).astype(np.float32)
    return seen


def test_that_a_new_state_inherits_what_it_shares_with_the_nearest_one() -> None:
    looks = looks_of()
    states = np.repeat(np.arange(2), 200)
    ids = looks.add(one_hot(states, np.random.default_rng(0)))
    np.testing.assert_array_equal(ids, states)
    new = 50.0 * np.eye(_INPUTS, dtype=np.float32)[2]
    # Noise of 3 is within what is inherited.
    new[10] = 3.0
    assert looks.add(new[None])[0] == 2
    means = looks.means[2]
    # The new observation counts as one of many.
    assert abs(means[10]) < 1.0
    np.testing.assert_allclose(means[:3], [0.0, 0.0, 50.0], atol=2.0)


def test_that_the_nearest_state_is_that_of_the_least_sum_of_squares() -> None:
    rng = np.random.default_rng(0)
    variances = rng.uniform(1.0, 9.0, _INPUTS).astype(np.float32)
    looks = Looks(Noise(variances, np.full(2, 1e9), np.ones(2)), np.zeros(_INPUTS, np.float32), 50)
    means = rng.normal(size=(50, _INPUTS)).astype(np.float32) * 20.0
    state = looks.get_state()
    looks = Looks.of_state(
        {
            **state,
            "means": means / np.sqrt(variances),
            "counts": np.full(means.shape, 8.0, np.float32),
            "n_seen": np.full(len(means), 8.0, np.float32),
        }
    )
    rows = rng.normal(size=(30, _INPUTS)).astype(np.float32) * 20.0
    squares = (np.square(rows[:, None] - means) / variances).sum(axis=2)
    np.testing.assert_array_equal(looks.ids(rows), squares.argmin(axis=1))


def test_that_errors_of_many_inputs_do_not_hide_a_state_of_which_less_is_known() -> None:
    n_inputs = 400
    noise = Noise(np.ones(n_inputs, np.float32), np.array([6.0, 5.0]), np.ones(2))
    truth = np.zeros((2, n_inputs), np.float32)
    truth[0, 7] = 5.0
    known = Looks(noise, np.zeros(n_inputs, np.float32), 10).get_state()
    errors = np.tile([[0.0], [0.3]], n_inputs).astype(np.float32)
    looks = Looks.of_state(
        {
            **known,
            "means": truth + errors,
            "counts": np.tile([[64.0], [8.0]], n_inputs),
            "n_seen": np.array([64.0, 8.0]),
        }
    )
    # The sum of squares is 25 to the first state, and 36 to the second one.
    np.testing.assert_array_equal(looks.nearest(truth[1:]), [0])
    np.testing.assert_array_equal(looks.ids(truth), [0, 1])


def test_that_what_was_inherited_in_error_is_put_right_soon() -> None:
    looks = looks_of()
    rng = np.random.default_rng(0)
    looks.add(one_hot(np.zeros(100, np.int64), rng))
    # Input 7 is 6 in the new state, but at first noise makes it look as in the other one.
    seen = np.zeros((5, _INPUTS), np.float32)
    seen[:, 3] = 50.0
    seen[:, 7] = 6.0
    seen[0, 7] = 3.3
    np.testing.assert_array_equal([looks.add(row[None])[0] for row in seen], np.ones(5))
    assert looks.means[1, 7] > 4.0


def test_that_what_looks_like_no_state_is_unknown_until_it_is_taken_in() -> None:
    rng = np.random.default_rng(0)
    looks = looks_of()
    assert (looks.ids(one_hot(np.arange(3), rng)) == UNKNOWN).all()
    looks.add(one_hot(np.arange(5), rng))
    seen = one_hot(np.arange(8), rng)
    np.testing.assert_array_equal(looks.ids(seen), [0, 1, 2, 3, 4, UNKNOWN, UNKNOWN, UNKNOWN])
    assert len(looks) == 5
    np.testing.assert_array_equal(looks.add(seen), np.arange(8))


def test_that_observations_get_one_id_together_and_alone() -> None:
    rng = np.random.default_rng(0)
    together, alone = looks_of(), looks_of()
    seen = one_hot(rng.integers(_INPUTS, size=600), rng)
    ids = together.add(seen)
    np.testing.assert_array_equal(ids, [alone.add(row[None])[0] for row in seen])
    np.testing.assert_array_equal(together.ids(seen), ids)


def test_that_a_full_table_takes_in_no_state_and_knows_what_it_knew() -> None:
    rng = np.random.default_rng(0)
    looks = looks_of(capacity=6)
    states = np.arange(9)
    expected = np.where(states < 6, states, UNKNOWN)
    np.testing.assert_array_equal(looks.add(one_hot(states, rng)), expected)
    np.testing.assert_array_equal(looks.add(one_hot(states, rng)), expected)


def test_that_what_is_known_can_be_kept() -> None:
    rng = np.random.default_rng(0)
    looks = looks_of()
    looks.add(one_hot(rng.integers(20, size=300), rng))
    again = Looks.of_state(looks.get_state())
    more = one_hot(rng.integers(30, size=300), rng)
    np.testing.assert_array_equal(again.add(more), looks.add(more))
    # What was learned since is the same to the last bit.
    for name, value in looks.get_state().items():
        np.testing.assert_equal(again.get_state()[name], value, err_msg=name)
    np.testing.assert_array_equal(again._squares[: len(again)], looks._squares[: len(looks)])
    state = looks.get_state()
    with pytest.raises(ValueError, match="must have as many variances, means and counts"):
        Looks.of_state({**state, "counts": state["counts"][1:]})
    with pytest.raises(ValueError, match="looks of at most 3 states"):
        Looks.of_state({**state, "capacity": 3})
    for name, wrong in (("variances", 0.0), ("limits", np.nan), ("means", np.inf), ("n_seen", -1)):
        with pytest.raises(ValueError, match="finite means, two limits"):
            Looks.of_state({**state, name: np.full_like(state[name], wrong)})
    # Loaded looks share no memory with the file.
    again = Looks.of_state(state)
    state["variances"][:] = 7.0
    np.testing.assert_array_equal(again.noise.variances, looks.noise.variances)
    again = Looks.of_state(looks.get_state())
    looks.keep(np.array([4, 2]))
    np.testing.assert_array_equal(looks.means, again.means[[4, 2]])


class Corridor:
    """Pictures of a corridor of six cells with a lamp at its end, which may be on."""

    space = spaces.Box(0, 255, (6, 6, 1), np.uint8)

    @staticmethod
    def look(cells: NDArray[np.int64], lamp: bool, rng: np.random.Generator) -> NDArray[np.uint8]:
        """Return noisy pictures of these cells."""
        seen = np.full((len(cells), 6, 6, 1), 60, np.int64)
        seen[np.arange(len(cells)), 0, cells] = 180
        seen[np.arange(len(cells)), 1, cells] = 120
        seen[:, 5, 5] = 200 if lamp else 60
        return (seen + rng.integers(-20, 21, seen.shape)).astype(np.uint8)


def walk(rng: np.random.Generator, n: int = 3_000) -> tuple[NDArray[np.int64], ...]:
    """Return random steps in the corridor: the cells, and the actions."""
    actions = rng.integers(2, size=n)
    cells = np.zeros(n + 1, np.int64)
    for step, action in enumerate(actions):
        cells[step + 1] = np.clip(cells[step] + 2 * action - 1, 0, 5)
    return cells, actions


def learned(
    pictures_seen: NDArray[np.uint8], actions: NDArray[np.int64], capacity: int = 100
) -> LearnedStates:
    """Return states that were learned from these steps."""
    states = LearnedStates(Corridor.space, capacity, n_features=16, n_hidden=64, n_updates=50)
    n = len(actions)
    states.learn(pictures_seen, np.arange(n), actions, np.arange(1, n + 1), 2)
    return states


@pytest.fixture(scope="module")
def corridor() -> LearnedStates:
    """States that were learned while the lamp was off."""
    rng = np.random.default_rng(0)
    cells, actions = walk(rng)
    return learned(Corridor.look(cells, False, rng), actions)


def test_that_a_learned_state_is_held_out_however_it_looks() -> None:
    rng = np.random.default_rng(0)
    cells, actions = walk(rng)
    seen = Corridor.look(cells, False, rng)
    held_out = Corridor.look(np.array([2]), False, rng)
    goals = GoalBuffer(
        Corridor.space,
        100,
        held_out,
        state_class=LearnedStates,
        state_kwargs={"n_features": 16, "n_hidden": 64, "n_updates": 50},
    )
    n = len(actions)
    assert isinstance(goals.states, LearnedStates)
    goals.states.learn(seen, np.arange(n), actions, np.arange(1, n + 1), 2)
    goals.begin_anew()
    assert len(goals.states) == 6
    assert len(goals) == 5
    assert (goals.ids(seen[cells == 2]) == UNKNOWN).all()
    assert not goals.is_held_out(np.array(goals.observations)).any()


def test_that_states_are_those_of_the_world(corridor: LearnedStates) -> None:
    assert corridor.looks is not None
    assert corridor.encoder is None
    assert len(corridor) == 6
    rng = np.random.default_rng(1)
    cells = np.tile(np.arange(6), 50)
    ids = corridor.ids(Corridor.look(cells, False, rng))
    assert len(set(zip(cells.tolist(), ids.tolist(), strict=True))) == 6
    assert len(set(ids.tolist())) == 6
    # A center is the mean of all observations of a state.
    expected = Corridor.look(cells, False, rng).reshape(50, 6, -1).mean(axis=0)
    np.testing.assert_allclose(corridor.centers[ids[:6]], expected, atol=10.0)
    np.testing.assert_array_equal(corridor.ids(corridor.observations), np.arange(6))


def test_that_states_are_found_that_were_never_seen_while_learning() -> None:
    rng = np.random.default_rng(0)
    cells, actions = walk(rng)
    states = learned(Corridor.look(cells, False, rng), actions)
    cells = np.tile(np.arange(6), 20)
    off = states.ids(Corridor.look(cells, False, rng))
    # Nobody is to take these in.
    assert (states.ids(Corridor.look(cells, True, rng)) == UNKNOWN).all()
    assert len(states) == 6
    states.add(Corridor.look(cells[:6], True, rng))
    on = states.ids(Corridor.look(cells, True, rng))
    np.testing.assert_array_equal(on, np.tile(on[:6], 20))
    assert set(on.tolist()) == set(range(6, 12))
    np.testing.assert_array_equal(states.ids(Corridor.look(cells, False, rng)), off)
    again = LearnedStates(Corridor.space, 100, n_features=16, n_hidden=64)
    again.set_checkpoint_state(states.get_checkpoint_state())
    np.testing.assert_array_equal(again.ids(Corridor.look(cells, True, rng)), on)


def test_that_a_state_that_was_seen_a_few_times_is_told_apart() -> None:
    rng = np.random.default_rng(0)
    cells, actions = walk(rng)
    seen = Corridor.look(cells, False, rng)
    rare = np.arange(700, 705)
    seen[rare] = Corridor.look(cells[rare], True, rng)
    states = learned(seen, actions)
    assert len(states) == 6 + len(np.unique(cells[rare]))
    assert (states.ids(seen[rare]) != UNKNOWN).all()
    assert not set(states.ids(seen[rare]).tolist()) & set(states.ids(seen[800:]).tolist())
    assert (states.get_checkpoint_state()["n_seen"] > 0).all()


def test_that_states_are_split_which_single_observations_do_not_tell_apart() -> None:
    # With normal noise, a lamp that differs by 5 deviations in one pixel differs little more than
    # some of 36 pixels do by chance. But the mean of many observations shows it.
    rng = np.random.default_rng(0)
    cells, actions = walk(rng, 6_000)
    lamps = np.zeros(len(cells), np.int64)
    for step, turns in enumerate(rng.random(len(actions)) < 0.02):
        lamps[step + 1] = lamps[step] ^ turns
    clean = np.zeros((len(cells), 36), np.float32)
    clean[np.arange(len(cells)), cells] = 60.0
    clean[:, 35] = 5.0 * lamps
    seen = clean + rng.standard_normal(clean.shape).astype(np.float32)
    n = len(actions)
    inputs = Inputs(spaces.Box(-100.0, 100.0, (36,), np.float32))
    found = find_looks(seen, (np.arange(n), np.arange(1, n + 1)), inputs, 100, rng)
    assert found is not None
    truth = 2 * cells + lamps
    counts = np.zeros((len(found.looks), 12))
    np.add.at(counts, (found.ids, truth), 1)
    # No rule errs in less than .6% of the observations.
    assert counts.max(axis=1).sum() / len(truth) > 0.98
    assert len(found.looks) <= 16


def test_that_learning_again_keeps_what_was_found(corridor: LearnedStates) -> None:
    rng = np.random.default_rng(0)
    cells, actions = walk(rng)
    seen = Corridor.look(cells, False, rng)
    states = learned(seen, actions)
    states.add(Corridor.look(np.arange(6), True, rng))
    n = len(actions)
    ids = states.learn(seen, np.arange(n), actions, np.arange(1, n + 1), 2)
    # Those of which nothing was seen this time are dropped.
    assert len(states) == 6
    assert len(set(zip(cells.tolist(), ids.tolist(), strict=True))) == 6
    assert len(set(ids.tolist())) == 6


def test_that_all_may_look_new_to_a_full_table() -> None:
    rng = np.random.default_rng(0)
    cells, actions = walk(rng, 1_000)
    seen = Corridor.look(cells, False, rng)
    states = learned(seen, actions, capacity=6)
    seen[:, 3:] += 75
    n = len(actions)
    ids = states.learn(seen, np.arange(n), actions, np.arange(1, n + 1), 2)
    assert len(states) == 6
    assert len(set(zip(cells.tolist(), ids.tolist(), strict=True))) == 6
    assert len(set(ids.tolist())) == 6


def test_that_new_noise_is_measured_anew() -> None:
    rng = np.random.default_rng(0)
    cells, actions = walk(rng)
    states = learned(Corridor.look(cells, False, rng), actions)
    n = len(actions)
    loud = Corridor.look(cells, False, rng).astype(np.int64)
    loud += rng.integers(-20, 21, loud.shape)
    loud = np.clip(loud, 0, 255).astype(np.uint8)
    ids = states.learn(loud, np.arange(n), actions, np.arange(1, n + 1), 2)
    assert states.looks is not None
    assert len(states) <= 8
    counts = np.zeros((len(states), 6))
    np.add.at(counts, (ids, cells), 1)
    assert counts.max(axis=0).sum() / len(cells) > 0.98


def test_that_inputs_of_a_small_unit_count() -> None:
    """Such as those of a magnetometer in tesla, beside others."""
    rng = np.random.default_rng(0)
    cells, actions = walk(rng, 2_000)
    seen = rng.uniform(-0.1, 0.1, (len(cells), 40))
    seen[np.arange(len(cells)), cells] += 1.0
    # Only these show the first three cells.
    seen[:, :3] *= 1e-7
    n = len(actions)
    inputs = Inputs(spaces.Box(-np.inf, np.inf, (40,), np.float32))
    steps = (np.arange(n), np.arange(1, n + 1))
    found = find_looks(seen.astype(np.float32), steps, inputs, 100, rng)
    assert found is not None
    assert len(set(zip(cells.tolist(), found.ids.tolist(), strict=True))) == 6
    assert len(set(found.ids.tolist())) == 6


@pytest.mark.parametrize("offset", [0.0, 1.7e9])
def test_that_looks_that_were_saved_have_the_room_that_they_are_given(offset: float) -> None:
    rng = np.random.default_rng(0)
    cells, actions = walk(rng, 2_000)
    seen = rng.uniform(-0.1, 0.1, (len(cells), 40)) + offset
    seen[np.arange(len(cells)), cells] += 1.0
    n = len(actions)
    space = spaces.Box(-np.inf, np.inf, (40,), np.float64)
    states = LearnedStates(space, 6)
    states.learn(seen, np.arange(n), actions, np.arange(1, n + 1), 2)
    assert states.looks is not None
    assert len(states) == 6
    state = states.get_checkpoint_state()
    restored = LearnedStates(space, 50)
    restored.set_checkpoint_state(state | {"capacity": 50})
    np.testing.assert_array_equal(restored.ids(seen), states.ids(seen))
    means = [seen[states.ids(seen) == number].mean(axis=0) for number in range(6)]
    np.testing.assert_allclose(states.centers, means, rtol=1e-6, atol=0.1)
    new = np.full((1, 40), offset)
    new[0, 30] += 1.0
    assert states.add(new).tolist() == [UNKNOWN]
    assert restored.add(new).tolist() == [6]
    with pytest.raises(ValueError, match=r"learned_offset must be of shape \(40,\), got \(3,\)"):
        restored.set_checkpoint_state(state | {"learned_offset": np.zeros(3)})


def test_that_offsets_are_of_numbers_that_vary_a_little_around_a_large_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((400, 1))
    parts = {
        # In order: usual, far, constant, and constant but for errors of rounding.
        "floats": np.concatenate([noise, noise + 1e6, 0 * noise + 7.0, 5 + 1e-12 * noise], axis=1),
        "narrow": (noise + 1e6).astype(np.float32),
        "time": (1_700_000_000 + np.arange(400)[:, None]).astype(np.int64),
    }
    space = PackedSpace(
        spaces.Dict(
            {
                name: spaces.Box(-np.inf, np.inf, rows.shape[1:], rows.dtype.type)
                for name, rows in parts.items()
                if name != "time"
            }
            | {"time": spaces.Box(0, 2**62, (1,), np.int64)}
        )
    )
    inputs = Inputs(space)
    packed = space.pack(parts)
    inputs.fit_offset(packed)
    assert (inputs.offset > 1e3).tolist() == [False, True, False, False, False, True]
    assert (inputs.offset[[0, 2, 3, 4]] == 0.0).all()
    flat = inputs.flat(packed)
    np.testing.assert_allclose(flat[:, 1] - flat[:, 1].mean(), noise[:, 0], atol=0.1)
    assert len(np.unique(flat[:, 5])) == 400
    # Of large observations, a few are enough.
    monkeypatch.setattr("sb3_manygoals.world.inputs._NUMBERS_TO_FIT", 12)
    inputs.fit_offset(packed)
    assert inputs.offset[5] == parts["time"][[0, -1]].mean()


def test_that_large_constants_do_no_harm() -> None:
    rng = np.random.default_rng(0)
    cells, actions = walk(rng, 2_000)
    seen = np.full((len(cells), 40), 1_000.0, np.float32)
    seen[:, :36] = rng.uniform(-0.1, 0.1, (len(cells), 36))
    seen[np.arange(len(cells)), cells] += 1.0
    n = len(actions)
    inputs = Inputs(spaces.Box(-np.inf, np.inf, (40,), np.float32))
    found = find_looks(seen, (np.arange(n), np.arange(1, n + 1)), inputs, 100, rng)
    assert found is not None
    assert len(set(zip(cells.tolist(), found.ids.tolist(), strict=True))) == 6
    assert len(set(found.ids.tolist())) == 6
    np.testing.assert_array_equal(found.looks.ids(seen), found.ids)


def test_that_a_switch_beside_a_picture_counts() -> None:
    space = PackedSpace(spaces.Dict({"picture": Corridor.space, "switch": spaces.MultiBinary(1)}))
    rng = np.random.default_rng(0)
    cells, actions = walk(rng)
    switch = (np.arange(len(cells)) // 50 % 2).astype(np.int8)[:, None]
    seen = space.pack({"picture": Corridor.look(cells, False, rng), "switch": switch})
    states = LearnedStates(space, 100)
    n = len(actions)
    ids = states.learn(seen, np.arange(n), actions, np.arange(1, n + 1), 2)
    assert states.looks is not None
    truth = 2 * cells + switch[:, 0]
    assert len(set(zip(truth.tolist(), ids.tolist(), strict=True))) == len(states) == 12


@pytest.mark.parametrize("share", [0.5, 1.0])
@pytest.mark.parametrize("capacity", [50, 2_000])
def test_that_codes_are_used_where_looks_hardly_recur(share: float, capacity: int) -> None:
    rng = np.random.default_rng(0)
    cells, actions = walk(rng, 1_000)
    seen = Corridor.look(cells, False, rng)
    # In such a share of the pictures three of the last 24 pixels are lit, others each time.
    for row in np.flatnonzero(rng.random(len(seen)) < share):
        seen[row].reshape(-1)[12 + rng.choice(24, 3, replace=False)] = 250
    states = learned(seen, actions, capacity)
    assert states.looks is None
    assert states.encoder is not None


def test_that_codes_are_used_where_pictures_are_brighter_from_time_to_time() -> None:
    rng = np.random.default_rng(0)
    cells, actions = walk(rng, 1_000)
    seen = Corridor.look(cells, False, rng) * rng.uniform(0.6, 1.0, (1_001, 1, 1, 1))
    assert learned(seen.astype(np.uint8), actions).looks is None


def test_that_larger_pictures_have_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    cells, actions = walk(rng, 500)
    seen = Corridor.look(cells, False, rng)
    with monkeypatch.context() as patched:
        patched.setattr("sb3_manygoals.world.find_looks._MOST_INPUTS", 35)
        assert learned(seen, actions).looks is None
    # Six states of 36 numbers would be too much.
    monkeypatch.setattr("sb3_manygoals.world.find_looks._MOST_NUMBERS", 200)
    assert learned(seen, actions).looks is None


def test_that_nothing_has_changed_if_learning_is_interrupted(
    corridor: LearnedStates, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(3)
    cells, actions = walk(rng, 500)
    seen = Corridor.look(cells, False, rng)
    before = corridor.get_checkpoint_state()
    fresh = LearnedStates(Corridor.space, 100, n_features=16, n_hidden=64, n_updates=20)
    fresh.add(seen[:5])

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    for name in ("_show", "_use_looks"):
        with monkeypatch.context() as patched:
            patched.setattr(learning.LearnedStates, name, interrupted)
            for states in (corridor, fresh):
                with pytest.raises(KeyboardInterrupt):
                    states.learn(seen, np.arange(500), actions, np.arange(1, 501), 2)
    after = corridor.get_checkpoint_state()
    assert before.keys() == after.keys()
    for name, value in before.items():
        np.testing.assert_equal(after[name], value, err_msg=name)
    assert not fresh.is_known
    assert len(fresh) == 5


def test_that_looks_of_other_pictures_are_refused(corridor: LearnedStates) -> None:
    other = LearnedStates(spaces.Box(0, 255, (5, 5, 1), np.uint8), 100)
    state = corridor.get_checkpoint_state()
    with pytest.raises(ValueError, match="looks of 36 inputs, these states have 25"):
        other.set_checkpoint_state(state)
    del state["learned_look_counts"]
    with pytest.raises(ValueError, match="learned states without 'counts'"):
        LearnedStates(Corridor.space, 100).set_checkpoint_state(state)
