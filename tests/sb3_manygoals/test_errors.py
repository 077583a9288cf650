"""Tests that bad environments and losses end training early, and that the error names them."""

import copy
import pickle
import subprocess
import sys
from collections import UserDict
from types import MappingProxyType

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack

from sb3_manygoals import (
    DiscreteActions,
    GoalBuffer,
    GoalBufferWrapper,
    GymnasiumVecEnv,
    ManyGoalsDQN,
    RepeatAction,
    VecGoalBufferWrapper,
    errors,
    evaluate_mastery,
)
from sb3_manygoals.many_goals_dqn import PlannedTargets, TDTargets
from tests import ROOT
from tests.sb3_manygoals.many_goals_dqn.memories import kept
from tests.sb3_manygoals.many_goals_dqn.models import PLAIN, parameters
from tests.sb3_manygoals.updates import count_updates
from tests.sb3_manygoals.worlds import Always, Corridor


class Old(Corridor):
    """Returns from ``step`` and ``reset`` what the functions make of Gymnasium's values."""

    def __init__(self, step=tuple, reset=tuple):
        super().__init__()
        self.of_step = step
        self.of_reset = reset

    def step(self, action):
        return self.of_step(super().step(action))

    def reset(self, *, seed=None, options=None):
        return self.of_reset(super().reset(seed=seed, options=options))


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        (
            {"step": lambda values: (*values[:3], values[4])},
            r"4 values by step\(\): Gymnasium's API has 5, observation, reward, terminated, trunc",
        ),
        ({"reset": lambda values: values[0]}, r"one ndarray by reset\(\): .* has 2, observ"),
        ({"reset": lambda values: (*values, 0)}, r"3 values by reset\(\): Gymnasium's API has 2"),
        ({"step": lambda values: (*values[:4], None)}, r"an info of None by step\(\): a dict"),
        ({"reset": lambda values: (values[0], 7)}, r"an info of 7 by reset\(\): a dict is"),
    ],
)
def test_what_is_not_gymnasiums_api_is_named(functions, message):
    with pytest.raises(errors.EnvironmentFault, match=f"environment (0 )?gave {message}"):
        ManyGoalsDQN("MlpPolicy", Old(**functions), seed=0).learn(10)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (
            lambda values: (*values[:3], values[4]),
            r"a wrong number of values by step\(\) .* got 4\): Gymnasium's API has 5 of step",
        ),
        (lambda values: values[0][0], r"a wrong number of values by step\(\) .* cannot unpack"),
        (lambda values: (*values[:4], None), r"an info of None by step\(\).*: a dict is needed"),
        (
            lambda values: (*values[:4], MappingProxyType({})),
            r"an info of mappingproxy\({}\) by step\(\): a dict is needed",
        ),
    ],
)
def test_what_is_not_gymnasiums_api_is_named_in_vectors_of_environments(step, message):
    worlds = [vector(Old(), Old(step))]
    if "mappingproxy" not in message:
        # Gymnasium's own vectors take any mapping.
        worlds.append(gymnasiums(Old, lambda: Old(step)))
    for world in worlds:
        with pytest.raises(errors.EnvironmentFault, match=f"environment 1 gave {message}"):
            ManyGoalsDQN("MlpPolicy", world, seed=0).learn(10)


@pytest.mark.parametrize("of_gymnasium", [False, True])
def test_a_reset_that_is_not_gymnasiums_api_is_named_in_vectors_of_environments(of_gymnasium):
    old = Old(reset=lambda values: values[0])
    worlds = gymnasiums(Old, lambda: old) if of_gymnasium else vector(Old(), old)
    message = r"environment 1 gave a wrong number of values by step\(\) or reset\(\), too many"
    with pytest.raises(errors.EnvironmentFault, match=message):
        ManyGoalsDQN("MlpPolicy", worlds, seed=0).learn(10)


def no_info(values):
    return *values[:-1], None


