"""When updates are made: they wait, come in cycles, and rest."""

import numpy as np
import pytest
import torch as th
from hypothesis import given
from hypothesis import strategies as st

from sb3_manygoals.many_goals_dqn.pacing import UpdatePacer
from tests.sb3_manygoals.many_goals_dqn.models import make_model, n_mastered, steps_of_updates
from tests.sb3_manygoals.worlds import Corridor


def run(pacer, n_due, n_calls, failures=(), begins_at=0, n_states=0):
    """
    Make so many updates due at each of so many calls.

    Return the step sizes of the updates that were made, a list for each call. Each comparison takes
    the next of the failures.
    """
    failures = iter(failures)
    made = []
    for call in range(n_calls):
        pacer.add_due(n_due, n_due * (n_calls - call - 1))
        if pacer.is_waiting and call >= begins_at:
            pacer.begin(n_states)
        pacer.release(n_due)
        made.append([])
        while pacer.take(lambda: next(failures)):
            made[-1].append(pacer.step_size)
            pacer.note_update()
    return made


@given(st.integers(1, 5), st.integers(1, 60), st.integers(0, 60), st.integers(0, 2_000))
def test_all_updates_are_made_if_the_network_always_fails(n_due, n_calls, begins_at, n_states):
    begins_at = min(begins_at, n_calls - 1)
    made = run(UpdatePacer(), n_due, n_calls, [1.0] * 1_000, begins_at, n_states)
    assert sum(map(len, made)) == n_due * n_calls
    assert all(len(one) == 0 for one in made[:begins_at])
    sizes = [size for one in made for size in one]
    assert all(0.0 < size <= 1.0 for size in sizes)
    # The last update has the smallest step size.
    assert sizes[-1] == min(sizes)


def test_updates_that_waited_are_spread_evenly_over_the_rest_of_training():
    made = [len(one) for one in run(UpdatePacer(), 10, 100, [1.0] * 9, begins_at=50)]
    assert made[:50] == [0] * 50
    # 1,000 updates in 50 calls. The first call has no more than its share.
    assert all(abs(n - 20) <= 1 for n in made[50:])
    assert sum(made) == 1_000


def test_step_sizes_fall_in_cycles_until_the_network_does_not_fail():
    pacer = UpdatePacer()
    made = run(pacer, 100, 200, [0.003, 0.002, 0.001], n_states=1_000)
    sizes = np.array([size for one in made for size in one])
    # Cycles of 0.7 updates for each state, and then twice as many each time.
    assert len(sizes) == 700 + 1_400 + 2_800
    np.testing.assert_allclose(sizes[:700], np.arange(700, 0, -1) / 700)
    np.testing.assert_allclose(sizes[700:2_100], np.arange(1_400, 0, -1) / 1_400)
    np.testing.assert_allclose(sizes[2_100:], np.arange(2_800, 0, -1) / 2_800)
    assert pacer.is_resting
    assert pacer.n_rested == 20_000 - 4_900
    assert pacer.failures == 0.001


@pytest.mark.parametrize(
    ("failures", "growth"), [(0.0011, 2), (0.0033, 2), (0.0034, 4), (0.0109, 8), (1.0, 8)]
)
def test_the_next_cycle_is_the_longer_the_more_the_network_fails(failures, growth):
    made = run(UpdatePacer(), 100, 400, [failures, 0.0], n_states=1_000)
    assert sum(map(len, made)) == 700 * (1 + growth)


def test_few_failures_are_not_worth_a_long_cycle():
    pacer = UpdatePacer()
    # Cycles of 7,000 and 28,000 updates. For 2.2% of failures, 224,000 more would be needed.
    made = run(pacer, 1_000, 500, [0.004, 0.022], n_states=10_000)
    assert sum(map(len, made)) == 7_000 + 28_000
    assert pacer.is_resting
    made = run(UpdatePacer(), 1_000, 500, [0.004, 0.023, 0.0], n_states=10_000)
    assert sum(map(len, made)) > 35_000


def test_after_a_rest_a_short_cycle_begins_with_a_small_step_size():
    pacer = UpdatePacer()
    run(pacer, 100, 50, [0.003, 0.0], n_states=1_000)
    assert pacer.is_resting
    pacer.add_due(0, 5_000)
    pacer.compare(0.001)
    assert pacer.is_resting
    pacer.compare(0.01)
    made = run(pacer, 100, 50, [0.0])
    sizes = np.array([size for one in made for size in one])
    # A quarter of the first cycle, with the last step sizes of the longest one.
    np.testing.assert_allclose(sizes, np.arange(175, 0, -1) / 1_400)
    assert pacer.is_resting


def test_a_small_world_is_learned_and_then_updates_rest():
    model = make_model(learning_rate=None, updates_per_step=1.0)
    model.learn(3_000)
    due = 3_000 - 20
    assert model._n_updates < due / 2
    assert model._pacer.n_rested >= due - model._n_updates - 2
    assert model.targets.failures(np.random.default_rng(0)) == 0.0
    assert n_mastered(model, 6) == 36


def test_without_updates_as_needed_each_one_is_made_when_it_is_due():
    model = make_model(updates_as_needed=False, updates_per_step=1.0)
    assert steps_of_updates(model, 100) == list(range(21, 101))


def test_a_rhythm_of_sb3_is_kept_as_it_is():
    model = make_model(train_freq=10, gradient_steps=1)
    assert steps_of_updates(model, 1_500) == list(range(30, 1_501, 10))


class Dropping(th.nn.Sequential):
    """Random in training."""

    def __init__(self):
        super().__init__(th.nn.ReLU(), th.nn.Dropout(0.8))


def test_failures_are_those_of_the_network_as_it_acts():
    """They are asked for in the middle of an update, in training mode."""
    policy_kwargs = {"net_arch": [16], "activation_fn": Dropping, "ema_decay": 0.0}
    model = make_model(Corridor(), policy_kwargs=policy_kwargs, learning_starts=100).learn(600)
    found = []
    for training in (True, False):
        model.policy.set_training_mode(training)
        found.append(model.targets.failures(np.random.default_rng(0)))
        assert model.q_net.training == training
    assert found[0] == found[1]


def test_failures_are_those_of_the_network_beside_the_plan():
    model = make_model(Corridor(12), learning_rate=None).learn(3_000)
    rng = np.random.default_rng(0)
    assert model.targets.failures(rng) <= 0.001
    # A network whose greedy action is always the same reaches only goals on one side.
    with th.no_grad():
        for network in model.policy.networks:
            for parameter in network.state_embedding.parameters():
                parameter.zero_()
    assert 0.3 < model.targets.failures(rng) <= 1.0


@pytest.mark.parametrize("mixed", [None, False, True])
def test_updates_in_mixed_precision_are_nearly_those_of_float32(mixed):
    losses = []
    for mixed_precision in (False, mixed):
        settings = {"net_arch": [32], "embedding_dim": 32, "mixed_precision": mixed_precision}
        model = make_model(policy_kwargs=settings)
        targets = model.learn(60).targets
        model.policy.load_state_dict(make_model(policy_kwargs=settings).policy.state_dict())
        batch = targets.sample(20, 6, np.random.default_rng(0))
        assert all(one.dtype == th.float32 for one in model.policy.parameters())
        losses.append(targets.losses(batch, targets.target_values(batch)).detach())
    np.testing.assert_allclose(losses[0], losses[1], rtol=0.0 if mixed is False else 0.05)
