import itertools
import sys

import pandas as pd
import pytest

from benchmarks.speed.world import WorldConfig
from tests.benchmarks.command_line import printed


@pytest.mark.parametrize("has_minigrid", [True, False])
def test_all_peers_that_are_there_are_measured(has_minigrid, tmp_path, monkeypatch):
    if has_minigrid:
        pytest.importorskip("minigrid")
    else:
        monkeypatch.setitem(sys.modules, "minigrid", None)
    said = printed("speed-world", "--rounds=1", "--num-envs=8", "--steps=5", f"--output={tmp_path}")
    (folder,) = tmp_path.iterdir()
    raw = pd.read_csv(folder / "world-1-threads.csv")
    peers = {"vector", "cartpole_vector", "vector_few", "copy", "scalar", "cliff_walking"}
    assert set(raw["contender"]) == peers | ({"minigrid"} if has_minigrid else set())
    assert (raw["value"] > 0).all()
    assert "vector / CartPole" in said
    assert ("vector / MiniGrid" in said) == has_minigrid
    assert ("MiniGrid is not installed: left out" in said) != has_minigrid


def test_a_step_of_a_vector_counts_as_one_of_each_copy(monkeypatch):
    contenders = WorldConfig(num_envs=8, steps=6).contenders()
    # Each look at this clock takes a second. A measurement looks when it begins, when its steps
    # are done and when it ends: it takes two seconds.
    looks = itertools.count()
    monkeypatch.setattr("time.perf_counter", lambda: float(next(looks)))
    rates = {name: contender() for name, contender in contenders.items()}
    rates.pop("minigrid", None)
    assert rates == {
        "vector": 6 * 8 / 2,
        "cartpole_vector": 6 * 8 / 2,
        "vector_few": 6 * 16 / 2,
        "copy": 6 * 8 / 2,
        "scalar": 20 * 6 / 2,
        "cliff_walking": 20 * 6 / 2,
    }
