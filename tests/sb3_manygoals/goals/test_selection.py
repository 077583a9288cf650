"""Rules that choose behaviour goals."""

import copy

import numpy as np
import pytest
import torch as th
from hypothesis import given
from hypothesis import strategies as st
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_manygoals.goals import (
    UNKNOWN,
    GoalBuffer,
    GoalBufferWrapper,
    GoalSelector,
    LearningProgressSelector,
    UniformSelector,
)
from sb3_manygoals.goals.wrapping import goal_trackers
from sb3_manygoals.many_goals_dqn import PlannedTargets
from tests.sb3_manygoals.many_goals_dqn.memories import goals_of
from tests.sb3_manygoals.many_goals_dqn.models import make_model, reloaded
from tests.sb3_manygoals.worlds import Corridor


def feed(selector, goal, losses):
    for loss in losses:
        selector.observe_losses(th.tensor([goal]), th.tensor([float(loss)]))


@pytest.mark.parametrize(("current", "chosen"), [(2, [0, 1, 3]), (UNKNOWN, [0, 1, 2, 3])])
def test_uniform_over_all_goals_but_the_current_one(current, chosen):
    ids = UniformSelector().select(
        goals_of(range(4)), np.full(30_000, current), np.random.default_rng(0)
    )
    counts = np.bincount(ids, minlength=4)
    # These are 6 standard deviations.
    assert abs(counts[chosen] - 30_000 / len(chosen)).max() < 500
    assert counts[chosen].sum() == 30_000


def test_choices_follow_the_probabilities_and_are_not_what_is_on_show():
    selector = LearningProgressSelector()
    rng = np.random.default_rng(0)
    # Of twelve goals it knows the losses of ten.
    for _ in range(60):
        selector.observe_losses(
            th.tensor(rng.integers(10, size=6)), th.tensor(rng.random(6), dtype=th.float32)
        )
    expected = selector.probabilities(12).copy()
    assert np.ptp(expected) > 0
    expected[4] = 0
    expected /= expected.sum()
    ids = selector.select(goals_of(range(12)), np.full(20_000, 4), np.random.default_rng(0))
    deviation = np.sqrt(expected * (1 - expected) / len(ids))
    assert (abs(np.bincount(ids, minlength=12) / len(ids) - expected) <= 5 * deviation).all()
    np.testing.assert_array_equal(
        selector.select(goals_of([0]), np.array([0, UNKNOWN]), np.random.default_rng(0)), [0, 0]
    )
    selector.forget()
    np.testing.assert_allclose(selector.probabilities(12), 1 / 12)


def test_its_probabilities_by_hand():
    selector = LearningProgressSelector(m=2)
    # The error has fallen by 12.
    feed(selector, 0, [10, 8, 5, 4, 2])
    # It has risen, which counts as 0.
    feed(selector, 1, [1, 2, 3, 4, 5])
    # There are too few errors, which count as the mean of the others, 6.
    feed(selector, 2, [1, 1])
    np.testing.assert_allclose(selector.probabilities(3), 0.9 * np.array([12, 0, 6]) / 18 + 0.1 / 3)


@given(st.lists(st.floats(0, 100, width=32), min_size=0, max_size=30), st.integers(1, 6))
def test_equation_1_is_the_sum_in_the_paper(losses, m):
    selector = LearningProgressSelector(m)
    feed(selector, 2, losses)
    progress = selector.progress(3)
    assert np.isnan(progress[:2]).all()
    i = len(losses) - 1
    if i - 2 * m < 0:
        assert np.isnan(progress[2])
    else:
        expected = sum(losses[k - m] - losses[k] for k in range(i - m, i + 1))
        np.testing.assert_allclose(progress[2], expected, atol=1e-9)


def test_a_goal_that_is_twice_in_an_update_is_measured_once():
    selector = LearningProgressSelector(m=1)
    for losses in ([4, 2, 9], [2, 2, 9], [1, 0, 9]):
        selector.observe_losses(th.tensor([1, 1, UNKNOWN]), th.tensor(losses, dtype=th.float32))
    assert selector.progress(2)[1] == (3 - 2) + (2 - 0.5)


class Spy(UniformSelector):
    """Notes what it is told."""

    def __init__(self, name="spy"):
        self.name = name
        self.losses = []
        self.forgot = 0

    def observe_losses(self, ids, losses):
        self.losses.append((ids.clone(), losses.clone()))

    def forget(self):
        self.forgot += 1


LEARNS = {"selector_class": LearningProgressSelector}


def has_learned(selector):
    """Return whether a selector that goes by learning progress was told of errors."""
    return np.ptp(selector.probabilities(6)) > 0


def test_the_learner_tells_of_the_losses_it_descends_and_of_other_goals():
    settings = {"learning_starts": 10, "updates_per_step": 1.0}
    model = make_model(goal_wrapper_kwargs={"selector_class": Spy}, **settings)
    computed = []
    compute_losses = model.targets.losses

    def losses_of(batch, target_values):
        losses = compute_losses(batch, target_values)
        computed.append((batch.goal_ids.clone(), losses))
        return losses

    model.targets.losses = losses_of
    model.learn(30)
    assert len(model.selector.losses) == len(computed) == 20
    for (ids, losses), (expected_ids, expected) in zip(
        model.selector.losses, computed, strict=True
    ):
        assert th.equal(ids, expected_ids)
        assert th.equal(losses, expected)
        assert not losses.requires_grad
    (tracker,) = model.env.get_attr("goal_tracker")
    assert tracker.selector is model.selector
    tracker.goal_buffer = model.goal_buffer
    assert tracker.selector.forgot == 0
    assert tracker.starts.n_starts > 0
    tracker.goal_buffer = GoalBuffer(model.goal_buffer.observation_space)
    assert tracker.selector.forgot == 1
    assert tracker.starts.n_starts == 0


