"""Tests of the reward predictor."""

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from torch import nn

from sb3_manygoals import GoalBufferWrapper, ManyGoalsDQN
from sb3_manygoals.errors import EnvironmentFault
from sb3_manygoals.pretraining import RewardPredictor
from tests.sb3_manygoals.auxiliary.story import stories
from tests.sb3_manygoals.worlds import Corridor, numbered_from_one


class Signs(Corridor):
    """A corridor in which the cell before the step gives the reward: -3, 0 or 2."""

    def step(self, action):
        reward = (-3.0, 0.0, 0.0, 2.0, 2.0, -3.0)[self.cell]
        observation, _, terminated, truncated, info = super().step(action)
        return observation, reward, terminated, truncated, info


class FromOne(Signs):
    """A corridor whose cells are numbered from 1."""

    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Discrete(6, start=1)


def make(env=None, **kwargs):
    """Make a predictor of rewards, of a corridor if no environment is given."""
    defaults = {
        "buffer_size": 200,
        "learning_starts": 50,
        "batch_size": 20,
        "seed": 3,
        "device": "cpu",
    }
    return RewardPredictor("MlpPolicy", Signs() if env is None else env, **defaults | kwargs)


def test_signs_of_rewards_are_learned_from_the_observation_before():
    model = make(buffer_size=800, learning_rate=0.01, policy_kwargs={"net_arch": [32]}).learn(800)
    cells = th.as_tensor(np.eye(6, dtype=np.uint8))
    with th.no_grad():
        kinds = model.policy(cells).argmax(dim=1)
    # 0 is zero, 1 is positive, 2 is negative.
    assert kinds.tolist() == [2, 0, 0, 1, 1, 2]


@pytest.mark.parametrize("wrap", [lambda env: env, VecNormalize])
def test_an_update_descends_the_cross_entropy_of_the_batch(wrap):
    """Compare a step of the optimizer with one computed here."""
    kwargs = {
        "policy_kwargs": {"net_arch": [5], "optimizer_class": th.optim.SGD},
        "learning_rate": 0.1,
    }
    model, other = (make(wrap(make_vec_env(Signs, seed=3)), **kwargs) for _ in range(2))
    model.learn(50, log_interval=None)
    other.policy.load_state_dict(model.policy.state_dict())
    # SB3 samples with NumPy's global generator.
    np.random.seed(7)  # noqa: NPY002
    batch = model.replay_buffer.sample(20, env=model.get_vec_normalize_env())
    np.random.seed(7)  # noqa: NPY002
    model.train(1, 20)
    logits = other.policy.head(other.policy.trunk(batch.observations))
    log_probabilities = nn.functional.log_softmax(logits, dim=1)
    kinds = [{0.0: 0, 1.0: 1, -1.0: 2}[sign] for sign in batch.rewards[:, 0].sign().tolist()]
    assert len(set(kinds)) == 3
    loss = -sum(log_probabilities[row, kind] for row, kind in enumerate(kinds)) / 20
    loss.backward()
    for ours, theirs in zip(model.policy.parameters(), other.policy.parameters(), strict=True):
        th.testing.assert_close(ours, theirs - 0.1 * theirs.grad)


def test_a_schedule_does_not_go_below_0():
    """The last episode may be longer than training."""
    rates = []
    model = make(
        gym.wrappers.TimeLimit(Signs(), 40),
        learning_rate=lambda progress: 1e-3 * progress,
        train_freq=(1, "episode"),
    )
    step = model.policy.optimizer.step

    def note():
        rates.append(model.policy.optimizer.param_groups[0]["lr"])
        step()

    model.policy.optimizer.step = note
    model.learn(90)
    assert model.num_timesteps == 120
    assert rates[-1] == 0.0
    assert min(rates) == 0.0


def test_actions_stay_random_after_learning():
    taken = []
    for rate in (0.0, 0.1):
        model = make(buffer_size=300, learning_rate=rate, train_freq=3).learn(300)
        taken.append(model.replay_buffer.actions.reshape(-1).copy())
    np.testing.assert_array_equal(*taken)
    # Of each action 100 are expected, with a standard deviation of 8.
    assert (np.bincount(taken[0]) > 70).all()
    assert set(model.predict(np.eye(6, dtype=np.uint8))[0].tolist()) <= {0, 1, 2}


