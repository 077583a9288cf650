"""Tests of the transfer of a trunk to an actor-critic."""

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from sb3_contrib import RecurrentPPO
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.envs import BitFlippingEnv, FakeImageEnv
from stable_baselines3.common.torch_layers import NatureCNN
from torch import nn

from sb3_manygoals import AuxiliaryActorCriticPolicy, ManyGoalsDQN, RewardPredictor
from sb3_manygoals.networks import PaddedCNN
from sb3_manygoals.pretraining import TransferError, transfer_trunk
from tests.sb3_manygoals.worlds import Corridor, numbered_from_one


def screen(side=84, channels=4, first=True):
    """Make an environment of random pictures of a game's size."""
    return FakeImageEnv(3, side, side, channels, channel_first=first)


def many_goals(env, policy="CnnPolicy", **kwargs):
    """Make a learner whose trunk an actor-critic may have too."""
    trunk = {"embedding_dim": 8, "standardize": False, "activation_fn": nn.ReLU}
    if policy == "CnnPolicy":
        trunk |= {"features_extractor_class": PaddedCNN, "net_arch": []}
    return ManyGoalsDQN(
        policy, env, buffer_size=10, seed=1, device="cpu", policy_kwargs={**trunk, **kwargs}
    )


def weights(module):
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def test_the_trunk_of_an_atari_agent_becomes_the_extractor_of_a2c():
    source = many_goals(screen())
    target = A2C("CnnPolicy", screen(), seed=2, device="cpu")
    before = weights(target.policy)
    copied = transfer_trunk(source, target)
    assert copied == {
        "features_extractor.cnn.0": "trunk.1.net.0",
        "features_extractor.cnn.2": "trunk.1.net.2",
        "features_extractor.cnn.4": "trunk.1.net.4",
        "features_extractor.linear.0": "trunk.1.net.7",
    }
    ours = source.policy.trunk.state_dict()
    theirs = weights(target.policy)
    for there, here in copied.items():
        name = here.removeprefix("trunk.")
        assert th.equal(ours[f"{name}.weight"], theirs[f"{there}.weight"])
        assert th.equal(ours[f"{name}.bias"], theirs[f"{there}.bias"])
    # The heads have not changed.
    for name in before:
        assert th.equal(before[name], theirs[name]) != ("features_extractor" in name)


def test_a_trunk_for_channels_last_fits_a_target_with_channels_first():
    """ManyGoalsDQN sees (H, W, C) and moves the channels itself. SB3 does so in a wrapper."""
    source = many_goals(screen(40, 3, first=False))
    target = A2C(
        "CnnPolicy",
        screen(40, 3, first=False),
        policy_kwargs={"features_extractor_class": PaddedCNN},
        device="cpu",
    )
    assert len(transfer_trunk(source.policy, target.policy)) == 4
    picture = np.random.default_rng(0).integers(0, 256, (1, 40, 40, 3), dtype=np.uint8)
    with th.no_grad():
        ours = source.policy.trunk(th.as_tensor(picture))
        theirs = target.policy.extract_features(th.as_tensor(picture.transpose(0, 3, 1, 2).copy()))
    th.testing.assert_close(ours, theirs)


def test_a_trunk_of_fully_connected_layers_becomes_the_beginning_of_actor_and_critic():
    source = vectors(net_arch=[16])()
    target = towers(seed=2)()
    before = weights(target.policy)
    towers_first = ("mlp_extractor.policy_net.0", "mlp_extractor.value_net.0")
    assert transfer_trunk(source, target) == dict.fromkeys(towers_first, "trunk.2")
    after = weights(target.policy)
    trunk = source.policy.trunk[2]
    for tower in ("policy_net", "value_net"):
        assert th.equal(after[f"mlp_extractor.{tower}.0.weight"], trunk.weight)
        assert th.equal(after[f"mlp_extractor.{tower}.0.bias"], trunk.bias)
        assert th.equal(
            after[f"mlp_extractor.{tower}.2.weight"], before[f"mlp_extractor.{tower}.2.weight"]
        )


