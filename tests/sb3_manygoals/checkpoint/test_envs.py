"""A restored environment does what the first would have done, for all kinds."""

import copy

import gymnasium as gym
import pytest
from gymnasium.wrappers import TimeLimit
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.monitor import Monitor

from gym_twoRooms import TwoRoomsSwitchVectorEnv
from sb3_manygoals.checkpoint.envs import get_env_state, set_env_state
from sb3_manygoals.checkpoint.tree import CheckpointError
from tests.sb3_manygoals.checkpoint.kinds import ENVIRONMENTS, MODES, Driver, Recent, corridor
from tests.sb3_manygoals.checkpoint.trees import assert_same
from tests.sb3_manygoals.worlds import Corridor


@pytest.fixture
def build():
    """Make environments that are closed in the end."""
    made = []

    def make(name, steps=None, seed=3):
        if name.startswith("MiniGrid"):
            pytest.importorskip("minigrid")
        driver = Driver(ENVIRONMENTS[name]())
        made.append(driver.env)
        if steps is not None:
            driver.reset(seed)
            for _ in range(steps):
                driver.step()
        return driver

    yield make
    for env in made:
        env.close()


@pytest.mark.parametrize("steps", [0, 23])
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_goes_on_as_the_first(build, name, steps):
    first = build(name, steps)
    if name == "drawn":
        first.env.render()
    state = get_env_state(first.env)
    kept = copy.deepcopy(state)
    again = build(name)
    for mine, theirs in zip(again.buffers(), first.buffers(), strict=True):
        mine.set_checkpoint_state(theirs.get_checkpoint_state())
    set_env_state(again.env, state)
    if name != "drawn":  # what is not drawn yet has attributes that a picture has not
        assert_same(get_env_state(again.env), get_env_state(first.env))
    for _ in range(60 if "Subproc" in name else 300):
        assert_same(again.step(), first.step())
    assert_same(again.reset(8), first.reset(8))
    assert_same(state, kept)  # stepping changed nothing in it


SOME = ("Tangle", "goals", "MiniGrid DoorKey-5x5", "Dummy", "VecGoal", "VecFrameStack", "Sync NEXT_STEP", "VecGoal native")


@pytest.mark.parametrize("name", [*SOME, "Subproc"])
def test_to_be_asked_disturbs_nothing(build, name):
    first, other = build(name, 0), build(name, 0)
    for _ in range(30):
        state = get_env_state(first.env)
        assert_same(first.step(), other.step())
    set_env_state(first.env, state)  # back by one step, in the same environment


@pytest.mark.parametrize("mode", MODES)
@given(steps=st.integers(0, 40), seed=st.integers(0, 2**31), reset=st.booleans(), n=st.integers(1, 4))
@settings(max_examples=15)
def test_vectors_of_two_rooms(mode, steps, seed, reset, n):
    first, again = (Driver(TwoRoomsSwitchVectorEnv(n, "small", max_episode_steps=5, autoreset_mode=mode)) for _ in range(2))
    first.reset(seed)
    # not all seeded: the other generators come into being when they are needed
    first.env.reset(seed=[seed] + [None] * (n - 1), options={"state": 3})
    for _ in range(steps):
        first.step()
    if reset:
        again.reset(1)
        again.step()
    set_env_state(again.env, get_env_state(first.env))
    for _ in range(400):  # more numbers than are read ahead
        assert_same(again.step(), first.step())
    assert_same(again.reset(2), first.reset(2))
    assert_same(again.step(), first.step())


def test_what_the_first_did_not_have_goes_and_rows_go_to_the_file_of_the_new_monitor(tmp_path):
    first, again = (Monitor(corridor(), str(tmp_path / name)) for name in ("first", "again"))
    again.unwrapped.later = 1
    for env in (first, again):
        env.reset(seed=0)
        for _ in range(7):
            env.step(2)
        if env is first:
            set_env_state(again, get_env_state(first))
        env.close()
    assert not hasattr(again.unwrapped, "later")
    assert again.get_episode_lengths() == [7, 7]
    assert len((tmp_path / "again.monitor.csv").read_text().splitlines()) == 3


class Counting(gym.Wrapper):
    """Has methods of its own, and refers to what is inside."""

    def __init__(self, env, start=0):
        super().__init__(env)
        self.base, self.start, self.n = env.unwrapped, start, start

    def step(self, action):
        self.n += 1
        *result, info = self.env.step(action)
        return *result, {**info, "n": self.n}

    def get_checkpoint_state(self):
        return {"n": self.n, "start": self.start}

    def set_checkpoint_state(self, state):
        if state["start"] != self.start:
            raise ValueError(f"it counts from {state['start']}, not {self.start}")
        self.n = state["n"]


class Outer(gym.Wrapper):
    """Has a part with methods, and forwards all that it has not, as SB3's VecEnvWrapper does."""

    def __init__(self, env):
        super().__init__(env)
        self.rules = {"goal": Recent()}

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return self.env.get_wrapper_attr(name)

    def step(self, action):
        *result, info = self.env.step(action)
        self.rules["goal"].chosen.append(info["n"])
        return *result, {**info, "chosen": list(self.rules["goal"].chosen)}


def test_own_methods_are_used_and_not_those_of_what_is_inside():
    first, again = (Outer(TimeLimit(Counting(Corridor()), 9)) for _ in range(2))
    assert first.get_checkpoint_state  # forwarded
    first.reset(seed=0)
    for _ in range(5):
        first.step(1)
    state = get_env_state(first)
    (inner,) = state["inner"]
    assert state["state"] is inner["state"] is None
    assert inner["inner"][0]["state"] == {"n": 5, "start": 0}
    set_env_state(again, state)
    for _ in range(4):
        assert_same(again.step(1), first.step(1))
    with pytest.raises(CheckpointError, match="the state does not fit Counting: it counts from 0, not 3"):
        set_env_state(Outer(TimeLimit(Counting(Corridor(), 3), 9)), state)
