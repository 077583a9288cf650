"""Atari by ale-py's threads against SB3's own set-ups: steps alone, and training A2C."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3 import A2C
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.vec_env import VecEnv

from benchmarks import rounds, run_folder
from benchmarks.rounds import Best, Contender, Figure
from sb3_manygoals.auxiliary import AuxiliaryActorCriticPolicy
from sb3_manygoals.networks import PaddedCNN
from sb3_manygoals.optim import FusedRMSprop

BACKENDS = {
    "native": "ours: AtariVecEnv, threads of ale-py",
    "dummy": "SB3's make_atari_env, DummyVecEnv, VecFrameStack",
    "subproc": "SB3's make_atari_env, SubprocVecEnv, VecFrameStack",
}
"""What is measured, by the name of the backend."""

OURS: dict[str, Any] = {
    "tasks": (),
    "features_extractor_class": PaddedCNN,
    "net_arch": [],
    "optimizer_class": FusedRMSprop,
    "reuse_rollout": True,
}
"""The layers of SB3's NatureCNN, which updates do not repeat (``sb3_manygoals.auxiliary.rollout_reuse``), its products by
oneDNN where that is faster (``sb3_manygoals.linear``), and SB3's optimizer in fewer passes (``sb3_manygoals.optim``)."""

A2C_SETTINGS: dict[str, Any] = {
    "learning_rate": 7e-4,
    "n_steps": 5,
    "gamma": 0.99,
    "gae_lambda": 1.0,
    "ent_coef": 0.01,
    "vf_coef": 0.25,  # half of the paper's sources' 0.5, as SB3's squared error has no 1/2
    "max_grad_norm": 0.5,
    "policy_kwargs": {"optimizer_class": RMSpropTFLike, "optimizer_kwargs": {"alpha": 0.99, "eps": 1e-5, "weight_decay": 0}},
}
"""The learner: that of Veeriah et al. (2018), by way of OpenAI Baselines."""

FIGURES = (
    Figure(
        "steps/s of training A2C: ours / the faster of SB3's",
        "training, native",
        Best({"training, dummy": 1.0, "training, subproc": 1.0}),
        ">=",
        1.3,
    ),
    Figure("steps/s of training A2C: ours / DummyVecEnv", "training, native", "training, dummy"),
    Figure("steps/s of training A2C: ours / SubprocVecEnv", "training, native", "training, subproc"),
    Figure(
        "steps/s of training A2C: our games with SB3's network and optimizer / the faster of SB3's",
        "training, native, NatureCNN",
        Best({"training, dummy": 1.0, "training, subproc": 1.0}),
    ),
    Figure(
        "steps/s of the games alone: ours / the faster of SB3's",
        "games, native",
        Best({"games, dummy": 1.0, "games, subproc": 1.0}),
    ),
)


@dataclass(frozen=True)
class AtariSpeedConfig:
    """Time Atari games and the training of SB3's A2C on them, ours and SB3's set-ups in turn."""

    rounds: int = 7
    """Times that each contender is measured; medians are reported, of ratios those of the ratios within a round."""
    game: str = "Breakout"
    """The game that is timed."""
    n_envs: int = 16
    """Copies of it, as many as the paper's A2C plays at once."""
    games_steps: int = 4_000
    """Steps in each measurement of the games alone, all copies' together."""
    training_steps: int = 4_000
    """Steps in each measurement of training, all copies' together."""
    threads: tuple[int, ...] = tuple(dict.fromkeys((1, os.cpu_count() or 1)))
    """Numbers of torch threads to measure with, one after the other."""
    output: Path = Path("runs")
    """Folder in which the run's own folder is made."""

    def run(self) -> Path:
        """:return: the run's folder"""
        return run(self)


def run(config: AtariSpeedConfig) -> Path:
    """
    Measure, print, and write ``atari-<n>-threads.csv`` and ``config.json``.

    :param config: what to run
    :return: the folder
    """
    from sb3_manygoals.atari import make_atari_vec_env  # here, as the command line works without ale-py

    folder = run_folder.create(config.output, "atari")
    packages = (*run_folder.PACKAGES, "ale-py", "opencv-python-headless", "lz4")
    record = run_folder.write_config(folder, config, packages)
    print(", ".join([record["machine"]["processor"], *(f"{name} {version}" for name, version in record["versions"].items())]))
    envs = {backend: make_atari_vec_env(config.game, config.n_envs, 0, backend=backend) for backend in BACKENDS}  # type: ignore[arg-type]
    try:
        entrants = contenders(config, envs)
        for threads in config.threads:
            th.set_num_threads(threads)
            measured = rounds.measure(entrants, config.rounds)
            rounds.write(folder / f"atari-{threads}-threads.csv", entrants, measured)
            print(f"\n{config.game}, {config.n_envs} copies, {threads} torch thread(s)")
            rounds.show(entrants, FIGURES, measured)
    finally:
        for env in envs.values():
            env.close()
    print(f"written to {folder}")
    return folder


def contenders(config: AtariSpeedConfig, envs: dict[str, VecEnv]) -> list[Contender]:
    """
    :param config: what to run
    :param envs: of each backend
    :return: the games of each alone, and the training of A2C on each
    """
    found = []
    for backend, env in envs.items():
        title = f"{BACKENDS[backend]}: "
        found.append(Contender(f"games, {backend}", f"{title}games alone", "steps/s", games(env, config.games_steps)))
    for backend, env in envs.items():
        for own in (OURS, {}) if backend == "native" else ({},):
            policy = {**A2C_SETTINGS["policy_kwargs"], **own}
            kind = AuxiliaryActorCriticPolicy if own else "CnnPolicy"
            model = A2C(kind, env, seed=0, device="cpu", **{**A2C_SETTINGS, "policy_kwargs": policy})
            name, title = f"training, {backend}", f"{BACKENDS[backend]}: A2C"
            if backend == "native":
                title += ", our network and optimizer" if own else ", SB3's"
                name += "" if own else ", NatureCNN"
            found.append(Contender(name, title, "steps/s", rounds.training(model, config.training_steps)))
    return found


def games(env: VecEnv, steps: int) -> Callable[[], float]:
    """
    :param env: with discrete actions
    :param steps: in each measurement, all copies' together, at least
    :return: measures steps a second under random actions, beginnings of games included
    """
    assert isinstance(env.action_space, spaces.Discrete)
    turns = -(-steps // env.num_envs)
    actions = np.random.default_rng(0).integers(env.action_space.n, size=(turns, env.num_envs))
    env.reset()

    def measure() -> float:
        begin = time.perf_counter()
        for action in actions:
            env.step(action)
        return turns * env.num_envs / (time.perf_counter() - begin)

    return measure
