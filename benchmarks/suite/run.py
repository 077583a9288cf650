"""A suite carried out: options, engine, repetition of failed runs, obedience to signals, estimates of time."""

from __future__ import annotations

import contextlib
import heapq
import signal
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

from benchmarks.suite.attempt import BUSY, SIGNALS, leave
from benchmarks.suite.engines import InProcess, Processes, Ray
from benchmarks.suite.spec import Result, Spec, pending, results, shard


@dataclass
class Outcome:
    """
    What became of the runs that had not finished.

    :ivar finished: those that have finished now
    :ivar failed: those that failed as often as they were tried, and why; another call tries them again
    :ivar busy: those that another process holds
    """

    finished: list[Spec] = field(default_factory=list)
    failed: dict[Spec, str] = field(default_factory=dict)
    busy: list[Spec] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether nothing is left to do."""
        return not self.failed and not self.busy


@dataclass(frozen=True)
class SuiteConfig:
    """Carry out the runs of a suite that have not finished. Stopped and killed runs go on; finished ones are left alone."""

    root: Path = Path("runs/suite")
    """Folder of all runs; on a cluster, on a disk that all machines share."""
    engine: Literal["in-process", "processes", "ray"] = "in-process"
    """One after the other in this process, in child processes, or on a Ray cluster."""
    workers: int = 1
    """Runs at a time."""
    retries: int = 2
    """How often a failed run is tried again in this call."""
    threads: int = 1
    """Torch threads of a run; the last bits of its results depend on them."""
    address: str | None = None
    """Of the Ray cluster; by default one is started on this machine."""
    cpus: float = 1.0
    """Cores that Ray gives to a run."""
    gpus: float = 0.0
    """GPUs that Ray gives to a run, 0.25 for a quarter of one."""
    shard: str = "1/1"
    """Only the i-th of n parts of the suite, as i/n: for machines that share nothing."""
    dry_run: bool = False
    """Only say what would be run, and how long it would take."""
    steps_per_second: dict[str, float] = field(default_factory=dict)
    """Rates by agent for --dry-run; by default those of finished runs."""
    price_per_hour: float | None = None
    """Of a worker, for --dry-run."""

    def __post_init__(self) -> None:
        for name, least in (("workers", 1), ("threads", 1), ("retries", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.engine == "in-process" and self.workers != 1:
            raise ValueError(f"workers must be 1 in-process, got {self.workers}; --engine processes has more")

    def run(self, specs: Iterable[Spec]) -> Outcome | None:
        """
        A run that fails does not stop the others. If this process is told to end (SIGTERM, SIGINT), all runs are, and it waits
        for them; another call goes on with them.

        :param specs: the suite
        :return: what became of its runs; None with ``dry_run``
        :raises ValueError: if an option is invalid
        :raises ImportError: if Ray is needed and not installed
        :raises SuiteError: if a result is damaged
        """
        suite = list(dict.fromkeys(specs))
        ours = shard(suite, self.shard)
        todo = pending(ours, self.root)
        print(f"{len(ours)} runs, {len(ours) - len(todo)} have finished, in {self.root}", flush=True)
        if self.dry_run:
            self._show(todo, estimate(todo, results(suite, self.root).values(), self.steps_per_second))
            return None
        outcome = Outcome()
        if todo:
            with _obeying_signals():
                self._drive(todo, outcome)
        for spec, why in outcome.failed.items():
            print(f"failed: {spec.name}: {why}", flush=True)
        if outcome.busy:
            print(f"{len(outcome.busy)} runs are in the hands of other processes; call again when those have ended")
        return outcome

    def _engine(self) -> InProcess:
        if self.engine == "in-process":
            return InProcess(self.threads)
        if self.engine == "processes":
            return Processes(self.workers, self.threads)
        return Ray(self.address, self.workers, self.cpus, self.gpus, self.threads)

    def _drive(self, todo: list[Spec], outcome: Outcome) -> None:
        left, tries = deque(todo), Counter[Spec]()
        running: dict[Future[int], Spec] = {}
        engine = self._engine()
        try:
            while left or running:
                while left and len(running) < engine.workers:
                    spec = left.popleft()
                    tries[spec] += 1
                    running[engine.submit(spec, spec.folder(self.root))] = spec
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    spec, trouble = running.pop(future), _trouble(future)
                    if trouble is None:
                        outcome.finished.append(spec)
                    elif trouble == "busy":
                        outcome.busy.append(spec)
                    elif tries[spec] <= self.retries:
                        left.appendleft(spec)
                        print(f"again: {spec.name}: {trouble}", flush=True)
                        continue
                    else:
                        outcome.failed[spec] = f"{trouble}; see {spec.folder(self.root) / 'log.txt'}"
                    ended = len(todo) - len(left) - len(running)
                    print(f"{ended}/{len(todo)} {spec.name}: {trouble or 'finished'}", flush=True)
        except BaseException:
            engine.stop()
            raise
        finally:
            engine.close()

    def _show(self, todo: list[Spec], estimates: list[Estimate]) -> None:
        for spec in todo:
            begun = " (begun)" if (spec.folder(self.root) / "attempts.jsonl").exists() else ""
            print(f"would run {spec.name}{begun}")
        table = Table("agent", "runs", "steps", "steps / s", "hours of a worker", "by")
        for each in estimates:
            rate, hours = ("?" if value is None else f"{value:,.3g}" for value in (each.rate, each.hours))
            table.add_row(each.agent, f"{each.runs}", f"{each.steps:,}", rate, hours, each.source)
        Console(width=127, markup=False).print(table)
        wall = hours_until_done(todo, estimates, self.workers)
        if wall is None:
            missing = ", ".join(each.agent for each in estimates if each.rate is None)
            print(f"no estimate: never measured: {missing}. Give --steps-per-second, or run one of them first")
            return
        work = sum(each.hours or 0.0 for each in estimates)
        price = f", at {self.price_per_hour:g} an hour {work * self.price_per_hour:,.2f}" if self.price_per_hour else ""
        print(f"{work:.3g} hours of work{price}; done after {wall:.3g} hours with {self.workers} at a time, at these rates")


def _trouble(future: Future[int]) -> str | None:
    """What went wrong, "busy", or None if the run has finished."""
    error = future.exception()
    if error is not None:
        return f"its worker was lost: {error!r}".splitlines()[0]
    status = future.result()
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return {0: None, BUSY: "busy"}.get(status, f"failed with exit status {status}")


@contextlib.contextmanager
def _obeying_signals() -> Iterator[None]:
    """Signals raise an exception; Python delivers them to the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, leave) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True)
