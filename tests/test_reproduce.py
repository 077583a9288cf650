"""What docs/reproduce.md promises: its commands are commands, its prices follow from what was measured."""

import ast
import csv
import importlib.util
import re
import shlex
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as command_line

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")
GUIDE = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
COMMANDS = sorted(
    set(re.findall(r"python -m (benchmarks[^`\n]*)", PAGE) + re.findall(r"`python -m (benchmarks \w[^`]*)`", GUIDE))
)
FIGURES, TABLES = range(1, 8), range(1, 5)  # of the paper, its appendix included


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_line_knows_the_command(command, monkeypatch):
    module, *arguments = shlex.split(command)
    if module != "benchmarks":
        assert not arguments
        assert importlib.util.find_spec(module) is not None
        return
    ran = []
    tables = (command_line.STUDIES, command_line.OTHERS)
    for config_class in [kind for table in tables for kind, _ in table.values()] + list(command_line.THROUGHPUT.values()):
        monkeypatch.setattr(config_class, "run", lambda config: ran.append(config))
    monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
    command_line.main()
    assert len(ran) == 1


def test_there_are_commands_to_know():
    assert len(COMMANDS) > 8


@pytest.mark.parametrize(("kind", "number"), [("figure", n) for n in FIGURES] + [("table", n) for n in TABLES])
def test_every_figure_and_table_of_the_paper_has_a_row(kind, number):
    rows = [line for line in PAGE.splitlines() if line.startswith("|")]
    assert any(re.match(rf"\| .*{kind} {number}\b", row, flags=re.IGNORECASE) for row in rows)


def test_the_prices_follow_from_measured_rates():
    table = PAGE.split("\n| what | runs |")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    assert rows
    for _, runs, steps, rate, source, hours in rows:
        file, update, threads, column = re.fullmatch(r"`(.+?)`: `(.+?)`, (\d) threads?, `(.+?)`", source).groups()
        with (ROOT / "docs" / "results" / file).open(newline="", encoding="utf-8") as lines:
            (measured,) = [row for row in csv.DictReader(lines) if (row["update"], row["threads"]) == (update, threads)]
        assert rate == measured[column]
        price = int(runs) * int(steps.replace(",", "")) / float(rate) / 3600
        assert hours == (f"{price:.1f}" if price < 100 else f"{price:,.0f}")
    assert set(re.findall(r"([\d.,]+) h\b", PAGE)) == {row[-1] for row in rows}


def test_the_python_of_the_page_runs(capsys):
    (code,) = set(re.findall(r'`python -c "(.*?)"`', PAGE))
    exec(code, {})
    bars = ast.literal_eval(capsys.readouterr().out)
    assert {len(games) for games in bars.values()} == {49}
    assert len(bars) == 5  # figure 5, a to e
