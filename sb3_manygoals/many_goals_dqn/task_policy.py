"""A policy for a task: towards rewarded observations, by the values of a universal value function."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import PyTorchObs

from sb3_manygoals.action_masks import check_action_masks
from sb3_manygoals.goals import UNKNOWN, GoalBuffer
from sb3_manygoals.goals.buffer import check_one_hot
from sb3_manygoals.goals.table import ObservationTable
from sb3_manygoals.many_goals_dqn.planning import ReplayModel
from sb3_manygoals.many_goals_dqn.replay_buffer import ManyGoalsReplayBuffer
from sb3_manygoals.networks import UniversalQNetwork
from sb3_manygoals.validation import check_number

Reward = Callable[[NDArray[Any]], ArrayLike] | ArrayLike

_FARTHEST = math.exp(-3.0)  # least discount of a goal that counts as reachable, as in plans
_ALIKE = 1e-6  # costs of a step that differ by no more are one
_BATCH = 4_096  # goals embedded at a time
_TOLERANCE = 1e-9  # of the highest reward: value iteration stops once no value changes by more
_SWEEPS = 10_000


class TaskPolicy(BasePolicy):
    r"""
    Acts towards the goal with the highest discounted reward, :math:`\max_{a, g} r_g \gamma^{d(s, a, g) - 1}`, at the distance
    *d*, in steps, that the values of a universal value function tell. The goal is chosen anew at each step. See
    :meth:`ManyGoalsDQN.task_policy <sb3_manygoals.ManyGoalsDQN.task_policy>`, which makes one from a copy of the network.

    :param goals: rewarded observations, shape (G, *observation_space.shape), and ``rewards``, positive, of each, shape (G,)
    :param values: discount, value of a goal reached, and reward of a step, with which ``q_net`` was trained
    :param gamma: discount of the task
    :param table: states and the action to take in each, -1 for that of the network; shape (S,); or None
    """

    action_space: spaces.Discrete
    _embedded: th.Tensor
    _rewards: th.Tensor

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Discrete,
        q_net: UniversalQNetwork,
        goals: NDArray[Any],
        rewards: NDArray[Any],
        values: tuple[float, float, float],
        gamma: float,
        table: tuple[ObservationTable, NDArray[np.int64]] | None = None,
    ) -> None:
        super().__init__(observation_space, action_space)
        self.table = table
        self.q_net = q_net.requires_grad_(False).eval()
        self.goals, self.rewards, self.values, self.gamma = goals, rewards, values, gamma
        device = next(q_net.parameters()).device
        with th.no_grad():
            parts = [
                th.as_tensor(goals[row : row + _BATCH], device=device)
                for row in range(0, len(goals), _BATCH)
            ]
            embedded = th.cat([q_net.goal_embedding(q_net.trunk(part)) for part in parts])
        self.register_buffer("_embedded", embedded, persistent=False)
        self.register_buffer(
            "_rewards", th.as_tensor(rewards, dtype=th.float32, device=device), persistent=False
        )
        self._power = _power(gamma, values[0])

    def action_values(
        self, observations: th.Tensor, masks: th.Tensor | None = None
    ) -> tuple[th.Tensor, th.Tensor]:
        """The best goal of each of B observations, as a row of ``goals``; its values of all actions, shape (B, A)."""
        gamma, goal_reward, step_reward = self.values
        q = self.q_net.pairwise(
            self.q_net.state_embedding(self.q_net.trunk(observations)), self._embedded
        )
        if masks is not None:
            q = q.masked_fill(~masks[:, None], -th.inf)
        unreachable = step_reward / (1.0 - gamma)
        # a value is unreachable + (goal_reward - unreachable) * gamma ** (steps - 1), and linear in the power, so that its
        # mean over chance is told too
        discounts = (q.amax(dim=2) - unreachable) / (goal_reward - unreachable)
        worth = th.where(
            discounts > _FARTHEST,
            self._rewards * discounts.clamp(min=_FARTHEST) ** self._power,
            0.0,
        )
        best = (worth + 1e-9 * discounts).argmax(dim=1)  # the nearest one if all are out of reach
        return best, q[th.arange(len(q), device=q.device), best]

    def _predict(self, observation: PyTorchObs, deterministic: bool = True) -> th.Tensor:
        assert isinstance(observation, th.Tensor)
        return self.action_values(observation)[1].argmax(dim=1)

    @th.no_grad()
    def predict(
        self,
        observation: NDArray[Any] | dict[str, NDArray[Any]],
        state: tuple[NDArray[Any], ...] | None = None,
        episode_start: NDArray[Any] | None = None,
        deterministic: bool = False,
        action_masks: NDArray[Any] | None = None,
    ) -> tuple[NDArray[Any], tuple[NDArray[Any], ...] | None]:
        """
        :param observation: one of the environment without goals, or a batch
        :param action_masks: actions allowed, shape (A,) or (n, A), None for all, as in sb3-contrib
        :return: greedy actions, int64, of shape (n,), a NumPy integer for one observation, and
            ``state``, which is not used
        :raises ValueError: if the observation is not of this space, or masks do not fit it or allow no action
        """
        if isinstance(observation, dict):
            raise ValueError(
                f"observation must be an array, one of {self.observation_space}, got a dict"
            )
        check_one_hot(self.observation_space, np.asarray(observation), "observation")
        tensor, vectorized = self.obs_to_tensor(observation)
        assert isinstance(tensor, th.Tensor)
        masks = None
        if action_masks is not None:
            allowed = check_action_masks(action_masks, len(tensor), int(self.action_space.n))
            masks = th.as_tensor(allowed, device=self.device)
        actions = self.action_values(tensor, masks)[1].argmax(dim=1).cpu().numpy()
        if self.table is not None:
            states, planned = self.table
            ids = states.ids(
                tensor.cpu().numpy().astype(self.goals.dtype, copy=False)
            )  # with the channels where they belong
            told = (ids != UNKNOWN) & (planned[ids] >= 0)
            if masks is not None:
                told &= allowed[np.arange(len(ids)), planned[ids]]
            actions[told] = planned[ids[told]]
        return actions if vectorized else actions[0], state

    def _get_constructor_parameters(self) -> dict[str, Any]:
        names = (
            "observation_space",
            "action_space",
            "q_net",
            "goals",
            "rewards",
            "values",
            "gamma",
            "table",
        )
        return {name: getattr(self, name) for name in names}


def _power(gamma: float, own: float) -> float:
    """The discounts of a task as a power of the network's. With gamma 1 the nearer one of equal rewards is preferred, too."""
    return 1.0 if gamma == own else max(math.log(gamma) / math.log(own), 1e-3)


