"""What each rule for choosing goals costs: whole training steps with it, beside those with uniform choice."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch as th

from benchmarks import rounds, run_folder
from benchmarks.mastery import PRESETS, SELECTORS, all_goals
from benchmarks.rounds import Contender, Figure
from sb3_manygoals import ManyGoalsDQN

MOST = {"learning_progress": 1.2}
"""What a rule's step should cost at most, in steps with uniform choice."""


@dataclass(frozen=True)
class SelectionSpeedConfig:
    """Time training at the paper's setting with each rule for choosing goals, all goals known, in turn."""

    rounds: int = 7
    """Times that each is measured; medians are reported, of ratios those of the ratios within a round."""
    env_id: str = "TwoRoomsSwitch-v0"
    """The world."""
    steps: int = 500
    """Environment steps in each measurement."""
    threads: int = 1
    """Torch threads."""
    output: Path = Path("runs")
    """Folder in which the run's own folder is made."""

    def run(self) -> Path:
        """:return: the run's folder"""
        return run(self)


def run(config: SelectionSpeedConfig) -> Path:
    """
    Measure, print, and write ``selection.csv`` and ``config.json``.

    :param config: what to run
    :return: the folder
    """
    th.set_num_threads(config.threads)
    folder = run_folder.create(config.output, "selection")
    run_folder.write_config(folder, config)
    contenders = [
        Contender(rule, rule.replace("_", " "), "steps/s", rounds.training(learner(rule, config.env_id), config.steps))
        for rule in SELECTORS
    ]
    figures = [
        Figure(f"time of a step: {rule.replace('_', ' ')} / uniform", "uniform", rule, "<=", MOST.get(rule))
        for rule in SELECTORS
        if rule != "uniform"
    ]
    measured = rounds.measure(contenders, config.rounds)
    rounds.write(folder / "selection.csv", contenders, measured)
    rounds.show(contenders, figures, measured)
    print(f"written to {folder}")
    return folder


def learner(rule: str, env_id: str) -> ManyGoalsDQN:
    """
    :param rule: one of :data:`~benchmarks.mastery.SELECTORS`
    :param env_id: of a TwoRoomsSwitch world
    :return: the paper's agent, which knows all goals, after its first updates
    """
    agent = replace(PRESETS["paper"].agent, selection=rule, learning_starts=100)  # type: ignore[arg-type]
    model = agent.make(env_id, 10**6, seed=0, device="cpu")
    assert model.goal_buffer is not None
    model.goal_buffer.add(all_goals(env_id))
    return model.learn(120)
