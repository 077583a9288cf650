"""Hostile conditions end training early, with the culprit named."""

import copy
import os
import pickle
import subprocess
import sys
import tracemalloc
import warnings
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import psutil
import pytest
import torch as th
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecExtractDictObs, VecFrameStack

from sb3_manygoals import GoalBuffer, GoalBufferWrapper, GymnasiumVecEnv, ManyGoalsDQN, VecGoalBufferWrapper, guards, memory
from sb3_manygoals.many_goals_dqn.replay_buffer import ManyGoalsReplayBuffer
from tests.sb3_manygoals.worlds import Corridor

ROOT = Path(__file__).parents[2]


class Hostile(gym.Env):
    """Counts its steps in float32 observations, and does one bad thing at one of them."""

    action_space = spaces.Discrete(2)

    def __init__(self, at=None, observation=None, reward=1.0, ends=False, shape=(3,), dtype=np.float32, length=7):
        self.observation_space = spaces.Box(0, 100, shape, dtype)
        self.at, self.observation, self.reward, self.ends, self.length = at, observation, reward, ends, length
        self.steps = self.taken = 0

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


def vector(*worlds):
    return DummyVecEnv([lambda world=world: world for world in worlds])


def make_model(env, **kwargs):
    settings = {"learning_starts": 8, "policy_kwargs": {"net_arch": [8], "embedding_dim": 8}, "seed": 0, "buffer_size": 500}
    return ManyGoalsDQN("MlpPolicy", env, **{**settings, **kwargs})


def parameters(model):
    return th.cat([parameter.detach().flatten() for parameter in model.policy.parameters()])


BAD = np.array([1.0, np.nan, 2.0], dtype=np.float32)


# --- what is not finite ----------------------------------------------------------------------------------------------


def shared(*worlds):
    buffer = GoalBuffer(worlds[0].observation_space)
    return vector(*(GoalBufferWrapper(world, goal_buffer=buffer) for world in worlds))


def frames(*worlds):
    return VecFrameStack(vector(*worlds), 2)


def native(*worlds):
    return GymnasiumVecEnv(SyncVectorEnv([lambda w=world: w for world in worlds], autoreset_mode=AutoresetMode.SAME_STEP))


@pytest.mark.parametrize("wrap", [vector, shared, frames, native])
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"observation": BAD}, r"environment 1 gave an observation that is not finite: nan at \(\d,\)"),
        (
            {"observation": np.full(3, -np.inf, np.float32)},
            r"environment 1 gave an observation that is not finite: -inf at \(\d,\)",
        ),
        ({"observation": BAD, "ends": True}, r"environment 1 gave an? \w*\s?observation that is not finite: nan at \(\d,\)"),
        ({"reward": np.nan}, "environment 1 gave a reward that is not finite: nan"),
        ({"reward": -np.inf}, "environment 1 gave a reward that is not finite: -inf"),
    ],
    ids=["nan", "inf", "terminal", "nan reward", "inf reward"],
)
def test_what_is_not_finite_is_neither_stored_nor_learnt_from(wrap, bad, message):
    model = make_model(wrap(Hostile(), Hostile(at=20, **bad)))
    with pytest.raises(ValueError, match=f"^{message}, after num_timesteps=38$"):
        model.learn(1_000)
    assert np.isfinite(model.goal_buffer.observations).all()
    assert model.replay_buffer.size() == 19
    assert np.isfinite(model.replay_buffer.next_observations).all()
    assert model._n_updates == 15
    assert parameters(model).isfinite().all()


def test_of_one_environment():
    for bad, message in [
        ({"observation": BAD}, r"environment 0 gave an observation that is not finite: nan at \(1,\), after num_timesteps=19"),
        ({"observation": BAD, "ends": True}, "environment 0 gave a terminal observation that is not finite"),
        ({"reward": np.inf}, "environment 0 gave a reward that is not finite: inf, after num_timesteps=19"),
    ]:
        with pytest.raises(ValueError, match=message):
            make_model(Hostile(at=20, **bad)).learn(1_000)


