"""Runs of pre-training and fine-tuning."""

import json
from dataclasses import replace
from typing import get_args

import pytest
import torch as th
from stable_baselines3 import A2C
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike

from benchmarks import recording
from benchmarks.pretraining import WORLDS, Agent, PretrainingConfig, make_a2c, make_learner
from benchmarks.report.runs import gather, read
from sb3_manygoals import ExactCheckpointCallback, ManyGoalsDQN
from sb3_manygoals.checkpoint import checkpoints, read_checkpoint
from sb3_manygoals.pretraining import ManyGoalsFrameReplayBuffer, RewardPredictor
from tests.benchmarks.command_line import rows_of
from tests.sb3_manygoals.checkpoint.resuming import same

pytestmark = pytest.mark.usefixtures("no_sync")


def tiny(**changes):
    """Return the settings of a small run, whose episodes have at most 10 steps."""
    pytest.importorskip("minigrid")
    settings = {
        "pretrain_steps": 60,
        "steps": 400,
        "learning_starts": 20,
        "buffer_size": 50,
        "features_dim": 16,
    }
    settings |= {
        "embedding_dim": 8,
        "max_episode_steps": 10,
        "eval_freq": 80,
        "progress_bar": False,
        "seed": 1,
    }
    return replace(WORLDS["minigrid"], **settings | changes)


def curve(folder):
    """Return the rows of ``curve.csv`` without times."""
    return rows_of(folder / "curve.csv", without=("training_seconds",))


