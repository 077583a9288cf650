"""What ManyGoalsDQN's updates are, against a loop over pairs, and that they learn."""

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.utils import LinearSchedule

from sb3_manygoals import GoalBuffer, ManyGoalsDQN
from sb3_manygoals.goals import UNKNOWN
from sb3_manygoals.many_goals_dqn import ManyGoalsSamples
from tests.sb3_manygoals.many_goals_dqn.models import SMALL, goal_obs, make_model
from tests.sb3_manygoals.worlds import Corridor


def test_defaults_are_the_papers():
    model = ManyGoalsDQN("CnnPolicy", Corridor(image=True))
    assert (model.buffer_size, model.batch_size, model.goal_batch_size) == (10_000, 32, 16)
    assert (model.gamma, model.goal_reward, model.step_reward) == (0.99, 0.0, -0.1)
    assert "RMSprop" in type(model.policy.optimizer).__name__
    assert (model.train_freq.frequency, model.gradient_steps) == (1, 1)
    assert (model.goal_sampling, model.double_q) == ("uniform", False)
    rates = []
    for steps in (0, 250_000, 1_000_000, 3_000_000):
        model.num_timesteps = steps
        model._on_step()
        rates.append(model.exploration_rate)
    np.testing.assert_allclose(rates, [1.0, 0.775, 0.1, 0.1])


@pytest.mark.parametrize("head", ["product", "rectified", "distance"])
@pytest.mark.parametrize("settings", [{}, {"double_q": True}, {"action_gap": 0.6, "near_decay": 0.8, "near_floor": 0.1}])
def test_the_update_is_the_brute_force_loop_over_pairs(settings, head):
    """Loss and gradients of S x G pairs, each computed by itself with its own goal's reward and termination."""
    model = make_model(Corridor(length=6, deadly=True), **settings, policy_kwargs={"head": head})
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
    batch = ManyGoalsSamples(
        th.tensor(cells[here]),
        th.tensor(actions),
        th.tensor(cells[there]),
        th.tensor(model.goal_buffer.ids(cells[there])),
        th.tensor(terminated),
    )
    goals = np.array([1, 5, 2, 3])
    update_goals = th.tensor(cells[goals]), th.tensor(model.goal_buffer.ids(cells[goals]))
    losses = model.goal_losses(batch, *update_goals)
    # the first three goals are next observations of the batch
    th.testing.assert_close(losses, model.goal_losses(batch, *update_goals, met=th.tensor([0, 3, 2])))
    model.q_net.zero_grad()
    losses.mean().backward()
    gradient = th.cat([parameter.grad.flatten() for parameter in model.q_net.parameters()])

    alpha, decay = settings.get("action_gap", 0.0), settings.get("near_decay", 1.0)
    errors, weights = {}, {}
    for g in goals:
        goal = th.tensor(cells[g])[None]
        for s in range(5):
            cell, next_cell = th.tensor(cells[here[s]])[None], th.tensor(cells[there[s]])[None]
            q = model.q_net(cell, goal)[0, actions[s]]
            with th.no_grad():
                next_q, current_q = model.q_net_target(next_cell, goal)[0], model.q_net_target(cell, goal)[0]
                chosen = (model.q_net(next_cell, goal)[0] if "double_q" in settings else next_q).argmax()
            if there[s] == g:
                target = 0.0
            elif terminated[s]:
                target = -0.1 / (1 - 0.99)
            else:
                target = float(-0.1 + 0.99 * next_q[chosen])
            # the distance d for which -0.1 (1 + 0.99 + ... + 0.99 ** (d - 1)) is the target
            distance = np.log(np.clip(1 + 0.1 * target, 1e-30, 1.0)) / np.log(0.99)
            weights[g, s] = decay**distance + 0.1 if decay < 1.0 else 1.0
            errors[g, s] = (q - target + alpha * (current_q.max() - current_q[actions[s]])) ** 2
    mean_weight = sum(weights.values()) / len(weights)
    total = th.zeros(())
    for column, g in enumerate(goals):
        of_goal = sum(weights[g, s] / mean_weight * errors[g, s] for s in range(5)) / 5
        th.testing.assert_close(losses[column], of_goal, rtol=1e-4, atol=1e-5)
        total = total + of_goal / len(goals)
    model.q_net.zero_grad()
    total.backward()
    expected = th.cat([parameter.grad.flatten() for parameter in model.q_net.parameters()])
    th.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-4)
    assert all(parameter.grad is None for parameter in model.q_net_target.parameters())


