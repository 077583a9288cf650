"""What each change that was made for speed gives: an update as it is, and with each of them undone by itself."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch as th
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike

from benchmarks import rounds, run_folder
from benchmarks.cases import Case
from benchmarks.rounds import Contender, Figure
from sb3_manygoals import ManyGoalsDQN, linear
from sb3_manygoals.many_goals_dqn import many_goals_dqn
from sb3_manygoals.networks import PaddedCNN
from sb3_manygoals.optim import ForeachRMSprop

CASES = (
    Case("pairwise", 32, 16),
    Case("pairwise", 128, 128, "batch"),
    Case("pairwise", 80, 16, "batch", world="frames"),
)
AS_IT_IS = "as it is"


@dataclass(frozen=True)
class ChangesConfig:
    """Time an update of ManyGoalsDQN with each change undone that was made to make it fast, in turn."""

    rounds: int = 5
    """Times that each is measured; medians are reported, of ratios those of the ratios within a round."""
    seconds: float = 1.0
    """How long each measurement takes, at least."""
    threads: int = 1
    """Torch threads."""
    output: Path = Path("runs")
    """Folder in which the run's own folder is made."""

    def run(self) -> Path:
        """:return: the run's folder"""
        return run(self)


def give_memory_back() -> None:
    """What an update frees may go back to the operating system."""
    many_goals_dqn.keep_freed_memory = lambda: None  # type: ignore[attr-defined]


def multiply_by_mkl() -> None:
    """All products are PyTorch's own."""
    linear.BY_ONEDNN = False


def share_no_passes() -> None:
    """Goals that are next observations go through the target network once more."""
    losses = ManyGoalsDQN.goal_losses

    def unshared(self: ManyGoalsDQN, batch: Any, goals: th.Tensor, goal_ids: th.Tensor, met: Any = None) -> th.Tensor:
        return losses(self, batch, goals, goal_ids)

    ManyGoalsDQN.goal_losses = unshared  # type: ignore[method-assign]


def step_as_sb3() -> None:
    """RMSProp takes each parameter by itself."""
    ForeachRMSprop.step = RMSpropTFLike.step  # type: ignore[method-assign]


def convolve_as_they_come() -> None:
    """Pictures go through convolutions in the layout that they have."""
    PaddedCNN.forward = lambda self, observations: self.net(observations)  # type: ignore[method-assign]


UNDONE: Mapping[str, Callable[[], None]] = {
    "freed memory given back": give_memory_back,
    "products by MKL": multiply_by_mkl,
    "no shared passes": share_no_passes,
    "RMSProp as SB3's": step_as_sb3,
    "pictures in their own layout": convolve_as_they_come,
}
"""How each change is undone, for the rest of a process."""


def speed(case: Case, undone: str, seconds: float, threads: int) -> float:
    """
    :param case: which update
    :param undone: one of ``UNDONE``, or ``AS_IT_IS``
    :param seconds: to measure for, at least
    :param threads: of torch
    :return: updates a second, in a process of its own: memory that was kept once stays so
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_speed, case, undone, seconds, threads).result()


def run(config: ChangesConfig) -> Path:
    """
    Measure, print, and write ``changes.csv`` and ``config.json``.

    :param config: what to run
    :return: the folder
    """
    folder = run_folder.create(config.output, "changes")
    run_folder.write_config(folder, config)
    contenders, figures = [], []
    for case in CASES:
        whole = f"{case.name}, {AS_IT_IS}"
        for undone in (AS_IT_IS, *UNDONE):
            name = f"{case.name}, {undone}"
            measure = partial(speed, case, undone, config.seconds, config.threads)
            contenders.append(Contender(name, name, "updates/s", measure))
            if undone != AS_IT_IS:
                figures.append(Figure(f"time: {name} / {AS_IT_IS}", whole, name))
    measured = rounds.measure(contenders, config.rounds, warm_up=False)  # each is a new process, which warms up
    rounds.write(folder / "changes.csv", contenders, measured)
    rounds.show(contenders, figures, measured)
    print(f"written to {folder}")
    return folder


def _speed(case: Case, undone: str, seconds: float, threads: int) -> float:
    th.set_num_threads(threads)
    if undone != AS_IT_IS:
        UNDONE[undone]()
    update = case.update()
    update.speed(seconds / 4)  # to warm up
    return update.speed(seconds)
