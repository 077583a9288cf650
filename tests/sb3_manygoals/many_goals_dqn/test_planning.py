"""Plans for all goals, against loops over transitions and against the exact solution of a world."""

import contextlib
import weakref

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

import gym_twoRooms  # noqa: F401
from gym_twoRooms.oracle import transition_matrices
from sb3_manygoals import GoalBuffer, GymnasiumVecEnv, ManyGoalsDQN
from sb3_manygoals.goals import UNKNOWN
from sb3_manygoals.many_goals_dqn import planning
from sb3_manygoals.many_goals_dqn.planning import AllGoalsPlan
from sb3_manygoals.many_goals_dqn.transition_model import TransitionModel
from sb3_manygoals.world import WorldModel
from tests.sb3_manygoals.many_goals_dqn.memories import goals_of, record, shares_of, world_of

N_CELLS = 7
N_ACTIONS = 3
GAMMA = 0.9
GOAL_REWARD = 0.5
STEP_REWARD = -0.2
NEVER = STEP_REWARD / (1 - GAMMA)
LEAST_VALUE = NEVER + (GOAL_REWARD - NEVER) * np.exp(-3)
CHAIN = [(cell, 1, cell + 1, False) for cell in range(40)]

cells = st.integers(0, N_CELLS - 1)
transitions_of = st.tuples(cells, st.integers(0, N_ACTIONS - 1), cells, st.booleans())
steps = st.lists(transitions_of, min_size=1, max_size=60)


def new_plan(max_bytes=np.inf, seed=None):
    return AllGoalsPlan(GAMMA, GOAL_REWARD, STEP_REWARD, max_bytes, seed)


