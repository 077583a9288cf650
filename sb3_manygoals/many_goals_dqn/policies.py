"""Policies of ManyGoalsDQN: greedy with respect to a universal value function."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.torch_layers import (
    BaseFeaturesExtractor,
    CombinedExtractor,
    FlattenExtractor,
    NatureCNN,
)
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from torch import nn

from sb3_manygoals.networks import (
    CNN_FROM,
    DistanceQNetwork,
    MultiInputExtractor,
    PackedPreprocess,
    PaddedCNN,
    Preprocess,
    SmallImageCNN,
    UniversalQNetwork,
    check_image_space,
    is_small_image_space,
    make_preprocess,
    make_trunk,
)
from sb3_manygoals.packing import PackedSpace
from sb3_manygoals.validation import check_action_space, check_count, check_number

_HEADS: dict[str, type[UniversalQNetwork]] = {
    "bilinear": UniversalQNetwork,
    "distance": DistanceQNetwork,
}
# Widths of the layers of goals, where observations go through a features extractor alone and goals
# through none with fully connected layers.
_GOAL_NET_ARCH = [512, 512]
# The networks' distances begin in steps of this cost.
_DEFAULT_STEP_COST = 0.1


class ManyGoalsPolicy(BasePolicy):
    """
    A universal Q-network and its target network, for goal observations. It is ``"MlpPolicy"``, for
    vectors.

    :param observation_space: Dict of observation, achieved_goal and desired_goal
    :param action_space: Discrete, A actions
    :param lr_schedule: learning rate, a function of the share of training that is left
    :param net_arch: widths of the shared layers after the features extractor. None: two of 512
    :param embedding_dim: width of the state embedding and the goal embedding
    :param activation_fn: activation of the shared layers
    :param ortho_init: whether to initialize the trunk as SB3's actor-critics do, for transfer to
        one of them
    :param standardize: whether to standardize observations by those that are known when learning
        starts and, with bootstrapping, again later. It is done element by element, or channel by
        channel in small images that go through convolutions
    :param head: "bilinear", as in the paper (:class:`~sb3_manygoals.networks.UniversalQNetwork`),
        or "distance" (:class:`~sb3_manygoals.networks.DistanceQNetwork`)
    :param ema_decay: decay of the moving average of the weights, by which greedy actions are
        chosen, in [0, 1). 0.0: no average
    :param mixed_precision: whether updates from plans multiply matrices of the shared layers in
        bfloat16. Weights, distances and losses stay float32. None: if networks are on a processor
        that does this in hardware (Intel AMX), where it is several times as fast
    :param channels_last: whether the last axis of images holds the channels. None: as the shape
        tells
    :param features_extractor_class: SB3 features extractor, the first part of the trunk. It sees
        images channels first
    :param features_extractor_kwargs: its further arguments
    :param normalize_images: whether to divide images by 255
    :param optimizer_class: Adam by default. For the paper's RMSProp use SB3's ``RMSpropTFLike``,
        which has epsilon inside of the root. Second moments of torch's RMSprop decay into denormal
        numbers, which are slow
    :param optimizer_kwargs: its arguments, without the learning rate. None: ``fused=True`` for
        Adam, an alpha of 0.99 and an epsilon of 1e-12 for ``RMSpropTFLike``
    :raises TypeError: if actions are not Discrete from 0, or ``net_arch`` is no list
    :raises ValueError: if an argument is out of its range, or the shape of images does not tell
        which axis holds the channels
    """

    action_space: spaces.Discrete
    ema_updates: th.Tensor
    """The number of updates of the moving average."""
    q_net_target: UniversalQNetwork | None
    """The target network. None where nothing uses one."""

    def __init__(
        self,
        observation_space: spaces.Dict,
        action_space: spaces.Discrete,
        lr_schedule: Schedule,
        net_arch: list[int] | None = None,
        embedding_dim: int = 128,
        activation_fn: type[nn.Module] = nn.GELU,
        ortho_init: bool = False,
        standardize: bool = True,
        head: Literal["bilinear", "distance"] = "distance",
        ema_decay: float = 0.999,
        mixed_precision: bool | None = None,
        channels_last: bool | None = None,
        features_extractor_class: type[BaseFeaturesExtractor] = FlattenExtractor,
        features_extractor_kwargs: dict[str, Any] | None = None,
        normalize_images: bool = True,
        optimizer_class: type[th.optim.Optimizer] = th.optim.Adam,
        optimizer_kwargs: dict[str, Any] | None = None,
    ) -> None:
        if head not in _HEADS:
            raise ValueError(f"head must be one of {', '.join(map(repr, _HEADS))}, got {head!r}")
        check_action_space(action_space)
        if optimizer_kwargs is None and issubclass(optimizer_class, RMSpropTFLike):
            optimizer_kwargs = {"alpha": 0.99, "eps": 1e-12}
        if optimizer_kwargs is None and optimizer_class is th.optim.Adam:
            optimizer_kwargs = {"fused": True}
        if features_extractor_class is FlattenExtractor:
            _check_single_array(observation_space["observation"])
        super().__init__(
            observation_space,
            action_space,
            features_extractor_class,
            features_extractor_kwargs,
            normalize_images=normalize_images,
            optimizer_class=optimizer_class,
            optimizer_kwargs=optimizer_kwargs,
        )
        self.net_arch = [512, 512] if net_arch is None else _checked_widths(net_arch)
        self.embedding_dim = embedding_dim
        self.activation_fn = activation_fn
        self.ortho_init = ortho_init
        self.standardize = standardize
        self.head = head
        self.channels_last = channels_last
        self.ema_decay = check_number("ema_decay", ema_decay, at_least=0, below=1)
        self.mixed_precision = mixed_precision
        self.q_net = self.make_q_net()
        self.q_net_target = self._untrained_copy()
        self.q_net_ema = self._untrained_copy() if ema_decay else None
        if ema_decay:
            self.register_buffer("ema_updates", th.zeros((), device=self.device))
        # Weights and buffers of the moving average beside the trained ones. None until needed.
        self._ema_pairs: list[list[tuple[th.Tensor, th.Tensor]]] | None = None
        self.optimizer = self.optimizer_class(
            self.q_net.parameters(), **{"lr": lr_schedule(1), **self.optimizer_kwargs}
        )

    def make_q_net(self) -> UniversalQNetwork:
        """Return a new network on the policy's device."""
        assert isinstance(self.observation_space, spaces.Dict)
        space = self.observation_space["observation"]
        preprocess = make_preprocess(
            space, self.normalize_images, self.standardize, self.channels_last
        )
        extractor = self.features_extractor_class(
            preprocess.space, **self.features_extractor_kwargs
        )
        trunk, features_dim = make_trunk(
            preprocess, extractor, self.net_arch, self.activation_fn, self.ortho_init
        )
        goal_trunk = None
        goal_features_dim = None
        if self.goals_have_own_trunk:
            goal_trunk, goal_features_dim = self._make_goal_trunk()
        network = _HEADS[self.head](
            trunk,
            features_dim,
            int(self.action_space.n),
            self.embedding_dim,
            goal_trunk,
            goal_features_dim,
        )
        return network.to(self.device)

    @property
    def goals_have_own_trunk(self) -> bool:
        """Whether goals are of another space than observations."""
        assert isinstance(self.observation_space, spaces.Dict)
        return bool(self.observation_space["desired_goal"] != self.observation_space["observation"])

    def _make_goal_trunk(self) -> tuple[nn.Module, int]:
        """Return layers from goals to features, and the number of features."""
        assert isinstance(self.observation_space, spaces.Dict)
        space = self.observation_space["desired_goal"]
        preprocess = make_preprocess(
            space, self.normalize_images, self.standardize, self.channels_last
        )
        extractor = self._make_goal_extractor(preprocess.space)
        net_arch = self.net_arch
        if not isinstance(extractor, (NatureCNN, PaddedCNN)):
            net_arch = net_arch or _GOAL_NET_ARCH
        return make_trunk(preprocess, extractor, net_arch, self.activation_fn, self.ortho_init)

    def _make_goal_extractor(self, space: spaces.Space[Any]) -> BaseFeaturesExtractor:
        """
        Return an extractor for goals. Those that are images go through convolutions as images of
        observations do. Other goals are flattened, and so are all if the features extractor of
        observations is neither SB3's nor ours, as it may fit observations alone.

        :param space: space of prepared goals
        """
        kind = self.features_extractor_class
        kwargs = self.features_extractor_kwargs
        is_small = is_small_image_space(space)
        is_large = not is_small and is_image_space(
            space, normalized_image=kwargs.get("normalized_image", False)
        )
        if kind is MultiInputExtractor and is_small_image_space(space):
            return SmallImageCNN(space)
        if kind in (CombinedExtractor, MultiInputExtractor) and is_large:
            # This is CombinedExtractor's own default.
            features_dim = kwargs.get("cnn_output_dim", 256)
            return NatureCNN(space, features_dim, kwargs.get("normalized_image", False))
        fitting = {PaddedCNN, SmallImageCNN} if is_small or is_large else set()
        if is_large:
            fitting.add(NatureCNN)
        if kind in fitting:
            return kind(space, **kwargs)
        return FlattenExtractor(space)

    @property
    def trunk(self) -> nn.Module:
        """The part of the trained network that observations and goals share."""
        return self.q_net.trunk

    def _untrained_copy(self) -> UniversalQNetwork:
        """Return a copy of the trained network that is not trained itself."""
        return copy.deepcopy(self.q_net).requires_grad_(False).eval()

    def autocast(self) -> th.autocast:
        """
        Return a context in which matrices are multiplied in bfloat16, if ``mixed_precision`` says
        so.
        """
        is_mixed = self.mixed_precision
        if is_mixed is None:
            is_mixed = self.device.type == "cpu" and _multiplies_bfloat16()
        return th.autocast(self.device.type, dtype=th.bfloat16, enabled=is_mixed)

    def use_target_network(self, is_used: bool) -> None:
        """
        Make a target network, with the weights of the trained one, or remove it.

        :param is_used: whether there is to be one. If there is one already, it stays as it is
        """
        if not is_used:
            self.q_net_target = None
        elif self.q_net_target is None:
            self.q_net_target = self._untrained_copy()

    @th.no_grad()
    def update_ema(self) -> None:
        """Update the moving average of the weights, if there is one."""
        if self.q_net_ema is None:
            return
        self.ema_updates += 1.0
        # As in TensorFlow's ExponentialMovingAverage, the decay is at most (1 + n) / (10 + n) after
        # n updates, so that the initial weights are soon forgotten.
        share = (9.0 / (10.0 + self.ema_updates)).clamp(min=1.0 - self.ema_decay)
        if self._ema_pairs is None:
            # Visiting all modules takes as long as averaging.
            self._ema_pairs = [
                list(zip(self.q_net_ema.parameters(), self.q_net.parameters(), strict=True)),
                list(zip(self.q_net_ema.buffers(), self.q_net.buffers(), strict=True)),
            ]
        parameters, buffers = self._ema_pairs
        for average, trained in parameters:
            average.lerp_(trained, share)
        for copied, buffer in buffers:
            copied.copy_(buffer)

    def fit_standardization(self, observations: th.Tensor, goals: th.Tensor | None = None) -> None:
        """
        Standardize by these observations and goals from now on, if the policy standardizes.

        :param observations: shape (B, *observation_space.shape)
        :param goals: goals, shape (G, *goal_space.shape), where goals are of another space than
            observations. None: they are observations
        """
        if not self.standardize:
            return
        for network in self.networks:
            network.trunk[0].fit(observations)  # type: ignore[index]
            # A subclass may have networks that know nothing of layers for goals.
            if goals is not None and self.goals_have_own_trunk:
                network.goal_trunk[0].fit(goals)  # type: ignore[index]

    @property
    def is_fitted(self) -> bool:
        """Whether the policy standardizes by observations, which were given to it or loaded."""
        if not self.standardize:
            return False
        preprocess = self.trunk[0]  # type: ignore[index]
        assert isinstance(preprocess, (Preprocess, PackedPreprocess))
        return preprocess.is_fitted

    @property
    def may_confuse_observations(self) -> bool:
        """
        Whether different observations may be the same numbers to the network, as floats and
        integers of many digits may be.
        """
        assert isinstance(self.observation_space, spaces.Dict)
        space = self.observation_space["observation"]
        parts = space.parts.values() if isinstance(space, PackedSpace) else [space]
        return any(
            isinstance(part, spaces.Box) and np.dtype(part.dtype).itemsize >= 4 for part in parts
        )

    def count_distinct(self, observations: th.Tensor) -> int:
        """
        Count how many observations differ in the numbers that the network gets.

        :param observations: shape (B, *observation_space.shape)
        """
        preprocess = self.trunk[0]  # type: ignore[index]
        assert isinstance(preprocess, (Preprocess, PackedPreprocess))
        return preprocess.count_distinct(observations)

    def shift_values(self, by: float) -> None:
        """
        Add a number to all values of each network.

        :param by: the number
        """
        for network in self.networks:
            network.shift_values(by)

    @th.no_grad()
    def scale_distances(self, step_cost: float) -> None:
        """
        Begin with distances in steps of this cost, in networks that tell distances.

        :param step_cost: by how much one step lowers a value near the goal, 0.1 by default
        """
        for network in self.networks:
            if isinstance(network, DistanceQNetwork):
                network.log_scale.fill_(math.log(step_cost / _DEFAULT_STEP_COST))

    @property
    def networks(self) -> list[UniversalQNetwork]:
        """The trained network, the target network and the moving average, those that there are."""
        all_networks = (self.q_net, self.q_net_target, self.q_net_ema)
        return [network for network in all_networks if network is not None]

    def forward(self, obs: PyTorchObs, deterministic: bool = True) -> th.Tensor:
        """
        Return greedy actions. The algorithm explores, not the policy.

        :param obs: goal observations as tensors
        :param deterministic: not used
        :return: shape (B,)
        """
        return self._predict(obs, deterministic)

    def _predict(self, observation: PyTorchObs, deterministic: bool = True) -> th.Tensor:
        """Return greedy actions."""
        return self.action_values(observation).argmax(dim=1)  # type: ignore[arg-type]

    def action_values(self, observation: dict[str, th.Tensor]) -> th.Tensor:
        """
        Return the values of all actions by which greedy ones are chosen.

        :param observation: goal observations as tensors
        :return: shape (B, A)
        """
        network = self.q_net if self.q_net_ema is None else self.q_net_ema
        values: th.Tensor = network(observation["observation"], observation["desired_goal"])
        return values

    def set_training_mode(self, mode: bool) -> None:
        """
        Switch the trained network between training and evaluation mode. Target network and moving
        average stay in evaluation mode.

        :param mode: whether to switch to training mode
        """
        # Each call visits all modules, and acting calls this at every step.
        if self.q_net.training != mode:
            self.q_net.train(mode)
        self.training = mode

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """
        Load weights, those of a policy without a target network too. If this policy has a target
        network and the weights are without one, it gets those of the trained network. If it has
        none, weights of a target network are left out.

        :param state_dict: weights by their names
        :param strict: whether all other names must be those of this policy
        :param assign: whether to keep the tensors of ``state_dict`` instead of copying them
        :return: the missing and the unexpected names
        :raises RuntimeError: if weights do not fit this policy
        """
        self._ema_pairs = None
        prefix = "q_net_target."
        # A copy with the versions of modules, which torch keeps beside the weights.
        weights: Any = copy.copy(state_dict)
        of_target = [name for name in weights if name.startswith(prefix)]
        if self.q_net_target is None:
            for name in of_target:
                del weights[name]
        elif not of_target:
            for name in [name for name in weights if name.startswith("q_net.")]:
                weights[prefix + name.removeprefix("q_net.")] = weights[name]
        return super().load_state_dict(weights, strict=strict, assign=assign)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        """Return what a saved policy is built with."""
        names = (
            "net_arch",
            "embedding_dim",
            "activation_fn",
            "ortho_init",
            "standardize",
            "head",
            "ema_decay",
            "mixed_precision",
            "channels_last",
            "features_extractor_class",
            "features_extractor_kwargs",
            "optimizer_class",
            "optimizer_kwargs",
        )
        return {
            **super()._get_constructor_parameters(),
            **{name: getattr(self, name) for name in names},
            "lr_schedule": self._dummy_schedule,
        }


