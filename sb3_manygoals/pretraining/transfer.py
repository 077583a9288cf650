"""The trunk of a pre-trained network at the beginning of an actor-critic."""

from collections.abc import Iterator
from itertools import zip_longest

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.preprocessing import is_image_space
from torch import nn

from sb3_manygoals.auxiliary.policies import AuxiliaryActorCriticPolicy
from sb3_manygoals.networks import Preprocess

_NOTHING = (
    nn.Flatten,
    nn.Identity,
    nn.Dropout,
)  # networks that differ only in these are the same function when they act


class TransferError(ValueError):
    """Two networks that are not built alike."""


def transfer_trunk(
    source: BaseAlgorithm | BasePolicy, target: BaseAlgorithm | BasePolicy
) -> dict[str, str]:
    """
    Begin an actor-critic with the trunk of a pre-trained network, as section 4 of Veeriah et al. (2018) does.

    Layers are paired in order. The trunk goes to the actor-critic's features extractor and, where it is longer, on to the
    layers of both actor and critic (``net_arch``). What comes after the trunk stays. All layers are compared before any is
    copied. The target's optimizer keeps its settings and loses its moments, which are of other weights. The target network of
    an :class:`~sb3_manygoals.auxiliary.AuxiliaryActorCriticPolicy` is copied anew.

    :param source: ManyGoalsDQN or :class:`RewardPredictor`, or the policy of one; of ManyGoalsDQN the network that learns, not
        an average of its weights
    :param target: SB3's A2C or PPO, or another with an ActorCriticPolicy, or such a policy
    :return: by the name of each layer of the target that was changed, that of the source's layer whose weights it has now
    :raises TypeError: if the source has no trunk, the target no actor and critic, or actions do not begin at 0
    :raises TransferError: if they differ in observations or their scaling, or in the kind, shape or activation of a layer; the
        message names the first such layer. Then nothing was changed
    """
    giver, taker = (
        one.policy if isinstance(one, BaseAlgorithm) else one for one in (source, target)
    )
    trunk = getattr(giver, "trunk", None)
    if not isinstance(trunk, nn.Sequential) or not isinstance(trunk[0], Preprocess):
        givers = "a ManyGoalsDQN or a RewardPredictor, or the policy of one"
        raise TypeError(f"source must be {givers}, got one with {type(giver).__name__}")
    if not isinstance(taker, ActorCriticPolicy):
        raise TypeError(
            f"target must have an actor-critic policy, as A2C has, got one with {type(taker).__name__}"
        )
    for name, space in (("source", giver.action_space), ("target", taker.action_space)):
        if np.any(getattr(space, "start", 0) != 0):
            raise TypeError(
                f"the actions of the {name} must begin at 0, as SB3's learners count them, got {space}"
            )
    here, there = trunk[0].space, taker.observation_space
    seen = [
        (one.shape, one.dtype, is_image_space(one)) if isinstance(one, spaces.Box) else one
        for one in (here, there)
    ]
    if seen[0] != seen[1]:  # images are scaled
        raise TransferError(
            f"the trunk sees {here} (images with channels first), the target sees {there}"
        )
    if trunk[0].standardize:
        raise TransferError(
            "the trunk standardizes observations (standardize=True), the target does not"
        )
    if trunk[0].normalize_images != taker.normalize_images:
        raise TransferError(
            f"the trunk has normalize_images={trunk[0].normalize_images}, the target {taker.normalize_images}"
        )
    ours = list(_layers(trunk, "trunk"))
    pairs = {}  # by the target's names, as actor and critic may share layers
    for who, tower in (("pi", "policy_net"), ("vf", "value_net")):
        name = (
            "features_extractor" if taker.share_features_extractor else f"{who}_features_extractor"
        )
        extractor = list(_layers(getattr(taker, name), name))
        theirs = [
            *extractor,
            *_layers(getattr(taker.mlp_extractor, tower), f"mlp_extractor.{tower}"),
        ]
        for left, right in zip_longest(ours, theirs[: max(len(ours), len(extractor))]):
            (name, kind), (other, other_kind) = _described(left), _described(right)
            if kind != other_kind:
                found = f"{name}{kind} in the source and {other}{other_kind} in the target"
                raise TransferError(f"layers must be alike, got {found}")
            if left[1].state_dict():
                pairs[right[0]] = (left, right)
    for (_, left), (_, right) in pairs.values():
        right.load_state_dict(left.state_dict())
    taker.optimizer.state.clear()
    if isinstance(taker, AuxiliaryActorCriticPolicy) and taker.goal_target is not None:
        taker.update_goal_target()
    return {name: left for name, ((left, _), _) in pairs.items()}


_Layer = tuple[str, nn.Module]


def _layers(module: nn.Module, name: str) -> Iterator[_Layer]:
    """:return: names and modules of the parts that change numbers, in order"""
    children = list(module.named_children())
    whole = not children or any(
        True for _ in (*module.parameters(recurse=False), *module.buffers(recurse=False))
    )
    if whole and not isinstance(module, _NOTHING):
        yield name, module
        return
    for child_name, child in children:
        if not isinstance(child, Preprocess):
            yield from _layers(child, f"{name}.{child_name}")


def _described(layer: _Layer | None) -> tuple[str, str]:
    """:return: its name, and all that it is but for the values of its weights"""
    if layer is None:
        return "none", ""
    shapes = (
        f" with {name} {tuple(tensor.shape)}" for name, tensor in layer[1].state_dict().items()
    )
    return layer[0], f", {layer[1]}{','.join(shapes)},".replace("inplace=True", "")
