"""Rules that choose behaviour goals by what was learned about them."""

import copy
import pickle

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_manygoals import ExactCheckpointCallback, GoalBufferWrapper, ManyGoalsDQN, VecGoalBufferWrapper
from sb3_manygoals.checkpoint import copy_tree
from sb3_manygoals.goals import (
    UNKNOWN,
    GoalBuffer,
    GoalTracker,
    IntermediateDifficultySelector,
    LearningProgressSelector,
    LeastVisitedSelector,
    SmoothedProgressSelector,
    UniformSelector,
    ValueDisagreementSelector,
)
from sb3_manygoals.goals.selection import WeightedSelector, mixture
from sb3_manygoals.many_goals_dqn import PlannedTargets, TDTargets
from tests.sb3_manygoals.worlds import Corridor

ALL = [
    UniformSelector,
    LearningProgressSelector,
    SmoothedProgressSelector,
    IntermediateDifficultySelector,
    LeastVisitedSelector,
    ValueDisagreementSelector,
]
WEIGHTED = [selector for selector in ALL if issubclass(selector, WeightedSelector)]


def make_buffer(n):
    buffer = GoalBuffer(spaces.Discrete(20))
    buffer.add(np.arange(n))
    return buffer


def numbers(observations, goals):
    """Two estimates that differ by the number of the goal."""
    return np.stack([np.zeros(len(goals)), goals]).astype(np.float32)


def experienced(kind, n_goals=12, seed=0):
    """A selector that has been told of all sorts of things, about most of the goals."""
    rng = np.random.default_rng(seed)
    selector = kind()
    selector.use_values(numbers)
    for _ in range(40):
        ids = rng.integers(n_goals - 2, size=6)
        selector.observe_losses(th.tensor(ids), th.tensor(rng.random(6), dtype=th.float32))
        selector.observe_visits(ids)
        selector.observe_episodes(ids, rng.random(6) < 0.5)
    return selector


# --- what all of them have in common ---------------------------------------------------------------------------------


@given(
    st.lists(st.one_of(st.floats(0, 1e6), st.just(float("nan"))), min_size=1, max_size=30),
    st.floats(0.001, 1.0),
)
def test_a_mixture_is_a_distribution_that_leaves_no_goal_out(weights, share):
    weights = np.array(weights)
    p = mixture(weights, share)
    assert abs(p.sum() - 1) < 1e-12
    assert (p >= share / len(weights) * (1 - 1e-9)).all()
    known = ~np.isnan(weights)
    if known.any():
        assert (np.diff(p[known][np.argsort(weights[known])]) >= -1e-12).all()
    if 0 < known.sum() < len(p):  # what is unknown is as good as the average of the rest
        np.testing.assert_allclose(p[~known], p[known].mean(), rtol=1e-9)


@pytest.mark.parametrize("kind", WEIGHTED)
@pytest.mark.parametrize("n_goals", [1, 5, 12, 15])
def test_probabilities_of_every_rule_are_a_distribution_at_any_time(kind, n_goals):
    for selector in (kind(), experienced(kind)):
        p = selector.probabilities(n_goals)
        assert p.shape == (n_goals,)
        assert abs(p.sum() - 1) < 1e-12
        assert (p >= 0.1 / n_goals * (1 - 1e-9)).all()


@pytest.mark.parametrize("kind", ALL)
def test_choices_are_known_goals_and_not_what_is_on_show(kind):
    selector = experienced(kind)
    current = np.tile([3, UNKNOWN, 11], 400)
    ids = selector.select(make_buffer(14), current, np.random.default_rng(0))
    assert ids.dtype == np.int64
    assert ids.shape == (1200,)
    assert ((ids >= 0) & (ids < 14)).all()
    assert (ids != current).all()
    # goals 12 and 13 are new: nobody has heard of them
    assert {12, 13} <= set(ids.tolist())
    np.testing.assert_array_equal(selector.select(make_buffer(1), np.array([0, UNKNOWN]), np.random.default_rng(0)), [0, 0])