@pytest.mark.parametrize("head", ["product", "rectified", "distance"])
def test_n_steps_are_the_brute_force_loop_over_pairs_and_steps(head):
    model = make_model(Corridor(length=6, deadly=True), n_steps=3, policy_kwargs={"head": head})
    cells = np.stack([Corridor(length=6).observation_of(cell) for cell in range(6)])
    model.goal_buffer.set_checkpoint_state({**model.goal_buffer.get_checkpoint_state(), "observations": cells[::-1].copy()})
    ways = [[0, 1, 2, 3], [1, 0, 0], [3, 2, 3, 2], [4, 5]]  # the last one ended the world
    terminated = [False, False, False, True]
    ids = np.full((4, 3), UNKNOWN)
    for row, way in enumerate(ways):
        ids[row, : len(way) - 1] = 5 - np.array(way[1:])
    actions, last = np.array([1, 0, 0, 1]), np.array([way[-1] for way in ways])
    batch = ManyGoalsSamples(
        th.tensor(cells[[way[0] for way in ways]]),
        th.tensor(actions),
        th.tensor(cells[last]),
        th.tensor(5 - last),
        th.tensor(terminated),
        path_ids=th.tensor(ids),
        path_lengths=th.tensor([len(way) - 1 for way in ways]),
    )
    goals = [0, 2, 3, 5]
    losses = model.goal_losses(batch, th.tensor(cells[goals]), th.tensor([5 - goal for goal in goals]))
    expected = []
    for goal in goals:
        total = 0.0
        for way, action, ended in zip(ways, actions, terminated, strict=True):
            target, discount = 0.0, 1.0
            for cell in way[1:]:
                if cell == goal:
                    break
                target, discount = target - 0.1 * discount, discount * 0.99
            else:
                pair = th.tensor(cells[way[-1]])[None], th.tensor(cells[goal])[None]
                target += discount * (-10.0 if ended else model.q_net_target(*pair).max().item())
            total += (
                model.q_net(th.tensor(cells[way[0]])[None], th.tensor(cells[goal])[None])[0, action].item() - target
            ) ** 2
        expected.append(total / 4)
    th.testing.assert_close(losses.detach(), th.tensor(expected), rtol=1e-4, atol=1e-5)


def test_segments_have_the_best_return_of_their_way():
    model = make_model(Corridor(length=6), segment_length=3, segment_share=1.0)
    cells = np.stack([Corridor(length=6).observation_of(cell) for cell in range(6)])
    model.goal_buffer.set_checkpoint_state({**model.goal_buffer.get_checkpoint_state(), "observations": cells.copy()})
    here, there, goal = [0, 1, 2, 4], [1, 2, 3, 5], 3  # a way of three transitions to the goal, and another transition
    batch = ManyGoalsSamples(
        th.tensor(cells[here]),
        th.ones(4, dtype=th.int64),
        th.tensor(cells[there]),
        th.tensor(there),
        th.zeros(4, dtype=th.bool),
        goes_on=th.tensor([True, True, False, False]),
    )
    with th.no_grad():  # every bootstrapped value is far too small
        model.q_net_target.head.bias.fill_(-100.0)
    loss = model.goal_losses(batch, th.tensor(cells[[goal]]), th.tensor([goal]))
    q = model.q_net(th.tensor(cells[here]), th.tensor(cells[[goal] * 4]))[:, 1]
    last = -0.1 + 0.99 * model.q_net_target(th.tensor(cells[[5]]), th.tensor(cells[[goal]])).max()
    expected = (q - th.stack([th.tensor(-0.199), th.tensor(-0.1), th.tensor(0.0), last])).square().mean()
    th.testing.assert_close(loss[0], expected)


