"""Policies: greedy actions, networks for all kinds of observations, and how inputs are scaled."""

import itertools

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from stable_baselines3.common.policies import ActorCriticCnnPolicy
from stable_baselines3.common.torch_layers import FlattenExtractor, NatureCNN

from sb3_manygoals import GoalBuffer, RewardPredictor
from sb3_manygoals.goals.wrapper import goal_observation_space as goal_space
from sb3_manygoals.many_goals_dqn import (
    CnnPolicy,
    MlpPolicy,
    PlannedTargets,
    TDTargets,
    standardization,
)
from sb3_manygoals.networks import PaddedCNN, Preprocess
from tests.sb3_manygoals.many_goals_dqn.models import SMALL, make_model, reloaded
from tests.sb3_manygoals.worlds import Corridor


@pytest.mark.parametrize("ema_decay", [0.0, 0.75])
def test_actions_are_greedy_in_the_values_of_the_averaged_weights_if_there_are_any(ema_decay):
    space = spaces.Box(-1, 1, (4,), np.float32)
    th.manual_seed(0)
    policy = MlpPolicy(
        goal_space(space), spaces.Discrete(3), lambda _: 1e-3, head="bilinear", ema_decay=ema_decay
    )
    with th.no_grad():
        for _ in range(3):
            for parameter in policy.q_net.parameters():
                parameter.add_(0.1 * th.randn_like(parameter))
            policy.update_ema()
    space.seed(0)
    obs = {
        key: np.stack([space.sample() for _ in range(200)])
        for key in ("observation", "desired_goal")
    }
    acting = policy.q_net_ema if ema_decay else policy.q_net
    with th.no_grad():
        trained = policy.q_net(*map(th.tensor, obs.values())).argmax(dim=1).numpy()
        greedy = acting(*map(th.tensor, obs.values())).argmax(dim=1).numpy()
    np.testing.assert_array_equal(policy.predict(obs)[0], greedy)
    assert len(np.unique(greedy)) > 1
    assert (trained != greedy).any() == bool(ema_decay)


def test_the_average_forgets_its_beginning():
    """
    After n updates the newest weights count 9 / (10 + n), until that is less than 1 - ema_decay.

    The average of one weight is computed by hand.
    """
    space = goal_space(spaces.Discrete(5))
    policy = MlpPolicy(space, spaces.Discrete(3), lambda _: 1e-3, [4], ema_decay=0.7)
    policy.q_net_ema.offset.fill_(0.0)
    expected = 0.0
    for update in range(40):
        with th.no_grad():
            policy.q_net.offset.fill_(float(update))
        policy.update_ema()
        # The share of the newest weights is 0.3 after 20 updates.
        expected += max(9 / (10 + update + 1), 0.3) * (update - expected)
        assert policy.q_net_ema.offset.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("side", "extractor", "widths"),
    [
        (10, FlattenExtractor, [512, 512]),
        (35, FlattenExtractor, [512, 512]),
        (36, PaddedCNN, []),
        (84, PaddedCNN, []),
    ],
)
def test_small_images_are_flattened_and_large_ones_go_through_convolutions(side, extractor, widths):
    space = spaces.Box(0, 255, (side, side, 3), np.uint8)
    policy = CnnPolicy(goal_space(space), spaces.Discrete(3), lambda _: 1e-3)
    assert isinstance(policy.q_net.trunk[1], extractor)
    layers = [layer for layer in policy.q_net.trunk[2:] if hasattr(layer, "out_features")]
    assert [layer.out_features for layer in layers] == widths


def test_features_extractors_of_sb3_can_be_used():
    space = spaces.Box(0, 255, (84, 84, 3), np.uint8)
    settings = {"features_extractor_class": NatureCNN}
    policy = CnnPolicy(goal_space(space), spaces.Discrete(3), lambda _: 1e-3, **settings)
    obs = {key: np.zeros((2, 84, 84, 3), np.uint8) for key in ("observation", "desired_goal")}
    assert policy.predict(obs)[0].shape == (2,)


