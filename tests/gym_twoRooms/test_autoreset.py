"""The native vector env against SyncVectorEnv of the scalar env: autoreset modes, masked resets, states that are set."""

import copy
import json

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_twoRooms import TwoRoomsSwitchEnv, TwoRoomsSwitchVectorEnv

ID = "TwoRoomsSwitchSmall-v0"
MAPS = [
    "paper",
    "small",
    "SW.\n#D#\n.WS",
    "......\n.B.W..\n......\n..W...\n....#.",
    "S.D.S\n..#..",
    "..W\n...",
    "SW.\n#D#\nT.S\n.W.\n#E#\n.WT",
    "......\n.BB.W.\n......\n......",
]
MODES = list(AutoresetMode)


def assert_same(native, sync):
    """Equal to the last bit, type, shape and key, through nested infos and arrays of objects."""
    assert type(native) is type(sync)
    if isinstance(native, dict):
        assert native.keys() == sync.keys()
        for key in native:
            assert_same(native[key], sync[key])
    elif isinstance(native, tuple):
        assert len(native) == len(sync)
        for ours, theirs in zip(native, sync, strict=True):
            assert_same(ours, theirs)
    elif isinstance(native, np.ndarray):
        assert (native.dtype, native.shape) == (sync.dtype, sync.shape)
        if native.dtype == object:
            assert_same(tuple(native), tuple(sync))
        else:
            np.testing.assert_array_equal(native, sync, strict=True)
    else:
        assert native is sync is None


def make_pair(layout, mode, limit, n, probabilities=(0.5, 0.01)):
    def scalar():
        env = TwoRoomsSwitchEnv(layout, *probabilities)
        return env if limit is None else TimeLimit(env, limit)

    native = TwoRoomsSwitchVectorEnv(n, layout, *probabilities, max_episode_steps=limit, autoreset_mode=mode)
    return native, SyncVectorEnv([scalar] * n, autoreset_mode=mode)


def reset_both(pair, seed, options):
    native, sync = pair
    ours = native.reset(seed=seed, options=options)
    assert_same(ours, sync.reset(seed=seed, options=copy.copy(options)))  # it takes the mask out of its options


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_step_for_step_equal_to_the_synchronous_vector_env(data):
    n = data.draw(st.integers(1, 4), label="n")
    mode = data.draw(st.sampled_from(MODES), label="mode")
    limit = data.draw(st.sampled_from([None, 1, 2, 3, 7]), label="limit")
    probabilities = data.draw(st.sampled_from([(0.5, 0.01), (1.0, 0.4), (0.0, 0.0)]), label="probabilities")
    native, sync = pair = make_pair(data.draw(st.sampled_from(MAPS), label="map"), mode, limit, n, probabilities)
    assert native.metadata == {**sync.metadata, "render_modes": ["rgb_array", "ansi"]}

    numbers = st.integers(0, native.mdp.n_states - 1)
    seeds = st.one_of(st.none(), st.integers(0, 99), st.lists(st.none() | st.integers(0, 99), min_size=n, max_size=n))
    masks = st.lists(st.booleans(), min_size=n, max_size=n).filter(any).map(np.array)
    rng = np.random.default_rng(data.draw(st.integers(0, 99), label="actions"))
    reset_both(pair, data.draw(st.integers(0, 99), label="seed"), None)
    ended = np.zeros(n, dtype=bool)
    for _ in range(data.draw(st.integers(1, 8), label="rounds")):
        choice = data.draw(st.sampled_from(["steps", "reset", "masked reset", "set_state"]), label="choice")
        if choice == "steps":
            for _ in range(data.draw(st.integers(1, 9), label="steps")):
                if mode is AutoresetMode.DISABLED and ended.any():
                    reset_both(pair, None, {"reset_mask": ended | (rng.random(n) < 0.3)})
                actions = rng.integers(5, size=n)
                result = native.step(actions)
                assert_same(result, sync.step(actions))
                ended = result[3]
        elif choice == "set_state":
            mask, states = data.draw(masks), np.array([data.draw(numbers) for _ in range(n)])
            observations, infos = native.set_state(np.where(mask, states, -1), mask)
            for row in np.flatnonzero(mask):
                sync._env_obs[row] = sync.envs[row].unwrapped.set_state(states[row])
            np.testing.assert_array_equal(observations, np.stack(sync._env_obs), strict=True)
            expected_infos = {}
            for row in np.flatnonzero(mask):
                info = {"state": int(states[row]), "action_mask": native.mdp.action_masks(states[row])}
                sync._add_info(expected_infos, info, row)
            assert_same(infos, expected_infos)
        else:
            options = data.draw(st.sampled_from([None, {}]) | st.fixed_dictionaries({"state": numbers}), label="options")
            if choice == "masked reset":
                mask = data.draw(masks, label="mask")
                options = {**(options or {}), "reset_mask": mask}
                ended = ended & ~mask
            else:
                ended[:] = False
            reset_both(pair, data.draw(seeds, label="seeds"), options)


