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
    next_values = _next_values(next_q, next_q_online, next_action_mask)
    targets = step_reward + gamma * next_values
    targets = targets.masked_fill(terminated[:, None], step_reward / (1.0 - gamma))
    return targets.masked_fill(achieved, goal_reward)


def n_step_td_targets(
    next_q: th.Tensor,
    reached_after: th.Tensor,
    lengths: th.Tensor,
    terminated: th.Tensor,
    gamma: float,
    goal_reward: float,
    step_reward: float,
    next_q_online: th.Tensor | None = None,
    next_action_mask: th.Tensor | None = None,
) -> th.Tensor:
    r"""
    As :func:`pairwise_td_targets`, over the m steps from s to s' and not one, as they were taken, whatever they were taken for
    (uncorrected, as in Rainbow, Hessel et al. 2018). With :math:`c = \text{step_reward} / (1 - \gamma)`, what paying for ever
    comes to,

    .. math:: y_{sg} = \begin{cases} c + \gamma^{k-1} (\text{goal_reward} - c) & g \text{ was reached after } k \text{ steps}
        \\ c + \gamma^m (\max_{a'} Q_{\theta^-}(s', a', g) - c) & \text{otherwise} \end{cases}

    :param next_q: target network's values of the observations after the steps, shape (S, G, A)
    :param reached_after: number of the step that first reached the goal, from 1 on, 0 where none did; int64, shape (S, G)
    :param lengths: number of steps, int64, shape (S,)
    :param terminated: whether the environment itself ended with the last of them, bool, shape (S,)
    :param gamma: as there, and so are the others
    :return: targets, shape (S, G)
    """
    never = step_reward / (1.0 - gamma)
    next_values = _next_values(next_q, next_q_online, next_action_mask)
    targets = never + gamma ** lengths[:, None].to(next_values.dtype) * (next_values - never)
    targets = targets.masked_fill(terminated[:, None], never)
    reached = never + gamma ** (reached_after - 1).to(next_values.dtype) * (goal_reward - never)
    return th.where(reached_after > 0, reached, targets)


def best_along_segments(
    targets: th.Tensor, achieved: th.Tensor, goes_on: th.Tensor, segment_length: int, gamma: float, step_reward: float
) -> th.Tensor:
    r"""
    Where the rows of a batch are ways of the world, the largest of the returns of 1, 2, ... steps along the way:

    .. math:: y_{sg} \leftarrow \max(y_{sg}, \text{step_reward} + \gamma\, y_{s+1,g}) \quad \text{unless } s' = g

    from the end of a way to its start. What was done once can be done again, so where nothing is left to chance no return can
    be more than the value (a bound, as in He et al. 2017, "Learning to Play in a Day"); where luck had a part it is too large.

    :param targets: as :func:`pairwise_td_targets` gives them, shape (S, G)
    :param achieved: whether the transition reached the goal, bool, shape (S, G)
    :param goes_on: whether the next row is the transition that followed, bool, shape (S,); False for the last
    :param segment_length: most rows that follow each other
    :param gamma: discount factor
    :param step_reward: reward of a transition that does not reach the goal
    :return: shape (S, G)
    """
    further = goes_on[:, None] & ~achieved
    for _ in range(segment_length - 1):
        later = step_reward + gamma * targets.roll(-1, dims=0)
        targets = th.where(further, th.maximum(targets, later), targets)
    return targets


def _next_values(next_q: th.Tensor, next_q_online: th.Tensor | None, next_action_mask: th.Tensor | None) -> th.Tensor:
    if next_action_mask is not None:
        forbidden = ~next_action_mask[:, None, :]
        if next_q_online is None:
            next_q = next_q.masked_fill(forbidden, -th.inf)
        else:
            next_q_online = next_q_online.masked_fill(forbidden, -th.inf)
    if next_q_online is None:
        return next_q.amax(dim=2)
    return next_q.gather(2, next_q_online.argmax(dim=2, keepdim=True)).squeeze(2)


def widen_action_gap(targets: th.Tensor, current_q: th.Tensor, actions: th.Tensor, alpha: float) -> th.Tensor:
    r"""
    Advantage learning (Bellemare et al. 2016, "Increasing the Action Gap"): the target of an action falls by a share of what
    the target network finds it worse than the best,

    .. math:: y_{sg} - \alpha \bigl(\max_a Q_{\theta^-}(s, a, g) - Q_{\theta^-}(s, a_s, g)\bigr)

    The greedy policy stays the same; the gap between its actions and others grows by :math:`1 / (1 - \alpha)`.

    :param targets: as :func:`pairwise_td_targets` gives them, shape (S, G)
    :param current_q: target network's values of the observations before the transitions, shape (S, G, A)
    :param actions: actions taken, int64, shape (S,)
    :param alpha: the share, in [0, 1)
    :return: targets, shape (S, G)
    """
    taken = current_q[th.arange(len(actions), device=actions.device), :, actions]
    return targets - alpha * (current_q.amax(dim=2) - taken)


def near_weights(
    targets: th.Tensor, decay: float, floor: float, gamma: float, goal_reward: float, step_reward: float
) -> th.Tensor:
    r"""
    Weights that let the few pairs near their goal count beside the many that are far from it: every way to a goal ends among
    them, and errors there are passed on to all others.

    .. math:: w_{sg} \propto \text{decay}^{d_{sg}} + \text{floor},

    with d the steps to the goal that a target stands for, :math:`y = c + (\text{goal_reward} - c) \gamma^d`, where
    :math:`c = \text{step_reward} / (1 - \gamma)` is what never getting there is worth.

    :param targets: without a widened action gap, shape (S, G)
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


def large_margin_loss(q: th.Tensor, known: th.Tensor, best: th.Tensor, margin: float) -> th.Tensor:
    r"""
    How far the best actions are from leading all others by a margin: the supervised loss of deep Q-learning from
    demonstrations (Hester et al. 2018), of every pair, with what a plan finds best in the place of what a demonstrator did,

    .. math:: \max_a \bigl[ Q(s, a, g) + m \, [a \notin B_{sg}] \bigr] - \max_{b \in B_{sg}} Q(s, b, g)

    A squared error spreads its effort over differences of whole journeys, and this one over the small ones between actions, by
    which a greedy policy goes.

    :param q: values of all actions, shape (S, G, A)
    :param known: pairs of which it is known what is best, bool, shape (S, G): others lose nothing
    :param best: the best actions, at least one of each known pair, bool, shape (S, G, A)
    :param margin: m, in units of values, at least 0
    :return: shape (S, G)
    """
    best = best | ~known[:, :, None]  # of nothing but -inf there is no maximum to descend
    lead = q.masked_fill(~best, -th.inf).amax(dim=2)
    return th.where(known, th.where(best, q, q + margin).amax(dim=2) - lead, 0.0)


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