@pytest.mark.parametrize("make", [CnnPolicy, RewardPredictor.policy_aliases["CnnPolicy"]])
@pytest.mark.parametrize("ortho_init", [True, False])
def test_a_trunk_begins_as_that_of_an_actor_critic(make, ortho_init):
    """Weights are random, so the layers are compared with SB3's own by their singular values."""
    images = spaces.Box(0, 255, (3, 10, 10), np.uint8)
    space = goal_space(images) if make is CnnPolicy else images
    arguments = (spaces.Discrete(3), lambda _: 1e-3)
    extractor = {"features_extractor_class": PaddedCNN}
    ours = list(make(space, *arguments, ortho_init=ortho_init, **extractor).trunk.parameters())
    theirs = ActorCriticCnnPolicy(images, *arguments, net_arch=[], **extractor).parameters()
    assert len(ours) == 6
    for layers in zip(ours, theirs, strict=False):
        assert layers[0].shape == layers[1].shape
        values = [
            th.linalg.svdvals(layer.flatten(1)) if layer.dim() > 1 else layer for layer in layers
        ]
        assert th.allclose(*values, atol=1e-4) == ortho_init


def test_standardized_images_by_hand():
    preprocess = Preprocess(spaces.Box(0, 255, (2, 2, 3), np.uint8), standardize=True)
    pictures = th.zeros(4, 2, 2, 3, dtype=th.uint8)
    # One pixel of four ever changes: its mean is 1/4, its deviation sqrt(3)/4.
    pictures[3, 0, 0] = 255
    assert preprocess(pictures).max() == 1.0
    preprocess.fit(pictures)
    expected = th.zeros(4, 3, 2, 2)
    expected[:, :, 0, 0] = th.tensor([-1.0, -1.0, -1.0, 3.0])[:, None] / 3**0.5
    th.testing.assert_close(preprocess(pictures), expected)


def test_images_that_are_standardized_by_channel_by_hand():
    preprocess = Preprocess(spaces.Box(0, 255, (2, 2, 4), np.uint8), standardize=True)
    preprocess.standardize_by_channel()
    pictures = th.zeros(4, 2, 2, 4, dtype=th.uint8)
    # One of 16 numbers of the first channel is 1, none of the second, half of the third, and all
    # numbers of the fourth are 1 but one, which is .8.
    pictures[3, 0, 0, 0] = 255
    pictures[:2, :, :, 2] = 255
    pictures[:, :, :, 3] = 255
    pictures[0, 0, 0, 3] = 204
    preprocess.fit(pictures)
    typical = 15**0.5 / 16
    expected = th.zeros(4, 4, 2, 2)
    expected[:, 0] = -1 / 16 / typical
    expected[3, 0, 0, 0] = 15 / 16 / typical
    expected[:2, 2] = 1.0
    expected[2:, 2] = -1.0
    # Its deviation of .048 counts as half the typical one.
    expected[:, 3] = 0.2 / 16 / (typical / 2)
    expected[0, 3, 0, 0] = -0.2 * 15 / 16 / (typical / 2)
    th.testing.assert_close(preprocess(pictures), expected)
    # A constant channel is scaled by the typical deviation.
    pictures[0, 0, 0, 1] = 255
    assert preprocess(pictures)[0, 1, 0, 0].item() == pytest.approx(1 / typical)


def test_rare_pixels_count_and_large_images_are_standardized_by_pixel():
    for side in (35, 36):
        preprocess = Preprocess(spaces.Box(0, 255, (side, 300, 1), np.uint8), standardize=True)
        preprocess.standardize_by_channel()
        pictures = th.zeros(2, side, 300, 1, dtype=th.uint8)
        pictures[0, 0, 0, 0] = 1
        preprocess.fit(pictures)
        is_small = side == 35
        assert (preprocess.mean == preprocess.mean[:, :1, :1]).all() == is_small
        expected = (2 * side * 300) ** 0.5 if is_small else 1.0
        assert preprocess(pictures).max().item() == pytest.approx(expected, rel=0.01)


