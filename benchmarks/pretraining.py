"""Section 4 of the paper: A2C that begins with a trunk trained before, by mastery or by reward prediction, or from scratch."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch as th
from stable_baselines3 import A2C

from benchmarks import a2c, logs, run_folder
from benchmarks.a2c import A2CConfig
from benchmarks.auxiliary_presets import OPTIMIZER
from benchmarks.episode_scores import LAST, ScoreCallback, ScorePoint
from benchmarks.study import saved_settings
from sb3_manygoals import PAPER, ExactCheckpointCallback, ManyGoalsDQN, TDTargets
from sb3_manygoals.auxiliary import RolloutReusePolicy
from sb3_manygoals.checkpoint import checkpoints
from sb3_manygoals.checkpoint.callback import Checkpointable
from sb3_manygoals.checkpoint.learner import get_generators, set_generators
from sb3_manygoals.pretraining import CopiedLayer, ManyGoalsFrameReplayBuffer, RewardPredictor, transfer_trunk
from sb3_manygoals.vec_env import can_reset_single_envs

World = Literal["atari", "minigrid"]
Agent = Literal["many_goals", "reward_prediction", "none"]

PACKAGES: dict[World, tuple[str, ...]] = {"atari": ("ale-py",), "minigrid": ("minigrid",)}
"""Whose versions matter besides."""

N_STACK: dict[World, int] = {"atari": 4, "minigrid": 1}
"""Frames of an observation."""

CURVE = ["step", "episodes", "episode_return", "episode_length", "training_seconds"]
"""Columns of ``curve.csv``: a :class:`~benchmarks.episode_scores.ScorePoint`, whose steps count those of pre-training."""


@dataclass(frozen=True)
class PretrainingConfig(A2CConfig):
    """Pre-train a trunk, then let A2C begin with it; or A2C from scratch. The defaults are the paper's."""

    world: World = "atari"
    """Atari games or MiniGrid; also where the defaults of all other options come from."""
    agent: Agent = "many_goals"
    """How the trunk is pre-trained: by mastery of many goals, by predicting the sign of rewards in random behaviour, or not at
    all."""
    pretrain_steps: int = 1_000_000
    """Environment steps of pre-training, over which epsilon falls from 1 to 0.1; without it these are A2C's too."""
    buffer_size: int = 10_000
    """Transitions in the replay memory of pre-training."""
    learning_starts: int = 1_000
    """Environment steps before its first update."""
    batch_size: int = 16
    """Transitions in one of its updates, one a step; reward prediction has as many as these and goals make pairs."""
    goal_batch_size: int = 5
    """Goals in an update, drawn from the replay memory."""
    goal_steps: int = 50
    """Steps that a goal is pursued for, at most."""
    max_episode_steps: int = 250
    """Steps of an episode, of minigrid."""
    device: str = "cpu"
    """Where the networks live: cpu, cuda, auto."""

    def __post_init__(self) -> None:
        self.check({"world": World, "agent": Agent}, "pretrain_steps")
        if self.steps <= self.pretrain_steps:
            raise ValueError(f"steps must be more than pretrain_steps, {self.pretrain_steps}, got {self.steps}")
        if not 0 <= self.learning_starts < self.pretrain_steps:
            raise ValueError(
                f"learning_starts must be less than pretrain_steps, {self.pretrain_steps}, else nothing is learned there, got "
                f"{self.learning_starts}"
            )

    def run(self) -> Path:
        """:return: the run's folder, with everything in it"""
        return run(self)


WORLDS: dict[World, PretrainingConfig] = {
    "atari": PretrainingConfig(),
    "minigrid": PretrainingConfig(
        world="minigrid",
        game="MiniGrid-DoorKey-5x5-v0",
        pretrain_steps=20_000,
        steps=200_000,
        optimizer="sb3",  # see benchmarks.auxiliary.WORLDS
        features_dim=128,
        embedding_dim=128,
        eval_freq=5_000,
    ),
}
"""The defaults of each world."""


def saved_config(folder: Path) -> PretrainingConfig:
    """
    :param folder: of a run
    :return: its settings, to go on with
    :raises FileNotFoundError: if it is no run's folder
    """
    return PretrainingConfig(**saved_settings(folder))


def make_learner(config: PretrainingConfig) -> ManyGoalsDQN | RewardPredictor:
    """
    :param config: what to run
    :return: what pre-trains, in one copy of the world, untrained
    """
    policy = {**OPTIMIZER, "ortho_init": config.ortho_init, "features_extractor_kwargs": {"features_dim": config.features_dim}}
    common: dict[str, Any] = {
        "learning_rate": config.learning_rate,
        "buffer_size": config.buffer_size,
        "learning_starts": config.learning_starts,
        "seed": config.seed,
        "device": config.device,
    }
    env, n_stack = a2c.make_env(config, config.world, 1), N_STACK[config.world]
    if config.agent == "reward_prediction":
        pairs = config.batch_size * config.goal_batch_size
        return RewardPredictor("CnnPolicy", env, batch_size=pairs, n_stack=n_stack, policy_kwargs=policy, **common)
    return ManyGoalsDQN(
        "CnnPolicy",
        env,
        batch_size=config.batch_size,
        goal_batch_size=config.goal_batch_size,
        updates_per_step=1.0,
        goals_in_replay=True,
        replay_buffer_class=ManyGoalsFrameReplayBuffer,
        replay_buffer_kwargs={"n_stack": n_stack},
        goal_wrapper_kwargs={"max_episode_steps": config.goal_steps, "reset_worlds": can_reset_single_envs(env)},
        target_class=TDTargets,
        target_kwargs={**PAPER["target_kwargs"], "initial_value": 0.0},
        exploration_fraction=1.0,
        policy_kwargs={**PAPER["policy_kwargs"], "standardize": False, **policy, "embedding_dim": config.embedding_dim},
        **common,
    )


