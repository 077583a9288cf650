"""What auxiliary tasks cost beside A2C alone, in wall-clock time; the room of the episode buffer, and how long draws take."""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch as th
from gymnasium import spaces
from rich.console import Console
from rich.table import Table
from stable_baselines3 import A2C
from stable_baselines3.common.vec_env import VecEnv

from benchmarks import auxiliary, rounds, run_folder
from benchmarks.auxiliary import PACKAGES, AuxiliaryConfig
from benchmarks.auxiliary_presets import K_BEST_EPISODES, N_ENVS, TASKS
from benchmarks.rounds import Contender, Figure
from sb3_manygoals.auxiliary import AuxiliaryCallback, EpisodeBuffer

MOST_BYTES = 2 * 2**30
"""That a full buffer should take."""

FIGURES = (
    Figure("time of a step: A2C + many goals / A2C", "a2c", "many_goals", "<=", 2.0),
    Figure("time of a step: A2C + pixel control / A2C", "a2c", "pixel_control"),
    Figure("time of a step: A2C + reward prediction / A2C", "a2c", "reward_prediction"),
)
"""Ratios of steps a second, of A2C alone by the others."""

BUFFER = ["game", "episodes", "transitions", "frames", "bytes", "bytes_per_frame", "times_smaller", "fill_seconds"]
"""Columns of ``buffer.csv``; ``times_smaller`` than the frames as they are."""


