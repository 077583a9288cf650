"""Environments that misbehave: does training stop before it learns from them?"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3 import DQN
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

from benchmarks.faults.learners import OURS, SB3, is_finite, silent_logger
from benchmarks.faults.processes import call
from benchmarks.faults.trials import SURVIVED, Result
from sb3_manygoals import ManyGoalsDQN

N_ENVS = 3
"""Environments of which one misbehaves."""
STEPS = 1_000
"""Environment steps of a whole training."""
SETTINGS: dict[str, Any] = {
    "learning_starts": 100,
    "buffer_size": 500,
    "seed": 0,
    "device": "cpu",
}
"""Arguments of the learners; the others are the defaults."""
N_CELLS = 4
"""Cells of the circle that the environments are."""

Given = tuple[Any, float]
"""The observation and the reward of a step."""

BAD_STEPS: dict[str, Callable[[NDArray[np.float32]], Given]] = {
    "NaN in an observation": lambda observation: (observation * np.nan, 0.0),
    "infinite reward": lambda observation: (observation, np.inf),
    "observation of another shape": lambda observation: (observation[:1], 0.0),
    "observation of another dtype": lambda observation: (observation.astype(np.complex128), 0.0),
}
"""What an environment gives in its bad step, in place of an observation."""

WORKER_KILLED = "worker process killed"
"""The fault of an environment that runs in another process."""

BUILDERS: dict[str, Callable[[VecEnv], BaseAlgorithm]] = {
    OURS: lambda envs: ManyGoalsDQN("MlpPolicy", envs, **SETTINGS),
    SB3: lambda envs: DQN("MlpPolicy", envs, **SETTINGS),
}
"""What builds the learners, by the names of the columns."""


@dataclass(frozen=True)
class _Trained:
    """What became of training."""

    error: str
    n_steps: int
    is_finite: bool


class Circle(gym.Env[Any, np.int64]):
    """
    A walk on a circle, which goes wrong once.

    :param fault: one of :data:`BAD_STEPS`. None: nothing goes wrong
    :param bad_step: the number of the step that goes wrong
    """

    def __init__(self, fault: str | None, bad_step: int) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (N_CELLS,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.fault = fault
        self.bad_step = bad_step
        self._cell = 0
        self._n_steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """
        Begin an episode.

        :param seed: of random numbers, which this world does not draw
        :param options: not used
        :return: the observation and an empty info
        """
        super().reset(seed=seed)
        self._cell = 0
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """
        Walk one cell.

        :param action: 1 for one way, 0 for the other
        :return: observation, reward, end, cut and an empty info
        """
        self._n_steps += 1
        self._cell = (self._cell + (1 if action else -1)) % N_CELLS
        observation = self._observation()
        reward = 0.0
        if self._n_steps == self.bad_step and self.fault is not None:
            observation, reward = BAD_STEPS[self.fault](observation)
        return observation, reward, False, self._n_steps % 20 == 0, {}

    def _observation(self) -> Any:
        return np.eye(N_CELLS, dtype=np.float32)[self._cell]


class _KillWorker(BaseCallback):
    """Kills the process of an environment after some steps."""

    def __init__(self, index: int, after: int) -> None:
        super().__init__()
        self.index = index
        self.after = after

    def _on_step(self) -> bool:
        if self.n_calls == self.after:
            envs = self.training_env.unwrapped
            assert isinstance(envs, SubprocVecEnv)
            envs.processes[self.index].kill()
            envs.processes[self.index].join()
        return True


def bad_data(fault: str, name: str, rng: np.random.Generator) -> Result:
    """
    Train in environments of which one misbehaves at a random step.

    :param fault: one of :data:`BAD_STEPS`, or :data:`WORKER_KILLED`
    :param name: one of :data:`BUILDERS`
    :param rng: draws the environment and the step
    :return: what became of it
    """
    index = int(rng.integers(N_ENVS))
    # All learners have made updates before.
    step = int(rng.integers(100, STEPS // N_ENVS - 100))

    def train() -> _Trained:
        is_worker = fault == WORKER_KILLED
        makers: list[Callable[[], gym.Env[Any, Any]]] = [
            partial(Circle, fault if one == index and not is_worker else None, step)
            for one in range(N_ENVS)
        ]
        model = BUILDERS[name](SubprocVecEnv(makers) if is_worker else DummyVecEnv(makers))
        model.set_logger(silent_logger())
        error = ""
        try:
            model.learn(STEPS, _KillWorker(index, step) if is_worker else None)
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
        return _Trained(error, model.num_timesteps, is_finite(model))

    found = call(train)
    trained: _Trained | None = found.value
    if trained is None:
        return "the process died or hung", found.error
    if not trained.error:
        went_on = "went on" if trained.is_finite else "went on with non-finite weights"
        return went_on, f"environment {index}, step {step}"
    if not trained.is_finite or trained.n_steps > step * N_ENVS:
        outcome = "stopped too late"
    elif re.search(rf"environment {index}\b.*num_timesteps=", trained.error) is None:
        outcome = "stopped without saying where"
    else:
        outcome = SURVIVED
    return outcome, f"environment {index}, step {step}: {trained.error}"
