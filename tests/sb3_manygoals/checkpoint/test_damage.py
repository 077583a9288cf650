"""Whatever happens to the files of a checkpoint, it is read as it was written or refused with the name of the file."""

import hashlib
import json
import os
import pickle
import shutil

import pytest
import torch as th

from sb3_manygoals.checkpoint import CheckpointError, folder, read_checkpoint, write_checkpoint
from tests.sb3_manygoals.checkpoint.trees import assert_same, sample

pytestmark = pytest.mark.usefixtures("small_pieces", "no_sync")


@pytest.fixture
def saved(tmp_path):
    return write_checkpoint(tmp_path / "root", sample(), step=3)


def refusal(path):
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(path)
    return str(caught.value)


def files_of(path):
    return sorted(path.iterdir())


def sign(path, **changes):
    """Make a manifest that fits the files as they are now: what someone would do who means harm."""
    content = {**json.loads((path / "manifest.json").read_text()), **changes}
    del content["sha256"]
    if "files" not in changes:
        data = {one.name: one.read_bytes() for one in files_of(path) if one.name != "manifest.json"}
        content["files"] = {name: {"size": len(one), "sha256": hashlib.sha256(one).hexdigest()} for name, one in data.items()}
    (path / "manifest.json").write_bytes(folder._signed(content))


def test_truncated_files_and_wrong_bits_are_refused(saved):
    for path in files_of(saved):
        data = bytearray(path.read_bytes())
        for position in range(0, len(data), 1 + len(data) // 8):
            path.write_bytes(data[:position])
            assert str(path) in refusal(saved)
            data[position] ^= 1 << position % 8
            path.write_bytes(data)
            assert str(path) in refusal(saved)
            data[position] ^= 1 << position % 8
        path.write_bytes(data + b"\0")
        assert str(path) in refusal(saved)
        path.write_bytes(data)
    assert_same(read_checkpoint(saved), sample())


def test_missing_and_additional_files_and_links_to_elsewhere_are_refused(saved, tmp_path):
    for path in files_of(saved):
        path.rename(tmp_path / "elsewhere")
        assert f"{path}: missing" in refusal(saved)
        path.mkdir()
        assert f"{path}: missing" in refusal(saved)
        path.rmdir()
        path.symlink_to(tmp_path / "elsewhere")
        assert f"{path}: missing" in refusal(saved)
        path.unlink()
        (tmp_path / "elsewhere").rename(path)
    for name in ("more.pt", "state.pt.99999", ".hidden"):
        (saved / name).write_bytes(b"")
        assert f"{saved / name}: not a file of this checkpoint" in refusal(saved)
        (saved / name).unlink()
    assert_same(read_checkpoint(saved), sample())
    assert "there is no such checkpoint" in refusal(saved / "nothing")


def test_parts_of_two_checkpoints_and_exchanged_pieces_are_refused(saved):
    other, replaced = write_checkpoint(saved.parent, sample(1), step=3), 0
    pieces = [path for path in files_of(saved) if path.name != "manifest.json"]
    for path in pieces:
        data, foreign = path.read_bytes(), (other / path.name).read_bytes()
        if data != foreign:
            path.write_bytes(foreign)
            assert str(path) in refusal(saved)
            path.write_bytes(data)
            replaced += 1
    assert replaced > 5
    sizes = [path.stat().st_size for path in pieces]
    first = next(index for index in range(len(sizes) - 1) if sizes[index] == sizes[index + 1])
    pieces[first].rename(saved / "kept")
    pieces[first + 1].rename(pieces[first])
    (saved / "kept").rename(pieces[first + 1])
    assert str(pieces[first]) in refusal(saved)
    shutil.copy(other / "manifest.json", saved)
    assert str(saved) in refusal(saved)


def test_other_formats_are_refused(saved):
    for changes in ({"version": 3}, {"version": 1}, {"version": "2"}, {"format": "zip"}):
        sign(saved, **{"version": 2, "format": folder.FORMAT, **changes})
        assert "of format ('" in refusal(saved)
        assert "this version reads ('sb3-manygoals checkpoint', 2)" in refusal(saved)
    for text in ("", "[]", "{", "[" * 100_000, '{"format": "sb3-manygoals checkpoint"}', "1" * 5000, "\xff"):
        (saved / "manifest.json").write_bytes(text.encode("latin-1"))
        assert str(saved / "manifest.json") in refusal(saved)


NAMES = ["../outside", "/etc/passwd", "state.pt.0/../../b", "./state.pt.00000", "C:\\x", "", "state.pt.0\0", "state.json"]


@pytest.mark.parametrize(
    "changes",
    [
        *({"files": {name: {"size": 0, "sha256": ""}}} for name in NAMES),
        *({"files": files} for files in ([], {}, {"a": 1}, None, {"state.pt.00000": 1}, {"state.pt.00000": {"size": 1}})),
        {"files": {"state.pt.00000": {"size": "1", "sha256": ""}}},
    ],
)
def test_manifests_of_another_structure_are_refused(saved, changes):
    sign(saved, **changes)
    assert f"{saved / 'manifest.json'}: damaged" in refusal(saved)


class Hostile:
    def __reduce__(self):
        return os.mkdir, (self.marker,)

    def __init__(self, marker):
        self.marker = str(marker)


def test_nothing_in_a_file_is_executed_whatever_its_hash(saved, tmp_path):
    marker = tmp_path / "executed"
    pickle.loads(pickle.dumps(Hostile(marker)))
    marker.rmdir()
    for path in files_of(saved):
        if path.name != "state.pt.00000":
            path.unlink()
    for tree in (Hostile(marker), {"tree": Hostile(marker), "objects": []}):
        shutil.copy(write_checkpoint(saved.parent, 0, step=0, keep=None) / "manifest.json", saved)
        for save in (th.save, lambda tree, path: path.write_bytes(pickle.dumps(tree))):
            save(tree, saved / "state.pt.00000")
            assert str(saved / "state.pt.00000") in refusal(saved)
            sign(saved)
            assert f"{saved / 'state.pt.'}*: damaged" in refusal(saved)
    assert not marker.exists()
    th.save({"tree": 7, "objects": []}, saved / "state.pt.00000")
    sign(saved)
    assert read_checkpoint(saved) == 7
