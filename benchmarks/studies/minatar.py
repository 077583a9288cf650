"""The agents of the paper's sections 4 and 5 in MinAtar's five games, and the search for the weights of auxiliary tasks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro

from benchmarks.auxiliary import WORLDS
from benchmarks.pretraining import WORLDS as PRETRAINING
from benchmarks.scores import estimated, interquartile_mean, normalized, probability_of_improvement, read_table
from benchmarks.studies.study import Options, Study, StudyConfig, carry_out
from benchmarks.suite import Result, Spec
from benchmarks.suite.run import SuiteConfig

__all__ = ["carry_out"]

SUITE = SuiteConfig(root=Path("runs/minatar-study"))

Part = Literal["agents", "search"]

GAMES = tuple(read_table("minatar").index)

TUNING = ("asterix", "breakout")
"""Games of the search, named before it."""

WEIGHTS = {
    "many_goals": (0.02, 0.1, 0.5, 2.0),
    "pixel_control": (1e-4, 1e-3, 1e-2, 1e-1),
    "reward_prediction": (0.003, 0.01, 0.03, 0.1),
}
"""Weights to try: the paper's beta and larger ones; around the values of Jaderberg et al. (2017), but less for rewards, as
their 1 ruins A2C in Asterix."""

MINATAR: Options = {"world": "minatar"}
PRETRAINED: Options = {**MINATAR, "command": "pretraining"}

AGENTS: dict[str, Options] = {
    "a2c": {**MINATAR, "agent": "a2c"},
    "many-goals": {**MINATAR, "agent": "many_goals", "weight": 0.5},
    "many-goals-beta-0.02": {**MINATAR, "agent": "many_goals", "weight": 0.02},  # the paper's
    "pixel-control": {**MINATAR, "agent": "pixel_control", "weight": 0.01},
    "reward-prediction": {**MINATAR, "agent": "reward_prediction", "weight": 0.3},
    "many-goals-pretraining": {**PRETRAINED, "agent": "many_goals"},
    "reward-prediction-pretraining": {**PRETRAINED, "agent": "reward_prediction"},
}
"""With the weights that the search found, and the paper's beta."""

STEPS = WORLDS["minatar"].steps
ROWS = STEPS // WORLDS["minatar"].eval_freq

SEARCH = {
    f"{task}-{weight:g}": {**MINATAR, "agent": task, "weight": weight} for task, tried in WEIGHTS.items() for weight in tried
}

PARTS: dict[Part, Study] = {
    "agents": Study("minatar", "auxiliary", AGENTS, GAMES, STEPS, ROWS),
    "search": Study("minatar", "auxiliary", {"a2c": AGENTS["a2c"], **SEARCH}, TUNING, STEPS // 4, ROWS // 4),
}


@dataclass(frozen=True)
class MinAtarStudyConfig(StudyConfig):
    """A part of the study in MinAtar: carry out what has not finished, and compare what has in comparison.csv."""

    suite: Annotated[SuiteConfig, tyro.conf.arg(name="")] = SUITE
    part: Part = "agents"
    """All agents in all games; or the search for the weights, in two games and a quarter of the steps."""
    seeds: int = 5
    """Runs of each agent in each game, with the seeds from 0 on."""
    games: tuple[str, ...] = ()
    """In which; by default those of the part."""

    def specs(self) -> list[Spec]:
        """The runs. Pre-training has its steps whatever the steps of a run."""
        least = PRETRAINING["minatar"].pretrain_steps
        if self.part == "agents" and self.steps is not None and self.steps <= least:
            raise ValueError(f"steps must be more than those of pre-training, {least}, got {self.steps}")
        return PARTS[self.part].specs(self.seeds, self.steps, self.games, self.only)

    def compare(self, finished: Iterable[Result]) -> list[dict[str, Any]]:
        """
        A row for each agent over the games in which it and A2C have the same seeds, two or more: interquartile means of the
        normalized scores after training and of the normalized mean returns on the way there, the probability that a run is
        better than one of A2C, each with a bootstrap interval (95%), and the mean score in each game.
        """
        values: dict[str, dict[tuple[str, int], Any]] = {}
        for each in finished:
            values.setdefault(each.spec.agent, {})[each.spec.game, each.spec.seed] = each.values
        base, rows = values.get("a2c", {}), []
        for agent, ours in values.items():
            seeds = {game: sorted(seed for where, seed in ours.keys() & base.keys() if where == game) for game in GAMES}
            fewest = min((len(each) for each in seeds.values() if each), default=0)
            games = [game for game in GAMES if seeds[game]]
            if fewest < 2:
                continue
            row: dict[str, Any] = {"agent": agent, "games": len(games), "seeds": fewest}
            for measure in ("score", "mean_return"):
                raw = [
                    np.array(
                        [[runs[game, seeds[game][n]][measure] for game in games] for n in range(fewest)], dtype=np.float64
                    )
                    for runs in (ours, base)
                ]
                scored = [normalized(each, games) for each in raw]
                row |= estimated(measure, interquartile_mean, scored[0])
                if agent != "a2c":
                    row |= estimated(f"{measure}_better", probability_of_improvement, *scored)
                row |= {f"{measure}_{game}": float(mean) for game, mean in zip(games, raw[0].mean(axis=0), strict=True)}
            rows.append(row)
        return sorted(rows, key=lambda row: -float(row["score"]))
