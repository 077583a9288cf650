import dataclasses
import importlib
import json
import shlex
import subprocess
import sys
from typing import get_args

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from PIL import Image

from benchmarks import recording
from benchmarks.agents.arguments import read_arguments
from benchmarks.agents.heads import HeadsDQN
from benchmarks.agents.hindsight import HindsightDQN
from benchmarks.agents.mastery import SELECTORS, Agent, make, merged
from benchmarks.mastery import MasteryConfig, choose_held_out
from benchmarks.studies.mastery import ABLATIONS
from benchmarks.worlds import SettingError, World
from gym_twoRooms.layout import NAMED_LAYOUTS
from sb3_manygoals import (
    PAPER,
    ManyGoalsDQN,
    PlannedTargets,
    TabularAllGoals,
    TDTargets,
    evaluation,
)
from sb3_manygoals.many_goals_dqn import MlpPolicy
from tests import ROOT
from tests.benchmarks.command_line import command, printed, rows_of
from tests.benchmarks.report.page_numbers import text_of
from tests.sb3_manygoals.worlds import Corridor

SMALL = World("TwoRoomsSwitchSmall-v0")
GRID = "MiniGrid-Empty-5x5-v0"
TINY = {
    "policy_kwargs": {"net_arch": [16], "embedding_dim": 8},
    "batch_size": 16,
    "goal_batch_size": 24,
}
KWARGS = {
    **dict.fromkeys(("default", "td", "paper"), TINY),
    "table": {},
    "hindsight": {"gradient_steps": 1},
    "heads": {"policy_kwargs": {"net_arch": [16]}, "updates_per_step": 0.05},
}
"""Arguments that make each agent small."""

QUICK = [
    *shlex.split("--map small --total-steps 2400 --eval-freq 1200 --eval-steps 40"),
    *shlex.split("--final-episodes 1 --threads 1 --seed 3"),
    *("--n-envs", "4", "--agent-kwargs", json.dumps(TINY | {"updates_per_step": 0.05})),
]
"""Options of a run that is short."""


def config(**options):
    """Return the settings of a small run."""
    settings = {
        "env_id": SMALL.id,
        "total_steps": 1_200,
        "n_envs": 4,
        "eval_freq": 600,
        "eval_steps": 40,
        "final_episodes": 1,
    }
    settings |= {
        "seed": 1,
        "progress_bar": False,
        "agent_kwargs": json.dumps(KWARGS[options.get("agent", "default")]),
    }
    return MasteryConfig(**settings | options)


