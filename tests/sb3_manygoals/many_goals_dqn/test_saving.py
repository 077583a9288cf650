"""Saving and loading: the networks, what a model knows of its world, and its replay memory."""

import importlib
import pickle
import re
import sys
import threading
from types import MappingProxyType

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from stable_baselines3 import DQN, HerReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_manygoals import (
    GoalBuffer,
    GoalBufferWrapper,
    ManyGoalsDQN,
    VecGoalBufferWrapper,
    evaluate_mastery,
)
from sb3_manygoals.goals import UNKNOWN, LearningProgressSelector, UniformSelector
from sb3_manygoals.goals.wrapping import goal_trackers
from sb3_manygoals.many_goals_dqn import (
    ManyGoalsReplayBuffer,
    PlannedTargets,
    TDTargets,
    planning,
)
from sb3_manygoals.world import ExactStates, LearnedStates
from tests.sb3_manygoals.many_goals_dqn.memories import goals_of, kept
from tests.sb3_manygoals.many_goals_dqn.models import (
    SMALL,
    goal_obs,
    make_model,
    parameters,
    reloaded,
    td_model,
)
from tests.sb3_manygoals.worlds import Corridor, Paid


def tracker_of(model):
    """Return the goal tracker of a model with one environment."""
    (tracker,) = model.env.get_attr("goal_tracker")
    return tracker


def check_same_world(found, expected):
    """Assert that two models know the same of the world."""
    np.testing.assert_array_equal(found.world.identity.observations, expected.world.identity[:])
    states = found.world.get_checkpoint_state()
    np.testing.assert_equal(states, expected.world.get_checkpoint_state())
    np.testing.assert_array_equal(found.goal_buffer.observations, expected.goal_buffer.observations)
    np.testing.assert_array_equal(found.goal_rewards, expected.goal_rewards)


@pytest.mark.parametrize("policy", ["MlpPolicy", "CnnPolicy"])
def test_a_loaded_model_and_a_loaded_policy_act_as_before(tmp_path, policy):
    world = Corridor(image=policy == "CnnPolicy")
    model = td_model(world, policy).learn(100)
    model.policy.save(tmp_path / "policy.pt")
    loaded = reloaded(model, tmp_path)
    greedy = type(model.policy).load(tmp_path / "policy.pt")
    assert th.equal(parameters(model), parameters(loaded))
    for cell in range(6):
        obs = goal_obs(world, cell, 5 - cell)
        actions = [one.predict(obs, deterministic=True)[0] for one in (model, loaded, greedy)]
        assert len(set(map(int, actions))) == 1


@pytest.mark.parametrize("policy", ["MlpPolicy", "CnnPolicy"])
def test_a_loaded_model_learns_on_with_its_settings(tmp_path, policy):
    image = policy == "CnnPolicy"
    model = td_model(
        Corridor(image=image),
        policy,
        targets={"goal_sampling": "segments"},
        tau=0.5,
        target_update_interval=30,
        max_grad_norm=7.0,
        goal_wrapper_kwargs={"max_episode_steps": 6},
    ).learn(100)
    again = reloaded(model, tmp_path, Corridor(image=image), ("world",))
    assert tracker_of(again).max_episode_steps == 6
    assert again.target_class is TDTargets
    assert again.target_kwargs == {"goal_sampling": "segments"}
    assert again.targets.goal_sampling == "segments"
    assert again.targets.context.tau == 0.5
    assert again.targets.context.target_update_interval == 30
    assert again.max_grad_norm == 7.0
    assert again.num_timesteps == 100
    check_same_world(again, model)
    assert tracker_of(again).goal_buffer is again.goal_buffer
    state = model.policy.optimizer.state_dict()
    th.testing.assert_close(state["state"], again.policy.optimizer.state_dict()["state"])
    again.learn(60, reset_num_timesteps=False)
    assert again.num_timesteps == 160
    assert not th.equal(parameters(model), parameters(again))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({"train_freq": 3, "gradient_steps": 2}, (3, 2)), ({"updates_per_step": 0.5}, (2, 1))],
)
def test_a_rhythm_saved_by_an_earlier_version_is_kept(tmp_path, settings, expected):
    model = make_model(target_class=TDTargets, **settings)
    # Earlier versions had no such attribute.
    del model._rhythm_is_given
    again = reloaded(model, tmp_path, Corridor())
    assert (again.train_freq.frequency, again.gradient_steps) == expected


def test_loaded_with_an_interval_the_target_network_is_copied(tmp_path):
    model = make_model(target_class=TDTargets).learn(60)
    again = reloaded(model, tmp_path, Corridor(), target_update_interval=20)
    assert (again.tau, again.target_update_interval) == (1.0, 20)
    again = reloaded(model, tmp_path, Corridor(), target_update_interval=20, tau=0.5)
    assert (again.tau, again.target_update_interval) == (0.5, 20)
    again = reloaded(model, tmp_path, Corridor())
    assert (again.tau, again.target_update_interval) == (0.05, None)


def test_an_environment_with_a_goal_wrapper_is_taken_as_it_is(tmp_path):
    model = make_model(goal_wrapper_kwargs={"max_episode_steps": 6}).learn(40)
    wrapped = GoalBufferWrapper(Corridor(), max_episode_steps=3)
    assert tracker_of(reloaded(model, tmp_path, wrapped)).max_episode_steps == 3


def test_the_world_is_known_again_whatever_was_known_before(tmp_path):
    model = make_model(Paid({3: 1.0}, (0, 8))).learn(60)
    model.save_world(tmp_path / "world")
    other = make_model(Paid({3: 1.0}, (0, 8), start=7), updates_per_step=1.0).learn(30)
    other.load_world(tmp_path / "world")
    check_same_world(other, model)
    assert other.world.n_counted == 60
    assert other.world.identity is other.goal_buffer.states
    other.learn(30, reset_num_timesteps=False)
    assert other.world.n_counted == 90


