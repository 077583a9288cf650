import csv
import json
import sys
from collections import defaultdict

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.rounds import Contender, Figure, measure, spread
from benchmarks.world_speed import FIGURES, WorldSpeedConfig

QUICK = {"num_envs": 8, "steps": 5, "minigrid_envs": 2, "minigrid_steps": 3, "scalar_steps": 50}


def read(folder):
    values, units = defaultdict(list), {}
    with (folder / "world.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            assert int(row["round"]) == len(values[row["contender"]])
            values[row["contender"]].append(float(row["value"]))
            assert units.setdefault(row["contender"], row["unit"]) == row["unit"]
    return dict(values), units


def test_every_printed_figure_is_that_of_the_written_rounds(tmp_path, capsys):
    pytest.importorskip("minigrid")
    folder = WorldSpeedConfig(rounds=2, **QUICK, large_layout="small", output=tmp_path).run()
    values, units = read(folder)
    assert {len(each) for each in values.values()} == {2}
    assert all(value > 0 for each in values.values() for value in each)
    assert units == {
        "vector": "steps/s",
        "copy": "observations/s",
        "cartpole_vector": "steps/s",
        "vector_few": "steps/s",
        "minigrid": "steps/s",
        "scalar": "steps/s",
        "cliff_walking": "steps/s",
        "vector_large": "steps/s",
        "compile": "s",
        "compile_with_imports": "s",
        "import_world": "s",
        "import_gymnasium": "s",
    }
    printed = capsys.readouterr().out
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines()]
    rows = {row[0]: row[1:] for row in cells if row}
    for figure in FIGURES:
        per_round = np.array(values[figure.contender]) / (1 if figure.divisor is None else np.array(values[figure.divisor]))
        median, bar, met = rows[figure.title]
        assert median == spread(per_round)
        if figure.bar is None:
            assert (bar, met) == ("", "")
        else:
            above = np.median(per_round) >= figure.bar
            assert (bar, met) == (f"{figure.sense} {figure.bar:g}", "yes" if above == (figure.sense == ">=") else "no")
    assert 'layout "small" (220 states)' in printed
    assert "import gym_twoRooms loads pygame: no" in printed
    config = json.loads((folder / "config.json").read_text())
    assert config["settings"]["num_envs"] == 8
    assert {"minigrid", "gymnasium", "numpy", "python"} <= set(config["versions"])


def test_the_command_leaves_out_what_is_not_there(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "minigrid", None)
    options = [f"--{name.replace('_', '-')}={value}" for name, value in QUICK.items()]
    options += ["--rounds=1", "--large-layout=nowhere", f"--output={tmp_path}"]
    monkeypatch.setattr(sys, "argv", ["benchmarks", "throughput", "--world", *options])
    main()
    (folder,) = tmp_path.iterdir()
    assert not {"minigrid", "vector_large"} & set(read(folder)[0])
    printed = capsys.readouterr().out
    assert "MiniGrid is not installed: left out" in printed
    assert 'no layout is named "nowhere": left out' in printed
    assert "vector / CartPole" in printed
    assert "vector / MiniGrid" not in printed


def test_rounds_take_turns_and_the_first_warms_up():
    order = []

    def contender(name):
        return Contender(name, name, "s", lambda: order.append(name) or float(len(order)))

    assert measure([contender("a"), contender("b")], 2) == {"a": [3.0, 5.0], "b": [4.0, 6.0]}
    assert order == ["a", "b"] * 3


def test_a_ratio_is_taken_within_each_round_and_its_median_meets_the_bar():
    measured = {"ours": [10.0, 100.0, 30.0], "theirs": [5.0, 10.0, 10.0]}
    at_least, at_most = Figure("", "ours", "theirs", ">=", 3.0), Figure("", "ours", "theirs", "<=", 2.9)
    assert at_least.values(measured).tolist() == [2.0, 10.0, 3.0]
    assert spread(at_least.values(measured)) == "3 [2, 10]"
    assert at_least.verdict(at_least.values(measured)) == "yes"
    assert at_most.verdict(at_most.values(measured)) == "no"
    assert spread([12_345.6, 99.0]) == "6,222 [99, 12,346]"
