"""A restored environment does what the first would have done, for all kinds; what cannot be restored is refused by name."""

import copy
import functools
from collections import deque
from enum import Enum

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from gymnasium.envs.toy_text import TaxiEnv
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import (
    DelayObservation,
    FrameStackObservation,
    NormalizeObservation,
    NormalizeReward,
    RecordEpisodeStatistics,
    ReshapeObservation,
    StickyAction,
    TimeAwareObservation,
    TimeLimit,
)
from gymnasium.wrappers.vector import NormalizeObservation as VectorNormalizeObservation
from gymnasium.wrappers.vector import RecordEpisodeStatistics as VectorRecordEpisodeStatistics
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.atari_wrappers import (
    ClipRewardEnv,
    EpisodicLifeEnv,
    FireResetEnv,
    MaxAndSkipEnv,
    NoopResetEnv,
    StickyActionEnv,
)
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecCheckNan,
    VecEnv,
    VecExtractDictObs,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
)

from gym_twoRooms import TwoRoomsSwitchEnv, TwoRoomsSwitchVectorEnv
from sb3_manygoals import GoalBufferWrapper, GymnasiumVecEnv, VecGoalBufferWrapper
from sb3_manygoals.checkpoint.envs import StatefulEnv, get_env_state, set_env_state
from sb3_manygoals.checkpoint.tree import CheckpointError
from sb3_manygoals.goals import GoalSelector
from sb3_manygoals.goals.wrappers import current_reset_infos
from tests.sb3_manygoals.worlds import Corridor

SMALL = "gym_twoRooms:TwoRoomsSwitchSmall-v0"
MODES = list(AutoresetMode)


class Lives(Corridor):
    """What SB3's Atari wrappers ask of a game."""

    def __init__(self, **kwargs):
        super().__init__(length=9, deadly=True, **kwargs)
        self.left = 3
        self.ale = self

    def get_action_meanings(self):
        return ["NOOP", "FIRE", "UP"]

    def lives(self):
        return self.left

    def reset(self, **kwargs):
        self.left = 3
        return super().reset(**kwargs)

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        self.left -= terminated
        return obs, reward, terminated and self.left == 0, truncated, info


class Phase(Enum):
    CALM = 1
    STORM = 2


class Tangle(gym.Env):
    """Attributes of all kinds that share things with each other and with a space."""

    def __init__(self):
        self.observation_space = spaces.Box(-100, 100, (6,), np.float64)
        self.action_space = spaces.Discrete(3)
        self.history = deque(maxlen=3)
        self.phase = Phase.CALM
        self.weights = th.zeros(2)
        self.old = np.random.RandomState(0)
        self.seen = set()
        self.rewards = [lambda action: float(action), float]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.rng = self.np_random
        self.action_space._np_random = self.rng
        self.body = np.zeros(6)
        self.head, self.tail = self.body[:2], self.body[::-2]
        self.bag = []
        self.bags = {"mine": self.bag, 1: (self.bag, [self.bag])}
        self.loop = [1]
        self.loop.append(self.loop)
        return self.body.copy(), {}

    def step(self, action):
        self.head += self.rng.normal(size=2)
        self.tail -= self.np_random.normal(size=3) + self.old.rand()
        self.weights += self.action_space.sample()
        self.bags[1][1][0].append(int(action))
        self.history.append(int(action))
        self.seen.add((int(action), self.loop[1][1][0]))
        self.phase = Phase.STORM if self.head[0] > 0 else Phase.CALM
        info = {"bag": list(self.bag), "history": list(self.history), "phase": self.phase.name, "seen": sorted(self.seen)}
        info["same"] = self.bag is self.bags["mine"] and self.loop[1] is self.loop and self.rng is self.np_random
        info["weights"] = self.weights.numpy().copy()
        return self.body.copy(), self.rewards[0](action), len(self.bag) >= 7, False, info


class Recent(GoalSelector):
    """A rule with a memory."""

    def __init__(self):
        self.chosen = [0]

    def select(self, goal_buffer, current_ids, rng):
        ids = (rng.integers(len(goal_buffer), size=len(current_ids)) + self.chosen[-1]) % len(goal_buffer)
        self.chosen.append(int(ids[-1]))
        return ids