def test_the_replay_buffer_round_trips_with_the_right_ids(tmp_path):
    model = make_model(updates_per_step=1.0).learn(50)
    model.save_replay_buffer(tmp_path / "replay")
    model.save_world(tmp_path / "world")

    def check(other):
        memory = other.replay_buffer
        assert memory.size() == 50
        observations, next_observations = kept(memory)
        np.testing.assert_array_equal(observations, kept(model.replay_buffer)[0])
        np.testing.assert_array_equal(next_observations, kept(model.replay_buffer)[1])
        found = other.goal_buffer[memory.next_goal_ids[:50]]
        np.testing.assert_array_equal(found, next_observations)

    # It does not matter what the other model has met before, and which file comes first.
    other = make_model(Corridor(start=5)).learn(5)
    other.load_replay_buffer(tmp_path / "replay")
    check(other)
    other.load_world(tmp_path / "world")
    check(other)
    ids = [one.replay_buffer.next_goal_ids for one in (other, model)]
    np.testing.assert_array_equal(*ids)


def test_a_new_environment_goes_on_with_the_goals_known():
    model = make_model(Corridor(start=0)).learn(40)
    known = model.goal_buffer.observations.copy()
    for env in (Corridor(start=5), GoalBufferWrapper(Corridor(), model.goal_buffer)):
        model.set_env(env)
        assert tracker_of(model).goal_buffer is model.goal_buffer
        model.learn(40, reset_num_timesteps=False)
    np.testing.assert_array_equal(model.goal_buffer.observations[: len(known)], known)
    assert model.world.n_counted == 120


def holding_out():
    """Return a trained model that holds a goal out, with a goal buffer of small capacity."""
    held_out = Corridor().observation_of(2)[None]
    buffer = GoalBuffer(Corridor().observation_space, capacity=50, held_out=held_out)
    return make_model(goal_wrapper_kwargs={"goal_buffer": buffer}).learn(40)


@pytest.mark.parametrize("how", ["loaded with env", "env set later", "env with a goal wrapper"])
def test_held_out_goals_stay_held_out_in_a_loaded_model(tmp_path, how):
    env = GoalBufferWrapper(Corridor()) if how == "env with a goal wrapper" else Corridor()
    if how == "env set later":
        loaded = reloaded(holding_out(), tmp_path)
        loaded.set_env(env)
    else:
        loaded = reloaded(holding_out(), tmp_path, env)
    loaded.learn(200)
    # The larger capacity is taken.
    assert loaded.goal_buffer.capacity == (100_000 if how == "env with a goal wrapper" else 50)
    assert len(loaded.goal_buffer) == 5
    assert loaded.goal_buffer.ids(Corridor().observation_of(2)[None]) == UNKNOWN


def test_an_environment_whose_goals_hold_nothing_out_is_refused(tmp_path):
    wrapped = GoalBufferWrapper(Corridor())
    # Now it knows a goal, so its goal buffer cannot be replaced.
    wrapped.reset()
    message = "1 of 1 observations that the model held out are not held out in env's goal buffer"
    with pytest.raises(ValueError, match=message):
        reloaded(holding_out(), tmp_path, wrapped)


def test_rewards_of_goals_stay_those_that_were_learned(tmp_path):
    model = make_model(GoalBufferWrapper(Corridor(), goal_reward=1.0, step_reward=0.0)).learn(40)
    other = GoalBufferWrapper(Corridor(), model.goal_buffer)
    message = r"the model's goal_reward and step_reward, \(1.0, 0.0\)"
    with pytest.raises(ValueError, match=message):
        reloaded(model, tmp_path, other)
    with pytest.raises(ValueError, match=message):
        model.set_env(other)
    model.set_env(Corridor())
    for one in (model, reloaded(model, tmp_path, Corridor())):
        assert tracker_of(one).goal_reward == 1.0
        assert tracker_of(one).step_reward == 0.0
        assert one.goal_reward == 1.0


@pytest.mark.parametrize("part", ["world", "replay_buffer"])
def test_a_plan_that_begins_with_what_was_loaded_knows_all_ways_in_it(tmp_path, part, monkeypatch):
    # With so few sweeps, a plan without an earlier one must converge.
    monkeypatch.setattr(planning, "_MOST_SWEEPS", 2)
    env = Corridor(length=12)
    settings = {"target_class": PlannedTargets, "learning_starts": 400}
    if part == "replay_buffer":
        # Only targets that may be bootstrapped let a model store transitions.
        settings = {"learning_starts": 400}
    model = make_model(env, **settings).learn(420)
    assert (model.targets.plan.best >= 0).mean() > 0.9
    loaded = reloaded(model, tmp_path, Corridor(length=12), (part,), target_class=PlannedTargets)
    loaded.learn(40, reset_num_timesteps=False)
    assert (loaded.targets.plan.best >= 0).mean() > 0.9


def test_a_replay_memory_of_other_observations_is_refused_and_changes_nothing(tmp_path):
    make_model(Corridor(length=5)).learn(25).save_replay_buffer(tmp_path / "replay")
    model = make_model().learn(25)
    memory = model.replay_buffer
    n_goals = len(model.goal_buffer)
    message = r"saved by a model with .*\(5,\).*, this one has .*\(6,\)"
    with pytest.raises(ValueError, match=message):
        model.load_replay_buffer(tmp_path / "replay")
    assert model.replay_buffer is memory
    assert len(model.goal_buffer) == n_goals


def test_a_world_of_other_observations_or_actions_is_refused_and_changes_nothing(tmp_path):
    make_model(Corridor(length=5)).learn(25).save_world(tmp_path / "smaller")
    four = gym.wrappers.TransformAction(Corridor(), lambda a: a % 3, gym.spaces.Discrete(4))
    make_model(four).learn(25).save_world(tmp_path / "four")
    model = make_model().learn(25)
    before = model.world.get_checkpoint_state()
    with pytest.raises(ValueError, match=r"the states of the file must be uint8 of shape \(n, 6\)"):
        model.load_world(tmp_path / "smaller")
    with pytest.raises(ValueError, match="is of a model with 4 actions, this one has 3"):
        model.load_world(tmp_path / "four")
    np.testing.assert_equal(model.world.get_checkpoint_state(), before)


