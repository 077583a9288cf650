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
    return str(page.relative_to(ROOT))


def cells(page, first_column):
    """The rows of a page's table whose header starts with a certain cell."""
    table = page.read_text(encoding="utf-8").split(f"\n| {first_column} |")[1].split("\n\n")[0]
    return [
        [cell.strip(" `") for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]
    ]


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


def test_the_tests_that_caught_a_break_are_there():
    lines = (
        (ROOT / "docs" / "results" / "mutations.csv").read_text(encoding="utf-8").splitlines()[1:]
    )
    for path, name in (line.rpartition(",")[2].split("::") for line in lines):
        assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8")


def test_the_page_of_the_world_has_its_colours_arguments_and_maps():
    colours = {tuple(map(int, rgb.split(","))): thing for thing, rgb, _ in cells(WORLD, "thing")}
    assert all(colours[rgb].startswith(thing) for thing, rgb in COLOURS.items())
    parameters = inspect.signature(TwoRoomsSwitchEnv).parameters.values()
    assert [(row[0], row[2]) for row in cells(WORLD, "name | type")] == [
        (p.name, repr(p.default)) for p in parameters
    ]
    maps = {row[0].strip('"'): row[1] for row in cells(WORLD, "name | states")}
    for layout in NAMED_LAYOUTS.values():
        assert maps[layout.name] == f"{compile_layout(layout).n_states:,}"


def commands():
    """The commands on all pages, each once, with the page; of results only those that say no commit that can repeat them."""
    found = {}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        old = "results" in page.parts and page.name != "default.md"
        assert (
            not old
            or re.search(r"\b[0-9a-f]{7}\b|\]\(README\.md\)", text)
            or "python -m" not in text
        ), page
        code = "\n".join(re.findall(r"```\w*\n.*?```|`[^`\n]+`", text, flags=re.S)).replace(
            "`", "\n"
        )
        lines = re.findall(
            r"^ *(?:python -m ((?:benchmarks|gym_twoRooms)\b.*)|(make \w+.*))$", code, flags=re.M
        )
        for line in [] if old else [module or make for module, make in lines]:
            found.setdefault(
                re.sub(r"\{([^,}]*),[^}]*\}", r"\1", re.sub(r"[ )]+#.*| #.*", "", line)).strip(),
                name(page),
            )
    return found


COMMANDS = commands()


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_on_pages_are_commands(command, monkeypatch, capsys):
    """Parsed, and not carried out."""
    program, *arguments = shlex.split(command)
    if program == "make":
        assert re.search(
            rf"^{arguments[0]}:", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M
        )
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
        assert not hasattr(ran[0], "specs") or ran[0].specs()  # agents and games that there are
    elif program == "gym_twoRooms.play":
        with pytest.raises(SystemExit):
            play(["--help"])
        said = capsys.readouterr().out
        assert all(argument in said for argument in arguments if argument.startswith("--"))
    else:
        assert not arguments or program.startswith(
            "benchmarks.zoo."
        )  # with the arguments of rl_zoo3
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
