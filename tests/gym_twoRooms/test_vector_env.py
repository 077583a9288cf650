import copy
import pickle

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import InvalidAction, ResetNeeded
from gymnasium.vector import AutoresetMode

from gym_twoRooms import TwoRoomsSwitchVectorEnv

IDS = ["TwoRoomsSwitch-v0", "TwoRoomsSwitchSmall-v0"]
N = 5


def assert_same(left, right):
    """Equal results of reset or step, keys and types included."""
    assert len(left) == len(right)
    for a, b in zip(left[:-1], right[:-1], strict=True):
        assert a.dtype == b.dtype
        assert np.array_equal(a, b)
    infos, others = left[-1], right[-1]
    assert infos.keys() == others.keys()
    for key in infos:
        assert infos[key].dtype == others[key].dtype, key
        assert np.array_equal(infos[key], others[key]), key


def pair(env_id, **kwargs):
    native = gym.make_vec(env_id, N, **kwargs)
    assert type(native) is TwoRoomsSwitchVectorEnv
    return native, gym.make_vec(env_id, N, vectorization_mode="sync", **kwargs)


@pytest.mark.parametrize("env_id", IDS)
@pytest.mark.parametrize("kwargs", [{}, {"max_episode_steps": 7}, {"max_episode_steps": 1, "close_probability": 0.3}])
def test_equal_to_the_synchronous_vector_env(env_id, kwargs):
    native, sync = pair(env_id, **kwargs)
    assert native.observation_space == sync.observation_space
    assert native.action_space == sync.action_space
    assert native.single_observation_space == sync.single_observation_space
    assert native.single_action_space == sync.single_action_space
    assert native.metadata == {**sync.metadata, "render_modes": ["rgb_array", "ansi"]}
    assert native.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP

    rng = np.random.default_rng(0)
    resets = {
        0: {"seed": 5},
        200: {},
        330: {"options": {"state": 17}},
        450: {"seed": [3, None, 9, None, 3]},
        460: {"seed": 8, "options": {"state": 200}},
    }
    for time in range(600):
        if time in resets:
            assert_same(native.reset(**resets[time]), sync.reset(**resets[time]))
        actions = rng.integers(5, size=N)
        assert_same(native.step(actions), sync.step(actions))


def test_truncation_in_some_environments_only():
    native, sync = pair(IDS[0], max_episode_steps=4)
    assert_same(native.reset(seed=0), sync.reset(seed=0))
    for _ in range(9):
        assert_same(native.step(np.ones(N, dtype=np.int64)), sync.step(np.ones(N, dtype=np.int64)))
    assert_same(native.reset(), sync.reset())  # in the middle of an episode
    truncations = [native.step(np.zeros(N, dtype=np.int64))[3].all() for _ in range(10)]
    assert truncations == [False, False, False, True, False, False, False, False, True, False]


def test_states_can_be_set_one_by_one():
    env = TwoRoomsSwitchVectorEnv(3, "small")
    states = np.array([4, 0, 219])
    observations, infos = env.reset(options={"state": states})
    assert infos["state"].tolist() == env.states.tolist() == [4, 0, 219]
    assert np.array_equal(observations, env.mdp.observations[states])
    states[0] = 9
    env.states[1] = 9
    infos["state"][2] = 9
    assert env.states.tolist() == [4, 0, 219]


def test_results_belong_to_the_caller():
    env, other = TwoRoomsSwitchVectorEnv(2, max_episode_steps=2), TwoRoomsSwitchVectorEnv(2, max_episode_steps=2)
    results, expected = env.reset(seed=1), other.reset(seed=1)
    for _ in range(6):
        assert_same(results, expected)
        for array in (*results[:-1], *results[-1].values()):
            array[:] = 1
        results, expected = env.step(np.array([0, 3])), other.step(np.array([0, 3]))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_a_copy_goes_on_alike(duplicate):
    env = TwoRoomsSwitchVectorEnv(4, max_episode_steps=50)
    env.reset(seed=2)
    rng = np.random.default_rng(0)
    for _ in range(30):
        env.step(rng.integers(5, size=4))
    other = duplicate(env)
    for _ in range(300):
        actions = rng.integers(5, size=4)
        assert_same(env.step(actions), other.step(actions))


