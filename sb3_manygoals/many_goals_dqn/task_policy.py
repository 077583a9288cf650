"""A policy for a task: towards rewarded observations, by a universal value function or a plan."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import PyTorchObs

from sb3_manygoals.action_masks import check_action_masks
from sb3_manygoals.checkpoint.functions import can_be_pickled, identity_of
from sb3_manygoals.goals import GoalBuffer
from sb3_manygoals.goals.spaces import check_numbers
from sb3_manygoals.many_goals_dqn.transition_model import TransitionModel
from sb3_manygoals.networks import UniversalQNetwork
from sb3_manygoals.packing import as_packed, unpacked
from sb3_manygoals.validation import as_held, check_number, writable
from sb3_manygoals.world import UNKNOWN, ExactStates, KeyedStates, LearnedStates, WorldModel
from sb3_manygoals.world.model import outcome_keys

Reward = Callable[[Any], ArrayLike] | ArrayLike

# A goal with a smaller discount counts as unreachable, as in plans.
_LEAST_DISCOUNT = math.exp(-3.0)
# Costs of a step that differ by no more than this share are equal.
_EQUAL_COSTS = 1e-6
# Goals that are embedded at a time.
_GOALS_AT_A_TIME = 4_096
# Value iteration stops once no value changes by more than this share of the highest reward.
_TOLERANCE = 1e-9
_MOST_SWEEPS = 10_000


class GoalValues(NamedTuple):
    """What the values of a universal value function mean."""

    gamma: float
    """Discount factor with which it was trained."""
    goal_reward: float
    """Value of a goal that is reached."""
    step_reward: float
    """Reward of a step."""


class StateActions(NamedTuple):
    """A table of planned actions."""

    states: ExactStates
    """The states, S of them."""
    actions: NDArray[np.int64]
    """The action to take in each, -1 for that of the network, shape ``(S,)``."""


class TaskPolicy(BasePolicy):
    r"""
    Acts towards the goal with the highest discounted reward,
    :math:`\max_{a, g} r_g \gamma^{d(s, a, g) - 1}`, where d is the distance in steps that the
    values of a universal value function tell. The goal is chosen anew at each step. See
    :meth:`ManyGoalsDQN.task_policy <sb3_manygoals.ManyGoalsDQN.task_policy>`, which makes one.

    :param observation_space: space of observations without goals
    :param action_space: Discrete, A actions
    :param q_net: the network, which the policy keeps and does not train
    :param goals: rewarded goals, shape ``(G, *goal_space.shape)``
    :param rewards: reward of each, positive, shape ``(G,)``
    :param values: what the values of ``q_net`` mean
    :param gamma: discount factor of the task, in (0, 1]
    :param table: planned actions, which come before those of the network. None: there are none
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
        values: GoalValues,
        gamma: float,
        table: StateActions | None = None,
    ) -> None:
        super().__init__(observation_space, action_space)
        self.q_net = q_net.requires_grad_(False).eval()
        self.goals = goals
        self.rewards = rewards
        self.values = values
        self.gamma = gamma
        self.table = table
        device = next(q_net.parameters()).device
        with th.no_grad():
            embedded = []
            for row in range(0, len(goals), _GOALS_AT_A_TIME):
                part = th.as_tensor(goals[row : row + _GOALS_AT_A_TIME], device=device)
                goal_trunk = q_net.trunk if q_net.goal_trunk is None else q_net.goal_trunk
                embedded.append(q_net.goal_embedding(goal_trunk(part)))
        self.register_buffer("_embedded", th.cat(embedded), persistent=False)
        on_device = th.as_tensor(rewards, dtype=th.float32, device=device)
        self.register_buffer("_rewards", on_device, persistent=False)
        self._power = _power(gamma, values.gamma)

    def action_values(
        self, observations: th.Tensor, masks: th.Tensor | None = None
    ) -> tuple[th.Tensor, th.Tensor]:
        """
        Return the best goal of each observation and what the network tells of it.

        :param observations: shape ``(B, *observation_space.shape)``
        :param masks: actions allowed, bool, shape ``(B, A)``. None: all
        :return: rows of ``goals``, shape ``(B,)``; the values of all actions for them, shape
            ``(B, A)``
        """
        gamma, goal_reward, step_reward = self.values
        states = self.q_net.state_embedding(self.q_net.trunk(observations))
        q = self.q_net.pairwise(states, self._embedded)
        if masks is not None:
            q = q.masked_fill(~masks[:, None], -th.inf)
        unreachable = step_reward / (1.0 - gamma)
        # A value is unreachable + (goal_reward - unreachable) * gamma ** (steps - 1). It is linear
        # in the power, so it also tells the mean of the power where there is chance.
        discounts = (q.amax(dim=2) - unreachable) / (goal_reward - unreachable)
        powers = discounts.clamp(min=_LEAST_DISCOUNT) ** self._power
        worth = th.where(discounts > _LEAST_DISCOUNT, self._rewards * powers, 0.0)
        # If all goals are out of reach, the nearest one is the best.
        best = (worth + 1e-9 * discounts).argmax(dim=1)
        return best, q[th.arange(len(q), device=q.device), best]

    def _predict(self, observation: PyTorchObs, deterministic: bool = True) -> th.Tensor:
        """Return the network's actions."""
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
        Return greedy actions.

        :param observation: an observation without goals, or a batch of n
        :param state: not used
        :param episode_start: not used
        :param deterministic: not used
        :param action_masks: actions allowed, shape ``(A,)`` or ``(n, A)``, as in sb3-contrib. None:
            all
        :return: actions, int64, shape ``(n,)``, a NumPy integer for one observation; and ``state``
        :raises ValueError: if the observation is not of its space, a float in it is NaN or
            infinite, or masks do not fit it or allow no action
        """
        observation = as_packed(observation, self.observation_space)
        if isinstance(observation, dict):
            raise ValueError(
                f"observation must be an array, one of {self.observation_space}, got a dict"
            )
        check_numbers(self.observation_space, np.asarray(observation), "observation")
        tensor, vectorized = self.obs_to_tensor(writable(observation))
        assert isinstance(tensor, th.Tensor)
        allowed = None
        masks = None
        if action_masks is not None:
            allowed = check_action_masks(action_masks, len(tensor), int(self.action_space.n))
            masks = th.as_tensor(allowed, device=self.device)
        actions = self.action_values(tensor, masks)[1].argmax(dim=1).cpu().numpy()
        if self.table is not None:
            # The channels of the tensor's images are where they belong.
            dtype = self.observation_space.dtype
            observations = as_held(tensor.cpu().numpy(), dtype, "observation")
            self._follow_table(observations, actions, allowed)
        return actions if vectorized else actions[0], state

    def _follow_table(
        self,
        observations: NDArray[Any],
        actions: NDArray[np.int64],
        allowed: NDArray[np.bool_] | None,
    ) -> None:
        """Replace actions by those of the table, in states where it has one that is allowed."""
        assert self.table is not None
        ids = self.table.states.ids(observations)
        planned = self.table.actions[ids]
        is_told = (ids != UNKNOWN) & (planned >= 0)
        if allowed is not None:
            is_told &= allowed[np.arange(len(ids)), planned]
        actions[is_told] = planned[is_told]

    def save(self, path: Any) -> None:
        """
        Save the policy for ``load``.

        :param path: path of the file, or an open file
        :raises TypeError: if ``state_key`` cannot be pickled
        """
        states = None if self.table is None else self.table.states
        save_policy(self, path, {"state_key": getattr(states, "state_key", None)})

    def _get_constructor_parameters(self) -> dict[str, Any]:
        """Return what a saved policy is built with."""
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


def save_policy(policy: BasePolicy, path: Any, functions: dict[str, Any]) -> None:
    """
    Write a policy as SB3 does, and its functions as SB3 writes those of a model: lambdas and
    closures can be saved, too.

    :param policy: the policy
    :param path: path of the file, or an open file
    :param functions: the functions that it has, by the names of the arguments that they were. None
        of those that it does not have
    :raises TypeError: if one of them cannot be pickled. Then nothing is written
    """
    for name, function in functions.items():
        if callable(function) and not can_be_pickled(function):
            raise TypeError(
                f"the policy cannot be saved, because {name} cannot be pickled: "
                f"{identity_of(function)[0]}. Let it refer to nothing that cannot be, such as a "
                "lock or a window"
            )
    parts = {"state_dict": policy.state_dict(), "data": policy._get_constructor_parameters()}
    th.save(parts, path, pickle_module=cloudpickle)


def _power(gamma: float, trained_gamma: float) -> float:
    """
    Return the power that turns discounts of the network into discounts of a task. With gamma 1,
    the nearer one of equal rewards is preferred too.
    """
    if gamma == trained_gamma:
        return 1.0
    return max(math.log(gamma) / math.log(trained_gamma), 1e-3)


class OutcomeRewards(NamedTuple):
    """What a task pays for each outcome of an action that a model of the world knows."""

    transitions: NDArray[np.float64]
    """For the entries of ``model.transitions``. A reward above 0 ends the task."""
    terminal_transitions: NDArray[np.float64]
    """For the entries of ``model.terminal_transitions``. These may be negative."""


def planned_actions(
    model: TransitionModel, rewards: OutcomeRewards | NDArray[np.float64], gamma: float
) -> NDArray[np.int64]:
    """
    Return actions that maximize the expected discounted reward of a task that ends at its first
    reward, by value iteration.

    :param model: of the world, with S states
    :param rewards: of the model's outcomes; or of arriving at each state, at least 0, shape
        ``(S,)``
    :param gamma: discount factor, in (0, 1)
    :return: an action for each state, -1 where no way to a reward is known, shape ``(S,)``
    """
    if not isinstance(rewards, OutcomeRewards):
        rewards = OutcomeRewards(
            rewards[model.transitions.indices], rewards[model.terminal_transitions.indices]
        )
    is_paid = rewards.transitions > 0.0
    immediate = _expected(model.transitions, np.where(is_paid, rewards.transitions, 0.0))
    immediate += _expected(model.terminal_transitions, rewards.terminal_transitions)
    unpaid = np.where(is_paid, 0.0, model.transitions.data)
    going_on = csr_array(
        (unpaid, model.transitions.indices, model.transitions.indptr),
        shape=model.transitions.shape,
    )
    highest = max(
        rewards.transitions.max(initial=0.0),
        np.abs(rewards.terminal_transitions).max(initial=0.0),
    )
    values = np.zeros(model.n_states)
    for _ in range(_MOST_SWEEPS):
        # The values of actions that were not tried are 0.
        found = (immediate + gamma * (going_on @ values)).reshape(-1, model.n_actions)
        change = np.abs(found.max(axis=1) - values).max()
        values = found.max(axis=1)
        if change <= _TOLERANCE * highest:
            break
    else:
        warnings.warn(
            f"the values of the task were still changing after {_MOST_SWEEPS} sweeps of its plan",
            stacklevel=4,
        )
    return np.where(values > 0.0, found.argmax(axis=1), -1)


def _expected(chances: csr_array, rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the expected reward of each row, given the reward of each entry."""
    rows = np.repeat(np.arange(chances.shape[0]), np.diff(chances.indptr))
    sums = np.bincount(rows, weights=chances.data * rewards, minlength=chances.shape[0])
    return sums.astype(np.float64, copy=False)


