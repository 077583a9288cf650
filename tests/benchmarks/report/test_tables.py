"""Runs as they are left behind, and tables about them that are computed by hand."""

import json

import numpy as np
import pandas as pd
import pytest

from benchmarks.report import figures, tables
from benchmarks.report import runs as reader
from benchmarks.scores import interquartile_mean, interval
from benchmarks.suite import Result, Spec

SMALL = "TwoRoomsSwitchSmall-v0"
N = 220
"""Number of states of this world."""
DEFAULTS = {
    "env_id": SMALL,
    "agent": "default",
    "total_steps": 300,
    "eval_steps": 200,
    "eval_epsilon": 0.1,
    "output": "x",
}


def make_run(
    folder,
    seed=0,
    curve=((0, 0.0, 0.0), (300, 0.9, 0.9)),
    seconds=10.0,
    goals=None,
    held_out=None,
    **settings,
):
    """
    Write the files of a run of mastery.

    The curve has rows of steps, and mastery greedily and at epsilon. ``goals`` has columns of
    ``goals.csv``; None is for a run that has not finished.
    """
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(
        json.dumps({"settings": DEFAULTS | {"seed": seed} | settings})
    )
    rows = [
        {"step": step, "training_seconds": seconds * step / 300, "greedy": g, "epsilon": e}
        for step, g, e in curve
    ]
    pd.DataFrame(rows).to_csv(folder / "mastery.csv", index=False)
    if goals is not None:
        held_out = np.zeros(N, dtype=int) if held_out is None else held_out.astype(int)
        reached = {"greedy_reached": np.ones(N), "epsilon_reached": np.ones(N)}
        table = pd.DataFrame(
            {"state": np.arange(N), "held_out": held_out, "updates": np.arange(N)} | reached | goals
        )
        table.to_csv(folder / "goals.csv", index=False)
        summary = {
            "world": SMALL,
            "agent": "default",
            "seed": seed,
            "known": 200,
            "reachable": N,
            "measured": N,
        }
        for name in ("greedy", "epsilon"):
            values = table[f"{name}_reached"]
            summary |= {
                name: values.mean(),
                f"{name}_low": 0.0,
                f"{name}_high": 1.0,
                f"held_out_{name}": np.nan,
            }
            if held_out.any():
                summary[f"held_out_{name}"] = values[held_out == 1].mean()
        summary |= {
            "ceiling": 0.97,
            "training_seconds": seconds,
            "steps": curve[-1][0],
            "updates": 40,
            "targets": "TDTargets",
        }
        pd.DataFrame([summary]).to_csv(folder / "summary.csv", index=False)
    return folder


def share(rate):
    """Return columns of ``goals.csv`` in which this share of the goals is reached."""
    reached = (np.arange(N) < round(rate * N)).astype(float)
    return {"greedy_reached": reached, "epsilon_reached": reached}


