"""What planned values teach, and how behaviour follows them."""

from itertools import pairwise

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.callbacks import ConvertCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_manygoals.goals import UNKNOWN
from sb3_manygoals.many_goals_dqn import PlannedTargets, TDTargets
from tests.sb3_manygoals.many_goals_dqn.models import (
    CELLS,
    PLAIN,
    make_model,
    n_mastered,
    reloaded,
    td_model,
)
from tests.sb3_manygoals.worlds import Corridor, NumberedCorridor

pytestmark = pytest.mark.filterwarnings("ignore:.* goals fit into max_plan_bytes")


def planned_model(env=None, **targets):
    return make_model(env, target_class=PlannedTargets, target_kwargs=targets)


@pytest.mark.parametrize(
    ("gamma", "goal", "step"), [(0.99, 0.0, -0.1), (0.99, 1.0, 0.0), (0.5, 0.0, -1.0)]
)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"near_decay": 0.9, "near_floor": 0.1, "best_weight": 3.0},
        {"near_decay": 1.0, "best_weight": 0.0},
        {"max_plan_bytes": 5 * 6 * 4},  # a draw of four goals
    ],
)
def test_the_loss_is_the_loop_over_pairs_and_what_is_not_known_teaches_nothing(
    settings, gamma, goal, step
):
    kwargs = {
        "target_kwargs": settings,
        "goal_wrapper_kwargs": {"goal_reward": goal, "step_reward": step},
        "gamma": gamma,
    }
    model = make_model(target_class=PlannedTargets, policy_kwargs=PLAIN, batch_size=20, **kwargs)
    targets = model.learn(60).targets
    targets.plan.refresh(model.replay_buffer, model.goal_buffer)
    draw = targets.draw(20, 6, np.random.default_rng(0))
    draw.batch.states[3], draw.goal_ids[2] = UNKNOWN, UNKNOWN
    for parameter in model.q_net_target.parameters():
        parameter.data.fill_(th.nan)  # nothing comes from there
    losses = targets.losses(draw)
    planned = targets.plan.action_values(draw.batch.states.numpy(), draw.goal_ids.numpy())
    assert np.isnan(planned[3]).all()
    assert np.isnan(planned[:, 2]).all()
    observations = draw.batch.observations
    q = np.stack(
        [model.q_net(observations, goal.expand(20, -1)).detach().numpy() for goal in draw.goals],
        axis=1,
    )
    decay, floor = targets.near_decay, targets.near_floor
    values = np.nan_to_num(planned, nan=-np.inf).max(axis=2)
    never = step / (1 - gamma)
    weights = (
        np.clip((values - never) / (goal - never), 0, 1) ** (np.log(decay) / np.log(gamma)) + floor
    )
    weights = weights / weights.mean() if decay < 1.0 else np.ones_like(weights)
    if draw.own is not None:  # half of the weight is that of each state with its own goal
        assert values.shape == (20, 4)
        weights = weights / 2 + 4 / 2 * (np.arange(20)[:, None] % 4 == np.arange(4))
    expected = np.zeros(len(draw.goals))
    for s, g in np.ndindex(values.shape):
        tried = [a for a in range(3) if not np.isnan(planned[s, g, a])]
        if tried:
            cost = goal - (
                step + gamma * goal
            )  # of a step, next to the goal: errors are counted in steps
            error = np.mean([((q[s, g, a] - planned[s, g, a]) / cost) ** 2 for a in tried])
            there = values[s, g] - (step + gamma * values[s, g])
            best = [a for a in tried if planned[s, g, a] >= values[s, g] - 0.02 * there]
            shares = np.exp((q[s, g] - q[s, g].max()) / cost / 0.5)
            unlikely = -np.log(shares[best].sum() / shares.sum())
            expected[g] += weights[s, g] * (error + targets.best_weight * unlikely) / 20
    np.testing.assert_allclose(losses.detach().numpy(), expected, rtol=1e-3, atol=1e-5)
    losses.sum().backward()
    assert all(
        parameter.grad is None or parameter.grad.isfinite().all()
        for parameter in model.q_net.parameters()
    )


