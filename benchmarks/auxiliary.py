"""Section 5 of the paper: A2C with an auxiliary task, in an Atari game or in a small world with a rare reward."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch as th
from stable_baselines3 import A2C

from benchmarks import a2c, logs, run_folder, scores, sparse_worlds
from benchmarks.a2c import A2CConfig, World
from benchmarks.auxiliary_presets import HEADS, K_BEST_EPISODES, TASKS
from benchmarks.episode_scores import LAST, ScoreCallback, ScorePoint
from benchmarks.study import open_folder, saved_settings
from sb3_manygoals import ExactCheckpointCallback
from sb3_manygoals.auxiliary import (
    AuxiliaryActorCriticPolicy,
    AuxiliaryCallback,
    EpisodeBuffer,
    ManyGoalsCallback,
    PixelControlCallback,
    RewardPredictionCallback,
)
from sb3_manygoals.checkpoint import checkpoints
from sb3_manygoals.checkpoint.callback import Checkpointable

Agent = Literal["many_goals", "a2c", "pixel_control", "reward_prediction"]

CALLBACKS: dict[str, Any] = {
    "many_goals": ManyGoalsCallback,
    "pixel_control": PixelControlCallback,
    "reward_prediction": RewardPredictionCallback,
}
"""Auxiliary tasks by the names of their heads; A2C alone has none."""

PACKAGES: dict[World, tuple[str, ...]] = {"atari": ("ale-py", "lz4"), "two_rooms": (), "minigrid": ("minigrid", "lz4")}
"""Whose versions matter besides."""

CURVE = ["step", "episodes", "episode_return", "episode_length", "training_seconds", "kept_episodes", "kept_bytes"]
"""Columns of ``curve.csv``: a :class:`~benchmarks.episode_scores.ScorePoint`, and how full the episode buffer is."""


@dataclass(frozen=True)
class AuxiliaryConfig(A2CConfig):
    """Train A2C with an auxiliary task, or without. The defaults are the paper's."""

    world: World = "atari"
    """Atari games, TwoRoomsSwitch with one state to reach, or MiniGrid; also where the defaults of all other options come
    from."""
    agent: Agent = "many_goals"
    """A2C alone, or with one auxiliary task."""
    weight: float | None = None
    """Of the auxiliary loss; by default that of its source."""
    capacity: int = K_BEST_EPISODES
    """Best episodes that are kept."""
    goal: int = 0
    """Number of the state that is to be reached, of two_rooms."""

    def __post_init__(self) -> None:
        self.check({"world": World, "agent": Agent}, "steps")

    def run(self) -> Path:
        """:return: the run's folder, with everything in it"""
        return run(self)


WORLDS: dict[World, AuxiliaryConfig] = {
    "atari": AuxiliaryConfig(),
    "two_rooms": AuxiliaryConfig(
        world="two_rooms",
        game="TwoRoomsSwitchSmall-v0",
        steps=200_000,
        optimizer="sb3",
        features_dim=128,
        embedding_dim=128,
        max_episode_steps=50,
        eval_freq=5_000,
    ),
    "minigrid": AuxiliaryConfig(
        world="minigrid",
        game="MiniGrid-Empty-Random-6x6-v0",
        steps=100_000,
        optimizer="sb3",
        features_dim=128,
        embedding_dim=128,
        max_episode_steps=100,
        eval_freq=2_500,
    ),
}
"""
The defaults of each world. In the small ones the paper's settings hold but for narrower layers and SB3's optimizer. That of
baselines begins with second moments of 1 and has an epsilon of 1e-5 inside the root, beside which gradients of rare rewards
are next to nothing for the first thousand updates, A2C's and those of the auxiliary tasks.
"""


def saved_config(folder: Path) -> AuxiliaryConfig:
    """
    :param folder: of a run
    :return: its settings, to go on with
    :raises FileNotFoundError: if it is no run's folder
    """
    return AuxiliaryConfig(**saved_settings(folder))


def make(config: AuxiliaryConfig) -> tuple[A2C, dict[str, AuxiliaryCallback]]:
    """
    :param config: what to run
    :return: an untrained agent, and the callback of its auxiliary task, if it has one, by its name
    """
    env = a2c.make_env(config, config.world, config.n_envs, config.goal)
    assert env.observation_space.shape is not None
    heads = {"crop": HEADS["crop"], "cell": HEADS["cell"], "embedding_dim": config.embedding_dim}
    if config.world != "atari":  # all of the picture, a cell of the world in each of pixel control's
        heads["crop"] = max(env.observation_space.shape)
        heads["cell"] = 1 if config.world == "two_rooms" else sparse_worlds.TILE
    tasks = [] if config.agent == "a2c" else [config.agent]
    settings = a2c.settings(config)
    settings["policy_kwargs"] |= {**heads, "tasks": tasks}
    model = A2C(AuxiliaryActorCriticPolicy, env, device="cpu", **settings)
    return model, {task: _callback(config, task, make_buffer(config, model)) for task in tasks}


