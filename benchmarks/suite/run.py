"""
A suite carried out.

It has options and an engine, repeats failed runs, obeys signals, and estimates times.
"""

from __future__ import annotations

import heapq
import signal
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from benchmarks.suite.attempt import BUSY, obeying_signals
from benchmarks.suite.engines import InProcess, Processes, Ray
from benchmarks.suite.spec import Result, Spec, SuiteError, check_known, read_result, results

BUSY_RUN = "another process holds it"
"""What is said of a run that another process holds."""


@dataclass(frozen=True)
class SuiteConfig:
    """
    Carry out the runs of a suite that have not finished.

    Stopped and killed runs go on; finished ones are left alone.
    """

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
    """Address of the Ray cluster; by default one is started on this machine."""
    cpus: float = 1.0
    """Cores that the engine ray gives to a run."""
    gpus: float = 0.0
    """GPUs that the engine ray gives to a run, 0.25 for a quarter of one. The studies of this
    package train on the CPU."""
    dry_run: bool = False
    """Only say what would be run, and how long it would take."""
    steps_per_second: dict[str, float] = field(default_factory=dict)
    """Rates by agent for --dry-run; by default those of finished runs, if need be of runs with
    other steps."""

    def __post_init__(self) -> None:
        for name, least in (("workers", 1), ("threads", 1), ("retries", 0)):
            if getattr(self, name) < least:
                raise SuiteError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.engine == "in-process" and self.workers != 1:
            raise SuiteError(
                f"workers must be 1 in-process, got {self.workers}; --engine processes has more"
            )
        if not self.cpus > 0 or not self.gpus >= 0:
            raise SuiteError(
                f"cpus must be positive, and gpus not negative, got {self.cpus} and {self.gpus}"
            )
        for name, default in (("address", None), ("cpus", 1.0), ("gpus", 0.0)):
            if self.engine != "ray" and getattr(self, name) != default:
                raise SuiteError(
                    f"{name} is for --engine ray, got {getattr(self, name)} with {self.engine}"
                )
        if self.steps_per_second and not self.dry_run:
            raise SuiteError("steps_per_second is for --dry-run, got it without")
        for agent, rate in self.steps_per_second.items():
            if not rate > 0:
                raise SuiteError(f"steps per second of {agent} must be positive, got {rate}")

    def carry_out(self, specs: Iterable[Spec]) -> dict[Spec, str] | None:
        """
        Carry out all runs that have not finished.

        A run that fails does not stop the others. If this process is told to end (SIGTERM, SIGINT),
        all runs are, and it waits for them. Another call goes on with what is left.

        :param specs: the runs
        :return: the runs that have not finished, and why: another process holds them, or they
            failed as often as they were tried; None with ``dry_run``
        :raises SuiteError: if ``steps_per_second`` names an agent that is not known, or a result is
            damaged
        """
        suite = list(dict.fromkeys(specs))
        given = self._given_rates(suite)
        done = results(suite, self.root)
        todo = [spec for spec in suite if spec not in done]
        print(f"{len(suite)} runs, {len(done)} have finished, in {self.root}", flush=True)
        if self.dry_run:
            self._show(todo, measured_rates(done.values()) | given, self._timed(suite))
            return None
        for spec in todo:
            # Reports read from the specs which runs were asked for.
            spec.write(self.root)
        if not todo:
            # An earlier call may have been killed before it noted its last runs.
            self._note()
            return {}
        with obeying_signals():
            lacking = self._drive(todo)
        for spec, why in lacking.items():
            print(f"not finished: {spec.name}: {why}", flush=True)
        return lacking

    def note_finished(self) -> None:
        """Note the runs that have finished; called in this process after each of them."""

    def _note(self) -> None:
        """Note the runs that have finished. If that fails, other runs go on."""
        try:
            self.note_finished()
        except OSError as error:
            print(f"not noted: {error}. The next call notes all finished runs", flush=True)

    def _given_rates(self, suite: list[Spec]) -> dict[str, float]:
        """Return the rates of the user by the names of agents in specs, and refuse other names."""
        agents = dict.fromkeys(spec.agent for spec in suite)
        check_known("agents of steps_per_second", self.steps_per_second, agents)
        return self.steps_per_second

    def _finished(self) -> list[Result]:
        """Read the results below the root. What cannot be read must not stop other runs."""
        found = []
        for path in sorted(self.root.glob("*/result.json")):
            try:
                found.append(read_result(path.parent))
            except SuiteError as error:
                print(f"left out: {error}", flush=True)
        return found

    def _timed(self, suite: list[Spec]) -> list[Result]:
        """Return finished runs of the same agents in the same games, whatever their length."""
        # Other settings may depend on the length, so they are not compared.
        kinds = {(spec.carry_out, spec.agent, spec.game) for spec in suite}
        return [
            run
            for run in self._finished()
            if (run.spec.carry_out, run.spec.agent, run.spec.game) in kinds and _seconds(run) > 0
        ]

    def _engine(self) -> InProcess:
        """Start the engine."""
        if self.engine == "in-process":
            return InProcess(self.threads)
        if self.engine == "processes":
            return Processes(self.workers, self.threads)
        return Ray(self.address, self.workers, self.cpus, self.gpus, self.threads)

    def _drive(self, todo: list[Spec]) -> dict[Spec, str]:
        """Make attempts until no run is left; return the runs that have not finished, and why."""
        left = deque(todo)
        tries = Counter[Spec]()
        lacking: dict[Spec, str] = {}
        running: dict[Future[int], Spec] = {}
        engine = self._engine()
        try:
            while left or running:
                while left and len(running) < engine.workers:
                    spec = left.popleft()
                    tries[spec] += 1
                    running[engine.submit(spec, spec.folder(self.root))] = spec
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    spec = running.pop(future)
                    trouble = _trouble(future)
                    # At a later try, it may be the remains of the try before that hold the run.
                    is_others = trouble == BUSY_RUN and tries[spec] == 1
                    if trouble is not None and not is_others and tries[spec] <= self.retries:
                        if trouble == BUSY_RUN:
                            left.append(spec)
                        else:
                            left.appendleft(spec)
                        print(f"again: {spec.name}: {trouble}", flush=True)
                        continue
                    if trouble is None:
                        self._note()
                    elif trouble == BUSY_RUN:
                        lacking[spec] = trouble
                    else:
                        log = spec.folder(self.root) / "log.txt"
                        lacking[spec] = f"{trouble}; see {log}{_last_line(log)}"
                    ended = len(todo) - len(left) - len(running)
                    print(f"{ended}/{len(todo)} {spec.name}: {trouble or 'finished'}", flush=True)
        except BaseException:
            engine.stop()
            raise
        finally:
            engine.close()
        return lacking

    def _show(self, todo: list[Spec], own: dict[str, float], others: list[Result]) -> None:
        """
        Print which runs would be carried out, and how long that would take.

        Agents without a rate of their own have the rate of other runs, and it is said of which.
        """
        rates = measured_rates(others) | own
        for spec in todo:
            begun = " (begun)" if (spec.folder(self.root) / "attempts.jsonl").exists() else ""
            print(f"would run {spec.name}{begun}")
        agents = list(dict.fromkeys(spec.agent for spec in todo))
        work = 0.0
        for agent in agents:
            steps = [spec.steps for spec in todo if spec.agent == agent]
            rate = rates.get(agent)
            known = "never measured"
            if rate:
                hours = sum(steps) / rate / 3600
                work += hours
                where = ""
                if agent not in own:
                    lengths = {run.spec.steps for run in others if run.spec.agent == agent}
                    named = " and ".join(f"{length:,}" for length in sorted(lengths))
                    where = f" in other runs, of {named} steps"
                known = f"{rate:,.3g} steps/s{where}, {hours:,.3g} hours of a worker"
            print(f"{agent}: {len(steps)} runs, {sum(steps):,} steps, {known}")
        missing = [agent for agent in agents if agent not in rates]
        if missing:
            print(
                f"no estimate: never measured: {', '.join(missing)}. "
                "Give --steps-per-second, or run one of them first, without a stop"
            )
            return
        wall = hours_until_done(todo, rates, self.workers)
        print(
            f"{work:.3g} hours of work; done after {wall:.3g} hours with {self.workers} at a time, "
            "at these rates"
        )


