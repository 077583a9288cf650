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
from sb3_manygoals.film import REACHED, UNDER_WAY
from tests.benchmarks.command_line import command, printed


def frames(path):
    """Return the pictures of a GIF."""
    with Image.open(path) as animation:
        return [np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(animation)]


def test_an_output_that_is_no_gif_is_refused(tmp_path):
    said = command("film", "--output", str(tmp_path / "film.mp4"))
    assert "output must end in .gif, got" in said.stderr


def test_the_command_films_the_way_from_goal_to_goal(tmp_path):
    output = tmp_path / "new" / "film.gif"
    gap = 12
    width = 96
    assert "6 goals reached" in printed(
        "film", "--map", "small", "--goals", "6", "--output", str(output)
    )
    pictures = frames(output)
    worlds, goals = (
        [picture[gap:-gap, left : left + width] for picture in pictures]
        for left in (gap, 2 * gap + width)
    )
    for picture, world, goal in zip(pictures, worlds, goals, strict=True):
        # The frame is green where the goal is reached.
        assert np.array_equal(world, goal) == (picture[0, 0] == REACHED).all()
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
    assert {REACHED, *(COLOURS[thing] for thing in things)} <= shown
    done = command("film", "--map", "nonsense", "--output", str(tmp_path / "none.gif"))
    assert done.returncode == 1
    assert "map must be one of paper, small" in done.stderr
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
    goals = mdp.observe(states)
    film.reaching(OraclePolicy(mdp, states), world, result, goals, tmp_path / "film.gif", 0, 0.1)
    borders = [tuple(frame[0, 0].tolist()) for frame in frames(tmp_path / "film.gif")]
    assert (borders[0], borders[-1]) == (UNDER_WAY, REACHED)
    assert list(pairwise(borders)).count((UNDER_WAY, REACHED)) == 6


class ByNumbers:
    """The exact policy for an agent that observes state numbers."""

    def __init__(self, mdp):
        self.mdp = mdp
        self.policy = OraclePolicy(mdp, np.arange(mdp.n_states))

    def predict(self, observation, **_):
        shown = {name: self.mdp.observe(states) for name, states in observation.items()}
        return self.policy.predict(shown)


def test_an_agent_that_observes_state_numbers_is_filmed_with_pictures_of_its_goals(tmp_path):
    world = World("TwoRoomsSwitchSmall-v0")
    mdp = world.make().unwrapped.mdp
    reached = np.ones((220, 1), dtype=np.bool_)
    result = MasteryResult(1.0, (1.0, 1.0), reached, reached.astype(np.int64))
    path = tmp_path / "film.gif"
    film.reaching(ByNumbers(mdp), world, result, np.arange(220), path, 0, 0.0, numbered=True)
    pictures = frames(path)
    gap = 12
    width = 96
    ends = [picture for picture in pictures if tuple(picture[0, 0].tolist()) == REACHED]
    assert len(ends) == 6
    for picture in ends:
        there = picture[gap:-gap, gap : gap + width]
        np.testing.assert_array_equal(there, picture[gap:-gap, 2 * gap + width : -gap])
    # The goal is shown from the start on.
    first, last = (picture[gap:-gap, 2 * gap + width : -gap] for picture in (pictures[0], ends[0]))
    np.testing.assert_array_equal(first, last)
    assert len(pictures) > 6
