"""A few faults of each kind: ours survives, and the trials can tell what does not."""

import os
import subprocess
import sys
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch as th

from benchmarks.faults import FaultsConfig, table
from benchmarks.faults.learners import OURS, SB3, digest
from benchmarks.faults.trials import SURVIVED
from benchmarks.worlds import SettingError
from tests import ROOT

NUMBERS = {"kills": 1, "damages": 1, "full-disks": 1, "others": 1}
TRIALS = {
    "`kill -9` at a random moment of training": 1,
    "`kill -9` inside a save": 1,
    "file cut short": 1,
    "bit flipped": 1,
    "parts of two saves mixed": 1,
    "hostile pickle": 1,
    "disk full": 1,
    "no write permission": 1,
    "NaN in an observation": 1,
    "infinite reward": 1,
    "observation of another shape": 1,
    "observation of another dtype": 1,
    "worker process killed": 1,
}
CAST = {"observation of another shape", "observation of another dtype"}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The results of a few trials."""
    if sys.platform != "linux":
        pytest.skip("forks a process that has imported torch, which is safe on Linux only")
    output = tmp_path_factory.mktemp("faults")
    options = [f"--{name}={number}" for name, number in NUMBERS.items()]
    command = [sys.executable, "-m", "benchmarks", "faults", *options, f"--output={output}"]
    # A process that forks should have no threads, and this one may have some.
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (folder,) = output.iterdir()
    results = pd.read_csv(folder / "faults.csv")
    assert table(results) in done.stdout
    return results


def outcomes_of(found, learner):
    """Return a row for each outcome of each fault of a learner, and the trials of each fault."""
    rows = found[found["learner"] == learner]
    return rows, Counter(dict(rows.groupby("fault")["trials"].sum()))


def test_exact_checkpoints_survive(found):
    rows, trials = outcomes_of(found, OURS)
    assert trials == TRIALS
    others = rows[rows["outcome"] != SURVIVED]
    # SB3's DummyVecEnv casts these before anyone sees them.
    assert {*others["fault"]} <= CAST


def test_the_trials_see_what_does_not_survive(found):
    rows, trials = outcomes_of(found, SB3)
    assert trials == TRIALS
    assert {*rows["fault"][rows["outcome"] == SURVIVED]} == {"no write permission"}
    outcomes = dict(zip(rows["fault"], rows["outcome"], strict=True))
    assert outcomes["parts of two saves mixed"] == "accepted and different"
    assert outcomes["hostile pickle"] == "executed"
    assert outcomes["disk full"] == "the older save is lost"
    assert outcomes["NaN in an observation"] == "went on with non-finite weights"
    assert outcomes["worker process killed"] == "stopped without saying where"


def test_the_table_counts_what_survived_and_says_what_became_of_the_others():
    rows = [
        ("fire", "ours", SURVIVED, 3, ""),
        ("fire", "theirs", "burnt", 2, ""),
        ("fire", "theirs", SURVIVED, 1, ""),
    ]
    columns = ["fault", "learner", "outcome", "trials", "example"]
    lines = table(pd.DataFrame(rows, columns=columns)).splitlines()
    assert lines == ["| fault | ours | theirs |", "|---|---|---|", "| fire | 3/3 | 1/3: 2 burnt |"]


def test_a_digest_differs_with_each_bit_but_not_with_the_clock():
    def tree(value=1.0, seed=0, **more):
        parts = {"array": np.array([0.0, value]), "tensor": th.tensor([[value]]), "n": (1, [2])}
        return parts | {"generator": np.random.default_rng(seed), **more}

    whole = digest(tree())
    assert digest(tree(t=3.0)) == digest(tree(t=4.0)) == whole
    others = [
        tree(np.nextafter(1.0, 2.0)),
        tree(seed=1),
        tree(array=np.array([-0.0, 1.0])),
        tree(array=np.array([[0.0, 1.0]])),
        tree(array=np.array([0, 1])),
        tree(n=(1, 2, [])),
        tree(n={1, 2}),
        tree(extra=None),
    ]
    assert len({whole, *map(digest, others)}) == 1 + len(others)


def test_negative_numbers_and_systems_without_forks_are_refused(monkeypatch, tmp_path):
    with pytest.raises(SettingError, match="damages must be at least 0, got -1"):
        FaultsConfig(damages=-1)
    monkeypatch.delattr(os, "fork", raising=False)
    with pytest.raises(SettingError, match="forks processes"):
        FaultsConfig(output=tmp_path).run()
    assert not list(tmp_path.iterdir())
