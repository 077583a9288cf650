"""What docs/scale_out.md promises: its tables follow from measured figures."""

import importlib.util

import pytest

from tests import ROOT

PAGE = (ROOT / "docs" / "scale_out.md").read_text(encoding="utf-8")
FOLDER = ROOT / "docs" / "results" / "scale-out"
_spec = importlib.util.spec_from_file_location("extrapolate", FOLDER / "extrapolate.py")
extrapolate = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(extrapolate)


@pytest.mark.parametrize("name", extrapolate.TABLES)
def test_a_table_of_the_page_follows_from_measured_figures(name):
    header, rows = extrapolate.TABLES[name]
    assert extrapolate.table(header, rows()) in PAGE


def test_exponents_are_those_of_the_page_of_scale():
    scale = (ROOT / "docs" / "results" / "scale.md").read_text(encoding="utf-8")
    found = extrapolate.exponents()
    numbers = [f"{found[name]:.2f}"[1:] for name in ("training_seconds", "steps", "peak_mb")]
    words = "For `LARGE_WORLD`, the exponents are {} for seconds, {} for steps and {} for memory"
    assert words.format(*numbers) in " ".join(scale.split())
