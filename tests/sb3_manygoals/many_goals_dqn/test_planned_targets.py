"""What planned values teach, and how behavior follows them."""

from itertools import pairwise

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.callbacks import ConvertCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_manygoals.goals import UNKNOWN
from sb3_manygoals.many_goals_dqn import PlannedTargets, planned_targets
from tests.sb3_manygoals.many_goals_dqn.memories import kept
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


class RarePlans(PlannedTargets):
    """Plans again when there are five times as many transitions."""

    growth = 5.0


def planning_with(**settings):
    """Return a class of planned targets with these settings in place of the defaults."""
    return type("Customized", (PlannedTargets,), settings)


def planned_model(env=None, target_class=PlannedTargets, **target_kwargs):
    return make_model(env, target_class=target_class, target_kwargs=target_kwargs)


def planned_in_a_long_corridor():
    """Return a model that has a plan of all forty cells, after few updates."""
    settings = {"target_class": PlannedTargets, "updates_per_step": 0.05}
    return make_model(Corridor(length=40), **settings).learn(2_000)


def weights_by_loop(values, targets, goal_of_state):
    """Return the weights of pairs of state and goal that have these planned values."""
    context = targets.context
    never = context.step_reward / (1 - context.gamma)
    discounts = np.clip((values - never) / (context.goal_reward - never), 0, 1)
    weights = np.ones_like(values)
    if targets.near_decay < 1.0:
        power = np.log(targets.near_decay) / np.log(context.gamma)
        weights = discounts**power + targets.near_floor
        weights = weights / weights.mean()
    if goal_of_state is not None:
        n_goals = values.shape[1]
        for s, goal in enumerate(goal_of_state.tolist()):
            # A tenth of the weights of a state on the way to a goal are that of this goal.
            if goal >= 0:
                weights[s] *= 0.9
                weights[s, goal] += 0.1 * n_goals
    return weights


def losses_by_loop(q, planned, targets, goal_of_state):
    """Return the loss of each goal, from the values of the network and those of the plan."""
    context = targets.context
    values = np.nan_to_num(planned, nan=-np.inf).max(axis=2)
    weights = weights_by_loop(values, targets, goal_of_state)
    # Errors are counted in steps. This is what a step next to the goal costs.
    cost = context.goal_reward - (context.step_reward + context.gamma * context.goal_reward)
    losses = np.zeros(values.shape[1])
    for s, g in np.ndindex(values.shape):
        tried = [a for a in range(3) if not np.isnan(planned[s, g, a])]
        if not tried:
            continue
        error = np.mean([((q[s, g, a] - planned[s, g, a]) / cost) ** 2 for a in tried])
        cost_here = values[s, g] - (context.step_reward + context.gamma * values[s, g])
        best = [a for a in tried if planned[s, g, a] >= values[s, g] - 0.02 * cost_here]
        exponentials = np.exp((q[s, g] - q[s, g].max()) / cost / 0.5)
        surprise = -np.log(exponentials[best].sum() / exponentials.sum())
        losses[g] += weights[s, g] * (error + targets.best_weight * surprise) / len(values)
    return losses