def test_the_table_by_hand(tmp_path):
    for seed, rate in enumerate((0.8, 0.9, 1.0)):
        # 0.5 is first reached at 100, 200 and 100; 0.9 at 300, never and at 200.
        middle = {0: (0.6, 0.8, 0.9), 1: (0.4, 0.5, 0.89), 2: (0.5, 0.9, 0.7)}[seed]
        curve = [
            (0, 0.0, 0.0),
            *((step, 0.1, mastery) for step, mastery in zip((100, 200, 300), middle, strict=True)),
        ]
        make_run(
            tmp_path / f"run{seed}",
            seed,
            curve,
            (10.0, 20.0, 90.0)[seed],
            share(rate),
            agent="uniform",
        )
    make_run(
        tmp_path / "slow",
        0,
        seconds=50.0,
        goals=share(0.5),
        held_out=np.arange(N) >= N - 20,
        agent="slow",
    )
    make_run(tmp_path / "half-way", 1, curve=[(0, 0.0, 0.0), (100, 0.2, 0.3)], agent="slow")
    runs = reader.read([tmp_path])
    curves, finals, goals = (
        reader.gather(runs, f"{name}.csv") for name in ("mastery", "summary", "goals")
    )
    table = tables.mastery(
        runs, curves, finals.reindex(columns=[*finals, "plan", "held_out_plan"]), goals
    ).set_index("agent")
    uniform = table.loc["uniform"]
    slow = table.loc["slow"]
    assert (uniform["runs"], uniform["finished"], uniform["greedy"]) == (3, 3, pytest.approx(0.9))
    # The deviation is 0.1: the half width is 0.1 / sqrt(3) times the t of 2 degrees of freedom,
    # 4.302653. Above 1 the interval is clipped.
    assert (uniform["greedy_low"], uniform["greedy_high"]) == pytest.approx(
        (0.9 - 0.248414, 1.0), abs=1e-6
    )
    assert uniform["steps_to_0.5"] == 100
    assert uniform["steps_to_0.9"] == 300
    assert uniform["steps_to_0.95"] == np.inf
    assert (uniform["always"], uniform["never"], uniform["training_seconds"]) == (0.8 * N, 0, 20.0)
    assert np.isnan(uniform["held_out_greedy"])
    assert (slow["runs"], slow["finished"], slow["never"]) == (2, 1, N / 2)
    assert (slow["greedy"], np.isnan(slow["greedy_low"])) == (pytest.approx(0.5), True)
    assert slow["held_out_epsilon"] == 0.0


def test_goals_without_a_number_are_not_counted_over_seeds(tmp_path):
    """In a world without tables, each run knows goals of its own."""
    for seed in (0, 1):
        make_run(tmp_path / f"run{seed}", seed, goals={**share(0.5), "state": [""] * N})
    runs = reader.read([tmp_path])
    curves, finals, goals = (
        reader.gather(runs, f"{name}.csv") for name in ("mastery", "summary", "goals")
    )
    finals = finals.reindex(columns=[*finals, "plan", "held_out_plan"])
    row = tables.mastery(runs, curves, finals, goals).iloc[0]
    assert row[["always", "never"]].isna().all()


def test_single_runs_are_told_apart_by_what_differs(tmp_path, capsys):
    make_run(tmp_path / "one" / "first", 0, curve=[(0, 0.1, 0.1)], agent="td", tau=0.5)
    # This run is older than the setting tau.
    make_run(tmp_path / "one" / "second", 1, goals={}, agent="td", progress_bar=True)
    for number, rate in enumerate((0.1, 0.2)):
        make_run(tmp_path / "two" / f"run{number}", number, learning_rate=rate)
    (tmp_path / "two" / "other").mkdir()
    (tmp_path / "two" / "other" / "config.json").write_text('{"settings": {}}')
    expected = [
        ["default, learning_rate=0.1", 0, "unfinished"],
        ["default, learning_rate=0.2", 1, "unfinished"],
    ]
    expected += [["td", 0, "unfinished"], ["td", 1, "finished"]]
    second = reader.read([tmp_path / "one" / "second"])
    assert second[["agent", "seed", "status"]].values.tolist() == expected[3:]
    # A folder that is given twice counts once.
    found = reader.read([tmp_path, tmp_path / "one" / "first"])
    assert found[["agent", "seed", "status"]].values.tolist() == expected
    assert (
        f"left out: {tmp_path / 'two' / 'other'}, which has no measurement"
        in capsys.readouterr().out
    )


def test_the_histogram_of_updates(tmp_path):
    held_out = np.arange(N) < 20
    counts = np.where(held_out, 0, 100)
    counts[-50:] = 400
    for seed in (0, 1):
        make_run(tmp_path / f"run{seed}", seed, goals={"updates": counts}, held_out=held_out)
    make_run(tmp_path / "table", goals={"updates": np.full(N, 7)}, agent="table")
    rows = tables.updates(reader.gather(reader.read([tmp_path]), "goals.csv"))
    assert (set(rows["agent"]), len(rows)) == ({"default"}, tables.BINS)
    ends = rows.iloc[[0, -1]][["low", "high", "goals", "share"]]
    assert ends.to_numpy().tolist() == [[100, 110, 300, 0.75], [390, 400, 100, 0.25]]


