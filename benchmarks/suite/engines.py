"""
Engines, which make attempts at runs.

They do so in this process, in processes of this machine, or on a Ray cluster.
"""

from __future__ import annotations

import math
import signal
import threading
import warnings
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from benchmarks.suite.attempt import SIGNALS, attempted, in_child
from benchmarks.suite.spec import Spec, SuiteError


class InProcess:
    """
    Makes one run after the other in this process, for debuggers.

    It is also the interface of all engines.

    :param threads: torch threads of a run
    """

    workers = 1
    """Runs at a time."""

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads

    def submit(self, spec: Spec, folder: Path) -> Future[int]:
        """
        Make an attempt.

        :param spec: the run
        :param folder: its folder
        :return: exit status of :func:`~.attempt.in_child`, or an exception if a worker is lost
        """
        future: Future[int] = Future()
        with (folder / "log.txt").open("a", encoding="utf-8") as log:
            future.set_result(attempted(spec, folder, self._threads, log=log))
        return future

    def stop(self) -> None:
        """Tell all attempts to end, so that they can be resumed."""

    def close(self) -> None:
        """Wait for all attempts, and release what the engine holds."""


class Processes(InProcess):
    """
    Makes each run in a child process on this machine.

    :param workers: runs at a time
    :param threads: torch threads of a run
    """

    def __init__(self, workers: int, threads: int = 1) -> None:
        super().__init__(threads)
        self.workers = workers
        self._stop = threading.Event()
        # The threads of the pool only wait for a child.
        self._pool = ThreadPoolExecutor(workers)

    def submit(self, spec: Spec, folder: Path) -> Future[int]:
        """
        Make an attempt, as soon as a worker is free.

        :param spec: the run
        :param folder: its folder
        :return: exit status of :func:`~.attempt.in_child`
        """
        return self._pool.submit(in_child, spec, folder, self._threads, stop=self._stop)

    def stop(self) -> None:
        """Tell all attempts to end, so that they can be resumed."""
        self._stop.set()

    def close(self) -> None:
        """Wait for all attempts, and release the threads."""
        self._pool.shutdown()


class Ray(InProcess):
    """
    Makes each run a task on a Ray cluster, in a child of the task's process, which Ray uses again.

    All nodes must share the disk with the runs, and have the code at the same path. Ray does not
    repeat a task whose node or process is lost; the suite submits it again like any attempt that
    failed.

    :param address: address of the cluster; None starts one on this machine
    :param workers: runs at a time
    :param cpus: cores of a run
    :param gpus: GPUs of a run, which may be a part of one
    :param threads: torch threads of a run
    :raises SuiteError: if Ray is not installed, or this machine has not the cores and GPUs of a run
        and no cluster is named
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
            raise SuiteError(
                f"the engine ray needs Ray, which the extra 'ray' brings: {error}"
            ) from error
        super().__init__(threads)
        self.workers = workers
        self._ray: Any = ray
        here: dict[str, Any] = {}
        if address is None:
            here["num_cpus"] = max(1, math.ceil(workers * cpus))
            here["include_dashboard"] = False
        # Ray handles SIGTERM itself, and would end this process without a word to the suite.
        handlers = {number: signal.getsignal(number) for number in SIGNALS}
        ray.init(address=address or "local", log_to_driver=False, **here)
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._check_room(cpus, gpus, may_grow=address is not None)
        remote = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0, max_calls=1)
        self._task: Any = remote(in_child)
        self._running: dict[Future[int], Any] = {}

    def _check_room(self, cpus: float, gpus: float, may_grow: bool) -> None:
        """
        Check that a node has the cores and GPUs of a run: Ray would wait for one without a word.

        :param cpus: cores of a run
        :param gpus: GPUs of a run
        :param may_grow: whether nodes can join the cluster, so that waiting makes sense
        """
        nodes = [each["Resources"] for each in self._ray.nodes() if each["Alive"]]
        room = [(each.get("CPU", 0.0), each.get("GPU", 0.0)) for each in nodes]
        if any(cores >= cpus and devices >= gpus for cores, devices in room):
            return
        found = ", ".join(f"{cores:g} and {devices:g}" for cores, devices in room)
        message = f"cpus and gpus of a run are {cpus:g} and {gpus:g}, but the nodes have {found}"
        if may_grow:
            warnings.warn(f"{message}: runs wait until a larger node joins", stacklevel=2)
        else:
            self._ray.shutdown()
            raise SuiteError(message)

    def submit(self, spec: Spec, folder: Path) -> Future[int]:
        """
        Make an attempt, as soon as the cluster has room for it.

        :param spec: the run
        :param folder: its folder
        :return: exit status of :func:`~.attempt.in_child`, or an exception if the worker is lost
        """
        reference = self._task.remote(spec, folder.absolute(), self._threads)
        future: Future[int] = reference.future()
        self._running[future] = reference
        future.add_done_callback(self._running.pop)
        return future

    def stop(self) -> None:
        """Tell all attempts to end, so that they can be resumed, and wait for them."""
        running = dict(self._running)
        for reference in running.values():
            # This raises KeyboardInterrupt where the task waits for its child.
            self._ray.cancel(reference, force=False)
        wait(running)

    def close(self) -> None:
        """Leave the cluster."""
        self._ray.shutdown()
