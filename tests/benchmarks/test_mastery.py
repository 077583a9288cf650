import csv
import dataclasses
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from PIL import Image

from benchmarks import film
from benchmarks.mastery import PRESETS, SELECTORS, all_goals
from benchmarks.study import choose_held_out
from gym_twoRooms.layout import Layout
from gym_twoRooms.mdp import compile_layout
from gym_twoRooms.oracle import OraclePolicy
from sb3_manygoals import ManyGoalsDQN, MasteryResult
from tests.benchmarks.command_line import command

ROOT = Path(__file__).parents[2]


QUICK = shlex.split(
    "--preset small --total-steps 2400 --eval-freq 1200 --final-episodes 1 --threads 1 --agent.n-envs 4 --seed 3 "
    "--agent.features-dim 32 --agent.embedding-dim 32 --agent.batch-size 16 --agent.goal-batch-size 24"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    output = tmp_path_factory.mktemp("runs")
    done = command("mastery", *QUICK, "--output", str(output))
    assert done.returncode == 0, done.stderr
    assert "mastery" in done.stdout
    (made,) = output.iterdir()
    return made


def test_the_run_folder_holds_everything(folder):
    files = {path.name for path in folder.iterdir()}
    assert files >= {
        "config.json",
        "progress.csv",
        "mastery.csv",
        "goals.csv",
        "model.zip",
        "goals.npz",
        "curve.png",
        "reaching.gif",
        "report.html",
    }
    assert any(name.startswith("events.out.tfevents") for name in files)
    assert folder.name.startswith("mastery-small-seed3-")


def test_the_config_says_what_was_run(folder):
    config = json.loads((folder / "config.json").read_text())
    assert config["settings"]["seed"] == 3
    assert config["settings"]["agent"]["n_envs"] == 4
    assert config["settings"]["agent"]["tau"] == PRESETS["small"].agent.tau
    assert config["versions"].keys() >= {"python", "torch", "stable-baselines3", "gymnasium", "sb3-manygoals"}
    assert config["git_revision"]


def test_the_tables_agree_with_each_other(folder):
    with (folder / "mastery.csv").open(newline="") as file:
        curve = list(csv.DictReader(file))
    assert [int(row["step"]) for row in curve] == [0, 1200, 2400]
    assert all(float(row["greedy_low"]) <= float(row["greedy"]) <= float(row["greedy_high"]) for row in curve)
    with (folder / "progress.csv").open(newline="") as file:
        progress = [row for row in csv.DictReader(file) if row["mastery/greedy"]]
    assert [float(row["mastery/greedy"]) for row in progress] == pytest.approx(
        [float(row["greedy"]) for row in curve], abs=1e-4
    )
    with (folder / "goals.csv").open(newline="") as file:
        goals = list(csv.DictReader(file))
    assert len(goals) == 220
    assert {row["held_out"] for row in goals} == {"0"}
    # an update of 24 goals each 4 steps, after the first thousand
    assert sum(int(row["updates"]) for row in goals) == 24 * (2400 - 1000) // 4
    rate = np.mean([float(row["greedy_reached"]) for row in goals])
    assert f"{rate:.4f}" in (folder / "report.html").read_text()


def test_the_model_is_the_trained_one(folder):
    model = ManyGoalsDQN.load(folder / "model.zip", env=gym.make("TwoRoomsSwitchSmall-v0"))
    model.load_goal_buffer(folder / "goals.npz")
    assert model.num_timesteps == 2400
    assert len(model.goal_buffer) > 150


def test_the_report_needs_no_network(folder):
    html = (folder / "report.html").read_text()
    assert not re.findall(r'(?:src|href)="(?!data:|[\w.-]+")[^"]*"', html)
    assert "http" not in html.replace("http-equiv", "")
    assert html.count("data:image/gif") == 1
    for name in re.findall(r'href="([^"]*)"', html):
        assert (folder / name).is_file()


def test_the_film_is_an_animation(folder):
    with Image.open(folder / "reaching.gif") as animation:
        assert animation.n_frames > 1


def test_the_film_ends_in_green_where_goals_are_reached(tmp_path):
    mdp = compile_layout(Layout.named("small"))
    everything = np.ones((mdp.n_states, 1), dtype=np.bool_)
    result = MasteryResult(1.0, (1.0, 1.0), everything, everything.astype(np.int64))
    oracle = OraclePolicy(mdp, np.arange(mdp.n_states))
    film.reaching(oracle, "TwoRoomsSwitchSmall-v0", result, tmp_path / "film.gif", seed=0, max_steps=150)
    with Image.open(tmp_path / "film.gif") as animation:
        first = np.asarray(animation.convert("RGB"))
        animation.seek(animation.n_frames - 1)
        last = np.asarray(animation.convert("RGB"))
    assert (last != first).any()
    corners = [(14, 14), (14, first.shape[1] // 2), (14, first.shape[1] - 14)]
    corners += [(first.shape[0] - 14, column) for _, column in corners]
    for corner in corners:
        assert abs(last[corner].astype(int) - film.SUCCESS).max() < 12, corner
        assert abs(first[corner].astype(int) - film.UNDER_WAY).max() < 12, corner


def test_every_option_is_in_the_help():
    for preset, lr in ((name, PRESETS[name]) for name in ("small", "paper-on-policy")):
        text = command("mastery", "--preset", preset, "--help").stdout
        for field in dataclasses.fields(lr):
            assert f"--{field.name.replace('_', '-')}" in text or field.name == "agent"
        for field in dataclasses.fields(lr.agent):
            assert f"--agent.{field.name.replace('_', '-')}" in text
        assert f"(default: {lr.total_steps})" in " ".join(text.split())


def test_the_papers_preset_is_the_papers():
    paper = PRESETS["paper"]
    assert (paper.env_id, paper.total_steps, paper.eval_steps) == ("TwoRoomsSwitch-v0", 3_000_000, 200)
    model = paper.agent.make(paper.env_id, paper.total_steps, seed=0, device="cpu")
    # all that the study has besides: standardized input, by as many pictures as the replay memory holds
    plain = ManyGoalsDQN("CnnPolicy", gym.make(paper.env_id), learning_starts=10_000, policy_kwargs={"standardize": True})
    for name in (
        "learning_rate",
        "buffer_size",
        "learning_starts",
        "batch_size",
        "goal_batch_size",
        "goal_sampling",
        "double_q",
        "tau",
        "gamma",
        "train_freq",
        "gradient_steps",
        "target_update_interval",
        "initial_value",
        "exploration_final_eps",
        "exploration_steps",
    ):
        assert getattr(model, name) == getattr(plain, name), name
    assert str(model.policy) == str(plain.policy)
    assert model.env.goal_episodes.max_episode_steps == plain.env.get_attr("goal_episodes")[0].max_episode_steps
    ours, theirs = model.policy.optimizer, plain.policy.optimizer
    assert type(ours) is type(theirs)
    assert ours.defaults == theirs.defaults


@pytest.mark.parametrize("name", ["small", "fast"])
def test_what_published_figures_are_of_is_not_moved_by_the_papers_defaults(name):
    agent = PRESETS[name].agent
    assert (agent.learning_rate, agent.initial_value, agent.standardize) == (1e-3, 0.0, True)


def test_the_other_agents_of_the_paper_differ_in_nothing_else():
    paper = PRESETS["paper"]
    progress, on_policy = PRESETS["paper-learning-progress"], PRESETS["paper-on-policy"]
    assert dataclasses.replace(progress, preset="paper", agent=paper.agent) == paper
    assert dataclasses.replace(progress.agent, selection="uniform") == paper.agent
    assert dataclasses.replace(on_policy, preset="paper", agent=paper.agent) == paper
    assert dataclasses.replace(on_policy.agent, goal_sampling="uniform", batch_size=32) == paper.agent
    assert on_policy.agent.batch_size == 16
    for name, config in PRESETS.items():
        assert config.preset == name


@pytest.mark.parametrize("selection", SELECTORS)
def test_every_rule_of_choosing_goals_can_be_asked_for(selection):
    agent = dataclasses.replace(PRESETS["small"].agent, selection=selection)
    model = agent.make("TwoRoomsSwitchSmall-v0", 100, seed=0, device="cpu")
    assert type(model.env.goal_episodes.selector) is SELECTORS[selection]


def test_held_out_goals_are_measured_and_nothing_else(tmp_path):
    small = PRESETS["small"]
    smaller = dataclasses.replace(small.agent, features_dim=32, embedding_dim=32)
    agent = dataclasses.replace(smaller, goal_sampling="pursued", batch_size=16, selection="learning_progress")
    config = dataclasses.replace(small, total_steps=2400, eval_freq=1200, final_episodes=1, agent=agent, held_out=0.2)
    folder = dataclasses.replace(config, output=tmp_path, progress_bar=False).run()
    with (folder / "goals.csv").open(newline="") as file:
        goals = list(csv.DictReader(file))
    held_out = [row for row in goals if row["held_out"] == "1"]
    assert len(held_out) == 44
    assert {row["updates"] for row in held_out} == {"0"}
    updates = sum(int(row["updates"]) for row in goals)
    assert updates == 16 * (2400 - 1000) // 8  # one update in 8 steps, 16 transitions with one goal each
    rate = np.mean([float(row["greedy_reached"]) for row in held_out])
    assert f"<td>greedy, held-out goals</td><td>{rate:.4f}</td>" in (folder / "report.html").read_text()
    with (folder / "mastery.csv").open(newline="") as file:
        curve = list(csv.DictReader(file))
    assert len(curve) == 3
    assert all(0 <= float(row["held_out_greedy_low"]) <= float(row["held_out_epsilon_high"]) <= 1 for row in curve)
    model = ManyGoalsDQN.load(folder / "model.zip", env=gym.make("TwoRoomsSwitchSmall-v0"))
    pictures = all_goals("TwoRoomsSwitchSmall-v0")
    assert model.goal_buffer.is_held_out(pictures).tolist() == [row["held_out"] == "1" for row in goals]


def test_held_out_goals_are_drawn_anew_with_each_seed():
    first, again, other = (choose_held_out(5728, 0.2, seed) for seed in (0, 0, 1))
    assert first.sum() == other.sum() == 1146
    np.testing.assert_array_equal(first, again)
    assert (first & other).sum() < 400
    assert not choose_held_out(100, 0.0, 0).any()
    with pytest.raises(ValueError, match=r"held_out must be in \[0, 1\), got 1"):
        choose_held_out(100, 1.0, 0)


def test_all_goals_are_all_states():
    assert all_goals("TwoRoomsSwitch-v0").shape == (5728, 10, 10, 3)


def test_a_mistyped_option_is_an_error():
    done = command("mastery", "--sed", "3")
    assert done.returncode != 0
    assert "--sed" in done.stderr + done.stdout


def without_times(path):
    with path.open() as file:
        rows = list(csv.DictReader(file))
    times = {"training_seconds", "time/fps", "time/time_elapsed"}
    return [{name: row[name] for name in sorted(row) if name not in times} for row in rows]


def test_a_killed_run_can_be_resumed_and_ends_the_same(folder, tmp_path):
    arguments = [sys.executable, "-u", "-m", "benchmarks", "mastery", *QUICK, "--output", str(tmp_path)]
    with subprocess.Popen([*arguments, "--checkpoint-minutes", "0.005"], cwd=ROOT, stdout=subprocess.PIPE, text=True) as run:
        while not run.stdout.readline().startswith("checkpoint "):
            assert run.poll() is None
        run.kill()
    (made,) = tmp_path.iterdir()
    assert not (made / "goals.csv").exists()
    done = command("mastery", "--resume", str(made))
    assert done.returncode == 0, done.stderr
    assert "going on from" in done.stdout
    assert (made / "goals.csv").read_text() == (folder / "goals.csv").read_text()
    for name in ("mastery.csv", "progress.csv"):
        assert without_times(made / name) == without_times(folder / name)
    config = json.loads((made / "config.json").read_text())
    assert len(config["resumed"]) == 1
    # A run that has ended is measured once more, with the options that are changed.
    again = command("mastery", "--resume", str(made), "--final-episodes", "2")
    assert again.returncode == 0, again.stderr
    assert "2.00" not in (made / "goals.csv").read_text()


def test_what_cannot_be_resumed_is_a_message(tmp_path):
    cut_short, damaged = tmp_path / "cut short", tmp_path / "damaged"
    cut_short.mkdir()
    (cut_short / "config.json").write_text('{"settings": ')
    (damaged / "checkpoints" / "000001-step7").mkdir(parents=True)
    (damaged / "config.json").write_text(json.dumps({"settings": {"agent": {}, "output": "runs"}}))
    (damaged / "mastery.csv").write_text("all that is left")
    for folder, message in (
        (tmp_path / "nowhere", "error: --resume:"),
        (cut_short, "is not the folder of a run"),
        (damaged, "each of the 1 checkpoints is damaged"),
    ):
        done = command("mastery", "--env-id", "TwoRoomsSwitchSmall-v0", "--resume", str(folder))
        assert done.returncode != 0
        assert message in done.stderr
        assert "Traceback" not in done.stderr
    assert (damaged / "mastery.csv").read_text() == "all that is left"
