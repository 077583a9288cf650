"""Losses of many goals at once, as pure functions of tensors."""

import math
from typing import Any

import torch as th
from torch.autograd.function import once_differentiable

# The logit of an action that is not to be taken is less by this number.
_NEVER = 1e9
# Logits count as at most so much less than the greatest one. Exponentials of less are denormal
# numbers, which are slow.
_LEAST_LOGIT = -80.0


def pairwise_td_targets(
    next_values: th.Tensor,
    achieved: th.Tensor,
    terminated: th.Tensor,
    gamma: float,
    goal_reward: float,
    step_reward: float,
) -> th.Tensor:
    r"""
    Return the target of every pair of a transition and a goal, for :func:`pairwise_td_loss`.

    .. math:: y_{sg} = r_g + \gamma_g \max_{a'} Q_{\theta^-}(s', a', g), \qquad
        r_g, \gamma_g = \begin{cases}
        \text{goal_reward}, 0 & s' = g \\ \text{step_reward}, \gamma & s' \neq g \end{cases}

    A transition ends the episode of the goal it reaches, and of no other goal. If the environment
    terminates elsewhere, the target is the value of receiving ``step_reward`` for ever,
    ``step_reward / (1 - gamma)``. If it were zero, dying would be better than any detour.

    :param next_values: the target network's values of the best actions in the next observations,
        the maxima in the equation, shape (S, G)
    :param achieved: whether the transition reached the goal, bool, shape (S, G)
    :param terminated: whether the environment itself terminated, bool, shape (S,)
    :param gamma: discount factor, in [0, 1)
    :param goal_reward: reward of a transition that reaches the goal
    :param step_reward: reward of every other transition
    :return: targets, shape (S, G)
    """
    targets = step_reward + gamma * next_values
    targets = targets.masked_fill(terminated[:, None], step_reward / (1.0 - gamma))
    return targets.masked_fill(achieved, goal_reward)


def widen_action_gaps(
    targets: th.Tensor,
    best_values: th.Tensor,
    taken_values: th.Tensor,
    share: float | th.Tensor,
) -> th.Tensor:
    r"""
    Lower targets of actions that are not the best ones: advantage learning.

    .. math:: y'_{sg} = y_{sg} - \alpha_{sg} \big(\max_a Q_{\theta^-}(s, a, g)
        - Q_{\theta^-}(s, a_s, g)\big)

    Values of the best actions stay the same in the end. All others sink, until they are
    :math:`1 / (1 - \alpha_{sg})` times as far below the best one as they would be. So an error of
    the network seldom makes a worse action look best. With the same :math:`\alpha` for all pairs,
    this is the advantage learning operator of Bellemare et al. (2016), "Increasing the action gap",
    for many goals.

    :param targets: targets y of actions that were taken, shape (S, G)
    :param best_values: the target network's values of the best actions in the same states, shape
        (S, G)
    :param taken_values: the target network's values of the actions that were taken, shape (S, G)
    :param share: :math:`\alpha`, in [0, 1), a number or shape (S, G). 0.0 leaves the targets as
        they are
    :return: targets, shape (S, G)
    """
    return targets - share * (best_values - taken_values)


def nearness(
    values: th.Tensor, decay: float, gamma: float, goal_reward: float, step_reward: float
) -> th.Tensor:
    r"""
    Return how near goals are, by their values: :math:`\text{decay}^d`, where d is the number of
    steps to the goal.

    The value tells this number: it is :math:`y = c + (\text{goal_reward} - c) \gamma^d`. Here
    :math:`c = \text{step_reward} / (1 - \gamma)` is the value of a goal that is never reached.

    :param values: values of pairs, any shape. Values beyond those of a goal that is reached, or
        never reached, count as these
    :param decay: factor for each step, in (0, 1]
    :param gamma: discount factor of the values, in (0, 1)
    :param goal_reward: reward of a transition that reaches the goal, as in the values
    :param step_reward: reward of every other transition, as in the values, less than
        ``(1 - gamma) * goal_reward``
    :return: numbers from 0 to 1, of the same shape
    """
    never = step_reward / (1.0 - gamma)
    discounts = ((values - never) / (goal_reward - never)).clamp(0.0, 1.0)
    return discounts ** (math.log(decay) / math.log(gamma))


