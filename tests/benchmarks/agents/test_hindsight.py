import pytest
import torch as th

from benchmarks.agents import hindsight
from benchmarks.worlds import World
from sb3_manygoals import ExactCheckpointCallback, GoalBuffer
from sb3_manygoals.checkpoint import CheckpointError
from tests.sb3_manygoals.checkpoint.resuming import assert_the_end_is_the_same

SMALL = World("TwoRoomsSwitchSmall-v0")
NETWORK = {"features_dim": 16, "trunk_dim": 16, "layer_norm": True, "standardize": True}
TINY = {"learning_starts": 200, "buffer_size": 1_000, "batch_size": 32, "max_episode_steps": 20}


def made(n_envs=4, **given):
    """Make a small agent with further arguments."""
    policy = {
        "features_extractor_class": hindsight.GoalProduct,
        "features_extractor_kwargs": NETWORK,
        "net_arch": [],
    }
    settings = {**TINY, "policy_kwargs": policy, **given}
    return hindsight.make(
        SMALL.make_many(n_envs, 1),
        {"goal_buffer": GoalBuffer(SMALL.space, 220)},
        1,
        "cpu",
        settings,
    )


def test_it_goes_on_from_a_checkpoint_as_if_it_had_never_stopped(tmp_path):
    def make(buffer_size=600):
        return made(buffer_size=buffer_size, target_update_interval=12), {}

    # At step 400 the memory is not full, and no target update is due.
    assert_the_end_is_the_same(make, tmp_path / "runs", stops=(410,), steps=1_200, every_steps=400)
    with pytest.raises(CheckpointError, match="saved memory is 150, of this one 125"):
        ExactCheckpointCallback(tmp_path / "runs" / "whole").resume(make(500)[0])


def test_images_are_standardized_by_the_goals_that_are_known_at_the_first_update():
    model = made().learn(600)
    preprocess = model.q_net.features_extractor.trunk[0]
    assert preprocess.standardize
    # The mean was fitted.
    assert preprocess.mean.abs().sum() > 0
    assert th.equal(preprocess.mean, model.q_net_target.features_extractor.trunk[0].mean)


def test_settings_reach_the_learner_and_what_cannot_hold_an_episode_is_refused():
    model = made(learning_rate=3e-3, replay_buffer_kwargs={"n_sampled_goal": 7})
    assert (model.lr_schedule(0.5), model.replay_buffer.her_ratio) == (3e-3, 7 / 8)
    # There are as many updates a step with any number of environments.
    assert made(n_envs=8).gradient_steps == 2
    assert made(n_envs=1).train_freq.frequency == 4
    for name in ("buffer_size", "learning_starts"):
        with pytest.raises(
            ValueError, match=f"{name} must be more than n_envs x max_episode_steps = 80, .* got 80"
        ):
            made(**{name: 80})
