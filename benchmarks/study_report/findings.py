"""What there is to report on: runs of suites and single runs, finished, begun, and those that are missing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import mastery_study, past_runs
from benchmarks.past_runs import SHARED, PastRun, PastRunError
from benchmarks.suite import Spec, SuiteError, read_result
from benchmarks.worlds import World

MASTERY_STUDY = "benchmarks.mastery_study:carry_out"
SINGLE = ""
"""The study of runs that are of no suite."""

LEFT_OUT = {"lock", "spec.json"}
"""Files of a run that nobody wants to open."""


@dataclass(frozen=True)
class Run:
    """
    A run that was begun, or that should be and is not.

    :ivar study: import path of what carries it out, or ``SINGLE``
    :ivar agent: who
    :ivar game: where
    :ivar seed: of everything random
    :ivar steps: environment steps that it should take
    :ivar folder: where it is, None of one that was not begun
    :ivar finished: whether it has
    :ivar at: steps at its newest measurement, None if there is none
    :ivar training_seconds: measured by the run, None if it was not
    :ivar wall_seconds: of its last attempt, where it is finished and of a suite
    :ivar attempts: that it took so far, None of those of no suite
    :ivar values: what came out of it, where it is of a suite
    :ivar record: of its ``config.json``, empty if there is none
    """

    study: str
    agent: str
    game: str
    seed: int
    steps: int
    folder: Path | None = None
    finished: bool = False
    at: int | None = None
    training_seconds: float | None = None
    wall_seconds: float | None = None
    attempts: int | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    record: Mapping[str, Any] = field(default_factory=dict)

    @property
    def status(self) -> str:
        """In a word or two."""
        return "finished" if self.finished else "not begun" if self.folder is None else "unfinished"

    def files(self) -> list[Path]:
        """:return: what it left that can be looked at; not its checkpoints"""
        if self.folder is None:
            return []
        found = (path for path in self.folder.rglob("*") if path.is_file() and path.name not in LEFT_OUT)
        return sorted(path for path in found if "checkpoints" not in path.relative_to(self.folder).parts)


@dataclass(frozen=True)
class Findings:
    """
    All of it.

    :ivar runs: of all studies, those that are missing included
    :ivar mastery: runs of the studies of mastery, in groups that can be compared: one world, one measure, as many steps, as
        many goals held out
    """

    runs: Sequence[Run]
    mastery: Sequence[Sequence[PastRun]]


def look(folders: Sequence[Path]) -> Findings:
    """
    :param folders: of runs, or folders somewhere below which runs are
    :return: what is there
    :raises PastRunError: if a folder does not exist, or no run is in any
    :raises SuiteError: if a result is damaged
    """
    configured = past_runs.find(folders)
    inside = {
        folder: next((path for path in configured if folder in path.parents or folder == path), None)
        for folder in _suite_folders(folders)
    }
    # A run of a suite is in the report by its result, with mastery.csv or without.
    pasts = past_runs.read(path for path in configured if path not in inside.values() or (path / "mastery.csv").is_file())
    measured = {past.folder: past for past in pasts}
    runs = [_of_suite(folder, path, None if path is None else measured.pop(path, None)) for folder, path in inside.items()]
    groups = [past_runs.labelled(group) for group in _comparable(pasts)]
    label = {past.folder: past.label for group in groups for past in group}
    runs += [_single(past, label.get(folder, folder.name)) for folder, past in measured.items()]
    if not runs:
        said = " ".join(str(folder) for folder in folders) or "no folders"
        raise PastRunError(f"runs must have at least one folder with spec.json, or config.json and mastery.csv, got {said}")
    runs += missing(runs)
    return Findings(sorted(runs, key=lambda run: (run.study, run.agent, run.steps, run.game, run.seed)), groups)


def missing(runs: Sequence[Run]) -> list[Run]:
    """
    :param runs: that were begun
    :return: those that a complete study of them has besides: of the study of mastery, all agents of a part with the seeds that
        any of them has; of other suites, of each agent all games and seeds that any other has
    """
    wanted: dict[tuple[str, str, str, int, int], None] = {}
    for study in dict.fromkeys(run.study for run in runs if run.study != SINGLE):
        alike = [run for run in runs if run.study == study]
        for steps in dict.fromkeys(run.steps for run in alike):
            wanted.update(dict.fromkeys(_complete(study, steps, [run for run in alike if run.steps == steps])))
    for run in runs:
        wanted.pop((run.study, run.agent, run.game, run.seed, run.steps), None)
    return [Run(*key) for key in wanted]


def _complete(study: str, steps: int, runs: Sequence[Run]) -> Iterable[tuple[str, str, str, int, int]]:
    if study == MASTERY_STUDY:
        for part in mastery_study.PARTS:
            seeds = [run.seed for run in runs if run.agent.startswith(f"{part}-")]
            if seeds:
                planned = mastery_study.specs(part, max(seeds) + 1)
                as_planned = [spec for spec in planned if spec.steps == steps]
                for spec in as_planned or planned:
                    yield study, spec.agent, spec.game, spec.seed, steps
        return
    seeds = sorted({run.seed for run in runs})
    for agent in dict.fromkeys(run.agent for run in runs):
        for game in dict.fromkeys(run.game for run in runs):
            for seed in seeds:
                yield study, agent, game, seed, steps


def _suite_folders(folders: Iterable[Path]) -> list[Path]:
    found = (path.parent for folder in folders for path in [folder / "spec.json", *sorted(folder.rglob("spec.json"))])
    absolute = dict.fromkeys(Path(os.path.abspath(folder)) for folder in found)
    return [folder for folder in absolute if (folder / "spec.json").is_file()]


def _of_suite(folder: Path, inside: Path | None, past: PastRun | None) -> Run:
    try:
        spec = Spec(**json.loads((folder / "spec.json").read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise SuiteError(f"{folder / 'spec.json'} is damaged: {error!r}") from error
    result = read_result(folder) if (folder / "result.json").exists() else None
    log = folder / "attempts.jsonl"
    seconds = None if result is None else result.values.get("training_seconds")
    return Run(
        study=spec.carry_out,
        agent=spec.agent,
        game=spec.game,
        seed=spec.seed,
        steps=spec.steps,
        folder=folder,
        finished=result is not None,
        at=past.last_step if past is not None else spec.steps if result is not None else None,
        training_seconds=past.seconds if past is not None else seconds,
        wall_seconds=None if result is None else result.seconds,
        attempts=len(log.read_text(encoding="utf-8").splitlines()) if log.is_file() else 0,
        values={} if result is None else result.values,
        record=_record(inside),
    )


def _single(past: PastRun, label: str) -> Run:
    return Run(
        study=SINGLE,
        agent=label,
        game=str(past.settings["env_id"]),
        seed=past.seed,
        steps=int(past.settings["total_steps"]),
        folder=past.folder,
        finished=past.is_finished,
        at=past.last_step,
        training_seconds=past.seconds,
        record=_record(past.folder),
    )


def _record(folder: Path | None) -> dict[str, Any]:
    return {} if folder is None else dict(json.loads((folder / "config.json").read_text(encoding="utf-8")))


def _comparable(pasts: Iterable[PastRun]) -> list[list[PastRun]]:
    groups: dict[tuple[str, ...], list[PastRun]] = {}
    for past in pasts:
        settings = {"held_out": 0.0, "map": None} | past.settings
        if not World(str(settings["env_id"])).is_two_rooms:
            continue  # of others there is no exact plan; their numbers are in the overview
        key = tuple(str(settings[name]) for name in (*SHARED, "total_steps", "held_out"))
        groups.setdefault(key, []).append(past)
    return [groups[key] for key in sorted(groups)]
