import json

import numpy as np
import pandas as pd
from PIL import Image

from benchmarks.report import single
from tests.benchmarks.report.page_numbers import Page, trouble
from tests.benchmarks.report.test_tables import N, make_run

SUMMARY = {"agent": "default", "seed": 0, "known": 200, "reachable": N, "measured": N, "greedy": 0.75, "greedy_low": 0.7}
SUMMARY |= {"greedy_high": 0.8, "epsilon": 0.5, "epsilon_low": 0.4, "epsilon_high": 0.6, "plan": 0.9, "plan_low": 0.8}
SUMMARY |= {
    "plan_high": 1.0,
    "ceiling": 0.97,
    "training_seconds": 12.5,
    "steps": 300,
    "updates": 40,
    "targets": "PlannedTargets",
}
EMPTY = [f"held_out_{policy}{end}" for policy in ("greedy", "epsilon", "plan") for end in ("", "_low", "_high")]


def test_every_number_of_the_page_is_in_a_file_of_the_run(tmp_path):
    reached = {"greedy_reached": np.where(np.arange(N) < 3, 0.0, 1.0), "greedy_mean_steps": np.full(N, 10.0)}
    folder = make_run(tmp_path / "run", goals=reached)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(config | {"command": "python -m benchmarks mastery", "git_revision": "0a1"})
    )
    pd.DataFrame([SUMMARY]).reindex(columns=[*SUMMARY, *EMPTY]).to_csv(folder / "summary.csv", index=False)
    Image.new("RGB", (8, 8)).save(folder / "curve.png")
    page = single.write(folder)
    assert trouble(page, folder) == []
    found = Page(page.read_text())
    shown = {cell: text for text, _, cell in found.numbers}
    assert shown["summary.csv#1/greedy"] == "0.7500"
    facts = pd.read_csv(folder / "report.csv").set_index("what")["value"]
    assert (facts["goals reached from none"], facts["goals reached from every start"]) == (3, N - 3)
    assert facts["median steps, greedy"] == 10.0
    assert pd.read_csv(folder / "failing.csv")["state"].tolist() == [0, 1, 2]
    assert len([address for address in found.loaded if address.startswith("data:image/png")]) == 1 + 3
    assert all(address.startswith(("data:", "#")) for address in found.loaded)
