"""Plans for goals that are sets of states, against loops over transitions."""

import copy

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_manygoals import GoalBuffer
from sb3_manygoals.goals import UNKNOWN
from sb3_manygoals.many_goals_dqn import planning
from sb3_manygoals.many_goals_dqn.goal_directed_sampler import GoalDirectedSampler
from sb3_manygoals.many_goals_dqn.planning import AllGoalsPlan
from tests.sb3_manygoals.many_goals_dqn.memories import CELLS, shares_of, world_of

N_CELLS = 8
N_ACTIONS = 3
REWARDS = [(0.9, 0.5, -0.2), (0.9, 0.0, -0.1), (0.7, 1.0, 0.0), (0.8, -0.1, -0.5)]

cells = st.integers(0, N_CELLS - 1)
transitions_of = st.tuples(cells, st.integers(0, N_ACTIONS - 1), cells, st.booleans())
steps = st.lists(transitions_of, min_size=1, max_size=60)


def pair_of(cell):
    """Let a goal be reached in two cells."""
    return cell // 2


def is_near(achieved, desired):
    """Return which cells are the same or one to the right of the goal."""
    return (achieved == desired) | (achieved == desired + 1)


KINDS = {
    "pairs of cells": {"goal": pair_of, "goal_space": spaces.Discrete(100)},
    "cells at a distance": {"reached": 1},
    "a function": {"reached": is_near},
    "pairs at a distance": {"goal": pair_of, "goal_space": spaces.Discrete(100), "reached": 1},
    "keys": {"state_key": pair_of},
}


def goals_of(kind, held_out=()):
    """Return a goal buffer that has met all cells, in descending order."""
    goals = GoalBuffer(CELLS, 100, np.array(held_out, dtype=np.int64), **KINDS[kind])
    goals.add(np.arange(N_CELLS - 1, -1, -1))
    return goals


def sets_of(goals, n_states):
    """Return whether each state achieves each goal."""
    achieved = goals.achieved(goals.states.observations)
    found = np.zeros((n_states, len(goals)), dtype=np.bool_)
    for state, goal_id in np.ndindex(*found.shape):
        found[state, goal_id] = goals.is_reached(achieved[state], goals[goal_id])
    return found


def shares_by_pair(world, transitions):
    """Return the shares of outcomes of each pair of a state and an action that occurs."""
    ends = {}
    for here, action, there, ended in transitions:
        ids = world.identity.ids(np.array([here, there])).tolist()
        ends.setdefault((ids[0], action), []).append((ids[1], ended))
    return {pair: shares_of(ends_of_pair) for pair, ends_of_pair in ends.items()}


def action_value(shares, goal, values, is_achieved, rewards):
    """Return the value of an action with these outcomes, given the values of next states."""
    gamma, goal_reward, step_reward = rewards
    total = 0.0
    for (there, ended), share in shares.items():
        value = step_reward + gamma * values[there, goal]
        if ended:
            value = step_reward / (1 - gamma)
        if is_achieved[there, goal]:
            value = goal_reward
        total += share * value
    return total


def values_by_loop(shares, is_achieved, rewards, sweeps):
    """Iterate the equation of the class, a pair of state and goal at a time."""
    gamma, _, step_reward = rewards
    never = step_reward / (1 - gamma)
    useful = {pair: ends for pair, ends in shares.items() if set(ends) != {(pair[0], False)}}
    values = np.full(is_achieved.shape, never)
    for _ in range(sweeps):
        better = np.full(is_achieved.shape, never)
        for (state, _), ends in useful.items():
            for goal in range(is_achieved.shape[1]):
                found = action_value(ends, goal, values, is_achieved, rewards)
                better[state, goal] = max(better[state, goal], found)
        values = better
    return values


