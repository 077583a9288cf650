import math
import re

import gymnasium as gym
import pytest
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

from sb3_manygoals import GoalBuffer, GoalBufferWrapper, ManyGoalsDQN, VecGoalBufferWrapper
from sb3_manygoals.goals import LearningProgressSelector
from sb3_manygoals.many_goals_dqn import PlannedTargets, TDTargets
from sb3_manygoals.networks import PaddedCNN
from tests.sb3_manygoals.many_goals_dqn.models import CELLS, make_model
from tests.sb3_manygoals.worlds import Corridor

SPACE = Corridor().observation_space
HELD_OUT = GoalBufferWrapper(Corridor(), GoalBuffer(SPACE, held_out=CELLS[:1]))
VECTOR = VecGoalBufferWrapper(make_vec_env(Corridor, 1))
PICTURES = VecGoalBufferWrapper(make_vec_env(lambda: Corridor(4, image=True), 1))
SHIFTED = gym.wrappers.TransformAction(Corridor(), lambda a: a - 1, spaces.Discrete(3, start=1))
PROGRESS, PAIR = (
    {"selector": LearningProgressSelector()},
    {"observation": CELLS[:3], "desired_goal": CELLS[:1]},
)
COUNT, SHARE, POSITIVE = "a whole number, at least 1", "a number in [0, 1]", "a number in (0, inf)"


class Shown(gym.Env):
    """Shows anything that is of a space."""

    action_space = spaces.Discrete(2)

    def __init__(self, observation_space):
        self.observation_space = observation_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, False, {}


def test_a_run_in_which_nothing_is_learned_is_said():
    with pytest.warns(
        UserWarning, match="learning_starts=20 random steps.* ends after 20: nothing is learned"
    ) as said:
        make_model().learn(20)
    assert said[0].filename == __file__
    assert str(said[0].message).endswith(
        "nothing is learned by the network. task_policy() plans in what was met"
    )
    with pytest.warns(UserWarning, match="ends after 20: nothing is learned$"):
        make_model(target_class=TDTargets).learn(20)  # which plans nothing
    late = make_model(
        make_vec_env(Corridor, 4),
        updates_per_step=0.1,
        learning_rate=LinearSchedule(1e-3, 0.0, 1.0),
    )
    with pytest.warns(
        UserWarning,
        match="in rollouts of 20, come before an update.* ends after 40: nothing is learned",
    ):
        late.learn(40)  # whose only update would be with a step size of 0


@pytest.mark.parametrize(
    ("name", "values", "allowed"),
    [
        *(
            (name, (0, 1.5, None), COUNT)
            for name in ("buffer_size", "batch_size", "goal_batch_size")
        ),
        ("learning_starts", (-1,), "a whole number, at least 0"),
        ("gamma", (1.0, None), "a number in [0, 1)"),
        ("exploration_fraction", (1.5,), SHARE),
        ("exploration_initial_eps", ("1",), SHARE),
        ("exploration_final_eps", (-0.1,), SHARE),
        (
            "updates_per_step",
            (0, -1.0, 4e-7, "4", True, float("nan"), float("inf")),
            "a number in [1e-06, 1000]",
        ),
        ("policy", ("Policy",), "one of CnnPolicy, MlpPolicy"),
        ("policy_kwargs.head", ("sum",), "one of 'bilinear', 'distance'"),
        ("policy_kwargs.ema_decay", (1.0,), "a number in [0, 1)"),
        ("policy_kwargs.embedding_dim", (0,), COUNT),
        ("goal_wrapper_kwargs.max_episode_steps", (-5,), COUNT),
        ("TDTargets.tau", (1.1, None), SHARE),
        ("TDTargets.update_interval", (0, 1.5, "10"), COUNT),
        ("TDTargets.initial_value", (float("nan"), float("-inf"), "0"), "a number in (-inf, inf)"),
        ("TDTargets.goal_sampling", ("none",), "one of uniform, batch, behavior"),
        ("PlannedTargets.sweeps", (-1, 2.5), "a whole number, at least 0"),
        ("PlannedTargets.growth", (1.0, None), "a number in (1, inf)"),
        ("PlannedTargets.near_decay", (0.0,), "a number in (0, 1]"),
        ("PlannedTargets.near_floor", (0.0,), POSITIVE),
        ("PlannedTargets.best_weight", (-1.0,), "a number in [0, inf)"),
        ("PlannedTargets.max_plan_bytes", (0, 2.5), COUNT),
        ("PlannedTargets.fresh_goals", (-0.1,), "a number in [0, inf)"),
        ("learn", (0, 0.5, -3, float("nan"), float("inf"), "3e3"), "a number in [1, inf)"),
    ],
)
def test_an_argument_out_of_its_range_is_named_with_what_came_and_what_may_come(
    name, values, allowed
):
    where, _, own = name.rpartition(".")
    for value in values:
        settings = {where: {own: value}} if where else {own: value}
        if where.endswith("Targets"):
            settings = {
                "target_class": {"TDTargets": TDTargets}.get(where, PlannedTargets),
                "target_kwargs": {own: value},
            }
        named = "total_timesteps" if name == "learn" else own
        with pytest.raises(
            ValueError, match=re.escape(f"{named} must be {allowed}, got {value!r}")
        ):
            make_model().learn(value) if name == "learn" else make_model(**settings)