def test_settings_changed_at_loading_are_changed(tmp_path):
    model = make_model(make_vec_env(Corridor, 2), goal_wrapper_kwargs={"reset_worlds": True})
    loaded = reloaded(model, tmp_path, Corridor(), goal_wrapper_kwargs={"max_episode_steps": 3})
    assert tracker_of(loaded).max_episode_steps == 3
    numbers = {"buffer_size": 1e3, "learning_starts": 1e2, "stats_window_size": 7}
    nothing = {"replay_buffer_class": None, "replay_buffer_kwargs": None}
    loaded = reloaded(make_model().learn(30), tmp_path, Corridor(), **numbers, **nothing)
    assert loaded.replay_buffer.buffer_size == 1_000
    loaded.learn(101, reset_num_timesteps=False)
    assert loaded.ep_info_buffer.maxlen == loaded._episode_outcomes.maxlen == 7


def test_what_no_constructor_takes_is_warned_of(tmp_path):
    with pytest.warns(UserWarning, match="load was given learnig_rate, which ManyGoalsDQN does"):
        reloaded(make_model(), tmp_path, learnig_rate=1e-4)
    assert reloaded(make_model(), tmp_path, num_timesteps=5, verbose=0).num_timesteps == 5


def test_goal_wrapper_kwargs_that_would_not_be_used_are_refused(tmp_path):
    model = make_model().learn(30)
    given = {"goal_wrapper_kwargs": {"max_episode_steps": 9}}
    with pytest.raises(ValueError, match="given, but env pursues goals already"):
        reloaded(model, tmp_path, GoalBufferWrapper(Corridor()), **given)
    given = {"goal_wrapper_kwargs": {"step_reward": -1.0}}
    with pytest.raises(ValueError, match=r"must have step_reward=-0.1, .*, got -1.0"):
        reloaded(model, tmp_path, Corridor(), **given)
    # Nothing was learned with the old one.
    assert reloaded(make_model(), tmp_path, Corridor(), **given).step_reward == -1.0


