import csv
import json
import sys

import numpy as np
import pytest

pytest.importorskip("ale_py")
pytest.importorskip("cv2")
pytest.importorskip("lz4")

from benchmarks import atari_speed
from benchmarks.__main__ import main
from benchmarks.rounds import spread


def read(file):
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def test_the_command_measures_each_in_turn_and_what_it_prints_is_written(tmp_path, capsys, monkeypatch):
    # Processes of their own take seconds to start; what SB3 has besides is measured in the same way.
    monkeypatch.delitem(atari_speed.BACKENDS, "subproc")
    options = ["--rounds=2", "--n-envs=2", "--games-steps=9", "--training-steps=11", "--threads=1"]
    monkeypatch.setattr(sys, "argv", ["benchmarks", "throughput", "--atari", *options, f"--output={tmp_path}"])
    main()
    (folder,) = tmp_path.iterdir()
    values = {}
    for row in read(folder / "atari-1-threads.csv"):
        assert row["unit"] == "steps/s"
        values.setdefault(row["contender"], []).append(float(row["value"]))
    assert list(values) == [
        "games, native",
        "games, dummy",
        "training, native",
        "training, native, NatureCNN",
        "training, dummy",
    ]
    assert all(len(each) == 2 and min(each) > 0 for each in values.values())
    printed = capsys.readouterr().out
    ratio = np.array(values["training, native"]) / np.array(values["training, dummy"])
    (line,) = [line for line in printed.splitlines() if "ours / DummyVecEnv" in line]
    assert spread(ratio) in line
    assert {"ale-py", "lz4", "opencv-python-headless"} <= set(json.loads((folder / "config.json").read_text())["versions"])


def test_a_measurement_makes_the_steps_that_it_counts(monkeypatch):
    class Env:
        num_envs, action_space, steps = 3, atari_speed.spaces.Discrete(2), 0

        def reset(self):
            pass

        def step(self, actions):
            assert actions.shape == (3,)
            self.steps += 3
            clock[0] += 0.5

    clock, env = [0.0], Env()
    monkeypatch.setattr(atari_speed.time, "perf_counter", lambda: clock[0])
    assert atari_speed.games(env, 10)() == 12 / 2.0
    assert env.steps == 12
