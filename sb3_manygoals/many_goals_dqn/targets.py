"""What values an update teaches: those of the paper, bootstrapped from a target network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
import torch as th
from numpy.typing import NDArray
from stable_baselines3.common.utils import get_parameters_by_name, polyak_update

from sb3_manygoals.goals import UNKNOWN, GoalBuffer
from sb3_manygoals.losses import pairwise_td_loss, pairwise_td_targets
from sb3_manygoals.many_goals_dqn.policies import ManyGoalsPolicy
from sb3_manygoals.many_goals_dqn.replay_buffer import ManyGoalsReplayBuffer, ManyGoalsSamples

GoalSampling = Literal["uniform", "batch", "behavior"]


class Draw(NamedTuple):
    """What an update learns from."""

    batch: ManyGoalsSamples
    """S transitions."""
    goals: th.Tensor
    """Observations, shape (G, *observation_space.shape)."""
    goal_ids: th.Tensor
    """Their ids, -1 for one that is not known, shape (G,) int64."""
    met: th.Tensor | None = None
    """Rows of the batch whose next observations the first M goals are, shape (M,) int64: they go through the target network
    once for both; None: not known."""


@dataclass(frozen=True)
class Learner:
    """What targets are about: the parts of a ManyGoalsDQN that they look at."""

    policy: ManyGoalsPolicy
    replay_buffer: ManyGoalsReplayBuffer
    goal_buffer: GoalBuffer
    gamma: float
    goal_reward: float
    step_reward: float

    @property
    def unreachable_value(self) -> float:
        """What a goal is worth that is never reached."""
        return self.step_reward / (1.0 - self.gamma)


class Targets(ABC):
    """
    Draws what an update learns from, and says what it loses. A subclass can be given to ManyGoalsDQN as ``target_class``, and
    the arguments after the first as ``target_kwargs``.

    :param learner: whose network is taught
    """

    def __init__(self, learner: Learner) -> None:
        self.learner = learner

    @staticmethod
    def replay_kwargs(target_kwargs: dict[str, Any]) -> dict[str, Any]:
        """
        :param target_kwargs: of the class
        :return: arguments of the replay memory that it needs
        """
        return {}

    @property
    @abstractmethod
    def initial_value(self) -> float:
        """What all values begin near."""

    @abstractmethod
    def draw(self, batch_size: int, goal_batch_size: int, rng: np.random.Generator) -> Draw:
        """
        :param batch_size: S, number of transitions
        :param goal_batch_size: G, number of goals
        :param rng: for the draws
        :return: what an update learns from
        """

    @abstractmethod
    def losses(self, draw: Draw) -> th.Tensor:
        """
        :param draw: of :meth:`draw`
        :return: the loss of each goal, shape (G,); an update descends their mean
        """

    def before_updates(self, num_timesteps: int, progress: float) -> None:  # noqa: B027 - need not be overridden, as others
        """
        Called before the updates that follow a rollout.

        :param num_timesteps: environment steps so far
        :param progress: share of training that they are, from 0 to 1
        """

    def after_step(self, num_timesteps: int, n_envs: int) -> None:  # noqa: B027
        """
        Called after every step of the environments, once learning has started.

        :param num_timesteps: environment steps so far, all environments together
        :param n_envs: number of environments
        """

    def act(
        self,
        states: NDArray[np.int64] | None,
        goal_ids: NDArray[np.int64],
        explore: NDArray[np.bool_],
        rng: np.random.Generator,
        action_masks: NDArray[np.bool_] | None,
    ) -> NDArray[np.int64] | None:
        """
        How to act while learning, if the targets know better than the network.

        :param states: numbers of the observations in the replay memory, -1 where it has none, shape (n,); None: not told apart
        :param goal_ids: the goal of each environment, -1 if it is not known, shape (n,)
        :param explore: environments that are to explore, shape (n,)
        :param rng: for draws
        :param action_masks: actions allowed, shape (n, A), None for all
        :return: actions, shape (n,); None: act epsilon-greedily by the network
        """
        return None

    def get_checkpoint_state(self) -> dict[str, Any]:
        """:return: a plain tree, whose arrays may be its own: to be written before training goes on"""
        return {}

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:  # noqa: B027
        """:param state: of :meth:`get_checkpoint_state`"""


class TDTargets(Targets):
    """
    One-step targets by a target network, as in the paper, for transitions as they were met:
    :func:`~sb3_manygoals.losses.pairwise_td_targets`.

    :param learner: whose network is taught
    :param goal_sampling: where the goals of an update come from. "batch": the next observations of the sampled transitions, as
        many as are different, topped up with uniform goals; "uniform" over the known goals, as in the paper; "behavior": not
        many goals but one, each transition teaching only the goal that was pursued when it was made, the paper's on-policy
        baseline (there with a ``batch_size`` of 16)
    :param update_interval: environment steps between updates of the target network
    :param tau: share of the learning network that it takes over each time
    :param initial_value: what all values begin near; None: what a goal is worth that is never reached,
        ``step_reward / (1 - gamma)``. From 0, with few goals reached in an update, all values first sink to there together
    :raises ValueError: if a choice or number makes no sense
    """

    goal_samplings: ClassVar[tuple[str, ...]] = get_args(GoalSampling)

    def __init__(
        self,
        learner: Learner,
        goal_sampling: GoalSampling = "batch",
        update_interval: int = 250,
        tau: float = 1.0,
        initial_value: float | None = None,
    ) -> None:
        super().__init__(learner)
        if goal_sampling not in self.goal_samplings:
            known = ", ".join(f'"{name}"' for name in self.goal_samplings)
            raise ValueError(f"goal_sampling must be one of {known}, got {goal_sampling!r}")
        if not _is_number(update_interval, 1) or not float(update_interval).is_integer():
            raise ValueError(f"update_interval must be a whole number, at least 1, got {update_interval!r}")
        if not _is_number(tau, 0.0) or tau > 1.0:
            raise ValueError(f"tau must be a number in [0, 1], got {tau!r}")
        if initial_value is not None and not _is_number(initial_value, -np.inf):
            raise ValueError(f"initial_value must be a finite number, or None, got {initial_value!r}")
        self.goal_sampling = goal_sampling
        self.update_interval = int(update_interval)
        self.tau = tau
        self._initial_value = initial_value
        policy = learner.policy
        # of batch normalization, which no parameter is; as SB3's DQN
        self._running_stats = [get_parameters_by_name(net, ["running_"]) for net in (policy.q_net, policy.q_net_target)]

    @staticmethod
    def replay_kwargs(target_kwargs: dict[str, Any]) -> dict[str, Any]:
        """See :meth:`Targets.replay_kwargs`."""
        return {"behavior_goals": target_kwargs.get("goal_sampling") == "behavior"}

    @property
    def initial_value(self) -> float:
        """What all values begin near."""
        return self.learner.unreachable_value if self._initial_value is None else float(self._initial_value)

    def after_step(self, num_timesteps: int, n_envs: int) -> None:
        """Update the target network whenever the step count passes a multiple of ``update_interval``."""
        if num_timesteps // self.update_interval == (num_timesteps - n_envs) // self.update_interval:
            return
        policy = self.learner.policy
        polyak_update(policy.q_net.parameters(), policy.q_net_target.parameters(), self.tau)
        learned, target = self._running_stats
        polyak_update(learned, target, 1.0)

    def draw(self, batch_size: int, goal_batch_size: int, rng: np.random.Generator) -> Draw:
        """See :meth:`Targets.draw`."""
        goal_buffer, device = self.learner.goal_buffer, self.learner.policy.device
        batch = self.learner.replay_buffer.sample(batch_size)
        if self.goal_sampling == "behavior":
            assert batch.behavior_goal_ids is not None
            ids = batch.behavior_goal_ids.cpu().numpy()
        else:
            ids = goal_buffer.sample_ids(goal_batch_size, rng)
        rows = None
        if self.goal_sampling == "batch":
            met, first_rows = np.unique(batch.next_ids.cpu().numpy(), return_index=True)
            chosen = rng.permutation(np.flatnonzero(met != UNKNOWN))[:goal_batch_size]
            ids[: len(chosen)] = met[chosen]
            rows = th.as_tensor(first_rows[chosen], device=device)
        goals = th.as_tensor(goal_buffer[np.maximum(ids, 0)], device=device)
        return Draw(batch, goals, th.as_tensor(ids, device=device), rows)

    def losses(self, draw: Draw) -> th.Tensor:
        """The paper's L(g) of each goal: see :meth:`pairwise_losses` and :meth:`behavior_goal_losses`."""
        return self.behavior_goal_losses(draw) if self.goal_sampling == "behavior" else self.pairwise_losses(draw)

    def pairwise_losses(self, draw: Draw) -> th.Tensor:
        """
        Every transition with every goal, at the cost of S + G passes of the trunk.

        :param draw: what the update learns from
        :return: shape (G,)
        """
        batch, goals, goal_ids, met = draw
        net, target, n = self.learner.policy.q_net, self.learner.policy.q_net_target, len(batch.actions)
        with th.no_grad():
            n_met = 0 if met is None else len(met)
            features = target.trunk(th.cat([batch.next_observations, goals[n_met:]]))
            goal_features = features[n:] if met is None else th.cat([features[met], features[n:]])
            next_q = target.pairwise(target.state_embedding(features[:n]), target.goal_embedding(goal_features))
        features = net.trunk(th.cat([batch.observations, goals]))
        q = net.pairwise_taken(net.state_embedding(features[:n]), net.goal_embedding(features[n:]), batch.actions)
        achieved = batch.next_ids[:, None] == goal_ids
        return pairwise_td_loss(q, self._targets(next_q, achieved, batch))

    def behavior_goal_losses(self, draw: Draw) -> th.Tensor:
        """
        Each transition with one goal, its own.

        :param draw: what the update learns from, with a goal for each transition
        :return: shape (S,)
        """
        batch, goals, goal_ids, _ = draw
        policy = self.learner.policy
        with th.no_grad():
            next_q = policy.q_net_target(batch.next_observations, goals)[:, None]
        q = policy.q_net(batch.observations, goals).gather(1, batch.actions[:, None])
        targets = self._targets(next_q, (batch.next_ids == goal_ids)[:, None], batch)
        # as S goals with one transition each; those whose goal is not known have no part in the mean
        known = goal_ids != UNKNOWN
        return pairwise_td_loss(q.T, targets.T) * known * (len(known) / known.sum().clamp(min=1))

    def _targets(self, next_q: th.Tensor, achieved: th.Tensor, batch: ManyGoalsSamples) -> th.Tensor:
        learner = self.learner
        rewards = (learner.gamma, learner.goal_reward, learner.step_reward)
        return pairwise_td_targets(next_q, achieved, batch.terminated, *rewards, batch.next_action_mask)


def _is_number(value: Any, least: float) -> bool:
    is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    return is_number and bool(least <= value < np.inf and value != -np.inf)
