"""What an update learns from, and values bootstrapped by a target network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
import torch as th
from numpy.typing import NDArray
from stable_baselines3.common.utils import get_parameters_by_name, polyak_update

from sb3_manygoals.checkpoint.added import begin_attributes, note_attributes
from sb3_manygoals.goals import UNKNOWN, GoalBuffer
from sb3_manygoals.losses import (
    near_weights,
    nearness,
    pairwise_td_loss,
    pairwise_td_targets,
    pursued_weights,
    widen_action_gaps,
)
from sb3_manygoals.many_goals_dqn.fixed_parts import FixedParts
from sb3_manygoals.many_goals_dqn.policies import ManyGoalsPolicy
from sb3_manygoals.many_goals_dqn.replay_buffer import (
    OWN_GOAL,
    ManyGoalsReplayBuffer,
    ManyGoalsSamples,
)
from sb3_manygoals.validation import check_number
from sb3_manygoals.world import WorldModel

GoalSampling = Literal["uniform", "segments", "behavior"]

# Consecutive transitions in a segment of the replay memory.
_SEGMENT_LENGTH = 4
# Where goals of other episodes are out of reach, so many segments in a row are of one episode.
_SEGMENTS_PER_EPISODE = 4
# The weight of a pair falls by this factor for each step to the goal.
_NEAR_DECAY = 0.75
# This share of the weight of a pair is by its target at the beginning of training. It falls
# linearly, and is 0 at the end.
_TARGET_SHARE = 0.5
# Targets of other actions than the best ones are lowered by this share of their difference.
_ACTION_GAP = 0.5
# The share falls by this factor for each step to the goal.
_GAP_DECAY = 0.95
# Where goals are places, so much of all weight is on pairs of a transition and the goal that was
# pursued in it.
_PURSUED_SHARE = 0.5
# Of the goals of an update, at most one of so many was pursued in its segments.
_GOALS_PER_PURSUED = 4


class UpdateBatch(NamedTuple):
    """The data of one update: S states and G goals."""

    observations: th.Tensor
    """Observations of the states, shape (S, *observation_space.shape)."""
    goals: th.Tensor
    """The goals, shape (G, *goal_space.shape). By default, goals are observations."""
    goal_ids: th.Tensor
    """Ids of the goals, -1 for unknown ones, shape (G,)."""
    samples: ManyGoalsSamples | None = None
    """The S transitions that begin in the states. None if targets do not read transitions."""
    state_ids: th.Tensor | None = None
    """Ids of the states, shape (S,). None if targets do not need them."""
    goal_of_state: th.Tensor | None = None
    """
    The place, among the G goals, of the goal on the way to which each state was sampled, -1 for
    random states, shape (S,). None if states were not sampled so.
    """
    pursued: th.Tensor | None = None
    """
    Which of the goals were pursued when the transition was made, bool, shape (S, G). False for
    goals that are in the update for another reason. If each transition has a goal of its own,
    whether it is known which one was pursued, shape (S,). None if targets do not ask.
    """


@dataclass(frozen=True)
class TargetContext:
    """The parts of a ManyGoalsDQN that targets use."""

    policy: ManyGoalsPolicy
    """The policy, with the networks."""
    replay_buffer: ManyGoalsReplayBuffer
    """The replay memory. It is empty if targets do not read transitions."""
    goal_buffer: GoalBuffer
    """The known goals."""
    world: WorldModel
    """The model of the world, with the states that were met and the counts of transitions."""
    gamma: float
    """Discount factor, in [0, 1)."""
    goal_reward: float
    """Reward of a transition that reaches its goal."""
    step_reward: float
    """Reward of every other transition."""
    tau: float = 0.05
    """Step of an update of the target network. 1.0 copies the weights."""
    target_update_interval: int | None = None
    """
    Environment steps between two updates of the target network. None: it is updated after each
    update of the trained network.
    """
    seed: int | None = None
    """Seed of random numbers that targets draw. None: other random numbers in every run."""

    @property
    def gamma_and_rewards(self) -> tuple[float, float, float]:
        """``gamma``, ``goal_reward`` and ``step_reward``, in the order of the losses' arguments."""
        return self.gamma, self.goal_reward, self.step_reward


