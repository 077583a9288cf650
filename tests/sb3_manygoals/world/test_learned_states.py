"""States that are learned from transitions in which no observation recurs."""

from __future__ import annotations

import pickle
from typing import NamedTuple

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray

import gym_twoRooms  # noqa: F401 - registers its worlds
from sb3_manygoals.world import UNKNOWN, LearnedStates
from sb3_manygoals.world.clusters import agreement, find_clusters, leaders, nearest
from sb3_manygoals.world.contrastive import ContrastiveEncoder

_SIDE = 4
_NOISE = 0.15


class Seen(NamedTuple):
    """Random steps in a world, as they look, and the true states."""

    observations: NDArray[np.float32]
    places: NDArray[np.int64]
    actions: NDArray[np.int64]
    next_places: NDArray[np.int64]
    truth: NDArray[np.int64]


SPACE = spaces.Box(-2.0, 3.0, (2 * _SIDE + 1,), np.float32)


def steps(n: int, seed: int, truth: NDArray[np.int64] | None = None) -> Seen:
    """
    Return random steps on a grid of 4 x 4 cells with a switch, 32 states.

    An observation is one-hot in row and column, and a number for the switch. Each number has noise.
    Action 4 turns the switch, but only in the first cell.
    """
    rng = np.random.default_rng(seed)
    row, column, switch = 0, 0, 0
    states = [0]
    actions = rng.integers(5, size=n)
    for action in actions.tolist():
        if action == 4:
            switch ^= int(row == 0 and column == 0)
        else:
            row = int(np.clip(row + [1, -1, 0, 0][action], 0, _SIDE - 1))
            column = int(np.clip(column + [0, 0, 1, -1][action], 0, _SIDE - 1))
        states.append((row * _SIDE + column) * 2 + switch)
    truth = np.array(states)
    return Seen(look(truth, rng), np.arange(n), actions, np.arange(1, n + 1), truth)


def look(truth: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.float32]:
    """Return an observation of each of these states."""
    row, column, switch = truth // 2 // _SIDE, truth // 2 % _SIDE, truth % 2
    clean = np.concatenate([np.eye(_SIDE)[row], np.eye(_SIDE)[column], switch[:, None]], axis=1)
    noise = rng.uniform(-_NOISE, _NOISE, clean.shape)
    return (clean + noise).astype(np.float32)


def purity_and_completeness(
    ids: NDArray[np.int64], truth: NDArray[np.int64]
) -> tuple[float, float]:
    """Return the shares in the commonest true state of their cluster, and the other way round."""
    known = ids != UNKNOWN
    counts = np.zeros((ids.max() + 1, truth.max() + 1))
    np.add.at(counts, (ids[known], truth[known]), 1)
    return counts.max(axis=1).sum() / len(ids), counts.max(axis=0).sum() / len(ids)


def learn(seen: Seen, **arguments: int) -> tuple[LearnedStates, NDArray[np.int64]]:
    """Return states that were learned from these steps, and the ids of all observations."""
    settings = {"n_updates": 400, "batch_size": 64, **arguments}
    states = LearnedStates(SPACE, 500, n_features=16, n_hidden=64, **settings)
    states.observe(seen.observations[:20])
    return states, states.learn(*seen[:4], n_actions=5)


@pytest.fixture(scope="module")
def seen() -> Seen:
    """Random steps."""
    return steps(8_000, 0)


@pytest.fixture(scope="module")
def learned(seen: Seen) -> tuple[LearnedStates, NDArray[np.int64]]:
    """States that were learned from these steps."""
    return learn(seen)


def test_that_clusters_are_the_true_states(
    seen: Seen, learned: tuple[LearnedStates, NDArray[np.int64]]
) -> None:
    states, ids = learned
    purity, completeness = purity_and_completeness(ids, seen.truth)
    assert purity > 0.995
    assert completeness > 0.98
    assert 32 <= len(states) <= 40
    assert states.is_known


def test_that_a_small_difference_that_matters_is_kept(
    seen: Seen, learned: tuple[LearnedStates, NDArray[np.int64]]
) -> None:
    # One number of nine says how the switch is.
    _, ids = learned
    assert purity_and_completeness(ids, seen.truth % 2)[0] > 0.999


