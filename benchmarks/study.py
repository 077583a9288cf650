"""What all studies of mastery share: train, measure, write what was found into one folder."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv
from numpy.typing import NDArray
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback

from benchmarks import film, logs, run_folder
from benchmarks.worlds import SettingError, Tables, TabularVectorEnv, World
from sb3_manygoals import (
    ExactCheckpointCallback,
    ManyGoalsDQN,
    MasteryCallback,
    MasteryResult,
    PlannedTargets,
    evaluate_mastery,
)
from sb3_manygoals.evaluation import GoalReacher, MasteryPoint
from sb3_manygoals.goals import UNKNOWN
from sb3_manygoals.goals.environments import goal_trackers

if TYPE_CHECKING:
    from benchmarks.mastery import MasteryConfig

MANY = 2_000
"""With more goals than this the last measurement is of 2 starts each, else of 10."""

MOST_KNOWN = 1_000
"""Goals that are measured at most in a world that is not written out, whose steps take time."""


@dataclass(frozen=True)
class Subject:
    """Who is studied, and how it is looked at."""

    model: Any
    """The algorithm, a BaseAlgorithm with its environment and a ``predict`` towards goals."""
    world: World
    """Where it learns."""
    tables: Tables | None
    """That written out, as the model sees it; None: it cannot be."""
    held_out: NDArray[np.bool_]
    """Which of the goals that are measured are held out from training, shape (n_goals,)."""
    by_pictures: GoalReacher
    """The model as one that acts on the world's own observations, for the film."""
    states: NDArray[np.int64] | None = None
    """Which goals are measured, by the number of their state."""

    @property
    def algorithm(self) -> BaseAlgorithm:
        """The model, as SB3 knows it."""
        assert isinstance(self.model, BaseAlgorithm)
        return self.model

    @property
    def n_known(self) -> int:
        """Goals that it knows."""
        env = self.algorithm.get_env()
        assert env is not None
        return len(goal_trackers(env)[0].goal_buffer)


class ByPlan:
    """
    Acts by what PlannedTargets have planned, instead of by the network that learns it; at random where that says nothing.

    :param model: whose targets are planned
    :param seed: of random actions
    """

    def __init__(self, model: ManyGoalsDQN, seed: int) -> None:
        assert isinstance(model.targets, PlannedTargets)
        self.plan = model.targets.plan
        self.model = model
        self.rng = np.random.default_rng(seed)

    def predict(self, observation: dict[str, NDArray[Any]], *, deterministic: bool = False) -> tuple[NDArray[Any], Any]:
        """
        :param observation: "observation" and "desired_goal", of n worlds
        :param deterministic: not used
        :return: actions, shape (n,), and None
        """
        states, goals = self.model.replay_buffer.states, self.model.goal_buffer
        assert states is not None
        assert goals is not None
        actions = self.plan.best_actions(states.ids(observation["observation"]), goals.ids(observation["desired_goal"]))
        any_action = self.rng.integers(int(self.model.action_space.n), size=len(actions))  # type: ignore[attr-defined]
        return np.where(actions < 0, any_action, actions), None


class Clock(BaseCallback):
    """Takes the time of training where nothing is measured meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self._began, self._before = 0.0, 0.0

    @property
    def training_seconds(self) -> float:
        """Until now, or until training ended."""
        return self._before + (time.perf_counter() - self._began if self._began else 0.0)

    def _on_training_start(self) -> None:
        self._began = time.perf_counter()

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        self._before, self._began = self.training_seconds, 0.0

    def get_checkpoint_state(self) -> float:
        """:return: the time until now"""
        return self.training_seconds

    def set_checkpoint_state(self, state: float) -> None:
        """:param state: of :meth:`get_checkpoint_state`"""
        self._before = state


def saved_settings(folder: Path) -> dict[str, Any]:
    """
    :param folder: of a run
    :return: its settings, to go on with
    :raises FileNotFoundError: if it is no run's folder
    """
    settings: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))["settings"]
    return settings | {"output": Path(settings["output"]), "resume": folder}


class Resumable(Protocol):
    """The options of whatever can be gone on with."""

    @property
    def output(self) -> Path:
        """Folder in which the run's own folder is made."""

    @property
    def resume(self) -> Path | None:
        """Folder of a run to go on with."""


def open_folder(config: Resumable, name: str, packages: Sequence[str] = run_folder.PACKAGES) -> Path:
    """
    :param config: a dataclass, all that is set
    :param name: of the run
    :param packages: those whose versions matter
    :return: a new folder with ``config.json``, or the one of the run that goes on
    """
    if config.resume is not None:
        if (config.resume / "checkpoints").exists():  # else it begins only now
            run_folder.note_resumption(config.resume)
        return config.resume
    folder = run_folder.create(config.output, name)
    run_folder.write_config(folder, config, packages)
    return folder


