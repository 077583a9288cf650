"""Some actions of an environment, offered by their numbers."""

import copy
import re

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env

from sb3_manygoals import DiscreteActions, GoalBufferWrapper, ManyGoalsDQN, evaluate_mastery
from sb3_manygoals.checkpoint.envs import get_env_state, set_env_state
from tests.sb3_manygoals.many_goals_dqn.models import make_model, n_mastered
from tests.sb3_manygoals.worlds import Corridor, numbered_from_one

PUSHES = [[0.0, -1.0], [0.0, 1.0], [-1.0, 0.0], [1.0, 0.0]]


class Told(gym.Env):
    """
    Remembers the last action. Its observation says nothing.

    :param space: the space of actions
    """

    observation_space = spaces.Discrete(2)

    def __init__(self, space):
        self.action_space = space
        self.action = None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.int64(0), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.action = action
        return np.int64(1), 0.0, False, False, {}


class Puck(gym.Env):
    """Moves on a floor of 4 x 4 tiles. Pushes of less than half a tile do not move it."""

    observation_space = spaces.MultiDiscrete([4, 4])
    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.tile = self.np_random.integers(4, size=2)
        return self.tile.copy(), {}

    def step(self, action):
        self.tile = np.clip(self.tile + np.rint(action).astype(np.int64), 0, 3)
        return self.tile.copy(), 0.0, False, False, {}


class Masked(Told):
    """Allows action 11 only, of actions 10 to 13."""

    def __init__(self):
        super().__init__(spaces.Discrete(4, start=10))

    def action_masks(self):
        return np.array([False, True, False, False])

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], {"action_mask": self.action_masks().astype(np.int8)}

    def step(self, action):
        info = {"action_mask": self.action_masks().astype(np.int8)}
        return *super().step(action)[:4], info


def test_masks_are_those_of_the_actions_that_are_offered():
    env = DiscreteActions(Masked(), [13, 11, 10, 12])
    _, info = env.reset(seed=0)
    assert info["action_mask"].tolist() == [0, 1, 0, 0]
    assert env.step(1)[4]["action_mask"].tolist() == [0, 1, 0, 0]
    assert env.unwrapped.action == 11
    few = DiscreteActions(Masked(), [12, 13, 11])
    assert few.reset()[1]["action_mask"].tolist() == [0, 0, 1]
    # As sb3-contrib asks for masks in a VecEnv.
    venv = make_vec_env(lambda: DiscreteActions(Masked(), [12, 11]), 2)
    assert [masks.tolist() for masks in venv.env_method("action_masks")] == [[False, True]] * 2
    # Its agents take no other action.
    model = make_model(GoalBufferWrapper(few), action_masks=True, learning_starts=10)
    taken = []
    model.learn(30, lambda local, _: taken.extend(local["actions"].tolist()) is None)
    assert set(taken) == {2}


def test_masks_that_do_not_fit_the_environments_actions_are_refused():
    class Wrong(Masked):
        def action_masks(self):
            return np.ones(3, np.bool_)

    with pytest.raises(ValueError, match=r"must be of shape \(4,\), .*, got \(3,\)"):
        DiscreteActions(Wrong(), [10, 11, 12]).reset()


def test_a_number_of_actions_is_no_sequence_of_them():
    with pytest.raises(TypeError, match="actions must be a sequence of actions, got 3"):
        DiscreteActions(Told(spaces.Discrete(5)), 3)


def test_without_masks_there_is_no_sign_of_them():
    assert not hasattr(DiscreteActions(Told(spaces.Discrete(3)), [2, 0]), "action_masks")


def told(wrapped):
    """Return what the environment is told by each number."""
    wrapped.reset()
    found = []
    for number in range(wrapped.action_space.n):
        wrapped.step(number)
        found.append(wrapped.unwrapped.action)
    return found


def test_a_number_is_the_action_in_its_place():
    env = DiscreteActions(gym.make("Pendulum-v1"), [[-2.0], [0], [0.5]])
    assert env.action_space == spaces.Discrete(3)
    other = gym.make("Pendulum-v1")
    env.reset(seed=3)
    other.reset(seed=3)
    for number, torque in ((0, -2.0), (2, 0.5), (1, 0.0)):
        observation, reward, *_ = env.step(number)
        expected, expected_reward, *_ = other.step(np.array([torque], np.float32))
        np.testing.assert_array_equal(observation, expected)
        assert reward == expected_reward


