import gymnasium as gym
import numpy as np
import pytest

from gym_twoRooms import TwoRoomsSwitchEnv
from gym_twoRooms.oracle import reach_probabilities, transition_matrices

TWO_DOORS = "SW.\n#D#\nT.S\n.W.\n#E#\n.WT"


def test_one_slippery_cell_by_hand():
    env = TwoRoomsSwitchEnv("W.\n##", slip_probability=0.5)
    # left is a wall: the half that does not slip stays, and so do three of the four random moves
    assert env.P[0][2] == [(0.875, 0, 0.0, False), (0.125, 1, 0.0, False)]
    assert env.P[0][3] == [(0.375, 0, 0.0, False), (0.625, 1, 0.0, False)]
    assert env.P[1] == {action: [(1.0, 0 if action == 2 else 1, 0.0, False)] for action in range(5)}


def test_a_closing_door_by_hand():
    env = TwoRoomsSwitchEnv("S.D.S\n#####", close_probability=0.25)
    mdp = env.mdp
    shut, opened = (int(mdp.encode(0, (), [door_open])) for door_open in (False, True))
    assert env.P[shut][4] == sorted([(0.25, shut, 0.0, False), (0.75, opened, 0.0, False)], key=lambda one: one[1])
    in_the_door = int(mdp.encode(2, (), [True]))
    before_it = int(mdp.encode(1, (), [True]))
    assert env.P[before_it][3] == [(1.0, in_the_door, 0.0, False)]


@pytest.mark.parametrize(
    ("layout", "slip", "close"),
    [("paper", 0.5, 0.01), ("small", 1.0, 0.3), ("S.\nWD", 0.2, 0.9), ("small", 0.3, 0.0), (TWO_DOORS, 0.5, 0.3)],
)
def test_it_is_the_same_as_the_matrices(layout, slip, close):
    env = TwoRoomsSwitchEnv(layout, slip_probability=slip, close_probability=close)
    n = env.mdp.n_states
    assert list(env.P) == list(range(n))
    matrices = transition_matrices(env.mdp)
    for action, matrix in enumerate(matrices):
        assert all(list(env.P[state]) == list(range(5)) for state in range(n))
        entries = [(p, state, after, end) for state in range(n) for p, after, _, end in env.P[state][action]]
        chances, rows, columns, ends = (np.array(part) for part in zip(*entries, strict=True))
        assert len(set(zip(rows.tolist(), columns.tolist(), strict=True))) == len(rows)  # no next state twice
        assert chances.min() > 0.0
        assert not ends.any()
        np.testing.assert_allclose(np.bincount(rows, chances), 1.0, atol=1e-12)
        matrix = matrix.copy()
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
        assert matrix.nnz == len(rows)
        np.testing.assert_allclose(matrix[rows, columns], chances, atol=1e-12)


def test_it_has_the_form_of_toy_text():
    ours = TwoRoomsSwitchEnv("small").P
    theirs = gym.make("FrozenLake-v1").unwrapped.P
    for model in (ours, theirs):
        assert type(model) is dict
        assert type(model[0]) is dict
        assert type(model[0][0]) is list
        probability, state, reward, terminated = model[0][0][0]
        assert isinstance(probability, float)
        assert isinstance(state, int)
        assert isinstance(reward, (int, float))
        assert isinstance(terminated, bool)


def test_value_iteration_on_it_finds_the_best_probabilities():
    """A planner as they are written for toy_text, which knows nothing else of the world."""
    env = TwoRoomsSwitchEnv("small")
    goal, horizon = 17, 30
    values = {state: float(state == goal) for state in env.P}
    for _ in range(horizon):
        values = {
            state: 1.0
            if state == goal
            else max(sum(p * (reward + values[after]) for p, after, reward, _ in outcomes) for outcomes in actions.values())
            for state, actions in env.P.items()
        }
    expected = reach_probabilities(env.mdp, [goal], horizon)[:, 0]
    np.testing.assert_allclose([values[state] for state in range(env.mdp.n_states)], expected, atol=1e-12)


def test_it_is_built_once_and_only_when_asked_for():
    env = TwoRoomsSwitchEnv("small")
    assert "P" not in vars(env)
    assert env.P is env.P
    assert env.P is not TwoRoomsSwitchEnv("small").P  # which someone may have changed
