"""
A network with outputs for each known goal, all of which learn from each transition.

This is the idea of LEO ("Goal-Conditioned Agents that Learn Everything All at Once", 2026,
https://arxiv.org/abs/2605.23551). All else is as in ManyGoalsDQN with the targets of a target
network.
"""

from __future__ import annotations

from typing import Any, ClassVar, cast

import numpy as np
import torch as th
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.utils import LinearSchedule
from torch import nn

from sb3_manygoals import ManyGoalsDQN, TDTargets
from sb3_manygoals.goals import UNKNOWN, GoalBuffer
from sb3_manygoals.goals.wrapping import goal_trackers
from sb3_manygoals.losses import pairwise_td_loss, pairwise_td_targets
from sb3_manygoals.many_goals_dqn import CnnPolicy, MlpPolicy
from sb3_manygoals.many_goals_dqn.targets import TargetContext, UpdateBatch


class HeadsNetwork(nn.Module):
    """
    From states to the values of all actions for each goal. A goal is its id.

    Each action has a layer of its own, with an output for each goal. The values of one action of
    each state are then A times less work than those of all actions.

    :param trunk: layers from observations to features, shape (B, features_dim)
    :param features_dim: number of features
    :param n_goals: greatest number of goals, N
    :param n_actions: number of actions, A
    """

    def __init__(self, trunk: nn.Module, features_dim: int, n_goals: int, n_actions: int) -> None:
        super().__init__()
        self.trunk = trunk
        self.n_actions = n_actions
        self.heads = nn.ModuleList(nn.Linear(features_dim, n_goals) for _ in range(n_actions))

    def forward(self, observations: th.Tensor, n_known: int) -> th.Tensor:
        """
        Compute the values of all actions for all known goals.

        :param observations: shape (S, *observation_space.shape)
        :param n_known: number of known goals, those with the lowest ids, G
        :return: values, shape (S, G, A)
        """
        features = self.trunk(observations)
        # Slices of the weights would take as long as all outputs: they would copy the gradients.
        return th.stack([head(features)[:, :n_known] for head in self.heads], dim=2)

    def taken(self, observations: th.Tensor, actions: th.Tensor, n_known: int) -> th.Tensor:
        """
        Compute the values of one action of each state for all known goals.

        :param observations: shape (S, *observation_space.shape)
        :param actions: an action for each state, int64, shape (S,)
        :param n_known: number of known goals, G
        :return: values, shape (S, G)
        """
        order = actions.argsort()
        parts = self.trunk(observations)[order].split(
            actions.bincount(minlength=self.n_actions).tolist()
        )
        values = [head(part) for head, part in zip(self.heads, parts, strict=True)]
        return th.cat(values)[order.argsort(), :n_known]

    def of_goals(self, observations: th.Tensor, goal_ids: th.Tensor) -> th.Tensor:
        """
        Compute the values of all actions for observations, each with a goal of its own.

        :param observations: shape (B, *observation_space.shape)
        :param goal_ids: the goal of each observation, int64, shape (B,)
        :return: values, shape (B, A)
        """
        features = self.trunk(observations)
        values = [
            (head.weight[goal_ids] * features).sum(dim=1) + head.bias[goal_ids]
            for head in cast("list[nn.Linear]", self.heads)
        ]
        return th.stack(values, dim=1)

    @th.no_grad()
    def shift_values(self, by: float) -> None:
        """
        Add a number to all values.

        :param by: the number
        """
        for head in cast("list[nn.Linear]", self.heads):
            head.bias.add_(by)


class _HeadsPolicy:
    """
    A policy of ManyGoalsDQN with another network, for ``n_goals`` goals at most.

    ``embedding_dim`` and ``head`` have no effect.
    """

    q_net: HeadsNetwork
    q_net_ema: HeadsNetwork | None
    goal_buffer: GoalBuffer
    """The known goals, which the learner sets."""

    def __init__(self, *args: Any, n_goals: int, **kwargs: Any) -> None:
        self.n_goals = n_goals
        super().__init__(*args, **kwargs)

    def make_q_net(self) -> HeadsNetwork:
        """Return a new network, whose trunk is that of ManyGoalsDQN."""
        policy: Any = super()
        usual = policy.make_q_net()
        features_dim = usual.state_embedding.in_features
        network = HeadsNetwork(usual.trunk, features_dim, self.n_goals, usual.n_actions)
        return network.to(next(usual.parameters()).device)

    def action_values(self, observation: dict[str, th.Tensor]) -> th.Tensor:
        """
        Return the values of all actions. They are random for goals that are not known.

        :param observation: goal observations as tensors
        :return: shape (B, A)
        """
        network = self.q_net if self.q_net_ema is None else self.q_net_ema
        goals = observation["desired_goal"]
        ids = th.as_tensor(self.goal_buffer.ids(goals.cpu().numpy()), device=goals.device)
        values = network.of_goals(observation["observation"], ids.clamp(min=0))
        is_unknown = ids == UNKNOWN
        if is_unknown.any():
            # Random actions reach a goal sometimes. Always the same one would not.
            values = th.where(is_unknown[:, None], th.rand_like(values), values)
        return values

    def _get_constructor_parameters(self) -> dict[str, Any]:
        policy: Any = super()
        return {**policy._get_constructor_parameters(), "n_goals": self.n_goals}


