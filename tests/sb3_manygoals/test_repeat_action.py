"""A wrapper that holds each action for several steps."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_manygoals import (
    DiscreteActions,
    GoalBuffer,
    GoalBufferWrapper,
    ManyGoalsDQN,
    RepeatAction,
    VecGoalBufferWrapper,
)


class Track(gym.Env):
    """
    Moves by the action on a line, and is paid the place. It ends at 10, and is truncated at -6.

    :param success_at: place at which its info says that the goal is reached
    """

    observation_space = spaces.Box(-100, 100, (1,), np.int64)
    action_space = spaces.Discrete(3, start=-1)

    def __init__(self, success_at=None):
        self.success_at = success_at

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        return np.array([0]), {}

    def step(self, action):
        self.place += int(action)
        info = {"place": self.place}
        if self.success_at is not None:
            info["is_success"] = self.place == self.success_at
        ends = (self.place >= 10, self.place <= -6)
        return np.array([self.place]), float(self.place), *ends, info


def test_an_action_is_held_and_its_rewards_are_added():
    env = RepeatAction(Track(), 3)
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step(1)
    assert observation.tolist() == [3]
    assert reward == 1.0 + 2.0 + 3.0
    assert not terminated
    assert not truncated
    assert info == {"place": 3}


def test_an_episode_that_ends_is_not_stepped_on():
    env = RepeatAction(Track(), 4)
    env.reset(seed=0)
    env.step(1)
    env.step(1)
    observation, reward, terminated, truncated, _ = env.step(1)
    assert (observation.tolist(), reward, terminated, truncated) == ([10], 19.0, True, False)
    env.reset(seed=0)
    env.step(-1)
    observation, reward, terminated, truncated, _ = env.step(-1)
    assert (observation.tolist(), reward, terminated, truncated) == ([-6], -11.0, False, True)


def test_a_goal_that_is_reached_on_the_way_is_not_left():
    env = RepeatAction(Track(success_at=2), 3)
    env.reset(seed=0)
    observation, reward, *_ = env.step(1)
    assert observation.tolist() == [2]
    assert reward == 3.0
    # It goes on from there.
    observation, *_ = env.step(1)
    assert observation.tolist() == [5]


class OneWay(Track):
    """Allows only the action 1 from place 2 on."""

    def step(self, action):
        observation, *outcome, info = super().step(action)
        allowed = [0, 0, 1] if self.place >= 2 else [1, 1, 1]
        return observation, *outcome, {**info, "action_mask": np.array(allowed, np.int8)}


def test_an_action_that_is_not_allowed_any_more_is_not_held():
    env = RepeatAction(OneWay(), 3)
    env.reset(seed=0)
    assert env.step(1)[0].tolist() == [3]
    assert env.step(1)[0].tolist() == [6]
    env.reset(seed=0)
    env.unwrapped.place = 4
    observation, reward, *_, info = env.step(0)
    assert observation.tolist() == [4]
    # It was held for one step.
    assert reward == 4.0
    assert info["action_mask"].tolist() == [0, 0, 1]


class Pushed(gym.Env):
    """Is pushed by forces, some of which its masks allow."""

    observation_space = spaces.Box(0, 99, (1,), np.int64)
    action_space = spaces.Box(-1, 1, (2,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        return np.array([0]), {}

    def step(self, action):
        self.place += 1
        masks = [np.zeros(2, np.int8), (np.zeros(9, np.int8), np.zeros(2, np.int8))]
        info = {"action_mask": masks[self.place % 2]}
        return np.array([self.place]), 0.0, False, False, info


class Listed(OneWay):
    """Gives its masks as tuples."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed, options=options)[0], {"action_mask": (0, 1, 1)}

    def step(self, action):
        *values, info = super().step(action)
        return *values, {"action_mask": tuple(info["action_mask"].tolist())}


def test_masks_may_be_tuples():
    env = RepeatAction(Listed(), 3)
    env.reset(seed=0)
    env.unwrapped.place = 4
    assert env.step(0)[1] == 4.0


class Bits(Pushed):
    """Sets two bits. Its masks have a number for each bit, as many as there are actions."""

    action_space = spaces.MultiBinary(2)

    def step(self, action):
        self.actions = [*getattr(self, "actions", []), tuple(action)]
        return *super().step(action)[:4], {"action_mask": [1, 0]}


def test_masks_for_other_actions_of_the_same_number_are_left_alone():
    env = RepeatAction(DiscreteActions(Bits(), [[0, 0], [1, 0]]), 3)
    env.reset(seed=0)
    observation, *_, info = env.step(1)
    assert observation.tolist() == [3]
    assert "action_mask" not in info


def test_random_steps_of_a_goal_wrapper_leave_masks_for_other_actions_alone():
    def pushed():
        return DiscreteActions.grid(Pushed())

    def bits():
        return DiscreteActions(Bits(), [[0, 0], [1, 0]])

    # Random steps are made while all that was met is held out.
    held_out = np.arange(40)[:, None]
    for offer in (pushed, bits):
        single = offer()
        GoalBufferWrapper(single, GoalBuffer(single.observation_space, held_out=held_out)).reset()
        several = DummyVecEnv([offer])
        goals = GoalBuffer(several.observation_space, held_out=held_out)
        VecGoalBufferWrapper(several, goals).reset()
        assert several.envs[0].unwrapped.place == single.unwrapped.place == 40
    assert set(single.unwrapped.actions) == {(0, 0), (1, 0)}


def test_masks_for_other_actions_are_left_alone():
    env = RepeatAction(DiscreteActions.grid(Pushed()), 3)
    env.reset(seed=0)
    assert env.step(8)[0].tolist() == [3]
    assert env.step(0)[0].tolist() == [6]


class LongBits(BitFlippingEnv):
    """Bits whose episodes go on after success. Steps are counted."""

    n_steps = 0

    def step(self, action):
        self.n_steps += 1
        observation, reward, _, truncated, info = super().step(action)
        info.pop("is_success")
        return observation, reward, False, truncated, info


def test_the_reward_of_a_goal_env_is_that_of_its_last_observation():
    env = RepeatAction(LongBits(n_bits=4, max_steps=100), 2)
    seen, _ = env.reset(seed=0)
    seen, reward, *_ = env.step(1)
    assert env.unwrapped.n_steps == 2
    rewards = env.unwrapped.compute_reward(seen["achieved_goal"], seen["desired_goal"], None)
    assert reward == rewards == -1.0


def test_a_many_goals_dqn_learns_in_it():
    # Each action flips a bit three times.
    env = RepeatAction(BitFlippingEnv(n_bits=4, max_steps=60), 3)
    model = ManyGoalsDQN("MultiInputPolicy", env, seed=0)
    model.learn(500)
    assert len(model.goal_buffer.states) == 16


@pytest.mark.parametrize("given", [0, 2.5, True])
def test_the_number_of_steps_is_checked(given):
    with pytest.raises(ValueError, match="n_repeats must be a whole number, at least 1"):
        RepeatAction(Track(), given)


def test_the_spec_has_the_argument():
    env = RepeatAction(gym.make("CartPole-v1"), 2)
    assert env.spec.additional_wrappers[-1].kwargs == {"n_repeats": 2}
    again = gym.make(env.spec)
    assert again.get_wrapper_attr("n_repeats") == 2
