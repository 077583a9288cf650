"""Going on from a checkpoint is as if training had never stopped."""

import contextlib
import functools
import types

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from sb3_contrib import RecurrentPPO
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.vec_env import DummyVecEnv, VecTransposeImage

import gym_twoRooms  # noqa: F401
from sb3_manygoals import (
    ExactCheckpointCallback,
    GymnasiumVecEnv,
    ManyGoalsDQN,
    MasteryCallback,
    TabularAllGoals,
)
from sb3_manygoals.auxiliary import (
    EpisodeBuffer,
    ManyGoalsCallback,
    PixelControlCallback,
    RewardPredictionCallback,
)
from sb3_manygoals.auxiliary.policies import AuxiliaryActorCriticPolicy
from sb3_manygoals.checkpoint import CheckpointError
from sb3_manygoals.goals import GoalBufferWrapper, LearningProgressSelector
from sb3_manygoals.many_goals_dqn import (
    ManyGoalsReplayBuffer,
    PlannedTargets,
    TDTargets,
    planning,
)
from sb3_manygoals.networks import PaddedCNN
from tests.sb3_manygoals.auxiliary.story import stories
from tests.sb3_manygoals.checkpoint.resuming import Stop, assert_the_end_is_the_same
from tests.sb3_manygoals.pretraining import test_end_to_end as pretraining
from tests.sb3_manygoals.worlds import (
    Corridor,
    Dusty,
    NumberedCorridor,
    cart_poles,
    cell_of,
    pair_of,
)

SMALL = "TwoRoomsSwitchSmall-v0"


def native(n_envs):
    """
    Make worlds of two rooms that step together.

    :param n_envs: number of environments
    :return: a vector environment of SB3
    """
    return GymnasiumVecEnv(gym.make_vec(SMALL, num_envs=n_envs, autoreset_mode="Disabled"))


TINY = {"net_arch": [16], "embedding_dim": 8}
TD = {"target_update_interval": 20}
PAPERS = {
    "head": "bilinear",
    "ema_decay": 0.0,
    "standardize": False,
    "optimizer_class": RMSpropTFLike,
}
CNN = {**TINY, "features_extractor_class": PaddedCNN}
SGD = {"optimizer_class": th.optim.SGD, "optimizer_kwargs": {}}
BUILDS = {
    "one environment": lambda: (
        "CnnPolicy",
        gym.make(SMALL),
        {**TD, "policy_kwargs": {**TINY, **PAPERS}},
    ),
    "several": lambda: ("CnnPolicy", make_vec_env(SMALL, 3, seed=4), UNIFORM),
    "native, masks": lambda: ("CnnPolicy", native(4), MASKED),
    "vectors": lambda: (
        "MlpPolicy",
        cart_poles(),
        {**TD, "target_kwargs": {"goal_sampling": "behavior"}},
    ),
    "planned": lambda: ("CnnPolicy", gym.make(SMALL), PLANNED),
    "several, planned": lambda: (
        "CnnPolicy",
        make_vec_env(SMALL, 2, seed=2),
        {**PLANNED, "updates_per_step": 1.5},
    ),
    "planned, masks, worlds go on": lambda: ("CnnPolicy", native(3), GOING_ON),
    "chosen": lambda: (
        "MlpPolicy",
        Corridor(9, start=0),
        {"target_class": None, "target_kwargs": None},
    ),
    "chosen, never recurring": lambda: (
        "MlpPolicy",
        "CartPole-v1",
        {"target_class": None, "target_kwargs": None},
    ),
    "learning progress": lambda: (
        "MlpPolicy",
        Corridor(),
        {"goal_wrapper_kwargs": {"selector_class": LearningProgressSelector}},
    ),
    "updates as in SB3": lambda: ("MlpPolicy", Corridor(), AS_IN_SB3),
    "planned, half explore": lambda: ("MlpPolicy", Corridor(9), HALF_EXPLORE),
    "keys": lambda: ("MlpPolicy", Dusty(), {**PLANNED, "goal_wrapper_kwargs": KEYS}),
    "keys and goals": lambda: (
        "MlpPolicy",
        DummyVecEnv([Dusty] * 2),
        {**PLANNED, "goal_wrapper_kwargs": {**KEYS, **PAIRS}},
    ),
    "keys and goals at a distance, a target network": lambda: (
        "MlpPolicy",
        DummyVecEnv([Dusty] * 2),
        {**TD, "goal_wrapper_kwargs": {**KEYS, **PAIRS, "reached": 1}},
    ),
    "goals of pictures": lambda: (
        "CnnPolicy",
        gym.make(SMALL),
        {**PLANNED, "goal_wrapper_kwargs": {**SHORT, "goal": brightest, "reached": near}},
    ),
    "own targets, own memory": lambda: (
        "MlpPolicy",
        Corridor(),
        {"target_class": NoisyTargets, "replay_buffer_class": CountingMemory},
    ),
    "wrapped": lambda: (
        "CnnPolicy",
        GoalBufferWrapper(gym.make(SMALL), max_episode_steps=7),
        {"updates_per_step": 0.4},
    ),
}
UNIFORM = {**TD, "tau": 0.1, "target_kwargs": {"goal_sampling": "uniform"}, "policy_kwargs": CNN}
MASKED = {**TD, "action_masks": True, "learning_rate": lambda progress: 1e-3 * progress}
AS_IN_SB3 = {
    **TD,
    "updates_per_step": None,
    "train_freq": (1, "episode"),
    "gradient_steps": -1,
    "max_grad_norm": 0.5,
}


