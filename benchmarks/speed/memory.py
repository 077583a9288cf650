"""The memory that updates need beyond the learner at rest."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import torch as th

from benchmarks.speed.scenarios import Scenario

UPDATES = 3
"""In a measurement: while the second computes its loss, the gradients of the first are still there."""


def of_updates(scenarios: Sequence[Scenario], threads: int) -> dict[str, float]:
    """
    Measure each in a new process, spawned and not forked: a forked one could use what this one has taken and given back.

    :param scenarios: which updates
    :param threads: of torch
    :return: megabytes (10^6 bytes) that each takes more, at most, while it makes updates, by its name: on the CPU the
        process's resident memory, on CUDA that of tensors. Where the machine does not tell, or has not enough, the reason is
        printed
    """
    found = {}
    for scenario in scenarios:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            try:
                found[scenario.name] = pool.submit(_measure, scenario, threads).result() / 1e6
            except BrokenProcessPool:
                print(f"memory of {scenario.name} is not measured: its process was ended, for want of memory perhaps")
            except (MemoryError, OSError, KeyError, th.OutOfMemoryError) as error:
                print(f"memory of {scenario.name} is not measured: {error!r}")
    return found


def reset_peak(process: Path = Path("/proc/self")) -> tuple[int, int]:
    """
    Let the peak of resident memory be what is resident now.

    :param process: folder in /proc
    :return: the new peak, and what is resident, in bytes
    :raises OSError: if the machine has no such thing, or does not let us
    :raises KeyError: if it does not tell the peak
    """
    (process / "clear_refs").write_text("5", encoding="ascii")  # 5: see proc_pid_clear_refs(5)
    peak, resident = status("VmHWM", process), status("VmRSS", process)
    if peak - resident > 4e6:  # the kernel counts in batches, so that the two may differ by a little
        raise OSError(f"{process / 'clear_refs'} does not reset the peak")
    return peak, resident


def status(name: str, process: Path = Path("/proc/self")) -> int:
    """
    :param name: VmHWM, the peak of resident memory, or VmRSS, what is resident now
    :param process: folder in /proc
    :return: bytes
    :raises OSError: if the machine has no such folder
    :raises KeyError: if it does not tell that
    """
    lines = (process / "status").read_text(encoding="utf-8").splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return 1_024 * int(fields[name].split()[0])


def _measure(scenario: Scenario, threads: int) -> int:
    if scenario.device == "cpu":
        reset_peak()  # before anything takes time
    th.set_num_threads(threads)
    update = scenario.update()
    # At rest: libraries are loaded, the optimizer has its moments, and there are no gradients.
    update.make(2, 2)
    update.model.policy.optimizer.zero_grad()
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc, which keeps what was freed: updates would use it
        if trim is not None:
            trim(0)
    update.wait()
    device = update.model.device
    if device.type == "cuda":
        th.cuda.reset_peak_memory_stats(device)
    at_rest = th.cuda.memory_allocated(device) if device.type == "cuda" else reset_peak()[1]
    for _ in range(UPDATES):
        update.make(*update.size)
    update.wait()
    return (th.cuda.max_memory_allocated(device) if device.type == "cuda" else status("VmHWM")) - at_rest
