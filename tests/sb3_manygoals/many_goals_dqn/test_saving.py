import numpy as np
import pytest
import torch as th
from stable_baselines3.common.env_util import make_vec_env

from sb3_manygoals import GoalBuffer, GoalBufferWrapper, ManyGoalsDQN
from sb3_manygoals.goals import UNKNOWN
from sb3_manygoals.many_goals_dqn import PlannedTargets, TDTargets
from tests.sb3_manygoals.many_goals_dqn.memories import goals_of, kept
from tests.sb3_manygoals.many_goals_dqn.models import (
    goal_obs,
    make_model,
    parameters,
    reloaded,
    td_model,
)
from tests.sb3_manygoals.worlds import Corridor


@pytest.mark.parametrize("policy", ["MlpPolicy", "CnnPolicy"])
def test_save_and_load_round_trip(tmp_path, policy):
    world = Corridor(image=policy == "CnnPolicy")
    targets = {"goal_sampling": "batch", "tau": 0.5}
    model = td_model(world, policy, targets=targets, goal_wrapper_kwargs={"max_episode_steps": 6})
    model.learn(100)
    model.save(tmp_path / "model")
    model.save_goal_buffer(tmp_path / "goals")
    model.policy.save(tmp_path / "policy.pt")
    alone, greedy = (
        ManyGoalsDQN.load(tmp_path / "model"),
        type(model.policy).load(tmp_path / "policy.pt"),
    )
    assert th.equal(parameters(model), parameters(alone))
    for cell in range(6):
        obs = goal_obs(world, cell, 5 - cell)
        actions = [one.predict(obs, deterministic=True)[0] for one in (model, alone, greedy)]
        assert len(set(map(int, actions))) == 1
    again = ManyGoalsDQN.load(tmp_path / "model", env=Corridor(image=policy == "CnnPolicy"))
    assert again.env.get_attr("goal_tracker")[0].max_episode_steps == 6
    assert (again.target_class, again.target_kwargs, again.num_timesteps) == (
        TDTargets,
        targets,
        100,
    )
    assert (again.targets.goal_sampling, again.targets.tau) == ("batch", 0.5)
    again.load_goal_buffer(tmp_path / "goals")
    np.testing.assert_array_equal(again.goal_buffer.observations, model.goal_buffer.observations)
    assert again.env.get_attr("goal_buffer")[0] is again.goal_buffer
    state, loaded = model.policy.optimizer.state_dict(), again.policy.optimizer.state_dict()
    th.testing.assert_close(state["state"], loaded["state"])
    again.learn(60, reset_num_timesteps=False)
    assert again.num_timesteps == 160
    assert not th.equal(parameters(model), parameters(again))
    # an env that pursues goals already is taken as it is
    wrapped = GoalBufferWrapper(Corridor(image=policy == "CnnPolicy"), max_episode_steps=3)
    assert (
        ManyGoalsDQN.load(tmp_path / "model", env=wrapped)
        .env.get_attr("goal_tracker")[0]
        .max_episode_steps
        == 3
    )


def test_the_replay_buffer_round_trips_with_the_right_ids(tmp_path):
    model = make_model().learn(50)
    model.save_replay_buffer(tmp_path / "replay")
    model.save_goal_buffer(tmp_path / "goals")

    def check(other):
        memory = other.replay_buffer
        assert memory.size() == 50
        np.testing.assert_array_equal(kept(memory), kept(model.replay_buffer))
        np.testing.assert_array_equal(other.goal_buffer[memory.next_ids[:50]], kept(memory)[1])

    # whatever this one has met before, and in whichever order the two files come
    alone = make_model(Corridor(start=5)).learn(5)
    alone.load_replay_buffer(tmp_path / "replay")
    check(alone)
    alone.load_goal_buffer(tmp_path / "goals")
    check(alone)
    np.testing.assert_array_equal(alone.replay_buffer.next_ids, model.replay_buffer.next_ids)


def test_a_new_environment_goes_on_with_the_goals_known():
    model = make_model(Corridor(start=0)).learn(40)
    known = model.goal_buffer.observations.copy()
    for env in (Corridor(start=5), GoalBufferWrapper(Corridor(), model.goal_buffer)):
        model.set_env(env)
        assert model.env.get_attr("goal_buffer")[0] is model.goal_buffer
        model.learn(40, reset_num_timesteps=False)
    np.testing.assert_array_equal(model.goal_buffer.observations[: len(known)], known)


