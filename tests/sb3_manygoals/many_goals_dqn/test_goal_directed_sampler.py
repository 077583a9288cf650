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


@pytest.fixture
def _one_step(monkeypatch):
    """Let walkers make a single step for each sample."""
    monkeypatch.setattr(goal_directed_sampler, "_STEPS_BETWEEN_SAMPLES", 1)


def after_one_step(sampler, column, state, n, rng):
    """Return where n walkers to one goal, all in the same state, get by a step."""
    columns = np.array([column])
    sampler.sample(columns, n, rng)
    sampler.states[:, column] = state
    return sampler.sample(columns, n, rng)[:, 0]


def test_walkers_follow_the_plan_and_begin_anew_at_their_goal():
    ring = [(cell, 1, (cell + 1) % 41, False) for cell in range(41)]
    sampler, state_of = sampler_to(ring, [30, 7])
    rng = np.random.default_rng(0)
    cell_of = np.argsort(state_of(np.arange(41)))
    columns = np.arange(2)
    before = cell_of[sampler.sample(columns, 1, rng)[0]]
    n_begun_anew = np.zeros(2, dtype=np.int64)
    for _ in range(200):
        after = cell_of[sampler.sample(columns, 1, rng)[0]]
        is_near = (np.array([30, 7]) - before) % 41 <= 3
        straight_on = (before + 3) % 41
        np.testing.assert_array_equal(after[~is_near], straight_on[~is_near])
        n_begun_anew += is_near & (after != straight_on)
        before = after
    assert (n_begun_anew > 5).all()
    # A walker to a goal that no state is sampled for stays where it is.
    sampler.sample(np.array([1]), 1, rng)
    assert cell_of[sampler.states[0, 0]] == before[0]


def test_walkers_to_one_goal_are_apart():
    """They begin 128 steps apart, all together: two walkers in the same ring, 64 steps apart."""
    ring = [(cell, 1, (cell + 1) % 99, False) for cell in range(99)]
    # Cell 99 cannot be left, so walkers begin in a state of the ring, and it is never reached.
    sampler, state_of = sampler_to([*ring, (50, 0, 99, False)], [99])
    cell_of = np.argsort(state_of(np.arange(100)))
    plan = sampler.plan
    # Only one state is left to begin in.
    plan.model.tried_states = state_of(np.array([51]))
    first, second = cell_of[sampler.sample(np.array([0]), 2, np.random.default_rng(0))[:, 0]]
    assert (first - 51) % 99 == 3
    assert (second - 51) % 99 == 3 + 128 // 2


@pytest.mark.usefixtures("_one_step")
def test_walkers_take_all_best_ways():
    fork = [
        (0, 0, 1, False),
        (0, 1, 2, False),
        (0, 2, 0, False),
        (1, 0, 3, False),
        (2, 0, 3, False),
    ]
    sampler, state_of = sampler_to(fork, [3])
    start, left, right = state_of(np.arange(3))
    after = after_one_step(sampler, 0, start, 1_000, np.random.default_rng(0))
    shares = np.bincount(after, minlength=4)[[left, right]] / 1_000
    # The limit is 5 standard deviations.
    np.testing.assert_allclose(shares, 0.5, atol=0.08)


@pytest.mark.usefixtures("_one_step")
def test_walkers_end_the_episode_to_reach_its_last_state_and_for_no_other_goal():
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
        state = state_of(np.array([cell]))
        after = after_one_step(sampler, column, state, 200, np.random.default_rng(0))
        return set(cell_of[after].tolist())

    # Goal 1 is reached with the end, after which walkers begin anew, anywhere.
    assert met(0, 0) == {0, 2, 4}
    assert met(0, 2) == {0, 2, 4}
    # On the way to goal 3 no walker ends the episode.
    assert met(1, 0) == {2}
    assert met(1, 2) == {4}


@pytest.mark.usefixtures("_one_step")
def test_walkers_meet_outcomes_as_often_as_the_model_says():
    outcomes = [(0, 0, 1, False)] * 6 + [(0, 0, 2, False)] * 3 + [(0, 0, 3, True)] * 4
    others = [(1, 0, 3, False), (2, 0, 3, False), (3, 0, 0, False)]
    sampler, state_of = sampler_to(outcomes + others, [3])
    n = 20_000
    after = after_one_step(sampler, 0, state_of(np.array([0])), n, np.random.default_rng(0))
    shares = np.bincount(after, minlength=4)[state_of(np.arange(4))] / n
    # The two rarer outcomes count one less, so the shares are 6, 2 and 3 of 11. After the end a
    # walker begins anew in one of four states. The limit is 5 standard deviations.
    expected = np.array([0, 6, 2, 0]) / 11 + 3 / 11 / 4
    np.testing.assert_allclose(shares, expected, atol=0.015)


def test_walkers_begin_anew_where_no_way_is_known():
    rings = [*range(5), *range(10, 15), *range(20, 25)]
    islands = [(cell, 0, cell // 10 * 10 + (cell + 1) % 5, False) for cell in rings]
    sampler, state_of = sampler_to([*islands, (30, 0, 0, False)], [3, 30])
    rng = np.random.default_rng(0)
    met = np.stack([sampler.sample(np.arange(2), 1, rng)[0] for _ in range(500)])
    # The first goal is reached from 6 of the 16 states. Walkers are there more often.
    on_island = np.isin(met[:, 0], state_of(np.array([*range(5), 30])))
    assert on_island.mean() > 0.55
    # No way leads to the second goal, so walkers are everywhere.
    assert set(met[:, 1]) == set(state_of(np.array([*rings, 30])))
