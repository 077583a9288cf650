"""What pre-training costs: that it is measured at all, with a full memory, and updates in it."""

import csv
import json

import numpy as np
import pytest

pytest.importorskip("ale_py")

from benchmarks import peak_memory, pretraining_speed, rounds
from benchmarks.pretraining import make_learner
from benchmarks.pretraining_speed import FIGURES, LEARNERS, MEMORY, PretrainingSpeedConfig, memory, show_memory, write_memory


def test_ratios_are_of_times():
    values = FIGURES[0].values({"a2c": [300.0, 400.0], "many_goals": [150.0, 100.0]})
    np.testing.assert_allclose(values, [2.0, 4.0])


def test_everything_is_measured(tmp_path, capsys):
    few = {"rounds": 1, "transitions": 40, "pretraining_steps": 2, "a2c_steps": 20, "n_envs": 4}
    config = PretrainingSpeedConfig(**few, threads=(1,), output=tmp_path)
    folder = config.run()
    with (folder / "pretraining-1-threads.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["contender"] for row in rows] == ["a2c", "many_goals", "reward_prediction"]
    assert all(float(row["value"]) > 0 for row in rows)
    with (folder / "memory.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["agent"] for row in rows] == list(LEARNERS)
    for row in rows:
        assert row["transitions"] == "40"
        assert 30 < int(row["frames"]) < 60  # a frame a transition; fewer where two look alike, more where a game begins
        assert int(row["frame_bytes"]) >= 84 * 84 * int(row["frames"])
        if peak_memory.why_not() is None:
            assert 20e6 < int(row["resident_bytes"]) < 2e9
    assert "ale-py" in json.loads((folder / "config.json").read_text())["versions"]
    assert "time of a step: pre-training by many goals / A2C" in capsys.readouterr().out


@pytest.mark.parametrize("agent", LEARNERS)
def test_each_step_of_a_measurement_is_an_update_with_a_full_memory(agent):
    config = PretrainingSpeedConfig(transitions=30, pretraining_steps=3)
    learner = make_learner(config.of(agent))
    pretraining_speed.fill(learner)
    assert learner.replay_buffer.size() == 30
    assert learner._n_updates == 0
    if agent == "many_goals":
        assert learner.exploration_rate == pytest.approx(0.55)
    assert rounds.training(learner, 3)() > 0
    assert learner._n_updates == 3
    learner.env.close()


def test_without_proc_the_memory_of_the_process_is_left_out(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(peak_memory, "why_not", lambda: "no such thing")
    row = memory(PretrainingSpeedConfig(transitions=20).of("reward_prediction"))
    assert "not measured: no such thing" in capsys.readouterr().out
    write_memory(tmp_path / "memory.csv", [row])
    with (tmp_path / "memory.csv").open(newline="") as file:
        (read,) = csv.DictReader(file)
    assert list(read) == MEMORY
    assert read["resident_bytes"] == ""
    show_memory([row, row | {"resident_bytes": 7e6}])
    assert " 7 " in capsys.readouterr().out


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="transitions must be at least 1, got 0"):
        PretrainingSpeedConfig(transitions=0)
