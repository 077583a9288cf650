"""Which goals an update is about."""

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_manygoals import GoalBuffer
from sb3_manygoals.goals import UNKNOWN
from sb3_manygoals.many_goals_dqn import ManyGoalsSamples, PlannedTargets
from tests.sb3_manygoals.many_goals_dqn.models import (
    CELLS,
    gradient,
    make_model,
    moved,
    reloaded,
    td_model,
)
from tests.sb3_manygoals.worlds import Corridor


def sampling(goal_sampling, n_envs=1, **kwargs):
    env = DummyVecEnv([lambda: Corridor(6)] * n_envs)
    return td_model(
        env,
        targets={"goal_sampling": goal_sampling},
        goal_wrapper_kwargs={"max_episode_steps": 5},
        **kwargs,
    )


def test_on_policy_each_transition_teaches_the_goal_it_was_made_for():
    model = moved(sampling("behavior"))
    model.goal_buffer.add(
        CELLS[::-1]
    )  # in an order of their own, so that no id is the cell's number
    here, there, goals = (
        np.array([0, 1, 2, 5, 3, 3]),
        np.array([1, 0, 2, 5, 4, 2]),
        np.array([1, 5, 2, 3, 1, UNKNOWN]),
    )
    actions, terminated = (
        np.array([1, 0, 2, 1, 1, 0]),
        np.array([False, False, False, True, False, False]),
    )
    ids = np.where(goals == UNKNOWN, UNKNOWN, model.goal_buffer.ids(CELLS[goals]))
    next_ids = th.tensor(model.goal_buffer.ids(CELLS[there]))
    batch = ManyGoalsSamples(
        *map(th.tensor, (CELLS[here], actions, CELLS[there])), next_ids, th.tensor(terminated)
    )
    model.replay_buffer.sample = lambda _: batch._replace(behavior_goal_ids=th.tensor(ids))
    draw = model.targets.draw(6, 16, model.rng)
    np.testing.assert_array_equal(draw.goal_ids, ids)
    np.testing.assert_array_equal(draw.goals[:5], CELLS[goals[:5]])
    loss, total = model.targets.losses(draw).mean(), th.zeros(())
    for s in range(5):  # the sixth has a goal that nobody knows
        goal = th.tensor(CELLS[goals[s]])[None]
        with th.no_grad():
            best = model.q_net_target(th.tensor(CELLS[there[s]])[None], goal).max()
        target = 0.0 if there[s] == goals[s] else -10.0 if terminated[s] else -0.1 + 0.99 * best
        total = (
            total
            + (model.q_net(th.tensor(CELLS[here[s]])[None], goal)[0, actions[s]] - target) ** 2 / 5
        )
    th.testing.assert_close(loss, total, rtol=1e-4, atol=1e-6)
    th.testing.assert_close(gradient(model, loss), gradient(model, total), rtol=1e-3, atol=1e-4)
    # goals that nobody knows teach nothing
    model.replay_buffer.sample = lambda _: batch._replace(behavior_goal_ids=th.full((6,), UNKNOWN))
    model._update(6)
    assert model._loss == 0.0
    assert model.goal_updates.sum() == 0


def test_the_replay_memory_keeps_which_goal_was_pursued():
    pursued = []

    def listen(local, _):
        pursued.append([info["desired_goal_id"] for info in local["infos"]])
        return True

    memory = sampling("behavior", n_envs=3, learning_starts=1000).learn(60, listen).replay_buffer
    np.testing.assert_array_equal(memory.behavior_goal_ids[: len(pursued)], pursued)
    assert len(np.unique(pursued)) > 3
    assert memory.sample(7).behavior_goal_ids.shape == (7,)
    memory.identify(GoalBuffer(Corridor(6).observation_space))
    assert (memory.behavior_goal_ids[: len(pursued)] == UNKNOWN).all()


def test_batch_goals_are_the_next_observations_topped_up():
    model = sampling("batch")
    model.goal_buffer.add(CELLS)
    known = model.goal_buffer.ids(CELLS)
    ids = th.tensor([known[4], known[4], known[2], UNKNOWN])
    model.replay_buffer.sample = lambda _: ManyGoalsSamples(
        *th.zeros(2, 4), th.tensor(CELLS[[4, 4, 2, 0]]), ids, th.zeros(4)
    )
    for _ in range(20):
        _, goals, goal_ids, _ = model.targets.draw(4, 5, model.rng)
        assert set(goal_ids[:2].tolist()) == {known[4], known[2]}
        assert goal_ids.shape == (5,)
        np.testing.assert_array_equal(goals.numpy(), model.goal_buffer[goal_ids.numpy()])


@pytest.mark.parametrize("goal_sampling", ["uniform", "batch", "behavior", None])
def test_held_out_goals_are_neither_pursued_nor_taught(goal_sampling):
    """None: with planned values."""
    space = Corridor(6).observation_space
    wrapper = {"goal_buffer": GoalBuffer(space, held_out=CELLS[[2, 4]]), "max_episode_steps": 10}
    if goal_sampling is None:
        model = make_model(Corridor(6), goal_wrapper_kwargs=wrapper, target_class=PlannedTargets)
    else:
        model = td_model(
            Corridor(6), goal_wrapper_kwargs=wrapper, targets={"goal_sampling": goal_sampling}
        )
    pursued, taught, losses = set(), set(), model.targets.losses
    model.targets.losses = lambda draw: (
        taught.update(draw.goals.argmax(dim=1).tolist()) or losses(draw)
    )
    model.learn(
        400,
        callback=lambda local, _: (
            pursued.add(int(local["new_obs"]["desired_goal"].argmax())) or True
        ),
    )
    assert pursued == taught == {0, 1, 3, 5}


def test_updates_of_each_goal_are_counted_and_no_part_of_a_saved_model(tmp_path):
    model, drawn = sampling("behavior"), []
    draw = model.targets.draw
    model.targets.draw = lambda *sizes: drawn.append(draw(*sizes)) or drawn[-1]
    model.learn(100)
    ids = np.concatenate([each.goal_ids for each in drawn])
    assert len(ids) > 100
    np.testing.assert_array_equal(
        model.goal_updates, np.bincount(ids[ids != UNKNOWN], minlength=len(model.goal_updates))
    )
    model.save_goal_buffer(tmp_path / "goals")
    again = reloaded(model, tmp_path, Corridor(6))
    model.load_goal_buffer(tmp_path / "goals")
    for one in (again, model):
        assert one.goal_updates.tolist() == [0] * one.goal_buffer.capacity
