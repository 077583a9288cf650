"""Whatever happens to the files of a checkpoint, it is read as it was written or refused with the name of the file."""

import hashlib
import io
import json
import os
import pathlib
import pickle
import shutil
import zipfile

import numpy as np
import pytest

from sb3_manygoals.checkpoint import CheckpointError, manifest, read_checkpoint, write_checkpoint
from tests.sb3_manygoals.checkpoint.trees import files_of, same, sample

pytestmark = pytest.mark.usefixtures("small_blocks", "no_sync")


@pytest.fixture
def folder(tmp_path):
    return write_checkpoint(tmp_path / "root", sample(), step=3)


def refusal(folder):
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(folder)
    return str(caught.value)


def sign(folder, **changes):
    """Make a manifest that fits the files as they are now: what someone would do who means harm."""
    content = {**json.loads((folder / "manifest.json").read_text()), **changes}
    del content["sha256"]
    if "files" not in changes:
        data = {
            path.relative_to(folder).as_posix(): path.read_bytes() for path in files_of(folder) if path.name != "manifest.json"
        }
        content["files"] = {
            name: {"size": len(data[name]), "sha256": hashlib.sha256(data[name]).hexdigest()} for name in sorted(data)
        }
    (folder / "manifest.json").write_bytes(manifest._signed(content))


def test_truncated_files_are_refused(folder):
    for path in files_of(folder):
        data = path.read_bytes()
        for length in range(len(data)):
            os.truncate(path, len(data) - 1 - length)
            assert str(path) in refusal(folder)
        path.write_bytes(data + b"\0")
        assert str(path) in refusal(folder)
        path.write_bytes(data)
    assert same(read_checkpoint(folder), sample())


def test_files_with_one_wrong_bit_are_refused(folder):
    for path in files_of(folder):
        data = bytearray(path.read_bytes())
        with open(path, "r+b", buffering=0) as file:
            for position, byte in enumerate(data):
                os.pwrite(file.fileno(), bytes([byte ^ 1 << position % 8]), position)
                assert str(path) in refusal(folder)
                os.pwrite(file.fileno(), bytes([byte]), position)
    assert same(read_checkpoint(folder), sample())


def test_missing_and_additional_files_are_refused(folder):
    for path in files_of(folder):
        data = path.read_bytes()
        path.unlink()
        assert f"{path}: missing" in refusal(folder)
        path.mkdir()
        assert f"{path}: missing" in refusal(folder)
        path.rmdir()
        path.write_bytes(data)
    for name in ("more.npy", "blocks/more.npy", "blocks/.hidden"):
        (folder / name).write_bytes(b"")
        assert f"{folder / name}: not a file of this checkpoint" in refusal(folder)
        (folder / name).unlink()
    assert same(read_checkpoint(folder), sample())
    assert "there is no such checkpoint" in refusal(folder / "nothing")


def test_parts_of_two_checkpoints_are_refused(folder):
    other = write_checkpoint(folder.parent, sample(1), step=3)
    replaced = 0
    for path in files_of(folder):
        data, foreign = path.read_bytes(), (other / path.relative_to(folder)).read_bytes()
        if path.name != "manifest.json" and data != foreign:
            path.write_bytes(foreign)
            assert str(path) in refusal(folder)
            path.write_bytes(data)
            replaced += 1
    assert replaced == 7
    shutil.copy(other / "manifest.json", folder)
    assert "of another checkpoint" in refusal(folder)


def test_two_exchanged_blocks_are_refused(folder):
    first, second = (folder / f"blocks/arrays.large-0000{index}.npy" for index in range(2))
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(data)
    assert str(first) in refusal(folder)


def test_newer_and_other_formats_are_refused(folder):
    sign(folder, version=2)
    assert f"{folder / 'manifest.json'}: written by format 2, this version reads up to 1" in refusal(folder)
    sign(folder, version="1")
    assert "format version '1'" in refusal(folder)
    sign(folder, version=1, format="zip")
    assert "of format 'zip', expected 'sb3-manygoals checkpoint'" in refusal(folder)
    for text in ("", "[]", "{", "[" * 100_000, '{"format": "sb3-manygoals checkpoint"}', "1" * 5000, "\xff"):
        (folder / "manifest.json").write_bytes(text.encode("latin-1"))
        assert str(folder / "manifest.json") in refusal(folder)