@pytest.mark.parametrize("mode", MODES)
def test_many_steps_through_make_vec(mode):
    """Over the ends of the blocks of random numbers."""
    native = gym.make_vec(ID, 3, max_episode_steps=5, autoreset_mode=mode)
    vector_kwargs = {"autoreset_mode": mode}
    sync = gym.make_vec(ID, 3, vectorization_mode="sync", max_episode_steps=5, vector_kwargs=vector_kwargs)
    assert type(native) is TwoRoomsSwitchVectorEnv
    assert native.autoreset_mode is native.metadata["autoreset_mode"] is sync.metadata["autoreset_mode"] is mode
    reset_both((native, sync), [4, None, 4], {"state": 3})
    reset_both((native, sync), 4, None)
    rng = np.random.default_rng(0)
    for time in range(700):
        if time == 2:  # from here on, episodes end at different times
            reset_both((native, sync), None, {"reset_mask": np.array([True, False, False])})
        actions = rng.integers(5, size=3)
        result = native.step(actions)
        assert_same(result, sync.step(actions))
        if mode is AutoresetMode.DISABLED and result[3].any():
            reset_both((native, sync), None, {"reset_mask": result[3]})


def test_the_mode_belongs_to_the_instance_and_to_the_spec():
    env = gym.make_vec(ID, 2, autoreset_mode="SameStep")
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert TwoRoomsSwitchVectorEnv.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert TwoRoomsSwitchVectorEnv(2).metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    again = gym.make_vec(EnvSpec.from_json(env.spec.to_json()))
    assert again.num_envs == 2
    assert again.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert json.loads(env.spec.to_json())["kwargs"]["autoreset_mode"] == "SameStep"


@pytest.mark.parametrize("mode", MODES)
def test_copies_go_on_alike_in_every_mode(mode):
    env = TwoRoomsSwitchVectorEnv(3, "small", max_episode_steps=4, autoreset_mode=mode)
    env.reset(seed=0)
    env.reset(options={"reset_mask": np.array([False, True, False])})
    for _ in range(3):
        env.step(np.array([0, 1, 2]))
    other = copy.deepcopy(env)
    assert other.metadata == env.metadata
    for _ in range(9):
        if mode is AutoresetMode.DISABLED:
            assert_same(env.reset(), other.reset())
        assert_same(env.step(np.array([3, 1, 0])), other.step(np.array([3, 1, 0])))


def test_an_episode_that_ended_must_be_reset_where_autoreset_is_disabled():
    native, sync = make_pair("small", "Disabled", 2, 3)
    reset_both((native, sync), 0, None)
    actions = np.zeros(3, dtype=np.int64)
    native.step(actions)
    native.reset(options={"reset_mask": np.array([False, True, False])})
    truncated = native.step(actions)[3]
    assert truncated.tolist() == [True, False, True]
    before = native.states
    with pytest.raises(AssertionError, match=r"Environments \[0, 2\] have ended: reset them"):
        native.step(actions)
    native.set_state(before)
    with pytest.raises(AssertionError, match="have ended"):
        native.step(actions)
    assert native.states.tolist() == before.tolist()
    native.reset(options={"reset_mask": truncated})
    assert native.step(actions)[3].tolist() == [False, True, False]
    sync.step(actions)
    sync.step(actions)
    with pytest.raises(AssertionError):
        sync.step(actions)


def test_options_are_left_to_the_caller_so_that_wrappers_see_the_mask():
    env = RecordEpisodeStatistics(TwoRoomsSwitchVectorEnv(2, "small", max_episode_steps=3, autoreset_mode="Disabled"))
    env.reset(seed=0)
    env.step(np.zeros(2, dtype=np.int64))
    mask = np.array([True, False])
    options = {"reset_mask": mask, "state": 5}
    env.unwrapped.reset(options=options)
    assert options == {"reset_mask": mask, "state": 5}
    env.reset(options=options)
    assert env.episode_lengths.tolist() == [0, 1]


