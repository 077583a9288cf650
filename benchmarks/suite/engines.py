"""Where attempts at runs are made: in this process, in processes of this machine, on a Ray cluster."""

from __future__ import annotations

import math
import sys
import threading
import traceback
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Literal, Protocol

from benchmarks.suite.attempt import BUSY, Busy, Stopped, attempt, in_child
from benchmarks.suite.spec import Spec

EngineName = Literal["in-process", "processes", "ray"]


class Engine(Protocol):
    """
    Somewhere to make attempts.

    :ivar workers: how many at a time
    """

    workers: int

    def submit(self, spec: Spec, folder: Path) -> Future[int]:
        """
        :param spec: a run
        :param folder: its own
        :return: the exit status to be, as of :func:`~benchmarks.suite.attempt.in_child`; an exception where a worker is lost
        """

    def stop(self) -> None:
        """Tell all attempts to end, so that they can be gone on with, and wait until they have."""

    def close(self) -> None:
        """Let go of what the engine holds, where no attempt is running."""


class InProcess:
    """
    One after the other, in this process: nothing is between a debugger and the run.

    :param threads: of torch
    """

    def __init__(self, threads: int = 1) -> None:
        self.workers = 1
        self._threads = threads

    def submit(self, spec: Spec, folder: Path) -> Future[int]:
        """See :class:`Engine`; it has come to an end when this returns."""
        future: Future[int] = Future()
        try:
            attempt(spec, folder, self._threads)
            status = 0
        except Busy as busy:
            print(busy, file=sys.stderr)
            status = BUSY
        except Stopped:
            raise
        except (Exception, SystemExit):
            traceback.print_exc()
            with (folder / "log.txt").open("a", encoding="utf-8") as log:
                traceback.print_exc(file=log)
            status = 1
        future.set_result(status)
        return future

    def stop(self) -> None:
        """See :class:`Engine`: nothing runs where this can be called."""

    def close(self) -> None:
        """See :class:`Engine`."""


class Processes:
    """
    Each in a process of its own on this machine.

    :param workers: how many at a time
    :param threads: of torch in each
    """

    def __init__(self, workers: int, threads: int = 1) -> None:
        self.workers = workers
        self._threads = threads
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(workers)  # whose threads do nothing but wait for a child

    def submit(self, spec: Spec, folder: Path) -> Future[int]:
        """See :class:`Engine`."""
        return self._pool.submit(in_child, spec, folder, self._threads, stop=self._stop)

    def stop(self) -> None:
        """See :class:`Engine`."""
        self._stop.set()
        self._pool.shutdown(cancel_futures=True)

    def close(self) -> None:
        """See :class:`Engine`."""
        self._pool.shutdown()


class Ray:
    """
    Each a task on a Ray cluster, in a process of its own besides, as Ray's are used for one task after the other. The folder
    of all runs must be on a disk that all nodes share, and the code where it is here. A task whose node or process is lost
    is not repeated by Ray, but submitted again as any other attempt that failed; what it had started ends when it is lost.

    :param address: of a cluster; None starts one on this machine, for as long as the engine lives
    :param workers: how many at a time
    :param cpus: cores that each is given
    :param gpus: GPUs that each is given; parts of one are possible, and memory is then not divided by anyone
    :param threads: of torch in each
    """

    def __init__(self, address: str | None, workers: int, cpus: float = 1.0, gpus: float = 0.0, threads: int = 1) -> None:
        try:
            import ray
        except ImportError as error:
            raise ImportError(f"the engine ray needs Ray, which the extra 'ray' brings: {error}") from error
        self.workers = workers
        self._threads = threads
        self._ray: Any = ray
        here = {"num_cpus": max(1, math.ceil(workers * cpus)), "include_dashboard": False} if address is None else {}
        ray.init(address=address or "local", log_to_driver=False, **here)
        self._task: Any = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0, max_calls=1)(in_child)
        self._running: dict[Future[int], Any] = {}

    def submit(self, spec: Spec, folder: Path) -> Future[int]:
        """See :class:`Engine`."""
        reference = self._task.remote(spec, folder.absolute(), self._threads)
        future: Future[int] = reference.future()
        self._running[future] = reference
        future.add_done_callback(self._running.pop)
        return future

    def stop(self) -> None:
        """See :class:`Engine`."""
        running = dict(self._running)
        for reference in running.values():
            self._ray.cancel(reference, force=False)  # raises KeyboardInterrupt where the task waits for its child
        wait(running)
        self._ray.shutdown()

    def close(self) -> None:
        """See :class:`Engine`."""
        self._ray.shutdown()
