"""The site of docs/, as ``make docs`` makes it."""

import importlib
import os
import subprocess
import sys

import pytest

from tests import ROOT

INNER = (
    "auxiliary",
    "checkpoint",
    "goals",
    "many_goals_dqn",
    "networks",
    "pretraining",
    "world",
)
"""Packages within ``sb3_manygoals`` whose public names are imported from there."""
PACKAGES = ("gym_twoRooms", "sb3_manygoals", *(f"sb3_manygoals.{name}" for name in INNER))
"""All packages with public names."""


def test_the_site_is_made_without_warnings_and_has_all_pages_and_public_names(tmp_path):
    """This is one test, as it takes half a minute to make the site."""
    # The extra "docs" brings these.
    for needed in ("ale_py", "furo", "lz4", "myst_nb", "sphinx"):
        pytest.importorskip(needed)
    from sphinx.util.inventory import InventoryFile

    build = [sys.executable, "-m", "sphinx", "--nitpicky", "--fail-on-warning"]
    build += ["--keep-going", "--quiet"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*build, ROOT / "docs", tmp_path],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr

    sources = [page for kind in ("*.md", "*.ipynb") for page in (ROOT / "docs").rglob(kind)]
    pages = [page.relative_to(ROOT / "docs") for page in sources]
    assert len(pages) > 10
    assert [page for page in pages if not (tmp_path / page.with_suffix(".html")).is_file()] == []

    with (tmp_path / "objects.inv").open("rb") as file:
        inventory = InventoryFile.load(file, "", lambda base, uri: uri)
    # These names have a place on the site.
    names = {name for kind, found in inventory.items() if kind.startswith("py:") for name in found}
    for package in PACKAGES:
        found = {
            name.rpartition(".")[2] for name in names if name.startswith(package.partition(".")[0])
        }
        assert set(importlib.import_module(package).__all__) - found == set(), package
    # The notebook is shown with the outputs that it has: two of its pictures are films.
    notebook = (tmp_path / "first_steps.html").read_text()
    assert "goals reached: 220" in notebook
    assert notebook.count("<img") >= 4
    learners = (tmp_path / "api" / "learners.html").read_text()
    world = (tmp_path / "api" / "gym_twoRooms.html").read_text()
    # These methods are inherited from classes of this project, the next one from torch.
    for method in ("goal_policy", "predict", "save_world", "set_env", "task_policy"):
        assert f'id="sb3_manygoals.ManyGoalsDQN.{method}"' in learners
    assert "register_forward_hook" not in learners
    # The docstring of the world is a page in Markdown, which is left out.
    assert "## Description" not in world


def test_the_packages_are_all_those_with_public_names():
    found = set()
    for top in ("gym_twoRooms", "sb3_manygoals"):
        for init in (ROOT / top).rglob("__init__.py"):
            if "__all__" in init.read_text(encoding="utf-8"):
                found.add(".".join(init.parent.relative_to(ROOT).parts))
    assert found == set(PACKAGES)
