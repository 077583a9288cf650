import gymnasium as gym
import numpy as np
import pytest

from gym_twoRooms.env import TwoRoomsSwitchEnv
from gym_twoRooms.layout import Layout
from gym_twoRooms.mdp import compile_layout
from gym_twoRooms.oracle import OraclePolicy, expected_steps, optimal_values, reach_probabilities, transition_matrices
from sb3_manygoals import evaluate_mastery
from sb3_manygoals.tabular import AllGoalsTable

PAPER, SMALL = (compile_layout(Layout.named(name)) for name in ("paper", "small"))


def test_matrices_agree_with_the_dynamics():
    """The same frequencies as many draws of mdp.step, from states that slip, that may close the door, and that do both."""
    rng = np.random.default_rng(0)
    matrices = transition_matrices(SMALL)
    door_open = SMALL.doors_open[:, 0]
    kinds = [SMALL.slips & door_open, SMALL.slips & ~door_open, ~SMALL.slips & door_open]
    draws = 40_000
    for kind in kinds:
        state = rng.choice(np.flatnonzero(kind))
        for action, matrix in enumerate(matrices):
            arrived = SMALL.step(np.full(draws, state), np.full(draws, action), lambda rows: rng.random(len(rows)))
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


def test_expected_steps_by_hand():
    corridor = compile_layout(Layout.parse("....\n####"))
    np.testing.assert_allclose(expected_steps(corridor, [0, 3]), [[0, 3], [1, 2], [2, 1], [3, 0]])
    # on slippery floor: right works with probability 5/8, so 8/5 steps
    slippery = compile_layout(Layout.parse("W.\n##"), slip_probability=0.5)
    np.testing.assert_allclose(expected_steps(slippery, [1]), [[1.6], [0.0]], rtol=1e-5)


def test_rolling_the_oracle_out_agrees_with_what_it_expects():
    goals = np.arange(3, SMALL.n_states, 31)
    policy, steps = OraclePolicy(SMALL, goals), expected_steps(SMALL, goals)
    env = TwoRoomsSwitchEnv("small")
    rng = np.random.default_rng(1)
    errors = []
    for episode in range(400):
        start, column = int(rng.integers(SMALL.n_states)), int(rng.integers(len(goals)))
        observation, _ = env.reset(seed=episode, options={"state": start})
        goal = env.observation_of(int(goals[column]))[None]
        taken = 0
        while env.state != goals[column]:
            action = policy.predict({"observation": observation[None], "desired_goal": goal})[0]
            observation = env.step(action[0])[0]
            taken += 1
        errors.append(taken - steps[start, column])
    errors = np.array(errors)
    assert abs(errors.mean()) < 4.5 * errors.std() / len(errors) ** 0.5
    assert errors.std() < 0.5 * steps.mean()  # so that the bound above says something


def test_rolling_the_oracle_out_on_the_default_map_agrees_with_exact_probabilities():
    goals = np.random.default_rng(2).choice(PAPER.n_states, 40, replace=False)
    policy, matrices, columns = OraclePolicy(PAPER, goals), transition_matrices(PAPER), np.arange(len(goals))
    for horizon, most in ((25, 0.7), (50, 0.995)):
        exact = np.zeros((PAPER.n_states, len(goals)))
        exact[goals, columns] = 1.0
        for _ in range(horizon):
            options = np.stack([matrix @ exact for matrix in matrices])
            exact = np.take_along_axis(options, policy.actions[None], axis=0)[0]
            exact[goals, columns] = 1.0
        env = gym.make_vec("TwoRoomsSwitch-v0", num_envs=1_000)
        found = evaluate_mastery(policy, env, PAPER.observe(goals), horizon, episodes_per_goal=50, seed=5)
        error = (exact.mean() * (1 - exact.mean()) / found.reached.size) ** 0.5
        assert found.rate == pytest.approx(exact.mean(), abs=4.5 * error)
        assert 0.4 < exact.mean() < most


def test_no_deadline_costs_a_little_under_a_deadline():
    goals = np.arange(0, SMALL.n_states, 23)
    best = reach_probabilities(SMALL, goals, 15)
    actions, matrices = OraclePolicy(SMALL, goals).actions, transition_matrices(SMALL)
    followed = np.zeros_like(best)
    columns = np.arange(len(goals))
    followed[goals, columns] = 1.0
    for _ in range(15):
        options = np.stack([matrix @ followed for matrix in matrices])
        followed = np.take_along_axis(options, actions[None], axis=0)[0]
        followed[goals, columns] = 1.0
    assert (followed <= best + 1e-12).all()
    assert 0.0 < (best - followed).mean() < 0.05