def _last_line(log: Path) -> str:
    """Return the last line of a log in words; nothing, if there is none."""
    if not log.is_file():
        return ""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f", which ends: {last}" if last else ""


def _trouble(future: Future[int]) -> str | None:
    """Return what went wrong, or None if the run has finished."""
    error = future.exception()
    if error is not None:
        return f"its worker was lost: {error!r}".splitlines()[0]
    status = future.result()
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return {0: None, BUSY: BUSY_RUN}.get(status, f"failed with exit status {status}")


def _seconds(result: Result) -> float:
    """Return the seconds of a run, 0 if they are not known."""
    if result.attempts > 1:
        return float(result.values.get("training_seconds") or 0.0)
    return result.seconds


def measured_rates(finished: Iterable[Result]) -> dict[str, float]:
    """
    Return the steps a second of finished runs.

    The seconds of a run of several attempts are those of its training, if it noted them, since the
    suite has only those of its last attempt. Without them the run does not count.

    :param finished: results of runs
    :return: rates by agent
    """
    steps = defaultdict[str, int](int)
    seconds = defaultdict[str, float](float)
    for result in finished:
        took = _seconds(result)
        if took > 0:
            # A run that has solved its task may have ended early.
            steps[result.spec.agent] += int(result.values.get("steps") or result.spec.steps)
            seconds[result.spec.agent] += took
    return {agent: steps[agent] / seconds[agent] for agent in steps}


def hours_until_done(todo: Iterable[Spec], rates: Mapping[str, float], workers: int) -> float:
    """
    Estimate when all runs will have finished, if each free worker takes the next one in order.

    :param todo: the runs
    :param rates: steps a second by agent
    :param workers: runs at a time
    :return: hours until the last run has finished
    """
    free_at = [0.0] * workers
    for spec in todo:
        heapq.heapreplace(free_at, free_at[0] + spec.steps / rates[spec.agent] / 3600)
    return max(free_at)
