"""Which arguments are refused, and what the messages say."""

import math
import re
from contextlib import nullcontext

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import NormalizeObservation, NormalizeReward, TransformObservation
from gymnasium.wrappers.vector import NormalizeReward as NormalizeRewards
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecFrameStack,
    VecNormalize,
)

import gym_twoRooms  # noqa: F401 - it registers its worlds
from sb3_manygoals import (
    ExactCheckpointCallback,
    GoalBuffer,
    GoalBufferWrapper,
    GymnasiumVecEnv,
    ManyGoalsDQN,
    MasteryCallback,
    TabularAllGoals,
    Transitions,
    VecGoalBufferWrapper,
)
from sb3_manygoals.auxiliary import EpisodeBuffer
from sb3_manygoals.goals import LearningProgressSelector
from sb3_manygoals.many_goals_dqn import PlannedTargets, TDTargets
from sb3_manygoals.networks import PaddedCNN
from tests.sb3_manygoals.many_goals_dqn.models import CELLS, make_model, parameters
from tests.sb3_manygoals.worlds import Corridor

SPACE = Corridor().observation_space
COUNT = "a whole number, at least 1"
SHARE = "a number in [0, 1]"
ANY_NUMBER = "a number in (-inf, inf)"


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


def test_a_training_in_which_nothing_is_learned_is_a_warning():
    expected = "learning_starts=20 random steps.* ends after 20: nothing is learned"
    with pytest.warns(UserWarning, match=expected) as caught:
        make_model().learn(20)
    assert caught[0].filename == __file__
    end = "nothing is learned by the network. goal_policy() and task_policy() plan in what was met"
    assert str(caught[0].message).endswith(end)


def test_the_warning_does_not_speak_of_plans_where_nothing_is_planned():
    with pytest.warns(UserWarning, match="ends after 20: nothing is learned$"):
        make_model(target_class=TDTargets).learn(20)


def test_an_update_with_a_learning_rate_of_0_does_not_count_as_learning():
    late = make_model(
        make_vec_env(Corridor, 4),
        updates_per_step=0.1,
        learning_rate=LinearSchedule(1e-3, 0.0, 1.0),
    )
    expected = "in rollouts of 20, come before an update.* ends after 40: nothing is learned"
    with pytest.warns(UserWarning, match=expected):
        late.learn(40)


@pytest.mark.parametrize(
    ("name", "values", "allowed"),
    [
        ("buffer_size", (0, 1.5, None), COUNT),
        ("batch_size", (0, 1.5, None), COUNT),
        ("goal_batch_size", (0, 1.5, None), COUNT),
        ("learning_starts", (-1,), "a whole number, at least 0"),
        ("tau", (1.1, -0.1, "1"), SHARE),
        ("gamma", (1.0, None), "a number in [0, 1)"),
        ("target_update_interval", (0, 1.5, "10"), COUNT),
        ("exploration_fraction", (1.5,), SHARE),
        ("exploration_initial_eps", ("1",), SHARE),
        ("exploration_final_eps", (-0.1,), SHARE),
        ("max_grad_norm", (0, -1.0, "1"), "a number in (0, inf)"),
        (
            "updates_per_step",
            (0, -1.0, 4e-7, "4", True, float("nan"), float("inf")),
            "a number in [1e-06, 1000]",
        ),
        ("policy", ("Policy",), "one of CnnPolicy, MlpPolicy, MultiInputPolicy"),
        ("policy_kwargs.head", ("sum",), "one of 'bilinear', 'distance'"),
        ("policy_kwargs.ema_decay", (1.0,), "a number in [0, 1)"),
        ("policy_kwargs.embedding_dim", (0,), COUNT),
        ("goal_wrapper_kwargs.max_episode_steps", (-5,), COUNT),
        ("TDTargets.initial_value", (float("nan"), float("-inf"), "0"), ANY_NUMBER),
        ("TDTargets.near_decay", (0.0, 1.1, "1"), "a number in (0, 1]"),
        ("TDTargets.action_gap", (1.0, -0.1, "0"), "a number in [0, 1)"),
        ("TDTargets.near_floor", (0.0, -1.0, float("inf")), "a number in (0, inf)"),
        ("TDTargets.goal_sampling", ("none",), "one of uniform, segments, behavior"),
        ("PlannedTargets.max_plan_bytes", (0, 2.5), COUNT),
        ("PlannedTargets.exploring_episodes", (1.5, -0.1), SHARE),
        ("learn", (0, 0.5, -3, float("nan"), float("inf"), "3e3"), "a number in [1, inf)"),
    ],
)
def test_an_argument_out_of_its_range_is_named_with_what_came_and_what_was_expected(
    name, values, allowed
):
    where, _, argument = name.rpartition(".")
    target_classes = {"TDTargets": TDTargets, "PlannedTargets": PlannedTargets}
    for value in values:
        settings = {where: {argument: value}} if where else {argument: value}
        if where in target_classes:
            settings = {
                "target_class": target_classes[where],
                "target_kwargs": {argument: value},
            }
        named = "total_timesteps" if name == "learn" else argument
        message = re.escape(f"{named} must be {allowed}, got {value!r}")
        with pytest.raises(ValueError, match=message):
            make_model().learn(value) if name == "learn" else make_model(**settings)


