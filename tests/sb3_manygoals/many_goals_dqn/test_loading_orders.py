"""Models whose parts are loaded in any order, and environments that other models have used."""

import copy

import numpy as np
import pytest
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_manygoals import GoalBuffer, GoalBufferWrapper, ManyGoalsDQN
from sb3_manygoals.checkpoint.tree import CheckpointError
from sb3_manygoals.goals import LearningProgressSelector, UniformSelector
from sb3_manygoals.goals.files import read_npz, write_npz
from sb3_manygoals.many_goals_dqn import PlannedTargets
from tests.sb3_manygoals.many_goals_dqn.models import make_model, td_model
from tests.sb3_manygoals.worlds import Corridor


@pytest.fixture(scope="module", params=[make_model, td_model])
def folder(request, tmp_path_factory):
    """The folder of a model that was trained and saved."""
    folder = tmp_path_factory.mktemp("saved")
    request.param(learning_starts=20, updates_per_step=1.0).learn(200).save_all(folder)
    return folder


def transitions(model):
    """Return the transitions in a replay memory and the goals that they led to."""
    memory = model.replay_buffer
    observations, next_observations = memory.observations_at(slice(0, memory.size()))
    goals = model.goal_buffer[memory.next_goal_ids[: memory.size()]]
    return observations, memory.actions[: memory.size()], next_observations, goals


@pytest.mark.parametrize("env_comes", ["first", "last", "never"])
@pytest.mark.parametrize("parts", [("world", "replay_buffer"), ("replay_buffer", "world")])
def test_world_and_replay_memory_are_loaded_in_any_order(parts, env_comes, folder):
    expected = ManyGoalsDQN.load_all(folder, Corridor())
    files = {"world": folder / "world.npz", "replay_buffer": folder / "replay_buffer.pkl"}
    env = Corridor() if env_comes == "first" else None
    model = ManyGoalsDQN.load(folder / "model.zip", env)
    for part in parts:
        getattr(model, f"load_{part}")(files[part])
    if env_comes == "last":
        model.set_env(Corridor())
    assert not model.replay_buffer.stores_observations
    assert model.replay_buffer.states is model.goal_buffer.states is model.world.identity
    for found, wanted in zip(transitions(model), transitions(expected), strict=True):
        np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(model.world.visit_counts, expected.world.visit_counts)
    for found, wanted in zip(model.world.outcomes(), expected.world.outcomes(), strict=True):
        np.testing.assert_array_equal(found, wanted)
    if env_comes != "never":
        model.learn(50, reset_num_timesteps=False)
        assert model.world.n_counted == 250


def test_a_world_that_is_loaded_into_a_trained_model_begins_its_counts_anew(folder):
    model = make_model().learn(200)
    model.load_world(folder / "world.npz")
    model.learn(1000, reset_num_timesteps=False)
    # Targets were reviewed again, as steps have doubled.
    assert model._target_choice.num_timesteps > 200
    assert model._target_choice.n_added <= model.goal_buffer.states.n_added
    assert model.world.n_counted == 1200


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("visit_counts", lambda array: array[:-1], "visit_counts must be of shape"),
        ("state_ids", lambda array: array + 1, "must be among the 6 states"),
        ("states", lambda array: np.concatenate([array[:-1], array[:1]]), "distinct"),
    ],
)
def test_a_damaged_world_changes_nothing(name, change, message, folder, tmp_path):
    arrays = read_npz(folder / "world.npz", (), "a world")
    write_npz(tmp_path / "damaged", {**arrays, name: change(arrays[name])})
    model = td_model(updates_per_step=1.0).learn(200)
    before = copy.deepcopy(model)
    with pytest.raises(ValueError, match=message):
        model.load_world(tmp_path / "damaged")
    for found, wanted in zip(transitions(model), transitions(before), strict=True):
        np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(model.goal_buffer.state_ids, before.goal_buffer.state_ids)
    model.learn(50, reset_num_timesteps=False)
    assert model.world.n_counted == 250