@dataclass(frozen=True)
class AuxiliarySpeedConfig:
    """Time A2C with each auxiliary task and alone, in turn, and draws from a full episode buffer; measure its room."""

    rounds: int = 7
    """Times that each contender is measured; medians are reported, of ratios those of the ratios within a round."""
    games: tuple[str, ...] = ("Breakout", "Assault")
    """Games whose episodes fill a buffer; training is timed in the first."""
    episodes: int = K_BEST_EPISODES
    """Episodes of random play in the buffer."""
    training_steps: int = 4_000
    """Steps in each measurement of training, all copies' together."""
    n_envs: int = N_ENVS
    """Copies of the game in which each acts at once."""
    draws: int = 50
    """Batches in each measurement of draws."""
    threads: tuple[int, ...] = tuple(dict.fromkeys((1, os.cpu_count() or 1)))
    """Numbers of torch threads to measure with, one after the other."""
    output: Path = Path("runs")
    """Folder in which the run's own folder is made."""

    def __post_init__(self) -> None:
        if not self.games:
            raise ValueError("games must name at least one game")
        for name in ("rounds", "episodes", "training_steps", "n_envs", "draws"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    def run(self) -> Path:
        """:return: the run's folder"""
        return run(self)


def run(config: AuxiliarySpeedConfig) -> Path:
    """
    Measure, print, and write ``auxiliary-<n>-threads.csv``, ``buffer.csv`` and ``config.json``.

    :param config: what to run
    :return: the folder
    """
    folder = run_folder.create(config.output, "auxiliary-speed")
    record = run_folder.write_config(folder, config, (*run_folder.PACKAGES, *PACKAGES["atari"]))
    print(", ".join([record["machine"]["processor"], *(f"{name} {version}" for name, version in record["versions"].items())]))
    rows: list[dict[str, str | float]] = []
    for game in reversed(config.games):  # the first is needed for longer
        episodes, row = filled(game, config.episodes, config.n_envs)
        rows.insert(0, row)
    write_buffers(folder / "buffer.csv", rows)
    base = AuxiliaryConfig(game=config.games[0], n_envs=config.n_envs)
    models = {agent: auxiliary.make(replace(base, agent=agent)) for agent in ("a2c", *TASKS)}  # type: ignore[arg-type]
    try:
        entrants = contenders(config, models, episodes)
        for threads in config.threads:
            th.set_num_threads(threads)
            measured = rounds.measure(entrants, config.rounds)
            rounds.write(folder / f"auxiliary-{threads}-threads.csv", entrants, measured)
            print(f"\n{config.games[0]}, {len(episodes)} episodes, {threads} torch thread(s)")
            rounds.show(entrants, FIGURES, measured)
    finally:
        for model, _ in models.values():
            assert model.env is not None
            model.env.close()
    show_buffers(rows)
    print(f"written to {folder}")
    return folder


def filled(game: str, n_episodes: int, n_envs: int) -> tuple[EpisodeBuffer, dict[str, str | float]]:
    """
    :param game: its name
    :param n_episodes: of random play
    :param n_envs: copies of the game that are played at once
    :return: a buffer of so many, and a row of ``buffer.csv``
    """
    model, tasks = auxiliary.make(AuxiliaryConfig(game=game, n_envs=n_envs, capacity=n_episodes))
    episodes = tasks["many_goals"].episodes
    assert model.env is not None
    assert episodes is not None
    begin = time.perf_counter()
    fill(episodes, model.env)
    seconds = time.perf_counter() - begin
    model.env.close()
    frames = len(episodes.frames)  # type: ignore[arg-type]
    frame_bytes = int(np.prod(episodes.stacks.frame_shape)) * episodes.dtype.itemsize
    return episodes, {
        "game": game,
        "episodes": len(episodes),
        "transitions": episodes.n_transitions,
        "frames": frames,
        "bytes": episodes.nbytes,
        "bytes_per_frame": round(episodes.nbytes / frames, 1),
        "times_smaller": round(frame_bytes * frames / episodes.nbytes, 2),
        "fill_seconds": round(seconds, 1),
    }


def fill(episodes: EpisodeBuffer, env: VecEnv) -> None:
    """
    Play at random until the buffer is full.

    :param episodes: the buffer
    :param env: games with discrete actions, whose scores come in ``infos[i]["episode"]``
    """
    assert isinstance(env.action_space, spaces.Discrete)
    rng = np.random.default_rng(0)
    observations = env.reset()
    assert isinstance(observations, np.ndarray)
    episodes.start(observations)
    while len(episodes) < episodes.capacity:
        actions = rng.integers(env.action_space.n, size=env.num_envs)
        observations, rewards, dones, infos = env.step(actions)
        assert isinstance(observations, np.ndarray)
        episodes.add(
            actions,
            rewards,
            dones,
            observations,
            [info.get("terminal_observation") for info in infos],
            [bool(info.get("TimeLimit.truncated", False)) for info in infos],
            [info["episode"]["r"] if "episode" in info else None for info in infos],
        )


def contenders(
    config: AuxiliarySpeedConfig, models: dict[str, tuple[A2C, dict[str, AuxiliaryCallback]]], episodes: EpisodeBuffer
) -> list[Contender]:
    """
    :param config: what to run
    :param models: of each agent, and its callbacks
    :param episodes: full, for all of them
    :return: the training of each, and draws as each task makes them
    """
    found = []
    for agent, (model, tasks) in models.items():
        for callback in tasks.values():
            callback.episodes = episodes
        title = "A2C" if agent == "a2c" else f"A2C + {agent.replace('_', ' ')}"
        found.append(Contender(agent, title, "steps/s", rounds.training(model, config.training_steps, list(tasks.values()))))
    rng = np.random.default_rng(0)
    draws: dict[str, Callable[[], object]] = {
        "16 of 5": lambda: episodes.sample(16, 5, rng),
        "4 of 20": lambda: episodes.sample(4, 20, rng),
        "80 rewards": lambda: episodes.sample_rewards(80, rng),
    }
    for name, draw in draws.items():
        found.append(Contender(f"draw, {name}", f"draw of 80 transitions: {name}", "ms", _milliseconds(draw, config.draws)))
    return found


def _milliseconds(draw: Callable[[], object], times: int) -> Callable[[], float]:
    def measure() -> float:
        begin = time.perf_counter()
        for _ in range(times):
            draw()
        return 1_000 * (time.perf_counter() - begin) / times

    return measure


def write_buffers(path: Path, rows: Sequence[dict[str, str | float]]) -> None:
    """
    :param path: the CSV to write
    :param rows: of :func:`filled`
    """
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, BUFFER)
        writer.writeheader()
        writer.writerows(rows)


def show_buffers(rows: Sequence[dict[str, str | float]]) -> None:
    """
    Print the rooms that buffers take, and whether it is as little as it should be.

    :param rows: of :func:`filled`
    """
    table = Table("game", "episodes", "frames", "bytes a frame", "times smaller", "GiB", "bar", "met")
    for row in rows:
        size = float(row["bytes"])
        table.add_row(
            str(row["game"]),
            f"{row['episodes']:,}",
            f"{row['frames']:,}",
            f"{row['bytes_per_frame']:,}",
            f"{row['times_smaller']}",
            f"{size / 2**30:.3f}",
            f"<= {MOST_BYTES / 2**30:g}",
            "yes" if size <= MOST_BYTES else "no",
        )
    Console(width=127, markup=False).print(table)