def test_a_schedule_of_exploring_episodes_that_leaves_its_range_is_refused():
    schedule = LinearSchedule(1.0, -1.0, 1.0)
    settings = {"target_class": PlannedTargets, "target_kwargs": {"exploring_episodes": schedule}}
    message = re.escape("exploring_episodes must be a number in [0, 1], got -1.0")
    with pytest.raises(ValueError, match=message):
        make_model(**settings)


def shifted():
    """Return a corridor with actions that are counted from 1."""
    actions = spaces.Discrete(3, start=1)
    return gym.wrappers.TransformAction(Corridor(), lambda action: action - 1, actions)


def holding_out():
    """Return a corridor with a goal buffer that holds a goal out."""
    return GoalBufferWrapper(Corridor(), GoalBuffer(SPACE, held_out=CELLS[:1]))


def vector():
    return VecGoalBufferWrapper(make_vec_env(Corridor, 1))


def pictures():
    return VecGoalBufferWrapper(make_vec_env(lambda: Corridor(4, image=True), 1))


def normalized_inside():
    return VecGoalBufferWrapper(VecNormalize(make_vec_env(Corridor, 1), norm_obs=False))


def stacked_around():
    return gym.wrappers.FrameStackObservation(GoalBufferWrapper(Corridor()), 2)


