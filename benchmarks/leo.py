"""A learner to compare with: a head that has an output for each goal, instead of an embedding of goals."""

from __future__ import annotations

from typing import Any, ClassVar

import torch as th
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import PyTorchObs
from stable_baselines3.common.vec_env import VecEnv
from torch import nn

from sb3_manygoals import ManyGoalsDQN
from sb3_manygoals.goals import UNKNOWN, GoalBuffer
from sb3_manygoals.goals.environments import goal_episodes
from sb3_manygoals.losses import pairwise_td_loss, pairwise_td_targets
from sb3_manygoals.many_goals_dqn import CnnPolicy, ManyGoalsSamples


class AllGoalsNetwork(nn.Module):
    """
    Sees the state alone and gives the values of all actions for each goal, which it knows by its number.

    :param trunk: from observations to features, shape (B, features_dim)
    :param features_dim: width of the features
    :param n_goals: the greatest number of goals
    :param n_actions: number of actions
    """

    def __init__(self, trunk: nn.Module, features_dim: int, n_goals: int, n_actions: int) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = nn.Linear(features_dim, n_goals * n_actions)
        self.n_goals, self.n_actions = n_goals, n_actions

    def forward(self, observations: th.Tensor, n_known: int) -> th.Tensor:
        """
        Every state with every known goal, all actions: one pass of the trunk for each state.

        :param observations: shape (S, *observation_space.shape)
        :param n_known: goals with ids below this
        :return: values, shape (S, n_known, A)
        """
        # Of the outputs and not of the weights, whose gradients would be copied then: there are more of them.
        q: th.Tensor = self.head(self.trunk(observations))
        return q.view(len(observations), self.n_goals, self.n_actions)[:, :n_known]

    def of_goals(self, observations: th.Tensor, goal_ids: th.Tensor) -> th.Tensor:
        """
        Each observation with its own goal.

        :param observations: shape (B, *observation_space.shape)
        :param goal_ids: shape (B,) int64, below ``n_goals``
        :return: values of all actions, shape (B, A)
        """
        weight = self.head.weight.view(self.n_goals, self.n_actions, -1)[goal_ids]
        bias = self.head.bias.view(self.n_goals, self.n_actions)[goal_ids]
        return th.baddbmm(bias[:, :, None], weight, self.trunk(observations)[:, :, None]).squeeze(2)

    @th.no_grad()
    def shift_values(self, by: float) -> None:
        """
        :param by: what is added to all values
        """
        self.head.bias.add_(by)


class AllGoalsPolicy(CnnPolicy):
    """
    As CnnPolicy, trunk, optimizer and target network alike, but for the head.

    :param args: of CnnPolicy
    :param n_goals: the greatest number of goals
    :param kwargs: of CnnPolicy; ``embedding_dim`` means nothing here
    """

    q_net: AllGoalsNetwork  # type: ignore[assignment]
    q_net_target: AllGoalsNetwork  # type: ignore[assignment]
    goal_buffer: GoalBuffer

    def __init__(self, *args: Any, n_goals: int, **kwargs: Any) -> None:
        self.n_goals = n_goals
        super().__init__(*args, **kwargs)

    def make_q_net(self) -> AllGoalsNetwork:  # type: ignore[override]
        """:return: a new network on the policy's device"""
        universal = super().make_q_net()
        features_dim = universal.state_embedding.in_features
        return AllGoalsNetwork(universal.trunk, features_dim, self.n_goals, int(self.action_space.n)).to(self.device)

    def _predict(
        self, observation: PyTorchObs, deterministic: bool = True, action_masks: th.Tensor | None = None
    ) -> th.Tensor:
        assert isinstance(observation, dict)
        ids = th.as_tensor(self.goal_buffer.ids(observation["desired_goal"].cpu().numpy()), device=self.device)
        q = self.q_net.of_goals(observation["observation"], ids.clamp(min=0))
        # Nothing can be asked about a goal that has no output yet. Random actions sometimes get there; one alone would not.
        q = th.where((ids == UNKNOWN)[:, None], th.rand_like(q), q)
        if action_masks is not None:
            q = q.masked_fill(~action_masks, -th.inf)
        return q.argmax(dim=1)


class AllGoalsDQN(ManyGoalsDQN):
    """
    A comparison learner in the style of LEO ("Goal-Conditioned Agents that Learn Everything All at Once", 2026): the network
    has outputs for each goal and action, so that every transition teaches all known goals for one pass of the trunk.

    All else is ManyGoalsDQN's: trunk, replay, targets, loss, optimizer, exploration, pursuit. There are outputs for as many
    goals as its goal buffer can hold, so give the wrapper one of just the right capacity. ``goal_batch_size`` and
    ``goal_sampling`` mean nothing here. Goals that are not known yet are pursued at random.

    ``pairs_taught`` counts the (transition, goal) pairs of all updates.
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {"CnnPolicy": AllGoalsPolicy}
    policy: AllGoalsPolicy
    q_net: AllGoalsNetwork  # type: ignore[assignment]
    q_net_target: AllGoalsNetwork  # type: ignore[assignment]
    pairs_taught = 0

    def _setup_model(self) -> None:
        assert self.env is not None, "a comparison learner is built with its environment"
        self.policy_kwargs = {**self.policy_kwargs, "n_goals": goal_episodes(self.env)[0].goal_buffer.capacity}
        super()._setup_model()

    def _adopt_goals(self, env: VecEnv) -> None:
        super()._adopt_goals(env)
        assert self.goal_buffer is not None
        self.policy.goal_buffer = self.goal_buffer

    def goal_losses(
        self, batch: ManyGoalsSamples, goals: th.Tensor, goal_ids: th.Tensor, met: th.Tensor | None = None
    ) -> th.Tensor:
        """
        :param batch: S transitions
        :param goals: not used: all known goals are taught
        :param goal_ids: not used
        :param met: not used
        :return: the loss of each known goal, shape (len(goal_buffer),)
        """
        assert self.goal_buffer is not None
        n_known = len(self.goal_buffer)
        with th.no_grad():
            next_q = self.q_net_target(batch.next_observations, n_known)
            next_q_online = self.q_net(batch.next_observations, n_known) if self.double_q else None
        targets = pairwise_td_targets(
            next_q,
            batch.next_ids[:, None] == th.arange(n_known, device=self.device),
            batch.terminated,
            self.gamma,
            self.goal_reward,
            self.step_reward,
            next_q_online,
            batch.next_action_mask,
        )
        taken = batch.actions[:, None, None].expand(-1, n_known, 1)
        q = self.q_net(batch.observations, n_known).gather(2, taken).squeeze(2)
        self.pairs_taught += targets.numel()
        return pairwise_td_loss(q, targets)