def test_that_observations_never_seen_have_the_state_of_what_they_show(
    learned: tuple[LearnedStates, NDArray[np.int64]], seen: Seen
) -> None:
    states, ids = learned
    rng = np.random.default_rng(5)
    truth = np.repeat(np.arange(32), 20)
    new = states.ids(look(truth, rng))
    # The cluster in which most observations of a state are.
    common = np.array([np.bincount(ids[seen.truth == state]).argmax() for state in range(32)])
    assert (new == common[truth]).mean() > 0.97


def test_that_examples_are_observations_of_their_state(
    learned: tuple[LearnedStates, NDArray[np.int64]], seen: Seen
) -> None:
    states, ids = learned
    drawn = states.sample(ids[:500], np.random.default_rng(0))
    pairs = zip(seen.observations, seen.truth, strict=True)
    truth_of = {row.tobytes(): state for row, state in pairs}
    truth = np.array([truth_of[row.tobytes()] for row in drawn])
    assert (truth == seen.truth[:500]).mean() > 0.98
    # Different observations of one state are drawn.
    assert len(np.unique(drawn, axis=0)) > len(np.unique(ids[:500]))
    assert states.observations.shape == (len(states), 9)


def test_that_what_is_far_from_all_states_is_a_new_state(
    learned: tuple[LearnedStates, NDArray[np.int64]],
) -> None:
    states = pickle.loads(pickle.dumps(learned[0]))
    n_before = len(states)
    strange = np.full((1, 9), 3.0, np.float32)
    assert states.ids(strange)[0] == UNKNOWN
    assert states.observe(strange)[0] == n_before
    assert states.ids(strange + 0.001)[0] == n_before
    np.testing.assert_array_equal(states.observations[n_before], strange[0])


def test_that_learning_is_the_same_with_the_same_seed(
    seen: Seen, learned: tuple[LearnedStates, NDArray[np.int64]]
) -> None:
    again, ids = learn(seen)
    np.testing.assert_array_equal(ids, learned[1])
    np.testing.assert_array_equal(again.centers, learned[0].centers)


def test_that_first_observations_are_states_before_anything_is_learned() -> None:
    states = LearnedStates(SPACE, 2_000)
    observations = steps(1_500, 1).observations
    ids = states.observe(observations)
    assert not states.is_known
    np.testing.assert_array_equal(ids[:1_000], np.arange(1_000))
    assert (ids[1_000:] == UNKNOWN).all()
    np.testing.assert_array_equal(states.observations, observations[:1_000])


def test_that_observations_without_room_are_in_no_state(seen: Seen) -> None:
    strange = np.random.default_rng(5).uniform(-2.0, 3.0, (40, *SPACE.shape))
    observations = np.concatenate([seen.observations, strange.astype(np.float32)])
    states = LearnedStates(SPACE, 40, n_features=16, n_hidden=64, n_updates=200, batch_size=64)
    ids = states.learn(observations, *seen[1:4], n_actions=5)
    assert (ids == UNKNOWN).any()
    # Some of the strange observations have founded states.
    assert ids[len(seen.observations) :].max() == len(states) - 1
    np.testing.assert_array_equal(ids, states.ids(observations))


def test_that_a_checkpoint_has_all_that_was_learned(
    learned: tuple[LearnedStates, NDArray[np.int64]], seen: Seen
) -> None:
    states, ids = learned
    restored = LearnedStates(SPACE, 10, n_features=16, n_hidden=64)
    restored.set_checkpoint_state(states.get_checkpoint_state())
    np.testing.assert_array_equal(restored.ids(seen.observations), ids)
    for name, value in states.get_checkpoint_state().items():
        np.testing.assert_equal(restored.get_checkpoint_state()[name], value)
    with pytest.raises(ValueError, match="other arguments"):
        LearnedStates(SPACE, 10, n_hidden=32).set_checkpoint_state(states.get_checkpoint_state())


def test_that_wrong_arguments_are_refused(seen: Seen) -> None:
    with pytest.raises(ValueError, match="examples_per_state"):
        LearnedStates(SPACE, 10, examples_per_state=0)
    with pytest.raises(ValueError, match="n_envs"):
        LearnedStates(SPACE, 10).learn(*seen[:4], n_actions=5, n_envs=0)
    with pytest.raises(ValueError, match="batch_size"):
        LearnedStates(SPACE, 10, batch_size=1)
    with pytest.raises(ValueError, match="actions must be from 0 to 2"):
        LearnedStates(SPACE, 10).learn(*seen[:4], n_actions=3)
    nothing = np.zeros(0, np.int64)
    with pytest.raises(ValueError, match="got none"):
        LearnedStates(SPACE, 10).learn(seen.observations, nothing, nothing, nothing, 3)


