import csv
import json

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scipy import stats

import gym_twoRooms  # noqa: F401
from benchmarks import goal_tables, summary, summary_tables, tabular, value_errors
from benchmarks.mastery import MasteryConfig
from benchmarks.past_runs import PastRunError, collect
from benchmarks.summary import SummaryConfig, plan
from benchmarks.worlds import World
from gym_twoRooms.layout import Layout
from gym_twoRooms.mdp import compile_layout
from gym_twoRooms.oracle import expected_steps, optimal_values
from sb3_manygoals import PAPER, ManyGoalsDQN
from tests.benchmarks.command_line import command

SMALL = "TwoRoomsSwitchSmall-v0"
MDP = compile_layout(Layout.named("small"))
N = MDP.n_states
DEFAULTS = {"env_id": SMALL, "total_steps": 300, "eval_steps": 200, "eval_epsilon": 0.1, "agent": {"learning_rate": 0.1}}
TABLES = ["curves.csv", "finals.csv", "table.csv", "table.md", "updates.csv", "failures.csv", "steps.csv"]
PICTURES = ["mastery.png", "updates.png", "failures_greedy.png", "failures_epsilon.png", "steps.png"]


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
        columns |= goals
        rows = zip(range(N), *(columns[name] for name in columns), strict=True)
        with (folder / "goals.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["state", *columns])
            writer.writerows([["" if value is None else value for value in row] for row in rows])
    return folder


def share(rate):
    """goals.csv of which this share of goals is reached."""
    reached = (np.arange(N) < round(rate * N)).astype(float)
    return {"greedy_reached": reached, "epsilon_reached": reached}


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_table_by_hand(tmp_path):
    for seed, rate in enumerate((0.8, 0.9, 1.0)):
        # 0.5 first at 100, at 200 and at 100; 0.9 at 300, never and at 200
        middle = {0: (0.6, 0.8, 0.9), 1: (0.4, 0.5, 0.89), 2: (0.5, 0.9, 0.7)}[seed]
        curve = [(0, 0.0, 0.0), *((step, 0.1, mastery) for step, mastery in zip((100, 200, 300), middle, strict=True))]
        make_run(tmp_path / "uniform" / f"run{seed}", seed, curve, (10.0, 20.0, 90.0)[seed], share(rate))
    make_run(tmp_path / "slow" / "run", 0, seconds=50.0, goals=share(0.5))
    make_run(tmp_path / "slow" / "half-way", 1, curve=[(0, 0.0, 0.0), (100, 0.2, 0.3)])
    runs = collect([tmp_path])
    slow, uniform = summary_tables.table(runs, base="uniform")
    assert (uniform["label"], uniform["runs"], uniform["finished"], uniform["step"]) == ("uniform", 3, 3, 300)
    assert uniform["greedy"] == pytest.approx(0.9)
    # sd 0.1, so 0.1 / sqrt(3) times the t of 2 degrees of freedom, 4.302653; above 1 it is clipped
    assert (uniform["greedy_low"], uniform["greedy_high"]) == pytest.approx((0.9 - 0.248414, 1.0), abs=1e-6)
    assert (uniform["steps_to_0.5"], uniform["steps_to_0.9"], uniform["steps_to_0.95"]) == (100, 300, np.inf)
    assert (uniform["training_seconds"], uniform["time_ratio"]) == (20.0, 1.0)
    assert "held_out_greedy" not in uniform
    assert (slow["runs"], slow["finished"], slow["step"]) == (2, 1, 200)
    assert (slow["greedy"], slow["greedy_low"], slow["time_ratio"]) == (pytest.approx(0.5), None, 2.5)
    text = summary_tables.markdown([slow, uniform], 0.1, "uniform").splitlines()
    assert text[0] == (
        "| runs of | seeds | greedy | epsilon 0.1 | steps to 0.5 | steps to 0.9 | steps to 0.95 | seconds | time / uniform |"
    )
    assert text[2].startswith("| slow | 1 of 2, at step 200 | 0.500 | 0.500 | 300 | 300 | not reached | 50 | 2.50 |")
    assert text[3] == ("| uniform | 3 | 0.900 [0.652, 1.000] | 0.900 [0.652, 1.000] | 100 | 300 | not reached | 20 | 1.00 |")
    with pytest.raises(PastRunError, match="base must be the label of a finished run, one of slow, uniform; got 'fast'"):
        summary_tables.table(runs, base="fast")


def test_curves_and_finals_of_runs_with_goals_held_out(tmp_path):
    held_out = np.arange(N) >= N - 20
    make_run(tmp_path / "a" / "run", 4, goals=share(1 - 10 / N), held_out=held_out)
    make_run(tmp_path / "b" / "run", 4, curve=[(0, 0.25, 0.5)])
    runs = collect([tmp_path])
    assert summary_tables.curves(runs) == [
        {
            "label": "a",
            "seed": 4,
            "step": step,
            **{"greedy": rate, "epsilon": rate, "held_out_greedy": half, "held_out_epsilon": half},
            "training_seconds": seconds,
        }
        for step, rate, half, seconds in ((0, "0.0000", "0.0000", "0.0"), (300, "0.9000", "0.4500", "10.0"))
    ] + [{"label": "b", "seed": 4, "step": 0, "greedy": "0.2500", "epsilon": "0.5000", "training_seconds": "0.0"}]
    done, begun = summary_tables.finals(runs)
    assert done["greedy"] == pytest.approx(1 - 10 / N, abs=1e-6)
    assert done["held_out_epsilon"] == 0.5  # 10 of the last 20 fail
    assert (begun["finished"], begun["step"], "greedy" in begun) == (0, 0, False)


def test_runs_are_labelled_by_folder_and_by_what_differs(tmp_path, capsys):
    make_run(tmp_path / "one" / "first", 0, agent={"learning_rate": 0.1, "tau": 0.5}, preset="small", held_out=None)
    make_run(tmp_path / "one" / "second", 1, agent={"learning_rate": 0.1}, preset="paper")  # before there was tau
    for number, rate in enumerate((0.1, 0.2, 0.2)):
        make_run(tmp_path / "two" / f"run{number}", number, agent={"learning_rate": rate})
    (tmp_path / "two" / "other").mkdir()
    (tmp_path / "two" / "other" / "config.json").write_text('{"settings": {}}')
    assert [(run.label, run.seed) for run in collect([tmp_path])] == [
        ("one", 0),
        ("one", 1),
        ("two, learning_rate=0.1", 0),
        ("two, learning_rate=0.2", 1),
        ("two, learning_rate=0.2", 2),
    ]
    assert f"left out: {tmp_path / 'two' / 'other'}, which has no mastery.csv" in capsys.readouterr().out
    # given twice, it counts once
    assert len(collect([tmp_path / "one", tmp_path / "one" / "first"])) == 2


def test_of_runs_with_one_seed_the_one_that_came_furthest_counts(tmp_path, capsys):
    make_run(tmp_path / "one" / "c", 0, curve=[(0, 0.1, 0.1)])
    kept = make_run(tmp_path / "one" / "b", 0, goals={})
    make_run(tmp_path / "one" / "a", 0, goals={})
    assert [run.folder for run in collect([tmp_path])] == [kept]
    printed = capsys.readouterr().out
    assert f"left out: {tmp_path / 'one' / 'a'}, seed 0 of one like {kept}" in printed
    assert f"left out: {tmp_path / 'one' / 'c'}" in printed


def test_folders_that_make_no_summary_are_refused(tmp_path):
    with pytest.raises(PastRunError, match=r"runs must be folders, got .*nowhere"):
        collect([tmp_path / "nowhere"])
    with pytest.raises(PastRunError, match=r"at least one folder with config\.json and mastery\.csv, got none"):
        collect([tmp_path])
    run = make_run(tmp_path / "one" / "run", goals={})
    other = make_run(tmp_path / "other" / "run", env_id="TwoRoomsSwitch-v0")
    with pytest.raises(PastRunError, match="runs must agree in env_id, got TwoRoomsSwitch-v0, TwoRoomsSwitchSmall-v0"):
        collect([run, other])
    lines = (run / "goals.csv").read_text().splitlines()
    (run / "goals.csv").write_text("\n".join(lines[:100]))
    with pytest.raises(PastRunError, match=r"a row for each of 220 states, got 99 rows in .*run"):
        SummaryConfig((run,), tmp_path / "out").run()
    with pytest.raises(ValueError, match="goals must be at least 1, got 0"):
        plan(MDP, 0, 10)


def test_the_histogram_of_updates(tmp_path):
    held_out = np.arange(N) < 20
    counts = np.where(held_out, 0, 100)
    counts[-50:] = 400
    make_run(tmp_path / "many" / "run", goals={"updates": counts}, held_out=held_out)
    make_run(tmp_path / "many" / "run1", 1, goals={"updates": counts + 0}, held_out=held_out)
    make_run(tmp_path / "table" / "run", goals={"updates": np.full(N, 7)})
    rows = goal_tables.updates(collect([tmp_path]))
    assert {row["label"] for row in rows} == {"many"}
    assert len(rows) == goal_tables.BINS
    assert [(row["low"], row["high"], row["goals"]) for row in (rows[0], rows[-1])] == [
        ("100.0", "110.0", 300),
        ("390.0", "400.0", 100),
    ]
    assert sum(row["goals"] for row in rows) == 400
    assert (rows[0]["share"], rows[-1]["share"]) == ("0.750000", "0.250000")


def test_failures_by_what_goals_show(tmp_path):
    # seed 0 never reaches goals with the agent in cell 5; seed 1 reaches those that it was not taught half of the time
    reached = np.where(MDP.agent == 5, 0.0, 1.0)
    held_out = np.arange(N) % 10 == 3
    make_run(tmp_path / "some" / "run", 0, goals={"greedy_reached": reached}, held_out=np.zeros(N, dtype=bool))
    make_run(tmp_path / "some" / "run1", 1, goals={"greedy_reached": np.where(held_out, 0.5, 1.0)}, held_out=held_out)
    rows = goal_tables.failures(collect([tmp_path]), MDP)
    found = {
        (row["goals"], row["measure"], row["part"], row.get("row"), row.get("column"), row.get("doors")): (
            row["count"],
            float(row["failures"]),
        )
        for row in rows
    }
    row, column = divmod(5, MDP.layout.width)
    here = MDP.agent == 5
    count = int(here.sum() + (here & ~held_out).sum())
    assert found["taught", "greedy", "agent", row, column, None] == (count, pytest.approx(here.sum() / count, abs=1e-4))
    assert found["taught", "epsilon", "agent", row, column, None] == (count, 0.0)
    assert {failed for key, (_, failed) in found.items() if key[0] == "held-out" and key[1] == "greedy"} == {0.5}
    blocks = [key for key in found if key[:3] == ("taught", "greedy", "block")]
    assert sorted(key[3:5] for key in blocks) == sorted(divmod(cell, MDP.layout.width) for cell in np.unique(MDP.blocks))
    for key in blocks:
        with_block = (MDP.blocks == key[3] * MDP.layout.width + key[4]).any(axis=1)
        total = with_block.sum() + (with_block & ~held_out).sum()
        assert found[key] == (total, pytest.approx((with_block & here).sum() / total, abs=1e-4))
    shut = ~MDP.doors_open[:, 0]
    total = shut.sum() + (shut & ~held_out).sum()
    assert found["taught", "greedy", "doors", None, None, "D shut"] == (
        total,
        pytest.approx((shut & here).sum() / total, abs=1e-4),
    )
    assert ("taught", "greedy", "doors", None, None, "D open") in found
    # goals of each part add up to all
    for part in ("agent", "block", "doors"):
        counts = [count for key, (count, _) in found.items() if key[:3] == ("taught", "greedy", part)]
        assert sum(counts) == 2 * N - held_out.sum()


def test_steps_are_pooled_over_episodes_that_reached(tmp_path):
    first = {"greedy_reached": np.full(N, 1.0), "greedy_mean_steps": np.full(N, 10.0)}
    second = {"greedy_reached": np.full(N, 0.5), "greedy_mean_steps": np.full(N, 40.0)}
    for goals in (first, second):
        goals["epsilon_reached"], goals["epsilon_mean_steps"] = np.zeros(N), [None] * N
    for seed, goals in enumerate((first, second)):
        make_run(tmp_path / "some" / f"run{seed}", seed, goals=goals)
    rows = goal_tables.steps(collect([tmp_path]), np.array([3, 7]), np.array([9.0, 8.5]))
    assert rows == [
        {
            **{"label": "some", "state": state, "optimal": optimal, "greedy": "20.00", "greedy_reached": "0.7500"},
            **{"epsilon": None, "epsilon_reached": "0.0000"},
        }
        for state, optimal in ((3, "9.000"), (7, "8.500"))
    ]


@given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=9))
def test_intervals_are_those_of_student(values):
    low, high = summary_tables.interval(values)
    assert 0.0 <= low <= np.mean(values) + 1e-12
    assert np.mean(values) - 1e-12 <= high <= 1.0
    if stats.sem(values) > 1e-9:
        exact = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
        assert (low, high) == pytest.approx(tuple(np.clip(exact, 0.0, 1.0)), abs=1e-9)
    assert summary_tables.interval(values[:1]) is None