def ended_without_info(values):
    return *values[:2], True, False, None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TimeLimit(Old(lambda values: values[:4]), 20), "a wrong number of values by step"),
        (lambda: TimeLimit(Old(reset=lambda values: values[0]), 20), "one ndarray by reset"),
        (
            lambda: RecordEpisodeStatistics(Old(reset=lambda values: values[0])),
            "a wrong number of values by .* or reset",
        ),
        (lambda: RecordEpisodeStatistics(Old(ended_without_info)), "an info of None by step"),
        (lambda: vector(Old(), Monitor(Old(ended_without_info))), "an info of None by step"),
        (lambda: RepeatAction(Old(lambda values: values[:4]), 2), "a wrong number of values by"),
        (lambda: RepeatAction(Old(no_info), 2), "an info of None by step"),
        (
            lambda: RepeatAction(Old(lambda values: (values[0], "1", *values[2:])), 2),
            "a reward of '1'",
        ),
        (lambda: two_actions(Old(lambda values: values[:4])), "a wrong number of values by"),
        (lambda: two_actions(Old(no_info)), "an info of None by step"),
        (lambda: two_actions(Old(reset=no_info)), "an info of None by .* or reset"),
    ],
)
def test_a_wrapper_that_unpacks_what_is_not_gymnasiums_api_is_not_to_blame(make, message):
    with pytest.raises(errors.EnvironmentFault, match=f"environment [01]? ?gave {message}"):
        ManyGoalsDQN("MlpPolicy", make(), seed=0).learn(10)


def two_actions(env):
    return DiscreteActions(env, [0, 1])


def later(function):
    """Return a function that leaves its first value as it is."""
    calls = []

    def of_reset(values):
        calls.append(values)
        return function(values) if len(calls) > 1 else values

    return of_reset


@pytest.mark.parametrize(
    ("make", "message"),
    [
        # The goal wrapper resets worlds at the end of goal episodes.
        (lambda old: vector(Old(), old), "one ndarray by reset"),
        (lambda old: vector(Old(), DiscreteActions(old, range(3))), "a wrong number of values by"),
        (
            lambda old: GymnasiumVecEnv(
                SyncVectorEnv([Old, lambda: old], autoreset_mode=AutoresetMode.DISABLED)
            ),
            "a wrong number of values by",
        ),
    ],
)
def test_resets_within_training_are_named(make, message):
    env = make(Old(reset=later(lambda values: values[0])))
    with pytest.raises(errors.EnvironmentFault, match=f"environment 1 gave {message}"):
        ManyGoalsDQN("MlpPolicy", env, seed=0).learn(500)


def test_infos_of_first_and_last_observations_are_checked():
    start = vector(Old(), Old(reset=no_info))
    with pytest.raises(errors.EnvironmentFault, match=r"environment 1 gave an info of None by res"):
        ManyGoalsDQN("MlpPolicy", start, seed=0).learn(10)
    next_start = vector(Old(), Old(lambda values: (*values[:3], True, {}), later(no_info)))
    with pytest.raises(errors.EnvironmentFault, match=r"environment 1 gave an info of None by res"):
        ManyGoalsDQN("MlpPolicy", next_start, seed=0).learn(10)
    ends = gymnasiums(*[lambda: Old(ended_without_info)] * 2)
    with pytest.raises(errors.EnvironmentFault, match=r"environment gave an info of .* by step"):
        ManyGoalsDQN("MlpPolicy", ends, seed=0).learn(10)


def test_infos_of_random_steps_are_checked():
    def ended(values):
        return *values[:3], True, values[4]

    # Random steps are made while all that was met is held out.
    held_out = np.eye(6, dtype=np.uint8)
    goals = GoalBuffer(Corridor().observation_space, held_out=held_out)
    worlds = vector(Old(), Old(ended, later(no_info)))
    with pytest.raises(errors.EnvironmentFault, match=r"environment 1 gave an info of None by res"):
        VecGoalBufferWrapper(worlds, goals).reset()


def test_other_errors_of_vectors_are_not_blamed_on_rewards():
    shared_worlds = VecGoalBufferWrapper(vector(Old(), Old()))
    with pytest.raises(AttributeError, match="no attribute 'actions'"):
        shared_worlds.step_wait()
    with pytest.raises(ValueError, match="actions must have one action for each of 2 env"):
        gymnasiums(Old, Old).step(np.zeros(3, np.int64))


@pytest.mark.parametrize("info", [UserDict, MappingProxyType])
def test_any_mapping_and_any_row_of_values_will_do(info):
    def row(values):
        found = np.empty(len(values), object)
        found[:] = values
        found[-1] = info(values[-1])
        return found

    model = ManyGoalsDQN("MlpPolicy", Old(row, list), seed=0, learning_starts=5)
    assert len(model.learn(20).goal_buffer) > 1


