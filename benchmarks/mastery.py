"""Section 3 of the paper: how many of a world's pictures does the agent learn to reach?"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch as th
from numpy.typing import NDArray
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.utils import LinearSchedule

from benchmarks import film, logs, plotting, report, run_folder
from gym_twoRooms.oracle import mastery_ceiling
from sb3_manygoals import ExactCheckpointCallback, ManyGoalsDQN, MasteryCallback, MasteryResult, evaluate_mastery
from sb3_manygoals.evaluation import MasteryPoint
from sb3_manygoals.goals import GoalBuffer
from sb3_manygoals.optim import InPlaceRMSprop


@dataclass(frozen=True)
class AgentConfig:
    """ManyGoalsDQN's settings. The defaults are the paper's."""

    n_envs: int = 1
    """Environments that run side by side."""
    optimizer: Literal["rmsprop", "adam"] = "rmsprop"
    """The paper's RMSProp, or Adam."""
    learning_rate: float = 1e-3
    """Step size."""
    decay: bool = False
    """Let the step size fall linearly to zero over the run."""
    buffer_size: int = 10_000
    """Transitions in the replay memory."""
    learning_starts: int = 1_000
    """Environment steps before the first update."""
    batch_size: int = 32
    """Transitions in an update."""
    goal_batch_size: int = 16
    """Goals in an update."""
    goal_sampling: Literal["uniform", "batch"] = "uniform"
    """Update goals: uniform over the known ones, or the batch's own next observations."""
    double_q: bool = False
    """Double Q-learning."""
    action_gap: float = 0.0
    """Advantage learning: how far the action gap is widened."""
    near_decay: float = 1.0
    """Pairs count by their distance d to the goal: this to the power of d, plus near_floor; 1: all the same."""
    near_floor: float = 0.02
    """How much the farthest pairs count, if near ones count more."""
    gamma: float = 0.99
    """Discount factor."""
    tau: float = 1.0
    """Share of the learning network that the target network takes over each time."""
    target_update_interval: int = 250
    """Environment steps between target network updates."""
    train_freq: int = 1
    """Vector steps between updates."""
    gradient_steps: int = 1
    """Updates each time."""
    features_dim: int = 512
    """Width of the trunk's fully connected layer."""
    embedding_dim: int = 1024
    """Width of state and goal embeddings."""
    layer_norm: bool = False
    """End the trunk with layer normalization."""
    standardize: bool = False
    """Standardize observations by what is known when learning starts."""
    head: Literal["product", "distance"] = "product"
    """The product of the embeddings, as in the paper, or the distance between them."""
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
        algorithm: type[ManyGoalsDQN] = ManyGoalsDQN,
        n_goals: int | None = None,
    ) -> ManyGoalsDQN:
        """
        :param env_id: of a TwoRoomsSwitch world
        :param total_steps: of the run, for the decay of the step size
        :param seed: of everything
        :param device: for the networks
        :param algorithm: ManyGoalsDQN, or one that takes its arguments
        :param n_goals: how many goals it may know at most; None: as many as a goal buffer holds by default
        :return: an untrained agent
        """
        rate = LinearSchedule(self.learning_rate, 0.0, 1.0) if self.decay else self.learning_rate
        optimizers: dict[str, tuple[type[th.optim.Optimizer], dict[str, Any]]] = {
            "rmsprop": (InPlaceRMSprop, {"alpha": 0.99, "eps": 1e-5}),
            "adam": (th.optim.Adam, {"fused": True}),
        }
        optimizer_class, optimizer_kwargs = optimizers[self.optimizer]
        policy = {name: getattr(self, name) for name in ("embedding_dim", "layer_norm", "standardize", "head", "averaging")}
        own = {"n_envs", "optimizer", "learning_rate", "decay", "features_dim", "max_episode_steps", *policy}
        env = make_vec_env(env_id, self.n_envs, seed=seed)
        goal_buffer = None if n_goals is None else GoalBuffer(env.observation_space, n_goals)
        return algorithm(
            "CnnPolicy",
            env,
            learning_rate=rate,
            policy_kwargs={
                **policy,
                "features_extractor_kwargs": {"features_dim": self.features_dim},
                "optimizer_class": optimizer_class,
                "optimizer_kwargs": optimizer_kwargs,
            },
            goal_wrapper_kwargs={"max_episode_steps": self.max_episode_steps, "goal_buffer": goal_buffer},
            seed=seed,
            device=device,
            **{name.name: getattr(self, name.name) for name in fields(self) if name.name not in own},
        )


@dataclass(frozen=True)
class MasteryConfig:
    """Train ManyGoalsDQN on TwoRoomsSwitch, measure its mastery, write a report."""

    preset: Literal["small", "paper"] = "small"
    """Where the defaults of all other options come from: a small map in minutes, or the paper's setting in hours."""
    env_id: str = "TwoRoomsSwitch-v0"
    """The world."""
    total_steps: int = 3_000_000
    """Environment steps to train for."""
    seed: int = 0
    """Of everything random."""
    agent: AgentConfig = field(default_factory=AgentConfig)
    eval_freq: int = 100_000
    """Environment steps between measurements of mastery."""
    eval_epsilon: float = 0.1
    """Mastery is measured greedily, and with this share of random actions."""
    eval_steps: int = 200
    """Steps within which a goal must be reached."""
    final_episodes: int = 10
    """Random starts for each goal in the measurement after training."""
    output: Path = Path("runs")
    """Folder in which the run's own folder is made."""
    device: str = "cpu"
    """Where the networks live: cpu, cuda, auto."""
    threads: int | None = None
    """Torch threads; by default as many as torch finds fit."""
    progress_bar: bool = True
    """Show one while training."""
    checkpoint_minutes: float = 5.0
    """Minutes between checkpoints; one more is written when the run is told to end by SIGTERM or Ctrl-C."""
    resume: Path | None = None
    """Folder of a run to go on with, from its newest checkpoint, or from the start if it has none. The defaults of all other
    options are then that run's."""

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
            decay=True,
            buffer_size=50_000,
            batch_size=64,
            goal_batch_size=96,
            goal_sampling="batch",
            tau=0.05,
            target_update_interval=8,
            features_dim=256,
            embedding_dim=256,
            layer_norm=True,
            standardize=True,
            exploration_steps=72_000,
        ),
        eval_freq=20_000,
    ),
    "paper": MasteryConfig(preset="paper"),
}


