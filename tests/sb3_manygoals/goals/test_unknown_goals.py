"""Goals that were never met, that cannot be met, or that are no observations at all."""

import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_manygoals import (
    GoalBuffer,
    GoalBufferWrapper,
    ManyGoalsDQN,
    MasteryCallback,
    TabularAllGoals,
    VecGoalBufferWrapper,
    evaluate_mastery,
)
from sb3_manygoals.goals.spaces import converted
from sb3_manygoals.many_goals_dqn import TDTargets
from tests.sb3_manygoals.many_goals_dqn.models import make_model, td_model
from tests.sb3_manygoals.worlds import NumberedCorridor

MOVES = np.array([(0, 1), (0, -1), (1, 0), (-1, 0)])


@pytest.mark.parametrize(
    ("space", "given", "expected"),
    [
        (spaces.Box(-1, 1, (2,), np.float32), [0.2, -0.0], np.float32([0.2, 0.0])),
        (spaces.Box(-1, 1, (2,), np.float32), [0, True], np.float32([0, 1])),
        (spaces.MultiDiscrete([5, 5]), [[1, 2]], np.int64([[1, 2]])),
        (spaces.MultiBinary(2), [True, False], np.int8([1, 0])),
        (spaces.Box(0, 255, (1,), np.uint8), [255], np.uint8([255])),
        (spaces.Discrete(3), 2, np.int64(2)),
        # These stay as they are, and are refused where they are used.
        (spaces.Box(0, 255, (1,), np.uint8), [256], np.int64([256])),
        (spaces.Box(0, 255, (1,), np.uint8), [1.0], np.float64([1.0])),
        (spaces.Box(-1, 1, (1,), np.float32), [1e300], np.float64([1e300])),
        (spaces.Discrete(3), "2", np.array("2")),
    ],
)
def test_goals_get_the_dtype_of_their_space_if_it_holds_them(space, given, expected):
    found = converted(given, space)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    assert not (found.dtype.kind == "f" and np.signbit(found).any())


def test_a_list_of_dicts_is_no_batch_of_goals():
    view = spaces.Dict({"place": spaces.Discrete(3), "door": spaces.MultiBinary(1)})

    class View(gym.Env):
        observation_space = view
        action_space = spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return {"place": np.int64(0), "door": np.zeros(1, np.int8)}, {}

    goals = [view.sample(), view.sample()]
    with pytest.raises(ValueError, match=r"a dict of \['door', 'place'\].* rows each.* got list"):
        evaluate_mastery(None, SyncVectorEnv([View]), goals)


class Grid(gym.Env):
    """
    Places of a grid of 5 x 5, of which those with numbers below ``last`` are reached.

    :param space: the observation space. None: a MultiDiscrete
    :param at: what is shown at the third step, if it is given
    :param last: the number of rows and columns that are reached
    """

    action_space = spaces.Discrete(4)

    def __init__(self, space=None, at=None, last=3):
        self.observation_space = spaces.MultiDiscrete([5, 5]) if space is None else space
        self.at = at
        self.last = last
        self.taken = 0

    def show(self):
        shown = self.place
        if self.at is not None and self.taken == 3:
            shown = self.at
        return np.asarray(shown, self.observation_space.dtype)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.np_random.integers(self.last, size=2)
        return self.show(), {}

    def step(self, action):
        self.taken += 1
        self.place = np.clip(self.place + MOVES[int(action)], 0, self.last - 1)
        return self.show(), 0.0, False, False, {}


NUMBERS = spaces.Box(0, 4, (2,), np.int64)
FLOATS = spaces.Box(0.0, 4.0, (2,), np.float32)
BITS = spaces.MultiBinary(2)
OUTSIDE = [
    (None, np.array([9, -3]), r"\[9, -3\]: 9 at \(0,\) is not in \[0, 4\]"),
    (NUMBERS, np.array([9, -3]), r"\[9, -3\]: 9 at \(0,\) is not in \[0, 4\]"),
    (
        FLOATS,
        np.array([1.0, 9.0], np.float32),
        r"\[1.0, 9.0\]: 9.0 at \(1,\) is not in \[0.0, 4.0\]",
    ),
    (FLOATS, np.array([1.0, np.nan], np.float32), r"nan at \(1,\) is not in \[0.0, 4.0\]"),
    (BITS, np.array([0, 2], np.int8), r"\[0, 2\]: 2 at \(1,\) is not in \[0, 1\]"),
]