def test_a_world_of_more_goals_than_fit_into_memory_is_refused(folder, tmp_path):
    arrays = read_npz(folder / "world.npz", (), "a world")
    write_npz(tmp_path / "huge", {**arrays, "capacity": 10**15})
    with pytest.raises(MemoryError, match="capacity 1000000000000000"):
        make_model().load_world(tmp_path / "huge")


def test_a_model_learns_on_in_an_environment_that_another_model_got():
    model = make_model(GoalBufferWrapper(Corridor()))
    other = make_model().learn(100)
    other.set_env(model.get_env())
    for one in (model, other, model):
        n_before = one.world.n_counted
        one.learn(100, reset_num_timesteps=False)
        assert one.world.n_counted == n_before + 100
        assert len(one.goal_buffer) == len(one.world.identity) == 6
        assert model.goal_buffer is not other.goal_buffer


def test_a_selector_knows_its_goals_in_another_environment():
    settings = {"selector_class": LearningProgressSelector}
    model = make_model(goal_wrapper_kwargs=settings).learn(200)
    before = model.selector.progress(6)
    assert np.isfinite(before).all()
    model.set_env(GoalBufferWrapper(Corridor(), **settings))
    np.testing.assert_array_equal(model.selector.progress(6), before)


def test_an_episode_that_goes_on_has_the_states_of_the_goal_buffer_set_since():
    env = GoalBufferWrapper(Corridor(start=3), max_episode_steps=2, reset_worlds=False)
    env.reset(seed=0, options={"goal": Corridor().observation_of(0)})
    env.step(1)
    assert env.step(2)[3]
    goal_buffer = GoalBuffer(Corridor().observation_space, 10)
    goal_buffer.add(np.eye(6, dtype=np.uint8))
    env.goal_tracker.goal_buffer = goal_buffer
    observation, _ = env.reset()
    assert observation["observation"].argmax() == 4
    *_, info = env.step(0)
    assert (info["state_id"], info["next_state_id"]) == (4, 3)


def test_a_replay_memory_that_stores_observations_goes_back_to_ids():
    goal_buffer = GoalBuffer(Corridor(length=12).observation_space, 5)
    settings = {"goal_wrapper_kwargs": {"goal_buffer": goal_buffer}, "learning_starts": 2}
    model = td_model(Corridor(length=12, start=0), **settings).learn(3)
    state = copy.deepcopy(model.get_checkpoint_state())
    assert not state["replay_buffer"]["stores_observations"]
    before = transitions(model)
    with pytest.warns(RuntimeWarning, match="the goal buffer is full"):
        model.learn(300, reset_num_timesteps=False)
    assert model.replay_buffer.stores_observations
    model.set_checkpoint_state(state)
    assert not model.replay_buffer.stores_observations
    for found, wanted in zip(transitions(model), before, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_a_checkpoint_is_not_restored_in_a_replay_memory_that_became_smaller():
    memory = td_model(buffer_size=2_000).learn(30).replay_buffer
    state = copy.deepcopy(memory.get_checkpoint_state())
    with pytest.warns(UserWarning, match="keeps the newest 1000"):
        memory.shrink(1_000)
    with pytest.raises(CheckpointError, match="keeps 1000 steps"):
        memory.set_checkpoint_state(state)


def test_no_rewards_are_known_of_goals_in_the_replay_memory():
    model = td_model(goals_in_replay=True).learn(50)
    with pytest.raises(TypeError, match="in its replay memory"):
        _ = model.goal_rewards


def test_no_memory_for_the_plan_is_the_default():
    kwargs = {"max_plan_bytes": None}
    model = make_model(target_class=PlannedTargets, target_kwargs=kwargs).learn(50)
    assert model.targets.plan.max_bytes > 0


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("train_freq", 0),
        ("train_freq", (0, "episode")),
        ("train_freq", 2.5),
        ("train_freq", (1, "step", 2)),
        ("gradient_steps", -2),
        ("gradient_steps", 1.5),
    ],
)
def test_updates_that_make_no_sense_are_refused(argument, value):
    with pytest.raises(ValueError, match=f"{argument} must be a whole number"):
        make_model(updates_per_step=None, **{argument: value})


