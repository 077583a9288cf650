"""What the updates of ManyGoalsDQN are, against a loop over pairs, and that they teach."""

import math

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import FlattenExtractor

from sb3_manygoals.many_goals_dqn import (
    ManyGoalsSamples,
    PlannedTargets,
    TDTargets,
    UpdateBatch,
)
from tests.sb3_manygoals.many_goals_dqn.models import (
    CELLS,
    PLAIN,
    gradient,
    make_model,
    moved,
    n_mastered,
    parameters,
    steps_of_updates,
    td_model,
)
from tests.sb3_manygoals.worlds import Corridor


def test_the_learning_rate_does_not_fall_below_zero_in_the_last_rollout():
    asked = []

    def schedule(progress_remaining):
        asked.append(progress_remaining)
        return 1e-3 * progress_remaining

    model = make_model(make_vec_env(Corridor, 4), updates_per_step=0.1, learning_rate=schedule)
    # Rollouts have 20 steps. The third one ends with training, after all have made the last step.
    model.learn(50)
    assert model.num_timesteps == 52
    assert asked[-1] == 0.0
    assert min(asked) == 0.0
    assert pytest.approx(0.2) in asked
    assert model.policy.optimizer.param_groups[0]["lr"] == 0.0


@pytest.mark.parametrize(
    ("head", "masked", "decay"),
    [
        ("bilinear", False, 1.0),
        ("bilinear", True, 1.0),
        ("distance", False, 1.0),
        ("distance", False, 0.5),
    ],
)
def test_the_update_is_the_brute_force_loop_over_pairs(head, masked, decay):
    """Each pair of transition and goal is computed by itself, as if only this goal was taught."""
    targets = {"near_decay": decay, "near_floor": 0.1}
    model = moved(
        td_model(Corridor(length=6, deadly=True), policy_kwargs={"head": head}, targets=targets)
    )
    model.goal_buffer.add(CELLS)
    here = np.array([0, 1, 2, 5, 3])
    actions = np.array([1, 0, 2, 1, 1])
    there = np.array([1, 0, 2, 5, 4])
    terminated = np.array([False, False, False, True, False])
    allowed = np.array([[1, 0, 1], [0, 0, 1], [1, 1, 0], [0, 0, 0], [0, 1, 0]], dtype=bool)
    goals = np.array([1, 5, 2, 3])
    samples = ManyGoalsSamples(
        observations=th.tensor(CELLS[here]),
        actions=th.tensor(actions),
        next_observations=th.tensor(CELLS[there]),
        next_goal_ids=th.tensor(model.goal_buffer.ids(CELLS[there])),
        terminated=th.tensor(terminated),
        behavior_goal_ids=th.full((5,), -1),
        next_action_mask=th.tensor(allowed) if masked else None,
    )
    batch = UpdateBatch(
        observations=samples.observations,
        goals=th.tensor(CELLS[goals]),
        goal_ids=th.tensor(model.goal_buffer.ids(CELLS[goals])),
        samples=samples,
    )
    losses = model.targets.losses(batch, model.targets.target_values(batch))

    def target_of(row, goal):
        with th.no_grad():
            next_cell = th.tensor(CELLS[there[row]])[None]
            next_values = model.q_net_target(next_cell, th.tensor(CELLS[goal])[None])[0]
        may_be_next = [a for a in range(3) if allowed[row, a] or not masked]
        best = max((next_values[a].item() for a in may_be_next), default=0.0)
        if there[row] == goal:
            return 0.0
        if terminated[row]:
            return -0.1 / (1 - 0.99)
        return -0.1 + 0.99 * best

    def value_of(row, goal):
        cell = th.tensor(CELLS[here[row]])[None]
        return model.q_net(cell, th.tensor(CELLS[goal])[None])[0, actions[row]]

    def weight_of(value):
        if decay == 1.0:
            return 1.0
        # A goal d steps away has the value -10 (1 - 0.99^d).
        nearness = min(max(1.0 + value / 10.0, 0.0), 1.0)
        return decay ** (math.log(nearness) / math.log(0.99)) + 0.1 if nearness else 0.1

    pairs = [(row, goal) for goal in goals for row in range(5)]
    by_value = np.array([weight_of(value_of(*pair).item()) for pair in pairs])
    by_target = np.array([weight_of(float(target_of(*pair))) for pair in pairs])
    # At the beginning of training, half of a weight is by the value, half by the target.
    weights = (by_value / by_value.mean() + by_target / by_target.mean()).reshape(4, 5) / 2
    total = th.zeros(())
    for column, goal in enumerate(goals):
        errors = []
        for row in range(5):
            weight = weights[column, row]
            errors.append(weight * (value_of(row, goal) - target_of(row, goal)) ** 2)
        loss = sum(errors) / 5
        th.testing.assert_close(losses[column], loss, rtol=1e-4, atol=1e-5)
        total = total + loss / len(goals)
    found = gradient(model, losses.mean())
    th.testing.assert_close(found, gradient(model, total), rtol=1e-3, atol=1e-4)
    assert all(parameter.grad is None for parameter in model.q_net_target.parameters())


