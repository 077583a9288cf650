"""Walkers on the ways to planned goals."""

import numpy as np
import pytest
from sb3_manygoals.many_goals_dqn.routes import Routes

from sb3_manygoals.many_goals_dqn import routes
from sb3_manygoals.many_goals_dqn.planning import ReplayPlan
from tests.sb3_manygoals.many_goals_dqn.memories import filled, goals_of


def routes_to(transitions, cells):
    """Walkers to goals, of a draw if there are others; the number of each cell; and random numbers."""
    buffer = filled(transitions)
    goals = goals_of(
        np.unique([cell for here, _, there, _ in transitions for cell in (here, there)])
    )
    plan = ReplayPlan(0.99, 0.0, -0.1)
    plan.refresh(buffer, goals)
    plan.goal_ids = goals.ids(np.array(cells))
    return Routes(plan), buffer.states.ids, np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _certain(monkeypatch):
    monkeypatch.setattr(routes, "_RANDOM", 0.0)


def test_walkers_follow_the_plan_and_begin_anew_at_their_goal():
    chain = [(cell, 1, cell + 1, False) for cell in range(40)] + [(40, 1, 0, False)]
    walkers, state_of, rng = routes_to(chain, [30, 7])
    place = np.argsort(state_of(np.arange(41)))  # cells of states
    columns = np.arange(2)
    before, anew = place[walkers.draw(columns, 1, rng)[0]], 0
    for _ in range(200):
        after = place[walkers.draw(columns, 1, rng)[0]]
        near = (np.array([30, 7]) - before) % 41 <= 3
        np.testing.assert_array_equal(after[~near], (before[~near] + 3) % 41)
        anew, before = anew + (near & (after != (before + 3) % 41)), after
    assert (anew > 5).all()
    walkers.draw(np.array([1]), 1, rng)
    assert place[walkers.states[0, 0]] == before[0]  # the other one stays where it is


def test_walkers_to_one_goal_are_apart_and_take_all_best_ways(monkeypatch):
    chain = [(cell, 1, cell + 1, False) for cell in range(90)]
    walkers, state_of, rng = routes_to(chain, [90])
    monkeypatch.setattr(walkers, "_begin", lambda n, rng: state_of(np.zeros(n, dtype=np.int64)))
    np.testing.assert_array_equal(
        walkers.draw(np.array([0]), 2, rng)[:, 0], state_of(np.array([3, 67]))
    )
    fork = [
        (0, 0, 1, False),
        (0, 1, 2, False),
        (0, 2, 0, False),
        (1, 0, 3, False),
        (2, 0, 3, False),
    ]
    walkers, state_of, rng = routes_to(fork, [3])
    walkers.draw(np.array([0]), 1, rng)
    after = walkers._step(
        np.repeat(state_of(np.array([0])), 1_000), np.repeat(walkers.plan.goal_ids, 1_000), rng
    )
    np.testing.assert_allclose(
        np.bincount(after)[state_of(np.array([1, 2]))] / 1_000, 0.5, atol=0.08
    )  # 5 standard deviations


def test_walkers_take_an_end_for_the_goal_that_it_reaches_and_no_other():
    ends = [(0, 0, 1, True), (0, 1, 2, False), (2, 0, 0, False), (2, 1, 1, True), (2, 2, 3, False)]
    walkers, state_of, rng = routes_to(ends, [1, 3])
    walkers.draw(np.arange(2), 1, rng)
    for column, start, action in ((0, 0, 0), (1, 0, 1), (1, 2, 2)):
        assert walkers._choose(
            state_of(np.array([start])), walkers.plan.goal_ids[[column]], rng
        ) == [action]


def test_walkers_meet_outcomes_as_often_as_the_model_says():
    outcomes = (
        [(0, 0, 1, False)] * 6 + [(0, 0, 2, False)] * 3 + [(0, 0, 3, True)] * 4
    )  # the rarer two count one less
    walkers, state_of, rng = routes_to(
        [*outcomes, (1, 0, 3, False), (2, 0, 3, False), (3, 0, 0, False)], [3]
    )
    walkers.draw(np.array([0]), 1, rng)
    n = 20_000
    after = walkers._step(
        np.repeat(state_of(np.array([0])), n), np.repeat(walkers.plan.goal_ids, n), rng
    )
    shares = np.bincount(after, minlength=4)[state_of(np.arange(4))] / n
    # 6, 2 and 3 of 11; after the end it begins anew, anywhere
    np.testing.assert_allclose(
        shares, np.array([0, 6, 2, 0]) / 11 + 3 / 11 / 4, atol=0.015
    )  # 5 standard deviations


def test_walkers_begin_anew_where_no_way_is_known():
    islands = [
        (cell, 0, cell // 10 * 10 + (cell + 1) % 5, False)
        for cell in (*range(5), *range(10, 15), *range(20, 25))
    ]
    walkers, state_of, rng = routes_to([*islands, (30, 0, 0, False)], [3, 30])
    met = np.stack([walkers.draw(np.arange(2), 1, rng)[0] for _ in range(500)])
    on_island = np.isin(
        met[:, 0], state_of(np.array([*range(5), 30]))
    )  # from which the first goal is reached
    assert on_island.mean() > 0.55  # of 16 states 6 are there
    assert set(met[:, 1]) == set(state_of(np.array([cell for cell, *_ in islands]))) | set(
        state_of(np.array([30]))
    )