def choose_held_out(n_goals: int, share: float, seed: int) -> NDArray[np.bool_]:
    """
    :param n_goals: number of goals
    :param share: of them to be held out, in [0, 1)
    :param seed: of the choice
    :return: which are held out, drawn at random, shape (n_goals,)
    :raises SettingError: if ``share`` is not in [0, 1)
    """
    if not 0.0 <= share < 1.0:
        raise SettingError(f"held_out must be in [0, 1), got {share}")
    held_out = np.zeros(n_goals, dtype=np.bool_)
    rng = np.random.default_rng((seed, 5))  # tagged: worlds draw with default_rng(seed)
    held_out[rng.permutation(n_goals)[: round(share * n_goals)]] = True
    return held_out


def carry_out(config: MasteryConfig, folder: Path, subject: Subject) -> dict[str, Any]:
    """
    Train, or go on training, measure, and write ``checkpoints/``, ``progress.csv``, ``mastery.csv``, ``goals.csv``,
    ``summary.csv``, ``model.zip``, ``goals.npz`` (but for tables), ``report.html``, TensorBoard events; where the world is
    written out, ``curve.png``; in TwoRoomsSwitch ``reaching.gif``.

    :param config: what to do
    :param folder: where to write
    :param subject: whom to train and measure
    :return: what ``summary.csv`` says
    """
    model, tables, held_out = subject.algorithm, subject.tables, subject.held_out
    reachable = "" if tables is None else f" {len(tables)} observations can be reached;"
    print(f"{subject.world.name}:{reachable} {config.total_steps} steps; writing to {folder}")
    curve = logs.CurveLog(folder / "mastery.csv", CURVE + (HELD_OUT_CURVE if held_out.any() else []))
    table = logs.CSVLog(folder / "progress.csv")
    callback: MasteryCallback | Clock = Clock()
    if tables is not None and subject.states is not None:
        assert config.eval_freq is not None
        some = np.sort(np.random.default_rng(1).permutation(len(subject.states))[: config.curve_goals])
        if held_out.any() and not held_out[some].any():  # of which there are few
            some = np.arange(len(subject.states))
        callback = MasteryCallback(
            TabularVectorEnv(tables, len(some)),
            tables.observations[subject.states[some]],
            config.eval_freq,
            config.eval_steps,
            config.eval_epsilon,
            lambda point: curve.add(_curve_row(point, held_out[some])),
            seed=config.seed,
            verbose=1,
        )
    checkpoints = ExactCheckpointCallback(
        folder / "checkpoints",
        every_seconds=60 * config.checkpoint_minutes,
        keep=2,
        extras={"mastery": callback, "mastery.csv": curve, "progress.csv": table},
        verbose=1,
    )
    resumed = checkpoints.resume(model, fallback=True)
    model.set_logger(logs.logger(folder, table, model.num_timesteps))
    if model.num_timesteps < config.total_steps:
        model.learn(
            config.total_steps - model.num_timesteps,
            [callback, checkpoints],
            log_interval=200,
            reset_num_timesteps=not resumed,
            progress_bar=config.progress_bar,
        )
    model.logger.close()
    model.save(folder / "model.zip")
    if hasattr(model, "goal_buffer"):
        model.goal_buffer.save(folder / "goals.npz")
    results = _measure(config, subject)
    greedy, noisy = results["greedy"], results["epsilon"]
    n_goals = len(greedy.reached)
    never = held_out if tables is not None else np.zeros(n_goals, dtype=np.bool_)
    _write_goals(folder / "goals.csv", greedy, noisy, never, _updates(subject, n_goals), subject.states)
    summary = _summary(config, subject, results, callback.training_seconds)
    with (folder / "summary.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, summary)
        writer.writeheader()
        writer.writerow(summary)
    if tables is not None:
        from benchmarks.report import figures  # here, as matplotlib and pandas take seconds to import

        figures.mastery_curve(folder / "mastery.csv", folder / "curve.png", config.eval_epsilon)
        if subject.world.is_two_rooms:
            film.reaching(
                subject.by_pictures,
                subject.world,
                greedy,
                folder / "reaching.gif",
                config.seed,
                config.eval_epsilon,
                states=subject.states,
            )
    from benchmarks.report import single

    single.write(folder)
    model.get_env().close()  # type: ignore[union-attr]
    for line in said(summary):
        print(line)
    print(f"open {folder / 'report.html'}")
    return summary


def _measure(config: MasteryConfig, subject: Subject) -> dict[str, MasteryResult]:
    """After training, of other starts than meanwhile."""
    tables = subject.tables
    env: VectorEnv[Any, Any, Any]
    if tables is None:
        known = subject.model.goal_buffer.observations
        rows = np.random.default_rng(0).permutation(len(known))[: min(MOST_KNOWN, config.most_goals)]
        goals, ceiling = known[np.sort(rows)], None
        env = SyncVectorEnv([subject.world.make] * min(len(goals), 64))
    else:
        goals, ceiling = tables.observations[subject.states], tables.ceiling(config.eval_steps)
        env = TabularVectorEnv(tables, len(goals))
    episodes = config.final_episodes or (2 if len(goals) > MANY else 10)

    def mastery(reacher: GoalReacher, epsilon: float = 0.0, with_ceiling: bool = False) -> MasteryResult:
        return evaluate_mastery(
            reacher,
            env,
            goals,
            config.eval_steps,
            epsilon,
            episodes_per_goal=episodes,
            seed=config.seed + 1_000,
            ceiling=ceiling if with_ceiling else None,
        )

    results = {"greedy": mastery(subject.model, with_ceiling=True), "epsilon": mastery(subject.model, config.eval_epsilon)}
    if isinstance(getattr(subject.model, "targets", None), PlannedTargets):
        results["plan"] = mastery(ByPlan(subject.model, config.seed))
    if subject.held_out.any():
        results |= {f"held_out_{name}": result.subset(subject.held_out) for name, result in results.items()}
    return results


def _summary(
    config: MasteryConfig, subject: Subject, results: dict[str, MasteryResult], training_seconds: float
) -> dict[str, Any]:
    """One row: empty where it is not known or has no meaning."""
    greedy, targets = results["greedy"], getattr(subject.model, "targets", None)
    row: dict[str, Any] = {
        "world": subject.world.name,
        "agent": config.agent,
        "seed": config.seed,
        "known": subject.n_known,
        "reachable": "" if subject.tables is None else len(subject.tables),
        "measured": len(greedy.reached),
    }
    for name in ("greedy", "epsilon", "plan", "held_out_greedy", "held_out_epsilon", "held_out_plan"):
        result = results.get(name)
        values = [""] * 3 if result is None else [round(value, 4) for value in (result.rate, *result.interval)]
        row |= dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))
    return row | {
        "ceiling": "" if greedy.ceiling is None else round(float(greedy.ceiling.mean()), 4),
        "training_seconds": round(training_seconds, 1),
        "steps": subject.algorithm.num_timesteps,
        "updates": subject.model._n_updates if hasattr(subject.model, "goal_updates") else "",
        "targets": "" if targets is None else type(targets).__name__,
    }


