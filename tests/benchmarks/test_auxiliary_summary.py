"""Summaries of runs with auxiliary tasks, of numbers that can be followed by hand."""

import csv
import json

import numpy as np
import pytest

from benchmarks.auxiliary import CURVE
from benchmarks.auxiliary_summary import AuxiliarySummaryConfig, collect, curves, markdown, table
from benchmarks.past_runs import PastRunError


def leave(root, agent, seed, returns, seconds=10.0, game="Maze-v0", steps=(100, 200, 300)):
    """A run as it would be left behind."""
    folder = root / f"{agent}-{seed}-{game}"
    folder.mkdir(parents=True)
    settings = {"game": game, "agent": agent, "seed": seed, "world": "two_rooms"}
    (folder / "config.json").write_text(json.dumps({"settings": settings}))
    with (folder / "curve.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(CURVE)
        for number, (step, value) in enumerate(zip(steps, returns, strict=False)):
            writer.writerow([step, 5 * number, value, 7, seconds * (number + 1) / len(returns), 0, 0])


def test_interquartile_means_by_hand(tmp_path):
    for seed, last in enumerate((9.0, 0.0, 2.0, 1.0)):
        leave(tmp_path, "a2c", seed, [0.0, last / 2, last])
    rows = curves(collect([tmp_path]))
    assert [(row["step"], row["seeds"]) for row in rows] == [(100, 4), (200, 4), (300, 4)]
    # of four, the lowest and the highest are left out
    assert [float(row["iqm"]) for row in rows] == [0.0, 0.75, 1.5]
    assert [float(row["mean"]) for row in rows] == [0.0, 1.5, 3.0]
    for row in rows:
        assert float(row["low"]) <= float(row["iqm"]) <= float(row["high"])
    # the interquartile mean of four numbers drawn from 0, 1, 2, 9 is no less than 0 and no more than 9, and hardly ever either
    assert 0.0 <= float(rows[-1]["low"]) < 1.5 < float(rows[-1]["high"]) <= 9.0
    (row,) = table(collect([tmp_path]))
    assert row["final"] == 1.5
    assert row["area"] == 0.75  # each run's mean is half of its last return: 4.5, 0, 1, 0.5


def test_all_seeds_alike_have_no_width(tmp_path):
    for seed in range(3):
        leave(tmp_path, "a2c", seed, [0.25, 0.5, 0.75])
    (row,) = table(collect([tmp_path]))
    assert (row["final_low"], row["final"], row["final_high"]) == (0.75, 0.75, 0.75)
    assert (row["area_low"], row["area"], row["area_high"]) == (0.5, 0.5, 0.5)
    assert "| Maze-v0 | a2c | 3 | 300 | 0.75 [0.75, 0.75] | 0.5 [0.5, 0.5] | 1.00 |" in markdown([row])


def test_time_is_that_of_a_step(tmp_path):
    leave(tmp_path, "a2c", 0, [1, 1, 1], seconds=10.0)
    leave(tmp_path, "many_goals", 0, [1, 1], seconds=10.0)
    first, second = table(collect([tmp_path]))
    assert (first["agent"], second["agent"]) == ("a2c", "many_goals")
    assert first["time_ratio"] == 1.0
    assert second["time_ratio"] == pytest.approx((10 / 200) / (10 / 300))


def test_runs_are_compared_where_all_of_them_are(tmp_path):
    leave(tmp_path, "a2c", 0, [1.0, 2.0, 3.0])
    leave(tmp_path, "many_goals", 0, [5.0, 6.0], steps=(200, 300))
    leave(tmp_path, "many_goals", 1, [7.0], steps=(200,))
    rows = curves(collect([tmp_path]))
    assert [(row["agent"], row["step"], float(row["iqm"])) for row in rows] == [("a2c", 200, 2.0), ("many_goals", 200, 6.0)]
    assert "low" not in rows[0]
    assert np.isfinite(float(rows[1]["low"]))


def test_what_does_not_go_together_is_refused(tmp_path):
    with pytest.raises(PastRunError, match=r"no curve\.csv below"):
        collect([tmp_path])
    leave(tmp_path / "one", "a2c", 0, [1.0])
    leave(tmp_path / "other", "a2c", 0, [1.0])
    with pytest.raises(PastRunError, match=r"are both a2c in Maze-v0, seed 0"):
        collect([tmp_path])
    leave(tmp_path / "apart", "a2c", 0, [1.0], steps=(100,))
    leave(tmp_path / "apart", "a2c", 1, [1.0], steps=(200,))
    with pytest.raises(PastRunError, match="no step in common"):
        curves(collect([tmp_path / "apart"]))
    (tmp_path / "one" / "a2c-0-Maze-v0" / "config.json").unlink()
    with pytest.raises(PastRunError, match="is not the folder of a run of auxiliary"):
        collect([tmp_path / "one"])


def test_the_files(tmp_path):
    for agent, better in (("a2c", 0.0), ("many_goals", 0.5)):
        for seed in range(3):
            for game in ("Maze-v0", "MiniGrid/Key"):
                leave(tmp_path / "runs", agent, seed, [0.1, 0.2 + better, 0.3 + better], game=game.replace("/", "_"))
    output = tmp_path / "summary"
    AuxiliarySummaryConfig((tmp_path / "runs",), output).run()
    assert {path.name for path in output.iterdir()} == {
        *("curves.csv", "table.csv", "table.md", "Maze-v0.png", "MiniGrid_Key.png")
    }
    with (output / "curves.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 2 * 3
    best = [row for row in rows if row["agent"] == "many_goals" and row["step"] == "300"]
    assert [float(row["iqm"]) for row in best] == [0.8, 0.8]
    assert (output / "table.md").read_text().count("| many_goals |") == 2
