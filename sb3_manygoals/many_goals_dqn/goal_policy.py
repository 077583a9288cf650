"""A policy towards goals that follows a plan, and a network where the plan knows no way."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import PyTorchObs

from sb3_manygoals.action_masks import check_action_masks
from sb3_manygoals.goals import UNKNOWN, GoalBuffer
from sb3_manygoals.goals.spaces import check_goal_obs, check_numbers
from sb3_manygoals.many_goals_dqn.planning import AllGoalsPlan
from sb3_manygoals.many_goals_dqn.task_policy import planned_actions, save_policy
from sb3_manygoals.many_goals_dqn.transition_model import TransitionModel
from sb3_manygoals.memory_limits import check_memory
from sb3_manygoals.networks import UniversalQNetwork
from sb3_manygoals.packing import as_packed
from sb3_manygoals.validation import as_held
from sb3_manygoals.world import WorldModel

# So many pairs of state and goal are copied from a plan at a time.
_PAIRS_AT_A_TIME = 2**20


class GoalActions(NamedTuple):
    """A table of planned actions towards goals."""

    goals: GoalBuffer
    """The goals, G of them, and the states, S of them."""
    columns: NDArray[np.int64] | None
    """
    The column of each goal in ``actions``, -1 for goals that are not planned, shape ``(G + 1,)``.
    The last entry is that of unknown goals. None: the table is for one goal, in the only column.
    """
    actions: NDArray[np.signedinteger[Any]]
    """
    The action to take in each state for each planned goal, -1 where no way is known, shape
    ``(S, number of planned goals)``.
    """

    def look_up(self, observations: NDArray[Any], goals: NDArray[Any]) -> NDArray[np.int64]:
        """
        Return the planned actions for observations, each with a goal of its own.

        :param observations: shape ``(n, *observation_space.shape)``, the dtype of the space
        :param goals: the goal of each observation, shape ``(n, *goal space's shape)``, the dtype of
            the space. Not used if the table is for one goal
        :return: actions, -1 where none is planned, shape ``(n,)``
        """
        state_ids, _ = self.goals.look_up(observations)
        columns = np.zeros_like(state_ids)
        if self.columns is not None:
            columns = self.columns[self.goals.stand_ins(goals)]
        is_planned = (state_ids != UNKNOWN) & (columns >= 0)
        found = np.full(len(state_ids), -1, dtype=np.int64)
        found[is_planned] = self.actions[state_ids[is_planned], columns[is_planned]]
        return found


class GoalPolicy(BasePolicy):
    """
    Takes the planned action towards a goal. The network acts where the plan knows no way, in
    observations that are no known states, for goals that are not planned, and where a mask forbids
    the planned action. See :meth:`ManyGoalsDQN.goal_policy
    <sb3_manygoals.ManyGoalsDQN.goal_policy>`, which makes one.

    :param observation_space: Dict of observation, achieved_goal and desired_goal. If ``goal`` is
        given, the space of observations without goals
    :param action_space: Discrete, A actions
    :param q_net: the network, which the policy keeps and does not train
    :param table: planned actions
    :param goal: the goal to pursue, one of the space of goals. None: the observations say it
    """

    action_space: spaces.Discrete

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Discrete,
        q_net: UniversalQNetwork,
        table: GoalActions,
        goal: NDArray[Any] | None = None,
    ) -> None:
        super().__init__(observation_space, action_space)
        self.q_net = q_net.requires_grad_(False).eval()
        self.table = table
        self.goal = goal

    @property
    def goal_buffer(self) -> GoalBuffer:
        """The goals that were known when the policy was made."""
        return self.table.goals

    def _predict(self, observation: PyTorchObs, deterministic: bool = True) -> th.Tensor:
        """Return the network's actions."""
        values: th.Tensor = self.q_net(*self._with_goals(observation))
        return values.argmax(dim=1)

    def _with_goals(self, tensors: PyTorchObs) -> tuple[th.Tensor, th.Tensor]:
        """Return observations, and the goal of each."""
        if isinstance(tensors, dict):
            return tensors["observation"], tensors["desired_goal"]
        goal = th.as_tensor(self.goal, device=tensors.device)
        return tensors, goal.expand(len(tensors), *goal.shape)

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
        Return planned actions, and greedy ones of the network where none is planned.

        :param observation: dict with "observation" and "desired_goal", one of each or a batch of n.
            If the policy was made for one goal: an observation without goals, or a batch of n
        :param state: not used
        :param episode_start: not used
        :param deterministic: not used
        :param action_masks: actions allowed, shape ``(A,)`` or ``(n, A)``, as in sb3-contrib. None:
            all
        :return: actions, int64, shape ``(n,)``, a NumPy integer for one observation; and ``state``
        :raises ValueError: if the observation is not of its space, a float in it is NaN or
            infinite, or masks do not fit it or allow no action
        """
        tensors, vectorized = self.obs_to_tensor(self._check(observation))
        observations, goals = self._with_goals(tensors)
        n_actions = int(self.action_space.n)
        allowed = None
        if action_masks is not None:
            allowed = check_action_masks(action_masks, len(observations), n_actions)
        # The channels of the tensor's images are where they belong.
        space = self.table.goals.observation_space
        actions = self.table.look_up(
            as_held(observations.cpu().numpy(), space.dtype, "observation"),
            as_held(goals.cpu().numpy(), self.table.goals.dtype, "desired_goal"),
        )
        fill_in_greedy(actions, self.q_net, observations, goals, allowed)
        return actions if vectorized else actions[0], state

    def _check(
        self, observation: NDArray[Any] | dict[str, NDArray[Any]]
    ) -> NDArray[Any] | dict[str, NDArray[Any]]:
        """Return what the policy needs of an observation. Raise a ValueError if it is wrong."""
        if isinstance(self.observation_space, spaces.Dict):
            advice = (
                "wrap the environment, GoalBufferWrapper(env, policy.goal_buffer); for one goal "
                "use model.goal_policy(goal)"
            )
            return check_goal_obs(self.observation_space, observation, advice)
        observation = as_packed(observation, self.observation_space)
        if isinstance(observation, dict):
            raise ValueError(
                f"observation must be an array, one of {self.observation_space}, got a dict: the "
                "policy was made for one goal"
            )
        check_numbers(self.observation_space, np.asarray(observation), "observation")
        return observation

    def save(self, path: Any) -> None:
        """
        Save the policy for ``load``.

        :param path: path of the file, or an open file
        :raises TypeError: if ``state_key``, ``goal`` or ``reached`` cannot be pickled
        """
        achievement = self.goal_buffer.achievement
        functions = {
            "state_key": self.goal_buffer.state_key,
            "goal": achievement.goal,
            "reached": achievement.reached,
        }
        save_policy(self, path, functions)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        """Return what a saved policy is built with."""
        names = ("observation_space", "action_space", "q_net", "table", "goal")
        return {name: getattr(self, name) for name in names}


def fill_in_greedy(
    actions: NDArray[np.int64],
    action_values: Callable[[th.Tensor, th.Tensor], th.Tensor],
    observations: th.Tensor,
    goals: th.Tensor,
    allowed: NDArray[np.bool_] | None,
) -> None:
    """
    Fill in the greedy actions of a network where no allowed action is planned.

    :param actions: planned actions, -1 where there is none, which are replaced in place, shape
        ``(n,)``
    :param action_values: the network: returns the values of all A actions, shape ``(m, A)``, for m
        observations and the goal of each
    :param observations: shape ``(n, *observation_space.shape)``
    :param goals: the goal of each observation, shape ``(n, *goal space's shape)``
    :param allowed: whether each action is allowed, shape ``(n, A)``. None: all are
    """
    needs = actions < 0
    if allowed is not None:
        needs |= ~allowed[np.arange(len(actions)), actions]
    if not needs.any():
        return
    if not needs.all():
        rows = th.as_tensor(needs, device=observations.device)
        observations = observations[rows]
        goals = goals[rows]
    q = action_values(observations, goals)
    if allowed is not None:
        q = q.masked_fill(~th.as_tensor(allowed[needs], device=q.device), -th.inf)
    actions[needs] = q.argmax(dim=1).cpu().numpy()


def actions_of_plan(plan: AllGoalsPlan, goals: GoalBuffer, n_actions: int) -> GoalActions:
    """
    Copy the actions of a plan.

    :param plan: the plan
    :param goals: the goals and the states that it is for, of which the table gets a copy
    :param n_actions: number of actions
    :return: a table that does not change with the plan
    :raises MemoryError: if the table does not fit into the available memory
    """
    n_states = len(goals.states)
    planned = np.flatnonzero(plan.columns_of(np.arange(len(goals))) >= 0)
    dtype = np.min_scalar_type(-n_actions)
    size = n_states * len(planned) * dtype.itemsize
    advice = "goal_policy(goal) makes a policy for one goal"
    check_memory("a policy towards all goals", {"planned actions": size}, advice)
    actions = np.empty((n_states, len(planned)), dtype=dtype)
    at_a_time = max(_PAIRS_AT_A_TIME // max(len(planned), 1), 1)
    for first in range(0, n_states, at_a_time):
        states = np.arange(first, min(first + at_a_time, n_states))
        found = plan.best_actions(np.repeat(states, len(planned)), np.tile(planned, len(states)))
        actions[states] = found.reshape(len(states), len(planned))
    columns = np.full(len(goals) + 1, -1, dtype=np.int64)
    columns[planned] = np.arange(len(planned))
    return GoalActions(copy.deepcopy(goals), columns, actions)


def actions_to_goal(
    world: WorldModel, goals: GoalBuffer, goal: NDArray[Any], gamma: float
) -> GoalActions:
    """
    Plan for one goal.

    :param world: the model of the world
    :param goals: the goals and the states of this world, of which the table gets a copy
    :param goal: the goal, shape ``goal_space.shape``
    :param gamma: discount factor, in (0, 1)
    :return: a table of the actions towards this goal, without any if no known state achieves it, or
        it is held out
    """
    model = TransitionModel.of(world)
    rewards = np.zeros(model.n_states)
    rewards[_achieving_states(goals, goal)] = 1.0
    actions = planned_actions(model, rewards, gamma)
    return GoalActions(copy.deepcopy(goals), None, actions[:, None])


def _achieving_states(goals: GoalBuffer, goal: NDArray[Any]) -> NDArray[np.int64]:
    """Return the ids of the known states that achieve a goal, none if it is held out."""
    goal_id = int(goals.ids(goal[None])[0])
    if goal_id != UNKNOWN:
        first, state_ids = goals.achieving_states()
        return state_ids[first[goal_id] : first[goal_id + 1]]
    if goals.achievement.reached is None or goals.is_held_out(goal[None])[0]:
        return np.zeros(0, dtype=np.int64)
    # What is near enough to a known state may be a goal that was never met itself.
    achieved = goals.achieved(goals.states.observations)
    return np.flatnonzero(goals.is_reached(achieved, np.broadcast_to(goal, achieved.shape)))