def test_extractors_that_are_not_shared_are_both_filled():
    source = many_goals(screen())
    target = A2C(
        "CnnPolicy", screen(), policy_kwargs={"share_features_extractor": False}, device="cpu"
    )
    assert len(transfer_trunk(source, target)) == 8
    for extractor in (target.policy.pi_features_extractor, target.policy.vf_features_extractor):
        assert th.equal(extractor.linear[0].weight, source.policy.trunk[1].net[7].weight)


def test_heads_of_auxiliary_tasks_stay_and_their_target_network_follows():
    source = many_goals(screen())
    target = A2C(AuxiliaryActorCriticPolicy, screen(), seed=2, device="cpu")
    heads = weights(target.policy.heads)
    transfer_trunk(source, target)
    assert all(
        th.equal(heads[name], tensor) for name, tensor in target.policy.heads.state_dict().items()
    )
    trunk = source.policy.trunk[1].net[0].weight
    assert th.equal(target.policy.features_extractor.cnn[0].weight, trunk)
    assert th.equal(target.policy.goal_target.features_extractor.cnn[0].weight, trunk)


def test_the_optimizer_forgets_moments_of_other_weights():
    target = towers(learning_rate=0.1)()
    target.learn(20)
    assert len(target.policy.optimizer.state) > 0
    transfer_trunk(vectors(net_arch=[16])(), target)
    assert len(target.policy.optimizer.state) == 0
    before = target.policy.mlp_extractor.policy_net[0].weight.clone()
    # The optimizer still has the target's parameters.
    target.learn(20)
    assert not th.equal(target.policy.mlp_extractor.policy_net[0].weight, before)


def vectors(**kwargs):
    return lambda: many_goals(Corridor(5), "MlpPolicy", **kwargs)


def towers(length=5, net_arch=(16, 12), **kwargs):
    policy_kwargs = {"net_arch": net_arch, "activation_fn": nn.ReLU}
    return lambda: A2C(
        "MlpPolicy", Corridor(length), policy_kwargs=policy_kwargs, device="cpu", **kwargs
    )


def recurrent():
    """Make a learner with a recurrent layer, whose width is that of the observations."""
    policy_kwargs = {"lstm_hidden_size": 5, "net_arch": [16, 12], "activation_fn": nn.ReLU}
    return RecurrentPPO("MlpLstmPolicy", Corridor(5), policy_kwargs=policy_kwargs, device="cpu")


def screens(*pictures, **kwargs):
    return lambda: many_goals(screen(*pictures), features_extractor_kwargs=kwargs)


def cnn(*pictures, **kwargs):
    return lambda: A2C("CnnPolicy", screen(*pictures), policy_kwargs=kwargs, device="cpu")


def padded(stride):
    return {"layers": [(4, 4, stride)], "features_dim": 9}


def dark():
    """Make a learner of pictures that are no images for SB3, which does not scale them."""
    space = gym.spaces.Box(0, 1, (3, 8, 8), np.uint8)
    return A2C(
        "MlpPolicy",
        gym.wrappers.TransformObservation(screen(8, 3), lambda picture: picture, space),
        device="cpu",
    )


