"""Whenever a write fails or is killed, the older checkpoints are as they were and the new one is whole or not there."""

import errno
import os
import shutil
import signal
import warnings

import numpy as np
import pytest

from sb3_manygoals.checkpoint import checkpoints, files, read_checkpoint, read_newest, write_checkpoint
from tests.sb3_manygoals.checkpoint.trees import assert_same

pytestmark = pytest.mark.usefixtures("small_pieces", "no_sync")
CALLS = ("mkdir", "fsync", "rename", "link", "unlink", "rmdir")


def sample(seed):
    """One array is the same each time, and linked."""
    return {"seed": seed, "large": np.arange(200.0), "changing": np.full(100, seed, np.float64)}


@pytest.fixture
def root(tmp_path):
    """Two checkpoints, of which the next write with keep=2 removes the older and links from the newer."""
    for seed in range(2):
        write_checkpoint(tmp_path / "root", sample(seed), step=seed)
    return tmp_path / "root"


def state_of(root):
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def failure_of_write(root):
    try:
        write_checkpoint(root, sample(2), step=2, keep=2)
    except (OSError, KeyboardInterrupt) as error:
        return error
    return None


class Failing:
    """Stands before a function: calls ``fail`` from the call number ``at`` on."""

    def __init__(self, function, fail, at, last=None):
        self.function, self.fail, self.at, self.last, self.calls = function, fail, at, last, 0

    def __call__(self, *args, **kwargs):
        self.calls += 1
        if self.at <= self.calls <= (self.last or self.calls):
            self.fail(*args)
        return self.function(*args, **kwargs)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "the disk is full"), KeyboardInterrupt()])
def test_failed_and_interrupted_writes_change_nothing(root, monkeypatch, error):
    before, write = state_of(root), files._write

    def fail(file, data):
        write(file, memoryview(data)[: len(data) // 2])
        raise error

    failures = 0
    while True:
        failing = Failing(write, fail, failures + 1)
        monkeypatch.setattr(files, "_write", failing)
        found = failure_of_write(root)
        if found is None:
            break
        failures += 1
        assert found is error
        assert isinstance(error, KeyboardInterrupt) or "/.staging-" in error.filename
        assert state_of(root) == before
        assert len(os.listdir(root)) == 2
    assert failures == failing.calls > 5
    assert_same(read_newest(root)[1], sample(2))
    assert len(os.listdir(root)) == 2


@pytest.mark.parametrize("name", ["mkdir", "fsync", "rename", "unlink"])
def test_other_failures_leave_whole_checkpoints_too(root, tmp_path, monkeypatch, name):
    def fail(*args):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    before, function, failures, newest = state_of(root), getattr(os, name), 0, []
    while True:
        copy = tmp_path / f"failing-{failures}"
        shutil.copytree(root, copy)
        with monkeypatch.context() as patch:
            patch.setattr(os, name, Failing(function, fail, failures + 1, failures + 1))
            error = failure_of_write(copy)
        if error is None:
            break
        assert error.errno == errno.EIO
        failures += 1
        newest.append(checkpoints(copy)[0].name)
        if newest[-1] == "000002-step1":
            assert state_of(copy) == before
        for folder in checkpoints(copy):
            assert_same(read_checkpoint(folder), sample(int(folder.name[-1])))
        assert failure_of_write(copy) is None
        assert len(os.listdir(copy)) == 2
    assert set(newest) == {"mkdir": {"000002-step1"}, "unlink": {"000003-step2"}}.get(name, {"000002-step1", "000003-step2"})


def killed_at(root, number):
    """Write in another process, which is killed in the middle of the write, or before the other call, of this number."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads: the child does not wait for any
        child = os.fork()
    if child == 0:
        calls = 0

        def counted(function):
            def call(*args, **kwargs):
                nonlocal calls
                calls += 1
                if calls == number:
                    if function is write:
                        function(args[0], memoryview(args[1])[: len(args[1]) // 2])
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*args, **kwargs)

            return call

        try:
            write = files._write
            files._write = counted(write)
            for name in CALLS:
                setattr(os, name, counted(getattr(os, name)))
            write_checkpoint(root, sample(2), step=2, keep=2)
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL)
    return status != 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a second process that begins in the middle of the test")
def test_killed_writers_leave_the_old_or_the_new_checkpoint(root, tmp_path):
    source, newest, number = root, [], 0
    leftovers = 0
    while True:
        number += 1
        root = tmp_path / f"killed-{number}"
        shutil.copytree(source, root)
        alive = not killed_at(root, number)
        folder, tree = read_newest(root)
        seed = int(folder.name[-1])
        assert_same(tree, sample(seed))
        newest.append(seed)
        for older in checkpoints(root):
            assert_same(read_checkpoint(older), sample(int(older.name[-1])))
        leftovers += any(name.startswith(".staging-") for name in os.listdir(root))
        following = write_checkpoint(root, sample(3), step=3, keep=2)
        assert checkpoints(root) == [following, folder]
        assert_same(read_checkpoint(following), sample(3))
        assert len(os.listdir(root)) == 2
        shutil.rmtree(root)
        if alive:
            break
    assert newest == sorted(newest)
    assert set(newest) == {1, 2}
    assert leftovers > 20
