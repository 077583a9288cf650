"""What updates cost: ours, the same loss tiled, what a user would run instead, and the floor below which none can come."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch as th

from benchmarks import floor, peak_memory, peers, plotting, rounds, run_folder, scaling, table, updates
from benchmarks.cases import Case
from benchmarks.floor import Work
from benchmarks.rounds import Best, Contender, Figure

CASES = (
    Case("pairwise", 32, 16),
    Case("tiled", 32, 16),
    Case("pairwise", 64, 64, "batch"),
    Case("pairwise", 128, 128, "batch"),
    Case("tiled", 128, 128, "batch"),
    Case("pairwise", 32, 5_728),
    Case("head", 32, 5_728),
    Case("SB3 DQN", 32),
    Case("SB3 DQN + HER", 32),
    Case("SB3 DQN + HER", 512),
    Case("SB3 DQN + HER", 4_096),
    Case("SB3 DQN + HER", 16_384),
    # Pre-training, and the auxiliary task beside A2C: 5 steps of each of 16 environments, their last observations the goals.
    Case("pairwise", 16, 5, world="frames"),
    Case("tiled", 16, 5, world="frames"),
    Case("pairwise", 80, 16, "batch", world="frames"),
    Case("tiled", 80, 16, "batch", world="frames"),
)
"""The updates that are measured, on the CPU."""

TRAINING = {"pairwise 32 x 16": "training, ours", "SB3 DQN, one goal, 32": "training, SB3"}
"""The whole training that is measured, by the update that it makes."""

OUR_BATCHES = Best({"pairwise 32 x 16": 32 * 16, "pairwise 64 x 64": 64 * 64, "pairwise 128 x 128": 128 * 128})
HER_BATCHES = Best({f"SB3 DQN + HER, {pairs}": pairs for pairs in (32, 512, 4_096, 16_384)})

FIGURES = (
    Figure("updates/s: pairwise / tiled, 32 x 16", "pairwise 32 x 16", "tiled 32 x 16", ">=", 10.0),
    Figure("updates/s: pairwise / tiled, 128 x 128", "pairwise 128 x 128", "tiled 128 x 128", ">=", 30.0),
    Figure("updates/s: pairwise / tiled, 16 x 5, Atari", "pairwise 16 x 5, Atari", "tiled 16 x 5, Atari"),
    Figure("updates/s: pairwise / tiled, 80 x 16, Atari", "pairwise 80 x 16, Atari", "tiled 80 x 16, Atari"),
    Figure("share of the floor's speed, 32 x 16", "pairwise 32 x 16", "floor 32 x 16", ">=", 0.6),
    Figure("share of the floor's speed, 128 x 128", "pairwise 128 x 128", "floor 128 x 128", ">=", 0.6),
    Figure("share of the floor's speed, 16 x 5, Atari", "pairwise 16 x 5, Atari", "floor 16 x 5, Atari"),
    Figure("share of the floor's speed, 80 x 16, Atari", "pairwise 80 x 16, Atari", "floor 80 x 16, Atari"),
    Figure("updates/s: pairwise 32 x 16 / SB3 DQN + HER, 512 pairs each", "pairwise 32 x 16", "SB3 DQN + HER, 512", ">=", 8.0),
    Figure("goal updates/s: pairwise / SB3 DQN + HER, each at its best batch size", OUR_BATCHES, HER_BATCHES, ">=", 20.0),
    Figure("updates/s: pairwise 32 x 16 / SB3 DQN of one goal, 32", "pairwise 32 x 16", "SB3 DQN, one goal, 32"),
    Figure("time: an environment step of training / the bare update", "pairwise 32 x 16", "training, ours", "<=", 1.25),
    Figure("time: an environment step of training / SB3 DQN's", "training, SB3", "training, ours", "<=", 1.0),
)


@dataclass(frozen=True)
class ThroughputConfig:
    """Time updates at the paper's networks, ours and others, and whole training, in turn in every round; measure memory."""

    rounds: int = 7
    """Times that each contender is measured; medians are reported, of ratios those of the ratios within a round."""
    seconds: float = 0.5
    """How long each measurement of an update takes, at least."""
    training_steps: int = 300
    """Environment steps in each measurement of whole training."""
    threads: tuple[int, ...] = (1, os.cpu_count() or 1)
    """Numbers of torch threads to measure with, one after the other; the picture of the table is of the first."""
    output: Path = Path("runs")
    """Folder in which the run's own folder is made."""

    def run(self) -> Path:
        """:return: the run's folder"""
        return run(self)


def run(config: ThroughputConfig) -> Path:
    """
    Measure, print, and write ``throughput-table.csv``, ``throughput.png``, each value of each round to
    ``throughput-<n>-threads.csv``, ``scaling.csv``, ``scaling.png`` and ``config.json``.

    :param config: what to run
    :return: the folder
    """
    folder = run_folder.create(config.output, "throughput")
    machine = run_folder.write_config(folder, config)["machine"]
    cases = list(CASES)
    if th.cuda.is_available():
        cases += [replace(case, device="cuda") for case in CASES if case.kind == "pairwise"]
    else:
        print("CUDA is not measured: this machine has no such device, or torch none of its code")
    entrants = contenders(config, cases)
    found: list[table.Row] = []
    threads_each = tuple(dict.fromkeys(config.threads))
    for threads in threads_each:
        th.set_num_threads(threads)
        measured = rounds.measure(entrants, config.rounds)
        rounds.write(folder / f"throughput-{threads}-threads.csv", entrants, measured)
        print(f"\n{threads} thread(s)")
        rounds.show(entrants, FIGURES, measured)
        found += table.rows(cases, measured, peak_memory.of_updates(cases, threads), TRAINING, threads)
    table.write(folder / "throughput-table.csv", found)
    table.show(found)
    processors = machine["processor"] + (f"; {machine['gpu']}" if th.cuda.is_available() else "")
    caption = f"{processors}; torch {th.__version__}, {threads_each[0]} thread(s); medians of {config.rounds} rounds"
    plotting.throughput_table(folder / "throughput-table.csv", folder / "throughput.png", threads_each[0], caption)
    th.set_num_threads(1)
    scaling.run(folder, config.rounds, config.seconds)
    print(f"written to {folder}")
    return folder


def contenders(config: ThroughputConfig, cases: Sequence[Case]) -> list[Contender]:
    """
    :param config: what to run
    :param cases: the updates
    :return: these, a floor for each size of them, and whole training
    """
    found, floors = [], {}
    for case in cases:
        speed = case.update().speed
        found.append(Contender(case.name, case.name, "updates/s", partial(speed, config.seconds)))
        if case.floor_name is not None and case.kind == "pairwise":
            floors[case.floor_name] = case.floor()
    found += [Contender(name, name, "updates/s", partial(_floor_speed, work)) for name, work in floors.items()]
    training = updates.learner(32, 16, n_envs=1)
    peer = peers.sb3_learner(32, relabel=False)
    for name, model in (("training, ours", training), ("training, SB3", peer)):
        model.learning_starts = 0
        found.append(Contender(name, name, "steps/s", rounds.training(model, config.training_steps)))
    return found


def _floor_speed(work: Work) -> float:
    return 1 / floor.seconds(work)
