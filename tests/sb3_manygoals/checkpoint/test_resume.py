"""Going on from a checkpoint is as if training had never stopped."""

import contextlib
import csv

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import CSVOutputFormat, Logger
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike

import gym_twoRooms  # noqa: F401
from sb3_manygoals import ExactCheckpointCallback, GoalBufferWrapper, GymnasiumVecEnv, ManyGoalsDQN, MasteryCallback
from sb3_manygoals.checkpoint import CheckpointError, checkpoints, read_checkpoint
from sb3_manygoals.many_goals_dqn import PlannedTargets, TDTargets
from sb3_manygoals.networks import PaddedCNN
from tests.sb3_manygoals.checkpoint.trees import TIMES, assert_same
from tests.sb3_manygoals.worlds import Corridor

SMALL = "TwoRoomsSwitchSmall-v0"


def native(n_envs):
    return GymnasiumVecEnv(gym.make_vec(SMALL, num_envs=n_envs, autoreset_mode="Disabled"))


TINY = {"net_arch": [16], "embedding_dim": 8}
TD = {"update_interval": 20}
PAPERS = {"head": "bilinear", "ema_decay": 0.0, "standardize": False, "optimizer_class": RMSpropTFLike}
CNN = {**TINY, "features_extractor_class": PaddedCNN}
SGD = {"optimizer_class": th.optim.SGD, "optimizer_kwargs": {}}
BUILDS = {
    "one environment": lambda: ("CnnPolicy", gym.make(SMALL), {"target_kwargs": TD, "policy_kwargs": {**TINY, **PAPERS}}),
    "several": lambda: (
        "CnnPolicy",
        make_vec_env(SMALL, 3, seed=4),
        {"target_kwargs": {**TD, "goal_sampling": "uniform", "tau": 0.1}, "policy_kwargs": CNN},
    ),
    "native, masks": lambda: (
        "CnnPolicy",
        native(4),
        {"action_masks": True, "target_kwargs": TD, "learning_rate": lambda p: 1e-3 * p},
    ),
    "vectors": lambda: (
        "MlpPolicy",
        make_vec_env("CartPole-v1", 2, seed=1),
        {"target_kwargs": {**TD, "goal_sampling": "behavior"}, "updates_per_step": 1.0},
    ),
    "planned": lambda: ("CnnPolicy", gym.make(SMALL), PLANNED),
    "several, planned": lambda: ("CnnPolicy", make_vec_env(SMALL, 2, seed=2), {**PLANNED, "updates_per_step": 1.5}),
    "planned, masks, worlds go on": lambda: (
        "CnnPolicy",
        native(3),
        {**PLANNED, "action_masks": True, "goal_wrapper_kwargs": {"max_episode_steps": 9, "reset_worlds": False}},
    ),
    "chosen": lambda: ("MlpPolicy", Corridor(9, start=0), {"target_class": None, "target_kwargs": None}),
    "chosen, never recurring": lambda: ("MlpPolicy", "CartPole-v1", {"target_class": None, "target_kwargs": None}),
    "wrapped": lambda: ("CnnPolicy", GoalBufferWrapper(gym.make(SMALL), max_episode_steps=7), {"updates_per_step": 0.4}),
}
PLANNED = {"target_class": PlannedTargets, "target_kwargs": {"sweeps": 6, "max_plan_bytes": 20_000, "growth": 1.2}}


def build(name, targets=None, **kwargs):
    """:param targets: further arguments of its targets"""
    policy, env, settings = BUILDS[name]()
    defaults = {"learning_starts": 60, "buffer_size": 150, "batch_size": 8, "goal_batch_size": 4, "updates_per_step": 1.0}
    defaults |= {"target_class": TDTargets, "target_kwargs": {}, "policy_kwargs": TINY, "seed": 3, "device": "cpu"}
    if name != "wrapped":
        defaults["goal_wrapper_kwargs"] = {"max_episode_steps": 9}
    settings = defaults | settings | kwargs
    if targets:
        settings["target_kwargs"] = {**settings["target_kwargs"], **targets}
    return ManyGoalsDQN(policy, settings.pop("env", env), **settings)