class DictObs(gym.ObservationWrapper):
    def __init__(self, env):
        super().__init__(env)
        self.observation_space = spaces.Dict({"image": env.observation_space})

    def observation(self, observation):
        return {"image": observation}


def cartpole():
    return gym.make("CartPole-v1", max_episode_steps=17)


def small(**kwargs):
    return gym.make(SMALL, max_episode_steps=9, **kwargs)


def corridor(**kwargs):
    return TimeLimit(Corridor(length=5, deadly=True, **kwargs), 7)


def monitored():
    return Monitor(small())


def stateful():
    return StatefulEnv(Monitor(corridor()))


def atari():
    env = NoopResetEnv(StickyActionEnv(Lives(image=True), 0.3), 3)
    return ClipRewardEnv(FireResetEnv(EpisodicLifeEnv(MaxAndSkipEnv(env, 2))))


def image_corridor():
    return corridor(image=True)


def reward_normalized():
    return NormalizeReward(NormalizeObservation(cartpole()))


def vector(make_env, kind=SyncVectorEnv, n=3, **kwargs):
    return kind([make_env] * n, **kwargs)


def goals(make_env=small):
    return GoalBufferWrapper(make_env(), selector=Recent(), max_episode_steps=6)


ENVIRONMENTS = {
    "CartPole": cartpole,
    "MountainCar": lambda: gym.make("MountainCar-v0", max_episode_steps=30),
    "Pendulum": lambda: gym.make("Pendulum-v1", max_episode_steps=30),
    "Acrobot": lambda: gym.make("Acrobot-v1", max_episode_steps=30),
    "FrozenLake": lambda: gym.make("FrozenLake-v1"),
    "CliffWalking": lambda: gym.make("CliffWalking-v1", is_slippery=True, max_episode_steps=30),
    "Taxi": lambda: TimeLimit(TaxiEnv(), 30),
    "Blackjack": lambda: gym.make("Blackjack-v1"),
    "TwoRooms": small,
    "Corridor": corridor,
    "Tangle": Tangle,
    "atari wrappers": atari,
    "StatefulEnv": stateful,
    "goals": goals,
    "FrameStack": lambda: FrameStackObservation(small(), 3),
    "statistics": lambda: RecordEpisodeStatistics(ReshapeObservation(cartpole(), (2, 2)), buffer_length=5),
    "TimeAware, Delay": lambda: TimeAwareObservation(DelayObservation(cartpole(), 2)),
    "Normalize": reward_normalized,
    "StickyAction": lambda: StickyAction(cartpole(), 0.4, (1, 3)),
    "Monitor": monitored,
    "drawn": lambda: gym.make("CartPole-v1", render_mode="rgb_array"),
    **{
        f"MiniGrid {name}": functools.partial(gym.make, f"MiniGrid-{name}-v0", max_steps=40)
        for name in ("DoorKey-5x5", "Dynamic-Obstacles-5x5", "KeyCorridorS3R2", "MultiRoom-N2-S4", "ObstructedMaze-1Dlhb")
    },
    "Dummy": lambda: DummyVecEnv([monitored] * 3),
    "Dummy dict": lambda: VecExtractDictObs(DummyVecEnv([lambda: DictObs(small())] * 2), "image"),
    "Dummy goals": lambda: DummyVecEnv([goals] * 2),
    "VecMonitor": lambda: VecMonitor(DummyVecEnv([small] * 3)),
    "VecFrameStack": lambda: VecFrameStack(VecTransposeImage(DummyVecEnv([image_corridor] * 3)), 2),
    "VecFrameStack dict": lambda: VecFrameStack(DummyVecEnv([lambda: DictObs(image_corridor())] * 2), 3),
    "VecNormalize": lambda: VecCheckNan(VecNormalize(DummyVecEnv([cartpole] * 3))),
    "VecGoal": lambda: VecGoalBufferWrapper(DummyVecEnv([small] * 3), max_episode_steps=6),
    "VecGoal worlds go on": lambda: VecGoalBufferWrapper(VecFrameStack(DummyVecEnv([small] * 2), 2), max_episode_steps=6),
    "Subproc": lambda: SubprocVecEnv([stateful] * 2, start_method="fork"),
    "Subproc goals": lambda: VecGoalBufferWrapper(SubprocVecEnv([stateful] * 2, start_method="fork"), max_episode_steps=6),
    **{f"Sync {mode.name}": functools.partial(vector, cartpole, autoreset_mode=mode) for mode in MODES},
    **{f"Async {mode.name}": functools.partial(vector, stateful, AsyncVectorEnv, 2, autoreset_mode=mode) for mode in MODES},
    "Async without shared memory": lambda: AsyncVectorEnv([stateful] * 2, shared_memory=False),
    "vector wrappers": lambda: VectorRecordEpisodeStatistics(VectorNormalizeObservation(vector(cartpole))),
    "CartPole native": lambda: gym.make_vec("CartPole-v1", 3, "vector_entry_point"),
    **{
        f"GymnasiumVecEnv {mode.name} of {name}": functools.partial(lambda make, mode: GymnasiumVecEnv(make(mode)), make, mode)
        for mode in (AutoresetMode.SAME_STEP, AutoresetMode.DISABLED)
        for name, make in {
            "Sync": lambda mode: vector(corridor, autoreset_mode=mode),
            "Async": lambda mode: vector(stateful, AsyncVectorEnv, 2, autoreset_mode=mode),
            "native": lambda mode: gym.make_vec(SMALL, 3, max_episode_steps=6, autoreset_mode=mode),
        }.items()
    },
    "VecGoal native": lambda: VecGoalBufferWrapper(
        GymnasiumVecEnv(gym.make_vec(SMALL, 3, max_episode_steps=9, autoreset_mode="Disabled")), max_episode_steps=6
    ),
}


