"""
A2C, alone or with an auxiliary task or a pre-trained trunk: options, worlds, settings, scores.

Defaults are the paper's. Where it is silent, they are those of OpenAI's baselines, whose step size
the paper takes; else SB3's.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from stable_baselines3 import A2C
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecEnv

from benchmarks import recording, worlds
from benchmarks.recording import Clock, CurveLog, RunConfig
from benchmarks.suite.spec import write_whole
from sb3_manygoals.networks import PaddedCNN

WorldName = Literal["atari", "two_rooms", "minigrid", "minigrid_view", "minatar"]

OPTIMIZER: dict[str, Any] = {
    "optimizer_class": RMSpropTFLike,
    "optimizer_kwargs": {"alpha": 0.99, "eps": 1e-5},
}
"""
Arguments of the policy.

The paper has RMSProp. In baselines it is TensorFlow's, with epsilon inside the root.
"""

SMALL: dict[str, Any] = {"optimizer": "sb3", "features_dim": 128, "embedding_dim": 128}
"""
Options in small worlds.

They have narrower layers, and SB3's optimizer as their rewards are rare: see docs/design.md.
"""

MINATAR: dict[str, Any] = {
    "world": "minatar",
    "game": "breakout",
    "steps": 2_000_000,
    "eval_freq": 20_000,
    "n_envs": 64,
    "learning_rate": 8e-3,
    "ent_coef": 0.02,
    **SMALL,
}
"""
Options of all agents in MinAtar.

They were the best of a search on two games for A2C alone: see docs/results/minatar.md.
"""

LAST = 100
"""Episodes of which a score is the mean, as in baselines; the paper does not say."""

CURVE = ("step", "episodes", "episode_return", "episode_length", "training_seconds")
"""Columns of ``curve.csv``: steps taken, episodes ended, means over the last 100 episodes, time."""


@dataclass(frozen=True)
class A2CConfig(RunConfig):
    """The options of every run of A2C. The defaults are the paper's."""

    world: WorldName = "atari"
    """Atari games, TwoRoomsSwitch with one state to reach, MiniGrid seen whole or by its agent, or
    MinAtar; it gives the defaults of all other options."""
    game: str = "Assault"
    """Name of the game, or id of the environment."""
    steps: int = 10_000_000
    """Environment steps to train for, those of pre-training included."""
    n_envs: int = 16
    """Environments side by side, as in baselines. 5 steps of each are the 80 transitions of the
    paper's updates."""
    learning_rate: float = 7e-4
    """Step size of RMSProp, constant, in pre-training too."""
    optimizer: Literal["baselines", "sb3"] = "baselines"
    """RMSProp of A2C as OpenAI's baselines have it, or SB3's default. Pre-training always has the
    former."""
    ent_coef: float = 0.01
    """Weight of the entropy in A2C's loss, as in baselines. The paper tuned it and does not give
    it."""
    ortho_init: bool = True
    """Orthogonal initial weights, as SB3's A2C has them, in pre-training too; else PyTorch's."""
    features_dim: int = 512
    """Width of the layer that actor, critic and auxiliary heads share."""
    embedding_dim: int = 1024
    """Width of the embeddings of state and goal."""
    max_episode_steps: int = 100
    """Steps of an episode, except in Atari and MinAtar games."""
    eval_freq: int = 100_000
    """Environment steps between rows of curve.csv."""
    checkpoint_minutes: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_counts("steps", "n_envs", "eval_freq", "max_episode_steps", "threads")

    @property
    def kind(self) -> Kind:
        """How environments of this world are made and seen."""
        return KINDS[self.world]


@dataclass(frozen=True)
class Kind:
    """A kind of world: how its environments are made and seen."""

    make: Callable[[Any, int], VecEnv]
    """Takes the settings of a run and a number, and returns so many environments with Monitors."""
    n_stack: int = 1
    """Frames of an observation."""
    compress: bool = False
    """Whether episodes are kept compressed, as large pictures should be."""
    cell: int | None = None
    """Pixels a side of the cells of pixel control, which then sees the whole picture. None for its
    own cells, which fit Atari games."""
    extractor: Callable[[], type[BaseFeaturesExtractor]] = lambda: PaddedCNN
    """Returns the class of the layers that see. By default they are SB3's for Atari games, with
    faster products."""


def _atari(config: A2CConfig, n_envs: int) -> VecEnv:
    # The other worlds work without ale-py, so this is imported here.
    from sb3_manygoals.atari import AtariVecEnv

    return AtariVecEnv(config.game, n_envs, config.seed)


def _two_rooms(config: Any, n_envs: int) -> VecEnv:
    make = partial(worlds.two_rooms, config.game, config.goal, config.max_episode_steps)
    return make_vec_env(make, n_envs, seed=config.seed)


def _minigrid(make: Callable[..., Any], config: A2CConfig, n_envs: int) -> VecEnv:
    return make_vec_env(
        partial(make, config.game, config.max_episode_steps), n_envs, seed=config.seed
    )


def _minatar(config: A2CConfig, n_envs: int) -> VecEnv:
    # The other worlds work without minatar, so this is imported here.
    from sb3_manygoals.minatar import make_minatar_vec_env

    return make_minatar_vec_env(config.game, n_envs, config.seed)


def _minatar_extractor() -> type[BaseFeaturesExtractor]:
    from sb3_manygoals.minatar import MinAtarCNN

    return MinAtarCNN