class Stop(BaseCallback):
    """Ends training as if the power failed."""

    def __init__(self, step):
        super().__init__()
        self.step = step

    def _on_step(self):
        if self.num_timesteps >= self.step:
            raise KeyboardInterrupt
        return True


def same(left, right):
    """Equal to the last bit, but for wall-clock times and the generators of spaces, which nobody has seeded."""
    assert_same(left, right, ignore={*TIMES, "_np_random"})


def log_of(model, folder):
    folder.mkdir(exist_ok=True)
    model.set_logger(Logger(str(folder), [CSVOutputFormat(str(folder / "progress.csv"))]))
    return folder / "progress.csv"


def rows(path):
    """Lines of a log without its times, in the order of names."""
    with path.open() as file:
        lines = list(csv.DictReader(file))
    return [{name: line[name] for name in sorted(line) if name not in ("time/fps", "time/time_elapsed")} for line in lines]


@pytest.mark.usefixtures("no_sync")
@pytest.mark.parametrize("name", BUILDS)
def test_the_end_is_the_same(name, tmp_path):
    def learn(folder, logs, stop=None):
        model = build(name)
        log = log_of(model, tmp_path / logs)
        callback = ExactCheckpointCallback(folder, every_steps=20, keep=2)
        resumed = callback.resume(model)
        callbacks = [callback, *([Stop(stop)] if stop else [])]
        try:
            model.learn(300 - model.num_timesteps, callbacks, log_interval=3, reset_num_timesteps=not resumed)
        except KeyboardInterrupt:
            assert stop
        model.logger.close()
        return resumed, rows(log)

    assert learn(tmp_path / "whole", "whole")[0] is False
    whole = rows(tmp_path / "whole" / "progress.csv")
    for stop in (75, 221):
        stopped = tmp_path / f"stopped-{stop}"
        assert learn(stopped, f"first-{stop}", stop)[0] is False
        at = int(checkpoints(stopped)[0].name.split("step")[1])
        assert stop - 40 < at <= stop
        np.random.rand(5), th.rand(3)  # noqa: NPY002 - the generators are elsewhere than they were
        resumed, log = learn(stopped, f"second-{stop}")
        assert resumed is True
        ends = [read_checkpoint(checkpoints(folder)[0]) for folder in (tmp_path / "whole", stopped)]
        same(*ends)
        assert ends[0]["learner"]["algorithm"]["counters"]["num_timesteps"] >= 300
        assert log == [row for row in whole if int(row["time/total_timesteps"]) > at]
    assert log


def test_what_was_measured_goes_on_too(tmp_path):
    def learn(folder, stop=None):
        model, points = build("several"), []
        env = gym.make_vec(SMALL, num_envs=6)
        mastery = MasteryCallback(env, env.unwrapped.mdp.observations[:6], 100, 20, on_measure=points.append)
        callback = ExactCheckpointCallback(tmp_path / folder, every_steps=50, extras={"mastery": mastery})
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
        ("several", {"targets": {"goal_sampling": "batch"}}, r"target_kwargs\['goal_sampling'\] uniform, got batch"),
        ("several", {"targets": {"initial_value": -1.0}}, r"target_kwargs\['initial_value'\] None, got -1.0"),
        ("several", {"target_class": None, "target_kwargs": None}, "target_class TDTargets, got None"),
        ("several", {"buffer_size": 180}, "replay memory was saved with buffer_size 50, this one has 60"),
        ("several", {"policy_kwargs": CNN | {"embedding_dim": 9}}, r"weights .*, shape \[.*\], got \[.*\]"),
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
    assert all(th.equal(value, before[key]) for key, value in other.policy.state_dict().items()) or "replay" in message


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


@pytest.mark.parametrize("go_on", [False, True])
def test_where_nothing_can_be_written_training_stops_or_goes_on(go_on, tmp_path):
    (tmp_path / "file").write_text("no folder")
    model = build("one environment")
    callback = ExactCheckpointCallback(tmp_path / "file", every_steps=30, go_on=go_on)
    with pytest.warns(UserWarning, match="no checkpoint at step") if go_on else pytest.raises(OSError, match="file") as found:
        model.learn(100, callback)
    assert model.num_timesteps == (100 if go_on else 30)
    assert not go_on or len(found) == 4
