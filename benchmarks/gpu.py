"""What a GPU is worth: the CUDA tests, speed, the default, the paper's recipe, a large map, within a number of minutes."""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch as th

from benchmarks import recording
from benchmarks.worlds import SettingError

Command = tuple[str, ...]

GRACE = 20.0
"""Seconds that a step told to end has to write its checkpoint."""


@dataclass(frozen=True)
class GPUConfig:
    """Carry out the steps in order of worth, the runs of a step side by side, each until it ends or the minutes are over."""

    minutes: float = 30.0
    """For all steps; what still runs then is told to end, and killed 20 seconds later."""
    device: str = "cuda"
    """Where the networks live; cpu for a rehearsal."""
    scale: float = 1.0
    """Of the steps of training; small for a rehearsal."""
    output: Path = Path("runs")
    """Folder in which that of this call is made."""

    def run(self) -> Path:
        """Write what each prints to a text file, how it ended to ``gpu.csv``, its run to ``runs/``. Returns the folder."""
        if self.minutes <= 0 or self.scale <= 0:
            raise SettingError(
                f"minutes and scale must be positive, got {self.minutes} and {self.scale}"
            )
        if self.device == "cuda" and not th.cuda.is_available():
            sys.exit("error: no CUDA device; --device cpu rehearses without one")
        folder, until = recording.create(self.output, "gpu"), time.monotonic() + 60 * self.minutes
        recording.write_config(folder, self)
        rows: list[dict[str, str]] = []
        for step, commands in steps(self, folder / "runs").items():
            rows += _side_by_side(folder, step, commands, until)
            pd.DataFrame(rows).to_csv(folder / "gpu.csv", index=False)
        print(f"written to {folder}")
        return folder


def steps(config: GPUConfig, runs: Path) -> dict[str, list[Command]]:
    """The command lines of each step, after ``python -m``."""

    def mastery(agent: str, steps: int, *options: str) -> Command:
        length = (
            "--total-steps",
            str(max(300, int(steps * config.scale))),
            "--no-progress-bar",
            "--final-episodes",
            "1",
        )
        return (
            "benchmarks",
            "mastery",
            "--agent",
            agent,
            *length,
            "--device",
            config.device,
            "--output",
            str(runs),
            *options,
        )

    left_open = itertools.product(
        (1e-4, 3e-4), (250, 2_500), (10, 50)
    )  # by the paper: step size, target network's period, T
    arguments = (
        {
            "learning_rate": a,
            "target_kwargs": {"update_interval": b},
            "goal_wrapper_kwargs": {"max_episode_steps": c},
        }
        for a, b, c in left_open
    )
    curve = ("--eval-freq", str(max(300, int(10_000 * config.scale))))
    return {
        "tests": [("pytest", "-q", "-k", "cuda or gpu", "tests/sb3_manygoals")],
        "update": [
            ("benchmarks", "speed-update", "--threads", "1", "--rounds", "3", "--output", str(runs))
        ],
        "default": [mastery("default", 200_000, "--most-goals", "1000", *curve)],
        "recipe": [
            mastery("paper", 3_000_000, "--most-goals", "1000", "--agent-kwargs", json.dumps(a))
            for a in arguments
        ],
        "mansion": [
            mastery(
                "large",
                32_250_000,
                "--map",
                "mansion",
                "--most-goals",
                "300",
                "--eval-steps",
                "400",
            )
        ],
    }


def _side_by_side(
    folder: Path, step: str, commands: list[Command], until: float
) -> list[dict[str, str]]:
    began, running, rows = time.monotonic(), [], []
    for number, command in enumerate(commands if began < until else []):
        with (folder / f"{step}-{number}.txt").open("w", encoding="utf-8") as log:
            running.append(
                subprocess.Popen(
                    [sys.executable, "-m", *command], stdout=log, stderr=subprocess.STDOUT
                )
            )
    for command, process in itertools.zip_longest(commands, running):
        how = "no time left" if process is None else _ended(process, until, running)
        rows.append(
            {
                "step": step,
                "command": " ".join(command),
                "seconds": f"{time.monotonic() - began:.1f}",
                "status": how,
            }
        )
        print(", ".join(rows[-1].values()))
    return rows


def _ended(
    process: subprocess.Popen[bytes], until: float, running: list[subprocess.Popen[bytes]]
) -> str:
    for late, last in (("", until), ("out of time, ", until + GRACE)):
        with contextlib.suppress(subprocess.TimeoutExpired):
            return f"{late}exit {process.wait(max(0.0, last - time.monotonic()))}"
        for each in running:
            each.terminate()  # a run writes a checkpoint then, so that it can go on
    process.kill()
    return f"{late}exit {process.wait()}"
