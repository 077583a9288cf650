"""An actor-critic policy whose updates reuse what the convolutions computed when it acted."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch as th
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.preprocessing import preprocess_obs
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.type_aliases import PyTorchObs

from sb3_manygoals.networks import PaddedCNN

MOST_KEPT = 1024
"""Observations, some 230 MB for four frames of 84x84. Larger rollouts go through the convolutions again."""


class _KeptMaps:
    """Outputs of convolutions, with their graph, until one update has used them."""

    def __init__(self) -> None:
        self.rows: list[bytes] = []  # the observations
        self.maps: list[th.Tensor] = []  # their outputs, in the batches they came in
        self.versions: list[int] = []  # of the weights

    def __reduce__(self) -> tuple[type[_KeptMaps], tuple[()]]:
        return _KeptMaps, ()  # a graph cannot be copied

    def add(self, observations: th.Tensor, maps: th.Tensor, versions: list[int]) -> None:
        if versions != self.versions or len(self.rows) + len(observations) > MOST_KEPT:
            self.rows, self.maps, self.versions = [], [], versions
        if len(observations) <= MOST_KEPT:
            self.rows += _rows(observations)
            self.maps.append(maps)

    def take(self, observations: th.Tensor, versions: list[int]) -> th.Tensor | None:
        """:return: the outputs for exactly these observations and weights; None if others are kept. They are dropped"""
        kept, maps, of_weights = self.rows, self.maps, self.versions
        self.rows, self.maps, self.versions = [], [], []
        if versions != of_weights or len(observations) != len(kept):
            return None
        places = defaultdict(list)
        for place, row in enumerate(kept):
            places[row].append(place)
        found = [places[row].pop() if places[row] else -1 for row in _rows(observations)]  # a rollout buffer shuffles them
        return None if -1 in found else th.cat(maps)[th.tensor(found, device=maps[0].device)]


class RolloutReusePolicy(ActorCriticPolicy):
    """
    SB3's actor-critic policy. With ``reuse_rollout``, an update of A2C does not repeat the convolutions: the observations of
    its rollout went through them when actions were chosen, by the same weights. Their outputs are kept with the graph, and
    only the layers after them are computed again, for all at once. Gradients are SB3's but for rounding.

    If the weights have changed since, or the observations are not exactly those acted on, the convolutions are computed as
    ever: after a callback that moves weights, for PPO's minibatches, for more than 1,024 observations. On a GPU, observations
    are fetched to be compared.

    :param args: as SB3 has it
    :param reuse_rollout: whether to reuse; needs :class:`~sb3_manygoals.networks.PaddedCNN`
    :param kwargs: as SB3 has it
    :raises TypeError: if ``reuse_rollout`` is set with another features extractor, or separate ones for actor and critic
    """

    def __init__(self, *args: Any, reuse_rollout: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # a subclass may have another forward
        if reuse_rollout and not (self.share_features_extractor and type(self.features_extractor) is PaddedCNN):
            shared = "a shared" if self.share_features_extractor else "no shared"
            raise TypeError(f"reuse_rollout needs a shared PaddedCNN, got {shared} {type(self.features_extractor).__name__}")
        self.reuse_rollout = reuse_rollout
        self._kept = _KeptMaps()
        self._acting = False

    def set_training_mode(self, mode: bool) -> None:
        """:param mode: False at the start of a rollout, which drops what is kept"""
        super().set_training_mode(mode)
        if not mode:
            self._kept = _KeptMaps()

    def forward(self, obs: th.Tensor, deterministic: bool = False) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        """
        Choose actions, as in a rollout.

        :param obs: shape (B, *observation_space.shape)
        :param deterministic: whether to take the likeliest actions
        :return: actions, values, and log probabilities of the actions
        """
        self._acting = self.reuse_rollout and not th.is_grad_enabled()
        try:
            return super().forward(obs, deterministic)
        finally:
            self._acting = False

    def extract_features(  # type: ignore[override]
        self, obs: PyTorchObs, features_extractor: BaseFeaturesExtractor | None = None
    ) -> th.Tensor | tuple[th.Tensor, th.Tensor]:
        """
        :param obs: shape (B, *observation_space.shape)
        :param features_extractor: None for the policy's own
        :return: features, shape (B, features_dim)
        """
        own = self.features_extractor
        if not self.reuse_rollout or features_extractor is not None:
            return super().extract_features(obs, features_extractor)
        assert isinstance(own, PaddedCNN)
        assert isinstance(obs, th.Tensor)
        versions = [parameter._version for parameter in own.parameters()]
        if self._acting:
            images = preprocess_obs(obs, self.observation_space, normalize_images=self.normalize_images)
            assert isinstance(images, th.Tensor)
            with th.enable_grad():
                maps = own.convolve(images)
            self._kept.add(obs, maps, versions)
            return own.connect(maps)
        kept = self._kept.take(obs, versions) if th.is_grad_enabled() and self.training else None
        return super().extract_features(obs) if kept is None else own.connect(kept)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return super()._get_constructor_parameters() | {"reuse_rollout": self.reuse_rollout}


def _rows(observations: th.Tensor) -> list[bytes]:
    return [row.tobytes() for row in observations.cpu().numpy()]
