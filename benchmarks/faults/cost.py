"""What a checkpoint costs, and whether memory grows."""

from __future__ import annotations

import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import Logger

from sb3_manygoals import PAPER, ExactCheckpointCallback, GymnasiumVecEnv, ManyGoalsDQN
from sb3_manygoals.checkpoint import write_checkpoint
from sb3_manygoals.checkpoint.tree import encode

REPEATS = 7
LARGE = 256 * 2**20
"""Bytes of the array of which only a part changes between two checkpoints."""


def measure(memory_steps: int) -> dict[str, Any]:
    """
    :param memory_steps: environment steps over which memory is watched, 0 for not at all
    :return: seconds, bytes and megabytes, by name
    """
    found: dict[str, Any] = {**paper_learner(), **large_array()}
    if memory_steps:
        found["resident_mb"] = resident_memory(memory_steps)
    return found


def describe(found: dict[str, Any]) -> str:
    """
    :param found: of :func:`measure`
    :return: the same in words, Markdown
    """
    lines = [
        f"- A checkpoint of the paper's learner with its replay memory full: {found['paper_seconds']:.2f} s (median of "
        f"{REPEATS}), {found['paper_bytes'] / 1e6:.1f} MB, {found['paper_bytes'] / found['paper_array_bytes']:.3f} times the "
        "bytes of its arrays.",
        f"- A checkpoint of one array of {LARGE / 2**20:.0f} MiB: {found['large_seconds']:.2f} s; "
        f"again with 1% of it changed: {found['changed_seconds']:.2f} s, {found['changed_bytes'] / 2**20:.0f} MiB written.",
    ]
    if "resident_mb" in found:
        steps, resident = zip(*found["resident_mb"], strict=True)
        lines.append(
            f"- Resident memory while training on the small map, from {steps[0]:,} to {steps[-1]:,} steps: "
            f"{resident[0]:.0f} MB at first, {resident[-1]:.0f} MB at last, {max(resident):.0f} MB at most."
        )
    return "\n".join(lines) + "\n"


def paper_learner() -> dict[str, float]:
    """:return: seconds and bytes of a checkpoint of ManyGoalsDQN with the paper's settings, on the paper's map"""
    with TemporaryDirectory() as folder:
        settings = PAPER | {"learning_starts": 1_000}
        model = ManyGoalsDQN("CnnPolicy", make_vec_env("TwoRoomsSwitch-v0", seed=0), seed=0, device="cpu", **settings)
        model.set_logger(Logger(folder, []))
        model.learn(model.learning_starts + 100)  # with updates, so that the optimizer has a state
        model.learning_starts = 20_000
        model.learn(11_000, reset_num_timesteps=False)  # without them, until the memory is full
        callback = ExactCheckpointCallback(Path(folder) / "checkpoints", keep=1)
        callback.init_callback(model)
        seconds = []
        for _ in range(REPEATS):
            begin = time.perf_counter()
            path = callback.save()
            seconds.append(time.perf_counter() - begin)
        arrays = encode(model.get_checkpoint_state())[1].values()
        return {
            "paper_seconds": float(np.median(seconds)),
            "paper_bytes": _size(path),
            "paper_array_bytes": sum(array.nbytes for array in arrays),
        }


def large_array() -> dict[str, float]:
    """:return: seconds and bytes of a checkpoint of a large array, and of the next, when 1% of it has changed"""
    with TemporaryDirectory() as folder:
        array = np.random.default_rng(0).integers(256, size=(LARGE // 2**10, 2**10), dtype=np.uint8)
        begin = time.perf_counter()
        first = write_checkpoint(folder, {"array": array}, step=0)
        middle = time.perf_counter()
        array[: len(array) // 100] += 1
        again = time.perf_counter()
        second = write_checkpoint(folder, {"array": array}, step=1)
        end = time.perf_counter()
        old = {path.stat().st_ino for path in first.rglob("*")}
        written = sum(path.stat().st_size for path in second.rglob("*") if path.is_file() and path.stat().st_ino not in old)
        return {"large_seconds": middle - begin, "changed_seconds": end - again, "changed_bytes": written}


def resident_memory(steps: int) -> list[tuple[int, float]]:
    """
    :param steps: environment steps to train for
    :return: steps and megabytes, ten times, from the first tenth on: by then all memory is in use
    """
    worlds = gym.make_vec("TwoRoomsSwitchSmall-v0", num_envs=32, autoreset_mode="Disabled")
    small = {"embedding_dim": 32, "features_extractor_kwargs": {"features_dim": 32}}
    policy = PAPER["policy_kwargs"] | {"standardize": False} | small
    settings = PAPER | {"learning_starts": 1_000, "updates_per_step": 1 / 32, "policy_kwargs": policy}
    model = ManyGoalsDQN("CnnPolicy", GymnasiumVecEnv(worlds), seed=0, device="cpu", **settings)
    watch = _Watch(steps // 10)
    model.learn(steps, watch)
    return watch.seen


class _Watch(BaseCallback):
    def __init__(self, interval: int) -> None:
        super().__init__()
        self.interval = interval
        self.seen: list[tuple[int, float]] = []
        self._process = psutil.Process(os.getpid())

    def _on_step(self) -> bool:
        if self.num_timesteps // self.interval > len(self.seen):
            self.seen.append((self.num_timesteps, self._process.memory_info().rss / 1e6))
        return True


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