class Driver:
    """Steps any kind of environment, and resets it wherever that is up to the caller."""

    def __init__(self, env):
        self.env = env

    def reset(self, seed):
        if isinstance(self.env, VecEnv):
            self.env.seed(seed)
            self.env.action_space.seed(seed)
            return self.env.reset(), copy.deepcopy(current_reset_infos(self.env))
        self.env.action_space.seed(seed)
        return self.env.reset(seed=seed)

    def step(self):
        if isinstance(self.env, VecEnv):
            actions = np.array([self.env.action_space.sample() for _ in range(self.env.num_envs)])
            return actions, self.env.step(actions), copy.deepcopy(current_reset_infos(self.env))
        actions = self.env.action_space.sample()
        result = self.env.step(actions)
        ended = np.logical_or(result[2], result[3])
        if isinstance(self.env, VectorEnv):
            if self.env.metadata["autoreset_mode"] is AutoresetMode.DISABLED and ended.any():
                return actions, result, self.env.reset(options={"reset_mask": ended})
            return actions, copy.deepcopy(result)
        return actions, result, self.env.reset() if ended else None

    def buffers(self):
        env = self.env
        if isinstance(env, VecGoalBufferWrapper):
            return [env.goal_buffer]
        if isinstance(env, DummyVecEnv) and all(env.env_is_wrapped(GoalBufferWrapper)):
            return env.get_attr("goal_buffer")
        return [env.goal_buffer] if isinstance(env, GoalBufferWrapper) else []


def assert_same(left, right, where=""):
    """Bit-equal, types included; but for the times in the statistics of episodes."""
    assert type(left) is type(right), where
    if isinstance(left, dict):
        assert list(left) == list(right), where
        for key in left:
            if not (key in ("t", "_t") and "r" in left):
                assert_same(left[key], right[key], f"{where}.{key}")
    elif isinstance(left, (list, tuple, deque)):
        assert len(left) == len(right), where
        for index, (one, other) in enumerate(zip(left, right, strict=True)):
            assert_same(one, other, f"{where}[{index}]")
    elif isinstance(left, np.ndarray):
        assert (left.dtype, left.shape) == (right.dtype, right.shape), where
        if left.dtype.hasobject:
            assert_same(left.tolist(), right.tolist(), where)
        else:
            assert left.tobytes() == right.tobytes(), where
    elif isinstance(left, np.random.Generator):
        assert_same(left.bit_generator.state, right.bit_generator.state, where)
    elif isinstance(left, np.random.RandomState):
        assert_same(left.get_state(), right.get_state(), where)
    elif isinstance(left, th.Tensor):
        assert_same(left.numpy(), right.numpy(), where)
    else:
        assert left == right or (left != left and right != right), where