class HeadsCnnPolicy(_HeadsPolicy, CnnPolicy):  # type: ignore[misc]
    """The policy for images."""


class HeadsMlpPolicy(_HeadsPolicy, MlpPolicy):  # type: ignore[misc]
    """The policy for vectors."""


class HeadsTargets(TDTargets):
    """
    Targets of a target network, with which every transition teaches all known goals.

    All values begin at the value of a goal reached, as those of the lookup table do.

    :param context: the parts of the learner that targets use
    """

    def __init__(self, context: TargetContext) -> None:
        super().__init__(context, "uniform", context.goal_reward)

    def sample(
        self, batch_size: int, goal_batch_size: int, rng: np.random.Generator
    ) -> UpdateBatch:
        """
        Sample transitions.

        :param batch_size: number of transitions, S
        :param goal_batch_size: has no effect, as all known goals are in each update
        :param rng: has no effect, as the replay memory draws the transitions
        :return: the data. Observations of goals, which no head needs, are left out
        """
        samples: Any = self.context.replay_buffer.sample(batch_size)
        goal_ids = th.arange(len(self.context.goal_buffer), device=self.context.policy.device)
        return UpdateBatch(
            samples.observations, samples.observations[:0], goal_ids, samples=samples
        )

    def target_values(self, batch: UpdateBatch) -> th.Tensor:
        """
        Return the targets of the taken actions, at most the value of a goal reached.

        Without this bound, outputs of actions that were not tried grow, as others learn from them.

        :param batch: data of the update
        :return: targets, shape (S, G)
        """
        samples = batch.samples
        assert samples is not None
        with th.no_grad():
            next_q = self._target_network(samples.next_observations, len(batch.goal_ids))
            if samples.next_action_mask is not None:
                next_q = next_q.masked_fill(~samples.next_action_mask[:, None], -th.inf)
            targets = pairwise_td_targets(
                next_q.amax(dim=2),
                samples.next_goal_ids[:, None] == batch.goal_ids,
                samples.terminated,
                *self.context.gamma_and_rewards,
            )
            return targets.clamp_(max=self.context.goal_reward)

    def losses(self, batch: UpdateBatch, target_values: th.Tensor) -> th.Tensor:
        """
        Return the paper's L(g) of each goal.

        :param batch: data of the update
        :param target_values: targets of the taken actions, from :meth:`target_values`
        :return: losses, shape (G,)
        """
        assert batch.samples is not None
        network: Any = self.context.policy.q_net
        q = network.taken(batch.observations, batch.samples.actions, len(batch.goal_ids))
        return pairwise_td_loss(q, target_values)


class HeadsDQN(ManyGoalsDQN):
    """
    ManyGoalsDQN with outputs for each goal, in place of an embedding of goals.

    There are outputs for as many goals as the goal buffer can hold.
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "CnnPolicy": HeadsCnnPolicy,
        "MlpPolicy": HeadsMlpPolicy,
    }

    def _setup_model(self) -> None:
        """Build networks with an output for each goal that the goal buffer has room for."""
        if self.env is not None:
            capacity = goal_trackers(self.env)[0].goal_buffer.capacity
            self.policy_kwargs = {**self.policy_kwargs, "n_goals": capacity}
        super()._setup_model()

    def _adopt_goals(self, goal_buffer: GoalBuffer) -> None:
        """Use this goal buffer, in the policy too."""
        super()._adopt_goals(goal_buffer)
        cast("_HeadsPolicy", self.policy).goal_buffer = goal_buffer


SETTINGS: dict[str, Any] = {
    "target_class": HeadsTargets,
    "learning_rate": LinearSchedule(3e-3, 0.0, 1.0),
    # With 64 environments there is an update after each of their steps.
    "updates_per_step": 1 / 64,
    # After ten of these updates.
    "target_update_interval": 640,
    # An average of the weights would take as long as half of an update.
    "policy_kwargs": {"ema_decay": 0.0},
}
"""Arguments of the agent's class."""
