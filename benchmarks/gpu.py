"""What a GPU is worth: the CUDA tests, speed, the default, the paper's recipe, a large map, within a number of minutes."""

from __future__ import annotations

import csv
import itertools
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch as th

from benchmarks import recording

Command = tuple[str, ...]

COLUMNS = ("step", "command", "seconds", "status")


@dataclass(frozen=True)
class GPUConfig:
    """
    Carry out the steps in order of worth, the runs of a step side by side, each until it ends or the minutes are over. What it
    prints goes to ``<step>-<number>.txt``, a row of ``gpu.csv`` says how it ended, and its run lies in ``runs/``.
    """

    minutes: float = 30.0
    """For all steps."""
    device: str = "cuda"
    """Where the networks live; cpu for a rehearsal."""
    scale: float = 1.0
    """Of the steps of training; small for a rehearsal."""
    output: Path = Path("runs")
    """Folder in which that of this call is made."""

    def run(self) -> Path:
        """Measure, and write. Returns the folder."""
        if self.minutes <= 0 or self.scale <= 0:
            raise ValueError(f"minutes and scale must be positive, got {self.minutes} and {self.scale}")
        if self.device == "cuda" and not th.cuda.is_available():
            sys.exit("error: no CUDA device; --device cpu rehearses without one")
        folder, until = recording.create(self.output, "gpu"), time.monotonic() + 60 * self.minutes
        recording.write_config(folder, self)
        with (folder / "gpu.csv").open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(COLUMNS)
            for step, commands in steps(self, folder / "runs").items():
                for row in _side_by_side(folder, step, commands, until):
                    table.writerow(row)
                    print(", ".join(map(str, row)))
                file.flush()
        print(f"written to {folder}")
        return folder


def steps(config: GPUConfig, runs: Path) -> dict[str, list[Command]]:
    """The command lines of each step, after ``python -m``."""

    def mastery(agent: str, steps: int, *options: str) -> Command:
        length = ("--total-steps", str(max(300, int(steps * config.scale))), "--no-progress-bar", "--final-episodes", "1")
        return ("benchmarks", "mastery", "--agent", agent, *length, "--device", config.device, "--output", str(runs), *options)

    left_open = itertools.product((1e-4, 3e-4), (250, 2_500), (10, 50))  # by the paper: step size, target network's period, T
    recipes = [
        json.dumps(
            {"learning_rate": a, "target_kwargs": {"update_interval": b}, "goal_wrapper_kwargs": {"max_episode_steps": c}}
        )
        for a, b, c in left_open
    ]
    return {
        "tests": [("pytest", "-q", "-k", "cuda or gpu", "tests/sb3_manygoals")],
        "update": [("benchmarks", "speed-update", "--threads", "1", "--rounds", "3", "--output", str(runs))],
        "default": [
            mastery("default", 200_000, "--most-goals", "1000", "--eval-freq", str(max(300, int(10_000 * config.scale))))
        ],
        "recipe": [mastery("paper", 3_000_000, "--most-goals", "1000", "--agent-kwargs", each) for each in recipes],
        "mansion": [mastery("default", 2_000_000, "--map", "mansion", "--most-goals", "5000")],
    }


def _side_by_side(folder: Path, step: str, commands: list[Command], until: float) -> list[tuple[str, str, str, str]]:
    began, running = time.monotonic(), []
    for number, command in enumerate(commands):
        with (folder / f"{step}-{number}.txt").open("w", encoding="utf-8") as log:
            running.append(subprocess.Popen([sys.executable, "-m", *command], stdout=log, stderr=subprocess.STDOUT))
    rows = []
    for command, process in zip(commands, running, strict=True):
        try:
            status = f"exit {process.wait(max(0.0, until - time.monotonic()))}"
        except subprocess.TimeoutExpired:
            process.terminate()  # a run writes a checkpoint then, so that it can go on
            status = f"out of time, exit {process.wait()}"
        rows.append((step, " ".join(command), f"{time.monotonic() - began:.1f}", status))
    return rows
