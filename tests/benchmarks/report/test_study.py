"""The page about many runs: its numbers, its links, and what it says of runs of each kind."""

import itertools
import json
import os
import re
import shutil
from hashlib import sha256
from urllib.parse import unquote, urlsplit

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from benchmarks import scores
from benchmarks.report import PastRunError, figures
from benchmarks.report import mastery as mastery_report
from benchmarks.report import runs as reader
from benchmarks.report.page import Book
from benchmarks.report.study import ReportConfig
from benchmarks.scores import read_table, references
from benchmarks.studies import mastery as mastery_study
from benchmarks.suite import Result, Spec, SuiteError
from gym_twoRooms import NAMED_LAYOUTS
from tests import ROOT
from tests.benchmarks.browser import chromium
from tests.benchmarks.command_line import printed, rows_of
from tests.benchmarks.report.page_numbers import Page, text_of, trouble
from tests.benchmarks.report.test_tables import N, make_run, share

AUXILIARY = "benchmarks.auxiliary:carry_out"
PAPER = read_table("paper_auxiliary_scores")


def begin(spec, root, attempts=1):
    """Write a run that has begun; return its folder."""
    spec.write(root)
    (spec.folder(root) / "attempts.jsonl").write_text('{"pid": 1}\n' * attempts)
    return spec.folder(root)


def play(root, agent, game, seed, score=None, steps=1000, curve=None, study=AUXILIARY):
    """Write a run of a game. A run without a score has not finished."""
    spec = Spec(study, agent, game, seed, steps)
    folder = begin(spec, root)
    own = folder / agent / "run"
    own.mkdir(parents=True)
    (own / "config.json").write_text('{"settings": {}}')
    if curve is not None:
        (own / "curve.csv").write_text(
            "step,episode_return\n" + "".join(f"{step},{value}\n" for step, value in curve)
        )
    if score is not None:
        Result(spec, {"score": score}, 3600.0, 1).write(folder)
    return folder


def master(root, spec, **options):
    """Write a run of the study of mastery. A run without goals has not finished."""
    folder = begin(spec, root, attempts=2)
    held_out = 0.2 if spec.agent.startswith("generalization") else 0.0
    own = make_run(
        folder / spec.agent / "run",
        spec.seed,
        total_steps=spec.steps,
        **options | {"agent": spec.agent},
    )
    record = json.loads((own / "config.json").read_text())
    record["settings"]["held_out"] = held_out
    machine = {
        "command": "python -m benchmarks x",
        "date": "2026-11-21T10:00:00+00:00",
        "versions": {"torch": "2.13"},
    }
    (own / "config.json").write_text(
        json.dumps(record | machine | {"git_revision": f"abc{spec.seed}"})
    )
    if "goals" in options:
        frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
        frames[0].save(own / "reaching.gif", save_all=True, append_images=frames[1:])
        Result(spec, {"greedy_all": 0.5}, 720.0, 1).write(folder)
    return own


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """
    Write runs of both experiments with mastery, and of a suite of games.

    The name of their folder is no address as it is.
    """
    root = tmp_path_factory.mktemp("runs") / "50% of #1 & more"
    wanted = [
        spec
        for part in ("paper", "generalization")
        for spec in mastery_study.PARTS[part].specs(2, 300)
    ]
    by_agent = {(spec.agent, spec.seed): spec for spec in wanted}
    for spec in wanted:
        spec.write(root / "mastery")
    for seed in (0, 1):
        curve = [(0, 0.0, 0.0), (150, 0.25, 0.5), (300, 0.75 + 0.1 * seed, 0.9)]
        master(
            root / "mastery",
            by_agent["paper-uniform", seed],
            curve=curve,
            goals=share(0.8 + 0.1 * seed),
        )
        held_out = np.arange(N) % 5 == 0
        master(
            root / "mastery",
            by_agent["generalization-on-policy", seed],
            goals=share(0.1),
            held_out=held_out,
        )
    master(
        root / "mastery",
        by_agent["paper-learning-progress", 1],
        curve=[(0, 0.0, 0.0), (150, 0.2, 0.3)],
    )
    for agent, factor in (("a2c", 1.0), ("many-goals", 2.0)):
        for seed in (0, 1):
            for game, step in (("Alien", 1), ("Pong", 2), ("MiniGrid-Empty-5x5-v0", 3)):
                curve = [(step + k * 100, factor * k + seed) for k in range(10)]
                play(root / "games", agent, game, seed, factor * (100.0 * step + seed), curve=curve)
            Spec(AUXILIARY, agent, "Boxing", seed, 1000).write(root / "games")
    play(root / "games", "a2c", "Boxing", 0, 1.0)
    play(root / "games", "a2c", "Boxing", 1)
    return root


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory):
    """The page about all runs."""
    return ReportConfig((runs,), tmp_path_factory.mktemp("pages") / "a report #2.html").run()


