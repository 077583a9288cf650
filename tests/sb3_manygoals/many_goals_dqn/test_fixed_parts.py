"""Parts of goals that differ between episodes, and updates that keep to one episode then."""

import itertools

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from sb3_manygoals import GoalBuffer
from sb3_manygoals.many_goals_dqn import ManyGoalsReplayBuffer
from sb3_manygoals.many_goals_dqn.fixed_parts import FixedParts
from tests.sb3_manygoals.many_goals_dqn.memories import add, memory_of_states
from tests.sb3_manygoals.many_goals_dqn.models import td_model
from tests.sb3_manygoals.worlds import Corridor

# An observation is a layout, a switch and a place.
OBSERVATIONS = spaces.MultiDiscrete([1_000, 2, 1_000])
GOAL_SPACE = spaces.Dict(
    {name: OBSERVATIONS for name in ("observation", "achieved_goal", "desired_goal")}
)


def memory_of(walks, n_envs=1, buffer_size=10_000):
    """Return a memory in which each environment has made these walks, one after the other."""
    buffer = ManyGoalsReplayBuffer(buffer_size, GOAL_SPACE, spaces.Discrete(3), "cpu", n_envs)
    for walk in walks:
        for here, there in itertools.pairwise(walk):
            shifts = 100 * np.arange(n_envs)[:, None] * [1, 0, 0]
            add(buffer, here + shifts, 0, there + shifts, False, 0)
    return buffer


def walk_in(layout, n_steps, switch=0):
    """Return what a walk sees that counts its steps."""
    return np.array([[layout, switch, 10 * layout + step] for step in range(n_steps + 1)])


def are_in_the_way(buffer, **kwargs):
    return FixedParts().are_in_the_way(buffer, GoalBuffer(OBSERVATIONS, **kwargs))


def test_layouts_are_in_the_way_if_there_are_many():
    # Of all pairs of transitions, one of as many as there are layouts has the same one.
    assert not are_in_the_way(memory_of([walk_in(layout, 9) for layout in range(5)]))
    assert are_in_the_way(memory_of([walk_in(layout, 9) for layout in range(14)]))
    assert not are_in_the_way(memory_of([walk_in(layout % 5, 9) for layout in range(70)]))


def test_layouts_of_environments_are_in_the_way_too():
    assert are_in_the_way(memory_of([walk_in(0, 5)], n_envs=14))
    assert not are_in_the_way(memory_of([walk_in(0, 5)], n_envs=5))
    # Not all of so many transitions are looked at.
    assert are_in_the_way(memory_of([walk_in(0, 400)], n_envs=14))
    assert not are_in_the_way(memory_of([walk_in(0, 900)], n_envs=5))


def test_a_part_that_some_step_changes_is_not_fixed():
    walks = [walk_in(layout, 5) for layout in range(20)]
    walks[7][3:, 0] += 1
    assert not are_in_the_way(memory_of(walks))


def test_parts_that_are_the_same_in_all_episodes_do_not_count():
    assert not are_in_the_way(memory_of([walk_in(3, 5) for _ in range(20)]))


