"""Tests of the callbacks of auxiliary tasks."""

import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from gymnasium.wrappers import DtypeObservation
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.callbacks import BaseCallback, ConvertCallback, EveryNTimesteps
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecEnvWrapper,
    VecFrameStack,
    VecNormalize,
    VecTransposeImage,
)

import gym_twoRooms  # noqa: F401 - it registers its worlds
from sb3_manygoals import AuxiliaryActorCriticPolicy, ExactCheckpointCallback
from sb3_manygoals.auxiliary import (
    EpisodeBuffer,
    ManyGoalsCallback,
    PixelControlCallback,
    RewardPredictionCallback,
)
from sb3_manygoals.checkpoint import CheckpointError
from tests.sb3_manygoals.auxiliary.story import Story, stories
from tests.sb3_manygoals.checkpoint.resuming import Stop
from tests.sb3_manygoals.worlds import Corridor, cart_poles, numbered_from_one

ALL = ("many_goals", "pixel_control", "reward_prediction")
SETTINGS = {"seed": 3, "device": "cpu", "ent_coef": 0.01, "vf_coef": 0.25}
HEADS = {"tasks": ALL, "crop": 20, "cell": 4, "embedding_dim": 16}


def build(env=None, policy_kwargs=None, **kwargs):
    policy_kwargs = HEADS if policy_kwargs is None else policy_kwargs
    env = stories(n_stack=4, limit=12) if env is None else env
    return A2C(AuxiliaryActorCriticPolicy, env, policy_kwargs=policy_kwargs, **SETTINGS | kwargs)


ENV = cart_poles()
BARE = AuxiliaryActorCriticPolicy, ENV
OTHER = EpisodeBuffer(spaces.Box(0, 1, (3,), np.float32))


class ManyGoalsOfNoWeight(ManyGoalsCallback):
    """Computes and adds gradients that are all zero."""

    def loss(self, policy, episodes, rng):
        return 0.0 * super().loss(policy, episodes, rng)


@pytest.mark.parametrize(
    ("kind", "optimizer"),
    [("CnnPolicy", {}), ("MlpPolicy", {}), ("MlpPolicy", {"optimizer_class": th.optim.Adam})],
)
@pytest.mark.parametrize(
    "callback",
    [
        lambda: None,
        lambda: [ManyGoalsCallback(beta=0.0), RewardPredictionCallback(weight=0.0)],
        lambda: [
            ManyGoalsCallback(beta=0.0, update="joint"),
            RewardPredictionCallback(weight=0.0, update="two_steps"),
        ],
        lambda: [ManyGoalsOfNoWeight(1.0, batch_size=10), ManyGoalsOfNoWeight(2.0, batch_size=10)],
        lambda: [
            ManyGoalsOfNoWeight(1.0, batch_size=10, update="joint"),
            ManyGoalsOfNoWeight(2.0, batch_size=10),
        ],
    ],
)
def test_without_auxiliary_losses_it_is_sb3s_a2c_to_the_last_bit(callback, kind, optimizer):
    env = (lambda: stories(n_stack=4, limit=12)) if kind == "CnnPolicy" else cart_poles
    plain = A2C(kind, env(), policy_kwargs=dict(optimizer), **SETTINGS).learn(120)
    ours = build(env(), {"tasks": ALL[::2], "embedding_dim": 16} | optimizer).learn(120, callback())
    before, after = (model.policy.state_dict() for model in (plain, ours))
    after = {
        name: value
        for name, value in after.items()
        if not name.startswith(("heads", "goal_target"))
    }
    assert before.keys() == after.keys()
    assert all(th.equal(before[name], after[name]) for name in before)
    states = [model.policy.optimizer.state_dict()["state"] for model in (plain, ours)]
    # The layers of A2C have the same numbers in both, because the heads come last.
    for number, state in states[0].items():
        for name, value in state.items():
            assert th.equal(th.as_tensor(value), th.as_tensor(states[1][number][name]))


def copies_of_gradients(model):
    parameters = model.policy.parameters()
    return [None if one.grad is None else one.grad.clone() for one in parameters]


def copies_of_weights(model):
    return [one.detach().clone() for one in model.policy.parameters()]


class Wide(VecEnvWrapper):
    """Returns observations of more bits than their space has, as a SubprocVecEnv may."""

    def reset(self):
        return self.venv.reset().astype(np.float64)

    def step_wait(self):
        observations, *rest = self.venv.step_wait()
        return observations.astype(np.float64), *rest


def test_observations_of_more_bits_are_learned_from_like_others():
    weights = []
    for around in (lambda env: env, Wide):
        model = A2C(AuxiliaryActorCriticPolicy, around(cart_poles()), **SETTINGS)
        callback = ManyGoalsCallback()
        model.learn(400, callback)
        assert callback.n_updates > 0
        weights.append(copies_of_weights(model))
    assert all(th.equal(*pair) for pair in zip(*weights, strict=True))