SHORT = {"max_episode_steps": 9}
KEYS = {**SHORT, "state_key": cell_of}
PAIRS = {"goal": pair_of, "goal_space": spaces.Discrete(3)}


def brightest(picture):
    """
    Return where a picture is reddest.

    :param picture: of shape (H, W, 3)
    :return: two integers
    """
    reds = picture[..., 0].astype(int) - picture[..., 1]
    return np.unravel_index(reds.argmax(), reds.shape)


def near(achieved, desired):
    """
    Return which places are at most a step apart.

    :param achieved: places, shape (n, 2)
    :param desired: other places, the same shape
    :return: booleans, shape (n,)
    """
    return np.abs(achieved - desired).sum(axis=1) <= 1


class ManyPlans(PlannedTargets):
    """Targets that plan often."""

    growth = 1.2


class NoisyTargets(TDTargets):
    """Targets with noise that grows, from a generator of their own."""

    def __init__(self, context):
        super().__init__(context)
        self.noise = np.random.default_rng(5)
        self.scale = th.tensor(1e-3)

    def target_values(self, batch):
        return super().target_values(batch) + self.scale * self.noise.random()

    def after_update(self):
        super().after_update()
        self.scale = self.scale * 1.01


class CountingMemory(ManyGoalsReplayBuffer):
    """A replay memory that counts what was added."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.n_added = 0

    def add(self, *args, **kwargs):
        super().add(*args, **kwargs)
        self.n_added += 1


def half(progress_remaining):
    """
    Let half of the episodes explore.

    :param progress_remaining: share of training that is left
    :return: the share of episodes that explore
    """
    return 0.5


PLANNED = {"target_class": ManyPlans, "target_kwargs": {"max_plan_bytes": 20_000}}
HALF_EXPLORE = {"target_class": ManyPlans, "target_kwargs": {"exploring_episodes": half}}
GOING_ON = {
    **PLANNED,
    "action_masks": True,
    "goal_wrapper_kwargs": {"max_episode_steps": 9, "reset_worlds": False},
}


def build(name, targets=None, **kwargs):
    """
    Build a model.

    :param name: of the kind of model, one of ``BUILDS``
    :param targets: further arguments of its targets; default: None, no further ones
    :param kwargs: further arguments of the model
    :return: the model
    """
    policy, env, settings = BUILDS[name]()
    defaults = {
        "learning_starts": 60,
        "buffer_size": 150,
        "batch_size": 8,
        "goal_batch_size": 4,
        "updates_per_step": 1.0,
    }
    defaults |= {
        "target_class": TDTargets,
        "target_kwargs": {},
        "policy_kwargs": TINY,
        "seed": 3,
        "device": "cpu",
    }
    if name != "wrapped":
        defaults["goal_wrapper_kwargs"] = {"max_episode_steps": 9}
    settings = defaults | settings | kwargs
    if targets:
        settings["target_kwargs"] = {**settings["target_kwargs"], **targets}
    return ManyGoalsDQN(policy, settings.pop("env", env), **settings)


def three_tasks():
    """Return A2C and the callbacks of three auxiliary tasks, which share a buffer."""
    policy = {
        "embedding_dim": 8,
        "crop": 20,
        "cell": 10,
        "tasks": ("many_goals", "pixel_control", "reward_prediction"),
    }
    model = A2C(
        AuxiliaryActorCriticPolicy,
        stories(2, 2, limit=9, lives=True),
        learning_rate=lambda progress: 1e-3 * progress,
        policy_kwargs=policy,
        seed=2,
        device="cpu",
    )
    episodes = EpisodeBuffer(model.observation_space, capacity=4, n_stack=2)
    return model, {
        "many goals": ManyGoalsCallback(batch_size=10, episodes=episodes),
        "pixels": PixelControlCallback(batch_size=6, n_steps=3, episodes=episodes),
        "rewards": RewardPredictionCallback(batch_size=6, episodes=episodes),
    }


def many_goals_of_vectors():
    """Return A2C in worlds of vectors, and the callback of many goals."""
    model = A2C(
        AuxiliaryActorCriticPolicy,
        cart_poles(),
        policy_kwargs={"embedding_dim": 8},
        seed=2,
        device="cpu",
    )
    return model, {"many goals": ManyGoalsCallback(batch_size=10, target_update_interval=7)}


LEARNERS = {
    **{name: lambda name=name: (build(name), {}) for name in BUILDS},
    # Pictures that SB3 transposed lie in memory with channels last. The last bits of convolutions
    # depend on that.
    "A2C": lambda: (A2C("CnnPolicy", stories(limit=9), seed=2, device="cpu"), {}),
    "PPO": lambda: (
        PPO("MlpPolicy", cart_poles(), n_steps=16, batch_size=8, seed=2, device="cpu"),
        {},
    ),
    "A2C, many goals": many_goals_of_vectors,
    "A2C, three tasks": three_tasks,
    "table": lambda: (
        TabularAllGoals(
            "TablePolicy", DummyVecEnv([NumberedCorridor] * 2), exploration_fraction=0.5, seed=0
        ),
        {},
    ),
    "pre-training": lambda: (
        pretraining.many_goals(VecTransposeImage(stories(2, 4, 9)), 4, exploration_fraction=0.5),
        {},
    ),
    "pre-training, rewards": lambda: (pretraining.reward_predictor(stories(2, 4, 9), 4), {}),
}


@pytest.mark.usefixtures("no_sync")
@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.filterwarnings(
    "ignore:the last plan knows a way", "ignore:.* goals fit into max_plan_bytes"
)
def test_the_end_is_the_same(name, tmp_path, monkeypatch):
    # Plans do not converge, so each depends on the values of the last one.
    monkeypatch.setattr(planning, "_MOST_SWEEPS", 6)
    # Every second learner is stopped early, and the others late.
    is_late = list(LEARNERS).index(name) % 2
    short = {"stops": ((35,), (81,))[is_late], "steps": 110, "every_steps": 20}
    long = {"stops": ((75,), (185,))[is_late]}
    end, extras = assert_the_end_is_the_same(
        LEARNERS[name], tmp_path / "runs", **(long if name in BUILDS else short)
    )
    for callback in extras.values():
        assert callback.n_updates > 5
    added = {
        key: {*part} for key, part in end["learner"].items() if key.startswith("added_to_") and part
    }
    # Only subclasses add attributes.
    expected = {"added_to_targets": {"noise", "scale"}, "added_to_replay_buffer": {"n_added"}}
    assert added == (expected if name == "own targets, own memory" else {})
    saved = [
        extra["episodes"]["episodes"]
        for extra in end["extras"].values()
        if extra["episodes"] is not None
    ]
    # A buffer that callbacks share is saved once.
    assert [len(episodes) > 2 for episodes in saved] == ([True] if extras else [])


def test_what_was_measured_goes_on_too(tmp_path):
    def learn(folder, stop=None):
        """Train, or go on, and return what was measured in this part of training."""
        model = build("several")
        points = []
        env = gym.make_vec(SMALL, num_envs=6)
        mastery = MasteryCallback(
            env, env.unwrapped.mdp.observations[:6], 100, 20, on_measure=points.append
        )
        callback = ExactCheckpointCallback(
            tmp_path / folder, every_steps=50, extras={"mastery": mastery}
        )
        resumed = callback.resume(model)
        with contextlib.suppress(KeyboardInterrupt):
            callbacks = [mastery, callback, *([Stop(stop)] if stop else [])]
            model.learn(300 - model.num_timesteps, callbacks, reset_num_timesteps=not resumed)
        return [(point.step, point.greedy.rate, point.epsilon.rate) for point in points]

    whole = learn("whole")
    assert [step for step, *_ in whole] == [0, 102, 201, 300]
    assert learn("stopped", 180) == whole[:2]
    assert learn("stopped") == whole[2:]


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    root = tmp_path_factory.mktemp("several")
    build("several").learn(70, ExactCheckpointCallback(root))
    return root


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("several", {"gamma": 0.9}, "a learner with gamma 0.99, got 0.9"),
        ("several", {"tau": 0.2}, "a learner with tau 0.1, got 0.2"),
        (
            "several",
            {"target_update_interval": 30},
            "a learner with target_update_interval 20, got 30",
        ),
        (
            "several",
            {"targets": {"goal_sampling": "segments"}},
            r"target_kwargs\['goal_sampling'\] uniform, got segments",
        ),
        (
            "several",
            {"targets": {"initial_value": -1.0}},
            r"target_kwargs\['initial_value'\] None, got -1.0",
        ),
        (
            "several",
            {"target_class": None, "target_kwargs": None},
            "target_class TDTargets, got None",
        ),
        ("several", {"buffer_size": 180}, "a replay memory with buffer_size=50, not 60"),
        (
            "several",
            {"policy_kwargs": CNN | {"embedding_dim": 9}},
            r"weights .*, shape \[.*\], got \[.*\]",
        ),
        ("several", {"policy_kwargs": CNN | SGD}, "optimizer Adam, got SGD"),
        ("one environment", {"policy_kwargs": CNN}, "number of environments 3, got 1"),
        ("vectors", {}, "observation space"),
    ],
)
def test_another_model_is_refused(name, kwargs, message, several):
    other = build(name, **kwargs)
    before = {key: value.clone() for key, value in other.policy.state_dict().items()}
    with pytest.raises(CheckpointError, match=message):
        ExactCheckpointCallback(several).resume(other)
    # The weights are restored before the replay memory is.
    if "replay" not in message:
        after = other.policy.state_dict()
        assert all(th.equal(after[key], value) for key, value in before.items())


def elsewhere(function):
    """
    Copy a function, so that it is at another place in memory, as in another process.

    :param function: the function
    :return: one with the same module and name
    """
    copied = types.FunctionType(function.__code__, function.__globals__, function.__name__)
    assert copied is not function
    return copied


@pytest.mark.parametrize("make", [lambda one: one, functools.partial])
def test_functions_given_to_targets_are_compared_by_module_and_name(make, tmp_path):
    def built(function):
        explores = {"exploring_episodes": make(function)}
        return build("planned, half explore", target_kwargs=explores)

    def other(progress_remaining):
        return 0.5

    first = built(half).learn(70, ExactCheckpointCallback(tmp_path))
    again = built(elsewhere(half))
    assert ExactCheckpointCallback(tmp_path).resume(again)
    assert again.num_timesteps == first.num_timesteps
    message = r"a learner with target_kwargs\['exploring_episodes'\] .*half.*, got .*other"
    with pytest.raises(CheckpointError, match=message):
        ExactCheckpointCallback(tmp_path).resume(built(other))


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"state_key": pair_of}, "state_key"),
        ({"goal": cell_of}, "goal"),
        ({"reached": 1}, "reached"),
        ({"goal": lambda seen: int(seen[0]) // 2}, "goal"),
        ({"goal": functools.partial(pair_of)}, "goal"),
    ],
)
def test_states_and_goals_by_other_functions_are_refused(changed, name, tmp_path):
    build("keys and goals").learn(70, ExactCheckpointCallback(tmp_path))
    settings = {**KEYS, **PAIRS}
    same = {**settings, "state_key": elsewhere(cell_of), "goal": elsewhere(pair_of)}
    assert ExactCheckpointCallback(tmp_path).resume(
        build("keys and goals", goal_wrapper_kwargs=same)
    )
    other = build("keys and goals", goal_wrapper_kwargs={**settings, **changed})
    with pytest.raises(CheckpointError, match=rf"{name}"):
        ExactCheckpointCallback(tmp_path).resume(other)


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"every_steps": 0}, ValueError, r"every_steps must be a number in \(0, inf\], got 0"),
        ({"every_seconds": -1.0}, ValueError, "every_seconds must be a number in"),
        ({"keep": 0}, ValueError, "keep must be a whole number, at least 1, got 0"),
        ({"keep": 1.5}, ValueError, "keep must be a whole number, at least 1, got 1.5"),
        ({"extras": {"log": 3}}, TypeError, r"extras\['log'\] must have get_checkpoint_state"),
        ({}, TypeError, "model must have get_checkpoint_state and set_checkpoint_state, got DQN"),
    ],
)
def test_bad_arguments_are_refused(kwargs, error, message, tmp_path):
    with pytest.raises(error, match=message):
        DQN("MlpPolicy", "CartPole-v1").learn(2, ExactCheckpointCallback(tmp_path, **kwargs))


@pytest.mark.parametrize(
    "build", [lambda *a: A2C(*a, use_sde=True), lambda _, env: RecurrentPPO("MlpLstmPolicy", env)]
)
def test_what_cannot_be_saved_is_refused(build, tmp_path):
    model = build("MlpPolicy", "Pendulum-v1")
    with pytest.raises(
        CheckpointError,
        match="neither the noise of use_sde nor the LSTM states of RecurrentPPO can be saved",
    ):
        model.learn(10, ExactCheckpointCallback(tmp_path))
    assert model.num_timesteps == 0


def test_where_no_folder_can_be_made_training_does_not_begin(tmp_path):
    (tmp_path / "file").write_text("no folder")
    model = build("one environment")
    with pytest.raises(OSError, match="file"):
        model.learn(100, ExactCheckpointCallback(tmp_path / "file", every_steps=30))
    assert model.num_timesteps == 0