def grids(space):
    last = 2 if space is BITS else 3
    return lambda: Grid(space, last=last)


@pytest.mark.parametrize(("space", "goal", "message"), OUTSIDE)
def test_a_goal_outside_of_the_space_is_refused_wherever_it_comes_in(space, goal, message):
    make = grids(space)
    model = make_model(make()).learn(60)
    vector = VecGoalBufferWrapper(DummyVecEnv([make] * 2), model.goal_buffer)
    worlds = SyncVectorEnv([make] * 2)

    def both():
        around_each = DummyVecEnv([lambda: GoalBufferWrapper(make(), model.goal_buffer)])
        around_each.set_options({"goal": goal})
        around_each.reset()

    ways = [
        lambda: GoalBufferWrapper(make()).reset(options={"goal": goal}),
        lambda: vector.set_options({"goal": goal}),
        lambda: vector.set_options([{}, {"goal": goal}]),
        both,
        lambda: evaluate_mastery(model, worlds, goal[None]),
        lambda: make_model(make()).learn(9, MasteryCallback(worlds, goal[None], 5)),
        lambda: GoalBuffer(make().observation_space, held_out=goal[None]),
        lambda: make_model(
            make(),
            goal_wrapper_kwargs={
                "goal_buffer": GoalBuffer(make().observation_space, 9, goal[None])
            },
        ),
    ]
    for way in ways:
        with pytest.raises(ValueError, match=message):
            way()
    vector.reset()


def test_a_number_that_is_no_state_is_refused():
    env = NumberedCorridor(4)
    with pytest.raises(ValueError, match=r"options\['goal'\] is 9: 9 is not in \[0, 3\]"):
        GoalBufferWrapper(env).reset(options={"goal": np.int64(9)})
    model = make_model(env).learn(30)
    with pytest.raises(ValueError, match=r"goals\[1\] is -1: -1 is not in \[0, 3\]"):
        evaluate_mastery(model, SyncVectorEnv([lambda: NumberedCorridor(4)]), np.array([2, -1]))
    with pytest.raises(ValueError, match=r"desired_goal is 4: 4 is not in \[0, 3\]"):
        model.predict({"observation": np.int64(0), "desired_goal": np.int64(4)})


@pytest.mark.parametrize("space", [None, BITS])
@pytest.mark.parametrize("key", ["observation", "desired_goal"])
@pytest.mark.parametrize("batch", [False, True])
def test_predict_refuses_numbers_of_which_no_one_hot_vector_can_be_made(space, key, batch):
    model = make_model(grids(space)())
    right = np.zeros(2, model.observation_space[key].dtype)
    query = {"observation": right, "desired_goal": right, "achieved_goal": right}
    query[key] = np.array([0, 7], right.dtype)
    if batch:
        query = {name: np.stack([right, values]) for name, values in query.items()}
    which = rf"{key}\[1\]" if batch else key
    with pytest.raises(ValueError, match=rf"{which} is \[0, 7\]: 7 at \(1,\) is not in \[0, "):
        model.predict(query)


def test_so_does_the_policy_of_a_task():
    model = make_model(Grid()).learn(60)
    policy = model.task_policy(lambda seen: (seen == 2).all(axis=1))
    with pytest.raises(
        ValueError, match=r"observation is \[5, 0\]: 5 at \(0,\) is not in \[0, 4\]"
    ):
        policy.predict(np.array([5, 0]))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda make: make_vec_env(make, 1),
        lambda make: GoalBufferWrapper(make()),
    ],
)
@pytest.mark.parametrize("settings", [{}, {"goals_in_replay": True}])
def test_an_environment_that_shows_what_is_not_of_its_space_is_named(wrap, settings):
    model = make_model(wrap(lambda: Grid(at=[1, 5])), **settings)
    place = r"observations\[0\] is \[1, 5\]: 5 at \(1,\)"
    message = rf"environment 0 gave an observation outside of its space, .*: {place}"
    with pytest.raises(ValueError, match=message):
        model.learn(50)


def test_a_box_that_an_environment_oversteps_is_no_fault_and_what_was_met_can_be_a_goal():
    place = np.array([1.0, 7.0], np.float32)
    model = make_model(Grid(FLOATS, at=place)).learn(60)
    env = GoalBufferWrapper(Grid(FLOATS), model.goal_buffer)
    obs, _ = env.reset(options={"goal": place})
    np.testing.assert_array_equal(obs["desired_goal"], place)
    evaluate_mastery(model, SyncVectorEnv([grids(FLOATS)]), place[None], 3)
    nearly = GoalBuffer(FLOATS, held_out=np.array([[4.01, -0.01]], np.float32))
    assert nearly.has_held_out


