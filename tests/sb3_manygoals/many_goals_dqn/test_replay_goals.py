"""Goals that are the observations in the replay memory."""

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from stable_baselines3.common.env_util import make_vec_env

from sb3_manygoals import GoalBuffer, GoalBufferWrapper
from sb3_manygoals.goals.wrapper import goal_observation_space
from sb3_manygoals.many_goals_dqn import ManyGoalsReplayBuffer, ReplayGoals, TDTargets
from tests.sb3_manygoals.many_goals_dqn.memories import add
from tests.sb3_manygoals.many_goals_dqn.models import make_model, reloaded
from tests.sb3_manygoals.worlds import Corridor

SPACE = spaces.Box(0, 255, (2,), np.uint8)


def filled(seed, n_added, n_envs):
    """:return: goals, the replay memory, and the next observations in it, newest last, of which many are equal"""
    rng = np.random.default_rng(seed)
    goals = ReplayGoals(SPACE)
    replay = ManyGoalsReplayBuffer(
        5 * n_envs, goal_observation_space(SPACE), spaces.Discrete(2), "cpu", n_envs
    )
    goals.replay_buffer = replay
    history = []
    for _ in range(n_added):
        there = rng.integers(0, 3, size=(n_envs, 2), dtype=np.uint8)
        add(replay, there, 0, there, goal_id=goals.add(there))
        history = [*history, *map(tuple, there)][-5 * n_envs :]
    return goals, replay, history


@given(st.integers(0, 10_000), st.integers(1, 20), st.integers(1, 3))
def test_goals_are_those_of_the_transitions_and_no_others(seed, n_added, n_envs):
    goals, _, history = filled(seed, n_added, n_envs)
    rng = np.random.default_rng(seed)
    assert len(goals) == len(history)
    assert sorted(map(tuple, goals.observations)) == sorted(history)
    drawn = goals.sample_ids(40, rng)
    observations = goals[drawn]
    assert {tuple(row) for row in observations} <= set(history)
    np.testing.assert_array_equal(goals.ids(observations), drawn)
    assert (drawn >= 0).all()
    current = goals.ids(np.array(history[:3], np.uint8))
    others = goals.sample_others(current, rng)
    for here, other in zip(current, others, strict=True):
        assert other != here or len(set(history)) == 1
        assert tuple(goals[other]) in history
    gone = np.array([[9, 9]], np.uint8)
    with pytest.raises(IndexError, match="there is no goal with the id"):
        goals[goals.ids(gone)]


def test_equal_observations_have_equal_ids_and_different_ones_do_not():
    goals = ReplayGoals(spaces.Box(-1, 1, (2,), np.float32))
    pairs = np.array([[0.0, 1.0], [0.0, 1.0], [-0.0, 1.0], [1.0, 0.0]], np.float32)
    first, again, minus, turned = goals.ids(pairs).tolist()
    assert first == again == ReplayGoals(goals.observation_space).ids(pairs)[0]
    assert len({first, minus, turned}) == 3


def test_each_goal_is_drawn_as_often_as_it_is_there():
    goals, _, history = filled(3, 9, 1)
    drawn = [tuple(row) for row in goals[goals.sample_ids(6_000, np.random.default_rng(0))]]
    for goal in set(history):
        expected = 6_000 * history.count(goal) / len(history)
        assert abs(drawn.count(goal) - expected) < 5 * expected**0.5


def test_the_first_goals_are_the_first_observations():
    goals = ReplayGoals(SPACE)
    with pytest.raises(ValueError, match="empty goal buffer"):
        goals.sample_ids(1, np.random.default_rng(0))
    ids = goals.add(np.array([[1, 2], [3, 4]], np.uint8))
    assert len(goals) == 2
    np.testing.assert_array_equal(goals[ids], [[1, 2], [3, 4]])
    for number in range(200):
        goals.add(np.array([[number, 7]], np.uint8))
    assert len(goals) == 100
    other = ReplayGoals(SPACE)
    other.set_checkpoint_state(goals.get_checkpoint_state())
    np.testing.assert_array_equal(other.observations, goals.observations)
    with pytest.raises(ValueError, match="capacity"):
        other.set_checkpoint_state(GoalBuffer(SPACE, 7).get_checkpoint_state())


def make(env=None, **kwargs):
    env = make_vec_env(lambda: Corridor(9), 2, seed=3) if env is None else env
    return make_model(
        env, buffer_size=30, batch_size=8, goal_batch_size=4, goals_in_replay=True, **kwargs
    )


@pytest.mark.parametrize("goal_sampling", ["uniform", "batch"])
def test_updates_are_about_goals_in_the_replay_memory(goal_sampling):
    model, seen = make(target_class=TDTargets, target_kwargs={"goal_sampling": goal_sampling}), 0
    losses = model.targets.losses

    def look(draw):
        nonlocal seen
        kept = {
            row.tobytes()
            for row in model.replay_buffer.next_observations[: model.replay_buffer.size()].reshape(
                -1, 9
            )
        }
        assert {goal.numpy().tobytes() for goal in draw.goals} <= kept
        # "is this the goal?" by ids is what it is by pictures
        by_ids = draw.batch.next_ids[:, None] == draw.goal_ids
        by_pictures = (draw.batch.next_observations[:, None] == draw.goals).all(dim=2)
        assert (by_ids == by_pictures).all()
        seen += int(by_ids.sum())
        return losses(draw)

    model.targets.losses = look
    model.learn(120)
    assert seen > 100
    assert len(model.goal_buffer) == 30
    assert len(model.goal_updates) == 0


def test_a_model_saved_and_loaded_has_its_goals_in_its_replay_memory(tmp_path):
    model = make(GoalBufferWrapper(Corridor(9))).learn(30)  # whose empty goal buffer gives way
    assert isinstance(model.goal_buffer, ReplayGoals)
    assert len(model.goal_buffer) == 30
    model = make().learn(300)
    assert isinstance(model.targets, TDTargets)  # however often observations recur
    assert model.replay_buffer.states is None
    with pytest.raises(TypeError, match="save_replay_buffer"):
        model.save_goal_buffer(tmp_path / "goals")
    loaded = reloaded(
        model,
        tmp_path,
        make_vec_env(lambda: Corridor(9), 2, seed=3),
        ("replay_buffer",),
        device="cpu",
    )
    assert isinstance(loaded.goal_buffer, ReplayGoals)
    np.testing.assert_array_equal(loaded.goal_buffer.observations, model.goal_buffer.observations)
    np.testing.assert_array_equal(loaded.replay_buffer.next_ids, model.replay_buffer.next_ids)
    loaded.learn(20, reset_num_timesteps=False)
    loaded.set_env(make_vec_env(lambda: Corridor(9), 2, seed=4))
    loaded.learn(20, reset_num_timesteps=False)
    with pytest.raises(TypeError, match="load_replay_buffer"):
        loaded.load_goal_buffer(tmp_path / "goals")
