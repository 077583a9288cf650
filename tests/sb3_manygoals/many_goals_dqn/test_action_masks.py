"""Learning under masks, in a corridor that does not put up with forbidden actions."""

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
    """No way out of the corridor, and no staying in even cells: a mask that is a step too old is sure to be noticed."""

    def mask(self):
        cell, last = self.cell, self.length - 1
        return np.array([cell > 0, cell < last or self.deadly, cell % 2 == 1], dtype=np.int8)

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed, options=options)
        return observation, {**info, "action_mask": self.mask()}

    def step(self, action):
        assert self.mask()[action], f"action {action} taken in cell {self.cell}"
        observation, reward, dead, truncated, info = super().step(action)
        return (
            observation,
            reward,
            dead,
            truncated,
            {**info, "action_mask": 0 * self.mask() if dead else self.mask()},
        )


def make_model(env, target_class=PlannedTargets, **kwargs):
    settings = {
        "learning_starts": 40,
        "policy_kwargs": PLAIN,
        "action_masks": True,
        "target_class": target_class,
    }
    return models.make_model(env, **settings | kwargs)


def limited():
    return gym.wrappers.TimeLimit(Strict(), 7)


def vector_env(mode):
    return GymnasiumVecEnv(gym.vector.SyncVectorEnv([limited] * 3, autoreset_mode=mode))


def goal_wrapped():
    buffer = GoalBuffer(Strict().observation_space)
    return DummyVecEnv([lambda: GoalBufferWrapper(limited(), buffer, max_episode_steps=5)] * 2)


ENVS = {
    "deadly": lambda: Strict(deadly=True),
    "SubprocVecEnv": lambda: SubprocVecEnv([limited] * 2),
    # environments that are not cut short at the same time
    "VecMonitor": lambda: VecMonitor(
        DummyVecEnv([lambda n=n: gym.wrappers.TimeLimit(Strict(), n) for n in (5, 7, 8)])
    ),
    "VecFrameStack": lambda: VecFrameStack(
        DummyVecEnv([lambda: gym.wrappers.TimeLimit(Strict(image=True), 7)] * 2), 2
    ),
    "worlds go on": lambda: VecGoalBufferWrapper(
        DummyVecEnv([limited] * 3), max_episode_steps=5, reset_worlds=False
    ),
    "goal wrappers inside": goal_wrapped,
    "SAME_STEP": lambda: vector_env(AutoresetMode.SAME_STEP),
    "DISABLED": lambda: vector_env(AutoresetMode.DISABLED),
}


@pytest.mark.parametrize(
    ("name", "targets"), [*((name, PlannedTargets) for name in ENVS), ("deadly", TDTargets)]
)
def test_forbidden_actions_are_never_taken_and_next_masks_are_those_of_the_next_observations(
    name, targets
):
    model = make_model(ENVS[name](), targets)
    model.learn(250)
    model.learn(60, reset_num_timesteps=False)
    memory = model.replay_buffer
    n = memory.size()
    shown = kept(memory)[1].reshape(n, model.n_envs, -1)
    masks, ended = memory.next_action_masks[:n], memory.dones[:n].astype(bool)
    if name == "VecFrameStack":
        shown = shown.reshape(n, model.n_envs, 4, 6, -1)[:, :, 0, :, -1]
    cells = shown.argmax(axis=2)
    expected = np.stack([cells > 0, (cells < 5) | (name == "deadly"), cells % 2 == 1], axis=2)
    assert np.array_equal(masks, expected & ~ended[:, :, None])
    assert ended.any() == (name == "deadly")
    model.env.close()


def test_masks_after_the_first_goal_was_looked_for_are_those_of_where_it_was_found():
    class Lenient(Strict):
        def step(self, action):
            observation, reward, _, _, info = Corridor.step(self, action)
            return observation, reward, False, False, {**info, "action_mask": self.mask()}

    space = Strict().observation_space
    held_out = np.stack([Strict().observation_of(cell) for cell in range(4)])
    for limit, start in ((1, None), (50, 3)):  # with the first, every random step ends an episode
        venv = DummyVecEnv(
            [lambda limit=limit, start=start: gym.wrappers.TimeLimit(Lenient(start=start), limit)]
            * 2
        )
        wrapped = VecGoalBufferWrapper(venv, GoalBuffer(space, held_out=held_out))
        for seed in range(5):
            wrapped.seed(seed)
            cells = wrapped.reset()["observation"].argmax(axis=1)
            masks = read_action_masks(wrapped.reset_infos, 3)
            assert np.array_equal(masks, np.stack([cells > 0, cells < 5, cells % 2 == 1], axis=1))


