import csv
import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from benchmarks.report import PastRunError
from benchmarks.report import runs as reader
from benchmarks.report.page import Book, Sheet
from benchmarks.report.study import ReportConfig
from benchmarks.scores import DATA, read_table
from benchmarks.studies import mastery as mastery_study
from benchmarks.suite import Result, Spec, SuiteError
from tests.benchmarks.report.page_numbers import Page, agrees, rows_of, trouble
from tests.benchmarks.report.test_tables import N, make_run, share

ROOT = Path(__file__).parents[3]
AUXILIARY = "benchmarks.auxiliary:carry_out"
PAPER = read_table(DATA / "paper_auxiliary_scores.csv")


def begin(spec, root, attempts=1):
    folder = spec.folder(root)
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text(json.dumps(dataclasses.asdict(spec)))
    (folder / "attempts.jsonl").write_text('{"pid": 1}\n' * attempts)
    return folder


def play(root, agent, game, seed, score=None, steps=1000, curve=None, study=AUXILIARY):
    """A run of a game; one without a score has not finished."""
    spec = Spec(study, agent, game, seed, steps)
    folder = begin(spec, root)
    own = folder / agent / "run"
    own.mkdir(parents=True)
    (own / "config.json").write_text('{"settings": {}}')
    if curve is not None:
        (own / "curve.csv").write_text("step,episode_return\n" + "".join(f"{step},{value}\n" for step, value in curve))
    if score is not None:
        Result(spec, {"score": score}, 3600.0, 1).write(folder)
    return folder