def leaves(tree):
    """Everything in a tree that could be changed."""
    if isinstance(tree, (dict, list, tuple, set, deque)):
        yield tree
        for one in tree.values() if isinstance(tree, dict) else tree:
            yield from leaves(one)
    elif isinstance(tree, (np.ndarray, np.random.Generator, np.random.RandomState, th.Tensor)):
        yield tree


def assert_plain(tree):
    plain = (type(None), bool, int, float, str, bytes, list, tuple, dict, set, deque, np.ndarray, np.random.Generator)
    for leaf in leaves(tree):
        assert type(leaf) in (*plain, np.random.RandomState, th.Tensor), type(leaf)
        if isinstance(leaf, (dict, list, tuple, set, deque)):
            for one in leaf.values() if isinstance(leaf, dict) else leaf:
                assert type(one) in (*plain, np.random.RandomState, th.Tensor) or isinstance(one, np.generic), type(one)
        assert not (isinstance(leaf, np.ndarray) and leaf.dtype.hasobject)


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
    assert_plain(state)
    kept = copy.deepcopy(state)
    again = build(name)
    for mine, theirs in zip(again.buffers(), first.buffers(), strict=True):
        mine.set_checkpoint_state(theirs.get_checkpoint_state())
    set_env_state(again.env, state)
    if name != "drawn":  # what is not drawn yet has attributes that a picture has not
        assert_without_times(get_env_state(again.env), get_env_state(first.env))
    for _ in range(60 if "Subproc" in name or "Async" in name else 300):
        assert_same(again.step(), first.step())
    assert_same(again.reset(8), first.reset(8))
    assert_same(state, kept)  # stepping changed nothing in it


def without_times(tree):
    if isinstance(tree, dict):
        times = {"t_start", "episode_times", "time_queue", "episode_start_time", "episode_start_times", "t"}
        return {key: without_times(one) for key, one in tree.items() if key not in times}
    return [without_times(one) for one in tree] if isinstance(tree, (list, tuple)) else tree


def assert_without_times(left, right):
    assert_same(without_times(left), without_times(right))


SOME = ("Tangle", "goals", "MiniGrid DoorKey-5x5", "Dummy", "VecGoal", "VecFrameStack", "Sync NEXT_STEP", "VecGoal native")


@pytest.mark.parametrize("name", [*SOME, "Subproc", "Async NEXT_STEP", "atari wrappers"])
def test_to_be_asked_disturbs_nothing(build, name):
    first, other = build(name, 0), build(name, 0)
    for _ in range(30):
        state = get_env_state(first.env)
        assert_same(first.step(), other.step())
    set_env_state(first.env, state)  # back by one step, in the same environment


@pytest.mark.parametrize("name", SOME)
def test_a_state_shares_nothing(build, name):
    first, again = build(name, 12), build(name)
    state, second = get_env_state(first.env), get_env_state(first.env)
    for mine, theirs in zip(again.buffers(), first.buffers(), strict=True):
        mine.set_checkpoint_state(theirs.get_checkpoint_state())
    set_env_state(again.env, state)
    ids = {id(leaf) for leaf in leaves(state) if not isinstance(leaf, tuple)}
    assert ids.isdisjoint(id(leaf) for leaf in leaves(second))
    for leaf in leaves(state):
        if isinstance(leaf, np.ndarray):
            leaf[...] = 1
        elif isinstance(leaf, np.random.Generator):
            leaf.random(3)
    for leaf in list(leaves(state)):
        if isinstance(leaf, (list, dict, deque)):
            leaf.clear()
    for _ in range(30):
        assert_same(again.step(), first.step())
    set_env_state(first.env, second)


