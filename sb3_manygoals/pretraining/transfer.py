"""What was learned without a task, given to an actor-critic to begin with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from torch import nn

from sb3_manygoals.auxiliary.policies import AuxiliaryActorCriticPolicy
from sb3_manygoals.networks import Preprocess

_NOTHING = (nn.Flatten, nn.Identity, nn.Dropout)
"""Layers that need not be there: networks that differ in them only are the same function when they act."""

_GEOMETRY = ("stride", "padding", "dilation", "groups")
"""What a convolution is besides its weights."""


class CopiedLayer(NamedTuple):
    """A layer that was copied."""

    source: str
    """Its name in the source's trunk."""
    target: str
    """The name in the target's policy of the layer that has its weights now."""
    shape: tuple[int, ...]
    """Of its weights."""


class _Layer(NamedTuple):
    name: str
    module: nn.Module


class TransferError(ValueError):
    """Two networks that are not built alike."""


def transfer_trunk(source: BaseAlgorithm | BasePolicy, target: BaseAlgorithm | BasePolicy) -> list[CopiedLayer]:
    """
    Begin an actor-critic with the trunk of a network that was trained before, as section 4 of Veeriah et al. (2018) does::

        pretrained = ManyGoalsDQN("CnnPolicy", make_env(), ...).learn(1_000_000)
        model = A2C("CnnPolicy", make_env(), ...)
        for layer in transfer_trunk(pretrained, model):
            print(layer)
        model.learn(9_000_000)

    Layers are paired in the order in which they were put together, first with first. Into the actor-critic they go from its
    features extractor on, and further into the layers of both actor and critic (``net_arch``), where the trunk is longer: so
    a trunk of fully connected layers becomes the beginning of both towers of SB3's "MlpPolicy". What comes after the trunk is
    left as it is, the heads of policy and value above all. Copied weights are equal to the last bit. Everything is compared
    before anything is copied.

    The target's optimizer forgets what it has: moments of gradients of other weights. (That of a new model has nothing yet.)
    Its settings stay. A target network of an :class:`~sb3_manygoals.auxiliary.AuxiliaryActorCriticPolicy` becomes equal to
    what it follows.

    :param source: ManyGoalsDQN or :class:`RewardPredictor`, or the policy of one; of ManyGoalsDQN the network that learns, not
        an average of its weights
    :param target: SB3's A2C or PPO, or another with an ActorCriticPolicy, or such a policy
    :return: what was copied where, in order; a layer that goes to actor and critic is there twice
    :raises TypeError: if the source has no trunk, or the target no actor and critic
    :raises TransferError: if they do not see the same observations, scaled in the same way, or layers differ in kind, shape
        or activation; the message names the first. Then nothing was changed
    """
    giver, taker = _policy(source), _policy(target)
    trunk = getattr(giver, "trunk", None)
    if not isinstance(trunk, nn.Sequential) or not isinstance(trunk[0], Preprocess):
        raise TypeError(f"source must be a ManyGoalsDQN or a RewardPredictor, or the policy of one, got {_name(source)}")
    if not isinstance(taker, ActorCriticPolicy):
        raise TypeError(f"target must have an actor-critic policy, as A2C has, got {_name(target)}")
    _check_observations(trunk[0], taker)
    layers = list(_layers(trunk, "trunk"))
    pairs: dict[str, tuple[_Layer, _Layer]] = {}  # by the target's names, as actor and critic may share layers
    for extractor, tower in _chains(taker):
        for ours, theirs in _paired(layers, extractor, tower):
            pairs[theirs.name] = (ours, theirs)
    for ours, theirs in pairs.values():
        theirs.module.load_state_dict(ours.module.state_dict())
    taker.optimizer.state.clear()
    if isinstance(taker, AuxiliaryActorCriticPolicy) and taker.goal_target is not None:
        taker.update_goal_target()
    return [CopiedLayer(ours.name, theirs.name, tuple(_weight(ours.module).shape)) for ours, theirs in pairs.values()]


