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

pytestmark = pytest.mark.usefixtures("no_sync")


@pytest.fixture
def saved(tmp_path):
    return write_checkpoint(tmp_path / "root", sample(), step=3)


def refusal(path):
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(path)
    return str(caught.value)


def sign(path, **changes):
    """Make a manifest that fits the file as it is now: what someone would do who means harm."""
    data = (path / "state.pt").read_bytes()
    content = json.loads((path / "manifest.json").read_text())
    del content["manifest_sha256"]
    content |= {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), **changes}
    (path / "manifest.json").write_bytes(folder._signed(content))


@pytest.mark.parametrize("name", ["state.pt", "manifest.json"])
def test_truncated_files_and_wrong_bits_are_refused(saved, name):
    path = saved / name
    data = bytearray(path.read_bytes())
    for position in range(0, len(data), 1 + len(data) // 50):
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


def test_missing_additional_and_foreign_files_are_refused(saved):
    other = write_checkpoint(saved.parent, sample(1), step=3)
    for name in ("state.pt", "manifest.json"):
        path, data = saved / name, (saved / name).read_bytes()
        path.unlink()
        assert f"{path}: missing" in refusal(saved)
        path.mkdir()
        assert f"{path}: missing" in refusal(saved)
        path.rmdir()
        shutil.copy(other / name, path)
        assert f"{saved / 'state.pt'}: " in refusal(saved)
        path.write_bytes(data)
    (saved / ".hidden").write_bytes(b"")
    assert f"{saved / '.hidden'}: not a file of this checkpoint" in refusal(saved)
    assert "there is no such checkpoint" in refusal(saved / "nothing")


def test_other_formats_and_manifests_are_refused(saved):
    for changes in ({"version": 4}, {"version": 2}, {"version": "3"}, {"format": "zip"}):
        sign(saved, **{"version": 3, "format": folder.FORMAT, **changes})
        assert "this version reads ('sb3-manygoals checkpoint', 3)" in refusal(saved)
    for changes in ({"size": None}, {"sha256": 1}):
        sign(saved, version=3, format=folder.FORMAT, **changes)
        assert str(saved / "state.pt") in refusal(saved)
    for text in ("", "[]", "{", "[" * 100_000, '{"format": "sb3-manygoals checkpoint"}', "1" * 5000, "\xff"):
        (saved / "manifest.json").write_bytes(text.encode("latin-1"))
        assert str(saved / "manifest.json") in refusal(saved)


class Hostile:
    def __reduce__(self):
        return os.mkdir, (self.marker,)

    def __init__(self, marker):
        self.marker = str(marker)


def test_nothing_in_a_file_is_executed_whatever_its_hash(saved, tmp_path):
    marker, path = tmp_path / "executed", saved / "state.pt"
    pickle.loads(pickle.dumps(Hostile(marker)))
    marker.rmdir()
    for tree in (Hostile(marker), {"tree": Hostile(marker), "objects": []}):
        for save in (th.save, lambda tree, path: path.write_bytes(pickle.dumps(tree))):
            save(tree, path)
            sign(saved)
            assert f"{path}: damaged" in refusal(saved)
    assert not marker.exists()
