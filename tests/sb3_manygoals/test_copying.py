"""Tests that deep copies of learners and of their parts are complete and independent."""

import copy
import gc
import pickle

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecMonitor

from sb3_manygoals import (
    GoalBuffer,
    GoalBufferWrapper,
    GymnasiumVecEnv,
    ManyGoalsDQN,
    TabularAllGoals,
    TDTargets,
    VecGoalBufferWrapper,
)
from sb3_manygoals.checkpoint.learner import get_generators, set_generators
from sb3_manygoals.goals import LearningProgressSelector
from sb3_manygoals.goals.wrapping import goal_trackers
from tests.sb3_manygoals.checkpoint.resuming import same
from tests.sb3_manygoals.many_goals_dqn.memories import kept
from tests.sb3_manygoals.many_goals_dqn.models import make_model, parameters
from tests.sb3_manygoals.worlds import Corridor, NumberedCorridor


def native(n_envs=3):
    world = gym.make_vec(
        "gym_twoRooms:TwoRoomsSwitchSmall-v0", num_envs=n_envs, autoreset_mode="Disabled"
    )
    return GymnasiumVecEnv(world)


def synchronous():
    return GymnasiumVecEnv(gym.vector.SyncVectorEnv([Corridor] * 3, autoreset_mode="Disabled"))


def monitored_outside():
    return VecMonitor(VecGoalBufferWrapper(DummyVecEnv([Corridor] * 3)))


MODELS = {
    "one environment": make_model,
    "a DummyVecEnv": lambda: make_model(make_vec_env(Corridor, 3), updates_as_needed=False),
    "a native vector environment": lambda: make_model(native(), "CnnPolicy"),
    "a SyncVectorEnv": lambda: make_model(synchronous()),
    "a VecMonitor within": lambda: make_model(VecMonitor(DummyVecEnv([Corridor] * 3))),
    "a VecMonitor outside": lambda: make_model(monitored_outside()),
    "a target network": lambda: make_model(make_vec_env(Corridor, 3), target_class=TDTargets),
    "goals in the replay memory": lambda: make_model(goals_in_replay=True),
    "a selector that learns": lambda: make_model(
        goal_wrapper_kwargs={"selector_class": LearningProgressSelector}
    ),
    "a log": lambda: make_model(verbose=1),
    "a table": lambda: TabularAllGoals("TablePolicy", make_vec_env(NumberedCorridor, 3), seed=0),
}


def steps_on(model, generators):
    set_generators(generators)
    model.learn(60, reset_num_timesteps=False)
    return model.get_checkpoint_state()


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_a_copy_of_a_model_learns_on_as_the_model_does(make):
    model = make().learn(60)
    copied = copy.deepcopy(model)
    generators = get_generators(model)
    same(steps_on(model, generators), steps_on(copied, generators))


@pytest.mark.parametrize("name", ["one environment", "a DummyVecEnv"])
def test_a_copy_of_a_model_shares_nothing_with_it(name):
    model = MODELS[name]().learn(60)
    copied = copy.deepcopy(model)
    weights = parameters(model).clone()
    memory = [rows.copy() for rows in kept(model.replay_buffer)]
    for tracker in goal_trackers(copied.get_env()):
        assert tracker.goal_buffer is copied.goal_buffer
        assert tracker.selector is copied.selector
    assert copied.selector is not model.selector
    assert copied.targets.context.goal_buffer is copied.goal_buffer
    assert copied.targets.context.world is copied.world
    assert copied.replay_buffer.states is copied.goal_buffer.states
    assert copied.world.identity is copied.goal_buffer.states
    visit_counts = model.world.visit_counts.copy()
    copied.learn(60, reset_num_timesteps=False)
    assert th.equal(parameters(model), weights)
    np.testing.assert_array_equal(kept(model.replay_buffer), memory)
    np.testing.assert_array_equal(model.world.visit_counts, visit_counts)
    assert copied.replay_buffer.size() > model.replay_buffer.size()
    assert copied.world.n_counted > model.world.n_counted
    assert not th.equal(parameters(copied), weights)


