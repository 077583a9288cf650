"""What an update descends: the loss of each goal, by one network or two and whatever options a model has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch as th

from sb3_manygoals.goals import UNKNOWN
from sb3_manygoals.losses import (
    best_along_segments,
    large_margin_loss,
    n_step_td_targets,
    near_weights,
    pairwise_td_loss,
    pairwise_td_targets,
    widen_action_gap,
)
from sb3_manygoals.many_goals_dqn.replay_buffer import ManyGoalsSamples

if TYPE_CHECKING:
    from sb3_manygoals.many_goals_dqn.many_goals_dqn import ManyGoalsDQN

_AS_GOOD = 0.02
"""Actions whose values fall short of the best by no more than this share of a step's cost are as good."""


def pairwise_losses(
    model: ManyGoalsDQN, batch: ManyGoalsSamples, goals: th.Tensor, goal_ids: th.Tensor, met: th.Tensor | None = None
) -> th.Tensor:
    """
    Every transition with every goal.

    :param model: whose networks and options
    :param batch: S transitions
    :param goals: observations, shape (G, *observation_space.shape)
    :param goal_ids: their ids, shape (G,) int64
    :param met: rows of the batch whose next observations the first M goals are, shape (M,) int64: they go through the target
        network once for both; None: not known
    :return: shape (G,)
    """
    net, n = model.q_net, len(batch.actions)
    with th.no_grad():
        next_q, current_q = _target_values(model, batch, goals, met)
    features = net.trunk(th.cat([batch.observations, goals]))
    goal_embeddings = net.goal_embedding(features[n:])
    q = net.pairwise_taken(net.state_embedding(features[:n]), goal_embeddings, batch.actions)
    next_q_online = None
    if model.double_q:
        with th.no_grad():
            next_q_online = net.pairwise(net.state_embedding(net.trunk(batch.next_observations)), goal_embeddings)
    targets = _targets(model, batch, goal_ids, next_q, next_q_online)
    weights = None
    if model.near_decay < 1.0:
        rewards = (model.gamma, model.goal_reward, model.step_reward)
        weights = near_weights(targets, model.near_decay, model.near_floor, *rewards)
    if current_q is not None:
        targets = widen_action_gap(targets, current_q, batch.actions, model.action_gap)
    return pairwise_td_loss(q, targets, weights)


def _target_values(
    model: ManyGoalsDQN, batch: ManyGoalsSamples, goals: th.Tensor, met: th.Tensor | None
) -> tuple[th.Tensor, th.Tensor | None]:
    """By the target network, of the observations after the transitions, and before them if the action gap needs these."""
    target, n, n_met = model.q_net_target, len(batch.actions), 0 if met is None else len(met)
    features = target.trunk(th.cat([batch.next_observations, goals[n_met:]]))
    goal_features = features[n:] if met is None else th.cat([features[met], features[n:]])
    goal_embeddings = target.goal_embedding(goal_features)
    next_q = target.pairwise(target.state_embedding(features[:n]), goal_embeddings)
    if not model.action_gap:
        return next_q, None
    return next_q, target.pairwise(target.state_embedding(target.trunk(batch.observations)), goal_embeddings)


def planned_losses(model: ManyGoalsDQN, batch: ManyGoalsSamples, goals: th.Tensor, goal_ids: th.Tensor) -> th.Tensor:
    """
    Every state with every goal, all actions that were tried there, by the values of the model's plan; what these do not tell
    teaches nothing. With a margin, the actions that the plan finds best must also lead all others by it.

    :param model: whose network, plan and options
    :param batch: S transitions, of which only the observations before them are used
    :param goals: observations, shape (G, *observation_space.shape)
    :param goal_ids: their ids, shape (G,) int64
    :return: shape (G,)
    """
    assert model.plan is not None
    assert batch.states is not None
    net, n = model.q_net, len(batch.observations)
    planned = th.as_tensor(model.plan.action_values(batch.states.cpu().numpy(), goal_ids.cpu().numpy()), device=goals.device)
    features = net.trunk(th.cat([batch.observations, goals]))
    q = net.pairwise(net.state_embedding(features[:n]), net.goal_embedding(features[n:]))
    told = ~planned.isnan()
    known = told.any(dim=2)
    values = planned.nan_to_num(nan=-th.inf).amax(dim=2, keepdim=True)
    weights = known.float()
    if model.near_decay < 1.0:
        rewards = (model.gamma, model.goal_reward, model.step_reward)
        weights = weights * near_weights(values[:, :, 0], model.near_decay, model.near_floor, *rewards)
    errors = th.where(told, q - planned, 0.0).square().sum(dim=2) / told.sum(dim=2).clamp(min=1)
    if model.margin_weight:
        best = planned >= values - _AS_GOOD * (model.goal_reward - model.step_reward)
        errors = errors + model.margin_weight * large_margin_loss(q, known, best, model.margin)
    return (weights * errors).mean(dim=0)


def pursued_losses(model: ManyGoalsDQN, batch: ManyGoalsSamples, goals: th.Tensor, goal_ids: th.Tensor) -> th.Tensor:
    """
    Each transition with one goal, its own.

    :param model: whose networks and options
    :param batch: S transitions
    :param goals: the goal of each, shape (S, *observation_space.shape)
    :param goal_ids: their ids, -1 where the goal is not known, shape (S,) int64
    :return: shape (S,)
    """
    with th.no_grad():
        next_q = model.q_net_target(batch.next_observations, goals)[:, None]
        next_q_online = model.q_net(batch.next_observations, goals)[:, None] if model.double_q else None
    q = model.q_net(batch.observations, goals).gather(1, batch.actions[:, None])
    targets = pairwise_td_targets(
        next_q,
        (batch.next_ids == goal_ids)[:, None],
        batch.terminated,
        model.gamma,
        model.goal_reward,
        model.step_reward,
        next_q_online,
        batch.next_action_mask,
    )
    # as S goals with one transition each; those whose goal is not known have no part in the mean
    known = goal_ids != UNKNOWN
    return pairwise_td_loss(q.T, targets.T) * known * (len(known) / known.sum().clamp(min=1))


def _targets(
    model: ManyGoalsDQN,
    batch: ManyGoalsSamples,
    goal_ids: th.Tensor,
    next_q: th.Tensor,
    next_q_online: th.Tensor | None,
) -> th.Tensor:
    rest = (batch.terminated, model.gamma, model.goal_reward, model.step_reward, next_q_online, batch.next_action_mask)
    if batch.path_ids is not None and batch.path_lengths is not None:
        reached = batch.path_ids[:, :, None] == goal_ids
        # the first of equal maxima
        reached_after = th.where(reached.any(dim=1), reached.byte().argmax(dim=1) + 1, 0)
        return n_step_td_targets(next_q, reached_after, batch.path_lengths, *rest)
    achieved = batch.next_ids[:, None] == goal_ids
    targets = pairwise_td_targets(next_q, achieved, *rest)
    if batch.goes_on is None:
        return targets
    return best_along_segments(targets, achieved, batch.goes_on, model.segment_length, model.gamma, model.step_reward)
