"""Values planned in the replay memory, against loops over its transitions and against exact planning in the world itself."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

import gym_twoRooms  # noqa: F401
from gym_twoRooms.oracle import optimal_values, transition_matrices
from sb3_manygoals import GoalBuffer
from sb3_manygoals.goals import UNKNOWN
from sb3_manygoals.many_goals_dqn import ManyGoalsReplayBuffer
from sb3_manygoals.many_goals_dqn.planning import ReplayPlan
from tests.sb3_manygoals.many_goals_dqn.memories import CELLS, GOAL_SPACE, filled, shares_of

N, A, GAMMA, GOAL_REWARD, STEP_REWARD = 7, 3, 0.9, 0.5, -0.2
NEVER = STEP_REWARD / (1 - GAMMA)
HORIZON = NEVER + (GOAL_REWARD - NEVER) * np.exp(-3)


def led_to(transitions, state, action):
    return [(there, ended) for s, a, there, ended in transitions if (s, a) == (state, action)]


def looped(transitions, goals, sweeps):
    """The class's equation, a pair at a time. Of a goal itself, where nothing is asked for, it is the best but for staying."""
    shares = {(s, a): shares_of(led_to(transitions, s, a)) for s, a, *_ in transitions}
    values = {(s, g): NEVER for s in range(N) for g in goals}
    for _ in range(sweeps):
        better = dict.fromkeys(values, NEVER)
        for (s, _), ends in shares.items():
            if set(ends) != {(s, False)}:
                for g in goals:
                    better[s, g] = max(better[s, g], worth_of(ends, g, lambda there, g=g, known=values: known[there, g]))
        values = better
    return values


def worth_of(shares, goal, value):
    """What an action is worth that leads on as its shares say."""
    worth = {
        (there, ended): GOAL_REWARD if there == goal else NEVER if ended else STEP_REWARD + GAMMA * value(there)
        for there, ended in shares
    }
    return sum(share * worth[end] for end, share in shares.items())


steps = st.tuples(st.integers(0, N - 1), st.integers(0, A - 1), st.integers(0, N - 1), st.booleans())


@given(st.lists(steps, min_size=1, max_size=40), st.integers(1, 5))
def test_planning_is_the_loop_over_transitions(transitions, sweeps):
    buffer, goals = filled(transitions), GoalBuffer(CELLS)
    goals.add(np.array(sorted({there for _, _, there, _ in transitions})))
    plan = ReplayPlan(GAMMA, GOAL_REWARD, STEP_REWARD)
    plan.refresh(buffer, goals, sweeps)
    expected = looped(transitions, goals.observations.tolist(), sweeps)
    met = buffer.states.observations
    for state, cell in enumerate(met.tolist()):
        for goal, wanted in enumerate(goals.observations.tolist()):
            assert plan.values[state, goal] == pytest.approx(expected[cell, wanted], abs=1e-3)


def test_in_a_world_tried_out_everywhere_it_is_exact():
    """Each action in each state, with outcomes in proportion: chances are whole numbers of four hundredths."""
    mdp = gym.make("TwoRoomsSwitchSmall-v0").unwrapped.mdp
    times, numbers = 400, spaces.Discrete(mdp.n_states)
    space = spaces.Dict({key: numbers for key in GOAL_SPACE})
    buffer = ManyGoalsReplayBuffer(
        mdp.n_states * mdp.n_actions * times, space, spaces.Discrete(mdp.n_actions), "cpu", times, max_states=mdp.n_states
    )
    infos = [{"achieved_goal_id": UNKNOWN, "env_terminated": False}] * times
    for action, matrix in enumerate(transition_matrices(mdp)):
        for state, shares in enumerate(matrix.toarray()):
            there = np.repeat(np.arange(mdp.n_states), np.rint(times * shares).astype(int))
            assert len(there) == times
            obs, next_obs = {"observation": np.full(times, state)}, {"observation": there}
            buffer.add(obs, next_obs, np.full(times, action), np.zeros(times), np.zeros(times, bool), infos)
    goals = GoalBuffer(numbers)
    goals.add(np.arange(0, mdp.n_states, 7))
    plan = ReplayPlan(0.99, 0.0, -0.1)
    plan.refresh(buffer, goals, 1_000)
    exact = optimal_values(mdp, goals.observations).max(axis=1)
    met = buffer.states.observations
    elsewhere = met[:, None] != goals.observations  # of a goal itself nothing is asked, and staying is no option
    np.testing.assert_allclose(plan.values[elsewhere], exact[met][elsewhere], atol=0.04)  # one of 400 is doubted


