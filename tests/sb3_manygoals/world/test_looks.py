"""What is told by how states look."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_manygoals.world import UNKNOWN, LearnedStates
from sb3_manygoals.world.looks import Looks

_STATES = 40
_INPUTS = 60
_KEPT = 32


def flat(observations: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return observations as numbers, which they are."""
    return observations


def pictures(rng: np.random.Generator, brightness: float = 0.0) -> NDArray[np.float32]:
    """
    Return examples of states whose first 40 inputs are one-hot, with noise in all inputs.

    :param brightness: deviation of what is added to all inputs of an example alike
    """
    clean = np.concatenate([np.eye(_STATES), np.ones((_STATES, _INPUTS - _STATES))], axis=1)
    noise = rng.uniform(-0.1, 0.1, (_STATES, _KEPT, _INPUTS))
    noise += brightness * rng.standard_normal((_STATES, _KEPT, 1))
    return (clean[:, None] + noise).astype(np.float32)


def fitted(examples: NDArray[np.float32]) -> Looks:
    """Return how states look of which these are the examples."""
    looks = Looks(_INPUTS)
    looks.fit(examples, np.full(len(examples), _KEPT), flat)
    return looks


def test_that_differences_are_means_of_the_eight_inputs_that_differ_most() -> None:
    looks = Looks(10)
    looks.limit = 1.0
    looks.add(np.zeros(10, np.float32))
    looks.add(np.ones(10, np.float32))
    row = np.arange(10, dtype=np.float32)
    # Squares of 2 to 9 are 284, and of 1 to 8 they are 204. A mean of one has noise of its own.
    expected = [284 / 8 / 2, 204 / 8 / 2]
    assert looks.differences(np.stack([row, row]), np.arange(2)) == pytest.approx(expected)
    looks.update(np.full((1, 10), 2.0, np.float32), np.array([0]))
    # The mean is 1 now, of two observations.
    assert looks.differences(row[None], np.array([0])) == pytest.approx([204 / 8 / 1.5])
    # Of fewer inputs, all are compared.
    few = Looks(2)
    few.limit = 1.0
    few.add(np.zeros(2, np.float32))
    assert few.differences(np.array([[3.0, 4.0]], np.float32), np.array([0])) == [25 / 2 / 2]
    looks.set(1, np.zeros((4, 10), np.float32))
    assert looks.differences(row[None], np.array([1])) == pytest.approx([284 / 8 / 1.25])


def test_that_noise_is_not_strange_and_a_small_change_is() -> None:
    rng = np.random.default_rng(0)
    looks = fitted(pictures(rng))
    others = pictures(rng)
    ids = np.repeat(np.arange(_STATES), _KEPT)
    rows = others.reshape(-1, _INPUTS)
    assert (looks.differences(rows, ids) <= looks.limit).all()
    # Two of sixty inputs change by half of what tells states apart.
    rows[:, -2:] -= 0.5
    assert (looks.differences(rows, ids) > looks.limit).all()


def test_that_nothing_is_strange_where_inputs_depend_on_each_other() -> None:
    looks = fitted(pictures(np.random.default_rng(0), brightness=0.2))
    assert looks.limit == np.inf
    examples = pictures(np.random.default_rng(1))
    assert not list(looks.groups(examples, np.full(_STATES, _KEPT), flat))


def test_that_nothing_is_strange_where_one_of_many_things_is_seen_at_a_time() -> None:
    rng = np.random.default_rng(0)
    examples = pictures(rng)
    # A dot is somewhere in each picture.
    dots = rng.integers(_INPUTS, size=(_STATES, _KEPT, 1))
    np.put_along_axis(examples, dots, 2.0, axis=2)
    assert fitted(examples).limit == np.inf


@pytest.mark.parametrize(("n_states", "n_inputs"), [(4, _INPUTS), (_STATES, 29)])
def test_that_nothing_is_strange_if_little_is_known(n_states: int, n_inputs: int) -> None:
    looks = Looks(n_inputs)
    examples = pictures(np.random.default_rng(0))[:n_states, :, -n_inputs:]
    looks.fit(examples, np.full(n_states, _KEPT), flat)
    assert looks.limit == np.inf