def test_it_learns_every_goal_of_a_corridor():
    model = td_model(
        Corridor(length=7),
        targets={"goal_sampling": "segments", "initial_value": 0.0},
        target_update_interval=50,
        goal_wrapper_kwargs={"max_episode_steps": 15},
        updates_per_step=1.0,
    )
    # There are 49 pairs.
    assert n_mastered(model.learn(1_000)) >= 45


@pytest.mark.parametrize(("goal", "step"), [(100.0, -10.0), (0.0, -0.001)])
def test_with_the_default_network_it_learns_every_goal_at_any_scale_of_rewards(goal, step):
    rewards = {"goal_reward": goal, "step_reward": step, "max_episode_steps": 15}
    settings = {"target_class": TDTargets, "target_update_interval": 50, "updates_per_step": 1.0}
    model = make_model(Corridor(7), goal_wrapper_kwargs=rewards, **settings)
    # There are 49 pairs.
    assert n_mastered(model.learn(1_200)) >= 47


def check_initial_values(model, without, value, scale=1.0):
    """
    Assert that a model's values are those of another one, scaled and shifted.

    :param without: a model whose values begin at 0
    :param value: by how much they are shifted
    :param scale: factor of its distances
    """
    is_distance = model.policy.head == "distance"
    obs = th.as_tensor(CELLS[:4])
    names = ["q_net", "q_net_ema"]
    if model.q_net_target is not None:
        names.append("q_net_target")
    for name in names:
        network = getattr(model.policy, name)
        plain = getattr(without.policy, name)
        expected = scale * plain(obs, obs.flip(0)) + value
        th.testing.assert_close(network(obs, obs.flip(0)), expected)
        weights = network.state_dict()
        changed = [key for key, old in plain.state_dict().items() if not old.equal(weights[key])]
        # Nothing else is changed.
        shifted = "offset" if is_distance else "head.bias"
        assert changed == (["log_scale", shifted] if scale != 1.0 else [shifted])


@pytest.mark.parametrize("head", ["bilinear", "distance"])
def test_values_begin_as_the_targets_say(head):
    policy = {"head": head, "ema_decay": 0.9}
    zero = td_model(targets={"initial_value": 0.0}, policy_kwargs=policy)
    given = td_model(targets={"initial_value": 3.0}, policy_kwargs=policy)
    check_initial_values(given, zero, 3.0)

    rewards = {"step_reward": -0.5, "goal_reward": 0.25}
    settings = {"gamma": 0.9, "goal_wrapper_kwargs": rewards}
    bootstrapped = td_model(policy_kwargs=policy, **settings)
    planned = make_model(target_class=PlannedTargets, policy_kwargs={**PLAIN, **policy}, **settings)
    if head == "distance":
        # A step costs 0.525 near the goal, 0.1 by default. No distance is below 0, so values begin
        # at that of a goal reached, and fall.
        check_initial_values(bootstrapped, zero, 0.25, scale=0.525 / 0.1)
        check_initial_values(planned, zero, 0.25, scale=0.525 / 0.1)
    else:
        # Bootstrapped values begin at that of a goal never reached.
        check_initial_values(bootstrapped, zero, -0.5 / 0.1)
        check_initial_values(planned, zero, 0.25)