def test_parts_that_do_not_matter_to_what_is_reached_are_not_in_the_way():
    def key(seen):
        # It is asked only for what environments show.
        assert (seen[..., 2] // 10 == seen[..., 0]).all()
        return seen[..., 1:]

    def reaches_near(achieved, desired):
        return (np.abs(achieved - desired)[..., 0] < 100) & (achieved == desired)[..., 2]

    walks = memory_of([walk_in(layout, 5) for layout in range(20)])
    assert are_in_the_way(walks)
    assert not are_in_the_way(walks, reached=reaches_near)
    assert not are_in_the_way(walks, state_key=key)
    never = np.zeros_like
    assert not are_in_the_way(walks, reached=lambda achieved, _: never(achieved[..., 0], np.bool_))


def test_nothing_is_in_the_way_in_an_empty_memory():
    assert not are_in_the_way(memory_of([]))


def test_it_looks_again_when_it_was_asked_twice_as_often():
    goals = GoalBuffer(OBSERVATIONS)
    parts = FixedParts()
    one = memory_of([walk_in(3, 5)])
    many = memory_of([walk_in(layout, 5) for layout in range(20)])
    assert not parts.are_in_the_way(one, goals)
    # It looks when it is asked for the second and for the fourth time.
    answers = [parts.are_in_the_way(many, goals)]
    answers += [parts.are_in_the_way(one, goals) for _ in range(3)]
    assert answers == [True, True, False, False]


def test_a_copy_goes_on_alike():
    goals = GoalBuffer(OBSERVATIONS)
    many = memory_of([walk_in(layout, 5) for layout in range(20)])
    moved = memory_of([np.array([[layout, 0, 1], [layout + 1, 0, 1]]) for layout in range(20)])
    parts = FixedParts()
    assert parts.are_in_the_way(many, goals)
    copy = FixedParts()
    copy.set_checkpoint_state(parts.get_checkpoint_state())
    assert copy.are_in_the_way(many, goals)
    # What was once changed is never fixed again.
    for one in (parts, copy):
        while one.n_asked < 3:
            one.are_in_the_way(moved, goals)
        assert not one.are_in_the_way(moved, goals)
        while one.n_asked < 8:
            assert not one.are_in_the_way(many, goals)


@given(
    st.lists(st.integers(1, 8), min_size=1, max_size=12),
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(2, 4),
    st.integers(5, 40),
    st.integers(0, 2**32 - 1),
)
def test_segments_of_one_episode_stay_in_it(
    lengths, n_envs, length, per_episode, buffer_size, seed
):
    walks = [walk_in(number, n) for number, n in enumerate(lengths)]
    buffer = memory_of(walks, n_envs, buffer_size * n_envs)
    rng = np.random.default_rng(seed)
    n_segments = 3 * per_episode
    length = min(length, buffer.size())
    batch = buffer.sample_segments(n_segments * length, length, rng, per_episode)
    seen = batch.observations.numpy().reshape(3, per_episode, length, 3)
    assert batch.observations.shape == (n_segments * length, 3)
    # All segments in a row begin in one layout, except where an episode is too short or cut.
    kept = [(number, step) for number, n in enumerate(lengths) for step in range(n)]
    kept = kept[-buffer.size() :]
    for segments in seen:
        layouts = segments[:, 0, 0] % 100
        envs = segments[:, 0, 0] // 100
        assert len(set(envs.tolist())) == 1
        n_kept = [sum(number == layout for number, _ in kept) for layout in layouts]
        if min(n_kept) >= length:
            assert len(set(layouts.tolist())) == 1
    # Each segment is consecutive in the memory.
    for segment in seen.reshape(-1, length, 3):
        places = [kept.index((row[0] % 100, row[2] - 10 * (row[0] % 100))) for row in segment]
        np.testing.assert_array_equal(np.diff(places), 1)


@pytest.mark.parametrize("n_steps", [10, 40])
def test_ends_of_episodes_are_drawn_about_as_often_as_other_transitions(n_steps):
    walks = [walk_in(number, n_steps) for number in range(9)]
    rng = np.random.default_rng(0)
    batch = memory_of(walks).sample_segments(40_000, 4, rng, 4)
    rows = batch.observations.numpy()
    steps = rows[:, 2] - 10 * rows[:, 0]
    shares = np.bincount(steps, minlength=n_steps) / len(steps) * n_steps
    assert len(shares) == n_steps
    assert shares.min() > 0.6
    assert shares.max() < 1.9


def test_an_episode_ends_where_the_environment_terminates():
    # Both episodes are at the same place when one ends and the other one begins.
    buffer = ManyGoalsReplayBuffer(50, GOAL_SPACE, spaces.Discrete(3), "cpu", 1)
    for step in range(40):
        add(buffer, [0, 0, step], 0, [0, 0, step + 1], step == 19, 0)
    segments = buffer.sample_segments(400, 2, np.random.default_rng(0), 5)
    is_first = segments.observations.numpy()[:, 2].reshape(40, 10) < 20
    assert (is_first.all(axis=1) | ~is_first.any(axis=1)).all()


def test_episodes_are_told_by_the_ids_of_states_too():
    buffer = memory_of_states(200)
    for step in range(90):
        # Nine episodes of ten steps, each in ten cells of its own.
        there = min(step + 1, 10 * (step // 10) + 9)
        add(buffer, step, 0, there)
    assert not buffer.stores_observations
    batch = buffer.sample_segments(320, 2, np.random.default_rng(0), 4)
    episodes = batch.observations.numpy().reshape(40, 8) // 10
    np.testing.assert_array_equal(episodes, episodes[:, :1].repeat(8, axis=1))


def test_per_episode_must_be_positive():
    with pytest.raises(ValueError, match="per_episode"):
        memory_of([walk_in(0, 5)]).sample_segments(4, 2, np.random.default_rng(0), 0)


class PaintedCorridor(gym.ObservationWrapper):
    """A corridor that shows twenty bits beside the cell, drawn anew in each episode."""

    def __init__(self):
        super().__init__(Corridor(6))
        self.observation_space = spaces.Box(0, 1, (26,), np.float32)

    def reset(self, **kwargs):
        observation, info = self.env.reset(**kwargs)
        self.bits = self.np_random.integers(0, 2, 20)
        return self.observation(observation), info

    def observation(self, observation):
        return np.concatenate([self.bits, observation]).astype(np.float32)


@pytest.mark.parametrize("is_painted", [False, True])
def test_an_update_keeps_to_episodes_where_each_has_parts_of_its_own(is_painted):
    model = td_model(
        PaintedCorridor() if is_painted else Corridor(6),
        targets={"goal_sampling": "segments"},
        goal_wrapper_kwargs={"max_episode_steps": 30, "reset_worlds": True},
        learning_starts=1_000,
    ).learn(600)
    batch = model.targets.sample(160, 8, model.rng)
    bits = batch.observations.numpy()[:, :-6].reshape(10, 16, -1)
    # Segments have four transitions. Some of them are at the end of an episode and cross it.
    alike = (bits == np.median(bits, axis=1, keepdims=True)).all(axis=2).mean(axis=1)
    if is_painted:
        assert (alike > 0.5).sum() >= 8
    state = model.targets.get_checkpoint_state()["fixed_parts"]
    assert state["part_episodes"] == is_painted
    model.targets.set_checkpoint_state({"fixed_parts": {**state, "n_asked": 17}})
    model.targets.sample(160, 8, model.rng)
    assert model.targets.get_checkpoint_state()["fixed_parts"]["n_asked"] == 18
    # Checkpoints of earlier versions know of no fixed parts.
    model.targets.set_checkpoint_state({})
