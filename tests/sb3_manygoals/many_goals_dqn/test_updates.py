"""What ManyGoalsDQN's updates are, against a loop over pairs, and that they learn."""

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import FlattenExtractor

from sb3_manygoals import GoalBuffer
from sb3_manygoals.many_goals_dqn import ManyGoalsSamples, PlannedTargets
from sb3_manygoals.many_goals_dqn.targets import Draw
from tests.sb3_manygoals.many_goals_dqn.models import PLAIN, goal_obs, make_model, parameters, td_model
from tests.sb3_manygoals.worlds import Corridor


@pytest.mark.parametrize(("head", "masked"), [("bilinear", False), ("bilinear", True), ("distance", False)])
def test_the_update_is_the_brute_force_loop_over_pairs(head, masked):
    """Loss and gradients of S x G pairs, each computed by itself with its own goal's reward and termination."""
    model = td_model(Corridor(length=6, deadly=True), policy_kwargs={"head": head})
    world = Corridor(length=6)
    cells = np.stack([world.observation_of(cell) for cell in range(6)])
    assert model.goal_buffer is not None
    model.goal_buffer.add(cells)
    # a network and a target that differ
    with th.no_grad():
        for parameter in model.q_net.parameters():
            parameter.add_(0.1 * th.randn_like(parameter))
    here, there = np.array([0, 1, 2, 5, 3]), np.array([1, 0, 2, 5, 4])
    actions, terminated = np.array([1, 0, 2, 1, 1]), np.array([False, False, False, True, False])
    allowed = np.array([[1, 0, 1], [0, 0, 1], [1, 1, 0], [0, 0, 0], [0, 1, 0]], dtype=bool)
    batch = ManyGoalsSamples(
        th.tensor(cells[here]),
        th.tensor(actions),
        th.tensor(cells[there]),
        th.tensor(model.goal_buffer.ids(cells[there])),
        th.tensor(terminated),
        th.tensor(allowed) if masked else None,
    )
    goals = np.array([1, 5, 2, 3])
    update_goals = th.tensor(cells[goals]), th.tensor(model.goal_buffer.ids(cells[goals]))
    losses = model.targets.losses(Draw(batch, *update_goals))
    # the first three goals are next observations of the batch
    th.testing.assert_close(losses, model.targets.losses(Draw(batch, *update_goals, batch_rows=th.tensor([0, 3, 2]))))
    model.q_net.zero_grad()
    losses.mean().backward()
    gradient = th.cat([parameter.grad.flatten() for parameter in model.q_net.parameters()])

    total = th.zeros(())
    for column, g in enumerate(goals):
        goal, errors = th.tensor(cells[g])[None], []
        for s in range(5):
            cell, next_cell = th.tensor(cells[here[s]])[None], th.tensor(cells[there[s]])[None]
            q = model.q_net(cell, goal)[0, actions[s]]
            with th.no_grad():
                next_q = model.q_net_target(next_cell, goal)[0]
                best = max((next_q[a].item() for a in range(3) if allowed[s, a] or not masked), default=0.0)
            target = 0.0 if there[s] == g else -0.1 / (1 - 0.99) if terminated[s] else -0.1 + 0.99 * best
            errors.append((q - target) ** 2)
        of_goal = sum(errors) / 5
        th.testing.assert_close(losses[column], of_goal, rtol=1e-4, atol=1e-5)
        total = total + of_goal / len(goals)
    model.q_net.zero_grad()
    total.backward()
    expected = th.cat([parameter.grad.flatten() for parameter in model.q_net.parameters()])
    th.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-4)
    assert all(parameter.grad is None for parameter in model.q_net_target.parameters())


def test_it_learns_every_goal_of_a_corridor():
    world = Corridor(length=7)
    targets = {"goal_sampling": "batch", "update_interval": 50, "initial_value": 0.0}
    model = td_model(world, targets=targets, goal_wrapper_kwargs={"max_episode_steps": 15})
    model.learn(1_000)
    reached = 0
    for start in range(7):
        for goal in range(7):
            cell = start
            for _ in range(6):
                if cell == goal:
                    break
                action = int(model.predict(goal_obs(world, cell, goal), deterministic=True)[0])
                cell = min(max(cell + (-1, 1, 0)[action], 0), 6)
            reached += cell == goal
    assert reached >= 45  # of 49, each by a shortest path; a random policy manages some 20