def test_a_constant_channel_does_not_vary_by_rounding_errors():
    preprocess = Preprocess(spaces.Box(0, 255, (1, 19, 19), np.uint8), standardize=True)
    preprocess.standardize_by_channel()
    for level in range(256):
        preprocess.fit(th.full((16, 1, 19, 19), level, dtype=th.uint8))
        assert (preprocess.scale == 1.0).all()


def test_standardized_vectors_by_hand():
    """Numbers that have not varied are scaled by the median of all other deviations."""
    preprocess = Preprocess(spaces.Box(-10, 10, (5,), np.float32), standardize=True)
    # The deviations are 1, 2 and 4 about 0. The last two numbers are constants.
    rows = th.tensor([[1.0, 2.0, 4.0, 3.0, 0.0], [-1.0, -2.0, -4.0, 3.0, 0.0]])
    preprocess.fit(rows)
    expected = th.tensor([[1.0, 1.0, 1.0, 0.0, 0.0], [-1.0, -1.0, -1.0, 0.0, 0.0]])
    th.testing.assert_close(preprocess(rows), expected)
    other = th.tensor([[0.0, 0.0, 0.0, 5.0, -4.0]])
    th.testing.assert_close(preprocess(other), th.tensor([[0.0, 0.0, 0.0, 1.0, -2.0]]))
    # If nothing varies, observations are only centered.
    preprocess.fit(rows[:1].expand(4, 5))
    th.testing.assert_close(preprocess(rows[:1] + 1.0), th.ones(1, 5))


@given(
    st.lists(st.sampled_from([1e-6, 1e-2, 1.0, 1e3, 1e7]), min_size=3, max_size=3),
    st.integers(0, 99),
)
def test_elements_of_a_vector_may_have_any_units(units, seed):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(64, 3)).astype(np.float32)
    # The last element is a lamp that is lit in a quarter of the rows.
    rows[:, 2] = rng.permutation(64) < 16
    same = Preprocess(spaces.Box(-np.inf, np.inf, (3,)), standardize=True)
    same.fit(th.tensor(rows))
    preprocess = Preprocess(spaces.Box(-np.inf, np.inf, (3,)), standardize=True)
    in_units = th.tensor(rows * np.float32(units))
    preprocess.fit(in_units)
    th.testing.assert_close(preprocess(in_units), same(th.tensor(rows)), rtol=1e-3, atol=1e-3)
    th.testing.assert_close(preprocess(in_units).std(dim=0, correction=0), th.ones(3))


def test_rare_elements_of_a_vector_by_hand():
    rows = th.zeros(100, 4)
    rows[:, 0] = th.arange(100) % 2
    rows[:, 1] = th.arange(100) % 2
    # Two lamps are lit in one of a hundred rows. One of them is of a smaller unit.
    rows[7, 2] = 1.0
    rows[7, 3] = 0.01
    preprocess = Preprocess(spaces.Box(-1, 1, (4,)), standardize=True)
    preprocess.fit(rows)
    # The deviation of the second lamp, .000995, counts as a quarter of its light. Half the median
    # deviation of all elements, .04975, would make its light too dim.
    np.testing.assert_allclose(1 / preprocess.scale, [0.5, 0.5, 0.0995, 0.0025], rtol=1e-3)


def test_of_large_observations_a_few_are_enough_to_standardize_by(monkeypatch):
    monkeypatch.setattr(standardization, "_MOST_NUMBERS_TO_FIT", 150)
    model = make_model(Corridor(image=True), "CnnPolicy", learning_starts=50)
    shapes = []
    monkeypatch.setattr(
        model.policy, "fit_standardization", lambda seen, _: shapes.append(tuple(seen.shape))
    )
    model.learn(60)
    # Each observation has 72 numbers.
    assert shapes == [(2, 4, 6, 3)]


