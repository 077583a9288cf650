"""What ManyGoalsDQN refuses."""

import re

import gymnasium as gym
import pytest
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

from sb3_manygoals import GoalBuffer, GoalBufferWrapper, ManyGoalsDQN, VecGoalBufferWrapper
from sb3_manygoals.many_goals_dqn import PlannedTargets, TDTargets
from tests.sb3_manygoals.many_goals_dqn.models import CELLS, make_model
from tests.sb3_manygoals.worlds import Corridor


@pytest.mark.parametrize("name", ["buffer_size", "batch_size", "goal_batch_size"])
@pytest.mark.parametrize("value", [0, 1.5, None])
def test_counts_must_be_positive(name, value):
    with pytest.raises(ValueError, match=f"{name} must be a whole number, at least 1, got {value}"):
        make_model(**{name: value})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gamma": 1.0}, "gamma must be a number in [0, 1), got 1.0"),
        ({"gamma": None}, "gamma must be a number in [0, 1), got None"),
        ({"exploration_final_eps": -0.1}, "exploration_final_eps must be a number in [0, 1], got -0.1"),
        ({"exploration_initial_eps": "1"}, "exploration_initial_eps must be a number in [0, 1], got '1'"),
        ({"exploration_fraction": 1.5}, "exploration_fraction must be a number in [0, 1], got 1.5"),
        *(
            ({"updates_per_step": value}, f"updates_per_step must be a number in (0, 1000], got {value!r}")
            for value in (0, -1.0, "4", True, float("nan"), float("inf"))
        ),
        ({"target_kwargs": {"tau": 0.5}}, "target_kwargs ['tau'] need a target_class"),
        ({"learning_starts": -1}, "learning_starts must be a whole number, at least 0, got -1"),
        ({"policy_kwargs": {"head": "sum"}}, "head must be one of 'bilinear', 'distance', got 'sum'"),
        ({"policy_kwargs": {"ema_decay": 1.0}}, "ema_decay must be a number in [0, 1), got 1.0"),
        ({"policy": "Policy"}, "policy must be one of CnnPolicy, MlpPolicy, got 'Policy'"),
        ({"policy_kwargs": {"embedding_dim": 0}}, "embedding_dim must be at least 1, got 0"),
        ({"goal_wrapper_kwargs": {"max_episode_steps": -5}}, "max_episode_steps must be a whole number, at least 1, got -5"),
        ({"goals_in_replay": True, "target_class": PlannedTargets}, "goals are forgotten, so PlannedTargets cannot plan"),
        (
            {"target_class": PlannedTargets, "target_kwargs": {"near_decay": 0.9}, "gamma": 0.0},
            "near_decay must be 1 if gamma is 0",
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make_model(**settings)


@pytest.mark.parametrize(
    ("target_class", "name", "value", "allowed"),
    [
        (TDTargets, "tau", 1.1, "a number in [0, 1]"),
        (TDTargets, "tau", None, "a number in [0, 1]"),
        *((TDTargets, "update_interval", value, "a whole number, at least 1") for value in (0, 1.5, "10")),
        *((TDTargets, "initial_value", value, "a number in (-inf, inf)") for value in (float("nan"), float("-inf"), "0")),
        (TDTargets, "goal_sampling", "none", "one of uniform, batch, behavior"),
        (PlannedTargets, "sweeps", 0, "a whole number, at least 1"),
        (PlannedTargets, "sweeps", 2.5, "a whole number, at least 1"),
        (PlannedTargets, "growth", 1.0, "a number in (1, inf)"),
        (PlannedTargets, "growth", None, "a number in (1, inf)"),
        (PlannedTargets, "near_decay", 0.0, "a number in (0, 1]"),
        (PlannedTargets, "near_floor", 0.0, "a number in (0, inf)"),
        (PlannedTargets, "temperature", -1.0, "a number in (0, inf)"),
        (PlannedTargets, "best_weight", -1.0, "a number in [0, inf)"),
        *((PlannedTargets, "max_states", value, "a whole number, at least 1") for value in (0, 2.5)),
    ],
)
def test_targets_that_make_no_sense_are_refused(target_class, name, value, allowed):
    with pytest.raises(ValueError, match=re.escape(f"{name} must be {allowed}, got {value!r}")):
        make_model(target_class=target_class, target_kwargs={name: value})


SHIFTED = gym.wrappers.TransformAction(Corridor(), lambda a: a - 1, spaces.Discrete(3, start=1))
DICT = "observation must be a dict"


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: make_model("Pendulum-v1"), TypeError, "a Discrete action space that starts at 0 is needed, got Box"),
        (lambda: make_model(SHIFTED), TypeError, "a Discrete action space that starts at 0 is needed, got Discrete"),
        (lambda: make_model("Blackjack-v1"), TypeError, "observation_space cannot be treated as a space of goals"),
        (lambda: make_model("CartPole-v1", "CnnPolicy"), ValueError, "CnnPolicy needs images"),
        (
            lambda: ManyGoalsDQN("MlpPolicy", 3),
            TypeError,
            "env must be a Gymnasium environment, its id, or an SB3 VecEnv, got 3",
        ),
        (lambda: ManyGoalsDQN("MlpPolicy", None), ValueError, "env is needed to build a model"),
        *(
            (lambda kind=kind: make_model(target_class=kind), TypeError, "target_class must be TDTargets, PlannedTargets or")
            for kind in ("TDTargets", dict, 3)
        ),
        *(
            (lambda kind=kind, name=name: make_model(target_class=kind, target_kwargs={name: 1}), TypeError, f"'{name}'")
            for kind, name in ((TDTargets, "sweeps"), (PlannedTargets, "tau"))
        ),
        (
            lambda: make_model(GoalBufferWrapper(Corridor()), goal_wrapper_kwargs={"max_episode_steps": 5}),
            ValueError,
            "goal_wrapper_kwargs ['max_episode_steps'] given, but env pursues goals already",
        ),
        (
            lambda: make_model(
                VecFrameStack(VecGoalBufferWrapper(make_vec_env(lambda: Corridor(image=True), 1)), 2), "CnnPolicy"
            ),
            ValueError,
            "a wrapper around the goal wrapper changes observations",
        ),
        (
            lambda: make_model(VecNormalize(VecGoalBufferWrapper(make_vec_env(Corridor, 1)), norm_obs_keys=["observation"])),
            ValueError,
            "VecNormalize is not supported",
        ),
        (lambda: make_model().predict(CELLS[0]), ValueError, DICT + ' with "observation" and "desired_goal", got ndarray'),
        (lambda: make_model().predict({"observation": CELLS[0]}), ValueError, "got ['observation']"),
        *(
            (
                lambda one=one, other=other: make_model().predict({"observation": one, "desired_goal": other}),
                ValueError,
                "observation and desired_goal must have one shape",
            )
            for one, other in ((CELLS[:3], CELLS[:1]), (CELLS[:1], CELLS[:3]))
        ),
        *(
            (lambda steps=steps: make_model().learn(steps), ValueError, "total_timesteps must be a number in [1, inf), got")
            for steps in (0, 0.5, -3, float("nan"), float("inf"), "3e3")
        ),
    ],
)
def test_what_cannot_be_learned_from_or_asked_for_is_refused(make, error, message):
    with pytest.raises(error, match=re.escape(message)):
        make()


def test_another_goal_buffer_is_not_thrown_away_in_silence():
    model = make_model().learn(30)
    buffer = GoalBuffer(Corridor().observation_space, held_out=Corridor().observation_of(2)[None])
    with pytest.raises(ValueError, match="env has a goal buffer of its own"):
        model.set_env(GoalBufferWrapper(Corridor(), buffer))
    model.set_env(GoalBufferWrapper(Corridor(), model.goal_buffer))


def test_an_update_without_goals_is_refused():
    model = make_model(target_class=TDTargets).learn(10)
    model.targets.learner.goal_buffer._ids.clear()
    with pytest.raises(ValueError, match="cannot sample from an empty goal buffer"):
        model.targets.draw(4, 4, model.rng)
