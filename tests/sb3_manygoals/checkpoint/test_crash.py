"""
Writes that fail or are killed.

The older checkpoints are as they were, and the new one is whole or not there.
"""

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
    """
    Stands before the file of a checkpoint, so that its writes can fail in the middle.

    :param file: the file
    """

    def __init__(self, file):
        self.file = file
        self.flush = file.flush

    def write(self, data):
        """
        Write into the file.

        :param data: bytes
        :return: how many bytes were written
        """
        return self.file.write(data)


@pytest.fixture(autouse=True)
def _writer(monkeypatch):
    save = folder.save_tree
    monkeypatch.setattr(folder, "save_tree", lambda tree, file: save(tree, Writer(file)))


CALLS = [(Writer, "write"), *((os, name) for name in ("fsync", "rename", "unlink"))]
FULL = OSError(errno.ENOSPC, "the disk is full")


def sample(seed):
    """
    Return a small tree.

    :param seed: a number that is in the tree
    :return: a dict
    """
    return {"seed": seed, "changing": np.full(100, seed, np.float64)}


@pytest.fixture
def root(tmp_path):
    """Two checkpoints. The next write with keep=2 removes the older one."""
    for seed in range(2):
        write_checkpoint(tmp_path / "root", sample(seed), step=seed)
    return tmp_path / "root"


def state_of(root):
    """
    Return the contents of the checkpoints in a folder.

    :param root: the folder
    :return: bytes by name
    """
    return {name: (root / name).read_bytes() for name in files_in(root)}


def files_in(root):
    """
    Return the names in a folder, but not those of the lock, which stay.

    :param root: the folder
    :return: a sorted list
    """
    return sorted(name for name in os.listdir(root) if not name.startswith(".lock"))


def failing_at(number, fail, calls=CALLS):
    """
    Return functions that stand before others and fail at one call.

    :param number: the number of the call that fails, counted from 1 over all ``calls``
    :param fail: is called instead
    :param calls: owners and names of the functions; default: all calls that write
    :return: owners, names and the functions that are to stand there
    """
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
    """
    Check that all checkpoints are whole, and that the next write leaves two.

    :param root: the folder
    :param seeds: a list, to which the seed of the newest checkpoint is added
    """
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

    before = state_of(root)
    seeds = []
    found = error
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
        # The new checkpoint is not in place yet.
        if checkpoints(copy)[0].name.startswith("000002-"):
            assert state_of(copy) == before
            assert files_in(copy) == files_in(root)
        if found is FULL and calls[0][1] == "write":
            assert error.filename.endswith(".staging")
        check(copy, seeds)
    assert set(seeds) == ({2} if calls[0][1] == "unlink" else {1, 2})
    assert len(seeds) > (5 if calls[0][1] == "write" else 1)


def killed_at(root, number):
    """
    Write in another process, which is killed.

    :param root: the folder
    :param number: the number of the call at which it is killed: in the middle of a write, and
        before any other call
    :return: whether it was killed; it ended by itself if it made fewer calls
    """
    with warnings.catch_warnings():
        # Python warns of forking beside threads. The child does not wait for any.
        warnings.simplefilter("ignore", DeprecationWarning)
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
    seeds = []
    leftovers = 0
    killed = True
    while killed:
        copy = tmp_path / f"killed-{len(seeds)}"
        shutil.copytree(root, copy)
        killed = killed_at(copy, len(seeds) + 1)
        leftovers += ".staging" in os.listdir(copy)
        check(copy, seeds)
    assert seeds == sorted(seeds)
    assert set(seeds) == {1, 2}
    assert leftovers > 10
