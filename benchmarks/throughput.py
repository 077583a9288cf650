"""What updates cost: ours, the same loss tiled, what a user would run instead, and the floor below which none can come."""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm

from benchmarks import floor, plotting, rounds, run_folder, updates
from benchmarks.rounds import Contender, Figure
from benchmarks.updates import Update

SCALED_TRANSITIONS = 64
SCALED_GOALS = (64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class ThroughputConfig:
    """Time updates at the paper's network, ours and others, and whole training, each in turn in every round."""

    rounds: int = 7
    """Times that each contender is measured; medians are reported, of ratios those of the ratios within a round."""
    seconds: float = 0.5
    """How long each measurement of an update takes, at least."""
    training_steps: int = 300
    """Environment steps in each measurement of whole training."""
    threads: tuple[int, ...] = (1, os.cpu_count() or 1)
    """Numbers of torch threads to measure with, one after the other."""
    output: Path = Path("runs")
    """Folder in which the run's own folder is made."""

    def run(self) -> Path:
        """:return: the run's folder"""
        return run(self)


FIGURES = (
    Figure("updates/s: pairwise / tiled, 32 x 16", "pairwise 32 x 16", "tiled 32 x 16", ">=", 10.0),
    Figure("updates/s: pairwise / tiled, 128 x 128", "pairwise 128 x 128", "tiled 128 x 128", ">=", 30.0),
    Figure("share of the floor's speed, 32 x 16", "pairwise 32 x 16", "floor 32 x 16", ">=", 0.6),
    Figure("share of the floor's speed, 128 x 128", "pairwise 128 x 128", "floor 128 x 128", ">=", 0.6),
    Figure("updates/s: pairwise 32 x 16 / SB3 DQN + HER, 512 pairs each", "pairwise 32 x 16", "SB3 DQN + HER, 512", ">=", 8.0),
    Figure(
        "updates/s: pairwise 128 x 128 / SB3 DQN + HER, 16,384 pairs each",
        "pairwise 128 x 128",
        "SB3 DQN + HER, 16384",
        ">=",
        20.0,
    ),
    Figure("updates/s: pairwise 32 x 16 / SB3 DQN of one goal, 32", "pairwise 32 x 16", "SB3 DQN, one goal, 32"),
    Figure("time: an environment step of training / the bare update", "pairwise 32 x 16", "training, ours", "<=", 1.25),
    Figure("time: an environment step of training / SB3 DQN's", "training, SB3", "training, ours", "<=", 1.0),
)


def run(config: ThroughputConfig) -> Path:
    """
    Measure, print, and write ``throughput.csv``, ``scaling.csv``, ``scaling.png`` and ``config.json``.

    :param config: what to run
    :return: the folder
    """
    folder = run_folder.create(config.output, "throughput")
    run_folder.write_config(folder, config)
    for threads in dict.fromkeys(config.threads):
        th.set_num_threads(threads)
        contenders, pairs = _contenders(config)
        measured = rounds.measure(contenders, config.rounds)
        rounds.write(folder / f"throughput-{threads}-threads.csv", contenders, measured)
        print(f"\n{threads} thread(s)")
        rounds.show(contenders, FIGURES, measured)
        for name, count in pairs.items():
            print(f"  {name:32} {np.median(measured[name]) * count:14,.0f} goal updates/s")
    th.set_num_threads(1)
    scaling(config, folder)
    print(f"written to {folder}")
    return folder


def _contenders(config: ThroughputConfig) -> tuple[list[Contender], dict[str, int]]:
    paper, batch = updates.learner(32, 16), updates.learner(128, 128, "batch")
    everything = updates.learner(32, 5_728)
    measured: list[Update] = [
        updates.ours(paper),
        updates.tiled(paper),
        updates.ours(batch),
        updates.tiled(batch),
        updates.ours(everything),
        updates.all_goals_head(paper),
        updates.sb3_dqn(32, relabel=False),
        updates.sb3_dqn(512, relabel=True),
        updates.sb3_dqn(16_384, relabel=True),
    ]
    contenders = [
        Contender(update.name, update.name, "updates/s", lambda update=update: update.speed(config.seconds))  # type: ignore[misc]
        for update in measured
    ]
    for model, shared in ((paper, 0), (batch, 128)):
        size = (model.batch_size, model.goal_batch_size)
        least = floor.work(model, *size, n_shared=shared)
        name = f"floor {size[0]} x {size[1]}"
        contenders.append(Contender(name, name, "updates/s", lambda least=least: 1 / floor.seconds(least)))  # type: ignore[misc]
    training = updates.learner(32, 16, n_envs=1)
    training.learning_starts = 0
    contenders.append(Contender("training, ours", "training, ours", "steps/s", _training(training, config.training_steps)))
    peer = updates.sb3_learner(32, relabel=False)
    peer.learning_starts = 0
    contenders.append(Contender("training, SB3", "training, SB3", "steps/s", _training(peer, config.training_steps)))
    return contenders, {update.name: update.pairs for update in measured}


def _training(model: BaseAlgorithm, steps: int) -> Callable[[], float]:
    def measure() -> float:
        begin = time.perf_counter()
        model.learn(steps, reset_num_timesteps=False)
        return steps / (time.perf_counter() - begin)

    return measure


def scaling(config: ThroughputConfig, folder: Path) -> None:
    """
    How the time of an update grows with its goals: write ``scaling.csv`` and ``scaling.png``, and print.

    :param config: what to run
    :param folder: of the run
    """
    measured = [updates.ours(updates.learner(SCALED_TRANSITIONS, goals)) for goals in SCALED_GOALS]
    contenders = [
        Contender(update.name, update.name, "updates/s", lambda update=update: update.speed(config.seconds))  # type: ignore[misc]
        for update in measured
    ]
    speeds = rounds.measure(contenders, config.rounds)
    milliseconds = [1e3 / float(np.median(speeds[update.name])) for update in measured]
    with (folder / "scaling.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["transitions", "goals", "milliseconds"])
        writer.writerows(
            [SCALED_TRANSITIONS, goals, f"{time_:.3f}"] for goals, time_ in zip(SCALED_GOALS, milliseconds, strict=True)
        )
    plotting.scaling(folder / "scaling.csv", folder / "scaling.png")
    rows = SCALED_TRANSITIONS + np.array(SCALED_GOALS)
    slope, offset = np.polyfit(rows, milliseconds, 1)
    off = np.abs(np.array(milliseconds) / (offset + slope * rows) - 1).max()
    span = f"{SCALED_GOALS[0]} to {SCALED_GOALS[-1]} goals"
    print(f"time of {SCALED_TRANSITIONS} x {span}: at most {off:.0%} off a line in S + G")
