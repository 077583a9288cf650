import sys

import numpy as np
import pandas as pd
import pytest

from benchmarks.speed.world import WorldConfig
from tests.benchmarks.command_line import command

QUICK = {
    "rounds": 1,
    "num_envs": 8,
    "steps": 5,
    "minigrid_envs": 2,
    "minigrid_steps": 3,
    "scalar_steps": 50,
    "large_layout": "small",
}


def test_all_peers_are_measured(tmp_path, capsys):
    pytest.importorskip("minigrid")
    folder = WorldConfig(**QUICK, output=tmp_path).run()
    raw = pd.read_csv(folder / "world.csv")
    rates = {"vector", "cartpole_vector", "vector_few", "minigrid", "scalar", "cliff_walking", "vector_large"}
    assert set(raw[raw["unit"] == "steps/s"]["contender"]) == rates
    assert set(raw[raw["unit"] == "s"]["contender"]) == {"compile", "import_world", "import_gymnasium"}
    assert np.all(raw["value"] > 0)
    printed = capsys.readouterr().out
    assert "steps/s: vector / MiniGrid" in printed
    assert "import gym_twoRooms loads pygame: no" in printed


def test_the_command_leaves_out_what_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "minigrid", None)
    options = [f"--{name.replace('_', '-')}={value}" for name, value in QUICK.items()]
    done = command("speed-world", *options, f"--output={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert "MiniGrid is not installed: left out" in done.stdout
    assert "vector / CartPole" in done.stdout
    assert "vector / MiniGrid" not in done.stdout
