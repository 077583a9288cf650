import pickle
import re

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from stable_baselines3 import DQN, HerReplayBuffer
from stable_baselines3.common.env_util import make_vec_env

from sb3_manygoals import GoalBuffer, GoalBufferWrapper, ManyGoalsDQN, evaluate_mastery
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
from tests.sb3_manygoals.worlds import Corridor, Paid


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


NO_ENVIRONMENT = re.escape("has no environment: give it one, load(path, env) or set_env(env)")


@pytest.mark.parametrize(
    "ask",
    [
        lambda model, path: model.learn(1_000),
        lambda model, path: model.train(1),
        lambda model, path: model.dump_logs(),
        lambda model, path: model.save_goal_buffer(path),
        lambda model, path: model.save_all(path),
        lambda model, path: model.get_checkpoint_state(),
        lambda model, path: model.set_checkpoint_state({}),
    ],
    ids=["learn", "train", "log", "save goals", "save all", "get state", "set state"],
)
def test_what_needs_an_environment_says_so_in_a_model_without_one(tmp_path, ask):
    make_model().learn(40).save(tmp_path / "model")
    with pytest.raises(ValueError, match=NO_ENVIRONMENT):
        ask(ManyGoalsDQN.load(tmp_path / "model"), tmp_path / "file")


def test_a_model_without_an_environment_acts_reads_its_memory_and_plans(tmp_path):
    model = make_model(Paid({8: 1.0}, (0, 8))).learn(400)
    model.save_all(tmp_path)
    alone = ManyGoalsDQN.load(tmp_path / "model")
    obs = goal_obs(Corridor(9), 1, 4)
    for deterministic in (False, True):
        assert alone.predict(obs, deterministic=deterministic)[0] in (0, 1, 2)
    worlds = gym.vector.SyncVectorEnv([lambda: Corridor(9)] * 2)
    goals = model.goal_buffer.observations[:2]
    assert evaluate_mastery(alone, worlds, goals, max_steps=10).steps.shape == (2, 1)
    alone.load_replay_buffer(tmp_path / "replay_buffer")  # before any goals are known
    assert len(alone.goal_buffer) == len(model.goal_buffer)
    alone.load_goal_buffer(tmp_path / "goal_buffer")
    policy = alone.task_policy(planned=True)
    seen, steps = Corridor(9).observation_of(4), 0
    world = Paid({8: 1.0}, (0, 8))
    world.reset()
    while world.cell != 8 and steps < 5:
        seen, *_ = world.step(policy.predict(seen, deterministic=True)[0])
        steps += 1
    assert (world.cell, steps) == (8, 4)
    alone.set_env(Paid({8: 1.0}, (0, 8)))
    alone.learn(40, reset_num_timesteps=False)
    assert alone.replay_buffer.size() == 440


@pytest.mark.parametrize("settings", [{}, {"goals_in_replay": True}, {"target_class": TDTargets}])
def test_a_memory_is_read_before_an_environment_is_given(tmp_path, settings):
    model = make_model(**settings).learn(60)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "replay")
    alone = ManyGoalsDQN.load(tmp_path / "model")
    alone.load_replay_buffer(tmp_path / "replay")
    np.testing.assert_array_equal(kept(alone.replay_buffer), kept(model.replay_buffer))
    alone.set_env(Corridor())
    alone.learn(60, reset_num_timesteps=False)
    assert alone.replay_buffer.size() == 120
    assert len(np.unique(alone.goal_buffer.observations, axis=0)) == 6


def sb3s_own(folder, world):
    """Replay memories that SB3's DQN wrote, by their class."""
    goals = GoalBufferWrapper(Corridor())
    model = {
        "ReplayBuffer": lambda: DQN("MlpPolicy", Corridor()),
        "DictReplayBuffer": lambda: DQN("MultiInputPolicy", goals),
        "HerReplayBuffer": lambda: DQN(
            "MultiInputPolicy", goals, replay_buffer_class=HerReplayBuffer
        ),
    }[world]()
    model.learn(60).save_replay_buffer(folder / "foreign")
    return rf"must have a ManyGoalsReplayBuffer, got stable_baselines3\..*{world}: give one that"


