"""The all-goals learner in a lookup table."""

import pickle
from contextlib import nullcontext

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_manygoals import (
    GoalBuffer,
    GoalBufferWrapper,
    GymnasiumVecEnv,
    evaluate_mastery,
    memory_limits,
)
from sb3_manygoals.goals.wrapping import goal_trackers
from sb3_manygoals.tabular import AllGoalsTable, TablePolicy, TabularAllGoals
from tests.sb3_manygoals.worlds import Corridor, NumberedCorridor, numbered_from_one


def corridors(n, **kwargs):
    return DummyVecEnv([lambda: NumberedCorridor(**kwargs)] * n)


def make_model(env=None, **kwargs):
    settings = {"seed": 0, "goal_wrapper_kwargs": {"max_episode_steps": 12}}
    return TabularAllGoals(
        "TablePolicy", corridors(2) if env is None else env, **{**settings, **kwargs}
    )


TRANSITION = st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(0, 3), st.booleans())


@given(st.lists(TRANSITION, min_size=1, max_size=12), st.floats(0, 1), st.integers(0, 99))
def test_an_update_is_the_loop_over_transitions_and_goals(transitions, rate, seed):
    start = np.random.default_rng(seed).normal(size=(4, 2, 4)).astype(np.float32)
    expected = start.astype(np.float64)
    for s, a, after, ended in transitions:
        old = expected.copy()
        for g in range(4):
            target = (
                0.25
                if after == g
                else -0.5 / (1 - 0.8)
                if ended
                else -0.5 + 0.8 * max(old[after, :, g])
            )
            expected[s, a, g] = old[s, a, g] + rate * (target - old[s, a, g])
    table = AllGoalsTable(4, 2)
    table.values[:] = start
    s, a, after, ended = map(np.array, zip(*transitions, strict=True))
    table.update(s, a, after, rate, 0.8, goal_reward=0.25, step_reward=-0.5, terminated=ended)
    np.testing.assert_allclose(table.values, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["states", "actions", "next_states"])
@pytest.mark.parametrize("value", [-1, 7])
def test_what_is_not_in_the_table_is_refused_and_changes_nothing(name, value):
    table = AllGoalsTable(3, 2)
    given = {
        "states": np.array([0, 1]),
        "actions": np.array([0, 1]),
        "next_states": np.array([1, 2]),
    }
    given[name] = np.array([0, value])
    with pytest.raises(
        ValueError, match=rf"{name} must be whole numbers in \[0, [23]\), got .*{value}"
    ):
        table.update(**given, learning_rate=0.5)
    with pytest.raises(ValueError, match=r"learning_rate must be a number in \[0, 1\], got -5.0"):
        table.update(**given | {name: np.array([0, 1])}, learning_rate=-5.0)
    with pytest.raises(ValueError, match=r"gamma must be a number in \[0, 1\), got 1.0"):
        table.update(**given | {name: np.array([0, 1])}, learning_rate=0.5, gamma=1.0)
    with pytest.raises(ValueError, match=r"states, .* must have one length, got .*1"):
        table.update(**given | {name: np.array([0])}, learning_rate=0.5)
    assert not table.values.any()


def test_a_table_that_does_not_fit_is_refused(monkeypatch):
    for n_states, n_actions in ((0, 2), (2, 0), (2.0, 2), (True, 2)):
        with pytest.raises(ValueError, match="must be a whole number, at least 1"):
            AllGoalsTable(n_states, n_actions)
    monkeypatch.setattr(memory_limits, "available_memory", lambda: 1000)
    with pytest.raises(
        MemoryError, match=r"a table of 10 states, 3 actions and 10 goals would take 1\.2 KiB"
    ):
        AllGoalsTable(10, 3)


def distance_values(length, gamma=0.99):
    """
    Return the exact values of a corridor. Each step to the goal but the last costs 0.1. An agent at
    the goal has to leave and return.
    """
    values = np.zeros((length, 3, length))
    for s in range(length):
        for a, move in enumerate((-1, 1, 0)):
            after = min(max(s + move, 0), length - 1)
            for g in range(length):
                values[s, a, g] = -0.1 * sum(gamma**k for k in range(abs(after - g)))
    return values


