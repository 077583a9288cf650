"""Runs of a suite as they are named, and their results as they are written."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.suite import Spec, SuiteError, read_result, results
from benchmarks.suite.spec import Result
from tests.benchmarks.suite.suite_agent import make


def test_names_are_what_is_run_and_a_hash():
    spec = Spec("a.b:c", "A2C + MG", "ALE/Pong-v5", 3, 10_000_000, {"beta": 0.02})
    assert spec.name == "A2C_MG-ALE_Pong-v5-10000000-seed3-" + spec.name[-10:]
    # Folders made by an earlier version are found by a later one.
    assert Spec("a.b:c", "agent", "game", 0, 1).name == "agent-game-1-seed0-08183484eb"
    settings = {"list": [1]}
    spec = Spec("a:b", "x", "y", 0, 1, settings)
    settings["list"].append(2)  # the settings are the spec's own
    assert spec.settings == {"list": [1]}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-3, 3) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
)
SPECS = st.builds(
    Spec,
    st.sampled_from(["a:b", "a.c:b"]),
    st.sampled_from(["x", "x-1", "x/1", "../x", "é"]),
    st.sampled_from(["y", "1-y", "..", "y_1"]),
    st.integers(0, 2),
    st.integers(1, 2),
    st.dictionaries(st.text(max_size=2), JSON, max_size=2),
)


@given(SPECS, SPECS)
def test_specs_share_a_folder_exactly_if_they_are_equal(one, other):
    texts = [json.dumps([s.carry_out, s.agent, s.game, s.seed, s.steps, s.settings], sort_keys=True) for s in (one, other)]
    assert (one.name == other.name) == (one == other) == (texts[0] == texts[1])
    assert hash(one) == hash(other) or one != other
    assert one.folder(Path("root")).resolve().parent == Path("root").resolve()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"carry_out": "module.function"}, "carry_out must be package.module:function, got 'module.function'"),
        ({"agent": ""}, "agent must be a name, got ''"),
        ({"game": None}, "game must be a name, got None"),
        ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
        ({"steps": 0}, "steps must be a whole number of at least 1, got 0"),
        ({"steps": 1e6}, "steps must be a whole number of at least 1, got 1000000.0"),
        ({"settings": {"path": Path("x")}}, "settings must be plain JSON"),
        ({"settings": {"pair": (1, 2)}}, r"settings must be plain JSON, got .* which comes back as"),
        ({"settings": {"rate": float("nan")}}, "settings must be plain JSON"),
    ],
)
def test_a_spec_that_cannot_be_is_refused(change, message):
    fields = {"carry_out": "a:b", "agent": "x", "game": "y", "seed": 0, "steps": 1}
    with pytest.raises(ValueError, match=message):
        Spec(**fields | change)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"spec": {}}', "\xff", '{"spec": 1, "values": {}, "seconds": 1, "attempts": 1}']
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
    folder, result = spec.folder(tmp_path), Result(spec, {"score": 0.1}, 2.5, 3)
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
        result.write(folder)
    assert read_result(folder) == result
