"""Environments that cannot be saved, or do not fit a state, are refused by their names."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv
from gymnasium.wrappers import TimeLimit
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from gym_twoRooms import TwoRoomsSwitchEnv, TwoRoomsSwitchVectorEnv
from sb3_manygoals import GoalBufferWrapper, GymnasiumVecEnv, VecGoalBufferWrapper
from sb3_manygoals.checkpoint.envs import StatefulEnv, get_env_state, set_env_state
from sb3_manygoals.checkpoint.tree import CheckpointError
from tests.sb3_manygoals.checkpoint.kinds import (
    DictObs,
    Recent,
    cartpole,
    corridor,
    forked,
    goal_vector,
    goals,
    small,
    stateful,
)
from tests.sb3_manygoals.worlds import Corridor


def renamed():
    env = DictObs(corridor())
    env.observation_space = spaces.Dict({"picture": env.env.observation_space})
    return env


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        (
            corridor,
            Corridor,
            r"state is of gymnasium.wrappers.common.TimeLimit \(.*Corridor\), "
            "and this is tests.*Corridor$",
        ),
        (
            lambda: Monitor(corridor()),
            lambda: TimeLimit(Monitor(Corridor()), 7),
            "built otherwise: .*Monitor",
        ),
        (
            lambda: DummyVecEnv([corridor] * 3),
            lambda: DummyVecEnv([corridor] * 2),
            r"DummyVecEnv of 3 .*DummyVecEnv of 2 ",
        ),
        (
            lambda: DummyVecEnv([corridor]),
            lambda: DummyVecEnv([cartpole]),
            "Corridor.*, and this is .*CartPole",
        ),
        (
            lambda: TwoRoomsSwitchEnv("small"),
            lambda: TwoRoomsSwitchEnv("small", 0.1),
            "does not fit TwoRoomsSwitchEnv: The state is of another world: "
            "its slip_probability is 0.5, here it is 0.1",
        ),
        (
            lambda: TwoRoomsSwitchEnv("small"),
            TwoRoomsSwitchEnv,
            r"its layout is \n[^ ]+\n, here it is \n[^ ]+\n\.",
        ),
        (
            lambda: TwoRoomsSwitchVectorEnv(2, "small", max_episode_steps=4),
            lambda: TwoRoomsSwitchVectorEnv(2, "small"),
            "its max_episode_steps is 4, here it is None",
        ),
        (
            goals,
            lambda: GoalBufferWrapper(small(), selector_class=Recent),
            "max_episode_steps=6, not 50",
        ),
        (
            goals,
            lambda: GoalBufferWrapper(small(), max_episode_steps=6),
            "selector='Recent', not 'UniformSelector'",
        ),
        (
            lambda: goal_vector(True, small),
            lambda: goal_vector(True, small, reset_worlds=False),
            "reset_worlds='auto', not False",
        ),
        (
            lambda: DictObs(corridor()),
            renamed,
            r"Dict.spaces was built otherwise: expected \['image'\] .* \['picture'\]",
        ),
    ],
)
def test_what_was_built_otherwise_is_refused(left, right, message):
    first = left()
    other = right()
    first.reset()
    with pytest.raises(CheckpointError, match=message):
        set_env_state(other, get_env_state(first))


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        (
            "viewer",
            object(),
            r"Corridor.viewer is a builtins.object, .* give .* "
            r"the methods get_checkpoint_state\(\) and set",
        ),
        (
            "things",
            {"a": [1, (object(),)]},
            r"Corridor.things\['a'\]\[1\]\[0\] is a builtins.object",
        ),
        ("objects", np.array([None]), r"Corridor.objects is a numpy.ndarray"),
    ],
)
def test_what_cannot_be_saved_is_refused_by_name(attribute, value, message):
    env = corridor()
    setattr(env.unwrapped, attribute, value)
    with pytest.raises(CheckpointError, match=message):
        get_env_state(env)
    venv = forked(lambda: StatefulEnv(env))
    with pytest.raises(CheckpointError, match=f"environment 0 of SubprocVecEnv: {message}"):
        get_env_state(venv)
    # The workers have not ended.
    venv.reset()
    venv.step_async(np.zeros(2, int))
    with pytest.raises(CheckpointError, match="SubprocVecEnv is in the middle of a step"):
        get_env_state(venv)
    venv.step_wait()
    venv.close()


def made(module, name):
    """
    Make an environment of a package that may be missing.

    :param module: the package; the test is skipped without it
    :param name: of the environment
    :return: the environment
    """
    pytest.importorskip(module)
    return gym.make(name)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: VecGoalBufferWrapper(
                GymnasiumVecEnv(AsyncVectorEnv([stateful], autoreset_mode="Disabled"))
            ),
            "AsyncVectorEnv cannot be saved: "
            "use a SyncVectorEnv, or SB3's SubprocVecEnv of StatefulEnvs",
        ),
        (
            lambda: made("minigrid", "BabyAI-GoToRedBall-v0"),
            r"GoToRedBall.instrs.env is a .*GoToRedBall",
        ),
        (
            lambda: made("ale_py", "ALE/Pong-v5"),
            r"AtariEnv.ale is a .*ALEInterface, which cannot be saved",
        ),
        (
            lambda: forked(corridor),
            r"put a StatefulEnv around each, outermost, as in .*\(\[lambda: Statef",
        ),
        (lambda: forked(lambda: TimeLimit(stateful(), 3)), "put a StatefulEnv around each"),
    ],
)
def test_other_things_are_refused_by_name(make, message):
    env = make()
    env.reset()
    with pytest.raises(CheckpointError, match=message):
        get_env_state(env)
    # Workers have not ended.
    env.reset()
    env.close()


def test_only_environments_have_a_state():
    with pytest.raises(CheckpointError, match="env must be an environment, got int"):
        get_env_state(3)


class Board:
    """Shared by environments and learner."""

    checkpoint_shared = True

    def get_checkpoint_state(self):
        raise AssertionError("only the learner may ask for this state")


def test_what_is_shared_is_left_out():
    env = corridor()
    board = Board()
    env.unwrapped.board = board
    env.unwrapped.boards = {"first": board}
    env.unwrapped.look = lambda: board
    env.reset()
    set_env_state(env, get_env_state(env))
    assert env.unwrapped.board is board
