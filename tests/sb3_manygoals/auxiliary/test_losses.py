"""Tests of the losses of auxiliary tasks."""

import numpy as np
import pytest
import torch as th
from hypothesis import given
from hypothesis import strategies as st

from sb3_manygoals.auxiliary import losses
from tests.sb3_manygoals.auxiliary.rlax_outputs import RECORDED


def test_no_gradient_passes_through_targets():
    q, next_q = th.randn(2, 2, 3, 4).requires_grad_().unbind()
    achieved = th.zeros(2, 3, dtype=th.bool)
    found = losses.many_goals_losses(
        q, next_q, th.zeros(2, 3, dtype=th.int64), achieved, 0.9, 0.0, -0.1
    )
    to_q, to_next = th.autograd.grad(found.sum(), [q, next_q], allow_unused=True)
    assert to_next is None
    assert to_q[..., 0].abs().min() > 0
    assert to_q[..., 1:].abs().max() == 0

    cells = th.randn(2, 4, 3, 2, 2, requires_grad=True)
    changes = th.rand(2, 3, 2, 2)
    ended = th.zeros(2, dtype=th.bool)
    losses.pixel_control_losses(
        cells, th.zeros(2, 3, dtype=th.int64), changes, ended, ~achieved, 0.9
    ).sum().backward()
    assert cells.grad[:, -1].abs().max() == 0


def test_only_real_transitions_count():
    found = th.tensor([[3.0, 5.0], [th.nan, th.inf]])
    is_real = th.tensor([[True, True], [False, False]])
    assert losses.mean_of_real(found, is_real).item() == 4.0


@given(
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(1, 3),
    st.floats(0.0, 1.0),
    st.integers(0, 2**31),
)
def test_losses_of_pixel_control_agree_with_loops(n_trajectories, n_steps, n_actions, gamma, seed):
    rng = np.random.default_rng(seed)
    q = rng.normal(size=(n_trajectories, n_steps + 1, n_actions, 2, 3))
    changes = rng.random((n_trajectories, n_steps, 2, 3))
    actions = rng.integers(n_actions, size=(n_trajectories, n_steps))
    lengths = rng.integers(1, n_steps + 1, size=n_trajectories)
    terminated = rng.random(n_trajectories) < 0.5
    # After a short trajectory, its last observation is repeated.
    for b, length in enumerate(lengths):
        q[b, length:] = q[b, length]
    valid = np.arange(n_steps) < lengths[:, None]
    found = losses.pixel_control_losses(
        *(th.tensor(array) for array in (q, actions, changes, terminated, valid)), gamma
    )
    for b, length in enumerate(lengths):
        for t in range(n_steps):
            expected = 0.0
            for cell in np.ndindex(2, 3) if t < length else ():
                target = sum(gamma ** (k - t) * changes[(b, k, *cell)] for k in range(t, length))
                if not terminated[b]:
                    target += gamma ** (length - t) * max(
                        q[(b, length, action, *cell)] for action in range(n_actions)
                    )
                expected += 0.5 * (target - q[(b, t, actions[b, t], *cell)]) ** 2
            assert found[b, t].item() == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_losses_agree_with_rlax():
    """The outputs were recorded with rlax 0.1.9."""
    with np.load(RECORDED) as recorded:
        rlax = {name: th.tensor(recorded[name]) for name in recorded}
    found = losses.many_goals_losses(
        rlax["q"], rlax["next_q"], rlax["actions"], rlax["achieved"], 0.99, 0.0, -0.1
    )
    th.testing.assert_close(found, rlax["many_goals"], atol=1e-5, rtol=0)
    changes = losses.pixel_changes(rlax["images"], crop=8, cell=4)
    th.testing.assert_close(changes, rlax["changes"], atol=1e-5, rtol=0)
    terminated = th.zeros(2, dtype=th.bool)
    valid = th.ones(2, 5, dtype=th.bool)
    found = losses.pixel_control_losses(
        rlax["cells_q"], rlax["pixel_actions"], changes, terminated, valid, 0.9
    )
    th.testing.assert_close(found, rlax["pixel_control"], atol=0, rtol=1e-5)
    rewards = th.tensor([0, 1, -1])[rlax["classes"]]
    th.testing.assert_close(
        losses.reward_prediction_losses(rlax["logits"], rewards),
        rlax["cross_entropy"],
        atol=1e-5,
        rtol=0,
    )