class Watch(BaseCallback):
    """
    Notes gradients and weights before each step of A2C's optimizer.

    Callbacks after this one have not added their gradients then.
    """

    def _on_training_start(self):
        self.gradients = []
        self.weights = []
        self.hook = self.model.policy.optimizer.register_step_pre_hook(lambda *_: self.note())

    def note(self):
        self.gradients.append(copies_of_gradients(self.model))
        self.weights.append(copies_of_weights(self.model))

    def _on_step(self):
        return True


def shared_and_heads(policy):
    """Return all weights but those of the actor and the critic."""
    return [*policy.features_extractor.parameters(), *policy.heads.parameters()]


class Planned(ManyGoalsCallback):
    """Has a loss with a known gradient, the sum of these weights."""

    size = 1.0

    def loss(self, policy, episodes, rng):
        return self.size * sum(one.sum() for one in shared_and_heads(policy))


class Pulled(ManyGoalsCallback):
    """Has a loss with a known gradient, half the squares of these weights."""

    size = 1.0

    def loss(self, policy, episodes, rng):
        return self.size * sum(one.square().sum() / 2 for one in shared_and_heads(policy))


SGD = {"optimizer_class": th.optim.SGD, "optimizer_kwargs": {}}


@pytest.mark.parametrize(("size", "clipped"), [(1e-4, False), (5.0, True)])
def test_a_joint_update_steps_on_the_sum_of_gradients_that_are_clipped_alone(size, clipped):
    model = build(policy_kwargs=HEADS | SGD, learning_rate=0.1)
    watch = Watch()
    task = Planned(beta=0.5, update="joint")
    task.size = size
    model.learn(200, [watch, task])
    touched = {
        name: name.startswith(("features_extractor", "heads"))
        for name, _ in model.policy.named_parameters()
    }
    count = sum(one.numel() for name, one in model.policy.named_parameters() if touched[name])
    assert clipped == (0.5 * size * count**0.5 > 0.5)
    added = 0.5 / count**0.5 if clipped else 0.5 * size
    assert task.n_updates > 10
    # This is a step with an auxiliary loss.
    step = len(watch.weights) - task.n_updates + 3
    for (name, is_touched), gradient, old, new in zip(
        touched.items(),
        watch.gradients[step],
        watch.weights[step],
        watch.weights[step + 1],
        strict=True,
    ):
        if not name.startswith("goal_target"):
            whole = added if is_touched else 0.0
            if gradient is not None:
                whole = whole + gradient
            th.testing.assert_close(new, old - 0.1 * whole, rtol=0, atol=5e-7, msg=name)


class WatchSecond(Watch):
    """
    Also notes step size, weights and gradients after each step of A2C's optimizer.

    Callbacks before this one have taken their second steps then.
    """

    def _on_training_start(self):
        super()._on_training_start()
        self.after = []
        self.rates = []
        self.kept = []
        self.post_hook = self.model.policy.optimizer.register_step_post_hook(
            lambda *_: self.note_after()
        )

    def note_after(self):
        self.after.append(copies_of_weights(self.model))
        self.rates.append(self.model.policy.optimizer.param_groups[0]["lr"])
        self.kept.append(copies_of_gradients(self.model))


@pytest.mark.parametrize(("size", "clipped"), [(1e-3, False), (5.0, True)])
def test_the_second_step_is_on_the_gradient_after_the_first(size, clipped):
    model = build(policy_kwargs=HEADS | SGD, learning_rate=lambda left: 0.02 * left)
    watch = WatchSecond()
    task = Pulled(beta=0.5)
    task.size = size
    model.learn(200, [task, watch])
    names = [name for name, _ in model.policy.named_parameters()]
    touched = [name.startswith(("features_extractor", "heads")) for name in names]
    assert task.n_updates > 10
    for step in (-task.n_updates, -3, -1):
        rate = watch.rates[step]
        assert rate < 0.02
        between = [
            old if gradient is None else old - rate * gradient
            for old, gradient in zip(watch.weights[step], watch.gradients[step], strict=True)
        ]
        own = [weight for weight, is_own in zip(between, touched, strict=True) if is_own]
        length = size * th.cat([weight.flatten() for weight in own]).norm()
        assert clipped == (length > 0.5)
        scale = size * (0.5 / length if clipped else 1.0)
        for name, is_own, middle, new in zip(
            names, touched, between, watch.after[step], strict=True
        ):
            if not name.startswith("goal_target"):
                expected = middle - 0.5 * rate * scale * middle if is_own else middle
                th.testing.assert_close(new, expected, rtol=0, atol=2e-7, msg=name)
    # After both steps, hooks still find A2C's gradient.
    for step in range(-task.n_updates, 0):
        for before, after in zip(watch.gradients[step], watch.kept[step], strict=True):
            assert (before is None) == (after is None)
            assert before is None or th.equal(before, after)


