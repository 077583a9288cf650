"""GymnasiumVecEnv against SB3's DummyVecEnv of the same environments, and under wrappers."""

import functools

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import (
    AsyncVectorEnv,
    AutoresetMode,
    SyncVectorEnv,
    VectorEnv,
    VectorObservationWrapper,
)
from gymnasium.wrappers import TimeLimit
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack

from sb3_manygoals import GymnasiumVecEnv, VecGoalBufferWrapper
from sb3_manygoals.errors import EnvironmentFault
from sb3_manygoals.vec_env import can_reset_single_envs
from tests.sb3_manygoals.checkpoint import trees
from tests.sb3_manygoals.checkpoint.kinds import SMALL, cartpole, corridor

SAME_STEP = AutoresetMode.SAME_STEP
DISABLED = AutoresetMode.DISABLED
MODES = pytest.mark.parametrize("mode", [SAME_STEP, DISABLED])
RIGHT = 1

assert_same = functools.partial(trees.assert_same, in_order=False)


class Views(gym.Wrapper):
    """Gives dict observations, and infos of all kinds that only come now and then."""

    def __init__(self, env):
        super().__init__(env)
        self.observation_space = spaces.Dict(
            {"here": env.observation_space, "cell": spaces.Box(0, 9, (1,), np.float32)}
        )

    def view(self, obs, info):
        """Return a dict observation, and the info with further entries."""
        cell = info["cell"]
        info["place"] = (
            {"name": f"cell {cell}", "row": np.array([cell, 1.5])} if cell % 2 else {"even": True}
        )
        if cell == 3:
            info["third"] = ["x"]
        return {"here": obs, "cell": np.array([cell], np.float32)}, info

    def reset(self, **kwargs):
        return self.view(*self.env.reset(**kwargs))

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        obs, info = self.view(obs, info)
        return obs, reward, terminated, truncated, info


def views():
    return Views(corridor())


def assert_steps_alike(ours, theirs, steps, seed=0):
    """Step both with random actions. Return the numbers of terminations and of truncations."""
    rng = np.random.default_rng(seed)
    n_ends = 0
    n_truncations = 0
    for _ in range(steps):
        actions = rng.integers(theirs.action_space.n, size=theirs.num_envs)
        expected = theirs.step(actions)
        assert_same(ours.step(actions), expected)
        assert_same(ours.reset_infos, theirs.reset_infos)
        for done, info in zip(expected[2], expected[3], strict=True):
            n_ends += int(done)
            n_truncations += int(done and info["TimeLimit.truncated"])
    return n_ends - n_truncations, n_truncations


@MODES
@pytest.mark.parametrize(
    ("kind", "make_env"),
    [*((SyncVectorEnv, make) for make in (cartpole, corridor, views)), (AsyncVectorEnv, views)],
)
def test_equal_to_a_dummy_vec_env(kind, make_env, mode):
    ours = GymnasiumVecEnv(kind([make_env] * 4, autoreset_mode=mode))
    theirs = DummyVecEnv([make_env] * 4)
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    for seed in (3, 11):
        assert ours.seed(seed) == theirs.seed(seed)
        assert_same(ours.reset(), theirs.reset())
        assert_same(ours.reset_infos, theirs.reset_infos)
        assert min(assert_steps_alike(ours, theirs, 150)) > 5
    # The seed is used once.
    assert_same(ours.reset(), theirs.reset())
    assert_steps_alike(ours, theirs, 5)
    if kind is AsyncVectorEnv:
        # Workers are not asked for attributes.
        for ask in (ours.get_attr, functools.partial(ours.set_attr, value=4)):
            with pytest.raises(AttributeError, match="length"):
                ask("length")
    ours.close()
    assert ours.vector_env.closed


@MODES
def test_the_native_world_equals_a_dummy_vec_env(mode):
    ours = GymnasiumVecEnv(gym.make_vec(SMALL, 3, max_episode_steps=6, autoreset_mode=mode))
    theirs = DummyVecEnv([lambda: gym.make(SMALL, max_episode_steps=6)] * 3)
    for env in (ours, theirs):
        env.seed(5)
        env.set_options({"state": 7})
    assert_same(ours.reset(), theirs.reset())
    assert [info["state"] for info in ours.reset_infos] == [7, 7, 7]
    # The options are used once.
    assert_same(ours.reset(), theirs.reset())
    assert assert_steps_alike(ours, theirs, 60) == (0, 30)
    assert ours.get_attr("states", [0, -1]) == ours.vector_env.states[[0, -1]].tolist()
    assert ours.get_attr("observation_space", 1) == [ours.observation_space]
    assert ours.get_attr("num_envs") == [3, 3, 3]
    assert not ours.has_attr("fly")