def assert_plan_is_right(plan, goals, world, transitions, rewards, sweeps=300, atol=0.02):
    """Compare values, actions and sets of all planned goals with those of the loop."""
    n_states = len(world.identity)
    is_achieved = sets_of(goals, n_states)
    shares = shares_by_pair(world, transitions)
    expected = values_by_loop(shares, is_achieved, rewards, sweeps)
    planned = plan.goal_ids
    states = np.arange(n_states)
    found_sets = plan.is_achieved(states[:, None], planned)
    np.testing.assert_array_equal(found_sets, is_achieved[:, planned])
    wanted = np.where(is_achieved, plan.arrival_value, expected)[:, planned]
    np.testing.assert_allclose(plan.values, wanted, atol=atol)
    assert plan.values[~found_sets].max(initial=-np.inf) < plan.arrival_value
    assert not plan.is_achieved(np.array([UNKNOWN]), planned[:1]).any()
    values_of_actions = plan.action_values(states, np.arange(len(goals)))
    for goal in planned.tolist():
        for state in states.tolist():
            of_actions = {
                action: action_value(ends, goal, expected, is_achieved, rewards)
                for (here, action), ends in shares.items()
                if here == state
            }
            for action in range(world.n_actions):
                found = values_of_actions[state, goal, action]
                value = of_actions.get(action, -np.inf)
                if value >= plan.least_value + atol:
                    assert found == pytest.approx(value, abs=atol)
                elif value < plan.least_value - atol:
                    assert np.isnan(found)
            if is_achieved[state, goal]:
                continue
            best = int(plan.best_actions(np.array([state]), np.array([goal]))[0])
            highest = max(of_actions.values(), default=-np.inf)
            if best == -1:
                assert highest < plan.least_value + atol
            else:
                assert of_actions[best] == pytest.approx(highest, abs=2 * atol)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(steps, st.sampled_from(REWARDS), st.sets(cells, max_size=2))
def test_sweeps_give_the_values_of_the_loop(kind, transitions, rewards, held_out):
    goals = goals_of(kind, [pair_of(cell) if "pairs" in kind else cell for cell in held_out])
    if len(goals) == 0:
        return
    world = world_of(transitions, goals, N_ACTIONS)
    plan = AllGoalsPlan(*rewards)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "_MOST_SWEEPS", 300)
        plan.refresh(world, goals)
    assert_plan_is_right(plan, goals, world, transitions, rewards)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15)
@given(steps, st.integers(1, 3))
def test_a_partial_plan_searches_first_and_exchanges_goals(kind, transitions, n_planned):
    goals = goals_of(kind)
    world = world_of(transitions, goals, N_ACTIONS)
    plan = AllGoalsPlan(*REWARDS[0], max_bytes=n_planned * 5 * len(world.identity) + 1, seed=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "_MOST_SWEEPS", 300)
        plan.refresh(world, goals)
        for _ in range(3):
            assert plan.is_partial
            assert_plan_is_right(plan, goals, world, transitions, REWARDS[0])
            copied = AllGoalsPlan(*REWARDS[0], max_bytes=plan.max_bytes)
            copied.set_checkpoint_state(copy.deepcopy(plan.get_checkpoint_state()))
            plan.exchange_goals()
            copied.exchange_goals()
            np.testing.assert_array_equal(copied.goal_ids, plan.goal_ids)
            np.testing.assert_array_equal(copied.values, plan.values)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(st.lists(st.tuples(cells, st.integers(0, 2)), min_size=1), st.booleans(), st.data())
