"""States, copies, pickles and specs: the same world again."""

import copy
import json
import pickle

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ResetNeeded

from gym_twoRooms import NAMED_LAYOUTS, TwoRoomsSwitchEnv, TwoRoomsSwitchVectorEnv

MAP = "S.WD..\n.BW#.S\n...#..\n...#.."
KWARGS = [{}, {"layout": "small"}, {"layout": MAP, "slip_probability": 1.0, "max_episode_steps": 7}]


def trajectory(env, steps=60):
    found = []
    for action in np.random.default_rng(5).integers(5, size=steps):
        observation, reward, terminated, truncated, info = env.step(action)
        found.append((observation.tobytes(), reward, terminated, truncated, info["state"], info["action_mask"].tolist()))
        if truncated:
            found.append(env.reset()[1]["state"])
    return found


@pytest.fixture(params=KWARGS, ids=["default", "named", "map"])
def env(request):
    env = gym.make("TwoRoomsSwitch-v0", **{"max_episode_steps": 25, **request.param})
    env.reset(seed=4)
    for action in (0, 3, 4):
        env.step(action)
    return env


@pytest.mark.parametrize("again", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))], ids=["deepcopy", "pickle"])
@pytest.mark.parametrize("with_model", [False, True])
def test_a_copy_goes_on_as_the_original(env, again, with_model):
    if with_model:
        _ = env.unwrapped.P
    other = again(env)
    assert other.unwrapped.mdp is env.unwrapped.mdp  # tables are shared, not copied
    before = other.unwrapped.get_state()
    expected = trajectory(env)
    assert other.unwrapped.get_state() == before  # untouched by the original's steps
    assert trajectory(other) == expected


def test_a_copy_may_be_made_before_the_first_reset():
    env = pickle.loads(pickle.dumps(gym.make("TwoRoomsSwitchSmall-v0")))
    with pytest.raises(ResetNeeded):
        env.unwrapped.get_state()
    env.reset(seed=0)


def test_a_spec_that_went_through_json_makes_the_same_world(env):
    text = env.spec.to_json()
    json.loads(text)
    other = gym.make(EnvSpec.from_json(text))
    assert other.spec == env.spec
    assert env.reset(seed=9)[1]["state"] == other.reset(seed=9)[1]["state"]
    assert trajectory(other) == trajectory(env)


@pytest.mark.parametrize("name", sorted(NAMED_LAYOUTS))
def test_every_named_layout_goes_through_json(name):
    spec = EnvSpec.from_json(gym.make("TwoRoomsSwitch-v0", layout=name).spec.to_json())
    assert gym.make(spec).unwrapped.mdp.layout == NAMED_LAYOUTS[name]


def test_get_state_and_set_state():
    env = TwoRoomsSwitchEnv("small")
    with pytest.raises(ResetNeeded, match=r"call reset\(\) first"):
        env.get_state()
    _, info = env.reset(seed=1)
    start = env.get_state()
    assert type(start) is int
    assert start == env.state == info["state"]
    generator = copy.deepcopy(env.np_random)
    first = trajectory(env)
    observation = env.set_state(start)
    assert env.state_of(observation) == env.get_state() == start
    assert np.array_equal(observation, env.observation_of(start))
    env.np_random = generator
    assert trajectory(env) == first


def test_action_masks_are_the_infos_as_bool():
    env = gym.make("TwoRoomsSwitchSmall-v0")
    _, info = env.reset(seed=0)
    toggles = set()
    for action in np.random.default_rng(0).integers(5, size=300):
        masks = env.get_wrapper_attr("action_masks")()
        assert masks.dtype == np.bool_
        assert masks.shape == (5,)
        assert np.array_equal(masks, info["action_mask"])
        toggles.add(bool(masks[4]))
        masks[:] = False  # the caller's own
        info = env.step(action)[4]
    assert toggles == {True, False}
    with pytest.raises(ResetNeeded):
        TwoRoomsSwitchEnv("small").action_masks()


def test_action_masks_of_many_worlds():
    envs = TwoRoomsSwitchVectorEnv(40, "small", max_episode_steps=9)
    with pytest.raises(ResetNeeded):
        envs.action_masks()
    _, infos = envs.reset(seed=0)
    single = TwoRoomsSwitchEnv("small")
    rng = np.random.default_rng(0)
    for _ in range(30):
        masks = envs.action_masks()
        assert masks.dtype == np.bool_
        assert masks.shape == (40, 5)
        assert np.array_equal(masks, infos["action_mask"])
        for state, mask in zip(envs.states.tolist(), masks, strict=True):
            single.set_state(state)
            assert np.array_equal(single.action_masks(), mask)
        *_, infos = envs.step(rng.integers(5, size=40))
    assert masks[:, 4].any()
    assert not masks[:, 4].all()