@pytest.mark.parametrize(
    ("space", "actions"),
    [
        (spaces.Box(-1.0, 1.0, (2, 1), np.float32), [[[-1.0], [1.0]], [[0.25], [0.0]]]),
        (spaces.Box(0, 255, (2,), np.uint8), [[0, 255], [7, 7]]),
        (spaces.MultiDiscrete([3, 2]), [[2, 1], [0, 0]]),
        (spaces.MultiDiscrete([3, 2], start=[1, 5]), [[3, 6], [1, 5]]),
        (spaces.MultiBinary(3), [[0, 1, 1], [1, 0, 0]]),
        (spaces.Discrete(5, start=-1), [3, -1]),
    ],
)
def test_actions_of_arrays_arrive_with_the_dtype_of_their_space(space, actions):
    for given in (actions, np.array(actions), map(tuple, actions) if space.shape else actions):
        env = DiscreteActions(Told(space), given)
        assert env.actions.dtype == space.dtype
        assert env.actions.shape == (2, *space.shape)
        for arrived, action in zip(told(env), actions, strict=True):
            np.testing.assert_array_equal(arrived, action)


def test_actions_of_other_spaces_are_offered_too():
    space = spaces.Tuple([spaces.Discrete(3), spaces.Box(0.0, 1.0, (1,))])
    actions = [(2, np.ones(1, np.float32)), (0, np.zeros(1, np.float32))]
    assert told(DiscreteActions(Told(space), actions)) == actions


def test_all_actions_of_several_choices_are_those_of_ndindex():
    env = DiscreteActions(Told(spaces.MultiDiscrete([3, 2])), np.ndindex(3, 2))
    assert env.actions.tolist() == [[0, 0], [0, 1], [1, 0], [1, 1], [2, 0], [2, 1]]


def test_an_environment_cannot_change_what_is_offered():
    given = np.zeros((1, 2))
    env = DiscreteActions(Puck(), given)
    env.action(0)[:] = 1.0
    given[:] = 1.0
    assert env.action(0).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("space", "actions", "wrong"),
    [
        (spaces.Box(-2.0, 2.0, (1,)), [[-2.0], [2.5]], "actions[1] = [2.5]"),
        (spaces.Box(-2.0, 2.0, (1,)), [[np.nan]], "actions[0] = [nan]"),
        (spaces.Box(-np.inf, np.inf, (1,)), [[1e300]], "actions[0] = [1e+300]"),
        (spaces.Box(-2.0, 2.0, (1,)), [-2.0, 2.0], "actions[0] = -2.0"),
        (spaces.Box(-2.0, 2.0, (1,)), ["left"], "actions[0] = 'left'"),
        (spaces.Box(-2.0, 2.0, (2,)), [[1.0, [2.0]]], "actions[0] = [1.0, [2.0]]"),
        (spaces.Box(0, 255, (1,), np.uint8), [[0], [-1]], "actions[1] = [-1]"),
        (spaces.MultiDiscrete([3, 2]), [[2, 1], [0, 2]], "actions[1] = [0, 2]"),
        (spaces.MultiDiscrete([3, 2]), [[0.5, 1]], "actions[0] = [0.5, 1]"),
        (spaces.MultiBinary(2), [[0, 3]], "actions[0] = [0, 3]"),
        (spaces.Discrete(3, start=1), range(3), "actions[0] = 0"),
        (spaces.Tuple([spaces.Discrete(3)]), [(1,), (3,)], "actions[1] = (3,)"),
        (spaces.Discrete(3), [], "got none"),
    ],
)
def test_what_is_no_action_is_named(space, actions, wrong):
    with pytest.raises(ValueError, match=rf"actions must .*{re.escape(wrong)}$"):
        DiscreteActions(Told(space), actions)


@pytest.mark.parametrize("number", [-1, 3, 0.5, [0, 1]])
def test_a_number_of_no_action_is_refused(number):
    env = DiscreteActions.grid(gym.make("Pendulum-v1"))
    env.reset()
    with pytest.raises(ValueError, match="action must be one"):
        env.step(number)