@pytest.mark.parametrize("mode", MODES)
@given(steps=st.integers(0, 40), seed=st.integers(0, 2**31), more=st.integers(0, 20), reset=st.booleans(), n=st.integers(1, 4))
@settings(max_examples=15)
def test_vectors_of_two_rooms(mode, steps, seed, more, reset, n):
    def make():
        return Driver(TwoRoomsSwitchVectorEnv(n, "small", max_episode_steps=5, autoreset_mode=mode))

    first, again = make(), make()
    first.reset(seed)
    # not all seeded: the other generators come into being when they are needed
    first.env.reset(seed=[seed] + [None] * (n - 1), options={"state": 3})
    for _ in range(steps):
        first.step()
    if reset:
        again.reset(1)
        again.step()
    set_env_state(again.env, get_env_state(first.env))
    for _ in range(more):
        assert_same(again.step(), first.step())
    state = get_env_state(first.env)["tree"]["state"]
    assert_same(get_env_state(again.env)["tree"]["state"], state)
    lazy = [row for row, generator in enumerate(state["streams"]["generators"]) if generator is None]
    first.reset(5)
    set_env_state(first.env, get_env_state(again.env))
    assert [row for row, one in enumerate(first.env._streams._generators) if one is None] == lazy
    seeds = list(range(n))
    assert_same(first.env.reset(seed=seeds), again.env.reset(seed=seeds))
    for _ in range(400):  # more numbers than are read ahead
        assert_same(again.step(), first.step())


@pytest.mark.parametrize("mode", MODES)
def test_async_vector_envs_at_all_moments(mode):
    first, *others = [AsyncVectorEnv([stateful] * 2, autoreset_mode=mode) for _ in range(2)]
    first.reset(seed=1)
    rng = np.random.default_rng(0)
    waiting = 0
    for _ in range(12):
        actions = rng.integers(3, size=(4, 2))
        _, _, terminated, truncated, _ = first.step(actions[0])
        ended = terminated | truncated
        waiting += ended.any() and not ended.all()
        if mode is AutoresetMode.DISABLED and ended.any():
            first.reset(options={"reset_mask": ended})
        (again,) = others
        again.reset()  # a worker may have been about to reset its environment
        set_env_state(again, get_env_state(first))
        if mode is AutoresetMode.DISABLED:
            mask = np.array([True, False])
            assert_same(again.reset(options={"reset_mask": mask}), first.reset(options={"reset_mask": mask}))
        else:
            assert_same([again.step(one) for one in actions[1:]], [first.step(one) for one in actions[1:]])
    assert waiting
    first.close()
    again.close()


def test_an_async_vector_env_that_is_about_to_reset_is_refused():
    def make():
        return AsyncVectorEnv([lambda: StatefulEnv(TimeLimit(Corridor(start=0), 1))])

    first, again = make(), make()
    for env in (first, again):
        env.reset(seed=0)
    state = get_env_state(first)
    again.step(np.array([0]))
    with pytest.raises(
        CheckpointError, match=r"environment 0 of AsyncVectorEnv: an environment .* waits for its reset: build"
    ):
        set_env_state(again, state)
    again.step_async(np.array([0]))
    with pytest.raises(CheckpointError, match="AsyncVectorEnv is in the middle of a step"):
        get_env_state(again)
    again.step_wait()
    set_env_state(again, state)  # the reset has been
    first.close()
    again.close()


def test_times_go_on_without_the_pause(monkeypatch):
    now = 1000.0
    monkeypatch.setattr("time.time", lambda: now)
    monkeypatch.setattr("time.perf_counter", lambda: now)
    first = Monitor(RecordEpisodeStatistics(TimeLimit(Corridor(), 2), stats_key="statistics"))
    first.reset(seed=0)
    first.step(0)
    now = 1007.0
    state = get_env_state(first)
    now = 5000.0
    again = Monitor(RecordEpisodeStatistics(TimeLimit(Corridor(), 2), stats_key="statistics"))
    set_env_state(again, state)
    now = 5002.0
    info = again.step(0)[4]
    assert info["episode"]["t"] == info["statistics"]["t"] == 9.0


