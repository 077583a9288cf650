"""Universal value functions, on top of features of observations and goals."""

from typing import Any

import torch as th
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from sb3_manygoals.validation import check_count


class UniversalQNetwork(nn.Module):
    r"""
    A universal value function (Schaul et al. 2015): the values of all actions for any goal.

    .. math:: Q(s, \cdot, g) = W \,(A\,h(s) \odot B\,h(g)) + b

    States and goals share the trunk :math:`h`, but not the embeddings :math:`A` and :math:`B`. If
    they did, :math:`Q(s, a, g)` would equal :math:`Q(g, a, s)`. Goals that are no observations have
    a trunk of their own in place of the shared one. The values of S states for G goals cost S + G
    passes of the trunk and one matrix product.

    :param trunk: layers from observations to features, shape (B, features_dim)
    :param features_dim: number of features
    :param n_actions: A, the number of actions
    :param embedding_dim: D, width of the embeddings (1024 in the paper)
    :param goal_trunk: layers from goals to features, shape (B, goal_features_dim). None: goals are
        observations and go through ``trunk``
    :param goal_features_dim: number of features of goals. None: ``features_dim``
    :raises ValueError: if ``embedding_dim`` is not a positive whole number
    """

    def __init__(
        self,
        trunk: nn.Module,
        features_dim: int,
        n_actions: int,
        embedding_dim: int = 1024,
        goal_trunk: nn.Module | None = None,
        goal_features_dim: int | None = None,
    ) -> None:
        super().__init__()
        check_count("embedding_dim", embedding_dim)
        if goal_features_dim is None:
            goal_features_dim = features_dim
        self.trunk = trunk
        self.n_actions = n_actions
        self.state_embedding = nn.Linear(features_dim, embedding_dim)
        self.goal_embedding = nn.Linear(goal_features_dim, embedding_dim)
        self.head = nn.Linear(embedding_dim, n_actions)
        self.goal_trunk = goal_trunk

    def forward(self, observations: th.Tensor, goals: th.Tensor) -> th.Tensor:
        """
        Compute the values of all actions for observations, each with a goal of its own.

        :param observations: shape (B, *observation_space.shape)
        :param goals: the goal of each observation, shape (B, *goal_space.shape)
        :return: values, shape (B, A)
        """
        embedded_states, embedded_goals = self.embed(observations, goals)
        return self.head(embedded_states * embedded_goals)  # type: ignore[no-any-return]

    def embed(self, observations: th.Tensor, goals: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """
        Compute the embeddings of observations and goals, by one pass of the trunk if they share it.

        :param observations: shape (S, *observation_space.shape)
        :param goals: shape (G, *goal_space.shape)
        :return: embeddings of the observations and of the goals, one row each
        """
        of_states, of_goals = self._features(observations, goals)
        return self.state_embedding(of_states), self.goal_embedding(of_goals)

    def _features(self, observations: th.Tensor, goals: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """Return the features of observations and of goals, one row each."""
        if self.goal_trunk is not None:
            return self.trunk(observations), self.goal_trunk(goals)
        if observations.dtype == th.float16:
            # In mixed precision, which is bfloat16, torch does not join numbers of this dtype.
            observations = observations.float()
            goals = goals.float()
        features = self.trunk(th.cat([observations, goals]))
        of_states, of_goals = features.split([len(observations), len(goals)])
        return of_states, of_goals

    def pairwise(self, states: th.Tensor, goals: th.Tensor) -> th.Tensor:
        """
        Compute the values of all actions for every pair of a state and a goal.

        :param states: embeddings of S states, see :meth:`embed`
        :param goals: embeddings of G goals, see :meth:`embed`
        :return: values, shape (S, G, A)
        """
        # In mixed precision, embeddings are bfloat16.
        states = states.to(self.head.weight.dtype)
        # Multiply the goals into the weights of the head: shape (G, A, D).
        weighted = goals[:, None, :] * self.head.weight
        values = functional.linear(
            states, weighted.flatten(0, 1), self.head.bias.repeat(len(goals))
        )
        return values.view(len(states), len(goals), -1)

    def pairwise_best(
        self, states: th.Tensor, goals: th.Tensor, action_mask: th.Tensor | None = None
    ) -> th.Tensor:
        """
        Compute the value of the best action of each state for every goal.

        :param states: embeddings of S states, see :meth:`embed`
        :param goals: embeddings of G goals, see :meth:`embed`
        :param action_mask: whether each action is allowed, bool, shape (S, A). None: all are
        :return: values, shape (S, G). -inf where no action is allowed
        """
        values = self.pairwise(states, goals)
        if action_mask is not None:
            values = values.masked_fill(~action_mask[:, None, :], -th.inf)
        return values.amax(dim=2)

    def pairwise_taken(self, states: th.Tensor, goals: th.Tensor, actions: th.Tensor) -> th.Tensor:
        """
        Compute the value of one action of each state for every goal.

        This takes A times less work than :meth:`pairwise`.

        :param states: embeddings of S states, see :meth:`embed`
        :param goals: embeddings of G goals, see :meth:`embed`
        :param actions: an action for each state, int64, shape (S,)
        :return: values, shape (S, G)
        """
        return functional.linear(
            goals, states * self.head.weight[actions], self.head.bias[actions]
        ).T

    def values_of_taken(
        self, observations: th.Tensor, actions: th.Tensor, goals: th.Tensor
    ) -> th.Tensor:
        """
        Compute the value of one action in each observation for every goal.

        It is :meth:`pairwise_taken` of what :meth:`embed` returns, and may take less work.

        :param observations: shape (S, *observation_space.shape)
        :param actions: an action for each observation, int64, shape (S,)
        :param goals: shape (G, *goal_space.shape)
        :return: values, shape (S, G)
        """
        return self.pairwise_taken(*self.embed(observations, goals), actions)

    @th.no_grad()
    def shift_values(self, by: float) -> None:
        """
        Add a number to all values.

        :param by: the number
        """
        self.head.bias.add_(by)


class DistanceQNetwork(UniversalQNetwork):
    r"""
    A universal value function of the distance from a state and an action to a goal.

    .. math:: Q(s, a, g) = o - c \log(1 + \lVert A_a h(s) - B h(g) \rVert^2)

    Each action has its own embedding of the state, :math:`A_a`. The scale :math:`c > 0` and the
    offset :math:`o` are learned numbers.

    :param trunk: layers from observations to features, shape (B, features_dim)
    :param features_dim: number of features
    :param n_actions: A, the number of actions
    :param embedding_dim: D, width of the embeddings
    :param goal_trunk: layers from goals to features, shape (B, goal_features_dim). None: goals are
        observations and go through ``trunk``
    :param goal_features_dim: number of features of goals. None: ``features_dim``
    :raises ValueError: if ``embedding_dim`` is not a positive whole number
    """

    def __init__(
        self,
        trunk: nn.Module,
        features_dim: int,
        n_actions: int,
        embedding_dim: int = 128,
        goal_trunk: nn.Module | None = None,
        goal_features_dim: int | None = None,
    ) -> None:
        super().__init__(
            trunk, features_dim, n_actions, embedding_dim, goal_trunk, goal_features_dim
        )
        del self.head
        self.state_embedding = nn.Linear(features_dim, n_actions * embedding_dim)
        self.log_scale = nn.Parameter(th.zeros(()))
        self.offset = nn.Parameter(th.zeros(()))

    def forward(self, observations: th.Tensor, goals: th.Tensor) -> th.Tensor:
        """
        Compute the values of all actions for observations, each with a goal of its own.

        :param observations: shape (B, *observation_space.shape)
        :param goals: the goal of each observation, shape (B, *goal_space.shape)
        :return: values, shape (B, A)
        """
        embedded_states, embedded_goals = self.embed(observations, goals)
        differences = self._points(embedded_states) - embedded_goals[:, None]
        return self._values(differences.square().sum(dim=2))

    def pairwise(self, states: th.Tensor, goals: th.Tensor) -> th.Tensor:
        """
        Compute the values of all actions for every pair of a state and a goal.

        :param states: embeddings of S states, see :meth:`embed`
        :param goals: embeddings of G goals, see :meth:`embed`
        :return: values, shape (S, G, A)
        """
        values = self._pairwise_values(self._points(states).flatten(0, 1), goals)
        return values.view(len(states), self.n_actions, len(goals)).transpose(1, 2)

    def pairwise_taken(self, states: th.Tensor, goals: th.Tensor, actions: th.Tensor) -> th.Tensor:
        """
        Compute the value of one action of each state for every goal.

        This takes A times less work than :meth:`pairwise`.

        :param states: embeddings of S states, see :meth:`embed`
        :param goals: embeddings of G goals, see :meth:`embed`
        :param actions: an action for each state, int64, shape (S,)
        :return: values, shape (S, G)
        """
        points = self._points(states)[th.arange(len(states), device=states.device), actions]
        return self._pairwise_values(points, goals)

    def pairwise_best(
        self, states: th.Tensor, goals: th.Tensor, action_mask: th.Tensor | None = None
    ) -> th.Tensor:
        """
        Compute the value of the best action of each state for every goal, that of the nearest one.

        :param states: embeddings of S states, see :meth:`embed`
        :param goals: embeddings of G goals, see :meth:`embed`
        :param action_mask: whether each action is allowed, bool, shape (S, A). None: all are
        :return: values, shape (S, G). -inf where no action is allowed
        """
        squared = _squared_distances(self._points(states).flatten(0, 1), goals, self.offset.dtype)
        squared = squared.view(len(states), self.n_actions, len(goals))
        if action_mask is not None:
            squared = squared.masked_fill(~action_mask[:, :, None], th.inf)
        return self._values(squared.amin(dim=1))

    def values_of_taken(
        self, observations: th.Tensor, actions: th.Tensor, goals: th.Tensor
    ) -> th.Tensor:
        """
        Compute the value of one action in each observation for every goal.

        Only the embeddings of these actions are computed, which is A times less work than
        :meth:`embed`.

        :param observations: shape (S, *observation_space.shape)
        :param actions: an action for each observation, int64, shape (S,)
        :param goals: shape (G, *goal_space.shape)
        :return: values, shape (S, G)
        """
        of_states, of_goals = self._features(observations, goals)
        layer = self.state_embedding
        # Splitting the weights once keeps autograd from making a full gradient for each action.
        weights = layer.weight.view(self.n_actions, -1, layer.in_features).unbind()
        biases = layer.bias.view(self.n_actions, -1).unbind()
        order = actions.argsort()
        numbers = th.bincount(actions, minlength=self.n_actions).tolist()
        rows_of_actions = th.split(of_states[order], numbers)
        points = [
            functional.linear(rows, weight, bias)
            for rows, weight, bias in zip(rows_of_actions, weights, biases, strict=True)
            if len(rows)
        ]
        ordered = th.cat(points)
        return self._pairwise_values(ordered[order.argsort()], self.goal_embedding(of_goals))

    @th.no_grad()
    def shift_values(self, by: float) -> None:
        """
        Add a number to all values.

        :param by: the number
        """
        self.offset.add_(by)

    def _points(self, states: th.Tensor) -> th.Tensor:
        """Return the embeddings of states by action, shape (S, A, D)."""
        return states.view(len(states), self.n_actions, -1)

    def _pairwise_values(self, points: th.Tensor, goals: th.Tensor) -> th.Tensor:
        """Return the values of all pairs of points, shape (L, D), and goals, shape (G, D)."""
        arguments = (points, goals, self.log_scale, self.offset)
        values: th.Tensor = _DistanceValues.apply(*arguments)  # type: ignore[no-untyped-call]
        return values

    def _values(self, squared_distances: th.Tensor) -> th.Tensor:
        """Return the values that follow from squared distances, of the same shape."""
        return self.offset - self.log_scale.exp() * squared_distances.log1p()


def _squared_distances(points: th.Tensor, goals: th.Tensor, dtype: th.dtype) -> th.Tensor:
    """
    Return the squared distances of all pairs of points, shape (L, D), and goals, shape (G, D).

    :param points: points, float32 or bfloat16
    :param goals: goals, likewise
    :param dtype: dtype of the distances
    """
    left = points.to(dtype)
    right = goals.to(dtype)
    lengths = left.square().sum(dim=1)[:, None] + right.square().sum(dim=1)
    # Rounding may make squared distances negative.
    return th.addmm(lengths, left, right.T, alpha=-2.0).clamp_(min=0.0)


class _DistanceValues(th.autograd.Function):
    """
    The values of all pairs of a point and a goal by their distance, and their gradient. Autograd
    would keep and read several tensors with a number for each pair.
    """

    @staticmethod
    def forward(
        ctx: Any, points: th.Tensor, goals: th.Tensor, log_scale: th.Tensor, offset: th.Tensor
    ) -> th.Tensor:
        """
        Compute values, shape (L, G), of points, shape (L, D), and goals, shape (G, D).

        The numbers are float32, or bfloat16 that were computed in mixed precision.
        """
        plus_one = _squared_distances(points, goals, log_scale.dtype).add_(1.0)
        logarithms = plus_one.log()
        ctx.save_for_backward(points, goals, log_scale, plus_one, logarithms)
        return offset - log_scale.exp() * logarithms

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: th.Tensor) -> tuple[th.Tensor, ...]:
        """Return the gradients with respect to all four arguments."""
        points, goals, log_scale, plus_one, logarithms = ctx.saved_tensors
        scale = log_scale.exp()
        of_log_scale = -scale * (grad_output * logarithms).sum()
        of_distances = (grad_output / plus_one).mul_(-2.0 * scale)
        of_points = of_distances.sum(dim=1)[:, None] * points
        of_goals = of_distances.sum(dim=0)[:, None] * goals
        of_distances = of_distances.to(points.dtype)
        of_points -= of_distances @ goals
        of_goals -= of_distances.T @ points
        return of_points.to(points.dtype), of_goals.to(goals.dtype), of_log_scale, grad_output.sum()
