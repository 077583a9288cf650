"""Features that A2C begins with: measures by hand, and those of small runs."""

import csv

import pytest
import torch as th

from benchmarks.past_runs import PastRunError
from benchmarks.pretraining import run
from benchmarks.pretraining_features import COLUMNS, PretrainingFeaturesConfig, measure
from tests.benchmarks.test_pretraining import tiny
from tests.sb3_manygoals.checkpoint.conftest import no_sync

__all__ = ["no_sync"]


def test_measures_by_hand():
    """Of two vectors, which differ from their mean by 3 in one feature; one is always 4, one always 0."""
    found = measure(th.tensor([[0.0, 4.0, 0.0], [6.0, 4.0, 0.0]]))
    assert found["silent"] == pytest.approx(1 / 3)
    assert found["rank"] == 2
    assert found["norm"] == pytest.approx((4 + 52**0.5) / 2)
    assert found["varying"] == pytest.approx(3 / ((16 + 52) / 2) ** 0.5)


def test_what_tells_nothing_apart():
    same = measure(th.ones(5, 4))
    assert (same["silent"], same["rank"], same["norm"], same["varying"]) == (0.0, 1.0, 2.0, 0.0)
    nothing = measure(th.zeros(5, 4))
    assert (nothing["silent"], nothing["norm"], nothing["varying"]) == (1.0, 0.0, 0.0)


def test_a_hundredth_of_the_singular_values_does_not_count():
    assert measure(th.diag(th.tensor([99.0, 1.0])))["rank"] == 1
    assert measure(th.diag(th.tensor([98.0, 2.0])))["rank"] == 2


@pytest.mark.usefixtures("no_sync")
def test_runs_with_and_without_pre_training(tmp_path, capsys):
    pytest.importorskip("minigrid")
    with pytest.raises(PastRunError, match="no finished run of pretraining below"):
        PretrainingFeaturesConfig((tmp_path,), tmp_path / "features.csv").run()
    for agent in ("none", "many_goals"):
        run(tiny(agent=agent, output=tmp_path / "runs"))
    path = PretrainingFeaturesConfig((tmp_path / "runs",), tmp_path / "features.csv", steps=4).run()
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["agent"] for row in rows] == ["many_goals", "none"]
    for row in rows:
        assert list(row) == COLUMNS
        assert row["observations"] == "80"  # 16 copies, five observations of each
        assert 0 < float(row["varying"]) < 1
    assert rows[0]["norm"] != rows[1]["norm"]  # the trunk was trained
    assert "many_goals: silent" in capsys.readouterr().out


def test_what_makes_no_sense_is_refused(tmp_path):
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        PretrainingFeaturesConfig((tmp_path,), tmp_path / "features.csv", steps=0)
    (tmp_path / "config.json").write_text('{"settings": {"output": "runs", "env_id": "TwoRoomsSwitch-v0"}}')
    (tmp_path / "model.zip").touch()
    with pytest.raises(PastRunError, match=r"is not the folder of a run of pretraining: .*env_id"):
        PretrainingFeaturesConfig((tmp_path,), tmp_path / "features.csv").run()
