import json
import os
import re
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from sb3_manygoals.checkpoint import (
    CheckpointError,
    blocks,
    checkpoints,
    read_checkpoint,
    read_newest,
    write_checkpoint,
    writer,
)
from tests.sb3_manygoals.checkpoint.trees import files_of, same, sample

SAMPLES = Path(__file__).parent / "samples"


def test_a_tree_comes_back_from_its_folder(tmp_path, small_blocks):
    root = tmp_path / "new" / "root"
    folder = write_checkpoint(root, sample(), step=20)
    assert folder == root / "000001-step20"
    assert same(read_checkpoint(folder), sample())
    names = {path.relative_to(folder).as_posix() for path in files_of(folder)}
    large = {f"blocks/arrays.large-{index:05d}.npy" for index in range(3)}
    assert names == {
        "manifest.json",
        "state.json",
        "arrays.npz",
        *large,
        *(f"blocks/arrays.large-strided-{i:05d}.npy" for i in (0, 1)),
    }
    assert all(path.stat().st_size <= 768 for path in (folder / "blocks").iterdir())
    assert np.load(folder / "blocks/arrays.large-00000.npy").shape == (16, 5)
    with np.load(folder / "arrays.npz") as arrays:
        assert arrays["arrays/bytes"].shape == (5, 40)


def test_the_arrays_that_come_back_are_writable(tmp_path, small_blocks):
    tree = read_checkpoint(write_checkpoint(tmp_path, sample(), step=0))
    for array in tree["arrays"].values():
        array[...] = 0
    tree["tensor"].add_(1)


