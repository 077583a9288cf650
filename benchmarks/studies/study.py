"""What a study is, the suite of its runs, and how a run of any study is carried out."""

from __future__ import annotations

import importlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pandas as pd
import torch as th
import tyro

from benchmarks import recording
from benchmarks.recording import RunConfig
from benchmarks.suite import Result, Spec, results
from benchmarks.suite.run import Outcome, SuiteConfig

Options = dict[str, Any]


@dataclass(frozen=True)
class Study:
    """Agents in worlds."""

    module: str
    """Of the study, below this package."""
    command: str
    """The one that makes a run: mastery, auxiliary or pretraining."""
    agents: Mapping[str, Options]
    """Options of that command, by the names of agents; "game" and "steps" override those of the study."""
    games: Sequence[str]
    steps: int
    rows: int = 40
    """Measurements of a run."""
    prefix: str = ""
    """Of the names of agents in specs."""
    any_game: bool = False
    """Whether other games may be asked for."""

    def specs(self, seeds: int, steps: int | None = None, games: Sequence[str] = (), only: Sequence[str] = ()) -> list[Spec]:
        """The runs, all agents in all games with one seed before the next seed. By default steps and games are the study's."""
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
    """The settings of a run of any study."""
    settings = dict(spec.settings)
    command = importlib.import_module(f"benchmarks.{settings.pop('command')}")
    settings |= {"seed": spec.seed, "progress_bar": False, "threads": th.get_num_threads()}
    kind = getattr(command, "MasteryConfig", getattr(command, "TasksConfig", None))
    if kind is not None:
        given = json.dumps(settings.pop("agent_kwargs", {}))
        config: RunConfig = kind(env_id=spec.game, total_steps=spec.steps, agent_kwargs=given, **settings)
        return config
    config = command.WORLDS[settings.get("world", "atari")]
    return replace(config, game=spec.game, steps=spec.steps, **settings)  # type: ignore[call-arg]


def carry_out(spec: Spec, folder: Path) -> Mapping[str, Any]:
    """
    Do a run of any study, or go on with it. Returns the numbers in ``summary.csv``; or what is in ``score.json``, and
    "mean_return", see :func:`mean_return`.
    """
    own = folder / spec.agent / "run"
    recording.carry_out(configuration(spec), own)
    if (own / "score.json").exists():
        found: dict[str, Any] = json.loads((own / "score.json").read_text(encoding="utf-8"))
        return found | {"mean_return": mean_return(own / "curve.csv")}
    row = pd.read_csv(own / "summary.csv", dtype=str).iloc[0].drop(["world", "agent", "seed", "targets"]).dropna()
    return row.astype(float).to_dict()  # type: ignore[no-any-return]


def mean_return(curve: Path) -> float:
    """
    Of ``curve.csv``, over all steps: each row counts for the steps since the one before, and steps before the first row, those
    of pre-training among them, count 0.
    """
    rows = pd.read_csv(curve, float_precision="round_trip") if curve.exists() else pd.DataFrame()
    if rows.empty:  # no episode has ended
        return 0.0
    gained: float = sum((rows["step"].diff() * rows["episode_return"])[1:].tolist())
    return gained / int(rows["step"].iloc[-1])


@dataclass(frozen=True)
class StudyConfig(ABC):
    """The options of every study."""

    table: ClassVar[str] = "comparison.csv"
    """Where below the root the rows of :meth:`compare` are written."""

    suite: Annotated[SuiteConfig, tyro.conf.arg(name="")]
    seeds: int = 10
    """Runs of each agent in each world, with the seeds from 0 on."""
    steps: int | None = None
    """Environment steps of a run; by default those of the study."""
    only: tuple[str, ...] = ()
    """Agents to run; by default all."""

    @abstractmethod
    def specs(self) -> list[Spec]:
        """The runs."""

    def compare(self, finished: Iterable[Result]) -> list[dict[str, Any]]:
        """The rows of the table that comes of finished runs."""
        return []

    def run(self) -> Outcome | None:
        """Carry out what has not finished, or only list it (None), and compare what has."""
        suite = self.specs()
        outcome = self.suite.run(suite)
        rows = self.compare(results(suite, self.suite.root).values())
        if rows:
            path = self.suite.root / self.table
            pd.DataFrame(rows, columns=max(map(list, rows), key=len)).to_csv(path, index=False, float_format="%.4f")
            print(f"compared in {path}")
        return outcome
