"""Values planned in the replay memory, against loops over its transitions and against exact planning in the world itself."""

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

import gym_twoRooms  # noqa: F401
from gym_twoRooms.oracle import optimal_values, transition_matrices
from sb3_manygoals import GoalBuffer
from sb3_manygoals.goals import UNKNOWN
from sb3_manygoals.many_goals_dqn import ManyGoalsReplayBuffer
from sb3_manygoals.many_goals_dqn.planning import ReplayPlan
from tests.sb3_manygoals.many_goals_dqn.models import SMALL, goal_obs, make_model
from tests.sb3_manygoals.worlds import Corridor

N, A, GAMMA, GOAL_REWARD, STEP_REWARD = 7, 3, 0.9, 0.5, -0.2
NEVER = STEP_REWARD / (1 - GAMMA)
CELLS = spaces.Discrete(100)
SPACE = spaces.Dict({key: CELLS for key in ("observation", "achieved_goal", "desired_goal")})


def filled(transitions, n_states=100, n_envs=1, space=SPACE, observation=np.int64):
    """A memory of (cell, action, next cell, ended)."""
    buffer = ManyGoalsReplayBuffer(len(transitions), space, spaces.Discrete(5), "cpu", n_envs, n_states=n_states)
    for here, action, there, ended in transitions:
        obs, next_obs = ({"observation": np.stack([observation(cell)])} for cell in (here, there))
        infos = [{"achieved_goal_id": UNKNOWN, "env_terminated": ended}]
        buffer.add(obs, next_obs, np.array([action]), np.zeros(1), np.zeros(1, bool), infos)
    return buffer


def looped(transitions, goals, sweeps):
    """The class's equation, a pair at a time."""
    values = {(s, g): NEVER for s in range(N) for g in goals}
    for _ in range(sweeps):
        worth = {}
        for s, a, there, ended in transitions:
            for g in goals:
                later = NEVER if ended else STEP_REWARD + GAMMA * values[there, g]
                worth.setdefault((s, g), {}).setdefault(a, []).append(GOAL_REWARD if there == g else later)
        for pair, by_action in worth.items():
            values[pair] = max(float(np.mean(each)) for each in by_action.values())
    return values


steps = st.tuples(st.integers(0, N - 1), st.integers(0, A - 1), st.integers(0, N - 1), st.booleans())


@given(st.lists(steps, min_size=1, max_size=40), st.integers(1, 5))
def test_planning_is_the_loop_over_transitions(transitions, sweeps):
    buffer, goals = filled(transitions), GoalBuffer(CELLS)
    goals.add(np.array(sorted({there for _, _, there, _ in transitions})))
    plan = ReplayPlan(GAMMA, GOAL_REWARD, STEP_REWARD)
    plan.refresh(buffer, goals, sweeps, step=5)
    expected = looped(transitions, goals.observations.tolist(), sweeps)
    met = buffer.states.observations
    for state, cell in enumerate(met.tolist()):
        for goal, wanted in enumerate(goals.observations.tolist()):
            assert plan.values[state, goal] == pytest.approx(expected[cell, wanted], abs=1e-3)
    assert plan.planned_at == 5