class Estimate:
    """
    What is left to do for an agent.

    :ivar agent: its name
    :ivar runs: that have not finished
    :ivar steps: of these, from their beginning
    :ivar rate: steps/s, None if unknown
    :ivar source: of the rate
    """

    agent: str
    runs: int
    steps: int
    rate: float | None
    source: str

    @property
    def hours(self) -> float | None:
        """Of one worker, None without a rate."""
        return None if self.rate is None else self.steps / self.rate / 3600


def estimate(todo: Iterable[Spec], finished: Iterable[Result], given: Mapping[str, float]) -> list[Estimate]:
    """
    :param todo: runs that have not finished
    :param finished: results, whose steps by seconds give rates. Results of several attempts do not count: the seconds are of
        the last attempt
    :param given: rates in steps/s by agent, which come first
    :return: an estimate for each agent, in the order of ``todo``
    :raises ValueError: if a given rate is not positive
    """
    for agent, value in given.items():
        if not value > 0:
            raise ValueError(f"steps per second of {agent} must be positive, got {value}")
    whole = [result for result in finished if result.attempts == 1]
    by_agent: dict[str, list[Spec]] = {}
    for spec in todo:
        by_agent.setdefault(spec.agent, []).append(spec)
    found = []
    for agent, specs in by_agent.items():
        alike = [result for result in whole if result.spec.agent == agent]
        rate, source = given.get(agent), "given"
        if rate is None and alike:
            rate = sum(result.spec.steps for result in alike) / sum(result.seconds for result in alike)
            source = f"{len(alike)} finished runs"
        found.append(
            Estimate(agent, len(specs), sum(spec.steps for spec in specs), rate, source if rate else "never measured")
        )
    return found


def hours_until_done(todo: Iterable[Spec], estimates: Iterable[Estimate], workers: int) -> float | None:
    """
    :param todo: runs that have not finished
    :param estimates: of their agents
    :param workers: runs at a time
    :return: hours until the last has finished if each free worker takes the next run in order; None if a rate is missing.
        Rates should be of runs that shared the machine as these will
    """
    rates = {each.agent: each.rate for each in estimates}
    free_at = [0.0] * workers
    for spec in todo:
        rate = rates[spec.agent]
        if rate is None:
            return None
        heapq.heapreplace(free_at, free_at[0] + spec.steps / rate / 3600)
    return max(free_at)