def make_buffer(config: AuxiliaryConfig, model: A2C) -> EpisodeBuffer:
    """
    :param config: what to run
    :param model: the agent
    :return: an empty buffer for its episodes, compressed where pictures are large
    :raises ImportError: if lz4 is needed and not installed
    """
    n_stack = 4 if config.world == "atari" else 1
    return EpisodeBuffer(model.observation_space, config.capacity, n_stack, compress=config.world != "two_rooms")


def _callback(config: AuxiliaryConfig, task: str, episodes: EpisodeBuffer) -> AuxiliaryCallback:
    settings = dict(TASKS[task])
    if config.weight is not None:
        settings["beta" if task == "many_goals" else "weight"] = config.weight
    callback: AuxiliaryCallback = CALLBACKS[task](episodes=episodes, **settings)
    return callback


def run(config: AuxiliaryConfig) -> Path:
    """
    Train, and write ``config.json``, ``curve.csv``, ``curve.png``, ``score.json``, ``model.zip``, logs and checkpoints.

    :param config: what to run
    :return: the folder
    """
    th.set_num_threads(config.threads)
    model, tasks = make(config)
    packages = (*run_folder.PACKAGES, *PACKAGES[config.world])
    folder = open_folder(config, f"auxiliary-{config.game}-{config.agent}-seed{config.seed}", packages)
    print(f"{config.agent} in {config.game}: {config.steps} steps; writing to {folder}")
    curve, table = logs.CurveLog(folder / "curve.csv", CURVE), logs.CSVLog(folder / "progress.csv")
    buffers = [callback.episodes for callback in tasks.values() if callback.episodes is not None]
    score = ScoreCallback(config.eval_freq, lambda point: _note(model, curve, point, buffers))
    own: dict[str, Checkpointable] = {**tasks, "score": score, "curve.csv": curve, "progress.csv": table}
    saving = ExactCheckpointCallback(
        folder / "checkpoints", every_seconds=60 * config.checkpoint_minutes, keep=2, extras=own, verbose=1
    )
    resumed = saving.resume(model, fallback=True)
    model.set_logger(logs.logger(folder, table, model.num_timesteps))
    if model.num_timesteps < config.steps:
        model.learn(
            config.steps - model.num_timesteps,
            [*tasks.values(), score, saving],
            log_interval=max(1, config.eval_freq // (model.n_envs * model.n_steps)),
            reset_num_timesteps=not resumed,
            progress_bar=config.progress_bar,
        )
    model.logger.close()
    model.save(folder / "model.zip")
    assert model.env is not None
    model.env.close()
    paper = paper_score(config)
    record = {
        "score": score.score,
        "paper": paper,
        "step": model.num_timesteps,
        "episodes": score.episodes,
        "training_seconds": round(score.training_seconds, 1),
        **_kept(buffers),
        "checkpoint_bytes": sum(
            path.stat().st_size for path in checkpoints(folder / "checkpoints")[0].rglob("*") if path.is_file()
        ),
    }
    (folder / "score.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    if score.score is not None:
        from benchmarks.report import figures  # here, as matplotlib takes a second to import, and studies only look at first

        figures.return_curve(folder / "curve.csv", folder / "curve.png", f"{config.game}, {config.agent}", paper)
    said = "no episode has ended" if score.score is None else f"score {score.score:.3f}, mean of the last {LAST} episodes"
    print(f"{said}{'' if paper is None else f'; the paper has {paper:g} after 10M steps'}; {score.training_seconds:.0f} s")
    return folder


def paper_score(config: AuxiliaryConfig) -> float | None:
    """
    :param config: of a run
    :return: the paper's score of this agent in this game after 10M steps, if there is one
    """
    table = scores.read_table(scores.DATA / "paper_auxiliary_scores.csv")
    if config.world != "atari" or config.game not in table.games:
        return None
    return float(table.select([config.game]).columns[config.agent][0])


def _note(model: A2C, curve: logs.CurveLog, point: ScorePoint, buffers: Sequence[EpisodeBuffer]) -> None:
    kept = _kept(buffers)
    curve.add(
        [
            point.step,
            point.episodes,
            f"{point.episode_return:.6g}",
            f"{point.episode_length:.6g}",
            f"{point.training_seconds:.1f}",
            kept["kept_episodes"],
            kept["kept_bytes"],
        ]
    )
    model.logger.record("score/last_100_episodes", point.episode_return)
    if buffers:
        model.logger.record("auxiliary/kept_bytes", kept["kept_bytes"])


def _kept(buffers: Sequence[EpisodeBuffer]) -> dict[str, int]:
    """How full the episode buffer is, if there is one."""
    found = {"kept_episodes": 0, "kept_transitions": 0, "kept_bytes": 0}
    for episodes in buffers:
        found["kept_episodes"] += len(episodes)
        found["kept_transitions"] += episodes.n_transitions
        found["kept_bytes"] += episodes.nbytes
    return found