@pytest.mark.parametrize("wrap", [vector, shared, frames, native])
def test_a_first_observation(wrap):
    model = make_model(wrap(Hostile(), Hostile(), Hostile(at=0, observation=BAD)))
    message = r"environment 2 gave a first observation that is not finite: nan at \(\d,\), after num_timesteps=0$"
    with pytest.raises(ValueError, match=message):
        model.learn(100)
    assert len(model.goal_buffer) <= 2


def test_the_first_observation_after_a_goal_was_reached():
    """The goal wrapper resets the world then, not SB3."""

    class Restarts(Hostile):
        resets = 0

        def reset(self, *, seed=None, options=None):
            observation, info = super().reset(seed=seed, options=options)
            self.resets += 1
            return (BAD if self.resets == 3 else observation), info

    model = make_model(vector(Hostile(length=10**6), Restarts(length=10**6)), goal_wrapper_kwargs={"max_episode_steps": 5})
    with pytest.raises(ValueError, match="environment 1 gave a first observation that is not finite: nan"):
        model.learn(1_000)
    assert np.isfinite(model.goal_buffer.observations).all()


def test_integers_are_not_looked_at(monkeypatch):
    monkeypatch.setattr(np, "isfinite", None)
    guards.check_finite(np.zeros((2, 3), np.uint8), "", None)
    guards.check_finite(np.zeros((2, 3), np.int64), "", None)


def test_a_fault_in_a_callbacks_environment_is_not_given_the_step():
    class Evaluates(BaseCallback):
        def _on_step(self):
            VecGoalBufferWrapper(vector(Hostile(), Hostile(at=0, observation=BAD))).reset()

    model = make_model(vector(Hostile(), Hostile()))
    with pytest.raises(ValueError, match=r"^environment 1 gave a first observation that is not finite: nan at \(1,\)$"):
        model.learn(100, callback=Evaluates())


def test_faults_can_be_pickled():
    with pytest.raises(ValueError, match="environment 3") as caught:
        guards.check_finite(np.array([np.inf]), "a reward", None, first=3)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


# --- shapes and dtypes -----------------------------------------------------------------------------------------------

IMAGE = {"shape": (10, 10, 3), "dtype": np.uint8}
MISFITS = [
    np.zeros((10, 10, 1), np.uint8),
    np.zeros((10, 10, 3), np.float32),
    np.zeros((10, 10, 3), np.int64),
    [[1, 2], [3]],
]


@pytest.mark.parametrize("wrap", [vector, shared, lambda *worlds: VecFrameStack(vector(*worlds), 2)])
@pytest.mark.parametrize("misfit", MISFITS, ids=["shape", "float", "int64", "ragged"])
@pytest.mark.parametrize("at", [0, 20])
def test_what_a_dummy_vec_env_would_broadcast_or_cast_is_refused(wrap, misfit, at):
    model = make_model(wrap(Hostile(**IMAGE), Hostile(**IMAGE), Hostile(at=at, observation=misfit, **IMAGE)))
    message = r"^environment 2 gave an? .*observation (of shape .* its space has|that is no array).*, after num_timesteps="
    with pytest.raises(ValueError, match=message + ("57$" if at else "0$")):
        model.learn(100)
    assert model.replay_buffer.size() == max(0, at - 1)


def test_the_message_has_shapes_and_dtypes():
    model = make_model(vector(Hostile(at=0, observation=MISFITS[0], **IMAGE)))
    text = r"an observation of shape \(10, 10, 1\) and dtype uint8, its space has \(10, 10, 3\) and uint8"
    with pytest.raises(ValueError, match=text):
        model.learn(10)


@pytest.mark.parametrize("misfit", MISFITS[:3], ids=["shape", "float", "int64"])
def test_terminal_observations(misfit):
    """SB3 leaves them in the infos as they are."""

    class Ends(Hostile):
        def reset(self, *, seed=None, options=None):
            self.at = None if self.taken else self.at
            return super().reset(seed=seed, options=options)

    model = make_model(vector(Hostile(**IMAGE), Ends(at=5, observation=misfit, ends=True, **IMAGE)))
    with pytest.raises(ValueError, match=r"environment 1 gave a terminal observation of shape .*, after num_timesteps=8$"):
        model.learn(100)


