"""Section 3 of the paper, and what goes beyond it, as a suite: who is compared with whom, for how long, how often."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from benchmarks import run_folder
from benchmarks.hindsight import HindsightConfig
from benchmarks.mastery import PRESETS
from benchmarks.study import StudyConfig
from benchmarks.suite import Spec
from benchmarks.suite.config import SuiteConfig
from benchmarks.suite.drive import Outcome
from benchmarks.tabular import TabularConfig

SELECTIONS = ("learning_progress", "smoothed_progress", "intermediate_difficulty", "least_visited", "value_disagreement")

AGENTS: dict[str, dict[str, Any]] = {
    "uniform": {},
    **{selection.replace("_", "-"): {"agent": {"selection": selection}} for selection in SELECTIONS},
    "on-policy": {"agent": {"goal_sampling": "pursued"}},
    "hindsight": {"study": "hindsight"},
}
"""Many goals under each rule by which goals are pursued, the paper's on-policy baseline, and SB3's DQN + HerReplayBuffer: what
each changes of the preset "small"."""

TABLE: dict[str, dict[str, Any]] = {"table": {"study": "tabular", "n_envs": 8}}
"""The paper's other baseline, which can say nothing of goals held out."""

ABLATIONS: dict[str, dict[str, Any]] = {
    "preset": {},
    "double-q": {"agent": {"double_q": True}},
    "three-steps": {"agent": {"n_steps": 3}},
    "no-layer-norm": {"agent": {"layer_norm": False}},
    "no-standardization": {"agent": {"standardize": False}},
    "averaged-weights": {"agent": {"averaging": 0.995}},
    "uniform-goals": {"agent": {"goal_sampling": "uniform"}},
    "half-batch-goals": {"agent": {"batch_goal_share": 0.5}},
    "all-goals": {"agent": {"goal_sampling": "all"}},
    "rmsprop": {"agent": {"optimizer": "rmsprop", "rmsprop_epsilon": 1e-5}},
    "constant-step-size": {"agent": {"decay": False}},
    "near-weights": {"agent": {"near_decay": 0.9}},
    "action-gap": {"agent": {"action_gap": 0.5}},
    "distance-head": {"agent": {"head": "distance", "embedding_dim": 128}},
    "mlp-trunk": {"agent": {"trunk": "mlp"}},
}
"""The preset "small" with one thing changed."""

PAPER: dict[str, dict[str, Any]] = {
    "uniform": {"preset": "paper"},
    "learning-progress": {"preset": "paper-learning-progress"},
    "on-policy": {"preset": "paper-on-policy"},
}
"""The paper's agents, with its settings."""

HELD_OUT = 0.2
"""Share of goals held out in the second experiment, as in the paper."""

FAST: dict[str, dict[str, Any]] = {
    "all": {"preset": "fast", "eval_freq": 100_000},
    "held-out": {"preset": "fast", "eval_freq": 100_000, "held_out": HELD_OUT},
}
"""Both experiments on the paper's map with what masters it soonest."""

FAST_ABLATIONS: dict[str, dict[str, Any]] = {
    name: {"preset": "fast", "eval_freq": 100_000, "agent": changed}
    for name, changed in {
        "no-margin": {"margin_weight": 0.0},
        "no-near-weights": {"near_decay": 1.0},
        "no-margin-no-near-weights": {"margin_weight": 0.0, "near_decay": 1.0},
        "as-they-came": {"plan_evenly": False},
        "no-plan": {"plan_interval": 0, "plan_evenly": False, "margin_weight": 0.0},
    }.items()
}
"""The preset "fast" with one thing changed, or, where one needs another, two; transitions drawn as they came, not evenly."""

Part = Literal["agents", "held-out", "ablations", "table", "fast", "fast-ablations", "paper", "generalization"]

STEPS: dict[Part, int] = {
    "agents": 120_000,
    "held-out": 120_000,
    "ablations": 80_000,
    "table": 3_000_000,
    "fast": 500_000,
    "fast-ablations": 500_000,
    "paper": 3_000_000,
    "generalization": 3_000_000,
}
"""Environment steps of a run; what the preset scales by them is scaled."""


