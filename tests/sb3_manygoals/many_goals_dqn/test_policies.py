import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.policies import ActorCriticCnnPolicy
from stable_baselines3.common.torch_layers import FlattenExtractor, NatureCNN

from sb3_manygoals import ManyGoalsDQN, RewardPredictor
from sb3_manygoals.many_goals_dqn import CnnPolicy, MlpPolicy
from sb3_manygoals.networks import PaddedCNN, Preprocess
from tests.sb3_manygoals.worlds import Corridor


def goal_space(space):
    return spaces.Dict({key: space for key in ("observation", "achieved_goal", "desired_goal")})


def test_actions_are_greedy_in_the_values():
    space = spaces.Box(-1, 1, (4,), np.float32)
    th.manual_seed(0)
    policy = MlpPolicy(goal_space(space), spaces.Discrete(3), lambda _: 1e-3, head="bilinear", ema_decay=0.0)
    with th.no_grad():
        policy.q_net.head.bias.zero_()  # at first the biases decide, and the same everywhere
    space.seed(0)
    obs = {key: np.stack([space.sample() for _ in range(200)]) for key in ("observation", "desired_goal")}
    with th.no_grad():
        q = policy.q_net(th.tensor(obs["observation"]), th.tensor(obs["desired_goal"]))
    np.testing.assert_array_equal(policy.predict(obs)[0], q.argmax(dim=1).numpy())
    assert len(np.unique(policy.predict(obs)[0])) > 1


def test_extractors_of_sb3_work_unchanged():
    space = spaces.Box(0, 255, (84, 84, 4), np.uint8)
    policy = CnnPolicy(
        goal_space(space), spaces.Discrete(3), lambda _: 1e-3, features_extractor_class=NatureCNN, embedding_dim=8
    )
    obs = {key: np.zeros((2, 84, 84, 4), np.uint8) for key in ("observation", "desired_goal")}
    assert policy.predict(obs)[0].shape == (2,)


def test_actions_are_those_of_the_averaged_weights():
    space = spaces.Box(-1, 1, (4,), np.float32)
    th.manual_seed(0)
    policy = MlpPolicy(goal_space(space), spaces.Discrete(3), lambda _: 1e-3, ema_decay=0.75)
    for _ in range(3):
        with th.no_grad():
            for parameter in policy.q_net.parameters():
                parameter.add_(th.randn_like(parameter))
        policy.update_ema()
    assert policy.ema_updates == 3
    assert not any(average.requires_grad for average in policy.q_net_ema.parameters())
    space.seed(0)
    obs = {key: np.stack([space.sample() for _ in range(200)]) for key in ("observation", "desired_goal")}
    tensors = [th.tensor(obs[key]) for key in ("observation", "desired_goal")]
    with th.no_grad():
        ours, average = policy.q_net(*tensors).argmax(dim=1), policy.q_net_ema(*tensors).argmax(dim=1)
    assert not th.equal(ours, average)
    np.testing.assert_array_equal(policy.predict(obs)[0], average.numpy())


def test_the_average_forgets_its_beginning():
    """After n updates the newest weights count 9 / (10 + n), until that is less than is told: by hand, of one weight."""
    policy = MlpPolicy(goal_space(spaces.Discrete(5)), spaces.Discrete(3), lambda _: 1e-3, [4], ema_decay=0.7)
    weight, average = policy.q_net.offset, policy.q_net_ema.offset
    with th.no_grad():
        weight.fill_(0.0)
        average.fill_(0.0)
    expected, shares = 0.0, [9 / 11, 9 / 12, 9 / 13, 9 / 14]
    for update in range(40):
        with th.no_grad():
            weight.fill_(float(update))
        policy.update_ema()
        share = max(9 / (10 + update + 1), 0.3)
        assert update >= len(shares) or share == shares[update]
        expected += share * (update - expected)
        assert average.item() == pytest.approx(expected, rel=1e-5)
    assert share == 0.3  # the warm-up is over: 9 / 30 after 20 updates


def test_small_pictures_are_looked_at_place_by_place_and_large_ones_by_convolutions():
    for side, extractor in ((10, FlattenExtractor), (35, FlattenExtractor), (36, PaddedCNN), (84, PaddedCNN)):
        space = spaces.Box(0, 255, (side, side, 3), np.uint8)
        policy = CnnPolicy(goal_space(space), spaces.Discrete(3), lambda _: 1e-3)
        assert isinstance(policy.q_net.trunk[1], extractor)
        widths = [layer.out_features for layer in policy.q_net.trunk[2:] if hasattr(layer, "out_features")]
        assert widths == ([512, 512] if extractor is FlattenExtractor else [])


