"""Section 5 of the paper: A2C with an auxiliary task, in an Atari game or in a small world with a rare reward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch as th
from stable_baselines3 import A2C

from benchmarks import recording, scores
from benchmarks.agents import a2c
from benchmarks.agents.a2c import A2CConfig, WorldName
from benchmarks.worlds import TILE
from sb3_manygoals.auxiliary import (
    AuxiliaryActorCriticPolicy,
    AuxiliaryCallback,
    EpisodeBuffer,
    ManyGoalsCallback,
    PixelControlCallback,
    RewardPredictionCallback,
)
from sb3_manygoals.checkpoint import checkpoints

Agent = Literal["many_goals", "a2c", "pixel_control", "reward_prediction"]

CALLBACKS: dict[str, Any] = {
    "many_goals": ManyGoalsCallback,
    "pixel_control": PixelControlCallback,
    "reward_prediction": RewardPredictionCallback,
}
"""Auxiliary tasks; the agent a2c has none."""

PACKAGES: dict[WorldName, tuple[str, ...]] = {"atari": ("ale-py", "lz4"), "two_rooms": (), "minigrid": ("minigrid", "lz4")}
"""Further packages whose versions matter."""


@dataclass(frozen=True)
class AuxiliaryConfig(A2CConfig):
    """Train A2C with an auxiliary task, or without. The defaults are the paper's."""

    world: WorldName = "atari"
    """Atari games, TwoRoomsSwitch with one state to reach, or MiniGrid; it gives the defaults of all other options."""
    agent: Agent = "many_goals"
    """A2C alone, or with one auxiliary task."""
    weight: float | None = None
    """Of the auxiliary loss; by default that of its source."""
    capacity: int = 2000
    """Best episodes that are kept: the paper's K."""
    goal: int = 0
    """Number of the state to reach, of two_rooms."""

    def __post_init__(self) -> None:
        self.check({"world": WorldName, "agent": Agent}, "steps")

    @property
    def packages(self) -> tuple[str, ...]:
        """Packages whose versions matter."""
        return (*recording.PACKAGES, *PACKAGES[self.world])

    def run(self) -> Path:
        """
        Train, and write ``config.json``, ``curve.csv``, ``curve.png``, ``score.json``, ``model.zip``, logs and checkpoints.

        :return: the folder
        """
        th.set_num_threads(self.threads)
        model, tasks = make(self)
        folder = recording.open_folder(self, f"auxiliary-{self.game}-{self.agent}-seed{self.seed}")
        print(f"{self.agent} in {self.game}: {self.steps} steps; writing to {folder}")
        record = a2c.train(self, model, folder, tasks, lambda: _kept(tasks))
        files = checkpoints(folder / "checkpoints")[0].rglob("*")
        paper = paper_score(self)
        record |= {
            "paper": paper,
            **_kept(tasks),
            "kept_transitions": sum(task.episodes.n_transitions for task in tasks.values() if task.episodes is not None),
            "checkpoint_bytes": sum(path.stat().st_size for path in files if path.is_file()),
        }
        if record["score"] is not None:
            from benchmarks.report import figures  # here, as matplotlib and pandas take seconds to import

            figures.return_curve(folder / "curve.csv", folder / "curve.png", f"{self.game}, {self.agent}", paper)
        if paper is not None:
            print(f"the paper has {paper:g} after 10M steps")
        return a2c.conclude(folder, record)


WORLDS: dict[WorldName, AuxiliaryConfig] = {
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
The defaults of each world. In the small ones layers are narrower, and the optimizer is SB3's: that of baselines begins with
second moments of 1 and has an epsilon of 1e-5 inside the root, so gradients of rare rewards hardly count for the first
thousand updates.
"""


def make(config: AuxiliaryConfig) -> tuple[A2C, dict[str, AuxiliaryCallback]]:
    """
    :param config: of the run
    :return: an untrained agent, and the callback of its auxiliary task, if it has one, by name
    :raises ImportError: if what it needs is not installed
    """
    env = a2c.make_env(config, config.world, config.n_envs, config.goal)
    settings = a2c.settings(config)
    tasks = [] if config.agent == "a2c" else [config.agent]
    settings["policy_kwargs"] |= {"embedding_dim": config.embedding_dim, "tasks": tasks}
    if config.world != "atari":  # pixel control sees all of the picture, in cells of the world
        assert env.observation_space.shape is not None
        cell = 1 if config.world == "two_rooms" else TILE
        settings["policy_kwargs"] |= {"crop": max(env.observation_space.shape), "cell": cell}
    model = A2C(AuxiliaryActorCriticPolicy, env, device="cpu", **settings)
    weight = () if config.weight is None else (config.weight,)
    return model, {task: CALLBACKS[task](*weight, episodes=make_buffer(config, model)) for task in tasks}


def make_buffer(config: AuxiliaryConfig, model: A2C) -> EpisodeBuffer:
    """
    :param config: of the run
    :param model: the agent
    :return: an empty buffer for its episodes; large pictures are compressed
    :raises ImportError: if lz4 is needed and not installed
    """
    n_stack = 4 if config.world == "atari" else 1
    return EpisodeBuffer(model.observation_space, config.capacity, n_stack, compress=config.world != "two_rooms")


def paper_score(config: AuxiliaryConfig) -> float | None:
    """
    :param config: of a run
    :return: the paper's score of this agent in this game after 10M steps, if there is one
    """
    table = scores.read_table("paper_auxiliary_scores")
    if config.world != "atari" or config.game not in table.index:
        return None
    return float(table.loc[config.game, config.agent])


def _kept(tasks: Mapping[str, AuxiliaryCallback]) -> dict[str, int]:
    """How full the episode buffers are."""
    buffers = [task.episodes for task in tasks.values() if task.episodes is not None]
    return {"kept_episodes": sum(map(len, buffers)), "kept_bytes": sum(buffer.nbytes for buffer in buffers)}
