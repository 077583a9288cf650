import numpy as np
import pytest

from gym_twoRooms.layout import Layout
from gym_twoRooms.mdp import compile_layout
from gym_twoRooms.oracle import reach_probabilities, transition_matrices

PAPER, SMALL = (compile_layout(Layout.named(name)) for name in ("paper", "small"))


def test_matrices_agree_with_the_dynamics():
    """The same frequencies as many draws of mdp.step, from states that slip, that may close the door, and that do both."""
    rng = np.random.default_rng(0)
    matrices = transition_matrices(SMALL)
    kinds = [SMALL.slips & SMALL.door_open, SMALL.slips & ~SMALL.door_open, ~SMALL.slips & SMALL.door_open]
    draws = 40_000
    for kind in kinds:
        state = rng.choice(np.flatnonzero(kind))
        for action, matrix in enumerate(matrices):
            arrived = SMALL.step(np.full(draws, state), np.full(draws, action), rng.random((draws, 2)))
            frequencies = np.bincount(arrived, minlength=SMALL.n_states) / draws
            np.testing.assert_allclose(matrix[[state]].toarray()[0], frequencies, atol=0.0125)  # 5 standard deviations
    for matrix in matrices:
        np.testing.assert_allclose(matrix.sum(axis=1), 1.0)


def test_a_corridor_by_hand():
    # one row cannot be told from a name, so two rows, of which the agent needs one; nothing is random
    mdp = compile_layout(Layout.parse("....\n####"))
    probabilities = reach_probabilities(mdp, [0, 3], horizon=2)
    np.testing.assert_array_equal(probabilities, [[1, 0], [1, 1], [1, 1], [0, 1]])


def test_slippery_floor_by_hand():
    mdp = compile_layout(Layout.parse("W.\n##"), slip_probability=0.5)
    # from the slippery cell, right: 1/2 for sure, and 1/4 of the other half by chance
    np.testing.assert_allclose(reach_probabilities(mdp, [1], 1)[0], 0.625)
    np.testing.assert_allclose(reach_probabilities(mdp, [1], 2)[0], 1 - 0.375**2)


def test_longer_is_never_worse_and_everything_can_be_reached_in_the_end():
    goals = np.arange(0, SMALL.n_states, 17)
    short, longer, long = (reach_probabilities(SMALL, goals, horizon) for horizon in (10, 30, 200))
    assert (longer >= short - 1e-12).all()
    assert (long >= longer - 1e-12).all()
    assert long.min() > 0.9999


def test_the_ceiling_of_the_default_map():
    """
    For all goals 0.568 / 0.985 / > 0.9999 within 25 / 50 / 100 steps, random start and goal. An independent solution gave
    0.54 / 0.98 / > 0.9999 for the policy that is the best one without a deadline; with a deadline one can do a little better.
    """
    goals = np.random.default_rng(0).choice(PAPER.n_states, 150, replace=False)
    means = [reach_probabilities(PAPER, goals, horizon).mean() for horizon in (25, 50, 100)]
    assert means[0] == pytest.approx(0.568, abs=0.03)
    assert means[1] == pytest.approx(0.985, abs=0.01)
    assert means[2] > 0.9999


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="horizon must not be negative, got -1"):
        reach_probabilities(SMALL, [0], -1)
    with pytest.raises(ValueError, match=r"A state must be in \[0,"):
        reach_probabilities(SMALL, [SMALL.n_states], 1)