def test_states_and_goals_are_drawn_evenly_however_often_they_were_met():
    model = planned_model(Corridor(length=6, start=0)).learn(300)
    memory = model.replay_buffer
    times = memory.tried[:6].sum(axis=1)
    assert times.max() > 2 * times.min()
    draw = model.targets.draw(6_000, 6_000, np.random.default_rng(0))
    for drawn in (draw.batch.states, draw.goal_ids):
        np.testing.assert_allclose(
            np.bincount(drawn) / 6_000, np.full(6, 1 / 6), atol=0.025
        )  # 5 standard deviations
    np.testing.assert_array_equal(draw.batch.observations, memory.states[draw.batch.states.numpy()])
    np.testing.assert_array_equal(draw.goals, model.goal_buffer[draw.goal_ids.numpy()])


def test_where_not_all_goals_fit_updates_teach_those_of_a_draw_some_of_which_are_exchanged():
    model = planned_model(max_plan_bytes=5 * 6 * 2, fresh_goals=0.5, growth=100.0).learn(300)
    plan, rng, drawn = model.targets.plan, np.random.default_rng(0), []
    for _ in range(12):
        draw = model.targets.draw(30, 40, rng)
        drawn.append(set(draw.goal_ids.tolist()))
        assert drawn[-1] == set(plan.goal_ids) <= set(range(6))
        assert model.targets.losses(draw).isfinite().all()
    assert all(len(goals) == 2 for goals in drawn)
    # both at once, at every fourth update
    assert sum(before != after for before, after in pairwise(drawn)) == 3
    assert n_mastered(model, 6) == 36


def test_a_draw_that_knows_few_ways_at_last_is_a_warning():
    few = pytest.warns(
        UserWarning,
        match=r"8 of 25 goals fit into max_plan_bytes, .* LARGE_WORLD are for such worlds",
    )
    with (
        few,
        pytest.warns(UserWarning, match=r"knows a way for \d\d?% of pairs .* learning_starts"),
    ):
        planned_model(Corridor(length=200), max_plan_bytes=5 * 200, growth=100.0).learn(100)


def test_it_plans_again_as_steps_grow_and_where_they_are_counted_anew():
    model = planned_model(growth=2.0)
    planned = []
    refresh = model.targets.plan.refresh
    model.targets.plan.refresh = lambda *args: planned.append(model.num_timesteps) or refresh(*args)
    model.learn(200)
    assert planned == [21, 35, 70, 140]  # the last at 70% of training, for the network to learn it
    model.learn(100)
    assert planned[4:] == [21, 35, 70]
    for _ in range(6):
        model.learn(100, reset_num_timesteps=False)
    assert planned[-1] > 600  # the transitions met, 300 more, have doubled twice


def test_behaviour_follows_the_plan_and_counts_where_there_is_none_or_it_explores(monkeypatch):
    model = planned_model(make_vec_env(Corridor, 4, seed=0)).learn(400)
    at, aim = np.array([0, 4, 2, 3]), np.array([5, 1, 3, 0])
    model._last_obs = {
        "observation": CELLS[at],
        "achieved_goal": CELLS[at],
        "desired_goal": CELLS[aim],
    }
    model._trackers[0].desired_ids = model.goal_buffer.ids(CELLS[aim])
    model._exploring = np.zeros(4, dtype=bool)
    model._trackers[0].desired_ids[3] = UNKNOWN
    monkeypatch.setattr(model, "predict", None)  # the network is not asked
    # by counts: what was tried least
    model.targets.exploration.led[:] = 0.0
    model.replay_buffer.tried[:] = 9
    numbers = model.replay_buffer.states.ids(CELLS[at])
    model.replay_buffer.tried[numbers, [2, 1, 0, 2]] = 3
    assert model._sample_action(0, n_envs=4)[0].tolist() == [1, 0, 1, 2]
    masks = np.array(
        [[True, False, True]] * 4
    )  # what is not allowed is not taken, whatever the plan says
    assert (
        model.targets.act(
            CELLS[at], model._trackers[0].desired_ids, model._exploring, model.rng, masks
        )
        != 1
    ).all()
    model._exploring[:] = True
    assert model._sample_action(0, n_envs=4)[0].tolist() == [2, 1, 0, 2]


