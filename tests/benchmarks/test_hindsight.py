import csv
import dataclasses
import shutil

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from stable_baselines3 import HerReplayBuffer

from benchmarks import hindsight, tabular
from benchmarks.hindsight import HindsightConfig, saved_config
from benchmarks.mastery import all_goals
from benchmarks.relabelling import HindsightDQN
from benchmarks.study import choose_held_out
from sb3_manygoals import ExactCheckpointCallback, GoalBuffer
from sb3_manygoals.checkpoint import CheckpointError
from tests.benchmarks.command_line import command

SMALL = "TwoRoomsSwitchSmall-v0"
TINY = HindsightConfig(
    n_envs=4,
    total_steps=2_000,
    eval_freq=1_000,
    eval_steps=50,
    final_episodes=1,
    learning_starts=200,
    buffer_size=1_000,
    batch_size=32,
    gradient_steps=1,
    features_dim=16,
    embedding_dim=16,
    max_episode_steps=20,
    progress_bar=False,
    seed=1,
)


@pytest.fixture(scope="module")
def goals():
    return all_goals(SMALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return dataclasses.replace(TINY, held_out=0.2, output=tmp_path_factory.mktemp("runs")).run()


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def trained(config, held_out=None):
    model = config.make(held_out, 220)
    model.learn(config.total_steps)
    return model


def test_the_run_folder_has_what_one_of_mastery_has(folder):
    files = {path.name for path in folder.iterdir()}
    names = ["config.json", "progress.csv", "mastery.csv", "goals.csv", "model.zip", "goals.npz", "curve.png", "reaching.gif"]
    assert files >= {*names, "report.html", "checkpoints"}
    assert folder.name.startswith("hindsight-seed1-")
    curve = rows(folder / "mastery.csv")
    assert [int(row["step"]) for row in curve] == [0, 1_000, 2_000]
    assert all(0 <= float(row["held_out_greedy_low"]) <= float(row["held_out_epsilon_high"]) <= 1 for row in curve)
    taught = rows(folder / "goals.csv")
    assert len(taught) == 220
    held_out = [row for row in taught if row["held_out"] == "1"]
    assert len(held_out) == 44
    assert {row["updates"] for row in held_out} == {"0"}
    # one update of 32 goals each 4 steps, once there are more than 200
    assert sum(int(row["updates"]) for row in taught) == 32 * (2_000 - 200) // 4
    rate = np.mean([float(row["greedy_reached"]) for row in held_out])
    assert f"<td>greedy, held-out goals</td><td>{rate:.4f}</td>" in (folder / "report.html").read_text()


def test_the_saved_model_and_goals_are_the_trained_ones(folder, goals):
    model = HindsightDQN.load(folder / "model.zip", env=gym.make(SMALL))
    assert (model.num_timesteps, model.gamma, model.batch_size) == (2_000, TINY.gamma, 32)
    preprocess = model.q_net.features_extractor.trunk[0]
    assert preprocess.standardize
    assert preprocess.mean.abs().sum() > 0  # was fitted
    assert th.equal(preprocess.mean, model.q_net_target.features_extractor.trunk[0].mean)
    asked = {"observation": goals, "achieved_goal": goals, "desired_goal": goals[::-1].copy()}
    actions, _ = model.predict(asked, deterministic=True)
    assert len(np.unique(actions)) > 1
    known = GoalBuffer.load(folder / "goals.npz", gym.make(SMALL).observation_space)
    held_out = [row["held_out"] == "1" for row in rows(folder / "goals.csv")]
    assert known.is_held_out(goals).tolist() == held_out
    assert not (known.ids(goals)[held_out] >= 0).any()


def test_a_run_can_be_resumed_with_its_settings(folder):
    config = saved_config(folder)
    output = config.output
    assert config == dataclasses.replace(TINY, held_out=0.2, output=output, resume=folder)
    before = (folder / "goals.csv").read_text()
    done = command("hindsight", "--threads", "1", "--resume", str(folder))
    assert done.returncode == 0, done.stderr
    assert "going on from" in done.stdout
    assert (folder / "goals.csv").read_text() == before
    with pytest.raises(TypeError):
        tabular.saved_config(folder)


def test_it_goes_on_from_a_checkpoint_as_if_it_had_never_stopped(goals, tmp_path):
    config = dataclasses.replace(TINY, total_steps=1_600, buffer_size=600, target_update_interval=12)
    held_out = goals[choose_held_out(220, 0.2, 1)]  # at step 400 the memory is not full, and no target update is due

    def run(root):
        model = config.make(held_out, 220)
        checkpoints = ExactCheckpointCallback(root, every_steps=400, keep=None)
        resumed = checkpoints.resume(model)
        model.learn(config.total_steps - model.num_timesteps, checkpoints, reset_num_timesteps=not resumed)
        return model, resumed

    whole, _ = run(tmp_path / "whole")
    for step in ("400", "1200"):
        (checkpoint,) = (tmp_path / "whole").glob(f"*-step{step}")
        shutil.copytree(checkpoint, tmp_path / step / checkpoint.name)
        np.random.seed(5)  # noqa: NPY002 - SB3's draws must come from the checkpoint
        again, resumed = run(tmp_path / step)
        assert resumed
        assert again._n_updates == whole._n_updates > 0
        for name, tensor in whole.policy.state_dict().items():
            assert th.equal(tensor, again.policy.state_dict()[name]), name
        np.testing.assert_array_equal(again.goal_updates, whole.goal_updates)
        for name in ("ep_start", "ep_length", "rewards", "dones"):
            np.testing.assert_array_equal(getattr(again.replay_buffer, name), getattr(whole.replay_buffer, name))
    smaller = dataclasses.replace(config, buffer_size=500).make(held_out, 220)
    with pytest.raises(CheckpointError, match="buffer_size 150, this one has 125"):
        ExactCheckpointCallback(tmp_path / "whole").resume(smaller)


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_held_out_goals_are_never_in_a_batch(goals, strategy, monkeypatch):
    held_out = choose_held_out(220, 0.5, 1)
    model = trained(dataclasses.replace(TINY, total_steps=1_000, goal_selection_strategy=strategy), goals[held_out])
    memory = model.replay_buffer

    def batches():
        for _ in range(100):
            yield memory.sample(256)

    before = memory.goal_updates.copy()
    taught = np.zeros(220, dtype=np.int64)
    for batch in batches():
        desired = batch.observations["desired_goal"].numpy()
        assert not memory.goal_buffer.is_held_out(desired).any()
        np.testing.assert_array_equal(batch.next_observations["desired_goal"].numpy(), desired)
        there = (batch.next_observations["achieved_goal"].numpy() == desired).all(axis=(1, 2, 3))
        np.testing.assert_array_equal(batch.rewards.numpy()[:, 0], np.where(there, 0.0, -0.1).astype(np.float32))
        taught += np.bincount(memory.goal_buffer.ids(desired), minlength=220)
    np.testing.assert_array_equal(memory.goal_updates - before, taught)
    # and SB3's own would not have kept them out
    monkeypatch.setattr(type(memory), "_sample_goals", HerReplayBuffer._sample_goals)
    theirs = [memory.goal_buffer.is_held_out(batch.observations["desired_goal"].numpy()).mean() for batch in batches()]
    assert np.mean(theirs) > 0.2


def test_goals_are_drawn_as_sb3_draws_them_but_for_those_held_out(goals):
    # One episode, towards goal 100, through states 0 to 9, of which 3, 4 and 9 are held out.
    held_out = np.isin(np.arange(220), [3, 4, 9])
    memory = dataclasses.replace(TINY, n_envs=1, max_episode_steps=9).make(goals[held_out], 220).replay_buffer
    ids = memory.goal_buffer.add(goals)
    for state in range(9):
        here, there = (
            {"observation": goals[[at]], "achieved_goal": goals[[at]], "desired_goal": goals[[100]]}
            for at in (state, state + 1)
        )
        memory.add(here, there, np.array([0]), np.array([-0.1]), np.array([state == 8]), [{"TimeLimit.truncated": True}])

    def drawn(step, n=6_000):
        found = memory._sample_goals(np.full(n, step), np.zeros(n, dtype=np.int64))
        return dict(zip(*np.unique(memory.goal_buffer.ids(found), return_counts=True), strict=True))

    future = drawn(1)  # 2 and 5 to 8
    assert set(future) == set(ids[[2, 5, 6, 7, 8]])
    assert all(abs(count - 1_200) < 5 * np.sqrt(1_200 * 0.8) for count in future.values())
    assert drawn(7)[ids[8]] > 6_000 * 0.98  # half of the draws are held out: one in 512 is left, and keeps its goal
    assert drawn(8) == {ids[100]: 6_000}  # nothing to be relabelled with


def test_where_nothing_is_held_out_it_is_sb3s(goals, monkeypatch):
    ours = trained(dataclasses.replace(TINY, total_steps=600))
    monkeypatch.setattr("benchmarks.relabelling.KnownGoalsHerReplayBuffer._sample_goals", HerReplayBuffer._sample_goals)
    theirs = trained(dataclasses.replace(TINY, total_steps=600))
    for name, tensor in ours.policy.state_dict().items():
        assert th.equal(tensor, theirs.policy.state_dict()[name]), name


def test_settings_reach_the_learner():
    config = dataclasses.replace(
        TINY, learning_rate=3e-3, tau=0.5, gradient_steps=2, train_freq=3, n_sampled_goal=7, layer_norm=False, decay=False
    )
    model = config.make()
    assert (model.tau, model.gradient_steps, model.train_freq.frequency) == (0.5, 2, 3)
    assert model.lr_schedule(0.5) == 3e-3
    assert dataclasses.replace(config, decay=True).make().lr_schedule(0.5) == 1.5e-3
    assert model.replay_buffer.her_ratio == pytest.approx(7 / 8)
    assert model.replay_buffer.goal_selection_strategy.name == "FUTURE"
    assert model.env.goal_episodes.max_episode_steps == 20
    assert not any(isinstance(module, th.nn.LayerNorm) for module in model.policy.modules())
    assert any(isinstance(module, th.nn.LayerNorm) for module in TINY.make().policy.modules())
    for name in hindsight.SB3S:
        if name not in ("train_freq", "device"):
            assert getattr(model, name) == getattr(config, name), name


@pytest.mark.parametrize("name", ["buffer_size", "learning_starts"])
def test_what_cannot_hold_an_episode_is_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be more than n_envs x max_episode_steps = 80, .* got 80"):
        dataclasses.replace(TINY, **{name: 80}).make()