def master(root, spec, **options):
    """A run of the study of mastery; one without goals has not finished."""
    folder = begin(spec, root, attempts=2)
    held_out = spec.agent.startswith("generalization")
    own = make_run(folder / spec.agent / "run", spec.seed, total_steps=spec.steps, **options)
    record = json.loads((own / "config.json").read_text())
    record["settings"]["held_out"] = 0.2 if held_out else 0.0
    machine = {"command": "python -m benchmarks x", "date": "2026-11-21T10:00:00+00:00", "versions": {"torch": "2.13"}}
    (own / "config.json").write_text(json.dumps(record | machine | {"git_revision": f"abc{spec.seed}"}))
    if "goals" in options:
        frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
        frames[0].save(own / "reaching.gif", save_all=True, append_images=frames[1:])
        Result(spec, {"greedy_all": 0.5}, 720.0, 1).write(folder)
    return own


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of both experiments with mastery, and of a suite of games, in a folder whose name is no address as it is."""
    root = tmp_path_factory.mktemp("runs") / "50% of #1 & more"
    wanted = {spec.name: spec for part in ("paper", "generalization") for spec in mastery_study.PARTS[part].specs(2, 300)}
    by_agent = {(spec.agent, spec.seed): spec for spec in wanted.values()}
    for seed in (0, 1):
        curve = [(0, 0.0, 0.0), (150, 0.25, 0.5), (300, 0.75 + 0.1 * seed, 0.9)]
        master(root / "mastery", by_agent["paper-uniform", seed], curve=curve, goals=share(0.8 + 0.1 * seed))
        held_out = np.arange(N) % 5 == 0
        master(root / "mastery", by_agent["generalization-on-policy", seed], goals=share(0.1), held_out=held_out)
    master(root / "mastery", by_agent["paper-learning-progress", 1], curve=[(0, 0.0, 0.0), (150, 0.2, 0.3)])
    for agent, factor in (("a2c", 1.0), ("many-goals", 2.0)):
        for seed in (0, 1):
            for game, step in (("Alien", 1), ("Pong", 2), ("MiniGrid-Empty-5x5-v0", 3)):
                curve = [(step + k * 100, factor * k + seed) for k in range(10)]
                play(root / "games", agent, game, seed, factor * (100.0 * step + seed), curve=curve)
    play(root / "games", "a2c", "Boxing", 0, 1.0)
    play(root / "games", "a2c", "Boxing", 1)
    (root / "games" / Spec(AUXILIARY, "a2c", "Pong", 0, 1000).name / "play.webm").write_bytes(b"\x1a\x45\xdf\xa3 no film")
    return root


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory):
    output = tmp_path_factory.mktemp("pages") / "a report #2.html"
    return ReportConfig((runs,), output, goals=16).run()


def text_of(page):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", "", page.read_text()))


def test_every_number_is_in_a_csv(page):
    assert trouble(page) == []
    found = Page(page.read_text())
    assert len(found.numbers) > 200
    assert len(found.drawn) >= 8  # shares above bars of doors
    files = {cell.partition("#")[0] for _, _, cell in found.numbers}
    kinds = {"table", "paper", "failing", "worst"}
    assert files >= {"facts.csv", "coverage.csv", "cost.csv", "runs.csv", *(f"mastery1-{kind}.csv" for kind in kinds)}
    assert files >= {"games1-summary.csv", "games1-scores.csv", "paper-summaries.csv"}


@pytest.mark.parametrize("number", [0, 100, -1])
def test_a_number_that_is_in_no_csv_would_be_found(page, tmp_path, number):
    shown, value, cell = Page(page.read_text()).numbers[number]
    (tmp_path / "page-data").symlink_to(page.with_name(f"{page.stem}-data"))
    other = tmp_path / "page.html"
    element = f'<data value="{value}" data-cell="{cell}">{shown}</data>'
    assert element in page.read_text()
    for forged in (element.replace(f">{shown}<", f">{shown}1<"), element.replace(f'value="{value}"', 'value="7.25"'), "12"):
        other.write_text(page.read_text().replace(element, forged, 1))
        assert len(trouble(other)) == 1
    other.write_text(page.read_text())
    assert trouble(other) == []


def test_what_agrees():
    for shown, exact in (("0.939", "0.9394"), ("1,234", "1234.4"), ("12.5%", "0.125"), ("-0", "-0.4")):
        assert agrees(shown, exact)
    for shown, exact in (("0.940", "0.9394"), ("1,235", "1234.4"), ("12.5", "0.125"), ("about 3", "3")):
        assert not agrees(shown, exact)


def target(page, address):
    """The file that a browser would open, for which "#" and "?" end the path."""
    return page.parent / unquote(urlsplit(address).path)


def test_nothing_is_loaded_and_all_links_lead_somewhere(page):
    found = Page(page.read_text())
    assert all(address.startswith(("data:", "#")) for address in found.loaded)
    assert sum(address.startswith("data:image/gif") for address in found.loaded) == 2
    assert "http" not in page.read_text()
    assert "<script" not in page.read_text()
    identifiers = re.findall(r'\bid="([^"]*)"', page.read_text())
    assert len(set(identifiers)) == len(identifiers)
    for address in found.links:
        if address.startswith("#"):
            assert address[1:] in identifiers
        else:
            assert target(page, address).exists(), address


def test_each_raw_file_is_linked_to(page, runs):
    linked = {os.path.normpath(target(page, address)) for address in Page(page.read_text()).links}
    raw = {str(path) for path in runs.rglob("*") if path.is_file() and path.name != "spec.json"}
    assert len(raw) > 40
    assert raw <= linked
    assert {str(path) for path in page.with_name("a report #2-data").iterdir()} <= linked


def test_what_was_run_and_what_was_not(page):
    rows = {row["agent"]: row for row in rows_of(page.with_name("a report #2-data") / "coverage.csv")}

    def counts(agent):
        return tuple(int(rows[agent][column]) for column in ("planned", "finished", "unfinished", "missing"))

    assert counts("paper-uniform") == (2, 2, 0, 0)
    assert counts("paper-learning-progress") == (2, 0, 1, 1)
    assert counts("paper-table") == (2, 0, 0, 2)  # of which there is nothing at all
    assert counts("generalization-on-policy") == (2, 2, 0, 0)
    assert "ablations-preset" not in rows
    assert counts("a2c") == (8, 7, 1, 0)
    assert counts("many-goals") == (8, 6, 0, 2)
    text = text_of(page)
    assert "seed 0 (not begun); seed 1 (unfinished)" in text  # of learning progress
    assert "Boxing, seed 0 (not begun); Boxing, seed 1 (not begun)" in text
    assert "This is not the whole study" in text


def test_a_whole_study_says_nothing_of_the_kind(tmp_path):
    for seed in (0, 1):
        play(tmp_path / "runs", "a2c", "Pong", seed, 1.0)
    text = text_of(ReportConfig((tmp_path / "runs",), tmp_path / "page.html").run())
    assert "Runs: 2 finished, 0 unfinished, 0 not begun." in text
    assert "not the whole study" not in text


def test_mastery_beside_the_paper(page):
    data = page.with_name("a report #2-data")
    first, second = (rows_of(data / f"mastery{number}-paper.csv") for number in (1, 2))
    # uniform: means of .8 and .9, which the paper has at 1; on-policy was held out from here: no numbers of the paper
    assert [
        (row["agent"], float(row["greedy"]), float(row["paper"]), row["paper_steps"]) for row in first if row["greedy"]
    ] == [("uniform", pytest.approx(0.85), 1.0, "3000000")]
    assert [(row["agent"], row["paper"], row["said"][:9]) for row in second] == [("on-policy", "", "struggles")]
    goals = share(0.1)["greedy_reached"][np.arange(N) % 5 == 0]
    assert float(second[0]["greedy"]) == pytest.approx(goals.mean(), abs=1e-6)
    text = text_of(page)
    assert "Mastery: TwoRoomsSwitchSmall-v0, all goals taught, 300 steps" in text
    assert "Mastery: TwoRoomsSwitchSmall-v0, goals held out, 300 steps" in text
    assert "paper-uniform: 44 of 220 goals were not reached from every start with every seed" in text


def test_curves_have_a_line_for_each_seed(page):
    html = page.read_text()
    chart = html[html.index('aria-label="Mastery against steps, greedy"') :]
    chart = chart[: chart.index("</svg>")]
    # two seeds and their mean; of learning progress one seed and its mean
    lines = re.findall(r"stroke: var\(--line-\d\); stroke-(?:opacity|width)", chart)
    assert sum("var(--line-1)" in line for line in lines) == 3
    assert sum("var(--line-0)" in line for line in lines) == 2


def test_cost_by_hand(page):
    rows = {row["agent"]: row for row in rows_of(page.with_name("a report #2-data") / "cost.csv")}
    uniform = rows["paper-uniform"]  # 300 steps in 10 s, twice, in runs of 720 s
    assert (uniform["runs"], uniform["steps"]) == ("2", "600")
    assert float(uniform["training_hours"]) == pytest.approx(20 / 3600)
    assert float(uniform["wall_hours"]) == pytest.approx(0.4)
    assert float(uniform["steps_per_second"]) == pytest.approx(30.0)
    unfinished = rows["paper-learning-progress"]  # 150 steps in 5 s
    assert (unfinished["runs"], unfinished["steps"], unfinished["wall_hours"]) == ("1", "150", "")
    a2c = rows["a2c"]  # 7 finished runs of an hour, and one that is not; training was not timed
    assert (a2c["runs"], a2c["training_hours"], float(a2c["wall_hours"])) == ("8", "", 7.0)
    assert float(a2c["steps_per_second"]) == pytest.approx(1000 / 3600)
    everything = rows["all"]
    assert float(everything["wall_hours"]) == pytest.approx(4 * 0.2 + 13)


def test_games_with_missing_seeds_are_named_and_left_out(page):
    data = page.with_name("a report #2-data")
    rows = {row["agent"]: row for row in rows_of(data / "games1-summary.csv")}
    assert "Without the games in which an agent lacks a seed: Boxing." in text_of(page)
    assert {row["games"] for row in rows.values()} == {"2"}
    table = read_table(DATA / "atari_human_random_49.csv").select(["Alien", "Pong"])
    random, human = table.columns["random"], table.columns["human"]
    for agent, factor in (("a2c", 1), ("many-goals", 2)):
        means = factor * np.array([100.5, 200.5])
        normalized = (means - random) / (human - random)
        assert float(rows[agent]["median"]) == pytest.approx(normalized.mean())  # of two games
        assert float(rows[agent]["median_low"]) <= float(rows[agent]["median"]) <= float(rows[agent]["median_high"])
    assert rows["a2c"]["better"] == ""
    assert float(rows["many-goals"]["better"]) == 1.0
    papers = PAPER.select(["Alien", "Pong"]).columns["a2c"]
    assert float(rows["a2c"]["paper_median"]) == pytest.approx(((papers - random) / (human - random)).mean())
    bars = rows_of(data / "games1-improvements.csv")
    alien = next(row for row in bars if row["game"] == "Alien")
    assert float(alien["improvement"]) == pytest.approx((201.0 - 100.5) / (human[0] - random[0]))
    others = [row for row in rows_of(data / "games1-scores.csv") if row["game"] == "MiniGrid-Empty-5x5-v0"]
    assert [(float(row["score"]), row["normalized"], row["human"]) for row in others] == [(300.5, "", ""), (601.0, "", "")]


def test_the_papers_own_scores_give_its_summary(tmp_path, capsys):
    """Fed the paper's table, the page shows what follows from it, beside what its summary prints."""
    for agent in ("a2c", "many-goals"):
        for game, score in zip(PAPER.games, PAPER.columns[agent.replace("-", "_")].tolist(), strict=True):
            play(tmp_path / "runs", agent, game, 0, score)
    page = ReportConfig((tmp_path / "runs",), tmp_path / "page.html").run()
    assert "left out" not in capsys.readouterr().out
    assert trouble(page) == []
    found = {row["agent"]: row for row in rows_of(tmp_path / "page-data" / "games1-summary.csv")}
    for agent, expected in (("a2c", ("32.78%", 21)), ("many-goals", ("42.34%", 24))):
        row = found[agent]
        assert (f"{float(row['median']):.2%}", int(float(row["above_half"]))) == expected
        assert (f"{float(row['paper_median']):.2%}", int(row["paper_above_half"])) == expected
        assert row["median_low"] == ""  # of one seed
    text = text_of(page)
    assert "32.78%" in text
    assert "42.34%" in text
    printed = {row["summary"]: row for row in rows_of(tmp_path / "page-data" / "paper-summaries.csv")}
    assert printed["pretraining, A2C + MG pre-training"]["median_follows"] == "no"
    assert "A2C + MG pre-training 39.2% 50.00% no 23 24 no" in text_of_cells(page)


