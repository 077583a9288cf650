"""Targets that are planned in a model of the world, in which observations recur."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch as th
from numpy.typing import NDArray
from stable_baselines3.common.type_aliases import Schedule
from stable_baselines3.common.utils import FloatSchedule, LinearSchedule

from sb3_manygoals.checkpoint.added import note_attributes
from sb3_manygoals.losses import near_weights, planned_loss
from sb3_manygoals.many_goals_dqn.exploration import CountBonus
from sb3_manygoals.many_goals_dqn.goal_directed_sampler import GoalDirectedSampler
from sb3_manygoals.many_goals_dqn.planning import AllGoalsPlan
from sb3_manygoals.many_goals_dqn.targets import TargetContext, Targets, UpdateBatch
from sb3_manygoals.memory_limits import share_of_memory
from sb3_manygoals.validation import check_count, check_number, check_schedule

# Memory for a plan by default, in bytes.
_DEFAULT_PLAN_BYTES = 2**32
# The last plan is made at this share of training, so that the network has time to learn it.
_LAST_PLAN = 0.8
# From this share of training on, no other plan is made before the last one.
_NONE_BEFORE_LAST = 0.75
# The world counts as discovered if at most this share of the last observations was new. It is
# looked at after so many transitions, or after a share of all of them, if that is more.
_FEW_NEW = 0.01
_LOOK_EVERY = 1_000
_LOOK_SHARE = 10
# The model of the world is worth learning from so many transitions for each state on.
_TRANSITIONS_PER_STATE = 40
# In a world of more states than this, a plan takes a minute or more, and its ways are long. None is
# made before there are so many transitions for each state, so that few steps of a way are wrong.
_MANY_STATES = 11_000
_TRANSITIONS_PER_STATE_OF_MANY = 150
# Discovery ends, and updates begin, at the latest at this share of training.
_LATEST_BEGIN = 0.5
# The network is compared with the plan on so many ways.
_WAYS_TO_COMPARE = 2_048
# If the last plan knows a way for less than this share of pairs, training warns.
_FEW_WAYS = 0.5
# Pairs of so many states are counted at a time, because there may be a billion pairs.
_STATES_AT_A_TIME = 1_000
# If a state was sampled on the way to a goal, this share of its weights is that of this goal.
_WEIGHT_OF_OWN_GOAL = 0.1
# Up to so many states count as few.
_FEW_STATES = 8_192
# This share of the states of an update are random ones if states are few. The share falls as their
# number grows.
_RANDOM_SHARE = 0.5
# Temperature of the loss of the best actions, in steps.
_TEMPERATURE = 0.5
# An action counts as one of the best if its value is close to the best one. The difference must be
# at most the first share of what a step costs near the goal, and at most the second share of what
# a step costs in the state itself. Steps cost less far away from the goal.
_TIE_NEAR_GOAL = 0.2
_TIE_IN_STATE = 0.5


class PlannedTargets(Targets):
    """
    Values from value iteration in a model of the world
    (:class:`~sb3_manygoals.many_goals_dqn.planning.AllGoalsPlan`), for worlds in which observations
    recur. The network learns the values of all actions, and which of them are best.

    Half of the states of an update are random. The others are sampled on the ways to planned goals
    (:class:`~sb3_manygoals.many_goals_dqn.goal_directed_sampler.GoalDirectedSampler`). A tenth of
    their weights go to the goal on the way to which they were sampled, and the rest to all goals of
    the update. In large worlds random states are rarely near enough to a goal to teach much. So
    fewer states are random in a world of more than 8,192 states, a quarter if there are twice as
    many. If all states and goals fit into an update, it has all of them.

    Ways are longer in large worlds, and so are errors of values. So the loss of the best actions
    has a greater weight in a world of more than 8,192 states, twice as much if there are twice as
    many.

    Errors of values are measured in steps, by what a step costs near the goal:
    ``(1 - gamma) goal_reward - step_reward``. During training, behavior follows the plan. Goal
    episodes that explore follow the visit counts
    (:class:`~sb3_manygoals.many_goals_dqn.exploration.CountBonus`).

    If updates are made as needed, the world is discovered first, as long as more than 1% of
    observations are new, for at most half of training. Meanwhile all episodes explore, and nothing
    is planned. In a world of more than 11,000 states, where plans take long, discovery goes on
    until there are 150 transitions for each state.

    :param context: the parts of the ManyGoalsDQN that targets use
    :param max_plan_bytes: memory for the plan, in bytes. A pair of state and goal takes five. None:
        4 GiB, or half of the available memory, if that is less. If not all goals fit, the plan is
        for a sample of them
    :param exploring_episodes: share of goal episodes that explore, or a function of the share of
        training that is left, from 1 to 0. None: it falls linearly from 1.0 to 0.1 over the first
        half of training, and is 1.0 while the world is discovered
    :raises ValueError: if an argument is out of its range, or ``gamma`` is 0
    """

    uses_target_network = False
    uses_replay_buffer = False

    growth: ClassVar[float] = 2.0
    """The next plan is made when the number of transitions has grown by this factor. Its third
    power is needed if no states were found since the last plan and there were 40 transitions for
    each state."""
    fresh_goals: ClassVar[float] = 0.1
    """The number of goals of a partial plan that are exchanged for each update, on average."""
    near_decay: ClassVar[float] = 0.75
    """``decay`` of :func:`~sb3_manygoals.losses.near_weights`. 1.0 for equal weights."""
    near_floor: ClassVar[float] = 0.02
    """``floor`` of :func:`~sb3_manygoals.losses.near_weights`."""
    best_weight: ClassVar[float] = 50.0
    """Weight of :func:`~sb3_manygoals.losses.best_action_loss`, relative to errors of values, in a
    world of up to 8,192 states."""

    def __init__(
        self,
        context: TargetContext,
        max_plan_bytes: int | None = None,
        exploring_episodes: float | Schedule | None = None,
    ) -> None:
        super().__init__(context)
        if context.gamma == 0.0:
            raise ValueError(
                "gamma must be greater than 0 where values are planned, got 0: they would not tell "
                "how far a goal is, only whether one step reaches it. target_class=TDTargets takes "
                "0"
            )
        # This is the value of a goal reached, so distances grow from 0.
        self.initial_value = context.goal_reward
        self.plan = AllGoalsPlan(
            context.gamma,
            context.goal_reward,
            context.step_reward,
            max_bytes=plan_bytes(max_plan_bytes),
            seed=context.seed,
        )
        if self.plan.step_cost <= 0.0:
            raise ValueError(
                "goal_reward must be greater than step_reward / (1 - gamma), that of never "
                "reaching it"
            )
        self._explores_by_default = exploring_episodes is None
        if exploring_episodes is None:
            exploring_episodes = LinearSchedule(1.0, 0.1, 0.5)
        self.exploring_episodes = FloatSchedule(
            check_schedule("exploring_episodes", exploring_episodes, at_most=1)
        )
        for progress_remaining in (1.0, 0.0):
            share = self.exploring_episodes(progress_remaining)
            check_number("exploring_episodes", share, at_least=0, at_most=1)
        self.sampler = GoalDirectedSampler(self.plan)
        self.exploration = CountBonus(int(context.policy.action_space.n))
        self.planned_at: int | None = None
        """The number of transitions when the last plan was made. None before the first plan."""
        self.known_ways = 0.0
        """The share of pairs of observation and goal between which the last plan knew a way."""
        # The number of goals that are due to be exchanged, which may be a fraction.
        self._goals_to_exchange = 0.0
        # Whether the last plan was made in the last part of training. None before the first plan.
        self._planned_last: bool | None = None
        self.is_discovering = False
        """Whether the world is still discovered, so that nothing is planned. The learner begins."""
        # Observations, and new ones among them, when they were looked at last.
        self._looked_at = (0, 0)
        note_attributes(self)

    def exploring_share(self, progress_remaining: float) -> float:
        """
        Return the share of goal episodes that explore.

        :param progress_remaining: share of training that is left, from 1 to 0
        :return: the share, from 0 to 1
        """
        if self.is_discovering and self._explores_by_default:
            return 1.0
        return self.exploring_episodes(progress_remaining)

    def is_settled(self, progress: float) -> bool:
        """
        Return whether the plan is worth learning: the world is known, and 40 transitions for each
        state were made, 150 in a world of more than 11,000 states, or half of training is done.

        :param progress: share of training that is done, from 0 to 1
        :return: whether updates should begin
        """
        if self.is_discovering or self.planned_at is None:
            return False
        return self._is_tried_often or progress >= _LATEST_BEGIN

    @property
    def _is_tried_often(self) -> bool:
        """Whether there are enough transitions for each state."""
        world = self.context.world
        n_states = len(world.identity)
        are_many = n_states > _MANY_STATES
        per_state = _TRANSITIONS_PER_STATE_OF_MANY if are_many else _TRANSITIONS_PER_STATE
        return world.n_counted >= per_state * n_states

    def go_on_after(self, last: PlannedTargets) -> None:
        """
        Go on where other targets were, whose states and goals have got other ids.

        :param last: the targets that there were
        """
        states = self.context.world.identity
        self.is_discovering = last.is_discovering
        self._looked_at = (states.n_added, states.n_added - states.n_recurred)

    def _look_for_new_states(self, progress: float) -> None:
        """Decide whether the world is still discovered."""
        states = self.context.world.identity
        n_seen, n_new = self._looked_at
        since = states.n_added - n_seen
        if progress >= _LATEST_BEGIN:
            self.is_discovering = False
        elif since >= max(_LOOK_EVERY, n_seen // _LOOK_SHARE):
            n_new_now = states.n_added - states.n_recurred
            # There is nothing more to discover once there is no room for it.
            are_many_new = n_new_now - n_new > _FEW_NEW * since and not states.is_full
            takes_long = len(states) > _MANY_STATES
            self.is_discovering = are_many_new or (takes_long and not self._is_tried_often)
            self._looked_at = (states.n_added, n_new_now)

    def is_plan_due(self, progress: float) -> bool:
        """
        Return whether a plan is to be made before the next updates.

        :param progress: share of training that is done, from 0 to 1
        :return: whether a plan is due
        """
        if not self.context.world.identity.is_known:
            return False
        if self.is_discovering:
            self._look_for_new_states(progress)
        if self.is_discovering:
            return False
        last = self.planned_at
        if last is None or self._planned_last != (progress >= _LAST_PLAN):
            return True
        if _NONE_BEFORE_LAST <= progress < _LAST_PLAN:
            return False
        # Transitions are counted, not steps, because a loaded model may have no transitions.
        n_states = len(self.plan.values)
        has_new = len(self.context.world.identity) > n_states
        is_coarse = last < _TRANSITIONS_PER_STATE * n_states
        growth = self.growth if has_new or is_coarse else self.growth**3
        return self.context.world.n_counted >= growth * max(last, 1)

    def before_updates(self, progress: float) -> None:
        """
        Make a plan, if one is due (:meth:`is_plan_due`). The last plan is made at 80% of training,
        so that the network has time to learn it.

        Warnings say so if not all goals fit into ``max_plan_bytes``, and if the last plan knows few
        ways.

        :param progress: share of training that is done, from 0 to 1
        :raises MemoryError: if the plan does not fit into the available memory
        """
        if not self.is_plan_due(progress):
            return
        self._planned_last = progress >= _LAST_PLAN
        was_partial = self.plan.is_partial
        is_first = len(self.plan.values) == 0
        self.plan.refresh(self.context.world, self.context.goal_buffer, converge=is_first)
        self.planned_at = self.context.world.n_counted
        self.known_ways = _known_share(self.plan.best)
        if self.plan.is_partial and not was_partial:
            warnings.warn(
                f"{len(self.plan.goal_ids)} of {len(self.context.goal_buffer)} goals fit into "
                "max_plan_bytes, so plans are for samples of goals. More max_plan_bytes in "
                "target_kwargs would plan more goals at once",
                stacklevel=2,
            )
        if self.plan.is_partial and self._planned_last and self.known_ways < _FEW_WAYS:
            warnings.warn(
                f"the last plan knows a way for {self.known_ways:.0%} of pairs of observation and "
                "goal: more steps would teach more",
                stacklevel=2,
            )

    @th.no_grad()
    def failures(self, rng: np.random.Generator) -> float:
        """
        Compare the network with the plan, in the model of the world.

        Both act from the same random states towards the same random goals. The number of steps is
        limited to twice those on the longest way of the plan.

        :param rng: random generator
        :return: the share of goals that the plan reaches and the network does not, less the share
            of those that only the network reaches
        """
        assert self.plan.model is not None
        columns = rng.integers(len(self.plan.goal_ids), size=_WAYS_TO_COMPARE)
        goal_ids = self.plan.goal_ids[columns]
        tried_states = self.plan.model.tried_states
        states = tried_states[rng.integers(len(tried_states), size=_WAYS_TO_COMPARE)]
        has_way = self.plan.best[states, columns] >= 0
        has_way &= ~self.plan.is_achieved(states, goal_ids)
        if not has_way.any():
            return 0.0
        states = states[has_way]
        goal_ids = goal_ids[has_way]
        most_steps = 2 * self._steps_to(float(self.plan.values[states, columns[has_way]].min()))
        policy = self.context.policy
        network = policy.q_net if policy.q_net_ema is None else policy.q_net_ema
        shown = self.context.goal_buffer.sample_shown(goal_ids, rng)
        goals = th.as_tensor(shown, device=policy.device)

        def by_network(states: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
            seen = self.context.world.identity.sample(states, rng)
            observations = th.as_tensor(seen, device=policy.device)
            actions: NDArray[np.int64]
            actions = network(observations, goals[rows]).argmax(dim=1).cpu().numpy()
            return actions

        def by_plan(states: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
            return np.maximum(self.plan.best_actions(states, goal_ids[rows]), 0)

        # This is asked in the middle of an update, but the network acts as it will later.
        was_training = network.training
        network.eval()
        try:
            reached = [
                self._reached_share(states, goal_ids, act, most_steps, rng)
                for act in (by_plan, by_network)
            ]
        finally:
            network.train(was_training)
        return reached[0] - reached[1]

    def _steps_to(self, value: float) -> int:
        """
        Return how many steps away a goal of this value is. A goal with a smaller value than
        ``least_value`` counts as one with this value: its value is not settled yet.
        """
        never = self.plan.unreachable_value
        value = max(value, self.plan.least_value)
        nearness = (value - never) / (self.plan.goal_reward - never)
        return math.ceil(math.log(nearness) / math.log(self.plan.gamma)) + 1

    def _reached_share(
        self,
        states: NDArray[np.int64],
        goal_ids: NDArray[np.int64],
        act: Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.int64]],
        most_steps: int,
        rng: np.random.Generator,
    ) -> float:
        """
        Return the share of goals that are reached in the model of the world.

        :param states: ids of the states to begin in, shape (n,)
        :param goal_ids: ids of the goals, shape (n,)
        :param act: returns actions in states, given their ids and the numbers of their goals
        :param most_steps: greatest number of steps
        :param rng: random generator, for outcomes of actions
        """
        model = self.plan.model
        assert model is not None
        rows = np.arange(len(states))
        n_reached = 0
        for _ in range(most_steps):
            states = model.sample_next(states, act(states, rows), rng)
            is_reached = self.plan.is_achieved(states, goal_ids[rows])
            n_reached += int(np.count_nonzero(is_reached))
            goes_on = (states >= 0) & ~is_reached
            states = states[goes_on]
            rows = rows[goes_on]
            if len(rows) == 0:
                break
        return n_reached / len(goal_ids)

    def sample(
        self, batch_size: int, goal_batch_size: int, rng: np.random.Generator
    ) -> UpdateBatch:
        """
        Sample goals, and states in which an action was tried.

        Planned goals are drawn without replacement. States are random, or sampled on the ways to
        these goals. If there are not more states and goals, all of them are taken.

        :param batch_size: number of states, S
        :param goal_batch_size: number of goals, G. If fewer are known or planned, it is their
            number
        :param rng: random generator
        :return: the data, without transitions, on the policy's device
        """
        goal_of_state = None
        assert self.plan.model is not None
        states = self.plan.model.tried_states
        goal_ids = self.plan.goal_ids
        if len(states) > batch_size or len(goal_ids) > goal_batch_size or self.plan.is_partial:
            self._exchange_goals()
            n_goals = min(goal_batch_size, len(self.plan.goal_ids))
            share = _RANDOM_SHARE * min(1.0, _FEW_STATES / len(states))
            n_random = int(share * batch_size)
            per_goal = math.ceil((batch_size - n_random) / n_goals)
            columns, on_ways = self.sampler.sample(n_goals, per_goal, rng)
            goal_ids = self.plan.goal_ids[columns]
            random_states = states[rng.integers(len(states), size=n_random)]
            states = np.concatenate([random_states, on_ways.ravel()])[:batch_size]
            goal_of_state = th.arange(-n_random, batch_size - n_random) % n_goals
            goal_of_state[:n_random] = -1
            goal_of_state = goal_of_state.to(self.context.policy.device)

        def tensor(array: NDArray[Any]) -> th.Tensor:
            return th.as_tensor(array, device=self.context.policy.device)

        return UpdateBatch(
            observations=tensor(self.context.world.identity.sample(states, rng)),
            goals=tensor(self.context.goal_buffer.sample_shown(goal_ids, rng)),
            goal_ids=tensor(goal_ids),
            state_ids=tensor(states),
            goal_of_state=goal_of_state,
        )

    def _exchange_goals(self) -> None:
        """
        Exchange as many goals of a partial plan as are due for one update. They wait until nothing
        is sampled for them any more.
        """
        if self.plan.is_partial:
            self._goals_to_exchange += self.fresh_goals
        while self._goals_to_exchange >= 1.0 and self.sampler.is_used_up:
            self._goals_to_exchange -= self.plan.exchange_goals()

    def target_values(self, batch: UpdateBatch) -> th.Tensor:
        """
        Return the planned values of all actions.

        :param batch: data of the update
        :return: values, float32, shape (S, G, A). NaN where the plan knows no value
        """
        assert batch.state_ids is not None
        state_ids = batch.state_ids.cpu().numpy()
        values = self.plan.action_values(state_ids, batch.goal_ids.cpu().numpy())
        return th.as_tensor(values, device=batch.goals.device)

    def losses(self, batch: UpdateBatch, target_values: th.Tensor) -> th.Tensor:
        """
        Return the loss of each goal. It is the sum of two weighted losses: the squared error of
        values, in steps, and that of :func:`~sb3_manygoals.losses.best_action_loss`.

        :param batch: data of the update
        :param target_values: planned values of all actions, from :meth:`target_values`
        :return: losses, shape (G,)
        """
        policy = self.context.policy
        with policy.autocast():
            embedded = policy.q_net.embed(batch.observations, batch.goals)
        q = policy.q_net.pairwise(*embedded)
        best, is_best = self._best_actions(target_values)
        step_cost = self.plan.step_cost
        best_weight = self.best_weight * max(1.0, len(self.plan.values) / _FEW_STATES)
        return planned_loss(
            q / step_cost,
            target_values / step_cost,
            is_best,
            self._weights(batch, best),
            best_weight,
            _TEMPERATURE,
        )

    def _best_actions(self, target_values: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """
        Return the planned value of each pair, and which actions are about as good.

        :param target_values: planned values of all actions, shape (S, G, A)
        :return: values, -inf where none is known, shape (S, G); and whether an action is one of the
            best, 1.0 or 0.0, shape (S, G, A)
        """
        known = target_values.nan_to_num(nan=-th.inf)
        best = known.amax(dim=2, keepdim=True)
        cost_in_state = (1.0 - self.plan.gamma) * best - self.plan.step_reward
        tie = (_TIE_IN_STATE * cost_in_state).clamp(max=_TIE_NEAR_GOAL * self.plan.step_cost)
        # Where nothing is known, both are -inf. Their difference is NaN, and no action is best.
        return best[:, :, 0], known.ge_(best - tie)

    def _weights(self, batch: UpdateBatch, best: th.Tensor) -> th.Tensor:
        """
        Return the weights of pairs of state and goal, shape (S, G).

        :param batch: data of the update
        :param best: the planned value of each pair, -inf where none is known, shape (S, G)
        """
        is_known = best > -th.inf
        weights = is_known.float()
        if self.near_decay < 1.0:
            weights = weights * near_weights(
                best, self.near_decay, self.near_floor, *self.context.gamma_and_rewards
            )
        if batch.goal_of_state is not None:
            n_goals = len(batch.goals)
            places = th.arange(n_goals, device=best.device)
            own = n_goals * is_known * (batch.goal_of_state[:, None] == places)
            share = _WEIGHT_OF_OWN_GOAL * (batch.goal_of_state[:, None] >= 0)
            weights = weights + share * (own - weights)
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
        Return the plan's best actions. Some environments get actions that explore by visit counts
        instead: those that explore, those for which the plan knows no way, and those in which a
        mask forbids the best action.

        :param state_ids: the states that the environments show, -1 for unknown ones, shape (n,)
        :param goal_ids: the goal of each environment, -1 for unknown ones, shape (n,)
        :param explores: whether each environment explores, shape (n,)
        :param rng: random generator
        :param action_masks: whether each action is allowed, shape (n, A). None: all are
        :return: actions, int64, shape (n,)
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
        Compute the values of exploration again, if they are due.

        :param num_timesteps: number of steps so far, of all environments together
        :param n_envs: number of environments
        """
        self.exploration.refresh(self.context.world, n_envs)

    def describe(self) -> dict[str, float]:
        """
        Return numbers about the last plan, for the log.

        :return: ``"plan/goals"``, the number of planned goals, and ``"plan/known_ways"``, the share
            of pairs of observation and goal for which it knew a way. Empty before the first plan
        """
        if self.planned_at is None:
            return {}
        return {"plan/goals": len(self.plan.goal_ids), "plan/known_ways": self.known_ways}

    def get_checkpoint_state(self) -> dict[str, Any]:
        """
        Return the state of plan, sampler and exploration.

        :return: a dictionary of plain data and arrays. Arrays are not copied, so write it before
            training goes on
        """
        return {
            "plan": self.plan.get_checkpoint_state(),
            "sampler": self.sampler.get_checkpoint_state(),
            "exploration": self.exploration.get_checkpoint_state(),
            "planned_at": self.planned_at,
            "known_ways": self.known_ways,
            "goals_to_exchange": self._goals_to_exchange,
            "planned_last": self._planned_last,
            "is_discovering": self.is_discovering,
            "looked_at": self._looked_at,
        }

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Restore a saved state.

        :param state: what :meth:`get_checkpoint_state` returned
        """
        self.plan.set_checkpoint_state(state["plan"])
        self.sampler.set_checkpoint_state(state["sampler"])
        self.exploration.set_checkpoint_state(state["exploration"])
        self.planned_at = state["planned_at"]
        self.known_ways = state["known_ways"]
        self._goals_to_exchange = state["goals_to_exchange"]
        self._planned_last = state["planned_last"]
        self.is_discovering = state["is_discovering"]
        self._looked_at = tuple(state["looked_at"])


def plan_bytes(max_plan_bytes: int | None) -> int:
    """
    Return the memory that a plan may take.

    :param max_plan_bytes: what the user gave, in bytes. None: 4 GiB, or half of the available
        memory, if that is less
    :return: bytes
    :raises ValueError: if it is not a positive whole number
    """
    if max_plan_bytes is None:
        max_plan_bytes = max(min(_DEFAULT_PLAN_BYTES, share_of_memory(0.5)), 1)
    return check_count("max_plan_bytes", max_plan_bytes, floats=True)


def _known_share(best: NDArray[np.signedinteger[Any]]) -> float:
    """Return the share of pairs of state and goal for which a best action is known."""
    parts = range(0, len(best), _STATES_AT_A_TIME)
    counts = [np.count_nonzero(best[row : row + _STATES_AT_A_TIME] >= 0) for row in parts]
    n_known = int(np.sum(counts))
    return n_known / max(best.size, 1)
