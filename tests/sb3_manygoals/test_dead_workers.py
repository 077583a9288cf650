"""
Tests that workers of a SubprocVecEnv that die or misbehave are named, and that none is left.

They run in a process of their own, so that all of its children are the workers.
"""

import os
import sys
from subprocess import PIPE, Popen

import psutil

from tests import ROOT

SCRIPT = """
import multiprocessing
import os
import signal

import numpy as np
import psutil
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import SubprocVecEnv

from sb3_manygoals import ManyGoalsDQN, VecGoalBufferWrapper
from tests.sb3_manygoals.worlds import Corridor


# Kills a worker after 60 time steps.
class Kills(BaseCallback):
    def _on_step(self):
        if self.num_timesteps == 60:
            os.kill(self.training_env.unwrapped.processes[1].pid, signal.SIGKILL)
        return True


# Returns a bad observation at its 20th step, or dies if that is None.
class Bad(Corridor):
    def __init__(self, bad):
        super().__init__()
        self.left = 20
        self.bad = bad

    def step(self, action):
        self.left -= 1
        if self.left == 0 and self.bad is None:
            os._exit(3)
        observation, *rest = super().step(action)
        return (observation if self.left else self.bad), *rest


def run(start, last, callback=None):
    base = SubprocVecEnv([Corridor, Corridor, last], start_method=start)
    workers = [psutil.Process(process.pid) for process in base.processes]
    model = ManyGoalsDQN(
        "MlpPolicy",
        VecGoalBufferWrapper(base),
        learning_starts=30,
        policy_kwargs={"net_arch": [8]},
    )
    try:
        model.learn(10_000, callback=callback)
    except (RuntimeError, ValueError) as error:
        print(type(error).__name__, error, sep=": ")
    n_running = sum(worker.is_running() for worker in workers)
    print(n_running, model.num_timesteps, model.replay_buffer.size())
    base.close()
    assert not any(worker.is_running() for worker in workers)


if __name__ == "__main__":
    multiprocessing.set_forkserver_preload(["sb3_manygoals"])
    # After a fork, the other workers hold the dead one's pipe open.
    run("fork", Corridor, Kills())
    run("forkserver", Corridor, Kills())
    run("fork", lambda: Bad(None))
    run("fork", lambda: Bad(np.zeros(1, np.uint8)))
    run("fork", lambda: Bad(np.zeros(6, np.float64)))
"""


def test_dead_and_misbehaving_workers_are_named_and_none_is_left(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-W", "ignore", str(tmp_path / "train.py")]
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    session = Popen(
        command, env=environment, stdout=PIPE, stderr=PIPE, text=True, start_new_session=True
    )
    try:
        out, err = session.communicate(timeout=90)
    finally:
        session.kill()
    assert session.returncode == 0, err
    died = (
        "WorkerDied: worker processes died: environment {}; the others were ended,"
        " after num_timesteps={}"
    )
    misfit = (
        "EnvironmentFault: an environment gave observations that do not fit"
        " Box(0, 1, (6,), uint8): {}, after num_timesteps=57"
    )
    dtype = "observations must be uint8 of shape (n, 6), got float64 of (3, 6)"
    assert out.splitlines() == [
        *[died.format("1 (signal 9, Killed)", 60), "0 60 20"] * 2,
        *[died.format("2 (exit code 3)", 57), "0 57 19"],
        *[misfit.format("all input arrays must have the same shape"), "3 57 19"],
        *[misfit.format(dtype), "3 57 19"],
    ]
    # The fork server ends a moment after its parent.
    orphans = [process for process in psutil.process_iter() if _session(process) == session.pid]
    assert psutil.wait_procs(orphans, timeout=10)[1] == []


def _session(process):
    """Return the number of a process's session, or None if the process has ended."""
    try:
        return os.getsid(process.pid)
    except ProcessLookupError:
        return None
