"""Environments that misbehave, and networks that do: is training stopped before it learns from it?"""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

from benchmarks.faults.children import in_child
from benchmarks.faults.subjects import SUBJECTS
from benchmarks.faults.trials import GOOD, Trial
from sb3_manygoals import ManyGoalsDQN

WHEN, WHERE, N_ENVS = 150, 1, 3
"""Step of an environment, and its index, at which it misbehaves, and how many there are."""
SETTINGS: dict[str, Any] = {"learning_starts": 100, "buffer_size": 500, "batch_size": 16, "device": "cpu", "seed": 0}


class Misbehaving(gym.Env[Any, np.int64]):
    """
    A walk on a circle of four cells, until something goes wrong.

    :param what: goes wrong, one of :data:`FAULTS`; None: nothing
    """

    def __init__(self, what: str | None) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (4,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.what = what
        self._place = self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        self._place = 0
        return self._look(), {}

    def step(self, action: np.int64) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Walk one cell."""
        self._steps += 1
        self._place = (self._place + (1 if action else -1)) % 4
        observation, reward = self._look(), 0.0
        if self._steps == WHEN and self.what is not None:
            observation, reward = FAULTS[self.what](observation)
        return observation, reward, False, self._steps % 20 == 0, {}

    def _look(self) -> Any:
        return np.eye(4, dtype=np.float32)[self._place]


FAULTS: dict[str, Callable[[Any], tuple[Any, float]]] = {
    "NaN in an observation": lambda observation: (observation * np.nan, 0.0),
    "infinite reward": lambda observation: (observation, np.inf),
    "observation of another shape": lambda observation: (observation[:1], 0.0),
    "observation of another dtype": lambda observation: (observation.astype(np.float64) + 1j, 0.0),
}


def hostile_trials() -> list[Trial]:
    """:return: each fault done once to each learner"""
    multiprocessing.set_forkserver_preload([__name__])  # what workers import is imported once
    trials = []
    names = [subject.name for subject in SUBJECTS]
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        for name, make in zip(names, (_ours, _plain), strict=True):
            for fault in FAULTS:
                found = in_child(partial(_train, make, fault), report)
                trials.append(_judge(fault, name, found, f"environment {WHERE}\\b"))
            found = in_child(partial(_train, make, None, _BreakNetwork()), report)
            trials.append(_judge("non-finite loss", name, found, "loss"))
            found = in_child(partial(_train, make, None, _KillWorker(), SubprocVecEnv), report)
            trials.append(_judge("a worker process killed", name, found, f"environment.* {WHERE}\\b"))
    return trials


def _train(
    make: Callable[[VecEnv], BaseAlgorithm],
    fault: str | None,
    callback: BaseCallback | None = None,
    kind: type[DummyVecEnv] | type[SubprocVecEnv] = DummyVecEnv,
) -> dict[str, Any]:
    """Train, and say what came: the error, if there was one, and whether the weights were left finite."""
    model = make(kind([partial(Misbehaving, fault if index == WHERE else None) for index in range(N_ENVS)]))
    error = ""
    try:
        model.learn(1_000, callback)
    except Exception as caught:  # whatever it is, it is looked for
        error = f"{type(caught).__name__}: {caught}"
    bad = sum(int((~th.isfinite(tensor)).sum()) for tensor in model.policy.state_dict().values())
    broken = 1 if isinstance(callback, _BreakNetwork) else 0
    return {"error": error, "finite": bad <= broken, "steps": model.num_timesteps}


def _judge(fault: str, subject: str, found: dict[str, Any], named: str) -> Trial:
    value = found.get("value")
    if value is None:
        outcome = "the process died"
    elif not value["error"]:
        outcome = "went on" + ("" if value["finite"] else ", with weights that are not finite")
    elif not value["finite"]:
        outcome = "stopped too late: weights are not finite"
    elif not re.search(named, value["error"]):
        outcome = "stopped, without saying where"
    else:
        outcome = GOOD
    return Trial(fault, subject, outcome, str(found)[:300])


def _ours(envs: VecEnv) -> BaseAlgorithm:
    policy = {"embedding_dim": 16, "net_arch": [16]}
    return ManyGoalsDQN("MlpPolicy", envs, goal_batch_size=8, updates_per_step=1 / N_ENVS, policy_kwargs=policy, **SETTINGS)


def _plain(envs: VecEnv) -> BaseAlgorithm:
    return DQN("MlpPolicy", envs, policy_kwargs={"net_arch": [16]}, train_freq=1, **SETTINGS)


class _BreakNetwork(BaseCallback):
    """Puts a weight to NaN, as a step too large would."""

    def _on_step(self) -> bool:
        if self.n_calls == WHEN:
            with th.no_grad():
                next(self.model.policy.parameters()).view(-1)[0] = np.nan
        return True


class _KillWorker(BaseCallback):
    def _on_step(self) -> bool:
        if self.n_calls == WHEN:
            envs = self.training_env.unwrapped
            assert isinstance(envs, SubprocVecEnv)
            envs.processes[WHERE].kill()
            envs.processes[WHERE].join()
        return True
