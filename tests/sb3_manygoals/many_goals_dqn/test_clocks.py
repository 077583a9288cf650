"""Numbers in observations that go on at every step are found, and others are not."""

from itertools import pairwise

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env

import gym_twoRooms  # noqa: F401 - it registers its worlds
from sb3_manygoals import ManyGoalsDQN, NoEnv, Transitions
from sb3_manygoals.many_goals_dqn.clocks import find_clock, find_endless_clock
from sb3_manygoals.packing import PackedSpace
from sb3_manygoals.world import ExactStates, KeyedStates, WorldModel
from tests.sb3_manygoals.many_goals_dqn.models import make_model

PLACES = spaces.Box(-100.0, 100.0, (3,), np.float32)


class Timed(gym.Env):
    """A walk on a line. The observation has the place, and the share of time that is left."""

    observation_space = spaces.Box(-1.0, 20.0, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def observation(self):
        return np.array([self.place, 1.0 - self.time / 20], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(20))
        self.time = 0
        return self.observation(), {}

    def step(self, action):
        self.place = min(max(self.place + (-1, 1, 0)[int(action)], 0), 19)
        self.time += 1
        return self.observation(), 0.0, False, self.time == 20, {}


def model_of(transitions, states=None):
    """Return a model of a world in which these transitions were met."""
    states = ExactStates(PLACES, 1_000) if states is None else states
    world = WorldModel(states, 2)
    for before, after in transitions:
        ids = states.add(np.array([before, after], np.float32))
        world.record(ids[:1], np.array([0]), ids[1:], np.zeros(1), np.zeros(1, np.bool_))
    return world


def walk(n, step):
    """Return n transitions of a random walk whose last number makes a step each time."""
    rng = np.random.default_rng(0)
    places = np.cumsum(rng.integers(-1, 2, (n + 1, 2)), axis=0)
    rows = np.column_stack([places, step * np.arange(n + 1)])
    return list(pairwise(rows))


@pytest.mark.parametrize("step", [0.25, -0.25])
def test_what_goes_on_at_every_step_is_found(step):
    assert find_clock(model_of(walk(300, step))) == "number 2 of the observations"


def test_what_stands_still_once_or_was_seldom_seen_is_no_clock():
    transitions = walk(300, 0.25)
    assert find_clock(model_of(transitions[:150])) is None
    still = (transitions[-1][1], transitions[-1][1])
    assert find_clock(model_of([*transitions, still])) is None
    assert find_clock(model_of(walk(300, 0.0))) is None


def test_what_stands_still_late_is_no_clock():
    transitions = walk(900, 0.25)
    assert find_clock(model_of(transitions)) == "number 2 of the observations"
    last = transitions[-1][1]
    # The transitions are looked at in the order of their states, some at a time.
    assert find_clock(model_of([*transitions, (last, last)])) is None


@pytest.mark.parametrize(
    ("space", "show", "clock"),
    [
        (spaces.MultiDiscrete([9, 400]), lambda place, time: [place, time], "number 1 of the"),
        (
            spaces.Box(0, 400, (1, 2), np.int64),
            lambda place, time: [[place, time]],
            "(0, 1) of the",
        ),
        (
            PackedSpace(spaces.Dict(a=spaces.Discrete(9), time=spaces.Box(0.0, 400.0, (1,)))),
            lambda place, time: {"a": place, "time": np.float32([time])},
            "number 0 of 'time' in the observations",
        ),
        (
            PackedSpace(spaces.Dict(a=spaces.Discrete(9), time=spaces.Discrete(400))),
            lambda place, time: {"a": place, "time": time},
            "'time' in the observations",
        ),
        (spaces.Box(0, 400, (1,), np.int64), lambda place, time: [time], None),
    ],
)
def test_clocks_are_found_in_all_kinds_of_arrays(space, show, clock):
    states = ExactStates(space, 1_000)
    world = WorldModel(states, 2)
    places = np.random.default_rng(0).integers(9, size=301).tolist()
    shown = [show(place, time) for time, place in enumerate(places)]
    packs = isinstance(space, PackedSpace)
    rows = [space.pack(one) if packs else np.array(one, space.dtype) for one in shown]
    ids = states.add(np.stack(rows))
    no = np.zeros(300)
    world.record(ids[:-1], no.astype(int), ids[1:], no, no.astype(bool))
    found = find_clock(world)
    assert found is None if clock is None else clock in found


def test_a_clock_in_recorded_transitions_is_a_warning():
    world = Timed()
    seen = [world.reset(seed=0)[0]]
    actions = np.random.default_rng(0).integers(3, size=300)
    seen += [world.step(action)[0] for action in actions]
    met = np.array(seen)
    told = Transitions(met[:-1], actions, met[1:])
    model = ManyGoalsDQN("MlpPolicy", NoEnv(world.observation_space, world.action_space), seed=0)
    with pytest.warns(UserWarning, match="number 1 of the observations went on in every"):
        model.learn_from(told, 5)


def test_where_goals_leave_the_clock_out_the_warning_says_nothing_of_goals():
    goals = {"goal": lambda seen: seen[:1], "reached": 0.5}
    with pytest.warns(UserWarning, match="number 1 .* went on .*hardly seen.*remove it") as said:
        make_model(Timed(), goal_wrapper_kwargs=goals).learn(600)
    clock = [str(one.message) for one in said if "went on" in str(one.message)]
    assert len(clock) == 1
    assert "place at one time" not in clock[0]


def test_states_by_a_key_are_not_looked_at():
    states = KeyedStates(PLACES, 1_000, lambda place: place[:2])
    assert find_clock(model_of(walk(300, 0.25), states)) is None


def test_a_clock_that_starts_again_with_each_episode_is_a_warning():
    with pytest.warns(UserWarning, match="number 1 of the observations went on in every .*_key"):
        make_model(Timed()).learn(600)
    # With a key, nothing is to be warned of.
    key = {"state_key": lambda seen: int(seen[0])}
    assert len(make_model(Timed(), goal_wrapper_kwargs=key).learn(600).goal_buffer) == 20


class Endless(Timed):
    """Shows the time in place of the share that is left. No reset sets it back."""

    now = 0
    ends = True

    def observation(self):
        self.now += 1
        return np.array([self.place, self.now / 1000], np.float32)

    def step(self, action):
        *outcome, truncated, info = super().step(action)
        return *outcome, truncated and self.ends, info


@pytest.mark.parametrize("n_envs", [1, 3])
def test_a_clock_that_no_reset_sets_back_is_a_warning_where_states_leave_it_out(n_envs):
    key = {"state_key": lambda seen: int(seen[0])}
    env = make_vec_env(Endless, n_envs)
    with pytest.warns(UserWarning, match="number 1 of the observations went on .* was reset, .*"):
        make_model(env, goal_wrapper_kwargs=key).learn(600 * n_envs)


def test_a_clock_is_not_endless_if_no_reset_was_seen_or_if_no_state_recurs():
    world = Endless()
    world.ends = False
    key = {"state_key": lambda seen: int(seen[0]), "reset_worlds": False}
    model = make_model(world, goal_wrapper_kwargs=key, updates_per_step=0.01).learn(1_000)
    states = model.goal_buffer.states
    assert find_endless_clock(model.replay_buffer, Endless.observation_space, states) is None
    all_parts = {"state_key": lambda seen: (seen * 1000).round()}
    with pytest.warns(UserWarning, match="hardly any state recurs"):
        make_model(Endless(), goal_wrapper_kwargs=all_parts, updates_per_step=0.01).learn(1_100)


def test_pictures_have_no_numbers_that_count():
    world = gym.make("TwoRoomsSwitchSmall-v0")
    model = ManyGoalsDQN("CnnPolicy", world, seed=0, learning_starts=50, updates_per_step=0.01)
    assert find_clock(model.learn(300).world) is None
