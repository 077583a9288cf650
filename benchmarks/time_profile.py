"""Where the time of an update goes."""

from __future__ import annotations

import csv
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import torch as th
from rich.console import Console
from rich.table import Table
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks import run_folder, updates
from sb3_manygoals import ManyGoalsDQN

SAMPLING = "sampling"
GROUPS = ("matrix products", "convolutions", "optimizer", "other small operations", SAMPLING)
BY_ONEDNN = ("mkldnn_linear", "mkldnn_linear_backward_input", "mkldnn_linear_backward_weights")
PRODUCTS = frozenset(
    f"aten::{name}" for name in ("mm", "addmm", "_addmm_activation", "bmm", "baddbmm", "mv", "addmv", *BY_ONEDNN)
)
BETWEEN = "Python between operations"
PROFILED, PLAIN = "the update, with the profiler", "the update, without it"


@dataclass(frozen=True)
class ProfileConfig:
    """Where the time of one update goes, by groups of operations."""

    transitions: int = 32
    """Of an update."""
    goals: int = 16
    """Of an update."""
    updates: int = 200
    """To profile."""
    threads: int = 1
    """Torch threads."""
    output: Path = Path("runs")
    """Folder in which the run's own folder is made."""

    def run(self) -> Path:
        """:return: the run's folder"""
        return run(self)


@dataclass(frozen=True)
class Share:
    """
    What a group of operations takes of an update.

    :ivar group: its name
    :ivar calls: operations in one update
    :ivar milliseconds: that they take of themselves, without those that they call
    """

    group: str
    calls: float
    milliseconds: float


def run(config: ProfileConfig) -> Path:
    """
    Profile, print, and write ``profile.csv`` and ``config.json``.

    :param config: what to run
    :return: the folder
    """
    th.set_num_threads(config.threads)
    folder = run_folder.create(config.output, "profile")
    run_folder.write_config(folder, config)
    model = updates.learner(config.transitions, config.goals)
    shares = measure(model, config.updates)
    whole = next(share.milliseconds for share in shares if share.group == PROFILED)
    printed = Table(f"{config.transitions} x {config.goals}", "calls", "ms an update", "share")
    with (folder / "profile.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["group", "calls", "milliseconds", "share"])
        for share in shares:
            part = "" if share.group == PLAIN else f"{share.milliseconds / whole:.3f}"
            row = [share.group, f"{share.calls:.1f}", f"{share.milliseconds:.3f}", part]
            writer.writerow(row)
            printed.add_row(*row)
    Console(width=127, markup=False).print(printed)
    print(f"written to {folder}")
    return folder


def measure(model: ManyGoalsDQN, n_updates: int) -> list[Share]:
    """
    :param model: of :func:`benchmarks.updates.learner`, on the CPU; it makes twice as many updates, and some to warm up
    :param n_updates: to profile
    :return: what each of ``GROUPS`` takes, the Python between their operations, the whole under the profiler (the sum of those
        before), which slows small operations down, and the whole without it
    """
    update = updates.ours(model)
    for _ in range(10):
        update.run()
    plain = _seconds(update.run, n_updates)
    parts = {model: "_sample_goals", model.replay_buffer: "sample"}
    for owner, name in parts.items():
        setattr(owner, name, _recorded(getattr(owner, name)))
    try:
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            profiled = _seconds(update.run, n_updates)
    finally:
        for owner, name in parts.items():
            delattr(owner, name)  # the class's own is there again
    shares = by_group(profiler.events() or [], n_updates)
    between = 1e3 * profiled / n_updates - sum(share.milliseconds for share in shares)
    return [
        *shares,
        Share(BETWEEN, 0, between),
        Share(PROFILED, 1, 1e3 * profiled / n_updates),
        Share(PLAIN, 1, 1e3 * plain / n_updates),
    ]


def by_group(events: Iterable[FunctionEvent], n_updates: int) -> list[Share]:
    """
    :param events: of the profiler
    :param n_updates: in which they came
    :return: the share of each of ``GROUPS`` in one update
    """
    calls, microseconds = defaultdict[str, int](int), defaultdict[str, float](float)
    for event in events:
        group = group_of(event)
        calls[group] += 1
        microseconds[group] += event.self_cpu_time_total
    return [Share(group, calls[group] / n_updates, microseconds[group] / n_updates / 1e3) for group in GROUPS]


def group_of(event: FunctionEvent) -> str:
    """
    :param event: of the profiler
    :return: which of ``GROUPS`` it is in: what sampling and optimizer call is theirs; what automatic differentiation does
        besides products and convolutions is a small operation
    """
    above: FunctionEvent | None = event
    while above is not None:
        if above.name == SAMPLING:
            return SAMPLING
        if above.name.startswith("Optimizer."):
            return "optimizer"
        above = above.cpu_parent
    if event.name.startswith("aten::") and "conv" in event.name:
        return "convolutions"
    return "matrix products" if event.name in PRODUCTS else "other small operations"


def _recorded(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with record_function(SAMPLING):
            return function(*args, **kwargs)

    return wrapper


def _seconds(function: Callable[[], None], times: int) -> float:
    begin = time.perf_counter()
    for _ in range(times):
        function()
    return time.perf_counter() - begin