def test_that_units_of_floats_do_not_matter(seen: Seen) -> None:
    # The first four numbers, which show the row, are a hundredth of what they were.
    scaled = seen.observations.copy()
    scaled[:, :_SIDE] /= 100.0
    _, ids = learn(seen._replace(observations=scaled))
    purity, completeness = purity_and_completeness(ids, seen.truth)
    assert purity > 0.99
    assert completeness > 0.95


@pytest.mark.parametrize("dtype", [np.float64, np.int64])
def test_that_seconds_since_1970_are_told_apart(seen: Seen, dtype: type) -> None:
    """In float32, such numbers would differ by 128 or not at all."""
    space = spaces.Box(-(2**62), 2**62, SPACE.shape, dtype)
    late = (100.0 * seen.observations.astype(np.float64) + 1.7e9).astype(dtype)
    states = LearnedStates(space, 500, n_features=16, n_hidden=64, n_updates=400, batch_size=64)
    ids = states.learn(late, *seen[1:4], n_actions=5)
    purity, completeness = purity_and_completeness(ids, seen.truth)
    assert purity > 0.99
    assert completeness > 0.95
    again = pickle.loads(pickle.dumps(states))
    np.testing.assert_array_equal(again.ids(late), states.ids(late))
    # Files of earlier versions have no offset.
    state = states.get_checkpoint_state()
    (name,) = (each for each in state if each.endswith("offset"))
    assert np.abs(state.pop(name)).min() > 1e9
    again.set_checkpoint_state(state)
    assert again.is_known


def test_that_large_pictures_are_encoded_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    space = spaces.Box(0, 255, (6, 6, 3), np.uint8)
    seen = np.random.default_rng(0).integers(256, size=(50, 6, 6, 3)).astype(np.uint8)
    monkeypatch.setattr("sb3_manygoals.world.contrastive._NUMBERS_TO_FIT", 10 * 108)
    encoder = ContrastiveEncoder(space, 2, n_features=4, n_hidden=8)
    encoder.fit_inputs(seen)
    some = seen[np.linspace(0, 49, 10, dtype=int)].reshape(10, -1)
    np.testing.assert_allclose(encoder.mean.numpy(), some.mean(axis=0), rtol=1e-6)
    at_once = encoder.encode(seen)
    sizes = []
    forward = encoder._features

    def count(rows: NDArray[np.uint8]) -> th.Tensor:
        sizes.append(len(rows))
        return forward(rows)

    monkeypatch.setattr("sb3_manygoals.world.contrastive._NUMBERS_AT_A_TIME", 20 * 108)
    monkeypatch.setattr(encoder, "_features", count)
    np.testing.assert_allclose(encoder.encode(seen), at_once, rtol=1e-4, atol=1e-5)
    assert sizes == [20, 20, 10]


def test_that_codes_are_compared_with_many_centers_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    codes = rng.normal(size=(30, 3)).astype(np.float32)
    centers = rng.normal(size=(7, 3)).astype(np.float32)
    at_once = nearest(codes, centers)
    monkeypatch.setattr("sb3_manygoals.world.clusters._PAIRS_AT_A_TIME", 14)
    places, distances = nearest(codes, centers)
    np.testing.assert_array_equal(places, at_once[0])
    np.testing.assert_allclose(distances, at_once[1], rtol=1e-6)


