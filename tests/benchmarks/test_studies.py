"""The studies as suites: who is compared with whom, and what comes of a few runs."""

import csv
import json
from dataclasses import replace
from typing import get_args

import gymnasium as gym
import pytest
from stable_baselines3 import A2C

from benchmarks.agents.mastery import SELECTORS, Agent, make
from benchmarks.auxiliary import WORLDS, AuxiliaryConfig
from benchmarks.mastery import MasteryConfig
from benchmarks.pretraining import PretrainingConfig
from benchmarks.report.runs import read
from benchmarks.scores import normalized, read_table
from benchmarks.studies import auxiliary, games, mastery, pretraining
from benchmarks.studies.games import BETAS, GAMES, BetaStudyConfig, GamesStudyConfig
from benchmarks.studies.pretraining import PretrainingStudyConfig
from benchmarks.studies.study import carry_out, configuration, mean_return
from benchmarks.suite import Result, Spec, results
from benchmarks.suite.run import SuiteConfig
from sb3_manygoals import PAPER, PlannedTargets
from tests.sb3_manygoals.checkpoint.conftest import no_sync
from tests.sb3_manygoals.checkpoint.test_resume import same

__all__ = ["no_sync"]


def atari(seeds=1, steps=games.STEPS, chosen=("Qbert",), only=()):
    return GamesStudyConfig(seeds=seeds, steps=steps, games=chosen, only=only).specs()


def found(part, **options):
    return {spec.agent.removeprefix(f"{part}-"): configuration(spec) for spec in mastery.PARTS[part].specs(1, **options)}


def built(config):
    return make(config, config.world, config.world.tables)[0]


@pytest.mark.parametrize("part", mastery.PARTS)
def test_specs_of_mastery_are_told_apart_and_are_of_worlds_that_there_are(part):
    six = mastery.PARTS[part].specs(6)
    assert len({spec.name for spec in six}) == len(six) == 6 * len(found(part))
    assert [spec.seed for spec in six] == sorted(spec.seed for spec in six)
    assert {spec.carry_out for spec in six} == {"benchmarks.studies.mastery:carry_out"}
    assert all(configuration(spec).world.id in gym.registry or spec.game.startswith("MiniGrid") for spec in six)
    assert {spec.steps for spec in mastery.PARTS[part].specs(1, steps=7)} == {7}


def test_all_agents_and_rules_are_on_the_small_map():
    configs = found("agents")
    assert configs.keys() == {*get_args(Agent), *(name.replace("_", "-") for name in SELECTORS)} - {"uniform"}
    assert {config.env_id for config in configs.values()} == {"TwoRoomsSwitchSmall-v0"}
    assert configs["default"] == MasteryConfig(
        env_id="TwoRoomsSwitchSmall-v0", total_steps=120_000, eval_freq=10_000, progress_bar=False
    )


def test_the_papers_experiments_are_its_recipe():
    first, second = found("paper"), found("generalization")
    assert {config.total_steps for config in first.values()} == {3_000_000}
    assert {config.env_id for config in first.values()} == {"TwoRoomsSwitch-v0"}
    del first["table"]  # which generalizes to nothing, by construction
    for name, config in first.items():
        assert second[name] == replace(config, held_out=0.2)
    on_policy = built(first["on-policy"])
    assert (on_policy.targets.goal_sampling, on_policy.batch_size, on_policy.n_envs) == ("behavior", 16, 1)
    assert on_policy.buffer_size == PAPER["buffer_size"]
    assert first["learning-progress"].selection == "learning_progress"


def test_each_ablation_changes_the_default_otherwise():
    models = {
        name: built(replace(config, env_id="TwoRoomsSwitchSmall-v0", n_envs=2)) for name, config in found("ablations").items()
    }
    assert isinstance(models["default"].targets, PlannedTargets)
    seen = {
        (str(model.policy), str(vars(model.targets)), model.policy.ema_decay, model.env.goal_tracker.reset_worlds)
        for model in models.values()
    }
    assert len(seen) == len(models) == 10
    assert models["no-best-action-loss"].targets.best_weight == 0.0
    assert models["no-near-weights"].targets.near_decay == 1.0
    resets = [models[name].env.goal_tracker.reset_worlds for name in ("worlds-reset", "worlds-not-reset")]
    assert resets == [True, False]


