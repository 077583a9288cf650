"""Whenever a write fails or is killed, the older checkpoints are as they were and the new one is whole or not there."""

import errno
import os
import shutil
import signal
import warnings

import numpy as np
import pytest

from sb3_manygoals.checkpoint import (
    checkpoints,
    folder,
    read_checkpoint,
    read_newest,
    write_checkpoint,
)
from tests.sb3_manygoals.checkpoint.trees import assert_same

pytestmark = pytest.mark.usefixtures("no_sync")


class Writer:
    """Stands before the file of a checkpoint: its writes can fail in the middle."""

    def __init__(self, file):
        self.file, self.flush = file, file.flush

    def write(self, data):
        return self.file.write(data)


@pytest.fixture(autouse=True)
def _writer(monkeypatch):
    save = folder.save_tree
    monkeypatch.setattr(folder, "save_tree", lambda tree, file: save(tree, Writer(file)))


CALLS = [(Writer, "write"), *((os, name) for name in ("fsync", "rename", "unlink"))]
FULL = OSError(errno.ENOSPC, "the disk is full")


def sample(seed):
    return {"seed": seed, "changing": np.full(100, seed, np.float64)}


@pytest.fixture
def root(tmp_path):
    """Two checkpoints, of which the next write with keep=2 removes the older."""
    for seed in range(2):
        write_checkpoint(tmp_path / "root", sample(seed), step=seed)
    return tmp_path / "root"


def state_of(root):
    return {name: (root / name).read_bytes() for name in files_in(root)}


def files_in(root):
    """All names but those of the lock, which stay."""
    return sorted(name for name in os.listdir(root) if not name.startswith(".lock"))


def failing_at(number, fail, calls=CALLS):
    """Functions that stand before ``calls``: one after the other, ``fail`` is called at the call of this number."""
    count = 0

    def failing(function):
        def call(*args, **kwargs):
            nonlocal count
            count += 1
            if count == number:
                if function is Writer.write:
                    function(args[0], memoryview(args[1])[: len(args[1]) // 2])
                fail()
            return function(*args, **kwargs)

        return call

    return [(owner, name, failing(getattr(owner, name))) for owner, name in calls]


def check(root, seeds):
    """All checkpoints are whole, and the next write leaves two."""
    newest, tree = read_newest(root)
    for path in checkpoints(root):
        assert_same(read_checkpoint(path), sample(int(path.name[11])))
    following = write_checkpoint(root, sample(3), step=3, keep=2)
    assert checkpoints(root) == [following, newest]
    assert len(files_in(root)) == 2
    seeds.append(tree["seed"])


@pytest.mark.parametrize("error", [FULL, KeyboardInterrupt()])
@pytest.mark.parametrize("calls", [[call] for call in CALLS], ids=lambda calls: calls[0][1])
def test_failed_and_interrupted_writes_leave_whole_checkpoints(
    root, tmp_path, monkeypatch, error, calls
):
    def fail():
        raise error

    before, seeds, found = state_of(root), [], error
    while found is not None:
        copy = tmp_path / f"failing-{len(seeds)}"
        shutil.copytree(root, copy)
        found = None
        with monkeypatch.context() as patch:
            for one in failing_at(len(seeds) + 1, fail, calls):
                patch.setattr(*one)
            try:
                write_checkpoint(copy, sample(2), step=2, keep=2)
            except (OSError, KeyboardInterrupt) as caught:
                found = caught
        assert found in (error, None)
        if checkpoints(copy)[0].name.startswith("000002-"):  # not in place yet
            assert state_of(copy) == before
            assert files_in(copy) == files_in(root)
        if found is FULL and calls[0][1] == "write":
            assert error.filename.endswith(".staging")
        check(copy, seeds)
    assert set(seeds) == ({2} if calls[0][1] == "unlink" else {1, 2})
    assert len(seeds) > (5 if calls[0][1] == "write" else 1)


def killed_at(root, number):
    """Write in another process, which is killed in the middle of the write, or before the other call, of this number."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # of forking beside threads: the child does not wait for any
        child = os.fork()
    if child == 0:
        try:
            for one in failing_at(number, lambda: os.kill(os.getpid(), signal.SIGKILL)):
                setattr(*one)
            write_checkpoint(root, sample(2), step=2, keep=2)
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL)
    return status != 0


@pytest.mark.skipif(
    not hasattr(os, "fork"), reason="needs a second process that begins in the middle of the test"
)
def test_killed_writers_leave_the_old_or_the_new_checkpoint(root, tmp_path):
    seeds, leftovers, killed = [], 0, True
    while killed:
        copy = tmp_path / f"killed-{len(seeds)}"
        shutil.copytree(root, copy)
        killed = killed_at(copy, len(seeds) + 1)
        leftovers += ".staging" in os.listdir(copy)
        check(copy, seeds)
    assert (seeds, set(seeds)) == (sorted(seeds), {1, 2})
    assert leftovers > 10