def test_it_learns_the_exact_values_of_a_corridor():
    model = make_model(learning_rate=1.0, exploration_final_eps=0.5).learn(6_000)
    np.testing.assert_allclose(model.table.values, distance_values(6), atol=1e-5)
    assert model.env.goal_buffer.capacity == 6
    env = SyncVectorEnv([NumberedCorridor] * 6, autoreset_mode=AutoresetMode.NEXT_STEP)
    assert evaluate_mastery(model, env, np.arange(6), max_steps=5).rate == 1.0


def test_it_learns_that_the_end_is_no_way_to_a_goal():
    """
    Right of the last cell the world ends. If that end were worth 0, going there would be the best
    action for every other goal.
    """
    world = corridors(2, length=4, deadly=True)
    model = make_model(world, learning_rate=1.0, exploration_final_eps=0.5).learn(6_000)
    np.testing.assert_allclose(model.table.values[3, 1, :3], -10.0, atol=1e-5)
    # It does arrive in the cell where it is.
    assert model.table.values[3, 1, 3] == 0.0


def gymnasium_vector():
    return GymnasiumVecEnv(
        SyncVectorEnv([NumberedCorridor] * 2, autoreset_mode=AutoresetMode.DISABLED)
    )


@pytest.mark.parametrize(
    "make_env", [NumberedCorridor, lambda: gym.make("Taxi-v4"), gymnasium_vector]
)
def test_environments_and_vectors_of_them(make_env):
    model = make_model(
        make_env(), learning_rate=lambda progress: 0.5 * progress, exploration_fraction=1.0
    )
    model.learn(240.0, log_interval=1)
    assert model.num_timesteps == 240
    assert model.table.values.any()
    assert model.exploration_rate == pytest.approx(0.1)


class Rates(BaseCallback):
    """Notes the exploration rate of each step."""

    def __init__(self):
        super().__init__()
        self.rates = []

    def _on_step(self):
        self.rates.append(self.model.exploration_rate)
        return True


def test_the_exploration_rate_falls_linearly_over_a_share_of_training_as_in_sb3():
    seen = Rates()
    model = make_model(
        NumberedCorridor(),
        exploration_fraction=0.5,
        exploration_initial_eps=0.9,
        exploration_final_eps=0.1,
    )
    model.learn(100, seen)
    theirs = Rates()
    DQN(
        "MlpPolicy",
        "CartPole-v1",
        exploration_fraction=0.5,
        exploration_initial_eps=0.9,
        exploration_final_eps=0.1,
        device="cpu",
    ).learn(100, theirs)
    # Before the first step, SB3 has not computed a rate.
    assert seen.rates[0] == 0.9
    np.testing.assert_allclose(seen.rates[1:], theirs.rates[1:])
    assert seen.rates[50:] == pytest.approx([0.1] * 50)


def test_held_out_goals_are_not_taught():
    held_out = GoalBuffer(spaces.Discrete(6), 6, held_out=np.array([2, 4]))
    model = make_model(
        NumberedCorridor(), goal_wrapper_kwargs={"max_episode_steps": 7, "goal_buffer": held_out}
    ).learn(300)
    was_taught = (model.table.values != model.table.values[0, 0, 2]).any(axis=(0, 1))
    assert was_taught.tolist() == [True, True, False, True, False, True]


def test_goals_and_their_pursuit_stay_in_new_environments_and_loaded_models(tmp_path):
    held_out = GoalBuffer(spaces.Discrete(6), 6, held_out=np.array([2]))
    model = make_model(
        NumberedCorridor(), goal_wrapper_kwargs={"max_episode_steps": 7, "goal_buffer": held_out}
    ).learn(100)
    model.save(tmp_path / "model")
    model.set_env(NumberedCorridor())
    assert model.goal_buffer is held_out
    loaded = TabularAllGoals.load(tmp_path / "model", NumberedCorridor())
    for one in (model, loaded):
        with pytest.warns(UserWarning, match="goals were not") if one is loaded else nullcontext():
            one.learn(100)
        (tracker,) = goal_trackers(one.get_env())
        assert tracker.max_episode_steps == 7
        assert sorted(one.goal_buffer.observations) == [0, 1, 3, 4, 5]
        assert one.goal_config["held_out"] == [2]
    known = GoalBuffer(spaces.Discrete(6), 6)
    with pytest.raises(ValueError, match="1 of 1 observations that the model held out"):
        TabularAllGoals.load(tmp_path / "model", GoalBufferWrapper(NumberedCorridor(), known))


