"""Checkpoints as files: numbered, whole, on the disk."""

import hashlib
import os
import sys
import threading
from subprocess import PIPE, Popen

import numpy as np
import pytest
from filelock import FileLock, Timeout

from sb3_manygoals.checkpoint import (
    CheckpointError,
    checkpoints,
    read_checkpoint,
    read_newest,
    write_checkpoint,
)
from sb3_manygoals.checkpoint.lock import Lock
from tests import ROOT
from tests.sb3_manygoals.checkpoint.trees import assert_same, sample


def test_a_tree_comes_back_from_its_file(tmp_path):
    root = tmp_path / "new" / "root"
    path = write_checkpoint(root, sample(), step=20)
    assert path == root / f"000001-step20-{hashlib.sha256(path.read_bytes()).hexdigest()}.pt"
    assert checkpoints(root) == [path]
    assert_same(read_checkpoint(path), sample())


def names(root):
    """
    Return the names of checkpoints without their sha256.

    :param root: the folder of the checkpoints
    :return: a list, newest first
    """
    return [path.name[:-68] for path in checkpoints(root)]


def test_numbers_go_up_and_old_checkpoints_go(tmp_path, no_sync):
    assert checkpoints(tmp_path / "missing") == []
    assert read_newest(tmp_path / "missing") is None
    assert read_newest(tmp_path) is None
    for step in (5, 3, 3, 100, 20):
        write_checkpoint(tmp_path, {"step": step}, step=step, keep=None)
    assert names(tmp_path) == [
        "000005-step20",
        "000004-step100",
        "000003-step3",
        "000002-step3",
        "000001-step5",
    ]
    (tmp_path / "notes.txt").write_text("not a checkpoint")
    write_checkpoint(tmp_path, {"step": 1}, step=1)
    assert names(tmp_path) == ["000006-step1", "000005-step20", "000004-step100"]
    assert len(checkpoints(tmp_path)) == 3
    newest = write_checkpoint(tmp_path, {"step": 2}, step=2, keep=1)
    assert read_newest(tmp_path) == (newest, {"step": 2})
    # In format 3, checkpoints were folders.
    (tmp_path / "1000000-step1").mkdir()
    with pytest.raises(CheckpointError, match="1000000-step1: written by another version"):
        read_newest(tmp_path)
    assert write_checkpoint(tmp_path, {}, step=2, keep=1).name.startswith("1000001-step2-")
    assert len(checkpoints(tmp_path)) == 2


@pytest.mark.parametrize(
    ("error", "tree", "arguments"),
    [
        (ValueError, {}, {"step": -1}),
        (ValueError, {}, {"step": 0, "keep": 0}),
        (CheckpointError, [object()], {"step": 0}),
    ],
)
def test_what_is_refused_leaves_no_trace(tmp_path, error, tree, arguments):
    with pytest.raises(
        error, match=r"(step|keep) must be a whole number, at least|cannot be saved"
    ):
        write_checkpoint(tmp_path / "root", tree, **arguments)
    assert not (tmp_path / "root").exists()


def test_unreadable_checkpoints_are_skipped_only_when_asked(tmp_path):
    for step in range(2):
        write_checkpoint(tmp_path, {"step": step}, step=step)
    newest, oldest = checkpoints(tmp_path)
    newest.write_text("{}")
    reason = f"{newest.name}: damaged: its sha256 is not that of its name"
    with pytest.raises(CheckpointError, match=reason):
        read_newest(tmp_path)
    skipped = f"skipped a checkpoint that cannot be read: .*{reason}"
    with pytest.warns(UserWarning, match=skipped) as warnings:
        assert read_newest(tmp_path, fallback=True) == (oldest, {"step": 0})
    assert [warning.filename for warning in warnings] == [__file__]
    oldest.write_text("{}")
    refused = pytest.raises(CheckpointError, match="none of the 2 checkpoints can be read")
    with pytest.warns(UserWarning, match="skipped"), refused:
        read_newest(tmp_path, fallback=True)