@pytest.fixture(scope="module")
def data(page):
    """The folder of the page's numbers and figures."""
    return page.with_name("a report #2-data")


def reported(folder, **options):
    """Write the page about a folder, beside it, and check its numbers."""
    page = ReportConfig((folder,), folder.parent / "page.html", **options).run()
    assert trouble(page) == []
    return page


def test_every_number_is_in_a_csv(page):
    assert trouble(page) == []
    files = {cell.partition("#")[0] for _, _, cell in Page(page.read_text()).numbers}
    kinds = [f"mastery1-{kind}" for kind in ("table", "finals", "worst")]
    kinds += ["facts", "coverage", "runs", "games1-summary", "games1-scores", "games1-returns"]
    assert files >= {f"{kind}.csv" for kind in kinds}


def test_nothing_is_loaded_and_links_lead_to_each_raw_file(page, runs, data):
    found = Page(page.read_text())
    assert all(address.startswith(("data:", "#")) for address in found.loaded)
    assert sum(address.startswith("data:image/gif") for address in found.loaded) == 2
    assert not any(text in page.read_text() for text in ("http", "<script"))
    identifiers = re.findall(r'\bid="([^"]*)"', page.read_text())
    assert len(set(identifiers)) == len(identifiers)
    # A browser would open these files: "#" and "?" end the path of an address.
    files = {address: page.parent / unquote(urlsplit(address).path) for address in found.links}
    for address, file in files.items():
        assert address[1:] in identifiers if address.startswith("#") else file.exists(), address
    linked = {os.path.normpath(file) for file in files.values()}
    raw = {str(path) for path in runs.rglob("*") if path.is_file() and path.name != "spec.json"}
    assert len(raw) > 40
    assert raw | {str(path) for path in data.iterdir()} <= linked


def test_what_was_run_and_what_was_not_and_what_it_cost(page, data):
    rows = {row["agent"]: row for row in rows_of(data / "coverage.csv")}

    def counts(agent):
        """Return how many runs of an agent have which status."""
        return tuple(
            int(rows[agent][column])
            for column in ("planned", "finished", "unfinished", "not begun")
        )

    assert counts("paper-uniform") == (2, 2, 0, 0)
    assert counts("paper-learning-progress") == (2, 0, 1, 1)
    # Nothing was written of these runs.
    assert counts("paper-table") == (2, 0, 0, 2)
    text = text_of(page)
    assert "not the whole study" in text
    assert "TwoRoomsSwitch-v0, seed 0 (not begun); TwoRoomsSwitch-v0, seed 1 (unfinished)" in text
    assert "Boxing, seed 0 (not begun); Boxing, seed 1 (not begun)" in text
    # Two runs of 720 s had 300 steps in 10 s each.
    uniform = rows["paper-uniform"]
    assert float(uniform["training_hours"]) == pytest.approx(20 / 3600)
    assert float(uniform["wall_hours"]) == pytest.approx(0.4)
    assert float(uniform["steps_per_second"]) == pytest.approx(30.0)
    # These runs have not finished.
    assert rows["paper-learning-progress"]["wall_hours"] == ""
    # Seven runs of an hour have finished, and one has not. Their training was not timed. Those with
    # a curve came to steps 901, 902 and 903.
    a2c = rows["a2c"]
    assert (a2c["training_hours"], float(a2c["wall_hours"])) == ("", 7.0)
    assert float(a2c["steps_per_second"]) == pytest.approx(902 / 3600)
    assert float(rows["all"]["wall_hours"]) == pytest.approx(4 * 0.2 + 13)


