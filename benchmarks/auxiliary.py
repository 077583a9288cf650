"""
Section 5 of the paper: A2C with an auxiliary task.

It learns in an Atari or MinAtar game, or in a small world with a rare reward.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch as th
from stable_baselines3 import A2C

from benchmarks import recording, scores
from benchmarks.agents import a2c
from benchmarks.agents.a2c import MINATAR, SMALL, A2CConfig, WorldName
from benchmarks.worlds import building
from sb3_manygoals.auxiliary import (
    AuxiliaryActorCriticPolicy,
    AuxiliaryCallback,
    EpisodeBuffer,
    ManyGoalsCallback,
    PixelControlCallback,
    RewardPredictionCallback,
)

Agent = Literal["many_goals", "a2c", "pixel_control", "reward_prediction", "shuffled_goals"]

CALLBACKS: dict[str, Any] = {
    "many_goals": ManyGoalsCallback,
    "pixel_control": PixelControlCallback,
    "reward_prediction": RewardPredictionCallback,
}
"""Auxiliary tasks; the agent a2c has none."""


class ShuffledGoalsPolicy(AuxiliaryActorCriticPolicy):
    """
    A control for many goals: each trajectory of an update takes the goal of another one.

    The rewards are still those of a trajectory's own goal. So the auxiliary loss has targets of the
    same kind, and trains the same layers, but the goals that the network sees say nothing about
    these targets. If this agent gains as much over A2C as many goals do, then what many goals gain
    need not come from goals. The length of the auxiliary step may differ, since errors that
    no goal explains cannot be learned away.

    Trajectories are sampled at random, so that a goal is hardly ever the trajectory's own in a
    game whose observations rarely recur. In small worlds, many trajectories end alike.
    """

    def goal_values(self, observations: th.Tensor, target: bool = False) -> th.Tensor:
        """
        Compute the values of trajectories, each for the goal of the trajectory before it.

        The values in a trajectory's last observation are wrong, but its loss does not need them:
        this observation is the trajectory's own goal, whose reward is the whole target.

        :param observations: shape (B, n + 1, *observation_space.shape), where B is at least 2. The
            last observation of each trajectory is its own goal
        :param target: whether to use the target network
        :return: values of all actions, shape (B, n, A), as in A2C with many goals
        """
        goals = observations[:, -1:].roll(1, dims=0)
        return super().goal_values(th.cat([observations[:, :-1], goals], dim=1), target)


@dataclass(frozen=True)
class AuxiliaryConfig(A2CConfig):
    """Train A2C with an auxiliary task, or without. The defaults are the paper's."""

    agent: Agent = "many_goals"
    """A2C alone, or with one auxiliary task. The control shuffled_goals is many_goals with goals of
    other trajectories."""
    weight: float | None = None
    """Weight of the auxiliary loss; by default that of its source."""
    update: Literal["two_steps", "joint"] | None = None
    """Two steps, as in the paper's Algorithm 2, or one step on the sum of the losses; by default as
    in the source of the task."""
    capacity: int = 2000
    """Number of best episodes that are kept: the paper's K."""
    goal: int = 0
    """Number of the state to reach, for two_rooms only."""

    def run(self) -> Path:
        """
        Train, and write the files of the run.

        These are ``config.json``, ``curve.csv``, ``score.json``, ``model.zip``, logs and
        checkpoints.

        :return: the folder of the run
        """
        th.set_num_threads(self.threads)
        with building(f"{self.agent} in {self.game}"):
            model, tasks = make(self)
        folder = recording.open_folder(self, f"auxiliary-{self.game}-{self.agent}-seed{self.seed}")
        paper = paper_score(self)
        a2c.train(self, model, folder, tasks, paper=paper)
        if paper is not None:
            print(f"the paper has {paper:g} after 10M steps")
        return folder


WORLDS: dict[WorldName, AuxiliaryConfig] = {
    "atari": AuxiliaryConfig(),
    "two_rooms": AuxiliaryConfig(
        world="two_rooms",
        game="TwoRoomsSwitchSmall-v0",
        steps=200_000,
        max_episode_steps=50,
        eval_freq=5_000,
        **SMALL,
    ),
    "minigrid": AuxiliaryConfig(
        world="minigrid",
        game="MiniGrid-Empty-Random-6x6-v0",
        steps=100_000,
        eval_freq=2_500,
        **SMALL,
    ),
    "minigrid_view": AuxiliaryConfig(
        world="minigrid_view",
        game="MiniGrid-DoorKey-6x6-v0",
        steps=300_000,
        max_episode_steps=640,
        eval_freq=7_500,
        **SMALL,
    ),
    "minatar": AuxiliaryConfig(**MINATAR),
}
"""The defaults of each world."""


def make(config: AuxiliaryConfig) -> tuple[A2C, dict[str, AuxiliaryCallback]]:
    """
    Make an untrained agent, and the callback of its auxiliary task.

    :param config: settings of the run
    :return: the agent; callbacks by the name of their task, none for the agent a2c
    """
    kind = config.kind
    env = kind.make(config, config.n_envs)
    settings = a2c.settings(config)
    policy = AuxiliaryActorCriticPolicy
    tasks: list[str] = [] if config.agent == "a2c" else [config.agent]
    if config.agent == "shuffled_goals":
        policy = ShuffledGoalsPolicy
        tasks = ["many_goals"]
    settings["policy_kwargs"] |= {"embedding_dim": config.embedding_dim, "tasks": tasks}
    if kind.cell is not None:
        assert env.observation_space.shape is not None
        settings["policy_kwargs"] |= {"crop": max(env.observation_space.shape), "cell": kind.cell}
    model = A2C(policy, env, device="cpu", **settings)
    weight = () if config.weight is None else (config.weight,)
    update = {} if config.update is None else {"update": config.update}
    callbacks: dict[str, AuxiliaryCallback] = {}
    for task in tasks:
        episodes = EpisodeBuffer(
            model.observation_space,
            config.capacity,
            kind.n_stack,
            compress=kind.compress,
            # Only complete episodes are kept, as in the paper: episodes of all these worlds end.
            cut_after=None,
        )
        # The auxiliary loss has as many transitions as A2C's own, and the paper's 80 at least.
        transitions = 80 * max(1, model.n_envs * model.n_steps // 80)
        callbacks[task] = CALLBACKS[task](
            *weight, episodes=episodes, batch_size=transitions, **update
        )
    return model, callbacks


def paper_score(config: AuxiliaryConfig) -> float | None:
    """
    Return the paper's score of this agent in this game after 10M steps.

    :param config: settings of the run, with its agent, world and game
    :return: the score; None, if the paper has none
    """
    table = scores.read_table("paper_auxiliary_scores")
    if config.world != "atari" or config.game not in table.index or config.agent not in table:
        return None
    return float(table.loc[config.game, config.agent])
