"""
What a GPU is worth, within a number of minutes.

The steps are the CUDA tests, measurements of speed, the default beside a CPU, and long runs: the
paper's recipe and a large map.
"""

from __future__ import annotations

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
from benchmarks.suite.attempt import obeying_signals
from benchmarks.suite.spec import write_whole
from benchmarks.worlds import SettingError

Command = tuple[str, ...]

GRACE = 20.0
"""Seconds that a step told to end has to write its checkpoint."""
_POLL_S = 0.05
"""Seconds between two looks whether processes have ended."""


@dataclass(frozen=True)
class GPUConfig:
    """
    Carry out the steps in order of worth, the runs of a step side by side.

    Each run goes on until it ends or the minutes are over. If this process is told to end (SIGTERM,
    SIGINT), all runs are, and it waits for them.
    """

    minutes: float = 30.0
    """Minutes for all steps; what still runs then is told to end, and killed 20 seconds later."""
    device: str = "cuda"
    """Where the networks live; cpu for a rehearsal."""
    scale: float = 1.0
    """Factor of the number of training steps; small for a rehearsal."""
    output: Path = Path("runs")
    """Folder in which the folder of this call is made."""

    def run(self) -> Path:
        """
        Carry out all steps.

        What each command prints is written to a text file, how it ended to ``gpu.csv``, its run
        to ``runs/``.

        :return: the folder of this call
        :raises SettingError: if minutes or scale are not positive
        """
        if self.minutes <= 0 or self.scale <= 0:
            raise SettingError(
                f"minutes and scale must be positive, got {self.minutes} and {self.scale}"
            )
        if self.device == "cuda" and not th.cuda.is_available():
            sys.exit("error: no CUDA device; --device cpu rehearses without one")
        folder = recording.create(self.output, "gpu")
        until = time.monotonic() + 60 * self.minutes
        recording.write_config(folder, self)
        rows: list[dict[str, str]] = []
        with obeying_signals():
            for step, commands in steps(self, folder / "runs").items():
                try:
                    _side_by_side(folder, step, commands, until, rows)
                finally:
                    write_whole(folder / "gpu.csv", pd.DataFrame(rows).to_csv(index=False))
        print(f"written to {folder}")
        return folder


def steps(config: GPUConfig, runs: Path) -> dict[str, list[Command]]:
    """
    Return the command lines of each step.

    :param config: settings
    :param runs: the folder to which runs are written
    :return: for each step its commands, without ``python -m``
    """

    def mastery(agent: str, steps: int, *options: str, device: str = config.device) -> Command:
        length = str(max(300, int(steps * config.scale)))
        command = ["benchmarks", "mastery", "--agent", agent, "--total-steps", length]
        command += ["--no-progress-bar", "--final-episodes", "1", "--device", device]
        return (*command, "--output", str(runs), *options)

    # The paper leaves open the step size, the target network's period, and T.
    left_open = itertools.product((1e-4, 3e-4), (250, 2_500), (10, 50))
    arguments = (
        {
            "learning_rate": learning_rate,
            "target_update_interval": target_update_interval,
            "goal_wrapper_kwargs": {"max_episode_steps": max_episode_steps},
        }
        for learning_rate, target_update_interval, max_episode_steps in left_open
    )
    few = ("--most-goals", "1000")
    curve = ("--eval-freq", str(max(300, int(10_000 * config.scale))))
    mansion = ("--map", "mansion", "--most-goals", "300", "--eval-steps", "400")
    return {
        "tests": [("pytest", "-q", "-k", "cuda or gpu", "tests/sb3_manygoals")],
        "update": [
            ("benchmarks", "speed-update", "--threads", "1", "--rounds", "3", "--output", str(runs))
        ],
        "default": [
            mastery("default", 200_000, *few, *curve, device=device)
            for device in (config.device, "cpu")
        ],
        # These runs are side by side, since whichever came first would take all the time.
        "long": [
            mastery("default", 16_000_000, *mansion),
            *(
                mastery("paper", 3_000_000, *few, "--agent-kwargs", json.dumps(each))
                for each in arguments
            ),
        ],
    }


def _side_by_side(
    folder: Path, step: str, commands: list[Command], until: float, rows: list[dict[str, str]]
) -> None:
    """Run the commands of a step at once; append a row for each of them."""
    began = time.monotonic()
    running: list[subprocess.Popen[bytes]] = []
    ends: list[tuple[float, str]] = []
    try:
        for number, command in enumerate(commands if began < until else []):
            with (folder / f"{step}-{number}.txt").open("w", encoding="utf-8") as log:
                running.append(
                    subprocess.Popen(
                        [sys.executable, "-m", *command],
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        # In its own session Ctrl-C does not reach it before this process.
                        start_new_session=True,
                    )
                )
        ends = _wait(running, until, "out of time")
    except BaseException:
        # Without this, the commands would outlive this process.
        ends = _wait(running, time.monotonic(), "stopped")
        raise
    finally:
        # Commands that were not begun have no end.
        not_begun = [(time.monotonic(), "no time left")] * (len(commands) - len(ends))
        for command, (end, how) in zip(commands, [*ends, *not_begun], strict=True):
            rows.append(
                {
                    "step": step,
                    "command": " ".join(command),
                    "seconds": f"{end - began:.1f}",
                    "status": how,
                }
            )
            print(", ".join(rows[-1].values()))


def _wait(
    running: list[subprocess.Popen[bytes]], until: float, why: str
) -> list[tuple[float, str]]:
    """
    Wait for processes, and end those that run when the time is over; say why they were ended.

    Return when each of them ended, and how.
    """
    ends: dict[int, tuple[float, str]] = {}
    late = ""
    while len(ends) < len(running):
        now = time.monotonic()
        for number, process in enumerate(running):
            if number not in ends and process.poll() is not None:
                ends[number] = (now, f"{late}exit {process.returncode}")
        left = [process for number, process in enumerate(running) if number not in ends]
        if now >= until + GRACE:
            for process in left:
                process.kill()
        elif now >= until and not late:
            late = f"{why}, "
            for process in left:
                # A run writes a checkpoint when it is told to end, and can go on later.
                process.terminate()
        elif left:
            time.sleep(_POLL_S)
    return [ends[number] for number in range(len(running))]
