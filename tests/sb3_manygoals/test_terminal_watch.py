"""Tests of environments that return one array again and again."""

import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from stable_baselines3 import A2C
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecFrameStack,
    VecMonitor,
    VecTransposeImage,
)

from sb3_manygoals import (
    AuxiliaryActorCriticPolicy,
    GoalBufferWrapper,
    GymnasiumVecEnv,
    ManyGoalsCallback,
    ManyGoalsDQN,
    VecGoalBufferWrapper,
    evaluate_mastery,
)
from sb3_manygoals.checkpoint.envs import get_env_state, set_env_state
from sb3_manygoals.pretraining import RewardPredictor
from sb3_manygoals.terminal_watch import TerminalWatch
from tests.sb3_manygoals.checkpoint import trees
from tests.sb3_manygoals.worlds import Always


class Reusing(gym.Env):
    """
    Cells in a row, in which an episode is a walk to the right.

    One array shows all observations, unless ``copies`` is true.
    """

    action_space = spaces.Discrete(2)

    def __init__(self, starts=5, copies=False, home=False, length=4):
        self.observation_space = spaces.Box(0, 20, (1,), np.float32)
        self.state = np.zeros(1, np.float32)
        self.starts = starts
        self.copies = copies
        self.home = home
        self.length = length

    def show(self):
        return self.state.copy() if self.copies else self.state

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state[0] = self.np_random.integers(self.starts)
        self.steps = 0
        return self.show(), {}

    def step(self, action):
        self.steps += 1
        self.state += 1
        ended = self.steps == self.length
        if ended and self.home:
            self.state[0] = 0
        return self.show(), float(ended), ended, False, {}


def copying(**kwargs):
    return Reusing(copies=True, **kwargs)


def one_start():
    return Reusing(starts=1)


def home():
    return Reusing(copies=True, starts=1, home=True)


SAME_STEP = AutoresetMode.SAME_STEP
CERTAIN = r"environment \d writes into an array that it has handed out: .* return copies"
LIKELY = r"the last observation of \d+ episodes was the first of the next: .*If episodes do end"


def dummy(make):
    return DummyVecEnv([make] * 2)


def subproc(make):
    return SubprocVecEnv([make] * 2, start_method="fork")


def sync(make):
    return GymnasiumVecEnv(SyncVectorEnv([make] * 2, autoreset_mode=SAME_STEP))


def counted(make):
    worlds = SyncVectorEnv([make] * 2, autoreset_mode=SAME_STEP)
    return GymnasiumVecEnv(RecordEpisodeStatistics(worlds))


class Buffered(VectorEnv):
    """Two worlds that are stepped together. One array has all observations of both."""

    metadata = {"autoreset_mode": SAME_STEP}  # noqa: RUF012

    def __init__(self, make):
        self.num_envs = 2
        self.worlds = [make(), make()]
        self.single_observation_space = self.worlds[0].observation_space
        self.single_action_space = self.worlds[0].action_space
        self.shown = np.zeros((2, 1), np.float32)

    def reset(self, *, seed=None, options=None):
        for row, world in enumerate(self.worlds):
            self.shown[row] = world.reset()[0]
        return self.shown, {}

    def step(self, actions):
        taken = [world.step(action) for world, action in zip(self.worlds, actions, strict=True)]
        infos = {}
        ended = np.array([outcome[2] for outcome in taken])
        self.shown[:] = [outcome[0] for outcome in taken]
        if ended.any():
            last = [self.shown[0], self.shown[1]]
            if self.worlds[0].copies:
                last = [row.copy() for row in last]
            infos = {"final_obs": last}
            self.reset()
        return self.shown, np.zeros(2), ended, np.zeros(2, bool), infos


def buffered(make):
    return GymnasiumVecEnv(Buffered(make))


def walk(venv, steps=300):
    venv.reset()
    for _ in range(steps):
        venv.step(np.zeros(venv.num_envs, int))
    venv.close()


@pytest.mark.parametrize("make", [Reusing, one_start])
@pytest.mark.parametrize(
    ("vector", "message"),
    [
        (dummy, CERTAIN),
        (lambda make: VecFrameStack(dummy(make), 2), CERTAIN),
        (lambda make: VecMonitor(dummy(make)), CERTAIN),
        (sync, CERTAIN),
        (counted, LIKELY),
        (subproc, LIKELY),
        (buffered, LIKELY),
    ],
)
def test_lost_terminal_observations_are_noticed_once(vector, message, make):
    with pytest.warns(UserWarning, match=message) as caught:
        walk(VecGoalBufferWrapper(vector(make)))
    assert len(caught) == 1


@pytest.mark.parametrize("vector", [dummy, sync, counted, subproc, buffered])
def test_copies_cause_no_warning(vector):
    walk(VecGoalBufferWrapper(vector(copying)))


@pytest.mark.parametrize("vector", [dummy, sync])
def test_episodes_that_end_where_the_next_begins_cause_no_warning(vector):
    walk(VecGoalBufferWrapper(vector(home)))


@pytest.mark.filterwarnings("ignore:20 goal episodes in a row began at their goal")
def test_a_world_of_one_observation_causes_no_warning():
    class Still(Reusing):
        def step(self, action):
            return np.zeros(1, np.float32), 0.0, True, False, {}

    walk(VecGoalBufferWrapper(subproc(lambda: Still(starts=1))))


