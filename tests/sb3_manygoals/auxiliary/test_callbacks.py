import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.callbacks import BaseCallback, ConvertCallback, EveryNTimesteps
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecFrameStack,
    VecNormalize,
    VecTransposeImage,
)

from sb3_manygoals import AuxiliaryActorCriticPolicy
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


def n_transitions(episodes):
    return sum(len(segment.actions) for segment in episodes._segments)


ENV = cart_poles()
BARE = AuxiliaryActorCriticPolicy, ENV
OTHER = EpisodeBuffer(spaces.Box(0, 1, (3,), np.float32))


class ManyGoalsOfNoWeight(ManyGoalsCallback):
    """All is computed and added, and all of it is zero."""

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
    plain = A2C(kind, env(), policy_kwargs=dict(optimizer), **SETTINGS).learn(200)
    ours = build(env(), {"tasks": ALL[::2], "embedding_dim": 16} | optimizer).learn(200, callback())
    before, after = (model.policy.state_dict() for model in (plain, ours))
    after = {
        name: value
        for name, value in after.items()
        if not name.startswith(("heads", "goal_target"))
    }
    assert before.keys() == after.keys()
    assert all(th.equal(before[name], after[name]) for name in before)
    states = [model.policy.optimizer.state_dict()["state"] for model in (plain, ours)]
    for number, state in states[0].items():  # the shared layers come first
        assert all(
            th.equal(th.as_tensor(state[name]), th.as_tensor(states[1][number][name]))
            for name in state
        )


class Watch(BaseCallback):
    """Notes the gradient with which the optimizer will step, before the callbacks after this one have added theirs."""

    def _on_training_start(self):
        self.gradients, self.weights = [], []
        self.hook = self.model.policy.optimizer.register_step_pre_hook(lambda *_: self.note())

    def note(self):
        self.gradients.append(
            [None if p.grad is None else p.grad.clone() for p in self.model.policy.parameters()]
        )
        self.weights.append([p.detach().clone() for p in self.model.policy.parameters()])

    def _on_step(self):
        return True


class Planned(ManyGoalsCallback):
    """A loss whose gradient is known: the sum of all weights but those of the actor and the critic."""

    size = 1.0

    def loss(self, policy, episodes, rng):
        return self.size * sum(
            p.sum() for m in (policy.features_extractor, policy.heads) for p in m.parameters()
        )


@pytest.mark.parametrize(("size", "clipped"), [(1e-4, False), (5.0, True)])
def test_one_step_on_the_joint_gradient_each_part_clipped_alone(size, clipped):
    model = build(
        policy_kwargs=HEADS | {"optimizer_class": th.optim.SGD, "optimizer_kwargs": {}},
        learning_rate=0.1,
    )
    task, watch = Planned(beta=0.5, update="joint"), Watch()
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
    step = len(watch.weights) - task.n_updates + 3  # one with auxiliary loss
    both, gradients = (
        zip(watch.weights[step], watch.weights[step + 1], strict=True),
        watch.gradients[step],
    )
    for (name, yes), (old, new), gradient in zip(touched.items(), both, gradients, strict=True):
        if not name.startswith("goal_target"):
            whole = (0.0 if gradient is None else gradient) + (added if yes else 0.0)
            th.testing.assert_close(new, old - 0.1 * whole, rtol=0, atol=5e-7, msg=name)


class Pulled(ManyGoalsCallback):
    """A loss whose gradient is known: half the square of all weights but those of the actor and the critic."""

    size = 1.0

    def loss(self, policy, episodes, rng):
        return self.size * sum(
            p.square().sum() / 2
            for m in (policy.features_extractor, policy.heads)
            for p in m.parameters()
        )


class WatchSecond(Watch):
    """Notes also step size, weights and gradients after A2C's step and after those of the callbacks before this one."""

    def _on_training_start(self):
        super()._on_training_start()
        self.after, self.rates, self.kept = [], [], []
        self.post_hook = self.model.policy.optimizer.register_step_post_hook(
            lambda *_: self.note_after()
        )

    def note_after(self):
        self.after.append([p.detach().clone() for p in self.model.policy.parameters()])
        self.rates.append(self.model.policy.optimizer.param_groups[0]["lr"])
        self.kept.append(
            [None if p.grad is None else p.grad.clone() for p in self.model.policy.parameters()]
        )


SGD = {"optimizer_class": th.optim.SGD, "optimizer_kwargs": {}}