@pytest.mark.parametrize("kind", WEIGHTED)
def test_choices_follow_the_probabilities(kind):
    selector = experienced(kind)
    expected = selector.probabilities(12).copy()
    expected[4] = 0
    expected /= expected.sum()
    ids = selector.select(make_buffer(12), np.full(20_000, 4), np.random.default_rng(0))
    deviation = np.sqrt(expected * (1 - expected) / len(ids))
    assert (abs(np.bincount(ids, minlength=12) / len(ids) - expected) <= 5 * deviation).all()


@pytest.mark.parametrize("kind", ALL)
def test_after_restoring_the_choices_are_the_same(kind):
    episodes = GoalTracker(make_buffer(12), 3, experienced(kind))
    episodes.seed(5)
    state = copy_tree(episodes.get_checkpoint_state())
    again = GoalTracker(make_buffer(12), 3, kind())
    again.selector.use_values(numbers)
    again.set_checkpoint_state(state)
    rng = np.random.default_rng(1)
    for _ in range(30):
        ids, losses, reached = rng.integers(12, size=3), th.tensor(rng.random(3)), rng.random(3) < 0.5
        chosen = []
        for one in (episodes, again):
            one.selector.observe_losses(th.tensor(ids), losses)
            one.selector.observe_episodes(ids, reached)
            one.selector.observe_visits(ids)
            one.start(np.arange(3), ids)
            chosen.append(one.desired_ids.copy())
        np.testing.assert_array_equal(*chosen)


@pytest.mark.parametrize(
    ("kind", "targets"), [(LearningProgressSelector, PlannedTargets), (ValueDisagreementSelector, TDTargets)]
)
def test_a_run_with_it_can_be_stopped_and_resumed(kind, targets, tmp_path):
    class Power(BaseCallback):
        def _on_step(self):
            if self.num_timesteps >= 130:
                raise KeyboardInterrupt
            return True

    def build():
        settings = {"selector": kind(), "max_episode_steps": 5}
        return ManyGoalsDQN(
            "MlpPolicy",
            DummyVecEnv([lambda: Corridor(8)] * 2),
            learning_starts=20,
            updates_per_step=0.5,
            batch_size=16,
            target_class=targets,
            policy_kwargs={"net_arch": [16], "embedding_dim": 8},
            goal_wrapper_kwargs=settings,
            seed=0,
        )

    undisturbed = build().learn(200, ExactCheckpointCallback(tmp_path / "whole", every_steps=60))
    with pytest.raises(KeyboardInterrupt):
        build().learn(200, [ExactCheckpointCallback(tmp_path / "cut", every_steps=60), Power()])
    model, checkpoints = build(), ExactCheckpointCallback(tmp_path / "cut", every_steps=60)
    assert checkpoints.resume(model)
    assert model.num_timesteps == 120
    model.learn(80, checkpoints, reset_num_timesteps=False)
    for ours, theirs in zip(model.policy.parameters(), undisturbed.policy.parameters(), strict=True):
        assert th.equal(ours, theirs)
    np.testing.assert_array_equal(model._last_obs["desired_goal"], undisturbed._last_obs["desired_goal"])


def test_bad_settings_are_refused():
    for make, message in (
        (lambda: LeastVisitedSelector(0.0), r"uniform_share must be in \(0, 1\]"),
        (lambda: LearningProgressSelector(m=0), "m must be a whole number, at least 1, got 0"),
        (lambda: LearningProgressSelector(m=2.0), "m must be a whole number"),
        (lambda: SmoothedProgressSelector(fast=0.1, slow=0.1), "slow and fast must be 0 < slow < fast <= 1"),
        (lambda: IntermediateDifficultySelector(memory=1.1), r"memory must be in \[0, 1\]"),
        (lambda: ValueDisagreementSelector(n_candidates=0), "n_candidates must be a whole number"),
        (lambda: ValueDisagreementSelector(uniform_share=-0.1), r"uniform_share must be in \[0, 1\]"),
    ):
        with pytest.raises(ValueError, match=message):
            make()