class Hostile(gym.Env):
    """Counts its steps in float32 observations, and does one bad thing at one of them."""

    action_space = spaces.Discrete(2)

    def __init__(
        self,
        at=None,
        observation=None,
        reward=1.0,
        ends=False,
        shape=(3,),
        dtype=np.float32,
        length=7,
    ):
        self.observation_space = spaces.Box(0, 100, shape, dtype)
        self.at = at
        self.observation = observation
        self.reward = reward
        self.ends = ends
        self.length = length
        self.steps = 0
        self.taken = 0

    def show(self):
        if self.at == self.taken and self.observation is not None:
            return self.observation
        return np.full(self.observation_space.shape, self.steps, self.observation_space.dtype)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.show(), {}

    def step(self, action):
        self.steps += 1
        self.taken += 1
        hostile = self.at == self.taken
        ended = self.steps == self.length or (hostile and self.ends)
        return self.show(), self.reward if hostile else 1.0, ended, False, {}


def gymnasiums(*makers):
    return GymnasiumVecEnv(SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP))


def vector(*worlds):
    return DummyVecEnv([lambda world=world: world for world in worlds])


def make_model(env, **kwargs):
    """Make a small learner that makes one update for each step of the vector environment."""
    settings = {
        "learning_starts": 8,
        "policy_kwargs": {"net_arch": [8], "embedding_dim": 8},
        "seed": 0,
        "buffer_size": 500,
        "batch_size": 16,
        "goal_batch_size": 8,
        "updates_per_step": 1 / getattr(env, "num_envs", 1),
    }
    return ManyGoalsDQN("MlpPolicy", env, **{**settings, **kwargs})


BAD = np.array([1.0, np.nan, 2.0], dtype=np.float32)


def shared(*worlds, **settings):
    buffer = GoalBuffer(worlds[0].observation_space)
    return vector(*(GoalBufferWrapper(world, goal_buffer=buffer, **settings) for world in worlds))


def native(*worlds):
    return GymnasiumVecEnv(
        SyncVectorEnv(
            [lambda w=world: w for world in worlds], autoreset_mode=AutoresetMode.SAME_STEP
        )
    )


@pytest.mark.parametrize(
    "wrap", [vector, shared, lambda *worlds: VecFrameStack(vector(*worlds), 2), native]
)
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (
            {"observation": np.full(3, -np.inf, np.float32)},
            r"an observation that is not finite: -inf at \(\d,\)",
        ),
        (
            {"observation": BAD, "ends": True},
            r"an? \w*\s?observation that is not finite: nan at \(\d,\)",
        ),
        ({"reward": np.nan}, "a reward that is not finite: nan"),
    ],
    ids=["inf", "terminal", "reward"],
)
def test_values_that_are_not_finite_are_neither_stored_nor_learned_from(wrap, bad, message):
    model = make_model(wrap(Hostile(), Hostile(at=20, **bad)), updates_as_needed=False)
    updates = count_updates(model)
    with pytest.raises(ValueError, match=f"^environment 1 gave {message}, after num_timesteps=38$"):
        model.learn(1_000)
    assert np.isfinite(model.goal_buffer.observations).all()
    assert np.isfinite(kept(model.replay_buffer)).all()
    assert model.replay_buffer.size() == 19
    assert len(updates) == 15
    assert parameters(model).isfinite().all()


@pytest.mark.parametrize("wrap", [GoalBufferWrapper, lambda world: shared(world)])
def test_whole_numbers_that_the_dtype_of_the_space_does_not_hold_are_refused(wrap):
    """In uint8, 257 would become 1: another observation."""
    number = np.full(3, 257, np.uint16)
    world = wrap(Hostile(at=1, observation=number, dtype=np.uint8))
    world.reset()
    with pytest.raises(
        errors.EnvironmentFault, match=r"an observation with numbers from 257 to 257, .* is uint8"
    ):
        world.step(0 if isinstance(world, gym.Env) else np.zeros(1, int))


NO_NUMBERS = [[1.0], np.array([1.0]), np.zeros(2), "two", {"r": 1.0}, 1j]


def disabled(*worlds):
    fns = [lambda w=world: w for world in worlds]
    return GymnasiumVecEnv(SyncVectorEnv(fns, autoreset_mode=AutoresetMode.DISABLED))


