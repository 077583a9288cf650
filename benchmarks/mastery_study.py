"""Section 3 of the paper, and what goes beyond it, as a suite: who is compared with whom, where, for how long, how often."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import tyro

from benchmarks import run_folder
from benchmarks.mastery import SELECTORS, Agent, MasteryConfig
from benchmarks.suite import Spec
from benchmarks.suite.run import Outcome, SuiteConfig

Options = dict[str, Any]

PAPERS_MAP, SMALL_MAP = "TwoRoomsSwitch-v0", "TwoRoomsSwitchSmall-v0"

AGENTS: dict[str, Options] = {name: {"agent": name} for name in get_args(Agent)}
"""Every agent."""

RULES: dict[str, Options] = {name.replace("_", "-"): {"selection": name} for name in SELECTORS if name != "uniform"}
"""The default under each rule by which goals are pursued, but for the uniform one."""

PLANNED: Options = {"target_class": "sb3_manygoals:PlannedTargets"}

ABLATIONS: dict[str, Options] = {
    "no-best-action-loss": {"agent_kwargs": PLANNED | {"target_kwargs": {"best_weight": 0.0}}},
    "no-near-weights": {"agent_kwargs": PLANNED | {"target_kwargs": {"near_decay": 1.0}}},
    "relu": {"agent_kwargs": {"policy_kwargs": {"activation_fn": "torch.nn:ReLU"}}},
    "bilinear-head": {"agent_kwargs": {"policy_kwargs": {"head": "bilinear"}}},
    "no-ema_decay": {"agent_kwargs": {"policy_kwargs": {"ema_decay": 0.0}}},
    "no-standardization": {"agent_kwargs": {"policy_kwargs": {"standardize": False}}},
    "worlds-reset": {"agent_kwargs": {"goal_wrapper_kwargs": {"reset_worlds": True}}},
    "worlds-not-reset": {"agent_kwargs": {"goal_wrapper_kwargs": {"reset_worlds": False}}},
    "td-targets": {"agent": "td"},
}
"""The default with one thing changed."""

ON_POLICY: Options = {"batch_size": 16, "target_kwargs": {"goal_sampling": "behavior"}}
"""16 transitions from the same replay memory, each teaching its own goal; as many updates as the others make."""

PAPER: dict[str, Options] = {
    "uniform": {"agent": "paper"},
    "learning-progress": {"agent": "paper", "selection": "learning_progress"},
    "on-policy": {"agent": "paper", "agent_kwargs": ON_POLICY},
}
"""The paper's agents, with its settings."""

HELD_OUT: Options = {"held_out": 0.2}
"""As many goals as in the paper's second experiment."""

WORLDS: dict[str, tuple[str, int]] = {
    "small": (SMALL_MAP, 50_000),
    "locks": (PAPERS_MAP, 500_000),
    "empty": ("MiniGrid-Empty-8x8-v0", 200_000),
    "four-rooms": ("MiniGrid-FourRooms-v0", 200_000),
    "door-key": ("MiniGrid-DoorKey-6x6-v0", 200_000),
    "frozen-lake": ("FrozenLake8x8-v1", 200_000),
    "taxi": ("Taxi-v4", 200_000),
    "cliff": ("CliffWalking-v1", 200_000),
}
"""Worlds in which the default is tried, each for so many steps."""

Part = Literal["agents", "map", "worlds", "held-out", "ablations", "paper", "generalization"]

PARTS: dict[Part, tuple[str, int, dict[str, Options]]] = {
    "agents": (SMALL_MAP, 120_000, AGENTS | RULES),
    "map": (PAPERS_MAP, 500_000, AGENTS),
    "worlds": ("", 0, {name: {"map": "locks"} if name == "locks" else {} for name in WORLDS}),
    "held-out": (PAPERS_MAP, 500_000, {name: AGENTS[name] | HELD_OUT for name in ("default", "td")}),
    "ablations": (PAPERS_MAP, 500_000, {"default": {}} | ABLATIONS),
    "paper": (PAPERS_MAP, 3_000_000, PAPER | {"table": {"agent": "table"}}),
    "generalization": (PAPERS_MAP, 3_000_000, {name: options | HELD_OUT for name, options in PAPER.items()}),
}
"""World, environment steps and agents of each; those of "worlds" are in WORLDS."""


def specs(part: Part, seeds: int, steps: int | None = None) -> list[Spec]:
    """
    :param part: of the study
    :param seeds: how many, from 0 on
    :param steps: environment steps of a run, None for those of the part
    :return: the runs, all agents of one seed before the next seed
    :raises ValueError: if there are no seeds
    """
    if seeds < 1:
        raise ValueError(f"seeds must be at least 1, got {seeds}")
    world, usual, agents = PARTS[part]
    found = []
    for seed in range(seeds):
        for name, options in agents.items():
            where, long = WORLDS[name] if part == "worlds" else (world, usual)
            own = f"{part}-{name}"
            found.append(
                Spec("benchmarks.mastery_study:carry_out", own, where, seed, long if steps is None else steps, options)
            )
    return found


def configuration(spec: Spec) -> MasteryConfig:
    """
    :param spec: of a run
    :return: its settings
    """
    options = {"agent_kwargs": {}} | dict(spec.settings)
    return MasteryConfig(
        env_id=spec.game,
        total_steps=spec.steps,
        seed=spec.seed,
        eval_freq=max(1, spec.steps // 12),
        progress_bar=False,
        **options | {"agent_kwargs": json.dumps(options["agent_kwargs"])},
    )


def carry_out(spec: Spec, folder: Path) -> Mapping[str, Any]:
    """
    Do a run, or go on with it, in a folder whose parent has the agent's name, by which ``summary`` knows it.

    :param spec: the run
    :param folder: of the run
    :return: the numbers of its summary
    """
    own = folder / spec.agent / "run"
    run_folder.carry_out(configuration(spec), own)
    with (own / "summary.csv").open(newline="", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    said = {name: value for name, value in row.items() if value and name not in ("world", "agent", "seed", "targets")}
    return {name: float(value) for name, value in said.items()}


@dataclass(frozen=True)
class MasteryStudyConfig:
    """A part of the study of mastery: carry out what has not finished. Then: ``summary --runs ROOT/PART-* --output DIR``."""

    suite: Annotated[SuiteConfig, tyro.conf.arg(name="")] = field(
        default_factory=lambda: SuiteConfig(root=Path("runs/mastery-study"))
    )
    part: Part = "agents"
    """All agents, and the default under every rule for choosing goals, on the small map; all agents on the paper's map; the
    default in other worlds; with goals held out; with one thing changed; the paper's two experiments with its settings."""
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
