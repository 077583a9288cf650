"""The losses, as pure functions of tensors."""

from __future__ import annotations

import math

import torch as th


def pairwise_td_targets(
    next_q: th.Tensor,
    achieved: th.Tensor,
    terminated: th.Tensor,
    gamma: float,
    goal_reward: float,
    step_reward: float,
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
    :param next_action_mask: actions allowed in the next observations, the only ones among which the best is looked for;
        bool, shape (S, A), None for all. Where the environment ended, there need be none
    :return: targets, shape (S, G)
    """
    if next_action_mask is not None:
        next_q = next_q.masked_fill(~next_action_mask[:, None, :], -th.inf)
    next_values = next_q.amax(dim=2)
    targets = step_reward + gamma * next_values
    targets = targets.masked_fill(terminated[:, None], step_reward / (1.0 - gamma))
    return targets.masked_fill(achieved, goal_reward)


def near_weights(
    targets: th.Tensor, decay: float, floor: float, gamma: float, goal_reward: float, step_reward: float
) -> th.Tensor:
    r"""
    Weights that let the few pairs near their goal count beside the many that are far from it: every way to a goal ends among
    them, and errors there are passed on to all others.

    .. math:: w_{sg} \propto \text{decay}^{d_{sg}} + \text{floor},

    with d the steps to the goal that a target stands for, :math:`y = c + (\text{goal_reward} - c) \gamma^d`, where
    :math:`c = \text{step_reward} / (1 - \gamma)` is what never getting there is worth.

    :param targets: shape (S, G)
    :param decay: in (0, 1]; 1: all count the same
    :param floor: weight of the farthest, beside 1 + floor for those that reach their goal
    :param gamma: discount factor, in (0, 1)
    :param goal_reward: reward of the transition that reaches the goal
    :param step_reward: reward of every other transition
    :return: weights, 1 on average, shape (S, G)
    """
    never = step_reward / (1.0 - gamma)
    nearness = ((targets - never) / (goal_reward - never)).clamp(0.0, 1.0)  # gamma ** d
    weights = nearness ** (math.log(decay) / math.log(gamma)) + floor
    return weights / weights.mean()


def best_action_loss(q: th.Tensor, known: th.Tensor, best: th.Tensor, temperature: float) -> th.Tensor:
    r"""
    How unlikely the best actions are under the softmax of the values, of every pair,

    .. math:: -\log \sum_{a \in B_{sg}} \pi(a), \qquad \pi(a) \propto \exp(Q(s, a, g) / \tau)

    A squared error spreads its effort over differences of whole journeys, and this one over the small ones between actions, by
    which a greedy policy goes: policy distillation (Rusu et al. 2016), with what a plan finds best as the teacher.

    :param q: values of all actions, shape (S, G, A)
    :param known: pairs of which it is known what is best, bool, shape (S, G): others lose nothing
    :param best: the best actions, at least one of each known pair, bool, shape (S, G, A)
    :param temperature: tau, in units of ``q``, more than 0
    :return: shape (S, G)
    """
    best = best | ~known[:, :, None]  # of nothing but -inf there is no sum to descend
    logits = q / temperature
    return logits.logsumexp(dim=2) - logits.masked_fill(~best, -th.inf).logsumexp(dim=2)


def pairwise_td_loss(q: th.Tensor, targets: th.Tensor, weights: th.Tensor | None = None) -> th.Tensor:
    r"""
    The paper's :math:`\mathcal{L}(g)` of each goal: the squared Bellman error, averaged over the transitions. Their mean
    over goals is :math:`\mathcal{L}^Q`, the loss that is descended.

    :param q: values of the actions taken, shape (S, G)
    :param targets: as :func:`pairwise_td_targets` gives them, shape (S, G)
    :param weights: how much each pair counts, shape (S, G); None: all the same
    :return: one loss a goal, shape (G,)
    """
    errors = (q - targets).square()
    return (errors if weights is None else errors * weights).mean(dim=0)
