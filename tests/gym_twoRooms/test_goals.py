"""Where the agent is and which doors are open, read from pictures, and the ceiling for that."""

import functools
from itertools import product

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import VectorEnv

from gym_twoRooms import (
    agent_cell,
    agent_cell_and_doors,
    agent_surroundings,
    compile_layout,
)
from gym_twoRooms.layout import Layout, LayoutError
from gym_twoRooms.oracle import mastery_ceiling, reach_probabilities, transition_model

WIDE_DOORS = Layout.parse("S...T\n.....\n#DDE#\n.....\nT...S")
MAPS = {name: compile_layout(name) for name in ("paper", "small", "locks")}
MAPS["wide doors"] = compile_layout(WIDE_DOORS)
SMALL = MAPS["small"]


@pytest.mark.parametrize("name", MAPS)
def test_all_states_are_read_right(name):
    mdp = MAPS[name]
    hidden = 0
    for state in range(mdp.n_states):
        picture = mdp.observe(state)
        row, column = divmod(int(mdp.agent[state]), mdp.layout.width)
        doors = mdp.doors_open[state].astype(int).tolist()
        cell = agent_cell(picture)
        assert cell.dtype == np.int64
        assert cell.tolist() == [row, column]
        found = agent_cell_and_doors(picture, mdp.layout)
        assert found.dtype == np.int64
        assert found.tolist() == [row, column, *doors]
        hidden += any((row, column) in cells for cells in mdp.layout.doors)
    # In some states the agent stands in a door.
    assert hidden > 0


@pytest.mark.parametrize("name", MAPS)
def test_surroundings_have_the_blocks_beside_the_agent(name):
    mdp = MAPS[name]
    width = mdp.layout.width
    seen = np.zeros(4, dtype=np.int64)
    for state in range(mdp.n_states):
        picture = mdp.observe(state)
        found = agent_surroundings(picture, mdp.layout)
        assert found.dtype == np.int64
        parts = agent_cell_and_doors(picture, mdp.layout)
        np.testing.assert_array_equal(found[:-4], parts)
        row, column = divmod(int(mdp.agent[state]), width)
        blocks = [divmod(int(cell), width) for cell in mdp.blocks[state]]
        sides = [(row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)]
        expected = [int(side in blocks) for side in sides]
        assert found[-4:].tolist() == expected
        seen += expected
    assert (seen > 0).all() or mdp.blocks.shape[1] == 0


def test_the_map_may_be_given_in_all_ways():
    picture = MAPS["paper"].observe(5)
    assert agent_cell_and_doors(picture).tolist() == (
        agent_cell_and_doors(picture, "paper").tolist()
    )
    locks = MAPS["locks"]
    of_locks = functools.partial(agent_cell_and_doors, layout="locks")
    assert of_locks(locks.observe(77)).tolist() == (
        agent_cell_and_doors(locks.observe(77), str(locks.layout)).tolist()
    )
    # A map without doors has none that are open.
    empty = compile_layout(Layout.parse("...\n..."))
    assert agent_cell_and_doors(empty.observe(4), empty.layout).tolist() == [1, 1]


def test_any_picture_has_a_cell():
    """As a random observation, by which a space of goals is found."""
    noise = np.random.default_rng(0).integers(256, size=(8, 4, 3)).astype(np.uint8)
    row, column = agent_cell(noise)
    assert 0 <= row < 8
    assert 0 <= column < 4
    assert agent_cell_and_doors(noise, "small").shape == (3,)


@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        (lambda: agent_cell(np.zeros((4, 4), np.uint8)), ValueError, r"\(H, W, 3\), got \(4, 4\)"),
        (lambda: agent_cell(np.zeros((0, 4, 3), np.uint8)), ValueError, r"got \(0, 4, 3\)"),
        (
            lambda: agent_cell_and_doors(SMALL.observe(0)),
            ValueError,
            r"observation must have the size \(10, 10\) of the map, got \(8, 4\)",
        ),
        (lambda: agent_cell_and_doors(SMALL.observe(0), "tiny"), LayoutError, "no layout named"),
        (
            lambda: agent_cell_and_doors(SMALL.observe(0), ["..", ".."]),
            LayoutError,
            "A map must be a string, got list",
        ),
    ],
)
def test_bad_input_is_refused(ask, error, message):
    with pytest.raises(error, match=message):
        ask()


def near(achieved, goals):
    """Return which cells are at most one step away."""
    return np.abs(achieved - goals).sum(axis=1) <= 1


KINDS = {
    "cells": (agent_cell, None),
    "cells and doors": (functools.partial(agent_cell_and_doors, layout="small"), None),
    "cells at a distance": (agent_cell, 1.5),
    "a function": (agent_cell, near),
    "rows": (lambda picture: agent_cell(picture)[0], None),
    "pictures": (None, 0.0),
}


def ceiling_by_loop(mdp, is_achieved, horizon):
    """Return the chance of each state to reach a set in time, a state at a time."""
    model = transition_model(mdp)
    chances = is_achieved.astype(float)
    for _ in range(horizon):
        before = chances.copy()
        for state in np.flatnonzero(~is_achieved).tolist():
            chances[state] = max(
                sum(chance * before[there] for chance, there, *_ in outcomes)
                for outcomes in model[state].values()
            )
    return chances


def reaches(achieved, goal, reached):
    """Return whether one achievement reaches a goal."""
    if reached is near:
        return int(np.abs(achieved - goal).sum()) <= 1
    distance = sum(
        (float(a) - float(b)) ** 2 for a, b in zip(achieved.flat, goal.flat, strict=True)
    )
    return distance**0.5 <= (reached or 0.0)