def test_without_a_seed_environments_differ():
    env = TwoRoomsSwitchVectorEnv(8)
    assert len(set(env.reset()[1]["state"].tolist())) > 1


def test_rendering():
    for mode in TwoRoomsSwitchVectorEnv.metadata["render_modes"]:
        native, sync = pair(IDS[1], render_mode=mode, cell_size=9)
        native.reset(seed=0)
        sync.reset(seed=0)
        assert native.render_mode == mode
        assert isinstance(native.render(), tuple)
        assert all(np.array_equal(a, b) for a, b in zip(native.render(), sync.render(), strict=True))
    env = TwoRoomsSwitchVectorEnv(1)
    with pytest.warns(UserWarning, match="without a render mode"):
        assert env.render() is None


def test_a_reset_is_needed_first():
    env = TwoRoomsSwitchVectorEnv(1, render_mode="rgb_array")
    for use in (lambda: env.step(np.zeros(1, dtype=int)), lambda: env.states, env.render):
        with pytest.raises(ResetNeeded, match=r"call reset\(\) first"):
            use()


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ([0], "must be 2 integers"),
        ([[0, 1]], "must be 2 integers"),
        ([0.0, 1.0], "must be 2 integers, got float64"),
        ([0, 5], r"in \[0, 5\), got 0 to 5"),
        ([-1, 0], "got -1 to 0"),
    ],
)
def test_invalid_actions_are_refused(actions, message):
    env = TwoRoomsSwitchVectorEnv(2)
    env.reset(seed=0)
    with pytest.raises(InvalidAction, match=message):
        env.step(np.array(actions))


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"options": {"state": [0, 220]}}, ValueError, r"in \[0, 220\), got 220"),
        ({"options": {"state": [0, 1, 2]}}, ValueError, r"have shape \(2,\), got \(3,\)"),
        ({"options": {"state": [0.0, 1.0]}}, TypeError, "must be an integer"),
        ({"seed": [1, 2, 3]}, ValueError, "one seed for each of the 2 environments, got 3"),
    ],
)
def test_invalid_resets_are_refused(kwargs, error, message):
    with pytest.raises(error, match=message):
        TwoRoomsSwitchVectorEnv(2, "small").reset(**kwargs)


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"num_envs": 0}, ValueError, "num_envs must be at least 1, got 0"),
        ({"num_envs": 2.0}, TypeError, "num_envs must be an integer"),
        ({"num_envs": None}, TypeError, "num_envs must be an integer"),
        ({"num_envs": 1, "max_episode_steps": 0}, ValueError, "max_episode_steps must be at least 1"),
        ({"num_envs": 1, "max_episode_steps": 1.5}, TypeError, "max_episode_steps must be an integer"),
        ({"num_envs": 1, "render_mode": "human"}, ValueError, r"one of \['rgb_array', 'ansi'\], got 'human'"),
        ({"num_envs": 1, "cell_size": 0}, ValueError, "cell_size must be"),
        ({"num_envs": 1, "close_probability": -1}, ValueError, "close_probability must be"),
    ],
)
def test_invalid_arguments_are_refused(kwargs, error, message):
    with pytest.raises(error, match=message):
        TwoRoomsSwitchVectorEnv(**kwargs)


def test_a_large_map_steps_without_a_table_of_pictures():
    native, sync = pair(IDS[0], layout="mansion", max_episode_steps=5)
    mdp = native.mdp
    assert mdp.n_states == 190_800
    assert not mdp.has_table
    assert_same(native.reset(seed=2), sync.reset(seed=2))
    for actions in np.random.default_rng(0).integers(5, size=(12, N)):
        assert_same(native.step(actions), sync.step(actions))
    env = gym.make(IDS[0], layout="mansion")
    observation, info = env.reset(seed=2)
    for action in (0, 1, 2, 3, 4):
        assert env.unwrapped.state_of(observation) == info["state"]
        observation, _, _, _, info = env.step(action)
    assert "observations" not in vars(mdp)
