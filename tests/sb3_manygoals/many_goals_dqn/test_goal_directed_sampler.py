"""States on the ways to planned goals."""

import numpy as np
import pytest

from sb3_manygoals.many_goals_dqn import goal_directed_sampler
from sb3_manygoals.many_goals_dqn.goal_directed_sampler import GoalDirectedSampler
from sb3_manygoals.many_goals_dqn.planning import AllGoalsPlan
from tests.sb3_manygoals.many_goals_dqn.memories import cells_of, goals_of, world_of


def sampler_to(transitions, cells):
    """
    Return a sampler of states on the ways to these cells, and a function from cells to states.

    The plan looks as if these were a sample of all goals.
    """
    goals = goals_of(cells_of(transitions))
    plan = AllGoalsPlan(0.99, 0.0, -0.1)
    plan.refresh(world_of(transitions, goals), goals)
    plan.goal_ids = goals.ids(np.array(cells))
    return GoalDirectedSampler(plan), goals.states.ids


@pytest.fixture(autouse=True)
def _no_random_actions(monkeypatch):
    monkeypatch.setattr(goal_directed_sampler, "_RANDOM_SHARE", 0.0)


def way_to(sampler, column, n_steps, monkeypatch):
    """Return the states that a walker meets on so many steps to the goal of a column."""
    monkeypatch.setattr(goal_directed_sampler, "_N_STEPS", n_steps)
    sampler.sample(len(sampler.plan.goal_ids), 1, np.random.default_rng(0))
    return sampler.states[:, np.flatnonzero(sampler.columns == column)[0]]


def shares_after(met, state, n_states):
    """Return how often each state follows a state on a way."""
    after = met[1:][met[:-1] == state]
    assert len(after) > 300
    return np.bincount(after, minlength=n_states) / len(after)


def test_walkers_follow_the_plan_and_begin_anew_at_their_goal(monkeypatch):
    ring = [(cell, 1, (cell + 1) % 41, False) for cell in range(41)]
    sampler, state_of = sampler_to(ring, [30, 7])
    cell_of = np.argsort(state_of(np.arange(41)))
    for column, goal in enumerate([30, 7]):
        met = cell_of[way_to(sampler, column, 2_000, monkeypatch)]
        before = met[:-1]
        after = met[1:]
        is_near = (before + 1) % 41 == goal
        np.testing.assert_array_equal(after[~is_near], (before[~is_near] + 1) % 41)
        # Walkers begin anew anywhere, and are never in their goal but for a beginning there.
        assert len(set(after[is_near].tolist())) > 20


def test_samples_are_states_that_were_met_on_the_way_to_their_goal(monkeypatch):
    monkeypatch.setattr(goal_directed_sampler, "_GOALS_TOGETHER", 5)
    ring = [(cell, 1, (cell + 1) % 9, False) for cell in range(9)]
    sampler, _ = sampler_to(ring, range(9))
    rng = np.random.default_rng(0)
    walked_to = []
    for number in range(goal_directed_sampler._SAMPLES * 4):
        assert sampler.is_used_up == (number % goal_directed_sampler._SAMPLES == 0)
        columns, states = sampler.sample(2, 3, rng)
        assert states.shape == (3, 2)
        assert len(set(columns.tolist())) == 2
        for column, column_states in zip(columns, states.T, strict=True):
            met = sampler.states[:, np.flatnonzero(sampler.columns == column)[0]]
            assert np.isin(column_states, met).all()
        walked_to.append(set(sampler.columns.tolist()))
    assert all(len(columns) == 5 for columns in walked_to)
    assert len(set.union(*walked_to)) > 5


def test_all_goals_that_were_walked_to_are_sampled_equally_often(monkeypatch):
    monkeypatch.setattr(goal_directed_sampler, "_SAMPLES", 20)
    ring = [(cell, 1, (cell + 1) % 8, False) for cell in range(8)]
    sampler, _ = sampler_to(ring, range(8))
    rng = np.random.default_rng(0)
    columns = np.concatenate([sampler.sample(4, 1, rng)[0] for _ in range(20)])
    np.testing.assert_array_equal(np.bincount(columns), np.full(8, 10))


def test_walkers_take_all_best_ways(monkeypatch):
    fork = [
        (0, 0, 1, False),
        (0, 1, 2, False),
        (0, 2, 0, False),
        (1, 0, 3, False),
        (2, 0, 3, False),
    ]
    sampler, state_of = sampler_to(fork, [3])
    start, left, right = state_of(np.arange(3))
    met = way_to(sampler, 0, 5_000, monkeypatch)
    # The limit is 5 standard deviations of a thousand choices.
    np.testing.assert_allclose(shares_after(met, start, 4)[[left, right]], 0.5, atol=0.08)


def test_walkers_end_the_episode_to_reach_its_last_state_and_for_no_other_goal(monkeypatch):
    transitions = [
        (0, 0, 1, True),
        (0, 1, 2, False),
        (2, 0, 0, False),
        (2, 1, 1, True),
        (2, 2, 4, False),
        (4, 0, 3, False),
    ]
    sampler, state_of = sampler_to(transitions, [1, 3])
    cell_of = np.argsort(state_of(np.arange(5)))

    def met(column, cell):
        way = way_to(sampler, column, 4_000, monkeypatch)
        shares = shares_after(way, state_of(np.array([cell]))[0], 5)
        return set(cell_of[np.flatnonzero(shares)].tolist())

    # Goal 1 is reached with the end, after which walkers begin anew, anywhere.
    assert met(0, 0) == {0, 2, 4}
    assert met(0, 2) == {0, 2, 4}
    # On the way to goal 3 no walker ends the episode.
    assert met(1, 0) == {2}
    assert met(1, 2) == {4}


def test_walkers_meet_outcomes_as_often_as_the_model_says(monkeypatch):
    outcomes = [(0, 0, 1, False)] * 6 + [(0, 0, 2, False)] * 3 + [(0, 0, 3, True)] * 4
    others = [(1, 0, 3, False), (2, 0, 3, False), (3, 0, 0, False)]
    sampler, state_of = sampler_to(outcomes + others, [3])
    start = state_of(np.array([0]))[0]
    met = way_to(sampler, 0, 60_000, monkeypatch)
    shares = shares_after(met, start, 4)[state_of(np.arange(4))]
    # The two rarer outcomes count one less, so the shares are 6, 2 and 3 of 11. After the end a
    # walker begins anew in one of four states. The limit is 5 standard deviations.
    expected = np.array([0, 6, 2, 0]) / 11 + 3 / 11 / 4
    np.testing.assert_allclose(shares, expected, atol=0.02)


def test_walkers_begin_anew_where_no_way_is_known(monkeypatch):
    rings = [*range(5), *range(10, 15), *range(20, 25)]
    islands = [(cell, 0, cell // 10 * 10 + (cell + 1) % 5, False) for cell in rings]
    sampler, state_of = sampler_to([*islands, (30, 0, 0, False)], [3, 30])
    met = way_to(sampler, 0, 1_000, monkeypatch)
    # The first goal is reached from 6 of the 16 states. Walkers are there more often.
    assert np.isin(met, state_of(np.array([*range(5), 30]))).mean() > 0.55
    # No way leads to the second goal, so walkers are everywhere.
    met = way_to(sampler, 1, 1_000, monkeypatch)
    assert set(met) == set(state_of(np.array([*rings, 30])))
