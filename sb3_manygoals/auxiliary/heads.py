"""The networks of the auxiliary tasks, each on top of features that the agent's own policy and value use too."""

from __future__ import annotations

import torch as th
from torch import nn

from sb3_manygoals.auxiliary.episode_buffer import HISTORY
from sb3_manygoals.auxiliary.losses import REWARD_CLASSES, check_cells
from sb3_manygoals.linear import Linear
from sb3_manygoals.networks import UniversalQNetwork


class GoalHead(nn.Module):
    """
    Values of all actions for goals, from features of observation and goal: what
    :class:`~sb3_manygoals.networks.UniversalQNetwork` is without its trunk. Observations and goals have the trunk in common,
    and an embedding each.

    :param features_dim: width of the features
    :param n_actions: number of actions
    :param embedding_dim: width of the two embeddings
    :raises ValueError: if ``embedding_dim`` is not positive
    """

    def __init__(self, features_dim: int, n_actions: int, embedding_dim: int = 1024) -> None:
        super().__init__()
        self.net = UniversalQNetwork(nn.Identity(), features_dim, n_actions, embedding_dim)

    def forward(self, features: th.Tensor, goal_features: th.Tensor) -> th.Tensor:
        """
        Trajectories, each with one goal, which is embedded once.

        :param features: of observations, shape (B, n, features_dim)
        :param goal_features: shape (B, features_dim)
        :return: values, shape (B, n, A)
        """
        states = self.net.state_embedding(features.flatten(0, 1)).view(*features.shape[:2], -1)
        q: th.Tensor = self.net.head(states * self.net.goal_embedding(goal_features)[:, None])
        return q


class PixelControlHead(nn.Module):
    """
    Values of all actions for each cell of a picture: a fully connected layer to 32 channels, then a transposed convolution of
    kernel 4 and stride 2 for the values of cells and one for the advantages of actions, whose mean is taken off (dueling;
    Wang et al. 2016). The 20x20 cells of Jaderberg et al. (2017) come from 9x9; of other numbers of cells, what is beyond
    them is cut off.

    :param features_dim: width of the features
    :param n_actions: number of actions
    :param size: height and width of the pictures
    :param crop: side of the square in their middle that is to be controlled, in pixels
    :param cell: side of a cell, in pixels
    :raises ValueError: if the square is larger than the picture, or the cells do not fill it
    """

    CHANNELS = 32

    def __init__(self, features_dim: int, n_actions: int, size: tuple[int, int], crop: int = 80, cell: int = 4) -> None:
        super().__init__()
        check_cells(size, crop, cell)
        self.crop, self.cell, self.cells = crop, cell, crop // cell
        side = max(-(-self.cells // 2) - 1, 1)  # 2 side + 2 cells come out
        self.spread = nn.Sequential(
            Linear(features_dim, self.CHANNELS * side * side), nn.ReLU(), nn.Unflatten(1, (self.CHANNELS, side, side))
        )
        self.values = nn.ConvTranspose2d(self.CHANNELS, 1, kernel_size=4, stride=2)
        self.advantages = nn.ConvTranspose2d(self.CHANNELS, n_actions, kernel_size=4, stride=2)

    def forward(self, features: th.Tensor) -> th.Tensor:
        """
        :param features: shape (B, features_dim)
        :return: values, shape (B, A, crop / cell, crop / cell)
        """
        spread = self.spread(features)
        advantages = self.advantages(spread)
        q: th.Tensor = self.values(spread) + advantages - advantages.mean(dim=1, keepdim=True)
        return q[:, :, : self.cells, : self.cells]


class RewardPredictionHead(nn.Module):
    """
    The kind of the next reward, from three observations in a row: their features side by side, a layer of 128, three classes
    (Jaderberg et al. 2017).

    :param features_dim: width of the features of one observation
    """

    WIDTH = 128

    def __init__(self, features_dim: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Flatten(), Linear(HISTORY * features_dim, self.WIDTH), nn.ReLU(), nn.Linear(self.WIDTH, REWARD_CLASSES)
        )

    def forward(self, features: th.Tensor) -> th.Tensor:
        """
        :param features: shape (B, 3, features_dim), oldest first
        :return: logits, shape (B, 3)
        """
        logits: th.Tensor = self.net(features)
        return logits
