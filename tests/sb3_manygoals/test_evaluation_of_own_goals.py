"""Mastery of goals that are what observations achieve."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from gym_twoRooms import agent_cell
from gym_twoRooms.oracle import mastery_ceiling
from sb3_manygoals import GoalBuffer, ManyGoalsDQN, MasteryCallback, evaluate_mastery
from sb3_manygoals.packing import PackedSpace
from tests.sb3_manygoals.goal_worlds import Room, Sparse
from tests.sb3_manygoals.many_goals_dqn.models import make_model
from tests.sb3_manygoals.worlds import Always, Corridor, Dusty, cell_of, pair_of

PAIRS = spaces.Discrete(3)
SPACE = Dusty().observation_space
KINDS = {
    "pairs": {"goal": pair_of, "goal_space": PAIRS},
    "keys": {"state_key": cell_of},
    "cells at a distance": {"goal": lambda seen: seen[:1], "reached": 1.0},
    "a function": {
        "state_key": cell_of,
        "reached": lambda left, right: left[:, 0] >= right[:, 0],
    },
}
# Walking right from cell 1, the steps to what the cells 0 to 5 achieve, -1 for never.
STEPS = {
    "pairs": [0, 0, 1, 1, 3, 3],
    "keys": [-1, 0, 1, 2, 3, 4],
    "cells at a distance": [0, 0, 0, 1, 2, 3],
    "a function": [0, 0, 1, 2, 3, 4],
}


def dusty(n, mode=AutoresetMode.NEXT_STEP, **kwargs):
    """Return dusty corridors that are stepped together."""
    return SyncVectorEnv([lambda: Dusty(**kwargs)] * n, autoreset_mode=mode)


def goals_of_cells(buffer):
    """Return what each of six cells achieves."""
    return buffer.achieved(np.array([[cell, 0.5] for cell in range(6)], np.float32))


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("kind", KINDS)
def test_outcomes_by_hand(kind, mode):
    buffer = GoalBuffer(SPACE, 10, **KINDS[kind])
    goals = goals_of_cells(buffer)
    for deadly in (False, True):
        # The step off the right end terminates. It leads to the last cell once more.
        env = dusty(4, mode, start=1, deadly=deadly)
        result = evaluate_mastery(Always(1), env, goals, 20, goal_buffer=buffer)
        assert result.steps[:, 0].tolist() == STEPS[kind]
    short = evaluate_mastery(Always(1), dusty(6, mode, start=1), goals, 2, goal_buffer=buffer)
    assert short.steps[:, 0].tolist() == [step if step <= 2 else -1 for step in STEPS[kind]]
    assert len(buffer) == 0
    assert len(buffer.states) == 0


class Marked(Dusty):
    """A dusty corridor whose last observation alone has no dust."""

    def step(self, action):
        seen, reward, dead, truncated, info = super().step(action)
        seen[1] = 0.0 if dead else 0.5
        return seen, reward, dead, truncated, info


@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_goal_reached_by_the_last_step_counts(mode):
    """The observation with which the next episode begins does not show it."""
    buffer = GoalBuffer(Marked().observation_space, 10, goal=lambda seen: seen[1:] == 0.0)
    env = SyncVectorEnv([lambda: Marked(start=3, deadly=True)] * 2, autoreset_mode=mode)
    goals = np.array([[1]], np.int8)
    result = evaluate_mastery(Always(1), env, goals, 9, episodes_per_goal=4, goal_buffer=buffer)
    assert result.steps.tolist() == [[3, 3, 3, 3]]


class Recorder:
    """Stays, and keeps what it was asked."""

    goal_buffer = None

    def __init__(self):
        self.asked = []

    def predict(self, observation, deterministic=False):
        self.asked.append({key: value.copy() for key, value in observation.items()})
        return np.full(len(observation["observation"]), 2), None


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_told_what_is_achieved(kind):
    buffer = GoalBuffer(SPACE, 10, **KINDS[kind])
    goals = goals_of_cells(buffer)
    for model in (Recorder(), Recorder()):
        model.goal_buffer = buffer
        evaluate_mastery(model, dusty(6, start=1), goals, 3)
        assert len(model.asked) == 3
        for asked in model.asked:
            expected = buffer.achieved(asked["observation"])
            np.testing.assert_array_equal(asked["achieved_goal"], expected)
            assert not buffer.is_reached(asked["achieved_goal"], asked["desired_goal"]).any()


def test_the_ceiling_gets_starts_and_goals():
    buffer = GoalBuffer(SPACE, 10, goal=pair_of, goal_space=PAIRS)
    given = []

    def ceiling(starts, goals):
        given.append((starts, goals))
        return np.linspace(0.0, 1.0, len(starts))

    result = evaluate_mastery(
        Always(1),
        dusty(4),
        np.arange(3),
        20,
        episodes_per_goal=5,
        goal_buffer=buffer,
        ceiling=ceiling,
    )
    ((starts, goals),) = given
    assert starts.shape == (15, 2)
    assert starts.dtype == np.float32
    np.testing.assert_array_equal(goals, np.repeat(np.arange(3), 5))
    is_first = starts[:, 0].astype(int) // 2 == goals
    np.testing.assert_array_equal(result.steps.ravel() == 0, is_first)
    np.testing.assert_array_equal(result.ceiling.ravel(), np.linspace(0.0, 1.0, 15))


@pytest.mark.parametrize("kind", ["pairs", "keys", "a function"])
def test_a_models_own_goals_are_measured(kind, tmp_path):
    settings = {"max_episode_steps": 15, "state_key": cell_of, **KINDS[kind]}
    model = make_model(Dusty(), goal_wrapper_kwargs=settings)
    goals = goals_of_cells(model.goal_buffer)
    points = []
    callback = MasteryCallback(
        dusty(6), goals, 1_000, max_steps=12, on_measure=points.append, seed=1
    )
    model.learn(1_500, callback)
    assert [point.step for point in points] == [0, 1_000, 1_500]
    assert points[-1].greedy.rate == 1.0
    result = evaluate_mastery(model, dusty(6), goals, 12, seed=1)
    np.testing.assert_array_equal(result.steps, points[-1].greedy.steps)
    # What was loaded without an environment has the same functions.
    model.save(tmp_path / "model")
    loaded = ManyGoalsDQN.load(tmp_path / "model")
    assert loaded.goal_buffer is None
    again = evaluate_mastery(loaded, dusty(6), goals, 12, seed=1)
    np.testing.assert_array_equal(again.steps, result.steps)


def test_the_argument_comes_before_the_models_goals():
    model = make_model(Dusty(), goal_wrapper_kwargs={"state_key": cell_of})
    model.learn(300)
    exact = GoalBuffer(SPACE, 10)
    goals = np.array([[cell, 0.5] for cell in range(6)], np.float32)
    assert evaluate_mastery(model, dusty(6), goals, 12).rate > 0.5
    # The dust never recurs.
    assert evaluate_mastery(model, dusty(6), goals, 12, goal_buffer=exact).rate == 0.0
    callback = MasteryCallback(dusty(6), goals, 50, max_steps=12, goal_buffer=exact)
    points = []
    callback.on_measure = points.append
    model.learn(10, callback, reset_num_timesteps=False)
    assert [point.greedy.rate for point in points] == [0.0, 0.0]


def test_goals_that_were_never_met_are_warned_of():
    model = make_model(
        Dusty(), goal_wrapper_kwargs={"state_key": cell_of, "goal": lambda seen: seen[:1]}
    )
    model.learn(30)
    with pytest.warns(UserWarning, match="1 of 2 goals are not known to the model"):
        evaluate_mastery(model, dusty(2), np.array([[1.0], [4.5]], np.float32), 5)


def test_the_exact_ceiling_of_two_rooms_is_for_cells_too():
    """A random policy stays below it."""
    env = gym.make_vec("TwoRoomsSwitchSmall-v0", 24, vectorization_mode="vector_entry_point")
    mdp = env.unwrapped.mdp
    buffer = GoalBuffer(env.single_observation_space, 10, goal=agent_cell)
    cells = np.unique(buffer.achieved(mdp.observations), axis=0)
    result = evaluate_mastery(
        Always(0),
        env,
        cells,
        15,
        epsilon=1.0,
        episodes_per_goal=10,
        goal_buffer=buffer,
        ceiling=mastery_ceiling(mdp, 15, agent_cell),
    )
    assert 0.05 < result.rate < result.ceiling.mean() < 1.0
    # Where the best policy cannot be in time, nobody is.
    assert not result.reached[result.ceiling == 0.0].any()
    assert (result.ceiling[result.steps == 0] == 1.0).all()


def test_without_functions_all_is_as_it_was():
    cells = np.eye(6, dtype=np.uint8)
    env = SyncVectorEnv([Corridor] * 5)
    plain = evaluate_mastery(Always(1), env, cells, 20, 0.3, 4, seed=2)
    buffer = GoalBuffer(Corridor().observation_space, 10)
    for goal_buffer in (None, buffer):
        model = Always(1)
        model.goal_buffer = buffer
        again = evaluate_mastery(model, env, cells, 20, 0.3, 4, seed=2, goal_buffer=goal_buffer)
        np.testing.assert_array_equal(again.steps, plain.steps)


@pytest.mark.parametrize(
    ("goals", "goal_buffer", "error", "message"),
    [
        (np.arange(3), "cells", TypeError, "goal_buffer must be a GoalBuffer or None, got 'cells'"),
        (
            np.arange(3),
            GoalBuffer(PAIRS, 10),
            ValueError,
            r"goal_buffer is for observations of Discrete\(3\), env has Box",
        ),
        (
            np.arange(3.0),
            GoalBuffer(SPACE, 10, **KINDS["pairs"]),
            ValueError,
            r"goals must be int64 of shape \(n,\) with n > 0, got float64 of \(3,\)",
        ),
        (
            np.array([0, 3]),
            GoalBuffer(SPACE, 10, **KINDS["pairs"]),
            ValueError,
            r"goals must be of the goal space, goals\[1\] is 3",
        ),
    ],
)
def test_bad_input_is_refused(goals, goal_buffer, error, message):
    with pytest.raises(error, match=message):
        evaluate_mastery(Always(1), dusty(2), goals, goal_buffer=goal_buffer)
    callback = MasteryCallback(dusty(2), goals, 50, goal_buffer=goal_buffer)
    with pytest.raises(error, match=message):
        make_model(Dusty()).learn(10, callback)


class Turner:
    """Turns the wheel of a room until it is where it shall be, then moves the lamp."""

    def predict(self, observation, **_):
        space = PackedSpace(Room().observation_space)
        seen, wanted = (space.unpack(observation[k]) for k in ("observation", "desired_goal"))
        return (seen["wheel"] == wanted["wheel"]).astype(np.int64), None


class Starting(Room):
    """A room in which the lamp is in the first place, and an episode takes five steps."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.wheel = 0
        return self.observation_of(0, 0), {}

    def step(self, action):
        *outcome, _, info = super().step(action)
        return *outcome, self.time == 5, info


