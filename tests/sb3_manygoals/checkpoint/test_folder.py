"""Checkpoints as folders: numbered, whole, on the disk; what has not changed is linked."""

import io
import json
import os
import re
import tracemalloc

import numpy as np
import pytest
import torch as th

from sb3_manygoals.checkpoint import CheckpointError, checkpoints, files, read_checkpoint, read_newest, write_checkpoint
from tests.sb3_manygoals.checkpoint.trees import assert_same, sample


def pieces(folder):
    return sorted(folder.glob("state.pt.*"))


def test_a_tree_comes_back_from_its_folder(tmp_path, small_pieces):
    root = tmp_path / "new" / "root"
    folder = write_checkpoint(root, sample(), step=20)
    assert folder == root / "000001-step20"
    again = read_checkpoint(folder)
    assert_same(again, sample())
    assert len(pieces(folder)) > 5
    assert {path.name for path in folder.iterdir()} == {"manifest.json", *(path.name for path in pieces(folder))}
    assert all(path.stat().st_size < 768 + 512 for path in pieces(folder))
    again["arrays"]["large"][...] = 0  # writable


def test_together_the_pieces_are_a_file_of_torch(tmp_path, small_pieces):
    folder = write_checkpoint(tmp_path, {"weights": th.arange(1000), "step": 7}, step=7)
    (tmp_path / "whole.pt").write_bytes(b"".join(path.read_bytes() for path in pieces(folder)))
    whole = th.load(tmp_path / "whole.pt", weights_only=True)["tree"]
    assert whole["step"] == 7
    assert th.equal(whole["weights"], th.arange(1000))


def test_joined_files_are_read_from_everywhere(tmp_path):
    data = bytes(range(20))
    for index in range(3):
        (tmp_path / str(index)).write_bytes(data[7 * index : 7 * index + 7])
    joined = io.BufferedReader(files.JoinedFiles([tmp_path / str(index) for index in range(3)]), 1)
    for start in range(22):
        assert joined.seek(start) == start
        assert joined.read(9) == data[start : start + 9]
    assert joined.seek(-3, os.SEEK_END) == 17
    assert joined.read() == data[17:]