def test_mastery_beside_the_paper(page, data):
    first, second = (
        {row["agent"]: row for row in rows_of(data / f"mastery{number}-table.csv")}
        for number in (1, 2)
    )
    assert first["paper-uniform"]["paper"] == "1"
    assert first["paper-learning-progress"]["greedy"] == ""
    held_out = second["generalization-on-policy"]
    assert (held_out["paper"], held_out["said"][:9]) == ("", "struggles")
    assert held_out["held_out_greedy"] != ""
    assert "Mastery: TwoRoomsSwitchSmall, 300 steps, goals held out" in text_of(page)
    assert (first["paper-uniform"]["always"], first["paper-uniform"]["never"]) == ("176", "22")
    # Curves have a line for each seed, as no agent has the seeds that a band needs.
    html = page.read_text()
    chart = html[html.index('aria-label="Mastery against steps, greedy"') :]
    lines = re.findall(r"(fill|stroke): var\(--line-(\d)\)", chart[: chart.index("</svg>")])
    assert [lines.count(("stroke", number)) for number in "01"] == [1, 2]
    assert not {("fill", "0"), ("fill", "1")} & set(lines)
    # The file has a legend, as it is also used without the page.
    (file,) = data.glob("mastery1-*Mastery-against-steps--greedy*.svg")
    assert ">paper-uniform</text>" in file.read_text()
    assert ">paper-uniform</text>" not in chart


def test_games_with_missing_seeds_are_named_and_left_out(page, data):
    rows = {row["agent"]: row for row in rows_of(data / "games1-summary.csv")}
    assert "Without the games in which an agent lacks a seed: Boxing." in text_of(page)
    assert {row["games"] for row in rows.values()} == {"2"}
    random, human = references(["Alien", "Pong"]).to_numpy().T
    for agent, factor, better in (("a2c", 1, ""), ("many-goals", 2, "1")):
        normalized = (factor * np.array([100.5, 200.5]) - random) / (human - random)
        # The median of two games is their mean.
        assert float(rows[agent]["median"]) == pytest.approx(normalized.mean())
        assert (
            float(rows[agent]["median_low"])
            <= float(rows[agent]["median"])
            <= float(rows[agent]["median_high"])
        )
        assert rows[agent]["better"] == better
    papers = PAPER.loc[["Alien", "Pong"], "a2c"].to_numpy()
    assert float(rows["a2c"]["paper_median"]) == pytest.approx(
        ((papers - random) / (human - random)).mean()
    )
    alien = next(row for row in rows_of(data / "games1-improvements.csv") if row["game"] == "Alien")
    assert float(alien["improvement"]) == pytest.approx((201.0 - 100.5) / (human[0] - random[0]))
    others = [
        row for row in rows_of(data / "games1-scores.csv") if row["game"] == "MiniGrid-Empty-5x5-v0"
    ]
    assert [(float(row["score"]), row["normalized"], row["human"]) for row in others] == [
        (300.5, "", ""),
        (601.0, "", ""),
    ]


def test_games_of_first_seeds_stay_when_second_seeds_begin(tmp_path):
    for agent in ("a2c", "many-goals"):
        for game in ("Alien", "Boxing", "Pong"):
            play(tmp_path / "games", agent, game, 0, 10.0)
    play(tmp_path / "games", "a2c", "Alien", 1, 20.0)
    reported(tmp_path / "games")
    rows = rows_of(tmp_path / "page-data" / "games1-summary.csv")
    assert [(row["games"], row["seeds"]) for row in rows] == [("3", "1")] * 2
    said = "Without the last seeds of agents that lack them in most games: a2c (1 of 2)."
    assert said in text_of(tmp_path / "page.html")
    # With their second seeds, most games are taken with both.
    for game in ("Boxing", "Pong"):
        play(tmp_path / "games", "a2c", game, 1, 20.0)
    for game in ("Alien", "Pong"):
        play(tmp_path / "games", "many-goals", game, 1, 20.0)
    reported(tmp_path / "games")
    rows = rows_of(tmp_path / "page-data" / "games1-summary.csv")
    assert [(row["games"], row["seeds"]) for row in rows] == [("2", "2")] * 2


