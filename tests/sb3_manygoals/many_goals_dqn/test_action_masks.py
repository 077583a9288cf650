"""Learning under masks, in a corridor in which forbidden actions are errors."""

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack, VecMonitor

from sb3_manygoals import (
    GoalBuffer,
    GoalBufferWrapper,
    GymnasiumVecEnv,
    VecGoalBufferWrapper,
    evaluate_mastery,
)
from sb3_manygoals.action_masks import read_action_masks
from sb3_manygoals.many_goals_dqn import ManyGoalsReplayBuffer, PlannedTargets, TDTargets
from tests.sb3_manygoals.many_goals_dqn import models
from tests.sb3_manygoals.many_goals_dqn.memories import GOAL_SPACE, kept
from tests.sb3_manygoals.many_goals_dqn.models import PLAIN
from tests.sb3_manygoals.worlds import Corridor


class Strict(Corridor):
    """
    A corridor that forbids to step out of it, and to stay in even cells.

    A mask that is a step too old allows the wrong actions, so it is sure to be noticed.
    """

    def mask(self):
        may_go_right = self.cell < self.length - 1 or self.deadly
        return np.array([self.cell > 0, may_go_right, self.cell % 2 == 1], dtype=np.int8)

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed, options=options)
        return observation, {**info, "action_mask": self.mask()}

    def step(self, action):
        assert self.mask()[action], f"action {action} taken in cell {self.cell}"
        observation, reward, dead, truncated, info = super().step(action)
        mask = np.zeros(3, dtype=np.int8) if dead else self.mask()
        return observation, reward, dead, truncated, {**info, "action_mask": mask}


def make_model(env, **kwargs):
    settings = {"learning_starts": 40, "policy_kwargs": PLAIN, "action_masks": True}
    return models.make_model(env, **{**settings, **kwargs})


def limited():
    return gym.wrappers.TimeLimit(Strict(), 7)


def vector_env(mode):
    return GymnasiumVecEnv(gym.vector.SyncVectorEnv([limited] * 3, autoreset_mode=mode))


def monitored():
    """Return environments that are not truncated at the same time."""
    limits = (5, 7, 8)
    return VecMonitor(
        DummyVecEnv(
            [lambda limit=limit: gym.wrappers.TimeLimit(Strict(), limit) for limit in limits]
        )
    )


def stacked():
    venv = DummyVecEnv([lambda: gym.wrappers.TimeLimit(Strict(image=True), 7)] * 2)
    return VecFrameStack(venv, 2)


def worlds_that_go_on():
    return VecGoalBufferWrapper(DummyVecEnv([limited] * 3), max_episode_steps=5, reset_worlds=False)


def goal_wrapped():
    buffer = GoalBuffer(Strict().observation_space)
    return DummyVecEnv([lambda: GoalBufferWrapper(limited(), buffer, max_episode_steps=5)] * 2)


ENVS = {
    "deadly": lambda: Strict(deadly=True),
    "SubprocVecEnv": lambda: SubprocVecEnv([limited] * 2),
    "VecMonitor": monitored,
    "VecFrameStack": stacked,
    "worlds go on": worlds_that_go_on,
    "goal wrappers inside": goal_wrapped,
    "SAME_STEP": lambda: vector_env(AutoresetMode.SAME_STEP),
    "DISABLED": lambda: vector_env(AutoresetMode.DISABLED),
}


@pytest.mark.parametrize(
    ("name", "target_class"), [*((name, None) for name in ENVS), ("deadly", TDTargets)]
)
def test_forbidden_actions_are_never_taken_and_next_masks_are_those_of_the_next_observations(
    name, target_class
):
    model = make_model(ENVS[name](), target_class=target_class)
    model.learn(250)
    model.learn(60, reset_num_timesteps=False)
    assert isinstance(model.targets, target_class or PlannedTargets)
    memory = model.replay_buffer
    n = memory.size()
    shown = kept(memory)[1].reshape(n, model.n_envs, -1)
    masks = memory.next_action_masks[:n]
    ended = memory.dones[:n].astype(bool)
    if name == "VecFrameStack":
        shown = shown.reshape(n, model.n_envs, 4, 6, -1)[:, :, 0, :, -1]
    cells = shown.argmax(axis=2)
    may_go_right = (cells < 5) | (name == "deadly")
    expected = np.stack([cells > 0, may_go_right, cells % 2 == 1], axis=2)
    assert np.array_equal(masks, expected & ~ended[:, :, None])
    assert ended.any() == (name == "deadly")
    model.env.close()


def test_with_masks_targets_are_not_lowered_by_actions_that_may_be_forbidden():
    model = make_model(ENVS["deadly"](), target_class=TDTargets).learn(100)
    models.moved(model)
    assert model.targets.action_gap == 0.5
    batch = model.targets.sample(32, 16, model.rng)
    with_gap = model.targets.target_values(batch)
    model.targets.action_gap = 0.0
    th.testing.assert_close(model.targets.target_values(batch), with_gap, rtol=0.0, atol=0.0)
    # Where all actions are allowed, targets are lowered.
    free = batch._replace(samples=batch.samples._replace(next_action_mask=None))
    without_masks = model.targets.target_values(free)
    model.targets.action_gap = 0.5
    assert (model.targets.target_values(free) < without_masks).any()


class Lenient(Strict):
    """A corridor that gives masks, but does not insist on them."""

    def step(self, action):
        observation, reward, _, _, info = Corridor.step(self, action)
        return observation, reward, False, False, {**info, "action_mask": self.mask()}


