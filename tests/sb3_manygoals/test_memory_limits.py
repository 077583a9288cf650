"""Tests that arrays that would not fit into memory are refused."""

import tracemalloc
import warnings

import gymnasium as gym
import numpy as np
import psutil
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from sb3_manygoals import GoalBuffer, GoalBufferWrapper, ManyGoalsDQN, memory_limits
from sb3_manygoals.checkpoint import CheckpointError
from sb3_manygoals.many_goals_dqn import ManyGoalsReplayBuffer, PlannedTargets, TDTargets
from sb3_manygoals.world import ExactStates
from tests.sb3_manygoals.many_goals_dqn.memories import CELLS, GOAL_SPACE, add, kept
from tests.sb3_manygoals.test_errors import make_model
from tests.sb3_manygoals.worlds import Corridor


@pytest.mark.parametrize("action_masks", [False, True])
@pytest.mark.parametrize(
    "space", [spaces.Box(0, 255, (4, 5, 3), np.uint8), spaces.Box(0, 1, (7,)), spaces.Discrete(9)]
)
def test_bytes_of_a_replay_memory_are_those_of_its_arrays(space, action_masks):
    goals = spaces.Dict({key: space for key in ("observation", "achieved_goal", "desired_goal")})
    arguments = (100, goals, spaces.Discrete(5))
    replay = ManyGoalsReplayBuffer(*arguments, n_envs=3, action_masks=action_masks)
    needed = ManyGoalsReplayBuffer.memory_needed(*arguments, 3, action_masks=action_masks)
    assert needed["replay state ids"] == replay.state_ids.nbytes
    # A memory keeps either ids of states or observations.
    replay.store_observations()
    arrays = [array for array in vars(replay).values() if isinstance(array, np.ndarray)]
    kept_now = sum(array.nbytes for array in arrays)
    assert sum(needed.values()) - needed["replay state ids"] == kept_now


def test_arrays_that_cannot_fit_are_refused():
    message = (
        r"^a goal buffer of capacity 1000000000000 would take 440\.2 TiB \(goals 440\.2 TiB\),"
        r" \d+\.\d [MG]iB are available: choose a smaller capacity$"
    )
    with pytest.raises(MemoryError, match=message):
        GoalBuffer(spaces.Box(0, 255, (10, 10, 3), np.uint8), capacity=10**12)
    message = (
        r"^the replay memory and the goals would take .*"
        r" \(.*replay next goal ids 3\.6 TiB, .*replay state ids 7\.3 TiB, goals .*available"
    )
    with warnings.catch_warnings():
        # SB3 would only warn, and only after it has allocated the arrays.
        warnings.simplefilter("error")
        with pytest.raises(MemoryError, match=message):
            make_model(Corridor(length=60), buffer_size=10**12)


GIB = 2**30


class Rooms(gym.Env):
    """
    Pictures of 8 x 8 places.

    It starts anywhere and never ends. Without ``recurs``, no picture is ever shown twice.
    """

    action_space = spaces.Discrete(4)

    def __init__(self, side=84, recurs=True):
        self.observation_space = spaces.Box(0, 255, (side, side, 3), np.uint8)
        self.recurs = recurs
        self.place = np.zeros(2, dtype=np.int64)
        self.shown = 0

    def show(self):
        picture = np.zeros(self.observation_space.shape, np.uint8)
        picture[tuple(self.place)] = 255
        if not self.recurs:
            self.shown += 1
            picture[-1, -4:, 0] = list(self.shown.to_bytes(4, "big"))
        return picture

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.np_random.integers(8, size=2)
        return self.show(), {}

    def step(self, action):
        move = ((0, 1), (1, 0), (0, -1), (-1, 0))[int(action)]
        self.place = np.clip(self.place + move, 0, 7)
        return self.show(), 0.0, False, False, {}


def pictured(world, monkeypatch, available=8 * GIB, **kwargs):
    """Make a learner of pictures on a machine with so many bytes of memory."""
    monkeypatch.setattr(memory_limits, "available_memory", lambda: available)
    settings = {"learning_starts": 50, "batch_size": 4, "goal_batch_size": 4, "seed": 0}
    settings["policy_kwargs"] = {"net_arch": [8], "embedding_dim": 8}
    return ManyGoalsDQN("CnnPolicy", world, **{**settings, **kwargs})


def test_pictures_that_recur_take_memory_only_once(monkeypatch):
    model = pictured(Rooms(), monkeypatch).learn(400)
    assert isinstance(model.targets, PlannedTargets)
    assert model.replay_buffer.buffer_size == model.buffer_size == 1_000_000
    assert not model.replay_buffer.stores_observations
    assert model.goal_buffer.capacity == 100_000


SIZE_OF_TRANSITION = 2 * 84 * 84 * 3
"""The bytes of the two pictures of a transition."""