def in_replay(env=None, **kwargs):
    return lambda: make_model(env, goals_in_replay=True, **kwargs)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: make_model("Pendulum-v1"),
            TypeError,
            "a Discrete action space that starts at 0 is needed, got Box",
        ),
        (
            lambda: make_model(SHIFTED),
            TypeError,
            "a Discrete action space that starts at 0 is needed, got Discrete",
        ),
        (
            lambda: make_model("Blackjack-v1"),
            TypeError,
            "observation_space cannot be treated as a space of goals",
        ),
        (lambda: make_model("CartPole-v1", "CnnPolicy"), ValueError, "CnnPolicy needs images"),
        (lambda: PaddedCNN(SPACE), ValueError, "CnnPolicy needs images: a uint8 Box of three axes"),
        (
            lambda: ManyGoalsDQN("MlpPolicy", 3),
            TypeError,
            "env must be a Gymnasium environment, its id, or an SB3 VecEnv",
        ),
        (
            lambda: LearningProgressSelector(m=0),
            ValueError,
            "m must be a whole number, at least 1, got 0",
        ),
        (lambda: ManyGoalsDQN("MlpPolicy", None), ValueError, "env is needed to build a model"),
        (
            lambda: make_model(replay_buffer_class=dict),
            TypeError,
            "replay_buffer_class must be a ManyGoalsReplayBuffer",
        ),
        (
            lambda: make_model(target_class=dict),
            TypeError,
            "target_class must be TDTargets, PlannedTargets or",
        ),
        (
            lambda: make_model(target_class=TDTargets, target_kwargs={"sweeps": 1}),
            TypeError,
            "'sweeps'",
        ),
        (
            lambda: make_model(target_kwargs={"tau": 0.5}),
            ValueError,
            "target_kwargs ['tau'] need a target_class",
        ),
        (
            lambda: make_model(target_class=PlannedTargets, gamma=0.0),
            ValueError,
            "gamma must be greater than 0 where values are planned, got 0",
        ),
        (
            lambda: make_model(gamma=0),
            ValueError,
            "gamma must be greater than 0 where values are planned, got 0",
        ),
        (
            in_replay(target_class=PlannedTargets),
            ValueError,
            "goals are forgotten, so PlannedTargets cannot plan",
        ),
        (
            in_replay(target_class=TDTargets, target_kwargs={"goal_sampling": "behavior"}),
            ValueError,
            'goals_in_replay needs goal_sampling "uniform" or "batch", got "behavior"',
        ),
        (
            in_replay(goal_wrapper_kwargs=PROGRESS),
            ValueError,
            "needs the UniformSelector, as goals are forgotten, got <sb3",
        ),
        (
            in_replay(goal_wrapper_kwargs={"goal_buffer": GoalBuffer(SPACE)}),
            ValueError,
            "goal_buffer must not be given",
        ),
        (in_replay(HELD_OUT), ValueError, "held-out"),
        (
            lambda: make_model().learn(30).set_env(HELD_OUT),
            ValueError,
            "env has a goal buffer of its own",
        ),
        (
            lambda: make_model(
                GoalBufferWrapper(Corridor()), goal_wrapper_kwargs={"max_episode_steps": 5}
            ),
            ValueError,
            "goal_wrapper_kwargs ['max_episode_steps'] given, but env pursues goals already",
        ),
        (
            lambda: make_model(VecFrameStack(VECTOR, 2)),
            ValueError,
            "a wrapper around the goal wrapper changes observations",
        ),
        (
            lambda: make_model(VecNormalize(VECTOR, norm_obs_keys=["observation"])),
            ValueError,
            "VecNormalize is not supported: a goal is one exact observation",
        ),
        (
            lambda: make_model(VecNormalize(VECTOR, norm_obs=False)),
            ValueError,
            "must not drift. Leave it out",
        ),
        (
            lambda: make_model(
                VecGoalBufferWrapper(VecNormalize(make_vec_env(Corridor, 1), norm_obs=False))
            ),
            ValueError,
            "must not drift. Leave it out",
        ),
        (
            lambda: make_model(
                gym.wrappers.FrameStackObservation(GoalBufferWrapper(Corridor()), 2)
            ),
            ValueError,
            "a wrapper around the goal wrapper changes observations, FrameStackObservation",
        ),
        (
            lambda: make_model(VecFrameStack(PICTURES, 5), "CnnPolicy"),
            ValueError,
            "a wrapper around the goal wrapper changes observations, VecFrameStack",
        ),
        (
            lambda: make_model().predict(CELLS[0]),
            ValueError,
            'a dict with "observation" and "desired_goal", got ndarray',
        ),
        (
            lambda: make_model().predict(PAIR),
            ValueError,
            "observation and desired_goal must have one shape",
        ),
    ],
)
def test_what_cannot_be_learned_from_or_asked_for_is_refused(make, error, message):
    with pytest.raises(error, match=re.escape(message)):
        make()