def test_numbers_of_discrete_observations_count_as_the_network_gets_them(monkeypatch):
    monkeypatch.setattr(standardization, "_MOST_NUMBERS_TO_FIT", 30)
    model = make_model(gym.make("FrozenLake8x8-v1"), learning_starts=50)
    shapes = []
    monkeypatch.setattr(
        model.policy, "fit_standardization", lambda seen, _: shapes.append(tuple(seen.shape))
    )
    model.learn(60)
    # Each observation becomes 64 numbers.
    assert shapes == [(1,)]


@pytest.mark.parametrize("target_class", [PlannedTargets, TDTargets])
def test_standardization_is_fitted_once_to_the_known_goals_and_saved(tmp_path, target_class):
    settings = {"learning_starts": 50, "target_class": target_class}
    model = make_model(Corridor(image=True), "CnnPolicy", **settings)
    preprocess, *others = (network.trunk[0] for network in model.policy.networks)
    assert len(others) == (1 if target_class is PlannedTargets else 2)
    assert preprocess.mean.abs().max() == 0.0
    model.learn(60)
    known = th.tensor(model.goal_buffer.observations.copy()).permute(0, 3, 1, 2) / 255
    th.testing.assert_close(preprocess.mean, known.mean(dim=0))
    for other in others:
        assert th.equal(preprocess.mean, other.mean)
        assert th.equal(preprocess.scale, other.scale)
    model.goal_buffer.add(np.full((1, 4, 6, 3), 200, np.uint8))
    model.learn(20, reset_num_timesteps=False)
    th.testing.assert_close(preprocess.mean, known.mean(dim=0))
    assert th.equal(reloaded(model, tmp_path).q_net.trunk[0].mean, preprocess.mean)


@pytest.mark.parametrize(
    ("target_class", "target_kwargs", "goals_in_replay", "repeats"),
    [
        (TDTargets, {}, False, True),
        (TDTargets, {}, True, True),
        (TDTargets, {"goal_sampling": "uniform"}, False, False),
        (PlannedTargets, {}, False, False),
    ],
)
def test_inputs_are_standardized_again_when_twice_as_much_is_known(
    monkeypatch, target_class, target_kwargs, goals_in_replay, repeats
):
    model = make_model(
        Map(0.0),
        learning_starts=2,
        target_class=target_class,
        target_kwargs=target_kwargs,
        goals_in_replay=goals_in_replay,
    )
    sizes = []
    fit = model.policy.fit_standardization

    def note(seen, goals):
        sizes.append(len(seen))
        fit(seen, goals)

    monkeypatch.setattr(model.policy, "fit_standardization", note)
    model.learn(200)
    n_known = len(model.goal_buffer if goals_in_replay else model.goal_buffer.states)
    if not repeats:
        assert len(sizes) == 1
        return
    assert n_known > 4 * sizes[0]
    assert len(sizes) > 2
    assert all(later >= 2 * earlier for earlier, later in itertools.pairwise(sizes))
    assert n_known < 2 * sizes[-1]
    for network in model.policy.networks:
        assert th.equal(network.trunk[0].scale, model.q_net.trunk[0].scale)


def test_inputs_are_standardized_by_transitions_once_the_goal_buffer_is_full(monkeypatch):
    goal_buffer = GoalBuffer(Map(0.0).observation_space, 20)
    model = make_model(
        Map(0.0),
        learning_starts=2,
        target_class=TDTargets,
        goal_wrapper_kwargs={"goal_buffer": goal_buffer},
    )
    seen = []
    fit = model.policy.fit_standardization

    def note(observations, goals):
        seen.append(observations.clone())
        fit(observations, goals)

    monkeypatch.setattr(model.policy, "fit_standardization", note)
    with pytest.warns(RuntimeWarning, match="full with 20 goals"):
        model.learn(200)
    sizes = [len(observations) for observations in seen]
    assert sizes[-1] > 60
    assert all(later >= 2 * earlier for earlier, later in itertools.pairwise(sizes))
    met = {tuple(row) for row in model.replay_buffer.next_observations[:, 0].tolist()}
    assert {tuple(row) for row in seen[-1].tolist()} <= met


