import doctest
import importlib.util
import inspect
import re
import shlex

import pytest

from benchmarks import __main__ as command_line
from benchmarks.recording import RunConfig
from gym_twoRooms import NAMED_LAYOUTS, TwoRoomsSwitchEnv, compile_layout
from gym_twoRooms.mdp import COLOURS
from gym_twoRooms.play import main as play
from tests import ROOT

WORLD = ROOT / "docs" / "two_rooms_switch.md"
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
SESSIONS = [page for page in PAGES if "```pycon" in page.read_text(encoding="utf-8")]


def name(page):
    """Return the name of a page in messages."""
    return str(page.relative_to(ROOT))


def cells(page, first_column):
    """Return the cells of a page's table whose header starts with a certain cell, row by row."""
    table = page.read_text(encoding="utf-8").split(f"\n| {first_column} |")[1].split("\n\n")[0]
    return [
        [cell.strip(" `") for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]
    ]


@pytest.mark.parametrize("page", SESSIONS, ids=name)
def test_the_examples_of_a_page_are_one_session(page):
    # Fences would be taken for output. Blank lines in their place keep the numbers of lines.
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


def test_the_page_of_the_world_has_its_colours_arguments_and_maps():
    colours = {tuple(map(int, rgb.split(","))): thing for thing, rgb, _ in cells(WORLD, "thing")}
    assert all(colours[rgb].startswith(thing) for thing, rgb in COLOURS.items())
    parameters = inspect.signature(TwoRoomsSwitchEnv).parameters.values()
    assert [(row[0], row[2]) for row in cells(WORLD, "name | type")] == [
        (parameter.name, repr(parameter.default)) for parameter in parameters
    ]
    maps = {row[0].strip('"'): row[1] for row in cells(WORLD, "name | states")}
    for layout in NAMED_LAYOUTS.values():
        assert maps[layout.name] == f"{compile_layout(layout).n_states:,}"


def commands_on(page):
    """Return the commands on a page, without comments, and with the first of several choices."""
    text = page.read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"```\w*\n.*?```|`[^`\n]+`", text, flags=re.S))
    modules = r"python -m ((?:benchmarks|gym_twoRooms)\b.*)"
    pattern = rf"^ *(?:{modules}|(make \w+.*))$"
    found = []
    for module, make in re.findall(pattern, code.replace("`", "\n"), flags=re.M):
        line = re.sub(r"[ )]+#.*| #.*", "", module or make)
        found.append(re.sub(r"\{([^,}]*),[^}]*\}", r"\1", line).strip())
    return found


def commands():
    """
    Return the commands on all pages, each once, with the page.

    Pages of results are left out: they name the commit that has their commands.
    """
    found = {}
    for page in PAGES:
        if "results" not in page.parts or page.name == "default.md":
            for command in commands_on(page):
                found.setdefault(command, name(page))
    return found


COMMANDS = commands()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_results_name_the_commit_that_can_repeat_them(page):
    text = page.read_text(encoding="utf-8")
    if "results" in page.parts and page.name != "default.md" and "python -m" in text:
        assert re.search(r"\b[0-9a-f]{7}\b|\]\(README\.md\)", text)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_on_pages_are_commands(command, monkeypatch, capsys):
    """A command is parsed, and not carried out."""
    program, *arguments = shlex.split(command)
    if program == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert re.search(rf"^{arguments[0]}:", makefile, flags=re.M)
    elif program == "benchmarks":
        ran = []
        monkeypatch.setattr(RunConfig, "saved", classmethod(lambda cls, folder: cls(resume=folder)))
        monkeypatch.setattr("sys.argv", ["benchmarks", *arguments])
        if arguments == ["--help"]:
            with pytest.raises(SystemExit):
                command_line.main()
            return
        path, _ = (command_line.RUNS | command_line.OTHERS)[arguments[0]]
        monkeypatch.setattr(command_line.load(path), "run", lambda config: ran.append(config))
        command_line.main()
        assert len(ran) == 1
        # Specs are refused, if there are no such agents or games.
        assert not hasattr(ran[0], "specs") or ran[0].specs()
    elif program == "gym_twoRooms.play":
        with pytest.raises(SystemExit):
            play(["--help"])
        said = capsys.readouterr().out
        assert all(argument in said for argument in arguments if argument.startswith("--"))
    else:
        # The arguments of benchmarks.zoo are those of rl_zoo3.
        assert not arguments or program.startswith("benchmarks.zoo.")
        assert importlib.util.find_spec(program) is not None


def test_there_are_commands_and_examples_on_pages():
    assert WORLD in SESSIONS
    assert len(COMMANDS) > 20
    assert {
        "README.md",
        "docs/reproduce.md",
        "docs/results/default.md",
        "docs/checkpoints.md",
    } <= set(COMMANDS.values())
