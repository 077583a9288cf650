"""Environments of all kinds, and a driver that steps any of them."""

import copy
import functools
from collections import deque

import gymnasium as gym
import numpy as np
from gymnasium import spaces, wrappers
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from stable_baselines3.common import vec_env
from stable_baselines3.common.monitor import Monitor

from sb3_manygoals import GoalBufferWrapper, GymnasiumVecEnv, VecGoalBufferWrapper
from sb3_manygoals.checkpoint.envs import StatefulEnv
from sb3_manygoals.goals import GoalSelector
from sb3_manygoals.minatar import GAMES, MinAtarVectorEnv
from sb3_manygoals.vec_env import current_reset_infos
from tests.sb3_manygoals.worlds import Corridor

SMALL = "gym_twoRooms:TwoRoomsSwitchSmall-v0"
MODES = list(AutoresetMode)


class Tangle(gym.Env):
    """Attributes that share things with each other and with a space."""

    def __init__(self):
        self.observation_space = spaces.Box(-100, 100, (6,), np.float64)
        self.action_space = spaces.Discrete(3)
        self.history = deque(maxlen=3)
        self.rewards = [lambda action: float(action), float]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.rng = self.action_space._np_random = self.np_random
        self.body = np.zeros(6)
        self.head = self.body[:2]
        self.tail = self.body[::-2]
        self.bag = []
        self.bags = {"mine": self.bag, 1: (self.bag, [self.bag])}
        return self.body.copy(), {}

    def step(self, action):
        self.head += self.rng.normal(size=2)
        self.tail -= self.np_random.normal(size=3) + self.action_space.sample()
        self.bags[1][1][0].append(int(action))
        self.history.append(int(action))
        info = {
            "bag": list(self.bag),
            "history": list(self.history),
            "same": self.bag is self.bags["mine"],
        }
        return self.body.copy(), self.rewards[0](action), len(self.bag) >= 7, False, info


class Recent(GoalSelector):
    """A rule with a memory."""

    def __init__(self):
        self.chosen = [0]

    def select(self, goal_buffer, current_ids, rng):
        n_goals = len(goal_buffer)
        ids = (rng.integers(n_goals, size=len(current_ids)) + self.chosen[-1]) % n_goals
        self.chosen.append(int(ids[-1]))
        return ids


class DictObs(gym.ObservationWrapper):
    """
    Observations as a dict with one entry.

    :param env: the environment
    """

    def __init__(self, env):
        super().__init__(env)
        self.observation_space = spaces.Dict({"image": env.observation_space})

    def observation(self, observation):
        return {"image": observation}


def cartpole():
    return gym.make("CartPole-v1", max_episode_steps=17)


def small(**kwargs):
    """
    Make a small world of two rooms.

    :param kwargs: further arguments of the environment
    :return: the environment, whose episodes end after 9 steps
    """
    return gym.make(SMALL, max_episode_steps=9, **kwargs)


def corridor(**kwargs):
    """
    Make a corridor.

    :param kwargs: further arguments of the environment
    :return: the environment, whose episodes end after 7 steps
    """
    return wrappers.TimeLimit(Corridor(length=5, deadly=True, **kwargs), 7)


def monitored():
    return Monitor(small())


def stateful():
    return StatefulEnv(Monitor(corridor()))


def vector(make_env, n=3, **kwargs):
    """
    Make a vector environment of Gymnasium.

    :param make_env: a function that makes one of its environments
    :param n: number of its environments; default: 3
    :param kwargs: further arguments of SyncVectorEnv
    :return: the vector environment
    """
    return SyncVectorEnv([make_env] * n, **kwargs)


def dummy(make_env, n):
    """
    Make SB3's vector environment in this process.

    :param make_env: a function that makes one of its environments
    :param n: number of its environments
    :return: the vector environment
    """
    return vec_env.DummyVecEnv([make_env] * n)


def forked(make_env):
    """
    Make SB3's vector environment of two processes.

    :param make_env: a function that makes one of its environments
    :return: the vector environment
    """
    return vec_env.SubprocVecEnv([make_env] * 2, start_method="fork")


def goals():
    return GoalBufferWrapper(small(), selector_class=Recent, max_episode_steps=6)


def goal_vector(vector, make_env, **settings):
    """
    Make SB3's vector environment of one environment that pursues goals.

    :param vector: whether the goals are around the vector, or around the environment in it
    :param make_env: a function that makes the environment
    :param settings: arguments of the goal wrapper
    :return: the vector environment
    """
    if vector:
        return VecGoalBufferWrapper(dummy(make_env, 1), **settings)
    return dummy(lambda: GoalBufferWrapper(make_env(), **settings), 1)