def test_dtypes_of_the_same_kind_are_converted_as_before():
    double = np.full(3, 0.5)
    model = make_model(vector(Hostile(), Hostile(at=3, observation=double))).learn(50)
    assert model.goal_buffer.observations.dtype == np.float32
    assert np.full(3, 0.5, np.float32) in model.goal_buffer


def test_one_key_of_a_dict():
    class Keyed(gym.ObservationWrapper):
        def __init__(self, env):
            super().__init__(env)
            self.observation_space = spaces.Dict({"picture": env.observation_space, "clock": spaces.Discrete(9)})

        def observation(self, observation):
            return {"picture": observation, "clock": 0}

    worlds = (Hostile(**IMAGE), Hostile(at=5, observation=MISFITS[0], **IMAGE))
    model = make_model(VecExtractDictObs(vector(*(Keyed(world) for world in worlds)), "picture"))
    with pytest.raises(ValueError, match=r"environment 1 gave an observation of shape \(10, 10, 1\)"):
        model.learn(100)


def test_a_watched_vec_env_is_otherwise_as_it_was():
    venv = vector(GoalBufferWrapper(Corridor()), GoalBufferWrapper(Corridor()))
    plain = vector(Corridor(), Corridor())
    wrapped = VecGoalBufferWrapper(VecGoalBufferWrapper(plain).venv)  # twice the same
    assert type(wrapped.venv) is DummyVecEnv
    assert isinstance(plain._save_obs, guards._CheckedSave)
    assert plain.env_is_wrapped(GoalBufferWrapper) == [False, False]
    assert venv.env_is_wrapped(GoalBufferWrapper) == [True, True]
    assert plain.get_attr("length") == [6, 6]
    plain.set_attr("length", 5)
    assert [env.length for env in plain.envs] == [5, 5]
    for twin in (copy.deepcopy(plain), pickle.loads(pickle.dumps(plain))):  # save into their own buffers
        before = plain.buf_obs[None].copy()
        twin.seed(3)
        assert twin.reset().any()
        np.testing.assert_array_equal(plain.buf_obs[None], before)
        assert twin._save_obs.venv is twin


# --- the loss --------------------------------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_changes_no_weights():
    model = make_model(Corridor()).learn(30)
    name, spoilt = next(iter(model.q_net_target.named_parameters()))
    spoilt.data.view(-1)[0] = np.nan
    before = parameters(model)
    state = copy.deepcopy(model.policy.optimizer.state_dict()["state"])
    updates = model._n_updates
    message = rf"loss of update {updates + 1}, after num_timesteps=31 is nan: .* Not finite already: q_net_target\.{name}$"
    with pytest.raises(FloatingPointError, match=message):
        model.learn(10, reset_num_timesteps=False)
    assert model._n_updates == updates
    assert th.equal(parameters(model).nan_to_num(7), before.nan_to_num(7))
    for key, values in model.policy.optimizer.state_dict()["state"].items():
        assert th.equal(values["scaled"], state[key]["scaled"])


def test_a_loss_may_overflow_with_finite_parameters():
    model = make_model(Corridor()).learn(30)
    for values in model.policy.parameters():
        values.data *= 1e15
    with pytest.raises(FloatingPointError, match=r"is (nan|inf): .* All parameters of the networks are finite$"):
        model.train(3)


def test_the_check_of_a_device_names_the_update():
    """The CPU has the operation that a CUDA device is given, and raises at once."""
    guards._assert_on_device(th.zeros(()), "update 3")
    with pytest.raises(RuntimeError, match="the loss of update 3 is not finite"):
        guards._assert_on_device(th.full((), np.nan), "update 3")


def test_the_check_in_a_graph_does_not_name_an_update_that_it_cannot_know(monkeypatch):
    asked, on_device = [], SimpleNamespace(is_cuda=True)
    monkeypatch.setattr(guards, "_assert_on_device", lambda loss, where: asked.append(where))
    for capturing in (False, True):
        monkeypatch.setattr(th.cuda, "is_current_stream_capturing", lambda capturing=capturing: capturing)
        guards.check_loss(on_device, th.nn.Linear(1, 1), 4, 9)
    assert asked == ["update 4, after num_timesteps=9", "update 4, after num_timesteps=9, or of a later one"]