@pytest.mark.parametrize(("size", "clipped"), [(1e-3, False), (5.0, True)])
def test_two_steps_the_second_on_the_gradient_after_the_first(size, clipped):
    model = build(policy_kwargs=HEADS | SGD, learning_rate=lambda left: 0.02 * left)
    task, watch = Pulled(beta=0.5), WatchSecond()
    task.size = size
    model.learn(200, [task, watch])
    names = [name for name, _ in model.policy.named_parameters()]
    touched = [name.startswith(("features_extractor", "heads")) for name in names]
    assert task.n_updates > 10
    for step in (-task.n_updates, -3, -1):
        rate, gradients = watch.rates[step], watch.gradients[step]
        assert rate < 0.02
        between = [
            old if gradient is None else old - rate * gradient
            for old, gradient in zip(watch.weights[step], gradients, strict=True)
        ]
        own = [weight for weight, yes in zip(between, touched, strict=True) if yes]
        length = size * th.cat([weight.flatten() for weight in own]).norm()
        assert clipped == (length > 0.5)
        scale = size * (0.5 / length if clipped else 1.0)
        for name, yes, middle, new in zip(names, touched, between, watch.after[step], strict=True):
            if not name.startswith("goal_target"):
                expected = middle - 0.5 * rate * scale * middle if yes else middle
                th.testing.assert_close(new, expected, rtol=0, atol=2e-7, msg=name)
    for step in range(
        -task.n_updates, 0
    ):  # whoever looks after the step still finds A2C's gradient
        for before, after in zip(watch.gradients[step], watch.kept[step], strict=True):
            assert (before is None) == (after is None)
            assert before is None or th.equal(before, after)