ENVIRONMENTS = {
    "CartPole": cartpole,
    **{
        name: functools.partial(gym.make, name, max_episode_steps=30)
        for name in (
            "MountainCar-v0",
            "Pendulum-v1",
            "Acrobot-v1",
            "FrozenLake-v1",
            "Taxi-v4",
            "Blackjack-v1",
        )
    },
    "TwoRooms": small,
    "Corridor": corridor,
    "Tangle": Tangle,
    "StatefulEnv": stateful,
    "goals": goals,
    "FrameStack": lambda: wrappers.FrameStackObservation(small(), 3),
    "statistics": lambda: wrappers.RecordEpisodeStatistics(
        wrappers.ReshapeObservation(cartpole(), (2, 2)), buffer_length=5
    ),
    "TimeAware, Delay": lambda: wrappers.TimeAwareObservation(
        wrappers.DelayObservation(cartpole(), 2)
    ),
    "Normalize": lambda: wrappers.NormalizeReward(wrappers.NormalizeObservation(cartpole())),
    "StickyAction": lambda: wrappers.StickyAction(cartpole(), 0.4, (1, 3)),
    "Monitor": monitored,
    "drawn": lambda: gym.make("CartPole-v1", render_mode="rgb_array"),
    **{
        f"MiniGrid {name}": functools.partial(gym.make, f"MiniGrid-{name}-v0", max_steps=40)
        for name in (
            "DoorKey-5x5",
            "Dynamic-Obstacles-5x5",
            "KeyCorridorS3R2",
            "MultiRoom-N2-S4",
            "ObstructedMaze-1Dlhb",
        )
    },
    **{f"MinAtar {game}": functools.partial(MinAtarVectorEnv, game, 3) for game in GAMES},
    "Dummy": lambda: dummy(monitored, 3),
    "Dummy goals": lambda: dummy(goals, 2),
    "VecMonitor": lambda: vec_env.VecMonitor(dummy(small, 3)),
    "VecFrameStack": lambda: vec_env.VecFrameStack(
        vec_env.VecTransposeImage(dummy(lambda: corridor(image=True), 3)), 2
    ),
    "VecFrameStack dict": lambda: vec_env.VecFrameStack(
        dummy(lambda: DictObs(corridor(image=True)), 2), 3
    ),
    "VecNormalize": lambda: vec_env.VecCheckNan(vec_env.VecNormalize(dummy(cartpole, 3))),
    "VecGoal": lambda: VecGoalBufferWrapper(dummy(small, 3), max_episode_steps=6),
    # VecMonitor forwards the methods of what it wraps, and has none of its own.
    "VecMonitor of VecGoal": lambda: vec_env.VecMonitor(
        VecGoalBufferWrapper(dummy(small, 2), max_episode_steps=6)
    ),
    "VecGoal worlds go on": lambda: VecGoalBufferWrapper(
        vec_env.VecFrameStack(dummy(small, 2), 2), max_episode_steps=6
    ),
    "Subproc": lambda: forked(stateful),
    "Subproc goals": lambda: VecGoalBufferWrapper(forked(stateful), max_episode_steps=6),
    **{
        f"Sync {mode.name}": functools.partial(vector, cartpole, autoreset_mode=mode)
        for mode in MODES
    },
    "vector wrappers": lambda: wrappers.vector.RecordEpisodeStatistics(
        wrappers.vector.NormalizeObservation(vector(cartpole))
    ),
    "CartPole native": lambda: gym.make_vec("CartPole-v1", 3, "vector_entry_point"),
    **{
        f"GymnasiumVecEnv {mode.name} of {name}": functools.partial(
            lambda make, mode: GymnasiumVecEnv(make(mode)), make, mode
        )
        for mode in (AutoresetMode.SAME_STEP, AutoresetMode.DISABLED)
        for name, make in {
            "Sync": lambda mode: vector(corridor, autoreset_mode=mode),
            "native": lambda mode: gym.make_vec(SMALL, 3, max_episode_steps=6, autoreset_mode=mode),
        }.items()
    },
    "VecGoal native": lambda: VecGoalBufferWrapper(
        GymnasiumVecEnv(gym.make_vec(SMALL, 3, max_episode_steps=9, autoreset_mode="Disabled")),
        max_episode_steps=6,
    ),
}


class Driver:
    """
    Steps any kind of environment, and resets it wherever that is up to the caller.

    :param env: the environment
    """

    def __init__(self, env):
        self.env = env

    def reset(self, seed):
        """
        Reset the environment.

        :param seed: of the environment and of its action space
        :return: first observations and infos
        """
        if isinstance(self.env, vec_env.VecEnv):
            self.env.seed(seed)
            self.env.action_space.seed(seed)
            return self.env.reset(), copy.deepcopy(current_reset_infos(self.env))
        self.env.action_space.seed(seed)
        return self.env.reset(seed=seed)

    def step(self):
        """
        Take random actions, and reset what has ended.

        :return: the actions, what the step returned, and what a reset returned
        """
        if isinstance(self.env, vec_env.VecEnv):
            return self._step_sb3()
        actions = self.env.action_space.sample()
        result = self.env.step(actions)
        ended = np.logical_or(result[2], result[3])
        if not isinstance(self.env, VectorEnv):
            return actions, result, self.env.reset() if ended else None
        if self.env.metadata["autoreset_mode"] is AutoresetMode.DISABLED and ended.any():
            return actions, result, self.env.reset(options={"reset_mask": ended})
        return actions, copy.deepcopy(result)

    def _step_sb3(self):
        actions = np.array([self.env.action_space.sample() for _ in range(self.env.num_envs)])
        result = self.env.step(actions)
        reset_infos = current_reset_infos(self.env)
        return actions, result, [copy.deepcopy(reset_infos[i]) for i in np.flatnonzero(result[2])]

    def goal_buffers(self):
        """
        Return the goal buffers, which a checkpoint of environments leaves out.

        :return: a list; empty if nothing in the environment has a goal buffer
        """
        env = self.env.venv if isinstance(self.env, vec_env.VecMonitor) else self.env
        if isinstance(env, VecGoalBufferWrapper):
            return [env.goal_buffer]
        if isinstance(env, vec_env.DummyVecEnv) and all(env.env_is_wrapped(GoalBufferWrapper)):
            return env.get_attr("goal_buffer")
        return [env.goal_buffer] if isinstance(env, GoalBufferWrapper) else []
