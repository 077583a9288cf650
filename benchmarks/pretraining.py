"""
Section 4 of the paper: A2C whose trunk was pre-trained, or not.

The trunk learns mastery of many goals, or to predict rewards.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch as th
from stable_baselines3 import A2C
from stable_baselines3.common.policies import ActorCriticPolicy

from benchmarks import recording
from benchmarks.agents import a2c
from benchmarks.agents.a2c import MINATAR, OPTIMIZER, SMALL, A2CConfig
from benchmarks.worlds import building
from sb3_manygoals import PAPER, ManyGoalsDQN, TDTargets
from sb3_manygoals.checkpoint import checkpoints, read_newest
from sb3_manygoals.checkpoint.learner import get_generators, set_generators
from sb3_manygoals.pretraining import ManyGoalsFrameReplayBuffer, RewardPredictor, transfer_trunk
from sb3_manygoals.vec_env import can_reset_single_envs

WorldName = Literal["atari", "minigrid", "minatar"]
Agent = Literal["many_goals", "reward_prediction", "none"]


@dataclass(frozen=True)
class PretrainingConfig(A2CConfig):
    """
    Pre-train a trunk, then let A2C begin with it; or A2C from scratch.

    The defaults are the paper's.
    """

    world: WorldName = "atari"
    """Atari games, MiniGrid or MinAtar; it gives the defaults of all other options."""
    agent: Agent = "many_goals"
    """How the trunk is pre-trained: by mastery of many goals, by predicting the sign of rewards of
    random actions, or not at all."""
    pretrain_steps: int = 1_000_000
    """Environment steps of pre-training, over which epsilon falls from 1 to 0.1. Without
    pre-training, A2C learns during these steps, too."""
    pretraining_learning_rate: float | None = None
    """Step size of RMSProp in pre-training; by default that of A2C."""
    buffer_size: int = 10_000
    """Transitions in the replay memory of pre-training."""
    learning_starts: int = 1_000
    """Environment steps before the first update of pre-training."""
    batch_size: int = 16
    """Transitions in an update of pre-training, one update a step. Reward prediction has
    batch_size * goal_batch_size transitions in an update."""
    goal_batch_size: int = 5
    """Goals in an update of pre-training, drawn from the replay memory."""
    goal_steps: int = 50
    """Steps within which a behavior goal must be reached."""
    max_episode_steps: int = 250
    """Steps of an episode, for minigrid only."""
    device: str = "cpu"
    """Where the networks live: cpu, cuda, auto."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps <= self.pretrain_steps:
            raise ValueError(
                f"steps must be more than pretrain_steps, {self.pretrain_steps}, got {self.steps}"
            )
        if not 0 <= self.learning_starts < self.pretrain_steps:
            limit = f"less than pretrain_steps, {self.pretrain_steps}"
            raise ValueError(
                f"learning_starts must be at least 0, and {limit}, got {self.learning_starts}"
            )

    def run(self) -> Path:
        """
        Train, and write the files of a run of A2C.

        The model, log and checkpoints of pre-training are written to ``pretraining/``.

        :return: the folder of the run
        """
        th.set_num_threads(self.threads)
        with building(f"{self.agent} in {self.game}"):
            model = make_a2c(self)
        folder = recording.open_folder(
            self, f"pretraining-{self.game}-{self.agent}-seed{self.seed}"
        )
        seconds = 0.0
        if self.agent != "none" and not checkpoints(folder / "checkpoints"):
            seconds = _pretrain(self, folder, model)
        return a2c.train(
            self,
            model,
            folder,
            seconds_before=seconds,
            pretrain_steps=0 if self.agent == "none" else self.pretrain_steps,
        )


WORLDS: dict[WorldName, PretrainingConfig] = {
    "atari": PretrainingConfig(),
    "minigrid": PretrainingConfig(
        world="minigrid",
        game="MiniGrid-DoorKey-5x5-v0",
        pretrain_steps=20_000,
        steps=200_000,
        eval_freq=5_000,
        **SMALL,
    ),
    "minatar": PretrainingConfig(pretrain_steps=100_000, pretraining_learning_rate=7e-4, **MINATAR),
}
"""The defaults of each world."""


