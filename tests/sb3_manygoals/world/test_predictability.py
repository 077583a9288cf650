"""What tells whether states are worth anything."""

from __future__ import annotations

import numpy as np
import pytest

from sb3_manygoals.world import UNKNOWN
from sb3_manygoals.world.predictability import gain_of_states, gain_over_chance, predictability


def test_predictability_of_hand_made_counts() -> None:
    # Of three pairs of the first, one leads to one state. Three transitions count against two.
    pairs = np.array([0, 0, 1, 2])
    counts = np.array([2, 1, 2, 1])
    assert predictability(pairs, counts) == pytest.approx((3 * (1 / 3) + 2) / 5)
    assert predictability(np.array([0, 1]), np.array([1, 1])) == 0.0


def test_gain_is_what_chance_does_not_explain() -> None:
    # Two transitions meet by chance in (1/2)^2 + (1/2)^2 of all cases.
    assert gain_over_chance(0.75, np.array([5.0, 5.0])) == pytest.approx(0.5)
    assert gain_over_chance(1.0, np.array([3.0, 1.0, 2.0])) == 1.0
    assert gain_over_chance(1.0, np.array([4.0])) == 0.0


def test_gain_of_states_is_that_of_their_counts() -> None:
    rng = np.random.default_rng(0)
    ids = rng.integers(3, size=400)
    actions = rng.integers(2, size=400)
    assert gain_of_states(ids, actions, (ids + actions) % 3) == pytest.approx(1.0)
    assert abs(gain_of_states(ids, actions, rng.integers(3, size=400))) < 0.05
    # All in one state, which tells nothing.
    nothing = np.zeros(400, np.int64)
    assert gain_of_states(nothing, actions, nothing) == 0.0
    unknown = np.full(400, UNKNOWN)
    assert gain_of_states(unknown, actions, ids) == 0.0
    # Nothing is predicted in a half of all transitions.
    mixed = np.where(np.arange(400) < 200, ids, UNKNOWN)
    assert gain_of_states(mixed, actions, (ids + actions) % 3) == pytest.approx(0.5)
