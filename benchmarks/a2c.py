"""What studies of A2C share, with auxiliary tasks or a trunk trained before: options, worlds, the settings of the learner."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import gymnasium as gym
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv

from benchmarks import sparse_worlds
from benchmarks.auxiliary_presets import A2C_SETTINGS, N_ENVS, OPTIMIZER
from sb3_manygoals.networks import PaddedCNN

World = Literal["atari", "two_rooms", "minigrid"]


@dataclass(frozen=True)
class A2CConfig:
    """The options of every such study. The defaults are the paper's."""

    game: str = "Assault"
    """Which game, or id of an environment."""
    steps: int = 10_000_000
    """Environment steps to train for, those of pre-training included."""
    n_envs: int = N_ENVS
    """Copies of the world in which A2C acts at once."""
    seed: int = 0
    """Of everything random."""
    learning_rate: float = A2C_SETTINGS["learning_rate"]
    """Step size of RMSProp, constant, of pre-training too."""
    optimizer: Literal["baselines", "sb3"] = "baselines"
    """A2C's RMSProp as OpenAI's baselines have it, or as is SB3's default."""
    ent_coef: float = A2C_SETTINGS["ent_coef"]
    """Weight of the entropy in A2C's loss."""
    ortho_init: bool = True
    """Weights begin orthogonal, as SB3 has it for A2C, in pre-training too; else as torch has them."""
    features_dim: int = 512
    """Width of the layer that actor, critic and whatever else learns share."""
    embedding_dim: int = 1024
    """Width of the embeddings of state and goal."""
    reuse_rollout: bool = True
    """What convolutions made of observations when actions were chosen is learned from, and not made again: the same but for
    rounding."""
    max_episode_steps: int = 100
    """Steps of an episode, of all worlds but games."""
    eval_freq: int = 100_000
    """Environment steps between rows of curve.csv."""
    threads: int = 1
    """Torch threads; the last bits of the results depend on them."""
    output: Path = Path("runs")
    """Folder in which the run's own folder is made."""
    progress_bar: bool = True
    """Show one while training."""
    checkpoint_minutes: float = 10.0
    """Minutes between checkpoints; one more is written when the run is told to end by SIGTERM or Ctrl-C."""
    resume: Path | None = None
    """Folder of a run to go on with, from its newest checkpoint, or from the start if it has none. The defaults of all other
    options are then that run's."""

    def check(self, choices: dict[str, Any], *counts: str) -> None:
        """
        :param choices: options that are one of a Literal's values, by name
        :param counts: further options that are at least 1
        :raises ValueError: if a choice or a number makes no sense
        """
        for name, known in choices.items():
            value = getattr(self, name)
            if value not in get_args(known):
                raise ValueError(f"{name} must be one of {', '.join(get_args(known))}, got {value!r}")
        for name in (*counts, "n_envs", "eval_freq", "max_episode_steps", "threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


def make_env(config: A2CConfig, world: World, n_envs: int, goal: int = 0) -> VecEnv:
    """
    :param config: what to run
    :param world: in which of them
    :param n_envs: how many copies of it
    :param goal: number of the state that is to be reached, of two_rooms
    :return: them, with Monitors
    :raises ImportError: if what it needs is not installed
    :raises ValueError: if there is no such game or state
    """
    if world == "atari":
        from sb3_manygoals.atari import make_atari_vec_env  # here, as the other worlds work without ale-py

        return make_atari_vec_env(config.game, n_envs, config.seed)
    make: partial[gym.Env[Any, Any]]
    if world == "two_rooms":
        make = partial(sparse_worlds.two_rooms, config.game, goal, config.max_episode_steps)
    else:
        make = partial(sparse_worlds.minigrid, config.game, config.max_episode_steps)
    return make_vec_env(make, n_envs, seed=config.seed)


def settings(config: A2CConfig) -> dict[str, Any]:
    """
    :param config: what to run
    :return: arguments of SB3's A2C, beside ``policy``, a RolloutReusePolicy, and ``env``
    """
    policy_kwargs = {
        **(OPTIMIZER if config.optimizer == "baselines" else {}),
        "features_extractor_class": PaddedCNN,  # the layers of SB3's own for games, with faster products
        "reuse_rollout": config.reuse_rollout,
        "ortho_init": config.ortho_init,
        "net_arch": [],  # no more layers, as SB3 has it after its own
        "features_extractor_kwargs": {"features_dim": config.features_dim},
    }
    own = {"learning_rate": config.learning_rate, "ent_coef": config.ent_coef, "seed": config.seed}
    return {**A2C_SETTINGS, **own, "policy_kwargs": policy_kwargs}