class Printed(A2C):
    """Algorithm 2 as it is printed: A2C's step, then one of another optimizer for each auxiliary task."""

    def train(self):
        super().train()
        for task in self.tasks:
            if len(task.episodes) == 0:
                continue
            if task not in self.optimizers:
                heads = list(self.policy.heads.parameters())
                own = [p for p in self.policy.parameters() if all(p is not head for head in heads)]
                kind, kwargs = self.policy.optimizer_class, self.policy.optimizer_kwargs
                self.optimizers[task] = kind([*own, *heads], lr=1.0, **kwargs)
            optimizer = self.optimizers[task]
            for group in optimizer.param_groups:
                group["lr"] = self.betas[task] * self.lr_schedule(self._current_progress_remaining)
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
def test_many_goals_and_others_take_the_steps_of_algorithm_2(optimizer):
    def learn(kind, betas, **update):
        policy_kwargs = HEADS | optimizer
        model = kind(
            AuxiliaryActorCriticPolicy,
            stories(n_stack=4, limit=12),
            lambda left: 1e-3 * left,
            policy_kwargs=policy_kwargs,
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
        model.tasks, model.optimizers = tasks, {}
        model.betas = dict(zip(tasks, (0.5, 0.3, 0.7), strict=True))
        model.learn(200, tasks)
        assert {task.n_updates for task in tasks} == {tasks[0].n_updates}
        assert tasks[0].n_updates > 10
        return model.policy.state_dict()

    printed = learn(Printed, (0.0, 0.0, 0.0))
    ours = learn(A2C, (0.5, 0.3, 0.7), update="two_steps")
    for name, value in printed.items():
        th.testing.assert_close(ours[name], value, rtol=1e-5, atol=1e-6, msg=name)


def test_each_source_gives_the_default_of_update():
    kinds = ManyGoalsCallback, PixelControlCallback, RewardPredictionCallback
    assert [kind().update for kind in kinds] == ["two_steps", "joint", "joint"]


@pytest.mark.parametrize("update", ["two_steps", "joint"])
def test_share_and_cosine_are_of_what_both_do_to_the_shared_weights(update):
    model = build(policy_kwargs=HEADS | SGD, learning_rate=0.02)
    task, watch, logged = Pulled(beta=0.5, update=update), WatchSecond(), []
    task.size = 1e-3

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
    # Steps go against gradients, both of them.
    share = (ours.norm() / gradient.norm()).item()
    assert logged == pytest.approx([share, cosine], rel=1e-3, abs=1e-4)


def test_another_learner_gets_another_optimizer_for_the_second_step():
    callback = ManyGoalsCallback(batch_size=5, seed=0)
    build().learn(200, callback)
    episodes = callback.episodes
    fresh = ManyGoalsCallback(batch_size=5, seed=0, episodes=episodes)
    fresh.rng = callback.rng
    fresh.n_updates = callback.n_updates
    state = {name: callback.get_checkpoint_state()[name] for name in ("rng", "n_updates")}
    rng = state["rng"].bit_generator.state
    models = []
    for one in (callback, fresh):
        one.rng.bit_generator.state = rng
        one.episodes = EpisodeBuffer(episodes.observation_space, n_stack=4)
        models.append(build().learn(200, one))
    for name, value in models[0].policy.state_dict().items():
        assert th.equal(value, models[1].policy.state_dict()[name]), name


def test_a_state_is_not_gone_on_with_by_another_update():
    model, callback = build(), ManyGoalsCallback(batch_size=5)
    model.learn(200, callback)
    state = callback.get_checkpoint_state()
    joint = ManyGoalsCallback(batch_size=5, update="joint")
    with pytest.raises(CheckpointError, match="with update='two_steps', not 'joint'"):
        joint.set_checkpoint_state(state)
    old = {name: state[name] for name in ("rng", "n_updates", "episodes")}
    joint.set_checkpoint_state(old)  # of before there were two steps
    assert joint.n_updates == callback.n_updates
    with pytest.raises(CheckpointError, match="with update='joint', not 'two_steps'"):
        ManyGoalsCallback().set_checkpoint_state(old)


def test_many_goals_by_loops():
    model = build(stories(limit=12, lives=True))
    callback = ManyGoalsCallback(
        n_steps=5, batch_size=60, gamma=0.9, step_reward=-0.3, goal_reward=0.2
    )
    model.learn(120, callback)
    policy, episodes = model.policy, callback.episodes
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
            reached = (observations[t + 1] == goal).all()
            target = (
                0.2
                if reached
                else -0.3 + 0.9 * policy.goal_values(pair, target=True)[0, 0].max().item()
            )
            errors.append((target - q) ** 2)
    assert loss.item() == pytest.approx(sum(errors) / len(errors), rel=1e-4)


def test_the_target_network_follows_now_and_then(monkeypatch):
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


def test_pixel_control_looks_at_the_newest_frame():
    model = build()
    callback = PixelControlCallback(n_steps=2, batch_size=20, gamma=0.0)
    model.learn(120, callback)
    with th.no_grad():
        for parameter in model.policy.heads["pixel_control"].parameters():
            parameter.zero_()  # all values are 0, so errors are the changes themselves
    loss = callback.loss(model.policy, callback.episodes, np.random.default_rng(1))
    batch = callback.episodes.sample(10, 2, np.random.default_rng(1))
    newest = batch.observations[:, :, -1, 8:28, 8:28] / 255.0
    changes = np.abs(np.diff(newest, axis=1)).reshape(10, 2, 5, 4, 5, 4).mean(axis=(3, 5))
    assert changes.sum() > 0
    assert loss.item() == pytest.approx(0.5 * (changes**2).sum() / batch.lengths.sum(), rel=1e-4)


@pytest.mark.parametrize("n_stack", [1, 4])
@pytest.mark.parametrize("lives", [False, True])
def test_what_is_kept_is_what_the_world_showed(lives, n_stack):
    """Every drawn trajectory is one that Story tells: numbers of its pictures follow each other to the very end."""
    model = build(stories(3, n_stack, limit=12, lives=lives), n_steps=7)
    callback = ManyGoalsCallback(beta=0.0)
    model.learn(500, callback)
    episodes = callback.episodes
    assert (episodes.frames.n_stack, episodes.observation_space) == (
        n_stack,
        model.observation_space,
    )
    batch = episodes.sample(300, 4, np.random.default_rng(0))
    pictures = batch.observations[:, :, -1]  # the newest frames
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
            assert rewards[t] == (1.0 if cell > 18 and move == 3 else -1.0 if cell == 0 else 0.0)
        ended = columns[row, length] in (0, 35)
        if not lives:
            assert batch.terminated[row] == ended  # not by the time limit
    assert np.isin(
        columns[np.arange(300), batch.lengths], (0, 35)
    ).any()  # terminal observations are the true ones
    games = list(model.ep_info_buffer)  # of several lives one episode, ranked by its score
    np.testing.assert_allclose(episodes.returns, sorted(game["r"] for game in games))
    assert n_transitions(episodes) == sum(game["l"] for game in games)


def test_without_a_monitor_every_episode_of_the_learner_counts():
    callback, lengths = ManyGoalsCallback(beta=0.0), []
    venv = VecTransposeImage(DummyVecEnv([lambda: gym.wrappers.TimeLimit(Story(), 12)]))
    build(venv).learn(
        300,
        [
            callback,
            ConvertCallback(lambda local, _: lengths.append(int(local["dones"][0])) is None),
        ],
    )
    assert len(callback.episodes) == sum(lengths) > 10


class Endless(Story):
    """The dot stays at an end of its line."""

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
    assert not model.ep_info_buffer  # nothing was reset


def test_training_says_that_there_is_nothing_to_learn_from():
    def grid():
        return build(make_vec_env(Endless, 1), n_steps=1)

    def uncut(model):
        return EpisodeBuffer(model.observation_space, cut_after=None)

    model, seen = grid(), []
    callback = RewardPredictionCallback(episodes=uncut(model))
    told = ConvertCallback(lambda local, _: seen.append(len(caught)) is None)
    with pytest.warns(UserWarning, match="no episode is complete, and none is cut") as caught:
        model.learn(230, [callback, told])
    assert seen.count(0) == 200  # it is said once, while training goes on
    assert seen[-1] == len(caught) == 1
    what = "RewardPredictionCallback has learned nothing in 95 steps of each environment"
    with pytest.warns(UserWarning, match=f"{what}.* TimeLimit"):
        build(make_vec_env(Endless, 6)).learn(570, RewardPredictionCallback())
    build(make_vec_env(Endless, 6)).learn(570, RewardPredictionCallback(weight=0.0))
    grid().learn(30, RewardPredictionCallback())


def test_training_that_ended_within_a_step_goes_on_from_where_the_world_is():
    env, callback = gym.wrappers.TimeLimit(Corridor(), 20), ManyGoalsCallback()
    model = A2C(AuxiliaryActorCriticPolicy, env, seed=0, policy_kwargs={"embedding_dim": 8})
    for stop in range(33, 400, 31):
        ending = ConvertCallback(lambda local, _, stop=stop: local["self"].num_timesteps < stop)
        model.learn(1_000, [callback, ending], reset_num_timesteps=False)
    batch = callback.episodes.sample(400, 1, np.random.default_rng(0))
    here, there = batch.observations.argmax(axis=2).T
    np.testing.assert_array_equal(
        there, np.clip(here + np.array([-1, 1, 0])[batch.actions[:, 0]], 0, 5)
    )


@pytest.mark.parametrize("norm_obs", [False, True])
def test_normalized_stacks_which_drift_are_kept_whole(norm_obs):
    callback, env = (
        ManyGoalsCallback(batch_size=5),
        VecNormalize(VecFrameStack(cart_poles(), 4), norm_obs=norm_obs),
    )
    build(env, {}).learn(300, callback)
    assert callback.episodes.frames.n_stack == (1 if norm_obs else 4)
    bytes_, callback = (
        make_vec_env(lambda: gym.wrappers.TimeLimit(Corridor(), 20), 2),
        ManyGoalsCallback(),
    )
    build(VecNormalize(bytes_, norm_obs=norm_obs), {}).learn(
        300, callback
    )  # which makes floats of them
    assert callback.n_updates > 0


def test_a_common_buffer_is_filled_once():
    model = build()
    episodes = EpisodeBuffer(model.observation_space, n_stack=4)
    callbacks = [
        ManyGoalsCallback(episodes=episodes, batch_size=5),
        RewardPredictionCallback(episodes=episodes, batch_size=4),
    ]
    model.learn(300, callbacks)
    assert callbacks[0].n_updates == callbacks[1].n_updates > 20
    assert n_transitions(episodes) <= 300
    for callback, steps in (
        (callbacks[0], 500),
        (callbacks[1], 700),
    ):  # another training, another who fills it
        model.learn(200, callback)
        assert steps - 120 < n_transitions(episodes) <= steps


@pytest.mark.parametrize("update", ["two_steps", "joint"])
@pytest.mark.parametrize("optimizer", [th.optim.RMSprop, RMSpropTFLike])
def test_one_update_a_step_in_several_trainings_and_after_exceptions(optimizer, update):
    model, callback = (
        build(policy_kwargs=HEADS | {"optimizer_class": optimizer}),
        ManyGoalsCallback(batch_size=5, update=update),
    )
    model.learn(200, callback)
    first = callback.n_updates
    with pytest.raises(KeyboardInterrupt):
        model.learn(200, [callback, Stop(100)])
    updates = callback.n_updates
    assert first < updates
    model.learn(100)  # without it
    assert callback.n_updates == updates
    model.learn(100, ManyGoalsCallback(batch_size=5))
    assert callback.n_updates == updates
    model.learn(100, callback, reset_num_timesteps=False)
    assert callback.n_updates == updates + 10  # as many as A2C's own
    assert not model.policy.optimizer._optimizer_step_pre_hooks
    assert not model.policy.optimizer._optimizer_step_post_hooks


@pytest.mark.parametrize(
    ("model", "callback", "error", "message"),
    [
        (
            None,
            lambda: ManyGoalsCallback(beta=-0.1),
            ValueError,
            r"the weight must be a number in \[0, inf\), got -0.1",
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
def test_bad_arguments_and_models_that_do_not_fit(model, callback, error, message):
    with pytest.raises(error, match=message):
        callback() if model is None else model().learn(10, callback())


def test_a_loss_that_is_not_finite_stops_before_the_step():
    model, callback = build(), ManyGoalsCallback()
    callback.step_reward = float("inf")
    with pytest.raises(FloatingPointError, match="the loss of update 1"):
        model.learn(1000, callback)
    assert all(th.isfinite(value).all() for value in model.policy.state_dict().values())