KINDS: dict[WorldName, Kind] = {
    "atari": Kind(_atari, n_stack=4, compress=True),
    "two_rooms": Kind(_two_rooms, cell=1),
    "minigrid": Kind(partial(_minigrid, worlds.minigrid), compress=True, cell=worlds.TILE),
    "minigrid_view": Kind(partial(_minigrid, worlds.PartialView), compress=True, cell=worlds.TILE),
    "minatar": Kind(_minatar, compress=True, cell=1, extractor=_minatar_extractor),
}
"""
All kinds of worlds.

One more needs a name, an entry here, and its defaults in ``WORLDS`` of the commands that it is for.
"""


def settings(config: A2CConfig) -> dict[str, Any]:
    """
    Return the arguments of SB3's A2C, beside ``policy`` and ``env``.

    :param config: settings of the run
    :return: arguments by name
    """
    return {
        "learning_rate": config.learning_rate,
        # The paper calls it n.
        "n_steps": 5,
        # This is baselines' value; the paper gives the same for its goals.
        "gamma": 0.99,
        # The paper's R is the n-step bootstrapped return.
        "gae_lambda": 1.0,
        "ent_coef": config.ent_coef,
        # The paper has 0.5 of half the squared error. SB3's loss is the squared error.
        "vf_coef": 0.25,
        # This is baselines' value.
        "max_grad_norm": 0.5,
        # The paper's equation does not normalize advantages.
        "normalize_advantage": False,
        "seed": config.seed,
        "policy_kwargs": {
            **(OPTIMIZER if config.optimizer == "baselines" else {}),
            "features_extractor_class": config.kind.extractor(),
            "ortho_init": config.ortho_init,
            # The shared layers are the last ones before actor and critic.
            "net_arch": [],
            "features_extractor_kwargs": {"features_dim": config.features_dim},
        },
    }


class ScoreCallback(Clock):
    """
    Keeps the returns of episodes, and adds a row of :data:`CURVE` every so many steps.

    Returns are those of a Monitor, before rewards are clipped.

    :param every: environment steps between rows
    :param curve: file to which rows are added
    :param seconds_before: seconds of pre-training, which count as seconds of training
    """

    def __init__(self, every: int, curve: CurveLog, seconds_before: float = 0.0) -> None:
        super().__init__()
        super().set_checkpoint_state(seconds_before)
        self.every = every
        self.curve = curve
        self.episodes = 0
        self._last: deque[tuple[float, int]] = deque(maxlen=LAST)
        self._last_step = 0

    @property
    def score(self) -> float | None:
        """Mean return of the last 100 episodes; None before one has ended."""
        return float(np.mean([score for score, _ in self._last])) if self._last else None

    def get_checkpoint_state(self) -> dict[str, Any]:
        """
        Return the state that a checkpoint keeps.

        :return: the last returns and lengths, and counts of episodes, steps and seconds
        """
        return {
            "episodes": self.episodes,
            "last": [list(one) for one in self._last],
            "last_step": self._last_step,
            "training_seconds": self.training_seconds,
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Go on from a checkpoint.

        :param state: a state from :meth:`get_checkpoint_state`
        """
        super().set_checkpoint_state(state["training_seconds"])
        self.episodes = state["episodes"]
        self._last_step = state["last_step"]
        self._last = deque(map(tuple, state["last"]), maxlen=LAST)

    def _on_step(self) -> bool:
        """Note the episodes that have ended, and add a row, if it is time."""
        ended = [info["episode"] for info in self.locals["infos"] if "episode" in info]
        self.episodes += len(ended)
        self._last.extend((float(one["r"]), int(one["l"])) for one in ended)
        if self.num_timesteps // self.every > self._last_step // self.every:
            self._point()
        return True

    def _on_training_end(self) -> None:
        if self.num_timesteps > self._last_step:
            self._point()
        super()._on_training_end()

    def _point(self) -> None:
        """Add a row to the curve, once an episode has ended."""
        self._last_step = self.num_timesteps
        if self.score is not None:
            length = float(np.mean([length for _, length in self._last]))
            means = (f"{self.score:.6g}", f"{length:.6g}")
            seconds = f"{self.training_seconds:.1f}"
            self.curve.add([self._last_step, self.episodes, *means, seconds])
            self.logger.record("score/last_100_episodes", self.score)


def train(
    config: A2CConfig,
    model: A2C,
    folder: Path,
    callbacks: Mapping[str, BaseCallback] | None = None,
    seconds_before: float = 0.0,
    **result: Any,
) -> Path:
    """
    Train as :func:`benchmarks.recording.train` does, and write ``curve.csv`` and ``score.json``.

    :param config: settings of the run
    :param model: the untrained agent
    :param folder: the folder of the run
    :param callbacks: callbacks of auxiliary tasks, by name; their states are in checkpoints
    :param seconds_before: seconds of pre-training, which count as seconds of training
    :param result: further entries of ``score.json``
    :return: the folder of the run
    """
    curve = CurveLog(folder / "curve.csv", CURVE)
    scores = ScoreCallback(config.eval_freq, curve, seconds_before)
    own = dict(callbacks or {})
    extras: dict[str, Any] = {**own, "score": scores, "curve.csv": curve}
    interval = max(1, config.eval_freq // (model.n_envs * model.n_steps))
    recording.train(config, model, config.steps, folder, [*own.values(), scores], extras, interval)
    score = scores.score
    seconds = round(scores.training_seconds, 1)
    record = {
        "score": score,
        "step": model.num_timesteps,
        "episodes": scores.episodes,
        "training_seconds": seconds,
        **result,
    }
    write_whole(folder / "score.json", json.dumps(record, indent=2) + "\n")
    said = "no episode has ended"
    if score is not None:
        said = f"score {score:.3f}, mean of the last {LAST} episodes"
    print(f"{said}; training took {seconds:.0f} s")
    return folder
