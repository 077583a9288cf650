import pandas as pd
import pytest

from benchmarks.speed.timing import Ratio, compare, measure, rate
from tests.benchmarks.command_line import command


def test_contenders_take_turns_and_the_first_round_warms_up():
    order = []
    *_, measured = measure(
        {name: lambda name=name: order.append(name) or float(len(order)) for name in "ab"}, 2
    )
    assert measured.to_dict("list") == {"a": [3.0, 5.0], "b": [4.0, 6.0]}
    assert order == ["a", "b"] * 3


def test_a_rate_is_of_so_many_steps_and_seconds_at_least(monkeypatch):
    now = []
    monkeypatch.setattr("time.perf_counter", lambda: 2.0 * len(now))
    step = lambda: now.append(0)  # noqa: E731 - It takes two seconds of this clock.
    assert (rate(step, steps=3), len(now)) == (0.5, 3)
    assert (rate(step, seconds=3.0), len(now)) == (0.5, 5)
    # The work of the GPU after the last step counts.
    assert rate(step, wait=step) == 0.25


def test_a_ratio_is_taken_within_each_round_and_of_the_best_of_several():
    measured = pd.DataFrame({"a": [10.0, 30.0], "b": [2.0, 3.0], "c": [100.0, 50.0]})
    assert Ratio("", "a", "b").values(measured).tolist() == [5.0, 10.0]
    assert Ratio("", {"a": 1, "b": 10}, "c").values(measured).tolist() == [
        20.0 / 100.0,
        30.0 / 50.0,
    ]
    assert Ratio("", "c", {"a": 1, "b": 10}).values(measured).tolist() == [5.0, 50.0 / 30.0]
    assert Ratio("", {"a": 1, "b": 1}, "c").is_measured(measured)
    assert not Ratio("", "a", {"c": 1, "d": 1}).is_measured(measured)


def test_what_is_printed_is_what_is_written(tmp_path, capsys):
    values = {"ours": iter([1, 60_000.0, 80_000.0]), "theirs": iter([1, 2.0, 4.0])}
    contenders = {name: each.__next__ for name, each in values.items()}
    ratios = [Ratio("both", "ours", "theirs"), Ratio("not measured", "ours", "nobody")]
    compare(tmp_path / "raw.csv", contenders, "steps/s", ratios, 2)
    assert (tmp_path / "raw.csv").read_text().splitlines() == [
        "round,contender,value,unit",
        "0,ours,60000.0,steps/s",
        "0,theirs,2.0,steps/s",
        "1,ours,80000.0,steps/s",
        "1,theirs,4.0,steps/s",
    ]
    printed = capsys.readouterr().out
    for shown in ("70,000 [60,000, 80,000]", "3 [2, 4]", "25,000 [20,000, 30,000]"):
        assert shown in printed
    assert "not measured" not in printed


def test_rounds_before_a_stop_are_kept(tmp_path):
    values = iter([1.0, 2.0, 3.0])

    def value():
        try:
            return next(values)
        except StopIteration:
            raise KeyboardInterrupt from None

    with pytest.raises(KeyboardInterrupt):
        compare(tmp_path / "raw.csv", {"ours": value}, "steps/s", [], 5)
    assert pd.read_csv(tmp_path / "raw.csv")["value"].tolist() == [2.0, 3.0]


@pytest.mark.parametrize(
    ("command_line", "message"),
    [
        (("speed-world", "--rounds", "0"), "rounds must be at least 1, got 0"),
        (("speed-world", "--threads", "1", "0"), "threads must be at least 1, got 0"),
        (("speed-world", "--threads"), "threads must have at least one value, got none"),
        (("speed-training", "--parts"), "parts must have at least one value, got none"),
        (("speed-update", "--seconds", "-1"), "seconds must be finite and not negative, got -1"),
        (("speed-step", "--seconds", "inf"), "seconds must be finite and not negative, got inf"),
        (("speed-learning", "--seeds"), "seeds must have at least one seed, got none"),
        (("speed-learning", "--threads", "0"), "threads must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_measured_is_refused(command_line, message, tmp_path):
    said = command(*command_line, "--output", str(tmp_path))
    assert said.returncode != 0
    assert message in said.stderr
    assert not list(tmp_path.iterdir())