def test_held_out_goals_stay_held_out_in_a_loaded_model(tmp_path):
    world = Corridor(length=6)
    buffer = GoalBuffer(
        world.observation_space, capacity=50, held_out=world.observation_of(2)[None]
    )
    model = make_model(world, goal_wrapper_kwargs={"goal_buffer": buffer}).learn(40)
    later = reloaded(model, tmp_path)
    later.set_env(Corridor(length=6))
    pursuing = GoalBufferWrapper(Corridor(length=6))
    for loaded in (
        later,
        *(ManyGoalsDQN.load(tmp_path / "model", env=env) for env in (Corridor(length=6), pursuing)),
    ):
        loaded.learn(200)
        capacity = (
            100_000 if loaded.get_env().get_attr("goal_tracker")[0] is pursuing.goal_tracker else 50
        )  # the larger one
        assert (loaded.goal_buffer.capacity, len(loaded.goal_buffer)) == (capacity, 5)
        assert loaded.goal_buffer.ids(world.observation_of(2)[None]) == UNKNOWN
    (
        pursuing := GoalBufferWrapper(Corridor(length=6))
    ).reset()  # it knows a goal, and holds nothing out
    with pytest.raises(
        ValueError, match="1 of 1 observations that the model held out are not in env's goal buffer"
    ):
        ManyGoalsDQN.load(tmp_path / "model", env=pursuing)


def test_rewards_of_goals_stay_those_that_were_learned(tmp_path):
    model = make_model(GoalBufferWrapper(Corridor(), goal_reward=1.0, step_reward=0.0)).learn(40)
    model.save(tmp_path / "model")
    other, mine = (
        GoalBufferWrapper(Corridor(), model.goal_buffer),
        r"the model's goal_reward and step_reward, \(1.0, 0.0\)",
    )
    for refused in (
        lambda: ManyGoalsDQN.load(tmp_path / "model", other),
        lambda: model.set_env(other),
    ):
        with pytest.raises(ValueError, match=mine):
            refused()
    model.set_env(Corridor())
    for one in (model, ManyGoalsDQN.load(tmp_path / "model", Corridor())):
        (tracker,) = one.env.get_attr("goal_tracker")
        assert (tracker.goal_reward, tracker.step_reward, one.goal_reward) == (1.0, 0.0, 1.0)


def test_a_plan_that_begins_with_a_loaded_memory_knows_all_ways_in_it(tmp_path):
    settings = {
        "target_class": PlannedTargets,
        "target_kwargs": {"sweeps": 2},
        "learning_starts": 400,
    }
    model = make_model(Corridor(length=12), **settings).learn(420)
    assert (model.targets.plan.best >= 0).mean() > 0.9
    loaded = reloaded(model, tmp_path, Corridor(length=12), ("replay_buffer",)).learn(
        40, reset_num_timesteps=False
    )
    assert (loaded.targets.plan.best >= 0).mean() > 0.9


def test_a_memory_of_other_observations_is_refused_and_changes_nothing(tmp_path):
    make_model(Corridor(length=5)).learn(25).save_replay_buffer(tmp_path / "replay")
    model = make_model().learn(25)
    memory, n_goals = model.replay_buffer, len(model.goal_buffer)
    with pytest.raises(
        ValueError, match=r"saved by a model with .*\(5,\).*, this one has .*\(6,\)"
    ):
        model.load_replay_buffer(tmp_path / "replay")
    assert (model.replay_buffer is memory, len(model.goal_buffer)) == (True, n_goals)


def test_what_is_changed_at_loading_is_changed_and_checked(tmp_path):
    make_model(make_vec_env(Corridor, 2), goal_wrapper_kwargs={"reset_worlds": True}).save(
        tmp_path / "model"
    )
    loaded = ManyGoalsDQN.load(
        tmp_path / "model", env=Corridor(), goal_wrapper_kwargs={"max_episode_steps": 3}
    )
    assert loaded.env.get_attr("goal_tracker")[0].max_episode_steps == 3
    first, again = (
        ManyGoalsDQN.load(tmp_path / "model", env=Corridor()).learn(60) for _ in range(2)
    )
    memories = [kept(model.replay_buffer) for model in (first, again)]
    np.testing.assert_array_equal(
        *memories
    )  # both environments are seeded as that of the saved model
    with pytest.raises(ValueError, match=r"gamma must be a number in \[0, 1\), got 1.0"):
        ManyGoalsDQN.load(tmp_path / "model", gamma=1.0)


def test_ids_of_goals_in_pursuit_follow_a_loaded_goal_buffer(tmp_path):
    model = make_model().learn(60)
    other = goals_of(model.goal_buffer.observations[::-1], Corridor().observation_space)
    other.save(tmp_path / "goals")
    model.load_goal_buffer(tmp_path / "goals")
    (episodes,) = model.env.get_attr("goal_tracker")
    np.testing.assert_array_equal(episodes.desired_ids, other.ids(episodes.desired_goals))
