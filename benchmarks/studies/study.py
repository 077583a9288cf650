"""What a study is, which suite its runs are, and how a run of any study is carried out."""

from __future__ import annotations

import importlib
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch as th

from benchmarks import recording
from benchmarks.recording import RunConfig
from benchmarks.scores import (
    Statistic,
    estimated,
    interquartile_mean,
    normalized,
    probability_of_improvement,
    random_score,
)
from benchmarks.suite import Result, Spec, SuiteError
from benchmarks.suite.run import SuiteConfig
from benchmarks.suite.spec import check_known, readable, write_whole

Options = dict[str, Any]

MEASURES = ("score", "mean_return")
"""
Measures of runs that have returns.

They are the score after training, and the mean return on the way there.
"""


@dataclass(frozen=True)
class Study:
    """Agents in worlds."""

    module: str
    """Module of the study, below this package."""
    command: str
    """The command that makes a run: mastery, auxiliary, pretraining or tasks."""
    agents: Mapping[str, Options]
    """Options of that command, by the names of agents. "command" overrides that of the study."""
    games: Sequence[str]
    """Games, or ids of environments."""
    steps: int
    """Environment steps of a run."""
    rows: int = 40
    """Measurements of a run."""
    prefix: str = ""
    """How the names of agents in specs begin."""
    any_game: bool = False
    """Whether other games may be asked for."""
    most_seeds: Mapping[str, int] = field(default_factory=dict)
    """Number of seeds of agents that are run with fewer than others."""
    on_request: Sequence[str] = ()
    """Agents that are run only if they are asked for by name."""

    def specs(
        self,
        seeds: int,
        steps: int | None = None,
        games: Sequence[str] = (),
        only: Sequence[str] = (),
    ) -> list[Spec]:
        """
        Return the runs: all agents in all games with one seed before the next seed.

        :param seeds: number of seeds, from 0 on
        :param steps: environment steps of a run; by default those of the study
        :param games: games to run; by default those of the study
        :param only: agents to run; by default all except those of ``on_request``
        :return: a spec for each run
        :raises SuiteError: if there are no seeds, or an agent or a game is unknown
        """
        if seeds < 1:
            raise SuiteError(f"seeds must be at least 1, got {seeds}")
        check_known("only", only, self.agents)
        if not self.any_game:
            check_known("games", games, self.games)
        wanted = games or self.games
        where = wanted if self.any_game else [game for game in self.games if game in wanted]
        agents = [agent for agent in self.agents if agent in (only or self._by_default)]
        return [
            self._spec(agent, game, seed, steps)
            for seed in range(seeds)
            for game in where
            for agent in agents
            if seed < self.most_seeds.get(agent, seeds)
        ]

    def has(self, spec: Spec, steps: int | None = None) -> bool:
        """
        Return whether a run is of this study, whatever its seed.

        :param spec: the run
        :param steps: environment steps of a run; by default those of the study
        :return: whether an agent of the study, with its options, is run in one of the games
        """
        agent = spec.agent.removeprefix(self.prefix)
        if agent not in self.agents or not (self.any_game or spec.game in self.games):
            return False
        return spec == self._spec(agent, spec.game, spec.seed, steps)

    @property
    def _by_default(self) -> list[str]:
        """The agents that are run if none is asked for."""
        return [agent for agent in self.agents if agent not in self.on_request]

    def _spec(self, agent: str, game: str, seed: int, steps: int | None) -> Spec:
        """Return the spec of one run."""
        settings = {"command": self.command, **self.agents[agent]}
        steps = self.steps if steps is None else steps
        settings["eval_freq"] = max(1, steps // self.rows)
        return Spec(
            f"benchmarks.studies.{self.module}:carry_out",
            f"{self.prefix}{agent}",
            game,
            seed,
            steps,
            settings,
        )


def configuration(spec: Spec) -> RunConfig:
    """
    Return the settings of a run of any study.

    :param spec: the run
    :return: settings of the command that makes it
    """
    settings = dict(spec.settings)
    command = importlib.import_module(f"benchmarks.{settings.pop('command')}")
    settings |= {"seed": spec.seed, "progress_bar": False, "threads": th.get_num_threads()}
    kind = getattr(command, "MasteryConfig", getattr(command, "TasksConfig", None))
    if kind is not None:
        agent_kwargs = json.dumps(settings.pop("agent_kwargs", {}))
        config: RunConfig = kind(
            env_id=spec.game, total_steps=spec.steps, agent_kwargs=agent_kwargs, **settings
        )
        return config
    config = command.WORLDS[settings.get("world", "atari")]
    return replace(config, game=spec.game, steps=spec.steps, **settings)  # type: ignore[call-arg]


def carry_out(spec: Spec, folder: Path) -> Mapping[str, Any]:
    """
    Do a run of any study, or go on with it.

    :param spec: the run
    :param folder: its folder
    :return: the numbers in ``summary.csv``; or those in ``score.json``, with :func:`mean_return`,
        :func:`steps_to_half` and :func:`shares`
    """
    own = folder / _part_of_path(spec.agent) / "run"
    recording.carry_out(configuration(spec), own)
    if (own / "score.json").exists():
        found: dict[str, Any] = json.loads((own / "score.json").read_text(encoding="utf-8"))
        curve = own / "curve.csv"
        score = found["score"]
        found |= {"mean_return": mean_return(curve), "steps_to_half": steps_to_half(curve, score)}
        return found | shares(own / "progress.csv")
    row = pd.read_csv(own / "summary.csv", dtype=str).iloc[0]
    numbers = row.drop(["world", "agent", "seed", "targets"]).dropna().astype(float)
    return numbers.to_dict()  # type: ignore[no-any-return]


def _part_of_path(agent: str) -> str:
    """Return the name of an agent as the name of a folder, which is the same if it may be."""
    is_plain = agent == Path(agent).name and agent != ".." and "\\" not in agent
    return agent if is_plain else readable(agent) or "agent"


def mean_return(curve: Path) -> float:
    """
    Return the mean of the returns while training.

    A row of the curve counts for the steps since the row before. Steps before the first row, as
    those of pre-training, count as 0. So in games with scores below 0, compare this mean only
    between agents with the same steps of pre-training.

    :param curve: ``curve.csv``, which need not be there
    :return: the mean, 0 before an episode has ended
    """
    rows = pd.read_csv(curve, float_precision="round_trip") if curve.exists() else pd.DataFrame()
    if rows.empty:
        return 0.0
    gained: float = sum((rows["step"].diff() * rows["episode_return"])[1:].tolist())
    return gained / int(rows["step"].iloc[-1])


def steps_to_half(curve: Path, score: float | None) -> int | None:
    """
    Return the first step with half of the score after training.

    :param curve: ``curve.csv``, which need not be there
    :param score: the score after training; None before an episode has ended
    :return: a step in the curve; None, if no row of it has half of the score, or the score is not
        above 0, so that half of it is no way to it
    """
    if score is None or score <= 0.0 or not curve.exists():
        return None
    rows = pd.read_csv(curve, float_precision="round_trip")
    reached = rows["step"][rows["episode_return"] >= score / 2]
    return int(reached.iloc[0]) if len(reached) else None


def shares(progress: Path) -> dict[str, float]:
    """
    Return the medians of the "share" and the "cosine" of an auxiliary task, if there was one.

    :param progress: ``progress.csv``, which need not be there
    :return: medians by the last part of their names
    """
    if not progress.exists() or progress.stat().st_size == 0:
        return {}
    rows = pd.read_csv(progress).dropna(axis="columns", how="all")
    return {
        name.rpartition("_")[2]: float(rows[name].median())
        for name in rows
        if name.startswith("auxiliary/") and name.endswith(("_share", "_cosine"))
    }


def _known_value(run: Result, measure: str) -> float:
    """Return a measure of a run, or the score of random play if no episode has ended."""
    value = run.values[measure]
    if run.values["score"] is None or value is None:
        return random_score(run.spec.game)
    return float(value)


def compared(
    finished: Iterable[Result],
    base: str,
    statistic: Statistic = interquartile_mean,
    normalize: bool = True,
) -> pd.DataFrame:
    """
    Compare agents over games and seeds that both they and the base have.

    While a study runs, some games have fewer seeds than others. Then games with few seeds are left
    out, if that leaves more runs: so many seeds more of the other games.

    A row has a statistic of the scores after training, and of the mean returns on the way there;
    the probability that a run is better than one of the base; and the mean in each game. For two
    seeds or more there are bootstrap intervals (95%). A run in which no episode has ended counts
    as random play; as 0, if its game has no score of random play.

    :param finished: results of runs
    :param base: name of the agent that others are compared with
    :param statistic: statistic of scores; by default the interquartile mean
    :param normalize: whether scores are normalized; else they are raw
    :return: a row for each agent, the best first
    """
    runs = [
        {"agent": run.spec.agent, "game": run.spec.game, "seed": run.spec.seed}
        | {measure: _known_value(run, measure) for measure in MEASURES}
        for run in finished
    ]
    if not runs:
        return pd.DataFrame()
    tables = {
        agent: alike.pivot(index="seed", columns="game", values=list(MEASURES))
        for agent, alike in pd.DataFrame(runs).groupby("agent")
    }
    rows = []
    for agent, table in tables.items():
        pair = table.align(tables.get(base, table), join="inner")
        there = pair[0].notna() & pair[1].notna()
        seeds, games = _most_runs(there[MEASURES[0]])
        if not games:
            continue
        columns = pd.MultiIndex.from_product([MEASURES, games])
        ours, theirs = (each.loc[seeds, columns] for each in pair)
        row: dict[str, Any] = {"agent": agent, "games": len(games), "seeds": len(ours)}
        for measure in MEASURES:
            scored = [each[measure].to_numpy() for each in (ours, theirs)]
            if normalize:
                scored = [normalized(each, games) for each in scored]
            row |= estimated(measure, statistic, scored[0])
            if agent != base and base in tables:
                row |= estimated(f"{measure}_better", probability_of_improvement, *scored)
            row |= {f"{measure}_{game}": mean for game, mean in ours[measure].mean().items()}
        rows.append(row)
    if not rows:
        return pd.DataFrame()
    return pd.DataFrame(rows).sort_values(MEASURES[0], ascending=False, ignore_index=True)


def _most_runs(there: pd.DataFrame) -> tuple[list[int], list[str]]:
    """
    Return seeds and games of which each seed has each game.

    The games with the most seeds are taken, as many games as make the most runs.

    :param there: whether there is a run, by seeds (rows) and games (columns)
    :return: the seeds and the games, of two choices with as many runs that of more games
    """
    by_seeds = there.sum().sort_values(ascending=False, kind="stable").index
    best: tuple[list[int], list[str]] = ([], [])
    for n in range(1, len(by_seeds) + 1):
        games = sorted(by_seeds[:n])
        seeds = list(there.index[there[games].all(axis=1)])
        if seeds and len(seeds) * n >= len(best[0]) * len(best[1]):
            best = (seeds, games)
    return best


def _row(run: Result) -> dict[str, Any]:
    """Return the row of ``runs.csv`` of a run."""
    named = {"agent": run.spec.agent, "game": run.spec.game, "seed": run.spec.seed}
    # A run may note how many steps it made. This number replaces that of its spec.
    return named | {"steps": run.spec.steps, "attempts": run.attempts} | dict(run.values)


@dataclass(frozen=True)
class StudyConfig(SuiteConfig, ABC):
    """The options of every study, beside those of any suite."""

    seeds: int = 10
    """Runs of each agent in each world, with the seeds from 0 on."""
    steps: int | None = None
    """Environment steps of a run; by default those of the study."""
    games: tuple[str, ...] = ()
    """Games, or ids of environments; by default those of the study."""
    only: tuple[str, ...] = ()
    """Agents to run; by default all except controls."""

    @property
    @abstractmethod
    def study(self) -> Study:
        """Agents, games and steps of the study."""

    def specs(self) -> list[Spec]:
        """
        Return the runs.

        :return: a spec for each run
        """
        return self.study.specs(self.seeds, self.steps, self.games, self.only)

    def note_finished(self) -> None:
        """Write ``runs.csv``, a row for each run below the root that has finished."""
        noted = 0
        # Another process may finish a run meanwhile, and write before this one does.
        while len(runs := self._finished()) > noted:
            noted = len(runs)
            table = pd.DataFrame(map(_row, runs)).sort_values(["agent", "game", "seed", "steps"])
            write_whole(self.root / "runs.csv", table.to_csv(index=False))

    def _given_rates(self, suite: list[Spec]) -> dict[str, float]:
        """Return the rates of the user, who may name agents as in ``only`` or as in specs."""
        # Rates of agents that are not run now do no harm, so all agents of the study are known.
        named = {agent: f"{self.study.prefix}{agent}" for agent in self.study.agents}
        short = [name for name in self.steps_per_second if name not in named.values()]
        check_known("agents of steps_per_second", short, named)
        return {named.get(name, name): rate for name, rate in self.steps_per_second.items()}

    @property
    def comparison(self) -> Path:
        """The file of the comparison. Parts of a study but the first have files of their own."""
        part = getattr(self, "part", None)
        is_first = part == getattr(type(self), "part", None)
        return self.root / ("comparison.csv" if is_first else f"{part}-comparison.csv")

    def compare(self, finished: Iterable[Result]) -> pd.DataFrame:
        """
        Compare finished runs.

        :param finished: results of runs
        :return: what is written to the file of the comparison; nothing, if it is empty
        """
        return pd.DataFrame()

    def _own(self) -> list[Result]:
        """Return the results of runs of the study below the root."""
        return [run for run in self._finished() if self.study.has(run.spec, self.steps)]

    def run(self) -> None:
        """
        Carry out what has not finished, or only list it, and compare all runs that have finished.

        These are all runs of the study below the root, not only those of this call. The process
        ends with status 1, if a run has failed.

        :raises SuiteError: if a run cannot have its settings
        """
        specs = self.specs()
        for spec in specs:
            try:
                configuration(spec)
            except ValueError as error:
                raise SuiteError(f"{spec.name} cannot be run: {error}") from error
        lacking = self.carry_out(specs)
        if self.dry_run:
            return
        compared = 0
        table = pd.DataFrame()
        # As in runs.csv, the last to write must know all runs.
        while len(ended := self._own()) > compared:
            compared = len(ended)
            table = self.compare(ended)
            if len(table):
                write_whole(self.comparison, table.to_csv(index=False, float_format="%.4f"))
        if len(table):
            print(f"compared in {self.comparison}")
        if lacking:
            sys.exit(1)