def make_a2c(config: PretrainingConfig) -> A2C:
    """
    :param config: what to run
    :return: an untrained agent
    """
    env = a2c.make_env(config, config.world, config.n_envs)
    return A2C(RolloutReusePolicy, env, device=config.device, **a2c.settings(config))


def run(config: PretrainingConfig) -> Path:
    """
    Train, and write ``config.json``, ``curve.csv``, ``score.json``, ``model.zip``, logs and checkpoints; in ``pretraining/``
    model, log and checkpoints of pre-training.

    :param config: what to run
    :return: the folder
    """
    th.set_num_threads(config.threads)
    folder = _open_folder(config)
    print(f"{config.agent} in {config.game}: {config.steps} steps; writing to {folder}")
    model = make_a2c(config)
    if config.agent != "none" and not checkpoints(folder / "checkpoints"):
        copied = _pretrain(config, folder / "pretraining", model)
        for layer in copied:
            print(f"copied {layer.source} to {layer.target}, {'x'.join(map(str, layer.shape))}")
        model.num_timesteps = config.pretrain_steps  # from which on its own count
    curve = logs.CurveLog(folder / "curve.csv", CURVE)
    score = ScoreCallback(config.eval_freq, lambda point: _note(curve, point))
    _train(config, folder, model, config.steps, {"score": score, "curve.csv": curve}, [score])
    record = {
        "score": score.score,
        "step": model.num_timesteps,
        "episodes": score.episodes,
        "training_seconds": round(score.training_seconds, 1),
        "pretrain_steps": 0 if config.agent == "none" else config.pretrain_steps,
    }
    (folder / "score.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    said = "no episode has ended" if score.score is None else f"score {score.score:.3f}, mean of the last {LAST} episodes"
    print(f"{said}; fine-tuning took {score.training_seconds:.0f} s")
    return folder


def _open_folder(config: PretrainingConfig) -> Path:
    if config.resume is None:
        folder = run_folder.create(config.output, f"pretraining-{config.game}-{config.agent}-seed{config.seed}")
        run_folder.write_config(folder, config, (*run_folder.PACKAGES, *PACKAGES[config.world]))
        return folder
    if any(checkpoints(folder) for folder in (config.resume / "checkpoints", config.resume / "pretraining" / "checkpoints")):
        run_folder.note_resumption(config.resume)  # else it begins only now
    return config.resume


def _pretrain(config: PretrainingConfig, folder: Path, model: A2C) -> list[CopiedLayer]:
    """Pre-train, or go on with it, or only read what it led to; and give the trunk to ``model``."""
    folder.mkdir(exist_ok=True)
    generators = get_generators(model)
    learner = make_learner(config)
    began = time.perf_counter()
    _train(config, folder, learner, config.pretrain_steps, {}, [])
    print(f"pre-training took {time.perf_counter() - began:.0f} s")
    copied = transfer_trunk(learner, model)
    # A2C goes on with the numbers that its seed gives, whether pre-training was done just now or only read
    set_generators(generators)
    return copied


def _train(
    config: PretrainingConfig,
    folder: Path,
    model: A2C | ManyGoalsDQN | RewardPredictor,
    steps: int,
    extras: dict[str, Checkpointable],
    callbacks: list[Any],
) -> None:
    """Train up to a number of steps, from where the newest checkpoint left it, with log and checkpoints in a folder."""
    table = logs.CSVLog(folder / "progress.csv")
    saving = ExactCheckpointCallback(
        folder / "checkpoints",
        every_seconds=60 * config.checkpoint_minutes,
        keep=2,
        extras={**extras, "progress.csv": table},
        verbose=1,
    )
    saving.resume(model, fallback=True)
    model.set_logger(logs.logger(folder, table, model.num_timesteps))
    if model.num_timesteps < steps:
        interval = max(1, config.eval_freq // (model.n_steps * config.n_envs)) if isinstance(model, A2C) else 20
        learn: Callable[..., Any] = model.learn
        learn(
            steps - model.num_timesteps,
            [*callbacks, saving],
            log_interval=interval,
            reset_num_timesteps=model.num_timesteps == 0,
            progress_bar=config.progress_bar,
        )
    model.logger.close()
    model.save(folder / "model.zip")
    assert model.env is not None
    model.env.close()


def _note(curve: logs.CurveLog, point: ScorePoint) -> None:
    curve.add(
        [
            point.step,
            point.episodes,
            f"{point.episode_return:.6g}",
            f"{point.episode_length:.6g}",
            f"{point.training_seconds:.1f}",
        ]
    )
