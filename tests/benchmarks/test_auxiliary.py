"""Runs of A2C with auxiliary tasks: each world and agent, and going on with a run."""

import csv
import importlib.util
import json
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch as th
from stable_baselines3 import A2C

from benchmarks import __main__ as command_line
from benchmarks import auxiliary
from benchmarks.agents import a2c
from benchmarks.agents.a2c import ScoreCallback
from benchmarks.auxiliary import CALLBACKS, WORLDS, AuxiliaryConfig, paper_score
from sb3_manygoals.checkpoint import checkpoints, read_checkpoint
from sb3_manygoals.optim import FusedRMSprop
from tests.benchmarks.command_line import command
from tests.sb3_manygoals.auxiliary.story import stories
from tests.sb3_manygoals.checkpoint.conftest import no_sync
from tests.sb3_manygoals.checkpoint.test_resume import same

__all__ = ["no_sync"]

NEEDED = {"atari": ("ale_py", "lz4"), "two_rooms": (), "minigrid": ("minigrid", "lz4")}
TINY = {"steps": 480, "eval_freq": 160, "max_episode_steps": 10, "seed": 4, "progress_bar": False}
COLUMNS = "step episodes episode_return episode_length training_seconds kept_episodes kept_bytes"

pytestmark = pytest.mark.usefixtures("no_sync")


def tiny(world, agent, output, **options):
    for module in NEEDED[world]:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"needs {module}")
    return replace(WORLDS[world], **TINY, agent=agent, output=output, features_dim=16, embedding_dim=8, **options)


def rows(folder):
    with (folder / "curve.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("world", "agent"),
    [*(("two_rooms", agent) for agent in ("a2c", *CALLBACKS)), ("minigrid", "pixel_control"), ("minigrid", "many_goals")],
)
def test_a_run(world, agent, tmp_path):
    folder = tiny(world, agent, tmp_path).run()
    files = {path.name for path in folder.iterdir()}
    assert files >= {"config.json", "curve.csv", "curve.png", "score.json", "progress.csv", "model.zip", "checkpoints"}
    assert any(name.startswith("events.out.tfevents") for name in files)
    curve = rows(folder)
    assert list(curve[0]) == COLUMNS.split()
    assert [int(row["step"]) for row in curve] == [160, 320, 480]
    score = json.loads((folder / "score.json").read_text())
    assert (score["step"], score["paper"]) == (480, None)
    assert score["score"] == pytest.approx(float(curve[-1]["episode_return"]), rel=1e-5)
    assert score["episodes"] >= 48  # 16 worlds, 30 steps of each, 10 at most an episode
    assert score["checkpoint_bytes"] > 10_000
    kept = [int(row["kept_episodes"]) for row in curve]
    if agent == "a2c":
        assert kept == [0, 0, 0]
    else:
        assert kept == [int(row["episodes"]) for row in curve]
        assert 320 < score["kept_transitions"] <= 480  # all but those of episodes that go on
        assert score["kept_bytes"] > score["kept_transitions"]
        with (folder / "progress.csv").open(newline="") as file:
            assert any(row[f"auxiliary/{agent}_loss"] for row in csv.DictReader(file))
    assert ("minigrid" in json.loads((folder / "config.json").read_text())["versions"]) == (world == "minigrid")
    model = A2C.load(folder / "model.zip")
    assert model.policy.tasks == (() if agent == "a2c" else (agent,))
    assert model.policy.features_dim == 16


def test_a_game(tmp_path):
    folder = tiny("atari", "many_goals", tmp_path, game="Breakout").run()
    score = json.loads((folder / "score.json").read_text())
    assert (score["step"], score["paper"]) == (480, 486.8)
    assert json.loads((folder / "config.json").read_text())["versions"].keys() >= {"ale-py", "lz4"}
    model = A2C.load(folder / "model.zip")
    assert (model.policy.crop, model.policy.cell, model.n_steps, model.n_envs) == (80, 4, 5, 16)


@pytest.mark.parametrize(
    ("world", "agent", "steps", "stop", "game", "n_envs"),
    [
        ("two_rooms", "many_goals", 480, 160, "TwoRoomsSwitchSmall-v0", 16),
        ("minigrid", "reward_prediction", 480, 160, "MiniGrid-Empty-Random-6x6-v0", 16),
        ("atari", "many_goals", 800, 640, "Breakout", 4),
    ],
)
def test_going_on_is_as_if_it_had_not_stopped(world, agent, steps, stop, game, n_envs, tmp_path):
    config = tiny(world, agent, tmp_path / "whole", game=game, n_envs=n_envs)
    whole = replace(config, steps=steps).run()
    stopped = replace(config, steps=stop, output=tmp_path / "stopped").run()
    th.rand(3)  # the generators are elsewhere than they were
    assert replace(AuxiliaryConfig.saved(stopped), steps=steps).run() == stopped
    assert_as_one(whole, stopped, world)
    state = read_checkpoint(checkpoints(stopped / "checkpoints")[0])
    assert state["learner"]["algorithm"]["counters"]["num_timesteps"] == steps
    assert state["extras"][agent]["n_updates"] > 2


