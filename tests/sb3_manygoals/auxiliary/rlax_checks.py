"""The losses of auxiliary tasks beside rlax's; ``test_losses.py`` runs this file in a process of its own."""

import warnings

import numpy as np
import pytest
import torch as th

from sb3_manygoals.auxiliary.losses import (
    many_goals_losses,
    n_step_returns,
    pixel_changes,
    pixel_control_losses,
    reward_classes,
    reward_prediction_losses,
)


@pytest.fixture(scope="module")
def rlax():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its dependencies' own
        import rlax

        return rlax


@pytest.mark.parametrize("seed", range(5))
def test_many_goals_against_rlax(seed, rlax):
    rng = np.random.default_rng(seed)
    q, next_q = rng.normal(size=(2, 4, 5, 6)).astype(np.float32)
    actions, achieved = rng.integers(6, size=(4, 5)), rng.random((4, 5)) < 0.3
    losses = many_goals_losses(*(th.tensor(a) for a in (q, next_q, actions, achieved)), 0.99, 0.0, -0.1)
    for index in np.ndindex(4, 5):
        reward, discount = (0.0, 0.0) if achieved[index] else (-0.1, 0.99)
        error = rlax.q_learning(q[index], int(actions[index]), reward, discount, next_q[index])
        assert losses[index].item() == pytest.approx(float(error) ** 2, abs=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_pixel_control_against_rlax(seed, rlax):
    rng = np.random.default_rng(seed)
    images = rng.random((3, 21, 2, 14, 15)).astype(np.float32)
    q = rng.normal(size=(3, 21, 6, 3, 3)).astype(np.float32)
    actions = rng.integers(6, size=(3, 20))
    changes = pixel_changes(th.tensor(images), crop=12, cell=4)
    never, always = th.zeros(3, dtype=th.bool), th.ones(3, 20, dtype=th.bool)
    losses = pixel_control_losses(th.tensor(q), th.tensor(actions), changes, never, always, 0.9)
    for b in range(3):
        cropped = images[b, :, :, 1:13, 1:13].transpose(0, 2, 3, 1)
        np.testing.assert_allclose(changes[b], rlax.pixel_control_rewards(cropped, 4), atol=1e-5)
        theirs = rlax.pixel_control_loss(cropped, actions[b], q[b].transpose(0, 2, 3, 1), 0.9, 4)
        np.testing.assert_allclose(losses[b], np.asarray(theirs).sum(axis=(1, 2)), rtol=1e-5)


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
@pytest.mark.parametrize("seed", range(5))
def test_returns_and_cross_entropy_against_rlax(seed, rlax):
    rng = np.random.default_rng(seed)
    rewards, values = rng.normal(size=(2, 7)).astype(np.float32)
    discounts = rng.random(7).astype(np.float32)
    ours = n_step_returns(th.tensor(rewards)[None], th.tensor(discounts)[None], th.tensor(values[-1:]))
    theirs = rlax.n_step_bootstrapped_returns(rewards, discounts, values, n=7)
    np.testing.assert_allclose(ours[0], theirs, atol=1e-5)
    logits, given_rewards = rng.normal(size=(9, 3)).astype(np.float32), rng.integers(-1, 2, size=9)
    labels = np.eye(3, dtype=np.float32)[reward_classes(th.tensor(given_rewards))]
    expected = [float(rlax.categorical_cross_entropy(label, row)) for label, row in zip(labels, logits, strict=True)]
    np.testing.assert_allclose(reward_prediction_losses(th.tensor(logits), th.tensor(given_rewards)), expected, atol=1e-5)
