"""Many runs of the studies of mastery, summed up: tables and figures over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks import goal_tables, summary_plots, summary_tables, value_errors
from benchmarks.past_runs import PastRun, PastRunError, collect
from benchmarks.worlds import World
from gym_twoRooms.mdp import TwoRoomsMDP
from gym_twoRooms.oracle import expected_steps, reach_probabilities

MOST_PAIRS = 2**21
"""Starts and goals planned for at once are at most so many pairs, or one goal: some 100 bytes each."""


@dataclass(frozen=True)
class SummaryConfig:
    """Sum up runs of the mastery and tabular studies, finished or not, over their seeds: tables and figures."""

    runs: tuple[Path, ...]
    """Folders of runs, or folders below which they are. The folder in which a run lies names what it is a run of."""
    output: Path
    """Folder to write to; what an earlier summary left there is replaced."""
    base: str | None = None
    """What the time for a step is compared with, by the name of its folder."""
    values: bool = False
    """Also compare the values that one finished run of each kind has learnt with the exact ones."""
    goals: int = 256
    """Most goals for which exact plans are made, drawn at random from all."""

    def run(self) -> Path:
        """:return: the folder written to"""
        return run(self)


@dataclass(frozen=True)
class Plan:
    """What is known exactly of some goals of a world."""

    goals: NDArray[np.int64]
    """States, shape (G,)."""
    distances: NDArray[np.float64]
    """Steps that the best policy without a deadline takes to each goal from each state on average, shape (S, G)."""
    ceiling: float
    """Share of starts and goals for which the best policy gets there within the deadline."""


def plan(mdp: TwoRoomsMDP, most: int, horizon: int) -> Plan:
    """
    :param mdp: the world
    :param most: goals
    :param horizon: steps allowed
    :return: plans for that many goals drawn at random, or for all, or for as many as are planned for at once
    :raises ValueError: if ``most`` is not positive
    """
    if most < 1:
        raise ValueError(f"goals must be at least 1, got {most}")
    n_goals = min(most, mdp.n_states, max(1, MOST_PAIRS // mdp.n_states))
    goals = np.sort(np.random.default_rng(0).choice(mdp.n_states, n_goals, replace=False))
    ceiling = float(reach_probabilities(mdp, goals, horizon).mean())
    return Plan(goals, expected_steps(mdp, goals, tolerance=1e-3), ceiling)


def run(config: SummaryConfig) -> Path:
    """
    Write ``curves.csv``, ``finals.csv``, ``table.csv``, ``table.md``, ``updates.csv``, ``failures.csv``, ``steps.csv``, with
    ``values`` also ``values.csv``, and figures: ``mastery.png``, ``held_out.png``, ``updates.png``, ``failures_greedy.png``,
    ``failures_epsilon.png``, ``steps.png``, ``values.png``, those for which there is something to show.

    :param config: what to sum up
    :return: the folder
    :raises PastRunError: if there are no runs, or runs that do not go together
    """
    runs = collect(config.runs)
    epsilon = float(runs[0].settings["eval_epsilon"])
    table = summary_tables.table(runs, config.base)
    folder = config.output
    folder.mkdir(parents=True, exist_ok=True)
    mdp, exact = write_tables(runs, folder, config.goals, config.base)
    text = summary_tables.markdown(table, epsilon, config.base)
    (folder / "table.md").write_text(_caption(runs, mdp, exact) + "\n" + text, encoding="utf-8")
    summary_plots.mastery(folder / "curves.csv", folder / "mastery.png", epsilon, exact.ceiling)
    summary_plots.mastery(folder / "curves.csv", folder / "held_out.png", epsilon, exact.ceiling, held_out=True)
    summary_plots.updates(folder / "updates.csv", folder / "updates.png")
    for measure in ("greedy", "epsilon"):
        picture = folder / f"failures_{measure}.png"
        summary_plots.failures(folder / "failures.csv", picture, measure, mdp.layout, epsilon)
    summary_plots.steps(folder / "steps.csv", folder / "steps.png", epsilon)
    if config.values:
        errors = value_errors.values(value_errors.chosen(runs), mdp, exact.goals, exact.distances)
        summary_tables.write(folder / "values.csv", value_errors.VALUES, errors)
        summary_plots.values(folder / "values.csv", folder / "values.png")
    print(text)
    print(f"written to {folder}")
    return folder


def write_tables(
    runs: Sequence[PastRun], folder: Path, goals: int, base: str | None = None, prefix: str = ""
) -> tuple[TwoRoomsMDP, Plan]:
    """
    Write ``curves.csv``, ``finals.csv``, ``table.csv``, ``updates.csv``, ``failures.csv`` and ``steps.csv``.

    :param runs: that agree in what makes mastery comparable, at least one
    :param folder: to write to, which is there
    :param goals: most goals for which exact plans are made
    :param base: what the time for a step is compared with, a label
    :param prefix: of the files' names
    :return: their world, and what was planned in it
    :raises PastRunError: if there is no such label, or ``goals.csv`` of a run is of another world
    """
    settings = runs[0].settings
    world = World(settings["env_id"], settings.get("map"))
    if not world.is_two_rooms:
        raise PastRunError(f"runs must be in TwoRoomsSwitch, where exact plans are made, got {world.id}")
    mdp: TwoRoomsMDP = world.make().unwrapped.mdp  # type: ignore[attr-defined]
    for one in runs:
        if one.is_finished and len(one.outcomes.held_out) != mdp.n_states:
            got = f"{len(one.outcomes.held_out)} rows"
            raise PastRunError(f"goals.csv must have a row for each of {mdp.n_states} states, got {got} in {one.folder}")
    exact = plan(mdp, goals, int(settings["eval_steps"]))
    optimal = exact.distances.mean(axis=0)
    for name, columns, rows in (
        ("curves", summary_tables.CURVES, summary_tables.curves(runs)),
        ("finals", summary_tables.FINALS, summary_tables.finals(runs)),
        ("table", summary_tables.TABLE, summary_tables.table(runs, base)),
        ("updates", goal_tables.UPDATES, goal_tables.updates(runs)),
        ("failures", goal_tables.FAILURES, goal_tables.failures(runs, mdp)),
        ("steps", goal_tables.STEPS, goal_tables.steps(runs, exact.goals, optimal)),
    ):
        summary_tables.write(folder / f"{prefix}{name}.csv", columns, rows)
    return mdp, exact


def _caption(runs: list[PastRun], mdp: TwoRoomsMDP, exact: Plan) -> str:
    settings = runs[0].settings
    return (
        f"{settings['env_id']}. Mastery after training of {mdp.n_states} goals, those held out included, within "
        f"{settings['eval_steps']} steps: means of finished runs, with 95% Student t intervals over seeds. Steps: those at "
        f"which so much was first measured at epsilon {settings['eval_epsilon']:g}. Steps and seconds, of training alone, are "
        f"medians over seeds; the time is that of a step. The best policy reaches {exact.ceiling:.4f} of {len(exact.goals)} "
        "goals from all starts.\n"
    )
