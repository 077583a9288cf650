"""Section 3 of the paper: how many of a world's pictures does the agent learn to reach?"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch as th
from numpy.typing import NDArray
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.utils import LinearSchedule

from benchmarks.exact_targets import ExactTargetsDQN
from benchmarks.study import StudyConfig, Subject, carry_out, choose_held_out, open_folder, saved_settings
from gym_twoRooms.oracle import mastery_ceiling
from sb3_manygoals import GoalBuffer, ManyGoalsDQN
from sb3_manygoals.goals import (
    GoalSelector,
    IntermediateDifficultySelector,
    LearningProgressSelector,
    LeastVisitedSelector,
    SmoothedProgressSelector,
    UniformSelector,
    ValueDisagreementSelector,
)
from sb3_manygoals.optim import FusedRMSprop


@dataclass(frozen=True)
class AgentConfig:
    """ManyGoalsDQN's settings. The defaults are the paper's, where it gives them."""

    n_envs: int = 1
    """Environments that run side by side."""
    optimizer: Literal["rmsprop", "adam"] = "rmsprop"
    """The paper's RMSProp, or Adam."""
    rmsprop_epsilon: float = 1e-12
    """What RMSProp adds to second moments, inside the root."""
    learning_rate: float = 1e-4
    """Step size."""
    decay: bool = False
    """Let the step size fall linearly to zero over the run."""
    buffer_size: int = 10_000
    """Transitions in the replay memory."""
    learning_starts: int = 10_000
    """Environment steps before the first update."""
    batch_size: int = 32
    """Transitions in an update."""
    goal_batch_size: int = 16
    """Goals in an update."""
    goal_sampling: Literal["uniform", "batch", "all", "pursued"] = "uniform"
    """Update goals: uniform over the known ones; the batch's own next observations; all of them; or, for each transition, the
    one that was pursued when it was made (on-policy)."""
    batch_goal_share: float = 1.0
    """The most of an update's goals that may be the batch's own next observations."""
    selection: Literal[
        "uniform",
        "learning_progress",
        "smoothed_progress",
        "intermediate_difficulty",
        "least_visited",
        "value_disagreement",
    ] = "uniform"
    """How the goals that are pursued are chosen."""
    double_q: bool = False
    """Double Q-learning."""
    action_gap: float = 0.0
    """Advantage learning: how far the action gap is widened."""
    near_decay: float = 1.0
    """Pairs count by their distance d to the goal: this to the power of d, plus near_floor; 1: all the same."""
    near_floor: float = 0.02
    """How much the farthest pairs count, if near ones count more."""
    n_steps: int = 1
    """Steps of the world that a transition spans."""
    segment_length: int = 1
    """Transitions in a row that a part of an update's are drawn by; targets are the best along the way. 1: none."""
    segment_share: float = 0.5
    """That part."""
    plan_interval: int = 0
    """Environment steps between value iterations in what the replay memory holds, which then gives the targets; 0: none."""
    plan_sweeps: int = 16
    """The most updates of all values each time."""
    plan_evenly: bool = False
    """Draw transitions evenly over the states then."""
    margin_weight: float = 0.0
    """With a plan: how much it counts that its best actions do not lead by a margin; 0: not at all."""
    margin: float = 0.05
    """That margin, in units of values."""
    gamma: float = 0.99
    """Discount factor."""
    tau: float = 1.0
    """Share of the learning network that the target network takes over each time."""
    target_update_interval: int = 250
    """Environment steps between target network updates."""
    initial_value: float | None = None
    """What all values begin near; None: that of a goal that is never reached."""
    train_freq: int = 1
    """Vector steps between updates."""
    gradient_steps: int = 1
    """Updates each time."""
    trunk: Literal["cnn", "mlp"] = "cnn"
    """Convolutions and a fully connected layer, as in the paper, or two fully connected layers."""
    features_dim: int = 512
    """Width of the trunk's fully connected layers."""
    embedding_dim: int = 1024
    """Width of state and goal embeddings."""
    layer_norm: bool = False
    """End the trunk with layer normalization."""
    standardize: bool = True
    """Standardize observations by what is known when learning starts."""
    head: Literal["product", "rectified", "distance"] = "product"
    """The product of the embeddings, as in the paper, that with a ReLU on them, or the distance between them."""
    averaging: float = 0.0
    """Share that an average of the weights keeps of itself at each update; it acts and is measured. 0: no average."""
    exploration_steps: int = 1_000_000
    """Environment steps over which epsilon falls."""
    exploration_final_eps: float = 0.1
    """Epsilon after that."""
    max_episode_steps: int = 50
    """Steps an episode may take to its goal."""

    def make(
        self,
        env_id: str,
        total_steps: int,
        seed: int,
        device: str,
        held_out: NDArray[np.uint8] | None = None,
        n_goals: int = 10_000,
        algorithm: type[ManyGoalsDQN] = ManyGoalsDQN,
    ) -> ManyGoalsDQN:
        """
        :param env_id: of a TwoRoomsSwitch world
        :param total_steps: of the run, for the decay of the step size
        :param seed: of everything
        :param device: for the networks
        :param held_out: observations that must never be goals, or None
        :param n_goals: how many goals it may know at most
        :param algorithm: ManyGoalsDQN, or one that takes its arguments
        :return: an untrained agent
        """
        rate = LinearSchedule(self.learning_rate, 0.0, 1.0) if self.decay else self.learning_rate
        optimizers: dict[str, tuple[type[th.optim.Optimizer], dict[str, Any]]] = {
            "rmsprop": (FusedRMSprop, {"alpha": 0.99, "eps": self.rmsprop_epsilon}),
            "adam": (th.optim.Adam, {"fused": True}),
        }
        optimizer_class, optimizer_kwargs = optimizers[self.optimizer]
        trunks: dict[str, dict[str, Any]] = {
            "cnn": {"features_extractor_kwargs": {"features_dim": self.features_dim}},
            "mlp": {"features_extractor_class": FlattenExtractor, "net_arch": [self.features_dim] * 2},
        }
        policy = {name: getattr(self, name) for name in ("embedding_dim", "layer_norm", "standardize", "head", "averaging")}
        wrapped = {"n_envs", "selection", "max_episode_steps"}
        own = {"optimizer", "rmsprop_epsilon", "learning_rate", "decay", "trunk", "features_dim"} | wrapped
        env = make_vec_env(env_id, self.n_envs, seed=seed)
        pursuit = {
            "max_episode_steps": self.max_episode_steps,
            "selector": SELECTORS[self.selection](),
            "goal_buffer": GoalBuffer(env.observation_space, n_goals, held_out),
        }
        return algorithm(
            "CnnPolicy",
            env,
            learning_rate=rate,
            policy_kwargs={
                **policy,
                **trunks[self.trunk],
                "optimizer_class": optimizer_class,
                "optimizer_kwargs": optimizer_kwargs,
            },
            goal_wrapper_kwargs=pursuit,
            seed=seed,
            device=device,
            **{name.name: getattr(self, name.name) for name in fields(self) if name.name not in own | policy.keys()},
        )