def test_optimal_values_by_hand():
    corridor = compile_layout(Layout.parse("....\n####"))
    values = optimal_values(corridor, [0, 3], gamma=0.9)
    assert values.shape == (4, 5, 2)
    # one step: 0, two: -0.1, three: -0.1 - 0.09; at the goal, bumping into the wall comes to it again
    np.testing.assert_allclose(values.max(axis=1), [[0, -0.19], [0, -0.1], [-0.1, 0], [-0.19, 0]], atol=1e-6)
    # from cell 1 towards cell 3: up, down and toggle stay, left goes to cell 0, right to cell 2
    np.testing.assert_allclose(values[1, :, 1], [-0.19, -0.19, -0.1 - 0.9 * 0.19, -0.1, -0.19], atol=1e-6)
    np.testing.assert_allclose(values[3, :, 1], [0, 0, -0.1, 0, 0], atol=1e-6)
    # right arrives with probability 5/8, else it is tried again: v = 5/8 r + 3/8 (-1 + 0.5 v)
    slippery = compile_layout(Layout.parse("W.\n##"), slip_probability=0.5)
    found = optimal_values(slippery, [1], gamma=0.5, step_reward=-1.0, goal_reward=2.0)[0, :, 0].max()
    assert found == pytest.approx((5 / 8 * 2 - 3 / 8) / (1 - 3 / 16), abs=1e-6)


def test_optimal_values_agree_with_value_iteration_state_by_state():
    """On a map with a door, a block and slippery floor, by loops over the probabilities that the tables give."""
    mdp = compile_layout(Layout.parse("S.W.\n....\n##D#\n...S\n.B..\n...."), slip_probability=0.3, close_probability=0.2)

    def successors(state, action):
        moves = [(0.7, action)] + [(0.075, move) for move in range(4)] if mdp.slips[state] else [(1.0, action)]
        for chance, move in moves:
            arrived = mdp.next_state[state, move]
            yield 0.8 * chance, arrived
            yield 0.2 * chance, mdp.closed_state[arrived, 1]

    goals = [3, mdp.n_states - 2]
    expected = np.zeros((mdp.n_states, 5, len(goals)))
    for column, goal in enumerate(goals):
        for _ in range(60):  # 0.7 ** 60 is below 1e-9
            best = expected[:, :, column].max(axis=1)
            for state in range(mdp.n_states):
                for action in range(5):
                    expected[state, action, column] = sum(
                        chance * (0.5 if after == goal else -0.2 + 0.7 * best[after])
                        for chance, after in successors(state, action)
                    )
    found = optimal_values(mdp, goals, gamma=0.7, step_reward=-0.2, goal_reward=0.5)
    np.testing.assert_allclose(found, expected, atol=2e-6)
    assert np.ptp(expected) > 0.5


def test_a_table_that_is_taught_everything_comes_to_the_optimal_values():
    mdp = compile_layout(Layout.parse("..#..\n.S.D.\n..#.S"), close_probability=0.0)  # so that every transition is certain
    table = AllGoalsTable(mdp.n_states, 5)
    states, actions = (grid.ravel() for grid in np.indices((mdp.n_states, 5)))
    for _ in range(40):
        table.update(states, actions, mdp.next_state.ravel(), learning_rate=1.0, gamma=0.95)
    goals = np.arange(mdp.n_states)
    np.testing.assert_allclose(table.values, optimal_values(mdp, goals, gamma=0.95), atol=1e-5)


def test_optimal_actions_for_near_enough_no_discount_are_those_of_the_fewest_steps():
    goals = np.arange(0, SMALL.n_states, 29)
    values, steps = optimal_values(SMALL, goals, gamma=0.999), expected_steps(SMALL, goals)
    away = steps > 0
    np.testing.assert_allclose(values.max(axis=1)[away], -0.1 * (steps[away] - 1), rtol=0.03, atol=1e-6)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match=r"gamma must be in \[0, 1\), got 1"):
        optimal_values(SMALL, [0], gamma=1)
    with pytest.raises(ValueError, match="tolerance must be positive, got 0"):
        optimal_values(SMALL, [0], tolerance=0)
    with pytest.raises(ValueError, match="horizon must not be negative, got -1"):
        reach_probabilities(SMALL, [0], -1)
    with pytest.raises(ValueError, match="tolerance must be positive, got 0"):
        expected_steps(SMALL, [0], 0)
    with pytest.raises(ValueError, match=r"goals must be a sequence of at least one state number, got shape \(0,\)"):
        expected_steps(SMALL, np.array([], dtype=int))
    policy = OraclePolicy(SMALL, [0])
    with pytest.raises(ValueError, match=r"The goals \[1\] were not planned for"):
        policy.predict({"observation": SMALL.observations[:1], "desired_goal": SMALL.observations[1:2]})
    with pytest.raises(ValueError, match=r"A state must be in \[0,"):
        reach_probabilities(SMALL, [SMALL.n_states], 1)
