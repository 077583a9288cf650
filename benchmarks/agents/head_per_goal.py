"""A comparison learner whose network has outputs for each goal, instead of an embedding of goals."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import numpy as np
import torch as th
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.vec_env import VecEnv
from torch import nn

from sb3_manygoals import ManyGoalsDQN, TDTargets
from sb3_manygoals.goals import UNKNOWN, GoalBuffer
from sb3_manygoals.goals.environments import goal_trackers
from sb3_manygoals.losses import pairwise_td_loss
from sb3_manygoals.many_goals_dqn import CnnPolicy, ManyGoalsPolicy, MlpPolicy
from sb3_manygoals.many_goals_dqn.targets import Draw


class AllGoalsNetwork(nn.Module):
    """From a state to the values of all actions for each goal; a goal is its id."""

    def __init__(self, trunk: nn.Module, features_dim: int, n_goals: int, n_actions: int) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = nn.Linear(features_dim, n_goals * n_actions)
        self.n_goals, self.n_actions = n_goals, n_actions

    def forward(self, observations: th.Tensor, n_known: int) -> th.Tensor:
        """All states with all goals whose ids are below ``n_known``: values, (S, n_known, A)."""
        # Slice the outputs: slices of the weights, which are more, would copy their gradients.
        q: th.Tensor = self.head(self.trunk(observations))
        return q.view(len(observations), self.n_goals, self.n_actions)[:, :n_known]

    def of_goals(self, observations: th.Tensor, goal_ids: th.Tensor) -> th.Tensor:
        """Each state with its own goal: values, (B, A)."""
        weight = self.head.weight.view(self.n_goals, self.n_actions, -1)[goal_ids]
        bias = self.head.bias.view(self.n_goals, self.n_actions)[goal_ids]
        return th.baddbmm(bias[:, :, None], weight, self.trunk(observations)[:, :, None]).squeeze(2)

    @th.no_grad()
    def shift_values(self, by: float) -> None:
        self.head.bias.add_(by)


class _AllGoals:
    """A policy of ManyGoalsDQN with another head, for ``n_goals`` at most; ``embedding_dim`` and ``head`` are not used."""

    q_net: AllGoalsNetwork
    q_net_target: AllGoalsNetwork
    q_net_ema: AllGoalsNetwork | None
    goal_buffer: GoalBuffer

    def __init__(self, *args: Any, n_goals: int, **kwargs: Any) -> None:
        self.n_goals = n_goals
        super().__init__(*args, **kwargs)

    def make_q_net(self) -> AllGoalsNetwork:
        policy: Any = super()
        universal = policy.make_q_net()
        features_dim = universal.state_embedding.in_features
        network = AllGoalsNetwork(universal.trunk, features_dim, self.n_goals, universal.n_actions)
        return network.to(next(universal.parameters()).device)

    def action_values(self, observation: dict[str, th.Tensor]) -> th.Tensor:
        """See :meth:`ManyGoalsPolicy.action_values`; random for goals that are not known."""
        network = self.q_net if self.q_net_ema is None else self.q_net_ema
        state, goal = (observation[name] for name in ("observation", "desired_goal"))
        ids = th.as_tensor(self.goal_buffer.ids(goal.cpu().numpy()), device=state.device)
        q = network.of_goals(state, ids.clamp(min=0))
        # A goal that is not known has no output. Random actions get there sometimes, a constant one would not.
        return th.where((ids == UNKNOWN)[:, None], th.rand_like(q), q)


class AllGoalsCnnPolicy(_AllGoals, CnnPolicy):  # type: ignore[misc]
    """For images."""


class AllGoalsMlpPolicy(_AllGoals, MlpPolicy):  # type: ignore[misc]
    """For vectors."""


class AllGoalsTargets(TDTargets):
    """Every transition teaches all known goals; ``goal_sampling`` and ``goal_batch_size`` are not used."""

    def draw(self, batch_size: int, goal_batch_size: int, rng: np.random.Generator) -> Draw:
        batch = self.learner.replay_buffer.sample(batch_size)
        ids = th.arange(len(self.learner.goal_buffer), device=self.learner.policy.device)
        return Draw(batch, ids, ids)

    def losses(self, draw: Draw) -> th.Tensor:
        batch, goal_ids = draw.batch, draw.goal_ids
        net, target = (cast("AllGoalsNetwork", each) for each in (self.learner.policy.q_net, self.learner.policy.q_net_target))
        with th.no_grad():
            next_q = target(batch.next_observations, len(goal_ids))
        targets = self._targets(next_q, batch.next_ids[:, None] == goal_ids, batch)
        taken = batch.actions[:, None, None].expand(-1, len(goal_ids), 1)
        q = net(batch.observations, len(goal_ids)).gather(2, taken).squeeze(2)
        return pairwise_td_loss(q, targets)


class AllGoalsDQN(ManyGoalsDQN):
    """
    ManyGoalsDQN with outputs for each goal and action, in the style of LEO ("Goal-Conditioned Agents that Learn Everything All
    at Once", 2026): every transition teaches all known goals for one pass of the trunk. There are outputs for as many goals as
    the goal buffer can hold. Goals that are not known yet are pursued at random.
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {"CnnPolicy": AllGoalsCnnPolicy, "MlpPolicy": AllGoalsMlpPolicy}
    policy: AllGoalsCnnPolicy | AllGoalsMlpPolicy  # type: ignore[assignment]

    def __init__(self, policy: str | type[ManyGoalsPolicy], env: GymEnv | str | None, **kwargs: Any) -> None:
        super().__init__(policy, env, **{"target_class": AllGoalsTargets, **kwargs})

    def _setup_model(self) -> None:
        assert self.env is not None, "a comparison learner is built with its environment"
        self.policy_kwargs = {**self.policy_kwargs, "n_goals": goal_trackers(self.env)[0].goal_buffer.capacity}
        super()._setup_model()

    def _adopt_goals(self, env: VecEnv) -> None:
        super()._adopt_goals(env)
        assert self.goal_buffer is not None
        self.policy.goal_buffer = self.goal_buffer
