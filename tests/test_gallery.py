import re
import subprocess
import sys

import pytest

from docs.make_gallery import FILMS, PAGE, main, programs
from tests import ROOT

SHORTER = {
    r"learn\([\d_]+\)": "learn(400)",
    r"observations\[[^\]]*\]": "observations[:2]",
    r"max_steps=\d+, fps": "max_steps=5, fps",
    r"num_envs=64": "num_envs=2",
}
"""Numbers of the programs, and smaller ones, so that they take seconds."""


@pytest.mark.parametrize("name", programs())
def test_a_program_of_the_gallery_makes_its_film(name, tmp_path, monkeypatch):
    pytest.importorskip("minigrid")
    code = programs()[name]
    assert len([line for line in code.splitlines() if line]) <= 15
    for long, short in SHORTER.items():
        code = re.sub(long, short, code)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, f"{name} of {PAGE}", "exec"), {"__name__": "__main__"})
    assert (tmp_path / f"{name}.gif").read_bytes()[:4] == b"GIF8"


def test_the_gallery_shows_a_small_film_of_each_program():
    page = PAGE.read_text(encoding="utf-8")
    shown = re.findall(r"\(images/gallery/(\w+)\.gif\)", page)
    assert shown == list(programs())
    sizes = {film.stem: film.stat().st_size for film in FILMS.glob("*.gif")}
    assert sorted(sizes) == sorted(shown)
    assert max(sizes.values()) < 1_000_000


def test_a_film_that_the_gallery_does_not_have_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["make_gallery.py", "robots"])
    with pytest.raises(SystemExit, match="there is no film robots, but rooms, locks"):
        main()


def test_the_films_are_made_in_the_root_of_the_repository():
    command = [sys.executable, "docs/make_gallery.py", "robots"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "there is no film robots" in done.stderr
