"""A world in which every picture shows its episode and step."""

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack

SIDE = 36


class Story(gym.Env):
    """
    A dot on a line of 36 cells.

    Action 0 goes left, 1 goes right, 2 stays. The reward is 1 for each step to the right beyond the
    middle, and -1 at the left end. The episode ends at either end. A corner of the picture shows
    the number of the episode and of the step.
    """

    observation_space = spaces.Box(0, 255, (SIDE, SIDE, 1), np.uint8)
    action_space = spaces.Discrete(3)

    def __init__(self):
        self.episode = -1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode += 1
        self.number = 0
        self.cell = int(self.np_random.integers(15, 19))
        return self.observation(), {}

    def step(self, action):
        self.number += 1
        self.cell += (-3, 3, 0)[int(action)]
        ended = not 0 < self.cell < SIDE - 1
        self.cell = min(max(self.cell, 0), SIDE - 1)
        reward = float(self.cell > SIDE // 2 and action == 1)
        if self.cell == 0:
            reward = -1.0
        return self.observation(), reward, ended, False, {}

    def observation(self):
        picture = np.zeros((SIDE, SIDE, 1), np.uint8)
        picture[10:20, self.cell] = 255
        picture[0, :2, 0] = self.episode % 256, self.number
        return picture


class Lives(gym.Wrapper):
    """
    Ends the learner's episode every five steps, as at a lost life.

    The world beneath goes on.
    """

    def __init__(self, env):
        super().__init__(env)
        self.steps = 0
        self.over = True

    def reset(self, **kwargs):
        if self.over:
            self.last, info = self.env.reset(**kwargs)
            self.over = False
            return self.last, info
        return self.last, {}

    def step(self, action):
        self.last, reward, terminated, truncated, info = self.env.step(action)
        self.steps += 1
        self.over = terminated or truncated
        return self.last, reward, terminated or self.steps % 5 == 0, truncated, info


def stories(n_envs=2, n_stack=1, limit=30, lives=False):
    """Make an SB3 VecEnv of Stories, with Monitors inside."""

    def make():
        return gym.wrappers.TimeLimit(Story(), limit)

    venv = make_vec_env(make, n_envs, seed=5, wrapper_class=Lives if lives else None)
    return VecFrameStack(venv, n_stack) if n_stack > 1 else venv