def test_a_control_in_one_game_leaves_the_summary_as_it_was(tmp_path):
    for agent in ("a2c", "many-goals"):
        for game in ("Alien", "Boxing", "Pong"):
            play(tmp_path / "games", agent, game, 0, 10.0)
    play(tmp_path / "games", "shuffled-goals", "Alien", 0, 5.0)
    page = reported(tmp_path / "games")
    rows = rows_of(tmp_path / "page-data" / "games1-summary.csv")
    assert [(row["agent"], row["games"], row["seeds"]) for row in rows] == [
        ("a2c", "3", "1"),
        ("many-goals", "3", "1"),
    ]
    said = "Without the controls, which are run in few games: shuffled-goals."
    assert said in text_of(page)
    scores = rows_of(tmp_path / "page-data" / "games1-scores.csv")
    assert {row["agent"] for row in scores if row["game"] == "Alien"} == {
        "a2c",
        "many-goals",
        "shuffled-goals",
    }


def test_agents_without_a_game_in_common_have_no_summary(tmp_path):
    play(tmp_path / "games", "a2c", "Alien", 0, 10.0)
    play(tmp_path / "games", "many-goals", "Boxing", 0, 10.0)
    page = reported(tmp_path / "games")
    assert "There is no game in which all agents have all their seeds" in text_of(page)


def test_the_papers_own_scores_give_its_summary(tmp_path):
    for agent in ("a2c", "many-goals"):
        for game, score in PAPER[agent.replace("-", "_")].items():
            play(tmp_path / "runs", agent, game, 0, score)
    page = reported(tmp_path / "runs")
    found = {row["agent"]: row for row in rows_of(tmp_path / "page-data" / "games1-summary.csv")}
    for agent, expected in (("a2c", ("32.78%", 21)), ("many-goals", ("42.34%", 24))):
        for whose in ("", "paper_"):
            row = found[agent]
            assert (
                f"{float(row[f'{whose}median']):.2%}",
                int(float(row[f"{whose}above_half"])),
            ) == expected
        # A single seed has no interval.
        assert row["median_low"] == ""
    assert "Runs: 98 finished, 0 unfinished, 0 not begun." in text_of(page)
    assert "not the whole study" not in text_of(page)


def test_other_games_need_only_a_table_of_references(tmp_path, monkeypatch):
    table = pd.DataFrame({"random": [1.0, 0.0], "best": [3.0, 10.0]}, index=["Maze", "Cave"])
    read = scores.read_table
    monkeypatch.setattr(scores, "REFERENCES", (*scores.REFERENCES, "mine"))
    monkeypatch.setattr(scores, "read_table", lambda name: table if name == "mine" else read(name))
    for seed in (0, 1):
        for game, score in (("Maze", 2.0), ("Cave", 2.5)):
            play(tmp_path / "runs", "a2c", game, seed, score, curve=[(500, 0.0), (1000, score)])
    page = reported(tmp_path / "runs")
    (row,) = rows_of(tmp_path / "page-data" / "games1-summary.csv")
    # The normalized scores are 0.5 and 0.25.
    assert (float(row["interquartile_mean"]), row["paper_median"]) == (0.375, "")
    assert [row["best"] for row in rows_of(tmp_path / "page-data" / "games1-scores.csv")] == [
        "10",
        "3",
    ]
    assert 'aria-label="Episode returns against steps in Maze"' in page.read_text()


