"""The losses, as pure functions of tensors."""

from __future__ import annotations

import torch as th


def pairwise_td_targets(
    next_q: th.Tensor,
    achieved: th.Tensor,
    terminated: th.Tensor,
    gamma: float,
    goal_reward: float,
    step_reward: float,
    next_q_online: th.Tensor | None = None,
    next_action_mask: th.Tensor | None = None,
) -> th.Tensor:
    r"""
    The regression target of every (transition, goal) pair, the bracket's first two terms in the paper's loss of a goal:

    .. math:: y_{sg} = r_g + \gamma_g \max_{a'} Q_{\theta^-}(s', a', g),
        \qquad r_g, \gamma_g = \begin{cases} \text{goal_reward}, 0 & s' = g \\ \text{step_reward}, \gamma & s' \neq g
        \end{cases}

    Termination is the goal's own: a transition ends the episode of the goals it reaches and of no other. Where the
    environment itself came to an end elsewhere, the goal will never be reached: the target is that of paying
    ``step_reward`` for ever, ``step_reward / (1 - gamma)``. (The usual zero would make dying better than any detour.)

    :param next_q: target network's values of the next observations, shape (S, G, A)
    :param achieved: whether the transition reached the goal, bool, shape (S, G)
    :param terminated: whether the environment itself ended, bool, shape (S,)
    :param gamma: discount factor, in [0, 1)
    :param goal_reward: reward of the transition that reaches the goal
    :param step_reward: reward of every other transition
    :param next_q_online: learning network's values of the next observations, shape (S, G, A): with them the action is
        chosen by the learning and valued by the target network (double Q-learning, van Hasselt et al. 2016)
    :param next_action_mask: actions allowed in the next observations, the only ones among which the best is looked for;
        bool, shape (S, A), None for all. Where the environment ended, there need be none
    :return: targets, shape (S, G)
    """
    if next_action_mask is not None:
        forbidden = ~next_action_mask[:, None, :]
        if next_q_online is None:
            next_q = next_q.masked_fill(forbidden, -th.inf)
        else:
            next_q_online = next_q_online.masked_fill(forbidden, -th.inf)
    if next_q_online is None:
        next_values = next_q.amax(dim=2)
    else:
        next_values = next_q.gather(2, next_q_online.argmax(dim=2, keepdim=True)).squeeze(2)
    targets = step_reward + gamma * next_values
    targets = targets.masked_fill(terminated[:, None], step_reward / (1.0 - gamma))
    return targets.masked_fill(achieved, goal_reward)


def pairwise_td_loss(q: th.Tensor, targets: th.Tensor) -> th.Tensor:
    r"""
    The paper's :math:`\mathcal{L}(g)` of each goal: the squared Bellman error, averaged over the transitions. Their mean
    over goals is :math:`\mathcal{L}^Q`, the loss that is descended.

    :param q: values of the actions taken, shape (S, G)
    :param targets: as :func:`pairwise_td_targets` gives them, shape (S, G)
    :return: one loss a goal, shape (G,)
    """
    return (q - targets).square().mean(dim=0)
