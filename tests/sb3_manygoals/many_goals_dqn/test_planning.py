"""Values planned in the replay memory, against loops over its transitions and against exact planning in the world itself."""

import weakref

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

import gym_twoRooms  # noqa: F401
from gym_twoRooms.oracle import transition_matrices
from sb3_manygoals import GoalBuffer
from sb3_manygoals.goals import UNKNOWN, ObservationTable
from sb3_manygoals.many_goals_dqn import ManyGoalsReplayBuffer
from sb3_manygoals.many_goals_dqn.planning import ReplayModel, ReplayPlan
from tests.sb3_manygoals.many_goals_dqn.memories import GOAL_SPACE, add, filled, goals_of, shares_of

N, A, GAMMA, GOAL_REWARD, STEP_REWARD = 7, 3, 0.9, 0.5, -0.2
NEVER = STEP_REWARD / (1 - GAMMA)
HORIZON = NEVER + (GOAL_REWARD - NEVER) * np.exp(-3)
CHAIN = [(cell, 1, cell + 1, False) for cell in range(40)]

cells, actions = st.integers(0, N - 1), st.integers(0, A - 1)
steps = st.lists(st.tuples(cells, actions, cells, st.booleans()), min_size=1, max_size=60)


def planned(transitions, goals, sweeps, plan=None):
    """A plan, and the memory it was made in."""
    plan, buffer = plan or ReplayPlan(GAMMA, GOAL_REWARD, STEP_REWARD, sweeps), filled(transitions)
    plan.refresh(buffer, goals if isinstance(goals, GoalBuffer) else goals_of(sorted(goals)))
    return plan, buffer


def shares_by_pair(transitions):
    led = {(s, a): [] for s, a, *_ in transitions}
    for s, a, there, ended in transitions:
        led[s, a].append((there, ended))
    return {pair: shares_of(ends) for pair, ends in led.items()}


@given(steps, st.integers(1, 60))
def test_the_models_shares_are_those_of_all_transitions_also_of_those_no_longer_kept(
    transitions, buffer_size
):
    buffer = filled(transitions, n_actions=A, buffer_size=buffer_size)
    model, of = (
        ReplayModel.of(buffer),
        {cell: state for state, cell in enumerate(buffer.states.observations.tolist())},
    )
    expected = np.zeros((2, model.n_states, A, model.n_states))
    for (here, action), ends in shares_by_pair(transitions).items():
        assert model.tried[of[here], action]
        for (there, ended), share in ends.items():
            expected[int(ended), of[here], action, of[there]] = share
    assert model.tried.sum() == len({(here, action) for here, action, *_ in transitions})
    np.testing.assert_allclose(
        model.on.toarray(), expected[0].reshape(-1, model.n_states), rtol=1e-6
    )
    np.testing.assert_allclose(
        model.ends.toarray(), expected[1].reshape(-1, model.n_states), rtol=1e-6
    )


def looped(transitions, goals, sweeps):
    """The class's equation, a pair at a time. Of a goal itself, where nothing is asked for, it is the best but for staying."""
    values = {(s, g): NEVER for s in range(N) for g in goals}
    for _ in range(sweeps):
        better = dict.fromkeys(values, NEVER)
        for (s, _), ends in shares_by_pair(transitions).items():
            if set(ends) != {(s, False)}:
                for g in goals:
                    better[s, g] = max(
                        better[s, g],
                        worth_of(ends, g, lambda there, g=g, known=values: known[there, g]),
                    )
        values = better
    return values


def worth_of(shares, goal, value):
    """What an action is worth that leads on as its shares say."""
    worth = {
        (there, ended): GOAL_REWARD
        if there == goal
        else NEVER
        if ended
        else STEP_REWARD + GAMMA * value(there)
        for there, ended in shares
    }
    return sum(share * worth[end] for end, share in shares.items())


