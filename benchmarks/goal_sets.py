"""Goals that are sets of states of the paper's map, drawn at random, and their optimum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

import gym_twoRooms  # noqa: F401 - registers its worlds
from benchmarks.told_tasks import GAMMA, PREDICATES, WORLD, returns
from gym_twoRooms.mdp import TwoRoomsMDP
from gym_twoRooms.oracle import transition_matrices

_MOST_PREDICATES = 3
_STATES_AT_A_TIME = 512


class RandomSets:
    """
    Sets of states of the paper's map. Each is a conjunction of one to three of
    :data:`~benchmarks.told_tasks.PREDICATES`, drawn at random. All sets are different, and none is
    empty.

    An observation achieves a goal if its state is in the set. What it achieves is an array with 1
    for each set that it is in. A goal has 1 for one set.

    :param seed: seed of the sets
    :param n: number of sets, N
    """

    def __init__(self, seed: int, n: int = 20) -> None:
        self.n = n
        self.mdp: TwoRoomsMDP = gym.make(WORLD).unwrapped.mdp  # type: ignore[attr-defined]
        self.names: list[str] = []
        """What each set is, as names of predicates."""
        rng = np.random.default_rng(seed)
        found: list[NDArray[np.bool_]] = []
        while len(found) < n:
            n_parts = int(rng.integers(1, _MOST_PREDICATES + 1))
            names = sorted(rng.choice(list(PREDICATES), n_parts, replace=False))
            parts = [
                PREDICATES[name](self.mdp, self.mdp.agent, self.mdp.blocks[:, 0]) for name in names
            ]
            mask = np.asarray(np.logical_and.reduce(parts))
            if mask.any() and not any(np.array_equal(mask, other) for other in found):
                found.append(mask)
                self.names.append(", ".join(names))
        self.masks: NDArray[np.bool_] = np.array(found)
        """Which states are in each set, shape (N, S)."""

    def goal(self, observation: NDArray[np.uint8]) -> NDArray[np.int8]:
        """
        Return which sets an observation is in.

        :param observation: picture of the paper's map, uint8, shape (10, 10, 3)
        :return: 1 for each set that it is in, int8, shape (N,)
        """
        state = int(self.mdp.states_of(observation[None])[0])
        return self.masks[:, state].astype(np.int8)

    @staticmethod
    def reached(achieved: NDArray[np.int8], desired: NDArray[np.int8]) -> NDArray[np.bool_]:
        """
        Return whether a goal is reached.

        :param achieved: which sets an observation is in, shape (*batch, N)
        :param desired: goals, 1 for one set, the same shape
        """
        return np.asarray((achieved & desired).any(axis=-1))

    @property
    def goals(self) -> Mapping[str, Any]:
        """Arguments of the goal wrapper."""
        goal_list = np.eye(self.n, dtype=np.int8)
        return {
            "goal": self.goal,
            "goal_space": spaces.MultiBinary(self.n),
            "reached": self.reached,
            "goal_list": goal_list,
        }

    def shares_of_optimum(self, model: Any) -> NDArray[np.float64]:
        """
        Return the share of the best possible discounted return that an agent gets for each set. It
        is exact: the mean over all states that are not in the set.

        :param model: an agent whose goals are these sets
        :return: shape (N,)
        """
        matrices = transition_matrices(self.mdp)
        parts = range(0, self.mdp.n_states, _STATES_AT_A_TIME)
        shares = np.zeros(self.n)
        for number, rewarded in enumerate(self.masks):
            desired = np.eye(self.n, dtype=np.int8)[number]
            actions = []
            for first in parts:
                states = np.arange(first, min(first + _STATES_AT_A_TIME, self.mdp.n_states))
                goals = np.tile(desired, (len(states), 1))
                seen = {
                    "observation": self.mdp.observe(states),
                    "achieved_goal": self.masks[:, states].T.astype(np.int8),
                    "desired_goal": goals,
                }
                actions.append(model.predict(seen, deterministic=True)[0])
            ours = returns(matrices, rewarded, GAMMA, np.concatenate(actions))[~rewarded].mean()
            best = returns(matrices, rewarded, GAMMA)[~rewarded].mean()
            shares[number] = ours / best
        return shares
