"""Losses of many goals at once, as pure functions of tensors."""

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
    The target of every pair of transition and goal in the paper's loss of a goal,

    .. math:: y_{sg} = r_g + \gamma_g \max_{a'} Q_{\theta^-}(s', a', g),
        \qquad r_g, \gamma_g = \begin{cases} \text{goal_reward}, 0 & s' = g \\ \text{step_reward}, \gamma & s' \neq g
        \end{cases}

    A transition ends the episode of the goal it reaches, and of no other. If the environment ends elsewhere, the target is
    ``step_reward`` for ever, ``step_reward / (1 - gamma)``: with zero, dying would be better than any detour.

    :param next_q: target network's values of the next observations, shape (S, G, A)
    :param achieved: whether the transition reached the goal, bool, shape (S, G)
    :param terminated: whether the environment itself ended, bool, shape (S,)
    :param gamma: discount factor, in [0, 1)
    :param goal_reward: reward of the transition that reaches the goal, ``step_reward`` of every other one
    :param next_action_mask: actions allowed in the next observations, bool, shape (S, A), None for all
    :return: targets, shape (S, G)
    """
    if next_action_mask is not None:
        next_q = next_q.masked_fill(~next_action_mask[:, None, :], -th.inf)
    targets = step_reward + gamma * next_q.amax(dim=2)
    return targets.masked_fill(terminated[:, None], step_reward / (1.0 - gamma)).masked_fill(
        achieved, goal_reward
    )


def near_weights(
    targets: th.Tensor,
    decay: float,
    floor: float,
    gamma: float,
    goal_reward: float,
    step_reward: float,
) -> th.Tensor:
    r"""
    Weights that emphasize pairs near their goal, where every path to it ends,

    .. math:: w_{sg} \propto \text{decay}^{d_{sg}} + \text{floor},

    where d is the number of steps to the goal that follows from the target, :math:`y = c + (\text{goal_reward} - c) \gamma^d`,
    and :math:`c = \text{step_reward} / (1 - \gamma)` is the value of a goal that is never reached.

    :param targets: shape (S, G)
    :param decay: in (0, 1]; 1 for equal weights
    :param floor: weight of the farthest pairs, relative to 1 + floor at the goal
    :param gamma: discount factor, in (0, 1), as ``goal_reward`` and ``step_reward`` those of :func:`pairwise_td_targets`
    :return: weights with mean 1, shape (S, G)
    """
    never = step_reward / (1.0 - gamma)
    nearness = ((targets - never) / (goal_reward - never)).clamp(0.0, 1.0)  # gamma ** d
    weights = nearness ** (math.log(decay) / math.log(gamma)) + floor
    return weights / weights.mean()


def best_action_loss(
    q: th.Tensor, known: th.Tensor, best: th.Tensor, temperature: float
) -> th.Tensor:
    r"""
    The negative log-probability of the best actions under a softmax of the values,

    .. math:: -\log \sum_{a \in B_{sg}} \pi(a), \qquad \pi(a) \propto \exp(Q(s, a, g) / \tau)

    It is policy distillation (Rusu et al. 2016) with a plan as the teacher: greedy policies depend on small differences of
    values, to which the squared error is nearly blind.

    :param q: values of all actions, shape (S, G, A)
    :param known: pairs whose best actions are known, bool, shape (S, G); the loss of other pairs is 0
    :param best: the best actions, at least one for each known pair, bool, shape (S, G, A)
    :param temperature: tau, in the unit of ``q``, positive
    :return: shape (S, G)
    """
    best = best | ~known[:, :, None]  # the gradient of a logsumexp over nothing would be NaN
    logits = q / temperature
    return logits.logsumexp(dim=2) - logits.masked_fill(~best, -th.inf).logsumexp(dim=2)


def pairwise_td_loss(q: th.Tensor, targets: th.Tensor) -> th.Tensor:
    r"""
    The paper's :math:`\mathcal{L}(g)` of each goal: the squared Bellman error, averaged over the transitions.

    :param q: values of the actions taken, shape (S, G)
    :param targets: from :func:`pairwise_td_targets`, shape (S, G)
    :return: one loss for each goal, shape (G,)
    """
    return (q - targets).square().mean(dim=0)
