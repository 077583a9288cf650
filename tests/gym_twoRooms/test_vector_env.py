"""The native vector env against a SyncVectorEnv: steps, autoreset, masked resets."""

import copy
import functools
import pickle

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import InvalidAction, ResetNeeded
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_twoRooms import TwoRoomsSwitchEnv, TwoRoomsSwitchVectorEnv
from tests.sb3_manygoals.checkpoint import trees

ID = "TwoRoomsSwitchSmall-v0"
MAPS = [
    "paper",
    "small",
    "mansion",
    "..W\n...",
    "SW.\n#D#\nT.S\n.W.\n#E#\n.WT",
    "......\n.BB.W.\n......\n......",
]
MODES = list(AutoresetMode)

assert_same = functools.partial(trees.assert_same, in_order=False)


def make_pair(layout, mode, limit, n, probabilities=(0.5, 0.01)):
    def scalar():
        env = TwoRoomsSwitchEnv(layout, *probabilities)
        return env if limit is None else TimeLimit(env, limit)

    native = TwoRoomsSwitchVectorEnv(
        n, layout, *probabilities, max_episode_steps=limit, autoreset_mode=mode
    )
    return native, SyncVectorEnv([scalar] * n, autoreset_mode=mode)


def reset_both(pair, seed, options):
    native, sync = pair
    ours = native.reset(seed=seed, options=options)
    # SyncVectorEnv takes the mask out of its options.
    assert_same(ours, sync.reset(seed=seed, options=copy.copy(options)))


@settings(max_examples=80, derandomize=True)
@given(data=st.data())
def test_step_for_step_equal_to_the_synchronous_vector_env(data):
    n = data.draw(st.integers(1, 4), label="n")
    mode = data.draw(st.sampled_from(MODES), label="mode")
    limit = data.draw(st.sampled_from([None, 1, 2, 3, 7]), label="limit")
    probabilities = data.draw(
        st.sampled_from([(0.5, 0.01), (1.0, 0.4), (0.0, 0.0)]), label="probabilities"
    )
    native, sync = pair = make_pair(
        data.draw(st.sampled_from(MAPS), label="map"), mode, limit, n, probabilities
    )
    assert native.metadata == sync.metadata
    for name in (
        "observation_space",
        "action_space",
        "single_observation_space",
        "single_action_space",
    ):
        assert getattr(native, name) == getattr(sync, name)

    numbers = st.integers(0, native.mdp.n_states - 1)
    seeds = st.one_of(
        st.none(),
        st.integers(0, 99),
        st.lists(st.none() | st.integers(0, 99), min_size=n, max_size=n),
    )
    masks = st.lists(st.booleans(), min_size=n, max_size=n).filter(any).map(np.array)
    rng = np.random.default_rng(data.draw(st.integers(0, 99), label="actions"))
    reset_both(pair, data.draw(st.integers(0, 99), label="seed"), None)
    ended = np.zeros(n, dtype=bool)
    for _ in range(data.draw(st.integers(1, 8), label="rounds")):
        choice = data.draw(st.sampled_from(["steps", "reset", "masked reset"]), label="choice")
        if choice == "steps":
            for _ in range(data.draw(st.integers(1, 9), label="steps")):
                if mode is AutoresetMode.DISABLED and ended.any():
                    reset_both(pair, None, {"reset_mask": ended | (rng.random(n) < 0.3)})
                actions = rng.integers(5, size=n)
                result = native.step(actions)
                assert_same(result, sync.step(actions))
                ended = result[3]
        else:
            options = data.draw(
                st.sampled_from([None, {}]) | st.fixed_dictionaries({"state": numbers}),
                label="options",
            )
            mask = np.ones(n, dtype=bool)
            if choice == "masked reset":
                mask = data.draw(masks, label="mask")
                options = {**(options or {}), "reset_mask": mask}
            ended = ended & ~mask
            reset_both(pair, data.draw(seeds, label="seeds"), options)


