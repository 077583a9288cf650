import doctest
import inspect
import re
from pathlib import Path

import pytest

from gym_twoRooms import NAMED_LAYOUTS, TwoRoomsSwitchEnv, compile_layout
from gym_twoRooms.mdp import COLOURS

ROOT = Path(__file__).parents[1]
WORLD = ROOT / "docs" / "two_rooms_switch.md"
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
SESSIONS = [page for page in PAGES if "```pycon" in page.read_text(encoding="utf-8")]


def name(page):
    return str(page.relative_to(ROOT))


def cells(page, first_column):
    """The rows of a page's table whose header starts with a certain cell."""
    table = page.read_text(encoding="utf-8").split(f"\n| {first_column} |")[1].split("\n\n")[0]
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_there_are_pages_with_examples():
    assert name(WORLD) in {name(page) for page in SESSIONS}


@pytest.mark.parametrize("page", SESSIONS, ids=name)
def test_the_examples_of_a_page_are_one_session(page):
    # fences would be taken for output; blank lines in their place keep the numbers of lines in messages
    text = re.sub("^```.*$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    session = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    report = []
    result = doctest.DocTestRunner(verbose=False).run(session, out=report.append)
    assert result.failed == 0, "".join(report)
    assert result.attempted > 0


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_to_files_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        assert target.startswith("http") or (page.parent / target).exists(), target


def test_the_page_has_all_colours():
    table = {tuple(map(int, rgb.split(","))): thing for thing, rgb, _ in cells(WORLD, "thing")}
    for thing, rgb in COLOURS.items():
        assert table[rgb].startswith(thing)


def test_the_page_has_the_arguments_and_their_defaults():
    parameters = inspect.signature(TwoRoomsSwitchEnv).parameters.values()
    assert [(row[0], row[2]) for row in cells(WORLD, "name | type")] == [
        (parameter.name, repr(parameter.default)) for parameter in parameters
    ]


def test_the_page_has_the_named_maps_and_their_states():
    table = {row[0].strip('"'): row[1] for row in cells(WORLD, "name | states")}
    for layout in NAMED_LAYOUTS.values():
        assert table[layout.name] == f"{compile_layout(layout).n_states:,}"
