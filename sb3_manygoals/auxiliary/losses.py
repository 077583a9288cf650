"""The losses of the auxiliary tasks, as pure functions of tensors: one loss a transition."""

import torch as th
from torch.nn import functional

REWARD_CLASSES = 3
"""Classes of rewards: 0 zero, 1 positive, 2 negative."""


def mean_of_real(losses: th.Tensor, real: th.Tensor) -> th.Tensor:
    """
    :param losses: one a transition, any shape
    :param real: which transitions count, at least one, bool, the same shape
    :return: the mean of these losses, the paper's expectation, shape ()
    """
    return losses.masked_fill(~real, 0.0).sum() / real.sum()


def many_goals_losses(
    q: th.Tensor,
    next_q: th.Tensor,
    actions: th.Tensor,
    achieved: th.Tensor,
    gamma: float,
    goal_reward: float,
    step_reward: float,
) -> th.Tensor:
    r"""
    The squared Bellman error of each transition for the goal of its trajectory, the last observation. Its mean is the
    objective of Veeriah et al. (2018), section 5,

    .. math:: \mathcal{L}^Q = \mathbb{E} \bigl[r_g + \gamma_g \max_{a'} Q_{\theta^-}(s', a', g) - Q_\theta(s, a, g)\bigr]^2

    Targets pass no gradient. Where the goal is reached, at the end of the trajectory or before, they are ``goal_reward``.

    :param q: values of all actions for the trajectory's goal, by the learning network, shape (B, n, A)
    :param next_q: those of the next observations, by the target network, shape (B, n, A)
    :param actions: actions taken, int64, shape (B, n)
    :param achieved: whether the next observation is the goal, bool, shape (B, n)
    :param gamma: discount factor, in [0, 1)
    :param goal_reward: reward of a transition that reaches the goal, ``step_reward`` of every other one
    :return: squared errors, shape (B, n)
    """
    # only the last transition of a trajectory can end an episode, and it reaches the goal
    targets = (step_reward + gamma * next_q.detach().amax(dim=-1)).masked_fill(
        achieved, goal_reward
    )
    return (q.gather(-1, actions[..., None]).squeeze(-1) - targets).square()


def pixel_changes(images: th.Tensor, crop: int, cell: int) -> th.Tensor:
    """
    The pseudo-rewards of pixel control (Jaderberg et al. 2017): for each cell of a square in the middle of the picture, the
    mean absolute difference between consecutive observations, over pixels and channels.

    :param images: in [0, 1] as in the source, shape (..., n + 1, C, H, W)
    :param crop: side of the square in pixels; if it cannot be exactly in the middle, it is a pixel further up or left
    :param cell: side of a cell in pixels, a divisor of ``crop``
    :return: shape (..., n, crop / cell, crop / cell)
    :raises ValueError: if the square is larger than the picture, or the cells do not fill it
    """
    height, width = images.shape[-2:]
    check_cells((height, width), crop, cell)
    top, left = (height - crop) // 2, (width - crop) // 2
    images = images[..., top : top + crop, left : left + crop]
    changes = (
        (images[..., 1:, :, :, :] - images[..., :-1, :, :, :]).abs().mean(dim=-3)
    )  # (..., n, crop, crop)
    cells = crop // cell
    return changes.reshape(*changes.shape[:-2], cells, cell, cells, cell).mean(dim=(-3, -1))


def check_cells(size: tuple[int, int], crop: int, cell: int) -> None:
    """:raises ValueError: if the square is larger than a picture of this height and width, or the cells do not fill it"""
    if not 1 <= crop <= min(size):
        raise ValueError(
            f"crop must be between 1 and the smaller side of the picture, {size[0]}x{size[1]}, got {crop!r}"
        )
    if cell < 1 or crop % cell:
        raise ValueError(f"cell must be a divisor of crop, {crop}, got {cell!r}")


def pixel_control_losses(
    q: th.Tensor,
    actions: th.Tensor,
    changes: th.Tensor,
    terminated: th.Tensor,
    valid: th.Tensor,
    gamma: float,
) -> th.Tensor:
    r"""
    n-step Q-learning of how to change each cell c of the picture (Jaderberg et al. 2017): for each transition the *sum* over
    cells of

    .. math:: \frac{1}{2} \Bigl(\sum_{k=t}^{n-1} \gamma^{k-t} r^c_k + \gamma^{n-t} \max_a Q^c(s_n, a) - Q^c(s_t, a_t)\Bigr)^2

    The target passes no gradient. Nothing is added after the end of an episode.

    :param q: values of all actions in each cell, shape (B, n + 1, A, h, w)
    :param actions: actions taken, int64, shape (B, n)
    :param changes: from :func:`pixel_changes`, shape (B, n, h, w)
    :param terminated: whether the last real transition of a trajectory ended the episode, bool, shape (B,)
    :param valid: which transitions are real, from the first on, bool, shape (B, n)
    :param gamma: discount factor
    :return: shape (B, n); 0 where there is no transition
    """
    returns, targets = (
        q[:, -1].detach().amax(dim=1).masked_fill(terminated[:, None, None], 0.0),
        th.empty_like(changes),
    )
    for step in reversed(range(changes.shape[1])):
        targets[:, step] = returns = th.where(
            valid[:, step, None, None], changes[:, step] + gamma * returns, returns
        )
    index = actions[:, :, None, None, None].expand(-1, -1, 1, *q.shape[3:])
    errors = targets - q[:, :-1].gather(2, index).squeeze(2)
    return 0.5 * errors.square().sum(dim=(2, 3)) * valid


def reward_prediction_losses(logits: th.Tensor, rewards: th.Tensor) -> th.Tensor:
    """
    Cross-entropy of the sign of the next reward: zero, positive or negative (Jaderberg et al. 2017).

    :param logits: shape (B, 3)
    :param rewards: shape (B,)
    :return: shape (B,)
    """
    return functional.cross_entropy(
        logits, th.where(rewards > 0, 1, th.where(rewards < 0, 2, 0)), reduction="none"
    )
