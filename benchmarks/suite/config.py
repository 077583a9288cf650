"""The options of every suite."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.suite.drive import Outcome, drive
from benchmarks.suite.engines import Engine, EngineName, InProcess, Processes, Ray
from benchmarks.suite.estimate import Estimate, estimate, hours_until_done
from benchmarks.suite.spec import Spec, pending, results, shard


@dataclass(frozen=True)
class SuiteConfig:
    """Carry out what has not finished of a suite. What was stopped or killed goes on; what is finished is left alone."""

    root: Path = Path("runs/suite")
    """Folder of all runs; on a cluster, on a disk that all its machines share."""
    engine: EngineName = "in-process"
    """One after the other in this process, in processes of their own, or on a Ray cluster."""
    workers: int = 1
    """How many runs at a time."""
    retries: int = 2
    """How often a run that failed is tried again in this call."""
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
    """By agent, for --dry-run: rates that were measured elsewhere. By default those of the runs that have finished."""
    price_per_hour: float | None = None
    """Of a worker, for --dry-run."""

    def __post_init__(self) -> None:
        for name in ("workers", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.engine == "in-process" and self.workers != 1:
            raise ValueError(f"workers must be 1 in-process, got {self.workers}; --engine processes has more")

    def run(self, specs: Iterable[Spec]) -> Outcome | None:
        """
        :param specs: the suite
        :return: what became of its runs; None where ``dry_run`` is set
        :raises ValueError: if an option makes no sense
        :raises SuiteError: if a result is damaged
        """
        suite = list(dict.fromkeys(specs))
        ours = shard(suite, self.shard)
        todo = pending(ours, self.root)
        print(f"{len(ours)} runs, {len(ours) - len(todo)} have finished, in {self.root}", flush=True)
        if self.dry_run:
            self._show(todo, estimate(todo, results(suite, self.root).values(), self.steps_per_second))
            return None
        outcome = drive(todo, self.root, self.make_engine, self.retries)
        for spec, why in outcome.failed.items():
            print(f"failed: {spec.name}: {why}", flush=True)
        if outcome.busy:
            print(f"{len(outcome.busy)} runs are in the hands of other processes; call again when those have ended")
        return outcome

    def make_engine(self) -> Engine:
        """
        :return: what the options name
        :raises ImportError: if Ray is not installed
        """
        if self.engine == "in-process":
            return InProcess(self.threads)
        if self.engine == "processes":
            return Processes(self.workers, self.threads)
        return Ray(self.address, self.workers, self.cpus, self.gpus, self.threads)

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
        work = None if wall is None else sum(each.hours or 0.0 for each in estimates)
        if wall is None or work is None:
            missing = ", ".join(each.agent for each in estimates if each.rate is None)
            print(f"no estimate: never measured: {missing}. Give --steps-per-second, or run one of them first")
            return
        price = (
            "" if self.price_per_hour is None else f", at {self.price_per_hour:g} an hour {work * self.price_per_hour:,.2f}"
        )
        print(f"{work:.3g} hours of work{price}; done after {wall:.3g} hours with {self.workers} at a time, at these rates")
