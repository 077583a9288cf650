"""What one update costs, and what the same loss would cost if every pair were a row of its own."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch as th

from benchmarks import run_folder
from benchmarks.mastery import PRESETS
from sb3_manygoals import ManyGoalsDQN
from sb3_manygoals.losses import pairwise_td_loss, pairwise_td_targets
from sb3_manygoals.many_goals_dqn import ManyGoalsSamples


@dataclass(frozen=True)
class ThroughputConfig:
    """Time one update at the paper's size (32 transitions x 16 goals, its network), pairwise and tiled, in turn."""

    rounds: int = 15
    """Times that each way is measured, one after the other; the medians are compared."""
    updates: int = 20
    """Updates in each measurement."""
    threads: int = 1
    """Torch threads."""
    output: Path = Path("runs")
    """Folder in which the run's own folder is made."""

    def run(self) -> Path:
        """:return: the run's folder"""
        return run(self)


def tiled_losses(model: ManyGoalsDQN, batch: ManyGoalsSamples, goals: th.Tensor, goal_ids: th.Tensor) -> th.Tensor:
    """
    What :meth:`ManyGoalsDQN.goal_losses` computes, the way it is mostly done: every pair a row, S x G rows in the networks.

    :param model: whose networks and settings are used
    :param batch: S transitions
    :param goals: observations, shape (G, *observation_space.shape)
    :param goal_ids: their ids, shape (G,) int64
    :return: one loss a goal, shape (G,)
    """
    n_transitions, n_goals = len(batch.actions), len(goals)
    tiled_goals = goals.repeat(n_transitions, *[1] * (goals.ndim - 1))
    with th.no_grad():
        next_q = model.q_net_target(batch.next_observations.repeat_interleave(n_goals, dim=0), tiled_goals)
    q = model.q_net(batch.observations.repeat_interleave(n_goals, dim=0), tiled_goals)
    taken = q.gather(1, batch.actions.repeat_interleave(n_goals)[:, None])
    targets = pairwise_td_targets(
        next_q.view(n_transitions, n_goals, -1),
        batch.next_ids[:, None] == goal_ids,
        batch.terminated,
        model.gamma,
        model.goal_reward,
        model.step_reward,
    )
    return pairwise_td_loss(taken.view(n_transitions, n_goals), targets)


def run(config: ThroughputConfig) -> Path:
    """
    Measure, print, and write ``throughput.csv`` and ``config.json``.

    :param config: what to run
    :return: the folder
    :raises AssertionError: if the two ways do not give the same loss
    """
    th.set_num_threads(config.threads)
    folder = run_folder.create(config.output, "throughput")
    run_folder.write_config(folder, config)
    paper = PRESETS["paper"]
    model = paper.agent.make(paper.env_id, paper.total_steps, seed=0, device="cpu")
    model.learn(model.learning_starts)  # random steps, no update yet
    batch = model.replay_buffer.sample(model.batch_size)
    goals, goal_ids = model._sample_goals(batch)
    ways = {"pairwise": model.goal_losses, "tiled": tiled_losses.__get__(model)}
    pairwise, tiled = (way(batch, goals, goal_ids) for way in ways.values())
    th.testing.assert_close(pairwise, tiled, rtol=1e-4, atol=1e-6)

    def update(way: Callable[[ManyGoalsSamples, th.Tensor, th.Tensor], th.Tensor]) -> None:
        model.policy.optimizer.zero_grad()
        way(batch, goals, goal_ids).mean().backward()  # type: ignore[no-untyped-call]
        model.policy.optimizer.step()

    milliseconds: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(config.rounds + 1):
        for name, way in ways.items():
            begin = time.perf_counter()
            for _ in range(config.updates):
                update(way)
            if round_ > 0:  # the first is for warming up
                milliseconds[name].append((time.perf_counter() - begin) / config.updates * 1e3)
    medians = {name: float(np.median(times)) for name, times in milliseconds.items()}
    ratios = np.array(milliseconds["tiled"]) / np.array(milliseconds["pairwise"])
    pairs = model.batch_size * model.goal_batch_size
    with (folder / "throughput.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["round", *(f"{name}_ms" for name in ways), "ratio"])
        for round_, row in enumerate(zip(*milliseconds.values(), ratios, strict=True)):
            writer.writerow([round_, *(f"{value:.3f}" for value in row)])
    print(f"one update of {model.batch_size} transitions x {model.goal_batch_size} goals, {config.threads} thread(s):")
    for name, median in medians.items():
        print(f"  {name:9} {median:7.2f} ms   {pairs / median * 1e3:9.0f} goal updates/s")
    print(f"  tiled / pairwise: median {np.median(ratios):.1f}, lowest {ratios.min():.1f}, highest {ratios.max():.1f}")
    print(f"written to {folder / 'throughput.csv'}")
    return folder