@contextlib.contextmanager
def at_most(sweeps):
    """Let plans have so many sweeps at most."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "_MOST_SWEEPS", sweeps)
        patch.setattr(planning, "_sweeps_of_few_pairs", lambda *_: sweeps)
        yield


def known_goals(goals, **kwargs):
    """Return a goal buffer with these cells as goals, in ascending order."""
    return goals_of(sorted(goals), capacity=100, **kwargs)


def planned(transitions, goals, most_sweeps=100, plan=None):
    """Return a plan for goals, which are cells or a goal buffer, and the world it was made in."""
    if not isinstance(goals, GoalBuffer):
        goals = known_goals(goals)
    plan = new_plan() if plan is None else plan
    world = world_of(transitions, goals)
    with at_most(most_sweeps):
        plan.refresh(world, goals)
    return plan, world


def shares_by_pair(transitions):
    """Return the shares of outcomes of each pair of cell and action that occurs."""
    ends = {}
    for here, action, there, ended in transitions:
        ends.setdefault((here, action), []).append((there, ended))
    return {pair: shares_of(ends_of_pair) for pair, ends_of_pair in ends.items()}


def action_value(shares, goal, value_of):
    """Return the value of an action with these outcomes, given the values of next cells."""
    total = 0.0
    for (there, ended), share in shares.items():
        value = STEP_REWARD + GAMMA * value_of(there)
        if ended:
            value = NEVER
        if there == goal:
            value = GOAL_REWARD
        total += share * value
    return total


def values_by_loop(transitions, goals, sweeps):
    """
    Iterate the equation of the class, a pair of cell and goal at a time.

    Actions that always led back to the same cell are left out.
    """
    shares = shares_by_pair(transitions)
    useful = {pair: ends for pair, ends in shares.items() if set(ends) != {(pair[0], False)}}
    values = {(cell, goal): NEVER for cell in range(N_CELLS) for goal in goals}
    for _ in range(sweeps):
        better = dict.fromkeys(values, NEVER)
        for (cell, _), ends in useful.items():
            for goal in goals:
                known = {there: values[there, goal] for there, _ in ends}
                found = action_value(ends, goal, known.__getitem__)
                better[cell, goal] = max(better[cell, goal], found)
        values = better
    return values


@given(steps)
def test_the_shares_of_the_model_are_those_of_all_transitions(transitions):
    world = world_of(transitions, n_actions=N_ACTIONS)
    model = TransitionModel.of(world)
    state_of = {cell: state for state, cell in enumerate(world.identity.observations.tolist())}
    expected = np.zeros((2, model.n_states, N_ACTIONS, model.n_states))
    for (here, action), ends in shares_by_pair(transitions).items():
        assert model.tried[state_of[here], action]
        for (there, ended), share in ends.items():
            expected[int(ended), state_of[here], action, state_of[there]] = share
    assert model.tried.sum() == len({(here, action) for here, action, *_ in transitions})
    tried_cells = {here for here, *_ in transitions}
    assert set(model.tried_states) == {state_of[cell] for cell in tried_cells}
    for found, wanted in zip(
        (model.transitions, model.terminal_transitions), expected, strict=True
    ):
        wanted = wanted.reshape(-1, model.n_states)
        np.testing.assert_allclose(found.toarray(), wanted, rtol=1e-6)


@given(steps, st.integers(1, 5))
def test_values_are_the_loop_over_transitions_and_those_of_actions_follow(transitions, sweeps):
    goals = known_goals({there for _, _, there, _ in transitions})
    plan, world = planned(transitions, goals, sweeps)
    state_cells = world.identity.observations.tolist()
    goal_cells = goals.observations.tolist()
    expected = values_by_loop(transitions, goal_cells, sweeps)
    shares = shares_by_pair(transitions)
    found = plan.action_values(np.arange(len(state_cells)), np.arange(len(goal_cells)))
    for (state, goal, action), value in np.ndenumerate(found):
        cell = state_cells[state]
        aim = goal_cells[goal]
        expected_value = plan.arrival_value if cell == aim else expected[cell, aim]
        assert plan.values[state, goal] == pytest.approx(expected_value, abs=1e-3)
        wanted = NEVER
        if (cell, action) in shares:
            known = dict(zip(state_cells, plan.values[:, goal].tolist(), strict=True))
            wanted = action_value(shares[cell, action], aim, known.__getitem__)
        if wanted >= LEAST_VALUE + 1e-5:
            assert value == pytest.approx(wanted, abs=1e-5)
        elif wanted < LEAST_VALUE - 1e-5:
            assert np.isnan(value)


# One cell stands for all that there was no room for.
LOST = N_CELLS - 1


@given(steps, st.sets(st.integers(0, N_CELLS - 2), min_size=1), st.integers(1, 5))
def test_what_led_to_states_without_room_is_an_outcome_that_reaches_no_goal(
    transitions, known, sweeps
):
    known = sorted(known)
    goals = goals_of(known, capacity=len(known))
    plan, world = planned(transitions, goals, sweeps)
    seen = [
        (here, action, there, ended) if there in known else (here, action, LOST, True)
        for here, action, there, ended in transitions
        if here in known
    ]
    expected = values_by_loop(seen, known, sweeps)
    for (state, goal), value in np.ndenumerate(plan.values):
        if state != goal:
            assert value == pytest.approx(expected[known[state], known[goal]], abs=1e-3)
    shares = shares_by_pair(seen)
    places = np.arange(len(known))
    for (state, goal, action), value in np.ndenumerate(plan.action_values(places, places)):
        if (known[state], action) in shares:
            of_cells = dict(zip(known, plan.values[:, goal].tolist(), strict=True)) | {LOST: NEVER}
            ends = shares[known[state], action]
            wanted = action_value(ends, known[goal], of_cells.__getitem__)
            if wanted >= LEAST_VALUE + 1e-5:
                assert value == pytest.approx(wanted, abs=1e-5)
    restored = TransitionModel.from_checkpoint_state(plan.model.get_checkpoint_state())
    np.testing.assert_equal(restored.get_checkpoint_state(), plan.model.get_checkpoint_state())
    likeliest = plan.model.likeliest()
    for (cell, action), ends in shares.items():
        row = known.index(cell) * world.n_actions + action
        is_lost = ends.get((LOST, True), 0.0) > max(
            (share for end, share in ends.items() if end != (LOST, True)), default=0.0
        )
        edges = likeliest.transitions[[row]].nnz + likeliest.terminal_transitions[[row]].nnz
        assert edges == (0 if is_lost else 1)


@given(steps, st.sets(st.integers(0, N_CELLS + 1), min_size=1), cells)
def test_the_best_actions_are_those_of_value_iteration_to_convergence(
    transitions, goal_cells, held_out
):
    """
    Some of the goals were never met in a transition.

    A held-out observation is a state to go through, and no goal.
    """
    goals = known_goals(goal_cells, held_out=np.array([held_out]))
    plan, world = planned(transitions, goals, 500)
    aims = goals.observations.tolist()
    state_cells = world.identity.observations.tolist()
    assert held_out not in aims
    values = values_by_loop(transitions, aims, 200)
    shares = shares_by_pair(transitions)
    met = {cell for here, _, there, _ in transitions for cell in (here, there)}
    pairs = [
        (state, goal)
        for state, cell in enumerate(state_cells)
        for goal, aim in enumerate(aims)
        if cell != aim and cell in met
    ]
    states, goal_ids = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    best_actions = plan.best_actions(states, goal_ids).tolist()
    for (state, goal), best in zip(pairs, best_actions, strict=True):
        cell = state_cells[state]
        aim = aims[goal]
        assert plan.values[state, goal] == pytest.approx(values[cell, aim], abs=0.01)
        found = {
            action: action_value(ends, aim, lambda there, aim=aim: values[there, aim])
            for (here, action), ends in shares.items()
            if here == cell
        }
        highest = max(found.values(), default=NEVER)
        if best == -1:
            assert highest < LEAST_VALUE + 0.01
        else:
            # Another action may be as good.
            assert found[best] == pytest.approx(highest, abs=0.02)
            assert highest >= LEAST_VALUE - 0.01


def test_no_action_is_known_for_unknown_states_and_goals():
    plan, _ = planned(CHAIN[:3], range(4))
    states = np.array([UNKNOWN, 0, 4, 0])
    goal_ids = np.array([3, UNKNOWN, 3, 4])
    assert plan.best_actions(states, goal_ids).tolist() == [-1] * 4
    assert plan.best_actions(np.array([0]), np.array([3])).tolist() == [1]


def test_in_a_world_that_was_tried_out_everywhere_it_is_exact():
    """Each outcome was met in proportion. All probabilities are multiples of 1/400."""
    mdp = gym.make("TwoRoomsSwitchSmall-v0").unwrapped.mdp
    n_times = 400
    goals = goals_of(range(0, mdp.n_states, 7), spaces.Discrete(mdp.n_states))
    world = WorldModel(goals.states, mdp.n_actions)
    matrices = transition_matrices(mdp)
    for action, matrix in enumerate(matrices):
        for cell, shares in enumerate(matrix.toarray()):
            there = np.repeat(np.arange(mdp.n_states), np.rint(n_times * shares).astype(int))
            world.record(
                goals.states.add(np.full(len(there), cell)),
                np.full(len(there), action),
                goals.states.add(there),
                np.zeros(len(there)),
                np.zeros(len(there), dtype=bool),
            )
    plan = AllGoalsPlan(0.99, 0.0, -0.1)
    with at_most(1_000):
        plan.refresh(world, goals)

    returns = np.zeros((mdp.n_states, len(goals)))
    # After 1,000 sweeps errors are below 0.99 ** 1_000, which is below 1e-4.
    for _ in range(1_000):
        exact = np.max([matrix @ returns for matrix in matrices], axis=0)
        returns = -0.1 + 0.99 * exact
        returns[goals.observations, np.arange(len(goals))] = 0.0
    met = goals.states.observations
    # The value of a goal itself is not used, and does not follow the equation.
    elsewhere = met[:, None] != goals.observations
    # One of 400 outcomes is not believed, so that there is a small error.
    np.testing.assert_allclose(plan.values[elsewhere], exact[met][elsewhere], atol=0.04)


def test_it_starts_from_the_last_plan_and_learns_of_new_states_and_goals():
    once, _ = planned(CHAIN[:6], range(7), 6)
    twice, _ = planned(CHAIN[:3], range(4), 3)
    assert twice.values.shape == (4, 4)
    copied = new_plan()
    copied.set_checkpoint_state(twice.get_checkpoint_state())
    for plan in (twice, copied):
        planned(CHAIN[:6], range(7), 3, plan)
    np.testing.assert_equal(copied.get_checkpoint_state(), twice.get_checkpoint_state())
    # Twice three sweeps are as many as once six.
    np.testing.assert_allclose(twice.values[0, 1:4], once.values[0, 1:4])
    # Goal 6 is six steps away. Three sweeps from the last plan do not reach so far.
    far = sum(STEP_REWARD * GAMMA**k for k in range(5)) + GOAL_REWARD * GAMMA**5
    assert once.values[0, 6] == pytest.approx(far)
    assert twice.values[0, 6] < once.values[0, 6]


def test_a_plan_that_is_to_converge_makes_as_many_sweeps_as_it_takes():
    known, world = planned(CHAIN[:20], range(21))
    plan = new_plan()
    with at_most(2):
        plan.refresh(world, known_goals(range(21)), converge=True)
    np.testing.assert_allclose(plan.values, known.values, atol=1e-3)
    np.testing.assert_array_equal(plan.best, known.best)


def test_a_later_plan_knows_ways_as_long_as_values_tell():
    goals = GoalBuffer(spaces.Discrete(1_000), 1_000)
    world = WorldModel(goals.states, 2)
    plan = AllGoalsPlan(0.99, 0.0, -0.1)
    for begin, end in ((0, 100), (100, 350)):
        goals.add(np.arange(begin, end))
        left = np.arange(max(begin - 1, 0), end - 1)
        for action, here, there in ((1, left, left + 1), (0, left + 1, left)):
            actions = np.full(len(left), action)
            zeros = np.zeros(len(left))
            world.record(here, actions, there, zeros, zeros.astype(bool))
        plan.refresh(world, goals, converge=begin == 0)
    distance = np.abs(np.arange(350)[:, None] - np.arange(350))
    assert (plan.best[(distance > 0) & (distance < 290)] >= 0).all()


def test_where_luck_was_the_only_way_a_goal_is_given_up_as_in_a_new_plan():
    transitions = [(0, 1, 1, False), (1, 1, 2, False), (2, 0, 2, False)]
    idle = [(1, 1, 1, False)] * 5
    goals = known_goals(range(3))
    plan, world = planned(transitions, goals)
    assert plan.best_actions(np.array([0]), np.array([2])).tolist() == [1]
    record(world, idle)
    plan.refresh(world, goals)
    fresh, _ = planned([*transitions, *idle], range(3))
    np.testing.assert_allclose(plan.values, fresh.values, rtol=1e-5)
    np.testing.assert_array_equal(plan.best, fresh.best)
    assert plan.best_actions(np.array([0]), np.array([2])).tolist() == [-1]


def test_values_that_are_not_known_are_nan():
    # No way leads back from the end of the chain. Action 4 in cell 1 leads back to cell 1.
    plan, _ = planned([*CHAIN[:15], (1, 4, 1, False)], range(16))
    found = plan.action_values(np.array([1, UNKNOWN, 16]), np.array([2, UNKNOWN, 1, 16]))
    assert found.shape == (3, 4, 5)
    known = ~np.isnan(found)
    assert np.argwhere(known).tolist() == [[0, 0, 1], [0, 0, 4], [0, 2, 4]]
    expected = [GOAL_REWARD, STEP_REWARD + GAMMA * GOAL_REWARD, GOAL_REWARD]
    np.testing.assert_allclose(found[known], expected)


def test_a_way_counts_as_known_up_to_three_times_the_horizon_of_the_discount():
    plan, _ = planned(CHAIN, range(41))
    known = ~np.isnan(plan.action_values(np.array([0]), np.arange(1, 41)))[0, :, 1]
    assert known.tolist() == [GAMMA**distance >= np.exp(-3) for distance in range(40)]
    assert known.sum() == 29


def test_a_goal_that_is_rarely_reached_is_still_worth_a_try():
    # Action 1 reaches cell 1 in 2 of 10 tries, and terminates otherwise, as action 2 always does.
    outcomes = [(0, 1, 1, False)] * 2 + [(0, 1, 2, True)] * 8 + [(0, 2, 2, True)] * 10
    plan, _ = planned(outcomes, range(3))
    assert plan.best_actions(np.array([0]), np.array([1])).tolist() == [1]


@given(steps, st.integers(1, N_CELLS - 1))
def test_a_partial_plan_is_as_good_as_one_for_all_goals_and_exchanges_its_goals(
    transitions, n_planned
):
    goals = known_goals(range(N_CELLS))
    all_goals, world = planned(transitions, goals, 500)
    assert not all_goals.is_partial
    plan = new_plan(n_planned * 5 * N_CELLS + 1)
    with at_most(500):
        plan.refresh(world, goals)
    ids = np.arange(N_CELLS)
    seen = set()
    for _ in range(N_CELLS):
        seen |= set(plan.goal_ids)
        assert plan.is_partial
        assert len(set(plan.goal_ids)) == n_planned
        assert plan.nbytes <= plan.max_bytes
        assert plan.nbytes == plan.values.nbytes + plan.best.nbytes
        expected_values = all_goals.values[:, plan.goal_ids]
        np.testing.assert_allclose(plan.values, expected_values, atol=0.01)
        found = plan.action_values(ids, ids)
        expected = all_goals.action_values(ids, ids)
        assert np.isnan(np.delete(found, plan.goal_ids, axis=1)).all()
        for_both = [
            np.nan_to_num(values[:, plan.goal_ids], nan=LEAST_VALUE) for values in (found, expected)
        ]
        np.testing.assert_allclose(*for_both, atol=0.02)
        actions = plan.best_actions(np.zeros(N_CELLS, np.int64), ids)
        assert set(ids[actions >= 0]) <= set(plan.goal_ids)
        assert 1 <= plan.exchange_goals() <= n_planned
    assert len(seen) > n_planned


@pytest.mark.parametrize("most_sweeps", [0, 1])
def test_without_chance_breadth_first_search_finds_the_values_without_sweeps(most_sweeps):
    moves = [
        (cell, action, cell + move)
        for cell in range(36)
        for action, move in enumerate((1, -1, 6, -6))
    ]
    grid = [(cell, action, there, False) for cell, action, there in moves if 0 <= there < 36]
    goals = known_goals(range(36))
    plan, world = planned(grid, goals)
    partial = new_plan(5 * 36 * 35)
    with at_most(most_sweeps):
        partial.refresh(world, goals)
    assert partial.is_partial
    # Goals and states have the same ids.
    is_achieved = partial.is_achieved(np.arange(36)[:, None], partial.goal_ids)
    np.testing.assert_array_equal(is_achieved, np.arange(36)[:, None] == partial.goal_ids)
    elsewhere = np.arange(36)[:, None] != partial.goal_ids
    expected = plan.values[:, partial.goal_ids]
    np.testing.assert_allclose(partial.values[elsewhere], expected[elsewhere], atol=1e-4)


def test_the_likeliest_model_has_only_the_most_frequent_outcomes():
    common = [(0, 0, 1, False)] * 3 + [(1, 0, 2, False)] * 2 + [(2, 0, 0, True)] * 4
    rare = [(0, 0, 2, False)] * 2 + [(1, 0, 0, True), (0, 0, 0, True)] + [(2, 0, 0, False)] * 3
    with_rare, without = (
        TransitionModel.of(world_of(transitions, known_goals(range(3))))
        for transitions in (common + rare, common)
    )
    likeliest = with_rare.likeliest()
    for name in ("transitions", "terminal_transitions"):
        found = getattr(likeliest, name).toarray()
        np.testing.assert_array_equal(found, getattr(without, name).toarray())
    np.testing.assert_array_equal(likeliest.tried, with_rare.tried)


def test_observations_for_which_there_was_no_room_are_in_no_plan():
    goals = goals_of([0, 1], capacity=2)
    plan, _ = planned([(0, 1, 1, False), (1, 1, 2, False), (2, 1, 3, False)], goals)
    achieved = plan.arrival_value
    np.testing.assert_allclose(plan.values, [[achieved, GOAL_REWARD], [NEVER, achieved]])


def test_a_plan_that_does_not_fit_into_memory_is_refused(monkeypatch):
    goals = known_goals(range(4))
    world = world_of(CHAIN[:3], goals)
    monkeypatch.setattr("sb3_manygoals.memory_limits.available_memory", lambda: 10)
    message = r"planning would take .* fewer max_plan_bytes in target_kwargs"
    with pytest.raises(MemoryError, match=message):
        new_plan().refresh(world, goals)


@pytest.mark.parametrize("jumps_end", [False, True])
def test_without_chance_a_search_counts_steps_as_value_iteration_does_though_worlds_end(
    jumps_end, monkeypatch
):
    forward = CHAIN[:29]
    back = [(cell + 1, 0, cell, False) for cell in range(29)]
    jumps = [(cell, 2, cell + 6, jumps_end) for cell in range(1, 24, 3)]
    iterated, _ = planned(forward + back + jumps, range(30))
    # A plan of so many pairs has no sweeps.
    monkeypatch.setattr(planning, "_MANY_PAIRS", 1)
    monkeypatch.setattr(planning, "_TOO_MANY_PAIRS_TO_SWEEP", 1)
    searched, _ = planned(forward + back + jumps, range(30))
    # The value of a goal itself is not used.
    elsewhere = ~np.eye(30, dtype=np.bool_)
    found, expected = (plan.values[elsewhere] for plan in (searched, iterated))
    np.testing.assert_allclose(found, expected, atol=1e-3)
    states, goal_ids = (index.ravel() for index in np.indices((30, 30)))
    is_unknown = [plan.best_actions(states, goal_ids) < 0 for plan in (searched, iterated)]
    np.testing.assert_array_equal(*is_unknown)


def test_a_plan_without_sweeps_gives_actions_their_most_frequent_outcome(monkeypatch):
    """Its values know nothing of chance. One-step values that did would not fit to them."""
    usual = CHAIN[:19] * 3
    here, action, _, _ = CHAIN[5]
    monkeypatch.setattr(planning, "_MANY_PAIRS", 1)
    monkeypatch.setattr(planning, "_TOO_MANY_PAIRS_TO_SWEEP", 1)
    # An outcome that was seen once does not count.
    slips = [(here, action, 2, False)] * 2
    slippery, _ = planned(usual + slips, range(20))
    certain, _ = planned(usual, range(20))
    ids = np.arange(20)
    expected = certain.action_values(ids, ids)
    assert np.isfinite(expected[here, 9, action])
    np.testing.assert_array_equal(slippery.action_values(ids, ids), expected)


@pytest.mark.parametrize("fits", [True, False])
def test_the_last_plan_is_given_up_first_if_it_does_not_fit_beside_a_larger_one(fits, monkeypatch):
    """The values are the same."""
    back = [(cell + 1, 0, cell, False) for cell in range(30)]
    expected, _ = planned(CHAIN[:30] + back, range(31))
    both = 21 * 21 * 4 + 31 * 31 * 5
    plan = new_plan(both if fits else both - 1)
    planned(CHAIN[:20], range(21), plan=plan)
    last_values = weakref.ref(plan.values)
    was_held = []
    monkeypatch.setattr(
        "sb3_manygoals.many_goals_dqn.planning.check_memory",
        lambda *_: was_held.append(last_values() is not None),
    )
    planned(CHAIN[:30] + back, range(31), plan=plan)
    assert was_held == [fits]
    assert not plan.is_partial
    assert plan.nbytes == 31 * 31 * 5
    np.testing.assert_allclose(plan.values, expected.values, atol=1e-3)
    np.testing.assert_array_equal(plan.best, expected.best)


def partial_plan(seed):
    """Return a plan for a sample of 4 of 31 goals."""
    plan = new_plan(5 * 31 * 4, seed)
    planned(CHAIN[:30], range(31), plan=plan)
    return plan


def test_goals_are_sampled_by_the_seed():
    first = partial_plan(0).goal_ids.tolist()
    assert partial_plan(0).goal_ids.tolist() == first
    assert partial_plan(1).goal_ids.tolist() != first
    assert partial_plan(None).goal_ids.tolist() != partial_plan(None).goal_ids.tolist()


def test_a_plan_from_a_checkpoint_goes_on_with_the_next_samples():
    first = partial_plan(0)
    copied = partial_plan(2)
    copied.set_checkpoint_state(first.get_checkpoint_state())
    for plan in (first, copied):
        plan.exchange_goals()
    assert first.goal_ids.tolist() == copied.goal_ids.tolist()
    for plan in (first, copied):
        planned(CHAIN[:30], range(31), plan=plan)
    assert first.goal_ids.tolist() == copied.goal_ids.tolist()


def test_a_plan_of_many_pairs_begins_with_a_search_and_is_nearly_the_same(monkeypatch):
    """The small map: most actions have one outcome, and some tiles have chance."""
    # Many environments take so many steps in less time than one.
    worlds = gym.make_vec("TwoRoomsSwitchSmall-v0", num_envs=16, autoreset_mode="Disabled")
    model = ManyGoalsDQN("CnnPolicy", GymnasiumVecEnv(worlds), seed=0, updates_per_step=1e-3)
    model.learn(20_000)
    plan = model.targets.plan
    plan.refresh(model.world, model.goal_buffer, converge=True)
    values = plan.values.copy()
    monkeypatch.setattr(planning, "_MANY_PAIRS", 1)
    assert 0.75 < plan.model.certain_share < 1.0
    plan.refresh(model.world, model.goal_buffer)
    steps = np.abs(plan.values - values) / plan.step_cost
    assert steps.max() < 1.0
    assert steps.mean() < 0.01
    monkeypatch.setattr(planning, "_CERTAIN_SHARE", 1.0)
    plan.refresh(model.world, model.goal_buffer)
    assert np.abs(plan.values - values).max() < 0.01
