import csv
import sys

from benchmarks.__main__ import main
from benchmarks.mastery import SELECTORS


def test_each_rule_is_measured_in_turn(tmp_path, monkeypatch, capsys):
    options = ["--rounds=2", "--steps=8", "--env-id=TwoRoomsSwitchSmall-v0", f"--output={tmp_path}"]
    monkeypatch.setattr(sys, "argv", ["benchmarks", "throughput", "--selection", *options])
    main()
    (folder,) = tmp_path.iterdir()
    with (folder / "selection.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["round"], row["contender"]) for row in rows] == [(str(turn), rule) for turn in (0, 1) for rule in SELECTORS]
    assert all(float(row["value"]) > 0 for row in rows)
    said = capsys.readouterr().out
    assert "learning progress / uniform" in said
    assert "<= 1.2" in said