@pytest.fixture(scope="module")
def taught():
    return make_model(Grid()).learn(100)


def query(goal):
    here = np.array([1, 1])
    return {"observation": here, "achieved_goal": here, "desired_goal": np.array(goal)}


NEAREST = r"The first is \[4, 4\], the nearest known goal has the id \d+ and is \[2, 2\]"


def test_predict_says_once_that_a_goal_is_not_known(taught):
    model = make_model(Grid()).learn(100)
    with pytest.warns(UserWarning, match=rf"1 of 1 goals are not known to the model.*{NEAREST}"):
        model.predict(query([4, 4]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(query([4, 3]))
        taught.predict(query([2, 2]))


def test_a_reset_says_once_that_a_goal_is_not_known(taught):
    for vector in (False, True):
        if vector:
            venv = VecGoalBufferWrapper(DummyVecEnv([Grid] * 2), taught.goal_buffer)
        else:
            venv = DummyVecEnv([lambda: GoalBufferWrapper(Grid(), taught.goal_buffer)])
        venv.set_options({"goal": np.array([4, 4])})
        with pytest.warns(UserWarning, match=r"the goal that was set is not known.*is \[2, 2\]"):
            venv.reset()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            venv.set_options({"goal": np.array([4, 4])})
            venv.reset()
            venv.set_options({"goal": np.array([2, 2])})
            venv.reset()


def test_mastery_says_which_goals_are_not_known(taught):
    worlds = SyncVectorEnv([Grid] * 2)
    with pytest.warns(UserWarning, match=f"1 of 2 goals are not known to the model.*{NEAREST}"):
        evaluate_mastery(taught, worlds, np.array([[0, 0], [4, 4]]), 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluate_mastery(taught, worlds, taught.goal_buffer.observations, 3)


def test_the_callback_says_it_at_the_end_of_training():
    worlds = SyncVectorEnv([Grid] * 2)
    model = make_model(Grid())
    measured = MasteryCallback(worlds, np.array([[0, 0], [4, 4]]), 1_000, 3)
    with pytest.warns(UserWarning, match="1 of 2 goals are not known to the model") as said:
        model.learn(100, measured)
    assert len([one for one in said if "not known" in str(one.message)]) == 1


def test_a_table_says_it_too():
    model = TabularAllGoals("TablePolicy", NumberedCorridor(4, start=0), seed=0)
    model.learn(2)
    assert len(model.goal_buffer) < 4
    with pytest.warns(UserWarning, match="1 of 1 goals are not known to the model"):
        model.predict({"observation": np.int64(0), "desired_goal": np.int64(3)})


def test_held_out_goals_and_those_in_a_replay_memory_are_no_reason_to_warn():
    held_out = GoalBuffer(Grid().observation_space, held_out=np.array([[2, 2], [0, 0]]))
    model = make_model(Grid(), goal_wrapper_kwargs={"goal_buffer": held_out}).learn(300)
    in_replay = td_model(Grid(), goals_in_replay=True).learn(50)
    worlds = SyncVectorEnv([Grid])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for one, goal in ((model, [2, 2]), (in_replay, [4, 4])):
            one.predict(query(goal))
            evaluate_mastery(one, worlds, np.array([goal]), 3)
            GoalBufferWrapper(Grid(), one.goal_buffer, training=False).reset(
                options={"goal": np.array(goal)}
            )


class Steps(Grid):
    """Tenths, computed by adding up in double precision."""

    def __init__(self):
        super().__init__(spaces.Box(0.0, 1.0, (1,), np.float32), last=2)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        gym.Env.reset(self, seed=seed)
        self.cell = int(self.np_random.integers(11))
        return self.show(), {}

    def show(self):
        return np.array([self.cell / 10.0], np.float32)

    def step(self, action):
        self.cell = int(np.clip(self.cell + 2 * int(action) - 1, 0, 10))
        return self.show(), 0.0, False, False, {}


@pytest.mark.parametrize("learner", [make_model, td_model])
def test_held_out_observations_that_none_equals_are_named_at_the_end_of_training(learner):
    # This adds up 0.1, so that some numbers are not what is shown.
    wrong = np.arange(0, 1, 0.1, dtype=np.float32)[:, None]
    right = (np.arange(10) / 10.0).astype(np.float32)[:, None]
    n_wrong = int((wrong != right).sum())
    assert 0 < n_wrong < 10
    goals = GoalBuffer(Steps().observation_space, held_out=wrong)
    model = learner(Steps(), goal_wrapper_kwargs={"goal_buffer": goals}, updates_per_step=0.05)
    with pytest.warns(
        UserWarning,
        match=rf"^{n_wrong} of 10 held-out observations were never met, "
        r"the first is \[0\.\d+\], the nearest .* byte for byte",
    ):
        model.learn(600)
    goals = GoalBuffer(Steps().observation_space, held_out=right[::2])
    model = learner(Steps(), goal_wrapper_kwargs={"goal_buffer": goals}, updates_per_step=0.05)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*held-out")
        model.learn(600)


def test_a_table_names_them_too():
    held_out = GoalBuffer(spaces.Discrete(6), held_out=np.array([0, 5]))
    env = NumberedCorridor(4)
    env.observation_space = spaces.Discrete(6)
    model = TabularAllGoals(
        "TablePolicy", env, goal_wrapper_kwargs={"goal_buffer": held_out}, seed=0
    )
    with pytest.warns(UserWarning, match="1 of 2 held-out observations were never met"):
        model.learn(100)


def test_a_saved_model_warns_again(tmp_path):
    model = make_model(Grid()).learn(60)
    with pytest.warns(UserWarning, match="not known"):
        model.predict(query([4, 4]))
    model.save(tmp_path / "model")
    model.save_world(tmp_path / "world")
    loaded = ManyGoalsDQN.load(tmp_path / "model", Grid())
    loaded.load_world(tmp_path / "world")
    with pytest.warns(UserWarning, match="not known"):
        loaded.predict(query([4, 4]))


def in_a_box():
    """Make a grid of 5 x 5 places, all of which are reached, with floats as observations."""
    return Grid(FLOATS, last=5)


def test_a_single_goal_is_looked_at_whatever_holds_its_numbers():
    model = make_model(in_a_box()).learn(200)
    here = np.zeros(2, np.float32)
    for desired in ([9.0, -3.0], np.array([9.0, -3.0]), np.array([[9, -3]])):
        seen = here[None] if np.ndim(desired) == 2 else here
        with pytest.raises(ValueError, match="desired_goal must be of the observation space"):
            model.predict({"observation": seen, "desired_goal": desired})
    with pytest.warns(UserWarning, match="goals are not known to the model"):
        model.predict({"observation": here, "desired_goal": [2.5, 2.5]})


def test_goals_as_floats_are_those_of_their_whole_numbers():
    class Beyond(Grid):
        def show(self):
            return super().show() + np.uint8(9)

    model = make_model(Beyond(spaces.Box(0, 10, (2,), np.uint8), last=3)).learn(200)
    here = np.array([9, 9], np.uint8)
    # It is outside of its Box, but it was met.
    model.predict({"observation": here, "desired_goal": np.array([9.0, 11.0])})
    with pytest.warns(UserWarning, match="not known to the model"):
        model.predict({"observation": here, "desired_goal": np.array([0.0, 2.0])})


@pytest.mark.parametrize("number", [256, 259, -251])
def test_whole_numbers_that_the_dtype_does_not_hold_are_no_known_goals(number):
    """In uint8, they would be 0, 3 and 5."""
    space = spaces.Box(0, 255, (2,), np.uint8)
    model = make_model(Grid(space, last=5)).learn(200)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Not all goals may be planned.
        policy = model.goal_policy()
    query = {"observation": np.zeros(2, np.int64), "desired_goal": np.array([0, number])}
    for actor in (model, policy):
        with pytest.raises(ValueError, match=f"desired_goal .*{number}"):
            actor.predict(query)
    # All of a batch are looked at where a plan acts.
    batch = {name: part[None].repeat(2, axis=0) for name, part in query.items()}
    with pytest.raises(ValueError, match=f"desired_goal must have numbers that uint8 .*{number}"):
        policy.predict(batch)


def test_numbers_of_states_are_looked_at_also_where_they_are_floats():
    model = make_model(NumberedCorridor(6)).learn(200)
    with pytest.raises(ValueError, match="desired_goal must be of the observation space"):
        model.predict({"observation": np.array(0), "desired_goal": np.array(9.0)})


def test_goals_that_are_often_in_a_replay_memory_do_not_look_alike():
    """A goal is there as often as it was met, and is one goal."""
    make_model(in_a_box(), target_class=TDTargets, target_kwargs={}, goals_in_replay=True).learn(
        200
    )
