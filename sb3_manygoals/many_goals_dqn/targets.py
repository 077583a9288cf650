"""What an update learns from, and its loss: values bootstrapped by a target network, or planned in the replay memory."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
import torch as th
from numpy.typing import NDArray
from stable_baselines3.common.utils import get_parameters_by_name, polyak_update

from sb3_manygoals.goals import UNKNOWN, GoalBuffer
from sb3_manygoals.losses import (
    best_action_loss,
    near_weights,
    pairwise_td_loss,
    pairwise_td_targets,
)
from sb3_manygoals.many_goals_dqn.exploration import CountBonus
from sb3_manygoals.many_goals_dqn.planning import ReplayPlan
from sb3_manygoals.many_goals_dqn.policies import ManyGoalsPolicy
from sb3_manygoals.many_goals_dqn.replay_buffer import ManyGoalsReplayBuffer, ManyGoalsSamples
from sb3_manygoals.many_goals_dqn.routes import Routes
from sb3_manygoals.memory_limits import share_of_memory
from sb3_manygoals.validation import check_count, check_number

GoalSampling = Literal["uniform", "batch", "behavior"]

_PLAN_BYTES = 2**30  # for the plan, where nothing else is said
_LAST_PLAN = 0.7  # share of training after which nothing is planned again
_PARTS = ("plan", "routes", "exploration")  # of PlannedTargets, with states of their own
_FEW_WAYS = 0.5  # share of known ways below which the last plan is worth a warning
_ROWS = 1_000  # states in which known ways are counted together
_OWN = 0.5  # share of the weight for states on the way to a goal with this goal
_TEMPERATURE = 0.5  # of the loss of the best actions, in steps
# actions count as best if their value is lower than the best by at most these shares of what a step costs
_TIE = 0.2  # near the goal
_FAR_TIE = 0.5  # in the state itself, which is less if the goal is far


class Draw(NamedTuple):
    """
    The data of one update: S transitions, G goals (observations) and their ids, -1 for unknown ones; and, where each state was
    drawn on the way to one of the goals, the place of that goal among them, shape (S,).
    """

    batch: ManyGoalsSamples
    goals: th.Tensor
    goal_ids: th.Tensor
    own: th.Tensor | None = None


@dataclass(frozen=True)
class Learner:
    """The parts of a ManyGoalsDQN that targets use."""

    policy: ManyGoalsPolicy
    replay_buffer: ManyGoalsReplayBuffer
    goal_buffer: GoalBuffer
    gamma: float
    goal_reward: float
    step_reward: float
    seed: int | None = None
    """Of whatever targets draw by themselves; None for others in every run."""

    @property
    def rewards(self) -> tuple[float, float, float]:
        """Arguments of the losses."""
        return self.gamma, self.goal_reward, self.step_reward


class Targets(ABC):
    """
    Draws the data of an update and computes its loss. A subclass can be given to ManyGoalsDQN as ``target_class``, and its
    arguments other than the learner as ``target_kwargs``.

    :param learner: policy, memories, discount and rewards of the ManyGoalsDQN
    """

    initial_value: float
    """The value to which all pairs are initialized."""
    uses_target_network: ClassVar[bool] = True
    """Whether it reads and updates ``policy.q_net_target``; if not, that follows the trained network."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner

    @abstractmethod
    def draw(self, batch_size: int, goal_batch_size: int, rng: np.random.Generator) -> Draw:
        """:return: the data of an update of S = ``batch_size`` transitions and G = ``goal_batch_size`` goals"""

    @abstractmethod
    def losses(self, draw: Draw) -> th.Tensor:
        """:return: the loss of each goal, shape (G,); an update minimizes their mean"""

    def before_updates(self, num_timesteps: int, progress: float) -> None:  # noqa: B027 - need not be overridden, as below
        """Called before the updates that follow a rollout; ``progress`` is the share of training done, from 0 to 1."""

    def after_step(self, num_timesteps: int, n_envs: int) -> None:  # noqa: B027
        """Called after every step of the environments, once learning has started; all of them together count as steps."""

    def act(
        self,
        observations: NDArray[Any],
        goal_ids: NDArray[np.int64],
        explore: NDArray[np.bool_],
        rng: np.random.Generator,
        action_masks: NDArray[np.bool_] | None,
    ) -> NDArray[np.int64] | None:
        """
        Actions during training, for targets that know better ones than the network.

        :param observations: what the environments show, shape (n, *observation_space.shape)
        :param goal_ids: the goal of each environment, -1 for unknown ones, shape (n,)
        :param explore: which environments explore, shape (n,)
        :param action_masks: actions allowed, shape (n, A), None for all
        :return: actions, shape (n,); None to act epsilon-greedily by the network
        """
        return None

    def describe(self) -> dict[str, float]:
        """:return: numbers for the log, by their names there"""
        return {}

    def get_checkpoint_state(self) -> dict[str, Any]:
        """:return: a plain tree; its arrays may be in use, so write it before training goes on"""
        return {}

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:  # noqa: B027
        """:param state: from :meth:`get_checkpoint_state`"""


