"""The names of a suite's runs, and the files of their results."""

import os
from pathlib import Path

import pytest

from benchmarks.suite import Spec, SuiteError, read_result, results
from benchmarks.suite.spec import Result, write_whole
from tests.benchmarks.suite.suite_agent import make


def test_names_are_what_is_run_and_a_hash():
    spec = Spec("a.b:c", "A2C + MG", "ALE/Pong-v5", 3, 10_000_000, {"beta": 0.02})
    assert spec.name == "A2C_MG-ALE_Pong-v5-10000000-seed3-" + spec.name[-10:]
    # Folders made by an earlier version are found by a later one.
    assert Spec("a.b:c", "agent", "game", 0, 1).name == "agent-game-1-seed0-08183484eb"
    settings = {"list": [1]}
    spec = Spec("a:b", "x", "y", 0, 1, settings)
    settings["list"].append(2)
    # The spec has its own settings.
    assert spec.settings == {"list": [1]}


FIELDS = {"carry_out": "a:b", "agent": "x", "game": "y", "seed": 0, "steps": 1}
OTHER = [{"carry_out": "a.c:b"}, {"seed": 1}, {"steps": 2}, {"game": ".."}, {"game": "1-y"}]
OTHER += [{"agent": agent} for agent in ("x-1", "x/1", "x_1", "../x", "é")]
OTHER += [{"settings": {"a": value}} for value in (1, 1.0, True, "1", None, [1], {"a": 1})]


def test_specs_share_a_folder_exactly_if_they_are_equal():
    specs = [Spec(**FIELDS | change) for change in [{}, *OTHER]]
    assert len({spec.name for spec in specs}) == len(set(specs)) == len(specs)
    for change, spec in zip([{}, *OTHER], specs, strict=True):
        assert (Spec(**FIELDS | change), Spec(**FIELDS | change).name) == (spec, spec.name)
        assert spec.folder(Path("root")).resolve().parent == Path("root").resolve()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"carry_out": "module.function"},
            "carry_out must be package.module:function, got 'module.function'",
        ),
        ({"agent": ""}, "agent must be a name, got ''"),
        ({"game": None}, "game must be a name, got None"),
        ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
        ({"steps": 0}, "steps must be a whole number of at least 1, got 0"),
        ({"steps": 1e6}, "steps must be a whole number of at least 1, got 1000000.0"),
        ({"settings": {"path": Path("x")}}, "settings must be plain JSON"),
        (
            {"settings": {"pair": (1, 2)}},
            r"settings must be plain JSON, got .* which comes back as",
        ),
        ({"settings": {"rate": float("nan")}}, "settings must be plain JSON"),
    ],
)
def test_a_spec_that_cannot_be_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Spec(**FIELDS | change)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"spec": {}}', "\xff", '{"spec":1,"values":{},"seconds":1,"attempts":1}'],
)
def test_a_damaged_result_is_an_error_that_names_it(tmp_path, text):
    spec = make()
    folder = spec.folder(tmp_path)
    folder.mkdir()
    (folder / "result.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(SuiteError, match=rf"{folder / 'result.json'} is damaged: .*Remove it"):
        results([spec], tmp_path)
    Result(make(seed=1), {}, 1.0, 1).write(folder)
    with pytest.raises(SuiteError, match=f"is of another run, {make(seed=1).name}"):
        results([spec], tmp_path)


def test_a_result_comes_back_as_a_whole_or_not_at_all(tmp_path, monkeypatch):
    spec = make()
    folder = spec.folder(tmp_path)
    result = Result(spec, {"score": 0.1}, 2.5, 3)
    folder.mkdir()

    def no_space(descriptor):
        raise OSError("no space left on device")

    for before in ({}, {spec: result}):
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", no_space)
            with pytest.raises(OSError, match="no space left"):
                Result(spec, {"score": 0.2}, 2.5, 3).write(folder)
        with pytest.raises(SuiteError, match=r"walk must return plain JSON, got .*inf"):
            Result(spec, {"score": float("inf")}, 2.5, 3).write(folder)
        assert results([spec], tmp_path) == before
        assert len(list(folder.iterdir())) == len(before)
        result.write(folder)
    assert read_result(folder) == result


def test_processes_with_one_number_write_a_file_one_after_the_other(tmp_path, monkeypatch):
    """Containers on two machines share a disk, and each has a process 1."""
    file = tmp_path / "file"
    fsync = os.fsync
    others = ["second", "first"]

    def other(descriptor):
        if others:
            write_whole(file, others.pop())
        fsync(descriptor)

    monkeypatch.setattr(os, "getpid", lambda: 1)
    monkeypatch.setattr(os, "fsync", other)
    write_whole(file, b"third\r\n")
    assert file.read_bytes() == b"third\r\n"
    assert list(tmp_path.iterdir()) == [file]
