"""The site of docs/, as ``make docs`` makes it."""

import importlib
import os
import subprocess
import sys

import pytest

from tests import ROOT

INNER = ("auxiliary", "checkpoint", "goals", "many_goals_dqn", "pretraining")
PACKAGES = ("gym_twoRooms", "sb3_manygoals", *(f"sb3_manygoals.{name}" for name in INNER))


def test_the_site_is_made_without_warnings_and_has_all_pages_and_public_names(tmp_path):
    """One test, as it takes half a minute to make the site."""
    for needed in ("ale_py", "furo", "lz4", "myst_parser", "sphinx"):  # in the extra "docs"
        pytest.importorskip(needed)
    from sphinx.util.inventory import InventoryFile

    build = [
        sys.executable,
        "-m",
        "sphinx",
        "--nitpicky",
        "--fail-on-warning",
        "--keep-going",
        "--quiet",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*build, ROOT / "docs", tmp_path],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr

    pages = [page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")]
    assert len(pages) > 10
    assert [page for page in pages if not (tmp_path / page.with_suffix(".html")).is_file()] == []

    with (tmp_path / "objects.inv").open("rb") as file:
        inventory = InventoryFile.load(file, "", lambda base, uri: uri)
    names = {
        name for kind, names in inventory.items() if kind.startswith("py:") for name in names
    }  # that have a place in it
    for package in PACKAGES:
        found = {
            name.rpartition(".")[2] for name in names if name.startswith(package.partition(".")[0])
        }
        assert set(importlib.import_module(package).__all__) - found == set(), package
    learners, world = (
        (tmp_path / "api" / f"{name}.html").read_text() for name in ("learners", "gym_twoRooms")
    )
    assert 'id="sb3_manygoals.ManyGoalsDQN.save_goal_buffer"' in learners  # inherited, and ours
    assert "register_forward_hook" not in learners  # inherited from torch
    assert "## Description" not in world  # that of the docstring, which is a page in Markdown


def test_the_packages_are_all_those_with_public_names():
    found = set()
    for top in ("gym_twoRooms", "sb3_manygoals"):
        for init in (ROOT / top).rglob("__init__.py"):
            if "__all__" in init.read_text(encoding="utf-8"):
                found.add(".".join(init.parent.relative_to(ROOT).parts))
    assert found == set(PACKAGES)
