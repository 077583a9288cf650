"""What docs/reproduce.md promises: its figures have a row, its prices follow from what was measured."""

import ast
import re
import sys
from pathlib import Path

import pandas as pd
import pytest

from benchmarks import __main__ as command_line

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")


def test_every_figure_and_table_of_the_paper_has_a_row():
    rows = [line for line in PAGE.splitlines() if line.startswith("|")]
    for what in [f"figure {n}" for n in range(1, 8)] + [f"table {n}" for n in range(1, 5)]:  # its appendix included
        assert any(re.match(rf"\| .*{what}\b", row, flags=re.IGNORECASE) for row in rows), what


def test_the_prices_follow_from_measured_rates():
    table = PAGE.split("\n| what | runs |")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    assert rows
    for _, runs, steps, rate, source, hours in rows:
        file, rest = re.fullmatch(r"`(.+?)`: (.+)", source).groups()
        table = pd.read_csv(ROOT / "docs" / "results" / file)
        if median := re.fullmatch(r"median of `(.+?)`", rest):
            measured = f"{table['value'][table['contender'] == median[1]].median():.0f}"
        else:
            update, threads, column = re.fullmatch(r"`(.+?)`, (\d) threads?, `(.+?)`", rest).groups()
            (found,) = table[column][(table["update"] == update) & (table["threads"] == int(threads))]
            measured = f"{found:g}"
        assert rate == measured
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