def leave(root, agent, seed, returns, seconds=10.0, game="Maze-v0", steps=(100, 200, 300)):
    """Write the files of a run of A2C."""
    folder = root / f"{agent}-{seed}-{game}"
    folder.mkdir(parents=True)
    settings = {"game": game, "agent": agent, "seed": seed, "steps": 300}
    (folder / "config.json").write_text(json.dumps({"settings": settings}))
    times = [seconds * (number + 1) / len(returns) for number in range(len(returns))]
    columns = {"step": steps[: len(returns)], "episode_return": returns, "training_seconds": times}
    pd.DataFrame(columns).to_csv(folder / "curve.csv", index=False)


def returned(root):
    """Return the table of returns of all runs below a folder."""
    runs = reader.read([root])
    return tables.returns(reader.gather(runs, "curve.csv"), runs).set_index("agent")


def test_returns_by_hand(tmp_path):
    for seed, last in enumerate((9.0, 0.0, 2.0, 1.0)):
        leave(tmp_path, "a2c", seed, [0.0, last / 2, last])
    row = returned(tmp_path).loc["a2c"]
    assert (row["seeds"], row["step"]) == (4, 300)
    # Of four runs, the lowest and the highest are left out.
    assert row["final"] == 1.5
    # The mean of each run is half of its last return: 4.5, 0, 1 and 0.5.
    assert row["area"] == 0.75
    assert 0.0 <= row["final_low"] < 1.5 < row["final_high"] <= 9.0
    assert row["half"] == 200


def test_returns_are_compared_where_all_runs_are(tmp_path, capsys):
    for seed in range(3):
        leave(tmp_path / "one", "a2c", seed, [0.25, 0.5, 0.75])
        leave(tmp_path / "one", "many_goals", seed, [-1, -2], seconds=10.0)
    table = returned(tmp_path / "one")
    # The common step is 200, and all seeds are alike.
    assert table.loc["a2c", ["final_low", "final", "final_high"]].tolist() == [0.5] * 3
    assert table.loc["a2c", "area"] == 0.375
    leave(tmp_path / "flat", "a2c", 0, [0.0, 0.0, 0.0])
    assert np.isnan(returned(tmp_path / "flat").loc["a2c", "half"])
    # Returns that fall have a half of their way, too.
    assert table.loc["many-goals", "half"] == 200
    assert table["time_ratio"].tolist() == pytest.approx([1.0, (10 / 200) / (10 / 300)])
    leave(tmp_path / "between", "a2c", 0, [0.0, 1.0, 2.0])
    # After pre-training, returns are noted at other steps.
    leave(tmp_path / "between", "many_goals", 0, [1.0, 2.0], steps=(150, 250))
    table = returned(tmp_path / "between")
    assert table[["step", "final", "area"]].to_numpy().tolist() == [
        [250, 1.5, 1.0],
        [250, 2.0, 1.5],
    ]
    leave(tmp_path / "apart", "a2c", 0, [1.0], steps=(100,))
    leave(tmp_path / "apart", "a2c", 1, [1.0], steps=(200,))
    assert returned(tmp_path / "apart").empty
    assert (
        "left out: returns in Maze-v0, whose runs have no step in common" in capsys.readouterr().out
    )


def test_lines_are_interquartile_means_with_intervals_at_steps_that_all_seeds_have():
    values = np.random.default_rng(0).normal(size=(3, 4))
    rows = [("x", "a", seed, step, values[step, seed]) for seed in range(4) for step in range(3)]
    rows += [("x", "a", 0, 3, 9.0)]
    lines = tables.bands(pd.DataFrame(rows, columns=["panel", "agent", "seed", "step", "value"]))
    assert lines["step"].tolist() == [0, 1, 2]
    assert (lines["seeds"] == 4).all()
    assert lines["seed"].isna().all()
    for step in range(3):
        found = interval(interquartile_mean, values[step][:, None])
        assert lines.loc[step, ["value", "low", "high"]].tolist() == pytest.approx(list(found))
    axes = figures.curves(lines, ["a"]).axes[0]
    assert (len(axes.lines), len(axes.collections)) == (1, 1)


