"""Losses of the auxiliary tasks, as pure functions of tensors: one loss for each transition."""

import torch as th
from torch.nn import functional

REWARD_CLASSES = 3
"""Number of classes of rewards: 0 is zero, 1 is positive, 2 is negative."""


def mean_of_real(losses: th.Tensor, real: th.Tensor) -> th.Tensor:
    """
    Return the mean loss of the real transitions, which is the paper's expectation.

    :param losses: one loss for each transition, any shape
    :param real: whether a transition is real and not padding, bool, the shape of ``losses``. At
        least one is
    :return: the mean, shape ()
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
    Return the squared Bellman error of each transition for the goal of its trajectory.

    The goal is the last observation of the trajectory. The mean of the losses is the objective of
    Veeriah et al. (2018), section 5,

    .. math:: \mathcal{L}^Q = \mathbb{E}
        \bigl[r_g + \gamma_g \max_{a'} Q_{\theta^-}(s', a', g) - Q_\theta(s, a, g)\bigr]^2

    Targets pass no gradient. Where a transition reaches the goal, its target is ``goal_reward``,
    also before the end of the trajectory.

    :param q: values of all actions for the trajectory's goal, by the learning network, shape
        (B, n, A)
    :param next_q: values of all actions in the next observations, by the target network, shape
        (B, n, A)
    :param actions: actions taken, int64, shape (B, n)
    :param achieved: whether the next observation is the goal, bool, shape (B, n)
    :param gamma: discount factor, in [0, 1)
    :param goal_reward: reward of a transition that reaches the goal
    :param step_reward: reward of every other transition
    :return: squared errors, shape (B, n)
    """
    # The end of an episode needs no target of its own: only the last transition of a trajectory
    # can end one, and it reaches the goal.
    targets = step_reward + gamma * next_q.detach().amax(dim=-1)
    targets = targets.masked_fill(achieved, goal_reward)
    return (q.gather(-1, actions[..., None]).squeeze(-1) - targets).square()


def pixel_changes(images: th.Tensor, crop: int, cell: int) -> th.Tensor:
    """
    Return the pseudo-rewards of pixel control (Jaderberg et al. 2017).

    A square in the middle of the picture is cut into cells. The pseudo-reward of a cell is the
    mean absolute difference between consecutive observations, over its pixels and channels.

    :param images: pictures with values in [0, 1], as in the source, shape (..., n + 1, C, H, W)
    :param crop: side of the square in pixels. If it cannot be exactly in the middle, it is a pixel
        further up or left
    :param cell: side of a cell in pixels, a divisor of ``crop``
    :return: pseudo-rewards, shape (..., n, crop / cell, crop / cell)
    :raises ValueError: if the square is larger than the picture, or the cells do not fill it
    """
    height, width = images.shape[-2:]
    check_cells((height, width), crop, cell)
    top = (height - crop) // 2
    left = (width - crop) // 2
    images = images[..., top : top + crop, left : left + crop]
    differences = images[..., 1:, :, :, :] - images[..., :-1, :, :, :]
    changes = differences.abs().mean(dim=-3)
    cells = crop // cell
    return changes.reshape(*changes.shape[:-2], cells, cell, cells, cell).mean(dim=(-3, -1))


def check_cells(size: tuple[int, int], crop: int, cell: int) -> None:
    """
    Raise an error if a square of a picture cannot be cut into cells.

    :param size: height and width of the picture in pixels
    :param crop: side of the square in pixels
    :param cell: side of a cell in pixels
    :raises ValueError: if the square is larger than the picture, or the cells do not fill it
    """
    if not 1 <= crop <= min(size):
        raise ValueError(
            f"crop must be between 1 and the smaller side of the picture, {size[0]}x{size[1]},"
            f" got {crop!r}: policy_kwargs of the policy has crop, by default 80, and cell"
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
    Return the losses of n-step Q-learning of how to change each cell c of the picture.

    The loss of a transition is the *sum* over cells (Jaderberg et al. 2017) of

    .. math:: \frac{1}{2} \Bigl(\sum_{k=t}^{n-1} \gamma^{k-t} r^c_k
        + \gamma^{n-t} \max_a Q^c(s_n, a) - Q^c(s_t, a_t)\Bigr)^2

    The target passes no gradient. Nothing is added after the end of an episode.

    :param q: values of all actions in each cell, shape (B, n + 1, A, h, w)
    :param actions: actions taken, int64, shape (B, n)
    :param changes: pseudo-rewards of :func:`pixel_changes`, shape (B, n, h, w)
    :param terminated: whether the last real transition of a trajectory ended the episode, bool,
        shape (B,)
    :param valid: whether a transition is real and not padding, bool, shape (B, n). Real transitions
        come first
    :param gamma: discount factor, in [0, 1]
    :return: losses, shape (B, n); 0 where there is no transition
    """
    returns = q[:, -1].detach().amax(dim=1).masked_fill(terminated[:, None, None], 0.0)
    targets = th.empty_like(changes)
    for step in reversed(range(changes.shape[1])):
        is_valid = valid[:, step, None, None]
        returns = th.where(is_valid, changes[:, step] + gamma * returns, returns)
        targets[:, step] = returns
    index = actions[:, :, None, None, None].expand(-1, -1, 1, *q.shape[3:])
    errors = targets - q[:, :-1].gather(2, index).squeeze(2)
    return 0.5 * errors.square().sum(dim=(2, 3)) * valid


def reward_prediction_losses(logits: th.Tensor, rewards: th.Tensor) -> th.Tensor:
    """
    Return the cross-entropy of the sign of the next reward (Jaderberg et al. 2017).

    :param logits: logits of a zero, a positive and a negative reward, shape (B, 3)
    :param rewards: the next rewards, shape (B,)
    :return: losses, shape (B,)
    """
    classes = th.where(rewards > 0, 1, th.where(rewards < 0, 2, 0))
    return functional.cross_entropy(logits, classes, reduction="none")