SELECTORS: dict[str, type[GoalSelector]] = {
    "uniform": UniformSelector,
    "learning_progress": LearningProgressSelector,
    "smoothed_progress": SmoothedProgressSelector,
    "intermediate_difficulty": IntermediateDifficultySelector,
    "least_visited": LeastVisitedSelector,
    "value_disagreement": ValueDisagreementSelector,
}
"""Rules by the names they have in the settings."""


@dataclass(frozen=True)
class MasteryConfig(StudyConfig):
    """Train ManyGoalsDQN on TwoRoomsSwitch, measure its mastery, write a report."""

    preset: Literal["small", "fast", "paper", "paper-learning-progress", "paper-on-policy"] = "small"
    """Where the defaults of all other options come from: a small map in minutes; the paper's map with what masters it
    soonest; or the paper's setting in hours, with its goals chosen uniformly, by learning progress, or with its on-policy
    baseline."""
    agent: AgentConfig = field(default_factory=AgentConfig)
    held_out: float = 0.0
    """Share of all goals, drawn at random, that are neither pursued nor taught (the paper: 0.2), and measured on their own."""
    exact_targets: bool = False
    """Tell it the exact values, which no agent can know, for what its target network says: what it still fails to learn is not
    for want of better targets."""
    device: str = "cpu"
    """Where the networks live: cpu, cuda, auto."""
    threads: int | None = None
    """Torch threads; by default as many as torch finds fit."""

    def run(self) -> Path:
        """:return: the run's folder, with everything in it"""
        return run(self)


