"""Transfer of a pre-trained network's trunk to the beginning of an actor-critic."""

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.preprocessing import is_image_space
from torch import nn

from sb3_manygoals.auxiliary.policies import AuxiliaryActorCriticPolicy
from sb3_manygoals.networks import PackedPreprocess, Preprocess

# Networks that differ only in these modules are the same function when they act.
_WITHOUT_EFFECT = (nn.Flatten, nn.Identity, nn.Dropout)


class TransferError(ValueError):
    """Raised when a trunk does not fit an actor-critic, because they are not built alike."""


class _Layer(NamedTuple):
    name: str
    module: nn.Module


def transfer_trunk(
    source: BaseAlgorithm | BasePolicy, target: BaseAlgorithm | BasePolicy
) -> dict[str, str]:
    """
    Begin an actor-critic with the trunk of a pre-trained network.

    Section 4 of Veeriah et al. (2018) does so. Layers are paired in order. The trunk goes to the
    actor-critic's features extractor and, where it is longer, on to the layers of both actor and
    critic (``net_arch``). The layers after the trunk stay. All layers are compared before any is
    copied.

    For pictures of at least 36 pixels on each side, the "CnnPolicy" of A2C and PPO and the
    :class:`~sb3_manygoals.auxiliary.AuxiliaryActorCriticPolicy` have SB3's ``NatureCNN``. Our
    "CnnPolicy" has :class:`~sb3_manygoals.networks.PaddedCNN`, which is the same for pictures of
    84x84 pixels and adds zeros in most other sizes. So build the source with ``NatureCNN``, too::

        from stable_baselines3.common.torch_layers import NatureCNN

        RewardPredictor("CnnPolicy", env, policy_kwargs={"features_extractor_class": NatureCNN})
        ManyGoalsDQN(
            "CnnPolicy",
            env,
            policy_kwargs={"features_extractor_class": NatureCNN, "standardize": False},
        )

    Or give both ``PaddedCNN`` and ``net_arch=[]``. Smaller pictures need that. For them, an
    AuxiliaryActorCriticPolicy and a RewardPredictor have both by default.

    Functions that a features extractor of your own calls in ``forward``, such as ``F.relu``, are no
    layers. They are not compared.

    The target's optimizer keeps its settings and loses its moments, which belong to other weights.
    An auxiliary callback with a second optimizer does the same when training goes on.
    The target network of an :class:`~sb3_manygoals.auxiliary.AuxiliaryActorCriticPolicy` becomes a
    copy of the new weights.

    :param source: a ManyGoalsDQN or :class:`RewardPredictor`, or the policy of one. A ManyGoalsDQN
        gives the network that learns, not an average of its weights
    :param target: SB3's A2C or PPO, another learner with an ActorCriticPolicy, or such a policy
    :return: for the name of each changed layer of the target, the name of the source's layer from
        which its weights come
    :raises TypeError: if the source has no trunk, or observations of several arrays, such as Dict;
        if the target has no actor and critic; or if actions do not start at 0
    :raises TransferError: if they differ in observations or their scaling, or in the kind, shape or
        activation of a layer, or the target has a recurrent layer where the trunk goes on. The
        message names the first such layer and, where it can, what to change. Then nothing was
        changed
    """
    giver = source.policy if isinstance(source, BaseAlgorithm) else source
    taker = target.policy if isinstance(target, BaseAlgorithm) else target
    trunk = getattr(giver, "trunk", None)
    if isinstance(trunk, nn.Sequential) and isinstance(trunk[0], PackedPreprocess):
        raise TypeError(
            "the source's observations must be single arrays, got those of several arrays: its"
            " trunk joins them in a way of its own, which the target's features extractor lacks"
        )
    if not isinstance(trunk, nn.Sequential) or not isinstance(trunk[0], Preprocess):
        raise TypeError(
            "source must be a ManyGoalsDQN or a RewardPredictor, or the policy of one, got one with"
            f" {type(giver).__name__}"
        )
    if not isinstance(taker, ActorCriticPolicy):
        raise TypeError(
            "target must have an actor-critic policy, as A2C has, got one with"
            f" {type(taker).__name__}"
        )
    for name, space in (("source", giver.action_space), ("target", taker.action_space)):
        if np.any(getattr(space, "start", 0) != 0):
            raise TypeError(
                f"the actions of the {name} must begin at 0, as SB3's learners count them,"
                f" got {space}"
            )
    _check_observations(trunk[0], taker)
    pairs = _paired_layers(trunk, taker)
    for from_layer, to_layer in pairs:
        to_layer.module.load_state_dict(from_layer.module.state_dict())
    taker.optimizer.state.clear()
    if isinstance(taker, AuxiliaryActorCriticPolicy) and taker.goal_target is not None:
        taker.update_goal_target()
    return {to_layer.name: from_layer.name for from_layer, to_layer in pairs}