def near_weights(
    values: th.Tensor,
    decay: float,
    floor: float,
    gamma: float,
    goal_reward: float,
    step_reward: float,
) -> th.Tensor:
    r"""
    Return weights that emphasize pairs of a state and a goal near each other.

    Every path to a goal ends with such pairs. The weights are

    .. math:: w_{sg} \propto \text{decay}^{d_{sg}} + \text{floor},

    where d is the number of steps to the goal, as :func:`nearness` tells it.

    :param values: values of pairs, shape (S, G). Where they depend on single outcomes of chance,
        lucky ones weigh more
    :param decay: factor of the weight for each step, in (0, 1]; 1 gives equal weights
    :param floor: weight of the farthest pairs, at least 0, before the weights are scaled to mean 1.
        A pair at its goal has the weight 1 + floor
    :param gamma: discount factor of the values, in (0, 1)
    :param goal_reward: reward of a transition that reaches the goal, as in the values
    :param step_reward: reward of every other transition, as in the values
    :return: weights with mean 1, shape (S, G)
    """
    weights = nearness(values, decay, gamma, goal_reward, step_reward) + floor
    return weights / weights.mean()


def pursued_weights(
    weights: th.Tensor | None, pursued: th.Tensor, share: float
) -> th.Tensor | None:
    r"""
    Return weights that emphasize pairs of a transition and the goal that was pursued in it.

    Such pairs say what follows from the agent's own way to its goal. Where observations do not tell
    everything, as beside a wall through which noise seems to show a way, other pairs mislead.
    Hindsight experience replay learns from each transition with its own goal, too, beside others
    (Andrychowicz et al. 2017). The weights are

    .. math:: (1 - z)\, w_{sg} + z\, p_{sg} / \bar{p},

    where z is ``share`` times the share of transitions whose goal is among the G goals. So a few
    such transitions do not make up the whole loss.

    :param weights: weights w of all pairs, with mean 1, shape (S, G). None: equal ones
    :param pursued: p, whether the goal was pursued in the transition, bool, shape (S, G)
    :param share: the share of all weight that is on these pairs if each transition has one, in
        [0, 1]
    :return: weights with mean 1, shape (S, G). ``weights`` if no pair was pursued, or the share is
        0
    """
    if share == 0.0 or not pursued.any():
        return weights
    own = pursued.float()
    own_share = share * own.amax(dim=1).mean()
    others = th.ones_like(own) if weights is None else weights
    return (1.0 - own_share) * others + own_share * own / own.mean()


def best_action_loss(
    q: th.Tensor, known: th.Tensor, best: th.Tensor, temperature: float
) -> th.Tensor:
    r"""
    Return the negative log-probability of the best actions under a softmax of the values.

    .. math:: -\log \sum_{a \in B_{sg}} \pi(a), \qquad \pi(a) \propto \exp(Q(s, a, g) / \tau)

    This is policy distillation (Rusu et al. 2016) with a plan as the teacher. A greedy policy
    depends on small differences of values, which hardly change the squared error.

    :param q: values of all actions, shape (S, G, A)
    :param known: whether the best actions of a pair are known, bool, shape (S, G). The loss of
        other pairs is 0
    :param best: whether an action is one of the best, bool, shape (S, G, A). Each known pair has
        at least one
    :param temperature: :math:`\tau`, positive, in the unit of ``q``
    :return: losses, shape (S, G)
    """
    # All actions of unknown pairs count as best, because the gradient of an empty sum is NaN.
    best = best | ~known[:, :, None]
    logits = q / temperature
    return logits.logsumexp(dim=2) - logits.masked_fill(~best, -th.inf).logsumexp(dim=2)