@given(steps, st.integers(1, 5))
def test_values_are_the_loop_over_transitions_and_those_of_actions_follow(transitions, sweeps):
    plan, buffer = planned(transitions, {there for _, _, there, _ in transitions}, sweeps)
    cells = buffer.states.observations.tolist()
    wanted = sorted({there for _, _, there, _ in transitions})
    expected, shares = looped(transitions, wanted, sweeps), shares_by_pair(transitions)
    found = plan.action_values(np.arange(len(cells)), np.arange(len(wanted)))
    for (state, goal, action), value in np.ndenumerate(found):
        cell, aim = cells[state], wanted[goal]
        assert plan.values[state, goal] == pytest.approx(expected[cell, aim], abs=1e-3)
        worth = NEVER
        if (cell, action) in shares:
            worth = worth_of(
                shares[cell, action],
                aim,
                lambda there, goal=goal: plan.values[cells.index(there), goal],
            )
        if worth >= HORIZON + 1e-5:
            assert value == pytest.approx(worth, abs=1e-5)
        elif worth < HORIZON - 1e-5:
            assert np.isnan(value)


@given(steps, st.sets(st.integers(0, N + 1), min_size=1), st.integers(0, N - 1))
def test_the_best_actions_are_those_of_value_iteration_to_its_end(
    transitions, goal_cells, held_out
):
    """Among the goals are some that were never met. A held-out one is a state to go through, and no goal."""
    goals = goals_of(sorted(goal_cells), held_out=np.array([held_out]))
    plan, buffer = planned(transitions, goals, 500)
    wanted, cells = goals.observations.tolist(), buffer.states.observations.tolist()
    assert held_out not in wanted
    values, shares = looped(transitions, wanted, 200), shares_by_pair(transitions)
    pairs = [
        (state, goal)
        for state in range(len(cells))
        for goal in range(len(wanted))
        if cells[state] != wanted[goal]
    ]
    states, ids = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    for state, goal, best in zip(states, ids, plan.best_actions(states, ids).tolist(), strict=True):
        cell, aim = cells[state], wanted[goal]
        assert plan.values[state, goal] == pytest.approx(values[cell, aim], abs=0.01)
        tried = {a: ends for (s, a), ends in shares.items() if s == cell}
        worth = {
            a: worth_of(ends, aim, lambda there, aim=aim: values[there, aim])
            for a, ends in tried.items()
        }
        most = max(worth.values(), default=NEVER)
        if best == -1:
            assert most < HORIZON + 0.01
        else:
            assert worth[best] == pytest.approx(most, abs=0.02)  # others may be as good
            assert most >= HORIZON - 0.01
    nowhere = np.array([UNKNOWN, 0, len(cells)]), np.array([0, UNKNOWN, 0])
    assert plan.best_actions(*nowhere).tolist() == [UNKNOWN] * 3


def test_in_a_world_tried_out_everywhere_it_is_exact():
    """Each action in each state, with outcomes in proportion: chances are whole numbers of four hundredths."""
    mdp = gym.make("TwoRoomsSwitchSmall-v0").unwrapped.mdp
    times, numbers = 400, spaces.Discrete(mdp.n_states)
    space = spaces.Dict({key: numbers for key in GOAL_SPACE})
    buffer = ManyGoalsReplayBuffer(
        mdp.n_states * mdp.n_actions * times, space, spaces.Discrete(mdp.n_actions), "cpu", times
    )
    buffer.keep_states(ObservationTable(numbers, mdp.n_states))
    matrices = transition_matrices(mdp)
    for action, matrix in enumerate(matrices):
        for state, shares in enumerate(matrix.toarray()):
            there = np.repeat(np.arange(mdp.n_states), np.rint(times * shares).astype(int))
            add(buffer, state, action, there)
    goals = goals_of(range(0, mdp.n_states, 7), numbers)
    plan = ReplayPlan(0.99, 0.0, -0.1, 1_000)
    plan.refresh(buffer, goals)
    arriving, columns = np.zeros((mdp.n_states, len(goals))), np.arange(len(goals))
    for _ in range(1_000):  # 0.99 ** 1_000 is below 1e-4
        exact = np.max([matrix @ arriving for matrix in matrices], axis=0)
        arriving = -0.1 + 0.99 * exact
        arriving[goals.observations, columns] = 0.0
    met = buffer.states.observations
    elsewhere = (
        met[:, None] != goals.observations
    )  # of a goal itself nothing is asked, and staying is no option
    np.testing.assert_allclose(
        plan.values[elsewhere], exact[met][elsewhere], atol=0.04
    )  # one of 400 is doubted