class OutcomeRewards(NamedTuple):
    """What a task pays for each outcome of an action that a model of the world knows."""

    on: NDArray[np.float64]
    """Of the entries of ``model.on``, in their order; a reward above 0 ends the task."""
    ends: NDArray[np.float64]
    """Of the entries of ``model.ends``, which may be negative."""


def planned_actions(
    model: ReplayModel, rewards: OutcomeRewards | NDArray[np.float64], gamma: float
) -> NDArray[np.int64]:
    """
    Actions that maximize the expected discounted reward of a task that ends at its first reward, by value iteration.

    :param model: of the world, with S states
    :param rewards: of the model's outcomes; or of arriving at each state, at least 0, shape ``(S,)``
    :param gamma: discount factor, in (0, 1)
    :return: an action for each state, -1 where no way to a reward is known, shape ``(S,)``
    """
    if not isinstance(rewards, OutcomeRewards):
        rewards = OutcomeRewards(rewards[model.on.indices], rewards[model.ends.indices])
    paid = rewards.on > 0.0
    n_pairs = model.on.shape[0]
    at_once = np.zeros(n_pairs)  # the expected reward of each pair of state and action
    for chances, worth in ((model.on, np.where(paid, rewards.on, 0.0)), (model.ends, rewards.ends)):
        pairs = np.repeat(np.arange(n_pairs), np.diff(chances.indptr))
        at_once += np.bincount(pairs, weights=chances.data * worth, minlength=n_pairs)
    unpaid = np.where(paid, 0.0, model.on.data)
    going_on = csr_array((unpaid, model.on.indices, model.on.indptr), shape=model.on.shape)
    values = np.zeros(model.n_states)
    tolerance = _TOLERANCE * max(rewards.on.max(initial=0.0), np.abs(rewards.ends).max(initial=0.0))
    for _ in range(_SWEEPS):
        # 0 for actions that were not tried
        found = (at_once + gamma * (going_on @ values)).reshape(-1, model.n_actions)
        change = np.abs(found.max(axis=1) - values).max()
        values = found.max(axis=1)
        if change <= tolerance:
            break
    else:
        message = f"the values of the task were still changing after {_SWEEPS} sweeps of its plan"
        warnings.warn(message, stacklevel=4)
    return np.where(values > 0.0, found.argmax(axis=1), -1)


