"""Engines, which make attempts at runs: in this process, in processes of this machine, on a Ray cluster."""

from __future__ import annotations

import math
import signal
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from benchmarks.suite.attempt import SIGNALS, attempted, in_child
from benchmarks.suite.spec import Spec


class InProcess:
    """One run after the other in this process, for debuggers. Also the interface of all engines."""

    workers = 1
    """Runs at a time."""

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads

    def submit(self, spec: Spec, folder: Path) -> Future[int]:
        """Make an attempt. To come is the exit status of :func:`~.attempt.in_child`, or an exception if a worker is lost."""
        future: Future[int] = Future()
        with (folder / "log.txt").open("a", encoding="utf-8") as log:
            future.set_result(attempted(spec, folder, self._threads, log=log))
        return future

    def stop(self) -> None:
        """Tell all attempts to end, so that they can be resumed."""

    def close(self) -> None:
        """Wait for all attempts, and release what the engine holds."""


class Processes(InProcess):
    """Each run in a child process on this machine."""

    def __init__(self, workers: int, threads: int = 1) -> None:
        super().__init__(threads)
        self.workers = workers
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(workers)  # the threads only wait for a child

    def submit(self, spec: Spec, folder: Path) -> Future[int]:
        return self._pool.submit(in_child, spec, folder, self._threads, stop=self._stop)

    def stop(self) -> None:
        self._stop.set()

    def close(self) -> None:
        self._pool.shutdown()


class Ray(InProcess):
    """
    Each run a task on a Ray cluster, in a child of the task's process, which Ray uses again. All nodes must share the disk
    with the runs, and have the code at the same path. Ray does not repeat a task whose node or process is lost; the suite
    submits it again like any attempt that failed. Without an address a cluster is started on this machine.
    """

    def __init__(
        self,
        address: str | None,
        workers: int,
        cpus: float = 1.0,
        gpus: float = 0.0,
        threads: int = 1,
    ) -> None:
        try:
            import ray
        except ImportError as error:
            raise ImportError(
                f"the engine ray needs Ray, which the extra 'ray' brings: {error}"
            ) from error
        super().__init__(threads)
        self.workers = workers
        self._ray: Any = ray
        here = (
            {"num_cpus": max(1, math.ceil(workers * cpus)), "include_dashboard": False}
            if address is None
            else {}
        )
        # Ray takes SIGTERM for its own, and would end this process without a word to the suite.
        handlers = {number: signal.getsignal(number) for number in SIGNALS}
        ray.init(address=address or "local", log_to_driver=False, **here)
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._task: Any = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0, max_calls=1)(
            in_child
        )
        self._running: dict[Future[int], Any] = {}

    def submit(self, spec: Spec, folder: Path) -> Future[int]:
        reference = self._task.remote(spec, folder.absolute(), self._threads)
        future: Future[int] = reference.future()
        self._running[future] = reference
        future.add_done_callback(self._running.pop)
        return future

    def stop(self) -> None:
        running = dict(self._running)
        for reference in running.values():
            self._ray.cancel(
                reference, force=False
            )  # raises KeyboardInterrupt where the task waits for its child
        wait(running)

    def close(self) -> None:
        self._ray.shutdown()
