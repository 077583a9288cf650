import copy
import pickle

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.torch_layers import NatureCNN

from sb3_manygoals.auxiliary import AuxiliaryActorCriticPolicy, ManyGoalsCallback, RolloutReusePolicy, rollout_reuse
from sb3_manygoals.networks import PaddedCNN
from tests.sb3_manygoals.auxiliary.story import stories

PLAIN = {"tasks": (), "features_extractor_class": PaddedCNN, "net_arch": []}


class OneMore(PaddedCNN):
    def forward(self, observations):
        return super().forward(observations) + 1.0


STEPS, ENVS = 5, 2


def build(reuse, algorithm=A2C, policy_kwargs=None, **kwargs):
    heads = {**PLAIN, "reuse_rollout": reuse} | (policy_kwargs or {})
    env = stories(ENVS, n_stack=4, limit=12)
    return algorithm(AuxiliaryActorCriticPolicy, env, policy_kwargs=heads, seed=3, device="cpu", n_steps=STEPS, **kwargs)


class Gradients(BaseCallback):
    """Of each step of the optimizer; and how many pictures each pass of the convolutions was of, with gradients or without."""

    def __init__(self):
        super().__init__()
        self.gradients, self.passes = [], []

    def _on_training_start(self):
        policy = self.model.policy
        self.hooks = [
            policy.optimizer.register_step_pre_hook(lambda *_: self.note()),
            policy.features_extractor.net[0].register_forward_hook(
                lambda _, inputs, __: self.passes.append((len(inputs[0]), th.is_grad_enabled()))
            ),
        ]

    def note(self):
        self.gradients.append([p.grad.clone() for p in self.model.policy.parameters() if p.grad is not None])

    def _on_training_end(self):
        for hook in self.hooks:
            hook.remove()

    def _on_step(self):
        return True


def train(model, steps, *callbacks):
    noted = Gradients()
    model.learn(steps, [noted, *callbacks])
    return noted


def assert_close(left, right):
    for mine, other in zip(left, right, strict=True):
        th.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)


UPDATE = [(STEPS * ENVS, True)]  # of all observations at once
LAST = [(ENVS, False)]  # what comes after a rollout has a value


def test_the_gradient_is_sb3s_and_each_observation_is_convolved_once():
    sb3s, ours = train(build(False), 10), train(build(True), 10)
    assert sb3s.passes == STEPS * LAST + LAST + UPDATE
    assert ours.passes == STEPS * [(ENVS, True)] + LAST
    assert len(ours.gradients) == 1
    assert all(gradient.abs().max() > 0 for gradient in ours.gradients[0])
    assert_close(ours.gradients[0], sb3s.gradients[0])


def test_with_a_head_too():
    heads = {"tasks": ("many_goals",), "embedding_dim": 8}
    sb3s, ours = [train(build(reuse, policy_kwargs=heads), 60, ManyGoalsCallback(batch_size=10)) for reuse in (False, True)]
    assert UPDATE[0] in sb3s.passes
    assert UPDATE[0] not in ours.passes
    assert_close(ours.gradients[0], sb3s.gradients[0])


class Move(BaseCallback):
    """Moves the weights between two steps of a rollout, or after it."""

    def __init__(self, within):
        super().__init__()
        self.within = within

    def move(self):
        with th.no_grad():
            self.model.policy.features_extractor.net[0].bias.add_(0.1)

    def _on_step(self):
        if self.within and self.n_calls == 3:
            self.move()
        return True

    def _on_rollout_end(self):
        if not self.within:
            self.move()


@pytest.mark.parametrize("within", [False, True])
def test_other_weights_than_those_that_acted(within):
    sb3s, ours = [train(build(reuse), 10, Move(within)) for reuse in (False, True)]
    assert ours.passes[-1:] == UPDATE
    # not to the last bit everywhere: acting, which gave the values, has another layout in memory
    assert_close(ours.gradients[0], sb3s.gradients[0])


class Predict(BaseCallback):
    def _on_step(self):
        self.model.predict(self.locals["new_obs"])
        return True


