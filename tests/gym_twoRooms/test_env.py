"""The scalar env: checkers, states, copies, random numbers, bad input."""

import copy
import pickle
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import InvalidAction, ResetNeeded
from gymnasium.utils.env_checker import check_env
from stable_baselines3.common.env_checker import check_env as sb3_check_env

import gym_twoRooms
from gym_twoRooms import TwoRoomsSwitchEnv

IDS = ["TwoRoomsSwitch-v0", "TwoRoomsSwitchSmall-v0"]


def test_names_and_light_imports():
    assert all(hasattr(gym_twoRooms, name) for name in gym_twoRooms.__all__)
    heavy = "scipy", "torch", "stable_baselines3", "pygame", "matplotlib"
    code = (
        f"import sys, gym_twoRooms; assert not set({heavy}) & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("env_id", IDS)
@pytest.mark.parametrize("render_mode", [None, *TwoRoomsSwitchEnv.metadata["render_modes"]])
@pytest.mark.filterwarnings("error", "ignore:The minimal resolution for an image is 36x36")
def test_gymnasium_and_sb3_have_nothing_to_say(env_id, render_mode):
    env = gym.make(env_id, render_mode=render_mode).unwrapped
    check_env(env, skip_render_check=render_mode is None)
    sb3_check_env(env, skip_render_check=False)


@pytest.mark.parametrize(("env_id", "count"), [(IDS[0], 5728), (IDS[1], 220)])
def test_a_search_finds_all_states_and_they_look_different(env_id, count):
    mdp = gym.make(env_id).unwrapped.mdp
    # The agent slips in each direction or not. In each case the door closes for one of two numbers.
    outcomes = [first + rest for first in (0.0, 0.125, 0.25, 0.375, 0.5) for rest in (0.001, 0.1)]
    known = np.array([0])
    before = 0
    while before < len(known):
        before = len(known)
        states, actions, numbers = (
            grid.ravel() for grid in np.meshgrid(known, np.arange(5), outcomes)
        )
        known = np.union1d(known, mdp.step(states, actions, numbers.take))
    assert known.tolist() == list(range(count)) == list(range(mdp.n_states))
    assert len({picture.tobytes() for picture in mdp.observe(known)}) == count


@pytest.fixture
def env():
    env = TwoRoomsSwitchEnv("small")
    env.reset(seed=3)
    return env


def test_what_reset_and_step_return(env):
    assert env.observation_space == gym.spaces.Box(0, 255, (8, 4, 3), np.uint8)
    assert env.action_space == gym.spaces.Discrete(5)
    observation, info = env.reset()
    assert observation in env.observation_space
    toggles = set()
    for action in np.random.default_rng(0).integers(5, size=300):
        masks = env.action_masks()
        assert (masks.shape, masks.dtype) == ((5,), np.bool_)
        assert np.array_equal(masks, info["action_mask"])
        toggles.add(bool(masks[4]))
        # All arrays belong to the caller.
        masks[:] = False
        info["action_mask"][:] = 7
        observation[:] = 0
        observation, reward, terminated, truncated, info = env.step(action)
        assert (reward, terminated, truncated) == (0.0, False, False)
        assert set(info) == {"state", "action_mask"}
        assert type(info["state"]) is int
        assert env.state == info["state"] == env.state_of(observation)
    assert toggles == {True, False}


def test_pictures_of_states_belong_to_the_caller(env):
    for look in (env.observation_of, env.set_state, env.mdp.observe, env.mdp.render):
        assert env.state_of(look(5)) == 5
        look(5)[:] = 0
    assert env.state_of(env.observation_of(5)) == 5


def test_the_random_numbers_drawn_are_part_of_the_interface(env):
    rng = np.random.default_rng(np.random.PCG64(np.random.SeedSequence(11)))
    _, info = env.reset(seed=11)
    assert info["state"] == int(rng.random() * 220)
    state = info["state"]
    for action in (0, 1, 4, 2, 3) * 20:
        (state,) = env.mdp.step(
            np.array([state]), np.array([action]), lambda rows: rng.random(len(rows))
        ).tolist()
        assert env.step(action)[4]["state"] == state
    env.reset(options={"state": 5})
    env.set_state(6)
    assert env.np_random.random() == rng.random()


def trajectory(env):
    steps = [env.step(action) for action in np.random.default_rng(5).integers(5, size=60)]
    return [
        (observation.tobytes(), truncated, info["state"])
        for observation, _, _, truncated, info in steps
    ]


def again_from_spec(env):
    other = gym.make(EnvSpec.from_json(env.spec.to_json()))
    assert other.spec == env.spec
    other.reset()
    other.unwrapped.np_random = copy.deepcopy(env.unwrapped.np_random)
    other.unwrapped.set_state(env.unwrapped.state)
    return other


@pytest.mark.parametrize(
    "again", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env)), again_from_spec]
)
@pytest.mark.parametrize("layout", ["small", "S.WD..\n.BW#.S\n...#..\n...#.."])
def test_a_copy_goes_on_as_the_original(again, layout):
    env = gym.make(IDS[0], layout=layout, slip_probability=0.9, max_episode_steps=25)
    env.reset(seed=4)
    other = again(env)
    # Tables are shared, not copied.
    assert other.unwrapped.mdp is env.unwrapped.mdp
    assert trajectory(env) == trajectory(other)


NO_ACTIONS = 5, -1, 1.0, None, "up", np.array([0, 1])


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        *(
            (lambda env, a=action: env.step(a), InvalidAction, r"must be an integer in \[0, 5\)")
            for action in NO_ACTIONS
        ),
        (lambda env: env.set_state(220), ValueError, r"must be in \[0, 220\), got 220"),
        (lambda env: env.observation_of(-1), ValueError, "got -1"),
        (lambda env: env.reset(options={"state": 1.0}), TypeError, "must be an integer, got 1.0"),
        (lambda env: env.set_state(True), TypeError, "must be an integer"),
        (lambda env: env.reset(options={"state": [1, 2]}), TypeError, "must be one integer"),
        (
            lambda env: env.reset(options={"goal": 1, "state": 0}),
            ValueError,
            r"Unknown reset options \['goal'\]",
        ),
        (
            lambda _: TwoRoomsSwitchEnv(render_mode="human"),
            ValueError,
            r"None or one of \['rgb_array', 'ansi'\], got 'human'",
        ),
        (
            lambda _: TwoRoomsSwitchEnv(cell_size=0),
            ValueError,
            "cell_size must be an integer of at least 1, got 0",
        ),
        (
            lambda _: TwoRoomsSwitchEnv(cell_size=1.5),
            ValueError,
            "cell_size must be an integer of at least 1, got 1.5",
        ),
    ],
)
def test_bad_input_is_refused(env, use, error, message):
    with pytest.raises(error, match=message):
        use(env)


def test_a_reset_is_needed_first():
    env = TwoRoomsSwitchEnv(render_mode="rgb_array")
    for use in (lambda: env.step(0), lambda: env.state, env.action_masks, env.render):
        with pytest.raises(ResetNeeded, match=r"call reset\(\) first"):
            use()