def text_of_cells(page):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page.read_text())).replace(" %", "%")


def test_numbers_as_they_are_shown(tmp_path):
    book = Book(tmp_path / "page.html")
    row = {"a": 0.98765, "a_low": 0.5, "a_high": 1.0, "b": float("inf"), "c": None, "d": 1234567.8}
    sheet = book.add("some", pd.DataFrame([row]))
    assert sheet.number(0, "a", "share") == '<data value="0.98765" data-cell="some.csv#1/a">0.988</data>'
    assert re.sub("<[^>]*>", "", sheet.interval(0, "a", "percent")) == "98.8% [50%, 100%]"
    assert (sheet.number(0, "b"), sheet.number(0, "c")) == ("not reached", "")
    assert ">1,234,568<" in sheet.number(0, "d", "count")
    assert book.fact("things", 12) == '<data value="12" data-cell="facts.csv#1/value">12</data>'
    book.write("", "", [])
    assert Sheet(book.folder / "facts.csv").frame.to_dict("records") == [{"what": "things", "value": "12"}]


def test_curves_are_found_in_what_sb3_logs_too(tmp_path):
    folder = play(tmp_path, "a2c", "Pong", 0)
    lines = ["rollout/ep_rew_mean,time/total_timesteps,train/loss", "1.5,100,", ",150,0.25", "2.5,200,0.5"]
    (folder / "a2c" / "run" / "progress.csv").write_text("\n".join(lines) + "\n")
    assert reader.returns(reader.read([tmp_path]))[["step", "episode_return"]].values.tolist() == [[100.0, 1.5], [200.0, 2.5]]