def said(summary: dict[str, Any]) -> list[str]:
    """
    :param summary: of a run
    :return: it in words
    """
    of = (
        f"of {summary['reachable']} reachable observations"
        if summary["reachable"]
        else "observations; how many can be reached is not known"
    )
    lines = [f"known: {summary['known']} {of}"]
    names = {"greedy": "greedy", "epsilon": "with random actions", "plan": "by the plan itself"}
    for held, where in (("", ""), ("held_out_", ", goals held out")):
        for name, words in names.items():
            rate, low, high = (summary[f"{held}{name}{end}"] for end in ("", "_low", "_high"))
            if rate != "":
                lines.append(f"mastered: {rate:.4f} [{low:.4f}, {high:.4f}] {words}{where}")
    if summary["ceiling"] != "":
        lines.append(f"the best possible policy, from the same starts: {summary['ceiling']:.4f}")
    updates = "" if summary["updates"] == "" else f", {summary['updates']} updates"
    targets = "" if not summary["targets"] else f", {summary['targets']}"
    lines.append(f"{summary['training_seconds']:.0f} s of training, {summary['steps']} steps{updates}{targets}")
    return lines


CURVE = ["step", "training_seconds", "greedy", "greedy_low", "greedy_high", "epsilon", "epsilon_low", "epsilon_high"]
"""Columns of ``mastery.csv``: mastery of all goals."""

HELD_OUT_CURVE = [f"held_out_{name}" for name in CURVE[2:]]
"""Further columns, of the goals that were held out, where there are any."""


def _curve_row(point: MasteryPoint, held_out: NDArray[np.bool_]) -> list[Any]:
    results = [point.greedy, point.epsilon]
    if held_out.any():
        results += [result.subset(held_out) for result in results]
    values = [value for result in results for value in (result.rate, *result.interval)]
    return [point.step, f"{point.training_seconds:.1f}", *(f"{value:.4f}" for value in values)]


def _updates(subject: Subject, n_goals: int) -> NDArray[np.int64]:
    """How often each goal was in an update."""
    model, tables = subject.model, subject.tables
    if not hasattr(model, "goal_updates"):  # a table, where each transition is an update of every goal
        return np.full(n_goals, subject.algorithm.num_timesteps)
    if tables is None:
        return np.zeros(n_goals, dtype=np.int64)
    ids = model.goal_buffer.ids(tables.observations[subject.states])
    counts: NDArray[np.int64] = np.where(ids == UNKNOWN, 0, model.goal_updates[ids])
    return counts


def _write_goals(
    path: Path,
    greedy: MasteryResult,
    noisy: MasteryResult,
    held_out: NDArray[np.bool_],
    updates: NDArray[np.int64],
    states: NDArray[np.int64] | None,
) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        outcomes = [f"{name}_{what}" for name in ("greedy", "epsilon") for what in ("reached", "mean_steps")]
        writer.writerow(["state", "held_out", "updates", *outcomes])
        for goal in range(len(greedy.reached)):
            row: list[Any] = [goal if states is None else states[goal], int(held_out[goal]), updates[goal]]
            for result in (greedy, noisy):
                steps = result.steps[goal][result.reached[goal]]
                row += [f"{result.reached[goal].mean():.2f}", f"{steps.mean():.1f}" if len(steps) else ""]
            writer.writerow(row)
