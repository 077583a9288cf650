"""Checkpoints as folders: numbered, whole, on the disk."""

import json
import os

import numpy as np
import pytest

from sb3_manygoals.checkpoint import CheckpointError, checkpoints, read_checkpoint, read_newest, write_checkpoint
from tests.sb3_manygoals.checkpoint.trees import assert_same, sample


def test_a_tree_comes_back_from_its_folder(tmp_path):
    root = tmp_path / "new" / "root"
    folder = write_checkpoint(root, sample(), step=20)
    assert folder == root / "000001-step20"
    assert sorted(os.listdir(folder)) == ["manifest.json", "state.pt"]
    assert_same(read_checkpoint(folder), sample())
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["format"], manifest["version"], manifest["step"]) == ("sb3-manygoals checkpoint", 3, 20)
    assert manifest["size"] == (folder / "state.pt").stat().st_size
    assert {*manifest["versions"]} == {"python", "torch", "numpy", "stable_baselines3", "gymnasium", "sb3_manygoals"}


def test_numbers_go_up_and_old_checkpoints_go(tmp_path, no_sync):
    assert checkpoints(tmp_path / "missing") == []
    assert read_newest(tmp_path / "missing") is None
    assert read_newest(tmp_path) is None
    for step in (5, 3, 3, 100, 20):
        write_checkpoint(tmp_path, {"step": step}, step=step, keep=None)
    names = ["000005-step20", "000004-step100", "000003-step3", "000002-step3", "000001-step5"]
    assert [path.name for path in checkpoints(tmp_path)] == names
    (tmp_path / "notes.txt").write_text("not a checkpoint")
    (tmp_path / "other").mkdir()
    write_checkpoint(tmp_path, {"step": 1}, step=1)
    assert sorted(os.listdir(tmp_path)) == ["000004-step100", "000005-step20", "000006-step1", "notes.txt", "other"]
    write_checkpoint(tmp_path, {"step": 2}, step=2, keep=1)
    assert read_newest(tmp_path) == (tmp_path / "000007-step2", {"step": 2})
    (tmp_path / "1000000-step1").mkdir()
    assert [path.name for path in checkpoints(tmp_path)] == ["1000000-step1", "000007-step2"]


@pytest.mark.parametrize(
    ("error", "tree", "arguments"),
    [
        (ValueError, {}, {"step": -1}),
        (ValueError, {}, {"step": 0, "keep": 0}),
        (CheckpointError, {"a": object()}, {"step": 0}),
    ],
)
def test_what_is_refused_leaves_no_trace(tmp_path, error, tree, arguments):
    with pytest.raises(error, match=r"(step|keep) must be a whole number, at least|cannot be saved"):
        write_checkpoint(tmp_path / "root", tree, **arguments)
    assert not (tmp_path / "root").exists()


def test_damaged_checkpoints_are_skipped_only_when_asked(tmp_path):
    for step in range(3):
        write_checkpoint(tmp_path, {"step": step}, step=step)
    newest, middle, oldest = checkpoints(tmp_path)
    (newest / "state.pt").write_text("{}")
    (middle / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"000003-step2.state\.pt: 2 bytes"):
        read_newest(tmp_path)
    with pytest.warns(UserWarning, match="skipped a damaged checkpoint") as warnings:
        assert read_newest(tmp_path, fallback=True) == (oldest, {"step": 0})
    assert [str(newest) in str(warning.message) for warning in warnings] == [True, False]
    assert "manifest.json: missing; the checkpoint is incomplete" in str(warnings[1].message)
    assert warnings[0].filename == __file__
    (oldest / "state.pt").unlink()
    with (
        pytest.warns(UserWarning, match="skipped"),
        pytest.raises(CheckpointError, match="each of the 3 checkpoints is damaged"),
    ):
        read_newest(tmp_path, fallback=True)


def test_everything_is_on_the_disk_before_the_name_is_there(tmp_path, monkeypatch):
    events, names, rename = [], {}, os.rename

    def moved(source, target):
        names.update({path.stat().st_ino: path.name for path in source.iterdir()})
        names[source.stat().st_ino] = "."
        events.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", lambda descriptor: events.append(os.fstat(descriptor).st_ino))
    monkeypatch.setattr(os, "rename", moved)
    write_checkpoint(tmp_path / "root", sample(), step=0)
    parent, *events, root = (names.get(event, event) for event in events)
    assert (parent, root) == (tmp_path.stat().st_ino, (tmp_path / "root").stat().st_ino)
    assert events == ["state.pt", "manifest.json", ".", "rename"]


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="asks Linux how much memory is used")
def test_writing_takes_no_memory_and_reading_the_checkpoint_once(tmp_path, monkeypatch):
    array, peaks = np.arange(8 << 20), []
    monkeypatch.setattr(os, "fsync", lambda descriptor: peaks.append(resident()))
    before = resident()
    folder = write_checkpoint(tmp_path, {"array": array}, step=0)
    assert max(peaks) - before < 16 << 20
    before = resident()
    again = read_checkpoint(folder)["array"]
    assert resident() - before < (64 + 16) << 20
    assert np.array_equal(again, array)