def test_a_gamma_of_0_is_learned_where_values_are_bootstrapped():
    model = make_model(gamma=0, target_class=TDTargets).learn(60)
    assert math.isfinite(model._loss.item())


@pytest.mark.parametrize(
    "world",
    [
        lambda: gym.make("MiniGrid-Empty-5x5-v0"),
        lambda: gym.make("Blackjack-v1"),
        lambda: Shown(spaces.Dict({"a": spaces.Box(0, 1, (2,)), "b": spaces.Discrete(3)})),
        lambda: Shown(spaces.Dict({"a": spaces.Discrete(3), "text": spaces.Text(5)})),
        lambda: Shown(
            spaces.Dict(
                {"a": spaces.Box(0, 1, (2,)), "b": spaces.MultiBinary(2), "c": spaces.Text(5)}
            )
        ),
        lambda: Shown(spaces.Discrete(3, start=1)),
        lambda: Shown(spaces.MultiDiscrete([[3, 3], [2, 2]])),
    ],
)
def test_the_wrappers_that_an_error_names_make_goals_of_observations(world):
    pytest.importorskip("minigrid")
    with pytest.raises(TypeError, match="cannot be treated as a space of goals") as caught:
        make_model(world())
    ways = str(caught.value).partition("is one such array: ")[2].split("; or ")
    assert ways
    for way in ways:
        code = way[way.index("gymnasium" if "gymnasium" in way else "minigrid") :]
        exec(f"import {code.partition('.')[0]}.wrappers")
        made = eval(
            code, {"gymnasium": gym, "minigrid": __import__("minigrid.wrappers"), "env": world()}
        )
        model = make_model(made, "MlpPolicy", learning_starts=5)
        model.learn(10)
