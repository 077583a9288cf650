"""Runs of A2C with auxiliary tasks: each world and agent, and runs that are resumed."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch as th
from stable_baselines3 import A2C
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike

from benchmarks import auxiliary, pretraining
from benchmarks.agents.a2c import LAST, ScoreCallback
from benchmarks.auxiliary import CALLBACKS, WORLDS, AuxiliaryConfig, make, paper_score
from sb3_manygoals.auxiliary import AuxiliaryActorCriticPolicy
from sb3_manygoals.checkpoint import checkpoints, read_checkpoint
from tests.benchmarks.command_line import command, printed, rows_of
from tests.sb3_manygoals.auxiliary.story import stories
from tests.sb3_manygoals.checkpoint.resuming import same

NEEDED = {
    "atari": ("ale_py", "lz4"),
    "two_rooms": (),
    "minigrid": ("minigrid", "lz4"),
    "minatar": ("minatar", "lz4"),
}
CELLS = {"two_rooms": (8, 1), "minigrid": (24, 4), "minatar": (10, 1)}
"""The square that pixel control looks at, and its cells."""

pytestmark = pytest.mark.usefixtures("no_sync")


def tiny(world, agent, output, **options):
    """Return the settings of a small run."""
    for module in NEEDED[world]:
        pytest.importorskip(module)
    settings = {
        "steps": 480,
        "eval_freq": 160,
        "max_episode_steps": 10,
        "seed": 4,
        "features_dim": 16,
        "embedding_dim": 8,
    }
    return replace(
        WORLDS[world], agent=agent, output=output, progress_bar=False, **settings | options
    )


def read(path):
    """Return the content of a JSON file."""
    return json.loads(path.read_text())


@pytest.mark.parametrize(
    ("world", "agent"),
    [
        *(("two_rooms", agent) for agent in ("a2c", *CALLBACKS, "shuffled_goals")),
        ("minigrid", "pixel_control"),
        ("minatar", "pixel_control"),
    ],
)
def test_a_run(world, agent, tmp_path):
    folder = tiny(world, agent, tmp_path, n_envs=16).run()
    assert folder.name.startswith(f"auxiliary-{WORLDS[world].game}-{agent}-seed4-")
    files = {path.name for path in folder.iterdir()}
    assert files >= {
        "config.json",
        "curve.csv",
        "score.json",
        "progress.csv",
        "model.zip",
        "checkpoints",
    }
    assert any(name.startswith("events.out.tfevents") for name in files)
    score = read(folder / "score.json")
    curve = rows_of(folder / "curve.csv")
    assert set(curve[0]) == {
        "step",
        "episodes",
        "episode_return",
        "episode_length",
        "training_seconds",
    }
    assert [int(row["step"]) for row in curve] == [160, 320, 480]
    assert score["step"] == 480
    assert score["paper"] is None
    assert score["score"] == pytest.approx(float(curve[-1]["episode_return"]), rel=1e-5)
    # Each of 16 worlds takes 30 steps, and an episode has at most 10.
    assert score["episodes"] >= 48
    tasks = {"a2c": (), "shuffled_goals": ("many_goals",)}.get(agent, (agent,))
    for task in tasks:
        assert any(row[f"auxiliary/{task}_loss"] for row in rows_of(folder / "progress.csv"))
    policy = A2C.load(folder / "model.zip").policy
    assert (policy.tasks, policy.features_dim) == (tasks, 16)
    assert (policy.crop, policy.cell) == CELLS[world]


@pytest.mark.parametrize(
    ("world", "agent"),
    [("two_rooms", "many_goals"), ("minigrid", "reward_prediction"), ("atari", "many_goals")],
)
def test_going_on_is_as_if_it_had_not_stopped(world, agent, tmp_path):
    steps, stop, n_envs = (300, 220, 2) if world == "atari" else (480, 160, 16)
    config = tiny(
        world,
        agent,
        tmp_path / "whole",
        game="Breakout" if world == "atari" else WORLDS[world].game,
        n_envs=n_envs,
    )
    whole = replace(config, steps=steps).run()
    stopped = replace(config, steps=stop, output=tmp_path / "stopped").run()
    # The generators must not be where they were when the run stopped.
    th.rand(3)
    assert AuxiliaryConfig.saved(stopped) == replace(
        config, steps=stop, output=tmp_path / "stopped", resume=stopped
    )
    assert replace(AuxiliaryConfig.saved(stopped), steps=steps).run() == stopped
    if world == "atari":
        policy = A2C.load(stopped / "model.zip").policy
        assert (read(stopped / "score.json")["paper"], policy.crop, policy.cell) == (486.8, 80, 4)
    ends = [
        read_checkpoint(checkpoints(folder / "checkpoints")[0])["learner"]
        for folder in (whole, stopped)
    ]
    assert ends[0]["algorithm"]["counters"]["num_timesteps"] == steps
    same(*ends)
    curves = [
        rows_of(folder / "curve.csv", without=("training_seconds",)) for folder in (whole, stopped)
    ]
    assert curves[0] == curves[1]
    record = read(stopped / "config.json")
    # The record has the steps with which the run was resumed.
    assert (len(record["resumed"]), record["settings"]["steps"]) == (1, steps)


def test_shuffled_goals_are_of_other_trajectories_and_rewards_of_their_own(tmp_path):
    model, tasks = make(tiny("two_rooms", "shuffled_goals", tmp_path))
    callback = tasks["many_goals"]
    model.learn(480, callback)
    # Else the target network would be that of the learner.
    callback.n_updates = 1
    with th.no_grad():
        loss = callback.loss(model.policy, callback.episodes, np.random.default_rng(8))
    batch = callback.episodes.sample(16, 5, np.random.default_rng(8))
    assert len(np.unique(batch.observations[:, -1], axis=0)) > 1

    def values(state, goal, target):
        """Return the values of actions in one state for one goal, as with many goals."""
        # The target network leaves out the first observation, the other one the last.
        trajectory = th.as_tensor(np.stack([state] * (1 + target) + [goal]))
        with th.no_grad():
            found = AuxiliaryActorCriticPolicy.goal_values(model.policy, trajectory[None], target)
        return found[0, 0].numpy()

    errors = []
    for row, length in enumerate(batch.lengths):
        states = batch.observations[row]
        others_goal = batch.observations[row - 1, -1]
        for step in range(length):
            expected = 0.0
            if not np.array_equal(states[step + 1], states[-1]):
                expected = -0.1 + 0.99 * values(states[step + 1], others_goal, True).max()
            found = values(states[step], others_goal, False)[batch.actions[row, step]]
            errors.append((found - expected) ** 2)
    assert loss.item() == pytest.approx(np.mean(errors), rel=1e-5)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--goal", "100"), "goal must be 0, as the run in .* was begun with it, got 100"),
        (("--max-episode-steps", "7"), "max_episode_steps must be 10, as the run in"),
        (("--agent", "many_goals"), "agent must be a2c, as the run in"),
    ],
)
def test_a_run_goes_on_with_the_world_that_it_was_begun_with(option, message, tmp_path):
    """A checkpoint brings the old world back. The record would claim the new one."""
    folder = tiny("two_rooms", "a2c", tmp_path, steps=160).run()
    before = (folder / "config.json").read_text()
    said = command("auxiliary", "--resume", str(folder), *option, "--steps", "480")
    assert re.search(message, said.stderr)
    assert (folder / "config.json").read_text() == before
    rate = ("--learning-rate", "0.001", "--ent-coef", "0.5")
    printed("auxiliary", "--resume", str(folder), *rate, "--steps", "480")
    assert read(folder / "config.json")["settings"]["learning_rate"] == 0.001
    model = A2C.load(folder / "model.zip")
    assert (model.learning_rate, model.ent_coef) == (0.001, 0.5)
    assert model.policy.optimizer.param_groups[0]["lr"] == 0.001


def test_the_recipe_is_the_papers():
    for agent, expected in (
        ("many_goals", 0.02),
        ("pixel_control", np.sqrt(1e-4 * 1e-2)),
        ("reward_prediction", 1.0),
    ):
        for given in (None, 0.25):
            model, tasks = auxiliary.make(tiny("two_rooms", agent, None, weight=given))
            assert tasks[agent].weight == pytest.approx(given or expected)
            assert (tasks[agent].batch_size, tasks[agent].episodes.capacity) == (80, 2000)
            assert model.n_envs * model.n_steps == 80
            assert model.gamma == 0.99
            assert model.max_grad_norm == 0.5
            # The paper's value loss is 0.5 of half the squared error.
            assert model.vf_coef == 0.25
            model.env.close()
    for name, expected in (("baselines", RMSpropTFLike), ("sb3", th.optim.RMSprop)):
        model, _ = auxiliary.make(tiny("two_rooms", "a2c", None, optimizer=name))
        optimizer = model.policy.optimizer
        assert type(optimizer) is expected
        assert optimizer.defaults["lr"] == 7e-4
        assert optimizer.defaults["alpha"] == 0.99
        assert optimizer.defaults["eps"] == 1e-5
    assert (WORLDS["atari"].embedding_dim, WORLDS["atari"].optimizer) == (1024, "baselines")
    assert paper_score(AuxiliaryConfig(agent="a2c")) == 1507.7
    assert paper_score(AuxiliaryConfig(game="Adventure")) is None


@pytest.mark.parametrize("module", [auxiliary, pretraining])
def test_the_world_gives_the_defaults_on_the_command_line(module, monkeypatch):
    name = module.__name__.split(".")[1]
    worlds = module.WORLDS
    seen = []
    monkeypatch.setattr(type(worlds["atari"]), "run", lambda self: seen.append(self))
    command(name, "--world", "minigrid", "--agent", "many_goals", "--seed", "7")
    command(name, "--game", "Pong")
    assert seen == [
        replace(worlds["minigrid"], agent="many_goals", seed=7),
        replace(worlds["atari"], game="Pong"),
    ]
    assert command(name, "--world", "mars").returncode == 2


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        AuxiliaryConfig(steps=0)
    with pytest.raises(ValueError, match=r"seed must be in .* got -1"):
        AuxiliaryConfig(seed=-1)
    assert (
        "many_goals in nope cannot be built: there is no game"
        in command("auxiliary", "--game", "nope").stderr
    )


def test_scores_are_of_the_last_hundred_episodes():
    """The scores are compared with those of a list of all episodes."""
    ended = []
    points = []
    expected = []

    class Listed(ScoreCallback):
        def _on_step(self):
            ended.extend(info["episode"] for info in self.locals["infos"] if "episode" in info)
            return super()._on_step()

    class Curve:
        def add(self, row):
            points.append([float(value) for value in row[:-1]])
            last = ended[-100:]
            steps = [300, 600, 900, 1005][len(expected)]
            expected.append(
                (
                    steps,
                    len(ended),
                    np.mean([one["r"] for one in last]),
                    np.mean([one["l"] for one in last]),
                )
            )

    callback = Listed(300, Curve())
    A2C("MlpPolicy", stories(3, limit=6), seed=0, device="cpu").learn(1000, callback)
    assert len(ended) > 150
    np.testing.assert_allclose(points, expected, rtol=1e-5)
    assert len({score for _, _, score, _ in expected}) > 1
    assert callback.score == pytest.approx(points[-1][2], rel=1e-5)
    assert LAST == 100
