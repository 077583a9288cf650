"""The paper's Atari games: all agents of its sections 4 and 5, and the search for beta before section 5."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from benchmarks.pretraining import PretrainingConfig
from benchmarks.scores import estimated, interquartile_mean, median, normalized, read_table
from benchmarks.studies.study import Options, Study, StudyConfig, carry_out
from benchmarks.suite import Result, Spec
from benchmarks.suite.run import SuiteConfig

__all__ = ["carry_out"]

SUITE, BETA_SUITE = (SuiteConfig(root=Path(f"runs/{name}-study")) for name in ("games", "beta"))

GAMES = tuple(read_table("atari_human_random_49").index)
"""The paper's 49, Pitfall among them, Hero not."""

STEPS = 10_000_000
"""The paper's. With pre-training, a tenth of them."""

ROWS = 100
"""Of ``curve.csv`` of a run."""

BETA_GAMES = ("Atlantis", "Boxing", "DoubleDunk", "Gravitar", "Qbert", "TimePilot", "UpNDown")
"""The paper's tuning games, of its section 5."""

BETAS = (1e-4, 5e-4, 1e-3, 5e-3, 0.01, 0.02, 0.05, 0.1)
"""The paper's range as its appendix prints it, and the value that it found, 0.02, which is not in that range."""

STATISTICS = {"median": median, "interquartile_mean": interquartile_mean}
"""Of human-normalized scores. The paper does not say by what beta was chosen; it sums up games by the median."""


@dataclass(frozen=True)
class GamesStudyConfig(StudyConfig):
    """Six agents in 49 games: carry out what has not finished. Then: ``report ROOT --output FILE.html``."""

    suite: Annotated[SuiteConfig, tyro.conf.arg(name="")] = SUITE
    seeds: int = 3
    """Runs of each agent in each game, with the seeds from 0 on."""
    steps: int = STEPS
    """Environment steps of a run, of which pre-training, if there is any, has a tenth."""
    games: tuple[str, ...] = ()
    """In which; by default all of the paper's."""

    def specs(self) -> list[Spec]:
        """The runs; agents have the names of the paper's tables of scores."""
        if self.steps < 10:
            raise ValueError(f"steps must be at least 10, of which one is pre-training's, got {self.steps}")
        before = self.steps // 10
        trained = {"pretrain_steps": before, "learning_starts": min(PretrainingConfig.learning_starts, before // 2)}
        agents: dict[str, Options] = {
            "a2c": {"agent": "a2c"},  # of both sections
            "pixel-control": {"agent": "pixel_control"},
            "reward-prediction": {"agent": "reward_prediction"},
            "many-goals": {"agent": "many_goals"},
            "reward-prediction-pretraining": {"command": "pretraining", "agent": "reward_prediction", **trained},
            "many-goals-pretraining": {"command": "pretraining", "agent": "many_goals", **trained},
        }
        return Study("games", "auxiliary", agents, GAMES, self.steps, ROWS).specs(self.seeds, None, self.games, self.only)


@dataclass(frozen=True)
class BetaStudyConfig(StudyConfig):
    """The search for beta on seven games: carry out what has not finished, and compare what has in beta.csv."""

    table = "beta.csv"
    suite: Annotated[SuiteConfig, tyro.conf.arg(name="")] = BETA_SUITE
    seeds: int = 3
    """Runs of each beta in each game, with the seeds from 0 on."""
    games: tuple[str, ...] = ()
    """In which; by default all seven."""
    betas: tuple[float, ...] = BETAS
    """Weights of the many-goals loss to try."""

    def specs(self) -> list[Spec]:
        """The runs."""
        if not self.betas or min(self.betas) <= 0:
            raise ValueError(f"betas must be positive numbers, got {' '.join(map(str, self.betas)) or 'none'}")
        agents: dict[str, Options] = {f"beta-{beta:g}": {"agent": "many_goals", "weight": beta} for beta in self.betas}
        study = Study("games", "auxiliary", agents, BETA_GAMES, STEPS, ROWS)
        return study.specs(self.seeds, self.steps, self.games, self.only)

    def compare(self, finished: Iterable[Result]) -> list[dict[str, Any]]:
        """A row for each beta over the games that all betas have with all seeds; none if there is no such game."""
        score: dict[tuple[float, str, int], float | None] = {
            (each.spec.settings["weight"], each.spec.game, each.spec.seed): each.values["score"] for each in finished
        }
        betas, names, seeds = (sorted(set(each)) for each in zip(*score, strict=True)) if score else ([], [], [])
        # a run in which no episode has ended has no score
        games = [game for game in names if None not in (score.get((b, game, s)) for b in betas for s in seeds)]
        rows: list[dict[str, Any]] = []
        for beta in betas if games else ():
            raw = np.array([[score[beta, game, seed] for game in games] for seed in seeds], dtype=np.float64)
            rows.append({"beta": f"{beta:g}", "games": len(games), "seeds": len(seeds)})
            for name, statistic in STATISTICS.items():
                rows[-1] |= estimated(name, statistic, normalized(raw, games))
        if rows:
            best = max(rows, key=lambda row: float(row["median"]))
            print(f"the best median of human-normalized scores, {best['median']:.3f}, is that of {best['beta']}")
        return rows
