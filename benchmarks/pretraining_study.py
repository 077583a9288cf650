"""A2C in MiniGrid with each way of pre-training and without, at equal total steps, over seeds, as a suite; what came of it."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, get_args

import numpy as np
import tyro

from benchmarks import run_folder
from benchmarks.pretraining import PACKAGES, WORLDS, Agent, PretrainingConfig, World
from benchmarks.scores import interval, probability_of_improvement
from benchmarks.suite import Result, Spec, results
from benchmarks.suite.run import Outcome, SuiteConfig

AGENTS: tuple[Agent, ...] = get_args(Agent)

WORLD: World = "minigrid"
"""Games have a study of their own, ``games_study``."""

ROWS = 40
"""Of ``curve.csv`` of a run."""

MEASURES = ("score", "mean_return")
"""What runs are compared by: the score after training, and the mean return on the way there."""

TABLE = ["game", "agent", "seeds", *(f"{name}{end}" for name in MEASURES for end in ("", "_low", "_high"))] + [
    f"{name}_better{end}" for name in MEASURES for end in ("", "_low", "_high")
]
"""Columns of ``comparison.csv``: means over seeds, and the probability that a run with mastery for pre-training is better than
one of this agent, with intervals of 95% (bootstrap over seeds)."""


def specs(
    seeds: int,
    steps: int | None = None,
    pretrain_steps: int | None = None,
    games: Sequence[str] = (),
    only: Sequence[str] = (),
    ortho_init: bool = True,
) -> list[Spec]:
    """
    :param seeds: how many, from 0 on
    :param steps: environment steps of a run altogether, None for 200,000
    :param pretrain_steps: of these, those of pre-training, None for 20,000
    :param games: ids of environments; none for the default one
    :param only: agents to run; none for all
    :param ortho_init: whether weights begin orthogonal
    :return: the runs, all agents in all environments with one seed before the next seed
    :raises ValueError: if there are no seeds, or there is no such agent
    """
    if seeds < 1:
        raise ValueError(f"seeds must be at least 1, got {seeds}")
    if not set(AGENTS).issuperset(only):
        raise ValueError(f"only must name agents of {', '.join(AGENTS)}, got {' '.join(only)}")
    default = WORLDS[WORLD]
    settings = {"pretrain_steps": default.pretrain_steps if pretrain_steps is None else pretrain_steps}
    beginning = {} if ortho_init else {"ortho_init": False}
    return [
        Spec(
            "benchmarks.pretraining_study:carry_out",
            f"pretraining-{agent}",
            game,
            seed,
            default.steps if steps is None else steps,
            # A2C from scratch is the same run however many steps the others would train before
            {**settings, **beginning, "agent": agent} if agent != "none" else {**beginning, "agent": agent},
        )
        for seed in range(seeds)
        for game in games or (default.game,)
        for agent in AGENTS
        if not only or agent in only
    ]


def configuration(spec: Spec) -> PretrainingConfig:
    """
    :param spec: of a run
    :return: its settings
    """
    default = WORLDS[WORLD]
    pretrain_steps = spec.settings.get("pretrain_steps", 1)
    return replace(
        default,
        agent=spec.settings["agent"],
        game=spec.game,
        seed=spec.seed,
        steps=spec.steps,
        ortho_init=spec.settings.get("ortho_init", True),
        pretrain_steps=pretrain_steps,
        learning_starts=min(default.learning_starts, pretrain_steps // 2),
        eval_freq=max(1, spec.steps // ROWS),
        progress_bar=False,
    )


def carry_out(spec: Spec, folder: Path) -> Mapping[str, Any]:
    """
    Do a run, or go on with it, in a folder whose parent has the agent's name.

    :param spec: the run
    :param folder: of the run
    :return: what is in ``score.json``, and as ``mean_return`` the mean of ``curve.csv`` over all steps, where those of
        pre-training count 0, as nothing was earned
    """
    own = folder / spec.agent / "run"
    run_folder.carry_out(configuration(spec), own, (*run_folder.PACKAGES, *PACKAGES[WORLD]))
    found: dict[str, Any] = json.loads((own / "score.json").read_text(encoding="utf-8"))
    return {**found, "mean_return": mean_return(own / "curve.csv")}


def mean_return(curve: Path) -> float:
    """
    :param curve: ``curve.csv`` of a run
    :return: the mean over all steps, each row standing for those since the one before, and those before the first for 0
    """
    if not curve.exists():
        return 0.0
    with curve.open(newline="", encoding="utf-8") as file:
        rows = [(int(row["step"]), float(row["episode_return"])) for row in csv.DictReader(file)]
    if not rows:  # no episode has ended
        return 0.0
    gained = sum((step - before) * value for (before, _), (step, value) in itertools.pairwise(rows))
    return gained / rows[-1][0]


def compare(finished: Iterable[Result]) -> list[dict[str, Any]]:
    """
    :param finished: runs of this study
    :return: a row for each agent in each game, see ``TABLE``; intervals are empty where there are fewer than two runs, and
        so is what a row is not compared with
    """
    runs: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for result in finished:
        runs.setdefault((result.spec.game, result.spec.settings["agent"]), []).append(result.values)
    rows = []
    for (game, agent), ours in sorted(runs.items()):
        row: dict[str, Any] = {"game": game, "agent": agent, "seeds": len(ours)}
        for measure in MEASURES:
            scores = _column(ours, measure)
            row[measure] = float(scores.mean())
            if len(scores) > 1:
                estimate = interval(lambda drawn: drawn.mean(axis=(-2, -1)), scores)
                row |= {f"{measure}_low": estimate.low, f"{measure}_high": estimate.high}
            best = _column(runs.get((game, "many_goals"), []), measure)
            if agent != "many_goals" and min(len(best), len(scores)) > 1:
                better = interval(probability_of_improvement, best, scores)
                row |= {f"{measure}_better{end}": getattr(better, name) for end, name in _ENDS.items()}
        rows.append(row)
    return rows


_ENDS = {"": "value", "_low": "low", "_high": "high"}


def _column(runs: Sequence[Mapping[str, Any]], measure: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    # an agent in whose run no episode has ended has no score
    return np.array([[0.0 if run[measure] is None else run[measure]] for run in runs], dtype=np.float64).reshape(-1, 1)


def write_comparison(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """
    :param path: of ``comparison.csv``
    :param rows: of :func:`compare`
    """
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, TABLE, restval="")
        writer.writeheader()
        for row in rows:
            writer.writerow({name: f"{value:.4f}" if isinstance(value, float) else value for name, value in row.items()})


@dataclass(frozen=True)
class PretrainingStudyConfig:
    """The study of pre-training: carry out what has not finished, and write what came of all that has to comparison.csv."""

    suite: Annotated[SuiteConfig, tyro.conf.arg(name="")] = field(
        default_factory=lambda: SuiteConfig(root=Path("runs/pretraining-study"))
    )
    seeds: int = 10
    """Runs of each agent in each environment, with the seeds from 0 on."""
    steps: int | None = None
    """Environment steps of a run altogether; by default 200,000."""
    pretrain_steps: int | None = None
    """Of these, those of pre-training; by default 20,000."""
    games: tuple[str, ...] = ()
    """Ids of environments of MiniGrid; by default one."""
    only: tuple[Agent, ...] = ()
    """Agents to run; by default all."""
    ortho_init: bool = True
    """Weights begin orthogonal, as SB3 has it for A2C, in pre-training too; else as torch has them. A root has room for
    the comparison of one of both."""

    def run(self) -> Outcome | None:
        """
        :return: what became of the runs; None where they are only listed
        :raises ValueError: if an option makes no sense
        """
        suite = specs(self.seeds, self.steps, self.pretrain_steps, self.games, self.only, self.ortho_init)
        outcome = self.suite.run(suite)
        finished = results(suite, self.suite.root).values()
        if finished:
            write_comparison(self.suite.root / "comparison.csv", compare(finished))
            print(f"compared in {self.suite.root / 'comparison.csv'}")
        return outcome