def written(content):
    def write(folder, _):
        (folder / "foreign").write_bytes(content)
        return "is no file of a replay memory"

    return write


def a_list(folder, _):
    (folder / "foreign").write_bytes(pickle.dumps([1, 2]))
    return "must have a ManyGoalsReplayBuffer, got builtins.list"


def a_model(folder, _):
    make_model().save(folder / "foreign.zip")
    (folder / "foreign.zip").rename(folder / "foreign")
    return "is no file of a replay memory"


def goals(folder, _):
    make_model().learn(30).save_goal_buffer(folder / "foreign.npz")
    (folder / "foreign.npz").rename(folder / "foreign")
    return "is no file of a replay memory"


def another_action_space(folder, _):
    world = gym.wrappers.TransformAction(Corridor(), lambda a: a % 3, gym.spaces.Discrete(4))
    make_model(world).learn(30).save_replay_buffer(folder / "foreign")
    return "the replay memory was saved by a model with .*Discrete\\(4\\).* this one has .*Discrete"


@pytest.mark.parametrize(
    ("write", "kind"),
    [
        (sb3s_own, "ReplayBuffer"),
        (sb3s_own, "DictReplayBuffer"),
        (sb3s_own, "HerReplayBuffer"),
        (written(b""), "nothing"),
        (written(b"not a pickle"), "a text"),
        (a_list, "a list"),
        (a_model, "a model"),
        (goals, "goals"),
        (another_action_space, "other actions"),
    ],
)
@pytest.mark.parametrize("has_env", [True, False])
def test_a_file_that_is_no_memory_of_ours_is_refused_and_changes_nothing(
    tmp_path, write, kind, has_env
):
    message = write(tmp_path, kind)
    model = make_model().learn(30)
    if not has_env:
        model = reloaded(model, tmp_path)
    memory, goals = model.replay_buffer, model.goal_buffer
    n_goals = None if goals is None else len(goals)
    with pytest.raises(ValueError, match=message):
        model.load_replay_buffer(tmp_path / "foreign")
    assert (model.replay_buffer is memory, model.goal_buffer is goals) == (True, True)
    assert n_goals == (None if goals is None else len(goals))
    if has_env:
        model.learn(30, reset_num_timesteps=False)


@pytest.mark.parametrize("ending", ["", ".npz", ".pkl", ".zip"])
@pytest.mark.parametrize("kind", ["a memory", "a model", "a list", "an array", "nothing"])
def test_a_file_that_is_no_goal_buffer_is_refused_and_changes_nothing(tmp_path, kind, ending):
    model, path = make_model().learn(30), tmp_path / f"foreign{ending}"
    if kind == "a memory":
        with path.open("wb") as file:
            model.save_replay_buffer(file)
    elif kind == "a model":
        with path.open("wb") as file:
            model.save(file)
    elif kind == "an array":
        with path.open("wb") as file:
            np.save(file, np.eye(6))
    else:
        path.write_bytes(pickle.dumps([1]) if kind == "a list" else b"")
    known = model.goal_buffer
    with pytest.raises(ValueError, match=r"foreign.* is no whole file of a goal buffer"):
        model.load_goal_buffer(path)
    assert model.goal_buffer is known
    model.learn(30, reset_num_timesteps=False)


def weights_of(model, network):
    return dict(getattr(model, network).state_dict())