@pytest.mark.parametrize("name", ["buffer_size", "replay_buffer_class", "replay_buffer_kwargs"])
def test_arguments_of_the_replay_memory_that_would_not_be_used_are_refused(tmp_path, name):
    make_model().learn(30).save_all(tmp_path)
    with pytest.raises(ValueError, match=f"{name} must be left out, because load_all goes on"):
        ManyGoalsDQN.load_all(tmp_path, Corridor(), **{name: 7})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_steps": 3}, "n_steps must be 1"),
        ({"buffer_size": 0}, "buffer_size must be a whole number, at least 1, got 0"),
        ({"learning_rate": -1e-3}, "learning_rate must be a number"),
        ({"stats_window_size": 0}, "stats_window_size must be a whole number, at least 1, got 0"),
        ({"stats_window_size": None}, "stats_window_size must be a whole number, at least 1, got"),
        ({"policy": "CnnPolicy"}, "policy must be left out, got 'CnnPolicy'"),
        ({"gradient_steps": -5}, "gradient_steps must be a whole number, at least -1, got -5"),
        ({"train_freq": 0}, "train_freq must be a whole number"),
        ({"train_freq": 5, "updates_per_step": 0.3}, "updates_per_step takes the place of"),
        ({"goal_wrapper_kwargs": {"goal": len}}, "goal_wrapper_kwargs must leave out goal: "),
        ({"gamma": 1.0}, r"gamma must be a number in \[0, 1\), got 1.0"),
        ({"tau": 2.0}, r"tau must be a number in \[0, 1\], got 2.0"),
        ({"exploration_final_eps": -1}, r"exploration_final_eps must be a number in \[0, 1\], got"),
        ({"max_grad_norm": 0}, r"max_grad_norm must be a number in \(0, inf\), got 0"),
        ({"target_update_interval": 0}, "target_update_interval must be a whole number, at least"),
    ],
)
def test_settings_changed_at_loading_are_checked(tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        reloaded(make_model(), tmp_path, **settings)


def test_what_was_derived_from_a_setting_goes_with_it(tmp_path):
    model = td_model(target_update_interval=50, updates_per_step=0.3)
    assert (model.tau, model.gradient_steps) == (1.0, 3)
    assert reloaded(model, tmp_path, target_update_interval=None).tau == 0.05
    assert reloaded(model, tmp_path, target_update_interval=None, tau=0.5).tau == 0.5
    for given, expected in (
        ({"train_freq": 5}, (5, 1)),
        ({"gradient_steps": 2}, (4, 2)),
        ({"train_freq": 5, "gradient_steps": 2}, (5, 2)),
    ):
        loaded = reloaded(model, tmp_path, **given)
        assert (loaded.train_freq.frequency, loaded.gradient_steps) == expected
    # These are the user's, and not derived.
    model = td_model(tau=1.0, train_freq=6, gradient_steps=7)
    loaded = reloaded(model, tmp_path, train_freq=5, target_update_interval=None)
    assert (loaded.tau, loaded.train_freq.frequency, loaded.gradient_steps) == (1.0, 5, 7)
    assert reloaded(loaded, tmp_path, target_update_interval=50).tau == 1.0
    model = td_model(tau=0.2)
    assert reloaded(model, tmp_path, target_update_interval=50).tau == 0.2
    # None is the default, as in the constructor.
    assert reloaded(model, tmp_path, tau=None).tau == 0.05
    assert reloaded(model, tmp_path, tau=None, target_update_interval=50).tau == 1.0


def test_a_rhythm_of_updates_goes_with_its_argument(tmp_path):
    def rhythm_of(model):
        return model.updates_per_step, model.train_freq.frequency, model.gradient_steps

    model = td_model(train_freq=6, gradient_steps=7)
    loaded = reloaded(model, tmp_path, updates_per_step=0.5)
    assert rhythm_of(loaded) == (0.5, 2, 1)
    # The rhythm of the loaded model was derived.
    assert rhythm_of(reloaded(loaded, tmp_path, train_freq=5)) == (None, 5, 1)
    assert rhythm_of(reloaded(model, tmp_path, train_freq=None)) == (None, 4, 7)
    assert rhythm_of(reloaded(loaded, tmp_path, gradient_steps=None)) == (0.5, 2, 1)
    assert rhythm_of(reloaded(model, tmp_path, updates_per_step=None)) == (None, 6, 7)
    # Neither is given: the default of the targets, 0.3 updates for each step.
    nothing = {"train_freq": None, "gradient_steps": None}
    assert rhythm_of(reloaded(model, tmp_path, **nothing)) == rhythm_of(
        td_model(updates_per_step=None)
    )


def test_targets_without_a_target_network_refuse_its_arguments_at_loading_too(tmp_path):
    model = make_model(target_class=PlannedTargets)
    with pytest.raises(ValueError, match="target_update_interval given, but PlannedTargets uses"):
        reloaded(model, tmp_path, target_update_interval=50)


@pytest.mark.parametrize("comes_later", [False, True])
def test_a_class_of_states_given_at_loading_is_used_and_checked(tmp_path, comes_later):
    def loaded(model, **kwargs):
        found = reloaded(model, tmp_path, None if comes_later else Corridor(), **kwargs)
        if comes_later:
            found.set_env(Corridor())
        assert found.world.identity is found.goal_buffer.states
        return found.goal_buffer.states

    exact = make_model().learn(30)
    assert isinstance(loaded(exact, state_class=LearnedStates), LearnedStates)
    learned = make_model(
        target_class=PlannedTargets, state_class=LearnedStates, state_kwargs={"n_updates": 200}
    )
    assert loaded(learned).n_updates == 200
    assert loaded(learned, state_kwargs={"n_updates": 50}).n_updates == 50
    kind = type("OwnStates", (LearnedStates,), {})
    assert isinstance(loaded(learned, state_class=kind), kind)
    assert type(loaded(learned, state_class=ExactStates, state_kwargs=None)) is ExactStates
    for given, error, message in (
        ({"state_class": int}, TypeError, "state_class must be"),
        ({"state_kwargs": {"nonsense": 1}}, TypeError, "state_kwargs: .*nonsense"),
        ({"state_class": ExactStates}, ValueError, "state_kwargs .* given, but states will not be"),
    ):
        with pytest.raises(error, match=message):
            reloaded(learned, tmp_path, **given)


def test_states_are_learned_with_goals_that_the_user_gives_at_loading_too(tmp_path):
    # As in the constructor.
    goals = goals_of(np.eye(6, dtype=np.uint8), Corridor().observation_space)
    env = GoalBufferWrapper(Corridor(), goals)
    with pytest.warns(UserWarning, match="the 6 goals in env's goal buffer are forgotten"):
        loaded = reloaded(make_model(state_class=LearnedStates), tmp_path, env)
    assert loaded.goal_buffer is goals
    assert len(goals) == 0
    assert isinstance(loaded.world.identity, LearnedStates)
    assert loaded.world.identity is goals.states


def test_saved_arguments_of_states_are_checked_with_targets_given_at_loading(tmp_path):
    model = make_model(state_kwargs={"n_updates": 50})
    with pytest.raises(ValueError, match=r"state_kwargs .* given, but states will not be learned"):
        reloaded(model, tmp_path, target_class=TDTargets)
    model = make_model(state_class=LearnedStates)
    with pytest.raises(ValueError, match="goals_in_replay: goals are forgotten, and so are states"):
        reloaded(model, tmp_path, target_class=TDTargets, goals_in_replay=True)


def test_states_of_a_given_goal_buffer_must_be_of_the_class_that_the_user_chose(tmp_path):
    own_class = type("OwnStates", (LearnedStates,), {})
    goals = GoalBuffer(Corridor().observation_space, state_class=LearnedStates)
    for kind in (ExactStates, own_class):
        message = f"has states of the class LearnedStates, but .* state_class={kind.__name__}"
        with pytest.raises(ValueError, match=message):
            make_model(GoalBufferWrapper(Corridor(), goals), state_class=kind)
    quick = {"state_class": LearnedStates, "state_kwargs": {"n_updates": 10}}
    known = make_model(**quick).learn(30).goal_buffer
    assert len(known) > 0
    with pytest.raises(ValueError, match="but the model has state_class=ExactStates"):
        reloaded(
            make_model(), tmp_path, GoalBufferWrapper(Corridor(), known), state_class=ExactStates
        )


def test_targets_stay_if_loading_is_given_the_states_that_there_are(tmp_path):
    model = make_model(state_class=ExactStates).learn(30)
    model._go_over_to(TDTargets)
    model.save_all(tmp_path)
    for given in (ExactStates, None):
        loaded = ManyGoalsDQN.load_all(tmp_path, Corridor(), state_class=given)
        assert isinstance(loaded.targets, TDTargets)
        assert th.equal(parameters(loaded), parameters(model))


def test_a_loaded_world_learns_states_with_the_seed_of_the_model(tmp_path):
    model = make_model(state_class=LearnedStates, state_kwargs={"n_updates": 10}).learn(30)
    model.save_world(tmp_path / "world")
    other = make_model(seed=5, state_kwargs={"n_updates": 20})
    other.load_world(tmp_path / "world")
    assert other.goal_buffer.config["state_kwargs"] == {"n_updates": 20, "seed": 5}


def test_arguments_of_a_selector_may_be_changed_for_another_model(tmp_path):
    settings = {"selector_class": LearningProgressSelector, "selector_kwargs": {"m": 5}}
    model = make_model(goal_wrapper_kwargs=settings)
    settings["selector_kwargs"]["m"] = 2
    selector = model.selector
    model.set_env(Corridor())
    assert model.selector is selector
    loaded = reloaded(model, tmp_path, goal_wrapper_kwargs=settings)
    settings["selector_kwargs"]["m"] = 3
    loaded.set_env(Corridor())
    assert tracker_of(loaded).selector_kwargs == {"m": 2}


class WeightedSelector(UniformSelector):
    """A selector with an argument that is a list."""

    def __init__(self, weights):
        super().__init__()
        self.weights = weights


@pytest.mark.parametrize("wrapper", [GoalBufferWrapper, VecGoalBufferWrapper])
def test_arguments_of_a_wrappers_selector_may_be_changed_for_another_wrapper(wrapper, tmp_path):
    settings = {"weights": [1, 2]}
    env = Corridor() if wrapper is GoalBufferWrapper else DummyVecEnv([Corridor])
    env = wrapper(env, selector_class=WeightedSelector, selector_kwargs=MappingProxyType(settings))
    model = make_model(env)
    settings["weights"][0] = 99
    settings["weights"] = [3]
    model.set_env(model.get_env())
    for one in (model, reloaded(model, tmp_path)):
        one.set_env(Corridor())
        assert tracker_of(one).selector.weights == [1, 2]


def test_arguments_of_targets_may_be_changed_for_another_model(tmp_path):
    settings = {"goal_sampling": "uniform"}
    model = make_model(target_class=TDTargets, target_kwargs=settings)
    settings["goal_sampling"] = "segments"
    assert reloaded(model, tmp_path, Corridor()).targets.goal_sampling == "uniform"
    settings["goal_sampling"] = "behavior"
    loaded = reloaded(model, tmp_path, Corridor(), target_kwargs=settings)
    settings["goal_sampling"] = "segments"
    assert reloaded(loaded, tmp_path, Corridor()).targets.goal_sampling == "behavior"


def test_a_trained_model_keeps_its_rewards_without_an_environment_too(tmp_path):
    others = {"goal_wrapper_kwargs": {"step_reward": -0.5}}
    with pytest.raises(ValueError, match=r"goal_wrapper_kwargs must have step_reward=-0\.1"):
        reloaded(make_model().learn(30), tmp_path, **others)
    loaded = reloaded(make_model(), tmp_path, **others)
    loaded.set_env(Corridor())
    assert tracker_of(loaded).step_reward == -0.5


def test_files_in_which_the_goal_wrapper_says_nothing_keep_its_arguments(tmp_path):
    model = make_model(goal_wrapper_kwargs={"max_episode_steps": 7})
    earlier = {"_asked_of_wrapper": {}, "goal_wrapper_kwargs": {"max_episode_steps": 7}}
    loaded = reloaded(model, tmp_path, Corridor(), custom_objects=earlier)
    assert tracker_of(loaded).max_episode_steps == 7


def test_a_window_of_statistics_may_be_a_number_of_numpy(tmp_path):
    model = make_model().learn(30)
    assert reloaded(model, tmp_path, stats_window_size=np.int64(7)).ep_info_buffer.maxlen == 7


def test_arguments_that_only_other_learners_take_are_warned_of_at_loading(tmp_path):
    with pytest.warns(UserWarning, match="load was given action_noise, which ManyGoalsDQN does"):
        reloaded(make_model(), tmp_path, action_noise=None)


class ShortDQN(ManyGoalsDQN):
    """A learner that takes fewer arguments than its class above."""

    def __init__(self, policy, env, device="auto", _init_setup_model=True):
        super().__init__(policy, env, device=device, _init_setup_model=_init_setup_model)


def test_a_subclass_with_fewer_arguments_is_loaded_with_others_without_a_warning(tmp_path):
    ShortDQN("MlpPolicy", Corridor()).save(tmp_path / "model")
    loaded = ShortDQN.load(tmp_path / "model", learning_rate=5e-4)
    assert loaded.lr_schedule(1.0) == 5e-4
    with pytest.warns(UserWarning, match="load was given action_noise, which ShortDQN does not"):
        ShortDQN.load(tmp_path / "model", action_noise=None)


@pytest.mark.parametrize("is_given_up", [False, True])
def test_a_model_that_bootstraps_plans_again_with_states_given_at_loading(tmp_path, is_given_up):
    model = make_model().learn(30)
    model._go_over_to(TDTargets)
    assert isinstance(reloaded(model, tmp_path, Corridor()).targets, TDTargets)
    model._gave_up_states = is_given_up
    given = {"state_kwargs": {"n_updates": 10}}
    if not is_given_up:
        given["state_class"] = LearnedStates
    loaded = reloaded(model, tmp_path, Corridor(), **given)
    assert isinstance(loaded.targets, PlannedTargets)
    assert loaded.policy.q_net_target is None
    assert loaded.learn(30)._n_updates > 0


def test_states_of_a_file_that_the_user_does_not_want_are_refused(tmp_path):
    make_model().learn(30).save_all(tmp_path)
    with pytest.raises(ValueError, match=r"were not learned, but .* state_class=LearnedStates"):
        ManyGoalsDQN.load_all(tmp_path, Corridor(), state_class=LearnedStates)
    # As the error says.
    model = ManyGoalsDQN.load(tmp_path / "model.zip", Corridor(), state_class=LearnedStates)
    model.load_replay_buffer(tmp_path / "replay_buffer.pkl")
    assert model.replay_buffer.size() == 30
    quick = {"state_class": LearnedStates, "state_kwargs": {"n_updates": 10}}
    make_model(**quick).learn(30).save_all(tmp_path)
    with pytest.raises(ValueError, match=r"were learned, but .* state_class=ExactStates"):
        ManyGoalsDQN.load_all(tmp_path, state_class=ExactStates, state_kwargs=None)


def test_planned_targets_store_what_states_of_a_given_goal_buffer_are_learned_from():
    quick = {"state_class": LearnedStates, "state_kwargs": {"n_updates": 10}}
    goals = GoalBuffer(Corridor().observation_space, **quick)
    model = make_model(
        goal_wrapper_kwargs={"goal_buffer": goals},
        target_class=PlannedTargets,
    ).learn(30)
    assert model.replay_buffer.size() == 30


def test_given_weights_keep_the_standardization_that_they_expect():
    source = make_model(target_class=TDTargets).learn(200)
    model = make_model(Corridor(start=0), target_class=TDTargets, seed=1)
    model.set_parameters(source.get_parameters())
    model.learn(40)
    assert model._n_updates > 0
    for name, value in source.policy.state_dict().items():
        if name.endswith((".mean", ".scale")):
            assert th.equal(model.policy.state_dict()[name], value)
    # Later, inputs are standardized anew, as in a model that was loaded.
    assert model._n_standardized_by > 0


def test_weights_that_another_model_has_trained_are_not_shifted():
    plain = {**SMALL, "standardize": False, "head": "bilinear"}
    source = make_model(policy_kwargs=plain).learn(100)
    model = make_model(policy_kwargs=plain, seed=1)
    fresh = make_model(policy_kwargs=plain, seed=1)
    model.set_parameters(source.get_parameters())
    before = [parameters(one.q_net) for one in (model, fresh)]
    for one in (model, fresh):
        one._go_over_to(TDTargets)
        assert one.targets.initial_value != 0.0
    after = [parameters(one.q_net) for one in (model, fresh)]
    assert th.equal(after[0], before[0])
    assert not th.equal(after[1], before[1])


def test_the_settings_of_a_goal_wrapper_of_the_users_are_kept(tmp_path):
    settings = {"max_episode_steps": 7, "reset_worlds": True, "goal_reward": 2.0}
    selector = {"selector_class": LearningProgressSelector, "selector_kwargs": {"m": 3}}
    model = make_model(GoalBufferWrapper(Corridor(), **settings, **selector)).learn(30)
    loaded = reloaded(model, tmp_path, Corridor())
    model.set_env(Corridor())
    for one in (model, loaded, reloaded(loaded, tmp_path, make_vec_env(Corridor, 1))):
        tracker = goal_trackers(one.env)[0]
        for name, value in {**settings, **selector}.items():
            assert getattr(tracker, name) == value
    # Arguments that are given replace all of them.
    for given, steps in (({"max_episode_steps": 9}, 9), ({}, 50), (None, 50)):
        tracker = tracker_of(reloaded(model, tmp_path, Corridor(), goal_wrapper_kwargs=given))
        assert (tracker.max_episode_steps, tracker.reset_worlds) == (steps, "auto")


def test_the_last_goal_wrapper_says_how_episodes_are(tmp_path):
    model = make_model(goal_wrapper_kwargs={"max_episode_steps": 6, "state_key": bytes})
    key = model.goal_buffer.state_key
    theirs = GoalBufferWrapper(Corridor(), max_episode_steps=3, reset_worlds=True, state_key=key)
    model.set_env(theirs)
    loaded = reloaded(model, tmp_path, Corridor())
    model.set_env(Corridor())
    for one in (model, loaded):
        tracker = goal_trackers(one.env)[0]
        assert (tracker.max_episode_steps, tracker.reset_worlds) == (3, True)
        assert one.goal_buffer.state_key is not None


def model_with_selector(is_users, **settings):
    """Return a model with these arguments of a goal wrapper, put around by the user or not."""
    if is_users:
        return make_model(GoalBufferWrapper(Corridor(), **settings))
    return make_model(goal_wrapper_kwargs=settings)


@pytest.mark.parametrize("is_users", [False, True])
def test_to_predict_only_a_model_does_without_the_class_of_its_selector(
    tmp_path, monkeypatch, is_users
):
    (tmp_path / "absent_package.py").write_text(
        "from sb3_manygoals.goals import UniformSelector\n"
        "class OwnSelector(UniformSelector):\n"
        "    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    selector_class = importlib.import_module("absent_package").OwnSelector
    model = model_with_selector(is_users, selector_class=selector_class)
    settings = dict(model.goal_wrapper_kwargs)
    model.save(tmp_path / "model")
    assert model.goal_wrapper_kwargs == settings
    assert isinstance(reloaded(model, tmp_path, Corridor()).selector, selector_class)
    # The package is not installed elsewhere.
    (tmp_path / "absent_package.py").unlink()
    monkeypatch.delitem(sys.modules, "absent_package")
    importlib.invalidate_caches()
    loaded = ManyGoalsDQN.load(tmp_path / "model")
    assert loaded.predict(goal_obs(Corridor(), 0, 5))[0] in range(3)
    loaded.save(tmp_path / "again")
    with pytest.raises(ModuleNotFoundError, match="absent_package"):
        ManyGoalsDQN.load(tmp_path / "again", Corridor())


@pytest.mark.parametrize("is_users", [False, True])
def test_arguments_of_a_goal_wrapper_that_cannot_be_pickled_are_named(tmp_path, is_users):
    class Ruled(UniformSelector):
        def __init__(self, rule):
            self.rule = rule

    lock = threading.Lock()
    settings = {"selector_class": Ruled, "selector_kwargs": {"rule": lambda: lock}}
    model = model_with_selector(is_users, **settings)
    with pytest.warns(UserWarning, match="selector_kwargs of the goal wrapper cannot be pickled"):
        model.save(tmp_path / "model")
    assert ManyGoalsDQN.load(tmp_path / "model").num_timesteps == 0


def test_environments_are_seeded_as_that_of_the_saved_model(tmp_path):
    make_model(make_vec_env(Corridor, 2)).save(tmp_path / "model")
    memories = [
        kept(ManyGoalsDQN.load(tmp_path / "model", env=Corridor()).learn(60).replay_buffer)
        for _ in range(2)
    ]
    np.testing.assert_array_equal(*memories)


def test_ids_of_goals_in_pursuit_follow_a_loaded_world(tmp_path):
    model = make_model().learn(60)
    others = goals_of(model.goal_buffer.observations[::-1], Corridor().observation_space)
    other = make_model(goal_wrapper_kwargs={"goal_buffer": others})
    other.save_world(tmp_path / "world")
    model.load_world(tmp_path / "world")
    tracker = tracker_of(model)
    np.testing.assert_array_equal(tracker.desired_ids, others.ids(tracker.desired_goals))
    # Starts were counted by ids that have another meaning now.
    assert tracker.starts.n_starts == 0


NO_ENVIRONMENT = re.escape("has no environment: give it one, load(path, env) or set_env(env)")


@pytest.mark.parametrize(
    "ask",
    [
        lambda model, path: model.learn(1_000),
        lambda model, path: model.train(1),
        lambda model, path: model.dump_logs(),
        lambda model, path: model.save_world(path),
        lambda model, path: model.save_all(path),
        lambda model, path: model.get_checkpoint_state(),
        lambda model, path: model.set_checkpoint_state({}),
    ],
    ids=["learn", "train", "log", "save world", "save all", "get state", "set state"],
)
def test_a_model_without_an_environment_says_what_it_needs_one_for(tmp_path, ask):
    model = reloaded(make_model().learn(40), tmp_path)
    with pytest.raises(ValueError, match=NO_ENVIRONMENT):
        ask(model, tmp_path / "file")


def test_a_model_without_an_environment_acts_and_is_measured(tmp_path):
    model = make_model(Corridor(9)).learn(40)
    alone = reloaded(model, tmp_path)
    obs = goal_obs(Corridor(9), 1, 4)
    for deterministic in (False, True):
        assert alone.predict(obs, deterministic=deterministic)[0] in (0, 1, 2)
    worlds = gym.vector.SyncVectorEnv([lambda: Corridor(9)] * 2)
    goals = model.goal_buffer.observations[:2]
    assert evaluate_mastery(alone, worlds, goals, max_steps=10).steps.shape == (2, 1)


def test_a_model_without_an_environment_reads_what_was_saved_and_plans(tmp_path):
    model = make_model(Paid({8: 1.0}, (0, 8))).learn(400)
    model.save_all(tmp_path)
    alone = ManyGoalsDQN.load(tmp_path / "model")
    # It reads a replay memory before it knows goals.
    alone.load_replay_buffer(tmp_path / "replay_buffer")
    assert len(alone.goal_buffer) == len(model.goal_buffer)
    alone.load_world(tmp_path / "world")
    check_same_world(alone, model)
    policy = alone.task_policy(planned=True)
    world = Paid({8: 1.0}, (0, 8))
    observation, _ = world.reset()
    for _ in range(4):
        observation, *_ = world.step(policy.predict(observation, deterministic=True)[0])
    assert world.cell == 8
    alone.set_env(Paid({8: 1.0}, (0, 8)))
    alone.learn(40, reset_num_timesteps=False)
    assert alone.replay_buffer.size() == 440
    assert alone.world.n_counted == 440


@pytest.mark.parametrize("settings", [{}, {"goals_in_replay": True}, {"target_class": TDTargets}])
def test_a_replay_memory_is_read_before_an_environment_is_given(tmp_path, settings):
    model = make_model(**settings).learn(60)
    alone = reloaded(model, tmp_path, also=("replay_buffer",))
    np.testing.assert_array_equal(kept(alone.replay_buffer), kept(model.replay_buffer))
    alone.set_env(Corridor())
    alone.learn(60, reset_num_timesteps=False)
    assert alone.replay_buffer.size() == 120
    assert len(np.unique(alone.goal_buffer.observations, axis=0)) == 6


def replay_memory_of_sb3(folder, kind):
    """Write a replay memory of SB3's DQN."""
    goals = GoalBufferWrapper(Corridor())
    if kind == "ReplayBuffer":
        model = DQN("MlpPolicy", Corridor(), buffer_size=100)
    elif kind == "DictReplayBuffer":
        model = DQN("MultiInputPolicy", goals, buffer_size=100)
    else:
        model = DQN("MultiInputPolicy", goals, replay_buffer_class=HerReplayBuffer, buffer_size=100)
    model.learn(60).save_replay_buffer(folder / "foreign")
    return rf"must have a ManyGoalsReplayBuffer, got stable_baselines3\..*{kind}: give one that"


def bytes_that_are_no_pickle(folder, kind):
    (folder / "foreign").write_bytes(b"" if kind == "nothing" else b"not a pickle")
    return "is no file of a replay memory"


def pickled_list(folder, kind):
    (folder / "foreign").write_bytes(pickle.dumps([1, 2]))
    return "must have a ManyGoalsReplayBuffer, got builtins.list"


def saved_model(folder, kind):
    make_model().save(folder / "foreign.zip")
    (folder / "foreign.zip").rename(folder / "foreign")
    return "is no file of a replay memory"


def saved_world(folder, kind):
    make_model().learn(30).save_world(folder / "foreign.npz")
    (folder / "foreign.npz").rename(folder / "foreign")
    return "is no file of a replay memory"


def memory_of_other_actions(folder, kind):
    world = gym.wrappers.TransformAction(Corridor(), lambda a: a % 3, gym.spaces.Discrete(4))
    make_model(world).learn(30).save_replay_buffer(folder / "foreign")
    return r"the replay memory was saved by a model with .*Discrete\(4\).* this one has .*Discrete"


class EarlierMemory:
    """Pickled, it is a replay memory as an earlier version wrote it."""

    def __reduce__(self):
        attributes = dict(vars(make_model().learn(30).replay_buffer))
        # Earlier versions had other names, and pickled their attributes as they were.
        attributes["next_ids"] = attributes.pop("next_goal_ids")
        return object.__new__, (ManyGoalsReplayBuffer,), attributes


def memory_of_an_earlier_version(folder, kind):
    (folder / "foreign").write_bytes(pickle.dumps(EarlierMemory()))
    return (
        "is a replay memory that an earlier version wrote, which this version cannot read: train "
        "anew, or load it with the version that wrote it"
    )


@pytest.mark.parametrize(
    ("write", "kind"),
    [
        (replay_memory_of_sb3, "ReplayBuffer"),
        (replay_memory_of_sb3, "DictReplayBuffer"),
        (replay_memory_of_sb3, "HerReplayBuffer"),
        (bytes_that_are_no_pickle, "nothing"),
        (bytes_that_are_no_pickle, "a text"),
        (pickled_list, "a list"),
        (saved_model, "a model"),
        (saved_world, "a world"),
        (memory_of_other_actions, "other actions"),
        (memory_of_an_earlier_version, "an earlier version"),
    ],
)
@pytest.mark.parametrize("has_env", [True, False])
def test_a_file_that_is_no_replay_memory_of_ours_is_refused_and_changes_nothing(
    tmp_path, write, kind, has_env
):
    message = write(tmp_path, kind)
    model = make_model().learn(30)
    if not has_env:
        model = reloaded(model, tmp_path)
    memory = model.replay_buffer
    goals = model.goal_buffer
    n_goals = None if goals is None else len(goals)
    with pytest.raises(ValueError, match=message):
        model.load_replay_buffer(tmp_path / "foreign")
    assert model.replay_buffer is memory
    assert model.goal_buffer is goals
    assert n_goals == (None if goals is None else len(goals))
    if has_env:
        model.learn(30, reset_num_timesteps=False)


@pytest.mark.parametrize("ending", ["", ".npz", ".pkl", ".zip"])
@pytest.mark.parametrize("kind", ["a memory", "a model", "a list", "an array", "nothing"])
def test_a_file_that_is_no_world_is_refused_and_changes_nothing(tmp_path, kind, ending):
    model = make_model().learn(30)
    path = tmp_path / f"foreign{ending}"
    with path.open("wb") as file:
        if kind == "a memory":
            model.save_replay_buffer(file)
        elif kind == "a model":
            model.save(file)
        elif kind == "a list":
            pickle.dump([1], file)
        elif kind == "an array":
            np.save(file, np.eye(6))
    known = model.goal_buffer
    before = model.world.get_checkpoint_state()
    message = r"foreign.* is no whole file of what a model knows of its world"
    with pytest.raises(ValueError, match=message):
        model.load_world(path)
    assert model.goal_buffer is known
    np.testing.assert_equal(model.world.get_checkpoint_state(), before)
    model.learn(30, reset_num_timesteps=False)


def test_a_goal_buffer_without_a_world_is_no_world(tmp_path):
    model = make_model().learn(30)
    model.goal_buffer.save(tmp_path / "goals")
    message = "goals.* is no whole file of what a model knows of its world: .*visit_counts"
    with pytest.raises(ValueError, match=message):
        model.load_world(tmp_path / "goals")


def test_a_goal_buffer_of_an_earlier_version_is_refused_by_name(tmp_path):
    arrays = {"observations": np.eye(6, dtype=np.uint8), "labels": np.zeros((7, 3))}
    np.savez_compressed(tmp_path / "goals.npz", capacity=100, **arrays)
    model = make_model().learn(30)
    message = "goals.* is a goal buffer that an earlier version wrote, .* train anew, or load it"
    with pytest.raises(ValueError, match=message):
        model.load_world(tmp_path / "goals")
    with pytest.raises(ValueError, match=message):
        GoalBuffer.load(tmp_path / "goals", Corridor().observation_space)


@pytest.mark.parametrize("make_env", [Corridor, lambda: None])
def test_a_model_of_an_earlier_version_is_refused_by_name(tmp_path, make_env):
    model = make_model().learn(30)
    # Earlier versions had another name.
    model.goal_rules = model.goal_config
    model.save(tmp_path / "model")
    message = "this is a model that an earlier version wrote, .* train anew, or load it with"
    with pytest.raises(ValueError, match=message):
        ManyGoalsDQN.load(tmp_path / "model", make_env())


@pytest.mark.parametrize("settings", [{}, {"target_class": PlannedTargets}])
def test_a_planner_has_no_target_network(tmp_path, settings):
    def check(model):
        assert model.q_net_target is None
        assert model.policy.q_net_target is None
        dictionaries = [
            model.policy.state_dict(),
            model.get_parameters()["policy"],
            model.get_checkpoint_state()["algorithm"]["policy"],
        ]
        for weights in dictionaries:
            assert any(name.startswith("q_net.") for name in weights)
            assert not any("target" in name for name in weights)

    model = make_model(**settings)
    check(model)
    check(model.learn(60))
    loaded = reloaded(model, tmp_path, Corridor())
    check(loaded)
    loaded.set_parameters(model.get_parameters())
    check(loaded)
    check(loaded.learn(60))


def test_a_target_network_is_among_the_parameters_where_there_is_one(tmp_path):
    model = td_model(target_update_interval=1_000).learn(60)
    weights = model.get_parameters()["policy"]
    of_target = {name: weights[f"q_net_target.{name}"] for name in model.q_net_target.state_dict()}
    th.testing.assert_close(of_target, dict(model.q_net_target.state_dict()))
    assert not th.equal(parameters(model.q_net), parameters(model.q_net_target))
    loaded = reloaded(model, tmp_path, Corridor())
    assert th.equal(parameters(loaded.q_net_target), parameters(model.q_net_target))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"goals_in_replay": True},
        {"target_class": TDTargets},
        {"target_class": PlannedTargets},
    ],
)
def test_one_call_saves_and_one_loads_what_training_goes_on_from(tmp_path, settings):
    folder = tmp_path / "runs" / "one"
    model = make_model(make_vec_env(lambda: Paid({3: 1.0}, (0, 8)), 2), **settings).learn(60)
    model.save_all(str(folder))
    # It can be saved again, over the files.
    model.save_all(folder)
    has_world = "goals_in_replay" not in settings
    files = {"model.zip", "replay_buffer.pkl"} | ({"world.npz"} if has_world else set())
    assert {path.name for path in folder.iterdir()} == files
    loaded = ManyGoalsDQN.load_all(folder, make_vec_env(lambda: Paid({3: 1.0}, (0, 8)), 2))
    assert th.equal(parameters(loaded), parameters(model))
    np.testing.assert_array_equal(kept(loaded.replay_buffer), kept(model.replay_buffer))
    np.testing.assert_array_equal(loaded.goal_buffer.observations, model.goal_buffer.observations)
    if has_world:
        check_same_world(loaded, model)
    loaded.learn(60, reset_num_timesteps=False)
    assert loaded.num_timesteps == 120
    stores_nothing = settings.get("target_class") is PlannedTargets
    assert loaded.replay_buffer.size() == (0 if stores_nothing else 60)
    if has_world:
        assert loaded.world.n_counted == 120


