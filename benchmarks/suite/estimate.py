"""How long a suite will take, from rates that were measured."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.suite.spec import Result, Spec


@dataclass(frozen=True)
class Estimate:
    """
    What is left to do for an agent.

    :ivar agent: its name
    :ivar runs: that have not finished
    :ivar steps: of them, those included that were made before they were stopped
    :ivar rate: steps/s, None if there is none
    :ivar source: where it comes from
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
    :param finished: results, for the rate of their agents: all steps by all seconds, measurements and start included. Those
        that took several attempts do not count, as their last says little about the whole
    :param given: rates in steps/s by agent, of a calibration; they come before those of finished runs
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
        of_agent = [result for result in whole if result.spec.agent == agent]
        rate: float | None = None
        source = "never measured"
        if agent in given:
            rate, source = given[agent], "given"
        elif of_agent:
            rate = sum(result.spec.steps for result in of_agent) / sum(result.seconds for result in of_agent)
            source = f"{len(of_agent)} finished runs"
        found.append(Estimate(agent, len(specs), sum(spec.steps for spec in specs), rate, source))
    return found


def hours_until_done(todo: Sequence[Spec], estimates: Iterable[Estimate], workers: int) -> float | None:
    """
    :param todo: runs that have not finished
    :param estimates: of their agents
    :param workers: how many run at a time
    :return: hours until the last has finished if each worker takes the next in order when it is free; None if a rate is
        missing. Workers that share cores are slower than one: rates of runs that had company are the honest ones
    """
    rates = {each.agent: each.rate for each in estimates}
    free_at = [0.0] * workers
    for spec in todo:
        rate = rates[spec.agent]
        if rate is None:
            return None
        heapq.heapreplace(free_at, free_at[0] + spec.steps / rate / 3600)
    return max(free_at)