def test_it_goes_on_from_what_it_knew_and_learns_of_new_states_and_goals():
    once, _ = planned(CHAIN[:6], range(1, N), 6)
    twice, _ = planned(CHAIN[:3], range(1, 4), 3)
    assert twice.values.shape == (4, 3)
    (copied := ReplayPlan(GAMMA, GOAL_REWARD, STEP_REWARD, 3)).set_checkpoint_state(
        twice.get_checkpoint_state()
    )
    for plan in (twice, copied):
        planned(CHAIN[:6], range(1, N), 3, plan)
    np.testing.assert_equal(copied.get_checkpoint_state(), twice.get_checkpoint_state())
    np.testing.assert_allclose(twice.values[0, :3], once.values[0, :3])  # two times three sweeps
    far = sum(STEP_REWARD * GAMMA**k for k in range(N - 2)) + GOAL_REWARD * GAMMA ** (N - 2)
    assert once.values[0, N - 2] == pytest.approx(far)
    assert (
        twice.values[0, N - 2] < once.values[0, N - 2]
    )  # five steps away, of which three sweeps come some way


def test_a_plan_that_settles_makes_as_many_sweeps_as_it_takes():
    plan, (known, buffer) = (
        ReplayPlan(GAMMA, GOAL_REWARD, STEP_REWARD, 2),
        planned(CHAIN[:20], range(1, 21), 50),
    )
    plan.refresh(buffer, goals_of(range(1, 21)), settle=True)
    np.testing.assert_allclose(plan.values, known.values, atol=1e-3)
    np.testing.assert_array_equal(plan.best, known.best)


def test_where_luck_was_the_only_way_a_plan_gives_the_goal_up_as_a_fresh_one():
    transitions, idle = [(0, 1, 1, False), (1, 1, 2, False), (2, 0, 2, False)], (1, 1, 1, False)
    plan, buffer = planned(transitions, [2], 100)
    for _ in range(5):
        add(buffer, *idle)
    plan.refresh(buffer, goals_of([2]))
    fresh, _ = planned([*transitions, *[idle] * 5], [2], 100)
    np.testing.assert_allclose(plan.values, fresh.values, rtol=1e-5)
    assert (plan.best == fresh.best).all()


def test_what_is_not_known_is_not_a_number():
    plan = ReplayPlan(GAMMA, GOAL_REWARD, STEP_REWARD)
    # a chain of 15 steps, from whose end no way leads back, and a step in place
    planned([*CHAIN[:15], (1, 4, 1, False)], range(1, 16), 20, plan)
    found = plan.action_values(
        np.array([1, UNKNOWN, 16]), np.array([1, UNKNOWN, 0, 15])
    )  # goals 2, -, 1 and none
    assert found.shape == (3, 4, 5)
    assert np.argwhere(~np.isnan(found)).tolist() == [[0, 0, 1], [0, 0, 4], [0, 2, 4]]
    np.testing.assert_allclose(
        found[~np.isnan(found)], [GOAL_REWARD, STEP_REWARD + GAMMA * GOAL_REWARD, GOAL_REWARD]
    )


def test_a_way_counts_as_known_up_to_three_times_the_discount_horizon():
    plan, _ = planned(CHAIN, range(1, 41), 50)
    known = ~np.isnan(plan.action_values(np.array([0]), np.arange(40)))[0, :, 1]
    assert known.tolist() == [GAMMA**d >= np.exp(-3) for d in range(40)]
    assert known.sum() == 29
    # action 1 reaches cell 1 in 2 of 10 tries and ends in cell 2 else; action 2 always ends there
    seldom = [(0, 1, 1, False)] * 2 + [(0, 1, 2, True)] * 8 + [(0, 2, 2, True)] * 10
    assert planned(seldom, [1], 50)[0].best_actions(np.array([0]), np.array([0])).tolist() == [1]