def test_names_are_words_and_never_markup(tmp_path):
    name = '<script>alert(1)</script> & "co"'
    play(tmp_path / "runs", name, "<b>", 0, 1.0, curve=[(1, 2.0), (900, 3.0)])
    html = reported(tmp_path / "runs", title=name).read_text()
    assert not any(markup in html for markup in ("<script", "<b>"))
    assert html.count("&lt;script&gt;alert(1)&lt;/script&gt; &amp; &#34;co&#34;") > 3


def test_worlds_and_lengths_are_compared_apart(tmp_path):
    make_run(tmp_path / "short", goals=share(0.5))
    make_run(
        tmp_path / "long", curve=[(0, 0.0, 0.0), (600, 0.5, 0.5)], goals=share(0.5), total_steps=600
    )
    make_run(tmp_path / "patient", goals=share(0.5), eval_steps=400)
    for steps, score in ((1000, 5.0), (2000, 7.0)):
        play(tmp_path / "runs", "a2c", "Pong", 0, score, steps=steps)
    assert reader.read([tmp_path])["group"].nunique() == 3
    page = reported(tmp_path / "runs")
    assert [
        rows_of(tmp_path / "page-data" / f"games{n}-scores.csv")[0]["score"] for n in (1, 2)
    ] == ["5", "7"]
    assert "Scores: auxiliary, 2,000 steps" in text_of(page)


def test_runs_none_of_which_has_finished(tmp_path):
    make_run(tmp_path / "many" / "run", curve=[(0, 0.0, 0.25)])
    page = reported(tmp_path / "many")
    assert "Runs: 0 finished, 1 unfinished, 0 not begun." in text_of(page)
    assert 'aria-label="Mastery against steps, greedy"' in page.read_text()
    # A world without tables has no curve.
    run = make_run(tmp_path / "unknown", goals=share(0.5), env_id="CartPole-v1")
    (run / "mastery.csv").unlink()
    page = ReportConfig((run,), run / "report.html").run()
    assert trouble(page) == []
    assert "50.0% of 220 goals reached by the greedy policy" in text_of(page)
    assert "Learning curves" not in page.read_text()


def test_where_each_run_knows_goals_of_its_own_the_page_says_how_many(tmp_path):
    for agent, seeds in (("default", (0, 1)), ("hindsight", (0, 1))):
        for seed in seeds:
            run = make_run(
                tmp_path / "runs" / f"{agent}{seed}",
                seed,
                goals={**share(0.5), "state": [""] * N},
                agent=agent,
                env_id="CartPole-v1",
            )
            (run / "mastery.csv").unlink()
            summary = pd.read_csv(run / "summary.csv").drop(columns="reachable")
            summary["known"] = 20 if agent == "default" else 5
            summary.to_csv(run / "summary.csv", index=False)
    page = text_of(reported(tmp_path / "runs"))
    assert "Each run is measured by goals that it knows itself" in page
    rows = rows_of(tmp_path / "page-data" / "mastery1-table.csv")
    assert [(row["agent"], row["known"]) for row in rows] == [("default", "20"), ("hindsight", "5")]
    assert "goals known" in page
    for config in (tmp_path / "runs").rglob("config.json"):
        record = json.loads(config.read_text())
        record["settings"]["eval_goals"] = "goals.npy"
        config.write_text(json.dumps(record))
        np.save(config.with_name("eval_goals.npy"), np.eye(3))
    page = text_of(reported(tmp_path / "runs"))
    assert "Each run is measured by goals that it knows itself" not in page
    assert "The goals that are measured are from the file goals.npy." in page
    assert "goals known" in page
    second = tmp_path / "page-data" / "mastery2-table.csv"
    assert not second.exists()
    # Runs with other goals, in a file of the same name, are no runs to compare with.
    np.save(tmp_path / "runs" / "default0" / "eval_goals.npy", np.eye(4))
    page = text_of(reported(tmp_path / "runs"))
    assert second.exists()
    digests = re.findall(r"The sha256sum of this copy begins with ([0-9a-f]{12})\.", page)
    files = [tmp_path / "runs" / run / "eval_goals.npy" for run in ("default0", "hindsight0")]
    assert sorted(digests) == sorted(sha256(file.read_bytes()).hexdigest()[:12] for file in files)
    # A run that has lost its copy is no run to compare with either.
    files[0].unlink()
    page = text_of(reported(tmp_path / "runs"))
    assert second.exists()
    assert page.count("The run has lost its copy of them") == 1