# --- uniform ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("current", "chosen"), [(2, [0, 1, 3]), (UNKNOWN, [0, 1, 2, 3])])
def test_uniform_over_all_goals_but_the_current_one(current, chosen):
    ids = UniformSelector().select(make_buffer(4), np.full(30_000, current), np.random.default_rng(0))
    counts = np.bincount(ids, minlength=4)
    assert abs(counts[chosen] - 30_000 / len(chosen)).max() < 500  # 6 standard deviations
    assert counts[chosen].sum() == 30_000


# --- learning progress -----------------------------------------------------------------------------------------------


def feed(selector, goal, losses):
    for loss in losses:
        selector.observe_losses(th.tensor([goal]), th.tensor([float(loss)]))
    selector.catch_up()


def test_its_probabilities_by_hand():
    selector = LearningProgressSelector(m=2, uniform_share=0.2)
    feed(selector, 0, [10, 8, 5, 4, 2])  # fallen by 12
    feed(selector, 1, [1, 2, 3, 4, 5])  # risen, counts as 0
    feed(selector, 2, [1, 1])  # unknown, counts as 6
    expected = 0.8 * np.array([12, 0, 6]) / 18 + 0.2 / 3
    np.testing.assert_allclose(selector.probabilities(3), expected)


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


@given(st.lists(st.floats(0, 100, width=32), min_size=2, max_size=30))
def test_the_averages_are_those_of_a_loop(losses):
    selector = SmoothedProgressSelector(fast=0.5, slow=0.1)
    feed(selector, 1, losses)
    fast = slow = losses[0]
    for loss in losses[1:]:
        fast, slow = fast + 0.5 * (loss - fast), slow + 0.1 * (loss - slow)
    np.testing.assert_allclose(selector.progress(2)[1], slow - fast, atol=1e-9)
    assert np.isnan(selector.progress(2)[0])


@pytest.mark.parametrize("kind", [LearningProgressSelector, SmoothedProgressSelector])
def test_losses_are_looked_at_only_when_a_goal_is_chosen_and_in_their_order(kind):
    rng = np.random.default_rng(0)
    late, early = kind(), kind()
    for _ in range(300):  # more than are kept for later
        ids, losses = th.tensor(rng.integers(-1, 5, size=7)), th.tensor(rng.random(7), dtype=th.float32)
        expected = losses.clone()
        early.observe_losses(ids, losses)
        early.catch_up()
        late.observe_losses(ids, losses)
        late_pending = late._pending[-1][1] if late._pending else expected
        losses.zero_()  # as a learner may that uses its memory again
        assert th.equal(late_pending, expected)
    assert 0 < len(late._pending) < 256
    np.testing.assert_array_equal(late.probabilities(5), early.probabilities(5))
    assert len(late._pending) == 0


def test_a_goal_that_is_twice_in_an_update_is_measured_once():
    selector = LearningProgressSelector(m=1)
    for losses in ([4, 2, 9], [2, 2, 9], [1, 0, 9]):
        selector.observe_losses(th.tensor([1, 1, UNKNOWN]), th.tensor(losses, dtype=th.float32))
    selector.catch_up()
    assert selector.progress(2)[1] == (3 - 2) + (2 - 0.5)


# --- experience ------------------------------------------------------------------------------------------------------


def test_success_rates_by_hand():
    selector = IntermediateDifficultySelector(memory=0.5, uniform_share=0.5)
    selector.observe_episodes(np.array([0, 0, 1]), np.array([True, False, True]))
    # rates: (0.5 + 1) / (1.5 + 2) of goal 0, whose success is halved by the failure after it; 2/3; 1/2
    weights = np.array([3 / 7 * 4 / 7, 2 / 9, 1 / 4])
    np.testing.assert_allclose(selector.weights(3), weights)
    np.testing.assert_allclose(selector.probabilities(3), 0.5 * weights / weights.sum() + 0.5 / 3)