@pytest.mark.parametrize(
    ("gamma", "goal", "step"), [(0.99, 0.0, -0.1), (0.99, 1.0, 0.0), (0.5, 0.0, -1.0)]
)
@pytest.mark.parametrize(
    ("settings", "target_kwargs"),
    [
        ({}, {}),
        ({"near_decay": 0.9, "near_floor": 0.1, "best_weight": 3.0}, {}),
        ({"near_decay": 1.0, "best_weight": 0.0}, {}),
        # A partial plan, for four goals.
        ({}, {"max_plan_bytes": 5 * 6 * 4}),
    ],
)
def test_the_loss_is_the_loop_over_pairs_and_unknown_pairs_teach_nothing(
    settings, target_kwargs, gamma, goal, step
):
    model = make_model(
        target_class=planning_with(**settings),
        target_kwargs=target_kwargs,
        policy_kwargs={**PLAIN, "mixed_precision": False},
        batch_size=20,
        goal_wrapper_kwargs={"goal_reward": goal, "step_reward": step},
        gamma=gamma,
    )
    targets = model.learn(60).targets
    targets.plan.refresh(model.world, model.goal_buffer)
    batch = targets.sample(20, 6, np.random.default_rng(0))
    assert targets.plan.is_partial == bool(target_kwargs)
    if target_kwargs:
        # Half of the states are random, and the others are on the ways to the goals in turn.
        assert batch.goal_of_state.tolist() == [-1] * 10 + [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    else:
        assert batch.goal_of_state is None
    batch.state_ids[3] = UNKNOWN
    batch.goal_ids[2] = UNKNOWN
    target_values = targets.target_values(batch)
    losses = targets.losses(batch, target_values)

    planned = targets.plan.action_values(batch.state_ids.numpy(), batch.goal_ids.numpy())
    np.testing.assert_array_equal(target_values, planned)
    assert np.isnan(planned[3]).all()
    assert np.isnan(planned[:, 2]).all()
    assert not np.isnan(planned).all()
    with th.no_grad():
        columns = [
            model.q_net(batch.observations, one.expand(len(batch.observations), -1))
            for one in batch.goals
        ]
    q = np.stack(columns, axis=1)
    expected = losses_by_loop(q, planned, targets, batch.goal_of_state)
    np.testing.assert_allclose(losses.detach().numpy(), expected, rtol=1e-3, atol=1e-5)
    losses.sum().backward()
    gradients = [one.grad for one in model.q_net.parameters() if one.grad is not None]
    assert gradients
    assert all(one.isfinite().all() for one in gradients)


def test_fewer_states_are_random_in_a_large_world(monkeypatch):
    model = planned_in_a_long_corridor()
    assert len(model.targets.plan.model.tried_states) == 40
    for n_at_most, n_random in ((40, 8), (20, 4), (10, 2)):
        monkeypatch.setattr(planned_targets, "_FEW_STATES", n_at_most)
        batch = model.targets.sample(16, 4, np.random.default_rng(0))
        on_ways = [number % 4 for number in range(16 - n_random)]
        assert batch.goal_of_state.tolist() == [-1] * n_random + on_ways


def test_best_actions_count_more_in_a_large_world(monkeypatch):
    targets = planned_in_a_long_corridor().targets
    assert len(targets.plan.values) == 40
    batch = targets.sample(16, 4, np.random.default_rng(0))
    values = targets.target_values(batch)
    for few, factor in ((80, 1.0), (40, 1.0), (20, 2.0), (8, 5.0)):
        monkeypatch.setattr(planned_targets, "_FEW_STATES", 80)
        monkeypatch.setattr(type(targets), "best_weight", 30.0 * factor)
        expected = targets.losses(batch, values).detach()
        monkeypatch.setattr(type(targets), "best_weight", 30.0)
        monkeypatch.setattr(planned_targets, "_FEW_STATES", few)
        np.testing.assert_allclose(targets.losses(batch, values).detach(), expected, rtol=1e-5)


def test_random_states_and_goals_are_sampled_evenly_however_often_they_were_met():
    model = planned_model(Corridor(length=6, start=0)).learn(300)
    n_visits = model.world.visit_counts[:6].sum(axis=1)
    assert n_visits.max() > 2 * n_visits.min()
    rng = np.random.default_rng(0)
    batches = [model.targets.sample(5, 4, rng) for _ in range(1_500)]
    # The limit is 5 standard deviations.
    random_states = [batch.state_ids[batch.goal_of_state == -1] for batch in batches]
    for samples in (random_states, [batch.goal_ids for batch in batches]):
        sampled = np.concatenate(samples)
        shares = np.bincount(sampled) / len(sampled)
        np.testing.assert_allclose(shares, np.full(6, 1 / 6), atol=0.025)
    batch = batches[0]
    states = model.world.identity[batch.state_ids.numpy()]
    np.testing.assert_array_equal(batch.observations, states)
    np.testing.assert_array_equal(batch.goals, model.goal_buffer[batch.goal_ids.numpy()])


def test_a_batch_has_no_state_and_no_goal_twice_if_all_fit_into_it():
    model = planned_model(Corridor(length=6, start=0)).learn(300)
    batch = model.targets.sample(128, 6, np.random.default_rng(0))
    assert sorted(batch.state_ids.tolist()) == list(range(6))
    assert sorted(batch.goal_ids.tolist()) == list(range(6))


def test_a_partial_plan_teaches_its_goals_some_of_which_are_exchanged():
    target_class = planning_with(fresh_goals=0.5, growth=100.0)
    model = make_model(
        target_class=target_class,
        target_kwargs={"max_plan_bytes": 5 * 6 * 2},
        updates_per_step=1.0,
    ).learn(800)
    plan = model.targets.plan
    rng = np.random.default_rng(0)
    goal_sets = []
    # Goals are exchanged after 64 samples, when walkers set out anew.
    for _ in range(6 * 64):
        batch = model.targets.sample(30, 40, rng)
        goal_sets.append(set(batch.goal_ids.tolist()))
        assert goal_sets[-1] == set(plan.goal_ids)
        assert goal_sets[-1] <= set(range(6))
        losses = model.targets.losses(batch, model.targets.target_values(batch))
        assert losses.isfinite().all()
    assert all(len(goals) == 2 for goals in goal_sets)
    changed = [k for k, (before, after) in enumerate(pairwise(goal_sets), 1) if before != after]
    assert len(changed) >= 2
    assert all((later - earlier) % 64 == 0 for earlier, later in pairwise(changed))
    assert n_mastered(model, 6) == 36


def test_a_last_plan_that_is_partial_and_knows_few_ways_is_a_warning():
    model = planned_model(Corridor(length=200), planning_with(growth=100.0), max_plan_bytes=1_000)
    partial = r"\d+ of \d+ goals fit into max_plan_bytes, .* samples of goals\. More max_plan_bytes"
    few_ways = r"knows a way for \d\d?% of pairs .* more steps would teach more"
    with pytest.warns(UserWarning, match=partial), pytest.warns(UserWarning, match=few_ways):
        model.learn(100)


def test_it_plans_again_as_steps_grow_and_where_they_are_counted_anew(monkeypatch):
    model = make_model(target_class=planning_with(growth=2.0), updates_per_step=1.0)
    planned_at = []
    refresh = model.targets.plan.refresh

    def noting(*args, **kwargs):
        planned_at.append(model.num_timesteps)
        refresh(*args, **kwargs)

    monkeypatch.setattr(model.targets.plan, "refresh", noting)
    model.learn(200)
    # The last plan is made at 80% of training, so that the network has time to learn it.
    assert planned_at == [100, 160]
    model.learn(100)
    # The network has learned before, so nothing waits.
    assert planned_at[2:] == [21, 80]
    for _ in range(3):
        model.learn(100, reset_num_timesteps=False)
    n_planned = model.targets.planned_at
    for _ in range(40):
        model.learn(100, reset_num_timesteps=False)
    # All six states are known from more than 40 transitions each, so it plans again when the
    # transitions have doubled three times.
    assert model.targets.planned_at == 8 * n_planned


def interrupted_model(steps, **kwargs):
    """Return a model whose training was interrupted while it discovered the world."""

    def interrupt(*_):
        if model.num_timesteps == steps:
            raise KeyboardInterrupt
        return True

    model = make_model(**kwargs)
    with pytest.raises(KeyboardInterrupt):
        model.learn(1_000, interrupt)
    assert model.targets.is_discovering
    assert model._n_updates == 0
    return model


def test_after_an_interrupted_training_updates_by_hand_make_a_plan():
    model = interrupted_model(steps=40)
    model.train(3)
    assert model._n_updates == 3
    # The training ended before it noted its last transition.
    assert model.targets.planned_at == 39


def test_after_an_interrupted_training_updates_that_no_longer_wait_make_a_plan():
    model = interrupted_model(steps=40, updates_per_step=1.0)
    model.updates_as_needed = False
    model.learn(100)
    assert model._n_updates == 100 - 20


def test_an_interrupted_training_that_goes_on_discovers_the_world_further():
    model = interrupted_model(steps=40)
    stop = ConvertCallback(lambda *_: model.num_timesteps < 490)
    model.learn(960, stop, reset_num_timesteps=False)
    # Of so small a training, it is the first half.
    assert model.targets.is_discovering
    assert model.targets.planned_at is None


def test_actions_follow_the_plan_and_the_visit_counts_of_episodes_that_explore():
    model = planned_model(make_vec_env(Corridor, 4, seed=0)).learn(400)
    targets = model.targets
    state_ids = model.world.identity.ids(CELLS[[0, 4, 2, 3]])
    goal_ids = model.goal_buffer.ids(CELLS[[5, 1, 3, 0]])
    # The way to an unknown goal is not known.
    goal_ids[3] = UNKNOWN
    # The action that was tried least is the most promising one.
    targets.exploration.next_values[:] = 0.0
    model.world.visit_counts[:] = 9
    model.world.visit_counts[state_ids, [2, 1, 0, 2]] = 3
    none = np.zeros(4, dtype=bool)
    rng = np.random.default_rng(0)
    assert targets.act(state_ids, goal_ids, none, rng, None).tolist() == [1, 0, 1, 2]
    assert targets.act(state_ids, goal_ids, ~none, rng, None).tolist() == [2, 1, 0, 2]
    some = np.array([True, False, False, False])
    assert targets.act(state_ids, goal_ids, some, rng, None).tolist() == [2, 0, 1, 2]
    # Forbidden actions are not taken, even if they are the plan's.
    masks = np.array([[True, False, True]] * 4)
    assert (targets.act(state_ids, goal_ids, none, rng, masks) != 1).all()


def listen_to_actions(model, monkeypatch):
    """Return a list that gets the arguments of the targets' actions, and the actions."""
    asked = []
    act = model.targets.act

    def noting(state_ids, goal_ids, explores, rng, action_masks):
        actions = act(state_ids, goal_ids, explores, rng, action_masks)
        asked.append((state_ids.copy(), goal_ids.copy(), explores.copy(), actions.copy()))
        return actions

    monkeypatch.setattr(model.targets, "act", noting)
    return asked


def test_in_training_the_targets_act_and_the_network_is_not_asked(monkeypatch):
    model = planned_model(make_vec_env(Corridor, 4, seed=0))
    asked = listen_to_actions(model, monkeypatch)
    monkeypatch.setattr(model, "predict", None)
    made = []

    def look(local, _):
        infos = local["infos"]
        state_ids = [info["state_id"] for info in infos]
        goal_ids = [info["desired_goal_id"] for info in infos]
        made.append((state_ids, goal_ids, local["actions"].tolist()))
        return True

    model.learn(100, look)
    # The first 20 steps are random.
    assert len(asked) == len(made) - 5 == 20
    for (state_ids, goal_ids, _, actions), expected in zip(asked, made[5:], strict=True):
        assert (state_ids.tolist(), goal_ids.tolist(), actions.tolist()) == expected


@pytest.mark.parametrize("share", [0.0, 1.0, lambda progress: float(progress > 0.5)])
def test_goal_episodes_explore_as_often_as_asked_for(share, monkeypatch):
    model = make_model(
        target_class=PlannedTargets,
        target_kwargs={"exploring_episodes": share},
        goal_wrapper_kwargs={"max_episode_steps": 3},
    )
    asked = listen_to_actions(model, monkeypatch)
    model.learn(100)
    explores = [bool(explores[0]) for _, _, explores, _ in asked]
    assert len(explores) == 80
    if callable(share):
        # An episode that begins in the first half of training may end later.
        assert all(explores[:30])
        assert not any(explores[34:])
    else:
        assert set(explores) == {bool(share)}


def test_by_default_the_share_of_exploring_episodes_falls_over_half_of_training():
    targets = planned_model().targets
    shares = [targets.exploring_share(left) for left in (1.0, 0.75, 0.5, 0.0)]
    np.testing.assert_allclose(shares, [1.0, 0.55, 0.1, 0.1])


def test_goals_that_are_loaded_are_planned_anew(tmp_path):
    model = planned_model(None, RarePlans).learn(60)
    model.save_world(tmp_path / "world")
    model.save_replay_buffer(tmp_path / "replay")
    model.load_world(tmp_path / "world.npz")
    assert model.targets.planned_at is None
    model.load_replay_buffer(tmp_path / "replay")
    assert model.targets.planned_at is None
    assert model.targets.context.replay_buffer is model.replay_buffer
    loaded = reloaded(model, tmp_path, Corridor())
    assert loaded.targets.planned_at is None
    assert loaded.targets.growth == 5.0
    for each in (model, loaded):
        assert each.learn(60).targets.planned_at is not None


def test_a_replay_memory_is_recorded_in_a_model_that_knows_nothing(tmp_path):
    td_model(updates_per_step=1.0).learn(50).save_replay_buffer(tmp_path / "replay")
    model = make_model(target_class=PlannedTargets, updates_per_step=1.0)
    model.load_replay_buffer(tmp_path / "replay")
    assert model.world.n_counted == 50
    assert model.world.visit_counts.sum() == 50
    assert model.world.outcomes().counts.sum() == 50
    model.learn(30)
    # A model that knows something does not count transitions twice.
    model.load_replay_buffer(tmp_path / "replay")
    assert model.world.n_counted == 80


def test_a_replay_memory_of_another_number_of_environments_is_refused(tmp_path):
    make_model().learn(50).save_replay_buffer(tmp_path / "replay")
    message = r"model with {'n_envs': 1, .*, this one has {'n_envs': 2, "
    with pytest.raises(ValueError, match=message):
        planned_model(make_vec_env(Corridor, 2)).load_replay_buffer(tmp_path / "replay")


def test_a_model_with_goals_in_its_replay_memory_reads_one_with_states(tmp_path):
    make_model(updates_per_step=1.0).learn(50).save_replay_buffer(tmp_path / "replay")
    without = make_model(goals_in_replay=True, updates_per_step=1.0).learn(50)
    without.load_replay_buffer(tmp_path / "replay")
    assert without.replay_buffer.states is None
    assert without.replay_buffer.stores_observations
    assert without.replay_buffer.size() == 50
    next_observations = kept(without.replay_buffer)[1].reshape(-1, 6)
    ids = without.goal_buffer.ids(next_observations)
    np.testing.assert_array_equal(without.replay_buffer.next_goal_ids[:50].reshape(-1), ids)
    without.learn(30)


def test_nothing_is_stored_where_values_are_planned_for_sure():
    assert planned_model().learn(60).replay_buffer.size() == 0
    assert make_model().learn(60).replay_buffer.size() == 60


@pytest.mark.parametrize("rewards", [{}, {"goal_reward": 1.0, "step_reward": 0.0}])
def test_by_default_it_masters_a_corridor_without_a_target_network(rewards):
    wrapper = {"max_episode_steps": 15, **rewards}
    model = make_model(Corridor(length=7, start=0), goal_wrapper_kwargs=wrapper)
    assert n_mastered(model.learn(600)) == 49
    assert model.q_net_target is None


def test_the_longest_way_is_as_long_as_values_tell():
    targets = make_model().targets
    plan = targets.plan
    for n_steps in (1, 10, 250):
        value = plan.goal_reward
        for _ in range(n_steps - 1):
            value = plan.step_reward + plan.gamma * value
        # Rounding may make it one step more.
        assert targets._steps_to(value + 1e-9) - n_steps in (0, 1)
    for value in (plan.unreachable_value, np.float32(-10.0), plan.least_value):
        assert targets._steps_to(float(value)) in (300, 301)


def test_updates_wait_again_where_there_is_no_plan_any_more():
    model = make_model(updates_per_step=1.0).learn(400)
    assert not model._pacer.is_waiting
    # As where states are to be learned anew.
    model.targets.plan.model = None
    model.targets.planned_at = None
    n_updates = model._n_updates
    model.targets.is_plan_due = lambda _: False
    model._is_learning = True
    model.train(gradient_steps=4)
    assert model._pacer.is_waiting
    assert model._n_updates == n_updates


def test_a_loaded_model_that_knows_nothing_plans_as_it_meets_transitions(tmp_path):
    model = make_model(Corridor(40), updates_per_step=0.01).learn(1_000)
    loaded = reloaded(model, tmp_path, Corridor(40))
    message = "it knows nothing of the world: load_world, or load_replay_buffer, or it"
    with pytest.warns(UserWarning, match=message):
        loaded.learn(400, reset_num_timesteps=False)
    assert loaded.world.n_counted == 400
    # It has planned again since the first step.
    assert 400 / 1.5 < loaded.targets.planned_at <= 400
    assert loaded.targets.exploration.get_checkpoint_state()["solved_at"] > 300


def check_moves(model):
    """Assert that a model knows only of transitions that a corridor of 30 cells makes."""
    outcomes = model.world.outcomes()
    cells = model.world.identity.observations
    moves = np.array([-1, 1, 0])[outcomes.actions]
    there = np.clip(cells[outcomes.state_ids] + moves, 0, 29)
    np.testing.assert_array_equal(cells[outcomes.next_state_ids], there)


def numbered():
    return make_vec_env(NumberedCorridor, 2, seed=0, env_kwargs={"length": 30})


def test_no_transition_is_made_up_where_an_evaluation_moves_the_environments():
    model = make_model(numbered())
    for steps in (51, 33, 47):
        model.learn(steps, reset_num_timesteps=False)
        evaluate_policy(model, model.get_env(), 2)
    model.learn(20, reset_num_timesteps=False)
    check_moves(model)


def test_no_transition_is_made_up_where_a_callback_ends_training_within_a_rollout():
    model = make_model(numbered())
    for steps in (51, 33, 47):
        end = model.num_timesteps + steps
        callback = ConvertCallback(lambda *_, end=end: model.num_timesteps < end)
        model.learn(200, callback, reset_num_timesteps=False)
    model.learn(20, reset_num_timesteps=False)
    check_moves(model)