def test_the_settings_of_a_goal_wrapper_of_the_users_are_kept(tmp_path):
    goals = GoalBuffer(spaces.Discrete(6), 6)
    env = GoalBufferWrapper(NumberedCorridor(), goals, max_episode_steps=7)
    first = TabularAllGoals("TablePolicy", env)
    # It has the settings of the last one.
    second = make_model(NumberedCorridor())
    second.set_env(env)
    for model in (first, second):
        model.save(tmp_path / "model")
        model.set_env(NumberedCorridor())
        for one in (model, TabularAllGoals.load(tmp_path / "model", NumberedCorridor())):
            (tracker,) = goal_trackers(one.get_env())
            assert tracker.max_episode_steps == 7
    loaded = TabularAllGoals.load(tmp_path / "model", NumberedCorridor(), goal_wrapper_kwargs={})
    (tracker,) = goal_trackers(loaded.get_env())
    assert tracker.max_episode_steps == 50


def test_a_trained_model_keeps_its_rewards(tmp_path):
    model = make_model(NumberedCorridor(), goal_wrapper_kwargs={"step_reward": -1.0}).learn(50)
    model.save(tmp_path / "model")
    loaded = TabularAllGoals.load(
        tmp_path / "model", NumberedCorridor(), goal_wrapper_kwargs={"max_episode_steps": 9}
    )
    (tracker,) = goal_trackers(loaded.get_env())
    assert (tracker.step_reward, tracker.max_episode_steps) == (-1.0, 9)
    others = {"goal_wrapper_kwargs": {"step_reward": -0.5}}
    with pytest.raises(ValueError, match=r"goal_wrapper_kwargs must have step_reward=-1\.0"):
        TabularAllGoals.load(tmp_path / "model", NumberedCorridor(), **others)
    # Neither without an environment, nor with a number of steps that counts from the beginning.
    for further in ({}, {"env": NumberedCorridor(), "num_timesteps": 0}):
        with pytest.raises(ValueError, match=r"goal_wrapper_kwargs must have step_reward=-1\.0"):
            TabularAllGoals.load(tmp_path / "model", **further, **others)
    goals = GoalBuffer(spaces.Discrete(6), 6)
    env = GoalBufferWrapper(NumberedCorridor(), goals, step_reward=-0.5)
    with pytest.raises(ValueError, match=r"must have the model's goal_reward and step_reward"):
        loaded.set_env(env)
    # Nothing was learned with the rewards of an untrained model.
    make_model(NumberedCorridor()).set_env(env)


def test_what_another_environment_holds_out_is_known_to_a_loaded_model(tmp_path):
    model = make_model(NumberedCorridor())
    held_out = GoalBuffer(spaces.Discrete(6), 6, held_out=np.array([2]))
    model.set_env(GoalBufferWrapper(NumberedCorridor(), held_out))
    model.save(tmp_path / "model")
    loaded = TabularAllGoals.load(tmp_path / "model", NumberedCorridor())
    assert loaded.goal_config["held_out"] == [2]


@pytest.mark.parametrize("name", ["gamma", "exploration_fraction", "stats_window_size"])
def test_numbers_given_at_loading_are_checked(tmp_path, name):
    make_model().save(tmp_path / "model")
    with pytest.raises(ValueError, match=f"{name} must be"):
        TabularAllGoals.load(tmp_path / "model", **{name: -1})


def test_an_unpickled_policy_has_one_table():
    policy = pickle.loads(pickle.dumps(make_model().policy))
    weights = {name: th.ones_like(value) for name, value in policy.state_dict().items()}
    policy.load_state_dict(weights)
    assert (policy.table.values == 1.0).all()


