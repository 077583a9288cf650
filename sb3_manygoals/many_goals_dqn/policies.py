"""Policies of ManyGoalsDQN: greedy in a universal value function."""

from __future__ import annotations

from typing import Any, Literal

import torch as th
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, FlattenExtractor
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from torch import nn

from sb3_manygoals.action_masks import check_action_masks
from sb3_manygoals.networks import DistanceQNetwork, PaddedCNN, Preprocess, UniversalQNetwork, check_image_space, make_trunk

_HEADS: dict[str, type[UniversalQNetwork]] = {
    "bilinear": UniversalQNetwork,
    "distance": DistanceQNetwork,
}


class ManyGoalsPolicy(BasePolicy):
    """
    A universal Q-network and its target network, for goal observations.

    :param observation_space: Dict with "observation", "achieved_goal" and "desired_goal"
    :param action_space: Discrete
    :param lr_schedule: learning rate, a function of the remaining progress
    :param net_arch: widths of the shared layers after the features extractor
    :param embedding_dim: width of the state and the goal embedding
    :param activation_fn: activation of those layers
    :param layer_norm: whether to end the trunk with layer normalization
    :param ortho_init: whether weights of the trunk begin orthogonal, as those of SB3's actor-critics do: for one that is to be
        the beginning of such
    :param standardize: whether to standardize observations, element by element, by what is known when learning starts
    :param head: "bilinear" of the embeddings, as in the paper (:class:`~sb3_manygoals.networks.UniversalQNetwork`),
        or "distance" between them (:class:`~sb3_manygoals.networks.DistanceQNetwork`)
    :param ema_decay: share that an average of the weights over updates keeps of itself at each, less in the first ones; greedy
        actions are those of the averaged network then. 0.0: no average, actions of the network that learns
    :param features_extractor_class: SB3 features extractor, the first part of the shared trunk; sees images channels first
    :param features_extractor_kwargs: its further arguments
    :param normalize_images: whether to divide images by 255
    :param optimizer_class: Adam by default. For the paper's RMSProp see :class:`~sb3_manygoals.optim.FusedRMSprop`, whose
        epsilon, 1e-12 by default here, is inside the root. (Under torch's own form the second moments of rarely used weights
        decay into denormal numbers, whose square roots are some fifty times slower.)
    :param optimizer_kwargs: its arguments other than the learning rate
    """

    action_space: spaces.Discrete
    ema_updates: th.Tensor

    def __init__(
        self,
        observation_space: spaces.Dict,
        action_space: spaces.Discrete,
        lr_schedule: Schedule,
        net_arch: list[int] | None = None,
        embedding_dim: int = 128,
        activation_fn: type[nn.Module] = nn.GELU,
        layer_norm: bool = False,
        ortho_init: bool = False,
        standardize: bool = True,
        head: Literal["bilinear", "distance"] = "distance",
        ema_decay: float = 0.999,
        features_extractor_class: type[BaseFeaturesExtractor] = FlattenExtractor,
        features_extractor_kwargs: dict[str, Any] | None = None,
        normalize_images: bool = True,
        optimizer_class: type[th.optim.Optimizer] = th.optim.Adam,
        optimizer_kwargs: dict[str, Any] | None = None,
    ) -> None:
        if head not in _HEADS:
            raise ValueError(f"head must be one of {', '.join(map(repr, _HEADS))}, got {head!r}")
        if not 0.0 <= ema_decay < 1.0:
            raise ValueError(f"ema_decay must be a number in [0, 1), got {ema_decay!r}")
        if optimizer_kwargs is None and issubclass(optimizer_class, RMSpropTFLike):
            optimizer_kwargs = {"alpha": 0.99, "eps": 1e-12}
        if optimizer_kwargs is None and optimizer_class is th.optim.Adam:
            optimizer_kwargs = {"fused": True}
        super().__init__(
            observation_space,
            action_space,
            features_extractor_class,
            features_extractor_kwargs,
            normalize_images=normalize_images,
            optimizer_class=optimizer_class,
            optimizer_kwargs=optimizer_kwargs,
        )
        self.net_arch = [] if net_arch is None else net_arch
        self.embedding_dim = embedding_dim
        self.activation_fn = activation_fn
        self.layer_norm = layer_norm
        self.ortho_init = ortho_init
        self.standardize = standardize
        self.head = head
        self.ema_decay = ema_decay
        self.q_net = self.make_q_net()
        self.q_net_target = self._follower()
        self.q_net_ema = self._follower() if ema_decay else None
        if ema_decay:
            self.register_buffer("ema_updates", th.zeros((), device=self.device))
        self.optimizer = self.optimizer_class(
            self.q_net.parameters(),
            lr=lr_schedule(1),  # type: ignore[call-arg]
            **self.optimizer_kwargs,
        )

    def make_q_net(self) -> UniversalQNetwork:
        """:return: a new network on the policy's device"""
        assert isinstance(self.observation_space, spaces.Dict)
        preprocess = Preprocess(self.observation_space["observation"], self.normalize_images, self.standardize)
        extractor = self.features_extractor_class(preprocess.space, **self.features_extractor_kwargs)
        trunk, features_dim = make_trunk(
            preprocess, extractor, self.net_arch, self.activation_fn, self.layer_norm, self.ortho_init
        )
        n_actions = int(self.action_space.n)
        return _HEADS[self.head](trunk, features_dim, n_actions, self.embedding_dim).to(self.device)

    @property
    def trunk(self) -> nn.Module:
        """What observations and goals share, of the network that learns."""
        return self.q_net.trunk

    def _follower(self) -> UniversalQNetwork:
        """A network that is not trained but follows the one that is, and starts equal to it."""
        network = self.make_q_net()
        network.load_state_dict(self.q_net.state_dict())
        return network.requires_grad_(False).eval()

    @th.no_grad()
    def update_ema(self) -> None:
        """Take the weights that an update gave into the average, if there is one."""
        if self.q_net_ema is not None:
            self.ema_updates += 1.0
            # as TensorFlow's ExponentialMovingAverage: the first ones count less, so that the beginning is soon forgotten
            share = (9.0 / (10.0 + self.ema_updates)).clamp(min=1.0 - self.ema_decay)
            for average, learned in zip(self.q_net_ema.parameters(), self.q_net.parameters(), strict=True):
                average.lerp_(learned, share)
            for buffer, ours in zip(self.q_net_ema.buffers(), self.q_net.buffers(), strict=True):
                buffer.copy_(ours)

    def fit_standardization(self, observations: th.Tensor) -> None:
        """
        :param observations: what to standardize by from now on, shape (B, *observation_space.shape); without effect if the
            policy does not standardize
        """
        if self.standardize:
            for network in filter(None, (self.q_net, self.q_net_target, self.q_net_ema)):
                preprocess = network.trunk[0]  # type: ignore[index]
                preprocess.fit(observations)

    def shift_values(self, by: float) -> None:
        """
        :param by: what is added to all values, of each network
        """
        for network in filter(None, (self.q_net, self.q_net_target, self.q_net_ema)):
            network.shift_values(by)

    def forward(self, obs: PyTorchObs, deterministic: bool = True) -> th.Tensor:
        """
        :param obs: goal observations, tensors of shape (B, *space.shape)
        :param deterministic: not used: exploration is the algorithm's
        :return: greedy actions, shape (B,)
        """
        return self._predict(obs, deterministic)

    def _predict(
        self, observation: PyTorchObs, deterministic: bool = True, action_masks: th.Tensor | None = None
    ) -> th.Tensor:
        assert isinstance(observation, dict)
        network = self.q_net if self.q_net_ema is None else self.q_net_ema
        q: th.Tensor = network(observation["observation"], observation["desired_goal"])
        if action_masks is not None:
            q = q.masked_fill(~action_masks, -th.inf)
        return q.argmax(dim=1)

    def predict(
        self,
        observation: NDArray[Any] | dict[str, NDArray[Any]],
        state: tuple[NDArray[Any], ...] | None = None,
        episode_start: NDArray[Any] | None = None,
        deterministic: bool = False,
        action_masks: NDArray[Any] | None = None,
    ) -> tuple[NDArray[Any], tuple[NDArray[Any], ...] | None]:
        """
        Greedy actions.

        :param observation: goal observations, one of each or a batch
        :param state: not used
        :param episode_start: not used
        :param deterministic: not used: exploration is the algorithm's
        :param action_masks: actions allowed, shape (A,) or (n, A), None for all
        :return: actions, int64, of shape () or (n,), and ``state``
        :raises ValueError: if the masks do not fit the observations, or allow nothing
        """
        if action_masks is None:
            return super().predict(observation, state, episode_start, deterministic)
        self.set_training_mode(False)
        tensors, vectorized = self.obs_to_tensor(observation)
        assert isinstance(tensors, dict)
        masks = check_action_masks(action_masks, len(tensors["observation"]), int(self.action_space.n))
        with th.no_grad():
            actions = self._predict(tensors, deterministic, th.as_tensor(masks, device=self.device)).cpu().numpy()
        return actions if vectorized else actions.squeeze(axis=0), state

    def set_training_mode(self, mode: bool) -> None:
        """:param mode: True for training; the target network stays in evaluation mode"""
        if self.q_net.training != mode:  # which takes its time, and is asked for at every step
            self.q_net.train(mode)
        self.training = mode

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {
            **super()._get_constructor_parameters(),
            "net_arch": self.net_arch,
            "embedding_dim": self.embedding_dim,
            "activation_fn": self.activation_fn,
            "layer_norm": self.layer_norm,
            "ortho_init": self.ortho_init,
            "standardize": self.standardize,
            "head": self.head,
            "ema_decay": self.ema_decay,
            "lr_schedule": self._dummy_schedule,
            "features_extractor_class": self.features_extractor_class,
            "features_extractor_kwargs": self.features_extractor_kwargs,
            "optimizer_class": self.optimizer_class,
            "optimizer_kwargs": self.optimizer_kwargs,
        }


