"""An actor-critic policy that shares its features with heads for auxiliary tasks."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch as th
from gymnasium import spaces
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, FlattenExtractor, NatureCNN
from stable_baselines3.common.type_aliases import Schedule
from torch import nn

from sb3_manygoals.auxiliary.episode_buffer import HISTORY
from sb3_manygoals.auxiliary.losses import REWARD_CLASSES, check_cells
from sb3_manygoals.goals.spaces import check_goal_space
from sb3_manygoals.networks import CNN_FROM, PaddedCNN, UniversalQNetwork
from sb3_manygoals.validation import check_action_space, how_to_offer_actions

Task = Literal["many_goals", "pixel_control", "reward_prediction"]


class PixelControlHead(nn.Module):
    """
    Values of all actions for each cell of a picture (Jaderberg et al. 2017).

    A fully connected layer to 32 channels is followed by two transposed convolutions of kernel 4
    and stride 2, one for values and one for advantages. Advantages are centered over actions
    (dueling; Wang et al. 2016). Cells too many are cut off.

    :param features_dim: number of features
    :param n_actions: A, the number of actions
    :param size: height and width of the pictures in pixels
    :param crop: side in pixels of the square in their middle that is to be controlled
    :param cell: side of a cell in pixels
    :raises ValueError: if the square is larger than the picture, or the cells do not fill it
    """

    CHANNELS = 32

    def __init__(
        self,
        features_dim: int,
        n_actions: int,
        size: tuple[int, int],
        crop: int = 80,
        cell: int = 4,
    ) -> None:
        super().__init__()
        check_cells(size, crop, cell)
        self.cells = crop // cell
        # The transposed convolutions make 2 * side + 2 cells.
        side = max(-(-self.cells // 2) - 1, 1)
        self.spread = nn.Sequential(
            nn.Linear(features_dim, self.CHANNELS * side * side),
            nn.ReLU(),
            nn.Unflatten(1, (self.CHANNELS, side, side)),
        )
        self.values = nn.ConvTranspose2d(self.CHANNELS, 1, kernel_size=4, stride=2)
        self.advantages = nn.ConvTranspose2d(self.CHANNELS, n_actions, kernel_size=4, stride=2)

    def forward(self, features: th.Tensor) -> th.Tensor:
        """
        Compute the values of all actions for each cell.

        :param features: shape (B, features_dim)
        :return: values, shape (B, A, crop / cell, crop / cell)
        """
        spread = self.spread(features)
        advantages = self.advantages(spread)
        q: th.Tensor = self.values(spread) + advantages - advantages.mean(dim=1, keepdim=True)
        return q[:, :, : self.cells, : self.cells]


class AuxiliaryActorCriticPolicy(ActorCriticPolicy):
    """
    SB3's actor-critic policy with a head for each auxiliary task.

    The heads stand on the features that actor and critic share. ::

        model = A2C(AuxiliaryActorCriticPolicy, env)
        model.learn(1_000_000, callback=ManyGoalsCallback(beta=0.02))

    For images of at least 36 pixels on each side it is SB3's "CnnPolicy" (convolutions 32-64-64, a
    layer of 512). For smaller images it is the same with
    :class:`~sb3_manygoals.networks.PaddedCNN`. For other observations it is SB3's "MlpPolicy".
    There actor and critic share nothing, so the heads take the last layers of both, side by side.

    Without auxiliary losses it learns exactly what SB3's policy does, because the initial weights
    of the heads come from a generator of their own. ``goal_target`` is the target network of the
    goal head, with a copy of the shared layers.

    :param observation_space: Box, Discrete, MultiDiscrete or MultiBinary. Images have channels
        first, as SB3 gives them to policies
    :param action_space: Discrete, starting at 0
    :param lr_schedule: learning rate as a function of the remaining progress
    :param tasks: the tasks that have a head: "many_goals", "pixel_control", "reward_prediction"
    :param embedding_dim: width of the embeddings of state and goal (1024 in the paper's gridworld)
    :param crop: side in pixels of the square in the middle of the picture that pixel control
        controls
    :param cell: side of a cell of this square in pixels
    :param net_arch: SB3's layers after the features extractor. None: none after the convolutions
        that are chosen by default and after SB3's NatureCNN, else two of 64 units each for actor
        and critic
    :param features_extractor_class: SB3's features extractor; None: as described above
    :param share_features_extractor: must be True; it is part of SB3's interface
    :param kwargs: further arguments of SB3's policy
    :raises TypeError: if actions are not Discrete and starting at 0, observations are not single
        arrays, or pixel control has no images
    :raises ValueError: if a task is unknown or named twice, actor and critic share nothing, or the
        square of pixel control does not fit
    """

    action_space: spaces.Discrete

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        lr_schedule: Schedule,
        tasks: Sequence[Task] = ("many_goals",),
        embedding_dim: int = 1024,
        crop: int = 80,
        cell: int = 4,
        net_arch: list[int] | dict[str, list[int]] | None = None,
        features_extractor_class: type[BaseFeaturesExtractor] | None = None,
        share_features_extractor: bool = True,
        **kwargs: Any,
    ) -> None:
        _check_tasks(tasks)
        if not isinstance(action_space, spaces.Discrete):
            raise TypeError(
                "action_space must be Discrete, as auxiliary tasks learn values of actions, got"
                f" {action_space}. {how_to_offer_actions(action_space)}"
            )
        check_action_space(action_space)
        shape, _ = check_goal_space(observation_space)
        if not share_features_extractor:
            raise ValueError(
                "share_features_extractor must be True: auxiliary tasks are for what actor and"
                " critic share"
            )
        if features_extractor_class is None:
            features_extractor_class = FlattenExtractor
            if is_image_space(observation_space):
                features_extractor_class = NatureCNN if min(shape[1:]) >= CNN_FROM else PaddedCNN
                # SB3 has no layers after a NatureCNN either.
                net_arch = [] if net_arch is None else net_arch
        super().__init__(
            observation_space,
            action_space,
            lr_schedule,
            net_arch,
            features_extractor_class=features_extractor_class,
            **kwargs,
        )
        self.tasks = tuple(tasks)
        self.embedding_dim = embedding_dim
        self.crop = crop
        self.cell = cell
        self.heads_on_towers = not list(self.features_extractor.parameters())
        """Whether the heads stand on the last layers of actor and critic, side by side."""
        if self.heads_on_towers and not list(self.mlp_extractor.parameters()):
            raise ValueError(
                "net_arch must have layers, or the features extractor weights: else there is"
                " nothing to share"
            )
        towers_dim = self.mlp_extractor.latent_dim_pi + self.mlp_extractor.latent_dim_vf
        self.shared_dim = towers_dim if self.heads_on_towers else self.features_dim
        """Number of features on which the heads stand."""
        with th.random.fork_rng(devices=[]):
            # The learner's generator gives the seed, and then goes on as in SB3. With a seed of
            # their own, the heads do not repeat the numbers of the learner's first actions.
            th.default_generator.manual_seed(int(th.randint(2**62, ())))
            self.heads = nn.ModuleDict({task: self._make_head(task) for task in self.tasks})
        self.goal_target: Any = None
        if "many_goals" in self.tasks:
            self.goal_target = copy.deepcopy(self._followed()).requires_grad_(False)
        if len(self.heads):
            self.optimizer.add_param_group({"params": list(self.heads.parameters())})

    def train(self, mode: bool = True) -> AuxiliaryActorCriticPolicy:
        """
        Switch to training or evaluation, as layers such as dropout need it.

        The target network always evaluates: its values must not be random.

        :param mode: whether the policy is trained
        :return: the policy
        """
        super().train(mode)
        # SB3's constructor calls this before there is a target network.
        target = getattr(self, "goal_target", None)
        if target is not None:
            target.eval()
        return self

    def shared_features(self, observations: th.Tensor, target: bool = False) -> th.Tensor:
        """
        Compute the features on which the heads stand.

        :param observations: the dtype of the space, shape (B, *observation_space.shape)
        :param target: whether to use the target network
        :return: features, shape (B, shared_dim)
        """
        network = self.goal_target if target else self
        features = BasePolicy.extract_features(self, observations, network.features_extractor)
        return th.cat(network.mlp_extractor(features), dim=1) if self.heads_on_towers else features

    def shared_parameters(self) -> list[nn.Parameter]:
        """
        Return the parameters that both A2C and the auxiliary tasks learn.

        :return: the parameters of the layers that compute :meth:`shared_features`
        """
        shared = self.mlp_extractor if self.heads_on_towers else self.features_extractor
        return list(shared.parameters())

    def goal_values(self, observations: th.Tensor, target: bool = False) -> th.Tensor:
        """
        Compute the values of trajectories, each for the goal at its end.

        Every observation passes the shared layers once.

        :param observations: shape (B, n + 1, *observation_space.shape). The last observation of
            each trajectory is its goal
        :param target: whether to use the target network
        :return: values of all actions, shape (B, n, A), by the learning network in all observations
            but the last, or by the target network in all observations but the first
        """
        wanted = observations[:, 1:] if target else observations
        features = self.shared_features(wanted.flatten(0, 1), target).view(*wanted.shape[:2], -1)
        head: Any = self.goal_target.head if target else self.heads["many_goals"]
        states = features if target else features[:, :-1]
        embedded = head.state_embedding(states.flatten(0, 1)).view(*states.shape[:2], -1)
        embedded_goals = head.goal_embedding(features[:, -1])[:, None]
        return head.head(embedded * embedded_goals)  # type: ignore[no-any-return]

    def cell_values(self, observations: th.Tensor) -> th.Tensor:
        """
        Compute the values of pixel control.

        :param observations: shape (B, n, *observation_space.shape)
        :return: values of all actions in each cell, shape (B, n, A, crop / cell, crop / cell)
        """
        q: th.Tensor = self.heads["pixel_control"](self.shared_features(observations.flatten(0, 1)))
        return q.view(*observations.shape[:2], *q.shape[1:])

    def reward_logits(self, observations: th.Tensor) -> th.Tensor:
        """
        Compute the logits of the next reward's class: zero, positive or negative.

        :param observations: three consecutive observations, oldest first, shape
            (B, 3, *observation_space.shape)
        :return: logits, shape (B, 3)
        """
        features = self.shared_features(observations.flatten(0, 1)).view(len(observations), -1)
        return self.heads["reward_prediction"](features)  # type: ignore[no-any-return]

    def update_goal_target(self) -> None:
        """Copy the goal head and the shared layers to the target network."""
        self.goal_target.load_state_dict(self._followed().state_dict())

    def _followed(self) -> nn.ModuleDict:
        """Return the layers that the target network is a copy of."""
        followed: dict[str, nn.Module] = {"features_extractor": self.features_extractor}
        if self.heads_on_towers:
            followed["mlp_extractor"] = self.mlp_extractor
        followed["head"] = self.heads["many_goals"]
        return nn.ModuleDict(followed)

    def _make_head(self, task: Task) -> nn.Module:
        """Make the head of a task. torch's generator draws its weights."""
        n_actions = int(self.action_space.n)
        if task == "many_goals":
            return UniversalQNetwork(nn.Identity(), self.shared_dim, n_actions, self.embedding_dim)
        if task == "reward_prediction":
            return nn.Sequential(
                nn.Linear(HISTORY * self.shared_dim, 128), nn.ReLU(), nn.Linear(128, REWARD_CLASSES)
            )
        if not is_image_space(self.observation_space):
            raise TypeError(
                "pixel control needs images: a uint8 Box of three axes with values 0 to 255, got"
                f" {self.observation_space}"
            )
        _, height, width = self.observation_space.shape or ()
        return PixelControlHead(self.shared_dim, n_actions, (height, width), self.crop, self.cell)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        """Return the arguments with which SB3 builds a saved policy again."""
        data = super()._get_constructor_parameters()
        return data | {
            "tasks": self.tasks,
            "embedding_dim": self.embedding_dim,
            "crop": self.crop,
            "cell": self.cell,
        }


def _check_tasks(tasks: Sequence[Task]) -> None:
    """Raise a ValueError if a task is unknown or named twice."""
    known = get_args(Task)
    is_known = not isinstance(tasks, str) and all(task in known for task in tasks)
    if not is_known or len(set(tasks)) != len(tasks):
        raise ValueError(
            f"tasks must be some of {', '.join(map(repr, known))}, each once, got {tasks!r}"
        )
