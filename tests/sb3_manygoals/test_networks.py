"""Tests of the networks."""

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.torch_layers import NatureCNN
from torch import nn

from sb3_manygoals.goals.wrapper import goal_observation_space as goal_space
from sb3_manygoals.many_goals_dqn import CnnPolicy, MlpPolicy
from sb3_manygoals.networks import (
    ATARI_LAYERS,
    MASTERY_LAYERS,
    MultiInputExtractor,
    PaddedCNN,
    Preprocess,
    SmallImageCNN,
)


@pytest.mark.parametrize(
    ("height", "width", "layers"),
    [
        (10, 10, MASTERY_LAYERS),
        (7, 5, MASTERY_LAYERS),
        (9, 11, MASTERY_LAYERS),
        (40, 41, ATARI_LAYERS),
        (5, 36, ATARI_LAYERS),
    ],
)
def test_every_pixel_is_seen(height, width, layers):
    th.manual_seed(0)
    extractor = PaddedCNN(spaces.Box(0, 255, (3, height, width), np.uint8), layers=layers)
    # With leaky units, a pixel is not missed only because the units that see it are off.
    extractor.net = nn.Sequential(
        *(nn.LeakyReLU(0.5) if isinstance(part, nn.ReLU) else part for part in extractor.net)
    )
    base = th.full((1, 3, height, width), 0.5)
    pixels = th.arange(height * width)
    variants = base.repeat(height * width, 1, 1, 1)
    variants[pixels, :, pixels // width, pixels % width] += 0.5
    with th.no_grad():
        assert ((extractor(variants) - extractor(base)).abs().amax(dim=1) > 1e-6).all()


def test_the_network_with_atari_layers_is_the_nature_cnn():
    space = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    ours = PaddedCNN(space)
    nature = NatureCNN(space)
    theirs = [*nature.cnn, *nature.linear]
    assert [type(part) for part in ours.net] == [type(part) for part in theirs]
    ours.load_state_dict(dict(zip(ours.state_dict(), nature.state_dict().values(), strict=True)))
    frames = th.rand(3, 4, 84, 84)
    features = ours(frames), nature(frames)
    th.testing.assert_close(*features)
    for each in features:
        each.square().sum().backward()
    for mine, other in zip(ours.parameters(), nature.parameters(), strict=True):
        th.testing.assert_close(mine.grad, other.grad, rtol=1e-3, atol=1e-4)
    with th.no_grad():
        th.testing.assert_close(ours(frames), nature(frames))


@pytest.mark.parametrize(("height", "width"), [(19, 19), (7, 10), (1, 2)])
def test_convolutions_of_small_images_see_the_same_in_all_places(height, width):
    th.manual_seed(0)
    extractor = SmallImageCNN(spaces.Box(0, 255, (2, height, width), np.uint8))
    places = th.arange(height * width)
    pictures = th.zeros(height * width, 2, height, width)
    pictures[places, 1, places // width, places % width] = 1.0
    empty = extractor(th.zeros(1, 2, height, width))
    features = extractor(pictures)
    assert features.shape == (height * width, extractor.features_dim)
    # A pixel changes what is seen in its neighborhood, and there alone.
    differs = (features - empty).abs().view(height * width, 16, -1).amax(dim=1) > 1e-7
    assert differs.any(dim=1).all()
    assert (differs.sum(dim=1) <= 9).all()
    if height == 19:
        # Two places to the right, the same features are one column further.
        columns = features.view(height, width, 16, 10, 10)
        th.testing.assert_close(columns[8, 8, :, :, 3:6], columns[8, 10, :, :, 4:7])


@pytest.mark.parametrize("normalizes", [True, False])
def test_sb3_can_use_convolutions_of_small_images(normalizes, tmp_path):
    class Seen(gym.Env):
        """One picture of 7x7 pixels and one number."""

        observation_space = spaces.Dict(
            {"picture": spaces.Box(0, 255, (7, 7, 3), np.uint8), "number": spaces.Discrete(4)}
        )
        action_space = spaces.Discrete(2)

        def reset(self, **_):
            return self.observation_space.sample(), {}

        def step(self, action):
            return self.observation_space.sample(), float(action), False, True, {}

    settings = {"features_extractor_class": MultiInputExtractor, "normalize_images": normalizes}
    model = DQN("MultiInputPolicy", Seen(), learning_starts=8, policy_kwargs=settings).learn(32)
    extractor = model.q_net.features_extractor
    assert extractor.features_dim == 16 * 4 * 4 + 4
    model.save(tmp_path / "model")
    loaded = DQN.load(tmp_path / "model")
    seen = Seen().observation_space.sample()
    values = [each.q_net(each.policy.obs_to_tensor(seen)[0]) for each in (model, loaded)]
    th.testing.assert_close(*values)


@pytest.mark.parametrize("head", ["bilinear", "distance"])
def test_pairwise_values_equal_the_values_of_single_pairs(head):
    th.manual_seed(0)
    settings = {
        "features_extractor_class": PaddedCNN,
        "net_arch": [],
        "embedding_dim": 1024,
        "standardize": False,
    }
    space = goal_space(spaces.Box(0, 255, (10, 10, 3), np.uint8))
    network = CnnPolicy(space, spaces.Discrete(5), lambda _: 1e-3, head=head, **settings).q_net
    states, goals = (th.randint(256, (n, 10, 10, 3), dtype=th.uint8) for n in (7, 4))
    actions = th.tensor([0, 1, 2, 3, 4, 0, 1])
    with th.no_grad():
        embedded = network.embed(states, goals)
        pairwise = network.pairwise(*embedded)
        taken = network.pairwise_taken(*embedded, actions)
        for s in range(7):
            for g in range(4):
                single = network(states[s : s + 1], goals[g : g + 1])[0]
                th.testing.assert_close(pairwise[s, g], single, rtol=1e-4, atol=1e-6)
                th.testing.assert_close(taken[s, g], single[actions[s]], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("head", ["bilinear", "distance"])
def test_the_way_there_may_be_longer_than_the_way_back(head):
    """With the same embeddings for states and goals, Q(s, a, g) would equal Q(g, a, s)."""
    th.manual_seed(0)
    space = goal_space(spaces.Box(-1.0, 1.0, (6,), np.float32))
    network = MlpPolicy(space, spaces.Discrete(3), lambda _: 1e-3, head=head).q_net
    here, there = th.randn(2, 4, 6)
    with th.no_grad():
        way_there = network(here, there)
        way_back = network(there, here)
    assert not th.isclose(way_there, way_back, rtol=1e-3).all(dim=1).any()
    # If states and goals shared the embedding too, both ways would have the same value.
    if head == "bilinear":
        network.goal_embedding = network.state_embedding
        with th.no_grad():
            th.testing.assert_close(network(here, there), network(there, here))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("head", ["bilinear", "distance"])
def test_the_best_value_of_each_pair_is_the_maximum_over_allowed_actions(head, masked):
    network = small_network(head)
    states = th.randint(256, (6, 9), dtype=th.uint8)
    goals = th.randint(256, (4, 9), dtype=th.uint8)
    mask = th.rand(6, 5) < 0.5
    mask[0] = False
    mask[1] = True
    with th.no_grad():
        embedded = network.embed(states, goals)
        found = network.pairwise_best(*embedded, mask if masked else None)
        values = network.pairwise(*embedded)
    for row in range(6):
        for column in range(4):
            allowed = [
                values[row, column, a].item() for a in range(5) if mask[row, a] or not masked
            ]
            assert found[row, column].item() == pytest.approx(max(allowed, default=-np.inf))


@pytest.mark.parametrize("own_trunk", [False, True])
@pytest.mark.parametrize("head", ["bilinear", "distance"])
def test_values_of_taken_actions_and_their_gradients_are_those_of_the_embeddings(head, own_trunk):
    network = small_network(head, own_trunk)
    states = th.randint(256, (6, 9), dtype=th.uint8)
    goals = th.randint(256, (4, 7 if own_trunk else 9), dtype=th.uint8)
    # Two of five actions are not taken.
    actions = th.tensor([3, 0, 3, 1, 0, 0])
    weights = th.rand(6, 4)
    expected = network.pairwise_taken(*network.embed(states, goals), actions)
    (weights * expected).sum().backward()
    gradients = [one.grad.clone() for one in network.parameters() if one.grad is not None]
    network.zero_grad()
    found = network.values_of_taken(states, actions, goals)
    (weights * found).sum().backward()
    th.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    others = [one.grad for one in network.parameters() if one.grad is not None]
    for one, other in zip(gradients, others, strict=True):
        th.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def small_network(head, own_trunk=False):
    """Return a network of nine numbers and five actions, with goals of seven numbers if asked."""
    th.manual_seed(0)
    space = goal_space(spaces.Box(0, 255, (9,), np.uint8))
    if own_trunk:
        goal = spaces.Box(0, 255, (7,), np.uint8)
        space = spaces.Dict({**space.spaces, "achieved_goal": goal, "desired_goal": goal})
    settings = {"net_arch": [16], "embedding_dim": 8, "standardize": False}
    return MlpPolicy(space, spaces.Discrete(5), lambda _: 1e-3, head=head, **settings).q_net


@pytest.mark.parametrize("shape", [(10, 10, 10), (5, 5, 10), (12, 8, 10)])
@pytest.mark.parametrize("policy_class", [CnnPolicy, MlpPolicy])
def test_images_need_channels_last_if_their_shape_does_not_tell(shape, policy_class, tmp_path):
    arguments = goal_space(spaces.Box(0, 255, shape, np.uint8)), spaces.Discrete(3), lambda _: 1e-3
    message = (
        'do not tell which axis holds the channels: give policy_kwargs={"channels_last": True}'
    )
    with pytest.raises(ValueError, match=message):
        policy_class(*arguments)
    for channels_last, expected in ((True, (shape[2], *shape[:2])), (False, shape)):
        policy = policy_class(*arguments, channels_last=channels_last, embedding_dim=4)
        assert policy.q_net.trunk[0].space.shape == expected
        policy.save(tmp_path / "policy")
        loaded = policy_class.load(tmp_path / "policy")
        assert loaded.q_net.trunk[0].space.shape == expected


@pytest.mark.parametrize(
    ("shape", "last"),
    [
        ((10, 10, 7), True),
        ((6, 10, 10), False),
        ((84, 84, 12), True),
        ((1, 10, 3), True),
        ((2, 10, 3), True),
    ],
)
def test_the_shape_tells_which_axis_holds_the_channels(shape, last):
    expected = (shape[2], *shape[:2]) if last else shape
    assert Preprocess(spaces.Box(0, 255, shape, np.uint8)).space.shape == expected


WIDE = {
    "centimetres of a map": np.float64([[50_000_000.0, 540_000_000.0]]),
    "seconds since 1970": np.float64([[1.8e9, 1.8e9]]),
    "large whole numbers": np.int64([[2**40, 2**30]]),
    "32 bits": np.int32([[2**30, 2**30]]),
}


@pytest.mark.parametrize("origin", WIDE.values(), ids=WIDE)
def test_standardization_tells_apart_numbers_that_are_equal_in_float32(origin):
    grid = np.indices((5, 5)).reshape(2, -1).T.astype(origin.dtype)
    observations = th.as_tensor(origin + grid)
    space = spaces.Box(0, origin.max() + 5, (2,), origin.dtype)
    plain = Preprocess(space)
    assert plain.count_distinct(observations) < 25
    preprocess = Preprocess(space, standardize=True)
    preprocess.fit(observations)
    assert preprocess.count_distinct(observations) == 25
    standardized = preprocess(observations).double()
    expected = (grid - grid.mean(axis=0)) / grid.std(axis=0)
    np.testing.assert_allclose(standardized.numpy(), expected, atol=1e-6)
    # The standardization is saved with the network.
    loaded = Preprocess(space, standardize=True)
    loaded.load_state_dict(preprocess.state_dict())
    th.testing.assert_close(loaded(observations), preprocess(observations))


def test_the_unit_of_a_vector_does_not_matter():
    """Small numbers are standardized as large ones are. They do not count as rounding errors."""
    grid = np.indices((5, 5)).reshape(2, -1).T
    for unit in (1e-7, 1.0, 1e7):
        preprocess = Preprocess(spaces.Box(0, 1e9, (2,), np.float32), standardize=True)
        observations = th.as_tensor((grid * unit).astype(np.float32))
        preprocess.fit(observations)
        assert preprocess.count_distinct(observations) == 25
        np.testing.assert_allclose(preprocess(observations).std(dim=0, correction=0), 1, rtol=1e-3)