def test_where_nothing_is_left_to_chance_a_search_alone_is_right(kind, tried, ends, data):
    outcomes = {pair: data.draw(st.tuples(cells, st.booleans())) for pair in tried}
    transitions = [
        (here, action, there, ended and ends) for (here, action), (there, ended) in outcomes.items()
    ]
    goals = goals_of(kind)
    if kind == "keys":
        # Cells of one state may lead elsewhere, which is chance.
        transitions = [(here, 2 * action + here % 2, *to) for here, action, *to in transitions]
    world = world_of(transitions, goals, 2 * N_ACTIONS)
    plan = AllGoalsPlan(*REWARDS[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "_MANY_PAIRS", 1)
        patch.setattr(planning, "_TOO_MANY_PAIRS_TO_SWEEP", 1)
        plan.refresh(world, goals)
    assert_plan_is_right(plan, goals, world, transitions, REWARDS[0], atol=1e-3)


@given(
    st.floats(0.01, 0.9999),
    st.floats(-10, 10),
    st.floats(1e-3, 10),
)
def test_the_return_of_arriving_is_the_reward_of_the_goal(gamma, goal_reward, cost):
    """``cost`` is what a step near the goal costs."""
    step_reward = (1 - gamma) * goal_reward - cost
    plan = AllGoalsPlan(gamma, goal_reward, step_reward)
    value = plan.arrival_value
    assert value.dtype == np.float32
    assert value > np.float32(goal_reward)
    returns = np.float32(gamma) * value + np.float32(step_reward)
    # Before the last rounding, the numbers are at most as large as both rewards together.
    ulp = np.spacing(np.float32(abs(goal_reward) + abs(step_reward)))
    assert abs(returns - np.float32(goal_reward)) <= ulp


@pytest.mark.parametrize(
    ("gamma", "goal_reward", "step_reward"),
    [
        (0.99, 0.0, -0.1),
        (0.99, 1.0, 0.0),
        (0.999, 1.0, 0.0),
        (0.5, 100.0, -1.0),
        (0.9, -1.0, -2.0),
        (0.95, 0.3, -1e-3),
        (0.99, 0.0, -1.0),
    ],
)
def test_for_usual_rewards_too(gamma, goal_reward, step_reward):
    value = AllGoalsPlan(gamma, goal_reward, step_reward).arrival_value
    returns = np.float32(gamma) * value + np.float32(step_reward)
    # Before the last rounding, the numbers are at most as large as both rewards together.
    ulp = np.spacing(np.float32(abs(goal_reward) + abs(step_reward)))
    assert abs(returns - np.float32(goal_reward)) <= ulp
    assert value > goal_reward


@pytest.mark.parametrize("n_outcomes", range(2, 40))
@pytest.mark.parametrize("goal_reward", [0.7, 1.0, 0.1, 3.3])
def test_many_ways_into_a_goal_do_not_count_as_the_goal_by_rounding(n_outcomes, goal_reward):
    """The shares of outcomes may add up to a little more than 1."""
    goals = GoalBuffer(CELLS, 100, goal=lambda cell: cell > 0, goal_space=spaces.MultiBinary(1))
    transitions = [(0, 0, cell, False) for cell in range(1, n_outcomes + 1)]
    world = world_of(transitions, goals, 1)
    goals.add(goals.states.observations)
    plan = AllGoalsPlan(0.9999, goal_reward, 0.0)
    plan.refresh(world, goals)
    goal_id = int(goals.ids(np.array([[1]], np.int8))[0])
    states = np.arange(n_outcomes + 1)
    assert plan.is_achieved(states, np.full(n_outcomes + 1, goal_id)).tolist() == [
        False,
        *[True] * n_outcomes,
    ]
    column = plan.values[:, plan.columns_of(np.array([goal_id]))[0]]
    assert column[0] == pytest.approx(goal_reward, rel=1e-5)
    assert column[0] < plan.arrival_value


def test_a_plan_learns_of_new_states_of_a_known_goal():
    goals = GoalBuffer(CELLS, 100, goal=pair_of, goal_space=spaces.Discrete(100))
    chain = [(cell, 0, cell + 1, False) for cell in range(6)]
    world = world_of(chain[:2], goals, 2)
    goals.add(np.arange(3))
    plan = AllGoalsPlan(*REWARDS[0])
    plan.refresh(world, goals)
    assert_plan_is_right(plan, goals, world, chain[:2], REWARDS[0])
    # Cell 3 is a second cell of a goal that is known, behind the first one.
    for here, action, there, ended in [*chain[2:], (0, 1, 3, False)]:
        ids = goals.observe(np.array([here, there]))[0]
        world.record(ids[:1], np.array([action]), ids[1:], np.zeros(1), np.array([ended]))
    plan.refresh(world, goals)
    assert_plan_is_right(plan, goals, world, [*chain, (0, 1, 3, False)], REWARDS[0])


def test_walkers_begin_anew_in_any_state_of_their_goal():
    goals = goals_of("pairs of cells")
    chain = [(cell, 0, (cell + 1) % N_CELLS, False) for cell in range(N_CELLS)]
    world = world_of(chain, goals, 1)
    plan = AllGoalsPlan(*REWARDS[0])
    plan.refresh(world, goals)
    sampler = GoalDirectedSampler(plan)
    columns, states = sampler.sample(len(goals), 2_000, np.random.default_rng(0))
    cells_met = goals.states.observations[states]
    for column, met in zip(columns, cells_met.T, strict=True):
        goal = int(goals[plan.goal_ids[column]])
        shares = np.bincount(met, minlength=N_CELLS) / len(met)
        # In the goal itself a walker is only where it begins.
        assert shares[[2 * goal, 2 * goal + 1]].max() < shares.max() / 3