def test_an_environment_without_masks_is_refused_before_the_first_step():
    for env in (Corridor(), DummyVecEnv([Corridor] * 2)):
        model = make_model(env)
        with pytest.raises(
            ValueError,
            match=r'action_masks=True needs an environment that gives info\["action_mask"\]',
        ):
            model.learn(10)
        assert model.num_timesteps == 0


def test_a_mask_that_allows_nothing_is_refused_unless_the_environment_has_ended():
    memory = ManyGoalsReplayBuffer(
        4, GOAL_SPACE, spaces.Discrete(3), "cpu", n_envs=2, action_masks=True
    )
    infos = [
        {
            "achieved_goal_id": 0,
            "env_terminated": False,
            "action_mask": np.array([0, 1, 1], np.int8),
        }
    ] * 2
    obs, zeros = {"observation": np.array([1, 2])}, np.zeros(2)
    infos[1] = {"achieved_goal_id": 1, "env_terminated": True, "action_mask": np.zeros(3, np.int8)}
    memory.add(obs, obs, zeros, zeros, zeros, infos)
    batch = memory.sample(50)
    assert th.equal(
        batch.next_action_mask,
        th.tensor([[False, True, True], [False, False, False]])[batch.next_ids],
    )
    infos[1]["env_terminated"] = False
    with pytest.raises(ValueError, match="the action mask of environment 1 allows nothing"):
        memory.add(obs, obs, zeros, zeros, zeros, infos)


def test_predict_takes_masks():
    model = make_model(Strict(), action_masks=False)  # the option is about learning
    obs = {"observation": models.CELLS, "desired_goal": models.CELLS[::-1]}
    with th.no_grad():
        q = model.q_net(
            th.tensor(obs["observation"]), th.tensor(obs["desired_goal"].copy())
        ).numpy()
    free, _ = model.predict(obs, deterministic=True)
    assert np.array_equal(free, q.argmax(axis=1))
    masks = np.ones((6, 3), dtype=bool)
    masks[np.arange(6), free] = False
    second, _ = model.predict(obs, deterministic=True, action_masks=masks)
    assert np.array_equal(second, np.argsort(q, axis=1)[:, 1])
    one = {key: value[0] for key, value in obs.items()}
    action, _ = model.predict(one, deterministic=True, action_masks=masks[0])
    assert (action.shape, action) == ((), second[0])
    # exploring: uniform among the two that are left
    model.exploration_rate = 1.0
    drawn = np.stack([model.predict(obs, action_masks=masks)[0] for _ in range(400)])
    assert (drawn != free).all()
    assert np.abs((drawn == second).mean(axis=0) - 0.5).max() < 0.125  # 5 standard deviations
    two = {key: value[:2] for key, value in obs.items()}
    for wrong, message in (
        (np.ones((3, 3), bool), "must have 3 entries for each of 2 observations"),
        (np.ones((2, 4), bool), r"got shape \(2, 4\)"),
        (np.ones(3, bool), r"got shape \(1, 3\)"),
        (np.array([[1, 1, 0], [0, 0, 0]]), "of environment 1 allows nothing"),
    ):
        with pytest.raises(ValueError, match=message):
            model.predict(two, deterministic=True, action_masks=wrong)


def test_a_masked_model_learns_its_world_and_is_measured_under_masks():
    goals, envs = models.CELLS, gym.vector.SyncVectorEnv([Strict] * 6)
    model = make_model(Strict()).learn(1_000)
    # the world raises at a forbidden action, the exploring ones included
    result = evaluate_mastery(
        model, envs, goals, max_steps=10, epsilon=0.2, episodes_per_goal=5, action_masks=True
    )
    assert result.rate > 0.9
    with pytest.raises(ValueError, match=r'needs infos\["action_mask"\] of shape \(6, 3\)'):
        evaluate_mastery(
            model, gym.vector.SyncVectorEnv([Corridor] * 6), goals, max_steps=3, action_masks=True
        )


def test_the_option_can_be_changed_when_a_model_is_loaded_and_then_the_memory_is_another(tmp_path):
    model = make_model(Strict()).learn(60)
    model.save_replay_buffer(tmp_path / "memory")
    unmasked = models.reloaded(model, tmp_path, Corridor(), action_masks=False)
    assert unmasked.replay_buffer.next_action_masks is None
    with pytest.raises(
        ValueError,
        match=r"model with .*'action_masks': True, .*, this one has .*'action_masks': False, ",
    ):
        unmasked.load_replay_buffer(tmp_path / "memory")
    unmasked.learn(60)