def test_it_goes_on_from_what_it_knew_and_learns_of_new_states_and_goals():
    chain = [(cell, 1, cell + 1, False) for cell in range(N - 1)]
    once, twice = (ReplayPlan(GAMMA, GOAL_REWARD, STEP_REWARD) for _ in range(2))
    goals = GoalBuffer(CELLS)
    goals.add(np.arange(1, N))
    once.refresh(filled(chain), goals, 6)
    fewer = GoalBuffer(CELLS)
    fewer.add(np.arange(1, 4))
    twice.refresh(filled(chain[:3]), fewer, 3)
    assert twice.values.shape == (4, 3)
    twice.refresh(filled(chain), goals, 3)
    np.testing.assert_allclose(twice.values[0, :3], once.values[0, :3])  # two times three sweeps
    far = sum(STEP_REWARD * GAMMA**k for k in range(N - 2)) + GOAL_REWARD * GAMMA ** (N - 2)
    assert once.values[0, N - 2] == pytest.approx(far)
    assert twice.values[0, N - 2] < once.values[0, N - 2]  # five steps away, of which three sweeps come some way


def test_what_is_not_known_is_not_a_number():
    plan = ReplayPlan(GAMMA, GOAL_REWARD, STEP_REWARD)
    assert np.isnan(plan.action_values(np.array([0, -1]), np.array([0]))).all()
    goals = GoalBuffer(CELLS)
    goals.add(np.arange(1, 16))
    # a chain of 15 steps, from whose end no way leads back, and a step in place
    plan.refresh(filled([(cell, 1, cell + 1, False) for cell in range(15)] + [(1, 4, 1, False)]), goals, 20)
    found = plan.action_values(np.array([1, UNKNOWN, 16]), np.array([1, UNKNOWN, 0, 15]))  # goals 2, -, 1 and none
    assert found.shape == (3, 4, 5)
    assert np.argwhere(~np.isnan(found)).tolist() == [[0, 0, 1], [0, 0, 4], [0, 2, 4]]
    expected = [GOAL_REWARD, STEP_REWARD + GAMMA * GOAL_REWARD, GOAL_REWARD]
    np.testing.assert_allclose(found[~np.isnan(found)], expected)


def test_a_way_counts_as_known_up_to_three_times_the_discount_horizon():
    goals, plan = GoalBuffer(CELLS), ReplayPlan(GAMMA, GOAL_REWARD, STEP_REWARD)
    goals.add(np.arange(1, 41))
    plan.refresh(filled([(cell, 1, cell + 1, False) for cell in range(40)]), goals, 50)
    known = ~np.isnan(plan.action_values(np.array([0]), np.arange(40)))[0, :, 1]
    assert known.tolist() == [GAMMA**d >= np.exp(-3) for d in range(40)]
    assert known.sum() == 29


def test_a_goal_that_is_reached_seldom_is_still_a_goal_with_a_best_action():
    # action 1 reaches cell 1 in 2 of 10 tries and ends in cell 2 else; action 2 always ends there
    transitions = [(0, 1, 1, False)] * 2 + [(0, 1, 2, True)] * 8 + [(0, 2, 2, True)] * 10
    goals, plan = GoalBuffer(CELLS), ReplayPlan(GAMMA, GOAL_REWARD, STEP_REWARD)
    goals.add(np.array([1]))
    plan.refresh(filled(transitions), goals, 50)
    assert plan.best_actions(np.array([0]), np.array([0])).tolist() == [1]


@given(st.lists(steps, min_size=1, max_size=40), st.integers(1, 30))
def test_values_of_actions_are_what_their_transitions_give(transitions, sweeps):
    buffer, goals = filled(transitions), GoalBuffer(CELLS)
    goals.add(np.array(sorted({there for _, _, there, _ in transitions})))
    plan = ReplayPlan(GAMMA, GOAL_REWARD, STEP_REWARD)
    plan.refresh(buffer, goals, sweeps)
    cells, goal_cells = buffer.states.observations, goals.observations
    found = plan.action_values(np.arange(len(cells)), np.arange(len(goal_cells)))
    of = {cell: row for row, cell in enumerate(cells.tolist())}
    for (state, goal, action), value in np.ndenumerate(found):
        ends = led_to(transitions, cells[state], action)
        worth = NEVER
        if ends:
            worth = worth_of(shares_of(ends), goal_cells[goal], lambda there, goal=goal: plan.values[of[there], goal])
        if worth >= HORIZON + 1e-5:
            assert value == pytest.approx(worth, abs=1e-5)
        elif worth < HORIZON - 1e-5:
            assert np.isnan(value)


def test_observations_that_there_is_no_room_for_are_no_states():
    with pytest.warns(RuntimeWarning, match="2 states are known"):
        buffer = filled([(0, 1, 1, False), (1, 1, 2, False), (2, 1, 3, False)], max_states=2)
    assert buffer.next_state_ids.ravel().tolist() == [1, UNKNOWN, UNKNOWN]
    plan, goals = ReplayPlan(GAMMA, GOAL_REWARD, STEP_REWARD), GoalBuffer(CELLS)
    goals.add(np.array([1, 3]))
    plan.refresh(buffer, goals, 5)
    np.testing.assert_allclose(plan.values, [[GOAL_REWARD, NEVER], [NEVER, NEVER]])