def test_plans_are_for_goals_drawn_from_all_and_bounded(monkeypatch):
    small = plan(MDP, 1_000, 40)
    np.testing.assert_array_equal(small.goals, np.arange(N))
    np.testing.assert_allclose(small.distances, expected_steps(MDP, small.goals), atol=0.01)
    assert small.ceiling > plan(MDP, N, 10).ceiling > 0.2
    few = plan(MDP, 5, 10)
    assert len(set(few.goals.tolist())) == 5
    assert few.distances.shape == (N, 5)
    monkeypatch.setattr(summary, "MOST_PAIRS", 3 * N + 1)
    assert len(plan(MDP, 1_000, 10).goals) == 3
    monkeypatch.setattr(summary, "MOST_PAIRS", N - 1)
    assert len(plan(MDP, 1_000, 10).goals) == 1


@pytest.fixture(scope="module")
def exact():
    return optimal_values(MDP, np.arange(N))


def make_table_run(folder, seed, values, held_out=None):
    run = make_run(folder, seed, goals={}, held_out=held_out)
    model = tabular.make(World(SMALL), World(SMALL).tables, 1, 300, 0, {})
    model.table.values[:] = values
    model.save(run / "model.zip")
    return run


def test_value_errors_of_tables(tmp_path, exact, capsys):
    held_out = np.arange(N) % 4 == 0
    make_table_run(tmp_path / "right" / "run", 1, exact)
    make_table_run(tmp_path / "right" / "later", 2, 0 * exact)  # only the lowest seed is looked at
    off = exact + np.where(held_out, 0.5, -0.25)  # by the goal
    make_table_run(tmp_path / "off" / "run", 0, off, held_out)
    make_table_run(tmp_path / "worst" / "run", 0, -exact)
    runs = value_errors.chosen(collect([tmp_path]))
    assert [(run.label, run.seed) for run in runs] == [("off", 0), ("right", 1), ("worst", 0)]
    goals = np.arange(0, N, 3)
    distances = expected_steps(MDP, goals)
    rows = value_errors.values(runs, MDP, goals, distances)
    overall = {(row["label"], row["goals"]): row for row in rows if (row["steps_from"], row["steps_to"]) == (0, np.inf)}
    assert overall.keys() == {("right", "taught"), ("off", "taught"), ("off", "held-out"), ("worst", "taught")}

    def found(*key):
        return tuple(float(overall[key][name]) for name in ("bias", "rms", "greedy_optimal"))

    assert found("right", "taught") == (pytest.approx(0, abs=1e-4), pytest.approx(0, abs=1e-4), 1.0)
    assert found("off", "taught") == (pytest.approx(-0.25, abs=1e-4), pytest.approx(0.25, abs=1e-4), 1.0)
    assert found("off", "held-out") == (pytest.approx(0.5, abs=1e-4), pytest.approx(0.5, abs=1e-4), 1.0)
    assert found("worst", "taught")[2] < 0.1
    assert overall["right", "taught"]["pairs"] == (N - 1) * len(goals)
    assert float(overall["right", "taught"]["exact"]) == pytest.approx(
        exact.max(axis=1)[:, goals][distances > 0].mean(), abs=1e-4
    )
    bins = [row for row in rows if row["label"] == "right" and (row["steps_from"], row["steps_to"]) != (0, np.inf)]
    assert sum(row["pairs"] for row in bins) == (N - 1) * len(goals)
    assert bins[0]["pairs"] == ((distances > 0) & (distances < 1.5)).sum()
    assert [row["steps_to"] for row in bins] == [*value_errors.DISTANCES, np.inf][: len(bins)]
    assert not capsys.readouterr().out


