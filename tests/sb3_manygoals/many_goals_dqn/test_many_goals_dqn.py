import copy
import csv

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import configure
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack, VecNormalize

from sb3_manygoals import GoalBuffer, GoalBufferWrapper, ManyGoalsDQN, VecGoalBufferWrapper
from sb3_manygoals.goals import UNKNOWN
from sb3_manygoals.many_goals_dqn import ManyGoalsSamples
from tests.sb3_manygoals.worlds import Corridor

SMALL = {"net_arch": [32], "embedding_dim": 32}
SMALL_IMAGE = {"features_extractor_kwargs": {"features_dim": 32}, "embedding_dim": 32}


def make_model(env=None, policy="MlpPolicy", **kwargs):
    settings = {"learning_starts": 20, "policy_kwargs": SMALL if policy == "MlpPolicy" else SMALL_IMAGE, "seed": 0}
    return ManyGoalsDQN(policy, Corridor() if env is None else env, **{**settings, **kwargs})


def parameters(model):
    return th.cat([parameter.detach().flatten() for parameter in model.policy.parameters()])


def goal_obs(env, cell, goal):
    observations = {"observation": env.observation_of(cell), "desired_goal": env.observation_of(goal)}
    return {**observations, "achieved_goal": observations["observation"]}


# --- the paper -------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("head", ["product", "distance"])
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


@pytest.mark.parametrize("head", ["product", "distance"])
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
        exploration_steps=1_500,
        target_update_interval=50,
        double_q=True,
        goal_sampling="batch",
        goal_wrapper_kwargs={"max_episode_steps": 15},
        policy_kwargs={**SMALL, "optimizer_class": th.optim.Adam},
    )
    model.learn(3_000)
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


# --- goals -----------------------------------------------------------------------------------------------------------


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


# --- environments ----------------------------------------------------------------------------------------------------


def test_a_plain_image_environment_is_wrapped():
    model = make_model(Corridor(image=True), "CnnPolicy").learn(60)
    assert all(model.env.env_is_wrapped(GoalBufferWrapper))
    assert model.observation_space["observation"].shape == (4, 6, 3)  # channels stay where they were
    assert model._n_updates == 40


def test_an_id_and_a_wrapped_environment_and_a_vector_of_them():
    assert isinstance(make_model("CartPole-v1").learn(30), ManyGoalsDQN)
    wrapped = GoalBufferWrapper(Corridor(), max_episode_steps=9, step_reward=-1.0)
    model = make_model(wrapped).learn(40)
    assert model.goal_buffer is wrapped.goal_buffer
    assert model.step_reward == -1.0
    buffer = GoalBuffer(Corridor().observation_space)
    model = make_model(DummyVecEnv([lambda: GoalBufferWrapper(Corridor(), buffer) for _ in range(3)])).learn(60)
    assert model.goal_buffer is buffer
    model = make_model(make_vec_env(Corridor, 3), goal_wrapper_kwargs={"max_episode_steps": 4}).learn(90)
    assert model.env.goal_episodes.max_episode_steps == 4
    assert max(episode["l"] for episode in model.ep_info_buffer) == 4
    model = make_model(VecGoalBufferWrapper(make_vec_env(Corridor, 2)), gradient_steps=-1).learn(60)
    assert model._n_updates == 40


def test_environments_that_cannot_share_a_goal_buffer_are_refused():
    with pytest.raises(ValueError, match="must be given the same goal_buffer, goal_reward and step_reward"):
        make_model(DummyVecEnv([lambda: GoalBufferWrapper(Corridor()) for _ in range(2)]))
    apart = SubprocVecEnv([lambda: GoalBufferWrapper(Corridor())])
    with pytest.raises(ValueError, match="env has no goal buffer that can be shared: put a VecGoalBufferWrapper around"):
        make_model(apart)
    apart.close()


def test_each_environment_explores_by_itself():
    model = make_model(make_vec_env(Corridor, 2))
    model.exploration_rate = 0.5
    obs = {key: np.repeat(value[None], 4_000, axis=0) for key, value in goal_obs(Corridor(), 1, 4).items()}
    greedy = model.predict(obs, deterministic=True)[0]
    assert len(np.unique(greedy)) == 1
    share = (model.predict(obs)[0] != greedy).mean()
    assert share == pytest.approx(0.5 * 2 / 3, abs=0.05)  # 6 standard deviations; all or none would be 0 or 2/3