class Printed(A2C):
    """Algorithm 2 as it is printed: A2C's step, then a step of another optimizer for each task."""

    def train(self):
        super().train()
        for task in self.tasks:
            if len(task.episodes) == 0:
                continue
            if task not in self.optimizers:
                heads = list(self.policy.heads.parameters())
                others = [
                    one
                    for one in self.policy.parameters()
                    if all(one is not weight for weight in heads)
                ]
                self.optimizers[task] = self.policy.optimizer_class(
                    [*others, *heads], lr=1.0, **self.policy.optimizer_kwargs
                )
            optimizer = self.optimizers[task]
            rate = self.policy.optimizer.param_groups[0]["lr"]
            optimizer.param_groups[0]["lr"] = self.betas[task] * rate
            self.policy.zero_grad()
            task.loss(self.policy, task.episodes, task.rng).backward()
            th.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
            optimizer.step()
            task.n_updates += 1


@pytest.mark.parametrize(
    "optimizer",
    [
        {},
        {"optimizer_class": RMSpropTFLike, "optimizer_kwargs": {"alpha": 0.9, "eps": 1e-5}},
        {"optimizer_class": th.optim.Adam},
        {"optimizer_class": th.optim.SGD, "optimizer_kwargs": {"momentum": 0.9}},
    ],
)
def test_callbacks_take_the_steps_of_algorithm_2(optimizer):
    def learn(kind, betas, **update):
        """Train a model of this kind on three tasks."""
        model = kind(
            AuxiliaryActorCriticPolicy,
            stories(n_stack=4, limit=12),
            lambda left: 1e-3 * left,
            policy_kwargs=HEADS | optimizer,
            **SETTINGS,
        )
        episodes = EpisodeBuffer(model.observation_space, n_stack=4)
        tasks = [
            ManyGoalsCallback(betas[0], batch_size=10, episodes=episodes, seed=1),
            PixelControlCallback(
                betas[1], n_steps=2, batch_size=6, episodes=episodes, seed=1, **update
            ),
            RewardPredictionCallback(betas[2], batch_size=4, episodes=episodes, seed=1, **update),
        ]
        model.tasks = tasks
        model.optimizers = {}
        model.betas = dict(zip(tasks, (0.5, 0.3, 0.7), strict=True))
        model.learn(200, tasks)
        assert {task.n_updates for task in tasks} == {tasks[0].n_updates}
        assert tasks[0].n_updates > 10
        return model.policy.state_dict()

    printed = learn(Printed, (0.0, 0.0, 0.0))
    ours = learn(A2C, (0.5, 0.3, 0.7), update="two_steps")
    for name, value in printed.items():
        th.testing.assert_close(ours[name], value, rtol=1e-5, atol=1e-6, msg=name)


def test_defaults_of_update_are_those_of_the_sources():
    kinds = ManyGoalsCallback, PixelControlCallback, RewardPredictionCallback
    assert [kind().update for kind in kinds] == ["two_steps", "joint", "joint"]


@pytest.mark.parametrize("update", ["two_steps", "joint"])
def test_share_and_cosine_compare_what_both_do_to_the_shared_weights(update):
    model = build(policy_kwargs=HEADS | SGD, learning_rate=0.02)
    watch = WatchSecond()
    task = Pulled(beta=0.5, update=update)
    task.size = 1e-3
    logged = []

    def look(local, _):
        values = local["self"].logger.name_to_value
        if "auxiliary/many_goals_share" in values and not logged:
            logged.extend(values[f"auxiliary/many_goals_{name}"] for name in ("share", "cosine"))
        return True

    model.learn(200, [watch, task, ConvertCallback(look)])
    first = len(watch.weights) - task.n_updates
    shared = [
        n
        for n, (name, _) in enumerate(model.policy.named_parameters())
        if name.startswith("features_extractor")
    ]
    gradient, weights, between = (
        th.cat([found[first][n].flatten() for n in shared])
        for found in (watch.gradients, watch.weights, watch.after)
    )
    ours = 0.5 * 1e-3 * (between if update == "two_steps" else weights)
    cosine = th.cosine_similarity(gradient, ours, dim=0).item()
    # Both steps go against their gradients, so the cosine of steps is that of gradients.
    share = (ours.norm() / gradient.norm()).item()
    assert logged == pytest.approx([share, cosine], rel=1e-3, abs=1e-4)


def test_with_another_learner_a_callback_begins_anew():
    used = ManyGoalsCallback(batch_size=5, seed=0)
    build().learn(200, used)
    episodes = used.episodes
    models = [build().learn(200, one) for one in (used, ManyGoalsCallback(batch_size=5, seed=0))]
    assert used.episodes is not episodes
    for name, value in models[0].policy.state_dict().items():
        assert th.equal(value, models[1].policy.state_dict()[name]), name
    # Episodes that the user gives are kept.
    given = ManyGoalsCallback(batch_size=5, seed=0, episodes=episodes)
    for _ in range(2):
        build().learn(20, given)
    assert given.episodes is episodes


