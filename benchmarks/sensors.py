"""GoalEnvs of float sensors: a noisy room, and observations near one that was seen before."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from sb3_manygoals.validation import check_action_space


class NoisyRoom(gym.Env[Any, Any]):
    """
    A point in a unit square with a wall in the middle, which has a gap at the top.

    Eight actions move it by .05 with Gaussian noise of .005. It observes its place with Gaussian
    noise of .005, as a GoalEnv of goals within a distance.

    :param distance: greatest distance at which a goal is reached
    :param n_steps: steps of an episode
    """

    def __init__(self, distance: float, n_steps: int = 100) -> None:
        self.distance = distance
        self.n_steps = n_steps
        box = spaces.Box(0.0, 1.0, (2,), np.float32)
        self.observation_space = spaces.Dict(
            {"observation": box, "achieved_goal": box, "desired_goal": box}
        )
        self.action_space = spaces.Discrete(8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """
        Begin an episode in a random place with a random goal.

        :param seed: seed of everything random
        :param options: not used
        """
        super().reset(seed=seed)
        self._place = self.np_random.random(2)
        self._goal = self.np_random.random(2).astype(np.float32)
        self._n_steps = 0
        return self._seen(), {"is_success": False}

    def _seen(self) -> dict[str, NDArray[np.float32]]:
        """Return place and goal, the place with noise."""
        noisy = self._place + 0.005 * self.np_random.standard_normal(2)
        seen = np.clip(noisy, 0.0, 1.0).astype(np.float32)
        return {"observation": seen, "achieved_goal": seen.copy(), "desired_goal": self._goal}

    def step(self, action: Any) -> Any:
        """
        Move.

        :param action: one of eight directions
        """
        angle = int(action) * np.pi / 4
        move = 0.05 * np.array([np.cos(angle), np.sin(angle)])
        place = self._place + move + 0.005 * self.np_random.standard_normal(2)
        crosses = (place[0] - 0.5) * (self._place[0] - 0.5) < 0 and place[1] < 0.8
        if not crosses:
            self._place = np.clip(place, 0.0, 1.0)
        self._n_steps += 1
        seen = self._seen()
        reward = float(self.compute_reward(seen["achieved_goal"], seen["desired_goal"], {}))
        info = {"is_success": reward == 0.0}
        return seen, reward, reward == 0.0, self._n_steps >= self.n_steps, info

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        """
        Return 0 where the goal is reached, and else -1.

        :param achieved_goal: places, shape (*batch, 2)
        :param desired_goal: goals, the same shape
        :param info: not used
        """
        distance = np.linalg.norm(np.subtract(achieved_goal, desired_goal), axis=-1)
        return -(distance > self.distance).astype(np.float64)


class NearObservations(gym.Wrapper[Any, Any, Any, Any]):
    """
    A world of vectors as a GoalEnv, whose goals are observations to come near to.

    Distances are in standard deviations of the goals, their root mean square over all numbers. An
    end of the world is a failure.

    :param env: the world
    :param goals: the goals, one of which each episode draws, shape (n, size)
    :param distance: a goal is reached within this distance
    """

    def __init__(
        self, env: gym.Env[Any, Any], goals: NDArray[np.float32], distance: float = 0.15
    ) -> None:
        super().__init__(env)
        self.goals = goals
        self.distance = distance
        self.scale = goals.std(axis=0) + 1e-6
        names = ("observation", "achieved_goal", "desired_goal")
        self.observation_space = spaces.Dict(dict.fromkeys(names, env.observation_space))
        self._goal = goals[0]

    def _seen(self, observation: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """Return an observation with the goal."""
        return {
            "observation": observation,
            "achieved_goal": observation.copy(),
            "desired_goal": self._goal,
        }

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, NDArray[np.float32]], dict[str, Any]]:
        """
        Begin an episode.

        :param seed: seed of the world
        :param options: may have "goal", the number of the goal; else it is drawn
        :return: first observation and info
        """
        observation, info = self.env.reset(seed=seed)
        number = (options or {}).get("goal", self.np_random.integers(len(self.goals)))
        self._goal = self.goals[number]
        return self._seen(observation), info

    def step(
        self, action: Any
    ) -> tuple[dict[str, NDArray[np.float32]], float, bool, bool, dict[str, Any]]:
        """
        Take a step.

        :param action: action of the world
        :return: observation; 0 if the goal is reached, else -1; whether it is, or the world has
            ended; whether the episode was cut short; and info with "is_success"
        """
        observation, _, ended, cut, info = self.env.step(action)
        reward = float(self.compute_reward(observation, self._goal, info))
        is_success = reward == 0.0
        info = {**info, "is_success": is_success}
        return self._seen(observation), reward, bool(ended) or is_success, bool(cut), info

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        """
        Return 0 where the goal is reached, and else -1.

        :param achieved_goal: observations, shape (*batch, size)
        :param desired_goal: goals, the same shape
        :param info: not used
        """
        offsets = np.subtract(achieved_goal, desired_goal) / self.scale
        distances = np.sqrt(np.square(offsets).mean(axis=-1))
        return -(distances > self.distance).astype(np.float64)


def random_observations(name: str, n: int, seed: int) -> NDArray[np.float32]:
    """
    Draw observations from a walk of random actions, 100 steps for each.

    :param name: id of an environment of vectors
    :param n: number of observations
    :param seed: seed of the walk
    :return: shape (n, size)
    """
    env = gym.make(name)
    rng = np.random.default_rng(seed)
    n_actions = check_action_space(env.action_space)
    seen = [env.reset(seed=seed)[0]]
    while len(seen) < 100 * n:
        observation, _, ended, cut, _ = env.step(int(rng.integers(n_actions)))
        seen.append(observation)
        if ended or cut:
            seen.append(env.reset()[0])
    return np.stack(seen)[rng.choice(len(seen), n, replace=False)]