PRESETS = {
    "small": MasteryConfig(
        preset="small",
        env_id="TwoRoomsSwitchSmall-v0",
        total_steps=240_000,
        agent=AgentConfig(
            n_envs=8,
            optimizer="adam",
            learning_rate=1e-3,
            decay=True,
            buffer_size=50_000,
            learning_starts=1_000,
            batch_size=64,
            goal_batch_size=96,
            goal_sampling="batch",
            tau=0.05,
            target_update_interval=8,
            initial_value=0.0,
            features_dim=256,
            embedding_dim=256,
            layer_norm=True,
            exploration_steps=72_000,
        ),
        eval_freq=20_000,
    ),
    "fast": MasteryConfig(
        preset="fast",
        total_steps=500_000,
        agent=AgentConfig(
            n_envs=8,
            optimizer="adam",
            learning_rate=1e-3,
            decay=True,
            buffer_size=500_000,
            learning_starts=300_000,  # steps are cheap, and a plan is worth what it is made of
            batch_size=128,
            goal_batch_size=128,
            near_decay=0.75,
            plan_interval=50_000,
            plan_sweeps=100,
            plan_evenly=True,
            margin_weight=5.0,
            margin=0.1,
            initial_value=0.0,
            trunk="mlp",
            head="distance",
            embedding_dim=128,
            averaging=0.999,
            exploration_steps=100_000,
            exploration_final_eps=0.2,
        ),
        final_episodes=2,
    ),
    "paper": MasteryConfig(preset="paper"),
    "paper-learning-progress": MasteryConfig(
        preset="paper-learning-progress", agent=AgentConfig(selection="learning_progress")
    ),
    # 16 transitions from the same replay memory, as many updates as the others make
    "paper-on-policy": MasteryConfig(preset="paper-on-policy", agent=AgentConfig(goal_sampling="pursued", batch_size=16)),
}


def saved_config(folder: Path) -> MasteryConfig:
    """
    :param folder: of a run
    :return: its settings, to go on with
    :raises FileNotFoundError: if it is no run's folder
    """
    settings = saved_settings(folder)
    return MasteryConfig(**settings | {"agent": AgentConfig(**settings["agent"])})


def all_goals(env_id: str) -> NDArray[np.uint8]:
    """
    :param env_id: of a TwoRoomsSwitch world
    :return: every observation it can show, in order of its states
    """
    env = gym.make(env_id)
    goals: NDArray[np.uint8] = env.unwrapped.mdp.observations  # type: ignore[attr-defined]
    env.close()
    return goals


def run(config: MasteryConfig) -> Path:
    """
    Carry out the study, see :func:`~benchmarks.study.carry_out`, and write ``config.json`` besides.

    :param config: what to run
    :return: the folder
    """
    if config.threads is not None:
        th.set_num_threads(config.threads)
    goals = all_goals(config.env_id)
    held_out = choose_held_out(len(goals), config.held_out, config.seed)
    folder = open_folder(config, f"mastery-{config.preset}-seed{config.seed}")
    eval_env = gym.make_vec(config.env_id, num_envs=len(goals), vectorization_mode="vector_entry_point")
    never = goals[held_out] if held_out.any() else None
    algorithm = ExactTargetsDQN if config.exact_targets else ManyGoalsDQN
    model = config.agent.make(config.env_id, config.total_steps, config.seed, config.device, never, algorithm=algorithm)
    ceiling = mastery_ceiling(eval_env.unwrapped.mdp, config.eval_steps)  # type: ignore[attr-defined]
    carry_out(config, folder, Subject(model, eval_env, goals, held_out, ceiling, by_pictures=model))
    return folder