def monitored(*worlds):
    return vector(*(Monitor(world) for world in worlds))


def goals_around_monitors(*worlds):
    return shared(*(Monitor(world) for world in worlds))


@pytest.mark.parametrize(
    "wrap", [vector, shared, native, disabled, monitored, goals_around_monitors]
)
@pytest.mark.parametrize("reward", NO_NUMBERS, ids=repr)
def test_a_reward_that_is_not_one_number_is_named(wrap, reward):
    model = make_model(wrap(Hostile(), Hostile(at=20, reward=reward)))
    message = "^environment 1 gave a reward .*one number is needed.*, after num_timesteps=38$"
    with pytest.raises(errors.EnvironmentFault, match=message):
        model.learn(1_000)
    assert model.replay_buffer.size() == 19


@pytest.mark.parametrize(
    "reward",
    [2, True, np.float32(2), np.int64(2), np.bool_(True), np.array(2.0), np.float64(2)],
    ids=repr,
)
def test_a_number_of_any_kind_is_a_reward(reward):
    env = GoalBufferWrapper(Hostile(at=1, reward=reward))
    env.reset(seed=0)
    assert env.step(0)[4]["env_reward"] == float(reward)
    venv = VecGoalBufferWrapper(vector(Hostile(), Hostile(at=1, reward=reward)))
    venv.reset()
    assert [info["env_reward"] for info in venv.step(np.zeros(2, int))[3]] == [1.0, float(reward)]


def test_a_reward_of_none_counts_as_0():
    env = GoalBufferWrapper(Hostile(at=2, reward=None))
    env.reset(seed=0)
    assert [env.step(0)[4]["env_reward"] for _ in range(2)] == [1.0, 0.0]
    # SB3's DummyVecEnv makes NaN of None.
    model = make_model(vector(Hostile(), Hostile(at=2, reward=None)))
    with pytest.raises(errors.EnvironmentFault, match="environment 1 gave a reward that is not"):
        model.learn(100)


@pytest.mark.parametrize("rewards", [(1.0, [1.0]), (1.0, None), ([1.0], [1.0]), (1.0, "two")])
def test_rewards_of_workers_are_checked(rewards):
    worlds = [lambda reward=reward: Hostile(at=1, reward=reward) for reward in rewards]
    venv = VecGoalBufferWrapper(SubprocVecEnv(worlds, start_method="fork"))
    venv.reset()
    if rewards[1] is None:
        assert [info["env_reward"] for info in venv.step(np.zeros(2, int))[3]] == [1.0, 0.0]
    else:
        message = f"environment {rewards.index(rewards[1])} gave a reward of"
        if rewards[1] == "two":
            message = "an environment gave rewards of array"
        with pytest.raises(errors.EnvironmentFault, match=message):
            venv.step(np.zeros(2, int))
    venv.close()


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_mastery_names_a_reward_that_is_not_one_number(mode):
    worlds = [lambda: Hostile(at=3), lambda: Hostile(at=3, reward=[1.0])]
    goals = np.full((2, 3), 50, np.float32)
    with pytest.raises(errors.EnvironmentFault, match=r"environment 1 gave a reward .*one number"):
        evaluate_mastery(Always(0), SyncVectorEnv(worlds, autoreset_mode=mode), goals)


class Restarts(Hostile):
    """Gives a bad observation at one of its resets."""

    def __init__(self, at_reset):
        super().__init__(length=10**6)
        self.resets = 0
        self.at_reset = at_reset

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed, options=options)
        self.resets += 1
        return (BAD if self.resets == self.at_reset else observation), info


# At the third reset, the goal wrapper resets the world, not SB3.
@pytest.mark.parametrize("at_reset", [1, 3])
@pytest.mark.parametrize(
    "wrap", [lambda *worlds, **settings: VecGoalBufferWrapper(vector(*worlds), **settings), shared]
)
def test_first_observations_are_checked(wrap, at_reset):
    model = make_model(
        wrap(Hostile(length=10**6), Restarts(at_reset), max_episode_steps=5, reset_worlds=True)
    )
    message = (
        r"environment 1 gave a first observation that is not finite: nan at \(1,\), after num_"
    )
    with pytest.raises(ValueError, match=message):
        model.learn(1_000)
    assert np.isfinite(model.goal_buffer.observations).all()