def test_in_a_world_tried_out_everywhere_it_is_exact():
    """Each action in each state, with outcomes in proportion: chances are whole numbers of four hundredths."""
    mdp = gym.make("TwoRoomsSwitchSmall-v0").unwrapped.mdp
    times, numbers = 400, spaces.Discrete(mdp.n_states)
    space = spaces.Dict({key: numbers for key in SPACE})
    buffer = ManyGoalsReplayBuffer(
        mdp.n_states * mdp.n_actions * times, space, spaces.Discrete(mdp.n_actions), "cpu", times, n_states=mdp.n_states
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
    plan.refresh(buffer, goals, 1_000, 0)
    exact = optimal_values(mdp, goals.observations).max(axis=1)
    np.testing.assert_allclose(plan.values, exact[buffer.states.observations], atol=0.02)  # it stops at changes of 1e-4


def test_it_goes_on_from_what_it_knew_and_learns_of_new_states_and_goals():
    chain = [(cell, 1, cell + 1, False) for cell in range(N - 1)]
    once, twice = (ReplayPlan(GAMMA, GOAL_REWARD, STEP_REWARD) for _ in range(2))
    goals = GoalBuffer(CELLS)
    goals.add(np.arange(1, N))
    once.refresh(filled(chain), goals, 6, 0)
    fewer = GoalBuffer(CELLS)
    fewer.add(np.arange(1, 4))
    twice.refresh(filled(chain[:3]), fewer, 3, 0)
    assert twice.values.shape == (4, 3)
    twice.refresh(filled(chain), goals, 3, 1)
    np.testing.assert_allclose(twice.values[0, :3], once.values[0, :3])  # two times three sweeps
    far = sum(STEP_REWARD * GAMMA**k for k in range(N - 2)) + GOAL_REWARD * GAMMA ** (N - 2)
    assert once.values[0, N - 2] == pytest.approx(far)
    assert twice.values[0, N - 2] < once.values[0, N - 2]  # five steps away, of which three sweeps come some way


def test_what_is_not_known_is_not_a_number():
    plan = ReplayPlan(GAMMA, GOAL_REWARD, STEP_REWARD)
    assert np.isnan(plan.action_values(np.array([0, -1]), np.array([0]))).all()
    assert plan.is_due(0, 100)
    goals = GoalBuffer(CELLS)
    goals.add(np.arange(1, 16))
    # a chain of 15 steps, from whose end no way leads back, and a step in place
    plan.refresh(filled([(cell, 1, cell + 1, False) for cell in range(15)] + [(1, 4, 1, False)]), goals, 20, 30)
    found = plan.action_values(np.array([1, UNKNOWN, 16]), np.array([1, UNKNOWN, 0, 15]))  # goals 2, -, 1 and none
    assert found.shape == (3, 4, 5)
    assert np.argwhere(~np.isnan(found)).tolist() == [[0, 0, 1], [0, 0, 4], [0, 2, 4]]
    expected = [GOAL_REWARD, STEP_REWARD + GAMMA * GOAL_REWARD, GOAL_REWARD]
    np.testing.assert_allclose(found[~np.isnan(found)], expected)
    # as far as the discount looks ahead: GAMMA ** (d - 1) >= 1 / e
    known = ~np.isnan(plan.action_values(np.array([0]), np.arange(15)))[0, :, 1]
    assert known.tolist() == [GAMMA**d >= 1 / np.e for d in range(15)]
    assert known.sum() == 10
    assert not plan.is_due(129, 100)
    assert plan.is_due(130, 100)
    assert plan.is_due(29, 100)  # steps are counted anew


@given(st.lists(steps, min_size=1, max_size=40), st.integers(1, 30))
def test_values_of_actions_are_what_their_transitions_give_on_average(transitions, sweeps):
    buffer, goals = filled(transitions), GoalBuffer(CELLS)
    goals.add(np.array(sorted({there for _, _, there, _ in transitions})))
    plan = ReplayPlan(GAMMA, GOAL_REWARD, STEP_REWARD)
    plan.refresh(buffer, goals, sweeps, step=0)
    cells, goal_cells = buffer.states.observations, goals.observations
    found = plan.action_values(np.arange(len(cells)), np.arange(len(goal_cells)))
    of = {cell: row for row, cell in enumerate(cells.tolist())}
    for (state, goal, action), value in np.ndenumerate(found):
        after = [(there, ended) for s, a, there, ended in transitions if (s, a) == (cells[state], action)]
        worths = [
            GOAL_REWARD
            if there == goal_cells[goal]
            else NEVER
            if ended
            else STEP_REWARD + GAMMA * plan.values[of[there], goal]
            for there, ended in after
        ]
        if after and np.mean(worths) >= NEVER + (GOAL_REWARD - NEVER) / np.e + 1e-5:
            assert value == pytest.approx(np.mean(worths), abs=1e-5)
        elif not after or np.mean(worths) < NEVER + (GOAL_REWARD - NEVER) / np.e - 1e-5:
            assert np.isnan(value)


def test_transitions_are_drawn_evenly_over_states():
    """Of a state left a hundred times as often as of one left once, and of its transitions each as often."""
    often = [(0, 0, 1 + time % 2, False) for time in range(100)]
    transitions = [*often[:50], (4, 1, 5, False), *often[50:], (3, 0, 6, True), (3, 2, 2, False)]
    buffer, goals, plan = filled(transitions), GoalBuffer(CELLS), ReplayPlan(GAMMA, GOAL_REWARD, STEP_REWARD)
    goals.add(np.array([5]))
    plan.refresh(buffer, goals, 2, 0)
    batch = plan.draw(9_000, buffer, np.random.default_rng(0))
    drawn = list(zip(batch.observations.tolist(), batch.actions.tolist(), batch.next_observations.tolist(), strict=True))
    shares = {each: drawn.count(each) / 9_000 for each in set(drawn)}
    expected = {(0, 0, 1): 1 / 6, (0, 0, 2): 1 / 6, (4, 1, 5): 1 / 3, (3, 0, 6): 1 / 6, (3, 2, 2): 1 / 6}
    assert shares == pytest.approx(expected, abs=0.02)
    assert batch.terminated.tolist() == [there == 6 for _, _, there in drawn]


def test_a_model_draws_evenly_where_it_should():
    model = make_model(Corridor(length=6), plan_interval=10, plan_evenly=True)
    drawn = []
    draw = model.replay_buffer.at
    model.replay_buffer.at = lambda times, envs: drawn.append(len(times)) or draw(times, envs)
    model.learn(50)
    assert drawn == [32] * 30


def test_observations_that_there_is_no_room_for_are_no_states():
    buffer = filled([(0, 1, 1, False), (1, 1, 2, False), (2, 1, 3, False)], n_states=2)
    assert buffer.next_state_ids.ravel().tolist() == [1, UNKNOWN, UNKNOWN]
    plan, goals = ReplayPlan(GAMMA, GOAL_REWARD, STEP_REWARD), GoalBuffer(CELLS)
    goals.add(np.array([1, 3]))
    plan.refresh(buffer, goals, 5, 0)
    np.testing.assert_allclose(plan.values, [[GOAL_REWARD, NEVER], [NEVER, NEVER]])


def test_the_loss_is_the_loop_over_pairs_and_what_is_not_known_teaches_nothing():
    settings = {"near_decay": 0.9, "margin_weight": 3.0, "margin": 0.07}
    model = make_model(Corridor(length=6), plan_interval=10, batch_size=20, learning_starts=10, **settings)
    model.learn(60)
    model.plan.refresh(model.replay_buffer, model.goal_buffer, 100, 60)
    goals, ids = th.tensor(model.goal_buffer.observations), th.arange(len(model.goal_buffer))
    batch = model.replay_buffer.sample(20)
    batch.states[3] = UNKNOWN
    for parameter in model.q_net_target.parameters():
        parameter.data.fill_(th.nan)  # nothing comes from there
    losses = model.goal_losses(batch, goals, ids)
    planned = model.plan.action_values(batch.states.numpy(), ids.numpy())
    assert np.isnan(planned[3]).all()
    q = np.stack([model.q_net(batch.observations, goal.expand(20, -1)).detach().numpy() for goal in goals], axis=1)
    values = np.nanmax(np.nan_to_num(planned, nan=-np.inf), axis=2)
    nearness = np.clip((values + 10) / 10, 0, 1)
    weights = nearness ** (np.log(0.9) / np.log(0.99)) + 0.02
    weights /= weights.mean()
    expected = np.zeros(len(goals))
    for s, g in np.ndindex(values.shape):
        tried = [a for a in range(3) if not np.isnan(planned[s, g, a])]
        if tried:
            error = np.mean([(q[s, g, a] - planned[s, g, a]) ** 2 for a in tried])
            best = [a for a in tried if planned[s, g, a] >= values[s, g] - 0.002]
            lead = max(q[s, g, a] + 0.07 * (a not in best) for a in range(3)) - max(q[s, g, a] for a in best)
            expected[g] += weights[s, g] * (error + 3.0 * lead) / 20
    np.testing.assert_allclose(losses.detach().numpy(), expected, rtol=1e-4, atol=1e-6)
    losses.sum().backward()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in model.q_net.parameters())