class TDTargets(Targets):
    """
    The paper's one-step targets by a target network, see :func:`~sb3_manygoals.losses.pairwise_td_targets`.

    :param learner: whose network is trained
    :param goal_sampling: the goals of an update. "uniform": drawn from the known goals, as in the paper. "batch": the distinct
        next observations of the sampled transitions, filled up with uniform ones. "behavior", the paper's on-policy baseline:
        each transition teaches only the goal pursued when it was made
    :param update_interval: environment steps between updates of the target network, of step ``tau``: 1.0 copies the weights
    :param initial_value: the value to which all pairs are initialized; None: that of a goal reached with the distance head,
        which cannot learn greater ones; else that of a goal never reached, ``step_reward / (1 - gamma)``, to which all values
        would sink first if few goals are reached in an update
    :raises ValueError: if an argument is out of its range
    """

    def __init__(
        self,
        learner: Learner,
        goal_sampling: GoalSampling = "batch",
        update_interval: int = 250,
        tau: float = 1.0,
        initial_value: float | None = None,
    ) -> None:
        super().__init__(learner)
        if goal_sampling not in get_args(GoalSampling):
            raise ValueError(
                f"goal_sampling must be one of {', '.join(get_args(GoalSampling))}, got {goal_sampling!r}"
            )
        never = learner.step_reward / (1.0 - learner.gamma)
        if initial_value is None:
            initial_value = learner.goal_reward if learner.policy.head == "distance" else never
        self.goal_sampling = goal_sampling
        self.update_interval = check_count("update_interval", update_interval, floats=True)
        self.tau = check_number("tau", tau, "[0, 1]")
        self.initial_value = check_number("initial_value", initial_value, "(-inf, inf)")

    def after_step(self, num_timesteps: int, n_envs: int) -> None:
        if num_timesteps // self.update_interval > (num_timesteps - n_envs) // self.update_interval:
            net, target = self.learner.policy.q_net, self.learner.policy.q_net_target
            polyak_update(net.parameters(), target.parameters(), self.tau)
            # of batch normalization, which parameters() leaves out
            polyak_update(
                get_parameters_by_name(net, ["running_"]),
                get_parameters_by_name(target, ["running_"]),
                1.0,
            )

    def draw(self, batch_size: int, goal_batch_size: int, rng: np.random.Generator) -> Draw:
        goal_buffer, device = self.learner.goal_buffer, self.learner.policy.device
        batch: Any = self.learner.replay_buffer.sample(batch_size)
        if self.goal_sampling == "behavior":
            ids = batch.behavior_goal_ids.cpu().numpy()
        else:
            ids = goal_buffer.sample_ids(goal_batch_size, rng)
        goals = th.as_tensor(goal_buffer[np.maximum(ids, 0)], device=device)
        if self.goal_sampling == "batch":
            met, places = np.unique(batch.next_ids.cpu().numpy(), return_index=True)
            chosen = rng.permutation(np.flatnonzero(met != UNKNOWN))[:goal_batch_size]
            ids[: len(chosen)], goals[: len(chosen)] = (
                met[chosen],
                batch.next_observations[places[chosen]],
            )
        return Draw(batch, goals, th.as_tensor(ids, device=device))

    def losses(self, draw: Draw) -> th.Tensor:
        """The paper's L(g) of each goal; with ``goal_sampling="behavior"`` of each transition for its own goal."""
        batch, goals, goal_ids, _ = draw
        net, target = self.learner.policy.q_net, self.learner.policy.q_net_target
        if self.goal_sampling == "behavior":
            with th.no_grad():
                next_q = target(batch.next_observations, goals)[:, None]
            q = net(batch.observations, goals).gather(1, batch.actions[:, None])
            targets = self._targets(next_q, (batch.next_ids == goal_ids)[:, None], batch)
            known = (
                goal_ids != UNKNOWN
            )  # as S goals with one transition each; unknown goals are left out of the mean
            return (
                pairwise_td_loss(q.T, targets.T) * known * (len(known) / known.sum().clamp(min=1))
            )
        with th.no_grad():
            next_q = target.pairwise(*target.embed(batch.next_observations, goals))
        q = net.pairwise_taken(*net.embed(batch.observations, goals), batch.actions)
        return pairwise_td_loss(
            q, self._targets(next_q, batch.next_ids[:, None] == goal_ids, batch)
        )

    def _targets(
        self, next_q: th.Tensor, achieved: th.Tensor, batch: ManyGoalsSamples
    ) -> th.Tensor:
        return pairwise_td_targets(
            next_q, achieved, batch.terminated, *self.learner.rewards, batch.next_action_mask
        )


