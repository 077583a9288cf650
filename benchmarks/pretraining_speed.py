"""What a step of pre-training costs beside one of A2C, and the memory that it takes."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import torch as th
from rich.console import Console
from rich.table import Table
from stable_baselines3 import A2C
from stable_baselines3.common.utils import ConstantSchedule

from benchmarks import peak_memory, rounds, run_folder
from benchmarks.auxiliary_presets import N_ENVS
from benchmarks.pretraining import PACKAGES, Agent, PretrainingConfig, make_a2c, make_learner
from benchmarks.rounds import Contender, Figure
from sb3_manygoals import ManyGoalsDQN
from sb3_manygoals.pretraining import RewardPredictor

LEARNERS: tuple[Agent, ...] = tuple(agent for agent in get_args(Agent) if agent != "none")

FIGURES = (
    Figure("time of a step: pre-training by many goals / A2C", "a2c", "many_goals"),
    Figure("time of a step: pre-training by reward prediction / A2C", "a2c", "reward_prediction"),
    Figure("time of a step of pre-training: many goals / reward prediction", "reward_prediction", "many_goals"),
)
"""Ratios of steps a second, the second over the first."""

MEMORY = ["agent", "game", "transitions", "frames", "frame_bytes", "times_smaller", "resident_bytes"]
"""
Columns of ``memory.csv``: what the frames of the replay memory take, how many times that all stacks of s and s' would, and by
how much the process grew, at most, from before the learner was made until it had made updates with a full memory.
"""


@dataclass(frozen=True)
class PretrainingSpeedConfig:
    """Time pre-training, by many goals and by reward prediction, and A2C, in turn; measure the memory of pre-training."""

    rounds: int = 7
    """Times that each contender is measured; medians are reported, of ratios those of the ratios within a round."""
    game: str = "Breakout"
    """Which game."""
    transitions: int = PretrainingConfig.buffer_size
    """In the replay memory, which is full when anything is measured."""
    pretraining_steps: int = 200
    """Steps in each measurement of pre-training, each with an update. About half of the actions are random then, as they are
    on average over the paper's million steps."""
    a2c_steps: int = 4_000
    """Steps in each measurement of A2C, all copies' together."""
    n_envs: int = N_ENVS
    """Copies of the game in which A2C acts at once."""
    threads: tuple[int, ...] = tuple(dict.fromkeys((1, os.cpu_count() or 1)))
    """Numbers of torch threads to measure with, one after the other."""
    output: Path = Path("runs")
    """Folder in which the run's own folder is made."""

    def __post_init__(self) -> None:
        for name in ("rounds", "transitions", "pretraining_steps", "a2c_steps", "n_envs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    def of(self, agent: Agent) -> PretrainingConfig:
        """
        :param agent: which
        :return: its settings: nothing is learned until the memory is full
        """
        full = self.transitions
        return PretrainingConfig(
            agent=agent,
            game=self.game,
            n_envs=self.n_envs,
            buffer_size=full,
            learning_starts=full,
            pretrain_steps=2 * full,
            steps=4 * full,
        )

    def run(self) -> Path:
        """:return: the run's folder"""
        return run(self)


def run(config: PretrainingSpeedConfig) -> Path:
    """
    Measure, print, and write ``pretraining-<n>-threads.csv``, ``memory.csv`` and ``config.json``.

    :param config: what to run
    :return: the folder
    """
    folder = run_folder.create(config.output, "pretraining-speed")
    record = run_folder.write_config(folder, config, (*run_folder.PACKAGES, *PACKAGES["atari"]))
    print(", ".join([record["machine"]["processor"], *(f"{name} {version}" for name, version in record["versions"].items())]))
    rows = [peak_memory.in_a_new_process(memory, config.of(agent)) for agent in LEARNERS]
    write_memory(folder / "memory.csv", rows)
    a2c, learners = make_a2c(config.of("none")), {agent: make_learner(config.of(agent)) for agent in LEARNERS}
    try:
        for learner in learners.values():
            fill(learner)
        entrants = contenders(config, a2c, learners)
        for threads in config.threads:
            th.set_num_threads(threads)
            measured = rounds.measure(entrants, config.rounds)
            rounds.write(folder / f"pretraining-{threads}-threads.csv", entrants, measured)
            print(f"\n{config.game}, {threads} torch thread(s)")
            rounds.show(entrants, FIGURES, measured)
    finally:
        for model in (a2c, *learners.values()):
            assert model.env is not None
            model.env.close()
    show_memory(rows)
    print(f"written to {folder}")
    return folder


def fill(learner: ManyGoalsDQN | RewardPredictor) -> None:
    """:param learner: whose replay memory to fill, without an update; it acts as half way through its training"""
    if isinstance(learner, ManyGoalsDQN):
        half_way = (learner.exploration_initial_eps + learner.exploration_final_eps) / 2
        learner.exploration_schedule = ConstantSchedule(half_way)
    learner.learn(learner.buffer_size)


def contenders(
    config: PretrainingSpeedConfig, a2c: A2C, learners: dict[Agent, ManyGoalsDQN | RewardPredictor]
) -> list[Contender]:
    """
    :param config: what to run
    :param a2c: from scratch
    :param learners: by how they pre-train
    :return: the training of each
    """
    found = [Contender("a2c", "A2C", "steps/s", rounds.training(a2c, config.a2c_steps))]
    for agent, learner in learners.items():
        title = f"pre-training by {agent.replace('_', ' ')}"
        found.append(Contender(agent, title, "steps/s", rounds.training(learner, config.pretraining_steps)))
    return found


def memory(config: PretrainingConfig) -> dict[str, str | float]:
    """
    Fill a replay memory and make updates, in a process that does nothing else.

    :param config: what to run
    :return: a row of ``memory.csv``; without ``resident_bytes`` where the machine does not tell
    """
    th.set_num_threads(1)
    reason = peak_memory.why_not()
    before = 0 if reason is not None else peak_memory.reset_peak()[1]
    learner = make_learner(config)
    fill(learner)
    learner.learn(peak_memory.UPDATES, reset_num_timesteps=False)
    resident = None if reason is not None else peak_memory.status("VmHWM") - before
    assert learner.env is not None
    learner.env.close()
    replay = learner.replay_buffer
    frames = replay.memory  # type: ignore[union-attr]
    whole = 2 * config.buffer_size * int(np.prod(frames.stacks.shape)) * frames.frames.dtype.itemsize
    row: dict[str, str | float] = {
        "agent": config.agent,
        "game": config.game,
        "transitions": replay.size(),
        "frames": frames.n_frames,
        "frame_bytes": frames.frames.nbytes,
        "times_smaller": round(whole / frames.frames.nbytes, 2),
    }
    if resident is None:
        print(f"the memory of the process is not measured: {reason}")
        return row
    return row | {"resident_bytes": resident}


def write_memory(path: Path, rows: Sequence[dict[str, str | float]]) -> None:
    """
    :param path: the CSV to write
    :param rows: of :func:`memory`
    """
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, MEMORY, restval="")
        writer.writeheader()
        writer.writerows(rows)


def show_memory(rows: Sequence[dict[str, str | float]]) -> None:
    """:param rows: of :func:`memory`, to print"""
    table = Table("pre-training by", "transitions", "frames", "their MB", "times smaller than all stacks", "MB in all")
    for row in rows:
        table.add_row(
            str(row["agent"]).replace("_", " "),
            f"{row['transitions']:,}",
            f"{row['frames']:,}",
            f"{float(row['frame_bytes']) / 1e6:.1f}",
            f"{row['times_smaller']}",
            f"{float(row['resident_bytes']) / 1e6:.0f}" if "resident_bytes" in row else "",
        )
    Console(width=127, markup=False).print(table)