class Targets(ABC):
    """
    Samples the data of updates and computes their losses. A subclass can be given to ManyGoalsDQN
    as ``target_class``. Its arguments, without the context, are ``target_kwargs``.

    :param context: the parts of the ManyGoalsDQN that targets use
    """

    initial_value: float = 0.0
    """The network's values of all states, actions and goals begin near this number."""
    uses_target_network: ClassVar[bool] = True
    """Whether targets read and update ``policy.q_net_target``. If not, it is None."""
    uses_replay_buffer: ClassVar[bool] = True
    """Whether targets read transitions. If not, none are stored."""
    updates_per_step: ClassVar[float] = 0.04
    """Updates for each environment step, if the user says nothing about it."""

    def __init__(self, context: TargetContext) -> None:
        begin_attributes(self)
        self.context = context
        note_attributes(self)

    @property
    def uses_behavior_goals(self) -> bool:
        """Whether targets read the goals that were pursued. If not, some are not stored."""
        return False

    @property
    def restandardizes(self) -> bool:
        """
        Whether inputs are standardized anew each time twice as many states are known. This changes
        the network's values a little. If not, they are standardized once, before the first update.
        """
        return False

    @property
    def leaves_circles(self) -> bool:
        """
        Whether an agent that acts by the network takes random actions where it goes in circles. If
        not, it is only epsilon-greedy.
        """
        return False

    @abstractmethod
    def sample(
        self, batch_size: int, goal_batch_size: int, rng: np.random.Generator
    ) -> UpdateBatch:
        """
        Sample the data of an update.

        :param batch_size: number of states, S
        :param goal_batch_size: number of goals, G
        :param rng: random generator
        :return: the data, on the policy's device
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
        :return: losses, shape (G,), one for each of ``batch.goal_ids``
        """

    def before_updates(self, progress: float) -> None:  # noqa: B027 - need not be overridden
        """
        Prepare the updates that follow a rollout. By default nothing is done.

        :param progress: share of training that is done, from 0 to 1
        """

    def after_step(self, num_timesteps: int, n_envs: int) -> None:  # noqa: B027
        """
        Do what is due after a step of the environments, once learning has started. By default
        nothing is done.

        :param num_timesteps: number of steps so far, of all environments together
        :param n_envs: number of environments
        """

    def after_update(self) -> None:  # noqa: B027 - need not be overridden
        """Do what is due after an update of the network. By default nothing is done."""

    def exploring_share(self, progress_remaining: float) -> float:
        """
        Return the share of goal episodes that explore, for targets that act.

        :param progress_remaining: share of training that is left, from 1 to 0
        :return: the share, from 0 to 1; 0.0 for targets that do not act
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
        :param explores: whether each environment explores, shape (n,)
        :param rng: random generator
        :param action_masks: whether each action is allowed, shape (n, A). None: all are
        :return: actions, shape (n,). None if the learner shall act epsilon-greedily by the
            network, and leave circles if :attr:`leaves_circles` says so
        """
        return None

    def describe(self) -> dict[str, float]:
        """
        Return numbers for the log.

        :return: the numbers by their names in the log
        """
        return {}

    def get_checkpoint_state(self) -> dict[str, Any]:
        """
        Return the state of the targets.

        A subclass that does not override this method has the attributes that it adds in
        checkpoints, too, if they are plain data, arrays, NumPy's random generators, or tensors that
        are not trained. What the constructor makes again is left out: parts of the model, what
        never changes, and functions that refer only to these. A warning names all others. A
        subclass that overrides this method and :meth:`set_checkpoint_state` saves what it adds
        itself.

        :return: a dictionary of plain data and arrays. Arrays need not be copies, so write it
            before training goes on
        """
        return {}

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:  # noqa: B027
        """
        Restore a saved state.

        :param state: what :meth:`get_checkpoint_state` returned
        """