def test_that_learning_that_is_interrupted_changes_nothing(
    seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    states, _ = learn(seen)
    before = states.ids(seen.observations)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sb3_manygoals.world.learned_states.find_clusters", interrupt)
    with pytest.raises(KeyboardInterrupt):
        states.learn(*seen[:4], n_actions=5)
    np.testing.assert_array_equal(states.ids(seen.observations), before)
    assert states.n_learned == 1


def test_that_a_damaged_checkpoint_changes_nothing(
    learned: tuple[LearnedStates, NDArray[np.int64]], seen: Seen
) -> None:
    state = learned[0].get_checkpoint_state()
    other = LearnedStates(SPACE, 500, n_features=16, n_hidden=64)
    other.observe(seen.observations[:5])
    for name in ("learned_radius", "n_seen", "learned_weight_code.bias"):
        damaged = {key: value for key, value in state.items() if key != name}
        with pytest.raises(ValueError, match="the file has learned states"):
            other.set_checkpoint_state(damaged)
        assert len(other) == 5
        assert not other.is_known


def test_that_chance_splits_no_state() -> None:
    # In one of four steps, another action is taken than was asked for.
    world = steps(8_000, 2)
    actions = world.actions.copy()
    rng = np.random.default_rng(3)
    slips = rng.random(len(actions)) < 0.25
    actions[slips] = rng.integers(5, size=slips.sum())
    _, ids = learn(world._replace(actions=actions), n_updates=600)
    purity, completeness = purity_and_completeness(ids, world.truth)
    assert purity > 0.98
    assert completeness > 0.9


def test_leaders_and_nearest_of_points_on_a_line() -> None:
    points = np.array([[0.0], [0.4], [1.0], [1.2], [3.0]], np.float32)
    found = leaders(points, 0.5, 10)
    np.testing.assert_array_equal(found, [[0.0], [1.0], [3.0]])
    places, distances = nearest(points, found)
    np.testing.assert_array_equal(places, [0, 0, 1, 1, 2])
    np.testing.assert_allclose(distances, [0.0, 0.4, 0.0, 0.2, 0.0], atol=1e-6)
    assert len(leaders(points, 0.5, 2)) == 2


def test_agreement_of_successors() -> None:
    # From clusters 0 and 1 the action leads to 2 and 3 by halves, from cluster 4 always to 5.
    labels = np.repeat([0, 1, 4], 4)
    next_labels = np.array([2, 3, 2, 3, 3, 2, 2, 3, 5, 5, 5, 5])
    pairs = np.array([[0, 1], [0, 4], [2, 3]])
    agrees, known = agreement(pairs, labels, np.zeros(12, np.int64), next_labels, 6)
    # Two of 0 and 1 meet in half of the cases, two different ones of the same in a third of them.
    np.testing.assert_allclose(agrees, [0.5 / (1 / 3), 0.0, np.nan])
    np.testing.assert_array_equal(known, [4, 4, 0])


def test_that_pieces_of_a_state_are_merged_and_other_states_are_not() -> None:
    # Two states, far apart. Each action leads to one of them. Their codes are wide discs, of which
    # no fine cluster covers the whole.
    rng = np.random.default_rng(0)
    states = rng.integers(2, size=4_001)
    codes = rng.normal(size=(4_001, 8)).astype(np.float32) * 0.3
    codes[:, 0] += 10.0 * states
    found = find_clusters(codes[:-1], states[1:], codes[1:], 1_000, rng)
    assert len(found.centers) == 2
    places, _ = nearest(codes, found.centers)
    assert len(np.unique(places[states == 0])) == 1
    assert found.radius < 5.0


def test_that_the_encoder_leaves_the_generator_of_pytorch_as_it_is() -> None:
    import torch as th

    before = th.random.get_rng_state()
    ContrastiveEncoder(SPACE, 5)
    learn(steps(300, 0), n_updates=2)
    np.testing.assert_array_equal(before, th.random.get_rng_state())


def test_pictures_of_two_rooms() -> None:
    mdp = gym.make("TwoRoomsSwitchSmall-v0").unwrapped.mdp  # type: ignore[attr-defined]
    rng = np.random.default_rng(0)
    n_walkers, n_steps = 64, 320
    truth = np.zeros((n_steps + 1, n_walkers), np.int64)
    truth[0] = rng.integers(len(mdp.observations), size=n_walkers)
    actions = rng.integers(5, size=(n_steps, n_walkers))
    for step in range(n_steps):
        truth[step + 1] = mdp.next_state[truth[step], actions[step]]
    noise = rng.integers(-20, 21, (truth.size, *mdp.observations.shape[1:]))
    pictures = np.clip(mdp.observations[truth.ravel()] + noise, 0, 255).astype(np.uint8)
    space = gym.make("TwoRoomsSwitchSmall-v0").observation_space
    places = np.arange(n_steps * n_walkers)
    states = LearnedStates(space, 2_000, n_updates=500, batch_size=128)
    ids = states.learn(pictures, places, actions.ravel(), places + n_walkers, 5, n_walkers)
    purity, completeness = purity_and_completeness(ids, truth.ravel())
    assert purity > 0.99
    assert completeness > 0.95