def test_single_environments_where_autoreset_is_disabled_and_observations_are_reused():
    ours = GymnasiumVecEnv(SyncVectorEnv([corridor] * 3, autoreset_mode=DISABLED, copy=False))
    theirs = DummyVecEnv([corridor] * 3)
    for env in (ours, theirs):
        env.seed(4)
    kept, expected = (
        [env.reset(), *(env.step(np.array([0, 1, 1])) for _ in range(9))] for env in (ours, theirs)
    )
    assert_same(kept, expected)
    for env in (ours, theirs):
        env.set_options([{"cell": 2}] * 3)
    assert_same(ours.reset(), theirs.reset())
    assert [info["cell"] for info in ours.reset_infos] == [2, 2, 2]
    for _ in range(4):
        assert_steps_alike(ours, theirs, 3)
        for kwargs in (
            {"indices": [2, 0]},
            {"indices": 1, "seed": 9},
            {"indices": [1], "options": {"cell": 4}},
        ):
            assert_same(ours.env_method("reset", **kwargs), theirs.env_method("reset", **kwargs))
    assert ours.can_reset_single_envs


@MODES
def test_attributes_and_methods_of_a_sync_vector_env(mode):
    ours = GymnasiumVecEnv(SyncVectorEnv([corridor] * 3, autoreset_mode=mode))
    ours.reset()
    assert ours.get_attr("length") == [5, 5, 5]
    ours.set_attr("length", 7, indices=[0, 2])
    assert ours.get_attr("length", (2, 1)) == [7, 5]
    assert [obs.argmax() for obs in ours.env_method("observation_of", 3, indices=1)] == [3]
    # Methods are returned and not called.
    assert all(callable(method) for method in ours.get_attr("reset"))
    assert ours.env_is_wrapped(TimeLimit) == [True] * 3
    assert ours.env_is_wrapped(Views, indices=[1]) == [False]
    assert not ours.has_attr("fly")
    with pytest.raises(AttributeError):
        ours.set_attr("fly", True)
    assert not ours.has_attr("fly")
    with pytest.raises(IndexError):
        ours.get_attr("length", 3)


def test_what_a_native_world_can_do_for_all_environments_only():
    kwargs = {"render_mode": "rgb_array", "cell_size": 3}
    ours = GymnasiumVecEnv(gym.make_vec(SMALL, 3, autoreset_mode=SAME_STEP, **kwargs))
    ours.set_options({"state": 3})
    ours.reset()
    height, width = ours.observation_space.shape[:2]
    assert ours.render().shape == (2 * 3 * height, 2 * 3 * width, 3)
    with pytest.raises(
        ValueError,
        match=r"env_method\('action_masks'\) is for all environments of TwoRoomsSwitchVectorEnv",
    ):
        ours.env_method("action_masks", indices=[0])
    assert ours.get_attr("states") == [3, 3, 3]
    ours.set_attr("cell_size", 2)
    assert ours.vector_env.cell_size == 2
    with pytest.raises(
        ValueError, match=r"needs autoreset_mode DISABLED: in SAME_STEP only reset\(\)"
    ):
        ours.env_method("reset", indices=[0])
    for options in ([{"state": 1}, {}, {}], [{"state": 1}], []):
        ours.set_options(options)
        with pytest.raises(
            ValueError, match="options must be one dict, or the same for each of the 3 environments"
        ):
            ours.reset()
        # The options are gone, so that the next reset can be made.
        ours.reset()
    for env in (ours, VecGoalBufferWrapper(DummyVecEnv([lambda: gym.make(SMALL)]))):
        env.set_options({"colour": 1})
        with pytest.raises(ValueError, match=r"Unknown reset options \['colour'\]"):
            env.reset()
        env.reset()
    assert not ours.can_reset_single_envs


def test_other_modes_are_refused():
    unknown = Plain()
    unknown.metadata = {}
    for env, mode in ((SyncVectorEnv([cartpole]), "AutoresetMode.NEXT_STEP"), (unknown, "None")):
        with pytest.raises(
            ValueError,
            match=f"SAME_STEP or DISABLED, got {mode}: make it with gym.make_vec.*vector_kwargs=",
        ):
            GymnasiumVecEnv(env)
    with pytest.raises(TypeError, match=r"must be a gymnasium.vector.VectorEnv, got TimeLimit"):
        GymnasiumVecEnv(corridor())