Task = tuple[NDArray[np.int64], NDArray[np.float64]]
"""Rewarded goals by their ids, and what is discounted of each by its distance, both of shape ``(n,)``."""


def _told(goals: GoalBuffer, reward: Reward) -> Task:
    told = np.asarray(reward(goals.observations) if callable(reward) else reward)
    if told.shape != (len(goals),) or told.dtype.kind not in "biuf":
        expected = (
            f"numbers of shape {(len(goals),)}, one for each of model.goal_buffer.observations"
        )
        raise ValueError(
            f"reward must {'return' if callable(reward) else 'be'} {expected}, got {told.dtype} of {told.shape}"
        )
    rewards = told.astype(np.float64)
    wrong = rewards[~((rewards >= 0.0) & np.isfinite(rewards))]
    if len(wrong):
        raise ValueError(
            f"reward must be finite and not negative, as a policy towards goals avoids nothing, got {wrong[:3]}"
        )
    ids = np.flatnonzero(rewards)
    if len(ids) == 0:
        held_out = ". Held-out observations cannot be goals" if goals.has_held_out else ""
        raise ValueError(
            f"reward must be positive for a known observation, it is 0 for all {len(goals)}{held_out}"
        )
    return ids, rewards[ids]


def _remembered(goals: GoalBuffer, gamma: float) -> Task:
    """The rewards of a task by what the goal buffer counted: the mean reward on arriving at each goal."""
    rewards = np.nan_to_num(goals.rewards)
    arrivals, _, ended = goals.labels[: len(goals)].T
    # an end without reward is a failure to the values already, whatever it costs
    cost = _cost_of_step(rewards[(arrivals > 0) & (ended < arrivals)], gamma)
    worth = _worth(rewards, cost, gamma)
    ids = np.flatnonzero((worth > 0.0) & ((rewards > 0.0) | (ended > 0)))
    _warn_of_rewards(goals, len(ids), int((ended[ids] < arrivals[ids]).sum()))
    return ids, worth[ids]


def _remembered_outcomes(
    replay: ManyGoalsReplayBuffer, goals: GoalBuffer, model: ReplayModel, gamma: float
) -> tuple[Task, OutcomeRewards]:
    """
    The rewards of a task by what the replay memory counted: the mean reward of each outcome of an action.

    :return: the goals to which rewarded transitions led, with the mean of what these are worth; what each outcome of the
        model is worth
    """
    assert replay.states is not None
    rows, counts = replay.outcomes()
    rewards = replay.reward_sums() / counts
    ended = rows[:, 3] > 0
    cost = _cost_of_step(rewards[~ended], gamma)
    worth = _worth(rewards, cost, gamma)
    worth[~ended & (rewards <= 0.0)] = 0.0  # the task goes on
    goal_ids = goals.ids(replay.states.observations)[rows[:, 2]]
    worth[(goal_ids == UNKNOWN) & (worth > 0.0)] = 0.0  # what is held out is not gone for
    paid = worth > 0.0
    ids, place = np.unique(goal_ids[paid], return_inverse=True)
    sums = np.bincount(place, weights=(worth * counts)[paid])
    _warn_of_rewards(goals, len(ids), len(np.unique(goal_ids[paid & ~ended])))
    task = ids, sums / np.bincount(place, weights=counts[paid])

    keys = _keys(rows[:, 0] * model.n_actions + rows[:, 1], rows[:, 2], rows[:, 3])
    order = np.argsort(keys)
    found = []
    for number, chances in enumerate((model.on, model.ends)):
        pairs = np.repeat(np.arange(chances.shape[0]), np.diff(chances.indptr))
        wanted = _keys(pairs, chances.indices, np.full(len(pairs), number))
        found.append(worth[order][np.searchsorted(keys[order], wanted)])
    return task, OutcomeRewards(*found)


def _keys(
    pairs: NDArray[np.integer[Any]],
    next_states: NDArray[np.integer[Any]],
    ended: NDArray[np.integer[Any]],
) -> NDArray[np.int64]:
    """A number for each outcome of a pair of state and action."""
    return pairs.astype(np.int64) << 32 | next_states.astype(np.int64) << 1 | ended.astype(np.int64)