class TDTargets(Targets):
    """
    One-step targets of a target network, as in the paper, see
    :func:`~sb3_manygoals.losses.pairwise_td_targets`. ``tau`` and ``target_update_interval`` of the
    ManyGoalsDQN determine how the target network follows.

    By default, an update has segments of four consecutive transitions, and its goals are where the
    transitions led. So each state sees the goals that lie ahead on its own path, as with
    hindsight (Andrychowicz et al. 2017), and those on all other paths of the update. Pairs that are
    near each other weigh most (:func:`~sb3_manygoals.losses.near_weights`): values of goals far
    away are bootstrapped from theirs.

    By default, targets of actions that are not the best ones are lowered, so that errors of the
    network seldom make them look best (:func:`~sb3_manygoals.losses.widen_action_gaps`, advantage
    learning by Bellemare et al. 2016).

    If goals are places, floats that are reached within a distance, up to a quarter of the goals of
    an update are those that were pursued in its segments, and half of all weight is on transitions
    paired with their own pursued goal (:func:`~sb3_manygoals.losses.pursued_weights`). Such goals
    come from sensors, which may show ways that there are not.

    If nearly all goals of other episodes are out of reach, as where each episode has walls of its
    own, segments come in groups of four, and each group is of one episode. So more pairs of an
    update have a goal that can be reached. Parts of goals that no transition changes tell it.

    With segments, inputs are standardized anew each time twice as many states are known, or with
    ``goals_in_replay`` twice as many transitions. And actions are random with probability 1/2 in a
    state in which the agent has already acted on the way to its goal, unless the exploration rate
    is 0. In a world without chance, greedy actions may lead it round in circles. Once an action has
    led from one state to different states, this ends. With ``goals_in_replay``, no such state is
    known.

    :param context: the parts of the ManyGoalsDQN that targets use
    :param goal_sampling: the goals of an update. "segments": the distinct next observations of
        segments of the replay memory, filled up with goals that are drawn uniformly. "uniform":
        drawn from the known goals, as in the paper. "behavior", the paper's on-policy baseline:
        each transition teaches only the goal that was pursued when it was made. With the last two,
        transitions are drawn one by one
    :param initial_value: the number near which the network's values begin. None: with the distance
        head it is the value of a goal reached, because this head hardly learns greater ones. With
        the bilinear head it is the value of a goal that is never reached,
        ``step_reward / (1 - gamma)``. Values would first sink to it if few goals are reached in an
        update
    :param near_decay: ``decay`` of :func:`~sb3_manygoals.losses.near_weights`, in (0, 1]. 1.0: all
        pairs have equal weights. None: 0.75 with "segments", else 1.0, as in the paper. Weights are
        equal also if never reaching a goal is worth as much as reaching it
    :param near_floor: ``floor`` of the same function, greater than 0. It is small, because far more
        goals may be out of reach than within, as where layouts are drawn anew. Their pairs weigh
        only this much
    :param pursued_share: ``share`` of :func:`~sb3_manygoals.losses.pursued_weights`, in [0, 1),
        with "segments". 0.0: the goals that were pursued have no part in an update. They have none
        with ``goals_in_replay``, where goals are forgotten, and where an update has fewer than four
        goals. None: 0.5 if goals are floats that are reached within a distance, or by a function
        that says so, else 0.0
    :param action_gap: ``share`` of :func:`~sb3_manygoals.losses.widen_action_gaps` at the goal, in
        [0, 1). It falls by a twentieth for each step to the goal. 0.0: targets are as in the paper.
        None: 0.5 with "segments", else 0.0. With action masks it is not used, because a transition
        does not say which actions were allowed in its first state. Nor is it used if ``gamma`` is
        0, or never reaching a goal is worth as much as reaching it: no goal is near then
    :raises ValueError: if an argument is out of its range
    """

    updates_per_step = 0.3

    def __init__(
        self,
        context: TargetContext,
        goal_sampling: GoalSampling = "segments",
        initial_value: float | None = None,
        near_decay: float | None = None,
        near_floor: float = 0.001,
        pursued_share: float | None = None,
        action_gap: float | None = None,
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
        if near_decay is None:
            near_decay = _NEAR_DECAY if goal_sampling == "segments" else 1.0
        self.near_decay = check_number("near_decay", near_decay, above=0, at_most=1)
        self.near_floor = check_number("near_floor", near_floor, above=0)
        if pursued_share is None:
            pursued_share = _PURSUED_SHARE if context.goal_buffer.goals_are_places else 0.0
        self.pursued_share = check_number("pursued_share", pursued_share, at_least=0, below=1)
        if action_gap is None:
            action_gap = _ACTION_GAP if goal_sampling == "segments" else 0.0
        self.action_gap = check_number("action_gap", action_gap, at_least=0, below=1)
        # The share of training that is done.
        self._progress = 0.0
        self._fixed_parts = FixedParts()
        note_attributes(self)

    @property
    def uses_behavior_goals(self) -> bool:
        """Whether the goals that were pursued have a part in updates."""
        if self.goal_sampling == "segments":
            return self.pursued_share > 0.0 and self.context.goal_buffer.remembers_goals
        return self.goal_sampling == "behavior"

    @property
    def restandardizes(self) -> bool:
        """
        Whether inputs are standardized anew each time twice as many states are known.

        Learning begins when few states are known. An element that had one value in nearly all of
        them would stay far too large or too small. The paper's recipe standardizes once.
        """
        return self.goal_sampling == "segments"

    @property
    def leaves_circles(self) -> bool:
        """
        Whether an agent that acts by the network takes random actions where it goes in circles.

        Where nothing is left to chance, greedy actions may lead round and round, and never to the
        goal. The learner does so only until it sees chance. The paper's agent is only
        epsilon-greedy.
        """
        return self.goal_sampling == "segments"

    def before_updates(self, progress: float) -> None:
        """
        Note how much of training is done. Weights of pairs depend on it, so a subclass that
        overrides this calls it.

        :param progress: share of training that is done, from 0 to 1
        """
        self._progress = progress

    def get_checkpoint_state(self) -> dict[str, Any]:
        """Return what is known of fixed parts of goals. The share of training done is told anew."""
        return {"fixed_parts": self._fixed_parts.get_checkpoint_state()}

    def set_checkpoint_state(self, state: dict[str, Any]) -> None:
        """
        Restore what is known of fixed parts of goals.

        :param state: what :meth:`get_checkpoint_state` returned
        """
        self._fixed_parts = FixedParts()
        # Checkpoints of earlier versions do not have it.
        if "fixed_parts" in state:
            self._fixed_parts.set_checkpoint_state(state["fixed_parts"])

    def after_update(self) -> None:
        """Let the target network follow, unless it is updated at intervals."""
        if self.context.target_update_interval is None:
            self._update_target_network()

    def after_step(self, num_timesteps: int, n_envs: int) -> None:
        """
        Update the target network, if it is updated at intervals and one has passed.

        :param num_timesteps: number of steps so far, of all environments together
        :param n_envs: number of environments
        """
        interval = self.context.target_update_interval
        if interval is not None and num_timesteps // interval != (
            (num_timesteps - n_envs) // interval
        ):
            self._update_target_network()

    def _update_target_network(self) -> None:
        """Move the target network towards the trained one."""
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
        :param goal_batch_size: number of goals, G. With ``goal_sampling="behavior"`` it is not
            used, and there are S goals
        :param rng: random generator, for goals and segments. The replay memory draws single
            transitions
        :return: the data, with the transitions, on the policy's device
        """
        if self.goal_sampling == "segments":
            return self._sample_segments(batch_size, goal_batch_size, rng)
        goal_buffer = self.context.goal_buffer
        device = self.context.policy.device
        samples: Any = self.context.replay_buffer.sample(batch_size)
        pursued = None
        if self.goal_sampling == "behavior":
            ids, goals = self._pursued_in(samples, rng)
            pursued = th.as_tensor(ids != UNKNOWN, device=device)
            ids[ids == OWN_GOAL] = UNKNOWN
        else:
            ids = goal_buffer.sample_ids(goal_batch_size, rng)
            goals = goal_buffer.sample_shown(ids, rng)
        return UpdateBatch(
            samples.observations,
            th.as_tensor(goals, device=device),
            th.as_tensor(ids, device=device),
            samples=samples,
            pursued=pursued,
        )

    def _sample_segments(
        self, batch_size: int, goal_batch_size: int, rng: np.random.Generator
    ) -> UpdateBatch:
        """
        Sample segments. First among the goals are where their transitions led, and last those that
        were pursued in them. Between these are goals that are drawn uniformly.
        """
        goal_buffer = self.context.goal_buffer
        replay_buffer = self.context.replay_buffer
        per_episode = 1
        if self._fixed_parts.are_in_the_way(replay_buffer, goal_buffer):
            per_episode = _SEGMENTS_PER_EPISODE
        samples = replay_buffer.sample_segments(batch_size, _SEGMENT_LENGTH, rng, per_episode)
        ids = goal_buffer.sample_ids(goal_batch_size, rng)
        goals = goal_buffer.sample_shown(ids, rng)
        met, labels = self._met_in(samples)
        distinct, places = np.unique(labels, return_index=True)
        chosen = rng.permutation(np.flatnonzero(distinct != UNKNOWN))[:goal_batch_size]
        met_ids = np.maximum(met[places[chosen]], UNKNOWN)
        ids[: len(chosen)] = met_ids
        next_observations = samples.next_observations[places[chosen]].cpu().numpy()
        goals[: len(chosen)] = goal_buffer.achieved(next_observations, met_ids)
        pursued = None
        if self.uses_behavior_goals:
            own_ids, own_goals = self._pursued_in(samples, rng)
            labels = self._labels(own_ids, own_goals)
            distinct, places = np.unique(labels, return_index=True)
            most = goal_batch_size // _GOALS_PER_PURSUED
            chosen = rng.permutation(np.flatnonzero(distinct != UNKNOWN))[:most]
            first = goal_batch_size - len(chosen)
            ids[first:] = np.maximum(own_ids[places[chosen]], UNKNOWN)
            goals[first:] = own_goals[places[chosen]]
            pursued = np.zeros((len(labels), goal_batch_size), np.bool_)
            pursued[:, first:] = labels[:, None] == distinct[chosen]
        device = self.context.policy.device
        return UpdateBatch(
            samples.observations,
            th.as_tensor(goals, device=device),
            th.as_tensor(ids, device=device),
            samples=samples,
            pursued=None if pursued is None else th.as_tensor(pursued, device=device),
        )

    def _met_in(self, samples: ManyGoalsSamples) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """
        Return the goal that each transition led to. A full goal buffer does not know all of them.

        :param samples: the transitions, S of them
        :return: the ids of the goals, ``OWN_GOAL`` for goals without one, and -1 for what is held
            out or not in the ``goal_list``; and numbers that are equal for equal goals, -1
            likewise. Both have the shape (S,)
        """
        goal_buffer = self.context.goal_buffer
        ids = samples.next_goal_ids.cpu().numpy().copy()
        without_id = np.flatnonzero(ids == UNKNOWN)
        if len(without_id) == 0 or not goal_buffer.takes_all_goals:
            return ids, ids
        met = goal_buffer.achieved(samples.next_observations[without_id].cpu().numpy())
        goals = np.zeros((len(ids), *met.shape[1:]), met.dtype)
        goals[without_id] = met
        ids[without_id[~goal_buffer.is_held_out(met)]] = OWN_GOAL
        return ids, self._labels(ids, goals)

    def _labels(self, ids: NDArray[np.int64], goals: NDArray[Any]) -> NDArray[np.int64]:
        """Return ids, with different numbers from ``OWN_GOAL`` down for goals without an id."""
        labels = ids.copy()
        is_own = ids == OWN_GOAL
        if is_own.any():
            labels[is_own] = OWN_GOAL - self.context.goal_buffer.number(goals[is_own])
        return labels

    def _pursued_in(
        self, samples: ManyGoalsSamples, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """
        Return the goal that was pursued in each transition.

        :param samples: the transitions, S of them
        :param rng: random generator
        :return: the ids that the goals have now, shape (S,), ``OWN_GOAL`` for goals without one,
            and -1 for transitions whose goal is not known or held out; and the goals, shape
            (S, *goal_space.shape)
        """
        goal_buffer = self.context.goal_buffer
        ids = samples.behavior_goal_ids.cpu().numpy().copy()
        goals = goal_buffer.sample_shown(np.maximum(ids, 0), rng)
        is_own = ids == OWN_GOAL
        if is_own.any():
            assert samples.behavior_goals is not None
            goals[is_own] = samples.behavior_goals.cpu().numpy()[is_own]
            # Goals that had no id when they were pursued may have one by now.
            ids_now = goal_buffer.ids(goals[is_own])
            ids_now[ids_now == UNKNOWN] = OWN_GOAL
            ids_now[goal_buffer.is_held_out(goals[is_own])] = UNKNOWN
            ids[is_own] = ids_now
        return ids, goals

    def target_values(self, batch: UpdateBatch) -> th.Tensor:
        """
        Return the targets of the taken actions.

        :param batch: data of the update
        :return: targets, shape (S, G). With ``goal_sampling="behavior"`` the shape is (S, 1): each
            transition has a target for its own goal only
        """
        samples = batch.samples
        assert samples is not None
        with th.no_grad():
            pairwise = self.goal_sampling != "behavior"
            # Masks say which actions are allowed in s', not which are in s.
            has_gaps = (
                self.action_gap > 0.0
                and self._values_tell_distances
                and samples.next_action_mask is None
            )
            target = self._target_network
            n = len(samples.next_observations)
            seen = samples.next_observations
            # Where in ``seen`` the observations of s are, if gaps are to be widened.
            places: th.Tensor | None = None
            if has_gaps:
                seen, places = _with_observations(samples)
            if pairwise:
                states, goals = target.embed(seen, batch.goals)
                next_values = target.pairwise_best(states[:n], goals, samples.next_action_mask)
            else:
                next_q = target(samples.next_observations, batch.goals)
                if samples.next_action_mask is not None:
                    next_q = next_q.masked_fill(~samples.next_action_mask, -th.inf)
                next_values = next_q.amax(dim=1, keepdim=True)
            achieved = self._are_reached(batch, pairwise).view(n, -1)
            targets = pairwise_td_targets(
                next_values, achieved, samples.terminated, *self.context.gamma_and_rewards
            )
            if places is None:
                return targets
            if pairwise:
                best = target.pairwise_best(states[places], goals)
                taken = target.pairwise_taken(states[places], goals, samples.actions)
            else:
                q = target(samples.observations, batch.goals)
                best = q.amax(dim=1, keepdim=True)
                taken = q.gather(1, samples.actions[:, None])
            return widen_action_gaps(targets, best, taken, self._gap_shares(best))

    def _gap_shares(self, best_values: th.Tensor) -> th.Tensor:
        """
        Return by which share of the gap to the best action the target of each pair is lowered.

        It is less, the farther the goal is. Far away, values and so their gaps are mostly errors
        until the nearer ones are right, and wider gaps would make more of these errors.

        :param best_values: values of the best actions, shape (S, G)
        """
        rewards = self.context.gamma_and_rewards
        return self.action_gap * nearness(best_values, _GAP_DECAY, *rewards)

    @property
    def _values_tell_distances(self) -> bool:
        """Whether values tell how far goals are: whether reaching a goal is worth more than not."""
        gamma, goal_reward, step_reward = self.context.gamma_and_rewards
        return gamma > 0.0 and step_reward < (1.0 - gamma) * goal_reward

    def _are_reached(self, batch: UpdateBatch, pairwise: bool) -> th.Tensor:
        """
        Return which transitions reach which goals.

        :param batch: data of the update
        :param pairwise: whether for all pairs, shape (S, G), or for each transition and the goal
            beside it, shape (S,)
        """
        samples = batch.samples
        assert samples is not None
        goal_buffer = self.context.goal_buffer
        if goal_buffer.tells_goals_by_ids:
            next_ids, goal_ids = self._comparable_ids(batch)
            return (next_ids[:, None] if pairwise else next_ids) == goal_ids
        ids = samples.next_goal_ids.cpu().numpy()
        achieved = goal_buffer.achieved(samples.next_observations.cpu().numpy(), ids)
        goals = batch.goals.cpu().numpy()
        achievement = goal_buffer.achievement
        find = achievement.reaches_each if pairwise else achievement.reaches
        return th.as_tensor(find(achieved, goals), device=batch.goals.device)

    def _comparable_ids(self, batch: UpdateBatch) -> tuple[th.Tensor, th.Tensor]:
        """
        Return the ids of what transitions led to, and those of goals. Where neither a goal nor what
        a transition led to has an id, there are numbers in their place. They are equal for equal
        goals.

        :param batch: data of the update
        :return: ids or numbers below -1, int64, shapes (S,) and (G,)
        """
        samples = batch.samples
        assert samples is not None
        next_ids = samples.next_goal_ids
        goal_ids = batch.goal_ids
        is_new = next_ids == UNKNOWN
        is_own = goal_ids == UNKNOWN
        # A goal without an id is not one that has an id.
        if not (bool(is_new.any()) and bool(is_own.any())):
            return next_ids, goal_ids
        goal_buffer = self.context.goal_buffer
        met = goal_buffer.achieved(samples.next_observations[is_new].cpu().numpy())
        own = batch.goals[is_own].cpu().numpy()
        numbers = OWN_GOAL - goal_buffer.number(np.concatenate([met, own]))
        next_ids = next_ids.clone()
        goal_ids = goal_ids.clone()
        of_new, of_own = np.split(numbers, [len(met)])
        next_ids[is_new] = th.as_tensor(of_new, device=next_ids.device)
        goal_ids[is_own] = th.as_tensor(of_own, device=goal_ids.device)
        return next_ids, goal_ids

    def losses(self, batch: UpdateBatch, target_values: th.Tensor) -> th.Tensor:
        """
        Return the paper's L(g) of each goal. Pairs have weights, unless ``near_decay`` is 1 and
        ``pursued_share`` is 0.

        :param batch: data of the update
        :param target_values: targets of the taken actions, from :meth:`target_values`
        :return: losses, shape (G,)
        """
        samples = batch.samples
        assert samples is not None
        net = self.context.policy.q_net
        if self.goal_sampling == "behavior":
            q = net(batch.observations, batch.goals).gather(1, samples.actions[:, None])
            # These are S goals with one transition each. Unknown goals are left out of the mean.
            known = batch.pursued
            assert known is not None
            weights = self._weights(q.T, target_values.T)
            weights = known.float() if weights is None else weights[0] * known
            # Their mean is 1, so that the loss is a mean over known goals.
            weights *= len(known) / weights.sum().clamp(min=1e-6)
            return pairwise_td_loss(q.T, target_values.T) * weights
        q = net.values_of_taken(batch.observations, samples.actions, batch.goals)
        weights = self._weights(q, target_values)
        if batch.pursued is not None:
            weights = pursued_weights(weights, batch.pursued, self.pursued_share)
        return pairwise_td_loss(q, target_values, weights)

    def _weights(self, values: th.Tensor, target_values: th.Tensor) -> th.Tensor | None:
        """
        Return weights of pairs by how near they are, None for equal ones.

        At the beginning of training, half of a weight is by the target, so that a way just found
        counts at once. Targets depend on chance: lucky outcomes weigh more than unlucky ones of the
        same action, and values become too high. So the other half is by the network's own value.
        The half by the target becomes less with time, and is 0 in the end, when ways are known.

        :param values: the network's values of pairs
        :param target_values: their targets, of the same shape
        """
        if self.near_decay == 1.0 or not self._values_tell_distances:
            return None
        by_value, by_target = (
            near_weights(each, self.near_decay, self.near_floor, *self.context.gamma_and_rewards)
            for each in (values.detach(), target_values)
        )
        share = _TARGET_SHARE * (1.0 - self._progress)
        return (1.0 - share) * by_value + share * by_target


def _with_observations(samples: ManyGoalsSamples) -> tuple[th.Tensor, th.Tensor]:
    """
    Return all observations s' and those observations s that are not the s' of the row before, as in
    a segment. Also return the row of each s among them. So a network sees few of them twice.
    """
    observations = samples.observations
    next_observations = samples.next_observations
    is_new = th.ones(len(observations), dtype=th.bool, device=observations.device)
    differs = observations[1:] != next_observations[:-1]
    # Observations of a Discrete space have no axes of their own.
    is_new[1:] = differs[..., None].flatten(1).any(dim=1)
    before = th.arange(len(observations), device=observations.device) - 1
    places = th.where(is_new, len(next_observations) + is_new.cumsum(dim=0) - 1, before)
    return th.cat([next_observations, observations[is_new]]), places
