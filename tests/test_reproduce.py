"""What docs/reproduce.md promises: its figures have a row, its prices follow from what was measured."""

import ast
import csv
import re
import statistics
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as command_line

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")
FIGURES, TABLES = range(1, 8), range(1, 5)  # of the paper, its appendix included


@pytest.mark.parametrize(("kind", "number"), [("figure", n) for n in FIGURES] + [("table", n) for n in TABLES])
def test_every_figure_and_table_of_the_paper_has_a_row(kind, number):
    rows = [line for line in PAGE.splitlines() if line.startswith("|")]
    assert any(re.match(rf"\| .*{kind} {number}\b", row, flags=re.IGNORECASE) for row in rows)


def test_the_prices_follow_from_measured_rates():
    table = PAGE.split("\n| what | runs |")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    assert rows
    for _, runs, steps, rate, source, hours in rows:
        if median := re.fullmatch(r"`(.+?)`: median of `(.+?)`", source):
            with (ROOT / "docs" / "results" / median[1]).open(newline="", encoding="utf-8") as lines:
                values = [float(row["value"]) for row in csv.DictReader(lines) if row["contender"] == median[2]]
            assert rate == f"{statistics.median(values):.0f}"
            price = int(runs) * int(steps.replace(",", "")) / float(rate) / 3600
            assert hours == f"{price:,.0f}"
            continue
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


@pytest.mark.parametrize("command", [*command_line.RUNS, *command_line.OTHERS])
def test_every_command_explains_itself(command, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmarks", command, "--help"])
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    assert ended.value.code == 0
    assert f"benchmarks {command}" in capsys.readouterr().out


@pytest.mark.parametrize(("arguments", "code"), [(["--help"], 0), ([], 2), (["mistake"], 2)])
def test_commands_are_named_where_none_is_given(arguments, code, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    assert ended.value.code == code
    said = capsys.readouterr()
    assert all(command in said.out for command in command_line.OTHERS) or code == 2
    assert "mistake" in said.err or arguments != ["mistake"]
