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

PROCESS = Path("/proc/self")


class UnmeasuredError(RuntimeError):
    """Why the memory of an update could not be measured."""


def of_update(scenario: Scenario, threads: int) -> float:
    """
    Measure in a new process, spawned and not forked: a forked one could use what this one has taken and given back.

    :param scenario: which update
    :param threads: of torch
    :return: megabytes (10^6 bytes) that it takes more, at most, while it makes updates: on the CPU the process's resident
        memory, on CUDA that of tensors
    :raises UnmeasuredError: if the machine does not tell, or has not enough memory
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(_measure, scenario, threads).result() / 1e6
        except BrokenProcessPool as error:
            raise UnmeasuredError("its process was ended, for want of memory perhaps") from error
        except (MemoryError, th.OutOfMemoryError) as error:
            raise UnmeasuredError(str(error)) from error


def of_updates(scenarios: Sequence[Scenario], threads: int) -> dict[str, float]:
    """
    :param scenarios: which updates
    :param threads: of torch
    :return: what :func:`of_update` finds, by name; where it finds nothing the reason is printed
    """
    reason = why_not()
    if reason is not None:
        print(f"memory on the CPU is not measured: {reason}")
    found = {}
    for scenario in scenarios:
        if reason is None or scenario.device != "cpu":
            try:
                found[scenario.name] = of_update(scenario, threads)
            except UnmeasuredError as error:
                print(f"memory of {scenario.name} is not measured: {error}")
    return found


def why_not(process: Path = PROCESS) -> str | None:
    """
    :param process: folder in /proc
    :return: why the peak of resident memory cannot be measured on this machine; None if it can
    """
    try:
        peak, resident = reset_peak(process)
    except (OSError, KeyError, ValueError) as error:
        return f"{process} does not tell it: {error!r}"
    # The kernel counts in batches, so that the two may differ by a little.
    return None if peak - resident < 4e6 else f"{process / 'clear_refs'} does not reset the peak"


def reset_peak(process: Path = PROCESS) -> tuple[int, int]:
    """
    Let the peak of resident memory be what is resident now.

    :param process: folder in /proc
    :return: the new peak, and what is resident, in bytes
    :raises OSError: if the machine has no such thing, or does not let us
    :raises KeyError: if it does not tell the peak
    """
    (process / "clear_refs").write_text("5", encoding="ascii")  # 5: see proc_pid_clear_refs(5)
    return status("VmHWM", process), status("VmRSS", process)


def status(name: str, process: Path = PROCESS) -> int:
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
        at_rest = th.cuda.memory_allocated(device)
    else:
        reason = why_not()
        if reason is not None:
            raise UnmeasuredError(reason)
        _, at_rest = reset_peak()
    for _ in range(UPDATES):
        update.make(*update.size)
    update.wait()
    return (th.cuda.max_memory_allocated(device) if device.type == "cuda" else status("VmHWM")) - at_rest