def specs(part: Part, seeds: int, steps: int | None = None) -> list[Spec]:
    """
    :param part: of the study: the agents on the small map; the same with goals held out; the small preset with one thing
        changed; the lookup table on the paper's map; the preset "fast" there, without goals held out and with; that with
        one thing changed; the paper's two experiments there, likewise
    :param seeds: how many, from 0 on
    :param steps: environment steps of a run, None for those of the part
    :return: the runs, all agents of one seed before the next seed
    :raises ValueError: if there are no seeds
    """
    if seeds < 1:
        raise ValueError(f"seeds must be at least 1, got {seeds}")
    small = "TwoRoomsSwitchSmall-v0"
    agents = {
        "agents": AGENTS | TABLE,
        "held-out": {name: {**options, "held_out": HELD_OUT} for name, options in AGENTS.items()},
        "ablations": ABLATIONS,
        "table": {"table": {"study": "tabular"}},
        "fast": FAST,
        "fast-ablations": FAST_ABLATIONS,
        "paper": PAPER | {"table": {"study": "tabular"}},
        "generalization": {name: {**options, "held_out": HELD_OUT} for name, options in PAPER.items()},
    }[part]
    world = small if part in ("agents", "held-out", "ablations") else "TwoRoomsSwitch-v0"
    return [
        Spec(
            "benchmarks.mastery_study:carry_out",
            f"{part}-{name}",
            world,
            seed,
            STEPS[part] if steps is None else steps,
            options,
        )
        for seed in range(seeds)
        for name, options in agents.items()
    ]


def configuration(spec: Spec) -> StudyConfig:
    """
    :param spec: of a run
    :return: its settings. Epsilon falls over the same share of the run as in the preset
    """
    options = dict(spec.settings)
    study = options.pop("study", "mastery")
    common: dict[str, Any] = {
        "env_id": spec.game,
        "total_steps": spec.steps,
        "seed": spec.seed,
        "eval_freq": max(1, spec.steps // 12),
        "progress_bar": False,
    }
    if study == "hindsight":
        return replace(HindsightConfig(), **common | options)
    if study == "tabular":
        table = TabularConfig()
        return replace(table, **common | options, exploration_steps=_scaled(table.exploration_steps, table, spec))
    preset = PRESETS[options.pop("preset", "small")]
    agent = replace(preset.agent, exploration_steps=_scaled(preset.agent.exploration_steps, preset, spec))
    agent = replace(agent, **options.pop("agent", {}))
    return replace(preset, **common | options, agent=agent)


def _scaled(steps: int, default: StudyConfig, spec: Spec) -> int:
    return max(1, steps * spec.steps // default.total_steps)


def carry_out(spec: Spec, folder: Path) -> Mapping[str, Any]:
    """
    Do a run, or go on with it, in a folder whose parent has the agent's name, by which ``summary`` knows it.

    :param spec: the run
    :param folder: of the run
    :return: mastery after training, greedy and with random actions, of all goals and of those held out
    """
    own = folder / spec.agent / "run"
    run_folder.carry_out(configuration(spec), own)
    with (own / "goals.csv").open(newline="", encoding="utf-8") as file:
        goals = list(csv.DictReader(file))
    chosen = {"all": goals, "held_out": [goal for goal in goals if int(goal["held_out"])]}
    return {
        f"{measure}_{name}": sum(float(goal[f"{measure}_reached"]) for goal in rows) / len(rows)
        for name, rows in chosen.items()
        for measure in ("greedy", "epsilon")
        if rows
    }


@dataclass(frozen=True)
class MasteryStudyConfig:
    """A part of the study of mastery: carry out what has not finished. Then: ``summary --runs ROOT/PART-* --output DIR``."""

    suite: Annotated[SuiteConfig, tyro.conf.arg(name="")] = field(
        default_factory=lambda: SuiteConfig(root=Path("runs/mastery-study"))
    )
    part: Part = "agents"
    """The agents on the small map; the same with goals held out; the small preset with one thing changed; the lookup table on
    the paper's map; the preset "fast" there, without goals held out and with; that with one thing changed; the paper's two
    experiments there, likewise."""
    seeds: int = 6
    """Runs of each agent, with the seeds from 0 on."""
    steps: int | None = None
    """Environment steps of a run; by default those of the part."""
    only: tuple[str, ...] = ()
    """Agents to run, by name without the part's; by default all."""

    def run(self) -> Outcome | None:
        """
        :return: what became of the runs; None where they are only listed
        :raises ValueError: if there is no such agent
        """
        suite = specs(self.part, self.seeds, self.steps)
        names = {spec.agent.removeprefix(f"{self.part}-") for spec in suite}
        if not names.issuperset(self.only):
            raise ValueError(f"only must name agents of {', '.join(sorted(names))}, got {' '.join(self.only)}")
        wanted = {f"{self.part}-{name}" for name in self.only or names}
        return self.suite.run(spec for spec in suite if spec.agent in wanted)