@pytest.mark.parametrize("kind", ["q_net", "q_net_target", "reward_prediction"])
def test_a_trunk_begins_as_that_of_an_actor_critic(kind):
    """Compared with SB3's own, layer by layer: by singular values, as the weights are random."""
    images, schedule = spaces.Box(0, 255, (3, 10, 10), np.uint8), lambda _: 1e-3
    theirs = list(
        ActorCriticCnnPolicy(images, spaces.Discrete(3), schedule, [], features_extractor_class=PaddedCNN).parameters()
    )
    for ortho_init in (True, False):
        if kind == "reward_prediction":
            trunk = RewardPredictor.policy_aliases["CnnPolicy"](
                images, spaces.Discrete(3), schedule, ortho_init=ortho_init
            ).trunk
        else:
            settings = {"features_extractor_class": PaddedCNN, "ortho_init": ortho_init}
            trunk = getattr(CnnPolicy(goal_space(images), spaces.Discrete(3), schedule, **settings), kind).trunk
        ours = list(trunk.parameters())
        assert len(ours) == 6
        for one, other in zip(ours, theirs, strict=False):
            assert one.shape == other.shape
            values = [
                th.linalg.svdvals(layer.detach().flatten(1)) if layer.dim() > 1 else layer.detach() for layer in (one, other)
            ]
            assert th.allclose(*values, atol=1e-4) == ortho_init


def test_standardized_observations_by_hand():
    preprocess = Preprocess(spaces.Box(0, 255, (2, 2, 3), np.uint8), standardize=True)
    black, white = th.zeros(1, 2, 2, 3, dtype=th.uint8), th.zeros(1, 2, 2, 3, dtype=th.uint8)
    white[0, 0, 0] = 255  # one pixel of four ever changes
    before = preprocess(white)
    assert before.max() == 1.0
    preprocess.fit(th.cat([black, black, black, white]))
    # mean 1/4, deviation sqrt(3)/4
    assert preprocess(white)[0, 0, 0, 0].item() == pytest.approx(3**0.5, rel=1e-5)
    assert preprocess(black)[0, 0, 0, 0].item() == pytest.approx(-1 / 3**0.5, rel=1e-5)
    assert preprocess(white)[0, :, 1, 1].abs().max() == 0.0


def test_an_element_that_has_not_varied_yet_is_scaled_like_the_median_of_those_that_have():
    preprocess = Preprocess(spaces.Box(-10, 10, (5,), np.float32), standardize=True)
    # deviations 1, 2 and 4 about 0, and two elements that are constant, at 3 and at 0
    rows = th.tensor([[1.0, 2.0, 4.0, 3.0, 0.0], [-1.0, -2.0, -4.0, 3.0, 0.0]])
    preprocess.fit(rows)
    th.testing.assert_close(preprocess(rows), th.tensor([[1.0, 1.0, 1.0, 0.0, 0.0], [-1.0, -1.0, -1.0, 0.0, 0.0]]))
    th.testing.assert_close(preprocess(th.tensor([[0.0, 0.0, 0.0, 5.0, -4.0]])), th.tensor([[0.0, 0.0, 0.0, 1.0, -2.0]]))
    preprocess.fit(rows[:1].expand(4, 5))  # nothing varied: observations are only centred
    th.testing.assert_close(preprocess(rows[:1] + 1.0), th.ones(1, 5))


def test_standardization_is_fitted_once_to_the_known_goals_and_saved(tmp_path):
    model = ManyGoalsDQN(
        "CnnPolicy",
        Corridor(image=True),
        learning_starts=50,
        seed=0,
        updates_per_step=1.0,
        batch_size=8,
        policy_kwargs={"standardize": True, "embedding_dim": 8, "net_arch": [8]},
    )
    preprocess, *others = (network.trunk[0] for network in (model.q_net, model.q_net_target, model.policy.q_net_ema))
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
    model.save(tmp_path / "model")
    loaded = ManyGoalsDQN.load(tmp_path / "model")
    assert th.equal(loaded.q_net.trunk[0].mean, preprocess.mean)
