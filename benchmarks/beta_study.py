"""The search for beta, the weight of the many-goals loss beside the actor-critic's, on the paper's seven tuning games."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from benchmarks.auxiliary import AuxiliaryConfig
from benchmarks.games_study import ROWS, STEPS, carry_out_config, chosen
from benchmarks.scores import human_normalized, interquartile_mean, interval, median
from benchmarks.suite import Result, Spec, results
from benchmarks.suite.run import Outcome, SuiteConfig

GAMES = ("Atlantis", "Boxing", "DoubleDunk", "Gravitar", "Qbert", "TimePilot", "UpNDown")
"""The paper's, of its section 5."""

BETAS = (1e-4, 5e-4, 1e-3, 5e-3, 0.01, 0.02, 0.05, 0.1)
"""The paper's range as its appendix prints it, and the value that it found, 0.02, which is not in that range."""

STATISTICS = {"median": median, "interquartile_mean": interquartile_mean}
"""Of human-normalized scores. The paper does not say by what beta was chosen; the median is what it sums up games by."""

TABLE = ["beta", "games", "seeds", *(f"{name}{end}" for name in STATISTICS for end in ("", "_low", "_high"))]
"""Columns of ``beta.csv``."""


def specs(seeds: int, steps: int = STEPS, games: Sequence[str] = (), betas: Sequence[float] = BETAS) -> list[Spec]:
    """
    :param seeds: how many, from 0 on
    :param steps: environment steps of a run
    :param games: in which; none for all seven
    :param betas: weights to try
    :return: the runs, all weights in all games with one seed before the next seed
    :raises ValueError: if there are no seeds or weights, a weight is not positive, or there is no such game
    """
    if seeds < 1:
        raise ValueError(f"seeds must be at least 1, got {seeds}")
    if not betas or min(betas) <= 0:
        raise ValueError(f"betas must be positive numbers, got {' '.join(map(str, betas)) or 'none'}")
    return [
        Spec("benchmarks.beta_study:carry_out", f"beta-{beta:g}", game, seed, steps, {"beta": beta})
        for seed in range(seeds)
        for game in chosen(games, GAMES, "games")
        for beta in betas
    ]


def configuration(spec: Spec) -> AuxiliaryConfig:
    """
    :param spec: of a run
    :return: its settings, the paper's but for beta
    """
    return AuxiliaryConfig(
        game=spec.game,
        seed=spec.seed,
        steps=spec.steps,
        weight=spec.settings["beta"],
        eval_freq=max(1, spec.steps // ROWS),
        progress_bar=False,
    )


def carry_out(spec: Spec, folder: Path) -> Mapping[str, Any]:
    """
    Do a run, or go on with it.

    :param spec: the run
    :param folder: of the run
    :return: what is in ``score.json``: the score after training, and what the run took
    """
    return carry_out_config(configuration(spec), folder / spec.agent / "run")


def compare(finished: Iterable[Result]) -> list[dict[str, Any]]:
    """
    :param finished: runs of this study
    :return: a row for each beta, see ``TABLE``, over the games that all of them have with all seeds; none if there is no such
        game. Intervals are bootstrapped over seeds where there are several
    """
    score = {(each.spec.settings["beta"], each.spec.game, each.spec.seed): each.values["score"] for each in finished}
    betas, names = sorted({key[0] for key in score}), sorted({key[1] for key in score})
    seeds = sorted({key[2] for key in score})
    # no score where no episode has ended
    games = [game for game in names if all(score.get((beta, game, seed)) is not None for beta in betas for seed in seeds)]
    if not games:
        return []
    rows = []
    for beta in betas:
        raw = np.array([[score[beta, game, seed] for game in games] for seed in seeds], dtype=np.float64)
        normalized = human_normalized(raw, games)
        row: dict[str, Any] = {"beta": beta, "games": len(games), "seeds": len(seeds)}
        for name, statistic in STATISTICS.items():
            row[name] = float(statistic(normalized))
            if len(seeds) > 1:
                found = interval(statistic, normalized)
                row |= {f"{name}_low": found.low, f"{name}_high": found.high}
        rows.append(row)
    return rows


@dataclass(frozen=True)
class BetaStudyConfig:
    """The search for beta on seven games: carry out what has not finished, and write what came of all that has to beta.csv."""

    suite: Annotated[SuiteConfig, tyro.conf.arg(name="")] = field(
        default_factory=lambda: SuiteConfig(root=Path("runs/beta-study"))
    )
    seeds: int = 3
    """Runs of each beta in each game, with the seeds from 0 on."""
    steps: int = STEPS
    """Environment steps of a run."""
    games: tuple[str, ...] = ()
    """In which; by default all seven."""
    betas: tuple[float, ...] = BETAS
    """Weights to try."""

    def run(self) -> Outcome | None:
        """
        :return: what became of the runs; None where they are only listed
        :raises ValueError: if an option makes no sense
        """
        suite = specs(self.seeds, self.steps, self.games, self.betas)
        outcome = self.suite.run(suite)
        rows = compare(results(suite, self.suite.root).values())
        if rows:
            path = self.suite.root / "beta.csv"
            with path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, TABLE, restval="")
                writer.writeheader()
                writer.writerows(rows)
            best = max(rows, key=lambda row: float(row["median"]))
            print(
                f"the best median of human-normalized scores, {best['median']:.3f}, is that of {best['beta']:g}; all in {path}"
            )
        return outcome