def test_the_manifest_says_what_wrote_it(tmp_path):
    manifest = json.loads((write_checkpoint(tmp_path, {"a": 1}, step=7) / "manifest.json").read_text())
    assert (manifest["format"], manifest["version"], manifest["step"]) == ("sb3-manygoals checkpoint", 2, 7)
    assert set(manifest["versions"]) == {"python", "torch", "numpy", "stable-baselines3", "gymnasium", "sb3-manygoals"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT.*\+00:00", manifest["created"])


def test_numbers_go_up_and_old_checkpoints_go(tmp_path, no_sync):
    assert checkpoints(tmp_path / "missing") == []
    assert read_newest(tmp_path / "missing") is None
    assert read_newest(tmp_path) is None
    for step in (5, 3, 3, 100, 20):
        write_checkpoint(tmp_path, {"step": step}, step=step, keep=None)
    assert [path.name for path in checkpoints(tmp_path)] == [
        *("000005-step20", "000004-step100", "000003-step3", "000002-step3", "000001-step5"),
    ]
    (tmp_path / "notes.txt").write_text("not a checkpoint")
    (tmp_path / "other").mkdir()
    write_checkpoint(tmp_path, {"step": 1}, step=1, keep=2)
    assert [path.name for path in checkpoints(tmp_path)] == ["000006-step1", "000005-step20"]
    write_checkpoint(tmp_path, {"step": 1}, step=1)
    assert sorted(os.listdir(tmp_path)) == ["000005-step20", "000006-step1", "000007-step1", "notes.txt", "other"]
    write_checkpoint(tmp_path, {"step": 2}, step=2, keep=1)
    assert read_newest(tmp_path) == (tmp_path / "000008-step2", {"step": 2})
    (tmp_path / "1000000-step1").mkdir()
    assert [path.name for path in checkpoints(tmp_path)] == ["1000000-step1", "000008-step2"]


@pytest.mark.parametrize(
    ("error", "tree", "arguments"),
    [(ValueError, {}, (-1, 3)), (ValueError, {}, (0, 0)), (CheckpointError, {"a": object()}, (0, 3))],
)
def test_what_is_refused_leaves_no_trace(tmp_path, error, tree, arguments):
    with pytest.raises(error, match=r"must be at least|cannot be saved"):
        write_checkpoint(tmp_path / "root", tree, step=arguments[0], keep=arguments[1])
    assert not (tmp_path / "root").exists()


def test_damaged_checkpoints_are_skipped_only_when_asked(tmp_path):
    for step in range(3):
        write_checkpoint(tmp_path, {"step": step}, step=step)
    newest, middle, oldest = checkpoints(tmp_path)
    pieces(newest)[0].write_text("{}")
    (middle / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"000003-step2.state\.pt\.00000: 2 bytes"):
        read_newest(tmp_path)
    with pytest.warns(UserWarning, match="skipped a damaged checkpoint") as warnings:
        assert read_newest(tmp_path, fallback=True) == (oldest, {"step": 0})
    assert [str(newest) in str(warning.message) for warning in warnings] == [True, False]
    assert "manifest.json: missing; the checkpoint is incomplete" in str(warnings[1].message)
    assert warnings[0].filename == __file__
    pieces(oldest)[0].unlink()
    with (
        pytest.warns(UserWarning, match="skipped a damaged checkpoint"),
        pytest.raises(CheckpointError, match="each of the 3 checkpoints is damaged"),
    ):
        read_newest(tmp_path, fallback=True)


def test_only_what_has_changed_is_written(tmp_path, small_pieces):
    tree = {"large": np.arange(400.0), "weights": th.zeros(300), "step": 0}
    first = write_checkpoint(tmp_path, tree, step=0)
    tree["large"][150] += 1  # in the second of five pieces
    tree["step"] = 10**9  # what comes before grows
    second = write_checkpoint(tmp_path, tree, step=1)
    links = [path.stat().st_nlink for path in pieces(second)]
    assert links[0] == 1  # the tree; then come a header, five pieces, headers and two pieces
    assert (links[2:7], links[8:10]) == ([2, 1, 2, 2, 2], [2, 2])
    assert read_checkpoint(first)["large"][150] == 150
    assert_same(read_checkpoint(second), tree)
    third = write_checkpoint(tmp_path, tree, step=2, keep=1)
    assert checkpoints(tmp_path) == [third]
    assert_same(read_checkpoint(third), tree)


@pytest.mark.parametrize("damage", ["flip", "truncate", "append", "remove", "manifest", "symlink", "no links"])
def test_damaged_pieces_are_not_linked(tmp_path, small_pieces, damage, monkeypatch):
    tree = {"large": np.arange(400.0)}
    first = write_checkpoint(tmp_path, tree, step=0)
    piece = pieces(first)[1]
    data = piece.read_bytes()
    if damage == "manifest":
        (first / "manifest.json").write_text("{}")
    elif damage == "no links":
        monkeypatch.setattr(os, "link", lambda *paths: os.stat("/nowhere"))
    elif damage in ("remove", "symlink"):
        piece.unlink()
        if damage == "symlink":
            (tmp_path / "elsewhere").write_bytes(data)
            piece.symlink_to(tmp_path / "elsewhere")
    else:
        piece.write_bytes({"flip": data[:-1] + bytes([data[-1] ^ 1]), "truncate": data[:-1], "append": data + b"\0"}[damage])
    second = write_checkpoint(tmp_path, tree, step=1)
    assert_same(read_checkpoint(second), tree)
    assert pieces(second)[1].stat().st_nlink == 1


def test_everything_is_on_the_disk_before_the_name_is_there(tmp_path, small_pieces, monkeypatch):
    events, names, rename = [], {}, os.rename

    def moved(source, target):
        names.update({path.stat().st_ino: path.name for path in source.iterdir()})
        names[source.stat().st_ino] = "."
        events.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", lambda descriptor: events.append(os.fstat(descriptor).st_ino))
    monkeypatch.setattr(os, "rename", moved)
    folder = write_checkpoint(tmp_path / "root", sample(), step=0)
    parent, *events, root = (names.get(event, event) for event in events)
    assert (parent, root) == (tmp_path.stat().st_ino, (tmp_path / "root").stat().st_ino)
    assert events == [*(path.name for path in pieces(folder)), "manifest.json", ".", "rename"]


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="asks Linux how much memory is used")
def test_writing_takes_a_piece_of_memory_and_reading_the_checkpoint_once(tmp_path, no_sync, monkeypatch):
    monkeypatch.setattr(files, "PIECE", 4 << 20)
    array, peaks = np.arange(8 << 20), []
    for step in range(2):  # the second links
        tracemalloc.start()
        monkeypatch.setattr(os, "fsync", lambda descriptor: peaks.append(resident()))
        before = resident()
        folder = write_checkpoint(tmp_path, {"array": array}, step=step)
        assert max(peaks) - before < 16 << 20
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
        tracemalloc.stop()
    before = resident()
    again = read_checkpoint(folder)["array"]
    assert resident() - before < (64 + 16) << 20
    assert np.array_equal(again, array)
    assert sum(path.stat().st_nlink == 2 for path in pieces(folder)) >= 16
