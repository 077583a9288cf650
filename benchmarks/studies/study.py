"""What a study is, the suite of its runs, and how a run of any study is carried out."""

from __future__ import annotations

import csv
import importlib
import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch as th
import tyro

from benchmarks import recording
from benchmarks.recording import RunConfig
from benchmarks.suite import Result, Spec, results
from benchmarks.suite.run import Outcome, SuiteConfig

Options = dict[str, Any]


@dataclass(frozen=True)
class Study:
    """
    Agents in worlds.

    :ivar module: of the study, below this package
    :ivar command: the one that makes a run: mastery, auxiliary or pretraining
    :ivar agents: options of that command, by the names of agents; "game" and "steps" override those of the study
    :ivar games: games, or ids of environments
    :ivar steps: environment steps of a run
    :ivar rows: measurements of a run
    :ivar prefix: of the names of agents in specs
    :ivar any_game: whether other games may be asked for
    """

    module: str
    command: str
    agents: Mapping[str, Options]
    games: Sequence[str]
    steps: int
    rows: int = 40
    prefix: str = ""
    any_game: bool = False

    def specs(self, seeds: int, steps: int | None = None, games: Sequence[str] = (), only: Sequence[str] = ()) -> list[Spec]:
        """
        :param seeds: how many, from 0 on
        :param steps: environment steps of a run, None for the study's
        :param games: games or ids of environments, none for the study's
        :param only: agents to run, none for all
        :return: the runs, all agents in all games with one seed before the next seed
        :raises ValueError: if there are no seeds, or no such agent or game
        """
        if seeds < 1:
            raise ValueError(f"seeds must be at least 1, got {seeds}")
        for name, chosen, known in (("only", only, list(self.agents)), ("games", games, self.games)):
            unknown = [] if name == "games" and self.any_game else [each for each in chosen if each not in known]
            if unknown:
                raise ValueError(f"{name} must be of {', '.join(known)}, got {' '.join(unknown)}")
        wanted = games or self.games
        where = wanted if self.any_game else [game for game in self.games if game in wanted]
        agents = [agent for agent in self.agents if not only or agent in only]
        return [self._spec(agent, game, seed, steps) for seed in range(seeds) for game in where for agent in agents]

    def _spec(self, agent: str, game: str, seed: int, steps: int | None) -> Spec:
        settings = {"command": self.command, **self.agents[agent]}
        game, usual = settings.pop("game", game), settings.pop("steps", self.steps)
        steps = usual if steps is None else steps
        settings["eval_freq"] = max(1, steps // self.rows)
        return Spec(f"benchmarks.studies.{self.module}:carry_out", f"{self.prefix}{agent}", game, seed, steps, settings)


def configuration(spec: Spec) -> RunConfig:
    """
    :param spec: of a run of any study
    :return: its settings
    """
    settings = dict(spec.settings)
    command = importlib.import_module(f"benchmarks.{settings.pop('command')}")
    settings |= {"seed": spec.seed, "progress_bar": False, "threads": th.get_num_threads()}
    if hasattr(command, "MasteryConfig"):
        given = json.dumps(settings.pop("agent_kwargs", {}))
        config: RunConfig = command.MasteryConfig(env_id=spec.game, total_steps=spec.steps, agent_kwargs=given, **settings)
        return config
    config = command.WORLDS[settings.get("world", "atari")]
    return replace(config, game=spec.game, steps=spec.steps, **settings)  # type: ignore[call-arg]


def carry_out(spec: Spec, folder: Path) -> Mapping[str, Any]:
    """
    Do a run, or go on with it, in a folder whose parent has the agent's name, by which summaries know it.

    :param spec: of a run of any study
    :param folder: of the run
    :return: the numbers in ``summary.csv``; or what is in ``score.json``, and "mean_return", see :func:`mean_return`
    """
    own = folder / spec.agent / "run"
    recording.carry_out(configuration(spec), own)
    if (own / "score.json").exists():
        found: dict[str, Any] = json.loads((own / "score.json").read_text(encoding="utf-8"))
        return found | {"mean_return": mean_return(own / "curve.csv")}
    with (own / "summary.csv").open(newline="", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    said = {name: value for name, value in row.items() if value and name not in ("world", "agent", "seed", "targets")}
    return {name: float(value) for name, value in said.items()}


def mean_return(curve: Path) -> float:
    """
    :param curve: ``curve.csv`` of a run
    :return: the mean return over all steps: each row counts for the steps since the one before, and steps before the first
        row, those of pre-training among them, count 0
    """
    if not curve.exists():
        return 0.0
    with curve.open(newline="", encoding="utf-8") as file:
        rows = [(int(row["step"]), float(row["episode_return"])) for row in csv.DictReader(file)]
    if not rows:  # no episode has ended
        return 0.0
    gained = sum((step - before) * value for (before, _), (step, value) in itertools.pairwise(rows))
    return gained / rows[-1][0]


@dataclass(frozen=True)
class StudyConfig(ABC):
    """The options of every study."""

    table: ClassVar[str] = "comparison.csv"
    """File below the root for what :meth:`compare` gives."""

    suite: Annotated[SuiteConfig, tyro.conf.arg(name="")]
    seeds: int = 10
    """Runs of each agent in each world, with the seeds from 0 on."""
    steps: int | None = None
    """Environment steps of a run; by default those of the study."""
    only: tuple[str, ...] = ()
    """Agents to run; by default all."""

    @abstractmethod
    def specs(self) -> list[Spec]:
        """:return: the runs"""

    def compare(self, finished: Iterable[Result]) -> list[dict[str, Any]]:
        """
        :param finished: results of this study
        :return: rows of the table that comes of them
        """
        return []

    def run(self) -> Outcome | None:
        """
        Carry out what has not finished, and compare what has.

        :return: what became of the runs; None where they are only listed
        :raises ValueError: if an option is invalid
        """
        suite = self.specs()
        outcome = self.suite.run(suite)
        rows = self.compare(results(suite, self.suite.root).values())
        if rows:
            path = self.suite.root / self.table
            with path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, max(rows, key=len), restval="")
                writer.writeheader()
                for row in rows:
                    shown = {name: f"{value:.4f}" if isinstance(value, float) else value for name, value in row.items()}
                    writer.writerow(shown)
            print(f"compared in {path}")
        return outcome
