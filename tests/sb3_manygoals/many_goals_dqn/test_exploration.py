"""Exploration by visit counts, against loops over the transitions that were made."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sb3_manygoals.many_goals_dqn import exploration as module
from sb3_manygoals.many_goals_dqn.exploration import CountBonus
from sb3_manygoals.world import UNKNOWN
from tests.sb3_manygoals.many_goals_dqn.memories import (
    CELLS,
    cells_of,
    record,
    shares_of,
    world_of,
)

N_CELLS = 6
N_ACTIONS = 3
cells = st.integers(0, N_CELLS - 1)
move = st.tuples(cells, st.integers(0, N_ACTIONS - 1), cells, st.booleans())
moves = st.lists(move, min_size=1, max_size=30)
# Four transitions are the fewest after which values are computed again.
later_moves = st.lists(move, min_size=4, max_size=30)


def known_world(transitions):
    return world_of(transitions, n_actions=N_ACTIONS)


def next_values_by_loop(modelled, later, sweeps, discount):
    """
    Iterate the equation of the class, a pair of cell and action at a time.

    Transitions of ``later`` count as visits, but are not in the model.
    """
    largest = 1 / (1 - discount)
    met = cells_of(modelled + later)
    visits = {(cell, action): 0 for cell in met for action in range(N_ACTIONS)}
    for here, action, *_ in modelled + later:
        visits[here, action] += 1
    ends = {}
    for here, action, there, ended in modelled:
        ends.setdefault((here, action), []).append((there, ended))
    shares = {pair: shares_of(ends_of_pair) for pair, ends_of_pair in ends.items()}

    def next_value(pair, values):
        if pair in shares:
            # Nothing follows after the environment has terminated.
            return sum(
                share * values[there] for (there, ended), share in shares[pair].items() if not ended
            )
        # An action that is tried, but not in the model, counts as if it led back.
        return values[pair[0]] if visits[pair] else largest

    values = dict.fromkeys(met, largest / 2)
    for _ in range(sweeps):
        found = {pair: discount * next_value(pair, values) for pair in visits}
        values = {
            cell: max(
                (1 + visits[cell, action]) ** -0.5 + found[cell, action]
                for action in range(N_ACTIONS)
            )
            for cell in met
        }
    return found


@given(moves, later_moves)
def test_next_values_are_those_of_a_loop_over_transitions(modelled, later):
    world = known_world(modelled)
    bonus = CountBonus(N_ACTIONS)
    with pytest.MonkeyPatch.context() as patch:
        # With these settings both iterations converge.
        patch.setattr(module, "_MOST_SWEEPS", 200)
        patch.setattr(module, "_TOLERANCE", 0.0)
        patch.setattr(module, "_DISCOUNT", 0.8)
        patch.setattr(module, "_SOLVE_EVERY", 0)
        bonus.refresh(world, n_envs=1)
        record(world, later)
        bonus.refresh(world, n_envs=1)
    expected = next_values_by_loop(modelled, later, 60, 0.8)
    for state, cell in enumerate(world.identity.observations.tolist()):
        for action in range(N_ACTIONS):
            found = bonus.next_values[state, action]
            assert found == pytest.approx(expected[cell, action], abs=1e-3)


@given(moves)
def test_actions_are_the_most_promising(transitions):
    world = known_world(transitions)
    bonus = CountBonus(N_ACTIONS)
    rng = np.random.default_rng(0)
    bonus.refresh(world, n_envs=1)
    states = np.arange(len(world.identity))
    promise = 1 / np.sqrt(1 + world.visit_counts[states]) + bonus.next_values
    for _ in range(3):
        chosen = bonus.actions(states, world, rng)
        np.testing.assert_allclose(promise[states, chosen], promise.max(axis=1), atol=1e-5)
    masks = np.arange(N_ACTIONS) != chosen[:, None]
    second = bonus.actions(states, world, rng, masks)
    allowed = np.where(masks, promise, -1)
    np.testing.assert_allclose(promise[states, second], allowed.max(axis=1), atol=1e-5)


def test_an_action_that_no_mask_has_allowed_promises_nothing():
    world = known_world([(0, 0, 1, False), (1, 0, 0, False)])
    bonus = CountBonus(N_ACTIONS)
    states = np.array([0, 1])
    rng = np.random.default_rng(0)
    # Action 1 was allowed in the first state, once.
    for masks in ([[1, 1, 0], [1, 0, 0]], [[1, 0, 0], [1, 0, 0]]):
        bonus.actions(states, world, rng, np.array(masks, np.bool_))
    restored = CountBonus(N_ACTIONS)
    restored.set_checkpoint_state(bonus.get_checkpoint_state())
    # The value of a state in which an action is allowed that was never tried.
    near = 1.0 + 0.99 / (1 - 0.99)
    for one in (bonus, restored):
        one.refresh(world, n_envs=1)
        np.testing.assert_allclose(one.values, [near, 2**-0.5 + 0.99 * near], atol=0.01)


def test_values_and_model_are_computed_again_as_transitions_grow():
    world = known_world([(0, 0, 1, False)])
    bonus = CountBonus(N_ACTIONS)
    # After so many transitions: when values and the model were computed last.
    expected = {
        50_000: (50_000, 50_000),
        50_199: (50_000, 50_000),
        50_200: (50_200, 50_000),
        52_499: (52_499, 50_000),
        # The model is made again after a twentieth of the transitions.
        52_500: (52_500, 52_500),
        52_599: (52_500, 52_500),
    }
    for n_counted, (solved_at, modeled_at) in expected.items():
        world.n_counted = n_counted
        bonus.values = np.zeros(0)
        bonus.refresh(world, n_envs=1)
        state = bonus.get_checkpoint_state()
        assert state["solved_at"] == solved_at
        assert state["modeled_at"] == modeled_at
        assert len(bonus.values) == (2 if solved_at == n_counted else 0)


def test_it_sees_all_of_a_long_corridor_far_sooner_than_chance():
    """It begins at one end and is never reset. By chance 100 cells take about 15,000 steps."""
    world = known_world([])
    bonus = CountBonus(N_ACTIONS)
    rng = np.random.default_rng(0)
    cell = 0
    n_steps = 0
    while cell < CELLS.n - 1:
        if n_steps:
            bonus.refresh(world, n_envs=1)
        action = int(bonus.actions(world.identity.add(np.array([cell])), world, rng)[0])
        there = max(cell + (-1, 1, 0)[action], 0)
        record(world, [(cell, action, there, False)])
        cell = there
        n_steps += 1
    assert n_steps < 5_000


def test_actions_in_unknown_states_are_random():
    world = known_world([(0, 1, 0, False)])
    drawn = CountBonus(N_ACTIONS).actions(np.full(9_000, UNKNOWN), world, np.random.default_rng(0))
    shares = np.bincount(drawn) / 9_000
    # The limit is 5 standard deviations.
    np.testing.assert_allclose(shares, np.full(N_ACTIONS, 1 / N_ACTIONS), atol=0.025)


def test_actions_in_new_states_follow_the_visit_counts_alone():
    world = known_world([(0, 1, 0, False)])
    bonus = CountBonus(N_ACTIONS)
    rng = np.random.default_rng(0)
    # No values have been computed yet.
    assert 1 not in bonus.actions(np.zeros(100, dtype=np.int64), world, rng)
    # The bonus of an action never tried is 1, which is more than 1 / sqrt(2) + 0.25.
    bonus.next_values = np.array([[0.0, 0.25, -9.0]])
    assert bonus.actions(np.array([0]), world, rng) == [0]
    bonus.next_values[0, 1] = 0.35
    assert bonus.actions(np.array([0]), world, rng) == [1]
