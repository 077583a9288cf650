import numpy as np
import pytest
import torch as th
from hypothesis import given
from hypothesis import strategies as st

from sb3_manygoals.losses import (
    best_along_segments,
    large_margin_loss,
    n_step_td_targets,
    near_weights,
    pairwise_td_loss,
    pairwise_td_targets,
    widen_action_gap,
)


def test_targets_by_hand():
    # two transitions, three goals, two actions; gamma 0.5 so that the sums stay readable
    next_q = th.tensor([[[1.0, 2.0], [-4.0, -3.0], [0.0, -1.0]], [[5.0, 6.0], [-8.0, -2.0], [0.5, 0.25]]])
    achieved = th.tensor([[False, True, False], [False, False, False]])
    terminated = th.tensor([False, False])
    targets = pairwise_td_targets(next_q, achieved, terminated, 0.5, goal_reward=0.0, step_reward=-0.1)
    expected = th.tensor([[-0.1 + 0.5 * 2.0, 0.0, -0.1 + 0.0], [-0.1 + 0.5 * 6.0, -0.1 - 0.5 * 2.0, -0.1 + 0.25]])
    th.testing.assert_close(targets, expected)


def test_loss_by_hand():
    q = th.tensor([[1.0, 0.0], [3.0, -2.0]])
    targets = th.tensor([[0.0, 0.5], [1.0, -2.0]])
    # goal 0: (1 + 4) / 2, goal 1: (0.25 + 0) / 2
    th.testing.assert_close(pairwise_td_loss(q, targets), th.tensor([2.5, 0.125]))


def test_double_q_takes_the_learners_action_at_the_targets_value():
    next_q = th.tensor([[[1.0, 10.0]]])
    online = th.tensor([[[3.0, 2.0]]])  # prefers action 0
    no = th.zeros(1, 1, dtype=th.bool)
    target = pairwise_td_targets(next_q, no, no[0], 0.9, 0.0, -0.1, next_q_online=online)
    th.testing.assert_close(target, th.tensor([[-0.1 + 0.9 * 1.0]]))


def test_only_allowed_next_actions_count():
    next_q = th.tensor([[[1.0, 10.0, 2.0], [4.0, 3.0, 5.0]], [[7.0, 8.0, 9.0], [6.0, 5.0, 4.0]]])
    mask = th.tensor([[True, False, True], [False, True, False]])
    no = th.zeros(2, 2, dtype=th.bool)
    targets = pairwise_td_targets(next_q, no, no[0], 0.5, 0.0, -0.1, next_action_mask=mask)
    th.testing.assert_close(targets, -0.1 + 0.5 * th.tensor([[2.0, 5.0], [8.0, 5.0]]))
    # the learner would take action 1 everywhere, and must take the best of the others where that is forbidden
    online = th.tensor([[[3.0, 9.0, 2.0], [1.0, 9.0, 2.0]], [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]])
    targets = pairwise_td_targets(next_q, no, no[0], 0.5, 0.0, -0.1, online, mask)
    th.testing.assert_close(targets, -0.1 + 0.5 * th.tensor([[1.0, 5.0], [8.0, 5.0]]))


@pytest.mark.parametrize("double_q", [False, True])
@pytest.mark.parametrize("gamma", [0.0, 0.99])
def test_where_the_environment_ended_nothing_need_be_allowed(double_q, gamma):
    next_q = th.zeros(1, 2, 3)
    nothing = th.zeros(1, 3, dtype=th.bool)
    achieved = th.tensor([[False, True]])
    online = next_q if double_q else None
    targets = pairwise_td_targets(next_q, achieved, th.tensor([True]), gamma, 0.0, -0.1, online, nothing)
    th.testing.assert_close(targets, th.tensor([[-0.1 / (1 - gamma), 0.0]]))


