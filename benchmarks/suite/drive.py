"""A suite carried out: what has not finished is given to an engine, what failed is tried again, who tells to end is obeyed."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.suite.attempt import BUSY, SIGNALS, leave
from benchmarks.suite.engines import Engine
from benchmarks.suite.spec import Spec, pending


@dataclass
class Outcome:
    """
    What became of those that had not finished.

    :ivar finished: they have now
    :ivar failed: why, of those that failed as often as they were tried; another call tries them again
    :ivar busy: those that another process had in its hands
    """

    finished: list[Spec] = field(default_factory=list)
    failed: dict[Spec, str] = field(default_factory=dict)
    busy: list[Spec] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether nothing is left to do."""
        return not self.failed and not self.busy


def drive(specs: Iterable[Spec], root: Path, make_engine: Callable[[], Engine], retries: int = 2) -> Outcome:
    """
    Carry out what has not finished. A run that fails does not stop the others. Where the process is told to end (SIGTERM,
    SIGINT), so are all runs, and it ends when they have; another call goes on with them.

    :param specs: of a suite
    :param root: of all runs
    :param make_engine: where there is anything to do
    :param retries: how often one that failed is tried again, at once, in this call
    :return: what became of them
    :raises ValueError: if ``retries`` is negative
    :raises SuiteError: if a result is damaged
    """
    if retries < 0:
        raise ValueError(f"retries must be at least 0, got {retries}")
    outcome, left = Outcome(), deque(pending(specs, root))
    if not left:
        return outcome
    total, tries = len(left), Counter[Spec]()
    running: dict[Future[int], Spec] = {}
    engine = make_engine()
    with _handlers():
        try:
            while left or running:
                while left and len(running) < engine.workers:
                    spec = left.popleft()
                    tries[spec] += 1
                    running[engine.submit(spec, spec.folder(root))] = spec
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    spec = running.pop(future)
                    trouble = _trouble(future)
                    if trouble is None:
                        outcome.finished.append(spec)
                    elif trouble == "busy":
                        outcome.busy.append(spec)
                    elif tries[spec] <= retries:
                        left.appendleft(spec)
                        print(f"again: {spec.name}: {trouble}", flush=True)
                        continue
                    else:
                        outcome.failed[spec] = f"{trouble}; see {spec.folder(root) / 'log.txt'}"
                    ended = len(outcome.finished) + len(outcome.failed) + len(outcome.busy)
                    print(f"{ended}/{total} {spec.name}: {trouble or 'finished'}", flush=True)
        except BaseException:
            engine.stop()
            raise
    engine.close()
    return outcome


def _trouble(future: Future[int]) -> str | None:
    """What is wrong, "busy", or None if the run has finished."""
    error = future.exception()
    if error is not None:
        return f"its worker was lost: {error!r}".splitlines()[0]
    status = future.result()
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return {0: None, BUSY: "busy"}.get(status, f"failed with exit status {status}")


@contextlib.contextmanager
def _handlers() -> Iterator[None]:
    """Whoever tells this process to end raises an exception in it; only the main thread is ever told."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, leave) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