@MODES
def test_gymnasiums_vector_wrappers(mode):
    class Inverted(VectorObservationWrapper):
        def observations(self, observations):
            return ~observations

    native = gym.make_vec(SMALL, 2, max_episode_steps=3, autoreset_mode=mode)
    # Gymnasium's wrappers of observations refuse SAME_STEP.
    ours = GymnasiumVecEnv(
        RecordEpisodeStatistics(Inverted(native) if mode is DISABLED else native)
    )
    seen = np.invert if mode is DISABLED else np.copy
    theirs = DummyVecEnv(
        [lambda: gym.wrappers.RecordEpisodeStatistics(gym.make(SMALL, max_episode_steps=3))] * 2
    )
    for env in (ours, theirs):
        env.seed(0)
        env.reset()
        if mode is DISABLED:
            # Let the episodes of the two end at different times.
            env.step(np.array([0, 0]))
            env.env_method("reset", indices=[1])
    episodes = 0
    for _ in range(12):
        obs, _, _, infos = ours.step(np.array([0, RIGHT]))
        expected, _, _, expected_infos = theirs.step(np.array([0, RIGHT]))
        assert_same(obs, seen(expected))
        for info, expected_info in zip(infos, expected_infos, strict=True):
            assert info.keys() == expected_info.keys()
            if "episode" in info:
                episodes += 1
                assert info["episode"]["r"] == 0.0
                assert info["episode"]["l"] == expected_info["episode"]["l"]
                assert_same(
                    info["terminal_observation"], seen(expected_info["terminal_observation"])
                )
    assert episodes == 8
    assert not any("episode" in info for info in ours.reset_infos)
    assert ours.get_attr("cell_size") == [32, 32]


class Plain(VectorEnv):
    """
    A vector environment with its own kind of infos: without masks, final observations in one array,
    and no ``final_info``. It returns the same array of observations at each step.
    """

    metadata = {"autoreset_mode": SAME_STEP}  # noqa: RUF012

    def __init__(self, with_final=True):
        self.num_envs = 2
        self.with_final = with_final
        self.shown = np.zeros((2, 1), np.float32)
        self.single_observation_space = spaces.Box(0, 9, (1,))
        self.single_action_space = spaces.Discrete(2)

    def render(self):
        return np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)

    def reset(self, *, seed=None, options=None):
        return self.shown, {"lives": np.array([3, 3])}

    def step(self, actions):
        infos = {"lives": np.array([2, 1]), "version": "x"}
        if self.with_final:
            infos["final_obs"] = np.array([[5.0], [6.0]], np.float32)
        ended = np.array([False, True])
        self.shown += 1.0
        return self.shown, np.ones(2), ended, np.array([False, True]), infos


def test_a_plain_vector_env_is_understood():
    venv = GymnasiumVecEnv(Plain())
    np.testing.assert_array_equal(venv.get_images(), Plain().render())
    first = venv.reset()
    second, rewards, dones, infos = venv.step(np.zeros(2))
    assert (first.tolist(), second.tolist()) == ([[0.0], [0.0]], [[1.0], [1.0]])
    assert rewards.dtype == np.float32
    assert dones.tolist() == [False, True]
    assert infos[0] == {"lives": 2, "version": "x", "TimeLimit.truncated": False}
    assert infos[1].pop("terminal_observation").tolist() == [6.0]
    # It terminated at the same time, so the time limit does not count.
    assert infos[1] == {"lives": 1, "version": "x", "TimeLimit.truncated": False}
    assert venv.reset_infos[1] == {"lives": 1, "version": "x"}
    with pytest.raises(ValueError, match=r"gave no infos\['final_obs'\]"):
        GymnasiumVecEnv(Plain(with_final=False)).step(np.zeros(2))


def test_the_rewards_of_a_native_vector_environment():
    class Native(Plain):
        def step(self, actions):
            observations, _, *others = super().step(actions)
            return observations, self.rewards, *others

    env = GymnasiumVecEnv(Native())
    env.reset()
    for rewards, message in (
        (np.zeros((2, 1)), r"environment 0 gave a reward of array\(\[0.\]\): one number is needed"),
        ([1.0, "two"], "environment 1 gave a reward of 'two'"),
        (1.0, "rewards of 1.0: one number is needed of each of 2"),
        (np.zeros(3), "one number is needed of each of 2"),
    ):
        env.vector_env.rewards = rewards
        with pytest.raises(EnvironmentFault, match=message):
            env.step(np.zeros(2, int))
    env.vector_env.rewards = [1, None]
    np.testing.assert_array_equal(env.step(np.zeros(2, int))[1], np.array([1, 0], np.float32))


@MODES
def test_which_worlds_can_be_reset(mode):
    native = GymnasiumVecEnv(gym.make_vec(SMALL, 2, autoreset_mode=mode))
    for venv, possible in (
        (native, mode is DISABLED),
        (VecFrameStack(native, 2), False),
        (DummyVecEnv([corridor]), True),
    ):
        assert can_reset_single_envs(venv) == possible
        assert VecGoalBufferWrapper(venv).goal_tracker.reset_worlds == (
            "auto" if possible else False
        )
        if not possible:
            needed = f"needs a DummyVecEnv or SubprocVecEnv, got {type(venv).__name__}, "
            with pytest.raises(
                ValueError, match=f"reset_worlds=True {needed}.* AutoresetMode.DISABLED"
            ):
                VecGoalBufferWrapper(venv, reset_worlds=True)
            goals = VecGoalBufferWrapper(venv).goal_buffer
            with pytest.warns(UserWarning, match="evaluation begin where the last goal led"):
                VecGoalBufferWrapper(venv, goals, training=False)
