"""Random actions of an agent that goes in circles."""

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from stable_baselines3.common.env_util import make_vec_env

from sb3_manygoals import GoalBuffer
from sb3_manygoals.many_goals_dqn.circles import Circles
from sb3_manygoals.world import UNKNOWN, ExactStates, WorldModel
from tests.sb3_manygoals.many_goals_dqn.models import make_model, td_model
from tests.sb3_manygoals.test_moved_environments import Masked
from tests.sb3_manygoals.worlds import Corridor, Dusty

N_ENVS = 2
# States of both environments, and which goals are no longer pursued after the actions in them.
step = st.tuples(
    st.lists(st.integers(UNKNOWN, 3), min_size=N_ENVS, max_size=N_ENVS),
    st.lists(st.booleans(), min_size=N_ENVS, max_size=N_ENVS),
)


@given(st.lists(step, max_size=20), st.integers(0, 20))
def test_a_state_closes_a_circle_if_it_was_met_since_the_goal_was_set(steps, saved_at):
    circles = Circles(N_ENVS)
    for now, (states, is_over) in enumerate(steps):
        expected = []
        for env in range(N_ENVS):
            last_end = max((at for at in range(now) if steps[at][1][env]), default=-1)
            met = [steps[at][0][env] for at in range(last_end + 1, now)]
            expected.append(states[env] != UNKNOWN and states[env] in met)
        assert circles.visit(np.array(states)).tolist() == expected
        circles.begin_anew(np.array(is_over))
        if now == saved_at:
            saved = circles.get_checkpoint_state()
            circles = Circles(N_ENVS)
            circles.set_checkpoint_state(saved)


def world_of(outcomes):
    """Return a model of transitions from state 0 by action 0 to these states."""
    states = ExactStates(spaces.Discrete(8), 8)
    states.add(np.arange(8))
    world = WorldModel(states, 1)
    record(world, outcomes)
    return world


def record(world, outcomes):
    """Record transitions from state 0 by action 0 to these states."""
    n = len(outcomes)
    zeros = np.zeros(n, np.int64)
    world.record(zeros, zeros, np.array(outcomes, np.int64), np.zeros(n), np.zeros(n, np.bool_))


def test_nothing_is_certain_once_chance_was_seen_in_a_world_that_is_twice_as_well_known():
    world = world_of([])
    circles = Circles(N_ENVS)
    assert circles.are_certain(world)
    record(world, [1, 1])
    assert circles.are_certain(world)
    record(world, [2])
    # The world is looked at again with four transitions.
    assert circles.are_certain(world)
    saved = circles.get_checkpoint_state()
    circles = Circles(N_ENVS)
    circles.set_checkpoint_state(saved)
    assert circles.are_certain(world)
    record(world, [1])
    assert not circles.are_certain(world)
    saved = circles.get_checkpoint_state()
    circles = Circles(N_ENVS)
    circles.set_checkpoint_state(saved)
    assert not circles.are_certain(world_of([1]))


def test_checkpoints_from_before_chance_was_looked_for_go_on():
    circles = Circles(1)
    assert circles.are_certain(world_of([1]))
    circles.set_checkpoint_state({"acted_in": [np.array([3])]})
    assert not circles.are_certain(world_of([1, 2]))
    assert circles.visit(np.array([3])).all()


class Stays(Corridor):
    """A corridor that keeps the actions taken in it, with whether the episode was new."""

    def __init__(self):
        super().__init__(50)
        self.taken = []
        self.is_new = True

    def reset(self, **kwargs):
        self.is_new = True
        return super().reset(**kwargs)

    def step(self, action):
        self.taken.append((self.is_new, int(action)))
        self.is_new = False
        return super().step(action)


def actions_of(model, env, monkeypatch, n_steps=1_500):
    """Return the actions of an agent whose greedy action is to stay, and which were the first."""
    monkeypatch.setattr(
        model, "predict", lambda seen, **_: (np.full(len(seen["observation"]), 2), None)
    )
    model.learn(n_steps)
    is_new, actions = np.array(env.taken)[20:].T
    return is_new.astype(bool), actions


SETTINGS = {
    "exploration_initial_eps": 1e-9,
    "exploration_final_eps": 1e-9,
    "learning_starts": 20,
    "updates_per_step": 0.01,
    "goal_wrapper_kwargs": {"max_episode_steps": 10, "reset_worlds": True},
}


def test_every_second_action_is_random_where_the_agent_goes_in_circles(monkeypatch):
    env = Stays()
    model = td_model(env, targets={"goal_sampling": "segments"}, **SETTINGS)
    is_new, actions = actions_of(model, env, monkeypatch)
    assert (actions[is_new] == 2).all()
    # A third of random actions is to stay. Few actions lead to a state that is new.
    shares = np.bincount(actions[~is_new], minlength=3) / (~is_new).sum()
    assert 0.1 < shares[0] < 0.2
    assert 0.1 < shares[1] < 0.2