def test_states_of_some_worlds_can_be_given():
    env = TwoRoomsSwitchVectorEnv(3, "small")
    env.set_state(np.array([7, 8, 9]))  # even before the first reset, as in the scalar env
    assert env.states.tolist() == [7, 8, 9]
    mask = np.array([True, False, True])
    observations, infos = env.set_state([1, -5, 2], mask)
    assert env.states.tolist() == [1, 8, 2]
    assert np.array_equal(observations, env.mdp.observations[[1, 8, 2]])
    assert infos["state"].tolist() == [1, 0, 2]
    assert infos["_state"].tolist() == infos["_action_mask"].tolist() == mask.tolist()
    assert np.array_equal(infos["action_mask"], env.mdp.action_masks(np.array([1, 8, 2])) * mask[:, None])
    assert env.reset(options={"state": np.array([-1, 4, 999]), "reset_mask": ~mask})[1]["state"].tolist() == [0, 4, 0]
    assert env.states.tolist() == [1, 4, 2]
    env.set_state(6, mask)
    assert env.states.tolist() == [6, 4, 6]
    for array in (observations, *infos.values()):
        array[:] = 1
    assert env.states.tolist() == [6, 4, 6]
    assert mask.tolist() == [True, False, True]


def test_setting_a_state_leaves_the_time_alone():
    env = TwoRoomsSwitchVectorEnv(2, "small", max_episode_steps=2)
    env.reset(seed=0)
    env.step(np.zeros(2, dtype=np.int64))
    env.set_state(0, np.array([True, False]))
    assert env.step(np.zeros(2, dtype=np.int64))[3].all()


BAD_MASKS = [
    ([True, False], TypeError, r"must be a NumPy array of bool, got list"),
    (np.array([1, 0]), TypeError, r"must be a NumPy array of bool, got an array of int64"),
    (np.array([True]), ValueError, r"must have shape \(2,\), got \(1,\)"),
    (np.array([[True, False]]), ValueError, r"must have shape \(2,\), got \(1, 2\)"),
    (np.array([False, False]), ValueError, "must be True somewhere"),
]


@pytest.mark.parametrize(("mask", "error", "message"), BAD_MASKS)
def test_invalid_masks_are_refused(mask, error, message):
    native, sync = make_pair("small", "Disabled", None, 2)
    reset_both((native, sync), 0, None)
    before = native.states
    with pytest.raises(error, match=r"options\['reset_mask'\] " + message):
        native.reset(seed=5, options={"reset_mask": mask})
    with pytest.raises(error, match="^mask " + message):
        native.set_state(0, mask)
    with pytest.raises(error):
        sync.reset(options={"reset_mask": mask})
    assert native.states.tolist() == before.tolist()


@pytest.mark.parametrize(
    ("states", "error", "message"),
    [
        ([0, 10**6], ValueError, r"in \[0, \d+\), got 1000000"),
        (-1, ValueError, r"in \[0, \d+\), got -1"),
        ([0, 1, 2], ValueError, r"have shape \(2,\), got \(3,\)"),
        ([0.0, 1.0], TypeError, "must be an integer"),
        (None, TypeError, "must be an integer"),
        (True, TypeError, "must be an integer"),
    ],
)
def test_invalid_states_are_refused(states, error, message):
    env = TwoRoomsSwitchVectorEnv(2, "small")
    env.reset(seed=0)
    before = env.states
    with pytest.raises(error, match=message):
        env.set_state(states)
    assert env.states.tolist() == before.tolist()


def test_some_worlds_cannot_come_first():
    env = TwoRoomsSwitchVectorEnv(2, "small")
    with pytest.raises(ResetNeeded, match=r"call reset\(\) without options\['reset_mask'\] first"):
        env.reset(options={"reset_mask": np.array([True, False])})
    with pytest.raises(ResetNeeded, match=r"call reset\(\) without mask first"):
        env.set_state(0, np.array([True, False]))
    env.reset(options={"reset_mask": np.array([True, True])})


@pytest.mark.parametrize("mode", ["SAME_STEP", "samestep", None, 3, []])
def test_invalid_modes_are_refused(mode):
    with pytest.raises(
        ValueError, match=r"autoreset_mode must be an AutoresetMode or one of \['NextStep', 'SameStep', 'Disabled'\]"
    ):
        TwoRoomsSwitchVectorEnv(2, autoreset_mode=mode)