def test_after_an_evaluation_in_its_own_environment_it_learns_what_happened(monkeypatch):
    model = make_model(NumberedCorridor(), learning_rate=lambda progress: 0.5 * progress)
    model.learn(20)
    seen = []

    def update(*columns, learning_rate, **_):
        seen.append((*columns, learning_rate))

    monkeypatch.setattr(model.table, "update", update)
    for _ in range(10):
        evaluate_policy(model, model.get_env(), 2)
        model.learn(2, reset_num_timesteps=False)
    assert seen
    for state, action, after, rate in seen:
        assert after == np.clip(state + np.array([-1, 1, 0])[action], 0, 5)
        assert 0.0 <= rate <= 0.5


def test_save_and_load_round_trip(tmp_path):
    model = make_model().learn(300)
    model.save(tmp_path / "model")
    for env in (None, corridors(2)):
        again = TabularAllGoals.load(tmp_path / "model", env)
        np.testing.assert_array_equal(again.table.values, model.table.values)
    with pytest.warns(UserWarning, match="trained, but its goals were not saved with it"):
        again.learn(100, reset_num_timesteps=False)
    assert again.num_timesteps == 400
    assert (again.table.values != model.table.values).any()
    model.policy.save(tmp_path / "policy")
    np.testing.assert_array_equal(
        TablePolicy.load(tmp_path / "policy").table.values, model.table.values
    )


def test_predict_is_greedy_for_each_pair_of_state_and_goal():
    model = make_model()
    model.table.values[:] = np.random.default_rng(0).normal(size=model.table.values.shape)
    states, goals = np.divmod(np.arange(36), 6)
    query = {"observation": states, "achieved_goal": states, "desired_goal": goals}
    expected = [
        max(range(3), key=lambda a: model.table.values[s, a, g])
        for s, g in zip(states, goals, strict=True)
    ]
    np.testing.assert_array_equal(model.predict(query, deterministic=True)[0], expected)
    np.testing.assert_array_equal(model.policy.predict(query)[0], expected)
    one = {"observation": np.int64(1), "desired_goal": np.int64(2)}
    assert model.predict(one, deterministic=True)[0].shape == ()
    for observation, message in (
        (np.array([1]), 'observation must be a dict with "observation" and "desired_goal"'),
        (
            {"observation": np.array([6]), "desired_goal": np.array([0])},
            r"states must be whole numbers in \[0, 6\)",
        ),
        (
            {"observation": np.array([0]), "desired_goal": np.array([-1])},
            "goals must be whole numbers",
        ),
        (
            {"observation": np.array([0.5]), "desired_goal": np.array([1])},
            "states must be whole numbers",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            model.predict(observation)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gamma": 1.0}, r"gamma must be a number in \[0, 1\), got 1.0"),
        ({"learning_rate": 1.5}, "learning_rate must be a number in"),
        ({"learning_rate": lambda share: 1.0 + share}, "learning_rate must be a number in"),
        ({"seed": -1}, "seed must be a whole number, at least 0, got -1"),
        ({"stats_window_size": 0}, "stats_window_size must be a whole number, at least 1, got 0"),
        ({"exploration_final_eps": 2.0}, "exploration_final_eps must be a number in"),
        ({"exploration_fraction": 1.5}, r"exploration_fraction must be a number in \[0, 1\]"),
        (
            {"env": Corridor()},
            "a table needs a Discrete observation space that starts at 0, got Box",
        ),
        (
            {"env": numbered_from_one(NumberedCorridor())},
            r"starts at 0 is needed, got Discrete\(3, start=1\)",
        ),
        ({}, r"total_timesteps must be a number in \[1, inf\), got 0"),
    ],
)
def test_bad_input_is_refused(settings, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make_model(**settings).learn(0)


@pytest.mark.parametrize(
    "ask",
    [
        lambda model: model.learn(100),
        TabularAllGoals.dump_logs,
        TabularAllGoals.get_checkpoint_state,
    ],
    ids=["learn", "log", "get state"],
)
def test_a_table_without_an_environment_acts_and_says_what_else_needs_one(tmp_path, ask):
    make_model().learn(60).save(tmp_path / "table")
    alone = TabularAllGoals.load(tmp_path / "table")
    obs = {"observation": np.int64(1), "desired_goal": np.int64(3)}
    assert alone.predict(obs)[0] in (0, 1, 2)
    with pytest.raises(ValueError, match=r"has no environment: give it one, load\(path, env\) or"):
        ask(alone)
