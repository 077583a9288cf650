"""Goals chosen by learning progress: equation 1 and moving averages, by hand and beside loops."""

import numpy as np
import pytest
import torch as th
from hypothesis import given
from hypothesis import strategies as st

from sb3_manygoals.goals import (
    UNKNOWN,
    LearningProgressSelector,
    SmoothedProgressSelector,
)


def feed(selector, goal, losses):
    for loss in losses:
        selector.observe_losses(th.tensor([goal]), th.tensor([float(loss)]))
    selector.catch_up()


def test_equation_1_by_hand():
    selector = LearningProgressSelector(m=2)
    feed(selector, 0, [10, 8, 5, 4])
    assert np.isnan(selector.progress(1)[0])  # five are needed
    feed(selector, 0, [2])
    assert selector.progress(1)[0] == (10 - 5) + (8 - 4) + (5 - 2)
    feed(selector, 0, [7])
    assert selector.progress(1)[0] == (8 - 4) + (5 - 2) + (4 - 7)


def test_its_probabilities_by_hand():
    selector = LearningProgressSelector(m=2, uniform_share=0.2)
    feed(selector, 0, [10, 8, 5, 4, 2])  # fallen by 12
    feed(selector, 1, [1, 2, 3, 4, 5])  # risen, counts as 0
    feed(selector, 2, [1, 1])  # unknown, counts as 6
    expected = 0.8 * np.array([12, 0, 6]) / 18 + 0.2 / 3
    np.testing.assert_allclose(selector.probabilities(3), expected)


@given(st.lists(st.floats(0, 100, width=32), min_size=0, max_size=30), st.integers(1, 6))
def test_equation_1_is_the_sum_in_the_paper(losses, m):
    selector = LearningProgressSelector(m)
    feed(selector, 2, losses)
    progress = selector.progress(3)
    assert np.isnan(progress[:2]).all()
    i = len(losses) - 1
    if i - 2 * m < 0:
        assert np.isnan(progress[2])
    else:
        expected = sum(losses[k - m] - losses[k] for k in range(i - m, i + 1))
        np.testing.assert_allclose(progress[2], expected, atol=1e-9)


@given(st.lists(st.floats(0, 100, width=32), min_size=2, max_size=30))
def test_the_averages_are_those_of_a_loop(losses):
    selector = SmoothedProgressSelector(fast=0.5, slow=0.1)
    feed(selector, 1, losses)
    fast = slow = losses[0]
    for loss in losses[1:]:
        fast, slow = fast + 0.5 * (loss - fast), slow + 0.1 * (loss - slow)
    np.testing.assert_allclose(selector.progress(2)[1], slow - fast, atol=1e-9)
    assert np.isnan(selector.progress(2)[0])


@pytest.mark.parametrize("kind", [LearningProgressSelector, SmoothedProgressSelector])
def test_losses_are_looked_at_only_when_a_goal_is_chosen_and_in_their_order(kind):
    rng = np.random.default_rng(0)
    late, early = kind(), kind()
    for _ in range(300):  # more than are kept for later
        ids, losses = th.tensor(rng.integers(-1, 5, size=7)), th.tensor(rng.random(7), dtype=th.float32)
        expected = losses.clone()
        early.observe_losses(ids, losses)
        early.catch_up()
        late.observe_losses(ids, losses)
        late_pending = late._pending[-1][1] if late._pending else expected
        losses.zero_()  # as a learner may that uses its memory again
        assert th.equal(late_pending, expected)
    assert 0 < len(late._pending) < 256
    np.testing.assert_array_equal(late.probabilities(5), early.probabilities(5))
    assert len(late._pending) == 0


def test_a_goal_that_is_twice_in_an_update_is_measured_once():
    selector = LearningProgressSelector(m=1)
    for losses in ([4, 2, 9], [2, 2, 9], [1, 0, 9]):
        selector.observe_losses(th.tensor([1, 1, UNKNOWN]), th.tensor(losses, dtype=th.float32))
    selector.catch_up()
    assert selector.progress(2)[1] == (3 - 2) + (2 - 0.5)