def test_asynchronous_environments_are_looked_at():
    worlds = AsyncVectorEnv([Reusing] * 2, autoreset_mode=SAME_STEP, context="fork")
    with pytest.warns(UserWarning, match=LIKELY):
        walk(GymnasiumVecEnv(worlds))


def test_a_goal_wrapper_below_the_vector_environment_copies():
    """Nothing is lost then, and there is no warning."""
    env = GoalBufferWrapper(Reusing())
    model = ManyGoalsDQN("MlpPolicy", env, learning_starts=10, seed=0, device="cpu").learn(60)
    kept = model.goal_buffer.observations.ravel()
    assert kept.max() == 8
    rewarded = kept[np.nan_to_num(model.goal_rewards) > 0]
    assert set(rewarded.tolist()) <= {4, 5, 6, 7, 8}


def reset_by_us(make):
    return GymnasiumVecEnv(SyncVectorEnv([make] * 2, autoreset_mode=AutoresetMode.DISABLED))


def test_nothing_is_lost_if_our_vector_environment_resets():
    venv = VecGoalBufferWrapper(reset_by_us(Reusing))
    walk(venv)
    assert venv.goal_buffer.observations.max() == 8


@pytest.mark.parametrize("vector", [dummy, sync])
@pytest.mark.parametrize(
    "learn",
    [
        lambda venv: A2C(
            AuxiliaryActorCriticPolicy, venv, policy_kwargs={"embedding_dim": 8}
        ).learn(60, ManyGoalsCallback(beta=0.0)),
        lambda venv: RewardPredictor("MlpPolicy", venv, buffer_size=100).learn(60),
        lambda venv: ManyGoalsDQN("MlpPolicy", venv, learning_starts=100).learn(60),
    ],
)
def test_every_learner_notices(learn, vector):
    with pytest.warns(UserWarning, match=CERTAIN) as caught:
        learn(vector(Reusing))
    assert sum("handed out" in str(one.message) for one in caught) == 1
    learn(vector(copying))


def test_other_environments_are_looked_at_anew():
    model = RewardPredictor("MlpPolicy", dummy(copying), learning_starts=700).learn(700)
    assert model._terminal_watch.done
    model.set_env(dummy(Reusing))
    with pytest.warns(UserWarning, match=CERTAIN):
        model.learn(200)
    callback = ManyGoalsCallback(beta=0.0)
    a2c = A2C(AuxiliaryActorCriticPolicy, dummy(copying)).learn(700, callback)
    a2c.set_env(dummy(Reusing))
    with pytest.warns(UserWarning, match=CERTAIN):
        a2c.learn(200, callback)


def test_evaluation_of_mastery_notices():
    goals = np.full((2, 1), 20, np.float32)
    for mode in AutoresetMode:
        worlds = SyncVectorEnv([Reusing, lambda: Reusing(length=9)], autoreset_mode=mode)
        if mode is SAME_STEP:
            with pytest.warns(UserWarning, match=CERTAIN):
                evaluate_mastery(Always(0), worlds, goals, max_steps=20)
        else:
            evaluate_mastery(Always(0), worlds, goals, max_steps=20)


def test_a_saved_reward_predictor_can_be_loaded_after_a_warning(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = RewardPredictor("MlpPolicy", make_vec_env(Reusing, 2), buffer_size=100).learn(60)
    model.save(tmp_path / "model")
    RewardPredictor.load(tmp_path / "model", make_vec_env(copying, 2)).learn(60)


def test_checkpoints_of_a_vector_environment_are_as_before():
    venvs = [sync(copying), sync(copying)]
    for venv in venvs:
        venv.reset()
    venvs[0].step(np.zeros(2, int))
    set_env_state(venvs[1], get_env_state(venvs[0]))
    for _ in range(20):
        left, right = (venv.step(np.zeros(2, int)) for venv in venvs)
        trees.assert_same(left, right)


class Pictures(Reusing):
    """The same cells, shown as pictures with channels last."""

    def __init__(self, copies=False):
        super().__init__(copies=copies)
        self.observation_space = spaces.Box(0, 255, (40, 40, 3), np.uint8)
        self.state = np.zeros((40, 40, 3), np.uint8)

    def reset(self, *, seed=None, options=None):
        seen, info = super().reset(seed=seed)
        self.state[:] = self.state[0]
        return seen, info


@pytest.mark.parametrize(
    ("world", "transposed"), [(Reusing, False), (Pictures, False), (Pictures, True)]
)
@pytest.mark.parametrize("copies", [False, True])
def test_lost_observations_are_seen_below_a_stack_of_frames(world, transposed, copies):
    venv = VecFrameStack(SubprocVecEnv([lambda: world(copies=copies)] * 2, "fork"), 2)
    if transposed:
        venv = VecTransposeImage(venv)
    watch = TerminalWatch()
    venv.seed(0)
    observations = venv.reset()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(60):
            observations, _, dones, infos = venv.step(np.zeros(2, np.int64))
            watch.look(venv, observations, dones, infos)
    venv.close()
    lost = [one for one in caught if "one array again and again" in str(one.message)]
    assert len(lost) == (0 if copies else 1)
