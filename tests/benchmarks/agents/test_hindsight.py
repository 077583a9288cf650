import numpy as np
import pytest
import torch as th
from stable_baselines3 import HerReplayBuffer

from benchmarks.agents import hindsight
from benchmarks.mastery import choose_held_out
from benchmarks.worlds import World
from sb3_manygoals import ExactCheckpointCallback, GoalBuffer
from sb3_manygoals.checkpoint import CheckpointError
from tests.sb3_manygoals.checkpoint.resuming import assert_the_end_is_the_same

SMALL = World("TwoRoomsSwitchSmall-v0")
NETWORK = {"features_dim": 16, "trunk_dim": 16, "layer_norm": True, "standardize": True}
TINY = {"learning_starts": 200, "buffer_size": 1_000, "batch_size": 32, "max_episode_steps": 20}


def made(held_out=None, n_envs=4, **given):
    policy = {"features_extractor_class": hindsight.GoalProduct, "features_extractor_kwargs": NETWORK, "net_arch": []}
    pursuit = {"goal_buffer": GoalBuffer(SMALL.space, 220, held_out)}
    settings = {**TINY, "policy_kwargs": policy, **given}
    return hindsight.make(SMALL.make_many(n_envs, 1), pursuit, 1, "cpu", settings)


@pytest.fixture(scope="module")
def goals():
    return SMALL.tables.observations


def test_it_goes_on_from_a_checkpoint_as_if_it_had_never_stopped(goals, tmp_path):
    def make(buffer_size=600):
        held_out = goals[choose_held_out(220, 0.2, 1)]
        return made(held_out, buffer_size=buffer_size, target_update_interval=12), {}

    # at step 400 the memory is not full, and no target update is due
    assert_the_end_is_the_same(make, tmp_path / "runs", stops=(410,), steps=1_200, every_steps=400)
    with pytest.raises(CheckpointError, match="buffer_size 150, this one has 125"):
        ExactCheckpointCallback(tmp_path / "runs" / "whole").resume(make(500)[0])


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_held_out_goals_are_never_in_a_batch(goals, strategy, monkeypatch):
    held_out = choose_held_out(220, 0.5, 1)
    memory = made(goals[held_out], replay_buffer_kwargs={"goal_selection_strategy": strategy}).learn(1_000).replay_buffer
    before, taught = memory.goal_updates.copy(), np.zeros(220, dtype=np.int64)
    for batch in (memory.sample(256) for _ in range(20)):
        desired = batch.observations["desired_goal"].numpy()
        assert not memory.goal_buffer.is_held_out(desired).any()
        np.testing.assert_array_equal(batch.next_observations["desired_goal"].numpy(), desired)
        there = (batch.next_observations["achieved_goal"].numpy() == desired).all(axis=(1, 2, 3))
        np.testing.assert_array_equal(batch.rewards.numpy()[:, 0], np.where(there, 0.0, -0.1).astype(np.float32))
        taught += np.bincount(memory.goal_buffer.ids(desired), minlength=220)
    np.testing.assert_array_equal(memory.goal_updates - before, taught)
    # and SB3's own would not have kept them out
    monkeypatch.setattr(type(memory), "_sample_goals", HerReplayBuffer._sample_goals)
    theirs = memory.sample(10_000).observations["desired_goal"].numpy()
    assert memory.goal_buffer.is_held_out(theirs).mean() > 0.2


def test_goals_are_drawn_as_sb3_draws_them_but_for_those_held_out(goals):
    # One episode, towards goal 100, through states 0 to 9, of which 3, 4 and 9 are held out.
    held_out = np.isin(np.arange(220), [3, 4, 9])
    memory = made(goals[held_out], n_envs=1, max_episode_steps=9).replay_buffer
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


def test_where_nothing_is_held_out_it_is_sb3s_but_for_standardized_inputs(monkeypatch):
    ours = made().learn(600)
    preprocess = ours.q_net.features_extractor.trunk[0]
    assert preprocess.standardize
    assert preprocess.mean.abs().sum() > 0  # was fitted
    assert th.equal(preprocess.mean, ours.q_net_target.features_extractor.trunk[0].mean)
    monkeypatch.setattr("benchmarks.agents.hindsight.KnownGoalsHerReplayBuffer._sample_goals", HerReplayBuffer._sample_goals)
    theirs = made().learn(600)
    for name, tensor in ours.policy.state_dict().items():
        assert th.equal(tensor, theirs.policy.state_dict()[name]), name


def test_settings_reach_the_learner_and_what_cannot_hold_an_episode_is_refused():
    model = made(learning_rate=3e-3, replay_buffer_kwargs={"n_sampled_goal": 7})
    assert (model.lr_schedule(0.5), model.replay_buffer.her_ratio) == (3e-3, 7 / 8)
    assert (made(n_envs=8).gradient_steps, made(n_envs=1).train_freq.frequency) == (2, 4)  # as many updates a step
    for name in ("buffer_size", "learning_starts"):
        with pytest.raises(ValueError, match=f"{name} must be more than n_envs x max_episode_steps = 80, .* got 80"):
            made(**{name: 80})
