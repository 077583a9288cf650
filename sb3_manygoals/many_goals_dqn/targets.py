"""What an update learns from: values bootstrapped by a target network, or planned in the world."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
import torch as th
from numpy.typing import NDArray
from stable_baselines3.common.type_aliases import Schedule
from stable_baselines3.common.utils import (
    FloatSchedule,
    LinearSchedule,
    get_parameters_by_name,
    polyak_update,
)

from sb3_manygoals.goals import UNKNOWN, GoalBuffer
from sb3_manygoals.losses import (
    best_action_loss,
    near_weights,
    pairwise_td_loss,
    pairwise_td_targets,
)
from sb3_manygoals.many_goals_dqn.exploration import CountBonus
from sb3_manygoals.many_goals_dqn.goal_directed_sampler import GoalDirectedSampler
from sb3_manygoals.many_goals_dqn.planning import AllGoalsPlan
from sb3_manygoals.many_goals_dqn.policies import ManyGoalsPolicy
from sb3_manygoals.many_goals_dqn.replay_buffer import ManyGoalsReplayBuffer, ManyGoalsSamples
from sb3_manygoals.memory_limits import share_of_memory
from sb3_manygoals.validation import check_count, check_number
from sb3_manygoals.world import WorldModel

GoalSampling = Literal["uniform", "batch", "behavior"]

# Memory for a plan by default, in bytes.
_DEFAULT_PLAN_BYTES = 2**30
# After this share of training nothing is planned again, so that the network has time to learn it.
_LAST_PLAN = 0.7
# If the last plan knows a way for less than this share of pairs, it is worth a warning.
_FEW_WAYS = 0.5
# Pairs of so many states are counted at a time, as there may be a billion pairs.
_STATES_AT_A_TIME = 1_000
# Of the loss of a state that was sampled on the way to a goal, this share is that of its own goal.
_WEIGHT_OF_OWN_GOAL = 0.5
# Temperature of the loss of the best actions, in steps.
_TEMPERATURE = 0.5
# An action counts as best if its value is less than the best one by at most this share of what a
# step costs near the goal, and by at most this share of what a step costs in the state itself.
# Costs are lower far away from the goal.
_TIE_NEAR_GOAL = 0.2
_TIE_IN_STATE = 0.5


class UpdateBatch(NamedTuple):
    """The data of one update: S states and G goals."""

    observations: th.Tensor
    """Observations of the states, shape (S, *observation_space.shape)."""
    goals: th.Tensor
    """Observations of the goals, shape (G, *observation_space.shape)."""
    goal_ids: th.Tensor
    """Ids of the goals, -1 for unknown ones, shape (G,)."""
    samples: ManyGoalsSamples | None = None
    """The S transitions that begin in the states, if there are any."""
    state_ids: th.Tensor | None = None
    """Ids of the states, shape (S,), if they are known."""
    goal_of_state: th.Tensor | None = None
    """
    If each state was sampled on the way to one of the goals, the place of that goal among them,
    shape (S,).
    """


@dataclass(frozen=True)
class TargetContext:
    """The parts of a ManyGoalsDQN that targets use."""

    policy: ManyGoalsPolicy
    replay_buffer: ManyGoalsReplayBuffer
    goal_buffer: GoalBuffer
    world: WorldModel
    gamma: float
    goal_reward: float
    step_reward: float
    tau: float = 1.0
    """Step of an update of the target network. 1.0 copies the weights."""
    target_update_interval: int = 250
    """Environment steps between two updates of the target network."""
    seed: int | None = None
    """Seed of what targets draw by themselves. None: other random numbers in every run."""

    @property
    def rewards(self) -> tuple[float, float, float]:
        """Discount, ``goal_reward`` and ``step_reward``, as the losses take them."""
        return self.gamma, self.goal_reward, self.step_reward


class Targets(ABC):
    """
    Samples the data of updates and computes their losses. A subclass can be given to ManyGoalsDQN
    as ``target_class``. Its arguments, without the context, are ``target_kwargs``.

    :param context: the parts of the ManyGoalsDQN
    """

    initial_value: float
    """The value to which all pairs are initialized."""
    uses_target_network: ClassVar[bool] = True
    """Whether it reads and updates ``policy.q_net_target``. If not, there is none."""
    uses_replay_buffer: ClassVar[bool] = True
    """Whether it reads transitions. If not, none are stored."""

    def __init__(self, context: TargetContext) -> None:
        self.context = context

    @abstractmethod
    def sample(
        self, batch_size: int, goal_batch_size: int, rng: np.random.Generator
    ) -> UpdateBatch:
        """
        Sample the data of an update.

        :param batch_size: number of states, S
        :param goal_batch_size: number of goals, G
        :param rng: random generator
        """

    @abstractmethod
    def target_values(self, batch: UpdateBatch) -> th.Tensor:
        """
        Return the values that the network is to learn.

        :param batch: data of the update
        :return: a tensor that :meth:`losses` understands
        """

    @abstractmethod
    def losses(self, batch: UpdateBatch, target_values: th.Tensor) -> th.Tensor:
        """
        Return the loss of each goal. An update minimizes their mean.

        :param batch: data of the update
        :param target_values: what :meth:`target_values` returned
        :return: shape (G,)
        """

    def before_updates(self, progress: float) -> None:  # noqa: B027 - need not be overridden
        """
        Prepare the updates that follow a rollout.

        :param progress: share of training that is done, from 0 to 1
        """

    def after_step(self, num_timesteps: int, n_envs: int) -> None:  # noqa: B027
        """
        Take note of a step of the environments, once learning has started.

        :param num_timesteps: steps so far, of all environments together
        :param n_envs: number of environments
        """

    def exploring_share(self, progress_remaining: float) -> float:
        """
        Return the share of goal episodes that explore, for targets that act.

        :param progress_remaining: share of training that is left, from 1 to 0
        """
        return 0.0

    def act(
        self,
        state_ids: NDArray[np.int64],
        goal_ids: NDArray[np.int64],
        explores: NDArray[np.bool_],
        rng: np.random.Generator,
        action_masks: NDArray[np.bool_] | None,
    ) -> NDArray[np.int64] | None:
        """
        Return actions during training, for targets that know better ones than the network.

        :param state_ids: the states that the environments show, -1 for unknown ones, shape (n,)
        :param goal_ids: the goal of each environment, -1 for unknown ones, shape (n,)
        :param explores: which environments explore, shape (n,)
        :param rng: random generator
        :param action_masks: actions allowed, shape (n, A). None: all
        :return: actions, shape (n,). None to act epsilon-greedily by the network
        """
        return None

    def describe(self) -> dict[str, float]:
        """Return numbers for the log, by their names there."""
        return {}

    def get_checkpoint_state(self) -> dict[str, Any]:
        """Return plain data and arrays that may be in use: write them at once."""
        return {}

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:  # noqa: B027
        """
        Restore what :meth:`get_checkpoint_state` returned.

        :param state: what it returned
        """


class TDTargets(Targets):
    """
    The paper's one-step targets of a target network, see
    :func:`~sb3_manygoals.losses.pairwise_td_targets`. The target network is updated as ``tau`` and
    ``target_update_interval`` of the ManyGoalsDQN say.

    :param context: the parts of the ManyGoalsDQN
    :param goal_sampling: the goals of an update. "uniform": drawn from the known goals, as in the
        paper. "batch": the distinct next observations of the sampled transitions, filled up with
        uniform ones. "behavior", the paper's on-policy baseline: each transition teaches only the
        goal that was pursued when it was made
    :param initial_value: the value to which all pairs are initialized. None: with the distance
        head the value of a goal reached, because it cannot learn greater ones; else the value of a
        goal never reached, ``step_reward / (1 - gamma)``, to which all values would sink first if
        few goals are reached in an update
    :raises ValueError: if an argument is out of its range
    """

    def __init__(
        self,
        context: TargetContext,
        goal_sampling: GoalSampling = "batch",
        initial_value: float | None = None,
    ) -> None:
        super().__init__(context)
        if goal_sampling not in get_args(GoalSampling):
            raise ValueError(
                f"goal_sampling must be one of {', '.join(get_args(GoalSampling))}, "
                f"got {goal_sampling!r}"
            )
        if initial_value is None:
            initial_value = context.step_reward / (1.0 - context.gamma)
            if context.policy.head == "distance":
                initial_value = context.goal_reward
        self.goal_sampling = goal_sampling
        self.initial_value = check_number("initial_value", initial_value)

    def after_step(self, num_timesteps: int, n_envs: int) -> None:
        """
        Update the target network, if it is due.

        :param num_timesteps: steps so far, of all environments together
        :param n_envs: number of environments
        """
        interval = self.context.target_update_interval
        if num_timesteps // interval == (num_timesteps - n_envs) // interval:
            return
        net = self.context.policy.q_net
        target = self._target_network
        polyak_update(net.parameters(), target.parameters(), self.context.tau)
        # The statistics of batch normalization are not among the parameters.
        statistics = get_parameters_by_name(net, ["running_"])
        polyak_update(statistics, get_parameters_by_name(target, ["running_"]), 1.0)

    @property
    def _target_network(self) -> Any:
        """The target network."""
        target = self.context.policy.q_net_target
        assert target is not None, "the policy must have a target network"
        return target

    def sample(
        self, batch_size: int, goal_batch_size: int, rng: np.random.Generator
    ) -> UpdateBatch:
        """
        Sample transitions, and goals as ``goal_sampling`` says.

        :param batch_size: number of transitions, S
        :param goal_batch_size: number of goals, G. With ``goal_sampling="behavior"`` it is S
        :param rng: random generator
        """
        goal_buffer = self.context.goal_buffer
        device = self.context.policy.device
        samples: Any = self.context.replay_buffer.sample(batch_size)
        if self.goal_sampling == "behavior":
            ids = samples.behavior_goal_ids.cpu().numpy()
        else:
            ids = goal_buffer.sample_ids(goal_batch_size, rng)
        goals = th.as_tensor(goal_buffer[np.maximum(ids, 0)], device=device)
        if self.goal_sampling == "batch":
            met, places = np.unique(samples.next_goal_ids.cpu().numpy(), return_index=True)
            chosen = rng.permutation(np.flatnonzero(met != UNKNOWN))[:goal_batch_size]
            ids[: len(chosen)] = met[chosen]
            goals[: len(chosen)] = samples.next_observations[places[chosen]]
        goal_ids = th.as_tensor(ids, device=device)
        return UpdateBatch(samples.observations, goals, goal_ids, samples=samples)

    def target_values(self, batch: UpdateBatch) -> th.Tensor:
        """
        Return the targets of the taken actions.

        :param batch: data of the update
        :return: shape (S, G). With ``goal_sampling="behavior"`` (S, 1), of each transition for its
            own goal
        """
        samples = batch.samples
        assert samples is not None
        target = self._target_network
        with th.no_grad():
            if self.goal_sampling == "behavior":
                next_q = target(samples.next_observations, batch.goals)[:, None]
                achieved = (samples.next_goal_ids == batch.goal_ids)[:, None]
            else:
                next_q = target.pairwise(*target.embed(samples.next_observations, batch.goals))
                achieved = samples.next_goal_ids[:, None] == batch.goal_ids
            return pairwise_td_targets(
                next_q,
                achieved,
                samples.terminated,
                *self.context.rewards,
                samples.next_action_mask,
            )

    def losses(self, batch: UpdateBatch, target_values: th.Tensor) -> th.Tensor:
        """
        Return the paper's L(g) of each goal.

        :param batch: data of the update
        :param target_values: targets of the taken actions
        :return: shape (G,)
        """
        samples = batch.samples
        assert samples is not None
        net = self.context.policy.q_net
        if self.goal_sampling == "behavior":
            q = net(batch.observations, batch.goals).gather(1, samples.actions[:, None])
            # Like S goals with one transition each. Unknown goals are left out of the mean.
            known = batch.goal_ids != UNKNOWN
            weights = known * (len(known) / known.sum().clamp(min=1))
            return pairwise_td_loss(q.T, target_values.T) * weights
        q = net.pairwise_taken(*net.embed(batch.observations, batch.goals), samples.actions)
        return pairwise_td_loss(q, target_values)


class PlannedTargets(Targets):
    """
    Values from value iteration in a model of the world
    (:class:`~sb3_manygoals.many_goals_dqn.planning.AllGoalsPlan`), for worlds whose observations
    recur. The network learns the values of all actions, and which of them are best, in states drawn
    uniformly.

    In large worlds random states are rarely near enough to a goal to teach much. If the plan is
    partial or without chance, states are sampled on the ways to its goals
    (:class:`~sb3_manygoals.many_goals_dqn.goal_directed_sampler.GoalDirectedSampler`), and half of
    the weight is that of each state with the goal that it is on the way to.

    Errors are measured in steps. Near its goal, a step costs ``(1 - gamma) goal_reward -
    step_reward``. During training, behavior follows the plan. Goal episodes that explore follow the
    visit counts (:class:`~sb3_manygoals.many_goals_dqn.exploration.CountBonus`).

    :param context: the parts of the ManyGoalsDQN
    :param max_plan_bytes: memory for the plan, five bytes a pair of state and goal. None: 1 GiB, or
        half of the available memory, if that is less. If not all goals fit, the plan is for a
        sample of them
    :param exploring_episodes: share of goal episodes that explore, or a function of the share of
        training that is left, from 1 to 0. None: it falls linearly from 1.0 to 0.1 over the first
        half of training
    :raises ValueError: if an argument is out of its range, or ``gamma`` is 0
    """

    uses_target_network = False
    uses_replay_buffer = False

    growth: ClassVar[float] = 1.5
    """The world is planned in again when the transitions met have grown by this factor."""
    max_sweeps: ClassVar[int] = 100
    """Greatest number of sweeps of value iteration. The first plan iterates to convergence."""
    fresh_goals: ClassVar[float] = 0.25
    """How many goals of a partial plan are exchanged for each update."""
    near_decay: ClassVar[float] = 0.75
    """Of :func:`~sb3_manygoals.losses.near_weights`. 1.0 for equal weights."""
    near_floor: ClassVar[float] = 0.02
    """Of :func:`~sb3_manygoals.losses.near_weights`."""
    best_weight: ClassVar[float] = 50.0
    """Weight of :func:`~sb3_manygoals.losses.best_action_loss`, relative to errors of values."""

    def __init__(
        self,
        context: TargetContext,
        max_plan_bytes: int | None = None,
        exploring_episodes: float | Schedule | None = None,
    ) -> None:
        super().__init__(context)
        if context.gamma == 0.0 and self.near_decay < 1.0:
            raise ValueError(
                "gamma must be greater than 0 where values are planned, got 0: they would not tell "
                "how far a goal is, only whether one step reaches it. target_class=TDTargets takes "
                "0"
            )
        # The value of a goal reached, so that distances grow from 0.
        self.initial_value = context.goal_reward
        if max_plan_bytes is None:
            max_plan_bytes = max(min(_DEFAULT_PLAN_BYTES, share_of_memory(0.5)), 1)
        self.plan = AllGoalsPlan(
            context.gamma,
            context.goal_reward,
            context.step_reward,
            max_sweeps=self.max_sweeps,
            max_bytes=check_count("max_plan_bytes", max_plan_bytes, floats=True),
            seed=context.seed,
        )
        if self.plan.step_cost <= 0.0:
            raise ValueError(
                "goal_reward must be greater than step_reward / (1 - gamma), that of never "
                "reaching it"
            )
        if exploring_episodes is None:
            exploring_episodes = LinearSchedule(1.0, 0.1, 0.5)
        self.exploring_episodes = FloatSchedule(exploring_episodes)
        for progress_remaining in (1.0, 0.0):
            share = self.exploring_episodes(progress_remaining)
            check_number("exploring_episodes", share, at_least=0, at_most=1)
        self.sampler = GoalDirectedSampler(self.plan)
        self.exploration = CountBonus(int(context.policy.action_space.n))
        self.planned_at: int | None = None
        """The number of transitions that the last plan was made of."""
        self.known_ways = 0.0
        """The share of pairs of observation and goal between which the last plan knew a way."""
        # Goals that are to be exchanged, a fraction of one included.
        self._goals_to_exchange = 0.0
        # The round of the last plan, see _round_of.
        self._round: int | None = None

    def exploring_share(self, progress_remaining: float) -> float:
        """
        Return the share of goal episodes that explore.

        :param progress_remaining: share of training that is left, from 1 to 0
        """
        return self.exploring_episodes(progress_remaining)

    def _round_of(self, progress: float) -> int:
        """Return which plan training should go by, counted from the last one, 0, downwards."""
        rounds = math.log(max(progress, 1e-12) / _LAST_PLAN) / math.log(self.growth)
        return min(0, math.floor(rounds))

    def is_plan_due(self, progress: float) -> bool:
        """
        Return whether the next updates begin with a plan.

        :param progress: share of training that is done, from 0 to 1
        """
        if self._round_of(progress) != self._round:
            return True
        # Transitions are counted, not steps, because a loaded model may have no transitions.
        growth = max(self.growth, 1.01 / _LAST_PLAN)
        last = self.planned_at
        return last is not None and self.context.world.n_counted >= growth * max(last, 1)

    def before_updates(self, progress: float) -> None:
        """
        Plan, if it is due. The last plan is made at 70% of training, so that the network has time
        to learn it.

        :param progress: share of training that is done, from 0 to 1
        """
        if not self.is_plan_due(progress):
            return
        self._round = self._round_of(progress)
        was_partial = self.plan.is_partial
        is_first = len(self.plan.values) == 0
        self.plan.refresh(self.context.world, self.context.goal_buffer, converge=is_first)
        self.planned_at = self.context.world.n_counted
        self.known_ways = _known_share(self.plan.best)
        if self.plan.is_partial and not was_partial and self.max_sweeps:
            warnings.warn(
                f"{len(self.plan.goal_ids)} of {len(self.context.goal_buffer)} goals fit into "
                "max_plan_bytes, so plans are for samples of goals; the settings LARGE_WORLD are "
                "for such worlds, see large_world(steps)",
                stacklevel=2,
            )
        if self.plan.is_partial and self._round == 0 and self.known_ways < _FEW_WAYS:
            warnings.warn(
                f"the last plan knows a way for {self.known_ways:.0%} of pairs of observation and "
                "goal: more random steps first, learning_starts, would teach more",
                stacklevel=2,
            )

    def sample(
        self, batch_size: int, goal_batch_size: int, rng: np.random.Generator
    ) -> UpdateBatch:
        """
        Sample planned goals uniformly; and states in which an action was tried, uniformly or on the
        ways to these goals.

        :param batch_size: number of states, S
        :param goal_batch_size: number of goals, G. A partial plan may have fewer
        :param rng: random generator
        """
        goal_of_state = None
        if self.plan.is_partial or self.max_sweeps == 0:
            self._exchange_goals()
            planned = self.plan.goal_ids
            n_goals = min(goal_batch_size, len(planned))
            columns = rng.choice(len(planned), n_goals, replace=False)
            goal_ids = planned[columns]
            per_goal = math.ceil(batch_size / n_goals)
            states = self.sampler.sample(columns, per_goal, rng).ravel()[:batch_size]
            goal_of_state = th.arange(batch_size, device=self.context.policy.device) % n_goals
        else:
            assert self.plan.model is not None
            tried_states = self.plan.model.tried_states
            states = tried_states[rng.integers(len(tried_states), size=batch_size)]
            goal_ids = self.context.goal_buffer.sample_ids(goal_batch_size, rng)

        def tensor(array: NDArray[Any]) -> th.Tensor:
            return th.as_tensor(array, device=self.context.policy.device)

        return UpdateBatch(
            observations=tensor(self.context.world.identity[states]),
            goals=tensor(self.context.goal_buffer[goal_ids]),
            goal_ids=tensor(goal_ids),
            state_ids=tensor(states),
            goal_of_state=goal_of_state,
        )

    def _exchange_goals(self) -> None:
        """Exchange goals of a partial plan, as many as are due for an update."""
        if self.plan.is_partial:
            self._goals_to_exchange += self.fresh_goals
        while self._goals_to_exchange >= 1.0:
            self._goals_to_exchange -= self.plan.exchange_goals()

    def target_values(self, batch: UpdateBatch) -> th.Tensor:
        """
        Return the planned values of all actions.

        :param batch: data of the update
        :return: shape (S, G, A). NaN where the plan knows no value
        """
        assert batch.state_ids is not None
        state_ids = batch.state_ids.cpu().numpy()
        values = self.plan.action_values(state_ids, batch.goal_ids.cpu().numpy())
        return th.as_tensor(values, device=batch.goals.device)

    def losses(self, batch: UpdateBatch, target_values: th.Tensor) -> th.Tensor:
        """
        Return the loss of each goal: errors of values in steps, and the loss of the best actions.

        :param batch: data of the update
        :param target_values: planned values of all actions
        :return: shape (G,)
        """
        net = self.context.policy.q_net
        q = net.pairwise(*net.embed(batch.observations, batch.goals))
        is_planned = ~target_values.isnan()
        is_known = is_planned.any(dim=2)
        best = target_values.nan_to_num(nan=-th.inf).amax(dim=2, keepdim=True)
        step_cost = self.plan.step_cost
        squared = th.where(is_planned, (q - target_values) / step_cost, 0.0).square()
        errors = squared.sum(dim=2) / is_planned.sum(dim=2).clamp(min=1)
        if self.best_weight:
            cost_in_state = (1.0 - self.plan.gamma) * best - self.plan.step_reward
            tie = (_TIE_IN_STATE * cost_in_state).clamp(max=_TIE_NEAR_GOAL * step_cost)
            is_best = target_values >= best - tie
            errors = errors + self.best_weight * best_action_loss(
                q / step_cost, is_known, is_best, _TEMPERATURE
            )
        return (self._weights(batch, is_known, best[:, :, 0]) * errors).mean(dim=0)

    def _weights(self, batch: UpdateBatch, is_known: th.Tensor, best: th.Tensor) -> th.Tensor:
        """
        Return the weights of pairs of state and goal, shape (S, G).

        :param batch: data of the update
        :param is_known: which pairs the plan knows
        :param best: their planned values
        """
        weights = is_known.float()
        if self.near_decay < 1.0:
            weights = weights * near_weights(
                best, self.near_decay, self.near_floor, *self.context.rewards
            )
        if batch.goal_of_state is not None:
            n_goals = len(batch.goals)
            own = th.nn.functional.one_hot(batch.goal_of_state, n_goals) * is_known
            weights = (1.0 - _WEIGHT_OF_OWN_GOAL) * weights + _WEIGHT_OF_OWN_GOAL * n_goals * own
        return weights

    def act(
        self,
        state_ids: NDArray[np.int64],
        goal_ids: NDArray[np.int64],
        explores: NDArray[np.bool_],
        rng: np.random.Generator,
        action_masks: NDArray[np.bool_] | None,
    ) -> NDArray[np.int64] | None:
        """
        Return the plan's best actions; by visit counts for environments that explore, or whose way
        the plan does not know.

        :param state_ids: the states that the environments show, -1 for unknown ones, shape (n,)
        :param goal_ids: the goal of each environment, -1 for unknown ones, shape (n,)
        :param explores: which environments explore, shape (n,)
        :param rng: random generator
        :param action_masks: actions allowed, shape (n, A). None: all
        :return: actions, shape (n,)
        """
        actions = self.plan.best_actions(state_ids, goal_ids)
        by_counts = explores | (actions < 0)
        if action_masks is not None:
            by_counts |= ~action_masks[np.arange(len(actions)), actions]
        if by_counts.any():
            masks = None if action_masks is None else action_masks[by_counts]
            actions[by_counts] = self.exploration.actions(
                state_ids[by_counts], self.context.world, rng, masks
            )
        return actions

    def after_step(self, num_timesteps: int, n_envs: int) -> None:
        """
        Compute the values of exploration again, if it is due.

        :param num_timesteps: steps so far, of all environments together
        :param n_envs: number of environments
        """
        self.exploration.refresh(self.context.world, n_envs)

    def describe(self) -> dict[str, float]:
        """Return how many goals are planned, and the share of ways that the last plan knew."""
        if self.planned_at is None:
            return {}
        return {"plan/goals": len(self.plan.goal_ids), "plan/known_ways": self.known_ways}

    def get_checkpoint_state(self) -> dict[str, Any]:
        """Return plain data and arrays that are in use: write them at once."""
        return {
            "plan": self.plan.get_checkpoint_state(),
            "sampler": self.sampler.get_checkpoint_state(),
            "exploration": self.exploration.get_checkpoint_state(),
            "planned_at": self.planned_at,
            "known_ways": self.known_ways,
            "goals_to_exchange": self._goals_to_exchange,
            "round": self._round,
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Restore what :meth:`get_checkpoint_state` returned.

        :param state: what it returned
        """
        self.plan.set_checkpoint_state(state["plan"])
        self.sampler.set_checkpoint_state(state["sampler"])
        self.exploration.set_checkpoint_state(state["exploration"])
        self.planned_at = state["planned_at"]
        self.known_ways = state["known_ways"]
        self._goals_to_exchange = state["goals_to_exchange"]
        self._round = state["round"]


class LargeWorldTargets(PlannedTargets):
    """
    :class:`PlannedTargets` for worlds of more than some ten thousand states that have little
    chance, see :func:`~sb3_manygoals.large_world`. Plans are without chance: each action has its
    most frequent outcome.

    :param context: the parts of the ManyGoalsDQN
    :param max_plan_bytes: memory for the plan, five bytes a pair of state and goal. None: 1 GiB, or
        half of the available memory, if that is less. If not all goals fit, the plan is for a
        sample of them
    :param exploring_episodes: share of goal episodes that explore, or a function of the share of
        training that is left, from 1 to 0. None: it falls linearly from 1.0 to 0.1 over the first
        half of training
    :raises ValueError: if an argument is out of its range, or ``gamma`` is 0
    """

    max_sweeps = 0
    fresh_goals = 0.3
    near_floor = 0.1
    best_weight = 1e4


def _known_share(best: NDArray[np.signedinteger[Any]]) -> float:
    """Return the share of best actions that are known."""
    parts = range(0, len(best), _STATES_AT_A_TIME)
    counts = [np.count_nonzero(best[row : row + _STATES_AT_A_TIME] >= 0) for row in parts]
    n_known = int(np.sum(counts))
    return n_known / max(best.size, 1)
