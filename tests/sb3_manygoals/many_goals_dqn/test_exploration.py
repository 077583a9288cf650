"""Exploration by counts, against loops over what was tried."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sb3_manygoals.goals import UNKNOWN
from sb3_manygoals.many_goals_dqn import exploration as module
from sb3_manygoals.many_goals_dqn.exploration import CountBonus
from tests.sb3_manygoals.many_goals_dqn.memories import CELLS, add, filled, shares_of

N, A = 6, 3
cells, actions = st.integers(0, N - 1), st.integers(0, A - 1)
moves = st.lists(st.tuples(cells, actions, cells, st.booleans()), min_size=1, max_size=30)


def looped(modelled, later, sweeps, discount):
    """The class's equation, a pair at a time; transitions of ``later`` only count. What follows each action, by cells."""
    most, cells = (
        1 / (1 - discount),
        {cell for here, _, there, _ in modelled + later for cell in (here, there)},
    )
    tried = {(cell, action): 0 for cell in cells for action in range(A)}
    for here, action, *_ in modelled + later:
        tried[here, action] += 1
    pairs = {(here, action) for here, action, *_ in modelled}
    shares = {
        pair: shares_of([(there, ended) for *one, there, ended in modelled if tuple(one) == pair])
        for pair in pairs
    }
    values = dict.fromkeys(cells, most / 2)
    for _ in range(sweeps):
        # after an end of the environment nothing follows; what came later may lead anywhere: back, say
        led = {
            pair: discount
            * sum(
                share * values[there] for (there, ended), share in shares[pair].items() if not ended
            )
            if pair in shares
            else discount * (values[pair[0]] if tried[pair] else most)
            for pair in tried
        }
        values = {
            cell: max((1 + tried[cell, a]) ** -0.5 + led[cell, a] for a in range(A))
            for cell in cells
        }
    return led


@given(moves, moves)
def test_what_follows_is_the_loop_over_transitions(modelled, later):
    buffer, bonus = filled(modelled, n_actions=A), CountBonus(A)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_SWEEPS", 200)
        patch.setattr(module, "_TOLERANCE", 0.0)
        patch.setattr(module, "_DISCOUNT", 0.8)  # so that both come to their end
        bonus.refresh(buffer)
        for move in later:
            add(buffer, *move)
        bonus._solve(buffer)
    expected = looped(modelled, later, 60, 0.8)
    for state, cell in enumerate(buffer.states.observations.tolist()):
        for action in range(A):
            assert bonus.led[state, action] == pytest.approx(expected[cell, action], abs=1e-3)


@given(moves)
def test_actions_are_the_most_promising(transitions):
    buffer, bonus, rng = filled(transitions, n_actions=A), CountBonus(A), np.random.default_rng(0)
    bonus.refresh(buffer)
    n = len(buffer.states)
    worth = 1 / np.sqrt(1 + buffer.tried[:n]) + bonus.led
    for _ in range(3):
        chosen = bonus.actions(np.arange(n), buffer, rng)
        np.testing.assert_allclose(worth[np.arange(n), chosen], worth.max(axis=1), atol=1e-5)
    masks = np.arange(A) != chosen[:, None]
    second = bonus.actions(np.arange(n), buffer, rng, masks)
    np.testing.assert_allclose(
        worth[np.arange(n), second], np.where(masks, worth, -1).max(axis=1), atol=1e-5
    )


def test_what_no_mask_has_allowed_promises_nothing():
    buffer, bonus, rng = (
        filled([(0, 0, 1, False), (1, 0, 0, False)], n_actions=A),
        CountBonus(A),
        np.random.default_rng(0),
    )
    for masks in (
        [[1, 1, 0], [1, 0, 0]],
        [[1, 0, 0], [1, 0, 0]],
    ):  # action 1 was allowed in the first state, once
        bonus.actions(np.array([0, 1]), buffer, rng, np.array(masks, np.bool_))
    for copy in (bonus, CountBonus(A)):
        copy.set_checkpoint_state(bonus.get_checkpoint_state())
        copy.refresh(buffer)
        near = 1.0 + 0.99 / (1 - 0.99)  # an action never tried, that is allowed
        np.testing.assert_allclose(copy.values, [near, 2**-0.5 + 0.99 * near], atol=0.01)
        np.testing.assert_array_equal(bonus._allowed[:3], [[1, 1, 0], [1, 0, 0], [0, 0, 0]])


def test_it_is_solved_anew_as_the_transitions_met_grow():
    buffer, bonus = filled([(0, 0, 1, False)], n_actions=A), CountBonus(A)
    assert buffer.n_tried == 1
    steps = {50_000: True, 50_199: False, 50_200: True, 52_499: True, 52_500: True, 52_599: False}
    models = []
    for step, due in steps.items():
        buffer.n_tried, bonus.values = step, np.zeros(0)
        bonus.refresh(buffer)
        assert len(bonus.values) == (2 if due else 0), step
        models.append(bonus._model)
    assert [models.index(model) for model in models] == [
        0,
        0,
        0,
        0,
        4,
        4,
    ]  # made every 5% of the transitions


def test_it_sees_all_of_a_long_corridor_far_sooner_than_chance():
    """From one end, never reset, until its other end is seen: by chance the 100 cells take about 15,000 steps."""
    buffer, bonus, rng = (
        filled([], n_actions=A, buffer_size=20_000),
        CountBonus(A),
        np.random.default_rng(0),
    )
    cell = step = 0
    while cell < CELLS.n - 1:
        if step:
            bonus.refresh(buffer)
        action = int(bonus.actions(buffer.states.add(np.array([cell])), buffer, rng)[0])
        there = max(cell + (-1, 1, 0)[action], 0)
        add(buffer, cell, action, there, False)
        cell, step = there, step + 1
    assert step < 5_000


def test_unknown_states_are_left_at_random_and_new_ones_by_what_was_tried():
    buffer, bonus, rng = (
        filled([(0, 1, 0, False)], n_actions=A),
        CountBonus(A),
        np.random.default_rng(0),
    )
    drawn = bonus.actions(np.full(9_000, UNKNOWN), buffer, rng)
    np.testing.assert_allclose(
        np.bincount(drawn) / 9_000, np.full(A, 1 / A), atol=0.025
    )  # 5 standard deviations
    assert 1 not in bonus.actions(
        np.zeros(100, dtype=np.int64), buffer, rng
    )  # nothing is solved yet
    bonus.led = np.array([[0.0, 0.25, -9.0]])  # 1 beats 1 / sqrt(2) + 0.25
    assert bonus.actions(np.array([0]), buffer, rng) == [0]
    bonus.led[0, 1] = 0.35
    assert bonus.actions(np.array([0]), buffer, rng) == [1]