def test_runs_that_have_not_begun_are_told_apart_by_their_file_of_goals(tmp_path):
    """The file was moved, or is another one, before the study had ended."""
    for file in ("first/goals.npy", "second/goals.npy"):
        study = mastery_study.MasteryStudyConfig(
            games=("own:Own-v0",), only=("default",), seeds=1, eval_goals=tmp_path / file
        )
        for spec in study.specs():
            spec.write(tmp_path / "runs")
    page = text_of(reported(tmp_path / "runs"))
    assert "Runs: 0 finished, 0 unfinished, 2 not begun." in page
    for file in ("first/goals.npy", "second/goals.npy"):
        assert f"eval_goals={tmp_path / file}" in page
    # Once runs have begun, their copies tell whether the goals are the same.
    for seeds, file in ((1, "first/goals.npy"), (2, "second/goals.npy")):
        study = mastery_study.MasteryStudyConfig(
            games=("own:Own-v0",), only=("default",), seeds=seeds, eval_goals=tmp_path / file
        )
        own = master(tmp_path / "begun", study.specs()[-1], eval_goals=str(tmp_path / file))
        np.save(own / "eval_goals.npy", np.eye(3))
    assert "eval_goals=" not in text_of(reported(tmp_path / "begun"))
    np.save(own / "eval_goals.npy", np.eye(4))
    digest = sha256((own / "eval_goals.npy").read_bytes()).hexdigest()[:12]
    assert f"default, eval_goals={digest}" in text_of(reported(tmp_path / "begun"))


def test_finished_runs_without_an_episode_count_as_random_play(tmp_path):
    for seed, score in enumerate((-18.0, None, None)):
        folder = play(tmp_path / "runs", "a2c", "DoubleDunk", seed)
        spec = Spec(**json.loads((folder / "spec.json").read_text()))
        Result(spec, {"score": score}, 3600.0, 1).write(folder)
    page = text_of(reported(tmp_path / "runs"))
    assert "In 2 of the finished runs, no episode ended." in page
    (row,) = rows_of(tmp_path / "page-data" / "games1-scores.csv")
    random = read_table("atari_human_random_49").loc["DoubleDunk", "random"]
    assert row["seeds"] == "3"
    assert float(row["score"]) == pytest.approx((-18.0 + 2 * random) / 3)


def test_a_run_that_has_just_begun_cuts_no_finished_run_short(tmp_path):
    """The study is looked at while its next seeds begin."""
    curve = [(100, 1.0), (1000, 5.0)]
    for seed in range(3):
        play(tmp_path / "games", "a2c", "Pong", seed, 5.0, curve=curve)
        make_run(
            tmp_path / "mastery" / str(seed),
            seed,
            curve=[(0, 0.0, 0.0), (100, 0.1, 0.1), (300, 0.9, 0.9)],
            goals=share(0.9),
        )
    play(tmp_path / "games", "a2c", "Pong", 3, curve=curve[:1])
    make_run(tmp_path / "mastery" / "3", 3, curve=[(0, 0.0, 0.0), (100, 0.1, 0.1)])
    # Of this agent, there is nothing else to be drawn.
    play(tmp_path / "games", "many-goals", "Pong", 0, curve=[(100, 2.0), (1000, 4.0)])
    play(tmp_path / "games", "pixel-control", "Pong", 0, curve=[(100, 2.0)])
    reported(tmp_path)
    data = tmp_path.parent / "page-data"
    rows = {row["agent"]: row for row in rows_of(data / "games1-returns.csv")}
    assert (rows["a2c"]["step"], rows["a2c"]["final"], rows["a2c"]["seeds"]) == ("1000", "5", "3")
    assert rows["many-goals"]["final"] == "4"
    assert "pixel-control" not in rows
    steps = {row["step"] for row in rows_of(data / "mastery1-curves.csv")}
    assert steps == {"0", "100", "300"}


