"""
A row to compare with: SB3's own DQN with HerReplayBuffer, in the same world, with the same network. The defaults are the best
of the few settings that were tried on the small map, ``docs/results/hindsight-search.csv``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch as th
from numpy.typing import NDArray
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.utils import LinearSchedule

from benchmarks.mastery import all_goals
from benchmarks.peers import GoalProduct
from benchmarks.relabelling import HindsightDQN, KnownGoalsHerReplayBuffer
from benchmarks.study import StudyConfig, Subject, carry_out, choose_held_out, open_folder, saved_settings
from gym_twoRooms.oracle import mastery_ceiling
from sb3_manygoals import GoalBuffer, VecGoalBufferWrapper


@dataclass(frozen=True)
class HindsightConfig(StudyConfig):
    """Train SB3's DQN with HerReplayBuffer on TwoRoomsSwitch, measure its mastery, write a report."""

    env_id: str = "TwoRoomsSwitchSmall-v0"
    """The world."""
    total_steps: int = 240_000
    """Environment steps to train for."""
    eval_freq: int = 20_000
    """Environment steps between measurements of mastery."""
    n_envs: int = 8
    """Environments that run side by side."""
    learning_rate: float = 1e-3
    """Step size, of Adam."""
    decay: bool = True
    """Let the step size fall linearly to zero over the run."""
    buffer_size: int = 50_000
    """Transitions in the replay memory."""
    learning_starts: int = 1_000
    """Environment steps before the first update."""
    batch_size: int = 128
    """Transitions in an update, each with one goal."""
    gamma: float = 0.99
    """Discount factor."""
    tau: float = 0.05
    """Share of the learning network that the target network takes over each time."""
    target_update_interval: int = 8
    """Environment steps between target network updates."""
    train_freq: int = 1
    """Vector steps between updates."""
    gradient_steps: int = 2
    """Updates each time."""
    n_sampled_goal: int = 4
    """Relabelled transitions in a batch for each with the goal that was pursued."""
    goal_selection_strategy: Literal["future", "final", "episode"] = "future"
    """Whence in its episode a transition's new goal comes: later on, the end, anywhere."""
    features_dim: int = 256
    """Width of the trunk's fully connected layer."""
    embedding_dim: int = 256
    """Width of state and goal embeddings."""
    layer_norm: bool = True
    """End the trunk with layer normalization."""
    standardize: bool = True
    """Standardize observations by what is known when learning starts."""
    exploration_fraction: float = 0.3
    """Share of the run over which epsilon falls from 1."""
    exploration_final_eps: float = 0.1
    """Epsilon after that."""
    max_episode_steps: int = 50
    """Steps an episode may take to its goal."""
    held_out: float = 0.0
    """Share of all goals, drawn at random, that are neither pursued nor relabelled with, and measured on their own."""
    device: str = "cpu"
    """Where the networks live: cpu, cuda, auto."""
    threads: int | None = None
    """Torch threads; by default as many as torch finds fit."""

    def make(self, held_out: NDArray[np.uint8] | None = None, n_goals: int = 10_000) -> HindsightDQN:
        """
        :param held_out: observations that must never be goals, or None
        :param n_goals: how many goals it may know at most
        :return: an untrained agent
        :raises ValueError: if the replay memory cannot hold an episode, or learning would start before one has ended
        """
        longest = self.n_envs * self.max_episode_steps
        for name in ("buffer_size", "learning_starts"):
            if getattr(self, name) <= longest:
                raise ValueError(
                    f"{name} must be more than n_envs x max_episode_steps = {longest}, as only whole episodes are relabelled, "
                    f"got {getattr(self, name)}"
                )
        worlds = make_vec_env(self.env_id, self.n_envs, seed=self.seed)
        goal_buffer = GoalBuffer(worlds.observation_space, n_goals, held_out)
        network = {
            "features_dim": self.embedding_dim,
            "trunk_dim": self.features_dim,
            "layer_norm": self.layer_norm,
            "standardize": self.standardize,
        }
        policy: dict[str, Any] = {
            "features_extractor_class": GoalProduct,
            "features_extractor_kwargs": network,
            "net_arch": [],
            "optimizer_class": th.optim.Adam,
            "optimizer_kwargs": {"fused": True},
        }
        return HindsightDQN(
            "MultiInputPolicy",
            VecGoalBufferWrapper(worlds, goal_buffer, max_episode_steps=self.max_episode_steps),
            learning_rate=LinearSchedule(self.learning_rate, 0.0, 1.0) if self.decay else self.learning_rate,
            replay_buffer_class=KnownGoalsHerReplayBuffer,
            replay_buffer_kwargs={
                "n_sampled_goal": self.n_sampled_goal,
                "goal_selection_strategy": self.goal_selection_strategy,
            },
            policy_kwargs=policy,
            **{name: getattr(self, name) for name in SB3S},
        )

    def run(self) -> Path:
        """:return: the run's folder, with everything in it"""
        return run(self)


SB3S = (
    "buffer_size",
    "learning_starts",
    "batch_size",
    "gamma",
    "tau",
    "target_update_interval",
    "train_freq",
    "gradient_steps",
    "exploration_fraction",
    "exploration_final_eps",
    "seed",
    "device",
)
"""Settings that are arguments of SB3's DQN as they are."""


def saved_config(folder: Path) -> HindsightConfig:
    """
    :param folder: of a run
    :return: its settings, to go on with
    :raises FileNotFoundError: if it is no run's folder
    """
    return HindsightConfig(**saved_settings(folder))


def run(config: HindsightConfig) -> Path:
    """
    Carry out the study, see :func:`~benchmarks.study.carry_out`, and write ``config.json`` besides.

    :param config: what to run
    :return: the folder
    """
    if config.threads is not None:
        th.set_num_threads(config.threads)
    goals = all_goals(config.env_id)
    held_out = choose_held_out(len(goals), config.held_out, config.seed)
    model = config.make(goals[held_out] if held_out.any() else None, len(goals))
    folder = open_folder(config, f"hindsight-seed{config.seed}")
    eval_env = gym.make_vec(config.env_id, num_envs=len(goals), vectorization_mode="vector_entry_point")
    ceiling = mastery_ceiling(eval_env.unwrapped.mdp, config.eval_steps)  # type: ignore[attr-defined]
    carry_out(config, folder, Subject(model, eval_env, goals, held_out, ceiling, by_pictures=model))
    return folder