def test_names_are_words_and_never_markup(tmp_path):
    name = '<script>alert(1)</script> & "co"'
    play(tmp_path / "runs", name, "<b>", 0, 1.0, curve=[(1, 2.0), (900, 3.0)])
    html = ReportConfig((tmp_path / "runs",), tmp_path / "page.html", title=name).run().read_text()
    assert "<script" not in html
    assert "<b>" not in html
    assert html.count("&lt;script&gt;alert(1)&lt;/script&gt; &amp; &#34;co&#34;") > 3
    assert trouble(tmp_path / "page.html") == []


def test_single_runs_and_a_run_by_its_own_folder(tmp_path):
    for seed in (0, 1):
        make_run(tmp_path / "many" / f"run{seed}", seed, goals=share(0.5))
    found = reader.read([tmp_path / "many" / "run1"])
    assert found[["study", "agent", "seed", "status"]].values.tolist() == [["", "many", 1, "finished"]]
    spec = Spec(AUXILIARY, "a2c", "Pong", 3, 1000)
    folder = play(tmp_path / "suite", "a2c", "Pong", 3, 1.0)
    found = reader.read([folder, tmp_path])  # twice, and once only
    assert found[["agent", "seed"]].values.tolist() == [["many", 0], ["many", 1], ["a2c", 3]]
    assert found["path"][2] == spec.folder(tmp_path / "suite")


