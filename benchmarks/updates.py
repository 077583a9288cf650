"""Updates to compare: ours, and the same loss tiled."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch as th
from stable_baselines3.common.env_util import make_vec_env

from benchmarks.frames import RandomFrames
from benchmarks.leo import AllGoalsDQN, AllGoalsTargets
from benchmarks.worlds import World
from sb3_manygoals import PAPER, ManyGoalsDQN
from sb3_manygoals.goals import GoalBuffer
from sb3_manygoals.losses import pairwise_td_loss, pairwise_td_targets
from sb3_manygoals.many_goals_dqn import ManyGoalsSamples

WORLD = "TwoRoomsSwitch-v0"
WARM_UP = 1_100
"""Environment steps before anything is measured, to fill replay memories."""
FRAMES_KEPT = 200
"""Transitions of Atari's shapes in the replay memory: 56 KiB each."""


@dataclass(frozen=True)
class Update:
    """
    One kind of update, of any size.

    :ivar transitions: in one update, S
    :ivar goals: that each transition teaches in it, G
    :ivar make: makes one of the size that it is given, (S, G)
    :ivar optimizer: of the learner
    :ivar device: on which it is made
    """

    transitions: int
    goals: int
    make: Callable[[int, int], Any]
    optimizer: th.optim.Optimizer
    device: th.device

    def run(self) -> None:
        """Make one."""
        self.make(self.transitions, self.goals)

    def speed(self, at_least: float) -> float:
        """
        :param at_least: seconds to measure for
        :return: updates a second
        """
        self.wait()
        count, begin = 0, time.perf_counter()
        while count == 0 or time.perf_counter() - begin < at_least:
            self.run()
            count += 1
        self.wait()
        return count / (time.perf_counter() - begin)

    def wait(self) -> None:
        """A GPU works on its own: wait until it has done what it was told."""
        if self.device.type == "cuda":
            th.cuda.synchronize(self.device)


def learner(
    n_transitions: int,
    n_goals: int,
    goal_sampling: Any = "uniform",
    n_envs: int = 8,
    world: str = WORLD,
    device: str = "cpu",
    algorithm: type[ManyGoalsDQN] = ManyGoalsDQN,
) -> ManyGoalsDQN:
    """
    :param n_transitions: S
    :param n_goals: G
    :param goal_sampling: as ManyGoalsDQN's
    :param n_envs: environments that it acts in
    :param world: id of a TwoRoomsSwitch world, or "frames" for Atari's shapes
    :param device: for the networks
    :param algorithm: ManyGoalsDQN, or a subclass
    :return: a learner with the paper's network (for frames with its Atari trunk), its replay memory partly filled, all goals
        of the world known, or as many frames as were met
    """
    frames = world == "frames"
    env = make_vec_env(RandomFrames if frames else world, n_envs, seed=0)
    states = None if frames else World(world).tables.observations
    goals = GoalBuffer(env.observation_space, 2 * FRAMES_KEPT if states is None else len(states))
    settings: dict[str, Any] = PAPER | {
        "buffer_size": FRAMES_KEPT if frames else 10_000,
        "batch_size": n_transitions,
        "goal_batch_size": n_goals,
        "target_kwargs": PAPER["target_kwargs"] | {"goal_sampling": goal_sampling},
        "learning_starts": 10 * WARM_UP,
        "updates_per_step": 1.0 / n_envs,
        "goal_wrapper_kwargs": {"goal_buffer": goals, "reset_worlds": True},
        "policy_kwargs": PAPER["policy_kwargs"] | {"standardize": False},
    }
    if issubclass(algorithm, AllGoalsDQN):
        settings["target_class"] = AllGoalsTargets
    model = algorithm("CnnPolicy", env, seed=0, device=device, **settings)
    model.learn(FRAMES_KEPT if frames else WARM_UP)
    if states is not None:
        goals.add(states)
    return model


def ours(model: ManyGoalsDQN) -> Update:
    """
    :param model: of :func:`learner`
    :return: its update, sampling of transitions and goals included
    """

    def make(n_transitions: int, n_goals: int) -> None:
        model.goal_batch_size = n_goals
        model.train(1, n_transitions)

    model.policy.set_training_mode(True)
    return Update(model.batch_size, model.goal_batch_size, make, model.policy.optimizer, model.device)


def tiled(model: ManyGoalsDQN) -> Update:
    """
    :param model: of :func:`learner`
    :return: the same update the way it is mostly done, every pair a row of the networks
    """

    def make(n_transitions: int, n_goals: int) -> None:
        model.goal_batch_size = n_goals
        draw = model.targets.draw(n_transitions, n_goals, model.rng)
        model.policy.optimizer.zero_grad()
        tiled_losses(model, draw.batch, draw.goals, draw.goal_ids).mean().backward()  # type: ignore[no-untyped-call]
        model.policy.optimizer.step()

    return Update(model.batch_size, model.goal_batch_size, make, model.policy.optimizer, model.device)


def tiled_losses(model: ManyGoalsDQN, batch: ManyGoalsSamples, goals: th.Tensor, goal_ids: th.Tensor) -> th.Tensor:
    """
    What TDTargets computes, the way it is mostly done: every pair a row, S x G rows in the networks.

    :param model: whose networks and settings are used
    :param batch: S transitions
    :param goals: observations, shape (G, *observation_space.shape)
    :param goal_ids: their ids, shape (G,) int64
    :return: one loss a goal, shape (G,)
    """
    n_transitions, n_goals = len(batch.actions), len(goals)
    tiled_goals = goals.repeat(n_transitions, *[1] * (goals.ndim - 1))
    with th.no_grad():
        next_q = model.q_net_target(batch.next_observations.repeat_interleave(n_goals, dim=0), tiled_goals)
    q = model.q_net(batch.observations.repeat_interleave(n_goals, dim=0), tiled_goals)
    taken = q.gather(1, batch.actions.repeat_interleave(n_goals)[:, None])
    targets = pairwise_td_targets(
        next_q.view(n_transitions, n_goals, -1),
        batch.next_ids[:, None] == goal_ids,
        batch.terminated,
        model.gamma,
        model.goal_reward,
        model.step_reward,
    )
    return pairwise_td_loss(taken.view(n_transitions, n_goals), targets)