def test_the_defaults_are_the_papers():
    model = RewardPredictor("MlpPolicy", Signs(), device="cpu")
    assert model.batch_size == 80
    assert model.buffer_size == 10_000
    assert model.learning_rate == 7e-4
    assert model.train_freq.frequency == 1
    assert model.gradient_steps == 1
    assert isinstance(model.policy.optimizer, RMSpropTFLike)


def test_channels_that_sb3_has_moved_are_not_moved_again():
    model = RewardPredictor("CnnPolicy", Corridor(length=4, image=True), device="cpu")
    assert model.policy.trunk[0].space.shape == model.observation_space.shape == (3, 4, 4)


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ([1.0], "environment 0 gave a reward .*one number is needed"),
        (np.nan, "environment 0 gave a reward that is not finite: nan"),
        (None, "environment 0 gave a reward that is not finite: nan"),
    ],
)
def test_a_reward_that_is_not_a_number_does_not_count_as_zero(reward, message):
    class Paying(Corridor):
        def step(self, action):
            observation, _, *others = super().step(action)
            return observation, reward, *others

    with pytest.raises(EnvironmentFault, match=message):
        make(DummyVecEnv([Paying])).learn(60)


def test_a_reward_predictor_is_saved_and_loaded(tmp_path):
    # Channels are last, and SB3 moves them.
    env = stories(2, 4)
    model = RewardPredictor(
        "CnnPolicy", env, learning_starts=20, buffer_size=50, n_stack=4, seed=1, device="cpu"
    )
    model.learn(60).save(tmp_path / "model")
    loaded = RewardPredictor.load(tmp_path / "model", env, device="cpu")
    for ours, theirs in zip(model.policy.parameters(), loaded.policy.parameters(), strict=True):
        assert th.equal(ours, theirs)
    loaded.learn(20)


@pytest.mark.parametrize(
    ("env", "kwargs", "error", "message"),
    [
        (
            Signs,
            {"buffer_size": 0},
            ValueError,
            "buffer_size must be a whole number, at least 1, got 0",
        ),
        (
            Signs,
            {"batch_size": 0},
            ValueError,
            "batch_size must be a whole number, at least 1, got 0",
        ),
        (
            Signs,
            {"learning_starts": -1.5},
            ValueError,
            "learning_starts must be a whole number, at least 0, got -1.5",
        ),
        (Signs, {"seed": -1}, ValueError, "seed must be a whole number, at least 0, got -1"),
        (lambda: make_vec_env(Signs, 2), {"buffer_size": 10**15}, MemoryError, "replay frames"),
        (lambda: None, {}, ValueError, "env is needed to build a model"),
        (lambda: gym.make("Pendulum-v1"), {}, AssertionError, "Discrete"),
        (
            lambda: numbered_from_one(Signs()),
            {},
            TypeError,
            r"starts at 0 is needed, got Discrete\(3, start=1\)",
        ),
        (
            lambda: GoalBufferWrapper(Signs()),
            {},
            TypeError,
            "cannot be treated as a space of goals",
        ),
        (FromOne, {}, TypeError, "cannot be treated as a space of goals: .*start"),
    ],
)
def test_bad_input_is_refused(env, kwargs, error, message):
    with pytest.raises(error, match=message):
        RewardPredictor("MlpPolicy", env(), **kwargs)


def test_loading_another_kind_of_replay_memory_is_refused_and_changes_nothing(tmp_path):
    model = RewardPredictor("MlpPolicy", Corridor(), learning_starts=10).learn(20)
    model.save_replay_buffer(tmp_path / "own")
    goals = ManyGoalsDQN("MlpPolicy", Corridor(), learning_starts=10).learn(20)
    goals.save_replay_buffer(tmp_path / "goals")
    learner = DQN("MlpPolicy", Corridor(), learning_starts=10).learn(20)
    learner.save_replay_buffer(tmp_path / "sb3")
    longer = RewardPredictor("MlpPolicy", Corridor(8), learning_starts=10).learn(20)
    longer.save_replay_buffer(tmp_path / "longer")
    before = model.replay_buffer
    for name in ("goals", "sb3"):
        with pytest.raises(ValueError, match="must have a FrameReplayBuffer"):
            model.load_replay_buffer(tmp_path / name)
    with pytest.raises(ValueError, match="the replay memory is of"):
        model.load_replay_buffer(tmp_path / "longer")
    assert model.replay_buffer is before
    model.load_replay_buffer(tmp_path / "own")
    assert model.replay_buffer.size() == 20
    model.learn(20, reset_num_timesteps=False)
