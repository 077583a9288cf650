"""An actor-critic policy that learns from what its convolutions made of observations when it acted on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch as th
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.preprocessing import preprocess_obs
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.type_aliases import PyTorchObs

from sb3_manygoals.networks import PaddedCNN

MOST_KEPT = 1024
"""Observations; of four frames of 84x84 some 230 MB. Those of larger rollouts go through the convolutions again."""


class KeptMaps:
    """
    What came out of convolutions, with the graph behind it, until one update has learned from it.

    :ivar rows: the observations that went in, one after the other
    :ivar maps: what came out, of the batches they were in
    :ivar versions: of the weights
    """

    def __init__(self) -> None:
        self.rows: list[bytes] = []
        self.maps: list[th.Tensor] = []
        self.versions: list[int] = []

    def __reduce__(self) -> tuple[type[KeptMaps], tuple[()]]:
        return KeptMaps, ()  # a copy of the policy has a graph of its own

    def add(self, observations: th.Tensor, maps: th.Tensor, versions: list[int]) -> None:
        """
        :param observations: shape (B, *observation_space.shape)
        :param maps: of them, shape (B, C, H, W)
        :param versions: of the weights by which they were made
        """
        if versions != self.versions or len(self.rows) + len(observations) > MOST_KEPT:
            self.rows, self.maps, self.versions = [], [], versions
        if len(observations) <= MOST_KEPT:
            self.rows += _rows(observations)
            self.maps.append(maps)

    def take(self, observations: th.Tensor, versions: list[int]) -> th.Tensor | None:
        """
        Nothing is kept any longer.

        :param observations: shape (B, *observation_space.shape)
        :param versions: of the weights
        :return: of just these observations, by just these weights, shape (B, C, H, W); None if something else is kept
        """
        kept = self.rows, self.maps, self.versions
        self.rows, self.maps, self.versions = [], [], []
        rows, maps, of_weights = kept
        if versions != of_weights or len(observations) != len(rows):
            return None
        wanted = _rows(observations)
        found = th.empty(len(rows), dtype=th.int64)
        for here, there in zip(_order(wanted), _order(rows), strict=True):  # in another order, as a rollout buffer shuffles
            if wanted[here] != rows[there]:
                return None
            found[here] = there
        return th.cat(maps)[found.to(maps[0].device)]


class RolloutReusePolicy(ActorCriticPolicy):
    """
    SB3's actor-critic policy. With ``reuse_rollout``, an update of A2C does not go forward through the convolutions again: by
    the same weights, the observations of its rollout went through them when actions were chosen. What came out is kept, with
    its graph, and only what follows is computed anew, for all of them at once. Gradients are SB3's but for rounding, as
    matrices have the rows of one step and not of all.

    Nothing else changes. Whenever the weights are not those that acted, or the observations not those acted on to the last
    byte (a callback has moved the weights; the minibatches of PPO; more than 1,024 observations), they go through the
    convolutions as ever. On a GPU, observations are fetched to be compared.

    :param args: as SB3 has it
    :param reuse_rollout: whether to; it needs :class:`~sb3_manygoals.networks.PaddedCNN`
    :param kwargs: as SB3 has it
    :raises TypeError: if ``reuse_rollout`` is set with another features extractor, or with one for each, actor and critic
    """

    def __init__(self, *args: Any, reuse_rollout: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # not one of its subclasses, whose forward may be another
        if reuse_rollout and not (self.share_features_extractor and type(self.features_extractor) is PaddedCNN):
            shared = "a shared" if self.share_features_extractor else "no shared"
            raise TypeError(f"reuse_rollout needs a shared PaddedCNN, got {shared} {type(self.features_extractor).__name__}")
        self.reuse_rollout = reuse_rollout
        self._kept = KeptMaps()
        self._acting = False

    def set_training_mode(self, mode: bool) -> None:
        """:param mode: False where a rollout begins: what is kept of the last one is dropped"""
        super().set_training_mode(mode)
        if not mode:
            self._kept = KeptMaps()

    def forward(self, obs: th.Tensor, deterministic: bool = False) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        """
        What a rollout acts by.

        :param obs: shape (B, *observation_space.shape)
        :param deterministic: whether to take the likeliest actions, not draw them
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


def _order(rows: Sequence[bytes]) -> list[int]:
    return sorted(range(len(rows)), key=rows.__getitem__)