class Task(NamedTuple):
    """Rewarded goals."""

    goal_ids: NDArray[np.int64]
    """Their ids, shape ``(n,)``."""
    worth: NDArray[np.float64]
    """What is discounted of each by its distance, shape ``(n,)``."""


def _told(goals: GoalBuffer, reward: Callable[[Any], Any]) -> Any:
    """Return what a user's function says of all goals, or an error that says how it is called."""
    known = unpacked(goals.observations, goals.goal_space)
    try:
        return reward(known)
    except Exception as error:
        # A user's function may raise anything, most likely if it was written for one observation.
        if isinstance(known, dict):
            parts = ", ".join(f"{name} of shape {part.shape}" for name, part in known.items())
            what = f"a dict of arrays, {parts}"
        else:
            what = f"an array of shape {known.shape}"
        raise ValueError(
            f"reward raised {type(error).__name__}. It is called once with all known observations, "
            f"{what}, and must return {len(goals)} numbers"
        ) from error


def _task_of_reward(goals: GoalBuffer, reward: Reward) -> Task:
    """Return the goals that a user rewards. A ValueError if there are none, or they are wrong."""
    given = np.asarray(_told(goals, reward) if callable(reward) else reward)
    if given.shape != (len(goals),) or given.dtype.kind not in "biuf":
        raise ValueError(
            f"reward must {'return' if callable(reward) else 'be'} numbers of shape "
            f"{(len(goals),)}, one for each of model.goal_buffer.observations, got {given.dtype} "
            f"of {given.shape}"
        )
    rewards = given.astype(np.float64)
    wrong = rewards[~((rewards >= 0.0) & np.isfinite(rewards))]
    if len(wrong):
        raise ValueError(
            "reward must be finite and not negative, as a policy towards goals avoids nothing. "
            f"np.fmax(rewards, 0) leaves out what is negative. Got {wrong[:3]}"
        )
    goal_ids = np.flatnonzero(rewards)
    if len(goal_ids) == 0:
        held_out = ". Held-out observations cannot be goals" if goals.has_held_out else ""
        raise ValueError(
            f"reward must be positive for a known observation, it is 0 for all {len(goals)}"
            f"{held_out}"
        )
    return Task(goal_ids, rewards[goal_ids])


