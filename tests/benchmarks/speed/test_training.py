import json

import pandas as pd
import pytest

pytest.importorskip("ale_py")
pytest.importorskip("cv2")
pytest.importorskip("lz4")

from benchmarks.speed import training
from benchmarks.speed.training import RATIOS, TrainingConfig, learners
from tests.benchmarks.command_line import printed

QUICK = {
    "rounds": 1,
    "goal_steps": 3,
    "a2c_steps": 20,
    "pretraining_steps": 2,
    "n_envs": 2,
    "episodes": 1,
    "transitions": 30,
}


def updates_of(model):
    """Return the number of steps that the optimizer has taken."""
    states = list(model.policy.optimizer.state.values())
    return states[0]["step"] if states else 0


def test_everything_is_measured(tmp_path, monkeypatch):
    # The processes of this contender take seconds to start.
    monkeypatch.delitem(training.SB3_BACKENDS, "A2C, SB3's SubprocVecEnv")
    options = [f"--{name.replace('_', '-')}={value}" for name, value in QUICK.items()]
    said = printed("speed-training", *options, "--threads=1", f"--output={tmp_path}")
    (folder,) = tmp_path.iterdir()
    raw = pd.read_csv(folder / "training-1-threads.csv")
    assert raw["contender"].tolist() == [
        "goal loop",
        "SB3's DQN",
        "A2C",
        "A2C, SB3's network",
        "A2C, SB3's DummyVecEnv",
        "A2C + many_goals",
        "A2C + pixel_control",
        "A2C + reward_prediction",
        "pre-training by many_goals",
        "pre-training by reward_prediction",
    ]
    assert (raw["value"] > 0).all()
    assert "time of a step: A2C + many goals / A2C" in said
    assert "ale-py" in set(json.loads((folder / "config.json").read_text())["versions"])
    known = pd.DataFrame(columns=[*raw["contender"], "A2C, SB3's SubprocVecEnv"])
    assert [ratio.title for ratio in RATIOS if not ratio.is_measured(known)] == []


def test_each_step_of_the_goal_loop_is_an_update():
    for name, model, steps, callbacks in learners(TrainingConfig(**QUICK, parts=("goals",))):
        before = model._n_updates
        assert training.training(model, steps, callbacks)() > 0
        assert model._n_updates - before == 3, name


def test_every_step_is_an_update_with_full_memories():
    """An auxiliary task needs a full buffer before anything is measured, to learn at every step."""
    found = list(learners(TrainingConfig(**QUICK, parts=("auxiliary", "pretraining"))))
    assert found[0][0] == "A2C"
    for name, model, steps, callbacks in found[1:]:
        if callbacks:
            assert len(callbacks[0].episodes) == 1
        else:
            assert (model.replay_buffer.size(), updates_of(model)) == (30, 0)
        if name.endswith("many_goals") and not callbacks:
            assert model.exploration_rate == pytest.approx(0.55)
        assert training.training(model, steps, callbacks)() > 0
        assert (callbacks[0].n_updates if callbacks else updates_of(model)) == 2
        assert model.num_timesteps == (20 if callbacks else 32)
    for _, model, _, _ in found:
        model.env.close()