@given(steps, st.integers(1, N - 1))
def test_a_draw_of_goals_is_planned_as_if_all_were_and_others_take_their_turn(
    transitions, n_planned
):
    goals, buffer = goals_of(range(N)), filled(transitions)
    all_goals = ReplayPlan(GAMMA, GOAL_REWARD, STEP_REWARD, 500)
    all_goals.refresh(buffer, goals)
    plan = ReplayPlan(GAMMA, GOAL_REWARD, STEP_REWARD, 500, n_planned * 5 * len(buffer.states) + 1)
    plan.refresh(buffer, goals)
    seen = set()
    for _ in range(N):
        seen |= set(plan.goal_ids)
        assert plan.values.nbytes + plan.best.nbytes <= plan.max_bytes
        assert (len(set(plan.goal_ids)), all_goals.is_draw, plan.is_draw) == (
            n_planned,
            False,
            True,
        )
        np.testing.assert_allclose(plan.values, all_goals.values[:, plan.goal_ids], atol=0.01)
        ids = np.arange(N)
        found, expected = (
            each.action_values(np.arange(len(buffer.states)), ids) for each in (plan, all_goals)
        )
        assert np.isnan(np.delete(found, plan.goal_ids, axis=1)).all()
        both = (np.nan_to_num(each[:, plan.goal_ids], nan=HORIZON) for each in (found, expected))
        np.testing.assert_allclose(*both, atol=0.02)
        assert set(ids[plan.best_actions(np.zeros(N, np.int64), ids) >= 0]) <= set(plan.goal_ids)
        assert 1 <= plan.rotate() <= n_planned
    assert len(seen) > n_planned


@pytest.mark.parametrize("sweeps", [0, 1])
def test_where_nothing_is_left_to_chance_breadth_first_search_finds_the_values_without_sweeps(
    sweeps,
):
    moves = [
        (cell, action, cell + move)
        for cell in range(36)
        for action, move in enumerate((1, -1, 6, -6))
    ]
    grid = [(cell, action, there, False) for cell, action, there in moves if 0 <= there < 36]
    plan, buffer = planned(grid, range(36), 100)
    drawn = ReplayPlan(GAMMA, GOAL_REWARD, STEP_REWARD, sweeps, 5 * 36 * 35)
    drawn.refresh(buffer, goals_of(range(36)))
    arrivals = drawn.model.arrivals()
    for state, values in zip(drawn._goal_states[drawn.goal_ids], drawn.values.T, strict=True):
        expected = plan.values[:, plan._goal_states == state][:, 0]
        elsewhere = np.arange(36) != state
        np.testing.assert_allclose(values[elsewhere], expected[elsewhere], atol=1e-4)
        np.testing.assert_allclose(
            drawn._shortest(arrivals, state)[elsewhere], expected[elsewhere], atol=1e-4
        )
    assert (drawn._shortest(arrivals, UNKNOWN) == np.float32(NEVER)).all()


def test_without_sweeps_only_the_most_frequent_outcomes_count():
    common, rare = (
        [(0, 0, 1, False)] * 3 + [(1, 0, 2, False)] * 2,
        [(0, 0, 2, False)] * 2 + [(1, 0, 0, True), (0, 0, 0, True)],
    )
    plans = planned(common + rare, [1, 2], 0)[0], planned(common, [1, 2], 100)[0]
    np.testing.assert_allclose(
        *(values := [plan.action_values(np.arange(3), np.arange(2)) for plan in plans])
    )
    assert np.isfinite(values[0][0]).any()
    (copied := ReplayPlan(GAMMA, GOAL_REWARD, STEP_REWARD, 0)).set_checkpoint_state(
        plans[0].get_checkpoint_state()
    )
    np.testing.assert_equal(
        (copied.values, copied.best), (plans[0].values, plans[0].best)
    )  # all goals, planned again