def test_the_manifest_says_what_wrote_it(tmp_path):
    manifest = json.loads((write_checkpoint(tmp_path, {"a": 1}, step=7) / "manifest.json").read_text())
    assert (manifest["format"], manifest["version"], manifest["step"]) == ("sb3-manygoals checkpoint", 1, 7)
    assert set(manifest["versions"]) == {"python", "torch", "numpy", "stable-baselines3", "gymnasium", "sb3-manygoals"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT.*\+00:00", manifest["created"])


@pytest.mark.parametrize("version", [1])
def test_checkpoints_of_all_formats_stay_readable(version):
    path, tree = read_newest(SAMPLES / f"format-{version}")
    assert path.name == "000001-step1000"
    assert same(tree, {**sample(), "random state": np.random.RandomState(0)})


@pytest.mark.parametrize("shape", [(5000,), (3, 5000), (2, 3, 700), (1, 1, 5000), (5000, 1), (70, 10)])
@pytest.mark.parametrize("dtype", [np.uint8, ">f8", "U3", "M8[s]"])
def test_arrays_of_all_shapes_are_cut_and_joined(tmp_path, small_blocks, no_sync, shape, dtype):
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    whole, part = read_checkpoint(write_checkpoint(tmp_path, [array, array[..., ::2]], step=0))
    assert same(whole, array)
    assert same(part, array[..., ::2])


def test_numbers_go_up_and_old_checkpoints_go(tmp_path):
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
    assert len(checkpoints(tmp_path)) == 3
    assert sorted(os.listdir(tmp_path)) == ["000005-step20", "000006-step1", "000007-step1", "notes.txt", "other"]
    write_checkpoint(tmp_path, {"step": 2}, step=2, keep=1)
    assert read_newest(tmp_path) == (tmp_path / "000008-step2", {"step": 2})
    (tmp_path / "1000000-step1").mkdir()
    assert [path.name for path in checkpoints(tmp_path)] == ["1000000-step1", "000008-step2"]


@pytest.mark.parametrize(("step", "keep"), [(-1, 3), (0, 0)])
def test_impossible_arguments_are_refused(tmp_path, step, keep):
    with pytest.raises(ValueError, match="must be at least"):
        write_checkpoint(tmp_path / "root", {}, step=step, keep=keep)
    assert not (tmp_path / "root").exists()


def test_what_cannot_be_stored_leaves_no_trace(tmp_path):
    with pytest.raises(CheckpointError, match="a/0: cannot store"):
        write_checkpoint(tmp_path / "root", {"a": [object()]}, step=0)
    assert not (tmp_path / "root").exists()


def test_damaged_checkpoints_are_skipped_only_when_asked(tmp_path):
    for step in range(3):
        write_checkpoint(tmp_path, {"step": step}, step=step)
    newest, middle, oldest = checkpoints(tmp_path)
    (newest / "state.json").write_text("{}")
    (middle / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"000003-step2.state\.json: 2 bytes"):
        read_newest(tmp_path)
    with pytest.warns(UserWarning, match="skipped a damaged checkpoint") as warnings:
        assert read_newest(tmp_path, fallback=True) == (oldest, {"step": 0})
    assert [str(newest) in str(warning.message) for warning in warnings] == [True, False]
    assert "manifest.json: missing; the checkpoint is incomplete" in str(warnings[1].message)
    assert warnings[0].filename == __file__
    (oldest / "arrays.npz").unlink()
    with (
        pytest.warns(UserWarning, match="skipped a damaged checkpoint"),
        pytest.raises(CheckpointError, match="each of the 3 checkpoints is damaged"),
    ):
        read_newest(tmp_path, fallback=True)


def test_unchanged_blocks_are_linked(tmp_path, small_blocks):
    tree = sample()
    first = write_checkpoint(tmp_path, tree, step=0)
    tree["arrays"]["large"][20] += 1  # in the second of three blocks
    second = write_checkpoint(tmp_path, tree, step=1, keep=1)
    assert not first.exists()
    third = write_checkpoint(tmp_path, tree, step=2)
    links = {path.name: path.stat().st_nlink for path in (third / "blocks").iterdir()}
    assert set(links.values()) == {2}
    assert {path.stat().st_nlink for path in third.iterdir() if path.is_file()} == {1}
    assert same(read_checkpoint(second), tree)
    assert same(read_checkpoint(third), tree)


def test_only_the_changed_block_is_written(tmp_path, small_blocks, monkeypatch):
    tree = sample()
    first = write_checkpoint(tmp_path, tree, step=0)
    tree["arrays"]["large"][20] += 1
    second = write_checkpoint(tmp_path, tree, step=1)
    alone = [path.name for path in (second / "blocks").iterdir() if path.stat().st_nlink == 1]
    assert alone == ["arrays.large-00001.npy"]
    assert not same(read_checkpoint(first), read_checkpoint(second))


@pytest.mark.parametrize("damage", ["flip", "truncate", "append", "remove", "manifest", "symlink"])
def test_damaged_blocks_are_not_linked(tmp_path, small_blocks, damage):
    first = write_checkpoint(tmp_path, sample(), step=0)
    block = first / "blocks/arrays.large-00000.npy"
    data = block.read_bytes()
    if damage == "manifest":
        (first / "manifest.json").write_text("{}")
    elif damage in ("remove", "symlink"):
        block.unlink()
        if damage == "symlink":
            (tmp_path / "elsewhere").write_bytes(data)
            block.symlink_to(tmp_path / "elsewhere")
    else:
        block.write_bytes({"flip": data[:-1] + bytes([data[-1] ^ 1]), "truncate": data[:-1], "append": data + b"\0"}[damage])
    second = write_checkpoint(tmp_path, sample(), step=1)
    assert same(read_checkpoint(second), sample())
    assert (second / "blocks/arrays.large-00000.npy").stat().st_nlink == 1


def test_without_links_blocks_are_written_again(tmp_path, small_blocks, monkeypatch):
    def refuse(*paths):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    write_checkpoint(tmp_path, sample(), step=0)
    assert same(read_checkpoint(write_checkpoint(tmp_path, sample(), step=1)), sample())


def test_everything_is_on_the_disk_before_the_name_is_there(tmp_path, small_blocks, monkeypatch):
    events, files, rename = [], {}, os.rename

    def moved(source, target):
        files.update({path.stat().st_ino: path.relative_to(source).as_posix() for path in [source, *source.rglob("*")]})
        events.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", lambda descriptor: events.append(os.fstat(descriptor).st_ino))
    monkeypatch.setattr(os, "rename", moved)
    folder = write_checkpoint(tmp_path / "root", sample(), step=0)
    names = [files.get(event, event) for event in events]
    parent, *names, root = names
    assert (parent, root) == (tmp_path.stat().st_ino, (tmp_path / "root").stat().st_ino)
    assert names[-3:] == ["manifest.json", ".", "rename"]
    assert set(names) == {"rename", ".", "blocks", *(path.relative_to(folder).as_posix() for path in files_of(folder))}


@pytest.mark.parametrize("strided", [False, True])
def test_memory_is_bounded_by_the_block(tmp_path, no_sync, strided):
    array = np.zeros((64 << 10, 2 << 10 if strided else 1 << 10), np.uint8)[:, :: 2 if strided else 1]  # 64 MiB
    array[::1000] = 1
    tracemalloc.start()
    try:
        for step in range(2):  # the second links
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            folder = write_checkpoint(tmp_path, {"array": array}, step=step)
            assert tracemalloc.get_traced_memory()[1] - before < (2.1 * blocks.BLOCK if strided else 3 << 20)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        again = read_checkpoint(folder)["array"]
        assert tracemalloc.get_traced_memory()[1] - before < array.nbytes + 1.2 * blocks.BLOCK
    finally:
        tracemalloc.stop()
    assert np.array_equal(again, array)
    assert len(list((folder / "blocks").iterdir())) == 5


def test_zip_names_are_no_arguments(tmp_path):
    tree = {"file": np.zeros(2), "args": np.zeros(1), "self": np.ones(1)}
    assert same(read_checkpoint(write_checkpoint(tmp_path, tree, step=0)), tree)


def test_equal_trees_give_equal_files(tmp_path, small_blocks):
    first, second = (write_checkpoint(tmp_path / name, sample(), step=0) for name in "ab")
    for path in files_of(first):
        if path.name != "manifest.json":
            assert path.read_bytes() == (second / path.relative_to(first)).read_bytes()
    assert writer.STATE == "state.json"
