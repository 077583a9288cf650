import pandas as pd
import pytest

from benchmarks.speed.timing import Contender, Ratio, SpeedConfig, compare, measure, spread


def test_contenders_take_turns_and_the_first_round_warms_up():
    order = []

    def contender(name):
        return Contender(name, "s", lambda: order.append(name) or float(len(order)))

    measured = measure([contender("a"), contender("b")], 2)
    assert measured.to_dict("list") == {"a": [3.0, 5.0], "b": [4.0, 6.0]}
    assert order == ["a", "b"] * 3


def test_a_ratio_is_taken_within_each_round_and_its_median_meets_the_bar():
    measured = pd.DataFrame({"ours": [10.0, 100.0, 30.0], "theirs": [5.0, 10.0, 10.0]})
    at_least, at_most = Ratio("", "ours", "theirs", at_least=3.0), Ratio("", "ours", "theirs", at_most=2.9)
    assert at_least.values(measured).tolist() == [2.0, 10.0, 3.0]
    assert spread(at_least.values(measured)) == "3 [2, 10]"
    assert at_least.verdict(measured) == (">= 3", "yes")
    assert at_most.verdict(measured) == ("<= 2.9", "no")
    assert Ratio("", "ours").verdict(measured) == ("", "")
    assert spread(pd.Series([12_345.6, 99.0])) == "6,222 [99, 12,346]"


def test_the_best_of_several_is_found_in_each_round():
    measured = pd.DataFrame({"a": [10.0, 30.0], "b": [2.0, 3.0], "c": [100.0, 50.0]})
    assert Ratio("", {"a": 1, "b": 10}, "c").values(measured).tolist() == [20.0 / 100.0, 30.0 / 50.0]
    assert Ratio("", "c", {"a": 1, "b": 10}).values(measured).tolist() == [5.0, 50.0 / 30.0]
    assert Ratio("", {"a": 1, "b": 1}, "c").is_measured(measured)
    assert not Ratio("", "a", {"c": 1, "d": 1}).is_measured(measured)


def test_what_is_printed_is_what_is_written(tmp_path, capsys):
    values = {"ours": iter([1, 6.0, 8.0]), "theirs": iter([1, 2.0, 4.0])}
    entrants = [Contender(name, unit, values[name].__next__) for name, unit in (("ours", "steps/s"), ("theirs", "s"))]
    ratios = [Ratio("ours / theirs", "ours", "theirs", at_least=2.5), Ratio("not measured", "ours", "nobody")]
    compare(tmp_path / "raw.csv", entrants, ratios, 2)
    assert (tmp_path / "raw.csv").read_text().splitlines() == [
        "round,contender,value,unit",
        *("0,ours,6.0,steps/s", "0,theirs,2.0,s", "1,ours,8.0,steps/s", "1,theirs,4.0,s"),
    ]
    printed = capsys.readouterr().out
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines() if "│" in line]
    rows = {name: cells for name, *cells in lines}
    assert rows["ours"] == ["7 [6, 8]", "steps/s"]
    assert rows["ours / theirs"] == ["2.5 [2, 3]", ">= 2.5", "yes"]
    assert "not measured" not in rows


def test_numbers_below_one_are_refused():
    with pytest.raises(ValueError, match="rounds must be at least 1, got 0"):
        SpeedConfig(rounds=0)