def test_a_run_gives_the_numbers_of_its_summary(tmp_path):
    settings = {"command": "mastery", "agent": "table", "n_envs": 4, "eval_steps": 30, "final_episodes": 1}
    spec = Spec("benchmarks.studies.mastery:carry_out", "agents-table", "TwoRoomsSwitchSmall-v0", 0, 400, settings)
    values = carry_out(spec, tmp_path)
    assert (tmp_path / "agents-table" / "run" / "report.html").is_file()
    assert values.keys() >= {"greedy", "epsilon", "ceiling", "known", "reachable", "training_seconds", "steps"}
    assert (values["steps"], values["reachable"]) == (400, 220)
    assert 0 <= values["greedy"] <= values["greedy_high"]


@pytest.mark.parametrize("part", auxiliary.PARTS)
def test_auxiliary_tasks_are_compared_with_the_same_settings(part):
    suite = auxiliary.PARTS[part].specs(10)
    assert len(set(suite)) == 40
    assert [spec.seed for spec in suite] == [seed for seed in range(10) for _ in range(4)]
    configs = [configuration(spec) for spec in suite[:4]]
    assert [config.agent for config in configs] == ["many_goals", "a2c", "pixel_control", "reward_prediction"]
    world = WORLDS[part.replace("-", "_")]
    expected = replace(world, eval_freq=world.steps // 40, progress_bar=False)
    assert [replace(config, agent=world.agent) for config in configs] == [expected] * 4
    chosen = auxiliary.PARTS[part].specs(2, 1_000, ("X-v0", "Y-v0"), ("a2c", "many_goals"))
    assert [(spec.seed, spec.game, spec.settings["agent"], spec.steps) for spec in chosen] == [
        (seed, game, agent, 1_000) for seed in (0, 1) for game in ("X-v0", "Y-v0") for agent in ("many_goals", "a2c")
    ]


def test_all_ways_of_pre_training_have_the_same_total_steps():
    suite = pretraining.study(100).specs(10, 1_000)
    configs = [configuration(spec) for spec in suite]
    assert {config.steps for config in configs} == {1_000}
    assert len({(config.agent, config.seed) for config in configs}) == len(suite) == 30
    assert {(c.pretrain_steps, c.learning_starts) for c in configs if c.agent != "none"} == {(100, 50)}
    # the baseline is not run again for other pre-training
    scratch = {spec for spec in suite if spec.settings["agent"] == "none"}
    assert {spec for spec in pretraining.study(200).specs(10, 1_000) if spec in suite} == scratch
    other = pretraining.study(100, ortho_init=False).specs(10, 1_000)
    assert [replace(configuration(spec), ortho_init=True) for spec in other] == configs
    assert {spec.name for spec in other}.isdisjoint(spec.name for spec in suite)


def test_six_agents_in_the_papers_49_games_with_three_seeds():
    suite = atari(3, chosen=())
    assert len(suite) == len(set(suite)) == 6 * 49 * 3
    assert {spec.game for spec in suite} == set(GAMES)
    assert {spec.steps for spec in suite} == {10_000_000}
    assert [spec.seed for spec in suite] == sorted(spec.seed for spec in suite)


def test_agents_have_the_papers_settings_and_its_names():
    columns = {column for study in ("auxiliary", "pretraining") for column in read_table(f"paper_{study}_scores")}
    suite = atari()
    assert {spec.agent.replace("-", "_") for spec in suite} == columns
    for spec in suite:
        config = configuration(spec)
        paper = PretrainingConfig() if spec.agent.endswith("-pretraining") else AuxiliaryConfig()
        assert config == replace(paper, agent=config.agent, game="Qbert", progress_bar=False)
        assert config.agent == spec.agent.removesuffix("-pretraining").replace("-", "_")
    for steps, before, starts in ((20_000, 2_000, 1_000), (1_000, 100, 50)):
        config = configuration(atari(steps=steps, only=["many-goals-pretraining"])[0])
        assert (config.steps, config.pretrain_steps, config.learning_starts) == (steps, before, starts)


def test_the_range_of_beta_on_the_seven_games():
    suite = BetaStudyConfig(SuiteConfig()).specs()
    assert len(set(suite)) == 8 * 7 * 3
    assert {configuration(spec).weight for spec in suite} == set(BETAS)
    one = configuration(suite[BETAS.index(0.02)])
    assert one == AuxiliaryConfig(game="Atlantis", weight=0.02, progress_bar=False)


@pytest.mark.parametrize(
    ("make_specs", "message"),
    [
        (lambda: mastery.PARTS["paper"].specs(0), "seeds must be at least 1, got 0"),
        (lambda: mastery.PARTS["paper"].specs(1, only=("table", "dqn")), "only must be of uniform, .*, table, got dqn"),
        (lambda: atari(steps=9), "steps must be at least 10, of which one is pre-training's, got 9"),
        (lambda: atari(chosen=["Hero"]), "games must be of Alien, .*, got Hero"),
        (lambda: atari(only=["ppo"]), "only must be of a2c, .*, got ppo"),
        (lambda: BetaStudyConfig(SuiteConfig(), games=("Pong",)).specs(), "games must be of Atlantis, .*, got Pong"),
        (lambda: BetaStudyConfig(SuiteConfig(), betas=()).specs(), "betas must be positive numbers, got none"),
        (lambda: BetaStudyConfig(SuiteConfig(), betas=(0.0, 0.1)).specs(), "betas must be positive numbers, got 0.0 0.1"),
    ],
)
def test_what_makes_no_sense_is_refused(make_specs, message):
    with pytest.raises(ValueError, match=message):
        make_specs()


@pytest.mark.usefixtures("no_sync")
def test_each_engine_gives_the_same_results(tmp_path):
    pytest.importorskip("ale_py")
    pytest.importorskip("lz4")
    agents, models = ("many-goals", "many-goals-pretraining"), []
    for engine, workers in (("in-process", 1), ("processes", 2)):
        suite = SuiteConfig(root=tmp_path / engine, engine=engine, workers=workers)
        config = GamesStudyConfig(suite, seeds=1, steps=240, games=("Boxing",), only=agents)
        assert config.run().complete
        finished = results(config.specs(), suite.root)
        assert len(finished) == 2
        for spec, result in finished.items():
            run = spec.folder(suite.root) / spec.agent / "run"
            assert result.values == json.loads((run / "score.json").read_text()) | {
                "mean_return": mean_return(run / "curve.csv")
            }
            assert result.values["step"] in (240, 264)
        runs = [spec.folder(suite.root) / spec.agent / "run" for spec in finished]
        models.append([A2C.load(run / "model.zip").policy.state_dict() for run in runs])
    same(*models)


@pytest.mark.usefixtures("no_sync")
def test_a_study_is_carried_out_and_compared(tmp_path, capsys):
    pytest.importorskip("minigrid")
    config = PretrainingStudyConfig(
        SuiteConfig(root=tmp_path), seeds=1, steps=240, pretrain_steps=80, games=("MiniGrid-Empty-5x5-v0",)
    )
    assert config.run().complete
    with (tmp_path / "comparison.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["agent"], row["seeds"]) for row in rows] == [("many_goals", "1"), ("none", "1"), ("reward_prediction", "1")]
    known = read([tmp_path])[["agent", "seed", "status"]].values.tolist()
    assert known == [[f"pretraining-{agent}", 0, "finished"] for agent in ("many_goals", "none", "reward_prediction")]
    (spec,) = (spec for spec in config.specs() if spec.settings["agent"] == "none")
    assert carry_out(spec, spec.folder(tmp_path))["step"] == 240  # finished, and not run again
    config.run()
    assert "3 runs, 3 have finished" in capsys.readouterr().out


def test_the_mean_return_counts_what_was_before_the_first_row_as_nothing(tmp_path):
    path = tmp_path / "curve.csv"
    assert mean_return(path) == 0.0
    path.write_text("step,episodes,episode_return\n")
    assert mean_return(path) == 0.0
    path.write_text("step,episodes,episode_return\n100,3,5.0\n150,4,1.0\n250,9,2.0\n")
    assert mean_return(path) == (50 * 1.0 + 100 * 2.0) / 250


def result(agent, seed, score):
    (spec,) = (one for one in pretraining.study().specs(9, only=(agent,)) if one.seed == seed)
    return Result(spec, {"score": score, "mean_return": (score or 0.0) / 2}, 1.0, 1)


def test_agents_are_compared_with_mastery():
    finished = [
        *(result("many_goals", seed, score) for seed, score in enumerate([0.5, 0.7, 0.9])),
        *(result("none", seed, score) for seed, score in enumerate([None, 0.5, 0.8])),
        result("reward_prediction", 0, 0.3),
    ]
    many, none, predicted = PretrainingStudyConfig().compare(finished)
    assert (many["agent"], many["seeds"]) == ("many_goals", 3)
    assert (many["score"], many["mean_return"]) == (pytest.approx(0.7), pytest.approx(0.35))
    assert many["score_low"] < 0.7 < many["score_high"]
    assert "score_better" not in many
    # 0.5 against 0, 0.5, 0.8: a win, a tie; 0.7: two wins; 0.9: three
    assert none["score_better"] == pytest.approx((1.5 + 2 + 3) / 9)
    assert none["score"] == pytest.approx(1.3 / 3)
    expected = {"agent": "reward_prediction", "seeds": 1, "score": 0.3, "mean_return": 0.15}
    assert predicted == {"game": "MiniGrid-DoorKey-5x5-v0"} | expected


def test_betas_are_compared_on_games_that_all_have(tmp_path, capsys):
    values = {"Boxing": (1.0, 7.0), "Qbert": (200.0, 9000.0), "UpNDown": (600.0, 900.0)}
    config = BetaStudyConfig(SuiteConfig(root=tmp_path), seeds=2, steps=100, games=tuple(values), betas=(0.01, 0.02))
    done = []
    for spec in config.specs():
        score = values[spec.game][spec.settings["weight"] == 0.02] + spec.seed
        done.append(Result(spec, {"score": score}, 1.0, 1))
        spec.write(tmp_path)
        done[-1].write(spec.folder(tmp_path))
    assert (done[-1].spec.game, done[-1].spec.agent) == ("UpNDown", "beta-0.02")
    rows = config.compare(done[:-1])
    assert [(row["beta"], row["games"], row["seeds"]) for row in rows] == [("0.01", 2, 2), ("0.02", 2, 2)]
    for row, column in zip(rows, (0, 1), strict=True):
        raw = [[values[game][column] + seed for game in ("Boxing", "Qbert")] for seed in (0, 1)]
        by_game = normalized(raw, ["Boxing", "Qbert"]).mean(axis=0)
        assert row["median"] == pytest.approx(by_game.mean())  # of two
        assert row["median_low"] <= row["median"] <= row["median_high"]
    assert "median_low" not in config.compare(done[:1])[0]
    assert config.compare([Result(done[0].spec, {"score": None}, 1.0, 1)]) == config.compare([]) == []
    config.run()
    with (tmp_path / "beta.csv").open(newline="") as file:
        assert [(row["beta"], row["games"]) for row in csv.DictReader(file)] == [("0.01", "3"), ("0.02", "3")]
    assert "is that of 0.02" in capsys.readouterr().out
