from itertools import pairwise

import numpy as np
import pytest
from PIL import Image, ImageSequence

from benchmarks import film
from benchmarks.film import FilmConfig
from benchmarks.worlds import World
from gym_twoRooms.mdp import COLOURS
from gym_twoRooms.oracle import OraclePolicy
from sb3_manygoals import MasteryResult
from tests.benchmarks.command_line import command, printed


def frames(path):
    """Return the pictures of a GIF."""
    with Image.open(path) as animation:
        return [np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(animation)]


def test_the_command_films_the_way_from_goal_to_goal(tmp_path):
    output = tmp_path / "new" / "film.gif"
    gap = 12
    width = 96
    assert "6 goals reached" in printed(
        "film", "--layout", "small", "--goals", "6", "--output", str(output)
    )
    pictures = frames(output)
    worlds, goals = (
        [picture[gap:-gap, left : left + width] for picture in pictures]
        for left in (gap, 2 * gap + width)
    )
    for picture, world, goal in zip(pictures, worlds, goals, strict=True):
        # The frame is green where the goal is reached.
        assert np.array_equal(world, goal) == (picture[0, 0] == film.SUCCESS).all()
    assert np.array_equal(worlds[-1], goals[-1])
    changes = [
        time for time in range(1, len(goals)) if not np.array_equal(goals[time - 1], goals[time])
    ]
    assert len(changes) == 5
    # From each goal the agent goes on to the next.
    assert all(np.array_equal(worlds[time], goals[time - 1]) for time in changes)
    shown = {tuple(colour) for colour in pictures[-1].reshape(-1, 3).tolist()}
    # Colours are exact.
    things = ("floor", "wall", "slippery", "block", "agent")
    assert {film.SUCCESS, *(COLOURS[thing] for thing in things)} <= shown
    done = command("film", "--layout", "nonsense", "--output", str(tmp_path / "none.gif"))
    assert done.returncode == 1
    assert "layout must be one of paper, small" in done.stderr
    for number in (0, 221):
        with pytest.raises(ValueError, match=r"goals must be in \[1, 220\]"):
            FilmConfig("small", goals=number, output=tmp_path / "none.gif").run()
    assert not (tmp_path / "none.gif").exists()


def test_an_agents_film_ends_in_green_where_goals_are_reached(tmp_path):
    world = World("TwoRoomsSwitchSmall-v0")
    mdp = world.make().unwrapped.mdp
    reached = np.ones((220, 1), dtype=np.bool_)
    states = np.arange(220)[::-1]
    result = MasteryResult(1.0, (1.0, 1.0), reached, reached.astype(np.int64))
    film.reaching(OraclePolicy(mdp, states), world, result, states, tmp_path / "film.gif", 0, 0.1)
    borders = [tuple(frame[0, 0].tolist()) for frame in frames(tmp_path / "film.gif")]
    assert (borders[0], borders[-1]) == (film.UNDER_WAY, film.SUCCESS)
    assert list(pairwise(borders)).count((film.UNDER_WAY, film.SUCCESS)) == 6
