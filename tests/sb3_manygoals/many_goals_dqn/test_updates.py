"""What ManyGoalsDQN's updates are, against a loop over pairs, and that they learn."""

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import FlattenExtractor

from sb3_manygoals.many_goals_dqn import ManyGoalsSamples, PlannedTargets, TDTargets
from sb3_manygoals.many_goals_dqn.targets import Draw
from tests.sb3_manygoals.many_goals_dqn import models
from tests.sb3_manygoals.many_goals_dqn.models import (
    CELLS,
    PLAIN,
    gradient,
    make_model,
    moved,
    parameters,
    td_model,
)
from tests.sb3_manygoals.worlds import Corridor


def test_step_sizes_do_not_fall_below_zero_in_the_last_rollout():
    seen = []
    settings = {
        "updates_per_step": 0.1,
        "learning_rate": lambda progress: seen.append(progress) or 1e-3 * progress,
    }
    model = make_model(make_vec_env(Corridor, 4), **settings).learn(
        50
    )  # three rollouts of 20 steps
    assert model.num_timesteps == 60
    assert seen[-2:] == [pytest.approx(0.2 / 0.6), 0.0]
    assert model.policy.optimizer.param_groups[0]["lr"] == 0.0


@pytest.mark.parametrize(
    ("head", "masked"), [("bilinear", False), ("bilinear", True), ("distance", False)]
)
def test_the_update_is_the_brute_force_loop_over_pairs(head, masked):
    """Loss and gradients of S x G pairs, each computed by itself with its own goal's reward and termination."""
    model = moved(td_model(Corridor(length=6, deadly=True), policy_kwargs={"head": head}))
    model.goal_buffer.add(CELLS)
    here, there = np.array([0, 1, 2, 5, 3]), np.array([1, 0, 2, 5, 4])
    actions, terminated = np.array([1, 0, 2, 1, 1]), np.array([False, False, False, True, False])
    allowed = np.array([[1, 0, 1], [0, 0, 1], [1, 1, 0], [0, 0, 0], [0, 1, 0]], dtype=bool)
    columns = CELLS[here], actions, CELLS[there], model.goal_buffer.ids(CELLS[there]), terminated
    batch = ManyGoalsSamples(*map(th.tensor, columns), th.tensor(allowed) if masked else None)
    goals = np.array([1, 5, 2, 3])
    losses = model.targets.losses(
        Draw(batch, th.tensor(CELLS[goals]), th.tensor(model.goal_buffer.ids(CELLS[goals])))
    )
    total = th.zeros(())
    for column, g in enumerate(goals):
        goal, errors = th.tensor(CELLS[g])[None], []
        for s in range(5):
            cell, next_cell = th.tensor(CELLS[here[s]])[None], th.tensor(CELLS[there[s]])[None]
            q = model.q_net(cell, goal)[0, actions[s]]
            with th.no_grad():
                next_q = model.q_net_target(next_cell, goal)[0]
                best = max(
                    (next_q[a].item() for a in range(3) if allowed[s, a] or not masked), default=0.0
                )
            target = (
                0.0 if there[s] == g else -0.1 / (1 - 0.99) if terminated[s] else -0.1 + 0.99 * best
            )
            errors.append((q - target) ** 2)
        of_goal = sum(errors) / 5
        th.testing.assert_close(losses[column], of_goal, rtol=1e-4, atol=1e-5)
        total = total + of_goal / len(goals)
    th.testing.assert_close(
        gradient(model, losses.mean()), gradient(model, total), rtol=1e-3, atol=1e-4
    )
    assert all(parameter.grad is None for parameter in model.q_net_target.parameters())


def test_it_learns_every_goal_of_a_corridor():
    targets = {"goal_sampling": "batch", "update_interval": 50, "initial_value": 0.0}
    model = td_model(
        Corridor(length=7), targets=targets, goal_wrapper_kwargs={"max_episode_steps": 15}
    )
    assert models.n_mastered(model.learn(1_000)) >= 45  # of 49