def saved_config(folder: Path) -> MasteryConfig:
    """
    :param folder: of a run
    :return: its settings, to go on with
    :raises FileNotFoundError: if it is no run's folder
    """
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))["settings"]
    settings["agent"] = AgentConfig(**settings["agent"])
    return MasteryConfig(**settings | {"output": Path(settings["output"]), "resume": folder})


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
    Train, or go on training, measure, and write ``checkpoints/``, ``config.json``, ``progress.csv``, ``mastery.csv``,
    ``goals.csv``, ``model.zip``, ``goals.npz``, ``curve.png``, ``reaching.gif``, ``report.html`` and TensorBoard events.

    :param config: what to run
    :return: the folder
    """
    if config.threads is not None:
        th.set_num_threads(config.threads)
    if config.resume is None:
        folder = run_folder.create(config.output, f"mastery-{config.preset}-seed{config.seed}")
        run_folder.write_config(folder, config)
    else:
        folder = config.resume
        run_folder.note_resumption(folder)
    goals = all_goals(config.env_id)
    eval_env = gym.make_vec(config.env_id, num_envs=len(goals), vectorization_mode="vector_entry_point")
    mdp = eval_env.unwrapped.mdp  # type: ignore[attr-defined]
    model = config.agent.make(config.env_id, config.total_steps, config.seed, config.device)
    print(f"{config.env_id}: {len(goals)} goals; {config.total_steps} steps; writing to {folder}")

    curve, table = logs.CurveLog(folder / "mastery.csv", CURVE), logs.CSVLog(folder / "progress.csv")
    callback = MasteryCallback(
        eval_env,
        goals,
        config.eval_freq,
        config.eval_steps,
        config.eval_epsilon,
        lambda point: curve.add(_curve_row(point)),
        seed=config.seed,
        verbose=1,
    )
    checkpoints = ExactCheckpointCallback(
        folder / "checkpoints",
        every_seconds=60 * config.checkpoint_minutes,
        keep=2,
        extras={"mastery": callback, "mastery.csv": curve, "progress.csv": table},
        verbose=1,
    )
    resumed = checkpoints.resume(model, fallback=True)
    model.set_logger(logs.logger(folder, table, model.num_timesteps))
    if model.num_timesteps < config.total_steps:
        model.learn(
            config.total_steps - model.num_timesteps,
            [callback, checkpoints],
            log_interval=200,
            reset_num_timesteps=not resumed,
            progress_bar=config.progress_bar,
        )
    model.logger.close()
    model.save(folder / "model.zip")
    model.save_goal_buffer(folder / "goals.npz")

    final = {
        epsilon: evaluate_mastery(
            model,
            eval_env,
            goals,
            config.eval_steps,
            epsilon,
            episodes_per_goal=config.final_episodes,
            seed=config.seed + 1_000,  # other starts than while training
            ceiling=mastery_ceiling(mdp, config.eval_steps) if epsilon == 0.0 else None,
        )
        for epsilon in (0.0, config.eval_epsilon)
    }
    greedy, noisy = final.values()
    _write_goals(folder / "goals.csv", greedy, noisy)
    plotting.mastery_curve(folder / "mastery.csv", folder / "curve.png", config.eval_epsilon)
    film.reaching(model, config.env_id, greedy, folder / "reaching.gif", config.seed, config.eval_epsilon)
    assert greedy.ceiling is not None
    best = float(greedy.ceiling.mean())
    report.write(folder, config.env_id, greedy, noisy, config.eval_epsilon, best, callback.training_seconds)
    eval_env.close()
    model.get_env().close()  # type: ignore[union-attr]
    low, high = greedy.interval
    print(f"mastery {greedy.rate:.3f} [{low:.3f}, {high:.3f}] greedy, {noisy.rate:.3f} at epsilon {config.eval_epsilon}")
    print(f"the best possible policy, from the same starts: {best:.4f}")
    print(f"training took {callback.training_seconds:.0f} s without the measurements; open {folder / 'report.html'}")
    return folder


CURVE = ["step", "training_seconds", "greedy", "greedy_low", "greedy_high", "epsilon", "epsilon_low", "epsilon_high"]
"""Columns of ``mastery.csv``."""


def _curve_row(point: MasteryPoint) -> list[Any]:
    values = (point.greedy.rate, *point.greedy.interval, point.epsilon.rate, *point.epsilon.interval)
    return [point.step, f"{point.training_seconds:.1f}", *(f"{value:.4f}" for value in values)]


def _write_goals(path: Path, greedy: MasteryResult, noisy: MasteryResult) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["state", "greedy_reached", "greedy_mean_steps", "epsilon_reached", "epsilon_mean_steps"])
        for goal in range(len(greedy.reached)):
            row: list[Any] = [goal]
            for result in (greedy, noisy):
                steps = result.steps[goal][result.reached[goal]]
                row += [f"{result.reached[goal].mean():.2f}", f"{steps.mean():.1f}" if len(steps) else ""]
            writer.writerow(row)