def test_bias_and_rms_are_told_apart(tmp_path, exact):
    """An error of 0.3 and -0.1 from starts in turn: mean 0.1, mean square 0.05."""
    error = np.where(np.arange(N) % 2 == 0, 0.3, -0.1)[:, None, None]
    make_table_run(tmp_path / "noisy" / "run", 0, exact + error)
    goals = np.arange(N)
    (row,) = value_errors.values(collect([tmp_path]), MDP, goals, np.where(np.eye(N), 0.0, 100.0))[-1:]
    assert float(row["bias"]) == pytest.approx(0.1, abs=1e-3)
    assert float(row["rms"]) == pytest.approx(0.05**0.5, abs=1e-3)


def test_learnt_values_are_those_by_which_the_network_acts(tmp_path):
    policy = PAPER["policy_kwargs"] | {"embedding_dim": 16, "ema_decay": 0.9}
    settings = PAPER | {"buffer_size": 100, "gamma": 0.95, "policy_kwargs": policy}
    model = ManyGoalsDQN("CnnPolicy", SMALL, seed=3, device="cpu", **settings)
    with th.no_grad():
        for weights in model.policy.q_net_ema.parameters():
            weights.add_(0.1 * th.randn_like(weights))
    run = make_run(tmp_path / "net" / "run", goals={})
    model.save(run / "model.zip")
    goals = np.array([4, 100, 219])
    (past,) = collect([tmp_path])
    values, rewards = value_errors.learnt_values(past, MDP, goals)
    assert rewards == (0.95, -0.1, 0.0)
    assert values.shape == (N, 5, 3)
    states, pursued = np.repeat(np.arange(N), 3), np.tile(goals, N)
    pictures = [th.as_tensor(MDP.observations[numbers]) for numbers in (states, pursued)]
    with th.no_grad():
        expected = model.policy.q_net_ema(*pictures).numpy().reshape(N, 3, 5)
    np.testing.assert_allclose(values, expected.transpose(0, 2, 1), atol=1e-5)
    observation = {"observation": MDP.observations[states], "desired_goal": MDP.observations[pursued]}
    actions, _ = model.predict(observation | {"achieved_goal": observation["observation"]}, deterministic=True)
    assert (values.argmax(axis=1).ravel() == actions).mean() > 0.99