def test_whoever_predicts_within_a_rollout():
    sb3s, ours = [train(build(reuse), 10, Predict()) for reuse in (False, True)]
    assert ours.passes[-1:] == UPDATE
    assert_close(ours.gradients[0], sb3s.gradients[0])
    assert not ours.model.policy._kept.rows


@pytest.mark.parametrize("batch_size", [5, 10])
def test_ppo_has_it_for_the_first_of_its_epochs_if_that_is_of_all(batch_size):
    settings = {"algorithm": PPO, "batch_size": batch_size, "n_epochs": 2, "learning_rate": 1e-4}
    sb3s, ours = [train(build(reuse, **settings), 10) for reuse in (False, True)]
    again = ours.passes[STEPS + 1 :]
    assert again == ([(10, True)] if batch_size == 10 else 4 * [(5, True)])
    for mine, other in zip(ours.gradients, sb3s.gradients, strict=True):
        assert_close(mine, other)


def acted_on(policy, *batches):
    policy.set_training_mode(False)
    with th.no_grad():
        for batch in batches:
            policy(batch)
    policy.set_training_mode(True)


def image_policy(**kwargs):
    space = spaces.Box(0, 255, (3, 10, 10), np.uint8)
    th.manual_seed(0)
    return AuxiliaryActorCriticPolicy(space, spaces.Discrete(4), lambda _: 1e-3, **PLAIN | {"reuse_rollout": True} | kwargs)


def pictures(n, seed=0):
    return th.as_tensor(np.random.default_rng(seed).integers(256, size=(n, 3, 10, 10), dtype=np.uint8))


@pytest.mark.parametrize(
    ("order", "again"), [([3, 4, 0, 5, 1, 2], []), ([0, 1, 2, 3, 4], [5]), ([0, 0, 1, 2, 3, 4], [6]), (None, [6])]
)
def test_exactly_the_observations_acted_on_are_found_in_any_order(order, again):
    policy, seen = image_policy(), pictures(6)
    seen[4] = seen[1]
    shown = seen.clone()
    acted_on(policy, shown[:2], shown[2:])
    shown.zero_()  # a world may write over what it gave
    wanted, passes = pictures(6, 1) if order is None else seen[order], []
    policy.features_extractor.net[0].register_forward_hook(lambda _, inputs, __: passes.append(len(inputs[0])))
    features = policy.extract_features(wanted)
    assert passes == again
    th.testing.assert_close(features, image_policy().extract_features(wanted))
    features.square().sum().backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in policy.features_extractor.parameters())


def test_what_is_kept_is_limited(monkeypatch):
    monkeypatch.setattr(rollout_reuse, "MOST_KEPT", 7)
    policy, seen = image_policy(), pictures(12)
    acted_on(policy, *seen.split(3))
    assert len(policy._kept.rows) == 6
    th.testing.assert_close(policy.extract_features(seen), image_policy().extract_features(seen))
    acted_on(policy, seen)
    assert not policy._kept.rows


def test_a_policy_with_something_kept_can_be_copied(tmp_path):
    policy = image_policy()
    acted_on(policy, pictures(2))
    for other in (copy.deepcopy(policy), pickle.loads(pickle.dumps(policy._kept))):
        assert not getattr(other, "_kept", other).rows
    policy.save(tmp_path / "policy")
    assert AuxiliaryActorCriticPolicy.load(tmp_path / "policy").reuse_rollout is True


@pytest.mark.parametrize(
    ("kwargs", "got"),
    [
        ({"observation_space": spaces.Box(-1.0, 1.0, (4,), np.float32)}, "a shared FlattenExtractor"),
        ({"features_extractor_class": NatureCNN}, "a shared NatureCNN"),
        ({"features_extractor_class": OneMore}, "a shared OneMore"),
        ({"features_extractor_class": PaddedCNN, "share_features_extractor": False}, "no shared PaddedCNN"),
    ],
)
def test_other_extractors_are_refused(kwargs, got):
    space = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    settings = {"observation_space": space, "action_space": spaces.Discrete(2), "lr_schedule": lambda _: 1e-3} | kwargs
    with pytest.raises(TypeError, match=f"reuse_rollout needs a shared PaddedCNN, got {got}"):
        RolloutReusePolicy(**settings, reuse_rollout=True)
