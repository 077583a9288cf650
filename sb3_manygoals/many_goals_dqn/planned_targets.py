"""What values an update teaches where observations recur: those of a plan in the replay memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch as th
from numpy.typing import NDArray

from sb3_manygoals.losses import best_action_loss, near_weights
from sb3_manygoals.many_goals_dqn.exploration import CountBonus
from sb3_manygoals.many_goals_dqn.planning import ReplayPlan
from sb3_manygoals.many_goals_dqn.replay_buffer import ManyGoalsSamples
from sb3_manygoals.many_goals_dqn.targets import Draw, Learner, Targets

_LAST_PLAN = 0.7
"""Share of training after which nothing is planned again."""
_AS_GOOD = 0.2
"""Actions whose values fall short of the best by no more than this share of a step's cost are as good."""


class PlannedTargets(Targets):
    """
    Value iteration in the world as the replay memory knows it (:class:`~sb3_manygoals.many_goals_dqn.planning.ReplayPlan`)
    gives the values of all actions, and which are best. The network learns both, of states drawn evenly, however often they
    were met. Errors are measured in steps: a step costs ``goal_reward - step_reward``. While it learns, behaviour follows the
    plan and explores by counts (:class:`~sb3_manygoals.many_goals_dqn.exploration.CountBonus`). For worlds of some thousand
    observations that recur.

    :param learner: whose network is taught
    :param growth: plan again when this many times as many environment steps were taken as at the last plan, above 1
    :param sweeps: the most updates of all values each time
    :param max_states: observations that are told apart as states, at most; a warning says when there are more
    :param near_decay: pairs that are d steps from their goal count ``near_decay ** d + near_floor``, see
        :func:`~sb3_manygoals.losses.near_weights`; 1.0: all the same
    :param near_floor: how much the farthest pairs count
    :param best_weight: how much :func:`~sb3_manygoals.losses.best_action_loss` counts beside the squared error of values
    :param temperature: of that loss
    :raises ValueError: if a number makes no sense
    """

    def __init__(
        self,
        learner: Learner,
        growth: float = 1.5,
        sweeps: int = 100,
        max_states: int = 20_000,
        near_decay: float = 0.75,
        near_floor: float = 0.02,
        best_weight: float = 50.0,
        temperature: float = 0.5,
    ) -> None:
        super().__init__(learner)
        if not isinstance(growth, (int, float, np.number)) or not 1.0 < growth < np.inf:
            raise ValueError(f"growth must be a number above 1, got {growth!r}")
        if not 0.0 < near_decay <= 1.0 or (near_decay < 1.0 and learner.gamma == 0.0):
            raise ValueError(f"near_decay must be in (0, 1], and 1 where gamma is 0, got {near_decay!r}")
        for name, number in (("near_floor", near_floor), ("temperature", temperature)):
            if not 0.0 < number < np.inf:
                raise ValueError(f"{name} must be a number, more than 0, got {number!r}")
        if not 0.0 <= best_weight < np.inf:
            raise ValueError(f"best_weight must be a number, at least 0, got {best_weight!r}")
        self.growth = float(growth)
        self.sweeps = _whole("sweeps", sweeps)
        self.near_decay = near_decay
        self.near_floor = near_floor
        self.best_weight = best_weight
        self.temperature = temperature
        self.plan = ReplayPlan(learner.gamma, learner.goal_reward, learner.step_reward)
        self.exploration = CountBonus(int(learner.policy.action_space.n))
        self.planned_at: int | None = None
        """Environment steps when it was last planned; None: not yet."""
        self._round: int | None = None
        if learner.replay_buffer.states is None:
            learner.replay_buffer.keep_states(_whole("max_states", max_states))

    @staticmethod
    def replay_kwargs(target_kwargs: dict[str, Any]) -> dict[str, Any]:
        """See :meth:`Targets.replay_kwargs`."""
        return {"max_states": _whole("max_states", target_kwargs.get("max_states", 20_000))}

    @property
    def initial_value(self) -> float:
        """That of a goal reached: distances grow from there."""
        return self.learner.goal_reward

    def before_updates(self, num_timesteps: int, progress: float) -> None:
        """Plan, where it is time to: the last time at 70% of training, for the network to learn what was planned."""
        round_ = min(0, math.floor(math.log(max(progress, 1e-12) / _LAST_PLAN) / math.log(self.growth)))
        at = self.planned_at
        # so that steps grow again, or are counted anew, by a second call of learn
        again = at is not None and not at <= num_timesteps < max(self.growth, 1.01 / _LAST_PLAN) * at
        if round_ != self._round or again:
            self._round = round_
            self.plan.refresh(self.learner.replay_buffer, self.learner.goal_buffer, self.sweeps)
            self.planned_at = num_timesteps

    def draw(self, batch_size: int, goal_batch_size: int, rng: np.random.Generator) -> Draw:
        """States that were left, and goals, each drawn uniformly; nothing else of transitions is used."""
        replay, goals, device = self.learner.replay_buffer, self.learner.goal_buffer, self.learner.policy.device
        assert self.plan.model is not None
        assert replay.states is not None
        states = self.plan.model.left[rng.integers(len(self.plan.model.left), size=batch_size)]
        ids = goals.sample_ids(goal_batch_size, rng)
        observations = th.as_tensor(replay.states[states], device=device)
        nothing = th.zeros(batch_size, dtype=th.int64, device=device)
        batch = ManyGoalsSamples(
            observations, nothing, observations, nothing, nothing.bool(), states=th.as_tensor(states, device=device)
        )
        return Draw(batch, th.as_tensor(goals[ids], device=device), th.as_tensor(ids, device=device))

    def losses(self, draw: Draw) -> th.Tensor:
        """
        Every state with every goal, all actions that were tried there; what the plan does not tell teaches nothing.

        :param draw: with the states of its observations
        :return: shape (G,)
        """
        learner, (batch, goals, goal_ids, _) = self.learner, draw
        assert batch.states is not None
        net, n = learner.policy.q_net, len(batch.observations)
        values = self.plan.action_values(batch.states.cpu().numpy(), goal_ids.cpu().numpy())
        planned = th.as_tensor(values, device=goals.device)
        features = net.trunk(th.cat([batch.observations, goals]))
        q = net.pairwise(net.state_embedding(features[:n]), net.goal_embedding(features[n:]))
        told = ~planned.isnan()
        known = told.any(dim=2)
        best = planned.nan_to_num(nan=-th.inf).amax(dim=2, keepdim=True)
        weights = known.float()
        if self.near_decay < 1.0:
            rewards = (learner.gamma, learner.goal_reward, learner.step_reward)
            weights = weights * near_weights(best[:, :, 0], self.near_decay, self.near_floor, *rewards)
        cost = learner.goal_reward - learner.step_reward
        errors = th.where(told, (q - planned) / cost, 0.0).square().sum(dim=2) / told.sum(dim=2).clamp(min=1)
        if self.best_weight:
            as_good = planned >= best - _AS_GOOD * cost
            errors = errors + self.best_weight * best_action_loss(q / cost, known, as_good, self.temperature)
        return (weights * errors).mean(dim=0)

    def act(
        self,
        states: NDArray[np.int64] | None,
        goal_ids: NDArray[np.int64],
        explore: NDArray[np.bool_],
        rng: np.random.Generator,
        action_masks: NDArray[np.bool_] | None,
    ) -> NDArray[np.int64] | None:
        """By the plan; those that are to explore, or whose way it does not know, by counts. See :meth:`Targets.act`."""
        assert states is not None
        actions = self.plan.best_actions(states, goal_ids)
        explore = explore | (actions < 0)
        if explore.any():
            masks = None if action_masks is None else action_masks[explore]
            actions[explore] = self.exploration.actions(states[explore], self.learner.replay_buffer, rng, masks)
        return actions

    def after_step(self, num_timesteps: int, n_envs: int) -> None:
        """Update the values that guide exploration, when they are due."""
        self.exploration.refresh(self.learner.replay_buffer, num_timesteps)

    def get_checkpoint_state(self) -> dict[str, Any]:
        """See :meth:`Targets.get_checkpoint_state`."""
        return {
            "planned_at": self.planned_at,
            "round": self._round,
            "plan": self.plan.get_checkpoint_state(),
            "exploration": self.exploration.get_checkpoint_state(),
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """See :meth:`Targets.set_checkpoint_state`."""
        self.planned_at, self._round = state["planned_at"], state["round"]
        self.plan.set_checkpoint_state(state["plan"])
        self.exploration.set_checkpoint_state(state["exploration"])


def _whole(name: str, value: Any) -> int:
    if not isinstance(value, (int, float, np.number)) or not float(value).is_integer() or value < 1:
        raise ValueError(f"{name} must be a whole number, at least 1, got {value!r}")
    return int(value)