@pytest.mark.parametrize("head", ["bilinear", "distance"])
def test_values_begin_as_the_targets_say_or_as_told(head):
    policy = {"head": head, "ema_decay": 0.9}
    plain, told = (
        td_model(targets={"initial_value": value}, policy_kwargs=policy) for value in (0.0, 3.0)
    )
    settings = {"gamma": 0.9, "goal_wrapper_kwargs": {"step_reward": -0.5, "goal_reward": 0.25}}
    never = td_model(policy_kwargs=policy, **settings)
    planned = make_model(target_class=PlannedTargets, policy_kwargs={**PLAIN, **policy}, **settings)
    obs = th.as_tensor(CELLS[:4])
    distances = (
        0.525 / 0.1 if head == "distance" else 1.0
    )  # what a step costs there, by what it costs by default
    start = (
        0.25 if head == "distance" else -0.5 / 0.1
    )  # no distance is below 0, so values fall from that of a goal reached
    for model, value, scale in (
        (told, 3.0, 1.0),
        (never, start, distances),
        (planned, 0.25, distances),
    ):
        for name in ("q_net", "q_net_target", "q_net_ema"):
            network, without = (getattr(one.policy, name) for one in (model, plain))
            th.testing.assert_close(
                network(obs, obs.flip(0)), scale * without(obs, obs.flip(0)) + value
            )
            changed = [
                key
                for key, weights in without.state_dict().items()
                if not weights.equal(network.state_dict()[key])
            ]
            assert changed == ["log_scale"] * (scale != 1.0) + [
                "offset" if head == "distance" else "head.bias"
            ]


@pytest.mark.parametrize(("goal", "step"), [(100.0, -10.0), (0.0, -0.001)])
def test_with_the_default_network_it_learns_every_goal_at_any_scale_of_rewards(goal, step):
    rewards = {"goal_reward": goal, "step_reward": step, "max_episode_steps": 15}
    targets = {"target_class": TDTargets, "target_kwargs": {"update_interval": 50}}
    model = make_model(Corridor(7), goal_wrapper_kwargs=rewards, **targets)
    assert models.n_mastered(model.learn(1_200)) >= 47  # of 49


def test_target_updates_keep_their_interval_with_any_number_of_environments():
    model = td_model(
        make_vec_env(Corridor, 4), learning_starts=30, targets={"update_interval": 10, "tau": 0.25}
    )
    calls = []
    for steps in range(4, 84, 4):
        model.num_timesteps = steps
        with th.no_grad():
            model.q_net.head.bias.fill_(4.0)
            model.q_net_target.head.bias.fill_(0.0)
        model._on_step()
        if model.q_net_target.head.bias.any():
            assert (model.q_net_target.head.bias == 1.0).all()  # a quarter of the way
            calls.append(steps)
    assert calls == [
        32,
        40,
        52,
        60,
        72,
        80,
    ]  # the first step at or past each multiple of 10, once learning has started


def test_running_statistics_reach_the_target_network():
    class Normalized(FlattenExtractor):
        def __init__(self, observation_space):
            super().__init__(observation_space)
            self.normalize = th.nn.BatchNorm1d(6)

        def forward(self, observations):
            return self.normalize(super().forward(observations))

    model = td_model(
        policy_kwargs={"features_extractor_class": Normalized}, targets={"update_interval": 10}
    ).learn(60)
    model.num_timesteps = 70
    model._on_step()
    online, target = (network.trunk[1].normalize for network in (model.q_net, model.q_net_target))
    assert online.running_mean.abs().max() > 0
    assert th.equal(online.running_mean, target.running_mean)


@pytest.mark.skipif(not th.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("make", [td_model, make_model], ids=["bootstrapped", "planned"])
def test_a_gpu_learns_what_a_cpu_learns(make):
    random = {
        "exploration_initial_eps": 1.0,
        "exploration_final_eps": 1.0,
    }  # so that behavior does not depend on rounding
    on_cpu, on_gpu = (
        make(device=device, batch_size=8, learning_rate=1e-4, **random).learn(60)
        for device in ("cpu", "cuda")
    )
    assert {parameter.device.type for parameter in on_gpu.policy.parameters()} == {"cuda"}
    assert on_gpu._n_updates == on_cpu._n_updates > 0
    np.testing.assert_array_equal(on_gpu.goal_updates, on_cpu.goal_updates)
    th.testing.assert_close(parameters(on_gpu).cpu(), parameters(on_cpu), rtol=1e-3, atol=1e-4)
