"""A learner that is told what no agent can know: is it the targets that hold it back, or the network and its updates?"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch as th
from numpy.typing import NDArray

from gym_twoRooms.mdp import TwoRoomsMDP
from gym_twoRooms.oracle import CHUNK, optimal_values
from sb3_manygoals import ManyGoalsDQN
from sb3_manygoals.losses import near_weights, pairwise_td_loss
from sb3_manygoals.many_goals_dqn import ManyGoalsSamples

OF_TARGETS = {"double_q": False, "action_gap": 0.0, "n_steps": 1, "segment_length": 1, "plan_interval": 0}
"""Options about where targets come from, as they are where they do nothing."""


class ExactTargetsDQN(ManyGoalsDQN):
    """
    A ManyGoalsDQN in a TwoRoomsSwitch world whose targets are the exact values of its pairs, by planning in the world's
    tables. Behaviour, replay memory, goals, loss and optimizer are the same, so that what it still fails to learn is not for
    want of better targets.

    Its options are those of ManyGoalsDQN without the ones about targets.

    :raises ValueError: if one of these is set, or goals are those pursued
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        for name, value in OF_TARGETS.items():
            if kwargs.get(name, value) != value:
                raise ValueError(f"{name} must be {value} where targets are exact values, got {kwargs[name]!r}")
        if kwargs.get("goal_sampling") == "pursued":
            raise ValueError('goal_sampling must not be "pursued" where targets are exact values')
        super().__init__(*args, **kwargs | {"cuda_graph": False})  # states are recognised on the host

    def goal_losses(
        self, batch: ManyGoalsSamples, goals: th.Tensor, goal_ids: th.Tensor, met: th.Tensor | None = None
    ) -> th.Tensor:
        """
        :param batch: S transitions
        :param goals: observations, shape (G, *observation_space.shape)
        :param goal_ids: not used
        :param met: not used
        :return: the loss of each goal against exact values, shape (G,)
        """
        assert self.env is not None
        mdp: TwoRoomsMDP = self.env.get_attr("mdp")[0]
        rewards = (self.gamma, self.goal_reward, self.step_reward)
        exact = exact_values(mdp, *rewards, tolerance=1e-3 * abs(self.step_reward))
        n = len(batch.actions)
        states = mdp.states_of(th.cat([batch.observations, goals]).cpu().numpy())
        told = exact[states[:n, None], batch.actions.cpu().numpy()[:, None], states[None, n:]]
        targets = th.as_tensor(told, device=self.device)
        features = self.q_net.trunk(th.cat([batch.observations, goals]))
        states_embedded, goals_embedded = self.q_net.state_embedding(features[:n]), self.q_net.goal_embedding(features[n:])
        q = self.q_net.pairwise_taken(states_embedded, goals_embedded, batch.actions)
        weights = near_weights(targets, self.near_decay, self.near_floor, *rewards) if self.near_decay < 1.0 else None
        return pairwise_td_loss(q, targets, weights)


@lru_cache(maxsize=1)
def exact_values(
    mdp: TwoRoomsMDP, gamma: float, goal_reward: float, step_reward: float, tolerance: float
) -> NDArray[np.float32]:
    """
    :param mdp: a world
    :param gamma: discount factor
    :param goal_reward: reward of the transition that reaches the goal
    :param step_reward: reward of every other transition
    :param tolerance: no value is further than this from the exact one
    :return: of all states, actions and goals, shape (S, A, S); 626 MiB for the paper's map
    """
    values = np.empty((mdp.n_states, mdp.n_actions, mdp.n_states), dtype=np.float32)
    for first in range(0, mdp.n_states, CHUNK):  # all at once would take several times the memory, as float64
        goals = np.arange(first, min(first + CHUNK, mdp.n_states))
        values[:, :, goals] = optimal_values(mdp, goals, gamma, step_reward, goal_reward, tolerance)
    return values
