"""A restored environment does what the first would have done, for all kinds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import SubprocVecEnv

from gym_twoRooms import TwoRoomsSwitchVectorEnv
from sb3_manygoals.checkpoint import copy_tree
from sb3_manygoals.checkpoint.envs import StatefulEnv, get_env_state, set_env_state
from tests.sb3_manygoals.checkpoint.kinds import ENVIRONMENTS, MODES, Driver, corridor, goal_vector
from tests.sb3_manygoals.checkpoint.trees import assert_same
from tests.sb3_manygoals.worlds import Corridor


@pytest.fixture
def build():
    """A function that makes environments, which are closed in the end."""
    made = []

    def make(name, steps=None, seed=3):
        """
        Make the driver of an environment.

        :param name: of the kind of environment
        :param steps: how many steps to take after a reset; default: None, not even a reset
        :param seed: of the reset; default: 3
        :return: the driver
        """
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
    kept = copy_tree(state)
    again = build(name)
    for mine, theirs in zip(again.goal_buffers(), first.goal_buffers(), strict=True):
        mine.set_checkpoint_state(theirs.get_checkpoint_state())
    set_env_state(again.env, state)
    # What was not drawn yet has attributes that end with the first picture.
    if name != "drawn":
        assert_same(get_env_state(again.env), get_env_state(first.env))
    for _ in range(60 if "Subproc" in name else 300):
        assert_same(again.step(), first.step())
    assert_same(again.reset(8), first.reset(8))
    # Steps change nothing in the state.
    assert_same(state, kept)


SOME = (
    "Tangle",
    "goals",
    "MiniGrid DoorKey-5x5",
    "Dummy",
    "VecGoal",
    "VecFrameStack",
    "Sync NEXT_STEP",
    "VecGoal native",
)


@pytest.mark.parametrize("name", [*SOME, "Subproc"])
def test_to_be_asked_disturbs_nothing(build, name):
    first = build(name, 0)
    other = build(name, 0)
    for _ in range(30):
        state = get_env_state(first.env)
        assert_same(first.step(), other.step())
    # An environment can go back by one step.
    set_env_state(first.env, state)


@pytest.mark.parametrize("mode", MODES)
@given(
    steps=st.integers(0, 40), seed=st.integers(0, 2**31), reset=st.booleans(), n=st.integers(1, 4)
)
@settings(max_examples=15)
def test_vectors_of_two_rooms(mode, steps, seed, reset, n):
    first, again = (
        Driver(TwoRoomsSwitchVectorEnv(n, "small", max_episode_steps=5, autoreset_mode=mode))
        for _ in range(2)
    )
    first.reset(seed)
    # The generators of environments without a seed are made when they are needed.
    first.env.reset(seed=[seed] + [None] * (n - 1), options={"state": 3})
    for _ in range(steps):
        first.step()
    if reset:
        again.reset(1)
        again.step()
    set_env_state(again.env, get_env_state(first.env))
    # More random numbers are drawn than are read ahead.
    for _ in range(400):
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
            with pytest.warns(
                UserWarning, match="Corridor.later is not in the checkpoint and is removed"
            ):
                set_env_state(again, get_env_state(first))
        env.close()
    assert not hasattr(again.unwrapped, "later")
    assert again.get_episode_lengths() == [7, 7]
    assert len((tmp_path / "again.monitor.csv").read_text().splitlines()) == 3


@pytest.mark.filterwarnings("ignore:10 goal episodes in a row began at their goal")
@pytest.mark.parametrize("vector", [False, True])
def test_what_cannot_be_saved_of_infos_is_left_out_with_a_warning(vector):
    class Odd(Corridor):
        def step(self, action):
            return *super().step(action)[:4], {"cell": self.cell, "odd": object()}

    first, again = (
        goal_vector(vector, Odd, reset_worlds=False, max_episode_steps=2) for _ in range(2)
    )
    first.reset()
    for _ in range(60):
        first.step(np.array([1]))
    with pytest.warns(
        UserWarning, match=r"left out of checkpoints: info\['odd'\] is a builtins.object"
    ):
        state = get_env_state(first)
    set_env_state(again, state)
    assert "cell" in again.reset_infos[0]
    assert "odd" not in again.reset_infos[0]


def test_make_vec_env_puts_stateful_envs_outermost():
    """Test what the guide says: ``wrapper_class`` is around the Monitor."""
    made = {"vec_env_cls": SubprocVecEnv, "vec_env_kwargs": {"start_method": "fork"}}
    env = make_vec_env(Corridor, 2, wrapper_class=StatefulEnv, **made)
    env.reset()
    state = get_env_state(env)
    set_env_state(env, state)
    env.close()
