"""Equal mastery: how soon does a learner with an embedding of goals get there, and how soon one with a head for each goal?"""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from rich.console import Console
from rich.table import Table

from benchmarks import plotting, run_folder
from benchmarks.leo import AllGoalsDQN
from benchmarks.logs import CurveLog
from benchmarks.mastery import PRESETS, all_goals
from sb3_manygoals import ManyGoalsDQN, MasteryCallback
from sb3_manygoals.evaluation import MasteryPoint

SMALL = PRESETS["small"]
LEVELS = (0.5, 0.8, 0.9, 0.95)
"""Of mastery at epsilon, how soon each is reached."""
COLUMNS = ["learner", "seed", "step", "training_seconds", "greedy", "epsilon", "goal_updates"]
OURS, HEAD = "goal embeddings", "a head for each goal"


@dataclass(frozen=True)
class CurvesConfig:
    """Train ManyGoalsDQN and a head for each goal alike on the small map, in turn, and compare how soon they master it."""

    seeds: int = 3
    """Runs of each, with seeds from 0."""
    steps: int = SMALL.total_steps
    """Environment steps of each run of ours."""
    head_steps: int | None = None
    """The same for the head; by default as many as ours."""
    head_learning_rate: float = SMALL.agent.learning_rate
    """Step size of the head, which falls to zero as ours does; by default ours."""
    eval_freq: int = 5_000
    """Environment steps between measurements of mastery, which count for no time."""
    threads: int = 1
    """Torch threads."""
    output: Path = Path("runs")
    """Folder in which the run's own folder is made."""

    def run(self) -> Path:
        """:return: the run's folder"""
        return run(self)


def run(config: CurvesConfig) -> Path:
    """
    Train, measure, print, and write ``curves.csv``, ``curves.png`` and ``config.json``.

    :param config: what to run
    :return: the folder
    """
    th.set_num_threads(config.threads)
    folder = run_folder.create(config.output, "curves")
    run_folder.write_config(folder, config)
    curves = CurveLog(folder / "curves.csv", COLUMNS)
    for seed in range(config.seeds):
        for learner in (OURS, HEAD):
            _train(config, learner, seed, curves)
    plotting.learning_curves(folder / "curves.csv", folder / "curves.png", SMALL.eval_epsilon)
    show(folder / "curves.csv")
    print(f"written to {folder}")
    return folder


def make(config: CurvesConfig, learner: str, seed: int) -> ManyGoalsDQN:
    """
    :param config: what to run
    :param learner: ``OURS`` or ``HEAD``
    :param seed: of everything
    :return: the small preset's agent; for the head with its outputs in the place of the embeddings, else the same
    """
    if learner == OURS:
        return SMALL.agent.make(SMALL.env_id, config.steps, seed, "cpu")
    # It teaches all goals: none need be drawn.
    agent = dataclasses.replace(
        SMALL.agent, learning_rate=config.head_learning_rate, goal_batch_size=1, goal_sampling="uniform"
    )
    capacity = len(all_goals(SMALL.env_id))
    return agent.make(SMALL.env_id, config.head_steps or config.steps, seed, "cpu", n_goals=capacity, algorithm=AllGoalsDQN)


def goal_updates(model: ManyGoalsDQN) -> int:
    """
    :param model: one of the two
    :return: (transition, goal) pairs that it has been taught
    """
    if isinstance(model, AllGoalsDQN):
        return model.pairs_taught
    return model._n_updates * model.batch_size * model.goal_batch_size


def _train(config: CurvesConfig, learner: str, seed: int, curves: CurveLog) -> None:
    goals = all_goals(SMALL.env_id)
    eval_env = gym.make_vec(SMALL.env_id, num_envs=len(goals), vectorization_mode="vector_entry_point")
    model = make(config, learner, seed)

    def add(point: MasteryPoint) -> None:
        seconds = f"{point.training_seconds:.3f}"
        rates = [f"{result.rate:.4f}" for result in (point.greedy, point.epsilon)]
        curves.add([learner, seed, point.step, seconds, *rates, goal_updates(model)])

    callback = MasteryCallback(eval_env, goals, config.eval_freq, SMALL.eval_steps, SMALL.eval_epsilon, add, seed=seed)
    steps = (config.head_steps if learner == HEAD else None) or config.steps
    model.learn(steps, callback)
    print(f"{learner}, seed {seed}: {steps} steps in {callback.training_seconds:.0f} s")
    eval_env.close()
    assert model.env is not None
    model.env.close()


@dataclass(frozen=True)
class Reached:
    """
    When a run's mastery at epsilon was first measured to be some level.

    :ivar seconds: of training
    :ivar steps: in the environment
    :ivar goal_updates_per_second: on the way there
    """

    seconds: float
    steps: float
    goal_updates_per_second: float


def reached(curve: Sequence[dict[str, Any]], level: float) -> Reached | None:
    """
    :param curve: rows of ``curves.csv`` of one run, in order
    :param level: of mastery
    :return: when it was first measured at epsilon; None if it never was
    """
    for row in curve:
        if float(row["epsilon"]) >= level:
            seconds = float(row["training_seconds"])
            speed = float(row["goal_updates"]) / seconds if seconds > 0 else 0.0
            return Reached(seconds, float(row["step"]), speed)
    return None


def show(file: Path) -> None:
    """
    Print how soon each learner reached each level: medians over the seeds, where a run that never did comes last.

    :param file: ``curves.csv``
    """
    with file.open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    seeds = list(dict.fromkeys(row["seed"] for row in rows))
    printed = Table(f"mastery at epsilon {SMALL.eval_epsilon:g}", "learner", "seconds", "steps", "goal updates/s", "seeds")
    for level in LEVELS:
        for learner in (OURS, HEAD):
            runs = [[row for row in rows if (row["learner"], row["seed"]) == (learner, seed)] for seed in seeds]
            there = sorted((found for curve in runs if (found := reached(curve, level))), key=lambda each: each.seconds)
            printed.add_row(f"{level:g}", learner, *_median(there, len(seeds)), f"{len(there)} of {len(seeds)}")
    Console(width=127, markup=False).print(printed)


def _median(there: Sequence[Reached], n_runs: int) -> list[str]:
    never = [np.inf] * (n_runs - len(there))
    seconds, steps = (np.median([getattr(each, name) for each in there] + never) for name in ("seconds", "steps"))
    speed = f"{np.median([each.goal_updates_per_second for each in there]):,.0f}" if there else ""
    return [f"{seconds:,.1f}", f"{steps:,.0f}", speed] if np.isfinite(seconds) else ["not reached", "not reached", speed]
