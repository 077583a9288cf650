import numpy as np
import pytest
from PIL import Image

from benchmarks import film
from benchmarks.film import FilmConfig
from gym_twoRooms.mdp import COLOURS
from tests.benchmarks.command_line import command

CORNER = "S..#..S\n...D...\n...#...\n..W####\n"


def frames(path):
    with Image.open(path) as animation:
        for number in range(animation.n_frames):
            animation.seek(number)
            yield np.asarray(animation.convert("RGB"))


def test_the_command_films_a_named_layout(tmp_path):
    output = tmp_path / "new" / "film.gif"
    done = command("film", "--layout", "small", "--goals", "3", "--seed", "1", "--cell-size", "10", "--output", str(output))
    assert done.returncode == 0, done.stderr
    assert "3 goals reached" in done.stdout
    pictures = list(frames(output))
    gap = 5
    assert pictures[0].shape == (80 + 2 * gap, 2 * 40 + 3 * gap, 3)
    greens = [bool((picture[0, 0] == film.SUCCESS).all()) for picture in pictures]
    assert greens[-1]
    assert sum(now and not before for before, now in zip([False, *greens], greens, strict=False)) == 3  # once for each goal
    for picture, green in zip(pictures, greens, strict=True):
        world, goal = (picture[gap:-gap, left : left + 40] for left in (gap, 2 * gap + 40))
        assert np.array_equal(world, goal) == green


def test_from_each_goal_it_goes_on_to_the_next(monkeypatch, tmp_path):
    written = []
    monkeypatch.setattr(film, "_write", lambda pictures, path: written.extend(pictures))
    FilmConfig("small", goals=3, output=tmp_path / "film.gif", cell_size=12).run()
    gap, width = 6, 48
    worlds, goals = ([picture[gap:-gap, left : left + width] for picture in written] for left in (gap, 2 * gap + width))
    changes = [time for time in range(1, len(goals)) if not np.array_equal(goals[time - 1], goals[time])]
    assert len(changes) == 2
    for time in changes:
        assert np.array_equal(worlds[time], goals[time - 1])


def test_colours_are_exact(tmp_path):
    path = FilmConfig("small", goals=6, output=tmp_path / "film.gif").run()
    places = np.array([1 << 16, 1 << 8, 1])  # a number for each colour: rows are compared much slower
    shown = {number for picture in frames(path) for number in np.unique(picture @ places).tolist()}
    things = ("floor", "wall", "slippery", "door shut", "door open", "block", "agent")
    assert set(np.array([film.SUCCESS, film.UNDER_WAY, *(COLOURS[thing] for thing in things)]) @ places) <= shown


def test_a_map_in_a_file_and_what_is_none(tmp_path):
    path = tmp_path / "corner.txt"
    path.write_text(CORNER)
    output = FilmConfig(str(path), goals=1, output=tmp_path / "film.gif", cell_size=9).run()
    assert next(frames(output)).shape[:2] == (4 * 9 + 2 * 4, 2 * 7 * 9 + 3 * 4)
    path.write_text("D..\n")
    for layout, message in (("nonsense", "layout must be one of paper, small"), (str(path), "no switch")):
        done = command("film", "--layout", layout, "--output", str(tmp_path / "none.gif"))
        assert done.returncode == 1
        assert message in done.stderr
    assert not (tmp_path / "none.gif").exists()


@pytest.mark.parametrize("goals", [0, 221])
def test_goals_must_be_as_many_as_there_are(goals, tmp_path):
    with pytest.raises(ValueError, match=r"goals must be in \[1, 220\]"):
        FilmConfig("small", goals=goals, output=tmp_path / "film.gif").run()