def test_segments_are_learnt_from():
    model = make_model(Corridor(length=6), segment_length=4, learning_starts=10)
    model.learn(60)
    assert model.replay_buffer.sample(32).goes_on.sum() > 4
    with pytest.raises(ValueError, match="n_steps and segment_length go apart, got 2 and 3"):
        make_model(Corridor(length=6), n_steps=2, segment_length=3)
    with pytest.raises(ValueError, match=r"segment_share must be a number in \[0, 1\], got 1.5"):
        make_model(Corridor(length=6), segment_length=3, segment_share=1.5)
    with pytest.raises(ValueError, match='goal_sampling="pursued" has no segment_length'):
        make_model(Corridor(length=6), segment_length=2, goal_sampling="pursued")


def test_n_steps_are_learnt_from():
    model = make_model(Corridor(length=6), n_steps=3, learning_starts=10)
    assert model.replay_buffer.n_steps == 3
    model.learn(60)
    assert model.replay_buffer.sample(50).path_lengths.max() == 3
    with pytest.raises(ValueError, match="n_steps must be a whole number, at least 1, got 0"):
        make_model(Corridor(length=6), n_steps=0)
    with pytest.raises(ValueError, match='goal_sampling="pursued" has no n_steps'):
        make_model(Corridor(length=6), n_steps=2, goal_sampling="pursued")


def test_it_learns_every_goal_of_a_corridor():
    world = Corridor(length=7)
    model = make_model(
        world,
        learning_rate=1e-3,
        exploration_steps=500,
        target_update_interval=50,
        initial_value=0.0,
        double_q=True,
        goal_sampling="batch",
        goal_wrapper_kwargs={"max_episode_steps": 15},
        policy_kwargs={**SMALL, "optimizer_class": th.optim.Adam},
    )
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


@pytest.mark.parametrize("head", ["product", "rectified", "distance"])
def test_values_begin_as_of_goals_that_are_never_reached_or_as_told(head):
    policy = {**SMALL, "head": head, "averaging": 0.9}
    plain, told = (make_model(initial_value=value, policy_kwargs=policy) for value in (0.0, 3.0))
    never = make_model(policy_kwargs=policy, gamma=0.9, goal_wrapper_kwargs={"step_reward": -0.5})
    obs = th.as_tensor(np.stack([Corridor().observation_of(cell) for cell in range(4)]))
    for model, value in ((told, 3.0), (never, -0.5 / 0.1)):
        for name in ("q_net", "q_net_target", "q_net_average"):
            network, without = (getattr(one.policy, name) for one in (model, plain))
            th.testing.assert_close(network(obs, obs.flip(0)), without(obs, obs.flip(0)) + value)
            moved = [key for key, weights in without.state_dict().items() if not th.equal(weights, network.state_dict()[key])]
            assert moved == ["offset" if head == "distance" else "head.bias"]


def test_a_loaded_models_values_are_not_moved_again(tmp_path):
    model = make_model()
    model.save(tmp_path / "model")
    loaded = ManyGoalsDQN.load(tmp_path / "model", Corridor())
    assert loaded.initial_value is None
    for name, weights in model.policy.state_dict().items():
        assert th.equal(weights, loaded.policy.state_dict()[name]), name


def test_target_network_follows_at_its_interval():
    model = make_model(target_update_interval=30, learning_starts=10, tau=1.0)
    model.learn(29)
    assert not th.equal(model.q_net.head.weight, model.q_net_target.head.weight)
    model.learn(1, reset_num_timesteps=False)
    # copied on step 30, before that step's update
    before = model.q_net_target.head.weight.clone()
    model.learn(20, reset_num_timesteps=False)
    assert th.equal(before, model.q_net_target.head.weight)
    model.learn(10, reset_num_timesteps=False)
    assert not th.equal(before, model.q_net_target.head.weight)