def _policy(model: BaseAlgorithm | BasePolicy) -> Any:
    return model.policy if isinstance(model, BaseAlgorithm) else model


def _name(model: Any) -> str:
    policy = _policy(model)
    return type(model).__name__ if policy is model else f"{type(model).__name__} with {type(policy).__name__}"


def _check_observations(preprocess: Preprocess, target: ActorCriticPolicy) -> None:
    ours, theirs = preprocess.space, target.observation_space
    if (ours.shape, ours.dtype, type(ours)) != (theirs.shape, theirs.dtype, type(theirs)):
        raise TransferError(f"the trunk sees {ours} (images with channels first), the target sees {theirs}")
    if preprocess.standardize:
        raise TransferError("the trunk standardizes observations (standardize=True), the target does not")
    if preprocess.normalize_images != target.normalize_images:
        raise TransferError(
            f"the trunk has normalize_images={preprocess.normalize_images}, the target {target.normalize_images}"
        )


def _chains(policy: ActorCriticPolicy) -> Iterator[tuple[list[_Layer], list[_Layer]]]:
    """:return: for actor and critic, the layers of its features extractor, and those that follow"""
    for who, tower in (("pi", "policy_net"), ("vf", "value_net")):
        name = "features_extractor" if policy.share_features_extractor else f"{who}_features_extractor"
        extractor = list(_layers(getattr(policy, name), name))
        yield extractor, list(_layers(getattr(policy.mlp_extractor, tower), f"mlp_extractor.{tower}"))


def _layers(module: nn.Module, name: str) -> Iterator[_Layer]:
    """:return: the parts that do something to numbers, in the order in which they were put together"""
    children = list(module.named_children())
    whole = not children or any(True for _ in (*module.parameters(recurse=False), *module.buffers(recurse=False)))
    if whole and not isinstance(module, _NOTHING):
        yield _Layer(name, module)
        return
    for child_name, child in children:
        if not isinstance(child, Preprocess):
            yield from _layers(child, f"{name}.{child_name}")


def _paired(trunk: list[_Layer], extractor: list[_Layer], tower: list[_Layer]) -> Iterator[tuple[_Layer, _Layer]]:
    """:return: the layers with weights, each with its place; all others were compared too"""
    places = [*extractor, *tower]
    for ours, theirs in zip(trunk, places, strict=False):
        _check_alike(ours, theirs)
    if len(trunk) > len(places):
        ours = trunk[len(places)]
        raise TransferError(f"{ours.name} of the source, {_words(ours.module)}, has no counterpart in the target")
    if len(trunk) < len(extractor):
        theirs = extractor[len(trunk)]
        raise TransferError(f"{theirs.name} of the target, {_words(theirs.module)}, has no counterpart in the source's trunk")
    for ours, theirs in zip(trunk, places, strict=False):
        if ours.module.state_dict():
            yield ours, theirs


def _check_alike(ours: _Layer, theirs: _Layer) -> None:
    left, right = ours.module, theirs.module
    alike = _kind(left) == _kind(right)
    if alike and left.state_dict():
        alike = {name: tensor.shape for name, tensor in left.state_dict().items()} == {
            name: tensor.shape for name, tensor in right.state_dict().items()
        }
    if not alike:
        raise TransferError(
            f"{ours.name} of the source is {_words(left)}, {theirs.name} of the target is {_words(right)}: they must be alike"
        )


def _kind(module: nn.Module) -> Any:
    if isinstance(module, nn.Linear):
        return nn.Linear  # ours differ in how products are computed
    if isinstance(module, nn.modules.conv._ConvNd):
        return type(module), *(getattr(module, name) for name in _GEOMETRY)
    return type(module), "" if module.state_dict() else module.extra_repr().replace("inplace=True", "")


def _words(module: nn.Module) -> str:
    shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in module.state_dict().items())
    return f"{module} with {shapes}" if shapes else f"{module}"


def _weight(module: nn.Module) -> th.Tensor:
    tensors: dict[str, th.Tensor] = module.state_dict()
    return tensors.get("weight", next(iter(tensors.values())))