def test_the_state_of_another_update_is_refused():
    callback = ManyGoalsCallback(batch_size=5)
    build().learn(200, callback)
    state = callback.get_checkpoint_state()
    joint = ManyGoalsCallback(batch_size=5, update="joint")
    with pytest.raises(CheckpointError, match="with update='two_steps', not 'joint'"):
        joint.set_checkpoint_state(state)
    # States without an update were written when all updates were joint.
    old = {name: state[name] for name in ("rng", "n_updates", "episodes")}
    joint.set_checkpoint_state(old)
    assert joint.n_updates == callback.n_updates
    with pytest.raises(CheckpointError, match="with update='joint', not 'two_steps'"):
        ManyGoalsCallback().set_checkpoint_state(old)


def test_the_loss_of_many_goals_agrees_with_a_loop():
    model = build(stories(limit=12, lives=True))
    callback = ManyGoalsCallback(
        n_steps=5, batch_size=60, gamma=0.9, step_reward=-0.3, goal_reward=0.2
    )
    model.learn(120, callback)
    policy = model.policy
    episodes = callback.episodes
    loss = callback.loss(policy, episodes, np.random.default_rng(2))
    batch = episodes.sample(12, 5, np.random.default_rng(2))
    assert len(set(batch.lengths)) > 1
    errors = []
    for observations, actions, length in zip(
        batch.observations, batch.actions, batch.lengths, strict=True
    ):
        goal = observations[length]
        for t in range(length):
            pair = th.as_tensor(np.stack([observations[t], observations[t + 1], goal]))[None]
            q = policy.goal_values(pair)[0, 0, actions[t]].item()
            if (observations[t + 1] == goal).all():
                target = 0.2
            else:
                target = -0.3 + 0.9 * policy.goal_values(pair, target=True)[0, 0].max().item()
            errors.append((target - q) ** 2)
    assert loss.item() == pytest.approx(sum(errors) / len(errors), rel=1e-4)


def test_the_target_network_is_updated_at_its_interval(monkeypatch):
    updates = []
    callback = ManyGoalsCallback(batch_size=5, target_update_interval=4)
    monkeypatch.setattr(
        AuxiliaryActorCriticPolicy,
        "update_goal_target",
        lambda policy: updates.append(callback.n_updates),
    )
    build().learn(200, callback)
    assert callback.n_updates > 10
    assert updates == list(range(0, callback.n_updates, 4))


def test_pixel_control_counts_changes_of_the_newest_frame():
    model = build()
    callback = PixelControlCallback(n_steps=2, batch_size=20, gamma=0.0)
    model.learn(120, callback)
    # With all values 0, the errors are the changes themselves.
    with th.no_grad():
        for parameter in model.policy.heads["pixel_control"].parameters():
            parameter.zero_()
    loss = callback.loss(model.policy, callback.episodes, np.random.default_rng(1))
    batch = callback.episodes.sample(10, 2, np.random.default_rng(1))
    newest = batch.observations[:, :, -1, 8:28, 8:28] / 255.0
    changes = np.abs(np.diff(newest, axis=1)).reshape(10, 2, 5, 4, 5, 4).mean(axis=(3, 5))
    assert changes.sum() > 0
    assert loss.item() == pytest.approx(0.5 * (changes**2).sum() / batch.lengths.sum(), rel=1e-4)


@pytest.mark.parametrize("n_stack", [1, 4])
@pytest.mark.parametrize("lives", [False, True])
def test_the_buffer_keeps_what_the_world_showed(lives, n_stack):
    """In every trajectory, the pictures of Story have consecutive numbers."""
    model = build(stories(3, n_stack, limit=12, lives=lives), n_steps=7)
    callback = ManyGoalsCallback(beta=0.0)
    model.learn(500, callback)
    episodes = callback.episodes
    assert episodes.frames.n_stack == n_stack
    assert episodes.observation_space == model.observation_space
    batch = episodes.sample(300, 4, np.random.default_rng(0))
    # These are the newest frames.
    pictures = batch.observations[:, :, -1]
    numbers = pictures[:, :, 0, :2].astype(int)
    columns = (pictures[:, :, 10] == 255).argmax(axis=2)
    for row, (length, rewards) in enumerate(zip(batch.lengths, batch.rewards, strict=True)):
        assert length == 4 or (lives and length < 4) or numbers[row, 0, 1] == 0
        assert (numbers[row, :, 0] == numbers[row, 0, 0]).all()
        for t in range(length):
            assert numbers[row, t + 1, 1] == numbers[row, t, 1] + 1
            move = (-3, 3, 0)[batch.actions[row, t]]
            cell = min(max(columns[row, t] + move, 0), 35)
            assert columns[row, t + 1] == cell
            if cell == 0:
                assert rewards[t] == -1.0
            else:
                assert rewards[t] == float(cell > 18 and move == 3)
        # The time limit does not count as a termination.
        if not lives:
            assert batch.terminated[row] == (columns[row, length] in (0, 35))
    # Terminal observations are those of the episode that ended.
    assert np.isin(columns[np.arange(300), batch.lengths], (0, 35)).any()
    # All lives of a game are one episode.
    games = list(model.ep_info_buffer)
    np.testing.assert_allclose(episodes.returns, sorted(game["r"] for game in games))
    assert episodes.n_transitions == sum(game["l"] for game in games)