def assert_as_one(whole, stopped, world):
    """The newest checkpoints of two runs are equal, and their curves, but for times."""
    states = [read_checkpoint(checkpoints(folder / "checkpoints")[0]) for folder in (whole, stopped)]
    for state in states:
        for log in ("curve.csv", "progress.csv"):  # they have times; see below
            del state["extras"][log]
        state["extras"]["score"].pop("training_seconds")
        state.pop("log")
        if world == "atari":
            state["env"]["state"].pop("seconds")
    same(*states)
    untimed = [[{**row, "training_seconds": None} for row in rows(folder)] for folder in (whole, stopped)]
    assert untimed[0] == untimed[1]
    records = [json.loads((folder / "config.json").read_text()) for folder in (whole, stopped)]
    assert len(records[1]["resumed"]) == 1
    assert records[1]["settings"]["steps"] == records[0]["settings"]["steps"]  # those that it was resumed with
    seconds = [float(row["training_seconds"]) for row in rows(stopped)]
    assert sorted(seconds) == seconds


def test_a_run_that_is_told_to_end_goes_on(tmp_path, monkeypatch):
    class Told(BaseException):
        pass

    def tell(number, frame):
        raise Told

    def point_and_tell(self):
        point(self)
        if self.num_timesteps == 320:
            told.append(self.model)
            signal.raise_signal(signal.SIGTERM)

    told, point = [], ScoreCallback._point
    config = tiny("two_rooms", "many_goals", tmp_path / "whole")
    whole = config.run()
    before = signal.signal(signal.SIGTERM, tell)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(ScoreCallback, "_point", point_and_tell)
            with pytest.raises(Told):
                replace(config, output=tmp_path / "stopped").run()
        told[0].logger.close()  # as the end of the process would
    finally:
        signal.signal(signal.SIGTERM, before)
    (stopped,) = (tmp_path / "stopped").iterdir()
    assert not (stopped / "score.json").exists()
    assert [path.name.split("step")[1] for path in checkpoints(stopped / "checkpoints")] == ["320"]
    config = AuxiliaryConfig.saved(stopped)
    assert config == replace(tiny("two_rooms", "many_goals", tmp_path / "stopped"), resume=stopped)
    assert command_line.defaults("auxiliary:AuxiliaryConfig", ["--resume", str(stopped)]) == config
    config.run()
    assert_as_one(whole, stopped, "two_rooms")


def test_the_command_line(tmp_path):
    arguments = "--world two_rooms --agent a2c --steps 160 --eval-freq 80 --seed 2 --max-episode-steps 5"
    done = command("auxiliary", *arguments.split(), "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("auxiliary-TwoRoomsSwitchSmall-v0-a2c-seed2-")
    assert [int(row["step"]) for row in rows(folder)] == [80, 160]
    assert "mean of the last 100 episodes" in done.stdout
    assert command("auxiliary", "--world", "mars").returncode != 0


def test_the_recipe_is_the_papers():
    for agent, expected in (("many_goals", 0.02), ("pixel_control", np.sqrt(1e-4 * 1e-2)), ("reward_prediction", 1.0)):
        for given in (None, 0.25):
            config = replace(WORLDS["two_rooms"], agent=agent, weight=given, features_dim=16, embedding_dim=8)
            model, tasks = auxiliary.make(config)
            assert tasks[agent].weight == pytest.approx(given or expected)
            assert (tasks[agent].batch_size, tasks[agent].reduction, tasks[agent].episodes.capacity) == (80, "mean", 2000)
            assert (model.n_envs * model.n_steps, model.gamma, model.max_grad_norm) == (80, 0.99, 0.5)
            model.env.close()
    returns, values = th.randn(2, 9)
    theirs = 0.5 * (0.5 * (returns - values).square()).mean()  # the paper's value loss: 0.5 of half the squared error
    th.testing.assert_close(model.vf_coef * th.nn.functional.mse_loss(returns, values), theirs)
    assert WORLDS["atari"].embedding_dim == 1024


def test_the_optimizer_is_the_papers_or_sb3s():
    for name, expected in (("baselines", FusedRMSprop), ("sb3", th.optim.RMSprop)):
        model, _ = auxiliary.make(replace(WORLDS["two_rooms"], agent="a2c", optimizer=name))
        optimizer = model.policy.optimizer
        assert type(optimizer) is expected
        assert (optimizer.defaults["lr"], optimizer.defaults["alpha"], optimizer.defaults["eps"]) == (7e-4, 0.99, 1e-5)
        model.env.close()
    assert WORLDS["atari"].optimizer == "baselines"


def test_the_papers_score():
    assert paper_score(AuxiliaryConfig()) == 3372.1
    assert paper_score(AuxiliaryConfig(agent="a2c")) == 1507.7
    assert paper_score(AuxiliaryConfig(game="Adventure")) is None
    assert paper_score(WORLDS["two_rooms"]) is None


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match=r"agent must be one of many_goals, a2c, .* got 'ppo'"):
        AuxiliaryConfig(agent="ppo")
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        AuxiliaryConfig(steps=0)
    with pytest.raises(ValueError, match="eval_freq must be at least 1, got 0"):
        ScoreCallback(0, print)


def test_scores_are_of_the_last_hundred_episodes():
    """Against a list of all of them."""
    ended, points, expected = [], [], []

    class Listed(ScoreCallback):
        def _on_step(self):
            ended.extend(info["episode"] for info in self.locals["infos"] if "episode" in info)
            return super()._on_step()

    def note(point):
        points.append(tuple(point.values())[:-1])
        last = ended[-100:]
        steps = [300, 600, 900, 1005][len(expected)]
        expected.append((steps, len(ended), np.mean([one["r"] for one in last]), np.mean([one["l"] for one in last])))

    callback = Listed(300, note)
    A2C("MlpPolicy", stories(3, limit=6), seed=0, device="cpu").learn(1000, callback)
    assert len(ended) > 150
    np.testing.assert_allclose(points, expected)
    assert len({score for _, _, score, _ in expected}) > 1
    assert callback.score == points[-1][2]
    assert a2c.LAST == 100