def test_models_of_another_kind_are_left_out(tmp_path, capsys):
    from stable_baselines3 import DQN

    run = make_run(tmp_path / "dqn" / "run", goals={})
    DQN("MlpPolicy", gym.make("CartPole-v1"), buffer_size=10).save(run / "model.zip")
    assert value_errors.values(collect([tmp_path]), MDP, np.arange(3), np.ones((N, 3))) == []
    assert f"left out: values of {run}, whose model is of another kind" in capsys.readouterr().out


def test_pictures_are_of_what_there_is_and_old_ones_do_not_stay(tmp_path):
    held_out = np.arange(N) < 30
    runs = tmp_path / "runs"
    for seed in range(2):
        make_run(runs / "held_out" / f"run{seed}", seed, goals=share(0.7), held_out=held_out)
    make_run(runs / "begun" / "run", 0, curve=[(0, 0.1, 0.2)])
    out = SummaryConfig((runs,), tmp_path / "out", goals=20).run()
    assert {path.name for path in out.iterdir()} == {*TABLES, *PICTURES, "held_out.png"}
    for path in out.glob("*.png"):
        with Image.open(path) as picture:
            assert len(picture.convert("RGB").getcolors(2**24)) > 20, path
    SummaryConfig((runs / "begun",), out, goals=20).run()
    assert {path.name for path in out.iterdir()} == {*TABLES, "mastery.png"}


