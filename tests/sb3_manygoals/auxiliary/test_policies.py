"""Tests of the actor-critic policy with heads for auxiliary tasks."""

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import A2C
from stable_baselines3.common.torch_layers import FlattenExtractor, NatureCNN
from torch import nn

from sb3_manygoals.auxiliary import AuxiliaryActorCriticPolicy, ManyGoalsCallback
from sb3_manygoals.auxiliary.policies import PixelControlHead
from sb3_manygoals.networks import PaddedCNN
from tests.sb3_manygoals.auxiliary.story import stories

ATARI = spaces.Box(0, 255, (4, 84, 84), np.uint8)
SMALL = spaces.Box(0, 255, (3, 10, 10), np.uint8)
VECTOR = spaces.Box(-1.0, 1.0, (5,), np.float32)
DISCRETE = spaces.Discrete(6)
ALL = ("many_goals", "pixel_control", "reward_prediction")


def policy(space, tasks=("many_goals",), actions=DISCRETE, **kwargs):
    return AuxiliaryActorCriticPolicy(space, actions, lambda _: 1e-3, tasks=tasks, **kwargs)


def test_the_network_for_atari_is_the_papers():
    net = policy(ATARI, ALL)
    shapes = [
        tuple(one.weight.shape)
        for one in net.features_extractor.modules()
        if hasattr(one, "weight")
    ]
    assert shapes == [(32, 4, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3), (512, 3136)]
    observations = th.randint(256, (2, 4, *ATARI.shape), dtype=th.uint8)
    assert net.goal_values(observations).shape == (2, 3, 6)
    assert net.goal_values(observations, target=True).shape == (2, 3, 6)
    assert net.cell_values(observations).shape == (2, 4, 6, 20, 20)
    assert net.reward_logits(observations[:, :3]).shape == (2, 3)
    heads = net.heads
    assert heads["many_goals"].state_embedding.weight.shape == (1024, 512)
    assert heads["pixel_control"].spread[0].weight.shape == (32 * 9 * 9, 512)
    assert heads["reward_prediction"][0].weight.shape == (128, 3 * 512)


@pytest.mark.parametrize(
    ("space", "extractor", "width"),
    [(ATARI, NatureCNN, 512), (SMALL, PaddedCNN, 512), (VECTOR, FlattenExtractor, 128)],
)
def test_heads_share_the_extractor_or_the_last_layers(space, extractor, width):
    net = policy(space)
    assert type(net.features_extractor) is extractor
    assert net.shared_dim == width
    observations = th.as_tensor(np.stack([space.sample() for _ in range(3)]))
    if space is VECTOR:
        expected = th.cat(net.mlp_extractor(net.features_extractor(observations)), dim=1)
    else:
        expected = net.features_extractor(observations.float() / 255.0)
    th.testing.assert_close(net.shared_features(observations), expected)


def test_values_of_trajectories_equal_those_of_single_pairs():
    net = policy(SMALL)
    observations = th.randint(256, (3, 5, *SMALL.shape), dtype=th.uint8)
    with th.no_grad():
        for parameter in net.goal_target.parameters():
            parameter.add_(0.1 * th.randn(parameter.shape))
    for target, followed, first in ((False, net, 0), (True, net.goal_target, 1)):
        head = net.heads["many_goals"] if not target else followed.head
        values = net.goal_values(observations, target)
        for b in range(3):
            goal = followed.features_extractor(observations[b, -1:].float() / 255)
            for t in range(4):
                state = followed.features_extractor(observations[b, t + first][None].float() / 255)
                product = head.state_embedding(state) * head.goal_embedding(goal)
                th.testing.assert_close(values[b, t], head.head(product)[0], rtol=1e-4, atol=1e-5)


def test_the_target_network_changes_only_when_it_is_updated():
    net = policy(SMALL)
    observations = th.randint(256, (1, 3, *SMALL.shape), dtype=th.uint8)
    before = net.goal_values(observations, target=True)
    with th.no_grad():
        net.heads["many_goals"].head.bias.add_(1.0)
        next(net.features_extractor.parameters()).add_(0.1)
    assert th.equal(net.goal_values(observations, target=True), before)
    net.update_goal_target()
    after = net.goal_values(observations, target=True)
    assert not th.allclose(after, before)
    # Shifted by one, the learning network values the same observations as the target network.
    shifted = th.cat([observations[:, 1:], observations[:, -1:]], dim=1)
    th.testing.assert_close(net.goal_values(shifted), after)
    assert not any(parameter.requires_grad for parameter in net.goal_target.parameters())


class Dropping(FlattenExtractor):
    """Layers whose outputs are random in training."""

    def __init__(self, observation_space):
        super().__init__(observation_space)
        width = self.features_dim
        self.layers = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.Dropout())

    def forward(self, observations):
        return self.layers(super().forward(observations))