@pytest.mark.parametrize("margin_weight", [0.0, 5.0])
def test_it_learns_every_goal_of_a_corridor(margin_weight):
    world = Corridor(length=7)
    model = make_model(
        world,
        learning_rate=1e-3,
        plan_interval=100,
        initial_value=0.0,
        exploration_steps=500,
        goal_sampling="batch",
        margin_weight=margin_weight,
        goal_wrapper_kwargs={"max_episode_steps": 15},
        policy_kwargs={**SMALL, "optimizer_class": th.optim.Adam},
        target_update_interval=10**6,  # by which nothing could come from one network to the other
    )
    model.learn(1_000)
    reached = 0
    for start in range(7):
        for goal in range(7):
            cell = start
            for _ in range(abs(goal - start)):
                action = int(model.predict(goal_obs(world, cell, goal), deterministic=True)[0])
                cell = min(max(cell + (-1, 1, 0)[action], 0), 6)
            reached += cell == goal
    assert reached >= 38  # of 49, each by a shortest path; a random policy manages some 20


def test_goals_that_are_loaded_are_planned_anew(tmp_path):
    model = make_model(plan_interval=20)
    model.learn(60)
    model.save_goal_buffer(tmp_path / "goals")
    model.save_replay_buffer(tmp_path / "replay")
    values = model.plan.values.copy()
    model.load_goal_buffer(tmp_path / "goals.npz")
    assert model.plan.planned_at is None
    model.load_replay_buffer(tmp_path / "replay")
    assert model.plan.planned_at is None
    model.plan.refresh(model.replay_buffer, model.goal_buffer, 50, 60)
    assert model.plan.values.shape == values.shape
    without = make_model()
    without.learn(30)
    with pytest.raises(ValueError, match="plan_interval is 0, the replay memory was kept for another"):
        without.load_replay_buffer(tmp_path / "replay")