def test_a_grid_has_all_combinations():
    nine = DiscreteActions.grid(Puck())
    assert nine.actions.tolist() == [[x, y] for x in (-1, 0, 1) for y in (-1, 0, 1)]
    assert DiscreteActions.grid(Puck(), n_per_axis=2).action_space.n == 4
    uneven = spaces.Box(np.array([0.0, -2.0]), np.array([0.0, 1.0]), dtype=np.float64)
    grid = DiscreteActions.grid(Told(uneven), 4)
    assert grid.actions.tolist() == [[0.0, -2.0], [0.0, -1.0], [0.0, 0.0], [0.0, 1.0]]
    whole = spaces.Box(0, 5, (), np.int8)
    assert DiscreteActions.grid(Told(whole), 3).actions.tolist() == [0, 2, 5]
    assert DiscreteActions.grid(Told(whole), 99).actions.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("space", "n", "error", "message"),
    [
        (spaces.Box(-np.inf, 1.0, (2,)), 3, ValueError, "a grid needs bounds"),
        (spaces.MultiDiscrete([3, 3]), 3, TypeError, "a grid needs a Box action space, got Multi"),
        (spaces.Box(-1.0, 1.0, (9,)), 3, ValueError, "at most 10,000 actions, got 19,683 from n_"),
        (spaces.Box(-1.0, 1.0, (2,)), 1, ValueError, "n_per_axis must be a whole number, at least"),
    ],
)
def test_grids_that_cannot_be_made_are_refused(space, n, error, message):
    with pytest.raises(error, match=message):
        DiscreteActions.grid(Told(space), n)


def test_an_agent_learns_in_an_environment_of_continuous_actions():
    model = make_model(DiscreteActions(Puck(), PUSHES)).learn(800)
    worlds = gym.vector.SyncVectorEnv([lambda: DiscreteActions(Puck(), PUSHES)] * 16)
    tiles = np.indices((4, 4)).reshape(2, -1).T
    assert evaluate_mastery(model, worlds, tiles, max_steps=6).rate == 1.0


def test_it_renumbers_actions_for_each_environment_of_a_vec_env():
    def corridor():
        return numbered_from_one(Corridor(7))

    venv = make_vec_env(
        corridor, 2, wrapper_class=DiscreteActions, wrapper_kwargs={"actions": range(1, 4)}
    )
    assert n_mastered(make_model(venv).learn(600)) == 49


def test_errors_that_refuse_actions_name_the_wrapper():
    named = re.escape("wrap it: DiscreteActions(env, actions)")
    with pytest.raises(TypeError, match=rf"got Box.*{named}$"):
        ManyGoalsDQN("MlpPolicy", "Pendulum-v1")
    worlds = gym.make_vec("Pendulum-v1")
    with pytest.raises(ValueError, match=rf"got Box.*{named}$"):
        evaluate_mastery(None, worlds, np.zeros((1, 3), np.float32))
    shifted = numbered_from_one(Corridor())
    numbers = re.escape("wrap it: DiscreteActions(env, range(1, 4))")
    with pytest.raises(TypeError, match=rf"got Discrete.*{numbers}$"):
        ManyGoalsDQN("MlpPolicy", shifted)
    goals = GoalBufferWrapper(shifted)
    goals.reset()
    with pytest.raises(ValueError, match=numbers):
        goals.step(0)
    # What the message says is enough.
    ManyGoalsDQN("MlpPolicy", DiscreteActions(shifted, range(1, 4)))


def test_it_can_be_copied_made_again_and_saved_in_checkpoints():
    env = DiscreteActions(gym.make("Pendulum-v1"), np.array([[-2.0], [2.0]]))
    again = gym.make(env.spec)
    assert again.action_space == env.action_space
    np.testing.assert_array_equal(again.get_wrapper_attr("actions"), env.actions)
    env.reset(seed=0)
    env.step(1)
    copied = copy.deepcopy(env)
    state = get_env_state(env)
    after, *_ = env.step(0)
    restored = DiscreteActions(gym.make("Pendulum-v1"), np.array([[-2.0], [2.0]]))
    set_env_state(restored, state)
    for other in (copied, restored):
        np.testing.assert_array_equal(other.step(0)[0], after)