def test_a_mask_that_allows_all_changes_nothing():
    th.manual_seed(0)
    next_q, online, no = th.randn(4, 3, 5), th.randn(4, 3, 5), th.zeros(4, 3, dtype=th.bool)
    everything = th.ones(4, 5, dtype=th.bool)
    for learner in (None, online):
        without = pairwise_td_targets(next_q, no, no[:, 0], 0.9, 0.0, -0.1, learner)
        assert th.equal(without, pairwise_td_targets(next_q, no, no[:, 0], 0.9, 0.0, -0.1, learner, everything))


def test_an_environment_that_ends_elsewhere_never_reaches_the_goal():
    next_q = th.full((1, 2, 3), 7.0)
    achieved = th.tensor([[False, True]])
    targets = pairwise_td_targets(next_q, achieved, th.tensor([True]), 0.99, goal_reward=0.0, step_reward=-0.1)
    # -0.1 for ever is -10; but the goal that is the last observation is reached all the same
    th.testing.assert_close(targets, th.tensor([[-10.0, 0.0]]))


@given(
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(1, 4),
    st.floats(0.0, 0.999),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_agrees_with_a_brute_force_loop_over_pairs(n_transitions, n_goals, n_actions, gamma, double_q, masked, seed):
    rng = np.random.default_rng(seed)
    next_q = rng.normal(size=(n_transitions, n_goals, n_actions))
    online = rng.normal(size=(n_transitions, n_goals, n_actions)) if double_q else None
    q = rng.normal(size=(n_transitions, n_goals))
    next_ids = rng.integers(-1, 4, size=n_transitions)
    goal_ids = rng.integers(0, 4, size=n_goals)
    terminated = rng.random(n_transitions) < 0.3
    mask = rng.random((n_transitions, n_actions)) < 0.5
    mask[np.arange(n_transitions), rng.integers(n_actions, size=n_transitions)] = True
    goal_reward, step_reward = 0.25, -0.1

    expected = np.zeros(n_goals)
    for g in range(n_goals):
        for s in range(n_transitions):
            if next_ids[s] == goal_ids[g]:
                target = goal_reward
            elif terminated[s]:
                target = sum(step_reward * gamma**t for t in range(40_000)) if gamma < 0.99 else step_reward / (1 - gamma)
            else:
                judge = next_q[s, g] if online is None else online[s, g]
                allowed = [action for action in range(n_actions) if mask[s, action] or not masked]
                best = max(allowed, key=lambda action: judge[action])
                target = step_reward + gamma * next_q[s, g, best]
            expected[g] += (target - q[s, g]) ** 2 / n_transitions

    targets = pairwise_td_targets(
        th.tensor(next_q),
        th.tensor(next_ids[:, None] == goal_ids[None, :]),
        th.tensor(terminated),
        gamma,
        goal_reward,
        step_reward,
        None if online is None else th.tensor(online),
        th.tensor(mask) if masked else None,
    )
    np.testing.assert_allclose(pairwise_td_loss(th.tensor(q), targets).numpy(), expected, rtol=1e-9, atol=1e-9)


def test_a_wider_action_gap_by_hand():
    targets = th.tensor([[-1.0, -2.0], [0.0, -3.0]])
    current_q = th.tensor([[[-1.0, -1.5], [-4.0, -2.0]], [[-0.5, -0.5], [-3.0, -1.0]]])
    widened = widen_action_gap(targets, current_q, th.tensor([1, 0]), 0.5)
    # transition 0 took action 1: half a unit short of the best for goal 0, the best for goal 1
    th.testing.assert_close(widened, th.tensor([[-1.0 - 0.25, -2.0], [0.0, -3.0 - 1.0]]))


def test_near_weights_by_hand():
    # values of goals 0, 1, 2 steps after the transition, and of one that is never reached; gamma 0.5
    targets = th.tensor([[0.0, -1.0], [-1.5, -2.0]])
    weights = near_weights(targets, 0.9, 0.1, gamma=0.5, goal_reward=0.0, step_reward=-1.0)
    plain = th.tensor([[1.0 + 0.1, 0.9 + 0.1], [0.81 + 0.1, 0.1]])
    th.testing.assert_close(weights, plain / plain.mean())
    th.testing.assert_close(pairwise_td_loss(th.ones(2, 2), th.zeros(2, 2), weights), weights.mean(dim=0))


@given(st.floats(0.05, 0.999), st.floats(0.1, 0.99), st.floats(-5.0, 5.0), st.floats(0.01, 3.0), st.integers(0, 2**31))
def test_near_weights_fall_with_distance_whatever_the_rewards(gamma, decay, goal_reward, price, seed):
    never = -price / (1 - gamma)
    goal_reward = max(goal_reward, never + 0.1)
    steps = th.arange(6.0, dtype=th.float64)
    values = never + (goal_reward - never) * gamma**steps
    order = th.randperm(6, generator=th.Generator().manual_seed(seed))
    weights = near_weights(values[order][:, None], decay, 0.05, gamma, goal_reward, -price)
    expected = decay**steps + 0.05
    th.testing.assert_close(weights[:, 0], (expected / expected.mean())[order], rtol=1e-4, atol=1e-6)
    # estimates beyond the best and the worst possible count as those
    beyond = near_weights(th.tensor([[goal_reward + 9.0, never - 9.0]]), decay, 0.05, gamma, goal_reward, -price)
    th.testing.assert_close(beyond[0, 0] / beyond[0, 1], th.tensor(1.05 / 0.05))


def test_with_one_goal_it_is_q_learning():
    # with one goal that is never reached the loss is plain Q-learning's mean squared error
    th.manual_seed(0)
    q_all, next_q = th.randn(6, 3), th.randn(6, 3)
    actions = th.randint(3, (6,))
    q = q_all.gather(1, actions[:, None])
    targets = pairwise_td_targets(
        next_q[:, None, :], th.zeros(6, 1, dtype=th.bool), th.zeros(6, dtype=th.bool), 0.9, 0.0, -1.0
    )
    expected = th.nn.functional.mse_loss(q.squeeze(1), -1.0 + 0.9 * next_q.max(1).values)
    assert pairwise_td_loss(q, targets).item() == pytest.approx(expected.item(), rel=1e-6)


def test_n_step_targets_by_hand():
    # three steps, then two that ended the world; goals: met after one, two, three steps, and never
    next_q = th.tensor([[[0.0, -2.0]] * 4, [[-4.0, -3.0]] * 4])
    reached_after = th.tensor([[1, 2, 3, 0], [1, 2, 0, 0]])
    targets = n_step_td_targets(next_q, reached_after, th.tensor([3, 2]), th.tensor([False, True]), 0.5, 0.0, -0.1)
    expected = th.tensor([[0.0, -0.1, -0.15, -0.1 - 0.05 - 0.025 + 0.0], [0.0, -0.1, -0.2, -0.2]])
    th.testing.assert_close(targets, expected)
    targets = n_step_td_targets(next_q, reached_after, th.tensor([3, 2]), th.tensor([False, False]), 0.5, 1.0, -0.1)
    expected = th.tensor([[1.0, 0.4, 0.1, -0.175], [1.0, 0.4, -0.15 - 0.75, -0.15 - 0.75]])
    th.testing.assert_close(targets, expected)


@given(st.integers(0, 10_000), st.booleans(), st.booleans())
def test_one_step_is_a_case_of_n(seed, double_q, masks):
    th.manual_seed(seed)
    next_q, achieved, terminated = th.randn(4, 3, 5), th.rand(4, 3) < 0.3, th.rand(4) < 0.3
    mask = (th.rand(4, 5) < 0.5) | (th.arange(5) == 2) if masks else None
    rest = (terminated, 0.9, 0.25, -0.1, th.randn(4, 3, 5) if double_q else None, mask)
    one_step = pairwise_td_targets(next_q, achieved, *rest)
    th.testing.assert_close(n_step_td_targets(next_q, achieved.long(), th.ones(4, dtype=th.int64), *rest), one_step)


def test_the_best_along_segments_by_hand():
    # rows 0 to 2 are a way, and so are 3 and 4; the second goal is reached by row 1, the first by row 4
    achieved = th.tensor([[False, False], [False, True], [False, False], [False, False], [True, False]])
    targets = th.tensor([[-9.0, -9.0], [-2.0, 0.0], [-1.0, -0.5], [-0.05, -7.0], [0.0, -3.0]])
    goes_on = th.tensor([True, True, False, True, False])
    best = best_along_segments(targets, achieved, goes_on, 3, 0.5, -0.1)
    # -1 comes to -0.6 one step earlier and to -0.4 two; what comes after a goal is no part of its way; -0.05 was more already
    expected = th.tensor([[-0.4, -0.1], [-0.6, 0.0], [-1.0, -0.5], [-0.05, -1.6], [0.0, -3.0]])
    th.testing.assert_close(best, expected)
    assert th.equal(targets[0], th.tensor([-9.0, -9.0]))  # what was given is as it was
    th.testing.assert_close(best_along_segments(targets, achieved, goes_on, 2, 0.5, -0.1)[0], th.tensor([-1.1, -0.1]))


@given(st.integers(0, 10_000), st.integers(1, 6))
def test_the_best_along_segments_is_the_loop_over_rows(seed, length):
    th.manual_seed(seed)
    n_rows, gamma = 12, 0.9
    targets, achieved = -th.rand(n_rows, 3), th.rand(n_rows, 3) < 0.2
    goes_on = (th.rand(n_rows) < 0.7) & ((th.arange(n_rows) + 1) % length != 0)
    goes_on[-1] = False
    expected = targets.clone()
    for row in reversed(range(n_rows - 1)):
        for goal in range(3):
            if goes_on[row] and not achieved[row, goal]:
                expected[row, goal] = max(expected[row, goal], -0.1 + gamma * expected[row + 1, goal])
    th.testing.assert_close(best_along_segments(targets, achieved, goes_on, length, gamma, -0.1), expected)


def test_a_large_margin_by_hand():
    q = th.tensor([[[1.0, 0.5, 2.0], [1.0, 0.5, 2.0], [1.0, 0.5, 2.0], [1.0, 0.5, 2.0]]], requires_grad=True)
    best = th.tensor([[[True, False, False], [False, False, True], [True, False, True], [False, False, False]]])
    losses = large_margin_loss(q, th.tensor([[True, True, True, False]]), best, margin=1.25)
    # 2 + 1.25 - 1; 1 + 1.25 - 2; the better of two best leads the only other by enough; nothing known
    th.testing.assert_close(losses, th.tensor([[2.25, 0.25, 0.0, 0.0]]))
    losses.sum().backward()
    none = [0.0, 0.0, 0.0]
    th.testing.assert_close(q.grad, th.tensor([[[-1.0, 0.0, 1.0], [1.0, 0.0, -1.0], none, none]]))


@given(st.integers(1, 4), st.integers(2, 5), st.floats(0.0, 2.0), st.integers(0, 2**32 - 1))
def test_no_margin_is_lost_only_where_the_best_lead_by_it(n_goals, n_actions, margin, seed):
    rng = np.random.default_rng(seed)
    q = rng.normal(size=(3, n_goals, n_actions))
    best = rng.random(q.shape) < 0.5
    best[..., 0] |= ~best.any(axis=2)
    known = np.ones(q.shape[:2], dtype=bool)
    losses = large_margin_loss(*map(th.tensor, (q, known, best)), margin).numpy()
    for pair in np.ndindex(known.shape):
        others = [value for value, is_best in zip(q[pair], best[pair], strict=True) if not is_best]
        lead = max(q[pair][best[pair]])
        assert losses[pair] == pytest.approx(max([0.0] + [value + margin - lead for value in others]))