@given(st.lists(steps, min_size=1, max_size=60), st.sets(st.integers(0, N + 1), min_size=1), st.integers(0, N - 1))
def test_the_best_actions_are_those_of_value_iteration_to_its_end(transitions, goal_cells, held_out):
    """Among the goals are some that were never met. A held-out one is a state to go through, and no goal."""
    buffer, goals = filled(transitions), GoalBuffer(CELLS, held_out=np.array([held_out]))
    goals.add(np.array(sorted(goal_cells)))
    plan = ReplayPlan(GAMMA, GOAL_REWARD, STEP_REWARD)
    plan.refresh(buffer, goals, 500)
    wanted = goals.observations.tolist()
    assert held_out not in wanted
    values = looped(transitions, wanted, 200)
    cells = buffer.states.observations.tolist()
    pairs = [(state, goal) for state in range(len(cells)) for goal in range(len(wanted)) if cells[state] != wanted[goal]]
    states, ids = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    for state, goal, best in zip(states, ids, plan.best_actions(states, ids).tolist(), strict=True):
        cell, aim = cells[state], wanted[goal]
        assert plan.values[state, goal] == pytest.approx(values[cell, aim], abs=0.01)
        tried = {a for s, a, *_ in transitions if s == cell}
        shares = {action: shares_of(led_to(transitions, cell, action)) for action in tried}
        worth = {a: worth_of(ends, aim, lambda there, aim=aim: values[there, aim]) for a, ends in shares.items()}
        most = max(worth.values(), default=NEVER)
        if best == -1:
            assert most < HORIZON + 0.01
        else:
            assert worth[best] == pytest.approx(most, abs=0.02)  # others may be as good
            assert most >= HORIZON - 0.01
    nowhere = np.array([UNKNOWN, 0, len(cells)]), np.array([0, UNKNOWN, 0])
    assert plan.best_actions(*nowhere).tolist() == [UNKNOWN] * 3


def test_where_nothing_but_staying_was_tried_no_way_is_known():
    transitions = [(0, 0, 0, False), (0, 2, 0, False), (1, 1, 0, False), (1, 1, 1, False), (2, 1, 2, True)]
    plan, goals = ReplayPlan(GAMMA, GOAL_REWARD, STEP_REWARD), GoalBuffer(CELLS)
    goals.add(np.array([0, 1, 2]))
    plan.refresh(filled(transitions), goals, 100)
    states = np.repeat(np.arange(3), 3)
    # from cell 1 half of the steps lead to 0; to end where one is reaches that goal and no other
    assert plan.best_actions(states, np.tile(np.arange(3), 3)).tolist() == [-1, -1, -1, 1, 1, -1, -1, -1, 1]
    half = (GOAL_REWARD + STEP_REWARD) / 2 / (1 - GAMMA / 2)
    assert plan.values[1, 0] == pytest.approx(half, abs=0.002)
    only_staying = ReplayPlan(GAMMA, GOAL_REWARD, STEP_REWARD)
    only_staying.refresh(filled(transitions[:2]), goals, 100)
    assert (only_staying.values == np.float32(NEVER)).all()
    assert (only_staying.best == -1).all()
    # what staying is worth is known all the same
    assert only_staying.action_values(np.array([0]), np.array([0]))[0, 0, [0, 2]].tolist() == [GOAL_REWARD] * 2


def test_a_plan_goes_on_as_it_was_saved():
    chain = [(cell, 1, cell + 1, False) for cell in range(N - 1)]
    plan, other = (ReplayPlan(GAMMA, GOAL_REWARD, STEP_REWARD) for _ in range(2))
    other.set_checkpoint_state(plan.get_checkpoint_state())
    assert other.model is None
    goals = GoalBuffer(CELLS)
    goals.add(np.arange(1, N))
    plan.refresh(filled(chain), goals, 2)
    other.set_checkpoint_state(plan.get_checkpoint_state())
    states, ids = np.arange(N), np.arange(N - 1)
    np.testing.assert_array_equal(plan.action_values(states, ids), other.action_values(states, ids))
    for each in (plan, other):
        each.refresh(filled(chain), goals, 2)
    np.testing.assert_array_equal(plan.values, other.values)
    np.testing.assert_array_equal(plan.best, other.best)


def test_more_pairs_than_there_is_memory_for_are_refused(monkeypatch):
    plan, goals, memory = ReplayPlan(GAMMA, GOAL_REWARD, STEP_REWARD), GoalBuffer(CELLS), filled([(0, 1, 1, False)])
    goals.add(np.arange(3))
    monkeypatch.setattr("sb3_manygoals.memory.available_memory", lambda: 10)
    with pytest.raises(MemoryError, match=r"planning would take .* fewer max_states in target_kwargs"):
        plan.refresh(memory, goals, 5)