def test_real_runs_on_the_command_line(tmp_path):
    common = {"total_steps": 800, "eval_freq": 400, "final_episodes": 1, "progress_bar": False, "threads": 1, "env_id": SMALL}
    MasteryConfig(agent="table", output=tmp_path / "runs" / "table", n_envs=4, **common).run()
    tiny = json.dumps({"policy_kwargs": {"net_arch": [16], "embedding_dim": 16}, "learning_starts": 100})
    held_out = MasteryConfig(
        output=tmp_path / "runs" / "held out", n_envs=2, agent_kwargs=tiny, held_out=0.2, seed=0, **common
    )
    folder = held_out.run()
    arguments = ["summary", "--runs", str(tmp_path / "runs"), "--values", "--goals", "30", "--output", str(tmp_path / "out")]
    done = command(*arguments, "--base", "held out")
    assert done.returncode == 0, done.stderr
    assert "| held out | 1 |" in done.stdout
    out = tmp_path / "out"
    assert {path.name for path in out.iterdir()} == {*TABLES, *PICTURES, "held_out.png", "values.csv", "values.png"}
    (final, _) = read(out / "finals.csv")
    goals = read(folder / "goals.csv")
    assert float(final["epsilon"]) == pytest.approx(np.mean([float(row["epsilon_reached"]) for row in goals]), abs=1e-6)
    assert {(row["label"], row["goals"]) for row in read(out / "values.csv")} == {
        ("held out", "taught"),
        ("held out", "held-out"),
        ("table", "taught"),
    }
    assert len(read(out / "steps.csv")) == 2 * 30
    wrong = command(*arguments, "--base", "nobody")
    assert wrong.returncode == 1
    assert wrong.stderr.startswith("error: base must be the label of a finished run, one of held out, table; got 'nobody'")