def test_more_states_or_pairs_than_there_is_room_for(monkeypatch):
    buffer = filled([(0, 1, 1, False), (1, 1, 2, False), (2, 1, 3, False)], max_states=2)
    plan, more = ReplayPlan(GAMMA, GOAL_REWARD, STEP_REWARD, 5), goals_of([1, 3, 5])
    plan.refresh(buffer, goals_of([1, 3]))
    np.testing.assert_allclose(plan.values, [[GOAL_REWARD, NEVER], [NEVER, NEVER]])
    monkeypatch.setattr("sb3_manygoals.memory_limits.available_memory", lambda: 10)
    with pytest.raises(
        MemoryError, match=r"planning would take .* fewer max_plan_bytes in target_kwargs"
    ):
        plan.refresh(buffer, more)


@pytest.mark.parametrize("jumps_end", [False, True])
def test_without_chance_steps_are_counted_as_by_value_iteration_though_worlds_end(jumps_end):
    jumps = [(cell, 2, cell + 6, jumps_end) for cell in range(1, 24, 3)]
    transitions = CHAIN[:29] + [(cell + 1, 0, cell, False) for cell in range(29)] + jumps
    plans = [planned(transitions, range(30), sweeps)[0] for sweeps in (0, 500)]
    apart = ~np.eye(30, dtype=np.bool_)  # the value of a state that is the goal is not used
    np.testing.assert_allclose(plans[0].values[apart], plans[1].values[apart], atol=1e-3)
    found = [
        plan.best_actions(*(pairs.ravel() for pairs in np.indices((30, 30)))) for plan in plans
    ]
    np.testing.assert_array_equal(found[0] < 0, found[1] < 0)


def test_a_larger_plan_is_made_beside_the_last_one_only_if_both_fit(monkeypatch):
    """Else the last one is given up first. Values are the same."""
    small = filled(CHAIN[:20])
    large = filled(CHAIN[:30] + [(cell + 1, 0, cell, False) for cell in range(30)])
    both = 21 * 21 * 4 + 31 * 31 * 5
    expected = ReplayPlan(GAMMA, GOAL_REWARD, STEP_REWARD, 100)
    expected.refresh(large, goals_of(range(31)))
    for limit in (both, both - 1):
        plan = ReplayPlan(GAMMA, GOAL_REWARD, STEP_REWARD, 100, limit)
        plan.refresh(small, goals_of(range(21)))
        last = weakref.ref(plan.values)
        was_held = []
        monkeypatch.setattr(
            "sb3_manygoals.many_goals_dqn.planning.check_memory",
            lambda *_, last=last, was_held=was_held: was_held.append(last() is not None),
        )
        plan.refresh(large, goals_of(range(31)))
        assert was_held == [limit == both]
        assert not plan.is_draw
        assert plan.nbytes == 31 * 31 * 5 <= limit
        np.testing.assert_allclose(plan.values, expected.values, atol=1e-3)
        np.testing.assert_array_equal(plan.best, expected.best)


def test_goals_are_drawn_by_the_seed():
    """The same ones for the same seed, other ones for another; and a copy goes on with the next draw."""
    buffer = filled(CHAIN[:30])

    def drawn(seed):
        plan = ReplayPlan(GAMMA, GOAL_REWARD, STEP_REWARD, 5, 5 * 31 * 4, seed=seed)
        plan.refresh(buffer, goals_of(range(31)))
        return plan

    first = drawn(0)
    assert first.goal_ids.tolist() == drawn(0).goal_ids.tolist()
    assert first.goal_ids.tolist() != drawn(1).goal_ids.tolist()
    assert drawn(None).goal_ids.tolist() != drawn(None).goal_ids.tolist()
    copied = drawn(2)
    copied.set_checkpoint_state(first.get_checkpoint_state())
    for plan in (first, copied):
        plan.rotate()
        plan.refresh(buffer, goals_of(range(31)))
    assert first.goal_ids.tolist() == copied.goal_ids.tolist()
