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
from tests.sb3_manygoals.many_goals_dqn.memories import add, kept
from tests.sb3_manygoals.many_goals_dqn.models import make_model, reloaded
from tests.sb3_manygoals.worlds import Corridor

SPACE = spaces.Box(0, 255, (2,), np.uint8)


def goals_in_memory(seed, n_added, n_envs):
    """
    Fill a replay memory with transitions at random.

    :return: goals that are in it, and its next observations, newest last. Many of them are equal
    """
    rng = np.random.default_rng(seed)
    goals = ReplayGoals(SPACE)
    space = goal_observation_space(SPACE)
    goals.replay_buffer = ManyGoalsReplayBuffer(
        5 * n_envs, space, spaces.Discrete(2), "cpu", n_envs, wide_goal_ids=True
    )
    history = []
    for _ in range(n_added):
        there = rng.integers(0, 3, size=(n_envs, 2), dtype=np.uint8)
        add(goals.replay_buffer, there, 0, there, goal_id=goals.add(there))
        history = [*history, *map(tuple, there)][-5 * n_envs :]
    return goals, history


@given(st.integers(0, 10_000), st.integers(1, 20), st.integers(1, 3))
def test_goals_are_those_of_the_transitions_and_no_others(seed, n_added, n_envs):
    goals, history = goals_in_memory(seed, n_added, n_envs)
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
    unknown = goals.ids(np.array([[9, 9]], np.uint8))
    with pytest.raises(IndexError, match="there is no goal with the id"):
        goals[unknown]


@given(st.integers(0, 10_000), st.integers(0, 12), st.integers(1, 3), st.integers(1, 20))
def test_some_goals_are_evenly_chosen(seed, n_added, n_envs, n):
    goals, history = goals_in_memory(seed, n_added, n_envs)
    if n_added == 0:
        first = np.array([[1, 2], [3, 4], [5, 6]], np.uint8)
        goals.add(first)
        history = list(map(tuple, first))
    found = goals.evenly_chosen(n)
    assert len(found) == min(n, len(history))
    everything = goals.observations
    assert len(everything) == len(history)
    places = np.linspace(0, len(everything) - 1, len(found)).astype(int)
    np.testing.assert_array_equal(found, everything[places])


def test_equal_observations_have_equal_ids_and_different_ones_do_not():
    goals = ReplayGoals(spaces.Box(-1, 1, (2,), np.float32))
    pairs = np.array([[0.0, 1.0], [0.0, 1.0], [-0.0, 1.0], [1.0, 0.0]], np.float32)
    first, again, minus, turned = goals.ids(pairs).tolist()
    assert first == again
    assert first == ReplayGoals(goals.observation_space).ids(pairs)[0]
    assert len({first, minus, turned}) == 3


def test_each_goal_is_drawn_as_often_as_it_is_there():
    goals, history = goals_in_memory(3, 9, 1)
    ids = goals.sample_ids(6_000, np.random.default_rng(0))
    drawn = [tuple(row) for row in goals[ids]]
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


def corridors(seed=3):
    return make_vec_env(lambda: Corridor(9), 2, seed=seed)


def make(env=None, **kwargs):
    settings = {"buffer_size": 30, "batch_size": 8, "goal_batch_size": 4, "goals_in_replay": True}
    return make_model(corridors() if env is None else env, **settings, **kwargs)


@pytest.mark.parametrize("goal_sampling", ["uniform", "segments"])
def test_updates_teach_goals_in_the_replay_memory(goal_sampling):
    model = make(target_class=TDTargets, target_kwargs={"goal_sampling": goal_sampling})
    losses = model.targets.losses
    n_achieved = []

    def look(batch, target_values):
        next_observations = kept(model.replay_buffer)[1].reshape(-1, 9)
        in_memory = {row.tobytes() for row in next_observations}
        assert {goal.numpy().tobytes() for goal in batch.goals} <= in_memory
        # Whether a goal was achieved is the same by ids and by observations.
        samples = batch.samples
        by_ids = samples.next_goal_ids[:, None] == batch.goal_ids
        by_observations = (samples.next_observations[:, None] == batch.goals).all(dim=2)
        assert (by_ids == by_observations).all()
        n_achieved.append(int(by_ids.sum()))
        return losses(batch, target_values)

    model.targets.losses = look
    model.learn(120)
    assert sum(n_achieved) > 100
    assert len(model.goal_buffer) == 30
    assert len(model.goal_updates) == 0


def test_an_empty_goal_buffer_of_the_environment_gives_way():
    model = make(GoalBufferWrapper(Corridor(9))).learn(30)
    assert isinstance(model.goal_buffer, ReplayGoals)
    assert len(model.goal_buffer) == 30


def test_a_model_is_saved_and_loaded_with_the_goals_in_its_replay_memory(tmp_path):
    model = make().learn(300)
    # Targets are bootstrapped, however often observations recur.
    assert isinstance(model.targets, TDTargets)
    assert model.replay_buffer.states is None
    with pytest.raises(TypeError, match="save_replay_buffer"):
        model.save_world(tmp_path / "world")
    loaded = reloaded(model, tmp_path, corridors(), ("replay_buffer",), device="cpu")
    assert isinstance(loaded.goal_buffer, ReplayGoals)
    np.testing.assert_array_equal(loaded.goal_buffer.observations, model.goal_buffer.observations)
    ids = [one.replay_buffer.next_goal_ids for one in (loaded, model)]
    np.testing.assert_array_equal(*ids)
    loaded.learn(20, reset_num_timesteps=False)
    loaded.set_env(corridors(seed=4))
    loaded.learn(20, reset_num_timesteps=False)
    with pytest.raises(TypeError, match="load_replay_buffer"):
        loaded.load_world(tmp_path / "world")
