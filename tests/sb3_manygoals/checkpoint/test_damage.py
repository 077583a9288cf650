"""Whatever happens to the file of a checkpoint, it is read as it was written or refused with its name."""

import hashlib
import os
import pickle

import pytest
import torch as th

from sb3_manygoals.checkpoint import CheckpointError, read_checkpoint, write_checkpoint
from tests.sb3_manygoals.checkpoint.trees import Call, assert_same, sample

pytestmark = pytest.mark.usefixtures("no_sync")


@pytest.fixture
def saved(tmp_path):
    return write_checkpoint(tmp_path / "root", sample(), step=3)


def refusal(path):
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def signed(path):
    """Give the file the name that fits it as it is now: what someone would do who means harm."""
    return path.rename(
        path.with_name(f"{path.name[:-67]}{hashlib.sha256(path.read_bytes()).hexdigest()}.pt")
    )


def test_truncated_files_and_wrong_bits_are_refused(saved):
    data = bytearray(saved.read_bytes())
    for position in range(0, len(data), 1 + len(data) // 50):
        saved.write_bytes(data[:position])
        refusal(saved)
        data[position] ^= 1 << position % 8
        saved.write_bytes(data)
        refusal(saved)
        data[position] ^= 1 << position % 8
    saved.write_bytes(data + b"\0")
    refusal(saved)
    saved.write_bytes(data)
    assert_same(read_checkpoint(saved), sample())


def test_missing_and_foreign_files_and_other_formats_are_refused(saved):
    other = write_checkpoint(saved.parent, sample(1), step=3)
    saved.write_bytes(other.read_bytes())
    assert "damaged: its sha256 is not that of its name" in refusal(saved)
    saved.unlink()
    assert "cannot be read: No such file" in refusal(saved)
    saved.mkdir()
    assert "cannot be read" in refusal(saved)
    saved.rmdir()
    for name in ("state.pt", "000001-step3.pt", f"{saved.name}.zip"):
        assert (
            "of another format: this version reads files <number>-step<steps>-<sha256>.pt"
            in refusal(saved.parent / name)
        )
    for content in (
        {"tree": {"tree": 1}, "objects": []},
        {"tree": {"format": "5", "tree": 1}, "objects": []},
    ):
        th.save(content, saved)
        saved = signed(saved)
        assert "of another format: this version reads 'sb3-manygoals checkpoint 6'" in refusal(
            saved
        )


def test_nothing_in_a_file_is_executed_whatever_its_hash(saved, tmp_path):
    marker = tmp_path / "executed"
    hostile = Call(os.mkdir, (str(marker),))
    pickle.loads(pickle.dumps(hostile))
    marker.rmdir()
    for tree in (hostile, {"tree": hostile, "objects": []}):
        for save in (th.save, lambda tree, path: path.write_bytes(pickle.dumps(tree))):
            save(tree, saved)
            saved = signed(saved)
            assert f"{saved}: damaged" in refusal(saved)
    assert not marker.exists()