@pytest.mark.parametrize("mode", MODES)
def test_many_steps_through_make_vec(mode):
    """Step beyond the ends of several blocks of random numbers."""
    native = gym.make_vec(ID, 3, max_episode_steps=5, autoreset_mode=mode)
    vector_kwargs = {"autoreset_mode": mode}
    sync = gym.make_vec(
        ID, 3, vectorization_mode="sync", max_episode_steps=5, vector_kwargs=vector_kwargs
    )
    assert native.autoreset_mode is mode
    assert native.metadata["autoreset_mode"] is mode
    assert sync.metadata["autoreset_mode"] is mode
    reset_both((native, sync), [4, None, 4], {"state": 3})
    reset_both((native, sync), 4, None)
    rng = np.random.default_rng(0)
    for time in range(700):
        if time == 2:
            # From here on, episodes end at different times.
            reset_both((native, sync), None, {"reset_mask": np.array([True, False, False])})
        actions = rng.integers(5, size=3)
        result = native.step(actions)
        assert_same(result, sync.step(actions))
        if mode is AutoresetMode.DISABLED and result[3].any():
            reset_both((native, sync), None, {"reset_mask": result[3]})


def test_the_mode_belongs_to_the_instance_and_to_the_spec():
    env = gym.make_vec(ID, 2, autoreset_mode="SameStep")
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert TwoRoomsSwitchVectorEnv(2).metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    again = gym.make_vec(EnvSpec.from_json(env.spec.to_json()))
    assert (again.num_envs, again.metadata["autoreset_mode"]) == (2, AutoresetMode.SAME_STEP)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_copies_go_on_alike_and_results_belong_to_the_caller(mode, duplicate):
    env = TwoRoomsSwitchVectorEnv(3, "small", max_episode_steps=4, autoreset_mode=mode)
    env.reset(seed=0)
    env.reset(options={"reset_mask": np.array([False, True, False])})
    for _ in range(3):
        env.step(np.array([0, 1, 2]))
    other = duplicate(env)
    assert other.metadata == env.metadata
    # This many steps go beyond the end of the block of random numbers.
    for _ in range(500):
        result = env.step(np.array([3, 1, 0]))
        assert_same(result, other.step(np.array([3, 1, 0])))
        for array in (
            *result[:-1],
            result[-1]["state"],
            result[-1]["action_mask"],
            env.states,
            env.action_masks(),
        ):
            array[:] = 1
    assert not np.array_equal(
        TwoRoomsSwitchVectorEnv(8).reset()[1]["state"],
        TwoRoomsSwitchVectorEnv(8).reset()[1]["state"],
    )


def test_an_episode_that_ended_must_be_reset_where_autoreset_is_disabled():
    native = TwoRoomsSwitchVectorEnv(3, "small", max_episode_steps=2, autoreset_mode="Disabled")
    actions = np.zeros(3, int)
    native.reset(seed=0)
    native.step(actions)
    native.reset(options={"reset_mask": np.array([False, True, False])})
    native.step(actions)
    before = native.states
    with pytest.raises(AssertionError, match=r"Environments \[0, 2\] have ended: reset them"):
        native.step(actions)
    assert native.states.tolist() == before.tolist()


def test_states_of_some_worlds_can_be_given_and_options_are_left_to_the_caller():
    env = RecordEpisodeStatistics(
        TwoRoomsSwitchVectorEnv(3, "small", max_episode_steps=3, autoreset_mode="Disabled")
    )
    env.reset(seed=0, options={"state": [7, 8, 9]})
    env.step(np.zeros(3, dtype=np.int64))
    before = env.unwrapped.states
    mask = np.array([True, False, True])
    given = np.array([4, -1, 99])
    options = {"reset_mask": mask, "state": given}
    env.unwrapped.reset(options=options)
    assert options == {"reset_mask": mask, "state": given}
    infos = env.reset(options=options)[1]
    # The wrapper sees the mask.
    assert env.episode_lengths.tolist() == [0, 1, 0]
    assert infos["state"].tolist() == [4, 0, 99]
    for array in (given, *infos.values()):
        array[:] = 1
    assert env.unwrapped.states.tolist() == [4, before[1], 99]
    assert mask.tolist() == [True, False, True]


