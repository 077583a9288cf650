"""What ManyGoalsDQN refuses."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

from sb3_manygoals import GoalBuffer, GoalBufferWrapper, ManyGoalsDQN, VecGoalBufferWrapper
from sb3_manygoals.many_goals_dqn import PlannedTargets, TDTargets
from tests.sb3_manygoals.many_goals_dqn.models import goal_obs, make_model
from tests.sb3_manygoals.worlds import Corridor


def test_continuous_actions_are_refused():
    with pytest.raises(TypeError, match="a Discrete action space that starts at 0 is needed, got Box"):
        make_model("Pendulum-v1")


def test_observations_that_cannot_be_goals_are_refused():
    with pytest.raises(TypeError, match="observation_space cannot be treated as a space of goals"):
        make_model("Blackjack-v1")


def test_vectors_are_refused_by_cnn_policy():
    with pytest.raises(ValueError, match="CnnPolicy needs images"):
        make_model("CartPole-v1", "CnnPolicy")


@pytest.mark.parametrize("name", ["buffer_size", "batch_size", "goal_batch_size"])
@pytest.mark.parametrize("value", [0, -1, 1.5, None])
def test_counts_must_be_positive(name, value):
    with pytest.raises(ValueError, match=f"{name} must be a whole number, at least 1, got {value}"):
        make_model(**{name: value})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gamma": 1.0}, r"gamma must be less than 1"),
        ({"gamma": None}, r"gamma must be a number in \[0, 1\], got None"),
        ({"exploration_final_eps": -0.1}, r"exploration_final_eps must be a number in \[0, 1\], got -0.1"),
        ({"exploration_initial_eps": "1"}, r"exploration_initial_eps must be a number in \[0, 1\], got '1'"),
        ({"exploration_fraction": 1.5}, r"exploration_fraction must be a number in \[0, 1\], got 1.5"),
        ({"updates_per_step": 0}, "updates_per_step must be a number, more than 0 and at most 1000, got 0"),
        ({"updates_per_step": -1.0}, "updates_per_step must be a number, more than 0 and at most 1000, got -1.0"),
        ({"updates_per_step": "4"}, "updates_per_step must be a number, more than 0 and at most 1000, got '4'"),
        ({"updates_per_step": True}, "updates_per_step must be a number, more than 0 and at most 1000, got True"),
        ({"updates_per_step": float("nan")}, "updates_per_step must be a number, more than 0 and at most 1000, got nan"),
        ({"updates_per_step": float("inf")}, "updates_per_step must be a number, more than 0 and at most 1000, got inf"),
        ({"target_kwargs": {"tau": 0.5}}, r"target_kwargs \['tau'\] need a target_class"),
        ({"learning_starts": -1}, "learning_starts must be a whole number, at least 0, got -1"),
        ({"policy_kwargs": {"head": "sum"}}, "head must be one of 'bilinear', 'distance', got 'sum'"),
        ({"policy_kwargs": {"ema_decay": 1.0}}, r"ema_decay must be a number in \[0, 1\), got 1.0"),
        ({"policy": "Policy"}, "policy must be one of CnnPolicy, MlpPolicy, got 'Policy'"),
        ({"policy_kwargs": {"embedding_dim": 0}}, "embedding_dim must be at least 1, got 0"),
        ({"goal_wrapper_kwargs": {"max_episode_steps": -5}}, "max_episode_steps must be a whole number, at least 1, got -5"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        make_model(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tau": 1.1}, r"tau must be a number in \[0, 1\], got 1.1"),
        ({"tau": None}, r"tau must be a number in \[0, 1\], got None"),
        ({"update_interval": 0}, "update_interval must be a whole number, at least 1, got 0"),
        ({"update_interval": 1.5}, "update_interval must be a whole number, at least 1, got 1.5"),
        ({"update_interval": "10"}, "update_interval must be a whole number, at least 1, got '10'"),
        ({"initial_value": float("nan")}, "initial_value must be a finite number, or None, got nan"),
        ({"initial_value": float("-inf")}, "initial_value must be a finite number, or None, got -inf"),
        ({"initial_value": "0"}, "initial_value must be a finite number, or None, got '0'"),
        ({"goal_sampling": "none"}, 'goal_sampling must be one of "uniform", "batch", "behavior", got \'none\''),
    ],
)
def test_targets_of_a_target_network_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        make_model(target_class=TDTargets, target_kwargs=settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sweeps": 0}, "sweeps must be a whole number, at least 1, got 0"),
        ({"sweeps": 2.5}, "sweeps must be a whole number, at least 1, got 2.5"),
        ({"growth": 1.0}, "growth must be a number above 1, got 1.0"),
        ({"growth": None}, "growth must be a number above 1, got None"),
        ({"near_decay": 0.0}, r"near_decay must be in \(0, 1\], and 1 where gamma is 0, got 0.0"),
        ({"near_floor": 0.0}, "near_floor must be a number, more than 0, got 0.0"),
        ({"temperature": -1.0}, "temperature must be a number, more than 0, got -1.0"),
        ({"best_weight": -1.0}, "best_weight must be a number, at least 0, got -1.0"),
    ],
)
def test_planned_targets_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        make_model(target_class=PlannedTargets, target_kwargs=settings)


@pytest.mark.parametrize("settings", [{"max_states": 0}, {"max_states": 2.5}, {"max_states": -3}])
def test_a_number_of_states_that_makes_no_sense_is_refused(settings):
    with pytest.raises(ValueError, match="max_states must be a whole number, at least 1, got"):
        make_model(target_class=PlannedTargets, target_kwargs=settings)


def test_near_pairs_cannot_be_told_without_a_discount():
    with pytest.raises(ValueError, match=r"near_decay must be .* 1 where gamma is 0"):
        make_model(target_class=PlannedTargets, target_kwargs={"near_decay": 0.9}, gamma=0.0)


def test_arguments_of_the_other_kind_of_targets_are_refused():
    for target_class, argument in ((TDTargets, "sweeps"), (PlannedTargets, "tau")):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{argument}'"):
            make_model(target_class=target_class, target_kwargs={argument: 1})


@pytest.mark.parametrize("target_class", ["TDTargets", dict, 3])
def test_targets_of_no_kind_are_refused(target_class):
    with pytest.raises(TypeError, match="target_class must be TDTargets, PlannedTargets or another subclass of Targets, got"):
        make_model(target_class=target_class)


def test_goals_that_are_forgotten_cannot_be_planned_for():
    with pytest.raises(ValueError, match="goals are forgotten, so PlannedTargets cannot be planned, use TDTargets"):
        make_model(goals_in_replay=True, target_class=PlannedTargets)


def test_wrapper_arguments_for_a_wrapped_environment_are_refused():
    with pytest.raises(ValueError, match=r"goal_wrapper_kwargs \['max_episode_steps'\] given, but env pursues goals already"):
        make_model(GoalBufferWrapper(Corridor()), goal_wrapper_kwargs={"max_episode_steps": 5})


def test_observations_without_a_goal_are_refused():
    model = make_model()
    with pytest.raises(ValueError, match='observation must be a dict with "observation" and "desired_goal", got ndarray'):
        model.predict(np.zeros(6, np.uint8))
    with pytest.raises(ValueError, match="got \\['observation'\\]"):
        model.predict({"observation": np.zeros(6, np.uint8)})


@pytest.mark.parametrize("steps", [0, 0.5, -3, float("nan"), float("inf"), "3e3"])
def test_no_steps_are_refused(steps):
    with pytest.raises(ValueError, match="total_timesteps must be a finite number, at least 1, got"):
        make_model().learn(steps)


@pytest.mark.parametrize("rows", [(3, 1), (1, 3)])
def test_observations_and_goals_that_do_not_pair_up_are_refused(rows):
    obs = goal_obs(Corridor(), 1, 2)
    batch = {key: np.repeat(obs[key][None], n, axis=0) for key, n in zip(("observation", "desired_goal"), rows, strict=True)}
    with pytest.raises(ValueError, match="observation and desired_goal must have one shape"):
        make_model().predict(batch, deterministic=True)


def test_wrappers_that_change_observations_around_the_goal_wrapper_are_refused():
    stacked = VecFrameStack(VecGoalBufferWrapper(make_vec_env(lambda: Corridor(image=True), 1)), 2)
    with pytest.raises(ValueError, match="a wrapper around the goal wrapper changes observations"):
        make_model(stacked, "CnnPolicy")


def test_another_goal_buffer_is_not_thrown_away_in_silence():
    model = make_model().learn(30)
    buffer = GoalBuffer(Corridor().observation_space, held_out=Corridor().observation_of(2)[None])
    with pytest.raises(ValueError, match="env has a goal buffer of its own"):
        model.set_env(GoalBufferWrapper(Corridor(), buffer))
    model.set_env(GoalBufferWrapper(Corridor(), model.goal_buffer))


def test_something_else_than_an_environment_is_refused():
    with pytest.raises(TypeError, match="env must be a Gymnasium environment, its id, or an SB3 VecEnv, got 3"):
        ManyGoalsDQN("MlpPolicy", 3)
    with pytest.raises(ValueError, match="env is needed to build a model"):
        ManyGoalsDQN("MlpPolicy", None)


def test_normalised_observations_are_refused():
    venv = VecNormalize(VecGoalBufferWrapper(make_vec_env(Corridor, 1)), norm_obs_keys=["observation"])
    with pytest.raises(ValueError, match="VecNormalize is not supported"):
        make_model(venv)


def test_an_update_without_goals_is_refused():
    model = make_model(target_class=TDTargets).learn(10)
    model.targets.learner.goal_buffer._ids.clear()
    with pytest.raises(ValueError, match="cannot sample from an empty goal buffer"):
        model.targets.draw(4, 4, model.rng)


def test_action_spaces_that_start_elsewhere_are_refused():
    shifted = gym.wrappers.TransformAction(Corridor(), lambda a: a - 1, spaces.Discrete(3, start=1))
    with pytest.raises(TypeError, match="Discrete action space that starts at 0"):
        make_model(shifted)
