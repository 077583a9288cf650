"""The study of the paper's games, and the search for beta, as suites."""

import csv
import json
from dataclasses import replace

import pytest
from stable_baselines3 import A2C

from benchmarks.auxiliary import AuxiliaryConfig
from benchmarks.beta_study import BETAS, BetaStudyConfig, compare
from benchmarks.beta_study import configuration as beta_configuration
from benchmarks.beta_study import specs as beta_specs
from benchmarks.games_study import AGENTS, GamesStudyConfig, configuration, games, specs
from benchmarks.pretraining import PretrainingConfig
from benchmarks.scores import DATA, human_normalized, read_table
from benchmarks.suite import Result, read_result, results
from benchmarks.suite.run import SuiteConfig
from tests.sb3_manygoals.checkpoint.conftest import no_sync
from tests.sb3_manygoals.checkpoint.test_resume import same

__all__ = ["no_sync"]


def test_six_agents_in_the_papers_49_games_with_three_seeds():
    suite = specs(3)
    assert len(suite) == len(set(suite)) == 6 * 49 * 3
    assert "Pitfall" in games()
    assert "Hero" not in games()
    assert {spec.game for spec in suite} == set(games())
    assert {spec.steps for spec in suite} == {10_000_000}
    assert [spec.agent for spec in suite[:6]] == list(AGENTS)
    assert [spec.seed for spec in suite] == sorted(spec.seed for spec in suite)


@pytest.mark.parametrize("agent", AGENTS)
def test_agents_have_the_papers_settings_and_its_names(agent):
    (spec,) = specs(1, only_games=["Qbert"], only=[agent])
    columns = [read_table(DATA / f"paper_{study}_scores.csv").columns for study in ("auxiliary", "pretraining")]
    assert any(agent.replace("-", "_") in each for each in columns)
    config = configuration(spec)
    paper = PretrainingConfig() if agent.endswith("-pretraining") else AuxiliaryConfig()
    assert config == replace(paper, agent=config.agent, game="Qbert", progress_bar=False)
    assert config.agent == agent.removesuffix("-pretraining").replace("-", "_")


def test_a_tenth_of_the_steps_is_pre_training():
    (spec,) = specs(1, 20_000, ["Boxing"], ["many-goals-pretraining"])
    config = configuration(spec)
    assert (config.steps, config.pretrain_steps, config.learning_starts) == (20_000, 2_000, 1_000)
    (spec,) = specs(1, 1_000, ["Boxing"], ["many-goals-pretraining"])
    assert (configuration(spec).pretrain_steps, configuration(spec).learning_starts) == (100, 50)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "seeds must be at least 1, got 0"),
        ((1, 9), "steps must be at least 10, of which one is pre-training's, got 9"),
        ((1, 100, ["Hero"]), "games must be of Alien, .*, got Hero"),
        ((1, 100, [], ["ppo"]), "only must be of a2c, .*, got ppo"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        specs(*arguments)


@pytest.mark.usefixtures("no_sync")
def test_each_engine_gives_the_same_results(tmp_path):
    pytest.importorskip("ale_py")
    pytest.importorskip("lz4")
    found = []
    for engine, workers in (("in-process", 1), ("processes", 2)):
        root = tmp_path / engine
        config = GamesStudyConfig(
            SuiteConfig(root=root, engine=engine, workers=workers),
            seeds=1,
            steps=800,
            games=("Boxing",),
            only=("many-goals", "many-goals-pretraining"),
        )
        outcome = config.run()
        assert outcome is not None
        assert outcome.complete
        suite = specs(1, 800, ("Boxing",), ("many-goals", "many-goals-pretraining"))
        finished = results(suite, root)
        assert len(finished) == 2
        for spec, result in finished.items():
            run = spec.folder(root) / spec.agent / "run"
            assert result.values == json.loads((run / "score.json").read_text())
            assert result.values["step"] == 800
        found.append([A2C.load(next(spec.folder(root).rglob("run/model.zip"))).policy.state_dict() for spec in finished])
    same(*found)


def test_the_range_of_beta_on_the_seven_games():
    suite = beta_specs(3)
    assert len(suite) == len(set(suite)) == 8 * 7 * 3
    assert {beta_configuration(spec).weight for spec in suite} == set(BETAS)
    one = beta_configuration(suite[BETAS.index(0.02)])
    assert one == AuxiliaryConfig(game="Atlantis", weight=0.02, progress_bar=False)
    for arguments, message in (
        ((0,), "seeds must be at least 1"),
        ((1, 100, ["Pong"]), "games must be of Atlantis, .*, got Pong"),
        ((1, 100, [], []), "betas must be positive numbers, got none"),
        ((1, 100, [], [0.0, 0.1]), "betas must be positive numbers, got 0.0 0.1"),
    ):
        with pytest.raises(ValueError, match=message):
            beta_specs(*arguments)


def test_betas_are_compared_on_games_that_all_have():
    suite = beta_specs(2, 100, ("Boxing", "Qbert", "UpNDown"), (0.01, 0.02))
    values = {"Boxing": (1.0, 7.0), "Qbert": (200.0, 9000.0), "UpNDown": (600.0, 900.0)}
    finished = [
        Result(spec, {"score": values[spec.game][spec.settings["beta"] == 0.02] + spec.seed}, 1.0, 1)
        for spec in suite
        if (spec.game, spec.seed, spec.settings["beta"]) != ("UpNDown", 1, 0.02)  # and so not in the table
    ]
    rows = compare(finished)
    assert [(row["beta"], row["games"], row["seeds"]) for row in rows] == [(0.01, 2, 2), (0.02, 2, 2)]
    for row, column in zip(rows, (0, 1), strict=True):
        raw = [[values[game][column] + seed for game in ("Boxing", "Qbert")] for seed in (0, 1)]
        by_game = human_normalized(raw, ["Boxing", "Qbert"]).mean(axis=0)
        assert row["median"] == pytest.approx(by_game.mean())  # of two
        assert row["median_low"] <= row["median"] <= row["median_high"]
    assert compare(finished[:1])[0]["seeds"] == 1
    assert "median_low" not in compare(finished[:1])[0]
    assert compare([Result(suite[0], {"score": None}, 1.0, 1)]) == []


@pytest.mark.usefixtures("no_sync")
def test_the_search_writes_what_came_of_it(tmp_path, capsys):
    suite = beta_specs(1, 100, ("Boxing",), (0.01, 0.02))
    for spec, score in zip(suite, (3.0, 5.0), strict=True):
        spec.folder(tmp_path).mkdir()
        Result(spec, {"score": score}, 1.0, 1).write(spec.folder(tmp_path))
        assert read_result(spec.folder(tmp_path)).values == {"score": score}
    BetaStudyConfig(SuiteConfig(root=tmp_path), seeds=1, steps=100, games=("Boxing",), betas=(0.01, 0.02)).run()
    with (tmp_path / "beta.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["beta"] for row in rows] == ["0.01", "0.02"]
    assert float(rows[1]["median"]) == pytest.approx(float(human_normalized([5.0], ["Boxing"])[0]))
    assert "is that of 0.02" in capsys.readouterr().out