def test_everything_is_on_the_disk_before_the_name_is_there(tmp_path, monkeypatch):
    events = []
    rename = os.rename

    def note_rename(*names):
        events.append("rename")
        rename(*names)

    monkeypatch.setattr(os, "fsync", lambda descriptor: events.append(os.fstat(descriptor).st_ino))
    monkeypatch.setattr(os, "rename", note_rename)
    path = write_checkpoint(tmp_path / "root", sample(), step=0)
    parent, root, file = (one.stat().st_ino for one in (tmp_path, tmp_path / "root", path))
    assert events == [parent, file, "rename", root]


def resident():
    """Return how many bytes of memory this process uses."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(
    not os.path.exists("/proc/self/statm"), reason="asks Linux how much memory is used"
)
def test_writing_takes_no_memory_and_reading_the_checkpoint_once(tmp_path, monkeypatch):
    array = np.arange(8 << 20)
    peaks = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: peaks.append(resident()))
    before = resident()
    path = write_checkpoint(tmp_path, {"array": array}, step=0)
    assert max(peaks) - before < 16 << 20
    before = resident()
    again = read_checkpoint(path)["array"]
    assert resident() - before < (64 + 16) << 20
    assert np.array_equal(again, array)


HOLDER = """
import sys
from sb3_manygoals.checkpoint.lock import Lock
Lock(sys.argv[1]).acquire()
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path):
    """Another process, which has the lock of the folder."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with Popen(command, stdin=PIPE, stdout=PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_a_second_process_is_refused_by_the_name_of_the_first(tmp_path, other):
    with pytest.raises(CheckpointError, match=f"writes its checkpoints here, process {other.pid} "):
        write_checkpoint(tmp_path, 1, step=1)
    assert checkpoints(tmp_path) == []
    other.kill()
    other.wait()
    # What a dead process has left keeps nobody out.
    write_checkpoint(tmp_path, 1, step=1)


def test_reading_needs_no_lock(tmp_path):
    write_checkpoint(tmp_path, 1, step=1)
    with Lock(tmp_path):
        assert read_newest(tmp_path)[1] == 1


def test_one_process_may_take_the_lock_again(tmp_path):
    with Lock(tmp_path):
        with Lock(tmp_path / "." / ""):
            write_checkpoint(tmp_path, 1, step=1)
        assert is_locked(tmp_path)
    assert not is_locked(tmp_path)


def is_locked(root):
    """
    Return whether the operating system knows a lock, as another process would see it.

    :param root: the folder of the checkpoints
    :return: a bool
    """
    probe = FileLock(root / ".lock", timeout=0, is_singleton=False)
    try:
        probe.acquire()
    except Timeout:
        return True
    probe.release()
    return False


def test_a_file_system_without_locks_is_a_warning(tmp_path, monkeypatch):
    def refuse(lock):
        raise NotImplementedError

    monkeypatch.setattr(FileLock, "acquire", refuse)
    with pytest.warns(UserWarning, match="this file system knows no locks"):
        write_checkpoint(tmp_path, 1, step=1)


def test_another_thread_is_refused_while_the_first_one_lives(tmp_path):
    taken = threading.Event()
    go_on = threading.Event()

    def holds():
        with Lock(tmp_path):
            taken.set()
            go_on.wait(10)

    first = threading.Thread(target=holds)
    first.start()
    taken.wait(10)
    try:
        with pytest.raises(CheckpointError, match="another thread of this process"):
            Lock(tmp_path).acquire()
    finally:
        go_on.set()
        first.join()
    with Lock(tmp_path):
        assert is_locked(tmp_path)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork processes")
@pytest.mark.filterwarnings("ignore:This process")
def test_a_forked_process_does_not_have_what_its_parent_holds(tmp_path):
    with Lock(tmp_path):
        child = os.fork()
        if child == 0:
            try:
                Lock(tmp_path).acquire()
            except CheckpointError:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        # The child has not taken it away from its parent.
        assert is_locked(tmp_path)