def test_without_a_monitor_every_episode_of_the_learner_counts():
    callback = ManyGoalsCallback(beta=0.0)
    dones = []

    def note(local, _):
        dones.append(bool(local["dones"][0]))
        return True

    venv = VecTransposeImage(DummyVecEnv([lambda: gym.wrappers.TimeLimit(Story(), 12)]))
    build(venv).learn(300, [callback, ConvertCallback(note)])
    assert len(callback.episodes) == sum(dones) > 10


class Endless(Story):
    """A Story whose dot stays at an end of its line, without an end of the episode."""

    def step(self, action):
        observation, reward, _, truncated, info = super().step(action)
        self.number %= 200
        return observation, reward, False, truncated, info


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize(
    "callback",
    [
        lambda: ManyGoalsCallback(batch_size=5),
        lambda: PixelControlCallback(n_steps=5, batch_size=5),
        lambda: RewardPredictionCallback(batch_size=4),
    ],
)
def test_a_world_that_never_ends_is_learned_from_in_pieces(callback, n_envs):
    callback = callback()
    model = build(make_vec_env(Endless, n_envs, seed=5)).learn(250 * n_envs, callback)
    assert callback.n_updates == 50 - 19
    assert callback.episodes.returns.shape == (2 * n_envs,)
    batch = callback.episodes.sample(50, 5, np.random.default_rng(0))
    assert (batch.lengths == 5).all()
    assert not batch.terminated.any()
    # The environments were not reset.
    assert not model.ep_info_buffer


def test_training_warns_if_there_is_nothing_to_learn_from():
    def grid():
        return build(make_vec_env(Endless, 1), n_steps=1)

    def uncut(model):
        return EpisodeBuffer(model.observation_space, cut_after=None)

    n_warnings = []

    def count_warnings(local, _):
        n_warnings.append(len(caught))
        return True

    model = grid()
    callback = RewardPredictionCallback(episodes=uncut(model))
    with pytest.warns(UserWarning, match="no episode is complete, and none is cut") as caught:
        model.learn(230, [callback, ConvertCallback(count_warnings)])
    # It warns once, while training goes on.
    assert n_warnings.count(0) == 200
    assert n_warnings[-1] == len(caught) == 1
    what = "RewardPredictionCallback has learned nothing in 95 steps of each environment"
    with pytest.warns(UserWarning, match=f"{what}.* TimeLimit"):
        build(make_vec_env(Endless, 6)).learn(570, RewardPredictionCallback())
    build(make_vec_env(Endless, 6)).learn(570, RewardPredictionCallback(weight=0.0))
    grid().learn(30, RewardPredictionCallback())


def test_training_that_ended_within_a_step_goes_on_from_where_the_world_is():
    callback = ManyGoalsCallback()
    env = gym.wrappers.TimeLimit(Corridor(), 20)
    model = A2C(AuxiliaryActorCriticPolicy, env, seed=0, policy_kwargs={"embedding_dim": 8})
    for stop in range(33, 400, 31):
        ending = ConvertCallback(lambda local, _, stop=stop: local["self"].num_timesteps < stop)
        model.learn(1_000, [callback, ending], reset_num_timesteps=False)
    batch = callback.episodes.sample(400, 1, np.random.default_rng(0))
    here, there = batch.observations.argmax(axis=2).T
    moves = np.array([-1, 1, 0])[batch.actions[:, 0]]
    np.testing.assert_array_equal(there, np.clip(here + moves, 0, 5))