def test_a_page_has_the_files_of_its_own_call_only(tmp_path):
    play(tmp_path / "runs", "a2c", "Pong", 0, 1.0, curve=[(1, 2.0)])
    single = make_run(tmp_path / "runs" / "single", goals=share(0.5))
    reported(tmp_path / "runs")
    data = tmp_path / "page-data"
    assert list(data.glob("mastery1-*.svg"))
    (data / "own.csv").write_text("a file of the user")
    shutil.rmtree(single)
    page = reported(tmp_path / "runs")
    assert not list(data.glob("mastery*"))
    assert list(data.glob("games1-*.svg"))
    assert (data / "own.csv").exists()
    assert "own.csv" not in page.read_text()


def test_long_names_do_not_share_a_figure(tmp_path):
    table = pd.DataFrame({"agent": [f"{'x' * 130}{end}" for end in "ab"], "updates": [1, 2]})
    book = Book(tmp_path / "page.html")
    book.charts("updates", table, "agent", "", lambda rows: figures.plt.subplots()[0])
    assert len([path for path in book.files() if path.suffix == ".svg"]) == 2


def test_a_page_that_cannot_be_made_changes_nothing(tmp_path, monkeypatch):
    play(tmp_path / "runs", "a2c", "Pong", 0, 1.0)
    page = reported(tmp_path / "runs")
    files = [page, *(tmp_path / "page-data").iterdir()]
    before = {path: path.read_text() for path in files}
    play(tmp_path / "runs", "a2c", "Pong", 1, 2.0)
    monkeypatch.setattr("benchmarks.report.study._making", lambda records: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        reported(tmp_path / "runs")
    assert {path: path.read_text() for path in files} == before


@pytest.mark.parametrize("change", ["gone", "edited"])
def test_goals_of_a_map_that_is_not_there_have_no_pictures(change, tmp_path, capsys):
    path = tmp_path / "own.txt"
    text = str(NAMED_LAYOUTS["small"])
    if change == "edited":
        path.write_text(text.replace("....", "#...", 1))
    options = {"env_id": "TwoRoomsSwitch-v0", "map": str(path)}
    make_run(tmp_path / "runs", goals=share(0.5), **options)
    page = reported(tmp_path / "runs")
    assert "left out: pictures of goals in TwoRoomsSwitch-own" in capsys.readouterr().out
    assert "50.0% of 220 goals reached" in text_of(page)


def test_single_runs_have_the_names_and_the_scores_of_the_papers_tables(tmp_path):
    settings = {"game": "Breakout", "seed": 0, "steps": 1000}
    for number, own in enumerate(
        (
            {"agent": "a2c"},
            {"agent": "many_goals"},
            {"agent": "many_goals", "pretrain_steps": 100},
            {"agent": "reward_prediction", "pretrain_steps": 100},
        )
    ):
        folder = tmp_path / "runs" / str(number)
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"settings": settings | own}))
        (folder / "curve.csv").write_text("step,episode_return\n500,1.0\n1000,2.0\n")
        (folder / "score.json").write_text('{"score": 2.0}')
    page = reported(tmp_path / "runs")
    rows = rows_of(tmp_path / "page-data" / "games1-scores.csv")
    assert {row["agent"]: float(row["paper"]) for row in rows} == {
        "a2c": PAPER["a2c"]["Breakout"],
        "many-goals": 486.8,
        "many-goals-pretraining": 472.7,
        "reward-prediction-pretraining": 370.2,
    }
    panels = {row["panel"] for row in rows_of(tmp_path / "page-data" / "games1-improvements.csv")}
    assert "many-goals over a2c" in panels
    assert "are after 10,000,000 steps" in text_of(page)