class PlannedTargets(Targets):
    """
    Values from value iteration in the replay memory (:class:`~sb3_manygoals.many_goals_dqn.planning.ReplayPlan`), for worlds
    whose observations recur. The network learns the values of all actions and which of them are best, in states drawn
    uniformly. Where the plan is of a draw of goals, or without chance, states are on the ways to its goals instead
    (:class:`~sb3_manygoals.many_goals_dqn.routes.Routes`), and half of the weight is that of each state with its own goal: in
    large worlds few other pairs are near enough to teach much. Errors are measured in steps; near its goal, one costs ``(1 -
    gamma) goal_reward - step_reward``. During training, behavior follows the plan, and exploration the counts
    (:class:`~sb3_manygoals.many_goals_dqn.exploration.CountBonus`).

    :param learner: whose network is trained
    :param growth: plan again when the transitions met have grown by this factor
    :param sweeps: of value iteration, at most; the first plan makes as many as it takes. 0: plans without chance, for large
        worlds that have little
    :param max_plan_bytes: memory for the plan, five bytes a pair of state and goal; None: 1 GiB, or half of the memory that is
        available, if that is less. Where not all goals fit, it is of draws of
        them, and ``fresh_goals`` are exchanged for each update
    :param near_decay: of :func:`~sb3_manygoals.losses.near_weights`, as ``near_floor``; 1.0 for equal weights
    :param best_weight: weight of :func:`~sb3_manygoals.losses.best_action_loss`, relative to the squared error of values
    :raises ValueError: if an argument is out of its range, or ``gamma`` is 0
    """

    uses_target_network = False

    def __init__(
        self,
        learner: Learner,
        growth: float = 1.5,
        sweeps: int = 100,
        max_plan_bytes: int | None = None,
        fresh_goals: float = 0.25,
        near_decay: float = 0.75,
        near_floor: float = 0.02,
        best_weight: float = 50.0,
    ) -> None:
        super().__init__(learner)
        self.growth = check_number("growth", growth, "(1, inf)")
        self.sweeps = check_count("sweeps", sweeps, least=0, floats=True)
        self.near_decay = check_number("near_decay", near_decay, "(0, 1]")
        self.near_floor = check_number("near_floor", near_floor, "(0, inf)")
        self.best_weight = check_number("best_weight", best_weight, "[0, inf)")
        if near_decay < 1.0 and learner.gamma == 0.0:
            raise ValueError(
                "gamma must be greater than 0 where values are planned, got 0: they would not tell "
                "how far a goal is, only whether one step reaches it. target_class=TDTargets takes 0"
            )
        self.initial_value = (
            learner.goal_reward
        )  # that of a goal reached, so that distances grow from 0
        if max_plan_bytes is None:
            max_plan_bytes = max(min(_PLAN_BYTES, share_of_memory(0.5)), 1)
        self.plan = ReplayPlan(
            *learner.rewards,
            self.sweeps,
            check_count("max_plan_bytes", max_plan_bytes, floats=True),
            learner.seed,
        )
        if self.plan.step_cost <= 0.0:
            raise ValueError(
                "goal_reward must be greater than step_reward / (1 - gamma), that of never reaching it"
            )
        self.fresh_goals = check_number("fresh_goals", fresh_goals, "[0, inf)")
        self.routes = Routes(self.plan)
        self._due = 0.0  # goals to be exchanged
        self.exploration = CountBonus(int(learner.policy.action_space.n))
        self.planned_at: int | None = None  # transitions that the last plan was made of
        self.known_ways = 0.0
        """The share of pairs of observation and goal between which the last plan knew a way."""
        self._round: int | None = None
        if learner.replay_buffer.states is not learner.goal_buffer.table:
            learner.replay_buffer.keep_states(learner.goal_buffer.table)

    def _round_of(self, progress: float) -> int:
        """Which plan training should go by, counted from the last one, 0."""
        rounds = math.log(max(progress, 1e-12) / _LAST_PLAN) / math.log(self.growth)
        return min(0, math.floor(rounds))

    def is_plan_due(self, progress: float) -> bool:
        """:return: whether the next updates begin with a plan, at this share of training done"""
        at = self.planned_at
        met = self.learner.replay_buffer.n_tried  # not steps: a loaded model may have no memory
        again = at is not None and met >= max(self.growth, 1.01 / _LAST_PLAN) * max(at, 1)
        return again or self._round_of(progress) != self._round

    def before_updates(self, num_timesteps: int, progress: float) -> None:
        """Plan, when it is due; for the last time at 70% of training, so that the network has time to learn the plan."""
        if self.is_plan_due(progress):
            met = self.learner.replay_buffer.n_tried
            self._round = round_ = self._round_of(progress)
            fitted = not self.plan.is_draw
            settle = len(self.plan.values) == 0
            self.plan.refresh(self.learner.replay_buffer, self.learner.goal_buffer, settle)
            if fitted and self.plan.is_draw and self.sweeps:
                what = f"{len(self.plan.goal_ids)} of {len(self.learner.goal_buffer)} goals fit into max_plan_bytes"
                warnings.warn(
                    f"{what}, so plans are of draws of goals; the settings LARGE_WORLD are for such "
                    "worlds, see large_world(steps)",
                    stacklevel=2,
                )
            self.planned_at = met
            self.known_ways = _share_known(self.plan.best)
            if self.plan.is_draw and round_ == 0 and self.known_ways < _FEW_WAYS:
                what = f"the last plan knows a way for {self.known_ways:.0%} of pairs of observation and goal"
                warnings.warn(
                    f"{what}: more random steps first, learning_starts, would teach more",
                    stacklevel=2,
                )

    def draw(self, batch_size: int, goal_batch_size: int, rng: np.random.Generator) -> Draw:
        """
        Planned goals, drawn uniformly; and states in which an action was tried, uniformly or on the ways to these goals. The
        batch has no more than these states.
        """
        replay, goals, device = (
            self.learner.replay_buffer,
            self.learner.goal_buffer,
            self.learner.policy.device,
        )
        assert self.plan.model is not None
        assert replay.states is not None
        self._due += self.fresh_goals if self.plan.is_draw else 0.0
        while self._due >= 1.0:
            self._due -= self.plan.rotate()
        own = None
        if self.plan.is_draw or self.sweeps == 0:
            planned = self.plan.goal_ids
            columns = rng.choice(len(planned), min(goal_batch_size, len(planned)), replace=False)
            ids, n = planned[columns], math.ceil(batch_size / len(columns))
            states = self.routes.draw(columns, n, rng).ravel()[:batch_size]
            own = th.arange(batch_size, device=device) % len(ids)
        else:
            left = self.plan.model.left
            states = left[rng.integers(len(left), size=batch_size)]
            ids = goals.sample_ids(goal_batch_size, rng)
        observations = th.as_tensor(replay.states[states], device=device)
        unset, numbers = (
            th.zeros(batch_size, dtype=th.int64, device=device),
            th.as_tensor(states, device=device),
        )
        batch = ManyGoalsSamples(
            observations, unset, observations, unset, unset.bool(), states=numbers
        )
        return Draw(
            batch, th.as_tensor(goals[ids], device=device), th.as_tensor(ids, device=device), own
        )

    def losses(self, draw: Draw) -> th.Tensor:
        """Every state with every goal, all actions whose value the plan knows."""
        batch, goals, goal_ids, own = draw
        assert batch.states is not None
        net = self.learner.policy.q_net
        values = self.plan.action_values(batch.states.cpu().numpy(), goal_ids.cpu().numpy())
        planned = th.as_tensor(values, device=goals.device)
        q = net.pairwise(*net.embed(batch.observations, goals))
        told = ~planned.isnan()
        known = told.any(dim=2)
        best = planned.nan_to_num(nan=-th.inf).amax(dim=2, keepdim=True)
        weights = known.float()
        if self.near_decay < 1.0:
            weights = weights * near_weights(
                best[:, :, 0], self.near_decay, self.near_floor, *self.learner.rewards
            )
        if own is not None:
            pairs = th.nn.functional.one_hot(own, len(goals)) * known
            weights = (1.0 - _OWN) * weights + _OWN * len(goals) * pairs
        cost = self.plan.step_cost
        errors = th.where(told, (q - planned) / cost, 0.0).square().sum(dim=2) / told.sum(
            dim=2
        ).clamp(min=1)
        if self.best_weight:
            there = (1.0 - self.plan.gamma) * best - self.plan.step_reward
            tied = planned >= best - (_FAR_TIE * there).clamp(max=_TIE * cost)
            errors = errors + self.best_weight * best_action_loss(
                q / cost, known, tied, _TEMPERATURE
            )
        return (weights * errors).mean(dim=0)

    def act(
        self,
        observations: NDArray[Any],
        goal_ids: NDArray[np.int64],
        explore: NDArray[np.bool_],
        rng: np.random.Generator,
        action_masks: NDArray[np.bool_] | None,
    ) -> NDArray[np.int64] | None:
        """The plan's best actions; by counts for environments that explore or whose way the plan does not know."""
        assert self.learner.replay_buffer.states is not None
        states = self.learner.replay_buffer.states.add(observations)
        actions = self.plan.best_actions(states, goal_ids)
        explore = (
            explore
            | (actions < 0)
            | (action_masks is not None and ~action_masks[np.arange(len(actions)), actions])
        )
        if explore.any():
            masks = None if action_masks is None else action_masks[explore]
            actions[explore] = self.exploration.actions(
                states[explore], self.learner.replay_buffer, rng, masks
            )
        return actions

    def after_step(self, num_timesteps: int, n_envs: int) -> None:
        self.exploration.refresh(self.learner.replay_buffer)

    def describe(self) -> dict[str, float]:
        """:return: how many goals are planned, and the share of ways that the last plan knew"""
        if self.planned_at is None:
            return {}
        return {"plan/goals": len(self.plan.goal_ids), "plan/known_ways": self.known_ways}

    def get_checkpoint_state(self) -> dict[str, Any]:
        parts = {name: getattr(self, name).get_checkpoint_state() for name in _PARTS}
        return {
            "planned_at": self.planned_at,
            "known_ways": self.known_ways,
            "round": self._round,
            "due": self._due,
            **parts,
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        self.planned_at, self._round, self._due = state["planned_at"], state["round"], state["due"]
        self.known_ways = state.get("known_ways", 0.0)  # earlier versions did not save it
        for name in _PARTS:
            getattr(self, name).set_checkpoint_state(state[name])


def _share_known(best: NDArray[np.signedinteger[Any]]) -> float:
    """The share of best actions that are known, counted in parts, as there may be a billion."""
    parts = range(0, len(best), _ROWS)
    known = sum(int(np.count_nonzero(best[row : row + _ROWS] >= 0)) for row in parts)
    return known / max(best.size, 1)