class Paying(gym.Env):
    """Counts its steps. An episode has 50, and the tenth pays."""

    observation_space = spaces.Box(0, 50, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.n_steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.n_steps += 1
        seen = np.array([self.n_steps], np.float32)
        return seen, 100.0 * (self.n_steps == 10), self.n_steps == 50, False, {}


def walks_of(episodes):
    """Return of each kept episode whether it is complete, its return, and what was seen."""
    return [
        (is_complete, score, [np.frombuffer(frame, np.float32)[0] for frame in segment.frames])
        for is_complete, score, _, (segment,) in sorted(episodes._best)
    ]


def test_an_episode_whose_begin_was_not_seen_does_not_have_the_return_of_the_whole():
    model = build(make_vec_env(Paying, 1), {}).learn(40)
    callback = ManyGoalsCallback(beta=0.0)
    model.learn(60, callback, reset_num_timesteps=False)
    assert walks_of(callback.episodes) == [
        (False, 0.0, list(range(40, 51))),
        (True, 100.0, list(range(51))),
    ]


def test_an_evaluation_between_trainings_makes_no_transition():
    callback = ManyGoalsCallback(beta=0.0)
    model = build(make_vec_env(Paying, 1), {}).learn(60, callback)
    evaluate_policy(model, model.get_env(), 1)
    model.learn(100, callback, reset_num_timesteps=False)
    # The evaluation has reset the world, and the first step from there led to 1.
    assert walks_of(callback.episodes) == [
        (False, 100.0, list(range(1, 51))),
        (True, 100.0, list(range(51))),
        (True, 100.0, list(range(51))),
    ]
    # Without an evaluation, the episode that was begun goes on.
    model.learn(50, callback, reset_num_timesteps=False)
    assert walks_of(callback.episodes)[-1] == (True, 100.0, list(range(51)))
    assert len(callback.episodes) == 4


def test_environments_that_sb3_resets_have_not_been_moved():
    callback = ManyGoalsCallback(beta=0.0)
    env = make_vec_env(lambda: gym.wrappers.TimeLimit(Paying(), 60), 1)
    model = build(env, {}).learn(60, callback)
    # SB3 then resets the environments.
    model.set_env(env)
    model.learn(50, callback, reset_num_timesteps=False)
    assert walks_of(callback.episodes) == [(True, 100.0, list(range(51)))] * 2


@pytest.mark.parametrize("n_between", [5, 50])
@pytest.mark.parametrize("evaluated", [False, True])
def test_trainings_without_the_callback_make_no_transitions(n_between, evaluated):
    callback = ManyGoalsCallback(beta=0.0)
    model = build(make_vec_env(Paying, 1), {}).learn(60, callback)
    model.learn(n_between, reset_num_timesteps=False)
    if evaluated:
        evaluate_policy(model, model.get_env(), 1)
    model.learn(100, callback, reset_num_timesteps=False)
    for is_complete, _, seen in walks_of(callback.episodes):
        assert seen == list(range(int(seen[0]), int(seen[-1]) + 1))
        assert is_complete == (seen[0] == 0)


@pytest.mark.parametrize("used", [False, True])
def test_what_was_restored_goes_on_also_in_a_callback_that_was_used(used):
    first = ManyGoalsCallback(beta=0.0)
    model = build(make_vec_env(Paying, 1), {}).learn(10, first)
    state = first.get_checkpoint_state()
    callback = ManyGoalsCallback(beta=0.0)
    if used:
        build(make_vec_env(Paying, 1), {}).learn(20, callback)
    callback.set_checkpoint_state(state)
    model.learn(45, callback, reset_num_timesteps=False)
    assert walks_of(callback.episodes) == [(True, 100.0, list(range(51)))]


def test_the_second_step_does_not_go_uphill_in_the_last_rollout():
    model = build(make_vec_env(Paying, 3), {}, learning_rate=lambda progress: 1e-3 * progress)
    callback = ManyGoalsCallback(batch_size=5)
    model.learn(200, callback)
    assert model.policy.optimizer.param_groups[0]["lr"] < 0.0
    assert {group["lr"] for group in callback._optimizer.param_groups} == {0.0}


@pytest.mark.parametrize("reset", [False, True])
def test_environments_without_a_monitor_may_follow_those_with_one(reset):
    callback = ManyGoalsCallback(beta=0.0)
    model = build(make_vec_env(Paying, 1), {}).learn(60, callback)
    assert callback.episodes.monitored
    model.set_env(DummyVecEnv([Paying]))
    model.learn(120, callback, reset_num_timesteps=reset)
    assert not callback.episodes.monitored
    assert len(callback.episodes) == 3


def test_the_second_step_is_possible_after_a_schedule_that_has_gone_below_0():
    """As SB3's schedules do in the last rollout."""
    model = build(make_vec_env(Paying, 3), {}, learning_rate=lambda progress: 1e-3 * progress)
    model.learn(100, ManyGoalsCallback())
    assert model.policy.optimizer.param_groups[0]["lr"] < 0.0
    callback = ManyGoalsCallback(batch_size=5)
    model.learn(200, callback)
    assert callback.n_updates > 0


def test_moments_of_the_second_step_go_with_the_weights():
    callback = ManyGoalsCallback(batch_size=5)
    model = build(make_vec_env(Paying, 1), {}).learn(80, callback)
    assert callback._optimizer.state
    # As after a transfer of other weights.
    model.policy.optimizer.state.clear()
    before = callback.n_updates
    model.learn(20, callback, reset_num_timesteps=False)
    steps = {int(state["step"]) for state in callback._optimizer.state.values()}
    assert steps == {callback.n_updates - before}


@pytest.mark.parametrize("norm_obs", [False, True])
def test_normalized_stacks_are_kept_whole(norm_obs):
    """The normalization drifts, so normalized stacks do not overlap."""
    callback = RewardPredictionCallback(batch_size=4)
    env = VecNormalize(VecFrameStack(cart_poles(), 4), norm_obs=norm_obs)
    build(env, {"tasks": ["reward_prediction"]}).learn(300, callback)
    assert callback.episodes.frames.n_stack == (1 if norm_obs else 4)


@pytest.mark.parametrize("settings", [{"norm_obs": False}, {"training": False}])
def test_goals_come_again_in_worlds_that_are_normalized(settings):
    callback = ManyGoalsCallback()
    worlds = make_vec_env(lambda: gym.wrappers.TimeLimit(Corridor(), 20), 2)
    build(VecNormalize(worlds, **settings), {}).learn(300, callback)
    assert callback.n_updates > 0
    batch = callback.episodes.sample(200, 5, np.random.default_rng(0))
    goals = batch.observations[:, -1:]
    same_cell = batch.observations.argmax(axis=-1) == goals.argmax(axis=-1)
    same = (batch.observations == goals).all(axis=-1)
    # A goal is also shown before the end of its trajectory.
    assert same[:, :-1].sum() > 50
    assert (same == same_cell).all()


def test_a_normalization_that_drifts_is_refused_where_goals_must_come_again():
    model = build(VecNormalize(make_vec_env(Corridor, 2)), {})
    with pytest.raises(ValueError, match="what VecNormalize makes of an observation drifts"):
        model.learn(100, ManyGoalsCallback())


def test_returns_are_sums_of_rewards_that_do_not_drift():
    """Without a Monitor, the buffer sums what the world paid."""
    worlds = DummyVecEnv([lambda: gym.wrappers.TimeLimit(Paying(), 20)] * 2)
    callback = ManyGoalsCallback()
    build(VecNormalize(worlds, norm_obs=False), {}).learn(800, callback)
    assert callback.episodes.returns.tolist() == [100.0] * 40
    rewards = callback.episodes.sample(500, 20, np.random.default_rng(0)).rewards
    assert 0.0 < rewards.max() <= 10.0


def test_a_monitor_that_stays_silent_is_given_up_for_good(tmp_path):
    """Also by a run that goes on from a checkpoint, and by the next training."""

    class EndsEarly(gym.Wrapper):
        def step(self, action):
            observation, reward, _, truncated, info = self.env.step(action)
            return observation, reward, self.unwrapped.n_steps % 3 == 0, truncated, info

    def train(steps, *more):
        callback = ManyGoalsCallback()
        saving = ExactCheckpointCallback(tmp_path, extras={"task": callback})
        model = build(DummyVecEnv([lambda: EndsEarly(Monitor(Paying()))]), {})
        saving.resume(model)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for number in (steps, *more):
                model.learn(number, [callback, saving], reset_num_timesteps=not model.num_timesteps)
        said = [str(one.message) for one in caught]
        return callback.episodes, sum("without a return of its Monitor" in one for one in said)

    episodes, n_warnings = train(400, 100)
    assert (len(episodes), n_warnings) == (166, 1)
    episodes, n_warnings = train(100)
    assert (len(episodes), n_warnings) == (200, 0)


def test_a_shared_buffer_is_filled_by_one_callback():
    model = build()
    episodes = EpisodeBuffer(model.observation_space, n_stack=4)
    callbacks = [
        ManyGoalsCallback(episodes=episodes, batch_size=5),
        RewardPredictionCallback(episodes=episodes, batch_size=4),
    ]
    model.learn(300, callbacks)
    assert callbacks[0].n_updates == callbacks[1].n_updates > 20
    assert episodes.n_transitions <= 300
    # Any of the callbacks may fill it in another training.
    for callback, steps in ((callbacks[0], 500), (callbacks[1], 700)):
        model.learn(200, callback)
        assert steps - 120 < episodes.n_transitions <= steps


@pytest.mark.parametrize("update", ["two_steps", "joint"])
@pytest.mark.parametrize("optimizer", [th.optim.RMSprop, RMSpropTFLike])
def test_each_step_has_one_update_in_several_trainings_and_after_exceptions(optimizer, update):
    model = build(policy_kwargs=HEADS | {"optimizer_class": optimizer})
    callback = ManyGoalsCallback(batch_size=5, update=update)
    model.learn(200, callback)
    first = callback.n_updates
    with pytest.raises(KeyboardInterrupt):
        model.learn(200, [callback, Stop(100)])
    updates = callback.n_updates
    assert first < updates
    # Trainings without the callback make no auxiliary update.
    model.learn(100)
    assert callback.n_updates == updates
    model.learn(100, ManyGoalsCallback(batch_size=5))
    assert callback.n_updates == updates
    # There are as many as A2C's own.
    model.learn(100, callback, reset_num_timesteps=False)
    assert callback.n_updates == updates + 10
    # After a training, a step of the optimizer is A2C's alone.
    model.policy.optimizer.step()
    assert callback.n_updates == updates + 10


@pytest.mark.parametrize(
    ("model", "callback", "error", "message"),
    [
        (
            None,
            lambda: ManyGoalsCallback(beta=-0.1),
            ValueError,
            r"beta must be a number in \[0, inf\), got -0.1",
        ),
        (
            None,
            lambda: ManyGoalsCallback(n_steps=0),
            ValueError,
            "n_steps must be a whole number, at least 1, got 0",
        ),
        (
            None,
            lambda: ManyGoalsCallback(n_steps=7),
            ValueError,
            "batch_size must be a multiple of n_steps, 7, got 80",
        ),
        (
            None,
            lambda: ManyGoalsCallback(gamma=1.0),
            ValueError,
            r"gamma must be a number in \[0, 1\), got 1.0",
        ),
        (
            None,
            lambda: ManyGoalsCallback(target_update_interval=0),
            ValueError,
            "target_update_interval must be",
        ),
        (
            None,
            lambda: ManyGoalsCallback(goal_reward=-1),
            ValueError,
            "goal_reward must be greater than step_reward, got -1",
        ),
        (
            None,
            lambda: ManyGoalsCallback(update="both"),
            ValueError,
            "update must be 'two_steps' or 'joint', got 'both'",
        ),
        (
            None,
            lambda: RewardPredictionCallback(update=None),
            ValueError,
            "update must be 'two_steps' or 'joint', got None",
        ),
        (
            None,
            lambda: PixelControlCallback(seed="a"),
            ValueError,
            "seed must be a whole number, at least 0, got 'a'",
        ),
        (
            None,
            lambda: PixelControlCallback(gamma=1.1),
            ValueError,
            r"gamma must be a number in \[0, 1\], got 1.1",
        ),
        (
            None,
            lambda: PixelControlCallback(batch_size=9),
            ValueError,
            "batch_size must be a multiple of n_steps, 20, got 9",
        ),
        (
            None,
            lambda: RewardPredictionCallback(batch_size=0.5),
            ValueError,
            "batch_size must be a whole number",
        ),
        (
            lambda: A2C("MlpPolicy", ENV),
            ManyGoalsCallback,
            TypeError,
            "needs an A2C with an Auxiliary.*, got A2C with Actor",
        ),
        (
            lambda: PPO(*BARE),
            ManyGoalsCallback,
            TypeError,
            "got PPO with AuxiliaryActorCriticPolicy",
        ),
        (
            lambda: A2C(*BARE),
            RewardPredictionCallback,
            ValueError,
            "the policy has no head for it: pass policy_kwargs",
        ),
        (
            lambda: A2C(AuxiliaryActorCriticPolicy, numbered_from_one(Corridor())),
            ManyGoalsCallback,
            TypeError,
            r"starts at 0 is needed, got Discrete\(3, start=1\)",
        ),
        (
            build,
            lambda: ManyGoalsCallback(episodes=OTHER),
            ValueError,
            "buffer for Box.*, as the model sees it, got one for",
        ),
        (
            build,
            lambda: EveryNTimesteps(5, ManyGoalsCallback()),
            ValueError,
            "is inside of EveryNTimesteps, and does not see",
        ),
    ],
)
def test_bad_arguments_and_models_are_refused(model, callback, error, message):
    with pytest.raises(error, match=message):
        callback() if model is None else model().learn(10, callback())


def test_a_loss_that_is_not_finite_stops_before_the_step():
    model = build()
    callback = ManyGoalsCallback()
    callback.step_reward = float("inf")
    with pytest.raises(FloatingPointError, match="the loss of update 1"):
        model.learn(1000, callback)
    assert all(th.isfinite(value).all() for value in model.policy.state_dict().values())


def test_episodes_that_are_no_buffer_are_refused():
    with pytest.raises(TypeError, match="episodes must be an EpisodeBuffer, got 5"):
        ManyGoalsCallback(episodes=5)


def test_stacked_pictures_whose_channels_cannot_be_found_are_refused():
    """SB3 takes the first axis of (10, 10, 12) for the channels. The frames are in the last one."""
    policy = {"tasks": ["many_goals"], "embedding_dim": 16}

    def learn(venv):
        with warnings.catch_warnings():
            # SB3 warns of channels that it does not find.
            warnings.simplefilter("ignore")
            model = build(venv, policy)
            model.learn(20, ManyGoalsCallback(batch_size=5))
        return model

    def worlds():
        return make_vec_env("TwoRoomsSwitch-v0", 2)

    with pytest.raises(ValueError, match=r"shape of the stacked pictures, .* does not tell which"):
        learn(VecFrameStack(worlds(), 4))
    first = learn(VecFrameStack(VecTransposeImage(worlds()), 4, channels_order="first"))
    assert first.observation_space.shape[0] == 12
    # Floats of the same shape are no pictures, and have no channels.
    scaled = make_vec_env(lambda: DtypeObservation(gym.make("TwoRoomsSwitch-v0"), np.float32), 2)
    assert learn(VecFrameStack(scaled, 4)).observation_space.shape[-1] == 12
