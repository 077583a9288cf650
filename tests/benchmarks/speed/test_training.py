import json

import pandas as pd
import pytest

pytest.importorskip("ale_py")
pytest.importorskip("cv2")
pytest.importorskip("lz4")


from benchmarks.speed import training
from benchmarks.speed.training import RATIOS, TrainingConfig, learners, pretrained
from tests.benchmarks.command_line import command

QUICK = {"rounds": 1, "goal_steps": 3, "a2c_steps": 20, "pretraining_steps": 2, "n_envs": 2, "episodes": 1, "transitions": 30}


def test_everything_is_measured(tmp_path, monkeypatch):
    monkeypatch.delitem(training.SB3_BACKENDS, "subproc")  # its processes take seconds to start
    options = [f"--{name.replace('_', '-')}={value}" for name, value in QUICK.items()]
    done = command("speed-training", *options, "--threads=1", f"--output={tmp_path}")
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.iterdir()
    raw = pd.read_csv(folder / "training-1-threads.csv")
    assert raw["contender"].tolist() == [
        *("goal loop", "SB3's DQN", "A2C", "A2C, SB3's network", "A2C, SB3's DummyVecEnv", "A2C + many_goals"),
        *("A2C + pixel_control", "A2C + reward_prediction", "pre-training by many_goals", "pre-training by reward_prediction"),
    ]
    assert (raw["value"] > 0).all()
    assert "time of a step: A2C + many goals / A2C" in done.stdout
    assert {"ale-py", "lz4"} <= set(json.loads((folder / "config.json").read_text())["versions"])
    known = pd.DataFrame(columns=[*raw["contender"], "A2C, SB3's SubprocVecEnv"])
    assert [ratio.title for ratio in RATIOS if not ratio.is_measured(known)] == []


def test_auxiliary_losses_are_computed_from_the_beginning():
    """Each of them at every step of the optimizer: a full buffer is there before anything is measured."""
    found = list(learners(TrainingConfig(**QUICK, parts=("auxiliary",))))
    assert found[0][0] == "A2C"
    for _, model, _, callbacks in found[1:]:
        assert len(callbacks[0].episodes) == 1
        assert training.training(model, 20, callbacks)() > 0
        assert callbacks[0].n_updates == 2
        assert model.num_timesteps == 20
    for _, model, _, _ in found:
        model.env.close()


@pytest.mark.parametrize("agent", ["many_goals", "reward_prediction"])
def test_each_step_of_pretraining_is_an_update_with_a_full_memory(agent):
    learner = pretrained(TrainingConfig(**QUICK), agent)
    assert (learner.replay_buffer.size(), learner._n_updates) == (30, 0)
    if agent == "many_goals":
        assert learner.exploration_rate == pytest.approx(0.55)
    assert training.training(learner, 3, [])() > 0
    assert learner._n_updates == 3
    learner.env.close()