def test_rows_go_to_the_file_of_the_new_monitor(tmp_path):
    first, again = (Monitor(corridor(), str(tmp_path / name)) for name in ("first", "again"))
    first.reset(seed=0)
    for _ in range(7):
        *_, truncated, _ = first.step(2)
    assert truncated
    set_env_state(again, get_env_state(first))
    assert again.get_episode_lengths() == [7]
    for env in (first, again):
        env.reset()
        for _ in range(7):
            env.step(2)
        env.close()
    assert again.get_episode_rewards() == first.get_episode_rewards()
    assert len((tmp_path / "first.monitor.csv").read_text().splitlines()) == 4
    assert len((tmp_path / "again.monitor.csv").read_text().splitlines()) == 3


class Counting(gym.Wrapper):
    """Has methods of its own, a part with methods, and refers to what is inside."""

    def __init__(self, env, start=0):
        super().__init__(env)
        self.base, self.start, self.n, self.hidden = env.unwrapped, start, start, open

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
    """Forwards all that it has not, as SB3's VecEnvWrapper does."""

    def __init__(self, env):
        super().__init__(env)
        self.total = 0
        self.rules = {"goal": Recent()}

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return self.env.get_wrapper_attr(name)

    def step(self, action):
        self.total += 1
        self.rules["goal"].chosen.append(self.total)
        *result, info = self.env.step(action)
        return *result, {**info, "total": self.total, "chosen": list(self.rules["goal"].chosen)}


def test_own_methods_are_used_and_not_those_of_what_is_inside():
    first, again = (Outer(TimeLimit(Counting(Corridor()), 9)) for _ in range(2))
    assert first.get_checkpoint_state  # forwarded
    first.reset(seed=0)
    for _ in range(5):
        first.step(1)
    state = get_env_state(first)
    inner = state["tree"]["inner"]["env"]
    assert state["tree"]["state"] is inner["state"] is None
    assert inner["inner"]["env"]["state"] == {"n": 5, "start": 0}
    set_env_state(again, state)
    for _ in range(4):
        assert_same(again.step(1), first.step(1))
    with pytest.raises(CheckpointError, match="the state does not fit Counting: it counts from 0, not 3"):
        set_env_state(Outer(TimeLimit(Counting(Corridor(), 3), 9)), state)


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        (corridor, Corridor, r"state is of gymnasium.wrappers.common.TimeLimit \(.*Corridor\), and this is tests.*Corridor$"),
        (lambda: Monitor(corridor()), lambda: TimeLimit(Monitor(Corridor()), 7), "built otherwise: .*Monitor"),
        (lambda: DummyVecEnv([corridor] * 3), lambda: DummyVecEnv([corridor] * 2), r"DummyVecEnv of 3 .*DummyVecEnv of 2 "),
        (lambda: vector(corridor, n=3), lambda: vector(corridor, n=2), r"SyncVectorEnv of 3 .*SyncVectorEnv of 2 "),
        (lambda: DummyVecEnv([corridor]), lambda: DummyVecEnv([cartpole]), "Corridor.*, and this is .*CartPole"),
        (
            lambda: TwoRoomsSwitchEnv("small"),
            lambda: TwoRoomsSwitchEnv("small", 0.1),
            "does not fit TwoRoomsSwitchEnv: The state is of another world: its slip_probability is 0.5, here it is 0.1",
        ),
        (lambda: TwoRoomsSwitchEnv("small"), TwoRoomsSwitchEnv, r"its layout is \n[^ ]+\n, here it is \n[^ ]+\n\."),
        (
            lambda: TwoRoomsSwitchVectorEnv(2, "small", max_episode_steps=4),
            lambda: TwoRoomsSwitchVectorEnv(2, "small"),
            "its max_episode_steps is 4, here it is None",
        ),
        (goals, lambda: GoalBufferWrapper(small(), selector=Recent()), "max_episode_steps=6, not 50"),
        (goals, lambda: GoalBufferWrapper(small(), max_episode_steps=6), "selector='Recent', not 'UniformSelector'"),
        (
            lambda: VecGoalBufferWrapper(DummyVecEnv([small])),
            lambda: VecGoalBufferWrapper(DummyVecEnv([small]), reset_worlds=False),
            "reset_worlds=True, not False",
        ),
        (
            lambda: DictObs(corridor()),
            lambda: Renamed(DictObs(corridor())).env,
            "DictObs._observation_space was built otherwise",
        ),
    ],
)
def test_what_was_built_otherwise_is_refused(left, right, message):
    first, other = left(), right()
    first.reset()
    with pytest.raises(CheckpointError, match=message):
        set_env_state(other, get_env_state(first))


