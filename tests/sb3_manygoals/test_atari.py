"""AtariVecEnv against SB3's make_atari_env and VecFrameStack, under SB3's learners, saved and restored."""

import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from stable_baselines3 import A2C
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecFrameStack, VecTransposeImage, is_vecenv_wrapped

pytest.importorskip("ale_py")
cv2 = pytest.importorskip("cv2")

from sb3_manygoals.atari import AtariVecEnv, make_atari_vec_env, rom_id
from sb3_manygoals.checkpoint import CheckpointError
from sb3_manygoals.checkpoint.envs import get_env_state, set_env_state

NOOP, FIRE, NEXT = 0, 1, 2
"""The first actions of Breakout, Pong and Assault; SB3's FireResetEnv plays the last two."""


class GreyFirst(gym.ObservationWrapper):
    """Frames in grey before SB3 takes the maximum of two, as ale-py does; SB3 takes that of red, green and blue."""

    def observation(self, frame):
        return np.repeat(cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY)[..., None], 3, axis=2)


def theirs_of(game, grey_first):
    """One game as SB3 makes it, without random no-ops."""
    if not grey_first:
        return make_atari_vec_env(game, 1, seed=0, backend="dummy", noop_max=0)
    env = make_atari_env(lambda: GreyFirst(gym.make(f"{game}NoFrameskip-v4")), 1, 0, wrapper_kwargs={"noop_max": 0})
    return VecTransposeImage(VecFrameStack(env, 4))


class OursAsTheirs:
    """
    One game of ours, in which what SB3's FireResetEnv and EpisodicLifeEnv play for the learner is played from here. Its
    stacks are put together of our latest frames.
    """

    def __init__(self, game):
        self.env = AtariVecEnv(game, 1, seed=0, noop_max=0, fire_on_reset=False)
        assert self.env.reset().shape == (1, 4, 84, 84)
        self._begin(FIRE, NEXT)

    def _begin(self, *actions):
        self.unseen = []
        for action in actions:
            obs, _, dones, _ = self.env.step(np.array([action]))
            assert not dones[0]
        self.stack = np.zeros((4, 84, 84), np.uint8)
        self.stack[-1] = obs[0, -1]

    def step(self, action):
        before = self.stack
        obs, rewards, dones, infos = self.env.step(np.array([action]))
        if dones[0]:
            last = infos[0]["terminal_observation"]
            np.testing.assert_array_equal(last[:-1], before[1:])
            assert not obs[0, :-1].any()
            if "episode" in infos[0]:
                self._begin(FIRE, NEXT)
            else:
                np.testing.assert_array_equal(obs[0, -1], last[-1])
                self._begin(NOOP, FIRE, NEXT)
        else:
            self.stack = np.concatenate([before[1:], obs[0, -1:]])
        return self.stack, rewards, dones, infos[0]


@pytest.mark.parametrize("grey_first", [True, False])
@pytest.mark.parametrize(("game", "steps", "lives", "games"), [("Breakout", 500, 5, 2), ("Pong", 900, 0, 1)])
def test_equal_to_sb3s_but_for_what_the_module_lists(game, steps, lives, games, grey_first):
    theirs, ours = theirs_of(game, grey_first), OursAsTheirs(game)
    assert ours.env.observation_space == theirs.observation_space
    assert ours.env.action_space == theirs.action_space
    stack, their_stack = ours.stack, theirs.reset()[0]
    rng = np.random.default_rng(1)
    differences, lost, over, rewarded = [], 0, 0, 0
    for _ in range(steps):
        differences.append(np.abs(stack[-1].astype(int) - their_stack[-1]))
        np.testing.assert_array_equal(stack.any(axis=(1, 2)), their_stack.any(axis=(1, 2)))
        action = rng.integers(theirs.action_space.n)
        their_obs, their_rewards, their_dones, (their_info,) = theirs.step(np.array([action]))
        stack, rewards, dones, info = ours.step(action)
        their_stack = their_obs[0]
        assert (rewards.dtype, dones.dtype) == (their_rewards.dtype, their_dones.dtype)
        assert (rewards[0], dones[0]) == (their_rewards[0], their_dones[0])
        assert info["lives"] == their_info["lives"]
        assert info["TimeLimit.truncated"] == their_info["TimeLimit.truncated"]
        assert ("episode" in info) == ("episode" in their_info)
        rewarded += rewards[0] != 0
        if "episode" in info:
            over += 1
            assert info["episode"]["r"] == their_info["episode"]["r"]
            assert info["episode"]["l"] == their_info["episode"]["l"]
            np.testing.assert_array_equal(info["terminal_observation"].shape, their_info["terminal_observation"].shape)
        elif dones[0]:
            lost += 1
            differences.append(np.abs(info["terminal_observation"][-1].astype(int) - their_info["terminal_observation"][-1]))
    found = np.array(differences)
    if game == "Breakout" or grey_first:
        assert found.max() == 0
    else:
        # The larger of two greys is not the grey of the larger reds, greens and blues: seen where something coloured moves.
        assert found.max() <= 16
        assert 0 < np.mean(found > 0) < 0.005
    assert rewarded > 3
    assert over >= games
    assert (lost >= 4) == (lives > 0)