def test_that_examples_of_several_states_are_grouped() -> None:
    rng = np.random.default_rng(0)
    examples = pictures(rng)
    # State 3 has nine examples of state 5 and twelve of state 7.
    examples[3, 4:13] = examples[5, :9]
    examples[3, 20:] = examples[7, :12]
    looks = fitted(examples)
    ((state, labels),) = looks.groups(examples, np.full(_STATES, _KEPT), flat)
    assert state == 3
    true = np.zeros(_KEPT, np.int64)
    true[4:13] = 1
    true[20:] = 2
    for group in range(3):
        assert len(np.unique(labels[true == group])) == 1
    assert len(np.unique(labels)) == 3


def test_that_groups_end_where_all_examples_are_equally_far_from_each_other() -> None:
    looks = Looks(_INPUTS)
    looks.limit = 1.0
    looks._widest = 0.0
    examples = 7.3 * np.eye(_INPUTS, dtype=np.float32)[None, :8]
    ((state, labels),) = looks.groups(examples, np.array([8]), flat)
    assert state == 0
    assert len(np.unique(labels)) > 1


@pytest.mark.parametrize("n_kept", [9, _KEPT])
def test_that_pure_states_stay_whole(n_kept: int) -> None:
    examples = pictures(np.random.default_rng(0))
    looks = fitted(examples)
    assert looks.can_tell
    assert not list(looks.groups(examples, np.full(_STATES, n_kept), flat))


def test_that_nothing_is_told_where_half_of_the_states_have_more_noise() -> None:
    examples = pictures(np.random.default_rng(0))
    clean = examples.mean(axis=1, keepdims=True)
    examples[1::2] = (clean + 3.0 * (examples - clean))[1::2]
    assert not fitted(examples).can_tell


def test_that_nothing_is_told_where_most_states_have_no_noise() -> None:
    examples = pictures(np.random.default_rng(0))
    examples[:35] = examples[:35, :1]
    looks = fitted(examples)
    assert looks.limit == np.inf
    assert not list(looks.groups(examples, np.full(_STATES, _KEPT), flat))


def test_that_what_is_known_can_be_kept() -> None:
    looks = fitted(pictures(np.random.default_rng(0)))
    looks.add(np.zeros(_INPUTS, np.float32))
    state = looks.get_state()
    again = Looks.of_state(state)
    assert len(again) == len(looks) == _STATES + 1
    rows = pictures(np.random.default_rng(1))[:, 0]
    ids = np.arange(_STATES)
    assert (again.differences(rows, ids) == looks.differences(rows, ids)).all()
    assert again.limit == looks.limit
    with pytest.raises(ValueError, match="41 states and 60 inputs must have as many means"):
        Looks.of_state({**state, "means": state["means"][1:]})


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
    states = LearnedStates(Corridor.space, capacity, n_features=16, n_hidden=64, n_updates=400)
    n = len(actions)
    states.learn(pictures_seen, np.arange(n), actions, np.arange(1, n + 1), 2)
    return states


@pytest.fixture(scope="module")
def corridor() -> LearnedStates:
    """States that were learned while the lamp was off."""
    rng = np.random.default_rng(0)
    cells, actions = walk(rng)
    return learned(Corridor.look(cells, False, rng), actions)


def test_that_states_are_found_that_the_encoder_never_saw(corridor: LearnedStates) -> None:
    rng = np.random.default_rng(1)
    cells = np.tile(np.arange(6), 20)
    off = corridor.ids(Corridor.look(cells, False, rng))
    assert len(np.unique(off)) == 6
    # Nobody is to take these in.
    n_states = len(corridor)
    assert (corridor.ids(Corridor.look(cells, True, rng)) == UNKNOWN).all()
    assert len(corridor) == n_states
    corridor.add(Corridor.look(cells[:6], True, rng))
    on = corridor.ids(Corridor.look(cells, True, rng))
    assert len(corridor) == n_states + 6
    # The code of a lamp that the encoder never saw may be far from all that it knows.
    assert (on == UNKNOWN).mean() < 0.1
    for cell in range(6):
        (found,) = np.unique(on[(cells == cell) & (on != UNKNOWN)])
        assert found >= n_states
    assert len(np.unique(on[on != UNKNOWN])) == 6
    # Those with the lamp off are what they were.
    assert (corridor.ids(Corridor.look(cells, False, rng)) == off).all()