def test_a_fault_in_a_callbacks_environment_does_not_mention_the_time_step():
    class Evaluates(BaseCallback):
        def _on_step(self):
            VecGoalBufferWrapper(vector(Hostile(), Hostile(at=0, observation=BAD))).reset()

    model = make_model(vector(Hostile(), Hostile()))
    with pytest.raises(
        ValueError,
        match=r"^environment 1 gave a first observation that is not finite: nan at \(1,\)$",
    ):
        model.learn(100, callback=Evaluates())


def test_faults_can_be_pickled():
    with pytest.raises(ValueError, match="environment 3") as caught:
        errors.check_finite(np.array([np.inf]), "a reward", None, first=3)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


IMAGE = {"shape": (10, 10, 3), "dtype": np.uint8}
MISFITS = [
    np.zeros((10, 10, 1), np.uint8),
    np.zeros((10, 10, 3), np.float32),
    np.zeros((10, 10, 3), np.int64),
    [[1, 2], [3]],
]


@pytest.mark.parametrize("misfit", MISFITS, ids=["shape", "float", "int64", "ragged"])
def test_observations_of_another_shape_or_dtype_are_refused(misfit):
    model = make_model(
        shared(Hostile(**IMAGE), Hostile(**IMAGE), Hostile(at=20, observation=misfit, **IMAGE))
    )
    reason = "(of shape .* its space has|that is no array)"
    message = f"^environment 2 gave an observation {reason}.*, after num_timesteps=57$"
    with pytest.raises(ValueError, match=message):
        model.learn(100)
    assert model.replay_buffer.size() == 19


def test_a_loss_that_is_not_finite_changes_no_weights():
    model = make_model(Corridor(), target_class=TDTargets, policy_kwargs=PLAIN)
    updates = count_updates(model)
    model.learn(30)
    name, spoilt = next(iter(model.q_net_target.named_parameters()))
    spoilt.data.view(-1)[0] = np.nan
    before = parameters(model)
    state = copy.deepcopy(model.policy.optimizer.state_dict()["state"])
    n_updates = len(updates)
    message = (
        f"loss of update {n_updates + 1}, after num_timesteps=31 is nan: .*"
        rf" Not finite already: q_net_target\.{name}$"
    )
    with pytest.raises(FloatingPointError, match=message):
        model.learn(10, reset_num_timesteps=False)
    assert len(updates) == n_updates
    assert th.equal(parameters(model).nan_to_num(7), before.nan_to_num(7))
    for key, values in model.policy.optimizer.state_dict()["state"].items():
        assert th.equal(values["exp_avg"], state[key]["exp_avg"])


@pytest.mark.parametrize("target_class", [TDTargets, PlannedTargets])
def test_a_loss_may_overflow_with_finite_parameters(target_class):
    model = make_model(Corridor(), target_class=target_class, policy_kwargs=PLAIN).learn(30)
    for values in model.policy.parameters():
        values.data *= 1e15
    with pytest.raises(
        FloatingPointError, match=r"is (nan|inf): .* All parameters of the networks are finite$"
    ):
        model.train(3)


def test_the_check_on_a_device_names_the_update():
    """
    A CUDA device checks the loss by an operation that the CPU has too.

    On the CPU the operation raises an error at once.
    """

    class OnDevice(th.Tensor):
        is_cuda = True

    errors.check_loss(th.zeros(()).as_subclass(OnDevice), th.nn.Linear(1, 1), 2, 6)
    with pytest.raises(
        RuntimeError, match="the loss of update 3, after num_timesteps=6 is not finite"
    ):
        errors.check_loss(th.full((), np.nan).as_subclass(OnDevice), th.nn.Linear(1, 1), 3, 6)


CUDA = """
import torch as th
from sb3_manygoals import errors

network = th.nn.Linear(1, 1).cuda()
good = th.zeros((), device="cuda")
bad = th.full((), float("nan"), device="cuda")
th.cuda.set_sync_debug_mode("error")
errors.check_loss(good, network, 1, 5)
errors.check_loss(bad, network, 2, 6)
th.cuda.set_sync_debug_mode("default")
print(bad.item())
"""
"""Checks two losses without waiting for the device, and waits for it then."""


@pytest.mark.skipif(not th.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_device_stops_itself():
    done = subprocess.run(
        [sys.executable, "-c", CUDA], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode != 0
    assert "the loss of update 2, after num_timesteps=6 is not finite" in done.stderr