@pytest.mark.parametrize("settings", [{}, {"target_class": PlannedTargets}])
def test_all_that_tells_weights_tells_the_same_of_a_target_network_that_nothing_trains(
    tmp_path, settings
):
    def look(model):
        told = [
            model.policy.state_dict(),
            model.get_parameters()["policy"],
            model.get_checkpoint_state()["algorithm"]["policy"],
        ]
        for one in told:
            assert one.keys() == told[0].keys()
            assert all(th.equal(one[name], told[0][name]) for name in one)
            for name, weights in weights_of(model, "q_net").items():
                assert th.equal(one[f"q_net_target.{name}"], weights)
        th.testing.assert_close(
            weights_of(model, "q_net_target"), weights_of(model, "q_net"), rtol=0, atol=0
        )

    model = make_model(**settings)
    look(model.learn(60))
    model.learn(40, lambda *_: model.num_timesteps < 80, reset_num_timesteps=False)
    th.testing.assert_close(weights_of(model, "q_net_target"), weights_of(model, "q_net"))
    model.policy.save(tmp_path / "policy")
    policy = type(model.policy).load(tmp_path / "policy")
    th.testing.assert_close(policy.q_net_target.state_dict(), policy.q_net.state_dict())
    look(reloaded(model, tmp_path, Corridor()))


def test_a_target_network_that_is_trained_is_told_as_it_is():
    model = td_model(targets={"update_interval": 1_000}).learn(60)
    told = model.policy.state_dict()
    name = next(iter(weights_of(model, "q_net")))
    assert not th.equal(told[f"q_net.{name}"], told[f"q_net_target.{name}"])


@pytest.mark.parametrize("settings", [{}, {"goals_in_replay": True}, {"target_class": TDTargets}])
def test_one_call_saves_and_one_loads_what_training_goes_on_from(tmp_path, settings):
    model = make_model(make_vec_env(Corridor, 2), **settings).learn(60)
    model.save_all(str(tmp_path / "runs" / "one"))
    model.save_all(tmp_path / "runs" / "one")  # again, over it
    files = {path.name for path in (tmp_path / "runs" / "one").iterdir()}
    whole = {"model.zip", "replay_buffer.pkl", "goal_buffer.npz"}
    assert files == whole - ({"goal_buffer.npz"} if "goals_in_replay" in settings else set())
    loaded = ManyGoalsDQN.load_all(tmp_path / "runs" / "one", make_vec_env(Corridor, 2))
    assert th.equal(parameters(loaded), parameters(model))
    np.testing.assert_array_equal(kept(loaded.replay_buffer), kept(model.replay_buffer))
    np.testing.assert_array_equal(loaded.goal_buffer.observations, model.goal_buffer.observations)
    if "goals_in_replay" not in settings:
        np.testing.assert_array_equal(loaded.goal_buffer.rewards, model.goal_buffer.rewards)
    loaded.learn(60, reset_num_timesteps=False)
    assert (loaded.num_timesteps, loaded.replay_buffer.size()) == (120, 60)


def test_a_folder_that_lacks_files_is_refused_with_their_names(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"missing: model.zip, replay_.*, goal_buffer.npz"):
        ManyGoalsDQN.load_all(tmp_path / "nowhere", Corridor())
    make_model().learn(30).save_all(tmp_path)
    for name in ("goal_buffer.npz", "replay_buffer.pkl", "model.zip"):
        (tmp_path / name).rename(tmp_path / "away")
        with pytest.raises(FileNotFoundError, match=f"missing: {re.escape(name)}$"):
            ManyGoalsDQN.load_all(tmp_path, Corridor())
        (tmp_path / "away").rename(tmp_path / name)
    with pytest.raises(ValueError, match=r"saved by a model with {'n_envs': 1, .* {'n_envs': 2,"):
        ManyGoalsDQN.load_all(tmp_path, make_vec_env(Corridor, 2))


@pytest.mark.parametrize("fails", ["save", "save_replay_buffer", "save_goal_buffer"])
def test_files_that_cannot_be_written_leave_the_older_ones_whole(tmp_path, fails, monkeypatch):
    model = make_model().learn(30)
    model.save_all(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    model.learn(30, reset_num_timesteps=False)

    def half(path):
        path.write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(model, fails, half)
    with pytest.raises(OSError, match="no space left"):
        model.save_all(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