@cache
def _multiplies_bfloat16() -> bool:
    """Return whether this processor has instructions that multiply matrices of bfloat16."""
    # Older versions of torch do not tell.
    tell: Callable[[], Mapping[str, Any]] = getattr(th.cpu, "get_capabilities", dict)
    return bool(tell().get("amx_bf16", False))


def _checked_widths(net_arch: Any) -> list[int]:
    """Return the widths of layers, or raise an error."""
    if not isinstance(net_arch, (list, tuple, np.ndarray)):
        raise TypeError(f"net_arch must be a list of widths of shared layers, got {net_arch!r}")
    return [check_count("a width in net_arch", width) for width in net_arch]


def _check_single_array(space: spaces.Space[Any]) -> None:
    """Raise an error if observations are several arrays."""
    if isinstance(space, PackedSpace):
        raise ValueError(
            'observations of several arrays need "MultiInputPolicy", "MlpPolicy" and "CnnPolicy" '
            f"take single arrays, got {space}"
        )


MlpPolicy = ManyGoalsPolicy


class CnnPolicy(ManyGoalsPolicy):
    """
    A :class:`ManyGoalsPolicy` for images. By default, images with at least 36 pixels a side go
    through the convolutions of the Nature DQN (:class:`~sb3_manygoals.networks.PaddedCNN`) alone,
    and smaller ones through two layers of 512 units. Goals that are images of another space go
    through a network of the same kind, if its class is ours or SB3's.

    :param observation_space: Dict of observation, achieved_goal and desired_goal, all images
    :param action_space: Discrete
    :param lr_schedule: learning rate, a function of the share of training that is left
    :param kwargs: further arguments of :class:`ManyGoalsPolicy`
    :raises TypeError: if actions are not Discrete from 0
    :raises ValueError: if observations are no images, or an argument is out of its range
    """

    def __init__(
        self,
        observation_space: spaces.Dict,
        action_space: spaces.Discrete,
        lr_schedule: Schedule,
        **kwargs: Any,
    ) -> None:
        extractor = kwargs.get("features_extractor_class")
        if extractor is None:
            space = observation_space["observation"]
            _check_single_array(space)
            check_image_space(space)
            channels_first = Preprocess(space, channels_last=kwargs.get("channels_last")).space
            height_and_width = (channels_first.shape or ())[1:]
            extractor = FlattenExtractor if min(height_and_width) < CNN_FROM else PaddedCNN
        if kwargs.get("net_arch") is None and extractor is not FlattenExtractor:
            kwargs["net_arch"] = []
        kwargs["features_extractor_class"] = extractor
        super().__init__(observation_space, action_space, lr_schedule, **kwargs)


