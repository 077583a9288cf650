import sys

import pandas as pd
import pytest

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