def test_a_model_that_learns_after_episodes_is_loaded(tmp_path):
    settings = {"train_freq": (np.int64(2), "episode"), "gradient_steps": -1}
    model = make_model(updates_per_step=None, **settings).learn(100)
    assert model._n_updates > 0
    model.save(tmp_path / "model")
    loaded = ManyGoalsDQN.load(tmp_path / "model", Corridor())
    assert loaded.train_freq == model.train_freq
    assert loaded.gradient_steps == -1


def test_rollouts_of_episodes_have_no_length_in_the_warning():
    model = make_model(updates_per_step=None, train_freq=(1, "episode"))
    with pytest.warns(UserWarning, match="20 random steps come before an update"):
        model.learn(10)


def test_loading_a_world_leaves_another_model_as_it_is(folder):
    model = make_model(updates_per_step=1.0).learn(100)
    loaded = ManyGoalsDQN.load(folder / "model.zip", model.get_env())
    assert loaded.goal_buffer is model.goal_buffer
    known = model.goal_buffer.observations.copy()
    loaded.load_world(folder / "world.npz")
    np.testing.assert_array_equal(model.goal_buffer.observations, known)
    for one in (model, loaded, model):
        n_before = one.world.n_counted
        one.learn(50, reset_num_timesteps=False)
        assert one.world.n_counted == n_before + 50


@pytest.mark.parametrize(
    ("settings", "changes", "error", "message"),
    [
        ({}, {"target_class": "x"}, TypeError, "target_class must be"),
        ({}, {"target_class": None}, ValueError, "given without target_class"),
        (
            {"goals_in_replay": True},
            {"target_class": PlannedTargets, "target_kwargs": None},
            ValueError,
            "PlannedTargets cannot plan",
        ),
    ],
)
def test_targets_that_do_not_fit_are_refused_where_a_model_is_loaded(
    settings, changes, error, message, tmp_path
):
    td_model(**settings).save(tmp_path / "model")
    with pytest.raises(error, match=message):
        ManyGoalsDQN.load(tmp_path / "model", Corridor(), **changes)


class Weighted(UniformSelector):
    """
    A selector that was given an array.

    :param weights: any array
    """

    def __init__(self, weights):
        self.weights = weights


def test_arguments_of_selectors_may_be_arrays():
    def settings(first):
        weights = np.array([first, 1.0, 2.0])
        return {"selector_class": Weighted, "selector_kwargs": {"weights": weights}}

    model = make_model(goal_wrapper_kwargs=settings(0.0))
    selector = model.selector
    model.set_env(Corridor())
    assert model.selector is selector
    model.set_env(GoalBufferWrapper(Corridor(), **settings(0.5)))
    assert model.selector.weights[0] == 0.5
    goal_buffer = GoalBuffer(Corridor().observation_space)

    def environments(*firsts):
        return DummyVecEnv(
            [
                lambda first=first: GoalBufferWrapper(Corridor(), goal_buffer, **settings(first))
                for first in firsts
            ]
        )

    assert make_model(environments(0.0, 0.0)).selector.weights[0] == 0.0
    with pytest.raises(ValueError, match="must be given the same"):
        make_model(environments(0.0, 0.5))


def test_a_rhythm_of_updates_that_is_given_on_load_holds(folder):
    model = ManyGoalsDQN.load(folder / "model.zip", Corridor(), train_freq=8, gradient_steps=3)
    assert model.train_freq.frequency == 8
    assert model.gradient_steps == 3
    assert model.updates_per_step is None
