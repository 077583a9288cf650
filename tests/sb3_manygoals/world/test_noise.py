"""What is told of noise, before and after states are known."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from sb3_manygoals.world.inputs import NO_UNIT
from sb3_manygoals.world.noise import (
    Noise,
    means_of_most,
    noise_of_states,
    noise_of_steps,
    second_group,
)

_STATES = 40
_INPUTS = 60
_KEPT = 32
_FLOATS = np.full(_INPUTS, NO_UNIT)
_PIXELS = np.zeros(_INPUTS, np.int64)


def clean(states: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the numbers of states without noise: one-hot in 40 of the inputs, the others are 1."""
    seen = np.ones((len(states), _INPUTS))
    seen[:, :_STATES] = np.eye(_STATES)[states]
    return seen


def steps(
    rng: np.random.Generator, noise: float = 0.1, brightness: float = 0.0, n: int = 3_000
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """
    Return observations that follow each other. A third of the steps change nothing.

    :param noise: greatest noise of each input
    :param brightness: deviation of what is added to all inputs of an observation alike
    """
    states = np.zeros(n + 1, np.int64)
    for step, move in enumerate(rng.integers(-1, 2, size=n)):
        states[step + 1] = (states[step] + move) % _STATES
    seen = clean(states) + rng.uniform(-noise, noise, (n + 1, _INPUTS))
    seen += brightness * rng.standard_normal((n + 1, 1))
    return seen[:-1].astype(np.float32), seen[1:].astype(np.float32)


def examples(rng: np.random.Generator) -> list[NDArray[np.float32]]:
    """Return observations of each state."""
    ids = np.repeat(np.arange(_STATES), _KEPT)
    rows = clean(ids) + rng.uniform(-0.1, 0.1, (len(ids), _INPUTS))
    return list(rows.astype(np.float32).reshape(_STATES, _KEPT, _INPUTS))


def test_that_differences_are_means_of_the_inputs_that_differ_most() -> None:
    squares = np.array([[1.0, 9.0, 2.0, 8.0, 3.0, 7.0, 4.0, 6.0, 5.0, 0.0], 10 * [2.0]])
    # Of 9 and 8, and of 9 to 2.
    np.testing.assert_allclose(means_of_most(squares), [[8.5, 44 / 8], [2.0, 2.0]])
    # Of fewer inputs, all are compared.
    np.testing.assert_allclose(means_of_most(np.array([[3.0, 5.0, 1.0]])), [[4.0, 3.0]])


def test_that_noise_is_measured_before_states_are_known() -> None:
    rng = np.random.default_rng(0)
    noise = noise_of_steps(*steps(rng), _FLOATS, rng)
    assert noise is not None
    # Differences of even noise have a wider middle than normal ones, and are taken for more.
    ratio = noise.variances / (0.1**2 / 3)
    assert 0.9 < ratio.min() < ratio.max() < 1.5


def test_that_dependent_noise_is_not_taken_for_independent_noise() -> None:
    rng = np.random.default_rng(0)
    assert noise_of_steps(*steps(rng, brightness=0.1), _FLOATS, rng) is None


def test_that_nothing_is_told_without_noise_or_in_few_inputs() -> None:
    rng = np.random.default_rng(0)
    assert noise_of_steps(*steps(rng, noise=0.0), _FLOATS, rng) is None
    rows, next_rows = steps(rng)
    assert noise_of_steps(rows[:, -29:], next_rows[:, -29:], _FLOATS[:29], rng) is None
    assert noise_of_steps(rows[:1], next_rows[:1], _FLOATS, rng) is None
    assert noise_of_steps(rows * 1e30, next_rows * 1e30, _FLOATS, rng) is None


def test_that_noise_within_states_is_measured() -> None:
    rng = np.random.default_rng(0)
    groups = examples(rng)
    # A few states are two in truth.
    for state in range(0, 8, 2):
        groups[state][: _KEPT // 2] = groups[state + 1][: _KEPT // 2]
    noise = noise_of_states(groups, _FLOATS)
    np.testing.assert_allclose(noise.variances.mean(), 0.1**2 / 3, rtol=0.25)
    # What even noise may differ from its mean, 3 variances, and half as much again.
    assert (noise.limits > 3.0).all()
    assert (noise.limits < 6.0).all()


def test_that_pixels_vary_at_least_as_much_as_most_of_them() -> None:
    rng = np.random.default_rng(0)
    groups = [np.rint(rows * 100.0) for rows in examples(rng)]
    for rows in groups:
        rows[:, :50] = 0.0
    noise = noise_of_states(groups, _PIXELS)
    np.testing.assert_allclose(noise.variances[:50], noise.variances[-10:].mean(), rtol=0.3)
    # Floats may have different units. A few of them that vary less are left as they are.
    groups = examples(rng)
    for rows in groups:
        rows[:, -3:] /= 1_000.0
    noise = noise_of_states(groups, _FLOATS)
    np.testing.assert_allclose(noise.variances[-3:], 1e-8 / 3, rtol=0.5)


def test_that_units_of_one_part_are_not_those_of_another() -> None:
    rng = np.random.default_rng(0)
    groups = examples(rng)
    units = _PIXELS.copy()
    units[-2:] = 1
    for rows in groups:
        rows[:, :-2] *= 1_000.0
    noise = noise_of_states(groups, units)
    np.testing.assert_allclose(noise.variances[-2:], 0.1**2 / 3, rtol=0.5)


def test_that_a_wide_range_hides_no_noise() -> None:
    rng = np.random.default_rng(0)
    groups = examples(rng)
    for state, rows in enumerate(groups):
        rows[:, 59] += 10.0 * state
    # A few of these show that nothing is there.
    groups[7][:, 59] = 1e6
    noise = noise_of_states(groups, _FLOATS)
    np.testing.assert_allclose(noise.variances[59], 0.1**2 / 3, rtol=0.5)


def test_that_what_never_varied_is_taken_to_vary_as_others_do() -> None:
    rng = np.random.default_rng(0)
    groups = examples(rng)
    for rows in groups:
        rows[:, 59] = 7.0
    noise = noise_of_states(groups, _FLOATS)
    np.testing.assert_allclose(noise.variances[59], 0.1**2 / 3, rtol=0.5)


def test_that_two_states_in_one_group_are_told_apart() -> None:
    rng = np.random.default_rng(0)
    groups = examples(rng)
    noise = noise_of_states(groups, _FLOATS)
    mixed = np.concatenate([groups[3], groups[5][:5]])
    mixed = mixed[rng.permutation(len(mixed))]
    is_second = second_group(mixed, noise)
    assert is_second is not None
    is_fifth = mixed[:, 5] > 0.5
    assert (is_second == is_fifth).all() or (is_second == ~is_fifth).all()


@pytest.mark.parametrize("n_kept", [8, _KEPT])
def test_that_one_state_stays_whole(n_kept: int) -> None:
    rng = np.random.default_rng(0)
    noise = noise_of_states(examples(rng), _FLOATS)
    # Even if each group is looked at closely.
    noise = noise._replace(widest=np.zeros(2))
    for rows in examples(rng):
        assert second_group(rows[:n_kept], noise) is None


def test_that_equal_distances_between_all_are_no_fault() -> None:
    noise = Noise(np.ones(_INPUTS, np.float32), np.ones(2), np.zeros(2))
    rows = 7.3 * np.eye(_INPUTS, dtype=np.float32)[:8]
    is_second = second_group(rows, noise)
    assert is_second is None or 0 < is_second.sum() < 8
