"""The page on an own world: a reader's folder, the programs in it, and what they print."""

import re
import shlex
import sys

import gymnasium as gym
import pytest
from PIL import Image

from tests import ROOT
from tests.benchmarks.command_line import printed

PAGE = (ROOT / "docs" / "own_world.md").read_text(encoding="utf-8")
WORLD, *PROGRAM = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)
SHOWN = "".join(re.findall(r"```text\n(.*?)```", PAGE, flags=re.S))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the world of the page, in which programs run."""
    (tmp_path / "lamps.py").write_text(WORLD, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("lamps", None)
    gym.registry.pop("Lamps-v0", None)


def test_the_world_has_some_thirty_lines():
    assert len([line for line in WORLD.splitlines() if line.strip()]) <= 36


def test_the_programs_print_what_the_page_shows(folder, capsys):
    (saving,) = [block for block in PROGRAM if "ExactCheckpointCallback(" in block]
    shorter = {
        saving: saving.replace("10_000", "600"),
        PROGRAM[-1]: PROGRAM[-1].replace("10_000", "300"),
    }
    assert all(block != short for block, short in shorter.items())
    namespace = {}
    for block in PROGRAM:
        exec(compile(shorter.get(block, block), "own_world.md", "exec"), namespace)
    assert capsys.readouterr().out == SHOWN

    # The film is the one on the page.
    shown = ROOT / "docs" / "images" / "lamps.gif"
    with Image.open(folder / "lamps.gif") as film, Image.open(shown) as expected:
        assert (film.size, film.n_frames) == (expected.size, expected.n_frames)

    # Started again, the program with checkpoints goes on.
    assert not namespace["resumed"]
    exec(compile(saving.replace("10_000", "900"), "own_world.md", "exec"), namespace)
    assert namespace["resumed"]
    assert namespace["steps"] == 300
    assert namespace["model"].num_timesteps == 900


def commands(name):
    """Return the arguments of all commands of the page that begin with this name."""
    lines = re.findall(rf"^PYTHONPATH=/your/folder python -m benchmarks ({name} .*)$", PAGE, re.M)
    return [shlex.split(line.replace("10000", "300")) for line in lines]


def test_the_study_runs_each_learner_with_each_seed(folder):
    (arguments,) = commands("mastery-study")
    out = printed(*arguments, "--dry-run")
    for learner in ("default", "hindsight"):
        for seed in range(3):
            assert f"would run agents-{learner}-lamps_Lamps-v0-300-seed{seed}-" in out


def test_the_command_measures_a_world_in_the_readers_folder(folder):
    (arguments,) = commands("mastery")
    shorter = shlex.split("--no-progress-bar --eval-freq 300 --eval-steps 30 --final-episodes 1")
    out = printed(*arguments, *shorter, "--output", "runs")
    assert "200 observations can be reached" in out
    assert "of 200 reachable observations" in out
    (run,) = (folder / "runs").iterdir()
    assert (run / "report.html").is_file()
    assert (run / "reaching.gif").is_file()