@pytest.mark.parametrize("mode", TwoRoomsSwitchVectorEnv.metadata["render_modes"])
def test_rendering(mode):
    rendered = []
    for vectorization_mode in ("vector_entry_point", "sync"):
        env = gym.make_vec(
            ID, 3, vectorization_mode=vectorization_mode, render_mode=mode, cell_size=9
        )
        env.reset(seed=0)
        rendered.append(env.render())
    assert isinstance(rendered[0], tuple)
    for ours, theirs in zip(*rendered, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"reset_mask": [True, False]},
            TypeError,
            r"'reset_mask'\] must be a NumPy array of bool, got \[True, False\]",
        ),
        (
            {"reset_mask": np.array([1, 0])},
            TypeError,
            r"must be a NumPy array of bool, got array\(\[1, 0\]\)",
        ),
        ({"reset_mask": np.array([True])}, ValueError, r"must have shape \(2,\) .* got \[ True\]"),
        ({"reset_mask": np.array([False, False])}, ValueError, "must .* be True somewhere, got"),
        ({"state": [0, 10**6]}, ValueError, r"in \[0, \d+\), got 1000000"),
        ({"state": -1}, ValueError, r"in \[0, \d+\), got -1"),
        ({"state": [0, 1, 2]}, ValueError, r"have shape \(2,\), got \(3,\)"),
        ({"state": [0.0, 1.0]}, TypeError, "must be an integer"),
        ({"reset_maks": 1}, ValueError, r"\['reset_maks'\]; there are 'state', 'reset_mask'"),
    ],
)
def test_invalid_options_are_refused_and_change_nothing(options, error, message):
    native, sync = pair = make_pair("small", "Disabled", None, 2)
    reset_both(pair, 0, None)
    with pytest.raises(error, match=message):
        native.reset(seed=5, options=options)
    assert_same(native.step(np.array([4, 4])), sync.step(np.array([4, 4])))
    reset_both(pair, None, None)


def test_a_reset_is_needed_first():
    env = TwoRoomsSwitchVectorEnv(2, "small", render_mode="ansi")
    for use in (
        lambda: env.step(np.zeros(2, dtype=int)),
        lambda: env.states,
        env.render,
        env.action_masks,
        lambda: env.reset(options={"reset_mask": np.array([True, False])}),
    ):
        with pytest.raises(
            ResetNeeded, match=r"call reset\(\) (without options\['reset_mask'\] )?first"
        ):
            use()


@pytest.mark.parametrize("actions", [[[0, 1]], [0.0, 1.0], [0, 5], [-1, 0]])
def test_invalid_actions_are_refused(actions):
    env = TwoRoomsSwitchVectorEnv(2)
    env.reset(seed=0)
    with pytest.raises(
        InvalidAction,
        match=r"must be 2 integers, got (int|float)64|must be in \[0, 5\), got (-1|0) to (0|5)",
    ):
        env.step(np.array(actions))
    with pytest.raises(InvalidAction, match="got 0 to 18446744073709551615"):
        env.step(np.array([0, 2**64 - 1], np.uint64))


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"num_envs": 0}, ValueError, "num_envs must be at least 1, got 0"),
        ({"num_envs": 2.0}, TypeError, "num_envs must be an integer"),
        ({"num_envs": True}, TypeError, "num_envs must be an integer, got True"),
        ({"max_episode_steps": 0}, ValueError, "max_episode_steps must be at least 1"),
        ({"render_mode": "human"}, ValueError, r"one of \['rgb_array', 'ansi'\], got 'human'"),
        (
            {"autoreset_mode": "SAME_STEP"},
            ValueError,
            r"autoreset_mode .* one of \['NextStep', 'SameStep', 'Disabled'\]",
        ),
    ],
)
def test_invalid_arguments_are_refused(kwargs, error, message):
    with pytest.raises(error, match=message):
        TwoRoomsSwitchVectorEnv(**{"num_envs": 1} | kwargs)
    with pytest.raises(ValueError, match="one seed for each of the 2 environments, got 3"):
        TwoRoomsSwitchVectorEnv(2, "small").reset(seed=[1, 2, 3])


def test_the_state_of_a_single_environment_is_refused():
    single = TwoRoomsSwitchEnv("small")
    single.reset(seed=0)
    vector = TwoRoomsSwitchVectorEnv(2, "small")
    vector.reset(seed=0)
    with pytest.raises(ValueError, match=r"The state is of another world: its .* is None, here it"):
        vector.set_checkpoint_state(single.get_checkpoint_state())
    with pytest.raises(ValueError, match=r"The state is of another world: its .*, here it is None"):
        single.set_checkpoint_state(vector.get_checkpoint_state())