def make_learner(config: PretrainingConfig) -> ManyGoalsDQN | RewardPredictor:
    """
    Make the untrained learner that pre-trains, with one copy of the world.

    :param config: settings of the run; its agent must not be "none"
    :return: a learner of many goals, or of the signs of rewards
    """
    policy = {
        **OPTIMIZER,
        "ortho_init": config.ortho_init,
        "features_extractor_class": config.kind.extractor(),
        "features_extractor_kwargs": {"features_dim": config.features_dim},
        # Seaquest's pictures are cubes: their shape does not show which axis is that of channels.
        "channels_last": False if config.world == "minatar" else None,
    }
    common: dict[str, Any] = {
        "learning_rate": config.pretraining_learning_rate or config.learning_rate,
        "buffer_size": config.buffer_size,
        "learning_starts": config.learning_starts,
        "seed": config.seed,
        "device": config.device,
    }
    env = config.kind.make(config, 1)
    n_stack = config.kind.n_stack
    if config.agent == "reward_prediction":
        pairs = config.batch_size * config.goal_batch_size
        return RewardPredictor(
            "CnnPolicy", env, batch_size=pairs, n_stack=n_stack, policy_kwargs=policy, **common
        )
    return ManyGoalsDQN(
        "CnnPolicy",
        env,
        batch_size=config.batch_size,
        goal_batch_size=config.goal_batch_size,
        updates_per_step=1.0,
        goals_in_replay=True,
        replay_buffer_class=ManyGoalsFrameReplayBuffer,
        replay_buffer_kwargs={"n_stack": n_stack},
        goal_wrapper_kwargs={
            "max_episode_steps": config.goal_steps,
            "reset_worlds": can_reset_single_envs(env),
        },
        target_class=TDTargets,
        target_kwargs={**PAPER["target_kwargs"], "initial_value": 0.0},
        tau=PAPER["tau"],
        target_update_interval=PAPER["target_update_interval"],
        exploration_fraction=1.0,
        policy_kwargs={
            **PAPER["policy_kwargs"],
            "standardize": False,
            **policy,
            "embedding_dim": config.embedding_dim,
        },
        **common,
    )


def make_a2c(config: PretrainingConfig) -> A2C:
    """
    Make the untrained agent.

    :param config: settings of the run
    :return: A2C, with its environments
    """
    env = config.kind.make(config, config.n_envs)
    return A2C(ActorCriticPolicy, env, device=config.device, **a2c.settings(config))


def _pretrain(config: PretrainingConfig, folder: Path, model: A2C) -> float:
    """
    Give the pre-trained trunk to a model. Return the seconds of pre-training.

    Pre-training is done, gone on with, or only read, if it is complete already.
    """
    generators = get_generators(model)
    (folder / "pretraining").mkdir(exist_ok=True)
    learner = make_learner(config)
    clock = recording.Clock()
    recording.train(
        config,
        learner,
        config.pretrain_steps,
        folder,
        [clock],
        {"clock": clock} if _is_timed(folder / "pretraining" / "checkpoints") else {},
        log_interval=20,
        part="pretraining",
    )
    print(f"pre-training took {clock.training_seconds:.0f} s")
    for target, source in transfer_trunk(learner, model).items():
        print(f"copied {source} to {target}")
    # A2C draws the same numbers, whether pre-training was done just now or only read.
    set_generators(generators)
    model.num_timesteps = config.pretrain_steps
    return clock.training_seconds


def _is_timed(checkpoints_of_pretraining: Path) -> bool:
    """Return whether checkpoints have the time of pre-training. Earlier versions wrote none."""
    newest = read_newest(checkpoints_of_pretraining, fallback=True)
    return newest is None or "clock" in newest[1]["extras"]