def planned_loss(
    q: th.Tensor,
    values: th.Tensor,
    best: th.Tensor,
    weights: th.Tensor,
    best_weight: float,
    temperature: float,
) -> th.Tensor:
    r"""
    Return the loss of each goal, where a plan knows the values of actions.

    .. math:: \mathcal{L}(g) = \frac{1}{S} \sum_s w_{sg} \Big( \frac{1}{|K_{sg}|}
        \sum_{a \in K_{sg}} (Q(s, a, g) - V_{sag})^2 + \lambda\, b_{sg} \Big)

    Here K are the actions with a known value, w are ``weights``, :math:`\lambda` is
    ``best_weight``, and b is :func:`best_action_loss`. The gradient is computed together with the
    loss: autograd would keep and read some twenty tensors of this size.

    :param q: the network's values of all actions, in steps, float32, shape (S, G, A)
    :param values: planned values, in steps, NaN where none is known, float32, shape (S, G, A)
    :param best: 1 for an action that is one of the best, 0 for others, float32, shape (S, G, A).
        Each pair with a known value has at least one
    :param weights: weights of pairs, 0 for those without a known value, float32, shape (S, G)
    :param best_weight: weight of the loss of the best actions, at least 0
    :param temperature: temperature of the loss of the best actions, in steps, positive
    :return: losses, shape (G,). They can be differentiated once, with respect to ``q``
    """
    arguments = (q, values, best, weights, best_weight, temperature)
    losses: th.Tensor = _PlannedLoss.apply(*arguments)  # type: ignore[no-untyped-call]
    return losses


class _PlannedLoss(th.autograd.Function):
    """The loss of :func:`planned_loss`, and its gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        q: th.Tensor,
        values: th.Tensor,
        best: th.Tensor,
        weights: th.Tensor,
        best_weight: float,
        temperature: float,
    ) -> th.Tensor:
        """Compute the losses, and keep their gradient."""
        # Numbers 0 and 1 are several times as fast as booleans here.
        known = values.clone().eq_(values)
        n_known = known.sum(dim=2, keepdim=True).clamp_(min=1.0)
        differences = (q - values.nan_to_num(nan=0.0)).mul_(known)
        errors = (differences.square().sum(dim=2, keepdim=True) / n_known)[:, :, 0]
        gradient = differences.mul_(2.0 / n_known)
        if best_weight:
            # All actions of unknown pairs count as best, because an empty sum has no logarithm.
            best = th.maximum(best, 1.0 - known.amax(dim=2, keepdim=True))
            logits = q / temperature
            shares, log_sum = _softmax(logits)
            shares_of_best, log_sum_of_best = _softmax(th.add(logits, best - 1.0, alpha=_NEVER))
            errors += best_weight * (log_sum - log_sum_of_best)
            gradient.add_(shares.sub_(shares_of_best), alpha=best_weight / temperature)
        ctx.save_for_backward(gradient.mul_(weights[:, :, None] / len(weights)))
        return (weights * errors).mean(dim=0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: th.Tensor) -> tuple[th.Tensor | None, ...]:
        """Return the gradient with respect to ``q``, and None for all other arguments."""
        (gradient,) = ctx.saved_tensors
        return gradient * grad_output[:, None], None, None, None, None, None


def _softmax(logits: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
    """Return probabilities of the last axis, and the logarithm of the sum of exponentials."""
    greatest = logits.amax(dim=2, keepdim=True)
    exponentials = (logits - greatest).clamp_(min=_LEAST_LOGIT).exp_()
    sums = exponentials.sum(dim=2, keepdim=True)
    log_sums = (greatest + sums.log())[:, :, 0]
    return exponentials.div_(sums), log_sums


def pairwise_td_loss(
    q: th.Tensor, targets: th.Tensor, weights: th.Tensor | None = None
) -> th.Tensor:
    r"""
    Return the paper's loss of each goal, :math:`\mathcal{L}(g)`.

    It is the squared Bellman error, averaged over the transitions. The paper has no weights.

    :param q: the network's values of the actions that were taken, for S transitions and G goals,
        shape (S, G)
    :param targets: targets of :func:`pairwise_td_targets`, shape (S, G)
    :param weights: weights of the pairs, such as those of :func:`near_weights`, shape (S, G). None:
        equal ones, as in the paper
    :return: one loss for each goal, shape (G,)
    """
    errors = (q - targets).square()
    if weights is not None:
        errors = weights * errors
    return errors.mean(dim=0)