def test_that_found_states_survive_a_checkpoint(corridor: LearnedStates) -> None:
    rng = np.random.default_rng(2)
    on = Corridor.look(np.arange(6), True, rng)
    ids = corridor.add(on)
    again = LearnedStates(Corridor.space, 100, n_features=16, n_hidden=64, n_updates=400)
    again.set_checkpoint_state(corridor.get_checkpoint_state())
    pictures_seen = Corridor.look(np.arange(6), True, rng)
    assert (again.ids(pictures_seen) == ids).all()
    assert (again.add(pictures_seen) == corridor.add(pictures_seen)).all()
    damaged = corridor.get_checkpoint_state()
    damaged["learned_roots"] = damaged["learned_roots"][1:]
    with pytest.raises(
        ValueError, match="roots of 12 states and looks of 13 states with 36 inputs"
    ):
        again.set_checkpoint_state(damaged)


def test_that_looks_are_given_up_where_most_strange_ones_are_seen_once() -> None:
    rng = np.random.default_rng(0)
    cells, actions = walk(rng)
    seen = Corridor.look(cells, False, rng)
    # In some pictures, three pixels of 36 are lighter, others each time.
    rows = rng.choice(len(seen), 150, replace=False)
    for row in rows:
        seen[row].reshape(-1)[rng.choice(36, 3, replace=False)] = 150
    states = learned(seen, actions, capacity=500)
    assert len(states) < 100
    assert not states.get_checkpoint_state()["learned_look_limit"] < np.inf


def test_that_each_state_has_an_observation_of_its_own(corridor: LearnedStates) -> None:
    rng = np.random.default_rng(0)
    cells, actions = walk(rng)
    lamp = Corridor.look(cells, True, rng)
    seen = Corridor.look(cells, False, rng)
    seen[:200] = lamp[:200]
    states = learned(seen, actions)
    assert (states.get_checkpoint_state()["n_seen"] > 0).all()
    assert (states.observations.reshape(len(states), -1).max(axis=1) > 0).all()
    # Those with the lamp on are other states than those with the lamp off.
    assert not set(states.ids(lamp[:200]).tolist()) & set(states.ids(seen[200:400]).tolist())


def test_that_a_full_table_takes_in_no_state_and_knows_what_it_knew() -> None:
    rng = np.random.default_rng(0)
    cells, actions = walk(rng)
    states = learned(Corridor.look(cells, False, rng), actions, capacity=6)
    assert len(states) == 6
    some = np.arange(6)
    off = states.ids(Corridor.look(some, False, rng))
    assert (off != UNKNOWN).all()
    on = states.add(Corridor.look(some, True, rng))
    assert len(states) == 6
    assert set(on.tolist()) <= {UNKNOWN, *range(6)}
    assert (states.ids(Corridor.look(some, False, rng)) == off).all()


def test_that_observations_get_one_id_together_and_alone() -> None:
    rng = np.random.default_rng(0)
    cells, actions = walk(rng)
    seen = Corridor.look(cells, False, rng)
    together, alone = learned(seen, actions), learned(seen, actions)
    # These are far from all codes, and look unlike each other.
    far = rng.integers(0, 256, (4, 6, 6, 1)).astype(np.uint8)
    ids = together.add(far)
    assert ids.tolist() == [int(alone.add(one[None])[0]) for one in far]
    assert (together.ids(far) == ids).all()


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

    monkeypatch.setattr(Looks, "fit", interrupted)
    for states in (corridor, fresh):
        with pytest.raises(KeyboardInterrupt):
            states.learn(seen, np.arange(500), actions, np.arange(1, 501), 2)
    after = corridor.get_checkpoint_state()
    assert before.keys() == after.keys()
    for name, value in before.items():
        np.testing.assert_equal(after[name], value, err_msg=name)
    assert not fresh.is_known
    assert len(fresh) == 5


def test_that_states_of_an_earlier_version_are_refused(corridor: LearnedStates) -> None:
    old = corridor.get_checkpoint_state()
    del old["learned_roots"]
    with pytest.raises(ValueError, match="an earlier version learned"):
        corridor.set_checkpoint_state(old)