def test_a_folder_that_lacks_files_is_refused_with_their_names(tmp_path):
    message = r"missing: model.zip, replay_buffer.pkl, world.npz"
    with pytest.raises(FileNotFoundError, match=message):
        ManyGoalsDQN.load_all(tmp_path / "nowhere", Corridor())
    make_model().learn(30).save_all(tmp_path)
    for name in ("world.npz", "replay_buffer.pkl", "model.zip"):
        (tmp_path / name).rename(tmp_path / "away")
        with pytest.raises(FileNotFoundError, match=f"missing: {re.escape(name)}$"):
            ManyGoalsDQN.load_all(tmp_path, Corridor())
        (tmp_path / "away").rename(tmp_path / name)
    with pytest.raises(ValueError, match=r"saved by a model with {'n_envs': 1, .* {'n_envs': 2,"):
        ManyGoalsDQN.load_all(tmp_path, make_vec_env(Corridor, 2))


@pytest.mark.parametrize("fails", ["save", "save_replay_buffer", "save_world"])
def test_files_that_cannot_be_written_leave_the_older_ones_whole(tmp_path, fails, monkeypatch):
    model = make_model().learn(30)
    model.save_all(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    model.learn(30, reset_num_timesteps=False)

    def write_half(path):
        path.write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(model, fails, write_half)
    with pytest.raises(OSError, match="no space left"):
        model.save_all(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