def test_the_least_visited_by_hand():
    selector = LeastVisitedSelector(uniform_share=0.1)
    selector.observe_visits(np.array([0, 2, 0]))
    selector.observe_visits(np.array([], dtype=np.int64))
    weights = np.array([1 / 3, 1, 1 / 2, 1])
    np.testing.assert_allclose(selector.probabilities(4), 0.9 * weights / weights.sum() + 0.1 / 4)


class Spy(UniformSelector):
    def __init__(self):
        self.episodes, self.visits, self.losses, self.forgot = [], [], [], 0

    def observe_episodes(self, ids, reached):
        self.episodes += zip(ids.tolist(), reached.tolist(), strict=True)

    def observe_visits(self, ids):
        self.visits += ids.tolist()

    def observe_losses(self, ids, losses):
        self.losses.append((ids.clone(), losses.detach().clone()))

    def forget(self):
        self.forgot += 1


@pytest.mark.parametrize("start", [0, 5])
@pytest.mark.parametrize("vector", [False, True])
def test_wrappers_tell_of_visits_and_episodes(vector, start):
    spy = Spy()
    world = Corridor(6, start=start, deadly=True)
    held_out = world.observation_of(3)[None]
    buffer = GoalBuffer(world.observation_space, 50, held_out)
    if vector:
        env = VecGoalBufferWrapper(DummyVecEnv([lambda: world]), buffer, spy, max_episode_steps=3)
        env.seed(0)
    else:
        env = GoalBufferWrapper(world, buffer, spy, max_episode_steps=3)
    env.reset()
    rng = np.random.default_rng(0)
    episodes, visits = [], []
    for _ in range(60):
        action = int(rng.integers(2))
        if vector:
            _, _, dones, infos = env.step(np.array([action]))
            info, done = infos[0], dones[0]
        else:
            _, _, terminated, truncated, info = env.step(action)
            done = terminated or truncated
            if done:
                env.reset()
        visits += [info["achieved_goal_id"]] if info["achieved_goal_id"] != UNKNOWN else []
        if done:
            episodes.append((info["desired_goal_id"], info["is_success"]))
    assert spy.visits == visits
    assert spy.episodes == episodes
    assert {reached for _, reached in episodes} == {True, False}
    # a goal that is none of the buffer's is none to be told of
    before = len(spy.episodes)
    if vector:
        env.set_options({"goal": held_out[0]})
        env.reset()
        for _ in range(3):
            env.step(np.array([2]))
    else:
        env.reset(options={"goal": held_out[0]})
        for _ in range(3):
            env.step(2)
    assert len(spy.episodes) == before


# --- the learner -----------------------------------------------------------------------------------------------------


def make_model(selector, **kwargs):
    settings = {"learning_starts": 10, "policy_kwargs": {"net_arch": [8], "embedding_dim": 8}, "seed": 0}
    settings |= {"updates_per_step": 1.0, "batch_size": 16, "goal_batch_size": 8}
    wrapper = {"selector": selector, "max_episode_steps": 5}
    return ManyGoalsDQN("MlpPolicy", Corridor(), goal_wrapper_kwargs=wrapper, **{**settings, **kwargs})


def test_the_learner_tells_of_the_losses_it_descends():
    spy = Spy()
    model = make_model(spy)
    computed, descend = [], model.targets.losses

    def listen(draw):
        losses = descend(draw)
        computed.append((draw.goal_ids.clone(), losses.detach().clone()))
        return losses

    model.targets.losses = listen
    model.learn(30)
    assert len(spy.losses) == len(computed) == 20
    for (ids, losses), (expected_ids, expected) in zip(spy.losses, computed, strict=True):
        assert th.equal(ids, expected_ids)
        assert th.equal(losses, expected)
        assert not losses.requires_grad


