import gymnasium as gym
import numpy as np
import pytest

from gym_twoRooms.env import TwoRoomsSwitchEnv
from gym_twoRooms.layout import Layout
from gym_twoRooms.mdp import compile_layout
from gym_twoRooms.oracle import OraclePolicy, expected_steps, reach_probabilities, transition_matrices
from sb3_manygoals import evaluate_mastery

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


def test_bad_input_is_refused():
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
