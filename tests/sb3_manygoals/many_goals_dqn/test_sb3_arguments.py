"""Arguments of SB3's DQN: each is honored as there, or refused."""

import inspect

import numpy as np
import pytest
import torch as th
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env
from torch import nn

from sb3_manygoals import ManyGoalsDQN
from sb3_manygoals.many_goals_dqn import PlannedTargets, TDTargets
from tests.sb3_manygoals.many_goals_dqn.models import (
    make_model,
    parameters,
    steps_of_updates,
    td_model,
)
from tests.sb3_manygoals.worlds import Corridor


def test_positional_arguments_are_those_of_sb3_in_the_same_order():
    ours = inspect.signature(ManyGoalsDQN.__init__).parameters.values()
    theirs = list(inspect.signature(DQN.__init__).parameters)
    positional = [one.name for one in ours if one.kind is not inspect.Parameter.KEYWORD_ONLY]
    assert positional == theirs[: len(positional)]
    assert positional[-1] == "max_grad_norm"


@pytest.mark.parametrize(
    ("settings", "n_envs", "expected"),
    [
        ({"train_freq": 8, "gradient_steps": 2}, 1, [24, 24, 32, 32, 40, 40]),
        ({"train_freq": (8, "step"), "gradient_steps": 1}, 1, [24, 32, 40]),
        ({"train_freq": 5, "gradient_steps": 1}, 2, [30, 40]),
        ({"train_freq": 5, "gradient_steps": -1}, 2, [30] * 10 + [40] * 10),
        # SB3's default of the other argument is used where one is given.
        ({"train_freq": 10}, 1, [30, 40]),
        ({"gradient_steps": 2}, 1, [24, 24, 28, 28, 32, 32, 36, 36, 40, 40]),
    ],
)
@pytest.mark.parametrize("target_class", [None, TDTargets])
def test_updates_are_made_as_train_freq_and_gradient_steps_say(
    settings, n_envs, expected, target_class
):
    model = make_model(make_vec_env(Corridor, n_envs), target_class=target_class, **settings)
    assert steps_of_updates(model, 40) == expected
    assert model.updates_per_step is None


@pytest.mark.parametrize(
    ("target_class", "expected"),
    [(PlannedTargets, [25, 50]), (TDTargets, [30, 30, 30, 40, 40, 40, 50, 50, 50])],
)
def test_by_default_targets_say_how_often_there_are_updates(target_class, expected):
    model = make_model(target_class=target_class, updates_per_step=None, updates_as_needed=False)
    assert steps_of_updates(model, 50) == expected


def test_updates_are_as_often_as_those_targets_say_that_were_chosen_later():
    model = make_model("CartPole-v1", updates_per_step=None, updates_as_needed=False)
    assert (model.train_freq.frequency, model.gradient_steps) == (25, 1)
    model.learn(60)
    assert isinstance(model.targets, TDTargets)
    assert (model.train_freq.frequency, model.gradient_steps) == (10, 3)


def test_updates_can_be_made_at_the_end_of_each_episode():
    model = make_model(
        train_freq=(1, "episode"), gradient_steps=-1, goal_wrapper_kwargs={"max_episode_steps": 7}
    )
    ends = []

    def note_end(local, _):
        if local["dones"][0]:
            ends.append(model.num_timesteps)
        return True

    made_at = steps_of_updates(model, 80, callback=note_end)
    expected = []
    for before, end in zip([0, *ends], ends, strict=False):
        if end > 20:
            # As many updates as the episode had steps.
            expected += [end] * (end - before)
    assert len(ends) > 5
    assert made_at == expected


@pytest.mark.parametrize(
    "settings",
    [{"train_freq": 4}, {"gradient_steps": 1}, {"train_freq": 4, "gradient_steps": 1}],
)
def test_the_rhythm_of_updates_cannot_be_given_twice(settings):
    message = "updates_per_step takes the place of train_freq and gradient_steps"
    with pytest.raises(ValueError, match=message):
        make_model(updates_per_step=1.0, **settings)


def test_the_target_network_moves_by_tau_at_each_target_update_interval():
    model = td_model(tau=0.25, target_update_interval=10)
    expected = parameters(model.q_net_target).clone()

    def follow(*_):
        # The target network is updated after the callbacks, before the network is.
        if model.num_timesteps >= 20 and model.num_timesteps % 10 == 0:
            expected.lerp_(parameters(model.q_net), 0.25)
        return True

    model.learn(59, follow)
    th.testing.assert_close(parameters(model.q_net_target), expected)
    assert not th.allclose(parameters(model.q_net), expected)


@pytest.mark.parametrize(("settings", "tau"), [({}, 0.05), ({"tau": 0.25}, 0.25)])
def test_by_default_the_target_network_follows_after_each_update(settings, tau):
    model = td_model(gradient_steps=2, **settings)
    expected = parameters(model.q_net_target).clone()
    update_ema = model.policy.update_ema

    def follow():
        update_ema()
        expected.lerp_(parameters(model.q_net), tau)

    model.policy.update_ema = follow
    model.learn(60)
    assert model._n_updates == 20
    th.testing.assert_close(parameters(model.q_net_target), expected)
    assert not th.allclose(parameters(model.q_net), expected)


def test_at_an_interval_the_target_network_is_copied():
    model = td_model(updates_per_step=0.1, target_update_interval=250)
    weights = {}

    def note_weights(*_):
        weights[model.num_timesteps] = parameters(model.q_net).clone()
        return True

    model.learn(240, note_weights)
    initial = parameters(model.q_net_target).clone()
    assert th.equal(initial, weights[1])
    model.learn(200, note_weights, reset_num_timesteps=False)
    assert th.equal(parameters(model.q_net_target), weights[250])
    assert not th.equal(weights[250], initial)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"tau": 1.0}, "tau"),
        ({"target_update_interval": 250}, "target_update_interval"),
        ({"tau": 0.5, "target_update_interval": 10}, "tau and target_update_interval"),
    ],
)
def test_arguments_of_a_target_network_are_refused_where_there_is_none(settings, named):
    message = f"{named} given, but PlannedTargets uses no target network"
    with pytest.raises(ValueError, match=message):
        make_model(target_class=PlannedTargets, **settings)