def test_another_goal_buffer_makes_a_rule_forget():
    spy = Spy()
    model = make_model(spy).learn(20)
    assert spy.forgot == 0
    episodes = model.env.get_attr("goal_tracker")[0]
    episodes.adopt(episodes.goal_buffer)
    assert spy.forgot == 0
    episodes.adopt(GoalBuffer(episodes.goal_buffer.observation_space))
    assert spy.forgot == 1


@pytest.mark.parametrize("kind", WEIGHTED)
def test_what_is_forgotten_is_gone(kind):
    selector = experienced(kind)
    assert np.ptp(selector.probabilities(12)) > 0
    selector.forget()
    np.testing.assert_allclose(selector.probabilities(12), 1 / 12)


@pytest.mark.parametrize("kind", [IntermediateDifficultySelector, ValueDisagreementSelector])
def test_a_saved_model_brings_a_fresh_rule_and_a_copied_one_all_of_it(kind, tmp_path):
    model = make_model(kind()).learn(60)
    model.save(tmp_path / "model")
    again = ManyGoalsDQN.load(tmp_path / "model", Corridor())
    selector = again.env.get_attr("goal_tracker")[0].selector
    assert type(selector) is kind
    if issubclass(kind, WeightedSelector):
        np.testing.assert_allclose(selector.probabilities(6), 1 / 6)
    again.learn(30, reset_num_timesteps=False)
    twin = copy.deepcopy(model)
    for one in (model, twin):
        one.learn(30, reset_num_timesteps=False)
    assert twin._selectors[0] is not model._selectors[0]
    if issubclass(kind, WeightedSelector):
        assert np.ptp(model._selectors[0].probabilities(6)) > 0
    model.set_env(Corridor())
    model.learn(20, reset_num_timesteps=False)
    assert type(model._selectors[0]) is kind


# --- disagreement ----------------------------------------------------------------------------------------------------


def test_it_chooses_where_the_estimates_differ():
    asked = []

    def values(observations, goals):
        asked.append((observations.copy(), goals.copy()))
        return np.stack([np.zeros(len(goals)), np.where(goals == 7, 3.0, 0.0)]).astype(np.float32)

    selector = ValueDisagreementSelector(n_candidates=200, uniform_share=0.0)
    selector.use_values(values)
    current = np.array([2, UNKNOWN, 5])
    ids = selector.select(make_buffer(12), current, np.random.default_rng(0))
    assert ids[0] == ids[2] == 7
    observations, goals = asked[0]
    np.testing.assert_array_equal(observations, np.repeat([2, 5], 200))
    assert goals.shape == (400,)
    assert (goals != observations).all()
    # where nothing is on show that values could be asked for, and where they agree, it is uniform
    for now, buffer in ((np.full(20_000, UNKNOWN), make_buffer(4)), (np.full(300, 0), make_buffer(4))):
        ids = selector.select(buffer, now, np.random.default_rng(0))
        counts = np.bincount(ids, minlength=4)[1:] / len(ids)
        assert np.ptp(counts) < 0.2


def test_the_learners_values_are_those_of_its_two_networks():
    model = make_model(ValueDisagreementSelector())
    with th.no_grad():
        for parameter in model.q_net.parameters():
            parameter.add_(0.1)
    world = Corridor()
    here, there = (np.stack([world.observation_of(cell) for cell in cells]) for cells in ((0, 1, 2), (3, 3, 5)))
    values = model.goal_values(here, there)
    for row in range(3):
        one = th.tensor(here[row])[None], th.tensor(there[row])[None]
        for estimate, net in zip(values, (model.q_net, model.q_net_target), strict=True):
            np.testing.assert_allclose(estimate[row], net(*one).max().item(), rtol=1e-5)
    assert (values[0] != values[1]).all()


def test_without_a_learner_it_says_what_is_missing():
    selector = ValueDisagreementSelector()
    with pytest.raises(RuntimeError, match="needs a learner that gives values"):
        selector.select(make_buffer(3), np.array([0]), np.random.default_rng(0))
    selector.use_values(lambda observations, goals: None)
    assert pickle.loads(pickle.dumps(selector))._values is None