@pytest.fixture
def without_pictures(monkeypatch):
    """Runs make no film and no report, which take longer than all else that short runs do."""
    monkeypatch.setattr("benchmarks.film.reaching", lambda *_: None)
    monkeypatch.setattr("benchmarks.report.study.write", lambda *_: None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a run of the command."""
    output = tmp_path_factory.mktemp("runs")
    said = printed("mastery", *QUICK, "--output", str(output))
    assert "known: " in said
    assert "of 220 reachable observations" in said
    (made,) = output.iterdir()
    assert f"open {made / 'report.html'} and {made / 'demo.html'}" in said
    return made


def test_the_run_folder_holds_everything(folder):
    files = {path.name for path in folder.iterdir()}
    tables = {"config.json", "progress.csv", "mastery.csv", "goals.csv", "summary.csv"}
    assert files >= tables | {
        "model.zip",
        "world.npz",
        "reaching.gif",
        "report.html",
        "report-data",
        "demo.html",
    }
    assert folder.name.startswith("mastery-default-TwoRoomsSwitch-small-seed3-")
    record = json.loads((folder / "config.json").read_text())
    assert record["settings"]["seed"] == 3
    assert record["settings"]["map"] == "small"
    assert record["settings"]["agent"] == "default"
    assert record["versions"].keys() >= {
        "python",
        "torch",
        "stable-baselines3",
        "gymnasium",
        "sb3-manygoals",
    }
    assert MasteryConfig.saved(folder).world == World("TwoRoomsSwitch-v0", "small")
    model = ManyGoalsDQN.load(folder / "model.zip", env=SMALL.make())
    model.load_world(folder / "world.npz")
    assert model.num_timesteps == 2400
    assert len(model.goal_buffer) == int(rows_of(folder / "summary.csv")[0]["known"])
    html = (folder / "report.html").read_text()
    assert html.count("data:image/gif") == 1
    assert '<a href="demo.html">Set it a goal' in html


def test_the_tables_agree_with_each_other(folder):
    curve = rows_of(folder / "mastery.csv")
    assert [int(row["step"]) for row in curve] == [0, 1200, 2400]
    assert all(
        float(row["greedy_low"]) <= float(row["greedy"]) <= float(row["greedy_high"])
        for row in curve
    )
    progress = [
        float(row["mastery/greedy"])
        for row in rows_of(folder / "progress.csv")
        if row["mastery/greedy"]
    ]
    assert progress == pytest.approx([float(row["greedy"]) for row in curve], abs=1e-4)
    goals = rows_of(folder / "goals.csv")
    assert [int(row["state"]) for row in goals] == list(range(220))
    (summary,) = rows_of(folder / "summary.csv")
    assert sum(int(row["updates"]) for row in goals) == 24 * int(summary["updates"]) > 0
    page = text_of(folder / "report.html")
    for measure in ("greedy", "epsilon"):
        rate = np.mean([float(row[f"{measure}_reached"]) for row in goals])
        assert float(summary[measure]) == pytest.approx(rate, abs=1e-4)
        assert f"{measure} {rate:.4f}" in page
    assert (summary["reachable"], summary["measured"], summary["steps"]) == ("220", "220", "2400")
    assert summary["targets"] == "PlannedTargets"
    assert summary["agent"] == "default"
    assert summary["seed"] == "3"
    # Random actions master .05 of the goals.
    assert 0.3 < float(summary["plan"]) <= 1.0
    assert float(summary["ceiling"]) == pytest.approx(1.0, abs=0.05)
    assert f"knows {summary['known']} of the 220 observations" in page


@pytest.mark.parametrize(
    ("agent", "world", "steps"),
    [
        *((agent, "FrozenLake8x8-v1", 480) for agent in get_args(Agent)),
        *((a, SMALL.id, 480) for a in ("paper", "table")),
    ],
)
def test_every_agent_by_the_same_command_and_clock(agent, world, steps, tmp_path):
    given = json.dumps(merged(KWARGS[agent], {} if agent == "table" else {"learning_starts": 210}))
    # The film shows as many steps to each goal as are measured.
    sizes = {"total_steps": steps, "eval_freq": steps, "eval_steps": 20, "output": tmp_path}
    folder = config(agent=agent, env_id=world, agent_kwargs=given, **sizes).run()
    (summary,) = rows_of(folder / "summary.csv")
    n_states = 220 if world == SMALL.id else 64
    assert summary["agent"] == agent
    assert summary["reachable"] == str(n_states)
    assert summary["measured"] == str(n_states)
    assert (summary["world"], summary["steps"]) == (world.removesuffix("-v0"), str(steps))
    assert 10 < int(summary["known"]) <= n_states
    assert (
        0.0
        <= float(summary["greedy_low"])
        <= float(summary["greedy"])
        <= float(summary["greedy_high"])
        <= 1.0
    )
    assert 0.3 < float(summary["ceiling"]) <= 1.0
    targets = {
        "default": "PlannedTargets",
        "td": "TDTargets",
        "paper": "TDTargets",
        "heads": "HeadsTargets",
    }
    assert summary["targets"] == targets.get(agent, "")
    assert bool(summary["plan"]) == (agent == "default")
    assert (summary["updates"] == "") == (agent == "table")
    assert summary["updates"] != "0"
    goals = rows_of(folder / "goals.csv")
    if agent == "table":
        assert {row["updates"] for row in goals} == {summary["steps"]}
    # Both worlds render.
    assert (folder / "reaching.gif").exists()
    assert (folder / "demo.html").exists() == (world == SMALL.id and agent in ("default", "paper"))


def test_a_world_that_cannot_be_written_out_is_measured_by_what_is_known(tmp_path, capsys):
    folder = config(env_id="CartPole-v1", n_envs=2, most_goals=50, output=tmp_path).run()
    said = capsys.readouterr().out
    assert "begins at random, and has no model in P" in said
    assert "The goals that are measured are those known in the end" in said
    assert "how many can be reached is not known" in said
    (summary,) = rows_of(folder / "summary.csv")
    assert (summary["reachable"], summary["ceiling"], summary["measured"]) == ("", "", "50")
    assert int(summary["known"]) > 500
    goals = rows_of(folder / "goals.csv")
    # Another run knows other goals, so none has a number.
    assert {row["state"] for row in goals} == {""}
    assert any(int(row["updates"]) > 0 for row in goals)
    assert "how many can be reached is not known" in (folder / "report.html").read_text()
    with pytest.raises(
        SettingError, match=r"held_out must be 0 where not all goals are known before, got 0\.2"
    ):
        config(env_id="CartPole-v1", held_out=0.2, output=tmp_path).run()


@pytest.fixture
def goals_of_a_corridor(tmp_path):
    """Three of the nine observations of a world that begins at random, in a file."""
    gym.register("Corridor-v0", Corridor, kwargs={"length": 9}, disable_env_checker=True)
    file = tmp_path / "goals.npy"
    np.save(file, np.eye(9, dtype=np.uint8)[[1, 4, 8]])
    yield file
    gym.registry.pop("Corridor-v0")


@pytest.mark.parametrize("agent", ["default", "hindsight", "heads"])
def test_goals_in_a_file_measure_any_agent(
    agent, goals_of_a_corridor, tmp_path, capsys, without_pictures
):
    options = {"env_id": "Corridor-v0", "eval_goals": str(goals_of_a_corridor), "total_steps": 400}
    folder = config(agent=agent, eval_freq=200, output=tmp_path / "runs", **options).run()
    said = capsys.readouterr().out
    assert f"The goals that are measured are those in {goals_of_a_corridor}" in said
    assert [row["step"] for row in rows_of(folder / "mastery.csv")] == ["0", "200", "400"]
    (summary,) = rows_of(folder / "summary.csv")
    assert (summary["known"], summary["reachable"], summary["measured"]) == ("9", "", "3")
    goals = rows_of(folder / "goals.csv")
    assert [row["state"] for row in goals] == ["0", "1", "2"]
    reached = sum(float(row["greedy_reached"]) for row in goals)
    assert float(summary["greedy"]) == pytest.approx(reached / 3, abs=1e-3)


def test_a_run_goes_on_with_the_goals_that_it_was_begun_with(
    goals_of_a_corridor, tmp_path, without_pictures
):
    file = str(goals_of_a_corridor)
    begun = config(
        env_id="Corridor-v0", eval_goals=file, total_steps=200, eval_freq=200, output=tmp_path / "a"
    )
    # A study makes the folder first. The run may be killed before it has kept its goals.
    folder = tmp_path / "a" / "run"
    folder.mkdir(parents=True)
    recording.write_config(folder, begun)
    recording.carry_out(begun, folder)
    copy = folder / "eval_goals.npy"
    goes_on = dataclasses.replace(begun, total_steps=400, resume=folder)
    np.save(file, np.eye(9, dtype=np.uint8)[:4])
    with pytest.raises(SettingError, match=rf"other goals than when the run was begun.*{copy}"):
        goes_on.run()
    with pytest.raises(SettingError, match=f"eval_goals must be {file}, .*, got None"):
        dataclasses.replace(goes_on, eval_goals=None).run()
    goals_of_a_corridor.unlink()
    assert goes_on.run() == folder
    assert [row["step"] for row in rows_of(folder / "mastery.csv")] == ["0", "200", "400"]
    assert rows_of(folder / "summary.csv")[0]["measured"] == "3"
    # The file may have moved: the message above names the copy, too.
    dataclasses.replace(goes_on, eval_goals=str(copy)).run()
    assert begun.saved(folder).eval_goals == str(copy)
    goals = copy.read_bytes()
    copy.unlink()
    np.save(file, np.eye(9, dtype=np.uint8)[[1, 4, 8]])
    with pytest.raises(SettingError, match=f"its copy {copy} is missing"):
        goes_on.run()
    copy.write_bytes(goals[:-1])
    with pytest.raises(SettingError, match=f"eval_goals must be a file .*, got {copy}: "):
        goes_on.run()


def test_an_agent_that_keeps_no_goals_is_refused_before_it_learns(tmp_path):
    kwargs = json.dumps({**TINY, "goals_in_replay": True})
    with pytest.raises(SettingError, match="goals_in_replay must be False here, got True"):
        config(agent_kwargs=kwargs, output=tmp_path / "runs").run()
    assert not (tmp_path / "runs").exists()


def test_goals_in_a_file_are_no_goals_of_another_kind(goals_of_a_corridor, tmp_path):
    kinds = {"goal": {"function": "numpy:asarray"}, "reached": {"function": "numpy:equal"}}
    kwargs = json.dumps({**TINY, "goal_wrapper_kwargs": kinds})
    with pytest.raises(SettingError, match="for an agent whose goals are no observations"):
        config(
            env_id="Corridor-v0",
            eval_goals=str(goals_of_a_corridor),
            agent_kwargs=kwargs,
            output=tmp_path / "runs",
        ).run()
    assert not (tmp_path / "runs").exists()


def test_of_many_goals_in_a_file_some_are_measured(goals_of_a_corridor, tmp_path, without_pictures):
    options = {"env_id": "Corridor-v0", "eval_goals": str(goals_of_a_corridor), "total_steps": 200}
    # A list of numbers becomes an array of another dtype.
    np.save(goals_of_a_corridor, np.load(goals_of_a_corridor).astype(np.int64))
    options |= {"most_goals": 2, "curve_goals": 1}
    folder = config(eval_freq=200, output=tmp_path / "runs", **options).run()
    assert rows_of(folder / "summary.csv")[0]["measured"] == "2"
    assert len(rows_of(folder / "goals.csv")) == 2
    assert {row["greedy"] for row in rows_of(folder / "mastery.csv")} <= {"0.0000", "1.0000"}


def test_a_curve_is_of_the_same_goals_to_its_end(goals_of_a_corridor, tmp_path, without_pictures):
    options = {"env_id": "Corridor-v0", "eval_goals": str(goals_of_a_corridor)}
    begun = config(total_steps=200, eval_freq=200, output=tmp_path / "runs", **options)
    folder = begun.run()
    for name, own in (("curve_goals", 1_000), ("most_goals", 10_000)):
        with pytest.raises(SettingError, match=rf"{name} must be {own}, as the run in .* was beg"):
            dataclasses.replace(begun, resume=folder, **{name: 2}).run()
    # What is wrong is the world, and not the goals of the run.
    with pytest.raises(SettingError, match="world must be Corridor-v0, as the run in"):
        dataclasses.replace(begun, env_id=SMALL.id, resume=folder).run()


def test_files_without_goals_of_the_world_are_refused(goals_of_a_corridor, tmp_path):
    def refused(message, file, **options):
        own = {"env_id": "Corridor-v0", "eval_goals": str(file)} | options
        with pytest.raises(SettingError, match=message):
            config(output=tmp_path / "runs", **own).run()
        assert not (tmp_path / "runs").exists()

    missing = tmp_path / "none.npy"
    refused(r"eval_goals must be a file by numpy\.save .* of Corridor-v0.*none\.npy", missing)
    for name, values, message in (
        ("text", np.array(["a"]), r"eval_goals must be uint8 of shape \(n, 9\)"),
        ("floats", np.ones((2, 9)), "uint8 of shape"),
        ("pickled", np.array([None]), "Object arrays cannot be loaded"),
        ("empty", np.empty((0, 9), np.uint8), "at least one observation, got none in"),
    ):
        file = tmp_path / f"{name}.npy"
        np.save(file, values)
        refused(message, file)
    for name, content, message in (
        ("goals.csv", b"1,0,0\n", "magic string"),
        ("goals.npz", b"PK\x03\x04", "EOF: reading magic string"),
        ("header.npy", b"\x93NUMPY\x01\x00\x03\x00{'(", "got .*header.npy: "),
        ("nothing.npy", b"", "EOF: reading magic string"),
    ):
        file = tmp_path / name
        file.write_bytes(content)
        refused(rf"file by numpy.save of observations of Corridor-v0.*{message}", file)
    refused("All 220 observations of .* are known", goals_of_a_corridor, env_id=SMALL.id)


def test_some_goals_of_a_map_in_a_file_are_measured_and_those_held_out_are_never_taught(
    tmp_path, monkeypatch
):
    measured = []
    evaluate = evaluation.evaluate_mastery
    monkeypatch.setattr(
        evaluation,
        "evaluate_mastery",
        lambda *args, **kw: measured.append(args[2]) or evaluate(*args, **kw),
    )
    file = tmp_path / "mine.txt"
    file.write_text(str(NAMED_LAYOUTS["small"]))
    options = {
        "env_id": "TwoRoomsSwitch-v0",
        "map": str(file),
        "most_goals": 30,
        "curve_goals": 20,
        "held_out": 0.3,
    }
    options |= {"selection": "learning_progress", "agent": "td"}
    folder = config(output=tmp_path / "runs", **options).run()
    assert folder.name.startswith("mastery-td-TwoRoomsSwitch-mine-seed1-")
    # So many were measured while it trained.
    assert {len(goals) for goals in measured} == {20}
    goals = rows_of(folder / "goals.csv")
    states = [int(row["state"]) for row in goals]
    assert (states, len(states)) == (sorted(set(states)), 30)
    held_out = choose_held_out(220, 0.3, 1)
    assert held_out.sum() == 66
    assert (held_out != choose_held_out(220, 0.3, 2)).any()
    assert [int(row["held_out"]) for row in goals] == held_out[states].astype(int).tolist()
    apart = [row for row in goals if row["held_out"] == "1"]
    assert {row["updates"] for row in apart} == {"0"}
    rate = np.mean([float(row["greedy_reached"]) for row in apart])
    assert f"goals held out, greedy {rate:.4f}" in text_of(folder / "report.html")
    assert float(rows_of(folder / "summary.csv")[0]["held_out_greedy"]) == pytest.approx(
        rate, abs=1e-4
    )
    assert "held_out_epsilon_high" in rows_of(folder / "mastery.csv")[0]
    model = ManyGoalsDQN.load(folder / "model.zip", env=gym.make(SMALL.id))
    np.testing.assert_array_equal(
        model.goal_buffer.is_held_out(SMALL.tables.observations), held_out
    )


def build(**options):
    """Make an agent for the small map."""
    return make(config(**{"agent_kwargs": "{}"} | options), SMALL, SMALL.tables)[0]


def test_the_default_is_the_learners_own_and_the_paper_its_recipe():
    for agent, own in (
        ("default", {}),
        ("td", {"target_class": TDTargets}),
        ("paper", PAPER),
    ):
        model = build(agent=agent, n_envs=1)
        plain = ManyGoalsDQN("CnnPolicy", SMALL.make(), **own)
        for name in (
            "buffer_size",
            "learning_starts",
            "batch_size",
            "goal_batch_size",
            "gamma",
            "updates_per_step",
        ):
            assert getattr(model, name) == getattr(plain, name), name
        assert str(model.policy) == str(plain.policy)
        assert str(model.policy.optimizer) == str(plain.policy.optimizer)
        assert type(model.targets) is type(plain.targets)
    usual = {agent: build(agent=agent, n_envs=None) for agent in ("default", "paper", "hindsight")}
    assert {agent: model.n_envs for agent, model in usual.items()} == {
        "default": 64,
        "paper": 1,
        "hindsight": 8,
    }
    assert usual["paper"].env.get_attr("goal_tracker")[0].reset_worlds is True
    table = build(agent="table")
    assert type(build(agent="heads")) is HeadsDQN
    assert type(usual["hindsight"]) is HindsightDQN
    assert type(table) is TabularAllGoals
    assert table.exploration_fraction == pytest.approx(1 / 3)


def test_a_string_with_a_colon_is_a_string(monkeypatch):
    assert build(agent_kwargs='{"device": "cpu:0"}').device == th.device("cpu:0")
    own = '{"policy": {"class": "sb3_manygoals.many_goals_dqn:MlpPolicy"}}'
    assert type(build(agent_kwargs=own).policy) is MlpPolicy
    imported = []
    monkeypatch.setattr(importlib, "import_module", imported.append)
    text = '{"device": "cuda:0", "tensorboard_log": "C:logs", "list": ["a:b", {"c": "d:e"}]}'
    assert read_arguments(text) == json.loads(text)
    assert imported == []


def test_arguments_reach_the_class():
    policy = {"activation_fn": {"class": "torch.nn:ReLU"}, "ema_decay": 0.0}
    given = {
        "target_class": {"class": "sb3_manygoals:PlannedTargets"},
        "target_kwargs": {"max_plan_bytes": 12_345},
        "policy_kwargs": policy,
    }
    model = build(agent_kwargs=json.dumps(given | {"gamma": 0.9}))
    assert type(model.targets) is PlannedTargets
    assert model.targets.plan.max_bytes == 12_345
    assert model.gamma == 0.9
    assert any(isinstance(module, th.nn.ReLU) for module in model.q_net.modules())
    on_policy = build(
        agent="paper", agent_kwargs='{"target_kwargs": {"goal_sampling": "behavior"}}'
    )
    assert on_policy.targets.goal_sampling == "behavior"
    assert on_policy.target_update_interval == 250
    assert on_policy.policy.embedding_dim == 1024
    for selection, selector in SELECTORS.items():
        assert type(build(selection=selection).env.goal_tracker.selector) is selector


def test_ablations_change_one_thing_of_the_targets():
    def made(name):
        """Return the targets of an ablation of the study."""
        return build(agent_kwargs=json.dumps(ABLATIONS[name]["agent_kwargs"])).targets

    default = PlannedTargets
    no_loss = made("no-best-action-loss")
    assert (no_loss.best_weight, no_loss.near_decay) == (0.0, default.near_decay)
    no_weights = made("no-near-weights")
    assert (no_weights.best_weight, no_weights.near_decay) == (default.best_weight, 1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--sed 3", "--sed"),
        (
            "--map nofile",
            "error: map must be one of paper, small, locks, warehouse, mansion, or a file, "
            "got 'nofile'",
        ),
        ("--resume nowhere", "error: --resume:"),
        ("--resume cut-short", "is not the folder of a run"),
        (
            "--resume damaged --seed 3",
            "error: seed must be 0, as the run in damaged was begun with it, got 3",
        ),
        (
            "--resume damaged --eval-steps 50",
            "error: eval_steps must be 200, as the run in damaged was begun with it, got 50",
        ),
        ("--resume damaged", "none of the 1 checkpoints can be read"),
    ],
)
def test_what_will_not_do_is_a_message(options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "damaged" / "checkpoints" / "000001-step7").mkdir(parents=True)
    (tmp_path / "cut-short").mkdir()
    for folder, text in (
        ("cut-short", '{"settings": '),
        ("damaged", json.dumps({"settings": {"output": "runs", "env_id": SMALL.id}})),
    ):
        (tmp_path / folder / "config.json").write_text(text)
    (tmp_path / "damaged" / "mastery.csv").write_text("all that is left")
    done = command(
        "mastery", *(("--world", SMALL.id) if "resume" in options else ()), *options.split()
    )
    assert done.returncode != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    if "error: map" in message:
        assert len(done.stderr.strip().splitlines()) == 1
    assert (tmp_path / "damaged" / "mastery.csv").read_text() == "all that is left"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"held_out": 1.0}, r"held_out must be in \[0, 1\), got 1"),
        ({"seed": -1}, r"seed must be in .* got -1"),
        ({"device": "foo"}, "default in .* cannot be built: .* device string: foo"),
        ({"total_steps": 0}, "total_steps must be at least 1, got 0"),
        ({"eval_epsilon": 2.0}, r"eval_epsilon must be in \[0, 1\], got 2"),
        ({"agent_kwargs": "{"}, "agent_kwargs of '{' cannot be built: Expecting property name"),
        (
            {"agent_kwargs": "[]"},
            r"agent_kwargs of '\[\]' cannot be built: they must be a JSON object",
        ),
        (
            {"agent_kwargs": '{"foo": 1}'},
            "default in .* cannot be built: .* unexpected keyword argument 'foo'",
        ),
        (
            {"agent_kwargs": '{"target_class": {"class": "torch.nn:Foo"}}'},
            "agent_kwargs name 'torch.nn:Foo' as a class: module 'torch.nn' has no attribute 'Foo'",
        ),
        (
            {"agent_kwargs": '{"target_class": {"class": "nowhere:Foo"}}'},
            "agent_kwargs name 'nowhere:Foo' as a class: No module named 'nowhere'",
        ),
        (
            {"agent_kwargs": '{"target_class": {"class": "math:pi"}}'},
            "agent_kwargs name 'math:pi' as a class, and it is 3.14",
        ),
        (
            {"agent_kwargs": '{"target_class": {"function": "math:pi"}}'},
            "agent_kwargs name 'math:pi' as a function, and it is 3.14",
        ),
        (
            {"agent_kwargs": '{"goal_wrapper_kwargs": {"state_key": "my.module:key"}}'},
            r'if "my.module:key" is to be a function, write {"function": "my.module:key"}',
        ),
        ({"checkpoint_minutes": 0.0}, "checkpoint_minutes must be above 0, got 0"),
        (
            {"agent_kwargs": '{"target_class": {"class": "ReLU"}}'},
            'agent_kwargs must name a class as {"class": "module:Name"}, got \'ReLU\'',
        ),
        (
            {"agent_kwargs": '{"policy_kwargs": {"activation_fn": "torch.nn:ReLU"}}'},
            r'if "torch.nn:ReLU" is to be a class, write {"class": "torch.nn:ReLU"}',
        ),
        (
            {"agent_kwargs": '{"device": "foo:0"}'},
            r"default in .* cannot be built: .* device string: foo",
        ),
        (
            {"agent_kwargs": '{"batch_size": 0}'},
            "batch_size must be a whole number, at least 1, got 0",
        ),
        ({"agent": "hindsight", "held_out": 0.2}, "held_out is for others"),
        ({"agent": "table", "selection": "learning_progress"}, "selection is for others"),
        ({"agent": "table", "env_id": "CartPole-v1"}, "its states have no numbers"),
        (
            {"agent": "hindsight", "agent_kwargs": '{"buffer_size": 200}'},
            "buffer_size must be more than .* = 200, .* got 200",
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused(options, message, tmp_path):
    with pytest.raises(SettingError, match=message):
        config(output=tmp_path, **options).run()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("without_pictures")
def test_a_killed_run_can_be_resumed_and_ends_the_same(folder, tmp_path):
    arguments = [
        sys.executable,
        "-u",
        "-m",
        "benchmarks",
        "mastery",
        *QUICK,
        "--output",
        str(tmp_path),
    ]
    with subprocess.Popen(
        [*arguments, "--checkpoint-minutes", "0.005"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as run:
        while not run.stdout.readline().startswith("checkpoint "):
            assert run.poll() is None
        run.kill()
    (made,) = tmp_path.iterdir()
    assert not (made / "goals.csv").exists()
    assert "going on from" in printed("mastery", "--resume", str(made))
    assert (made / "goals.csv").read_text() == (folder / "goals.csv").read_text()
    times = {"training_seconds", "time/fps", "time/time_elapsed"}
    for name in ("mastery.csv", "progress.csv"):
        assert rows_of(made / name, times) == rows_of(folder / name, times)
    assert len(json.loads((made / "config.json").read_text())["resumed"]) == 1
    # A run that has ended is measured once more, with the options that are changed.
    printed("mastery", "--resume", str(made), "--final-episodes", "2", "--total-steps", "2000")
    # It has taken more than the 2000 steps that are wanted now.
    assert rows_of(made / "summary.csv")[0]["steps"] == "2400"
    settings = json.loads((made / "config.json").read_text())["settings"]
    assert (settings["total_steps"], settings["final_episodes"]) == (2000, 2)


@pytest.mark.usefixtures("without_pictures")
@pytest.mark.parametrize(
    ("agent", "world"),
    [*((agent, "FrozenLake8x8-v1") for agent in ("td", "table", "hindsight")), ("default", GRID)],
)
def test_a_run_of_any_agent_goes_on_from_its_checkpoint(agent, world, tmp_path, monkeypatch):
    if world == GRID:
        pytest.importorskip("minigrid")
    # A table explores at one rate, because the schedule would change with total_steps.
    constant = {"exploration_initial_eps": 0.5, "exploration_final_eps": 0.5}
    given = json.dumps(constant if agent == "table" else KWARGS[agent])
    half = config(
        agent=agent,
        env_id=world,
        n_envs=2,
        agent_kwargs=given,
        output=tmp_path / "half",
        total_steps=400,
    ).run()
    on = MasteryConfig.saved(half)
    before = (half / "goals.csv").read_text()
    assert (on.agent, on.env_id, on.resume, on.total_steps) == (agent, world, half, 400)
    # A run that has ended is measured again.
    on.run()
    assert (half / "goals.csv").read_text() == before
    if agent == "table":
        with monkeypatch.context() as stopped:
            stopped.setattr("benchmarks.mastery.conclude", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                dataclasses.replace(on, total_steps=600).run()
        # No report takes the run for one that has ended.
        assert not (half / "summary.csv").exists()
        dataclasses.replace(on, total_steps=800).run()
        again = dataclasses.replace(on, total_steps=800, resume=None, output=tmp_path).run()
        assert (half / "goals.csv").read_text() == (again / "goals.csv").read_text() != before


OWN_WORLD = """
import gymnasium as gym
import numpy as np


class Own(gym.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space = gym.spaces.MultiDiscrete([4, 4])
    action_space = gym.spaces.Discrete(4)

    def __init__(self, render_mode=None, broken=False):
        self.render_mode = render_mode
        self.broken = broken

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.np_random.integers(4, size=2)
        return self.place.copy(), {}

    def step(self, action):
        axis, up = divmod(int(action), 2)
        self.place[axis] = np.clip(self.place[axis] + 2 * up - 1, 0, 3)
        return self.place.copy(), 0.0, False, False, {}

    def render(self):
        if self.broken:
            raise RuntimeError("no paint")
        picture = np.full((40, 40, 3), 200, np.uint8)
        row, column = 10 * self.place
        picture[row : row + 10, column : column + 10] = (200, 0, 0)
        return picture


class Noisy(gym.Env):
    observation_space = gym.spaces.Box(-1.0, 2.0, (5,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def show(self):
        noise = self.np_random.uniform(-0.2, 0.2, 5)
        return (np.eye(5)[self.cell] + noise).astype(np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cell = int(self.np_random.integers(5))
        return self.show(), {}

    def step(self, action):
        self.cell = int(np.clip(self.cell + 2 * action - 1, 0, 4))
        return self.show(), 0.0, False, False, {}


gym.register("Own-v0", Own, disable_env_checker=True)
gym.register("Noisy-v0", Noisy, disable_env_checker=True)
gym.register("Broken-v0", Own, kwargs={"broken": True}, disable_env_checker=True)
"""


@pytest.fixture
def own_world(tmp_path, monkeypatch):
    """Write a module somewhere else, which registers two worlds; return its name."""
    name = f"own_world_{tmp_path.name}"
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / f"{name}.py").write_text(OWN_WORLD)
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    return name


def test_an_own_world_is_named_by_its_module_and_has_a_film(own_world, tmp_path):
    sizes = ("--total-steps", "300", "--final-episodes", "1", "--agent-kwargs", json.dumps(TINY))
    options = (*sizes, "--no-progress-bar", "--output", str(tmp_path / "runs"))
    printed("mastery", "--world", f"{own_world}:Own-v0", *options)
    (folder,) = (tmp_path / "runs").iterdir()
    # Windows does not allow colons in names of folders.
    assert ":" not in folder.name
    with Image.open(folder / "reaching.gif") as film:
        assert film.n_frames > 6
        assert film.size == (2 * 40 + 3 * 4, 40 + 2 * 4)
    assert "image/gif" in (folder / "report.html").read_text()


def test_a_plan_is_measured_by_learned_states_as_the_network_is(own_world, tmp_path):
    """No observation of this world recurs."""
    learned = {
        "state_class": {"class": "sb3_manygoals.world:LearnedStates"},
        "state_kwargs": {"n_features": 8, "n_hidden": 32, "n_updates": 150, "batch_size": 64},
        "learning_starts": 100,
        "updates_per_step": 0.05,
    }
    given = json.dumps(merged(TINY, learned))
    sizes = (
        "--total-steps",
        "1200",
        "--n-envs",
        "1",
        "--eval-steps",
        "20",
        "--final-episodes",
        "2",
    )
    options = (
        *sizes,
        "--agent-kwargs",
        given,
        "--no-progress-bar",
        "--output",
        str(tmp_path / "runs"),
    )
    printed("mastery", "--world", f"{own_world}:Noisy-v0", *options)
    (folder,) = (tmp_path / "runs").iterdir()
    (summary,) = rows_of(folder / "summary.csv")
    # By bytes, it would be 0.
    assert float(summary["plan"]) > 0.5


def test_a_world_that_fails_to_render_costs_the_film_alone(own_world, tmp_path):
    sizes = ("--total-steps", "300", "--final-episodes", "1", "--agent-kwargs", json.dumps(TINY))
    options = (*sizes, "--no-progress-bar", "--output", str(tmp_path / "runs"))
    said = printed("mastery", "--world", f"{own_world}:Broken-v0", *options)
    assert "no reaching.gif: no paint" in said
    (folder,) = (tmp_path / "runs").iterdir()
    assert (folder / "report.html").is_file()


@pytest.mark.parametrize("world", ["Unknown-v0", "no_such_module:Own-v0", "FrozenLake-v99"])
def test_an_unknown_world_is_an_error_that_says_how_to_name_an_own_one(world):
    said = command("mastery", "--world", world).stderr
    assert f"a world with goals to learn of '{world}' cannot be built" in said
    assert "An own world is given as module:Id-v0" in said
    assert "PYTHONPATH=/your/folder python -m benchmarks mastery --world module:Id-v0" in said


def test_a_world_may_be_named_with_the_module_that_registers_it():
    world = World("gym_twoRooms:TwoRoomsSwitchSmall-v0")
    assert (world.is_two_rooms, world.name) == (True, "gym_twoRooms-TwoRoomsSwitchSmall")