def test_a_model_that_has_not_learned_or_has_no_environment_is_copied(tmp_path):
    model = make_model(make_vec_env(Corridor, 2))
    copy.deepcopy(model).learn(40)
    assert model.num_timesteps == 0
    model.save(tmp_path / "model")
    alone = copy.deepcopy(ManyGoalsDQN.load(tmp_path / "model"))
    assert alone.env is None
    assert th.equal(parameters(alone), parameters(model))


def test_a_copy_of_a_vector_of_goal_environments_goes_its_own_way():
    # From the left end, steps to the right meet cells that no step before them has met.
    corridors = [lambda: Corridor(start=0)] * 2
    env = VecGoalBufferWrapper(VecMonitor(DummyVecEnv(corridors)))
    env.reset()
    copied = copy.deepcopy(env)
    assert type(copied) is VecGoalBufferWrapper
    assert copied.goal_buffer is not env.goal_buffer
    right = np.full(2, 1)
    stay = np.full(2, 2)
    for _ in range(3):
        seen = env.step(stay)[0]["observation"]
        np.testing.assert_array_equal(copied.step(stay)[0]["observation"], seen)
    before = len(env.goal_buffer)
    for _ in range(10):
        copied.step(right)
    assert len(env.goal_buffer) == before < len(copied.goal_buffer)


def test_a_goal_wrapper_a_goal_buffer_and_a_selector_are_copied():
    env = GoalBufferWrapper(Corridor(), selector_class=LearningProgressSelector)
    env.reset(seed=0)
    copied = copy.deepcopy(env)
    copied.goal_buffer.add(np.eye(6, dtype=np.uint8))
    assert (len(env.goal_buffer), len(copied.goal_buffer)) == (1, 6)
    assert copied.goal_tracker.goal_buffer is copied.goal_buffer
    assert copied.goal_tracker.selector is not env.goal_tracker.selector
    goals = GoalBuffer(Corridor().observation_space, held_out=np.eye(6, dtype=np.uint8)[:1])
    goals.add(np.eye(6, dtype=np.uint8))
    again = copy.deepcopy(goals)
    np.testing.assert_array_equal(again.observations, goals.observations)
    np.testing.assert_array_equal(again.ids(goals.observations), np.arange(5))


def test_environments_in_other_processes_are_not_copied_and_the_error_says_what_to_do():
    model = make_model(SubprocVecEnv([Corridor, Corridor]))
    with pytest.raises(TypeError, match="cannot be copied: they are in other processes; save the"):
        copy.deepcopy(model)
    # The model still works.
    model.learn(40)
    model.env.close()


def test_a_copy_that_is_refused_leaves_environments_in_other_processes_as_they_are():
    worlds = gym.vector.AsyncVectorEnv(
        [Corridor] * 2, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP
    )
    model = make_model(GymnasiumVecEnv(worlds)).learn(40)
    with pytest.raises(TypeError, match="they are in other processes"):
        copy.deepcopy(model)
    gc.collect()
    model.learn(20, reset_num_timesteps=False)
    model.get_env().close()


@pytest.mark.parametrize("make", [make_model, lambda env: TabularAllGoals("TablePolicy", env)])
def test_a_learner_in_a_vec_env_can_be_pickled(make):
    world = NumberedCorridor if make is not make_model else Corridor
    model = make(make_vec_env(world, 2))
    model.learn(20)
    again = pickle.loads(pickle.dumps(model))
    assert again.num_timesteps == model.num_timesteps
    assert len(again.goal_buffer) == len(model.goal_buffer)
    before = len(model.goal_buffer)
    again.learn(200)
    assert len(again.goal_buffer) == 6
    assert len(model.goal_buffer) == before
    assert again.get_env().get_attr("spec") == [None, None]