@pytest.mark.parametrize("key", [None, lambda seen: seen.argmax()])
def test_circles_are_left_in_states_for_which_the_goal_buffer_had_no_room(monkeypatch, key):
    env = Stays()
    goal_buffer = GoalBuffer(env.observation_space, 1, state_key=key)
    goals = {**SETTINGS["goal_wrapper_kwargs"], "goal_buffer": goal_buffer}
    settings = {**SETTINGS, "goal_wrapper_kwargs": goals}
    model = td_model(env, targets={"goal_sampling": "segments"}, **settings)
    with pytest.warns(RuntimeWarning, match="full with 1 goals"):
        is_new, actions = actions_of(model, env, monkeypatch)
    assert (actions[is_new] == 2).all()
    assert (actions[~is_new] != 2).mean() > 0.2


def test_an_unknown_state_is_told_by_what_is_seen_of_it():
    circles = Circles(2)
    unknown = np.full(2, UNKNOWN)
    assert not circles.visit(unknown, np.array([[1, 2], [3, 4]])).any()
    assert circles.visit(unknown, np.array([[3, 4], [3, 4]])).tolist() == [False, True]
    saved = circles.get_checkpoint_state()
    circles = Circles(2)
    circles.set_checkpoint_state(saved)
    assert circles.visit(unknown, np.array([[1, 2], [5, 6]])).tolist() == [True, False]


def test_no_action_is_random_without_exploration(monkeypatch):
    env = Stays()
    exploration = {"exploration_initial_eps": 0.0, "exploration_final_eps": 0.0}
    model = td_model(env, targets={"goal_sampling": "segments"}, **{**SETTINGS, **exploration})
    _, actions = actions_of(model, env, monkeypatch)
    assert (actions == 2).all()


def test_no_action_is_random_where_chance_decides_what_follows(monkeypatch):
    class Slips(Stays):
        """At every third step, the agent also goes to the left."""

        def step(self, action):
            after = super().step(action)
            if len(self.taken) % 3 == 0:
                after = super().step(0)
                self.taken.pop()
            return after

    env = Slips()
    model = td_model(env, targets={"goal_sampling": "segments"}, **SETTINGS)
    _, actions = actions_of(model, env, monkeypatch)
    assert (actions[200:] == 2).all()


def test_the_agent_of_the_paper_goes_on_in_circles(monkeypatch):
    env = Stays()
    model = td_model(env, **SETTINGS)
    _, actions = actions_of(model, env, monkeypatch)
    assert (actions == 2).all()


def test_there_are_no_circles_where_nothing_recurs(monkeypatch):
    class StaysInDust(Stays):
        observation_of = Dusty.observation_of

        def __init__(self):
            super().__init__()
            self.observation_space = Dusty(50).observation_space

    env = StaysInDust()
    model = td_model(env, targets={"goal_sampling": "segments"}, **SETTINGS)
    _, actions = actions_of(model, env, monkeypatch)
    assert (actions == 2).all()


def test_random_actions_out_of_circles_are_allowed_ones(monkeypatch):
    # The environment raises an error for actions that are not allowed.
    model = td_model(Masked(6), targets={"goal_sampling": "segments"}, action_masks=True)
    taken = []
    act = model._leave_circles

    def leave(actions, states):
        found = act(actions, states)
        taken.append(bool((found != actions).any()))
        return found

    monkeypatch.setattr(model, "_leave_circles", leave)
    model.learn(300)
    assert any(taken)


@pytest.mark.parametrize("begins", ["learn", "moved", "states have other ids"])
def test_circles_are_forgotten_where_environments_or_states_begin_anew(begins):
    env = make_vec_env(lambda: Corridor(6), 2)
    model = td_model(env, targets={"goal_sampling": "segments"}).learn(60)
    model._circles.visit(np.array([4, 5]))
    if begins == "learn":
        model._setup_learn(60, None)
    elif begins == "states have other ids":
        model._begin_anew_with_states()
    else:
        model.env.reset()
        with pytest.warns(UserWarning, match="a callback has moved"):
            model._begin_anew_if_moved()
    assert not model._circles.visit(np.array([4, 5])).any()


def test_checkpoints_of_earlier_versions_have_no_circles():
    model = make_model().learn(60)
    state = model.get_checkpoint_state()
    del state["circles"]
    other = make_model()
    other._circles.visit(np.array([4]))
    other.set_checkpoint_state(state)
    assert other.num_timesteps == 60
    assert not other._circles.visit(np.array([4])).any()
