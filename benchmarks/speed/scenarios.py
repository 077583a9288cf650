"""The updates that are measured, described by values from which another process can build them too."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env

from benchmarks.agents.head_per_goal import AllGoalsDQN, AllGoalsTargets
from benchmarks.speed import baselines
from benchmarks.worlds import World
from sb3_manygoals import PAPER, ManyGoalsDQN
from sb3_manygoals.goals import GoalBuffer

WORLD = "TwoRoomsSwitch-v0"
WARM_UP = 1_100
"""Environment steps before anything is measured, to fill replay memories."""
FRAMES_KEPT = 200
"""Transitions of Atari's shapes in the replay memory, 56 KiB each."""

Kind = Literal["pairwise", "tiled", "head", "SB3 DQN", "SB3 DQN + HER"]


class RandomFrames(gym.Env[NDArray[np.uint8], np.int64]):
    """
    Atari's shapes without a game: four frames of 84 x 84 random pixels, new ones at each step, 18 actions, no reward, no end.
    What the pictures show does not change the time of an update.
    """

    observation_space = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    action_space = spaces.Discrete(18)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """
        :param seed: of the pixels
        :param options: not used
        :return: frames, shape (4, 84, 84) uint8, and an empty dict
        """
        super().reset(seed=seed)
        return self.np_random.integers(256, size=(4, 84, 84), dtype=np.uint8), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """
        :param action: changes nothing
        :return: frames, no reward, no end, and an empty dict
        """
        return self.np_random.integers(256, size=(4, 84, 84), dtype=np.uint8), 0.0, False, False, {}


@dataclass(frozen=True)
class Update:
    """
    One kind of update, of any size.

    :ivar size: (S, G), of those to measure
    :ivar make: makes one of the size (S, G) that it is given
    :ivar model: the learner
    """

    size: tuple[int, int]
    make: Callable[[int, int], Any]
    model: BaseAlgorithm

    def speed(self, at_least: float) -> float:
        """
        :param at_least: seconds to measure for
        :return: updates a second
        """
        self.wait()
        count, begin = 0, time.perf_counter()
        while count == 0 or time.perf_counter() - begin < at_least:
            self.make(*self.size)
            count += 1
        self.wait()
        return count / (time.perf_counter() - begin)

    def wait(self) -> None:
        """Wait until a GPU has done what it was told."""
        if self.model.device.type == "cuda":
            th.cuda.synchronize(self.model.device)


@dataclass(frozen=True)
class Scenario:
    """
    An update to measure.

    :ivar kind: ours, the same loss tiled, a head for each goal, SB3's DQN with the goal pursued, or with relabelled goals
    :ivar transitions: S
    :ivar goals: G; 1 for SB3's, each of whose transitions has its own; all of the world's for the head
    :ivar goal_sampling: as that of TDTargets
    :ivar world: id of a TwoRoomsSwitch world, or "frames" for Atari's shapes
    :ivar device: for the networks
    """

    kind: Kind
    transitions: int
    goals: int = 1
    goal_sampling: Literal["uniform", "batch"] = "uniform"
    world: str = WORLD
    device: str = "cpu"

    @property
    def name(self) -> str:
        """In tables."""
        if self.kind.startswith("SB3"):
            return f"{self.kind}, {self.transitions}"
        return f"{'a head for each goal' if self.kind == 'head' else self.kind} {self._size}"

    @property
    def roofline_name(self) -> str | None:
        """Of its roofline; None without one: baselines, and what is not on the CPU."""
        return f"roofline {self._size}" if self.kind in ("pairwise", "tiled") and self.device == "cpu" else None

    @property
    def _size(self) -> str:
        where = (", Atari" if self.world == "frames" else "") + ("" if self.device == "cpu" else f", {self.device}")
        return f"{self.transitions} x {self.goals}{where}"

    @property
    def pairs(self) -> int:
        """(Transition, goal) pairs that one update teaches."""
        return self.transitions * self.goals

    def update(self) -> Update:
        """:return: with a new learner; sampling of transitions and goals is part of the update"""
        size = (self.transitions, self.goals)
        if self.kind.startswith("SB3"):
            dqn = baselines.sb3_dqn(self.world, self.transitions, relabel=self.kind == "SB3 DQN + HER")
            dqn.learn(WARM_UP)
            return Update(size, lambda n_transitions, n_goals: dqn.train(1, n_transitions), dqn)
        model = self.learner()
        model.policy.set_training_mode(True)
        tiled = self.kind == "tiled"

        def make(n_transitions: int, n_goals: int) -> None:
            model.goal_batch_size = n_goals
            if tiled:
                baselines.tiled_update(model, n_transitions, n_goals)
            else:
                model.train(1, n_transitions)

        return Update(size, make, model)

    def learner(self, n_envs: int = 8) -> ManyGoalsDQN:
        """
        :param n_envs: environments that it acts in
        :return: a learner, not of SB3's kinds, with the paper's network (for frames with its Atari trunk), its replay memory
            partly filled, all goals of the world known, or as many frames as were met
        """
        frames, head = self.world == "frames", self.kind == "head"
        env = make_vec_env(RandomFrames if frames else self.world, n_envs, seed=0)
        states = None if frames else World(self.world).tables.observations
        goals = GoalBuffer(env.observation_space, 2 * FRAMES_KEPT if states is None else len(states))
        settings: dict[str, Any] = PAPER | {
            "buffer_size": FRAMES_KEPT if frames else 10_000,
            "batch_size": self.transitions,
            "goal_batch_size": self.goals,
            "target_kwargs": PAPER["target_kwargs"] | {"goal_sampling": self.goal_sampling},
            "learning_starts": 10 * WARM_UP,
            "updates_per_step": 1.0 / n_envs,
            "goal_wrapper_kwargs": {"goal_buffer": goals, "reset_worlds": True},
            "policy_kwargs": PAPER["policy_kwargs"] | {"standardize": False},
            **({"target_class": AllGoalsTargets} if head else {}),
        }
        model = (AllGoalsDQN if head else ManyGoalsDQN)("CnnPolicy", env, seed=0, device=self.device, **settings)
        model.learn(FRAMES_KEPT if frames else WARM_UP)
        if states is not None:
            goals.add(states)
        return model