def test_target_updates_keep_their_interval_with_any_number_of_environments():
    model = td_model(
        make_vec_env(Corridor, 4),
        learning_starts=30,
        learning_rate=0.0,
        tau=0.25,
        target_update_interval=10,
    )
    updated_at = []

    def look(*_):
        bias = model.q_net_target.head.bias
        if bias.any():
            # The target network is updated after the callbacks of a step.
            updated_at.append(model.num_timesteps - 4)
            # It went a quarter of the way.
            assert (bias == 1.0).all()
        with th.no_grad():
            model.q_net.head.bias.fill_(4.0)
            bias.fill_(0.0)
        return True

    with th.no_grad():
        model.q_net_target.head.bias.fill_(0.0)
    model.learn(84, look)
    # The first steps at or past multiples of 10, once learning has started.
    assert updated_at == [32, 40, 52, 60, 72, 80]


class Normalized(FlattenExtractor):
    """An extractor with batch normalization."""

    def __init__(self, observation_space):
        super().__init__(observation_space)
        self.normalize = th.nn.BatchNorm1d(6)

    def forward(self, observations):
        return self.normalize(super().forward(observations))


def test_running_statistics_reach_the_target_network():
    policy_kwargs = {"features_extractor_class": Normalized}
    model = td_model(policy_kwargs=policy_kwargs, target_update_interval=10).learn(60)
    model.targets.after_step(70, 1)
    online, target = (network.trunk[1].normalize for network in (model.q_net, model.q_net_target))
    assert online.running_mean.abs().max() > 0
    assert th.equal(online.running_mean, target.running_mean)


# Behavior that is random does not depend on rounding.
RANDOM = {
    "bootstrapped": {
        "target_class": TDTargets,
        "exploration_initial_eps": 1.0,
        "exploration_final_eps": 1.0,
    },
    "planned": {
        "target_class": PlannedTargets,
        "target_kwargs": {"exploring_episodes": 1.0},
    },
}


def trained_at_random(kind, device, scale=1.0):
    """Return a model trained on a device, its first weights, and the steps of its updates."""
    # A model seeds random numbers that all models share, so one is trained before the next is made.
    settings = {"batch_size": 8, "learning_rate": 1e-4, "updates_per_step": 1.0}
    model = make_model(device=device, **settings, **RANDOM[kind])
    with th.no_grad():
        for parameter in model.policy.parameters():
            parameter.mul_(scale)
    first = parameters(model).cpu()
    made_at = steps_of_updates(model, 60)
    assert len(made_at) == 40
    return model, first, made_at


def assert_learned_the_same(one, other):
    (model, _, made_at), (expected, first, expected_at) = one, other
    assert made_at == expected_at
    np.testing.assert_array_equal(model.goal_updates, expected.goal_updates)
    # Adam makes steps of full length from gradients that are nothing but rounding, so that single
    # weights may differ. All together must have gone the same way.
    learned = parameters(model).cpu() - first
    wanted = parameters(expected) - first
    assert (learned - wanted).norm() < 0.1 * wanted.norm()


@pytest.mark.parametrize("kind", RANDOM)
def test_rounding_changes_little(kind):
    """This is what the next test expects of a GPU, tried without one."""
    rounded = trained_at_random(kind, "cpu", scale=1 + 1e-6)
    assert_learned_the_same(rounded, trained_at_random(kind, "cpu"))


@pytest.mark.skipif(not th.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", RANDOM)
def test_a_gpu_learns_what_a_cpu_learns(kind):
    on_gpu = trained_at_random(kind, "cuda")
    assert {parameter.device.type for parameter in on_gpu[0].policy.parameters()} == {"cuda"}
    assert_learned_the_same(on_gpu, trained_at_random(kind, "cpu"))
