"""Rules that choose behaviour goals."""

import copy

import numpy as np
import pytest
import torch as th
from hypothesis import given
from hypothesis import strategies as st

from sb3_manygoals.goals import (
    UNKNOWN,
    GoalBuffer,
    GoalBufferWrapper,
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
    assert abs(counts[chosen] - 30_000 / len(chosen)).max() < 500  # 6 standard deviations
    assert counts[chosen].sum() == 30_000


def test_choices_follow_the_probabilities_and_are_not_what_is_on_show():
    selector, rng = LearningProgressSelector(), np.random.default_rng(0)
    for _ in range(60):  # of twelve goals it knows the losses of ten
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
    feed(selector, 0, [10, 8, 5, 4, 2])  # fallen by 12
    feed(selector, 1, [1, 2, 3, 4, 5])  # risen, counts as 0
    feed(selector, 2, [1, 1])  # unknown, counts as 6
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
    def __init__(self):
        self.losses, self.forgot = [], 0

    def observe_losses(self, ids, losses):
        self.losses.append((ids.clone(), losses.clone()))

    def forget(self):
        self.forgot += 1


def test_the_learner_tells_of_the_losses_it_descends_and_of_other_goals():
    spy = Spy()
    model = make_model(goal_wrapper_kwargs={"selector": spy}, learning_starts=10)
    computed, descend = [], model.targets.losses
    model.targets.losses = lambda draw: (
        computed.append((draw.goal_ids.clone(), descend(draw))) or computed[-1][1]
    )
    model.learn(30)
    assert len(spy.losses) == len(computed) == 20
    for (ids, losses), (expected_ids, expected) in zip(spy.losses, computed, strict=True):
        assert th.equal(ids, expected_ids)
        assert th.equal(losses, expected)
        assert not losses.requires_grad
    (episodes,) = model.env.get_attr("goal_tracker")
    episodes.adopt(episodes.goal_buffer)
    assert (spy.forgot, episodes.starts.n > 0) == (0, True)
    episodes.adopt(GoalBuffer(episodes.goal_buffer.observation_space))
    assert (spy.forgot, episodes.starts.n) == (1, 0)


def test_a_rule_that_another_learner_used_begins_anew():
    selector = LearningProgressSelector()
    make_model(goal_wrapper_kwargs={"selector": selector}).learn(200)
    learned = selector.probabilities(6).copy()
    assert np.ptp(learned) > 0
    second = make_model(goal_wrapper_kwargs={"selector": selector})
    ((own,),) = [{tracker.selector for tracker in goal_trackers(second.get_env())}]
    assert own is not selector
    np.testing.assert_allclose(own.probabilities(6), 1 / 6)
    np.testing.assert_array_equal(selector.probabilities(6), learned)


@pytest.mark.parametrize("how", ["given to the model", "in its own goal wrapper", "by set_env"])
def test_a_model_does_not_change_what_another_one_has_learned_about_goals(how):
    selector = LearningProgressSelector()
    first = make_model(goal_wrapper_kwargs={"selector": selector}).learn(60)
    learned = selector.probabilities(6).copy()
    if how == "given to the model":
        second = make_model(goal_wrapper_kwargs={"selector": selector})
    elif how == "by set_env":
        second = make_model().learn(30)
        second.set_env(GoalBufferWrapper(Corridor(), selector=selector))
    else:
        second = make_model(GoalBufferWrapper(Corridor(), selector=selector))
    np.testing.assert_array_equal(selector.probabilities(6), learned)
    second.learn(60)
    np.testing.assert_array_equal(selector.probabilities(6), learned)
    first.learn(30, reset_num_timesteps=False)
    assert (selector.probabilities(6) != learned).any()


def test_arguments_and_spaces_stay_as_they_were_given():
    world = Corridor()
    arguments = {
        "policy_kwargs": {"net_arch": [8], "embedding_dim": 8, "optimizer_kwargs": {"eps": 1e-5}},
        "goal_wrapper_kwargs": {"max_episode_steps": 9},
        "replay_buffer_kwargs": {},
        "target_kwargs": {"sweeps": 3},
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


def test_a_saved_model_brings_a_fresh_rule(tmp_path):
    model = make_model(goal_wrapper_kwargs={"selector": LearningProgressSelector()}).learn(200)
    (episodes,) = reloaded(model, tmp_path, Corridor()).env.get_attr("goal_tracker")
    assert np.ptp(model._selectors[0].probabilities(6)) > 0
    np.testing.assert_allclose(episodes.selector.probabilities(6), 1 / 6)


def test_a_model_keeps_its_rule_where_another_one_is_built_in_its_environment():
    env = GoalBufferWrapper(Corridor(), selector=LearningProgressSelector())
    first = make_model(env).learn(100)
    make_model(env, seed=1)
    first.learn(100, reset_num_timesteps=False)
    assert np.isfinite(env.goal_tracker.selector.progress(6)).any()