def test_links_to_elsewhere_are_not_followed(folder, tmp_path):
    for path in [*files_of(folder), folder / "blocks"]:
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
        assert str(path) in refusal(folder)
        path.unlink()
        (tmp_path / "elsewhere").rename(path)
    assert same(read_checkpoint(folder), sample())


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/../../b", "./state.json", "a//b", "C:\\x", "", "a\0"])
def test_paths_out_of_the_checkpoint_are_refused(folder, name):
    files = json.loads((folder / "manifest.json").read_text())["files"]
    sign(folder, files={**files, name: {"size": 0, "sha256": ""}})
    assert "leads out of the checkpoint" in refusal(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"files": []},
        {"files": {}},
        {"files": {"a": 1}},
        {"files": {"a": {"size": "1", "sha256": ""}}},
        {"arrays": None},
        {"arrays": {"a": 1}},
        {"arrays": {"a": {"dtype": "<f8", "shape": [3], "blocks": ["unknown"]}}},
        {"arrays": {"a": {"dtype": "<f8", "shape": [-3], "blocks": []}}},
        {"arrays": {"a": {"dtype": "<f8", "shape": [10**12], "blocks": ["state.json"]}}},
        {"arrays": {"a": {"dtype": "|O8", "shape": [3], "blocks": []}}},
        {"arrays": {"tensor": {"dtype": "<i2", "shape": [0], "blocks": []}}},
        {"arrays": {}},
    ],
)
def test_manifests_of_another_structure_are_refused(folder, changes):
    sign(folder, **changes)
    assert str(folder) in refusal(folder)


def test_blocks_must_fit_their_array(folder):
    arrays = json.loads((folder / "manifest.json").read_text())["arrays"]
    large = arrays["arrays/large"]
    for change in (
        {"shape": [39, 5]},
        {"shape": [5, 40]},
        {"shape": [41, 5]},
        {"dtype": "<i8"},
        {"blocks": large["blocks"][:2]},
    ):
        sign(folder, arrays={**arrays, "arrays/large": {**large, **change}})
        assert str(folder) in refusal(folder)


class Hostile:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return pathlib.Path.touch, (self.marker,)


@pytest.mark.parametrize("form", ["pickle", "npy", "npz", "npz without allow_pickle's header", "zip"])
def test_nothing_in_a_file_is_executed(folder, tmp_path, form):
    marker = tmp_path / "executed"
    pickle.loads(pickle.dumps(Hostile(marker)))
    assert marker.exists()
    marker.unlink()
    stream, hostile = io.BytesIO(), np.array([Hostile(marker)] * 3, dtype=object)
    if form == "pickle":
        stream.write(pickle.dumps(Hostile(marker)))
    elif form == "npy":
        np.save(stream, hostile, allow_pickle=True)
    elif form == "npz":
        np.savez(stream, **{"arrays/bytes": hostile, "tensor": hostile})
    else:
        with zipfile.ZipFile(stream, "w") as archive:
            archive.writestr("arrays/bytes.npy", pickle.dumps(Hostile(marker)))
    for path in files_of(folder):
        data = path.read_bytes()
        path.write_bytes(stream.getvalue())
        assert str(path) in refusal(folder)
        if path.name != "manifest.json":  # with fitting sizes and hashes too
            proper = (folder / "manifest.json").read_bytes()
            sign(folder)
            assert str(folder) in refusal(folder)
            (folder / "manifest.json").write_bytes(proper)
        path.write_bytes(data)
    assert not marker.exists()
    assert same(read_checkpoint(folder), sample())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"'descr': '<f8'", b"'descr': '|O8'"),
        (b"'descr': '<f8'", b"'descr': 'f,f'"),
        (b"'fortran_order': False", b"'fortran_order': True "),
        (b"'shape': (16, 5)", b"'shape': (17, 5)"),
        (b"'shape': (16, 5)", b"'shape': (16, x)"),
        (b"\x93NUMPY\x01", b"\x93NUMPY\x02"),
    ],
)
def test_blocks_with_another_header_are_refused_whatever_their_hash(folder, old, new):
    path = folder / "blocks/arrays.large-00000.npy"
    data = path.read_bytes()
    assert data.count(old) == 1
    path.write_bytes(data.replace(old, new))
    sign(folder)
    assert f"{path}: damaged" in refusal(folder)


def test_archives_of_another_kind_are_refused_whatever_their_hash(folder):
    path = folder / "arrays.npz"
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}

    def written(compression=zipfile.ZIP_STORED, twice=False, **more):
        with zipfile.ZipFile(path, "w", compression) as archive:
            for name, data in {**members, **more}.items():
                archive.writestr(name, data)
            if twice:
                archive.infolist()[0].filename = archive.infolist()[1].filename
        sign(folder)

    written()
    assert same(read_checkpoint(folder), sample())
    written(zipfile.ZIP_DEFLATED)
    assert f"{path}: damaged" in refusal(folder)
    written(**{"other.txt": b""})
    assert f"{path}: damaged: 'other.txt'" in refusal(folder)
    written(**{"other.npy": members["tensor.npy"]})
    assert "belong to nothing in the tree: other" in refusal(folder)
    del members["tensor.npy"]
    written()
    assert "the array 'tensor' is missing" in refusal(folder)
