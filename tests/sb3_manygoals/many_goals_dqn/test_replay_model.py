"""What a replay memory says of the world, against counting its transitions."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sb3_manygoals.goals import UNKNOWN
from sb3_manygoals.many_goals_dqn.planning import ReplayModel
from tests.sb3_manygoals.many_goals_dqn.memories import filled, shares_of

N, A = 7, 3
steps = st.lists(
    st.tuples(st.integers(0, N - 1), st.integers(0, A - 1), st.integers(0, N - 1), st.booleans()), min_size=1, max_size=40
)


def counted(transitions, buffer):
    """Where each pair leads, by numbers of states: {(state, action): {(next state, ended): share}}."""
    of = {cell: state for state, cell in enumerate(buffer.states.observations.tolist())}
    led = {}
    for here, action, there, ended in transitions:
        led.setdefault((of[here], action), []).append((of[there], ended))
    return {pair: shares_of(ends) for pair, ends in sorted(led.items())}


@given(steps, st.integers(1, 40))
def test_shares_are_those_of_all_transitions_also_of_those_no_longer_kept(transitions, buffer_size):
    buffer = filled(transitions, n_actions=A, buffer_size=buffer_size)
    model, expected = ReplayModel.of(buffer), counted(transitions, buffer)
    assert model.tried.tolist() == [state * A + action for state, action in expected]
    on, ends = model.on.toarray(), model.ends.toarray()
    for row, shares in enumerate(expected.values()):
        for state in range(model.n_states):
            np.testing.assert_allclose(on[row, state], shares.get((state, False), 0.0), rtol=1e-6)
            np.testing.assert_allclose(ends[row, state], shares.get((state, True), 0.0), rtol=1e-6)
    assert model.left.tolist() == sorted({state for state, _ in expected})
    asked = np.array([0, UNKNOWN, model.n_states - 1])
    rows, places = model.rows(asked)
    at = [(index, pair) for index, state in enumerate(asked) for pair in expected if pair[0] == state]
    assert places.tolist() == [index * A + action for index, (_, action) in at]
    assert model.tried[rows].tolist() == [state * A + action for _, (state, action) in at]


@given(steps)
def test_slots_hold_every_option_once_and_no_idle_one(transitions):
    buffer = filled(transitions, n_actions=A)
    model = ReplayModel.of(buffer)
    options = {pair: shares for pair, shares in counted(transitions, buffer).items() if set(shares) != {(pair[0], False)}}
    n_options = [sum(state == each for each, _ in options) for state in range(model.n_states)]
    order, place, slots = model.options()
    # those first in which the most is to be chosen from, of equals the earlier
    assert order.tolist() == sorted(range(model.n_states), key=lambda state: -n_options[state])
    assert order[place].tolist() == place[order].tolist() == list(range(model.n_states))
    assert len(slots) == max(n_options)
    found = {}
    for number, slot in enumerate(slots):
        assert len(slot.actions) == sum(n > number for n in n_options)
        on, ends = slot.on.toarray(), slot.ends.toarray()
        for row, action in enumerate(slot.actions.tolist()):
            state = int(order[row])
            assert all(taken < action for each, taken in found if each == state)  # a state's options in their order
            shares = {(int(order[column]), False): on[row, column] for column in np.flatnonzero(on[row])}
            shares |= {(int(column), True): ends[row, column] for column in np.flatnonzero(ends[row])}
            found[state, action] = shares
    assert found.keys() == options.keys()
    for pair, shares in found.items():
        assert shares.keys() == options[pair].keys()
        np.testing.assert_allclose([shares[end] for end in options[pair]], list(options[pair].values()), rtol=1e-6)


def test_what_was_seen_less_often_than_the_rest_is_doubted():
    # of five: thrice to 1, once to 2, once to an end in 1
    buffer = filled([(0, 0, 1, False)] * 3 + [(0, 0, 2, False), (0, 0, 1, True)], n_actions=A)
    model = ReplayModel.of(buffer)
    assert model.on.toarray().tolist() == [[0.0, 1.0, 0.0]]
    assert model.ends.nnz == 0
    # twice to 2 is believed by half, and of equals none is doubted
    buffer = filled([(0, 0, 1, False)] * 3 + [(0, 0, 2, False)] * 2 + [(3, 1, 0, False), (3, 1, 0, True)], n_actions=A)
    model = ReplayModel.of(buffer)
    assert model.on.toarray().tolist() == [[0.0, 0.75, 0.25, 0.0], [0.5, 0.0, 0.0, 0.0]]
    assert model.ends.toarray().tolist() == [[0.0] * 4, [0.5, 0.0, 0.0, 0.0]]
