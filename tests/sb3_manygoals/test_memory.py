"""What would not fit into memory is refused."""

import tracemalloc
import warnings

import numpy as np
import psutil
import pytest
from gymnasium import spaces

from sb3_manygoals import GoalBuffer, GoalBufferWrapper, ManyGoalsDQN, memory
from sb3_manygoals.many_goals_dqn import ManyGoalsReplayBuffer, TDTargets
from tests.sb3_manygoals.test_guards import Hostile, make_model
from tests.sb3_manygoals.worlds import Corridor


@pytest.mark.parametrize("action_masks", [False, True])
@pytest.mark.parametrize(
    "space", [spaces.Box(0, 255, (4, 5, 3), np.uint8), spaces.Box(0, 1, (7,)), spaces.Discrete(9)]
)
def test_bytes_of_a_replay_memory_are_those_of_its_arrays(space, action_masks):
    goals = spaces.Dict({key: space for key in ("observation", "achieved_goal", "desired_goal")})
    arguments = (100, goals, spaces.Discrete(5))
    replay = ManyGoalsReplayBuffer(*arguments, n_envs=3, action_masks=action_masks)
    replay.forget_states()  # so that it keeps whole observations
    arrays = sum(array.nbytes for array in vars(replay).values() if isinstance(array, np.ndarray))
    assert (
        sum(ManyGoalsReplayBuffer.memory_needed(*arguments, 3, action_masks=action_masks).values())
        == arrays
    )


def test_what_cannot_fit_is_refused():
    message = (
        r"^a goal buffer of capacity 1000000000000 would take 440\.2 TiB \(goals 272\.8 TiB, index of goals 167\.3 TiB\), "
        r"\d+\.\d [MG]iB are available: choose a smaller capacity$"
    )
    with pytest.raises(MemoryError, match=message):
        GoalBuffer(spaces.Box(0, 255, (10, 10, 3), np.uint8), capacity=10**12)
    message = r"^the replay memory and the goals would take .* \(replay observations 54\.6 TiB, .*index of goals .*available"
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # SB3 only warns, and not before it has allocated
        with pytest.raises(MemoryError, match=message):
            make_model(Corridor(length=60), buffer_size=10**12)


def test_both_together_are_counted(monkeypatch):
    space = spaces.Box(0, 100, (10, 10, 3), np.uint8)
    buffer = GoalBuffer(space, capacity=1_000)  # 0.44 MiB
    env = GoalBufferWrapper(Hostile(shape=(10, 10, 3), dtype=np.uint8), goal_buffer=buffer)
    replay = sum(
        ManyGoalsReplayBuffer.memory_needed(
            1_000, env.observation_space, env.action_space, 1
        ).values()
    )
    both = replay + sum(buffer.memory_to_come.values())
    monkeypatch.setattr(memory, "available_memory", lambda: both - 1)
    with pytest.raises(
        MemoryError,
        match="choose a smaller buffer_size than 1000, or a goal buffer of smaller capacity",
    ):
        make_model(env, buffer_size=1_000, target_class=TDTargets)
    monkeypatch.setattr(memory, "available_memory", lambda: both)
    model = make_model(env, buffer_size=1_000, target_class=TDTargets).learn(500)
    # what is filled is taken, and not counted again for another environment
    another = GoalBufferWrapper(Hostile(shape=(10, 10, 3), dtype=np.uint8), goal_buffer=buffer)
    monkeypatch.setattr(memory, "available_memory", lambda: both - replay // 2)
    model.set_env(another)
    monkeypatch.setattr(memory, "available_memory", lambda: both - replay // 2 - 400_000)
    with pytest.raises(MemoryError, match="the replay memory and the goals"):
        model.set_env(another)


def test_a_model_that_only_predicts_loads_on_a_small_machine(tmp_path, monkeypatch):
    make_model(Corridor()).save(tmp_path / "model")
    monkeypatch.setattr(memory, "available_memory", lambda: 1_000)
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


V1 = {"memory/memory.limit_in_bytes": "5000\n", "memory/memory.usage_in_bytes": "4000\n"}
V1["memory/memory.stat"] = "inactive_file 9\ntotal_inactive_file 10\ntotal_active_file 20\n"
V2 = {
    "a/memory.max": "3000\n",
    "a/memory.current": "1000\n",
    "a/b/memory.max": "max\n",
    "a/b/memory.current": "700\n",
}
V2["a/memory.stat"] = "anon 500\ninactive_file 300\nactive_file 100\n"
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
"""What a process is told of its groups, the files of these, and the bytes that are left."""


@pytest.mark.parametrize(("own", "files", "left"), GROUPS.values(), ids=GROUPS)
def test_limits_of_control_groups(own, files, left, tmp_path, monkeypatch):
    told = {} if own is None else {"proc/self/cgroup": own}
    for name, text in (
        told | {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    ).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    host = 10**6
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": host}))
    assert memory.available_memory(tmp_path) == (host if left is None else left)
