"""What a replay memory says of the world, against counting its transitions."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sb3_manygoals.many_goals_dqn.planning import ReplayModel
from tests.sb3_manygoals.many_goals_dqn.memories import filled, shares_of

N, A = 7, 3
steps = st.lists(
    st.tuples(st.integers(0, N - 1), st.integers(0, A - 1), st.integers(0, N - 1), st.booleans()), min_size=1, max_size=40
)


@given(steps, st.integers(1, 40))
def test_shares_are_those_of_all_transitions_also_of_those_no_longer_kept(transitions, buffer_size):
    buffer = filled(transitions, n_actions=A, buffer_size=buffer_size)
    model, of = ReplayModel.of(buffer), {cell: state for state, cell in enumerate(buffer.states.observations.tolist())}
    led = {(of[here], action): [] for here, action, *_ in transitions}
    for here, action, there, ended in transitions:
        led[of[here], action].append((of[there], ended))
    assert {tuple(pair) for pair in np.argwhere(model.tried).tolist()} == led.keys()
    expected = np.zeros((2, model.n_states, A, model.n_states))
    for pair, ends in led.items():
        for (state, ended), share in shares_of(ends).items():
            expected[(int(ended), *pair, state)] = share
    np.testing.assert_allclose(model.on.toarray(), expected[0].reshape(-1, model.n_states), rtol=1e-6)
    np.testing.assert_allclose(model.ends.toarray(), expected[1].reshape(-1, model.n_states), rtol=1e-6)


def test_what_was_seen_less_often_than_the_rest_is_doubted():
    # of five: thrice to 1, once to 2, once to an end in 1
    buffer = filled([(0, 0, 1, False)] * 3 + [(0, 0, 2, False), (0, 0, 1, True)], n_actions=A)
    model = ReplayModel.of(buffer)
    assert model.on.toarray()[0].tolist() == [0.0, 1.0, 0.0]
    assert model.ends.nnz == 0
    # twice to 2 is believed by half, and of equals none is doubted
    buffer = filled([(0, 0, 1, False)] * 3 + [(0, 0, 2, False)] * 2 + [(3, 1, 0, False), (3, 1, 0, True)], n_actions=A)
    model = ReplayModel.of(buffer)
    assert model.on.toarray()[model.tried.ravel()].tolist() == [[0.0, 0.75, 0.25, 0.0], [0.5, 0.0, 0.0, 0.0]]
    assert model.ends.toarray()[model.tried.ravel()].tolist() == [[0.0] * 4, [0.5, 0.0, 0.0, 0.0]]
