import csv
import json
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.faults import Trial, table
from benchmarks.faults.trials import GOOD

ROOT = Path(__file__).parents[2]
FEW = shlex.split("--kills 2 --truncations 6 --flips 6 --others 3 --memory-steps 0 --workers 2")
FAULTS = {
    "kill -9 at a random moment of training": 2,
    "kill -9 inside a save": 2,
    "a file cut short": 6,
    "a bit flipped": 6,
    "parts of two saves mixed": 3,
    "a hostile pickle planted": 3,
    "disk full": 3,
    "no permission to write": 3,
    "NaN in an observation": 1,
    "infinite reward": 1,
    "observation of another shape": 1,
    "observation of another dtype": 1,
    "non-finite loss": 1,
    "a worker process killed": 1,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    output = tmp_path_factory.mktemp("faults")
    arguments = [sys.executable, "-m", "benchmarks", "faults", *FEW, "--output", str(output)]
    # In a process of its own, as it forks, which a process with threads had better not do.
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (made,) = output.iterdir()
    assert (made / "faults.md").read_text() in done.stdout
    return made


def test_a_few_of_each_fault_are_survived(folder):
    with (folder / "faults.csv").open() as file:
        trials = list(csv.DictReader(file))
    ours = [trial for trial in trials if trial["subject"].startswith("ManyGoalsDQN")]
    assert [trial for trial in ours if trial["outcome"] != GOOD] == []
    assert Counter(trial["fault"] for trial in ours) == FAULTS
    damaged = {trial["detail"].split(":")[0] for trial in ours if trial["fault"] in ("a file cut short", "a bit flipped")}
    assert any(name.endswith(".npy") for name in damaged)
    assert "state.json" in damaged
    theirs = [trial for trial in trials if trial["subject"].startswith("SB3")]
    assert Counter(trial["fault"] for trial in theirs) == FAULTS
    # The trials can tell: the same is done to a learner that does not survive it all.
    assert any(trial["outcome"] == "code executed" for trial in theirs)
    assert any(trial["outcome"] == "the older save is lost" for trial in theirs)


def test_the_cost_is_within_bounds(folder):
    cost = json.loads((folder / "cost.json").read_text())
    assert cost["paper_seconds"] < 1.0
    assert cost["paper_bytes"] < 1.2 * cost["paper_array_bytes"]
    assert cost["changed_bytes"] < 0.1 * 2**28


def test_the_table_counts():
    trials = [Trial("fire", "ours", GOOD)] * 3 + [Trial("fire", "theirs", "burnt")] * 2 + [Trial("fire", "theirs", GOOD)]
    assert table(trials).splitlines()[2:] == ["| fire | 3/3 | 1/3: 2 burnt |"]
