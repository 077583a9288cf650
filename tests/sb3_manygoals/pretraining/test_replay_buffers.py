"""Tests that compare replay memories of frames with those of whole observations."""

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_manygoals.checkpoint import CheckpointError
from sb3_manygoals.goals.wrapper import goal_observation_space
from sb3_manygoals.many_goals_dqn import ManyGoalsReplayBuffer
from sb3_manygoals.pretraining import FrameReplayBuffer, ManyGoalsFrameReplayBuffer

ACTIONS = spaces.Discrete(3)


def shown(rng, n_envs, n_stack):
    """
    Return stacks of a few different frames in random order.

    A frame may have been shown just before, as in games, or not.
    """
    levels = rng.integers(0, 3, size=(n_envs, n_stack, 1, 1), dtype=np.uint8)
    return levels.repeat(2, axis=2).repeat(2, axis=3)


def space_of(n_stack):
    return spaces.Box(0, 255, (n_stack, 2, 2), np.uint8)


@given(st.integers(0, 10_000), st.integers(1, 40), st.integers(1, 3), st.integers(1, 4))
@settings(max_examples=60)
def test_observations_come_back_as_they_were_put_in(seed, n_added, n_envs, n_stack):
    """
    Both memories get the same transitions, several times as many as they have rows.

    Then all rows are equal, and batches with the same seed too.
    """
    rng = np.random.default_rng(seed)
    space = space_of(n_stack)
    size = 7 * n_envs
    whole = ManyGoalsReplayBuffer(size, goal_observation_space(space), ACTIONS, "cpu", n_envs)
    ours = ManyGoalsFrameReplayBuffer(
        size, goal_observation_space(space), ACTIONS, "cpu", n_envs, n_stack=n_stack
    )
    plain = FrameReplayBuffer(size, space, ACTIONS, "cpu", n_envs, n_stack=n_stack)
    sb3 = ReplayBuffer(size, space, ACTIONS, "cpu", n_envs)
    for number in range(n_added):
        here, there = (shown(rng, n_envs, n_stack) for _ in range(2))
        infos = [
            {"achieved_goal_id": number, "env_terminated": bool(rng.random() < 0.3)}
            for _ in range(n_envs)
        ]
        actions = rng.integers(3, size=n_envs)
        rewards = rng.normal(size=n_envs)
        dones = rng.random(n_envs) < 0.2
        for buffer in (whole, ours):
            buffer.add(
                {"observation": here}, {"observation": there}, actions, rewards, dones, infos
            )
        for buffer in (plain, sb3):
            buffer.add(here, there, actions, rewards, dones, infos)
    for mine, theirs in ((ours, whole), (plain, sb3)):
        used = slice(mine.size())
        np.testing.assert_array_equal(mine.observations[used], theirs.observations[used])
        np.testing.assert_array_equal(mine.next_observations[used], theirs.next_observations[used])
        batches = []
        for buffer in (mine, theirs):
            # SB3 samples with NumPy's global generator.
            np.random.seed(seed)  # noqa: NPY002
            batches.append(buffer.sample(20))
        for left, right in zip(*batches, strict=True):
            assert (left is None) == (right is None)
            assert left is None or bool((left == right).all())


def test_ten_thousand_transitions_of_a_game_take_an_eighth():
    arguments = (
        10_000,
        goal_observation_space(spaces.Box(0, 255, (4, 84, 84), np.uint8)),
        ACTIONS,
        1,
    )
    whole = ManyGoalsReplayBuffer.memory_needed(*arguments)
    observations = whole.pop("replay observations")
    assert observations == 2 * 10_000 * 4 * 84 * 84
    # Where frames are kept, there are no ids of states.
    del whole["replay state ids"]
    # Each frame is an object of Python, to which all stacks with this frame refer.
    size = 10_005 * (84 * 84 + 33) + 2 * 10_000 * 4 * 8
    assert size < 0.13 * observations
    needed = ManyGoalsFrameReplayBuffer.memory_needed(*arguments, action_masks=False, n_stack=4)
    assert needed == {"replay frames": size, **whole}


def test_the_state_of_another_memory_is_refused():
    first = FrameReplayBuffer(10, space_of(3), ACTIONS, "cpu", n_stack=1).get_checkpoint_state()
    for changes, message in (
        ({"buffer_size": 11, "requested_size": 11}, "buffer_size=11, not 10"),
        ({"frames": first["frames"]}, "n_stack=1, not 3"),
    ):
        ours = ManyGoalsFrameReplayBuffer(
            10, goal_observation_space(space_of(3)), ACTIONS, "cpu", n_stack=3
        )
        for buffer in (FrameReplayBuffer(10, space_of(3), ACTIONS, "cpu", n_stack=3), ours):
            with pytest.raises(CheckpointError, match=message):
                buffer.set_checkpoint_state(buffer.get_checkpoint_state() | changes)
    whole = ManyGoalsReplayBuffer(10, goal_observation_space(space_of(3)), ACTIONS, "cpu")
    with pytest.raises(
        CheckpointError, match="saved by another replay_buffer_class, with frames or without"
    ):
        whole.set_checkpoint_state(ours.get_checkpoint_state())