def _check_observations(preprocess: Preprocess, taker: ActorCriticPolicy) -> None:
    """Raise a TransferError if trunk and target see observations differently."""
    ours = preprocess.space
    theirs = taker.observation_space
    if _as_seen(ours) != _as_seen(theirs):
        raise TransferError(
            f"the trunk sees {ours} (images with channels first), the target sees {theirs}"
        )
    if preprocess.standardize:
        raise TransferError(
            "the trunk standardizes observations (standardize=True), the target does not. Build the"
            ' source with "standardize": False in its policy_kwargs'
        )
    if preprocess.normalize_images != taker.normalize_images:
        raise TransferError(
            f"the trunk has normalize_images={preprocess.normalize_images},"
            f" the target {taker.normalize_images}"
        )


def _as_seen(space: spaces.Space[Any]) -> Any:
    """
    Return what networks see of a space, to compare it with another.

    The bounds of a Box matter only for whether its observations are images, which are scaled.
    """
    if isinstance(space, spaces.Box):
        return space.shape, space.dtype, is_image_space(space)
    return space


def _paired_layers(trunk: nn.Sequential, taker: ActorCriticPolicy) -> list[tuple[_Layer, _Layer]]:
    """
    Pair the layers of a trunk that have weights with the target's layers that get them.

    Raise a TransferError if two layers are not alike.
    """
    ours = list(_layers(trunk, "trunk"))
    # By the target's names, because actor and critic may share layers.
    pairs: dict[str, tuple[_Layer, _Layer]] = {}
    for prefix, tower in (("pi_", "policy_net"), ("vf_", "value_net")):
        if taker.share_features_extractor:
            prefix = ""
        name = f"{prefix}features_extractor"
        their_extractor = getattr(taker, name)
        extractor = list(_layers(their_extractor, name))
        layers = _layers(getattr(taker.mlp_extractor, tower), f"mlp_extractor.{tower}")
        if len(ours) > len(extractor) and hasattr(taker, "lstm_actor"):
            raise TransferError(
                f"layers must be alike, got {ours[len(extractor)].name} in the source after"
                f" {len(extractor)} layers, and lstm_actor in the target. Give the trunk as many"
                " layers as the features extractor has"
            )
        theirs = [*extractor, *layers]
        n_compared = max(len(ours), len(extractor))
        for n, (from_layer, to_layer) in enumerate(zip_longest(ours, theirs[:n_compared])):
            from_name, from_kind = _described(from_layer)
            to_name, to_kind = _described(to_layer)
            if from_kind != to_kind:
                remedy = _remedy(trunk[1], their_extractor) if n < len(extractor) else ""
                raise TransferError(
                    f"layers must be alike, got {from_name}{from_kind} in the source and"
                    f" {to_name}{to_kind} in the target{remedy}"
                )
            if from_layer.module.state_dict():
                pairs[to_layer.name] = (from_layer, to_layer)
    return list(pairs.values())


def _remedy(ours: nn.Module, theirs: nn.Module) -> str:
    """Return what a message says of two features extractors that are not alike."""
    if type(ours) is type(theirs):
        return ""
    return (
        f'. Build the source with "features_extractor_class": {type(theirs).__name__} and'
        f' "net_arch": [] in its policy_kwargs. Now its features extractor is {type(ours).__name__}'
    )


def _layers(module: nn.Module, name: str) -> Iterator[_Layer]:
    """Yield the parts of a module that change numbers, in order."""
    children = list(module.named_children())
    own_tensors = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    is_whole = not children or len(own_tensors) > 0
    if is_whole and not isinstance(module, _WITHOUT_EFFECT):
        yield _Layer(name, module)
        return
    for child_name, child in children:
        if not isinstance(child, Preprocess):
            yield from _layers(child, f"{name}.{child_name}")


def _described(layer: _Layer | None) -> tuple[str, str]:
    """Return a layer's name, and a description of all but the values of its weights."""
    if layer is None:
        return "none", ""
    shapes = [
        f" with {name} {tuple(tensor.shape)}" for name, tensor in layer.module.state_dict().items()
    ]
    description = f", {layer.module}{','.join(shapes)},"
    return layer.name, description.replace("inplace=True", "")