def test_worlds_and_lengths_are_compared_apart(tmp_path):
    make_run(tmp_path / "a" / "short", 0, goals=share(0.5))
    make_run(tmp_path / "a" / "long", 0, curve=[(0, 0.0, 0.0), (600, 0.5, 0.5)], goals=share(0.5), total_steps=600)
    make_run(tmp_path / "a" / "patient", 0, goals=share(0.5), eval_steps=400)
    found = reader.read([tmp_path])
    assert found["group"].nunique() == 3
    assert set(found["label"]) == {"a"}  # nothing that differs within a group


def test_runs_of_different_lengths_are_scored_apart(tmp_path):
    for steps, score in ((1000, 5.0), (2000, 7.0)):
        play(tmp_path / "runs", "a2c", "Pong", 0, score, steps=steps)
    page = ReportConfig((tmp_path / "runs",), tmp_path / "page.html").run()
    scores = [rows_of(tmp_path / "page-data" / f"games{number}-scores.csv")[0]["score"] for number in (1, 2)]
    assert scores == ["5", "7"]
    assert "Scores: auxiliary, 2,000 steps" in text_of(page)
    coverage = rows_of(tmp_path / "page-data" / "coverage.csv")
    assert [(row["steps"], row["planned"]) for row in coverage] == [("1000", "1"), ("2000", "1")]


def test_two_runs_of_the_same_are_refused(tmp_path):
    play(tmp_path / "one", "a2c", "Pong", 0, 5.0)
    play(tmp_path / "other", "a2c", "Pong", 0, 6.0)
    with pytest.raises(
        PastRunError, match=r"two runs of a2c in Pong, seed 0, 1000 steps, in .*one.* and .*other.*: report on"
    ):
        ReportConfig((tmp_path,), tmp_path / "page.html").run()


def test_runs_none_of_which_has_finished(tmp_path):
    make_run(tmp_path / "many" / "run", 0, curve=[(0, 0.0, 0.25)])
    page = ReportConfig((tmp_path / "many",), tmp_path / "page.html").run()
    assert trouble(page) == []
    assert "Runs: 0 finished, 1 unfinished, 0 not begun." in text_of(page)
    assert 'aria-label="Mastery against steps, greedy"' in page.read_text()
    assert "Films" not in page.read_text()


def test_a_large_video_is_only_linked_to(tmp_path, monkeypatch):
    folder = play(tmp_path / "runs", "a2c", "Pong", 0, 1.0)
    (folder / "play.mp4").write_bytes(b"0123456789")
    config = ReportConfig((tmp_path / "runs",), tmp_path / "page.html")
    assert "data:video/mp4;base64,MDEyMzQ1Njc4OQ==" in config.run().read_text()
    monkeypatch.setattr("benchmarks.report.study.MOST_VIDEO_BYTES", 9)
    html = config.run().read_text()
    assert "data:video" not in html
    assert "Too large for the page" in html
    assert f"runs/{folder.name}/play.mp4" in Page(html).links


@pytest.mark.parametrize(
    ("prepare", "output", "error", "message"),
    [
        (lambda root: root / "nothing", "a.html", PastRunError, "runs must be folders, got .*nothing"),
        (
            lambda root: root,
            "a.html",
            PastRunError,
            r"at least one folder with spec.json, or config.json and mastery.csv or curve.csv",
        ),
        (lambda root: root, "a.pdf", ValueError, r"output must end in .html, got .*a.pdf"),
    ],
)
def test_what_is_no_run_is_refused(tmp_path, prepare, output, error, message):
    with pytest.raises(error, match=message):
        ReportConfig((prepare(tmp_path),), tmp_path / output).run()
    assert not list(tmp_path.iterdir())


def test_damaged_runs_are_refused(tmp_path):
    folder = play(tmp_path, "a2c", "Pong", 0, 1.0)
    (folder / "spec.json").write_text("{")
    with pytest.raises(SuiteError, match=r"spec.json is damaged"):
        reader.read([tmp_path])


def test_the_command_line(tmp_path):
    play(tmp_path / "runs", "a2c", "Pong", 0, 1.0)
    command = [sys.executable, "-m", "benchmarks", "report", "runs", "--output", "deep/er/page.html"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("written to deep/er/page.html\n")
    page = tmp_path / "deep/er/page.html"
    assert trouble(page) == []
    assert "../../runs/" in page.read_text()
    with (tmp_path / "deep/er/page-data/runs.csv").open(newline="") as file:
        assert [row["status"] for row in csv.DictReader(file)] == ["finished"]