def test_results_without_scores_and_returns_are_said_to_be_left_out(tmp_path, capsys):
    folder = play(tmp_path / "runs", "dqn", "Maze", 0, study="benchmarks.studies.tasks:carry_out")
    (folder / "dqn" / "run" / "curve.csv").write_text("step,greedy\n1000,1.0\n")
    reported(tmp_path / "runs")
    said = "left out: results of tasks, 1,000 steps, whose runs have no scores"
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("folder", "output", "error", "message"),
    [
        ("nothing", "a.html", PastRunError, "runs must be folders, got .*nothing"),
        (
            "empty",
            "a.html",
            PastRunError,
            "at least one folder with spec.json, or config.json and measurements, got none",
        ),
        ("empty", "a.pdf", ValueError, r"output must end in .html, got .*a.pdf"),
        ("damaged", "a.html", SuiteError, r"spec.json is damaged"),
        (
            "top",
            "a.html",
            PastRunError,
            "two runs of a2c in Pong, seed 0, 1000 steps, in .*one.* and .*two.*: report on them",
        ),
        ("no-run", "a.html", PastRunError, "no-run is not the folder of a run: "),
        ("cut", "a.html", PastRunError, r"summary\.csv is damaged: No columns to parse from file"),
        ("no-json", "a.html", PastRunError, r"config\.json is damaged: JSONDecodeError"),
        ("no-record", "a.html", PastRunError, r"config\.json is damaged: AttributeError"),
        ("no-settings", "a.html", PastRunError, r"config\.json is damaged: ValueError"),
    ],
)
def test_what_is_no_run_is_refused(tmp_path, folder, output, error, message):
    (tmp_path / "empty").mkdir()
    (play(tmp_path / "damaged", "a2c", "Pong", 0, 1.0) / "spec.json").write_text("{")
    for each in ("one", "two"):
        play(tmp_path / "top" / each, "a2c", "Pong", 0, 5.0)
    make_run(tmp_path / "no-run", seed="none")
    (make_run(tmp_path / "cut", goals=share(0.5)) / "summary.csv").write_text("")
    for name, text in (("json", "{"), ("record", "[]"), ("settings", '{"settings": "none"}')):
        (make_run(tmp_path / f"no-{name}") / "config.json").write_text(text)
    with pytest.raises(error, match=message):
        ReportConfig((tmp_path / folder,), tmp_path / output).run()
    assert not list(tmp_path.glob("a*"))


def test_the_command_line(tmp_path, monkeypatch):
    play(tmp_path / "runs", "a2c", "Pong", 0, 1.0)
    monkeypatch.chdir(tmp_path)
    assert (
        printed("report", "runs", "--output", "deep/er/page.html")
        == "written to deep/er/page.html\n"
    )
    assert trouble(tmp_path / "deep/er/page.html") == []
    (row,) = rows_of(tmp_path / "deep/er/page-data/runs.csv")
    assert (row["status"], row["folder"][:11]) == ("finished", "../../runs/")


@pytest.mark.extras
def test_pictures_of_goals_that_fail_stand_apart(tmp_path):
    run = make_run(tmp_path / "run", goals=share(0.0))
    (section,) = mastery_report.sections(reader.read([run]), Book(tmp_path / "page.html"))
    ((_, pictures),) = section["failing"]
    style = (ROOT / "benchmarks/report/page.css").read_text(encoding="utf-8")
    figures = "".join(
        f"<figure>{one}<figcaption>{said}</figcaption></figure>" for one, said in pictures
    )
    page = tmp_path / "gallery.html"
    page.write_text(f"<style>{style}</style><div class='gallery icons'>{figures}</div>")
    with chromium() as browser:
        browser.get(page.as_uri())
        places = browser.execute_script(
            "return [...document.images].map((one) => one.getBoundingClientRect())"
            ".map((box) => [box.left, box.right, box.top])"
        )
    assert len(places) > 10
    gaps = [
        after[0] - before[1]
        for before, after in itertools.pairwise(places)
        if after[2] == before[2]
    ]
    assert min(gaps) >= 8