OTHER = {"features_extractor_class": PaddedCNN, "features_extractor_kwargs": padded(2)}


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (vectors(net_arch=[16, 13]), towers(), r"trunk\.4, Linear.*policy_net\.2, Linear"),
        (
            vectors(net_arch=[16, 12, 9]),
            towers(),
            r"trunk\.6, Linear.* in the source and none in the target",
        ),
        (
            vectors(net_arch=[16], activation_fn=nn.Tanh),
            towers(),
            r"trunk\.3, Tanh\(\).*policy_net\.1, ReLU\(\)",
        ),
        (vectors(net_arch=[16], standardize=True), towers(), "standardizes"),
        (
            vectors(net_arch=[16]),
            towers(net_arch={"pi": [16], "vf": [15]}),
            r"value_net\.0,.* in the target",
        ),
        (vectors(), towers(6), r"sees Box\(0, 1, \(5,\).*the target sees Box\(0, 1, \(6,\)"),
        (screens(8, 3), dark, r"trunk sees Box\(0, 255, .*, the target sees Box\(0, 1, "),
        # On 40 x 40 pixels, NatureCNN ignores some of them, while PaddedCNN adds zeros.
        (screens(40, 3), cnn(40, 3), r"trunk\.1\.net\.2, ZeroPad2d.*features_extractor\.cnn\.2"),
        # The weights have the same shapes, because the window fits once with either stride.
        (
            screens(4, 3, False, **padded(4)),
            cnn(4, 3, False, **OTHER),
            r"net\.0, Conv2d.*stride=\(4, 4\).*stride=\(2, 2\)",
        ),
        # The trunk is too short.
        (
            screens(layers=[(32, 8, 4)], features_dim=9),
            cnn(),
            r"trunk\.1\.net\.3,.* in the source",
        ),
        (screens(), cnn(normalize_images=False), "normalize_images=True"),
        (vectors(net_arch=[16]), recurrent, r"trunk\.2 in the source after 0 .* lstm_actor in the"),
    ],
)
def test_networks_that_are_not_alike_are_refused_and_the_layer_is_named(source, target, message):
    taker = target()
    before = weights(taker.policy)
    with pytest.raises(TransferError, match=message):
        transfer_trunk(source(), taker)
    assert all(th.equal(before[name], tensor) for name, tensor in taker.policy.state_dict().items())


@pytest.mark.parametrize("source", [RewardPredictor, ManyGoalsDQN])
@pytest.mark.parametrize(
    ("learner", "policy"),
    [(A2C, "CnnPolicy"), (PPO, "CnnPolicy"), (A2C, AuxiliaryActorCriticPolicy)],
)
def test_pictures_fit_if_the_source_is_built_as_the_messages_say(source, learner, policy):
    def transferred(**policy_kwargs):
        env = screen(40, 3)
        giver = source("CnnPolicy", env, buffer_size=10, device="cpu", policy_kwargs=policy_kwargs)
        return transfer_trunk(giver, learner(policy, env, device="cpu"))

    alike = {}
    # A RewardPredictor does not standardize.
    if source is ManyGoalsDQN:
        with pytest.raises(TransferError, match=r'source with "standardize": False in its'):
            transferred()
        alike = {"standardize": False}
    message = r'source with "features_extractor_class": NatureCNN and "net_arch": \[\] in its'
    with pytest.raises(TransferError, match=message):
        transferred(**alike)
    assert len(transferred(features_extractor_class=NatureCNN, net_arch=[], **alike)) == 4


def test_sources_without_a_trunk_and_targets_without_an_actor_are_refused():
    source = many_goals(Corridor(5), "MlpPolicy")
    target = A2C("MlpPolicy", Corridor(5), device="cpu")
    with pytest.raises(TypeError, match=r"source must be .* got one with ActorCriticPolicy"):
        transfer_trunk(target, target)
    parts = ManyGoalsDQN("MultiInputPolicy", BitFlippingEnv(3), buffer_size=10, device="cpu")
    with pytest.raises(TypeError, match=r"observations must be single arrays, got those of sev"):
        transfer_trunk(parts, target)
    with pytest.raises(TypeError, match=r"target must .* got one with DQNPolicy"):
        transfer_trunk(source, DQN("MlpPolicy", Corridor(5), buffer_size=10, device="cpu"))


@pytest.mark.parametrize("learner", [A2C, PPO])
def test_an_actor_whose_actions_do_not_begin_at_0_is_refused(learner):
    target = learner("MlpPolicy", numbered_from_one(Corridor(5)), device="cpu")
    before = weights(target.policy)
    message = r"actions of the target must begin at 0, .* got Discrete\(3, start=1\)"
    with pytest.raises(TypeError, match=message):
        transfer_trunk(vectors(net_arch=[16])(), target)
    assert all(th.equal(before[name], one) for name, one in target.policy.state_dict().items())