def test_one_or_two_seeds_have_a_line_each_and_no_interval():
    rows = [("x", "a", 1, 20, 4.0), ("x", "a", 1, 10, 3.0), ("x", "a", 0, 10, 2.0)]
    rows += [("x", "b", 0, 5, 7.0)]
    lines = tables.bands(pd.DataFrame(rows, columns=["panel", "agent", "seed", "step", "value"]))
    assert lines[["agent", "seed", "step", "seeds", "value"]].values.tolist() == [
        ["a", 0, 10, 2, 2.0],
        ["a", 1, 10, 2, 3.0],
        ["a", 1, 20, 2, 4.0],
        ["b", 0, 5, 1, 7.0],
    ]
    assert lines[["low", "high"]].isna().all(axis=None)
    agents = ["a", "b"]
    axes = figures.curves(lines, agents).axes[0]
    assert [line.get_ydata().tolist() for line in axes.lines] == [[2.0], [3.0, 4.0], [7.0]]
    assert axes.get_legend_handles_labels()[1] == agents
    assert not axes.collections


def test_curves_against_hours_meet_at_hours_that_all_seeds_have():
    columns = ["panel", "agent", "seed", "step", "training_seconds", "value"]
    # The fast seeds take an hour for what takes the slow one two. Values are steps.
    rows = [
        ("x", "a", seed, step, step * 3600 * (2 if seed == 2 else 1), float(step))
        for seed in range(3)
        for step in (1, 2, 3, 4)
    ]
    rows += [("x", "b", 0, 7, 1800, 5.0), ("x", "b", 0, 9, np.nan, 6.0)]
    found = tables.against_hours(pd.DataFrame(rows, columns=columns))
    few = found[found["agent"] == "b"]
    assert few[["seed", "step", "value"]].values.tolist() == [[0, 0.5, 5.0]]
    for seed, run in found[found["agent"] == "a"].groupby("seed"):
        assert run["step"].iloc[[0, -1]].tolist() == [2.0, 4.0]
        speed = 0.5 if seed == 2 else 1.0
        assert run["value"].to_numpy() == pytest.approx(run["step"].to_numpy() * speed)
    assert tables.bands(found)["seeds"].unique().tolist() == [3, 1]
    # Of runs that have just begun, one may end before another begins.
    late = [("x", "a", seed, 1, 3600.0 * hour, 1.0) for seed, hour in enumerate((1, 2, 3))]
    found = tables.against_hours(pd.DataFrame(late, columns=columns))
    assert found["step"].tolist() == [1.0, 2.0, 3.0]
    assert len(tables.bands(found)) == 0


def test_runs_of_a_suite_are_told_apart_by_their_specs(tmp_path):
    """Two settings of one agent are not two seeds of it."""
    for seed, settings in enumerate(({}, {"gamma": 0.5}, {"gamma": 0.9}, {"gamma": 0.9})):
        spec = Spec("benchmarks.studies.mastery:carry_out", "mine", SMALL, seed, 300, settings)
        spec.write(tmp_path)
        if seed == 3:
            # This one has not begun.
            continue
        make_run(spec.folder(tmp_path) / "mine" / "run", seed, goals=share(0.5), agent="mine")
        Result(spec, {"greedy": 0.5}, 1.0, 1).write(spec.folder(tmp_path))
    runs = reader.read([tmp_path]).sort_values("seed")
    names = [f"mine, gamma={value}" for value in ("default", "0.5", "0.9", "0.9")]
    assert runs["agent"].tolist() == names