def test_target_updates_keep_their_interval_with_any_number_of_environments():
    model = make_model(make_vec_env(Corridor, 4), target_update_interval=10)
    calls = []
    model.q_net_target.load_state_dict(model.q_net.state_dict())
    for steps in range(4, 84, 4):
        model.num_timesteps = steps
        with th.no_grad():
            model.q_net.head.bias.fill_(float(steps))
        model._on_step()
        if model.q_net_target.head.bias[0] == steps:
            calls.append(steps)
    assert calls == [12, 20, 32, 40, 52, 60, 72, 80]  # the first step at or past each multiple of 10


def test_a_soft_target_takes_over_its_share():
    model = make_model(tau=0.25, target_update_interval=10)
    with th.no_grad():
        model.q_net.head.bias.fill_(4.0)
        model.q_net_target.head.bias.fill_(0.0)
    model.num_timesteps = 10
    model._on_step()
    th.testing.assert_close(model.q_net_target.head.bias, th.ones(3))


def test_the_step_size_follows_its_schedule():
    model = make_model(learning_rate=LinearSchedule(1e-3, 0.0, 1.0), learning_starts=10)
    rates = []
    model.learn(100, lambda *_: rates.append(model.policy.optimizer.param_groups[0]["lr"]) or True)
    assert rates[50] == pytest.approx(0.5e-3, rel=0.05)
    assert rates[-1] < 0.03e-3


def test_running_statistics_reach_the_target_network():
    class Normalized(FlattenExtractor):
        def __init__(self, observation_space):
            super().__init__(observation_space)
            self.normalize = th.nn.BatchNorm1d(6)

        def forward(self, observations):
            return self.normalize(super().forward(observations))

    kwargs = {**SMALL, "features_extractor_class": Normalized}
    model = make_model(policy_kwargs=kwargs, target_update_interval=10).learn(60)
    model.num_timesteps = 70
    model._on_step()
    online, target = (network.trunk[1].normalize for network in (model.q_net, model.q_net_target))
    assert online.running_mean.abs().max() > 0
    assert th.equal(online.running_mean, target.running_mean)


def test_batch_goals_are_the_next_observations_topped_up():
    model = make_model(Corridor(length=6), goal_batch_size=5, goal_sampling="batch")
    assert model.goal_buffer is not None
    cells = np.stack([Corridor(length=6).observation_of(cell) for cell in range(6)])
    model.goal_buffer.add(cells)
    ids = th.tensor([4, 4, 2, -1])
    batch = ManyGoalsSamples(th.zeros(4, 6), th.zeros(4), th.zeros(4, 6), ids, th.zeros(4, dtype=th.bool))
    for _ in range(20):
        goals, goal_ids, rows = model._sample_goals(batch)
        assert ids[rows].tolist() == goal_ids[:2].tolist()
        assert set(goal_ids[:2].tolist()) == {2, 4}
        assert goal_ids.shape == (5,)
        assert (goal_ids >= 0).all()
        np.testing.assert_array_equal(goals.numpy(), cells[goal_ids.numpy()])


@pytest.mark.parametrize("goal_sampling", ["uniform", "batch", "all", "pursued"])
def test_held_out_goals_are_neither_pursued_nor_taught(goal_sampling):
    world = Corridor(length=6)
    held_out = np.stack([world.observation_of(2), world.observation_of(4)])
    buffer = GoalBuffer(world.observation_space, held_out=held_out)
    model = make_model(world, goal_sampling=goal_sampling, goal_wrapper_kwargs={"goal_buffer": buffer})
    pursued, taught = set(), set()
    sample_goals = model._sample_goals

    def spy(batch):
        sampled = sample_goals(batch)
        taught.update(sampled[0].argmax(dim=1).tolist())
        return sampled

    model._sample_goals = spy
    model.learn(400, callback=lambda local, _: pursued.add(int(local["new_obs"]["desired_goal"].argmax())) or True)
    assert pursued == taught == {0, 1, 3, 5}