class Renamed(gym.Wrapper):
    def __init__(self, env):
        super().__init__(env)
        env.observation_space = spaces.Dict({"picture": env.env.observation_space})


class Window:
    pass


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        (
            "viewer",
            Window(),
            r"Corridor.viewer is a .*test_envs.Window, .* give .* the methods get_checkpoint_state\(\) and set",
        ),
        ("things", {"a": [1, (Window(),)]}, r"Corridor.things\['a'\]\[1\]\[0\] is a .*Window"),
        ("objects", np.array([None]), r"Corridor.objects is a numpy.ndarray"),
        ("handle", open(__file__), r"Corridor.handle is a _io.TextIOWrapper"),  # noqa: SIM115
        ("keyed", {Window: 1}, r"Corridor.keyed has a key of type type"),
        ("chosen", {frozenset()}, r"an element of Corridor.chosen is a builtins.frozenset"),
    ],
)
def test_what_cannot_be_saved_is_refused_by_name(attribute, value, message):
    env = corridor()
    setattr(env.unwrapped, attribute, value)
    with pytest.raises(CheckpointError, match=message):
        get_env_state(env)
    venv = SubprocVecEnv([lambda: StatefulEnv(env)] * 2, start_method="fork")
    with pytest.raises(CheckpointError, match=f"environment 0 of SubprocVecEnv: {message}"):
        get_env_state(venv)
    venv.reset()  # the workers live
    venv.close()
    if hasattr(value, "close"):
        value.close()


class Slotted(Corridor):
    __slots__ = ("hidden",)


def test_other_things_are_refused():
    with pytest.raises(CheckpointError, match="Slotted has __slots__"):
        get_env_state(Slotted())
    with pytest.raises(CheckpointError, match="env must be an environment, got int"):
        get_env_state(3)
    with pytest.raises(CheckpointError, match="this is not the state of an environment"):
        set_env_state(corridor(), {})


def test_babyai_is_refused():
    pytest.importorskip("minigrid")
    env = gym.make("BabyAI-GoToRedBall-v0")
    env.reset(seed=0)
    with pytest.raises(CheckpointError, match=r"GoToRedBall.instrs.env is a .*GoToRedBall"):
        get_env_state(env)


@pytest.mark.parametrize("game", ["Breakout", "Qbert"])
@pytest.mark.parametrize("steps", [0, 1, 40])
def test_atari_games(game, steps):
    gym.register_envs(pytest.importorskip("ale_py"))

    def make(**kwargs):
        env = StickyActionEnv(Monitor(gym.make(f"ALE/{game}-v5", frameskip=(2, 5), **kwargs)), 0.25)
        return Driver(EpisodicLifeEnv(MaxAndSkipEnv(NoopResetEnv(env), 2)))

    first, again = make(repeat_action_probability=0), make(repeat_action_probability=0)
    first.reset(5)
    for _ in range(steps):
        first.step()
    state = get_env_state(first.env)
    assert_plain(state)
    set_env_state(again.env, state)
    for _ in range(100):
        assert_same(again.step(), first.step())
    with pytest.raises(CheckpointError, match="make the game with repeat_action_probability=0"):
        get_env_state(make().env)


@pytest.mark.parametrize("kind", [functools.partial(SubprocVecEnv, start_method="fork"), AsyncVectorEnv])
@pytest.mark.parametrize("make_env", [corridor, Corridor, lambda: TimeLimit(stateful(), 3)])
def test_workers_need_a_stateful_env_outermost(kind, make_env):
    env = kind([make_env] * 2)
    with pytest.raises(CheckpointError, match=r"put a StatefulEnv around each, outermost, as in .*\(\[lambda: StatefulEnv\("):
        get_env_state(env)
    env.reset()  # the workers live
    env.close()


def test_async_without_shared_memory_cannot_be_reset_by_hand():
    env = AsyncVectorEnv([stateful], shared_memory=False, autoreset_mode=AutoresetMode.DISABLED)
    with pytest.raises(CheckpointError, match="use shared_memory=True"):
        get_env_state(env)
    env.close()