def test_arguments_of_a_target_network_are_kept_for_targets_that_may_be_chosen_later():
    model = make_model("CartPole-v1", tau=0.5, target_update_interval=10).learn(60)
    assert isinstance(model.targets, TDTargets)
    assert model.targets.context.tau == 0.5
    assert model.targets.context.target_update_interval == 10


def gradients_of(model, steps):
    """Train a model, and return the gradient that the optimizer got in each update."""
    found = []

    def note_gradient(*_):
        grads = [one.grad.flatten() for one in model.q_net.parameters() if one.grad is not None]
        found.append(th.cat(grads).clone())

    model.policy.optimizer.register_step_pre_hook(note_gradient)
    model.learn(steps)
    return found


@pytest.mark.parametrize("target_class", [PlannedTargets, TDTargets])
def test_the_norm_of_the_gradient_is_clipped(target_class):
    settings = {"target_class": target_class, "updates_per_step": 1.0}
    free = gradients_of(make_model(**settings), 60)
    norms = [gradient.norm().item() for gradient in free]
    limit = np.median(norms)
    clipped = gradients_of(make_model(max_grad_norm=limit, **settings), 60)
    assert len(clipped) == len(free) == 40
    assert all(gradient.norm() <= limit * 1.0001 for gradient in clipped)
    # Until the first one that is too long, all gradients are the same.
    first = next(row for row, norm in enumerate(norms) if norm > limit)
    for row in range(first):
        th.testing.assert_close(clipped[row], free[row])
    th.testing.assert_close(clipped[first], free[first] * (limit / norms[first]))


def test_a_replay_memory_that_does_without_next_observations_is_refused():
    message = "optimize_memory_usage=True is not supported: .* use ManyGoalsFrameReplayBuffer"
    with pytest.raises(ValueError, match=message):
        make_model(optimize_memory_usage=True)


@pytest.mark.parametrize("n_steps", [0, 3])
def test_returns_of_several_steps_are_refused(n_steps):
    with pytest.raises(ValueError, match=f"n_steps must be 1, .* got {n_steps}"):
        make_model(n_steps=n_steps)


def rates_of(model, steps):
    """Train a model, and return the learning rate of each update."""
    optimizer = model.policy.optimizer
    rates = []
    optimizer.register_step_pre_hook(lambda *_: rates.append(optimizer.param_groups[0]["lr"]))
    model.learn(steps)
    return rates


def test_a_function_for_the_learning_rate_sees_the_progress_that_sb3_gives():
    settings = {"learning_starts": 20, "batch_size": 8, "train_freq": 4, "gradient_steps": 1}
    asked = []

    def schedule(progress_remaining):
        asked.append(progress_remaining)
        return 1e-3 * progress_remaining

    theirs = rates_of(DQN("MlpPolicy", Corridor(), learning_rate=schedule, **settings), 60)
    asked_by_sb3 = set(asked)
    asked.clear()
    ours = rates_of(make_model(learning_rate=schedule, **settings), 60)
    assert ours == theirs
    assert ours == pytest.approx([1e-3 * (1 - steps / 60) for steps in range(24, 61, 4)])
    # Besides, a model asks for the last learning rate, to warn if nothing would be learned.
    assert set(asked) - asked_by_sb3 <= {0.0}
    assert asked_by_sb3 <= set(asked)


def test_by_default_the_learning_rate_falls_from_the_start_of_learning_to_the_end():
    model = make_model(learning_rate=None, train_freq=4, gradient_steps=1)
    rates = rates_of(model, 60)
    expected = [1e-3 * (60 - steps) / 40 for steps in range(24, 61, 4)]
    assert rates == pytest.approx(expected)


def test_the_exploration_rate_falls_as_that_of_sb3():
    settings = {
        "exploration_fraction": 0.5,
        "exploration_initial_eps": 0.8,
        "exploration_final_eps": 0.2,
        "learning_starts": 20,
        "batch_size": 8,
    }

    def rates_of_exploration(model):
        rates = []
        model.learn(80, lambda *_: rates.append(model.exploration_rate) is None)
        return rates

    # SB3's own attribute is 0 before the first step.
    theirs = rates_of_exploration(DQN("MlpPolicy", Corridor(), **settings))[1:]
    for target_class in (PlannedTargets, TDTargets):
        model = make_model(target_class=target_class, **settings)
        ours = rates_of_exploration(model)
        assert ours[0] == 0.8
        assert ours[1:] == pytest.approx(theirs)


def test_random_actions_are_as_frequent_as_the_exploration_rate_says():
    model = td_model(
        make_vec_env(Corridor, 4),
        exploration_initial_eps=0.3,
        exploration_final_eps=0.3,
        learning_rate=0.0,
        learning_starts=0,
        # Updates change nothing, so a few are enough.
        updates_per_step=0.01,
    )
    # With this network, the greedy action is always the first one.
    with th.no_grad():
        for parameter in model.q_net.parameters():
            nn.init.zeros_(parameter)
        model.q_net.head.bias[0] = 1.0
    actions = []
    model.learn(6_000, lambda local, _: actions.extend(local["actions"].tolist()) is None)
    # The limit is 5 standard deviations.
    assert np.mean(np.array(actions) != 0) == pytest.approx(0.3 * 2 / 3, abs=0.026)
