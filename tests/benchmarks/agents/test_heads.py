import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium.vector import SyncVectorEnv
from stable_baselines3.common.env_util import make_vec_env

from benchmarks.agents.heads import SETTINGS, HeadsDQN
from benchmarks.worlds import World
from sb3_manygoals import GoalBuffer, ManyGoalsDQN, TDTargets, evaluate_mastery
from sb3_manygoals.many_goals_dqn.targets import UpdateBatch
from tests.sb3_manygoals.checkpoint.resuming import assert_the_end_is_the_same

SMALL = World("TwoRoomsSwitchSmall-v0")


def made(n_envs=4, **given):
    """Make a small agent with further arguments."""
    settings = {"learning_starts": 60, "policy_kwargs": {"net_arch": [32], "ema_decay": 0.0}}
    pursuit = {"goal_buffer": GoalBuffer(SMALL.space, 220), "max_episode_steps": 5}
    return HeadsDQN(
        "CnnPolicy",
        SMALL.make_many(n_envs, 0),
        goal_wrapper_kwargs=pursuit,
        seed=0,
        device="cpu",
        **{**SETTINGS, "updates_per_step": 0.25, **settings, **given},
    )


@pytest.fixture(scope="module")
def model():
    model = made()
    model.learn(120)
    return model


def test_every_known_goal_learns_a_hand_computed_target_from_every_transition(model):
    known = len(model.goal_buffer)
    assert 10 < known < 220
    batch = model.targets.sample(6, 1, model.rng)
    assert batch.goal_ids.tolist() == list(range(known))
    # All values are -2, but the fourth action leads to goal 3 sooner.
    for number, head in enumerate(model.q_net_target.heads):
        head.weight.zero_()
        head.bias.fill_(-2.0)
        head.bias[3] = -1.0 if number == 4 else -3.0
    terminated = th.tensor([False, False, False, True, False, False])
    achieved = th.tensor([0, 3, -1, 5, 5, 3])
    samples = batch.samples._replace(terminated=terminated, next_goal_ids=achieved)
    batch = UpdateBatch(batch.observations, batch.goals, batch.goal_ids, samples=samples)
    targets = model.targets.target_values(batch)
    assert targets.shape == (6, known)
    expected = np.full((6, known), -0.1 + 0.99 * -2.0)
    expected[:, 3] = -0.1 + 0.99 * -1.0
    # An end of the environment is -0.1 for ever.
    expected[3] = -10.0
    for row, goal in ((0, 0), (1, 3), (3, 5), (4, 5), (5, 3)):
        expected[row, goal] = 0.0
    np.testing.assert_allclose(targets.numpy(), expected, rtol=1e-5, atol=1e-6)
    with th.no_grad():
        q = model.q_net(batch.observations, known)[range(6), :, samples.actions]
        losses = model.targets.losses(batch, targets)
    np.testing.assert_allclose(losses, ((q - targets) ** 2).mean(dim=0), rtol=1e-4)


def test_it_acts_on_goals_by_their_ids(model):
    ids = np.array([7, 0, 9, 7])
    observations = model.goal_buffer[np.array([1, 2, 3, 4])]
    goals = model.goal_buffer[ids]
    actions, _ = model.predict(
        {"observation": observations, "desired_goal": goals}, deterministic=True
    )
    with th.no_grad():
        q = model.q_net(th.as_tensor(observations), len(model.goal_buffer))[range(4), ids]
    assert actions.tolist() == q.argmax(dim=1).tolist()
    assert len(set(q.flatten().tolist())) == 20


def test_goals_that_are_not_known_are_pursued_at_random(model):
    goals = SMALL.tables.observations
    goal = goals[model.goal_buffer.ids(goals) == -1][:1].repeat(500, axis=0)
    here = model.goal_buffer[np.zeros(500, dtype=np.int64)]
    actions, _ = model.predict({"observation": here, "desired_goal": goal}, deterministic=True)
    # Each of 5 actions is expected 100 times.
    assert np.bincount(actions, minlength=5).min() > 60


def test_all_but_the_outputs_is_as_in_many_goals_dqn_with_a_target_network():
    heads = made(policy_kwargs={})
    usual = ManyGoalsDQN("CnnPolicy", SMALL.make_many(4, 0), target_class=TDTargets)
    assert str(heads.q_net.trunk) == str(usual.q_net.trunk)
    assert [type(layer) for layer in heads.q_net.trunk][-4:] == [th.nn.Linear, th.nn.GELU] * 2
    for name in ("gamma", "batch_size", "buffer_size", "exploration_fraction"):
        assert getattr(heads, name) == getattr(usual, name)


def test_it_goes_on_from_a_checkpoint_as_if_it_had_never_stopped(tmp_path):
    def make():
        return made(), {}

    assert_the_end_is_the_same(make, tmp_path / "runs", stops=(210,), steps=600, every_steps=200)


def test_it_masters_more_than_random_actions_do():
    # On the small map of rooms this takes some thousand updates.
    env = make_vec_env("FrozenLake-v1", 8, seed=0, env_kwargs={"is_slippery": False})
    pursuit = {"goal_buffer": GoalBuffer(env.observation_space, 16)}
    settings = {**SETTINGS, "updates_per_step": 1.0, "target_update_interval": 24}
    settings |= {"policy_kwargs": {"net_arch": [64], "ema_decay": 0.0}, "learning_starts": 400}
    model = HeadsDQN("MlpPolicy", env, goal_wrapper_kwargs=pursuit, seed=0, **settings)
    model.learn(2_000)
    tables = World("FrozenLake-v1").tables
    lake = gym.make("FrozenLake-v1", is_slippery=False)
    arguments = (SyncVectorEnv([lambda: lake]), tables.observations)
    result = evaluate_mastery(model, *arguments, max_steps=12, seed=0)
    random = evaluate_mastery(model, *arguments, max_steps=12, epsilon=1.0, seed=0)
    assert result.rate > 2 * random.rate > 0