def in_replay(env=None, **kwargs):
    """Return a function that makes a model with goals in its replay memory."""
    return lambda: make_model(env, goals_in_replay=True, **kwargs)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: make_model("Pendulum-v1"),
            "a Discrete action space that starts at 0 is needed, got Box",
        ),
        (
            lambda: make_model(shifted()),
            "a Discrete action space that starts at 0 is needed, got Discrete",
        ),
        (
            lambda: make_model("Blackjack-v1"),
            "observation_space cannot be treated as a space of goals",
        ),
        (
            lambda: ManyGoalsDQN("MlpPolicy", 3),
            "env must be a Gymnasium environment, its id, or an SB3 VecEnv",
        ),
        (
            lambda: make_model(replay_buffer_class=dict),
            "replay_buffer_class must be a ManyGoalsReplayBuffer",
        ),
        (
            lambda: make_model(target_class=dict),
            "target_class must be TDTargets, PlannedTargets or",
        ),
        (
            lambda: make_model(target_class=TDTargets, target_kwargs={"max_plan_bytes": 1}),
            "'max_plan_bytes'",
        ),
        (
            lambda: make_model(goal_wrapper_kwargs={"selector_class": dict}),
            "selector_class must be a subclass of GoalSelector",
        ),
        (
            lambda: make_model(policy_kwargs={"net_arch": {"pi": [64], "vf": [64]}}),
            "net_arch must be a list of widths of shared layers, got {'pi'",
        ),
    ],
)
def test_what_is_of_the_wrong_kind_is_a_type_error(make, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: make_model("CartPole-v1", "CnnPolicy"), "CnnPolicy needs images"),
        (
            lambda: make_model(policy_kwargs={"net_arch": [64, 0]}),
            f"a width in net_arch must be {COUNT}, got 0",
        ),
        (lambda: PaddedCNN(SPACE), "CnnPolicy needs images: a uint8 Box of three axes"),
        (
            lambda: LearningProgressSelector(m=0),
            "m must be a whole number, at least 1, got 0",
        ),
        (lambda: ManyGoalsDQN("MlpPolicy", None), "env is needed to build a model"),
        (
            lambda: make_model(target_kwargs={"initial_value": 0.5}),
            "target_kwargs ['initial_value'] given without target_class",
        ),
        (
            lambda: make_model(target_class=PlannedTargets, gamma=0.0),
            "gamma must be greater than 0 where values are planned, got 0",
        ),
        (
            lambda: make_model(gamma=0),
            "gamma must be greater than 0 where values are planned, got 0",
        ),
        (
            in_replay(target_class=PlannedTargets),
            "goals are forgotten, so PlannedTargets cannot plan",
        ),
        (
            in_replay(target_class=TDTargets, target_kwargs={"goal_sampling": "behavior"}),
            'goals_in_replay needs goal_sampling "uniform" or "segments", got "behavior"',
        ),
        (
            in_replay(goal_wrapper_kwargs={"selector_class": LearningProgressSelector}),
            "needs the UniformSelector, because goals are forgotten, got <class 'sb3",
        ),
        (
            in_replay(goal_wrapper_kwargs={"goal_buffer": GoalBuffer(SPACE)}),
            "goal_buffer must not be given",
        ),
        (in_replay(holding_out()), "held-out"),
        (
            lambda: make_model().learn(30).set_env(holding_out()),
            "env has a goal buffer of its own",
        ),
        (
            lambda: make_model(
                GoalBufferWrapper(Corridor()), goal_wrapper_kwargs={"max_episode_steps": 5}
            ),
            "goal_wrapper_kwargs ['max_episode_steps'] given, but env pursues goals already",
        ),
        (
            lambda: make_model(VecFrameStack(vector(), 2)),
            "a wrapper around the goal wrapper changes observations",
        ),
        (
            lambda: make_model(VecNormalize(vector(), norm_obs_keys=["observation"])),
            "VecNormalize is not supported: a goal is one exact observation",
        ),
        (
            lambda: make_model(VecNormalize(vector(), norm_obs=False)),
            "must not drift. Leave it out",
        ),
        (lambda: make_model(normalized_inside()), "must not drift. Leave it out"),
        (
            lambda: make_model(NormalizeObservation(Corridor())),
            "NormalizeObservation is not supported: what it makes of an observation",
        ),
        (
            lambda: make_model(make_vec_env(lambda: NormalizeReward(Corridor()), 2)),
            "NormalizeReward is not supported: what it makes of an observation or a reward",
        ),
        (
            lambda: make_model(make_vec_env(Corridor, 2), train_freq=(1, "episode")),
            "train_freq can count episodes of one environment only, got 2: give a number of steps",
        ),
        (lambda: make_model(seed=-1), "seed must be a whole number, at least 0, got -1"),
        (lambda: make_model(seed=2**32), "seed must be below 2**32, got 4294967296"),
        (lambda: make_model(learning_rate="fast"), "learning_rate must be a number in [0, inf)"),
        (
            lambda: make_model(
                target_class=PlannedTargets, target_kwargs={"exploring_episodes": "x"}
            ),
            "exploring_episodes must be a number in [0, 1], got 'x'",
        ),
        (lambda: make_model().learn(40, log_interval=0), "log_interval must be a whole number"),
        (
            lambda: GoalBuffer(SPACE, held_out=3),
            "held_out must have shape (n, 6), got 3",
        ),
        (
            lambda: GoalBuffer(SPACE, held_out=[[0.0], [0.0, 1.0]]),
            "held_out must have shape (n, 6), got [[0.0], [0.0, 1.0]]",
        ),
        (lambda: Transitions(None, [0], CELLS[:1]), "observations must be an array with a row"),
        (
            lambda: VecGoalBufferWrapper(make_vec_env(Corridor, 2)).step(np.array([1])),
            "actions must have one action for each of 2 environments, got array([1])",
        ),
        (
            lambda: make_model(state_kwargs={"n_updates": -1}),
            "state_kwargs: n_updates must be a whole number, at least 1, got -1",
        ),
        (
            lambda: make_model(
                state_kwargs={"n_updates": 3}, goal_wrapper_kwargs={"state_key": np.argmax}
            ),
            "['n_updates'] given, but states will not be learned: state_key says what a state is",
        ),
        (
            lambda: make_model(
                goal_wrapper_kwargs={"goal": lambda picture: picture[:2]}, updates_per_step=1.0
            ).predict({"observation": CELLS[0], "desired_goal": CELLS[0]}),
            "desired_goal must have shape (2,), or (n, 2) for a batch, got (6,)",
        ),
        (
            lambda: make_model(
                DummyVecEnv([lambda: gym.make("TwoRoomsSwitchSmall-v0")]),
                "CnnPolicy",
                goal_wrapper_kwargs={"goal": lambda picture: picture[0, 0]},
            ).predict({"observation": np.zeros(7), "desired_goal": np.zeros(3)}),
            "observation must have shape (8, 4, 3), or (n, 8, 4, 3) for a batch, got (7,)",
        ),
        (
            lambda: make_model(stacked_around()),
            "a wrapper around the goal wrapper changes observations, FrameStackObservation",
        ),
        (
            lambda: make_model(VecFrameStack(pictures(), 5), "CnnPolicy"),
            "a wrapper around the goal wrapper changes observations, VecFrameStack",
        ),
        (
            lambda: make_model().predict(CELLS[0]),
            'a dict with "observation" and "desired_goal", got ndarray',
        ),
        (
            lambda: make_model().predict({"observation": CELLS[:3], "desired_goal": CELLS[:1]}),
            "observation and desired_goal must have one shape",
        ),
    ],
)
def test_what_cannot_be_learned_from_or_asked_for_is_a_value_error(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: make_model(goal_wrapper_kwargs=5), "goal_wrapper_kwargs must be a dict of"),
        (lambda: make_model(target_kwargs=5), "target_kwargs must be a dict of arguments, got 5"),
        (lambda: make_model(replay_buffer_kwargs=5), "replay_buffer_kwargs must be a dict of"),
        (lambda: make_model(state_kwargs=[1]), "state_kwargs must be a dict of arguments, got [1]"),
        (
            lambda: make_model(goal_wrapper_kwargs={"selector_kwargs": 5}),
            "selector_kwargs must be a dict of arguments, got 5",
        ),
        (
            lambda: make_model(goal_wrapper_kwargs={"selector_kwargs": {"a": 1}}),
            "selector_kwargs: UniformSelector() takes no arguments",
        ),
        (lambda: make_model(policy_kwargs=5), "policy_kwargs must be a dict of arguments, got 5"),
        (lambda: GoalBuffer(SPACE, state_kwargs=5), "state_kwargs must be a dict of arguments"),
        (
            lambda: TabularAllGoals("TablePolicy", "FrozenLake-v1", goal_wrapper_kwargs=5),
            "goal_wrapper_kwargs must be a dict of arguments, got 5",
        ),
        (lambda: make_model(policy=3), "policy must be one of CnnPolicy, MlpPolicy, "),
        (lambda: make_model().set_env("CartPole-v1"), "got 'CartPole-v1': gymnasium.make makes"),
        (lambda: make_model().set_env(None), "env must be a Gymnasium environment or an SB3"),
        (
            lambda: make_model(Shown(spaces.Box(0, 1, (2,), np.longdouble))),
            "expected a dtype of at most 64 bits",
        ),
        (
            lambda: MasteryCallback(Corridor(), CELLS, 10, on_measure=3),
            "on_measure must be a function or None, got 3",
        ),
        (
            lambda: ExactCheckpointCallback("folder", extras=[CELLS]),
            "extras must be a dict of names and objects, got [",
        ),
        (lambda: EpisodeBuffer(None), "observation_space cannot be treated as a space of goals"),
    ],
)
def test_what_is_of_the_wrong_type_is_a_type_error_that_names_it(make, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        make()


def frozen(env):
    """Return an environment whose outermost wrapper normalizes by means that stay."""
    env.update_running_mean = False
    return env


def test_a_frozen_normalization_does_not_drift():
    env = frozen(NormalizeObservation(Corridor()))
    assert len(make_model(env).learn(60).goal_buffer) == 6
    mixed = DummyVecEnv([lambda: frozen(NormalizeReward(Corridor())), Corridor])
    assert len(make_model(mixed).learn(60).goal_buffer) == 6


def test_each_of_several_normalizations_is_looked_at():
    inside = lambda: frozen(NormalizeReward(NormalizeObservation(Corridor())))  # noqa: E731
    with pytest.raises(ValueError, match="NormalizeObservation is not supported"):
        make_model(inside())
    outside = NormalizeReward(frozen(NormalizeObservation(Corridor())))
    with pytest.raises(ValueError, match="NormalizeReward is not supported"):
        make_model(outside)
    with pytest.raises(ValueError, match="NormalizeObservation is not supported"):
        make_model(DummyVecEnv([Corridor, lambda: NormalizeObservation(Corridor())]))


@pytest.mark.parametrize("vector_class", [SyncVectorEnv, AsyncVectorEnv])
def test_a_normalization_inside_a_vector_environment_of_gymnasium_is_refused(vector_class):
    def made(*makers):
        return GymnasiumVecEnv(vector_class(makers, autoreset_mode=AutoresetMode.SAME_STEP))

    def running():
        return NormalizeObservation(Corridor())

    def plain():
        floats = spaces.Box(-np.inf, np.inf, SPACE.shape, np.float32)
        return TransformObservation(Corridor(), np.float32, floats)

    for makers in ((running, running), (plain, running)):
        worlds = made(*makers)
        message = "is not supported: what it makes of an observation"
        if vector_class is AsyncVectorEnv and plain in makers:
            message = "all environments or none must have update_running_mean"
        with pytest.raises(ValueError, match=message):
            make_model(worlds)
        worlds.close()
    still = made(lambda: frozen(running()))
    assert make_model(still).observation_space["observation"].shape == (6,)
    still.close()


def test_a_normalization_around_a_vector_environment_of_gymnasium_is_refused():
    corridors = SyncVectorEnv([Corridor], autoreset_mode=AutoresetMode.SAME_STEP)
    with pytest.raises(ValueError, match="NormalizeReward is not supported"):
        make_model(GymnasiumVecEnv(NormalizeRewards(corridors)))


def test_a_normalization_in_another_process_is_refused():
    normalized = SubprocVecEnv([lambda: NormalizeObservation(Corridor())])
    with pytest.raises(ValueError, match="NormalizeObservation is not supported"):
        make_model(normalized)
    normalized.close()


def test_misspelled_arguments_of_states_are_a_type_error_at_once():
    with pytest.raises(TypeError, match=r"state_kwargs: .* unexpected keyword argument 'nupdates'"):
        make_model(state_kwargs={"nupdates": 3})


def test_a_size_that_loading_has_changed_is_checked(tmp_path):
    make_model().save(tmp_path / "model")
    with pytest.raises(ValueError, match="batch_size must be a whole number, at least 1, got -3"):
        ManyGoalsDQN.load(tmp_path / "model", batch_size=-3)


def test_learning_where_nothing_becomes_a_goal_is_a_warning():
    """This wrapper is for acting. It is easily left around the environment."""
    model = make_model().learn(60)
    acting = GoalBufferWrapper(Corridor(length=6), model.goal_buffer, training=False)
    model.set_env(acting)
    with pytest.warns(UserWarning, match="has training=False, so nothing that is met becomes"):
        model.learn(60, reset_num_timesteps=False)


def test_goals_of_a_list_that_are_never_achieved_are_a_warning():
    goals = {"goal": lambda cell: int(cell[0]), "goal_list": [[7], [8]]}
    with pytest.warns(UserWarning, match=r"2 of 2 goals in goal_list .* first is \[7\]"):
        make_model(goal_wrapper_kwargs=goals).learn(60)
    with pytest.warns(UserWarning, match=r"1 of 2 goals in goal_list .* first is \[7\]"):
        make_model(goal_wrapper_kwargs={**goals, "goal_list": [[1], [7]]}).learn(60)
    make_model(goal_wrapper_kwargs={**goals, "goal_list": [[0], [1]]}).learn(60)


def test_few_updates_do_not_make_training_longer():
    model = make_model(make_vec_env(Corridor, 3), updates_per_step=1e-4).learn(100)
    assert model.num_timesteps == 102
    assert model.learn(50, reset_num_timesteps=False).num_timesteps == 153
    assert ManyGoalsDQN("MlpPolicy", make_vec_env(Corridor, 8)).learn(103).num_timesteps == 104
    # What the user says in SB3's words is done as SB3 does it.
    assert make_model(train_freq=150, gradient_steps=1).learn(100).num_timesteps == 150


@pytest.mark.parametrize("target_class", [None, TDTargets])
def test_short_trainings_have_as_many_updates_as_a_long_one(target_class):
    settings = {"updates_per_step": 5e-3, "target_class": target_class}
    longer = make_model(make_vec_env(Corridor, 2), **settings).learn(800)
    assert longer._n_updates == 4
    shorter = make_model(make_vec_env(Corridor, 2), **settings)
    expected = "in rollouts of 200, .* ends after 50: nothing is learned"
    with pytest.warns(UserWarning, match=expected):
        shorter.learn(50)
    for _ in range(15):
        shorter.learn(50, reset_num_timesteps=False)
    assert shorter.num_timesteps == 800
    assert shorter._n_updates == 4
    # Updates that waited are made at the end, also if the last rollout is cut short.
    assert make_model(make_vec_env(Corridor, 2), **settings).learn(500)._n_updates == 2


@pytest.mark.parametrize("raises", [True, False])
@pytest.mark.parametrize("end", [150, 198, 200, 202])
def test_steps_before_an_interruption_count_for_the_next_update(end, raises, tmp_path):
    def interrupt(local, _):
        if local["self"].num_timesteps < end:
            return True
        local["self"].save(tmp_path / "interrupted")
        if raises:
            raise KeyboardInterrupt
        return False

    settings = {"updates_per_step": 5e-3, "target_class": TDTargets}
    model = make_model(make_vec_env(Corridor, 2), **settings)
    with pytest.raises(KeyboardInterrupt) if raises else nullcontext():
        model.learn(800, callback=interrupt)
    assert model.num_timesteps == end
    loaded = ManyGoalsDQN.load(tmp_path / "interrupted", make_vec_env(Corridor, 2))
    model.save_replay_buffer(tmp_path / "replay")
    loaded.load_replay_buffer(tmp_path / "replay")
    for one in (model, loaded):
        one.learn(800 - end, reset_num_timesteps=False)
        assert (one.num_timesteps, one._n_updates) == (800, 4)
    # Steps that wait still count if steps are counted from 0 again.
    assert model.learn(150)._n_updates == 4
    assert model.learn(52)._n_updates == 5


def test_a_reset_that_fails_before_training_does_not_stop_updates():
    class Failing(Corridor):
        fails = False

        def reset(self, **kwargs):
            if self.fails:
                raise KeyboardInterrupt
            return super().reset(**kwargs)

    world = Failing()
    model = make_model(world, updates_per_step=5e-3, target_class=TDTargets).learn(600)
    world.fails = True
    with pytest.raises(KeyboardInterrupt):
        model.learn(600)
    world.fails = False
    n_updates = model._n_updates
    model.learn(600)
    assert model._n_updates == n_updates + 3
    model.num_timesteps = 0
    assert model.learn(600, reset_num_timesteps=False)._n_updates == n_updates + 6


def test_the_last_step_of_all_environments_counts_before_a_warning(recwarn):
    model = make_model(make_vec_env(Corridor, 3), updates_per_step=5e-3, target_class=TDTargets)
    model.learn(200)
    assert (model.num_timesteps, model._n_updates) == (201, 1)
    assert [str(one.message) for one in recwarn if "nothing is learned" in str(one.message)] == []


def test_numbers_of_numpy_are_numbers():
    """Settings are often drawn by NumPy."""
    targets = {"target_class": PlannedTargets, "target_kwargs": {"exploring_episodes": np.int64(1)}}
    model = make_model(learning_rate=np.float32(0.5), seed=np.int64(3), **targets)
    assert model.lr_schedule(0.0) == 0.5
    assert (model.seed, type(model.seed)) == (3, int)
    assert model.targets.exploring_episodes(0.0) == 1.0


def test_a_gamma_of_0_is_learned_where_values_are_bootstrapped():
    model = make_model(gamma=0, target_class=TDTargets)
    before = parameters(model).clone()
    after = parameters(model.learn(60))
    assert math.isfinite(after.sum())
    assert not before.equal(after)


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
        EpisodeBuffer(world().observation_space)
    ways = str(caught.value).partition("is one such array: ")[2].split("; or ")
    assert ways
    for way in ways:
        code = way[way.index("gymnasium" if "gymnasium" in way else "minigrid") :]
        exec(f"import {code.partition('.')[0]}.wrappers")
        names = {"gymnasium": gym, "minigrid": __import__("minigrid.wrappers"), "env": world()}
        made = eval(code, names)
        make_model(made, "MlpPolicy", learning_starts=5).learn(10)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_floats_that_are_not_finite_are_refused(wrong):
    world = Shown(spaces.Box(-1.0, 1.0, (2,), np.float32))
    model = make_model(world, learning_starts=50, updates_per_step=1.0).learn(50)
    goal = np.zeros(2, np.float32)
    spoiled = np.array([[0.0, 0.0], [0.0, wrong]], np.float32)
    pairs = {"observation": spoiled, "desired_goal": np.stack([goal, goal])}
    expected = re.escape(f"observation must be finite, observation[1, 1] is {wrong}")
    with pytest.raises(ValueError, match=expected):
        model.predict(pairs)
    with pytest.raises(ValueError, match="desired_goal must be finite"):
        model.predict({"observation": pairs["desired_goal"], "desired_goal": spoiled})
    with pytest.raises(ValueError, match=expected):
        model.goal_policy().predict(pairs)
    with pytest.raises(ValueError, match=expected):
        model.task_policy(np.ones(52)).predict(spoiled)