def _task_of_arrivals(world: WorldModel, goals: GoalBuffer, gamma: float) -> Task:
    """Return the task of the environment's own rewards, by their means on arriving at goals."""
    rewards, arrivals, ended = _arrivals_at_goals(world, goals)
    # An end without reward is a failure to the values already, whatever it costs.
    goes_on = (arrivals > 0) & (ended < arrivals)
    cost = _cost_of_step(rewards[goes_on], rewards.max(initial=0.0), gamma)
    worth = _worth(rewards, cost, gamma)
    goal_ids = np.flatnonzero((worth > 0.0) & ((rewards > 0.0) | (ended > 0)))
    n_going_on = int((ended[goal_ids] < arrivals[goal_ids]).sum())
    _check_rewarded(world, goals, len(goal_ids), n_going_on)
    return Task(goal_ids, worth[goal_ids])


def _arrivals_at_goals(
    world: WorldModel, goals: GoalBuffer
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """
    Return the mean reward on arriving at each goal, in any state that achieves it, 0 where no
    transition arrived, how many did, and how often the environment terminated with that.
    """
    begin, state_ids = goals.achieving_states()
    goal_ids = np.repeat(np.arange(len(goals)), np.diff(begin))

    def total(of_states: NDArray[Any]) -> NDArray[np.float64]:
        sums = np.bincount(goal_ids, weights=of_states[state_ids], minlength=len(goals))
        return sums.astype(np.float64, copy=False)

    arrivals = total(world.arrivals)
    rewards = np.zeros(len(goals))
    np.divide(total(world.arrival_rewards), arrivals, out=rewards, where=arrivals > 0)
    return rewards, arrivals.astype(np.int64), total(world.arrival_ends).astype(np.int64)


def mean_rewards_of_goals(world: WorldModel, goals: GoalBuffer) -> NDArray[np.float64]:
    """
    Return the mean reward on arriving at each goal, in any state that achieves it.

    :param world: what is known of the world
    :param goals: the known goals
    :return: shape ``(len(goals),)``. NaN where no transition arrived
    """
    rewards, arrivals, _ = _arrivals_at_goals(world, goals)
    return np.where(arrivals > 0, rewards, np.nan)


def _task_of_outcomes(
    world: WorldModel, goals: GoalBuffer, model: TransitionModel, gamma: float
) -> tuple[Task, OutcomeRewards]:
    """
    Return the task of the environment's own rewards, by the mean reward of each outcome of an
    action.

    :return: the goals to which rewarded transitions led, with the mean of what these are worth; and
        what each outcome of the model is worth
    """
    outcomes = world.outcomes()
    rewards = outcomes.reward_sums / outcomes.counts
    ended = outcomes.terminated
    cost = _cost_of_step(rewards[~ended], rewards.max(initial=0.0), gamma)
    worth = _worth(rewards, cost, gamma)
    # The task goes on there.
    worth[~ended & (rewards <= 0.0)] = 0.0
    goal_ids = _goals_of_states(goals)[outcomes.next_state_ids]
    # Held-out observations are not pursued.
    worth[(goal_ids == UNKNOWN) & (worth > 0.0)] = 0.0
    is_paid = worth > 0.0
    ids, place = np.unique(goal_ids[is_paid], return_inverse=True)
    counts = outcomes.counts[is_paid]
    sums = np.bincount(place, weights=worth[is_paid] * counts)
    _check_rewarded(world, goals, len(ids), len(np.unique(goal_ids[is_paid & ~ended])))
    task = Task(ids, sums / np.bincount(place, weights=counts))

    pairs = outcomes.state_ids * model.n_actions + outcomes.actions
    keys = outcome_keys(pairs, outcomes.next_state_ids, ended)
    order = np.argsort(keys)
    found = []
    for is_terminal, chances in enumerate((model.transitions, model.terminal_transitions)):
        pairs = np.repeat(np.arange(chances.shape[0]), np.diff(chances.indptr))
        terminated = np.full(len(pairs), bool(is_terminal))
        wanted = outcome_keys(pairs, chances.indices, terminated)
        found.append(worth[order][np.searchsorted(keys[order], wanted)])
    return task, OutcomeRewards(*found)


def _goals_of_states(goals: GoalBuffer) -> NDArray[np.int64]:
    """
    Return a goal that each known state achieves: its own one, or within a tolerance another one.

    :param goals: the known goals, and the states
    :return: ids of goals, shape ``(number of states,)``. ``UNKNOWN`` for states that achieve none
    """
    begin, state_ids = goals.achieving_states()
    goal_ids = np.repeat(np.arange(len(goals)), np.diff(begin))
    own = goals.goals_of_states(np.arange(len(goals.states)))
    found = np.full(len(own), UNKNOWN)
    found[state_ids] = goal_ids
    return np.where(own == UNKNOWN, found, own)


def _cost_of_step(rewards: NDArray[np.float64], highest: float, gamma: float) -> float:
    """
    Return the reward, 0 or negative, of each step that is not rewarded. A ValueError if it is not
    the same everywhere.

    :param rewards: rewards of steps that do not end the episode
    :param highest: the highest reward of all steps
    :param gamma: discount factor of the task
    """
    costs = rewards[rewards <= 0.0]
    cost = float(costs.min(initial=0.0))
    if cost < 0.0 and np.ptp(costs) > _EQUAL_COSTS * -cost:
        advice = "To do without them: reward=np.fmax(model.goal_rewards, 0)"
        if highest <= 0.0:
            advice = (
                "No reward is positive, so say by reward= what to seek. The rewards of a GoalEnv "
                "depend on its own goals: predict pursues these"
            )
        raise ValueError(
            f"negative rewards differ, from {cost:g} to {costs.max():g} a step: a policy towards "
            f"goals avoids no observation that does not end the episode. {advice}"
        )
    if cost < 0.0 and gamma == 1.0:
        raise ValueError(
            f"gamma must be less than 1 where each step has a reward of {cost:g}, got 1"
        )
    return cost


def _worth(rewards: NDArray[np.float64], cost: float, gamma: float) -> NDArray[np.float64]:
    """Return what is discounted of rewards by the way there, if each step costs something."""
    # With costs, a reward is worth
    # cost / (1 - gamma) + (reward - cost / (1 - gamma)) * gamma ** (steps - 1).
    return rewards - cost / (1.0 - gamma) if cost else rewards.copy()


def _check_rewarded(world: WorldModel, goals: GoalBuffer, n_rewarded: int, n_going_on: int) -> None:
    """
    Raise a ValueError if no goal is rewarded. Warn of rewards that are not pursued, and of those
    that do not end the episode.
    """
    is_goal = np.zeros(len(world.arrivals), np.bool_)
    is_goal[goals.achieving_states()[1]] = True
    elsewhere = float(world.arrival_rewards[~is_goal].sum())
    where = "observations that are no goals, as they were held out or the goal buffer was full"
    if n_rewarded == 0:
        found = f", but a sum of {elsewhere:g} on arriving at {where}" if elsewhere > 0.0 else ""
        raise ValueError(
            f"no reward is known: of {len(goals)} known observations none had a positive mean "
            f"reward{found}. Let the model learn until it meets one, or give reward="
        )
    if elsewhere > 0.0:
        warnings.warn(
            f"rewards with a sum of {elsewhere:g} are not pursued: they were for {where}",
            stacklevel=5,
        )
    if n_going_on:
        warnings.warn(
            f"{n_going_on} of {n_rewarded} rewarded observations did not always end the episode: "
            "the policy goes to the next reward, and stays there if it can. It does not maximize "
            "the sum of rewards",
            stacklevel=5,
        )


def make_task_policy(
    q_net: UniversalQNetwork,
    world: WorldModel,
    goals: GoalBuffer,
    action_space: spaces.Discrete,
    values: GoalValues,
    reward: Reward | None,
    gamma: float | None,
    planned: bool,
) -> TaskPolicy:
    """
    Make a policy for a task, see :meth:`ManyGoalsDQN.task_policy
    <sb3_manygoals.ManyGoalsDQN.task_policy>`.

    :param q_net: the network, of which the policy gets a copy
    :param world: what is known of the world
    :param goals: the known goals
    :param action_space: Discrete
    :param values: what the values of ``q_net`` mean
    :param reward: None for the rewards that the environment gave; else a function of a batch of
        goals, or an array, that gives a number of at least 0 for each goal. The function takes a
        dict of arrays where goals are packed
    :param gamma: discount factor of the task, in (0, 1]. None: that of ``values``
    :param planned: whether to plan in the world
    :raises ValueError: if no known observation is rewarded, or an argument is out of its range
    """
    if values.gamma == 0.0:
        raise ValueError("a model with gamma=0 knows no distances, so it has no policy for tasks")
    if gamma is None:
        gamma = values.gamma
    check_number("gamma", gamma, above=0, at_most=1)
    if len(goals) == 0:
        raise ValueError("no reward is known: the model has met no observation yet")
    table = None
    if not planned:
        if reward is None:
            task = _task_of_arrivals(world, goals, gamma)
        else:
            task = _task_of_reward(goals, reward)
    else:
        task, table = _plan_task(world, goals, values, reward, gamma)
    return TaskPolicy(
        goals.observation_space,
        action_space,
        copy.deepcopy(q_net),
        goals[task.goal_ids],
        task.worth,
        values,
        gamma,
        table,
    )


def _plan_task(
    world: WorldModel,
    goals: GoalBuffer,
    values: GoalValues,
    reward: Reward | None,
    gamma: float,
) -> tuple[Task, StateActions]:
    """Return the rewarded goals of a task, and planned actions for all states."""
    model = TransitionModel.of(world)
    rewards: OutcomeRewards | NDArray[np.float64]
    if reward is None:
        task, rewards = _task_of_outcomes(world, goals, model, gamma)
    else:
        task = _task_of_reward(goals, reward)
        rewards = _rewards_of_states(goals, task, model.n_states)
    actions = planned_actions(model, rewards, values.gamma ** _power(gamma, values.gamma))
    # A copy, because the world goes on to change.
    if isinstance(world.identity, LearnedStates):
        return task, StateActions(copy.deepcopy(world.identity), actions)
    states = ExactStates(goals.observation_space, len(actions))
    if goals.state_key is not None:
        states = KeyedStates(goals.observation_space, len(actions), goals.state_key, 1)
    states.add(world.identity.observations[: len(actions)])
    return task, StateActions(states, actions)


def _rewards_of_states(goals: GoalBuffer, task: Task, n_states: int) -> NDArray[np.float64]:
    """Return what arriving at each state pays: the highest reward of the goals it achieves."""
    worth = np.zeros(len(goals))
    worth[task.goal_ids] = task.worth
    begin, state_ids = goals.achieving_states()
    rewards = np.zeros(n_states)
    np.maximum.at(rewards, state_ids, np.repeat(worth, np.diff(begin)))
    return rewards