def test_a_saved_model_has_no_plan_and_makes_one(tmp_path):
    model = make_model(plan_interval=20)
    model.learn(60)
    model.save(tmp_path / "model")
    loaded = type(model).load(tmp_path / "model", Corridor())
    assert loaded.plan.planned_at is None
    loaded.learn(60)
    assert loaded.plan.planned_at is not None
    copied = copy.deepcopy(model.plan)
    assert np.array_equal(copied.values, model.plan.values)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_steps": 3}, "plan_interval and n_steps go apart, got 10 and 3"),
        ({"segment_length": 4}, "plan_interval and segment_length go apart"),
        ({"action_gap": 0.5}, "plan_interval and action_gap go apart"),
        ({"double_q": True}, "plan_interval and double_q go apart"),
        ({"goals_in_replay": True}, "plan_interval and goals_in_replay go apart"),
        ({"goal_sampling": "pursued"}, 'goal_sampling="pursued" has no plan_interval'),
        ({"margin_weight": -1}, "margin_weight must be a number, at least 0, got -1"),
        ({"margin": 0}, "margin must be a number, more than 0, got 0"),
        ({"plan_interval": 0, "margin_weight": 1}, "margin_weight needs a plan_interval"),
        ({"plan_sweeps": 0}, "plan_sweeps must be a whole number, at least 1, got 0"),
        ({"plan_states": 0}, "plan_states must be a whole number, at least 1, got 0"),
        ({"plan_interval": -1}, "plan_interval must be a whole number, at least 0, got -1"),
    ],
)
def test_what_makes_no_sense_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        make_model(**{"plan_interval": 10} | settings)


def test_more_pairs_than_there_is_memory_for_are_refused(monkeypatch):
    model = make_model(plan_interval=10)
    monkeypatch.setattr("sb3_manygoals.memory.available_memory", lambda: 10)
    with pytest.raises(MemoryError, match=r"planning would take .* plan_interval is for worlds of fewer observations"):
        model.learn(40)
