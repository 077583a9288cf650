"""What docs/reproduce.md promises: figures have a row, and prices follow from measured rates."""

import ast
import re
import sys

import pandas as pd
import pytest

from benchmarks import __main__ as command_line
from tests import ROOT

PAGE = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")


def test_every_figure_and_table_of_the_paper_has_a_row():
    rows = [line for line in PAGE.splitlines() if line.startswith("|")]
    # The tables of the appendix are included.
    names = [f"figure {n}" for n in range(1, 8)] + [f"table {n}" for n in range(1, 5)]
    for what in names:
        assert any(re.match(rf"\| .*{what}\b", row, flags=re.IGNORECASE) for row in rows), what


def test_the_prices_follow_from_measured_rates():
    table = PAGE.split("\n| what | runs |")[1].split("\n\n")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]
    ]
    assert rows
    for _, runs, steps, rate, source, hours in rows:
        file, rest = re.fullmatch(r"`(.+?)`: (.+)", source).groups()
        table = pd.read_csv(ROOT / "docs" / "results" / file)
        median = re.fullmatch(r"median of `(.+?)`", rest)
        if median:
            measured = f"{table['value'][table['contender'] == median[1]].median():.3g}"
        else:
            match = re.fullmatch(r"`(.+?)`, (\d) threads?, `(.+?)`", rest)
            update, threads, column = match.groups()
            is_meant = (table["update"] == update) & (table["threads"] == int(threads))
            (found,) = table[column][is_meant]
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
    # Figure 5 has the parts a to e.
    assert len(bars) == 5


@pytest.mark.parametrize(
    "arguments",
    [["--help"], *([name, "--help"] for name in command_line.RUNS | command_line.OTHERS)],
)
def test_every_command_explains_itself(arguments, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert " ".join(["benchmarks", *arguments[:-1]]) in said
    assert len(arguments) > 1 or all(command in said for command in command_line.OTHERS)


@pytest.mark.parametrize("arguments", [[], ["mistake"]])
def test_what_is_no_command_is_refused(arguments, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
    with pytest.raises(SystemExit, match="2"):
        command_line.main()
    assert " ".join(arguments) in capsys.readouterr().err