@pytest.mark.parametrize("head", ["bilinear", "distance"])
def test_values_begin_as_of_goals_that_are_never_reached_or_as_told(head):
    policy = {"head": head, "ema_decay": 0.9}
    plain, told = (td_model(targets={"initial_value": value}, policy_kwargs=policy) for value in (0.0, 3.0))
    settings = {"gamma": 0.9, "goal_wrapper_kwargs": {"step_reward": -0.5, "goal_reward": 0.25}}
    never = td_model(policy_kwargs=policy, **settings)
    planned = make_model(target_class=PlannedTargets, policy_kwargs={**PLAIN, **policy}, **settings)
    obs = th.as_tensor(np.stack([Corridor().observation_of(cell) for cell in range(4)]))
    for model, value in ((told, 3.0), (never, -0.5 / 0.1), (planned, 0.25)):
        for name in ("q_net", "q_net_target", "q_net_ema"):
            network, without = (getattr(one.policy, name) for one in (model, plain))
            th.testing.assert_close(network(obs, obs.flip(0)), without(obs, obs.flip(0)) + value)
            moved = [key for key, weights in without.state_dict().items() if not th.equal(weights, network.state_dict()[key])]
            assert moved == ["offset" if head == "distance" else "head.bias"]


def test_target_updates_keep_their_interval_with_any_number_of_environments():
    model = td_model(make_vec_env(Corridor, 4), learning_starts=30, targets={"update_interval": 10, "tau": 0.25})
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
    assert calls == [32, 40, 52, 60, 72, 80]  # the first step at or past each multiple of 10, once learning has started


def test_running_statistics_reach_the_target_network():
    class Normalized(FlattenExtractor):
        def __init__(self, observation_space):
            super().__init__(observation_space)
            self.normalize = th.nn.BatchNorm1d(6)

        def forward(self, observations):
            return self.normalize(super().forward(observations))

    model = td_model(policy_kwargs={"features_extractor_class": Normalized}, targets={"update_interval": 10}).learn(60)
    model.num_timesteps = 70
    model._on_step()
    online, target = (network.trunk[1].normalize for network in (model.q_net, model.q_net_target))
    assert online.running_mean.abs().max() > 0
    assert th.equal(online.running_mean, target.running_mean)


def test_batch_goals_are_the_next_observations_topped_up():
    model = td_model(Corridor(length=6), targets={"goal_sampling": "batch"})
    assert model.goal_buffer is not None
    cells = np.stack([Corridor(length=6).observation_of(cell) for cell in range(6)])
    model.goal_buffer.add(cells)
    ids = th.tensor([4, 4, 2, -1])
    batch = ManyGoalsSamples(th.zeros(4, 6), th.zeros(4), th.zeros(4, 6), ids, th.zeros(4, dtype=th.bool))
    model.replay_buffer.sample = lambda _: batch
    for _ in range(20):
        _, goals, goal_ids, rows = model.targets.draw(4, 5, model.rng)
        assert ids[rows].tolist() == goal_ids[:2].tolist()
        assert set(goal_ids[:2].tolist()) == {2, 4}
        assert goal_ids.shape == (5,)
        assert (goal_ids >= 0).all()
        np.testing.assert_array_equal(goals.numpy(), cells[goal_ids.numpy()])


@pytest.mark.parametrize("goal_sampling", ["uniform", "batch", "behavior", None])
def test_held_out_goals_are_neither_pursued_nor_taught(goal_sampling):
    """None: with planned values."""
    world = Corridor(length=6)
    held_out = np.stack([world.observation_of(2), world.observation_of(4)])
    wrapper = {"goal_buffer": GoalBuffer(world.observation_space, held_out=held_out), "max_episode_steps": 10}
    if goal_sampling is None:
        model = make_model(world, goal_wrapper_kwargs=wrapper, target_class=PlannedTargets)
    else:
        model = td_model(world, goal_wrapper_kwargs=wrapper, targets={"goal_sampling": goal_sampling})
    pursued, taught = set(), set()
    draw = model.targets.draw

    def spy(*sizes):
        drawn = draw(*sizes)
        taught.update(drawn.goals.argmax(dim=1).tolist())
        return drawn

    model.targets.draw = spy
    model.learn(400, callback=lambda local, _: pursued.add(int(local["new_obs"]["desired_goal"].argmax())) or True)
    assert pursued == taught == {0, 1, 3, 5}


@pytest.mark.skipif(not th.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("make", [td_model, make_model], ids=["bootstrapped", "planned"])
def test_a_gpu_learns_what_a_cpu_learns(make):
    random = {"exploration_initial_eps": 1.0, "exploration_final_eps": 1.0}  # so that behavior does not depend on rounding
    on_cpu, on_gpu = (make(device=device, batch_size=8, learning_rate=1e-4, **random).learn(60) for device in ("cpu", "cuda"))
    assert {parameter.device.type for parameter in on_gpu.policy.parameters()} == {"cuda"}
    assert on_gpu._n_updates == on_cpu._n_updates > 0
    np.testing.assert_array_equal(on_gpu.goal_updates, on_cpu.goal_updates)
    th.testing.assert_close(parameters(on_gpu).cpu(), parameters(on_cpu), rtol=1e-3, atol=1e-4)