def test_an_environments_step_count_and_log(tmp_path):
    model = make_model(make_vec_env(Corridor, 2))
    model.set_logger(configure(str(tmp_path), ["csv", "tensorboard"]))
    model.learn(3e2, log_interval=1)
    model.logger.close()
    assert model.num_timesteps == 300
    with open(tmp_path / "progress.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    rollout = {"rollout/ep_rew_mean", "rollout/success_rate", "rollout/exploration_rate"}
    assert rollout | {"goals/known", "train/loss"} <= set(rows[0])
    assert float(rows[-1]["goals/known"]) == 6
    assert float(rows[-1]["train/loss"]) > 0
    assert any(path.name.startswith("events.out.tfevents") for path in tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore:rich is experimental", "ignore:.*progress.csv:pytest.PytestUnraisableExceptionWarning")
def test_the_progress_bar_runs(capsys):
    make_model().learn(50, progress_bar=True)


def test_a_run_is_reproducible():
    first, second, other = (parameters(make_model(seed=seed).learn(150)) for seed in (1, 1, 2))
    assert th.equal(first, second)
    assert not th.equal(first, other)


# --- saving ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["MlpPolicy", "CnnPolicy"])
def test_save_and_load_round_trip(tmp_path, policy):
    world = Corridor(image=policy == "CnnPolicy")
    model = make_model(world, policy, goal_wrapper_kwargs={"max_episode_steps": 6}, goal_sampling="batch", double_q=True)
    model.learn(100)
    model.save(tmp_path / "model")
    model.save_goal_buffer(tmp_path / "goals")
    alone = ManyGoalsDQN.load(tmp_path / "model")
    assert th.equal(parameters(model), parameters(alone))
    for cell in range(6):
        obs = goal_obs(world, cell, 5 - cell)
        assert model.predict(obs, deterministic=True)[0] == alone.predict(obs, deterministic=True)[0]
    again = ManyGoalsDQN.load(tmp_path / "model", env=Corridor(image=policy == "CnnPolicy"))
    assert again.env.get_attr("goal_episodes")[0].max_episode_steps == 6
    assert (again.goal_sampling, again.double_q, again.num_timesteps) == ("batch", True, 100)
    again.load_goal_buffer(tmp_path / "goals")
    np.testing.assert_array_equal(again.goal_buffer.observations, model.goal_buffer.observations)
    assert again.env.get_attr("goal_buffer")[0] is again.goal_buffer
    state, loaded = model.policy.optimizer.state_dict(), again.policy.optimizer.state_dict()
    th.testing.assert_close(state["state"], loaded["state"])
    again.learn(60, reset_num_timesteps=False)
    assert again.num_timesteps == 160
    assert not th.equal(parameters(model), parameters(again))
    # an env that pursues goals already is taken as it is
    wrapped = GoalBufferWrapper(Corridor(image=policy == "CnnPolicy"), max_episode_steps=3)
    assert ManyGoalsDQN.load(tmp_path / "model", env=wrapped).env.get_attr("goal_episodes")[0].max_episode_steps == 3


def test_the_policy_alone_round_trips(tmp_path):
    model = make_model().learn(40)
    model.policy.save(tmp_path / "policy.pt")
    policy = type(model.policy).load(tmp_path / "policy.pt")
    obs = goal_obs(Corridor(), 2, 3)
    assert policy.predict(obs)[0] == model.predict(obs, deterministic=True)[0]


def test_the_replay_buffer_round_trips_with_the_right_ids(tmp_path):
    model = make_model().learn(50)
    model.save_replay_buffer(tmp_path / "replay")
    model.save_goal_buffer(tmp_path / "goals")

    def check(other):
        memory = other.replay_buffer
        assert memory.size() == 50
        np.testing.assert_array_equal(memory.next_observations, model.replay_buffer.next_observations)
        np.testing.assert_array_equal(other.goal_buffer[memory.next_ids[:50, 0]], memory.next_observations[:50, 0])

    # whatever this one has met before, and in whichever order the two files come
    alone = make_model(Corridor(start=5)).learn(5)
    alone.load_replay_buffer(tmp_path / "replay")
    check(alone)
    alone.load_goal_buffer(tmp_path / "goals")
    check(alone)
    np.testing.assert_array_equal(alone.replay_buffer.next_ids, model.replay_buffer.next_ids)


def test_a_new_environment_goes_on_with_the_goals_known():
    model = make_model(Corridor(start=0)).learn(40)
    ids = model.goal_buffer.ids(model.goal_buffer.observations)
    model.set_env(Corridor(start=5))
    assert model.env.get_attr("goal_buffer")[0] is model.goal_buffer
    model.learn(40, reset_num_timesteps=False)
    np.testing.assert_array_equal(model.goal_buffer.ids(model.goal_buffer.observations)[: len(ids)], ids)


def test_held_out_goals_stay_held_out_in_a_loaded_model(tmp_path):
    world = Corridor(length=6)
    buffer = GoalBuffer(world.observation_space, capacity=50, held_out=world.observation_of(2)[None])
    model = make_model(world, goal_wrapper_kwargs={"goal_buffer": buffer}).learn(40)
    model.save(tmp_path / "model")
    loaded = ManyGoalsDQN.load(tmp_path / "model", env=Corridor(length=6)).learn(200)
    assert loaded.goal_buffer.capacity == 50
    assert len(loaded.goal_buffer) == 5
    assert world.observation_of(2) not in loaded.goal_buffer


def test_what_is_changed_at_loading_is_changed_and_checked(tmp_path):
    make_model(make_vec_env(Corridor, 2), goal_wrapper_kwargs={"reset_worlds": True}).save(tmp_path / "model")
    loaded = ManyGoalsDQN.load(tmp_path / "model", env=Corridor(), goal_wrapper_kwargs={"max_episode_steps": 3})
    assert loaded.env.get_attr("goal_episodes")[0].max_episode_steps == 3
    assert ManyGoalsDQN.load(tmp_path / "model", env=Corridor()).learn(10).num_timesteps == 10
    with pytest.raises(ValueError, match="gamma must be less than 1"):
        ManyGoalsDQN.load(tmp_path / "model", gamma=1.0)


def test_ids_of_goals_in_pursuit_follow_a_loaded_goal_buffer(tmp_path):
    model = make_model().learn(60)
    other = GoalBuffer(Corridor().observation_space)
    other.add(model.goal_buffer.observations[::-1])
    other.save(tmp_path / "goals")
    model.load_goal_buffer(tmp_path / "goals")
    (episodes,) = model.env.get_attr("goal_episodes")
    np.testing.assert_array_equal(episodes.desired_ids, other.ids(episodes.desired_goals))


def test_a_trained_model_can_be_copied():
    model = make_model().learn(40)
    assert th.equal(parameters(copy.deepcopy(model)), parameters(model))


# --- bad input -------------------------------------------------------------------------------------------------------


def test_continuous_actions_are_refused():
    with pytest.raises(TypeError, match="a Discrete action space that starts at 0 is needed, got Box"):
        make_model("Pendulum-v1")


def test_observations_that_cannot_be_goals_are_refused():
    with pytest.raises(TypeError, match="observation_space cannot be treated as a space of goals"):
        make_model("Blackjack-v1")


def test_vectors_are_refused_by_cnn_policy():
    with pytest.raises(ValueError, match="CnnPolicy needs images"):
        make_model("CartPole-v1", "CnnPolicy")


@pytest.mark.parametrize(
    "name", ["buffer_size", "batch_size", "goal_batch_size", "target_update_interval", "exploration_steps"]
)
@pytest.mark.parametrize("value", [0, -1, 1.5, None])
def test_counts_must_be_positive(name, value):
    with pytest.raises(ValueError, match=f"{name} must be a whole number, at least 1, got {value}"):
        make_model(**{name: value})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gamma": 1.0}, r"gamma must be less than 1"),
        ({"gamma": None}, r"gamma must be a number in \[0, 1\], got None"),
        ({"tau": 1.1}, r"tau must be a number in \[0, 1\], got 1.1"),
        ({"exploration_final_eps": -0.1}, r"exploration_final_eps must be a number in \[0, 1\], got -0.1"),
        ({"exploration_initial_eps": "1"}, r"exploration_initial_eps must be a number in \[0, 1\], got '1'"),
        ({"learning_starts": -1}, "learning_starts must be a whole number, at least 0, got -1"),
        ({"train_freq": 0}, "train_freq must be a whole number, at least 1, got 0"),
        ({"train_freq": "4"}, "train_freq must be a whole number, at least 1, got '4'"),
        ({"gradient_steps": -2}, "gradient_steps must be a whole number, at least -1, got -2"),
        ({"gradient_steps": 1.5}, "gradient_steps must be a whole number, at least -1, got 1.5"),
        ({"action_gap": 1.0}, "action_gap must be less than 1"),
        ({"action_gap": -0.1}, r"action_gap must be a number in \[0, 1\], got -0.1"),
        ({"near_decay": 0.0}, "near_decay must be more than 0"),
        ({"near_decay": 0.9, "gamma": 0.0}, "near_decay must be .* 1 where gamma is 0"),
        ({"near_floor": 0.0}, "near_floor must be a number, more than 0, got 0.0"),
        ({"policy_kwargs": {"head": "sum"}}, "head must be one of 'product', 'distance', got 'sum'"),
        ({"policy_kwargs": {"averaging": 1.0}}, r"averaging must be a number in \[0, 1\), got 1.0"),
        ({"goal_sampling": "pursued", "near_decay": 0.9}, 'goal_sampling="pursued" has neither action_gap nor near_decay'),
        ({"goal_sampling": "none"}, 'goal_sampling must be one of "uniform", "batch", "all", "pursued", got \'none\''),
        ({"batch_goal_share": 1.5}, r"batch_goal_share must be a number in \[0, 1\], got 1.5"),
        ({"policy": "Policy"}, "policy must be one of CnnPolicy, MlpPolicy, got 'Policy'"),
        ({"policy_kwargs": {"embedding_dim": 0}}, "embedding_dim must be at least 1, got 0"),
        ({"goal_wrapper_kwargs": {"max_episode_steps": -5}}, "max_episode_steps must be a whole number, at least 1, got -5"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        make_model(**settings)


def test_wrapper_arguments_for_a_wrapped_environment_are_refused():
    with pytest.raises(ValueError, match=r"goal_wrapper_kwargs \['max_episode_steps'\] given, but env pursues goals already"):
        make_model(GoalBufferWrapper(Corridor()), goal_wrapper_kwargs={"max_episode_steps": 5})


def test_observations_without_a_goal_are_refused():
    model = make_model()
    with pytest.raises(ValueError, match='observation must be a dict with "observation" and "desired_goal", got ndarray'):
        model.predict(np.zeros(6, np.uint8))
    with pytest.raises(ValueError, match="got \\['observation'\\]"):
        model.predict({"observation": np.zeros(6, np.uint8)})


@pytest.mark.parametrize("steps", [0, 0.5, -3, float("nan"), float("inf"), "3e3"])
def test_no_steps_are_refused(steps):
    with pytest.raises(ValueError, match="total_timesteps must be a finite number, at least 1, got"):
        make_model().learn(steps)


@pytest.mark.parametrize("rows", [(3, 1), (1, 3)])
def test_observations_and_goals_that_do_not_pair_up_are_refused(rows):
    obs = goal_obs(Corridor(), 1, 2)
    batch = {key: np.repeat(obs[key][None], n, axis=0) for key, n in zip(("observation", "desired_goal"), rows, strict=True)}
    with pytest.raises(ValueError, match="observation and desired_goal must have one shape"):
        make_model().predict(batch, deterministic=True)


def test_wrappers_that_change_observations_around_the_goal_wrapper_are_refused():
    stacked = VecFrameStack(VecGoalBufferWrapper(make_vec_env(lambda: Corridor(image=True), 1)), 2)
    with pytest.raises(ValueError, match="a wrapper around the goal wrapper changes observations"):
        make_model(stacked, "CnnPolicy")


def test_another_goal_buffer_is_not_thrown_away_in_silence():
    model = make_model().learn(30)
    buffer = GoalBuffer(Corridor().observation_space, held_out=Corridor().observation_of(2)[None])
    with pytest.raises(ValueError, match="env has a goal buffer of its own"):
        model.set_env(GoalBufferWrapper(Corridor(), buffer))
    model.set_env(GoalBufferWrapper(Corridor(), model.goal_buffer))


def test_something_else_than_an_environment_is_refused():
    with pytest.raises(TypeError, match="env must be a Gymnasium environment, its id, or an SB3 VecEnv, got 3"):
        ManyGoalsDQN("MlpPolicy", 3)
    with pytest.raises(ValueError, match="env is needed to build a model"):
        ManyGoalsDQN("MlpPolicy", None)


def test_normalised_observations_are_refused():
    venv = VecNormalize(VecGoalBufferWrapper(make_vec_env(Corridor, 1)), norm_obs_keys=["observation"])
    with pytest.raises(ValueError, match="VecNormalize is not supported"):
        make_model(venv)


def test_an_update_without_goals_is_refused():
    model = make_model()
    model.goal_buffer = GoalBuffer(Corridor().observation_space)
    batch = ManyGoalsSamples(*(th.zeros(1) for _ in range(5)))
    with pytest.raises(ValueError, match="cannot sample from an empty goal buffer"):
        model._sample_goals(batch)


def test_action_spaces_that_start_elsewhere_are_refused():
    shifted = gym.wrappers.TransformAction(Corridor(), lambda a: a - 1, spaces.Discrete(3, start=1))
    with pytest.raises(TypeError, match="Discrete action space that starts at 0"):
        make_model(shifted)