class MultiInputPolicy(ManyGoalsPolicy):
    """
    The policy for observations that are several arrays: those of a GoalEnv, and Dicts. By default,
    images with fewer than 36 pixels on at least one side go through small convolutions, and larger
    ones through those of the Nature DQN (:class:`~sb3_manygoals.networks.MultiInputExtractor`),
    also those that are goals. SB3's ``CombinedExtractor`` flattens all small images. With any other
    ``features_extractor_class``, goals that are no observations are flattened.

    :param observation_space: Dict of observation, achieved_goal and desired_goal, as the goal
        wrappers make it
    :param action_space: Discrete, A actions
    :param lr_schedule: learning rate, a function of the share of training that is left
    :param kwargs: further arguments of :class:`ManyGoalsPolicy`
    :raises TypeError: if observations are single arrays, or actions are not Discrete from 0
    :raises ValueError: if an argument is out of its range
    """

    def __init__(
        self,
        observation_space: spaces.Dict,
        action_space: spaces.Discrete,
        lr_schedule: Schedule,
        **kwargs: Any,
    ) -> None:
        space = observation_space["observation"]
        if not isinstance(space, PackedSpace):
            raise TypeError(
                f"MultiInputPolicy needs observations of several arrays, got {space}. Use "
                '"CnnPolicy" for images and "MlpPolicy" for vectors'
            )
        if kwargs.get("features_extractor_class") is None:
            kwargs["features_extractor_class"] = MultiInputExtractor
        super().__init__(observation_space, action_space, lr_schedule, **kwargs)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """
        Load weights, as :meth:`ManyGoalsPolicy.load_state_dict` does.

        :param state_dict: weights by their names
        :param strict: whether all other names must be those of this policy
        :param assign: whether to keep the tensors of ``state_dict`` instead of copying them
        :return: the missing and the unexpected names
        :raises ValueError: if weights are of a network that flattens small images, and this one has
            convolutions for them
        :raises RuntimeError: if weights do not fit this policy in another way
        """
        has_network = any(name.startswith("q_net.") for name in state_dict)
        for name, module in self.q_net.named_modules():
            has_convolutions = isinstance(module, SmallImageCNN)
            missing = f"q_net.{name}.net.0.weight" not in state_dict
            if strict and has_network and has_convolutions and missing:
                raise ValueError(
                    "the weights are of a network that flattens small images, as that of an "
                    "earlier version did by default, and this one has convolutions for them: build "
                    "or load the model with policy_kwargs that say, beside what else it was built "
                    "with, features_extractor_class=CombinedExtractor, the class of SB3"
                )
        return super().load_state_dict(state_dict, strict=strict, assign=assign)