_SMALLEST_FOR_CNN = 36
"""Pixels a side from which on images go through convolutions by default."""


class CnnPolicy(ManyGoalsPolicy):
    """
    For images. By default those of at least 36 pixels a side go through the convolutions of the Nature DQN
    (:class:`PaddedCNN`). Smaller ones, whose pixels are cells of a gridworld, go through two layers of 512 units, as it is
    places that count. Arguments as in :class:`ManyGoalsPolicy`.
    """

    def __init__(
        self,
        observation_space: spaces.Dict,
        action_space: spaces.Discrete,
        lr_schedule: Schedule,
        net_arch: list[int] | None = None,
        features_extractor_class: type[BaseFeaturesExtractor] | None = None,
        **kwargs: Any,
    ) -> None:
        if features_extractor_class is None:
            check_image_space(observation_space["observation"])
            shape = Preprocess(observation_space["observation"]).space.shape
            assert shape is not None
            small = min(shape[-2:]) < _SMALLEST_FOR_CNN
            features_extractor_class = FlattenExtractor if small else PaddedCNN
            net_arch = [512, 512] if small and net_arch is None else net_arch
        super().__init__(
            observation_space,
            action_space,
            lr_schedule,
            net_arch,
            features_extractor_class=features_extractor_class,
            **kwargs,
        )


class MlpPolicy(ManyGoalsPolicy):
    """
    For vectors: the shared trunk is two layers of 512 units. Arguments as in :class:`ManyGoalsPolicy`.
    """

    def __init__(
        self,
        observation_space: spaces.Dict,
        action_space: spaces.Discrete,
        lr_schedule: Schedule,
        net_arch: list[int] | None = None,
        **kwargs: Any,
    ) -> None:
        net_arch = [512, 512] if net_arch is None else net_arch
        super().__init__(observation_space, action_space, lr_schedule, net_arch=net_arch, **kwargs)