@pytest.mark.skipif(not th.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_device_stops_itself():
    code = (
        "import torch as th; from sb3_manygoals import guards\n"
        "net = th.nn.Linear(1, 1).cuda(); bad = th.full((), float('nan'), device='cuda')\n"
        "th.cuda.set_sync_debug_mode('error')\n"
        "guards.check_loss(th.zeros((), device='cuda'), net, 1, 5); guards.check_loss(bad, net, 2, 6)\n"
        "th.cuda.set_sync_debug_mode('default'); print(bad.item())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode != 0
    assert "the loss of update 2, after num_timesteps=6 is not finite" in done.stderr


# --- workers ---------------------------------------------------------------------------------------------------------

SCRIPT = """
import multiprocessing, os, signal
import numpy as np
import psutil
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import SubprocVecEnv
from sb3_manygoals import ManyGoalsDQN, VecGoalBufferWrapper
from tests.sb3_manygoals.worlds import Corridor

class Kills(BaseCallback):
    def _on_step(self):
        if self.num_timesteps == 60:
            os.kill(self.training_env.unwrapped.processes[1].pid, signal.SIGKILL)
        return True

class Bad(Corridor):
    def __init__(self, bad):
        super().__init__()
        self.left, self.bad = 20, bad

    def step(self, action):
        self.left -= 1
        if self.left == 0 and self.bad is None:
            os._exit(3)
        observation, *rest = super().step(action)
        return (observation if self.left else self.bad), *rest

def run(start, last, callback=None):
    base = SubprocVecEnv([Corridor, Corridor, last], start_method=start)
    workers = [psutil.Process(process.pid) for process in base.processes]
    model = ManyGoalsDQN("MlpPolicy", VecGoalBufferWrapper(base), learning_starts=30, policy_kwargs={"net_arch": [8]})
    try:
        model.learn(10_000, callback=callback)
    except (RuntimeError, ValueError) as error:
        print(type(error).__name__, error, sep=": ")
    print(sum(worker.is_running() for worker in workers), model.num_timesteps, model.replay_buffer.size())
    base.close()
    assert not any(worker.is_running() for worker in workers)

if __name__ == "__main__":
    multiprocessing.set_forkserver_preload(["sb3_manygoals"])
    run("fork", Corridor, Kills())  # the others hold the dead one's pipe open
    run("forkserver", Corridor, Kills())
    run("fork", lambda: Bad(None))
    run("fork", lambda: Bad(np.zeros(1, np.uint8)))
    run("fork", lambda: Bad(np.zeros(6, np.float64)))
"""


def test_dead_and_misfitting_workers_are_named_and_none_is_left(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-W", "ignore", str(tmp_path / "train.py")]
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    session = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = session.communicate(timeout=90)
    finally:
        session.kill()
    assert session.returncode == 0, err
    killed = (
        "WorkerDied: worker processes died: environment 1 (killed by SIGKILL); the others were ended, after num_timesteps=60"
    )
    misfit = (
        "EnvironmentFault: environment 2 gave an observation of shape {}, its space has (6,) and uint8, after num_timesteps=57"
    )
    assert out.splitlines() == [
        *[killed, "0 60 20"] * 2,
        "WorkerDied: worker processes died: environment 2 (exit code 3); the others were ended, after num_timesteps=57",
        "0 57 19",
        *[misfit.format("(1,) and dtype uint8"), "3 57 19"],
        *[misfit.format("(6,) and dtype float64"), "3 57 19"],
    ]
    # the server of the forks ends with its parent, a moment later
    orphans = [process for process in psutil.process_iter() if _session(process) == session.pid]
    assert psutil.wait_procs(orphans, timeout=10)[1] == []


def _session(process):
    try:
        return os.getsid(process.pid)
    except ProcessLookupError:
        return None


# --- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action_masks", [False, True])
@pytest.mark.parametrize("space", [spaces.Box(0, 255, (4, 5, 3), np.uint8), spaces.Box(0, 1, (7,)), spaces.Discrete(9)])
def test_bytes_of_a_replay_memory_are_those_of_its_arrays(space, action_masks):
    goals = spaces.Dict({key: space for key in ("observation", "achieved_goal", "desired_goal")})
    arguments = (100, goals, spaces.Discrete(5))
    replay = ManyGoalsReplayBuffer(*arguments, n_envs=3, action_masks=action_masks)
    arrays = sum(array.nbytes for array in vars(replay).values() if isinstance(array, np.ndarray))
    assert sum(ManyGoalsReplayBuffer.memory_needed(*arguments, 3, action_masks).values()) == arrays


def test_a_goal_buffer_that_cannot_fit_is_refused():
    message = (
        r"^a goal buffer of capacity 1000000000000 would take 41\d\.\d TiB \(goals 272\.8 TiB, index of goals 145\.5 TiB\), "
        r"\d+\.\d [MG]iB are available: choose a smaller capacity$"
    )
    with pytest.raises(MemoryError, match=message):
        GoalBuffer(spaces.Box(0, 255, (10, 10, 3), np.uint8), capacity=10**12)


def test_a_replay_memory_that_cannot_fit_is_refused():
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # SB3 only warns, and not before it has allocated
        message = (
            r"^the replay memory and the goals would take .* \(replay observations 54\.6 TiB, .*index of goals .*available"
        )
        with pytest.raises(MemoryError, match=message):
            make_model(Corridor(length=60), buffer_size=10**12)


def test_both_together_are_counted(monkeypatch):
    space = spaces.Box(0, 100, (10, 10, 3), np.uint8)
    buffer = GoalBuffer(space, capacity=1_000)  # 0.44 MiB
    env = GoalBufferWrapper(Hostile(shape=(10, 10, 3), dtype=np.uint8), goal_buffer=buffer)
    replay = sum(ManyGoalsReplayBuffer.memory_needed(1_000, env.observation_space, env.action_space, 1, False).values())
    both = replay + sum(buffer.memory_to_come.values())
    monkeypatch.setattr(memory, "available_memory", lambda: both - 1)
    with pytest.raises(MemoryError, match="choose a smaller buffer_size than 1000, or a goal buffer of smaller capacity"):
        make_model(env, buffer_size=1_000)
    monkeypatch.setattr(memory, "available_memory", lambda: both)
    model = make_model(env, buffer_size=1_000).learn(500)
    # what is filled is taken, and not counted again for another environment
    monkeypatch.setattr(memory, "available_memory", lambda: both - replay // 2)
    model.set_env(GoalBufferWrapper(Hostile(shape=(10, 10, 3), dtype=np.uint8), goal_buffer=buffer))
    monkeypatch.setattr(memory, "available_memory", lambda: both - replay // 2 - 400_000)
    with pytest.raises(MemoryError, match="the replay memory and the goals"):
        model.set_env(GoalBufferWrapper(Hostile(shape=(10, 10, 3), dtype=np.uint8), goal_buffer=buffer))


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


GROUPS = {
    "none": ({}, None),
    "v2": (
        {
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/memory.max": "3000\n",
            "sys/fs/cgroup/a/memory.current": "1000\n",
            "sys/fs/cgroup/a/memory.stat": "anon 500\ninactive_file 300\nactive_file 100\n",
            "sys/fs/cgroup/a/b/memory.max": "max\n",
            "sys/fs/cgroup/a/b/memory.current": "700\n",
        },
        2400,
    ),
    "v2 in a container": (
        {"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": "900", "sys/fs/cgroup/memory.current": "1000"},
        0,
    ),
    "v1 in a container, with the host's path": (
        {
            "proc/self/cgroup": "5:cpu:/x\n4:memory:/docker/7\n0::/docker/7\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "5000\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "4000\n",
            "sys/fs/cgroup/memory/memory.stat": "inactive_file 9\ntotal_inactive_file 10\ntotal_active_file 20\n",
        },
        1030,
    ),
}


@pytest.mark.parametrize(("files", "left"), GROUPS.values(), ids=GROUPS)
def test_limits_of_control_groups(files, left, tmp_path, monkeypatch):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    host = 10**6
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": host}))
    assert memory.available_memory(tmp_path) == (host if left is None else left)


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**30, "1.0 GiB"), (10**24, "867361.7 EiB")]
)
def test_sizes_are_readable(size, text):
    assert memory.readable(size) == text
