"""Which goals an update is about."""

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_manygoals import ExactCheckpointCallback, GoalBuffer, ManyGoalsDQN
from sb3_manygoals.goals import UNKNOWN
from sb3_manygoals.many_goals_dqn import ManyGoalsSamples
from tests.sb3_manygoals.many_goals_dqn.models import td_model
from tests.sb3_manygoals.worlds import Corridor

CELLS = np.stack([Corridor(6).observation_of(cell) for cell in range(6)])


def make_model(n_envs=1, deadly=False, goal_sampling="uniform", targets=None, **kwargs):
    env = DummyVecEnv([lambda: Corridor(6, deadly=deadly)] * n_envs)
    settings = {"policy_kwargs": {"net_arch": [16], "embedding_dim": 16}, "goal_wrapper_kwargs": {"max_episode_steps": 5}}
    return td_model(env, targets={"goal_sampling": goal_sampling, **(targets or {})}, **{**settings, **kwargs})


def drawn_for(model, batch, n_goals=16):
    """What an update draws if these are the transitions."""
    model.replay_buffer.sample = lambda _: batch
    return model.targets.draw(len(batch.actions), n_goals, model.rng)


def knows_all(model):
    """Goals in an order of their own, so that no id is the cell's number."""
    model.goal_buffer.set_checkpoint_state({**model.goal_buffer.get_checkpoint_state(), "observations": CELLS[::-1].copy()})
    return model


# --- the goal that was pursued ---------------------------------------------------------------------------------------


def test_on_policy_each_transition_teaches_the_goal_it_was_made_for():
    model = knows_all(make_model(goal_sampling="behavior"))
    with th.no_grad():
        for parameter in model.q_net.parameters():
            parameter.add_(0.1 * th.randn_like(parameter))
    here, there, goals = np.array([0, 1, 2, 5, 3, 3]), np.array([1, 0, 2, 5, 4, 2]), np.array([1, 5, 2, 3, 1, UNKNOWN])
    actions, terminated = np.array([1, 0, 2, 1, 1, 0]), np.array([False, False, False, True, False, False])
    ids = np.where(goals == UNKNOWN, UNKNOWN, 5 - goals)
    batch = ManyGoalsSamples(
        th.tensor(CELLS[here]),
        th.tensor(actions),
        th.tensor(CELLS[there]),
        th.tensor(5 - there),
        th.tensor(terminated),
        behavior_goal_ids=th.tensor(ids),
    )
    draw = drawn_for(model, batch)
    sampled, sampled_ids = draw.goals, draw.goal_ids
    np.testing.assert_array_equal(sampled_ids, ids)
    np.testing.assert_array_equal(sampled[:5], CELLS[goals[:5]])
    loss = model.targets.losses(draw).mean()
    model.q_net.zero_grad()
    loss.backward()
    gradient = th.cat([parameter.grad.flatten() for parameter in model.q_net.parameters()])

    total = th.zeros(())
    for s in range(5):  # the sixth has a goal that nobody knows
        goal = th.tensor(CELLS[goals[s]])[None]
        with th.no_grad():
            after = th.tensor(CELLS[there[s]])[None]
            best = model.q_net_target(after, goal).max()
        target = 0.0 if there[s] == goals[s] else -10.0 if terminated[s] else -0.1 + 0.99 * best
        total = total + (model.q_net(th.tensor(CELLS[here[s]])[None], goal)[0, actions[s]] - target) ** 2 / 5
    th.testing.assert_close(loss, total, rtol=1e-4, atol=1e-6)
    model.q_net.zero_grad()
    total.backward()
    expected = th.cat([parameter.grad.flatten() for parameter in model.q_net.parameters()])
    th.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-4)


def test_the_replay_memory_keeps_which_goal_was_pursued():
    pursued = []

    def listen(local, _):
        pursued.append([info["desired_goal_id"] for info in local["infos"]])
        return True

    model = make_model(n_envs=3, goal_sampling="behavior", learning_starts=1000).learn(60, listen)
    np.testing.assert_array_equal(model.replay_buffer.behavior_goal_ids[: len(pursued)], pursued)
    assert len(np.unique(pursued)) > 3
    assert model.replay_buffer.sample(7).behavior_goal_ids.shape == (7,)
    assert make_model().learn(10).replay_buffer.sample(7).behavior_goal_ids is None


def test_goals_that_nobody_knows_teach_nothing():
    model = knows_all(make_model(goal_sampling="behavior"))
    ids = th.full((3,), UNKNOWN)
    rows = th.tensor(CELLS[:3])
    batch = ManyGoalsSamples(rows, th.zeros(3, dtype=th.int64), rows, ids, th.zeros(3, dtype=th.bool), behavior_goal_ids=ids)
    assert model.targets.losses(drawn_for(model, batch)).mean() == 0.0
    model._update(3)
    assert model.goal_updates.sum() == 0


def test_another_goal_buffer_makes_it_forget_what_was_pursued(tmp_path):
    model = make_model(goal_sampling="behavior").learn(60)
    model.save_replay_buffer(tmp_path / "replay")
    model.replay_buffer.identify(GoalBuffer(Corridor(6).observation_space))
    assert (model.replay_buffer.behavior_goal_ids == UNKNOWN).all()
    with pytest.raises(ValueError, match="the replay memory was saved by a model with another goal_sampling"):
        make_model().load_replay_buffer(tmp_path / "replay")


# --- counting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("goal_sampling", ["uniform", "batch", "behavior"])
def test_updates_of_each_goal_are_counted_and_kept(goal_sampling, tmp_path):
    class Power(BaseCallback):
        def _on_step(self):
            if self.num_timesteps >= 70:
                raise KeyboardInterrupt
            return True

    undisturbed = make_model(goal_sampling=goal_sampling)
    counts, draw = np.zeros_like(undisturbed.goal_updates), undisturbed.targets.draw

    def listen(*sizes):
        drawn = draw(*sizes)
        for goal in drawn.goal_ids.tolist():
            counts[goal] += goal != UNKNOWN
        return drawn

    undisturbed.targets.draw = listen
    undisturbed.learn(100)
    assert counts.sum() > 100
    np.testing.assert_array_equal(undisturbed.goal_updates, counts)
    with pytest.raises(KeyboardInterrupt):
        make_model(goal_sampling=goal_sampling).learn(100, [ExactCheckpointCallback(tmp_path, every_steps=50), Power()])
    model, checkpoints = make_model(goal_sampling=goal_sampling), ExactCheckpointCallback(tmp_path, every_steps=50)
    assert checkpoints.resume(model)
    model.learn(50, checkpoints, reset_num_timesteps=False)
    np.testing.assert_array_equal(model.goal_updates, counts)
    for ours, theirs in zip(model.policy.parameters(), undisturbed.policy.parameters(), strict=True):
        assert th.equal(ours, theirs)


def test_counts_are_of_the_goals_known_and_no_part_of_a_saved_model(tmp_path):
    model = make_model().learn(60)
    assert model.goal_updates.sum() == 16 * model._n_updates
    model.save(tmp_path / "model")
    model.save_goal_buffer(tmp_path / "goals")
    again = ManyGoalsDQN.load(tmp_path / "model", Corridor(6))
    assert again.goal_updates.shape == (again.goal_buffer.capacity,)
    assert again.goal_updates.sum() == 0
    model.load_goal_buffer(tmp_path / "goals")
    assert model.goal_updates.sum() == 0
