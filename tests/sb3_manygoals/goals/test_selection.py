import numpy as np
from gymnasium import spaces

from sb3_manygoals.goals import UNKNOWN, GoalBuffer, UniformSelector


def _buffer(n):
    buffer = GoalBuffer(spaces.Discrete(10))
    buffer.add(np.arange(n))
    return buffer


def test_uniform_over_all_goals_but_the_current_one():
    ids = UniformSelector().select(_buffer(4), np.full(30_000, 2), np.random.default_rng(0))
    counts = np.bincount(ids, minlength=4)
    assert counts[2] == 0
    assert abs(counts[[0, 1, 3]] - 10_000).max() < 500  # 6 standard deviations


def test_uniform_over_all_goals_where_the_current_observation_is_none():
    ids = UniformSelector().select(_buffer(3), np.full(30_000, UNKNOWN), np.random.default_rng(0))
    assert abs(np.bincount(ids, minlength=3) - 10_000).max() < 500


def test_the_only_goal_is_chosen_even_if_it_is_the_current_one():
    ids = UniformSelector().select(_buffer(1), np.array([0, UNKNOWN]), np.random.default_rng(0))
    np.testing.assert_array_equal(ids, [0, 0])