def test_all_environments_of_a_learner_share_one_selector():
    goals = GoalBuffer(Corridor().observation_space)
    env = DummyVecEnv([lambda: GoalBufferWrapper(Corridor(), goals, **LEARNS)] * 3)
    model = make_model(env)
    assert {id(one.selector) for one in goal_trackers(model.env)} == {id(model.selector)}


def test_a_selector_gets_copies_of_its_arguments():
    names = {"name": ["a", "b"]}
    env = GoalBufferWrapper(Corridor(), selector_class=Spy, selector_kwargs=names)
    env.goal_tracker.selector.name.append("c")
    assert names == {"name": ["a", "b"]}
    assert env.goal_tracker.make_selector().name == ["a", "b"]


@pytest.mark.parametrize("how", ["given to the model", "in its own goal wrapper", "by set_env"])
def test_each_model_learns_about_goals_by_itself(how):
    first = make_model(goal_wrapper_kwargs=LEARNS, updates_as_needed=False).learn(200)
    learned = first.selector.probabilities(6).copy()
    assert has_learned(first.selector)
    if how == "given to the model":
        second = make_model(goal_wrapper_kwargs=LEARNS)
    elif how == "by set_env":
        second = make_model().learn(30)
        second.set_env(GoalBufferWrapper(Corridor(), **LEARNS))
    else:
        second = make_model(GoalBufferWrapper(Corridor(), **LEARNS))
    assert isinstance(second.selector, LearningProgressSelector)
    assert second.selector is not first.selector
    np.testing.assert_allclose(second.selector.probabilities(6), 1 / 6)
    second.learn(60)
    np.testing.assert_array_equal(first.selector.probabilities(6), learned)
    first.learn(30, reset_num_timesteps=False)
    assert (first.selector.probabilities(6) != learned).any()


def test_a_model_does_not_learn_into_the_selector_of_a_wrapper():
    """Nor does it go on with what another model has learned in the same environment."""
    env = GoalBufferWrapper(Corridor(), **LEARNS)
    of_wrapper = env.goal_tracker.selector
    first = make_model(env).learn(100)
    assert not has_learned(of_wrapper)
    second = make_model(env, seed=1)
    assert has_learned(first.selector)
    assert not has_learned(second.selector)


def test_a_model_keeps_its_selector_in_another_environment_that_asks_for_the_same():
    model = make_model(goal_wrapper_kwargs=LEARNS).learn(100)
    selector = model.selector
    model.set_env(GoalBufferWrapper(Corridor(), model.goal_buffer, **LEARNS))
    assert model.selector is selector
    assert has_learned(selector)
    with_m = {"selector_class": LearningProgressSelector, "selector_kwargs": {"m": 2}}
    model.set_env(GoalBufferWrapper(Corridor(), model.goal_buffer, **with_m))
    assert model.selector.m == 2
    assert not has_learned(model.selector)


def test_arguments_and_spaces_stay_as_they_were_given():
    world = Corridor()
    arguments = {
        "policy_kwargs": {"net_arch": [8], "embedding_dim": 8, "optimizer_kwargs": {"eps": 1e-5}},
        "goal_wrapper_kwargs": {"max_episode_steps": 9},
        "replay_buffer_kwargs": {},
        "target_kwargs": {"max_plan_bytes": 10**6},
    }
    before = copy.deepcopy(arguments)
    for space in (world.observation_space, world.action_space):
        space.seed(5)
    drawn = [
        copy.deepcopy(space.np_random.bit_generator.state)
        for space in (world.observation_space, world.action_space)
    ]
    make_model(world, target_class=PlannedTargets, seed=None, **arguments)
    assert arguments == before
    assert drawn == [
        space.np_random.bit_generator.state
        for space in (world.observation_space, world.action_space)
    ]


def test_a_saved_model_brings_a_fresh_selector(tmp_path):
    model = make_model(goal_wrapper_kwargs=LEARNS).learn(200)
    loaded = reloaded(model, tmp_path, Corridor())
    (tracker,) = loaded.env.get_attr("goal_tracker")
    assert has_learned(model.selector)
    assert tracker.selector is loaded.selector
    np.testing.assert_allclose(loaded.selector.probabilities(6), 1 / 6)


def test_a_model_keeps_its_selector_where_another_one_is_built_in_its_environment():
    env = GoalBufferWrapper(Corridor(), **LEARNS)
    first = make_model(env).learn(100)
    make_model(env, seed=1)
    first.learn(100, reset_num_timesteps=False)
    assert env.goal_tracker.selector is first.selector
    assert np.isfinite(first.selector.progress(6)).any()


@pytest.mark.parametrize(
    "chosen", [[10**6], [-1], [0.0], [0, 1], 0], ids=["beyond", "unknown", "float", "two", "none"]
)
def test_what_a_selector_chooses_is_checked(chosen):
    class Own(GoalSelector):
        def select(self, goal_buffer, current_ids, rng):
            return chosen

    env = GoalBufferWrapper(Corridor(), selector_class=Own)
    message = r"select\(\) of Own must return 1 whole numbers in \[0, 1\), ids of known goals, got"
    with pytest.raises(ValueError, match=message):
        env.reset()