@pytest.mark.filterwarnings("ignore:the goal buffer is full")
@pytest.mark.filterwarnings("ignore:number .* went on in every transition")
def test_pictures_that_do_not_recur_get_the_memory_that_fits(monkeypatch):
    # Once there are more pictures than states can be kept, transitions keep pictures themselves.
    world = Rooms(recurs=False)
    few = {"goal_buffer": GoalBuffer(world.observation_space, capacity=300)}
    model = pictured(world, monkeypatch, available=GIB // 4, goal_wrapper_kwargs=few)
    with pytest.warns(UserWarning, match="it keeps the newest [0-9]+. buffer_size=[0-9]+ asks"):
        model.learn(400)
    assert isinstance(model.targets, TDTargets)
    assert model.replay_buffer.stores_observations
    assert 1_000 <= model.replay_buffer.buffer_size <= GIB // 4 // SIZE_OF_TRANSITION
    # The last rollout is whole.
    assert model.replay_buffer.size() == model.num_timesteps >= 400
    _, arrived = model.replay_buffer.observations_at(slice(model.num_timesteps))
    assert (model.goal_buffer.states.ids(arrived[:250, 0]) >= 0).all()
    assert (model.goal_buffer.states.ids(arrived[300:, 0]) == -1).all()


def test_pictures_of_states_that_are_still_to_come_are_counted_too(monkeypatch):
    model = pictured(Rooms(), monkeypatch, available=GIB // 4, target_class=TDTargets)
    with pytest.warns(UserWarning, match="a replay memory of 1000000 transitions would take"):
        model.replay_buffer.store_observations()
    taken = sum(model.goal_buffer.memory_to_come.values())
    assert taken > GIB // 9
    assert 1_000 <= model.replay_buffer.buffer_size <= (GIB // 4 - taken) // SIZE_OF_TRANSITION
    model = pictured(Rooms(), monkeypatch, available=GIB // 20, target_class=TDTargets)
    with pytest.raises(MemoryError, match="choose a smaller buffer_size, or smaller observations"):
        model.replay_buffer.store_observations()


def test_with_goals_in_the_replay_memory_it_is_refused_at_once(monkeypatch):
    with pytest.warns(UserWarning, match="a replay memory of 1000000 transitions would take"):
        model = pictured(Rooms(), monkeypatch, available=GIB // 4, goals_in_replay=True)
    assert 1_000 <= model.replay_buffer.buffer_size <= GIB // 4 // SIZE_OF_TRANSITION
    with pytest.raises(MemoryError, match="choose a smaller buffer_size, or smaller observations"):
        pictured(Rooms(), monkeypatch, available=GIB // 40, goals_in_replay=True)


def test_the_default_capacity_is_what_fits(monkeypatch, tmp_path):
    monkeypatch.setattr(memory_limits, "available_memory", lambda: 8 * GIB)
    space = spaces.Box(0, 255, (400, 600, 3), np.uint8)
    goals = GoalBuffer(space)
    assert goals.capacity == 4 * GIB // (400 * 600 * 3 + 184)
    state = GoalBuffer(spaces.Discrete(100)).get_checkpoint_state()
    # A checkpoint restores its capacity on a machine with less memory.
    monkeypatch.setattr(memory_limits, "available_memory", lambda: 2**20)
    restored = GoalBuffer(spaces.Discrete(100))
    assert restored.capacity < 100_000
    restored.set_checkpoint_state(state)
    assert restored.capacity == 100_000
    np.testing.assert_array_equal(restored.add(np.arange(100)), np.arange(100))
    assert restored.states.capacity == 100_000


# With these numbers of environments, two steps are the fewest transitions that a memory may keep.
@given(st.integers(1, 40), st.integers(2, 12), st.integers(500, 502), st.booleans())
def test_a_memory_that_shrinks_keeps_the_newest_transitions(n, kept_steps, n_envs, numbered):
    buffer = ManyGoalsReplayBuffer(12 * n_envs, GOAL_SPACE, spaces.Discrete(3), "cpu", n_envs)
    if numbered:
        buffer.move_to(GoalBuffer(CELLS, 100), ExactStates(CELLS, 100))
    shown = []
    for time in range(n):
        there = np.arange(n_envs) % 60 + time % 30
        add(buffer, there, time % 3, there + 1, ended=time % 2 == 0)
        shown.append(there)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        buffer.shrink(kept_steps * n_envs)
    assert buffer.buffer_size == min(kept_steps, 12)
    assert buffer.size() == min(n, kept_steps, 12)
    rows = (buffer.pos - buffer.size() + np.arange(buffer.size())) % buffer.buffer_size
    expected = np.array(shown[-buffer.size() :])
    here, there = kept(buffer)
    np.testing.assert_array_equal(here[rows], expected)
    np.testing.assert_array_equal(there[rows], expected + 1)
    first = n - buffer.size()
    np.testing.assert_array_equal(buffer.actions[rows, 0, 0], np.arange(first, n) % 3)
    # The memory goes on from there, and so does one restored from its checkpoint.
    other = ManyGoalsReplayBuffer(12 * n_envs, GOAL_SPACE, spaces.Discrete(3), "cpu", n_envs)
    if numbered:
        other.move_to(GoalBuffer(CELLS, 100), buffer.states)
    other.set_checkpoint_state(buffer.get_checkpoint_state())
    assert other.stores_observations == buffer.stores_observations
    for each in (buffer, other):
        add(each, np.full(n_envs, 99), 1, np.full(n_envs, 98))
    assert other.buffer_size == buffer.buffer_size
    for left, right in zip(kept(buffer), kept(other), strict=True):
        np.testing.assert_array_equal(left, right)


def test_a_checkpoint_that_needs_more_memory_than_there_is_tells_so(monkeypatch):
    memory = (3_000, GOAL_SPACE, spaces.Discrete(3), "cpu", 1)
    saved = ManyGoalsReplayBuffer(*memory)
    for time in range(2_500):
        add(saved, time % 90, 0, time % 90)
    state = saved.get_checkpoint_state()
    assert state["stores_observations"]
    needed = 2 * saved.size_of_observation
    monkeypatch.setattr(memory_limits, "available_memory", lambda: 2_600 * needed / 0.9)
    other = ManyGoalsReplayBuffer(*memory)
    with pytest.warns(UserWarning, match="keeps the newest 2"):
        other.set_checkpoint_state(state)
    for left, right in zip(kept(saved), kept(other), strict=True):
        np.testing.assert_array_equal(left, right)
    monkeypatch.setattr(memory_limits, "available_memory", lambda: 1_500 * needed / 0.9)
    other = ManyGoalsReplayBuffer(*memory)
    with (
        pytest.warns(UserWarning, match="keeps the newest 1"),
        pytest.raises(CheckpointError, match="free some memory, or restore"),
    ):
        other.set_checkpoint_state(state)


def test_the_memory_of_a_plan_is_checked_when_the_model_is_built(monkeypatch):
    kwargs = {"target_class": PlannedTargets, "target_kwargs": {"max_plan_bytes": 3 * GIB}}
    with pytest.raises(MemoryError, match=r"the plan 3\.0 GiB.* or fewer max_plan_bytes"):
        pictured(Rooms(side=40), monkeypatch, available=2 * GIB, **kwargs)
    # A plan for few goals is small.
    few = GoalBuffer(Rooms(side=40).observation_space, capacity=70)
    world = GoalBufferWrapper(Rooms(side=40), few)
    pictured(world, monkeypatch, available=2 * GIB, **kwargs)
    # By default it takes half of the available memory.
    default = pictured(Rooms(side=40), monkeypatch, available=GIB, buffer_size=1_000)
    assert default.targets.plan.max_bytes == GIB // 2


def test_a_model_that_only_predicts_loads_on_a_small_machine(tmp_path, monkeypatch):
    make_model(Corridor()).save(tmp_path / "model")
    monkeypatch.setattr(memory_limits, "available_memory", lambda: 1_000)
    model = ManyGoalsDQN.load(tmp_path / "model")
    with pytest.raises(MemoryError, match=r"1000 B are available"):
        model.set_env(Corridor())


def test_the_index_of_goals_is_not_underestimated():
    buffer = GoalBuffer(spaces.Discrete(10**6), capacity=5_500)
    tracemalloc.start()
    buffer.add(np.arange(5_500))
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert taken / 5_500 < 160


V1 = {
    "memory/memory.limit_in_bytes": "5000\n",
    "memory/memory.usage_in_bytes": "4000\n",
    "memory/memory.stat": "inactive_file 9\ntotal_inactive_file 10\ntotal_active_file 20\n",
}
V2 = {
    "a/memory.max": "3000\n",
    "a/memory.current": "1000\n",
    "a/memory.stat": "anon 500\ninactive_file 300\nactive_file 100\n",
    "a/b/memory.max": "max\n",
    "a/b/memory.current": "700\n",
}
GROUPS = {
    "none": (None, {}, None),
    "v2": ("0::/a/b\n", V2, 2400),
    "v2 in a container": ("0::/", {"memory.max": "900", "memory.current": "1000"}, 0),
    "v1 in a container, with the host's path": (
        "5:cpu:/x\n4:memory:/docker/7\n0::/docker/7\n",
        V1,
        1030,
    ),
}
"""The text in /proc/self/cgroup, the files of the groups, and the bytes that they leave."""


@pytest.mark.parametrize(("own", "files", "left"), GROUPS.values(), ids=GROUPS)
def test_limits_of_control_groups(own, files, left, tmp_path, monkeypatch):
    texts = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    if own is not None:
        texts["proc/self/cgroup"] = own
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    host = 10**6
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": host}))
    assert memory_limits.available_memory(tmp_path) == (host if left is None else left)