def test_the_target_network_is_never_in_training():
    kwargs = {"features_extractor_class": Dropping, "embedding_dim": 8}
    model = A2C(AuxiliaryActorCriticPolicy, "CartPole-v1", policy_kwargs=kwargs, device="cpu")
    policy = model.policy
    seen = th.randn(6, 3, 4)
    for training in (True, False):
        policy.set_training_mode(training)
        assert policy.features_extractor.training == training
        values = [policy.goal_values(seen, target=True) for _ in range(2)]
        assert th.equal(*values)
    counted = policy.goal_target.features_extractor.layers[1].num_batches_tracked
    assert counted == 0


@pytest.mark.parametrize("cells", [1, 2, 3, 4, 5, 8, 20])
def test_advantages_have_mean_0_and_every_cell_learns(cells):
    head = PixelControlHead(6, 3, (2 * cells, 2 * cells + 1), crop=2 * cells, cell=2)
    features = th.randn(4, 6)
    q = head(features)
    assert q.shape == (4, 3, cells, cells)
    values = head.values(head.spread(features))[:, 0, :cells, :cells]
    th.testing.assert_close(q.mean(dim=1), values)
    assert (q.std(dim=0) > 0).all()


def test_heads_depend_on_the_seed_and_do_not_change_the_learners_random_numbers():
    def seeded(seed, tasks):
        th.manual_seed(seed)
        heads = policy(VECTOR, tasks).heads
        return heads, th.get_rng_state()

    heads, after = seeded(0, ALL[::2])
    _, without = seeded(0, ())
    assert th.equal(after, without)
    for name, layer in (("many_goals", "state_embedding"), ("reward_prediction", "0")):
        ours, same, other = (
            one[name].get_submodule(layer)
            for one in (heads, seeded(0, ALL[::2])[0], seeded(1, ALL[::2])[0])
        )
        assert th.equal(ours.weight, same.weight)
        assert not th.equal(ours.weight, other.weight)
        # The weights are not made of the numbers that the learner draws next.
        th.set_rng_state(after)
        assert not th.equal(ours.weight, th.nn.Linear(ours.in_features, ours.out_features).weight)


def test_a_model_and_a_policy_are_saved_and_loaded(tmp_path):
    kwargs = {"tasks": ALL, "crop": 20, "cell": 4, "embedding_dim": 8}
    model = A2C(
        AuxiliaryActorCriticPolicy, stories(limit=12), policy_kwargs=kwargs, seed=1, device="cpu"
    )
    model.learn(200, ManyGoalsCallback(target_update_interval=7, batch_size=10))
    model.save(tmp_path / "model")
    loaded = A2C.load(tmp_path / "model", device="cpu")
    for ours, theirs in zip(
        model.policy.state_dict().values(), loaded.policy.state_dict().values(), strict=True
    ):
        assert th.equal(ours, theirs)
    left, right = (one.policy.optimizer.state_dict()["state"] for one in (model, loaded))
    assert all(th.equal(left[i]["square_avg"], right[i]["square_avg"]) for i in left)
    assert loaded.policy.tasks == ALL
    loaded.set_env(stories())
    loaded.learn(40, ManyGoalsCallback())

    model.policy.save(tmp_path / "policy")
    alone = AuxiliaryActorCriticPolicy.load(tmp_path / "policy")
    observation = model.env.reset()
    assert (
        alone.predict(observation, deterministic=True)[0]
        == model.predict(observation, deterministic=True)[0]
    ).all()
    assert alone.crop == 20


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        (
            {"tasks": ("many_goals", "goals")},
            ValueError,
            "tasks must be some of 'many_goals', .*, each once, got",
        ),
        ({"tasks": ("many_goals", "many_goals")}, ValueError, "each once"),
        ({"tasks": "many_goals"}, ValueError, "tasks must be some of"),
        (
            {"tasks": ("pixel_control",)},
            ValueError,
            "crop must be between 1 and .*, 10x10, got 80: policy_kwargs of the policy has crop",
        ),
        (
            {"tasks": ("pixel_control",), "crop": 10, "cell": 4},
            ValueError,
            "cell must be a divisor of crop, 10, got 4",
        ),
        ({"tasks": ("pixel_control",), "space": VECTOR}, TypeError, "pixel control needs images"),
        ({"embedding_dim": 0}, ValueError, "embedding_dim must be a whole number, at least 1"),
        ({"share_features_extractor": False}, ValueError, "share_features_extractor must be True"),
        ({"net_arch": [], "space": VECTOR}, ValueError, "net_arch must have layers"),
        ({"space": spaces.Dict({"a": VECTOR})}, TypeError, "observation_space cannot be"),
        ({"actions": VECTOR}, TypeError, "action_space must be Discrete"),
        ({"actions": spaces.Discrete(4, start=1)}, TypeError, r"got Discrete\(4, start=1\)"),
    ],
)
def test_bad_arguments_are_refused(kwargs, error, message):
    with pytest.raises(error, match=message):
        policy(**{"space": SMALL} | kwargs)
