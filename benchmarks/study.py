"""What all studies of mastery share: train, measure, write what was found into one folder."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.base_class import BaseAlgorithm

from benchmarks import film, logs, plotting, report, run_folder
from sb3_manygoals import ExactCheckpointCallback, MasteryCallback, MasteryResult, evaluate_mastery
from sb3_manygoals.evaluation import Ceiling, GoalReacher, MasteryPoint


@dataclass(frozen=True)
class StudyConfig:
    """The options of every study."""

    env_id: str = "TwoRoomsSwitch-v0"
    """The world."""
    total_steps: int = 3_000_000
    """Environment steps to train for."""
    seed: int = 0
    """Of everything random."""
    eval_freq: int = 100_000
    """Environment steps between measurements of mastery."""
    eval_epsilon: float = 0.1
    """Mastery is measured greedily, and with this share of random actions."""
    eval_steps: int = 200
    """Steps within which a goal must be reached."""
    final_episodes: int = 10
    """Random starts for each goal in the measurement after training."""
    output: Path = Path("runs")
    """Folder in which the run's own folder is made."""
    progress_bar: bool = True
    """Show one while training."""
    checkpoint_minutes: float = 5.0
    """Minutes between checkpoints; one more is written when the run is told to end by SIGTERM or Ctrl-C."""
    resume: Path | None = None
    """Folder of a run to go on with, from its newest checkpoint, or from the start if it has none. The defaults of all other
    options are then that run's."""


@dataclass(frozen=True)
class Subject:
    """Who is studied, and how it is looked at."""

    model: Any
    """The algorithm, a BaseAlgorithm with its environment and a ``predict`` towards goals."""
    eval_env: gym.vector.VectorEnv[Any, Any, Any]
    """Worlds as the model sees them, for measurements."""
    goals: NDArray[Any]
    """Every observation that they show, in order of the world's states."""
    held_out: NDArray[np.bool_]
    """Which of them are held out from training, shape (n_goals,)."""
    ceiling: Ceiling
    """The best that can be done about ``goals``."""
    by_pictures: GoalReacher
    """The model as one that acts on pictures, for the film."""

    @property
    def algorithm(self) -> BaseAlgorithm:
        """The model, as SB3 knows it."""
        assert isinstance(self.model, BaseAlgorithm)
        return self.model


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
    :raises ValueError: if ``share`` is not in [0, 1)
    """
    if not 0.0 <= share < 1.0:
        raise ValueError(f"held_out must be in [0, 1), got {share}")
    held_out = np.zeros(n_goals, dtype=np.bool_)
    rng = np.random.default_rng((seed, 5))  # tagged: worlds draw with default_rng(seed)
    held_out[rng.permutation(n_goals)[: round(share * n_goals)]] = True
    return held_out


def carry_out(config: StudyConfig, folder: Path, subject: Subject) -> tuple[MasteryResult, MasteryResult]:
    """
    Train, or go on training, measure, and write ``checkpoints/``, ``progress.csv``, ``mastery.csv``, ``goals.csv``,
    ``model.zip``, ``goals.npz`` (but for tables), ``curve.png``, ``reaching.gif``, ``report.html``, TensorBoard events.

    :param config: what to do
    :param folder: where to write
    :param subject: whom to train and measure
    :return: final mastery, greedy and with random actions
    """
    model, held_out = subject.algorithm, subject.held_out
    print(f"{config.env_id}: {len(subject.goals)} goals; {config.total_steps} steps; writing to {folder}")
    columns = CURVE + (HELD_OUT_CURVE if held_out.any() else [])
    curve, table = logs.CurveLog(folder / "mastery.csv", columns), logs.CSVLog(folder / "progress.csv")
    callback = MasteryCallback(
        subject.eval_env,
        subject.goals,
        config.eval_freq,
        config.eval_steps,
        config.eval_epsilon,
        lambda point: curve.add(_curve_row(point, held_out)),
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
    greedy, noisy = (_final(config, subject, epsilon) for epsilon in (0.0, config.eval_epsilon))
    _write_goals(folder / "goals.csv", greedy, noisy, held_out, _updates(subject))
    plotting.mastery_curve(folder / "mastery.csv", folder / "curve.png", config.eval_epsilon)
    film.reaching(subject.by_pictures, config.env_id, greedy, folder / "reaching.gif", config.seed, config.eval_epsilon)
    results = [("greedy", greedy), (f"epsilon {config.eval_epsilon:g}", noisy)]
    if held_out.any():
        results += [(f"{name}, held-out goals", result.subset(held_out)) for name, result in results]
    report.write(folder, config.env_id, results, callback.training_seconds)
    subject.eval_env.close()
    model.get_env().close()  # type: ignore[union-attr]
    for name, result in results:
        low, high = result.interval
        print(f"mastery {result.rate:.3f} [{low:.3f}, {high:.3f}] {name}")
    assert greedy.ceiling is not None
    print(f"the best possible policy, from the same starts: {greedy.ceiling.mean():.4f}")
    print(f"training took {callback.training_seconds:.0f} s without the measurements; open {folder / 'report.html'}")
    return greedy, noisy


def _final(config: StudyConfig, subject: Subject, epsilon: float) -> MasteryResult:
    return evaluate_mastery(
        subject.model,
        subject.eval_env,
        subject.goals,
        config.eval_steps,
        epsilon,
        episodes_per_goal=config.final_episodes,
        seed=config.seed + 1_000,  # other starts than while training
        ceiling=subject.ceiling if epsilon == 0.0 else None,
    )


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


def _updates(subject: Subject) -> NDArray[np.int64]:
    """How often each goal was in an update."""
    model = subject.model
    if not hasattr(model, "goal_updates"):  # a table, where each transition is an update of every goal
        return np.full(len(subject.goals), subject.algorithm.num_timesteps)
    ids = model.goal_buffer.ids(subject.goals)
    counts: NDArray[np.int64] = np.where(ids < 0, 0, model.goal_updates[ids])
    return counts


def _write_goals(
    path: Path, greedy: MasteryResult, noisy: MasteryResult, held_out: NDArray[np.bool_], updates: NDArray[np.int64]
) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        outcomes = [f"{name}_{what}" for name in ("greedy", "epsilon") for what in ("reached", "mean_steps")]
        writer.writerow(["state", "held_out", "updates", *outcomes])
        for goal in range(len(greedy.reached)):
            row: list[Any] = [goal, int(held_out[goal]), updates[goal]]
            for result in (greedy, noisy):
                steps = result.steps[goal][result.reached[goal]]
                row += [f"{result.reached[goal].mean():.2f}", f"{steps.mean():.1f}" if len(steps) else ""]
            writer.writerow(row)