@pytest.mark.parametrize("horizon", [0, 3, 9])
@pytest.mark.parametrize("kind", KINDS)
def test_the_ceiling_is_that_of_a_loop_over_states(kind, horizon, monkeypatch):
    monkeypatch.setattr("gym_twoRooms.oracle.CHUNK", 2)
    goal, reached = KINDS[kind]
    rng = np.random.default_rng(1)
    starts, wanted = rng.integers(SMALL.n_states, size=(2, 30))
    wanted[5:] = rng.choice(wanted[:5], 25)
    achieved = np.array(
        [
            SMALL.observe(s) if goal is None else goal(SMALL.observe(s))
            for s in range(SMALL.n_states)
        ]
    )
    found = mastery_ceiling(SMALL, horizon, goal, reached)(SMALL.observe(starts), achieved[wanted])
    assert found.shape == (30,)
    for target in np.unique(wanted).tolist():
        is_achieved = np.array([reaches(one, achieved[target], reached) for one in achieved])
        expected = ceiling_by_loop(SMALL, is_achieved, horizon)
        here = wanted == target
        np.testing.assert_allclose(found[here], expected[starts[here]], atol=1e-12)


def test_a_set_is_reached_at_least_as_surely_as_each_of_its_states():
    cells = np.array(list(product(range(2), range(4))))
    starts = np.full(len(cells), SMALL.n_states - 1)
    found = mastery_ceiling(SMALL, 12, agent_cell)(SMALL.observe(starts), cells)
    of_states = reach_probabilities(SMALL, np.arange(SMALL.n_states), 12)[starts[0]]
    for cell, chance in zip(cells, found, strict=True):
        states = np.flatnonzero(SMALL.agent == cell[0] * 4 + cell[1])
        assert chance >= of_states[states].max() - 1e-12


@pytest.mark.parametrize("reached", [None, 0.4, near])
def test_goals_that_were_rounded_to_the_dtype_of_their_space_have_their_ceilings(reached):
    """A goal buffer has goals in the dtype of ``goal_space``, which is float32 by default."""

    def rounded(picture):
        return (agent_cell(picture) / [7, 3]).astype(np.float32)

    def exact(picture):
        return agent_cell(picture) / [7, 3]

    starts = SMALL.observe(np.arange(SMALL.n_states))
    goals = np.array([rounded(picture) for picture in starts])[::-1]
    found = mastery_ceiling(SMALL, 5, exact, reached)(starts, goals)
    np.testing.assert_array_equal(found, mastery_ceiling(SMALL, 5, rounded, reached)(starts, goals))
    assert found.max() == 1.0


def test_where_no_state_achieves_a_goal_the_chance_is_none():
    ceiling = mastery_ceiling(SMALL, 50, agent_cell)
    # There is a wall in this cell.
    assert ceiling(SMALL.observe(np.array([0])), np.array([[3, 0]])).tolist() == [0.0]


def test_bad_goals_are_refused():
    look = SMALL.observe(np.array([0, 1]))
    with pytest.raises(ValueError, match="goals must be 1 pictures, one for each start, got 2"):
        mastery_ceiling(SMALL, 5)(look[:1], look)
    with pytest.raises(ValueError, match=r"goals must be of shape \(2, 2\).*got \(2, 3\)"):
        mastery_ceiling(SMALL, 5, agent_cell)(look, np.zeros((2, 3), int))
    with pytest.raises(ValueError, match=r"reached must return shape \(\d+,\), got \(\)"):
        mastery_ceiling(SMALL, 5, agent_cell, lambda left, right: True)(look, np.zeros((2, 2), int))
    with pytest.raises(ValueError, match="horizon must be an integer of at least 0, got -1"):
        mastery_ceiling(SMALL, -1, agent_cell)


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"goal": "cell"}, TypeError, "goal must be a function, got 'cell'"),
        ({"reached": "near"}, TypeError, "reached must be a number or a function, got 'near'"),
        ({"reached": True}, TypeError, "reached must be a number or a function, got True"),
        ({"reached": -1.0}, ValueError, "reached must be at least 0, got -1.0"),
        ({"reached": np.nan}, ValueError, "reached must be at least 0, got nan"),
        ({"horizon": -1}, ValueError, "horizon must be an integer of at least 0, got -1"),
        ({"mdp": 3}, TypeError, "mdp must be a TwoRoomsMDP, such as env.unwrapped.mdp, got int"),
    ],
)
def test_bad_arguments_of_the_ceiling_are_refused_at_once(kwargs, error, message):
    with pytest.raises(error, match=message):
        mastery_ceiling(**{"mdp": SMALL, "horizon": 5, **kwargs})


@pytest.mark.parametrize("reached", [None, 1.0])
def test_single_numbers_may_have_an_axis(reached):
    """A goal buffer gives them one."""
    ceiling = mastery_ceiling(SMALL, 4, lambda picture: agent_cell(picture)[0], reached)
    starts = SMALL.observe(np.arange(0, 60, 7))
    rows = np.arange(9) % 5
    np.testing.assert_array_equal(ceiling(starts, rows[:, None]), ceiling(starts, rows))


def test_states_of_the_vector_environment_are_read_too():
    env = gym.make_vec("TwoRoomsSwitchSmall-v0", 5, vectorization_mode="vector_entry_point")
    assert isinstance(env, VectorEnv)
    pictures, infos = env.reset(seed=0)
    cells = [agent_cell(picture).tolist() for picture in pictures]
    assert cells == [list(divmod(int(SMALL.agent[state]), 4)) for state in infos["state"]]
