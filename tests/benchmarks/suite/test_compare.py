"""Suites carried out twice: what is the same, and what is not."""

import csv
import shutil

import pytest
from stable_baselines3 import A2C

from benchmarks.suite import Result, Spec, SuiteError
from benchmarks.suite.compare import CompareConfig, differences

SPECS = [Spec("a:b", "agent", "Pong", seed, 10) for seed in (0, 1)]


def write(path, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """Two runs, one of them with a model."""
    root = tmp_path_factory.mktemp("once")
    for spec in SPECS:
        own = spec.folder(root) / "agent" / "run"
        own.mkdir(parents=True)
        Result(spec, {"score": 1.5, "training_seconds": 3.0, "kept_bytes": 7}, 4.0, 1).write(spec.folder(root))
        write(own / "curve.csv", [["step", "episode_return", "training_seconds"], [5, 1.0, 2.0], [10, 1.5, 3.0]])
    A2C("MlpPolicy", "CartPole-v1", device="cpu", seed=0).learn(10).save(own / "model.zip")
    return root


@pytest.fixture
def twice(once, tmp_path):
    return shutil.copytree(once, tmp_path / "twice")


def run_of(root, seed):
    return SPECS[seed].folder(root) / "agent" / "run"


def test_times_and_attempts_may_differ(once, twice, capsys):
    Result(SPECS[0], {"score": 1.5, "training_seconds": 9.0, "kept_bytes": 8}, 9.0, 3).write(SPECS[0].folder(twice))
    write(run_of(twice, 0) / "curve.csv", [["step", "episode_return", "training_seconds"], [5, "1.0", 4.0], [10, "1.5", 9.0]])
    A2C("MlpPolicy", "CartPole-v1", device="cpu", seed=0).learn(10).save(run_of(twice, 1) / "model.zip")  # at another time
    CompareConfig((once, twice, once)).run()
    assert "2 runs are the same in 3 folders" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda root: Result(SPECS[0], {"score": 1.25}, 1.0, 1).write(SPECS[0].folder(root)), "'score': 1.25"),
        (lambda root: (SPECS[0].folder(root) / "result.json").unlink(), "has finished only in"),
        (lambda root: write(run_of(root, 1) / "curve.csv", [["step", "episode_return"], [5, 1.0], [10, 1.25]]), "line 3"),
        (lambda root: write(run_of(root, 1) / "curve.csv", [["step", "episode_return"], [5, 1.0]]), "line 3"),
        (lambda root: (run_of(root, 1) / "model.zip").unlink(), "model.zip is only in"),
        (
            lambda root: A2C("MlpPolicy", "CartPole-v1", device="cpu", seed=1).learn(10).save(run_of(root, 1) / "model.zip"),
            "other weights",
        ),
    ],
    ids=["result", "unfinished", "row", "no row", "no model", "weights"],
)
def test_each_difference_is_named(once, twice, change, line, capsys):
    change(twice)
    for pair in ((once, twice), (twice, once)):
        (found,) = differences(*pair)
        assert line in found
        with pytest.raises(SystemExit, match="1 differences"):
            CompareConfig(pair).run()


def test_what_is_no_suite_is_refused(once, twice, tmp_path):
    with pytest.raises(SuiteError, match="no run has finished in"):
        list(differences(tmp_path, once))
    with pytest.raises(SuiteError, match="at least two folders, got 1"):
        CompareConfig((once,)).run()
    (SPECS[0].folder(twice) / "result.json").write_text("{}")
    with pytest.raises(SuiteError, match="is damaged"):
        list(differences(once, twice))
