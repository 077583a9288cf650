"""A checkpoint's file is read as it was written, or refused with its name."""

import hashlib
import os
import pickle
from pathlib import Path

import pytest
import torch as th

from sb3_manygoals.checkpoint import CheckpointError, read_checkpoint, write_checkpoint
from sb3_manygoals.checkpoint.folder import FORMAT
from tests.sb3_manygoals.checkpoint.trees import Call, assert_same, sample

pytestmark = pytest.mark.usefixtures("no_sync")


@pytest.fixture
def saved(tmp_path):
    return write_checkpoint(tmp_path / "root", sample(), step=3)


def refusal(path):
    """
    Return why a checkpoint is refused.

    :param path: of the checkpoint
    :return: the error message, which names the checkpoint
    """
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def signed(path):
    """
    Give a file the name that fits its contents, as someone would do who means harm.

    :param path: of the checkpoint
    :return: its new path
    """
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return path.rename(path.with_name(f"{path.name[:-67]}{sha256}.pt"))


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


def test_missing_files_and_other_names_are_refused(saved):
    other = write_checkpoint(saved.parent, sample(1), step=3)
    saved.write_bytes(other.read_bytes())
    assert "damaged: its sha256 is not that of its name" in refusal(saved)
    saved.unlink()
    assert "cannot be read: No such file" in refusal(saved)
    saved.mkdir()
    assert "cannot be read" in refusal(saved)
    saved.rmdir()
    for name in ("state.pt", "000001-step3.pt", f"{saved.name}.zip"):
        message = refusal(saved.parent / name)
        assert "written by another version, or no checkpoint: this version reads files" in message
        assert "<number>-step<steps>-<sha256>.pt" in message


@pytest.mark.parametrize("content", [{"tree": 1}, {"format": "5", "tree": 1}, 1])
def test_a_file_of_another_format_is_not_called_damaged(saved, content):
    th.save({"tree": content, "objects": []}, saved)
    assert refusal(signed(saved)).endswith(
        f"written by another version: this version reads {FORMAT!r}"
    )


@pytest.mark.parametrize("content", [{"objects": []}, {"tree": Path("a"), "objects": []}])
def test_a_file_that_cannot_be_loaded_but_is_whole_is_not_called_damaged(saved, content):
    th.save(content, saved)
    message = refusal(signed(saved))
    assert "written by another version, or no checkpoint: not a tree of this version" in message
    assert message.endswith(f". This version reads {FORMAT!r}")
    assert "damaged" not in message


def test_nothing_in_a_file_is_executed_whatever_its_hash(saved, tmp_path):
    marker = tmp_path / "executed"
    hostile = Call(os.mkdir, (str(marker),))
    pickle.loads(pickle.dumps(hostile))
    marker.rmdir()
    for tree in (hostile, {"tree": hostile, "objects": []}):
        for save in (th.save, lambda tree, path: path.write_bytes(pickle.dumps(tree))):
            save(tree, saved)
            saved = signed(saved)
            assert f"{saved}: written by another version, or no checkpoint" in refusal(saved)
    assert not marker.exists()