@pytest.mark.parametrize("agent", get_args(Agent))
def test_a_run_begins_with_the_trunk_and_has_all_its_steps_and_files(agent, tmp_path, monkeypatch):
    begun = {}
    learn = A2C.learn

    def look(self, *args, **kwargs):
        begun.update({name: tensor.clone() for name, tensor in self.policy.state_dict().items()})
        return learn(self, *args, **kwargs)

    monkeypatch.setattr(A2C, "learn", look)
    folder = tiny(agent=agent, output=tmp_path).run()
    files = {path.name for path in folder.iterdir()}
    assert files >= {
        "config.json",
        "curve.csv",
        "score.json",
        "model.zip",
        "progress.csv",
        "checkpoints",
    }
    first = 0 if agent == "none" else 60
    seconds = [float(row["training_seconds"]) for row in rows_of(folder / "curve.csv")]
    assert seconds == sorted(seconds)
    if agent != "none":
        # Pre-training counts.
        before = read_checkpoint(checkpoints(folder / "pretraining" / "checkpoints")[0])
        assert before["extras"]["clock"] > 0.0
        assert seconds[0] >= round(before["extras"]["clock"], 1)
        assert json.loads((folder / "score.json").read_text())["training_seconds"] >= seconds[-1]
    score = json.loads((folder / "score.json").read_text())
    steps = [int(row["step"]) for row in curve(folder)]
    # A2C takes 16 x 5 steps at once.
    last = first + -(-(400 - first) // 80) * 80
    assert (score["pretrain_steps"], score["step"], steps[-1]) == (first, last, last)
    assert steps[0] > first
    assert PretrainingConfig.saved(folder) == replace(
        tiny(agent=agent, output=tmp_path), resume=folder
    )
    assert A2C.load(folder / "model.zip", device="cpu").num_timesteps == last
    known = gather(read([folder]), "curve.csv")
    # Single runs have the names of the studies.
    name = "a2c" if agent == "none" else f"{agent.replace('_', '-')}-pretraining"
    assert set(known["agent"]) == {name}
    assert set(known["seed"]) == {1}
    assert known["step"].tolist() == steps
    if agent == "none":
        assert "pretraining" not in files
        return
    learner = {"many_goals": ManyGoalsDQN, "reward_prediction": RewardPredictor}[agent]
    trunk = learner.load(folder / "pretraining" / "model.zip", device="cpu").policy.trunk
    assert not th.equal(
        trunk[1].net[0].weight, make_learner(tiny(agent=agent)).policy.trunk[1].net[0].weight
    )
    untrained = make_a2c(tiny()).policy.state_dict()
    for name, tensor in begun.items():
        # The trunk is the pre-trained one, and the heads are those of A2C from scratch.
        expected = untrained[name]
        if "features_extractor" in name:
            expected = trunk[1].state_dict()[name.split(".", 1)[1]]
        assert th.equal(tensor, expected)


@pytest.mark.parametrize("agent", ["many_goals", "reward_prediction"])
def test_pictures_that_are_cubes_have_their_channels_first(agent, tmp_path):
    pytest.importorskip("minatar")
    policy = make_learner(replace(WORLDS["minatar"], game="seaquest", agent=agent)).policy
    policy.save(tmp_path / "policy")
    assert policy.channels_last is False
    assert type(policy).load(tmp_path / "policy").channels_last is False


# The first checkpoint of fine-tuning comes after step 100.
@pytest.mark.parametrize(
    ("agent", "stop"),
    [("many_goals", 100), ("many_goals", 200), ("reward_prediction", 40), ("none", 40)],
)
def test_a_run_killed_in_either_phase_ends_as_if_it_had_not_been(
    agent, stop, tmp_path, monkeypatch
):
    whole = tiny(agent=agent, output=tmp_path / "whole").run()

    def often(*args, every_seconds, **kwargs):
        return ExactCheckpointCallback(*args, every_steps=20, **kwargs)

    def kill(self):
        if self.model.num_timesteps >= stop:
            raise KeyboardInterrupt
        return True

    with monkeypatch.context() as patched:
        patched.setattr(recording, "ExactCheckpointCallback", often)
        patched.setattr(ExactCheckpointCallback, "_on_step", kill)
        with pytest.raises(KeyboardInterrupt):
            tiny(agent=agent, output=tmp_path / "killed").run()
    (killed,) = (tmp_path / "killed").iterdir()
    assert not (killed / "score.json").exists()
    assert (killed / "pretraining" / "model.zip").exists() == (agent != "none" and stop > 60)
    assert PretrainingConfig.saved(killed).run() == killed
    # A2C alone had no checkpoint yet at step 40, as its first update is at step 80: it began anew.
    assert ("resumed" in json.loads((killed / "config.json").read_text())) == (
        agent != "none" or stop > 80
    )
    assert curve(killed) == curve(whole)
    same(
        *(
            read_checkpoint(checkpoints(folder / "checkpoints")[0])["learner"]
            for folder in (whole, killed)
        )
    )


def test_the_defaults_are_the_papers():
    pytest.importorskip("ale_py")
    config = replace(WORLDS["atari"], game="Pong")
    assert config.pretrain_steps == 1_000_000
    assert config.steps == 10_000_000
    assert config.buffer_size == 10_000
    model = make_learner(config)
    assert (model.batch_size, model.goal_batch_size, model.n_envs) == (16, 5, 1)
    assert model.train_freq.frequency == model.gradient_steps == 1
    assert model.exploration_initial_eps == 1.0
    assert model.exploration_final_eps == 0.1
    assert model.exploration_fraction == 1.0
    policy = model.policy
    targets = model.targets
    assert policy.head == "bilinear"
    assert not policy.standardize
    assert policy.ema_decay == 0.0
    assert targets.goal_sampling == "uniform"
    assert (targets.initial_value, model.target_update_interval, model.tau) == (0.0, 250, 1.0)
    assert (type(policy.optimizer), policy.optimizer.param_groups[0]["lr"]) == (RMSpropTFLike, 7e-4)
    assert (type(model.replay_buffer), model.goals_in_replay) == (ManyGoalsFrameReplayBuffer, True)
    assert model.replay_buffer.frames.n_stack == 4
    predictor = make_learner(replace(config, agent="reward_prediction"))
    assert predictor.batch_size == 80
    # Weights begin as in A2C: else the beginnings would be compared, and not what was learned.
    assert policy.ortho_init
    assert predictor.policy.ortho_init


def test_a_run_on_a_game(tmp_path):
    pytest.importorskip("ale_py")
    small = {"n_envs": 2, "pretrain_steps": 24, "steps": 30, "batch_size": 4}
    folder = replace(tiny(), world="atari", game="Pong", output=tmp_path, **small).run()
    assert json.loads((folder / "score.json").read_text())["step"] == 24 + 10
    assert (folder / "pretraining" / "progress.csv").exists()


def test_numbers_that_make_no_sense_are_refused():
    for options, message in (
        (
            {"steps": 100, "pretrain_steps": 100},
            "steps must be more than pretrain_steps, 100, got 100",
        ),
        (
            {"pretrain_steps": 100, "learning_starts": 100},
            "at least 0, and less than pretrain_steps, 100, got 100",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            PretrainingConfig(**options)