@pytest.mark.parametrize("mode", AutoresetMode)
def test_observations_may_be_dicts(mode):
    env = SyncVectorEnv([Starting] * 4, autoreset_mode=mode)
    pairs = [(place, wheel) for place in range(3) for wheel in range(4)]
    seen = [Room().observation_of(*pair) for pair in pairs]
    goals = {key: np.stack([one[key] for one in seen]) for key in seen[0]}
    asked = []

    def ceiling(starts, wanted):
        asked.append((starts, wanted))
        return np.ones(len(starts["wheel"]))

    result = evaluate_mastery(Turner(), env, goals, 9, ceiling=ceiling)
    # The goal that the fifth step reaches is shown by the last observation alone.
    assert result.steps[:, 0].tolist() == [place + wheel for place, wheel in pairs]
    assert max(result.steps) == 5
    ((starts, wanted),) = asked
    assert starts["picture"].shape == (12, 7, 7, 3)
    np.testing.assert_array_equal(wanted["wheel"], goals["wheel"])
    packed = PackedSpace(Room().observation_space).pack(goals)
    again = evaluate_mastery(Turner(), env, packed, 9)
    np.testing.assert_array_equal(again.steps, result.steps)


def test_a_model_of_a_dict_world_is_measured():
    settings = {"learning_starts": 300, "updates_per_step": 1.0}
    model = make_model(Room(), "MultiInputPolicy", **settings)
    worlds = SyncVectorEnv([Room] * 12)
    goals = PackedSpace(Room().observation_space).pack(
        {
            key: np.stack([Room().observation_of(*divmod(n, 4))[key] for n in range(12)])
            for key in ("picture", "wheel")
        }
    )
    points = []
    model.learn(330, MasteryCallback(worlds, goals, 330, 9, on_measure=points.append))
    assert [point.step for point in points] == [0, 330]
    known = model.goal_buffer.observations
    assert evaluate_mastery(model.goal_policy(), worlds, known, 9).rate == 1.0


def test_goal_envs_are_refused_with_a_way_to_measure_them():
    model = make_model(Sparse(), "MultiInputPolicy")
    worlds = SyncVectorEnv([Sparse] * 2)
    goals = np.zeros((1, 1))
    message = r"got GoalEnvs, .* use SB3's evaluate_policy\(model, env\)"
    with pytest.raises(TypeError, match=message):
        evaluate_mastery(model, worlds, goals)
    with pytest.raises(TypeError, match=message):
        model.learn(10, MasteryCallback(worlds, goals, 5))


def test_it_is_said_whose_goals_are_for_other_observations():
    model = make_model(Dusty(), goal_wrapper_kwargs={"state_key": cell_of})
    with pytest.raises(ValueError, match="the model's goal_buffer is for observations of Box"):
        evaluate_mastery(model, SyncVectorEnv([Corridor]), np.eye(6, dtype=np.uint8))
