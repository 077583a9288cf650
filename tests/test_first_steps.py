"""docs/first_steps.ipynb, the outputs that are committed with it, and docs/run_notebook.py."""

import base64
import importlib.util
import io
import os
import re
import subprocess
import sys

import nbformat
import pytest
from PIL import Image

from tests import ROOT

RUNNER = ROOT / "docs" / "run_notebook.py"
NOTEBOOK = ROOT / "docs" / "first_steps.ipynb"
MOST_BYTES = 500_000


@pytest.fixture(scope="module")
def runner():
    spec = importlib.util.spec_from_file_location("run_notebook", RUNNER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def notebook():
    return nbformat.read(NOTEBOOK, as_version=4)


def run(*arguments):
    """Run the notebook as ``make notebook`` does, and return the process that has ended."""
    return subprocess.run(
        [sys.executable, RUNNER, *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def printed(notebook):
    """Return all that the cells of a notebook print, the warnings too."""
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    return "".join(output.text for output in outputs if output.output_type == "stream")


def pictures(notebook):
    """Return the pictures that a notebook shows."""
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    encoded = [
        output.data["image/png"] for output in outputs if "image/png" in output.get("data", {})
    ]
    return [Image.open(io.BytesIO(base64.b64decode(picture))) for picture in encoded]


def test_the_notebook_runs_with_less_training(tmp_path):
    shorter = ["--set", "steps = 1_500", "--set", "jug_steps = 1_200"]
    before = NOTEBOOK.read_bytes()
    done = run(*shorter, "--output", tmp_path / "short.ipynb")
    assert done.returncode == 0, done.stderr
    assert NOTEBOOK.read_bytes() == before
    short = nbformat.read(tmp_path / "short.ipynb", as_version=4)
    assert "step 1500: mastery" in printed(short)
    # The jugs have all their states soon, whatever the network has learned.
    assert "states met: 16" in printed(short)
    assert "steps of the world: 1400" in printed(short)
    world, _, goals, task = pictures(short)
    assert world.size == (128, 256)
    assert goals.n_frames > 4
    assert goals.size == (2 * 128 + 16, 256)
    assert task.n_frames > 1


def test_what_the_notebook_shows_comes_from_its_code(runner, notebook):
    advice = "run `make notebook`, and look at what the notebook shows"
    assert notebook.metadata[runner.DIGEST] == runner.code_digest(notebook), advice
    counts = [cell.execution_count for cell in code_cells(notebook)]
    assert counts == list(range(1, len(counts) + 1))
    kinds = {output.output_type for cell in code_cells(notebook) for output in cell.outputs}
    assert kinds == {"stream", "display_data", "execute_result"}
    streams = {output.get("name") for cell in code_cells(notebook) for output in cell.outputs}
    assert "stderr" not in streams
    # Nothing had to be installed, so it does not show where a package came from.
    assert code_cells(notebook)[0].outputs == []
    assert NOTEBOOK.stat().st_size < MOST_BYTES
    nbformat.validate(notebook)


def test_the_notebook_shows_what_its_text_says(notebook):
    found = [int(number) for number in re.findall(r"goals reached: (\d+)", printed(notebook))]
    # Of the two rooms, of the jugs, and of the agent that was loaded.
    assert found == [220, 16, 16]
    assert re.search(r"step 30000: mastery 1\.000 greedy", printed(notebook))
    assert re.search(r"\[3 4\]\n", printed(notebook))
    # This would be the number of actions to a goal that was not reached.
    assert "-1" not in printed(notebook)
    assert [picture.format for picture in pictures(notebook)] == ["PNG"] * 4


def test_other_code_has_another_digest(runner, notebook):
    before = runner.code_digest(notebook)
    cell = code_cells(notebook)[-1]
    cell.outputs = []
    assert runner.code_digest(notebook) == before
    cell.source += "\n"
    assert runner.code_digest(notebook) != before


def test_links_of_the_notebook_lead_somewhere(notebook):
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    targets = re.findall(r"\]\(([^)#]+)", text)
    assert len(targets) > 4
    for target in targets:
        assert target.startswith("http") or (NOTEBOOK.parent / target).exists(), target
    guide = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", guide, flags=re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(guide\.md#([^)]+)\)", text)) <= anchors


def test_the_notebook_installs_what_it_imports(notebook):
    install, *others = [cell.source for cell in code_cells(notebook)]
    packages = set(re.findall(r'find_spec\("(\w+)"\)', install))
    assert packages == {"sb3_manygoals", "matplotlib"}
    assert len(re.findall(r"^    %pip install", install, flags=re.MULTILINE)) == len(packages)
    imported = set(re.findall(r"^(?:import|from) (\w+)", "\n".join(others), flags=re.MULTILINE))
    # The package brings these, Matplotlib brings PIL, and a kernel needs IPython.
    brought = {"gym_twoRooms", "gymnasium", "numpy", "PIL", "IPython"}
    assert imported - set(sys.stdlib_module_names) <= packages | brought


def test_parameters_are_those_of_the_notebook(runner, notebook):
    changed = runner.with_parameters(notebook, ["steps = 7"])
    values = {}
    (cell,) = [cell for cell in changed.cells if "parameters" in cell.metadata.get("tags", [])]
    exec(cell.source, values)
    assert values["steps"] == 7
    assert values["jug_steps"] == 5_000
    assert "steps = 7" not in "".join(cell.source for cell in notebook.cells)
    with pytest.raises(ValueError, match="jug_steps, steps, got 'paces = 7'"):
        runner.with_parameters(notebook, ["paces = 7"])
    notebook.cells = [cell for cell in notebook.cells if not cell.metadata.get("tags")]
    with pytest.raises(ValueError, match="one cell must have the tag 'parameters', got 0"):
        runner.with_parameters(notebook, ["steps = 7"])


def test_nothing_is_written_if_a_cell_fails(tmp_path):
    done = run("--set", "steps = 1 / 0", "--output", tmp_path / "failed.ipynb")
    assert done.returncode != 0
    assert "ZeroDivisionError" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_shorter_run_does_not_replace_the_notebook():
    before = NOTEBOOK.read_bytes()
    done = run("--set", "steps = 7")
    assert done.returncode == 2
    assert "--set needs an --output of its own" in done.stderr
    assert NOTEBOOK.read_bytes() == before