def test_a_model_that_was_loaded_standardizes_again_when_it_knows_more(monkeypatch, tmp_path):
    model = make_model(Map(0.0), learning_starts=2, target_class=TDTargets).learn(50)
    loaded = reloaded(model, tmp_path)
    loaded.set_env(model.get_env())
    assert loaded._n_updates > 0
    sizes = []
    monkeypatch.setattr(
        loaded.policy, "fit_standardization", lambda seen, _: sizes.append(len(seen))
    )
    loaded.learn(200, reset_num_timesteps=False)
    assert sizes


class Map(gym.Env):
    """25 places of a map, as numbers that may begin far from 0."""

    action_space = spaces.Discrete(4)

    def __init__(self, origin, unit=1.0, dtype=np.float64):
        self.origin = origin
        self.unit = unit
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), dtype)
        self.place = np.zeros(2, dtype=np.int64)

    def show(self):
        return (self.origin + self.unit * self.place).astype(self.observation_space.dtype)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.np_random.integers(5, size=2)
        return self.show(), {}

    def step(self, action):
        move = ((0, 1), (1, 0), (0, -1), (-1, 0))[int(action)]
        self.place = np.clip(self.place + move, 0, 4)
        return self.show(), 0.0, False, False, {}


class FarCorner(Map):
    """All places but one lie together. That one is ten billion times as far away."""

    def __init__(self):
        super().__init__(0.0)

    def show(self):
        return super().show() + 1e10 * (self.place.sum() == 8)


def test_places_far_from_zero_are_learned_as_others_are():
    """In UTM metres, float32 tells only every half metre apart."""
    inputs = []
    for origin in (0.0, 5_400_000.3):
        # Standardization is fitted before the first update.
        model = make_model(Map(origin, unit=0.25), updates_per_step=0.02).learn(400)
        observations = model.goal_buffer.observations.copy()
        assert len(observations) == 25
        assert model.policy.count_distinct(th.as_tensor(observations)) == 25
        in_order = observations[np.lexsort(observations.T)]
        inputs.append(model.policy.trunk[0](th.as_tensor(in_order)).detach())
    th.testing.assert_close(*inputs, atol=1e-4, rtol=0.0)


# Without standardization, a quarter of a metre is lost. With it, what is far less than the whole.
@pytest.mark.parametrize(
    ("standardize", "make_world"),
    [(False, lambda: Map(5_400_000.3, unit=0.25)), (True, FarCorner)],
)
def test_goals_that_look_alike_to_the_network_are_a_warning(standardize, make_world):
    policy_kwargs = {**SMALL, "standardize": standardize}
    model = make_model(make_world(), policy_kwargs=policy_kwargs, learning_starts=300)
    with pytest.warns(UserWarning, match="of [0-9]+ known goals look to the network like another"):
        model.learn(400)


@pytest.mark.parametrize("target_class", [PlannedTargets, TDTargets])
def test_a_policy_is_saved_and_loaded_with_or_without_a_target_network(tmp_path, target_class):
    model = make_model(target_class=target_class).learn(60)
    model.policy.save(tmp_path / "policy")
    loaded = type(model.policy).load(tmp_path / "policy")
    obs = {"observation": np.eye(6, dtype=np.uint8), "desired_goal": np.eye(6, dtype=np.uint8)}
    np.testing.assert_array_equal(loaded.predict(obs)[0], model.policy.predict(obs)[0])
    for name, weights in model.policy.state_dict().items():
        assert th.equal(loaded.state_dict()[name], weights)