def _cost_of_step(rewards: NDArray[np.float64], gamma: float) -> float:
    """The reward, 0 or negative, of each step that is not rewarded. A ValueError if it is not the same everywhere."""
    costs = rewards[rewards <= 0.0]
    cost = float(costs.min(initial=0.0))
    if cost < 0.0 and np.ptp(costs) > _ALIKE * -cost:
        raise ValueError(
            f"negative rewards differ, from {cost:g} to {costs.max():g} a step: a policy towards goals avoids no observation "
            "that does not end the episode. To do without them: reward=np.fmax(model.goal_buffer.rewards, 0)"
        )
    if cost < 0.0 and gamma == 1.0:
        raise ValueError(
            f"gamma must be less than 1 where each step has a reward of {cost:g}, got 1"
        )
    return cost


def _worth(rewards: NDArray[np.float64], cost: float, gamma: float) -> NDArray[np.float64]:
    """What is discounted of rewards by the way there, if each step on it costs something."""
    # A reward is worth cost / (1 - gamma) + (reward - cost / (1 - gamma)) * gamma ** (steps - 1).
    return rewards - cost / (1.0 - gamma) if cost else rewards.copy()


def _warn_of_rewards(goals: GoalBuffer, n_rewarded: int, n_on_the_way: int) -> None:
    """A ValueError if there are none; warnings of those that are not pursued, and of those that end nothing."""
    elsewhere = goals.labels[UNKNOWN, 1]
    where = "observations that are no goals, as they were held out or the goal buffer was full"
    if n_rewarded == 0:
        found = f", but a sum of {elsewhere:g} on arriving at {where}" if elsewhere > 0.0 else ""
        none = f"of {len(goals)} known observations none had a positive mean reward"
        raise ValueError(
            f"no reward is known: {none}{found}. Let the model learn until it meets one, or give reward="
        )
    if elsewhere > 0.0:
        message = f"rewards with a sum of {elsewhere:g} are not pursued: they were for {where}"
        warnings.warn(message, stacklevel=5)
    if n_on_the_way:
        warnings.warn(
            f"{n_on_the_way} of {n_rewarded} rewarded observations did not always end the episode: the policy goes for the "
            "next reward, and stays there if it can, it does not maximize the sum of rewards",
            stacklevel=5,
        )


def make_task_policy(
    q_net: UniversalQNetwork,
    goals: GoalBuffer,
    action_space: spaces.Discrete,
    values: tuple[float, float, float],
    reward: Reward | None,
    gamma: float | None,
    memory: tuple[ManyGoalsReplayBuffer, bool] | None,
) -> TaskPolicy:
    """
    See ``ManyGoalsDQN.task_policy``; ``values`` as of :class:`TaskPolicy`; ``memory`` is to plan in, and whether as if each
    action had its most frequent outcome.
    """
    gamma = values[0] if gamma is None else check_number("gamma", gamma, "(0, 1]")
    if values[0] == 0.0:
        raise ValueError("a model with gamma=0 knows no distances, so it has no policy for tasks")
    if len(goals) == 0:
        raise ValueError("no reward is known: the model has met no observation yet")
    space = goals.observation_space
    if memory is None:
        ids, worth = _remembered(goals, gamma) if reward is None else _told(goals, reward)
        return TaskPolicy(
            space, action_space, copy.deepcopy(q_net), goals[ids], worth, values, gamma, None
        )
    replay, likeliest = memory
    assert replay.states is not None
    model = ReplayModel.of(replay)
    if likeliest:
        model = model.likeliest()
    rewards: OutcomeRewards | NDArray[np.float64]
    if reward is None:
        (ids, worth), rewards = _remembered_outcomes(replay, goals, model, gamma)
    else:
        ids, worth = _told(goals, reward)
        states = replay.states.ids(goals[ids])
        met = states != UNKNOWN
        rewards = np.zeros(model.n_states)
        rewards[states[met]] = worth[met]
    actions = planned_actions(model, rewards, values[0] ** _power(gamma, values[0]))
    table = ObservationTable(space, len(actions))
    table.add(replay.states.observations[: len(actions)])
    return TaskPolicy(
        space,
        action_space,
        copy.deepcopy(q_net),
        goals[ids],
        worth,
        values,
        gamma,
        (table, actions),
    )
