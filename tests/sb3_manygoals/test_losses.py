"""Tests of the losses of many goals."""

import numpy as np
import pytest
import torch as th
from hypothesis import given
from hypothesis import strategies as st

from sb3_manygoals.losses import (
    best_action_loss,
    near_weights,
    nearness,
    pairwise_td_loss,
    pairwise_td_targets,
    planned_loss,
    pursued_weights,
    widen_action_gaps,
)


@given(
    st.integers(1, 5),
    st.integers(1, 5),
    st.floats(0.0, 0.999),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_td_losses_agree_with_a_loop_over_pairs(n_transitions, n_goals, gamma, is_weighted, seed):
    rng = np.random.default_rng(seed)
    next_values = rng.normal(size=(n_transitions, n_goals))
    q = rng.normal(size=(n_transitions, n_goals))
    next_ids = rng.integers(-1, 4, size=n_transitions)
    goal_ids = rng.integers(0, 4, size=n_goals)
    terminated = rng.random(n_transitions) < 0.3
    weights = rng.random((n_transitions, n_goals)) if is_weighted else None
    goal_reward = 0.25
    step_reward = -0.1

    expected = np.zeros(n_goals)
    for g in range(n_goals):
        for s in range(n_transitions):
            if next_ids[s] == goal_ids[g]:
                target = goal_reward
            elif terminated[s] and gamma < 0.99:
                target = sum(step_reward * gamma**t for t in range(40_000))
            elif terminated[s]:
                target = step_reward / (1 - gamma)
            else:
                target = step_reward + gamma * next_values[s, g]
            weight = weights[s, g] if is_weighted else 1.0
            expected[g] += weight * (target - q[s, g]) ** 2 / n_transitions

    targets = pairwise_td_targets(
        th.tensor(next_values),
        th.tensor(next_ids[:, None] == goal_ids[None, :]),
        th.tensor(terminated),
        gamma,
        goal_reward,
        step_reward,
    )
    losses = pairwise_td_loss(th.tensor(q), targets, th.tensor(weights) if is_weighted else None)
    np.testing.assert_allclose(losses.numpy(), expected, rtol=1e-9, atol=1e-9)


@given(
    st.floats(0.05, 0.999),
    st.floats(0.1, 0.99),
    st.floats(-5.0, 5.0),
    st.floats(0.01, 3.0),
    st.integers(0, 2**31),
)
def test_near_weights_fall_with_distance_for_all_rewards(gamma, decay, goal_reward, price, seed):
    never = -price / (1 - gamma)
    goal_reward = max(goal_reward, never + 0.1)
    steps = th.arange(6.0, dtype=th.float64)
    values = never + (goal_reward - never) * gamma**steps
    order = th.randperm(6, generator=th.Generator().manual_seed(seed))
    weights = near_weights(values[order][:, None], decay, 0.05, gamma, goal_reward, -price)
    expected = decay**steps + 0.05
    th.testing.assert_close(
        weights[:, 0], (expected / expected.mean())[order], rtol=1e-4, atol=1e-6
    )
    found = nearness(values, decay, gamma, goal_reward, -price)
    th.testing.assert_close(found, decay**steps, rtol=1e-4, atol=1e-6)
    # Estimates beyond the best and the worst possible value count as these values.
    beyond = near_weights(
        th.tensor([[goal_reward + 9.0, never - 9.0]]), decay, 0.05, gamma, goal_reward, -price
    )
    th.testing.assert_close(beyond[0, 0] / beyond[0, 1], th.tensor(1.05 / 0.05))


@given(st.floats(0.0, 0.9), st.integers(2, 6), st.integers(2, 4), st.integers(0, 2**31))
def test_wider_gaps_leave_the_best_values_as_they_are(share, n_states, n_actions, seed):
    """In a world with chance, iterate the targets of all actions until they stay the same."""
    rng = np.random.default_rng(seed)
    moves = th.tensor(rng.dirichlet(np.ones(n_states), size=(n_states, n_actions)))
    gamma = 0.8

    def iterate(share):
        """Return the values of all states and actions for the goal of reaching state 0."""
        values = th.zeros((n_states, n_actions), dtype=th.float64)
        for _ in range(400):
            best = values.amax(dim=1)
            beyond = -0.1 + gamma * best
            beyond[0] = 0.0
            targets = moves @ beyond
            values = widen_action_gaps(targets, best[:, None], values, share)
        return values

    exact = iterate(0.0)
    wide = iterate(share)
    best = exact.amax(dim=1, keepdim=True)
    th.testing.assert_close(wide.amax(dim=1, keepdim=True), best)
    th.testing.assert_close(best - wide, (best - exact) / (1.0 - share), rtol=1e-5, atol=1e-8)


def test_pursued_goals_get_their_share_of_all_weight():
    weights = th.tensor([[2.0, 0.5], [1.0, 0.5]])
    pursued = th.tensor([[True, False], [False, False]])
    # All weight is 4. Half of the transitions have a pair, so it gets half of a half.
    expected = th.tensor([[1.0 + 1.5, 0.375], [0.75, 0.375]])
    th.testing.assert_close(pursued_weights(weights, pursued, 0.5), expected)
    equal = th.tensor([[1.0 + 0.75, 0.75], [0.75, 0.75]])
    th.testing.assert_close(pursued_weights(None, pursued, 0.5), equal)
    both = th.tensor([[True, False], [True, False]])
    expected = th.tensor([[1.0 + 1.0, 0.25], [1.0 + 0.5, 0.25]])
    th.testing.assert_close(pursued_weights(weights, both, 0.5), expected)
    assert pursued_weights(weights, pursued, 0.0) is weights
    assert pursued_weights(weights, th.zeros_like(pursued), 0.25) is weights


@given(st.integers(1, 4), st.integers(1, 5), st.floats(0.05, 5.0), st.integers(0, 2**32 - 1))
def test_the_loss_of_the_best_actions_is_minus_the_log_of_their_probability(
    n_goals, n_actions, temperature, seed
):
    rng = np.random.default_rng(seed)
    q = rng.normal(size=(3, n_goals, n_actions))
    known = rng.random((3, n_goals)) < 0.7
    best = rng.random(q.shape) < 0.5
    # Each pair has at least one best action.
    one_best = rng.integers(n_actions, size=(3, n_goals))
    best[np.arange(3)[:, None], np.arange(n_goals), one_best] = True
    best &= known[:, :, None]
    values = th.tensor(q, requires_grad=True)
    losses = best_action_loss(values, th.tensor(known), th.tensor(best), temperature)
    for pair in np.ndindex(*known.shape):
        weights = np.exp((q[pair] - q[pair].max()) / temperature)
        expected = -np.log(weights[best[pair]].sum() / weights.sum()) if known[pair] else 0.0
        assert losses[pair].item() == pytest.approx(expected, abs=1e-9)
    # Descending the loss raises the values of the best actions and lowers the others.
    losses.sum().backward()
    assert (values.grad.numpy()[best] <= 1e-12).all()
    assert (values.grad.numpy()[known[:, :, None] & ~best] >= 0).all()
    assert (values.grad.numpy()[~known] == 0).all()


@given(
    st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.sampled_from([0.0, 3.0]), st.data()
)
def test_the_planned_loss_and_its_gradient_are_those_of_its_formula(s, g, a, best_weight, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 10_000)))
    q = th.tensor(rng.normal(size=(s, g, a)) * 20, dtype=th.float64, requires_grad=True)
    values = th.tensor(np.where(rng.random((s, g, a)) < 0.4, np.nan, rng.normal(size=(s, g, a))))
    is_known = ~values.isnan()
    best = is_known & (values >= values.nan_to_num(nan=-th.inf).amax(2, keepdim=True) - 0.3)
    weights = th.tensor(rng.random((s, g))) * is_known.any(2)
    squares = th.where(is_known, q - values.nan_to_num(), 0.0).square().sum(2)
    errors = squares / is_known.sum(2).clamp(min=1)
    errors = errors + best_weight * best_action_loss(q, is_known.any(2), best, 0.5)
    expected = (weights * errors).mean(0)
    found = planned_loss(q, values, best.double(), weights, best_weight, 0.5)
    np.testing.assert_allclose(found.detach(), expected.detach(), rtol=1e-9, atol=1e-12)
    factors = th.tensor(rng.normal(size=g))
    (gradient,) = th.autograd.grad((found * factors).sum(), q)
    (expected_gradient,) = th.autograd.grad((expected * factors).sum(), q)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-9, atol=1e-12)
