"""Runs as they are left behind, and tables about them that can be followed by hand."""

import csv
import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from benchmarks.report import PastRunError, mastery, tables
from benchmarks.report import runs as reader
from gym_twoRooms.layout import Layout
from gym_twoRooms.mdp import compile_layout
from gym_twoRooms.oracle import expected_steps

SMALL = "TwoRoomsSwitchSmall-v0"
MDP = compile_layout(Layout.named("small"))
N = MDP.n_states
DEFAULTS = {"env_id": SMALL, "total_steps": 300, "eval_steps": 200, "eval_epsilon": 0.1, "agent": {"learning_rate": 0.1}}


def make_run(folder, seed=0, curve=((0, 0.0, 0.0), (300, 0.9, 0.9)), seconds=10.0, goals=None, held_out=None, **settings):
    """A run's folder. The curve: steps, mastery greedy and at epsilon; goals: columns of goals.csv, None while unfinished."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"settings": DEFAULTS | {"seed": seed, "output": "x"} | settings}))
    extra = "" if held_out is None else ",held_out_greedy,held_out_epsilon"
    lines = [f"step,training_seconds,greedy,epsilon{extra}"]
    for step, greedy, epsilon in curve:
        more = "" if held_out is None else f",{greedy / 2},{epsilon / 2}"
        lines.append(f"{step},{seconds * step / 300},{greedy},{epsilon}{more}")
    (folder / "mastery.csv").write_text("\n".join(lines) + "\n")
    if goals is not None:
        columns = {"held_out": np.zeros(N, dtype=int) if held_out is None else held_out.astype(int), "updates": np.arange(N)}
        for name in ("greedy", "epsilon"):
            columns |= {f"{name}_reached": np.ones(N), f"{name}_mean_steps": np.full(N, 10.0)}
        pd.DataFrame({"state": np.arange(N)} | columns | goals).to_csv(folder / "goals.csv", index=False)
    return folder


def share(rate):
    """goals.csv of which this share of goals is reached."""
    reached = (np.arange(N) < round(rate * N)).astype(float)
    return {"greedy_reached": reached, "epsilon_reached": reached}


def summed(root, base=None):
    """Runs, their curves, their goals, and the table of them."""
    runs = reader.read([root])
    curves, goals = reader.gather(runs, "mastery.csv"), mastery.goals_of(runs, MDP)
    return runs, curves, goals, tables.mastery(runs, curves, goals, base).set_index("label")


def test_the_table_by_hand(tmp_path):
    for seed, rate in enumerate((0.8, 0.9, 1.0)):
        # 0.5 first at 100, at 200 and at 100; 0.9 at 300, never and at 200
        middle = {0: (0.6, 0.8, 0.9), 1: (0.4, 0.5, 0.89), 2: (0.5, 0.9, 0.7)}[seed]
        curve = [(0, 0.0, 0.0), *((step, 0.1, mastery) for step, mastery in zip((100, 200, 300), middle, strict=True))]
        make_run(tmp_path / "uniform" / f"run{seed}", seed, curve, (10.0, 20.0, 90.0)[seed], share(rate))
    make_run(tmp_path / "slow" / "run", 0, seconds=50.0, goals=share(0.5))
    make_run(tmp_path / "slow" / "half-way", 1, curve=[(0, 0.0, 0.0), (100, 0.2, 0.3)])
    runs, curves, goals, table = summed(tmp_path, "uniform")
    uniform, slow = table.loc["uniform"], table.loc["slow"]
    assert (uniform["runs"], uniform["finished"], uniform["step"]) == (3, 3, 300)
    assert uniform["greedy"] == pytest.approx(0.9)
    # sd 0.1, so 0.1 / sqrt(3) times the t of 2 degrees of freedom, 4.302653; above 1 it is clipped
    assert (uniform["greedy_low"], uniform["greedy_high"]) == pytest.approx((0.9 - 0.248414, 1.0), abs=1e-6)
    assert (uniform["steps_to_0.5"], uniform["steps_to_0.9"], uniform["steps_to_0.95"]) == (100, 300, np.inf)
    assert (uniform["training_seconds"], uniform["time_ratio"]) == (20.0, 1.0)
    assert np.isnan(uniform["held_out_greedy"])
    assert (slow["runs"], slow["finished"], slow["step"]) == (2, 1, 200)
    assert (slow["greedy"], np.isnan(slow["greedy_low"]), slow["time_ratio"]) == (pytest.approx(0.5), True, 2.5)
    with pytest.raises(PastRunError, match="base must be the label of a finished run, one of slow, uniform; got 'fast'"):
        tables.mastery(runs, curves, goals, "fast")


def test_goals_held_out(tmp_path):
    held_out = np.arange(N) >= N - 20
    make_run(tmp_path / "a" / "run", 4, goals=share(1 - 10 / N), held_out=held_out)
    _, curves, goals, table = summed(tmp_path)
    assert curves["held_out_greedy"].tolist() == [0.0, 0.45]
    (final,) = tables.finals(goals).to_dict("records")
    assert final["greedy"] == pytest.approx(1 - 10 / N)
    assert final["held_out_epsilon"] == table.loc["a", "held_out_epsilon"] == 0.5  # 10 of the last 20 fail


def test_runs_are_labelled_by_folder_and_by_what_differs(tmp_path, capsys):
    make_run(tmp_path / "one" / "first", 0, agent={"learning_rate": 0.1, "tau": 0.5}, preset="small")
    make_run(tmp_path / "one" / "second", 1, agent={"learning_rate": 0.1}, preset="paper")  # before there was tau
    for number, rate in enumerate((0.1, 0.2, 0.2)):
        make_run(tmp_path / "two" / f"run{number}", number, agent={"learning_rate": rate})
    (tmp_path / "two" / "other").mkdir()
    (tmp_path / "two" / "other" / "config.json").write_text('{"settings": {}}')
    assert reader.read([tmp_path])[["label", "seed"]].values.tolist() == [
        ["one", 0],
        ["one", 1],
        ["two, learning_rate=0.1", 0],
        ["two, learning_rate=0.2", 1],
        ["two, learning_rate=0.2", 2],
    ]
    assert f"left out: {tmp_path / 'two' / 'other'}, which has no measurement" in capsys.readouterr().out
    # given twice, it counts once
    assert len(reader.read([tmp_path / "one", tmp_path / "one" / "first"])) == 2


def test_of_runs_with_one_seed_the_one_that_came_furthest_counts(tmp_path, capsys):
    make_run(tmp_path / "one" / "c", 0, curve=[(0, 0.1, 0.1)])
    kept = make_run(tmp_path / "one" / "b", 0, goals={})
    make_run(tmp_path / "one" / "a", 0, goals={})
    assert reader.read([tmp_path])["path"].tolist() == [kept]
    printed = capsys.readouterr().out
    assert f"left out: {tmp_path / 'one' / 'a'}, seed 0 of one like {kept}" in printed
    assert f"left out: {tmp_path / 'one' / 'c'}" in printed


def test_what_is_no_summary_is_refused(tmp_path):
    run = make_run(tmp_path / "one" / "run", goals={})
    pd.read_csv(run / "goals.csv").iloc[:99].to_csv(run / "goals.csv", index=False)
    with pytest.raises(PastRunError, match=r"a row for each of 220 states, got 99 rows in .*run"):
        summed(tmp_path)
    with pytest.raises(ValueError, match="goals must be at least 1, got 0"):
        mastery.plan(MDP, 0, 10)
    (run / "config.json").write_text('{"settings": {"seed": "none"}}')
    with pytest.raises(PastRunError, match=r"one.run is not the folder of a run: "):
        reader.read([tmp_path])


def test_the_histogram_of_updates(tmp_path):
    held_out = np.arange(N) < 20
    counts = np.where(held_out, 0, 100)
    counts[-50:] = 400
    for seed in (0, 1):
        make_run(tmp_path / "many" / f"run{seed}", seed, goals={"updates": counts}, held_out=held_out)
    make_run(tmp_path / "table" / "run", goals={"updates": np.full(N, 7)})
    rows = tables.updates(summed(tmp_path)[2])
    assert set(rows["label"]) == {"many"}
    assert len(rows) == tables.BINS
    assert rows.iloc[[0, -1]][["low", "high", "goals", "share"]].to_numpy().tolist() == [
        [100, 110, 300, 0.75],
        [390, 400, 100, 0.25],
    ]


def test_failures_by_what_goals_show(tmp_path):
    # seed 0 never reaches goals with the agent in cell 5; seed 1 reaches those that it was not taught half of the time
    reached = np.where(MDP.agent == 5, 0.0, 1.0)
    held_out = np.arange(N) % 10 == 3
    make_run(tmp_path / "some" / "run", 0, goals={"greedy_reached": reached}, held_out=np.zeros(N, dtype=bool))
    make_run(tmp_path / "some" / "run1", 1, goals={"greedy_reached": np.where(held_out, 0.5, 1.0)}, held_out=held_out)
    rows = tables.failures(summed(tmp_path)[2], MDP)
    assert set(rows[(rows["goals"] == "held-out") & (rows["measure"] == "greedy")]["failures"]) == {0.5}
    assert set(rows[rows["measure"] == "epsilon"]["failures"]) == {0.0}
    taught = rows[(rows["goals"] == "taught") & (rows["measure"] == "greedy")]
    here = MDP.agent == 5

    def expected(shows):
        """Count and share of failures of goals that show it."""
        count = shows.sum() + (shows & ~held_out).sum()
        return count, pytest.approx((shows & here).sum() / count)

    cells = {
        (row.part, row.row * MDP.layout.width + row.column): (row.count_, row.failures)
        for row in taught.rename(columns={"count": "count_"}).dropna(subset=["row"]).itertuples()
    }
    assert {cell for part, cell in cells if part == "block"} == set(np.unique(MDP.blocks))
    for (part, cell), found in cells.items():
        assert found == expected(MDP.agent == cell if part == "agent" else (MDP.blocks == cell).any(axis=1))
    doors = taught[taught["part"] == "doors"].set_index("doors")
    for said, shows in (("D shut", ~MDP.doors_open[:, 0]), ("D open", MDP.doors_open[:, 0])):
        assert tuple(doors.loc[said, ["count", "failures"]]) == expected(shows)
    assert taught.groupby("part")["count"].sum().tolist() == [2 * N - held_out.sum()] * 3


def test_steps_are_pooled_over_episodes_that_reached(tmp_path):
    never = {"epsilon_reached": np.zeros(N), "epsilon_mean_steps": np.full(N, np.nan)}
    make_run(tmp_path / "some" / "run0", 0, goals=never | {"greedy_mean_steps": np.full(N, 10.0)})
    half = {"greedy_reached": np.full(N, 0.5), "greedy_mean_steps": np.full(N, 40.0)}
    make_run(tmp_path / "some" / "run1", 1, goals=never | half)
    rows = tables.steps(summed(tmp_path)[2], np.array([3, 7]), np.array([9.0, 8.5]))
    assert rows[["state", "optimal", "greedy", "greedy_reached"]].to_numpy().tolist() == [[3, 9, 20, 0.75], [7, 8.5, 20, 0.75]]
    assert rows["epsilon"].isna().all()


@given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=9))
def test_intervals_are_those_of_student(values):
    low, high = tables.student(values)
    assert 0.0 <= low <= np.mean(values) + 1e-12
    assert np.mean(values) - 1e-12 <= high <= 1.0
    if stats.sem(values) > 1e-9:
        exact = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
        assert (low, high) == pytest.approx(tuple(np.clip(exact, 0.0, 1.0)), abs=1e-9)
    assert np.isnan(tables.student(values[:1])).all()


def test_plans_are_for_goals_drawn_from_all_and_bounded(monkeypatch):
    small = mastery.plan(MDP, 1_000, 40)
    np.testing.assert_array_equal(small.goals, np.arange(N))
    np.testing.assert_allclose(small.distances, expected_steps(MDP, small.goals), atol=0.01)
    assert small.ceiling > mastery.plan(MDP, N, 10).ceiling > 0.2
    assert mastery.plan(MDP, 5, 10).distances.shape == (N, 5)
    monkeypatch.setattr(mastery, "MOST_PAIRS", 3 * N + 1)
    assert len(mastery.plan(MDP, 1_000, 10).goals) == 3
    monkeypatch.setattr(mastery, "MOST_PAIRS", N - 1)
    assert len(mastery.plan(MDP, 1_000, 10).goals) == 1


def leave(root, agent, seed, returns, seconds=10.0, game="Maze-v0", steps=(100, 200, 300), total=300):
    """A run of A2C as it would be left behind."""
    folder = root / f"{agent}-{seed}-{game}"
    folder.mkdir(parents=True)
    settings = {"game": game, "agent": agent, "seed": seed, "world": "two_rooms", "steps": total}
    (folder / "config.json").write_text(json.dumps({"settings": settings}))
    with (folder / "curve.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "episode_return", "training_seconds"])
        for number, (step, value) in enumerate(zip(steps, returns, strict=False)):
            writer.writerow([step, value, seconds * (number + 1) / len(returns)])


def returned(root):
    runs = reader.read([root])
    curves = reader.returns(runs)
    return curves, tables.returns(curves, runs).set_index("agent")


def test_interquartile_means_of_returns_by_hand(tmp_path):
    for seed, last in enumerate((9.0, 0.0, 2.0, 1.0)):
        leave(tmp_path, "a2c", seed, [0.0, last / 2, last])
    row = returned(tmp_path)[1].loc["a2c"]
    assert (row["seeds"], row["step"]) == (4, 300)
    assert row["final"] == 1.5  # of four, the lowest and the highest are left out
    assert row["area"] == 0.75  # each run's mean is half of its last return: 4.5, 0, 1, 0.5
    assert 0.0 <= row["final_low"] < 1.5 < row["final_high"] <= 9.0


def test_time_is_that_of_a_step_and_all_seeds_alike_have_no_width(tmp_path):
    for seed in range(3):
        leave(tmp_path, "a2c", seed, [0.25, 0.5, 0.75])
        leave(tmp_path, "many_goals", seed, [1, 1], seconds=10.0)
    table = returned(tmp_path)[1]
    assert table.loc["a2c", ["final_low", "final", "final_high"]].tolist() == [0.5] * 3  # at 200, where all are
    assert table.loc["a2c", "area"] == 0.375
    assert table["time_ratio"].tolist() == pytest.approx([1.0, (10 / 200) / (10 / 300)])


def test_returns_are_compared_where_all_runs_are(tmp_path, capsys):
    leave(tmp_path / "one", "a2c", 0, [1.0, 2.0, 3.0])
    leave(tmp_path / "one", "many_goals", 0, [5.0, 6.0], steps=(200, 300))
    leave(tmp_path / "one", "many_goals", 1, [7.0], steps=(200,))
    curves, table = returned(tmp_path / "one")
    assert len(curves) == 6
    assert (table.loc["a2c", "final"], table.loc["many_goals", "final"]) == (2.0, 6.0)
    assert np.isnan(table.loc["a2c", "final_low"])
    assert np.isfinite(table.loc["many_goals", "final_low"])
    leave(tmp_path / "apart", "a2c", 0, [1.0], steps=(100,))
    leave(tmp_path / "apart", "a2c", 1, [1.0], steps=(200,))
    assert returned(tmp_path / "apart")[1].empty
    assert "left out: returns in Maze-v0, whose runs have no step in common" in capsys.readouterr().out


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(-9, 9)), min_size=1, max_size=40))
def test_binned_returns_are_means_of_what_was_logged_since_the_last(curve):
    found = reader.binned(pd.DataFrame(curve, columns=["step", "episode_return"]), 1000)
    found = dict(found.itertuples(index=False, name=None))  # bins of 20 steps; the first has those at step 0 too
    for end in range(20, 1001, 20):
        inside = [value for step, value in curve if end - 20 < step <= end or (end == 20 and step == 0)]
        assert (end in found) == bool(inside)
        if inside:
            assert found[end] == pytest.approx(np.mean(inside))
    assert set(found) <= set(range(20, 1001, 20))