def test_goal_episodes_explore_at_the_rate_asked_for():
    for rate in (0.0, 1.0):
        rates = {"exploration_initial_eps": rate, "exploration_final_eps": rate}
        model = make_model(
            target_class=PlannedTargets, goal_wrapper_kwargs={"max_episode_steps": 3}, **rates
        )
        seen = []
        model.learn(
            100, lambda *_, model=model, seen=seen: seen.append(bool(model._exploring[0])) or True
        )
        assert seen[0]  # what came before learning was random
        assert set(seen[20:]) == {bool(rate)}


def test_goals_that_are_loaded_are_planned_anew(tmp_path):
    model = planned_model(sweeps=7).learn(60)
    model.save_goal_buffer(tmp_path / "goals")
    model.save_replay_buffer(tmp_path / "replay")
    model.load_goal_buffer(tmp_path / "goals.npz")
    assert model.targets.planned_at is None
    model.load_replay_buffer(tmp_path / "replay")
    assert model.targets.planned_at is None
    assert model.targets.learner.replay_buffer is model.replay_buffer
    loaded = reloaded(model, tmp_path, Corridor())
    assert (loaded.targets.planned_at, loaded.targets.sweeps) == (None, 7)
    for each in (model, loaded):
        assert each.learn(60).targets.planned_at is not None


def test_a_memory_kept_without_states_is_told_apart_when_it_is_loaded(tmp_path):
    without = td_model().learn(50)
    without.save_replay_buffer(tmp_path / "replay")
    model = planned_model()
    model.load_replay_buffer(tmp_path / "replay")
    assert model.replay_buffer.tried.sum() == model.replay_buffer.outcomes()[1].sum() == 50
    model.learn(30)
    planned_model().learn(50).save_replay_buffer(tmp_path / "planned")
    with pytest.raises(
        ValueError, match=r"model with {'n_envs': 1, .*, this one has {'n_envs': 2, "
    ):
        planned_model(make_vec_env(Corridor, 2)).load_replay_buffer(tmp_path / "planned")
    without.load_replay_buffer(tmp_path / "planned")
    assert without.replay_buffer.states is None
    assert isinstance(without.targets, TDTargets)


@pytest.mark.parametrize("rewards", [{}, {"goal_reward": 1.0, "step_reward": 0.0}])
def test_by_default_it_masters_a_corridor_and_nothing_comes_from_the_target_network(rewards):
    model = make_model(
        Corridor(length=7, start=0), goal_wrapper_kwargs={"max_episode_steps": 15, **rewards}
    )
    for parameter in model.q_net_target.parameters():
        parameter.data.fill_(th.nan)
    assert n_mastered(model.learn(600)) == 49


def test_a_loaded_model_without_memory_plans_as_it_meets_transitions(tmp_path):
    loaded = reloaded(
        make_model(Corridor(40), updates_per_step=0.01).learn(1_000), tmp_path, Corridor(40)
    )
    with pytest.warns(
        UserWarning, match="its replay memory is empty: load_replay_buffer or it unlearns"
    ):
        loaded.learn(400, reset_num_timesteps=False)
    targets = loaded.targets
    assert (
        400 / 1.5 < targets.planned_at <= 400 == loaded.replay_buffer.n_tried
    )  # not once, after the first step
    assert targets.exploration._solved > 300


@pytest.mark.parametrize(
    "how", ["a callback ends training within a rollout", "an evaluation in its environments"]
)
def test_no_transition_is_made_up_where_the_world_moves_on_without_the_learner(how):
    model = make_model(make_vec_env(NumberedCorridor, 2, seed=0, env_kwargs={"length": 30}))
    for steps in (51, 33, 47):
        if how.startswith("an"):
            model.learn(steps, reset_num_timesteps=False)
            evaluate_policy(model, model.get_env(), 2)
        else:
            end = model.num_timesteps + steps
            callback = ConvertCallback(lambda *_, end=end: model.num_timesteps < end)
            model.learn(200, callback, reset_num_timesteps=False)
    model.learn(20, reset_num_timesteps=False)
    rows, _ = model.replay_buffer.outcomes()
    cells = model.replay_buffer.states.observations
    there = np.clip(cells[rows[:, 0]] + np.array([-1, 1, 0])[rows[:, 1]], 0, 29)
    np.testing.assert_array_equal(cells[rows[:, 2]], there)