# With a limit of one step, every random step ends an episode.
@pytest.mark.parametrize(("limit", "start"), [(1, None), (50, 3)])
def test_masks_after_the_search_for_a_first_goal_are_those_of_where_it_was_found(limit, start):
    held_out = np.stack([Strict().observation_of(cell) for cell in range(4)])
    venv = DummyVecEnv([lambda: gym.wrappers.TimeLimit(Lenient(start=start), limit)] * 2)
    buffer = GoalBuffer(Strict().observation_space, held_out=held_out)
    wrapped = VecGoalBufferWrapper(venv, buffer)
    for seed in range(5):
        wrapped.seed(seed)
        cells = wrapped.reset()["observation"].argmax(axis=1)
        masks = read_action_masks(wrapped.reset_infos, 3)
        assert np.array_equal(masks, np.stack([cells > 0, cells < 5, cells % 2 == 1], axis=1))


@pytest.mark.parametrize("make_env", [Corridor, lambda: DummyVecEnv([Corridor] * 2)])
def test_an_environment_without_masks_is_refused_before_the_first_step(make_env):
    model = make_model(make_env())
    message = r'action_masks=True needs an environment that gives info\["action_mask"\]'
    with pytest.raises(ValueError, match=message):
        model.learn(10)
    assert model.num_timesteps == 0


def test_a_mask_that_allows_nothing_is_refused_unless_the_environment_has_ended():
    memory = ManyGoalsReplayBuffer(
        4, GOAL_SPACE, spaces.Discrete(3), "cpu", n_envs=2, action_masks=True
    )
    masks = np.array([[0, 1, 1], [0, 0, 0]], dtype=np.int8)
    terminated = [False, True]
    infos = [
        {"achieved_goal_id": env, "env_terminated": terminated[env], "action_mask": masks[env]}
        for env in range(2)
    ]
    obs = {"observation": np.array([1, 2])}
    zeros = np.zeros(2)
    memory.add(obs, obs, zeros, zeros, zeros, infos)
    batch = memory.sample(50)
    assert th.equal(batch.next_action_mask, th.tensor(masks.astype(bool))[batch.next_goal_ids])
    infos[1]["env_terminated"] = False
    with pytest.raises(ValueError, match="the action mask of environment 1 allows nothing"):
        memory.add(obs, obs, zeros, zeros, zeros, infos)


def test_predict_takes_masks():
    # The option action_masks is about learning, so predict takes masks without it.
    model = make_model(Strict(), action_masks=False)
    obs = {"observation": models.CELLS, "desired_goal": models.CELLS[::-1].copy()}
    with th.no_grad():
        q = model.q_net(th.tensor(obs["observation"]), th.tensor(obs["desired_goal"])).numpy()
    free, _ = model.predict(obs, deterministic=True)
    assert np.array_equal(free, q.argmax(axis=1))
    masks = np.ones((6, 3), dtype=bool)
    masks[np.arange(6), free] = False
    second, _ = model.predict(obs, deterministic=True, action_masks=masks)
    assert np.array_equal(second, np.argsort(q, axis=1)[:, 1])
    one = {key: value[0] for key, value in obs.items()}
    action, _ = model.predict(one, deterministic=True, action_masks=masks[0])
    assert action.shape == ()
    assert action == second[0]
    # Random actions are uniform among the two that are left. The limit is 5 standard deviations.
    model.exploration_rate = 1.0
    drawn = np.stack([model.predict(obs, action_masks=masks)[0] for _ in range(400)])
    assert (drawn != free).all()
    assert np.abs((drawn == second).mean(axis=0) - 0.5).max() < 0.125


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        (np.ones((3, 3), bool), "must have 3 entries for each of 2 observations"),
        (np.ones((2, 4), bool), r"got shape \(2, 4\)"),
        (np.ones(3, bool), r"got shape \(1, 3\)"),
        (np.array([[1, 1, 0], [0, 0, 0]]), "of environment 1 allows nothing"),
    ],
)
def test_predict_refuses_masks_that_do_not_fit(masks, message):
    obs = {"observation": models.CELLS[:2], "desired_goal": models.CELLS[2:4]}
    model = make_model(Strict(), action_masks=False)
    with pytest.raises(ValueError, match=message):
        model.predict(obs, deterministic=True, action_masks=masks)


def test_a_masked_model_learns_its_world_and_is_measured_under_masks():
    goals = models.CELLS
    model = make_model(Strict()).learn(1_000)
    # The world raises an error at a forbidden action, also at a random one.
    result = evaluate_mastery(
        model,
        gym.vector.SyncVectorEnv([Strict] * 6),
        goals,
        max_steps=10,
        epsilon=0.2,
        episodes_per_goal=5,
        action_masks=True,
    )
    assert result.rate > 0.9
    without_masks = gym.vector.SyncVectorEnv([Corridor] * 6)
    with pytest.raises(ValueError, match=r'needs infos\["action_mask"\] of shape \(6, 3\)'):
        evaluate_mastery(model, without_masks, goals, max_steps=3, action_masks=True)


def test_a_model_loaded_without_masks_has_a_replay_memory_without_masks(tmp_path):
    model = make_model(Strict()).learn(60)
    model.save_replay_buffer(tmp_path / "memory")
    unmasked = models.reloaded(model, tmp_path, Corridor(), action_masks=False)
    assert unmasked.replay_buffer.next_action_masks is None
    message = r"model with .*'action_masks': True, .*, this one has .*'action_masks': False, "
    with pytest.raises(ValueError, match=message):
        unmasked.load_replay_buffer(tmp_path / "memory")
    unmasked.learn(60)
